/* dm.fft: Fourier transforms. There is no complex dtype: complex numbers are pairs in a last
   dim of 2, real part first, which attributes' dims do not count. One kernel, fft_slices,
   transforms every slice along one dim, pairs to pairs, real numbers to half a spectrum or
   back; transforms over several dims are composed of it, and so are their gradients.

   The kernel runs on the host, in the dtype of x; cpu/fft.h has the algorithm. A
   length with small prime factors takes Stockham's transform, which goes factor by factor from
   one buffer to another and needs no bit reversal (Cochran et al. 1967). Any other length
   takes Bluestein's (1970): with k l = (k^2 + l^2 - (k - l)^2) / 2 the transform is a
   convolution with a chirp, done by transforms whose length is a power of 2. */
#include <math.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/fft.h"
#include "cpu/loops/loops.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "op/along.h"
#include "op/shape/create.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* ---- transforms along one dim ---- */

/* Op fft_slices: x float32 or float64, along dim of n points, times scale; (..., n, ..., 2) to
   the same, (..., n, ...) to (..., n / 2 + 1, ..., 2), or back. */
dm_status fft_slices_rule(dm_Call *c) {
  const dm_FftSlicesAttr *a = DM_ATTR(dm_FftSlicesAttr, c);
  const dm_Tensor *x = c->in[0];
  dm_out_like(c, 0, x, (dm_DType)x->dtype);
  if (a->form == DM_FFT_PAIRS) return DM_OK;
  dm_Meta *m = &c->out_meta[0];
  m->shape[a->dim] = a->form == DM_FFT_HALVES ? a->n / 2 + 1 : a->n;
  if (a->form == DM_FFT_REALS) m->ndim--;
  else if (m->ndim == DM_MAX_DIM)
    return dm_fail(DM_EARG, "fft: x has shape %s, wanted at most %d dims", DM_SHAPE(x),
                   DM_MAX_DIM - 1);
  else m->shape[m->ndim++] = 2;
  return DM_OK;
}

/* Slices of x to slices of y, both dense, float64 if wide, else float32. */
typedef struct Slices {
  const dm_Fft *plan;
  dm_Along from, to;      /* in pairs or real numbers */
  int from_size, to_size; /* numbers of one: 2 or 1 */
  dm_FftMove get, put;
  const void *x;
  void *y;
  double ends;
  bool wide;
  int lanes;          /* slices at once */
  atomic_bool failed; /* out of memory */
} Slices;

/* Slices i, i + 1 ...; behind the last one this one again. */
static void move_to(dm_FftMove *m, const dm_Along *a, int size, int64_t i, int64_t end) {
  for (int k = 0; k < DM_FFT_LANES; k++)
    m->at[k] = size * dm_along_at(a, dm_min_i64(i + k, end - 1));
  const bool side_by_side = i + DM_FFT_LANES <= end && i % a->inner + DM_FFT_LANES <= a->inner;
  m->apart = side_by_side ? size : 0;
}

/* Slices begin .. end - 1, l->lanes at once, in a buffer of the thread. */
static void transform_slices(void *ctx, int64_t begin, int64_t end) {
  Slices *l = ctx;
  void *v = dm_scratch(DM_SCRATCH_TASK, dm_fft_size(l->plan, l->lanes));
  if (!v) {
    atomic_store(&l->failed, true);
    return;
  }
  const dm_FftLoops *const loops = &dm_loops()->fft[l->wide];
  dm_FftMove get = l->get, put = l->put;
  for (int64_t i = begin; i < end; i += l->lanes) {
    move_to(&get, &l->from, l->from_size, i, end);
    move_to(&put, &l->to, l->to_size, i, end);
    loops->gather(&get, l->lanes, l->x, v);
    loops->scatter(&put, l->lanes, dm_fft_run(l->plan, l->lanes, l->ends, v), l->y);
  }
}

