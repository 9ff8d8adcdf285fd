/* What the files of the binding share. The binding is the only code that
   includes lua.h; it turns a failed status into a Lua error at the caller's
   line, and holds no engine reference across a call that may raise, but in
   userdata. Every closure has two upvalues: 1 the State, 2 the metatable of
   tensors. */
#ifndef DM_BIND_H
#define DM_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "engine/op.h"
#include "engine/replay.h"
#include "engine/tape.h"

/* A Lua handle on a tensor. Lies in its scope's ring, so that the scope's end
   can release it. t is NULL once released. */
typedef struct Handle {
  const void *magic;
  dm_Tensor *t;
  struct Handle *prev, *next; /* of the scope's ring; NULL: in none */
  bool by_scope;              /* released by a scope: the message says so */
} Handle;

/* One per Lua state (not per coroutine). */
typedef struct State {
  dm_Modes modes; /* the main coroutine's */
  dm_Modes *current;
  lua_State *current_thread, *main; /* NULL: not met yet */
  dm_Generator generator;
  struct dm_Observer *observers;
  Handle *scope; /* ring of the innermost open scope; NULL: none */
  int64_t gc_limit, gc_count;
  int64_t n_box;                      /* handles made since the last forced collection */
  double gc_seconds, gc_end, gc_last; /* in forced collections; the last one's end, cost */
  int64_t next_id;
  char library[512]; /* the folder of the Lua files, as sources name it; or empty */
} State;

#define UP_STATE 1
#define UP_META 2

extern const char dm_box_magic, dm_state_key;

static inline State *state_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(UP_STATE));
}

/* Makes this coroutine's modes current; the first thing every entry does. */
void dm_enter_slow(lua_State *L, State *S);
static inline State *dm_enter(lua_State *L) {
  State *S = state_of(L);
  if (DM_UNLIKELY(S->current_thread != L)) dm_enter_slow(L, S);
  dm_modes_current = S->current;
  return S;
}

/* The box at i, or NULL. A light userdata has length 0, so that nothing is read
   through one. */
static inline Handle *dm_box(lua_State *L, int i) {
  Handle *b = lua_touserdata(L, i);
  return b && lua_rawlen(L, i) == sizeof *b && b->magic == &dm_box_magic ? b : NULL;
}
static inline dm_Tensor *dm_to_tensor(lua_State *L, int i) {
  const Handle *b = dm_box(L, i);
  return b ? b->t : NULL;
}

/* The tensor at i; raises when there is none, or it was freed. */
dm_Tensor *dm_check_tensor(lua_State *L, int i);
/* Pushes an empty box; fill it after. */
Handle *dm_push_box(lua_State *L, State *S);
/* Fills an empty box; takes t's reference. May collect garbage. */
void dm_box_fill(lua_State *L, State *S, Handle *b, dm_Tensor *t);
/* Pushes t and takes its reference. May collect garbage. When Lua itself may
   run out of memory, better: first the box, then the call that fills it. */
void dm_push_tensor(lua_State *L, State *S, dm_Tensor *t);
/* Calls an op of one output and pushes that, or raises; tried twice. */
int dm_push_call(lua_State *L, State *S, int op, int n_in, dm_Tensor *const *in,
                 const void *attr);
/* Takes b out of its scope: it lives until Lua lets go of it. */
void dm_box_keep(Handle *b);
void dm_box_release(Handle *b);

/* Raises the engine's message (or a formatted one) at the line of the first
   caller outside the library. */
int dm_raise(lua_State *L);
int dm_raise_text(lua_State *L, const char *fmt, ...);
#define DM_CHECK(L, call)                                 \
  do {                                                    \
    if (DM_UNLIKELY((call) != DM_OK)) return dm_raise(L); \
  } while (0)

/* Finds the first Lua function on the stack whose source does not lie in the
   library's own folder: the user's line. Takes no memory. */
bool dm_where(lua_State *L, const State *S, lua_Debug *ar);

/* A file that cannot be read or written is an answer, nil and a message; the
   rest is a mistake of the caller, or the end of memory, and raises. */
int dm_world_failed(lua_State *L, dm_status st);

/* The file of tokens at i; it lives as long as that value. */
const struct dm_Tokens *dm_check_tokens(lua_State *L, int i);

/* *out = the elements of t side by side in row-major order on the CPU, without
   history; t's own bytes when they lie so. */
dm_status dm_dense_of(const dm_Tensor *t, dm_Tensor **out);

/* *out = a tensor on the CPU, in memory that dev, a CUDA device that is there, copies
   from by itself; its bytes are anything. */
