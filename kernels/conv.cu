/* Convolutions by implicit GEMM, for any float dtype and any strides. They run where cuDNN is
   missing or refuses.

   The forward pass and both gradients are products of two matrices, once per group:

              rows             columns             k
     y        O/G              N P Q               C/G R S
     gx       C/G              N H W               O/G R S
     gw       O/G              C/G R S             N P Q

   One operand is a matrix in memory (the weight, or y's gradient). The other is the unfolded
   image (im2col) and is never stored: the loader computes from a column's and a k's index
   where the element is in the image (Chetlur et al. 2014, cuDNN). An index is split into three
   numbers, such as (n, p, q) for a column and (c, r, s) for k. Each of the two indices gives
   its part of the position: an offset in elements, and a row and a column of the image, which
   are added. Elements outside the image are 0. */
#include "kernels/conv.h"
#include "kernels/cuda.cuh"
#include "kernels/fill.h"
#include "kernels/layout.h"
#include "kernels/plans.h"

extern "C" {
#include "op/strided.h"
}

/* A block computes a TILE x TILE tile of the product. Each of its SIDE x SIDE threads holds
   EACH x EACH of it in registers, every SIDE-th element in both directions. DEPTH elements of
   k are in shared memory at a time; its rows are two words longer than a tile so that the
   writes of a column go to different banks. */
enum { TILE = 64, DEPTH = 16, SIDE = 16, EACH = TILE / SIDE, PITCH = TILE + 2 };
/* Products with fewer rows than this do not use tiles: most of a tile would be empty. */
enum { FEW_ROWS = 5 };
/* Where there are fewer tiles than ENOUGH_TILES, a long k is cut into chunks of at least
   LEAST_PIECE (split-k), so that more blocks run. The cut depends on sizes alone, so that sums
   have the same order on every device. */
enum { ENOUGH_TILES = 256, LEAST_PIECE = 256 };
/* Images and kernels must be smaller than MAX_REACH, so that positions fit 32 bits. */
enum { MAX_REACH = 1 << 29, OUTSIDE = -(1 << 30) };

/* ---- positions ---- */

/* One index's part of a position in the image. */
struct Spot {
  int64_t offset; /* elements */
  int y, x;
};

/* Turns index i = (a, b, c), the last number fastest, into its part of a position: offset a *
   step, row b * mul[0] + add[0], column c * mul[1] + add[1]. */
struct Ramp {
  int64_t n, n_bc, n_c;
  bool wide; /* 2^31 or more: true divisions */
  dm_Divisor by_bc, by_c;
  int64_t step;
  int mul[2], add[2];

  __device__ inline Spot at(int64_t i) const {
    const int64_t a = wide ? i / n_bc : dm_divide((uint32_t)i, by_bc);
    i -= a * n_bc;
    const int64_t b = wide ? i / n_c : dm_divide((uint32_t)i, by_c);
    const Spot s = {a * step, (int)b * mul[0] + add[0], (int)(i - b * n_c) * mul[1] + add[1]};
    return s;
  }
};

/* One operand of the product. A line is a row of the left operand or a column of the right
   one; elements of a line are counted by k. */
struct Matrix {
  const void *data;
  Ramp line, k;
  dm_Divisor every[2]; /* rows and columns stand at multiples of these */
  int size[2];         /* of the image */
  int64_t step[2];     /* elements from row to row, from column to column */
  int64_t group_step;
  bool along_k; /* neighbours along k are contiguous, rather than neighbouring lines */

  /* The element of a line and a k, whose parts of the position are added; 0 where the sum is
     outside the image or, in gx, between two steps of the stride. */
  template <class C, class T>
  __device__ inline C load(int64_t group, const Spot &l, const Spot &k) const {
    const int y = l.y + k.y, x = l.x + k.x;
    if (y < 0 || x < 0) return C(0);
    const int row = (int)dm_divide((uint32_t)y, every[0]);
    const int column = (int)dm_divide((uint32_t)x, every[1]);
    if (row >= size[0] || column >= size[1] || row * (int)every[0].d != y ||
        column * (int)every[1].d != x)
      return C(0);
    return dm_get<C, T>((
        (const T *)
            data)[group * group_step + l.offset + k.offset + row * step[0] + column * step[1]]);
  }
};

