/* The walk of a pointwise kernel over its operands, and the short hands of compositions.

   Operands of any strides and dtypes, broadcast together, are cut three times. The iterator
   (core/iter.h) merges dims and splits the elements among threads, at fixed indices, so that
   results do not depend on their number. It hands out runs along the last dim. A run is cut
   into blocks of DM_BLOCK elements: at most five buffers of float64 are 20 KiB, which stays in
   the first-level cache. In a block each operand is widened to the compute type (float32 for
   16 bits, int64 for integers) unless its elements are dense in that type already; then one
   call of the formula's loop does the arithmetic on dense arrays, which the compiler
   vectorizes; then the result is rounded once into the output's dtype. An output may be one
   of the inputs: a block is read before it is written. A run whose operands need no buffer is
   one block, however long, and so is one of a brief formula (cpu/loops/brief.inc), which widens
   and rounds by itself.

   An operand that lies across the runs, as a transposed matrix does, would be read a cache line
   for each element: tiles of it are transposed into a buffer first. Where the runs are short,
   as those of (N, 1) and (1, 8) are, a block is made of some of them: operands that are not
   dense there, the repeated ones above all, are written out into buffers. */
#include "op/pointwise/pointwise.h"

#include "base/half.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

/* A call in progress: operands, output first, their dtypes, and the loops of the
   formula. */
typedef struct Job {
  dm_Iter it;
  const dm_Pointwise *fn;
  const double *param;
  const dm_Truth *truth; /* what fn does to bools, where all operands are */
  dm_RunFn *run;         /* in the compute type */
  int n_in;
  uint8_t dtype[DM_ITER_OPERANDS];
} Job;

/* Bools are moved as bytes; strides are in elements. */
static void dm_load_b8(dm_DType from, const void *src, int64_t stride, int64_t n,
                       uint8_t *dst) {
  const uint8_t *p = src;
  DM_UNUSED(from);
  for (int64_t i = 0; i < n; i++) dst[i] = p[i * stride];
}
static void dm_store_b8(dm_DType to, void *dst, int64_t stride, int64_t n, const uint8_t *src) {
  uint8_t *p = dst;
  DM_UNUSED(to);
  for (int64_t i = 0; i < n; i++) p[i * stride] = src[i];
}

/* And so are the bits of 16-bit floats, by the loops that compute with them. */
static void dm_load_b16(dm_DType from, const void *src, int64_t stride, int64_t n,
                        uint16_t *dst) {
  const uint16_t *p = src;
  DM_UNUSED(from);
  for (int64_t i = 0; i < n; i++) dst[i] = p[i * stride];
}
static void dm_store_b16(dm_DType to, void *dst, int64_t stride, int64_t n,
                         const uint16_t *src) {
  uint16_t *p = dst;
  DM_UNUSED(to);
  for (int64_t i = 0; i < n; i++) p[i * stride] = src[i];
}

/* ---- brief formulas ---- */

/* The loop of a brief formula whose operands have this dtype, but for those in `numbers`, bits
   from the first operand on; NULL: there is none. */
static dm_BlockBrief *brief_loop(const dm_Pointwise *fn, dm_DType d, int n_in,
                                 unsigned numbers) {
  if (!fn->brief) return NULL;
  const int type = d == DM_F32    ? DM_BRIEF_F32
                   : d == DM_F16  ? DM_BRIEF_F16
                   : d == DM_BF16 ? DM_BRIEF_BF16
                                  : -1;
  const int form = numbers == 0                                   ? DM_DENSE
                   : numbers == 1u << (n_in - 1) && n_in > 1      ? DM_NUMBER_LAST
                   : numbers == (n_in == 2 ? 1u : 6u) && n_in > 1 ? DM_NUMBER_OTHER
                   : numbers == 1 && n_in == 3                    ? DM_NUMBER_FIRST
                                                                  : -1;
  return type < 0 || form < 0 ? NULL : fn->brief->loop[form][type];
}

