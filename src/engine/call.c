/* The front door: every op is called here, as every op of PyTorch goes through its dispatcher.

   A call passes, in this order:
   1. autocast converts the inputs that the op's policy names;
   2. observers (profiler, amp.report) see the call begin;
   3. the row's rule checks the inputs and fills dm_Call.out_meta: shape, dtype, device;
   4. the engine allocates the outputs; the rule of a view has made them already;
   5. the kernel of the outputs' device fills them;
   6. the tape records the call when an input requires a gradient.
   A composed op has no rule and no kernel: its function calls other ops, each of which takes
   this way by itself. In place (dm_call_inplace), in[0] is the output: the call is recorded
   before the kernel runs, for only the record can fail after a check, and then nothing has
   changed yet.

   Invariant: out[] of a failed call is NULL, and no input has changed. */
#include "engine/call.h"

#include <stdarg.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/leaves.h"
#include "engine/observe.h"
#include "engine/policy.h"
#include "engine/tape.h"

/* Kernels of the devices other than the CPU; the CPU's are in the op table. */
static dm_KernelFn *other_kernels[DM_N_DEVICE_TYPE][DM_N_OP];

void dm_op_register(dm_DeviceType type, dm_OpId id, dm_KernelFn *kernel) {
  other_kernels[type][id] = kernel;
}

static dm_KernelFn *kernel_of(const dm_OpInfo *op, dm_Device dev) {
  const bool own = dev.type == DM_CPU || (op->flags & F_ANY_DEVICE);
  return own ? op->kernel : other_kernels[dev.type][dm_op_id(op)];
}

bool dm_op_has_kernel(dm_OpId id, dm_Device dev) { return kernel_of(&dm_ops[id], dev) != NULL; }

/* Runs a kernel of another device, between the device's begin and end. */
static dm_status launch_elsewhere(dm_Call *c, dm_Device dev) {
  char name[16];
  dm_KernelFn *kernel = kernel_of(c->op, dev);
  if (!kernel)
    return dm_fail(DM_EDEV, "%s: no kernel on %s", c->op->name, dm_device_name(dev, name));
  if (dev.type == DM_CPU) return kernel(c);
  const dm_DeviceOps *ops = dm_device_ops(dev);
  DM_TRY(ops->begin(dev));
  if (dm_observed()) dm_observe_work(dev, true);
  DM_TRY(kernel(c));
  if (dm_observed()) dm_observe_work(dev, false);
  return ops->end(dev);
}

/* The kernel of `dev`, which is the outputs' device. */
static inline dm_status launch(dm_Call *c, dm_Device dev) {
  if (DM_LIKELY(dev.type == DM_CPU && c->op->kernel)) return c->op->kernel(c);
  return launch_elsewhere(c, dev);
}

static dm_status apart(const dm_OpInfo *op, dm_Device a, dm_Device b) {
  char first[16], second[16];
  return dm_fail(DM_EARG, "%s: tensors on %s and %s; hint: x:to(device)", op->name,
                 dm_device_name(a, first), dm_device_name(b, second));
}

/* A 0-dim CPU tensor may meet tensors of another device where the op accepts a number, or is
   pointwise: it counts as the number that it holds. */
static dm_status check_numbers(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                               dm_Device dev) {
  const dm_Signature *g = op->signature;
  for (int i = 0; i < n_in && !op->compose; i++) {
    const bool ok = (op->flags & F_POINTWISE) || (!g->list && g->number_ok[i]);
    if (in[i] && in[i]->device.type == DM_CPU && !ok) return apart(op, in[i]->device, dev);
  }
  return DM_OK;
}

/* The device of inputs that are not all on the CPU. It must be one device, host numbers and
   0-dim CPU tensors aside. */
static dm_status check_devices(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                               dm_Device *dev) {
  const dm_Tensor *first = NULL;
  for (int i = 0; i < n_in; i++) {
    const dm_Tensor *t = in[i];
    if (!t || (t->device.type == DM_CPU && t->ndim == 0)) continue;
    if (!first) first = t;
    if (!dm_device_eq(first->device, t->device)) return apart(op, first->device, t->device);
  }
  *dev = first->device;
  return check_numbers(op, n_in, in, *dev);
}

/* A summary of a call's inputs, from one loop over them. */
typedef struct Inputs {
  dm_Device dev; /* their device, host numbers aside */
  uint8_t flags; /* the union of their flags */
  bool views;    /* one of them is a view */
} Inputs;

