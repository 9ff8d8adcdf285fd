/* The common header of the binding, which is the only code that includes lua.h.

   Values. A tensor is a full userdata of type Handle with one engine reference; its __gc,
   __close and x:free() give the reference back. Every closure has two upvalues: 1 is the
   State of this Lua state, 2 is the metatable of tensors, so that a call finds both without a
   look in the registry. Other resources (files, streams, loaders, scopes) are userdata of
   their own classes; a user value keeps alive the Lua values that such a resource points to,
   such as the coroutine whose thread state a scope restores.

   Errors. A failed dm_status becomes a Lua error that names the line of the caller outside
   the library. lua_error leaves by longjmp and runs no code of the C frames it skips. The
   binding therefore stores every engine reference in a userdata before any call that may
   raise; the collector frees it then. For the same reason a callback from the engine into Lua
   runs under lua_pcall (grad.c).

   The collector. Lua may run it wherever a call of Lua allocates or meets a metamethod, and the
   binding runs it in dm_collect. It calls finalizers, and those are any code: they free
   tensors, close scopes, change tables, give a tensor other data, enter other coroutines. So:
   - A tensor is read from its handle (dm_check_tensor) after the last such call before it is
     used; until then its position on the stack stands for it. dm_push_call takes positions.
   - An engine call that may be tried twice, or call back into Lua, runs with references to its
     inputs (DM_CHECK_HELD, dm_hold_all). Nothing raises before they are given back.
   - A handle that the function fills step by step is pushed by dm_push_own, so that the end of
     a scope does not release it.
   - A table's length bounds a loop only where C memory of that length is filled in the loop;
     an element that is gone is nil, and refused.
   - dm_enter, or dm_push_handle, comes after the last such call, for a finalizer may have
     entered another coroutine.

   Files. module.c opens the module; call.c is the function behind every op; state.c has
   coroutines, handles, garbage and errors; tensor.c, index.c, print.c and split.c make
   tensors usable as values; grad.c, autocast.c and scope.c switch and run autograd; optim.c
   steps parameters; data.c, parts.c, image.c, images.c, tokens.c, augment.c, loader.c and
   worker.c read and write data; cuda.c, graph.c, distributed.c, memory.c, random.c, profile.c
   and report.c serve the Lua modules on those subjects; misc.c has the rest. */
#ifndef DM_BIND_H
#define DM_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "engine/call.h"
#include "engine/tape.h"

/* A tensor as a Lua value: a full userdata with one reference. It is a member of the ring of
   the dm.scope in which it was made, so that the scope's end can release it. The magic number
   tells it from the userdata of other libraries without a comparison of metatables. */
typedef struct Handle {
  const void *magic;
  dm_Tensor *t;               /* NULL once released */
  struct Handle *prev, *next; /* in the scope's ring; NULL: in none */
  bool by_scope;              /* a scope released it; the error message says so */
} Handle;

/* How tensors are printed, by dm.set_printoptions; -1: as print.c has it. */
typedef struct PrintOptions {
  int64_t threshold;
  int precision, edgeitems, linewidth, sci_mode;
} PrintOptions;

/* One for each Lua state, shared by its coroutines. The registry holds it as a userdata until
   lua_close, so pointers to it stay valid in every closure. */
typedef struct State {
  dm_ThreadState thread; /* the main coroutine's */
  dm_ThreadState *current;
  lua_State *current_thread, *main; /* coroutines; NULL: none has called yet */
  dm_Generator generator;
  struct dm_Observer *observers;
  Handle *scope; /* ring of the innermost open scope; NULL: none */
  int64_t gc_limit, gc_count;
  int64_t n_handle;                   /* handles made since the last forced collection */
  double gc_seconds, gc_end, gc_last; /* in forced collections; the last one's end, cost */
  int64_t next_id;
  PrintOptions print;
  lua_CFunction ipairs_next; /* what ipairs returns; or NULL */
  char library[512];         /* the folder of the Lua files, as sources name it; or empty */
} State;

#define UP_STATE 1
#define UP_META 2

extern const char dm_handle_magic, dm_state_key;

/* The State of the running closure. It is NULL in a C function without upvalues, such as a
   __gc that dm_ended_by sets. */
static inline State *state_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(UP_STATE));
}

/* Makes this coroutine's thread state (grad mode, autocast, default device) the one that the
   engine reads. A function that calls the engine begins with it. It pushes nothing. */
