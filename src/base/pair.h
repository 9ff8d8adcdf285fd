/* The formulas of pair.inc need this on every device: the number of each formula, and the
   functions of integers and floats that C's library lacks. */
#ifndef DM_PAIR_H
#define DM_PAIR_H

#ifdef __cplusplus
#include <math.h> /* has overloads */
#else
#include <tgmath.h>
#endif

#include "base/dtype.h"
#include "base/gamma.h"
#include "base/half.h"
#include "base/op_id.h"

/* A formula has its op's number; second forms of add, sub, div and nextafter come
   after. */
enum {
  DM_OP_add_scaled = DM_N_OP,
  DM_OP_sub_scaled,
  DM_OP_div_trunc,
  DM_OP_div_floor,
#define ROW(X, E, S, ...) DM_OP_nextafter_##S,
  DM_LOW_DTYPES(ROW, )
#undef ROW
      DM_N_PAIR
};

/* ---- integers: the divisor is not 0; -1 would overflow ---- */

/* By squaring, modulo 2^64. A negative exponent truncates to 0, but for the bases 1 and -1. */
static inline DM_HD int64_t dm_pow_i64(int64_t a, int64_t e) {
  if (e < 0) return a == 1 ? 1 : a == -1 ? (e % 2 ? -1 : 1) : 0;
  uint64_t r = 1, base = (uint64_t)a;
  for (; e; e >>= 1, base *= base)
    if (e & 1) r *= base;
  return (int64_t)r;
}
static inline DM_HD int64_t dm_fmod_i64(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
/* The remainder with b's sign, as Python's and Lua's %. */
static inline DM_HD int64_t dm_modulo_i64(int64_t a, int64_t b) {
  const int64_t r = dm_fmod_i64(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static inline DM_HD int64_t dm_trunc_div_i64(int64_t a, int64_t b) {
  return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
static inline DM_HD int64_t dm_floor_div_i64(int64_t a, int64_t b) {
  const int64_t q = dm_trunc_div_i64(a, b);
  return dm_fmod_i64(a, b) != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

/* The greatest common divisor, 0 or more, and the least common multiple. */
static inline DM_HD int64_t dm_gcd_i64(int64_t a, int64_t b) {
  uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
  while (y != 0) {
    const uint64_t r = x % y;
    x = y;
    y = r;
  }
  return (int64_t)x;
}
static inline DM_HD int64_t dm_lcm_i64(int64_t a, int64_t b) {
  const int64_t g = dm_gcd_i64(a, b);
  if (g == 0) return 0;
  const uint64_t m = (uint64_t)dm_trunc_div_i64(a, g) * (uint64_t)b;
  return (int64_t)m < 0 ? (int64_t)(0 - m) : (int64_t)m;
}

/* Shifts by a count outside of 0 .. 63 lose all bits: 0 is left, or to the right the sign. */
static inline DM_HD int64_t dm_left_i64(int64_t a, int64_t n) {
  return (uint64_t)n < 64 ? (int64_t)((uint64_t)a << n) : 0;
}
static inline DM_HD int64_t dm_right_i64(int64_t a, int64_t n) {
  return a >> ((uint64_t)n < 64 ? n : 63);
}

/* ---- low floats: their neighbours ---- */

/* Numbers of one sign are ordered as their bits are: the neighbour is one bit pattern up or
   down. */
#define ROW(X, E, S, BITS, ...)                             \
  static inline DM_HD float dm_next_##S(float a, float b) { \
    const unsigned sign = 1u << (8 * sizeof(BITS) - 1);     \
    BITS h = dm_f32_to_##S(a);                              \
    if (a != a || b != b) return a + b;                     \
    if (a == b) return b;                                   \
    if (a == 0) h = (BITS)(b < 0 ? sign + 1u : 1u);         \
    else h = (BITS)((a < b) == (a > 0) ? h + 1u : h - 1u);  \
    return dm_##S##_to_f32(h);                              \
  }
DM_LOW_DTYPES(ROW, )
#undef ROW

#endif
