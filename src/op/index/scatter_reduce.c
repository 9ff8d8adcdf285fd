/* scatter_reduce: elements of a source are reduced into the positions that an index
   names, by sum, mean, product or extreme, as in PyTorch. With include_self x's own
   element takes part; without it the positions are first set to the reduction's
   identity. sum is scatter_add, mean divides it by a count that is scattered the
   same way, product and extremes are the kernel scatter_reduce_self. */
#include <math.h>

#include "base/error.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

typedef enum Reduce { SUM, PROD, MEAN, AMAX, AMIN } Reduce;

static dm_Tensor *x_reduce_self(dm_X *x, const dm_ScatterReduceSelfAttr *a, dm_Tensor *t,
                                dm_Tensor *at, dm_Tensor *src) {
  return dm_x(x, DM_OP_scatter_reduce_self, a, 3, t, at, src);
}
static dm_Tensor *x_gather(dm_X *x, int64_t dim, dm_Tensor *t, dm_Tensor *at) {
  return dm_x(x, DM_OP_gather, &dim, 2, t, at);
}
static dm_Tensor *x_scatter(dm_X *x, int op, int64_t dim, dm_Tensor *t, dm_Tensor *at,
                            dm_Tensor *src) {
  return dm_x(x, op, &dim, 3, t, at, src);
}

/* ---- products and extremes: the gradient ---- */

/* dx and dsrc of an extreme: gy is divided equally among all elements that equal the
   result, x's own one included. */
static void extreme_grad(dm_Grad *g, const dm_ScatterReduceSelfAttr *a) {
  dm_X *x = g->x;
  dm_Tensor *y = g->out[0], *at = g->in[1], *gy = g->gy[0];
  dm_Tensor *own = x_like(x, dm_x(x, DM_OP_eq, NULL, 2, g->in[0], y), gy);
  dm_Tensor *theirs =
      x_like(x, dm_x(x, DM_OP_eq, NULL, 2, g->in[2], x_gather(x, a->dim, y, at)), gy);
  gy = x_div(x, gy, x_scatter(x, DM_OP_scatter_add, a->dim, own, at, theirs));
  if (g->need[0]) g->gx[0] = x_mul(x, own, gy);
  if (g->need[2]) g->gx[2] = x_mul(x, theirs, x_gather(x, a->dim, gy, at));
}

/* The gradient of a factor is the product of the other factors: the whole product divided by
   that factor, or, for a single factor of 0, the product with 1 in its position. Where a
   position has several zeros, no factor has a gradient. */
static void product_grad(dm_Grad *g, const dm_ScatterReduceSelfAttr *a) {
  dm_X *x = g->x;
  dm_Tensor *own = g->in[0], *at = g->in[1], *src = g->in[2], *gy = g->gy[0];
  dm_Tensor *one = dm_x_number(x, 1);
  if (g->need[0]) {
    dm_Tensor *filled = x_where(x, x_test(x, DM_OP_eq, own, 0), one, own);
    g->gx[0] = x_div(x, x_mul(x, gy, x_reduce_self(x, a, filled, at, src)), filled);
  }
  if (!g->need[2]) return;
  dm_Tensor *zero = x_test(x, DM_OP_eq, src, 0);
  dm_Tensor *zeros =
      x_scatter(x, DM_OP_scatter_add, a->dim, x_zeros_like(x, gy), at, x_like(x, zero, gy));
  zeros = x_gather(x, a->dim, zeros, at);
  dm_Tensor *single = dm_x(x, DM_OP_logical_and, NULL, 2, zero, x_test(x, DM_OP_eq, zeros, 1));
  dm_Tensor *without = x_reduce_self(x, a, own, at, x_where(x, single, one, src));
  dm_Tensor *whole = x_gather(x, a->dim, x_mul(x, gy, g->out[0]), at);
  g->gx[2] = x_where(x, single, x_gather(x, a->dim, x_mul(x, gy, without), at),
                     x_div(x, whole, x_where(x, zero, one, src)));
}

void scatter_reduce_self_grad(dm_Grad *g) {
  const dm_ScatterReduceSelfAttr *a = g->attr;
  if (a->reduce == DM_SCATTER_PROD) product_grad(g, a);
  else extreme_grad(g, a);
}

/* ---- scatter_reduce ---- */

