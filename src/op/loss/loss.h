/* Attributes of the losses with labels and the geometry of their rows, for the
   kernels of every device. */
#ifndef DM_LOSS_H
#define DM_LOSS_H

#include "op/along.h"
#include "engine/op.h"
#include "op/reduction.h"

/* The value of a formula of base/triple.inc for each element of its n operands, float32 in 16
   bits, or reduced over the last dim or all; in one op where the device and the operands allow
   it. */
dm_Tensor *x_formula(dm_X *x, const dm_LossTermAttr *f, int64_t reduction, bool last, int n,
                     dm_Tensor *const *in);

/* The p-norm of u - v + eps over the last dim, float32 in 16 bits; eps keeps the gradient
   finite where u equals v. */
dm_Tensor *x_distance(dm_X *x, dm_Tensor *u, dm_Tensor *v, double p, double eps, bool keepdim);

#endif
