/* Checks kernels/emulated and kernels/launch.cuh: kernels give the right results on the
   emulated device, and it reports the faults of a GPU: races, bad addresses, divergent
   barriers. Prints "N passed, N failed". */
#include "kernels/launch.cuh"
#include "kernels/trig.cuh"

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
  return DM_EDEV;
}

/* Whether a call failed as it should; the failure is then forgotten, so that the
   next launch does not report it. */
static bool refused(cudaError_t got, cudaError_t want) {
  return got == want && cudaGetLastError() == want;
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

/* ---- results of the intrinsics --------------------------------------------------------------
 */

/* Row r of out is what the 32 lanes got from intrinsic r. */
static __global__ void warp_words(unsigned *out) {
  const unsigned all = 0xffffffffu, lane = threadIdx.x;
  unsigned *const mine = out + lane;
  mine[0 * 32] = __shfl_sync(all, lane * 10, 3);
  mine[1 * 32] = __shfl_sync(all, lane * 10, 3, 8);
  mine[2 * 32] = __shfl_up_sync(all, lane, 2);
  mine[3 * 32] = __shfl_down_sync(all, lane, 2, 16);
  mine[4 * 32] = __shfl_xor_sync(all, lane, 5);
  mine[5 * 32] = __ballot_sync(all, lane % 3 == 0);
  mine[6 * 32] = (unsigned)(__any_sync(all, lane == 7) + 2 * __any_sync(all, 0));
  mine[7 * 32] = (unsigned)(__all_sync(all, 1) + 2 * __all_sync(all, lane != 7));
  mine[8 * 32] = (unsigned)(__shfl_sync(all, (double)lane, 9) * 2.0);
  mine[9 * 32] = lane < 8 ? __ballot_sync(0xffu, lane & 1) : 0;
}
static void warps(void) {
  enum { ROWS = 10 };
  unsigned out[ROWS * 32];
  unsigned *d = device_array<unsigned>(nullptr, ROWS * 32);
  check(dm_launch(warp_words, 1, 32, 0, d) == DM_OK, "warp_words runs");
  fetch(out, d, ROWS * 32);
  bool ok[ROWS];
  memset(ok, 1, sizeof ok);
  for (unsigned l = 0; l < 32; l++) {
    const unsigned *o = out + l;
    ok[0] &= o[0] == 30;
    ok[1] &= o[32] == (l / 8 * 8 + 3) * 10;
    ok[2] &= o[64] == (l < 2 ? l : l - 2);
    ok[3] &= o[96] == (l % 16 < 14 ? l + 2 : l);
    ok[4] &= o[128] == (l ^ 5);
    ok[5] &= o[160] == 0x49249249u;
    ok[6] &= o[192] == 1;
    ok[7] &= o[224] == 1;
    ok[8] &= o[256] == 18;
    ok[9] &= o[288] == (l < 8 ? 0xaau : 0);
  }
  check(ok[0] && ok[1], "__shfl_sync, also in groups");
  check(ok[2] && ok[3] && ok[4], "__shfl_up_sync, down, xor");
  check(ok[5] && ok[9], "__ballot_sync, also of some lanes");
  check(ok[6] && ok[7], "__any_sync and __all_sync");
  check(ok[8], "a double is shuffled whole");
  cudaFree(d);
}

static __global__ void bit_words(int *out) {
  out[0] = __popc(0xf0f0u), out[1] = __ffs(0), out[2] = __ffs(8);
  out[3] = __clz(0), out[4] = __clz(1), out[5] = __clzll(1);
  out[6] = __float_as_uint(1.0f) == 0x3f800000u && __uint_as_float(0x40000000u) == 2.0f;
  const float4 v = make_float4(1, 2, 3, 4);
  const uint4 u = make_uint4(5, 6, 7, 8);
  out[7] = (int)(v.w + (float)u.x), out[8] = warpSize;
}
static void bits(void) {
  const int want[9] = {8, 0, 4, 32, 31, 63, 1, 9, 32};
  int out[9], *d = device_array<int>(nullptr, 9);
  check(dm_launch(bit_words, 1, 1, 0, d) == DM_OK, "bit_words runs");
  fetch(out, d, 9);
  check(memcmp(out, want, sizeof want) == 0, "__popc, __ffs, __clz, bits of floats, vectors");
  cudaFree(d);
}

struct Totals {
  int sum, highest, lowest, last, winners;
  unsigned long long wide;
  float real;
};
static __global__ void count_all(Totals *g, int *hist) {
  DM_SHARED(int, bins, 4);
  const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (threadIdx.x < 4) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[i % 4], 1);
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd(&hist[threadIdx.x], bins[threadIdx.x]);
  atomicAdd(&g->sum, i);
  atomicAdd(&g->wide, 1ull << 33);
  atomicAdd(&g->real, 0.5f);
  atomicMax(&g->highest, i);
  atomicMin(&g->lowest, i);
  atomicExch(&g->last, i);
  if (atomicCAS(&g->winners, 0, 1) == 0) atomicAdd(&g->winners, 10);
}
static void atomics(void) {
  const Totals zero = {0, -1, 1 << 30, -1, 0, 0, 0};
  const int none[4] = {0};
  Totals *g = device_array(&zero, 1), t;
  int *h = device_array(none, 4), hist[4];
  check(dm_launch(count_all, 4, 128, 0, g, h) == DM_OK, "count_all runs");
  fetch(&t, g, 1), fetch(hist, h, 4);
  check(t.sum == 511 * 256 && t.wide == 512ull << 33 && t.real == 256.0f, "atomicAdd");
  check(t.highest == 511 && t.lowest == 0 && t.last == 511 && t.winners == 11,
        "atomicMax, Min, Exch, CAS");
  check(hist[0] == 128 && hist[1] == 128 && hist[2] == 128 && hist[3] == 128,
        "atomics on shared memory");
  cudaFree(g), cudaFree(h);
}

/* ---- shared memory
 * --------------------------------------------------------------------------- */

/* Adds up a part of an array, through a parameter that takes any shared array. */
static __device__ float three(DM_SHARED_PTR(float) v) { return v[0] + v[1] + v[2]; }

