/* Handles and storage: see tensor.h.

   Invariants: numel is the product of shape; strides are 0 or more; a contiguous tensor's
   strides are dm_contiguous_strides(shape), except in dims of size 1, whose stride is free. A
   tensor of no dims has shape[0] = stride[0] = 1: ops along a dim find one element there.

   Ownership: a handle holds its storage, a view also holds its base's handle, and
   handles are counted by their users. The last reference to a handle drops the
   history, gradient and copies that hang on it, and then its reference to the
   storage. */
#include "core/tensor.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/sizes.h"

void (*dm_tensor_drop_history)(dm_Tensor *t);

/* The storage and the first handle of a new tensor are one block: one allocation, and what is
   used together is in cache together. A small CPU tensor's block contains the data too. */
typedef struct Inline {
  dm_Storage storage;
  _Alignas(16) dm_Tensor handle;
#if DM_ASAN
  _Alignas(16) char zone[16]; /* forbidden, up to the data */
#endif
  _Alignas(16) char data[];
} Inline;
enum { INLINE_BYTES = DM_SMALL_BLOCK - (int)sizeof(Inline) };

/* Called when the last reference to the storage is dropped, and when the handle of its block is
   freed. The later of the two frees the block; they differ only when the handle has moved. */
static void leave_block(dm_Storage *s) {
  if (atomic_load_explicit(&s->tenants, memory_order_relaxed) && !dm_let_go(&s->tenants))
    return;
  if (s->inlined) dm_small_block_free(s);
  else dm_record_free(s, (int64_t)sizeof(Inline));
}

/* Drops one reference to the storage; the last one gives the data back to its owner:
   the caller of dm_tensor_wrap, or the device's allocator. */
static void storage_unref(dm_Storage *s) {
  if (!dm_let_go(&s->refs)) return;
  if (s->release) s->release(s->release_ctx);
  else if (!s->inlined && s->data)
    dm_device_ops(s->device)->free(s->device, s->data, s->n_bytes);
  leave_block(s);
}

/* Initializes all but dtype, shape and strides. */
static void handle_init(dm_Tensor *t, dm_Device dev, dm_Storage *s, uint8_t flags) {
  atomic_init(&t->refs, 1);
  t->device = dev;
  t->flags = flags;
  t->out_index = 0;
  t->low_dtype = 0;
  t->gen = 0;
  t->offset = 0;
  t->storage = s;
  memset(&t->home, 0, sizeof *t - offsetof(dm_Tensor, home)); /* pointers: home to last */
}

/* Initializes storage and handle; the handle has the only reference to the storage. */
static inline void inline_init(Inline *p, dm_Device dev, int64_t n_bytes, bool inlined) {
  p->storage = (dm_Storage){.device = dev, .inlined = inlined, .n_bytes = n_bytes};
  atomic_init(&p->storage.refs, 1);
  handle_init(&p->handle, dev, &p->storage, DM_T_INLINED);
}

/* A small CPU tensor: one block of the caching allocator for storage, handle and data. */
static inline dm_Tensor *small_new(dm_Device dev, int64_t n_bytes) {
  Inline *p = dm_small_block_new();
  if (!p) return NULL;
  inline_init(p, dev, n_bytes, true);
  p->storage.data = n_bytes ? p->data : NULL;
#if DM_ASAN
  dm_forbid(p->zone, sizeof p->zone);
#endif
  dm_forbid(p->data + n_bytes, INLINE_BYTES - n_bytes);
  return &p->handle;
}

/* Any other: a block for storage and handle, and one of the device for the data. */
static dm_status large_new(dm_Device dev, int64_t n_bytes, dm_Tensor **out) {
  Inline *p = dm_record_new(sizeof *p);
  if (!p) return DM_EMEM;
  inline_init(p, dev, n_bytes, false);
  *out = &p->handle;
  if (n_bytes == 0) return DM_OK;
  dm_status st = dev.type == DM_CPU ? DM_OK : dm_device_check(dev);
  if (st == DM_OK) st = dm_device_ops(dev)->alloc(dev, n_bytes, &p->storage.data);
  if (st != DM_OK) dm_record_free(p, sizeof *p);
  return st;
}

