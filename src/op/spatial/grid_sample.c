/* grid_sample and affine_grid (Jaderberg et al. 2015, spatial transformer networks),
   composed of other ops, which gives them gradients of any order.

   x (N, C, H, W) or (N, C, D, H, W) is sampled at the points of a grid with
   coordinates in -1 .. 1, where coordinate 0 of a point is x, along the last dim. x
   is reshaped to rows (N H W, C), the C values of one position. Along every axis a
   point reads 1 (nearest), 2 (bilinear) or 4 (bicubic) taps, neighbouring positions
   with a weight each; the result is the sum over all combinations of taps of row *
   product of weights. Rows are gathered by index_get, so the gradient of x is a
   scatter-add of gy * weight and the gradient of the grid flows through the weights.
   Bilinear samples of planes on the CPU are a kernel of their own, sample_planes.c: its
   operands are the positions after padding, and its gradient under create_graph is made
   of the taps here. Padding modes as in PyTorch: zeros reads a row of zeros outside,
   border clamps the position, reflection mirrors it at the borders. */
#include "base/error.h"
#include "engine/state.h"
#include "op/pointwise/pointwise.h"
#include "op/sort/order.h"

typedef enum Mode { BILINEAR, NEAREST, BICUBIC } Mode;
typedef enum Padding { ZEROS, BORDER, REFLECTION } Padding;

/* The taps along one axis; every tensor is (N, points). */
typedef struct Axis {
  int64_t size;
  dm_Tensor *at[4];     /* positions, int64 */
  dm_Tensor *inside[4]; /* for padding with zeros: whether the tap is inside; else NULL */
  dm_Tensor *weight[4]; /* NULL: 1 */
} Axis;

/* One call: the options, the taps of every axis, and the sum over the combinations
   of taps so far. */
typedef struct Sampler {
  Mode mode;
  Padding padding;
  bool align;
  int dims, taps, base;
  Axis axis[3];
  dm_Tensor *rows; /* (N * positions, C), then a row of zeros for padding with zeros */
  int64_t n_rows;  /* the number of rows without the row of zeros */
  dm_Tensor *sum;  /* (N, points, C); owned */
} Sampler;

static dm_Tensor *x_both(dm_X *x, dm_Tensor *a, dm_Tensor *b) {
  return dm_x(x, DM_OP_logical_and, NULL, 2, a, b);
}
/* a where low < a < high, else v, through which no gradient flows. */
static dm_Tensor *x_between(dm_X *x, dm_Tensor *a, double low, double high, double v) {
  dm_Tensor *held = x_both(x, x_test(x, DM_OP_gt, a, low), x_test(x, DM_OP_lt, a, high));
  return x_where(x, held, a, dm_x_number(x, v));
}

/* ---- coordinates ---- */

/* Converts a coordinate in -1 .. 1 to a position in 0 .. size - 1. With
   align_corners -1 and 1 are the centres of the first and last elements, (p + 1)
   (size - 1) / 2; else their outer edges, ((p + 1) size - 1) / 2. */
static dm_Tensor *unnormalised(dm_X *x, dm_Tensor *p, const Sampler *s, int64_t size) {
  p = x_shift(x, p, 1);
  if (s->align) return x_scale(x, p, (double)(size - 1) / 2);
  return x_scale(x, x_shift(x, x_scale(x, p, (double)size), -1), 0.5);
}

/* p clamped to 0 .. size - 1; a clamped p has no gradient. */
static dm_Tensor *clipped(dm_X *x, dm_Tensor *p, int64_t size) {
  const double last = (double)(size - 1);
  dm_Tensor *low = x_where(x, x_test(x, DM_OP_gt, p, 0), p, dm_x_number(x, 0));
  return x_where(x, x_test(x, DM_OP_lt, low, last), low, dm_x_number(x, last));
}

/* p mirrored at both borders as often as needed: the borders are the centres of the
   outer elements (align) or their outer edges. */
