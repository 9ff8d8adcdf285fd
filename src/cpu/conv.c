/* Chooses the algorithm of each convolution. The list below is the only place that decides:
   the first algorithm whose condition holds serves the call. The condition sees shape, dtype
   and pass, never the number of threads, so that results do not depend on it.

     dense      one matrix product with a matrix (O PQ, C HW) spread from the weights
     pointwise  one matrix product an image, of the planes as they are
     blocks     the taps of 16 channels side by side, where a group has one input channel
     depthwise  the same, where there are few: the taps of each plane
     winograd   F(4 x 4, 3 x 3), 36 products where others do 144, or F(2 x 2, 3 x 3), 16 for 36
     implicit   a matrix product of gathered positions, for every shape */
#include "cpu/conv.h"

#include "cpu/conv_blocks.h"
#include "cpu/conv_depthwise.h"
#include "cpu/conv_implicit.h"
#include "cpu/conv_product.h"
#include "cpu/gemm_variant.h"
#include "cpu/loops/loops.h"
#include "cpu/winograd.h"

#include <string.h>

typedef enum Pass { FORWARD, DX, DW } Pass;

/* ---- the conditions; no size of d is 0 ------------------------------------------- */

/* Planes of at most as many positions as the kernel has taps: most taps of an implicit product
   would fall outside. Few images do not pay for spreading the weights. */
static bool serves_dense(const dm_ConvDims *d, dm_DType t, Pass pass) {
  enum { IMAGES = 8, MOST_MATRIX = 16 << 20 /* elements */ };
  const int64_t n_in = d->h * d->w, n_out = d->p * d->q;
  DM_UNUSED(t), DM_UNUSED(pass);
  return d->groups == 1 && d->n >= IMAGES && d->r * d->s > 1 && n_in <= d->r * d->s &&
         n_in * n_out <= DM_DENSE_PAIRS && d->c * d->o <= MOST_MATRIX / (n_in * n_out);
}

/* 1 x 1 kernels on large planes: the planes of an image are a matrix (C, HW) already. A
   small plane would have the weights packed again for each image. A group that makes fewer
   than THIN channels has too few products for the packing of its positions. dw sums images:
   this is for one of them. */
static bool serves_pointwise(const dm_ConvDims *d, dm_DType t, Pass pass) {
  enum { LEAST_POSITIONS = 800, THIN = 8 };
  DM_UNUSED(t);
  const bool plain = d->r == 1 && d->s == 1 && d->stride[0] == 1 && d->stride[1] == 1 &&
                     d->pad[0] == 0 && d->pad[1] == 0;
  if (!plain || d->h * d->w < LEAST_POSITIONS) return false;
  if (pass == DW) return d->n == 1;
  return (pass == FORWARD ? d->o : d->c) >= THIN * d->groups;
}

/* Groups of one input channel have no sums over channels, for which products are made. */
static bool serves_depthwise(const dm_ConvDims *d, dm_DType t, Pass pass) {
  enum { EACH = 4, STRIDE = 4 }; /* more output channels of a group are a product again */
  DM_UNUSED(pass);
  return d->groups > 1 && d->groups == d->c && d->o <= EACH * d->groups &&
         d->stride[0] <= STRIDE && d->stride[1] <= STRIDE && dm_compute_dtype(t) == DM_F32;
}

/* Channels that fill three quarters of the blocks, which need memory for all positions between
   taps. */
static bool serves_blocks(const dm_ConvDims *d, dm_DType t, Pass pass) {
  enum { BLOCK = DM_BLOCK_CHANNELS, MOST_BETWEEN = 1 << 16 };
  const int64_t lanes = dm_ceil_div(d->c, BLOCK) * BLOCK;
  const int64_t between[2] = {(d->r - 1) * d->dil[0] + 1, (d->s - 1) * d->dil[1] + 1};
  return serves_depthwise(d, t, pass) && 4 * d->c >= 3 * lanes && between[0] <= MOST_BETWEEN &&
         between[1] <= MOST_BETWEEN / between[0];
}

/* 3 x 3 kernels of stride 1 with enough channels to pay for the transforms. Processors that
   multiply pairs of bfloat16 do that in half the time of float32 (AMX: far less) and without
   transforms; of those only F(4 x 4, 3 x 3), with a quarter of the products, wins against
   pairs. In dw a transform pays by the products that use it, and costs more in short rows. */