int64_t dm_numel(int ndim, const int64_t *shape) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n = dm_mul_sizes(n, shape[d]);
  return n;
}

void dm_contiguous_strides(int ndim, const int64_t *shape, int64_t *stride) {
  int64_t s = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    stride[d] = s;
    s = dm_mul_sizes(s, dm_max_i64(shape[d], 1));
  }
}

/* The failures of check_shape. They are a function apart, for their text is an array, and the
   compiler guards the frame of every function that holds one. */
static __attribute__((noinline)) dm_status bad_shape(int ndim, const int64_t *shape,
                                                     const int64_t *negative) {
  if (ndim < 0 || ndim > DM_MAX_DIM)
    return dm_fail(DM_EARG, "a tensor has at most %d dims, %d asked for", DM_MAX_DIM, ndim);
  if (negative)
    return dm_fail(DM_EARG, "negative size %lld in shape %s", (long long)*negative,
                   DM_DIMS(ndim, shape));
  return dm_fail(DM_EMEM, "shape %s has more elements than memory has bytes",
                 DM_DIMS(ndim, shape));
}

/* Fails on a rank or an element count that no tensor can have; *numel is then 0. */
static inline dm_status check_shape(int ndim, const int64_t *shape, int64_t *numel) {
  *numel = 0;
  if (ndim < 0 || ndim > DM_MAX_DIM) return bad_shape(ndim, shape, NULL);
  int64_t n = 1;
  bool empty = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0) return bad_shape(ndim, shape, &shape[d]);
    if (shape[d] == 0) empty = true;
    else if (__builtin_mul_overflow(n, shape[d], &n) || n > (int64_t)1 << 58)
      return bad_shape(ndim, shape, NULL);
  }
  if (!empty) *numel = n;
  return DM_OK;
}

/* Sets shape, contiguous strides and numel. */
static inline void set_shape(dm_Tensor *t, int ndim, const int64_t *shape, int64_t numel) {
  t->ndim = (uint8_t)ndim;
  t->numel = numel;
  t->shape[0] = t->stride[0] = 1;
  int64_t s = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    t->shape[d] = shape[d];
    t->stride[d] = s;
    s = dm_mul_sizes(s, dm_max_i64(shape[d], 1));
  }
}

/* The elements are not initialized. Small tensors of the CPU are one block of
   DM_SMALL_BLOCK bytes, which the allocator serves from one list. */
dm_status dm_tensor_new(dm_DType dtype, int ndim, const int64_t *shape, dm_Device dev,
                        dm_Tensor **out) {
  int64_t numel;
  DM_TRY(check_shape(ndim, shape, &numel));
  const int64_t n_bytes = numel * dm_dtype_size(dtype);
  dm_Tensor *t;
  if (dev.type == DM_CPU && n_bytes <= INLINE_BYTES) {
    if (!(t = small_new(dev, n_bytes))) return DM_EMEM;
  } else {
    dm_Tensor *large = NULL; /* apart, so that t stays in a register */
    DM_TRY(large_new(dev, n_bytes, &large));
    t = large;
  }
  t->dtype = (uint8_t)dtype;
  set_shape(t, ndim, shape, numel);
  *out = t;
  return DM_OK;
}

dm_status dm_tensor_new_meta(const dm_Meta *m, dm_Tensor **out) {
  DM_TRY(dm_tensor_new((dm_DType)m->dtype, m->ndim, m->shape, m->device, out));
  if (DM_UNLIKELY(m->channels_last)) dm_channels_last_strides(m->shape, (*out)->stride);
  return DM_OK;
}

/* A number takes part in an op as a 0-dim tensor that has little say in the dtype,
   see dm_result_dtype. */
dm_status dm_tensor_number(bool is_int, double f, int64_t i, dm_Tensor **out) {
  DM_TRY(dm_tensor_new(is_int ? DM_I64 : DM_F64, 0, NULL, (dm_Device){DM_CPU, 0}, out));
  (*out)->flags |= DM_T_NUMBER;
  if (is_int) *(int64_t *)dm_tensor_data(*out) = i;
  else *(double *)dm_tensor_data(*out) = f;
  return DM_OK;
}