static dm_Tensor *reflected(dm_X *x, dm_Tensor *p, const Sampler *s, int64_t size) {
  const double low = s->align ? 0 : -0.5, span = (double)(s->align ? size - 1 : size);
  if (span == 0) return x->st == DM_OK ? x_zeros_like(x, p) : NULL;
  p = x_shift(x, p, -low);
  p = x_where(x, x_test(x, DM_OP_lt, p, 0), x_unary(x, DM_OP_neg, p), p);
  dm_Tensor *length = dm_x_number(x, span);
  dm_Tensor *extra = dm_x(x, DM_OP_fmod, NULL, 2, p, length);
  dm_Tensor *flips = x_unary(x, DM_OP_floor, x_div(x, p, length));
  dm_Tensor *odd =
      x_test(x, DM_OP_ne, dm_x(x, DM_OP_fmod, NULL, 2, flips, dm_x_number(x, 2)), 0);
  dm_Tensor *back = x_shift(x, x_unary(x, DM_OP_neg, extra), span);
  return x_shift(x, x_where(x, odd, back, extra), low);
}

/* p after padding: mirrored or clamped into the axis, or, for zeros, limited to a
   little outside, where every tap is outside as well. NaN becomes a position inside,
   or outside for zeros, so that the conversion to int64 is defined. */
static dm_Tensor *after_padding(dm_X *x, dm_Tensor *p, const Sampler *s, int64_t size) {
  if (s->padding == ZEROS) return x_between(x, p, -4, (double)size + 3, -4);
  if (s->padding == REFLECTION) p = reflected(x, p, s, size);
  return clipped(x, p, size);
}

/* ---- taps ---- */

/* Sets tap k of the axis: its position as int64, made valid by the padding, and its
   weight. */
static void set_tap(dm_X *x, const Sampler *s, Axis *a, int k, dm_Tensor *at,
                    dm_Tensor *weight) {
  const double last = (double)(a->size - 1);
  if (s->padding == ZEROS)
    a->inside[k] = x_both(x, x_test(x, DM_OP_ge, at, 0), x_test(x, DM_OP_le, at, last));
  else at = s->mode == BICUBIC ? after_padding(x, at, s, a->size) : clipped(x, at, a->size);
  a->at[k] = x->st == DM_OK ? x_cast(x, at, DM_I64) : NULL;
  a->weight[k] = weight;
}

/* The cubic convolution kernel (Keys 1981) with a = -3/4 as in PyTorch: cubic_near
   for distances up to 1, cubic_far for distances from 1 to 2. Horner's scheme with
   constants c. */
static dm_Tensor *polynomial(dm_X *x, dm_Tensor *t, const double c[4]) {
  dm_Tensor *y = x_shift(x, x_scale(x, t, c[0]), c[1]);
  for (int i = 2; i < 4; i++) y = x_shift(x, x_mul(x, y, t), c[i]);
  return y;
}
static dm_Tensor *cubic_near(dm_X *x, dm_Tensor *t) {
  return polynomial(x, t, (const double[]){1.25, -2.25, 0, 1});
}
static dm_Tensor *cubic_far(dm_X *x, dm_Tensor *t) {
  return polynomial(x, t, (const double[]){-0.75, 3.75, -6, 3});
}
static dm_Tensor *from_one(dm_X *x, dm_Tensor *t) {
  return x_shift(x, x_unary(x, DM_OP_neg, t), 1);
}

/* The positions (N, points) on axis k of the grid's points (N, points, dims). */
static dm_Tensor *positions_on(dm_X *x, const Sampler *s, int k, dm_Tensor *grid) {
  return unnormalised(x, dm_x(x, DM_OP_select, &(int64_t[2]){2, k}, 1, grid), s,
                      s->axis[k].size);
}

/* Sets all taps of an axis for the positions p (N, points): nearest rounds,
   bilinear weighs floor(p) and the next position by 1 - t and t with t = p -
   floor(p), bicubic weighs floor(p) - 1 .. floor(p) + 2. */
