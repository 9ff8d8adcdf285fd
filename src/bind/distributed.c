/* The world of ranks and its works, for lua/demilune/distributed. Nothing here waits for longer
   than the milliseconds it is given: Lua asks again, so that Ctrl-C comes through. */
#include "dist/world.h"

#include <stdio.h>
#include <string.h>
#ifdef __linux__
#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>
#endif

#include "base/alloc.h"
#include "bind/bind.h"
#include "core/copy.h"
#include "dist/bucket.h"
#include "dist/link.h"
#include "dist/stop.h"

static const char work_class[] = "demilune.Work", guard_class[] = "demilune.World",
                  reducer_class[] = "demilune.Reducer";
static const char waiter_key = 0; /* only its address counts */

/* The names of dm_WorkKind and dm_RankOp. */
static const char *const kinds[] = {"barrier",    "all_reduce",     "broadcast", "reduce",
                                    "all_gather", "reduce_scatter", "gather",    "scatter",
                                    "all_to_all", "exchange",       "send",      "recv",
                                    "new_group",  "connect",        NULL};
static const char *const rank_ops[] = {"sum",     "avg",  "min", "max",
                                       "product", "band", "bor", NULL};

enum { WAIT_MS = 50 };

/* _dist_lacks() -> the reason why mpi.so cannot be opened; or nil. */
static int lacks(lua_State *L) {
  lua_pushstring(L, dm_world_lacks());
  return 1;
}

/* __gc of the guard, at the end of the script: leaves, and waits until that is done. */
static int guard_gc(lua_State *L) {
  const char *why;
  DM_UNUSED(L);
  dm_world_leave(false);
  while (!dm_world_left(WAIT_MS, &why)) continue;
  return 0;
}

#ifdef __linux__
/* Pushes how many processors a process may use; nil: unknown. */
static void push_processors(lua_State *L, pid_t pid) {
  cpu_set_t set;
  if (sched_getaffinity(pid, sizeof set, &set) == 0) lua_pushinteger(L, CPU_COUNT(&set));
  else lua_pushnil(L);
}
#endif

/* _dist_machine() -> the processors that this process may use; those of the process that
   started it; the bytes that are left in /dev/shm. nil for what is unknown. */
static int machine(lua_State *L) {
#ifdef __linux__
  struct statvfs shm;
  push_processors(L, 0);
  push_processors(L, getppid());
  if (statvfs("/dev/shm", &shm) == 0)
    lua_pushinteger(L, (lua_Integer)shm.f_bavail * (lua_Integer)shm.f_frsize);
  else lua_pushnil(L);
  return 3;
#else
  DM_UNUSED(L);
  return 0;
#endif
}

/* _dist_guard() -> a value with whose end, that of the Lua state, the process leaves the world.
 */
static int guard(lua_State *L) {
  lua_newuserdatauv(L, 1, 0);
  dm_ended_by(L, guard_class, "__gc", guard_gc);
  return 1;
}

/* _dist_open(by_mpi, timeout, warn_after, both in seconds, ordered): begins to open the world
   -> the reason why it cannot; or nil. ordered: reductions of tensors on devices too add in the
   order of the ranks. */
static int open_world(lua_State *L) {
  if (!dm_world_is_open()) dm_link_set_ordered(lua_toboolean(L, 4));
  lua_pushstring(
      L, dm_world_open(lua_toboolean(L, 1), luaL_checknumber(L, 2), luaL_checknumber(L, 3)));
  return 1;
}

/* _dist_opened() -> true; false: not yet, after a moment; nil and the reason: it failed. */
static int opened(lua_State *L) {
  const char *why;
  const bool is_open = dm_world_opened(WAIT_MS, &why);
  if (why) {
    lua_pushnil(L);
    lua_pushstring(L, why);
    return 2;
  }
  lua_pushboolean(L, is_open);
  return 1;
}

/* _dist_rank() -> rank, rank on this machine, both from 0; nil where no world is open. */
static int rank_of(lua_State *L) {
  if (!dm_world_is_open()) return 0;
  lua_pushinteger(L, dm_world_rank());
  lua_pushinteger(L, dm_world_node_rank());
  return 2;
}

/* _dist_most_tag() -> the largest tag of a message. */
static int most_tag(lua_State *L) {
  lua_pushinteger(L, dm_world_most_tag());
  return 1;
}

/* _dist_size() -> the number of ranks. */
static int size_of(lua_State *L) {
  const dm_Group *g = dm_world_group(0);
  lua_pushinteger(L, g ? g->n : 0);
  return 1;
}

/* The group whose index is at i. */
static dm_Group *check_group(lua_State *L, int i) {
  dm_Group *g = dm_world_group((int)luaL_checkinteger(L, i));
  luaL_argcheck(L, g, i, "there is no such group");
  return g;
}

/* Raises where no world is open. */
static void check_open(lua_State *L) {
  if (!dm_world_is_open()) dm_raise_text(L, "there is no process group");
}