/* A product and where its elements are stored; passed to the kernels by value. */
struct Product {
  Matrix a, b;
  void *out;
  int64_t rows, columns, k, groups;
  /* The offset of element (row, column) of a group in `out` is made of these steps. */
  int64_t plane, image_step, position_step, row_step, group_step;
  dm_Divisor by_plane;
  const void *bias; /* one element a row, or NULL */
  int64_t bias_step;
  int64_t numel, n_chunk, chunk; /* k is cut into n_chunk chunks; their sums go to `part` */
  void *part;

  /* The offset of a column: image number, then position. */
  __device__ inline int64_t column_at(int64_t column) const {
    const int64_t image = b.line.wide ? column / plane : dm_divide((uint32_t)column, by_plane);
    return image * image_step + (column - image * plane) * position_step;
  }
  /* Stores one element with the bias added; `at` is the offset of its column. */
  template <class C, class T>
  __device__ inline void store(int64_t group, int64_t row, int64_t at, C sum) const {
    const int64_t channel = group * rows + row;
    if (bias) sum += dm_get<C, T>(((const T *)bias)[channel * bias_step]);
    dm_put((T *)out + at + row * row_step + group * group_step, sum);
  }
};

/* ---- tiles ---- */

/* Loads one operand's tile into shared memory: each thread loads EACH elements per step.
   Neighbouring threads load along the contiguous direction. The lines' parts of the positions
   are computed once, those of k in each step. */
template <class C, class T> struct Bearer {
  const Matrix *m;
  int64_t group;
  Spot line[EACH];

  __device__ inline int line_at(int i) const {
    const int t = (int)threadIdx.x;
    return m->along_k ? t / DEPTH + i * (SIDE * SIDE / DEPTH) : t % TILE;
  }
  __device__ inline int depth_at(int i) const {
    const int t = (int)threadIdx.x;
    return m->along_k ? t % DEPTH : t / TILE + i * (SIDE * SIDE / TILE);
  }
  __device__ inline void begin(const Matrix *matrix, int64_t g, int64_t first) {
    m = matrix;
    group = g;
    for (int i = 0; i < EACH; i++) {
      const int64_t l = first + line_at(i);
      const Spot outside = {0, OUTSIDE, 0};
      line[i] = l < m->line.n ? m->line.at(l) : outside;
    }
  }
  __device__ inline void load(int64_t k0, int64_t k_end, DM_SHARED_PTR(C) tile) const {
    for (int i = 0; i < EACH; i++) {
      const int depth = depth_at(i);
      const bool inside = k0 + depth < k_end;
      tile[depth * PITCH + line_at(i)] =
          inside ? m->load<C, T>(group, line[i], m->k.at(k0 + depth)) : C(0);
    }
  }
};

/* The tiled kernel: blockIdx.x is a tile, blockIdx.y a group, blockIdx.z a chunk of k. Each
   step loads two tiles of DEPTH k and adds EACH x EACH products per k. With several chunks the
   partial sums (n_chunk, groups, rows, columns) are stored in the compute type. */
