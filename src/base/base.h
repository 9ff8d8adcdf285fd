/* Basics for every file, next to the public types of demilune.h: how a
   failure is passed on, and small helpers. */
#ifndef DM_BASE_H
#define DM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "demilune.h"

#if defined(__GNUC__)
#define DM_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define DM_LIKELY(x) __builtin_expect(!!(x), 1)
#define DM_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DM_RESTRICT __restrict__
#else
#define DM_PRINTF(fmt, args)
#define DM_LIKELY(x) (x)
#define DM_UNLIKELY(x) (x)
#define DM_RESTRICT
#endif
/* Before a short loop inside a long one: it stays a loop. Unrolled, GCC's vectorizer
   would not find it. DM_UNROLL asks for the opposite: each iteration is written out. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__cplusplus)
#define DM_KEEP_LOOP _Pragma("GCC unroll 1")
#define DM_UNROLL _Pragma("GCC unroll 8")
#else
#define DM_KEEP_LOOP
#define DM_UNROLL
#endif
/* A function that CUDA's kernels may call too. */
#ifdef __CUDACC__
#define DM_HD __host__ __device__
#else
#define DM_HD
#endif
#define DM_UNUSED(x) ((void)(x))
#define DM_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* Passes a failure on. */
#define DM_TRY(call)                                   \
  do {                                                 \
    const dm_status dm_try_ = (call);                  \
    if (DM_UNLIKELY(dm_try_ != DM_OK)) return dm_try_; \
  } while (0)

/* Passes a failure on through the function's one exit, label `done`, where
   `st` is the status that it returns. */
#define DM_GO(call)                          \
  do {                                       \
    st = (call);                             \
    if (DM_UNLIKELY(st != DM_OK)) goto done; \
  } while (0)

static inline DM_HD int64_t dm_min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline DM_HD int64_t dm_max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
