/* Convolutions along one and three dims, and transposed ones, composed of conv2d and its
   gradient for the input.

   1-d: a plane of height 1. 3-d: the taps along the depth become channels, so that one
   2-d convolution sums them all and rounds once. */
#include "base/error.h"
#include "base/sizes.h"
#include "op/conv/conv.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* Fails unless x and the weight have `dims` dims to convolve along. */
static dm_status check_rank(const dm_Call *c, int dims) {
  const dm_Tensor *w = c->in[1];
  DM_TRY(dm_check_spatial(c, dims));
  if (w->ndim != dims + 2 || w->numel == 0)
    return dm_fail(DM_EARG, "%s: weight has shape %s, wanted %d sizes of at least 1",
                   c->op->name, DM_SHAPE(w), dims + 2);
  return DM_OK;
}

/* Fails unless groups, channels and bias fit: conv2d, which would fail too, does not know the
   name of this op. */
static dm_status check_channels(const dm_Call *c, int dims, int64_t groups) {
  const dm_Tensor *in = c->in[0], *w = c->in[1], *bias = c->in[2];
  const int64_t channels = in->shape[in->ndim - dims - 1], n_out = w->shape[0];
  if (groups < 1)
    return dm_fail(DM_EARG, "%s: groups is %lld, wanted at least 1", c->op->name,
                   (long long)groups);
  if (channels % groups != 0 || channels / groups != w->shape[1])
    return dm_refuse_channels(c->op->name, in, channels, w, groups);
  if (n_out % groups != 0)
    return dm_fail(DM_EARG, "%s: %lld groups do not divide %lld input and %lld output channels",
                   c->op->name, (long long)groups, (long long)channels, (long long)n_out);
  if (bias && (bias->ndim != 1 || bias->numel != n_out))
    return dm_fail(DM_EARG, "%s: bias has shape %s, wanted {%lld}", c->op->name, DM_SHAPE(bias),
                   (long long)n_out);
  return DM_OK;
}

static dm_Tensor *x_conv(dm_X *x, const dm_ConvAttr *a, dm_Tensor *in, dm_Tensor *w,
                         dm_Tensor *bias) {
  return dm_x(x, DM_OP_conv2d, a, bias ? 3 : 2, in, w, bias);
}

/* In one dim: {1, n}, padding {0, n}. */
dm_status conv1d_compose(dm_Call *c, dm_X *x) {
  const dm_Conv1dAttr *a = DM_ATTR(dm_Conv1dAttr, c);
  DM_TRY(check_rank(c, 1));
  DM_TRY(check_channels(c, 1, a->groups));
  const dm_ConvAttr plane = {{1, a->stride}, {0, a->padding}, {1, a->dilation}, a->groups};
  const int64_t height = -2;
  dm_Tensor *y = x_conv(x, &plane, x_unsqueeze(x, c->in[0], height),
                        x_unsqueeze(x, c->in[1], height), c->in[2]);
  c->out[0] = dm_x(x, DM_OP_select, &(int64_t[2]){height, 0}, 1, y);
  return x->st;
}

/* ---- three dims ---- */

/* t with zeros on the sides of its last dims; with planes of zeros along dim 2. */
static dm_Tensor *pad_zeros(dm_X *x, dm_Tensor *t, dm_Ints sides) {
  const dm_PadAttr a = {sides, 0, 0};
  return dm_x(x, DM_OP_pad, &a, 1, t);
}
static dm_Tensor *pad_depth(dm_X *x, dm_Tensor *t, int64_t before, int64_t behind) {
  if (before == 0 && behind == 0) return t;
  return pad_zeros(x, t, (dm_Ints){6, {0, 0, 0, 0, before, behind}});
}

static dm_Tensor *x_permute(dm_X *x, dm_Tensor *t, dm_Ints dims) {
  return dm_x(x, DM_OP_permute, &dims, 1, t);
}

