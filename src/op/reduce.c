/* Reductions: the walks (see reduce.h), then op by op its fold, rule and
   gradient. Sums of floats add blocks of 1024, of columns 64, in the compute
   type and the blocks in float64. */
#include "op/reduce.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/loops.h"
#include "op/pointwise.h"

enum {
  TILE = 64,     /* outputs walked side by side */
  BROAD = 1024,  /* the same for those that keep one number each */
  ROWS = 64,     /* reduced elements of each, per turn */
  CHUNK = 65536, /* elements of a long reduction that one thread takes */
  FEW = 64,      /* outputs below which a long reduction is cut */
  FEW_TILES = 8  /* tiles below which it is, and into how many pieces */
};

/* ---- the walks ---- */

typedef struct Job {
  dm_Iter red;  /* the reduced dims of x; data: its first element */
  dm_Iter kept; /* the kept dims, likewise */
  dm_DType dtype, compute;
  int64_t n_out, n_red;
  int64_t n_chunk, chunk; /* pieces of each reduction, elements in one */
  int64_t n_tile, tile;   /* tiles along the last kept dim, 0: by rows; outputs in one */
  int64_t width, step;    /* last kept dim: size and stride */
  const dm_Fold *fold;
  dm_FoldF32 *f32; /* the fold's, or loops.h's */
  dm_FoldF64 *f64;
  dm_FoldI64 *i64;
  dm_BesideF32 *beside; /* NULL: tiles are gathered, then folded column by column */
  double param;
  dm_Acc *acc; /* (n_out, n_chunk) */
} Job;

/* One turn of a walk: `cols` outputs, whose first elements lie `step` apart. */
typedef struct Walk {
  const Job *j;
  dm_Acc *acc; /* of the first output; n_chunk apart */
  int64_t cols, at;
  int fill;
  void *buf;
} Walk;

static void dims_into(dm_Iter *it, const dm_Tensor *x, unsigned mask) {
  it->n_op = 1;
  it->data[0] = dm_tensor_data(x);
  it->size[0] = dm_dtype_sizes[x->dtype];
  it->numel = 1;
  int k = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (!(mask >> d & 1u) || x->shape[d] == 1) continue;
    it->numel *= x->shape[d];
    if (k > 0 && it->stride[0][k - 1] == x->stride[d] * x->shape[d])
      it->shape[k - 1] *= x->shape[d];
    else it->shape[k++] = x->shape[d];
    it->stride[0][k - 1] = x->stride[d];
  }
  if (k == 0) {
    it->shape[0] = 1;
    it->stride[0][0] = 1;
    k = 1;
  }
  it->ndim = k;
}

/* The first reduced element of output number i. */
static char *first_of(const Job *j, int64_t i) {
  int64_t off = 0;
  for (int d = j->kept.ndim - 1; d >= 0; d--) {
    off += i % j->kept.shape[d] * j->kept.stride[0][d];
    i /= j->kept.shape[d];
  }
  return j->kept.data[0] + off * j->kept.size[0];
}

/* Rows gathered so far are folded into each column of a tile. */
#define WALKS(SUFFIX, TYPE, DTYPE)                                                           \
  static void row_##SUFFIX(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {  \
    Walk *w = ctx;                                                                           \
    const Job *j = w->j;                                                                     \
    TYPE buf[2 * DM_BLOCK];                                                                  \
    const bool direct = j->dtype == DTYPE && stride[0] == 1;                                 \
    for (int64_t at = 0, m; at < n; at += m) {                                               \
      const char *p = ptr[0] + at * stride[0] * j->red.size[0];                              \
      m = direct ? n : dm_min_i64(2 * DM_BLOCK, n - at);                                     \
      if (!direct) dm_load_##SUFFIX(j->dtype, p, stride[0], m, buf);                         \
      j->SUFFIX(w->acc, direct ? (const TYPE *)(const void *)p : buf, m, w->at, j->param);   \
      w->at += m;                                                                            \
    }                                                                                        \
  }                                                                                          \
  static void flush_##SUFFIX(Walk *w) {                                                      \
    const TYPE *buf = w->buf;                                                                \
    for (int64_t k = 0; k < w->cols && w->fill > 0; k++)                                     \
      w->j->SUFFIX(w->acc + k * w->j->n_chunk, buf + k * ROWS, w->fill, w->at, w->j->param); \
    w->at += w->fill;                                                                        \
    w->fill = 0;                                                                             \
  }                                                                                          \
  static void tile_##SUFFIX(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) { \
    Walk *w = ctx;                                                                           \
    TYPE line[TILE], *buf = w->buf;                                                          \
    for (int64_t r = 0; r < n; r++) {                                                        \
      const char *p = ptr[0] + r * stride[0] * w->j->red.size[0];                            \
      dm_load_##SUFFIX(w->j->dtype, p, w->j->step, w->cols, line);                           \
      for (int64_t k = 0; k < w->cols; k++) buf[k * ROWS + w->fill] = line[k];               \
      if (++w->fill == ROWS) flush_##SUFFIX(w);                                              \
    }                                                                                        \
  }