static inline dm_status summarize(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                                  Inputs *sum) {
  uint8_t types = 0;
  *sum = (Inputs){{DM_CPU, 0}, 0, false};
  for (int i = 0; i < n_in; i++) {
    const dm_Tensor *t = in[i];
    if (!t) continue;
    types |= t->device.type;
    sum->flags |= t->flags;
    if (!t->base) continue;
    sum->views = true;
    if (DM_UNLIKELY(t->gen != t->base->gen) && dm_tensor_requires_grad(t))
      sum->flags |= DM_T_REQUIRES_GRAD;
  }
  return DM_LIKELY(types == DM_CPU) ? DM_OK : check_devices(op, n_in, in, &sum->dev);
}

/* A call without outputs. Their meta has no dims and the CPU until the rule fills it in. */
static inline void begin_call(dm_Call *c, const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                              const void *attr) {
  dm_check_count(op, n_in);
  c->op = op;
  c->n_in = n_in;
  c->n_out = op->n_out;
  c->in = in;
  c->attr = attr;
  c->order = NULL;
  c->base = dm_thread_state()->base;
  c->save = op->save;
  c->recorded = false;
  for (int i = 0; i < DM_MAX_OUT; i++) {
    dm_Meta *m = &c->out_meta[i];
    m->dtype = m->ndim = 0;
    m->device = (dm_Device){DM_CPU, 0};
    m->channels_last = false;
    c->out[i] = NULL;
  }
}

/* Outputs of 4 dims get the layout channels last when an input has it and is not contiguous
   as well. */
static void follow_layout(dm_Call *c) {
  bool last = false;
  for (int i = 0; i < c->n_in && !last; i++)
    last =
        c->in[i] && dm_tensor_is_channels_last(c->in[i]) && !dm_tensor_is_contiguous(c->in[i]);
  for (int i = 0; i < c->n_out; i++)
    if (c->out_meta[i].ndim == 4) c->out_meta[i].channels_last |= last;
}

/* The operand in whose order of dims the output of a pointwise op is stored, so that the op
   passes over memory once from end to end: all operands of the output's shape are dense in that
   order. Numbers and operands that are broadcast do not count. NULL: it is contiguous, as is
   all that is dense in one dim. */
static const dm_Tensor *common_order(const dm_Call *c) {
  const dm_Meta *const out = &c->out_meta[0];
  const dm_Tensor *like = NULL;
  if (out->ndim < 2) return NULL;
  for (int i = 0; i < c->n_in; i++) {
    const dm_Tensor *const t = c->in[i];
    if (!t || t->ndim != out->ndim ||
        memcmp(t->shape, out->shape, sizeof *t->shape * t->ndim) != 0)
      continue;
    if (dm_tensor_is_contiguous(t)) return NULL;
    if (dm_tensor_overlaps_itself(t)) continue; /* it was expanded */
    if (like ? !dm_tensor_same_order(like, t) : !dm_tensor_is_dense(t)) return NULL;
    like = t;
  }
  return like;
}

/* Shapes and dtypes are the rule's. The device is the inputs': a rule that copied the meta of
   a host number would name the CPU. */
static dm_status apply_rule(dm_Call *c, dm_Device dev) {
  DM_TRY(c->op->rule(c));
  if (DM_LIKELY(dev.type == DM_CPU)) {
    if ((c->op->flags & F_LAYOUT) && (c->op->flags & F_POINTWISE)) c->order = common_order(c);
    return DM_OK;
  }
  if (c->op->flags & (F_ANY_DEVICE | F_PLACED)) return DM_OK;
  for (int i = 0; i < c->n_out; i++) c->out_meta[i].device = dev;
  if (c->op->flags & F_LAYOUT) follow_layout(c);
  return DM_OK;
}

/* A tensor with a node has the flag as well. */
static inline bool wants_record(const dm_OpInfo *op, const Inputs *sum) {
  return (sum->flags & DM_T_REQUIRES_GRAD) && op->grad && dm_thread_state()->grad;
}

static dm_status refresh_views(int n_in, dm_Tensor *const *in) {
  for (int i = 0; i < n_in; i++)
    if (in[i] && in[i]->base) DM_TRY(dm_refresh_view(in[i]));
  return DM_OK;
}

