/* Notices, by which ranks tell one another where they are, and the words that reports make of
   them.

   The communication thread sends and answers them while the script computes, waits, or is
   asleep elsewhere. */
#ifndef DM_NOTICE_H
#define DM_NOTICE_H

#include "dist/work.h"

typedef enum dm_NoticeKind {
  DM_NOTICE_ASK,     /* wants a STATUS */
  DM_NOTICE_STATUS,  /* where a rank is */
  DM_NOTICE_FAILED,  /* it has waited for too long: all ranks end */
  DM_NOTICE_BROKEN,  /* a call of its library failed: what it took part in never ends */
  DM_NOTICE_GOODBYE, /* it leaves */
} dm_NoticeKind;

/* The state of a rank. */
typedef enum dm_RankState {
  DM_RANK_IDLE,  /* all that it asked for has ended */
  DM_RANK_SENDS, /* something is under way while its script goes on */
  DM_RANK_WAITS  /* its script waits for it */
} dm_RankState;

enum { DM_LAST_TEXT = DM_NAME_TEXT + DM_KEY_TEXT + DM_LINE_TEXT + 16 };

typedef struct dm_Notice {
  int32_t kind, from;
  int32_t state;  /* dm_RankState */
  int32_t failed; /* GOODBYE: it leaves without order */
  int32_t script; /* what the script's thread does, as Linux says: R, S, D, T; or 0 */
  double since;   /* seconds since the collective was asked for, or ended */
  int64_t count[DM_MAX_INDEX]; /* collectives: asked for; of GOODBYE: ended */
  char last[DM_LAST_TEXT];     /* the oldest that has not ended; else the last one; or "" */
  char failure[DM_FAILURE_TEXT];
} dm_Notice;

/* A text that grows, and is cut where it is full. */
typedef struct dm_Words {
  char *text;
  size_t size, n;
} dm_Words;
__attribute__((format(printf, 2, 3))) void dm_say(dm_Words *words, const char *format, ...);

/* "all_reduce (sum) {10} float32 (train.lua:31)" */
void dm_say_call(dm_Words *words, const dm_Header *h);
/* "it waits in ..., since 4 s", or what its last call was, and what its script does since. */
void dm_say_state(dm_Words *words, const dm_Notice *notice);
/* Writes the text and a newline to stderr, as one piece. */
void dm_write_words(const dm_Words *words);
/* Writes the text, and ends the process with DM_EXIT_LATE, without the script. */
enum { DM_EXIT_LATE = 75 };
_Noreturn void dm_end_process(const dm_Words *words);

#endif
