/* The parts that module.c joins. */
#ifndef DM_KERNELS_MODULE_H
#define DM_KERNELS_MODULE_H

#include "kernels/cuda.h"

/* NULL, or why no device can be used. Registers the device. */
const char *dm_cuda_device_open(void);
/* Registers the kernel of every op that has one. */
void dm_cuda_table_open(void);
/* Registers the optimizers. */
void dm_cuda_optim_open(void);

#endif
