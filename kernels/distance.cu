/* Distances of all pairs of rows, and their gradient.

   A block has a square of pairs, one per thread, and reads both sides' features through shared
   memory, a square of each at a time. In the gradient it has a square of rows and features, and
   goes through the rows of the other side. A square's terms are added one after the other; the
   sums of squares are added with what each addition rounds off (Kahan 1965). */
#include "kernels/own.cuh"
#include "kernels/reduce.cuh"

extern "C" {
#include "base/distance.h"
}

enum { SIDE = 16 };

static __device__ inline float sign_as(float v, float d) { return copysignf(v, d); }
static __device__ inline double sign_as(double v, double d) { return copysign(v, d); }

/* A sum of partial sums, with what it has rounded off so far. */
template <class C> struct Careful {
  C sum = 0, lost = 0;
  __device__ void add(C v) {
    const C more = v - lost, next = sum + more;
    /* the loss of an infinite sum is not defined */
    lost = dm_abs(next) < (C)INFINITY ? (next - sum) - more : (C)0;
    sum = next;
  }
};

/* The terms of a pair. Squares of very large and very small differences are scaled by powers
   of two and summed on their own, as those of norm are (J. Blue 1978). */
template <class C, int KIND> struct Terms {
  C near = 0, big = 0, small = 0;
  Careful<C> all;

  __device__ void add(C d, C p) {
    const C a = dm_abs(d);
    if (KIND == DM_DISTANCE_0) near += d != d ? d : (C)(d != 0);
    else if (KIND == DM_DISTANCE_1) near += a;
    else if (KIND == DM_DISTANCE_INF) near = a > near || a != a ? a : near;
    else if (KIND == DM_DISTANCE_P) near += a == 0 ? (C)0 : dm_power(a, p);
    else if (sizeof(C) == 8) near += d * d;
    else if (a > (C)0x1p48) big += a * (C)0x1p-80 * (a * (C)0x1p-80);
    else if (a < (C)0x1p-48) small += a * (C)0x1p90 * (a * (C)0x1p90);
    else near += d * d;
  }
  /* Ends a square of features. */
  __device__ void close(void) {
    if (KIND == DM_DISTANCE_INF) return;
    all.add(near);
    near = 0;
  }
  __device__ C distance(C p) const {
    if (KIND == DM_DISTANCE_INF) return near;
    if (KIND == DM_DISTANCE_P) return dm_power(all.sum, 1 / p);
    if (KIND != DM_DISTANCE_2) return all.sum;
    if (big != 0) return dm_sqrt(big + all.sum * (C)0x1p-80 * (C)0x1p-80) * (C)0x1p80;
    if (all.sum != 0) return dm_sqrt(all.sum + small * (C)0x1p-90 * (C)0x1p-90);
    return dm_sqrt(small) * (C)0x1p-90;
  }
};

/* The distance of one pair for any p, of differences by the largest one, whose powers leave no
   range. */
template <class C>
static __device__ C scaled_distance(const C *a, const C *b, int64_t len, C p) {
  Terms<C, DM_DISTANCE_INF> top;
  Careful<C> sum;
  for (int64_t k = 0; k < len; k++) top.add(a[k] - b[k], p);
  if (!(top.near > 0 && top.near < (C)INFINITY)) return top.near;
  for (int64_t k = 0; k < len; k++) {
    const C ratio = dm_abs(a[k] - b[k]) / top.near;
    if (ratio > 0) sum.add(dm_power(ratio, p));
  }
  return top.near * dm_power(sum.sum, 1 / p);
}

/* Two sides of a batch of images; see dm_DistanceJob. */
struct Sides {
  int64_t batch, n_row, n_lane, len, y_batch, y_row, y_lane;
  bool triangle;

  /* The offset of a pair in the distances; -1: there is none. */
  __device__ int64_t at(int64_t image, int64_t i, int64_t o) const {
    if (i >= n_row || o >= n_lane) return -1;
    if (!triangle) return image * y_batch + i * y_row + o * y_lane;
    if (i == o) return -1;
    return i < o ? dm_triangle_row(i, n_row) + o : dm_triangle_row(o, n_row) + i;
  }
};

/* The element (row, k) of n rows, or 0 outside. */
template <class C>
static __device__ inline C entry(const C *rows, int64_t row, int64_t n, int64_t k,
                                 int64_t len) {
  return row < n && k < len ? rows[row * len + k] : (C)0;
}

