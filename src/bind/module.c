/* luaopen_demilune_core: one table with every op of dm_ops, the methods of tensors, and the
   rest of the binding. It may be opened more than once in a state and then shares the state's
   singletons: the State and the metatables, which the registry holds.

   An op needs no code here. Each row of dm_ops becomes a closure of dm_op_closure, once as a
   function and, when its first argument is a tensor, once as a method; a row with an in-place
   form gets a second closure with the name `op_`. */
#include <stdlib.h>
#include <time.h>

#include "bind/bind.h"

/* __gc of the State at lua_close: drops the main coroutine's references. */
static int state_gc(lua_State *L) {
  State *S = luaL_checkudata(L, 1, "demilune.State");
  dm_thread_state_clear(&S->thread);
  dm_thread_state_forget(); /* they may point into S */
  return 0;
}

/* The function that ipairs returns to the loop; NULL where a script put its own there. */
static lua_CFunction ipairs_next(lua_State *L) {
  lua_CFunction next = NULL;
  lua_newtable(L);
  if (lua_getglobal(L, "ipairs") == LUA_TFUNCTION) {
    lua_pushvalue(L, -2);
    lua_call(L, 1, 1);
    next = lua_tocfunction(L, -1);
  }
  lua_pop(L, 2);
  return next;
}

/* Pushes the userdata of the State, made at the first call; the registry keeps it until
   lua_close. The generator's seed comes from the clock. */
static State *push_state(lua_State *L) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &dm_state_key) == LUA_TUSERDATA)
    return lua_touserdata(L, -1);
  lua_pop(L, 1);
  State *S = lua_newuserdatauv(L, sizeof *S, 0);
  *S = (State){.gc_limit = 32 << 20, .print = {-1, -1, -1, -1, -1}};
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  S->generator.seed = (uint64_t)t.tv_sec * 1000003u ^ (uint64_t)t.tv_nsec;
  dm_thread_state_init(&S->thread, &S->generator, &S->observers);
  S->thread.base = 1;
  S->current = &S->thread;
  S->ipairs_next = ipairs_next(L);
  dm_ended_by(L, "demilune.State", "__gc", state_gc);
  lua_pushvalue(L, -1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &dm_state_key);
  return S;
}

/* Pushes the closure of the op in that form. */
static void push_op(lua_State *L, State *S, int id, bool inplace) {
  dm_push_form(L, S, dm_op_closure, id, inplace);
}

/* Registers every row as a function in the table at `module`, and as a method when it takes a
   tensor first. Hidden rows, which only other ops call, have no name in Lua. */
static void register_ops(lua_State *L, State *S, int module, int methods) {
  for (int id = 0; id < DM_N_OP; id++) {
    const dm_OpInfo *op = &dm_ops[id];
    if (op->flags & F_HIDDEN) continue;
    /* unfold of images is a function only: x:unfold makes windows along a dim, as PyTorch's */
    const bool method = !(op->flags & F_CREATE) && !op->signature->list && id != DM_OP_unfold;
    if (!(op->flags & F_ONLY_INPLACE)) {
      push_op(L, S, id, false);
      if (method) {
        lua_pushvalue(L, -1);
        lua_setfield(L, methods, op->name);
      }
      lua_setfield(L, module, op->name);
    }
    if (op->flags & F_INPLACE) {
      push_op(L, S, id, true);
      lua_pushfstring(L, "%s_", op->name);
      lua_pushvalue(L, -2);
      lua_setfield(L, methods, lua_tostring(L, -2));
      lua_pushvalue(L, -2);
      lua_setfield(L, module, lua_tostring(L, -2));
      lua_pop(L, 2);
    }
  }
}

/* A metamethod of arithmetic and the op that it calls; mixed operands, a tensor and a
   number, come in either order. */
typedef struct Operator {
  const char *event;
  int op;
} Operator;
static const Operator operators[] = {{"__add", DM_OP_add},
                                     {"__sub", DM_OP_sub},
                                     {"__mul", DM_OP_mul},
                                     {"__div", DM_OP_div},
                                     {"__mod", DM_OP_remainder},
                                     {"__pow", DM_OP_pow},
                                     {"__band", DM_OP_bitwise_and},
                                     {"__bor", DM_OP_bitwise_or},
                                     {"__bxor", DM_OP_bitwise_xor},
                                     {"__shl", DM_OP_bitwise_left_shift},
                                     {"__shr", DM_OP_bitwise_right_shift}};

/* __unm, __bnot: -x is the op neg, ~x bitwise_not. */
static int unary(lua_State *L) {
  lua_settop(L, 1); /* Lua passes the operand twice */
  return dm_op_closure(L);
}

/* x // y: div with rounding_mode = "floor". */
static int floor_divide(lua_State *L) {
  lua_settop(L, 2);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "floor");
  lua_setfield(L, -2, "rounding_mode");
  return dm_op_closure(L);
}

/* Fills the metatable on top: metamethods with the methods' table as upvalue 3, and
   operators, which are closures of the ops. */
