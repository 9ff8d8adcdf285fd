/* Elements chosen by positions: gather, scatter, index_*, embedding, one_hot.

   Positions are read once: checked, counted from 0, and laid out densely as
   int64. Along a dim, a tensor is seen as (outer, n, inner); where whole rows
   of `inner` elements move, positions are few. Writes to one place always come
   in the order of the positions, whatever the number of threads: threads part
   the outer and the inner dims, never the positions. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "core/iter.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/create.h"
#include "op/dense.h"
#include "op/index.h"
#include "op/pointwise.h"
#include "op/window.h"

enum { GRAIN = 32768, BLOCK = 512, COLUMNS = 256 };

typedef struct DimAttr {
  int64_t dim;
} DimAttr;

/* ---- positions ---- */

static dm_status check_index_dtype(const dm_Call *c, const dm_Tensor *index) {
  if (dm_is_int((dm_DType)index->dtype)) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: the index is %s, wanted positions as int64 (or another integer "
                 "dtype)%s",
                 c->op->name, dm_dtype_name((dm_DType)index->dtype),
                 index->dtype == DM_BOOL ? "; hint: masked_select" : "");
}

typedef struct Read {
  dm_Iter it;
  dm_DType dtype;
  int64_t base, n;
  bool wrap; /* negative positions count from the end */
  int64_t *out;
  atomic_bool bad;
} Read;

typedef struct ReadRange {
  Read *read;
  int64_t at;
} ReadRange;

static void read_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  ReadRange *r = ctx;
  Read *d = r->read;
  int64_t *out = d->out + r->at;
  bool bad = false;
  dm_load_i64(d->dtype, ptr[0], stride[0], n, out);
  for (int64_t i = 0; i < n; i++) {
    /* unsigned: the least of int64 wraps, and is out of range still */
    out[i] = (int64_t)((uint64_t)out[i] + (uint64_t)(d->wrap && out[i] < 0 ? d->n : -d->base));
    bad |= out[i] < 0 || out[i] >= d->n;
  }
  if (bad) atomic_store(&d->bad, true);
  r->at += n;
}

static void read_range(void *ctx, int64_t begin, int64_t end) {
  ReadRange r = {ctx, begin};
  dm_iter_range(&r.read->it, begin, end, read_run, &r);
}

/* Names the first position that is out of range. */
static dm_status bad_position(const dm_Call *c, const dm_Tensor *index, const Read *r) {
  int64_t i = 0, at[DM_MAX_DIM], rest, offset = 0, value;
  while (r->out[i] >= 0 && r->out[i] < r->n) i++;
  rest = i;
  for (int d = index->ndim - 1; d >= 0; d--) {
    at[d] = rest % index->shape[d];
    rest /= index->shape[d];
    offset += at[d] * index->stride[d];
    at[d] += c->base;
  }
  dm_load_i64(r->dtype, (char *)dm_tensor_data(index) + offset * dm_dtype_size(r->dtype), 1, 1,
              &value);
  if (r->n == 0)
    return dm_fail(DM_EARG, "%s: the index holds %lld, but there is nothing to choose from",
                   c->op->name, (long long)value);
  return dm_fail(DM_EARG, "%s: the index holds %lld at %s, wanted %d to %lld", c->op->name,
                 (long long)value, dm_shape_str(index->ndim, at, (char[96]){0}), c->base,
                 (long long)(r->n - 1 + c->base));
}

/* index as a dense int64 tensor of positions in 0..n-1. */
static dm_status positions_new(const dm_Call *c, dm_Tensor *index, int64_t n, bool wrap,
                               dm_Tensor **out) {
  dm_Tensor *t = NULL;
  DM_TRY(dm_tensor_new(DM_I64, index->ndim, index->shape, index->device, &t));
  Read r = {.dtype = (dm_DType)index->dtype, .base = c->base, .n = n, .wrap = wrap};
  r.out = dm_tensor_data(t);
  if (t->numel > 0) {
    dm_iter_init(&r.it, 1, &index);
    dm_parallel_for(t->numel, GRAIN, read_range, &r);
  }
  if (atomic_load(&r.bad)) {
    const dm_status st = bad_position(c, index, &r);
    dm_tensor_unref(&t);
    return st;
  }
  *out = t;
  return DM_OK;
}

/* ---- operands ---- */

dm_status dm_check_source(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *src) {
  const dm_DType to = (dm_DType)x->dtype, from = (dm_DType)src->dtype;
  if (dm_kind(from) <= dm_kind(to)) return DM_OK;
  if (to == DM_BOOL && (src->flags & DM_T_NUMBER)) return DM_OK; /* its truth */
  if ((src->flags & DM_T_NUMBER) && from == DM_F64) {
    const double v = *(const double *)dm_tensor_data(src);
    if (v == trunc(v) && fabs(v) < 0x1p63) return DM_OK;
    return dm_fail(DM_EARG, "%s: %g cannot be written into %s", c->op->name, v,
                   dm_dtype_name(to));
  }
  return dm_fail(DM_EARG, "%s: %s cannot be written into %s; hint: x:to(\"%s\")", c->op->name,
                 dm_dtype_name(from), dm_dtype_name(to), dm_dtype_name(from));
}

