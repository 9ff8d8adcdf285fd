#include "dist/world.h"

#include <pthread.h>
#include <sched.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/alloc.h"
#include "base/error.h"
#include "cpu/threads.h"
#include "dist/link.h"
#include "dist/notice.h"
#include "dist/stop.h"
#include "engine/backend.h"

/* While the script waits, the thread looks without a pause for as long as a message should
   take, at so many bytes a second: libraries move large ones in parts, a few at each look, and
   naps would make that slow. Then, and while the script computes, which takes the core, it
   naps, in seconds: the longer nothing has ended, the longer, by a share of that time and up to
   a limit, where something is under way and where nothing is. Beside a script that computes, a
   work whose messages are words (near.h) takes a few looks in all, and each of them costs the
   script some microseconds: then naps begin with WORD_NAP. */
static const double LOOK = 100e-6, BYTES_PER_SECOND = 0.5e9;
static const double NAP = 50e-6, WORD_NAP = 400e-6, BUSY_NAP = 1e-3, BUSY_SHARE = 0.05,
                    IDLE_NAP = 4e-3, IDLE_SHARE = 0.5;
/* Seconds between two looks for notices: each costs as much as one at a work. */
static const double NOTICE_PAUSE = 1e-3;
/* Who has left had sent all that it sent: it arrives within this time. */
static const double GRACE = 0.5;
/* An answer to the question where a rank is; the same where this process is about to be killed.
 */
static const double ANSWER = 1.0, LAST_ANSWER = 0.3;
/* The ranks of a group ask one after the other, so that the first one can tell for all. */
static const double TURN = 0.1, MOST_TURNS = 10;
/* From the failure of a work that was too late to the end of the process: at most, and not
   longer than its timeout. */
static const double END_GRACE = 30;
/* The script's thread ends the process where the communication thread lets a work pass its time
   by three answers and as much, at most. */
static const double STUCK = 10;

enum { MOST_NAMED = 8 }; /* ranks that a report tells of one by one */

typedef enum Stage { CLOSED, OPENING, OPEN, LEAVING, CLOSING, LEFT, UNUSABLE } Stage;

/* A notice that is being sent. */
typedef struct Sent {
  dm_Notice notice;
  dm_Request *request;
  struct Sent *next;
} Sent;

/* What is known of another rank. */
typedef struct Peer {
  bool left, answered;
  double left_at;
  dm_Notice notice; /* the last one */
} Peer;

typedef struct World {
  pthread_mutex_t lock; /* of incoming, why, leaving, stats and the last call */
  pthread_cond_t done, kick;
  pthread_t thread;
  bool has_thread;
  unsigned forks;
  const dm_Transport *transport;
  _Atomic Stage stage;
  int rank, n, node_rank, most_tag;
  double timeout, warn_after;
  char why[DM_FAILURE_TEXT]; /* the failure, after which nothing works; or empty */
  /* it is one of the library; it ended a work that the script no longer waits for; a work has
     told it to the script */
  bool is_broken, is_unheard, is_told;
  bool leaves, orderly;
  dm_Group *groups[DM_MAX_INDEX]; /* NULL: there is none */
  int n_group;
  dm_Work *incoming, **incoming_end;
  dm_WorldStats stats;
  atomic_int n_waiting; /* threads of the script in dm_world_wait */
  dm_Header last;       /* the last work that was asked for */
  double last_at;       /* when a work was asked for, or ended */
  long script;          /* the script's thread, as Linux knows it */
  /* the thread's own */
  dm_Work *works;
  Sent *sent;
  Peer *peers; /* (n) */
  dm_Notice inbox;
  dm_Request *inbox_request;
  double asked_at;           /* 0: not asked */
  _Atomic double closing_at; /* when the library's end began */
  double ends_at;            /* then the process ends; 0: not yet */
} World;

static World world = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Waits at the condition for so many seconds at most; the lock is held. */
static void wait_at(pthread_cond_t *cond, double seconds) {
  const double until = now() + seconds;
  const struct timespec t = {.tv_sec = (time_t)until,
                             .tv_nsec = (long)((until - (double)(time_t)until) * 1e9)};
  pthread_cond_timedwait(cond, &world.lock, &t);
}

static void pause_for(double seconds) {
  const struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
  nanosleep(&t, NULL);
}

/* ---- works that end ---- */

/* Tells the script's thread. The list's reference is dropped, but for a work that the library
   may still write, or one that broke when the other ranks knew where its tensor lies (near.h),
   so that they may: its memory is given up for good. */
static void finish(dm_Work *w) {
  const bool is_collective = !dm_work_is_message(w);
  dm_Work *list = w;
  pthread_mutex_lock(&world.lock);
  world.stats.n_sent += w->n_sent;
  world.stats.n_direct += w->n_direct;
  if (is_collective && !w->is_broken) atomic_fetch_add(&w->agree->n_done, 1);
  /* a group that came to nothing on all ranks leaves its number to the next one */
  if (w->kind == DM_WORK_SPLIT && w->failed && w->group->index == world.n_group - 1)
    world.groups[--world.n_group] = NULL;
  world.last_at = now();
  atomic_store(&w->done, true);
  pthread_cond_broadcast(&world.done);
  pthread_mutex_unlock(&world.lock);
  if (!w->request && !(w->is_broken && w->is_shown)) dm_work_unref(&list);
}

