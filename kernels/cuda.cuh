/* What every .cu file starts with: the 16-bit types, elements to and from the type
   that is computed in, strided offsets, how wide to launch. */
#ifndef DM_CUDA_CUH
#define DM_CUDA_CUH

#include "kernels/cuda.h"
#include "kernels/launch.cuh"

extern "C" {
#include "base/half.h"
#include "base/rng.h"
}

#define DM_CUDA_KERNEL(NAME) extern "C" dm_status NAME(dm_Call *c)

/* ---- element types ---- */

struct dm_f16 {
  uint16_t bits;
};
struct dm_bf16 {
  uint16_t bits;
};

static __device__ inline float dm_widen(dm_f16 h) {
#ifdef __CUDA_ARCH__
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h.bits));
  return f;
#else
  return dm_f16_to_f32(h.bits);
#endif
}
static __device__ inline float dm_widen(dm_bf16 h) { return dm_bf16_to_f32(h.bits); }

static __device__ inline void dm_narrow(float v, dm_f16 *h) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h->bits) : "f"(v));
#else
  h->bits = dm_f32_to_f16(v);
#endif
}
static __device__ inline void dm_narrow(float v, dm_bf16 *h) {
#ifdef __CUDA_ARCH__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h->bits) : "f"(v));
#else
  h->bits = dm_f32_to_bf16(v);
#endif
}

/* Truncates; what int64 cannot hold, and NaN, becomes its lowest value. */
static __device__ inline int64_t dm_whole(float v) {
  return v >= -0x1p63f && v < 0x1p63f ? (int64_t)v : INT64_MIN;
}
static __device__ inline int64_t dm_whole(double v) {
  return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN;
}
static __device__ inline int64_t dm_whole(int64_t v) { return v; }

/* An element of type T as the compute type C, and back, rounded once. C is
   float, double or int64_t; float meets no double. */
template <class C, class T> static __device__ inline C dm_get(T v) { return (C)v; }
template <> __device__ inline float dm_get<float, dm_f16>(dm_f16 v) { return dm_widen(v); }
template <> __device__ inline float dm_get<float, dm_bf16>(dm_bf16 v) { return dm_widen(v); }
template <> __device__ inline double dm_get<double, dm_f16>(dm_f16 v) {
  return (double)dm_widen(v);
}
template <> __device__ inline double dm_get<double, dm_bf16>(dm_bf16 v) {
  return (double)dm_widen(v);
}
template <> __device__ inline int64_t dm_get<int64_t, dm_f16>(dm_f16 v) {
  return dm_whole(dm_widen(v));
}
template <> __device__ inline int64_t dm_get<int64_t, dm_bf16>(dm_bf16 v) {
  return dm_whole(dm_widen(v));
}
template <> __device__ inline int64_t dm_get<int64_t, float>(float v) { return dm_whole(v); }
template <> __device__ inline int64_t dm_get<int64_t, double>(double v) { return dm_whole(v); }
template <> __device__ inline float dm_get<float, bool>(bool v) { return v ? 1.0f : 0.0f; }

template <class C> static __device__ inline void dm_put(float *p, C v) { *p = (float)v; }
template <class C> static __device__ inline void dm_put(double *p, C v) { *p = (double)v; }
template <class C> static __device__ inline void dm_put(dm_f16 *p, C v) {
  dm_narrow((float)v, p);
}
template <class C> static __device__ inline void dm_put(dm_bf16 *p, C v) {
  dm_narrow((float)v, p);
}
template <class C> static __device__ inline void dm_put(int64_t *p, C v) { *p = dm_whole(v); }
template <class C> static __device__ inline void dm_put(int32_t *p, C v) {
  *p = (int32_t)dm_whole(v);
}
template <class C> static __device__ inline void dm_put(int16_t *p, C v) {
  *p = (int16_t)dm_whole(v);
}
template <class C> static __device__ inline void dm_put(int8_t *p, C v) {
  *p = (int8_t)dm_whole(v);
}
template <class C> static __device__ inline void dm_put(uint8_t *p, C v) {
  *p = (uint8_t)dm_whole(v);
}
template <class C> static __device__ inline void dm_put(bool *p, C v) { *p = v != 0; }

/* The same with the type known only at run time: one branch, the same for all
   threads of a launch. p points at the operand, i counts elements. float meets no
   double, so that its kernels hold none. */
