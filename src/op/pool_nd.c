/* Pooling along one and three dims, composed of pooling of planes: a line is a plane of
   height 1; in a space the planes are pooled first, and then the depth, as the rows of
   planes whose columns are all places of a pooled plane. Maxima over a grid of windows of
   different sizes are taken from gathered windows. */
#include "base/error.h"
#include "op/index.h"
#include "op/pointwise.h"
#include "op/pool.h"
#include "op/reduce.h"

/* What is said of axes bears the name of the op that was called. */
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

static dm_status check_stride(const dm_Call *c, const dm_Ints *stride, int dims) {
  if (stride->n <= 1 || stride->n == dims) return DM_OK;
  return dm_fail(DM_EARG, "%s: stride has %lld numbers, wanted 1 or %d", c->op->name,
                 (long long)stride->n, dims);
}

/* ---- lines ---- */

static dm_Tensor *as_plane(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_unsqueeze, &(int64_t){-2}, 1, t);
}
static dm_Tensor *as_line(dm_X *x, dm_Tensor *t) {
  return dm_x(x, DM_OP_select, &(int64_t[2]){-2, 0}, 1, t);
}
static dm_Ints along(int64_t kernel, const dm_Ints *stride) {
  return (dm_Ints){2, {1, stride->n < 1 ? kernel : stride->v[0]}};
}

typedef struct MaxLineAttr {
  int64_t kernel;
  dm_Ints stride;
  int64_t padding, dilation, ceil_mode, return_indices;
} MaxLineAttr;
typedef struct MaxPlaneAttr {
  dm_MaxPoolAttr max;
  int64_t return_indices;
} MaxPlaneAttr;

dm_status max_pool1d_compose(dm_Call *c, dm_X *x) {
  const MaxLineAttr *a = DM_ATTR(MaxLineAttr, c);
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(dm_check_places(c, 1));
  DM_TRY(check_stride(c, &a->stride, 1));
  const int64_t step = a->stride.n < 1 ? a->kernel : a->stride.v[0];
  DM_TRY(check_axes(c, 1, &a->kernel, &step, &a->padding, &a->dilation, a->ceil_mode));
  const MaxPlaneAttr plane = {{{1, a->kernel},
                               along(a->kernel, &a->stride),
                               {0, a->padding},
                               {1, a->dilation},
                               a->ceil_mode},
                              a->return_indices};
  dm_Tensor *in = as_plane(x, c->in[0]), *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_max_pool2d, &plane, 1, &in, out)) return x->st;
  for (int i = 0; i < c->n_out; i++) c->out[i] = as_line(x, out[i]);
  return x->st;
}

dm_status avg_pool1d_compose(dm_Call *c, dm_X *x) {
  const struct {
    int64_t kernel;
    dm_Ints stride;
    int64_t padding, ceil_mode, count_include_pad;
  } *a = c->attr;
  DM_TRY(dm_check_places(c, 1));
  DM_TRY(check_stride(c, &a->stride, 1));
  const int64_t step = a->stride.n < 1 ? a->kernel : a->stride.v[0];
  DM_TRY(check_axes(c, 1, &a->kernel, &step, &a->padding, NULL, a->ceil_mode));
  const dm_AvgPoolAttr plane = {{1, a->kernel}, along(a->kernel, &a->stride), {0, a->padding},
                                a->ceil_mode,   a->count_include_pad,         {0, 0}};
  c->out[0] = as_line(x, dm_x(x, DM_OP_avg_pool2d, &plane, 1, as_plane(x, c->in[0])));
  return x->st;
}

dm_status adaptive_avg_pool1d_compose(dm_Call *c, dm_X *x) {
  const int64_t size[2] = {1, *DM_ATTR(int64_t, c)};
  DM_TRY(dm_check_places(c, 1));
  c->out[0] = as_line(x, dm_x(x, DM_OP_adaptive_avg_pool2d, size, 1, as_plane(x, c->in[0])));
  return x->st;
}

/* ---- spaces ---- */

/* (N,C,D,H,W) as planes (N C D, H, W); pooled ones as (N C, D, P Q); what is pooled along
   the depth as (N,C,E,P,Q). */
typedef struct Space {
  int64_t lead, depth, h, w, p, q;
} Space;

static Space space_of(const dm_Tensor *t) {
  const int64_t *s = t->shape + t->ndim - 3;
  return (Space){dm_numel(t->ndim - 3, t->shape), s[0], s[1], s[2], 0, 0};
}
static dm_Tensor *planes_of(dm_X *x, dm_Tensor *t, const Space *s) {
  return x_reshape(x, t, 3, (int64_t[]){s->lead * s->depth, s->h, s->w});
}
static dm_Tensor *columns_of(dm_X *x, dm_Tensor *planes, Space *s) {
  if (!planes) return NULL;
  s->p = planes->shape[1];
  s->q = planes->shape[2];
  return x_reshape(x, planes, 3, (int64_t[]){s->lead, s->depth, s->p * s->q});
}
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