/* The handle is made without elements and then told where the caller's data lie. */
dm_status dm_tensor_wrap(void *data, dm_DType dtype, int ndim, const int64_t *shape,
                         void (*release)(void *), void *ctx, dm_Tensor **out) {
  int64_t numel;
  DM_TRY(check_shape(ndim, shape, &numel));
  const int64_t none = 0;
  dm_Tensor *t;
  DM_TRY(dm_tensor_new(dtype, 1, &none, (dm_Device){DM_CPU, 0}, &t));
  t->storage->data = data;
  t->storage->n_bytes = numel * dm_dtype_size(dtype);
  t->storage->release = release;
  t->storage->release_ctx = ctx;
  set_shape(t, ndim, shape, numel);
  *out = t;
  return DM_OK;
}

/* A second handle of the same elements, without history, gradient or base. */
dm_status dm_tensor_alias(const dm_Tensor *t, dm_Tensor **out) {
  dm_Tensor *a = dm_record_new(sizeof *a);
  if (!a) return DM_EMEM;
  handle_init(a, t->device, t->storage, 0);
  a->dtype = t->dtype;
  a->ndim = t->ndim;
  a->flags = t->flags & (DM_T_NUMBER | DM_T_INFERENCE);
  a->offset = t->offset;
  a->numel = t->numel;
  a->shape[0] = a->stride[0] = 1;
  for (int d = 0; d < t->ndim; d++) {
    a->shape[d] = t->shape[d];
    a->stride[d] = t->stride[d];
  }
  dm_hold(&a->storage->refs);
  *out = a;
  return DM_OK;
}

/* Views of a view share its base, so that a base's history is found in one step. */
dm_status dm_tensor_view(dm_Tensor *t, int ndim, const int64_t *shape, const int64_t *stride,
                         int64_t offset, dm_Tensor **out) {
  int64_t numel;
  DM_TRY(check_shape(ndim, shape, &numel));
  dm_Tensor *v;
  DM_TRY(dm_tensor_alias(t, &v));
  v->flags &= (uint8_t)~DM_T_NUMBER;
  v->ndim = (uint8_t)ndim;
  v->offset = offset;
  v->numel = numel;
  v->shape[0] = v->stride[0] = 1;
  for (int d = 0; d < ndim; d++) {
    v->shape[d] = shape[d];
    v->stride[d] = stride[d];
  }
  v->base = dm_tensor_ref(t->base ? t->base : t);
  v->gen = v->base->gen;
  *out = v;
  return DM_OK;
}

/* Whether t, of elements of `from` bytes, can be seen as elements of `to` bytes, another size:
   PyTorch's rules. */
static dm_status check_bytes(const dm_Tensor *t, const char *name, int64_t from, int64_t to) {
  const char *const own = dm_dtype_name((dm_DType)t->dtype);
  static const char HINT[] = "hint: x:contiguous()";
  const int last = t->ndim - 1;
  if (t->ndim == 0)
    return dm_fail(DM_EARG,
                   "view: a tensor of no dims cannot be seen as %s, whose size is not %s's; "
                   "hint: x:reshape(1)",
                   name, own);
  if (t->stride[last] != 1)
    return dm_fail(DM_EARG, "view: the last dim has stride %lld, wanted 1 to see %s as %s; %s",
                   (long long)t->stride[last], own, name, HINT);
  const int64_t ratio = to / from;
  if (ratio == 0) return DM_OK;
  if (t->shape[last] % ratio != 0)
    return dm_fail(DM_EARG,
                   "view: the last dim of shape %s is no multiple of %d, as many %s as one %s "
                   "takes",
                   DM_SHAPE(t), (int)ratio, own, name);
  if (t->offset % ratio != 0 || (uintptr_t)dm_tensor_data(t) % (uintptr_t)to != 0)
    return dm_fail(DM_EARG,
                   "view: the first element is number %lld of its memory, counted from 0, and "
                   "not at a multiple of %d bytes, where one of %s begins; hint: x:clone()",
                   (long long)t->offset, (int)to, name);
  for (int d = 0; d < last; d++)
    if (t->stride[d] % ratio != 0)
      return dm_fail(DM_EARG,
                     "view: stride %lld of shape %s is no multiple of %d, as many %s as one %s "
                     "takes; %s",
                     (long long)t->stride[d], DM_SHAPE(t), (int)ratio, own, name, HINT);
  return DM_OK;
}

