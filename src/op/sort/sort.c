/* sort, topk, cumsum, bucketize and nonzero on the CPU.

   sort works slice by slice along the dim: each element becomes an Item of a 64-bit
   key and its position, and the items are sorted stably: few by a bottom-up merge sort, after
   runs of 16 were sorted by insertion, many by the bytes of their keys, from the last byte to
   the first (LSD radix sort: Knuth, The Art of Computer Programming, volume 3, 5.2.5). The key
   of a value is a 64-bit integer whose unsigned order is the order of the values: a signed
   integer with its sign bit flipped, or the bits of a float64 with the sign bit set (positive)
   or all bits inverted (negative); NaN has the largest key and so comes last. A descending sort
   inverts the keys, which keeps the order of equals and puts NaN first, as in PyTorch. One
   comparison of integers then serves all dtypes.

   Elements of at most 32 bits, and int64 that lie within as many of each other, have keys of 32
   bits, which are sorted as words: a key, and below it the position, which makes all words
   different. A few of them need no moves: an element's
   rank is the number of lesser ones and of equal ones before it, which vectors count.

   topk keeps a buffer of 2 k + 16 candidates: whenever it is full it is sorted and
   cut to the first k, whose last key bounds what is gathered from then on. Where so many are
   all, the first k are found by partitions (quickselect: Hoare, Algorithm 65, 1961), and only
   they are sorted. */
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/copy.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/along.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/sort/sort.h"

enum {
  RUN = 16,    /* items sorted by insertion before merging starts */
  COLUMNS = 8, /* neighbouring slices that pay for going row by row */
  MANY = 512   /* items that pay for the counters of a radix sort */
};

/* One element to be sorted: its key and its position in the slice. */
typedef struct Item {
  uint64_t key;
  int64_t at;
} Item;

typedef struct Running Running;

/* One call of sort, topk, cumsum or cumprod. */
typedef struct Job {
  dm_Along in, out; /* they differ in n: topk gives k elements */
  dm_DType from, to;
  const char *x, *gy; /* gy: of cumprod's gradient */
  char *y;
  int64_t *index;         /* the position that each element came from */
  const Running *running; /* the loops of cumsum or cumprod */
  bool descending, reverse, sorted;
  bool words; /* keys have 32 bits, of integers the difference to `middle` */
  int64_t middle;
  int base;
  atomic_bool failed; /* out of memory */
} Job;

/* Copies one element of 1, 2, 4 or 8 bytes. */
static void copy_element(char *dst, const char *src, int64_t size) {
  switch (size) {
  case 1: *dst = *src; break;
  case 2: memcpy(dst, src, 2); break;
  case 4: memcpy(dst, src, 4); break;
  default: memcpy(dst, src, 8);
  }
}

/* Fills j with the geometry and the data of input 0, made contiguous, and of output 0;
   the caller unrefs *dense. */
static dm_status open_job(Job *j, const dm_Call *c, int64_t dim, dm_Tensor **dense) {
  DM_TRY(dm_dense_new(c->in[0], dense));
  j->in = dm_along(*dense, dim);
  j->out = dm_along(c->out[0], dim);
  j->from = (dm_DType)c->in[0]->dtype;
  j->to = (dm_DType)c->out[0]->dtype;
  j->x = dm_tensor_data(*dense);
  j->y = dm_tensor_data(c->out[0]);
  j->base = c->base;
  atomic_init(&j->failed, false);
  return DM_OK;
}
/* The number of slices that are worth a thread. */
static int64_t slice_grain(const Job *j) {
  return dm_max_i64(1, DM_POINT_GRAIN / dm_max_i64(1, j->in.n));
}

/* ---- sort, topk ---- */

/* The ordered key of a float: see the head of the file. -0 and 0 have one key. */
static uint64_t key_f64(double v) {
  int64_t bits;
  const double sum = v + 0.0; /* -0 is 0 */
  memcpy(&bits, &sum, 8);
  /* without a branch, as half of all signs would be guessed wrongly */
  const uint64_t key = (uint64_t)bits ^ ((uint64_t)(bits >> 63) | 1ull << 63);
  return v != v ? UINT64_MAX : key;
}
/* The keys of m <= DM_BLOCK elements that lie `stride` apart. as_float: integers are
   converted to float64 because their keys will be compared with those of floats. */
static void load_keys(dm_DType from, bool as_float, const char *x, int64_t stride, int64_t m,
                      uint64_t *key) {
  double f[DM_BLOCK];
  int64_t v[DM_BLOCK];
  if (as_float) {
    dm_load_f64(from, x, stride, m, f);
    for (int64_t i = 0; i < m; i++) key[i] = key_f64(f[i]);
  } else {
    dm_load_i64(from, x, stride, m, v);
    for (int64_t i = 0; i < m; i++) key[i] = (uint64_t)v[i] ^ 1ull << 63;
  }
}
/* The keys of elements from `at` on of a slice that starts at x, in the wanted order; returns
   how many. */
static int64_t block_of_keys(const Job *j, const char *x, int64_t at, uint64_t *key) {
  const int64_t m = dm_min_i64(DM_BLOCK, j->in.n - at);
  const char *p = x + at * j->in.inner * dm_dtype_size(j->from);
  load_keys(j->from, dm_is_float(j->from), p, j->in.inner, m, key);
  for (int64_t i = 0; i < m && j->descending; i++) key[i] = ~key[i];
  return m;
}
/* The items of one slice that starts at x. */
static void fill_items(const Job *j, const char *x, Item *items) {
  uint64_t key[DM_BLOCK];
  for (int64_t at = 0, m; at < j->in.n; at += m) {
    m = block_of_keys(j, x, at, key);
    for (int64_t i = 0; i < m; i++) items[at + i] = (Item){key[i], at + i};
  }
}

static void insertion_sort(Item *a, int64_t n) {
  for (int64_t i = 1; i < n; i++) {
    const Item t = a[i];
    int64_t k = i;
    for (; k > 0 && a[k - 1].key > t.key; k--) a[k] = a[k - 1];
    a[k] = t;
  }
}
/* Merges the sorted runs a and b into out; of equal keys a's come first, which makes
   the sort stable. */
