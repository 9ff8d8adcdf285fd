/* Speed of matrix products and convolutions in GFLOP/s and as a share of what
   the multiply-adds of a core could do, the best of several runs. Usage:
   gemm [threads [words]]: cases whose name holds the words. Between the runs of
   a case the peak is measured, as the clock of a shared machine drifts. The
   share is of one core's peak: with two threads it can reach 200 %.

   BLAS=libopenblas.so.0 in the environment names a library whose cblas_sgemm runs in
   turn with ours, in float32 also for our 16 bits; OPENBLAS_NUM_THREADS is its number of
   threads. Then a line ends with our speed relative to its, the median of the rounds.

     cc -O2 -Isrc -o /tmp/gemm scripts/bench/gemm.c build/libdemilune.a -lz -lpng -ljpeg -lcjson
   -lm -ldl */
#if defined(__linux__)
#define _GNU_SOURCE /* clock_gettime, madvise */
#endif
#include "base/error.h"
#include "cpu/conv.h"
#include "cpu/gemm.h"
#include "cpu/threads.h"
#include "cpu/variant.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* One thread is given its own time, as neighbours take turns on its core. */
static double now_ms(void) {
  struct timespec t;
  clock_gettime(dm_get_num_threads() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* n elements, all 1 in the dtype's own bits; in huge pages where they are
   large, as a tensor's. */
static void *ones(dm_DType t, int64_t n) {
  const size_t size = (size_t)(n * dm_dtype_size(t) + 64), page = 2 << 20;
  const size_t unit = size < page ? 64 : page, all = (size + unit - 1) / unit * unit;
  void *p = aligned_alloc(unit, all);
  if (!p) exit(1);
#ifdef MADV_HUGEPAGE
  if (unit == page) (void)madvise(p, all, MADV_HUGEPAGE);
#endif
  for (int64_t i = 0; i < n; i++) {
    switch (t) {
    case DM_F64: ((double *)p)[i] = 1; break;
    case DM_F32: ((float *)p)[i] = 1; break;
    case DM_F16: ((uint16_t *)p)[i] = 0x3c00; break;
    default: ((uint16_t *)p)[i] = 0x3f80; break;
    }
  }
  return p;
}

/* ---- the peak ---- */

#if defined(__x86_64__)
/* Twelve chains of multiply-adds, for some milliseconds. */
enum { N = 30000000, CHAINS = 12 };
#define DEFINE_CHAINS(NAME, VECTOR, BYTES, TARGET, REGISTER)                      \
  typedef float VECTOR __attribute__((vector_size(BYTES)));                       \
  __attribute__((target(TARGET), optimize("fp-contract=fast"))) static void NAME( \
      void *ctx, int64_t begin, int64_t end) {                                    \
    static _Thread_local VECTOR sink;                                             \
    (void)ctx, (void)begin, (void)end; /* one range a thread */                   \
    VECTOR s[CHAINS] = {{0}}, x = s[0] + 1, y = s[0] + 0.5f;                      \
    for (int i = 0; i < N / CHAINS; i++) {                                        \
      __asm__ volatile("" : REGISTER(x), REGISTER(y));                            \
      _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS; j++) s[j] += x * y;    \
      _Pragma("GCC unroll 12") for (int j = 0; j < CHAINS;                        \
                                    j++) __asm__ volatile("" : REGISTER(s[j]));   \
    }                                                                             \
    _Pragma("GCC unroll 12") for (int j = 1; j < CHAINS; j++) s[0] += s[j];       \
    sink = s[0];                                                                  \
    __asm__ volatile("" : : "m"(sink));                                           \
  }
#define IN_X(V) "+x"(V) /* of 16 registers */
#define IN_V(V) "+v"(V) /* of 32 */
DEFINE_CHAINS(chains8, Vector8, 32, "avx2,fma", IN_X)
DEFINE_CHAINS(chains16, Vector16, 64, "avx512f", IN_V)

/* GFLOP/s of all threads at once, in the widest vectors that the engine uses. */
static double peak(void) {
  const int threads = dm_get_num_threads();
  const bool wide = dm_cpu_variant() >= DM_AVX512;
  const double start = now_ms();
  dm_parallel_for(threads, 1, wide ? chains16 : chains8, NULL);
  return 2e-6 * N * (wide ? 16 : 8) * threads / (now_ms() - start);
}
#else
static double peak(void) { return 0; }
#endif

/* ---- one case ---- */

typedef dm_status Call(void *ctx);
static const char *only = "";

enum { ROUNDS = 9 };

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values) {
  qsort(values, ROUNDS, sizeof *values, by_value);
  return values[ROUNDS / 2];
}