/* _dist_new_group(ranks, in rising order) -> its index. */
static int new_group(lua_State *L) {
  enum { MOST = 65536 };
  check_open(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  const lua_Integer n = luaL_len(L, 1);
  luaL_argcheck(L, n > 0 && n <= MOST, 1, "too many ranks");
  int *ranks = lua_newuserdatauv(L, sizeof *ranks * (size_t)n, 0);
  for (int i = 0; i < (int)n; i++) {
    lua_rawgeti(L, 1, i + 1);
    const lua_Integer rank = lua_tointeger(L, -1);
    luaL_argcheck(L, rank >= 0 && rank < dm_world_group(0)->n, 1, "no rank of the world");
    ranks[i] = (int)rank;
    lua_pop(L, 1);
  }
  const dm_Group *g = dm_world_new_group((int)n, ranks);
  if (!g) return dm_raise(L);
  lua_pushinteger(L, g->index);
  return 1;
}

/* _dist_new_aside(group) -> the index of a second group of the same ranks. */
static int new_aside(lua_State *L) {
  check_open(L);
  dm_Group *of = check_group(L, 1);
  luaL_argcheck(L, of->index < DM_MAX_GROUP, 1, "is aside itself");
  const dm_Group *g = dm_world_new_aside(of);
  if (!g) return dm_raise(L);
  lua_pushinteger(L, g->index);
  return 1;
}

/* The elements of t, contiguous and without history, on its device. */
static dm_status dense_there(const dm_Tensor *t, dm_Tensor **out) {
  dm_Tensor *alias = NULL;
  DM_TRY(dm_tensor_alias(t, &alias));
  const dm_status st = dm_call(DM_OP_contiguous, 1, &alias, NULL, out);
  dm_tensor_unref(&alias);
  return st;
}

/* _dist_dense(x, stays) -> x's elements as a contiguous tensor without history, on x's device
   where it stays, else on the CPU; whether it shares x's memory; whether elements of x share
   memory. */
static int dense(lua_State *L) {
  State *S = dm_enter(L);
  Handle *b = dm_push_own(L, S);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  DM_CHECK(L, lua_toboolean(L, 2) ? dense_there(t, &b->t) : dm_dense_of(t, &b->t));
  lua_pushboolean(L, b->t->storage == t->storage);
  lua_pushboolean(L, dm_tensor_overlaps_itself(t));
  return 3;
}

/* The work at 1. */
static dm_Work *check_work(lua_State *L) {
  dm_Work **w = luaL_checkudata(L, 1, work_class);
  luaL_argcheck(L, *w, 1, "this work was finalized");
  return *w;
}

static int work_gc(lua_State *L) {
  dm_Work **w = luaL_checkudata(L, 1, work_class);
  dm_work_unref(w);
  return 0;
}

/* Gives the work the tensor at i, one reference more; nil gives none. */
static dm_Tensor *taken(lua_State *L, int i) {
  if (lua_isnoneornil(L, i)) return NULL;
  return dm_tensor_ref(dm_check_tensor(L, i));
}

/* Gives the work a copy of `in`, for no part may be received into memory that is still sent. */
static dm_status part_from_out(dm_Work *w) {
  dm_Tensor *copy = NULL;
  DM_TRY(dm_tensor_new(w->in->dtype, w->in->ndim, w->in->shape, w->in->device, &copy));
  dm_Tensor *in[2] = {copy, w->in};
  const dm_status st = w->in->numel > 0 ? dm_call_inplace(DM_OP_copy, 2, in, NULL) : DM_OK;
  dm_tensor_unref(&w->in);
  w->in = copy;
  return st;
}

/* Whether the work writes its tensor `in`. */
static bool writes_in(const dm_Work *w) {
  const bool is_there = w->agree->me == w->peer;
  return w->kind == DM_WORK_ALL_REDUCE || w->kind == DM_WORK_RECEIVE ||
         (w->kind == DM_WORK_REDUCE && is_there) || (w->kind == DM_WORK_BROADCAST && !is_there);
}

/* How many elements the tensors of a kind have, as multiples of one part: 0 for no tensor,
   N_PARTS for a part of each rank. A rank that is not the peer may have to give less. */
enum { N_PARTS = -1 };
typedef struct Tensors {
  int in, out;           /* on the peer, or on all ranks */
  int in_else, out_else; /* on the others */
} Tensors;
static const Tensors wanted[] = {
    [DM_WORK_BARRIER] = {0},
    [DM_WORK_ALL_REDUCE] = {1, 0, 1, 0},
    [DM_WORK_BROADCAST] = {1, 0, 1, 0},
    [DM_WORK_REDUCE] = {1, 0, 1, 0},
    [DM_WORK_ALL_GATHER] = {1, N_PARTS, 1, N_PARTS},
    [DM_WORK_REDUCE_SCATTER] = {N_PARTS, 1, N_PARTS, 1},
    [DM_WORK_GATHER] = {1, N_PARTS, 1, 0},
    [DM_WORK_SCATTER] = {N_PARTS, 1, 0, 1},
    [DM_WORK_ALL_TO_ALL] = {N_PARTS, N_PARTS, N_PARTS, N_PARTS},
    [DM_WORK_EXCHANGE] = {1, 1, 1, 1}, /* whose sizes give_sizes checks */
    [DM_WORK_SEND] = {1, 0, 1, 0},
    [DM_WORK_RECEIVE] = {1, 0, 1, 0},
    [DM_WORK_SPLIT] = {0},
    [DM_WORK_CONNECT] = {0},
};

/* Whether t is n parts (or nothing, for 0), dense and on that device; *part: the elements of
   one, -1 while none is known. */
static bool is_parts(const dm_Tensor *t, dm_Device dev, int n, int n_rank, int64_t *part) {
  if (n == 0 || !t) return (n == 0) == !t;
  const int64_t count = n == N_PARTS ? n_rank : n, each = t->numel / count;
  if (!dm_device_eq(t->device, dev) || !dm_tensor_is_contiguous(t) || each * count != t->numel)
    return false;
  if (*part < 0) *part = each;
  return *part == each;
}

/* Raises unless the work's group, peer and tensors are such that its steps stay inside them. */
static void check_work_is_sound(lua_State *L, const dm_Work *w) {
  const Tensors *t = &wanted[w->kind];
  const int n = w->agree->n;
  int64_t part = -1;
  luaL_argcheck(L, w->agree->me >= 0, 2, "this rank is no member of the group");
  luaL_argcheck(L, w->kind != DM_WORK_SPLIT || w->group->index > 0, 2,
                "the world is no new group");
  luaL_argcheck(L, w->peer >= (w->kind == DM_WORK_RECEIVE ? -1 : 0) && w->peer < n, 3,
                "no rank of the group");
  luaL_argcheck(L, w->tag >= 0 && w->tag <= dm_world_most_tag(), 12, "no tag");
  const bool is_peer = w->agree->me == w->peer;
  const dm_Tensor *one = w->in ? w->in : w->out;
  const bool by_link = one && dm_link_takes(w->group, w->kind, w->op, one);
  const dm_Device dev = by_link ? w->group->device : (dm_Device){.type = DM_CPU};
  if (w->kind == DM_WORK_EXCHANGE) {
    int64_t out = -1;
    luaL_argcheck(L, is_parts(w->in, dev, 1, n, &part), 5, "no such parts");
    luaL_argcheck(L, is_parts(w->out, dev, 1, n, &out), 6, "no such parts");
    return;
  }
  luaL_argcheck(L, is_parts(w->in, dev, is_peer ? t->in : t->in_else, n, &part), 5,
                "no such parts");
  luaL_argcheck(L, is_parts(w->out, dev, is_peer ? t->out : t->out_else, n, &part), 6,
                "no such parts");
  luaL_argcheck(L, !w->in || !w->out || w->in->dtype == w->out->dtype, 6, "of another dtype");
}

/* Gives a work the sizes of its parts: the list at 10, rows that go to each rank and that come
   from each; at 11 the elements of a row. */
static void take_sizes(lua_State *L, dm_Work *w) {
  enum { MOST = 65536 };
  const int n = w->group->n;
  luaL_checktype(L, 10, LUA_TTABLE);
  luaL_argcheck(L, n <= MOST && luaL_len(L, 10) == 2 * n, 10, "no size for each part");
  w->row = luaL_checkinteger(L, 11);
  luaL_argcheck(L, w->row >= 0, 11, "below 0");
  w->sizes = dm_alloc(2 * n * (int64_t)sizeof *w->sizes);
  if (!w->sizes) dm_raise_text(L, "%s: out of memory", luaL_checkstring(L, 7));
  for (int side = 0; side < 2; side++) {
    const dm_Tensor *t = side ? w->out : w->in;
    int64_t left = !t ? 0 : w->row ? t->numel / w->row : INT64_MAX;
    for (int i = 0; i < n; i++) {
      lua_rawgeti(L, 10, side * n + i + 1);
      const lua_Integer rows = lua_tointeger(L, -1);
      lua_pop(L, 1);
      luaL_argcheck(L, rows >= 0 && rows <= left, 10, "beyond the tensor");
      w->sizes[side * n + i] = rows;
      left -= rows;
    }
  }
}

/* _dist_post(kind, group, peer = 0, op or nil, in or nil, out or nil, name, key, line, sizes,
   row, tag: sizes and row of exchange alone, the tag of messages; peer -1 of recv: any) -> a
   work. The tensors are dense, on the CPU, or on
   their device where _dist_takes says so; of new_group the group is the new one, and `in` of
   connect is a tensor on the device. */
static int post(lua_State *L) {
  dm_enter(L);
  check_open(L);
  const int kind = luaL_checkoption(L, 1, NULL, kinds);
  dm_Group *group = check_group(L, 2);
  const int peer = (int)luaL_optinteger(L, 3, 0), op = luaL_checkoption(L, 4, "sum", rank_ops);
  const char *name = luaL_checkstring(L, 7), *key = luaL_checkstring(L, 8),
             *line = luaL_checkstring(L, 9);
  dm_Work **at = lua_newuserdatauv(L, sizeof(dm_Work *), 0);
  *at = NULL;
  luaL_setmetatable(L, work_class);
  dm_Work *w = *at = dm_work_new();
  if (!w) return dm_raise_text(L, "%s: out of memory", name);
  w->kind = (dm_WorkKind)kind;
  w->op = (dm_RankOp)op;
  w->group = group;
  w->agree = kind == DM_WORK_SPLIT ? group->of : group;
  w->peer = peer;
  if (kind == DM_WORK_CONNECT) {
    DM_CHECK(L, dm_link_prepare(w, dm_check_tensor(L, 5)->device));
  } else {
    w->in = taken(L, 5);
    w->out = taken(L, 6);
  }
  if (kind == DM_WORK_EXCHANGE) take_sizes(L, w);
  w->tag = (int)luaL_optinteger(L, 12, 0);
  check_work_is_sound(L, w);
  if (w->in && w->out && w->in->storage == w->out->storage) DM_CHECK(L, part_from_out(w));
  w->header.n_bytes = w->in ? dm_tensor_bytes(w->in) : 0;
  w->header.from = w->agree->me;
  snprintf(w->header.name, sizeof w->header.name, "%s", name);
  snprintf(w->header.key, sizeof w->header.key, "%s", key);
  snprintf(w->header.line, sizeof w->header.line, "%s", line);
  const dm_Tensor *one = w->in ? w->in : w->out;
  if (one && one->device.type != DM_CPU) DM_CHECK(L, dm_link_mark(w));
  const bool writes = w->in && writes_in(w); /* the thread writes the peer from here on */
  DM_CHECK(L, dm_world_post(w));
  if (writes) w->in->storage->version++;
  if (w->out) w->out->storage->version++;
  return 1;
}

/* _dist_way(group) -> "link", "" and this rank's device: the group's works on devices go over
   the device's library; or "host" and the reason why not; nil: no such work was asked for. */
static int way_of(lua_State *L) {
  const dm_Group *g = check_group(L, 1);
  const int way = atomic_load(&g->way);
  if (way == DM_WAY_UNKNOWN) return 0;
  lua_pushstring(L, way == DM_WAY_LINK ? "link" : "host");
  lua_pushstring(L, g->why);
  lua_pushstring(L, dm_device_name(g->device, (char[16]){0}));
  return 3;
}

/* _dist_takes(group, kind, op or nil, x) -> whether such a work goes over the group's link. */
static int takes(lua_State *L) {
  const dm_Group *g = check_group(L, 1);
  const int kind = luaL_checkoption(L, 2, NULL, kinds),
            op = luaL_checkoption(L, 3, "sum", rank_ops);
  lua_pushboolean(L, dm_link_takes(g, (dm_WorkKind)kind, (dm_RankOp)op, dm_check_tensor(L, 4)));
  return 1;
}

/* work:wait(ms) -> true: done, or what the script's stream gets from now on waits for it there;
   false: not yet; nil and the reason: it failed. */
static int work_wait(lua_State *L) {
  const dm_Work *w = check_work(L);
  if (!dm_world_wait(w, (int)luaL_optinteger(L, 2, WAIT_MS))) {
    lua_pushboolean(L, false);
    return 1;
  }
  if (!atomic_load(&w->done) || !w->failed) {
    DM_CHECK(L, dm_link_follow(w));
    lua_pushboolean(L, true);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, w->failure);
  return 2;
}

/* work:peer() -> the index of the other rank of a message in the group, from 0; -1: not known.
 */
static int work_peer(lua_State *L) {
  lua_pushinteger(L, check_work(L)->peer);
  return 1;
}

/* work:limit(seconds): it fails where it is not done so long from now. */
static int work_limit(lua_State *L) {
  dm_world_limit(check_work(L), luaL_checknumber(L, 2));
  return 0;
}

/* work:release(): gives its tensors back at once, where it is done. */
static int work_release(lua_State *L) {
  dm_Work *w = check_work(L);
  if (!atomic_load(&w->done)) return 0;
  dm_tensor_unref(&w->in);
  dm_tensor_unref(&w->out);
  return 0;
}

/* _dist_leave(): begins to leave the world. */
static int leave(lua_State *L) {
  DM_UNUSED(L);
  dm_world_leave(true);
  return 0;
}

/* _dist_left() -> whether that is done, after a moment; the failure that came with it, or nil.
 */
static int left(lua_State *L) {
  const char *why;
  lua_pushboolean(L, dm_world_left(WAIT_MS, &why));
  lua_pushstring(L, why);
  return 2;
}

/* _dist_stats() -> calls, bytes sent, of these from memory to memory, seconds waited. */
static int stats(lua_State *L) {
  const dm_WorldStats s = dm_world_stats();
  lua_pushinteger(L, s.n_call);
  lua_pushinteger(L, s.n_sent);
  lua_pushinteger(L, s.n_direct);
  lua_pushnumber(L, s.waited);
  return 4;
}

/* _dist_listen(on): whether the script hears of SIGTERM and SIGUSR1; counted. */
static int listen_to_stop(lua_State *L) {
  dm_stop_listen(lua_toboolean(L, 1));
  return 0;
}

/* _dist_stop() -> the name of the signal that asks this process to stop, or nil; whether all
   ranks know by a backward pass that one was asked; whether such passes tell. */
static int stop_of(lua_State *L) {
  const int signal = dm_stop_asked();
  lua_pushstring(L, signal ? dm_stop_name(signal) : NULL);
  lua_pushboolean(L, dm_stop_agreed());
  lua_pushboolean(L, dm_stop_is_exchanged());
  return 3;
}

/* ---- gradients that processes average ---- */

/* Pushes a userdata with the n tensors of the list at i, borrowed. */
static dm_Tensor **push_tensors(lua_State *L, int i, int *n) {
  enum { MOST = 1 << 24 };
  luaL_checktype(L, i, LUA_TTABLE);
  const lua_Integer len = luaL_len(L, i);
  luaL_argcheck(L, len <= MOST, i, "too many tensors");
  dm_Tensor **list = lua_newuserdatauv(L, sizeof *list * (size_t)(len + 1), 0);
  for (lua_Integer k = 0; k < len; k++) {
    lua_rawgeti(L, i, k + 1);
    list[k] = dm_check_tensor(L, -1);
    lua_pop(L, 1);
  }
  *n = (int)len;
  return list;
}

/* Pushes a userdata with the n strings of the list at i, borrowed. */
static const char *const *push_names(lua_State *L, int i, int n) {
  luaL_checktype(L, i, LUA_TTABLE);
  const char **names = lua_newuserdatauv(L, sizeof *names * (size_t)(n + 1), 0);
  for (int k = 0; k < n; k++) {
    luaL_argcheck(L, lua_rawgeti(L, i, k + 1) == LUA_TSTRING, i, "not a name for each tensor");
    names[k] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  return names;
}

/* _reducer_new(group, parameters, bytes of the first bucket, of the others, line, names,
   shards = 0) -> a reducer of their gradients. Raises for one that is no leaf, or has a
   reducer. */
static int reducer_new(lua_State *L) {
  enum { MOST_SHARDS = 1 << 20 };
  dm_enter(L);
  check_open(L);
  dm_ReducerOptions o = {.group = check_group(L, 1),
                         .first_bytes = luaL_checkinteger(L, 3),
                         .bytes = luaL_checkinteger(L, 4),
                         .where = luaL_checkstring(L, 5),
                         .shards = (int)luaL_optinteger(L, 7, 0)};
  int n;
  luaL_argcheck(L, luaL_optinteger(L, 7, 0) >= 0 && luaL_optinteger(L, 7, 0) <= MOST_SHARDS, 7,
                "no number of shards");
  luaL_argcheck(L, dm_shards_fit(o.shards, o.group->n), 7, "not for so many ranks");
  dm_Reducer **at = lua_newuserdatauv(L, sizeof *at, 0);
  *at = NULL;
  luaL_setmetatable(L, reducer_class);
  dm_Tensor **params = push_tensors(L, 2, &n);
  for (int i = 0; i < n; i++)
    luaL_argcheck(L, !params[i]->grad_home && !params[i]->node, 2,
                  "a tensor that is no leaf, or has a reducer");
  o.names = push_names(L, 6, n);
  DM_CHECK(L, dm_reducer_new(n, params, &o, at));
  lua_pop(L, 2);
  return 1;
}

/* The reducer at 1. */
static dm_Reducer *check_reducer(lua_State *L) {
  dm_Reducer **r = luaL_checkudata(L, 1, reducer_class);
  luaL_argcheck(L, *r, 1, "this reducer was closed");
  return *r;
}

static int reducer_close(lua_State *L) {
  dm_Reducer **r = luaL_checkudata(L, 1, reducer_class);
  dm_reducer_close(r);
  return 0;
}

/* reducer:is_open() -> whether a pass has sent what is not settled yet. */
static int reducer_is_open(lua_State *L) {
  lua_pushboolean(L, dm_reducer_is_open(check_reducer(L)));
  return 1;
}

/* reducer:wait() -> true: all is there; false: not yet, after a moment; nil and the reason. */
static int reducer_wait(lua_State *L) {
  const char *why = NULL;
  const int state = dm_reducer_wait(check_reducer(L), WAIT_MS, &why);
  if (state >= 0) {
    lua_pushboolean(L, state);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, why);
  return 2;
}

/* reducer:settle(by_active) -> the share of the ranks that had data. */
static int reducer_settle(lua_State *L) {
  dm_enter(L);
  double active;
  dm_Reducer *r = check_reducer(L);
  luaL_argcheck(L, dm_reducer_is_open(r), 1, "no pass has handed anything over");
  DM_CHECK(L, dm_reducer_settle(r, lua_toboolean(L, 2), &active));
  lua_pushnumber(L, active);
  return 1;
}

/* reducer:shards(on): begins the first shard of this rank, or ends what was begun. */
static int reducer_shards(lua_State *L) {
  dm_Reducer *r = check_reducer(L);
  luaL_argcheck(L, !dm_reducer_is_open(r) || !lua_toboolean(L, 2), 1,
                "its gradients are under way");
  dm_reducer_shards(r, lua_toboolean(L, 2));
  return 0;
}

/* reducer:end_shard(): ends a shard; the last one of this rank sends. */
static int reducer_end_shard(lua_State *L) {
  dm_enter(L);
  dm_Reducer *r = check_reducer(L);
  luaL_argcheck(L, dm_reducer_in_shard(r), 1, "no shard was begun");
  DM_CHECK(L, dm_reducer_end_shard(r));
  return 0;
}

/* reducer:shadow(): takes part in a pass of the other ranks. */
static int reducer_shadow(lua_State *L) {
  dm_enter(L);
  dm_Reducer *r = check_reducer(L);
  luaL_argcheck(L, !dm_reducer_has_shards(r), 1, "it has shards");
  DM_CHECK(L, dm_reducer_shadow(r));
  return 0;
}

/* reducer:order() -> the numbers of the parameters, from 0, as their gradients came. */
static int reducer_order(lua_State *L) {
  const dm_Reducer *r = check_reducer(L);
  const int n = dm_reducer_params(r);
  int64_t *order = lua_newuserdatauv(L, sizeof *order * (size_t)(n + 1), 0);
  dm_reducer_order(r, order);
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushinteger(L, order[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* reducer:arrange(order): makes the buckets anew, in this order of the parameters. */
static int reducer_arrange(lua_State *L) {
  dm_enter(L);
  dm_Reducer *r = check_reducer(L);
  const int n = dm_reducer_params(r);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_argcheck(L, !dm_reducer_is_open(r), 1, "its gradients are under way");
  luaL_argcheck(L, luaL_len(L, 2) == n, 2, "not a number for each parameter");
  int64_t *order = lua_newuserdatauv(L, sizeof *order * (size_t)(n + 1), 0);
  bool *seen = lua_newuserdatauv(L, sizeof *seen * (size_t)(n + 1), 0);
  memset(seen, 0, sizeof *seen * (size_t)n);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    order[i] = lua_tointeger(L, -1);
    lua_pop(L, 1);
    luaL_argcheck(L, order[i] >= 0 && order[i] < n && !seen[order[i]], 2, "no permutation");
    seen[order[i]] = true;
  }
  DM_CHECK(L, dm_reducer_arrange(r, order));
  return 0;
}

/* reducer:set_wire(dtype or nil): in which gradients travel. */
static int reducer_set_wire(lua_State *L) {
  dm_enter(L);
  dm_Reducer *r = check_reducer(L);
  luaL_argcheck(L, !dm_reducer_is_open(r), 1, "its gradients are under way");
  luaL_argcheck(L, !dm_reducer_has_shards(r), 1, "it has shards");
  const dm_DType dtype =
      lua_isnoneornil(L, 2) ? DM_NO_DTYPE : dm_dtype_find(luaL_checkstring(L, 2));
  luaL_argcheck(L, lua_isnoneornil(L, 2) || dm_is_low(dtype), 2, "no float of 16 bits");
  DM_CHECK(L, dm_reducer_set_wire(r, dtype));
  return 0;
}

/* reducer:pause(on): passes only add to the gradients. */
static int reducer_pause(lua_State *L) {
  dm_reducer_pause(check_reducer(L), lua_toboolean(L, 2));
  return 0;
}

/* reducer:share(list): how the averages are shared out, a number for each parameter as
   dm_reducer_share has it. */
static int reducer_share(lua_State *L) {
  dm_enter(L);
  dm_Reducer *r = check_reducer(L);
  const int n = dm_reducer_params(r);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_argcheck(L, !dm_reducer_is_open(r), 1, "its gradients are under way");
  luaL_argcheck(L, !dm_reducer_has_shards(r), 1, "it has shards");
  luaL_argcheck(L, luaL_len(L, 2) == n, 2, "not a number for each parameter");
  int64_t *share = lua_newuserdatauv(L, sizeof *share * (size_t)(n + 1), 0);
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    share[i] = lua_tointeger(L, -1);
    lua_pop(L, 1);
    luaL_argcheck(L, share[i] >= 0, 2, "a number below 0");
  }
  DM_CHECK(L, dm_reducer_share(r, share));
  return 0;
}

/* The number of a parameter of the reducer's, from 0, at i. */
static int check_param(lua_State *L, const dm_Reducer *r, int i) {
  const lua_Integer param = luaL_checkinteger(L, i);
  luaL_argcheck(L, param >= 0 && param < dm_reducer_params(r), i, "no parameter");
  return (int)param;
}

/* reducer:span(parameter) -> its bucket, elements before it there, elements of a rank's share
   of the bucket. */
static int reducer_span(lua_State *L) {
  const dm_Reducer *r = check_reducer(L);
  const dm_Span span = dm_reducer_span(r, check_param(L, r, 2));
  lua_pushinteger(L, span.bucket);
  lua_pushinteger(L, span.at);
  lua_pushinteger(L, span.slice);
  return 3;
}

/* reducer:used(parameter) -> whether a rank has used it in the last pass. */
static int reducer_used(lua_State *L) {
  const dm_Reducer *r = check_reducer(L);
  lua_pushboolean(L, dm_reducer_used(r, check_param(L, r, 2)));
  return 1;
}

/* reducer:take(parameter, at, tensor): adds the average that begins `at` elements behind the
   begin of this rank's share of the parameter's bucket to tensor.grad. */
static int reducer_take(lua_State *L) {
  dm_enter(L);
  const dm_Reducer *r = check_reducer(L);
  const dm_Span span = dm_reducer_span(r, check_param(L, r, 2));
  const lua_Integer at = luaL_checkinteger(L, 3);
  dm_Tensor *to = dm_check_tensor(L, 4);
  luaL_argcheck(L, at >= 0 && at <= span.slice - to->numel, 3, "beyond the share");
  DM_CHECK(L, dm_reducer_take(r, span.bucket, at, to));
  return 0;
}

/* reducer:taken(): the shares are taken. */
static int reducer_taken(lua_State *L) {
  dm_reducer_taken(check_reducer(L));
  return 0;
}

/* reducer:counts() -> buckets, passes that sent, buckets that the last one sent before its end.
 */
static int reducer_counts(lua_State *L) {
  const dm_Reducer *r = check_reducer(L);
  lua_pushinteger(L, dm_reducer_buckets(r));
  lua_pushinteger(L, dm_reducer_passes(r));
  lua_pushinteger(L, dm_reducer_early(r));
  return 3;
}

/* _reducers_pause(1 or -1): begins or ends a pause of all reducers; these may be nested. */
static int reducers_pause(lua_State *L) {
  dm_reducers_pause(luaL_checkinteger(L, 1) > 0 ? 1 : -1);
  return 0;
}

/* _reducer_waiter(f): f() waits after each backward pass that has sent. */
static int reducer_waiter(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &waiter_key);
  return 0;
}

void dm_tell_ranks_line(lua_State *L, const State *S) {
  lua_Debug ar;
  char line[LUA_IDSIZE + 16];
  if (DM_LIKELY(!dm_any_home()) || !dm_where(L, S, &ar)) return;
  snprintf(line, sizeof line, "%s:%d", ar.short_src, ar.currentline);
  dm_reducers_at(line);
}

void dm_wait_for_ranks(lua_State *L) {
  if (DM_LIKELY(!dm_any_home() || !dm_reducers_are_open())) return;
  luaL_checkstack(L, 4, NULL);
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &waiter_key) == LUA_TFUNCTION) lua_call(L, 0, 0);
  else lua_pop(L, 1);
}

