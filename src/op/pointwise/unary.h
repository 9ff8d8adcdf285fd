/* Shared by the kernels of the pointwise ops of one operand on every device. */
#ifndef DM_UNARY_H
#define DM_UNARY_H

#include "engine/call.h"

/* The row's attributes as p and q, whatever their kind. */
static inline void dm_unary_params(const dm_Signature *g, const void *attr, double pq[2]) {
  for (int i = 0; i < 2; i++) {
    const char *at = i < g->n_attr ? (const char *)attr + g->attr[i].offset : NULL;
    pq[i] = !at                        ? 0
            : g->attr[i].kind == A_NUM ? *(const double *)(const void *)at
                                       : (double)*(const int64_t *)(const void *)at;
  }
}

/* out = the op `id` of one operand, whose first attribute is p, of in; they may be the
   same. Floats. */
dm_status dm_unary_into(dm_Tensor *out, dm_OpId id, double p, dm_Tensor *in);
/* Its gradient, from the one of x and y that its row saves; pq: its attributes. */
dm_Tensor *x_unary_back(dm_X *x, dm_OpId id, const double pq[2], dm_Tensor *gy,
                        dm_Tensor *saved, bool create_graph);

#endif
