/* Ops that move whole rows chosen by positions: index_select, index_get (x[index]),
   index_put, index_copy, index_add, index_fill, take, embedding and one_hot.

   Along a dim a tensor is (outer, n, inner), and a position names a row of `inner`
   contiguous elements in each of the `outer` blocks. Reading is a memcpy per row.
   Writes to one element come in the order of the positions, whatever the number of
   threads: threads divide the outer and the inner dims and never the positions, so
   that index_add and embedding's gradient give the same bits in every run. Sums of
   16-bit rows are kept in float32 and rounded once.

   The gradient of reading rows is adding gy's rows at the same positions to zeros of
   x's shape, and the gradient of adding rows is reading them. Writing rows is linear
   in x and in the rows: x gets gy with the written rows set to 0, the rows get gy at
   their positions. Where a position occurs twice in index_copy or index_put without
   accumulate, the last write decides the result, and each written row still gets gy
   of that position, as in PyTorch. */
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "core/iter.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/strided.h"

enum { GRAIN = 32768, BLOCK = 512, COLUMNS = 256 };
enum {
  MOST_RUNS = 64, /* that a call knows */
  LONG_RUN = 8    /* positions of a run, on average, that pay for it */
};

/* Positions from, from + 1, ... of n rows, which are number `to` and those after it in the
   index. */
typedef struct Run {
  int64_t from, to, n;
} Run;

/* The geometry of a call: x (outer, n, inner), rows (outer, m, inner), m positions
   in 0 .. n - 1. */
typedef struct Rows {
  char *dst;
  const char *src;
  const int64_t *at;
  int64_t outer, n, m, inner;
  int64_t size; /* bytes per element */
  void (*put)(char *dst, const char *src, int64_t n, int64_t size);
  /* m rows of one element at once; NULL: by put */
  void (*put_ones)(char *dst, const char *src, const int64_t *at, int64_t m);
  int n_run; /* the runs that make up the index; 0: it is not cut into runs */
  Run run[MOST_RUNS];
} Rows;

/* The geometry of x along dim for positions at. */
static Rows rows_of(const dm_Tensor *x, int dim, const dm_Tensor *at) {
  return (Rows){.at = dm_tensor_data(at),
                .outer = dm_numel(dim, x->shape),
                .n = x->shape[dim],
                .m = at->numel,
                .inner = dm_numel(x->ndim - dim - 1, x->shape + dim + 1),
                .size = dm_dtype_size((dm_DType)x->dtype)};
}

/* Cuts the index into runs of neighbours where it has few and they serve several blocks: so the
   rows of an index as padding's are moved together. */
static void find_runs(Rows *r) {
  const int64_t most = dm_min_i64(MOST_RUNS, r->m / LONG_RUN);
  int64_t n = 0;
  r->n_run = 0;
  if (r->outer == 1) return;
  for (int64_t i = 0; i < r->m; i++) {
    if (r->at[i] < 0) return;
    if (i > 0 && r->at[i] == r->at[i - 1] + 1) {
      r->run[n - 1].n++;
      continue;
    }
    if (n == most) return;
    r->run[n++] = (Run){r->at[i], i, 1};
  }
  r->n_run = (int)n;
}

/* Copies n elements; a single one as a word, which the compiler turns into one move. */
static void put_copy(char *dst, const char *src, int64_t n, int64_t size) {
  if (n > 1) dm_copy_row(dst, src, n * size);
  else if (size == 4) memcpy(dst, src, 4);
  else if (size == 8) memcpy(dst, src, 8);
  else memcpy(dst, src, (size_t)size);
}

/* Adds n elements, or m rows of one element at the positions that are not negative. */
#define PUT_ADD(NAME, TYPE)                                                               \
  static void put_add_##NAME(char *dst, const char *src, int64_t n, int64_t size) {       \
    TYPE *DM_RESTRICT y = (TYPE *)(void *)dst;                                            \
    const TYPE *DM_RESTRICT x = (const TYPE *)(const void *)src;                          \
    DM_UNUSED(size);                                                                      \
    for (int64_t i = 0; i < n; i++) y[i] += x[i];                                         \
  }                                                                                       \
  static void add_ones_##NAME(char *dst, const char *src, const int64_t *at, int64_t m) { \
    TYPE *DM_RESTRICT y = (TYPE *)(void *)dst;                                            \
    const TYPE *DM_RESTRICT x = (const TYPE *)(const void *)src;                          \
    for (int64_t i = 0; i < m; i++)                                                       \
      if (at[i] >= 0) y[at[i]] += x[i];                                                   \
  }
PUT_ADD(f32, float)
PUT_ADD(f64, double)
PUT_ADD(i64, uint64_t) /* unsigned: wraps */
#undef PUT_ADD