static __global__ void shared_words(float *out) {
  DM_SHARED(float, tile, 64);
  DM_SHARED(float4, wide, 2);
  DM_DYNAMIC_SHARED(float, rest);
  const int t = (int)threadIdx.x;
  if (blockIdx.x == 1 && t == 0) out[0] = tile[5], out[1] = rest[5];
  __syncthreads();
  tile[t] = (float)t;
  if (t < 2) wide[t] = make_float4((float)t, 2, 3, 4);
  __syncwarp();
  rest[t ^ 1] = tile[t]; /* a lane's neighbour is of its warp */
  __syncwarp();
  tile[t] *= rest[t];
  __syncthreads();
  if (t > 0) return; /* the other threads have left: no barrier waits for them */
  __syncthreads();
  const float4 w = wide[1];
  out[2] = tile[6], out[3] = three(tile + 61), out[4] = w.x + w.w, out[5] = rest[0] = tile[2];
}
static void shared_memory(void) {
  float out[6], *d = device_array<float>(nullptr, 6);
  check(dm_launch(shared_words, 2, 64, 64 * sizeof(float), d) == DM_OK, "shared_words runs");
  fetch(out, d, 6);
  check(isnan(out[0]) && isnan(out[1]), "each block's shared memory starts with NaN");
  check(out[2] == 42 && out[3] == 61 * 60 + 2 * 62 * 63 && out[4] == 5 && out[5] == 6,
        "elements are read, changed and assigned; parts are passed on");
  cudaFree(d);
}

static __global__ void crowd(int *out) {
  DM_SHARED(int, row, 1024);
  const int t = (int)threadIdx.x;
  int v = t;
  for (int i = 0; i < 20; i++) {
    row[t] = v;
    __syncthreads();
    v = row[(t + 1) % 1024];
    __syncthreads();
  }
  out[t] = v;
}
static void large_block(void) {
  static int out[1024];
  int *d = device_array<int>(nullptr, 1024);
  check(dm_launch(crowd, 1, 1024, 0, d) == DM_OK, "1024 threads run");
  fetch(out, d, 1024);
  bool ok = true;
  for (int i = 0; i < 1024; i++) ok = ok && out[i] == (i + 20) % 1024;
  check(ok, "1024 threads pass 40 barriers");
  cudaFree(d);
}

/* ---- launches that fail or do nothing
 * ----------------------------------------------------------- */

static __global__ void nothing(void) {}
template <class T, int N> static __global__ void scale(T *x, T by) {
  if (threadIdx.x < N) x[threadIdx.x] *= by;
}

static void launches(void) {
  const float x[4] = {1, 2, 3, 4};
  float out[4], *d = device_array(x, 4);
  check(dm_launch((scale<float, 4>), 1, 32, 0, d, 2) == DM_OK, "a kernel with commas runs");
  fetch(out, d, 4);
  check(out[0] == 2 && out[3] == 8, "an int argument becomes the float parameter");
  cudaFree(d);

  const int64_t before = dm_emulated_count("launch");
  check(dm_launch(nothing, 0, 32, 0) == DM_OK && dm_emulated_count("launch") == before,
        "an empty grid is not launched");
  const struct {
    dim3 grid, block;
    size_t shared;
    cudaError_t want;
  } bad[] = {{dim3(1), dim3(1025), 0, cudaErrorInvalidConfiguration},
             {dim3(1), dim3(0), 0, cudaErrorInvalidConfiguration},
             {dim3(1), dim3(1, 1, 65), 0, cudaErrorInvalidConfiguration},
             {dim3(1), dim3(64, 32), 0, cudaErrorInvalidConfiguration},
             {dim3(1, 0), dim3(1), 0, cudaErrorInvalidConfiguration},
             {dim3(1, 65536), dim3(1), 0, cudaErrorInvalidConfiguration},
             {dim3(1, 1, 65536), dim3(1), 0, cudaErrorInvalidConfiguration},
             {dim3(1u << 31), dim3(1), 0, cudaErrorInvalidConfiguration},
             {dim3(1), dim3(1), (48 << 10) + 1, cudaErrorInvalidValue}};
  bool ok = true;
  for (const auto &b : bad) {
    ok =
        ok && dm_launch(nothing, b.grid, b.block, b.shared) == DM_EDEV && last_launch == b.want;
  }
  check(ok, "launches out of bounds fail");

  const auto attr = cudaFuncAttributeMaxDynamicSharedMemorySize;
  check(refused(cudaFuncSetAttribute(nothing, attr, (227 << 10) + 1), cudaErrorInvalidValue),
        "228 KiB of shared memory are too much");
  check(cudaFuncSetAttribute(nothing, attr, 100 << 10) == cudaSuccess &&
            dm_launch(nothing, 1, 1, 100 << 10) == DM_OK &&
            dm_launch(nothing, 1, 1, (100 << 10) + 1) == DM_EDEV,
        "a kernel may be allowed more shared memory, and has that much");
}

/* ---- memory
 * ------------------------------------------------------------------------------------------ */

enum { MIB = 1 << 20, LIMIT = 64 }; /* of a device, in MiB */

