/* The traversals of a reduction (see reduce.h).

   Accuracy: floats are added in blocks of 1024 (by rows) or in columns of 64 (by
   tiles) in the compute type, and the block sums are added in float64. The error
   then grows with the block size and not with the number of elements, at the speed
   of a float32 loop; the idea is that of pairwise summation (Higham 1993) with two levels.

   Determinism: the blocks and the chunks depend on shape and strides alone. Threads
   take whole chunks, every chunk has its own dm_Acc, and finish() merges them in
   order. Where each output is one chunk, the thread that has reduced it finishes it. */
#include <stdlib.h>

#include "base/error.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/pointwise/pointwise.h"
#include "op/reduce/reduce.h"

enum {
  TILE = 64,             /* outputs reduced together in one tile */
  BROAD = 1024,          /* the same for reductions whose state is one float */
  BROADEST = 4096,       /* and for those of formulas, whose rows are read from end to end */
  ROWS = DM_REDUCE_ROWS, /* reduced elements gathered per output before they are joined */
  CHUNK = 65536,         /* elements of one chunk of a long reduction */
  APART = 32,            /* elements between buffers, whose addresses then differ in low bits */
  MINUTE = 8,            /* reduced elements per output that do not pay for a call */
  FEW = 64,     /* with at most so many outputs a long reduction is split into chunks */
  FEW_TILES = 8 /* the same for tiles, and the number of chunks it is split into */
};

typedef struct Job {
  dm_DType dtype, compute;
  int64_t n_out, n_red;
  int64_t n_chunk, chunk; /* chunks per reduction, elements per chunk */
  int64_t n_tile, tile;   /* tiles along the last kept dim (0: by rows), outputs per tile */
  int64_t width;          /* size of the last kept dim; */
  int64_t step;           /* its stride in the operand whose layout is followed */
  int lead;               /* the number of that operand */
  const dm_Reduction *reduction;
  const dm_Source *source; /* NULL: the elements are x's */
  dm_ReduceF32 *f32;       /* the reduction's own loops, or those of loops.h */
  dm_ReduceF64 *f64;
  dm_ReduceI64 *i64;
  /* NULL: tiles are gathered and joined column by column */
  dm_ReduceColumnsF32 *columns;
  dm_ReduceColumnsI64 *columns_i64;
  double param;
  dm_Acc *acc;  /* (n_out, n_chunk); NULL where n_chunk is 1: a unit finishes its outputs */
  double *sums; /* (n_chunk, n_out), in acc's stead where there are columns */
  dm_Tensor *const *out;
  int base;
  /* Most of the bytes, which are written by dims_into as far as they are read. */
  dm_Iter red;  /* reduced dims of x, or of the source's operands, which data points to */
  dm_Iter kept; /* kept dims; data as in red */
} Job;

/* The state of one traversal: `cols` outputs whose first elements lie `step` apart.
   `at` counts the reduced elements seen, `fill` the rows gathered in buf. */
typedef struct Pass {
  const Job *j;
  dm_Acc *acc; /* state of the first output; states lie n_chunk apart */
  int64_t cols, at;
  int fill;
  void *buf;
} Pass;

/* The n tensors of a reduction, each broadcast to the shape of the first one. */
typedef struct Operands {
  int n;
  const dm_Tensor *in[DM_SOURCE_IN];
} Operands;

/* The stride of operand k along dim d of the first one. */
static int64_t stride_of(const Operands *o, int k, int d) {
  const dm_Tensor *t = o->in[k];
  const int own = d - (o->in[0]->ndim - t->ndim);
  return own < 0 || t->shape[own] == 1 ? 0 : t->stride[own];
}

/* The operand whose layout is followed: the first of those that repeat along the fewest dims.
 */
static int lead_of(const Operands *o) {
  int lead = 0, most = -1;
  for (int k = 0; k < o->n; k++) {
    int n = 0;
    for (int d = 0; d < o->in[0]->ndim; d++) n += stride_of(o, k, d) != 0;
    if (n > most) most = n, lead = k;
  }
  return lead;
}

