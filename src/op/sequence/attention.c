/* scaled_dot_product_attention: y = softmax(scale q k^T + mask) v, for a block of
   query rows at a time, so that the (L, S) matrix of weights is never stored. The
   forward pass saves lse, the logarithm of each row's sum of exponentials; from it
   the backward pass computes a block's weights again as exp(score - lse), with one
   exp and no second reduction (T. Dao et al. 2022, FlashAttention).

   q (..., L, E), k (..., S, E), v (..., S, D) and mask (..., L, S) have the same
   batch dims when they reach the kernels: broadcast dims have stride 0. is_causal
   limits row i to the keys 0 .. i, and a block then skips the keys that none of its
   rows sees. Dropout of the weights is drawn per row from the counter-based
   generator and drawn again in the backward pass, so no mask is stored. A row whose
   keys are all masked out gives 0.

   Backward, for one block with weights w and upstream gy: gv += w^T gy, gw = gy v^T,
   gs = scale w (gw - sum of w gw along the row), gq = gs k, gk += gs^T q. Each batch
   is one task, in which the blocks add to gk and gv in order. */
#include <stdatomic.h>

#include "base/error.h"
#include "cpu/gemm.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/pointwise/pointwise.h"
#include "op/random/random.h"
#include "op/sequence/attention.h"

enum { MIN_ROWS = 32, MAX_ROWS = 128 };
enum { KEYS = 256 };                         /* keys that are summed at once */
static const int64_t BLOCK_SCORES = 1 << 17; /* scores per block: half a MiB of float32 */
static const int64_t TASK_WORK = 1 << 15;    /* multiply-adds that are worth a thread */

/* ---- operands as matrices ---- */

/* The matrix in t's last two dims for one batch index, by its strides. */
static dm_Mat matrix(const dm_Tensor *t, int64_t batch) {
  int64_t at = 0;
  for (int d = t->ndim - 3; d >= 0; d--) {
    at += batch % t->shape[d] * t->stride[d];
    batch /= t->shape[d];
  }
  const dm_DType dtype = (dm_DType)t->dtype;
  const char *data = (const char *)dm_tensor_data(t) + at * dm_dtype_size(dtype);
  return (dm_Mat){data, dtype, t->stride[t->ndim - 2], t->stride[t->ndim - 1]};
}

/* m from row i on. */
static dm_Mat from_row(dm_Mat m, int64_t i) {
  m.data = (const char *)m.data + i * m.rs * dm_dtype_size(m.dtype);
  return m;
}

static dm_Mat transposed(dm_Mat m) { return (dm_Mat){m.data, m.dtype, m.cs, m.rs}; }

/* A contiguous matrix with this number of columns. */
static dm_Mat dense(const void *data, dm_DType dtype, int64_t columns) {
  return (dm_Mat){data, dtype, columns, 1};
}

/* Rows of an output, whose elements are neighbours: the first one's address, the dtype, and the
   elements from one row to the next. */
typedef struct Rows {
  char *first;
  dm_DType dtype;
  int64_t step;
} Rows;

/* The rows of an output from row i of a batch on. */
static Rows out_rows(const dm_Tensor *t, int64_t batch, int64_t i) {
  const dm_Mat m = from_row(matrix(t, batch), i);
  return (Rows){(char *)dm_tensor_data(t) + ((const char *)m.data - (char *)dm_tensor_data(t)),
                m.dtype, m.rs};
}

/* Rounds m rows of a contiguous matrix x to an output. */
static void store_rows(dm_DType from, const char *x, int64_t m, int64_t columns, Rows to) {
  if (to.step == columns) {
    dm_convert(from, x, to.dtype, to.first, m * columns);
    return;
  }
  const int64_t row = columns * dm_dtype_size(from), step = to.step * dm_dtype_size(to.dtype);
  for (int64_t i = 0; i < m; i++)
    dm_convert(from, x + i * row, to.dtype, to.first + i * step, columns);
}

/* ---- a block of weights ---- */

typedef struct Job {
  const dm_AttentionAttr *attr;
  const dm_Tensor *q, *k, *v, *mask; /* mask: NULL if none is given */
  const dm_Tensor *out, *lse;        /* lse (batch, L), in the compute type */
  const dm_Tensor *gy, *gq, *gk, *gv;
  int64_t L, S, E, D;
  int64_t rows, n_block; /* rows per block, blocks per batch */
  dm_DType type;         /* the compute type */
  const dm_RealLoops *loops;
  atomic_bool failed;
} Job;