static void memory(void) {
  void *a, *b, *c;
  size_t before, after, total;
  cudaMemGetInfo(&before, &total);
  check(total == (size_t)LIMIT * MIB, "the limit is the device's size");
  check(cudaMalloc(&a, 40 * MIB) == cudaSuccess, "40 of 64 MiB");
  check(cudaMalloc(&b, 30 * MIB) == cudaErrorMemoryAllocation && !b, "30 more do not fit");
  check(cudaPeekAtLastError() == cudaErrorMemoryAllocation &&
            cudaGetLastError() == cudaErrorMemoryAllocation &&
            cudaGetLastError() == cudaSuccess,
        "an error is remembered once");
  check(cudaMalloc(&b, 20 * MIB) == cudaSuccess, "20 more do");
  cudaMemGetInfo(&after, &total);
  check(before - after == 60u * MIB, "cudaMemGetInfo");
  check(cudaFree(a) == cudaSuccess && cudaMalloc(&c, 39 * MIB) == cudaSuccess && c == a,
        "a freed address is used again");
  check(cudaFree(a) == cudaSuccess && refused(cudaFree(a), cudaErrorInvalidValue),
        "freed twice");
  check(refused(cudaFree((char *)b + 512), cudaErrorInvalidValue), "freed in the middle");
  check(cudaFree(nullptr) == cudaSuccess && cudaMalloc(&c, 0) == cudaSuccess && !c, "nothing");
  check((uintptr_t)b % 512 == 0, "alignment");
  cudaFree(b);

  float v[3] = {0, 0, 0};
  float *d = device_array<float>(nullptr, 3);
  fetch(v, d, 3);
  check(isnan(v[0]) && isnan(v[2]), "new memory holds NaN");

  cudaPointerAttributes at;
  check(cudaPointerGetAttributes(&at, d + 1) == cudaSuccess &&
            at.type == cudaMemoryTypeDevice && at.device == 0,
        "a device's pointer is known");
  check(cudaPointerGetAttributes(&at, v) == cudaSuccess &&
            at.type == cudaMemoryTypeUnregistered,
        "a host's pointer is known");
  void *pinned;
  check(cudaHostAlloc(&pinned, 12, cudaHostAllocDefault) == cudaSuccess &&
            cudaPointerGetAttributes(&at, (char *)pinned + 11) == cudaSuccess &&
            at.type == cudaMemoryTypeHost,
        "pinned memory is known");

  const auto d2h = cudaMemcpyDeviceToHost, h2d = cudaMemcpyHostToDevice;
  const int64_t sync = dm_emulated_count("sync"), copies = dm_emulated_count("copy");
  check(cudaMemsetAsync(d, 0, 8, nullptr) == cudaSuccess &&
            cudaMemcpyAsync(d + 2, v, 0, h2d, nullptr) == cudaSuccess &&
            cudaMemcpyAsync(pinned, d, 12, d2h, nullptr) == cudaSuccess,
        "asynchronous copies");
  check(dm_emulated_count("copy") == copies + 2 && dm_emulated_count("sync") == sync,
        "a fill and a copy to pinned memory are counted; they do not wait");
  const float *p = (const float *)pinned;
  check(p[0] == 0 && p[1] == 0 && isnan(p[2]), "what was filled and copied");
  check(cudaMemcpyAsync(v, d, 12, d2h, nullptr) == cudaSuccess &&
            dm_emulated_count("sync") == sync + 1,
        "a copy to pageable memory waits");
  check(refused(cudaMemcpyAsync(v, d, 16, d2h, nullptr), cudaErrorInvalidValue),
        "a copy beyond");
  check(refused(cudaMemcpyAsync(v, d, 12, h2d, nullptr), cudaErrorInvalidValue),
        "wrong direction");
  check(cudaMemcpyAsync(d, v, 12, cudaMemcpyDefault, nullptr) == cudaSuccess, "any direction");
  check(refused(cudaMemsetAsync(v, 0, 12, nullptr), cudaErrorInvalidValue),
        "a fill of host memory");
  check(refused(cudaFreeHost(v), cudaErrorInvalidValue) && cudaFreeHost(pinned) == cudaSuccess,
        "only pinned memory is freed as such");
  check(dm_emulated_count("host_malloc") == 1 && dm_emulated_count("host_free") == 2 &&
            dm_emulated_count("lunch") == -1,
        "counters");
  cudaFree(d);
  check(refused(cudaMemcpy(v, d, 12, d2h), cudaErrorInvalidValue), "a copy from freed memory");
  cudaMemGetInfo(&after, &total);
  check(after == before, "all memory came back");
}

/* ---- devices, streams, events
 * ------------------------------------------------------------------------- */

static void devices(void) {
  int n, now, can, value;
  cudaDeviceProp prop;
  check(cudaGetDeviceCount(&n) == cudaSuccess && n == 2, "two devices");
  check(refused(cudaSetDevice(2), cudaErrorInvalidDevice) &&
            cudaGetDevice(&now) == cudaSuccess && now == 0,
        "there is no third");
  check(cudaGetDeviceProperties(&prop, 1) == cudaSuccess && prop.warpSize == 32 &&
            prop.totalGlobalMem == (size_t)LIMIT * MIB && prop.name[0],
        "properties");
  check(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) ==
                cudaSuccess &&
            value == 227 << 10,
        "attributes");
  const float x[2] = {1, 2};
  float y[2], *first = device_array(x, 2), *second;
  check(cudaSetDevice(1) == cudaSuccess, "the second device");
  second = device_array<float>(nullptr, 2);
  check(cudaMemcpyPeerAsync(second, 1, first, 0, sizeof x, nullptr) == cudaSuccess, "peers");
  fetch(y, second, 2);
  check(y[0] == 1 && y[1] == 2, "a copy between devices");
  check(refused(cudaMemcpyPeerAsync(second, 0, first, 0, 8, nullptr), cudaErrorInvalidValue),
        "a copy from a device that does not own it");

  cudaStream_t s;
  check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess, "a stream");
  stream_now = s;
  check(dm_launch((scale<float, 2>), 1, 32, 0, second, 3) == DM_OK, "a launch on it");
  cudaSetDevice(0);
  check(dm_launch(nothing, 1, 1, 0) == DM_EDEV && last_launch == cudaErrorInvalidResourceHandle,
        "a launch on another device's stream fails");
  stream_now = nullptr;
  check(cudaStreamDestroy(s) == cudaSuccess &&
            refused(cudaStreamSynchronize(s), cudaErrorInvalidResourceHandle) &&
            refused(cudaStreamDestroy(s), cudaErrorInvalidResourceHandle),
        "a destroyed stream is refused");
  check(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess && can == 1 &&
            cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess &&
            refused(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled),
        "peer access");
  check(dm_launch((scale<float, 2>), 1, 32, 0, second, 3) == DM_OK, "a peer's memory is used");
  fetch(y, second, 2);
  check(y[0] == 9 && y[1] == 18, "launches on both devices");
  cudaFree(first), cudaFree(second);
}

static void events(void) {
  cudaStream_t s;
  cudaEvent_t a, b, plain;
  float ms = -1;
  cudaStreamCreateWithFlags(&s, cudaStreamDefault);
  cudaEventCreate(&a), cudaEventCreate(&b);
  cudaEventCreateWithFlags(&plain, cudaEventDisableTiming);
  check(refused(cudaEventElapsedTime(&ms, a, b), cudaErrorInvalidResourceHandle),
        "not recorded yet");
  check(cudaEventRecord(a, s) == cudaSuccess && cudaEventRecord(b, nullptr) == cudaSuccess &&
            cudaEventRecord(plain, s) == cudaSuccess,
        "events are recorded");
  check(cudaEventElapsedTime(&ms, a, b) == cudaSuccess && ms >= 0, "a time in between");
  check(refused(cudaEventElapsedTime(&ms, a, plain), cudaErrorInvalidResourceHandle),
        "no time in it");
  check(cudaStreamWaitEvent(s, b, 0) == cudaSuccess && cudaEventQuery(b) == cudaSuccess &&
            cudaStreamQuery(s) == cudaSuccess,
        "waiting and asking");
  const int64_t before = dm_emulated_count("sync");
  cudaEventSynchronize(b), cudaStreamSynchronize(s), cudaDeviceSynchronize();
  check(dm_emulated_count("sync") == before + 3, "three calls that wait");
  cudaSetDevice(1);
  check(refused(cudaEventRecord(a, nullptr), cudaErrorInvalidResourceHandle),
        "another device's event");
  cudaSetDevice(0);
  check(cudaEventDestroy(a) == cudaSuccess &&
            refused(cudaEventQuery(a), cudaErrorInvalidResourceHandle),
        "a destroyed event is refused");
  cudaEventDestroy(b), cudaEventDestroy(plain), cudaStreamDestroy(s);
  check(strcmp(cudaGetErrorName(cudaErrorNoDevice), "cudaErrorNoDevice") == 0 &&
            strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0,
        "errors have names");
}

