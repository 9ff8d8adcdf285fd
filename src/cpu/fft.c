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

   An even number of real points is transformed as half as many complex ones, from whose
   transform that of the even and that of the odd points come apart; and back. An odd number is
   transformed as complex points.

   The roots of 1 are computed from angles of at most a quarter turn, each by itself, so that
   their errors do not grow with n. The inverse is the transform between two exchanges of real
   and imaginary parts, which the caller does as it moves the points. */
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
  int64_t n; /* complex points */
  dm_FftForm form;
  int n_factor;
  int factor[MOST_FACTORS];
  Complex *roots;    /* e^(-2 pi i k / n), k < n */
  Complex *split;    /* of an even number 2 n of real points: e^(-pi i k / n), 2 k <= n */
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

/* ---- passes ---- */

/* All passes, to and fro between x and work; gives the one in which the result ends. */
static double *run_forward(const dm_Fft *f, int lanes, double *x, double *work) {
  dm_FftPass *const pass = dm_loops()->fft_pass[lanes > DM_FFT_FEW];
  double *from = x, *to = work;
  int64_t done = 1;
  for (int i = 0; i < f->n_factor; i++) {
    pass(f->n, f->factor[i], done, &f->roots->re, from, to);
    done *= f->factor[i];
    double *const t = from;
    from = to;
    to = t;
  }
  return from;
}

/* ---- plans ---- */

/* e^(-2 pi i k / n), k < count <= n: after a quarter turn they repeat, turned. */
static Complex *roots_of(int64_t n, int64_t count) {
  Complex *const w = dm_alloc((int64_t)sizeof *w * count);
  for (int64_t k = 0; w && k < count; k++)
    w[k] = n % 4 == 0 && k >= n / 4 ? (Complex){w[k - n / 4].im, -w[k - n / 4].re} : root(k, n);
  return w;
}

/* Takes factors of 8 and 4 first, then rising primes; returns the rest, 1 if there is none. */
static int64_t factorize(dm_Fft *f) {
  int64_t rest = f->n;
  for (; rest % 4 == 0; rest /= f->factor[f->n_factor++])
    f->factor[f->n_factor] = rest % 8 == 0 && rest % 32 != 16 ? 8 : 4;
  for (int p = 2; p <= DM_FFT_LARGEST; p++)
    while (rest % p == 0) {
      f->factor[f->n_factor++] = p;
      rest /= p;
    }
  return rest;
}

/* The chirp's conjugate over m, wrapped round m points, and transformed. v: two lanes, and work
   space. */
static void plan_kernel(dm_Fft *f, int64_t m, double *v) {
  enum { SIZE = 2 * DM_FFT_FEW };
  memset(v, 0, sizeof *v * (size_t)(SIZE * m));
  for (int64_t k = 0; k < f->n; k++)
    for (int l = 0; l < DM_FFT_FEW; l++) {
      double *const to = v + l + SIZE * k, *const back = v + l + SIZE * ((m - k) % m);
      back[0] = to[0] = f->chirp[k].re / (double)m;
      back[DM_FFT_FEW] = to[DM_FFT_FEW] = -f->chirp[k].im / (double)m;
    }
  const double *const y = run_forward(f->in, DM_FFT_FEW, v, v + SIZE * m);
  for (int64_t k = 0; k < m; k++)
    f->kernel[k] = (Complex){y[SIZE * k], y[SIZE * k + DM_FFT_FEW]};
}

/* Sums of x_j e^(-2 pi i j k / n) with j k = (j^2 + k^2 - (k - j)^2) / 2. */
static bool plan_chirp(dm_Fft *f) {
  int64_t m = 1, square = 0; /* k^2 modulo 2 n */
  while (m < 2 * f->n - 1) m *= 2;
  f->in = dm_fft_new(m, DM_FFT_PAIRS);
  f->chirp = dm_alloc((int64_t)sizeof *f->chirp * f->n);
  f->kernel = dm_alloc((int64_t)sizeof *f->kernel * m);
  double *v = f->in ? dm_alloc((int64_t)sizeof *v * DM_FFT_FEW * 4 * m) : NULL;
  if (f->chirp && f->kernel && v) {
    for (int64_t k = 0; k < f->n; k++) {
      f->chirp[k] = root(square, 2 * f->n);
      square = (square + 2 * k + 1) % (2 * f->n);
    }
    plan_kernel(f, m, v);
  }
  dm_free(v);
  return f->chirp && f->kernel && v;
}

/* Fills the plan by one of the two ways; false without memory. */
static bool plan(dm_Fft *f, bool halved) {
  if (halved && !(f->split = roots_of(2 * f->n, f->n / 2 + 1))) return false;
  if (factorize(f) > 1) return plan_chirp(f);
  f->roots = roots_of(f->n, f->n);
  return f->roots;
}

