/* Included first by every .cu file: 16-bit types, conversion between elements and the compute
   type, offsets of strided operands, launch sizes, and the fault record. */
#ifndef DM_CUDA_CUH
#define DM_CUDA_CUH

#include "kernels/cuda.h"
#include "kernels/launch.cuh"
#include "kernels/walk.h"

extern "C" {
#include "base/half.h"
#include "base/rng.h"
}

#define DM_CUDA_KERNEL(NAME) extern "C" dm_status NAME(dm_Call *c)

/* ---- element types ---- */

/* The low floats as bits: dm_f16, dm_bf16. Arithmetic never uses these types: elements are
   widened to float32 and rounded once when they are stored. */
#define ROW(X, E, S, BITS, ...) \
  struct dm_##S {               \
    BITS bits;                  \
  };
DM_LOW_DTYPES(ROW, )
#undef ROW

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

/* Truncates to int64; NaN and numbers outside int64 give its lowest value. */
static __device__ inline int64_t dm_whole(float v) {
  return v >= -0x1p63f && v < 0x1p63f ? (int64_t)v : INT64_MIN;
}
static __device__ inline int64_t dm_whole(double v) {
  return v >= -0x1p63 && v < 0x1p63 ? (int64_t)v : INT64_MIN;
}
static __device__ inline int64_t dm_whole(int64_t v) { return v; }

/* dm_get converts an element of type T to the compute type C, dm_put rounds it back once. C is
   float, double or int64_t. Kernels that compute in float never read a float64 element, so
   that they hold no float64 instructions. */
template <class C, class T> static __device__ inline C dm_get(T v) { return (C)v; }
#define ROW(X, E, S, ...)                                                                     \
  template <> __device__ inline float dm_get<float, dm_##S>(dm_##S v) { return dm_widen(v); } \
  template <> __device__ inline double dm_get<double, dm_##S>(dm_##S v) {                     \
    return (double)dm_widen(v);                                                               \
  }                                                                                           \
  template <> __device__ inline int64_t dm_get<int64_t, dm_##S>(dm_##S v) {                   \
    return dm_whole(dm_widen(v));                                                             \
  }
DM_LOW_DTYPES(ROW, )
#undef ROW
template <> __device__ inline int64_t dm_get<int64_t, float>(float v) { return dm_whole(v); }
template <> __device__ inline int64_t dm_get<int64_t, double>(double v) { return dm_whole(v); }
template <> __device__ inline float dm_get<float, bool>(bool v) { return v ? 1.0f : 0.0f; }

template <class C> static __device__ inline void dm_put(float *p, C v) { *p = (float)v; }
template <class C> static __device__ inline void dm_put(double *p, C v) { *p = (double)v; }
#define ROW(X, E, S, ...)                                                   \
  template <class C> static __device__ inline void dm_put(dm_##S *p, C v) { \
    dm_narrow((float)v, p);                                                 \
  }
DM_LOW_DTYPES(ROW, )
#undef ROW
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

/* The same for a dtype known at run time only: a switch that goes the same way in all threads
   of a launch. p is the operand's data and i counts elements. */
template <class C> static __device__ inline C dm_load(int dtype, const void *p, int64_t i) {
  switch (dtype) {
  case DM_BOOL: return dm_get<C, bool>(((const bool *)p)[i]);
  case DM_U8: return dm_get<C, uint8_t>(((const uint8_t *)p)[i]);
  case DM_I8: return dm_get<C, int8_t>(((const int8_t *)p)[i]);
  case DM_I16: return dm_get<C, int16_t>(((const int16_t *)p)[i]);
  case DM_I32: return dm_get<C, int32_t>(((const int32_t *)p)[i]);
  case DM_I64: return dm_get<C, int64_t>(((const int64_t *)p)[i]);
#define ROW(X, E, S, ...) \
  case DM_##E: return dm_get<C, dm_##S>(((const dm_##S *)p)[i]);
    DM_LOW_DTYPES(ROW, )
#undef ROW
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
#define ROW(X, E, S, ...) \
  case DM_##E: dm_put((dm_##S *)p + i, v); return;
    DM_LOW_DTYPES(ROW, )
#undef ROW
  case DM_F32: dm_put((float *)p + i, v); return;
  default:
    if constexpr (sizeof(C) == 8) dm_put((double *)p + i, v);
  }
}