template <class C> static __device__ inline C dm_load(int dtype, const void *p, int64_t i) {
  switch (dtype) {
  case DM_BOOL: return dm_get<C, bool>(((const bool *)p)[i]);
  case DM_U8: return dm_get<C, uint8_t>(((const uint8_t *)p)[i]);
  case DM_I8: return dm_get<C, int8_t>(((const int8_t *)p)[i]);
  case DM_I16: return dm_get<C, int16_t>(((const int16_t *)p)[i]);
  case DM_I32: return dm_get<C, int32_t>(((const int32_t *)p)[i]);
  case DM_I64: return dm_get<C, int64_t>(((const int64_t *)p)[i]);
  case DM_F16: return dm_get<C, dm_f16>(((const dm_f16 *)p)[i]);
  case DM_BF16: return dm_get<C, dm_bf16>(((const dm_bf16 *)p)[i]);
  case DM_F32: return dm_get<C, float>(((const float *)p)[i]);
  default:
    if constexpr (sizeof(C) == 8) return dm_get<C, double>(((const double *)p)[i]);
    else return C(0);
  }
}

template <class C> static __device__ inline void dm_store(int dtype, void *p, int64_t i, C v) {
  switch (dtype) {
  case DM_BOOL: dm_put((bool *)p + i, v); return;
  case DM_U8: dm_put((uint8_t *)p + i, v); return;
  case DM_I8: dm_put((int8_t *)p + i, v); return;
  case DM_I16: dm_put((int16_t *)p + i, v); return;
  case DM_I32: dm_put((int32_t *)p + i, v); return;
  case DM_I64: dm_put((int64_t *)p + i, v); return;
  case DM_F16: dm_put((dm_f16 *)p + i, v); return;
  case DM_BF16: dm_put((dm_bf16 *)p + i, v); return;
  case DM_F32: dm_put((float *)p + i, v); return;
  default:
    if constexpr (sizeof(C) == 8) dm_put((double *)p + i, v);
  }
}

/* to[i] = from[j], elements of `size` bytes, whatever their bits. */
static __device__ inline void dm_move(int size, void *to, int64_t i, const void *from,
                                      int64_t j) {
  switch (size) {
  case 1: ((uint8_t *)to)[i] = ((const uint8_t *)from)[j]; return;
  case 2: ((uint16_t *)to)[i] = ((const uint16_t *)from)[j]; return;
  case 4: ((uint32_t *)to)[i] = ((const uint32_t *)from)[j]; return;
  default: ((uint64_t *)to)[i] = ((const uint64_t *)from)[j];
  }
}

/* V neighbours that move as one word; aligned as that. */
template <class T, int V> struct alignas(sizeof(T) * V) dm_Run { T v[V]; };

/* ---- which types a kernel is made for ---- */

/* clang-format off */
/* Runs the statements with the C++ type `T` of a float dtype; `C` is what it
   computes in. */
#define DM_FLOAT_TYPES(DTYPE, ...)                                                          \
  do {                                                                                      \
    switch ((dm_DType)(DTYPE)) {                                                            \
    case DM_F16: { typedef dm_f16 T; typedef float C; (void)sizeof(C); __VA_ARGS__ } break;   \
    case DM_BF16: { typedef dm_bf16 T; typedef float C; (void)sizeof(C); __VA_ARGS__ } break; \
    case DM_F64: { typedef double T; typedef double C; (void)sizeof(C); __VA_ARGS__ } break;  \
    default: { typedef float T; typedef float C; (void)sizeof(C); __VA_ARGS__ } break;        \
    }                                                                                       \
  } while (0)

/* With `T` an unsigned integer of the dtype's size: for kernels that move elements
   and never look into them. */
#define DM_SIZE_TYPES(DTYPE, ...)                     \
  do {                                                \
    switch (dm_dtype_sizes[DTYPE]) {                  \
    case 1: { typedef uint8_t T; __VA_ARGS__ } break;  \
    case 2: { typedef uint16_t T; __VA_ARGS__ } break; \
    case 4: { typedef uint32_t T; __VA_ARGS__ } break; \
    default: { typedef uint64_t T; __VA_ARGS__ } break; \
    }                                                 \
  } while (0)
/* clang-format on */

/* ---- launch shapes ---- */

enum { DM_THREADS = 256 };