static void merge(const Item *a, int64_t n_a, const Item *b, int64_t n_b, Item *out) {
  while (n_a > 0 && n_b > 0) {
    const bool second = b->key < a->key;
    *out++ = second ? *b++ : *a++;
    *(second ? &n_b : &n_a) -= 1;
  }
  if (n_a > 0) memcpy(out, a, sizeof *a * (size_t)n_a);
  if (n_b > 0) memcpy(out, b, sizeof *b * (size_t)n_b);
}
/* Sorts the n items of a, with b as a buffer of the same size; returns the one of both
   that holds the result. */
static Item *merge_sort(Item *a, Item *b, int64_t n) {
  for (int64_t i = 0; i < n; i += RUN) insertion_sort(a + i, dm_min_i64(RUN, n - i));
  for (int64_t w = RUN; w < n; w *= 2) {
    for (int64_t i = 0; i < n; i += 2 * w) {
      const int64_t n_a = dm_min_i64(w, n - i), n_b = dm_min_i64(w, n - i - n_a);
      merge(a + i, n_a, a + i + n_a, n_b, b + i);
    }
    Item *const t = a;
    a = b;
    b = t;
  }
  return a;
}

/* Moves the items of a to b in the order of the byte of their keys that begins at bit `shift`.
 */
static void sort_by_byte(const Item *a, Item *b, int64_t n, int shift) {
  int64_t at[256] = {0}, before = 0;
  for (int64_t i = 0; i < n; i++) at[a[i].key >> shift & 0xff]++;
  for (int k = 0; k < 256; k++) {
    const int64_t count = at[k];
    at[k] = before;
    before += count;
  }
  for (int64_t i = 0; i < n; i++) b[at[a[i].key >> shift & 0xff]++] = a[i];
}
/* merge_sort's promise. Bytes that all keys share are skipped: half of a float32's, most of an
   integer's. */
static Item *radix_sort(Item *a, Item *b, int64_t n) {
  uint64_t differ = 0;
  for (int64_t i = 1; i < n; i++) differ |= a[i].key ^ a[0].key;
  for (int shift = 0; shift < 64; shift += 8) {
    if ((differ >> shift & 0xff) == 0) continue;
    sort_by_byte(a, b, n, shift);
    Item *const t = a;
    a = b;
    b = t;
  }
  return a;
}
static Item *sort_items(Item *a, Item *b, int64_t n) {
  return n < MANY ? merge_sort(a, b, n) : radix_sort(a, b, n);
}

/* The order of a stable sort. */
static inline bool is_before(Item a, Item b) {
  return (a.key < b.key) | ((a.key == b.key) & (a.at < b.at));
}

/* A selection of T, which BEFORE orders and SORT sorts.

   middle: of three the middle one, the pivot of a partition.

   partition: moves the n items of a that come before the pivot, one of them, to the front, then
   the pivot, then the others, both in the order they had; returns the pivot's position. No
   branch depends on the items, which would be guessed wrongly every second time; and all go to
   b first, the later ones from its end, since a load waits for stores that may be to its
   address.

   select: moves the first k of the n items of a to the front, the k-th to the k-th position,
   with b as a buffer; the others before it keep the order they had. Pivots that leave too much
   to do end in a sort (introselect: Musser 1997), as do FEW items. */
#define DEFINE_SELECTION(NAME, T, BEFORE, SORT, FEW)                   \
  static T middle_##NAME(T a, T b, T c) {                              \
    if (BEFORE(b, a)) return BEFORE(a, c) ? a : BEFORE(b, c) ? c : b;  \
    return BEFORE(b, c) ? b : BEFORE(a, c) ? c : a;                    \
  }                                                                    \
  static int64_t partition_##NAME(T *a, T *b, int64_t n, T pivot) {    \
    int64_t before = 0, after = n - 1;                                 \
    for (int64_t i = 0; i < n; i++) {                                  \
      const T t = a[i];                                                \
      b[before] = t;                                                   \
      b[after] = t;                                                    \
      before += BEFORE(t, pivot);                                      \
      after -= BEFORE(pivot, t);                                       \
    }                                                                  \
    memcpy(a, b, sizeof *b *(size_t)before);                           \
    a[before] = pivot;                                                 \
    for (int64_t i = before + 1; i < n; i++) a[i] = b[n + before - i]; \
    return before;                                                     \
  }                                                                    \
  static void select_##NAME(T *a, T *b, int64_t n, int64_t k) {        \
    for (int64_t most = 4 * n; n > FEW && most > 0; most -= n) {       \
      const T pivot = middle_##NAME(a[0], a[n / 2], a[n - 1]);         \
      const int64_t at = partition_##NAME(a, b, n, pivot);             \
      if (at == k - 1) return;                                         \
      if (at > k - 1) {                                                \
        n = at;                                                        \
      } else {                                                         \
        a += at + 1;                                                   \
        n -= at + 1;                                                   \
        k -= at + 1;                                                   \
      }                                                                \
    }                                                                  \
    const T *const sorted = SORT(a, b, n);                             \
    if (sorted != a) memcpy(a, sorted, sizeof *a *(size_t)n);          \
  }
DEFINE_SELECTION(items, Item, is_before, sort_items, RUN)

/* The candidates for the first k items. Where k is small they are the k best so far, in order;
   else those, and what came before the k-th of them since: full, they are sorted and cut to k.
 */
typedef struct Best {
  Item *a, *b; /* the candidates, and a buffer */
  int64_t k, kept, most;
  uint64_t bound;
  bool bounded;
} Best;

static void insert(Best *best, uint64_t key, int64_t at) {
  int64_t i = best->kept < best->k ? best->kept++ : best->k - 1;
  for (; i > 0 && best->a[i - 1].key > key; i--) best->a[i] = best->a[i - 1];
  best->a[i] = (Item){key, at};
  best->bounded = best->kept == best->k;
}
static void append(Best *best, uint64_t key, int64_t at) {
  best->a[best->kept++] = (Item){key, at};
  if (best->kept < best->most) return;
  const Item *const sorted = sort_items(best->a, best->b, best->kept);
  if (sorted != best->a) memcpy(best->a, sorted, sizeof *sorted * (size_t)best->k);
  best->kept = best->k;
  best->bounded = true;
}