/* Lets the script's thread go on behind a work that its device has queued. */
static void tell_queued(void) {
  pthread_mutex_lock(&world.lock);
  pthread_cond_broadcast(&world.done);
  pthread_mutex_unlock(&world.lock);
}

/* Ends the links of devices; well: all ranks have done all that they asked for. */
static void end_links(bool well) {
  for (int i = DM_MAX_INDEX - 1; i >= 0; i--)
    if (world.groups[i]) dm_link_end(world.groups[i], well);
}

/* Nothing works from now on: ends all works with that text. What devices do is given up first,
   so that nothing waits there for ranks that do not come. */
static void fail_world(const char *text) {
  pthread_mutex_lock(&world.lock);
  if (!*world.why) snprintf(world.why, sizeof world.why, "%s", text);
  pthread_mutex_unlock(&world.lock);
  end_links(false);
  while (world.works) {
    dm_Work *w = world.works;
    world.works = w->next;
    if (atomic_load(&w->queued)) world.is_unheard = true;
    else world.is_told = true;
    dm_work_break(w, text);
    finish(w);
  }
}

/* ---- notices ---- */

/* What the script's thread does: its state in Linux's words (proc_pid_stat(5)), or 0. */
static int script_state(void) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/self/task/%ld/stat", world.script);
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  const char *name_end = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
  fclose(f);
  return name_end && name_end[1] == ' ' ? (uint8_t)name_end[2] : 0;
}

/* Describes this rank. */
static void describe(dm_Notice *notice, dm_NoticeKind kind) {
  const dm_Work *oldest = world.works;
  memset(notice, 0, sizeof *notice);
  notice->script = script_state();
  pthread_mutex_lock(&world.lock);
  notice->kind = (int32_t)kind;
  notice->from = world.rank;
  if (oldest) notice->state = atomic_load(&world.n_waiting) > 0 ? DM_RANK_WAITS : DM_RANK_SENDS;
  notice->failed = kind == DM_NOTICE_GOODBYE && (!world.orderly || *world.why);
  notice->since = now() - (oldest ? oldest->posted : world.last_at);
  for (int i = 0; i < DM_MAX_INDEX; i++)
    if (world.groups[i])
      notice->count[i] = kind == DM_NOTICE_GOODBYE
                             ? (int64_t)atomic_load(&world.groups[i]->n_done)
                             : world.groups[i]->n_post;
  dm_Words last = {notice->last, sizeof notice->last, 0};
  if (oldest || *world.last.name) dm_say_call(&last, oldest ? &oldest->header : &world.last);
  snprintf(notice->failure, sizeof notice->failure, "%s", world.why);
  pthread_mutex_unlock(&world.lock);
}

static void break_world(const char *text);

/* Sends a notice; without memory for one it is not sent, and its reader goes on without it, but
   for a goodbye, for which all wait. */
static void send_notice(dm_NoticeKind kind, int to) {
  Sent *s = dm_alloc_zero(sizeof *s);
  if (!s && kind == DM_NOTICE_GOODBYE) break_world("out of memory to say goodbye");
  if (!s) return;
  describe(&s->notice, kind);
  const dm_Transport *t = world.transport;
  s->request =
      t->post(t->notices(), DM_TRANSFER_SEND, &s->notice, NULL, sizeof s->notice, to, 0);
  if (!s->request) {
    dm_free(s);
    break_world(t->text());
    return;
  }
  s->next = world.sent;
  world.sent = s;
}

static void send_all(dm_NoticeKind kind) {
  for (int r = 0; r < world.n; r++) {
    const bool may_read = kind == DM_NOTICE_GOODBYE || kind == DM_NOTICE_BROKEN;
    if (r != world.rank && (may_read || !world.peers[r].left)) send_notice(kind, r);
  }
}

/* A call of the library has failed, or memory has, in the middle of what all ranks take part
   in: ends all works, and tells the other ranks. */
static void break_world(const char *text) {
  if (world.is_broken) return;
  world.is_broken = true;
  fail_world(text);
  send_all(DM_NOTICE_BROKEN);
}

/* Frees the notices that have gone, and those that failed unless MPI may still read them. */
static void free_sent(void) {
  bool has_failed = false;
  for (Sent **at = &world.sent; *at;) {
    Sent *s = *at;
    const int state = world.transport->test(&s->request);
    if (state == 0) {
      at = &s->next;
      continue;
    }
    has_failed |= state < 0;
    *at = s->next;
    if (!s->request) dm_free(s);
  }
  if (has_failed) break_world(world.transport->text());
}

static void post_inbox(void) {
  const dm_Transport *t = world.transport;
  world.inbox_request =
      t->post(t->notices(), DM_TRANSFER_RECEIVE, NULL, &world.inbox, sizeof world.inbox, -1, 0);
  if (!world.inbox_request) break_world(t->text());
}

