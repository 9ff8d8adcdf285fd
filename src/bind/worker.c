/* Lua states in threads of their own, for data sets whose samples Lua code makes.

   A worker is a thread with a fresh Lua state in which the module is open. It shares no Lua
   value with the state that started it: the two exchange messages, each a string of bytes and
   a list of tensors, through one queue in each direction. The tensors travel by reference,
   without their history, so a batch is not copied. What the bytes mean is decided in
   lua/demilune/data/travel.lua.

   The owner's end of a worker is a userdata; its __gc closes the queue of requests, waits for
   the thread and frees what was not received. The thread's end is a userdata in its own
   state. A worker computes serially, so that several of them leave the thread pool to the
   training step. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"
#include "cpu/threads.h"

static const char class_name[] = "demilune.Worker";

/* A message in a queue. The tensors' references belong to it. */
typedef struct Message {
  struct Message *next;
  int64_t n_bytes;
  int n_tensors;
  dm_Tensor **tensors;
  char *bytes;
} Message;

/* A queue of messages, which one end fills and the other empties. `closed`: no message comes
   after those in it. */
typedef struct Queue {
  Message *first, **last;
  bool closed;
  pthread_cond_t changed;
} Queue;

/* The memory that both ends share. The owner makes it and frees it; the thread's end only uses
   it, and ends before that. */
typedef struct Worker {
  pthread_mutex_t lock; /* of both queues */
  Queue requests, answers;
  pthread_t thread;
  unsigned forks;              /* of the process when the thread started */
  char *module, *path, *cpath; /* where the thread's state begins; in one block */
} Worker;

/* One end of a worker, as a userdata. */
typedef struct End {
  Worker *worker; /* NULL: stopped */
  Queue *in, *out;
  bool is_owner;
} End;

/* ---- messages and queues ---- */

/* Frees a message and the references that it holds. */
static void free_message(Message *m) {
  for (int k = 0; k < m->n_tensors; k++) dm_tensor_unref(&m->tensors[k]);
  dm_free(m);
}

/* A message and the memory of its parts, which follow it in one block; NULL without memory. */
static Message *new_message(int64_t n_bytes, int n_tensors) {
  const int64_t head = (int64_t)sizeof(Message),
                list = n_tensors * (int64_t)sizeof(dm_Tensor *);
  Message *m = dm_alloc_zero(head + list + n_bytes + 1);
  if (!m) return NULL;
  m->tensors = (dm_Tensor **)(m + 1);
  m->bytes = (char *)(m->tensors + n_tensors);
  m->n_bytes = n_bytes;
  return m;
}

/* Appends m to the queue, or frees it where the queue is closed. */
static void put(Worker *w, Queue *q, Message *m) {
  pthread_mutex_lock(&w->lock);
  const bool closed = q->closed;
  if (!closed) {
    *q->last = m;
    q->last = &m->next;
    pthread_cond_signal(&q->changed);
  }
  pthread_mutex_unlock(&w->lock);
  if (closed) free_message(m);
}

/* No message comes after those in the queue; whoever waits at it wakes. */
static void close_queue(Worker *w, Queue *q) {
  pthread_mutex_lock(&w->lock);
  q->closed = true;
  pthread_cond_broadcast(&q->changed);
  pthread_mutex_unlock(&w->lock);
}

/* Frees the messages of a queue that no thread uses any more. */
static void empty_queue(Queue *q) {
  while (q->first) {
    Message *m = q->first;
    q->first = m->next;
    free_message(m);
  }
  q->last = &q->first;
}

/* The next message of the queue, after at most ms milliseconds (below 0: any time). NULL when
   none came, with *ended where none will. */
static Message *take(Worker *w, Queue *q, int64_t ms, bool *ended) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (ms >= 0) {
    const int64_t ns = until.tv_nsec + ms % 1000 * 1000000;
    until.tv_sec += (time_t)(ms / 1000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
  }
  pthread_mutex_lock(&w->lock);
  int fault = 0;
  while (!q->first && !q->closed && !fault)
    fault = ms < 0 ? pthread_cond_wait(&q->changed, &w->lock)
                   : pthread_cond_timedwait(&q->changed, &w->lock, &until);
  Message *m = q->first;
  *ended = !m && q->closed;
  if (m) {
    q->first = m->next;
    if (!q->first) q->last = &q->first;
  }
  pthread_mutex_unlock(&w->lock);
  return m;
}

/* ---- the thread ---- */

/* Pushes package, of which the thread's state takes the owner's paths. */
static void set_paths(lua_State *L, const Worker *w) {
  lua_getglobal(L, "package");
  lua_pushstring(L, w->path);
  lua_setfield(L, -2, "path");
  lua_pushstring(L, w->cpath);
  lua_setfield(L, -2, "cpath");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_demilune_core); /* this library, which is open already */
  lua_setfield(L, -2, "demilune.core");
  lua_pop(L, 2);
}

