/* How a reduction runs. The dims of x are parted into kept ones, which make
   the output, and reduced ones. An output element is the fold of its reduced
   elements, in row-major order, taken in blocks of the compute type. Two walks
   give the same blocks: along rows when the reduced elements lie close, or in
   tiles of neighbouring outputs when the kept ones do (a bias gradient). A
   long reduction with few outputs is cut in chunks of a fixed size, so the
   result does not depend on the number of threads. */
#ifndef DM_REDUCE_H
#define DM_REDUCE_H

#include "core/iter.h"
#include "cpu/loops/reduce.h"
#include "engine/op.h"

/* sum, mean, prod */
typedef struct dm_SumAttr {
  dm_Ints dims;
  int64_t keepdim, dtype;
} dm_SumAttr;
typedef struct dm_VarAttr {
  dm_Ints dims;
  double correction;
  int64_t keepdim;
} dm_VarAttr;
typedef struct dm_NormAttr {
  double p;
  dm_Ints dims;
  int64_t keepdim, dtype;
} dm_NormAttr;
/* logsumexp, amax, amin, any, all */
typedef struct dm_DimsAttr {
  dm_Ints dims;
  int64_t keepdim;
} dm_DimsAttr;
/* max, min, argmax, argmin */
typedef struct dm_DimAttr {
  dm_OptInt dim;
  int64_t keepdim;
} dm_DimAttr;

typedef struct dm_Reduction {
  dm_Acc start;
  int loop; /* DM_FOLD_OWN: f32 and f64 are given */
  dm_ReduceF32 *f32;
  dm_ReduceF64 *f64;
  dm_ReduceI64 *i64; /* integers and bool; NULL: not for them */
  void (*merge)(dm_Acc *s, const dm_Acc *later);
  double (*value)(const dm_Acc *s, double param, int64_t n); /* NULL: s->i */
} dm_Reduction;

/* Rows that a walk in tiles adds up before the sums go on in float64. */
enum { DM_FOLD_ROWS = 64 };

/* Reduces x over the dims set in `mask`: out[0] the value, out[1] (or NULL)
   the fold's k as int64, plus base. compute: the type that x is read as. */
dm_status dm_reduce(dm_Tensor *const *out, const dm_Tensor *x, unsigned mask, dm_DType compute,
                    const dm_Reduction *fold, double param, int base);

/* The bits of `dims` of t; none given or an empty list: every dim. */
dm_status dm_dims_mask(const dm_Call *c, const dm_Tensor *t, dm_Ints dims, unsigned *mask);
/* The same for dims that a rule has checked. */
static inline unsigned dm_dims_bits(int ndim, dm_Ints dims) {
  const int n = ndim > 0 ? ndim : 1;
  unsigned mask = 0;
  if (dims.n <= 0) return (1u << n) - 1u;
  for (int64_t i = 0; i < dims.n; i++)
    mask |= 1u << (dims.v[i] < 0 ? dims.v[i] + n : dims.v[i]);
  return mask;
}
/* The dims of t along which a tensor of this size was repeated. */
static inline unsigned dm_repeated_bits(const dm_Tensor *t, const dm_Ints *size) {
  const int lead = t->ndim - (int)size->n;
  unsigned mask = 0;
  for (int d = 0; d < t->ndim; d++)
    if (d < lead || (size->v[d - lead] == 1 && t->shape[d] != 1)) mask |= 1u << d;
  return mask;
}
/* Output i: t without the dims in mask, or with them as size 1. */
void dm_out_reduced(dm_Call *c, int i, const dm_Tensor *t, unsigned mask, bool keepdim,
                    dm_DType dtype);
/* r, reduced from shape m, brought to m's rank with size 1 in the mask's dims. */
dm_Tensor *x_keepdim(dm_X *x, dm_Tensor *r, const dm_Meta *m, unsigned mask);
/* As dm_x, but gives every output; false after a failure. */
bool x_call(dm_X *x, int op, const void *attr, int n_in, dm_Tensor *const *in, dm_Tensor **out);

#endif
