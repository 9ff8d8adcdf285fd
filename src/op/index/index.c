/* Positions (indices) of indexing ops, and the ops that move single elements:
   gather, scatter, scatter_add and the products and extremes of scatter_reduce.

   Positions are read once: checked against the dim's size, converted from the
   caller's base to 0, and stored contiguously as int64, so that the kernels run
   without checks and an error names the first bad position.

   gather: y[i][j] = x[i][index[i][j]] along dim; scatter: y[i][index[i][j]] =
   src[i][j]. When several positions name one element, the writes come in the order
   of the positions, whatever the number of threads: threads divide the other dims
   and never `dim`. The result is deterministic, unlike atomic adds; the last write
   wins in scatter, and sums round the same way every time.

   Gradients: gather reads elements, so x's gradient is scatter_add of gy into zeros;
   scatter_add adds elements, so the source's gradient is gather of gy; scatter
   overwrites, so x's gradient is gy with the written positions set to 0. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "core/iter.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/shape/create.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/strided.h"

enum { GRAIN = 32768 };

/* ---- positions ---- */

/* Positions are integers. A mask of bool is refused with a hint: read as numbers its
   elements would be the positions 0 and 1. */
dm_status dm_check_index(const dm_Call *c, const dm_Tensor *index) {
  if (dm_is_int((dm_DType)index->dtype)) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: the index is %s, wanted positions as int64 (or another integer "
                 "dtype)%s",
                 c->op->name, dm_dtype_name((dm_DType)index->dtype),
                 index->dtype == DM_BOOL ? "; hint: masked_select" : "");
}

/* The job of reading an index tensor; `bad` is set when a position is out of range. */
typedef struct Read {
  dm_Iter it;
  dm_DType dtype;
  int64_t base, n;
  bool wrap;    /* negative positions count from the end */
  int64_t *out; /* NULL: they are only checked */
  atomic_bool bad;
} Read;

/* One thread's part of the job: where in `out` its next run of positions goes. */
typedef struct ReadRange {
  Read *read;
  int64_t at;
} ReadRange;

/* Converts a run of positions and notes whether one is out of range: then its own sign bit, or
   that of its distance from the last one, is set. Sums, shifts and ors of words are vectors on
   every processor, comparisons of 64 bits are not. */
static void read_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  ReadRange *r = ctx;
  Read *d = r->read;
  const uint64_t first = -(uint64_t)d->base, last = (uint64_t)d->n - 1;
  /* added to negative ones besides: INT64_MIN wraps and is still out of range */
  const uint64_t behind = d->wrap ? (uint64_t)d->n - first : 0;
  const bool direct = d->dtype == DM_I64 && stride[0] == 1;
  uint64_t bad = 0;
  for (int64_t at = 0; at < n; at += DM_BLOCK) {
    const int64_t m = dm_min_i64(DM_BLOCK, n - at);
    const char *p = ptr[0] + at * stride[0] * d->it.size[0];
    int64_t buf[DM_BLOCK], *const out = d->out ? d->out + r->at + at : buf;
    if (!direct) dm_load_i64(d->dtype, p, stride[0], m, buf);
    const int64_t *in = direct ? (const int64_t *)(const void *)p : buf;
    for (int64_t i = 0; i < m; i++) {
      const uint64_t v = (uint64_t)in[i], to = v + first + (-(v >> 63) & behind);
      out[i] = (int64_t)to;
      bad |= to | (last - to);
    }
  }
  if (bad >> 63) atomic_store(&d->bad, true);
  r->at += n;
}

/* Thread body: elements [begin, end) of the index in row-major order. */
static void read_range(void *ctx, int64_t begin, int64_t end) {
  ReadRange r = {ctx, begin};
  dm_iter_range(&r.read->it, begin, end, read_run, &r);
}

/* Fails with the first position that is out of range, as the caller wrote it, and
   where it stands. */
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
                 (long long)value, DM_DIMS(index->ndim, at), c->base,
                 (long long)(r->n - 1 + c->base));
}

