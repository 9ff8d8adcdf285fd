/* The words of a kernel, for the emulation: NVIDIA's qualifiers, built-in
   variables, vectors and intrinsics, each with exactly the overloads that CUDA
   has, so that what compiles here compiles there. C++; block.cpp does the work. */
#ifndef DM_EMULATED_DEVICE_H
#define DM_EMULATED_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

/* The launch that runs and its threads; one launch runs at a time. */
#define DM_EMULATED_STATE extern __attribute__((visibility("hidden")))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

DM_EMULATED_STATE uint3 threadIdx, blockIdx;
DM_EMULATED_STATE dim3 blockDim, gridDim;
constexpr int warpSize = 32;

/* ---- vectors ------------------------------------------------------------------ */

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}

/* ---- bits ---------------------------------------------------------------------- */

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) {
  return v ? __builtin_clzll((unsigned long long)v) : 64;
}
static inline unsigned __float_as_uint(float v) {
  unsigned u;
  memcpy(&u, &v, sizeof u);
  return u;
}
static inline float __uint_as_float(unsigned u) {
  float v;
  memcpy(&v, &u, sizeof v);
  return v;
}

/* ---- barriers and warps ---------------------------------------------------------- */

/* Where in a source file threads meet: the caller's line. */
#define DM_EMULATED_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

void dm_emulated_block_barrier(const char *file, int line);

/* Each lane of `mask` gives a value and gets, according to `op`, the value of
   lane `from` or the lanes whose value is not 0. */
enum dm_EmulatedWarpOp { DM_WARP_SYNC, DM_WARP_SHUFFLE, DM_WARP_BALLOT };
uint64_t dm_emulated_warp(dm_EmulatedWarpOp op, unsigned mask, uint64_t value, int from,
                          const char *file, int line);
int dm_emulated_lane(void);

static inline void __syncthreads(DM_EMULATED_HERE) { dm_emulated_block_barrier(file, line); }
static inline void __syncwarp(unsigned mask = 0xffffffffu, DM_EMULATED_HERE) {
  dm_emulated_warp(DM_WARP_SYNC, mask, 0, 0, file, line);
}
static inline void __threadfence(void) {}

template <class T>
T dm_emulated_shuffle(unsigned mask, T v, int from, const char *file, int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &v, sizeof v);
  bits = dm_emulated_warp(DM_WARP_SHUFFLE, mask, bits, from, file, line);
  memcpy(&v, &bits, sizeof v);
  return v;
}

/* Lanes are cut into groups of `width`; out of its group no lane reads: it gets
   its own value. */
