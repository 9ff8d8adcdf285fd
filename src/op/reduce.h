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
#include "engine/op.h"

/* The running state of one output; what a, b, i and k hold is the fold's. */
typedef struct dm_Acc {
  double a, b;
  int64_t i, k;
} dm_Acc;

/* Folds n elements, of which the first has index `at` among the reduced. */
typedef void dm_FoldF32(dm_Acc *s, const float *v, int64_t n, int64_t at, double param);
typedef void dm_FoldF64(dm_Acc *s, const double *v, int64_t n, int64_t at, double param);
typedef void dm_FoldI64(dm_Acc *s, const int64_t *v, int64_t n, int64_t at, double param);

typedef struct dm_Fold {
  dm_Acc start;
  dm_FoldF32 *f32;
  dm_FoldF64 *f64;
  dm_FoldI64 *i64; /* integers and bool; NULL: not for them */
  void (*merge)(dm_Acc *s, const dm_Acc *later);
  double (*value)(const dm_Acc *s, double param, int64_t n); /* NULL: s->i */
  bool plain_sum; /* float32 columns may be added up side by side */
} dm_Fold;

/* Reduces x over the dims set in `mask`: out[0] the value, out[1] (or NULL)
   the fold's k as int64, plus base. compute: the type that x is read as. */
dm_status dm_reduce(dm_Tensor *const *out, const dm_Tensor *x, unsigned mask, dm_DType compute,
                    const dm_Fold *fold, double param, int base);

/* The bits of `dims` of t; none given or an empty list: every dim. */
dm_status dm_dims_mask(const dm_Call *c, const dm_Tensor *t, dm_Ints dims, unsigned *mask);
/* The same for dims that a rule has checked. */
unsigned dm_dims_bits(int ndim, dm_Ints dims);
/* Output i: t without the dims in mask, or with them as size 1. */
void dm_out_reduced(dm_Call *c, int i, const dm_Tensor *t, unsigned mask, bool keepdim,
                    dm_DType dtype);
/* r, reduced from shape m, brought to m's rank with size 1 in the mask's dims. */
dm_Tensor *x_keepdim(dm_X *x, dm_Tensor *r, const dm_Meta *m, unsigned mask);
/* As dm_x, but gives every output; false after a failure. */
bool x_call(dm_X *x, int op, const void *attr, int n_in, dm_Tensor *const *in, dm_Tensor **out);

#endif