/* Runs of at least 20 ms: the best time, the median of the shares of the peak just
   before, and of the ratios to `peer`, or NULL, just after. */
static void bench(const char *what, double flop, Call *call, Call *peer, void *ctx) {
  double best = 1e30, share[ROUNDS], ratio[ROUNDS];
  int reps = 1;
  for (int round = -2; round < ROUNDS; round++) {
    const double most = round < 0 ? 0 : peak(), start = now_ms();
    for (int i = 0; i < reps; i++)
      if (call(ctx) != DM_OK) printf("%s: %s\n", what, dm_error());
    const double ms = (now_ms() - start) / reps;
    if (round < 0 && ms * reps < 20) reps = (int)(20 / (ms + 1e-7)) + 1;
    if (round < 0) continue;
    if (ms < best) best = ms;
    share[round] = most > 0 ? flop / ms * 1e-6 / most : 0;
    if (!peer) continue;
    const double again = now_ms();
    for (int i = 0; i < reps; i++) (void)peer(ctx);
    ratio[round] = (now_ms() - again) / (ms * reps);
    /* its threads look out for more work for a while: not while ours are measured */
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  }
  printf("%-44s %10.4f ms %8.1f GFLOP/s %6.1f %% of the peak", what, best, flop / best * 1e-6,
         100 * median(share));
  if (peer) printf(", x %.2f", median(ratio));
  puts("");
}

/* Row-major (101), as it lies (111) or transposed (112). */
typedef void Sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c,
                   int ldc);
static Sgemm *sgemm;

static void open_blas(const char *path) {
  void *const library = path ? dlopen(path, RTLD_NOW) : NULL;
  if (library) *(void **)&sgemm = dlsym(library, "cblas_sgemm");
  if (path && !sgemm) printf("no cblas_sgemm: %s\n", dlerror());
}

typedef struct Product {
  int64_t m, n, k;
  dm_Mat a, b;
  void *c;
  dm_DType tc;
  float *peer_a, *peer_b, *peer_c;
} Product;

static dm_status run_product(void *ctx) {
  const Product *const p = ctx;
  return dm_gemm(p->m, p->n, p->k, 1, p->a, p->b, 0, p->c, p->tc, p->n, NULL, p->tc,
                 DM_EPI_NONE);
}

static dm_status run_peer(void *ctx) {
  const Product *const p = ctx;
  const bool ta = p->a.cs != 1, tb = p->b.cs != 1;
  sgemm(101, ta ? 112 : 111, tb ? 112 : 111, (int)p->m, (int)p->n, (int)p->k, 1, p->peer_a,
        (int)(ta ? p->m : p->k), p->peer_b, (int)(tb ? p->k : p->n), 0, p->peer_c, (int)p->n);
  return DM_OK;
}

/* `layout`: nn, nt (b transposed, as in a linear layer) or tn. */
static void bench_product(dm_DType t, int64_t m, int64_t n, int64_t k, const char *layout) {
  char what[96];
  snprintf(what, sizeof what, "gemm %s %s %lld x %lld x %lld", dm_dtype_name(t), layout,
           (long long)m, (long long)n, (long long)k);
  if (!strstr(what, only)) return;
  void *a = ones(t, m * k), *b = ones(t, k * n), *c = ones(t, m * n);
  Product p = {m, n, k, {a, t, k, 1}, {b, t, n, 1}, c, t, NULL, NULL, NULL};
  if (layout[0] == 't') p.a.rs = 1, p.a.cs = m;
  if (layout[1] == 't') p.b.rs = 1, p.b.cs = k;
  if (sgemm && t != DM_F64) {
    p.peer_a = ones(DM_F32, m * k);
    p.peer_b = ones(DM_F32, k * n);
    p.peer_c = ones(DM_F32, m * n);
  }
  bench(what, 2.0 * (double)m * (double)n * (double)k, run_product, p.peer_a ? run_peer : NULL,
        &p);
  free(a), free(b), free(c), free(p.peer_a), free(p.peer_b), free(p.peer_c);
}

typedef struct Conv {
  dm_ConvDims d;
  dm_DType t;
  void *x, *w, *y;
} Conv;

static dm_status run_fwd(void *ctx) {
  const Conv *const c = ctx;
  return dm_conv2d_fwd(&c->d, c->t, c->x, c->w, NULL, c->y);
}
static dm_status run_dx(void *ctx) {
  const Conv *const c = ctx;
  return dm_conv2d_dx(&c->d, c->t, c->y, c->w, c->x);
}
static dm_status run_dw(void *ctx) {
  const Conv *const c = ctx;
  return dm_conv2d_dw(&c->d, c->t, c->y, c->x, c->w);
}

