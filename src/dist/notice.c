#include "dist/notice.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void dm_say(dm_Words *words, const char *format, ...) {
  if (words->n + 1 >= words->size) return;
  va_list args;
  va_start(args, format);
  const int n = vsnprintf(words->text + words->n, words->size - words->n, format, args);
  va_end(args);
  if (n > 0) words->n += (size_t)n;
  if (words->n >= words->size) words->n = words->size - 1;
}

void dm_say_call(dm_Words *words, const dm_Header *h) {
  dm_say(words, "%s%s%s (%s)", h->name, *h->key ? " " : "", h->key, h->line);
}

/* Words for a script after its last call, by the state of its thread. */
static const char *since_then(int script) {
  switch (script) {
  case 'R': return "; its script computes";
  case 'S': return "; its script waits for something else, such as a file or a program";
  case 'D': return "; its script waits for a disk";
  case 'T': return "; its process is stopped";
  default: return "";
  }
}

void dm_say_state(dm_Words *words, const dm_Notice *notice) {
  if (!*notice->last) {
    dm_say(words, "it has called no collective%s", since_then(notice->script));
  } else if (notice->state == DM_RANK_WAITS) {
    dm_say(words, "it waits in %s, since %.0f s", notice->last, notice->since);
  } else if (notice->state == DM_RANK_SENDS) {
    dm_say(words, "%s is under way there, since %.0f s%s", notice->last, notice->since,
           since_then(notice->script));
  } else {
    dm_say(words, "its last was %s, which ended %.0f s ago%s", notice->last, notice->since,
           since_then(notice->script));
  }
}

void dm_write_words(const dm_Words *words) {
  words->text[words->n] = '\n'; /* over the final zero, and back */
  const char *at = words->text;
  for (size_t left = words->n + 1; left > 0;) {
    const ssize_t n = write(STDERR_FILENO, at, left);
    if (n <= 0) break;
    at += n;
    left -= (size_t)n;
  }
  words->text[words->n] = 0;
}

_Noreturn void dm_end_process(const dm_Words *words) {
  dm_write_words(words);
  _exit(DM_EXIT_LATE);
}
