/* Register kernels for AVX512: 12 x 32 floats or 12 x 16 doubles, 24 sums of 32 registers, two
   loads of B and twelve broadcasts of A a step of k. gemm_wide.inc has the code. The checks
   compile it with DM_EMULATE for processors without AVX512: each vector is then two or four
   narrower ones. */
#if defined(__AVX512F__) || defined(DM_EMULATE)
#define WIDE 64
#define MR 12
#define N_VEC 2
#define PART 32
#define KERNEL dm_kernel_avx512
#include "cpu/gemm_wide.inc"
#else
#include "cpu/gemm_kernel.h"
const dm_Kernel *dm_kernel_avx512(dm_DType type) {
  DM_UNUSED(type);
  return NULL;
}
#endif
