/* The kernel of pairs of bfloat16 for avx512_check, in the same way. */
#define DM_EMULATE
#define dm_kernel_avx512 emulated_kernel /* of avx512_check.c */
#define dm_kernel_avx512bf16 emulated_pairs
#include "../src/cpu/gemm_avx512bf16.c"

const dm_Kernel *__wrap_dm_kernel_pairs(void);
const dm_Kernel *__wrap_dm_kernel_pairs(void) { return emulated_pairs(); }

/* The linker puts no other dm_kernel into the calls of its own file, so that this one, which
   calls it, has a replacement too: both kernels of a convolution must be of one kind. */
const dm_Kernel *__wrap_dm_kernel_for(dm_DType type);
const dm_Kernel *__wrap_dm_kernel_for(dm_DType type) {
  return type == DM_BF16 ? emulated_pairs() : dm_kernel_avx512(dm_compute_dtype(type));
}