WALKS(f32, float, DM_F32)
WALKS(f64, double, DM_F64)
WALKS(i64, int64_t, DM_I64)
#undef WALKS

/* Outputs that keep one float each, side by side. Sums of ROWS rows go on in float64. */
static void flush_beside(Walk *w) {
  float *v = w->buf;
  const float start = (float)w->j->fold->start.a;
  for (int64_t k = 0; k < w->cols; k++) {
    dm_Acc more = w->j->fold->start;
    more.a = (double)v[k];
    w->j->fold->merge(w->acc + k * w->j->n_chunk, &more);
    v[k] = start;
  }
  w->fill = 0;
}
static void tile_beside(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  Walk *w = ctx;
  const Job *j = w->j;
  const bool direct = j->dtype == DM_F32 && j->step == 1, sums = j->fold->loop == DM_FOLD_SUM;
  float line[BROAD];
  for (int64_t r = 0; r < n; r++) {
    const char *p = ptr[0] + r * stride[0] * j->red.size[0];
    if (!direct) dm_load_f32(j->dtype, p, j->step, w->cols, line);
    j->beside(w->buf, direct ? (const float *)(const void *)p : line, w->cols, (float)j->param);
    if (sums && ++w->fill == ROWS) flush_beside(w);
  }
}

/* Unit u: one chunk of one output. */
static void by_rows(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  dm_RunFn *run = j->compute == DM_F32 ? row_f32 : j->compute == DM_F64 ? row_f64 : row_i64;
  dm_Iter it = j->red;
  for (int64_t u = begin; u < end; u++) {
    const int64_t lo = u % j->n_chunk * j->chunk;
    Walk w = {.j = j, .acc = j->acc + u, .at = lo};
    it.data[0] = first_of(j, u / j->n_chunk);
    if (it.ndim == 1 && j->n_chunk == 1) run(&w, it.data, it.stride[0], j->n_red);
    else dm_iter_range(&it, lo, dm_min_i64(lo + j->chunk, j->n_red), run, &w);
  }
}

/* Unit u: one chunk of one tile of outputs. */
static void by_tiles(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  union {
    float f32[TILE * ROWS];
    double f64[TILE * ROWS];
    int64_t i64[TILE * ROWS];
  } buf;
  dm_RunFn *run = j->beside              ? tile_beside
                  : j->compute == DM_F32 ? tile_f32
                  : j->compute == DM_F64 ? tile_f64
                                         : tile_i64;
  dm_Iter it = j->red;
  for (int64_t u = begin; u < end; u++) {
    const int64_t chunk = u % j->n_chunk, tile = u / j->n_chunk;
    const int64_t col = tile % j->n_tile * j->tile, o = tile / j->n_tile * j->width + col;
    const int64_t lo = chunk * j->chunk;
    Walk w = {.j = j, .acc = j->acc + o * j->n_chunk + chunk, .at = lo, .buf = &buf};
    w.cols = dm_min_i64(j->tile, j->width - col);
    for (int64_t k = 0; j->beside && k < w.cols; k++) buf.f32[k] = (float)j->fold->start.a;
    it.data[0] = first_of(j, o);
    dm_iter_range(&it, lo, dm_min_i64(lo + j->chunk, j->n_red), run, &w);
    if (j->beside) flush_beside(&w);
    else if (j->compute == DM_F32) flush_f32(&w);
    else if (j->compute == DM_F64) flush_f64(&w);
    else flush_i64(&w);
  }
}

