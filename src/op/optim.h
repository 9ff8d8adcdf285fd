/* What a training step does to whole lists of tensors, one call each: unscale,
   norm, clip, update. Nothing here is recorded; every tensor that is written
   counts a version, so that a stale graph or a cached cast is noticed.
   16-bit tensors compute in float32 and are rounded once. */
#ifndef DM_OPTIM_H
#define DM_OPTIM_H

#include "core/tensor.h"

/* One parameter; grad NULL: passed over. Buffers have the parameter's shape;
   a buffer the method does not use is NULL. */
typedef struct dm_SgdSlot {
  dm_Tensor *param, *grad, *momentum;
  bool first; /* momentum holds nothing yet: it becomes the gradient */
} dm_SgdSlot;

typedef struct dm_SgdOptions {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
} dm_SgdOptions;

typedef struct dm_AdamSlot {
  dm_Tensor *param, *grad, *step; /* step: float32 scalar, steps done */
  dm_Tensor *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
} dm_AdamSlot;

typedef struct dm_AdamOptions {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad, decoupled, maximize; /* decoupled: AdamW's decay */
} dm_AdamOptions;

/* found_inf (or NULL): float32 scalar; where it is not 0 nothing is touched. */
DM_API dm_status dm_sgd_step(int64_t n, const dm_SgdSlot *slots, const dm_SgdOptions *o,
                             const dm_Tensor *found_inf);
DM_API dm_status dm_adam_step(int64_t n, const dm_AdamSlot *slots, const dm_AdamOptions *o,
                              const dm_Tensor *found_inf);

/* g = g * inv_scale for each; *found_inf = 1 if a product is inf or NaN (else
   it stays). inv_scale and found_inf: float32 scalars. */
DM_API dm_status dm_amp_unscale(int64_t n, dm_Tensor *const *grads, dm_Tensor *found_inf,
                                const dm_Tensor *inv_scale);
/* scale and growth_tracker (int32) after one update: back off where found_inf
   is not 0, else grow every `interval` updates, never to infinity. */
DM_API dm_status dm_amp_update_scale(dm_Tensor *scale, dm_Tensor *growth_tracker,
                                     const dm_Tensor *found_inf, double growth, double backoff,
                                     int64_t interval);

/* The p-norm of the tensors' p-norms, p >= 0 or infinite: a new 0-dim tensor,
   float64 if one of them is, else float32. 0 for none. */
DM_API dm_status dm_total_norm(int64_t n, dm_Tensor *const *tensors, double p, dm_Tensor **out);
DM_API dm_status dm_scale_all(int64_t n, dm_Tensor *const *tensors, double factor);
/* Each element held between -limit and limit; NaN stays. */
DM_API dm_status dm_clamp_all(int64_t n, dm_Tensor *const *tensors, double limit);

#endif
