/* Speed of matrix products and convolutions in GFLOP/s, best of several runs.
   Usage: gemm [threads]. Columns: what, milliseconds, GFLOP/s. */
#if defined(__linux__)
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#endif
#include "base/error.h"
#include "cpu/conv.h"
#include "cpu/gemm.h"
#include "cpu/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* n elements, all 1 in the dtype's own bits. */
static void *ones(dm_DType t, int64_t n) {
  void *p = aligned_alloc(64, (size_t)(n * dm_dtype_size(t) + 64) / 64 * 64);
  if (!p) exit(1);
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

typedef dm_status Call(void *ctx);

/* Runs of at least 20 ms; the best of seven. */
static void bench(const char *what, double flop, Call *call, void *ctx) {
  double best = 1e30;
  int reps = 1;
  for (int round = -2; round < 7; round++) {
    const double t0 = now_ms();
    for (int i = 0; i < reps; i++)
      if (call(ctx) != DM_OK) printf("%s: %s\n", what, dm_error());
    const double ms = now_ms() - t0;
    if (round < 0 && ms < 20) reps = (int)(reps * (20 / (ms + 1e-4))) + 1;
    if (round >= 0 && ms / reps < best) best = ms / reps;
  }
  printf("%-44s %10.4f ms %8.1f GFLOP/s\n", what, best, flop / best * 1e-6);
}

typedef struct Product {
  int64_t m, n, k;
  dm_Mat a, b;
  void *c;
  dm_DType tc;
} Product;

static dm_status run_product(void *ctx) {
  const Product *const p = ctx;
  return dm_gemm(p->m, p->n, p->k, 1, p->a, p->b, 0, p->c, p->tc, p->n, NULL, p->tc,
                 DM_EPI_NONE);
}

/* `layout`: nn, nt (b transposed, as in a linear layer) or tn. */
static void bench_product(dm_DType t, int64_t m, int64_t n, int64_t k, const char *layout) {
  void *a = ones(t, m * k), *b = ones(t, k * n), *c = ones(t, m * n);
  Product p = {m, n, k, {a, t, k, 1}, {b, t, n, 1}, c, t};
  if (layout[0] == 't') p.a.rs = 1, p.a.cs = m;
  if (layout[1] == 't') p.b.rs = 1, p.b.cs = k;
  char what[96];
  snprintf(what, sizeof what, "gemm %s %s %lld x %lld x %lld", dm_dtype_name(t), layout,
           (long long)m, (long long)n, (long long)k);
  bench(what, 2.0 * (double)m * (double)n * (double)k, run_product, &p);
  free(a), free(b), free(c);
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
  Conv job = {.t = t};
  const int64_t pad = r / 2, p = (hw + 2 * pad - r) / stride + 1;
  job.d =
      (dm_ConvDims){n, c, hw, hw, o, r, r, p, p, groups, {stride, stride}, {pad, pad}, {1, 1}};
  job.x = ones(t, n * c * hw * hw);
  job.w = ones(t, o * (c / groups) * r * r);
  job.y = ones(t, n * o * p * p);
  const double flop = 2.0 * (double)(n * o * p * p) * (double)(c / groups * r * r);
  static Call *const calls[3] = {run_fwd, run_dx, run_dw};
  static const char *const names[3] = {"fwd", "dx", "dw"};
  for (int i = 0; i < 3; i++) {
    char what[96];
    snprintf(what, sizeof what, "conv %s %s (%d,%d,%d,%d) o %d r %d /%d g %d", names[i],
             dm_dtype_name(t), (int)n, (int)c, (int)hw, (int)hw, (int)o, (int)r, (int)stride,
             (int)groups);
    bench(what, flop, calls[i], &job);
  }
  free(job.x), free(job.w), free(job.y);
}

int main(int argc, char **argv) {
  if (argc > 1) dm_set_num_threads(atoi(argv[1]));
  printf("%d threads\n", dm_get_num_threads());
  static const dm_DType types[] = {DM_F32, DM_BF16, DM_F16};
  bench_product(DM_F32, 8, 16, 32, "nn");
  bench_product(DM_F32, 64, 64, 64, "nn");
  for (int i = 0; i < 3; i++) {
    bench_product(types[i], 256, 256, 256, "nn");
    bench_product(types[i], 1024, 1024, 1024, "nn");
    bench_product(types[i], 1024, 1024, 1024, "nt");
  }
  bench_product(DM_F32, 1024, 1024, 1024, "tn");
  bench_product(DM_F32, 2048, 2048, 2048, "nn");
  bench_product(DM_F64, 1024, 1024, 1024, "nn");
  bench_product(DM_F32, 256, 256, 65536, "nn");
  bench_product(DM_F32, 256, 256, 65536, "tn");
  bench_product(DM_F32, 128, 256, 784, "nt");
  for (int i = 0; i < 2; i++) {
    bench_conv(types[i], 128, 1, 28, 32, 3, 1, 1);
    bench_conv(types[i], 128, 32, 14, 64, 3, 1, 1);
    bench_conv(types[i], 32, 64, 32, 128, 3, 2, 1);
    bench_conv(types[i], 32, 128, 16, 256, 1, 1, 1);
    bench_conv(types[i], 32, 64, 32, 64, 3, 1, 64);
  }
  return 0;
}
