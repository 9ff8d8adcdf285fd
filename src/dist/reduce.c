#include "dist/reduce.h"

#include "cpu/vec.h"

enum { BLOCK = 512 }; /* elements at a time: three such arrays stay in the first cache */

/* out[i] = op(a[i], x[i]) for floats of that type; out may be a. An operand that is NaN stays.
 */
#define DEFINE_COMBINE(NAME, T)                                                           \
  static void NAME(dm_RankOp op, T *out, const T *a, const T *x, int64_t n) {             \
    switch (op) {                                                                         \
    case DM_RANK_PRODUCT:                                                                 \
      for (int64_t i = 0; i < n; i++) out[i] = a[i] * x[i];                               \
      break;                                                                              \
    case DM_RANK_MIN:                                                                     \
      for (int64_t i = 0; i < n; i++) out[i] = x[i] < a[i] || x[i] != x[i] ? x[i] : a[i]; \
      break;                                                                              \
    case DM_RANK_MAX:                                                                     \
      for (int64_t i = 0; i < n; i++) out[i] = x[i] > a[i] || x[i] != x[i] ? x[i] : a[i]; \
      break;                                                                              \
    default:                                                                              \
      for (int64_t i = 0; i < n; i++) out[i] = a[i] + x[i];                               \
      break;                                                                              \
    }                                                                                     \
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

static void combine_i64(dm_RankOp op, int64_t *out, const int64_t *a, const int64_t *x,
                        int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = combined_i64(op, a[i], x[i]);
}

/* Elements [i, i + m) of part `part` as compute type S: where they lie, if that is their own
   type WIDE, or as read into `to`. */
#define DEFINE_READ(S, T, WIDE)                                                            \
  static const T *read_##S(const dm_RankParts *p, int part, int64_t i, int64_t m, T *to) { \
    const char *first =                                                                    \
        part == p->own ? p->own_part : (const char *)p->parts + part * p->n * p->size;     \
    if (p->dtype == (WIDE)) return (const T *)(const void *)first + i;                     \
    dm_load_##S(p->dtype, first + i * p->size, 1, m, to);                                  \
    return to;                                                                             \
  }
DEFINE_READ(f32, float, DM_F32)
DEFINE_READ(f64, double, DM_F64)
DEFINE_READ(i64, int64_t, DM_I64)

/* Defines the sum of a tree: elements [i, i + m) of `count` parts from `first` on, which may be
   one part where it lies. */
#define DEFINE_TREE(S, T)                                                                     \
  static const T *tree_##S(const dm_RankParts *p, int first, int count, int64_t i, int64_t m, \
                           T *acc) {                                                          \
    const int half = count / 2;                                                               \
    T x[BLOCK];                                                                               \
    if (count == 1) return read_##S(p, first, i, m, acc);                                     \
    const T *a = tree_##S(p, first, half, i, m, acc);                                         \
    combine_##S(DM_RANK_SUM, acc, a, tree_##S(p, first + half, count - half, i, m, x), m);    \
    return acc;                                                                               \
  }
DEFINE_TREE(f32, float)
DEFINE_TREE(f64, double)
DEFINE_TREE(i64, int64_t)

/* Defines the loop over blocks for a compute type; DIVIDE is the average's last step. */
#define DEFINE_REDUCE(S, T, DIVIDE)                                                    \
  static void reduce_##S(dm_RankOp op, int n_part, const dm_RankParts *p, void *out) { \
    T acc[BLOCK], x[BLOCK];                                                            \
    for (int64_t i = 0; i < p->n; i += BLOCK) {                                        \
      const int64_t m = dm_min_i64(BLOCK, p->n - i);                                   \
      const bool is_tree = op == DM_RANK_TREE;                                         \
      const T *a = tree_##S(p, 0, is_tree ? n_part : 1, i, m, acc);                    \
      for (int part = 1; part < n_part && !is_tree; part++) {                          \
        combine_##S(op, acc, a, read_##S(p, part, i, m, x), m);                        \
        a = acc;                                                                       \
      }                                                                                \
      if (op == DM_RANK_AVG && n_part > 1)                                             \
        for (int64_t k = 0; k < m; k++) acc[k] = DIVIDE;                               \
      dm_store_##S(p->dtype, (char *)out + i * p->size, 1, m, a);                      \
    }                                                                                  \
  }
DEFINE_REDUCE(f32, float, acc[k] / (float)n_part)
DEFINE_REDUCE(f64, double, acc[k] / n_part)
DEFINE_REDUCE(i64, int64_t, acc[k])

void dm_rank_reduce(dm_RankOp op, int n_part, const dm_RankParts *parts, void *out) {
  switch (dm_compute_dtype(parts->dtype)) {
  case DM_F32: reduce_f32(op, n_part, parts, out); break;
  case DM_F64: reduce_f64(op, n_part, parts, out); break;
  default: reduce_i64(op, n_part, parts, out); break;
  }
}
