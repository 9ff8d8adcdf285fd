/* Tensors: a handle (shape, strides, offset) on counted bytes (storage).

       dm_Tensor ----\                 shape, stride, offset in elements
       dm_Tensor ---- dm_Storage ----> bytes on a device, version number
       (views)                         (raised by each in-place change)

   A handle also has autograd's part: the node that made it, or the gradient of a leaf.
   The word in a function's name tells the ownership: the caller owns the result of new and
   view, get borrows, take takes over the caller's reference. */
#ifndef DM_TENSOR_H
#define DM_TENSOR_H

#ifdef __cplusplus
typedef int atomic_int; /* CUDA files know the layout and leave it alone */
#else
#include "base/refs.h"
#endif
#include <string.h>

#include "core/device.h"

/* Whether the host lends a parameter its bytes for a while only, such as those that it gathers
   from other processes. Of a leaf whose bytes are lent the tape saves the handle itself, so
   that it need not keep them; while they are away the handle has one element on DM_AWAY. */
typedef enum dm_Lent { DM_OWN, DM_LENT, DM_AWAY } dm_Lent;

typedef struct dm_Storage {
  atomic_int refs;
  /* The users of the block that holds this struct, once its inlined handle has moved to another
     storage: 2, the handle, and all references to the storage together. 0 before that. */
  atomic_int tenants;
  dm_Device device;
  bool inlined;     /* struct, handle and data are one block */
  uint8_t lent;     /* dm_Lent */
  uint32_t version; /* in-place changes so far */
  int64_t n_bytes;
  void *data;                 /* NULL when n_bytes is 0 and nothing is wrapped */
  void (*release)(void *ctx); /* frees memory of the caller's (dm_tensor_wrap); or NULL */
  void *release_ctx;
} dm_Storage;

struct dm_Node;
struct dm_Hook;
struct dm_GradHome;

enum {
  DM_T_REQUIRES_GRAD = 1, /* a leaf's is set by the user; a non-leaf has it with its node */
  DM_T_NUMBER = 2, /* a host number as a 0-dim tensor: it promotes no dtype of its kind */
  DM_T_PARAMETER = 4,
  DM_T_RETAIN_GRAD = 8,
  DM_T_INFERENCE = 16, /* made under inference_mode: never recorded */
  DM_T_INLINED = 32,   /* the handle is in the block of the storage that it was made with */
  DM_T_SCALED = 64     /* a gradient that still carries a GradScaler's scale */
};

struct dm_Tensor {
  atomic_int refs;
  uint8_t dtype, ndim;
  dm_Device device;
  uint8_t flags;
  uint8_t out_index; /* which output of node */
  uint8_t low_dtype; /* the dtype that autocast cast it to since the last step; or 0 */
  /* A base counts its rewritten histories and the exchanges of its data; a view has the count
     that its base had when their histories last agreed. */
  uint32_t gen;
  int64_t offset, numel;
  int64_t shape[DM_MAX_DIM], stride[DM_MAX_DIM];
  dm_Storage *storage;
  dm_Storage *home;              /* of an inlined handle that moved: the storage in its block */
  struct dm_Node *node;          /* owned; NULL for a leaf */
  struct dm_Tensor *base;        /* owned; the tensor that this is a view of, or NULL */
  struct dm_Tensor *grad;        /* owned; leaves and retain_grad */
  struct dm_Hook *hooks;         /* owned; of a leaf */
  struct dm_GradHome *grad_home; /* where a leaf's gradient lies (engine/home.h); or NULL */
  /* Owned, or NULL: a float32 weight's copy in 16 bits, which the optimizer's step writes for
     the next forward. It is valid while its storage's version equals the weight's. */
  struct dm_Tensor *low;
  /* Owned, or NULL: a copy in the layout channels last, which a device's convolutions keep. It
     is valid by the same rule. */
  struct dm_Tensor *last;
};

/* Shape, dtype, device and layout of a tensor that does not exist yet. */
typedef struct dm_Meta {
  uint8_t dtype, ndim;
  dm_Device device;
  bool channels_last; /* (N,C,H,W) stored in the order N, H, W, C */
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
/* Another handle on the same storage that reads its bytes as elements of that dtype; the last
   dim is scaled by the ratio of the sizes. It has no history and no base, as a detached tensor
   has none, since bytes have no gradient; changes through it raise the storage's version. */
dm_status dm_tensor_view_dtype(dm_Tensor *t, dm_DType dtype, dm_Tensor **out);
/* t gets from's storage, shape and strides; its history and gradient stay, its gen rises. */
void dm_tensor_swap_storage(dm_Tensor *t, const dm_Tensor *from);
/* t gets bytes of from's storage, and its gen stays, so that saved tensors are what they were
   where the versions agree: the contiguous elements from `at` on, which are lent; or, where
   `at` is negative, in each position the first element, as what stands for bytes that are away.
   Its storage has that version then. */
dm_status dm_tensor_lend(dm_Tensor *t, dm_Tensor *from, int64_t at, uint32_t version);

/* Copies the bytes of src into dst: both dense, of one shape and dtype, on any
   devices. `later`: as dm_DeviceOps.copy. */
dm_status dm_tensor_copy_bytes(dm_Tensor *dst, const dm_Tensor *src, bool later);
/* Copies n_bytes, contiguous from t's first element on, to the host's memory; waits. */
dm_status dm_tensor_read(const dm_Tensor *t, int64_t n_bytes, void *dst);
/* t for the host to read: on the CPU a handle of t's elements, which stays as it is when t's
   data are exchanged; else a copy with t's shape and strides. Without history. Waits. */
dm_status dm_tensor_on_host(const dm_Tensor *t, dm_Tensor **out);

/* dm_tensor_data of a tensor that has elements, for the shortest of calls. */
static inline void *dm_elements(const dm_Tensor *t) {
  return (char *)t->storage->data + t->offset * dm_dtype_size((dm_DType)t->dtype);
}
/* Row-major without gaps. A dim of size 1 has any stride: it is never stepped along. */
static inline bool dm_tensor_is_contiguous(const dm_Tensor *t) {
  int64_t s = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (t->shape[d] == 0) return true;
    if (t->shape[d] != 1 && t->stride[d] != s) return false;
    s *= t->shape[d];
  }
  return true;
}
/* (N,C,H,W), dense in the order N, H, W, C. With one channel or one position it is contiguous
   as well. */
