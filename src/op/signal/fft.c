/* dm.fft: Fourier transforms. There is no complex dtype: complex numbers are pairs in a last
   dim of 2, real part first, which attributes' dims do not count. One kernel, fft_slices,
   transforms every slice of pairs along one dim; transforms of real numbers and over several
   dims are composed of it, and so are their gradients.

   The kernel runs on the host, in float64, and rounds once; cpu/fft.h has the algorithm. A
   length with small prime factors takes Stockham's transform, which goes factor by factor from
   one buffer to another and needs no bit reversal (Cochran et al. 1967). Any other length
   takes Bluestein's (1970): with k l = (k^2 + l^2 - (k - l)^2) / 2 the transform is a
   convolution with a chirp, done by transforms whose length is a power of 2. */
#include <math.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/fft.h"
#include "cpu/scratch.h"
#include "cpu/threads.h"
#include "op/along.h"
#include "op/shape/create.h"
#include "op/index/index.h"
#include "op/pointwise/pointwise.h"

/* ---- transforms along one dim ---- */

/* Op fft_slices: x (..., 2) float32 or float64, along dim, times scale. */
dm_status fft_slices_rule(dm_Call *c) {
  dm_out_like(c, 0, c->in[0], (dm_DType)c->in[0]->dtype);
  return DM_OK;
}

/* Slices of n pairs along a dim of x, to y; both dense, float64 if wide, else float32. */
typedef struct Slices {
  const dm_Fft *plan;
  dm_Along along; /* in pairs */
  const void *x;
  void *y;
  bool wide, inverse;
  double scale;
  int lanes;          /* slices at once */
  atomic_bool failed; /* out of memory */
} Slices;

/* Slices i .. i + lanes - 1 are gathered as float64, point by point the real parts and then the
   imaginary ones, and scattered. */
#define MOVES(SUFFIX, TYPE)                                                              \
  static void gather_##SUFFIX(const Slices *l, int64_t i, int lanes, double *v) {        \
    const int64_t n = l->along.n, step = 2 * l->along.inner;                             \
    for (int k = 0; k < lanes; k++) {                                                    \
      const TYPE *x = (const TYPE *)l->x + 2 * dm_along_at(&l->along, i + k);            \
      for (int64_t j = 0; j < n; j++, x += step) {                                       \
        v[2 * j * lanes + k] = (double)x[0];                                             \
        v[(2 * j + 1) * lanes + k] = (double)x[1];                                       \
      }                                                                                  \
    }                                                                                    \
  }                                                                                      \
  static void scatter_##SUFFIX(const Slices *l, int64_t i, int lanes, const double *v) { \
    const int64_t n = l->along.n, step = 2 * l->along.inner;                             \
    for (int k = 0; k < lanes; k++) {                                                    \
      TYPE *y = (TYPE *)l->y + 2 * dm_along_at(&l->along, i + k);                        \
      for (int64_t j = 0; j < n; j++, y += step) {                                       \
        y[0] = (TYPE)(v[2 * j * lanes + k] * l->scale);                                  \
        y[1] = (TYPE)(v[(2 * j + 1) * lanes + k] * l->scale);                            \
      }                                                                                  \
    }                                                                                    \
  }
MOVES(f32, float)
MOVES(f64, double)
#undef MOVES

/* Slices begin .. end - 1, l->lanes at once and the last ones each by itself, in a buffer of
   the thread. */
static void transform_slices(void *ctx, int64_t begin, int64_t end) {
  Slices *l = ctx;
  const int64_t n = 2 * l->along.n;
  const int most = l->lanes;
  double *v =
      dm_scratch(DM_SCRATCH_TASK, most * (int64_t)sizeof *v * (n + dm_fft_work_size(l->plan)));
  if (!v) {
    atomic_store(&l->failed, true);
    return;
  }
  for (int64_t i = begin; i < end;) {
    const int lanes = end - i < most ? 1 : most;
    if (l->wide) gather_f64(l, i, lanes, v);
    else gather_f32(l, i, lanes, v);
    dm_fft_run(l->plan, lanes, v, l->inverse, v + n * lanes);
    if (l->wide) scatter_f64(l, i, lanes, v);
    else scatter_f32(l, i, lanes, v);
    i += lanes;
  }
}

/* x and y dense on the host. GRAIN: points that pay for a thread. MOST: points of slices that
   go several at once; longer ones would not stay in the cache. */