/* ---- capture ---- */

/* Begins a capture, makes a call that it forbids, and ends it: the call gives `code`, and the
   capture is spoilt. */
template <class F> static bool spoils(cudaStream_t s, cudaError_t code, F call) {
  cudaGraph_t g = nullptr;
  if (cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
  const bool right = refused(call(), code);
  return refused(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated) && !g && right;
}

struct Twice {
  float *x;
};
static void double_it(void *p) {
  float *x = ((Twice *)p)->x;
  x[0] *= 2;
}

/* A kernel, a copy, a fill and a library's call are recorded with what they were given then. */
static void captures(void) {
  float x[2] = {1, 2}, y[2];
  float *d = device_array(x, 2), *copy = device_array<float>(nullptr, 2);
  cudaStream_t s;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  size_t n = 0;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  stream_now = s;
  const int64_t before = dm_emulated_count("launch");
  check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess, "begins");
  {
    Twice twice = {d};
    dm_launch((scale<float, 2>), 1, 32, 0, d, 3);
    dm_emulated_run("double_it", s, 0, double_it, &twice, sizeof twice);
    twice.x = nullptr;
    cudaMemsetAsync(copy, 0, sizeof y, s);
    cudaMemcpyAsync(copy, d, sizeof(float), cudaMemcpyDeviceToDevice, s);
  }
  check(cudaStreamEndCapture(s, &graph) == cudaSuccess, "a capture ends");
  check(dm_emulated_count("launch") == before, "nothing ran");
  fetch(y, d, 2);
  check(y[0] == 1 && y[1] == 2, "nothing changed");
  check(cudaGraphGetNodes(graph, nullptr, &n) == cudaSuccess && n == 4, "four nodes");
  check(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess, "an executable graph");
  cudaGraphDestroy(graph);
  for (int i = 0; i < 2; i++) check(cudaGraphLaunch(exec, s) == cudaSuccess, "a launch");
  check(dm_emulated_count("launch") == before + 2 && dm_emulated_count("node") == 8,
        "each launch counts once");
  fetch(y, d, 2);
  check(y[0] == 36 && y[1] == 18, "the work was done twice");
  fetch(y, copy, 2);
  check(y[0] == 36 && y[1] == 0, "copies and fills too");
  cudaGraphExecDestroy(exec);
  stream_now = nullptr;
  cudaFree(d), cudaFree(copy), cudaStreamDestroy(s);
}

static void forbidden_in_a_capture(void) {
  float x = 1, *d = device_array(&x, 1);
  void *p = nullptr;
  cudaStream_t s, other;
  cudaEvent_t event;
  cudaGraph_t g;
  const cudaError_t no = cudaErrorStreamCaptureUnsupported;
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaEventRecord(event, other);
  check(spoils(s, no, [&] { return cudaMalloc(&p, 512); }), "no cudaMalloc");
  check(spoils(s, no, [&] { return cudaFree(d); }), "no cudaFree");
  check(spoils(s, no, [&] { return cudaHostAlloc(&p, 512, 0); }), "no cudaHostAlloc");
  check(spoils(s, no, [&] { return cudaStreamSynchronize(s); }), "no wait for the stream");
  check(spoils(s, no, [&] { return cudaDeviceSynchronize(); }), "no wait for the device");
  check(spoils(s, no, [&] { return cudaStreamQuery(s); }), "no question to the stream");
  check(spoils(s, no, [&] { return cudaEventQuery(event); }), "no question to an event");
  check(spoils(s, no, [&] { return cudaStreamWaitEvent(s, event, 0); }), "no foreign event");
  check(spoils(s, no, [&] { return cudaMemcpyAsync(d, &x, 4, cudaMemcpyHostToDevice, s); }),
        "no copy of pageable memory");
  check(spoils(s, cudaErrorStreamCaptureImplicit,
               [&] { return cudaMemcpy(d, &x, 4, cudaMemcpyHostToDevice); }),
        "no legacy stream");
  check(spoils(s, cudaErrorStreamCaptureInvalidated,
               [&] {
                 cudaFree(d);
                 return cudaMemsetAsync(d, 0, 4, s);
               }),
        "nothing after a failure");
  check(refused(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), no),
        "the legacy stream is not captured");
  check(refused(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureUnmatched),
        "nothing to end");
  /* what a thread may do that says so, and an event of a capture */
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  cudaThreadExchangeStreamCaptureMode(&mode);
  check(cudaMalloc(&p, 512) == cudaSuccess, "a relaxed thread allocates");
  cudaThreadExchangeStreamCaptureMode(&mode);
  check(cudaEventRecord(event, s) == cudaSuccess && cudaStreamEndCapture(s, &g) == cudaSuccess,
        "an event in a capture");
  check(refused(cudaEventQuery(event), cudaErrorCapturedEvent), "it never happens");
  cudaGraphDestroy(g);
  cudaFree(p), cudaFree(d), cudaEventDestroy(event);
  cudaStreamDestroy(s), cudaStreamDestroy(other);
}

static void triple(void *p) {
  float *x = (float *)p;
  x[0] *= 3;
}
static void library_calls(void) {
  float x = 5, *d = device_array(&x, 1);
  const int64_t before = dm_emulated_count("launch");
  check(dm_emulated_run("triple", nullptr, 0, triple, d, 0) == cudaSuccess, "dm_emulated_run");
  fetch(&x, d, 1);
  check(x == 15 && dm_emulated_count("launch") == before + 1, "it reaches device memory");
  cudaFree(d);
}

static void *sums_in_a_thread(void *ok) {
  for (int i = 0; i < 30; i++) {
    float x[256], *d, *dx, out = 0;
    for (int j = 0; j < 256; j++) x[j] = (float)(i + j);
    dx = device_array(x, 256), d = device_array<float>(nullptr, 1);
    const bool ran = dm_launch(tree_sum, 1, 256, 0, dx, d) == DM_OK;
    fetch(&out, d, 1);
    if (!ran || out != (float)(256 * i + 255 * 128)) *(bool *)ok = false;
    cudaFree(d), cudaFree(dx);
  }
  return nullptr;
}
static void host_threads(void) {
  bool ok[3] = {true, true, true};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], nullptr, sums_in_a_thread, &ok[i]);
  for (pthread_t t : threads) pthread_join(t, nullptr);
  check(ok[0] && ok[1] && ok[2], "three host threads launch at once");
}

