/* Matrix products C (m,n) = A (m,k) B (k,n) by packing (K. Goto, R. van de Geijn, "Anatomy of
   high-performance matrix multiplication", 2008; F. Van Zee, R. van de Geijn, "BLIS", 2015).

   C is cut into tiles of at most TILE_M x TILE_N, one task each. For each block of DM_KC
   products a task packs its rows of A into panels of mr rows, which stay in L2, and its columns
   of B, strip by strip, into strips of nr columns, which stay in L1. The register kernel then
   reads both contiguously: it streams a panel against a strip and keeps an (mr, nr) tile of C
   in registers for all its products. Packing converts 16-bit elements to float32 (or joins
   bfloat16 to pairs), so that the kernels know one type. A matrix that already lies as the
   kernel reads it, or a product so small that packing costs more, is not packed.

   Sums run in float32, or float64 for float64. C of that type holds the sums itself; for a
   16-bit C, or where alpha or beta are neither 0 nor 1, they pass through a buffer and are
   scaled, biased and rounded once: each register tile when it is summed (dm_Store), or a row
   where there is more to do than to add a bias (dm_epilogue_row).

   Few rows of A use each element of B once or a few times, less often than packing pays for:
   they wait for memory, and tiles are columns of B over all of its depth. Where the depth of B
   is contiguous, as a layer's weights have it, the kernel turns blocks of B in registers
   (sum_turned), or takes the columns of B as the rows of a tile (sum_swapped). Where columns
   are contiguous it widens them in registers, or joins a few rows to pairs at a time (sum_few).
   Long contiguous rows times one column are inner products, each added in lanes (sum_dots).

   Where C is small and k is long, as in gradients of weights, k is cut too, into parts that
   have sums of their own and are added in order. Each element of C is a sum in order of k, or
   in the lanes of an inner product, and the number of parts depends on the shape alone, so that
   neither the tiles nor the number of threads changes a bit of the result. */
#include "cpu/gemm.h"

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/gemm_small.h"
#include "cpu/gemm_variant.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "cpu/vec.h"

#include <stdatomic.h>
#include <string.h>

enum {
  TILE_M = 396,               /* rows of floats in a block: 3/4 of a 512 KB L2 */
  TILE_N = 1024,              /* columns of a tile */
  TILE_N_STAGED = 512,        /* the same where sums pass through a buffer */
  WIDE_STRIP = 128,           /* bytes of a strip of AVX512's kernels: most have 1 MB of L2 */
  APART = 16,                 /* elements between rows of sums, which then lie in many sets */
  GROUP = 4,                  /* strips packed together: whole cache lines and pages */
  SPLIT_MIN_K = 1024,         /* least depth of a part of k */
  SPLIT_MAX = 16,             /* most parts of k */
  SPLIT_TILE = 128,           /* an area of C that makes a task, this wide and high; */
  SPLIT_TILES = 32,           /* as many of them need no parts of k */
  DIRECT_WORK = 64 * 64 * 64, /* products so small that packing costs more */
  DIRECT_PANELS = 4,          /* panels of A that pay for no packing of B */
  DOT_LEAST = 512,            /* depth of an inner product; greater ones are cut into blocks */
  DOT_BLOCK = 4096            /* of so many elements, added in float64 */
};
static const int64_t TASK_WORK = 1 << 18;  /* multiply-adds worth a task */
static const int64_t FEW_TASK = 1 << 17;   /* elements of B worth a task, for few rows; */
static const int64_t FEW_TILE = 1 << 19;   /* and at most in one */
static const int64_t SPLIT_SUMS = 4 << 20; /* most elements of all parts */

/* One call: the operands, and the plan that run() makes from their shapes. */
typedef struct Gemm {
  const dm_Kernel *kn;
  int64_t es; /* bytes of the compute type */
  int64_t n_batch, m, n, k;
  dm_Mat a, b;
  int64_t a_step, b_step, c_step, ldc;
  char *c;
  const char *bias;
  dm_BiasAxis bias_axis;
  dm_Epilogue epilogue;
  bool direct_a, direct_b; /* the kernel reads the matrix where it lies */
  bool in_place;           /* both, with few rows of a */
  bool turned;   /* the kernel turns blocks of b for few packed rows; b's depth is contiguous */
  bool swapped;  /* tiles take few rows of a as columns, and b's columns as rows */
  bool few;      /* the kernel multiplies few packed rows of a with b where it lies */
  bool dots;     /* a row of a, and columns of b whose depth is contiguous: inner products */
  bool staged;   /* sums reach C through a buffer */
  bool tilewise; /* of staged: each register tile is stored as soon as it is summed */
  int64_t tile_m, tile_n, n_tile_m, n_tile_n;
  int64_t kc, part_k, n_part; /* depth of a block, of a part */
  char *parts;                /* (n_part, m, n) sums, when n_part > 1 */
  atomic_bool failed;
} Gemm;

