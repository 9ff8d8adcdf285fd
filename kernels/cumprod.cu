/* Running products along a dim, and their gradient. x is (outer, n, inner), dense.

   Products are made one after the other, as on the CPU and in the same type, float64 or int64:
   a tree would join partial products of later elements, which may leave the range where no
   running product does (0 times infinity is NaN). A thread multiplies a slice where
   neighbouring threads read neighbouring slices (inner >= 32). Elsewhere a warp does: it loads
   32 neighbours at once, and each lane multiplies all of them up to its own. */
#include "kernels/own.cuh"

extern "C" {
#include "core/copy.h"
#include "op/along.h"
}

/* The parameters: a slice has n elements `inner` apart; all tensors but `before` are dense. */
struct Factors {
  const void *x, *gy; /* gy: of the gradient */
  void *y;
  double *before; /* of the gradient: the products of the elements before each, like x */
  int from, to;
  int64_t n, inner, n_slice;
};

static __device__ inline double times(double a, double b) { return a * b; }
/* Integers wrap modulo 2^64. */
static __device__ inline int64_t times(int64_t a, int64_t b) {
  return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* Which slice a thread works on, and in which elements: every `lanes`-th from `lane` on. */
struct Lanes {
  int64_t slice, first, n_round;
  int lane, lanes;

  __device__ Lanes(const Factors &p, int width) : lanes(width) {
    const int64_t t = dm_thread();
    slice = t / lanes;
    lane = (int)(t % lanes);
    first = slice / p.inner * p.n * p.inner + slice % p.inner;
    n_round = slice < p.n_slice ? (p.n + lanes - 1) / lanes : 0;
  }
};

/* The value of lane k; all lanes of the warp call it. */
template <int lanes, class C> static __device__ inline C of_lane(C v, int k) {
  if constexpr (lanes == 1) return v;
  else return __shfl_sync(0xffffffffu, v, k);
}

/* y_i = x_0 ... x_i. With `before` set, the product without x_i goes there instead. */
template <int lanes, class C>
static __device__ inline void multiply(const Factors &p, const Lanes &at) {
  C product = 1;
  for (int64_t r = 0; r < at.n_round; r++) {
    const int64_t i = r * lanes + at.lane, offset = at.first + i * p.inner;
    const C own = i < p.n ? dm_load<C>(p.from, p.x, offset) : C(1);
    C mine = product, before = product;
    for (int k = 0; k < lanes; k++) {
      if (k == at.lane) before = product;
      product = times(product, of_lane<lanes>(own, k));
      if (k == at.lane) mine = product;
    }
    if (i >= p.n) continue;
    if (p.before) p.before[offset] = (double)before;
    else dm_store<C>(p.to, p.y, offset, mine);
  }
}

template <int lanes, class C>
static __global__ void __launch_bounds__(DM_THREADS) product_kernel(Factors p) {
  multiply<lanes, C>(p, Lanes(p, lanes));
}

/* dx_i = P_i S_i, where P_i is the product of the elements before i, and S_i = gy_i + x_(i+1)
   S_(i+1). Nothing is divided, so that zeros have their gradient. */
template <int lanes>
static __global__ void __launch_bounds__(DM_THREADS) product_back_kernel(Factors p) {
  const Lanes at(p, lanes);
  multiply<lanes, double>(p, at);
  double sum = 0, factor = 0; /* S and x of the element behind */
  for (int64_t r = at.n_round; r-- > 0;) {
    const int64_t i = r * lanes + at.lane, offset = at.first + i * p.inner;
    const bool inside = i < p.n;
    const double x = inside ? dm_load<double>(p.from, p.x, offset) : 0;
    const double gy = inside ? dm_load<double>(p.from, p.gy, offset) : 0;
    double mine = 0;
    for (int k = lanes; k-- > 0;) {
      const double g = of_lane<lanes>(gy, k), v = of_lane<lanes>(x, k);
      if (r * lanes + k >= p.n) continue;
      sum = r * lanes + k == p.n - 1 ? g : g + factor * sum;
      factor = v;
      if (k == at.lane) mine = sum;
    }
    if (inside) dm_store<double>(p.to, p.y, offset, p.before[offset] * mine);
  }
}

/* The parameters of a call on x, dense. */
static Factors factors_of(const dm_Call *c, dm_Tensor *x) {
  const dm_Along at = dm_along(x, DM_ATTR(dm_CumsumAttr, c)->dim);
  Factors p = {};
  p.x = dm_tensor_data(x);
  p.y = dm_tensor_data(c->out[0]);
  p.from = x->dtype;
  p.to = c->out[0]->dtype;
  p.n = at.n;
  p.inner = at.inner;
  p.n_slice = dm_along_slices(&at);
  return p;
}

static bool by_thread(const Factors &p) { return p.inner >= 32 || p.n <= 32; }
static unsigned blocks(const Factors &p) {
  return (unsigned)dm_ceil_div(p.n_slice * (by_thread(p) ? 1 : 32), DM_THREADS);
}

template <class C> static dm_status product(const Factors &p) {
  return by_thread(p) ? dm_launch((product_kernel<1, C>), blocks(p), DM_THREADS, 0, p)
                      : dm_launch((product_kernel<32, C>), blocks(p), DM_THREADS, 0, p);
}

DM_CUDA_KERNEL(running_product_cuda) {
  dm_Own x;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x.t));
  const Factors p = factors_of(c, x.t);
  return dm_is_float((dm_DType)p.to) ? product<double>(p) : product<int64_t>(p);
}

/* in: x and gy, of one dtype and shape. */
DM_CUDA_KERNEL(running_product_back_cuda) {
  dm_Own x, gy;
  dm_Scratch<double> before;
  if (c->out[0]->numel == 0) return DM_OK;
  DM_TRY(dm_dense_new(c->in[0], &x.t));
  DM_TRY(dm_dense_new(c->in[1], &gy.t));
  DM_TRY(before.get(x.t->numel));
  Factors p = factors_of(c, x.t);
  p.gy = dm_tensor_data(gy.t);
  p.before = before.p;
  return by_thread(p) ? dm_launch(product_back_kernel<1>, blocks(p), DM_THREADS, 0, p)
                      : dm_launch(product_back_kernel<32>, blocks(p), DM_THREADS, 0, p);
}