template <class C, class T>
static __global__ void __launch_bounds__(SIDE *SIDE, 1) conv_tiles_kernel(Product p) {
  DM_SHARED(C, tile_a, DEPTH * PITCH);
  DM_SHARED(C, tile_b, DEPTH * PITCH);
  const int row = (int)threadIdx.x / SIDE, column = (int)threadIdx.x % SIDE;
  const int64_t n_down = (p.rows + TILE - 1) / TILE;
  const int64_t i0 = blockIdx.x % n_down * TILE, j0 = blockIdx.x / n_down * TILE;
  const int64_t from = blockIdx.z * p.chunk;
  const int64_t to = from + p.chunk < p.k ? from + p.chunk : p.k;
  for (int64_t g = blockIdx.y; g < p.groups; g += gridDim.y) {
    Bearer<C, T> a, b;
    a.begin(&p.a, g, i0);
    b.begin(&p.b, g, j0);
    C sum[EACH][EACH] = {};
    for (int64_t k0 = from; k0 < to; k0 += DEPTH) {
      a.load(k0, to, tile_a);
      b.load(k0, to, tile_b);
      __syncthreads();
      for (int l = 0; l < DEPTH; l++) {
        C x[EACH], y[EACH];
        for (int i = 0; i < EACH; i++) {
          x[i] = tile_a[l * PITCH + row + i * SIDE];
          y[i] = tile_b[l * PITCH + column + i * SIDE];
        }
        for (int i = 0; i < EACH; i++)
          for (int j = 0; j < EACH; j++) sum[i][j] += x[i] * y[j];
      }
      __syncthreads();
    }
    for (int j = 0; j < EACH; j++) {
      const int64_t c = j0 + column + j * SIDE, position = p.column_at(c);
      for (int i = 0; i < EACH; i++) {
        const int64_t r = i0 + row + i * SIDE;
        if (r >= p.rows || c >= p.columns) continue;
        const int64_t at = ((blockIdx.z * p.groups + g) * p.rows + r) * p.columns + c;
        if (p.n_chunk > 1) ((C *)p.part)[at] = sum[i][j];
        else p.template store<C, T>(g, r, position, sum[i][j]);
      }
    }
  }
}

/* Adds the chunks' sums of each output element, first to last, and stores the result with the
   bias. One thread per element. */
template <class C, class T> static __global__ void conv_sum_kernel(Product p) {
  for (int64_t i = dm_thread(); i < p.numel; i += dm_threads()) {
    C sum = C(0);
    for (int64_t z = 0; z < p.n_chunk; z++) sum += ((const C *)p.part)[z * p.numel + i];
    const int64_t line = i / p.columns;
    p.template store<C, T>(line / p.rows, line % p.rows, p.column_at(i % p.columns), sum);
  }
}

/* ---- few rows: groups of few channels, depthwise first of all ---- */

/* One thread per element of the output, for y and gx, where k is short. It loops over k as
   three nested numbers, without divisions. */
template <class C, class T> static __global__ void conv_each_kernel(Product p) {
  const int64_t n_b = p.b.k.n_bc / p.b.k.n_c, n_a = p.k / p.b.k.n_bc;
  for (int64_t i = dm_thread(); i < p.numel; i += dm_threads()) {
    /* The column is the fastest index: neighbouring threads then read neighbouring positions.
     */
    const int64_t column = i % p.columns, line = i / p.columns;
    const int64_t group = line / p.rows, row = line % p.rows;
    const Spot of_row = p.a.line.at(row), of_column = p.b.line.at(column);
    Spot ka = {0, 0, 0}, kb = {0, 0, 0};
    C sum = C(0);
    for (int64_t a = 0; a < n_a; a++) {
      ka.offset = a * p.a.k.step;
      kb.offset = a * p.b.k.step;
      for (int b = 0; b < n_b; b++) {
        ka.y = b * p.a.k.mul[0] + p.a.k.add[0];
        kb.y = b * p.b.k.mul[0] + p.b.k.add[0];
        for (int c = 0; c < p.b.k.n_c; c++) {
          ka.x = c * p.a.k.mul[1] + p.a.k.add[1];
          kb.x = c * p.b.k.mul[1] + p.b.k.add[1];
          sum += p.a.template load<C, T>(group, of_row, ka) *
                 p.b.template load<C, T>(group, of_column, kb);
        }
      }
    }
    p.template store<C, T>(group, row, p.column_at(column), sum);
  }
}

/* One block per element of the output, for gw, where k is all positions of all images: threads
   take every DM_THREADS-th k, and a tree in shared memory adds their sums. */
