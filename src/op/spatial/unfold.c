/* pad, unfold, fold, pixel_shuffle, pixel_unshuffle and channel_shuffle: index
   arithmetic on the host, then one gather, scatter or permutation on the device.

   unfold (im2col) turns x (N, C, H, W) into columns (N, C R S, P Q): column p Q + q
   holds the C R S elements of the window at (p, q), for a kernel (R, S). It is an
   index_select from the flat padded plane by the table of positions(r, s, p, q).
   fold (col2im) is its adjoint: index_add of the columns into a plane of zeros by
   the same table, so overlapping windows are summed.

   Both are linear, and each is the other's adjoint: the gradient of unfold is fold of
   gy and the reverse, which follows here from the gradients of index_select and
   index_add. The table depends on sizes alone, so it is computed on the host; nothing
   is read from the device. */
#include "base/error.h"
#include "base/sizes.h"
#include "op/conv/conv.h"
#include "op/shape/create.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"
#include "op/spatial/border.h"

/* ---- checks ---- */

/* x has `dims` spatial dims behind the channels, with a batch dim or without. */
dm_status dm_check_spatial(const dm_Call *c, int dims) {
  static const char *const wanted[] = {"{n, channels, length}", "{n, channels, height, width}",
                                       "{n, channels, depth, height, width}"};
  const dm_Tensor *t = c->in[0];
  if (t->ndim == dims + 1 || t->ndim == dims + 2) return DM_OK;
  return dm_fail(DM_EARG, "%s: input has shape %s, wanted %s, n or not", c->op->name,
                 DM_SHAPE(t), wanted[dims - 1]);
}

dm_status dm_check_samples(const dm_Call *c, int dims) {
  const dm_Tensor *t = c->in[0];
  for (int d = t->ndim - dims - 1; d < t->ndim; d++)
    if (t->shape[d] < 1)
      return dm_fail(DM_EARG, "%s: input has shape %s, only a batch may be empty", c->op->name,
                     DM_SHAPE(t));
  return DM_OK;
}

/* ---- positions ---- */

/* Positions follow from sizes, so the host computes them while a device still works. */
dm_Tensor *dm_x_positions(dm_X *x, int64_t n, int64_t **to) {
  dm_Tensor *t = NULL;
  *to = NULL;
  if (x->st == DM_OK) x->st = dm_tensor_new(DM_I64, 1, &n, (dm_Device){DM_CPU, 0}, &t);
  if (x->st != DM_OK) return NULL;
  *to = dm_tensor_data(t);
  return dm_x_own(x, t);
}

/* One copy from the host, by op to_device. */
dm_Tensor *dm_x_there(dm_X *x, dm_Tensor *t, dm_Device dev) {
  const int64_t move[2] = {dm_device_code(dev), 0};
  return dev.type == DM_CPU ? t : dm_x(x, DM_OP_to_device, move, 1, t);
}

/* index_select has a gradient, so a composition that reads by positions has one too. */
dm_Tensor *dm_x_select(dm_X *x, dm_Tensor *t, int64_t dim, dm_Tensor *at) {
  if (x->st != DM_OK) return NULL;
  return dm_x(x, DM_OP_index_select, &dim, 2, t, dm_x_there(x, at, t->device));
}

/* ---- pad ---- */

/* Fails where the mode cannot fill the border (reflect reaches n - 1 elements,
   circular what is left) or where negative padding removes more than
   there is. */
static dm_status check_pad(const dm_Call *c, dm_PadMode mode, int d, int64_t before,
                           int64_t behind) {
  const int64_t n = c->in[0]->shape[d], most = INT64_MAX / 4;
  const int64_t rest =
      dm_add_sizes(n, dm_add_sizes(dm_min_i64(before, 0), dm_min_i64(behind, 0)));
  const int64_t limit = mode == DM_REFLECT ? n - 1 : mode == DM_CIRCULAR ? rest : most;
  if (before > limit || behind > limit || (mode == DM_REPLICATE && n == 0))
    return dm_fail(DM_EARG, "pad: %lld and %lld elements around dim %d of size %lld%s",
                   (long long)before, (long long)behind, d + c->base, (long long)n,
                   mode == DM_CONSTANT ? "" : ", which the mode cannot fill");
  if (before < -most || behind < -most || n + before + behind < 0)
    return dm_fail(DM_EARG, "pad: %lld and %lld elements leave nothing of dim %d of %lld",
                   (long long)before, (long long)behind, d + c->base, (long long)n);
  return DM_OK;
}

