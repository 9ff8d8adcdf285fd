/* The running state of a reduction, and how two states of the same reduction join. */
#ifndef DM_ACCUMULATOR_H
#define DM_ACCUMULATOR_H

#include <math.h>

#include "base/base.h"

/* The running state of one output; what a, b, i and k hold is the reduction's. */
typedef struct dm_Acc {
  double a, b;
  int64_t i, k;
} dm_Acc;

/* var: a the mean of k elements, b their squared differences from it; n more join
   them. Chan, Golub & LeVeque 1979. */
static inline void dm_var_join(dm_Acc *s, double mean, double m2, int64_t n) {
  const double total = (double)(s->k + n), d = mean - s->a;
  if (n == 0) return;
  s->b += m2 + d * d * ((double)s->k * (double)n / total);
  s->a += d * ((double)n / total);
  s->k += n;
}

/* logsumexp: a the largest, b the sum of e^(x - a); more such join them. */
static inline void dm_lse_join(dm_Acc *s, double top, double sum) {
  if (top == -(double)INFINITY && sum == 0) return;
  if (!(top > s->a)) {
    s->b += top == s->a ? sum : sum * exp(top - s->a);
  } else {
    s->b = (s->b == 0 ? 0 : s->b * exp(s->a - top)) + sum;
    s->a = top;
  }
}

#endif
