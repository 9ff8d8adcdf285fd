/* Updates of lists of tensors. A tensor is cut into blocks; each block's lanes (weight,
   gradient, buffers) are widened to the compute type where they are not of it, computed, and
   rounded once into the lanes that are written. methods.inc has the optimizers' formulas.

   The update of an element depends on no other element, so blocks run in any order
   and on any thread with the same result. Blocks of BLOCK elements keep every lane of
   an update, widened, in the first-level cache: each weight, gradient and buffer is
   read from memory once and written once, which is what a step costs.

   Norms have a fixed order of summation: partial sums of GRAIN elements, joined first
   to last. */
#include "op/optim/optim.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/half.h"
#include "core/iter.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "engine/backend.h"
#include "engine/observe.h"
#include "engine/state.h"
#include "engine/op.h"
#include "op/random/random.h"

/* Lanes of a step: weight, gradient, buffers, and the copy. */
enum { WEIGHT, GRAD, FIRST_BUFFER, COPY = FIRST_BUFFER + DM_MAX_BUFFERS, MAX_LANE };
enum { BLOCK = 512, GRAIN = 32 * BLOCK };

/* One update: the tensors it reads and writes, and the loop that computes a block of
   them. All lanes have the shape of lane 0. */
typedef struct Update {
  unsigned written;          /* bit i: lane i is changed */
  dm_Tensor *lane[MAX_LANE]; /* NULL: the method does without; never lane 0 */
  dm_UpdateFn *f32, *f64;
  const void *how;
  bool copied;               /* lane COPY gets lane 0 rounded to 16 bits */
  bool master;               /* lane 0 is that one's master */
  const dm_Generator *noise; /* lane 0, of 16 bits, is rounded stochastically; or NULL */
} Update;

/* ---- the block loop ---- */

/* The address of element i of a dense tensor, as bytes: its dtype is known at run
   time only. */
static char *at(const dm_Tensor *t, int64_t i) {
  return (char *)dm_tensor_data(t) + i * dm_dtype_size(t->dtype);
}

/* The master becomes the parameter's value where, rounded, it differs from the parameter: the
   caller has changed that one (loaded it, clamped it). */
static void follow(const dm_Tensor *param, int64_t i, int64_t n, float *master) {
  _Alignas(float) char rounded[BLOCK * sizeof(float)];
  const char *now = at(param, i);
  const size_t size = (size_t)dm_dtype_size(param->dtype);
  dm_store_f32(param->dtype, rounded, 1, n, master);
  if (memcmp(rounded, now, size * (size_t)n) == 0) return;
  float wide[BLOCK];
  dm_load_f32(param->dtype, now, 1, n, wide);
  for (size_t k = 0; k < (size_t)n; k++)
    if (memcmp(rounded + k * size, now + k * size, size) != 0) master[k] = wide[k];
}

/* Element i + k takes word (i + k) % 4 of counter (i + k) / 4; i is a multiple of
   4, n at most BLOCK. */
static void round_stochastic(dm_DType to, dm_Generator g, int64_t i, int64_t n, float *v) {
  uint32_t word[BLOCK + 4 * DM_PHILOX_LANES];
  const dm_Loops *l = dm_loops();
  l->philox_words(g, (uint64_t)i / 4, (n + 3) / 4, word);
  l->round_stochastic(to, word, n, v);
}

/* Lanes of other dtypes are widened into buffer[]. Absent ones show the weight, so that every
   address that a loop makes is one. */
static void blocks_f32(void *ctx, int64_t begin, int64_t end) {
  const Update *u = ctx;
  float buffer[MAX_LANE][BLOCK], *x[MAX_LANE];
  for (int64_t i = begin; i < end; i += BLOCK) {
    const int64_t n = dm_min_i64(BLOCK, end - i);
    for (int k = 0; k < COPY; k++) {
      const dm_Tensor *t = u->lane[k];
      x[k] = !t ? x[0] : t->dtype == DM_F32 ? (float *)(void *)at(t, i) : buffer[k];
      if (x[k] == buffer[k]) dm_load_f32(t->dtype, at(t, i), 1, n, buffer[k]);
    }
    if (u->master) follow(u->lane[COPY], i, n, x[0]);
    u->f32((void *const *)x, n, u->how);
    if (u->noise) round_stochastic(u->lane[0]->dtype, *u->noise, i, n, x[0]);
    if (u->copied) dm_store_f32(u->lane[COPY]->dtype, at(u->lane[COPY], i), 1, n, x[0]);
    for (int k = 0; k < COPY; k++)
      if (x[k] == buffer[k] && (u->written >> k & 1u))
        dm_store_f32(u->lane[k]->dtype, at(u->lane[k], i), 1, n, buffer[k]);
  }
}

/* The same for float64 weights. They have neither masters nor copies of 16 bits, so
   that there is nothing to follow or to round. */