static void finish(const Job *j, dm_Tensor *const *out, int base) {
  char *value = out[0] ? dm_tensor_data(out[0]) : NULL;
  int64_t *index = out[1] ? dm_tensor_data(out[1]) : NULL;
  const dm_DType to = out[0] ? (dm_DType)out[0]->dtype : DM_I64;
  const int64_t size = dm_dtype_size(to);
  const bool real = j->fold->value && j->compute != DM_I64;
  for (int64_t at = 0, m; at < j->n_out; at += m) {
    double v[TILE];
    m = dm_min_i64(TILE, j->n_out - at);
    for (int64_t i = 0; i < m; i++) {
      dm_Acc *s = j->acc + (at + i) * j->n_chunk;
      for (int64_t k = 1; k < j->n_chunk; k++) j->fold->merge(s, s + k);
      if (index) index[at + i] = s->k + base;
      if (real) v[i] = j->fold->value(s, j->param, j->n_red);
      else if (value) dm_store_i64(to, value + (at + i) * size, 1, 1, &s->i);
    }
    if (real && value) dm_store_f64(to, value + at * size, 1, m, v);
  }
}

static bool better_in_tiles(const Job *j) {
  const int64_t along = j->red.stride[0][j->red.ndim - 1];
  return j->width >= 4 && llabs(j->step) < llabs(along) && j->n_red > 1;
}

/* Elements of one output that a thread takes: of few long reductions a part. */
static int64_t chunk_of(const Job *j) {
  const int64_t all = dm_max_i64(1, j->n_red), width = j->n_tile ? j->width : 1;
  if (j->n_out * j->n_red < 2 * CHUNK) return all;
  if (j->n_out <= FEW) return dm_max_i64(1, CHUNK / width);
  if (j->n_tile == 0 || j->n_out / j->width * j->n_tile > FEW_TILES) return all;
  return dm_max_i64(dm_max_i64(1, CHUNK / width), (all + FEW_TILES - 1) / FEW_TILES);
}

dm_status dm_reduce(dm_Tensor *const *out, const dm_Tensor *x, unsigned mask, dm_DType compute,
                    const dm_Fold *fold, double param, int base) {
  Job j = {.dtype = (dm_DType)x->dtype, .compute = compute, .fold = fold, .param = param};
  const dm_Loops *loops = dm_loops();
  j.f32 = fold->loop ? loops->fold32[fold->loop] : fold->f32;
  j.f64 = fold->loop ? loops->fold64[fold->loop] : fold->f64;
  j.i64 = fold->i64;
  j.beside = compute == DM_F32 ? loops->beside[fold->loop] : NULL;
  dims_into(&j.red, x, mask);
  dims_into(&j.kept, x, ~mask);
  j.n_red = j.red.numel;
  j.n_out = j.kept.numel;
  if (j.n_out == 0) return DM_OK;
  j.width = j.kept.shape[j.kept.ndim - 1];
  j.step = j.kept.stride[0][j.kept.ndim - 1];
  j.tile = j.beside ? BROAD : TILE;
  if (better_in_tiles(&j)) j.n_tile = (j.width + j.tile - 1) / j.tile;
  j.chunk = chunk_of(&j);
  j.n_chunk = dm_max_i64(1, (j.n_red + j.chunk - 1) / j.chunk);
  dm_Acc local[64];
  const int64_t n_acc = j.n_out * j.n_chunk;
  j.acc = n_acc <= DM_COUNT(local) ? local : dm_alloc(n_acc * (int64_t)sizeof *j.acc);
  if (!j.acc) return dm_fail(DM_EMEM, "reduction: out of memory");
  for (int64_t i = 0; i < n_acc; i++) j.acc[i] = fold->start;
  if (j.n_red > 0) {
    const int64_t rows = j.n_tile ? j.n_out / j.width * j.n_tile : j.n_out;
    const int64_t cost =
        dm_min_i64(j.chunk, j.n_red) * (j.n_tile ? dm_min_i64(j.tile, j.width) : 1);
    dm_parallel_for(rows * j.n_chunk, dm_max_i64(1, DM_POINT_GRAIN / cost),
                    j.n_tile ? by_tiles : by_rows, &j);
  }
  finish(&j, out, base);
  if (j.acc != local) dm_free(j.acc);
  return DM_OK;
}

