/* cat, stack, tile, repeat_interleave, flip, roll, hstack, vstack, dstack,
   column_stack and block_diag.

   Joining along a dim: with `outer` the product of the sizes before the dim, an
   input is `outer` rows, and each row is copied to its columns of the corresponding
   row of the output, by memcpy when dtype and layout allow and a row pays for the call. The
   gradient of cat and stack is a view of gy (narrow or select) for each input. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/sizes.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/shape/roll.h"
#include "op/strided.h"

enum {
  GRAIN_BYTES = 1 << 17,
  SHORT_ROW = 8 /* elements: the strided copy takes columns of more than so many rows */
};

/* The product of n sizes; 1 for none. */
static int64_t product(const int64_t *v, int n) { return dm_numel(n, v); }

/* Rows to copy. */
typedef struct Rows {
  const char *src;
  char *dst;
  int64_t bytes, pitch; /* bytes per row of src; distance between rows of dst */
} Rows;

/* Thread body: copies rows [begin, end). */
static void copy_rows(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  for (int64_t i = begin; i < end; i++)
    dm_copy_row(r->dst + i * r->pitch, r->src + i * r->bytes, r->bytes);
}

/* Copies src, as `outer` rows of `row` elements, into columns at .. at + row - 1 of
   out's rows of `out_row` elements. */
static dm_status copy_columns(dm_Tensor *out, dm_Tensor *src, int64_t outer, int64_t row,
                              int64_t out_row, int64_t at) {
  if (src->numel == 0) return DM_OK;
  const int64_t size = dm_dtype_size((dm_DType)out->dtype);
  /* a single row is a contiguous part of out, whose copy several threads share */
  const bool rows_pay = outer > 1 && (row > SHORT_ROW || outer <= SHORT_ROW);
  if (rows_pay && src->dtype == out->dtype && dm_tensor_is_contiguous(src)) {
    Rows r = {dm_tensor_data(src), (char *)dm_tensor_data(out) + at * size, row * size,
              out_row * size};
    dm_parallel_for(outer, dm_max_i64(1, GRAIN_BYTES / r.bytes), copy_rows, &r);
    return DM_OK;
  }
  /* a view of out with src's shape: dims before the joined one step over whole rows
     of out, the others are contiguous */
  int64_t stride[DM_MAX_DIM];
  dm_contiguous_strides(src->ndim, src->shape, stride);
  int64_t rows = 1;
  for (int d = 0; d < src->ndim && rows < outer; d++) {
    rows *= src->shape[d];
    stride[d] = stride[d] / row * out_row;
  }
  dm_Tensor dst = dm_view_of(out, src->ndim, src->shape, stride, out->offset + at);
  return dm_copy_to(&dst, src);
}

/* Two vectors whose elements take turns in dst. */
typedef struct Pair {
  const char *a, *b;
  char *dst;
  int64_t size; /* bytes of an element */
} Pair;

/* Thread body: elements [begin, end) of both. */
static void zip_range(void *ctx, int64_t begin, int64_t end) {
  const Pair *p = ctx;
  dm_loops()->zip[dm_move_of(p->size)](p->dst + 2 * begin * p->size, p->a + begin * p->size,
                                       p->b + begin * p->size, end - begin);
}

/* Joins two tensors whose rows are single elements in one walk, where memory is written in its
   order; false: it has done nothing. */
static bool try_zip(dm_Tensor *out, int n_in, dm_Tensor *const *in) {
  if (n_in != 2 || in[0]->numel != in[1]->numel || out->numel == 0) return false;
  for (int i = 0; i < 2; i++)
    if (in[i]->dtype != out->dtype || !dm_tensor_is_contiguous(in[i])) return false;
  Pair p = {dm_tensor_data(in[0]), dm_tensor_data(in[1]), dm_tensor_data(out),
            dm_dtype_size((dm_DType)out->dtype)};
  dm_parallel_for(out->numel / 2, GRAIN_BYTES / 2 / p.size, zip_range, &p);
  return true;
}

/* ---- cat, stack ---- */

/* A tensor of shape {0}, which cat skips, as PyTorch does for old code. */
static bool is_legacy_empty(const dm_Tensor *t) { return t->ndim == 1 && t->shape[0] == 0; }

