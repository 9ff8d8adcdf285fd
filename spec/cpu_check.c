/* Checks src/cpu against plain references in double: conversions, threads,
   matrix products and convolutions. Prints "N passed, N failed".
   Tolerances: k products below 1 in size, summed in any order, err by less
   than eps * k / 2 each way; storing adds half a unit in the last place (ulp). */
#include "base/alloc.h"
#include "base/half.h"
#include "cpu/conv.h"
#include "cpu/gemm.h"
#include "cpu/gemm_packed.h"
#include "cpu/gemm_variant.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/variant.h"
#include "cpu/vec.h"
#include "engine/op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int n_passed, n_failed;

static void check(bool ok, const char *what) {
  if (ok) {
    n_passed++;
  } else {
    n_failed++;
    printf("FAILED: %s\n", what);
  }
}

/* ---- random numbers: xorshift (Marsaglia 2003) ----------------------------- */

static uint64_t seed = 88172645463325252u;
static uint64_t next_u64(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed;
}
static int64_t below(int64_t n) { return (int64_t)(next_u64() % (uint64_t)n); }
static double uniform(void) { return (double)(next_u64() >> 11) * 0x1p-52 - 1; }

static double eps_of(dm_DType t) {
  return t == DM_F64 ? 0x1p-52 : t == DM_F32 ? 0x1p-23 : t == DM_F16 ? 0x1p-10 : 0x1p-7;
}

/* Arrays are a multiple of their size with guard bytes on both sides. */
enum { GUARD = 64, FILL = 0xa5 };
static void *new_array(dm_DType t, int64_t n) {
  const size_t size = (size_t)(n * dm_dtype_size(t));
  unsigned char *p = malloc(size + 2 * GUARD);
  if (!p) exit(2);
  memset(p, FILL, size + 2 * GUARD);
  return p + GUARD;
}
static bool guards_hold(dm_DType t, int64_t n, const void *array) {
  const unsigned char *p = array;
  const int64_t size = n * dm_dtype_size(t);
  for (int i = 0; i < GUARD; i++)
    if (p[-1 - i] != FILL || p[size + i] != FILL) return false;
  return true;
}
static void free_array(void *p) { free((unsigned char *)p - GUARD); }

static void *random_array(dm_DType t, int64_t n) {
  void *p = new_array(t, n);
  for (int64_t i = 0; i < n; i++) {
    const double v = uniform();
    dm_store_f64(t, (char *)p + i * dm_dtype_size(t), 1, 1, &v);
  }
  return p;
}
static double get(dm_DType t, const void *p, int64_t i) {
  double v;
  dm_load_f64(t, (const char *)p + i * dm_dtype_size(t), 1, 1, &v);
  return v;
}

/* ---- conversions -------------------------------------------------------------- */

static bool all_patterns(dm_DType t, float (*up)(uint16_t), uint16_t (*down)(float)) {
  static uint16_t half[65536], back[65536];
  static float wide[65536];
  bool ok = true;
  for (int i = 0; i < 65536; i++) half[i] = (uint16_t)i;
  dm_load_f32(t, half, 1, 65536, wide);
  dm_store_f32(t, back, 1, 65536, wide);
  for (int i = 0; i < 65536; i++) {
    const float v = up((uint16_t)i);
    ok = ok && dm_f32_to_bits(wide[i]) == dm_f32_to_bits(v) && back[i] == down(v);
    ok = ok && (isnan(v) || back[i] == i);
  }
  return ok;
}

static bool narrowing_is_exact(dm_DType t, uint16_t (*down)(float)) {
  enum { N = 1 << 16 };
  static float src[N];
  static uint16_t dst[N];
  const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                              0x7f800001, 0xffbfffff, 0x477fefff, 0x477ff000, 0x477fffff,
                              0x33000000, 0x33000001, 0x337fffff, 0x387fffff, 0x38800000,
                              0x00000001, 0x7f7fffff, 0x3f808000, 0x3f818000, 0x3f801000};
  for (int round = 0; round < 16; round++) {
    for (int i = 0; i < N; i++) {
      uint32_t u = (uint32_t)next_u64();
      if (i % 4 == 1) u = special[i / 4 % DM_COUNT(special)];
      if (i % 4 == 2) u = (u & 0x8fffffffu) | 0x30000000u; /* near f16's range */
      if (i % 4 == 3) u &= 0xffff1000u;                    /* ties */
      src[i] = dm_bits_to_f32(u);
    }
    dm_store_f32(t, dst, 1, N - round, src);
    for (int i = 0; i < N - round; i++)
      if (dst[i] != down(src[i])) return false;
  }
  return true;
}

/* Runs of any length, from any element on, and nothing behind them. */
static bool short_runs_are_exact(dm_DType t, float (*up)(uint16_t), uint16_t (*down)(float)) {
  enum { MOST = 40, FIRST = 3 };
  uint16_t half[FIRST + MOST + 1], back[MOST + 1];
  float wide[MOST + 1];
  bool ok = true;
  for (int n = 0; n <= MOST; n++) {
    for (int i = 0; i < DM_COUNT(half); i++) half[i] = (uint16_t)next_u64();
    wide[n] = back[n] = 7;
    dm_load_f32(t, half + FIRST, 1, n, wide);
    dm_store_f32(t, back, 1, n, wide);
    ok = ok && wide[n] == 7 && back[n] == 7;
    for (int i = 0; i < n; i++) {
      const float v = up(half[FIRST + i]);
      ok = ok && dm_f32_to_bits(wide[i]) == dm_f32_to_bits(v) && back[i] == down(v);
    }
  }
  return ok;
}

static float up_f16(uint16_t h) { return dm_f16_to_f32(h); }
static float up_bf16(uint16_t h) { return dm_bf16_to_f32(h); }
static uint16_t down_f16(float f) { return dm_f32_to_f16(f); }
static uint16_t down_bf16(float f) { return dm_f32_to_bf16(f); }

static void check_strides(void) {
  for (int t = 0; t < DM_N_DTYPE; t++) {
    bool ok = true;
    for (int64_t stride = -3; stride <= 3; stride++) {
      enum { N = 37 };
      const int64_t es = dm_dtype_size((dm_DType)t), span = 3 * N;
      char *p = new_array((dm_DType)t, span);
      char *first = p + (stride < 0 ? (span - 1) * es : 0);
      float f[N], f2[N];
      double d[N], d2[N];
      int64_t v[N], v2[N];
      for (int i = 0; i < N; i++) v[i] = t == DM_BOOL ? i % 2 : stride ? i : 5;
      dm_store_i64((dm_DType)t, first, stride, N, v);
      dm_load_i64((dm_DType)t, first, stride, N, v2);
      dm_load_f32((dm_DType)t, first, stride, N, f);
      dm_load_f64((dm_DType)t, first, stride, N, d);
      dm_store_f32((dm_DType)t, first, stride, N, f);
      dm_store_f64((dm_DType)t, first, stride, N, d);
      dm_load_f32((dm_DType)t, first, stride, N, f2);
      dm_load_f64((dm_DType)t, first, stride, N, d2);
      for (int i = 0; i < N; i++) {
        const int64_t want = stride || t != DM_BOOL ? v[i] : v[N - 1];
        ok = ok && v2[i] == want && f2[i] == (float)want && d2[i] == (double)want;
      }
      ok = ok && guards_hold((dm_DType)t, span, p);
      free_array(p);
    }
    check(ok, dm_dtype_name((dm_DType)t));
  }
}

static void check_convert(void) {
  enum { N = 1100 };
  for (int a = 0; a < DM_N_DTYPE; a++)
    for (int b = 0; b < DM_N_DTYPE; b++) {
      void *src = new_array((dm_DType)a, N), *dst = new_array((dm_DType)b, N);
      for (int64_t i = 0; i < N; i++) {
        const int64_t v = i % 100;
        dm_store_i64((dm_DType)a, (char *)src + i * dm_dtype_size((dm_DType)a), 1, 1, &v);
      }
      dm_convert((dm_DType)a, src, (dm_DType)b, dst, N);
      bool ok = guards_hold((dm_DType)b, N, dst);
      for (int64_t i = 0; i < N; i++) {
        const int64_t v = i % 100;
        const bool truth = a == DM_BOOL || b == DM_BOOL;
        ok = ok && get((dm_DType)b, dst, i) == (double)(truth ? v != 0 : v);
      }
      check(ok, "convert: any dtype to any");
      free_array(src);
      free_array(dst);
    }
  const float half = 0.5f;
  uint8_t truth = 0;
  dm_convert(DM_F32, &half, DM_BOOL, &truth, 1);
  check(truth == 1, "convert: 0.5 is true");
  const int64_t big = INT64_MAX - 1;
  int64_t same = 0;
  dm_convert(DM_I64, &big, DM_I64, &same, 1);
  check(same == big, "convert: int64 keeps its bits");
}

static void check_vec(void) {
  check(all_patterns(DM_F16, up_f16, down_f16), "f16: all patterns");
  check(all_patterns(DM_BF16, up_bf16, down_bf16), "bf16: all patterns");
  check(narrowing_is_exact(DM_F16, down_f16), "f16: narrowing");
  check(narrowing_is_exact(DM_BF16, down_bf16), "bf16: narrowing");
  check(short_runs_are_exact(DM_F16, up_f16, down_f16), "f16: short runs");
  check(short_runs_are_exact(DM_BF16, up_bf16, down_bf16), "bf16: short runs");
  check_strides();
  check_convert();
}

/* ---- threads ---------------------------------------------------------------------- */

typedef struct Cover {
  int64_t n, grain;
  unsigned char *seen;
  bool nested, ok;
} Cover;

static void cover_range(void *ctx, int64_t begin, int64_t end) {
  Cover *const c = ctx;
  if (begin % c->grain != 0 || end - begin > c->grain || end > c->n) c->ok = false;
  if (end - begin < c->grain && end != c->n) c->ok = false;
  for (int64_t i = begin; i < end; i++) c->seen[i]++;
}

static void cover_outer(void *ctx, int64_t begin, int64_t end) {
  Cover *const all = ctx;
  if (all->n > 1 && dm_threads_here() != 1) all->ok = false; /* n of 1 runs outside */
  for (int64_t i = begin; i < end; i++) {
    Cover one = {all->n, all->grain, all->seen + i * all->n, false, true};
    dm_parallel_for(one.n, one.grain, cover_range, &one);
    if (!one.ok) all->ok = false;
  }
}

static void check_threads(void) {
  for (int threads = 1; threads <= 5; threads++) {
    dm_set_num_threads(threads);
    check(dm_get_num_threads() == threads, "threads: set and get");
    bool ok = true;
    for (int round = 0; round < 300; round++) {
      Cover c = {below(200), 1 + below(20), NULL, false, true};
      c.seen = calloc(200 * 200, 1);
      if (!c.seen) exit(2);
      const bool nested = round % 8 == 0;
      if (nested) dm_parallel_for(c.n, 1, cover_outer, &c);
      else dm_parallel_for(c.n, c.grain, cover_range, &c);
      for (int64_t i = 0; i < (nested ? c.n * c.n : c.n); i++) ok = ok && c.seen[i] == 1;
      ok = ok && c.ok;
      free(c.seen);
    }
    check(ok, "threads: every unit once");
  }
}