static void set_axis(dm_X *x, const Sampler *s, Axis *a, dm_Tensor *p) {
  if (s->mode != BICUBIC || s->padding == ZEROS) p = after_padding(x, p, s, a->size);
  if (s->mode == NEAREST) {
    set_tap(x, s, a, 0, x_unary(x, DM_OP_round, p), NULL);
    return;
  }
  dm_Tensor *low = x_unary(x, DM_OP_floor, p), *t = x_sub(x, p, low), *rest = from_one(x, t);
  if (s->mode == BILINEAR) {
    set_tap(x, s, a, 0, low, rest);
    set_tap(x, s, a, 1, x_shift(x, low, 1), t);
    return;
  }
  set_tap(x, s, a, 0, x_shift(x, low, -1), cubic_far(x, x_shift(x, t, 1)));
  set_tap(x, s, a, 1, low, cubic_near(x, t));
  set_tap(x, s, a, 2, x_shift(x, low, 1), cubic_near(x, rest));
  set_tap(x, s, a, 3, x_shift(x, low, 2), cubic_far(x, x_shift(x, rest, 1)));
}

/* ---- sums ---- */

/* The part of a tap that is known after some axes, from the first dim on: the row
   index, whether it is inside and the product of weights; NULL: all inside, weight
   1. */
typedef struct Tap {
  dm_Tensor *row, *inside, *weight;
} Tap;

/* The rows of a combination of taps as indices (N, points). */
static dm_Tensor *row_of(dm_X *x, const Sampler *s, Tap tap) {
  dm_Tensor *row = x_add(x, tap.row, x_whole(x, s->base));
  return tap.inside ? x_where(x, tap.inside, row, x_whole(x, s->n_rows + s->base)) : row;
}

/* Adds one combination of taps to the sum: rows gathered (N, points, C) times
   weight. Its intermediate tensors are freed here, so that of the 16 (64 in 3-d)
   combinations of bicubic only one is alive at a time. */
static void add_tap(dm_X *x, Sampler *s, Tap tap) {
  if (x->st != DM_OK) return;
  dm_X step = DM_X_INIT;
  dm_Tensor *v = dm_x(&step, DM_OP_index_get, &(int64_t){0}, 2, s->rows, row_of(&step, s, tap));
  if (tap.weight)
    v = x_mul(&step, v, dm_x(&step, DM_OP_unsqueeze, &(int64_t){-1}, 1, tap.weight));
  if (s->sum) v = x_add(&step, s->sum, v);
  if (step.st == DM_OK) {
    dm_tensor_unref(&s->sum);
    s->sum = dm_tensor_ref(v);
  }
  x->st = step.st;
  dm_x_free(&step);
}

/* op(a, b), or the one that is not NULL. */
static dm_Tensor *x_with(dm_X *x, int op, dm_Tensor *a, dm_Tensor *b) {
  return a && b ? dm_x(x, op, NULL, 2, a, b) : a ? a : b;
}

/* `before` and tap k of an axis: row = row * size + position. */
static Tap next_tap(dm_X *x, const Axis *a, int k, Tap before) {
  dm_Tensor *first = dm_x(x, DM_OP_mul, NULL, 2, before.row, x_whole(x, a->size));
  return (Tap){x_add(x, first, a->at[k]),
               x_with(x, DM_OP_logical_and, before.inside, a->inside[k]),
               x_with(x, DM_OP_mul, before.weight, a->weight[k])};
}

/* Recursion over the axes from the first dim to the last: every combination of taps. */
static void add_taps(dm_X *x, Sampler *s, int axis, Tap before) {
  if (axis < 0) {
    add_tap(x, s, before);
    return;
  }
  for (int k = 0; k < s->taps && x->st == DM_OK; k++)
    add_taps(x, s, axis - 1, next_tap(x, &s->axis[axis], k, before));
}

/* ---- grid_sample ---- */

/* x (N, C, H, W) with grid (N, h, w, 2), or x (N, C, D, H, W) with grid (N, d, h, w,
   3). */
