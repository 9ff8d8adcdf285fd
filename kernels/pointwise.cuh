/* The kernels of pointwise ops. A formula is a functor over the compute type:

     template <class C> struct Add {
       C p, q;                                  the row's attributes
       __device__ C operator()(const C *x) const { return x[0] + p * x[1]; }
     };

   A pointwise kernel is bound by memory, so it should move wide words. There are two kernels.
   The packed kernel is for operands of one dtype, float32 or 16 bits, and bool ones, whose
   rows are dense or repeat one element: a thread moves a pack of 16 bytes of each operand in
   one word, 4 elements of float32 or 8 of 16 bits (PyTorch's vectorized_elementwise_kernel
   does likewise). All others take the strided kernel, one element per thread at a time, with
   dtypes known at run time. Both loop over the grid, so that any number of elements fits a
   launch. 16-bit floats compute in float32 and are rounded once. A host number is passed as a
   constant of the launch.

   Few kernels build fast: the formats of 16 bits share one, which converts a pack at a time,
   and many formulas share one, by a functor with a switch (dm_switches below), which a thread
   runs through once for a pack. All threads of a launch go the same way in both. */
#ifndef DM_POINTWISE_CUH
#define DM_POINTWISE_CUH

#include "kernels/cuda.cuh"

/* The N inputs of a launch, of any dtypes. */
template <class C, int N> struct dm_Inputs {
  const void *data[N > 0 ? N : 1]; /* NULL: use the constant */
  C constant[N > 0 ? N : 1];
  uint8_t dtype[N > 0 ? N : 1];
};

/* The elements of T in a pack of 16 bytes. A pack has as many elements of the bool
   operands. */
template <class T> static constexpr DM_HD int dm_pack_size() { return 16 / (int)sizeof(T); }

/* CUDA's hypot is off by a bit or two where the host's is exact. The hypotenuse of a side that
   is too short to count is the other one, which else rounds to infinity. */
template <class C> static __device__ inline C exact_hypot(C a, C b) {
  const C x = fabs(a), y = fabs(b), most = x > y ? x : y, least = x > y ? y : x;
  return least < most * C(0x1p-54) && most < C(INFINITY) ? most : (C)hypot(a, b);
}

/* Reads m elements at p as the compute type, as one word when m fills the run, and writes
   them. The loops have a fixed length, so that the arrays stay in registers. */
template <class C, class T, int V>
static __device__ inline void dm_widen_run(const T *p, int m, C *a) {
  dm_Run<T, V> x;
  if (m == V) x = *(const dm_Run<T, V> *)p;
  else
    for (int i = 0; i < V; i++) x.v[i] = p[i < m ? i : 0];
  for (int i = 0; i < V; i++) a[i] = dm_get<C, T>(x.v[i]);
}
template <class C, class T, int V>
static __device__ inline void dm_narrow_run(T *p, int m, const C *a) {
  dm_Run<T, V> y;
  for (int i = 0; i < V; i++) dm_put(&y.v[i], a[i]);
  if (m == V) *(dm_Run<T, V> *)p = y;
  else
    for (int i = 0; i < V; i++)
      if (i < m) p[i] = y.v[i];
}

/* Reads m elements at p as they are, as one word when m fills the run. */
template <class T, int V>
static __device__ inline void dm_read_run(const T *p, int m, dm_Run<T, V> *x) {
  if (m == V) *x = *(const dm_Run<T, V> *)p;
  else
    for (int i = 0; i < V; i++) x->v[i] = p[i < m ? i : 0];
}

/* The same for writing. */
template <class T, int V>
static __device__ inline void dm_write_run(T *p, int m, const dm_Run<T, V> &x) {
  if (m == V) *(dm_Run<T, V> *)p = x;
  else
    for (int i = 0; i < V; i++)
      if (i < m) p[i] = x.v[i];
}

/* The number 1 as an element of a dtype. */
static __device__ inline void dm_unit(int, float *one) { *one = 1; }
static __device__ inline void dm_unit(int dtype, dm_Low *one) {
  switch (dtype) {
#define ROW(X, E, S, ...) \
  case DM_##E: one->bits = dm_f32_to_##S(1.0f); return;
    DM_LOW_DTYPES(ROW, )
#undef ROW
  default: one->bits = 0;
  }
}

/* Reads operand j's m elements of the pack that begins at `at`; step 0 repeats one element. A
   bool is read as the dtype's 1 or 0. */