void dm_enter_slow(lua_State *L, State *S);
/* The common case costs a comparison and a store: the coroutine is that of the last call. */
static inline State *dm_enter(lua_State *L) {
  State *S = state_of(L);
  if (DM_UNLIKELY(S->current_thread != L)) dm_enter_slow(L, S);
  dm_thread_state_current = S->current;
  return S;
}

/* The userdata at i that has this size and begins with the address `mark`, or NULL: its kind
   without luaL_checkudata's search for the name of a metatable (some 300 instructions). The
   size is compared before the mark is read: a light userdata has length 0. */
static inline void *dm_marked(lua_State *L, int i, size_t size, const void *mark) {
  const void **p = lua_touserdata(L, i);
  return p && lua_rawlen(L, i) == size && *p == mark ? p : NULL;
}
/* The handle at i, or NULL when the value is no tensor. A freed tensor still has a handle. */
static inline Handle *dm_handle(lua_State *L, int i) {
  return dm_marked(L, i, sizeof(Handle), &dm_handle_magic);
}
/* The tensor at i, borrowed from its handle; NULL when the value is no tensor or was
   freed. */
static inline dm_Tensor *dm_to_tensor(lua_State *L, int i) {
  const Handle *b = dm_handle(L, i);
  return b ? b->t : NULL;
}

/* The tensor at i, borrowed: the handle must stay on the stack or in a table while it is
   used. Raises when there is none, when it was freed, or when its scope released it. */
dm_Tensor *dm_check_tensor(lua_State *L, int i);
/* Pushes a handle without a tensor and links it into the innermost open scope. The tensor
   metatable comes from upvalue 2 of the running closure. */
Handle *dm_push_handle(lua_State *L, State *S);
/* The same, in no scope: nothing but the collector releases it. */
Handle *dm_push_own(lua_State *L, State *S);
/* Gives the handle its tensor, taking the reference. May collect garbage. */
void dm_handle_fill(lua_State *L, State *S, Handle *b, dm_Tensor *t);
/* Pushes t and takes its reference. May collect garbage. Where Lua's own memory may end, push
   the handle first and fill it after the engine's call: then no reference can be lost. */
void dm_push_tensor(lua_State *L, State *S, dm_Tensor *t);
/* Calls an op of one output and pushes that, or raises; tried twice. The inputs are the tensors
   at these positions of the stack, which count from its bottom. */
int dm_push_call(lua_State *L, State *S, int op, int n_in, const int *at, const void *attr);
/* Takes a reference to each of the n tensors that is not NULL; gives them back. */
void dm_hold_all(int64_t n, dm_Tensor *const *in);
void dm_let_go_all(int64_t n, dm_Tensor *const *in);
/* Takes b out of its scope: Lua's collector alone decides how long it lives. The tensor
   stays. */
void dm_handle_keep(Handle *b);
/* Gives up the handle's reference at once. The handle stays as a value, on which every method
   raises; a second release does nothing. */
void dm_handle_release(Handle *b);

/* Raises the engine's message (or a formatted one) at the line of the first
   caller outside the library. */
int dm_raise(lua_State *L);
int dm_raise_text(lua_State *L, const char *fmt, ...);
#define DM_CHECK(L, call)                                 \
  do {                                                    \
    if (DM_UNLIKELY((call) != DM_OK)) return dm_raise(L); \
  } while (0)

/* Pushes that function of demilune.caller; nil, and gives false, where only the core was
   loaded. */
bool dm_push_caller(lua_State *L, const char *name);
/* The line that runs in the function at that level of the stack, or -1; the function goes to
   user value `value` of the userdata on top. */
int dm_note_line(lua_State *L, int level, int value);
/* Warns that the userdata at 1 was never closed; the line and its function are as
   dm_note_line gave them. */
void dm_warn_forgotten(lua_State *L, int line, int value, const char *text);

/* Finds the user's line: the first Lua function on the stack whose source is not in the
   library's folder. Allocates nothing. */
bool dm_where(lua_State *L, const State *S, lua_Debug *ar);

/* Returns nil and a message for a file that cannot be read or written (DM_EIO); raises any
   other failure. */
int dm_world_failed(lua_State *L, dm_status st);
/* The name of a file at i; raises for one that holds NUL. */
const char *dm_check_path(lua_State *L, int i);

