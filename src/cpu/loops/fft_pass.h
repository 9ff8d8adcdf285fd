/* The sizes of passes of Fourier transforms (fft.inc). */
#ifndef DM_LOOPS_FFT_PASS_H
#define DM_LOOPS_FFT_PASS_H

/* Transforms that are made at once; the largest factor that a pass takes, and what a table of
   its roots holds. */
enum { DM_FFT_LANES = 8, DM_FFT_LARGEST = 31, DM_FFT_TABLE = 15 * 15 };

#endif