template <class T, int N, int V>
static __device__ inline void dm_read_pack(const dm_Inputs<float, N> &in, int j, int dtype,
                                           int64_t at, int64_t step, int m, dm_Run<T, V> *x) {
  if (!in.data[j]) return;
  if (in.dtype[j] != DM_BOOL) {
    const T *p = (const T *)in.data[j] + at;
    if (step != 0) return dm_read_run<T, V>(p, m, x);
    const T v = *p;
    for (int i = 0; i < V; i++) x->v[i] = v;
    return;
  }
  const bool *p = (const bool *)in.data[j] + at;
  dm_Run<bool, V> truth;
  if (step != 0) dm_read_run<bool, V>(p, m, &truth);
  else
    for (int i = 0; i < V; i++) truth.v[i] = *p;
  T one;
  dm_unit(dtype, &one);
  for (int i = 0; i < V; i++) x->v[i] = truth.v[i] ? one : T{};
}

/* Whether a functor holds several formulas and a switch. It then has, instead of the operator,
   `all`, which computes the V results y of x[operand][element] by one run through the
   switch. */
template <class Fn> static constexpr bool dm_switches = false;

/* y[i] = fn(x[0][i], x[1][i] ...) for V elements of the N operands. */
template <int N, int V, class Fn, class C>
static __device__ inline void dm_each(const Fn &fn, const C (*x)[V], C *y) {
  if constexpr (dm_switches<Fn>) {
    fn.template all<V>(x, y);
  } else {
    for (int i = 0; i < V; i++) {
      C one[N > 0 ? N : 1];
      for (int j = 0; j < N; j++) one[j] = x[j][i];
      y[i] = fn(one);
    }
  }
}

/* The packed kernel: one pack per thread and step. `dtype` is that of the operands that are no
   bools; T is float or dm_Low. The walk counts packs of V elements; n is the number of
   elements, as the last pack may be short. */
template <class Fn, class T, int N>
static __global__ void __launch_bounds__(DM_THREADS)
    packed_kernel(Fn fn, void *out, int out_dtype, int dtype, dm_Inputs<float, N> in,
                  dm_Walk<N + 1> walk, int64_t n) {
  const int V = dm_pack_size<T>();
  for (int64_t k = dm_thread(); k < walk.numel; k += dm_threads()) {
    const int m = n - k * V < V ? (int)(n - k * V) : V;
    int64_t off[N + 1];
    dm_Run<T, V> x[N > 0 ? N : 1] = {}, result;
    float a[N > 0 ? N : 1][V], y[V];
    walk.at(k, off);
    for (int j = 0; j < N; j++)
      dm_read_pack<T, N, V>(in, j, dtype, off[j + 1], walk.stride[j + 1][walk.ndim - 1], m,
                            &x[j]);
    for (int j = 0; j < N; j++) {
      if (in.data[j]) dm_widen_all(dtype, x[j], a[j]);
      else
        for (int i = 0; i < V; i++) a[j][i] = in.constant[j];
    }
    dm_each<N, V>(fn, a, y);
    if (out_dtype == DM_BOOL) {
      dm_narrow_run<float, bool, V>((bool *)out + off[0], m, y);
    } else {
      dm_narrow_all(dtype, y, &result);
      dm_write_run<T, V>((T *)out + off[0], m, result);
    }
  }
}

/* The strided kernel: one element per thread and step, any dtypes and strides. */
template <class Fn, class C, int N>
static __global__ void __launch_bounds__(DM_THREADS)
    strided_kernel(Fn fn, void *out, int out_dtype, dm_Inputs<C, N> in, dm_Walk<N + 1> walk) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[N + 1];
    C a[N > 0 ? N : 1][1], y[1];
    walk.at(i, off);
    for (int j = 0; j < N; j++)
      a[j][0] = in.data[j] ? dm_load<C>(in.dtype[j], in.data[j], off[j + 1]) : in.constant[j];
    dm_each<N, 1>(fn, a, y);
    dm_store<C>(out_dtype, out, off[0], y[0]);
  }
}

/* Converts a host number to the compute type. */
static inline void dm_constant(const dm_Tensor *t, float *v) { *v = (float)dm_host_f64(t); }
static inline void dm_constant(const dm_Tensor *t, double *v) { *v = dm_host_f64(t); }
static inline void dm_constant(const dm_Tensor *t, int64_t *v) { *v = dm_host_i64(t); }

/* Whether p may be accessed in words of 16 bytes. */
static inline bool dm_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

/* The operands of a launch: the output, then the inputs, as one walk. */
template <class C, int N> struct dm_Operands {
  dm_Inputs<C, N> in =
      {}; /* initialised with padding: captured launches compare their arguments' bytes */
  dm_Walk<N + 1> walk;
  void *data[N + 1]; /* NULL: a host number */

  dm_Operands(dm_Tensor *out, dm_Tensor *const *inputs) {
    dm_Tensor *all[N + 1] = {out};
    for (int j = 0; j < N; j++) all[j + 1] = inputs[j];
    walk = dm_walk<N + 1>(all, data, true);
    for (int j = 0; j < N; j++) {
      in.dtype[j] = inputs[j]->dtype;
      if (dm_is_host(inputs[j])) data[j + 1] = NULL;
      in.data[j] = data[j + 1];
      if (!in.data[j]) dm_constant(inputs[j], &in.constant[j]);
    }
  }
};

