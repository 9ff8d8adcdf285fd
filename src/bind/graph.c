/* Graphs of a device as userdata: demilune.cuda_graph records a training step through them. The
   graph is freed by its __gc; it reaches the device only through dm_GraphOps. */
#include <string.h>

#include "base/error.h"
#include "bind/bind.h"
#include "engine/leaves.h"
#include "op/optim/optim.h"

static const char graph_name[] = "demilune.Graph";

typedef struct Graph {
  const dm_GraphOps *ops;
  void *graph; /* NULL where its making failed */
  dm_Leaves leaves;
} Graph;

static Graph *check_graph(lua_State *L) {
  Graph *g = luaL_checkudata(L, 1, graph_name);
  luaL_argcheck(L, g->graph, 1, "the graph was freed");
  return g;
}

/* graph(device) -> a graph of the current stream there, with a pool of memory. */
static int graph_new(lua_State *L) {
  dm_enter(L);
  const dm_Device d = dm_check_cuda(L, 1);
  Graph *g = lua_newuserdatauv(L, sizeof *g, 0);
  *g = (Graph){.ops = dm_device_ops(d)->graphs};
  luaL_setmetatable(L, graph_name);
  if (!g->ops) return dm_raise_text(L, "cuda.graph: the device has no graphs");
  DM_CHECK(L, g->ops->graph_new(d, &g->graph));
  return 1;
}

static int graph_gc(lua_State *L) {
  Graph *g = luaL_checkudata(L, 1, graph_name);
  if (g->graph) g->ops->graph_free(g->graph);
  g->graph = NULL;
  dm_leaves_end(&g->leaves, false);
  dm_leaves_clear(&g->leaves);
  return 0;
}

/* g:use_pool(yes): whether memory of this thread comes from the graph's pool. */
static int use_pool(lua_State *L) {
  dm_enter(L);
  const Graph *g = check_graph(L);
  g->ops->use_pool(g->graph, lua_toboolean(L, 2));
  return 0;
}

/* g:capture_begin(), g:capture_end(keep): between them work is recorded instead of run. */
static int capture_begin(lua_State *L) {
  dm_enter(L);
  Graph *g = check_graph(L);
  DM_CHECK(L, g->ops->capture_begin(g->graph));
  dm_leaves_begin(&g->leaves);
  return 0;
}
static int capture_end(lua_State *L) {
  dm_enter(L);
  Graph *g = check_graph(L);
  const bool keep = lua_toboolean(L, 2), lacks = keep && g->leaves.has_failed;
  dm_status st = g->ops->capture_end(g->graph, keep && !lacks);
  if (lacks) st = dm_fail(DM_EMEM, "cuda.graph: out of memory for a graph's records");
  dm_leaves_end(&g->leaves, keep && st == DM_OK);
  DM_CHECK(L, st);
  return 0;
}

/* g:is_ready(): whether a launch would find the leaves as the capture has; copies of weights
   that were written since are written anew. */
static int is_ready(lua_State *L) {
  dm_enter(L);
  const Graph *g = check_graph(L);
  bool ready;
  DM_CHECK(L, dm_leaves_ready(&g->leaves, &ready));
  lua_pushboolean(L, ready);
  return 1;
}

/* g:launch(): queues all that was recorded. */
static int launch(lua_State *L) {
  dm_enter(L);
  const Graph *g = check_graph(L);
  DM_CHECK(L, g->ops->launch(g->graph));
  dm_leaves_launched(&g->leaves);
  return 0;
}

/* g:n_step() -> the optimizer steps recorded so far; g:n_node() -> the pieces of work. */
static int n_step(lua_State *L) {
  const Graph *g = check_graph(L);
  lua_pushinteger(L, g->ops->n_step(g->graph));
  return 1;
}
static int n_node(lua_State *L) {
  const Graph *g = check_graph(L);
  lua_pushinteger(L, g->ops->n_node(g->graph));
  return 1;
}

/* The row of the method that is named at i. */
static const dm_MethodRow *row_at(lua_State *L, int i, int *method) {
  const char *name = luaL_checkstring(L, i);
  for (int m = 0; m < DM_N_METHOD; m++) {
    if (strcmp(dm_method_rows[m].name, name) != 0) continue;
    *method = m;
    return &dm_method_rows[m];
  }
  dm_raise_text(L, "optimizer: no method '%s'", name);
  return NULL;
}