/* Slices of t along dim 2, one a tap, side by side: (N, C, T, E, H, W). */
static dm_Tensor *taps_of(dm_X *x, dm_Tensor *t, const dm_Conv3dAttr *a, int64_t taps,
                          int64_t depth) {
  dm_Tensor *all = NULL;
  for (int64_t k = 0; k < taps && x->st == DM_OK; k++) {
    const int64_t first = k * a->dilation[0];
    const dm_SliceAttr slice = {2, first, first + (depth - 1) * a->stride[0], a->stride[0]};
    dm_Tensor *one = x_unsqueeze(x, dm_x(x, DM_OP_slice, &slice, 1, t), 2);
    const int64_t dim = 2;
    all = all ? dm_x(x, DM_OP_cat, &dim, 2, all, one) : one;
  }
  return all;
}

dm_status conv3d_compose(dm_Call *c, dm_X *x) {
  const dm_Conv3dAttr *a = DM_ATTR(dm_Conv3dAttr, c);
  dm_Tensor *in = c->in[0], *w = c->in[1];
  DM_TRY(check_rank(c, 3));
  DM_TRY(check_channels(c, 3, a->groups));
  const dm_ConvAttr depthwise = {{a->stride[0], 1}, {a->padding[0], 0}, {a->dilation[0], 1}, 1};
  const bool batched = in->ndim == 5;
  if (!batched) in = x_unsqueeze(x, in, 0);
  if (x->st != DM_OK) return x->st;
  const int64_t *s = in->shape, taps = w->shape[2];
  if (a->stride[0] < 1 || a->dilation[0] < 1 || a->padding[0] < DM_CONV_SAME ||
      dm_max_i64(dm_max_i64(a->stride[0], a->dilation[0]), a->padding[0]) > INT32_MAX)
    return dm_fail(DM_EARG, "conv3d: stride %lld, dilation %lld, padding %lld along the depth",
                   (long long)a->stride[0], (long long)a->dilation[0],
                   (long long)a->padding[0]);
  int64_t pad, depth;
  dm_conv_axis(&depthwise, 0, s[2], taps, &pad, &depth);
  if (depth < 1)
    return dm_fail(DM_EARG, "conv3d: a kernel that spans %lld does not fit into depth %lld",
                   (long long)(a->dilation[0] * (taps - 1) + 1), (long long)(s[2] + 2 * pad));
  const int64_t reach = a->dilation[0] * (taps - 1);
  const int64_t behind = a->padding[0] == DM_CONV_SAME ? reach - pad : pad;
  dm_Tensor *t = taps_of(x, pad_depth(x, in, pad, behind), a, taps, depth);
  /* (N, C, T, E, H, W) -> (N E, C T, H, W), and the weight alike */
  t = x_permute(x, t, (dm_Ints){6, {0, 3, 1, 2, 4, 5}});
  t = x_reshape(x, t, 4, (int64_t[]){s[0] * depth, s[1] * taps, s[3], s[4]});
  dm_Tensor *flat = x_reshape(
      x, w, 4, (int64_t[]){w->shape[0], w->shape[1] * taps, w->shape[3], w->shape[4]});
  const dm_ConvAttr plane = {{a->stride[1], a->stride[2]},
                             {a->padding[1], a->padding[2]},
                             {a->dilation[1], a->dilation[2]},
                             a->groups};
  dm_Tensor *y = x_conv(x, &plane, t, flat, c->in[2]);
  if (x->st != DM_OK) return x->st;
  const int64_t shape[] = {s[0], depth, y->shape[1], y->shape[2], y->shape[3]};
  y = x_permute(x, x_reshape(x, y, 5, shape), (dm_Ints){5, {0, 2, 1, 3, 4}});
  c->out[0] = batched ? y : dm_x(x, DM_OP_select, &(int64_t[2]){0, 0}, 1, y);
  return x->st;
}

/* ---- transposed ---- */

/* One axis of a transposed convolution. */
typedef struct Axis {
  int64_t stride, padding, dilation, more; /* more: output_padding */
} Axis;

