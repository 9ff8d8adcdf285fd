/* Attributes of layer_norm, group_norm and batch_norm, for the kernels of every device,
   and the checks that all norms make. */
#ifndef DM_NORM_H
#define DM_NORM_H

#include "engine/op.h"

/* Checks, which fail with a message that names the op. dm_check_affine: t, if it is
   given, has n elements of a float dtype. dm_check_ends_in: x is a float tensor whose
   last sizes are `shape`. dm_check_channels: x is a float tensor with a batch dim and
   channels. dm_check_running: the statistics that training writes have one dim and no
   element shared by two channels. */
dm_status dm_check_affine(const dm_Call *c, const char *name, const dm_Tensor *t, int64_t n);
dm_status dm_check_ends_in(const dm_Call *c, const dm_Tensor *x, const dm_Ints *shape);
dm_status dm_check_channels(const dm_Call *c, const dm_Tensor *x);
dm_status dm_check_running(const dm_Call *c, const char *name, const dm_Tensor *t);

/* layer_norm and group_norm as one kernel: x is (outer, channels, inner), and each
   group of channels of one `outer` is a row. layer_norm has one group, and channels of
   one element. */
/* The rows of layer_norm for x of meta m, and below those of group_norm for x (N, C,
   L). */
static inline dm_RowNormBackwardAttr dm_layer_rows(const dm_Meta *m,
                                                   const dm_LayerNormAttr *a) {
  const dm_RowNormBackwardAttr r = {dm_numel(m->ndim - (int)a->normalized_shape.n, m->shape), 1,
                                    1, a->eps};
  return r;
}
static inline dm_RowNormBackwardAttr dm_group_rows(const dm_Meta *m,
                                                   const dm_GroupNormAttr *a) {
  const dm_RowNormBackwardAttr r = {m->shape[0], a->num_groups,
                                    dm_numel(m->ndim - 2, m->shape + 2), a->eps};
  return r;
}

#endif