template <class C, class T>
static __global__ void __launch_bounds__(DM_THREADS) conv_whole_kernel(Product p) {
  DM_SHARED(C, sums, DM_THREADS);
  const int t = (int)threadIdx.x;
  for (int64_t i = blockIdx.x; i < p.numel; i += gridDim.x) {
    const int64_t column = i % p.columns, line = i / p.columns;
    const int64_t group = line / p.rows, row = line % p.rows;
    const Spot of_row = p.a.line.at(row), of_column = p.b.line.at(column);
    C sum = C(0);
    for (int64_t k = t; k < p.k; k += DM_THREADS)
      sum += p.a.template load<C, T>(group, of_row, p.a.k.at(k)) *
             p.b.template load<C, T>(group, of_column, p.b.k.at(k));
    sums[t] = sum;
    __syncthreads();
    for (int half = DM_THREADS / 2; half > 0; half /= 2) {
      if (t < half) sums[t] = sums[t] + sums[t + half];
      __syncthreads();
    }
    if (t == 0) p.template store<C, T>(group, row, p.column_at(column), sums[0]);
    __syncthreads();
  }
}

/* ---- which product it is ---- */

/* Builds a ramp of sizes (n_a, n_b, n_c), with divisors where 31 bits are enough. */
static Ramp ramp(int64_t n_a, int64_t n_b, int64_t n_c, int64_t step) {
  Ramp r = {n_a * n_b * n_c, n_b * n_c, n_c, n_a * n_b * n_c > INT32_MAX, {}, {}, step, {}, {}};
  if (!r.wide) {
    r.by_bc = dm_divisor(r.n_bc > 0 ? r.n_bc : 1);
    r.by_c = dm_divisor(r.n_c > 0 ? r.n_c : 1);
  }
  return r;
}
static void ramp_scale(Ramp *r, int64_t mul_y, int64_t mul_x, int64_t add_y, int64_t add_x) {
  r->mul[0] = (int)mul_y;
  r->mul[1] = (int)mul_x;
  r->add[0] = (int)add_y;
  r->add[1] = (int)add_x;
}

/* Describes an operand as a matrix over an image of height x width; image rows and columns
   start out at every position (`every` 1). */
static Matrix matrix(const dm_ConvOperand *o, int64_t height, int64_t width) {
  Matrix m = {};
  m.data = o->data;
  m.size[0] = (int)height;
  m.size[1] = (int)width;
  m.every[0] = m.every[1] = dm_divisor(1);
  m.step[0] = o->step[2];
  m.step[1] = o->step[3];
  return m;
}

/* The weight as the left operand: for y its lines are output channels and k is (c, r, s); for
   gx its transpose, with lines c and k (o, r, s). */
static Matrix weight_matrix(const dm_Conv *c, int64_t lines, int64_t line_step, int64_t deep,
                            int64_t deep_step) {
  const dm_ConvDims *d = &c->d;
  Matrix m = matrix(&c->w, d->r, d->s);
  m.line = ramp(lines, 1, 1, line_step);
  m.k = ramp(deep, d->r, d->s, deep_step);
  ramp_scale(&m.k, 1, 1, 0, 0);
  m.group_step = d->o / d->groups * c->w.step[0];
  m.along_k = true;
  return m;
}

/* Whether neighbouring channels are contiguous and the kernel is 1 x 1: then neighbours along
   k, or along the lines of gw, are channels of one position. */
static bool are_positions(const dm_ConvOperand *o, const dm_ConvDims *d) {
  return o->step[1] == 1 && d->r * d->s == 1;
}

/* Sets the output to images of so many positions each. */
static void write_image(Product *p, const dm_ConvOperand *o, int64_t positions) {
  p->out = o->data;
  p->plane = positions;
  p->image_step = o->step[0];
  p->position_step = o->step[3];
  p->row_step = o->step[1];
  p->group_step = p->rows * o->step[1];
}