static dm_status run_slices(const dm_Call *c, const dm_Tensor *x, dm_Tensor *y) {
  enum { GRAIN = 8192, MOST = 1 << 14 };
  const dm_FftSlicesAttr *a = DM_ATTR(dm_FftSlicesAttr, c);
  Slices l = {.along = dm_along_shape(x->ndim - 1, x->shape, (int)a->dim),
              .x = dm_tensor_data(x),
              .y = dm_tensor_data(y),
              .wide = x->dtype == DM_F64,
              .inverse = a->inverse,
              .scale = a->scale};
  if (x->numel == 0) return DM_OK;
  dm_Fft *plan = dm_fft_new(l.along.n);
  const int64_t slices = dm_along_slices(&l.along);
  l.plan = plan;
  l.lanes = slices >= DM_FFT_LANES && l.along.n <= MOST ? DM_FFT_LANES : 1;
  if (plan)
    dm_parallel_for(slices, dm_max_i64(GRAIN / l.along.n / l.lanes, 1) * l.lanes,
                    transform_slices, &l);
  dm_fft_free(plan);
  dm_scratch_trim(DM_SCRATCH_TASK);
  return plan && !atomic_load(&l.failed) ? DM_OK
                                         : dm_fail(DM_EMEM,
                                                   "fft: out of memory for slices of "
                                                   "%lld points",
                                                   (long long)l.along.n);
}

dm_status fft_slices_any(dm_Call *c) {
  return dm_run_on_host(c, (dm_DType)c->in[0]->dtype, run_slices);
}

/* The transform is linear, and its matrix symmetric: the adjoint is the other direction, with
   the same scale. */
