#include "dist/link.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "core/collectives.h"

_Static_assert((int)DM_COLLECTIVE_SUM == (int)DM_RANK_SUM &&
                   (int)DM_COLLECTIVE_AVG == (int)DM_RANK_AVG &&
                   (int)DM_COLLECTIVE_MIN == (int)DM_RANK_MIN &&
                   (int)DM_COLLECTIVE_MAX == (int)DM_RANK_MAX &&
                   (int)DM_COLLECTIVE_PRODUCT == (int)DM_RANK_PRODUCT,
               "the operators of a device's library have other numbers");

/* What a rank tells of its device. */
typedef struct Told {
  char lacks[DM_LINK_TEXT]; /* why it cannot be linked; or empty */
  char gpu[DM_GPU_TEXT];
} Told;

/* The state of a work DM_WORK_CONNECT. */
struct dm_Connection {
  int step;
  dm_Device dev;
  Told own, *all; /* (n), owned */
  char id[DM_LINK_ID_BYTES];
};

static bool is_ordered; /* the script's thread sets it, before there are works */

void dm_link_set_ordered(bool ordered) { is_ordered = ordered; }

static const dm_CollectiveOps *ops_of(dm_Device dev) {
  const dm_DeviceOps *ops = dm_device_ops(dev);
  return ops ? ops->collectives : NULL;
}

/* ---- which works ---- */

/* The library's kind of a work; DM_N_COLLECTIVE: it has none. Messages go through the host:
   two ranks may give theirs in any order, which would block the link's one queue. */
static dm_CollectiveKind kind_of(dm_WorkKind kind) {
  switch (kind) {
  case DM_WORK_ALL_REDUCE: return DM_COLLECTIVE_ALL_REDUCE;
  case DM_WORK_BROADCAST: return DM_COLLECTIVE_BROADCAST;
  case DM_WORK_REDUCE: return DM_COLLECTIVE_REDUCE;
  case DM_WORK_ALL_GATHER: return DM_COLLECTIVE_ALL_GATHER;
  case DM_WORK_REDUCE_SCATTER: return DM_COLLECTIVE_REDUCE_SCATTER;
  case DM_WORK_GATHER: return DM_COLLECTIVE_GATHER;
  case DM_WORK_SCATTER: return DM_COLLECTIVE_SCATTER;
  case DM_WORK_EXCHANGE:
  case DM_WORK_ALL_TO_ALL: return DM_COLLECTIVE_ALL_TO_ALL;
  default: return DM_N_COLLECTIVE;
  }
}

bool dm_link_takes(const dm_Group *g, dm_WorkKind kind, dm_RankOp op, const dm_Tensor *t) {
  const dm_CollectiveKind k = kind_of(kind);
  const bool reduces = k == DM_COLLECTIVE_ALL_REDUCE || k == DM_COLLECTIVE_REDUCE ||
                       k == DM_COLLECTIVE_REDUCE_SCATTER;
  if (g->way != DM_WAY_LINK || k == DM_N_COLLECTIVE || !dm_device_eq(t->device, g->device))
    return false;
  if (reduces && (is_ordered || op > DM_RANK_PRODUCT)) return false;
  return ops_of(t->device)->takes(k, (dm_CollectiveOp)op, (dm_DType)t->dtype);
}

/* ---- the script's thread ---- */

/* Frees what a work holds for its link. */
static void drop(dm_Work *w) {
  if (w->connection) dm_free(w->connection->all);
  dm_free(w->connection);
  if (!w->by_link) return;
  const dm_StreamOps *streams = dm_device_ops(w->device)->streams;
  if (w->before) streams->event_free(w->device, w->before);
  if (w->after) streams->event_free(w->device, w->after);
}

dm_status dm_link_prepare(dm_Work *w, dm_Device dev) {
  const dm_CollectiveOps *ops = ops_of(dev);
  dm_Connection *c = w->connection = dm_alloc_zero(sizeof *c);
  w->drop = drop;
  if (c) c->all = dm_alloc_zero(w->group->n * (int64_t)sizeof *c->all);
  if (!c || !c->all) return dm_fail(DM_EMEM, "out of memory");
  c->dev = dev;
  const char *lacks = ops ? ops->lacks(dev) : "this device has no such library";
  if (!lacks && ops->identity(dev, c->own.gpu) != DM_OK) lacks = dm_error();
  snprintf(c->own.lacks, sizeof c->own.lacks, "%s", lacks ? lacks : "");
  return DM_OK;
}