/* ---- matrix products ----------------------------------------------------------- */

static const int thread_counts[] = {1, 2, 3, 7}; /* must agree in every bit */

typedef struct Product {
  int64_t m, n, k;
  dm_DType ta, tb, tc;
  dm_Mat a, b;
  int64_t ldc;
  double alpha, beta;
  dm_BiasAxis epilogue;
} Product;

static dm_Mat make_mat(dm_DType t, int64_t rows, int64_t cols, int layout, void **own) {
  const int64_t gap = below(3);
  dm_Mat x = {NULL, t, 0, 0};
  int64_t n = 1;
  if (layout == 0) x.rs = cols + gap, x.cs = 1, n = rows * x.rs;
  if (layout == 1) x.rs = 1, x.cs = rows + gap, n = cols * x.cs;
  if (layout == 2) x.rs = 2 * cols + gap, x.cs = 2, n = rows * x.rs + 1;
  if (layout == 3) x.rs = 0, x.cs = 1, n = cols;
  *own = random_array(t, n);
  x.data = *own;
  return x;
}

/* x (rows, columns) in double, rows dense; to be freed. */
static double *widened(const dm_Mat *x, int64_t rows, int64_t columns) {
  double *to = malloc((size_t)(rows * columns + 1) * sizeof *to);
  if (!to) exit(2);
  for (int64_t i = 0; i < rows * columns; i++)
    to[i] = get(x->dtype, x->data, i / columns * x->rs + i % columns * x->cs);
  return to;
}

/* The k products of row i of a (.., k) and column j of b (k, n). */
static double dot(const double *a, int64_t i, const double *b, int64_t j, int64_t k,
                  int64_t n) {
  double sum = 0;
  for (int64_t q = 0; q < k; q++) sum += a[i * k + q] * b[q * n + j];
  return sum;
}

static bool run_product(const Product *p, const void *bias, const void *c0, int64_t size) {
  const int64_t bytes = size * dm_dtype_size(p->tc);
  void *c[2] = {NULL, NULL};
  bool ok = true;
  for (int i = 0; i < DM_COUNT(thread_counts); i++) {
    void *const to = c[i > 0] = i < 2 ? new_array(p->tc, size) : c[1];
    memcpy(to, c0, (size_t)bytes);
    dm_set_num_threads(thread_counts[i]);
    ok = ok && dm_gemm(p->m, p->n, p->k, p->alpha, p->a, p->b, p->beta, to, p->tc, p->ldc, bias,
                       p->tc, p->epilogue) == DM_OK;
    ok = ok && guards_hold(p->tc, size, to) && memcmp(c[0], to, (size_t)bytes) == 0;
  }
  const double acc = p->tc == DM_F64 ? 0x1p-52 : 0x1p-23;
  double *const a = widened(&p->a, p->m, p->k), *const b = widened(&p->b, p->k, p->n);
  for (int64_t i = 0; i < p->m && ok; i++)
    for (int64_t j = 0; j < p->ldc && ok; j++) {
      const double before = get(p->tc, c0, i * p->ldc + j);
      double want = before;
      if (j < p->n) {
        want = p->alpha * dot(a, i, b, j, p->k, p->n) + (p->beta != 0 ? p->beta * before : 0);
        if (p->epilogue == DM_BIAS_PER_COL) want += get(p->tc, bias, j);
        if (p->epilogue == DM_BIAS_PER_ROW) want += get(p->tc, bias, i);
      }
      const double tol = acc * ((double)p->k + 16) * fmax(1, fabs(p->alpha)) +
                         fabs(want) * eps_of(p->tc) * 0.51 + 1e-7 * (p->tc == DM_F16);
      const double got = get(p->tc, c[0], i * p->ldc + j);
      if (j >= p->n ? got != want : !(fabs(got - want) <= tol)) {
        printf("  (%lld,%lld,%lld) at %lld,%lld: %.9g, wanted %.9g\n", (long long)p->m,
               (long long)p->n, (long long)p->k, (long long)i, (long long)j, got, want);
        ok = false;
      }
    }
  free(a);
  free(b);
  free_array(c[0]);
  free_array(c[1]);
  return ok;
}

static void check_product(int64_t m, int64_t n, int64_t k, int kind) {
  static const dm_DType types[][3] = {{DM_F32, DM_F32, DM_F32},  {DM_F64, DM_F64, DM_F64},
                                      {DM_F16, DM_F16, DM_F16},  {DM_BF16, DM_BF16, DM_BF16},
                                      {DM_BF16, DM_F32, DM_F32}, {DM_F16, DM_F16, DM_F32},
                                      {DM_F32, DM_F16, DM_BF16}};
  static const double scales[][2] = {{1, 0}, {1, 1}, {0.5, 0}, {1, -0.5}, {2, 1}};
  const dm_DType *t = types[kind % DM_COUNT(types)];
  const double *s = scales[below(DM_COUNT(scales))];
  void *a, *b;
  Product p = {
      m, n, k, t[0], t[1], t[2], {0}, {0}, n + below(3), s[0], s[1], (dm_BiasAxis)below(3)};
  p.a = make_mat(p.ta, m, k, (int)below(4), &a);
  p.b = make_mat(p.tb, k, n, (int)below(4), &b);
  void *bias = random_array(p.tc, m > n ? m : n);
  void *c0 = random_array(p.tc, m * p.ldc);
  char what[96];
  snprintf(what, sizeof what, "gemm %s x %s -> %s (%lld,%lld,%lld)", dm_dtype_name(p.ta),
           dm_dtype_name(p.tb), dm_dtype_name(p.tc), (long long)m, (long long)n, (long long)k);
  check(run_product(&p, bias, c0, m * p.ldc), what);
  free_array(a);
  free_array(b);
  free_array(bias);
  free_array(c0);
}

static void check_batched(void) {
  const int64_t nb = 7, m = 13, n = 21, k = 9;
  void *a = random_array(DM_F32, nb * m * k), *b = random_array(DM_F32, k * n);
  void *c = new_array(DM_F32, nb * m * n);
  const dm_Mat ma = {a, DM_F32, k, 1}, mb = {b, DM_F32, n, 1};
  bool ok = true;
  for (int pass = 0; pass < 2 && ok; pass++) /* a b, which 2 a b - a b keeps */
    ok = dm_gemm_batched(nb, m, n, k, pass ? 2 : 1, ma, m * k, mb, 0, pass ? -1 : 0, c, DM_F32,
                         n, m * n) == DM_OK;
  for (int64_t r = 0; r < nb * m; r++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t q = 0; q < k; q++)
        sum += get(DM_F32, a, r * k + q) * get(DM_F32, b, q * n + j);
      ok = ok && fabs(sum - get(DM_F32, c, r * n + j)) < 1e-5;
    }
  check(ok && guards_hold(DM_F32, nb * m * n, c), "gemm: batched, b shared");
  free_array(a);
  free_array(b);
  free_array(c);
}

/* A product with a matrix that was packed before has the bits of dm_gemm's. */
static void check_packed(dm_DType t, int64_t m, int64_t n, int64_t k) {
  const dm_DType sums = dm_compute_dtype(t);
  const bool turned = below(2), add = below(2);
  const int64_t rs = turned ? 1 : n + below(3), cs = turned ? k + below(3) : 1;
  const int64_t c_rs = n + below(3), es = dm_dtype_size(sums);
  void *const a = random_array(t, m * k), *const b = random_array(t, turned ? n * cs : k * rs);
  void *const c0 = random_array(sums, m * c_rs), *const c1 = new_array(sums, m * c_rs);
  memcpy(c1, c0, (size_t)(m * c_rs * es));
  dm_PackedB packed = dm_packed_plan(t, k, n);
  void *const strips = new_array(DM_U8, dm_packed_bytes(&packed));
  void *const panels = new_array(DM_U8, dm_packed_panel_bytes(&packed, m));
  packed.at = strips;
  dm_packed_fill(&packed, b, cs, rs);
  dm_packed_multiply(&packed, m, a, add, c1, c_rs, panels);
  const dm_Mat ma = {a, t, k, 1}, mb = {b, t, rs, cs};
  const bool ok =
      dm_gemm(m, n, k, 1, ma, mb, add, c0, sums, c_rs, NULL, sums, DM_BIAS_NONE) == DM_OK;
  check(ok && memcmp(c0, c1, (size_t)(m * c_rs * es)) == 0 &&
            guards_hold(DM_U8, dm_packed_bytes(&packed), strips) &&
            guards_hold(DM_U8, dm_packed_panel_bytes(&packed, m), panels),
        "gemm: a packed matrix");
  free_array(a), free_array(b), free_array(c0), free_array(c1), free_array(strips);
  free_array(panels);
}

static const int64_t sizes[][3] = {
    {1, 1, 1},     {8, 16, 32},   {6, 16, 256},  {7, 17, 257},   {5, 3, 0},     {1, 100, 70},
    {100, 1, 70},  {13, 8, 600},  {48, 48, 48},  {65, 70, 90},   {200, 40, 30}, {31, 530, 20},
    {9, 11, 5000}, {193, 513, 7}, {64, 64, 300}, {50, 90, 2100}, {401, 20, 40}, {12, 1040, 30}};
static void check_gemm(void) {
  for (int s = 0; s < DM_COUNT(sizes); s++)
    for (int kind = 0; kind < 7; kind++)
      check_product(sizes[s][0], sizes[s][1], sizes[s][2], kind);
  for (int i = 0; i < 200; i++) check_product(1 + below(50), 1 + below(70), 1 + below(80), i);
  check_batched();
  static const dm_DType types[] = {DM_F32, DM_F64, DM_F16, DM_BF16};
  for (int i = 0; i < 160; i++)
    check_packed(types[i % 4], 1 + below(40), 1 + below(200), 1 + below(i % 5 ? 90 : 1500));
}

/* ---- kernels: those of this processor against plain C -------------------------- */

/* Arrays that end where their guards begin, so that a kernel which reads or
   writes a lane too many is seen: by the guards, or by the sanitizer. */
