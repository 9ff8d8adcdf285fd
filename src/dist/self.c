/* The transport of a world of one process, which receives its own messages: each is done when
   it is posted. */
#include <limits.h>
#include <string.h>

#include "dist/transport.h"
#include "demilune.h"

/* Stands for every message and for the one group. */
static struct dm_Request { char nothing; } message;
static struct dm_Comm { char nothing; } only;

static bool self_open(int *rank, int *n_rank, int *node_rank, int *most_tag) {
  *rank = *node_rank = 0;
  *n_rank = 1;
  *most_tag = INT_MAX;
  return true;
}

static bool self_close(void) { return true; }

static const char *self_text(void) { return "a world of one rank sends no messages"; }

static dm_Comm *self_world(void) { return &only; }

static dm_Comm *self_split(dm_Comm *comm, bool member, bool *failed) {
  (void)comm;
  *failed = false;
  return member ? &only : NULL;
}

static dm_Request *self_post(dm_Comm *comm, dm_Transfer transfer, const void *in, void *out,
                             int64_t n_bytes, int peer, int tag) {
  (void)comm, (void)peer, (void)tag;
  if (transfer == DM_TRANSFER_SEND || transfer == DM_TRANSFER_RECEIVE) return NULL;
  if (transfer != DM_TRANSFER_BROADCAST && in != out && n_bytes > 0)
    memcpy(out, in, (size_t)n_bytes);
  return &message;
}

static dm_Request *self_post_uneven(dm_Comm *comm, const void *in, void *out,
                                    const int64_t *sizes, int n, int64_t row) {
  (void)comm, (void)n;
  if (sizes[0] * row > 0) memcpy(out, in, (size_t)(sizes[0] * row));
  return &message;
}

static int self_test(dm_Request **r) {
  *r = NULL;
  return 1;
}

static bool self_cancel(dm_Request **r) {
  *r = NULL;
  return true;
}

const dm_Transport dm_self_transport = {
    .version = DM_VERSION,
    .open = self_open,
    .close = self_close,
    .text = self_text,
    .world = self_world,
    .notices = self_world,
    .split = self_split,
    .post = self_post,
    .post_uneven = self_post_uneven,
    .test = self_test,
    .cancel = self_cancel,
};