/* Allocates the outputs that the rule has not made by their meta, and fills all. */
static dm_status run_kernel(dm_Call *c) {
  for (int i = 0; i < c->n_out; i++) {
    if (c->out[i]) continue;
    DM_TRY(dm_tensor_new_meta(&c->out_meta[i], &c->out[i]));
    if (DM_UNLIKELY(c->order != NULL))
      memcpy(c->out[i]->stride, c->order->stride, sizeof(int64_t) * c->order->ndim);
  }
  return launch(c, c->out[0]->device);
}

/* Does the row want float32 for operands of this call, which promote to 16 bits? An option
   dtype says what to compute in by itself. */
static bool wants_widening(const dm_Call *c) {
  const dm_Signature *g = c->op->signature;
  if (!(c->op->flags & F_WIDEN) || !dm_is_low(dm_result_dtype(c->n_in, c->in))) return false;
  if (g->dtype_attr < 0) return true;
  const char *attr = (const char *)c->attr + g->attr[g->dtype_attr].offset;
  return *(const int64_t *)(const void *)attr == DM_NO_DTYPE;
}

/* Composes the op of float32 operands, so that the steps of its definition do not each round to
   16 bits; the result is rounded once. The row's tensors are no list. */
static dm_status compose_wide(dm_Call *c, dm_X *x) {
  const int64_t narrow = dm_result_dtype(c->n_in, c->in);
  dm_Tensor *wide[DM_MAX_IN] = {NULL};
  for (int i = 0; i < c->n_in; i++) wide[i] = dm_x_widen(x, c->in[i]);
  DM_TRY(x->st);
  c->in = wide;
  DM_TRY(c->op->compose(c, x));
  for (int i = 0; i < c->n_out; i++)
    if (c->out[i] && c->out[i]->dtype == DM_F32)
      c->out[i] = dm_x(x, DM_OP_cast, &narrow, 1, c->out[i]);
  return DM_OK;
}

/* A composition may read each tensor of its signature, so optional ones that the caller left
   out at the end become NULL. */
static dm_status run_composed(dm_Call *c) {
  dm_X x = DM_X_INIT;
  dm_Tensor *all[DM_MAX_IN] = {NULL};
  const dm_Signature *g = c->op->signature;
  if (c->n_in < g->n_tensor && !g->list) {
    for (int i = 0; i < c->n_in; i++) all[i] = c->in[i];
    c->in = all;
  }
  dm_status st = wants_widening(c) ? compose_wide(c, &x) : c->op->compose(c, &x);
  if (st == DM_OK) st = x.st;
  for (int i = 0; i < c->n_out; i++) {
    if (st == DM_OK && c->out[i]) dm_tensor_ref(c->out[i]);
    else c->out[i] = NULL;
  }
  dm_x_free(&x);
  return st;
}

/* Releases what a call that failed has made. */
static void drop_outputs(dm_Call *c) {
  for (int i = 0; i < DM_MAX_OUT; i++) dm_tensor_unref(&c->out[i]);
}

/* Rule, outputs, kernel, record. */
static dm_status run_steps(dm_Call *c, const Inputs *sum) {
  const dm_OpInfo *op = c->op;
  const bool record = c->recorded = wants_record(op, sum);
  if (record && sum->views) DM_TRY(refresh_views(c->n_in, c->in));
  DM_TRY(apply_rule(c, sum->dev));
  if (!(op->flags & F_VIEW)) DM_TRY(run_kernel(c));
  if (record) DM_TRY(dm_record(c, NULL));
  if (op->flags & F_ASIDE)
    while (c->n_out > 1) dm_tensor_unref(&c->out[--c->n_out]);
  if (DM_UNLIKELY(dm_thread_state()->inference))
    for (int i = 0; i < c->n_out; i++) c->out[i]->flags |= DM_T_INFERENCE;
  return DM_OK;
}

/* One call after autocast, without observers. */
static dm_status run_unobserved(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                                const void *attr, dm_Tensor **out, int *n_out) {
  dm_Call c;
  Inputs sum;
  DM_TRY(summarize(op, n_in, in, &sum));
  begin_call(&c, op, n_in, in, attr);
  const dm_status st = op->compose ? run_composed(&c) : run_steps(&c, &sum);
  if (DM_UNLIKELY(st != DM_OK)) {
    drop_outputs(&c);
    return st;
  }
  for (int i = 0; i < c.n_out; i++) out[i] = c.out[i];
  *n_out = c.n_out;
  return DM_OK;
}

