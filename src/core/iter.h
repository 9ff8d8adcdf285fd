/* Walks strided operands of one shape together: neighbouring dims that lie
   densely in every operand are merged, and the innermost is handed out as runs. */
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

/* The shape is t[0]'s; the others broadcast to it. */
void dm_iter_init(dm_Iter *it, int n, dm_Tensor *const *t);
/* The elements [begin, end) in row-major order, as runs. */
void dm_iter_range(const dm_Iter *it, int64_t begin, int64_t end, dm_RunFn *fn, void *ctx);

#endif
