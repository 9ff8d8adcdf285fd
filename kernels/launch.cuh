/* Launches and shared memory, written the same way for nvcc and for the emulation on the
   host. */
#ifndef DM_LAUNCH_CUH
#define DM_LAUNCH_CUH

#include <cuda_runtime.h>

#include "demilune.h"

/* Before a loop: DM_ROLLED keeps one copy of its body, for smaller code; DM_UNROLLED unrolls
   it, so that arrays that it indexes stay in registers. */
#ifdef DM_EMULATED
#define DM_ROLLED
#define DM_UNROLLED
#else
#define DM_ROLLED _Pragma("unroll 1")
#define DM_UNROLLED _Pragma("unroll")
#endif

extern "C" {
cudaStream_t dm_cuda_stream(void);                           /* this thread's current stream */
dm_status dm_cuda_fail(cudaError_t error, const char *what); /* records the failure */
}

/* ---- shared memory -------------------------------------------------------------

   DM_SHARED(float, tile, 33 * 32);      a block's array of a fixed length
   DM_DYNAMIC_SHARED(float, rows);       the launch's `shared` bytes
   DM_SHARED_PTR(float) t                a function's parameter that takes either

   Elements are read and written by index, tile + n is the part from n on, and
   &tile[i] goes into atomics. The emulation aborts on races and on positions
   outside; each block starts with NaN. */
#ifndef DM_EMULATED
#define DM_SHARED(type, name, n) __shared__ type name[n]
#define DM_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char dm_dynamic_shared[]; \
  type *const name = reinterpret_cast<type *>(dm_dynamic_shared)
#define DM_SHARED_PTR(type) type *
#else
#define DM_SHARED(type, name, n) \
  static char name##_key;        \
  const dm_SharedArray<type> name(dm_emulated_tile(&name##_key, #name, sizeof(type), n))
#define DM_DYNAMIC_SHARED(type, name) \
  const dm_SharedArray<type> name(dm_emulated_tile(nullptr, #name, sizeof(type), -1))
#define DM_SHARED_PTR(type) dm_SharedArray<type>
#endif

/* ---- launches -------------------------------------------------------------------- */

#ifdef DM_EMULATED
template <class T> static inline void dm_check_argument(const char *, const T &) {}
template <class T> static inline void dm_check_argument(const char *name, T *const &p) {
  dm_emulated_check_pointer(name, p);
}

/* A hash of a launch's argument, without padding bytes: the emulation compares the launches of
   two training steps. */
template <class T> static inline uint64_t dm_hash_argument(uint64_t hash, T v) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&v);
#endif
#endif
  return dm_emulated_hash(hash, &v, sizeof v);
}
#endif

/* Starts `kernel` on the stream with `shared` bytes of dynamic shared memory. The arguments
   are converted to the parameters' types. grid.x == 0 does nothing. Returns without waiting:
   an error inside the kernel is reported by a later call. */
template <class... P, class... A>
dm_status dm_launch_on(cudaStream_t stream, const char *name, void (*kernel)(P...), dim3 grid,
                       dim3 block, size_t shared, A... args) {
  static_assert(sizeof...(P) == sizeof...(A),
                "one argument for each of the kernel's parameters");
  if (grid.x == 0) return DM_OK;
#ifdef DM_EMULATED
  (dm_check_argument(name, static_cast<P>(args)), ...);
  auto thread = [=] { kernel(static_cast<P>(args)...); }; /* by value: a graph keeps it */
  uint64_t given = 0;
  ((given = dm_hash_argument<P>(given, static_cast<P>(args))), ...);
  const auto run = [](void *t) { (*static_cast<decltype(thread) *>(t))(); };
  dm_emulated_launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
                     given, run, &thread, sizeof thread);
#else
  kernel<<<grid, block, shared, stream>>>(static_cast<P>(args)...);
#endif
  const cudaError_t e = cudaGetLastError();
  return e == cudaSuccess ? DM_OK : dm_cuda_fail(e, name);
}

/* dm_launch(kernel, grid, block, shared, args...) launches on the current stream. A kernel
   whose name contains commas goes in parentheses: dm_launch((scale<float, 4>), ...). */
#define dm_launch(kernel, ...) dm_launch_on(dm_cuda_stream(), #kernel, kernel, __VA_ARGS__)

#endif