/* The first k items of a slice that starts at x, in order: few of many. */
static Item *first_of_slice(const Job *j, const char *x, Item *a, Item *b, int64_t k) {
  Best best = {.a = a, .b = b, .k = k, .most = 2 * k + RUN};
  uint64_t key[DM_BLOCK];
  for (int64_t at = 0, m; at < j->in.n; at += m) {
    m = block_of_keys(j, x, at, key);
    for (int64_t i = 0; i < m; i++) {
      if (best.bounded && key[i] >= best.bound) continue;
      if (k <= RUN) insert(&best, key[i], at + i);
      else append(&best, key[i], at + i);
      if (best.bounded) best.bound = a[k - 1].key;
    }
  }
  return k <= RUN ? a : sort_items(a, b, best.kept);
}

/* Returns the first k items of a slice that starts at x, in order if that is wanted, the k-th
   as the last one; a and b have space for all items each. */
static Item *sort_first(const Job *j, const char *x, Item *a, Item *b) {
  const int64_t n = j->in.n, k = j->out.n;
  if (2 * k + RUN < n) return first_of_slice(j, x, a, b, k);
  fill_items(j, x, a);
  if (k == n || n <= RUN) return sort_items(a, b, n);
  select_items(a, b, n, k);
  return j->sorted ? sort_items(a, b, k) : a;
}

/* ---- elements of at most 32 bits ---- */

/* Whether slices are sorted as words: in whole, or for so many elements that partitions find
   them sooner than a search for better ones. */
static bool has_words(const Job *j) {
  const int64_t n = j->in.n, k = j->out.n;
  if (!j->words || n > UINT32_MAX) return false;
  return 2 * k + RUN >= n || (k > RUN && n <= 32 * k);
}

/* The keys of elements from `at` on of a slice that starts at x, signed, in the wanted order;
   returns how many. */
static int64_t block_of_short_keys(const Job *j, const char *x, int64_t at, int32_t *key) {
  const int64_t m = dm_min_i64(DM_BLOCK, j->in.n - at), step = j->in.inner;
  const char *p = x + at * step * dm_dtype_size(j->from);
  if (dm_is_float(j->from)) {
    float f[DM_BLOCK];
    dm_load_f32(j->from, p, step, m, f);
    for (int64_t i = 0; i < m; i++) {
      const float sum = f[i] + 0.0f; /* -0 is 0 */
      int32_t bits;
      memcpy(&bits, &sum, 4);
      key[i] = sum != sum ? INT32_MAX : bits ^ (bits >> 31 & INT32_MAX);
    }
  } else {
    int64_t v[DM_BLOCK];
    dm_load_i64(j->from, p, step, m, v);
    for (int64_t i = 0; i < m; i++) key[i] = (int32_t)((uint64_t)v[i] - (uint64_t)j->middle);
  }
  for (int64_t i = 0; i < m && j->descending; i++) key[i] = ~key[i];
  return m;
}

/* The positions of the at most DM_FEW_KEYS elements of a slice in their order. */
static void order_few(const Job *j, const char *x, uint64_t *sorted) {
  int32_t key[DM_BLOCK], less[DM_FEW_KEYS], equal[DM_FEW_KEYS] = {0};
  memset(key, 0, sizeof *key * DM_FEW_KEYS);
  block_of_short_keys(j, x, 0, key);
  dm_loops()->count_less(key, j->in.n, less);
  for (int64_t i = 0; i < j->in.n; i++) sorted[less[i] + equal[less[i]]++] = (uint64_t)i;
}

/* Sorts the words of a, with b as a buffer of the same size, by the four bytes of their keys;
   returns the one of both that holds the result. Bytes that all keys share are skipped. */
static uint64_t *sort_words(uint64_t *a, uint64_t *b, int64_t n) {
  int64_t at[4][256] = {{0}};
  for (int64_t i = 0; i < n; i++)
    for (int d = 0; d < 4; d++) at[d][a[i] >> (32 + 8 * d) & 0xff]++;
  for (int d = 0; d < 4; d++) {
    const int shift = 32 + 8 * d;
    int64_t before = 0;
    if (at[d][a[0] >> shift & 0xff] == n) continue;
    for (int k = 0; k < 256; k++) {
      const int64_t count = at[d][k];
      at[d][k] = before;
      before += count;
    }
    for (int64_t i = 0; i < n; i++) b[at[d][a[i] >> shift & 0xff]++] = a[i];
    uint64_t *const t = a;
    a = b;
    b = t;
  }
  return a;
}

#define IS_LESS(a, b) ((a) < (b))
DEFINE_SELECTION(words, uint64_t, IS_LESS, sort_words, DM_FEW_KEYS)
#undef IS_LESS
#undef DEFINE_SELECTION

/* As sort_first, of words; the lower half of one is the position. */
static const uint64_t *sort_first_words(const Job *j, const char *x, uint64_t *a, uint64_t *b) {
  const int64_t n = j->in.n, k = j->out.n;
  int32_t key[DM_BLOCK];
  if (n <= DM_FEW_KEYS) {
    order_few(j, x, a);
    return a;
  }
  for (int64_t at = 0, m; at < n; at += m) {
    m = block_of_short_keys(j, x, at, key);
    for (int64_t i = 0; i < m; i++)
      a[at + i] = (uint64_t)((uint32_t)key[i] ^ 1u << 31) << 32 | (uint64_t)(at + i);
  }
  if (k == n) return sort_words(a, b, n);
  select_words(a, b, n, k);
  return j->sorted ? sort_words(a, b, k) : a;
}

/* Element `to` of the results is number `at` of the slice that starts at x. */
static inline void put_sorted(const Job *j, const char *x, int64_t to, int64_t at,
                              int64_t size) {
  copy_element(j->y + to * size, x + at * j->in.inner * size, size);
  j->index[to] = at + j->base;
}

/* Thread body: sorts slices [begin, end) and writes the first out.n elements and
   positions of each. */
