/* The thread's last failure: one message, recorded where most is known. */
#ifndef DM_ERROR_H
#define DM_ERROR_H

#include <stdarg.h>

#include "base/base.h"

/* Records the message and returns code, so that `return dm_fail(...)` works. */
dm_status dm_fail(dm_status code, const char *fmt, ...) DM_PRINTF(2, 3);
dm_status dm_vfail(dm_status code, const char *fmt, va_list ap) DM_PRINTF(2, 0);

#endif
