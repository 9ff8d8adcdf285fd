/* demilune: tensors, autograd and mixed precision, from C.

   Shapes are arrays of int64_t; dims and indices count from 0 (in Lua from 1). A function that
   can fail returns a dm_status; dm_error() then describes, in one line, what it got and what
   it wanted. Functions with `new` in their names, and all `out` parameters, give the caller
   one reference, which dm_tensor_unref drops. No function prints, exits or calls longjmp. Any
   thread may call any function; one tensor may be used by one thread at a time. */
#ifndef DEMILUNE_H
#define DEMILUNE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DM_API __attribute__((visibility("default")))
#else
#define DM_API
#endif

#define DM_VERSION "0.2.0" /* the only place; CMake and Lua read it here */

enum { DM_MAX_DIM = 16 }; /* the most dims that a tensor can have */

typedef enum dm_status {
  DM_OK = 0,
  DM_EARG,   /* a wrong value, option or shape */
  DM_EMEM,   /* out of memory */
  DM_EIO,    /* a file could not be read or written */
  DM_ESTATE, /* not possible now: a second backward, a freed tensor */
  DM_EDEV    /* the device is missing, failed, or has no kernel for the op */
} dm_status;

/* The message of this thread's last failure; never NULL. Valid until the next failure. */
DM_API const char *dm_error(void);

/* Element types. The numbers are part of the interface: a new type goes to the end. */
typedef enum dm_DType {
  DM_BOOL,
  DM_U8,
  DM_I8,
  DM_I16,
  DM_I32,
  DM_I64,
  DM_F16,
  DM_BF16,
  DM_F32,
  DM_F64,
  DM_N_DTYPE,
  DM_NO_DTYPE = -1
} dm_DType;

DM_API const char *dm_dtype_name(dm_DType d);    /* "float16" */
DM_API dm_DType dm_dtype_find(const char *name); /* DM_NO_DTYPE if unknown */

typedef enum dm_DeviceType { DM_CPU, DM_CUDA, DM_N_DEVICE_TYPE } dm_DeviceType;

/* A device: its type, and its number among those of the type, from 0. */
typedef struct dm_Device {
  uint8_t type, index;
} dm_Device;

/* Reads "cpu", "cuda" or "cuda:1"; fails on any other text. */
DM_API dm_status dm_device_parse(const char *name, dm_Device *out);

/* ---- tensors ---- */

typedef struct dm_Tensor dm_Tensor;

/* A new contiguous tensor; its elements are uninitialized. */
DM_API dm_status dm_tensor_new(dm_DType dtype, int ndim, const int64_t *shape, dm_Device dev,
                               dm_Tensor **out);
/* A CPU tensor on the caller's memory; release(ctx) is called after its last view is freed. */
DM_API dm_status dm_tensor_wrap(void *data, dm_DType dtype, int ndim, const int64_t *shape,
                                void (*release)(void *), void *ctx, dm_Tensor **out);
DM_API dm_Tensor *dm_tensor_ref(dm_Tensor *t);
DM_API void dm_tensor_unref(dm_Tensor **t); /* sets *t to NULL; NULL is fine */

DM_API dm_DType dm_tensor_dtype(const dm_Tensor *t);
DM_API int dm_tensor_ndim(const dm_Tensor *t);
DM_API const int64_t *dm_tensor_shape(const dm_Tensor *t);
DM_API const int64_t *dm_tensor_stride(const dm_Tensor *t); /* in elements */
DM_API int64_t dm_tensor_numel(const dm_Tensor *t);
DM_API void *dm_tensor_data(const dm_Tensor *t); /* first element; valid while t lives */

/* ---- ops ---- */

/* The op of that name (a row of the op table), or -1. */
DM_API int dm_op_find(const char *name);
/* Calls the op. attr: its attributes as a struct in the order of its signature (8 bytes each; a
   list is a count and 8 values), or NULL for the defaults. out gets as many tensors as the op
   has outputs (at most 3). */
DM_API dm_status dm_call(int op, int n_in, dm_Tensor *const *in, const void *attr,
                         dm_Tensor **out);
/* The same in place: the result is written into in[0]. */
DM_API dm_status dm_call_inplace(int op, int n_in, dm_Tensor *const *in, const void *attr);

/* ---- gradients ---- */

enum { DM_RETAIN_GRAPH = 1, DM_CREATE_GRAPH = 2, DM_ALLOW_UNUSED = 4 };

DM_API dm_status dm_set_requires_grad(dm_Tensor *t, bool on);
/* The gradient of a leaf, borrowed; NULL before backward. */
DM_API dm_Tensor *dm_tensor_get_grad(const dm_Tensor *t);
/* Adds the gradients of the roots to .grad of the leaves. seeds[i] is the gradient of root i;
   without it (NULL) the root must have one element, and its gradient is 1. */
DM_API dm_status dm_backward(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds,
                             int flags);
/* The same for `inputs` alone, n_in > 0 leaves or inner tensors; of an inner one .grad is then
   filled by later passes, too (retain_grad). */
DM_API dm_status dm_backward_into(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds,
                                  int n_in, dm_Tensor *const *inputs, int flags);
/* The gradients with respect to `inputs`, into out; no .grad changes. */
DM_API dm_status dm_grad(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int n_in,
                         dm_Tensor *const *inputs, int flags, dm_Tensor **out);
/* *out: whether root's gradient flows to a leaf that is none of the n known ones. */
DM_API dm_status dm_other_leaves(dm_Tensor *root, int n, dm_Tensor *const *known, bool *out);

/* ---- the rest ---- */

DM_API void dm_manual_seed(uint64_t seed);
/* n < 1 restores the default: DEMILUNE_NUM_THREADS, else OMP_NUM_THREADS, else one thread for
   each core that the process may use. */
DM_API void dm_set_num_threads(int n);
DM_API int dm_get_num_threads(void);

/* ---- with Lua: in the library demilune_lua ---- */

struct lua_State;
/* Opens the module `demilune.core`; for package.preload or luaL_requiref. */
DM_API int luaopen_demilune_core(struct lua_State *L);
/* The tensor at a stack index, borrowed; NULL when there is none. After this function and the
   next one, until Lua calls the library again, calls of this thread count from 0 and keep
   what Lua has switched on (no_grad, autocast). */
DM_API dm_Tensor *dm_lua_tensor(struct lua_State *L, int index);
/* Pushes a tensor as a Lua value; takes its reference. */
DM_API void dm_lua_push(struct lua_State *L, dm_Tensor *t);

#ifdef __cplusplus
}
#endif
#endif