/* Query rows i .. i + m - 1 of one batch and the first n keys, which are all that
   these rows see. */
typedef struct Block {
  int64_t batch, i, m, n;
} Block;

/* Block `number` of a batch; with is_causal its last row i + m - 1 sees i + m keys. */
static Block block_of(const Job *j, int64_t batch, int64_t number) {
  Block b = {.batch = batch, .i = number * j->rows, .n = j->S};
  b.m = dm_min_i64(j->rows, j->L - b.i);
  if (j->attr->is_causal) b.n = dm_min_i64(j->S, b.i + b.m);
  return b;
}

/* The number of keys that row r of the block sees. */
static int64_t keys_of(const Job *j, const Block *b, int64_t r) {
  return j->attr->is_causal ? dm_min_i64(b->n, b->i + r + 1) : b->n;
}

/* The buffers of a task, in one allocation: the block's scores, in the backward pass
   as many gradients, one row of scores, one row of the draw, sums of the block's rows
   that are rounded later, and the sums for gk (S, E) and gv (S, D). */
typedef struct Scratch {
  char *scores, *gradients, *row, *sum, *gk, *gv;
  float *draw;
} Scratch;

/* s (m, n) = rows (m, depth) keys (n, depth)^T for the block: q k^T, or gy v^T in
   the backward pass. */
static dm_status products(const Job *j, const Block *b, const dm_Tensor *rows,
                          const dm_Tensor *keys, int64_t depth, void *s) {
  return dm_gemm(b->m, b->n, depth, 1, from_row(matrix(rows, b->batch), b->i),
                 transposed(matrix(keys, b->batch)), 0, s, j->type, b->n, NULL, j->type,
                 DM_BIAS_NONE);
}

/* to (m, columns) = x (m, n) times the first n rows of t: w v, or gs k in the backward pass.
   The keys are summed in blocks of fixed bounds, so that the bits of a row do not depend on the
   number of keys after those that it sees. */
static dm_status weigh(const Job *j, const Block *b, const Scratch *scratch, const void *x,
                       const dm_Tensor *t, int64_t columns, Rows to) {
  const bool rounds = to.dtype != j->type && b->n > KEYS;
  char *sum = rounds ? scratch->sum : to.first;
  for (int64_t k = 0; k < b->n; k += KEYS) {
    dm_Mat weights = dense(x, j->type, b->n);
    weights.data = (const char *)weights.data + k * dm_dtype_size(j->type);
    DM_TRY(dm_gemm(b->m, columns, dm_min_i64(KEYS, b->n - k), 1, weights,
                   from_row(matrix(t, b->batch), k), k > 0, sum, rounds ? j->type : to.dtype,
                   rounds ? columns : to.step, NULL, j->type, DM_BIAS_NONE));
  }
  if (rounds) store_rows(j->type, sum, b->m, columns, to);
  return DM_OK;
}

/* sum (n, columns) += x^T times the block's m rows of t: w^T gy or gs^T q. */
static dm_status collect(const Job *j, const Block *b, const void *x, const dm_Tensor *t,
                         int64_t columns, void *sum) {
  return dm_gemm(b->n, columns, b->m, 1, transposed(dense(x, j->type, b->n)),
                 from_row(matrix(t, b->batch), b->i), 1, sum, j->type, columns, NULL, j->type,
                 DM_BIAS_NONE);
}

/* Draws the n dropout numbers of row r: those with index (batch, row, key) in a draw
   of (batch, L, S). */
static void draw_row(const Job *j, const Block *b, int64_t r, int64_t n, float *u) {
  dm_drop_draw(&j->attr->drop, (b->batch * j->L + b->i + r) * j->S, n, u);
}

/* Row loops for one compute type. score: turns the n products of row r into scores,
   scale s + mask, where false in a bool mask gives -inf; scratch holds S numbers.
   drop: zeroes what the draw drops and scales the rest by 1 / (1 - p).
   softmax_block: turns the block's products into weights and stores lse.
   score_gradients: computes the weights w again from products and lse, turns g (m,
   n), the gradient of the weights, into that of the products, and leaves in w the
   weights after dropout, which gv needs. */
