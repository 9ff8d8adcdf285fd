/* 2-d convolution: what it is asked to be, and its sizes; for the kernels of every
   device. The arithmetic is for what the rules of conv.c let through. */
#ifndef DM_OP_CONV_H
#define DM_OP_CONV_H

#include "cpu/conv.h"
#include "engine/op.h"

enum { DM_CONV_SAME = -1 }; /* padding that gives the output the input's size */

typedef struct dm_ImageDims { /* a batch of images, or one without a batch dim */
  int64_t n, c, h, w;
} dm_ImageDims;

static inline dm_ImageDims dm_image_dims(const dm_Tensor *t) {
  const int64_t *s = t->shape + t->ndim - 3;
  const dm_ImageDims image = {t->ndim == 4 ? t->shape[0] : 1, s[0], s[1], s[2]};
  return image;
}

/* Padding and output size along axis i; the size is below 1 where the kernel does
   not fit. SAME puts half of the padding before, and an odd one behind. */
static inline void dm_conv_axis(const dm_ConvAttr *a, int i, int64_t in, int64_t kernel,
                                int64_t *pad, int64_t *out) {
  const int64_t reach = a->dilation[i] * (kernel - 1);
  const bool same = a->padding[i] == DM_CONV_SAME;
  *pad = same ? reach / 2 : a->padding[i];
  const int64_t extent = in + 2 * *pad - reach - 1;
  *out = same ? in : extent < 0 ? 0 : extent / a->stride[i] + 1;
}

/* Fails: the input's channels are not those of the weight (O, C/G, ...) times the groups. */
dm_status dm_refuse_channels(const char *op, const dm_Tensor *x, int64_t channels,
                             const dm_Tensor *w, int64_t groups);

static inline dm_ConvDims dm_conv_dims(const dm_ConvAttr *a, dm_ImageDims x, int64_t o,
                                       int64_t r, int64_t s) {
  dm_ConvDims d;
  d.n = x.n;
  d.c = x.c;
  d.h = x.h;
  d.w = x.w;
  d.o = o;
  d.r = r;
  d.s = s;
  d.groups = a->groups;
  for (int i = 0; i < 2; i++) {
    d.stride[i] = a->stride[i];
    d.dil[i] = a->dilation[i];
  }
  dm_conv_axis(a, 0, x.h, r, &d.pad[0], &d.p);
  dm_conv_axis(a, 1, x.w, s, &d.pad[1], &d.q);
  return d;
}

/* Outside the CPU a batch's channels lie last: libraries are fastest so, and the ops between
   convolutions leave them there (F_LAYOUT). Signals (conv1d's) lie in rows: between their
   convolutions they have three dims. */
static inline bool dm_conv_is_last(const dm_Tensor *image, const dm_ConvDims *d) {
  return image->ndim == 4 && image->device.type != DM_CPU && (d->h > 1 || d->r > 1);
}

/* conv2d: in = x, weight. */
static inline dm_ConvDims dm_conv2d_dims(const dm_Call *c) {
  const int64_t *w = c->in[1]->shape;
  return dm_conv_dims(DM_ATTR(dm_ConvAttr, c), dm_image_dims(c->in[0]), w[0], w[2], w[3]);
}

/* conv2d_dx: in = gy, weight; size = (H,W). */
static inline dm_ConvDims dm_conv2d_dx_dims(const dm_Call *c) {
  const dm_ConvSizedAttr *a = DM_ATTR(dm_ConvSizedAttr, c);
  const int64_t *w = c->in[1]->shape;
  const dm_ImageDims x = {dm_image_dims(c->in[0]).n, w[1] * a->conv.groups, a->size[0],
                          a->size[1]};
  return dm_conv_dims(&a->conv, x, w[0], w[2], w[3]);
}

/* conv2d_dw: in = gy, x; size = (R,S). */
static inline dm_ConvDims dm_conv2d_dw_dims(const dm_Call *c) {
  const dm_ConvSizedAttr *a = DM_ATTR(dm_ConvSizedAttr, c);
  return dm_conv_dims(&a->conv, dm_image_dims(c->in[1]), dm_image_dims(c->in[0]).c, a->size[0],
                      a->size[1]);
}

#endif
