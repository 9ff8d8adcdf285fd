/* What the inner loops of Fourier transforms (fft.inc, fft_moves.inc) share with their callers.
 */
#ifndef DM_LOOPS_FFT_PASS_H
#define DM_LOOPS_FFT_PASS_H

#include <stdint.h>

/* Transforms that are made at once, where there are some or few; the largest factor that a pass
   takes, and what a table of its roots holds. */
enum { DM_FFT_LANES = 8, DM_FFT_FEW = 2, DM_FFT_LARGEST = 31, DM_FFT_TABLE = 15 * 15 };

/* The points of DM_FFT_LANES or DM_FFT_FEW transforms in a tensor. */
typedef struct dm_FftMove {
  int64_t n;                /* points */
  int64_t step, re, im;     /* elements to the next point, to its parts; im < 0: none */
  int64_t at[DM_FFT_LANES]; /* the first element of each transform */
  int64_t apart;            /* at[k + 1] - at[k] where all are the same, or 0 */
  double by_re, by_im;      /* factors of the parts */
} dm_FftMove;

#endif
