/* Copies and casts: to another dtype, into another tensor, and of one number (fill).

   dm_cuda_copy takes the first way that fits: (1) same dtype and layout: cudaMemcpyAsync; (2)
   between float32 and 16 bits, dense: four elements per thread; (3) between rows and channels
   last: a transpose through shared memory; (4) same dtype, any strides: elements moved as
   bits; (5) otherwise the identity as a pointwise kernel in a compute type that holds both
   dtypes. */
#include "kernels/fill.h"
#include "kernels/layout.h"
#include "kernels/pointwise.cuh"

/* The identity as a formula. */
template <class C> struct Same {
  C p, q;
  __device__ C operator()(const C *x) const { return x[0]; }
};

/* Converts n dense elements between two float dtypes, four per thread, read and written as one
   word each. C is a type that holds both. */
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

/* Launches it; both tensors are dense and aligned to 16 bytes. */
template <class C, class From, class To>
static dm_status convert(dm_Tensor *out, const dm_Tensor *in) {
  return dm_launch((convert_kernel<C, From, To>), dm_blocks(dm_ceil_div(out->numel, 4)),
                   DM_THREADS, 0, (const From *)dm_tensor_data(in), (To *)dm_tensor_data(out),
                   out->numel);
}

/* From elements of type From, float or a low float, to the other ones. */
template <class From>
static bool convert_from(dm_Tensor *out, const dm_Tensor *in, dm_status *st) {
  const dm_DType to = (dm_DType)out->dtype;
  if constexpr (!dm_same_type<From, float>)
    if (to == DM_F32) return *st = convert<float, From, float>(out, in), true;
#define ROW(X, E, S, ...)                    \
  if constexpr (!dm_same_type<From, dm_##S>) \
    if (to == DM_##E) return *st = convert<float, From, dm_##S>(out, in), true;
  DM_LOW_DTYPES(ROW, )
#undef ROW
  return false;
}

/* The conversions between float32 and low floats, which autocast makes; others take the strided
   kernel. */
static bool try_convert(dm_Tensor *out, const dm_Tensor *in, dm_status *st) {
#define ROW(X, E, S, ...) \
  case DM_##E: return convert_from<dm_##S>(out, in, st);
  if (!dm_aligned(dm_tensor_data(in)) || !dm_aligned(dm_tensor_data(out))) return false;
  switch ((dm_DType)in->dtype) {
    DM_LOW_DTYPES(ROW, )
  case DM_F32: return convert_from<float>(out, in, st);
  default: return false;
  }
#undef ROW
}

/* Copies elements of one dtype, whatever their bits, between tensors of any strides. */
template <class T>
static __global__ void __launch_bounds__(DM_THREADS)
    move_kernel(T *to, const T *from, dm_Walk<2> walk) {
  for (int64_t i = dm_thread(); i < walk.numel; i += dm_threads()) {
    int64_t off[2];
    walk.at(i, off);
    to[off[0]] = from[off[1]];
  }
}

/* Words of 16 bytes, which hold several elements. */
struct alignas(16) Word {
  uint32_t part[4];
};

/* Launches it; `in` broadcasts to out. Where rows are contiguous and aligned in both, elements
   go in words. */
static dm_status move(dm_Tensor *out, dm_Tensor *in) {
  dm_Tensor *both[2] = {out, in};
  void *data[2];
  dm_Walk<2> walk = dm_walk<2>(both, data, true);
  const int size = (int)dm_dtype_sizes[out->dtype], bytes[2] = {size, size};
  const int V = (int)sizeof(Word) / size;
  if (walk.ndim > 0 && walk.stride[1][walk.ndim - 1] == 1 &&
      walk.shape[walk.ndim - 1] % V == 0 &&
      dm_walk_pack(&walk, walk.stride, 2, data, bytes, V)) {
    for (int k = 0; k < 2; k++)
      for (int d = 0; d < walk.ndim; d++) walk.stride[k][d] /= V;
    return dm_launch(move_kernel<Word>, dm_blocks(walk.numel), DM_THREADS, 0, (Word *)data[0],
                     (const Word *)data[1], walk);
  }
  DM_SIZE_TYPES(out->dtype, return dm_launch(move_kernel<T>, dm_blocks(out->numel), DM_THREADS,
                                             0, (T *)data[0], (const T *)data[1], walk););
}

/* ---- between layouts ---- */

enum { SIDE = 32, DOWN = DM_THREADS / SIDE };

/* Transposes n matrices (rows, columns). A block moves tiles of SIDE x SIDE through shared
   memory, so that both its reads and its writes are of neighbouring elements. A row of the
   tile is one element longer, so that the elements of a column are in different banks. */
template <class T>
static __global__ void __launch_bounds__(DM_THREADS)
    transpose_kernel(T *to, const T *from, int64_t rows, int64_t columns, int64_t n_down,
                     int64_t n_across, int64_t n_tile) {
  DM_SHARED(T, tile, SIDE * (SIDE + 1));
  const int across = (int)threadIdx.x % SIDE, down = (int)threadIdx.x / SIDE;
  for (int64_t t = blockIdx.x; t < n_tile; t += gridDim.x) {
    const int64_t line = t / n_across, n = line / n_down;
    const int64_t r0 = (line - n * n_down) * SIDE, c0 = (t - line * n_across) * SIDE;
    const T *in = from + n * rows * columns;
    T *out = to + n * rows * columns;
    for (int i = down; i < SIDE; i += DOWN)
      if (r0 + i < rows && c0 + across < columns)
        tile[i * (SIDE + 1) + across] = in[(r0 + i) * columns + c0 + across];
    __syncthreads();
    for (int i = down; i < SIDE; i += DOWN)
      if (c0 + i < columns && r0 + across < rows)
        out[(c0 + i) * rows + r0 + across] = tile[across * (SIDE + 1) + i];
    __syncthreads();
  }
}

/* Copies x (N, C, H, W) from rows to channels last or back, as N matrices (C, H W). */
static dm_status transpose(dm_Tensor *out, const dm_Tensor *in) {
  const bool last = dm_tensor_is_channels_last(out);
  const int64_t channels = in->shape[1], positions = in->shape[2] * in->shape[3];
  const int64_t rows = last ? channels : positions, columns = last ? positions : channels;
  const int64_t n_down = dm_ceil_div(rows, SIDE), n_across = dm_ceil_div(columns, SIDE);
  const int64_t n_tile = in->shape[0] * n_down * n_across, most = INT64_C(1) << 30;
  DM_SIZE_TYPES(out->dtype,
                return dm_launch(transpose_kernel<T>, (unsigned)(n_tile < most ? n_tile : most),
                                 DM_THREADS, 0, (T *)dm_tensor_data(out),
                                 (const T *)dm_tensor_data(in), rows, columns, n_down, n_across,
                                 n_tile););
}

/* Whether one tensor is dense in rows and the other channels last. */
static bool is_transposed(const dm_Tensor *a, const dm_Tensor *b) {
  return (dm_tensor_is_contiguous(a) && dm_tensor_is_channels_last(b)) ||
         (dm_tensor_is_channels_last(a) && dm_tensor_is_contiguous(b));
}

/* Returns t itself, or a copy of it in channels last. */
dm_status dm_last_new(dm_Tensor *t, dm_Tensor **out) {
  dm_Meta m = dm_meta_of(t);
  if (dm_tensor_is_channels_last(t)) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  m.channels_last = true;
  DM_TRY(dm_tensor_new_meta(&m, out));
  const dm_status st = dm_cuda_copy(*out, t);
  if (st != DM_OK) dm_tensor_unref(out);
  return st;
}

/* ---- copies ---- */

/* Copies `in`, broadcast and converted, to out in the first way that fits; see the head of the
   file. */
dm_status dm_cuda_copy(dm_Tensor *out, dm_Tensor *in) {
  const dm_DType from = (dm_DType)in->dtype, to = (dm_DType)out->dtype;
  if (out->numel == 0) return DM_OK;
  const Same<float> f32 = {0, 0};
  const Same<double> f64 = {0, 0};
  const Same<int64_t> i64 = {0, 0};
  const bool same = !dm_is_host(in) && dm_same_shape(out, in);
  if (same && dm_lie_alike(out, in)) {
    dm_status st;
    if (from == to) {
      DM_CUDA_TRY(cudaMemcpyAsync(dm_tensor_data(out), dm_tensor_data(in),
                                  (size_t)dm_tensor_bytes(out), cudaMemcpyDeviceToDevice,
                                  dm_cuda_stream()));
      return DM_OK;
    }
    if (try_convert(out, in, &st)) return st;
  }
  if (from == to && same && is_transposed(out, in)) return transpose(out, in);
  if (from == to && !dm_is_host(in)) return move(out, in);
  /* The compute type holds both dtypes, as on the CPU. */
  if (!dm_is_float(from) && !dm_is_float(to)) return dm_strided<int64_t, 1>(out, &in, i64);
  if (from == DM_F64 || to == DM_F64 || dm_is_int(from) || dm_is_int(to))
    return dm_strided<double, 1>(out, &in, f64);
  return dm_strided<float, 1>(out, &in, f32);
}

/* cast: out has another dtype. copy: out is the tensor that is copied into. */
DM_CUDA_KERNEL(cast_cuda) { return dm_cuda_copy(c->out[0], c->in[0]); }
DM_CUDA_KERNEL(copy_cuda) { return dm_cuda_copy(c->out[0], c->in[1]); }

/* ---- one number ---- */

/* A constant as a formula without inputs. */
template <class C> struct Constant {
  C p, q;
  __device__ C operator()(const C *x) const {
    (void)x;
    return p;
  }
};

/* Sets every element of t, of any strides, to value; +0 in a dense tensor is a memset. */
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

DM_CUDA_KERNEL(fill_cuda) { return dm_cuda_fill(c->out[0], DM_ATTR(dm_FillAttr, c)->value); }
DM_CUDA_KERNEL(zero_cuda) { return dm_cuda_fill(c->out[0], 0); }
