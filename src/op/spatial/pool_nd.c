/* 1-d and 3-d pooling, adaptive max pooling and max_unpool, composed of 2-d pooling,
   gathers and scatters.

   1-d: x (N, C, L) is pooled as planes of height 1, (N, C, 1, L). 3-d: pooling is
   separable, so the planes (H, W) are pooled first and then the depth, as the rows
   of planes (D, P Q) whose columns are all positions of a pooled plane. Adaptive max
   pooling has windows of different sizes: their elements are gathered, a smaller
   window repeating its first element, and reduced by max. max_unpool scatters values
   to the indices that max pooling returned. */
#include "base/error.h"
#include "base/sizes.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/spatial/pool.h"
#include "op/reduce/reduce.h"

/* Checks all axes here, so that messages name the op that was called and not the 2-d
   one. */
static dm_status check_axes(const dm_Call *c, int dims, const int64_t *kernel,
                            const int64_t *stride, const int64_t *padding,
                            const int64_t *dilation, int64_t ceil_mode) {
  static const char *const names[] = {"depth", "height", "width"};
  const dm_Tensor *t = c->in[0];
  dm_PoolAxis axis;
  for (int i = 0; i < dims; i++)
    DM_TRY(dm_pool_axis_of(c, dims == 1 ? "length" : names[i], t->shape[t->ndim - dims + i],
                           kernel[i], stride[i], padding[i], dilation ? dilation[i] : 1,
                           ceil_mode != 0, &axis));
  return DM_OK;
}

/* A stride has one number for all dims or one for each; none means the kernel's size. */
static dm_status check_stride(const dm_Call *c, const dm_Ints *stride, int dims) {
  if (stride->n <= 1 || stride->n == dims) return DM_OK;
  return dm_fail(DM_EARG, "%s: stride has %lld numbers, wanted 1 or %d", c->op->name,
                 (long long)stride->n, dims);
}

/* ---- one dim ---- */

/* (..., L) -> (..., 1, L), and back. */
static dm_Tensor *as_plane(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_unsqueeze, &(int64_t){-2}, 1, t);
}
static dm_Tensor *without_height(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_select, &(int64_t[2]){-2, 0}, 1, t);
}
/* The 2-d stride of a 1-d pooling. */
static dm_Ints along(int64_t kernel, const dm_Ints *stride) {
  return (dm_Ints){2, {1, stride->n < 1 ? kernel : stride->v[0]}};
}

/* (N, C, L) -> (N, C, P); the flat index in a plane of height 1 is the index in L. */
dm_status max_pool1d_compose(dm_Call *c, dm_X *x) {
  const dm_MaxPool1dAttr *a = DM_ATTR(dm_MaxPool1dAttr, c);
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(dm_check_spatial(c, 1));
  DM_TRY(dm_check_samples(c, 1));
  DM_TRY(check_stride(c, &a->stride, 1));
  const int64_t step = a->stride.n < 1 ? a->kernel_size : a->stride.v[0];
  DM_TRY(check_axes(c, 1, &a->kernel_size, &step, &a->padding, &a->dilation, a->ceil_mode));
  const dm_MaxPool2dAttr plane = {{{1, a->kernel_size},
                                   along(a->kernel_size, &a->stride),
                                   {0, a->padding},
                                   {1, a->dilation},
                                   a->ceil_mode},
                                  a->return_indices};
  dm_Tensor *in = as_plane(x, c->in[0]), *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_max_pool2d, &plane, 1, &in, out)) return x->st;
  for (int i = 0; i < c->n_out; i++) c->out[i] = without_height(x, out[i]);
  return x->st;
}