#define ROWS(SUFFIX, TYPE)                                                                     \
  static void score_##SUFFIX(const Job *j, const Block *b, int64_t r, int64_t n, TYPE *s,      \
                             TYPE *scratch) {                                                  \
    const TYPE scale = (TYPE)j->attr->scale;                                                   \
    if (!j->mask) {                                                                            \
      for (int64_t i = 0; i < n; i++) s[i] *= scale;                                           \
      return;                                                                                  \
    }                                                                                          \
    const dm_Mat row = from_row(matrix(j->mask, b->batch), b->i + r);                          \
    dm_load_##SUFFIX(row.dtype, row.data, row.cs, n, scratch);                                 \
    if (row.dtype == DM_BOOL)                                                                  \
      for (int64_t i = 0; i < n; i++) s[i] = scratch[i] != 0 ? s[i] * scale : -(TYPE)INFINITY; \
    else                                                                                       \
      for (int64_t i = 0; i < n; i++) s[i] = s[i] * scale + scratch[i];                        \
  }                                                                                            \
  static void drop_##SUFFIX(const Job *j, const float *u, int64_t n, TYPE *x) {                \
    const float p = (float)j->attr->drop.p;                                                    \
    const TYPE keep = j->attr->drop.p < 1 ? (TYPE)(1 / (1 - j->attr->drop.p)) : 0;             \
    for (int64_t i = 0; i < n; i++) x[i] = u[i] < p ? 0 : x[i] * keep;                         \
  }                                                                                            \
  static void softmax_block_##SUFFIX(const Job *j, const Block *b, TYPE *s, TYPE *scratch,     \
                                     float *u) {                                               \
    TYPE *lse = (TYPE *)dm_tensor_data(j->lse) + b->batch * j->L + b->i;                       \
    for (int64_t r = 0; r < b->m; r++, s += b->n) {                                            \
      const int64_t n = keys_of(j, b, r);                                                      \
      score_##SUFFIX(j, b, r, n, s, scratch);                                                  \
      j->loops->attend(s, n, lse + r);                                                         \
      for (int64_t i = n; i < b->n; i++) s[i] = 0;                                             \
      if (j->attr->drop.p == 0) continue;                                                      \
      draw_row(j, b, r, n, u);                                                                 \
      drop_##SUFFIX(j, u, n, s);                                                               \
    }                                                                                          \
  }                                                                                            \
  static void score_gradients_##SUFFIX(const Job *j, const Block *b, TYPE *w, TYPE *g,         \
                                       TYPE *scratch, float *u) {                              \
    const TYPE *lse = (const TYPE *)dm_tensor_data(j->lse) + b->batch * j->L + b->i;           \
    const bool drops = j->attr->drop.p != 0;                                                   \
    for (int64_t r = 0; r < b->m; r++, w += b->n, g += b->n) {                                 \
      const int64_t n = keys_of(j, b, r);                                                      \
      score_##SUFFIX(j, b, r, n, w, scratch);                                                  \
      j->loops->attend_again(w, n, lse + r);                                                   \
      if (drops) {                                                                             \
        draw_row(j, b, r, n, u);                                                               \
        drop_##SUFFIX(j, u, n, g);                                                             \
      }                                                                                        \
      j->loops->attend_back(w, g, n, j->attr->scale);                                          \
      for (int64_t i = n; i < b->n; i++) g[i] = w[i] = 0;                                      \
      if (drops) drop_##SUFFIX(j, u, n, w);                                                    \
    }                                                                                          \
  }
ROWS(f32, float)
ROWS(f64, double)
#undef ROWS

/* ---- scratch ---- */

/* Divides the memory into buffers; rows are padded to 16 elements for aligned vectors. False
   when memory is out. */
static bool get_scratch(Job *j, bool backward, Scratch *scratch) {
  const int64_t es = dm_dtype_size(j->type), padded = (j->S + 15) / 16 * 16;
  const int64_t scores = j->rows * padded * es, row = padded * es;
  const int64_t sums = backward ? padded * (j->E + j->D) * es : 0;
  const int64_t sum = (j->rows * dm_max_i64(j->E, j->D) + 15) / 16 * 16 * es;
  char *p = dm_scratch(DM_SCRATCH_MATRIX, (backward ? 2 : 1) * scores + row +
                                              padded * (int64_t)sizeof(float) + sum + sums);
  scratch->scores = p;
  if (!p) {
    atomic_store(&j->failed, true);
    return false;
  }
  scratch->gradients = p + (backward ? scores : 0);
  scratch->row = scratch->gradients + scores;
  scratch->draw = (float *)(void *)(scratch->row + row);
  scratch->sum = (char *)(scratch->draw + padded);
  scratch->gk = scratch->sum + sum;
  scratch->gv = scratch->gk + padded * j->E * es;
  return true;
}

/* ---- forward ---- */

