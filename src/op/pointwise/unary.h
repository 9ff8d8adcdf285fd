/* Shared by the kernels of the pointwise ops of one operand on every device. */
#ifndef DM_UNARY_H
#define DM_UNARY_H

#include "engine/op.h"

/* Op unary_backward: gy times the derivative of `op`, an op of a UNARY row. */
typedef struct dm_UnaryBackwardAttr {
  int64_t op;
  double p, q; /* that op's attributes */
} dm_UnaryBackwardAttr;

/* The row's attributes as p and q, whatever their kind. */
static inline void dm_unary_params(const dm_Signature *g, const void *attr, double pq[2]) {
  for (int i = 0; i < 2; i++) {
    const char *at = i < g->n_attr ? (const char *)attr + g->attr[i].offset : NULL;
    pq[i] = !at                        ? 0
            : g->attr[i].kind == A_NUM ? *(const double *)(const void *)at
                                       : (double)*(const int64_t *)(const void *)at;
  }
}

#endif
