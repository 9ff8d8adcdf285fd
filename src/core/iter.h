/* The iterator of strided operands of one shape (at::TensorIterator in PyTorch). Neighbouring
   dims that are contiguous in every operand are merged; the elements of the innermost dim
   are given to a function as runs with one stride for each operand. */
#ifndef DM_ITER_H
#define DM_ITER_H

#include "core/tensor.h"

enum { DM_ITER_OPERANDS = 6 };

typedef struct dm_Iter {
  int n_op, ndim;
  int64_t numel;
  int64_t shape[DM_MAX_DIM];
  int64_t stride[DM_ITER_OPERANDS][DM_MAX_DIM]; /* elements; 0 where broadcast */
  char *data[DM_ITER_OPERANDS];
  uint8_t size[DM_ITER_OPERANDS]; /* bytes of an element */
} dm_Iter;

/* One run: n elements, operand i at ptr[i], stride[i] elements apart. */
typedef void dm_RunFn(void *ctx, char *const *ptr, const int64_t *stride, int64_t n);

/* The shape is that of t[0], the output; the others broadcast to it. */
void dm_iter_init(dm_Iter *it, int n, dm_Tensor *const *t);
/* The same for what may be visited in any order: the dims are those of t[0] in memory, so that
   operands that are dense in its order are one run. */
void dm_iter_init_by_memory(dm_Iter *it, int n, dm_Tensor *const *t);
/* Calls fn with the elements [begin, end) in the order of the iterator's dims: row-major. The
   ranges of several threads may share an iterator: it does not change. */
void dm_iter_range(const dm_Iter *it, int64_t begin, int64_t end, dm_RunFn *fn, void *ctx);

#endif