/* ---- faults that must end in a message and a death
 * ------------------------------------------------------------ */

/* Runs f in a child, where the variable `name`, if any, has this value; true if the child died
   of it and said `words`. */
static bool dies_with(const char *name, const char *value, void (*f)(void), const char *words) {
  int ends[2];
  fflush(stdout);
  if (pipe(ends) != 0) exit(2);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    close(ends[0]);
    if (name) setenv(name, value, 1);
    f();
    _exit(0);
  }
  close(ends[1]);
  char text[1 << 14];
  size_t n = 0;
  for (ssize_t got = 1; got > 0 && n < sizeof text - 1; n += (size_t)(got > 0 ? got : 0))
    got = read(ends[0], text + n, sizeof text - 1 - n);
  text[n] = 0;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const bool dead = WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
  const bool ok = dead && strstr(text, words);
  if (!ok) printf("status 0x%x, wanted \"%s\", said: %s\n", (unsigned)status, words, text);
  return ok;
}

static bool dies(void (*f)(void), const char *words) {
  return dies_with(nullptr, "", f, words);
}

static __global__ void no_barrier(void) {
  DM_SHARED(int, row, 64);
  row[threadIdx.x] = 1;
  if (threadIdx.x == 40) row[3] += 1;
}
static __global__ void no_warp_barrier(int order) {
  DM_SHARED(int, row, 64);
  const int t = (int)threadIdx.x;
  if (t / 32 == 0) return;
  if (order == 0) row[t] = t;
  int v = row[t > 32 ? t - 1 : t];
  __shfl_sync(0xffffffffu, v, 0); /* a shuffle orders no memory */
  if (order == 1) row[t] = v;
}
static __global__ void warp_barrier_for_a_block(void) {
  DM_SHARED(int, row, 64);
  row[threadIdx.x] = 1;
  __syncwarp();
  row[threadIdx.x] = row[(threadIdx.x + 32) % 64];
}
static __global__ void read_by_all(void) {
  DM_SHARED(int, row, 4);
  const int v = row[0];
  if (threadIdx.x == 63) row[0] = v;
}
static __global__ void half_atomic(void) {
  DM_SHARED(int, row, 4);
  if (threadIdx.x == 0) row[0] = 0;
  __syncthreads();
  if (threadIdx.x < 32) atomicAdd(&row[0], 1);
  else row[1] = row[0];
}
static __global__ void outside(void) {
  DM_SHARED(int, row, 4);
  row[threadIdx.x] = 0;
}
static __global__ void some_at_a_barrier(int *never) {
  const unsigned t = threadIdx.x + 8 * threadIdx.y;
  if (t < 16) __syncthreads();
  else if (t < 32) __syncwarp();
  *never = 1;
}
static __global__ void two_barriers(void) {
  if (threadIdx.x < 32) __syncthreads();
  else __syncthreads();
}
static __global__ void half_a_warp(int *out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
}
static __global__ void not_in_the_mask(int *out) { *out = __shfl_sync(0xffffu, 1, 0); }
static __global__ void reads_no_lane(int *out) {
  if (threadIdx.x < 16) *out = __shfl_sync(0xffffu, 1, 20);
}
static __global__ void too_much_shared(void) {
  DM_SHARED(float, rows, 12 * 1024 + 1);
  rows[0] = 1;
}
static __global__ void wild(float **p) { (*p)[threadIdx.x] = 1; }
static __global__ void takes(float *p) { p[0] = 1; }
struct alignas(16) Pack {
  uint16_t v[8];
};
template <class T> static __global__ void copy_as(T *to, const T *from) { *to = *from; }

static int *number;
static void race_1(void) { dm_launch(no_barrier, 1, 64, 0); }
static void race_2(void) { dm_launch(no_warp_barrier, 1, 64, 0, 0); }
static void race_3(void) { dm_launch(no_warp_barrier, 1, 64, 0, 1); }
static void race_4(void) { dm_launch(warp_barrier_for_a_block, 1, 64, 0); }
static void race_5(void) { dm_launch(read_by_all, 1, 64, 0); }
static void race_6(void) { dm_launch(half_atomic, 1, 64, 0); }
static void index_1(void) { dm_launch(outside, 1, 64, 0); }
static void hang_1(void) { dm_launch(some_at_a_barrier, dim3(1, 2), dim3(8, 8), 0, number); }
static void hang_2(void) { dm_launch(two_barriers, 1, 64, 0); }
static void hang_3(void) { dm_launch(half_a_warp, 1, 64, 0, number); }
static void mask_1(void) { dm_launch(not_in_the_mask, 1, 32, 0, number); }
static void mask_2(void) { dm_launch(reads_no_lane, 1, 32, 0, number); }
static void shared_1(void) { dm_launch(too_much_shared, 1, 32, 0); }
static void host_reads(void) { printf("%d", *(volatile int *)number); }
static void host_writes(void) { *(volatile int *)number = 1; }
static void kernel_strays(void) {
  float *far = (float *)64, **d = device_array(&far, 1);
  dm_launch(wild, 1, 32, 0, d);
}
static void kernel_on_host(void) {
  static float x;
  dm_launch(takes, 1, 1, 0, &x);
}
/* From and to addresses of which one is a multiple of 16 less `less`. */
template <class T> static void misaligned(size_t less) {
  char *d = device_array<char>(nullptr, 64);
  dm_launch(copy_as<T>, 1, 1, 0, (void *)d, (void *)(d + 32 - less));
}
/* The sanitizer's own library says it in its words. */
static bool refuses(void (*f)(void), const char *words) {
#ifdef __SANITIZE_ADDRESS__
  words = "misaligned address";
#endif
  return dies(f, words);
}
static void misaligned_store(void) {
  float4 *d = device_array<float4>(nullptr, 4);
  dm_launch(copy_as<float4>, 1, 1, 0, (void *)((char *)d + 8), d + 2);
}
static void kernel_on_peer(void) {
  cudaSetDevice(1);
  dm_launch(takes, 1, 1, 0, (void *)number);
}