/* Runs require(module)(end) in the thread's state; the worker is a light userdata at 1. */
static int run_module(lua_State *L) {
  Worker *w = lua_touserdata(L, 1);
  if (lua_type(L, 1) != LUA_TLIGHTUSERDATA) return luaL_error(L, "a worker begins once");
  luaL_openlibs(L);
  set_paths(L, w);
  lua_getglobal(L, "require");
  lua_pushstring(L, w->module);
  lua_call(L, 1, 1);
  lua_getglobal(L, "require");
  lua_pushstring(L, "demilune.core"); /* registers the class of ends */
  lua_call(L, 1, 0);
  End *end = lua_newuserdatauv(L, sizeof *end, 0);
  *end = (End){w, &w->requests, &w->answers, false};
  luaL_setmetatable(L, class_name);
  lua_call(L, 1, 0);
  return 0;
}

/* Answers "!" and the message of the failure at -1, or of memory that ran out. */
static void answer_failure(Worker *w, lua_State *L) {
  size_t n = 0;
  const char *text = L ? lua_tolstring(L, -1, &n) : NULL;
  if (!text) {
    text = L ? "an error that is no text" : "no memory for a Lua state";
    n = strlen(text);
  }
  Message *m = new_message((int64_t)n + 1, 0);
  if (!m) return; /* the answers end without one, which the owner reports */
  m->bytes[0] = '!';
  memcpy(m->bytes + 1, text, n);
  put(w, &w->answers, m);
}

/* The thread: runs the module until it returns, reports a failure as the last answer,
   and closes the answers, at which the owner sees the end. */
static void *thread_main(void *arg) {
  Worker *w = arg;
  dm_stay_serial();
  lua_State *L = luaL_newstate();
  int failed = 1;
  if (L) {
    lua_pushcfunction(L, run_module);
    lua_pushlightuserdata(L, w);
    failed = lua_pcall(L, 1, 0, 0) != LUA_OK;
  }
  if (failed) answer_failure(w, L);
  if (L) lua_close(L);
  close_queue(w, &w->answers);
  return NULL;
}

/* Starts the thread with all signals blocked: they go to the program's own threads. */
static int start_thread(Worker *w) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int fault = pthread_create(&w->thread, NULL, thread_main, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return fault;
}

/* ---- the owner's end ---- */

/* An empty queue. Its condition waits by the monotonic clock, so that a change of the
   system's time does not end or stretch a wait. */
static bool init_queue(Queue *q) {
  pthread_condattr_t steady;
  q->last = &q->first;
  if (pthread_condattr_init(&steady) != 0) return false;
  const bool ok = pthread_condattr_setclock(&steady, CLOCK_MONOTONIC) == 0 &&
                  pthread_cond_init(&q->changed, &steady) == 0;
  pthread_condattr_destroy(&steady);
  return ok;
}

/* Makes lock and queues; false, with nothing left behind, where the system gives none. */
static bool init_locks(Worker *w) {
  if (pthread_mutex_init(&w->lock, NULL) != 0) return false;
  if (init_queue(&w->requests)) {
    if (init_queue(&w->answers)) return true;
    pthread_cond_destroy(&w->requests.changed);
  }
  pthread_mutex_destroy(&w->lock);
  return false;
}

/* Frees a worker whose thread has ended, with the messages that nobody received. */
static void free_worker(Worker *w) {
  empty_queue(&w->requests);
  empty_queue(&w->answers);
  pthread_cond_destroy(&w->requests.changed);
  pthread_cond_destroy(&w->answers.changed);
  pthread_mutex_destroy(&w->lock);
  dm_free(w);
}

/* A worker with copies of the three texts behind it; NULL without memory. */
static Worker *alloc_worker(const char *const text[3]) {
  size_t length[3], sum = 0;
  for (int k = 0; k < 3; k++) sum += length[k] = strlen(text[k]) + 1;
  Worker *w = dm_alloc_zero((int64_t)(sizeof *w + sum));
  if (!w) return NULL;
  char *at = (char *)(w + 1);
  char **const to[3] = {&w->module, &w->path, &w->cpath};
  for (int k = 0; k < 3; k++) {
    *to[k] = memcpy(at, text[k], length[k]);
    at += length[k];
  }
  return w;
}

/* worker_new(module, path, cpath) -> worker: a thread that calls require(module)(its end) in
   a Lua state with these package.path and package.cpath. */
static int worker_new(lua_State *L) {
  dm_enter(L);
  const char *const text[3] = {luaL_checkstring(L, 1), luaL_checkstring(L, 2),
                               luaL_checkstring(L, 3)};
  End *end = lua_newuserdatauv(L, sizeof *end, 0);
  *end = (End){.is_owner = true};
  luaL_setmetatable(L, class_name);
  Worker *w = alloc_worker(text);
  if (!w || !init_locks(w)) {
    dm_free(w);
    dm_fail(DM_EMEM, "DataLoader: out of memory for a worker");
    return dm_raise(L);
  }
  w->forks = dm_fork_count();
  const int fault = start_thread(w);
  if (fault) {
    free_worker(w);
    return dm_raise_text(L, "DataLoader: cannot start a worker: %s", strerror(fault));
  }
  *end = (End){w, &w->answers, &w->requests, true};
  return 1;
}