dm_status dm_dense_as_new(dm_Tensor *t, dm_DType dtype, int ndim, const int64_t *shape,
                          dm_Tensor **out) {
  bool same = t->ndim == ndim && t->dtype == dtype && dm_tensor_is_contiguous(t);
  for (int d = 0; d < ndim && same; d++) same = t->shape[d] == shape[d];
  if (same) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  DM_TRY(dm_tensor_new(dtype, ndim, shape, t->device, out));
  return dm_copy_to(*out, t);
}

/* Where sums into out are kept: out, or a tensor of its compute type. Starts
   as x, or as zeros when there is none. */
static dm_status sums_new(dm_Tensor *out, dm_Tensor *x, dm_Tensor **sums) {
  const dm_DType dtype = dm_compute_dtype((dm_DType)out->dtype);
  if (dtype == out->dtype) *sums = dm_tensor_ref(out);
  else DM_TRY(dm_tensor_new(dtype, out->ndim, out->shape, out->device, sums));
  if (x) return dm_copy_to(*sums, x);
  if ((*sums)->numel > 0) memset(dm_tensor_data(*sums), 0, (size_t)dm_tensor_bytes(*sums));
  return DM_OK;
}

static dm_status sums_store(dm_Tensor *out, dm_Tensor *sums) {
  return sums == out ? DM_OK : dm_copy_to(out, sums);
}

/* The dim of a checked call. */
static int dim_of(const dm_Tensor *t, int64_t dim) {
  return (int)(dim < 0 ? dim + dm_max_i64(t->ndim, 1) : dim);
}

dm_Tensor *x_zeros(dm_X *x, int ndim, const int64_t *shape, const dm_Tensor *like) {
  if (x->st != DM_OK) return NULL;
  dm_SizedAttr a = {.size = {.n = ndim}};
  a.dtype = like->dtype;
  a.device = like->device.type << 8 | like->device.index;
  for (int d = 0; d < ndim; d++) a.size.v[d] = shape[d];
  return dm_x(x, DM_OP_zeros, &a, 0);
}

/* ---- element by element: gather, scatter, scatter_add ---- */

typedef struct Walk {
  dm_Iter it;
  int64_t step;   /* elements of x from position to position */
  int64_t length; /* of a line: the index's size along dim */
  dm_RunFn *run;
} Walk;

/* ptr: out, x, positions */
#define GATHER(BITS)                                                                    \
  static void gather_##BITS(void *ctx, char *const *ptr, const int64_t *s, int64_t n) { \
    const int64_t step = ((const Walk *)ctx)->step;                                     \
    uint##BITS##_t *y = (uint##BITS##_t *)(void *)ptr[0];                               \
    const uint##BITS##_t *x = (const uint##BITS##_t *)(const void *)ptr[1];             \
    const int64_t *at = (const int64_t *)(const void *)ptr[2];                          \
    for (int64_t i = 0; i < n; i++) y[i * s[0]] = x[i * s[1] + at[i * s[2]] * step];    \
  }
GATHER(8)
GATHER(16)
GATHER(32)
GATHER(64)
#undef GATHER

/* ptr: x (written), source, positions */
#define SCATTER(NAME, TYPE, OP)                                                          \
  static void scatter_##NAME(void *ctx, char *const *ptr, const int64_t *s, int64_t n) { \
    const int64_t step = ((const Walk *)ctx)->step;                                      \
    TYPE *x = (TYPE *)(void *)ptr[0];                                                    \
    const TYPE *v = (const TYPE *)(const void *)ptr[1];                                  \
    const int64_t *at = (const int64_t *)(const void *)ptr[2];                           \
    for (int64_t i = 0; i < n; i++) x[i * s[0] + at[i * s[2]] * step] OP v[i * s[1]];    \
  }
SCATTER(8, uint8_t, =)
SCATTER(16, uint16_t, =)
SCATTER(32, uint32_t, =)
SCATTER(64, uint64_t, =)
SCATTER(add_f32, float, +=)
SCATTER(add_f64, double, +=)
SCATTER(add_i64, uint64_t, +=) /* unsigned: wraps */
#undef SCATTER

static void walk_elements(void *ctx, int64_t begin, int64_t end) {
  const Walk *w = ctx;
  dm_iter_range(&w->it, begin, end, w->run, ctx);
}
static void walk_lines(void *ctx, int64_t begin, int64_t end) {
  const Walk *w = ctx;
  dm_iter_range(&w->it, begin * w->length, end * w->length, w->run, ctx);
}

static int log2_size(const dm_Tensor *t) {
  const int64_t n = dm_dtype_size((dm_DType)t->dtype);
  return n == 1 ? 0 : n == 2 ? 1 : n == 4 ? 2 : 3;
}

