/* What a training step does to whole lists of tensors, one call each: unscale,
   norm, clip, update. Nothing here is recorded; every tensor that is written
   counts a version, so that a stale graph or a cached cast is noticed.
   16-bit tensors compute in float32 and are rounded once.

   A weight may live in two precisions. A step of a float32 parameter also
   writes the 16-bit copy that autocast asked for (dm_Tensor.low). A step of a
   16-bit parameter updates its float32 master and writes it rounded; without a
   master it rounds the new value, to nearest or stochastically. */
#ifndef DM_OPTIM_H
#define DM_OPTIM_H

#include "base/step.h"
#include "core/tensor.h"

/* One parameter; grad NULL: passed over. Buffers have the parameter's shape;
   a buffer the method does not use is NULL. master: float32, of a 16-bit
   parameter; where the parameter is not its rounded value, somebody has changed
   the parameter, and the master takes that value before the update. */
typedef struct dm_SgdSlot {
  dm_Tensor *param, *grad, *master, *momentum;
  bool first; /* momentum holds nothing yet: it becomes the gradient */
} dm_SgdSlot;

typedef struct dm_AdamSlot {
  dm_Tensor *param, *grad, *master, *step; /* step: float32 scalar, steps done */
  dm_Tensor *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
} dm_AdamSlot;

/* found_inf (or NULL): float32 scalar; where it is not 0 nothing is touched. */
DM_API dm_status dm_sgd_step(int64_t n, const dm_SgdSlot *slots, const dm_SgdOptions *o,
                             const dm_Tensor *found_inf);
DM_API dm_status dm_adam_step(int64_t n, const dm_AdamSlot *slots, const dm_AdamOptions *o,
                              const dm_Tensor *found_inf);

/* ---- gradient scaling; every scalar is a tensor on the gradients' device ---- */

/* Divides the gradients (NULL: none) by the scale (float32): each element times
   float32(1 / scale), rounded once. *found_inf (float32) = 1 if some result is
   inf or NaN, else 0. where (2 int64) = the first gradient that has any,
   counted from 1, and how many it has; or zeros. */
DM_API dm_status dm_amp_unscale(int64_t n, dm_Tensor *const *grads, const dm_Tensor *scale,
                                dm_Tensor *found_inf, dm_Tensor *where);

/* Notes in that history how a step went. updates (int64): how many there were before. */
DM_API dm_status dm_amp_note(dm_Tensor *history, const dm_Tensor *found_inf,
                             const dm_Tensor *where, const dm_Tensor *updates);

/* scale and growth_tracker (int32) after one update: back off once where one of
   the n found_inf is not 0, else grow every `interval` updates, never to
   infinity. floored (int32) counts the updates in a row that the floor held;
   *held is that number as far as the host knows it without waiting. updates
   (int64) counts them all. */
DM_API dm_status dm_amp_update_scale(dm_Tensor *scale, dm_Tensor *growth_tracker,
                                     dm_Tensor *floored, dm_Tensor *updates, int64_t n,
                                     dm_Tensor *const *found_inf, const dm_ScalePolicy *how,
                                     int64_t *held);

/* The p-norm of the tensors' p-norms, p >= 0 or infinite: a new 0-dim tensor,
   float64 if one of them is, else float32. 0 for none. */
DM_API dm_status dm_total_norm(int64_t n, dm_Tensor *const *tensors, double p, dm_Tensor **out);
/* Each element times min(1, max_norm / (total_norm + 1e-6)), that in
   total_norm's dtype (float32 or float64, one element). */
DM_API dm_status dm_clip_norm(int64_t n, dm_Tensor *const *tensors, double max_norm,
                              const dm_Tensor *total_norm);
/* Each element held between -limit and limit; NaN stays. */
DM_API dm_status dm_clamp_all(int64_t n, dm_Tensor *const *tensors, double limit);

/* ---- other devices ---- */

/* p's 16-bit copy, to be written: made when autocast has asked for one since the last
   step (on the CPU for a small weight only), dropped when it has not. A copy that a graph still
   reads stays with the graph. No room for one only costs the next region a cast. */
dm_Tensor *dm_fresh_copy(dm_Tensor *p);
/* After p's step: the copy shows the new weight, or is dropped where the step failed;
   autocast asks anew for the next one. */
static inline void dm_settle_copy(dm_Tensor *p, dm_status st) {
  if (st != DM_OK) dm_tensor_unref(&p->low);
  if (p->low) p->low->storage->version = p->storage->version;
  p->low_dtype = 0;
}

/* The functions above as a back end has them, for dm_optim_register (engine/backend.h): called
   with arguments that were checked (lists not empty, all tensors on one device of its). They
   wait for nothing: of *held they tell what they know. They raise the versions and clear
   DM_T_SCALED as the CPU's do, and serve dm_Tensor.low. */
typedef struct dm_OptimOps {
  dm_status (*sgd_step)(int64_t n, const dm_SgdSlot *slots, const dm_SgdOptions *o,
                        const dm_Tensor *found_inf);
  dm_status (*adam_step)(int64_t n, const dm_AdamSlot *slots, const dm_AdamOptions *o,
                         const dm_Tensor *found_inf);
  dm_status (*amp_unscale)(int64_t n, dm_Tensor *const *grads, const dm_Tensor *scale,
                           dm_Tensor *found_inf, dm_Tensor *where);
  dm_status (*amp_note)(dm_Tensor *history, const dm_Tensor *found_inf, const dm_Tensor *where,
                        const dm_Tensor *updates);
  dm_status (*amp_update_scale)(dm_Tensor *scale, dm_Tensor *growth_tracker, dm_Tensor *floored,
                                dm_Tensor *updates, int64_t n, dm_Tensor *const *found_inf,
                                const dm_ScalePolicy *how, int64_t *held);
  dm_status (*total_norm)(int64_t n, dm_Tensor *const *tensors, double p, dm_Tensor **out);
  dm_status (*clip_norm)(int64_t n, dm_Tensor *const *tensors, double max_norm,
                         const dm_Tensor *total_norm);
  dm_status (*clamp_all)(int64_t n, dm_Tensor *const *tensors, double limit);
} dm_OptimOps;

#endif