/* One block forward: products, softmax, product with v. */
static dm_status forward_block(const Job *j, const Block *b, const Scratch *scratch) {
  DM_TRY(products(j, b, j->q, j->k, j->E, scratch->scores));
  if (j->type == DM_F64)
    softmax_block_f64(j, b, (double *)(void *)scratch->scores, (double *)(void *)scratch->row,
                      scratch->draw);
  else
    softmax_block_f32(j, b, (float *)(void *)scratch->scores, (float *)(void *)scratch->row,
                      scratch->draw);
  return weigh(j, b, scratch, scratch->scores, j->v, j->D, out_rows(j->out, b->batch, b->i));
}

/* Thread body: task i is block i % n_block of batch i / n_block. */
static void forward_tasks(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  Scratch scratch;
  if (!get_scratch(j, false, &scratch)) return;
  for (int64_t i = begin; i < end; i++) {
    const Block b = block_of(j, i / j->n_block, i % j->n_block);
    if (forward_block(j, &b, &scratch) != DM_OK) atomic_store(&j->failed, true);
  }
  dm_scratch_trim(DM_SCRATCH_MATRIX);
}

/* Describes a call: the sizes L, S, E, D and the number of rows per block, 32 to
   128, such that the scores of a block stay in cache. */
static Job job_of(const dm_AttentionAttr *attr, dm_Tensor *const *qkv, const dm_Tensor *mask) {
  const dm_Tensor *q = qkv[0], *k = qkv[1], *v = qkv[2];
  Job j = {.attr = attr, .q = q, .k = k, .v = v, .mask = mask};
  j.L = q->shape[q->ndim - 2];
  j.E = q->shape[q->ndim - 1];
  j.S = k->shape[k->ndim - 2];
  j.D = v->shape[v->ndim - 1];
  j.rows = dm_max_i64(MIN_ROWS, dm_min_i64(MAX_ROWS, BLOCK_SCORES / dm_max_i64(1, j.S)));
  j.rows = dm_min_i64(j.rows, j.L);
  j.n_block = j.rows ? (j.L + j.rows - 1) / j.rows : 0;
  j.type = dm_compute_dtype((dm_DType)q->dtype);
  j.loops = j.type == DM_F64 ? &dm_loops()->f64 : &dm_loops()->f32;
  atomic_init(&j.failed, false);
  return j;
}

/* Runs n tasks of `rows` query rows each in parallel. */
static dm_status run(const dm_Call *c, Job *j, int64_t n, int64_t rows, dm_RangeFn *tasks) {
  const int64_t work = rows * j->S * (j->E + j->D) + 1;
  dm_parallel_for(n, dm_max_i64(1, TASK_WORK / work), tasks, j);
  return atomic_load(&j->failed) ? dm_fail(DM_EMEM, "%s: out of memory", c->op->name) : DM_OK;
}

static dm_status zeros(dm_Tensor *t) {
  if (t->numel > 0) memset(dm_tensor_data(t), 0, (size_t)dm_tensor_bytes(t));
  return DM_OK;
}

/* Makes output i, of the shape in its meta, as (N, L, H, E) in memory where `like` has that
   order. */
static dm_status follow_order(dm_Call *c, int i, const dm_Tensor *like) {
  const dm_Meta *m = &c->out_meta[i];
  dm_Tensor *t;
  if (!dm_heads_follow(like)) return DM_OK;
  const int64_t shape[4] = {m->shape[0], m->shape[2], m->shape[1], m->shape[3]};
  DM_TRY(dm_tensor_new((dm_DType)m->dtype, 4, shape, like->device, &t));
  t->shape[1] = shape[2];
  t->shape[2] = shape[1];
  t->stride[1] = shape[3];
  t->stride[2] = shape[2] * shape[3];
  c->out[i] = t;
  return DM_OK;
}

/* out: y (..., L, D) and lse (..., L) in the compute type. The CPU's gradient does
   not read y. */
dm_status attention_rule(dm_Call *c) {
  const dm_Tensor *q = c->in[0], *v = c->in[2];
  dm_out_like(c, 0, q, (dm_DType)q->dtype);
  c->out_meta[0].shape[q->ndim - 1] = v->shape[v->ndim - 1];
  dm_out_like(c, 1, q, dm_compute_dtype((dm_DType)q->dtype));
  c->out_meta[1].ndim--;
  if (q->device.type == DM_CPU) c->save &= ~(uint32_t)O0; /* the gradient does not read y */
  return follow_order(c, 0, q);
}