dm_status dm_tensor_view_dtype(dm_Tensor *t, dm_DType dtype, dm_Tensor **out) {
  const int64_t from = dm_dtype_size((dm_DType)t->dtype), to = dm_dtype_size(dtype);
  int64_t shape[DM_MAX_DIM], numel = t->numel;
  const int last = t->ndim - 1;
  for (int d = 0; d <= last; d++) shape[d] = t->shape[d];
  if (from != to) {
    DM_TRY(check_bytes(t, dm_dtype_name(dtype), from, to));
    shape[last] = shape[last] * from / to;
    DM_TRY(check_shape(t->ndim, shape, &numel)); /* expanded dims may be large */
  }
  DM_TRY(dm_tensor_alias(t, out));
  dm_Tensor *v = *out;
  v->flags &= (uint8_t)~DM_T_NUMBER;
  v->dtype = (uint8_t)dtype;
  v->numel = numel;
  v->offset = v->offset * from / to;
  for (int d = 0; d <= last; d++) v->shape[d] = shape[d];
  for (int d = 0; d < last; d++) v->stride[d] = v->stride[d] * from / to;
  return DM_OK;
}

dm_Tensor *dm_tensor_ref(dm_Tensor *t) {
  dm_hold(&t->refs);
  return t;
}

/* Fields are tested first: most tensors have none of them, and a handle dies at every
   op. */
void dm_tensor_unref(dm_Tensor **tp) {
  dm_Tensor *t = *tp;
  *tp = NULL;
  if (!t || !dm_let_go(&t->refs)) return;
  if (t->node || t->hooks) dm_tensor_drop_history(t);
  if (t->grad) dm_tensor_unref(&t->grad);
  if (t->base) dm_tensor_unref(&t->base);
  if (t->low) dm_tensor_unref(&t->low);
  if (t->last) dm_tensor_unref(&t->last);
  dm_Storage *storage = t->storage, *home = t->home;
  if (!(t->flags & DM_T_INLINED)) dm_record_free(t, sizeof *t);
  storage_unref(storage); /* an inlined handle is freed with its block */
  if (home) leave_block(home);
}

/* t gets from's elements and keeps its identity. A handle that lives in its old
   storage's block keeps that block, not its data, until both are gone. */
void dm_tensor_swap_storage(dm_Tensor *t, const dm_Tensor *from) {
  dm_hold(&from->storage->refs);
  dm_Storage *old = t->storage;
  t->storage = from->storage;
  t->dtype = from->dtype;
  t->ndim = from->ndim;
  t->device = from->device;
  t->offset = from->offset;
  t->numel = from->numel;
  memcpy(t->shape, from->shape, sizeof t->shape);
  memcpy(t->stride, from->stride, sizeof t->stride);
  t->gen++; /* tells those who saved t: versions of two storages do not compare */
  dm_tensor_unref(&t->low);
  dm_tensor_unref(&t->last);
  if ((t->flags & DM_T_INLINED) && !t->home) {
    t->home = old;
    atomic_store_explicit(&old->tenants, 2, memory_order_relaxed);
  }
  storage_unref(old);
}

dm_status dm_tensor_lend(dm_Tensor *t, dm_Tensor *from, int64_t at, uint32_t version) {
  const uint32_t gen = t->gen;
  int64_t stride[DM_MAX_DIM] = {0};
  dm_Tensor *bytes = NULL;
  if (at >= 0) dm_contiguous_strides(t->ndim, t->shape, stride);
  DM_TRY(dm_tensor_view(from, t->ndim, t->shape, stride, at >= 0 ? at : 0, &bytes));
  dm_tensor_swap_storage(t, bytes);
  dm_tensor_unref(&bytes);
  t->gen = gen;
  t->storage->lent = at >= 0 ? DM_LENT : DM_AWAY;
  t->storage->version = version;
  return DM_OK;
}

/* ---- between devices ---- */

