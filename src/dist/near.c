#define _GNU_SOURCE
#include "dist/near.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#endif

#include "base/alloc.h"

enum { CHUNK = 64 << 10 }; /* bytes of each rank at a time, which stay in the second cache */

#ifdef __linux__

/* Copies n bytes between `own` and the address `at` of another process; false: errno says why
   not, 0 for less than all of it. */
static bool copy(int64_t pid, void *own, uint64_t at, int64_t n, bool writes) {
  const struct iovec here = {own, (size_t)n}, there = {(void *)(uintptr_t)at, (size_t)n};
  errno = 0;
  return (writes ? process_vm_writev((pid_t)pid, &here, 1, &there, 1, 0)
                 : process_vm_readv((pid_t)pid, &here, 1, &there, 1, 0)) == n;
}

static uint64_t mixed(uint64_t h, uint64_t x) { return (h ^ x) * 0x100000001b3u; }

/* A hash of what two processes share that know each other by the same number: the machine since
   its start, and the namespaces of numbers and of networks (namespaces(7)); 0: it cannot be
   told. */
static uint64_t machine(void) {
  const char *given = getenv("DEMILUNE_NEAR");
  uint64_t h = 0xcbf29ce484222325u;
  char text[64] = "";
  struct stat pids, nets;
  if (given && strcmp(given, "0") == 0) return 0;
  FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
  if (!f) return 0;
  const bool is_read = fgets(text, sizeof text, f) != NULL;
  fclose(f);
  if (!is_read || stat("/proc/self/ns/pid", &pids) || stat("/proc/self/ns/net", &nets))
    return 0;
  for (const char *c = text; *c; c++) h = mixed(h, (uint8_t)*c);
  return mixed(mixed(h, (uint64_t)pids.st_ino), (uint64_t)nets.st_ino) | 1;
}

/* A number that no other process has at this address. */
static uint64_t new_token(const void *at) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return mixed(mixed(mixed((uintptr_t)at, (uint64_t)t.tv_nsec), (uint64_t)t.tv_sec),
               (uint64_t)getpid());
}

static int64_t own_pid(void) { return getpid(); }

#else

static bool copy(int64_t pid, void *own, uint64_t at, int64_t n, bool writes) {
  DM_UNUSED(pid), DM_UNUSED(own), DM_UNUSED(at), DM_UNUSED(n), DM_UNUSED(writes);
  return false;
}
static uint64_t machine(void) { return 0; }
static uint64_t new_token(const void *at) { return (uintptr_t)at; }
static int64_t own_pid(void) { return 0; }

#endif

dm_Near *dm_near_new(int n, int me) {
  const int64_t cards = n * (int64_t)sizeof(dm_NearCard),
                words = n * (int64_t)sizeof(dm_NearWord);
  dm_Near *near = dm_alloc((int64_t)sizeof *near + cards + words + (n + 1) * (int64_t)CHUNK);
  if (!near) return NULL;
  memset(near, 0, sizeof *near + (size_t)(cards + words));
  near->n = n;
  near->me = me;
  near->token = new_token(near);
  near->cards = (dm_NearCard *)(near + 1);
  near->words = (dm_NearWord *)(near->cards + n);
  near->scratch = (char *)(near->words + n);
  near->card = (dm_NearCard){.machine = machine(),
                             .token = near->token,
                             .at = (uintptr_t)&near->token,
                             .pid = own_pid()};
  return near;
}

/* Whether this rank can read the memory of the rank that gave the card. */
static bool meets(const dm_Near *near, const dm_NearCard *card) {
  uint64_t token = 0;
  return card->machine != 0 && card->machine == near->card.machine &&
         copy(card->pid, &token, card->at, sizeof token, false) && token == card->token;
}

void dm_near_meet(dm_Near *near) {
  near->found[0] = 1;
  for (int i = 0; i < near->n; i++) near->found[0] &= meets(near, &near->cards[i]);
}

uint64_t dm_near_shows(const void *at) {
  char byte;
  return copy(own_pid(), &byte, (uintptr_t)at, 1, false) ? (uintptr_t)at : 0;
}

bool dm_near_all_show(const dm_Near *near) {
  for (int i = 0; i < near->n; i++)
    if (near->words[i].at == 0) return false;
  return true;
}

bool dm_near_agrees(const dm_Near *near) {
  for (int i = 1; i < near->n; i++)
    if (near->words[i].hash != near->words[0].hash) return false;
  return true;
}

/* Copies bytes to or from the tensor of a rank, `offset` bytes behind its begin. */
static bool copy_part(const dm_Near *near, int rank, void *own, int64_t offset, int64_t n,
                      bool writes) {
  return copy(near->cards[rank].pid, own, near->words[rank].at + (uint64_t)offset, n, writes);
}

/* Combines the bytes [offset, offset + n) of the tensors; -> the index of a rank whose memory
   fails, or -1. */
static int reduce_chunk(const dm_Near *near, const dm_NearSum *sum, int64_t offset, int64_t n,
                        void *out) {
  for (int i = 0; i < near->n; i++)
    if (i != near->me && !copy_part(near, i, near->scratch + i * n, offset, n, false)) return i;
  const dm_RankParts parts = {.dtype = sum->dtype,
                              .size = dm_dtype_size(sum->dtype),
                              .n = n / dm_dtype_size(sum->dtype),
                              .parts = near->scratch,
                              .own = near->me,
                              .own_part = (char *)sum->in + offset};
  dm_rank_reduce(sum->op, near->n, &parts, out);
  for (int i = 0; i < near->n && !sum->out; i++) {
    if (i == near->me || (sum->to >= 0 && sum->to != i)) continue;
    if (!copy_part(near, i, out, offset, n, true)) return i;
  }
  return -1;
}

uint64_t dm_near_copy(dm_Near *near, const void *from, int64_t n) {
  char *to = near->copies[near->n_copied++ % 2];
  memcpy(to, from, (size_t)n);
  return (uintptr_t)to;
}

int dm_near_read_copy(const dm_Near *near, int of, void *to, int64_t n) {
  return copy_part(near, of, to, 0, n, false) ? -1 : of;
}

int dm_near_reduce_copies(const dm_Near *near, dm_RankOp op, dm_DType dtype, int64_t n,
                          void *out) {
  const int64_t bytes = n * dm_dtype_size(dtype);
  for (int i = 0; i < near->n; i++)
    if (!copy_part(near, i, near->scratch + i * bytes, 0, bytes, false)) return i;
  const dm_RankParts parts = {dtype, dm_dtype_size(dtype), n, near->scratch, -1, NULL};
  dm_rank_reduce(op, near->n, &parts, out);
  return -1;
}

int dm_near_reduce(const dm_Near *near, const dm_NearSum *sum) {
  const int64_t width = dm_dtype_size(sum->dtype), end = sum->n * width;
  const int64_t from = dm_min_i64(near->me * sum->slice * width, end);
  const int64_t to = dm_min_i64(from + sum->slice * width, end);
  for (int64_t at = from; at < to; at += CHUNK) {
    const int64_t n = dm_min_i64(CHUNK, to - at);
    /* a result for another rank alone leaves this one's tensor as it is */
    void *out = sum->out                             ? (char *)sum->out + (at - from)
                : sum->to < 0 || sum->to == near->me ? (char *)sum->in + at
                                                     : near->scratch + near->n * (int64_t)CHUNK;
    const int failed = reduce_chunk(near, sum, at, n, out);
    if (failed >= 0) return failed;
  }
  return -1;
}
