/* Copies: to another dtype or device, into another tensor, of one number.

   Conversions between floats round to nearest, ties to even; floats to integers
   truncate; every number but 0, NaN included, is true as a bool. The gradient of a
   copy is gy, converted back by the tape to the input's dtype. */
#include <string.h>

#include "base/error.h"
#include "core/copy.h"
#include "cpu/threads.h"
#include "cpu/vec.h"
#include "op/pointwise/pointwise.h"
#include "op/shape/create.h"

/* x in another dtype, with x's shape and device. */
dm_status cast_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)DM_ATTR(dm_CastAttr, c)->dtype);
  return DM_OK;
}

/* A new tensor with x's elements; serves contiguous_copy, too. */
dm_status clone_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* The identity, through a compute type that holds both ends: int64 for two
   integers, float64 when one of them is float64 or a wide integer meets a
   float, else float32. */
static void same32(const float *const *in, float *out, int64_t n, const double *p) {
  DM_UNUSED(p);
  if (in[0] != out) memcpy(out, in[0], sizeof *out * (size_t)n);
}
static void same64(const double *const *in, double *out, int64_t n, const double *p) {
  DM_UNUSED(p);
  if (in[0] != out) memcpy(out, in[0], sizeof *out * (size_t)n);
}
static void same_int(const int64_t *const *in, int64_t *out, int64_t n, const double *p) {
  DM_UNUSED(p);
  if (in[0] != out) memcpy(out, in[0], sizeof *out * (size_t)n);
}

/* A conversion between two dense arrays. */
typedef struct Dense {
  const char *src;
  char *dst;
  dm_DType from, to;
} Dense;

/* Thread body: converts elements [begin, end). */
static void convert_range(void *ctx, int64_t begin, int64_t end) {
  const Dense *d = ctx;
  dm_convert(d->from, d->src + begin * dm_dtype_size(d->from), d->to,
             d->dst + begin * dm_dtype_size(d->to), end - begin);
}

/* out = in, broadcast and converted: bytes where the dtypes are equal, one loop over
   dense arrays where the shapes are, else the iterator. */
static dm_status copy_elements(dm_Tensor *out, dm_Tensor *in) {
  const dm_DType from = (dm_DType)in->dtype, to = (dm_DType)out->dtype;
  if (out->numel == 0) return DM_OK;
  if (from == to) {
    dm_copy_elements(out, in);
    return DM_OK;
  }
  if (dm_tensor_same_order(out, in)) {
    Dense d = {dm_tensor_data(in), dm_tensor_data(out), from, to};
    dm_parallel_for(out->numel, 2 * DM_POINT_GRAIN, convert_range, &d);
    return DM_OK;
  }
  static const dm_Pointwise same = {.f32 = same32, .f64 = same64, .i64 = same_int};
  dm_DType via = DM_F32;
  if (!dm_is_float(from) && !dm_is_float(to)) via = DM_I64;
  else if (from == DM_F64 || to == DM_F64 || dm_is_int(from) || dm_is_int(to)) via = DM_F64;
  return dm_pointwise(out, 1, &in, via, &same, NULL);
}

/* Serves clone and contiguous_copy too, whose dtypes are equal. */
dm_status cast_cpu(dm_Call *c) { return copy_elements(c->out[0], c->in[0]); }

void cast_grad(dm_Grad *g) { g->gx[0] = g->gy[0]; } /* the tape casts back */
/* Each element came from one element of x. */
void clone_grad(dm_Grad *g) { g->gx[0] = g->gy[0]; }

/* copy_(x, source): x keeps its shape and dtype, source broadcasts to it. */
dm_status copy_rule(dm_Call *c) {
  dm_Tensor *x = c->in[0], *s = c->in[1];
  int ndim;
  int64_t shape[DM_MAX_DIM];
  DM_TRY(dm_broadcast("copy_", x, s, &ndim, shape));
  DM_TRY(dm_check_holds_number("copy_", (dm_DType)x->dtype, s));
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  if (ndim != x->ndim || memcmp(shape, x->shape, sizeof shape[0] * (size_t)ndim) != 0)
    return dm_fail(DM_EARG, "copy_: a source of shape %s does not broadcast to %s", DM_SHAPE(s),
                   DM_SHAPE(x));
  return DM_OK;
}

/* Writes into x itself, of any strides. */
dm_status copy_cpu(dm_Call *c) { return copy_elements(c->out[0], c->in[1]); }

