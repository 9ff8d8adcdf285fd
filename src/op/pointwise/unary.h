/* Shared by the kernels of the pointwise ops of one operand on every device. */
#ifndef DM_UNARY_H
#define DM_UNARY_H

#include "engine/op.h"

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