/* A list of no tensors has neither a dtype nor a shape to give. */
static dm_status check_list(const dm_Call *c) {
  if (c->n_in > 0) return DM_OK;
  return dm_fail(DM_EARG, "%s: no tensors given, wanted at least one", c->op->name);
}

/* The inputs agree in all dims but one, and promote to a common dtype. */
dm_status cat_rule(dm_Call *c) {
  DM_TRY(check_list(c));
  const dm_Tensor *first = c->in[0];
  int dim, at = 0;
  /* The first tensor that counts decides rank and sizes for all others. */
  for (int i = 0; i < c->n_in && is_legacy_empty(first); i++) first = c->in[at = i];
  DM_TRY(dm_check_dim(c, first, DM_ATTR(dm_JoinAttr, c)->dim, &dim));
  if (first->ndim == 0)
    return dm_fail(DM_EARG, "cat: tensor %d has no dims; hint: stack", at + c->base);
  dm_out_like(c, 0, first, dm_result_dtype(c->n_in, c->in));
  int64_t *shape = c->out_meta[0].shape;
  shape[dim] = 0;
  for (int i = 0; i < c->n_in; i++) {
    const dm_Tensor *t = c->in[i];
    if (is_legacy_empty(t)) continue;
    bool same = t->ndim == first->ndim;
    for (int d = 0; same && d < t->ndim; d++) same = d == dim || t->shape[d] == first->shape[d];
    if (!same)
      return dm_fail(DM_EARG,
                     "cat: tensor %d has shape %s, tensor %d %s: they may differ in "
                     "dim %d only",
                     at + c->base, DM_SHAPE(first), i + c->base, DM_SHAPE(t), dim + c->base);
    shape[dim] += t->shape[dim];
  }
  return DM_OK;
}

/* Input i is copied to columns at .. of the output's rows. */
dm_status cat_cpu(dm_Call *c) {
  dm_Tensor *out = c->out[0];
  const int64_t attr = DM_ATTR(dm_JoinAttr, c)->dim;
  const int dim = (int)(attr < 0 ? attr + out->ndim : attr);
  const int64_t outer = product(out->shape, dim);
  const int64_t inner = product(out->shape + dim + 1, out->ndim - dim - 1);
  int64_t at = 0;
  if (out->shape[dim] == 2 && inner == 1 && try_zip(out, c->n_in, c->in)) return DM_OK;
  for (int i = 0; i < c->n_in; i++) {
    dm_Tensor *t = c->in[i];
    if (is_legacy_empty(t)) continue;
    const int64_t row = t->shape[dim] * inner;
    DM_TRY(copy_columns(out, t, outer, row, out->shape[dim] * inner, at));
    at += row;
  }
  return DM_OK;
}

/* The gradient of input i is gy narrowed to its part. */
void cat_grad(dm_Grad *g) {
  const dm_Tensor *gy = g->gy[0];
  const int64_t attr = DM_ATTR(dm_JoinAttr, g)->dim;
  const int dim = (int)(attr < 0 ? attr + gy->ndim : attr);
  int64_t at = 0;
  for (int i = 0; i < g->n_in; i++) {
    const dm_Meta *m = dm_in_meta(g, i);
    if (m->ndim == 1 && m->shape[0] == 0) continue;
    const int64_t narrow[3] = {dim, at, m->shape[dim]};
    if (g->need[i]) g->gx[i] = dm_x(g->x, DM_OP_narrow, narrow, 1, gy);
    at += m->shape[dim];
  }
}

/* stack's dim as 0 .. ndim, the position of the new dim in the output. */
static dm_status stack_dim(const dm_Call *c, int ndim, int *out) {
  const int64_t dim = DM_ATTR(dm_JoinAttr, c)->dim;
  if (dim < -(ndim + 1) || dim > ndim)
    return dm_fail(DM_EARG,
                   "stack: dim %lld is out of range for tensors of shape %s (wanted "
                   "%d to %d)",
                   (long long)(dim < 0 ? dim : dim + c->base), DM_SHAPE(c->in[0]), c->base,
                   ndim + c->base);
  *out = (int)(dim < 0 ? dim + ndim + 1 : dim);
  return DM_OK;
}