static void blocks_f64(void *ctx, int64_t begin, int64_t end) {
  const Update *u = ctx;
  double buffer[MAX_LANE][BLOCK], *x[MAX_LANE];
  for (int64_t i = begin; i < end; i += BLOCK) {
    const int64_t n = dm_min_i64(BLOCK, end - i);
    for (int k = 0; k < COPY; k++) {
      const dm_Tensor *t = u->lane[k];
      x[k] = !t ? x[0] : t->dtype == DM_F64 ? (double *)(void *)at(t, i) : buffer[k];
      if (x[k] == buffer[k]) dm_load_f64(t->dtype, at(t, i), 1, n, buffer[k]);
    }
    u->f64((void *const *)x, n, u->how);
    for (int k = 0; k < COPY; k++)
      if (x[k] == buffer[k] && (u->written >> k & 1u))
        dm_store_f64(u->lane[k]->dtype, at(u->lane[k], i), 1, n, buffer[k]);
  }
}

/* Whether lane k exists and is one that the method changes. */
static bool is_written(const Update *u, int k) { return u->lane[k] && (u->written >> k & 1u); }

/* Runs u over its dense lanes. A version is counted for each tensor that is written,
   also where its elements happen to keep their values: saved tensors and cached casts
   compare versions. */
static void run_dense(Update *u) {
  dm_parallel_for(u->lane[0]->numel, GRAIN,
                  u->lane[0]->dtype == DM_F64 ? blocks_f64 : blocks_f32, u);
  for (int k = 0; k < MAX_LANE; k++)
    if (is_written(u, k)) u->lane[k]->storage->version++;
}

/* The same with lanes that are not dense: computed in copies, copied back. */
static dm_status run_strided(Update *u) {
  dm_Tensor *own[MAX_LANE];
  dm_ThreadState *ts = dm_thread_state();
  const bool grad = ts->grad;
  dm_status st = DM_OK;
  for (int k = 0; k < MAX_LANE; k++) {
    own[k] = u->lane[k];
    u->lane[k] = NULL;
  }
  ts->grad = false;
  for (int k = 0; k < MAX_LANE; k++)
    if (own[k]) DM_GO(dm_call(DM_OP_contiguous, 1, &own[k], NULL, &u->lane[k]));
  run_dense(u);
  for (int k = 0; k < MAX_LANE; k++) {
    dm_Tensor *in[2] = {own[k], u->lane[k]};
    if (is_written(u, k) && in[0]->storage != in[1]->storage)
      DM_GO(dm_call_inplace(DM_OP_copy, 2, in, NULL));
  }
done:
  ts->grad = grad;
  for (int k = 0; k < MAX_LANE; k++) dm_tensor_unref(&u->lane[k]);
  return st;
}

/* Updates one list of lanes. A single lane that is not dense, such as a transposed
   weight, sends all of them through copies. */
static dm_status run(Update *u) {
  for (int k = 0; k < MAX_LANE; k++)
    if (u->lane[k] && !dm_tensor_is_contiguous(u->lane[k])) return run_strided(u);
  run_dense(u);
  return DM_OK;
}

/* ---- a weight in two precisions ---- */

/* On the CPU a copy spares a small weight its cast, which costs a call. The copy of a large one
   would take memory while the gradients do, when a step holds the most; its cast is freed after
   it was read. */
static bool keeps_copy(const dm_Tensor *p) {
  enum { COPIED = 1 << 14 }; /* elements */
  return p->low_dtype && p->dtype == DM_F32 && (p->device.type != DM_CPU || p->numel <= COPIED);
}

/* A weight of conv2d is copied as the convolutions of its device read it: outside the CPU
   channels last (op/conv/conv.h). Any other op reads that as well. Steps turn a weight over by
   positions of 32 bits. */
dm_Tensor *dm_fresh_copy(dm_Tensor *p) {
  if (p->low && (p->low->dtype != p->low_dtype || atomic_load(&p->low->storage->refs) > 1))
    dm_tensor_unref(&p->low);
  if (!keeps_copy(p) || p->low) return p->low;
  dm_Meta m = dm_meta_of(p);
  m.dtype = p->low_dtype;
  m.channels_last = p->device.type != DM_CPU && p->ndim == 4 && p->shape[1] > 1 &&
                    p->shape[2] > 1 && p->numel <= INT32_MAX;
  (void)dm_tensor_new_meta(&m, &p->low);
  return p->low;
}

/* Whether a step rounds param itself stochastically; the call's random numbers for it. A step
   that is skipped takes them all the same: the host does not know what another device skips. */
static bool draw(const Update *u, const dm_Tensor *param, bool stochastic, dm_Generator *out) {
  const bool is_drawn =
      stochastic && u->lane[WEIGHT] == param && dm_is_low((dm_DType)param->dtype);
  *out = dm_take_counters(is_drawn ? param->numel : 0, 4);
  return is_drawn;
}

