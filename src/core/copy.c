/* Four ways to copy: contiguous bytes, a transpose in squares, runs of the strided iterator, or
   columns where its runs would be short. See copy.h. */
#include "core/copy.h"

#include "core/iter.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"

enum { GRAIN = 32768 }; /* elements that a thread takes at a time */

/* ---- contiguous ---- */

void dm_copy_long(char *to, const char *from, int64_t n) { dm_loops()->copy_long(to, from, n); }

typedef struct Bytes {
  const char *from;
  char *to;
} Bytes;

static void copy_bytes(void *ctx, int64_t begin, int64_t end) {
  const Bytes *b = ctx;
  memcpy(b->to + begin, b->from + begin, (size_t)(end - begin));
}

/* ---- transposed ---- */

/* A transposing copy: `out` is contiguous in the iterator's last dim, `in` in another one.
   Squares of both dims are transposed in cache, so that each cache line is read and written
   once. */
typedef struct Transpose {
  dm_Iter it;
  int dim;         /* in which `in` is contiguous */
  int64_t n_block; /* squares along dim */
} Transpose;

#define DEFINE_TRANSPOSE(BITS)                                                             \
  static void transpose_##BITS(const char *vfrom, int64_t from_step, int64_t m, int64_t n, \
                               char *vto, int64_t to_step) {                               \
    typedef uint##BITS##_t Item;                                                           \
    const Item *from = (const Item *)(const void *)vfrom;                                  \
    Item *to = (Item *)(void *)vto;                                                        \
    Item square[DM_SQUARE][DM_SQUARE];                                                     \
    for (int64_t j = 0; j < n; j += DM_SQUARE) {                                           \
      const int64_t some = dm_min_i64(DM_SQUARE, n - j);                                   \
      for (int64_t k = 0; k < some; k++)                                                   \
        for (int64_t i = 0; i < m; i++) square[i][k] = from[(j + k) * from_step + i];      \
      for (int64_t i = 0; i < m; i++)                                                      \
        memcpy(to + i * to_step + j, square[i], (size_t)some * sizeof(Item));              \
    }                                                                                      \
  }
DEFINE_TRANSPOSE(8)
DEFINE_TRANSPOSE(16)
DEFINE_TRANSPOSE(32)
DEFINE_TRANSPOSE(64)
#undef DEFINE_TRANSPOSE

void dm_transpose(int size, const char *from, int64_t from_step, int64_t m, int64_t n, char *to,
                  int64_t to_step) {
  (size == 1   ? transpose_8
   : size == 2 ? transpose_16
   : size == 4 ? transpose_32
               : transpose_64)(from, from_step, m, n, to, to_step);
}

/* Unit u: DM_SQUARE positions of dim, the whole last dim, one position of each other dim. */
static void transpose_range(void *ctx, int64_t begin, int64_t end) {
  const Transpose *t = ctx;
  const dm_Iter *const it = &t->it;
  const int last = it->ndim - 1, size = it->size[0];
  for (int64_t u = begin; u < end; u++) {
    const int64_t first = u % t->n_block * DM_SQUARE;
    int64_t rest = u / t->n_block, to = first * it->stride[0][t->dim], from = first;
    for (int d = 0; d < last; d++) {
      if (d == t->dim) continue;
      to += rest % it->shape[d] * it->stride[0][d];
      from += rest % it->shape[d] * it->stride[1][d];
      rest /= it->shape[d];
    }
    dm_transpose(size, it->data[1] + from * size, it->stride[1][last],
                 dm_min_i64(DM_SQUARE, it->shape[t->dim] - first), it->shape[last],
                 it->data[0] + to * size, it->stride[0][t->dim]);
  }
}