dm_status dm_link_mark(dm_Work *w) {
  w->by_link = true;
  w->drop = drop;
  w->device = w->group->device;
  return ops_of(w->device)->mark(w->device, &w->before);
}

dm_status dm_link_follow(const dm_Work *w) {
  return w->by_link && w->after ? ops_of(w->device)->follow(w->device, w->after) : DM_OK;
}

/* ---- linking ---- */

enum { TELL, DECIDE, LINK, WAIT };

/* The reason why the ranks cannot be linked, or nothing. */
static void find_obstacle(const dm_Group *g, const Told *all, char *why, size_t size) {
  *why = 0;
  for (int i = 0; i < g->n; i++) {
    if (*all[i].lacks) snprintf(why, size, "rank %d: %.160s", g->ranks[i], all[i].lacks);
    for (int k = 0; k < i && !*why; k++)
      if (strcmp(all[i].gpu, all[k].gpu) == 0)
        snprintf(why, size, "ranks %d and %d share a GPU", g->ranks[k], g->ranks[i]);
    if (*why) return;
  }
}

/* Sets how the group's works on devices go from now on. */
static void set_way(dm_Group *g, const dm_Connection *c, int way) {
  g->device = c->dev;
  atomic_store(&g->way, way);
}

/* Goes through the host, or lets the first rank make the number by which all find one another.
 */
static void decide(dm_Work *w, const dm_Transport *t) {
  dm_Connection *c = w->connection;
  dm_Group *g = w->group;
  find_obstacle(g, c->all, g->why, sizeof g->why);
  if (*g->why) {
    set_way(g, c, DM_WAY_HOST);
    w->step = DM_WORK_ENDED;
  } else if (g->me == 0 && ops_of(c->dev)->new_id(c->id) != DM_OK) {
    dm_work_break(w, dm_error());
  } else {
    c->step = LINK;
    dm_work_post(w, t, w->step, DM_TRANSFER_BROADCAST, NULL, c->id, sizeof c->id);
  }
}

static void begin_link(dm_Work *w) {
  dm_Connection *c = w->connection;
  dm_Group *g = w->group;
  c->step = WAIT;
  g->device = c->dev;
  if (ops_of(c->dev)->link(c->dev, c->id, g->n, g->me, &g->link) != DM_OK)
    dm_work_break(w, dm_error());
}

/* Whether it has moved. */
static bool wait_for_link(dm_Work *w) {
  dm_Group *g = w->group;
  const int state = ops_of(w->connection->dev)->ready(g->link);
  if (state < 0) dm_work_break(w, dm_error());
  if (state <= 0) return state < 0;
  set_way(g, w->connection, DM_WAY_LINK);
  w->step = DM_WORK_ENDED;
  return true;
}

static bool connect_ranks(dm_Work *w, const dm_Transport *t) {
  dm_Connection *c = w->connection;
  switch (c->step) {
  case TELL:
    c->step = DECIDE;
    dm_work_post(w, t, w->step, DM_TRANSFER_ALL_GATHER, &c->own, c->all, sizeof c->own);
    return true;
  case DECIDE: decide(w, t); return true;
  case LINK: begin_link(w); return true;
  default: return wait_for_link(w);
  }
}

/* ---- splitting ---- */

static bool split_ranks(dm_Work *w) {
  dm_Group *world = w->agree, *g = w->group;
  const dm_CollectiveOps *ops = world->link ? ops_of(world->device) : NULL;
  if (!ops) {
    w->step = DM_WORK_ENDED;
    return true;
  }
  if (!w->is_queued) {
    w->is_queued = true;
    if (ops->split(world->link, g->n, g->me, &g->link) != DM_OK) dm_work_break(w, dm_error());
    return true;
  }
  int state = ops->ready(world->link);
  if (state == 1 && g->link) state = ops->ready(g->link);
  if (state < 0) dm_work_break(w, dm_error());
  if (state <= 0) return state < 0;
  g->device = world->device;
  if (g->link) atomic_store(&g->way, DM_WAY_LINK);
  w->step = DM_WORK_ENDED;
  return true;
}