/* n elements of `size` bytes; those that fill no step of the loop are computed in a copy. */
static void run_steps(dm_BlockBrief *loop, int n_in, const char *const *in, const float *number,
                      char *out, int64_t n, int size, const double *param) {
  const int64_t whole = n - n % DM_BRIEF_STEP, rest = (n - whole) * size, at = whole * size;
  char copy[4][DM_BRIEF_STEP * sizeof(float)];
  const char *last[3];
  if (whole > 0) loop(in, number, out, whole, param);
  if (rest == 0) return;
  memset(copy, 0, sizeof copy);
  for (int i = 0; i < 3; i++) {
    if (i < n_in && in[i]) memcpy(copy[i], in[i] + at, (size_t)rest);
    last[i] = copy[i];
  }
  loop(last, number, copy[3], DM_BRIEF_STEP, param);
  memcpy(out + at, copy[3], (size_t)rest);
}

/* n elements by the loop of a brief formula, where all operands have the output's dtype and are
   dense, or are numbers. False: there is none, or they are not, and nothing is done. */
static bool run_brief(const Job *j, char *const *ptr, const int64_t *stride, int64_t n) {
  unsigned numbers = 0;
  if (stride[0] != 1 || j->n_in > 3) return false;
  for (int i = 0; i < j->n_in; i++) {
    if (stride[i + 1] == 0) numbers |= 1u << i;
    else if (j->dtype[i + 1] != j->dtype[0] || stride[i + 1] != 1) return false;
  }
  dm_BlockBrief *const loop = brief_loop(j->fn, (dm_DType)j->dtype[0], j->n_in, numbers);
  if (!loop) return false;
  const char *in[3] = {NULL, NULL, NULL};
  float number[3] = {0, 0, 0};
  for (int i = 0; i < j->n_in; i++) {
    if (!(numbers >> i & 1)) in[i] = ptr[i + 1];
    else dm_load_f32((dm_DType)j->dtype[i + 1], ptr[i + 1], 1, 1, &number[i]);
    if (number[i] != number[i]) number[i] = (float)NAN;
  }
  run_steps(loop, j->n_in, in, number, ptr[0], n, j->it.size[0], j->param);
  return true;
}
#define BRIEF_f32(J, PTR, STRIDE, N) run_brief(J, PTR, STRIDE, N)
#define BRIEF_f64(...) false
#define BRIEF_i64(...) false
#define BRIEF_b8(...) false
#define BRIEF_b16(...) false

/* One run in one compute type. A dense operand that already has the type is used without a
   copy; one that is broadcast along the run (stride 0) is widened once, in the first block. */
#define RUN(SUFFIX, TYPE, DTYPE, COMPUTE)                                                   \
  static void run_##SUFFIX(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) { \
    const Job *j = ctx;                                                                     \
    if (BRIEF_##SUFFIX(j, ptr, stride, n)) return;                                          \
    TYPE buf[DM_POINT_IN + 1][DM_BLOCK];                                                    \
    const TYPE *in[DM_POINT_IN];                                                            \
    const bool direct = j->dtype[0] == DTYPE && stride[0] == 1;                             \
    bool dense = direct;                                                                    \
    for (int i = 1; i <= j->n_in; i++) dense &= j->dtype[i] == DTYPE && stride[i] == 1;     \
    const int64_t most = dense ? n : DM_BLOCK;                                              \
    for (int64_t at = 0; at < n; at += most) {                                              \
      const int64_t m = dm_min_i64(most, n - at);                                           \
      for (int i = 0; i < j->n_in; i++) {                                                   \
        const int64_t s = stride[i + 1];                                                    \
        const char *p = ptr[i + 1] + at * s * j->it.size[i + 1];                            \
        if (j->dtype[i + 1] == DTYPE && s == 1) {                                           \
          in[i] = (const TYPE *)(const void *)p;                                            \
        } else {                                                                            \
          if (at == 0 || s != 0)                                                            \
            dm_load_##SUFFIX((dm_DType)j->dtype[i + 1], p, s, s == 0 ? 1 : m, buf[i]);      \
          if (at == 0 && s == 0)                                                            \
            dm_loops()->move[dm_move_of(sizeof(TYPE))](buf[i], 1, buf[i], 0, m);            \
          in[i] = buf[i];                                                                   \
        }                                                                                   \
      }                                                                                     \
      char *q = ptr[0] + at * stride[0] * j->it.size[0];                                    \
      TYPE *out = direct ? (TYPE *)(void *)q : buf[DM_POINT_IN];                            \
      COMPUTE;                                                                              \
      if (!direct) dm_store_##SUFFIX((dm_DType)j->dtype[0], q, stride[0], m, out);          \
    }                                                                                       \
  }
