/* These types own scratch memory and tensors for a host function. Their destructors release
   them when it returns, on success or failure. */
#ifndef DM_OWN_CUH
#define DM_OWN_CUH

#include "kernels/cuda.cuh"
#include "kernels/fill.h"

/* n elements of scratch memory on the device, returned to the allocator in stream order
   (dm_cuda_scratch). */
template <class T> struct dm_Scratch {
  T *p = NULL;
  int64_t n_bytes = 0;

  dm_Scratch() {}
  dm_Scratch(const dm_Scratch &) = delete;
  ~dm_Scratch() { dm_cuda_scratch_free(p, n_bytes); }
  dm_status get(int64_t n) {
    void *memory;
    DM_TRY(dm_cuda_scratch(n * (int64_t)sizeof(T), &memory));
    p = (T *)memory;
    n_bytes = n * (int64_t)sizeof(T);
    return DM_OK;
  }
};

/* A reference to a tensor. */
struct dm_Own {
  dm_Tensor *t = NULL;

  dm_Own() {}
  dm_Own(const dm_Own &) = delete;
  ~dm_Own() { dm_tensor_unref(&t); }
};

/* Replaces *t by a copy on `dev` if it is a 0-dim CPU tensor, for kernels that read it from
   memory. */
static inline dm_status dm_bring(dm_Tensor **t, dm_Device dev, dm_Own *own) {
  if (!dm_is_host(*t)) return DM_OK;
  DM_TRY(dm_tensor_new((dm_DType)(*t)->dtype, (*t)->ndim, (*t)->shape, dev, &own->t));
  DM_TRY(dm_cuda_copy(own->t, *t));
  *t = own->t;
  return DM_OK;
}

/* Gives in *data the elements of t broadcast to `shape`, dense, in `dtype`, on `dev`: t's own
   memory if it is like that already, else a copy's. */
static inline dm_status dm_dense_as(dm_Tensor *t, dm_DType dtype, int ndim,
                                    const int64_t *shape, dm_Device dev, dm_Own *own,
                                    const void **data) {
  bool same =
      !dm_is_host(t) && t->dtype == dtype && t->ndim == ndim && dm_tensor_is_contiguous(t);
  for (int d = 0; d < ndim && same; d++) same = t->shape[d] == shape[d];
  if (!same) {
    DM_TRY(dm_tensor_new(dtype, ndim, shape, dev, &own->t));
    DM_TRY(dm_cuda_copy(own->t, t));
    t = own->t;
  }
  *data = dm_tensor_data(t);
  return DM_OK;
}

#endif
