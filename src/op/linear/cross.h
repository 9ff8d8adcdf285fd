/* Cross products of rows. */
#ifndef DM_CROSS_H
#define DM_CROSS_H

#include "engine/call.h"

/* Whether x_cross_rows takes them: float32 or float64, of one shape with 3 in the last dim, on
   a device with a kernel. */
bool dm_are_cross_rows(const dm_Tensor *a, const dm_Tensor *b);
dm_Tensor *x_cross_rows(dm_X *x, dm_Tensor *a, dm_Tensor *b);

#endif