/* Square planes, 3 x 3 taps unless said otherwise, pad to keep the size. */
static void bench_conv(dm_DType t, int64_t n, int64_t c, int64_t hw, int64_t o, int64_t r,
                       int64_t stride, int64_t groups) {
  static Call *const calls[3] = {run_fwd, run_dx, run_dw};
  static const char *const names[3] = {"fwd", "dx", "dw"};
  Conv job = {.t = t};
  const int64_t pad = r / 2, p = (hw + 2 * pad - r) / stride + 1;
  job.d =
      (dm_ConvDims){n, c, hw, hw, o, r, r, p, p, groups, {stride, stride}, {pad, pad}, {1, 1}};
  for (int i = 0; i < 3; i++) {
    char what[96];
    snprintf(what, sizeof what, "conv %s %s (%d,%d,%d,%d) o %d r %d /%d g %d", names[i],
             dm_dtype_name(t), (int)n, (int)c, (int)hw, (int)hw, (int)o, (int)r, (int)stride,
             (int)groups);
    if (!strstr(what, only)) continue;
    job.x = ones(t, n * c * hw * hw);
    job.w = ones(t, o * (c / groups) * r * r);
    job.y = ones(t, n * o * p * p);
    bench(what, 2.0 * (double)(n * o * p * p) * (double)(c / groups * r * r), calls[i], NULL,
          &job);
    free(job.x), free(job.w), free(job.y);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) dm_set_num_threads(atoi(argv[1]));
  if (argc > 2) only = argv[2];
  open_blas(getenv("BLAS"));
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("%d threads\n", dm_get_num_threads());
  static const dm_DType types[] = {DM_F32, DM_BF16, DM_F16};
  for (int i = 0; i < 3; i++) {
    const dm_DType t = types[i];
    static const int64_t sides[] = {256, 384, 512, 768, 1024, 2048};
    for (int j = 0; j < DM_COUNT(sides); j++)
      bench_product(t, sides[j], sides[j], sides[j], "nn");
    bench_product(t, 1024, 1024, 1024, "nt"); /* a linear layer, */
    bench_product(t, 1024, 1024, 1024, "tn"); /* the gradient of its weight */
    bench_product(t, 768, 1024, 3072, "nt");
    bench_product(t, 2048, 1536, 384, "nt"); /* a small GPT's */
    bench_product(t, 2048, 384, 1536, "nt");
    bench_product(t, 256, 65536, 256, "nn");
    bench_product(t, 256, 256, 65536, "nt");
    bench_product(t, 256, 256, 65536, "tn");
  }
  bench_product(DM_F64, 1024, 1024, 1024, "nn");
  bench_product(DM_F32, 8, 16, 32, "nn");
  bench_product(DM_F32, 64, 64, 64, "nn");
  bench_product(DM_F32, 128, 256, 784, "nt");
  for (int i = 0; i < 2; i++) {
    const dm_DType t = types[i];
    bench_conv(t, 1, 256, 512, 256, 1, 1, 1); /* scripts/quantised_sine.lua */
    bench_conv(t, 1, 2, 512, 256, 1, 1, 1);
    bench_conv(t, 1, 256, 512, 1, 1, 1, 1);
    bench_conv(t, 32, 3, 32, 64, 3, 1, 1); /* a ResNet for images of 32 x 32 */
    bench_conv(t, 32, 64, 32, 64, 3, 1, 1);
    bench_conv(t, 32, 64, 32, 128, 3, 2, 1);
    bench_conv(t, 32, 64, 32, 128, 1, 2, 1);
    bench_conv(t, 32, 128, 16, 128, 3, 1, 1);
    bench_conv(t, 32, 256, 8, 256, 3, 1, 1);
    bench_conv(t, 32, 512, 4, 512, 3, 1, 1);
    bench_conv(t, 128, 3, 32, 64, 7, 2, 1); /* the same for larger ones */
    bench_conv(t, 128, 64, 8, 64, 3, 1, 1);
    bench_conv(t, 128, 128, 4, 128, 3, 1, 1);
    bench_conv(t, 128, 256, 2, 256, 3, 1, 1);
    bench_conv(t, 128, 512, 1, 512, 3, 1, 1);
    bench_conv(t, 128, 1, 28, 32, 3, 1, 1); /* scripts/fashion_mnist.lua */
    bench_conv(t, 128, 32, 14, 64, 3, 1, 1);
    bench_conv(t, 32, 64, 32, 64, 3, 1, 64);
  }
  return 0;
}