/* Inputs of one shape; the output has a new dim of size n_in. */
dm_status stack_rule(dm_Call *c) {
  DM_TRY(check_list(c));
  const dm_Tensor *first = c->in[0];
  int dim;
  DM_TRY(stack_dim(c, first->ndim, &dim));
  if (first->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG,
                   "stack: tensors of shape %s cannot take another dim, %d is the most",
                   DM_SHAPE(first), DM_MAX_DIM);
  for (int i = 1; i < c->n_in; i++)
    if (!dm_same_shape(first, c->in[i]))
      return dm_fail(DM_EARG, "stack: tensor %d has shape %s, tensor %d %s; wanted equal ones",
                     c->base, DM_SHAPE(first), i + c->base, DM_SHAPE(c->in[i]));
  dm_Meta *m = &c->out_meta[0];
  dm_out_like(c, 0, first, dm_result_dtype(c->n_in, c->in));
  m->ndim++;
  for (int d = first->ndim; d > dim; d--) m->shape[d] = first->shape[d - 1];
  m->shape[dim] = c->n_in;
  return DM_OK;
}

/* As cat of inputs with a dim of size 1 at dim. */
dm_status stack_cpu(dm_Call *c) {
  dm_Tensor *out = c->out[0];
  int dim;
  DM_TRY(stack_dim(c, out->ndim - 1, &dim));
  const int64_t outer = product(out->shape, dim);
  const int64_t row = product(out->shape + dim + 1, out->ndim - dim - 1);
  if (row == 1 && try_zip(out, c->n_in, c->in)) return DM_OK;
  for (int i = 0; i < c->n_in; i++)
    DM_TRY(copy_columns(out, c->in[i], outer, row, c->n_in * row, i * row));
  return DM_OK;
}

/* The gradient of input i is gy selected at i. */
void stack_grad(dm_Grad *g) {
  const int64_t dim = DM_ATTR(dm_JoinAttr, g)->dim;
  for (int i = 0; i < g->n_in; i++) {
    const int64_t select[2] = {dim, i};
    if (g->need[i]) g->gx[i] = dm_x(g->x, DM_OP_select, select, 1, g->gy[0]);
  }
}

/* ---- repeats ---- */

/* t (outer, size) -> (outer, n, size): every row n times, as a broadcast view. */
static dm_Tensor *repeat_rows(dm_X *x, dm_Tensor *t, int64_t outer, int64_t size, int64_t n) {
  const int64_t rows[3] = {outer, 1, size}, more[3] = {outer, n, size};
  return x_expand(x, x_reshape(x, t, 3, rows), 3, more);
}

/* *size *= n; fails on overflow. */
static dm_status multiply(const dm_Call *c, int64_t *size, int64_t n) {
  int64_t product;
  if (__builtin_mul_overflow(*size, n, &product))
    return dm_fail(DM_EARG, "%s: %lld times %lld elements are more than there are numbers for",
                   c->op->name, (long long)n, (long long)*size);
  *size = product;
  return DM_OK;
}

/* x with each repeated dim (s) as (n, s), the first of which is broadcast, is the result in
   another shape: one copy. The dims are taken from the last to the first, and those that are
   not repeated join the one behind them; a view that has no more dims to give is copied, and
   the rest goes on from there. */
dm_status tile_compose(dm_Call *c, dm_X *x) {
  /* Missing leading sizes of x, and missing leading repeats, count as 1. */
  const dm_Ints *reps = &DM_ATTR(dm_TileAttr, c)->dims;
  dm_Tensor *t = c->in[0];
  const int ndim = (int)dm_max_i64(t->ndim, reps->n);
  int64_t shape[DM_MAX_DIM], from[DM_MAX_DIM], to[DM_MAX_DIM], inner = 1;
  int first = DM_MAX_DIM; /* the view's dims so far are from[first] and those behind it */
  for (int d = 0; d < ndim; d++) {
    const int dd = d - (ndim - t->ndim);
    shape[d] = dd < 0 ? 1 : t->shape[dd];
  }
  for (int d = ndim - 1; d >= 0; d--) {
    const int r = d - (ndim - (int)dm_max_i64(reps->n, 0));
    const int64_t n = r < 0 ? 1 : reps->v[r];
    if (n < 0)
      return dm_fail(DM_EARG, "tile: %lld repeats given for dim %d, wanted 0 or more",
                     (long long)n, r + c->base);
    inner = dm_mul_sizes(inner, shape[d]);
    if (n != 1) {
      first -= 2;
      from[first + 1] = to[first + 1] = inner;
      from[first] = inner = 1;
      to[first] = n;
      DM_TRY(multiply(c, &shape[d], n));
    }
    if (first < DM_MAX_DIM && (d == 0 || first < 3)) {
      first--;
      from[first] = to[first] = dm_mul_sizes(inner, product(shape, d));
      t = x_reshape(x, t, DM_MAX_DIM - first, from + first);
      t = x_expand(x, t, DM_MAX_DIM - first, to + first);
      t = x_reshape(x, x_unary(x, DM_OP_clone, t), ndim, shape);
      if (x->st != DM_OK) return x->st;
      first = DM_MAX_DIM;
      inner = product(shape + d, ndim - d);
    }
  }
  /* the result is a new tensor even when nothing is repeated */
  if (t == c->in[0]) t = x_reshape(x, x_unary(x, DM_OP_clone, t), ndim, shape);
  c->out[0] = t;
  return x->st;
}