/* The device that is not the CPU does the copy. */
static dm_status copy(dm_Device to, void *dst, dm_Device from, const void *src, int64_t n,
                      bool later) {
  if (n == 0) return DM_OK;
  return dm_device_ops(to.type == DM_CPU ? from : to)->copy(to, dst, from, src, n, later);
}

/* Both are dense and of one size; with `later` the host may go on before the copy is
   done. */
dm_status dm_tensor_copy_bytes(dm_Tensor *dst, const dm_Tensor *src, bool later) {
  return copy(dst->device, dm_tensor_data(dst), src->device, dm_tensor_data(src),
              dm_tensor_bytes(src), later);
}

dm_status dm_tensor_read(const dm_Tensor *t, int64_t n_bytes, void *dst) {
  return copy((dm_Device){DM_CPU, 0}, dst, t->device, dm_tensor_data(t), n_bytes, false);
}

/* A strided tensor is copied with the gaps between its elements, so that its strides
   stay. */
dm_status dm_tensor_on_host(const dm_Tensor *t, dm_Tensor **out) {
  if (t->device.type == DM_CPU) return dm_tensor_alias(t, out);
  int64_t n = t->numel > 0; /* elements from the first address to the last */
  for (int d = 0; n && d < t->ndim; d++) n += (t->shape[d] - 1) * t->stride[d];
  dm_Tensor *host;
  DM_TRY(dm_tensor_new((dm_DType)t->dtype, 1, &n, (dm_Device){DM_CPU, 0}, &host));
  const dm_status st = dm_tensor_read(t, dm_tensor_bytes(host), dm_tensor_data(host));
  if (st != DM_OK) {
    dm_tensor_unref(&host);
    return st;
  }
  host->ndim = t->ndim;
  host->numel = t->numel;
  memcpy(host->shape, t->shape, sizeof t->shape);
  memcpy(host->stride, t->stride, sizeof t->stride);
  *out = host;
  return DM_OK;
}

dm_Tensor *dm_tensor_get_grad(const dm_Tensor *t) { return t->grad; }
dm_DType dm_tensor_dtype(const dm_Tensor *t) { return (dm_DType)t->dtype; }
int dm_tensor_ndim(const dm_Tensor *t) { return t->ndim; }
const int64_t *dm_tensor_shape(const dm_Tensor *t) { return t->shape; }
const int64_t *dm_tensor_stride(const dm_Tensor *t) { return t->stride; }
int64_t dm_tensor_numel(const dm_Tensor *t) { return t->numel; }
int64_t dm_tensor_bytes(const dm_Tensor *t) {
  return t->numel * dm_dtype_size((dm_DType)t->dtype);
}

void *dm_tensor_data(const dm_Tensor *t) { return t->storage->data ? dm_elements(t) : NULL; }

/* (N, C, H, W) whose channels are adjacent in memory, then W, H and N. */
bool dm_tensor_is_channels_last(const dm_Tensor *t) {
  int64_t stride[4];
  if (t->ndim != 4) return false;
  dm_channels_last_strides(t->shape, stride);
  for (int d = 0; d < 4; d++)
    if (t->shape[d] != 1 && t->stride[d] != stride[d] && t->numel > 0) return false;
  return true;
}

/* Dims are found from the innermost on, each by the stride that it must have. */
bool dm_tensor_is_dense(const dm_Tensor *t) {
  int64_t stride = 1;
  for (int d = 0; stride < t->numel && d < t->ndim;) {
    if (t->shape[d] == 1 || t->stride[d] != stride) {
      d++;
      continue;
    }
    stride *= t->shape[d];
    d = 0;
  }
  return stride >= t->numel;
}

/* By insertion; dims of one element may be anywhere. */
void dm_tensor_memory_order(const dm_Tensor *t, int64_t *dims) {
  for (int d = 0; d < t->ndim; d++) {
    int k = d;
    for (; k > 0 && t->stride[dims[k - 1]] < t->stride[d]; k--) dims[k] = dims[k - 1];
    dims[k] = d;
  }
}

bool dm_tensor_same_order(const dm_Tensor *a, const dm_Tensor *b) {
  if (!dm_same_shape(a, b)) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] != 1 && a->stride[d] != b->stride[d]) return false;
  return dm_tensor_is_dense(a);
}