/* Whether a stride is within another; dims that repeat elements are outside all. */
static bool is_inner(int64_t stride, int64_t than) {
  return than == 0 ? stride != 0 : stride != 0 && stride < than;
}

/* Lists the dims in mask whose size is not 1, as they are or, for a reduction to which the
   order is the same, from the largest stride of operand `lead` to the smallest, so that memory
   is read in its own order; dims that repeat elements come first. Returns how many there are.
 */
static int list_dims(const Operands *o, int lead, unsigned mask, bool any_order, int *list) {
  int n = 0;
  for (int d = 0; d < o->in[0]->ndim; d++) {
    if (!(mask >> d & 1u) || o->in[0]->shape[d] == 1) continue;
    const int64_t stride = stride_of(o, lead, d);
    int k = n++;
    for (; any_order && k > 0 && is_inner(stride_of(o, lead, list[k - 1]), stride); k--)
      list[k] = list[k - 1];
    list[k] = d;
  }
  return n;
}

/* Whether the last dim of `it` and dim d of the operands are one in memory. */
static bool merges(const dm_Iter *it, int last, const Operands *o, int d) {
  for (int i = 0; i < o->n; i++)
    if (it->stride[i][last] != stride_of(o, i, d) * o->in[0]->shape[d]) return false;
  return true;
}

/* Describes the dims in mask as an iterator. Neighbours that are contiguous to each other are
   merged. */
static void dims_into(dm_Iter *it, const Operands *o, int lead, unsigned mask, bool any_order) {
  int list[DM_MAX_DIM], k = 0;
  const int n = list_dims(o, lead, mask, any_order, list);
  it->n_op = o->n;
  it->numel = 1;
  for (int i = 0; i < n; i++) {
    const int d = list[i];
    const int64_t size = o->in[0]->shape[d];
    it->numel *= size;
    if (k > 0 && merges(it, k - 1, o, d)) it->shape[k - 1] *= size;
    else it->shape[k++] = size;
    for (int op = 0; op < o->n; op++) it->stride[op][k - 1] = stride_of(o, op, d);
  }
  it->ndim = k > 0 ? k : 1;
  if (k == 0) it->shape[0] = 1;
  for (int op = 0; op < o->n; op++) {
    it->data[op] = dm_tensor_data(o->in[op]);
    it->size[op] = dm_dtype_sizes[o->in[op]->dtype];
    if (k == 0) it->stride[op][0] = 1;
  }
}

/* Whether the order of the elements changes nothing but the rounding of sums, and which NaN or
   which zero is the largest; positions follow the order. */
static bool is_any_order(const dm_Reduction *r) {
  return r->loop != DM_REDUCE_OWN && r->loop != DM_REDUCE_EXTREME;
}

/* The dims of x in mask along which it repeats its elements, if repeats change nothing: of the
   largest, of whether any is true, and of whether all are. */
static unsigned needless_dims(const dm_Tensor *x, unsigned mask, const dm_Reduction *r) {
  const bool extreme = r->loop == DM_REDUCE_TOP || r->loop == DM_REDUCE_LARGEST;
  unsigned needless = 0;
  if (!extreme && r->loop != DM_REDUCE_ANY && r->loop != DM_REDUCE_ALL) return 0;
  for (int d = 0; d < x->ndim; d++)
    if (mask >> d & 1u && x->stride[d] == 0 && x->shape[d] > 1) needless |= 1u << d;
  return needless;
}

/* Sets the addresses of `it` to the first reduced elements of output i. */
static void go_to(dm_Iter *it, const Job *j, int64_t i) {
  const dm_Iter *kept = &j->kept;
  for (int k = 0; k < kept->n_op; k++) it->data[k] = kept->data[k];
  for (int d = kept->ndim - 1; d >= 0; d--) {
    const int64_t at = i % kept->shape[d];
    for (int k = 0; k < kept->n_op; k++) it->data[k] += at * kept->stride[k][d] * kept->size[k];
    i /= kept->shape[d];
  }
}

