/* Shared by the kernels of layer_norm, group_norm and batch_norm: moments (count, mean, sum of
   squared distances) that can be joined. */
#ifndef DM_NORM_CUH
#define DM_NORM_CUH

#include "kernels/reduce.cuh"
#include "kernels/vector.cuh"

static __device__ inline float root(float v) { return sqrtf(v); }
static __device__ inline double root(double v) { return sqrt(v); }

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

/* Moments are kept as mean and m2 instead of sum and sum of squares, whose difference would
   cancel. */
template <class C> struct Moments {
  C n, mean, m2; /* m2: the sum of squared distances from the mean */
};

/* Joins two sets' moments by the pairwise formula of Chan, Golub & LeVeque 1979. `add` takes V
   elements at once: it computes their own moments in two passes over registers and joins them,
   with one division for V elements. */
struct JoinMoments {
  template <class C> __device__ void join(Moments<C> &s, const Moments<C> &o) const {
    if (o.n == 0) return;
    const C n = s.n + o.n, d = o.mean - s.mean, share = o.n / n;
    s.m2 += o.m2 + d * d * s.n * share;
    s.mean += d * share;
    s.n = n;
  }
  template <class C, int V> __device__ void add(Moments<C> &s, const C *v) const {
    Moments<C> run = {(C)V, 0, 0};
    for (int k = 0; k < V; k++) run.mean += v[k];
    run.mean *= C(1) / (C)V;
    for (int k = 0; k < V; k++) run.m2 += (v[k] - run.mean) * (v[k] - run.mean);
    join(s, run);
  }
};

#endif