static void deaths(void) {
  number = device_array<int>(nullptr, 64);
  check(dies(race_1,
             "kernel no_barrier, block (0, 0, 0): thread (40, 0, 0) reads row[3], which "
             "thread (3, 0, 0) wrote"),
        "a race between warps");
  check(dies(race_2, "thread (33, 0, 0) reads row[32], which thread (32, 0, 0) wrote"),
        "a race in a warp, read after write");
  check(dies(race_3, "writes row[32], which several threads read"),
        "a race in a warp, write after read");
  check(dies(race_4, "writes row[32], which thread (0, 0, 0) read"),
        "__syncwarp does not order warps");
  check(dies(race_5, "writes row[0], which several threads read"), "many readers");
  check(dies(race_6, "reads row[0], which several threads atomically changed"),
        "an atomic and a plain access");
  check(dies(index_1, "writes row[4], which has 4 elements"), "a position outside");
  check(dies(hang_1, "kernel some_at_a_barrier, block (0, 0, 0): threads wait for one another: "
                     "32 of 64 returned"),
        "__syncthreads in divergent code");
  check(dies(hang_1, "mask 0xffffffff), first thread (0, 2, 0)"), "the thread is named");
  check(dies(hang_2, "reached __syncthreads at"), "two barriers at once");
  check(dies(hang_3, "32 of 64 returned\n  32 at a shuffle"), "lanes that do not come");
  check(dies(mask_1, "is not in the mask 0x0000ffff of a shuffle"), "a lane beside the mask");
  check(dies(mask_2, "reads lane 20, which is not in the mask"), "a lane that gives nothing");
  check(dies(shared_1, "more than 49152 bytes of static shared memory"), "too large an array");
  check(dies(host_reads, "host code touches address"), "the host reads device memory");
  check(dies(host_writes, "host code touches address"), "the host writes device memory");
  check(dies(kernel_strays, "kernel wild, block (0, 0, 0): thread (0, 0, 0) touches address"),
        "a kernel's bad address");
  check(dies(kernel_on_host, "which is not memory of its device"), "a host pointer");
  check(refuses([] { misaligned<float4>(4); },
                "kernel copy_as<T>, block (0, 0, 0): thread (0, 0, 0) touches address"),
        "a float4 at a multiple of 4");
  check(refuses([] { misaligned<float4>(8); }, "wants a multiple of 16"), "a float4");
  check(refuses([] { misaligned<uint4>(4); }, "uint4', which wants a multiple of 16"),
        "a uint4");
  check(refuses([] { misaligned<int2>(4); }, "which wants a multiple of 8"), "an int2");
  check(refuses([] { misaligned<Pack>(2); }, "which wants a multiple of 16"),
        "a pack of eight 16-bit numbers");
  check(refuses([] { misaligned<float>(2); }, "which wants a multiple of 4"), "a float");
  check(dies(misaligned_store, "spec/emulated_check.cu:"), "a store; its line is named");
  check(dies(kernel_on_peer, "which is not memory of its device"), "another device's pointer");
  cudaFree(number);
}

/* ---- settings, each in a process of its own
 * --------------------------------------------------------------- */