static void check_tile(const dm_Kernel *kn, const dm_Kernel *plain, int m, int n) {
  const dm_DType t = kn->type;
  const int64_t k = below(70), gap = below(3), a_rs = below(2) ? 1 : k + 1;
  const int64_t a_cs = a_rs == 1 ? m : 1, b_rs = n + gap, c_rs = n + below(3),
                es = dm_dtype_size(t);
  void *a = random_array(t, m * (k + 1)), *b = random_array(t, k * b_rs + 1);
  void *c0 = random_array(t, m * c_rs), *c1 = new_array(t, m * c_rs);
  memcpy(c1, c0, (size_t)(m * c_rs * es));
  const bool add = below(2);
  kn->tile(m, n, k, a, a_rs, a_cs, b, b_rs, c1, c_rs, add);
  /* the plain tile may be narrower */
  for (int i = 0; i < m; i += plain->mr)
    for (int j = 0; j < n; j += plain->nr)
      plain->tile((int)dm_min_i64(plain->mr, m - i), (int)dm_min_i64(plain->nr, n - j), k,
                  (char *)a + i * a_rs * es, a_rs, a_cs, (char *)b + j * es, b_rs,
                  (char *)c0 + (i * c_rs + j) * es, c_rs, add);
  bool ok = guards_hold(t, m * c_rs, c1);
  for (int64_t i = 0; i < m * c_rs; i++) {
    const double want = get(t, c0, i);
    const double tol = i % c_rs < n ? eps_of(t) * (double)(k + 1) : 0;
    ok = ok && fabs(get(t, c1, i) - want) <= tol;
  }
  check(ok, "kernel: tile");
  free_array(a), free_array(b), free_array(c0), free_array(c1);
}

/* n numbers of the kernel's type, or pairs of bfloat16. */
static void *random_items(const dm_Kernel *kn, int64_t n) {
  return kn->pairs ? random_array(DM_BF16, 2 * n) : random_array(kn->type, n);
}

/* Few rows with a b that lies turned: the bits of the tile of the same numbers. */
static void check_turned(const dm_Kernel *kn, dm_DType from, int m) {
  const int n = 1 + (int)below(kn->nr);
  const int64_t es = dm_dtype_size(kn->type), from_es = kn->pairs ? es : dm_dtype_size(from);
  const int64_t k = below(90), c_rs = n + below(3);
  /* columns may lie 4096 bytes apart, which is read in another order */
  const int64_t b_cs = below(3) == 0 ? 4096 / from_es : k + below(3);
  char *const a = random_items(kn, k * m);
  char *const b = kn->pairs ? random_items(kn, n * b_cs) : random_array(from, n * b_cs);
  char *const rows = new_array(kn->type, k * n);
  for (int64_t p = 0; p < k; p++)
    for (int64_t j = 0; j < n; j++) {
      char *const to = rows + (p * n + j) * es;
      const char *const at = b + (j * b_cs + p) * from_es;
      if (kn->pairs) memcpy(to, at, (size_t)es);
      else dm_load_f32(from, at, 1, 1, (float *)(void *)to);
    }
  void *const c0 = random_array(kn->type, m * c_rs), *const c1 = new_array(kn->type, m * c_rs);
  memcpy(c1, c0, (size_t)(m * c_rs * es));
  const bool add = below(2);
  kn->tile(m, n, k, a, 1, m, rows, n, c0, c_rs, add);
  kn->turned(from, m, n, k, a, b, b_cs, c1, c_rs, add);
  check(guards_hold(kn->type, m * c_rs, c1) && memcmp(c0, c1, (size_t)(m * c_rs * es)) == 0,
        "kernel: few rows");
  free_array(a), free_array(b), free_array(rows), free_array(c0), free_array(c1);
}

/* Few rows times a matrix of a dtype where it lies: the bits of packed strips. */
static void check_few(const dm_Kernel *kn, dm_DType from, int m) {
  const int64_t n = 1 + below(150), k = 1 + below(100), b_rs = n + below(3),
                c_rs = n + below(3);
  const int64_t depth = dm_depth(kn, k), first = below(2);
  char *const b = random_array(from, first + k * b_rs);
  const char *const b_at = b + first * dm_dtype_size(from);
  void *const a = random_array(from, m * k), *const panel = new_array(DM_F32, kn->mr * depth);
  void *const strip = new_array(DM_F32, kn->nr * depth);
  float *const c0 = random_array(DM_F32, m * c_rs), *const c1 = new_array(DM_F32, m * c_rs);
  memcpy(c1, c0, (size_t)(m * c_rs) * sizeof *c1);
  const bool add = below(2);
  dm_pack_panels(kn, DM_A, from, a, k, 1, m, k, panel);
  for (int64_t j = 0; j < n; j += kn->nr) {
    const int width = (int)dm_min_i64(kn->nr, n - j);
    const dm_Panels rows = dm_packed_panels(kn, panel, 0);
    const dm_Strip columns = {strip, kn->nr};
    const dm_Sums sums = {.at = c0 + j, .rs = c_rs, .add = add};
    dm_pack_panels(kn, DM_B, from, b_at + j * dm_dtype_size(from), 1, b_rs, width, k, strip);
    dm_tile_column(kn, m, width, depth, &rows, &columns, &sums, NULL);
  }
  if (!kn->tiles) kn->pack(from, a, k, 1, m, k, m, panel);
  kn->few(from, m, n, k, panel, b_at, b_rs, c1, c_rs, add);
  check(guards_hold(DM_F32, m * c_rs, c1) &&
            memcmp(c0, c1, (size_t)(m * c_rs) * sizeof *c1) == 0,
        "kernel: few rows, where a matrix lies");
  free_array(a), free_array(b), free_array(panel), free_array(strip), free_array(c0),
      free_array(c1);
}

static void check_packing(const dm_Kernel *kn, const dm_Kernel *plain, dm_DType from) {
  const bool is_few = below(3) == 0; /* few rows fill their panel */
  const int width = is_few ? 1 + (int)below(DM_FEW_ROWS) : below(2) ? kn->mr : kn->nr;
  const int n = is_few ? width : 1 + (int)below(width);
  const int64_t k = below(2) ? 16 * (1 + below(2)) : 1 + below(40); /* blocks fill it, or not */
  const int64_t size = k * width, gap = below(3);
  const bool rows = below(2);
  const int64_t ls = rows ? 1 : k + gap, ks = rows ? n + gap : 1;
  void *src = random_array(from, rows ? (k - 1) * ks + n : (n - 1) * ls + k);
  void *to[2] = {new_array(kn->type, size), new_array(kn->type, size)};
  kn->pack(from, src, ls, ks, n, k, width, to[0]);
  plain->pack(from, src, ls, ks, n, k, width, to[1]);
  bool ok = guards_hold(kn->type, size, to[0]);
  for (int64_t i = 0; i < size; i++)
    ok = ok && (i % width >= n || get(kn->type, to[0], i) == get(kn->type, to[1], i));
  check(ok, "kernel: pack");
  free_array(src), free_array(to[0]), free_array(to[1]);
}

/* Lists of `n` ascending positions in runs of +1, below `limit`. */
static void list_positions(int32_t *at, int64_t n, int64_t limit) {
  int64_t next = 0;
  for (int64_t i = 0; i < n; i++) {
    at[i] = (int32_t)next;
    next += below(5) || next + 4 + n - i > limit ? 1 : 1 + below(4);
  }
}

static void check_gathers(const dm_Kernel *kn, const dm_Kernel *plain) {
  enum { SPAN = 90, K = 37 };
  const dm_DType t = kn->type;
  const int n = 1 + (int)below(kn->nr), width = kn->nr;
  const int64_t k = 1 + below(K), size = k * width;
  int32_t lane[64] = {0}, at[K];
  list_positions(lane, n, SPAN);
  list_positions(at, k, SPAN);
  const int64_t last = lane[n - 1] + at[k - 1] + 1;
  void *src = random_array(t, last + DM_SLACK), *to[2];
  for (int i = 0; i < 2; i++) {
    to[0] = new_array(t, size), to[1] = new_array(t, size);
    (i ? kn->gather_t : kn->gather)(src, lane, n, at, k, width, to[0]);
    plain->gather(src, lane, n, at, k, width, to[1]);
    bool ok = guards_hold(t, size, to[0]);
    for (int64_t j = 0; j < size; j++)
      ok = ok && (j % width >= n || get(t, to[0], j) == get(t, to[1], j));
    check(ok, i ? "kernel: gather, transposed" : "kernel: gather");
    free_array(to[0]), free_array(to[1]);
  }
  const int64_t points = 1 + below(40), w_step = 1 + below(3);
  void *wide = random_array(t, at[k - 1] + points), *w = random_array(t, k * w_step);
  to[0] = random_array(t, points), to[1] = new_array(t, points);
  memcpy(to[1], to[0], (size_t)(points * dm_dtype_size(t)));
  const bool add = below(2);
  kn->stencil(wide, at, k, w, w_step, points, to[0], add);
  plain->stencil(wide, at, k, w, w_step, points, to[1], add);
  bool ok = guards_hold(t, points, to[0]);
  for (int64_t j = 0; j < points; j++)
    ok = ok && fabs(get(t, to[0], j) - get(t, to[1], j)) <= eps_of(t) * (double)(k + 1);
  check(ok, "kernel: stencil");
  free_array(src), free_array(wide), free_array(w), free_array(to[0]), free_array(to[1]);
}

/* Sums in one order: every bit is the same. */
static void check_wino(const dm_Kernel *kn, const dm_Kernel *plain) {
  enum { LANES = 16, E = LANES + 3, OUT = 4 * LANES };
  for (int n = 1; n <= LANES; n++) {
    const int64_t step = 2 * n + 2 + below(3), size = 15 * E + n;
    void *line = random_array(DM_F32, 3 * step + 2 * n + 2), *m = random_array(DM_F32, 16 * E);
    void *to[4] = {random_array(DM_F32, size), new_array(DM_F32, size), new_array(DM_F32, OUT),
                   new_array(DM_F32, OUT)};
    memcpy(to[1], to[0], (size_t)size * 4);
    kn->wino_in(line, step, n, to[0], E);
    plain->wino_in(line, step, n, to[1], E);
    kn->wino_out(m, E, 0.5f, to[2]);
    plain->wino_out(m, E, 0.5f, to[3]);
    check(guards_hold(DM_F32, size, to[0]) && guards_hold(DM_F32, OUT, to[2]) &&
              memcmp(to[0], to[1], (size_t)size * 4) == 0 && memcmp(to[2], to[3], OUT * 4) == 0,
          "kernel: Winograd's transforms");
    for (int i = 0; i < 4; i++) free_array(to[i]);
    free_array(line), free_array(m);
  }
}

/* The transforms of 4 x 4 outputs, of all lanes at once. Some kernels fuse multiplications and
   additions, so results differ by roundings of the largest. */