/* Whether one of the ways for few rows of a is taken. */
static bool has_few_rows(const Gemm *g) {
  return g->in_place || g->turned || g->swapped || g->few || g->dots;
}

/* Whether a register tile's sums are done, and stored, when the kernel has run once: the next
   ones take their memory. */
static bool has_one_block(const Gemm *g) { return g->tilewise && g->part_k <= g->kc; }

/* One tile of one part of one product. */
typedef struct Tile {
  int64_t i, j, m, n, k0, k1;
  const char *a, *b;    /* matrices of this product */
  dm_Prologue prologue; /* at NULL: C begins with nothing */
  dm_Store store;       /* at NULL: sums stay where they are */
} Tile;

/* The address of element (i, j) of a matrix at `data`. */
static const char *mat_at(const dm_Mat *x, const char *data, int64_t i, int64_t j) {
  return data + (i * x->rs + j * x->cs) * dm_dtype_size(x->dtype);
}

/* ---- buffers of a task ---------------------------------------------------- */

/* Packed A of a block, packed B of a group of strips, sums of a tile on their way to C. */
typedef struct Buffers {
  char *a, *b, *sums;
} Buffers;

/* Cuts this thread's scratch into the task's buffers; those that the plan does not need are
   empty. False without memory. */
static bool get_buffers(const Gemm *g, Buffers *buf) {
  const int64_t kc = dm_depth(g->kn, g->kc), mr = g->kn->mr, nr = g->kn->nr;
  const int64_t n_a = g->direct_a            ? 0
                      : g->dots              ? g->part_k
                      : g->turned            ? g->tile_m * dm_depth(g->kn, g->part_k)
                      : g->swapped || g->few ? mr * dm_depth(g->kn, g->part_k)
                                             : dm_ceil_div(g->tile_m, mr) * mr * kc;
  const int64_t n_b = g->direct_b  ? 0
                      : g->swapped ? nr * dm_depth(g->kn, g->part_k)
                                   : GROUP * nr * kc;
  const int64_t n_sums = !g->staged         ? 0
                         : has_one_block(g) ? mr * nr
                                            : g->tile_m * (g->tile_n + APART);
  *buf = (Buffers){NULL, NULL, NULL};
  const int64_t pad = 16; /* elements; keeps each part on a cache line */
  const int64_t all = n_a + n_b + n_sums;
  if (all == 0) return true;
  char *p = dm_scratch(DM_SCRATCH_TASK, (all + 3 * pad) * g->es);
  if (!p) return false;
  buf->a = p;
  buf->b = buf->a + (n_a + pad) / pad * pad * g->es;
  buf->sums = buf->b + (n_b + pad) / pad * pad * g->es;
  return true;
}

/* ---- one tile ---------------------------------------------------------------- */

/* Plans the prefetch of the data packed next, spread over the tiles of this group, or of this
   block: B for the next group, A for the next block. */
static void list_prefetches(const Gemm *g, const Tile *t, int64_t k0, int64_t kc, int64_t j0,
                            dm_Prefetch *prefetch) {
  const int64_t nr = g->kn->nr, rows = dm_ceil_div(t->m, g->kn->mr);
  const int64_t n = dm_min_i64(GROUP * nr, t->n - j0), k1 = k0 + kc;
  const int64_t next_k = dm_min_i64(g->kc, t->k1 - k1);
  if (j0 == 0)
    prefetch[0] = g->direct_a
                      ? (dm_Prefetch){0}
                      : dm_prefetch(g->a.dtype, mat_at(&g->a, t->a, t->i, k1), g->a.rs, g->a.cs,
                                    t->m, next_k, rows * dm_ceil_div(t->n, nr));
  if (g->direct_b) return;
  const bool last = j0 + n == t->n;
  const int64_t j = last ? 0 : j0 + n, k = last ? k1 : k0;
  prefetch[1] = dm_prefetch(g->b.dtype, mat_at(&g->b, t->b, k, t->j + j), g->b.cs, g->b.rs,
                            dm_min_i64(GROUP * nr, t->n - j), last ? next_k : kc,
                            rows * dm_ceil_div(n, nr));
}

/* The store from column j on. */
static dm_Store store_from(const dm_Store *store, int64_t j) {
  dm_Store s = *store;
  s.at += j * dm_dtype_size(s.dtype);
  if (s.bias) s.bias += j * s.bias_col * dm_dtype_size(s.bias_dtype);
  return s;
}