/* The file of tokens at i; it lives as long as that value. */
const struct dm_Tokens *dm_check_tokens(lua_State *L, int i);

/* *out = a contiguous tensor on the CPU with t's elements, without history; it shares t's
   bytes when t is contiguous and on the CPU. */
dm_status dm_dense_of(const dm_Tensor *t, dm_Tensor **out);

/* *out = an uninitialized CPU tensor in pinned memory of dev, an existing CUDA device. */
dm_status dm_pinned_new(dm_Device dev, dm_DType dtype, int ndim, const int64_t *shape,
                        dm_Tensor **out);

/* DM_CHECK with one more attempt, after dm_reclaim_memory, when memory ran out; for calls that
   borrow no tensor from a script. */
#define DM_CHECK_TWICE(L, S, call) DM_CHECK_HELD(L, S, 0, NULL, call)

/* The same with references to the n tensors that the call borrows. */
#define DM_CHECK_HELD(L, S, n, in, call) DM_HELD_ELSE(L, S, n, in, call, dm_raise(L))
/* The same with another way to raise. */
#define DM_HELD_ELSE(L, S, n, in, call, raise)   \
  do {                                           \
    dm_hold_all(n, in);                          \
    const int mark_ = dm_replay_mark();          \
    dm_status st_ = (call);                      \
    if (DM_UNLIKELY(st_ == DM_EMEM)) {           \
      dm_reclaim_memory(L, S);                   \
      dm_replay_rewind(mark_);                   \
      st_ = (call);                              \
    }                                            \
    dm_let_go_all(n, in);                        \
    if (DM_UNLIKELY(st_ != DM_OK)) return raise; \
  } while (0)

/* The steps at i, as core.augment gives them; or raises. */
const struct dm_Augment *dm_check_augment(lua_State *L, int i);

/* Sets the functions in the table on top, each as a closure with the two upvalues. Leaves the
   stack as it was. */
void dm_set_functions(lua_State *L, const luaL_Reg *f, State *S);
/* Adds the methods that cast, named in dtypes.def, to the table on top. */
void dm_set_casts(lua_State *L, State *S);
/* Makes the metatable of a class under that name in the registry: names with two underscores
   are metamethods, the others methods. A second call for the same state changes nothing. Pushes
   nothing. */
void dm_register_class(lua_State *L, const char *name, const luaL_Reg *methods, State *S);
/* Gives the userdata on top the metatable of that name, whose `event` (__gc, __close) is f.
   This is how a C resource gets an owner before the call that may raise. f has no
   upvalues. */
void dm_ended_by(lua_State *L, const char *name, const char *event, lua_CFunction f);
/* Closes the metatable on top to scripts: getmetatable gives its name, setmetatable raises.
   debug.getmetatable still gives the table. */
void dm_close_metatable(lua_State *L, const char *name);
/* Waits until standard input has something to read or has ended; false when SIGINT comes first,
   see interrupt.c. */
bool dm_wait_input(void);
/* Runs a full collection. */
void dm_collect(lua_State *L, State *S);
/* Runs one, if much memory is in use, before a backward pass: the pass drops activations as it
   goes, but unreachable handles of the script would still hold them. */
void dm_collect_before_backward(lua_State *L, State *S);
/* Runs one and empties the CPU's cache, before a call that ran out of memory is tried again. */
void dm_reclaim_memory(lua_State *L, State *S);

/* The string at i. One that holds NUL is no name of anything, though C would read the part
   before it: a text that names nothing stands for it. */
const char *dm_word(lua_State *L, int i);
/* The dtype that the string at i names; raises with the nearest name otherwise. */
dm_DType dm_check_dtype(lua_State *L, int i);
/* The device that the string at i names ("cpu", "cuda", "cuda:1"); raises when the word is
   none or the device is not there. */
dm_Device dm_check_device(lua_State *L, int i);
/* t[key] of an options table at i, or nil; pushes one value. */
int dm_option(lua_State *L, int i, const char *key);
/* Pushes an option's default as Lua code would write it; false where it has none. */
bool dm_push_default(lua_State *L, const dm_AttrSpec *s);
/* Puts the values of a last table of options at their positions among the n names, which are
   those of the arguments. Raises on an unknown name, on one given twice, and on more than n
   arguments. The stack has n values after it. */