static void read_all(Read *r, dm_Tensor *index) {
  if (index->numel == 0) return;
  dm_iter_init(&r->it, 1, &index);
  dm_parallel_for(index->numel, GRAIN, read_range, r);
}

/* Reads all positions in parallel, then fails if one of them was bad. */
dm_status dm_positions_new(const dm_Call *c, dm_Tensor *index, int64_t n, bool wrap,
                           dm_Tensor **out) {
  dm_Tensor *t = NULL;
  DM_TRY(dm_tensor_new(DM_I64, index->ndim, index->shape, index->device, &t));
  Read r = {.dtype = (dm_DType)index->dtype, .base = c->base, .n = n, .wrap = wrap};
  r.out = dm_tensor_data(t);
  read_all(&r, index);
  if (atomic_load(&r.bad)) {
    const dm_status st = bad_position(c, index, &r);
    dm_tensor_unref(&t);
    return st;
  }
  *out = t;
  return DM_OK;
}

/* *out: int64 positions that count from *base, without a copy where index holds such ones and
   nothing is written to them: y is what the op writes. */
static dm_status positions_of(const dm_Call *c, dm_Tensor *index, int64_t n, const dm_Tensor *y,
                              int64_t *base, dm_Tensor **out) {
  *base = 0;
  if (index->dtype != DM_I64 || n == 0 || index->storage == y->storage)
    return dm_positions_new(c, index, n, false, out);
  *base = c->base;
  *out = dm_tensor_ref(index);
  return DM_OK;
}

/* Fails with a message where a position of positions_of is out of range. */
static dm_status check_positions(const dm_Call *c, dm_Tensor *index, int64_t n) {
  Read r = {.dtype = (dm_DType)index->dtype, .base = c->base, .n = n};
  read_all(&r, index);
  if (!atomic_load(&r.bad)) return DM_OK;
  dm_Tensor *t = NULL;
  const dm_status st = dm_positions_new(c, index, n, false, &t);
  dm_tensor_unref(&t);
  return st;
}

dm_status index_check_rule(dm_Call *c) {
  DM_TRY(dm_check_index(c, c->in[0]));
  dm_out_like(c, 0, c->in[0], DM_I64);
  return DM_OK;
}
dm_status index_check_cpu(dm_Call *c) {
  dm_Tensor *at = NULL;
  DM_TRY(dm_positions_new(c, c->in[0], DM_ATTR(dm_IndexCheckAttr, c)->n, true, &at));
  const dm_status st = dm_copy_to(c->out[0], at);
  dm_tensor_unref(&at);
  return st;
}

/* sum(t != 0) by ops on t's device, read from there. */
dm_status dm_count_far(dm_Tensor *t, int64_t *count) {
  dm_X x = DM_X_INIT;
  dm_Tensor *set = dm_x(&x, DM_OP_ne, NULL, 2, t, dm_x_number(&x, 0));
  dm_Tensor *sum = x_sum(&x, set, (dm_Ints){-1, {0}}, false); /* of bool: int64 */
  dm_status st = x.st;
  if (st == DM_OK) st = dm_tensor_read(sum, sizeof *count, count);
  dm_x_free(&x);
  return st;
}

/* ---- operands ---- */

dm_status dm_check_mask(const char *what, int base, const dm_Tensor *t, const dm_Tensor *mask,
                        int64_t dim) {
  bool fits = dim + mask->ndim <= t->ndim;
  for (int d = 0; fits && d < mask->ndim; d++) fits = mask->shape[d] == t->shape[dim + d];
  if (fits) return DM_OK;
  return dm_fail(DM_EARG, "%s: a mask of shape %s for dim %lld of shape %s", what,
                 DM_SHAPE(mask), (long long)dim + base, DM_SHAPE(t));
}

/* Values may be written when their kind (bool, integer, float) is at most x's:
   PyTorch's can_cast. */