/* Multiplies depth [k0, k0+kc) into out. */
static void run_block(const Gemm *g, const Tile *t, const Buffers *buf, int64_t k0, int64_t kc,
                      char *out, int64_t out_rs, bool add) {
  const dm_Kernel *const kn = g->kn;
  const int64_t es = g->es, nr = kn->nr, depth = dm_depth(kn, kc);
  dm_Panels a = {mat_at(&g->a, t->a, t->i, k0), kn->mr * g->a.rs, g->a.rs, g->a.cs};
  dm_Prefetch prefetch[2] = {{0}, {0}};
  if (!g->direct_a) {
    dm_pack_panels(kn, DM_A, g->a.dtype, a.at, a.rs, a.cs, t->m, kc, buf->a);
    a = dm_packed_panels(kn, buf->a, kn->mr * depth);
  }
  const bool begun = t->prologue.at && k0 == t->k0, one_tile = has_one_block(g);
  const bool stored = t->store.at && k0 + kc == t->k1;
  for (int64_t j0 = 0; j0 < t->n; j0 += GROUP * nr) {
    const int64_t n = dm_min_i64(GROUP * nr, t->n - j0);
    const char *b = mat_at(&g->b, t->b, k0, t->j + j0);
    if (!g->direct_b) dm_pack_panels(kn, DM_B, g->b.dtype, b, g->b.cs, g->b.rs, n, kc, buf->b);
    list_prefetches(g, t, k0, kc, j0, prefetch);
    for (int64_t j = 0; j < n; j += nr) {
      const dm_Strip strip = {g->direct_b ? b + j * es : buf->b + j * depth * es,
                              g->direct_b ? g->b.rs : nr};
      dm_Prologue prologue = t->prologue;
      if (begun) prologue.at = (const char *)prologue.at + (j0 + j) * prologue.col * es;
      const dm_Store store = stored ? store_from(&t->store, j0 + j) : t->store;
      const dm_Sums sums = {out + (one_tile ? 0 : (j0 + j) * es),
                            out_rs,
                            add,
                            begun ? &prologue : NULL,
                            stored ? &store : NULL,
                            one_tile};
      dm_tile_column(kn, t->m, (int)dm_min_i64(nr, n - j), depth, &a, &strip, &sums, prefetch);
    }
  }
}

/* m rows of n_bytes become 0: the sum over a depth of 0. */
static void zero_rows(char *out, int64_t m, int64_t n_bytes, int64_t rs_bytes) {
  for (int64_t i = 0; i < m; i++) memset(out + i * rs_bytes, 0, (size_t)n_bytes);
}

/* The sums of a tile of few rows over its depth: a strip of columns is read along all of it. */
static void sum_in_place(const Gemm *g, const Tile *t, char *out, int64_t out_rs, bool add) {
  const int64_t nr = g->kn->nr;
  for (int64_t j = 0; j < t->n; j += nr)
    for (int64_t k = t->k0; k < t->k1; k += g->kc) {
      const bool is_first = k == t->k0;
      const dm_Panels a = {mat_at(&g->a, t->a, t->i, k), g->kn->mr * g->a.rs, g->a.rs, g->a.cs};
      const dm_Strip strip = {mat_at(&g->b, t->b, k, t->j + j), g->b.rs};
      dm_Prologue prologue = t->prologue;
      if (prologue.at) prologue.at = (const char *)prologue.at + j * prologue.col * g->es;
      const dm_Sums sums = {.at = out + j * g->es,
                            .rs = out_rs,
                            .add = add || !is_first,
                            .prologue = is_first && prologue.at ? &prologue : NULL};
      dm_tile_column(g->kn, t->m, (int)dm_min_i64(nr, t->n - j),
                     dm_depth(g->kn, dm_min_i64(g->kc, t->k1 - k)), &a, &strip, &sums, NULL);
    }
}

/* 32 or fewer columns of b, j to j + n - 1 of the tile, as rows for the kernel's tiles: where
   they lie, or packed at the end of the matrix. */
static dm_Panels columns_as_rows(const Gemm *g, const Tile *t, const Buffers *buf, int64_t j,
                                 int64_t n) {
  const dm_Kernel *const kn = g->kn;
  const int64_t depth = t->k1 - t->k0;
  const char *const at = mat_at(&g->b, t->b, t->k0, t->j + j);
  if (n == kn->mr && depth % dm_depth_unit(kn) == 0 && g->b.cs % 2 == 0 &&
      (uintptr_t)at % 4 == 0)
    return (dm_Panels){at, 0, g->b.cs / 2, 1};
  dm_pack_panels(kn, DM_A, g->b.dtype, at, g->b.cs, 1, n, depth, buf->a);
  return dm_packed_panels(kn, buf->a, 0);
}

/* out (m, n) = [out or prologue +] the transpose of b^T a^T, whose tiles read b where it lies:
   a's few rows are packed once, as columns. The tiles' sums are the same either way. */
