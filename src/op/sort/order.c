/* Ops that follow from the order of elements, composed of sorts, gathers and running
   sums: cumprod, logcumsumexp, cummax, cummin, kthvalue, median, quantile, mode,
   searchsorted, bincount, histc, isin, and the reductions that skip NaN.

   Running products and extremes are prefix scans by doubling (Hillis & Steele 1986):
   log2(n) whole-tensor steps instead of n dependent ones, which suits every device.
   Ops that select elements sort each slice along dim, or as much of it as the wanted rank
   takes, and gather by the sort's indices; the gradient then flows through the gather alone.
   Slices are sorted with NaN last, as torch.sort does. */
#include <math.h>

#include "op/sort/order.h"

#include "base/error.h"
#include "op/reduce/reduce.h"

/* Reads the least and the largest element of t, converted to `as`, into *low and *high.
   It waits for t's device. */
static dm_status read_range(dm_X *x, dm_Tensor *t, dm_DType as, void *low, void *high) {
  const dm_DimsAttr all = {{-1, {0}}, 0};
  dm_Tensor *least = x_cast(x, dm_x(x, DM_OP_amin, &all, 1, t), as);
  dm_Tensor *most = x_cast(x, dm_x(x, DM_OP_amax, &all, 1, t), as);
  DM_TRY(x->st);
  DM_TRY(dm_tensor_read(least, 8, low));
  return dm_tensor_read(most, 8, high);
}

/* ---- running products ---- */

/* A prefix scan of t along dim with logaddexp: after the step with distance s, element i has
   been joined with the 2 s - 1 elements before it (Hillis & Steele 1986). */
static dm_Tensor *scan(dm_X *x, dm_Tensor *t, int dim) {
  const int64_t n = t && t->ndim ? t->shape[dim] : 1;
  for (int64_t s = 1; s < n; s *= 2) {
    dm_Tensor *behind = x_narrow(x, t, dim, s, n - s), *before = x_narrow(x, t, dim, 0, n - s);
    t = x_cat(x, x_narrow(x, t, dim, 0, s), dm_x(x, DM_OP_logaddexp, NULL, 2, behind, before),
              dim);
  }
  return t;
}

/* t moved on by one along dim, with `first` (size 1 along dim) before it. */
static dm_Tensor *delayed(dm_X *x, dm_Tensor *first, dm_Tensor *t, int dim, int64_t n) {
  return x_cat(x, first, x_narrow(x, t, dim, 0, n - 1), dim);
}

/* The gradient by a kernel; for create_graph composed: dx_i = P_i S_i with P_i the product of
   the elements before i, and S_i = gy_i + m_i S_(i+1), m_i = x_(i+1), by doubling: after the
   step with distance s, S_i has the 2 s terms from i on, m_i is the product of as many
   elements. */
void running_product_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_CumsumAttr *a = DM_ATTR(dm_CumsumAttr, g);
  dm_Tensor *v = g->in[0], *gy = g->gy[0];
  const int64_t n = v->ndim ? v->shape[a->dim < 0 ? a->dim + v->ndim : a->dim] : 1;
  const int dim = (int)a->dim;
  if (!g->create_graph || v->ndim == 0 || n < 2) {
    g->gx[0] = v->ndim && n > 1 ? dm_x(x, DM_OP_running_product_back, a, 2, v, gy) : gy;
    return;
  }
  dm_Tensor *none = x_unary(x, DM_OP_zeros_like, x_narrow(x, v, dim, 0, 1));
  dm_Tensor *before =
      delayed(x, x_shift(x, none, 1), dm_x(x, DM_OP_running_product, a, 1, v), dim, n);
  dm_Tensor *m = x_cat(x, x_narrow(x, v, dim, 1, n - 1), none, dim);
  for (int64_t s = 1; s < n; s *= 2) {
    dm_Tensor *factor = x_narrow(x, m, dim, 0, n - s), *rest = x_narrow(x, gy, dim, n - s, s);
    dm_Tensor *sum = x_add(x, x_narrow(x, gy, dim, 0, n - s),
                           x_mul(x, factor, x_narrow(x, gy, dim, s, n - s)));
    m = x_cat(x, x_mul(x, factor, x_narrow(x, m, dim, s, n - s)),
              x_unary(x, DM_OP_zeros_like, rest), dim);
    gy = x_cat(x, sum, rest, dim);
  }
  g->gx[0] = x_mul(x, before, gy);
}

