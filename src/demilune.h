/* demilune: tensors, autograd and mixed precision, from C.

   Shapes are arrays of int64_t; dims and indices count from 0 here (from 1 in
   Lua). A function that can fail returns a dm_status; dm_error() then says, in
   one line, what was given and what was wanted. Ownership is a word in the
   name: `new` and every `out` give one reference, which dm_tensor_unref takes
   back. No function prints, exits or jumps out. Any thread may call; one tensor
   belongs to one thread at a time. */
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

enum { DM_MAX_DIM = 8 }; /* dims of a tensor; a rank above fails */

typedef enum dm_status {
  DM_OK = 0,
  DM_EARG,   /* a value, option or shape that the caller got wrong */
  DM_EMEM,   /* the allocator has nothing left */
  DM_EIO,    /* a file or the outside world */
  DM_ESTATE, /* right call, wrong time: backward twice, freed tensor */
  DM_EDEV    /* the device has no such kernel, or failed */
} dm_status;

/* The message of this thread's last failure; never NULL. */
DM_API const char *dm_error(void);

/* Element types. ORDER: the order of promotion within a kind. */
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

/* A device is its type and its ordinal (counted from 0). */
typedef struct dm_Device {
  uint8_t type, index;
} dm_Device;

/* "cpu", "cuda", "cuda:1" to a device; fails on anything else. */
DM_API dm_status dm_device_parse(const char *name, dm_Device *out);

/* ---- tensors ---- */

typedef struct dm_Tensor dm_Tensor;

/* Dense, uninitialised. */
DM_API dm_status dm_tensor_new(dm_DType dtype, int ndim, const int64_t *shape, dm_Device dev,
                               dm_Tensor **out);
/* A tensor on the caller's memory; release(ctx) when the last view is gone. */
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
/* Calls it. attr: the op's attributes as a struct laid out as its signature
   says (8 bytes each; a list is a count and 8 values), or NULL for the
   defaults. out gets as many references as the op has outputs (at most 3). */
DM_API dm_status dm_call(int op, int n_in, dm_Tensor *const *in, const void *attr,
                         dm_Tensor **out);
DM_API dm_status dm_call_inplace(int op, int n_in, dm_Tensor *const *in, const void *attr);

/* ---- gradients ---- */

enum { DM_RETAIN_GRAPH = 1, DM_CREATE_GRAPH = 2, DM_ALLOW_UNUSED = 4 };

DM_API dm_status dm_set_requires_grad(dm_Tensor *t, bool on);
/* The gradient of a leaf, borrowed; NULL before backward. */
DM_API dm_Tensor *dm_tensor_get_grad(const dm_Tensor *t);
/* Gradients of roots (seeds[i], or 1 for one element when NULL) into leaves. */
DM_API dm_status dm_backward(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds,
                             int flags);
/* The same with respect to inputs, into out; leaves stay as they are. */
DM_API dm_status dm_grad(int n, dm_Tensor *const *roots, dm_Tensor *const *seeds, int n_in,
                         dm_Tensor *const *inputs, int flags, dm_Tensor **out);

/* ---- the rest ---- */

DM_API void dm_manual_seed(uint64_t seed);
/* n < 1: as at the start, by DEMILUNE_NUM_THREADS, or OMP_NUM_THREADS, or one for each
   core that the process may use. */
DM_API void dm_set_num_threads(int n);
DM_API int dm_get_num_threads(void);

/* ---- with Lua: in the library demilune_lua ---- */

struct lua_State;
/* Opens the module `demilune.core`; for package.preload or luaL_requiref. */
DM_API int luaopen_demilune_core(struct lua_State *L);
/* The tensor at a stack index, borrowed; NULL when there is none. It, and the next
   function, hand over from Lua to C: until Lua calls again, calls of this thread
   count from 0, with what Lua has switched on (no_grad, autocast). */
DM_API dm_Tensor *dm_lua_tensor(struct lua_State *L, int index);
/* Pushes a tensor as a Lua value and takes its reference. */
DM_API void dm_lua_push(struct lua_State *L, dm_Tensor *t);

#ifdef __cplusplus
}
#endif
#endif