/* Runs u, whose lane 0 is the weight that the method updates: the parameter, or its master. */
static dm_status run_weight(Update *u, dm_Tensor *param, const dm_Generator *noise) {
  u->master = u->lane[WEIGHT] != param;
  u->lane[COPY] = u->master ? param : dm_fresh_copy(param);
  u->copied = u->lane[COPY] != NULL;
  u->noise = u->copied ? NULL : noise;
  const dm_status st = run(u);
  dm_settle_copy(param, st);
  return st;
}

/* ---- arguments ---- */

/* The functions of the back ends, by the type of device; NULL for the CPU and for
   devices without a back end. */
static const dm_OptimOps *far[DM_N_DEVICE_TYPE];

void dm_optim_register(dm_DeviceType type, const dm_OptimOps *ops) { far[type] = ops; }

/* A call that is checked, and the first of its tensors: all are on that one's device. */
typedef struct Check {
  const char *op;
  const dm_Tensor *first;
} Check;

/* Fails unless t is on the device of the tensors that were checked before. A back end
   runs a list in one launch, so a list on two devices has no place to run. */
static dm_status check_device(Check *c, const char *what, int64_t i, const dm_Tensor *t) {
  if (!c->first) c->first = t;
  if (DM_LIKELY(dm_device_eq(c->first->device, t->device))) return DM_OK;
  char a[16], b[16];
  return dm_fail(DM_EARG, "%s: %s %lld is on %s, what came before it on %s; hint: a call each",
                 c->op, what, (long long)i + 1, dm_device_name(t->device, a),
                 dm_device_name(c->first->device, b));
}

/* *ops: the back end that is to do it, to be left by far_done; NULL: the CPU. */
static dm_status find_ops(const Check *c, const dm_OptimOps **ops) {
  *ops = NULL;
  if (!c->first || c->first->device.type == DM_CPU) return DM_OK;
  *ops = far[c->first->device.type];
  if (*ops) {
    const dm_Device dev = c->first->device;
    DM_TRY(dm_device_ops(dev)->begin(dev));
    if (dm_observed()) dm_observe_work(dev, true);
    return DM_OK;
  }
  char name[16];
  return dm_fail(DM_EDEV, "%s: no kernel on %s", c->op, dm_device_name(c->first->device, name));
}

/* Ends what find_ops began: tells the observers and the device that the work was
   submitted. A failure of the work itself goes first. */
static dm_status far_done(const Check *c, dm_status st) {
  if (st == DM_OK && dm_observed()) dm_observe_work(c->first->device, false);
  return st == DM_OK ? dm_device_ops(c->first->device)->end(c->first->device) : st;
}

/* Lanes that all have lane 0's shape and device, and a float dtype. */
static dm_status check_lanes(Check *c, int64_t i, int n, dm_Tensor *const *lane) {
  for (int k = 0; k < n; k++) {
    const dm_Tensor *t = lane[k];
    if (!dm_is_float((dm_DType)t->dtype))
      return dm_fail(DM_EARG, "%s: tensor %lld is %s, wanted a float dtype", c->op,
                     (long long)i + 1, dm_dtype_name(t->dtype));
    DM_TRY(check_device(c, "tensor", i, t));
    if (!dm_same_shape(t, lane[0]))
      return dm_fail(DM_EARG, "%s: parameter %lld has shape %s, its gradient or a buffer %s",
                     c->op, (long long)i + 1, DM_SHAPE(lane[0]), DM_SHAPE(t));
  }
  return DM_OK;
}

/* A parameter and its master, which was checked as lane 0. */
static dm_status check_weight(Check *c, int64_t i, dm_Tensor *param, dm_Tensor *master) {
  if (!master) return DM_OK;
  DM_TRY(check_lanes(c, i, 2, (dm_Tensor *[2]){master, param}));
  if (master->dtype == DM_F32 && dm_is_low((dm_DType)param->dtype)) return DM_OK;
  return dm_fail(DM_EARG, "%s: parameter %lld is %s, its master %s; wanted 16 bits and float32",
                 c->op, (long long)i + 1, dm_dtype_name((dm_DType)param->dtype),
                 dm_dtype_name((dm_DType)master->dtype));
}

/* One element on the device of the others. */
static dm_status check_scalar(Check *c, const char *name, const dm_Tensor *t, dm_DType dtype) {
  if (!c->first) c->first = t;
  if (t->numel == 1 && t->dtype == dtype && dm_device_eq(t->device, c->first->device))
    return DM_OK;
  char at[16];
  return dm_fail(DM_EARG,
                 "%s: %s is %s %s on %s, wanted one element of %s on the gradients' device",
                 c->op, name, dm_dtype_name(t->dtype), DM_SHAPE(t),
                 dm_device_name(t->device, at), dm_dtype_name(dtype));
}

/* The element of a float32 scalar on the CPU. */
static float scalar_of(const dm_Tensor *t) { return *(const float *)dm_tensor_data(t); }