/* The identity of a reduction, for positions where x does not count: 0, 1, or the
   extreme of the dtype. */
static dm_Tensor *identity(dm_X *x, Reduce reduce, dm_DType dtype) {
  if (reduce != AMAX && reduce != AMIN) return x_whole(x, reduce == PROD);
  if (dm_is_float(dtype))
    return dm_x_number(x, reduce == AMAX ? -(double)INFINITY : (double)INFINITY);
  const int bits = (int)(8 * dm_dtype_size(dtype));
  const bool sign = dtype != DM_U8 && dtype != DM_BOOL;
  const int64_t most = dtype == DM_BOOL ? 1 : sign ? INT64_MAX >> (64 - bits) : 255;
  return x_whole(x, reduce == AMIN ? most : sign ? -most - 1 : 0);
}

/* The leading part of the source that the index covers. One of the two may have no dims. */
static dm_Tensor *corner_of(dm_X *x, dm_Tensor *src, const dm_Tensor *index) {
  const int n = src->ndim < index->ndim ? src->ndim : index->ndim;
  for (int d = 0; x->st == DM_OK && d < n; d++)
    if (src->shape[d] > index->shape[d])
      src = dm_x(x, DM_OP_narrow, &(int64_t[3]){d, 0, index->shape[d]}, 1, src);
  return src;
}

/* sum / count, the count at least 1; integers round down, as in PyTorch. */
static dm_Tensor *mean(dm_X *x, dm_Tensor *sum, dm_Tensor *at, dm_Tensor *src, int64_t dim,
                       bool include_self) {
  if (x->st != DM_OK) return NULL;
  dm_Tensor *count = x_unary(x, include_self ? DM_OP_ones_like : DM_OP_zeros_like, sum);
  dm_Tensor *one = x->st == DM_OK ? x_unary(x, DM_OP_ones_like, src) : NULL;
  count = x_floor(x, x_scatter(x, DM_OP_scatter_add, dim, count, at, one), 1);
  const int64_t floored = 2;
  return dm_x(x, DM_OP_div,
              x->st == DM_OK && dm_is_float((dm_DType)sum->dtype) ? NULL : &floored, 2, sum,
              count);
}

/* The public op. */
dm_status scatter_reduce_compose(dm_Call *c, dm_X *x) {
  const dm_ScatterReduceAttr *a = c->attr;
  dm_Tensor *t = c->in[0], *at = c->in[1], *src = c->in[2];
  const dm_DType dtype = (dm_DType)t->dtype;
  const Reduce reduce = (Reduce)a->reduce;
  DM_TRY(dm_check_scatter(c));
  src = corner_of(x, src, at);
  if (!a->include_self)
    t = x_scatter(x, DM_OP_scatter, a->dim, t, at, identity(x, reduce, dtype));
  if (reduce == SUM || reduce == MEAN) {
    t = x_scatter(x, DM_OP_scatter_add, a->dim, t, at, src);
    if (reduce == MEAN) t = mean(x, t, at, src, a->dim, a->include_self != 0);
  } else {
    const dm_ScatterReduceSelfAttr into = {a->dim, reduce == PROD   ? DM_SCATTER_PROD
                                                   : reduce == AMAX ? DM_SCATTER_AMAX
                                                                    : DM_SCATTER_AMIN};
    t = x_reduce_self(x, &into, t, at, src);
  }
  c->out[0] = t;
  return x->st;
}

/* scatter{reduce = }: a number as src stands for as many as the index has. */
dm_status scatter_with_compose(dm_Call *c, dm_X *x) {
  const dm_ScatterWithAttr *a = DM_ATTR(dm_ScatterWithAttr, c);
  dm_Tensor *t = c->in[0], *at = c->in[1], *src = c->in[2];
  if (src->flags & DM_T_NUMBER) {
    src = dm_x_there(x, x_cast(x, src, (dm_DType)t->dtype), t->device);
    src = x_expand(x, src, at->ndim, at->shape);
  }
  const dm_ScatterReduceSelfAttr product = {a->dim, DM_SCATTER_PROD};
  c->out[0] = a->reduce == 0 ? dm_x(x, DM_OP_scatter_add, &a->dim, 3, t, at, src)
                             : x_reduce_self(x, &product, t, at, src);
  return x->st;
}