static void check_wino4(const dm_Kernel *kn, const dm_Kernel *plain) {
  enum { LANES = 16, E = LANES + 3, SIZE = 35 * E + LANES, OUT = 16 * LANES };
  void *d = random_array(DM_F32, 36 * LANES), *dy = random_array(DM_F32, 16 * LANES);
  void *m = random_array(DM_F32, SIZE);
  for (int pass = 0; pass < 3; pass++) {
    const int64_t size = pass < 2 ? SIZE : OUT;
    void *to[2] = {random_array(DM_F32, size), new_array(DM_F32, size)};
    memcpy(to[1], to[0], (size_t)size * 4);
    for (int i = 0; i < 2; i++) {
      const dm_Kernel *const k = i ? plain : kn;
      if (pass == 0) k->wino4_in(d, to[i], E);
      else if (pass == 1) k->wino4_grad(dy, to[i], E);
      else k->wino4_out(m, E, 0.5f, to[i]);
    }
    double largest = 0;
    for (int64_t j = 0; j < size; j++) largest = fmax(largest, fabs(get(DM_F32, to[1], j)));
    bool ok = guards_hold(DM_F32, size, to[0]);
    for (int64_t j = 0; j < size; j++)
      ok = ok &&
           fabs(get(DM_F32, to[0], j) - get(DM_F32, to[1], j)) <= 8 * eps_of(DM_F32) * largest;
    check(ok, "kernel: Winograd's transforms of 4 x 4 outputs");
    free_array(to[0]), free_array(to[1]);
  }
  free_array(d), free_array(dy), free_array(m);
}

static void check_variant(const dm_Kernel *(*kernel)(dm_DType)) {
  static const dm_DType reals[] = {DM_F32, DM_F64}, from[] = {DM_F32, DM_F16, DM_BF16};
  for (int i = 0; i < 2; i++) {
    const dm_Kernel *const kn = kernel(reals[i]), *const plain = dm_kernel_plain(reals[i]);
    for (int m = 1; m <= kn->mr; m++)
      for (int n = 1; n <= kn->nr; n++)
        for (int round = 0; round < 3; round++) check_tile(kn, plain, m, n);
    for (int round = 0; round < 120; round++) {
      if (kn->turned)
        check_turned(kn, from[round / 8 % 3], 1 + round % (int)dm_min_i64(DM_FEW_ROWS, kn->mr));
      if (kn->few) check_few(kn, round / 8 % 2 ? DM_BF16 : DM_F32, 1 + round % kn->few_rows);
      check_packing(kn, plain, i == 0 ? from[round % 3] : DM_F64);
      check_gathers(kn, plain);
    }
  }
  check_wino(kernel(DM_F32), dm_kernel_plain(DM_F32));
  check_wino4(kernel(DM_F32), dm_kernel_plain(DM_F32));
}

/* Pairs of bfloat16 against sums in double. Element (i, p) of a lies at i * a_rs + p * a_cs;
   tiles read blocks of 16 pairs of all rows and columns. */
static void check_pair_tile(const dm_Kernel *kn, int m, int n) {
  const int64_t unit = kn->tiles ? DM_TILE_PAIRS : 1, pairs = below(kn->tiles ? 4 : 40) * unit;
  const int64_t rows = kn->tiles ? kn->mr : m, columns = kn->tiles ? kn->nr : n;
  const bool dense = below(2);
  const int64_t a_rs = !dense      ? pairs + unit
                       : kn->tiles ? DM_TILE_PAIRS
                                   : 1,
                a_cs = dense ? rows : 1, b_rs = columns + below(3), c_rs = n + below(3);
  void *const a = random_array(DM_BF16, 2 * rows * (pairs + unit));
  void *const b = random_array(DM_BF16, 2 * (pairs * b_rs + 1));
  void *const c0 = random_array(DM_F32, m * c_rs), *const c1 = new_array(DM_F32, m * c_rs);
  memcpy(c1, c0, (size_t)(m * c_rs) * sizeof(float));
  const bool add = below(2);
  if (kn->configure) kn->configure(true);
  kn->tile(m, n, pairs, a, a_rs, a_cs, b, b_rs, c1, c_rs, add);
  if (kn->configure) kn->configure(false);
  bool ok = guards_hold(DM_F32, m * c_rs, c1);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < c_rs; j++) {
      double want = add || j >= n ? get(DM_F32, c0, i * c_rs + j) : 0;
      for (int64_t p = 0; p < 2 * pairs && j < n; p++) {
        const int64_t q = p / 2, at = i * a_rs + q / unit * unit * a_cs + q % unit;
        want += get(DM_BF16, a, 2 * at + p % 2) * get(DM_BF16, b, 2 * (q * b_rs + j) + p % 2);
      }
      const double tol = j < n ? eps_of(DM_F32) * (double)(2 * pairs + 1) : 0;
      ok = ok && fabs(get(DM_F32, c1, i * c_rs + j) - want) <= tol;
    }
  check(ok, "kernel: tile of pairs");
  free_array(a), free_array(b), free_array(c0), free_array(c1);
}

/* The element of depth p and lane l of a panel: where a kernel with tiles has it in A. */
static int64_t in_panel(const dm_Kernel *kn, bool is_a, int width, int64_t p, int64_t l) {
  const int64_t q = p / 2;
  if (!is_a || !kn->tiles) return 2 * (q * width + l) + p % 2;
  return 2 * ((q / DM_TILE_PAIRS * width + l) * DM_TILE_PAIRS + q % DM_TILE_PAIRS) + p % 2;
}

/* Rows, columns, and neither; a beginning at an even and an odd number. */
static void check_pair_packing(const dm_Kernel *kn) {
  const bool is_a = below(2);
  const int width = is_a ? kn->mr : kn->nr;
  const int n = below(2) ? width : 1 + (int)below(width), layout = (int)below(3);
  const int64_t k = 1 + below(90), gap = below(3), first = below(2);
  const int64_t ls = layout == 0 ? 1 : layout == 1 ? k + gap : 2 * k + gap;
  const int64_t ks = layout == 0 ? n + gap : layout, size = dm_depth(kn, k) * width;
  void *const src = random_array(DM_BF16, first + (n - 1) * ls + (k - 1) * ks + 1);
  void *const to = new_array(DM_F32, size);
  dm_pack_panels(kn, is_a ? DM_A : DM_B, DM_BF16, (char *)src + 2 * first, ls, ks, n, k, to);
  bool ok = guards_hold(DM_F32, size, to);
  for (int64_t p = 0; p < 2 * dm_depth(kn, k); p++)
    for (int l = 0; l < n; l++) {
      const double want = p < k ? get(DM_BF16, src, first + l * ls + p * ks) : 0;
      ok = ok && get(DM_BF16, to, in_panel(kn, is_a, width, p, l)) == want;
    }
  check(ok, "kernel: pack of pairs");
  free_array(src), free_array(to);
}

/* A panel of floats becomes pairs in its memory, and a panel of A where tiles want one. */
static void check_joining(const dm_Kernel *kn) {
  const bool is_a = below(2);
  const int width = is_a ? kn->mr : kn->nr;
  const int64_t k = 1 + below(90), size = dm_max_i64(k, dm_depth(kn, k)) * width;
  float *const panel = new_array(DM_F32, size);
  void *const from = random_array(DM_BF16, k * width);
  dm_load_f32(DM_BF16, from, 1, k * width, panel);
  kn->join(k, width, panel);
  if (is_a && kn->turn) kn->turn(k, panel);
  bool ok = guards_hold(DM_F32, size, panel);
  for (int64_t p = 0; p < 2 * dm_depth(kn, k); p++)
    for (int l = 0; l < width; l++) {
      const double want = p < k ? get(DM_BF16, from, p * width + l) : 0;
      ok = ok && get(DM_BF16, panel, in_panel(kn, is_a, width, p, l)) == want;
    }
  check(ok, "kernel: floats joined to pairs");
  free_array(panel), free_array(from);
}

/* Strips of pairs of lanes and depths in runs of +1, long and short. */
static void check_pair_gathers(const dm_Kernel *kn) {
  enum { SPAN = 200, K = 150 };
  const int n = below(2) ? kn->nr : 1 + (int)below(kn->nr), width = kn->nr;
  const int64_t k = 1 + below(K), size = dm_depth(kn, k) * width;
  int32_t lane[64] = {0}, at[K];
  list_positions(lane, n, SPAN);
  list_positions(at, k, SPAN);
  void *const src = random_array(DM_BF16, lane[n - 1] + at[k - 1] + 1 + DM_SLACK);
  for (int i = 0; i < 2; i++) {
    void *const to = new_array(DM_F32, size);
    (i ? kn->gather_t : kn->gather)(src, lane, n, at, k, width, to);
    bool ok = guards_hold(DM_F32, size, to);
    for (int64_t p = 0; p < 2 * dm_depth(kn, k); p++)
      for (int l = 0; l < n; l++) {
        const double want = p < k ? get(DM_BF16, src, lane[l] + at[p]) : 0;
        ok = ok && get(DM_BF16, to, in_panel(kn, false, width, p, l)) == want;
      }
    check(ok, i ? "kernel: gather of pairs, transposed" : "kernel: gather of pairs");
    free_array(to);
  }
  free_array(src);
}

static void check_pairs(const dm_Kernel *kn) {
  for (int m = 1; m <= kn->mr; m++)
    for (int n = 1; n <= kn->nr; n++)
      for (int round = 0; round < 3; round++) check_pair_tile(kn, m, n);
  for (int round = 0; round < 300; round++) {
    check_pair_packing(kn);
    check_joining(kn);
    check_pair_gathers(kn);
    if (kn->turned) check_turned(kn, DM_BF16, 1 + round % DM_FEW_ROWS);
    if (kn->few) check_few(kn, DM_BF16, 1 + round % kn->few_rows);
  }
}

/* All that this processor runs. In the programs avx512_check and amx_check dm_kernel is
   AVX512's in narrower vectors, and so is that of every product and convolution here;
   dm_kernel_pairs likewise. */
static void check_kernels(void) {
  check_variant(dm_kernel);
  if (dm_cpu_variant() >= DM_NEON && dm_kernel_neon(DM_F32)) check_variant(dm_kernel_neon);
  if (dm_cpu_variant() >= DM_AVX2 && dm_kernel_avx2(DM_F32)) check_variant(dm_kernel_avx2);
  if (dm_cpu_variant() >= DM_AVX512 && dm_kernel_avx512(DM_F32))
    check_variant(dm_kernel_avx512);
  const dm_Kernel *const pairs = dm_kernel_pairs();
  if (pairs) check_pairs(pairs);
  if (dm_cpu_variant() > DM_AVX512BF16 && dm_kernel_avx512bf16())
    check_pairs(dm_kernel_avx512bf16());
}

/* ---- convolutions ------------------------------------------------------------------- */

static bool window_at(const dm_ConvDims *d, int64_t p, int64_t r, int64_t q, int64_t s,
                      int64_t *h, int64_t *w) {
  *h = p * d->stride[0] + r * d->dil[0] - d->pad[0];
  *w = q * d->stride[1] + s * d->dil[1] - d->pad[1];
  return *h >= 0 && *h < d->h && *w >= 0 && *w < d->w;
}