static dm_status check(const dm_Call *c) {
  const dm_Tensor *t = c->in[0], *grid = c->in[1];
  const int dims = t->ndim - 2;
  DM_TRY(dm_check_float(c, t, "x"));
  DM_TRY(dm_check_float(c, grid, "the grid"));
  if (dims != 2 && dims != 3)
    return dm_fail(DM_EARG, "grid_sample: x has shape %s, wanted (N,C,H,W) or (N,C,D,H,W)",
                   DM_SHAPE(t));
  if (grid->ndim != t->ndim || grid->shape[0] != t->shape[0] || grid->shape[dims + 1] != dims)
    return dm_fail(DM_EARG,
                   "grid_sample: the grid has shape %s, wanted %lld of %d dims with %d numbers "
                   "for each point",
                   DM_SHAPE(grid), (long long)t->shape[0], dims, dims);
  for (int d = 2; d < t->ndim; d++)
    if (t->shape[d] < 1)
      return dm_fail(DM_EARG, "grid_sample: x has shape %s, nothing to sample", DM_SHAPE(t));
  return DM_OK;
}

/* Reshapes x (N, C, ...) to rows (N * positions, C), with a row of zeros at the end
   for padding with zeros. */
static void set_rows(dm_X *x, Sampler *s, dm_Tensor *t) {
  const int64_t n = t->shape[0], c = t->shape[1], positions = dm_numel(s->dims, t->shape + 2);
  s->n_rows = n * positions;
  dm_Tensor *planes = x_reshape(x, t, 3, (int64_t[]){n, c, positions});
  s->rows = x_reshape(x, x_transpose(x, planes, 1, 2), 2, (int64_t[]){s->n_rows, c});
  if (s->padding != ZEROS || x->st != DM_OK) return;
  dm_Tensor *zeros = x_zeros(x, 2, (int64_t[]){1, c}, t);
  s->rows = dm_x(x, DM_OP_cat, &(int64_t){0}, 2, s->rows, zeros);
}

/* The indices of the images, 0 .. N - 1, as (N, 1): the first factor of a row's
   index. */
static dm_Tensor *image_indices(dm_X *x, int64_t n, dm_Device dev) {
  int64_t *at;
  dm_Tensor *t = dm_x_positions(x, n, &at);
  for (int64_t i = 0; t && i < n; i++) at[i] = i;
  return x_reshape(x, dm_x_there(x, t, dev), 2, (int64_t[]){n, 1});
}

/* The result (N, C, points) of bilinear samples of t (N, C, H, W) at the points of the grid
   (N, points, 2), on the CPU. The kernel pads with zeros itself. */
static dm_Tensor *sampled_planes(dm_X *x, const Sampler *s, dm_Tensor *t, dm_Tensor *grid) {
  dm_Tensor *at[2];
  for (int k = 0; k < 2; k++) {
    at[k] = positions_on(x, s, k, grid);
    if (s->padding != ZEROS) at[k] = after_padding(x, at[k], s, s->axis[k].size);
    at[k] = x_unary(x, DM_OP_contiguous, at[k]);
  }
  const dm_SamplePlanesAttr a = {s->padding == ZEROS};
  return dm_x(x, DM_OP_sample_planes, &a, 3, x_unary(x, DM_OP_contiguous, t), at[0], at[1]);
}

/* The result (N, points, C) as a sum over combinations of taps. */
static dm_Tensor *sampled_taps(dm_X *x, Sampler *s, dm_Tensor *t, dm_Tensor *grid) {
  for (int k = 0; k < s->dims && x->st == DM_OK; k++)
    set_axis(x, s, &s->axis[k], positions_on(x, s, k, grid));
  set_rows(x, s, t);
  dm_Tensor *images = image_indices(x, t->shape[0], t->device);
  if (x->st == DM_OK) add_taps(x, s, s->dims - 1, (Tap){images, NULL, NULL});
  if (x->st == DM_OK) return dm_x_own(x, s->sum);
  dm_tensor_unref(&s->sum);
  return NULL;
}

/* Computes in float32 (float64 if an operand is) and rounds to x's dtype at the end.
   The result (N, C, h, w) is made contiguous. */
