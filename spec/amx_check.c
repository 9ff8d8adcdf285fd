/* avx512_check once more, with the kernel of tiles for products of bfloat16: CHECKED_PAIRS
   there is emulated_tiles. */
#define DM_EMULATE
#define dm_kernel_avx512 emulated_kernel    /* of avx512_check.c */
#define dm_kernel_avx512bf16 emulated_pairs /* of avx512bf16.c */
#define dm_kernel_amx emulated_tiles
#include "../src/cpu/gemm_amx.c"
