/* conv2d: x (N,C,H,W), weight (O,C/G,R,S) -> y (N,O,P,Q); x without N gives y
   without. It is linear in x and in weight, so the three products conv2d,
   conv2d_dx and conv2d_dw are each other's gradients, to any order.

   With d the geometry (strides U and V, padding A and B, dilation D and E), each
   output is y[n, o, p, q] = sum over c, r, s of x[n, c, p U - A + r D, q V - B + s E]
   w[o, c, r, s], where x is 0 outside and c runs over the channels of o's group.
   conv2d_dx is the sum over o, p, q of the same products for each element of x, and
   conv2d_dw the sum over n, p, q for each element of w. cpu/conv.c chooses the
   algorithm. Sums of 16-bit floats run in float32.

   The gradient ops take the size that they give as an attribute: with a stride
   several sizes of x, and several sizes of the kernel, give one size of y. */
#include "op/conv/conv.h"

#include <stdio.h>

#include "base/error.h"
#include "core/copy.h"
#include "op/pointwise/pointwise.h"

/* ---- shapes ---- */

/* A batch of images (N, C, H, W) or one image (C, H, W), of floats. */
static dm_status check_image(const dm_Call *c, const dm_Tensor *t, const char *what) {
  if (t->ndim == 3 || t->ndim == 4) return dm_check_float(c, t, what);
  return dm_fail(DM_EARG,
                 "%s: %s has shape %s, wanted {n, channels, height, width} or {channels, "
                 "height, width}",
                 c->op->name, what, DM_SHAPE(t));
}

/* Products of mixed dtypes are not computed; the hint names the two ways out. */
static dm_status check_same_dtype(const dm_Call *c, const dm_Tensor *x, const dm_Tensor *w,
                                  const char *what) {
  if (x->dtype == w->dtype) return DM_OK;
  const char *other = dm_dtype_name((dm_DType)w->dtype);
  return dm_fail(DM_EARG,
                 "%s: input is %s, %s %s: all must have one dtype; hint: x:to(\"%s\") or "
                 "autocast",
                 c->op->name, dm_dtype_name((dm_DType)x->dtype), what, other, other);
}

/* 0 .. MAX_STEP: no product of them with a size overflows. */
static bool out_of_bounds(int64_t v, int64_t least) {
  enum { MAX_STEP = 1 << 20 };
  return v < least || v > MAX_STEP;
}

/* Stride and dilation from 1, padding from 0 or DM_CONV_SAME, which needs stride 1:
   with a larger stride y cannot have x's size. */
static dm_status check_attr(const dm_Call *c, const dm_ConvAttr *a) {
  for (int i = 0; i < 2; i++) {
    if (out_of_bounds(a->stride[i], 1) || out_of_bounds(a->dilation[i], 1) ||
        out_of_bounds(a->padding[i], DM_CONV_SAME))
      return dm_fail(DM_EARG,
                     "%s: stride %lld, dilation %lld, padding %lld: wanted at least 1, 1 "
                     "and 0, and at most 2^20",
                     c->op->name, (long long)a->stride[i], (long long)a->dilation[i],
                     (long long)a->padding[i]);
    if (a->padding[i] == DM_CONV_SAME && a->stride[i] != 1)
      return dm_fail(DM_EARG, "%s: stride %lld, but padding \"same\" wants 1", c->op->name,
                     (long long)a->stride[i]);
  }
  return DM_OK;
}

/* Fails where the kernel, spread by its dilation, is wider than the padded input:
   there would be no output position. i is 0 for the height, 1 for the width. */
static dm_status check_axis(const dm_Call *c, const dm_ConvAttr *a, int i, int64_t in,
                            int64_t kernel, int64_t pad, int64_t out) {
  const int64_t span = a->dilation[i] * (kernel - 1) + 1;
  if (kernel < 1)
    return dm_fail(DM_EARG, "%s: the kernel's %s is %lld, wanted at least 1", c->op->name,
                   i ? "width" : "height", (long long)kernel);
  if (out > 0 || a->padding[i] == DM_CONV_SAME) return DM_OK;
  return dm_fail(
      DM_EARG, "%s: a kernel that spans %lld does not fit into %s %lld, padding included",
      c->op->name, (long long)span, i ? "width" : "height", (long long)(in + 2 * pad));
}

