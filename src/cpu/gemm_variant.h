/* Selects the kernels that multiply on this processor: gemm_kernel.h's, one set for each
   variant (cpu/variant.h). */
#ifndef DM_GEMM_VARIANT_H
#define DM_GEMM_VARIANT_H

#include "cpu/gemm_kernel.h"

const dm_Kernel *dm_kernel(dm_DType type);  /* for sums in DM_F32 or DM_F64: the widest here */
const dm_Kernel *dm_kernel_pairs(void);     /* of bfloat16; NULL: this processor has none */
const dm_Kernel *dm_kernel_for(dm_DType t); /* for operands of t: pairs, or dm_kernel's */
dm_DType dm_gathered(const dm_Kernel *kn);  /* the dtype that the gathers read */

#endif