/* Complex points, or real ones as `points` complex ones of which each is two, or one. */
static dm_FftMove pairs_move(const dm_Along *a, bool exchanged, double re, double im) {
  return (dm_FftMove){.n = a->n,
                      .step = 2 * a->inner,
                      .re = exchanged,
                      .im = !exchanged,
                      .by_re = re,
                      .by_im = im};
}
static dm_FftMove reals_move(const dm_Along *a, int64_t points, double by) {
  const bool two = points < a->n;
  return (dm_FftMove){.n = points,
                      .step = (two ? 2 : 1) * a->inner,
                      .im = two ? a->inner : -1,
                      .by_re = by,
                      .by_im = by};
}

/* How the points are moved. The inverse exchanges the parts of complex points; with real ones
   on the other side their conjugates do. Points that stand for their conjugates, too, are all
   but `ends`, whose factor and scale make up for what the plan does with the others. */
static void plan_moves(Slices *l, const dm_FftSlicesAttr *a) {
  const int64_t points = dm_fft_points(l->plan);
  const double scale = a->scale;
  l->ends = 1;
  if (a->form == DM_FFT_PAIRS) {
    l->get = pairs_move(&l->from, a->inverse, 1, 1);
    l->put = pairs_move(&l->to, a->inverse, scale, scale);
  } else if (a->form == DM_FFT_HALVES) {
    const double by = scale * (a->twice ? 2 : 1) * (points < a->n ? 0.5 : 1);
    l->ends = a->twice ? 0.5 : 1;
    l->get = reals_move(&l->from, points, 1);
    l->put = pairs_move(&l->to, false, by, a->inverse ? -by : by);
  } else {
    l->ends = a->twice ? 1 : 2;
    l->get = pairs_move(&l->from, false, 1, a->inverse ? -1 : 1);
    l->put = reals_move(&l->to, points, a->twice ? scale : scale / 2);
  }
}

/* x and y dense on the host. GRAIN: points that pay for a thread. MOST: points of slices that
   go several at once; longer ones would not stay in the cache. */
static dm_status run_slices(const dm_Call *c, const dm_Tensor *x, dm_Tensor *y) {
  enum { GRAIN = 8192, MOST = 1 << 14 };
  const dm_FftSlicesAttr *a = DM_ATTR(dm_FftSlicesAttr, c);
  if (x->numel == 0 || y->numel == 0) return DM_OK;
  const bool reals = a->form == DM_FFT_HALVES, real = a->form == DM_FFT_REALS;
  Slices l = {.from = dm_along_shape(x->ndim - !reals, x->shape, (int)a->dim),
              .to = dm_along_shape(y->ndim - !real, y->shape, (int)a->dim),
              .from_size = reals ? 1 : 2,
              .to_size = real ? 1 : 2,
              .x = dm_tensor_data(x),
              .y = dm_tensor_data(y),
              .wide = x->dtype == DM_F64};
  const int64_t slices = dm_along_slices(&l.from), n = dm_max_i64(l.from.n, l.to.n);
  dm_Fft *plan = dm_fft_new(reals ? l.from.n : l.to.n, (dm_FftForm)a->form, l.wide);
  l.plan = plan;
  l.lanes = slices > DM_FFT_FEW && n <= MOST ? DM_FFT_LANES : DM_FFT_FEW;
  if (plan) {
    if (l.from.inner == 1 && dm_fft_alone(plan)) l.lanes = 1;
    plan_moves(&l, a);
    dm_parallel_for(slices, dm_max_i64(GRAIN / n / l.lanes, 1) * l.lanes, transform_slices, &l);
  }
  dm_fft_free(plan);
  dm_scratch_trim(DM_SCRATCH_TASK);
  return plan && !atomic_load(&l.failed) ? DM_OK
                                         : dm_fail(DM_EMEM,
                                                   "fft: out of memory for slices of "
                                                   "%lld points",
                                                   (long long)n);
}

dm_status fft_slices_any(dm_Call *c) {
  return dm_run_on_host(c, (dm_DType)c->in[0]->dtype, run_slices);
}

