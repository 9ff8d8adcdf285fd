/* One message buffer a thread. Invariant: always a terminated string. */
#include "base/error.h"

#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };
static _Thread_local char message[MESSAGE_BYTES];

/* A message that is too long is cut off. */
dm_status dm_vfail(dm_status code, const char *fmt, va_list ap) {
  /* Formatted aside: an argument may point into the old message. */
  char fresh[MESSAGE_BYTES];
  vsnprintf(fresh, sizeof fresh, fmt, ap);
  memcpy(message, fresh, sizeof message);
  return code;
}

dm_status dm_fail(dm_status code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  dm_vfail(code, fmt, ap);
  va_end(ap);
  return code;
}

const char *dm_error(void) { return message; }