/* Integers and bool give int64 unless a dtype is asked for, as torch.cumprod. */
dm_status cumprod_compose(dm_Call *c, dm_X *x) {
  const dm_CumsumAttr *a = DM_ATTR(dm_CumsumAttr, c);
  const dm_DType own = (dm_DType)c->in[0]->dtype;
  const dm_DType to = a->dtype >= 0 ? (dm_DType)a->dtype : dm_is_float(own) ? own : DM_I64;
  /* from one end to the other: a product of later elements alone may overflow */
  const dm_CumsumAttr own_dtype = {a->dim, DM_NO_DTYPE};
  c->out[0] = dm_x(x, DM_OP_running_product, &own_dtype, 1, x_cast(x, c->in[0], to));
  return x->st;
}

/* y_i = log(sum over k <= i of e^(x_k)): a scan with logaddexp, which does not
   overflow. 16-bit floats are scanned in float32 and rounded once at the end. */
dm_status logcumsumexp_compose(dm_Call *c, dm_X *x) {
  DM_TRY(dm_check_float(c, c->in[0], "x"));
  dm_Tensor *t = c->in[0];
  int d;
  DM_TRY(dm_check_dim(c, t, DM_ATTR(dm_ScanAttr, c)->dim, &d));
  dm_Tensor *y = x_cast(x, scan(x, x_cast(x, t, wide_of(t)), d), (dm_DType)t->dtype);
  c->out[0] = y == t ? x_unary(x, DM_OP_clone, t) : y;
  return x->st;
}

/* ---- kthvalue, median ---- */

/* The tensor that elements are selected from: t's slices along dim, or one slice of all
   elements (whole) when the caller gave no dim. */
typedef struct Slices {
  dm_Tensor *t;
  int dim;
  bool whole;
} Slices;

/* Prepares *l from input 0 and an optional dim. Fails on an empty slice. */
static dm_status open_slices(dm_Call *c, dm_X *x, dm_OptInt dim, Slices *l) {
  dm_Tensor *t = c->in[0];
  l->dim = 0;
  if (dim.set) DM_TRY(dm_check_dim(c, t, dim.v, &l->dim));
  l->whole = !dim.set || t->ndim == 0;
  l->t = l->whole ? x_flat(x, t) : t;
  DM_TRY(x->st);
  if (l->t->shape[l->dim] > 0) return DM_OK;
  return dm_fail(DM_EARG, "%s: x has shape %s: there is nothing to choose from", c->op->name,
                 DM_SHAPE(t));
}

/* Sets the op's outputs: the elements of each slice at positions `at` (size 1 along
   dim) and the positions themselves. */
static dm_status give_chosen(dm_Call *c, dm_X *x, const Slices *l, dm_Tensor *at,
                             bool keepdim) {
  dm_Tensor *both[2] = {x_gather(x, l->t, at, l->dim), at};
  for (int i = 0; i < c->n_out; i++) {
    if (l->whole) both[i] = x_reshape(x, both[i], 0, NULL);
    else if (!keepdim) both[i] = dm_x(x, DM_OP_squeeze, &(dm_Ints){1, {l->dim}}, 1, both[i]);
    c->out[i] = both[i];
  }
  return x->st;
}

/* The position of the k-th smallest element of each slice, k from 1: the last of its k smallest
   ones, which need no order for that. */
static dm_Tensor *kth(dm_X *x, const Slices *l, int64_t k) {
  const dm_TopkAttr smallest = {.k = k, .dim = l->dim};
  dm_Tensor *both[2];
  if (!x_call(x, DM_OP_topk, &smallest, 1, &(dm_Tensor *){l->t}, both)) return NULL;
  return x_narrow(x, both[1], l->dim, k - 1, 1);
}