dm_status dm_check_source(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *src) {
  const dm_DType to = (dm_DType)x->dtype, from = (dm_DType)src->dtype;
  DM_TRY(dm_check_holds_number(c->op->name, to, src));
  if (dm_kind(from) <= dm_kind(to)) return DM_OK;
  if (to == DM_BOOL && (src->flags & DM_T_NUMBER)) return DM_OK; /* as its truth value */
  if ((src->flags & DM_T_NUMBER) && from == DM_F64) {
    const double v = *(const double *)dm_tensor_data(src);
    if (v == trunc(v)) return DM_OK;
    return dm_fail(DM_EARG, "%s: %g cannot be written into %s", c->op->name, v,
                   dm_dtype_name(to));
  }
  return dm_fail(DM_EARG, "%s: %s cannot be written into %s; hint: x:to(\"%s\")", c->op->name,
                 dm_dtype_name(from), dm_dtype_name(to), dm_dtype_name(from));
}

/* Most calls pass a tensor that fits, which costs a comparison of shapes and a
   reference. */
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

dm_status dm_run_on_host(dm_Call *c, dm_DType dtype, dm_HostFn *run) {
  dm_Tensor *near = NULL, *x = NULL, *y = NULL, *out = c->out[0];
  dm_Meta m = c->out_meta[0];
  m.device = (dm_Device){DM_CPU, 0};
  dm_status st;
  DM_GO(dm_tensor_on_host(c->in[0], &near));
  DM_GO(dm_dense_as_new(near, dtype, near->ndim, near->shape, &x));
  if (out->device.type == DM_CPU) y = dm_tensor_ref(out);
  else DM_GO(dm_tensor_new_meta(&m, &y));
  DM_GO(run(c, x, y));
  if (y != out) st = dm_tensor_copy_bytes(out, y, false);
done:
  dm_tensor_unref(&y);
  dm_tensor_unref(&x);
  dm_tensor_unref(&near);
  return st;
}

/* float32, float64 and int64 are summed in the result itself; 16 bits and the small
   integers in a tensor of their own, so that every sum is rounded once. */
dm_status dm_sums_new(dm_Tensor *out, dm_Tensor *x, dm_Tensor **sums) {
  const dm_DType dtype = dm_compute_dtype((dm_DType)out->dtype);
  if (dtype == out->dtype) *sums = dm_tensor_ref(out);
  else DM_TRY(dm_tensor_new(dtype, out->ndim, out->shape, out->device, sums));
  if (x) return dm_copy_to(*sums, x);
  if ((*sums)->numel > 0) memset(dm_tensor_data(*sums), 0, (size_t)dm_tensor_bytes(*sums));
  return DM_OK;
}

/* Nothing is left to do where the sums are the result. */
dm_status dm_sums_store(dm_Tensor *out, dm_Tensor *sums) {
  return sums == out ? DM_OK : dm_copy_to(out, sums);
}

/* A call of op zeros, which makes them on like's device. */
dm_Tensor *x_zeros(dm_X *x, int ndim, const int64_t *shape, const dm_Tensor *like) {
  if (x->st != DM_OK) return NULL;
  dm_SizedAttr a = {.size = {.n = ndim}};
  a.dtype = like->dtype;
  a.device = dm_device_code(like->device);
  for (int d = 0; d < ndim; d++) a.size.v[d] = shape[d];
  return dm_x(x, DM_OP_zeros, &a, 0);
}

/* One element, broadcast. */
dm_Tensor *x_repeated(dm_X *x, double value, int ndim, const int64_t *shape,
                      const dm_Tensor *like) {
  if (x->st != DM_OK) return NULL;
  const dm_FullAttr one = {{0, {0}}, value, like->dtype, dm_device_code(like->device)};
  return x_expand(x, dm_x(x, DM_OP_full, &one, 0), ndim, shape);
}

/* ---- single elements: gather, scatter, scatter_add, scatter_reduce_self ---- */