/* avg_pool2d with kernel (1, k); the height adds a factor of 1 to the divisor. */
dm_status avg_pool1d_compose(dm_Call *c, dm_X *x) {
  const dm_AvgPool1dAttr *a = c->attr;
  DM_TRY(dm_check_spatial(c, 1));
  DM_TRY(check_stride(c, &a->stride, 1));
  const int64_t step = a->stride.n < 1 ? a->kernel_size : a->stride.v[0];
  DM_TRY(check_axes(c, 1, &a->kernel_size, &step, &a->padding, NULL, a->ceil_mode));
  const dm_AvgPoolAttr plane = {{1, a->kernel_size},  along(a->kernel_size, &a->stride),
                                {0, a->padding},      a->ceil_mode,
                                a->count_include_pad, {0, 0}};
  c->out[0] = without_height(x, dm_x(x, DM_OP_avg_pool2d, &plane, 1, as_plane(x, c->in[0])));
  return x->st;
}

/* (N, C, L) -> (N, C, P): the mean over [floor(i L / P), ceil((i + 1) L / P)) for
   each i. */
dm_status adaptive_avg_pool1d_compose(dm_Call *c, dm_X *x) {
  const int64_t size[2] = {1, DM_ATTR(dm_AdaptiveAvgPool1dAttr, c)->output_size};
  DM_TRY(dm_check_spatial(c, 1));
  c->out[0] =
      without_height(x, dm_x(x, DM_OP_adaptive_avg_pool2d, size, 1, as_plane(x, c->in[0])));
  return x->st;
}

/* ---- three dims ---- */

/* The sizes of a 3-d pooling: x (N, C, D, H, W) is pooled as planes (N C D, H, W) to
   (N C D, P, Q), which is seen as (N C, D, P Q) and pooled along the depth to (N C,
   E, P Q), the result (N, C, E, P, Q). */
typedef struct Space {
  int64_t lead, depth, h, w, p, q;
} Space;

/* The sizes of the last three dims of t, and the product of those before. */
static Space space_of(const dm_Tensor *t) {
  const int64_t *s = t->shape + t->ndim - 3;
  return (Space){dm_numel(t->ndim - 3, t->shape), s[0], s[1], s[2], 0, 0};
}
/* t as planes (N C D, H, W). */
static dm_Tensor *planes_of(dm_X *x, dm_Tensor *t, const Space *s) {
  return x_reshape(x, t, 3, (int64_t[]){s->lead * s->depth, s->h, s->w});
}
/* Pooled planes (N C D, P, Q) as (N C, D, P Q); notes P and Q in s. */
static dm_Tensor *columns_of(dm_X *x, dm_Tensor *planes, Space *s) {
  if (!planes) return NULL;
  s->p = planes->shape[1];
  s->q = planes->shape[2];
  return x_reshape(x, planes, 3, (int64_t[]){s->lead, s->depth, s->p * s->q});
}
/* Columns (N C, E, P Q) as (N, C, E, P, Q), with like's leading dims. */
static dm_Tensor *space_from(dm_X *x, dm_Tensor *columns, const Space *s,
                             const dm_Tensor *like) {
  int64_t shape[DM_MAX_DIM];
  if (!columns) return NULL;
  for (int d = 0; d < like->ndim - 3; d++) shape[d] = like->shape[d];
  shape[like->ndim - 3] = columns->shape[1];
  shape[like->ndim - 2] = s->p;
  shape[like->ndim - 1] = s->q;
  return x_reshape(x, columns, like->ndim, shape);
}

/* 16-bit floats are converted to float32, so that two pooling steps round only once. */
static dm_Tensor *widened(dm_X *x, dm_Tensor *t) {
  return x_cast(x, t, t->dtype == DM_F64 ? DM_F64 : DM_F32);
}

/* The stride along dim i; see dm_pool_stride. */
static int64_t stride_of(const dm_Ints *stride, const int64_t *kernel, int i) {
  return stride->n < 1 ? kernel[i] : stride->v[stride->n == 1 ? 0 : i];
}

/* With return_indices the flat index in (D, H, W) is plane * H W + the plane's index
   of its maximum. */