static void sum_swapped(const Gemm *g, const Tile *t, const Buffers *buf, float *out,
                        int64_t out_rs, bool add) {
  const dm_Kernel *const kn = g->kn;
  const int64_t nr = kn->nr, depth = t->k1 - t->k0;
  const int width = t->m <= nr / 2 ? (int)nr / 2 : (int)nr;
  const dm_Prologue *const first = t->prologue.at ? &t->prologue : NULL;
  float sums[DM_MOST_NR * DM_MOST_NR] = {0};
  dm_pack_panels(kn, DM_B, g->a.dtype, mat_at(&g->a, t->a, t->i, t->k0), g->a.rs, g->a.cs, t->m,
                 depth, buf->b);
  for (int64_t j = 0; j < t->n; j += kn->mr) {
    const int64_t n = dm_min_i64(kn->mr, t->n - j);
    for (int64_t r = 0; (add || first) && r < n; r++)
      for (int64_t i = 0; i < t->m; i++)
        sums[r * nr + i] =
            first ? ((const float *)first->at)[i * first->row + (j + r) * first->col]
                  : out[i * out_rs + j + r];
    const dm_Panels rows = columns_as_rows(g, t, buf, j, n);
    const dm_Strip columns = {buf->b, nr};
    const dm_Sums to = {.at = sums, .rs = nr, .add = add || first};
    dm_tile_column(kn, n, width, dm_depth(kn, depth), &rows, &columns, &to, NULL);
    for (int64_t i = 0; i < t->m; i++)
      for (int64_t r = 0; r < n; r++) out[i * out_rs + j + r] = sums[r * nr + i];
  }
}

/* out (m, n) = the tile's prologue; false: it has none. */
static bool begin_few(const Tile *t, float *out, int64_t out_rs) {
  const dm_Prologue *const first = &t->prologue;
  if (!first->at) return false;
  for (int64_t i = 0; i < t->m; i++)
    for (int64_t j = 0; j < t->n; j++)
      out[i * out_rs + j] = ((const float *)first->at)[i * first->row + j * first->col];
  return true;
}

/* out (m, n) = [out or prologue +] the sums of few rows, which are packed once; blocks of b,
   whose depth is contiguous, are turned where it lies. */
static void sum_turned(const Gemm *g, const Tile *t, const Buffers *buf, float *out,
                       int64_t out_rs, bool add) {
  const dm_Kernel *const kn = g->kn;
  const int64_t depth = t->k1 - t->k0, item = kn->pairs ? 2 : 1;
  const int m = (int)t->m;
  add |= begin_few(t, out, out_rs);
  kn->pack(g->a.dtype, mat_at(&g->a, t->a, t->i, t->k0), g->a.rs, g->a.cs, m, depth, m, buf->a);
  for (int64_t j = 0; j < t->n; j += kn->nr)
    for (int64_t k = 0; k < depth; k += g->kc)
      kn->turned(g->b.dtype, m, (int)dm_min_i64(kn->nr, t->n - j),
                 dm_depth(kn, dm_min_i64(g->kc, depth - k)),
                 buf->a + dm_depth(kn, k) * m * g->es, mat_at(&g->b, t->b, t->k0 + k, t->j + j),
                 g->b.cs / item, out + j, out_rs, add || k > 0);
}

/* The same where b's columns are contiguous. */
static void sum_few(const Gemm *g, const Tile *t, const Buffers *buf, float *out,
                    int64_t out_rs, bool add) {
  const dm_Kernel *const kn = g->kn;
  const int64_t step = kn->tiles ? g->part_k : g->kc; /* tiles go on from what c holds */
  const int m = (int)t->m;
  add |= begin_few(t, out, out_rs);
  for (int64_t k = t->k0; k < t->k1; k += step, add = true) {
    const int64_t depth = dm_min_i64(step, t->k1 - k);
    const void *const a = mat_at(&g->a, t->a, t->i, k);
    if (kn->tiles) dm_pack_panels(kn, DM_A, g->a.dtype, a, g->a.rs, g->a.cs, m, depth, buf->a);
    else kn->pack(g->a.dtype, a, g->a.rs, g->a.cs, m, depth, m, buf->a);
    kn->few(g->b.dtype, m, t->n, depth, buf->a, mat_at(&g->b, t->b, k, t->j), g->b.rs, out,
            out_rs, add);
  }
}

/* out (1, n) = [out or prologue +] the inner products of a row of a with columns of b. */
static void sum_dots(const Gemm *g, const Tile *t, const Buffers *buf, float *out,
                     int64_t out_rs, bool add) {
  const int64_t depth = t->k1 - t->k0;
  const void *row = mat_at(&g->a, t->a, t->i, t->k0);
  add |= begin_few(t, out, out_rs);
  if (!g->direct_a) {
    dm_load_f32(g->a.dtype, row, g->a.cs, depth, (float *)(void *)buf->a);
    row = buf->a;
  }
  for (int64_t j = 0; j < t->n; j++) {
    double sum = 0;
    for (int64_t k = 0; k < depth; k += DOT_BLOCK)
      sum += dm_loops()->f32.dot(g->b.dtype, mat_at(&g->b, t->b, t->k0 + k, t->j + j), DM_F32,
                                 (const float *)row + k, dm_min_i64(DOT_BLOCK, depth - k));
    out[j] = (add ? out[j] : 0) + (float)sum;
  }
}