void fft_slices_grad(dm_Grad *g) {
  dm_FftSlicesAttr a = *(const dm_FftSlicesAttr *)g->attr;
  a.inverse = !a.inverse;
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
static dm_status open_asked(dm_Call *c, dm_X *x, bool complex, Asked *a, int *rank) {
  dm_Tensor *t = c->in[0];
  if (dm_kind((dm_DType)t->dtype) < dm_kind(DM_F32)) t = x_cast(x, t, DM_F32);
  DM_TRY(x->st);
  if (t->dtype != DM_F32 && t->dtype != DM_F64)
    return dm_fail(DM_EARG, "fft.%s: x is %s, wanted float32 or float64", FFT(c),
                   dm_dtype_name((dm_DType)t->dtype));
  *rank = t->ndim - complex;
  if (complex ? *rank < 1 || t->shape[*rank] != 2 : *rank < 1)
    return dm_fail(DM_EARG, "fft.%s: x has shape %s, wanted %s", FFT(c), DM_SHAPE(t),
                   complex ? "complex numbers in a last dim of 2" : "one dim or more");
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
static dm_status one_dim(dm_Call *c, dm_X *x, bool complex, Asked *a) {
  const dm_FftAttr *at = c->attr;
  int rank = 0;
  *a = (Asked){.norm = at->norm};
  DM_TRY(open_asked(c, x, complex, a, &rank));
  return add_dim(c, a, rank, at->dim, at->n);
}

/* planes: the last two dims where none are given, else all, or the last ones that s names. */
static dm_status some_dims(dm_Call *c, dm_X *x, bool complex, bool planes, Asked *a) {
  const dm_FftsAttr *at = c->attr;
  int rank = 0;
  *a = (Asked){.norm = at->norm};
  DM_TRY(open_asked(c, x, complex, a, &rank));
  const int64_t given = at->dim.n, named = at->s.n;
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

/* One dim of t transformed. norm: backward scales the inverse by 1 / n, forward the transform,
   ortho both by 1 / sqrt(n). */
static dm_Tensor *slices(dm_X *x, const Asked *a, dm_Tensor *t, int dim, bool inverse) {
  if (x->st != DM_OK) return NULL;
  const double n = (double)t->shape[dim];
  if (n < 1) {
    x->st = dm_fail(DM_EARG, "fft: 0 points, wanted 1 or more");
    return NULL;
  }
  const bool divides = a->norm == (inverse ? BACKWARD : FORWARD);
  const dm_FftSlicesAttr attr = {dim, inverse,
                                 a->norm == ORTHO ? 1 / sqrt(n)
                                 : divides        ? 1 / n
                                                  : 1};
  return dm_x(x, DM_OP_fft_slices, &attr, 1, t);
}

/* Pairs along the dims asked for, without the last `but` of them. */
static dm_Tensor *transformed(dm_X *x, const Asked *a, dm_Tensor *t, int but, bool inverse) {
  for (int i = a->n - but - 1; i >= 0; i--)
    t = slices(x, a, fitted(x, t, a->dim[i], a->points[i]), a->dim[i], inverse);
  return t;
}

/* fft, ifft and theirs of more dims: pairs to pairs. */
static dm_status complex_to_complex(dm_Call *c, dm_X *x, const Asked *a, bool inverse) {
  c->out[0] = transformed(x, a, a->t, 0, inverse);
  return x->st;
}

/* n real points to n / 2 + 1 pairs: the others would be conjugates of these. */
static dm_status real_to_complex(dm_Call *c, dm_X *x, const Asked *a) {
  const int last = a->dim[a->n - 1];
  dm_Tensor *t = fitted(x, a->t, last, a->points[a->n - 1]);
  if (!t) return x->st;
  t = dm_x(x, DM_OP_stack, &(int64_t){-1}, 2, t, x_zeros_like(x, t));
  t = slices(x, a, t, last, false);
  if (!t) return x->st;
  t = x_narrow(x, t, last, 0, t->shape[last] / 2 + 1);
  c->out[0] = transformed(x, a, t, 1, false);
  return x->st;
}

/* Every pair times (1, -1). */
static dm_Tensor *conjugate(dm_X *x, dm_Tensor *t) {
  const dm_LinspaceAttr signs = {1, -1, 2, t->dtype, dm_device_code(t->device)};
  return x_mul(x, t, dm_x(x, DM_OP_linspace, &signs, 0));
}

/* n real points from the first half of their spectrum, n / 2 + 1 pairs: the others are the
   conjugates in reverse, which are appended; the imaginary parts of the result are dropped. */
static dm_status complex_to_real(dm_Call *c, dm_X *x, const Asked *a) {
  const int last = a->dim[a->n - 1];
  const int64_t given = a->points[a->n - 1],
                n = given < 0 ? 2 * (a->t->shape[last] - 1) : given;
  if (n < 1)
    return dm_fail(DM_EARG, "fft.%s: %lld points, wanted 1 or more; hint: n says how many",
                   FFT(c), (long long)n);
  dm_Tensor *t = transformed(x, a, a->t, 1, true);
  t = fitted(x, t, last, n / 2 + 1);
  const int64_t mirrored = n - (n / 2 + 1);
  if (t && mirrored > 0) {
    dm_Tensor *rest = x_narrow(x, t, last, 1, mirrored);
    rest = dm_x(x, DM_OP_flip, &(dm_Ints){1, {last}}, 1, rest);
    t = rest ? x_cat(x, t, conjugate(x, rest), last) : NULL;
  }
  t = slices(x, a, t, last, true);
  c->out[0] = dm_x(x, DM_OP_select, &(int64_t[2]){-1, 0}, 1, t);
  return x->st;
}

/* hfft is irfft of the conjugates, ihfft the conjugate of rfft, each scaled as its inverse is:
   forward and backward are swapped. */
static dm_status hermitian_to_real(dm_Call *c, dm_X *x, Asked a) {
  a.norm = FORWARD - a.norm;
  a.t = conjugate(x, a.t);
  return a.t ? complex_to_real(c, x, &a) : x->st;
}
static dm_status real_to_hermitian(dm_Call *c, dm_X *x, Asked a) {
  a.norm = FORWARD - a.norm;
  DM_TRY(real_to_complex(c, x, &a));
  c->out[0] = conjugate(x, c->out[0]);
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
ONE(rfft, false, real_to_complex(c, x, &a))
ONE(irfft, true, complex_to_real(c, x, &a))
SOME(fft2, true, true, complex_to_complex(c, x, &a, false))
SOME(ifft2, true, true, complex_to_complex(c, x, &a, true))
SOME(rfft2, false, true, real_to_complex(c, x, &a))
SOME(irfft2, true, true, complex_to_real(c, x, &a))
SOME(fftn, true, false, complex_to_complex(c, x, &a, false))
SOME(ifftn, true, false, complex_to_complex(c, x, &a, true))
SOME(rfftn, false, false, real_to_complex(c, x, &a))
SOME(irfftn, true, false, complex_to_real(c, x, &a))
ONE(hfft, true, hermitian_to_real(c, x, a))
ONE(ihfft, false, real_to_hermitian(c, x, a))
SOME(hfft2, true, true, hermitian_to_real(c, x, a))
SOME(ihfft2, false, true, real_to_hermitian(c, x, a))
SOME(hfftn, true, false, hermitian_to_real(c, x, a))
SOME(ihfftn, false, false, real_to_hermitian(c, x, a))

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
