/* The kernel of pairs of bfloat16 for avx512_check and amx_check, in the same way. */
#define DM_EMULATE
#define dm_kernel_avx512 emulated_kernel /* of avx512_check.c */
#define dm_kernel_avx512bf16 emulated_pairs
#include "../src/cpu/gemm_avx512bf16.c"