/* ---- what rules and gradients share ---- */

dm_status dm_dims_mask(const dm_Call *c, const dm_Tensor *t, dm_Ints dims, unsigned *mask) {
  unsigned seen = 0;
  for (int64_t i = 0; i < dims.n; i++) {
    int d;
    DM_TRY(dm_check_dim(c, t, dims.v[i], &d));
    if (seen >> d & 1u)
      return dm_fail(DM_EARG, "%s: dim %d is named twice", c->op->name, d + c->base);
    seen |= 1u << d;
  }
  *mask = dm_dims_bits(t->ndim, dims);
  return DM_OK;
}

void dm_out_reduced(dm_Call *c, int i, const dm_Tensor *t, unsigned mask, bool keepdim,
                    dm_DType dtype) {
  dm_Meta *m = &c->out_meta[i];
  dm_out_like(c, i, t, dtype);
  m->ndim = 0;
  for (int d = 0; d < t->ndim; d++) {
    const bool gone = mask >> d & 1u;
    if (gone && !keepdim) continue;
    m->shape[m->ndim++] = gone ? 1 : t->shape[d];
  }
}

dm_Tensor *x_keepdim(dm_X *x, dm_Tensor *r, const dm_Meta *m, unsigned mask) {
  if (x->st != DM_OK || !r || r->ndim == m->ndim) return r;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) shape[d] = mask >> d & 1u ? 1 : m->shape[d];
  return x_reshape(x, r, m->ndim, shape);
}

bool x_call(dm_X *x, int op, const void *attr, int n_in, dm_Tensor *const *in,
            dm_Tensor **out) {
  int n_out = 0;
  if (x->st != DM_OK) return false;
  x->st = dm_call_n(op, n_in, in, attr, out, &n_out);
  if (x->st != DM_OK) return false;
  for (int i = 0; i < n_out; i++) (void)dm_x_own(x, out[i]); /* each, or it is lost */
  return x->st == DM_OK;
}

/* ---- sum, mean ---- */

static void sum_i64(dm_Acc *s, const int64_t *v, int64_t n, int64_t at, double param) {
  DM_UNUSED(at), DM_UNUSED(param);
  uint64_t sum = (uint64_t)s->i; /* wraps, as integers do */
  for (int64_t i = 0; i < n; i++) sum += (uint64_t)v[i];
  s->i = (int64_t)sum;
}
static void sum_merge(dm_Acc *s, const dm_Acc *later) {
  s->a += later->a;
  s->i = (int64_t)((uint64_t)s->i + (uint64_t)later->i);
}
static double sum_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param), DM_UNUSED(n);
  return s->a;
}
static double mean_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param);
  return s->a / (double)n;
}

static const dm_Fold sum_fold = {
    .loop = DM_FOLD_SUM, .i64 = sum_i64, .merge = sum_merge, .value = sum_value};
static const dm_Fold mean_fold = {.loop = DM_FOLD_SUM, .merge = sum_merge, .value = mean_value};

static dm_status reduce_in_out_dtype(dm_Call *c, dm_Ints dims, const dm_Fold *fold) {
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, c->in[0], dm_dims_bits(c->in[0]->ndim, dims),
                   dm_compute_dtype((dm_DType)c->out[0]->dtype), fold, 0, 0);
}

dm_status sum_rule(dm_Call *c) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  const dm_Tensor *x = c->in[0];
  const dm_DType own = (dm_DType)x->dtype;
  unsigned mask;
  DM_TRY(dm_dims_mask(c, x, a->dims, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim,
                 a->dtype >= 0      ? (dm_DType)a->dtype
                 : dm_is_float(own) ? own
                                    : DM_I64);
  return DM_OK;
}

/* The columns of a few dense rows, as a bias's gradient in a small net: what the walk gives,
   without one. False: not that. */
