/* See variant.h. The processor is asked once, by CPUID; the answer holds for the process. */
#include "cpu/variant.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[DM_N_VARIANT] = {"plain",  "neon",       "avx2",
                                                "avx512", "avx512bf16", "amx"};

#if defined(__x86_64__) && defined(__GNUC__)
/* AMX-TILE and AMX-BF16 are bits 24 and 22 of leaf 7.0 edx. Linux saves 8 KB more for a thread
   that uses tiles, and wants to be asked before the first one does: arch_prctl(2),
   ARCH_REQ_XCOMP_PERM for the state XTILEDATA. It refuses where it is older than 5.16, or where
   a thread's stack for signals is too small. */
static bool may_use_tiles(void) {
#if defined(__linux__)
  enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 22 & 1))
    return false;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
  return false;
#endif
}
#endif

/* AVX512 counts only with VL, BW and DQ, which its kernels use; bit 5 of leaf 7.1 eax says
   AVX512-BF16. */
static dm_Variant widest_here(void) {
#if defined(__x86_64__) && defined(__GNUC__)
  unsigned a, b, c = 0, d; /* not every compiler's cpu_supports knows f16c */
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
    return DM_PLAIN;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (!wide) return DM_AVX2;
  const bool halves = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
  if (!halves) return DM_AVX512;
  return may_use_tiles() ? DM_AMX : DM_AVX512BF16;
#elif defined(__aarch64__)
  return DM_NEON;
#else
  return DM_PLAIN;
#endif
}

/* A narrower variant than the processor's serves tests, which compare their results. */
static dm_Variant widest_allowed(void) {
  const char *const wish = getenv("DEMILUNE_CPU");
  for (int v = 0; wish && v < DM_N_VARIANT; v++)
    if (strcmp(wish, names[v]) == 0) return (dm_Variant)v;
  return DM_N_VARIANT;
}

dm_Variant dm_cpu_variant(void) {
  static atomic_int known; /* 1 + the variant; 0: not asked yet */
  const int now = atomic_load_explicit(&known, memory_order_relaxed);
  if (DM_LIKELY(now)) return (dm_Variant)(now - 1);
  const dm_Variant here = widest_here(), allowed = widest_allowed();
  const dm_Variant v = here < allowed ? here : allowed;
  atomic_store_explicit(&known, 1 + (int)v, memory_order_relaxed);
  return v;
}

const char *dm_variant_name(dm_Variant v) { return names[v]; }