dm_status attention_cpu(dm_Call *c) {
  Job j = job_of(DM_ATTR(dm_AttentionAttr, c), c->in, c->n_in > 3 ? c->in[3] : NULL);
  j.out = c->out[0];
  j.lse = c->out[1];
  if (j.S == 0) return zeros(c->out[0]);
  return run(c, &j, c->out[1]->numel / dm_max_i64(1, j.L) * j.n_block, j.rows, forward_tasks);
}

/* ---- backward ---- */

/* One block backward; the formulas stand at the head of the file. */
static dm_status backward_block(const Job *j, const Block *b, const Scratch *scratch) {
  DM_TRY(products(j, b, j->q, j->k, j->E, scratch->scores));
  DM_TRY(products(j, b, j->gy, j->v, j->D, scratch->gradients));
  if (j->type == DM_F64)
    score_gradients_f64(j, b, (double *)(void *)scratch->scores,
                        (double *)(void *)scratch->gradients, (double *)(void *)scratch->row,
                        scratch->draw);
  else
    score_gradients_f32(j, b, (float *)(void *)scratch->scores,
                        (float *)(void *)scratch->gradients, (float *)(void *)scratch->row,
                        scratch->draw);
  DM_TRY(collect(j, b, scratch->scores, j->gy, j->D, scratch->gv));
  DM_TRY(collect(j, b, scratch->gradients, j->q, j->E, scratch->gk));
  return weigh(j, b, scratch, scratch->gradients, j->k, j->E, out_rows(j->gq, b->batch, b->i));
}

/* Thread body: a task is one batch, whose blocks add to gk and gv in order. */
static void backward_tasks(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  Scratch scratch;
  if (!get_scratch(j, true, &scratch)) return;
  const int64_t es = dm_dtype_size(j->type), n_k = j->S * j->E, n_v = j->S * j->D;
  for (int64_t batch = begin; batch < end; batch++) {
    memset(scratch.gk, 0, (size_t)(n_k * es));
    memset(scratch.gv, 0, (size_t)(n_v * es));
    for (int64_t i = 0; i < j->n_block; i++) {
      const Block b = block_of(j, batch, i);
      if (backward_block(j, &b, &scratch) != DM_OK) atomic_store(&j->failed, true);
    }
    store_rows(j->type, scratch.gk, j->S, j->E, out_rows(j->gk, batch, 0));
    store_rows(j->type, scratch.gv, j->S, j->D, out_rows(j->gv, batch, 0));
  }
  dm_scratch_trim(DM_SCRATCH_MATRIX);
}

/* in: gy, q, k, v, y, lse, mask, counters; out: gq, gk, gv. */
dm_status attention_backward_rule(dm_Call *c) {
  for (int i = 0; i < 3; i++) {
    dm_out_like(c, i, c->in[i + 1], (dm_DType)c->in[i + 1]->dtype);
    DM_TRY(follow_order(c, i, c->in[i + 1]));
  }
  return DM_OK;
}

dm_status attention_backward_cpu(dm_Call *c) {
  Job j = job_of(DM_ATTR(dm_AttentionAttr, c), c->in + 1, c->n_in > 6 ? c->in[6] : NULL);
  j.gy = c->in[0];
  j.lse = c->in[5];
  j.gq = c->out[0];
  j.gk = c->out[1];
  j.gv = c->out[2];
  if (j.S == 0) return zeros(c->out[0]);
  const int nd = j.q->ndim;
  return run(c, &j, dm_numel(nd - 2, j.q->shape), j.L, backward_tasks);
}

/* ---- the gradient as a composition: for create_graph and for a mask that needs a
   gradient ---- */

static dm_Tensor *x_mt(dm_X *x, dm_Tensor *t) { return x_transpose(x, t, -2, -1); }

/* softmax over the keys; a row of which all scores are -inf gives 0 instead of NaN. */
static dm_Tensor *safe_softmax(dm_X *x, dm_Tensor *s) {
  const dm_SoftmaxAttr last = {-1, DM_NO_DTYPE};
  const dm_DimsAttr rows = {{1, {-1}}, true};
  dm_Tensor *top = dm_x(x, DM_OP_amax, &rows, 1, s);
  dm_Tensor *blind = dm_x(x, DM_OP_eq, NULL, 2, top, dm_x_number(x, (double)-INFINITY));
  dm_Tensor *zero = dm_x_number(x, 0);
  dm_Tensor *w = dm_x(x, DM_OP_softmax, &last, 1, x_where(x, blind, zero, s));
  return x_where(x, blind, zero, w);
}