/* The inner loops for one compute type. row_: joins a run of elements of one output,
   converted in blocks unless they already have the type and stride 1. tile_: gathers
   one element of each of `cols` outputs per step into buf (cols, ROWS); flush_: joins
   the gathered columns to their outputs. */
#define PASSES(SUFFIX, TYPE, DTYPE)                                                          \
  static void row_##SUFFIX(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {  \
    Pass *w = ctx;                                                                           \
    const Job *j = w->j;                                                                     \
    TYPE buf[2 * DM_BLOCK];                                                                  \
    const bool direct = j->dtype == DTYPE && stride[0] == 1;                                 \
    if (DTYPE == DM_F32 && !direct && stride[0] == 1 &&                                      \
        dm_loops()->row_low(j->reduction->loop, j->dtype, w->acc, ptr[0], n, j->param)) {    \
      w->at += n;                                                                            \
      return;                                                                                \
    }                                                                                        \
    for (int64_t at = 0, m; at < n; at += m) {                                               \
      const char *p = ptr[0] + at * stride[0] * j->red.size[0];                              \
      m = direct ? n : dm_min_i64(2 * DM_BLOCK, n - at);                                     \
      if (!direct) dm_load_##SUFFIX(j->dtype, p, stride[0], m, buf);                         \
      j->SUFFIX(w->acc, direct ? (const TYPE *)(const void *)p : buf, m, w->at, j->param);   \
      w->at += m;                                                                            \
    }                                                                                        \
  }                                                                                          \
  static void flush_##SUFFIX(Pass *w) {                                                      \
    const TYPE *buf = w->buf;                                                                \
    for (int64_t k = 0; k < w->cols && w->fill > 0; k++)                                     \
      w->j->SUFFIX(w->acc + k * w->j->n_chunk, buf + k * ROWS, w->fill, w->at, w->j->param); \
    w->at += w->fill;                                                                        \
    w->fill = 0;                                                                             \
  }                                                                                          \
  static void tile_##SUFFIX(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) { \
    Pass *w = ctx;                                                                           \
    TYPE row[TILE], *buf = w->buf;                                                           \
    for (int64_t r = 0; r < n; r++) {                                                        \
      const char *p = ptr[0] + r * stride[0] * w->j->red.size[0];                            \
      dm_load_##SUFFIX(w->j->dtype, p, w->j->step, w->cols, row);                            \
      for (int64_t k = 0; k < w->cols; k++) buf[k * ROWS + w->fill] = row[k];                \
      if (++w->fill == ROWS) flush_##SUFFIX(w);                                              \
    }                                                                                        \
  }
PASSES(f32, float, DM_F32)
PASSES(f64, double, DM_F64)
PASSES(i64, int64_t, DM_I64)
#undef PASSES

/* row_ for elements that a formula computes, block by block. operand_: m elements of operand k,
   where they lie or in buf. */
#define SOURCES(SUFFIX, TYPE, DTYPE)                                                           \
  static const TYPE *operand_##SUFFIX(const dm_Source *s, int k, const char *p,                \
                                      int64_t stride, int64_t m, TYPE *buf) {                  \
    const dm_DType t = (dm_DType)s->in[k]->dtype;                                              \
    if (t == DTYPE && stride == 1) return (const TYPE *)(const void *)p;                       \
    dm_load_##SUFFIX(t, p, stride, stride ? m : 1, buf);                                       \
    for (int64_t i = 1; i < m && stride == 0; i++) buf[i] = buf[0];                            \
    return buf;                                                                                \
  }                                                                                            \
  static void source_##SUFFIX(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) { \
    enum { BLOCK = 2 * DM_BLOCK };                                                             \
    Pass *w = ctx;                                                                             \
    const Job *j = w->j;                                                                       \
    const dm_Source *s = j->source;                                                            \
    TYPE wide[DM_SOURCE_IN][BLOCK + APART], y[BLOCK];                                          \
    const TYPE *in[DM_SOURCE_IN];                                                              \
    for (int64_t at = 0, m; at < n; at += m) {                                                 \
      m = dm_min_i64(BLOCK, n - at);                                                           \
      for (int k = 0; k < s->n; k++)                                                           \
        in[k] = operand_##SUFFIX(s, k, ptr[k] + at * stride[k] * j->red.size[k], stride[k], m, \
                                 wide[k]);                                                     \
      s->formula->SUFFIX(in, y, m, s->pq);                                                     \
      j->SUFFIX(w->acc, y, m, w->at, j->param);                                                \
      w->at += m;                                                                              \
    }                                                                                          \
  }
