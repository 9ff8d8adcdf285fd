/* A list of plans to be made, in the order of their numbers, and the threads that make them.

   A job is WAITING, MAKING or MADE; a MADE one is there until its call comes, or another job
   needs its entry. `lock` guards the list, and nobody holds it while a plan is made. The
   threads live as long as the process, which waits at its end for those that are in the
   library, before the library's own memory goes. */
#include "kernels/cuda.h"

#if __has_include(<cudnn.h>)

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/dnn_prefetch.h"

enum { MAX_JOB = 64, MAX_THREAD = 4 };

typedef struct Job {
  enum { NONE, WAITING, MAKING, MADE } state;
  bool asked; /* the library, for a plan that is MADE */
  uint64_t number;
  dm_DnnKey key;
  dm_DnnBuildFn *build;
  dm_DnnMakeFn *make;
} Job;

static Job jobs[MAX_JOB];
static uint64_t last_number;
static pthread_t threads[MAX_THREAD];
static int n_thread, n_idle;
static pid_t owner; /* the process of the threads: a child that it forks has none */
static bool ending;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER, made = PTHREAD_COND_INITIALIZER;

static Job *find(const dm_DnnKey *key) {
  for (int i = 0; i < MAX_JOB; i++)
    if (jobs[i].state != NONE && memcmp(&jobs[i].key, key, sizeof *key) == 0) return &jobs[i];
  return NULL;
}

/* The oldest job in that state, or NULL. */
static Job *oldest(int state) {
  Job *best = NULL;
  for (int i = 0; i < MAX_JOB; i++)
    if ((int)jobs[i].state == state && (!best || jobs[i].number < best->number))
      best = &jobs[i];
  return best;
}

static void *make_plans(void *unused) {
  DM_UNUSED(unused);
  pthread_mutex_lock(&lock);
  while (!ending) {
    Job *const job = oldest(WAITING);
    if (!job) {
      n_idle++;
      pthread_cond_wait(&added, &lock);
      n_idle--;
      continue;
    }
    job->state = MAKING;
    pthread_mutex_unlock(&lock);
    const bool asked = job->make(&job->key, job->build);
    pthread_mutex_lock(&lock);
    job->asked = asked;
    job->state = MADE;
    pthread_cond_broadcast(&made);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

static void end(void) {
  if (owner != getpid()) return;
  pthread_mutex_lock(&lock);
  ending = true;
  pthread_cond_broadcast(&added);
  pthread_mutex_unlock(&lock);
  for (int i = 0; i < n_thread; i++) pthread_join(threads[i], NULL);
}

/* One processor stays with the script. */
static int most_threads(void) {
  const long n = sysconf(_SC_NPROCESSORS_ONLN) - 1;
  return n < MAX_THREAD ? (int)n : MAX_THREAD;
}

static void start_thread(void) {
  if (n_idle > 0 || n_thread >= most_threads()) return;
  if (pthread_create(&threads[n_thread], NULL, make_plans, NULL) == 0) n_thread++;
}

void dm_prefetch_add(const dm_DnnKey *key, dm_DnnBuildFn *build, dm_DnnMakeFn *make) {
  pthread_mutex_lock(&lock);
  if (!owner && most_threads() > 0 && atexit(end) == 0) owner = getpid();
  if (owner == getpid() && !ending && !find(key)) {
    Job *job = oldest(NONE);
    if (!job) job = oldest(MADE);
    if (job) {
      *job = (Job){WAITING, false, ++last_number, *key, build, make};
      start_thread();
      pthread_cond_signal(&added);
    }
  }
  pthread_mutex_unlock(&lock);
}

bool dm_prefetch_wait(const dm_DnnKey *key) {
  bool asked = false;
  pthread_mutex_lock(&lock);
  Job *const job = owner == getpid() ? find(key) : NULL;
  if (job) {
    while (job->state == MAKING) pthread_cond_wait(&made, &lock);
    asked = job->state == MADE && job->asked;
    job->state = NONE;
  }
  pthread_mutex_unlock(&lock);
  return asked;
}

#endif