static void sort_slices(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  const int64_t size = dm_dtype_size(j->from), n = j->in.n;
  Item *items = dm_alloc(2 * n * (int64_t)sizeof *items);
  if (!items) {
    atomic_store(&j->failed, true);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    const char *x = j->x + dm_along_at(&j->in, i) * size;
    const int64_t to = dm_along_at(&j->out, i);
    const Item *const sorted = sort_first(j, x, items, items + n);
    for (int64_t k = 0; k < j->out.n; k++)
      put_sorted(j, x, to + k * j->out.inner, sorted[k].at, size);
  }
  dm_free(items);
}
static void sort_word_slices(void *ctx, int64_t begin, int64_t end) {
  Job *j = ctx;
  const int64_t size = dm_dtype_size(j->from), n = j->in.n;
  uint64_t few[DM_FEW_KEYS], *const many = n > DM_FEW_KEYS ? dm_alloc(16 * n) : NULL;
  if (n > DM_FEW_KEYS && !many) {
    atomic_store(&j->failed, true);
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    const char *x = j->x + dm_along_at(&j->in, i) * size;
    const int64_t to = dm_along_at(&j->out, i);
    const uint64_t *const sorted =
        many ? sort_first_words(j, x, many, many + n) : sort_first_words(j, x, few, few);
    for (int64_t k = 0; k < j->out.n; k++)
      put_sorted(j, x, to + k * j->out.inner, (int64_t)(sorted[k] & UINT32_MAX), size);
  }
  dm_free(many);
}

/* Whether the n int64 at v lie within 32 bits of each other; then *middle is that of 32 bits
   from the least on. */
static bool are_near(const int64_t *v, int64_t n, int64_t *middle) {
  dm_ReduceI64 *const best = dm_loops()->reduce_i64[DM_REDUCE_TOP];
  dm_Acc least = {.k = -1}, most = {.k = -1};
  best(&least, v, n, 0, -1);
  best(&most, v, n, 0, 1);
  if ((uint64_t)most.i - (uint64_t)least.i > UINT32_MAX) return false;
  *middle = (int64_t)((uint64_t)least.i + (1u << 31));
  return true;
}

/* sort and topk on input 0: values to output 0, int64 positions to output 1. */
static dm_status sort_along(dm_Call *c, int64_t dim, bool descending, bool sorted) {
  Job j = {.descending = descending, .sorted = sorted};
  dm_Tensor *dense = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(open_job(&j, c, dim, &dense));
  j.index = dm_tensor_data(c->out[1]);
  j.words = dm_dtype_size(j.from) <= 4 ||
            (j.from == DM_I64 &&
             are_near((const int64_t *)(const void *)j.x, c->in[0]->numel, &j.middle));
  dm_parallel_for(dm_along_slices(&j.in), slice_grain(&j),
                  has_words(&j) ? sort_word_slices : sort_slices, &j);
  dm_tensor_unref(&dense);
  return atomic_load(&j.failed) ? dm_fail(DM_EMEM, "%s: out of memory", c->op->name) : DM_OK;
}

/* out: the sorted values and int64 positions, both in x's shape. */
dm_status sort_rule(dm_Call *c) {
  int d;
  DM_TRY(dm_check_dim(c, c->in[0], DM_ATTR(dm_SortAttr, c)->dim, &d));
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  dm_out_like(c, 1, c->in[0], DM_I64);
  return DM_OK;
}
dm_status sort_cpu(dm_Call *c) {
  const dm_SortAttr *a = DM_ATTR(dm_SortAttr, c);
  return sort_along(c, a->dim, a->descending, true);
}

/* out: values and int64 positions with size k along dim. */
dm_status topk_rule(dm_Call *c) {
  const dm_TopkAttr *a = DM_ATTR(dm_TopkAttr, c);
  const dm_Tensor *x = c->in[0];
  int d;
  DM_TRY(dm_check_dim(c, x, a->dim, &d));
  const int64_t n = x->ndim > 0 ? x->shape[d] : 1;
  if (a->k < 0 || a->k > n)
    return dm_fail(DM_EARG, "topk: k = %lld, but dim %d of %s has %lld elements",
                   (long long)a->k, d + c->base, DM_SHAPE(x), (long long)n);
  for (int i = 0; i < 2; i++) {
    dm_out_like(c, i, x, i == 0 ? (dm_DType)x->dtype : DM_I64);
    if (x->ndim > 0) c->out_meta[i].shape[d] = a->k;
  }
  return DM_OK;
}
dm_status topk_cpu(dm_Call *c) {
  const dm_TopkAttr *a = DM_ATTR(dm_TopkAttr, c);
  return sort_along(c, a->dim, a->largest, a->sorted);
}

/* dx is zeros with gy scattered to the positions the elements came from. */
void sort_grad(dm_Grad *g) {
  if (g->gy[0]) g->gx[0] = x_put_back(g, DM_ATTR(dm_SortAttr, g)->dim, g->gy[0], g->out[1]);
}
void topk_grad(dm_Grad *g) {
  if (g->gy[0]) g->gx[0] = x_put_back(g, DM_ATTR(dm_TopkAttr, g)->dim, g->gy[0], g->out[1]);
}

/* ---- bucketize ---- */

/* One call of bucketize. */
typedef struct Buckets {
  const uint64_t *edge; /* keys in ascending order */
  int64_t n;
  bool right, as_float;
  dm_DType from, to;
  const char *x;
  char *y;
  int base;
} Buckets;

/* Output: x's shape, int64 or int32. */
dm_status bucketize_rule(dm_Call *c) {
  if (c->in[1]->ndim != 1)
    return dm_fail(DM_EARG, "bucketize: boundaries have shape %s, wanted one dim",
                   DM_SHAPE(c->in[1]));
  dm_out_like(c, 0, c->in[0], DM_ATTR(dm_BucketizeAttr, c)->out_int32 ? DM_I32 : DM_I64);
  return DM_OK;
}

/* Thread body: the buckets of elements [begin, end). */
static void bucket_range(void *ctx, int64_t begin, int64_t end) {
  const Buckets *b = ctx;
  uint64_t key[DM_BLOCK];
  int64_t below[DM_BLOCK];
  for (int64_t at = begin; at < end; at += DM_BLOCK) {
    const int64_t m = dm_min_i64(DM_BLOCK, end - at);
    load_keys(b->from, b->as_float, b->x + at * dm_dtype_size(b->from), 1, m, key);
    for (int64_t i = 0; i < m; i++) below[i] = b->base;
    dm_loops()->edges_below(b->edge, b->n, b->right, key, m, below);
    dm_store_i64(b->to, b->y + at * dm_dtype_size(b->to), 1, m, below);
  }
}