static bool serves_winograd(const dm_ConvDims *d, dm_DType t, Pass pass) {
  enum { CHANNELS = 32, DW_WORTH = 640 /* channels times tiles of a row */ };
  const int64_t channels = dm_min_i64(d->c, d->o);
  const int64_t rows = dm_ceil_div(d->p, 2), cols = dm_ceil_div(d->q, 2);
  if (dm_compute_dtype(t) != DM_F32) return false;
  if (d->r != 3 || d->s != 3 || d->groups != 1 || channels < CHANNELS) return false;
  if (d->stride[0] != 1 || d->stride[1] != 1 || d->dil[0] != 1 || d->dil[1] != 1) return false;
  if (d->pad[0] > 2 || d->pad[1] > 2) return false;
  if (d->p < 4 || d->q < 4 || d->h < 4 || d->w < 4) return false;
  const dm_Kernel *kn = dm_kernel_for(t);
  if (kn->pairs && (kn->tiles || !dm_winograd_is_large(d, pass == DX))) return false;
  return pass != DW || (d->n * rows * cols >= DM_WINOGRAD_DW_TILES &&
                        channels * dm_min_i64(cols, DM_WINOGRAD_STRIP) >= DW_WORTH);
}

/* implicit takes every shape and dtype, so the list always ends with an answer. */
static bool serves_all(const dm_ConvDims *d, dm_DType t, Pass pass) {
  DM_UNUSED(d), DM_UNUSED(t), DM_UNUSED(pass);
  return true;
}

/* ---- the list ---------------------------------------------------------------------- */

typedef struct Algorithm {
  bool (*serves)(const dm_ConvDims *d, dm_DType t, Pass pass);
  dm_ConvForwardFn *forward;
  dm_ConvDxFn *dx;
  dm_ConvDwFn *dw;
} Algorithm;

static const Algorithm algorithms[] = {
    {serves_dense, dm_conv_dense_fwd, dm_conv_dense_dx, dm_conv_dense_dw},
    {serves_pointwise, dm_conv_pointwise_fwd, dm_conv_pointwise_dx, dm_conv_pointwise_dw},
    {serves_blocks, dm_conv_blocks_fwd, dm_conv_blocks_dx, dm_conv_blocks_dw},
    {serves_depthwise, dm_conv_depthwise_fwd, dm_conv_depthwise_dx, dm_conv_depthwise_dw},
    {serves_winograd, dm_winograd_fwd, dm_winograd_dx, dm_winograd_dw},
    {serves_all, dm_conv_implicit_fwd, dm_conv_implicit_dx, dm_conv_implicit_dw}};

/* The first algorithm in the list that serves the pass. */
static const Algorithm *algorithm_for(const dm_ConvDims *d, dm_DType t, Pass pass) {
  const Algorithm *a = algorithms;
  while (!a->serves(d, t, pass)) a++;
  return a;
}

/* ---- the calls ----------------------------------------------------------------------- */

dm_status dm_conv2d_fwd(const dm_ConvDims *d, dm_DType t, const void *x, const void *w,
                        const void *bias, void *y) {
  if (d->n * d->o * d->p * d->q <= 0) return DM_OK;
  return algorithm_for(d, t, FORWARD)->forward(d, t, x, w, bias, y);
}

/* Does no output reach the gradients? Then dw is 0, and dx the bias alone. */
static bool is_unreached(const dm_ConvDims *d) { return d->n * d->o * d->p * d->q <= 0; }

dm_status dm_conv2d_dx(const dm_ConvDims *d, dm_DType t, const void *dy, const void *w,
                       const void *bias, void *dx) {
  if (d->n * d->c * d->h * d->w <= 0) return DM_OK;
  if (!is_unreached(d)) return algorithm_for(d, t, DX)->dx(d, t, dy, w, bias, dx);
  dm_conv_fill(d, t, bias, dx);
  return DM_OK;
}

dm_status dm_conv2d_dw(const dm_ConvDims *d, dm_DType t, const void *dy, const void *x,
                       void *dw) {
  const int64_t size = d->o * (d->c / d->groups) * d->r * d->s;
  if (size <= 0) return DM_OK;
  if (!is_unreached(d)) return algorithm_for(d, t, DW)->dw(d, t, dy, x, dw);
  memset(dw, 0, (size_t)(size * dm_dtype_size(t)));
  return DM_OK;
}