/* found_inf is optional: without a GradScaler there is none, and every step counts. */
static dm_status check_found_inf(Check *c, const dm_Tensor *found_inf) {
  return found_inf ? check_scalar(c, "found_inf", found_inf, DM_F32) : DM_OK;
}

/* Whether the step is to be skipped; read on the CPU only, where reading does not
   wait. */
static bool is_set(const dm_Tensor *found_inf) {
  return found_inf && dm_is_set(dm_tensor_data(found_inf));
}

/* ---- steps ---- */

/* For each method a function that tells which buffers its options want, as bits: SGD
   without momentum keeps no buffer, Adam without amsgrad keeps two of its three. It
   is generated from the rows of methods.inc, whose conditions read the options by
   name. */
#define METHOD(NAME, KINDS, COUNTS, OPTIONS, BUFFERS, ...)     \
  static unsigned NAME##_wanted(const double *options) {       \
    const dm_##NAME##Options *const o = (const void *)options; \
    unsigned bit = 1, wanted = 0;                              \
    DM_UNUSED(o);                                              \
    BUFFERS                                                    \
    DM_UNUSED(bit);                                            \
    return wanted;                                             \
  }
#define BUFFER(NAME, WANTED)     \
  wanted |= (WANTED) ? bit : 0u; \
  bit <<= 1;
#include "base/methods.inc"

/* The same rows as data: the names that callers pass, and the sizes that they must
   have. */
const dm_MethodRow dm_method_rows[DM_N_METHOD] = {
#define METHOD(NAME, KINDS, COUNTS, OPTIONS, BUFFERS, NUMBERS)                  \
  {#NAME,          COUNTS,         sizeof(dm_##NAME##Options) / sizeof(double), \
   {OPTIONS NULL}, {BUFFERS NULL}, {NUMBERS NULL},                              \
   NAME##_wanted},
#define OPTION(NAME) #NAME,
#define PART(TABLE, NAME) #TABLE,
#define BUFFER(NAME, WANTED) #NAME,
#define NUMBER(NAME) #NAME,
#include "base/methods.inc"
};

/* The lanes of a parameter's step. The weight that the method updates is the master
   where there is one: the parameter itself is then lane COPY, written last. */
static void set_lanes(const dm_StepSlot *s, dm_Tensor **lane) {
  lane[WEIGHT] = s->master ? s->master : s->param;
  lane[GRAD] = s->grad;
  for (int k = 0; k < DM_MAX_BUFFERS; k++) lane[FIRST_BUFFER + k] = s->buffer[k];
}

/* Checks one parameter before any is changed, so that a step that fails has changed
   nothing: buffers that the options want exist, shapes, dtypes and devices fit, and
   the scalars are scalars. */
static dm_status check_slot(Check *c, const dm_MethodRow *row, unsigned wanted, int64_t i,
                            const dm_StepSlot *s) {
  dm_Tensor *lane[COPY], *given[COPY];
  int n = 0;
  set_lanes(s, lane);
  for (int k = 0; k < COPY; k++)
    if (lane[k]) given[n++] = lane[k];
  for (int k = 0; k < DM_MAX_BUFFERS; k++)
    if ((wanted >> k & 1u) && !s->buffer[k])
      return dm_fail(DM_EARG, "%s: parameter %lld lacks %s", row->name, (long long)i + 1,
                     row->buffer[k]);
  DM_TRY(check_lanes(c, i, n, given));
  DM_TRY(check_weight(c, i, s->param, s->master));
  if (row->counts) DM_TRY(check_scalar(c, "step", s->step, DM_F32));
  for (int k = 0; row->number[k]; k++)
    DM_TRY(check_scalar(c, row->number[k], s->number[k], DM_F64));
  return DM_OK;
}

/* A method's constants for one compute type; most parameters have made as many steps. */
typedef struct Constants {
  bool set, first;
  float step;
  max_align_t bytes[DM_CONSTANT_BYTES / sizeof(max_align_t)];
} Constants;

/* Counts a slot's step and sets c to the constants of that step. */
static void make_ready(const dm_MethodRow *row, const dm_MethodLoops *loops, const dm_Step *s,
                       const dm_StepSlot *slot, Constants *c) {
  double number[DM_MAX_NUMBERS] = {0};
  float step = 0;
  if (row->counts) step = *(float *)dm_tensor_data(slot->step) += 1;
  if (c->set && c->step == step && c->first == slot->first && !row->number[0]) return;
  for (int k = 0; row->number[k]; k++)
    number[k] = *(const double *)dm_tensor_data(slot->number[k]);
  loops->ready(s->options, (double)step, slot->first, number, c->bytes);
  for (int k = 0; row->number[k]; k++) *(double *)dm_tensor_data(slot->number[k]) = number[k];
  c->set = true;
  c->first = slot->first;
  c->step = step;
}

/* A step of a list. Checks come first, for all slots. Counters and random numbers
   advance in the order of the list, and random numbers also where the step is
   skipped, so that a run with skipped steps draws the same numbers on the CPU and on
   a device that does not wait. */
dm_status dm_optim_step(const dm_Step *s, int64_t n, const dm_StepSlot *slots) {
  const dm_MethodRow *row = &dm_method_rows[s->method];
  const dm_MethodLoops *f32 = &dm_loops()->f32.methods[s->method];
  const dm_MethodLoops *f64 = &dm_loops()->f64.methods[s->method];
  const unsigned wanted = row->wanted(s->options);
  Check c = {row->name, NULL};
  const dm_OptimOps *ops;
  for (int64_t i = 0; i < n; i++)
    if (slots[i].grad) DM_TRY(check_slot(&c, row, wanted, i, &slots[i]));
  DM_TRY(check_found_inf(&c, s->found_inf));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->step(s, n, slots));
  const bool skip = is_set(s->found_inf);
  Constants constants[2] = {{.set = false}, {.set = false}};
  for (int64_t i = 0; i < n; i++) {
    if (!slots[i].grad) continue;
    Update u = {.f32 = f32->run, .f64 = f64->run};
    dm_Generator noise;
    set_lanes(&slots[i], u.lane);
    const bool is_f64 = u.lane[WEIGHT]->dtype == DM_F64;
    const bool is_drawn = draw(&u, slots[i].param, s->stochastic, &noise);
    if (skip) continue;
    make_ready(row, is_f64 ? f64 : f32, s, &slots[i], &constants[is_f64]);
    u.how = constants[is_f64].bytes;
    u.written = ~(1u << GRAD);
    DM_TRY(run_weight(&u, slots[i].param, is_drawn ? &noise : NULL));
  }
  return DM_OK;
}

