/* What the inner loops of Fourier transforms (fft.inc, fft_moves.inc) share with their callers.
 */
#ifndef DM_LOOPS_FFT_PASS_H
#define DM_LOOPS_FFT_PASS_H

#include <stdint.h>

/* Transforms that are made at once, where there are some or few; the largest factor that a pass
   takes, and what a table of its roots holds. */
enum { DM_FFT_LANES = 8, DM_FFT_FEW = 2, DM_FFT_LARGEST = 31, DM_FFT_TABLE = 15 * 15 };

/* Points of which one transform alone must have a multiple to be made in lanes. */
enum { DM_FFT_SQUARE = DM_FFT_LANES * DM_FFT_LANES };

/* The points of DM_FFT_LANES or DM_FFT_FEW transforms in a tensor. */
typedef struct dm_FftMove {
  int64_t n;                /* points */
  int64_t step, re, im;     /* elements to the next point, to its parts; im < 0: none */
  int64_t at[DM_FFT_LANES]; /* the first element of each transform */
  int64_t apart;            /* at[k + 1] - at[k] where all are the same, or 0 */
  double by_re, by_im;      /* factors of the parts */
} dm_FftMove;

/* The loops of one element type; [2]: of DM_FFT_FEW transforms at once, and of DM_FFT_LANES,
   the same bits. lanes: one of these, or 1. */
typedef struct dm_FftLoops {
  void (*pass[2])(int64_t n, int p, int64_t done, const void *roots, int64_t each,
                  const void *x, void *y);
  void (*split[2])(int64_t h, const void *roots, int sign, void *x);
  void (*close)(int64_t n, const void *roots, const void *x, void *y);
  void (*split_row)(int64_t h, const void *roots, int sign, const void *x, void *y);
  void (*gather)(const dm_FftMove *m, int lanes, const void *x, void *v);
  void (*scatter)(const dm_FftMove *m, int lanes, const void *v, void *y);
} dm_FftLoops;

#endif