dm_status max_pool3d_compose(dm_Call *c, dm_X *x) {
  const dm_MaxPool3dAttr *a = DM_ATTR(dm_MaxPool3dAttr, c);
  dm_Tensor *t = c->in[0];
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(dm_check_spatial(c, 3));
  DM_TRY(dm_check_samples(c, 3));
  DM_TRY(check_stride(c, &a->stride, 3));
  int64_t step[3];
  for (int i = 0; i < 3; i++) step[i] = stride_of(&a->stride, a->kernel_size, i);
  DM_TRY(check_axes(c, 3, a->kernel_size, step, a->padding, a->dilation, a->ceil_mode));
  const dm_MaxPool2dAttr plane = {{{a->kernel_size[1], a->kernel_size[2]},
                                   {2, {step[1], step[2]}},
                                   {a->padding[1], a->padding[2]},
                                   {a->dilation[1], a->dilation[2]},
                                   a->ceil_mode},
                                  a->return_indices};
  const dm_MaxPool2dAttr depth = {{{a->kernel_size[0], 1},
                                   {2, {step[0], 1}},
                                   {a->padding[0], 0},
                                   {a->dilation[0], 1},
                                   a->ceil_mode},
                                  a->return_indices};
  Space s = space_of(t);
  dm_Tensor *in = planes_of(x, t, &s), *flat[2] = {NULL, NULL}, *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_max_pool2d, &plane, 1, &in, flat)) return x->st;
  in = columns_of(x, flat[0], &s);
  if (!x_call(x, DM_OP_max_pool2d, &depth, 1, &in, out)) return x->st;
  c->out[0] = space_from(x, out[0], &s, t);
  if (!a->return_indices) return x->st;
  /* the plane of each maximum, and its position in that plane */
  const int64_t width = s.p * s.q, last = 1, minus_one = -1;
  dm_Tensor *at = x_reshape(x, out[1], 2, (int64_t[]){s.lead, minus_one});
  dm_Tensor *index = dm_x(x, DM_OP_gather, &last, 2,
                          x_reshape(x, flat[1], 2, (int64_t[]){s.lead, s.depth * width}), at);
  dm_Tensor *from_zero = dm_x(x, DM_OP_sub, NULL, 2, at, x_whole(x, c->base));
  dm_Tensor *which = dm_x(x, DM_OP_div, &(int64_t){1}, 2, from_zero, x_whole(x, width));
  dm_Tensor *before = dm_x(x, DM_OP_mul, NULL, 2, which, x_whole(x, s.h * s.w));
  index = dm_x(x, DM_OP_add, NULL, 2, index, before);
  c->out[1] = space_from(x, x_reshape(x, index, 3, out[0]->shape), &s, t);
  return x->st;
}

/* Windows of one element, at each element. */
static bool is_single(const dm_AvgPool3dAttr *a, const int64_t *step, int i) {
  return a->kernel_size[i] == 1 && step[i] == 1 && a->padding[i] == 0;
}

/* With divisor_override both steps compute sums and the result is divided once. */
dm_status avg_pool3d_compose(dm_Call *c, dm_X *x) {
  const dm_AvgPool3dAttr *a = c->attr;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_spatial(c, 3));
  DM_TRY(check_stride(c, &a->stride, 3));
  DM_TRY(dm_check_float(c, t, "x"));
  if (a->divisor_override.set && a->divisor_override.v == 0)
    return dm_fail(DM_EARG, "avg_pool3d: divisor_override is 0");
  int64_t step[3];
  for (int i = 0; i < 3; i++) step[i] = stride_of(&a->stride, a->kernel_size, i);
  DM_TRY(check_axes(c, 3, a->kernel_size, step, a->padding, NULL, a->ceil_mode));
  /* With divisor 1 both steps give sums, whose order of rounding is that of one 3-d
     sum; without an override each step divides by its own count and the product is
     the 3-d count. */
  const dm_OptNum sums = {a->divisor_override.set, 1};
  const dm_AvgPoolAttr plane = {{a->kernel_size[1], a->kernel_size[2]},
                                {2, {step[1], step[2]}},
                                {a->padding[1], a->padding[2]},
                                a->ceil_mode,
                                a->count_include_pad,
                                sums};
  const dm_AvgPoolAttr depth = {{a->kernel_size[0], 1}, {2, {step[0], 1}},
                                {a->padding[0], 0},     a->ceil_mode,
                                a->count_include_pad,   sums};
  /* Windows of single elements give these: those of planes are left out, local_response_norm's.
   */
  const bool flat = is_single(a, step, 1) && is_single(a, step, 2);
  Space s = space_of(t);
  dm_Tensor *y = planes_of(x, widened(x, t), &s);
  if (!flat) y = dm_x(x, DM_OP_avg_pool2d, &plane, 1, y);
  y = columns_of(x, y, &s);
  if (flat || !is_single(a, step, 0)) y = dm_x(x, DM_OP_avg_pool2d, &depth, 1, y);
  if (a->divisor_override.set) y = x_div(x, y, dm_x_number(x, a->divisor_override.v));
  c->out[0] = x_cast(x, space_from(x, y, &s, t), (dm_DType)t->dtype);
  return x->st;
}