static bool sum_few_rows(const dm_Call *c) {
  enum { MOST = 256 };
  const dm_Tensor *x = c->in[0], *out = c->out[0];
  const dm_DType from = (dm_DType)x->dtype, to = (dm_DType)out->dtype;
  if (x->ndim != 2 || x->shape[0] > ROWS || x->shape[1] > MOST || x->numel == 0 ||
      dm_compute_dtype(from) != DM_F32 || dm_compute_dtype(to) != DM_F32 ||
      dm_dims_bits(2, DM_ATTR(dm_SumAttr, c)->dims) != 1u || !dm_tensor_is_contiguous(x))
    return false;
  const int64_t n = x->shape[1], row_bytes = n * dm_dtype_size(from);
  const char *row = dm_tensor_data(x);
  float sum[MOST], wide[MOST];
  for (int64_t k = 0; k < n; k++) sum[k] = 0;
  for (int64_t i = 0; i < x->shape[0]; i++, row += row_bytes) {
    const float *v = (const float *)(const void *)row;
    if (from != DM_F32) dm_load_f32(from, row, 1, n, wide), v = wide;
    for (int64_t k = 0; k < n; k++) sum[k] += v[k];
  }
  dm_store_f32(to, dm_tensor_data(out), 1, n, sum);
  return true;
}

dm_status sum_cpu(dm_Call *c) {
  if (sum_few_rows(c)) return DM_OK;
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dims, &sum_fold);
}

/* gy as it was before the dims went, spread over them. */
static dm_Tensor *spread(dm_Grad *g, dm_Ints dims) {
  const dm_Meta *m = &g->in_meta[0];
  dm_Tensor *gy = x_keepdim(g->x, g->gy[0], m, dm_dims_bits(m->ndim, dims));
  return x_expand(g->x, gy, m->ndim, m->shape);
}
void sum_grad(dm_Grad *g) { g->gx[0] = spread(g, DM_ATTR(dm_SumAttr, g)->dims); }

dm_status mean_rule(dm_Call *c) {
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, c);
  const dm_Tensor *x = c->in[0];
  const dm_DType to = a->dtype >= 0 ? (dm_DType)a->dtype : (dm_DType)x->dtype;
  unsigned mask;
  if (!dm_is_float(to))
    return dm_fail(
        DM_EARG,
        "mean: the result would be %s, wanted a float dtype; hint: dtype = \"float32\"",
        dm_dtype_name(to));
  DM_TRY(dm_dims_mask(c, x, a->dims, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim, to);
  return DM_OK;
}
dm_status mean_cpu(dm_Call *c) {
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dims, &mean_fold);
}
static int64_t n_reduced(const dm_Meta *m, unsigned mask) {
  int64_t n = 1;
  for (int d = 0; d < m->ndim; d++)
    if (mask >> d & 1u) n *= m->shape[d];
  return n;
}
void mean_grad(dm_Grad *g) {
  const dm_Meta *m = &g->in_meta[0];
  const dm_Ints dims = DM_ATTR(dm_SumAttr, g)->dims;
  const unsigned mask = dm_dims_bits(m->ndim, dims);
  dm_Tensor *gy = x_scale(g->x, g->gy[0], 1.0 / (double)n_reduced(m, mask));
  gy = x_keepdim(g->x, gy, m, mask);
  g->gx[0] = x_expand(g->x, gy, m->ndim, m->shape);
}

/* ---- sum_to_size: undoes a broadcast ---- */

dm_status sum_to_size_rule(dm_Call *c) {
  const dm_Ints *size = DM_ATTR(dm_Ints, c);
  const dm_Tensor *x = c->in[0];
  const int64_t lead = x->ndim - size->n;
  bool ok = lead >= 0;
  for (int64_t d = 0; ok && d < size->n; d++)
    ok = size->v[d] == 1 || size->v[d] == x->shape[d + lead];
  if (!ok)
    return dm_fail(DM_EARG, "sum_to_size: %s does not broadcast to %s",
                   dm_shape_str((int)size->n, size->v, (char[96]){0}), DM_SHAPE(x));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  c->out_meta[0].ndim = (uint8_t)size->n;
  for (int64_t d = 0; d < size->n; d++) c->out_meta[0].shape[d] = size->v[d];
  return DM_OK;
}
dm_status sum_to_size_cpu(dm_Call *c) {
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, c->in[0], dm_repeated_bits(c->in[0], DM_ATTR(dm_Ints, c)),
                   dm_compute_dtype((dm_DType)c->out[0]->dtype), &sum_fold, 0, 0);
}
void sum_to_size_grad(dm_Grad *g) {
  const dm_Meta *m = &g->in_meta[0];
  g->gx[0] = x_expand(g->x, g->gy[0], m->ndim, m->shape);
}