/* The call of op between the observers' two. Like call_with_defaults and call_autocast it stays
   a function apart: the compiler guards frames that hold an array or a struct whose address is
   taken, and dm_call_n, through which every call goes, is to have none. */
static __attribute__((noinline)) dm_status run_observed(const dm_OpInfo *op, int n_in,
                                                        dm_Tensor *const *in, const void *attr,
                                                        dm_Tensor **out, int *n_out) {
  dm_Event e = {.op = op,
                .name = op->name,
                .autocast = dm_thread_state()->autocast.casting,
                .n_in = n_in,
                .in = in,
                .out = out};
  dm_observe_begin(&e);
  const dm_status st = run_unobserved(op, n_in, in, attr, out, n_out);
  if (st == DM_OK) e.n_out = *n_out;
  dm_observe_end(&e);
  return st;
}

/* The call after autocast. */
static dm_status call_plain(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                            const void *attr, dm_Tensor **out, int *n_out) {
  if (DM_UNLIKELY(dm_observed())) return run_observed(op, n_in, in, attr, out, n_out);
  return run_unobserved(op, n_in, in, attr, out, n_out);
}

/* ---- autocast ---- */

static _Thread_local int64_t n_casts;

int64_t dm_autocast_cast_count(void) { return n_casts; }

/* A weight that autocast converts is marked (low_dtype). The optimizer that steps it then
   writes, together with the weight, a copy in that dtype (low), which the next region uses
   instead of a cast. */

/* The kernel's cast of t; with a history when `record`. */
static dm_status cast_now(dm_ThreadState *ts, dm_Tensor *t, dm_DType to, bool record,
                          dm_Tensor **out) {
  const bool grad = ts->grad, masked = ts->autocast.masked;
  const int64_t dtype = to;
  ts->grad = record;
  ts->autocast.masked = ts->autocast.casting = true;
  const dm_status st = dm_call(DM_OP_cast, 1, &t, &dtype, out);
  ts->grad = grad;
  ts->autocast.masked = masked;
  ts->autocast.casting = false;
  if (st == DM_OK) n_casts++;
  return st;
}

/* t's low-precision copy, as if t had been cast just now: another handle, with a cast for a
   history when `record`. */
static dm_status use_low_copy(const dm_ThreadState *ts, dm_Tensor *t, bool record,
                              dm_Tensor **out) {
  const int64_t dtype = t->low->dtype;
  DM_TRY(dm_tensor_alias(t->low, out));
  if (ts->inference) (*out)->flags |= DM_T_INFERENCE;
  if (!record || !dm_tensor_requires_grad(t)) return DM_OK;
  const dm_status st = dm_record_op(&dm_ops[DM_OP_cast], 1, &t, &dtype, out, NULL);
  if (st != DM_OK) dm_tensor_unref(out);
  return st;
}

/* One eligible input. Only casts of float32 leaves that require a gradient are cached: they
   are the weights, which later calls of the region use again. */
static dm_status cast_input(dm_ThreadState *ts, dm_Tensor *t, dm_DType to, dm_Tensor **out) {
  if (t->dtype == to) {
    *out = dm_tensor_ref(t);
    return DM_OK;
  }
  const bool weight = t->dtype == DM_F32 && dm_is_low(to) && (t->flags & DM_T_REQUIRES_GRAD) &&
                      !t->node && !t->base && !ts->inference;
  const bool cached = weight && dm_autocast_caches(&ts->autocast);
  dm_Tensor *hit = cached ? dm_autocast_find(&ts->autocast, t, to) : NULL;
  if (hit) {
    *out = dm_tensor_ref(hit);
    return DM_OK;
  }
  /* a cached cast always has a history: a later call may need its gradient */
  const bool record = cached || ts->grad;
  const bool fresh =
      t->low && t->low->dtype == to && t->low->storage->version == t->storage->version;
  DM_TRY(fresh ? use_low_copy(ts, t, record, out) : cast_now(ts, t, to, record, out));
  if (weight) t->low_dtype = (uint8_t)to;
  if (cached) dm_autocast_add(&ts->autocast, t, *out);
  return DM_OK;
}

