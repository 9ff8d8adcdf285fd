/* Operands of norms and losses: loads and stores of V neighbours as one word, and small
   operands such as weights, biases and statistics, of any float dtype, read as the compute
   type. */
#ifndef DM_CUDA_VECTOR_CUH
#define DM_CUDA_VECTOR_CUH

#include "kernels/cuda.cuh"

extern "C" {
#include "base/quotient.h"
#include "core/copy.h"
}

/* ---- runs of neighbours ---- */

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
template <class C, class T, int V, bool passing = false>
static __device__ inline void store_run(dm_To<T> p, int64_t i, const C *v) {
  dm_Run<T, V> run, *to;
  if constexpr (dm_same_type<T, dm_Low>) {
    dm_narrow_all((int)p.dtype, v, &run);
    to = (dm_Run<T, V> *)(p.p + i);
  } else {
    for (int k = 0; k < V; k++) dm_put(&run.v[k], v[k]);
    to = (dm_Run<T, V> *)(p + i);
  }
#ifdef __CUDACC__
  /* Such results are evicted first, before data that is read again. */
  if constexpr (passing && sizeof run == sizeof(uint4)) {
    __stcs((uint4 *)to, *(const uint4 *)&run);
    return;
  }
  if constexpr (passing && sizeof run == sizeof(uint2)) {
    __stcs((uint2 *)to, *(const uint2 *)&run);
    return;
  }
#endif
  *to = run;
}

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

/* ---- small operands ---- */

/* Whether `dtype` is that of T. */
template <class T> static __device__ inline bool dm_dtype_is(int dtype);
#define ROW(X, E, S, ...) \
  template <> __device__ inline bool dm_dtype_is<dm_##S>(int dtype) { return dtype == DM_##E; }
DM_LOW_DTYPES(ROW, )
#undef ROW
template <> __device__ inline bool dm_dtype_is<dm_Low>(int dtype) {
  return dm_dtype_in((dm_DType)dtype, DM_LOW_FLOATS);
}
template <> __device__ inline bool dm_dtype_is<float>(int dtype) { return dtype == DM_F32; }
template <> __device__ inline bool dm_dtype_is<double>(int dtype) { return dtype == DM_F64; }

/* dm_load of a float dtype: the code of few dtypes, as norms read many elements in a row. */
template <class C>
static __device__ inline C dm_load_float(int dtype, const void *p, int64_t i) {
  switch (dtype) {
#define ROW(X, E, S, ...) \
  case DM_##E: return dm_get<C, dm_##S>(((const dm_##S *)p)[i]);
    DM_LOW_DTYPES(ROW, )
#undef ROW
  case DM_F32: return dm_get<C, float>(((const float *)p)[i]);
  default:
    if constexpr (sizeof(C) == 8) return dm_get<C, double>(((const double *)p)[i]);
    else return C(0);
  }
}

/* A vector of n elements of a float dtype known at run time, or none; at(i) reads element i. */
struct dm_Vector {
  const void *data; /* NULL: none */
  int dtype;

  template <class C> __device__ C at(int64_t i, C otherwise) const {
    return data ? dm_load_float<C>(dtype, data, i) : otherwise;
  }
};

/* Casts t by the op, without recording it for backward. */
static inline dm_status dm_cast_new(dm_Tensor *t, dm_DType to, dm_Tensor **out) {
  dm_ThreadState *ts = dm_thread_state();
  const int64_t dtype = to;
  const bool grad = ts->grad;
  ts->grad = false;
  const dm_status st = dm_call(DM_OP_cast, 1, &t, &dtype, out);
  ts->grad = grad;
  return st;
}

/* Gives t's elements, dense, to a kernel that computes in `compute`; integers are cast first,
   and float64 if that is float32. *own holds the memory, and the caller unrefs it. t may be
   NULL. */
static inline dm_status dm_vector_new(dm_Tensor *t, dm_DType compute, dm_Tensor **own,
                                      dm_Vector *v) {
  v->data = NULL;
  v->dtype = compute;
  if (!t) return DM_OK;
  DM_TRY(dm_dense_new(t, own));
  const dm_DType dtype = (dm_DType)(*own)->dtype;
  if (!dm_is_float(dtype) || (dtype == DM_F64 && compute != DM_F64)) {
    dm_Tensor *cast = NULL;
    DM_TRY(dm_cast_new(*own, compute, &cast));
    dm_tensor_unref(own);
    *own = cast;
  }
  v->data = dm_tensor_data(*own);
  v->dtype = (*own)->dtype;
  return DM_OK;
}

/* Returns t dense and of exactly that dtype. */
static inline dm_status dm_dense_cast(dm_Tensor *t, dm_DType dtype, dm_Tensor **own) {
  if (t->dtype == dtype) return dm_dense_new(t, own);
  dm_Tensor *cast;
  DM_TRY(dm_cast_new(t, dtype, &cast));
  const dm_status st = dm_dense_new(cast, own);
  dm_tensor_unref(&cast);
  return st;
}

#endif