/* The k-th smallest element of each slice, k from 1, and its position. */
dm_status kthvalue_compose(dm_Call *c, dm_X *x) {
  const dm_KthvalueAttr *a = DM_ATTR(dm_KthvalueAttr, c);
  Slices l;
  DM_TRY(open_slices(c, x, (dm_OptInt){1, a->dim}, &l));
  if (a->k < 1 || a->k > l.t->shape[l.dim])
    return dm_fail(DM_EARG, "kthvalue: k is %lld, wanted 1 to %lld, the size of dim %d",
                   (long long)a->k, (long long)l.t->shape[l.dim], l.dim + c->base);
  return give_chosen(c, x, &l, kth(x, &l, a->k), a->keepdim);
}

/* Replaces `at` by the position of the first NaN in slices that hold one: median
   propagates NaN. */
static dm_Tensor *or_nan(dm_X *x, const Slices *l, dm_Tensor *at) {
  if (!dm_is_float((dm_DType)l->t->dtype)) return at;
  dm_Tensor *largest[2]; /* which the first NaN is */
  if (!x_call(x, DM_OP_max, &(dm_DimAttr){{1, l->dim}, true}, 1, &(dm_Tensor *){l->t}, largest))
    return NULL;
  return x_where(x, x_unary(x, DM_OP_isnan, largest[0]), largest[1], at);
}

/* The number of elements of each slice that are not NaN, int64, size 1 along dim. */
static dm_Tensor *count_numbers(dm_X *x, const Slices *l) {
  dm_Tensor *number = dm_x(x, DM_OP_eq, NULL, 2, l->t, l->t); /* a NaN differs from itself */
  return x_sum(x, number, (dm_Ints){1, {l->dim}}, true);
}

/* The position of the lower median of the elements that are not NaN: element (count -
   1) div 2 of the sorted slice, in which NaN come last. A slice of NaN alone takes its
   first one. */
static dm_Tensor *middle_number(dm_X *x, const Slices *l, dm_Tensor *order, int base) {
  const dm_DivAttr floored = {2};
  /* (count + 1) div 2 counts from 1, for count > 0 */
  dm_Tensor *twice = x_moved(x, count_numbers(x, l), 2 * base - 1);
  dm_Tensor *middle = dm_x(x, DM_OP_div, &floored, 2, twice, x_whole(x, 2));
  return x_gather(x, order, x_floor(x, middle, base), l->dim);
}

/* v, an element of t, which may be NaN, so that its gradient goes to all elements that equal
   it, in even shares: the largest one of those. */
static dm_Tensor *shared_by_equals(dm_X *x, dm_Tensor *t, dm_Tensor *v) {
  dm_Tensor *nan = dm_x(x, DM_OP_logical_and, NULL, 2, x_unary(x, DM_OP_isnan, t),
                        x_unary(x, DM_OP_isnan, v));
  dm_Tensor *same = dm_x(x, DM_OP_logical_or, NULL, 2, dm_x(x, DM_OP_eq, NULL, 2, t, v), nan);
  const dm_DimsAttr all = {{-1, {0}}, false};
  return dm_x(x, DM_OP_amax, &all, 1, x_where(x, same, t, dm_x_number(x, -(double)INFINITY)));
}

/* The lower median, as torch.median: of an even number of elements the smaller middle
   one. The median of all elements shares its gradient among equal ones, as PyTorch's. */
static dm_status median(dm_Call *c, dm_X *x, bool skip_nan) {
  const dm_DimAttr *a = DM_ATTR(dm_DimAttr, c);
  dm_Tensor *sorted[2], *at = NULL;
  Slices l;
  c->n_out = a->dim.set ? 2 : 1;
  DM_TRY(open_slices(c, x, a->dim, &l));
  if (!skip_nan) at = or_nan(x, &l, kth(x, &l, (l.t->shape[l.dim] + 1) / 2));
  else if (x_sort(x, l.t, l.dim, sorted)) at = middle_number(x, &l, sorted[1], c->base);
  DM_TRY(give_chosen(c, x, &l, at, a->keepdim));
  if (!a->dim.set && dm_thread_state()->grad && dm_tensor_requires_grad(c->in[0]))
    c->out[0] = shared_by_equals(x, c->in[0], c->out[0]);
  return x->st;
}
dm_status median_compose(dm_Call *c, dm_X *x) { return median(c, x, false); }
dm_status nanmedian_compose(dm_Call *c, dm_X *x) { return median(c, x, true); }