SOURCES(f32, float, DM_F32)
SOURCES(f64, double, DM_F64)
#undef SOURCES

/* Joins n rows of w->cols neighbouring elements to as many running results; the rows lie `step`
   elements apart. */
static void join_rows(const Pass *w, const char *p, int64_t step, int64_t n) {
  const Job *j = w->j;
  const int64_t bytes = step * j->red.size[0];
  enum { AT_ONCE = 4 }; /* rows */
  float row[AT_ONCE * BROAD];
  if (j->dtype == DM_F32 && j->step == 1) {
    j->columns(w->buf, (const float *)(const void *)p, step, n, w->cols, (float)j->param);
    return;
  }
  const bool dense = j->step == 1 && step == w->cols; /* rows follow one another */
  const int64_t most = dense ? DM_COUNT(row) / w->cols : AT_ONCE;
  for (int64_t m; n > 0; n -= m, p += m * bytes) {
    m = dm_min_i64(most, n);
    if (dense) dm_load_f32(j->dtype, p, 1, m * w->cols, row);
    for (int64_t q = 0; q < m && !dense; q++)
      dm_load_f32(j->dtype, p + q * bytes, j->step, w->cols, row + q * BROAD);
    j->columns(w->buf, row, dense ? step : BROAD, m, w->cols, (float)j->param);
  }
}
/* The same of n rows that a formula computes, which are no products, block by block. */
static void join_source(const Pass *w, char *const *ptr, const int64_t *stride, int64_t n) {
  const Job *j = w->j;
  const dm_Source *s = j->source;
  const int last = j->kept.ndim - 1;
  float wide[DM_SOURCE_IN][BROAD + APART], y[BROAD];
  const float *in[DM_SOURCE_IN];
  for (int64_t r = 0; r < n; r++)
    for (int64_t at = 0, m; at < w->cols; at += m) {
      m = dm_min_i64(BROAD, w->cols - at);
      for (int k = 0; k < s->n; k++) {
        const int64_t step = j->kept.stride[k][last];
        in[k] = operand_f32(s, k, ptr[k] + (r * stride[k] + at * step) * j->red.size[k], step,
                            m, wide[k]);
      }
      s->formula->f32(in, y, m, s->pq);
      j->columns((float *)w->buf + at, y, 0, 1, m, (float)j->param);
    }
}
static void tile_columns(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  const Pass *w = ctx;
  if (w->j->source) join_source(w, ptr, stride, n);
  else join_rows(w, ptr[0], stride[0], n);
}

/* ---- sums, products, extremes and truths in tiles ----
   An output is a double. The sum of ROWS rows is a float, which joins it, and so is whether any
   is true; products are doubles from the start; of extremes, and of whether all are true, all
   rows are joined as floats. */

typedef struct Columns {
  Pass pass;
  float group[BROADEST]; /* of the rows since the last flush */
  double sum[BROADEST];
} Columns;

static void flush_sums(Columns *s) {
  for (int64_t k = 0; k < s->pass.cols; k++) s->sum[k] += (double)s->group[k];
  memset(s->group, 0, sizeof *s->group * (size_t)s->pass.cols);
  s->pass.fill = 0;
}