/* Constant padding: a tensor of the padded size full of `value`, into which t is
   written as a strided region. Negative padding narrows t first. */
static dm_Tensor *surrounded(dm_X *x, dm_Tensor *t, const dm_Ints *before,
                             const dm_Ints *behind, double value) {
  dm_AsStridedAttr region = {{t->ndim, {0}}, {t->ndim, {0}}, 0};
  int64_t whole[DM_MAX_DIM];
  for (int d = 0; x->st == DM_OK && d < t->ndim; d++) { /* t is NULL after a failure */
    const int64_t n = t->shape[d], first = dm_max_i64(-before->v[d], 0);
    region.size.v[d] =
        dm_max_i64(n + dm_min_i64(before->v[d], 0) + dm_min_i64(behind->v[d], 0), 0);
    whole[d] = n + before->v[d] + behind->v[d];
    if (region.size.v[d] < n)
      t = dm_x(x, DM_OP_narrow, &(int64_t[3]){d, first, region.size.v[d]}, 1, t);
  }
  dm_contiguous_strides((int)region.size.n, whole, region.stride.v);
  for (int d = 0; d < region.size.n; d++)
    region.storage_offset = dm_add_sizes(
        region.storage_offset, dm_mul_sizes(dm_max_i64(before->v[d], 0), region.stride.v[d]));
  if (x->st != DM_OK) return NULL;
  dm_Tensor *all = x_repeated(x, value, t->ndim, whole, t);
  return dm_x(x, DM_OP_as_strided_scatter, &region, 2, all, t);
}

/* Reflect, replicate and circular padding: by a kernel of the CPU's, elsewhere one index_select
   per padded dim. */
static dm_Tensor *bordered(dm_X *x, dm_Tensor *t, dm_PadMode mode, const dm_Ints *pad,
                           int base) {
  const dm_BorderPadAttr a = {*pad, mode};
  if (t->device.type == DM_CPU) return dm_x(x, DM_OP_border_pad, &a, 1, t);
  for (int d = 0; x->st == DM_OK && d < t->ndim; d++) {
    int64_t *at;
    const int64_t before = dm_pad_of(pad, t->ndim, d, 0),
                  behind = dm_pad_of(pad, t->ndim, d, 1);
    const dm_Border b = dm_border_of(mode, t->shape[d], before, behind);
    if (before == 0 && behind == 0) continue;
    dm_Tensor *from = dm_x_positions(x, b.out, &at);
    for (int64_t i = 0; at && i < b.out; i++) at[i] = dm_border_source(&b, i) + base;
    t = dm_x_select(x, t, d, from);
  }
  return t;
}

/* pad counts from the last dim, two numbers per dim, as torch.nn.functional.pad. */
static dm_status padded(dm_Call *c, dm_X *x, const dm_Ints *pad, dm_PadMode mode,
                        double value) {
  dm_Tensor *t = c->in[0];
  if (pad->n < 0 || pad->n % 2 != 0 || pad->n > 2 * t->ndim)
    return dm_fail(DM_EARG,
                   "pad: %lld numbers for shape %s, wanted two a dim, the last dim first",
                   (long long)pad->n, DM_SHAPE(t));
  dm_Ints before = {t->ndim, {0}}, behind = {t->ndim, {0}};
  bool any = false;
  for (int k = 0; k < pad->n / 2; k++) {
    const int d = t->ndim - 1 - k;
    before.v[d] = pad->v[2 * k];
    behind.v[d] = pad->v[2 * k + 1];
    any = any || before.v[d] != 0 || behind.v[d] != 0;
    DM_TRY(check_pad(c, mode, d, before.v[d], behind.v[d]));
  }
  if (any && mode == DM_CONSTANT) DM_TRY(dm_check_holds("pad", (dm_DType)t->dtype, value));
  c->out[0] = !any                  ? dm_x(x, DM_OP_clone, NULL, 1, t)
              : mode == DM_CONSTANT ? surrounded(x, t, &before, &behind, value)
                                    : bordered(x, t, mode, pad, c->base);
  return x->st;
}