RUN(f32, float, DM_F32, j->fn->f32(in, out, m, j->param))
RUN(f64, double, DM_F64, j->fn->f64(in, out, m, j->param))
RUN(i64, int64_t, DM_I64, j->fn->i64(in, out, m, j->param))
RUN(b8, uint8_t, DM_BOOL, dm_loops()->truth(in, out, m, j->truth))
RUN(b16, uint16_t, j->dtype[j->n_in], j->fn->b16(in, out, m, j->param)) /* all have one dtype */
#undef RUN

/* Elements [begin, end) of a job. */
static void range_runs(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  dm_iter_range(&j->it, begin, end, j->run, ctx);
}

/* ---- operands that lie across ---- */

enum {
  LINE = 64,           /* bytes of a cache line, of which a tile reads all */
  TILE = 256,          /* columns of a tile */
  TILE_LEAST = 4,      /* the shortest dims, and */
  TILE_ELEMENTS = 4096 /* fewest elements, that pay for it: few stay in the first-level cache */
};

/* A call in tiles of `rows` positions of `dim`, in which the operands `across` are contiguous,
   and TILE of the last dim, in which they are not. */
typedef struct Tiles {
  Job *j;
  int dim;
  int64_t rows, n_down, n_along; /* tiles along dim, along the last dim */
  bool across[DM_ITER_OPERANDS];
} Tiles;

/* The tile of an iterator at these positions of dim and of the last dim; `rest` numbers the
   positions of the others. */
static dm_Iter tile_at(const Tiles *t, int64_t down, int64_t along, int64_t rest) {
  const dm_Iter *const it = &t->j->it;
  const int last = it->ndim - 1;
  dm_Iter tile = {.n_op = it->n_op, .ndim = 2};
  tile.shape[0] = dm_min_i64(t->rows, it->shape[t->dim] - down);
  tile.shape[1] = dm_min_i64(TILE, it->shape[last] - along);
  tile.numel = tile.shape[0] * tile.shape[1];
  for (int i = 0; i < it->n_op; i++) {
    const int64_t *const stride = it->stride[i];
    int64_t off = down * stride[t->dim] + along * stride[last], left = rest;
    for (int d = 0; d < last; d++) {
      if (d == t->dim) continue;
      off += left % it->shape[d] * stride[d];
      left /= it->shape[d];
    }
    tile.size[i] = it->size[i];
    tile.data[i] = it->data[i] + off * it->size[i];
    tile.stride[i][0] = stride[t->dim];
    tile.stride[i][1] = stride[last];
  }
  return tile;
}

/* Operands that lie across are transposed, each into a buffer, and take part from there. */
static void range_tiles(void *ctx, int64_t begin, int64_t end) {
  const Tiles *t = ctx;
  _Alignas(LINE) char buffer[DM_POINT_IN][LINE * TILE];
  for (int64_t u = begin; u < end; u++) {
    const int64_t down = u % t->n_down * t->rows, rest = u / t->n_down;
    dm_Iter tile = tile_at(t, down, rest % t->n_along * TILE, rest / t->n_along);
    for (int i = 1; i < tile.n_op; i++) {
      if (!t->across[i]) continue;
      char *const to = buffer[i - 1];
      dm_transpose(tile.size[i], tile.data[i], tile.stride[i][1], tile.shape[0], tile.shape[1],
                   to, TILE);
      tile.data[i] = to;
      tile.stride[i][0] = TILE;
      tile.stride[i][1] = 1;
    }
    dm_iter_range(&tile, 0, tile.numel, t->j->run, t->j);
  }
}