/* All three at once: y, dx, dw of x, w, dy (double, sums from 0). */
static void conv_naive(const dm_ConvDims *d, const double *x, const double *w, const double *dy,
                       double *y, double *dx, double *dw) {
  const int64_t in = d->c / d->groups, out = d->o / d->groups;
  for (int64_t n = 0; n < d->n; n++)
    for (int64_t o = 0; o < d->o; o++)
      for (int64_t p = 0; p < d->p; p++)
        for (int64_t q = 0; q < d->q; q++)
          for (int64_t c = 0; c < in; c++)
            for (int64_t r = 0; r < d->r; r++)
              for (int64_t s = 0; s < d->s; s++) {
                int64_t h, v;
                if (!window_at(d, p, r, q, s, &h, &v)) continue;
                const int64_t at_x = ((n * d->c + o / out * in + c) * d->h + h) * d->w + v;
                const int64_t at_w = ((o * in + c) * d->r + r) * d->s + s;
                const int64_t at_y = ((n * d->o + o) * d->p + p) * d->q + q;
                y[at_y] += x[at_x] * w[at_w];
                dx[at_x] += dy[at_y] * w[at_w];
                dw[at_w] += dy[at_y] * x[at_x];
              }
}

static double *widen(dm_DType t, const void *src, int64_t n) {
  double *p = malloc((size_t)(n + 1) * 8);
  if (!p) exit(2);
  dm_load_f64(t, src, 1, n, p);
  return p;
}

static bool near_all(dm_DType t, const void *got, const double *want, int64_t n, int64_t k) {
  const double acc = t == DM_F64 ? 0x1p-52 : 0x1p-23;
  for (int64_t i = 0; i < n; i++) {
    const double tol =
        acc * ((double)k + 16) + fabs(want[i]) * eps_of(t) * 0.51 + 1e-7 * (t == DM_F16);
    const double v = get(t, got, i);
    if (!(fabs(v - want[i]) <= tol)) {
      printf("  at %lld of %lld: %g, wanted %g\n", (long long)i, (long long)n, v, want[i]);
      return false;
    }
  }
  return guards_hold(t, n, got);
}

static void check_conv_dims(const dm_ConvDims *d, dm_DType t) {
  const int64_t nx = d->n * d->c * d->h * d->w, ny = d->n * d->o * d->p * d->q;
  const int64_t nw = d->o * (d->c / d->groups) * d->r * d->s;
  void *x = random_array(t, nx), *w = random_array(t, nw), *dy = random_array(t, ny);
  void *bias = random_array(t, dm_max_i64(d->o, d->c));
  double *wx = widen(t, x, nx), *ww = widen(t, w, nw), *wdy = widen(t, dy, ny);
  double *y = calloc((size_t)ny + 1, 8), *dx = calloc((size_t)nx + 1, 8);
  double *dw = calloc((size_t)nw + 1, 8);
  if (!y || !dx || !dw) exit(2);
  conv_naive(d, wx, ww, wdy, y, dx, dw);
  const bool biased = below(2);
  for (int64_t i = 0; biased && i < ny; i++) y[i] += get(t, bias, i / (d->p * d->q) % d->o);
  for (int64_t i = 0; biased && i < nx; i++) dx[i] += get(t, bias, i / (d->h * d->w) % d->c);
  bool ok[3] = {true, true, true};
  void *first[3] = {NULL, NULL, NULL};
  const int64_t size[3] = {ny, nx, nw};
  for (int i = 0; i < DM_COUNT(thread_counts); i++) {
    const int threads = thread_counts[i];
    void *got[3] = {new_array(t, ny), new_array(t, nx), new_array(t, nw)};
    dm_set_num_threads(threads);
    ok[0] = ok[0] && dm_conv2d_fwd(d, t, x, w, biased ? bias : NULL, got[0]) == DM_OK;
    ok[1] = ok[1] && dm_conv2d_dx(d, t, dy, w, biased ? bias : NULL, got[1]) == DM_OK;
    ok[2] = ok[2] && dm_conv2d_dw(d, t, dy, x, got[2]) == DM_OK;
    /* Winograd's transforms of 4 x 4 outputs multiply the errors of float32 by some three. They
       serve 3 x 3 kernels of stride 1 with 32 channels or more. */
    const bool is_wino = t != DM_F64 && d->r == 3 && d->s == 3 && d->stride[0] == 1 &&
                         d->stride[1] == 1 && d->groups == 1 && dm_min_i64(d->c, d->o) >= 32;
    const int64_t rs = d->r * d->s, more = is_wino ? 3 : 1;
    ok[0] = ok[0] && near_all(t, got[0], y, ny, more * d->c / d->groups * rs);
    ok[1] = ok[1] && near_all(t, got[1], dx, nx, more * d->o / d->groups * rs);
    ok[2] = ok[2] && near_all(t, got[2], dw, nw, more * d->n * d->p * d->q);
    for (int j = 0; j < 3; j++) {
      if (threads == 1) {
        first[j] = got[j];
        continue;
      }
      ok[j] = ok[j] && memcmp(first[j], got[j], (size_t)(size[j] * dm_dtype_size(t))) == 0;
      free_array(got[j]);
    }
  }
  for (int i = 0; i < 3; i++) free_array(first[i]);
  char what[200];
  static const char *const names[3] = {"fwd", "dx", "dw"};
  for (int i = 0; i < 3; i++) {
    snprintf(what, sizeof what,
             "conv %s %s x(%d,%d,%d,%d) w(%d,.,%d,%d) groups %d stride %d,%d pad %d,%d "
             "dil %d,%d",
             names[i], dm_dtype_name(t), (int)d->n, (int)d->c, (int)d->h, (int)d->w, (int)d->o,
             (int)d->r, (int)d->s, (int)d->groups, (int)d->stride[0], (int)d->stride[1],
             (int)d->pad[0], (int)d->pad[1], (int)d->dil[0], (int)d->dil[1]);
    check(ok[i], what);
  }
  free_array(x), free_array(w), free_array(dy), free_array(bias);
  free(wx), free(ww), free(wdy), free(y), free(dx), free(dw);
}

static bool set_output(dm_ConvDims *d) {
  const int64_t h = d->h + 2 * d->pad[0] - d->dil[0] * (d->r - 1) - 1;
  const int64_t w = d->w + 2 * d->pad[1] - d->dil[1] * (d->s - 1) - 1;
  if (h < 0 || w < 0) return false;
  d->p = h / d->stride[0] + 1;
  d->q = w / d->stride[1] + 1;
  return true;
}

static void check_conv(void) {
  static const dm_DType types[] = {DM_F32, DM_BF16, DM_F16, DM_F64};
  /* n, c, h, w, o, side of the window, groups, stride, padding */
  static const int fixed[][9] = {
      {3, 1, 28, 28, 32, 3, 1, 1, 1}, {5, 32, 14, 14, 20, 3, 1, 1, 1},
      {2, 50, 7, 7, 26, 3, 1, 2, 1},  {2, 24, 9, 31, 24, 3, 24, 1, 1},
      {1, 3, 70, 66, 8, 7, 1, 2, 3},  {2, 70, 12, 12, 40, 1, 1, 1, 0},
      {2, 70, 8, 8, 9, 3, 1, 2, 1},   {1, 5, 20, 20, 3, 17, 1, 2, 8},
  };
  for (int i = 0; i < DM_COUNT(fixed); i++) {
    const int *f = fixed[i];
    dm_ConvDims d = {.n = f[0],
                     .c = f[1],
                     .h = f[2],
                     .w = f[3],
                     .o = f[4],
                     .r = f[5],
                     .s = f[5],
                     .groups = f[6],
                     .stride = {f[7], f[7]},
                     .pad = {f[8], f[8]},
                     .dil = {1, 1}};
    check(set_output(&d), "a window that fits");
    for (int t = 0; t < 4; t++) check_conv_dims(&d, types[t]);
  }
  /* 3 x 3 with as many channels as Winograd's products want, and those of dw */
  for (int i = 0; i < 24;) {
    dm_ConvDims d = {.n = 1 + below(3),
                     .c = (i < 12 ? 32 : 40) + below(9),
                     .h = 4 + below(10),
                     .w = (i < 12 ? 4 : 28) + below(20),
                     .o = (i < 12 ? 32 : 40) + below(9),
                     .r = 3,
                     .s = 3,
                     .groups = 1,
                     .stride = {1, 1},
                     .pad = {below(3), below(3)},
                     .dil = {1, 1}};
    if (set_output(&d)) check_conv_dims(&d, types[i++ % 4]);
  }
  /* as many tiles as Winograd's 4 x 4 outputs want */
  for (int i = 0; i < 12;) {
    dm_ConvDims d = {.n = 4 + below(3),
                     .c = 32 + below(9),
                     .h = 15 + below(8),
                     .w = i % 3 ? 15 + below(8) : 63 + below(10),
                     .o = 32 + below(9),
                     .r = 3,
                     .s = 3,
                     .groups = 1,
                     .stride = {1, 1},
                     .pad = {below(3), below(3)},
                     .dil = {1, 1}};
    if (set_output(&d)) check_conv_dims(&d, types[i++ % 3]);
  }
  /* more tiles than one chunk of dw holds */
  const dm_ConvDims chunks = {.n = 3,
                              .c = 41,
                              .h = 60,
                              .w = 59,
                              .o = 40,
                              .r = 3,
                              .s = 3,
                              .p = 60,
                              .q = 59,
                              .groups = 1,
                              .stride = {1, 1},
                              .pad = {1, 1},
                              .dil = {1, 1}};
  check_conv_dims(&chunks, DM_F32);
  check_conv_dims(&chunks, DM_F16);
  /* small planes and many images; 1 x 1 on large ones, in groups and images, from many
     channels and from few */
  for (int i = 0; i < 40;) {
    dm_ConvDims d = {.n = 8 + below(9),
                     .c = 1 + below(9),
                     .h = 1 + below(3),
                     .w = 1 + below(3),
                     .o = 1 + below(9),
                     .r = 1 + below(4),
                     .s = 1 + below(4),
                     .groups = 1};
    for (int j = 0; j < 2; j++) {
      d.stride[j] = 1 + below(2);
      d.pad[j] = below(3);
      d.dil[j] = 1 + below(2);
    }
    if (set_output(&d)) check_conv_dims(&d, types[i++ % 4]);
  }
  for (int i = 0; i < 16; i++) {
    dm_ConvDims d = {.n = 1 + i / 4 % 2,
                     .c = i < 8 ? 12 : 2,
                     .h = 31,
                     .w = 29,
                     .o = 18,
                     .r = 1,
                     .s = 1,
                     .groups = 1 + i / 2 % 2,
                     .stride = {1, 1},
                     .dil = {1, 1}};
    if (set_output(&d)) check_conv_dims(&d, types[i % 4]);
  }
  /* groups of one input channel */
  for (int i = 0; i < 120;) {
    dm_ConvDims d = {.n = 1 + below(4),
                     .c = 2 + below(6),
                     .h = 1 + below(30),
                     .w = 1 + below(30),
                     .r = 1 + below(6),
                     .s = 1 + below(6)};
    d.groups = d.c;
    d.o = d.c * (1 + below(3));
    for (int j = 0; j < 2; j++) {
      d.stride[j] = 1 + below(3);
      d.pad[j] = below(4);
      d.dil[j] = 1 + below(3);
    }
    if (set_output(&d)) check_conv_dims(&d, types[i++ % 3]);
  }
  for (int i = 0; i < 240;) {
    dm_ConvDims d = {.n = 1 + below(4),
                     .h = 1 + below(20),
                     .w = 1 + below(20),
                     .r = 1 + below(4),
                     .s = 1 + below(4),
                     .groups = 1 + below(3)};
    d.c = d.groups * (1 + below(6));
    d.o = d.groups * (1 + below(9));
    for (int j = 0; j < 2; j++) {
      d.stride[j] = 1 + below(3);
      d.pad[j] = below(4);
      d.dil[j] = 1 + below(3);
    }
    if (!set_output(&d)) continue;
    check_conv_dims(&d, types[i++ % 4]);
  }
}