template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32, DM_EMULATED_HERE) {
  const int first = dm_emulated_lane() & ~(width - 1);
  return dm_emulated_shuffle(mask, v, first | (from & (width - 1)), file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, DM_EMULATED_HERE) {
  const int lane = dm_emulated_lane(), last = lane | (width - 1);
  const bool inside = by < 32 && lane + (int)by <= last;
  return dm_emulated_shuffle(mask, v, inside ? lane + (int)by : lane, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, DM_EMULATED_HERE) {
  const int lane = dm_emulated_lane(), first = lane & ~(width - 1);
  const bool inside = by < 32 && lane - (int)by >= first;
  return dm_emulated_shuffle(mask, v, inside ? lane - (int)by : lane, file, line);
}
/* A partner in a later group is not read, one in an earlier group is. */
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, DM_EMULATED_HERE) {
  const int lane = dm_emulated_lane(), last = lane | (width - 1), from = lane ^ with;
  return dm_emulated_shuffle(mask, v, from <= last ? from : lane, file, line);
}
static inline unsigned __ballot_sync(unsigned mask, int vote, DM_EMULATED_HERE) {
  return (unsigned)dm_emulated_warp(DM_WARP_BALLOT, mask, vote != 0, 0, file, line);
}
static inline int __any_sync(unsigned mask, int vote, DM_EMULATED_HERE) {
  return dm_emulated_warp(DM_WARP_BALLOT, mask, vote != 0, 0, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int vote, DM_EMULATED_HERE) {
  return dm_emulated_warp(DM_WARP_BALLOT, mask, vote != 0, 0, file, line) == mask;
}

/* ---- shared memory --------------------------------------------------------------- */

/* Who last touched an element in one way (read, wrote, or atomically). */
struct dm_EmulatedTouch {
  uint64_t block_epoch; /* __syncthreads passed, in all blocks so far */
  uint32_t warp_epoch;  /* __syncwarp passed by the thread's warp, in this block */
  uint16_t thread;
  uint8_t several; /* threads since the last barrier: one, more of a warp, of several warps */
};
enum dm_EmulatedAccess { DM_READ, DM_WRITE, DM_ATOMIC };

struct dm_EmulatedTile {
  void *data;
  dm_EmulatedTouch (*touch)[3]; /* per element, by dm_EmulatedAccess */
  int64_t count;
  const char *name;
};

/* The array of this block that belongs to `key`, made by the first thread that
   asks; count -1 is the launch's dynamic memory. */
dm_EmulatedTile dm_emulated_tile(const void *key, const char *name, size_t size, int64_t count);
/* Aborts on a position outside and on a race. */
void dm_emulated_touch(const dm_EmulatedTile *tile, int64_t i, dm_EmulatedAccess how);

/* An element's address, of use in atomics alone. */
template <class T> struct dm_SharedPointer {
  const dm_EmulatedTile tile;
  const int64_t i;
};

/* An element: what `tile[i]` is in an expression. `auto v = tile[i]` would be a
   reference and does not compile further: name the type. */
template <class T> class dm_SharedElement {
  const dm_EmulatedTile &tile;
  const int64_t i;

public:
  dm_SharedElement(const dm_EmulatedTile &tile_, int64_t i_) : tile(tile_), i(i_) {}
  dm_SharedElement(const dm_SharedElement &) = delete;
  operator T() const && { return get(); }
  T operator=(T v) && { return set(v); }
  T operator=(dm_SharedElement &&from) && { return set(from.get()); }
  T operator+=(T v) && { return set(get() + v); }
  T operator-=(T v) && { return set(get() - v); }
  T operator*=(T v) && { return set(get() * v); }
  T operator|=(T v) && { return set(get() | v); }
  T operator&=(T v) && { return set(get() & v); }
  dm_SharedPointer<T> operator&() && { return {tile, i}; }

private:
  T get() const {
    dm_emulated_touch(&tile, i, DM_READ);
    return ((const T *)tile.data)[i];
  }
  T set(T v) {
    dm_emulated_touch(&tile, i, DM_WRITE);
    return ((T *)tile.data)[i] = v;
  }
};

/* A shared array, or a part of one; copied freely, as a pointer is. */
template <class T> class dm_SharedArray {
  dm_EmulatedTile tile;
  int64_t offset = 0;

public:
  explicit dm_SharedArray(const dm_EmulatedTile &t, int64_t at = 0) : tile(t), offset(at) {}
  dm_SharedElement<T> operator[](int64_t i) const { return {tile, offset + i}; }
  dm_SharedArray operator+(int64_t n) const { return dm_SharedArray(tile, offset + n); }
};

/* ---- atomics: threads take turns, so plain code is atomic --------------------------- */

template <class T> T *dm_emulated_address(T *p) { return p; }
template <class T> T *dm_emulated_address(const dm_SharedPointer<T> &p) {
  dm_emulated_touch(&p.tile, p.i, DM_ATOMIC);
  return (T *)p.tile.data + p.i;
}

#define DM_EMULATED_ATOMIC_AT(name, T, pointer, new_value) \
  static inline T name(pointer p, T v) {                   \
    T *at = dm_emulated_address(p), old = *at;             \
    *at = new_value;                                       \
    return old;                                            \
  }
#define DM_EMULATED_ATOMIC(name, T, new_value)   \
  DM_EMULATED_ATOMIC_AT(name, T, T *, new_value) \
  DM_EMULATED_ATOMIC_AT(name, T, const dm_SharedPointer<T> &, new_value)

DM_EMULATED_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)v))
DM_EMULATED_ATOMIC(atomicAdd, unsigned, old + v)
DM_EMULATED_ATOMIC(atomicAdd, unsigned long long, old + v)
DM_EMULATED_ATOMIC(atomicAdd, float, old + v)
DM_EMULATED_ATOMIC(atomicAdd, double, old + v)
DM_EMULATED_ATOMIC(atomicMax, int, old > v ? old : v)
DM_EMULATED_ATOMIC(atomicMax, unsigned, old > v ? old : v)
DM_EMULATED_ATOMIC(atomicMax, long long, old > v ? old : v)
DM_EMULATED_ATOMIC(atomicMax, unsigned long long, old > v ? old : v)
DM_EMULATED_ATOMIC(atomicMin, int, old < v ? old : v)
DM_EMULATED_ATOMIC(atomicMin, unsigned, old < v ? old : v)
DM_EMULATED_ATOMIC(atomicMin, long long, old < v ? old : v)
DM_EMULATED_ATOMIC(atomicMin, unsigned long long, old < v ? old : v)
DM_EMULATED_ATOMIC(atomicExch, int, v)
DM_EMULATED_ATOMIC(atomicExch, unsigned, v)
DM_EMULATED_ATOMIC(atomicExch, unsigned long long, v)
DM_EMULATED_ATOMIC(atomicExch, float, v)

#define DM_EMULATED_CAS_AT(T, pointer)                    \
  static inline T atomicCAS(pointer p, T expected, T v) { \
    T *at = dm_emulated_address(p), old = *at;            \
    if (old == expected) *at = v;                         \
    return old;                                           \
  }
#define DM_EMULATED_CAS(T)   \
  DM_EMULATED_CAS_AT(T, T *) \
  DM_EMULATED_CAS_AT(T, const dm_SharedPointer<T> &)
DM_EMULATED_CAS(int)
DM_EMULATED_CAS(unsigned)
DM_EMULATED_CAS(unsigned long long)

/* ---- launches ------------------------------------------------------------------------ */

/* Runs call(arg) once for each thread of the grid. given: a hash of the arguments. arg: n_arg
   bytes, which a captured stream copies. */
cudaError_t dm_emulated_launch(const char *name, const void *kernel, dim3 grid, dim3 block,
                               size_t shared, cudaStream_t s, uint64_t given,
                               void (*call)(void *arg), void *arg, size_t n_arg);
/* Takes n bytes more into a hash. */
static inline uint64_t dm_emulated_hash(uint64_t hash, const void *p, size_t n) {
  const unsigned char *byte = (const unsigned char *)p;
  for (size_t i = 0; i < n; i++) hash = (hash ^ byte[i]) * 0x100000001b3u + (hash >> 40) + 1;
  return hash;
}
/* Aborts unless p is NULL or an address of the current device. */
void dm_emulated_check_pointer(const char *name, const void *p);

/* CUDA's C++ form takes the kernel itself. */
template <class... P>
cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attr, int value) {
  return cudaFuncSetAttribute((const void *)kernel, attr, value);
}

#endif
