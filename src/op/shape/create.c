/* Tensors from sizes alone: empty, zeros, ones, full and their _like forms, arange,
   linspace, eye. Values are computed in float64 and converted to the dtype once. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "cpu/loops/loops.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/shape/create.h"

enum { GRAIN = 65536, BLOCK = 256 };

/* ---- constants ---- */

void dm_out_sized(dm_Call *c, dm_Ints size, int64_t dtype, dm_DType standard, int64_t device) {
  dm_Meta *m = &c->out_meta[0];
  m->dtype = (uint8_t)(dtype < 0 ? standard : (dm_DType)dtype);
  m->device = dm_device_of(device);
  m->ndim = (uint8_t)dm_max_i64(size.n, 0);
  for (int d = 0; d < m->ndim; d++) m->shape[d] = size.v[d];
}

/* The rule of zeros, ones, empty and the random ops: `size`, float32 unless a dtype
   is given. */
dm_status sized_rule(dm_Call *c) {
  const dm_SizedAttr *a = DM_ATTR(dm_SizedAttr, c);
  dm_out_sized(c, a->size, a->dtype, dm_default_dtype(), a->device);
  return DM_OK;
}

dm_status full_rule(dm_Call *c) {
  const dm_FullAttr *a = DM_ATTR(dm_FullAttr, c);
  dm_out_sized(c, a->size, a->dtype, dm_default_dtype(), a->device);
  return dm_check_holds(c->op->name, (dm_DType)c->out_meta[0].dtype, a->fill_value);
}

/* The rule of the _like ops: input 0's shape, and its dtype and device unless others are given.
   On the CPU the elements are stored in its order of dims, too. */
static dm_status like(dm_Call *c, dm_LikeAttr a) {
  const dm_Tensor *const x = c->in[0];
  dm_out_like(c, 0, x, a.dtype < 0 ? (dm_DType)x->dtype : (dm_DType)a.dtype);
  if (a.device >= 0) c->out_meta[0].device = dm_device_of(a.device);
  if (x->device.type == DM_CPU && c->out_meta[0].device.type == DM_CPU &&
      !dm_tensor_is_contiguous(x) && dm_tensor_is_dense(x))
    c->order = x;
  return DM_OK;
}
dm_status like_rule(dm_Call *c) { return like(c, *DM_ATTR(dm_LikeAttr, c)); }
dm_status full_like_rule(dm_Call *c) {
  DM_TRY(like(c, DM_ATTR(dm_FullLikeAttr, c)->like));
  return dm_check_holds(c->op->name, (dm_DType)c->out_meta[0].dtype,
                        DM_ATTR(dm_FullLikeAttr, c)->fill_value);
}

typedef struct Fill {
  char *dst;
  int64_t size;              /* bytes per element */
  _Alignas(8) char value[8]; /* the element, as bytes of its dtype */
} Fill;

/* Thread body: writes the element as it is, whatever its dtype. */
static void fill_range(void *ctx, int64_t begin, int64_t end) {
  const Fill *f = ctx;
  dm_loops()->move[dm_move_of(f->size)](f->dst + begin * f->size, 1, f->value, 0, end - begin);
}

void dm_fill_dense(dm_Tensor *t, double value) {
  if (t->numel == 0) return;
  Fill f = {.dst = dm_tensor_data(t), .size = dm_dtype_size((dm_DType)t->dtype)};
  dm_store_f64((dm_DType)t->dtype, f.value, 1, 1, &value);
  dm_parallel_for(t->numel, GRAIN, fill_range, &f);
}

/* Outputs of a call are dense. */
static dm_status filled(dm_Call *c, double value) {
  dm_fill_dense(c->out[0], value);
  return DM_OK;
}
dm_status zeros_cpu(dm_Call *c) { return filled(c, 0); }
dm_status ones_cpu(dm_Call *c) { return filled(c, 1); }
dm_status full_cpu(dm_Call *c) { return filled(c, DM_ATTR(dm_FullAttr, c)->fill_value); }
dm_status full_like_cpu(dm_Call *c) {
  return filled(c, DM_ATTR(dm_FullLikeAttr, c)->fill_value);
}
dm_status empty_cpu(dm_Call *c) {
  DM_UNUSED(c); /* the values are whatever the memory holds */
  return DM_OK;
}

/* ---- ranges ---- */

typedef struct Ramp {
  char *dst;
  dm_DType dtype;
  dm_Ramp of;
  int64_t n;
} Ramp;

/* Thread body: elements [begin, end) of a ramp, with the bits of dm_ramp_at. Float32 is
   computed where it shall be, other dtypes come from blocks of float64. Elements from `mirror`
   on count down to the last one. */
static void ramp_range(void *ctx, int64_t begin, int64_t end) {
  const Ramp *r = ctx;
  const dm_Ramp of = r->of;
  const bool narrow = r->dtype == DM_F32;
  double buf[BLOCK];
  for (int64_t at = begin, n; at < end; at += n) {
    char *const to = r->dst + at * dm_dtype_size(r->dtype);
    void *const v = narrow ? (void *)to : buf;
    n = dm_min_i64(BLOCK, (at < of.mirror ? dm_min_i64(end, of.mirror) : end) - at);
    if (at < of.mirror) dm_loops()->ramp[!narrow](of.start, of.step, at, 1, n, v);
    else dm_loops()->ramp[!narrow](of.stop, -of.step, r->n - 1 - at, -1, n, v);
    if (!narrow) dm_store_f64(r->dtype, to, 1, n, buf);
  }
}