/* Whether the thread stayed in the process that this one was forked from. What it shared may
   be in the middle of a change there, and is left alone. */
static bool is_left_behind(const End *end, const Worker *w) {
  return end->is_owner && w->forks != dm_fork_count();
}

/* worker:stop(), __gc, __close: the worker leaves after the request at hand; this waits for
   it. The thread's own end stops nothing. */
static int worker_stop(lua_State *L) {
  End *end = luaL_checkudata(L, 1, class_name);
  Worker *w = end->worker;
  end->worker = NULL;
  if (!w || !end->is_owner || is_left_behind(end, w)) return 0;
  pthread_mutex_lock(&w->lock);
  Queue late = w->requests; /* what nobody asked for any more */
  w->requests.first = NULL;
  w->requests.last = &w->requests.first;
  pthread_mutex_unlock(&w->lock);
  empty_queue(&late);
  close_queue(w, &w->requests);
  pthread_join(w->thread, NULL);
  free_worker(w);
  return 0;
}

/* ---- both ends ---- */

/* The end at 1; raises for any other value and after stop(). */
static End *check_end(lua_State *L) {
  End *end = luaL_checkudata(L, 1, class_name);
  if (!end->worker) dm_raise_text(L, "DataLoader: the worker has been stopped");
  if (is_left_behind(end, end->worker))
    dm_raise_text(L,
                  "DataLoader: its workers stayed behind when this process was forked; hint: "
                  "make a loader in the process that uses it");
  return end;
}

/* end:send(bytes, {tensors}). */
static int end_send(lua_State *L) {
  dm_enter(L);
  const End *end = check_end(L);
  size_t n_bytes;
  const char *bytes = luaL_checklstring(L, 2, &n_bytes);
  luaL_checktype(L, 3, LUA_TTABLE);
  const int n = (int)lua_rawlen(L, 3);
  for (int k = 0; k < n; k++) {
    lua_rawgeti(L, 3, k + 1);
    dm_check_tensor(L, -1);
    lua_pop(L, 1);
  }
  Message *m = new_message((int64_t)n_bytes, n);
  dm_status st = m ? DM_OK : dm_fail(DM_EMEM, "DataLoader: out of memory for a message");
  for (int k = 0; k < n && st == DM_OK; k++) {
    lua_rawgeti(L, 3, k + 1);
    st = dm_tensor_alias(dm_to_tensor(L, -1), &m->tensors[k]);
    lua_pop(L, 1);
    if (st == DM_OK) m->n_tensors = k + 1;
  }
  if (st != DM_OK) {
    if (m) free_message(m);
    return dm_raise(L);
  }
  memcpy(m->bytes, bytes, n_bytes);
  put(end->worker, end->out, m);
  return 0;
}

/* Pushes the message's bytes and a list of its tensors. The message is at 2, in a userdata
   that frees it when a push raises. */
static int push_message(lua_State *L, State *S, Message *m) {
  lua_pushlstring(L, m->bytes, (size_t)m->n_bytes);
  lua_createtable(L, m->n_tensors, 0);
  for (int k = 0; k < m->n_tensors; k++) {
    Handle *handle = dm_push_handle(L, S);
    handle->t = m->tensors[k];
    m->tensors[k] = NULL;
    lua_rawseti(L, -2, k + 1);
  }
  return 2;
}

/* __gc of a message that is being received. */
static int message_gc(lua_State *L) {
  Message **m = luaL_checkudata(L, 1, "demilune.Message");
  if (*m) free_message(*m);
  *m = NULL;
  return 0;
}

/* end:receive(ms) -> bytes, {tensors}; false when none came in ms milliseconds (nil: waits);
   nil where none will come. */
static int end_receive(lua_State *L) {
  State *S = dm_enter(L);
  const End *end = check_end(L);
  const lua_Integer ms = luaL_optinteger(L, 2, -1);
  bool ended;
  lua_settop(L, 1);
  Message **m = lua_newuserdatauv(L, sizeof *m, 0);
  *m = NULL;
  dm_ended_by(L, "demilune.Message", "__gc", message_gc);
  *m = take(end->worker, end->in, ms, &ended);
  if (*m) return push_message(L, S, *m);
  if (ended) lua_pushnil(L);
  else lua_pushboolean(L, false);
  return 1;
}

void dm_register_worker(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {{"send", end_send},       {"receive", end_receive},
                                     {"stop", worker_stop},    {"__gc", worker_stop},
                                     {"__close", worker_stop}, {NULL, NULL}};
  dm_register_class(L, class_name, methods, S);
}

const luaL_Reg dm_worker_functions[] = {{"worker_new", worker_new}, {NULL, NULL}};