/* A hash of n bytes, eight at a time. */
static uint64_t hash_bytes(const char *p, int64_t n) {
  uint64_t h = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < n; i += 8) {
    uint64_t x = 0;
    memcpy(&x, p + i, (size_t)dm_min_i64(8, n - i));
    h = (h ^ x) * 0x100000001b3u;
    h ^= h >> 29;
  }
  return h;
}

/* The tensor number k of the list at i, on the CPU, one reference more: a finalizer may change
   the list whenever memory is asked for. */
static dm_Tensor *listed(lua_State *L, int i, lua_Integer k) {
  lua_rawgeti(L, i, k);
  dm_Tensor *t = dm_check_tensor(L, -1);
  luaL_argcheck(L, t->device.type == DM_CPU, i, "a tensor that is not on the CPU");
  lua_pop(L, 1);
  return dm_tensor_ref(t);
}

/* Copies the elements of t to `to`, or from there into t, in the order of a contiguous tensor.
 */
static dm_status copy_bytes(dm_Tensor *t, char *bytes, bool writes) {
  dm_Tensor *dense = NULL;
  const size_t n = (size_t)dm_tensor_bytes(t);
  if (writes && !dm_tensor_is_contiguous(t))
    DM_TRY(dm_tensor_new(t->dtype, t->ndim, t->shape, t->device, &dense));
  else DM_TRY(dm_dense_new(t, &dense));
  if (!writes) {
    memcpy(bytes, dm_tensor_data(dense), n);
  } else {
    memcpy(dm_tensor_data(dense), bytes, n);
    if (!dm_tensor_is_contiguous(t)) dm_copy_elements(t, dense);
    t->storage->version++;
  }
  dm_tensor_unref(&dense);
  return DM_OK;
}