/* The index has x's rank and, but for dim, no larger sizes. */
static dm_status check_gather(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *index,
                              int *dim) {
  DM_TRY(dm_check_dim(c, x, DM_ATTR(DimAttr, c)->dim, dim));
  DM_TRY(check_index_dtype(c, index));
  bool fits = x->ndim == index->ndim;
  for (int d = 0; fits && d < x->ndim; d++) fits = d == *dim || index->shape[d] <= x->shape[d];
  if (fits) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: an index of shape %s for x of shape %s; wanted the same rank and, "
                 "but for dim %d, no larger sizes",
                 c->op->name, DM_SHAPE(index), DM_SHAPE(x), *dim + c->base);
}

dm_status gather_rule(dm_Call *c) {
  int dim;
  DM_TRY(check_gather(c, c->in[0], c->in[1], &dim));
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

static int64_t size_along(const dm_Tensor *t, int dim) { return t->ndim ? t->shape[dim] : 1; }

dm_status gather_cpu(dm_Call *c) {
  static dm_RunFn *const runs[] = {gather_8, gather_16, gather_32, gather_64};
  dm_Tensor *x = c->in[0], *out = c->out[0], *at;
  const int dim = dim_of(x, DM_ATTR(DimAttr, c)->dim);
  DM_TRY(positions_new(c, c->in[1], size_along(x, dim), false, &at));
  if (out->numel > 0) {
    dm_Tensor from = dm_window(x, x->ndim, out->shape, x->stride, x->offset);
    if (x->ndim) from.stride[dim] = 0;
    dm_Tensor *t[3] = {out, &from, at};
    Walk w = {.step = x->ndim ? x->stride[dim] : 0, .run = runs[log2_size(x)]};
    dm_iter_init(&w.it, 3, t);
    dm_parallel_for(out->numel, GRAIN, walk_elements, &w);
  }
  dm_tensor_unref(&at);
  return DM_OK;
}

dm_Tensor *x_put_back(dm_Grad *g, int64_t dim, dm_Tensor *gy, dm_Tensor *index) {
  const dm_Meta *m = &g->in_meta[0];
  dm_Tensor *zeros = gy ? x_zeros(g->x, m->ndim, m->shape, gy) : NULL;
  return dm_x(g->x, DM_OP_scatter_add, &dim, 3, zeros, index, gy);
}
void gather_grad(dm_Grad *g) {
  g->gx[0] = x_put_back(g, DM_ATTR(DimAttr, g)->dim, g->gy[0], g->in[1]);
}

static dm_status check_scatter(dm_Call *c, bool number_ok) {
  const dm_Tensor *x = c->in[0], *index = c->in[1], *src = c->in[2];
  int dim;
  DM_TRY(check_gather(c, x, index, &dim));
  DM_TRY(dm_check_source(c, x, src));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  if (number_ok && src->ndim == 0) return DM_OK;
  bool fits = src->ndim == index->ndim;
  for (int d = 0; fits && d < src->ndim; d++) fits = index->shape[d] <= src->shape[d];
  if (fits) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: a source of shape %s for an index of shape %s; wanted the same "
                 "rank and no smaller sizes",
                 c->op->name, DM_SHAPE(src), DM_SHAPE(index));
}
dm_status scatter_rule(dm_Call *c) { return check_scatter(c, true); }
dm_status scatter_add_rule(dm_Call *c) { return check_scatter(c, false); }

/* t's window with the index's shape, dim moved to the end. */
static dm_Tensor lines_of(const dm_Tensor *t, const dm_Tensor *index, int dim) {
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  int k = 0;
  for (int d = 0; d < index->ndim; d++) {
    const int from = d == index->ndim - 1 ? dim : d < dim ? d : d + 1;
    shape[k] = index->shape[from];
    stride[k++] = t->ndim ? t->stride[from] : 0;
  }
  return dm_window(t, index->ndim, shape, stride, t->offset);
}

static void scatter_into(dm_Tensor *x, dm_Tensor *src, dm_Tensor *at, int dim, dm_RunFn *run) {
  if (at->numel == 0) return;
  dm_Tensor to = lines_of(x, at, dim), from = lines_of(src, at, dim);
  dm_Tensor positions = lines_of(at, at, dim);
  if (x->ndim) to.stride[x->ndim - 1] = 0;
  dm_Tensor *t[3] = {&to, &from, &positions};
  Walk w = {.step = x->ndim ? x->stride[dim] : 0, .length = size_along(at, dim), .run = run};
  dm_iter_init(&w.it, 3, t);
  dm_parallel_for(at->numel / w.length, dm_max_i64(1, GRAIN / w.length), walk_lines, &w);
}

