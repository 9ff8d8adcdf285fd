/* How a pointwise kernel runs. A formula is a functor, made for the type that is
   computed in:

     template <class C> struct Add {
       C p, q;                                  the row's attributes
       __device__ C operator()(const C *x) const { return x[0] + p * x[1]; }
     };

   Dense operands of one float dtype move 16 bytes a thread; all others take the
   strided walk, with types known at run time. A host number is a constant. */
#ifndef DM_POINTWISE_CUH
#define DM_POINTWISE_CUH

#include "kernels/cuda.cuh"

template <class C, int N> struct dm_Inputs {
  const void *data[N > 0 ? N : 1]; /* NULL: the constant */
  C constant[N > 0 ? N : 1];
  uint8_t dtype[N > 0 ? N : 1];
};

template <class T> struct dm_Pack {
  static const int n = 16 / (int)sizeof(T);
  T v[n];
};
template <class T> static __device__ inline dm_Pack<T> dm_load_pack(const void *p, int64_t i) {
  const uint4 words = ((const uint4 *)p)[i];
  dm_Pack<T> pack;
  memcpy(&pack, &words, 16);
  return pack;
}
template <class T>
static __device__ inline void dm_store_pack(void *p, int64_t i, const dm_Pack<T> &pack) {
  uint4 words;
  memcpy(&words, &pack, 16);
  ((uint4 *)p)[i] = words;
}

/* Pack k of an operand, widened; m < n elements of it, at the end of the data. */
template <class C, class T>
static __device__ inline void dm_widen_pack(const void *p, C constant, int64_t k, int m, C *a) {
  const int n = dm_Pack<T>::n;
  if (!p) {
    for (int i = 0; i < n; i++) a[i] = constant;
  } else if (m == n) {
    const dm_Pack<T> x = dm_load_pack<T>(p, k);
    for (int i = 0; i < n; i++) a[i] = dm_get<C, T>(x.v[i]);
  } else {
    for (int i = 0; i < n; i++) a[i] = i < m ? dm_get<C, T>(((const T *)p)[k * n + i]) : C(0);
  }
}

/* n elements of T, dense and 16-byte aligned. */
template <class Fn, class C, class T, int N>
static __global__ void __launch_bounds__(DM_THREADS)
    dense_kernel(Fn fn, T *out, dm_Inputs<C, N> in, int64_t n) {
  const int V = dm_Pack<T>::n;
  for (int64_t k = dm_thread(); k * V < n; k += dm_threads()) {
    const int m = n - k * V < V ? (int)(n - k * V) : V;
    C a[N > 0 ? N : 1][V];
    dm_Pack<T> y;
    for (int j = 0; j < N; j++) dm_widen_pack<C, T>(in.data[j], in.constant[j], k, m, a[j]);
    for (int i = 0; i < V; i++) {
      C x[N > 0 ? N : 1];
      for (int j = 0; j < N; j++) x[j] = a[j][i];
      dm_put(&y.v[i], fn(x));
    }
    if (m == V) dm_store_pack<T>(out, k, y);
    else
      for (int i = 0; i < m; i++) out[k * V + i] = y.v[i];
  }
}

template <class Fn, class C, int N>
static __global__ void __launch_bounds__(DM_THREADS)
    strided_kernel(Fn fn, void *out, int out_dtype, dm_Inputs<C, N> in, dm_Walk<N + 1> walk) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[N + 1];
    C a[N > 0 ? N : 1];
    walk.at(i, off);
    for (int j = 0; j < N; j++)
      a[j] = in.data[j] ? dm_load<C>(in.dtype[j], in.data[j], off[j + 1]) : in.constant[j];
    dm_store<C>(out_dtype, out, off[0], fn(a));
  }
}

static inline void dm_constant(const dm_Tensor *t, float *v) { *v = (float)dm_host_f64(t); }
static inline void dm_constant(const dm_Tensor *t, double *v) { *v = dm_host_f64(t); }
static inline void dm_constant(const dm_Tensor *t, int64_t *v) { *v = dm_host_i64(t); }

static inline bool dm_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }
/* May t take part in a dense kernel of that dtype and size? */
static inline bool dm_packs(const dm_Tensor *t, dm_DType dtype, int64_t numel) {
  return t->dtype == dtype && t->numel == numel && dm_tensor_is_contiguous(t) &&
         dm_aligned(dm_tensor_data(t));
}

/* out = fn(in...) in the compute type C. */
template <class C, int N, class Fn>
static dm_status dm_strided(dm_Tensor *out, dm_Tensor *const *in, Fn fn) {
  dm_Tensor *all[N + 1] = {out};
  void *data[N + 1];
  dm_Inputs<C, N> args;
  if (out->numel == 0) return DM_OK;
  for (int j = 0; j < N; j++) all[j + 1] = in[j];
  const dm_Walk<N + 1> walk = dm_walk<N + 1>(all, data);
  for (int j = 0; j < N; j++) {
    args.dtype[j] = in[j]->dtype;
    args.data[j] = dm_is_host(in[j]) ? NULL : data[j + 1];
    if (!args.data[j]) dm_constant(in[j], &args.constant[j]);
  }
  return dm_launch((strided_kernel<Fn, C, N>), dm_blocks(out->numel), DM_THREADS, 0, fn,
                   data[0], (int)out->dtype, args, walk);
}

template <class C, class T, int N, class Fn>
static dm_status dm_dense(dm_Tensor *out, dm_Tensor *const *in, Fn fn) {
  dm_Inputs<C, N> args;
  if (out->numel == 0) return DM_OK;
  for (int j = 0; j < N; j++) {
    args.dtype[j] = in[j]->dtype;
    args.data[j] = dm_is_host(in[j]) ? NULL : dm_tensor_data(in[j]);
    if (!args.data[j]) dm_constant(in[j], &args.constant[j]);
  }
  return dm_launch((dense_kernel<Fn, C, T, N>),
                   dm_blocks(dm_ceil_div(out->numel, dm_Pack<T>::n)), DM_THREADS, 0, fn,
                   (T *)dm_tensor_data(out), args, out->numel);
}

/* The formula in float or double, as `compute` asks (a float dtype). */
template <template <class> class Fn, int N>
static dm_status dm_pointwise_float(dm_Tensor *out, dm_Tensor *const *in, dm_DType compute,
                                    double p, double q) {
  const Fn<float> f32 = {(float)p, (float)q};
  const Fn<double> f64 = {p, q};
  bool packs = dm_packs(out, (dm_DType)out->dtype, out->numel);
  for (int j = 0; j < N && packs; j++)
    packs = dm_is_host(in[j]) || dm_packs(in[j], (dm_DType)out->dtype, out->numel);
  if (packs && dm_is_float((dm_DType)out->dtype) &&
      dm_compute_dtype((dm_DType)out->dtype) == dm_compute_dtype(compute)) {
    switch ((dm_DType)out->dtype) {
    case DM_F16: return dm_dense<float, dm_f16, N>(out, in, f32);
    case DM_BF16: return dm_dense<float, dm_bf16, N>(out, in, f32);
    case DM_F32: return dm_dense<float, float, N>(out, in, f32);
    default: return dm_dense<double, double, N>(out, in, f64);
    }
  }
  if (compute == DM_F64) return dm_strided<double, N>(out, in, f64);
  return dm_strided<float, N>(out, in, f32);
}

#endif