/* Each element along dim (or each element of the flattened x) n times in a row. */
dm_status repeat_interleave_compose(dm_Call *c, dm_X *x) {
  const dm_RepeatInterleaveAttr *a = DM_ATTR(dm_RepeatInterleaveAttr, c);
  dm_Tensor *t = c->in[0];
  int64_t shape[DM_MAX_DIM] = {t->numel};
  int dim = 0, ndim = 1;
  if (a->repeats < 0)
    return dm_fail(DM_EARG, "repeat_interleave: %lld repeats given, wanted 0 or more",
                   (long long)a->repeats);
  if (a->dim.set && t->ndim > 0) {
    DM_TRY(dm_check_dim(c, t, a->dim.v, &dim));
    ndim = t->ndim;
    for (int d = 0; d < ndim; d++) shape[d] = t->shape[d];
  }
  const int64_t size = product(shape + dim + 1, ndim - dim - 1);
  t = repeat_rows(x, t, product(shape, dim + 1), size, a->repeats);
  DM_TRY(multiply(c, &shape[dim], a->repeats));
  c->out[0] = dm_x(x, DM_OP_contiguous, NULL, 1, x_reshape(x, t, ndim, shape));
  return x->st;
}

/* The slices along dim (or the elements) as often as repeats, one number or one for each, says:
   they are selected by the positions, which the host counts out. */
dm_status repeat_interleave_each_compose(dm_Call *c, dm_X *x) {
  const dm_RepeatInterleaveEachAttr *a = DM_ATTR(dm_RepeatInterleaveEachAttr, c);
  dm_Tensor *t = c->in[0], *repeats = c->in[1];
  int dim = 0;
  if (!a->dim.set || t->ndim == 0) t = x_reshape(x, t, 1, &(int64_t){-1});
  else DM_TRY(dm_check_dim(c, t, a->dim.v, &dim));
  DM_TRY(x->st);
  const int64_t n = t->shape[dim];
  if (dm_is_float((dm_DType)repeats->dtype) || repeats->dtype == DM_BOOL || repeats->ndim > 1 ||
      (repeats->numel != 1 && repeats->numel != n))
    return dm_fail(
        DM_EARG, "repeat_interleave: repeats are %s of shape %s, wanted integers, one or %lld",
        dm_dtype_name((dm_DType)repeats->dtype), DM_SHAPE(repeats), (long long)n);
  dm_Tensor *host = NULL, *wide = x_cast(x, repeats, DM_I64);
  DM_TRY(x->st);
  DM_TRY(dm_tensor_on_host(wide, &host));
  host = dm_x(x, DM_OP_contiguous, NULL, 1, dm_x_own(x, host));
  DM_TRY(x->st);
  const int64_t *times = dm_tensor_data(host), step = host->numel > 1;
  int64_t total = 0, *at = NULL;
  for (int64_t i = 0; i < n; i++) {
    if (times[i * step] < 0)
      return dm_fail(DM_EARG, "repeat_interleave: %lld repeats given, wanted 0 or more",
                     (long long)times[i * step]);
    total = dm_add_sizes(total, times[i * step]);
  }
  if (a->output_size >= 0 && a->output_size != total)
    return dm_fail(DM_EARG, "repeat_interleave: output_size is %lld, the repeats sum to %lld",
                   (long long)a->output_size, (long long)total);
  dm_Tensor *index = dm_x_positions(x, total, &at);
  DM_TRY(x->st);
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k < times[i * step]; k++) *at++ = i + c->base;
  c->out[0] = dm_x_select(x, t, dim, index);
  return x->st;
}