bool dm_tensor_is_channels_last(const dm_Tensor *t);
/* The elements lie without gaps, the dims in any order: a contiguous tensor, permuted. */
bool dm_tensor_is_dense(const dm_Tensor *t);
/* The dims of a dense t from the outermost in memory to the innermost. */
void dm_tensor_memory_order(const dm_Tensor *t, int64_t *dims);
/* Both are dense and of one shape, and their elements lie in the same order. */
bool dm_tensor_same_order(const dm_Tensor *a, const dm_Tensor *b);
bool dm_tensor_requires_grad(const dm_Tensor *t);
/* True when two elements of t have one address (expanded dims). */
bool dm_tensor_overlaps_itself(const dm_Tensor *t);
int64_t dm_tensor_bytes(const dm_Tensor *t);

void dm_contiguous_strides(int ndim, const int64_t *shape, int64_t *stride);
/* Strides of (N,C,H,W) stored in the order N, H, W, C. */
static inline void dm_channels_last_strides(const int64_t *shape, int64_t *stride) {
  stride[1] = 1;
  stride[3] = dm_max_i64(shape[1], 1);
  stride[2] = stride[3] * dm_max_i64(shape[3], 1);
  stride[0] = stride[2] * dm_max_i64(shape[2], 1);
}
/* Copies DM_FEW_DIM sizes at once, and the others only where a tensor has them: a copy of fixed
   length is cheaper than a loop over ndim, and this runs for every operand of every recorded
   call. */
enum { DM_FEW_DIM = 4 };
static inline void dm_meta_set(dm_Meta *m, const dm_Tensor *t) {
  m->dtype = t->dtype;
  m->ndim = t->ndim;
  m->device = t->device;
  m->channels_last = false;
  memcpy(m->shape, t->shape, DM_FEW_DIM * sizeof *m->shape);
  if (DM_UNLIKELY(t->ndim > DM_FEW_DIM))
    memcpy(m->shape + DM_FEW_DIM, t->shape + DM_FEW_DIM,
           (DM_MAX_DIM - DM_FEW_DIM) * sizeof *m->shape);
}
static inline dm_Meta dm_meta_of(const dm_Tensor *t) {
  dm_Meta m;
  dm_meta_set(&m, t);
  return m;
}

/* Metas that a recorded call keeps, packed: each has only its first n_dim sizes, so none may be
   copied as a struct. A graph holds many of them, and a step is as fast as its memory is small.
 */
typedef struct dm_Metas {
  char *at;
  int n_dim; /* DM_FEW_DIM, or DM_MAX_DIM where one of the tensors has more */
} dm_Metas;
static inline int64_t dm_meta_bytes(int n_dim) {
  return (int64_t)(offsetof(dm_Meta, shape) + sizeof(int64_t) * (size_t)n_dim);
}
static inline dm_Meta *dm_meta(dm_Metas m, int i) {
  return (dm_Meta *)(void *)(m.at + i * dm_meta_bytes(m.n_dim));
}
int64_t dm_numel(int ndim, const int64_t *shape);
bool dm_same_shape(const dm_Tensor *a, const dm_Tensor *b);
/* "{2, 3, 4}" into buf. */
enum { DM_SHAPE_TEXT = 192 };
const char *dm_shape_str(int ndim, const int64_t *shape, char buf[DM_SHAPE_TEXT]);
#define DM_DIMS(ndim, shape) dm_shape_str(ndim, shape, (char[DM_SHAPE_TEXT]){0})
#define DM_SHAPE(t) DM_DIMS((t)->ndim, (t)->shape)

/* The shape that a and b broadcast to (NumPy's rules); the failure names shapes and dim. */
dm_status dm_broadcast(const char *op, const dm_Tensor *a, const dm_Tensor *b, int *ndim,
                       int64_t *shape);
/* The dtype of floats that are made without one: of integers, of the host's numbers. */
dm_DType dm_default_dtype(void);
/* The dtype of arithmetic on these, by PyTorch's promotion: tensors with dims decide; 0-dim
   tensors, and then numbers, count only when their kind (bool, integer, float) is higher. */
dm_DType dm_result_dtype(int n, dm_Tensor *const *in);

/* Drops the history of a tensor that is being freed. A hook: engine/tape.c, a layer above, sets
   it when the library is loaded. */
extern void (*dm_tensor_drop_history)(dm_Tensor *t);

#endif