/* Groups divide both numbers of channels, and the kernel fits along both axes. */
static dm_status check_dims(const dm_Call *c, const dm_ConvAttr *a, const dm_ConvDims *d) {
  if (a->groups < 1 || d->o % a->groups != 0 || d->c % a->groups != 0)
    return dm_fail(DM_EARG, "%s: %lld groups do not divide %lld input and %lld output channels",
                   c->op->name, (long long)a->groups, (long long)d->c, (long long)d->o);
  DM_TRY(check_axis(c, a, 0, d->h, d->r, d->pad[0], d->p));
  return check_axis(c, a, 1, d->w, d->s, d->pad[1], d->q);
}

/* The weight is (O, C/G, R, S) with no size of 0; an empty batch is allowed, an empty
   kernel is not. */
static dm_status weight_dims(const dm_Call *c, const dm_Tensor *w) {
  if (w->ndim == 4 && w->numel > 0) return DM_OK;
  return dm_fail(
      DM_EARG,
      "%s: weight has shape %s, wanted {out, in / groups, height, width} of at least "
      "1 each",
      c->op->name, DM_SHAPE(w));
}

/* gy must be what d's forward gives. */
static dm_status check_gy(const dm_Call *c, const dm_ConvDims *d, const dm_Tensor *gy) {
  const dm_ImageDims y = dm_image_dims(gy);
  if (y.n == d->n && y.c == d->o && y.h == d->p && y.w == d->q) return DM_OK;
  return dm_fail(DM_EARG, "%s: gradient of shape %s, wanted {%lld, %lld, %lld, %lld}",
                 c->op->name, DM_SHAPE(gy), (long long)d->n, (long long)d->o, (long long)d->p,
                 (long long)d->q);
}

/* Output 0: like the image `like` (with or without a batch dim), sizes new. */
static void image_meta(dm_Call *c, const dm_Tensor *like, const dm_ConvDims *d,
                       int64_t channels, int64_t h, int64_t w) {
  dm_out_like(c, 0, like, (dm_DType)like->dtype);
  int64_t *s = c->out_meta[0].shape + like->ndim - 3;
  s[0] = channels;
  s[1] = h;
  s[2] = w;
  c->out_meta[0].channels_last = dm_conv_is_last(like, d);
}

/* The bias (O), or NULL: callers without one pass two tensors. */
static dm_Tensor *bias_of(const dm_Call *c) { return c->n_in > 2 ? c->in[2] : NULL; }

/* ---- rules ---- */

dm_status dm_refuse_channels(const char *op, const dm_Tensor *x, int64_t channels,
                             const dm_Tensor *w, int64_t groups) {
  char each[48] = "";
  if (groups > 1) snprintf(each, sizeof each, " in each of %lld groups", (long long)groups);
  return dm_fail(DM_EARG,
                 "%s: input of shape %s has %lld channels, weight of shape %s wants %lld%s", op,
                 DM_SHAPE(x), (long long)channels, DM_SHAPE(w), (long long)w->shape[1], each);
}

/* x (N, C, H, W), weight (O, C/G, R, S), bias (O) -> y (N, O, P, Q), all of one float
   dtype. */
dm_status conv2d_rule(dm_Call *c) {
  const dm_Tensor *x = c->in[0], *w = c->in[1], *bias = bias_of(c);
  const dm_ConvAttr *a = DM_ATTR(dm_ConvAttr, c);
  DM_TRY(check_image(c, x, "input"));
  DM_TRY(weight_dims(c, w));
  if (a->groups < 1)
    return dm_fail(DM_EARG, "conv2d: groups is %lld, wanted at least 1", (long long)a->groups);
  const int64_t channels = dm_image_dims(x).c, each = w->shape[1];
  if (channels % a->groups != 0 || channels / a->groups != each)
    return dm_refuse_channels("conv2d", x, channels, w, a->groups);
  DM_TRY(check_same_dtype(c, x, w, "weight"));
  if (bias) {
    DM_TRY(check_same_dtype(c, x, bias, "bias"));
    if (bias->ndim != 1 || bias->shape[0] != w->shape[0])
      return dm_fail(DM_EARG, "conv2d: bias has shape %s, wanted {%lld}", DM_SHAPE(bias),
                     (long long)w->shape[0]);
  }
  DM_TRY(check_attr(c, a));
  const dm_ConvDims d = dm_conv2d_dims(c);
  DM_TRY(check_dims(c, a, &d));
  image_meta(c, x, &d, d.o, d.p, d.q);
  return DM_OK;
}