/* ---- flip, roll ---- */

/* Each dim at most once. On the CPU the result is stored in x's order of dims, where x is
   dense, as in PyTorch. */
dm_status flip_rule(dm_Call *c) {
  const dm_Ints *dims = &DM_ATTR(dm_FlipAttr, c)->dims;
  unsigned seen = 0;
  for (int i = 0; i < dims->n; i++) {
    int d;
    DM_TRY(dm_check_dim(c, c->in[0], dims->v[i], &d));
    if (seen & 1u << d) return dm_fail(DM_EARG, "flip: dim %d is given twice", d + c->base);
    seen |= 1u << d;
  }
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  if (c->in[0]->device.type == DM_CPU && dm_tensor_is_dense(c->in[0])) c->order = c->in[0];
  return DM_OK;
}

/* y = x reversed along dims: a copy from a view with negative strides. */
dm_status flip_cpu(dm_Call *c) {
  const dm_Ints *dims = &DM_ATTR(dm_FlipAttr, c)->dims;
  const dm_Tensor *t = c->in[0];
  if (t->numel == 0) return DM_OK;
  /* The view starts at the last element of each reversed dim and steps backwards. */
  dm_Tensor back = dm_view_of(t, t->ndim, t->shape, t->stride, t->offset);
  for (int i = 0; i < dims->n && t->ndim > 0; i++) {
    const int64_t d = dims->v[i] < 0 ? dims->v[i] + t->ndim : dims->v[i];
    back.offset += (t->shape[d] - 1) * t->stride[d];
    back.stride[d] = -t->stride[d];
  }
  return dm_copy_to(c->out[0], &back);
}

/* Reversing twice restores the order: the gradient is gy flipped along the same dims. */
void flip_grad(dm_Grad *g) { g->gx[0] = dm_x(g->x, DM_OP_flip, g->attr, 1, g->gy[0]); }

/* As many shifts as dims, or one without dims: over the flattened elements. */
dm_status roll_rule(dm_Call *c) {
  const dm_RollAttr *a = DM_ATTR(dm_RollAttr, c);
  const dm_Tensor *t = c->in[0];
  if (a->dims.n <= 0 && a->shifts.n != 1)
    return dm_fail(DM_EARG, "roll: %lld shifts without dims, wanted 1", (long long)a->shifts.n);
  if (a->dims.n > 0 && a->shifts.n != a->dims.n)
    return dm_fail(DM_EARG, "roll: %lld shifts and %lld dims, wanted as many",
                   (long long)a->shifts.n, (long long)a->dims.n);
  if (a->dims.n > 0 && t->ndim == 0)
    return dm_fail(DM_EARG, "roll: x has no dims, wanted no dims to roll");
  for (int i = 0, d; i < a->dims.n; i++) DM_TRY(dm_check_dim(c, t, a->dims.v[i], &d));
  dm_out_like(c, 0, t, (dm_DType)t->dtype);
  return DM_OK;
}

/* Rows that change their order, and whose last `head` bytes come to their front. */
typedef struct Roll {
  const char *src;
  char *dst;
  int64_t row, head; /* bytes */
  int ndim;          /* the dims before a row, with their sizes and shifts */
  const int64_t *shape, *shift;
} Roll;

/* The row of src that becomes row i of dst. */
static int64_t rolled_row(const Roll *r, int64_t i) {
  int64_t from = 0, step = 1;
  for (int d = r->ndim - 1; d >= 0; d--) {
    const int64_t n = r->shape[d], at = i % n - r->shift[d];
    from += (at < 0 ? at + n : at) * step;
    step *= n;
    i /= n;
  }
  return from;
}