/* ---- quantiles ---- */

/* x is float32 or float64; q is a number or a vector with elements in 0 .. 1. */
static dm_status check_quantiles(const dm_Call *c, dm_X *x) {
  const dm_Tensor *t = c->in[0];
  dm_Tensor *q = c->in[1];
  double low = 0, high = 0;
  if (t->dtype != DM_F32 && t->dtype != DM_F64)
    return dm_fail(DM_EARG, "%s: x is %s, wanted float32 or float64", c->op->name,
                   dm_dtype_name((dm_DType)t->dtype));
  if (q->ndim > 1 || q->numel == 0)
    return dm_fail(DM_EARG, "%s: q has shape %s, wanted a number or some in one dim",
                   c->op->name, DM_SHAPE(q));
  if (q->device.type != DM_CPU)
    return DM_OK; /* reading q would wait for the device; gather refuses positions out of range
                     there */
  DM_TRY(read_range(x, q, DM_F64, &low, &high));
  if (low >= 0 && high <= 1) return DM_OK;
  return dm_fail(DM_EARG, "%s: q is %g, wanted 0 to 1", c->op->name, low >= 0 ? high : low);
}

/* The fractional rank q (n - 1) in each sorted slice, counted from 0, with n the number
   of its elements that are not NaN (skip_nan) or its size. Without skip_nan a slice
   that holds a NaN gets the last rank, where a NaN lies. It is the float64 product of q in x's
   dtype, as in PyTorch: float32 has no ranks beyond 2^24. */
static dm_Tensor *ranks_of(dm_X *x, const Slices *l, dm_Tensor *q, bool skip_nan) {
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < l->t->ndim; d++) shape[d] = d == l->dim ? q->numel : 1;
  q = x_cast(x, dm_x_there(x, q, l->t->device), (dm_DType)l->t->dtype);
  q = x_cast(x, q, DM_F64);
  q = x_reshape(x, q, l->t->ndim, shape);
  dm_Tensor *numbers = count_numbers(x, l);
  const int64_t last = l->t->shape[l->dim] - 1;
  if (skip_nan) return x_mul(x, q, x_floor(x, x_shift(x, x_cast(x, numbers, DM_F64), -1), 0));
  dm_Tensor *whole = x_test(x, DM_OP_gt, numbers, (double)last);
  return x_where(x, whole, x_scale(x, q, (double)last), dm_x_number(x, (double)last));
}

/* Brings y, whose dim l->dim has one element for each of the Q quantiles, to PyTorch's
   shape: (Q, ...) in front, without the reduced dim or with size 1 for it (keepdim). Q
   is omitted when q is a number. */
static dm_Tensor *quantiles_shape(dm_X *x, dm_Tensor *y, const Slices *l, const dm_Tensor *of,
                                  const dm_Tensor *q, bool keepdim) {
  const dm_MovedimAttr front = {{1, {l->dim}}, {1, {0}}};
  int64_t shape[DM_MAX_DIM];
  int n = 0;
  y = dm_x(x, DM_OP_movedim, &front, 1, y);
  if (q->ndim) shape[n++] = q->numel;
  for (int d = 0; d < of->ndim; d++) {
    const bool gone = l->whole || d == l->dim;
    if (!gone || keepdim) shape[n++] = gone ? 1 : of->shape[d];
  }
  return x_reshape(x, y, n, shape);
}

/* y = lerp(x[floor(rank)], x[ceil(rank)], rank - floor(rank)) for linear interpolation.
   lower, higher and nearest round the rank first; midpoint uses the weight 1/2. */
