/* How the back end gets hold of the engine. */
#ifndef DM_KERNELS_HOST_H
#define DM_KERNELS_HOST_H

#include "engine/backend.h"

void dm_host_open(const dm_Engine *e);

#endif