/* Thread body: bytes [begin, end) of dst, in the order of memory. */
static void roll_range(void *ctx, int64_t begin, int64_t end) {
  const Roll *r = ctx;
  for (int64_t i = begin / r->row, at = begin; at < end; i++) {
    const char *row = r->src + rolled_row(r, i) * r->row;
    const int64_t stop = dm_min_i64(end, (i + 1) * r->row), middle = i * r->row + r->head;
    if (at < middle) {
      const int64_t n = dm_min_i64(stop, middle) - at;
      dm_copy_row(r->dst + at, row + r->row - (middle - at), n);
      at += n;
    }
    if (at < stop) dm_copy_row(r->dst + at, row + (at - middle), stop - at);
    at = stop;
  }
}

/* Copies of rows, which begin at the last dim that is rolled, where they are long and x is
   dense; else of views. */
dm_status roll_cpu(dm_Call *c) {
  enum { LONG_ROW = 64 /* bytes */ };
  const dm_Tensor *t = c->in[0];
  int64_t shape[DM_MAX_DIM], shift[DM_MAX_DIM];
  const int ndim = dm_roll_shifts(DM_ATTR(dm_RollAttr, c), t, shape, shift);
  int last = ndim - 1;
  while (last > 0 && shift[last] == 0) last--;
  if (t->numel == 0) return DM_OK;
  const int64_t size = dm_dtype_size((dm_DType)t->dtype);
  const int64_t inner = product(shape + last + 1, ndim - last - 1);
  const int64_t row = shape[last] * inner * size;
  if (row < LONG_ROW || !dm_tensor_is_contiguous(t)) return dm_roll_views(c, dm_copy_to);
  Roll r = {dm_tensor_data(t),
            dm_tensor_data(c->out[0]),
            row,
            shift[last] * inner * size,
            last,
            shape,
            shift};
  dm_parallel_for(t->numel * size, GRAIN_BYTES, roll_range, &r);
  return DM_OK;
}

/* The gradient is gy, rolled back by the same shifts. */
void roll_grad(dm_Grad *g) {
  const dm_Tensor *gy = g->gy[0];
  const dm_RollAttr *a = DM_ATTR(dm_RollAttr, g);
  dm_RollAttr back = {.dims.n = a->dims.n <= 0 ? 0 : gy->ndim};
  int64_t shape[DM_MAX_DIM];
  back.shifts.n = dm_roll_shifts(a, gy, shape, back.shifts.v);
  for (int d = 0; d < back.shifts.n; d++) {
    back.shifts.v[d] = -back.shifts.v[d];
    back.dims.v[d] = d;
  }
  g->gx[0] = dm_x(g->x, DM_OP_roll, &back, 1, gy);
}

/* ---- joins along a dim that the tensors may lack ---- */

/* Output 0 = the list joined by cat or stack along dim. dm_x takes a fixed number of
   operands, so the call is made by dm_call and its result given to x. */
static dm_status call_joined(dm_Call *c, dm_X *x, int op, int64_t dim, dm_Tensor *const *in) {
  dm_Tensor *y = NULL;
  if (x->st == DM_OK) x->st = dm_call(op, c->n_in, in, &dim, &y);
  c->out[0] = x->st == DM_OK ? dm_x_own(x, y) : NULL;
  return x->st;
}

/* Joins the inputs along dim after dims of size 1 were added until each has `least`
   dims. New dims come first, except that with `behind` the last one added comes
   last: dstack makes (M, N) to (M, N, 1), column_stack makes (N) to (N, 1). */
static dm_status join_all(dm_Call *c, dm_X *x, int least, int64_t dim, bool behind) {
  DM_TRY(check_list(c));
  dm_Tensor **t = dm_alloc(c->n_in * (int64_t)sizeof(dm_Tensor *));
  if (!t) return dm_fail(DM_EMEM, "%s: out of memory", c->op->name);
  for (int i = 0; i < c->n_in; i++) {
    t[i] = c->in[i];
    for (int n = c->in[i]->ndim; n < least && x->st == DM_OK; n++) {
      const int64_t at = behind && n == least - 1 ? -1 : 0;
      t[i] = dm_x(x, DM_OP_unsqueeze, &at, 1, t[i]);
    }
  }
  const dm_status st = call_joined(c, x, DM_OP_cat, dim, t);
  dm_free(t);
  return st;
}

/* Vectors are joined along their only dim, others along the second one. */
dm_status hstack_compose(dm_Call *c, dm_X *x) {
  DM_TRY(check_list(c));
  return join_all(c, x, 1, c->in[0]->ndim > 1, false);
}