/* A traversal of the index in row-major order, whose dims are those outside of dim, dim, and
   those inside. */
typedef struct Traversal {
  dm_Iter it;
  int64_t step;   /* x's stride along dim */
  int64_t size;   /* and its size */
  int64_t base;   /* of the positions */
  int64_t length; /* the index's size along dim */
  int64_t inner;  /* and the product of its sizes inside */
  dm_RunFn *run;
  atomic_bool bad; /* a position is out of range */
} Traversal;

/* gather for elements of 8 to 64 bits; ptr: out, x (with stride 0 along dim), positions, of
   which bad ones count as 0. */
#define GATHER(BITS)                                                                    \
  static void gather_##BITS(void *ctx, char *const *ptr, const int64_t *s, int64_t n) { \
    Traversal *w = ctx;                                                                 \
    const int64_t step = w->step, to = s[0], from = s[1], next = s[2];                  \
    const uint64_t size = (uint64_t)w->size, base = (uint64_t)w->base;                  \
    uint##BITS##_t *DM_RESTRICT y = (uint##BITS##_t *)(void *)ptr[0];                   \
    const uint##BITS##_t *x = (const uint##BITS##_t *)(const void *)ptr[1];             \
    const int64_t *at = (const int64_t *)(const void *)ptr[2];                          \
    bool bad = false;                                                                   \
    if (to == 1 && from == 0 && next == 1 && step == 1) { /* along a dense row */       \
      for (int64_t i = 0; i < n; i++) {                                                 \
        const uint64_t p = (uint64_t)at[i] - base;                                      \
        bad |= p >= size;                                                               \
        y[i] = x[p < size ? p : 0];                                                     \
      }                                                                                 \
    } else {                                                                            \
      for (int64_t i = 0; i < n; i++) {                                                 \
        const uint64_t p = (uint64_t)at[i * next] - base;                               \
        bad |= p >= size;                                                               \
        y[i * to] = x[i * from + (int64_t)(p < size ? p : 0) * step];                   \
      }                                                                                 \
    }                                                                                   \
    if (bad) atomic_store(&w->bad, true);                                               \
  }
GATHER(8)
GATHER(16)
GATHER(32)
GATHER(64)
#undef GATHER

/* scatter (=) and scatter_add (+=); ptr: x (written, stride 0 along dim), source, positions, of
   which bad ones are skipped. */
#define SCATTER(NAME, TYPE, OP)                                                          \
  static void scatter_##NAME(void *ctx, char *const *ptr, const int64_t *s, int64_t n) { \
    Traversal *w = ctx;                                                                  \
    const int64_t step = w->step, to = s[0], from = s[1], next = s[2];                   \
    const uint64_t size = (uint64_t)w->size, base = (uint64_t)w->base;                   \
    TYPE *x = (TYPE *)(void *)ptr[0];                                                    \
    const TYPE *v = (const TYPE *)(const void *)ptr[1];                                  \
    const int64_t *at = (const int64_t *)(const void *)ptr[2];                           \
    bool bad = false;                                                                    \
    if (to == 0 && from == 1 && next == 1 && step == 1) { /* along a dense row */        \
      for (int64_t i = 0; i < n; i++) {                                                  \
        const uint64_t p = (uint64_t)at[i] - base;                                       \
        if (DM_LIKELY(p < size)) x[p] OP v[i];                                           \
        else bad = true;                                                                 \
      }                                                                                  \
    } else {                                                                             \
      for (int64_t i = 0; i < n; i++) {                                                  \
        const uint64_t p = (uint64_t)at[i * next] - base;                                \
        if (DM_LIKELY(p < size)) x[i * to + (int64_t)p * step] OP v[i * from];           \
        else bad = true;                                                                 \
      }                                                                                  \
    }                                                                                    \
    if (bad) atomic_store(&w->bad, true);                                                \
  }