/* Reflection and replication padding are ops of their own because autocast has rules
   for them. */
dm_status pad_compose(dm_Call *c, dm_X *x) {
  const dm_PadAttr *a = DM_ATTR(dm_PadAttr, c);
  if (a->mode != DM_REFLECT && a->mode != DM_REPLICATE)
    return padded(c, x, &a->pad, (dm_PadMode)a->mode, a->value);
  const int op = a->mode == DM_REFLECT ? DM_OP_reflection_pad : DM_OP_replication_pad;
  c->out[0] = dm_x(x, op, &a->pad, 1, c->in[0]);
  return x->st;
}

/* The border mirrors the interior without repeating the edge element. */
dm_status reflection_pad_compose(dm_Call *c, dm_X *x) {
  return padded(c, x, &DM_ATTR(dm_PadsAttr, c)->pad, DM_REFLECT, 0);
}

/* The border repeats the edge element. */
dm_status replication_pad_compose(dm_Call *c, dm_X *x) {
  return padded(c, x, &DM_ATTR(dm_PadsAttr, c)->pad, DM_REPLICATE, 0);
}

/* ---- unfold and fold ---- */

/* Sets n to the number of windows along both axes of a plane of this size. */
static dm_status count_windows(const dm_Call *c, const dm_UnfoldAttr *a, const int64_t size[2],
                               int64_t n[2]) {
  enum { MOST = 1 << 20 };
  for (int i = 0; i < 2; i++) {
    if (a->kernel_size[i] < 1 || a->dilation[i] < 1 || a->stride[i] < 1 || a->padding[i] < 0 ||
        a->kernel_size[i] > MOST || a->dilation[i] > MOST || a->stride[i] > MOST ||
        a->padding[i] > MOST || size[i] < 0 || size[i] > INT32_MAX)
      return dm_fail(
          DM_EARG,
          "%s: kernel %lld, dilation %lld, padding %lld, stride %lld: wanted at least "
          "1, 1, 0 and 1, and at most 2^20",
          c->op->name, (long long)a->kernel_size[i], (long long)a->dilation[i],
          (long long)a->padding[i], (long long)a->stride[i]);
    const int64_t span = a->dilation[i] * (a->kernel_size[i] - 1) + 1;
    const int64_t slack = size[i] + 2 * a->padding[i] - span;
    if (slack < 0)
      return dm_fail(DM_EARG,
                     "%s: a window that spans %lld does not fit into %s %lld, padding "
                     "included",
                     c->op->name, (long long)span, i ? "width" : "height",
                     (long long)(size[i] + 2 * a->padding[i]));
    n[i] = slack / a->stride[i] + 1;
  }
  return DM_OK;
}

/* The position in the flat padded plane of each element of each column, in the order
   (r, s, p, q). */
static dm_Tensor *positions(dm_X *x, const dm_UnfoldAttr *a, const int64_t n[2], int64_t width,
                            int base) {
  int64_t *at;
  const int64_t taps = a->kernel_size[0] * a->kernel_size[1]; /* at most 2^40 */
  dm_Tensor *t = dm_x_positions(x, dm_mul_sizes(taps, dm_mul_sizes(n[0], n[1])), &at);
  if (!t) return NULL;
  for (int64_t r = 0; r < a->kernel_size[0]; r++)
    for (int64_t s = 0; s < a->kernel_size[1]; s++)
      for (int64_t p = 0; p < n[0]; p++)
        for (int64_t q = 0; q < n[1]; q++)
          *at++ = (r * a->dilation[0] + p * a->stride[0]) * width + s * a->dilation[1] +
                  q * a->stride[1] + base;
  return t;
}

/* t with zeros around its planes; negative numbers remove rows and columns. */
static dm_Tensor *x_pad(dm_X *x, dm_Tensor *t, int64_t rows, int64_t columns) {
  const dm_PadAttr a = {{4, {columns, columns, rows, rows}}, DM_CONSTANT, 0};
  return rows || columns ? dm_x(x, DM_OP_pad, &a, 1, t) : t;
}