/* The weights (..., L, S) before dropout. */
static dm_Tensor *x_weights(dm_X *x, const dm_AttentionAttr *a, dm_Tensor *q, dm_Tensor *k,
                            dm_Tensor *mask) {
  dm_Tensor *s = x_scale(x, x_matmul(x, q, x_mt(x, k)), a->scale);
  if (a->is_causal) {
    dm_Tensor *ones = dm_x(x, DM_OP_ones_like, NULL, 1, s);
    mask = x_cast(x, dm_x(x, DM_OP_tril, NULL, 1, ones), DM_BOOL);
  }
  if (x->st != DM_OK || s->numel == 0) return s;
  if (mask && mask->dtype == DM_BOOL)
    s = x_where(x, mask, s, dm_x_number(x, (double)-INFINITY));
  else if (mask) s = x_add(x, s, x_cast(x, mask, (dm_DType)s->dtype));
  return safe_softmax(x, s);
}

/* Dropout of t with the draw of the forward pass. */
static dm_Tensor *x_drop(dm_Grad *g, dm_Tensor *w) {
  const dm_AttentionAttr *a = DM_ATTR(dm_AttentionAttr, g);
  dm_Tensor *counters = g->n_in > 4 ? g->in[4] : NULL;
  return a->drop.p == 0 ? w : dm_x(g->x, DM_OP_drop, &a->drop, counters ? 2 : 1, w, counters);
}

/* The formulas at the head of the file with whole (L, S) matrices, 16 bits in float32; the
   mask's gradient is gs without the scale. The draw is the CPU's: a device's library may have
   drawn other numbers. */
static void composed_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const dm_AttentionAttr *a = DM_ATTR(dm_AttentionAttr, g);
  if (a->drop.p != 0 && !a->own_draw && g->in[0]->device.type != DM_CPU &&
      dm_is_low((dm_DType)g->in[0]->dtype)) {
    char device[16];
    x->st = dm_fail(DM_ESTATE,
                    "attention: with dropout in 16 bits there are no second derivatives on %s; "
                    "hint: use_deterministic_algorithms(true) before the forward, or float32",
                    dm_device_name(g->in[0]->device, device));
    return;
  }
  dm_Tensor *q = dm_x_widen(x, g->in[0]), *k = dm_x_widen(x, g->in[1]);
  dm_Tensor *v = dm_x_widen(x, g->in[2]), *gy = dm_x_widen(x, g->gy[0]);
  dm_Tensor *w = x_weights(x, a, q, k, g->n_in > 3 ? g->in[3] : NULL);
  dm_Tensor *gw = x_drop(g, x_matmul(x, gy, x_mt(x, v)));
  dm_Tensor *sum = x_sum(x, x_mul(x, w, gw), (dm_Ints){1, {-1}}, true);
  dm_Tensor *gs = x_mul(x, w, x_sub(x, gw, sum));
  if (g->need[0]) g->gx[0] = x_scale(x, x_matmul(x, gs, k), a->scale);
  if (g->need[1]) g->gx[1] = x_scale(x, x_matmul(x, x_mt(x, gs), q), a->scale);
  if (g->need[2]) g->gx[2] = x_matmul(x, x_mt(x, x_drop(g, w)), gy);
  if (g->n_in > 3 && g->need[3]) g->gx[3] = gs;
}

/* One fused call, or the composition where second derivatives or the mask's gradient
   are wanted. */
void attention_grad(dm_Grad *g) {
  dm_X *x = g->x;
  const bool masked = g->n_in > 3;
  if (!g->gy[0]) return;
  if (g->create_graph || (masked && g->need[3])) {
    composed_grad(g);
    return;
  }
  dm_Tensor *in[8] = {g->gy[0], g->in[0], g->in[1], g->in[2], g->out[0], g->out[1]};
  dm_Tensor *out[DM_MAX_OUT] = {NULL};
  for (int i = 3; i < g->n_in; i++) in[3 + i] = g->in[i];
  x->st = dm_call(DM_OP_attention_backward, 3 + g->n_in, in, g->attr, out);
  for (int i = 0; i < 3; i++) g->gx[i] = dm_x_own(x, out[i]);
}

/* ---- scaled_dot_product_attention ---- */

/* q, k and v have one float dtype; the mask is bool (true: the key is seen) or a
   float that is added. */
