/* A stand-in for mpi.so, in a world of two ranks: the first collective never comes back from
   the library, as a link that is cut in the middle of a call may do. */
#include <stddef.h>
#include <unistd.h>

#include "demilune.h"
#include "dist/transport.h"

struct dm_Request {
  char nothing;
};
struct dm_Comm {
  char nothing;
};
static struct dm_Request message;
static struct dm_Comm world, notices;

static bool fake_open(int *rank, int *n_rank, int *node_rank, int *most_tag) {
  *rank = *node_rank = 0;
  *n_rank = 2;
  *most_tag = 32767; /* the least that MPI promises */
  return true;
}
static bool fake_close(void) { return true; }
static const char *fake_text(void) { return ""; }
static dm_Comm *fake_world(void) { return &world; }
static dm_Comm *fake_notices(void) { return &notices; }
static dm_Comm *fake_split(dm_Comm *comm, bool member, bool *failed) {
  (void)comm, (void)member, (void)failed;
  return NULL;
}
static dm_Request *fake_post(dm_Comm *comm, dm_Transfer transfer, const void *in, void *out,
                             int64_t n_bytes, int peer, int tag) {
  (void)transfer, (void)in, (void)out, (void)n_bytes, (void)peer, (void)tag;
  while (comm == &world) pause();
  return &message;
}
static int fake_test(dm_Request **r) {
  (void)r;
  return 0;
}
static bool fake_cancel(dm_Request **r) {
  *r = NULL;
  return true;
}

const dm_Transport dm_transport = {
    .version = DM_VERSION,
    .open = fake_open,
    .close = fake_close,
    .text = fake_text,
    .world = fake_world,
    .notices = fake_notices,
    .split = fake_split,
    .post = fake_post,
    .test = fake_test,
    .cancel = fake_cancel,
};