/* Forward: y[n,o,p,q] = sum over c, r, s of w[o,c,r,s] x[n, c, p stride - pad + r dil, q
   stride - pad + s dil]. */
static Product forward(const dm_Conv *c) {
  const dm_ConvDims *d = &c->d;
  const int64_t o = d->o / d->groups, each = d->c / d->groups;
  Product p = {};
  p.a = weight_matrix(c, o, c->w.step[0], each, c->w.step[1]);
  p.b = matrix(&c->x, d->h, d->w);
  p.b.line = ramp(d->n, d->p, d->q, c->x.step[0]);
  ramp_scale(&p.b.line, d->stride[0], d->stride[1], -d->pad[0], -d->pad[1]);
  p.b.k = ramp(each, d->r, d->s, c->x.step[1]);
  ramp_scale(&p.b.k, d->dil[0], d->dil[1], 0, 0);
  p.b.group_step = each * c->x.step[1];
  p.b.along_k = are_positions(&c->x, d);
  p.rows = o;
  write_image(&p, &c->y, d->p * d->q);
  p.bias = c->bias;
  p.bias_step = c->bias_step;
  return p;
}

/* Input gradient: gx[n,c,h,w] = sum over o, r, s of w[o,c,r,s] gy[n, o, (h + pad - r dil) /
   stride, ...], where the division has no remainder. */
static Product input_gradient(const dm_Conv *c) {
  const dm_ConvDims *d = &c->d;
  const int64_t o = d->o / d->groups, each = d->c / d->groups;
  Product p = {};
  p.a = weight_matrix(c, each, c->w.step[1], o, c->w.step[0]);
  p.b = matrix(&c->y, d->p, d->q);
  p.b.every[0] = dm_divisor(d->stride[0]);
  p.b.every[1] = dm_divisor(d->stride[1]);
  p.b.line = ramp(d->n, d->h, d->w, c->y.step[0]);
  ramp_scale(&p.b.line, 1, 1, d->pad[0], d->pad[1]);
  p.b.k = ramp(o, d->r, d->s, c->y.step[1]);
  ramp_scale(&p.b.k, -d->dil[0], -d->dil[1], 0, 0);
  p.b.group_step = o * c->y.step[1];
  p.b.along_k = are_positions(&c->y, d);
  p.rows = each;
  write_image(&p, &c->x, d->h * d->w);
  return p;
}

/* Weight gradient: gw[o,c,r,s] = sum over n, p, q of gy[n,o,p,q] x[n, c, p stride - pad + r
   dil, ...]. */
static Product weight_gradient(const dm_Conv *c) {
  const dm_ConvDims *d = &c->d;
  const int64_t o = d->o / d->groups, each = d->c / d->groups;
  Product p = {};
  p.a = matrix(&c->y, d->p, d->q);
  p.a.line = ramp(o, 1, 1, c->y.step[1]);
  p.a.k = ramp(d->n, d->p, d->q, c->y.step[0]);
  ramp_scale(&p.a.k, 1, 1, 0, 0);
  p.a.group_step = o * c->y.step[1];
  p.a.along_k = c->y.step[1] != 1;
  p.b = matrix(&c->x, d->h, d->w);
  p.b.line = ramp(each, d->r, d->s, c->x.step[1]);
  ramp_scale(&p.b.line, d->dil[0], d->dil[1], 0, 0);
  p.b.k = ramp(d->n, d->p, d->q, c->x.step[0]);
  ramp_scale(&p.b.k, d->stride[0], d->stride[1], -d->pad[0], -d->pad[1]);
  p.b.group_step = each * c->x.step[1];
  p.b.along_k = !are_positions(&c->x, d);
  p.rows = o;
  p.plane = p.row_step = each * d->r * d->s;
  p.position_step = 1;
  p.group_step = o * p.plane;
  p.out = c->w.data;
  return p;
}

/* ---- launching ---- */