static dm_status check_dtypes(const dm_Call *c, const dm_Tensor *mask) {
  const dm_Tensor *q = c->in[0];
  const char *const names[3] = {"query", "key", "value"};
  DM_TRY(dm_check_float(c, q, names[0]));
  for (int i = 1; i < 3; i++) {
    const char *given = dm_dtype_name((dm_DType)c->in[i]->dtype);
    if (c->in[i]->dtype != q->dtype)
      return dm_fail(DM_EARG,
                     "%s: query is %s and %s is %s: wanted one dtype; hint: x:to(\"%s\") or "
                     "autocast",
                     c->op->name, dm_dtype_name((dm_DType)q->dtype), names[i], given, given);
  }
  if (mask && mask->dtype != DM_BOOL && !dm_is_float((dm_DType)mask->dtype))
    return dm_fail(DM_EARG,
                   "%s: attn_mask is %s, wanted bool (true: is seen) or a float dtype (is "
                   "added)",
                   c->op->name, dm_dtype_name((dm_DType)mask->dtype));
  return DM_OK;
}

static dm_status check_sizes(const dm_Call *c) {
  const dm_Tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
  const bool ranks = q->ndim >= 2 && k->ndim == q->ndim && v->ndim == q->ndim;
  if (ranks && q->shape[q->ndim - 1] == k->shape[q->ndim - 1] &&
      k->shape[q->ndim - 2] == v->shape[q->ndim - 2])
    return DM_OK;
  return dm_fail(DM_EARG,
                 "%s: query %s, key %s, value %s: wanted {..., L, E}, {..., S, E}, {..., S, D}",
                 c->op->name, DM_SHAPE(q), DM_SHAPE(k), DM_SHAPE(v));
}

/* The batch dims that q, k and v broadcast to. With enable_gqa (grouped-query
   attention, Ainslie et al. 2023) k and v have fewer heads, in the third dim from
   the end: `groups` heads of q share one head of k and v. */
typedef struct Batch {
  int n;
  int64_t shape[DM_MAX_DIM], groups;
} Batch;

/* Computes the broadcast batch dims; fails with a message that names the dim that
   does not fit. */
static dm_status batch_of(const dm_Call *c, bool gqa, Batch *b) {
  const dm_Tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
  *b = (Batch){.n = q->ndim - 2, .groups = 1};
  if (gqa && (b->n < 1 || q->ndim == DM_MAX_DIM))
    return dm_fail(DM_EARG, "%s: query %s: enable_gqa wants 3 to %d dims", c->op->name,
                   DM_SHAPE(q), DM_MAX_DIM - 1);
  for (int d = 0; d < b->n; d++) {
    int64_t size = q->shape[d];
    const int64_t sk = k->shape[d], sv = v->shape[d];
    if (gqa && d == b->n - 1 && sk == sv && sk > 0 && size % sk == 0) {
      b->groups = size / sk;
      size = sk;
    }
    if (size == 1) size = sk == 1 ? sv : sk;
    if ((q->shape[d] != 1 && size * b->groups != q->shape[d]) || (sk != 1 && sk != size) ||
        (sv != 1 && sv != size))
      return dm_fail(DM_EARG, "%s: query %s, key %s, value %s: dim %d does not broadcast%s",
                     c->op->name, DM_SHAPE(q), DM_SHAPE(k), DM_SHAPE(v), d + c->base,
                     gqa ? ", nor are query's heads a multiple of the others'"
                         : "; hint: enable_gqa shares heads of key and value");
    b->shape[d] = size;
  }
  return DM_OK;
}

/* t (..., heads * groups, m, n) reshaped to (..., heads, groups, m, n). */
static dm_Tensor *cut_heads(dm_X *x, const Batch *b, dm_Tensor *t) {
  int64_t shape[DM_MAX_DIM + 1];
  if (x->st != DM_OK) return NULL;
  memcpy(shape, t->shape, sizeof t->shape);
  memmove(shape + b->n + 1, shape + b->n, 2 * sizeof *shape);
  shape[b->n - 1] = b->shape[b->n - 1];
  shape[b->n] = b->groups;
  return x_reshape(x, t, b->n + 3, shape);
}

/* q, k or v broadcast to the batch dims. With groups there is one more dim: q's
   heads are split into it, and k and v are broadcast along it. */
static dm_Tensor *spread(dm_X *x, const Batch *b, dm_Tensor *t, bool is_query) {
  int64_t shape[DM_MAX_DIM + 1];
  int nd = b->n;
  memcpy(shape, b->shape, sizeof b->shape);
  if (b->groups > 1) {
    const int64_t dim = b->n;
    t = is_query ? cut_heads(x, b, t) : dm_x(x, DM_OP_unsqueeze, &dim, 1, t);
    shape[nd++] = b->groups;
  }
  if (x->st != DM_OK) return NULL;
  for (int i = 0; i < 2; i++) shape[nd + i] = t->shape[nd + i];
  return x_expand(x, t, nd + 2, shape);
}