/* Whether operand i is contiguous in dim d, and not along the runs. */
static bool lies_across(const dm_Iter *it, int i, int d) {
  const int64_t along = it->stride[i][it->ndim - 1];
  return it->stride[i][d] == 1 && along != 1 && along != 0;
}

/* The first dim, but for the last, in which an operand lies across; -1: none. */
static int dim_across(const dm_Iter *it) {
  for (int d = 0; d < it->ndim - 1; d++)
    for (int i = 1; i < it->n_op && it->shape[d] >= TILE_LEAST; i++)
      if (lies_across(it, i, d)) return d;
  return -1;
}

/* Runs a call in tiles where that pays; false: it has done nothing. */
static bool try_tiles(Job *j) {
  const dm_Iter *const it = &j->it;
  const int64_t width = it->shape[it->ndim - 1];
  if (it->numel < TILE_ELEMENTS || width < TILE_LEAST) return false;
  Tiles t = {.j = j, .dim = dim_across(it), .rows = DM_SQUARE};
  if (t.dim < 0) return false;
  for (int i = 1; i < it->n_op; i++) {
    t.across[i] = lies_across(it, i, t.dim);
    if (t.across[i]) t.rows = dm_min_i64(t.rows, LINE / it->size[i]);
  }
  t.n_down = (it->shape[t.dim] + t.rows - 1) / t.rows;
  t.n_along = (width + TILE - 1) / TILE;
  const int64_t others = it->numel / it->shape[t.dim] / width;
  dm_parallel_for(t.n_down * t.n_along * others,
                  dm_max_i64(1, DM_POINT_GRAIN / (t.rows * dm_min_i64(TILE, width))),
                  range_tiles, &t);
  return true;
}

/* ---- short runs ---- */

enum { SHORT_RUN = 32 }; /* elements of the longest run that blocks are made of */

/* A call in blocks of `rows` positions of `dim` and all of the later dims, at most DM_BLOCK
   elements, in which the output is dense. */
typedef struct Blocks {
  Job *j;
  int dim;
  int64_t rows, inner, n_down;      /* inner: elements of a position of dim */
  int64_t stride[DM_ITER_OPERANDS]; /* in a block: 1, or 0 of one number */
  bool lies[DM_ITER_OPERANDS];      /* so in memory */
} Blocks;

/* Writes operand i's elements of `rows` positions of dim and all later ones one behind the
   other. */
static char *write_out(const dm_Iter *it, int i, int dim, int64_t rows, const char *from,
                       char *to) {
  const int last = it->ndim - 1, size = it->size[i];
  const int64_t *const stride = it->stride[i];
  if (dim < last - 1) {
    for (int64_t r = 0; r < rows; r++)
      to = write_out(it, i, dim + 1, it->shape[dim + 1], from + r * stride[dim] * size, to);
    return to;
  }
  dm_loops()->spread[dm_move_of(size)](to, from, stride[dim], rows, stride[last],
                                       it->shape[last]);
  return to + rows * it->shape[last] * size;
}

/* A buffer serves the next block too where the operand lies as before, as a row of weights does
   that every position repeats. */
static void range_blocks(void *ctx, int64_t begin, int64_t end) {
  const Blocks *b = ctx;
  const dm_Iter *const it = &b->j->it;
  _Alignas(LINE) char buffer[DM_POINT_IN][DM_BLOCK * sizeof(int64_t)];
  const char *kept[DM_ITER_OPERANDS] = {NULL};
  int64_t kept_rows = 0;
  for (int64_t u = begin; u < end; u++) {
    const int64_t down = u % b->n_down * b->rows;
    const int64_t rows = dm_min_i64(b->rows, it->shape[b->dim] - down);
    char *ptr[DM_ITER_OPERANDS];
    for (int i = 0; i < it->n_op; i++) {
      int64_t off = down * it->stride[i][b->dim], rest = u / b->n_down;
      for (int d = b->dim - 1; d >= 0; d--) {
        off += rest % it->shape[d] * it->stride[i][d];
        rest /= it->shape[d];
      }
      ptr[i] = it->data[i] + off * it->size[i];
      if (b->lies[i]) continue;
      if (kept[i] != ptr[i] || kept_rows < rows)
        write_out(it, i, b->dim, rows, ptr[i], buffer[i - 1]);
      kept[i] = ptr[i];
      ptr[i] = buffer[i - 1];
    }
    kept_rows = rows;
    b->j->run(b->j, ptr, b->stride, rows * b->inner);
  }
}