/* Copies n rows of one element from the positions at. */
#define TAKE(BITS)                                                                    \
  static void take_##BITS(char *dst, const char *src, const int64_t *at, int64_t n) { \
    uint##BITS##_t *DM_RESTRICT y = (uint##BITS##_t *)(void *)dst;                    \
    const uint##BITS##_t *DM_RESTRICT x = (const uint##BITS##_t *)(const void *)src;  \
    for (int64_t i = 0; i < n; i++) y[i] = x[at[i]];                                  \
  }
TAKE(8)
TAKE(16)
TAKE(32)
TAKE(64)
#undef TAKE

/* Thread body: output row i is row at[i % m] of block i / m; rows of one block at a time. */
static void take_rows(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const int64_t bytes = r->inner * r->size, single = r->inner == 1 ? r->size : 0;
  for (int64_t i = begin, n; i < end; i += n) {
    const int64_t *at = r->at + i % r->m;
    const char *block = r->src + i / r->m * r->n * bytes;
    char *to = r->dst + i * bytes;
    n = dm_min_i64(end - i, r->m - i % r->m);
    if (single == 1) take_8(to, block, at, n);
    else if (single == 2) take_16(to, block, at, n);
    else if (single == 4) take_32(to, block, at, n);
    else if (single == 8) take_64(to, block, at, n);
    else
      for (int64_t k = 0; k < n; k++) dm_copy_row(to + k * bytes, block + at[k] * bytes, bytes);
  }
}

/* Thread bodies: blocks [begin, end), run by run. */
static void take_runs(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const int64_t bytes = r->inner * r->size;
  for (int64_t o = begin; o < end; o++)
    for (const Run *run = r->run; run < r->run + r->n_run; run++)
      dm_copy_row(r->dst + (o * r->m + run->to) * bytes,
                  r->src + (o * r->n + run->from) * bytes, run->n * bytes);
}
static void put_runs(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const int64_t bytes = r->inner * r->size;
  for (int64_t o = begin; o < end; o++)
    for (const Run *run = r->run; run < r->run + r->n_run; run++)
      r->put(r->dst + (o * r->n + run->from) * bytes, r->src + (o * r->m + run->to) * bytes,
             run->n * r->inner, r->size);
}

/* Thread body: a unit is up to COLUMNS columns of one outer block, which no other
   unit writes. Negative positions are skipped. */
static void put_rows(void *ctx, int64_t begin, int64_t end) {
  const Rows *r = ctx;
  const int64_t blocks = (r->inner + COLUMNS - 1) / COLUMNS;
  for (int64_t u = begin; u < end; u++) {
    const int64_t o = u / blocks, column = u % blocks * COLUMNS;
    const int64_t n = dm_min_i64(COLUMNS, r->inner - column);
    if (r->inner == 1 && r->put_ones) {
      r->put_ones(r->dst + o * r->n * r->size, r->src + o * r->m * r->size, r->at, r->m);
      continue;
    }
    for (int64_t i = 0; i < r->m; i++) {
      if (r->at[i] < 0) continue;
      const int64_t to = (o * r->n + r->at[i]) * r->inner + column;
      const int64_t from = (o * r->m + i) * r->inner + column;
      r->put(r->dst + to * r->size, r->src + from * r->size, n, r->size);
    }
  }
}

/* out = the rows of input 0 at the positions of `index` along dim. */
static dm_status take(dm_Call *c, dm_Tensor *index, int dim, bool wrap) {
  dm_Tensor *x = NULL, *at = NULL;
  dm_status st;
  DM_GO(dm_positions_new(c, index, c->in[0]->shape[dim], wrap, &at));
  DM_GO(dm_dense_new(c->in[0], &x));
  if (c->out[0]->numel > 0) {
    Rows r = rows_of(x, dim, at);
    r.src = dm_tensor_data(x);
    r.dst = dm_tensor_data(c->out[0]);
    find_runs(&r);
    if (r.n_run)
      dm_parallel_for(r.outer, dm_max_i64(1, GRAIN / (r.m * r.inner)), take_runs, &r);
    else dm_parallel_for(r.outer * r.m, dm_max_i64(1, GRAIN / r.inner), take_rows, &r);
  }
done:
  dm_tensor_unref(&x);
  dm_tensor_unref(&at);
  return st;
}

