/* The world of ranks and its works, for lua/demilune/distributed. Nothing here waits for longer
   than the milliseconds it is given: Lua asks again, so that Ctrl-C comes through. */
#include "dist/world.h"

#include <stdio.h>
#include <string.h>

#include "bind/bind.h"

static const char work_class[] = "demilune.Work", guard_class[] = "demilune.World";

/* The names of dm_WorkKind and dm_RankOp. */
static const char *const kinds[] = {"barrier",    "all_reduce",     "broadcast", "reduce",
                                    "all_gather", "reduce_scatter", "gather",    "scatter",
                                    "all_to_all", "send",           "recv",      "new_group",
                                    NULL};
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
  DM_UNUSED(L);
  dm_world_leave(false);
  while (!dm_world_left(WAIT_MS)) continue;
  return 0;
}

/* _dist_guard() -> a value with whose end, that of the Lua state, the process leaves the world.
 */
static int guard(lua_State *L) {
  lua_newuserdatauv(L, 1, 0);
  dm_ended_by(L, guard_class, "__gc", guard_gc);
  return 1;
}

/* _dist_open(by_mpi, timeout in seconds): begins to open the world -> the reason why it cannot;
   or nil. */
static int open_world(lua_State *L) {
  lua_pushstring(L, dm_world_open(lua_toboolean(L, 1), luaL_checknumber(L, 2)));
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

/* _dist_dense(x) -> x's elements as a contiguous tensor on the CPU without history; whether it
   shares x's memory; whether elements of x share memory. */
static int dense(lua_State *L) {
  State *S = dm_enter(L);
  Handle *b = dm_push_own(L, S);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  DM_CHECK(L, dm_dense_of(t, &b->t));
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
  if (w->in->numel > 0)
    memcpy(dm_tensor_data(copy), dm_tensor_data(w->in), (size_t)dm_tensor_bytes(w->in));
  dm_tensor_unref(&w->in);
  w->in = copy;
  return DM_OK;
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
    [DM_WORK_SEND] = {1, 0, 1, 0},
    [DM_WORK_RECEIVE] = {1, 0, 1, 0},
    [DM_WORK_SPLIT] = {0},
};

/* Whether t is n parts (or nothing, for 0), dense and on the CPU; *part: the elements of one,
   -1 while none is known. */
static bool is_parts(const dm_Tensor *t, int n, int n_rank, int64_t *part) {
  if (n == 0 || !t) return (n == 0) == !t;
  const int64_t count = n == N_PARTS ? n_rank : n, each = t->numel / count;
  if (t->device.type != DM_CPU || !dm_tensor_is_contiguous(t) || each * count != t->numel)
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
  luaL_argcheck(L, w->peer >= 0 && w->peer < n, 3, "no rank of the group");
  const bool is_peer = w->agree->me == w->peer;
  luaL_argcheck(L, is_parts(w->in, is_peer ? t->in : t->in_else, n, &part), 5, "no such parts");
  luaL_argcheck(L, is_parts(w->out, is_peer ? t->out : t->out_else, n, &part), 6,
                "no such parts");
  luaL_argcheck(L, !w->in || !w->out || w->in->dtype == w->out->dtype, 6, "of another dtype");
}

/* _dist_post(kind, group, peer = 0, op or nil, in or nil, out or nil, name, key, line) -> a
   work. The tensors are dense, on the CPU; of new_group the group is the new one. */
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
  w->agree = kind == DM_WORK_SPLIT ? dm_world_group(0) : group;
  w->peer = peer;
  w->in = taken(L, 5);
  w->out = taken(L, 6);
  check_work_is_sound(L, w);
  if (w->in && w->out && w->in->storage == w->out->storage) DM_CHECK(L, part_from_out(w));
  w->header.n_bytes = w->in ? dm_tensor_bytes(w->in) : 0;
  snprintf(w->header.name, sizeof w->header.name, "%s", name);
  snprintf(w->header.key, sizeof w->header.key, "%s", key);
  snprintf(w->header.line, sizeof w->header.line, "%s", line);
  DM_CHECK(L, dm_world_post(w));
  if (w->in && writes_in(w)) w->in->storage->version++;
  if (w->out) w->out->storage->version++;
  return 1;
}

/* work:wait(ms) -> true: done; false: not yet; nil and the reason: it failed. */
static int work_wait(lua_State *L) {
  const dm_Work *w = check_work(L);
  if (!dm_world_wait(w, (int)luaL_optinteger(L, 2, WAIT_MS))) {
    lua_pushboolean(L, false);
    return 1;
  }
  if (!w->failed) {
    lua_pushboolean(L, true);
    return 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, w->failure);
  return 2;
}

/* work:limit(seconds): it fails where it is not done so long from now. */
static int work_limit(lua_State *L) {
  dm_world_limit(check_work(L), luaL_checknumber(L, 2));
  return 0;
}

/* _dist_leave(): begins to leave the world. */
static int leave(lua_State *L) {
  DM_UNUSED(L);
  dm_world_leave(true);
  return 0;
}

/* _dist_left() -> whether that is done, after a moment. */
static int left(lua_State *L) {
  lua_pushboolean(L, dm_world_left(WAIT_MS));
  return 1;
}

/* _dist_stats() -> calls, bytes sent, seconds waited. */
static int stats(lua_State *L) {
  const dm_WorldStats s = dm_world_stats();
  lua_pushinteger(L, s.n_call);
  lua_pushinteger(L, s.n_sent);
  lua_pushnumber(L, s.waited);
  return 3;
}

void dm_register_distributed(lua_State *L, State *S) {
  static const luaL_Reg methods[] = {
      {"wait", work_wait}, {"limit", work_limit}, {"__gc", work_gc}, {NULL, NULL}};
  dm_register_class(L, work_class, methods, S);
}

const luaL_Reg dm_distributed_functions[] = {{"_dist_lacks", lacks},
                                             {"_dist_guard", guard},
                                             {"_dist_open", open_world},
                                             {"_dist_opened", opened},
                                             {"_dist_rank", rank_of},
                                             {"_dist_size", size_of},
                                             {"_dist_new_group", new_group},
                                             {"_dist_dense", dense},
                                             {"_dist_post", post},
                                             {"_dist_leave", leave},
                                             {"_dist_left", left},
                                             {"_dist_stats", stats},
                                             {NULL, NULL}};
