/* Window functions, and the short-time Fourier transform: stft, istft. Complex numbers are
   pairs in a last dim of 2.

   stft cuts a signal into stretches (frames) of n_fft points, hop points apart, multiplies each
   by a window and transforms it; cutting is a strided view. istft transforms back, multiplies
   by the window once more and adds the stretches up where they overlap, then divides by the
   sum of the squared windows: the least-squares estimate of the signal (Griffin & Lim 1984).
   Both are compositions, and so are their gradients. */
#include <math.h>

#include "base/constants.h"
#include "base/error.h"
#include "op/shape/create.h"
#include "op/pointwise/pointwise.h"

/* ---- windows ---- */

/* The attributes that all windows have. */
static dm_status check_window(const dm_Call *c, const dm_WindowAttr *w) {
  if (w->window_length < 0)
    return dm_fail(DM_EARG, "%s: window_length is %lld, wanted 0 or more", c->op->name,
                   (long long)w->window_length);
  if (w->dtype >= 0 && !dm_is_float((dm_DType)w->dtype))
    return dm_fail(DM_EARG, "%s: dtype is %s, wanted a float", c->op->name,
                   dm_dtype_name((dm_DType)w->dtype));
  return DM_OK;
}

/* The dtype of the arithmetic: float64 where that is wanted, else float32. */
static dm_DType inner_dtype(const dm_WindowAttr *w) {
  return dm_compute_dtype(w->dtype < 0 ? dm_default_dtype() : (dm_DType)w->dtype);
}

/* end (2 k / n - 1), where n points make a period and k counts from 0. The two halves of a
   whole window have the same points but for the sign. */
static dm_Tensor *points(dm_X *x, const dm_WindowAttr *w, double end) {
  const double n =
      (double)(w->periodic || w->window_length < 2 ? w->window_length : w->window_length - 1);
  const double last = end * (2 * (double)(w->window_length - 1) / n - 1);
  const dm_LinspaceAttr a = {-end, last, w->window_length, inner_dtype(w), w->device};
  return dm_x(x, DM_OP_linspace, &a, 0);
}

/* One point is 1, whatever the window. */
static dm_status give_window(dm_Call *c, dm_X *x, const dm_WindowAttr *w, dm_Tensor *y) {
  const dm_SizedAttr few = {{1, {w->window_length}}, w->dtype, w->device};
  const dm_DType dtype = w->dtype < 0 ? dm_default_dtype() : (dm_DType)w->dtype;
  c->out[0] = w->window_length < 2 ? dm_x(x, DM_OP_ones, &few, 0) : x_cast(x, y, dtype);
  return x->st;
}

/* alpha + beta cos(t) for t from -pi to pi: Hann, Hamming */
static dm_status raised_cosine(dm_Call *c, dm_X *x, const dm_WindowAttr *w, double alpha,
                               double beta) {
  DM_TRY(check_window(c, w));
  dm_Tensor *y = x_unary(x, DM_OP_cos, points(x, w, DM_PI));
  return give_window(c, x, w, x_shift(x, x_scale(x, y, beta), alpha));
}
dm_status hann_window_compose(dm_Call *c, dm_X *x) {
  return raised_cosine(c, x, DM_ATTR(dm_WindowAttr, c), 0.5, 0.5);
}
dm_status hamming_window_compose(dm_Call *c, dm_X *x) {
  const dm_HammingWindowAttr *a = c->attr;
  const dm_WindowAttr w = {a->window_length, a->periodic, a->dtype, a->device};
  return raised_cosine(c, x, &w, a->alpha, a->beta);
}

/* 0.42 + 0.5 cos(t) + 0.08 cos(2 t), where cos(2 t) is 2 cos(t)^2 - 1 */
dm_status blackman_window_compose(dm_Call *c, dm_X *x) {
  const dm_WindowAttr *w = DM_ATTR(dm_WindowAttr, c);
  DM_TRY(check_window(c, w));
  dm_Tensor *y = x_unary(x, DM_OP_cos, points(x, w, DM_PI));
  y = x_mul(x, y, x_shift(x, x_scale(x, y, 0.16), 0.5));
  return give_window(c, x, w, x_shift(x, y, 0.34));
}

/* 1 - |t| over t from -1 to 1 */
dm_status bartlett_window_compose(dm_Call *c, dm_X *x) {
  const dm_WindowAttr *w = DM_ATTR(dm_WindowAttr, c);
  DM_TRY(check_window(c, w));
  dm_Tensor *t = x_unary(x, DM_OP_abs, points(x, w, 1));
  return give_window(c, x, w, x_shift(x, x_scale(x, t, -1), 1));
}

/* i0(beta sqrt(1 - t^2)) / i0(beta) over t from -1 to 1; Kaiser 1974. With i0(v) = i0e(v)
   exp(v), a large beta does not overflow. */
