/* How a reduction runs. The dims of x are divided into kept dims, which form the
   output, and reduced dims. Each output element is the reduction of its slice of
   reduced elements, taken in row-major order in blocks of the compute type. There are
   two traversals, which give the same blocks and the same bits: by rows, when the
   reduced elements of one output are close together in memory, and by tiles of
   neighbouring outputs, when the kept elements are (a bias gradient: sum of (N, C) over
   N) or when an output has but a few elements. A long reduction with few outputs is split into
   chunks of a fixed size whose states are merged in order, so that the result does not depend
   on the number of threads. */
#ifndef DM_REDUCE_H
#define DM_REDUCE_H

#include "core/iter.h"
#include "cpu/loops/block.h"
#include "cpu/loops/reduce.h"
#include "engine/op.h"

/* One reduction: the state of an output without elements, the functions that join
   elements of each compute type, the merge of two parts (s precedes later), and the
   final value. */
typedef struct dm_Reduction {
  dm_Acc start;
  int loop; /* DM_REDUCE_OWN: f32 and f64 below are used */
  dm_ReduceF32 *f32;
  dm_ReduceF64 *f64;
  void (*merge)(dm_Acc *s, const dm_Acc *later);
  double (*value)(const dm_Acc *s, double param, int64_t n); /* NULL: the value is s->i */
  bool plain; /* a sum of floats, whose value is s->a as it is */
} dm_Reduction;

/* The number that var and std take from n; 0 where unbiased is switched off. */
static inline double dm_correction(const dm_VarAttr *a) {
  return a->unbiased ? a->correction : 0;
}

/* The number of rows that the traversal by tiles adds up in the compute type before the
   sums go on in float64. */
enum { DM_REDUCE_ROWS = 64 };

/* Reduces x over the dims set in `mask`. out[0] receives the value; out[1], when it is
   not NULL, receives the state's k plus base as int64. x is read as the `compute` type.
   `param` is passed on to the reduction. */
dm_status dm_reduce(dm_Tensor *const *out, const dm_Tensor *x, unsigned mask, dm_DType compute,
                    const dm_Reduction *reduction, double param, int base);

enum { DM_SOURCE_IN = 3 }; /* most operands of a source */
/* Elements that a formula computes from n operands as they are reduced; each is broadcast to
   the shape of the first one. */
typedef struct dm_Source {
  const dm_Pointwise *formula;
  int n;
  dm_Tensor *const *in;
  double pq[2];
} dm_Source;
/* dm_reduce of such elements; `compute` is a float. All elements, or rows, of contiguous
   operands give the bits of a tensor of them. */
dm_status dm_reduce_source(dm_Tensor *const *out, const dm_Source *source, unsigned mask,
                           dm_DType compute, const dm_Reduction *reduction, double param);

/* logsumexp over dim d of c's x, in blocks of neighbouring slices. False, and nothing is done:
   it does not lie so. */
bool dm_log_sums(dm_Call *c, int d, dm_status *st);

/* out = the mean of x, which is of floats, over the dims in `mask`. */
dm_status dm_mean(dm_Tensor *out, const dm_Tensor *x, unsigned mask);

/* Checks `dims` of t and sets their bits in *mask; no dims or an empty list mean every
   dim. */
dm_status dm_dims_mask(const dm_Call *c, const dm_Tensor *t, const dm_Ints *dims,
                       unsigned *mask);
/* The same without checks, for dims that a rule has checked. */
static inline unsigned dm_dims_bits(int ndim, dm_Ints dims) {
  const int n = ndim > 0 ? ndim : 1;
  unsigned mask = 0;
  if (dims.n <= 0) return (1u << n) - 1u;
  for (int64_t i = 0; i < dims.n; i++)
    mask |= 1u << (dims.v[i] < 0 ? dims.v[i] + n : dims.v[i]);
  return mask;
}
/* The dims of t along which a tensor of this size was repeated by broadcasting, as
   bits. */
static inline unsigned dm_repeated_bits(const dm_Tensor *t, const dm_Ints *size) {
  const int lead = t->ndim - (int)size->n;
  unsigned mask = 0;
  for (int d = 0; d < t->ndim; d++)
    if (d < lead || (size->v[d - lead] == 1 && t->shape[d] != 1)) mask |= 1u << d;
  return mask;
}
/* Sets the meta of output i to t without the dims in mask (keepdim: with them as size
   1). */
void dm_out_reduced(dm_Call *c, int i, const dm_Tensor *t, unsigned mask, bool keepdim,
                    dm_DType dtype);
/* out (C) = the sum of x (N, C) over dim 0, if x is one of few elements; false: nothing is
 * done. */
bool dm_sum_few_rows(const dm_Tensor *x, dm_Tensor *out);
/* r, reduced from shape m, reshaped to m's rank with size 1 in the dims of mask. */
dm_Tensor *x_keepdim(dm_X *x, dm_Tensor *r, const dm_Meta *m, unsigned mask);
/* Calls an op as dm_x does but returns all its outputs in `out`, which x owns. False
   after a failure. */
bool x_call(dm_X *x, int op, const void *attr, int n_in, dm_Tensor *const *in, dm_Tensor **out);

#endif
