/* A back end without a GPU: two devices "cuda" whose memory is at addresses that the host
   cannot read, and whose kernels are the CPU's. Host code that reads a device's bytes ends with
   a signal. The optimizers have only the float32 steps that a training step needs.
   spec/device_spec.lua builds this module. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/backend.h"
#include "op/optim/optim.h"

/* Beyond what any processor maps for a program: to be taken off first. */
#define TAG ((intptr_t)1 << 50)

static const dm_Engine *engine;
static int64_t live;
static const dm_Device cpu = {DM_CPU, 0};

static void *far_of(void *p) { return (void *)((intptr_t)p + TAG); }
static void *near_of(const void *p) { return (void *)((intptr_t)p - TAG); }

/* ---- the device ---- */

static int count(void) { return 2; }
static dm_status nothing(dm_Device dev) {
  DM_UNUSED(dev);
  return DM_OK;
}

/* The engine's dm_fail; dm_vfail wants a list. */
static dm_status fail(dm_status code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  engine->dm_vfail(code, fmt, ap);
  va_end(ap);
  return code;
}

static dm_status fake_alloc(dm_Device dev, int64_t n_bytes, void **out) {
  DM_UNUSED(dev);
  char *p = n_bytes < 1 << 30 ? malloc((size_t)n_bytes) : NULL;
  if (!p) return fail(DM_EMEM, "fake: out of memory");
  memset(p, 0x5a, (size_t)n_bytes); /* fresh memory holds anything */
  live += n_bytes;
  *out = far_of(p);
  return DM_OK;
}
static void fake_free(dm_Device dev, void *p, int64_t n_bytes) {
  DM_UNUSED(dev);
  live -= n_bytes;
  free(near_of(p));
}
static dm_status fake_copy(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n,
                           bool later) {
  DM_UNUSED(later);
  memcpy(to.type == DM_CPU ? dst : near_of(dst), from.type == DM_CPU ? src : near_of(src),
         (size_t)n);
  return DM_OK;
}
/* One element after the other, whatever the strides. */
static dm_status fake_copy_elements(dm_Tensor *out, dm_Tensor *in) {
  const int64_t size = dm_dtype_size((dm_DType)in->dtype);
  for (int64_t i = 0; i < in->numel; i++) {
    int64_t from = in->offset, to = out->offset, rest = i;
    for (int d = in->ndim - 1; d >= 0; d--) {
      from += rest % in->shape[d] * in->stride[d];
      to += rest % in->shape[d] * out->stride[d];
      rest /= in->shape[d];
    }
    memcpy((char *)near_of(out->storage->data) + to * size,
           (char *)near_of(in->storage->data) + from * size, (size_t)size);
  }
  return DM_OK;
}
static dm_status fake_zero(dm_Device dev, void *dst, int64_t n) {
  DM_UNUSED(dev);
  memset(near_of(dst), 0, (size_t)n);
  return DM_OK;
}
static void empty_cache(dm_Device dev) { DM_UNUSED(dev); }
static int64_t allocated_bytes(dm_Device dev) { return dev.index == 0 ? live : 0; }
static void stats(dm_Device dev, dm_MemStats *out) {
  memset(out, 0, sizeof *out);
  out->of[DM_MEM_ALLOCATED_BYTES][DM_POOL_ALL].current = allocated_bytes(dev);
  out->of[DM_MEM_ALLOCATED_BYTES][DM_POOL_ALL].peak = allocated_bytes(dev);
}
static void reset(dm_Device dev) { DM_UNUSED(dev); }
static dm_status info(dm_Device dev, dm_DeviceInfo *out) {
  DM_UNUSED(dev);
  *out = (dm_DeviceInfo){.name = "fake", .total_bytes = 1 << 30, .free_bytes = 1 << 29};
  return DM_OK;
}