dm_status scatter_cpu(dm_Call *c) {
  static dm_RunFn *const runs[] = {scatter_8, scatter_16, scatter_32, scatter_64};
  dm_Tensor *x = c->in[0], *src = c->in[2], *at = NULL, *values = NULL;
  const int dim = dim_of(x, DM_ATTR(DimAttr, c)->dim);
  dm_status st;
  DM_GO(positions_new(c, c->in[1], size_along(x, dim), false, &at));
  DM_GO(dm_dense_as_new(src, (dm_DType)x->dtype, src->ndim, src->shape, &values));
  DM_GO(dm_copy_to(c->out[0], x));
  scatter_into(c->out[0], values, at, dim, runs[log2_size(x)]);
done:
  dm_tensor_unref(&values);
  dm_tensor_unref(&at);
  return st;
}

dm_status scatter_add_cpu(dm_Call *c) {
  dm_Tensor *x = c->in[0], *src = c->in[2], *at = NULL, *values = NULL, *sums = NULL;
  const int dim = dim_of(x, DM_ATTR(DimAttr, c)->dim);
  dm_status st;
  DM_GO(positions_new(c, c->in[1], size_along(x, dim), false, &at));
  DM_GO(sums_new(c->out[0], x, &sums));
  const dm_DType dtype = (dm_DType)sums->dtype;
  DM_GO(dm_dense_as_new(src, dtype, src->ndim, src->shape, &values));
  scatter_into(sums, values, at, dim,
               dtype == DM_F32   ? scatter_add_f32
               : dtype == DM_F64 ? scatter_add_f64
                                 : scatter_add_i64);
  DM_GO(sums_store(c->out[0], sums));
done:
  dm_tensor_unref(&values);
  dm_tensor_unref(&sums);
  dm_tensor_unref(&at);
  return st;
}

/* The gradient of scatter's source: gathered, and 0 where the source is larger
   than the index. */
static dm_Tensor *source_gradient(dm_Grad *g) {
  dm_Tensor *t = dm_x(g->x, DM_OP_gather, g->attr, 2, g->gy[0], g->in[1]);
  const dm_Meta *m = &g->in_meta[2];
  if (!t || m->ndim == 0) return t;
  bool same = true;
  for (int d = 0; d < m->ndim; d++) same = same && t->shape[d] == m->shape[d];
  if (same) return t;
  struct {
    dm_Ints size, stride;
    int64_t offset;
  } corner = {{t->ndim, {0}}, {t->ndim, {0}}, 0};
  for (int d = 0; d < t->ndim; d++) corner.size.v[d] = t->shape[d];
  dm_contiguous_strides(m->ndim, m->shape, corner.stride.v);
  dm_Tensor *zeros = x_zeros(g->x, m->ndim, m->shape, t);
  return dm_x(g->x, DM_OP_as_strided_scatter, &corner, 2, zeros, t);
}

void scatter_grad(dm_Grad *g) {
  if (g->need[0])
    g->gx[0] = dm_x(g->x, DM_OP_scatter, g->attr, 3, g->gy[0], g->in[1], dm_x_number(g->x, 0));
  if (g->need[2]) g->gx[2] = source_gradient(g);
}
void scatter_add_grad(dm_Grad *g) {
  g->gx[0] = g->gy[0];
  if (g->need[2]) g->gx[2] = source_gradient(g);
}

/* ---- row by row ---- */

/* x (outer, n, inner), rows (outer, m, inner), m positions in 0..n-1. */
typedef struct Rows {
  char *dst;
  const char *src;
  const int64_t *at;
  int64_t outer, n, m, inner;
  int64_t size; /* bytes of an element */
  void (*put)(char *dst, const char *src, int64_t n, int64_t size);
} Rows;

static Rows rows_of(const dm_Tensor *x, int dim, const dm_Tensor *at) {
  return (Rows){.at = dm_tensor_data(at),
                .outer = dm_numel(dim, x->shape),
                .n = x->shape[dim],
                .m = at->numel,
                .inner = dm_numel(x->ndim - dim - 1, x->shape + dim + 1),
                .size = dm_dtype_size((dm_DType)x->dtype)};
}

/* A single element is copied as the word that it is. */
static void put_copy(char *dst, const char *src, int64_t n, int64_t size) {
  if (n > 1) memcpy(dst, src, (size_t)(n * size));
  else if (size == 4) memcpy(dst, src, 4);
  else if (size == 8) memcpy(dst, src, 8);
  else memcpy(dst, src, (size_t)size);
}

#define PUT_ADD(NAME, TYPE)                                                         \
  static void put_add_##NAME(char *dst, const char *src, int64_t n, int64_t size) { \
    TYPE *DM_RESTRICT y = (TYPE *)(void *)dst;                                      \
    const TYPE *DM_RESTRICT x = (const TYPE *)(const void *)src;                    \
    DM_UNUSED(size);                                                                \
    for (int64_t i = 0; i < n; i++) y[i] += x[i];                                   \
  }
PUT_ADD(f32, float)
PUT_ADD(f64, double)
PUT_ADD(i64, uint64_t) /* unsigned: wraps */
#undef PUT_ADD

