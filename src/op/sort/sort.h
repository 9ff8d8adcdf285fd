/* Attributes of sort, topk and bucketize, for the kernels of every device. */
#ifndef DM_SORT_H
#define DM_SORT_H

#include "engine/op.h"

#endif