dm_status grid_sample_compose(dm_Call *c, dm_X *x) {
  static const int taps[] = {2, 1, 4};
  const dm_GridSampleAttr *a = DM_ATTR(dm_GridSampleAttr, c);
  dm_Tensor *t = c->in[0], *grid = c->in[1];
  DM_TRY(check(c));
  const dm_DType wide = t->dtype == DM_F64 || grid->dtype == DM_F64 ? DM_F64 : DM_F32;
  Sampler s = {.mode = (Mode)a->mode,
               .padding = (Padding)a->padding_mode,
               .align = a->align_corners != 0,
               .dims = t->ndim - 2,
               .taps = taps[a->mode],
               .base = c->base};
  const int64_t n = t->shape[0], points = dm_numel(s.dims, grid->shape + 1);
  dm_Tensor *at = x_cast(x, x_reshape(x, grid, 3, (int64_t[]){n, points, s.dims}), wide);
  for (int k = 0; k < s.dims; k++) s.axis[k].size = t->shape[t->ndim - 1 - k];
  dm_Tensor *wider = x_cast(x, t, wide);
  DM_TRY(x->st);
  const bool planes = t->device.type == DM_CPU && s.dims == 2 && s.mode == BILINEAR;
  dm_Tensor *y = planes ? sampled_planes(x, &s, wider, at)
                        : x_transpose(x, sampled_taps(x, &s, wider, at), 1, 2);
  int64_t shape[DM_MAX_DIM] = {n, t->shape[1]};
  for (int d = 2; d < t->ndim; d++) shape[d] = grid->shape[d - 1];
  y = x_cast(x, y, (dm_DType)t->dtype);
  c->out[0] = x_unary(x, DM_OP_contiguous, x_reshape(x, y, t->ndim, shape));
  return x->st;
}

/* The gradients of sample_planes composed of the taps: gy * weight is added to the rows that
   were read, and a position moves the weights of its axis, -1 and 1 times gy . row. */
static void sample_planes_composed(dm_Grad *g, bool zeros) {
  dm_X *x = g->x;
  dm_Tensor *t = g->in[0], *gy = x_transpose(x, g->gy[0], 1, 2), *gp[2] = {NULL, NULL};
  const int64_t n = t->shape[0], c = t->shape[1], height = t->shape[2], width = t->shape[3];
  Sampler s = {.padding = zeros ? ZEROS : BORDER, .taps = 2, .base = dm_thread_state()->base};
  s.dims = 2, s.axis[0].size = width, s.axis[1].size = height;
  for (int k = 0; k < 2; k++) set_axis(x, &s, &s.axis[k], g->in[1 + k]);
  set_rows(x, &s, t);
  const Tap images = {image_indices(x, n, t->device), NULL, NULL};
  dm_Tensor *gx = x->st == DM_OK ? x_zeros_like(x, s.rows) : NULL;
  for (int k = 0; k < 4 && x->st == DM_OK; k++) {
    const int at[2] = {k % 2, k / 2};
    const Tap tap = next_tap(x, &s.axis[0], at[0], next_tap(x, &s.axis[1], at[1], images));
    dm_Tensor *row = row_of(x, &s, tap), *flat = x_flat(x, row);
    dm_Tensor *part = x_mul(x, gy, dm_x(x, DM_OP_unsqueeze, &(int64_t){-1}, 1, tap.weight));
    if (x->st != DM_OK) return;
    part = x_reshape(x, part, 2, (int64_t[]){flat->numel, c});
    gx = dm_x(x, DM_OP_index_add, &(dm_IndexAddAttr){0, 1}, 3, gx, flat, part);
    dm_Tensor *v = x_mul(x, gy, dm_x(x, DM_OP_index_get, &(int64_t){0}, 2, s.rows, row));
    v = x_sum(x, v, (dm_Ints){1, {-1}}, false);
    for (int d = 0; d < 2; d++) {
      dm_Tensor *slope = x_mul(x, v, s.axis[1 - d].weight[at[1 - d]]);
      if (gp[d]) gp[d] = dm_x(x, at[d] ? DM_OP_add : DM_OP_sub, NULL, 2, gp[d], slope);
      else gp[d] = x_unary(x, DM_OP_neg, slope);
    }
  }
  gx = x_reshape(x, x_narrow(x, gx, 0, 0, s.n_rows), 3, (int64_t[]){n, height * width, c});
  g->gx[0] = x_reshape(x, x_transpose(x, gx, 1, 2), 4, t->shape);
  for (int d = 0; d < 2; d++) g->gx[1 + d] = gp[d];
}