static dm_status quantile(dm_Call *c, dm_X *x, bool skip_nan) {
  enum { LINEAR, LOWER, HIGHER, MIDPOINT, NEAREST };
  const dm_QuantileAttr *a = DM_ATTR(dm_QuantileAttr, c);
  dm_Tensor *sorted[2], *q = c->in[1];
  Slices l;
  DM_TRY(check_quantiles(c, x));
  DM_TRY(open_slices(c, x, a->dim, &l));
  if (c->in[0]->ndim == DM_MAX_DIM && q->ndim && a->keepdim)
    return dm_fail(DM_EARG, "%s: the result would have more than %d dims", c->op->name,
                   DM_MAX_DIM);
  if (!x_sort(x, l.t, l.dim, sorted)) return x->st;
  dm_Tensor *rank = ranks_of(x, &l, q, skip_nan);
  if (a->interpolation == LOWER) rank = x_unary(x, DM_OP_floor, rank);
  if (a->interpolation == HIGHER) rank = x_unary(x, DM_OP_ceil, rank);
  if (a->interpolation == NEAREST) rank = x_unary(x, DM_OP_round, rank);
  dm_Tensor *low = x_unary(x, DM_OP_floor, rank), *high = x_unary(x, DM_OP_ceil, rank);
  dm_Tensor *below = x_gather(x, sorted[0], x_moved(x, x_cast(x, low, DM_I64), c->base), l.dim);
  dm_Tensor *above =
      x_gather(x, sorted[0], x_moved(x, x_cast(x, high, DM_I64), c->base), l.dim);
  dm_Tensor *weight = a->interpolation == MIDPOINT
                          ? dm_x_number(x, 0.5)
                          : x_cast(x, x_sub(x, rank, low), (dm_DType)l.t->dtype);
  dm_Tensor *y = below;
  if (a->interpolation == LINEAR || a->interpolation == MIDPOINT)
    y = dm_x(x, DM_OP_lerp, NULL, 3, below, above, weight);
  c->out[0] = quantiles_shape(x, y, &l, c->in[0], q, a->keepdim != 0);
  return x->st;
}
dm_status quantile_compose(dm_Call *c, dm_X *x) { return quantile(c, x, false); }
dm_status nanquantile_compose(dm_Call *c, dm_X *x) { return quantile(c, x, true); }

/* ---- running extremes ---- */

/* cummax and cummin: a scan of values and positions together. Of two candidates the
   earlier stays when it is better, or when it is NaN and the later is not; of equals
   the later is taken, as in PyTorch. `better` is the op gt or lt. The values are
   gathered by the final positions, so that the gradient goes to these elements. The CPU has a
   kernel that goes from element to element. */
static dm_status running(dm_Call *c, dm_X *x, int better) {
  dm_Tensor *t = c->in[0];
  int dim;
  DM_TRY(dm_check_dim(c, t, DM_ATTR(dm_ScanAttr, c)->dim, &dim));
  if (t->device.type == DM_CPU) {
    const dm_RunningExtremeAttr a = {dim, better == DM_OP_lt};
    (void)x_call(x, DM_OP_running_extreme, &a, 1, &t, c->out);
    return x->st;
  }
  dm_Tensor *src = t->ndim ? t : x_flat(x, t);
  DM_TRY(x->st);
  const int64_t n = src->shape[dim];
  int64_t *to, shape[DM_MAX_DIM];
  dm_Tensor *at = dm_x_positions(x, n, &to), *v = src;
  for (int64_t i = 0; at && i < n; i++) to[i] = i + c->base;
  for (int d = 0; d < src->ndim; d++) shape[d] = d == dim ? n : 1;
  at = x_reshape(x, dm_x_there(x, at, t->device), src->ndim, shape);
  at = x_expand(x, at, src->ndim, src->shape);
  for (int64_t s = 1; s < n && x->st == DM_OK; s *= 2) {
    dm_Tensor *a = x_narrow(x, v, dim, 0, n - s), *b = x_narrow(x, v, dim, s, n - s);
    dm_Tensor *a_only = dm_x(x, DM_OP_logical_and, NULL, 2, x_unary(x, DM_OP_isnan, a),
                             x_unary(x, DM_OP_logical_not, x_unary(x, DM_OP_isnan, b)));
    dm_Tensor *stays =
        dm_x(x, DM_OP_logical_or, NULL, 2, dm_x(x, better, NULL, 2, a, b), a_only);
    dm_Tensor *at_next =
        x_where(x, stays, x_narrow(x, at, dim, 0, n - s), x_narrow(x, at, dim, s, n - s));
    at = x_cat(x, x_narrow(x, at, dim, 0, s), at_next, dim);
    v = x_gather(x, src, at, dim);
  }
  c->out[0] = x_reshape(x, x_gather(x, src, at, dim), t->ndim, t->shape);
  c->out[1] = x_reshape(x, at, t->ndim, t->shape);
  return x->st;
}
dm_status cummax_compose(dm_Call *c, dm_X *x) { return running(c, x, DM_OP_gt); }
dm_status cummin_compose(dm_Call *c, dm_X *x) { return running(c, x, DM_OP_lt); }

