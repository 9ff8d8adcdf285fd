/* Tensors: a handle (shape, strides, offset) on counted bytes (storage).

       dm_Tensor ----\                 shape, stride, offset in elements
       dm_Tensor ---- dm_Storage ----> bytes on a device, version number
       (views)                         (raised by each in-place change)

   A handle also carries what autograd knows of it: the node that made it, or
   its gradient when it is a leaf. Ownership is a word in the name: new, view
   (caller owns the result), ref, unref, get (borrowed), take. */
#ifndef DM_TENSOR_H
#define DM_TENSOR_H

#ifdef __cplusplus
typedef int atomic_int; /* CUDA files know the layout and leave it alone */
#else
#include "base/refs.h"
#endif
#include <string.h>

#include "core/device.h"

typedef struct dm_Storage {
  atomic_int refs;
  atomic_int tenants; /* once the handle made with it shows another storage: 2, of whom one
                         is that handle and one all references */
  dm_Device device;
  bool inlined;     /* lies in the block that holds its data */
  uint32_t version; /* in-place changes so far */
  int64_t n_bytes;
  void *data;                 /* NULL when n_bytes is 0 and nothing is wrapped */
  void (*release)(void *ctx); /* for memory that somebody else gave; or NULL */
  void *release_ctx;
} dm_Storage;

struct dm_Node;
struct dm_Hook;

enum {
  DM_T_REQUIRES_GRAD = 1, /* leaf: asked for; otherwise: comes and goes with the node */
  DM_T_NUMBER = 2,        /* a Lua number in tensor's clothing: widens no dtype */
  DM_T_PARAMETER = 4,
  DM_T_RETAIN_GRAD = 8,
  DM_T_INFERENCE = 16, /* made under inference_mode: never recorded */
  DM_T_INLINED = 32,   /* the handle lies in the block of the storage it was made with */
  DM_T_SCALED = 64     /* a gradient that still carries a GradScaler's scale */
};

struct dm_Tensor {
  atomic_int refs;
  uint8_t dtype, ndim;
  dm_Device device;
  uint8_t flags;
  uint8_t out_index; /* which output of node */
  uint8_t low_dtype; /* autocast read `low`, or wanted it, since the last step; or 0 */
  uint32_t gen;      /* base: rewritten histories so far; view: the one it knows */
  int64_t offset, numel;
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  dm_Storage *storage;
  dm_Storage *home;       /* an inlined handle's block, once storage is another; or NULL */
  struct dm_Node *node;   /* owned; NULL for a leaf */
  struct dm_Tensor *base; /* owned; the tensor that this is a view of, or NULL */
  struct dm_Tensor *grad; /* owned; leaves and retain_grad */
  struct dm_Hook *hooks;  /* owned; of a leaf */
  /* Owned; a float32 weight in 16 bits, written by the optimizer's step for the
     next forward. It shows the weight's elements while its storage counts the
     same version; or NULL. */
  struct dm_Tensor *low;
  /* Owned; a copy with its channels last, which a device's convolutions keep. It shows the
     same elements while its storage counts the same version; or NULL. */
  struct dm_Tensor *last;
};

/* What an output looks like before it exists. */
typedef struct dm_Meta {
  uint8_t dtype, ndim;
  dm_Device device;
  bool channels_last; /* 4 dims, the second one's elements side by side */
  int64_t shape[DM_MAX_DIM];
} dm_Meta;

dm_status dm_tensor_new_meta(const dm_Meta *m, dm_Tensor **out);
/* A 0-dim tensor that stands for a host number. */
dm_status dm_tensor_number(bool is_int, double f, int64_t i, dm_Tensor **out);
/* Another handle on the same storage, with no history of its own. */
dm_status dm_tensor_alias(const dm_Tensor *t, dm_Tensor **out);
/* A view: remembers t's base so that in-place changes reach its history. */
dm_status dm_tensor_view(dm_Tensor *t, int ndim, const int64_t *shape, const int64_t *stride,
                         int64_t offset, dm_Tensor **out);
/* t shows from's elements from now on; its history and gradient stay. */
void dm_tensor_swap_storage(dm_Tensor *t, const dm_Tensor *from);

/* Copies the bytes of src into dst: both dense, of one shape and dtype, on any
   devices. `later`: as dm_DeviceOps.copy. */
dm_status dm_tensor_copy_bytes(dm_Tensor *dst, const dm_Tensor *src, bool later);
/* The first n_bytes from t's first element on, which lie side by side, to the
   host's memory; waits for them. */
dm_status dm_tensor_read(const dm_Tensor *t, int64_t n_bytes, void *dst);
/* t where the host can read it: on the CPU t itself, one reference more; else a
   copy of its shape and strides, without history. */
dm_status dm_tensor_on_host(const dm_Tensor *t, dm_Tensor **out);

bool dm_tensor_is_contiguous(const dm_Tensor *t);
/* (N,C,H,W), dense in the order N, H, W, C. It may be contiguous too, where there is one
   channel or one pixel. */
bool dm_tensor_is_channels_last(const dm_Tensor *t);
bool dm_tensor_requires_grad(const dm_Tensor *t);
/* True when two elements of t may share a word (expanded dims). */
bool dm_tensor_overlaps_itself(const dm_Tensor *t);
int64_t dm_tensor_bytes(const dm_Tensor *t);

void dm_contiguous_strides(int ndim, const int64_t *shape, int64_t *stride);
/* Of (N,C,H,W) in the order N, H, W, C. */
static inline void dm_channels_last_strides(const int64_t *shape, int64_t *stride) {
  stride[1] = 1;
  stride[3] = dm_max_i64(shape[1], 1);
  stride[2] = stride[3] * dm_max_i64(shape[3], 1);
  stride[0] = stride[2] * dm_max_i64(shape[2], 1);
}
/* All sizes are copied, not only ndim of them: a move of fixed length costs less
   than a loop, and this runs for every operand of every recorded call. */
static inline dm_Meta dm_meta_of(const dm_Tensor *t) {
  dm_Meta m;
  m.dtype = t->dtype;
  m.ndim = t->ndim;
  m.device = t->device;
  m.channels_last = false;
  memcpy(m.shape, t->shape, sizeof m.shape);
  return m;
}
int64_t dm_numel(int ndim, const int64_t *shape);
bool dm_same_shape(const dm_Tensor *a, const dm_Tensor *b);
/* "{2, 3, 4}" into buf. */
const char *dm_shape_str(int ndim, const int64_t *shape, char buf[96]);
#define DM_SHAPE(t) dm_shape_str((t)->ndim, (t)->shape, (char[96]){0})

/* The shape both broadcast to; fails with both shapes and the dim. */
dm_status dm_broadcast(const char *op, const dm_Tensor *a, const dm_Tensor *b, int *ndim,
                       int64_t *shape);
/* The dtype that arithmetic on these gives: n-d tensors first, then 0-dim
   ones, then numbers, each only when its kind is higher. */
dm_DType dm_result_dtype(int n, dm_Tensor *const *in);

/* Called when the last handle goes, to drop the history; set by the tape. */
extern void (*dm_tensor_drop_history)(dm_Tensor *t);

#endif