SCATTER(8, uint8_t, =)
SCATTER(16, uint16_t, =)
SCATTER(32, uint32_t, =)
SCATTER(64, uint64_t, =)
SCATTER(add_f32, float, +=)
SCATTER(add_f64, double, +=)
SCATTER(add_i64, uint64_t, +=) /* unsigned: wraps modulo 2^64 */
#undef SCATTER

/* The same with a reduction of the present element x and the source's v; NaN stays
   in extremes. */
#define REDUCE(NAME, TYPE, JOINED)                                                      \
  static void reduce_##NAME(void *ctx, char *const *ptr, const int64_t *s, int64_t n) { \
    Traversal *w = ctx;                                                                 \
    const uint64_t size = (uint64_t)w->size, base = (uint64_t)w->base;                  \
    bool bad = false;                                                                   \
    TYPE *to = (TYPE *)(void *)ptr[0];                                                  \
    const TYPE *from = (const TYPE *)(const void *)ptr[1];                              \
    const int64_t *at = (const int64_t *)(const void *)ptr[2];                          \
    for (int64_t i = 0; i < n; i++) {                                                   \
      const uint64_t k = (uint64_t)at[i * s[2]] - base;                                 \
      if (DM_UNLIKELY(k >= size)) {                                                     \
        bad = true;                                                                     \
        continue;                                                                       \
      }                                                                                 \
      TYPE *p = &to[i * s[0] + (int64_t)k * w->step];                                   \
      const TYPE x = *p, v = from[i * s[1]];                                            \
      *p = JOINED;                                                                      \
    }                                                                                   \
    if (bad) atomic_store(&w->bad, true);                                               \
  }
/* v if the test holds, else x, without a branch, which would often be predicted wrong. */
#define EITHER(TYPE, TEST) ((const TYPE[2]){x, v})[TEST]
REDUCE(prod_f32, float, x *v)
REDUCE(prod_f64, double, x *v)
REDUCE(prod_i64, int64_t, (int64_t)((uint64_t)x *(uint64_t)v)) /* wraps */
REDUCE(amax_f32, float, EITHER(float, (v > x) | (v != v)))
REDUCE(amax_f64, double, EITHER(double, (v > x) | (v != v)))
REDUCE(amax_i64, int64_t, EITHER(int64_t, v > x))
REDUCE(amin_f32, float, EITHER(float, (v < x) | (v != v)))
REDUCE(amin_f64, double, EITHER(double, (v < x) | (v != v)))
REDUCE(amin_i64, int64_t, EITHER(int64_t, v < x))
#undef EITHER
#undef REDUCE

/* Thread bodies: any elements (gather), or whole slices along dim (scatter). A slice's writes
   stay in order, since of several slices the walk takes the first elements, then the second
   ones, and so on. */
static void run_elements(void *ctx, int64_t begin, int64_t end) {
  const Traversal *w = ctx;
  dm_iter_range(&w->it, begin, end, w->run, ctx);
}
static void run_slices(void *ctx, int64_t begin, int64_t end) {
  const Traversal *w = ctx;
  const int64_t length = w->length, inner = w->inner;
  while (begin < end) {
    const int64_t column = begin % inner, row = begin / inner * length;
    int64_t n = dm_min_i64(inner - column, end - begin);
    if (n == inner) {
      n = (end - begin) / inner * inner;
      dm_iter_range(&w->it, row * inner, row * inner + n * length, w->run, ctx);
    } else {
      for (int64_t i = 0; i < length; i++) {
        const int64_t at = (row + i) * inner + column;
        dm_iter_range(&w->it, at, at + n, w->run, ctx);
      }
    }
    begin += n;
  }
}

/* The index of a dtype's loop in tables by size: 0 to 3 for 1, 2, 4 and 8 bytes. */
static int log2_size(const dm_Tensor *t) {
  const int64_t n = dm_dtype_size((dm_DType)t->dtype);
  return n == 1 ? 0 : n == 2 ? 1 : n == 4 ? 2 : 3;
}