static const dm_DeviceOps device = {.count = count,
                                    .begin = nothing,
                                    .end = nothing,
                                    .alloc = fake_alloc,
                                    .free = fake_free,
                                    .copy = fake_copy,
                                    .zero = fake_zero,
                                    .copy_elements = fake_copy_elements,
                                    .synchronize = nothing,
                                    .empty_cache = empty_cache,
                                    .allocated_bytes = allocated_bytes,
                                    .stats = stats,
                                    .reset_peaks = reset,
                                    .reset_totals = reset,
                                    .info = info};

/* ---- kernels: the CPU's, on tensors that lie there for as long ---- */

typedef struct Shown {
  dm_Tensor *t; /* NULL: was none of the device's */
  dm_Storage *s;
  dm_Device dev;
} Shown;

static Shown show(dm_Tensor *t) {
  Shown v = {NULL, NULL, cpu};
  if (!t || t->device.type == DM_CPU) return v;
  v = (Shown){t, NULL, t->device};
  t->device = cpu;
  if (t->storage->device.type == DM_CPU) return v; /* another view showed it */
  v.s = t->storage;
  v.s->device = cpu;
  if (v.s->data) v.s->data = near_of(v.s->data);
  return v;
}
static void hide(Shown v) {
  if (v.t) v.t->device = v.dev;
  if (!v.s) return;
  v.s->device = v.dev;
  if (v.s->data) v.s->data = far_of(v.s->data);
}

/* Outside the CPU batch_norm_train gives 1 / sqrt(var + eps), float32 here, in place of var:
   with the roundings of the CPU's gradient, so that both have the same bits. */
static void to_roots(const dm_Call *c) {
  float *v = (float *)c->out[2]->storage->data + c->out[2]->offset;
  const double eps = ((const dm_EpsAttr *)c->attr)->eps;
  for (int64_t k = 0; k < c->out[2]->numel; k++) v[k] = (float)(1 / sqrt((double)v[k] + eps));
}

static dm_status kernel(dm_Call *c) {
  Shown *v = calloc((size_t)(c->n_in + c->n_out), sizeof *v);
  if (!v) return fail(DM_EMEM, "fake: out of memory");
  for (int i = 0; i < c->n_in; i++) v[i] = show(c->in[i]);
  for (int i = 0; i < c->n_out; i++) v[c->n_in + i] = show(c->out[i]);
  const dm_status st = c->op->kernel(c);
  if (c->op == &engine->ops[DM_OP_batch_norm_train]) to_roots(c);
  for (int i = c->n_in + c->n_out; i-- > 0;) hide(v[i]);
  free(v);
  return st;
}

/* ---- optimizers ---- */

static dm_status check_float32(const dm_Tensor *t) {
  const bool ok = t->dtype == DM_F32 && dm_tensor_is_contiguous(t);
  return ok ? DM_OK : fail(DM_EDEV, "fake: only dense float32 tensors are trained here");
}

/* The first element's address on the host. */
static void *first(const dm_Tensor *t) {
  return (char *)near_of(t->storage->data) + t->offset * dm_dtype_size((dm_DType)t->dtype);
}
static bool is_set(const dm_Tensor *found_inf) {
  return found_inf && *(float *)first(found_inf) > 0;
}

static dm_status step(const dm_Step *s, int64_t n, const dm_StepSlot *slots) {
  const dm_SGDOptions *o = (const void *)s->options;
  if (s->method != DM_METHOD_SGD || o->momentum != 0)
    return fail(DM_EDEV, "fake: only SGD without momentum is here");
  for (int64_t i = 0; i < n && !is_set(s->found_inf); i++) {
    if (!slots[i].grad) continue;
    DM_TRY(check_float32(slots[i].param));
    DM_TRY(check_float32(slots[i].grad));
    float *p = first(slots[i].param);
    const float *g = first(slots[i].grad);
    for (int64_t k = 0; k < slots[i].param->numel; k++) p[k] -= (float)o->lr * g[k];
    slots[i].param->storage->version++;
  }
  return DM_OK;
}