static void tile_sums(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Columns *s = ctx;
  Pass *w = &s->pass;
  const Job *j = w->j;
  const int64_t step = stride[0] * j->red.size[0];
  char *p[DM_SOURCE_IN];
  for (int64_t at = 0, m; at < n; at += m) {
    m = dm_min_i64(ROWS - w->fill, n - at);
    for (int k = 0; k < j->red.n_op; k++) p[k] = ptr[k] + at * stride[k] * j->red.size[k];
    if (j->source) join_source(w, p, stride, m);
    else if (j->step != 1 || !dm_loops()->sum_rows(j->reduction->loop, j->dtype, p[0], step, m,
                                                   w->cols, s->group))
      join_rows(w, p[0], stride[0], m);
    if ((w->fill += (int)m) == ROWS) flush_sums(s);
  }
}

/* Stores n outputs from `first` on, whose states are given. */
static void finish_columns(const Job *j, double *sum, int64_t first, int64_t n) {
  const dm_DType to = (dm_DType)j->out[0]->dtype;
  for (int64_t k = 0; k < n && !j->reduction->plain; k++) {
    const dm_Acc acc = {.a = sum[k]};
    sum[k] = j->reduction->value(&acc, j->param, j->n_red);
  }
  dm_store_f64(to, (char *)dm_tensor_data(j->out[0]) + first * dm_dtype_size(to), 1, n, sum);
}

/* Joins the chunks' states in order. */
static void merge_columns(const Job *j) {
  for (int64_t k = 1; k < j->n_chunk; k++) {
    double *const to = j->sums;
    const double *later = j->sums + k * j->n_out;
    switch (j->reduction->loop) {
    case DM_REDUCE_PROD:
    case DM_REDUCE_ALL:
      for (int64_t i = 0; i < j->n_out; i++) to[i] *= later[i];
      break;
    case DM_REDUCE_TOP: /* a NaN wins, and stays */
      for (int64_t i = 0; i < j->n_out; i++)
        to[i] = ((later[i] > to[i]) | (later[i] != later[i])) ? later[i] : to[i];
      break;
    default:
      for (int64_t i = 0; i < j->n_out; i++) to[i] += later[i];
    }
  }
  finish_columns(j, j->sums, 0, j->n_out);
}

/* Merges the chunks of outputs first .. first + n - 1, whose states are at acc, in order and
   stores values and indices. */
static void finish(const Job *j, dm_Acc *acc, int64_t first, int64_t n) {
  dm_Tensor *const *out = j->out;
  char *value = out[0] ? dm_tensor_data(out[0]) : NULL;
  int64_t *index = out[1] ? dm_tensor_data(out[1]) : NULL;
  const dm_DType to = out[0] ? (dm_DType)out[0]->dtype : DM_I64;
  const int64_t size = dm_dtype_size(to);
  const bool real = j->reduction->value && j->compute != DM_I64;
  for (int64_t at = 0, m; at < n; at += m) {
    double v[TILE];
    m = dm_min_i64(TILE, n - at);
    for (int64_t i = 0; i < m; i++) {
      dm_Acc *s = acc + (at + i) * j->n_chunk;
      for (int64_t k = 1; k < j->n_chunk; k++) j->reduction->merge(s, s + k);
      if (index) index[first + at + i] = s->k + j->base;
      if (real) v[i] = j->reduction->plain ? s->a : j->reduction->value(s, j->param, j->n_red);
      else if (value) dm_store_i64(to, value + (first + at + i) * size, 1, 1, &s->i);
    }
    if (real && value) dm_store_f64(to, value + (first + at) * size, 1, m, v);
  }
}