/* x's rows at the positions are replaced by those of `rows`, or have them added. */
static void put_into(dm_Tensor *x, int dim, dm_Tensor *at, dm_Tensor *rows, bool add) {
  if (rows->numel == 0) return;
  Rows r = rows_of(x, dim, at);
  r.dst = dm_tensor_data(x);
  r.src = dm_tensor_data(rows);
  r.put = !add                 ? put_copy
          : x->dtype == DM_F32 ? put_add_f32
          : x->dtype == DM_F64 ? put_add_f64
                               : put_add_i64;
  if (add)
    r.put_ones = x->dtype == DM_F32   ? add_ones_f32
                 : x->dtype == DM_F64 ? add_ones_f64
                                      : add_ones_i64;
  find_runs(&r);
  if (r.n_run) {
    dm_parallel_for(r.outer, dm_max_i64(1, GRAIN / (r.m * r.inner)), put_runs, &r);
    return;
  }
  const int64_t blocks = (r.inner + COLUMNS - 1) / COLUMNS;
  const int64_t work = r.m * dm_min_i64(r.inner, COLUMNS);
  dm_parallel_for(r.outer * blocks, dm_max_i64(1, GRAIN / work), put_rows, &r);
}

/* ---- sums of rows ---- */

/* Rows to add to those of y, by the rows that they go to: those of y's row i are number
   order[first[i]] to order[first[i + 1] - 1], in the order of the index. */
typedef struct Sums {
  Rows r;
  int64_t *first, *order;
  dm_DType dtype, from; /* of y and of the rows */
  const char *start;    /* what sums begin with, laid out as y is, or y itself; NULL: 0 */
} Sums;

/* Row `row`, or its part of n bytes, as it is before anything is added to it. */
static void start_row(const Sums *s, char *row, int64_t n) {
  const char *from = s->start ? s->start + (row - s->r.dst) : NULL;
  if (!from) memset(row, 0, (size_t)n);
  else if (from != row) memcpy(row, from, (size_t)n);
}

/* Thread bodies: a unit is up to COLUMNS columns of a row of y. Each is summed in the compute
   type, which may be y's own, and rounded once. */
#define SUM_ROWS(NAME, TYPE, DTYPE, ADD)                                                      \
  static void sum_rows_##NAME(void *ctx, int64_t begin, int64_t end) {                        \
    const Sums *s = ctx;                                                                      \
    const Rows *r = &s->r;                                                                    \
    const int64_t size = dm_dtype_size(s->from), blocks = (r->inner + COLUMNS - 1) / COLUMNS; \
    const bool direct = s->dtype == DTYPE;                                                    \
    for (int64_t u = begin; u < end; u++) {                                                   \
      const int64_t row = u / blocks % r->n, column = u % blocks * COLUMNS;                   \
      const int64_t o = u / blocks / r->n, n = dm_min_i64(COLUMNS, r->inner - column);        \
      char *y = r->dst + ((o * r->n + row) * r->inner + column) * r->size;                    \
      const char *x = r->src + (o * r->m * r->inner + column) * size;                         \
      TYPE own[COLUMNS], buf[COLUMNS], *const sum = direct ? (TYPE *)(void *)y : own;         \
      start_row(s, y, n * r->size);                                                           \
      if (s->first[row] == s->first[row + 1]) continue;                                       \
      if (!direct) dm_load_##NAME(s->dtype, y, 1, n, own);                                    \
      for (int64_t k = s->first[row]; k < s->first[row + 1]; k++) {                           \
        const char *p = x + s->order[k] * r->inner * size;                                    \
        const TYPE *v = (const TYPE *)(const void *)p;                                        \
        if (s->from != DTYPE) dm_load_##NAME(s->from, p, 1, n, buf), v = buf;                 \
        for (int64_t i = 0; i < n; i++) sum[i] = ADD;                                         \
      }                                                                                       \
      if (!direct) dm_store_##NAME(s->dtype, y, 1, n, own);                                   \
    }                                                                                         \
  }
SUM_ROWS(f32, float, DM_F32, sum[i] + v[i])
SUM_ROWS(f64, double, DM_F64, sum[i] + v[i])
SUM_ROWS(i64, int64_t, DM_I64, (int64_t)((uint64_t)sum[i] + (uint64_t)v[i])) /* wraps */
#undef SUM_ROWS

/* Sorts the index by its positions: counts them, then deals them out. */
static dm_status sort_rows(Sums *s) {
  const Rows *r = &s->r;
  s->first = dm_alloc((r->n + 2 + r->m) * (int64_t)sizeof *s->first);
  if (!s->first) return dm_fail(DM_EMEM, "out of memory for %lld positions", (long long)r->m);
  s->order = s->first + r->n + 2;
  memset(s->first, 0, (size_t)(r->n + 2) * sizeof *s->first);
  int64_t *const next = s->first + 1; /* where row i goes on; in the end where i + 1 begins */
  for (int64_t i = 0; i < r->m; i++)
    if (r->at[i] >= 0) next[r->at[i] + 1]++;
  for (int64_t i = 0; i < r->n; i++) next[i + 1] += next[i];
  for (int64_t i = 0; i < r->m; i++)
    if (r->at[i] >= 0) s->order[next[r->at[i]]++] = i;
  return DM_OK;
}