dm_status kaiser_window_compose(dm_Call *c, dm_X *x) {
  const dm_KaiserWindowAttr *a = c->attr;
  const dm_WindowAttr w = {a->window_length, a->periodic, a->dtype, a->device};
  const double beta = fabs(a->beta);
  DM_TRY(check_window(c, &w));
  dm_Tensor *t = points(x, &w, 1);
  t = x_floor(x, x_shift(x, x_scale(x, x_mul(x, t, t), -1), 1), 0);
  t = x_scale(x, x_unary(x, DM_OP_sqrt, t), beta);
  const dm_FullAttr whole = {{0, {0}}, beta, inner_dtype(&w), a->device};
  dm_Tensor *top = x_unary(x, DM_OP_special_i0e, dm_x(x, DM_OP_full, &whole, 0));
  dm_Tensor *y = x_div(x, x_unary(x, DM_OP_special_i0e, t), top);
  return give_window(c, x, &w, x_mul(x, y, x_unary(x, DM_OP_exp, x_shift(x, t, -beta))));
}

/* ---- stretches ---- */

enum { BACKWARD, ORTHO };

typedef struct Stretches {
  int64_t n_fft, hop, length; /* points of a transform, from one to the next, of a window */
} Stretches;

/* Fills in the defaults and checks; input 1 is the window, or NULL. */
static dm_status check_stretches(const dm_Call *c, Stretches *s) {
  if (s->hop == -1) s->hop = s->n_fft / 4;
  if (s->length == -1) s->length = s->n_fft;
  if (s->n_fft < 1 || s->hop < 1 || s->length < 1 || s->length > s->n_fft)
    return dm_fail(DM_EARG,
                   "%s: n_fft is %lld, hop_length %lld, win_length %lld: wanted 1 or more, "
                   "and no window longer than n_fft",
                   c->op->name, (long long)s->n_fft, (long long)s->hop, (long long)s->length);
  const dm_Tensor *w = c->in[1];
  if (w && (w->ndim != 1 || w->numel != s->length))
    return dm_fail(DM_EARG, "%s: window has shape %s, wanted {%lld}", c->op->name, DM_SHAPE(w),
                   (long long)s->length);
  return DM_OK;
}

/* The last dim padded. */
static dm_Tensor *x_pad(dm_X *x, dm_Tensor *t, int64_t before, int64_t behind, int64_t mode) {
  const dm_PadAttr a = {{2, {before, behind}}, mode, 0};
  return before || behind ? dm_x(x, DM_OP_pad, &a, 1, t) : t;
}
static dm_Tensor *x_part(dm_X *x, dm_Tensor *t, int64_t dim, int64_t start, int64_t n) {
  return dm_x(x, DM_OP_narrow, &(int64_t[3]){dim, start, n}, 1, t);
}

/* The window, or one of ones, in the middle of n_fft points. */
static dm_Tensor *window_of(dm_X *x, dm_Tensor *given, const Stretches *s, dm_Tensor *like) {
  if (x->st != DM_OK) return NULL;
  const dm_SizedAttr ones = {{1, {s->length}}, like->dtype, dm_device_code(like->device)};
  dm_Tensor *w = given ? given : dm_x(x, DM_OP_ones, &ones, 0);
  const int64_t rest = s->n_fft - s->length;
  return x_pad(x, w, rest / 2, rest - rest / 2, 0);
}

/* (batch, points) as (batch, stretches, n_fft): a view in which elements repeat */
static dm_Tensor *cut(dm_X *x, dm_Tensor *t, const Stretches *s) {
  t = x_unary(x, DM_OP_contiguous, t);
  if (x->st != DM_OK) return NULL;
  const int64_t n = t->shape[1];
  const dm_AsStridedAttr a = {
      {3, {t->shape[0], (n - s->n_fft) / s->hop + 1, s->n_fft}}, {3, {n, s->hop, 1}}, -1};
  return dm_x(x, DM_OP_as_strided, &a, 1, t);
}

/* (points) or (batch, points) to (batch?, n_fft / 2 + 1, stretches, 2); not onesided: n_fft.
   center: the signal is padded so that stretch k is centred on point k hop. */
dm_status stft_compose(dm_Call *c, dm_X *x) {
  const dm_StftAttr *a = DM_ATTR(dm_StftAttr, c);
  dm_Tensor *t = c->in[0];
  Stretches s = {a->n_fft, a->hop_length, a->win_length};
  DM_TRY(dm_check_float(c, t, "x"));
  DM_TRY(check_stretches(c, &s));
  if (t->ndim != 1 && t->ndim != 2)
    return dm_fail(DM_EARG, "stft: x has shape %s, wanted {points} or {batch, points}",
                   DM_SHAPE(t));
  const int64_t n = t->shape[t->ndim - 1], margin = a->center ? s.n_fft / 2 : 0;
  t = x_reshape(x, t, 2, (int64_t[]){t->ndim == 2 ? t->shape[0] : 1, n});
  if (n < s.n_fft - 2 * margin)
    return dm_fail(DM_EARG, "stft: %lld points, wanted at least n_fft's %lld", (long long)n,
                   (long long)s.n_fft);
  t = cut(x, x_pad(x, t, margin, margin, a->pad_mode), &s);
  if (c->in[1] || s.length < s.n_fft) t = x_mul(x, t, window_of(x, c->in[1], &s, t));
  const int64_t how[3] = {-1, -1, a->normalized ? ORTHO : BACKWARD};
  if (a->onesided) {
    t = dm_x(x, DM_OP_fft_rfft, how, 1, t);
  } else if (x->st == DM_OK) {
    t = dm_x(x, DM_OP_stack, &(int64_t){-1}, 2, t, x_zeros_like(x, t));
    t = dm_x(x, DM_OP_fft_fft, how, 1, t);
  }
  t = x_transpose(x, t, -3, -2);
  c->out[0] = c->in[0]->ndim == 2 ? t : dm_x(x, DM_OP_select, &(int64_t[2]){0, 0}, 1, t);
  return x->st;
}