/* ---- prod ---- */

#define PROD(SUFFIX, TYPE)                                                                   \
  static void prod_##SUFFIX(dm_Acc *s, const TYPE *v, int64_t n, int64_t at, double param) { \
    DM_UNUSED(at), DM_UNUSED(param);                                                         \
    double p = s->a;                                                                         \
    for (int64_t i = 0; i < n; i++) p *= (double)v[i];                                       \
    s->a = p;                                                                                \
  }
PROD(f32, float)
PROD(f64, double)
#undef PROD
static void prod_i64(dm_Acc *s, const int64_t *v, int64_t n, int64_t at, double param) {
  DM_UNUSED(at), DM_UNUSED(param);
  uint64_t p = (uint64_t)s->i; /* wraps, as integers do */
  for (int64_t i = 0; i < n; i++) p *= (uint64_t)v[i];
  s->i = (int64_t)p;
}
static void prod_merge(dm_Acc *s, const dm_Acc *later) {
  s->a *= later->a;
  s->i = (int64_t)((uint64_t)s->i * (uint64_t)later->i);
}
static const dm_Fold prod_fold = {.start = {1, 0, 1, 0},
                                  .f32 = prod_f32,
                                  .f64 = prod_f64,
                                  .i64 = prod_i64,
                                  .merge = prod_merge,
                                  .value = sum_value};

dm_status prod_cpu(dm_Call *c) {
  return reduce_in_out_dtype(c, DM_ATTR(dm_SumAttr, c)->dims, &prod_fold);
}

/* The product of the others: with no zero prod / x; with one zero the product
   of the rest, there only; with more, none. */
void prod_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_SumAttr *a = DM_ATTR(dm_SumAttr, g);
  const dm_Meta *m = &g->in_meta[0];
  const unsigned mask = dm_dims_bits(m->ndim, a->dims);
  dm_Tensor *v =
      x->st == DM_OK && a->dtype >= 0 ? x_cast(x, g->in[0], (dm_DType)a->dtype) : g->in[0];
  dm_Tensor *gy = x_keepdim(x, g->gy[0], m, mask), *zero = dm_x_number(x, 0),
            *one = dm_x_number(x, 1);
  dm_Tensor *is_zero = dm_x(x, DM_OP_eq, NULL, 2, v, zero);
  dm_Tensor *n_zero = x_sum(x, is_zero, a->dims, true);
  dm_Tensor *rest = x_where(x, is_zero, one, v);
  const dm_SumAttr keep = {a->dims, 1, DM_NO_DTYPE};
  dm_Tensor *p = x_mul(x, dm_x(x, DM_OP_prod, &keep, 1, rest), gy);
  dm_Tensor *none = dm_x(x, DM_OP_eq, NULL, 2, n_zero, zero);
  dm_Tensor *single = dm_x(x, DM_OP_eq, NULL, 2, n_zero, one);
  dm_Tensor *at_zero = x_where(x, single, p, zero);
  dm_Tensor *elsewhere = x_where(x, none, x_div(x, p, rest), zero);
  g->gx[0] = x_where(x, is_zero, at_zero, elsewhere);
}

/* ---- var, std: blocks joined as in Chan, Golub & LeVeque 1979 ----
   a: mean, b: sum of squared differences from it, k: count */

static void var_merge(dm_Acc *s, const dm_Acc *later) {
  dm_var_join(s, later->a, later->b, later->k);
}
static double var_value(const dm_Acc *s, double correction, int64_t n) {
  const double by = (double)n - correction;
  return s->b / (by > 0 ? by : 0);
}
static double std_value(const dm_Acc *s, double correction, int64_t n) {
  return sqrt(var_value(s, correction, n));
}
static const dm_Fold var_fold = {.loop = DM_FOLD_VAR, .merge = var_merge, .value = var_value};
static const dm_Fold std_fold = {.loop = DM_FOLD_VAR, .merge = var_merge, .value = std_value};

