/* Discrete Fourier transforms of n complex floats or doubles, n >= 1.

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

   One transform alone, of a multiple of 64 points, has 8 neighbouring points in the lanes of a
   vector: each pass but one by 8, the last, then meets the same point of 8 transforms an eighth
   as long, and the last pass exchanges lanes and points in registers.

   The roots of 1 are computed from angles of at most a quarter turn, each by itself, so that
   their errors do not grow with n, in double, and rounded. The inverse is the transform between
   two exchanges of real and imaginary parts, which the caller does as it moves the points. */
#include "cpu/fft.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cpu/loops/loops.h"

enum { MOST_FACTORS = 64 };

typedef struct Complex {
  double re, im;
} Complex;

/* Tables are of pairs of the plan's dtype. */
struct dm_Fft {
  int64_t n; /* complex points */
  dm_FftForm form;
  bool wide;
  const dm_FftLoops *loops;
  int n_factor;
  int factor[MOST_FACTORS];
  void *roots;       /* e^(-2 pi i k / n), k < n */
  void *closing;     /* the roots of the last pass of a transform alone, or NULL */
  void *split;       /* of an even number 2 n of real points: e^(-pi i k / n), k <= n, by 8 */
  struct dm_Fft *in; /* of the convolution; or NULL */
  void *chirp;       /* e^(-i pi k^2 / n), k < n */
  void *kernel;      /* the chirp's conjugate, wrapped round and transformed; scaled */
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

/* ---- transforms ---- */

#define T float
#define OWN(name) name##_f32
#include "cpu/fft_run.inc"
#undef T
#undef OWN
#define T double
#define OWN(name) name##_f64
#include "cpu/fft_run.inc"
#undef T
#undef OWN

/* ---- plans ---- */

/* A table of n pairs; NULL without memory. */
static void *pairs(const dm_Fft *f, int64_t n) {
  return dm_alloc(2 * n * (int64_t)(f->wide ? sizeof(double) : sizeof(float)));
}
/* Writes a pair whose parts are number i of a table and the one `apart` after it. */
static void put(const dm_Fft *f, void *table, int64_t i, int64_t apart, Complex v) {
  if (f->wide) {
    ((double *)table)[i] = v.re;
    ((double *)table)[i + apart] = v.im;
  } else {
    ((float *)table)[i] = (float)v.re;
    ((float *)table)[i + apart] = (float)v.im;
  }
}
static Complex get(const dm_Fft *f, const void *table, int64_t i, int64_t apart) {
  const double *const d = table;
  const float *const s = table;
  return f->wide ? (Complex){d[i], d[i + apart]}
                 : (Complex){(double)s[i], (double)s[i + apart]};
}

/* e^(-2 pi i k / n), k < n: after a quarter turn they repeat, turned. */
static bool plan_roots(dm_Fft *f) {
  const int64_t n = f->n;
  f->roots = pairs(f, n);
  for (int64_t k = 0; f->roots && k < n; k++) {
    const bool turned = n % 4 == 0 && k >= n / 4;
    const Complex before = turned ? get(f, f->roots, 2 * (k - n / 4), 1) : root(k, n);
    put(f, f->roots, 2 * k, 1, turned ? (Complex){before.im, -before.re} : before);
  }
  return f->roots;
}

/* 8 real parts and 8 imaginary ones in turn, up to a multiple of 8 that is more than n; those
   after n / 2 mirror the others. */
static bool plan_split(dm_Fft *f) {
  const int64_t n = f->n;
  f->split = pairs(f, n / 8 * 8 + 8);
  for (int64_t k = 0; f->split && k < n / 8 * 8 + 8; k++) {
    const Complex w = root(2 * k <= n ? k : k <= n ? n - k : 0, 2 * n);
    put(f, f->split, k / 8 * 16 + k % 8, 8, 2 * k <= n ? w : (Complex){-w.re, w.im});
  }
  return f->split;
}

/* Roots as the loop fft_close wants them. */
static bool plan_closing(dm_Fft *f) {
  enum { LANES = DM_FFT_LANES };
  const int64_t n = f->n;
  int64_t at = 0;
  f->closing = pairs(f, n / LANES * (LANES - 1));
  for (int64_t k = 0; f->closing && k < n / LANES; k += LANES)
    for (int64_t j = 1; j < LANES; j++, at += 2 * LANES)
      for (int64_t l = 0; l < LANES; l++)
        put(f, f->closing, at + l, LANES, get(f, f->roots, 2 * j * (k + l), 1));
  return f->closing;
}

/* True where a factor of 8 is last, for transforms of this many points alone. */
static bool in_squares(int64_t n) { return n % DM_FFT_SQUARE == 0; }

/* Takes factors of 8 and 4 first, then rising primes, and 8 last where it is to be; returns the
   rest, 1 if there is none. */
static int64_t factorize(dm_Fft *f) {
  int64_t rest = in_squares(f->n) ? f->n / 8 : f->n;
  for (; rest % 4 == 0; rest /= f->factor[f->n_factor++])
    f->factor[f->n_factor] = rest % 8 == 0 && rest % 32 != 16 ? 8 : 4;
  for (int p = 2; p <= DM_FFT_LARGEST; p++)
    while (rest % p == 0) {
      f->factor[f->n_factor++] = p;
      rest /= p;
    }
  if (in_squares(f->n)) f->factor[f->n_factor++] = 8;
  return rest;
}

/* Sums of x_j e^(-2 pi i j k / n) with j k = (j^2 + k^2 - (k - j)^2) / 2. */
static bool plan_chirp(dm_Fft *f) {
  int64_t m = 1, square = 0; /* k^2 modulo 2 n */
  while (m < 2 * f->n - 1) m *= 2;
  f->in = dm_fft_new(m, DM_FFT_PAIRS, f->wide);
  f->chirp = pairs(f, f->n);
  f->kernel = pairs(f, m);
  void *const v = f->in ? pairs(f, 2 * DM_FFT_FEW * m) : NULL;
  if (f->chirp && f->kernel && v) {
    for (int64_t k = 0; k < f->n; k++) {
      put(f, f->chirp, 2 * k, 1, root(square, 2 * f->n));
      square = (square + 2 * k + 1) % (2 * f->n);
    }
    if (f->wide) plan_kernel_f64(f, m, v);
    else plan_kernel_f32(f, m, v);
  }
  dm_free(v);
  return f->chirp && f->kernel && v;
}

/* Fills the plan by one of the two ways; false without memory. */
static bool plan(dm_Fft *f, bool halved) {
  if (halved && !plan_split(f)) return false;
  if (factorize(f) > 1) return plan_chirp(f);
  return plan_roots(f) && (!in_squares(f->n) || plan_closing(f));
}

dm_Fft *dm_fft_new(int64_t n, dm_FftForm form, bool wide) {
  if (n > INT64_MAX / 256) return NULL;
  dm_Fft *f = dm_alloc_zero(sizeof *f);
  if (!f) return NULL;
  const bool halved = form != DM_FFT_PAIRS && n % 2 == 0;
  f->n = halved ? n / 2 : n;
  f->form = form;
  f->wide = wide;
  f->loops = &dm_loops()->fft[wide];
  if (plan(f, halved)) return f;
  dm_fft_free(f);
  return NULL;
}

/* A plan of Bluestein's way owns another plan, of a power of two, which needs none. */
void dm_fft_free(dm_Fft *f) {
  if (!f) return;
  dm_fft_free(f->in);
  dm_free(f->roots);
  dm_free(f->closing);
  dm_free(f->split);
  dm_free(f->chirp);
  dm_free(f->kernel);
  dm_free(f);
}

int64_t dm_fft_points(const dm_Fft *f) { return f->n; }
bool dm_fft_alone(const dm_Fft *f) { return f->closing; }

/* Half a spectrum has a point more. Passes and the convolution have two arrays each. */
int64_t dm_fft_size(const dm_Fft *f, int lanes) {
  const int64_t size = (f->wide ? (int64_t)sizeof(double) : (int64_t)sizeof(float)) * lanes;
  const int64_t one = 2 * (f->n + (lanes == 1 ? DM_FFT_LANES : 1));
  return size * (one + (f->in ? 4 * f->in->n : one));
}

void *dm_fft_run(const dm_Fft *f, int lanes, double ends, void *x) {
  if (lanes == 1) return f->wide ? (void *)run_row_f64(f, ends, x) : run_row_f32(f, ends, x);
  return f->wide ? (void *)run_lanes_f64(f, lanes, ends, x) : run_lanes_f32(f, lanes, ends, x);
}