/* What a rank takes part in never ends, for its library has failed. */
static void hear_of_break(const dm_Notice *notice) {
  char text[DM_FAILURE_TEXT];
  snprintf(text, sizeof text, "rank %d has failed: %.1024s", notice->from, notice->failure);
  fail_world(text);
}

/* A rank has waited for too long, and all end: this one says so too, where it waits itself. */
static void hear_of_failure(const dm_Notice *notice) {
  for (dm_Work *w = world.works; w; w = w->next)
    w->deadline = fmin(w->deadline, now() + 2 * ANSWER);
  if (world.ends_at == 0) world.ends_at = now() + fmin(world.timeout, END_GRACE);
  if (!world.works) fail_world(notice->failure);
}

/* One of the ranks that wait reports for all: this one leaves its oldest work to a rank that
   has come as far and asks, unless it has asked itself and is the first of the two. */
static void leave_to_asker(const dm_Notice *notice) {
  dm_Work *w = world.works;
  if (!w || w->number == 0 || notice->state == DM_RANK_IDLE) return;
  if (notice->count[w->agree->index] < w->number) return;
  if (world.asked_at == 0 || notice->from < world.rank) w->warn_at = (double)INFINITY;
}

static void read_notice(const dm_Notice *notice) {
  if (notice->from < 0 || notice->from >= world.n) return;
  Peer *p = &world.peers[notice->from];
  if (notice->kind == DM_NOTICE_ASK) {
    leave_to_asker(notice);
    send_notice(DM_NOTICE_STATUS, notice->from);
    return;
  }
  p->notice = *notice;
  p->answered = true;
  if (notice->kind == DM_NOTICE_FAILED) {
    hear_of_failure(notice);
  } else if (notice->kind == DM_NOTICE_BROKEN) {
    hear_of_break(notice);
  } else if (notice->kind == DM_NOTICE_GOODBYE) {
    p->left = true;
    p->left_at = now();
  }
}

/* Reads the notices that have come. */
static void read_notices(void) {
  int state = 0;
  while (world.inbox_request && (state = world.transport->test(&world.inbox_request)) == 1) {
    const dm_Notice notice = world.inbox;
    post_inbox();
    read_notice(&notice);
  }
  if (state >= 0) return;
  world.inbox_request = NULL; /* it is deaf from now on */
  break_world(world.transport->text());
}

/* ---- who is not there ---- */

/* How a rank keeps a work waiting. */
typedef enum Absence { IS_THERE, NO_ANSWER, NOT_THERE, HAS_LEFT } Absence;
static const char *const ABSENCES[] = {"is there", "does not answer",
                                       "is not there: ", "has left"};

static Absence absence(const dm_Work *w, int i) {
  const Peer *p = &world.peers[w->agree->ranks[i]];
  if (i == w->agree->me || (dm_work_is_message(w) && w->peer >= 0 && i != w->peer))
    return IS_THERE;
  if (p->left && *p->notice.failure) return HAS_LEFT;
  if (!p->answered) return NO_ANSWER;
  return w->number > 0 && p->notice.count[w->agree->index] >= w->number ? IS_THERE : NOT_THERE;
}

/* Tells of those ranks that keep the work waiting, each after `before`, or of those that have
   left;
   -> how many there are. */
static int say_ranks(dm_Words *words, const dm_Work *w, const char *before, bool left) {
  int n = 0;
  for (int i = 0; i < w->agree->n; i++) {
    const int rank = w->agree->ranks[i];
    const Absence a = absence(w, i);
    if (a == IS_THERE || (a == HAS_LEFT) != left || n++ >= MOST_NAMED) continue;
    dm_say(words, "%srank %d %s", before, rank, ABSENCES[a]);
    if (a == NOT_THERE) dm_say_state(words, &world.peers[rank].notice);
  }
  if (n > MOST_NAMED) dm_say(words, "%s%d ranks more are not there", before, n - MOST_NAMED);
  return n;
}

/* Tells who keeps the work waiting. */
static void say_absent(dm_Words *words, const dm_Work *w, const char *before) {
  if (say_ranks(words, w, before, false) > 0 || say_ranks(words, w, before, true) > 0) return;
  dm_say(words, "%sall ranks are there: the data is slow, or a rank is stopped", before);
}

/* Ends the world because of a work that waits for too long, and tells the other ranks. */
static void give_up(const dm_Work *w) {
  char text[DM_FAILURE_TEXT];
  dm_Words words = {text, sizeof text, 0};
  dm_say(&words, "rank %d has waited for %.3g s in ", world.rank, now() - w->posted);
  dm_say_call(&words, &w->header);
  say_absent(&words, w, "; ");
  world.ends_at = now() + fmin(world.timeout, END_GRACE);
  fail_world(text);
  send_all(DM_NOTICE_FAILED);
}