/* (batch, n_fft, stretches) to (batch, points): overlapping points are added, by op fold */
static dm_Tensor *overlapped(dm_X *x, dm_Tensor *t, const Stretches *s) {
  if (x->st != DM_OK) return NULL;
  const int64_t n = s->n_fft + s->hop * (t->shape[2] - 1);
  const dm_FoldAttr a = {{1, n}, {{1, s->n_fft}, {1, 1}, {0, 0}, {1, s->hop}}};
  return x_reshape(x, dm_x(x, DM_OP_fold, &a, 1, t), 2, (int64_t[]){t->shape[0], n});
}

/* Whether t is what stft gives: its first dim but a batch is the frequencies. */
static dm_status check_spectra(const dm_Tensor *t, const dm_IstftAttr *a) {
  const int64_t bins = a->onesided ? a->n_fft / 2 + 1 : a->n_fft;
  const int d = t->ndim - 3;
  if ((d == 0 || d == 1) && t->shape[d] == bins && t->shape[d + 1] > 0 && t->shape[d + 2] == 2)
    return DM_OK;
  return dm_fail(DM_EARG,
                 "istft: x has shape %s, wanted {%lld, stretches, 2} or {batch, %lld, "
                 "stretches, 2}",
                 DM_SHAPE(t), (long long)bins, (long long)bins);
}

/* Windows must cover every point that is given back. */
static dm_status check_cover(dm_X *x, dm_Tensor *cover) {
  uint8_t bare = 0;
  dm_Tensor *any = x_unary(x, DM_OP_any, x_test(x, DM_OP_le, cover, 1e-11));
  if (x->st == DM_OK) x->st = dm_tensor_read(any, 1, &bare);
  DM_TRY(x->st);
  return bare ? dm_fail(DM_EARG, "istft: there are points that no window covers") : DM_OK;
}

/* The inverse of stft. Half of the spectrum suffices, as the signal is real. */
dm_status istft_compose(dm_Call *c, dm_X *x) {
  const dm_IstftAttr *a = DM_ATTR(dm_IstftAttr, c);
  dm_Tensor *t = c->in[0];
  Stretches s = {a->n_fft, a->hop_length, a->win_length};
  DM_TRY(dm_check_float(c, t, "x"));
  DM_TRY(check_stretches(c, &s));
  if (s.hop > s.length)
    return dm_fail(DM_EARG, "istft: hop_length is %lld, wanted at most win_length's %lld",
                   (long long)s.hop, (long long)s.length);
  DM_TRY(check_spectra(t, a));
  if (t->ndim == 3) t = dm_x(x, DM_OP_unsqueeze, &(int64_t){0}, 1, t);
  const int64_t how[3] = {s.n_fft, -1, a->normalized ? ORTHO : BACKWARD};
  t = x_part(x, x_transpose(x, t, 1, 2), 2, 0, s.n_fft / 2 + 1);
  t = dm_x(x, DM_OP_fft_irfft, how, 1, t);
  dm_Tensor *w = window_of(x, c->in[1], &s, t);
  t = x_transpose(x, x_mul(x, t, w), 1, 2);
  DM_TRY(x->st);
  dm_Tensor *cover = x_reshape(x, x_mul(x, w, w), 3, (int64_t[]){1, s.n_fft, 1});
  cover = overlapped(x, x_expand(x, cover, 3, (int64_t[]){1, s.n_fft, t->shape[2]}), &s);
  t = overlapped(x, t, &s);
  DM_TRY(x->st);
  const int64_t from = a->center ? s.n_fft / 2 : 0, there = t->shape[1] - from;
  const int64_t wanted = a->length >= 0 ? a->length : there - from;
  const int64_t n = dm_max_i64(dm_min_i64(wanted, there), 0);
  cover = x_part(x, cover, 1, from, n);
  DM_TRY(check_cover(x, cover));
  t = x_pad(x, x_div(x, x_part(x, t, 1, from, n), cover), 0, wanted - n, 0);
  c->out[0] = c->in[0]->ndim == 4 ? t : dm_x(x, DM_OP_select, &(int64_t[2]){0, 0}, 1, t);
  return x->st;
}