/* Chooses the number of chunks of k and their length. */
static void cut(Product *p, int64_t n_tile) {
  const int64_t wanted = ENOUGH_TILES / n_tile, most = p->k / LEAST_PIECE;
  const int64_t n = wanted < most ? wanted : most;
  p->chunk = n > 1 ? dm_ceil_div(p->k, n) : p->k > 0 ? p->k : 1;
  p->n_chunk = n > 1 ? dm_ceil_div(p->k, p->chunk) : 1;
}

/* Launches the tiled kernel, and the sum of the chunks where there are several. */
template <class C, class T> static dm_status launch_tiles(Product *p, int64_t n_tile) {
  const unsigned groups = (unsigned)(p->groups < 65535 ? p->groups : 65535);
  const int64_t bytes = p->n_chunk * p->numel * (int64_t)sizeof(C);
  const dim3 grid((unsigned)n_tile, groups, (unsigned)p->n_chunk);
  if (p->n_chunk > 1) DM_TRY(dm_cuda_scratch(bytes, &p->part));
  dm_status st = dm_launch((conv_tiles_kernel<C, T>), grid, SIDE * SIDE, 0, *p);
  if (p->n_chunk > 1 && st == DM_OK)
    st = dm_launch((conv_sum_kernel<C, T>), dm_blocks(p->numel), DM_THREADS, 0, *p);
  dm_cuda_scratch_free(p->part, bytes);
  return st;
}

/* Chooses the kernel: tiles for FEW_ROWS rows and more; else a block per element for gw, whose
   k is long, or a thread per element. */
template <class C, class T> static dm_status launch(Product *p, bool k_is_positions) {
  const int64_t n_tile = dm_ceil_div(p->rows, TILE) * dm_ceil_div(p->columns, TILE);
  const int64_t n_block = p->numel < (INT64_C(1) << 30) ? p->numel : INT64_C(1) << 30;
  if (p->rows >= FEW_ROWS) {
    cut(p, n_tile * p->groups);
    return n_tile <= INT32_MAX
               ? launch_tiles<C, T>(p, n_tile)
               : dm_fail(DM_EARG, "conv2d: an output of %lld elements is too large for cuda",
                         (long long)p->numel);
  }
  return k_is_positions
             ? dm_launch((conv_whole_kernel<C, T>), (unsigned)n_block, DM_THREADS, 0, *p)
             : dm_launch((conv_each_kernel<C, T>), dm_blocks(p->numel), DM_THREADS, 0, *p);
}

/* Fails for sides or kernel extents whose positions do not fit 32 bits. */
static dm_status check_reach(const dm_ConvDims *d) {
  const int64_t sizes[] = {d->h, d->w, d->dil[0] * d->r, d->dil[1] * d->s};
  for (int64_t n : sizes)
    if (n > MAX_REACH)
      return dm_fail(DM_EARG,
                     "conv2d: a side, or a kernel that spans, %lld is too large for "
                     "cuda, wanted at most %d",
                     (long long)n, (int)MAX_REACH);
  return DM_OK;
}

extern "C" dm_status dm_cuda_conv(const dm_Conv *c) {
  DM_TRY(check_reach(&c->d));
  Product p = c->kind == DM_CONV_FORWARD ? forward(c)
              : c->kind == DM_CONV_INPUT ? input_gradient(c)
                                         : weight_gradient(c);
  p.groups = c->d.groups;
  p.columns = p.b.line.n;
  if (!p.b.line.wide) p.by_plane = dm_divisor(p.plane > 0 ? p.plane : 1);
  p.k = p.a.k.n;
  p.numel = p.groups * p.rows * p.columns;
  if (p.numel == 0) return DM_OK;
  DM_FLOAT_TYPES(c->dtype, return (launch<C, T>(&p, c->kind == DM_CONV_WEIGHT)););
}

/* ---- the ops ---- */

/* Describes a tensor by its steps. With `last`, dims of size 1 get the step of the
   channels-last layout too, since libraries recognise a layout by its steps. */