static inline int64_t dm_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Blocks for n threads' worth of work; kernels loop where that is not enough. */
static inline unsigned dm_blocks(int64_t n_threads) {
  const int64_t n = dm_ceil_div(n_threads, DM_THREADS), most = INT64_C(1) << 30;
  return (unsigned)(n < most ? n : most);
}
/* This thread's number in the launch, and how many there are. */
static __device__ inline int64_t dm_thread(void) {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ inline int64_t dm_threads(void) { return (int64_t)gridDim.x * blockDim.x; }

/* ---- offsets of strided operands ---- */

/* Division by a number that stays the same over a launch: a product and a shift.
   Granlund & Montgomery 1994; exact for 31-bit numbers. */
struct dm_Divisor {
  uint32_t d, magic, shift;
};
static inline dm_Divisor dm_divisor(int64_t d) {
  dm_Divisor v = {(uint32_t)d, 0, 0};
  while ((INT64_C(1) << v.shift) < d) v.shift++;
  const uint64_t one = 1;
  v.magic = (uint32_t)(((one << 32) * ((one << v.shift) - (uint64_t)d)) / (uint64_t)d + 1);
  return v;
}
static __device__ inline uint32_t dm_divide(uint32_t n, dm_Divisor v) {
#ifdef __CUDA_ARCH__
  return (__umulhi(n, v.magic) + n) >> v.shift;
#else
  return (uint32_t)((((uint64_t)n * v.magic >> 32) + n) >> v.shift);
#endif
}

/* Where element i of a walk over up to N operands of one shape lies in each. */
template <int N> struct dm_Walk {
  int ndim;
  bool wide; /* 2^31 elements or more: true divisions */
  int64_t numel;
  int64_t shape[DM_MAX_DIM];
  dm_Divisor div[DM_MAX_DIM];
  int64_t stride[N][DM_MAX_DIM]; /* elements */

  __device__ inline void at(int64_t i, int64_t off[N]) const {
    for (int k = 0; k < N; k++) off[k] = 0;
    DM_ROLLED
    for (int d = ndim - 1; d > 0; d--) {
      const int64_t q = wide ? i / shape[d] : dm_divide((uint32_t)i, div[d]);
      const int64_t r = i - q * shape[d];
      for (int k = 0; k < N; k++) off[k] += r * stride[k][d];
      i = q;
    }
    for (int k = 0; k < N; k++) off[k] += i * stride[k][0];
  }
};

/* Exchanges two neighbouring dims. */
static inline void dm_iter_swap(dm_Iter *it, int d) {
  const int64_t size = it->shape[d];
  it->shape[d] = it->shape[d + 1];
  it->shape[d + 1] = size;
  for (int i = 0; i < it->n_op; i++) {
    const int64_t step = it->stride[i][d];
    it->stride[i][d] = it->stride[i][d + 1];
    it->stride[i][d + 1] = step;
  }
}

/* Dims in the order in which the first operand's elements lie, the farthest apart first;
   neighbours that lie densely in every operand become one. */
static inline void dm_iter_by_memory(dm_Iter *it) {
  for (int n = 1; n < it->ndim; n++)
    for (int d = n; d > 0 && it->stride[0][d - 1] < it->stride[0][d]; d--)
      dm_iter_swap(it, d - 1);
  int k = 0; /* the last dim kept */
  for (int d = 1; d < it->ndim; d++) {
    bool merge = true;
    for (int i = 0; i < it->n_op; i++)
      merge &= it->stride[i][k] == it->stride[i][d] * it->shape[d];
    if (!merge) k++;
    it->shape[k] = merge ? it->shape[k] * it->shape[d] : it->shape[d];
    for (int i = 0; i < it->n_op; i++) it->stride[i][k] = it->stride[i][d];
  }
  it->ndim = k + 1;
}

/* The walk over t[0]'s shape; the others broadcast to it. data: their elements.
   by_memory: for those to whom it is all one which element comes when. */
template <int N>
static inline dm_Walk<N> dm_walk(dm_Tensor *const *t, void *data[N], bool by_memory = false) {
  dm_Iter it;
  dm_iter_init(&it, N, t);
  if (by_memory) dm_iter_by_memory(&it);
  dm_Walk<N> w = {};
  w.ndim = it.ndim;
  w.numel = it.numel;
  w.wide = it.numel >= INT64_C(1) << 31;
  for (int d = 0; d < it.ndim; d++) {
    w.shape[d] = it.shape[d];
    if (!w.wide) w.div[d] = dm_divisor(it.shape[d]);
    for (int k = 0; k < N; k++) w.stride[k][d] = it.stride[k][d];
  }
  for (int k = 0; k < N; k++) data[k] = it.data[k];
  return w;
}

/* ---- faults ---- */

static __device__ inline void dm_device_fault(dm_Fault *f, int kind, int op, int base,
                                              int64_t position, int64_t value, int64_t size) {
  if (atomicCAS(&f->taken, 0u, 1u) != 0) return;
  f->kind = kind;
  f->op = op;
  f->base = base;
  f->position = position;
  f->value = value;
  f->size = size;
}

#endif