dm_status dm_cast_inputs(const dm_CastPlan *plan, int n_in, dm_Tensor *const *in,
                         dm_Tensor **cast) {
  dm_ThreadState *ts = dm_thread_state();
  for (int i = 0; i < n_in; i++) {
    cast[i] = NULL;
    if (!in[i]) continue;
    if (plan->to == DM_NO_DTYPE || !dm_autocast_eligible(in[i], plan->type)) {
      cast[i] = dm_tensor_ref(in[i]);
      continue;
    }
    const dm_status st = cast_input(ts, in[i], plan->to, &cast[i]);
    if (st != DM_OK) {
      while (i-- > 0) dm_tensor_unref(&cast[i]);
      return st;
    }
  }
  return DM_OK;
}

/* An array of n pointers: the given one when it is large enough. */
static dm_Tensor **array_of(int n, dm_Tensor **local, int n_local) {
  return n <= n_local ? local : dm_alloc((int64_t)sizeof *local * n);
}

/* A listed op: its inner calls are not converted again. */
static dm_status call_masked(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                             const void *attr, dm_Tensor **out, int *n_out) {
  dm_AutocastState *a = &dm_thread_state()->autocast;
  a->masked = true;
  const dm_status st = call_plain(op, n_in, in, attr, out, n_out);
  a->masked = false;
  return st;
}

/* A call whose inputs have to be converted first. */
static dm_status call_cast(const dm_OpInfo *op, const dm_CastPlan *plan, int n_in,
                           dm_Tensor *const *in, const void *attr, dm_Tensor **out,
                           int *n_out) {
  dm_Tensor *local[16], **cast = array_of(n_in, local, 16);
  if (!cast) return dm_fail(DM_EMEM, "%s: out of memory", op->name);
  dm_status st = dm_cast_inputs(plan, n_in, in, cast);
  if (st == DM_OK) {
    st = call_masked(op, n_in, cast, attr, out, n_out);
    for (int i = 0; i < n_in; i++) dm_tensor_unref(&cast[i]);
  }
  if (cast != local) dm_free(cast);
  return st;
}

/* A call of an op that reads 16 bits and computes in float32; its result is float32, too. */
static dm_status call_widening(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                               const void *attr, dm_Tensor **out, int *n_out) {
  dm_AutocastState *a = &dm_thread_state()->autocast;
  a->widens = true;
  const dm_status st = call_masked(op, n_in, in, attr, out, n_out);
  a->widens = false;
  return st;
}

/* A call that autocast concerns. fp32_set_opt_dtype sets the attribute dtype in a copy. */
static __attribute__((noinline)) dm_status call_autocast(const dm_OpInfo *op, int n_in,
                                                         dm_Tensor *const *in, const void *attr,
                                                         dm_Tensor **out, int *n_out) {
  dm_CastPlan plan;
  DM_TRY(dm_autocast_plan(op, n_in, in, attr, &plan));
  if (!plan.listed && !(op->flags & F_WHOLE)) return call_plain(op, n_in, in, attr, out, n_out);
  if (plan.to != DM_NO_DTYPE) return call_cast(op, &plan, n_in, in, attr, out, n_out);
  if (plan.widens) return call_widening(op, n_in, in, attr, out, n_out);
  if (!plan.f32_result) return call_masked(op, n_in, in, attr, out, n_out);
  _Alignas(8) char copy[DM_ATTR_BYTES];
  const dm_Signature *g = op->signature;
  memcpy(copy, attr, g->attr_bytes);
  *(int64_t *)(void *)(copy + g->attr[g->dtype_attr].offset) = DM_F32;
  return call_masked(op, n_in, in, copy, out, n_out);
}

static __attribute__((noinline)) dm_status
call_with_defaults(int id, int n_in, dm_Tensor *const *in, dm_Tensor **out, int *n_out) {
  _Alignas(8) char defaults[DM_ATTR_BYTES];
  dm_op_defaults(&dm_ops[id], defaults);
  return dm_call_n(id, n_in, in, defaults, out, n_out);
}

dm_status dm_call_n(int id, int n_in, dm_Tensor *const *in, const void *attr, dm_Tensor **out,
                    int *n_out) {
  const dm_OpInfo *op = &dm_ops[id];
  dm_leaves_see(n_in, in);
  if (!attr && op->signature->n_attr) return call_with_defaults(id, n_in, in, out, n_out);
  const dm_AutocastState *a = &dm_thread_state()->autocast;
  if (dm_autocast_on(a) && dm_autocast_concerns(a, op))
    return call_autocast(op, n_in, in, attr, out, n_out);
  return call_plain(op, n_in, in, attr, out, n_out);
}