/* Every allocation of a first product fails once, with a status. */
static void check_no_memory(void) {
  dm_set_num_threads(1);
  enum { N = 1500 }; /* larger than any buffer that earlier checks left */
  float *a = calloc(1 << 22, 4), *c = calloc(N * N, 4);
  if (!a || !c) exit(2);
  const dm_Mat m = {a, DM_F32, 1, 1};
  dm_alloc_fail_at(1, true);
  const dm_status st =
      dm_gemm(400, 400, 100000, 1, m, m, 0, c, DM_F32, 400, NULL, DM_F32, DM_BIAS_NONE);
  dm_alloc_fail_at(0, false);
  check(st == DM_EMEM, "gemm: no memory is a status");
  free(a);
  free(c);
}

/* ---- the loops of cpu/loops/loops.h, plain and wide ------------------ */

/* How far got is from want, in ulps of a float near want. */
static double ulps(float got, double want) {
  if (isnan(want)) return isnan(got) ? 0 : INFINITY;
  if ((double)got == want || got == (float)want) return 0;
  int e;
  frexp(want, &e);
  return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

/* fn against a reference over all of float32, every 4099th pattern. */
static double worst_ulps(dm_BlockF32 *fn, double (*exact)(double)) {
  enum { N = 1024, STEP = 4099 };
  const double none[2] = {0};
  float x[N], y[N];
  const float *const in[1] = {x};
  double worst = 0;
  for (uint64_t u = 0; u < 1ull << 32; u += (uint64_t)N * STEP) {
    for (int i = 0; i < N; i++) x[i] = dm_bits_to_f32((uint32_t)(u + (uint64_t)i * STEP));
    fn(in, y, N, none);
    for (int i = 0; i < N; i++) worst = fmax(worst, ulps(y[i], exact((double)x[i])));
  }
  return worst;
}

static void check_accuracy(const dm_Loops *l) {
  static const struct {
    dm_OpId op;
    double (*exact)(double);
    double bound;
  } functions[] = {{DM_OP_exp, exp, 1.5},   {DM_OP_exp2, exp2, 1.5}, {DM_OP_expm1, expm1, 2},
                   {DM_OP_log, log, 1.5},   {DM_OP_log2, log2, 2},   {DM_OP_log10, log10, 2},
                   {DM_OP_log1p, log1p, 2}, {DM_OP_tanh, tanh, 2},   {DM_OP_erf, erf, 2},
                   {DM_OP_erfc, erfc, 5},   {DM_OP_sinh, sinh, 2},   {DM_OP_cosh, cosh, 2},
                   {DM_OP_sin, sin, 2},     {DM_OP_cos, cos, 2},     {DM_OP_tan, tan, 3},
                   {DM_OP_asin, asin, 3},   {DM_OP_acos, acos, 3},   {DM_OP_atan, atan, 3},
                   {DM_OP_atanh, atanh, 3}};
  for (int i = 0; i < DM_COUNT(functions); i++) {
    const double worst = worst_ulps(l->unary[functions[i].op].f32, functions[i].exact);
    char what[80];
    snprintf(what, sizeof what, "%s within %g ulp: %.2f", dm_ops[functions[i].op].name,
             functions[i].bound, worst);
    check(worst <= functions[i].bound, what);
  }
}

/* Special functions, or their slopes, against the loops in float64, over float32 from -2^7 to
   2^7, every 65537th pattern. Those that have zeros or cancel are bounded in ulps of 1 + |y|.
 */
static void check_special(const dm_Loops *l) {
  enum { STEP = 65537, N = 2 * (0x43000000 / STEP) };
  static const struct {
    dm_OpId op;
    double low, high, bound;
    bool from_one, slope;
  } functions[] = {{DM_OP_special_ndtri, 0, 1, 5, false, false},
                   {DM_OP_special_erfcx, -9, 128, 6, false, false},
                   {DM_OP_special_log_ndtr, -128, 5, 6, true, false},
                   {DM_OP_lgamma, -128, 128, 6, true, false},
                   {DM_OP_digamma, -128, 128, 6, true, false},
                   {DM_OP_polygamma, -128, 128, 6, true, false},
                   {DM_OP_sinc, -128, 128, 6, true, false},
                   {DM_OP_special_bessel_j0, -128, 128, 6, true, false},
                   {DM_OP_special_bessel_j1, -128, 128, 6, true, false},
                   {DM_OP_special_bessel_y0, -128, 128, 6, true, false},
                   {DM_OP_special_bessel_y1, -128, 128, 6, true, false},
                   {DM_OP_lgamma, -128, 128, 6, true, true},
                   {DM_OP_digamma, -128, 128, 6, true, true},
                   {DM_OP_sinc, -128, 128, 6, true, true},
                   {DM_OP_i0, -88, 88, 6, false, true},
                   {DM_OP_special_i0e, -128, 128, 6, true, true},
                   {DM_OP_special_i1, -88, 88, 6, false, true},
                   {DM_OP_special_erfcx, -9, 128, 16, true, true},
                   {DM_OP_special_log_ndtr, -128, 5, 6, true, true},
                   {DM_OP_i0, -88, 88, 6, false, false},
                   {DM_OP_special_i0e, -128, 128, 6, false, false},
                   {DM_OP_special_i1, -88, 88, 6, false, false},
                   {DM_OP_special_i1e, -128, 128, 6, false, false},
                   {DM_OP_special_modified_bessel_k0, 0, 80, 6, false, false},
                   {DM_OP_special_modified_bessel_k1, 0, 80, 6, false, false},
                   {DM_OP_special_scaled_modified_bessel_k0, 0, 128, 6, false, false},
                   {DM_OP_special_scaled_modified_bessel_k1, 0, 128, 6, false, false}};
  const double param[2] = {1}; /* of polygamma */
  static float x[N], y[N], ones[N];
  static double wide[N], want[N], wide_ones[N];
  for (int i = 0; i < N; i++) wide_ones[i] = (double)(ones[i] = 1);
  for (int k = 0; k < DM_COUNT(functions); k++) {
    const bool slope = functions[k].slope;
    const dm_Pointwise fn = (slope ? l->unary_back : l->unary)[functions[k].op];
    int n = 0;
    for (uint32_t i = 0; i < N; i++) {
      const float v = dm_bits_to_f32((i % 2) << 31 | i / 2 * STEP);
      if ((double)v >= functions[k].low && (double)v <= functions[k].high) x[n++] = v;
    }
    for (int i = 0; i < n; i++) wide[i] = (double)x[i];
    fn.f32((const float *const[]){slope ? ones : x, x}, y, n, param);
    fn.f64((const double *const[]){slope ? wide_ones : wide, wide}, want, n, param);
    double worst = 0;
    for (int i = 0; i < n; i++) {
      const double size = functions[k].from_one && isfinite(want[i]) ? 1 + fabs(want[i]) : 0;
      const double off = fabs((double)y[i] - want[i]);
      const double error = size > 0 && (float)size < INFINITY
                               ? off / (size * (double)FLT_EPSILON)
                               : ulps(y[i], want[i]);
      worst = fmax(worst, error == error ? error : (double)INFINITY);
    }
    char what[80];
    snprintf(what, sizeof what, "%s%s within %g ulp: %.2f", dm_ops[functions[k].op].name,
             slope ? "'s slope" : "", functions[k].bound, worst);
    check(worst <= functions[k].bound, what);
  }
}

/* erfinv against erf: the error of y in ulps is that of erf(y) divided by the slope. */
static void check_erfinv(const dm_Loops *l) {
  enum { N = 4001 };
  const double none[2] = {0};
  static float x[N], y[N];
  const float *const in[1] = {x};
  for (int i = 0; i < N; i++) /* also close to the ends */
    x[i] = i % 2 ? (float)(i - N / 2) / (N / 2 + 1) : 1 - ldexpf(1, -1 - i % 24);
  l->unary[DM_OP_erfinv].f32(in, y, N, none);
  double worst = 0;
  for (int i = 0; i < N; i++) {
    const double v = (double)y[i], slope = 1.1283791670955126 * exp(-v * v);
    const double want = v - (erf(v) - (double)x[i]) / slope;
    worst = fmax(worst, ulps(y[i], want));
  }
  char what[80];
  snprintf(what, sizeof what, "erfinv within 3 ulp: %.2f", worst);
  check(worst <= 3, what);
}

static float exact_fmod(float a, float b) { return (float)fmod((double)a, (double)b); }
static float exact_modulo(float a, float b) {
  const double r = fmod((double)a, (double)b);
  return (float)(r != 0 && (r < 0) != (b < 0) ? r + (double)b : r);
}
static float exact_hypot(float a, float b) { return (float)hypot((double)a, (double)b); }
static float exact_pow(float a, float b) { return (float)pow((double)a, (double)b); }
static float exact_atan2(float a, float b) { return (float)atan2((double)a, (double)b); }

/* Pairs of floats, also those of which base/pair.inc says that a block of near ones becomes
   vectors: a large ratio, 0, infinity and NaN are in some blocks only. */
static void check_pair_ops(const dm_Loops *l) {
  enum { N = 64, BLOCKS = 4000 };
  static const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1, -3, 1e-40f, 3e38f, 7e-39f};
  static const struct {
    int op;
    float (*exact)(float, float);
    double bound;
  } functions[] = {{DM_OP_fmod, exact_fmod, 0},      {DM_OP_remainder, exact_modulo, 1},
                   {DM_OP_hypot, exact_hypot, 1},    {DM_OP_pow, exact_pow, 1},
                   {DM_OP_nextafter, nextafterf, 0}, {DM_OP_atan2, exact_atan2, 3}};
  const double none[2] = {0};
  float a[N], b[N], y[N];
  const float *const in[2] = {a, b};
  for (int f = 0; f < DM_COUNT(functions); f++) {
    double worst = 0;
    for (int block = 0; block < BLOCKS; block++) {
      for (int i = 0; i < N; i++) {
        a[i] = ldexpf((float)uniform(), (int)(20 * uniform()));
        b[i] = ldexpf((float)uniform(), (int)(8 * uniform()));
        if (i % 3 == 0) a[i] = b[i] * (float)(i / 3); /* whole quotients */
        if (block % 8 == 0 && i % 5 == 0) a[i] = odd[(block / 8 + i) % DM_COUNT(odd)];
        if (block % 8 == 0 && i % 7 == 0) b[i] = odd[(block / 80 + i) % DM_COUNT(odd)];
      }
      l->pair[functions[f].op].f32(in, y, N, none);
      for (int i = 0; i < N; i++) {
        const float want = functions[f].exact(a[i], b[i]);
        worst = fmax(worst, ulps(y[i], (double)want));
        if (want == 0 && signbit(want) != signbit(y[i])) worst = INFINITY;
      }
    }
    char what[80];
    snprintf(what, sizeof what, "%s within %g ulp: %.2f", dm_ops[functions[f].op].name,
             functions[f].bound, worst);
    check(worst <= functions[f].bound, what);
  }
}