/* The sums of a tile over its depth [k0, k1), block after block, into out. */
static void sum_tile(const Gemm *g, const Tile *t, const Buffers *buf, char *out,
                     int64_t out_rs, bool add) {
  if (t->k0 == t->k1 && !add) zero_rows(out, t->m, t->n * g->es, out_rs * g->es);
  if (has_few_rows(g)) {
    if (g->in_place) sum_in_place(g, t, out, out_rs, add);
    else
      (g->few      ? sum_few
       : g->dots   ? sum_dots
       : g->turned ? sum_turned
                   : sum_swapped)(g, t, buf, (float *)(void *)out, out_rs, add);
    return;
  }
  for (int64_t k = t->k0; k < t->k1; k += g->kc) {
    run_block(g, t, buf, k, dm_min_i64(g->kc, t->k1 - k), out, out_rs, add);
    add = true;
  }
}

/* sums (m,n) -> C: scaled, biased and rounded. */
static void store_rows(const Gemm *g, int64_t i0, int64_t m, int64_t j0, int64_t n,
                       const char *sums, int64_t sums_rs, char *c) {
  const int64_t c_es = dm_dtype_size(g->epilogue.c_dtype);
  const int64_t b_es = g->bias ? dm_dtype_size(g->epilogue.bias_dtype) : 0;
  const int step = g->bias_axis == DM_BIAS_PER_COL;
  for (int64_t i = 0; i < m; i++)
    dm_epilogue_row(&g->epilogue, g->kn->type, sums + i * sums_rs * g->es, n,
                    c + ((i0 + i) * g->ldc + j0) * c_es,
                    g->bias ? g->bias + (step ? j0 : i0 + i) * b_es : NULL, step);
}

/* C of the compute type takes the sums in place; bias is laid down first, a tile of
   the kernel at a time where it need not be converted. */
static void run_in_place(const Gemm *g, Tile *t, const Buffers *buf, char *c) {
  char *const out = c + (t->i * g->ldc + t->j) * g->es;
  bool add = g->epilogue.beta == 1;
  if (g->bias && !add && g->epilogue.bias_dtype == g->kn->type && t->k0 < t->k1) {
    const int col = g->bias_axis == DM_BIAS_PER_COL;
    t->prologue = (dm_Prologue){g->bias + (col ? t->j : t->i) * g->es, !col, col};
  } else if (g->bias) {
    const dm_Epilogue bias_only = {0, g->epilogue.beta, g->epilogue.c_dtype,
                                   g->epilogue.bias_dtype};
    const double zeros[TILE_N] = {0}; /* also the zeros of floats */
    Gemm first = {.kn = g->kn,
                  .es = g->es,
                  .ldc = g->ldc,
                  .bias = g->bias,
                  .bias_axis = g->bias_axis,
                  .epilogue = bias_only};
    store_rows(&first, t->i, t->m, t->j, t->n, (const char *)zeros, 0, c);
    add = true;
  }
  sum_tile(g, t, buf, out, g->ldc, add);
}

/* The destination of a tile in C, of one product. */
static dm_Store store_of(const Gemm *g, const Tile *t, char *c) {
  const int64_t size = dm_dtype_size(g->epilogue.c_dtype);
  const int col = g->bias_axis == DM_BIAS_PER_COL;
  dm_Store s = {g->epilogue.c_dtype,
                g->epilogue.bias_dtype,
                c + (t->i * g->ldc + t->j) * size,
                g->ldc,
                g->bias,
                !col,
                col};
  if (s.bias) s.bias += (col ? t->j : t->i) * dm_dtype_size(s.bias_dtype);
  return s;
}

/* Task number: (product of the batch, part of k, row of tiles, column of tiles), the last one
   fastest, so that tasks in turn share their rows of A. Sums go to one of three destinations:
   the parts, a buffer, or C itself. */