/* Copies the elements of the list at i, one tensor after the other, to the bytes of the tensor
   at `all_at`, or from there. */
static int copy_list(lua_State *L, int i, int all_at, bool writes) {
  const lua_Integer n = luaL_len(L, i);
  int64_t at = 0;
  for (lua_Integer k = 1; k <= n; k++) {
    dm_Tensor *all = dm_check_tensor(L, all_at), *t = listed(L, i, k);
    dm_tensor_ref(all);
    const int64_t size = dm_tensor_bytes(t);
    const bool fits = size <= dm_tensor_bytes(all) - at;
    const dm_status st =
        fits && size > 0 ? copy_bytes(t, (char *)dm_tensor_data(all) + at, writes) : DM_OK;
    dm_tensor_unref(&t);
    dm_tensor_unref(&all);
    luaL_argcheck(L, fits, i, "more bytes than there are");
    DM_CHECK(L, st);
    at += size;
  }
  return 0;
}

/* _dist_packed(tensors on the CPU) -> a uint8 tensor of their elements' bytes. */
static int packed(lua_State *L) {
  State *S = dm_enter(L);
  int64_t size = 0;
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  const lua_Integer n = luaL_len(L, 1);
  for (lua_Integer k = 1; k <= n; k++) {
    dm_Tensor *t = listed(L, 1, k);
    size += dm_tensor_bytes(t);
    dm_tensor_unref(&t);
  }
  Handle *out = dm_push_own(L, S);
  DM_CHECK(L, dm_tensor_new(DM_U8, 1, &size, (dm_Device){.type = DM_CPU}, &out->t));
  copy_list(L, 1, 2, false);
  return 1;
}

