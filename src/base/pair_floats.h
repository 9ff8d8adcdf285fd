/* The functions of two floats that pair.inc needs and C's library lacks: the remainder with b's
   sign, Python's floor division, log2(1 + x), and the binary cross entropy of a probability p
   and a target t, whose logarithms are at least -100. cpu/loops gives log and log1p the meaning
   of functions that become vectors before it includes this. */
#ifndef DM_PAIR_FLOATS_H
#define DM_PAIR_FLOATS_H

#ifdef __cplusplus
#include <math.h> /* has overloads */
#else
#include <tgmath.h>
#endif

#include "base/base.h"
#include "base/constants.h"

/* FMOD gives a's remainder with a's sign. */
#define DM_REMAINDERS(TYPE, MODULO, FLOOR_DIV, FMOD)   \
  static inline DM_HD TYPE MODULO(TYPE a, TYPE b) {    \
    const TYPE r = FMOD(a, b);                         \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;   \
  }                                                    \
  static inline DM_HD TYPE FLOOR_DIV(TYPE a, TYPE b) { \
    if (b == 0) return a / b;                          \
    const TYPE r = FMOD(a, b);                         \
    TYPE d = (a - r) / b;                              \
    if (r != 0 && (b < 0) != (r < 0)) d -= 1;          \
    if (d == 0) return copysign((TYPE)0, a / b);       \
    const TYPE f = floor(d);                           \
    return d - f > (TYPE)0.5 ? f + 1 : f;              \
  }
#define DM_LOGARITHMS(TYPE, LOG2_1P, LOG_LOSS)                                     \
  static inline DM_HD TYPE LOG2_1P(TYPE x) { return log1p(x) * (TYPE)DM_LOG2_E; }  \
  static inline DM_HD TYPE LOG_LOSS(TYPE p, TYPE t) {                              \
    const TYPE least = -100, yes = log(p), no = log1p(-p);                         \
    return -t * (yes < least ? least : yes) - (1 - t) * (no < least ? least : no); \
  }
#ifdef __cplusplus
DM_REMAINDERS(float, dm_modulo, dm_floor_div, fmod)
DM_REMAINDERS(double, dm_modulo, dm_floor_div, fmod)
DM_LOGARITHMS(float, dm_log2_1p, dm_log_loss)
DM_LOGARITHMS(double, dm_log2_1p, dm_log_loss)
#else
DM_REMAINDERS(float, dm_modulo_f32, dm_floor_div_f32, fmod)
DM_REMAINDERS(double, dm_modulo_f64, dm_floor_div_f64, fmod)
DM_LOGARITHMS(float, dm_log2_1p_f32, dm_log_loss_f32)
DM_LOGARITHMS(double, dm_log2_1p_f64, dm_log_loss_f64)
#define dm_log2_1p(x) _Generic((x), float : dm_log2_1p_f32, double : dm_log2_1p_f64)(x)
#define dm_modulo(a, b) _Generic((a), float : dm_modulo_f32, double : dm_modulo_f64)(a, b)
#define dm_floor_div(a, b) \
  _Generic((a), float : dm_floor_div_f32, double : dm_floor_div_f64)(a, b)
#define dm_log_loss(p, t) _Generic((p), float : dm_log_loss_f32, double : dm_log_loss_f64)(p, t)
#endif
#undef DM_LOGARITHMS

#endif