/* The ranks that are there too: "ranks 0, 2, 3 are there" */
static void say_present(dm_Words *words, const dm_Work *w, const char *before) {
  int n = 0;
  for (int i = 0; i < w->agree->n && !dm_work_is_message(w); i++) {
    const dm_Notice *notice = &world.peers[w->agree->ranks[i]].notice;
    if (i == w->agree->me || absence(w, i) != IS_THERE) continue;
    if (n++ < MOST_NAMED)
      dm_say(words, "%srank %d %s, since %.0f s", n == 1 ? before : ", ", notice->from,
             notice->state == DM_RANK_WAITS ? "waits there too" : "is there", notice->since);
  }
  if (n > MOST_NAMED) dm_say(words, " and %d ranks more", n - MOST_NAMED);
}

/* Says on stderr that a work waits for long, for whom, and what happens if it goes on. */
static void warn(dm_Work *w) {
  char text[2 * DM_FAILURE_TEXT];
  dm_Words words = {text, sizeof text, 0};
  w->warn_at = (double)INFINITY;
  dm_say(&words, "demilune: rank %d has waited for %.3g s in ", world.rank, now() - w->posted);
  dm_say_call(&words, &w->header);
  say_absent(&words, w, "\ndemilune:   ");
  say_present(&words, w, "\ndemilune:   ");
  dm_say(&words, "\ndemilune:   after %.3g s all ranks end (init_process_group{timeout =})",
         w->deadline - w->posted);
  dm_write_words(&words);
}

/* Whether all ranks that have not left have said where they are. */
static bool all_answered(void) {
  for (int r = 0; r < world.n; r++) {
    if (r != world.rank && !world.peers[r].answered) return false;
  }
  return true;
}

/* Asks the others where they are. */
static void ask(void) {
  for (int r = 0; r < world.n; r++) world.peers[r].answered = world.peers[r].left;
  world.asked_at = now();
  send_all(DM_NOTICE_ASK);
}

/* The rank without which the work cannot end since it has left, or -1; of a message of any rank
   the last one of those that have all left. */
static int missing_rank(const dm_Work *w) {
  const bool is_of_any = dm_work_is_message(w) && w->peer < 0;
  int n_left = 0;
  for (int i = 0; i < w->agree->n; i++) {
    const int rank = w->agree->ranks[i];
    const Peer *p = &world.peers[rank];
    if (!p->left || now() - (p->left_at > w->posted ? p->left_at : w->posted) < GRACE) continue;
    if (is_of_any && ++n_left == w->agree->n - 1) return rank;
    if (is_of_any) continue;
    if (dm_work_is_message(w) ? i == w->peer : p->notice.count[w->agree->index] < w->number)
      return rank;
  }
  return -1;
}

/* Ends the world because a rank that the work waits for has left. */
static void tell_leaver(int rank) {
  char text[DM_FAILURE_TEXT];
  const dm_Notice *notice = &world.peers[rank].notice;
  int n = snprintf(text, sizeof text, "rank %d has left after %lld collectives", rank,
                   (long long)notice->count[0]);
  if (*notice->failure)
    snprintf(text + n, sizeof text - (size_t)n, ", for it failed: %.1024s", notice->failure);
  else if (notice->failed)
    snprintf(text + n, sizeof text - (size_t)n,
             ": its script ended, or raised an error, without destroy_process_group");
  fail_world(text);
}

/* Whether a work is to be warned of: the oldest one alone, and once. */
static bool is_slow(const dm_Work *w, double at) { return w == world.works && at > w->warn_at; }

/* Looks for works that will never end, or not in time; asks the others before it says so. */
static void look_for_faults(void) {
  const double at = now();
  for (dm_Work *w = world.works; w; w = w->next) {
    const int rank = missing_rank(w);
    if (rank >= 0) {
      tell_leaver(rank);
      return;
    }
    const bool is_late = at > w->deadline;
    if (!is_late && !is_slow(w, at)) continue;
    if (world.asked_at == 0) {
      ask();
    } else if (all_answered() || at - world.asked_at > ANSWER) {
      world.asked_at = 0;
      if (is_late) give_up(w);
      else warn(w);
    }
    return;
  }
  world.asked_at = 0;
}

/* Ends the process where all ranks end and its script goes on. */
static void look_for_end(void) {
  if (world.ends_at == 0 || now() < world.ends_at) return;
  char text[DM_FAILURE_TEXT + 128];
  dm_Words words = {text, sizeof text, 0};
  dm_say(&words, "demilune: rank %d ends itself with status %d, since its script has not: %s",
         world.rank, DM_EXIT_LATE, world.why);
  dm_end_process(&words);
}

/* Says where this rank is, which a signal ends, and ends it. */
static _Noreturn void die(int signal) {
  char text[DM_FAILURE_TEXT];
  dm_Words words = {text, sizeof text, 0};
  dm_Notice own;
  describe(&own, DM_NOTICE_STATUS);
  dm_say(&words, "demilune: rank %d is ended by %s: ", world.rank, dm_stop_name(signal));
  dm_say_state(&words, &own);
  if (world.works) {
    ask();
    while (!all_answered() && now() - world.asked_at < LAST_ANSWER) {
      read_notices();
      free_sent();
      pause_for(NAP);
    }
    say_absent(&words, world.works, "; ");
  }
  dm_write_words(&words);
  dm_stop_die(signal);
  while (true) pause_for(NAP);
}

