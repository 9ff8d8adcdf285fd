/* Shared by the kernels of layer_norm, group_norm and batch_norm: loads and stores of V
   neighbours as one word, and moments (count, mean, sum of squared distances) that can be
   joined. */
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

/* Loads V neighbours from element i on as they are, and converts them. A kernel that needs
   several runs loads all of them first. */
template <class T, int V>
static __device__ inline dm_Run<T, V> run_at(dm_From<T> p, int64_t i) {
  if constexpr (dm_same_type<T, dm_Low>) return *(const dm_Run<T, V> *)(p.p + i);
  else return *(const dm_Run<T, V> *)(p + i);
}
template <class C, class T, int V>
static __device__ inline void widen_run(dm_From<T> p, const dm_Run<T, V> &run, C *v) {
  if constexpr (dm_same_type<T, dm_Low>) dm_widen_all((int)p.dtype, run, v);
  else
    for (int k = 0; k < V; k++) v[k] = dm_get<C, T>(run.v[k]);
}

/* Loads, or stores, V neighbours from element i on, converted from or to T. */
template <class C, class T, int V>
static __device__ inline void load_run(dm_From<T> p, int64_t i, C *v) {
  const dm_Run<T, V> run = run_at<T, V>(p, i);
  widen_run<C, T, V>(p, run, v);
}
template <class C, class T, int V>
static __device__ inline void store_run(dm_To<T> p, int64_t i, const C *v) {
  dm_Run<T, V> run;
  if constexpr (dm_same_type<T, dm_Low>) {
    dm_narrow_all((int)p.dtype, v, &run);
    *(dm_Run<T, V> *)(p.p + i) = run;
  } else {
    for (int k = 0; k < V; k++) dm_put(&run.v[k], v[k]);
    *(dm_Run<T, V> *)(p + i) = run;
  }
}

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

/* Whether p is aligned to words of that many bytes. */
static inline bool runs_of(const void *p, int64_t bytes) {
  return (uintptr_t)p % (uint64_t)bytes == 0;
}
template <class P> static inline bool runs_of(const dm_LowPointer<P> &p, int64_t bytes) {
  return runs_of(p.p, bytes);
}

/* The elements of t as a kernel reads or writes them; NULL for an operand that is not there,
   and for a result without elements. */
template <class T> static dm_From<T> from_of(const dm_Tensor *t) {
  return t && t->numel > 0 ? dm_Pointers<T>::from(dm_tensor_data(t), t->dtype)
                           : dm_Pointers<T>::from(NULL, DM_F32);
}
template <class T> static dm_To<T> to_of(const dm_Tensor *t) {
  return t && t->numel > 0 ? dm_Pointers<T>::to(dm_tensor_data(t), t->dtype)
                           : dm_Pointers<T>::to(NULL, DM_F32);
}

#endif