/* Fails unless the index has x's rank and, except along dim, no larger sizes. A tensor of no
   dims counts as a vector of one element; an index of no elements may have any shape. */
static dm_status check_gather(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *index,
                              int *dim) {
  DM_TRY(dm_check_dim(c, x, DM_ATTR(dm_AlongAttr, c)->dim, dim));
  DM_TRY(dm_check_index(c, index));
  bool fits = x->ndim == index->ndim || (x->ndim <= 1 && index->ndim <= 1);
  for (int d = 0; fits && d < x->ndim; d++) fits = d == *dim || index->shape[d] <= x->shape[d];
  fits |= index->numel == 0;
  if (fits) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: an index of shape %s for x of shape %s; wanted the same rank and, "
                 "but for dim %d, no larger sizes",
                 c->op->name, DM_SHAPE(index), DM_SHAPE(x), *dim + c->base);
}

/* x, index -> index's shape and x's dtype. */
dm_status gather_rule(dm_Call *c) {
  int dim;
  DM_TRY(check_gather(c, c->in[0], c->in[1], &dim));
  dm_out_like(c, 0, c->in[1], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* Elements are copied as words of their size; x is viewed with the index's shape and
   stride 0 along dim, so that only the position chooses along dim. */
dm_status gather_cpu(dm_Call *c) {
  static dm_RunFn *const runs[] = {gather_8, gather_16, gather_32, gather_64};
  dm_Tensor *x = c->in[0], *out = c->out[0], *at;
  const int dim = dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim);
  Traversal w = {.step = x->stride[dim], .size = x->shape[dim], .run = runs[log2_size(x)]};
  DM_TRY(positions_of(c, c->in[1], w.size, out, &w.base, &at));
  if (out->numel > 0) {
    dm_Tensor from = dm_view_of(x, out->ndim, out->shape, x->stride, x->offset);
    from.stride[dim] = 0;
    dm_Tensor *t[3] = {out, &from, at};
    dm_iter_init(&w.it, 3, t);
    dm_parallel_for(out->numel, GRAIN, run_elements, &w);
  }
  dm_tensor_unref(&at);
  return atomic_load(&w.bad) ? check_positions(c, c->in[1], w.size) : DM_OK;
}

/* Added, not written: an element that was taken twice gets both gradients. */
dm_Tensor *x_put_back(dm_Grad *g, int64_t dim, dm_Tensor *gy, dm_Tensor *index) {
  const dm_Meta *m = dm_in_meta(g, 0);
  dm_Tensor *zeros = gy ? x_repeated(g->x, 0, m->ndim, m->shape, gy) : NULL;
  return dm_x(g->x, DM_OP_scatter_add, &dim, 3, zeros, index, gy);
}

/* Positions that occur several times add up their gradients. */
void gather_grad(dm_Grad *g) {
  g->gx[0] = x_put_back(g, DM_ATTR(dm_AlongAttr, g)->dim, g->gy[0], g->in[1]);
}

/* Checks x, index and source of the scatter ops; scatter also takes a number. */
static dm_status check_scatter(dm_Call *c, bool number_ok) {
  const dm_Tensor *x = c->in[0], *index = c->in[1], *src = c->in[2];
  int dim;
  DM_TRY(check_gather(c, x, index, &dim));
  DM_TRY(dm_check_source(c, x, src));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  if (number_ok && src->ndim == 0) return DM_OK;
  bool fits = src->ndim == index->ndim || (src->ndim <= 1 && index->ndim <= 1);
  for (int d = 0; fits && d < src->ndim; d++) fits = index->shape[d] <= src->shape[d];
  fits |= index->numel == 0;
  if (fits) return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: a source of shape %s for an index of shape %s; wanted the same "
                 "rank and no smaller sizes",
                 c->op->name, DM_SHAPE(src), DM_SHAPE(index));
}

/* x, index, source -> x's shape and dtype. The source may be larger than the index;
   what the index does not cover is not used. */