static void fill_metatable(lua_State *L, State *S, int methods) {
  for (const luaL_Reg *r = dm_tensor_metamethods; r->name; r++) {
    lua_pushlightuserdata(L, S);
    lua_pushvalue(L, -2);
    lua_pushvalue(L, methods);
    lua_pushcclosure(L, r->func, 3);
    lua_setfield(L, -2, r->name);
  }
  for (int i = 0; i < DM_COUNT(operators); i++) {
    push_op(L, S, operators[i].op, false);
    lua_setfield(L, -2, operators[i].event);
  }
  dm_push_form(L, S, unary, DM_OP_neg, false);
  lua_setfield(L, -2, "__unm");
  dm_push_form(L, S, unary, DM_OP_bitwise_not, false);
  lua_setfield(L, -2, "__bnot");
  dm_push_form(L, S, floor_divide, DM_OP_div, false);
  lua_setfield(L, -2, "__idiv");
  dm_close_metatable(L, "demilune.Tensor");
}

/* require "demilune.core" -> the module. It pushes one value. */
int luaopen_demilune_core(lua_State *L) {
  luaL_checkversion(L);
  State *S = push_state(L);
  lua_newtable(L);
  const int module = lua_gettop(L);
  lua_newtable(L);
  const int methods = lua_gettop(L);
  /* The metatable is made once for each Lua state. A second opening makes new tables of
     functions and methods, but handles go on finding their methods in the first. */
  const bool fresh = luaL_newmetatable(L, "demilune.Tensor");
  if (fresh) fill_metatable(L, S, methods);
  lua_pop(L, 1);
  register_ops(L, S, module, methods);
  lua_pushvalue(L, methods);
  dm_set_functions(L, dm_tensor_methods, S);
  dm_set_casts(L, S);
  dm_set_functions(L, dm_split_functions, S);
  dm_set_functions(L, dm_grad_methods, S);
  dm_set_functions(L, dm_cuda_methods, S);
  lua_pop(L, 1);
  /* The classes' metatables are in the registry under their names, so a second call finds
     them. */
  dm_register_scopes(L, S);
  dm_register_loader(L, S);
  dm_register_worker(L, S);
  dm_register_tokens(L, S);
  dm_register_zip(L, S);
  dm_register_images(L);
  dm_register_augment(L, S);
  dm_register_random(L, S);
  dm_register_profile(L, S);
  dm_register_cuda(L, S);
  dm_register_graph(L, S);
  dm_register_distributed(L, S);
  dm_register_parts(L, S);
  dm_push_region_methods(L, S);
  lua_setfield(L, module, "region_methods");
  lua_pushvalue(L, module);
  const luaL_Reg *const parts[] = {
      dm_random_functions,      dm_tensor_functions,    dm_scope_functions,
      dm_grad_functions,        dm_print_functions,     dm_misc_functions,
      dm_data_functions,        dm_optim_functions,     dm_report_functions,
      dm_memory_functions,      dm_profile_functions,   dm_image_functions,
      dm_autocast_functions,    dm_cuda_functions,      dm_tokens_functions,
      dm_images_functions,      dm_augment_functions,   dm_loader_functions,
      dm_split_functions,       dm_state_functions,     dm_worker_functions,
      dm_zip_functions,         dm_interrupt_functions, dm_line_functions,
      dm_distributed_functions, dm_graph_functions,     dm_parts_functions};
  for (int i = 0; i < DM_COUNT(parts); i++) dm_set_functions(L, parts[i], S);
  lua_pop(L, 1);
  lua_newtable(L);
  dm_set_functions(L, dm_test_functions, S);
  lua_setfield(L, module, "_test");
  lua_pushvalue(L, methods);
  lua_setfield(L, module, "methods");
  lua_pushinteger(L, DM_MAX_DIM);
  lua_setfield(L, module, "_MAX_DIM");
  lua_pushstring(L, "demilune " DM_VERSION);
  lua_setfield(L, module, "_VERSION");
  lua_settop(L, module);
  return 1;
}

/* Gives this C thread a copy of the running coroutine's thread state, in which dims count
   from 0, for the C calls that follow. */
static void hand_over(lua_State *L) {
  const State *S = push_state(L);
  lua_pop(L, 1);
  dm_thread_state_adopt(S->current);
}

/* A value that is no tensor gives NULL. */
dm_Tensor *dm_lua_tensor(lua_State *L, int index) {
  dm_Tensor *t = dm_to_tensor(L, index);
  hand_over(L);
  return t;
}

/* The value that the call of push_taken under way is to push; NULL outside one. */
static _Thread_local dm_Tensor *taken;

/* Returns a handle that has taken the reference. As a closure it has the upvalues that
   dm_push_handle reads. */
static int push_taken(lua_State *L) {
  State *S = dm_enter(L);
  Handle *b = dm_push_handle(L, S);
  b->t = taken;
  taken = NULL;
  return 1;
}

/* The caller is C code outside any closure of the binding, so this makes one and calls it.
   Where Lua has no memory for it, the error passes through the caller. */
void dm_lua_push(lua_State *L, dm_Tensor *t) {
  State *S = push_state(L);
  lua_pushlightuserdata(L, S);
  luaL_getmetatable(L, "demilune.Tensor");
  lua_pushcclosure(L, push_taken, 2);
  lua_remove(L, -2);
  taken = t;
  lua_call(L, 0, 1);
  hand_over(L);
}
