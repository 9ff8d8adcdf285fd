/* The choice of the inputs that autocast converts: see policy.h. */
#include "engine/policy.h"

#include "base/alloc.h"
#include "base/error.h"

const char *const dm_cast_names[] = {
    "unlisted", "lower_precision_fp", "fp32", "fp32_set_opt_dtype", "promote", "banned"};

dm_Policies *dm_policies_new(dm_DeviceType type, const dm_Policies *from) {
  dm_Policies *p = dm_alloc((int64_t)sizeof *p + DM_N_OP);
  if (!p) return NULL;
  atomic_init(&p->refs, 1);
  for (int i = 0; i < DM_N_OP; i++) p->of[i] = from ? from->of[i] : dm_ops[i].cast[type];
  return p;
}

/* The device type whose column decides: cuda when one of the tensors is there, else cpu. */
static int deciding_type(int n_in, dm_Tensor *const *in) {
  for (int i = 0; i < n_in; i++)
    if (in[i] && in[i]->device.type == DM_CUDA) return DM_CUDA;
  return DM_CPU;
}

/* A row that is not in the table (a custom function's) has no entry in a region's policies:
   its own column decides. */
static dm_Cast policy_of(const dm_Autocast *a, int type, const dm_OpInfo *op) {
  const bool listed = op >= dm_ops && op < dm_ops + DM_N_OP;
  return (dm_Cast)(a->policies && listed ? a->policies->of[dm_op_id(op)] : op->cast[type]);
}

/* Is the call number / tensor (attribute 0, the rounding mode, is "none")? PyTorch calls
   reciprocal for it, which is fp32. */
static bool is_reciprocal(const dm_OpInfo *op, dm_Tensor *const *in, const void *attr) {
  return op == &dm_ops[DM_OP_div] && (in[0]->flags & DM_T_NUMBER) &&
         *(const int64_t *)attr == 0;
}

/* promote: float32 when the eligible inputs' dtypes differ, else no change. PyTorch does the
   same, but refuses float16 together with bfloat16, and either in the other's region. */
static dm_DType promoted(int type, int n_in, dm_Tensor *const *in) {
  dm_DType seen = DM_NO_DTYPE;
  for (int i = 0; i < n_in; i++) {
    if (!dm_autocast_eligible(in[i], type)) continue;
    if (seen != DM_NO_DTYPE && in[i]->dtype != seen) return DM_F32;
    seen = (dm_DType)in[i]->dtype;
  }
  return DM_NO_DTYPE;
}

static dm_status refuse(const dm_OpInfo *op) {
  if (op == &dm_ops[DM_OP_binary_cross_entropy])
    return dm_fail(DM_EARG,
                   "%s: unsafe under autocast: its gradient can leave float16's range; hint: "
                   "%s_with_logits, or an inner region with enabled = false",
                   op->name, op->name);
  return dm_fail(DM_EARG,
                 "%s: banned by this autocast region; hint: an inner region with enabled = "
                 "false",
                 op->name);
}

static bool lacks_dtype(const dm_OpInfo *op, const void *attr) {
  const dm_Signature *g = op->signature;
  if (g->dtype_attr < 0) return false;
  return *(const int64_t *)(const void *)((const char *)attr + g->attr[g->dtype_attr].offset) <
         0;
}

dm_status dm_autocast_plan(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                           const void *attr, dm_CastPlan *plan) {
  const int type = deciding_type(n_in, in);
  const dm_Autocast *a = &dm_thread_state()->autocast.now.autocast[type];
  dm_Cast policy = a->enabled ? policy_of(a, type, op) : ASIS;
  if (policy == ASIS && a->enabled && is_reciprocal(op, in, attr))
    policy = policy_of(a, type, &dm_ops[DM_OP_reciprocal]);
  *plan = (dm_CastPlan){.listed = policy != ASIS, .type = (uint8_t)type, .to = DM_NO_DTYPE};
  switch (policy) {
  case ASIS: return DM_OK;
  case LOW: plan->to = (dm_DType)a->dtype; break;
  case F32: plan->to = DM_F32; break;
  case F32OUT:
    plan->f32_result = n_in > 0 && dm_autocast_eligible(in[0], type) &&
                       in[0]->dtype != DM_F32 && lacks_dtype(op, attr);
    return DM_OK;
  case WIDE: plan->to = promoted(type, n_in, in); return DM_OK;
  case BAN: return refuse(op);
  }
  bool any = false;
  for (int i = 0; i < n_in; i++)
    any |= dm_autocast_eligible(in[i], type) && in[i]->dtype != plan->to;
  if (any && !(policy == F32 && op->flags & F_READS_LOW)) return DM_OK;
  plan->widens = any;
  plan->to = DM_NO_DTYPE;
  return DM_OK;
}
