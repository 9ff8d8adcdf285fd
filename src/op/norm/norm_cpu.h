/* What layer_norm, group_norm and batch_norm share on the CPU and in their gradients. */
#ifndef DM_NORM_CPU_H
#define DM_NORM_CPU_H

#include "cpu/loops/loops.h"
#include "engine/op.h"

/* The loops of a compute type, float32 or float64. */
static inline const dm_RealLoops *dm_norm_loops(dm_DType compute) {
  return compute == DM_F64 ? &dm_loops()->f64 : &dm_loops()->f32;
}

static inline dm_DType dm_compute_of(const dm_Meta *m) {
  return dm_compute_dtype((dm_DType)m->dtype);
}

/* *out: t's n elements as a contiguous array of the compute type. *own is that array when it
   had to be allocated, else NULL; without t all elements are `otherwise`. */
dm_status dm_norm_affine(dm_Tensor *t, int64_t n, dm_DType compute, double otherwise,
                         void **own, const void **out);

/* Metas of three outputs: one like x and two vectors (n) of the compute type. */
dm_status dm_norm_metas(dm_Call *c, const dm_Tensor *x, int64_t n);

/* dx as a composition, for v whose moments are taken over `dims`: rstd (gh - mean(gh) -
   xhat mean(gh xhat)). *xhat receives the normalized v. */
dm_Tensor *x_norm_back(dm_X *x, dm_Tensor *gh, dm_Tensor *v, dm_Ints dims, double eps,
                       dm_Tensor **xhat);

#endif
