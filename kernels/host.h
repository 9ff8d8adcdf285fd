/* Gives the back end the engine's table of functions. */
#ifndef DM_KERNELS_HOST_H
#define DM_KERNELS_HOST_H

#include "engine/backend.h"

void dm_host_open(const dm_Engine *e);

#endif