/* The old values of x are gone: their gradient is 0. */
void copy_grad(dm_Grad *g) {
  if (g->need[0]) g->gx[0] = x_zeros_like(g->x, g->gy[0]);
  if (g->need[1]) g->gx[1] = g->gy[0];
}

/* x's shape and dtype; of zero, too, which has no value. */
dm_status fill_rule(dm_Call *c) {
  if (c->op == &dm_ops[DM_OP_fill])
    DM_TRY(dm_check_holds("fill_", (dm_DType)c->in[0]->dtype, DM_ATTR(dm_FillAttr, c)->value));
  return clone_rule(c);
}

/* One number into n elements, in each compute type. */
static void fill32(const float *const *in, float *out, int64_t n, const double *p) {
  DM_UNUSED(in);
  for (int64_t i = 0; i < n; i++) out[i] = (float)*p;
}
static void fill64(const double *const *in, double *out, int64_t n, const double *p) {
  DM_UNUSED(in);
  for (int64_t i = 0; i < n; i++) out[i] = *p;
}
static void fill_int(const int64_t *const *in, int64_t *out, int64_t n, const double *p) {
  DM_UNUSED(in);
  for (int64_t i = 0; i < n; i++) out[i] = (int64_t)*p;
}
static const dm_Pointwise fill_fn = {.f32 = fill32, .f64 = fill64, .i64 = fill_int};

/* A bool is filled with 1 for every number but 0: int64 would cut off 0.5. */
static dm_status filled(dm_Tensor *t, double value) {
  const dm_DType dtype = (dm_DType)t->dtype;
  if (t->numel > 0 && dm_tensor_is_dense(t)) {
    dm_fill_dense(t, value);
    return DM_OK;
  }
  if (dtype == DM_BOOL) value = value != 0;
  return dm_pointwise(t, 0, NULL, dtype, &fill_fn, &value);
}
dm_status fill_cpu(dm_Call *c) { return filled(c->out[0], DM_ATTR(dm_FillAttr, c)->value); }
dm_status zero_cpu(dm_Call *c) { return filled(c->out[0], 0); }

/* The old values do not reach the result: their gradient is 0. */
void fill_grad(dm_Grad *g) { g->gx[0] = x_zeros_like(g->x, g->gy[0]); }

/* A contiguous tensor is returned itself, as in PyTorch. */
dm_status contiguous_compose(dm_Call *c, dm_X *x) {
  c->out[0] = dm_tensor_is_contiguous(c->in[0]) ? c->in[0]
                                                : x_unary(x, DM_OP_contiguous_copy, c->in[0]);
  return x->st;
}

/* ---- from device to device ---- */

/* The same meta on another device. */
dm_status to_device_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  c->out_meta[0].device = dm_device_of(DM_ATTR(dm_ToDeviceAttr, c)->device);
  return DM_OK;
}

/* Made dense on its own device, whose kernels know its strides; then bytes are moved. */
dm_status to_device_any(dm_Call *c) {
  dm_Tensor *dense = NULL;
  DM_TRY(dm_dense_new(c->in[0], &dense));
  const dm_status st =
      dm_tensor_copy_bytes(c->out[0], dense, DM_ATTR(dm_ToDeviceAttr, c)->non_blocking);
  dm_tensor_unref(&dense);
  return st;
}

/* Back to the device that x was on; the copy is waited for. */
void to_device_grad(dm_Grad *g) {
  const dm_ToDeviceAttr back = {dm_device_code(dm_in_meta(g, 0)->device), 0};
  g->gx[0] = dm_x(g->x, DM_OP_to_device, &back, 1, g->gy[0]);
}

/* Converted on the side where that leaves fewer bytes to move. */
dm_status to_compose(dm_Call *c, dm_X *x) {
  const dm_ToAttr *a = DM_ATTR(dm_ToAttr, c);
  dm_Tensor *t = c->in[0];
  const dm_DType dtype = (dm_DType)a->dtype;
  const bool moves = dm_device_code(t->device) != a->device;
  if (!moves || dm_dtype_size(dtype) < dm_dtype_size((dm_DType)t->dtype))
    t = x_cast(x, t, dtype);
  if (moves) t = dm_x(x, DM_OP_to_device, &(dm_ToDeviceAttr){a->device, a->non_blocking}, 1, t);
  c->out[0] = x->st == DM_OK ? x_cast(x, t, dtype) : NULL;
  return x->st;
}