/* Vectors count as rows (1, N); joined along the first dim. */
dm_status vstack_compose(dm_Call *c, dm_X *x) { return join_all(c, x, 2, 0, false); }
/* Joined along the third dim: (M, N) counts as (M, N, 1), (N) as (1, N, 1). */
dm_status dstack_compose(dm_Call *c, dm_X *x) { return join_all(c, x, 3, 2, true); }
/* Vectors count as columns (N, 1); joined along the second dim. */
dm_status column_stack_compose(dm_Call *c, dm_X *x) { return join_all(c, x, 2, 1, true); }

/* The shape of a block of block_diag. */
static void block_size(const dm_Tensor *t, int64_t size[2]) {
  size[0] = t->ndim == 2 ? t->shape[0] : 1;
  size[1] = t->ndim ? t->shape[t->ndim - 1] : 1;
}

/* Zeros, into which each block is copied behind the one before it, in both dims. */
static dm_status copied_blocks(dm_Call *c, dm_X *x, dm_DType dtype, const int64_t size[2]) {
  const dm_SizedAttr of = {{2, {size[0], size[1]}}, dtype, dm_device_code(c->in[0]->device)};
  int64_t at[2] = {0, 0}, block[2];
  c->out[0] = dm_x(x, DM_OP_zeros, &of, 0);
  for (int i = 0; i < c->n_in && x->st == DM_OK; i++) {
    dm_Tensor *to = c->out[0];
    block_size(c->in[i], block);
    for (int64_t d = 0; d < 2; d++) {
      to = dm_x(x, DM_OP_narrow, (const int64_t[3]){d, at[d], block[d]}, 1, to);
      at[d] += block[d];
    }
    dm_Tensor *const in[2] = {to, c->in[i]};
    if (x->st == DM_OK) x->st = dm_call_inplace(DM_OP_copy, 2, in, &(int64_t){0});
  }
  return x->st;
}

/* Each block is joined with zeros to all columns, and the blocks are joined along the rows: the
   gradients are views. */
static dm_status joined_blocks(dm_Call *c, dm_X *x, dm_DType dtype, int64_t columns) {
  int64_t at = 0, size[2]; /* at: the column where the next block begins */
  dm_Tensor **rows = dm_alloc(c->n_in * (int64_t)sizeof(dm_Tensor *));
  if (!rows) return dm_fail(DM_EMEM, "block_diag: out of memory");
  for (int i = 0; i < c->n_in; i++) {
    const int64_t dim = 1;
    block_size(c->in[i], size);
    dm_Tensor *block = x_reshape(x, x_cast(x, c->in[i], dtype), 2, size);
    dm_Tensor *zero = block ? x_zeros(x, 1, (int64_t[1]){1}, block) : NULL;
    dm_Tensor *left = x_expand(x, zero, 2, (int64_t[2]){size[0], at});
    dm_Tensor *right = x_expand(x, zero, 2, (int64_t[2]){size[0], columns - at - size[1]});
    rows[i] = dm_x(x, DM_OP_cat, &dim, 3, left, block, right);
    at += size[1];
  }
  const dm_status st = call_joined(c, x, DM_OP_cat, 0, rows);
  dm_free(rows);
  return st;
}

/* In one pass where no gradient will ask for how it came about. */
dm_status block_diag_compose(dm_Call *c, dm_X *x) {
  DM_TRY(check_list(c));
  const dm_DType dtype = dm_result_dtype(c->n_in, c->in);
  int64_t size[2] = {0, 0}, block[2];
  bool record = false;
  for (int i = 0; i < c->n_in; i++) {
    const dm_Tensor *t = c->in[i];
    if (t->ndim > 2)
      return dm_fail(DM_EARG, "block_diag: tensor %d has shape %s, wanted at most 2 dims",
                     i + c->base, DM_SHAPE(t));
    block_size(t, block);
    for (int d = 0; d < 2; d++) size[d] = dm_add_sizes(size[d], block[d]);
    record = record || dm_tensor_requires_grad(t);
  }
  if (record && dm_thread_state()->grad) return joined_blocks(c, x, dtype, size[1]);
  return copied_blocks(c, x, dtype, size);
}