static bool same_bits(float a, float b, float x) {
  (void)x;
  return dm_f32_to_bits(a) == dm_f32_to_bits(b) || (isnan(a) && isnan(b));
}
/* Where one form multiplies and adds at once and the other does not: x is the first operand,
   which a gradient scales its rounding with. */
static bool close_by(float a, float b, float x) {
  const double size = isfinite(x) ? fmax(1, fabs((double)x)) : 1;
  return same_bits(a, b, x) ||
         fabs((double)a - (double)b) <= 1e-6 * fmax(size, fabs((double)a));
}

/* Runs of 0 to 70 elements, guarded; every 5th input is a special one. */
static bool alike(dm_BlockF32 *a, dm_BlockF32 *b, bool (*equal)(float, float, float),
                  double p) {
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, 90.0f, -104.0f};
  const double pq[2] = {p, 1};
  bool ok = true;
  for (int64_t n = 0; n <= 70 && ok; n++) {
    float *in[3], *ya = new_array(DM_F32, n), *yb = new_array(DM_F32, n);
    for (int k = 0; k < 3; k++) {
      in[k] = random_array(DM_F32, n);
      for (int64_t i = 0; i < n; i++)
        in[k][i] = next_u64() % 5 ? 4 * in[k][i] : special[below(DM_COUNT(special))];
    }
    a((const float *const *)in, ya, n, pq);
    b((const float *const *)in, yb, n, pq);
    for (int64_t i = 0; i < n; i++) ok = ok && equal(ya[i], yb[i], in[0][i]);
    ok = ok && guards_hold(DM_F32, n, ya) && guards_hold(DM_F32, n, yb);
    for (int k = 0; k < 3; k++) free_array(in[k]);
    free_array(ya);
    free_array(yb);
  }
  return ok;
}

/* From C too, tensors at the end of a signature may be left out. */
static void check_left_out(void) {
  const int64_t two = 2, mean = 1;
  dm_Tensor *p = NULL, *loss = NULL;
  bool ok = dm_tensor_new(DM_F32, 1, &two, (dm_Device){DM_CPU, 0}, &p) == DM_OK;
  if (ok) {
    float *v = dm_tensor_data(p);
    v[0] = v[1] = 0.5f;
    dm_Tensor **in = malloc(2 * sizeof *in); /* of two: what lies behind is not ours */
    in[0] = in[1] = p;
    ok = dm_call(DM_OP_binary_cross_entropy, 2, in, &mean, &loss) == DM_OK;
    ok = ok && fabs((double)*(float *)dm_tensor_data(loss) - 0.693147) < 1e-5;
    free(in);
  }
  check(ok, "a composed op without its last operand");
  dm_tensor_unref(&loss);
  dm_tensor_unref(&p);
}

static void check_formulas(const dm_Loops *a, const dm_Loops *b) {
  char what[64];
  for (int op = 0; op < DM_N_OP; op++)
    for (int p = 0; a->unary[op].f32 && p < 2; p++) {
      snprintf(what, sizeof what, "%s, p = %d, plain and wide", dm_ops[op].name, p);
      check(alike(a->unary[op].f32, b->unary[op].f32, close_by, p), what);
      if (a->unary_back[op].f32) /* not of predicates */
        check(alike(a->unary_back[op].f32, b->unary_back[op].f32, close_by, p), what);
    }
  for (int i = 0; i < DM_N_PAIR; i++) {
    const char *name = i < DM_N_OP ? dm_ops[i].name : "a pair's second form";
    const bool may_fuse = i == DM_OP_logaddexp || i == DM_OP_logaddexp2 || i == DM_OP_xlogy ||
                          i == DM_OP_special_xlog1py || i == DM_OP_atan2 || i == DM_OP_glu_term;
    snprintf(what, sizeof what, "%s, plain and wide", name);
    if (a->pair[i].f32)
      check(alike(a->pair[i].f32, b->pair[i].f32, may_fuse ? close_by : same_bits, 0.5), what);
  }
  for (int i = 0; i < DM_N_TRIPLE; i++) {
    const bool may_fuse = i == DM_TRIPLE_xlogy_back || i == DM_TRIPLE_xlog1py_back ||
                          i == DM_TRIPLE_logaddexp_back || i == DM_TRIPLE_glu_back ||
                          i == DM_TRIPLE_lse_back || i == DM_TRIPLE_gaussian ||
                          (i >= DM_TRIPLE_log_loss && i < DM_TRIPLE_hinge);
    check(alike(a->triple[i].f32, b->triple[i].f32, may_fuse ? close_by : same_bits, 0.5),
          "triple, plain and wide");
  }
}

/* A loop of a brief formula gives the bits of the one for floats, which are rounded after it:
   of elements of any bits, with numbers among the operands, into memory of its own and over the
   first operand that is no number. `numbers` has a bit for each operand. */
static bool is_as_floats(const dm_Pointwise *fn, dm_BlockBrief *brief, dm_DType dtype,
                         int numbers, double p) {
  enum { MOST = 4 * DM_BRIEF_STEP, N_IN = 3 };
  const double pq[2] = {p, 1};
  const int64_t size = dm_dtype_size(dtype);
  bool ok = true;
  for (int64_t n = 0; n <= MOST && ok; n += DM_BRIEF_STEP) {
    void *x[N_IN], *y = new_array(dtype, n);
    float wide[N_IN][MOST], result[MOST], number[N_IN];
    const float *floats[N_IN] = {wide[0], wide[1], wide[2]};
    const char *in[N_IN];
    uint32_t wanted[MOST];
    for (int k = 0; k < N_IN; k++) {
      x[k] = new_array(dtype, n);
      in[k] = numbers >> k & 1 ? NULL : x[k];
      number[k] = n == MOST ? -0.0f : 4 * (float)uniform();
      for (int64_t i = 0; i < n * size; i++) ((uint8_t *)x[k])[i] = (uint8_t)next_u64();
      dm_load_f32(dtype, x[k], 1, n, wide[k]);
      for (int64_t i = 0; i < n && !in[k]; i++) wide[k][i] = number[k];
    }
    fn->f32(floats, result, n, pq);
    dm_store_f32(dtype, wanted, 1, n, result);
    void *const over = x[in[0] ? 0 : 1];
    brief(in, number, y, n, pq);
    brief(in, number, over, n, pq);
    for (int64_t i = 0; i < n && ok; i++) {
      float a, b, c;
      dm_load_f32(dtype, (const char *)wanted + i * size, 1, 1, &a);
      dm_load_f32(dtype, (const char *)y + i * size, 1, 1, &b);
      dm_load_f32(dtype, (const char *)over + i * size, 1, 1, &c);
      ok = same_bits(a, b, 0) && same_bits(a, c, 0);
    }
    ok = ok && guards_hold(dtype, n, y) && guards_hold(dtype, n, over);
    for (int k = 0; k < N_IN; k++) free_array(x[k]);
    free_array(y);
  }
  return ok;
}
static bool are_as_floats(const dm_Pointwise *fn, int n_in, int *count) {
  const dm_DType dtype[DM_N_BRIEF] = {DM_F32, DM_F16, DM_BF16};
  const int numbers[DM_N_FORM] = {0, 1 << (n_in - 1), n_in == 2 ? 1 : 6, 1};
  bool ok = true;
  for (int form = 0; form < DM_N_FORM; form++)
    for (int type = 0; type < DM_N_BRIEF; type++) {
      dm_BlockBrief *const loop = fn->brief ? fn->brief->loop[form][type] : NULL;
      if (!loop) continue;
      for (int p = 0; p < 2; p++)
        ok = ok && is_as_floats(fn, loop, dtype[type], numbers[form], p);
      ++*count;
    }
  return ok;
}
static void check_brief(const dm_Loops *l) {
  static const int operands[DM_N_TRIPLE] = {
#define TRIPLE(NAME, N, ...) [DM_TRIPLE_##NAME] = N,
#include "base/triple.inc"
  };
  int n = 0;
  bool ok = true;
  for (int i = 0; i < DM_N_OP; i++) {
    ok = are_as_floats(&l->unary[i], 1, &n) && ok;
    ok = are_as_floats(&l->unary_back[i], 2, &n) && ok;
  }
  for (int i = 0; i < DM_N_PAIR; i++) ok = are_as_floats(&l->pair[i], 2, &n) && ok;
  for (int i = 0; i < DM_N_TRIPLE; i++)
    ok = are_as_floats(&l->triple[i], operands[i], &n) && ok;
  check(ok && n > 200, "loops of brief formulas");
}

/* Each of the 16 functions of two bools, whose bytes are any number where they are true. */
static void check_truth(const dm_Loops *l) {
  enum { MOST = 200 };
  bool ok = true;
  for (int f = 0; f < 16; f++) {
    const uint8_t c[4] = {f & 1, f >> 1 & 1, f >> 2 & 1, f >> 3 & 1};
    const dm_Truth t = {c[0], c[1], c[2], c[3]};
    for (int64_t n = 0; n <= MOST; n++) {
      uint8_t a[MOST], b[MOST], y[MOST + 1] = {0};
      for (int64_t i = 0; i < n; i++) {
        a[i] = next_u64() % 2 ? (uint8_t)below(256) : 0;
        b[i] = next_u64() % 2 ? (uint8_t)below(256) : 0;
      }
      y[n] = FILL;
      l->truth((const uint8_t *const[]){a, b}, y, n, &t);
      for (int64_t i = 0; i < n; i++) {
        const int p = a[i] != 0, q = b[i] != 0;
        ok = ok && y[i] == ((c[0] + c[1] * p + c[2] * q + c[3] * p * q) & 1);
      }
      ok = ok && y[n] == FILL;
    }
  }
  check(ok, "functions of two bools");
}