/* The most frequent element of each slice: runs of equal elements in the sorted
   slice are counted, and the last element of the first longest run gives value and
   position. */
dm_status mode_compose(dm_Call *c, dm_X *x) {
  const dm_ModeAttr *a = DM_ATTR(dm_ModeAttr, c);
  dm_Tensor *sorted[2];
  Slices l;
  DM_TRY(open_slices(c, x, (dm_OptInt){1, a->dim}, &l));
  if (!x_sort(x, l.t, l.dim, sorted)) return x->st;
  dm_Tensor *run =
      x_moved(x, x_cumsum(x, x_run_starts(x, sorted[0], l.dim), l.dim), c->base - 1);
  dm_Tensor *counts = x_count(x, x_zeros_of(x, run, DM_I64), run, l.dim);
  dm_Tensor *most = dm_x(x, DM_OP_argmax, &(dm_DimAttr){{1, l.dim}, true}, 1, counts);
  dm_Tensor *ends = x_moved(x, x_cumsum(x, counts, l.dim), c->base - 1);
  dm_Tensor *last = x_gather(x, ends, most, l.dim);
  return give_chosen(c, x, &l, x_gather(x, sorted[1], last, l.dim), a->keepdim);
}

/* ---- positions among sorted elements ---- */

/* searchsorted for sequence (..., n) and values (..., m) with equal leading dims: both
   are joined and sorted together, stably, and a value's result is the number of
   sequence elements before it. Values come first among equals when the side is left,
   last when it is right. */
static dm_Tensor *merged(dm_X *x, dm_Tensor *sequence, dm_Tensor *values, bool right,
                         int base) {
  const int64_t last = values->ndim - 1, n = sequence->shape[last], m = values->shape[last];
  dm_Tensor *sorted[2], *all, *from;
  dm_Tensor *one = x_ones_of(x, sequence, DM_I64), *zero = x_zeros_of(x, values, DM_I64);
  all = right ? x_cat(x, sequence, values, last) : x_cat(x, values, sequence, last);
  from = right ? x_cat(x, one, zero, last) : x_cat(x, zero, one, last);
  if (x->st != DM_OK || !x_sort(x, all, last, sorted)) return NULL;
  dm_Tensor *before = x_cumsum(x, x_gather(x, from, sorted[1], last), last);
  dm_Tensor *there = dm_x(x, DM_OP_scatter, &last, 3, from, sorted[1], before);
  return x_moved(x, x_narrow(x, there, last, right ? n : 0, m), base);
}

/* A sequence of one dim is left to bucketize, a binary search; batches of sequences use
   merged(). */