dm_status scatter_rule(dm_Call *c) { return check_scatter(c, true); }
dm_status dm_check_scatter(dm_Call *c) { return check_scatter(c, false); }
dm_status scatter_add_rule(dm_Call *c) { return check_scatter(c, false); }
dm_status scatter_reduce_self_rule(dm_Call *c) { return check_scatter(c, false); }

/* A view of t with the index's shape whose dims are those of `order`. */
static dm_Tensor view_in_order(const dm_Tensor *t, const dm_Tensor *index, const int *order) {
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  for (int d = 0; d < index->ndim; d++) {
    shape[d] = index->shape[order[d]];
    stride[d] = t->ndim ? t->stride[order[d]] : 0;
  }
  return dm_view_of(t, index->ndim, shape, stride, t->offset);
}

/* Runs a scatter loop over all slices along dim in parallel. The slices that a thread has are
   neighbours: it walks them together, row by row, in the order of memory. Where a row is short,
   dim becomes the last one, for longer runs. False: a position is out of range. */
static bool scatter_into(dm_Tensor *x, dm_Tensor *src, dm_Tensor *at, int64_t base, int dim,
                         dm_RunFn *run) {
  enum { WIDTH = 64 }; /* columns that a thread has at least, for runs that pay */
  if (at->numel == 0) return true;
  const int last = (int)dm_max_i64(at->ndim, 1) - 1;
  int order[DM_MAX_DIM];
  int64_t inner = 1;
  for (int d = dim + 1; d < at->ndim; d++) inner *= at->shape[d];
  const bool turn = inner < 2 * WIDTH;
  for (int d = 0; d <= last; d++) order[d] = !turn || d < dim ? d : d < last ? d + 1 : dim;
  dm_Tensor to = view_in_order(x, at, order), from = view_in_order(src, at, order);
  dm_Tensor positions = view_in_order(at, at, order);
  to.stride[turn ? last : dim] = 0;
  dm_Tensor *t[3] = {&to, &from, &positions};
  Traversal w = {.step = x->stride[dim],
                 .size = x->shape[dim],
                 .base = base,
                 .length = at->shape[dim],
                 .inner = turn ? 1 : inner,
                 .run = run};
  dm_iter_init(&w.it, 3, t);
  const int64_t n = at->numel / w.length, threads = dm_threads_here();
  const int64_t wide = dm_max_i64(WIDTH, (n + threads - 1) / threads);
  dm_parallel_for(n, dm_max_i64(dm_min_i64(wide, w.inner), GRAIN / w.length), run_slices, &w);
  return !atomic_load(&w.bad);
}

/* The positions of a scatter op. They are checked here where `to`, which it writes, is the
   caller's tensor x, which stays as it is when one is out of range; otherwise the loops note
   it. */
static dm_status scatter_positions(const dm_Call *c, int64_t n, const dm_Tensor *to,
                                   int64_t *base, dm_Tensor **at) {
  DM_TRY(positions_of(c, c->in[1], n, c->out[0], base, at));
  if (*at != c->in[1] || to->storage != c->in[0]->storage) return DM_OK;
  return check_positions(c, *at, n);
}

/* A copy of x, into which the source is written. */
dm_status scatter_cpu(dm_Call *c) {
  static dm_RunFn *const runs[] = {scatter_8, scatter_16, scatter_32, scatter_64};
  dm_Tensor *x = c->in[0], *src = c->in[2], *at = NULL, *values = NULL;
  const int dim = dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim);
  int64_t base;
  dm_status st;
  DM_GO(scatter_positions(c, x->shape[dim], c->out[0], &base, &at));
  DM_GO(dm_dense_as_new(src, (dm_DType)x->dtype, src->ndim, src->shape, &values));
  DM_GO(dm_copy_to(c->out[0], x));
  if (!scatter_into(c->out[0], values, at, base, dim, runs[log2_size(x)]))
    st = check_positions(c, at, x->shape[dim]);
done:
  dm_tensor_unref(&values);
  dm_tensor_unref(&at);
  return st;
}