static void run_tile(Gemm *g, const Buffers *buf, int64_t task) {
  const int64_t tn = task % g->n_tile_n, rest = task / g->n_tile_n;
  const int64_t tm = rest % g->n_tile_m, outer = rest / g->n_tile_m;
  const int64_t part = outer % g->n_part, batch = outer / g->n_part;
  Tile t = {.i = tm * g->tile_m, .j = tn * g->tile_n, .k0 = part * g->part_k};
  t.m = dm_min_i64(g->tile_m, g->m - t.i);
  t.n = dm_min_i64(g->tile_n, g->n - t.j);
  t.k1 = dm_min_i64(g->k, t.k0 + g->part_k);
  t.a = (const char *)g->a.data + batch * g->a_step * dm_dtype_size(g->a.dtype);
  t.b = (const char *)g->b.data + batch * g->b_step * dm_dtype_size(g->b.dtype);
  char *const c = g->c + batch * g->c_step * dm_dtype_size(g->epilogue.c_dtype);
  if (g->n_part > 1) {
    char *const out = g->parts + ((part * g->m + t.i) * g->n + t.j) * g->es;
    sum_tile(g, &t, buf, out, g->n, false);
  } else if (g->staged) {
    const int64_t rs = has_one_block(g) ? g->kn->nr : t.n + APART;
    if (g->tilewise) t.store = store_of(g, &t, c);
    sum_tile(g, &t, buf, buf->sums, rs, false);
    if (!g->tilewise) store_rows(g, t.i, t.m, t.j, t.n, buf->sums, rs, c);
  } else {
    run_in_place(g, &t, buf, c);
  }
}

/* Tasks [begin, end) with one set of buffers. */
static void run_tasks(void *ctx, int64_t begin, int64_t end) {
  Gemm *const g = ctx;
  Buffers buf;
  if (!get_buffers(g, &buf)) {
    atomic_store(&g->failed, true);
    return;
  }
  for (int64_t i = begin; i < end; i++) run_tile(g, &buf, i);
}

/* ---- parts of k ----------------------------------------------------------- */

static void add_f32(float *to, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] += x[i];
}
static void add_f64(double *to, const double *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) to[i] += x[i];
}

/* Rows [begin, end): sums the parts into the first, then stores. */
static void join_parts(void *ctx, int64_t begin, int64_t end) {
  const Gemm *const g = ctx;
  const int64_t size = g->m * g->n * g->es;
  char *const sums = g->parts + begin * g->n * g->es;
  const int64_t count = (end - begin) * g->n;
  for (int64_t p = 1; p < g->n_part; p++) {
    if (g->kn->type == DM_F64)
      add_f64((double *)(void *)sums, (const double *)(void *)(sums + p * size), count);
    else add_f32((float *)(void *)sums, (const float *)(void *)(sums + p * size), count);
  }
  store_rows(g, begin, end - begin, 0, g->n, sums, g->n, g->c);
}

/* ---- the plan --------------------------------------------------------------- */

/* Cuts k into parts where C has fewer than SPLIT_TILES areas to share among threads, as the
   gradient of a weight has: m and n are layer widths, k is batch times positions. The number
   of threads is not asked, so results do not depend on it. */
static void plan_split(Gemm *g) {
  g->n_part = 1;
  g->part_k = g->k;
  g->kc = dm_block_depth(g->kn, g->k);
  const int64_t tiles = dm_ceil_div(g->m, SPLIT_TILE) * dm_ceil_div(g->n, SPLIT_TILE);
  if (g->n_batch > 1 || tiles >= SPLIT_TILES || g->k < 2 * SPLIT_MIN_K) return;
  int64_t parts = dm_min_i64(SPLIT_MAX, g->k / SPLIT_MIN_K);
  parts = dm_min_i64(parts, SPLIT_SUMS / (g->m * g->n));
  if (parts < 2) return;
  g->part_k = dm_even_part(g->k, dm_ceil_div(g->k, parts), DM_KC);
  g->n_part = dm_ceil_div(g->k, g->part_k);
}

/* Estimates how long a product takes in these tiles, in multiply-adds times a depth common to
   all plans: the busiest thread's tiles, of which it multiplies the area and packs two sides,
   and the wait for the last thread. */
static double time_in_tiles(const Gemm *g, int64_t tile_m, int64_t tile_n, int threads) {
  static const double pack = 8, wait = 1.0 / 32; /* of an element; of a tile. Measured */
  const int64_t tiles =
      dm_ceil_div(g->m, tile_m) * dm_ceil_div(g->n, tile_n) * g->n_part * g->n_batch;
  return ((double)dm_ceil_div(tiles, threads) + wait) *
         ((double)(tile_m * tile_n) + pack * (double)(tile_m + tile_n));
}

/* Tiles of at most L2 size, halved as long as that keeps threads busy. */
static void plan_tiles(Gemm *g) {
  const int64_t mr = g->kn->mr, nr = g->kn->nr;
  const bool large =
      nr * g->es >= WIDE_STRIP && !g->kn->tiles; /* 0.97 of the time in 16 bits */
  int64_t m = dm_even_part(g->m, (large ? 2 : 1) * TILE_M * 4 / g->es, mr);
  int64_t n = dm_even_part(g->n, g->staged && !large ? TILE_N_STAGED : TILE_N, nr);
  const int threads = dm_threads_here();
  double best = time_in_tiles(g, m, n, threads);
  g->tile_m = m;
  g->tile_n = n;
  while (threads > 1 && m * n * g->part_k >= 8 * TASK_WORK) {
    if (n >= m && n > 4 * nr) n = dm_even_part(n, dm_ceil_div(n, 2), nr);
    else if (m > 8 * mr) m = dm_even_part(m, dm_ceil_div(m, 2), mr);
    else break;
    const double time = time_in_tiles(g, m, n, threads);
    if (time >= best) continue;
    best = time;
    g->tile_m = m;
    g->tile_n = n;
  }
}