dm_status searchsorted_compose(dm_Call *c, dm_X *x) {
  enum { NONE, LEFT, RIGHT };
  const dm_SearchsortedAttr *a = c->attr;
  dm_Tensor *sequence = c->in[0], *values = c->in[1];
  const bool right = a->right || a->side == RIGHT;
  if (a->right && a->side == LEFT)
    return dm_fail(DM_EARG,
                   "searchsorted: side is left, right is true; hint: give one of them");
  bool fits = sequence->ndim >= 1 && (sequence->ndim == 1 || sequence->ndim == values->ndim);
  for (int d = 0; fits && sequence->ndim > 1 && d < sequence->ndim - 1; d++)
    fits = sequence->shape[d] == values->shape[d];
  if (!fits)
    return dm_fail(
        DM_EARG,
        "searchsorted: a sequence of shape %s and values of shape %s, wanted one dim "
        "or the values' leading dims",
        DM_SHAPE(sequence), DM_SHAPE(values));
  if (c->in[2]) sequence = x_gather(x, sequence, c->in[2], sequence->ndim - 1);
  DM_TRY(x->st);
  if (values->flags & DM_T_NUMBER) values = dm_x_there(x, values, sequence->device);
  DM_TRY(x->st);
  if (sequence->ndim > 1) c->out[0] = merged(x, sequence, values, right, c->base);
  else
    c->out[0] =
        dm_x(x, DM_OP_bucketize, &(dm_BucketizeAttr){right, false}, 2, values, sequence);
  if (a->out_int32) c->out[0] = x_cast(x, c->out[0], DM_I32);
  return x->st;
}

/* ---- counts ---- */

/* y_k = number (or sum of weights) of the elements equal to k + base. The size of y
   depends on x's largest element, which is read from the device. */
dm_status bincount_compose(dm_Call *c, dm_X *x) {
  const int64_t minlength = DM_ATTR(dm_BincountAttr, c)->minlength;
  dm_Tensor *t = c->in[0], *weights = c->in[1];
  int64_t low = c->base, high = c->base - 1;
  DM_TRY(dm_check_index(c, t));
  if (t->ndim != 1 || minlength < 0)
    return dm_fail(DM_EARG,
                   "bincount: shape %s and minlength %lld, wanted one dim and 0 or more",
                   DM_SHAPE(t), (long long)minlength);
  if (weights && (weights->ndim != 1 || weights->shape[0] != t->shape[0]))
    return dm_fail(DM_EARG, "bincount: weights have shape %s, wanted x's, %s",
                   DM_SHAPE(weights), DM_SHAPE(t));
  if (t->numel > 0) DM_TRY(read_range(x, t, DM_I64, &low, &high));
  if (low < c->base)
    return dm_fail(DM_EARG, "bincount: x holds %lld, wanted positions, which count from %d",
                   (long long)low, c->base);
  const int64_t n = dm_max_i64(minlength, dm_min_i64(high, INT64_MAX - 1) - c->base + 1);
  const dm_DType to = !weights ? DM_I64 : weights->dtype == DM_F32 ? DM_F32 : DM_F64;
  dm_Tensor *each = weights ? x_cast(x, weights, to) : x_ones_of(x, t, to);
  c->out[0] = dm_x(x, DM_OP_index_add, &(dm_IndexAddAttr){0, 1}, 3, x_full(x, n, 0, to, t),
                   x_cast(x, t, DM_I64), each);
  return x->st;
}

/* Counts of elements in equal bins over [min, max], or over x's own range when min
   equals max. bin = floor((x - min) bins / (max - min)), and the last bin includes max.
   Elements outside count 0. */
dm_status histc_compose(dm_Call *c, dm_X *x) {
  const dm_HistcAttr *a = c->attr;
  double low = a->min, high = a->max;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  if (a->bins < 1)
    return dm_fail(DM_EARG, "histc: %lld bins, wanted 1 or more", (long long)a->bins);
  if (low == high && t->numel > 0) DM_TRY(read_range(x, t, DM_F64, &low, &high));
  if (!(low <= high) || !isfinite(low) || !isfinite(high))
    return dm_fail(DM_EARG, "histc: from %g to %g, wanted a range of numbers", low, high);
  if (low == high) {
    low -= 1;
    high += 1;
  }
  t = x_cast(x, x_flat(x, t), wide_of(t));
  dm_Tensor *inside = dm_x(x, DM_OP_logical_and, NULL, 2, x_test(x, DM_OP_ge, t, low),
                           x_test(x, DM_OP_le, t, high));
  dm_Tensor *bin = x_scale(x, x_shift(x, t, -low), (double)a->bins);
  bin = x_where(x, inside, x_div(x, bin, dm_x_number(x, high - low)), dm_x_number(x, 0));
  const dm_ClampAttr held = {{1, 0}, {1, (double)(a->bins - 1)}};
  bin = x_cast(x, dm_x(x, DM_OP_clamp, &held, 1, bin), DM_I64); /* drops the fraction */
  if (x->st != DM_OK) return x->st;
  dm_Tensor *counts =
      dm_x(x, DM_OP_index_add, &(dm_IndexAddAttr){0, 1}, 3, x_full(x, a->bins, 0, DM_I64, t),
           x_moved(x, bin, c->base), x_cast(x, inside, DM_I64));
  c->out[0] = x_cast(x, counts, (dm_DType)c->in[0]->dtype);
  return x->st;
}