/* Whether the elements of operand i in dim and those after it are `step` apart, in their order:
   dense, or with 0 a single one. */
static bool lies_by(const dm_Iter *it, int i, int dim, int64_t step) {
  for (int d = it->ndim - 1; d >= dim; step *= it->shape[d--])
    if (it->stride[i][d] != step) return false;
  return true;
}

/* Runs a call in blocks where its runs are short; false: it has done nothing. */
static bool try_blocks(Job *j) {
  const dm_Iter *const it = &j->it;
  Blocks b = {.j = j, .dim = it->ndim - 1, .inner = 1};
  if (it->ndim < 2 || it->shape[b.dim] > SHORT_RUN) return false;
  while (b.dim > 0 && b.inner * it->shape[b.dim] <= DM_BLOCK) b.inner *= it->shape[b.dim--];
  if (!lies_by(it, 0, b.dim, 1)) return false;
  for (int i = 0; i < it->n_op; i++) {
    b.stride[i] = !lies_by(it, i, b.dim, 0);
    b.lies[i] = lies_by(it, i, b.dim, b.stride[i]);
  }
  /* as many blocks as are needed, of about one size */
  const int64_t down = it->shape[b.dim], most = DM_BLOCK / b.inner;
  b.n_down = (down + most - 1) / most;
  b.rows = (down + b.n_down - 1) / b.n_down;
  const int64_t others = it->numel / down / b.inner;
  dm_parallel_for(b.n_down * others, dm_max_i64(1, DM_POINT_GRAIN / (b.rows * b.inner)),
                  range_blocks, &b);
  return true;
}

/* Few dense elements of one shape are one block, without an iterator: computed in place if
   they have the compute type, and otherwise, of 16 bits, widened and rounded in one run. Most
   calls of a small net are this. */
static bool is_one_block(const dm_Tensor *out, int n_in, dm_Tensor *const *in, dm_DType type) {
  if (out->numel > DM_BLOCK || out->dtype != type || !dm_tensor_is_contiguous(out))
    return false;
  for (int i = 0; i < n_in; i++)
    if (in[i]->dtype != type || in[i]->numel != out->numel || !dm_tensor_is_contiguous(in[i]))
      return false;
  return true;
}

/* The same for float16 and bfloat16, mixed or not, which compute in float32. */
static bool is_low_block(const dm_Tensor *out, int n_in, dm_Tensor *const *in) {
  if (out->numel > DM_BLOCK || !dm_is_low(out->dtype) || !dm_tensor_is_contiguous(out))
    return false;
  for (int i = 0; i < n_in; i++)
    if (!dm_is_low(in[i]->dtype) || in[i]->numel != out->numel ||
        !dm_tensor_is_contiguous(in[i]))
      return false;
  return true;
}

/* Whether all are 16-bit floats of one dtype, and fn computes with their bits. */
static bool is_b16(const dm_Tensor *out, int n_in, dm_Tensor *const *in,
                   const dm_Pointwise *fn) {
  if (!fn->b16 || !dm_is_low(out->dtype) || dm_dtype_size((dm_DType)out->dtype) != 2)
    return false;
  for (int i = 0; i < n_in; i++)
    if (in[i]->dtype != out->dtype) return false;
  return true;
}

/* By the loop of a brief formula, where all are of one dtype; false: nothing is done. */
static bool block_brief(dm_Tensor *out, int n_in, dm_Tensor *const *in, const dm_Pointwise *fn,
                        const double *param) {
  dm_BlockBrief *const loop = brief_loop(fn, (dm_DType)out->dtype, n_in, 0);
  const char *x[3] = {NULL, NULL, NULL};
  const float none[3] = {0, 0, 0};
  if (!loop) return false;
  for (int i = 0; i < n_in; i++) {
    if (in[i]->dtype != out->dtype) return false;
    x[i] = dm_elements(in[i]);
  }
  run_steps(loop, n_in, x, none, dm_elements(out), out->numel,
            (int)dm_dtype_size((dm_DType)out->dtype), param);
  return true;
}