/* The transform is linear, and its matrix symmetric: the adjoint is the other direction, with
   the same scale. Real numbers see the real part of that of half a spectrum, whose points count
   as often as they did. */
void fft_slices_grad(dm_Grad *g) {
  dm_FftSlicesAttr a = *(const dm_FftSlicesAttr *)g->attr;
  a.inverse = !a.inverse;
  if (a.form != DM_FFT_PAIRS) a.form = DM_FFT_HALVES + DM_FFT_REALS - a.form;
  g->gx[0] = dm_x(g->x, DM_OP_fft_slices, &a, 1, g->gy[0]);
}

/* ---- the request ---- */

enum { BACKWARD, ORTHO, FORWARD };

/* Dims (from 0) and points of each, in the order given; -1: as many as there are. */
typedef struct Asked {
  dm_Tensor *t;
  int n, dim[DM_MAX_DIM];
  int64_t points[DM_MAX_DIM], norm;
} Asked;

/* The op's name without "fft_", for messages. */
#define FFT(c) ((c)->op->name + sizeof "fft")

/* t as floats, and how many of its dims count. */
static dm_status open_asked(dm_Call *c, dm_X *x, bool pairs, Asked *a, int *rank) {
  dm_Tensor *t = c->in[0];
  if (dm_kind((dm_DType)t->dtype) < dm_kind(DM_F32)) t = x_cast(x, t, DM_F32);
  DM_TRY(x->st);
  if (t->dtype != DM_F32 && t->dtype != DM_F64)
    return dm_fail(DM_EARG, "fft.%s: x is %s, wanted float32 or float64", FFT(c),
                   dm_dtype_name((dm_DType)t->dtype));
  *rank = t->ndim - pairs;
  if (pairs ? *rank < 1 || t->shape[*rank] != 2 : *rank < 1)
    return dm_fail(DM_EARG, "fft.%s: x has shape %s, wanted %s", FFT(c), DM_SHAPE(t),
                   pairs ? "complex numbers in a last dim of 2" : "one dim or more");
  a->t = t;
  return DM_OK;
}

/* dim counts from 0 or, negative, from the end; points -1: as many as there are. */
static dm_status add_dim(dm_Call *c, Asked *a, int rank, int64_t dim, int64_t points) {
  if (dim < -rank || dim >= rank)
    return dm_fail(DM_EARG, "fft.%s: dim %lld is out of range: x has %d dims%s", FFT(c),
                   (long long)(dim < 0 ? dim : dim + c->base), rank,
                   rank < a->t->ndim ? " of complex numbers" : "");
  const int d = (int)(dim < 0 ? dim + rank : dim);
  for (int i = 0; i < a->n; i++)
    if (a->dim[i] == d)
      return dm_fail(DM_EARG, "fft.%s: dim %d is given twice", FFT(c), d + c->base);
  if (points < 1 && points != -1)
    return dm_fail(DM_EARG, "fft.%s: %lld points, wanted 1 or more", FFT(c), (long long)points);
  a->dim[a->n] = d;
  a->points[a->n++] = points;
  return DM_OK;
}

/* Of a transform over one dim: n points, dim, norm. */
static dm_status one_dim(dm_Call *c, dm_X *x, bool pairs, Asked *a) {
  const dm_FftAttr *at = c->attr;
  int rank = 0;
  *a = (Asked){.norm = at->norm};
  DM_TRY(open_asked(c, x, pairs, a, &rank));
  return add_dim(c, a, rank, at->dim, at->n);
}

/* planes: the last two dims where none are given, else all, or the last ones that s names. An
   empty s, a last table without options, says nothing. */