/* Does a transposing copy where that pays; false: it has done nothing. */
static bool try_transpose(const dm_Iter *it) {
  enum { LEAST = 4 }; /* the shortest dims that pay for it */
  Transpose t = {.it = *it};
  const int last = it->ndim - 1;
  /* a row of one element, repeated, is filled */
  if (t.it.stride[0][last] != 1 || t.it.stride[1][last] == 0 || t.it.stride[1][last] == 1 ||
      t.it.shape[last] < LEAST)
    return false;
  while (t.dim < last && (t.it.stride[1][t.dim] != 1 || t.it.shape[t.dim] < LEAST)) t.dim++;
  if (t.dim == last) return false;
  t.n_block = (t.it.shape[t.dim] + DM_SQUARE - 1) / DM_SQUARE;
  const int64_t units = t.it.numel / t.it.shape[t.dim] / t.it.shape[last] * t.n_block;
  dm_parallel_for(units, dm_max_i64(1, GRAIN / (DM_SQUARE * t.it.shape[last])), transpose_range,
                  &t);
  return true;
}

/* ---- any strides ---- */

/* Any strides: runs of the last dim, or, where that is short, of the dim before it: an element
   of each of some rows, then the next one of these rows, while they are in cache. */
enum { SHORT = 8, SOME_ROWS = 256 };
typedef struct Strided {
  dm_Iter it;               /* for short runs without the last dim */
  int size;                 /* bytes of an element */
  int64_t columns, step[2]; /* the last dim of short runs: its size, its strides in bytes */
} Strided;

static void copy_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  const Strided *s = ctx;
  if (stride[0] == 1 && stride[1] == 1) dm_copy_row(ptr[0], ptr[1], n * s->size);
  else dm_loops()->move[dm_move_of(s->size)](ptr[0], stride[0], ptr[1], stride[1], n);
}

static void copy_columns(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  const Strided *s = ctx;
  for (int64_t at = 0; at < n; at += SOME_ROWS) {
    const int64_t rows = dm_min_i64(SOME_ROWS, n - at);
    for (int64_t k = 0; k < s->columns; k++) {
      char *column[2];
      for (int i = 0; i < 2; i++)
        column[i] = ptr[i] + at * stride[i] * s->it.size[i] + k * s->step[i];
      copy_run(ctx, column, stride, rows);
    }
  }
}

static void copy_strided(void *ctx, int64_t begin, int64_t end) {
  const Strided *s = ctx;
  dm_iter_range(&s->it, begin, end, s->columns > 1 ? copy_columns : copy_run, ctx);
}

/* Takes the last dim out of the iterator where its runs would be shorter than those of the dim
   before it. */
static void take_short_dim(Strided *s) {
  const int last = s->it.ndim - 1;
  s->columns = 1;
  if (last == 0 || s->it.shape[last] > SHORT || s->it.shape[last - 1] <= s->it.shape[last])
    return;
  s->columns = s->it.shape[last];
  for (int i = 0; i < 2; i++) s->step[i] = s->it.stride[i][last] * s->it.size[i];
  s->it.numel /= s->columns;
  s->it.ndim = last;
}

void dm_copy_elements(dm_Tensor *out, dm_Tensor *in) {
  if (out->numel == 0) return;
  if (dm_same_shape(out, in) && dm_tensor_is_contiguous(out) && dm_tensor_is_contiguous(in)) {
    Bytes b = {dm_tensor_data(in), dm_tensor_data(out)};
    dm_parallel_for(dm_tensor_bytes(out), 8 * GRAIN, copy_bytes, &b);
    return;
  }
  Strided s = {.size = dm_dtype_sizes[out->dtype]};
  dm_iter_init_by_memory(&s.it, 2, (dm_Tensor *[]){out, in});
  if (try_transpose(&s.it)) return;
  take_short_dim(&s);
  dm_parallel_for(s.it.numel, GRAIN / s.columns, copy_strided, &s);
}

dm_status dm_dense_new(dm_Tensor *t, dm_Tensor **out) {
  if (dm_tensor_is_contiguous(t)) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  DM_TRY(dm_tensor_new((dm_DType)t->dtype, t->ndim, t->shape, t->device, out));
  if (t->device.type == DM_CPU) {
    dm_copy_elements(*out, t);
    return DM_OK;
  }
  const dm_status st = dm_device_ops(t->device)->copy_elements(*out, t);
  if (st != DM_OK) dm_tensor_unref(out);
  return st;
}