/* _dist_unpack(bytes, tensors on the CPU): the other way. */
static int unpack(lua_State *L) {
  dm_enter(L);
  const dm_Tensor *all = dm_check_tensor(L, 1);
  luaL_argcheck(L, all->dtype == DM_U8 && all->device.type == DM_CPU, 1, "no bytes");
  luaL_checktype(L, 2, LUA_TTABLE);
  copy_list(L, 2, 1, true);
  return 0;
}

/* _digests(tensors) -> an int64 tensor with a hash of the bytes of each. */
static int digests(lua_State *L) {
  State *S = dm_enter(L);
  int n;
  Handle *out = dm_push_own(L, S);
  dm_Tensor **list = push_tensors(L, 1, &n);
  const int64_t size = n;
  DM_CHECK(L, dm_tensor_new(DM_I64, 1, &size, (dm_Device){.type = DM_CPU}, &out->t));
  for (int i = 0; i < n; i++) {
    dm_Tensor *dense = NULL;
    DM_CHECK(L, dm_dense_of(list[i], &dense));
    const uint64_t h =
        dense->numel > 0 ? hash_bytes(dm_tensor_data(dense), dm_tensor_bytes(dense)) : 0;
    ((int64_t *)dm_tensor_data(out->t))[i] = (int64_t)h;
    dm_tensor_unref(&dense);
  }
  lua_pop(L, 1);
  return 1;
}

