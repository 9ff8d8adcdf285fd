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

/* The number of true elements among n, `stride` bytes apart. */
static int64_t count_true(const char *mask, int64_t stride, int64_t n) {
  enum { BLOCK = 128 }; /* whose count fits a byte */
  int64_t sum = 0, at = 0;
  for (; stride == 1 && at + BLOCK <= n; at += BLOCK) {
    uint8_t few = 0;
    for (int i = 0; i < BLOCK; i++) few = (uint8_t)(few + (mask[at + i] != 0));
    sum += few;
  }
  for (; at < n; at++) sum += mask[at * stride] != 0;
  return sum;
}

/* Adds the number of true elements of a run to *ctx. */
static void count_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  *(int64_t *)ctx += count_true(ptr[0], stride[0], n);
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

/* A float is a bool by its truth value, not by its whole part. */
dm_status masked_fill_cpu(dm_Call *c) {
  dm_Tensor *value = c->in[2], *truth = NULL;
  if (c->out[0]->dtype == DM_BOOL && dm_is_float((dm_DType)value->dtype)) {
    DM_TRY(dm_dense_as_new(value, DM_BOOL, 0, value->shape, &truth));
    value = truth;
  }
  const dm_status st = dm_choose(c->out[0], c->in[1], value, c->in[0]);
  dm_tensor_unref(&truth);
  return st;
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

/* Copies between a contiguous row and the masked elements of a tensor, in row-major order. The
   tensor is cut into parts; first the true elements of each are counted, by which each then
   knows where in the row it begins. */
enum { PARTS = 64 };
typedef struct Compact {
  dm_Iter it; /* the tensor, the mask */
  char *row;
  int64_t size;             /* bytes of an element */
  bool put;                 /* copy from row to the tensor, else to row */
  bool repeats;             /* row has one element, which goes to all */
  int64_t part;             /* elements of a part */
  int64_t first[PARTS + 1]; /* true elements before each part */
} Compact;

/* A part on its way: the rest of its stretch of the row. */
typedef struct Stretch {
  const Compact *k;
  char *row;
  int64_t left;
} Stretch;

/* What a run of a part reads and writes: elements `step` bytes apart, and the mask. */
typedef struct Masked {
  char *p;
  const char *mask;
  int64_t step, mask_step, n;
} Masked;

/* Copies a run of elements of `size` bytes, a constant where this is inlined; returns how many
   of the row, which has `left`. An element that the mask leaves out is written, too, where the
   next chosen one will be: that takes no branch. */
static inline __attribute__((always_inline)) int64_t select_run(Masked m, char *row,
                                                                int64_t left, size_t size) {
  int64_t at = 0;
  for (int64_t i = 0; i < m.n && at < left; i++) {
    memcpy(row + at * (int64_t)size, m.p + i * m.step, size);
    at += m.mask[i * m.mask_step] != 0;
  }
  return at;
}
static inline __attribute__((always_inline)) int64_t
put_run(Masked m, const char *row, int64_t left, bool repeats, size_t size) {
  int64_t at = 0;
  for (int64_t i = 0; i < m.n && (repeats || at < left); i++) {
    if (m.mask[i * m.mask_step] == 0) continue;
    memcpy(m.p + i * m.step, row + (repeats ? 0 : at * (int64_t)size), size);
    at++;
  }
  return at;
}

static inline __attribute__((always_inline)) int64_t copy_run(const Stretch *s, Masked m,
                                                              size_t size) {
  if (s->k->put) return put_run(m, s->row, s->left, s->k->repeats, size);
  return select_run(m, s->row, s->left, size);
}

static void compact_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Stretch *const s = ctx;
  const int64_t size = s->k->size;
  const Masked m = {ptr[0], ptr[1], stride[0] * size, stride[1], n};
  const int64_t taken = size == 1   ? copy_run(s, m, 1)
                        : size == 2 ? copy_run(s, m, 2)
                        : size == 4 ? copy_run(s, m, 4)
                        : size == 8 ? copy_run(s, m, 8)
                                    : copy_run(s, m, (size_t)size);
  if (s->k->repeats) return;
  s->row += taken * size;
  s->left -= taken;
}

static void count_part_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  *(int64_t *)ctx += count_true(ptr[1], stride[1], n);
}

/* Walks over part i by `run`. */
static void walk_part(const Compact *k, int64_t i, dm_RunFn *run, void *ctx) {
  const int64_t begin = i * k->part, end = dm_min_i64(begin + k->part, k->it.numel);
  if (begin < end) dm_iter_range(&k->it, begin, end, run, ctx);
}
static void count_parts(void *ctx, int64_t begin, int64_t end) {
  Compact *k = ctx;
  for (int64_t i = begin; i < end; i++) walk_part(k, i, count_part_run, &k->first[i + 1]);
}
static void compact_parts(void *ctx, int64_t begin, int64_t end) {
  const Compact *k = ctx;
  for (int64_t i = begin; i < end; i++) {
    Stretch s = {k, k->row, 0};
    if (!k->repeats) {
      s.row += k->first[i] * k->size;
      s.left = k->first[i + 1] - k->first[i];
    }
    walk_part(k, i, compact_run, &s);
  }
}

/* Copies between the masked elements of t and a row of n_row elements. */
static void compact(dm_Tensor *t, dm_Tensor *mask, char *row, int64_t n_row, bool put,
                    bool repeats) {
  dm_Tensor *both[2] = {t, mask};
  Compact k = {
      .row = row, .size = dm_dtype_size((dm_DType)t->dtype), .put = put, .repeats = repeats};
  if (t->numel == 0) return;
  dm_iter_init(&k.it, 2, both);
  const int64_t parts = dm_min_i64(PARTS, (t->numel + GRAIN - 1) / GRAIN);
  k.part = (t->numel + parts - 1) / parts;
  dm_parallel_for(repeats ? 0 : parts, 1, count_parts, &k);
  /* no more than the row holds: a finalizer may have changed the mask behind the rule */
  for (int64_t i = 0; i < parts; i++)
    k.first[i + 1] = dm_min_i64(k.first[i] + k.first[i + 1], n_row);
  dm_parallel_for(parts, 1, compact_parts, &k);
}

/* y = the elements of x, broadcast to the mask, where the mask is true. */
dm_status masked_select_cpu(dm_Call *c) {
  dm_Tensor *x = c->in[0], *mask = c->in[1];
  int ndim;
  int64_t shape[DM_MAX_DIM];
  DM_TRY(dm_broadcast("masked_select", x, mask, &ndim, shape));
  dm_Tensor wide = dm_view_expanded(x, ndim, shape);
  compact(&wide, mask, dm_tensor_data(c->out[0]), c->out[0]->numel, false, false);
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
  dm_Tensor *zeros = x_repeated(g->x, 0, ndim, shape, g->gy[0]);
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
  dm_status st;
  DM_GO(dm_dense_as_new(source, (dm_DType)out->dtype, source->ndim, source->shape, &row));
  DM_GO(dm_copy_to(out, c->in[0]));
  compact(out, c->in[1], dm_tensor_data(row), source->numel, true, source->numel == 1);
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