void dm_position_options(lua_State *L, const char *what, int n, const char *const *names);
/* Raises when the table at i has a key that is none of the n names. */
void dm_check_options(lua_State *L, const char *what, int i, int n, const char *const *names);
/* The truth of t[key] in the table at i; `def` where it is nil or there is no table. Pushes
   nothing. */
bool dm_option_bool(lua_State *L, int i, const char *key, bool def);
/* The nearest of n names to word, or NULL when none is near. */
const char *dm_nearest(const char *word, int n, const char *const *names);

/* The function behind every op, see call.c. */
int dm_op_closure(lua_State *L);
/* x:view(dtype), a form of the op view. */
int dm_view_dtype(lua_State *L);
/* Pushes f, which is dm_op_closure or ends in it, for that form of the op. */
void dm_push_form(lua_State *L, State *S, lua_CFunction f, int id, bool inplace);
/* x[key], x[key] = value, x:index_put and x:index_put_, see index.c. */
int dm_index_get(lua_State *L);
int dm_index_set(lua_State *L);
int dm_index_put(lua_State *L);
/* Is the word a key of elements, "..." or "newaxis", rather than a name? */
bool dm_index_word(const char *word);
int dm_index_put_(lua_State *L);
int dm_tensor_tostring(lua_State *L);
int dm_tensor_to(lua_State *L);

/* The script's generator at i, or NULL. */
dm_Generator *dm_to_generator(lua_State *L, int i);
/* Pushes the number or boolean of a tensor of one element; raises for any other. */
void dm_push_item(lua_State *L, const dm_Tensor *t);

/* After a backward pass: waits for the gradients that other processes average with ours. */
void dm_wait_for_ranks(lua_State *L);
/* Tells distributed.c the line of a backward pass that begins, for messages. */
void dm_tell_ranks_line(lua_State *L, const State *S);

/* nonzero(x, {as_tuple = true}). */
int dm_nonzero_columns(lua_State *L);

/* Opens a scope in which the stream at 1 is the current one. A function at 2 is called inside
   with the arguments after it, and its results are returned; without one the scope is. */
int dm_stream_scope(lua_State *L, dm_Stream stream);
/* The CUDA device at i, an integer from 0 or a name; cuda:0 by default. Raises when it is the
   CPU or is not there. */
dm_Device dm_check_cuda(lua_State *L, int i);
/* Warns, once for each line, when `what` is called while autocast is on. */
void dm_warn_autocast(lua_State *L, const State *S, const char *what);

/* The functions and classes that each file adds to the module; module.c registers them. */
extern const luaL_Reg dm_random_functions[], dm_split_functions[], dm_tensor_functions[];
extern const luaL_Reg dm_scope_functions[], dm_grad_functions[], dm_misc_functions[],
    dm_print_functions[];
extern const luaL_Reg dm_data_functions[], dm_optim_functions[], dm_tokens_functions[];
extern const luaL_Reg dm_loader_functions[], dm_report_functions[], dm_memory_functions[];
extern const luaL_Reg dm_profile_functions[], dm_image_functions[], dm_images_functions[];
extern const luaL_Reg dm_augment_functions[], dm_autocast_functions[], dm_cuda_functions[];
extern const luaL_Reg dm_state_functions[], dm_worker_functions[], dm_zip_functions[];
extern const luaL_Reg dm_interrupt_functions[], dm_line_functions[], dm_test_functions[];
extern const luaL_Reg dm_distributed_functions[], dm_graph_functions[], dm_parts_functions[];
extern const luaL_Reg dm_tensor_methods[], dm_tensor_metamethods[];
extern const luaL_Reg dm_grad_methods[], dm_cuda_methods[];
void dm_register_scopes(lua_State *L, State *S);
void dm_register_cuda(lua_State *L, State *S);
void dm_register_graph(lua_State *L, State *S);
void dm_register_distributed(lua_State *L, State *S);
void dm_register_parts(lua_State *L, State *S);
void dm_register_loader(lua_State *L, State *S);
void dm_register_worker(lua_State *L, State *S);
void dm_register_tokens(lua_State *L, State *S);
void dm_register_zip(lua_State *L, State *S);
void dm_register_images(lua_State *L);
void dm_register_augment(lua_State *L, State *S);
void dm_register_random(lua_State *L, State *S);
void dm_register_profile(lua_State *L, State *S);
/* Pushes the table of methods of autocast's regions. */
void dm_push_region_methods(lua_State *L, State *S);

#endif
