/* Walks over strided operands, as kernels get them: what the host prepares for a launch. */
#ifndef DM_CUDA_WALK_H
#define DM_CUDA_WALK_H

#include "core/iter.h"
#include "demilune.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Division by a number that is the same for a whole launch, as a multiplication and a shift
   (T. Granlund & P. Montgomery 1994); exact for numbers of 31 bits. GPUs have no instruction
   for integer division, and every strided offset needs some. */
typedef struct {
  uint32_t d, magic, shift;
} dm_Divisor;
dm_Divisor dm_divisor(int64_t d);

/* The shape of a walk. */
typedef struct {
  int ndim;
  bool wide; /* 2^31 elements or more: 64-bit divisions */
  int64_t numel;
  int64_t shape[DM_MAX_DIM];
  dm_Divisor div[DM_MAX_DIM];
} dm_WalkShape;
/* The offset of an operand per dim, in elements. */
typedef int64_t dm_WalkStride[DM_MAX_DIM];

/* Fills a walk of zeros over t[0]'s shape, to which the other operands broadcast; data[k] is
   operand k's data. by_memory: the order of elements does not matter, so dims are sorted by
   t[0]'s strides, largest first, and neighbouring dims that are contiguous in every operand are
   merged: a dense operation becomes one row. */
void dm_walk_fill(dm_WalkShape *w, dm_WalkStride *stride, int n, dm_Tensor *const *t,
                  void **data, bool by_memory);

/* Turns a walk over n operands into one over packs of V elements; false where that is
   impossible. Every operand's last dim has to be contiguous, with packs aligned to words of
   their size, or repeat one element. With more than one row, rows have to be whole packs. An
   operand whose data is NULL, a host number, needs no packs; bytes[k] is the size of operand
   k's elements. */
bool dm_walk_pack(dm_WalkShape *w, dm_WalkStride *stride, int n, void *const *data,
                  const int *bytes, int V);

/* ---- walks of reductions ---- */

/* The walk over the dims of x in mask, with neighbouring dims merged where memory allows. Where
   order does not matter, dims are sorted by falling strides first. It has no divisors yet. */
void dm_walk_dims(dm_WalkShape *w, dm_WalkStride *stride, const dm_Tensor *x, unsigned mask,
                  bool ordered);
/* Computes the divisors; called once the shape is final. */
void dm_walk_ready(dm_WalkShape *w);

#ifdef __cplusplus
}
#endif
#endif