/* x and the boundaries are compared as float64 when one of them is a float, else as
   int64. */
dm_status bucketize_cpu(dm_Call *c) {
  dm_Tensor *x = NULL, *edges = NULL;
  uint64_t *keys = NULL;
  dm_status st = DM_OK;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_GO(dm_dense_new(c->in[0], &x));
  DM_GO(dm_dense_new(c->in[1], &edges));
  keys = dm_alloc(dm_max_i64(1, edges->numel) * (int64_t)sizeof *keys);
  if (!keys) {
    st = dm_fail(DM_EMEM, "bucketize: out of memory");
    goto done;
  }
  const dm_DType of_edges = (dm_DType)edges->dtype;
  Buckets b = {.edge = keys,
               .n = edges->numel,
               .right = DM_ATTR(dm_BucketizeAttr, c)->right,
               .from = (dm_DType)x->dtype,
               .to = (dm_DType)c->out[0]->dtype,
               .x = dm_tensor_data(x),
               .y = dm_tensor_data(c->out[0]),
               .base = c->base};
  b.as_float = dm_is_float(b.from) || dm_is_float(of_edges);
  const char *from = dm_tensor_data(edges);
  for (int64_t at = 0; at < b.n; at += DM_BLOCK)
    load_keys(of_edges, b.as_float, from + at * dm_dtype_size(of_edges), 1,
              dm_min_i64(DM_BLOCK, b.n - at), keys + at);
  dm_parallel_for(x->numel, DM_POINT_GRAIN, bucket_range, &b);
done:
  dm_free(keys);
  dm_tensor_unref(&edges);
  dm_tensor_unref(&x);
  return st;
}

/* ---- running sums and products: y_i of all x_k with k <= i; the gradient of cumsum is the
   same sum from the end, cumsum_back ---- */

/* Of one slice, of a few at once, and of m neighbouring ones row by row: the first elements are
   at x and y, the next ones `step` elements further. Slices do not wait for each other's sums;
   a slice has the same bits in all three ways. */
enum { AT_ONCE = 4 };
struct Running {
  void (*slice)(const Job *j, const char *x, char *y, int64_t step);
  void (*rows)(const Job *j, const char *const *x, char *const *y, int64_t step);
  void (*columns)(const Job *j, const char *x, char *y, int64_t step, int64_t m);
};

