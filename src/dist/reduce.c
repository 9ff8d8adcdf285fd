#include "dist/reduce.h"

#include "cpu/vec.h"

enum { BLOCK = 512 }; /* elements at a time: three such arrays stay in the first cache */

/* acc[i] = op(acc[i], x[i]) for floats of that type. An operand that is NaN stays. */
#define DEFINE_COMBINE(NAME, T)                                                               \
  static void NAME(dm_RankOp op, T *DM_RESTRICT acc, const T *DM_RESTRICT x, int64_t n) {     \
    switch (op) {                                                                             \
    case DM_RANK_PRODUCT:                                                                     \
      for (int64_t i = 0; i < n; i++) acc[i] *= x[i];                                         \
      break;                                                                                  \
    case DM_RANK_MIN:                                                                         \
      for (int64_t i = 0; i < n; i++) acc[i] = x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i]; \
      break;                                                                                  \
    case DM_RANK_MAX:                                                                         \
      for (int64_t i = 0; i < n; i++) acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i]; \
      break;                                                                                  \
    default:                                                                                  \
      for (int64_t i = 0; i < n; i++) acc[i] += x[i];                                         \
      break;                                                                                  \
    }                                                                                         \
  }
DEFINE_COMBINE(combine_f32, float)
DEFINE_COMBINE(combine_f64, double)

/* One integer; sums and products wrap. */
static int64_t combined_i64(dm_RankOp op, int64_t a, int64_t b) {
  switch (op) {
  case DM_RANK_PRODUCT: return (int64_t)((uint64_t)a * (uint64_t)b);
  case DM_RANK_MIN: return dm_min_i64(a, b);
  case DM_RANK_MAX: return dm_max_i64(a, b);
  case DM_RANK_BAND: return a & b;
  case DM_RANK_BOR: return a | b;
  default: return (int64_t)((uint64_t)a + (uint64_t)b);
  }
}

static void combine_i64(dm_RankOp op, int64_t *acc, const int64_t *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) acc[i] = combined_i64(op, acc[i], x[i]);
}

/* Element i of part `part`. */
#define AT(parts, part, n, i, size) ((const char *)(parts) + ((part) * (n) + (i)) * (size))

/* Defines the sum of a tree: elements [i, i + m) of `count` parts from `first` on. */
#define DEFINE_TREE(S, T)                                                                  \
  static void tree_##S(dm_DType dtype, int first, int count, const void *parts, int64_t n, \
                       int64_t i, int64_t m, T *acc) {                                     \
    const int64_t size = dm_dtype_size(dtype);                                             \
    const int half = count / 2;                                                            \
    T x[BLOCK];                                                                            \
    if (count == 1) {                                                                      \
      dm_load_##S(dtype, AT(parts, first, n, i, size), 1, m, acc);                         \
      return;                                                                              \
    }                                                                                      \
    tree_##S(dtype, first, half, parts, n, i, m, acc);                                     \
    tree_##S(dtype, first + half, count - half, parts, n, i, m, x);                        \
    combine_##S(DM_RANK_SUM, acc, x, m);                                                   \
  }
DEFINE_TREE(f32, float)
DEFINE_TREE(f64, double)
DEFINE_TREE(i64, int64_t)

/* Defines the loop over blocks for a compute type; DIVIDE is the average's last step. */
#define DEFINE_REDUCE(S, T, DIVIDE)                                                   \
  static void reduce_##S(dm_RankOp op, dm_DType dtype, int n_part, const void *parts, \
                         int64_t n, void *out) {                                      \
    const int64_t size = dm_dtype_size(dtype);                                        \
    T acc[BLOCK], x[BLOCK];                                                           \
    for (int64_t i = 0; i < n; i += BLOCK) {                                          \
      const int64_t m = dm_min_i64(BLOCK, n - i);                                     \
      const bool is_tree = op == DM_RANK_TREE;                                        \
      tree_##S(dtype, 0, is_tree ? n_part : 1, parts, n, i, m, acc);                  \
      for (int part = 1; part < n_part && !is_tree; part++) {                         \
        dm_load_##S(dtype, AT(parts, part, n, i, size), 1, m, x);                     \
        combine_##S(op, acc, x, m);                                                   \
      }                                                                               \
      if (op == DM_RANK_AVG)                                                          \
        for (int64_t k = 0; k < m; k++) acc[k] = DIVIDE;                              \
      dm_store_##S(dtype, (char *)out + i * size, 1, m, acc);                         \
    }                                                                                 \
  }
DEFINE_REDUCE(f32, float, acc[k] / (float)n_part)
DEFINE_REDUCE(f64, double, acc[k] / n_part)
DEFINE_REDUCE(i64, int64_t, acc[k])

void dm_rank_reduce(dm_RankOp op, dm_DType dtype, int n_part, const void *parts, int64_t n,
                    void *out) {
  switch (dm_compute_dtype(dtype)) {
  case DM_F32: reduce_f32(op, dtype, n_part, parts, n, out); break;
  case DM_F64: reduce_f64(op, dtype, n_part, parts, n, out); break;
  default: reduce_i64(op, dtype, n_part, parts, n, out); break;
  }
}