/* ---- gradient scaling ---- */

/* The threads that unscale one gradient, which may be strided, share this. */
typedef struct Unscale {
  dm_Iter it;
  dm_DType dtype;
  float factor;
  atomic_llong *bad; /* elements that are not finite afterwards */
} Unscale;

/* g *= factor for n elements; returns how many are inf or NaN afterwards. The
   comparison with the largest double is false for both. */
static int64_t unscale_f64(double *g, int64_t n, double factor) {
  int64_t bad = 0; /* as wide as a double, for the vectorizer */
  for (int64_t i = 0; i < n; i++) {
    g[i] *= factor;
    bad += !(fabs(g[i]) <= DBL_MAX);
  }
  return bad;
}

/* A block is computed in place if it is dense and of the compute type, else in a copy. */
static int64_t unscale_block(const Unscale *u, char *at_, int64_t stride, int64_t n) {
  union {
    float f32[BLOCK];
    double f64[BLOCK];
  } wide;
  void *const at0 = at_;
  int64_t bad;
  if (u->dtype == DM_F64) {
    double *x = stride == 1 ? at0 : wide.f64;
    if (x == wide.f64) dm_load_f64(u->dtype, at0, stride, n, x);
    bad = unscale_f64(x, n, (double)u->factor);
    if (x == wide.f64) dm_store_f64(u->dtype, at0, stride, n, x);
  } else {
    float *x = stride == 1 && u->dtype == DM_F32 ? at0 : wide.f32;
    if (x == wide.f32) dm_load_f32(u->dtype, at0, stride, n, x);
    bad = dm_loops()->unscale(x, n, u->factor, dm_top_of(u->dtype));
    if (x == wide.f32) dm_store_f32(u->dtype, at0, stride, n, x);
  }
  return bad;
}

/* A run of n elements that are `stride` apart, block by block; the count is added
   once. */
static void unscale_run(void *ctx, char *const *ptr, const int64_t *stride, int64_t n) {
  const Unscale *u = ctx;
  const int64_t step = stride[0] * dm_dtype_size(u->dtype);
  int64_t bad = 0;
  for (int64_t i = 0; i < n; i += BLOCK)
    bad += unscale_block(u, ptr[0] + i * step, stride[0], dm_min_i64(BLOCK, n - i));
  if (bad) atomic_fetch_add_explicit(u->bad, bad, memory_order_relaxed);
}

/* The elements begin .. end - 1 in the order of the iterator. */
static void unscale_range(void *ctx, int64_t begin, int64_t end) {
  Unscale *u = ctx;
  dm_iter_range(&u->it, begin, end, unscale_run, u);
}

/* A record that the host and the device share: n dense elements of int64. */
static dm_status check_record(Check *c, const char *name, const dm_Tensor *t, int n) {
  DM_TRY(check_device(c, name, 0, t));
  if (t->numel == n && t->dtype == DM_I64 && dm_tensor_is_contiguous(t)) return DM_OK;
  return dm_fail(DM_EARG, "%s: %s is %s %s, wanted %d dense elements of int64", c->op, name,
                 dm_dtype_name((dm_DType)t->dtype), DM_SHAPE(t), n);
}