static void take_rows(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const int64_t bytes = r->inner * r->size;
  for (int64_t i = begin; i < end; i++) {
    const int64_t from = i / r->m * r->n + r->at[i % r->m];
    put_copy(r->dst + i * bytes, r->src + from * bytes, r->inner, r->size);
  }
}

/* A unit is some columns of one outer index: nobody else writes there. */
static void put_rows(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const int64_t blocks = (r->inner + COLUMNS - 1) / COLUMNS;
  for (int64_t u = begin; u < end; u++) {
    const int64_t o = u / blocks, column = u % blocks * COLUMNS;
    const int64_t n = dm_min_i64(COLUMNS, r->inner - column);
    for (int64_t i = 0; i < r->m; i++) {
      if (r->at[i] < 0) continue;
      const int64_t to = (o * r->n + r->at[i]) * r->inner + column;
      const int64_t from = (o * r->m + i) * r->inner + column;
      r->put(r->dst + to * r->size, r->src + from * r->size, n, r->size);
    }
  }
}

/* out = the rows of x at the positions of index along dim. */
static dm_status take(dm_Call *c, dm_Tensor *index, int dim, bool wrap) {
  dm_Tensor *x = NULL, *at = NULL;
  dm_status st;
  DM_GO(positions_new(c, index, c->in[0]->shape[dim], wrap, &at));
  DM_GO(dm_dense_new(c->in[0], &x));
  if (c->out[0]->numel > 0) {
    Rows r = rows_of(x, dim, at);
    r.src = dm_tensor_data(x);
    r.dst = dm_tensor_data(c->out[0]);
    dm_parallel_for(r.outer * r.m, dm_max_i64(1, GRAIN / r.inner), take_rows, &r);
  }
done:
  dm_tensor_unref(&x);
  dm_tensor_unref(&at);
  return st;
}

/* x's rows at the positions become those of rows, or have them added. */
static void put_into(dm_Tensor *x, int dim, dm_Tensor *at, dm_Tensor *rows, bool add) {
  if (rows->numel == 0) return;
  Rows r = rows_of(x, dim, at);
  r.dst = dm_tensor_data(x);
  r.src = dm_tensor_data(rows);
  r.put = !add                 ? put_copy
          : x->dtype == DM_F32 ? put_add_f32
          : x->dtype == DM_F64 ? put_add_f64
                               : put_add_i64;
  const int64_t blocks = (r.inner + COLUMNS - 1) / COLUMNS;
  const int64_t work = r.m * dm_min_i64(r.inner, COLUMNS);
  dm_parallel_for(r.outer * blocks, dm_max_i64(1, GRAIN / work), put_rows, &r);
}

/* x's shape with dim replaced by the index's shape. */
static dm_status replaced_shape(const dm_Call *c, const dm_Tensor *x, int dim,
                                const dm_Tensor *index, int *ndim, int64_t *shape) {
  const int n = x->ndim - 1 + index->ndim;
  if (n > DM_MAX_DIM)
    return dm_fail(DM_EARG,
                   "%s: an index of shape %s in x of shape %s gives %d dims, the most "
                   "is %d",
                   c->op->name, DM_SHAPE(index), DM_SHAPE(x), n, DM_MAX_DIM);
  for (int d = 0; d < n; d++)
    shape[d] = d < dim                 ? x->shape[d]
               : d < dim + index->ndim ? index->shape[d - dim]
                                       : x->shape[d - index->ndim + 1];
  *ndim = n;
  return DM_OK;
}

/* c->in[0] has dims, in[1] holds positions: what all row ops want. */
static dm_status check_rows(const dm_Call *c, int64_t attr, int *dim) {
  const dm_Tensor *x = c->in[0];
  if (x->ndim == 0) return dm_fail(DM_EARG, "%s: x has no dims", c->op->name);
  DM_TRY(dm_check_dim(c, x, attr, dim));
  return check_index_dtype(c, c->in[1]);
}

static dm_status check_vector(const dm_Call *c, const dm_Tensor *index) {
  if (index->ndim <= 1) return DM_OK;
  return dm_fail(DM_EARG, "%s: an index of shape %s given, wanted one dim", c->op->name,
                 DM_SHAPE(index));
}

/* ---- index_select, index_get ---- */

dm_status index_select_rule(dm_Call *c) {
  int dim;
  DM_TRY(check_rows(c, DM_ATTR(DimAttr, c)->dim, &dim));
  DM_TRY(check_vector(c, c->in[1]));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].shape[dim] = c->in[1]->numel;
  return DM_OK;
}
dm_status index_select_cpu(dm_Call *c) {
  return take(c, c->in[1], dim_of(c->in[0], DM_ATTR(DimAttr, c)->dim), false);
}
void index_select_grad(dm_Grad *g) {
  const dm_Meta *m = &g->in_meta[0];
  const struct {
    int64_t dim;
    double alpha;
  } attr = {*(const int64_t *)g->attr, 1};
  dm_Tensor *zeros = x_zeros(g->x, m->ndim, m->shape, g->gy[0]);
  g->gx[0] = dm_x(g->x, DM_OP_index_add, &attr, 3, zeros, g->in[1], g->gy[0]);
}

