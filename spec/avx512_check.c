/* cpu_check with AVX512's kernels in every product and convolution, on any processor:
   their source, compiled for narrower vectors. The linker puts dm_kernel of this file
   (-Wl,--wrap=dm_kernel) in place of the engine's, and dm_kernel_pairs and dm_kernel_for of
   avx512bf16.c. */
#define DM_EMULATE
#define dm_kernel_avx512 emulated_kernel
#include "../src/cpu/gemm_avx512.c"

const dm_Kernel *__wrap_dm_kernel(dm_DType type);
const dm_Kernel *__wrap_dm_kernel(dm_DType type) { return emulated_kernel(type); }