/* Says where a rank waits that was asked to stop and cannot: mpirun does so, where another rank
   was killed, and ends it a second later. */
static void look_for_signals(void) {
  static _Thread_local double asked_at;
  if (dm_stop_killed()) {
    if (*world.why || world.stage == LEAVING) dm_stop_die(dm_stop_killed()); /* all is said */
    else die(dm_stop_killed());
  }
  if (!dm_stop_asked() || asked_at < 0) return;
  if (asked_at == 0) asked_at = now();
  if (now() - asked_at < LAST_ANSWER) return;
  asked_at = -1;
  if (world.works && world.works->posted < now() - LAST_ANSWER)
    world.works->warn_at = fmin(world.works->warn_at, now());
}

/* ---- the thread ---- */

/* Takes what the script has handed over. */
static void take_incoming(void) {
  dm_Work **at = &world.works;
  while (*at) at = &(*at)->next;
  pthread_mutex_lock(&world.lock);
  *at = world.incoming;
  world.incoming = NULL;
  world.incoming_end = &world.incoming;
  char why[sizeof world.why];
  memcpy(why, world.why, sizeof why);
  pthread_mutex_unlock(&world.lock);
  if (*why && world.works) fail_world(why);
}

/* Whether a work before it in the list has to end first. */
static bool is_blocked(const dm_Work *w) {
  for (const dm_Work *before = world.works; before != w; before = before->next) {
    if (dm_work_blocks(before, w)) return true;
  }
  return false;
}

/* Ends a work that failed on this rank alone, in the middle of which others may be. */
static void end_broken(dm_Work *w) {
  char text[DM_FAILURE_TEXT];
  memcpy(text, w->failure, sizeof text);
  if (atomic_load(&w->queued)) world.is_unheard = true;
  else world.is_told = true;
  finish(w);
  break_world(text);
}

/* One step of a work; false: it could not go on. */
static bool advance_one(dm_Work *w) {
  if (w->step == DM_WORK_LINKING && !w->request) return dm_link_advance(w, world.transport);
  return dm_work_advance(w, world.transport);
}

/* Advances all works; true: one of them went on. */
static bool advance(void) {
  bool moved = false;
  for (dm_Work **at = &world.works; *at;) {
    dm_Work *w = *at;
    const bool was_queued = atomic_load(&w->queued);
    if (!is_blocked(w)) moved |= advance_one(w);
    if (!was_queued && atomic_load(&w->queued)) tell_queued();
    if (w->step != DM_WORK_ENDED) {
      at = &w->next;
      continue;
    }
    *at = w->next;
    if (w->is_broken && w->agree->n > 1) {
      end_broken(w);
      return true;
    }
    finish(w);
  }
  return moved;
}

/* Seconds that the messages under way should take. */
static double expected(void) {
  double seconds = LOOK;
  for (const dm_Work *w = world.works; w; w = w->next)
    if (w->request) seconds += (double)w->n_moving / BYTES_PER_SECOND;
  return seconds;
}

/* Whether all messages under way are words. */
static bool only_words(void) {
  for (const dm_Work *w = world.works; w; w = w->next)
    if (w->request && !w->is_shown) return false;
  return true;
}

/* Lets the processor go for a moment, or until the script hands something over. */
static void nap(bool moved) {
  static _Thread_local double moved_at;
  const double at = now();
  const bool waits = atomic_load(&world.n_waiting) > 0;
  if (moved) moved_at = at;
  if (world.works && waits && at - moved_at < expected()) {
    sched_yield();
    return;
  }
  const double least = world.works && !waits && only_words() ? WORD_NAP : NAP;
  const double most = world.works ? BUSY_NAP : IDLE_NAP;
  const double grown = (world.works ? BUSY_SHARE : IDLE_SHARE) * (at - moved_at);
  const double seconds = fmax(least, fmin(grown, most));
  pthread_mutex_lock(&world.lock);
  if (!world.incoming && (!world.leaves || world.stage == LEAVING))
    wait_at(&world.kick, seconds);
  pthread_mutex_unlock(&world.lock);
}

/* Says goodbye, once nothing is under way or there is no time for it. True: has been said. */
static bool say_goodbye(void) {
  pthread_mutex_lock(&world.lock);
  const bool leaves = world.leaves, orderly = world.orderly, said = world.stage == LEAVING;
  pthread_mutex_unlock(&world.lock);
  if (said || !leaves || (orderly && world.works)) return said;
  send_all(DM_NOTICE_GOODBYE);
  pthread_mutex_lock(&world.lock);
  world.stage = LEAVING;
  pthread_mutex_unlock(&world.lock);
  return true;
}

static bool all_left(void) {
  for (int r = 0; r < world.n; r++) {
    if (r != world.rank && !world.peers[r].left) return false;
  }
  return true;
}