template <class C, int KIND>
static __global__ void __launch_bounds__(SIDE *SIDE)
    distances_kernel(Sides s, const C *rows, const C *lanes, C p, C *y) {
  DM_SHARED(C, a, SIDE * (SIDE + 1));
  DM_SHARED(C, b, SIDE * (SIDE + 1));
  const int x = (int)threadIdx.x % SIDE, z = (int)threadIdx.x / SIDE;
  const int64_t across = (s.n_lane + SIDE - 1) / SIDE, down = (s.n_row + SIDE - 1) / SIDE;
  for (int64_t u = blockIdx.x; u < s.batch * down * across; u += gridDim.x) {
    const int64_t image = u / (down * across), first = u / across % down * SIDE;
    const int64_t lane = u % across * SIDE;
    if (s.triangle && lane < first) continue; /* the whole block does */
    const C *row_side = rows + image * s.n_row * s.len;
    const C *lane_side = lanes + image * s.n_lane * s.len;
    Terms<C, KIND> sum;
    for (int64_t k = 0; k < s.len; k += SIDE) {
      a[z * (SIDE + 1) + x] = entry(row_side, first + z, s.n_row, k + x, s.len);
      b[z * (SIDE + 1) + x] = entry(lane_side, lane + z, s.n_lane, k + x, s.len);
      __syncthreads();
      for (int i = 0; i < SIDE; i++) sum.add(a[z * (SIDE + 1) + i] - b[x * (SIDE + 1) + i], p);
      sum.close();
      __syncthreads();
    }
    const int64_t i = first + z, o = lane + x, at = s.at(image, i, o);
    if (at < 0 || (s.triangle && i > o)) continue;
    const bool lost = !(sum.all.sum > (C)1e-25 && sum.all.sum < (C)INFINITY);
    y[at] = KIND == DM_DISTANCE_P && lost
                ? scaled_distance(row_side + i * s.len, lane_side + o * s.len, s.len, p)
                : sum.distance(p);
  }
}

/* What a difference adds to the gradient, without its coefficient. */
template <class C, int KIND> static __device__ inline C slope_of(C d, C far, C p) {
  const C a = dm_abs(d);
  if (KIND == DM_DISTANCE_2) return d;
  if (KIND == DM_DISTANCE_INF) return a == far && a != 0 ? sign_as((C)1, d) : (C)0;
  if (KIND == DM_DISTANCE_1) return a > 0 ? sign_as((C)1, d) : d;
  if (d == 0) return far == far || p < 1 ? (C)0 : far;
  return sign_as(dm_power(a / far, p - 1), d);
}

template <class C, int KIND>
static __global__ void __launch_bounds__(SIDE *SIDE)
    distances_back_kernel(Sides s, const C *rows, const C *lanes, C p, const C *gy, const C *y,
                          C *gx) {
  DM_SHARED(C, b, SIDE * (SIDE + 1));
  DM_SHARED(C, c, SIDE * (SIDE + 1));
  DM_SHARED(C, far, SIDE * (SIDE + 1));
  const int x = (int)threadIdx.x % SIDE, z = (int)threadIdx.x / SIDE;
  const int64_t across = (s.len + SIDE - 1) / SIDE, down = (s.n_row + SIDE - 1) / SIDE;
  for (int64_t u = blockIdx.x; u < s.batch * down * across; u += gridDim.x) {
    const int64_t image = u / (down * across), i = u / across % down * SIDE + z;
    const int64_t k = u % across * SIDE + x;
    const C *lane_side = lanes + image * s.n_lane * s.len;
    const C own = entry(rows + image * s.n_row * s.len, i, s.n_row, k, s.len);
    Careful<C> all;
    for (int64_t o = 0; o < s.n_lane; o += SIDE) {
      const int64_t at = s.at(image, i, o + x);
      const C distance = at < 0 ? (C)0 : y[at];
      C weight = at < 0 ? (C)0 : gy[at];
      /* where the distance is 0 there is no gradient; one of NaN equals no difference */
      if (KIND == DM_DISTANCE_INF && distance != distance) weight = distance;
      if (KIND == DM_DISTANCE_2) weight = distance == 0 ? (C)0 : weight / distance;
      if (KIND == DM_DISTANCE_P && distance == 0) weight = 0;
      b[z * (SIDE + 1) + x] = entry(lane_side, o + z, s.n_lane, k, s.len);
      c[z * (SIDE + 1) + x] = weight;
      far[z * (SIDE + 1) + x] = KIND == DM_DISTANCE_P && distance == 0 ? (C)1 : distance;
      __syncthreads();
      C near = 0;
      for (int q = 0; q < SIDE; q++) {
        /* a row has no difference from itself, also where it is infinite */
        if ((s.triangle && o + q == i) || o + q >= s.n_lane) continue;
        const C d = own - b[q * (SIDE + 1) + x];
        near += slope_of<C, KIND>(d, far[z * (SIDE + 1) + q], p) * c[z * (SIDE + 1) + q];
      }
      all.add(near);
      __syncthreads();
    }
    if (i < s.n_row && k < s.len) gx[(image * s.n_row + i) * s.len + k] = all.sum;
  }
}