static bool in_child(const char *name, const char *value, bool (*f)(void)) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    setenv(name, value, 1);
    const bool ok = f();
    exit(ok ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
static bool none_there(void) {
  int n = 7, version = 7;
  void *p;
  return cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0 &&
         cudaMalloc(&p, 4) == cudaErrorNoDevice && cudaGetLastError() == cudaErrorNoDevice &&
         cudaDriverGetVersion(&version) == cudaSuccess && version == 0 &&
         dm_launch(nothing, 1, 1, 0) == DM_EDEV && last_launch == cudaErrorNoDevice;
}
static bool old_driver(void) {
  int n;
  return cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver;
}
static bool open_to_all(void) {
  int v = 5, *d = device_array(&v, 1);
  return *d == 5;
}
static bool launch_some(void) {
  float x[4] = {0}, *d = device_array(x, 4);
  for (int i = 0; i < 3; i++) dm_launch((scale<float, 4>), 1, 32, 0, d, 1.0f);
  return dm_launch(nothing, 1, 1, 0) == DM_OK;
}
/* Before the runtime of this process has started: a child takes its settings. */
static void settings(void) {
  check(in_child("DEMILUNE_EMULATED_DEVICES", "0", none_there), "no device");
  check(in_child("DEMILUNE_EMULATED_DEVICES", "-1", old_driver), "an old driver");
  check(in_child("DEMILUNE_EMULATED_OPEN", "1", open_to_all), "memory left open");
  char path[] = "/tmp/emulated_check_XXXXXX", text[400] = "";
  const int file = mkstemp(path);
  check(in_child("DEMILUNE_EMULATED_COVERAGE", path, launch_some) &&
            in_child("DEMILUNE_EMULATED_COVERAGE", path, launch_some),
        "two processes append");
  const ssize_t n = read(file, text, sizeof text - 1);
  close(file);
  unlink(path);
  const char *first = strstr(text, "scale<float, 4> 3\n");
  check(n > 0 && first && strstr(first + 1, "scale<float, 4> 3\n") &&
            strstr(text, "\nnothing 1\n") && strstr(text, "threads scale<float, 4> 32\n"),
        "what was launched is written down, and its threads");
}

/* ---- work that runs late, each check in a process of its own ---- */

static cudaStream_t stream_new(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t s;
  if (cudaStreamCreateWithFlags(&s, flags) != cudaSuccess) exit(2);
  return s;
}
static cudaEvent_t event_new(void) {
  cudaEvent_t e;
  if (cudaEventCreateWithFlags(&e, cudaEventDisableTiming) != cudaSuccess) exit(2);
  return e;
}
static float *pinned_array(int n) {
  void *p;
  if (cudaHostAlloc(&p, (size_t)n * sizeof(float), 0) != cudaSuccess) exit(2);
  return (float *)p;
}
static void scale_on(cudaStream_t s, float *d, float by) {
  stream_now = s;
  dm_launch((scale<float, 1>), 1, 32, 0, d, by);
}

/* Nothing is there, and nothing ready, before something waits for it. */
static bool is_late(void) {
  float x = 3, *d = device_array(&x, 1), *host = pinned_array(1);
  const cudaStream_t s = stream_new(), other = stream_new();
  const cudaEvent_t done = event_new();
  *host = 1;
  scale_on(s, d, 2);
  cudaMemcpyAsync(host, d, sizeof x, cudaMemcpyDeviceToHost, s);
  cudaEventRecord(done, s);
  bool ok = isnan(*host) && cudaEventQuery(done) == cudaErrorNotReady &&
            cudaStreamQuery(s) == cudaErrorNotReady && cudaGetLastError() == cudaSuccess;
  ok = ok && cudaStreamQuery(other) == cudaSuccess;
  cudaStreamSynchronize(other);
  ok = ok && isnan(*host);
  cudaEventSynchronize(done);
  return ok && *host == 6 && cudaEventQuery(done) == cudaSuccess;
}
/* A loop that asks comes to an end. */
static bool asked_for_long(void) {
  float *d = device_array<float>(nullptr, 1);
  const cudaStream_t s = stream_new();
  const cudaEvent_t done = event_new();
  int n = 0;
  scale_on(s, d, 2);
  cudaEventRecord(done, s);
  while (n < 100 && cudaEventQuery(done) != cudaSuccess) n++;
  scale_on(s, d, 2);
  while (n < 100 && cudaStreamQuery(s) != cudaSuccess) n++;
  return n > 0 && n < 100;
}

/* The number that `reader` finds where `writer` doubles 3; they wait for each other or not. */
static float read_after(bool waits) {
  float x = 3, y = 0, *d = device_array(&x, 1), *to = device_array(&y, 1);
  const cudaStream_t writer = stream_new(), reader = stream_new();
  const cudaEvent_t written = event_new();
  scale_on(writer, d, 2);
  cudaEventRecord(written, writer);
  if (waits) cudaStreamWaitEvent(reader, written, 0);
  cudaEventDestroy(written); /* those who wait go on */
  cudaMemcpyAsync(to, d, sizeof x, cudaMemcpyDeviceToDevice, reader);
  cudaStreamSynchronize(reader);
  fetch(&y, to, 1);
  return y;
}
static bool overtakes(void) { return read_after(false) == 3 && read_after(true) == 6; }

/* Whatever the moments, events and the streams' order hold: x becomes (2 x + 1) 40 times. */
static __global__ void add_one(float *x) {
  if (threadIdx.x == 0) *x += 1;
}
static bool keeps_order(void) {
  float x = 0, y = 0, want = 0, *d = device_array(&x, 1);
  const cudaStream_t s[2] = {stream_new(), stream_new()};
  const cudaEvent_t e[2] = {event_new(), event_new()};
  for (int i = 0; i < 20; i++) {
    scale_on(s[0], d, 2);
    cudaEventRecord(e[0], s[0]);
    cudaStreamWaitEvent(s[1], e[0], 0);
    stream_now = s[1];
    dm_launch(add_one, 1, 32, 0, d);
    cudaEventRecord(e[1], s[1]);
    cudaStreamWaitEvent(s[0], e[1], 0);
    want = 2 * want + 1;
  }
  cudaStreamSynchronize(s[1]);
  fetch(&y, d, 1);
  return y == want;
}
static bool queue_is_bounded(void) {
  float x = 0, y = 0, *d = device_array(&x, 1), *host = pinned_array(1);
  stream_now = stream_new();
  cudaMemcpyAsync(host, d, sizeof x, cudaMemcpyDeviceToHost, stream_now);
  for (int i = 0; i < 3000; i++) dm_launch(add_one, 1, 32, 0, d);
  const bool ok = *host == 0; /* the copy has run */
  cudaDeviceSynchronize();
  fetch(&y, d, 1);
  return ok && y == 3000;
}
/* cudaMemcpy waits for blocking streams alone, cudaFree for all; bytes of pageable memory may
   change at once. */
static bool waits_for_few(void) {
  float x[2] = {3, 5}, y = 0, *d = device_array(x, 1), *to = device_array(x, 1);
  scale_on(stream_new(), d, 2);
  fetch(&y, d, 1);
  bool ok = y == 3;
  cudaFree(device_array<float>(nullptr, 1));
  fetch(&y, d, 1);
  ok = ok && y == 6;
  scale_on(stream_new(cudaStreamDefault), d, 2);
  fetch(&y, d, 1);
  ok = ok && y == 12;
  const cudaStream_t s = stream_new();
  cudaMemcpyAsync(to, x + 1, sizeof y, cudaMemcpyHostToDevice, s);
  x[1] = 7;
  cudaMemcpyAsync(&y, to, sizeof y, cudaMemcpyDeviceToHost, s);
  return ok && y == 5;
}
/* Memory that the allocator has back is NaN for later work, not for earlier work. */
static bool ends_in_order(void) {
  float x = 3, *d = device_array(&x, 1), *host = pinned_array(2);
  const cudaStream_t s = stream_new();
  cudaMemcpyAsync(host, d, sizeof x, cudaMemcpyDeviceToHost, s);
  dm_emulated_life(s, d, sizeof x, false);
  dm_emulated_life(s, d, sizeof x, true);
  cudaMemcpyAsync(host + 1, d, sizeof x, cudaMemcpyDeviceToHost, s);
  cudaStreamSynchronize(s);
  return host[0] == 3 && isnan(host[1]);
}
static bool graph_runs_late(void) {
  float x = 3, y = 0, *d = device_array(&x, 1);
  const cudaStream_t s = stream_new();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  scale_on(s, d, 2);
  cudaStreamEndCapture(s, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  cudaGraphLaunch(exec, s);
  cudaGraphLaunch(exec, s);
  cudaGraphExecDestroy(exec); /* launches go on */
  fetch(&y, d, 1);
  const bool ok = y == 3;
  cudaStreamSynchronize(s);
  fetch(&y, d, 1);
  return ok && y == 12;
}

/* The faults of a host that does not wait. */
static void source_changes(void) {
  float *d = device_array<float>(nullptr, 4), *host = pinned_array(4);
  const cudaStream_t s = stream_new();
  memset(host, 0, 16);
  cudaMemcpyAsync(d, host, 16, cudaMemcpyHostToDevice, s);
  host[3] = 1;
  cudaStreamSynchronize(s);
}
static void target_changes(void) {
  float x[4] = {0}, *d = device_array(x, 4), *host = pinned_array(4);
  const cudaStream_t s = stream_new();
  cudaMemcpyAsync(host, d, 16, cudaMemcpyDeviceToHost, s);
  host[0] = 1;
  cudaStreamSynchronize(s);
}
static void source_goes(void) {
  float *d = device_array<float>(nullptr, 4), *host = pinned_array(4);
  cudaMemcpyAsync(d, host, 16, cudaMemcpyHostToDevice, stream_new());
  cudaFreeHost(host);
}
/* Two copies through one block are in order. */
static bool pinned_is_passed_on(void) {
  float x[2] = {3, 4}, y = 0, *d = device_array(x, 2), *to = device_array<float>(nullptr, 1);
  float *host = pinned_array(1);
  const cudaStream_t s = stream_new();
  cudaMemcpyAsync(host, d, sizeof y, cudaMemcpyDeviceToHost, s);
  cudaMemcpyAsync(host, d + 1, sizeof y, cudaMemcpyDeviceToHost, s);
  cudaMemcpyAsync(to, host, sizeof y, cudaMemcpyHostToDevice, s);
  cudaMemcpyAsync(host, d, sizeof y, cudaMemcpyDeviceToHost, s);
  cudaStreamSynchronize(s);
  fetch(&y, to, 1);
  return y == 4 && *host == 3;
}

static void late(void) {
  const char *const name = "DEMILUNE_EMULATED_LATE";
  check(in_child(name, "1", is_late), "work is late, and not ready");
  check(in_child(name, "1", asked_for_long), "a loop of questions ends");
  check(in_child(name, "1", overtakes), "a stream overtakes another where no event forbids it");
  check(!in_child(name, "0", overtakes), "not where work is done at once");
  check(in_child(name, "1", queue_is_bounded), "a long queue runs");
  check(in_child(name, "1", waits_for_few), "who waits for whom");
  check(in_child(name, "1", ends_in_order), "memory ends in the stream's order");
  check(in_child(name, "1", graph_runs_late), "launches of a graph are late");
  for (int seed = 1; seed < 20; seed++) {
    char value[16];
    snprintf(value, sizeof value, "%d", seed);
    check(in_child(name, value, keeps_order), "events and streams keep the order");
    check(in_child(name, value, pinned_is_passed_on), "pinned memory is passed on");
  }
  check(dies_with(name, "1", source_changes, "the host changed the pinned memory at"),
        "a source that changes");
  check(dies_with(name, "1", target_changes, "before cudaMemcpyAsync had filled it"),
        "a target that changes");
  check(dies_with(name, "1", source_goes, "before cudaMemcpyAsync had read it"),
        "a source that is freed");
}

/* ---- the order of blocks and threads ---- */

enum { ROW = 5, BLOCKS = 4 * ROW, THREADS = 80 };
static __global__ void tickets(int *n, int *of_block, int *of_thread, int *last) {
  const int b = (int)(blockIdx.x + ROW * blockIdx.y), t = (int)threadIdx.x;
  if (t == 0) of_block[b] = atomicAdd(&n[0], 1);
  if (b == 0) of_thread[t] = atomicAdd(&n[1], 1);
  *last = b; /* the race between blocks that a GPU would show */
}
struct Tickets {
  int n[2], of_block[BLOCKS], of_thread[THREADS], last;
};
static Tickets draw_tickets(void) {
  Tickets t = {}, *d = device_array(&t, 1);
  dm_launch(tickets, dim3(ROW, BLOCKS / ROW), THREADS, 0, &d->n[0], &d->of_block[0],
            &d->of_thread[0], &d->last);
  fetch(&t, d, 1);
  return t;
}
static bool each_once(const int *v, int n) {
  bool seen[128] = {false};
  for (int i = 0; i < n; i++)
    if (v[i] < 0 || v[i] >= n || seen[v[i]]) return false;
    else seen[v[i]] = true;
  return true;
}
static bool falls(const int *v, int n) {
  for (int i = 0; i < n; i++)
    if (v[i] != n - 1 - i) return false;
  return true;
}
static bool runs_forwards(void) {
  const Tickets t = draw_tickets();
  return t.of_block[1] == 1 && t.of_thread[1] == 1 && t.last == BLOCKS - 1;
}
static bool runs_backwards(void) {
  const Tickets t = draw_tickets();
  return falls(t.of_block, BLOCKS) && falls(t.of_thread, THREADS) && t.last == 0;
}
static bool is_shuffled(void) {
  const Tickets t = draw_tickets(), u = draw_tickets();
  return each_once(t.of_block, BLOCKS) && each_once(t.of_thread, THREADS) &&
         !falls(t.of_block, BLOCKS) && memcmp(&t.of_block, &u.of_block, sizeof t.of_block) != 0;
}
/* The checks above, whose results depend on no order. */
static bool all_agree(void) {
  vector_add();
  indices();
  block_sums();
  warps();
  shared_memory();
  large_block();
  return n_failed == 0;
}
static void orders(void) {
  const char *const name = "DEMILUNE_EMULATED_ORDER";
  check(in_child(name, "0", runs_forwards), "blocks and threads in order");
  check(in_child(name, "1", runs_backwards), "in reverse order");
  check(in_child(name, "2", is_shuffled), "in a drawn order, each once");
  const char *const seeds[] = {"1", "2", "3", "77"};
  for (const char *seed : seeds)
    check(in_child(name, seed, all_agree), "kernels agree in any order");
}

/* ---- kernels/trig.cuh ------------------------------------------------------------ */

/* |got - want| in units of want's last digit. */
static double ulps(float got, double want) {
  int e;
  frexp(want, &e);
  return fabs((double)got - want) / ldexp(1, (e < -125 ? -125 : e) - 24);
}

static void trigonometry(void) {
  double sine = 0, cosine = 0, tangent = 0;
  bool signs = true;
  for (uint32_t bits = 0; bits < 0x7f800000u; bits += 4999) {
    const float x = dm_bits_to_f32(bits);
    sine = fmax(sine, ulps(dm_sin(x), sin((double)x)));
    cosine = fmax(cosine, ulps(dm_cos(x), cos((double)x)));
    tangent = fmax(tangent, ulps(dm_tan(x), tan((double)x)));
    signs = signs && dm_sin(-x) == -dm_sin(x) && dm_cos(-x) == dm_cos(x);
  }
  check(sine < 2 && cosine < 2 && tangent < 4, "sin, cos, tan of floats of any size");
  check(signs, "sin is odd, cos even");
  check(isnan(dm_sin(INFINITY)) && isnan(dm_cos(-INFINITY)) && isnan(dm_tan(NAN)),
        "of no number: NaN");
  check(signbit(dm_sin(-0.0f)) && signbit(dm_tan(-0.0f)), "-0 stays");
}

int main(void) {
  setenv("DEMILUNE_EMULATED_DEVICES", "2", 1);
  setenv("DEMILUNE_EMULATED_MEMORY", "67108864", 1);
  unsetenv("DEMILUNE_EMULATED_OPEN");
  settings();
  late();
  orders();
  vector_add();
  indices();
  block_sums();
  warps();
  bits();
  atomics();
  shared_memory();
  large_block();
  launches();
  trigonometry();
  memory();
  devices();
  events();
  captures();
  forbidden_in_a_capture();
  library_calls();
  host_threads();
  deaths();
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed != 0;
}