/* ---- works ---- */

static void *data_of(const dm_Tensor *t) { return t ? dm_tensor_data(t) : NULL; }

/* What the library gets. One part each is written in place. */
static dm_Collective collective_of(const dm_Work *w) {
  const bool is_peer = w->group->me == w->peer;
  const bool has_parts = w->kind == DM_WORK_REDUCE_SCATTER || w->kind == DM_WORK_ALL_TO_ALL ||
                         (w->kind == DM_WORK_SCATTER && is_peer);
  dm_Collective c = {.kind = kind_of(w->kind),
                     .op = (dm_CollectiveOp)w->op,
                     .dtype = (dm_DType)(w->in ? w->in : w->out)->dtype,
                     .in = data_of(w->in),
                     .out = data_of(w->out),
                     .peer = w->peer,
                     .sizes = w->sizes,
                     .n = w->row,
                     .before = w->before};
  if (w->sizes) return c;
  const int64_t n = w->in ? w->in->numel : w->out->numel;
  c.n = has_parts ? n / w->group->n : n;
  if (w->kind == DM_WORK_ALL_REDUCE || w->kind == DM_WORK_BROADCAST ||
      w->kind == DM_WORK_REDUCE)
    c.out = data_of(w->in);
  return c;
}

static bool is_empty(const dm_Work *w) {
  return (!w->in || w->in->numel == 0) && (!w->out || w->out->numel == 0);
}

/* Bytes that a ring sends. */
static int64_t sent_by(const dm_Work *w, const dm_Collective *c) {
  const int64_t n = w->group->n, part = c->n * dm_dtype_size(c->dtype);
  const bool is_peer = w->group->me == w->peer;
  switch (w->kind) {
  case DM_WORK_EXCHANGE: return dm_work_uneven_sent(w);
  case DM_WORK_ALL_REDUCE: return 2 * (n - 1) * part / n;
  case DM_WORK_ALL_GATHER:
  case DM_WORK_ALL_TO_ALL:
  case DM_WORK_REDUCE_SCATTER: return (n - 1) * part;
  case DM_WORK_SCATTER: return is_peer ? (n - 1) * part : 0;
  case DM_WORK_GATHER:
  case DM_WORK_REDUCE: return is_peer ? 0 : part;
  default: return part;
  }
}

/* Hands the work to the library. */
static void begin_work(dm_Work *w) {
  const dm_CollectiveOps *ops = ops_of(w->device);
  const dm_Collective c = collective_of(w);
  w->is_queued = true;
  w->n_sent += sent_by(w, &c);
  if (ops->post(w->group->link, &c) != DM_OK) dm_work_break(w, dm_error());
}

/* Lets the script's thread go on, when the library has queued the work. */
static bool wait_for_queue(dm_Work *w) {
  const dm_CollectiveOps *ops = ops_of(w->device);
  const int state = ops->ready(w->group->link);
  if (state == 0) return false;
  if (state < 0 || ops->mark_link(w->group->link, &w->after) != DM_OK)
    dm_work_break(w, dm_error());
  else atomic_store(&w->queued, true);
  return true;
}

static bool advance_work(dm_Work *w) {
  /* the script may drop the tensors of a work that is queued */
  if (!w->is_queued) {
    if (is_empty(w)) w->step = DM_WORK_ENDED;
    else begin_work(w);
    return true;
  }
  if (!atomic_load(&w->queued)) return wait_for_queue(w);
  const int state = ops_of(w->device)->passed(w->group->link, w->after);
  if (state < 0) dm_work_break(w, dm_error());
  else if (state > 0) w->step = DM_WORK_ENDED;
  return state != 0;
}

bool dm_link_advance(dm_Work *w, const dm_Transport *t) {
  switch (w->kind) {
  case DM_WORK_CONNECT: return connect_ranks(w, t);
  case DM_WORK_SPLIT: return split_ranks(w);
  default: return advance_work(w);
  }
}

void dm_link_end(dm_Group *g, bool well) {
  if (g->link) ops_of(g->device)->unlink(&g->link, well);
  if (atomic_load(&g->way) == DM_WAY_LINK) atomic_store(&g->way, DM_WAY_HOST);
}