/* 16-bit numbers in float32: two steps round once. */
static dm_Tensor *widened(dm_X *x, dm_Tensor *t) {
  return x_cast(x, t, t->dtype == DM_F64 ? DM_F64 : DM_F32);
}

typedef struct MaxSpaceAttr {
  int64_t kernel[3];
  dm_Ints stride;
  int64_t padding[3], dilation[3], ceil_mode, return_indices;
} MaxSpaceAttr;

static int64_t stride_of(const dm_Ints *stride, const int64_t *kernel, int i) {
  return stride->n < 1 ? kernel[i] : stride->v[stride->n == 1 ? 0 : i];
}

dm_status max_pool3d_compose(dm_Call *c, dm_X *x) {
  const MaxSpaceAttr *a = DM_ATTR(MaxSpaceAttr, c);
  dm_Tensor *t = c->in[0];
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(dm_check_places(c, 3));
  DM_TRY(check_stride(c, &a->stride, 3));
  int64_t step[3];
  for (int i = 0; i < 3; i++) step[i] = stride_of(&a->stride, a->kernel, i);
  DM_TRY(check_axes(c, 3, a->kernel, step, a->padding, a->dilation, a->ceil_mode));
  const MaxPlaneAttr plane = {{{a->kernel[1], a->kernel[2]},
                               {2, {step[1], step[2]}},
                               {a->padding[1], a->padding[2]},
                               {a->dilation[1], a->dilation[2]},
                               a->ceil_mode},
                              a->return_indices};
  const MaxPlaneAttr depth = {{{a->kernel[0], 1},
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
  /* the plane of each maximum, and its place there */
  const int64_t width = s.p * s.q, last = 1, minus_one = -1;
  dm_Tensor *at = x_reshape(x, out[1], 2, (int64_t[]){s.lead, minus_one});
  dm_Tensor *place = dm_x(x, DM_OP_gather, &last, 2,
                          x_reshape(x, flat[1], 2, (int64_t[]){s.lead, s.depth * width}), at);
  dm_Tensor *from_zero = dm_x(x, DM_OP_sub, NULL, 2, at, x_whole(x, c->base));
  dm_Tensor *which = dm_x(x, DM_OP_div, &(int64_t){1}, 2, from_zero, x_whole(x, width));
  dm_Tensor *before = dm_x(x, DM_OP_mul, NULL, 2, which, x_whole(x, s.h * s.w));
  place = dm_x(x, DM_OP_add, NULL, 2, place, before);
  c->out[1] = space_from(x, x_reshape(x, place, 3, out[0]->shape), &s, t);
  return x->st;
}

dm_status avg_pool3d_compose(dm_Call *c, dm_X *x) {
  const struct {
    int64_t kernel[3];
    dm_Ints stride;
    int64_t padding[3], ceil_mode, count_include_pad;
    dm_OptNum divisor;
  } *a = c->attr;
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_places(c, 3));
  DM_TRY(check_stride(c, &a->stride, 3));
  DM_TRY(dm_check_float(c, t, "x"));
  if (a->divisor.set && a->divisor.v == 0)
    return dm_fail(DM_EARG, "avg_pool3d: divisor_override is 0");
  int64_t step[3];
  for (int i = 0; i < 3; i++) step[i] = stride_of(&a->stride, a->kernel, i);
  DM_TRY(check_axes(c, 3, a->kernel, step, a->padding, NULL, a->ceil_mode));
  const dm_OptNum sums = {a->divisor.set, 1};
  const dm_AvgPoolAttr plane = {{a->kernel[1], a->kernel[2]},   {2, {step[1], step[2]}},
                                {a->padding[1], a->padding[2]}, a->ceil_mode,
                                a->count_include_pad,           sums};
  const dm_AvgPoolAttr depth = {{a->kernel[0], 1}, {2, {step[0], 1}},    {a->padding[0], 0},
                                a->ceil_mode,      a->count_include_pad, sums};
  Space s = space_of(t);
  dm_Tensor *flat = dm_x(x, DM_OP_avg_pool2d, &plane, 1, planes_of(x, widened(x, t), &s));
  dm_Tensor *y = dm_x(x, DM_OP_avg_pool2d, &depth, 1, columns_of(x, flat, &s));
  if (a->divisor.set) y = x_div(x, y, dm_x_number(x, a->divisor.v));
  c->out[0] = x_cast(x, space_from(x, y, &s, t), (dm_DType)t->dtype);
  return x->st;
}

dm_status adaptive_avg_pool3d_compose(dm_Call *c, dm_X *x) {
  const int64_t *size = DM_ATTR(int64_t, c);
  dm_Tensor *t = c->in[0];
  DM_TRY(dm_check_places(c, 3));
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

/* Places in the plane of each window's elements: (P Q, K), a window that has fewer names
   its first element again. */
static dm_Tensor *grid_places(dm_X *x, const int64_t in[2], const int64_t out[2], int64_t k[2],
                              int base) {
  dm_PoolSpan span;
  for (int i = 0; i < 2; i++)
    for (int64_t o = k[i] = 0; o < out[i]; o++) {
      span = dm_pool_adaptive_span(in[i], out[i], o);
      k[i] = dm_max_i64(k[i], span.hi - span.lo);
    }
  int64_t *at;
  dm_Tensor *t = dm_x_positions(x, out[0] * out[1] * k[0] * k[1], &at);
  if (!t) return NULL;
  for (int64_t p = 0; p < out[0]; p++)
    for (int64_t q = 0; q < out[1]; q++) {
      const dm_PoolSpan h = dm_pool_adaptive_span(in[0], out[0], p),
                        w = dm_pool_adaptive_span(in[1], out[1], q);
      for (int64_t r = 0; r < k[0]; r++)
        for (int64_t s = 0; s < k[1]; s++) {
          const bool inside = h.lo + r < h.hi && w.lo + s < w.hi;
          *at++ = (inside ? (h.lo + r) * in[1] + w.lo + s : h.lo * in[1] + w.lo) + base;
        }
    }
  return t;
}

dm_status adaptive_max_pool2d_compose(dm_Call *c, dm_X *x) {
  const struct { int64_t size[2], return_indices; } *a = c->attr;
  dm_Tensor *t = c->in[0];
  c->n_out = a->return_indices ? 2 : 1;
  DM_TRY(dm_check_places(c, 2));
  const int64_t *in = dm_plane_size(t), lead = dm_numel(t->ndim - 2, t->shape);
  for (int i = 0; i < 2; i++)
    if (a->size[i] < 1 || a->size[i] > INT32_MAX || in[i] < 1)
      return dm_fail(DM_EARG, "adaptive_max_pool2d: from %lld to %lld, wanted at least 1",
                     (long long)in[i], (long long)a->size[i]);
  const int64_t cells = a->size[0] * a->size[1];
  int64_t k[2];
  dm_Tensor *places = grid_places(x, in, a->size, k, c->base);
  dm_Tensor *flat = x_reshape(x, t, 2, (int64_t[]){lead, in[0] * in[1]});
  dm_Tensor *windows =
      x_reshape(x, dm_x_select(x, flat, 1, places), 3, (int64_t[]){lead, cells, k[0] * k[1]});
  const struct {
    dm_OptInt dim;
    int64_t keepdim;
  } last = {{1, 2}, 0};
  dm_Tensor *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_max, &last, 1, &windows, out)) return x->st;
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim - 2; d++) shape[d] = t->shape[d];
  shape[t->ndim - 2] = a->size[0];
  shape[t->ndim - 1] = a->size[1];
  c->out[0] = x_reshape(x, out[0], t->ndim, shape);
  if (!a->return_indices) return x->st;
  int64_t *first; /* of each window in the list of places */
  dm_Tensor *offsets = dm_x_positions(x, cells, &first);
  for (int64_t i = 0; first && i < cells; i++) first[i] = i * k[0] * k[1];
  offsets = dm_x_there(x, offsets, t->device);
  dm_Tensor *at = x_reshape(x, dm_x(x, DM_OP_add, NULL, 2, out[1], offsets), 1, &(int64_t){-1});
  dm_Tensor *place = dm_x_select(x, dm_x_there(x, places, t->device), 0, at);
  c->out[1] = x_reshape(x, place, t->ndim, shape);
  return x->st;
}

dm_status adaptive_max_pool1d_compose(dm_Call *c, dm_X *x) {
  const int64_t *a = DM_ATTR(int64_t, c); /* size, return_indices */
  c->n_out = a[1] ? 2 : 1;
  DM_TRY(dm_check_places(c, 1));
  const int64_t plane[3] = {1, a[0], a[1]};
  dm_Tensor *in = as_plane(x, c->in[0]), *out[2] = {NULL, NULL};
  if (!x_call(x, DM_OP_adaptive_max_pool2d, plane, 1, &in, out)) return x->st;
  for (int i = 0; i < c->n_out; i++) c->out[i] = as_line(x, out[i]);
  return x->st;
}