/* Unit u of the traversal by rows: one chunk of one output. */
static void row_unit(const Job *j, int64_t u, dm_Iter *it, dm_Acc *acc) {
  dm_RunFn *run = j->compute == DM_F32 ? row_f32 : j->compute == DM_F64 ? row_f64 : row_i64;
  if (j->source) run = j->compute == DM_F32 ? source_f32 : source_f64;
  const int64_t lo = u % j->n_chunk * j->chunk;
  Pass w = {.j = j, .acc = acc, .at = lo};
  go_to(it, j, u / j->n_chunk);
  if (it->ndim == 1 && j->n_chunk == 1 && it->n_op == 1)
    run(&w, it->data, it->stride[0], j->n_red);
  else dm_iter_range(it, lo, dm_min_i64(lo + j->chunk, j->n_red), run, &w);
}
/* Thread body of the traversal by rows. */
static void by_rows(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  dm_Acc local[TILE];
  dm_Iter it = j->red;
  for (int64_t u = begin, m; u < end; u += m) {
    dm_Acc *const acc = j->acc ? j->acc + u : local;
    m = dm_min_i64(TILE, end - u);
    for (int64_t i = 0; i < m; i++) {
      acc[i] = j->reduction->start;
      row_unit(j, u + i, &it, acc + i);
    }
    if (!j->acc) finish(j, local, u, m);
  }
}

/* A unit of the traversal by tiles: one chunk of one tile of outputs. */
typedef struct Unit {
  int64_t chunk, o, lo, hi; /* o: the first output; lo to hi: the reduced elements */
} Unit;

static Unit unit_at(const Job *j, int64_t u, dm_Iter *it, Pass *w) {
  const int64_t chunk = u % j->n_chunk, tile = u / j->n_chunk;
  const int64_t col = tile % j->n_tile * j->tile, lo = chunk * j->chunk;
  const Unit unit = {chunk, tile / j->n_tile * j->width + col, lo,
                     dm_min_i64(lo + j->chunk, j->n_red)};
  w->j = j;
  w->at = lo;
  w->fill = 0;
  w->cols = dm_min_i64(j->tile, j->width - col);
  go_to(it, j, unit.o);
  return unit;
}

/* Thread body of sums, products and extremes in tiles. Sums of less than ROWS rows are the
   floats themselves. */
static void by_columns(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const int loop = j->reduction->loop;
  const bool product = loop == DM_REDUCE_PROD;
  const bool sum = !product && loop != DM_REDUCE_TOP && loop != DM_REDUCE_ALL;
  const bool plain = j->reduction->plain && !j->sums && j->n_red < ROWS;
  const double start = j->reduction->start.a;
  const dm_DType to = (dm_DType)j->out[0]->dtype;
  dm_Iter it = j->red;
  Columns s;
  s.pass.buf = product ? (void *)s.sum : s.group;
  for (int64_t u = begin; u < end; u++) {
    const Unit unit = unit_at(j, u, &it, &s.pass);
    const int64_t n = s.pass.cols;
    for (int64_t k = 0; k < n; k++) s.group[k] = (float)start;
    for (int64_t k = 0; k < n; k++) s.sum[k] = start;
    dm_iter_range(&it, unit.lo, unit.hi, sum ? tile_sums : tile_columns, &s);
    if (plain) {
      dm_store_f32(to, (char *)dm_tensor_data(j->out[0]) + unit.o * dm_dtype_size(to), 1, n,
                   s.group);
      continue;
    }
    if (sum) flush_sums(&s);
    else if (!product)
      for (int64_t k = 0; k < n; k++) s.sum[k] = (double)s.group[k];
    if (j->sums)
      memcpy(j->sums + unit.chunk * j->n_out + unit.o, s.sum, sizeof *s.sum * (size_t)n);
    else finish_columns(j, s.sum, unit.o, n);
  }
}

/* ---- integers in tiles ---- */

typedef struct Integers {
  Pass pass;
  int64_t best[BROAD];
} Integers;

static void tile_integers(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Integers *const s = ctx;
  const Job *const j = s->pass.j;
  const int64_t cols = s->pass.cols;
  int64_t row[BROAD];
  if (j->dtype == DM_I64 && j->step == 1) {
    j->columns_i64(s->best, (const int64_t *)(const void *)ptr[0], stride[0], n, cols,
                   j->param);
    return;
  }
  for (int64_t r = 0; r < n; r++) {
    dm_load_i64(j->dtype, ptr[0] + r * stride[0] * j->red.size[0], j->step, cols, row);
    j->columns_i64(s->best, row, 0, 1, cols, j->param);
  }
}