/* Widened on the stack, computed, and rounded once. */
static void block_low(dm_Tensor *out, int n_in, dm_Tensor *const *in, const dm_Pointwise *fn,
                      const double *param) {
  if (block_brief(out, n_in, in, fn, param)) return;
  float buffer[DM_POINT_IN + 1][DM_BLOCK], *const y = buffer[DM_POINT_IN];
  const float *x[DM_POINT_IN];
  for (int i = 0; i < n_in; i++) {
    dm_load_f32(in[i]->dtype, dm_tensor_data(in[i]), 1, out->numel, buffer[i]);
    x[i] = buffer[i];
  }
  fn->f32(x, y, out->numel, param);
  dm_store_f32(out->dtype, dm_tensor_data(out), 1, out->numel, y);
}

/* All operands have the compute type: the loop runs on their own memory. */
static void one_block(dm_Tensor *out, int n_in, dm_Tensor *const *in, dm_DType type,
                      const dm_Pointwise *fn, const double *param) {
  const void *p[DM_POINT_IN];
  void *q = dm_elements(out);
  for (int i = 0; i < n_in; i++) p[i] = dm_elements(in[i]);
  if (type == DM_F32) fn->f32((const float *const *)(const void *)p, q, out->numel, param);
  else if (type == DM_F64)
    fn->f64((const double *const *)(const void *)p, q, out->numel, param);
  else if (dm_is_low(type))
    fn->b16((const uint16_t *const *)(const void *)p, q, out->numel, param);
  else fn->i64((const int64_t *const *)(const void *)p, q, out->numel, param);
}

/* Operands of any strides and dtypes, converted where they are not the dtype of the formula. A
   function apart, so that the common path needs no guard of this frame's arrays. */
static __attribute__((noinline)) void strided(dm_Tensor *out, int n_in, dm_Tensor *const *in,
                                              dm_RunFn *run, const dm_Pointwise *fn,
                                              const double *param, const dm_Truth *truth) {
  Job j = {.fn = fn, .param = param, .truth = truth, .n_in = n_in};
  dm_Tensor *all[DM_POINT_IN + 1] = {out};
  for (int i = 0; i < n_in; i++) all[i + 1] = in[i];
  for (int i = 0; i <= n_in; i++) j.dtype[i] = all[i]->dtype;
  dm_iter_init_by_memory(&j.it, n_in + 1, all);
  j.run = run;
  if (!try_tiles(&j) && !try_blocks(&j))
    dm_parallel_for(out->numel, DM_POINT_GRAIN, range_runs, &j);
}

/* Small calls skip the iterator and the threads; see the head for the others. */
dm_status dm_pointwise(dm_Tensor *out, int n_in, dm_Tensor *const *in, dm_DType compute,
                       const dm_Pointwise *fn, const double *param) {
  if (out->numel == 0) return DM_OK;
  const bool bits = is_b16(out, n_in, in, fn);
  const dm_DType type = bits ? (dm_DType)out->dtype : dm_compute_dtype(compute);
  if (is_one_block(out, n_in, in, type)) {
    one_block(out, n_in, in, type, fn, param);
    return DM_OK;
  }
  if (type == DM_F32 && is_low_block(out, n_in, in)) {
    block_low(out, n_in, in, fn, param);
    return DM_OK;
  }
  strided(out, n_in, in,
          bits             ? run_b16
          : type == DM_F32 ? run_f32
          : type == DM_F64 ? run_f64
                           : run_i64,
          fn, param, NULL);
  return DM_OK;
}