/* Whether all elements are one that is 0, as a gradient's first operand is. */
static bool is_zero(const dm_Tensor *t) {
  static const char zero[8];
  for (int d = 0; d < t->ndim; d++)
    if (t->stride[d] != 0) return false;
  return memcmp(dm_tensor_data(t), zero, (size_t)dm_dtype_size(t->dtype)) == 0;
}

enum { LONG_ROW = 16 }; /* elements that pay for the order of the rows */

/* y = x, or 0 where it is NULL, plus rows at the positions; negative ones are skipped. Rows of
   some elements are sorted by position, so that each of y is read and written once; short ones
   are added one after the other to y or, of 16 bits, to sums of their own. */
static dm_status add_rows(dm_Tensor *y, dm_Tensor *x, int dim, dm_Tensor *at, dm_Tensor *source,
                          int ndim, const int64_t *shape) {
  const dm_DType wide = dm_compute_dtype((dm_DType)y->dtype);
  dm_Tensor *to = NULL, *rows = NULL;
  Sums s = {.r = rows_of(y, dim, at), .dtype = (dm_DType)y->dtype};
  dm_status st = DM_OK;
  if (y->numel == 0) return DM_OK;
  if (x && is_zero(x)) x = NULL;
  if (s.r.inner < LONG_ROW) {
    DM_GO(dm_sums_new(y, x, &to));
    DM_GO(dm_dense_as_new(source, wide, ndim, shape, &rows));
    put_into(to, dim, at, rows, true);
    DM_GO(dm_sums_store(y, to));
    goto done;
  }
  s.from = source->dtype == y->dtype ? s.dtype : wide;
  DM_GO(dm_dense_as_new(source, s.from, ndim, shape, &rows));
  DM_GO(sort_rows(&s));
  s.r.dst = dm_tensor_data(y);
  if (x && !dm_tensor_is_contiguous(x)) {
    DM_GO(dm_copy_to(y, x));
    s.start = s.r.dst;
  } else if (x) {
    s.start = dm_tensor_data(x);
  }
  s.r.src = dm_tensor_data(rows);
  const int64_t blocks = (s.r.inner + COLUMNS - 1) / COLUMNS;
  dm_parallel_for(s.r.outer * blocks * s.r.n,
                  dm_max_i64(1, GRAIN / 2 / dm_min_i64(s.r.inner, COLUMNS)),
                  wide == DM_F32   ? sum_rows_f32
                  : wide == DM_F64 ? sum_rows_f64
                                   : sum_rows_i64,
                  &s);
done:
  dm_free(s.first);
  dm_tensor_unref(&rows);
  dm_tensor_unref(&to);
  return st;
}

/* x's shape with dim replaced by the index's dims: the shape of x[index]. An x of no dims
   counts as a vector of one element. */
static dm_status replaced_shape(const dm_Call *c, const dm_Tensor *x, int dim,
                                const dm_Tensor *index, int *ndim, int64_t *shape) {
  const int n = (x->ndim > 0 ? x->ndim - 1 : 0) + index->ndim;
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

/* Checks that all row ops make: the dim is one of input 0's, which counts as a vector of one
   element where it has none; input 1 is an integer tensor. */
static dm_status check_rows(const dm_Call *c, int64_t attr, int *dim) {
  const dm_Tensor *x = c->in[0];
  DM_TRY(dm_check_dim(c, x, attr, dim));
  return dm_check_index(c, c->in[1]);
}

/* An index of at most one dim. */
static dm_status check_vector(const dm_Call *c, const dm_Tensor *index) {
  if (index->ndim <= 1) return DM_OK;
  return dm_fail(DM_EARG, "%s: an index of shape %s given, wanted one dim", c->op->name,
                 DM_SHAPE(index));
}

/* ---- index_select, index_get ---- */

/* x (..., n, ...) -> (..., m, ...) for m positions. */
dm_status index_select_rule(dm_Call *c) {
  int dim;
  DM_TRY(check_rows(c, DM_ATTR(dm_AlongAttr, c)->dim, &dim));
  DM_TRY(check_vector(c, c->in[1]));
  if (c->in[0]->ndim == 0 && c->in[1]->numel != 1)
    return dm_fail(DM_EARG, "%s: %lld positions given for x of no dims, wanted one",
                   c->op->name, (long long)c->in[1]->numel);
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].shape[dim] = c->in[1]->numel;
  return DM_OK;
}

/* y[..., i, ...] = x[..., index[i], ...]; a negative position is an error here, as in
   torch.index_select. */
dm_status index_select_cpu(dm_Call *c) {
  return take(c, c->in[1], dm_dim_of(c->in[0], DM_ATTR(dm_AlongAttr, c)->dim), false);
}
/* dx is zeros with gy's rows added at the positions. */
void index_select_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const dm_IndexAddAttr attr = {DM_ATTR(dm_AlongAttr, g)->dim, 1};
  dm_Tensor *zeros = x_repeated(g->x, 0, m->ndim, m->shape, g->gy[0]);
  g->gx[0] = dm_x(g->x, DM_OP_index_add, &attr, 3, zeros, g->in[1], g->gy[0]);
}

