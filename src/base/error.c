/* One message buffer a thread. Invariant: always a terminated string. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };
static _Thread_local char message[MESSAGE_BYTES];

dm_status dm_fail(dm_status code, const char *fmt, ...) {
  /* Formatted aside: an argument may point into the old message. */
  char fresh[MESSAGE_BYTES];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(fresh, sizeof fresh, fmt, ap);
  va_end(ap);
  memcpy(message, fresh, sizeof message);
  return code;
}

const char *dm_error(void) { return message; }