/* The loop for float32, float64 or integers. */
static dm_RunFn *run_for(dm_DType dtype, dm_RunFn *const run[3]) {
  return run[dtype == DM_F32 ? 0 : dtype == DM_F64 ? 1 : 2];
}

/* out = x with the source added (or reduced) at the positions. 16-bit sums are kept
   in float32 and rounded once. */
static dm_status join_into(dm_Call *c, dm_RunFn *const run[3]) {
  dm_Tensor *x = c->in[0], *src = c->in[2], *at = NULL, *values = NULL, *sums = NULL;
  const int dim = dm_dim_of(x, DM_ATTR(dm_AlongAttr, c)->dim);
  int64_t base;
  dm_status st;
  DM_GO(dm_sums_new(c->out[0], x, &sums));
  DM_GO(scatter_positions(c, x->shape[dim], sums, &base, &at));
  const dm_DType dtype = (dm_DType)sums->dtype;
  DM_GO(dm_dense_as_new(src, dtype, src->ndim, src->shape, &values));
  if (!scatter_into(sums, values, at, base, dim, run_for(dtype, run)))
    DM_GO(check_positions(c, at, x->shape[dim]));
  DM_GO(dm_sums_store(c->out[0], sums));
done:
  dm_tensor_unref(&values);
  dm_tensor_unref(&sums);
  dm_tensor_unref(&at);
  return st;
}

/* Integers wrap modulo 2^64, as in PyTorch. */
dm_status scatter_add_cpu(dm_Call *c) {
  static dm_RunFn *const runs[3] = {scatter_add_f32, scatter_add_f64, scatter_add_i64};
  return join_into(c, runs);
}

/* One loop for each reduction (prod, amax, amin) and compute type. */
dm_status scatter_reduce_self_cpu(dm_Call *c) {
  static dm_RunFn *const runs[][3] = {{reduce_prod_f32, reduce_prod_f64, reduce_prod_i64},
                                      {reduce_amax_f32, reduce_amax_f64, reduce_amax_i64},
                                      {reduce_amin_f32, reduce_amin_f64, reduce_amin_i64}};
  return join_into(c, runs[DM_ATTR(dm_ScatterReduceSelfAttr, c)->reduce]);
}

/* dsrc is gy gathered at the positions, and 0 where the source is larger than the
   index. */
static dm_Tensor *source_gradient(dm_Grad *g) {
  dm_Tensor *t = dm_x(g->x, DM_OP_gather, g->attr, 2, g->gy[0], g->in[1]);
  const dm_Meta *m = dm_in_meta(g, 2);
  if (!t || m->ndim == 0) return t;
  if (t->numel == 0) return x_zeros(g->x, m->ndim, m->shape, t);
  bool same = true;
  for (int d = 0; d < m->ndim; d++) same = same && t->shape[d] == m->shape[d];
  if (same) return t;
  dm_AsStridedAttr corner = {{t->ndim, {0}}, {t->ndim, {0}}, 0};
  for (int d = 0; d < t->ndim; d++) corner.size.v[d] = t->shape[d];
  dm_contiguous_strides(m->ndim, m->shape, corner.stride.v);
  dm_Tensor *zeros = x_repeated(g->x, 0, m->ndim, m->shape, t);
  return dm_x(g->x, DM_OP_as_strided_scatter, &corner, 2, zeros, t);
}

/* dx is gy with the written positions 0. */
void scatter_grad(dm_Grad *g) {
  if (g->need[0])
    g->gx[0] = dm_x(g->x, DM_OP_scatter, g->attr, 3, g->gy[0], g->in[1], dm_x_number(g->x, 0));
  if (g->need[2]) g->gx[2] = source_gradient(g);
}
/* dx is gy. */
void scatter_add_grad(dm_Grad *g) {
  g->gx[0] = g->gy[0];
  if (g->need[2]) g->gx[2] = source_gradient(g);
}