/* x[index]: dim is replaced by the dims of the index. */
dm_status index_get_rule(dm_Call *c) {
  int dim, ndim;
  DM_TRY(check_rows(c, DM_ATTR(dm_AlongAttr, c)->dim, &dim));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  DM_TRY(replaced_shape(c, c->in[0], dim, c->in[1], &ndim, c->out_meta[0].shape));
  c->out_meta[0].ndim = (uint8_t)ndim;
  return DM_OK;
}

/* The same with negative positions counted from the end, as indexing with brackets
   does. */
dm_status index_get_cpu(dm_Call *c) {
  return take(c, c->in[1], dm_dim_of(c->in[0], DM_ATTR(dm_AlongAttr, c)->dim), true);
}
/* dx is zeros with gy's rows accumulated at the positions. */
void index_get_grad(dm_Grad *g) {
  const dm_Meta *m = dm_in_meta(g, 0);
  const int64_t attr[2] = {DM_ATTR(dm_AlongAttr, g)->dim, true}; /* dim, accumulate */
  dm_Tensor *zeros = x_repeated(g->x, 0, m->ndim, m->shape, g->gy[0]);
  g->gx[0] = dm_x(g->x, DM_OP_index_put, attr, 3, zeros, g->in[1], g->gy[0]);
}

/* ---- index_put, index_copy, index_add ---- */

/* Output 0 = input 0 with rows, broadcast to the replaced shape, written or added at
   the positions. */
static dm_status put(dm_Call *c, int dim, dm_Tensor *source, bool wrap, bool add) {
  dm_Tensor *x = c->in[0], *y = c->out[0], *at = NULL, *rows = NULL;
  int ndim;
  int64_t shape[DM_MAX_DIM];
  dm_status st;
  DM_GO(replaced_shape(c, x, dim, c->in[1], &ndim, shape));
  DM_GO(dm_positions_new(c, c->in[1], x->shape[dim], wrap, &at));
  if (add) {
    st = add_rows(y, x, dim, at, source, ndim, shape);
    goto done;
  }
  DM_GO(dm_copy_to(y, x));
  DM_GO(dm_dense_as_new(source, (dm_DType)y->dtype, ndim, shape, &rows));
  put_into(y, dim, at, rows, false);
done:
  dm_tensor_unref(&rows);
  dm_tensor_unref(&at);
  return st;
}