dm_status dm_pinned_new(dm_Device dev, dm_DType dtype, int ndim, const int64_t *shape,
                        dm_Tensor **out);

/* DM_CHECK, with a second try after dm_make_room when memory ran out. */
#define DM_CHECK_TWICE(L, S, call)                     \
  do {                                                 \
    const int mark_ = dm_replay_mark();                \
    dm_status st_ = (call);                            \
    if (DM_UNLIKELY(st_ == DM_EMEM)) {                 \
      dm_make_room(L, S);                              \
      dm_replay_rewind(mark_);                         \
      st_ = (call);                                    \
    }                                                  \
    if (DM_UNLIKELY(st_ != DM_OK)) return dm_raise(L); \
  } while (0)

/* The steps at i, as core.augment gives them; or raises. */
const struct dm_Augment *dm_check_augment(lua_State *L, int i);

/* Registers with the two upvalues (the table is on top). */
void dm_set_functions(lua_State *L, const luaL_Reg *f, State *S);
/* Makes the metatable of a class, whose methods are found in it. */
void dm_register_class(lua_State *L, const char *name, const luaL_Reg *methods, State *S);
/* Gives the userdata on top the metatable of that name, in which f is `event`: how it ends. */
void dm_ended_by(lua_State *L, const char *name, const char *event, lua_CFunction f);
/* Frees what garbage holds. */
void dm_collect(lua_State *L, State *S);
/* Likewise, where much is alive: a walk back lets go of the activations that it has passed,
   but the script's forgotten handles would still hold them. */
void dm_collect_before_walk(lua_State *L, State *S);
/* And what the allocator keeps: the second chance of a call that failed. */
void dm_make_room(lua_State *L, State *S);

dm_DType dm_check_dtype(lua_State *L, int i);
dm_Device dm_check_device(lua_State *L, int i);
/* t[key] of an options table at i, or nil; pushes one value. */
int dm_option(lua_State *L, int i, const char *key);
/* Raises when the table at i has a key that is none of the n names. */
void dm_check_options(lua_State *L, const char *what, int i, int n, const char *const *names);
bool dm_option_bool(lua_State *L, int i, const char *key, bool def);
/* The nearest of n names to word, or NULL when none is near. */
const char *dm_nearest(const char *word, int n, const char *const *names);

int dm_op_closure(lua_State *L);
/* Pushes f, which is dm_op_closure or ends in it, for that form of the op. */
void dm_push_form(lua_State *L, State *S, lua_CFunction f, int id, bool inplace);
int dm_index_get(lua_State *L);
int dm_index_set(lua_State *L);
int dm_index_put(lua_State *L);
int dm_index_put_(lua_State *L);
int dm_tensor_tostring(lua_State *L);
int dm_tensor_to(lua_State *L);

/* The script's generator at i, or NULL. */
dm_Generator *dm_to_generator(lua_State *L, int i);

extern const luaL_Reg dm_random_functions[];
extern const luaL_Reg dm_piece_functions[];
extern const luaL_Reg dm_tensor_functions[], dm_tensor_methods[], dm_tensor_metamethods[];
extern const luaL_Reg dm_scope_functions[], dm_grad_functions[], dm_misc_functions[];
extern const luaL_Reg dm_grad_methods[], dm_data_functions[], dm_optim_functions[];
extern const luaL_Reg dm_tokens_functions[], dm_loader_functions[];
extern const luaL_Reg dm_report_functions[], dm_memory_functions[], dm_profile_functions[];
extern const luaL_Reg dm_image_functions[], dm_images_functions[], dm_augment_functions[];
extern const luaL_Reg dm_autocast_functions[];
extern const luaL_Reg dm_cuda_functions[], dm_cuda_methods[];
void dm_register_scopes(lua_State *L, State *S);
/* A scope in which the stream at 1 is the current one; a function may lie at 2. */
int dm_stream_scope(lua_State *L, dm_Stream stream);
void dm_register_cuda(lua_State *L, State *S);
/* Adds the steps of optimizers to the table at `module`. */
void dm_register_optim(lua_State *L, State *S, int module);
/* Pushes the table of methods of autocast's regions. */
void dm_push_region_methods(lua_State *L, State *S);
/* Warns, once for each line, when `what` is called while autocast is on. */
void dm_warn_autocast(lua_State *L, const State *S, const char *what);
void dm_register_loader(lua_State *L, State *S);
void dm_register_tokens(lua_State *L, State *S);
void dm_register_images(lua_State *L);
void dm_register_augment(lua_State *L, State *S);
void dm_register_random(lua_State *L, State *S);
void dm_register_profile(lua_State *L, State *S);

#endif