/* Launches the strided kernel: out = fn(in...) in the compute type C. */
template <class C, int N, class Fn>
static dm_status dm_strided(dm_Tensor *out, dm_Tensor *const *in, Fn fn) {
  if (out->numel == 0) return DM_OK;
  const dm_Operands<C, N> o(out, in);
  return dm_launch((strided_kernel<Fn, C, N>), dm_blocks(out->numel), DM_THREADS, 0, fn,
                   o.data[0], (int)out->dtype, o.in, o.walk);
}

/* Launches the packed kernel where the walk allows packs, else the strided one, with a functor
   of its own. */
template <class T, int N, class Fn, class Any>
static dm_status dm_packed(dm_Tensor *out, dm_Tensor *const *in, dm_DType dtype, Fn fn,
                           Any any) {
  if (out->numel == 0) return DM_OK;
  dm_Operands<float, N> o(out, in);
  int bytes[N + 1] = {(int)dm_dtype_sizes[out->dtype]};
  for (int j = 0; j < N; j++) bytes[j + 1] = (int)dm_dtype_sizes[in[j]->dtype];
  if (!dm_walk_pack(&o.walk, o.walk.stride, N + 1, o.data, bytes, dm_pack_size<T>()))
    return dm_strided<float, N>(out, in, any);
  return dm_launch((packed_kernel<Fn, T, N>), dm_blocks(o.walk.numel), DM_THREADS, 0, fn,
                   o.data[0], (int)out->dtype, (int)dtype, o.in, o.walk, out->numel);
}

/* The only float dtype among the operands on the device, bool ones aside; DM_BOOL where there
   is none or there are several. */
static inline dm_DType dm_pack_dtype(const dm_Tensor *out, int n, dm_Tensor *const *in) {
  dm_DType one = (dm_DType)out->dtype;
  for (int j = 0; j < n; j++) {
    const dm_DType d = (dm_DType)in[j]->dtype;
    if (dm_is_host(in[j]) || d == DM_BOOL) continue;
    if (one != DM_BOOL && one != d) return DM_BOOL;
    one = d;
  }
  return dm_is_float(one) ? one : DM_BOOL;
}

/* Whether an operand on the device is float64: kernels that compute in float32 do not read
   any. */
static inline bool dm_any_f64(const dm_Tensor *out, int n, dm_Tensor *const *in) {
  bool any = out->dtype == DM_F64;
  for (int j = 0; j < n; j++) any |= !dm_is_host(in[j]) && in[j]->dtype == DM_F64;
  return any;
}

/* Formulas for which only the strided kernel is compiled: long ones, which are bound by
   arithmetic, and rare ones. RARE marks them among the formulas of base/. */
template <template <class> class Fn> static constexpr bool dm_unpacked = false;

/* The functor Fn with the numbers of another, which may be of its type. */
template <class Fn, class Any> static Fn dm_functor(const Any &any) {
  if constexpr (dm_same_type<Fn, Any>) return any;
  else return Fn{any.p, any.q};
}

/* Launches the formula in float32 or float64, as the float dtype `compute` and the operands
   ask. Any is the functor of the strided kernel; it may have a third number. */
template <template <class> class Fn, template <class> class Any, int N, class... Third>
static dm_status dm_pointwise_any(dm_Tensor *out, dm_Tensor *const *in, dm_DType compute,
                                  double p, double q, Third... r) {
  const Any<float> f32 = {(float)p, (float)q, (float)r...};
  if (compute == DM_F64 || dm_any_f64(out, N, in))
    return dm_strided<double, N>(out, in, Any<double>{p, q, (double)r...});
  if constexpr (!dm_unpacked<Fn>) {
    const auto fn = dm_functor<Fn<float>>(f32);
    const dm_DType dtype = dm_pack_dtype(out, N, in);
    if (dm_is_low(dtype)) return dm_packed<dm_Low, N>(out, in, dtype, fn, f32);
    if (dtype == DM_F32) return dm_packed<float, N>(out, in, dtype, fn, f32);
  }
  return dm_strided<float, N>(out, in, f32);
}
template <template <class> class Fn, int N>
static dm_status dm_pointwise_float(dm_Tensor *out, dm_Tensor *const *in, dm_DType compute,
                                    double p, double q) {
  return dm_pointwise_any<Fn, Fn, N>(out, in, compute, p, q);
}

#endif
