/* Autocast's policies: which inputs of a call are converted, and to which dtype. The rules are
   PyTorch's (torch/csrc/autocast_mode: lower_precision_fp, fp32, fp32_set_opt_dtype, promote,
   banned); the op table holds each op's class for each device type. */
#ifndef DM_POLICY_H
#define DM_POLICY_H

#include "engine/op.h"

/* By dm_Cast: "unlisted", "lower_precision_fp", ... */
extern const char *const dm_cast_names[];

/* A copy of `from`, or of the device type's column when `from` is NULL. NULL: out of
   memory. */
dm_Policies *dm_policies_new(dm_DeviceType type, const dm_Policies *from);

/* Can autocast, which is on, change calls of this op at all? A quick test, false for the
   many ops that are unlisted everywhere; a division may count as a reciprocal. */
static inline bool dm_autocast_concerns(const dm_AutocastState *a, const dm_OpInfo *op) {
  return op->cast[DM_CPU] || op->cast[DM_CUDA] || a->now.autocast[DM_CPU].policies ||
         a->now.autocast[DM_CUDA].policies || op == &dm_ops[DM_OP_div];
}

/* Autocast converts tensors of float32 and of low floats on the device type; no float64, and no
   host number. */
static inline bool dm_autocast_eligible(const dm_Tensor *t, int type) {
  const unsigned floats = 1u << DM_F32 | DM_LOW_FLOATS;
  return t && dm_dtype_in((dm_DType)t->dtype, floats) && t->device.type == type &&
         !(t->flags & DM_T_NUMBER);
}

/* The casts that autocast makes for one call. */
typedef struct dm_CastPlan {
  bool listed;     /* the op has a class: its inner calls are not converted again */
  bool f32_result; /* fp32_set_opt_dtype: the call gets dtype = float32, inputs stay */
  bool widens;     /* fp32, of an op that reads 16 bits itself: inputs stay */
  uint8_t type;    /* the device type whose policies decide */
  dm_DType to;     /* what eligible inputs become; DM_NO_DTYPE: none has to change */
} dm_CastPlan;

/* Fails for a banned op. The op may be a row that the caller made up. */
dm_status dm_autocast_plan(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                           const void *attr, dm_CastPlan *plan);

#endif
