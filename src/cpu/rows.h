/* Rows of floats that are rounded to 16 bits (vec.h). */
#ifndef DM_ROWS_H
#define DM_ROWS_H

#include <stdint.h>

/* (m, n) floats, whose rows lie `step` apart. more: element (i, j) is to be added,
   more[i * more_row + j * more_col], each 0 or 1; or NULL. */
typedef struct dm_Rows {
  int64_t m, n, step;
  float *at;
  const float *more;
  int more_row, more_col;
} dm_Rows;

#endif