dm_status var_rule(dm_Call *c) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  unsigned mask;
  DM_TRY(dm_check_float(c, c->in[0], "x"));
  DM_TRY(dm_dims_mask(c, c->in[0], a->dims, &mask));
  dm_out_reduced(c, 0, c->in[0], mask, a->keepdim, (dm_DType)c->in[0]->dtype);
  return DM_OK;
}
dm_status var_cpu(dm_Call *c) {
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, c);
  const dm_Tensor *x = c->in[0];
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, x, dm_dims_bits(x->ndim, a->dims), dm_compute_dtype((dm_DType)x->dtype),
                   c->op == &dm_ops[DM_OP_std] ? &std_fold : &var_fold, a->correction, 0);
}

/* d var / dx = 2 (x - mean) / (n - correction), times gy. */
static dm_Tensor *var_slope(dm_Grad *g, dm_Tensor *gy) {
  dm_X *x = g->x;
  const dm_VarAttr *a = DM_ATTR(dm_VarAttr, g);
  const dm_Meta *m = &g->in_meta[0];
  const unsigned mask = dm_dims_bits(m->ndim, a->dims);
  const dm_SumAttr keep = {a->dims, 1, DM_NO_DTYPE};
  const double by = (double)n_reduced(m, mask) - a->correction;
  dm_Tensor *d = x_sub(x, g->in[0], dm_x(x, DM_OP_mean, &keep, 1, g->in[0]));
  return x_mul(x, x_keepdim(x, x_scale(x, gy, 2 / (by > 0 ? by : 0)), m, mask), d);
}
void var_grad(dm_Grad *g) { g->gx[0] = var_slope(g, g->gy[0]); }
void std_grad(dm_Grad *g) {
  dm_X *x = g->x;
  dm_Tensor *zero = dm_x_number(x, 0);
  dm_Tensor *gy = x_div(x, g->gy[0], x_scale(x, g->out[0], 2));
  gy = x_where(x, dm_x(x, DM_OP_eq, NULL, 2, g->out[0], zero), zero, gy);
  g->gx[0] = var_slope(g, gy);
}

/* ---- norm ---- */

static double norm_value(const dm_Acc *s, double p, int64_t n) {
  DM_UNUSED(n);
  return p == 2.0 ? sqrt(s->a) : p == 1.0 || p == 0.0 ? s->a : pow(s->a, 1 / p);
}
static void largest_merge(dm_Acc *s, const dm_Acc *later) {
  if (s->a == s->a && (later->a > s->a || later->a != later->a)) s->a = later->a;
}
static void least_merge(dm_Acc *s, const dm_Acc *later) {
  if (s->a == s->a && (later->a < s->a || later->a != later->a)) s->a = later->a;
}
static const dm_Fold norm_fold = {
    .loop = DM_FOLD_NORM, .merge = sum_merge, .value = norm_value};
static const dm_Fold largest_fold = {
    .loop = DM_FOLD_LARGEST, .merge = largest_merge, .value = sum_value};
static const dm_Fold least_fold = {
    .loop = DM_FOLD_LARGEST, .merge = least_merge, .value = sum_value};

dm_status norm_rule(dm_Call *c) {
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, c);
  const dm_Tensor *x = c->in[0];
  unsigned mask;
  DM_TRY(dm_check_float(c, x, "x"));
  if (a->dtype >= 0 && !dm_is_float((dm_DType)a->dtype))
    return dm_fail(DM_EARG, "norm: dtype = %s, wanted a float dtype",
                   dm_dtype_name((dm_DType)a->dtype));
  DM_TRY(dm_dims_mask(c, x, a->dims, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim, (dm_DType)(a->dtype >= 0 ? a->dtype : x->dtype));
  if ((a->p < 0 || isinf(a->p)) && x->numel == 0 &&
      dm_numel(c->out_meta[0].ndim, c->out_meta[0].shape) > 0)
    return dm_fail(DM_EARG, "norm: the norm with p = %g of no elements is not defined; x is %s",
                   a->p, DM_SHAPE(x));
  return DM_OK;
}
dm_status norm_cpu(dm_Call *c) {
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, c);
  const dm_Fold *fold = !isinf(a->p) ? &norm_fold : a->p > 0 ? &largest_fold : &least_fold;
  dm_Tensor *out[2] = {c->out[0], NULL};
  return dm_reduce(out, c->in[0], dm_dims_bits(c->in[0]->ndim, a->dims),
                   dm_compute_dtype((dm_DType)c->out[0]->dtype), fold, a->p, 0);
}

