/* Copies: to another dtype, into another tensor, of one number. */
#include "kernels/fill.h"
#include "kernels/pointwise.cuh"

template <class C> struct Same {
  C p, q;
  __device__ C operator()(const C *x) const { return x[0]; }
};

/* Between two float dtypes, dense, four elements a thread. C: what holds both. */
template <class C, class From, class To>
static __global__ void __launch_bounds__(DM_THREADS)
    convert_kernel(const From *from, To *to, int64_t n) {
  for (int64_t k = dm_thread(); k * 4 < n; k += dm_threads()) {
    if (k * 4 + 4 <= n) {
      const dm_Run<From, 4> x = ((const dm_Run<From, 4> *)from)[k];
      dm_Run<To, 4> y;
      for (int i = 0; i < 4; i++) dm_put(&y.v[i], dm_get<C, From>(x.v[i]));
      ((dm_Run<To, 4> *)to)[k] = y;
    } else {
      for (int64_t i = k * 4; i < n; i++) dm_put(&to[i], dm_get<C, From>(from[i]));
    }
  }
}

template <class C, class From, class To>
static dm_status convert(dm_Tensor *out, const dm_Tensor *in) {
  return dm_launch((convert_kernel<C, From, To>), dm_blocks(dm_ceil_div(out->numel, 4)),
                   DM_THREADS, 0, (const From *)dm_tensor_data(in), (To *)dm_tensor_data(out),
                   out->numel);
}

/* The pairs that autocast makes; the others go the strided way. */
static bool try_convert(dm_Tensor *out, const dm_Tensor *in, dm_status *st) {
  const dm_DType from = (dm_DType)in->dtype, to = (dm_DType)out->dtype;
  if (!dm_aligned(dm_tensor_data(in)) || !dm_aligned(dm_tensor_data(out))) return false;
  if (from == DM_F32 && to == DM_F16) *st = convert<float, float, dm_f16>(out, in);
  else if (from == DM_F32 && to == DM_BF16) *st = convert<float, float, dm_bf16>(out, in);
  else if (from == DM_F16 && to == DM_F32) *st = convert<float, dm_f16, float>(out, in);
  else if (from == DM_BF16 && to == DM_F32) *st = convert<float, dm_bf16, float>(out, in);
  else if (from == DM_F16 && to == DM_BF16) *st = convert<float, dm_f16, dm_bf16>(out, in);
  else if (from == DM_BF16 && to == DM_F16) *st = convert<float, dm_bf16, dm_f16>(out, in);
  else return false;
  return true;
}

extern "C" dm_status dm_cuda_copy(dm_Tensor *out, dm_Tensor *in) {
  const dm_DType from = (dm_DType)in->dtype, to = (dm_DType)out->dtype;
  if (out->numel == 0) return DM_OK;
  const Same<float> f32 = {0, 0};
  const Same<double> f64 = {0, 0};
  const Same<int64_t> i64 = {0, 0};
  if (!dm_is_host(in) && dm_same_shape(out, in) && dm_tensor_is_contiguous(out) &&
      dm_tensor_is_contiguous(in)) {
    dm_status st;
    if (from == to) {
      DM_CUDA_TRY(cudaMemcpyAsync(dm_tensor_data(out), dm_tensor_data(in),
                                  (size_t)dm_tensor_bytes(out), cudaMemcpyDeviceToDevice,
                                  dm_cuda_stream()));
      return DM_OK;
    }
    if (try_convert(out, in, &st)) return st;
  }
  /* a type that holds both ends; see the CPU's */
  if (!dm_is_float(from) && !dm_is_float(to)) return dm_strided<int64_t, 1>(out, &in, i64);
  if (from == DM_F64 || to == DM_F64 || dm_is_int(from) || dm_is_int(to))
    return dm_strided<double, 1>(out, &in, f64);
  return dm_strided<float, 1>(out, &in, f32);
}

DM_CUDA_KERNEL(cast_cuda) { return dm_cuda_copy(c->out[0], c->in[0]); }
DM_CUDA_KERNEL(copy_cuda) { return dm_cuda_copy(c->out[0], c->in[1]); }

/* ---- one number ---- */

template <class C> struct Constant {
  C p, q;
  __device__ C operator()(const C *x) const {
    (void)x;
    return p;
  }
};

extern "C" dm_status dm_cuda_fill(dm_Tensor *t, double value) {
  const dm_DType dtype = (dm_DType)t->dtype;
  if (t->numel == 0) return DM_OK;
  if (value == 0 && !signbit(value) && dm_tensor_is_contiguous(t)) {
    DM_CUDA_TRY(
        cudaMemsetAsync(dm_tensor_data(t), 0, (size_t)dm_tensor_bytes(t), dm_cuda_stream()));
    return DM_OK;
  }
  if (dm_is_float(dtype)) return dm_pointwise_float<Constant, 0>(t, NULL, dtype, value, 0);
  const Constant<int64_t> whole = {dtype == DM_BOOL ? value != 0 : (int64_t)value, 0};
  return dm_strided<int64_t, 0>(t, NULL, whole);
}

DM_CUDA_KERNEL(fill_cuda) { return dm_cuda_fill(c->out[0], *DM_ATTR(double, c)); }
DM_CUDA_KERNEL(zero_cuda) { return dm_cuda_fill(c->out[0], 0); }