/* Adaptive averages are separable too: planes first, then the depth. */
dm_status adaptive_avg_pool3d_compose(dm_Call *c, dm_X *x) {
  const int64_t *size = DM_ATTR(dm_AdaptiveAvgPool3dAttr, c)->output_size;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_spatial(c, 3));
  DM_TRY(dm_check_float(c, t, "x"));
  Space s = space_of(t);
  dm_Tensor *flat =
      dm_x(x, DM_OP_adaptive_avg_pool2d, size + 1, 1, planes_of(x, widened(x, t), &s));
  dm_Tensor *columns = columns_of(x, flat, &s);
  const int64_t deep[2] = {size[0], s.p * s.q};
  dm_Tensor *y = dm_x(x, DM_OP_adaptive_avg_pool2d, deep, 1, columns);
  c->out[0] = x_cast(x, space_from(x, y, &s, t), (dm_DType)t->dtype);
  return x->st;
}

/* ---- maxima over a grid of windows ---- */

/* Flat positions, in an input of size in[3], of the elements of each adaptive
   window: (cells, elements), where k[3] is set to the largest window along each dim.
   A smaller window repeats its first element. */
static dm_Tensor *grid_positions(dm_X *x, const int64_t in[3], const int64_t out[3],
                                 int64_t k[3], int base) {
  for (int i = 0; i < 3; i++)
    for (int64_t o = k[i] = 0; o < out[i]; o++) {
      const dm_PoolSpan span = dm_pool_adaptive_span(in[i], out[i], o);
      k[i] = dm_max_i64(k[i], span.hi - span.lo);
    }
  const int64_t cells = dm_numel(3, out), elements = dm_numel(3, k);
  int64_t *at;
  dm_Tensor *t = dm_x_positions(x, cells * elements, &at);
  for (int64_t cell = 0; t && cell < cells; cell++) {
    const int64_t index[3] = {cell / (out[1] * out[2]), cell / out[2] % out[1], cell % out[2]};
    dm_PoolSpan span[3];
    for (int i = 0; i < 3; i++) span[i] = dm_pool_adaptive_span(in[i], out[i], index[i]);
    for (int64_t e = 0; e < elements; e++) {
      const int64_t step[3] = {e / (k[1] * k[2]), e / k[2] % k[1], e % k[2]};
      bool inside = true;
      for (int i = 0; i < 3; i++) inside = inside && span[i].lo + step[i] < span[i].hi;
      int64_t flat = 0;
      for (int i = 0; i < 3; i++) flat = flat * in[i] + span[i].lo + (inside ? step[i] : 0);
      *at++ = flat + base;
    }
  }
  return t;
}

/* The elements of windows of one size k[3], in the order of grid_positions: a view with dims
   moved. */
static dm_Tensor *even_windows(dm_X *x, dm_Tensor *t, int64_t lead, const int64_t in[3],
                               const int64_t out[3], int64_t k[3]) {
  int64_t shape[7] = {lead};
  for (int i = 0; i < 3; i++) {
    shape[2 * i + 1] = out[i];
    shape[2 * i + 2] = k[i] = in[i] / out[i];
  }
  const dm_Ints order = {7, {0, 1, 3, 5, 2, 4, 6}};
  return dm_x(x, DM_OP_permute, &order, 1, x_reshape(x, t, 7, shape));
}

/* Adaptive max pooling of the last `dims` dims to `size`, with the flat positions if
   wanted. */