static dm_Tensor *x_pow(dm_X *x, dm_Tensor *a, double p) {
  return dm_x(x, DM_OP_pow, NULL, 2, a, dm_x_number(x, p));
}
static dm_Tensor *x_same(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_eq, NULL, 2, a, b);
}

/* sign(x) |x|^(p-1) / norm^(p-1) gy; 0 where the norm is 0. At p = inf gy goes
   to the elements that are the norm, in equal parts. */
void norm_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_NormAttr *a = DM_ATTR(dm_NormAttr, g);
  const dm_Meta *m = &g->in_meta[0];
  const unsigned mask = dm_dims_bits(m->ndim, a->dims);
  dm_Tensor *v = a->dtype >= 0 ? x_cast(x, g->in[0], (dm_DType)a->dtype) : g->in[0];
  dm_Tensor *gy = x_keepdim(x, g->gy[0], m, mask), *y = x_keepdim(x, g->out[0], m, mask);
  dm_Tensor *zero = dm_x_number(x, 0);
  if (a->p == 0.0) {
    g->gx[0] = x_zeros_like(x, v);
    return;
  }
  if (a->p == 1.0) {
    g->gx[0] = x_mul(x, x_unary(x, DM_OP_sign, v), gy);
    return;
  }
  if (isinf(a->p)) {
    dm_Tensor *hit = x_like(x, x_same(x, x_unary(x, DM_OP_abs, v), y), v);
    gy = x_div(x, gy, x_sum(x, hit, a->dims, true));
    g->gx[0] = x_mul(x, x_mul(x, x_unary(x, DM_OP_sign, v), hit), gy);
    return;
  }
  dm_Tensor *top = v, *scale = x_div(x, gy, y);
  if (a->p != 2.0) {
    top = x_mul(x, x_unary(x, DM_OP_sign, v), x_pow(x, x_unary(x, DM_OP_abs, v), a->p - 1));
    if (a->p < 1) top = x_where(x, x_same(x, v, zero), zero, top);
    scale = x_div(x, gy, x_pow(x, y, a->p - 1));
  }
  scale = x_where(x, x_same(x, y, zero), zero, scale);
  g->gx[0] = x_mul(x, top, scale);
}

/* ---- logsumexp: see dm_lse_join ---- */

static void lse_merge(dm_Acc *s, const dm_Acc *later) { dm_lse_join(s, later->a, later->b); }
static double lse_value(const dm_Acc *s, double param, int64_t n) {
  DM_UNUSED(param), DM_UNUSED(n);
  return s->a + log(s->b);
}
static const dm_Fold lse_fold = {.start = {(double)-INFINITY, 0, 0, 0},
                                 .loop = DM_FOLD_LSE,
                                 .merge = lse_merge,
                                 .value = lse_value};

dm_status logsumexp_rule(dm_Call *c) {
  const dm_DimsAttr *a = DM_ATTR(dm_DimsAttr, c);
  const dm_Tensor *x = c->in[0];
  unsigned mask;
  DM_TRY(dm_dims_mask(c, x, a->dims, &mask));
  dm_out_reduced(c, 0, x, mask, a->keepdim,
                 dm_is_float((dm_DType)x->dtype) ? (dm_DType)x->dtype : DM_F32);
  return DM_OK;
}
dm_status logsumexp_cpu(dm_Call *c) {
  return reduce_in_out_dtype(c, DM_ATTR(dm_DimsAttr, c)->dims, &lse_fold);
}
void logsumexp_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_Meta *m = &g->in_meta[0];
  const unsigned mask = dm_dims_bits(m->ndim, DM_ATTR(dm_DimsAttr, g)->dims);
  dm_Tensor *y = x_keepdim(x, g->out[0], m, mask), *gy = x_keepdim(x, g->gy[0], m, mask);
  g->gx[0] = x_mul(x, gy, x_unary(x, DM_OP_exp, x_sub(x, g->in[0], y)));
}