static dm_status transposed_size(const dm_Call *c, const Axis *a, int64_t in, int64_t kernel,
                                 int64_t *size) {
  if (a->stride < 1 || a->dilation < 1 || a->padding < 0 ||
      dm_max_i64(dm_max_i64(a->stride, a->dilation), a->padding) > INT32_MAX)
    return dm_fail(DM_EARG, "%s: stride %lld, dilation %lld, padding %lld", c->op->name,
                   (long long)a->stride, (long long)a->dilation, (long long)a->padding);
  if (a->more < 0 || a->more >= dm_max_i64(a->stride, a->dilation))
    return dm_fail(DM_EARG,
                   "%s: output_padding is %lld, wanted 0 or more, and less than stride or "
                   "dilation",
                   c->op->name, (long long)a->more);
  const int64_t reach = dm_mul_sizes(a->dilation, kernel - 1);
  *size = dm_add_sizes(dm_mul_sizes(in - 1, a->stride), dm_add_sizes(reach, a->more + 1));
  *size -= 2 * a->padding;
  if (*size >= 1) return DM_OK;
  return dm_fail(DM_EARG, "%s: the output would have size %lld; hint: less padding",
                 c->op->name, (long long)*size);
}

static dm_status check_transposed(const dm_Call *c, int dims, int64_t groups) {
  const dm_Tensor *in = c->in[0], *w = c->in[1], *bias = c->in[2];
  const int64_t channels = in->shape[in->ndim - dims - 1];
  if (channels != w->shape[0])
    return dm_fail(DM_EARG, "%s: input has %lld channels, weight wants %lld", c->op->name,
                   (long long)channels, (long long)w->shape[0]);
  if (groups < 1 || groups > dm_max_i64(channels, 1) || channels % groups != 0)
    return dm_fail(DM_EARG, "%s: %lld groups do not divide %lld input channels", c->op->name,
                   (long long)groups, (long long)channels);
  if (bias && (bias->ndim != 1 || bias->numel != w->shape[1] * groups))
    return dm_fail(DM_EARG, "%s: bias has shape %s, wanted {%lld}", c->op->name, DM_SHAPE(bias),
                   (long long)(w->shape[1] * groups));
  return DM_OK;
}

/* Of planes; bias may be NULL. output_padding of a stride or more, which dilation allows, is
   what zeros behind the input would give. */
static dm_status transposed(dm_Call *c, dm_X *x, const Axis axis[2], int64_t groups,
                            dm_Tensor *in, dm_Tensor *w, dm_Tensor *bias, dm_Tensor **out) {
  dm_ConvSizedAttr sized = {{{axis[0].stride, axis[1].stride},
                             {axis[0].padding, axis[1].padding},
                             {axis[0].dilation, axis[1].dilation},
                             groups},
                            {0, 0}};
  if (x->st != DM_OK) return x->st;
  for (int i = 0; i < 2; i++)
    DM_TRY(transposed_size(c, &axis[i], in->shape[in->ndim - 2 + i], w->shape[2 + i],
                           &sized.size[i]));
  const dm_Ints beyond = {4,
                          {0, axis[1].more / axis[1].stride, 0, axis[0].more / axis[0].stride}};
  if (beyond.v[1] || beyond.v[3]) in = pad_zeros(x, in, beyond);
  const bool inside = bias && in && in->device.type == DM_CPU; /* added before the rounding */
  *out = dm_x(x, DM_OP_conv2d_dx, &sized, inside ? 3 : 2, in, w, bias);
  if (bias && !inside)
    *out = x_add(x, *out, x_reshape(x, bias, 3, (int64_t[]){bias->numel, 1, 1}));
  return x->st;
}

dm_status conv_transpose2d_compose(dm_Call *c, dm_X *x) {
  const dm_ConvTranspose2dAttr *a = c->attr;
  DM_TRY(check_rank(c, 2));
  DM_TRY(check_transposed(c, 2, a->groups));
  Axis axis[2];
  for (int i = 0; i < 2; i++)
    axis[i] = (Axis){a->stride[i], a->padding[i], a->dilation[i], a->output_padding[i]};
  DM_TRY(transposed(c, x, axis, a->groups, c->in[0], c->in[1], c->in[2], &c->out[0]));
  return x->st;
}

