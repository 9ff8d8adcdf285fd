/* Discrete Fourier transforms of any length, of double precision. An own one, because what
   Debian packages under an MIT-like licence (kissfft) has float32 alone. */
#ifndef DM_FFT_H
#define DM_FFT_H

#include "base/base.h"
#include "cpu/loops/fft_pass.h"

typedef struct dm_Fft dm_Fft;

/* A plan for transforms of n >= 1 points; freed by dm_fft_free. NULL when memory is out.
   Several threads may use it at once. */
dm_Fft *dm_fft_new(int64_t n);
void dm_fft_free(dm_Fft *f);

/* Doubles that a transform wants as its work space, for each lane. */
int64_t dm_fft_work_size(const dm_Fft *f);

/* y_k = sum over j of x_j e^(-2 pi i j k / n), or of e^(+...) where inverse: in place. `lanes`
   transforms at once, 1 or DM_FFT_LANES: x has a point of each, the real parts and then the
   imaginary ones, and so n points. */
void dm_fft_run(const dm_Fft *f, int lanes, double *x, bool inverse, double *buffer);

#endif
