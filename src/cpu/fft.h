/* Discrete Fourier transforms of any length, in float32 or float64. An own one, because what
   Debian packages under an MIT-like licence (kissfft) has float32 alone. */
#ifndef DM_FFT_H
#define DM_FFT_H

#include "base/base.h"
#include "cpu/loops/fft_pass.h"

typedef struct dm_Fft dm_Fft;

/* What a transform of n points takes and gives: n complex points and as many; n real ones and
   the first n / 2 + 1 of their spectrum, whose others are the conjugates of these; or these and
   the n real ones. */
typedef enum dm_FftForm { DM_FFT_PAIRS, DM_FFT_HALVES, DM_FFT_REALS } dm_FftForm;

/* A plan for transforms of n >= 1 points of double (wide) or float; freed by dm_fft_free. NULL
   when memory is out. Several threads may use it at once. */
dm_Fft *dm_fft_new(int64_t n, dm_FftForm form, bool wide);
void dm_fft_free(dm_Fft *f);

/* The complex points that a transform is made of: n, or n / 2 of an even number n of real
   points, each of which has two of them as its parts. */
int64_t dm_fft_points(const dm_Fft *f);

/* True when dm_fft_run takes one transform alone. */
bool dm_fft_alone(const dm_Fft *f);

/* Bytes of x and the work space of dm_fft_run together. */
int64_t dm_fft_size(const dm_Fft *f, int lanes);

/* y_k = sum over j of x_j e^(-2 pi i j k / n), in x or its work space, of `lanes` transforms at
   once, DM_FFT_FEW or DM_FFT_LANES: x has a point of each, the real parts and then the
   imaginary ones, and so all points of what dm_fft_points says. lanes 1: of one transform, x
   having 8 of its points, the real parts and then the imaginary ones, and so all. The bits are
   the same. `ends` multiplies those points of half a spectrum that are conjugates of
   themselves, 0 and n / 2, which are real. Half the spectrum of an even number of points comes
   twice as large. The work space follows x, in one array of dm_fft_size. */
void *dm_fft_run(const dm_Fft *f, int lanes, double ends, void *x);

#endif