/* x (N, C, H, W) -> (N, C R S, P Q): the im2col matrix. */
dm_status unfold_compose(dm_Call *c, dm_X *x) {
  const dm_UnfoldAttr *a = DM_ATTR(dm_UnfoldAttr, c);
  dm_Tensor *t = c->in[0];
  if (t->ndim != 3 && t->ndim != 4)
    return dm_fail(DM_EARG,
                   "unfold: x has shape %s, wanted {n, channels, height, width} or "
                   "{channels, height, width}",
                   DM_SHAPE(t));
  const int64_t *size = t->shape + t->ndim - 2;
  int64_t n[2];
  DM_TRY(count_windows(c, a, size, n));
  const int64_t padded[2] = {size[0] + 2 * a->padding[0], size[1] + 2 * a->padding[1]};
  const int64_t planes[3] = {t->ndim == 4 ? t->shape[0] : 1, t->shape[t->ndim - 3],
                             padded[0] * padded[1]};
  dm_Tensor *flat = x_reshape(x, x_pad(x, t, a->padding[0], a->padding[1]), 3, planes);
  dm_Tensor *y = dm_x_select(x, flat, 2, positions(x, a, n, padded[1], c->base));
  const int64_t shape[3] = {planes[0], planes[1] * a->kernel_size[0] * a->kernel_size[1],
                            n[0] * n[1]};
  c->out[0] = x_reshape(x, y, t->ndim - 1, shape + 4 - t->ndim);
  return x->st;
}

/* x (N, C R S, P Q) -> (N, C, H, W): windows are added up in a padded plane, whose
   border is then removed. */
dm_status fold_compose(dm_Call *c, dm_X *x) {
  const dm_FoldAttr *f = DM_ATTR(dm_FoldAttr, c);
  const dm_UnfoldAttr *a = &f->columns;
  dm_Tensor *t = c->in[0];
  int64_t n[2];
  DM_TRY(count_windows(c, a, f->output_size, n));
  const int64_t each = a->kernel_size[0] * a->kernel_size[1];
  if ((t->ndim != 2 && t->ndim != 3) || t->shape[t->ndim - 2] % each != 0 ||
      t->shape[t->ndim - 1] != n[0] * n[1])
    return dm_fail(DM_EARG,
                   "fold: x has shape %s, wanted {n, channels times %lld, %lld} for that size "
                   "and kernel",
                   DM_SHAPE(t), (long long)each, (long long)(n[0] * n[1]));
  DM_TRY(dm_check_float(c, t, "x"));
  const int64_t padded[2] = {f->output_size[0] + 2 * a->padding[0],
                             f->output_size[1] + 2 * a->padding[1]};
  const int64_t batch = t->ndim == 3 ? t->shape[0] : 1;
  const int64_t channels = t->shape[t->ndim - 2] / each;
  dm_Tensor *source = x_reshape(x, t, 3, (int64_t[]){batch, channels, each * n[0] * n[1]});
  dm_Tensor *at = dm_x_there(x, positions(x, a, n, padded[1], c->base), t->device);
  dm_Tensor *plane =
      x_repeated(x, 0, 3, (int64_t[]){batch, channels, padded[0] * padded[1]}, t);
  /* index_add has a fixed order of additions, so that overlapping windows give the
     same bits in each run. */
  const dm_IndexAddAttr add = {2, 1};
  dm_Tensor *y = dm_x(x, DM_OP_index_add, &add, 3, plane, at, source);
  y = x_reshape(x, y, 4, (int64_t[]){batch, channels, padded[0], padded[1]});
  y = x_pad(x, y, -a->padding[0], -a->padding[1]);
  if (t->ndim == 2)
    y = x_reshape(x, y, 3, (int64_t[]){channels, f->output_size[0], f->output_size[1]});
  c->out[0] = y;
  return x->st;
}

/* ---- channels as positions ---- */

/* A factor r whose square divides the channels (shuffle), or that divides height and
   width. */