void dm_register_distributed(lua_State *L, State *S) {
  static const luaL_Reg reducer_methods[] = {{"is_open", reducer_is_open},
                                             {"wait", reducer_wait},
                                             {"settle", reducer_settle},
                                             {"shadow", reducer_shadow},
                                             {"order", reducer_order},
                                             {"arrange", reducer_arrange},
                                             {"set_wire", reducer_set_wire},
                                             {"pause", reducer_pause},
                                             {"counts", reducer_counts},
                                             {"shards", reducer_shards},
                                             {"end_shard", reducer_end_shard},
                                             {"close", reducer_close},
                                             {"share", reducer_share},
                                             {"span", reducer_span},
                                             {"used", reducer_used},
                                             {"take", reducer_take},
                                             {"taken", reducer_taken},
                                             {"__gc", reducer_close},
                                             {NULL, NULL}};
  dm_register_class(L, reducer_class, reducer_methods, S);
  static const luaL_Reg methods[] = {{"wait", work_wait},   {"peer", work_peer},
                                     {"limit", work_limit}, {"release", work_release},
                                     {"__gc", work_gc},     {NULL, NULL}};
  dm_register_class(L, work_class, methods, S);
}

const luaL_Reg dm_distributed_functions[] = {{"_dist_lacks", lacks},
                                             {"_dist_machine", machine},
                                             {"_dist_guard", guard},
                                             {"_dist_open", open_world},
                                             {"_dist_opened", opened},
                                             {"_dist_rank", rank_of},
                                             {"_dist_size", size_of},
                                             {"_dist_most_tag", most_tag},
                                             {"_dist_new_group", new_group},
                                             {"_dist_new_aside", new_aside},
                                             {"_dist_dense", dense},
                                             {"_dist_post", post},
                                             {"_dist_way", way_of},
                                             {"_dist_takes", takes},
                                             {"_dist_leave", leave},
                                             {"_dist_left", left},
                                             {"_dist_stats", stats},
                                             {"_dist_listen", listen_to_stop},
                                             {"_dist_stop", stop_of},
                                             {"_reducer_new", reducer_new},
                                             {"_reducers_pause", reducers_pause},
                                             {"_reducer_waiter", reducer_waiter},
                                             {"_dist_packed", packed},
                                             {"_dist_unpack", unpack},
                                             {"_digests", digests},
                                             {NULL, NULL}};