/* Thread body. */
static void by_integers(void *ctx, int64_t begin, int64_t end) {
  const Job *const j = ctx;
  const int64_t start = j->reduction->loop != DM_REDUCE_TOP ? j->reduction->start.i
                        : j->param > 0                      ? INT64_MIN
                                                            : INT64_MAX;
  dm_Iter it = j->red;
  Integers s;
  for (int64_t u = begin; u < end; u++) {
    const Unit unit = unit_at(j, u, &it, &s.pass);
    const int64_t n = s.pass.cols;
    for (int64_t k = 0; k < n; k++) s.best[k] = start;
    dm_iter_range(&it, unit.lo, unit.hi, tile_integers, &s);
    for (int64_t k = 0; k < n && j->acc; k++)
      j->acc[(unit.o + k) * j->n_chunk + unit.chunk] = (dm_Acc){.i = s.best[k]};
    if (j->acc) continue;
    const dm_DType to = (dm_DType)j->out[0]->dtype;
    dm_store_i64(to, (char *)dm_tensor_data(j->out[0]) + unit.o * dm_dtype_size(to), 1, n,
                 s.best);
  }
}

/* Thread body of the traversal by tiles. */
static void by_tiles(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  union {
    float f32[TILE * ROWS];
    double f64[TILE * ROWS];
    int64_t i64[TILE * ROWS];
  } buf;
  dm_RunFn *run = j->compute == DM_F32 ? tile_f32 : j->compute == DM_F64 ? tile_f64 : tile_i64;
  dm_Acc local[TILE];
  dm_Iter it = j->red;
  for (int64_t u = begin; u < end; u++) {
    Pass w = {.acc = local, .buf = &buf};
    const Unit unit = unit_at(j, u, &it, &w);
    if (j->acc) w.acc = j->acc + unit.o * j->n_chunk + unit.chunk;
    for (int64_t k = 0; k < w.cols; k++) w.acc[k * j->n_chunk] = j->reduction->start;
    dm_iter_range(&it, unit.lo, unit.hi, run, &w);
    if (j->compute == DM_F32) flush_f32(&w);
    else if (j->compute == DM_F64) flush_f64(&w);
    else flush_i64(&w);
    if (!j->acc) finish(j, local, unit.o, w.cols);
  }
}

/* Tiles are better when neighbouring outputs are closer in memory than neighbouring
   reduced elements, and where an output has so few elements that a call for it would cost more
   than they do: a tile's elements are then in cache for its later rows. */
static bool better_in_tiles(const Job *j) {
  const int64_t along = j->red.stride[j->lead][j->red.ndim - 1];
  if (j->source && !j->columns) return false;
  if (j->n_red <= 1 || j->width < 4 || j->step == 0) return false;
  if ((j->columns || j->columns_i64) && j->n_red <= MINUTE && j->width >= TILE) return true;
  return along == 0 || llabs(j->step) < llabs(along);
}

/* The number of reduced elements per chunk: all of them, or a part when there are few
   outputs and the reduction is long. */
static int64_t chunk_of(const Job *j) {
  const int64_t all = dm_max_i64(1, j->n_red), width = j->n_tile ? j->width : 1;
  if (j->n_out * j->n_red < 2 * CHUNK) return all;
  if (j->n_out <= FEW) return dm_max_i64(1, CHUNK / width);
  if (j->n_tile == 0 || j->n_out / j->width * j->n_tile > FEW_TILES) return all;
  return dm_max_i64(dm_max_i64(1, CHUNK / width), (all + FEW_TILES - 1) / FEW_TILES);
}

/* Chooses the traversal and the chunks, runs them in parallel, and merges the
   states. */