/* Fills t with a ramp in parallel. */
/* The same of int64 in whole steps. */
static void whole_range(void *ctx, int64_t begin, int64_t end) {
  const Ramp *r = ctx;
  const int64_t start = (int64_t)r->of.start, step = (int64_t)r->of.step;
  int64_t *const to = (int64_t *)(void *)r->dst, first = start + begin * step;
  for (int64_t i = 0; i < end - begin; i++) to[begin + i] = first + i * step;
}
static bool is_whole(const Ramp *r) {
  return r->dtype == DM_I64 && r->of.mirror >= r->n && r->of.start == floor(r->of.start) &&
         r->of.step == floor(r->of.step) &&
         fabs(r->of.start) + fabs(r->of.step) * (double)r->n < 0x1p53;
}
static dm_status ramp(dm_Tensor *t, dm_Ramp of) {
  if (t->numel == 0) return DM_OK;
  Ramp r = {dm_tensor_data(t), (dm_DType)t->dtype, of, t->numel};
  dm_parallel_for(t->numel, GRAIN, is_whole(&r) ? whole_range : ramp_range, &r);
  return DM_OK;
}

/* True for whole numbers that float64 holds exactly. */
static bool whole(double v) { return trunc(v) == v && fabs(v) < 0x1p53; }

/* The number of elements and the dtype of arange: int64 when all three numbers are
   whole, else float32. The last number is included when positions count from 1 or
   when only a count is given. */
dm_status arange_rule(dm_Call *c) {
  const dm_ArangeAttr *a = DM_ATTR(dm_ArangeAttr, c);
  const double first = dm_arange_first(c->base, a);
  const double last = a->last.set ? a->last.v : a->first - 1 + c->base;
  const bool closed = !a->last.set || c->base == 1;
  if (a->step == 0) return dm_fail(DM_EARG, "arange: the step is 0");
  if (!a->last.set && a->step != 1)
    return dm_fail(DM_EARG, "arange: a step wants both ends; hint: arange(first, last, step)");
  if (!isfinite(first) || !isfinite(last) || !isfinite(a->step))
    return dm_fail(DM_EARG, "arange: %g, %g, %g given, wanted finite numbers", first, last,
                   a->step);
  /* a slack of a few ulp, so that (0, 0.3, 0.1) ends at 0.3 */
  const double q = (last - first) / a->step * (1 + 4 * DBL_EPSILON);
  const double n = closed ? floor(q) + 1 : ceil((last - first) / a->step);
  if (n > 0x1p58) return dm_fail(DM_EMEM, "arange: %g elements are more than memory holds", n);
  const bool ints = whole(first) && whole(last) && whole(a->step);
  const dm_Ints size = {1, {n > 0 ? (int64_t)n : 0}};
  dm_out_sized(c, size, a->dtype, ints ? DM_I64 : dm_default_dtype(), a->device);
  return DM_OK;
}

dm_status arange_cpu(dm_Call *c) {
  return ramp(c->out[0], dm_arange_ramp(c->base, DM_ATTR(dm_ArangeAttr, c)));
}

/* A vector of `steps` elements. */
dm_status linspace_rule(dm_Call *c) {
  const dm_LinspaceAttr *a = DM_ATTR(dm_LinspaceAttr, c);
  if (a->steps < 0)
    return dm_fail(DM_EARG, "linspace: %lld steps given, wanted 0 or more",
                   (long long)a->steps);
  dm_out_sized(c, (dm_Ints){1, {a->steps}}, a->dtype, dm_default_dtype(), a->device);
  return DM_OK;
}

dm_status linspace_cpu(dm_Call *c) {
  return ramp(c->out[0], dm_linspace_ramp(DM_ATTR(dm_LinspaceAttr, c)));
}

/* (n, m), or (n, n) for m = -1. */
dm_status eye_rule(dm_Call *c) {
  const dm_EyeAttr *a = DM_ATTR(dm_EyeAttr, c);
  const int64_t m = a->m == -1 ? a->n : a->m;
  if (a->n < 0 || m < 0)
    return dm_fail(DM_EARG, "eye: sizes %lld and %lld given, wanted 0 or more", (long long)a->n,
                   (long long)m);
  dm_out_sized(c, (dm_Ints){2, {a->n, m}}, a->dtype, dm_default_dtype(), a->device);
  return DM_OK;
}

/* Zeros with ones at flat positions i (M + 1). */
dm_status eye_cpu(dm_Call *c) {
  dm_Tensor *t = c->out[0];
  const dm_DType dtype = (dm_DType)t->dtype;
  const double one = 1;
  dm_fill_dense(t, 0);
  const int64_t n = dm_min_i64(t->shape[0], t->shape[1]);
  for (int64_t i = 0; i < n; i++) {
    char *p = (char *)dm_tensor_data(t) + i * (t->shape[1] + 1) * dm_dtype_size(dtype);
    dm_store_f64(dtype, p, 1, 1, &one);
  }
  return DM_OK;
}