/* Whether no rank has failed, so that MPI can be ended; it would wait for ever otherwise. */
static bool all_well(void) {
  if (world.works || world.sent || *world.why || !all_left()) return false;
  for (int r = 0; r < world.n; r++) {
    if (world.peers[r].notice.failure[0]) return false;
  }
  return true;
}

static void set_stage(Stage stage) {
  pthread_mutex_lock(&world.lock);
  world.stage = stage;
  pthread_cond_broadcast(&world.done);
  pthread_mutex_unlock(&world.lock);
}

/* Makes the world's group of all ranks. */
static bool make_world(void) {
  int *ranks = dm_alloc(world.n * (int64_t)sizeof *ranks);
  world.peers = dm_alloc_zero(world.n * (int64_t)sizeof *world.peers);
  for (int r = 0; ranks && r < world.n; r++) ranks[r] = r;
  const bool made = ranks && world.peers && dm_world_new_group(world.n, ranks);
  dm_free(ranks);
  if (made) world.groups[0]->comm = world.transport->world();
  return made;
}

/* Opens the transport and makes the world; false: world.why says why not. */
static bool open_world(void) {
  char why[DM_FAILURE_TEXT] = "";
  if (!world.transport->open(&world.rank, &world.n, &world.node_rank, &world.most_tag))
    snprintf(why, sizeof why, "%s", world.transport->text());
  else if (!make_world()) snprintf(why, sizeof why, "out of memory");
  pthread_mutex_lock(&world.lock);
  snprintf(world.why, sizeof world.why, "%s", why);
  pthread_mutex_unlock(&world.lock);
  return !*why;
}

/* Says, for a script that has ended without a word, who waited for it. */
static void tell_end(void) {
  char text[DM_FAILURE_TEXT];
  dm_Words words = {text, sizeof text, 0};
  if (world.orderly || *world.why) return;
  for (int r = 0; r < world.n; r++) {
    const dm_Notice *notice = &world.peers[r].notice;
    if (r == world.rank || !world.peers[r].left || !*notice->failure) continue;
    dm_say(&words,
           "demilune: the script of rank %d has ended, or raised an error, without "
           "destroy_process_group, and rank %d waited for it in %s",
           world.rank, r, notice->last);
    dm_write_words(&words);
    return;
  }
}

/* Works until the process has left: the goodbyes of the others are there, or time is over. */
static void work(void) {
  double said_at = 0, read_at = 0;
  while (true) {
    take_incoming();
    const bool moved = advance();
    if (now() - read_at > NOTICE_PAUSE) {
      read_notices();
      free_sent();
      read_at = now();
    }
    look_for_faults();
    look_for_end();
    look_for_signals();
    if (say_goodbye()) {
      if (said_at == 0) said_at = now();
      const double most = *world.why ? GRACE : world.timeout;
      if ((all_left() && !world.sent) || now() - said_at > most) break;
    }
    nap(moved);
  }
  tell_end();
}

/* Ends the library, also where the inbox cannot be given up: the others wait for this rank. */
static void close_transport(void) {
  const dm_Transport *t = world.transport;
  char text[DM_FAILURE_TEXT] = "";
  world.closing_at = now();
  set_stage(CLOSING);
  if (world.inbox_request && !t->cancel(&world.inbox_request))
    snprintf(text, sizeof text, "%s", t->text());
  if (!t->close() && !*text) snprintf(text, sizeof text, "%s", t->text());
  if (!*text) return;
  world.is_broken = true;
  fail_world(text);
}

/* Lets Linux wake the thread when its nap is over: by itself it may make one of 50 us as long
   as 100, and where the script has the processor it lets the script go on for some milliseconds
   first, unless the thread asks for shorter turns than others have (Linux 6.12; what an older
   one does not know it refuses). */
static void wake_in_time(void) {
#ifdef PR_SET_TIMERSLACK
  prctl(PR_SET_TIMERSLACK, 1000UL); /* nanoseconds */
#endif
#ifdef SYS_sched_setattr
  /* struct sched_attr of sched_setattr(2) */
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* nanoseconds */
  } turns = {.size = sizeof turns};
  if (syscall(SYS_sched_getattr, 0, &turns, sizeof turns, 0) || turns.policy != SCHED_OTHER)
    return;
  turns.runtime = 100000;
  syscall(SYS_sched_setattr, 0, &turns, 0);
#endif
}

static void *communicate(void *nothing) {
  DM_UNUSED(nothing);
  dm_stay_serial();
  wake_in_time();
  if (!open_world()) {
    set_stage(UNUSABLE);
    return NULL;
  }
  post_inbox();
  set_stage(OPEN);
  work();
  const bool well = all_well();
  end_links(well);
  if (well) close_transport();
  set_stage(LEFT);
  return NULL;
}

/* ---- the script's thread ---- */