static dm_ConvOperand operand(const dm_Tensor *t, bool last) {
  dm_ConvOperand o = {dm_tensor_data(t), {}};
  o.step[0] = t->numel; /* one image without a batch dim: the step to the next one */
  for (int i = 0; i < t->ndim; i++) o.step[i + 4 - t->ndim] = t->stride[i];
  if (last) dm_channels_last_strides(t->shape, o.step);
  return o;
}

static void set_operand(dm_Conv *c, dm_ConvKind which, const dm_Tensor *t, bool last) {
  (which == DM_CONV_FORWARD ? c->y : which == DM_CONV_INPUT ? c->x : c->w) = operand(t, last);
}

/* y += bias, where the bias (O) is broadcast over positions. */
static dm_status add_bias(dm_Tensor *y, const dm_Tensor *bias) {
  const int64_t shape[3] = {y->shape[y->ndim - 3], 1, 1}, stride[3] = {bias->stride[0], 0, 0};
  dm_Tensor b = dm_view_of(bias, 3, shape, stride, bias->offset);
  return dm_cuda_add(y, y, &b);
}

/* Returns t in channels last. The copy is kept with t (t->last) for later calls, and is
   written again if `afresh` or if t has changed since. Only the default stream keeps copies;
   other streams, which nothing orders after it, make copies of their own. */
static dm_status kept_last(dm_Tensor *t, bool afresh, dm_Tensor **out) {
  if (dm_tensor_is_channels_last(t) || dm_thread_state()->stream.handle)
    return dm_last_new(t, out);
  dm_Meta m = dm_meta_of(t);
  m.channels_last = true;
  afresh |= !t->last || t->last->storage->version != t->storage->version;
  if (!t->last) DM_TRY(dm_tensor_new_meta(&m, &t->last));
  if (afresh) {
    const dm_status st = dm_cuda_copy(t->last, t);
    if (st != DM_OK) {
      dm_tensor_unref(&t->last);
      return st;
    }
  }
  t->last->storage->version = t->storage->version;
  *out = dm_tensor_ref(t->last);
  return DM_OK;
}

/* Input i, an image or a gradient, dense in the wanted layout. An image that arrives channels
   first is transposed once, by the forward pass, which keeps the copy for the weight's
   gradient. */
static dm_status image_new(const dm_Call *c, dm_ConvKind kind, int i, bool last,
                           dm_Tensor **out) {
  dm_Tensor *t = c->in[i];
  if (!last) return dm_dense_new(t, out);
  if (kind == DM_CONV_FORWARD && c->recorded) return kept_last(t, true, out);
  if (kind == DM_CONV_FORWARD || i == 0) return dm_last_new(t, out);
  const dm_status st = kept_last(t, false, out);
  dm_tensor_unref(&t->last);
  return st;
}

/* Convolution by cuDNN, for all dtypes but float64; *taken says whether it ran. The weight or
   its gradient has the layout of the images. A forward pass that is recorded for backward
   writes the weight's channels-last copy again each time, so that every training step does the
   same work; gx and forward passes without gradients use the kept copy. Where no engine adds
   the bias, our own kernel does, to sums that are rounded already, as in PyTorch. */
static dm_status by_library(dm_Call *call, dm_Conv c, dm_Tensor *weight, bool last,
                            bool *taken) {
  dm_Tensor *w = NULL, *out = call->out[0];
  const bool writes = weight == out;
  dm_Meta m = dm_meta_of(weight);
  dm_status st = DM_OK;
  if (c.dtype == DM_F64) return DM_OK;
  m.channels_last = true;
  if (!last) DM_TRY(dm_dense_new(weight, &w));
  else if (!writes) DM_TRY(kept_last(weight, c.kind == DM_CONV_FORWARD && call->recorded, &w));
  else if (dm_tensor_is_channels_last(weight)) w = dm_tensor_ref(weight);
  else DM_TRY(dm_tensor_new_meta(&m, &w));
  set_operand(&c, DM_CONV_WEIGHT, w, last);
  const bool has_bias = c.bias != NULL, done = has_bias && dm_dnn_conv_bias(&c);
  *taken = done || dm_dnn_conv(&c);
  if (*taken && writes && w != weight) st = dm_cuda_copy(weight, w);
  if (*taken && has_bias && !done) st = add_bias(out, call->in[2]);
  dm_tensor_unref(&w);
  return st;
}