/* Copies element j of `from` to element i of `to` without looking at it; elements have `size`
   bytes. */
static __device__ inline void dm_move(int size, void *to, int64_t i, const void *from,
                                      int64_t j) {
  switch (size) {
  case 1: ((uint8_t *)to)[i] = ((const uint8_t *)from)[j]; return;
  case 2: ((uint16_t *)to)[i] = ((const uint16_t *)from)[j]; return;
  case 4: ((uint32_t *)to)[i] = ((const uint32_t *)from)[j]; return;
  default: ((uint64_t *)to)[i] = ((const uint64_t *)from)[j];
  }
}

/* V neighbours that are loaded or stored as one word, which requires alignment to their
   size. */
template <class T, int V> struct alignas(sizeof(T) * V) dm_Run { T v[V]; };
/* The elements of T that a thread of a norm, pool or loss loads as one word: those of 16 bytes.
   Float64 goes one by one, for which fewer kernels are built. */
template <class T> static constexpr DM_HD int dm_run_size() {
  return sizeof(T) == 8 ? 1 : 16 / (int)sizeof(T);
}

/* ---- 16 bits of a format known at run time ---- */

/* An element of any low float, in kernels that learn its dtype at run time. */
struct dm_Low {
  uint16_t bits;
};
#define ROW(X, E, S, ...) static_assert(sizeof(dm_##S) == sizeof(dm_Low), "another size");
DM_LOW_DTYPES(ROW, )
#undef ROW

/* Converts V elements to the compute type, and back. A kernel loads all that it needs before it
   converts, so that the loads wait for memory together. */
template <class T, int V>
static __device__ inline void dm_widen_all(int, const dm_Run<T, V> &x, T *a) {
  for (int i = 0; i < V; i++) a[i] = x.v[i];
}
template <int V>
static __device__ inline void dm_widen_all(int dtype, const dm_Run<dm_Low, V> &x, float *a) {
  for (int i = 0; i < V; i++) {
    a[i] = 0;
#define ROW(X, E, S, ...) a[i] = dtype == DM_##E ? dm_widen(dm_##S{x.v[i].bits}) : a[i];
    DM_LOW_DTYPES(ROW, )
#undef ROW
  }
}
template <class T, int V>
static __device__ inline void dm_narrow_all(int, const T *a, dm_Run<T, V> *x) {
  for (int i = 0; i < V; i++) x->v[i] = a[i];
}
template <int V>
static __device__ inline void dm_narrow_all(int dtype, const float *a, dm_Run<dm_Low, V> *x) {
  switch (dtype) {
#define ROW(X, E, S, ...)         \
  case DM_##E:                    \
    for (int i = 0; i < V; i++) { \
      dm_##S one;                 \
      dm_narrow(a[i], &one);      \
      x->v[i].bits = one.bits;    \
    }                             \
    return;
    DM_LOW_DTYPES(ROW, )
#undef ROW
  default: __builtin_unreachable();
  }
}

/* Elements of type T that a kernel reads, or writes: a pointer, and for dm_Low the dtype with
   it. They are made by dm_Pointers<T>::from and to. */
template <class P> struct dm_LowPointer {
  P *p;
  int64_t dtype; /* as wide as p: captured launches compare their arguments' bytes */
  __device__ dm_LowPointer operator+(int64_t i) const { return {p + i, dtype}; }
  __device__ explicit operator bool() const { return p != NULL; }
};
template <class T> struct dm_Pointers {
  typedef const T *From;
  typedef T *To;
  static DM_HD From from(const void *p, int) { return (From)p; }
  static DM_HD To to(void *p, int) { return (To)p; }
};
template <> struct dm_Pointers<dm_Low> {
  typedef dm_LowPointer<const dm_Low> From;
  typedef dm_LowPointer<dm_Low> To;
  static DM_HD From from(const void *p, int dtype) { return {(const dm_Low *)p, dtype}; }
  static DM_HD To to(void *p, int dtype) { return {(dm_Low *)p, dtype}; }
};
template <class T> using dm_From = typename dm_Pointers<T>::From;
template <class T> using dm_To = typename dm_Pointers<T>::To;