dm_status index_get_rule(dm_Call *c) {
  int dim, ndim;
  DM_TRY(check_rows(c, DM_ATTR(DimAttr, c)->dim, &dim));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  DM_TRY(replaced_shape(c, c->in[0], dim, c->in[1], &ndim, c->out_meta[0].shape));
  c->out_meta[0].ndim = (uint8_t)ndim;
  return DM_OK;
}
dm_status index_get_cpu(dm_Call *c) {
  return take(c, c->in[1], dim_of(c->in[0], DM_ATTR(DimAttr, c)->dim), true);
}
void index_get_grad(dm_Grad *g) {
  const dm_Meta *m = &g->in_meta[0];
  const int64_t attr[2] = {*(const int64_t *)g->attr, true}; /* dim, accumulate */
  dm_Tensor *zeros = x_zeros(g->x, m->ndim, m->shape, g->gy[0]);
  g->gx[0] = dm_x(g->x, DM_OP_index_put, attr, 3, zeros, g->in[1], g->gy[0]);
}

/* ---- index_put, index_copy, index_add ---- */

/* Writes rows (to be broadcast to the replaced shape) over x or adds them. */
static dm_status put(dm_Call *c, int dim, dm_Tensor *source, bool wrap, bool add) {
  dm_Tensor *x = c->in[0], *at = NULL, *to = NULL, *rows = NULL;
  int ndim;
  int64_t shape[DM_MAX_DIM];
  dm_status st;
  DM_GO(replaced_shape(c, x, dim, c->in[1], &ndim, shape));
  DM_GO(positions_new(c, c->in[1], x->shape[dim], wrap, &at));
  if (add) {
    DM_GO(sums_new(c->out[0], x, &to));
  } else {
    to = dm_tensor_ref(c->out[0]);
    DM_GO(dm_copy_to(to, x));
  }
  DM_GO(dm_dense_as_new(source, (dm_DType)to->dtype, ndim, shape, &rows));
  put_into(to, dim, at, rows, add);
  DM_GO(sums_store(c->out[0], to));
done:
  dm_tensor_unref(&rows);
  dm_tensor_unref(&to);
  dm_tensor_unref(&at);
  return st;
}

typedef struct PutAttr {
  int64_t dim, accumulate;
} PutAttr;