dm_status dm_call(int id, int n_in, dm_Tensor *const *in, const void *attr, dm_Tensor **out) {
  int n_out;
  return dm_call_n(id, n_in, in, attr, out, &n_out);
}

/* ---- in place ---- */

/* May an op with that result change t in place? The checks are PyTorch's. */
static dm_status check_inplace(const dm_OpInfo *op, const dm_Tensor *t, const dm_Meta *m) {
  const dm_ThreadState *ts = dm_thread_state();
  if (ts->grad && !t->node && (t->flags & DM_T_REQUIRES_GRAD))
    return dm_fail(DM_ESTATE,
                   "%s_: a leaf that requires grad cannot change in place; hint: inside "
                   "dm.no_grad(), or on x:clone()",
                   op->name);
  if (ts->grad && !ts->inference && (t->flags & DM_T_INFERENCE))
    return dm_fail(DM_ESTATE,
                   "%s_: a tensor made under inference_mode cannot change outside it; "
                   "hint: x:clone()",
                   op->name);
  if (dm_tensor_overlaps_itself(t))
    return dm_fail(
        DM_EARG,
        "%s_: several elements of the expanded tensor share one memory location; hint: "
        "x:clone()",
        op->name);
  const bool same = m->ndim == t->ndim &&
                    memcmp(m->shape, t->shape, sizeof m->shape[0] * (size_t)t->ndim) == 0;
  if (!same)
    return dm_fail(DM_EARG, "%s_: the result has shape %s, but it is written into %s", op->name,
                   DM_DIMS(m->ndim, m->shape), DM_SHAPE(t));
  if (DM_UNLIKELY(!dm_device_eq(m->device, t->device))) {
    char a[16], b[16];
    return dm_fail(DM_EARG, "%s_: the result is on %s, but it is written into %s", op->name,
                   dm_device_name(m->device, a), dm_device_name(t->device, b));
  }
  if (dm_kind((dm_DType)m->dtype) > dm_kind((dm_DType)t->dtype))
    return dm_fail(DM_EARG, "%s_: the result is %s and cannot be written into %s", op->name,
                   dm_dtype_name((dm_DType)m->dtype), dm_dtype_name((dm_DType)t->dtype));
  return DM_OK;
}

/* Does u overlap t in a way that forbids a pointwise kernel to write t while it reads u? One
   that shares storage must have the same elements at the same indices. */
static bool aliases_badly(const dm_Tensor *t, const dm_Tensor *u) {
  if (!u || u == t || u->storage != t->storage || u->storage->n_bytes == 0) return false;
  return u->offset != t->offset || !dm_same_shape(t, u) ||
         memcmp(t->stride, u->stride, sizeof t->stride[0] * t->ndim) != 0;
}

static dm_status copy_into(dm_Tensor *dst, dm_Tensor *src) {
  dm_Call c;
  dm_Tensor *in[2] = {dst, src};
  begin_call(&c, &dm_ops[DM_OP_copy], 2, in, NULL);
  c.out[0] = dst;
  return launch(&c, dst->device);
}

/* Writes the result into in[0]: directly, if the op is pointwise and no input overlaps it
   otherwise; else from a temporary. */
static dm_status write_inplace(dm_Call *c) {
  dm_Tensor *t = c->in[0];
  bool direct = (c->op->flags & F_POINTWISE) && c->n_out == 1;
  for (int i = 1; i < c->n_in && direct; i++)
    if (aliases_badly(t, c->in[i])) direct = false;
  if (direct) {
    c->out[0] = t;
    const dm_status st = launch(c, t->device);
    c->out[0] = NULL;
    return st;
  }
  dm_status st = run_kernel(c);
  if (st == DM_OK) st = copy_into(t, c->out[0]);
  drop_outputs(c);
  return st;
}

/* A tensor's history before a call, restored when the call fails. */
typedef struct History {
  dm_Tensor *t; /* NULL: none was saved */
  dm_Node *node;
  uint32_t gen;
  uint8_t out_index, flags;
} History;

/* Remembers t's history before an in-place op records over it. */
static void save_history(History *h, dm_Tensor *t) {
  if (!t) return;
  *h = (History){t, t->node, t->gen, t->out_index, t->flags};
  if (h->node) dm_hold(&h->node->refs);
}

/* Ends the change of t's history: keeps the new one, or restores the old one after a
   failure. */