/* Each element of `to` is that of `from`, and what lies between and around them stays. */
static bool moves_well(const dm_Loops *l, int64_t size, int64_t n, int64_t to_step,
                       int64_t from_step) {
  enum { MOST = 1024, FIRST = 512 };
  unsigned char from[MOST * 8], to[MOST * 8], want[MOST * 8];
  for (int i = 0; i < MOST * 8; i++) from[i] = (unsigned char)next_u64();
  memset(to, FILL, sizeof to);
  memset(want, FILL, sizeof want);
  for (int64_t i = 0; i < n; i++)
    memcpy(want + (FIRST + i * to_step) * size, from + (FIRST + i * from_step) * size,
           (size_t)size);
  l->move[dm_move_of(size)](to + FIRST * size, to_step, from + FIRST * size, from_step, n);
  return memcmp(to, want, sizeof to) == 0;
}

static bool zips_well(const dm_Loops *l, int64_t size, int64_t n) {
  enum { MOST = 256 };
  unsigned char a[MOST * 8], b[MOST * 8], to[2 * MOST * 8 + 1];
  for (int i = 0; i < MOST * 8; i++)
    a[i] = (unsigned char)next_u64(), b[i] = (unsigned char)~a[i];
  memset(to, FILL, sizeof to);
  l->zip[dm_move_of(size)](to, a, b, n);
  for (int64_t i = 0; i < n; i++)
    if (memcmp(to + 2 * i * size, a + i * size, (size_t)size) != 0 ||
        memcmp(to + (2 * i + 1) * size, b + i * size, (size_t)size) != 0)
      return false;
  return to[2 * n * size] == FILL;
}

/* Rows of n elements, dense behind one another. */
static bool spreads_well(const dm_Loops *l, int64_t size, int64_t n, int64_t row_step,
                         int64_t step) {
  enum { MOST = 1024, ROWS = 3 };
  unsigned char from[MOST * 8], to[ROWS * 150 * 8 + 1];
  for (int i = 0; i < MOST * 8; i++) from[i] = (unsigned char)next_u64();
  memset(to, FILL, sizeof to);
  l->spread[dm_move_of(size)](to, from + MOST / 2 * size, row_step, ROWS, step, n);
  for (int64_t i = 0; i < ROWS * n; i++)
    if (memcmp(to + i * size, from + (MOST / 2 + i / n * row_step + i % n * step) * size,
               (size_t)size) != 0)
      return false;
  return to[ROWS * n * size] == FILL;
}

/* Bytes from and to any address. */
static bool copies_well(const dm_Loops *l, int64_t n, int64_t at, int64_t to_at) {
  unsigned char from[1024], to[1024];
  for (int i = 0; i < 1024; i++) from[i] = (unsigned char)next_u64();
  memset(to, FILL, sizeof to);
  l->copy_long((char *)to + to_at, (const char *)from + at, n);
  return memcmp(to + to_at, from + at, (size_t)n) == 0 && to[to_at + n] == FILL &&
         to[to_at - 1] == FILL;
}

static void check_moves(const dm_Loops *l) {
  static const int64_t steps[][2] = {{1, 1}, {1, 0}, {1, -1}, {1, 2}, {2, 1}, {-1, 3}};
  static const int64_t row_steps[][2] = {{0, 1}, {1, 0}, {151, 1}, {0, 0}, {-7, -1}, {5, 2}};
  bool moves = true, zips = true, copies = true, spreads = true;
  for (int64_t size = 1; size <= 8; size *= 2)
    for (int64_t n = 0; n < 150; n++) {
      for (int i = 0; i < DM_COUNT(steps); i++)
        moves = moves && moves_well(l, size, n, steps[i][0], steps[i][1]);
      for (int i = 0; i < DM_COUNT(row_steps); i++)
        spreads = spreads && spreads_well(l, size, n, row_steps[i][0], row_steps[i][1]);
      zips = zips && zips_well(l, size, n);
    }
  for (int64_t n = DM_COPY_BLOCK; n < 5 * DM_COPY_BLOCK; n += 1 + below(7))
    for (int64_t at = 1; at < 80; at += 1 + below(5))
      copies = copies && copies_well(l, n, at, 1 + below(80));
  check(moves, "elements at steps");
  check(zips, "two rows in turns");
  check(spreads, "rows at steps, one behind the other");
  check(copies, "bytes from and to any address");
}

/* Keys of few values, so that some are equal, and the largest and the smallest ones. */
static void check_count_less(const dm_Loops *l) {
  bool counts = true;
  for (int64_t n = 0; n <= DM_FEW_KEYS; n++) {
    int32_t key[DM_FEW_KEYS], less[DM_FEW_KEYS + 1];
    for (int i = 0; i < DM_FEW_KEYS; i++) {
      const int64_t v = below(12);
      key[i] = v == 0 ? INT32_MIN : v == 1 ? INT32_MAX : (int32_t)v - 6;
    }
    less[DM_FEW_KEYS] = -7;
    l->count_less(key, n, less);
    for (int64_t i = 0; i < n; i++) {
      int32_t want = 0;
      for (int64_t k = 0; k < n; k++) want += key[k] < key[i];
      counts = counts && less[i] == want;
    }
    counts = counts && less[DM_FEW_KEYS] == -7;
  }
  check(counts, "how many keys are less");
}

/* Normal numbers against float64, at words that reach every part of the formulas: the error is
   below 3e-7 of the radius. */
static void check_normal(const dm_Loops *l) {
  enum { N = 1 << 16 };
  uint32_t *w = malloc(N * sizeof *w);
  float *v = malloc(N * sizeof *v);
  double worst = 0;
  for (int i = 0; i < N; i++) {
    const uint64_t u = next_u64();
    w[i] = i % 4 == 1   ? (uint32_t)(u % 2) << 8
           : i % 4 == 2 ? ~(uint32_t)(u % 999)
                        : (uint32_t)u;
  }
  l->normal(w, N, v);
  for (int i = 0; i < N; i += 2) {
    const double u = (double)dm_uniform_f32(w[i]), t = (double)dm_uniform_f32(w[i + 1]);
    const double r = sqrt(-2 * log1p(-u)), angle = 6.283185307179586477 * t;
    const double x = fabs((double)v[i] - r * cos(angle));
    const double y = fabs((double)v[i + 1] - r * sin(angle));
    const double error = r > 0 ? fmax(x, y) / r : fmax(x, y) > 0 ? 1 : 0;
    worst = error <= worst ? worst : error; /* a NaN stays */
  }
  check(worst < 3e-7, "normal numbers against float64");
  free(w);
  free(v);
}

static void check_draws(const dm_Loops *a, const dm_Loops *b) {
  enum { N = 40, WORDS = 4 * N };
  bool ok = true;
  for (int64_t n = 1; n <= N; n++) {
    const dm_Generator g = {next_u64(), next_u64()}; /* counters pass 2^32 */
    uint32_t wa[WORDS], wb[WORDS];
    memset(wa, FILL, sizeof wa);
    memset(wb, FILL, sizeof wb);
    a->philox_words(g, 0xfffffff0u - g.offset % 64, n, wa);
    b->philox_words(g, 0xfffffff0u - g.offset % 64, n, wb);
    ok = ok && memcmp(wa, wb, sizeof wa) == 0;
    float *x = random_array(DM_F32, n), *ya = new_array(DM_F32, n), *yb = new_array(DM_F32, n);
    a->drop(wa, x, n, 0.3f, 1.5f, ya);
    b->drop(wb, x, n, 0.3f, 1.5f, yb);
    ok = ok && memcmp(ya, yb, (size_t)n * 4) == 0 && guards_hold(DM_F32, n, yb);
    for (int t = 0; t < 2; t++) {
      a->round_stochastic(t ? DM_F16 : DM_BF16, wa, n, ya);
      b->round_stochastic(t ? DM_F16 : DM_BF16, wb, n, yb);
      ok = ok && memcmp(ya, yb, (size_t)n * 4) == 0 && guards_hold(DM_F32, n, yb);
    }
    float va[WORDS], vb[WORDS];
    a->normal(wa, 2 * (n / 2), va);
    b->normal(wb, 2 * (n / 2), vb);
    ok = ok && memcmp(va, vb, (size_t)(n / 2) * 8) == 0;
    ok = ok && dm_f32_to_bits((float)a->sum_squares(x, n)) ==
                   dm_f32_to_bits((float)b->sum_squares(x, n));
    ok = ok && a->unscale(ya, n, 0.5f, 0.2f) == b->unscale(yb, n, 0.5f, 0.2f);
    ok = ok && memcmp(ya, yb, (size_t)n * 4) == 0;
    free_array(x);
    free_array(ya);
    free_array(yb);
  }
  check(
      ok,
      "random words, normal numbers, dropout, stochastic rounding, unscaling: plain and wide");
}

static void check_wide_loops(const dm_Loops *wide) {
  check_accuracy(wide);
  check_erfinv(wide);
  check_special(wide);
  check_pair_ops(wide);
  check_formulas(&dm_loops_plain, wide);
  check_brief(wide);
  check_truth(wide);
  check_moves(wide);
  check_count_less(wide);
  check_normal(wide);
  check_draws(&dm_loops_plain, wide);
}

static void check_loops(void) {
  check_accuracy(&dm_loops_plain);
  check_erfinv(&dm_loops_plain);
  check_special(&dm_loops_plain);
  check_pair_ops(&dm_loops_plain);
  check_brief(&dm_loops_plain);
  check_truth(&dm_loops_plain);
  check_moves(&dm_loops_plain);
  check_count_less(&dm_loops_plain);
  check_normal(&dm_loops_plain);
  if (dm_cpu_variant() >= DM_AVX2 && dm_loops_avx2()) check_wide_loops(dm_loops_avx2());
  if (dm_cpu_variant() >= DM_AVX512 && dm_loops_avx512()) check_wide_loops(dm_loops_avx512());
}

/* A child of fork() has the caller's thread only: the pool starts anew there. */
static void check_fork(void) {
  static unsigned char seen[1000];
  Cover c = {1000, 10, seen, false, true};
  dm_set_num_threads(3);
  dm_parallel_for(c.n, c.grain, cover_range, &c);
  const pid_t child = fork();
  if (child == 0) {
    memset(seen, 0, sizeof seen);
    alarm(20);
    dm_parallel_for(c.n, c.grain, cover_range, &c);
    _exit(memchr(seen, 0, sizeof seen) != NULL);
  }
  int status = -1;
  waitpid(child, &status, 0);
  check(child > 0 && status == 0, "threads: work in a child of fork()");
}

/* With the argument `threads`: what threads share, alone. */
int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "threads") == 0) {
    check_threads();
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
  }
  check_vec();
  check_loops();
  check_threads();
  check_kernels();
  check_fork();
  check_gemm();
  check_conv();
  check_left_out();
  check_no_memory();
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