/* Gradients are scaled in place, so an element that is shown twice, by a stride of 0,
   would be scaled twice. */
static dm_status check_grads(Check *c, int64_t n, dm_Tensor *const *grads) {
  for (int64_t i = 0; i < n; i++) {
    if (!grads[i]) continue;
    DM_TRY(check_lanes(c, i, 1, &grads[i]));
    if (dm_tensor_overlaps_itself(grads[i]))
      return dm_fail(DM_EARG,
                     "unscale_: several elements of the expanded gradient of parameter %lld "
                     "share one place; hint: p.grad = p.grad:clone()",
                     (long long)i + 1);
  }
  return DM_OK;
}

/* The products are checked, not the gradients: a product is not finite where its gradient is
   not, and also where the inverse of a tiny scale overflows. */
dm_status dm_amp_unscale(int64_t n, dm_Tensor *const *grads, const dm_Tensor *scale,
                         dm_Tensor *found_inf, dm_Tensor *where) {
  Check c = {"unscale_", NULL};
  const dm_OptimOps *ops;
  DM_TRY(check_grads(&c, n, grads));
  DM_TRY(check_scalar(&c, "scale", scale, DM_F32));
  DM_TRY(check_found_inf(&c, found_inf));
  DM_TRY(check_record(&c, "where", where, 2));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->amp_unscale(n, grads, scale, found_inf, where));
  int64_t first[2] = {0, 0};
  for (int64_t i = 0; i < n; i++) {
    dm_Tensor *g = grads[i];
    if (!g) continue;
    atomic_llong bad = 0;
    Unscale u = {.dtype = (dm_DType)g->dtype,
                 .factor = (float)(1 / (double)scalar_of(scale)),
                 .bad = &bad};
    dm_iter_init(&u.it, 1, &g);
    if (g->numel > 0) dm_parallel_for(g->numel, GRAIN, unscale_range, &u);
    g->storage->version++;
    g->flags &= (uint8_t)~DM_T_SCALED;
    if (bad == 0 || first[0]) continue;
    first[0] = i + 1;
    first[1] = bad;
  }
  *(float *)dm_tensor_data(found_inf) = first[0] ? 1 : 0;
  memcpy(dm_tensor_data(where), first, sizeof first);
  found_inf->storage->version++;
  where->storage->version++;
  return DM_OK;
}

static dm_status check_note(Check *c, const dm_Tensor *history, const dm_Tensor *where) {
  DM_TRY(check_record(c, "history", history, DM_AMP_FIELDS));
  return check_record(c, "where", where, 2);
}

/* On the CPU. */
static void note(dm_Tensor *history, const dm_Tensor *found_inf, const dm_Tensor *where,
                 const dm_Tensor *updates) {
  dm_note_step(dm_tensor_data(history), is_set(found_inf), dm_tensor_data(where),
               *(const int64_t *)dm_tensor_data(updates) + 1);
  history->storage->version++;
}

/* Notes the outcome of a step in the scaler's history without reading the device:
   `updates` is the number of update() calls so far, so the step belongs to the next
   one. */
dm_status dm_amp_note(dm_Tensor *history, const dm_Tensor *found_inf, const dm_Tensor *where,
                      const dm_Tensor *updates) {
  Check c = {"step", NULL};
  const dm_OptimOps *ops;
  DM_TRY(check_note(&c, history, where));
  DM_TRY(check_scalar(&c, "updates", updates, DM_I64));
  DM_TRY(check_found_inf(&c, found_inf));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->amp_note(history, found_inf, where, updates));
  note(history, found_inf, where, updates);
  return DM_OK;
}

/* The policy of loss scaling (P. Micikevicius et al. 2018): multiply the scale by the
   backoff factor when a step found inf or NaN, by the growth factor after `interval`
   updates without one. dm_move_scale has the arithmetic, in float32, for the CPU and
   for kernels. */
dm_status dm_amp_update_scale(const dm_ScaleUpdate *u, int64_t *held) {
  Check c = {"update", NULL};
  const dm_OptimOps *ops;
  bool found = false;
  DM_TRY(check_scalar(&c, "scale", u->scale, DM_F32));
  DM_TRY(check_scalar(&c, "growth_tracker", u->growth_tracker, DM_I32));
  DM_TRY(check_scalar(&c, "floored", u->floored, DM_I32));
  DM_TRY(check_scalar(&c, "updates", u->updates, DM_I64));
  for (int64_t i = 0; i < u->n; i++) DM_TRY(check_found_inf(&c, u->found_inf[i]));
  for (int64_t i = 0; i < u->n_note; i++) DM_TRY(check_note(&c, u->history[i], u->where[i]));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->amp_update_scale(u, held));
  for (int64_t i = 0; i < u->n; i++) {
    if (i < u->n_note) note(u->history[i], u->found_inf[i], u->where[i], u->updates);
    found |= is_set(u->found_inf[i]);
  }
  dm_move_scale(dm_tensor_data(u->scale), dm_tensor_data(u->growth_tracker),
                dm_tensor_data(u->floored), found, &u->how);
  *held = *(const int32_t *)dm_tensor_data(u->floored);
  u->scale->storage->version++;
  u->growth_tracker->storage->version++;
  u->floored->storage->version++;
  ++*(int64_t *)dm_tensor_data(u->updates);
  u->updates->storage->version++;
  return DM_OK;
}