#define RUNNING(NAME, TYPE, LOAD, STORE, START, STEP)                                         \
  static void NAME##_slice(const Job *j, const char *x, char *y, int64_t step) {              \
    const int64_t x_step = step * dm_dtype_size(j->from),                                     \
                  y_step = step * dm_dtype_size(j->to);                                       \
    TYPE so_far = START, v[DM_BLOCK];                                                         \
    for (int64_t at = 0, m; at < j->in.n; at += m) {                                          \
      m = dm_min_i64(DM_BLOCK, j->in.n - at);                                                 \
      LOAD(j->from, x + at * x_step, step, m, v);                                             \
      for (int64_t k = 0; k < m; k++) v[k] = so_far STEP v[k];                                \
      STORE(j->to, y + at * y_step, step, m, v);                                              \
    }                                                                                         \
  }                                                                                           \
  static void NAME##_rows(const Job *j, const char *const *x, char *const *y, int64_t step) { \
    const int64_t x_step = step * dm_dtype_size(j->from),                                     \
                  y_step = step * dm_dtype_size(j->to);                                       \
    TYPE so_far[AT_ONCE], v[AT_ONCE][DM_BLOCK];                                               \
    for (int r = 0; r < AT_ONCE; r++) so_far[r] = START;                                      \
    for (int64_t at = 0, m; at < j->in.n; at += m) {                                          \
      m = dm_min_i64(DM_BLOCK, j->in.n - at);                                                 \
      for (int r = 0; r < AT_ONCE; r++) LOAD(j->from, x[r] + at * x_step, step, m, v[r]);     \
      for (int64_t k = 0; k < m; k++)                                                         \
        DM_UNROLL for (int r = 0; r < AT_ONCE; r++) v[r][k] = so_far[r] STEP v[r][k];         \
      for (int r = 0; r < AT_ONCE; r++) STORE(j->to, y[r] + at * y_step, step, m, v[r]);      \
    }                                                                                         \
  }                                                                                           \
  static void NAME##_columns(const Job *j, const char *x, char *y, int64_t step, int64_t m) { \
    const int64_t x_step = step * dm_dtype_size(j->from),                                     \
                  y_step = step * dm_dtype_size(j->to);                                       \
    TYPE so_far[DM_BLOCK], v[DM_BLOCK];                                                       \
    for (int64_t k = 0; k < m; k++) so_far[k] = START;                                        \
    for (int64_t at = 0; at < j->in.n; at++, x += x_step, y += y_step) {                      \
      LOAD(j->from, x, 1, m, v);                                                              \
      for (int64_t k = 0; k < m; k++) so_far[k] STEP v[k];                                    \
      STORE(j->to, y, 1, m, so_far);                                                          \
    }                                                                                         \
  }                                                                                           \
  static const Running NAME = {NAME##_slice, NAME##_rows, NAME##_columns};

/* Integers wrap, so they are unsigned here. */
#define LOAD_WHOLE(FROM, X, STEP, N, V) dm_load_i64(FROM, X, STEP, N, (int64_t *)(V))
#define STORE_WHOLE(TO, Y, STEP, N, V) dm_store_i64(TO, Y, STEP, N, (const int64_t *)(V))
RUNNING(sums_f32, float, dm_load_f32, dm_store_f32, 0, +=)
RUNNING(sums_f64, double, dm_load_f64, dm_store_f64, 0, +=)
RUNNING(sums_i64, uint64_t, LOAD_WHOLE, STORE_WHOLE, 0, +=)
RUNNING(products_f32, float, dm_load_f32, dm_store_f32, 1, *=)
RUNNING(products_f64, double, dm_load_f64, dm_store_f64, 1, *=)
RUNNING(products_i64, uint64_t, LOAD_WHOLE, STORE_WHOLE, 1, *=)
#undef RUNNING

/* Thread body: slices [begin, end), from the last element on when `reverse` is set. */
static void running_slices(void *ctx, int64_t begin, int64_t end) {
  const Job *j = ctx;
  const int64_t inner = j->in.inner, step = j->reverse ? -inner : inner;
  const int64_t start = j->reverse ? (j->in.n - 1) * inner : 0;
  for (int64_t i = begin, m; i < end; i += m) {
    const char *x[AT_ONCE];
    char *y[AT_ONCE];
    m = inner < COLUMNS ? 1 : dm_min_i64(dm_min_i64(DM_BLOCK, end - i), inner - i % inner);
    const bool neighbours = m >= COLUMNS;
    if (!neighbours) m = i + AT_ONCE <= end ? AT_ONCE : 1;
    for (int r = 0; r < (neighbours ? 1 : m); r++) {
      const int64_t first = dm_along_at(&j->in, i + r) + start;
      x[r] = j->x + first * dm_dtype_size(j->from);
      y[r] = j->y + first * dm_dtype_size(j->to);
    }
    if (neighbours) j->running->columns(j, x[0], y[0], step, m);
    else if (m == AT_ONCE) j->running->rows(j, x, y, step);
    else j->running->slice(j, x[0], y[0], step);
  }
}

/* dx_i of a slice of running products y: P_i S_i, with P_i the product of the elements before
   i and S_i = gy_i + x_(i+1) S_(i+1). Nothing is divided, so that zeros have their gradient.
   Of m slices together; element i of slice s is [i * down + s * right]. dx is stored in gy. */
enum { SIDE = 16 };
static inline __attribute__((always_inline)) void cumprod_back(int64_t n, int64_t m,
                                                               int64_t down, int64_t right,
                                                               const double *x, double *gy,
                                                               double *before) {
  double product[SIDE], sum[SIDE];
  for (int64_t s = 0; s < m; s++) product[s] = 1;
  for (int64_t i = 0; i < n; i++)
    for (int64_t s = 0; s < m; s++) {
      before[i * down + s * right] = product[s];
      product[s] *= x[i * down + s * right];
    }
  for (int64_t s = 0; s < m; s++) sum[s] = gy[(n - 1) * down + s * right];
  for (int64_t i = n - 1; i >= 0; i--)
    for (int64_t s = 0; s < m; s++) {
      const int64_t at = i * down + s * right;
      if (i < n - 1) sum[s] = gy[at] + x[at + down] * sum[s];
      gy[at] = before[at] * sum[s];
    }
}

/* Thread body: a few slices at once, and neighbours row by row where there are more of them.
   Long slices go one by one, for the memory. */
static void cumprod_back_slices(void *ctx, int64_t begin, int64_t end) {
  enum { MOST = 1 << 16 /* elements of the slices that go together */ };
  Job *j = ctx;
  const int64_t n = j->in.n, inner = j->in.inner, size = dm_dtype_size(j->from);
  const bool apart = inner < AT_ONCE || n > MOST / AT_ONCE;
  const int64_t most = apart ? (n > MOST / AT_ONCE ? 1 : AT_ONCE) : dm_min_i64(SIDE, MOST / n);
  double *const x = dm_scratch(DM_SCRATCH_TASK, 3 * n * most * (int64_t)sizeof *x);
  if (!x) {
    atomic_store(&j->failed, true);
    return;
  }
  double *const gy = x + n * most, *const before = gy + n * most;
  for (int64_t i = begin, m; i < end; i += m) {
    m = dm_min_i64(most, end - i);
    if (apart && m < most) m = 1;
    if (!apart) m = dm_min_i64(m, inner - i % inner);
    const int64_t runs = apart ? m : n, run = apart ? n : m;
    const int64_t step = apart ? inner : 1, first = dm_along_at(&j->in, i);
    for (int64_t r = 0; r < runs; r++) {
      const int64_t at = (apart ? dm_along_at(&j->in, i + r) : first + r * inner) * size;
      dm_load_f64(j->from, j->x + at, step, run, x + r * run);
      dm_load_f64(j->from, j->gy + at, step, run, gy + r * run);
    }
    if (!apart) cumprod_back(n, m, m, 1, x, gy, before);
    else if (m == AT_ONCE) cumprod_back(n, AT_ONCE, 1, n, x, gy, before);
    else cumprod_back(n, 1, 1, n, x, gy, before);
    for (int64_t r = 0; r < runs; r++) {
      const int64_t at = (apart ? dm_along_at(&j->in, i + r) : first + r * inner) * size;
      dm_store_f64(j->from, j->y + at, step, run, gy + r * run);
    }
  }
}
/* Integers and bool give int64 unless a dtype is asked for. */
dm_status cumsum_rule(dm_Call *c) {
  const dm_CumsumAttr *a = DM_ATTR(dm_CumsumAttr, c);
  const dm_DType own = (dm_DType)c->in[0]->dtype;
  int d;
  DM_TRY(dm_check_dim(c, c->in[0], a->dim, &d));
  dm_out_like(c, 0, c->in[0],
              a->dtype >= 0      ? (dm_DType)a->dtype
              : dm_is_float(own) ? own
                                 : DM_I64);
  return DM_OK;
}
/* 16-bit floats are added in float32 and rounded once each, float32 is in float64, as in
 * PyTorch. */
static dm_status running(dm_Call *c, bool reverse, bool product) {
  Job j = {.reverse = reverse};
  dm_Tensor *dense = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(open_job(&j, c, DM_ATTR(dm_CumsumAttr, c)->dim, &dense));
  if (dm_is_low(j.to)) j.running = product ? &products_f32 : &sums_f32;
  else if (dm_is_float(j.to)) j.running = product ? &products_f64 : &sums_f64;
  else j.running = product ? &products_i64 : &sums_i64;
  dm_parallel_for(dm_along_slices(&j.in), slice_grain(&j), running_slices, &j);
  dm_tensor_unref(&dense);
  return DM_OK;
}
dm_status cumsum_cpu(dm_Call *c) {
  return running(c, c->op == &dm_ops[DM_OP_cumsum_back], false);
}
dm_status running_product_cpu(dm_Call *c) { return running(c, false, true); }

/* in: x and gy, of one dtype and shape. */
dm_status running_product_back_cpu(dm_Call *c) {
  Job j = {.reverse = false};
  dm_Tensor *dense = NULL, *gy = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(open_job(&j, c, DM_ATTR(dm_CumsumAttr, c)->dim, &dense));
  dm_status st = dm_dense_new(c->in[1], &gy);
  if (st == DM_OK) {
    j.gy = dm_tensor_data(gy);
    dm_parallel_for(dm_along_slices(&j.in), slice_grain(&j), cumprod_back_slices, &j);
    dm_scratch_trim(DM_SCRATCH_TASK);
    if (atomic_load(&j.failed)) st = dm_fail(DM_EMEM, "cumprod: out of memory");
  }
  dm_tensor_unref(&dense);
  dm_tensor_unref(&gy);
  return st;
}
/* dx_i = sum over k >= i of gy_k. */
void cumsum_grad(dm_Grad *g) {
  const dm_CumsumAttr a = {DM_ATTR(dm_CumsumAttr, g)->dim, DM_NO_DTYPE};
  g->gx[0] = dm_x(g->x, DM_OP_cumsum_back, &a, 1, g->gy[0]);
}
void cumsum_back_grad(dm_Grad *g) {
  const dm_CumsumAttr a = {DM_ATTR(dm_CumsumAttr, g)->dim, DM_NO_DTYPE};
  g->gx[0] = dm_x(g->x, DM_OP_cumsum, &a, 1, g->gy[0]);
}

/* ---- running extremes ---- */

/* An element is taken where it is NaN, or not worse than what is best so far, so that of equals
   the last one is. A slice along dim, or m <= DM_BLOCK neighbouring ones row by row; y and
   `where` are the first elements of the two outputs. */
#define NOT_WORSE(V, BEST) (((V) != (V)) | (least ? (V) <= (BEST) : (V) >= (BEST)))
#define EXTREMES(SUFFIX, TYPE)                                                                \
  static void extreme_slice_##SUFFIX(const Job *j, const char *x, char *y, int64_t *where,    \
                                     bool least) {                                            \
    const int64_t step = j->in.inner, bytes = step * dm_dtype_size(j->from);                  \
    TYPE v[DM_BLOCK], best = 0;                                                               \
    int64_t last = 0;                                                                         \
    for (int64_t at = 0, m; at < j->in.n; at += m, x += m * bytes, y += m * bytes) {          \
      m = dm_min_i64(DM_BLOCK, j->in.n - at);                                                 \
      dm_load_##SUFFIX(j->from, x, step, m, v);                                               \
      if (at == 0) best = v[0];                                                               \
      for (int64_t k = 0; k < m; k++) {                                                       \
        if (NOT_WORSE(v[k], best)) best = v[k], last = at + k;                                \
        v[k] = best;                                                                          \
        where[(at + k) * step] = last + j->base;                                              \
      }                                                                                       \
      dm_store_##SUFFIX(j->to, y, step, m, v);                                                \
    }                                                                                         \
  }                                                                                           \
  static void extreme_columns_##SUFFIX(const Job *j, const char *x, char *y, int64_t *where,  \
                                       int64_t m, bool least) {                               \
    const int64_t step = j->in.inner, bytes = step * dm_dtype_size(j->from);                  \
    TYPE v[DM_BLOCK], best[DM_BLOCK];                                                         \
    int64_t last[DM_BLOCK];                                                                   \
    dm_load_##SUFFIX(j->from, x, 1, m, best);                                                 \
    for (int64_t at = 0; at < j->in.n; at++, x += bytes, y += bytes, where += step) {         \
      dm_load_##SUFFIX(j->from, x, 1, m, v);                                                  \
      for (int64_t k = 0; k < m; k++) {                                                       \
        const bool takes = NOT_WORSE(v[k], best[k]);                                          \
        best[k] = takes ? v[k] : best[k];                                                     \
        last[k] = takes ? at + j->base : last[k];                                             \
      }                                                                                       \
      dm_store_##SUFFIX(j->to, y, 1, m, best);                                                \
      memcpy(where, last, (size_t)m * sizeof *last);                                          \
    }                                                                                         \
  }                                                                                           \
  static void extremes_##SUFFIX(void *ctx, int64_t begin, int64_t end) {                      \
    const Job *j = ctx;                                                                       \
    const int64_t inner = j->in.inner, size = dm_dtype_size(j->from);                         \
    for (int64_t i = begin, m; i < end; i += m) {                                             \
      const int64_t at = dm_along_at(&j->in, i);                                              \
      const char *x = j->x + at * size;                                                       \
      char *y = j->y + at * size;                                                             \
      m = inner < COLUMNS ? 1 : dm_min_i64(dm_min_i64(DM_BLOCK, end - i), inner - i % inner); \
      if (m < COLUMNS) extreme_slice_##SUFFIX(j, x, y, j->index + at, j->reverse), m = 1;     \
      else extreme_columns_##SUFFIX(j, x, y, j->index + at, m, j->reverse);                   \
    }                                                                                         \
  }