/* The transport of mpi.so; NULL: *why says why not. It stays open for good. */
static const dm_Transport *mpi_transport(const char **why) {
  static void *symbol;
  *why = NULL;
  if (!symbol)
    *why = dm_open_library("mpi.so", "DEMILUNE_MPI", "this build has no MPI part (mpi.so)",
                           DM_TRANSPORT_SYMBOL, &symbol);
  if (*why) return NULL;
  const dm_Transport *t = symbol;
  if (strcmp(t->version, DM_VERSION) == 0) return t;
  *why = "mpi.so is of another version of demilune";
  return NULL;
}

const char *dm_world_lacks(void) {
  const char *why;
  mpi_transport(&why);
  return why;
}

static void init_conditions(void) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&world.done, &attr);
  pthread_cond_init(&world.kick, &attr);
  pthread_condattr_destroy(&attr);
}

/* Signals belong to the script's thread, and to no thread that MPI starts. */
static bool start_thread(void) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = pthread_create(&world.thread, NULL, communicate, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return !failed;
}

/* Frees what a world of one holds, which may be opened again. MPI does not begin twice, and a
   work that never ended still points to its group. */
static void clear_world(void) {
  for (int i = 0; i < DM_MAX_INDEX; i++) dm_free(world.groups[i]);
  memset(world.groups, 0, sizeof world.groups);
  world.n_group = 0;
  dm_free(world.peers);
  world.peers = NULL;
  world.leaves = world.has_thread = false;
  world.stats = (dm_WorldStats){0};
  world.last = (dm_Header){0};
  *world.why = 0;
  pthread_cond_destroy(&world.done);
  pthread_cond_destroy(&world.kick);
  world.stage = CLOSED;
}

const char *dm_world_open(bool by_mpi, double timeout, double warn_after) {
  const char *why = NULL;
  if (world.stage >= CLOSING)
    return "the process group has ended, and MPI cannot begin again in this process";
  if (world.stage != CLOSED) return "the process group is there already";
  world.transport = by_mpi ? mpi_transport(&why) : &dm_self_transport;
  if (why) return why;
  world.has_thread = by_mpi;
  world.forks = dm_fork_count();
  world.timeout = timeout;
  world.warn_after = warn_after;
#ifdef __linux__
  world.script = syscall(SYS_gettid);
#endif
  world.incoming_end = &world.incoming;
  init_conditions();
  if (!by_mpi) {
    if (!open_world()) {
      clear_world();
      return "out of memory";
    }
    world.stage = OPEN;
    return NULL;
  }
  world.stage = OPENING;
  dm_stop_catch(true);
  if (start_thread()) return NULL;
  dm_stop_catch(false);
  world.stage = CLOSED;
  return "no thread could be started";
}

bool dm_world_opened(int ms, const char **why) {
  pthread_mutex_lock(&world.lock);
  if (world.stage == OPENING) wait_at(&world.done, ms / 1e3);
  const Stage stage = world.stage;
  pthread_mutex_unlock(&world.lock);
  *why = stage == UNUSABLE ? world.why : NULL;
  return stage == OPEN;
}

bool dm_world_is_open(void) { return world.stage == OPEN && world.forks == dm_fork_count(); }
int dm_world_rank(void) { return world.rank; }
int dm_world_node_rank(void) { return world.node_rank; }
int dm_world_most_tag(void) { return (world.most_tag - 1) / 2; }

dm_Group *dm_world_group(int index) {
  return index >= 0 && index < DM_MAX_INDEX ? world.groups[index] : NULL;
}

/* A group of these ranks without an index. */
static dm_Group *make_group(int n, const int *ranks) {
  dm_Group *g = dm_alloc_zero((int64_t)sizeof *g + n * (int64_t)sizeof *ranks);
  if (!g) {
    dm_fail(DM_EMEM, "new_group: out of memory");
    return NULL;
  }
  g->ranks = (int *)(g + 1);
  memcpy(g->ranks, ranks, sizeof *ranks * (size_t)n);
  g->n = n;
  g->me = -1;
  for (int i = 0; i < n; i++) {
    if (ranks[i] == world.rank) g->me = i;
  }
  return g;
}

dm_Group *dm_world_new_group(int n, const int *ranks) {
  if (world.n_group == DM_MAX_GROUP) {
    dm_fail(DM_ESTATE, "new_group: more than %d groups", DM_MAX_GROUP - 1);
    return NULL;
  }
  dm_Group *g = make_group(n, ranks);
  if (!g) return NULL;
  pthread_mutex_lock(&world.lock);
  g->index = world.n_group;
  g->of = world.groups[0];
  world.groups[world.n_group++] = g;
  pthread_mutex_unlock(&world.lock);
  return g;
}

/* One that came to nothing on all ranks is made again. */
dm_Group *dm_world_new_aside(dm_Group *of) {
  const int index = DM_MAX_GROUP + of->index;
  if (world.groups[index]) return world.groups[index];
  dm_Group *g = make_group(of->n, of->ranks);
  if (!g) return NULL;
  pthread_mutex_lock(&world.lock);
  g->index = index;
  g->of = of;
  world.groups[index] = g;
  pthread_mutex_unlock(&world.lock);
  return g;
}

