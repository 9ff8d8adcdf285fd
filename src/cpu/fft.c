/* Discrete Fourier transforms of n complex doubles, n >= 1.

   A length whose prime factors are at most DM_FFT_LARGEST goes by Stockham's algorithm (C.
   Temperton, "Self-sorting mixed-radix fast Fourier transforms", 1983): one pass for each
   factor p between two arrays. A pass turns n / done transforms of length `done` into
   transforms of length done * p and writes them in the right order, so no bit reversal is
   needed. Factors of 4 come first, because a transform of 4 points has no products. cpu/loops
   has the passes, which take several transforms at once.

   Any other length becomes a convolution (L. Bluestein, "A linear filtering approach to the
   computation of discrete Fourier transform", 1970): j k = (j^2 + k^2 - (k - j)^2) / 2 makes
   the sum over j a convolution with the chirp e^(i pi k^2 / n), which transforms of a power of
   two of at least 2 n - 1 points compute. Both ways take O(n log n).

   The roots of 1 are computed from angles of at most a quarter turn, each by itself, so that
   their errors do not grow with n. The inverse exchanges real and imaginary parts before and
   after; it does not divide by n. */
#include "cpu/fft.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cpu/loops/loops.h"

enum { MOST_FACTORS = 64 };

typedef struct Complex {
  double re, im;
} Complex;

struct dm_Fft {
  int64_t n;
  int n_factor;
  int factor[MOST_FACTORS];
  Complex *roots;    /* e^(-2 pi i k / n), k < n */
  struct dm_Fft *in; /* of the convolution; or NULL */
  Complex *chirp;    /* e^(-pi i k^2 / n), k < n */
  Complex *kernel;   /* the chirp's conjugate, wrapped round and transformed; scaled */
};

/* e^(-2 pi i k / n), by an angle of at most a quarter turn. */
static Complex root(int64_t k, int64_t n) {
  const double turn = 6.283185307179586476925286766559;
  const int quarter = (int)(4 * k / n);
  const double angle = turn * (double)(4 * k - quarter * n) / (4 * (double)n);
  const double c = cos(angle), s = sin(angle);
  switch (quarter) {
  case 0: return (Complex){c, -s};
  case 1: return (Complex){-s, -c};
  case 2: return (Complex){-c, s};
  default: return (Complex){s, c};
  }
}

/* ---- plans ---- */

/* Fours first, then rising primes; gives what is left, 1 when all is done. */
static int64_t factorize(dm_Fft *f) {
  int64_t rest = f->n;
  while (rest % 4 == 0) {
    f->factor[f->n_factor++] = 4;
    rest /= 4;
  }
  for (int p = 2; p <= DM_FFT_LARGEST; p++)
    while (rest % p == 0) {
      f->factor[f->n_factor++] = p;
      rest /= p;
    }
  return rest;
}

/* Sums of x_j e^(-2 pi i j k / n) with j k = (j^2 + k^2 - (k - j)^2) / 2. */
static bool plan_chirp(dm_Fft *f) {
  int64_t m = 1;
  while (m < 2 * f->n - 1) m *= 2;
  f->in = dm_fft_new(m);
  f->chirp = dm_alloc((int64_t)sizeof *f->chirp * f->n);
  f->kernel = dm_alloc_zero((int64_t)sizeof *f->kernel * m);
  double *work = f->in ? dm_alloc((int64_t)sizeof *work * dm_fft_work_size(f->in)) : NULL;
  if (f->chirp && f->kernel && work) {
    int64_t square = 0; /* k^2 modulo 2 n */
    for (int64_t k = 0; k < f->n; k++) {
      const Complex w = f->chirp[k] = root(square, 2 * f->n);
      const Complex back = {w.re / (double)m, -w.im / (double)m};
      f->kernel[k] = back;
      if (k > 0) f->kernel[m - k] = back;
      square = (square + 2 * k + 1) % (2 * f->n);
    }
    dm_fft_run(f->in, 1, &f->kernel->re, false, work);
  }
  dm_free(work);
  return f->chirp && f->kernel && work;
}