static void end_history(History *h, bool restore) {
  if (!h->t) return;
  if (restore) {
    dm_Node *made = h->t->node;
    h->t->node = h->node;
    h->node = made;
    h->t->gen = h->gen;
    h->t->out_index = h->out_index;
    h->t->flags = h->flags;
    if (h->flags & DM_T_RETAIN_GRAD && h->t->node && h->t->node->retain)
      h->t->node->retain[h->out_index] = h->t;
  }
  dm_node_unref(&h->node);
}

/* Records a call whose rule has been applied and that changes t. */
static dm_status record_inplace(const dm_Call *c, dm_Tensor *t, dm_Tensor *old) {
  dm_Call changed = *c;
  changed.n_out = 1;
  changed.out[0] = t;
  DM_TRY(dm_record(&changed, old));
  if (t->base) return dm_rebase(t);
  t->gen++; /* views made earlier rebuild their history when they are used */
  return DM_OK;
}

/* A composed op has no kernel that could write in place: its result is copied into in[0]. It
   reads a clone of in[0], so that the copy does not overwrite what its gradient saved. Autocast
   converts nothing in place, so it is off for the op and those inside. */
static dm_status compose_inplace(int id, int n_in, dm_Tensor *const *in, const void *attr) {
  dm_Tensor *from[DM_MAX_IN], *clone = NULL, *out[DM_MAX_OUT] = {NULL};
  int n_out = 0;
  DM_TRY(dm_call(DM_OP_clone, 1, in, NULL, &clone));
  for (int i = 0; i < n_in; i++) from[i] = in[i] == in[0] ? clone : in[i];
  dm_AutocastState *a = &dm_thread_state()->autocast;
  const bool masked = a->masked;
  a->masked = true;
  dm_status st = dm_call_n(id, n_in, from, attr, out, &n_out);
  a->masked = masked;
  if (st == DM_OK) {
    const dm_Meta m = dm_meta_of(out[0]);
    dm_Tensor *pair[2] = {in[0], out[0]};
    st = check_inplace(&dm_ops[id], in[0], &m);
    if (st == DM_OK) st = dm_call_inplace(DM_OP_copy, 2, pair, NULL);
  }
  for (int i = 0; i < n_out; i++) dm_tensor_unref(&out[i]);
  dm_tensor_unref(&clone);
  return st;
}

/* Is the call copy_ from another device? A number on the host belongs to no device. */
static bool copies_across(const dm_OpInfo *op, dm_Tensor *const *in) {
  return op == &dm_ops[DM_OP_copy] && !dm_device_eq(in[0]->device, in[1]->device) &&
         (in[1]->device.type != DM_CPU || in[1]->ndim > 0);
}

/* The op `to` moves the source first; it converts on the side where fewer bytes move. */
static dm_status copy_across(dm_Tensor *const *in, const void *attr) {
  const int64_t non_blocking = attr ? *(const int64_t *)attr : 0;
  const int64_t to[3] = {in[0]->dtype, dm_device_code(in[0]->device), non_blocking};
  dm_Tensor *pair[2] = {in[0], NULL};
  DM_TRY(dm_call(DM_OP_to, 1, &in[1], to, &pair[1]));
  const dm_status st = dm_call_inplace(DM_OP_copy, 2, pair, NULL);
  dm_tensor_unref(&pair[1]);
  return st;
}

/* The call is recorded before the kernel writes: recording may fail, and then nothing has
   changed and the call can be tried again. */