dm_status index_put_rule(dm_Call *c) {
  int dim, ndim, both;
  int64_t shape[DM_MAX_DIM], wide[DM_MAX_DIM];
  DM_TRY(check_rows(c, DM_ATTR(PutAttr, c)->dim, &dim));
  DM_TRY(dm_check_source(c, c->in[0], c->in[2]));
  DM_TRY(replaced_shape(c, c->in[0], dim, c->in[1], &ndim, shape));
  const dm_Tensor region = dm_window(c->in[0], ndim, shape, shape, 0);
  DM_TRY(dm_broadcast(c->op->name, &region, c->in[2], &both, wide));
  if (both != ndim || memcmp(shape, wide, sizeof *shape * (size_t)ndim) != 0)
    return dm_fail(DM_EARG, "index_put: a source of shape %s does not broadcast to %s",
                   DM_SHAPE(c->in[2]), DM_SHAPE(&region));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
dm_status index_put_cpu(dm_Call *c) {
  const PutAttr *a = DM_ATTR(PutAttr, c);
  return put(c, dim_of(c->in[0], a->dim), c->in[2], true, a->accumulate);
}
void index_put_grad(dm_Grad *g) {
  const PutAttr *a = g->attr;
  if (g->need[0])
    g->gx[0] = a->accumulate ? g->gy[0]
                             : dm_x(g->x, DM_OP_index_put, a, 3, g->gy[0], g->in[1],
                                    dm_x_number(g->x, 0));
  if (g->need[2]) g->gx[2] = dm_x(g->x, DM_OP_index_get, &a->dim, 2, g->gy[0], g->in[1]);
}

/* The source has x's shape, but for dim, where it has a row per position. */
static dm_status check_row_source(dm_Call *c) {
  const dm_Tensor *x = c->in[0], *source = c->in[2];
  int dim;
  DM_TRY(check_rows(c, DM_ATTR(DimAttr, c)->dim, &dim));
  DM_TRY(check_vector(c, c->in[1]));
  DM_TRY(dm_check_source(c, x, source));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  bool fits = source->ndim == x->ndim;
  for (int d = 0; fits && d < x->ndim; d++)
    fits = source->shape[d] == (d == dim ? c->in[1]->numel : x->shape[d]);
  if (fits) return DM_OK;
  dm_Meta want = c->out_meta[0];
  want.shape[dim] = c->in[1]->numel;
  return dm_fail(DM_EARG, "%s: a source of shape %s given, wanted %s", c->op->name,
                 DM_SHAPE(source), dm_shape_str(want.ndim, want.shape, (char[96]){0}));
}

typedef struct AddAttr {
  int64_t dim;
  double alpha;
} AddAttr;

dm_status index_add_rule(dm_Call *c) { return check_row_source(c); }
dm_status index_copy_rule(dm_Call *c) { return check_row_source(c); }

/* A 0-dim index stands for one of one position. */
static dm_Tensor as_vector(const dm_Tensor *index) {
  const int64_t one = 1;
  return index->ndim ? dm_window(index, 1, index->shape, index->stride, index->offset)
                     : dm_window(index, 1, &one, &one, index->offset);
}

static dm_status put_vector(dm_Call *c, dm_Tensor *source, bool add) {
  dm_Tensor index = as_vector(c->in[1]);
  dm_Tensor *const in[2] = {c->in[0], &index};
  dm_Call inner = *c;
  inner.in = in;
  return put(&inner, dim_of(c->in[0], DM_ATTR(DimAttr, c)->dim), source, false, add);
}

dm_status index_add_cpu(dm_Call *c) {
  const double alpha = DM_ATTR(AddAttr, c)->alpha;
  if (alpha == 1) return put_vector(c, c->in[2], true);
  dm_X x = DM_X_INIT;
  dm_Modes *m = dm_modes();
  const bool grad = m->grad;
  m->grad = false;
  /* scaled in the type that the sums have: rounded once, at the end */
  const dm_DType wide = dm_compute_dtype((dm_DType)c->in[0]->dtype);
  dm_Tensor *scaled = x_cast(&x, x_scale(&x, x_cast(&x, c->in[2], wide), alpha), wide);
  m->grad = grad;
  dm_status st = x.st;
  if (st == DM_OK) st = put_vector(c, scaled, true);
  dm_x_free(&x);
  return st;
}
void index_add_grad(dm_Grad *g) {
  const AddAttr *a = g->attr;
  g->gx[0] = g->gy[0];
  if (!g->need[2]) return;
  dm_Tensor *rows = dm_x(g->x, DM_OP_index_select, &a->dim, 2, g->gy[0], g->in[1]);
  g->gx[2] = a->alpha == 1 ? rows : x_scale(g->x, rows, a->alpha);
}

dm_status index_copy_cpu(dm_Call *c) { return put_vector(c, c->in[2], false); }
void index_copy_grad(dm_Grad *g) {
  const PutAttr attr = {*(const int64_t *)g->attr, false};
  if (g->need[0])
    g->gx[0] = dm_x(g->x, DM_OP_index_put, &attr, 3, g->gy[0], g->in[1], dm_x_number(g->x, 0));
  if (g->need[2]) g->gx[2] = dm_x(g->x, DM_OP_index_select, &attr.dim, 2, g->gy[0], g->in[1]);
}

/* ---- embedding ---- */

typedef struct EmbeddingAttr {
  dm_OptInt padding_idx;
} EmbeddingAttr;

typedef struct EmbeddingBackwardAttr {
  int64_t n;
  dm_OptInt padding_idx;
} EmbeddingBackwardAttr;

dm_status embedding_rule(dm_Call *c) {
  const dm_Tensor *index = c->in[0], *w = c->in[1];
  const dm_OptInt pad = DM_ATTR(EmbeddingAttr, c)->padding_idx;
  if (w->ndim != 2)
    return dm_fail(DM_EARG, "embedding: the weight has shape %s, wanted {rows, columns}",
                   DM_SHAPE(w));
  DM_TRY(check_index_dtype(c, index));
  if (pad.set && (pad.v < -w->shape[0] || pad.v >= w->shape[0]))
    return dm_fail(DM_EARG, "embedding: padding_idx %lld given, the weight has %lld rows",
                   (long long)(pad.v < 0 ? pad.v : pad.v + c->base), (long long)w->shape[0]);
  if (index->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG, "embedding: an index of shape %s leaves no room for another dim",
                   DM_SHAPE(index));
  dm_out_like(c, 0, index, (dm_DType)w->dtype);
  c->out_meta[0].device = w->device;
  c->out_meta[0].shape[c->out_meta[0].ndim++] = w->shape[1];
  return DM_OK;
}
dm_status embedding_cpu(dm_Call *c) {
  dm_Tensor *const weight_first[2] = {c->in[1], c->in[0]};
  dm_Call rows = *c;
  rows.in = weight_first;
  return take(&rows, c->in[0], 0, false);
}

void embedding_grad(dm_Grad *g) {
  const EmbeddingAttr *a = g->attr;
  const EmbeddingBackwardAttr attr = {g->in_meta[1].shape[0], a->padding_idx};
  if (g->need[1]) g->gx[1] = dm_x(g->x, DM_OP_embedding_backward, &attr, 2, g->gy[0], g->in[0]);
}

dm_status embedding_backward_rule(dm_Call *c) {
  const dm_Tensor *gy = c->in[0];
  dm_Meta *m = &c->out_meta[0];
  *m = (dm_Meta){.dtype = gy->dtype, .ndim = 2, .device = gy->device};
  m->shape[0] = DM_ATTR(EmbeddingBackwardAttr, c)->n;
  m->shape[1] = gy->shape[gy->ndim - 1];
  return DM_OK;
}

/* gw[index[i]] += gy[i], in the order of i; rows of padding get nothing. */
dm_status embedding_backward_cpu(dm_Call *c) {
  const EmbeddingBackwardAttr *a = DM_ATTR(EmbeddingBackwardAttr, c);
  dm_Tensor *gy = c->in[0], *out = c->out[0], *at = NULL, *sums = NULL, *rows = NULL;
  dm_status st;
  DM_GO(positions_new(c, c->in[1], a->n, false, &at));
  if (a->padding_idx.set) {
    const int64_t pad = a->padding_idx.v < 0 ? a->padding_idx.v + a->n : a->padding_idx.v;
    int64_t *p = dm_tensor_data(at);
    for (int64_t i = 0; i < at->numel; i++)
      if (p[i] == pad) p[i] = -1;
  }
  DM_GO(sums_new(out, NULL, &sums));
  DM_GO(dm_dense_as_new(gy, (dm_DType)sums->dtype, gy->ndim, gy->shape, &rows));
  put_into(sums, 0, at, rows, true);
  DM_GO(sums_store(out, sums));
done:
  dm_tensor_unref(&rows);
  dm_tensor_unref(&sums);
  dm_tensor_unref(&at);
  return st;
}

/* Linear in gy: its gradient looks rows up again, 0 for those of padding. */
void embedding_backward_grad(dm_Grad *g) {
  const EmbeddingBackwardAttr *a = g->attr;
  const EmbeddingAttr attr = {a->padding_idx};
  dm_Tensor *index = g->in[1];
  g->gx[0] = dm_x(g->x, DM_OP_embedding, &attr, 2, index, g->gy[0]);
  if (!a->padding_idx.set) return;
  const int64_t pad = a->padding_idx.v < 0 ? a->padding_idx.v + a->n : a->padding_idx.v;
  const int64_t last = -1;
  dm_Tensor *row = dm_x_number(g->x, (double)(pad + dm_modes()->base));
  dm_Tensor *mask = dm_x(g->x, DM_OP_eq, NULL, 2, index, row);
  mask = dm_x(g->x, DM_OP_unsqueeze, &last, 1, mask);
  g->gx[0] = dm_x(g->x, DM_OP_masked_fill, NULL, 3, g->gx[0], mask, dm_x_number(g->x, 0));
}

/* ---- one_hot ---- */

static void run_max(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Read *r = ctx; /* n becomes the largest value */
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t v[BLOCK];
    const int64_t m = dm_min_i64(BLOCK, n - at);
    dm_load_i64(r->dtype, ptr[0] + at * stride[0] * r->it.size[0], stride[0], m, v);
    for (int64_t i = 0; i < m; i++) r->n = dm_max_i64(r->n, v[i]);
  }
}

