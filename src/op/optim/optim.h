/* The work of a training step on lists of tensors, one call each: unscale, norm, clip, update.
   Nothing here is recorded; every tensor that is written counts a version, so that stale graphs
   and cached casts are noticed. 16-bit tensors compute in float32 and are rounded once.

   A weight may exist in two precisions. A step of a float32 parameter also writes the 16-bit
   copy that autocast asked for (dm_Tensor.low). A step of a 16-bit parameter updates its
   float32 master and writes it rounded; without a master it rounds the new value, to nearest
   or stochastically. */
#ifndef DM_OPTIM_H
#define DM_OPTIM_H

#include "base/step.h"
#include "core/tensor.h"

/* ---- steps by a method of base/methods.inc ---- */

/* A row as callers see it; lists of names end with NULL. */
typedef struct dm_MethodRow {
  const char *name;
  bool counts; /* a parameter has `step` */
  int n_option;
  const char *option[DM_MAX_OPTIONS + 1]; /* PART: the table's name */
  const char *buffer[DM_MAX_BUFFERS + 1];
  const char *number[DM_MAX_NUMBERS + 1];
  unsigned (*wanted)(const double *options); /* bit i: buffer i is kept */
} dm_MethodRow;
extern const dm_MethodRow dm_method_rows[DM_N_METHOD];

/* One parameter; grad NULL: skipped. Buffers have the parameter's shape; those that the
   options do not want are NULL. master: float32, of a 16-bit parameter; where the parameter
   is not the rounded master, the caller has changed the parameter, and the master takes that
   value before the update. */
typedef struct dm_StepSlot {
  dm_Tensor *param, *grad, *master;
  dm_Tensor *step;                   /* float32 scalar: steps done, without the skipped ones */
  dm_Tensor *number[DM_MAX_NUMBERS]; /* float64 scalars */
  dm_Tensor *buffer[DM_MAX_BUFFERS];
  bool first; /* a buffer holds nothing yet; of methods that do not count steps */
} dm_StepSlot;

typedef struct dm_Step {
  dm_Method method;
  const double *options;
  bool
      stochastic; /* 16-bit parameters without a master are rounded stochastically, so that the
                     mean is kept; as many random numbers are drawn where the step is skipped */
  const dm_Tensor
      *found_inf; /* float32 scalar; where it is not 0 nothing changes. NULL: none */
} dm_Step;

/* One update of the n parameters, all on one device. */
DM_API dm_status dm_optim_step(const dm_Step *s, int64_t n, const dm_StepSlot *slots);

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

/* One update of the scale, by the found_inf of n optimizers. The steps of the first n_note of
   them are noted as dm_amp_note does, in history[i] with where[i]. */
typedef struct dm_ScaleUpdate {
  dm_Tensor *scale, *growth_tracker, *floored, *updates;
  int64_t n, n_note;
  dm_Tensor *const *found_inf, *const *history, *const *where;
  dm_ScalePolicy how;
} dm_ScaleUpdate;

/* scale and growth_tracker (int32) after one update: back off once where one of
   the found_inf is not 0, else grow every `interval` updates, never to
   infinity. floored (int32) counts the updates in a row that the floor held;
   *held is that number as far as the host knows it without waiting. updates
   (int64) counts them all. */
DM_API dm_status dm_amp_update_scale(const dm_ScaleUpdate *u, int64_t *held);

/* *held after an update by a graph (dm_GraphOps); 0 on the CPU. */
DM_API dm_status dm_amp_held(dm_Tensor *floored, int64_t *held);

/* The p-norm of the tensors' p-norms, p >= 0 or infinite: a new 0-dim tensor,
   float64 if one of them is, else float32. 0 for none. */
DM_API dm_status dm_total_norm(int64_t n, dm_Tensor *const *tensors, double p, dm_Tensor **out);
/* Multiplies each element by min(1, max_norm / (total_norm + 1e-6)), computed in
   total_norm's dtype (float32 or float64, one element). */
DM_API dm_status dm_clip_norm(int64_t n, dm_Tensor *const *tensors, double max_norm,
                              const dm_Tensor *total_norm);
/* Each element held between -limit and limit; NaN stays. */
DM_API dm_status dm_clamp_all(int64_t n, dm_Tensor *const *tensors, double limit);

/* ---- other devices ---- */

/* p's 16-bit copy, to be written: made when autocast has asked for one since the last
   step (on the CPU for a small weight only), dropped when it has not. A copy that a graph still
   reads stays with the graph. Where memory lacks for one, the next region casts. */
dm_Tensor *dm_fresh_copy(dm_Tensor *p);
/* After p's step: the copy shows the new weight, or is dropped where the step failed;
   autocast asks anew for the next one. */
static inline void dm_settle_copy(dm_Tensor *p, dm_status st) {
  if (st != DM_OK) dm_tensor_unref(&p->low);
  if (p->low) p->low->storage->version = p->storage->version;
  p->low_dtype = 0;
}

/* batch_norm's running statistics (C), any float dtype and step, or NULL. They move by
   `momentum` to the batch's mean and to `unbias` times its variance; both batch vectors are
   dense, in the compute type, and root is 1 / sqrt(variance + eps), on the CPU the variance.
   count, one int64 or NULL, grows by 1. */
typedef struct dm_Running {
  dm_Tensor *mean, *var, *count;
  dm_Tensor *batch_mean, *root;
  double momentum, eps, unbias;
} dm_Running;
/* Outside the CPU; raises the versions. */
dm_status dm_move_running(const dm_Running *r);

/* The functions above as a back end has them, for dm_optim_register (engine/backend.h): called
   with arguments that were checked (lists not empty, all tensors on one device of its). They
   wait for nothing: of *held they tell what they know. They raise the versions and clear
   DM_T_SCALED as the CPU's do, and serve dm_Tensor.low. */
typedef struct dm_OptimOps {
  dm_status (*step)(const dm_Step *s, int64_t n, const dm_StepSlot *slots);
  dm_status (*amp_unscale)(int64_t n, dm_Tensor *const *grads, const dm_Tensor *scale,
                           dm_Tensor *found_inf, dm_Tensor *where);
  dm_status (*amp_note)(dm_Tensor *history, const dm_Tensor *found_inf, const dm_Tensor *where,
                        const dm_Tensor *updates);
  dm_status (*amp_update_scale)(const dm_ScaleUpdate *u, int64_t *held);
  /* amp_update_scale's *held after an update that a graph has done. */
  dm_status (*amp_held)(dm_Tensor *floored, int64_t *held);
  dm_status (*total_norm)(int64_t n, dm_Tensor *const *tensors, double p, dm_Tensor **out);
  dm_status (*clip_norm)(int64_t n, dm_Tensor *const *tensors, double max_norm,
                         const dm_Tensor *total_norm);
  dm_status (*clamp_all)(int64_t n, dm_Tensor *const *tensors, double limit);
  dm_status (*move_running)(const dm_Running *r);
} dm_OptimOps;

#endif