/* The mask broadcast to the shape of the scores, batch dims and (L, S); NULL stays
   NULL. */
static dm_Tensor *spread_mask(dm_X *x, const Batch *b, dm_Tensor *mask, int64_t L, int64_t S) {
  int64_t shape[DM_MAX_DIM];
  if (!mask) return NULL;
  memcpy(shape, b->shape, sizeof shape);
  if (b->groups > 1) shape[b->n - 1] *= b->groups;
  shape[b->n] = L;
  shape[b->n + 1] = S;
  mask = x_expand(x, mask, b->n + 2, shape);
  return b->groups > 1 ? cut_heads(x, b, mask) : mask;
}

/* dropout_p is a probability, and attn_mask and is_causal exclude each other, as in
   PyTorch. */
static dm_status check_options(const dm_Call *c, const dm_Tensor *mask) {
  const dm_SdpaAttr *a = DM_ATTR(dm_SdpaAttr, c);
  if (!(a->dropout_p >= 0 && a->dropout_p <= 1))
    return dm_fail(DM_EARG, "%s: dropout_p = %g given, wanted 0 to 1", c->op->name,
                   a->dropout_p);
  if (a->is_causal && mask)
    return dm_fail(DM_EARG,
                   "%s: attn_mask and is_causal given, wanted one of them; hint: "
                   "mask:tril() is causal too",
                   c->op->name);
  return DM_OK;
}

/* Query, key and value with as many dims, new ones of size 1 in front. */
static dm_status even_ranks(dm_X *x, int n, dm_Tensor **in) {
  int most = 0;
  for (int i = 0; i < n; i++) most = in[i]->ndim > most ? in[i]->ndim : most;
  for (int i = 0; i < n; i++) {
    int64_t shape[DM_MAX_DIM];
    const int lead = most - in[i]->ndim;
    if (lead == 0) continue;
    for (int d = 0; d < most; d++) shape[d] = d < lead ? 1 : in[i]->shape[d - lead];
    in[i] = x_reshape(x, in[i], most, shape);
    DM_TRY(x->st);
  }
  return DM_OK;
}

dm_status scaled_dot_product_attention_compose(dm_Call *given, dm_X *x) {
  dm_Call own = *given, *c = &own;
  dm_Tensor *in[3] = {given->in[0], given->in[1], given->in[2]};
  DM_TRY(even_ranks(x, 3, in));
  own.in = in;
  const dm_SdpaAttr *a = DM_ATTR(dm_SdpaAttr, c);
  dm_Tensor *q = in[0], *mask = given->n_in > 3 ? given->in[3] : NULL;
  Batch b;
  DM_TRY(check_dtypes(c, mask));
  DM_TRY(check_sizes(c));
  DM_TRY(check_options(c, mask));
  DM_TRY(batch_of(c, a->enable_gqa, &b));
  const int64_t L = q->shape[q->ndim - 2], E = q->shape[q->ndim - 1];
  const int64_t S = c->in[1]->shape[q->ndim - 2];
  const dm_DType type = dm_compute_dtype((dm_DType)q->dtype);
  dm_AttentionAttr attr = {.is_causal = a->is_causal};
  attr.scale = a->scale.set ? a->scale.v : 1 / sqrt((double)E);
  attr.own_draw = dm_thread_state()->deterministic || (mask && dm_tensor_requires_grad(mask));
  dm_Tensor *counters = NULL;
  if (a->dropout_p > 0)
    counters = dm_x_drop_draw(x, a->dropout_p, dm_numel(b.n, b.shape) * b.groups * L * S,
                              q->device, &attr.drop);
  q = spread(x, &b, q, true);
  dm_Tensor *k = spread(x, &b, c->in[1], false), *v = spread(x, &b, c->in[2], false), *y;
  if (mask && mask->dtype == DM_F64) mask = x_cast(x, mask, type);
  mask = spread_mask(x, &b, mask, L, S);
  if (x->st != DM_OK) return x->st;
  y = dm_x(x, DM_OP_attention, &attr, counters ? 5 : mask ? 4 : 3, q, k, v, mask, counters);
  if (b.groups > 1) {
    int64_t shape[DM_MAX_DIM];
    memcpy(shape, b.shape, sizeof shape);
    shape[b.n - 1] *= b.groups;
    shape[b.n] = L;
    shape[b.n + 1] = c->in[2]->shape[c->in[2]->ndim - 1];
    y = x_reshape(x, y, b.n + 2, shape);
  }
  given->out[0] = y;
  return x->st;
}
