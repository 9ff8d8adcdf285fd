/* Collectives between processes by NCCL. */
#ifndef DM_KERNELS_NCCL_H
#define DM_KERNELS_NCCL_H

#include "core/collectives.h"

extern const dm_CollectiveOps dm_nccl_ops;

#endif
