/* cpu_check with AVX512's kernels in every product and convolution, on any processor:
   their source, compiled for narrower vectors. The linker puts the functions of this file
   (-Wl,--wrap) in front of the engine's. CHECKED_PAIRS names the kernel of pairs of bfloat16.
 */
#define DM_EMULATE
#define dm_kernel_avx512 emulated_kernel
#include "../src/cpu/gemm_avx512.c"

const dm_Kernel *CHECKED_PAIRS(void);

const dm_Kernel *__wrap_dm_kernel(dm_DType type);
const dm_Kernel *__wrap_dm_kernel(dm_DType type) { return emulated_kernel(type); }

const dm_Kernel *__wrap_dm_kernel_pairs(void);
const dm_Kernel *__wrap_dm_kernel_pairs(void) { return CHECKED_PAIRS(); }

/* The linker puts no other dm_kernel into the calls of its own file, so that this one, which
   calls it, has a replacement too: both kernels of a convolution must be of one kind. */
const dm_Kernel *__wrap_dm_kernel_for(dm_DType type);
const dm_Kernel *__wrap_dm_kernel_for(dm_DType type) {
  return type == DM_BF16 ? CHECKED_PAIRS() : emulated_kernel(dm_compute_dtype(type));
}