static dm_status check_blocks(const dm_Call *c, int64_t r, bool shuffles) {
  const dm_Tensor *t = c->in[0];
  if (t->ndim < 3 || t->ndim + 2 > DM_MAX_DIM)
    return dm_fail(DM_EARG, "%s: x has shape %s, wanted {..., channels, height, width}",
                   c->op->name, DM_SHAPE(t));
  const int64_t *s = t->shape + t->ndim - 3;
  const bool fits = r >= 1 && r < 1 << 15 &&
                    (shuffles ? s[0] % (r * r) == 0 : s[1] % r == 0 && s[2] % r == 0);
  if (fits) return DM_OK;
  return dm_fail(DM_EARG, "%s: shape %s and a factor of %lld, which must divide %s",
                 c->op->name, DM_SHAPE(t), (long long)r,
                 shuffles ? "the channels twice" : "height and width");
}

/* Reshapes t (..., C, H, W) to (..., five sizes), permutes these five by `order` and
   reshapes them to three sizes. */
static dm_Tensor *regrouped(dm_X *x, dm_Tensor *t, const int64_t five[5], const int order[5],
                            const int64_t three[3]) {
  const int lead = t->ndim - 3;
  int64_t shape[DM_MAX_DIM];
  dm_Ints dims = {lead + 5, {0}};
  for (int d = 0; d < lead; d++) {
    shape[d] = t->shape[d];
    dims.v[d] = d;
  }
  for (int d = 0; d < 5; d++) {
    shape[lead + d] = five[d];
    dims.v[lead + d] = lead + order[d];
  }
  dm_Tensor *y = dm_x(x, DM_OP_permute, &dims, 1, x_reshape(x, t, lead + 5, shape));
  for (int d = 0; d < 3; d++) shape[lead + d] = three[d];
  return x_reshape(x, y, lead + 3, shape);
}

/* (..., C r^2, H, W) -> (..., C, H r, W r): channel c r^2 + i r + j becomes position
   (i, j) of each r x r block. */
dm_status pixel_shuffle_compose(dm_Call *c, dm_X *x) {
  const int64_t r = DM_ATTR(dm_PixelShuffleAttr, c)->upscale_factor;
  DM_TRY(check_blocks(c, r, true));
  const int64_t *s = c->in[0]->shape + c->in[0]->ndim - 3, n = s[0] / (r * r);
  c->out[0] = regrouped(x, c->in[0], (int64_t[]){n, r, r, s[1], s[2]}, (int[]){0, 3, 1, 4, 2},
                        (int64_t[]){n, s[1] * r, s[2] * r});
  return x->st;
}

/* (..., C, H r, W r) -> (..., C r^2, H, W), the inverse. */
dm_status pixel_unshuffle_compose(dm_Call *c, dm_X *x) {
  const int64_t r = DM_ATTR(dm_PixelUnshuffleAttr, c)->downscale_factor;
  DM_TRY(check_blocks(c, r, false));
  const int64_t *s = c->in[0]->shape + c->in[0]->ndim - 3, h = s[1] / r, w = s[2] / r;
  c->out[0] = regrouped(x, c->in[0], (int64_t[]){s[0], h, r, w, r}, (int[]){0, 2, 4, 1, 3},
                        (int64_t[]){s[0] * r * r, h, w});
  return x->st;
}

/* (N, C, ...) with the C channels as (groups, C / groups) transposed to (C / groups,
   groups). */
dm_status channel_shuffle_compose(dm_Call *c, dm_X *x) {
  const int64_t groups = DM_ATTR(dm_ChannelShuffleAttr, c)->groups;
  dm_Tensor *t = c->in[0];
  if (t->ndim < 3 || groups < 1 || t->shape[1] % groups != 0)
    return dm_fail(DM_EARG,
                   "channel_shuffle: x is %s and groups = %lld, wanted at least 3 dims "
                   "and groups that divide dim %d",
                   DM_SHAPE(t), (long long)groups, 1 + c->base);
  const int64_t parts[4] = {t->shape[0], groups, t->shape[1] / groups,
                            dm_numel(t->ndim - 2, t->shape + 2)};
  dm_Tensor *y = x_transpose(x, x_reshape(x, t, 4, parts), 1, 2);
  c->out[0] = x_reshape(x, y, t->ndim, t->shape);
  return x->st;
}