/* ---- nansum, nanmean, var_mean, std_mean, argsort, isin ---- */

/* NaN are replaced by 0, which has no gradient; the CPU's loops do so as they add. */
dm_status nansum_compose(dm_Call *c, dm_X *x) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  dm_Tensor *t = c->in[0];
  const bool floats = dm_is_float((dm_DType)t->dtype);
  dm_SumAttr as_x = *a;
  if (floats && t->device.type == DM_CPU && (a->dtype < 0 || dm_is_float((dm_DType)a->dtype))) {
    c->out[0] = dm_x(x, DM_OP_sum_numbers, a, 1, t);
    return x->st;
  }
  if (floats)
    t = dm_x(x, DM_OP_nan_to_number, &(dm_NanToNumberAttr){0, false}, 3, t,
             dm_x_number(x, (double)INFINITY), dm_x_number(x, -(double)INFINITY));
  if (floats && a->dtype < 0) as_x.dtype = t ? t->dtype : a->dtype;
  c->out[0] = dm_x(x, DM_OP_sum, &as_x, 1, t);
  return x->st;
}

/* nansum(x) / count of elements that are not NaN. */
dm_status nanmean_compose(dm_Call *c, dm_X *x) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_float(c, t, "x"));
  dm_Tensor *number = x_unary(x, DM_OP_logical_not, x_unary(x, DM_OP_isnan, t));
  dm_Tensor *count = x_sum(x, number, a->dim, a->keepdim);
  c->out[0] = x_div(x, dm_x(x, DM_OP_nansum, a, 1, t), count);
  return x->st;
}

static dm_status with_mean(dm_Call *c, dm_X *x, int op) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  c->out[0] = dm_x(x, op, a, 1, c->in[0]);
  c->out[1] = dm_x(x, DM_OP_mean, &(dm_SumAttr){a->dim, a->keepdim, -1}, 1, c->in[0]);
  return x->st;
}
dm_status var_mean_compose(dm_Call *c, dm_X *x) { return with_mean(c, x, DM_OP_var); }
dm_status std_mean_compose(dm_Call *c, dm_X *x) { return with_mean(c, x, DM_OP_std); }

dm_status argsort_compose(dm_Call *c, dm_X *x) {
  dm_Tensor *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_sort, c->attr, 1, c->in, out)) return x->st;
  c->out[0] = out[1];
  return x->st;
}

/* x is among the sorted test elements when its left and its right insertion point
   differ. */
dm_status isin_compose(dm_Call *c, dm_X *x) {
  const bool invert = DM_ATTR(dm_IsinAttr, c)->invert;
  dm_Tensor *test = x_reshape(x, c->in[1], 1, &c->in[1]->numel), *sorted[2] = {NULL, NULL};
  const dm_SortAttr rising = {0, false, false};
  DM_TRY(x->st);
  if (!x_call(x, DM_OP_sort, &rising, 1, &test, sorted)) return x->st;
  const dm_BucketizeAttr left = {false, false}, right = {true, false};
  dm_Tensor *begin = dm_x(x, DM_OP_bucketize, &left, 2, c->in[0], sorted[0]);
  dm_Tensor *end = dm_x(x, DM_OP_bucketize, &right, 2, c->in[0], sorted[0]);
  c->out[0] = dm_x(x, invert ? DM_OP_eq : DM_OP_ne, NULL, 2, begin, end);
  return x->st;
}