static dm_status some_dims(dm_Call *c, dm_X *x, bool pairs, bool planes, Asked *a) {
  const dm_FftsAttr *at = c->attr;
  int rank = 0;
  *a = (Asked){.norm = at->norm};
  DM_TRY(open_asked(c, x, pairs, a, &rank));
  const int64_t given = at->dim.n, named = at->s.n == 0 ? -1 : at->s.n;
  const int64_t n = given >= 0 ? given : planes ? 2 : named >= 0 ? named : rank;
  if ((named >= 0 && named != n) || n < 1)
    return dm_fail(DM_EARG, "fft.%s: %lld sizes for %lld dims", FFT(c), (long long)named,
                   (long long)n);
  for (int64_t i = 0; i < n; i++)
    DM_TRY(
        add_dim(c, a, rank, given >= 0 ? at->dim.v[i] : i - n, named >= 0 ? at->s.v[i] : -1));
  return DM_OK;
}

/* ---- steps ---- */

static dm_Tensor *x_narrow(dm_X *x, dm_Tensor *t, int64_t dim, int64_t start, int64_t n) {
  return dm_x(x, DM_OP_narrow, &(int64_t[3]){dim, start, n}, 1, t);
}
static dm_Tensor *x_cat(dm_X *x, dm_Tensor *a, dm_Tensor *b, int64_t dim) {
  return dm_x(x, DM_OP_cat, &dim, 2, a, b);
}

/* n elements along dim: the first ones, or zeros behind those that are there. */
static dm_Tensor *fitted(dm_X *x, dm_Tensor *t, int dim, int64_t n) {
  if (x->st != DM_OK || n < 0 || n == t->shape[dim]) return t;
  if (n < t->shape[dim]) return x_narrow(x, t, dim, 0, n);
  int64_t shape[DM_MAX_DIM];
  for (int d = 0; d < t->ndim; d++) shape[d] = d == dim ? n - t->shape[d] : t->shape[d];
  return x_cat(x, t, x_zeros(x, t->ndim, shape, t), dim);
}

/* One dim of t transformed, of n points in the tensor that has all. norm: backward scales the
   inverse by 1 / n, forward the transform, ortho both by 1 / sqrt(n). */
static dm_Tensor *slices(dm_X *x, const Asked *a, dm_Tensor *t, int dim, int64_t n,
                         bool inverse, dm_FftForm form) {
  if (x->st != DM_OK) return NULL;
  if (n < 1) {
    x->st = dm_fail(DM_EARG, "fft: 0 points, wanted 1 or more");
    return NULL;
  }
  const bool divides = a->norm == (inverse ? BACKWARD : FORWARD);
  const dm_FftSlicesAttr attr = {.dim = dim,
                                 .inverse = inverse,
                                 .scale = a->norm == ORTHO ? 1 / sqrt((double)n)
                                          : divides        ? 1 / (double)n
                                                           : 1,
                                 .form = form,
                                 .n = n,
                                 .twice = form == DM_FFT_REALS};
  return dm_x(x, DM_OP_fft_slices, &attr, 1, t);
}

/* Pairs along the dims asked for, without the last `but` of them. */
static dm_Tensor *transformed(dm_X *x, const Asked *a, dm_Tensor *t, int but, bool inverse) {
  for (int i = a->n - but - 1; i >= 0 && x->st == DM_OK; i--) {
    t = fitted(x, t, a->dim[i], a->points[i]);
    if (t) t = slices(x, a, t, a->dim[i], t->shape[a->dim[i]], inverse, DM_FFT_PAIRS);
  }
  return t;
}

/* fft, ifft and theirs of more dims: pairs to pairs. */
static dm_status complex_to_complex(dm_Call *c, dm_X *x, const Asked *a, bool inverse) {
  c->out[0] = transformed(x, a, a->t, 0, inverse);
  return x->st;
}

/* n real points to n / 2 + 1 pairs: the others would be conjugates of these. ihfft, ihfft2 and
   ihfftn are the inverse. */
static dm_status real_to_complex(dm_Call *c, dm_X *x, const Asked *a, bool inverse) {
  const int last = a->dim[a->n - 1];
  dm_Tensor *t = fitted(x, a->t, last, a->points[a->n - 1]);
  if (t) t = slices(x, a, t, last, t->shape[last], inverse, DM_FFT_HALVES);
  c->out[0] = transformed(x, a, t, 1, inverse);
  return x->st;
}