/* ---- on the host ---- */

/* The sides of the pairs of own and other rows; see job_of in op/linear/distance.c. */
static Sides sides_of(const dm_Tensor *own, const dm_Tensor *other, const dm_Tensor *y,
                      int64_t row, int64_t lane) {
  const int at = own->ndim - 2;
  const int64_t batch = at ? own->shape[0] : 1;
  return {batch, own->shape[at], other->shape[at], own->shape[at + 1], y->numel / batch,
          row,   lane,           at == 0};
}

static unsigned blocks_of(int64_t batch, int64_t rows, int64_t columns) {
  return dm_blocks(batch * dm_ceil_div(rows, SIDE) * dm_ceil_div(columns, SIDE) * DM_THREADS);
}

template <class C, int KIND> static dm_status distances_of(const dm_Call *c, double p) {
  const dm_Tensor *u = c->in[0], *v = c->n_in > 1 && c->in[1] ? c->in[1] : u, *y = c->out[0];
  const Sides s = sides_of(u, v, y, v->shape[v->ndim - 2], 1);
  return dm_launch((distances_kernel<C, KIND>), blocks_of(s.batch, s.n_row, s.n_lane),
                   SIDE * SIDE, 0, s, (const C *)dm_tensor_data(u),
                   (const C *)dm_tensor_data(v), (C)p, (C *)dm_tensor_data(y));
}
template <class C, int KIND> static dm_status distances_back_of(const dm_Call *c, double p) {
  const dm_Tensor *y = c->in[1], *u = c->in[2], *v = c->n_in > 3 && c->in[3] ? c->in[3] : u;
  const int64_t r = v->shape[v->ndim - 2];
  const bool second = DM_ATTR(dm_DistancesBackwardAttr, c)->side != 0;
  const Sides s = second ? sides_of(v, u, y, 1, r) : sides_of(u, v, y, r, 1);
  return dm_launch((distances_back_kernel<C, KIND>), blocks_of(s.batch, s.n_row, s.len),
                   SIDE * SIDE, 0, s, (const C *)dm_tensor_data(second ? v : u),
                   (const C *)dm_tensor_data(second ? u : v), (C)p,
                   (const C *)dm_tensor_data(c->in[0]), (const C *)dm_tensor_data(y),
                   (C *)dm_tensor_data(c->out[0]));
}

#define KINDS(RUN, C)                                         \
  switch (dm_distance_kind(p)) {                              \
  case DM_DISTANCE_0: return RUN<C, DM_DISTANCE_0>(c, p);     \
  case DM_DISTANCE_1: return RUN<C, DM_DISTANCE_1>(c, p);     \
  case DM_DISTANCE_2: return RUN<C, DM_DISTANCE_2>(c, p);     \
  case DM_DISTANCE_INF: return RUN<C, DM_DISTANCE_INF>(c, p); \
  default: return RUN<C, DM_DISTANCE_P>(c, p);                \
  }

/* in: x1 (B, P, M) and x2 (B, R, M), or x1 (N, M) alone, contiguous; out: their distances. */
DM_CUDA_KERNEL(distances_cuda) {
  const double p = DM_ATTR(dm_DistancesAttr, c)->p;
  if (c->out[0]->numel == 0) return DM_OK;
  if (c->in[0]->dtype == DM_F64) KINDS(distances_of, double);
  KINDS(distances_of, float);
}

/* in: gy and y as distances gives it, x1, x2; out: the gradient of one side. */
DM_CUDA_KERNEL(distances_backward_cuda) {
  const double p = DM_ATTR(dm_DistancesBackwardAttr, c)->p;
  dm_Tensor *gx = c->out[0];
  if (gx->numel == 0) return DM_OK;
  if (p == 0 || c->in[1]->numel == 0) {
    DM_CUDA_TRY(
        cudaMemsetAsync(dm_tensor_data(gx), 0, (size_t)dm_tensor_bytes(gx), dm_cuda_stream()));
    return DM_OK;
  }
  if (gx->dtype == DM_F64) KINDS(distances_back_of, double);
  KINDS(distances_back_of, float);
}
