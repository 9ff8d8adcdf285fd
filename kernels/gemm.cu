/* Matrix products without a library, c = alpha a b + beta c, for any dtype but bool, any
   strides, and batches that broadcast. They run where cuBLASLt is missing or refuses.

   The kernel is the classic tiled product (CUDA C++ Programming Guide, "Shared Memory"; V.
   Volkov & J. Demmel 2008 for the tile in registers): tiles of both operands are loaded into
   shared memory, and each thread computes several elements of the result in registers, so that
   one load from shared memory serves EACH multiply-adds. The sum over k has one order,
   whatever the device. */
#include "kernels/cuda.cuh"
#include "kernels/gemm.h"

/* A block computes a TILE x TILE tile of c. Each of its SIDE x SIDE threads holds EACH x EACH
   elements, every SIDE-th one in both directions. DEPTH elements of k are in shared memory at
   a time; its rows are two words longer than a tile, so that the writes of a column go to
   different banks. */
enum { TILE = 64, DEPTH = 16, SIDE = 16, EACH = TILE / SIDE, PITCH = TILE + 2 };

static __device__ inline float mul_add(float a, float b, float sum) { return sum + a * b; }
static __device__ inline double mul_add(double a, double b, double sum) { return sum + a * b; }
/* Integer products wrap modulo 2^64, as on the CPU. */
static __device__ inline int64_t mul_add(int64_t a, int64_t b, int64_t sum) {
  return (int64_t)((uint64_t)sum + (uint64_t)a * (uint64_t)b);
}

/* relu and gelu come from the CPU's formulas. */
#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#ifdef __CUDACC__
#pragma nv_diag_suppress 177 /* of all formulas two are used */
#endif
#define real float
#define F(NAME) NAME##32
#include "base/scalar.inc"
#undef real
#undef F
#define real double
#define F(NAME) NAME##64
#include "base/scalar.inc"
#undef real
#undef F

static __device__ inline float activated(int a, float v) {
  return a == DM_RELU ? relu_f32(v, 0, 0) : gelu_f32(v, a == DM_GELU_TANH, 0);
}
static __device__ inline double activated(int a, double v) {
  return a == DM_RELU ? relu_f64(v, 0, 0) : gelu_f64(v, a == DM_GELU_TANH, 0);
}
static __device__ inline int64_t activated(int, int64_t v) {
  return v;
} /* integer products have no activation */

/* Loads and stores elements of type T; GemmAny is an integer type known at run time only. */
struct GemmAny {};
template <class C, class T> struct GemmElements {
  static __device__ inline C load(int, const void *p, int64_t i) {
    return dm_get<C, T>(((const T *)p)[i]);
  }
  static __device__ inline void store(int, void *p, int64_t i, C v) { dm_put((T *)p + i, v); }
};
template <> struct GemmElements<int64_t, GemmAny> {
  static __device__ inline int64_t load(int dtype, const void *p, int64_t i) {
    return dm_load<int64_t>(dtype, p, i);
  }
  static __device__ inline void store(int dtype, void *p, int64_t i, int64_t v) {
    dm_store<int64_t>(dtype, p, i, v);
  }
};

/* One operand's tile: DEPTH elements of k for TILE lines, which are rows of a (m, k) or
   columns of b (k, n); 0 outside. Neighbouring threads load along the contiguous direction. */
template <class C> struct GemmPanel {
  const void *data;
  int dtype;
  int64_t base, line_step, k_step, n_line, k;

  template <class T>
  __device__ inline void load(int64_t first, int64_t k0, DM_SHARED_PTR(C) tile) const {
    const int t = (int)threadIdx.x;
    const bool along_k = k_step == 1;
    for (int i = 0; i < TILE / SIDE; i++) {
      const int depth = along_k ? t % DEPTH : t / TILE + i * (SIDE * SIDE / TILE);
      const int line = along_k ? t / DEPTH + i * (SIDE * SIDE / DEPTH) : t % TILE;
      const int64_t l = first + line, at = k0 + depth;
      tile[depth * PITCH + line] =
          l < n_line && at < k
              ? GemmElements<C, T>::load(dtype, data, base + l * line_step + at * k_step)
              : C(0);
    }
  }
};

/* The product kernel: blockIdx.x is a tile of c, blockIdx.y a product of the batch. It sums in
   the compute type C and rounds once, after alpha, beta, the bias (n) and the activation;
   `before`, if given, receives the value that the activation is applied to. */
