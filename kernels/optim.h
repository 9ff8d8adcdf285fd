/* Lists of tensors as one launch sees them: optim.c makes the tables, optim.cu has the
   kernels. */
#ifndef DM_KERNELS_OPTIM_H
#define DM_KERNELS_OPTIM_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "op/optim/optim.h"

enum {
  DM_LANES = 2 + DM_MAX_BUFFERS, /* weight, gradient, buffers */
  DM_CHUNK = 16384               /* elements per block; fixed, as sums are cut there */
};

/* A tensor with its gradient and buffers, all dense and of one shape. Lane 0 is computed in
   its own precision (float32 for 16 bits); the others are float64 only if lane 0 is. */
typedef struct dm_Item {
  void *lane[DM_LANES];
  void *low_copy;                 /* 16 bits: receives lane 0, rounded; or NULL */
  float *step;                    /* the step counter, of methods that count */
  double *number[DM_MAX_NUMBERS]; /* of methods with numbers */
  int64_t numel;
  int64_t channels, plane; /* of low_copy, or lane 1, where it lies channels last and lane 0 in
                              rows; else 0 */
  int64_t counter;         /* this tensor's first counter of the call's random numbers */
  int32_t chunk;           /* its first chunk */
  int32_t index;           /* in the caller's list, from 1 */
  uint8_t dtype[DM_LANES], low_copy_dtype;
  bool wide;       /* all lanes are aligned to words of four elements */
  bool master;     /* lane 0 is low_copy's master; else low_copy is a copy of lane 0 */
  bool first;      /* a buffer holds nothing yet */
  bool stochastic; /* lane 0 is rounded stochastically */
} dm_Item;

typedef struct dm_Chunk {
  int32_t item, at; /* at: which chunk of the item */
} dm_Chunk;

/* The table on the device. Chunks of float64 items come last, so that each launch has one
   type. */
typedef struct dm_List {
  const dm_Item *item;
  const dm_Chunk *chunk;
  int32_t n_item, n_f32, n_f64; /* n_f32, n_f64: chunks */
  int32_t threads;              /* threads per block, as many as the largest tensor uses */
  bool turned;                  /* an item has a plane */
} dm_List;

/* dm_DeviceOps.widen_all. */
dm_status dm_cuda_widen_all(const void *site, int64_t n, dm_Tensor *const *out,
                            dm_Tensor *const *in);

/* One optimizer step. site names the caller's options (keep.h); g, on the device, is the
   generator before the call's random numbers, or NULL. */
dm_status dm_step_launch(const dm_List *l, uint64_t site, const dm_Step *s,
                         const dm_Generator *g);
/* The bytes that a step keeps on the device for its options; their number. */
enum { DM_STEP_BYTES = 512 };
int64_t dm_step_bytes(dm_Method method, const double *options, char bytes[DM_STEP_BYTES]);
dm_status dm_unscale_launch(const dm_List *l, uint64_t site, const float *scale,
                            float *found_inf, int64_t *where);
dm_status dm_note_launch(int64_t *history, const float *found_inf, const int64_t *where,
                         const int64_t *updates);
/* Lane 0, float32, = lane 1, 16 bits. */
dm_status dm_widen_launch(const dm_List *l);
/* One update of the scale, all in memory of the device but `seen`, pinned memory of the host's
   that gets the new *floored, or NULL. */
typedef struct dm_Checked {
  const float *found_inf;
  int64_t *history; /* of an optimizer whose step is to be noted; else NULL */
  const int64_t *where;
} dm_Checked;
typedef struct dm_ScaleWork {
  float *scale;
  int32_t *tracker, *floored;
  int64_t *updates, n;
  const dm_Checked *each; /* n */
  int32_t *seen;
} dm_ScaleWork;
dm_status dm_scale_launch(const dm_ScaleWork *w, const dm_ScalePolicy *how);
/* total: one element of dtype. */
dm_status dm_norm_launch(const dm_List *l, uint64_t site, double p, dm_DType dtype,
                         void *total);
dm_status dm_clip_launch(const dm_List *l, double max_norm, dm_DType dtype, const void *total);
dm_status dm_clamp_launch(const dm_List *l, double limit);

#ifdef __cplusplus
}
#endif
#endif
