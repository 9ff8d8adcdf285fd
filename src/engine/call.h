/* The front door: every op is called through dm_call, dm_call_inplace (both in demilune.h) or
   one of these. PyTorch's dispatcher is the counterpart. */
#ifndef DM_CALL_H
#define DM_CALL_H

#include "engine/op.h"

/* dm_call, which also returns the number of outputs. */
dm_status dm_call_n(int op, int n_in, dm_Tensor *const *in, const void *attr, dm_Tensor **out,
                    int *n_out);

/* A device's kernel of that op; a back end registers all of its own when it is opened. */
void dm_op_register(dm_DeviceType type, dm_OpId id, dm_KernelFn *kernel);
/* For a composition that has a kernel of its own on some devices only. */
bool dm_op_has_kernel(dm_OpId id, dm_Device dev);

/* The steps of a composition: each calls an op and leaves the result to x, which frees all of
   them at its end. After a failure every further step returns NULL; x->st holds the status. */
dm_Tensor *dm_x(dm_X *x, int op, const void *attr, int n_in, ...);
dm_Tensor *dm_x_own(dm_X *x, dm_Tensor *t); /* x frees t at its end */
dm_Tensor *dm_x_number(dm_X *x, double v);  /* a host number as an operand */
dm_Tensor *dm_x_widen(dm_X *x,
                      dm_Tensor *t); /* a 16-bit tensor in float32, others as they are */
void dm_x_free(dm_X *x);
#define DM_X_INIT \
  { .st = DM_OK }

/* Fills cast[] with the inputs as an op of that plan gets them: a new reference for every
   input that is not NULL. */
struct dm_CastPlan;
dm_status dm_cast_inputs(const struct dm_CastPlan *plan, int n_in, dm_Tensor *const *in,
                         dm_Tensor **cast);
/* Conversions that autocast has made in this thread. */
DM_API int64_t dm_autocast_cast_count(void);

#endif