/* in: gy (N, O, P, Q), weight (O, C/G, R, S); out: gx (N, C, H, W), with H and W from
   `size`. */
dm_status conv2d_dx_rule(dm_Call *c) {
  const dm_ConvAttr *a = &DM_ATTR(dm_ConvSizedAttr, c)->conv;
  DM_TRY(check_image(c, c->in[0], "gradient"));
  DM_TRY(weight_dims(c, c->in[1]));
  DM_TRY(check_same_dtype(c, c->in[0], c->in[1], "weight"));
  DM_TRY(check_attr(c, a));
  if (bias_of(c)) DM_TRY(check_same_dtype(c, c->in[0], bias_of(c), "bias"));
  const dm_ConvDims d = dm_conv2d_dx_dims(c);
  DM_TRY(check_dims(c, a, &d));
  DM_TRY(check_gy(c, &d, c->in[0]));
  image_meta(c, c->in[0], &d, d.c, d.h, d.w);
  return DM_OK;
}

/* in: gy (N, O, P, Q), x (N, C, H, W); out: gw (O, C/G, R, S), with R and S from
   `size`. Without a batch dim the sum runs over one image. */
/* In 16 bits, the gradient lies channels last where the images do, as cuDNN gives it:
   autocast's cast to float32 brings it to the weight's layout anyway. */
dm_status conv2d_dw_rule(dm_Call *c) {
  const dm_ConvAttr *a = &DM_ATTR(dm_ConvSizedAttr, c)->conv;
  DM_TRY(check_image(c, c->in[0], "gradient"));
  DM_TRY(check_image(c, c->in[1], "input"));
  DM_TRY(check_same_dtype(c, c->in[0], c->in[1], "input"));
  DM_TRY(check_attr(c, a));
  const dm_ConvDims d = dm_conv2d_dw_dims(c);
  DM_TRY(check_dims(c, a, &d));
  DM_TRY(check_gy(c, &d, c->in[0]));
  c->out_meta[0] = (dm_Meta){.dtype = c->in[0]->dtype,
                             .ndim = 4,
                             .device = c->in[0]->device,
                             .shape = {d.o, d.c / d.groups, d.r, d.s},
                             .channels_last = dm_is_low((dm_DType)c->in[0]->dtype) &&
                                              dm_conv_is_last(c->in[0], &d)};
  return DM_OK;
}

/* ---- kernels ---- */

/* One of the three products on dense NCHW tensors: two operands, the bias (NULL for
   the gradients), and the result. */
typedef dm_status RunFn(const dm_ConvDims *d, dm_DType t, const void *a, const void *b,
                        const void *bias, void *out);

static dm_status run_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                         const void *bias, void *y) {
  return dm_conv2d_fwd(d, t, x, w, bias, y);
}
static dm_status run_dx(const dm_ConvDims *d, dm_DType t, const void *gy, const void *w,
                        const void *bias, void *gx) {
  return dm_conv2d_dx(d, t, gy, w, bias, gx);
}
static dm_status run_dw(const dm_ConvDims *d, dm_DType t, const void *gy, const void *x,
                        const void *bias, void *gw) {
  DM_UNUSED(bias);
  return dm_conv2d_dw(d, t, gy, x, gw);
}

/* The kernels read dense NCHW. */
static dm_status run_dense(dm_Call *c, const dm_ConvDims *d, RunFn *fn) {
  dm_Tensor *dense[3] = {NULL, NULL, NULL}, *out = c->out[0];
  dm_status st = DM_OK;
  if (out->numel == 0) return DM_OK;
  for (int i = 0; i < c->n_in; i++)
    if (c->in[i]) DM_GO(dm_dense_new(c->in[i], &dense[i]));
  st = fn(d, (dm_DType)out->dtype, dm_tensor_data(dense[0]), dm_tensor_data(dense[1]),
          dense[2] ? dm_tensor_data(dense[2]) : NULL, dm_tensor_data(out));
done:
  for (int i = 0; i < 3; i++) dm_tensor_unref(&dense[i]);
  return st;
}