/* By one kernel, or composed under create_graph. */
void sample_planes_grad(dm_Grad *g) {
  const dm_SamplePlanesAttr *a = DM_ATTR(dm_SamplePlanesAttr, g);
  dm_Tensor *out[3] = {NULL, NULL, NULL};
  if (g->create_graph) {
    sample_planes_composed(g, a->zeros);
    return;
  }
  dm_Tensor *gy = x_unary(g->x, DM_OP_contiguous, g->gy[0]);
  dm_Tensor *const in[4] = {gy, g->in[0], g->in[1], g->in[2]};
  if (!x_call(g->x, DM_OP_sample_planes_backward, a, 4, in, out)) return;
  for (int i = 0; i < 3; i++) g->gx[i] = out[i];
}

/* ---- affine_grid ---- */

enum { MOST_SIDE = 1 << 20 }; /* the product of three such sizes fits in int64 */

/* n coordinates from -1 to 1 (align), or the centres of n equal parts of that
   interval; 0 for n = 1. */
static dm_Tensor *points_of(dm_X *x, int64_t n, bool align, dm_DType dtype, dm_Device dev) {
  const double end = n == 1 ? 0 : align ? 1 : (double)(n - 1) / (double)n;
  const dm_LinspaceAttr a = {-end, end, n, dtype, dm_device_code(dev)};
  return dm_x(x, DM_OP_linspace, &a, 0);
}

/* grid (N, H, W, 2) = [x, y, 1] theta^T for theta (N, 2, 3), and one dim more for
   3-d sizes. */
dm_status affine_grid_compose(dm_Call *c, dm_X *x) {
  const dm_AffineGridAttr *a = c->attr;
  dm_Tensor *theta = c->in[0];
  const int dims = (int)a->size.n - 2;
  DM_TRY(dm_check_float(c, theta, "theta"));
  if (dims != 2 && dims != 3)
    return dm_fail(DM_EARG, "affine_grid: size has %lld numbers, wanted 4 or 5",
                   (long long)a->size.n);
  if (theta->ndim != 3 || theta->shape[0] != a->size.v[0] || theta->shape[1] != dims ||
      theta->shape[2] != dims + 1)
    return dm_fail(DM_EARG, "affine_grid: theta has shape %s, wanted {%lld, %d, %d}",
                   DM_SHAPE(theta), (long long)a->size.v[0], dims, dims + 1);
  for (int d = 0; d < dims + 2; d++)
    if (a->size.v[d] < 1 || a->size.v[d] > MOST_SIDE)
      return dm_fail(DM_EARG, "affine_grid: a size of %lld, wanted 1 to %d",
                     (long long)a->size.v[d], MOST_SIDE);
  /* Products and sums instead of a matmul: autocast would run a matmul in 16 bits. They run
     over (N, dims, H, W), whose rows are long, and each coordinate is multiplied before it
     repeats along the other axes. */
  const dm_DType wide = theta->dtype == DM_F64 ? DM_F64 : DM_F32;
  const int64_t *space = a->size.v + 2;
  dm_Tensor *map = x_cast(x, theta, wide), *y = NULL;
  for (int k = 0; k <= dims; k++) {
    int64_t one[5] = {1, 1, 1, 1, 1}, each[5] = {theta->shape[0], dims, 1, 1, 1};
    dm_Tensor *term = x_reshape(x, x_narrow(x, map, 2, k, 1), dims + 2, each);
    if (k < dims) {
      const int64_t n = one[dims + 1 - k] = space[dims - 1 - k];
      dm_Tensor *p = points_of(x, n, a->align_corners, wide, theta->device);
      term = x_mul(x, x_reshape(x, p, dims + 2, one), term);
    }
    y = k == 0 ? term : x_add(x, y, term);
  }
  const dm_MovedimAttr behind = {{1, {1}}, {1, {-1}}};
  y = dm_x(x, DM_OP_movedim, &behind, 1, x_cast(x, y, (dm_DType)theta->dtype));
  c->out[0] = x_unary(x, DM_OP_contiguous, y);
  return x->st;
}
