/* The formula of base/pair.inc that a call of a pointwise op of two operands means, for the
   kernels of every device. */
#ifndef DM_BINARY_H
#define DM_BINARY_H

#include "base/pair.h"
#include "engine/op.h"

enum { DM_ROUND_NONE, DM_ROUND_TRUNC, DM_ROUND_FLOOR };

/* The formula of a call, by its op, its attribute and, for nextafter, the dtype. */
static inline int dm_pair_of(const dm_Call *c) {
  const int id = (int)dm_op_id(c->op);
  if (id == DM_OP_add && DM_ATTR(dm_AlphaAttr, c)->alpha != 1.0) return DM_OP_add_scaled;
  if (id == DM_OP_sub && DM_ATTR(dm_AlphaAttr, c)->alpha != 1.0) return DM_OP_sub_scaled;
  if (id == DM_OP_div && DM_ATTR(dm_DivAttr, c)->rounding_mode != DM_ROUND_NONE)
    return DM_ATTR(dm_DivAttr, c)->rounding_mode == DM_ROUND_TRUNC ? DM_OP_div_trunc
                                                                   : DM_OP_div_floor;
  if (id != DM_OP_nextafter) return id;
#define ROW(X, E, S, ...) \
  case DM_##E: return DM_OP_nextafter_##S;
  switch (dm_result_dtype(2, c->in)) {
    DM_LOW_DTYPES(ROW, )
  default: return id;
  }
#undef ROW
}
/* alpha of add and sub, or 0 */
static inline double dm_pair_param(const dm_Call *c) {
  const int id = (int)dm_op_id(c->op);
  return id == DM_OP_add || id == DM_OP_sub ? DM_ATTR(dm_AlphaAttr, c)->alpha : 0;
}

#endif
