/* Shared by random kernels on every device: attributes, and which words of the
   generator an element reads. A draw of n elements takes the generator's next
   counters; element i reads word i % 4 of counter i / 4 (float32 and below), or two
   words of counter i / 2 (float64, integers). So what a seed gives depends on
   neither threads nor strides, and every device gives the same. */
#ifndef DM_RANDOM_H
#define DM_RANDOM_H

#include <math.h>

#include "base/normal.h"
#include "engine/op.h"

/* The current generator, before the draw; it moves on by the counters that n elements use. */
static inline dm_Generator dm_take_counters(int64_t n, int64_t per_counter) {
  dm_Generator *g = dm_thread_state()->generator;
  const dm_Generator at = *g;
  g->offset += (uint64_t)((n + per_counter - 1) / per_counter);
  return at;
}

/* Writes numbers in [0, 1), elements first .. first + n - 1 of the draw that op drop
   compares with p; elements below p are dropped. For the CPU. */
void dm_drop_draw(const dm_DropAttr *a, int64_t first, int64_t n, float *out);
/* Starts a draw of n elements for dropout on a device. On the CPU *out receives seed
   and offset, and NULL is returned. On another device they are the result of op
   counters and stay there, so that a captured graph of launches can be replayed in
   each step. */
dm_Tensor *dm_x_drop_draw(dm_X *x, double p, int64_t n, dm_Device device, dm_DropAttr *out);
/* Dropout of t with 0 < p <= 1, as a composition. */
dm_Tensor *dm_x_dropout(dm_X *x, double p, dm_Tensor *t);

/* The factor of the elements that dropout keeps. */
static inline double dm_drop_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

/* Box & Muller 1958 in float64 (base/normal.h has float32): replaces the uniform u0, u1 by two
   normal numbers. 1 - u is never 0. */
static inline DM_HD void dm_normal_f64(double *u0, double *u1) {
  const double r = sqrt(-2 * log(1 - *u0)), angle = 6.28318530717958648 * *u1;
  *u0 = r * cos(angle);
  *u1 = r * sin(angle);
}

/* Element i of a draw of two words per element: 64 random bits, and below a uniform
   float64. */
static inline DM_HD uint64_t dm_draw_u64(dm_Generator g, int64_t i) {
  const dm_Philox p = dm_philox(g.seed, g.offset + (uint64_t)i / 2);
  const bool second = i % 2 != 0;
  return (uint64_t)(second ? p.v[2] : p.v[0]) << 32 | (second ? p.v[3] : p.v[1]);
}
static inline DM_HD double dm_draw_f64(dm_Generator g, int64_t i) {
  const uint64_t u = dm_draw_u64(g, i);
  return dm_uniform_f64((uint32_t)(u >> 32), (uint32_t)u);
}

/* floor(u * n / 2^64) in 64-bit arithmetic: u scaled to 0 .. n - 1. */
static inline DM_HD uint64_t dm_scale_u64(uint64_t u, uint64_t n) {
  const uint64_t ul = (uint32_t)u, uh = u >> 32, nl = (uint32_t)n, nh = n >> 32;
  const uint64_t mid = uh * nl + (ul * nl >> 32), mid2 = ul * nh + (uint32_t)mid;
  return uh * nh + (mid >> 32) + (mid2 >> 32);
}

/* The arrival time of i in an exponential race, with weight w and uniform u: the first k
   to arrive are distributed as k draws without replacement (Efraimidis & Spirakis
   2006). */
static inline DM_HD double dm_race_time(double w, double u) {
  return w > 0 ? -log1p(-u) / w : (double)INFINITY;
}

/* The first i with sum[i] > u among running sums, `last` at most; found by bisection. */
static inline DM_HD int64_t dm_find_sum(const double *sum, int64_t last, double u) {
  int64_t lo = 0, hi = last;
  while (lo < hi) {
    const int64_t mid = (lo + hi) / 2;
    if (sum[mid] > u) hi = mid;
    else lo = mid + 1;
  }
  return lo;
}

#endif