/* A view whose base got a history since it was made, by a change in place of the base or of
   another view, shares it: the view's own is recorded when an op reads it. */
bool dm_tensor_requires_grad(const dm_Tensor *t) {
  const dm_Tensor *const b = t->base;
  if ((t->flags & DM_T_REQUIRES_GRAD) || t->node) return true;
  return b && t->gen != b->gen && t->storage == b->storage && dm_tensor_requires_grad(b);
}

/* Expanded tensors show one element several times, by a stride of 0. */
bool dm_tensor_overlaps_itself(const dm_Tensor *t) {
  for (int d = 0; d < t->ndim; d++)
    if (t->stride[d] == 0 && t->shape[d] > 1) return true;
  return false;
}

bool dm_same_shape(const dm_Tensor *a, const dm_Tensor *b) {
  if (a->ndim != b->ndim) return false;
  for (int d = 0; d < a->ndim; d++)
    if (a->shape[d] != b->shape[d]) return false;
  return true;
}

/* "{2, 3}" in buf; a shape that is too long for it is cut. */
const char *dm_shape_str(int ndim, const int64_t *shape, char buf[DM_SHAPE_TEXT]) {
  int at = snprintf(buf, DM_SHAPE_TEXT, "{");
  for (int d = 0; d < ndim && at < DM_SHAPE_TEXT; d++)
    at += snprintf(buf + at, (size_t)(DM_SHAPE_TEXT - at), "%s%lld", d ? ", " : "",
                   (long long)shape[d]);
  if (at < DM_SHAPE_TEXT - 1) snprintf(buf + at, (size_t)(DM_SHAPE_TEXT - at), "}");
  return buf;
}

/* NumPy's rule: dims are aligned at the last one; equal sizes, or one of them 1. */
dm_status dm_broadcast(const char *op, const dm_Tensor *a, const dm_Tensor *b, int *ndim,
                       int64_t *shape) {
  const int n = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int d = 0; d < n; d++) {
    const int da = d - (n - a->ndim), db = d - (n - b->ndim);
    const int64_t sa = da < 0 ? 1 : a->shape[da], sb = db < 0 ? 1 : b->shape[db];
    if (sa != sb && sa != 1 && sb != 1)
      return dm_fail(DM_EARG,
                     "%s: shapes %s and %s do not broadcast: dim %d is %lld on the left and "
                     "%lld on the right",
                     op, DM_SHAPE(a), DM_SHAPE(b), d + 1, (long long)sa, (long long)sb);
    shape[d] = sa == 1 ? sb : sa;
  }
  *ndim = n;
  return DM_OK;
}

/* PyTorch's promotion: tensors with dims decide first; 0-dim tensors, and after them
   numbers, count only where their kind (bool, integer, float) is higher than what
   stands so far. */
static __attribute__((noinline)) dm_DType promoted(int n, dm_Tensor *const *in) {
  /* classes: 0 = tensors with dims, 1 = 0-dim tensors, 2 = numbers */
  dm_DType best[3] = {DM_NO_DTYPE, DM_NO_DTYPE, DM_NO_DTYPE};
  for (int i = 0; i < n; i++) {
    if (!in[i]) continue;
    const int class = in[i]->flags & DM_T_NUMBER ? 2 : in[i]->ndim == 0;
    dm_DType d = (dm_DType)in[i]->dtype;
    if (class == 2 && dm_is_float(d)) d = dm_default_dtype();
    best[class] = best[class] == DM_NO_DTYPE ? d : dm_promote(best[class], d);
  }
  dm_DType r = best[0];
  for (int class = 1; class < 3; class ++) {
    if (best[class] == DM_NO_DTYPE) continue;
    if (r == DM_NO_DTYPE) r = best[class];
    else if (dm_kind(best[class]) > dm_kind(r)) r = best[class];
  }
  return r;
}

/* Two tensors of one dtype are most calls; a function without an array needs no guard. */
dm_DType dm_result_dtype(int n, dm_Tensor *const *in) {
  if (n == 2 && in[1] && in[0]->dtype == in[1]->dtype &&
      !((in[0]->flags | in[1]->flags) & DM_T_NUMBER))
    return (dm_DType)in[0]->dtype;
  return promoted(n, in);
}