template <class C, class T>
static __global__ void __launch_bounds__(SIDE *SIDE, 2)
    gemm_kernel(dm_Product p, C alpha, C beta, int64_t n_product) {
  DM_SHARED(C, tile_a, DEPTH * PITCH);
  DM_SHARED(C, tile_b, DEPTH * PITCH);
  const int dtype = p.a.dtype, row = (int)threadIdx.x / SIDE, column = (int)threadIdx.x % SIDE;
  const int64_t n_across = (p.n + TILE - 1) / TILE;
  const int64_t i0 = blockIdx.x / n_across * TILE, j0 = blockIdx.x % n_across * TILE;
  for (int64_t z = blockIdx.y; z < n_product; z += gridDim.y) {
    GemmPanel<C> a = {p.a.data, dtype, 0, p.a.rs, p.a.cs, p.m, p.k};
    GemmPanel<C> b = {p.b.data, dtype, 0, p.b.cs, p.b.rs, p.n, p.k};
    int64_t rest = z;
    for (int d = p.n_batch - 1; d >= 0; d--) {
      a.base += rest % p.size[d] * p.a_step[d];
      b.base += rest % p.size[d] * p.b_step[d];
      rest /= p.size[d];
    }
    C sum[EACH][EACH] = {};
    for (int64_t k0 = 0; k0 < p.k; k0 += DEPTH) {
      a.template load<T>(i0, k0, tile_a);
      b.template load<T>(j0, k0, tile_b);
      __syncthreads();
      const int depth = p.k - k0 < DEPTH ? (int)(p.k - k0) : DEPTH;
      for (int l = 0; l < depth; l++) {
        C x[EACH], y[EACH];
        for (int i = 0; i < EACH; i++) {
          x[i] = tile_a[l * PITCH + row + i * SIDE];
          y[i] = tile_b[l * PITCH + column + i * SIDE];
        }
        for (int i = 0; i < EACH; i++)
          for (int j = 0; j < EACH; j++) sum[i][j] = mul_add(x[i], y[j], sum[i][j]);
      }
      __syncthreads();
    }
    for (int i = 0; i < EACH; i++) {
      for (int j = 0; j < EACH; j++) {
        const int64_t ci = i0 + row + i * SIDE, cj = j0 + column + j * SIDE;
        const int64_t at = (z * p.m + ci) * p.n + cj;
        if (ci >= p.m || cj >= p.n) continue;
        C v = mul_add(alpha, sum[i][j], C(0));
        if (beta != C(0)) v = mul_add(beta, GemmElements<C, T>::load(dtype, p.c, at), v);
        if (p.bias) v = mul_add(C(1), GemmElements<C, T>::load(dtype, p.bias, cj), v);
        if (p.before) GemmElements<C, T>::store(dtype, p.before, at, v);
        if (p.activation != DM_ACTIVATION_NONE) v = activated(p.activation, v);
        GemmElements<C, T>::store(dtype, p.c, at, v);
      }
    }
  }
}

/* Launches one block per tile and product; the products beyond the grid's 65535 rows are
   looped over. */
extern "C" dm_status dm_cuda_gemm(const dm_Product *p) {
  const int64_t n_tile = dm_ceil_div(p->m, TILE) * dm_ceil_div(p->n, TILE);
  int64_t n_product = 1;
  for (int d = 0; d < p->n_batch; d++) n_product *= p->size[d];
  if (n_tile == 0 || n_product == 0) return DM_OK;
  if (n_tile > INT32_MAX)
    return dm_fail(DM_EARG, "matmul: a product of %lld x %lld is too large for cuda",
                   (long long)p->m, (long long)p->n);
  const dim3 grid((unsigned)n_tile, (unsigned)(n_product < 65535 ? n_product : 65535));
  if (!dm_is_float(p->a.dtype))
    return dm_launch((gemm_kernel<int64_t, GemmAny>), grid, SIDE * SIDE, 0, *p,
                     (int64_t)p->alpha, (int64_t)p->beta, n_product);
  DM_FLOAT_TYPES(p->a.dtype, return dm_launch((gemm_kernel<C, T>), grid, SIDE * SIDE, 0, *p,
                                              (C)p->alpha, (C)p->beta, n_product););
}
