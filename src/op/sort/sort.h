/* Attributes of sort, topk and bucketize, for the kernels of every device. */
#ifndef DM_SORT_H
#define DM_SORT_H

#include "engine/op.h"

typedef struct dm_SortAttr {
  int64_t dim, descending, stable;
} dm_SortAttr;
typedef struct dm_TopkAttr {
  int64_t k, dim, largest, sorted;
} dm_TopkAttr;
typedef struct dm_BucketAttr {
  int64_t right, out_int32;
} dm_BucketAttr;

#endif
