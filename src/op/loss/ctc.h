/* The states of connectionist temporal classification (Graves et al. 2006), for the
   kernels of every device. A target of u labels passes through 2 u + 1 states:
   blank, first label, blank, second label, ... blank. Paths stay in a state, go to
   the next one, or skip a blank between two different labels. */
#ifndef DM_CTC_H
#define DM_CTC_H

#ifdef __cplusplus
#include <math.h> /* overloads exp and log */
#else
#include <tgmath.h>
#endif

#include "engine/op.h"

/* log(exp(a) + exp(b) + exp(c)), for numbers that may be -inf. */
#define DM_LOG_ADD3(TYPE, NAME)                                   \
  static inline DM_HD TYPE NAME(TYPE a, TYPE b, TYPE c) {         \
    const TYPE ab = a > b ? a : b, top = ab > c ? ab : c;         \
    if (top == -(TYPE)INFINITY) return top;                       \
    return top + log(exp(a - top) + exp(b - top) + exp(c - top)); \
  }
#ifdef __cplusplus
DM_LOG_ADD3(float, dm_log_add3)
#endif
DM_LOG_ADD3(double, dm_log_add3)
#undef DM_LOG_ADD3

#endif