dm_status dm_amp_held(dm_Tensor *floored, int64_t *held) {
  Check c = {"update", NULL};
  const dm_OptimOps *ops;
  *held = 0;
  DM_TRY(check_scalar(&c, "floored", floored, DM_I32));
  DM_TRY(find_ops(&c, &ops));
  return ops ? far_done(&c, ops->amp_held(floored, held)) : DM_OK;
}

/* ---- norms and clipping ---- */

/* The threads that sum up one tensor share this. */
typedef struct NormCtx {
  const dm_Tensor *t;
  double p;
  double *part; /* one per GRAIN elements: the sum does not depend on threads */
} NormCtx;

/* The sum of |x|^p over n elements, before the root: for p = 2 squares in float64,
   for p = 0 the number of nonzero elements, for p = inf the largest |x|, where a NaN
   ends the search. NaN counts as nonzero. */
static double block_sum_f32(const float *x, int64_t n, double p) {
  double sum = 0;
  if (p == 2) {
    sum = dm_loops()->sum_squares(x, n);
  } else if (p == 1) {
    for (int64_t i = 0; i < n; i++) sum += (double)fabsf(x[i]);
  } else if (p == 0) {
    for (int64_t i = 0; i < n; i++) sum += x[i] < 0 || x[i] > 0 || x[i] != x[i] ? 1 : 0;
  } else if (isinf(p)) {
    for (int64_t i = 0; i < n; i++) {
      const double a = (double)fabsf(x[i]);
      if (a > sum || a != a) sum = a;
      if (a != a) break;
    }
  } else {
    for (int64_t i = 0; i < n; i++) sum += (double)powf(fabsf(x[i]), (float)p);
  }
  return sum;
}

/* The same for float64, which powers and sums in float64. */
static double block_sum_f64(const double *x, int64_t n, double p) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    const double a = fabs(x[i]);
    if (!isinf(p)) {
      sum += p == 2 ? a * a : p == 1 ? a : p == 0 ? (a != 0 ? 1 : 0) : pow(a, p);
    } else if (a > sum || a != a) {
      sum = a;
      if (a != a) break;
    }
  }
  return sum;
}

/* Joins two partial results; NaN wins. */
static double join(double a, double b, double p) {
  if (!isinf(p)) return a + b;
  return a != a || a > b ? a : b;
}

/* The partial sum of one GRAIN of elements. Its index is where the range begins,
   because dm_parallel_for cuts at multiples of GRAIN. */
static void norm_range(void *ctx_, int64_t begin, int64_t end) {
  const NormCtx *ctx = ctx_;
  double wide[BLOCK];
  double sum = 0;
  for (int64_t i = begin; i < end; i += BLOCK) {
    const int64_t n = dm_min_i64(BLOCK, end - i);
    double s;
    if (ctx->t->dtype == DM_F64) {
      s = block_sum_f64((const double *)(const void *)at(ctx->t, i), n, ctx->p);
    } else if (ctx->t->dtype == DM_F32) {
      s = block_sum_f32((const float *)(const void *)at(ctx->t, i), n, ctx->p);
    } else {
      float *floats = (float *)(void *)wide;
      dm_load_f32(ctx->t->dtype, at(ctx->t, i), 1, n, floats);
      s = block_sum_f32(floats, n, ctx->p);
    }
    sum = join(sum, s, ctx->p);
  }
  ctx->part[begin / GRAIN] = sum;
}

/* The p-th root of a sum of powers; sums for p = 0, 1 and inf are the norm already. */
static double root_of(double sum, double p) {
  if (p == 2) return sqrt(sum);
  return p == 1 || p == 0 || isinf(p) ? sum : pow(sum, 1 / p);
}

/* *norm = the p-norm of t, rounded to float32 unless t is float64. */
static dm_status norm_of(dm_Tensor *t, double p, double *norm) {
  const int64_t n_part = (t->numel + GRAIN - 1) / GRAIN;
  dm_Tensor *dense = NULL;
  double few[8] = {0}, *part = few;
  dm_status st = DM_OK;
  DM_GO(dm_call(DM_OP_contiguous, 1, &t, NULL, &dense));
  if (n_part > DM_COUNT(few)) {
    part = dm_alloc(n_part * (int64_t)sizeof *part);
    if (!part)
      DM_GO(dm_fail(DM_EMEM, "total_norm: out of memory for %lld sums", (long long)n_part));
  }
  NormCtx ctx = {dense, p, part};
  dm_parallel_for(dense->numel, GRAIN, norm_range, &ctx);
  double sum = 0;
  for (int64_t i = 0; i < n_part; i++) sum = join(sum, part[i], p);
  *norm = root_of(sum, p);
  if (t->dtype != DM_F64) *norm = (double)(float)*norm;
done:
  if (part != few) dm_free(part);
  dm_tensor_unref(&dense);
  return st;
}