/* Few rows wait for b: tiles are columns of b, as wide as leaves two for each thread, or one
   where rows of b are read, so that long runs of them are. */
static void plan_columns(Gemm *g) {
  const int64_t unit = g->dots      ? 1
                       : g->few     ? g->kn->few_nr
                       : g->swapped ? g->kn->mr
                                    : g->kn->nr;
  const int64_t share = dm_ceil_div(g->n, (g->few ? 1 : 2) * dm_threads_here());
  const int64_t most = dm_min_i64(TILE_N, FEW_TILE / dm_max_i64(1, g->part_k) + unit);
  g->tile_m = g->few || g->turned ? dm_even_part(g->m, g->kn->few_rows, 1) : g->m;
  g->tile_n = dm_even_part(g->n, dm_max_i64(unit, dm_min_i64(most, share)), unit);
}

/* Whether the rows of x, of depth k, are pairs as they lie, from step to step of a batch. */
static bool are_pairs(const dm_Mat *x, int64_t rs, int64_t cs, int64_t step, int64_t k) {
  return cs == 1 && k % 2 == 0 && rs % 2 == 0 && step % 2 == 0 && (uintptr_t)x->data % 4 == 0;
}

/* Whether few rows of a can read b, whose depth is contiguous, without packing: can_turn by a
   kernel that turns blocks of it, can_swap by tiles that take its columns as rows. */
static bool can_turn(const Gemm *g, const dm_Mat *b, int64_t b_step) {
  const dm_Kernel *const kn = g->kn;
  if (!kn->turned || b->rs != 1) return false;
  if (kn->pairs) return are_pairs(b, b->cs, b->rs, b_step, g->k);
  return b->dtype == kn->type || dm_is_low(b->dtype);
}
static bool can_swap(const dm_Kernel *kn, const dm_Mat *b) { return kn->tiles && b->rs == 1; }

/* An operand is read where it lies if it has the compute type and packing would cost more than
   it saves: the kernel uses each element of A n / nr times, and of B m / mr times. */
static void plan_direct(Gemm *g) {
  const dm_DType type = g->kn->type;
  const bool small = g->m * g->n * dm_min_i64(g->k, DM_KC) <= DIRECT_WORK;
  g->direct_a = g->a.dtype == type && (small || g->n <= 2 * g->kn->nr);
  g->direct_b =
      g->b.dtype == type && g->b.cs == 1 && (small || g->m <= DIRECT_PANELS * g->kn->mr);
  g->in_place = g->m <= DM_FEW_ROWS && g->b.cs == 1 && g->direct_b && g->a.dtype == type;
  if (g->in_place) g->direct_a = true;
  g->turned = g->m <= DM_FEW_ROWS && g->b.cs != 1 && can_turn(g, &g->b, g->b_step);
  if (g->turned) g->direct_b = true, g->direct_a = false;
  g->swapped = g->m <= g->kn->nr && g->b.cs != 1 && can_swap(g->kn, &g->b);
  g->few = g->kn->few && g->m <= dm_max_i64(DM_FEW_ROWS, g->kn->few_rows) && g->b.cs == 1 &&
           (g->kn->pairs || g->b.dtype == type || g->b.dtype == g->kn->few_low);
  if (g->few) g->direct_b = true, g->direct_a = g->in_place = false;
  if (g->dots) {
    g->direct_b = true;
    g->direct_a = g->a.dtype == DM_F32 && g->a.cs == 1;
    g->in_place = g->turned = g->swapped = g->few = false;
  }
}

/* The kernel for both operands' dtype, or that of the compute type where they differ or k is
   0. */
static const dm_Kernel *kernel_for(const Gemm *g, dm_DType type) {
  return g->a.dtype == g->b.dtype && g->k > 0 ? dm_kernel_for(g->a.dtype) : dm_kernel(type);
}

/* A matrix whose columns are contiguous, times one column, becomes a row times the transpose of
   the matrix: the kernel takes its columns as vectors, where it lies. So does one whose rows
   are, where the kernel turns them or inner products do. C is contiguous, and is the same
   either way but for these, which rows of any number take. */