/* What a formula does to bools: its integer form, tried with each pair of them. */
static dm_Truth truth_of(const dm_Pointwise *fn, const double *param) {
  const int64_t a[4] = {0, 0, 1, 1}, b[4] = {0, 1, 0, 1}, *const in[2] = {a, b};
  int64_t y[4];
  fn->i64(in, y, 4, param);
  const bool none = y[0] != 0, right = y[1] != 0, left = y[2] != 0, both = y[3] != 0;
  return (dm_Truth){none, none ^ left, none ^ right, none ^ left ^ right ^ both};
}

void dm_pointwise_bools(dm_Tensor *out, dm_Tensor *a, dm_Tensor *b, const dm_Pointwise *fn,
                        const double *param) {
  dm_Tensor *const in[2] = {a, b};
  const dm_Truth truth = truth_of(fn, param);
  if (out->numel == 0) return;
  if (!is_one_block(out, 2, in, DM_BOOL)) {
    strided(out, 2, in, run_b8, NULL, NULL, &truth);
    return;
  }
  const uint8_t *const p[2] = {dm_tensor_data(a), dm_tensor_data(b)};
  dm_loops()->truth(p, dm_tensor_data(out), out->numel, &truth);
}

bool dm_is_number(dm_Tensor *t, double *v) {
  if (!(t->flags & DM_T_NUMBER)) return false;
  dm_load_f64(t->dtype, dm_tensor_data(t), 1, 1, v);
  return true;
}

/* ---- short hands of compositions; they do nothing after a step that failed ---- */

/* a + b, a - b, a b and a / b with broadcasting and promotion of dtypes. */
dm_Tensor *x_add(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_add, NULL, 2, a, b);
}
dm_Tensor *x_sub(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_sub, NULL, 2, a, b);
}
dm_Tensor *x_mul(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_mul, NULL, 2, a, b);
}
dm_Tensor *x_div(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_div, NULL, 2, a, b);
}

/* s a and a + s: a number takes a's dtype, so float16 stays float16. */
dm_Tensor *x_scale(dm_X *x, dm_Tensor *a, double s) { return x_mul(x, a, dm_x_number(x, s)); }
dm_Tensor *x_shift(dm_X *x, dm_Tensor *a, double s) { return x_add(x, a, dm_x_number(x, s)); }
dm_Tensor *x_unary(dm_X *x, int op, dm_Tensor *a) { return dm_x(x, op, NULL, 1, a); }

/* a in another dtype; a itself where it has that dtype. */
dm_Tensor *x_cast(dm_X *x, dm_Tensor *a, dm_DType to) {
  const int64_t dtype = to;
  if (x->st != DM_OK || a->dtype == to) return a;
  return dm_x(x, DM_OP_cast, &dtype, 1, a);
}

dm_Tensor *x_partial(dm_X *x, int formula, double p, dm_Tensor *gy, dm_Tensor *a,
                     dm_Tensor *b) {
  const dm_TripleBackwardAttr attr = {formula, p, false};
  return dm_x(x, DM_OP_triple_backward, &attr, b ? 3 : 2, gy, a, b);
}

bool dm_was_broadcast(const dm_Grad *g, int i) {
  const dm_Meta *m = dm_in_meta(g, i);
  return dm_numel(m->ndim, m->shape) < g->gy[0]->numel;
}

dm_Tensor *x_partial_for(dm_Grad *g, int i, int formula, double p, dm_Tensor *a, dm_Tensor *b) {
  dm_X *x = g->x;
  dm_Tensor *gy = g->gy[0];
  const dm_Meta *m = dm_in_meta(g, i);
  const int n = b ? 3 : 2;
  if (x->st != DM_OK || !dm_was_broadcast(g, i)) return x_partial(x, formula, p, gy, a, b);
  if (dm_compute_dtype((dm_DType)gy->dtype) == DM_F32 &&
      dm_op_has_kernel(DM_OP_triple_backward_sums, gy->device)) {
    dm_TripleBackwardSumsAttr attr = {formula, p, {m->ndim, {0}}};
    for (int d = 0; d < m->ndim; d++) attr.size.v[d] = m->shape[d];
    return dm_x(x, DM_OP_triple_backward_sums, &attr, n, gy, a, b);
  }
  const dm_TripleBackwardAttr attr = {formula, p, true};
  return dm_x(x, DM_OP_triple_backward, &attr, n, gy, a, b);
}