EXTREMES(f32, float)
EXTREMES(f64, double)
EXTREMES(i64, int64_t)
#undef EXTREMES
#undef NOT_WORSE

/* out: x's dtype, and int64 positions; both in x's shape. */
dm_status running_extreme_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  dm_out_like(c, 1, c->in[0], DM_I64);
  return DM_OK;
}
dm_status running_extreme_cpu(dm_Call *c) {
  const dm_RunningExtremeAttr *a = DM_ATTR(dm_RunningExtremeAttr, c);
  Job j = {.reverse = a->least};
  dm_Tensor *dense = NULL;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(open_job(&j, c, a->dim, &dense));
  j.index = dm_tensor_data(c->out[1]);
  const dm_DType compute = dm_compute_dtype(j.from);
  dm_RangeFn *slices = compute == DM_F32   ? extremes_f32
                       : compute == DM_F64 ? extremes_f64
                                           : extremes_i64;
  dm_parallel_for(dm_along_slices(&j.in), slice_grain(&j), slices, &j);
  dm_tensor_unref(&dense);
  return DM_OK;
}

/* The gradient goes to the element that was taken. */
void running_extreme_grad(dm_Grad *g) {
  const int64_t dim = DM_ATTR(dm_RunningExtremeAttr, g)->dim;
  if (g->gy[0]) g->gx[0] = x_put_back(g, dim, g->gy[0], g->out[1]);
}