static void transpose_column(Gemm *g) {
  const dm_Mat a = g->a, b = g->b;
  const dm_Mat turned = {a.data, a.dtype, a.cs, a.rs}, row = {b.data, b.dtype, b.cs, b.rs};
  if (g->n != 1 || g->ldc != 1) return;
  g->dots = g->kn->type == DM_F32 && g->k >= DOT_LEAST && a.cs == 1;
  if (g->m == 1 && !g->dots) return;
  if (!g->dots && a.rs != 1 && !can_turn(g, &turned, g->a_step) && !can_swap(g->kn, &turned))
    return;
  const int64_t m = g->m, a_step = g->a_step;
  g->a = row;
  g->b = turned;
  g->m = 1;
  g->n = g->ldc = m;
  g->a_step = g->b_step;
  g->b_step = a_step;
  if (g->bias_axis != DM_BIAS_NONE)
    g->bias_axis = g->bias_axis == DM_BIAS_PER_COL ? DM_BIAS_PER_ROW : DM_BIAS_PER_COL;
}

/* Plans the call from its shapes, runs its tasks, and joins the parts of k. */
static dm_status run(Gemm *g) {
  const bool wide = g->a.dtype == DM_F64 || g->b.dtype == DM_F64;
  if (wide && g->a.dtype != g->b.dtype)
    return dm_fail(DM_EARG, "matmul: a is %s and b is %s; float64 goes with float64",
                   dm_dtype_name(g->a.dtype), dm_dtype_name(g->b.dtype));
  if (g->m <= 0 || g->n <= 0 || g->n_batch <= 0) return DM_OK;
  g->kn = kernel_for(g, wide ? DM_F64 : DM_F32);
  g->es = dm_dtype_size(g->kn->type);
  transpose_column(g);
  plan_split(g);
  g->staged = g->n_part == 1 && (g->epilogue.c_dtype != g->kn->type || g->epilogue.alpha != 1 ||
                                 (g->epilogue.beta != 0 && g->epilogue.beta != 1));
  plan_direct(g);
  g->tilewise = g->staged && dm_is_low(g->epilogue.c_dtype) && g->epilogue.alpha == 1 &&
                g->epilogue.beta == 0 && g->kn->type == DM_F32 && g->k > 0 && !has_few_rows(g);
  if (has_few_rows(g)) plan_columns(g);
  else plan_tiles(g);
  g->n_tile_m = dm_ceil_div(g->m, g->tile_m);
  g->n_tile_n = dm_ceil_div(g->n, g->tile_n);
  if (g->n_part > 1) {
    g->parts = dm_scratch(DM_SCRATCH_JOB, g->n_part * g->m * g->n * g->es);
    if (!g->parts) goto no_memory;
  }
  const int64_t work = g->tile_m * g->tile_n * g->part_k + 1;
  const bool few = has_few_rows(g);
  const int64_t grain = dm_max_i64(1, (few ? FEW_TASK : TASK_WORK) / work);
  dm_parallel_for(g->n_batch * g->n_part * g->n_tile_m * g->n_tile_n, grain, run_tasks, g);
  if (atomic_load(&g->failed)) goto no_memory;
  if (g->n_part > 1) {
    const int64_t rows = dm_max_i64(1, (1 << 16) / (g->n_part * g->n));
    dm_parallel_for(g->m, rows, join_parts, g);
    dm_scratch_trim(DM_SCRATCH_JOB);
  }
  return DM_OK;
no_memory:
  return dm_fail(DM_EMEM, "matmul: out of memory for the buffers of (%lld, %lld, %lld)",
                 (long long)g->m, (long long)g->n, (long long)g->k);
}

dm_status dm_gemm(int64_t m, int64_t n, int64_t k, double alpha, dm_Mat a, dm_Mat b,
                  double beta, void *c, dm_DType c_dtype, int64_t ldc, const void *bias,
                  dm_DType bias_dtype, dm_BiasAxis bias_axis) {
  if (bias_axis == DM_BIAS_NONE) bias = NULL;
  if (alpha == 1 && beta == 0 && bias_axis != DM_BIAS_PER_ROW &&
      dm_gemm_small(m, n, k, &a, &b, c, c_dtype, ldc, bias, bias_dtype))
    return DM_OK;
  Gemm g = {.n_batch = 1, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .ldc = ldc};
  g.bias = bias;
  g.bias_axis = bias_axis;
  g.epilogue = (dm_Epilogue){alpha, beta, c_dtype, bias_dtype};
  return run(&g);
}

dm_status dm_gemm_batched(int64_t n_batch, int64_t m, int64_t n, int64_t k, double alpha,
                          dm_Mat a, int64_t a_step, dm_Mat b, int64_t b_step, double beta,
                          void *c, dm_DType c_dtype, int64_t ldc, int64_t c_step) {
  Gemm g = {.n_batch = n_batch,
            .m = m,
            .n = n,
            .k = k,
            .a = a,
            .b = b,
            .a_step = a_step,
            .b_step = b_step,
            .c_step = c_step,
            .c = c,
            .ldc = ldc,
            .epilogue = {alpha, beta, c_dtype, c_dtype}};
  return run(&g);
}