/* The source broadcasts to the shape of x[index]. */
dm_status index_put_rule(dm_Call *c) {
  int dim, ndim, both;
  int64_t shape[DM_MAX_DIM], wide[DM_MAX_DIM];
  DM_TRY(check_rows(c, DM_ATTR(dm_IndexPutAttr, c)->dim, &dim));
  DM_TRY(dm_check_source(c, c->in[0], c->in[2]));
  DM_TRY(replaced_shape(c, c->in[0], dim, c->in[1], &ndim, shape));
  const dm_Tensor region = dm_view_of(c->in[0], ndim, shape, shape, 0);
  DM_TRY(dm_broadcast(c->op->name, &region, c->in[2], &both, wide));
  if (both != ndim || memcmp(shape, wide, sizeof *shape * (size_t)ndim) != 0)
    return dm_fail(DM_EARG, "index_put: a source of shape %s does not broadcast to %s",
                   DM_SHAPE(c->in[2]), DM_SHAPE(&region));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* With accumulate the source is added at the positions, else it replaces what is
   there. */
dm_status index_put_cpu(dm_Call *c) {
  const dm_IndexPutAttr *a = DM_ATTR(dm_IndexPutAttr, c);
  return put(c, dm_dim_of(c->in[0], a->dim), c->in[2], true, a->accumulate);
}
/* dx is gy, with the rows that were overwritten 0 unless they were accumulated;
   dsource is gy at the positions. */
void index_put_grad(dm_Grad *g) {
  const dm_IndexPutAttr *a = g->attr;
  if (g->need[0])
    g->gx[0] = a->accumulate ? g->gy[0]
                             : dm_x(g->x, DM_OP_index_put, a, 3, g->gy[0], g->in[1],
                                    dm_x_number(g->x, 0));
  if (g->need[2]) g->gx[2] = dm_x(g->x, DM_OP_index_get, &a->dim, 2, g->gy[0], g->in[1]);
}

/* Checks the source of index_add and index_copy: x's shape, with one row per
   position along dim. */
static dm_status check_row_source(dm_Call *c) {
  const dm_Tensor *x = c->in[0], *source = c->in[2];
  int dim;
  DM_TRY(check_rows(c, DM_ATTR(dm_AlongAttr, c)->dim, &dim));
  DM_TRY(check_vector(c, c->in[1]));
  DM_TRY(dm_check_source(c, x, source));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  bool fits = source->ndim == x->ndim;
  for (int d = 0; fits && d < dm_max_i64(x->ndim, 1); d++)
    fits = source->shape[d] == (d == dim ? c->in[1]->numel : x->shape[d]);
  if (fits) return DM_OK;
  dm_Meta want = c->out_meta[0];
  want.shape[dim] = c->in[1]->numel;
  return dm_fail(DM_EARG, "%s: a source of shape %s given, wanted %s", c->op->name,
                 DM_SHAPE(source), DM_DIMS(want.ndim, want.shape));
}

/* x (..., n, ...), index (m), source (..., m, ...) -> x's shape and dtype. */
dm_status index_add_rule(dm_Call *c) { return check_row_source(c); }
dm_status index_copy_rule(dm_Call *c) { return check_row_source(c); }

/* A 0-dim index counts as a vector with one position. */
static dm_Tensor as_vector(const dm_Tensor *index) {
  const int64_t one = 1;
  return index->ndim ? dm_view_of(index, 1, index->shape, index->stride, index->offset)
                     : dm_view_of(index, 1, &one, &one, index->offset);
}

/* Output 0 = input 0 with the rows of `source` written or added along the op's dim. */
static dm_status put_vector(dm_Call *c, dm_Tensor *source, bool add) {
  dm_Tensor index = as_vector(c->in[1]);
  dm_Tensor *const in[2] = {c->in[0], &index};
  dm_Call inner = *c;
  inner.in = in;
  return put(&inner, dm_dim_of(c->in[0], DM_ATTR(dm_AlongAttr, c)->dim), source, false, add);
}

/* The scaling is done in the type of the sums, so that only the final sum is
   rounded. */
dm_status dm_scaled_new(dm_Tensor *t, dm_DType dtype, double alpha, dm_Tensor **out) {
  dm_X x = DM_X_INIT;
  dm_ThreadState *ts = dm_thread_state();
  const bool grad = ts->grad;
  ts->grad = false;
  dm_Tensor *scaled = x_cast(&x, x_scale(&x, x_cast(&x, t, dtype), alpha), dtype);
  ts->grad = grad;
  if (x.st == DM_OK) *out = dm_tensor_ref(scaled);
  dm_x_free(&x);
  return x.st;
}

/* x + alpha * source at the positions. With another alpha than 1 the source is scaled
   in a copy of the compute type first. */
dm_status index_add_cpu(dm_Call *c) {
  const double alpha = DM_ATTR(dm_IndexAddAttr, c)->alpha;
  if (alpha == 1) return put_vector(c, c->in[2], true);
  const dm_DType wide = dm_compute_dtype((dm_DType)c->in[0]->dtype);
  dm_Tensor *scaled = NULL;
  DM_TRY(dm_scaled_new(c->in[2], wide, alpha, &scaled));
  const dm_status st = put_vector(c, scaled, true);
  dm_tensor_unref(&scaled);
  return st;
}
/* dx is gy; dsource is alpha times gy's rows at the positions. */
void index_add_grad(dm_Grad *g) {
  const dm_IndexAddAttr *a = g->attr;
  g->gx[0] = g->gy[0];
  if (!g->need[2]) return;
  dm_Tensor *rows = dm_x(g->x, DM_OP_index_select, &a->dim, 2, g->gy[0], g->in[1]);
  g->gx[2] = a->alpha == 1 ? rows : x_scale(g->x, rows, a->alpha);
}

dm_status index_copy_cpu(dm_Call *c) { return put_vector(c, c->in[2], false); }
/* dx is gy with the written rows 0; dsource is gy's rows at the positions. */
void index_copy_grad(dm_Grad *g) {
  const dm_IndexPutAttr attr = {DM_ATTR(dm_AlongAttr, g)->dim, false};
  if (g->need[0])
    g->gx[0] = dm_x(g->x, DM_OP_index_put, &attr, 3, g->gy[0], g->in[1], dm_x_number(g->x, 0));
  if (g->need[2]) g->gx[2] = dm_x(g->x, DM_OP_index_select, &attr.dim, 2, g->gy[0], g->in[1]);
}

/* ---- embedding ---- */

/* index (...), weight (V, E) -> (..., E) on the weight's device. */
dm_status embedding_rule(dm_Call *c) {
  const dm_Tensor *index = c->in[0], *w = c->in[1];
  const dm_OptInt pad = DM_ATTR(dm_EmbeddingAttr, c)->padding_idx;
  if (w->ndim != 2)
    return dm_fail(DM_EARG, "embedding: the weight has shape %s, wanted {rows, columns}",
                   DM_SHAPE(w));
  DM_TRY(dm_check_index(c, index));
  if (pad.set && (pad.v < -w->shape[0] || pad.v >= w->shape[0]))
    return dm_fail(DM_EARG, "embedding: padding_idx %lld given, the weight has %lld rows",
                   (long long)(pad.v < 0 ? pad.v : pad.v + c->base), (long long)w->shape[0]);
  if (index->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG, "embedding: an index of shape %s cannot take another dim",
                   DM_SHAPE(index));
  dm_out_like(c, 0, index, (dm_DType)w->dtype);
  c->out_meta[0].device = w->device;
  c->out_meta[0].shape[c->out_meta[0].ndim++] = w->shape[1];
  return DM_OK;
}
/* The rows of the weight at the positions: index_select with the operands exchanged. */
dm_status embedding_cpu(dm_Call *c) {
  dm_Tensor *const weight_first[2] = {c->in[1], c->in[0]};
  dm_Call rows = *c;
  rows.in = weight_first;
  return take(&rows, c->in[0], 0, false);
}

/* dweight by embedding_backward; rows of padding_idx get no gradient. */
void embedding_grad(dm_Grad *g) {
  const dm_EmbeddingAttr *a = g->attr;
  const dm_EmbeddingBackwardAttr attr = {dm_in_meta(g, 1)->shape[0], a->padding_idx};
  if (g->need[1]) g->gx[1] = dm_x(g->x, DM_OP_embedding_backward, &attr, 2, g->gy[0], g->in[0]);
}

/* in: gy (..., E), index (...); out: gw (V, E), where the attribute n gives V. */
dm_status embedding_backward_rule(dm_Call *c) {
  const dm_Tensor *gy = c->in[0];
  dm_Meta *m = &c->out_meta[0];
  *m = (dm_Meta){.dtype = gy->dtype, .ndim = 2, .device = gy->device};
  m->shape[0] = DM_ATTR(dm_EmbeddingBackwardAttr, c)->n;
  m->shape[1] = gy->shape[gy->ndim - 1];
  return DM_OK;
}

/* gw (V, E): gw[index[i]] += gy[i] in the order of i; rows of padding_idx get
   nothing. */
dm_status embedding_backward_cpu(dm_Call *c) {
  const dm_EmbeddingBackwardAttr *a = DM_ATTR(dm_EmbeddingBackwardAttr, c);
  dm_Tensor *gy = c->in[0], *at = NULL;
  dm_status st;
  DM_GO(dm_positions_new(c, c->in[1], a->n, false, &at));
  if (a->padding_idx.set) {
    const int64_t pad = a->padding_idx.v < 0 ? a->padding_idx.v + a->n : a->padding_idx.v;
    int64_t *p = dm_tensor_data(at);
    for (int64_t i = 0; i < at->numel; i++)
      if (p[i] == pad) p[i] = -1;
  }
  DM_GO(add_rows(c->out[0], NULL, 0, at, gy, gy->ndim, gy->shape));
done:
  dm_tensor_unref(&at);
  return st;
}

/* The op is linear in gy, so its gradient is an embedding lookup, with 0 for rows of
   padding_idx. */
void embedding_backward_grad(dm_Grad *g) {
  const dm_EmbeddingBackwardAttr *a = g->attr;
  const dm_EmbeddingAttr attr = {a->padding_idx};
  dm_Tensor *index = g->in[1];
  g->gx[0] = dm_x(g->x, DM_OP_embedding, &attr, 2, index, g->gy[0]);
  if (!a->padding_idx.set) return;
  const int64_t pad = a->padding_idx.v < 0 ? a->padding_idx.v + a->n : a->padding_idx.v;
  const int64_t last = -1;
  dm_Tensor *row = dm_x_number(g->x, (double)(pad + dm_thread_state()->base));
  dm_Tensor *mask = dm_x(g->x, DM_OP_eq, NULL, 2, index, row);
  mask = dm_x(g->x, DM_OP_unsqueeze, &last, 1, mask);
  g->gx[0] = dm_x(g->x, DM_OP_masked_fill, NULL, 3, g->gx[0], mask, dm_x_number(g->x, 0));
}

/* ---- one_hot ---- */

/* The traversal of an index and the largest value seen so far. */
typedef struct Largest {
  dm_Iter it;
  dm_DType dtype;
  int64_t value;
} Largest;

/* The largest value of a run of the index. */
static void run_max(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Largest *r = ctx;
  for (int64_t at = 0; at < n; at += BLOCK) {
    int64_t v[BLOCK];
    const int64_t m = dm_min_i64(BLOCK, n - at);
    dm_load_i64(r->dtype, ptr[0] + at * stride[0] * r->it.size[0], stride[0], m, v);
    for (int64_t i = 0; i < m; i++) r->value = dm_max_i64(r->value, v[i]);
  }
}

/* The largest value of a non-empty index, read from its device: the number of
   one_hot's classes. */
static dm_status largest_of(dm_Tensor *index, int64_t *value) {
  const dm_DType dtype = (dm_DType)index->dtype;
  if (index->device.type == DM_CPU) {
    Largest r = {.dtype = dtype, .value = INT64_MIN};
    dm_iter_init(&r.it, 1, &index);
    dm_iter_range(&r.it, 0, index->numel, run_max, &r);
    *value = r.value;
    return DM_OK;
  }
  dm_Tensor *max = NULL;
  char element[8];
  DM_TRY(dm_call(DM_OP_amax, 1, &index, NULL, &max));
  const dm_status st = dm_tensor_read(max, dm_dtype_size(dtype), element);
  if (st == DM_OK) dm_load_i64(dtype, element, 1, 1, value);
  dm_tensor_unref(&max);
  return st;
}

/* index (...) -> (..., classes) int64; without num_classes the largest index
   decides. */
dm_status one_hot_rule(dm_Call *c) {
  dm_Tensor *index = c->in[0];
  int64_t n = DM_ATTR(dm_OneHotAttr, c)->num_classes;
  DM_TRY(dm_check_index(c, index));
  if (n == -1) {
    int64_t most;
    if (index->numel == 0)
      return dm_fail(DM_EARG, "one_hot: num_classes is wanted for an index that is empty");
    DM_TRY(largest_of(index, &most));
    n = most < c->base ? 0 : dm_min_i64(most - c->base, INT64_MAX - 1) + 1;
  }
  if (n < 0)
    return dm_fail(DM_EARG, "one_hot: num_classes %lld given, wanted 0 or more", (long long)n);
  if (index->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG, "one_hot: an index of shape %s cannot take another dim",
                   DM_SHAPE(index));
  dm_out_like(c, 0, index, DM_I64);
  c->out_meta[0].shape[c->out_meta[0].ndim++] = n;
  return DM_OK;
}

/* Zeros with a 1 per row. */
dm_status one_hot_cpu(dm_Call *c) {
  dm_Tensor *out = c->out[0], *at;
  const int64_t n = out->shape[out->ndim - 1];
  DM_TRY(dm_positions_new(c, c->in[0], n, false, &at));
  const int64_t *p = dm_tensor_data(at);
  int64_t *y = dm_tensor_data(out);
  if (out->numel > 0) memset(y, 0, (size_t)dm_tensor_bytes(out));
  for (int64_t i = 0; i < at->numel; i++) y[i * n + p[i]] = 1;
  dm_tensor_unref(&at);
  return DM_OK;
}

/* ---- compositions ---- */

/* Elements of the flattened x at the positions, in index's shape. */
dm_status take_compose(dm_Call *c, dm_X *x) {
  const int64_t first = 0;
  dm_Tensor *flat = x_reshape(x, c->in[0], 1, &c->in[0]->numel);
  c->out[0] = dm_x(x, DM_OP_index_get, &first, 2, flat, c->in[1]);
  return x->st;
}

/* The number where a mask of the dim's positions, which index_copy sets, holds: so it counts
   once in the gradient of a row that the index names twice. */
dm_status index_fill_compose(dm_Call *c, dm_X *x) {
  const int64_t at = DM_ATTR(dm_IndexFillAttr, c)->dim;
  dm_Tensor *t = c->in[0], *value = c->in[2];
  int dim;
  DM_TRY(dm_check_dim(c, t, at, &dim));
  DM_TRY(check_vector(c, c->in[1]));
  if (value->ndim != 0)
    return dm_fail(DM_EARG, "index_fill: the value has shape %s, wanted a number",
                   DM_SHAPE(value));
  DM_TRY(dm_check_holds_number("index_fill", (dm_DType)t->dtype, value));
  /* A mask, 1 at the positions: a position that is named twice counts once for the value. */
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) shape[d] = d == dim ? t->shape[d] : 1;
  const int64_t n = t->ndim ? t->shape[dim] : 1, first = 0;
  const dm_FullAttr no = {{1, {n}}, 0, DM_BOOL, dm_device_code(t->device)};
  const dm_FullAttr yes = {{1, {c->in[1]->numel}}, 1, DM_BOOL, dm_device_code(t->device)};
  dm_Tensor *mask = dm_x(x, DM_OP_index_copy, &first, 3, dm_x(x, DM_OP_full, &no, 0), c->in[1],
                         dm_x(x, DM_OP_full, &yes, 0));
  mask = x_reshape(x, mask, t->ndim, shape);
  value = dm_x_there(x, x_cast(x, value, (dm_DType)t->dtype), t->device);
  c->out[0] = x_where(x, mask, value, t);
  return x->st;
}
