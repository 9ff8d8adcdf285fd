/* The speed of the machine at this moment: a worker of the benchmarks (lib.lua).
   `fma 2` -> gflops of float32 multiply-adds in registers, `stream 2` -> gbs of a
   sum of two arrays into a third that no cache holds; the number is of threads.

     cc -O3 -march=native -ffp-contract=fast -pthread probe.c -o probe */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__AVX512F__)
enum { WIDTH = 64 };
#elif defined(__AVX__)
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
typedef float Vector __attribute__((vector_size(WIDTH)));

enum { MAX_THREADS = 256, CHAINS = 12, LANES = WIDTH / 4, LOOPS = 12500000 };
enum { FLOATS = 16 << 20 }; /* of an array: 64 MiB */

typedef struct Job {
  float *a, *b, *c; /* a stretch of each array */
  long n;
  Vector sink;
} Job;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* As many chains as hide the latency of two units and still fit the registers; each
   has a value of its own, or the compiler would make one of them. */
static void *fma_job(void *arg) {
  Job *const job = arg;
  volatile float one = 1, small = 1e-9f;
  const Vector x = (Vector){0} + one, y = (Vector){0} + small;
  Vector s0 = x, s1 = s0 + x, s2 = s1 + x, s3 = s2 + x, s4 = s3 + x, s5 = s4 + x;
  Vector s6 = s5 + x, s7 = s6 + x, s8 = s7 + x, s9 = s8 + x, s10 = s9 + x, s11 = s10 + x;
  for (int i = 0; i < LOOPS; i++) {
    s0 = s0 * x + y, s1 = s1 * x + y, s2 = s2 * x + y, s3 = s3 * x + y;
    s4 = s4 * x + y, s5 = s5 * x + y, s6 = s6 * x + y, s7 = s7 * x + y;
    s8 = s8 * x + y, s9 = s9 * x + y, s10 = s10 * x + y, s11 = s11 * x + y;
  }
  job->sink = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11;
  return NULL;
}

static void *stream_job(void *arg) {
  Job *const job = arg;
  const float *const b = job->b, *const c = job->c;
  float *const a = job->a;
#if defined(__SSE2__)
  for (long i = 0; i < job->n; i += 4)
    _mm_stream_ps(a + i, _mm_add_ps(_mm_load_ps(b + i), _mm_load_ps(c + i)));
#else
  for (long i = 0; i < job->n; i++) a[i] = b[i] + c[i];
#endif
  return NULL;
}

/* Seconds until all threads have done their job, or less than 0. */
static double together(int threads, void *run(void *), Job *jobs) {
  pthread_t others[MAX_THREADS];
  int started = 1;
  const double start = now();
  while (started < threads && !pthread_create(&others[started], NULL, run, &jobs[started]))
    started++;
  run(&jobs[0]);
  for (int i = 1; i < started; i++) pthread_join(others[i], NULL);
  return started == threads ? now() - start : -1;
}

static Job jobs[MAX_THREADS];

static void answer_fma(int threads) {
  const double seconds = together(threads, fma_job, jobs);
  printf("gflops=%.4g\n", 2e-9 * CHAINS * LANES * LOOPS * threads / seconds);
}

/* The best of five; the arrays are gone afterwards. */
static void answer_stream(int threads) {
  float *const a = aligned_alloc(64, sizeof(float) * FLOATS * 3);
  if (!a) {
    puts("error no memory");
    return;
  }
  memset(a, 0, sizeof(float) * FLOATS * 3);
  const long n = FLOATS / threads / 16 * 16;
  for (int i = 0; i < threads; i++)
    jobs[i] =
        (Job){.a = a + i * n, .b = a + FLOATS + i * n, .c = a + 2 * FLOATS + i * n, .n = n};
  double best = 1e30;
  for (int i = 0; i < 5; i++) {
    const double seconds = together(threads, stream_job, jobs);
    if (seconds < best) best = seconds;
  }
  printf("gbs=%.4g\n", 3e-9 * sizeof(float) * (double)(n * threads) / best);
  free(a);
}

int main(void) {
  char line[64], word[16];
  while (fgets(line, sizeof line, stdin)) {
    int threads = 1;
    if (sscanf(line, "%15s %d", word, &threads) < 1 || !strcmp(word, "quit")) break;
    if (threads < 1 || threads > MAX_THREADS) puts("error threads");
    else if (!strcmp(word, "fma")) answer_fma(threads);
    else if (!strcmp(word, "stream")) answer_stream(threads);
    else puts("error request");
    fflush(stdout);
  }
  return 0;
}
