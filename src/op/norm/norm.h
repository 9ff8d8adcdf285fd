/* What layer_norm, group_norm and batch_norm are told, for the kernels of every
   device; and what all norms ask of their operands. */
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

/* Of batch_norm; instance_norm's use_input_stats is what training is. */
typedef struct dm_BatchNormAttr {
  int64_t training;
  double momentum, eps;
} dm_BatchNormAttr;

/* They fail, by the op's name: unless t, if there is one, is n floats; unless x is floats
   whose last sizes are these; unless x has a batch and channels; unless each channel of
   statistics that training writes has a tensor of its own. */
dm_status dm_check_affine(const dm_Call *c, const char *name, const dm_Tensor *t, int64_t n);
dm_status dm_check_ends_in(const dm_Call *c, const dm_Tensor *x, const dm_Ints *shape);
dm_status dm_check_channels(const dm_Call *c, const dm_Tensor *x);
dm_status dm_check_running(const dm_Call *c, const char *name, const dm_Tensor *t);

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