static dm_status amp_unscale(int64_t n, dm_Tensor *const *grads, const dm_Tensor *scale,
                             dm_Tensor *found_inf, dm_Tensor *where) {
  const float factor = 1 / *(float *)first(scale);
  int64_t *w = first(where);
  w[0] = w[1] = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!grads[i]) continue;
    DM_TRY(check_float32(grads[i]));
    float *g = first(grads[i]);
    int64_t bad = 0;
    for (int64_t k = 0; k < grads[i]->numel; k++) {
      g[k] *= factor;
      bad += !(g[k] - g[k] == 0);
    }
    grads[i]->storage->version++;
    grads[i]->flags &= (uint8_t)~DM_T_SCALED;
    if (bad == 0 || w[0]) continue;
    w[0] = i + 1;
    w[1] = bad;
  }
  *(float *)first(found_inf) = w[0] ? 1 : 0;
  return DM_OK;
}

static dm_status amp_note(dm_Tensor *history, const dm_Tensor *found_inf,
                          const dm_Tensor *where, const dm_Tensor *updates) {
  int64_t *h = first(history);
  const int64_t *w = first(where), step = *(const int64_t *)first(updates) + 1;
  if (!is_set(found_inf)) {
    h[DM_AMP_RUN] = 0;
    return DM_OK;
  }
  if (h[DM_AMP_RUN]++ == 0) h[DM_AMP_FIRST] = step;
  h[DM_AMP_SKIPPED]++;
  h[DM_AMP_STEP] = step;
  h[DM_AMP_WHICH] = w[0];
  h[DM_AMP_COUNT] = w[1];
  return DM_OK;
}

static dm_status amp_update_scale(const dm_ScaleUpdate *u, int64_t *held) {
  bool found = false;
  for (int64_t i = 0; i < u->n; i++) {
    if (i < u->n_note) (void)amp_note(u->history[i], u->found_inf[i], u->where[i], u->updates);
    found |= is_set(u->found_inf[i]);
  }
  int32_t *tracker = first(u->growth_tracker);
  if (found) *(float *)first(u->scale) *= (float)u->how.backoff;
  *tracker = found ? 0 : *tracker + 1;
  ++*(int64_t *)first(u->updates);
  *held = 0;
  return DM_OK;
}

static dm_status move_running(const dm_Running *r) {
  const float *mean = first(r->batch_mean), *root = first(r->root);
  if (r->count) ++*(int64_t *)first(r->count);
  if (!r->mean) return DM_OK;
  for (int64_t c = 0; c < r->root->numel; c++) {
    const double var = 1 / ((double)root[c] * (double)root[c]) - r->eps;
    float *m = (float *)first(r->mean) + c, *v = (float *)first(r->var) + c;
    *m += (float)(r->momentum * ((double)mean[c] - (double)*m));
    *v += (float)(r->momentum * (r->unbias * var - (double)*v));
  }
  return DM_OK;
}

static const dm_OptimOps optim = {.move_running = move_running,
                                  .step = step,
                                  .amp_unscale = amp_unscale,
                                  .amp_note = amp_note,
                                  .amp_update_scale = amp_update_scale};

/* ---- opening ---- */

const uint8_t dm_dtype_sizes[DM_N_DTYPE] = DM_DTYPE_SIZES;

dm_BackendOpenFn dm_backend;
const char *dm_backend(const dm_Engine *e) {
  if (e->layout != DM_LAYOUT) return "the fake was built for another version";
  engine = e;
  engine->dm_device_register(DM_CUDA, &device);
  engine->dm_optim_register(DM_CUDA, &optim);
  for (int i = 0; i < DM_N_OP; i++)
    if (engine->ops[i].kernel) engine->dm_op_register(DM_CUDA, (dm_OpId)i, kernel);
  return NULL;
}