/* ---- nonzero ---- */

/* Lists where a block of m elements is not 0; returns how many there are. No branch depends on
   the elements. */
static int64_t find_nonzero(dm_DType type, const char *x, int64_t m, int16_t *at) {
  double v[DM_BLOCK];
  int64_t n = 0;
  dm_load_f64(type, x, 1, m, v);
  for (int64_t i = 0; i < m; i++) {
    at[n] = (int16_t)i;
    n += v[i] != 0;
  }
  return n;
}

/* A row of a tensor along its last dim: its first element, its positions in the other dims. */
typedef struct RowAt {
  int64_t first, at[DM_MAX_DIM];
} RowAt;

/* The row of an element of t, which is not empty. */
static RowAt row_of(const dm_Tensor *t, int64_t element) {
  const int last = t->ndim - 1;
  RowAt row = {0};
  if (last < 0) return row;
  int64_t rest = element / t->shape[last];
  row.first = rest * t->shape[last];
  for (int d = last - 1; d >= 0; rest /= t->shape[d--]) row.at[d] = rest % t->shape[d];
  return row;
}

/* Moves on to the row of an element, and writes the element's position. */
static void write_position(RowAt *row, const dm_Tensor *t, int64_t element, int64_t *to,
                           int base) {
  const int last = t->ndim - 1;
  if (last < 0) return;
  for (; element - row->first >= t->shape[last]; row->first += t->shape[last])
    for (int d = last - 1; ++row->at[d] == t->shape[d] && d > 0; d--) row->at[d] = 0;
  for (int d = 0; d < last; d++) to[d] = row->at[d] + base;
  to[last] = element - row->first + base;
}

/* A search of a contiguous tensor, in stretches of STRETCH elements: how many nonzero ones each
   stretch has, and then, before each, how many; to (count, ndim): their positions. */
enum { STRETCH = 64 * DM_BLOCK };
typedef struct Search {
  const dm_Tensor *dense;
  int64_t *count, *to;
  int base;
} Search;

/* Thread body: counts the stretches [begin, end). */
static void count_stretches(void *ctx, int64_t begin, int64_t end) {
  const Search *s = ctx;
  const dm_DType type = (dm_DType)s->dense->dtype;
  const char *x = dm_tensor_data(s->dense);
  double v[DM_BLOCK];
  for (int64_t u = begin; u < end; u++) {
    const int64_t last = dm_min_i64(s->dense->numel, (u + 1) * STRETCH);
    int64_t count = 0;
    for (int64_t at = u * STRETCH; at < last; at += DM_BLOCK) {
      const int64_t m = dm_min_i64(DM_BLOCK, last - at);
      dm_load_f64(type, x + at * dm_dtype_size(type), 1, m, v);
      for (int64_t i = 0; i < m; i++) count += v[i] != 0;
    }
    s->count[u] = count;
  }
}

/* Thread body: writes the positions of the stretches [begin, end). */
static void write_stretches(void *ctx, int64_t begin, int64_t end) {
  const Search *s = ctx;
  const dm_Tensor *const t = s->dense;
  const dm_DType type = (dm_DType)t->dtype;
  const char *x = dm_tensor_data(t);
  int16_t at[DM_BLOCK];
  for (int64_t u = begin; u < end; u++) {
    const int64_t from = u * STRETCH, last = dm_min_i64(t->numel, from + STRETCH);
    int64_t *to = s->to + s->count[u] * t->ndim;
    RowAt row = row_of(t, from);
    for (int64_t first = from; first < last; first += DM_BLOCK) {
      const int64_t n = find_nonzero(type, x + first * dm_dtype_size(type),
                                     dm_min_i64(DM_BLOCK, last - first), at);
      for (int64_t i = 0; i < n; i++, to += t->ndim)
        write_position(&row, t, first + at[i], to, s->base);
    }
  }
}

/* The number of nonzero elements of a tensor of the CPU; their positions to `to`, one row each,
   unless it is NULL. */
static dm_status search_nonzero(dm_Tensor *x, int64_t *to, int base, int64_t *count) {
  const int64_t n = (x->numel + STRETCH - 1) / STRETCH;
  Search s = {.to = to, .base = base};
  dm_Tensor *dense = NULL;
  *count = 0;
  DM_TRY(dm_dense_new(x, &dense));
  s.dense = dense;
  s.count = dm_alloc(dm_max_i64(1, n) * (int64_t)sizeof *s.count);
  const dm_status st = s.count ? DM_OK : dm_fail(DM_EMEM, "nonzero: out of memory");
  if (s.count) dm_parallel_for(n, 1, count_stretches, &s);
  for (int64_t u = 0; s.count && u < n; u++) {
    const int64_t found = s.count[u];
    s.count[u] = *count;
    *count += found;
  }
  if (s.count && to) dm_parallel_for(n, 1, write_stretches, &s);
  dm_tensor_unref(&dense);
  dm_free(s.count);
  return st;
}
/* The number of nonzero elements of a tensor on any device, which the rule needs for
   the output's shape. */
static dm_status count_nonzero(dm_Tensor *x, int64_t *count) {
  return x->device.type == DM_CPU ? search_nonzero(x, NULL, 0, count) : dm_count_far(x, count);
}
/* out: int64 positions (count, ndim). The count is read before the output is made,
   so the op waits for the device. */
dm_status nonzero_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], DM_I64);
  DM_TRY(count_nonzero(c->in[0], &c->out_meta[0].shape[0]));
  c->out_meta[0].shape[1] = c->in[0]->ndim;
  c->out_meta[0].ndim = 2;
  return DM_OK;
}
dm_status nonzero_cpu(dm_Call *c) {
  int64_t count;
  if (c->out[0]->numel == 0) return DM_OK;
  return search_nonzero(c->in[0], dm_tensor_data(c->out[0]), c->base, &count);
}