dm_Fft *dm_fft_new(int64_t n, dm_FftForm form) {
  if (n > INT64_MAX / 256) return NULL;
  dm_Fft *f = dm_alloc_zero(sizeof *f);
  if (!f) return NULL;
  const bool halved = form != DM_FFT_PAIRS && n % 2 == 0;
  f->n = halved ? n / 2 : n;
  f->form = form;
  if (plan(f, halved)) return f;
  dm_fft_free(f);
  return NULL;
}

/* A plan of Bluestein's way owns another plan, of a power of two, which needs none. */
void dm_fft_free(dm_Fft *f) {
  if (!f) return;
  dm_fft_free(f->in);
  dm_free(f->roots);
  dm_free(f->split);
  dm_free(f->chirp);
  dm_free(f->kernel);
  dm_free(f);
}

/* ---- transforms ---- */

/* y = x w, point by point, with one w for all lanes. */
static void scale(int64_t n, int lanes, const double *x, const Complex *w, double *y) {
  for (int64_t k = 0; k < n; k++, x += 2 * lanes, y += 2 * lanes)
    for (int l = 0; l < lanes; l++) {
      const double re = x[l], im = x[lanes + l];
      y[l] = re * w[k].re - im * w[k].im;
      y[lanes + l] = re * w[k].im + im * w[k].re;
    }
}

/* Exchanges real and imaginary parts. */
static void exchange(double *x, int64_t n, int lanes) {
  for (int64_t k = 0; k < n; k++, x += 2 * lanes)
    for (int l = 0; l < lanes; l++) {
      const double re = x[l];
      x[l] = x[lanes + l];
      x[lanes + l] = re;
    }
}

/* Bluestein's convolution, in x: times the chirp, forward, times the kernel's transform, back,
   times the chirp. Back is forward between two exchanges. */
static double *run_chirp(const dm_Fft *f, int lanes, double *x, double *work) {
  const int64_t m = f->in->n, size = 2 * lanes;
  double *const rest = work + size * m;
  scale(f->n, lanes, x, f->chirp, work);
  memset(work + size * f->n, 0, sizeof *work * (size_t)(size * (m - f->n)));
  scale(m, lanes, run_forward(f->in, lanes, work, rest), f->kernel, work);
  exchange(work, m, lanes);
  double *const y = run_forward(f->in, lanes, work, rest);
  exchange(y, f->n, lanes);
  scale(f->n, lanes, y, f->chirp, x);
  return x;
}

/* The real points of half a spectrum: 0 and, where it is there, n / 2. */
static void make_real(const dm_Fft *f, int lanes, double ends, double *x) {
  for (int64_t k = 0; k <= (f->split ? f->n : 0); k += f->n)
    for (int l = 0; l < lanes; l++) {
      x[2 * lanes * k + l] *= ends;
      x[2 * lanes * k + lanes + l] = 0;
    }
}

/* The second half of a spectrum of an odd number of points: conjugates of the first. */
static void complete(const dm_Fft *f, int lanes, double *x) {
  for (int64_t k = 1; 2 * k < f->n; k++)
    for (int l = 0; l < lanes; l++) {
      x[2 * lanes * (f->n - k) + l] = x[2 * lanes * k + l];
      x[2 * lanes * (f->n - k) + lanes + l] = -x[2 * lanes * k + lanes + l];
    }
}

int64_t dm_fft_points(const dm_Fft *f) { return f->n; }

/* Half a spectrum has a point more. Passes and the convolution have two arrays each. */
int64_t dm_fft_size(const dm_Fft *f) {
  return 2 * (f->n + 1) + (f->in ? 4 * f->in->n : 2 * (f->n + 1));
}

double *dm_fft_run(const dm_Fft *f, int lanes, double ends, double *x) {
  const int64_t n = f->n, size = 2 * lanes;
  double *const work = x + size * (n + 1);
  if (f->form == DM_FFT_REALS) {
    make_real(f, lanes, ends, x);
    if (f->split) dm_loops()->fft_split[lanes > DM_FFT_FEW](n, &f->split->re, 1, x);
    else complete(f, lanes, x);
  }
  double *const y = (f->in ? run_chirp : run_forward)(f, lanes, x, work);
  if (f->form == DM_FFT_HALVES) {
    memcpy(y + size * n, y, sizeof *y * (size_t)size);
    if (f->split) dm_loops()->fft_split[lanes > DM_FFT_FEW](n, &f->split->re, -1, y);
    make_real(f, lanes, ends, y);
  }
  return y;
}