static dm_status adaptive_max(dm_Call *c, dm_X *x, int dims, const int64_t *size,
                              bool return_indices) {
  enum { WIDE = 16 /* neighbours that are worth a copy of their own */ };
  dm_Tensor *t = c->in[0];
  int64_t in[3] = {1, 1, 1}, grid[3] = {1, 1, 1}, k[3], shape[DM_MAX_DIM];
  c->n_out = return_indices ? 2 : 1;
  DM_TRY(dm_check_spatial(c, dims));
  for (int i = 0; i < dims; i++) {
    in[3 - dims + i] = t->shape[t->ndim - dims + i];
    grid[3 - dims + i] = size[i];
  }
  for (int i = 3 - dims; i < 3; i++)
    if (grid[i] < 1 || grid[i] > INT32_MAX || in[i] < 1)
      return dm_fail(DM_EARG, "%s: from %lld to %lld, wanted at least 1", c->op->name,
                     (long long)in[i], (long long)grid[i]);
  for (int d = 0; d < t->ndim; d++) shape[d] = t->shape[d];
  for (int i = 0; i < dims; i++) shape[t->ndim - dims + i] = size[i];
  const int64_t lead = dm_numel(t->ndim - dims, t->shape), cells = dm_numel(3, grid);
  const bool even = in[0] % grid[0] == 0 && in[1] % grid[1] == 0 && in[2] % grid[2] == 0 &&
                    (cells == 1 || in[2] / grid[2] >= WIDE);
  dm_Tensor *positions =
      even && !return_indices ? NULL : grid_positions(x, in, grid, k, c->base);
  dm_Tensor *windows =
      even ? even_windows(x, t, lead, in, grid, k)
           : dm_x_select(x, x_reshape(x, t, 2, (int64_t[]){lead, dm_numel(3, in)}), 1,
                         positions);
  const int64_t elements = dm_numel(3, k);
  windows = x_reshape(x, windows, 3, (int64_t[]){lead, cells, elements});
  /* The maximum over the last dim also gives the winning element, whose gradient
     flows back through the selection to x. */
  const dm_DimAttr last = {{1, 2}, 0};
  dm_Tensor *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_max, &last, 1, &windows, out)) return x->st;
  c->out[0] = x_reshape(x, out[0], t->ndim, shape);
  if (!return_indices) return x->st;
  int64_t *first; /* the start of each window in the list of positions */
  dm_Tensor *offsets = dm_x_positions(x, cells, &first);
  for (int64_t i = 0; first && i < cells; i++) first[i] = i * elements;
  offsets = dm_x_there(x, offsets, t->device);
  dm_Tensor *at = x_reshape(x, dm_x(x, DM_OP_add, NULL, 2, out[1], offsets), 1, &(int64_t){-1});
  dm_Tensor *index = dm_x_select(x, dm_x_there(x, positions, t->device), 0, at);
  c->out[1] = x_reshape(x, index, t->ndim, shape);
  return x->st;
}

/* (N, C, L) -> (N, C, P). */
dm_status adaptive_max_pool1d_compose(dm_Call *c, dm_X *x) {
  const dm_AdaptiveMaxPool1dAttr *a = DM_ATTR(dm_AdaptiveMaxPool1dAttr, c);
  return adaptive_max(c, x, 1, &a->output_size, a->return_indices != 0);
}

/* (N, C, H, W) -> (N, C, P, Q); indices are flat in a plane (H, W). */
dm_status adaptive_max_pool2d_compose(dm_Call *c, dm_X *x) {
  const dm_AdaptiveMaxPool2dAttr *a = DM_ATTR(dm_AdaptiveMaxPool2dAttr, c);
  return adaptive_max(c, x, 2, a->output_size, a->return_indices != 0);
}

/* (N, C, D, H, W) -> (N, C, E, P, Q); indices are flat in (D, H, W). */
dm_status adaptive_max_pool3d_compose(dm_Call *c, dm_X *x) {
  const dm_AdaptiveMaxPool3dAttr *a = DM_ATTR(dm_AdaptiveMaxPool3dAttr, c);
  return adaptive_max(c, x, 3, a->output_size, a->return_indices != 0);
}