/* The bias joins each output's sum before it is rounded. */
dm_status conv2d_cpu(dm_Call *c) {
  const dm_ConvDims d = dm_conv2d_dims(c);
  return run_dense(c, &d, run_fwd);
}

dm_status conv2d_dx_cpu(dm_Call *c) {
  const dm_ConvDims d = dm_conv2d_dx_dims(c);
  return run_dense(c, &d, run_dx);
}

dm_status conv2d_dw_cpu(dm_Call *c) {
  const dm_ConvDims d = dm_conv2d_dw_dims(c);
  return run_dense(c, &d, run_dw);
}

/* ---- gradients ---- */

static dm_Tensor *x_fwd(dm_X *x, const dm_ConvAttr *a, dm_Tensor *in, dm_Tensor *w) {
  return dm_x(x, DM_OP_conv2d, a, 2, in, w);
}
/* The gradient for an input of `like`'s shape. */
static dm_Tensor *x_dx(dm_X *x, const dm_ConvAttr *a, dm_Tensor *gy, dm_Tensor *w,
                       const dm_Meta *like) {
  const int64_t *s = like->shape + like->ndim - 2;
  const dm_ConvSizedAttr sized = {*a, {s[0], s[1]}};
  return dm_x(x, DM_OP_conv2d_dx, &sized, 2, gy, w);
}
static dm_Tensor *x_dw(dm_X *x, const dm_ConvAttr *a, dm_Tensor *gy, dm_Tensor *in,
                       const dm_Meta *like) {
  const int64_t *s = like->shape + like->ndim - 2;
  const dm_ConvSizedAttr sized = {*a, {s[0], s[1]}};
  return dm_x(x, DM_OP_conv2d_dw, &sized, 2, gy, in);
}

/* Of a bias, input 2: the sum over all dims but the channels. */
static void bias_gradient(dm_Grad *g) {
  dm_Tensor *gy = g->gy[0];
  const dm_Ints dims = gy->ndim == 4 ? (dm_Ints){3, {0, 2, 3}} : (dm_Ints){2, {1, 2}};
  if (g->n_in > 2 && g->need[2]) g->gx[2] = x_sum(g->x, gy, dims, false);
}

/* gx = conv2d_dx(gy, w), gw = conv2d_dw(gy, x), and gb sums gy over all dims but the
   channels. */
void conv2d_grad(dm_Grad *g) {
  const dm_ConvAttr *a = DM_ATTR(dm_ConvAttr, g);
  dm_Tensor *gy = g->gy[0];
  if (g->need[0]) g->gx[0] = x_dx(g->x, a, gy, g->in[1], dm_in_meta(g, 0));
  if (g->need[1]) g->gx[1] = x_dw(g->x, a, gy, g->in[0], dm_in_meta(g, 1));
  bias_gradient(g);
}

/* z = conv2d_dx(gy, w), and a bias a channel of z: a transposed convolution. */
void conv2d_dx_grad(dm_Grad *g) {
  const dm_ConvAttr *a = &DM_ATTR(dm_ConvSizedAttr, g)->conv;
  dm_Tensor *gz = g->gy[0];
  if (g->need[0]) g->gx[0] = x_fwd(g->x, a, gz, g->in[1]);
  if (g->need[1]) g->gx[1] = x_dw(g->x, a, g->in[0], gz, dm_in_meta(g, 1));
  bias_gradient(g);
}

/* z = conv2d_dw(gy, x) */
void conv2d_dw_grad(dm_Grad *g) {
  const dm_ConvAttr *a = &DM_ATTR(dm_ConvSizedAttr, g)->conv;
  dm_Tensor *gz = g->gy[0];
  if (g->need[0]) g->gx[0] = x_fwd(g->x, a, g->in[1], gz);
  if (g->need[1]) g->gx[1] = x_dx(g->x, a, g->in[0], gz, dm_in_meta(g, 1));
}