/* The same by the kernels above, which write a weight's gradient in rows. */
static dm_status by_own_kernel(dm_Conv c, dm_ConvKind kind, dm_Tensor *out) {
  dm_Tensor *rows = NULL;
  dm_Meta m = dm_meta_of(out);
  if (kind != DM_CONV_WEIGHT || dm_tensor_is_contiguous(out)) return dm_cuda_conv(&c);
  m.channels_last = false;
  DM_TRY(dm_tensor_new_meta(&m, &rows));
  set_operand(&c, DM_CONV_WEIGHT, rows, false);
  dm_status st = dm_cuda_conv(&c);
  if (st == DM_OK) st = dm_cuda_copy(out, rows);
  dm_tensor_unref(&rows);
  return st;
}

/* Runs one of the three convolutions: brings the inputs into the wanted layout, asks cuDNN,
   and otherwise uses the kernels above. */
static dm_status convolve(dm_Call *call, dm_ConvKind kind, dm_ConvDims d) {
  dm_Tensor *own[2] = {NULL}, *out = call->out[0];
  const dm_Tensor *bias = call->n_in > 2 ? call->in[2] : NULL;
  const bool last = dm_conv_is_last(call->in[0], &d);
  /* The inputs are (x, w) for y, (gy, w) for gx and (gy, x) for gw. */
  const dm_ConvKind first = kind == DM_CONV_FORWARD ? DM_CONV_INPUT : DM_CONV_FORWARD;
  const dm_ConvKind second = kind == DM_CONV_WEIGHT ? DM_CONV_INPUT : DM_CONV_WEIGHT;
  dm_Conv c = {};
  dm_status st = DM_OK;
  bool taken = false;
  if (out->numel == 0) return DM_OK;
  c.kind = kind;
  c.d = d;
  c.dtype = (dm_DType)out->dtype;
  if (kind == DM_CONV_FORWARD && call->recorded) {
    c.wants_gx = call->in[0]->flags & DM_T_REQUIRES_GRAD;
    c.wants_gw = call->in[1]->flags & DM_T_REQUIRES_GRAD;
  }
  if (bias) {
    c.bias = dm_tensor_data(bias);
    c.bias_step = bias->stride[0];
  }
  st = image_new(call, kind, 0, last, &own[0]);
  if (st == DM_OK && second == DM_CONV_WEIGHT) own[1] = dm_tensor_ref(call->in[1]);
  else if (st == DM_OK) st = image_new(call, kind, 1, last, &own[1]);
  if (st == DM_OK) {
    set_operand(&c, first, own[0], last);
    set_operand(&c, second, own[1], last && second != DM_CONV_WEIGHT);
    set_operand(&c, kind, out, last && kind != DM_CONV_WEIGHT);
    st = by_library(call, c, kind == DM_CONV_WEIGHT ? out : own[1], last, &taken);
  }
  if (st == DM_OK && !taken) st = dm_plan_fallback(call->op->name);
  if (st == DM_OK && !taken) st = by_own_kernel(c, kind, out);
  for (int i = 0; i < 2; i++) dm_tensor_unref(&own[i]);
  return st;
}

/* in: x and w, gy and w, or gy and x, and in the forward maybe a bias. */
DM_CUDA_KERNEL(conv2d_cuda) { return convolve(c, DM_CONV_FORWARD, dm_conv2d_dims(c)); }
DM_CUDA_KERNEL(conv2d_dx_cuda) { return convolve(c, DM_CONV_INPUT, dm_conv2d_dx_dims(c)); }
DM_CUDA_KERNEL(conv2d_dw_cuda) { return convolve(c, DM_CONV_WEIGHT, dm_conv2d_dw_dims(c)); }
