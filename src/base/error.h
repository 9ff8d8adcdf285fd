/* The thread's last failure: one message, recorded where most is known. */
#ifndef DM_ERROR_H
#define DM_ERROR_H

#include "base/base.h"

/* Records the message and returns code, so that `return dm_fail(...)` works. */
dm_status dm_fail(dm_status code, const char *fmt, ...) DM_PRINTF(2, 3);

#endif