dm_status conv_transpose1d_compose(dm_Call *c, dm_X *x) {
  const dm_ConvTranspose1dAttr *a = c->attr;
  DM_TRY(check_rank(c, 1));
  DM_TRY(check_transposed(c, 1, a->groups));
  const Axis axis[2] = {{1, 0, 1, 0}, {a->stride, a->padding, a->dilation, a->output_padding}};
  const int64_t height = -2;
  dm_Tensor *y = NULL;
  DM_TRY(transposed(c, x, axis, a->groups, x_unsqueeze(x, c->in[0], height),
                    x_unsqueeze(x, c->in[1], height), c->in[2], &y));
  c->out[0] = dm_x(x, DM_OP_select, &(int64_t[2]){height, 0}, 1, y);
  return x->st;
}

/* Planes first, whose channels are outputs times taps along the depth; then each tap is
   added to the depth that it falls on, as fold does it: to planes of width 1, whose
   channels are all positions of a plane. */
dm_status conv_transpose3d_compose(dm_Call *c, dm_X *x) {
  const dm_ConvTranspose3dAttr *a = c->attr;
  dm_Tensor *in = c->in[0], *w = c->in[1], *bias = c->in[2];
  Axis axis[3];
  DM_TRY(check_rank(c, 3));
  DM_TRY(check_transposed(c, 3, a->groups));
  for (int i = 0; i < 3; i++)
    axis[i] = (Axis){a->stride[i], a->padding[i], a->dilation[i], a->output_padding[i]};
  const bool batched = in->ndim == 5;
  const int64_t *s = in->shape + in->ndim - 4, *k = w->shape; /* (C,D,H,W), (C,O,T,R,S) */
  const int64_t n = batched ? in->shape[0] : 1, o = k[1] * a->groups;
  int64_t depth = 0;
  DM_TRY(transposed_size(c, &axis[0], s[1], k[2], &depth));
  /* what output_padding beyond the stride makes of the depth, fold wants columns for */
  const int64_t beyond = axis[0].more / axis[0].stride;
  in = x_reshape(x, in, 5, (int64_t[]){n, s[0], s[1], s[2], s[3]});
  in = x_permute(x, in, (dm_Ints){5, {0, 2, 1, 3, 4}});
  in = x_reshape(x, in, 4, (int64_t[]){n * s[1], s[0], s[2], s[3]});
  w = x_reshape(x, w, 4, (int64_t[]){k[0], k[1] * k[2], k[3], k[4]});
  dm_Tensor *y = NULL;
  DM_TRY(transposed(c, x, axis + 1, a->groups, in, w, NULL, &y));
  const int64_t p = y->shape[2], q = y->shape[3];
  /* (N, D, O, T, P, Q) -> (N, O P Q T, D) */
  y = x_reshape(x, y, 6, (int64_t[]){n, s[1], o, k[2], p, q});
  y = x_permute(x, y, (dm_Ints){6, {0, 2, 4, 5, 3, 1}});
  y = x_reshape(x, y, 3, (int64_t[]){n, o * p * q * k[2], s[1]});
  if (beyond) y = pad_zeros(x, y, (dm_Ints){2, {0, beyond}});
  const int64_t fold[][2] = {
      {depth, 1}, {k[2], 1}, {axis[0].dilation, 1}, {axis[0].padding, 0}, {axis[0].stride, 1}};
  y = dm_x(x, DM_OP_fold, fold, 1, y);
  y = x_reshape(x, y, 5, (int64_t[]){n, o, p, q, depth});
  y = x_permute(x, y, (dm_Ints){5, {0, 1, 4, 2, 3}});
  if (bias) y = x_add(x, y, x_reshape(x, bias, 4, (int64_t[]){bias->numel, 1, 1, 1}));
  c->out[0] = batched ? y : dm_x(x, DM_OP_select, &(int64_t[2]){0, 0}, 1, y);
  return x->st;
}