/* n real points from the first half of their spectrum, n / 2 + 1 pairs: the others are the
   conjugates in reverse. hfft, hfft2 and hfftn are not the inverse. */
static dm_status complex_to_real(dm_Call *c, dm_X *x, const Asked *a, bool inverse) {
  const int last = a->dim[a->n - 1];
  const int64_t given = a->points[a->n - 1],
                n = given < 0 ? 2 * (a->t->shape[last] - 1) : given;
  if (n < 1)
    return dm_fail(DM_EARG, "fft.%s: %lld points, wanted 1 or more; hint: n says how many",
                   FFT(c), (long long)n);
  dm_Tensor *t = fitted(x, transformed(x, a, a->t, 1, inverse), last, n / 2 + 1);
  c->out[0] = slices(x, a, t, last, n, inverse, DM_FFT_REALS);
  return x->st;
}

/* ---- the ops: COMPLEX, whether x holds pairs; PLANES, whether two dims are the default ----
 */

#define ONE(NAME, COMPLEX, ...)                         \
  dm_status fft_##NAME##_compose(dm_Call *c, dm_X *x) { \
    Asked a;                                            \
    DM_TRY(one_dim(c, x, COMPLEX, &a));                 \
    return __VA_ARGS__;                                 \
  }
#define SOME(NAME, COMPLEX, PLANES, ...)                \
  dm_status fft_##NAME##_compose(dm_Call *c, dm_X *x) { \
    Asked a;                                            \
    DM_TRY(some_dims(c, x, COMPLEX, PLANES, &a));       \
    return __VA_ARGS__;                                 \
  }
ONE(fft, true, complex_to_complex(c, x, &a, false))
ONE(ifft, true, complex_to_complex(c, x, &a, true))
ONE(rfft, false, real_to_complex(c, x, &a, false))
ONE(irfft, true, complex_to_real(c, x, &a, true))
SOME(fft2, true, true, complex_to_complex(c, x, &a, false))
SOME(ifft2, true, true, complex_to_complex(c, x, &a, true))
SOME(rfft2, false, true, real_to_complex(c, x, &a, false))
SOME(irfft2, true, true, complex_to_real(c, x, &a, true))
SOME(fftn, true, false, complex_to_complex(c, x, &a, false))
SOME(ifftn, true, false, complex_to_complex(c, x, &a, true))
SOME(rfftn, false, false, real_to_complex(c, x, &a, false))
SOME(irfftn, true, false, complex_to_real(c, x, &a, true))
ONE(hfft, true, complex_to_real(c, x, &a, false))
ONE(ihfft, false, real_to_complex(c, x, &a, true))
SOME(hfft2, true, true, complex_to_real(c, x, &a, false))
SOME(ihfft2, false, true, real_to_complex(c, x, &a, true))
SOME(hfftn, true, false, complex_to_real(c, x, &a, false))
SOME(ihfftn, false, false, real_to_complex(c, x, &a, true))

/* complex(real, imag): pairs of two float tensors, broadcast together. */
dm_status complex_compose(dm_Call *c, dm_X *x) {
  DM_TRY(dm_check_float(c, c->in[0], "real"));
  if (c->in[0]->dtype != c->in[1]->dtype)
    return dm_fail(DM_EARG, "complex: real is %s and imag is %s, wanted one dtype",
                   dm_dtype_name((dm_DType)c->in[0]->dtype),
                   dm_dtype_name((dm_DType)c->in[1]->dtype));
  int64_t shape[DM_MAX_DIM];
  int ndim;
  DM_TRY(dm_broadcast("complex", c->in[0], c->in[1], &ndim, shape));
  c->out[0] = dm_x(x, DM_OP_stack, &(int64_t){-1}, 2, x_expand(x, c->in[0], ndim, shape),
                   x_expand(x, c->in[1], ndim, shape));
  return x->st;
}