/* ---- which types a kernel is made for ---- */

/* Whether two types are one. */
template <class A, class B> static constexpr bool dm_same_type = false;
template <class A> constexpr bool dm_same_type<A, A> = true;

/* clang-format off */
/* A low float's row of DM_FLOAT_TYPES. BODY has the statements in parentheses, since they hold
   commas, and DM_BARE takes these away. */
#define DM_BARE(...) __VA_ARGS__
#define DM_LOW_TYPE(BODY, E, S, ...) \
    case DM_##E: { typedef dm_##S T; typedef float C; (void)sizeof(C); DM_BARE BODY } break;

/* Runs the statements with T, the C++ type of a float dtype, and C, the type that it is
   computed in: float, or double for float64. */
#define DM_FLOAT_TYPES(DTYPE, ...)                                                          \
  do {                                                                                      \
    switch ((dm_DType)(DTYPE)) {                                                            \
    DM_LOW_DTYPES(DM_LOW_TYPE, (__VA_ARGS__))                                               \
    case DM_F64: { typedef double T; typedef double C; (void)sizeof(C); __VA_ARGS__ } break;  \
    default: { typedef float T; typedef float C; (void)sizeof(C); __VA_ARGS__ } break;        \
    }                                                                                       \
  } while (0)

/* The same for kernels that see 16 bits of any format as dm_Low. */
#define DM_STORED_TYPES(DTYPE, ...)                                                         \
  do {                                                                                      \
    switch ((dm_DType)(DTYPE)) {                                                            \
    case DM_F32: { typedef float T; typedef float C; (void)sizeof(C); __VA_ARGS__ } break;    \
    case DM_F64: { typedef double T; typedef double C; (void)sizeof(C); __VA_ARGS__ } break;  \
    default: { typedef dm_Low T; typedef float C; (void)sizeof(C); __VA_ARGS__ } break;       \
    }                                                                                       \
  } while (0)

/* Runs the statements with T an unsigned integer of the dtype's size, for kernels that only
   move elements. */
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
/* Blocks of DM_THREADS for n threads, at most 2^30; kernels loop for the rest. */
static inline unsigned dm_blocks(int64_t n_threads) {
  const int64_t n = dm_ceil_div(n_threads, DM_THREADS), most = INT64_C(1) << 30;
  return (unsigned)(n < most ? n : most);
}
/* This thread's number in the launch, and the number of threads. */
static __device__ inline int64_t dm_thread(void) {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
static __device__ inline int64_t dm_threads(void) { return (int64_t)gridDim.x * blockDim.x; }

/* ---- offsets of strided operands ---- */

/* n / v. */
static __device__ inline uint32_t dm_divide(uint32_t n, dm_Divisor v) {
#ifdef __CUDA_ARCH__
  return (__umulhi(n, v.magic) + n) >> v.shift;
#else
  return (uint32_t)((((uint64_t)n * v.magic >> 32) + n) >> v.shift);
#endif
}

/* A walk over N operands broadcast to one shape: `at` gives the offset of element i in each
   operand, counted in elements. PyTorch's OffsetCalculator does the same. */
template <int N> struct dm_Walk : dm_WalkShape {
  dm_WalkStride stride[N];

  __device__ inline void at(int64_t i, int64_t off[N]) const {
    for (int k = 0; k < N; k++) off[k] = 0;
    /* From the last dim to the first: the remainder is the index along d, the quotient goes
       on. */
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

/* Returns the walk over t[0]'s shape; see dm_walk_fill. */
template <int N>
static inline dm_Walk<N> dm_walk(dm_Tensor *const *t, void *data[N], bool by_memory = false) {
  dm_Walk<N> w = {};
  dm_walk_fill(&w, w.stride, N, t, data, by_memory);
  return w;
}

/* ---- faults ---- */

/* Notes a fault that only the device can see, such as an index out of range. The first thread
   to set `taken` writes the record; the host reads it when it next waits (device.c). */
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