static dm_status change_unobserved(const dm_OpInfo *op, int n_in, dm_Tensor *const *in,
                                   const void *attr) {
  if (op->compose) return compose_inplace((int)dm_op_id(op), n_in, in, attr);
  if (DM_UNLIKELY(copies_across(op, in))) return copy_across(in, attr);
  dm_Tensor *t = in[0], *old = NULL;
  _Alignas(8) char defaults[DM_ATTR_BYTES];
  if (!attr) {
    dm_op_defaults(op, defaults);
    attr = defaults;
  }
  dm_Call c;
  Inputs sum;
  DM_TRY(summarize(op, n_in, in, &sum));
  begin_call(&c, op, n_in, in, attr);
  DM_TRY(apply_rule(&c, sum.dev));
  DM_TRY(check_inplace(op, t, &c.out_meta[0]));
  const bool record = wants_record(op, &sum);
  if (record) {
    /* The leaf is the base, or a view of it itself, from which t has its history. */
    const dm_Tensor *const base = t->base;
    if (base && !base->node && (t->node || (base->flags & DM_T_REQUIRES_GRAD)))
      return dm_fail(DM_ESTATE,
                     "%s_: a view of a leaf that requires grad cannot change in place; "
                     "hint: inside dm.no_grad()",
                     op->name);
    if (!dm_is_float((dm_DType)t->dtype))
      return dm_fail(DM_EARG, "%s_: a gradient cannot flow into %s", op->name,
                     dm_dtype_name((dm_DType)t->dtype));
    DM_TRY(refresh_views(n_in, in));
    /* the gradient reads the old value */
    if (dm_saves_input(c.save, 0, n_in, in)) DM_TRY(dm_call(DM_OP_clone, 1, &t, NULL, &old));
  }
  History old_history[2] = {0};
  dm_status st = DM_OK;
  t->storage->version++;
  if (record) {
    save_history(&old_history[0], t);
    save_history(&old_history[1], t->base);
    st = record_inplace(&c, t, old);
  }
  if (st == DM_OK) st = write_inplace(&c);
  if (st != DM_OK) t->storage->version--;
  else t->flags &= (uint8_t)~DM_T_SCALED; /* a script that changes it has unscaled it */
  for (int i = 0; i < DM_COUNT(old_history); i++) end_history(&old_history[i], st != DM_OK);
  dm_tensor_unref(&old);
  return st;
}

dm_status dm_call_inplace(int id, int n_in, dm_Tensor *const *in, const void *attr) {
  const dm_OpInfo *op = &dm_ops[id];
  dm_leaves_see(n_in, in);
  if (!dm_observed()) return change_unobserved(op, n_in, in, attr);
  dm_Event e = {.op = op, .name = op->name, .inplace = true, .n_in = n_in, .in = in, .out = in};
  dm_observe_begin(&e);
  const dm_status st = change_unobserved(op, n_in, in, attr);
  e.n_out = st == DM_OK;
  dm_observe_end(&e);
  return st;
}

/* ---- compositions ---- */

/* Makes space for one more pointer. The first ones are stored in the struct itself. */
static bool x_grow(dm_X *x) {
  if (!x->own) {
    x->own = x->local;
    x->capacity = DM_COUNT(x->local);
  }
  if (x->n < x->capacity) return true;
  dm_Tensor **own = dm_alloc((int64_t)sizeof *own * 2 * x->capacity);
  if (!own) return false;
  memcpy(own, x->own, sizeof *own * (size_t)x->n);
  if (x->own != x->local) dm_free(x->own);
  x->own = own;
  x->capacity *= 2;
  return true;
}

dm_Tensor *dm_x_own(dm_X *x, dm_Tensor *t) {
  if (!t) return NULL;
  if (!x_grow(x)) {
    dm_tensor_unref(&t);
    x->st = dm_fail(DM_EMEM, "out of memory: no space for a step of a composition");
    return NULL;
  }
  return x->own[x->n++] = t;
}

dm_Tensor *dm_x(dm_X *x, int op, const void *attr, int n_in, ...) {
  if (x->st != DM_OK) return NULL;
  dm_Tensor *in[DM_MAX_IN], *out[DM_MAX_OUT] = {NULL};
  va_list ap;
  va_start(ap, n_in);
  for (int i = 0; i < n_in; i++) in[i] = va_arg(ap, dm_Tensor *);
  va_end(ap);
  int n_out;
  x->st = dm_call_n(op, n_in, in, attr, out, &n_out);
  if (x->st != DM_OK) return NULL;
  for (int i = 1; i < n_out; i++) (void)dm_x_own(x, out[i]);
  return dm_x_own(x, out[0]);
}

dm_Tensor *dm_x_number(dm_X *x, double v) {
  dm_Tensor *t = NULL;
  if (x->st != DM_OK) return NULL;
  x->st = dm_tensor_number(false, v, 0, &t);
  return x->st == DM_OK ? dm_x_own(x, t) : NULL;
}

dm_Tensor *dm_x_widen(dm_X *x, dm_Tensor *t) {
  const int64_t wide = DM_F32;
  return t && dm_is_low(t->dtype) ? dm_x(x, DM_OP_cast, &wide, 1, t) : t;
}

void dm_x_free(dm_X *x) {
  for (int i = 0; i < x->n; i++) dm_tensor_unref(&x->own[i]);
  if (x->own != x->local) dm_free(x->own);
  x->own = NULL;
  x->n = 0;
}
