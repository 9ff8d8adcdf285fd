/* Registers the CUDA column of the op table: one kernel function per op, NULL for ops without
   one. */
#include "engine/call.h"
#include "kernels/module.h"

#define NO_KERNEL NULL
static dm_KernelFn *const *kernels(void) {
  static dm_KernelFn *const table[DM_N_OP] = {
#define OP(NAME, N_OUT, SIG, RULE, CPU_FN, CUDA_FN, ...) [DM_OP_##NAME] = CUDA_FN,
#include "ops.gen.def"
#undef OP
  };
  return table;
}

void dm_cuda_table_open(void) {
  for (int i = 0; i < DM_N_OP; i++)
    if (kernels()[i]) dm_op_register(DM_CUDA, (dm_OpId)i, kernels()[i]);
}
