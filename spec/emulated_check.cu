/* Checks kernels/emulated and kernels/launch.cuh: what a kernel computes on the
   emulated device, and that what is wrong on a GPU is caught. Prints
   "N passed, N failed". */
#include "launch.cuh"

#include <math.h>
#include <pthread.h>
#include <signal.h>
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

/* What the back end's device layer offers to launch.cuh. */
static cudaStream_t stream_now;
static cudaError_t last_launch;
cudaStream_t dm_cuda_stream(void) { return stream_now; }
dm_status dm_cuda_fail(cudaError_t error, const char *) {
  last_launch = error;
  return error == cudaSuccess ? DM_OK : DM_EDEV;
}

/* ---- device arrays ------------------------------------------------------------------- */

template <class T> static T *device_array(const T *values, int n) {
  void *p;
  if (cudaMalloc(&p, (size_t)n * sizeof(T)) != cudaSuccess) exit(2);
  if (values) cudaMemcpy(p, values, (size_t)n * sizeof(T), cudaMemcpyHostToDevice);
  return (T *)p;
}
template <class T> static void fetch(T *out, const T *device, int n) {
  memset(out, 0, (size_t)n * sizeof(T));
  cudaMemcpy(out, device, (size_t)n * sizeof(T), cudaMemcpyDeviceToHost);
}

/* ---- plain kernels ------------------------------------------------------------------------
 */

static __global__ void add(const float *x, const float *y, float *out, int n) {
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) out[i] = x[i] + y[i];
}

static void vector_add(void) {
  enum { N = 100001 };
  static float x[N], y[N], out[N];
  for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = (float)(3 * i);
  float *dx = device_array(x, N), *dy = device_array(y, N),
        *d = device_array<float>(nullptr, N);
  const int64_t before = dm_emulated_count("launch");
  check(dm_launch(add, (N + 255) / 256, 256, 0, dx, dy, d, (int64_t)N) == DM_OK, "add runs");
  check(dm_emulated_count("launch") == before + 1, "a launch is counted");
  fetch(out, d, N);
  bool ok = true;
  for (int i = 0; i < N; i++) ok = ok && out[i] == (float)(4 * i);
  check(ok, "add: each of 100001 elements");
  cudaFree(dx), cudaFree(dy), cudaFree(d);
}

static __global__ void where_am_i(int *out) {
  const dim3 b = blockDim, g = gridDim;
  const unsigned thread = threadIdx.x + b.x * (threadIdx.y + b.y * threadIdx.z);
  const unsigned block = blockIdx.x + g.x * (blockIdx.y + g.y * blockIdx.z);
  out[block * (b.x * b.y * b.z) + thread]++;
}
static void indices(void) {
  enum { N = 2 * 3 * 4 * 5 * 6 * 2 };
  int zeros[N] = {0}, out[N];
  int *d = device_array(zeros, N);
  check(dm_launch(where_am_i, dim3(2, 3, 4), dim3(5, 6, 2), 0, d) == DM_OK, "three dims run");
  fetch(out, d, N);
  bool ok = true;
  for (int i = 0; i < N; i++) ok = ok && out[i] == 1;
  check(ok, "every thread of every block runs once");
  cudaFree(d);
}

/* ---- barriers and shuffles ------------------------------------------------------------------
 */

static __global__ void tree_sum(const float *x, float *out) {
  DM_SHARED(float, tile, 256);
  const int t = (int)threadIdx.x;
  tile[t] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) tile[t] += tile[t + half];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = tile[0];
}
static __global__ void shuffle_sum(const float *x, float *out) {
  DM_DYNAMIC_SHARED(float, part);
  const int t = (int)threadIdx.x;
  float v = x[blockIdx.x * 256 + threadIdx.x];
  for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(0xffffffffu, v, (unsigned)by);
  if (t % 32 == 0) part[t / 32] = v;
  __syncthreads();
  if (t >= 32) return;
  v = t < 8 ? (float)part[t] : 0.0f;
  for (int with = 4; with > 0; with /= 2) v += __shfl_xor_sync(0xffffffffu, v, with);
  if (t == 0) out[blockIdx.x] = v;
}
static void block_sums(void) {
  enum { BLOCKS = 8, N = 256 * BLOCKS };
  float x[N], want[BLOCKS] = {0}, out[BLOCKS];
  for (int i = 0; i < N; i++) x[i] = (float)(i % 37), want[i / 256] += x[i];
  float *dx = device_array(x, N), *d = device_array<float>(nullptr, BLOCKS);
  check(dm_launch(tree_sum, BLOCKS, 256, 0, dx, d) == DM_OK, "tree_sum runs");
  fetch(out, d, BLOCKS);
  check(memcmp(out, want, sizeof out) == 0, "a sum through shared memory");
  check(dm_launch(shuffle_sum, BLOCKS, 256, 8 * sizeof(float), dx, d) == DM_OK, "shuffles run");
  fetch(out, d, BLOCKS);
  check(memcmp(out, want, sizeof out) == 0, "a sum through shuffles");
  cudaFree(dx), cudaFree(d);
}

int main(void) {
  vector_add();
  indices();
  block_sums();
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