/* The options of the row from stack position i on, numbers or booleans. */
static void options_at(lua_State *L, int i, const dm_MethodRow *row, double *options) {
  for (int k = 0; k < row->n_option; k++)
    options[k] =
        lua_isboolean(L, i + k) ? (double)lua_toboolean(L, i + k) : luaL_optnumber(L, i + k, 0);
}

/* g:set_step(i, method, options in the row's order ...): the options of recorded step i, from
   1, in later launches. */
static int set_step(lua_State *L) {
  int method = 0;
  double options[DM_MAX_OPTIONS];
  dm_enter(L);
  const Graph *g = check_graph(L);
  const lua_Integer i = luaL_checkinteger(L, 2);
  options_at(L, 4, row_at(L, 3, &method), options);
  DM_CHECK(L, g->ops->set_step(g->graph, i - 1, method, options));
  return 0;
}

static uint64_t mixed(uint64_t hash, uint64_t more) {
  return (hash ^ more) * UINT64_C(0x9E3779B97F4A7C15) + (hash >> 29);
}
static uint64_t address_of(const dm_Tensor *t) {
  return t ? (uint64_t)(uintptr_t)dm_tensor_data(t) : 0;
}

/* The sum over the tensors of the table on top: the order of its entries is of no importance.
 */
static uint64_t buffers_of(lua_State *L) {
  uint64_t sum = 0;
  if (!lua_istable(L, -1)) return 0;
  for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
    const dm_Tensor *t = dm_to_tensor(L, -1);
    if (t) sum += mixed(1, address_of(t));
  }
  return sum;
}

/* graph_stamp(params, state, method, options ...) -> an integer that changes where a step of
   these would give its launches other arguments, or where a parameter has been written and its
   16-bit copy, which the launches read, has not. */
static int graph_stamp(lua_State *L) {
  int method = 0;
  double options[DM_MAX_OPTIONS];
  uint64_t hash = 0;
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  const dm_MethodRow *row = row_at(L, 3, &method);
  options_at(L, 4, row, options);
  hash = mixed(hash, row->wanted(options));
  for (lua_Integer i = 1; lua_rawgeti(L, 1, i) != LUA_TNIL; i++) {
    const dm_Tensor *p = dm_check_tensor(L, -1);
    const bool is_fresh = p->low && p->low->storage->version == p->storage->version;
    hash = mixed(mixed(hash, address_of(p)), address_of(p->low) + is_fresh);
    lua_rawget(L, 2);
    hash = mixed(hash, buffers_of(L));
    lua_pop(L, 1);
  }
  lua_pushinteger(L, (lua_Integer)hash);
  return 1;
}

/* graph_copies(params) -> the addresses of their 16-bit copies, 0 where there is none. */
static int graph_copies(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_newtable(L);
  for (lua_Integer i = 1; lua_rawgeti(L, 1, i) != LUA_TNIL; i++) {
    const dm_Tensor *p = dm_check_tensor(L, -1);
    lua_pushinteger(L, (lua_Integer)address_of(p->low));
    lua_rawseti(L, 2, i);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return 1;
}

/* graph_touch(params): a step that is recorded reads their gradients. */
static int graph_touch(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  for (lua_Integer i = 1; lua_rawgeti(L, 1, i) != LUA_TNIL; i++) {
    dm_leaves_touch(dm_check_tensor(L, -1));
    lua_pop(L, 1);
  }
  return 0;
}

/* graph_drop(params): drops their gradients and 16-bit copies, which a capture that failed may
   have made and nothing has filled. */
static int graph_drop(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  for (lua_Integer i = 1; lua_rawgeti(L, 1, i) != LUA_TNIL; i++) {
    dm_Tensor *p = dm_check_tensor(L, -1);
    dm_tensor_unref(&p->grad);
    dm_tensor_unref(&p->low);
    lua_pop(L, 1);
  }
  return 0;
}

void dm_register_graph(lua_State *L, State *S) {
  static const luaL_Reg graph[] = {
      {"use_pool", use_pool},       {"capture_begin", capture_begin},
      {"capture_end", capture_end}, {"is_ready", is_ready},
      {"launch", launch},           {"n_step", n_step},
      {"set_step", set_step},       {"n_node", n_node},
      {"__gc", graph_gc},           {NULL, NULL}};
  dm_register_class(L, graph_name, graph, S);
}

const luaL_Reg dm_graph_functions[] = {
    {"graph", graph_new},         {"graph_stamp", graph_stamp}, {"graph_copies", graph_copies},
    {"graph_touch", graph_touch}, {"graph_drop", graph_drop},   {NULL, NULL}};