dm_Work *dm_work_new(void) {
  dm_Work *w = dm_alloc_zero(sizeof *w);
  if (w) w->refs = 1;
  return w;
}

/* Runs the work to its end: a world of one has no thread. */
static void run_alone(dm_Work *w) {
  while (w->step != DM_WORK_ENDED) advance_one(w);
  finish(w);
}

dm_status dm_world_post(dm_Work *w) {
  dm_work_prepare(w);
  w->posted = now();
  w->deadline = w->posted + world.timeout;
  w->warn_at = w->posted + world.warn_after + TURN * fmin(w->agree->me, MOST_TURNS);
  dm_work_ref(w); /* the list's */
  pthread_mutex_lock(&world.lock);
  world.stats.n_call++;
  if (!dm_work_is_message(w)) { w->number = ++w->agree->n_post; }
  if (!*world.why) {
    world.last = w->header;
    world.last_at = w->posted;
  }
  if (world.has_thread) {
    *world.incoming_end = w;
    world.incoming_end = &w->next;
    pthread_cond_signal(&world.kick);
  }
  pthread_mutex_unlock(&world.lock);
  if (!world.has_thread) run_alone(w);
  return DM_OK;
}

/* Ends the process: the communication thread has not come back from a call of the library. */
_Noreturn static void end_stuck(const dm_Work *w) {
  char text[DM_FAILURE_TEXT];
  dm_Words words = {text, sizeof text, 0};
  dm_say(&words,
         "demilune: rank %d ends itself with status %d, for MPI hangs: waited for %.3g s in ",
         world.rank, DM_EXIT_LATE, now() - w->posted);
  dm_say_call(&words, &w->header);
  dm_end_process(&words);
}

/* Whether the script can go on: the work is done, or where it may be, queued on its device. */
static bool is_over(const dm_Work *w, bool queued) {
  return atomic_load(&w->done) || (queued && atomic_load(&w->queued));
}

/* Waits for the work for so many milliseconds. */
static bool wait_for(const dm_Work *w, int ms, bool queued) {
  if (is_over(w, queued)) return true;
  const double from = now();
  pthread_mutex_lock(&world.lock);
  atomic_fetch_add(&world.n_waiting, 1);
  pthread_cond_signal(&world.kick);
  while (!is_over(w, queued) && now() - from < ms / 1e3)
    wait_at(&world.done, ms / 1e3 - (now() - from));
  const bool is_stuck =
      !is_over(w, queued) && now() > w->deadline + 3 * ANSWER + fmin(world.timeout, STUCK);
  atomic_fetch_sub(&world.n_waiting, 1);
  world.stats.waited += now() - from;
  pthread_mutex_unlock(&world.lock);
  if (is_stuck) end_stuck(w);
  return is_over(w, queued);
}

bool dm_world_wait(const dm_Work *w, int ms) { return wait_for(w, ms, true); }
bool dm_world_wait_done(const dm_Work *w, int ms) { return wait_for(w, ms, false); }

/* The thread reads the deadline without the lock: a moment earlier or later is no matter. */
void dm_world_limit(dm_Work *w, double seconds) { w->deadline = now() + seconds; }

void dm_world_leave(bool orderly) {
  if (world.stage != OPEN || world.forks != dm_fork_count()) return;
  pthread_mutex_lock(&world.lock);
  world.leaves = true;
  world.orderly = orderly && !*world.why;
  if (!world.has_thread) world.stage = LEFT;
  pthread_cond_signal(&world.kick);
  pthread_mutex_unlock(&world.lock);
}

/* Whether the library does not come back from its end: another rank has failed in its own. */
static bool is_stuck_at_end(void) {
  return world.stage == CLOSING && now() - world.closing_at > world.timeout;
}

bool dm_world_left(int ms, const char **why) {
  *why = NULL;
  /* a thread that still opens the world is in MPI, which waits for ranks that may never come */
  if (world.stage == CLOSED || world.stage == OPENING || world.forks != dm_fork_count())
    return true;
  const bool by_mpi = world.has_thread;
  pthread_mutex_lock(&world.lock);
  if (by_mpi && world.stage < LEFT) wait_at(&world.done, ms / 1e3);
  const bool left = world.stage >= LEFT, is_stuck = by_mpi && !left && is_stuck_at_end();
  pthread_mutex_unlock(&world.lock);
  if (by_mpi && !left && !is_stuck) return false;
  if (is_stuck) {
    *why = "MPI hangs at its end: another rank has failed there";
    pthread_detach(world.thread);
  } else if (by_mpi) {
    pthread_join(world.thread, NULL);
    if ((world.is_broken || world.is_unheard) && !world.is_told) *why = world.why;
  }
  if (by_mpi) dm_stop_catch(false);
  world.has_thread = false;
  if (!by_mpi && !*world.why && world.stage == LEFT) clear_world();
  return true;
}

dm_WorldStats dm_world_stats(void) {
  pthread_mutex_lock(&world.lock);
  const dm_WorldStats stats = world.stats;
  pthread_mutex_unlock(&world.lock);
  return stats;
}