static dm_status reduce(dm_Tensor *const *out, const dm_Tensor *x, const dm_Source *source,
                        unsigned mask, dm_DType compute, const dm_Reduction *reduction,
                        double param, int base) {
  Operands o = {1, {x}};
  for (int k = 1; source && k < source->n; k++) o.in[o.n++] = source->in[k];
  Job j;
  memset(&j, 0, offsetof(Job, red));
  j.source = source;
  j.dtype = (dm_DType)x->dtype;
  /* floats count blocks of bools exactly, and doubles the blocks */
  if (!source && j.dtype == DM_BOOL && reduction->loop == DM_REDUCE_SUM) compute = DM_F32;
  j.compute = compute;
  j.reduction = reduction;
  j.param = param;
  j.out = out;
  j.base = base;
  const dm_Loops *loops = dm_loops();
  j.f32 = reduction->loop ? loops->reduce32[reduction->loop] : reduction->f32;
  j.f64 = reduction->loop ? loops->reduce64[reduction->loop] : reduction->f64;
  j.i64 = loops->reduce_i64[reduction->loop];
  j.columns = compute == DM_F32 ? loops->columns[reduction->loop] : NULL;
  j.columns_i64 = compute == DM_I64 ? loops->columns_i64[reduction->loop] : NULL;
  const unsigned needed = source ? mask : mask & ~needless_dims(x, mask, reduction);
  j.lead = lead_of(&o);
  dims_into(&j.red, &o, j.lead, needed, is_any_order(reduction));
  dims_into(&j.kept, &o, j.lead, ~mask, false);
  j.n_red = j.red.numel;
  j.n_out = j.kept.numel;
  if (j.n_out == 0) return DM_OK;
  j.width = j.kept.shape[j.kept.ndim - 1];
  j.step = j.kept.stride[j.lead][j.kept.ndim - 1];
  j.tile = source ? BROADEST : j.columns || j.columns_i64 ? BROAD : TILE;
  if (better_in_tiles(&j)) j.n_tile = (j.width + j.tile - 1) / j.tile;
  const bool columns = j.columns && j.n_tile && j.n_red > 0;
  j.chunk = chunk_of(&j);
  j.n_chunk = dm_max_i64(1, (j.n_red + j.chunk - 1) / j.chunk);
  dm_Acc local[64];
  const int64_t n_acc = j.n_out * j.n_chunk;
  if (columns && j.n_chunk > 1) {
    j.sums = dm_scratch(DM_SCRATCH_JOB, n_acc * (int64_t)sizeof *j.sums);
    if (!j.sums) return dm_fail(DM_EMEM, "reduction: out of memory");
  } else if (j.n_chunk > 1 || j.n_red == 0) {
    j.acc = n_acc <= DM_COUNT(local)
                ? local
                : dm_scratch(DM_SCRATCH_JOB, n_acc * (int64_t)sizeof *j.acc);
    if (!j.acc) return dm_fail(DM_EMEM, "reduction: out of memory");
  }
  for (int64_t i = 0; j.n_red == 0 && i < n_acc; i++) j.acc[i] = reduction->start;
  if (j.n_red > 0) {
    const int64_t rows = j.n_tile ? j.n_out / j.width * j.n_tile : j.n_out;
    const int64_t cost =
        dm_min_i64(j.chunk, j.n_red) * (j.n_tile ? dm_min_i64(j.tile, j.width) : 1);
    dm_parallel_for(rows * j.n_chunk, dm_max_i64(1, DM_POINT_GRAIN / cost),
                    columns                     ? by_columns
                    : j.n_tile && j.columns_i64 ? by_integers
                    : j.n_tile                  ? by_tiles
                                                : by_rows,
                    &j);
  }
  if (j.sums) merge_columns(&j);
  if (j.acc) finish(&j, j.acc, 0, j.n_out);
  dm_scratch_trim(DM_SCRATCH_JOB);
  return DM_OK;
}

dm_status dm_reduce(dm_Tensor *const *out, const dm_Tensor *x, unsigned mask, dm_DType compute,
                    const dm_Reduction *reduction, double param, int base) {
  return reduce(out, x, NULL, mask, compute, reduction, param, base);
}

dm_status dm_reduce_source(dm_Tensor *const *out, const dm_Source *source, unsigned mask,
                           dm_DType compute, const dm_Reduction *reduction, double param) {
  return reduce(out, source->in[0], source, mask, compute, reduction, param, 0);
}
