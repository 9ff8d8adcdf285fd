/* How a pointwise kernel runs: runs of the iterator, cut into blocks that fit
   the first-level cache; each block is widened to the compute type, computed,
   and rounded once into the output. */
#ifndef DM_POINTWISE_H
#define DM_POINTWISE_H

#include "core/iter.h"
#include "cpu/loops/block.h"
#include "engine/call.h"
#include "engine/op.h"

/* out = fn(in...), in the compute type of `compute`; in broadcast to out. */
dm_status dm_pointwise(dm_Tensor *out, int n_in, dm_Tensor *const *in, dm_DType compute,
                       const dm_Pointwise *fn, const double *param);
/* The same where a, b and out are bool: fn's integer form, which must be defined for 0 and 1,
   by a loop over bytes. A formula of one operand gets it as both. */
void dm_pointwise_bools(dm_Tensor *out, dm_Tensor *a, dm_Tensor *b, const dm_Pointwise *fn,
                        const double *param);

/* Whether t is a host number, and then which one. */
bool dm_is_number(dm_Tensor *t, double *v);

/* Compositions' short hands; see dm_x. */
dm_Tensor *x_add(dm_X *x, dm_Tensor *a, dm_Tensor *b);
dm_Tensor *x_sub(dm_X *x, dm_Tensor *a, dm_Tensor *b);
dm_Tensor *x_mul(dm_X *x, dm_Tensor *a, dm_Tensor *b);
dm_Tensor *x_div(dm_X *x, dm_Tensor *a, dm_Tensor *b);
dm_Tensor *x_scale(dm_X *x, dm_Tensor *a, double s);       /* a * s */
dm_Tensor *x_shift(dm_X *x, dm_Tensor *a, double s);       /* a + s */
dm_Tensor *x_unary(dm_X *x, int op, dm_Tensor *a);         /* any op of one tensor, defaults */
dm_Tensor *x_like(dm_X *x, dm_Tensor *mask, dm_Tensor *t); /* mask as t's dtype */
dm_Tensor *x_cast(dm_X *x, dm_Tensor *a, dm_DType to);
dm_Tensor *x_where(dm_X *x, dm_Tensor *mask, dm_Tensor *a, dm_Tensor *b);
dm_Tensor *x_test(dm_X *x, int op, dm_Tensor *a, double v); /* a eq, lt, ge ... v */
dm_Tensor *x_whole(dm_X *x, int64_t v);                     /* as dm_x_number, of an integer */
dm_Tensor *x_floor(dm_X *x, dm_Tensor *a, double low);      /* a, but never below low */
/* a - b, of which no history is kept: a term to add what no gradient shall see */
dm_Tensor *x_constant_sub(dm_X *x, dm_Tensor *a, dm_Tensor *b);
/* gy times a partial derivative, a formula of base/triple.inc of gy, a and perhaps b, with its
   number p, in one pass; it has no gradient itself. */
dm_Tensor *x_partial(dm_X *x, int formula, double p, dm_Tensor *gy, dm_Tensor *a, dm_Tensor *b);
/* Whether operand i of g was broadcast, so that its gradient is a sum. */
bool dm_was_broadcast(const dm_Grad *g, int i);
/* The same for the gradient of operand i of g: along dims in which that was broadcast it is
   summed, in float32. For ops whose rows have the flag sums. */
dm_Tensor *x_partial_for(dm_Grad *g, int i, int formula, double p, dm_Tensor *a, dm_Tensor *b);
/* norm p along a dim */
dm_Tensor *x_norm(dm_X *x, dm_Tensor *a, double p, int64_t dim, bool keepdim);
/* sum over dims (n = -1: all), keeping them as size 1 or not */
dm_Tensor *x_sum(dm_X *x, dm_Tensor *a, dm_Ints dims, bool keepdim);
dm_Tensor *x_reshape(dm_X *x, dm_Tensor *a, int ndim, const int64_t *shape);
dm_Tensor *x_unsqueeze(dm_X *x, dm_Tensor *a, int64_t dim);
dm_Tensor *x_squeeze(dm_X *x, dm_Tensor *a, int64_t dim);
dm_Tensor *x_transpose(dm_X *x, dm_Tensor *a, int d0, int d1);
dm_Tensor *x_matmul(dm_X *x, dm_Tensor *a, dm_Tensor *b);
dm_Tensor *x_zeros_like(dm_X *x, dm_Tensor *a);
dm_Tensor *x_expand(dm_X *x, dm_Tensor *a, int ndim, const int64_t *shape);

#endif