/* A mask, or another tensor, in t's dtype, so that it can be multiplied. */
dm_Tensor *x_like(dm_X *x, dm_Tensor *mask, dm_Tensor *t) {
  return x->st == DM_OK ? x_cast(x, mask, (dm_DType)t->dtype) : NULL;
}

dm_Tensor *x_where(dm_X *x, dm_Tensor *mask, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_where, NULL, 3, mask, a, b);
}

dm_Tensor *x_test(dm_X *x, int op, dm_Tensor *a, double v) {
  return dm_x(x, op, NULL, 2, a, dm_x_number(x, v));
}

/* An integer number, which promotes no integer tensor to float. */
dm_Tensor *x_whole(dm_X *x, int64_t v) {
  dm_Tensor *t = NULL;
  if (x->st != DM_OK) return NULL;
  x->st = dm_tensor_number(true, 0, v, &t);
  return x->st == DM_OK ? dm_x_own(x, t) : NULL;
}
/* clamp(min = low), without a max */
dm_Tensor *x_floor(dm_X *x, dm_Tensor *a, double low) {
  const dm_ClampAttr bounds = {{1, low}, {0, 0}};
  return dm_x(x, DM_OP_clamp, &bounds, 1, a);
}
/* The tape records what runs while m->grad is set. */
dm_Tensor *x_constant_sub(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  dm_ThreadState *ts = dm_thread_state();
  const bool grad = ts->grad;
  ts->grad = false;
  dm_Tensor *d = x_sub(x, a, b);
  ts->grad = grad;
  return d;
}

dm_Tensor *x_norm(dm_X *x, dm_Tensor *a, double p, int64_t dim, bool keepdim) {
  const dm_NormAttr attr = {p, {1, {dim}}, keepdim, DM_NO_DTYPE};
  return dm_x(x, DM_OP_norm, &attr, 1, a);
}

/* Sums of bool and of integers are int64. */
dm_Tensor *x_sum(dm_X *x, dm_Tensor *a, dm_Ints dims, bool keepdim) {
  const dm_SumAttr attr = {dims, keepdim, DM_NO_DTYPE};
  return dm_x(x, DM_OP_sum, &attr, 1, a);
}

/* A shape as an attribute. */
static dm_Ints sizes(int ndim, const int64_t *shape) {
  dm_Ints s = {ndim, {0}};
  for (int d = 0; d < ndim; d++) s.v[d] = shape[d];
  return s;
}

/* a in another shape: a view where strides allow it. */
dm_Tensor *x_reshape(dm_X *x, dm_Tensor *a, int ndim, const int64_t *shape) {
  const dm_Ints s = sizes(ndim, shape);
  return dm_x(x, DM_OP_reshape, &s, 1, a);
}

/* A view in which sizes of 1 are repeated to `shape`. */
dm_Tensor *x_expand(dm_X *x, dm_Tensor *a, int ndim, const int64_t *shape) {
  const dm_Ints s = sizes(ndim, shape);
  return dm_x(x, DM_OP_expand, &s, 1, a);
}

dm_Tensor *x_unsqueeze(dm_X *x, dm_Tensor *a, int64_t dim) {
  return dm_x(x, DM_OP_unsqueeze, &dim, 1, a);
}

/* A view without dim, if its size is 1. */
dm_Tensor *x_squeeze(dm_X *x, dm_Tensor *a, int64_t dim) {
  return dm_x(x, DM_OP_squeeze, &(dm_Ints){1, {dim}}, 1, a);
}

dm_Tensor *x_transpose(dm_X *x, dm_Tensor *a, int d0, int d1) {
  const int64_t attr[2] = {d0, d1};
  return dm_x(x, DM_OP_transpose, attr, 1, a);
}

dm_Tensor *x_matmul(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_matmul, NULL, 2, a, b);
}

dm_Tensor *x_zeros_like(dm_X *x, dm_Tensor *a) { return dm_x(x, DM_OP_zeros_like, NULL, 1, a); }