/* Fills the plan by one of the two ways; false without memory. */
static bool plan(dm_Fft *f) {
  if (factorize(f) > 1) return plan_chirp(f);
  f->roots = dm_alloc((int64_t)sizeof *f->roots * f->n);
  for (int64_t k = 0; f->roots && k < f->n; k++) f->roots[k] = root(k, f->n);
  return f->roots;
}

dm_Fft *dm_fft_new(int64_t n) {
  if (n > INT64_MAX / 256) return NULL;
  dm_Fft *f = dm_alloc_zero(sizeof *f);
  if (!f) return NULL;
  f->n = n;
  if (plan(f)) return f;
  dm_fft_free(f);
  return NULL;
}

/* A plan of Bluestein's way owns another plan, of a power of two, which needs none. */
void dm_fft_free(dm_Fft *f) {
  if (!f) return;
  dm_fft_free(f->in);
  dm_free(f->roots);
  dm_free(f->chirp);
  dm_free(f->kernel);
  dm_free(f);
}

/* In doubles: one array for the passes, or the convolution's points and its own plan's
   array. */
int64_t dm_fft_work_size(const dm_Fft *f) {
  return f->in ? 2 * f->in->n + dm_fft_work_size(f->in) : 2 * f->n;
}

/* ---- transforms ---- */

/* All passes, to and fro between x and work; the result ends in x. */
static void run_forward(const dm_Fft *f, int lanes, double *x, double *work) {
  dm_FftPass *const pass = lanes == 1 ? dm_loops()->fft_one : dm_loops()->fft_lanes;
  double *from = x, *to = work;
  int64_t done = 1;
  for (int i = 0; i < f->n_factor; i++) {
    pass(f->n, f->factor[i], done, &f->roots->re, from, to);
    done *= f->factor[i];
    double *const t = from;
    from = to;
    to = t;
  }
  if (from != x) memcpy(x, from, sizeof *x * (size_t)(2 * lanes * f->n));
}

/* y = x w, point by point, with one w for all lanes. */
static void scale(int64_t n, int lanes, const double *x, const Complex *w, double *y) {
  for (int64_t k = 0; k < n; k++, x += 2 * lanes, y += 2 * lanes)
    for (int l = 0; l < lanes; l++) {
      const double re = x[l], im = x[lanes + l];
      y[l] = re * w[k].re - im * w[k].im;
      y[lanes + l] = re * w[k].im + im * w[k].re;
    }
}

/* Bluestein's convolution: times the chirp, forward, times the kernel's transform, back, times
   the chirp. */
static void run_chirp(const dm_Fft *f, int lanes, double *x, double *work) {
  const int64_t m = f->in->n, size = 2 * lanes;
  double *const rest = work + size * m;
  scale(f->n, lanes, x, f->chirp, work);
  memset(work + size * f->n, 0, sizeof *work * (size_t)(size * (m - f->n)));
  dm_fft_run(f->in, lanes, work, false, rest);
  scale(m, lanes, work, f->kernel, work);
  dm_fft_run(f->in, lanes, work, true, rest);
  scale(f->n, lanes, work, f->chirp, x);
}

/* Exchanges real and imaginary parts: between two of them a forward transform becomes the
   inverse. */
static void exchange(double *x, int64_t n, int lanes) {
  for (int64_t k = 0; k < n; k++, x += 2 * lanes)
    for (int l = 0; l < lanes; l++) {
      const double re = x[l];
      x[l] = x[lanes + l];
      x[lanes + l] = re;
    }
}

void dm_fft_run(const dm_Fft *f, int lanes, double *x, bool inverse, double *work) {
  if (inverse) exchange(x, f->n, lanes);
  if (f->in) run_chirp(f, lanes, x, work);
  else run_forward(f, lanes, x, work);
  if (inverse) exchange(x, f->n, lanes);
}
