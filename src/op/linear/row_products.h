/* Products of rows, for cosines. */
#ifndef DM_ROW_PRODUCTS_H
#define DM_ROW_PRODUCTS_H

#include "engine/call.h"

/* The sums of u v, u u and v v over the last dim of u and v, floats of one shape with a dim or
   more; float32 in 16 bits. False after a failure. */
bool x_row_products(dm_X *x, dm_Tensor *u, dm_Tensor *v, dm_Tensor *out[3]);

#endif
