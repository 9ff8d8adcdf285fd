/* Register kernels for 64-bit ARM: 8 x 12 floats or 8 x 6 doubles, 24 sums of 32 registers,
   three loads of B a step; A multiplies by the lane. gemm_wide.inc has the code. */
#ifdef __aarch64__
#define WIDE 16
#define MR 8
#define N_VEC 3
#define PART 16
#define KERNEL dm_kernel_neon
#include "cpu/gemm_wide.inc"
#else
#include "cpu/gemm_kernel.h"
const dm_Kernel *dm_kernel_neon(dm_DType type) {
  DM_UNUSED(type);
  return NULL;
}
#endif
