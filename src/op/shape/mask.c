/* masked_fill, masked_select, masked_put (x[mask] = source), tril and triu. Masks
   broadcast to x. masked_select and masked_put traverse x and mask in row-major
   order and copy between the chosen elements and a contiguous row; each is the
   other's gradient. */
#include <string.h>

#include "base/error.h"
#include "core/iter.h"
#include "cpu/threads.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/pointwise/ternary.h"
#include "op/strided.h"

enum { GRAIN = 32768 };

/* ---- masks ---- */

static dm_status check_mask(const dm_Call *c, const dm_Tensor *mask) {
  if (mask->dtype == DM_BOOL || mask->dtype == DM_U8) return DM_OK;
  return dm_fail(DM_EARG, "%s: the mask is %s, wanted bool; hint: x:ne(0)", c->op->name,
                 dm_dtype_name((dm_DType)mask->dtype));
}

/* Adds the number of true elements of a run to *ctx. */
static void count_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; i++) sum += ptr[0][i * stride[0]] != 0;
  *(int64_t *)ctx += sum;
}

/* The number of true elements of a mask on any device; a rule needs it for the
   output's shape. */
static dm_status count_mask(dm_Tensor *mask, int64_t *count) {
  *count = 0;
  if (mask->device.type != DM_CPU) return dm_count_far(mask, count);
  if (mask->numel == 0) return DM_OK;
  dm_Iter it;
  dm_iter_init(&it, 1, &mask);
  dm_iter_range(&it, 0, mask->numel, count_run, count);
  return DM_OK;
}

dm_status masked_fill_rule(dm_Call *c) {
  dm_Tensor *x = c->in[0], *value = c->in[2];
  dm_Meta *m = &c->out_meta[0];
  int ndim;
  DM_TRY(check_mask(c, c->in[1]));
  if (value->ndim != 0)
    return dm_fail(DM_EARG,
                   "masked_fill: a value of shape %s given, wanted a number or a 0-dim "
                   "tensor",
                   DM_SHAPE(value));
  DM_TRY(dm_check_source(c, x, value));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  DM_TRY(dm_broadcast("masked_fill", x, c->in[1], &ndim, m->shape));
  m->ndim = (uint8_t)ndim;
  return DM_OK;
}

dm_status masked_fill_cpu(dm_Call *c) {
  return dm_choose(c->out[0], c->in[1], c->in[2], c->in[0]);
}

/* dx is gy with masked elements 0; dvalue is the sum of gy over the mask, which the
   tape's broadcast sum takes. */
void masked_fill_grad(dm_Grad *g) {
  dm_Tensor *zero = dm_x_number(g->x, 0), *mask = g->in[1];
  if (g->need[0]) g->gx[0] = dm_x(g->x, DM_OP_masked_fill, NULL, 3, g->gy[0], mask, zero);
  if (g->need[2]) g->gx[2] = x_where(g->x, mask, g->gy[0], zero);
}

/* The output is a vector; a mask that broadcasts counts once for each repetition. */
dm_status masked_select_rule(dm_Call *c) {
  dm_Tensor *x = c->in[0], *mask = c->in[1];
  int ndim;
  int64_t shape[DM_MAX_DIM], count;
  DM_TRY(check_mask(c, mask));
  DM_TRY(dm_broadcast("masked_select", x, mask, &ndim, shape));
  DM_TRY(count_mask(mask, &count));
  if (mask->numel > 0) count *= dm_numel(ndim, shape) / mask->numel;
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  c->out_meta[0].ndim = 1;
  c->out_meta[0].shape[0] = count;
  return DM_OK;
}

/* Copies between a contiguous row and the masked elements of a tensor, in row-major
   order. */
typedef struct Compact {
  char *row;
  int64_t size, step; /* bytes per element; distance between elements of row */
  bool put;           /* copy from row to the tensor, else to row */
} Compact;

/* One run of the iterator; ptr: tensor, mask. */
static void compact_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Compact *k = ctx;
  for (int64_t i = 0; i < n; i++) {
    if (ptr[1][i * stride[1]] == 0) continue;
    char *p = ptr[0] + i * stride[0] * k->size;
    if (k->put) memcpy(p, k->row, (size_t)k->size);
    else memcpy(k->row, p, (size_t)k->size);
    k->row += k->step;
  }
}

/* Traverses t and the mask once, in order; it is sequential, because each element's
   position in the row depends on those before it. */
static void compact(dm_Tensor *t, dm_Tensor *mask, Compact k) {
  dm_Tensor *both[2] = {t, mask};
  dm_Iter it;
  if (t->numel == 0) return;
  dm_iter_init(&it, 2, both);
  dm_iter_range(&it, 0, t->numel, compact_run, &k);
}

/* y = the elements of x, broadcast to the mask, where the mask is true. */
dm_status masked_select_cpu(dm_Call *c) {
  dm_Tensor *x = c->in[0], *mask = c->in[1];
  int ndim;
  int64_t shape[DM_MAX_DIM];
  const int64_t size = dm_dtype_size((dm_DType)x->dtype);
  DM_TRY(dm_broadcast("masked_select", x, mask, &ndim, shape));
  dm_Tensor wide = dm_view_expanded(x, ndim, shape);
  compact(&wide, mask, (Compact){dm_tensor_data(c->out[0]), size, size, false});
  return DM_OK;
}

/* dx is zeros with gy put at the masked elements. */
void masked_select_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  dm_Tensor x = {.ndim = m->ndim}; /* carries only a shape, for dm_broadcast */
  int ndim;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) x.shape[d] = m->shape[d];
  g->x->st = dm_broadcast("masked_select", &x, g->in[1], &ndim, shape);
  if (g->x->st != DM_OK) return;
  dm_Tensor *zeros = x_zeros(g->x, ndim, shape, g->gy[0]);
  g->gx[0] = dm_x(g->x, DM_OP_masked_put, NULL, 3, zeros, g->in[1], g->gy[0]);
}

