/* What layer_norm, group_norm and batch_norm are told, for the kernels of every
   device. */
#ifndef DM_NORM_H
#define DM_NORM_H

#include "engine/op.h"

typedef struct dm_LayerNormAttr {
  dm_Ints shape;
  double eps;
} dm_LayerNormAttr;
typedef struct dm_GroupNormAttr {
  int64_t n;
  double eps;
} dm_GroupNormAttr;

/* Both as rows: x is (outer, channels, inner), of which each group of channels is a
   row; layer_norm has one group and channels of one element. */
typedef struct dm_RowNormAttr {
  int64_t outer, groups, inner;
  double eps;
} dm_RowNormAttr;

static inline dm_RowNormAttr dm_layer_rows(const dm_Meta *m, const dm_LayerNormAttr *a) {
  const dm_RowNormAttr r = {dm_numel(m->ndim - (int)a->shape.n, m->shape), 1, 1, a->eps};
  return r;
}
static inline dm_RowNormAttr dm_group_rows(const dm_Meta *m, const dm_GroupNormAttr *a) {
  const dm_RowNormAttr r = {m->shape[0], a->n, dm_numel(m->ndim - 2, m->shape + 2), a->eps};
  return r;
}

#endif
