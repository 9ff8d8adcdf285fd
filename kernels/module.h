/* The functions by which module.c registers the back end. */
#ifndef DM_KERNELS_MODULE_H
#define DM_KERNELS_MODULE_H

#include "kernels/cuda.h"

/* Registers the device; returns NULL, or why none can be used. */
const char *dm_cuda_device_open(void);
/* Registers the kernel functions of all ops that have one. */
void dm_cuda_table_open(void);
/* Registers the optimizers' functions. */
void dm_cuda_optim_open(void);

#endif