/* The norm of the norms: for finite p that equals the norm of all elements joined,
   for p = 0 the number of tensors that have a nonzero element, as in PyTorch. Each
   norm is rounded to float32 before it is summed unless tensors are float64, so that
   the result has PyTorch's digits. */
dm_status dm_total_norm(int64_t n, dm_Tensor *const *tensors, double p, dm_Tensor **out) {
  dm_ThreadState *ts = dm_thread_state();
  const bool grad = ts->grad;
  dm_DType dtype = DM_F32;
  double total = 0;
  dm_status st = DM_OK;
  Check c = {"total_norm", NULL};
  const dm_OptimOps *ops;
  if (!(p >= 0)) return dm_fail(DM_EARG, "total_norm: norm_type is %g, wanted 0 or more", p);
  for (int64_t i = 0; i < n; i++) DM_TRY(check_lanes(&c, i, 1, &tensors[i]));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->total_norm(n, tensors, p, out));
  ts->grad = false;
  for (int64_t i = 0; i < n; i++) {
    double norm;
    DM_GO(norm_of(tensors[i], p, &norm));
    if (tensors[i]->dtype == DM_F64) dtype = DM_F64;
    total = join(total,
                 dtype == DM_F64 ? block_sum_f64(&norm, 1, p)
                                 : block_sum_f32(&(float){(float)norm}, 1, p),
                 p);
  }
  DM_GO(dm_tensor_new(dtype, 0, NULL, (dm_Device){.type = DM_CPU}, out));
  total = root_of(total, p);
  dm_store_f64(dtype, dm_tensor_data(*out), 1, 1, &total);
done:
  ts->grad = grad;
  return st;
}

/* Runs u, which changes lane 0 alone, for each of the n tensors. */
static dm_status run_all(int64_t n, dm_Tensor *const *tensors, Update u) {
  u.written = 1u;
  for (int64_t i = 0; i < n; i++) {
    u.lane[0] = tensors[i];
    DM_TRY(run(&u));
  }
  return DM_OK;
}

/* min(1, max_norm / (total + 1e-6)) in the dtype of `total`; the small number keeps a
   norm of 0 from dividing, as in PyTorch. */
static double clip_factor(double max_norm, const dm_Tensor *total) {
  double t;
  dm_load_f64((dm_DType)total->dtype, dm_tensor_data(total), 1, 1, &t);
  if (total->dtype == DM_F64) return dm_clip_factor_f64(max_norm, t);
  return (double)dm_clip_factor_f32((float)max_norm, (float)t);
}

/* Multiplies by the factor also where it is 1, so that nothing has to be read back
   from a device to decide. */
dm_status dm_clip_norm(int64_t n, dm_Tensor *const *tensors, double max_norm,
                       const dm_Tensor *total_norm) {
  Check c = {"clip_grad_norm_", NULL};
  const dm_OptimOps *ops;
  for (int64_t i = 0; i < n; i++) DM_TRY(check_lanes(&c, i, 1, &tensors[i]));
  DM_TRY(check_scalar(&c, "total_norm", total_norm,
                      total_norm->dtype == DM_F64 ? DM_F64 : DM_F32));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->clip_norm(n, tensors, max_norm, total_norm));
  const dm_Loops *l = dm_loops();
  const double factor = clip_factor(max_norm, total_norm);
  return run_all(n, tensors,
                 (Update){.f32 = l->f32.scale, .f64 = l->f64.scale, .how = &factor});
}

/* Clamps every element of the list; NaN fails both comparisons and stays, so that it
   is seen. */
dm_status dm_clamp_all(int64_t n, dm_Tensor *const *tensors, double limit) {
  Check c = {"clip_grad_value_", NULL};
  const dm_OptimOps *ops;
  for (int64_t i = 0; i < n; i++) DM_TRY(check_lanes(&c, i, 1, &tensors[i]));
  DM_TRY(find_ops(&c, &ops));
  if (ops) return far_done(&c, ops->clamp_all(n, tensors, limit));
  const dm_Loops *l = dm_loops();
  return run_all(n, tensors, (Update){.f32 = l->f32.clamp, .f64 = l->f64.clamp, .how = &limit});
}

/* ---- running statistics ---- */

dm_status dm_move_running(const dm_Running *r) {
  const dm_OptimOps *ops;
  const Check c = {"batch_norm", r->root};
  DM_TRY(find_ops(&c, &ops));
  const dm_status st = ops->move_running(r);
  if (r->mean) r->mean->storage->version++;
  if (r->var) r->var->storage->version++;
  return far_done(&c, st);
}