dm_status one_hot_rule(dm_Call *c) {
  dm_Tensor *index = c->in[0];
  int64_t n = *DM_ATTR(int64_t, c);
  DM_TRY(check_index_dtype(c, index));
  if (n == -1) {
    if (index->numel == 0 || index->device.type != DM_CPU)
      return dm_fail(DM_EARG,
                     "one_hot: num_classes is wanted for an index that is empty or not "
                     "on the cpu");
    Read r = {.dtype = (dm_DType)index->dtype, .n = INT64_MIN};
    dm_iter_init(&r.it, 1, &index);
    dm_iter_range(&r.it, 0, index->numel, run_max, &r);
    n = r.n < c->base ? 0 : r.n - c->base;
    n += r.n >= c->base;
  }
  if (n < 0)
    return dm_fail(DM_EARG, "one_hot: num_classes %lld given, wanted 0 or more", (long long)n);
  if (index->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG, "one_hot: an index of shape %s leaves no room for another dim",
                   DM_SHAPE(index));
  dm_out_like(c, 0, index, DM_I64);
  c->out_meta[0].shape[c->out_meta[0].ndim++] = n;
  return DM_OK;
}

dm_status one_hot_cpu(dm_Call *c) {
  dm_Tensor *out = c->out[0], *at;
  const int64_t n = out->shape[out->ndim - 1];
  DM_TRY(positions_new(c, c->in[0], n, false, &at));
  const int64_t *p = dm_tensor_data(at);
  int64_t *y = dm_tensor_data(out);
  if (out->numel > 0) memset(y, 0, (size_t)dm_tensor_bytes(out));
  for (int64_t i = 0; i < at->numel; i++) y[i * n + p[i]] = 1;
  dm_tensor_unref(&at);
  return DM_OK;
}