/* ---- max_unpool ---- */

/* max_unpool over the last `dims` dims: zeros of the output size with x scattered to
   the indices. output_size may differ from (in - 1) stride - 2 padding + kernel by
   less than the stride. */
static dm_status unpool(dm_Call *c, dm_X *x, int dims, const int64_t *kernel,
                        const dm_Ints *stride, const int64_t *padding, const dm_Ints *wanted) {
  dm_Tensor *t = c->in[0], *at = c->in[1];
  int64_t shape[DM_MAX_DIM];
  DM_TRY(dm_check_spatial(c, dims));
  DM_TRY(check_stride(c, stride, dims));
  if (!dm_same_shape(t, at))
    return dm_fail(DM_EARG, "%s: x has shape %s, indices %s, wanted one shape", c->op->name,
                   DM_SHAPE(t), DM_SHAPE(at));
  if (wanted->n >= 0 && wanted->n != dims && wanted->n != t->ndim)
    return dm_fail(DM_EARG, "%s: output_size has %lld sizes, wanted %d", c->op->name,
                   (long long)wanted->n, dims);
  const int lead = t->ndim - dims;
  for (int d = 0; d < t->ndim; d++) shape[d] = t->shape[d];
  for (int i = 0; i < dims; i++) {
    const int64_t step = stride->n < 1 ? kernel[i] : stride->v[stride->n == 1 ? 0 : i];
    if (kernel[i] < 1 || step < 1 || padding[i] < 0 ||
        dm_max_i64(dm_max_i64(kernel[i], step), padding[i]) > INT32_MAX)
      return dm_fail(DM_EARG, "%s: kernel_size %lld, stride %lld, padding %lld", c->op->name,
                     (long long)kernel[i], (long long)step, (long long)padding[i]);
    /* The inverse of the size of pooling, (size + 2 padding - kernel) / stride + 1,
       which rounded down: all sizes less than one stride away give t's size back. */
    const int64_t least =
        dm_add_sizes(dm_mul_sizes(t->shape[lead + i] - 1, step), kernel[i] - 2 * padding[i]);
    const int64_t size = wanted->n >= 0 ? wanted->v[wanted->n - dims + i] : least;
    if (size < 1 || size <= least - step || size - step >= least)
      return dm_fail(DM_EARG, "%s: output_size %lld, wanted %lld give or take less than %lld",
                     c->op->name, (long long)size, (long long)least, (long long)step);
    shape[lead + i] = size;
  }
  const int64_t rows = dm_numel(lead, t->shape), from = dm_numel(dims, t->shape + lead);
  const int64_t to[2] = {rows, dm_numel(dims, shape + lead)}, flat[2] = {rows, from}, dim = 1;
  dm_Tensor *y = dm_x(x, DM_OP_scatter, &dim, 3, x_repeated(x, 0, 2, to, t),
                      x_reshape(x, at, 2, flat), x_reshape(x, t, 2, flat));
  c->out[0] = x_reshape(x, y, t->ndim, shape);
  return x->st;
}

/* (N, C, P) -> (N, C, L). */
dm_status max_unpool1d_compose(dm_Call *c, dm_X *x) {
  const dm_MaxUnpool1dAttr *a = c->attr;
  return unpool(c, x, 1, &a->kernel_size, &a->stride, &a->padding, &a->output_size);
}

/* (N, C, P, Q) -> (N, C, H, W). */
dm_status max_unpool2d_compose(dm_Call *c, dm_X *x) {
  const dm_MaxUnpool2dAttr *a = c->attr;
  return unpool(c, x, 2, a->kernel_size, &a->stride, a->padding, &a->output_size);
}

/* (N, C, E, P, Q) -> (N, C, D, H, W). */
dm_status max_unpool3d_compose(dm_Call *c, dm_X *x) {
  const dm_MaxUnpool3dAttr *a = c->attr;
  return unpool(c, x, 3, a->kernel_size, &a->stride, a->padding, &a->output_size);
}