/* The source has one element, or as many as the mask chooses. */
dm_status masked_put_rule(dm_Call *c) {
  dm_Tensor *x = c->in[0], *mask = c->in[1], *source = c->in[2];
  int ndim;
  int64_t shape[DM_MAX_DIM], count;
  DM_TRY(check_mask(c, mask));
  DM_TRY(dm_check_source(c, x, source));
  DM_TRY(dm_broadcast("masked_put", x, mask, &ndim, shape));
  if (ndim != x->ndim || memcmp(shape, x->shape, sizeof *shape * (size_t)ndim) != 0)
    return dm_fail(DM_EARG, "masked_put: a mask of shape %s does not broadcast to %s",
                   DM_SHAPE(mask), DM_SHAPE(x));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  if (source->numel == 1) return DM_OK;
  DM_TRY(count_mask(mask, &count));
  if (mask->numel > 0) count *= x->numel / mask->numel;
  if (count != source->numel)
    return dm_fail(DM_EARG,
                   "masked_put: the mask chooses %lld elements, the source of shape "
                   "%s has %lld",
                   (long long)count, DM_SHAPE(source), (long long)source->numel);
  return DM_OK;
}

/* y = x with masked elements replaced by the source's, in order, or by its single
   element. */
dm_status masked_put_cpu(dm_Call *c) {
  dm_Tensor *out = c->out[0], *source = c->in[2], *row = NULL;
  const int64_t size = dm_dtype_size((dm_DType)out->dtype);
  dm_status st;
  DM_GO(dm_dense_as_new(source, (dm_DType)out->dtype, source->ndim, source->shape, &row));
  DM_GO(dm_copy_to(out, c->in[0]));
  compact(out, c->in[1],
          (Compact){dm_tensor_data(row), size, source->numel == 1 ? 0 : size, true});
done:
  dm_tensor_unref(&row);
  return st;
}

/* dx is gy with masked elements 0; dsource is gy's masked elements. */
void masked_put_grad(dm_Grad *g) {
  if (g->need[0])
    g->gx[0] = dm_x(g->x, DM_OP_masked_fill, NULL, 3, g->gy[0], g->in[1], dm_x_number(g->x, 0));
  if (!g->need[2]) return;
  dm_Tensor *t = dm_x(g->x, DM_OP_masked_select, NULL, 2, g->gy[0], g->in[1]);
  const dm_Meta *m = dm_in_meta(g, 2);
  if (!t || m->ndim == 0) {
    g->gx[2] = t;
    return;
  }
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) shape[d] = m->shape[d];
  /* a single source element went to all masked ones: its gradient is their sum */
  if (dm_numel(m->ndim, shape) == 1) shape[m->ndim - 1] = t->numel;
  g->gx[2] = x_reshape(g->x, t, m->ndim, shape);
}

/* ---- triangles ---- */

dm_status triangle_rule(dm_Call *c) {
  if (c->in[0]->ndim < 2)
    return dm_fail(DM_EARG, "%s: x has shape %s, wanted matrices (two dims or more)",
                   c->op->name, DM_SHAPE(c->in[0]));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* One call of tril or triu on a contiguous copy. */
typedef struct Triangle {
  char *data; /* contiguous, one row after another */
  int64_t rows, columns, diagonal, size;
  bool upper;
} Triangle;

/* Thread body: zeroes the part of each row outside the triangle: columns from row +
   diagonal + 1 on (tril), or before row + diagonal (triu). */
static void clear_rows(void *ctx, int64_t begin, int64_t end) {
  const Triangle *t = ctx;
  for (int64_t i = begin; i < end; i++) {
    const int64_t edge = i % t->rows + t->diagonal + (t->upper ? 0 : 1);
    const int64_t k = dm_max_i64(0, dm_min_i64(edge, t->columns));
    char *row = t->data + i * t->columns * t->size;
    if (t->upper) memset(row, 0, (size_t)(k * t->size));
    else memset(row + k * t->size, 0, (size_t)((t->columns - k) * t->size));
  }
}

/* Copies x and zeroes what is outside its triangle. */
static dm_status triangle(dm_Call *c, bool upper) {
  dm_Tensor *out = c->out[0];
  const int64_t rows = out->shape[out->ndim - 2], columns = out->shape[out->ndim - 1];
  const int64_t far =
      rows + columns; /* a diagonal beyond it changes nothing; the limit prevents overflow */
  const int64_t diagonal =
      dm_max_i64(-far, dm_min_i64(far, DM_ATTR(dm_TriangleAttr, c)->diagonal));
  if (out->numel == 0) return DM_OK;
  DM_TRY(dm_copy_to(out, c->in[0]));
  Triangle t = {
      dm_tensor_data(out), rows, columns, diagonal, dm_dtype_size((dm_DType)out->dtype), upper};
  dm_parallel_for(out->numel / columns, dm_max_i64(1, GRAIN / columns), clear_rows, &t);
  return DM_OK;
}
dm_status tril_cpu(dm_Call *c) { return triangle(c, false); }
dm_status triu_cpu(dm_Call *c) { return triangle(c, true); }
void tril_grad(dm_Grad *g) { g->gx[0] = dm_x(g->x, DM_OP_tril, g->attr, 1, g->gy[0]); }
void triu_grad(dm_Grad *g) { g->gx[0] = dm_x(g->x, DM_OP_triu, g->attr, 1, g->gy[0]); }
