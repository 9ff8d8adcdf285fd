/* The C part of dm.cuda: which devices exist, streams, events, pinned memory. It reaches a
   device only through dm_DeviceOps, so it compiles without CUDA. Streams and events are
   userdata; a stream that was made here is freed by its __gc, one that stands for a device's
   default or current stream is not. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "bind/bind.h"

static const char stream_name[] = "demilune.Stream", event_name[] = "demilune.Event";

typedef struct Stream {
  dm_Stream s; /* handle NULL: the device's default one */
  bool own;    /* made here, to be freed here */
} Stream;

/* An event; __gc frees it. handle is NULL where its making failed. */
typedef struct Event {
  dm_Device device;
  void *handle;
} Event;

/* cuda_count() -> number of devices, "" or the reason why there is none. */
static int cuda_count(lua_State *L) {
  dm_enter(L);
  const dm_Device first = {DM_CUDA, 0};
  const dm_DeviceOps *ops = dm_device_ops(first);
  lua_pushinteger(L, ops ? ops->count() : 0);
  lua_pushstring(L, ops ? "" : dm_device_missing(DM_CUDA));
  return 2;
}

/* The CUDA device at i, an integer from 0 or a name; cuda:0 by default. Raises when it is the
   CPU or is not there. */
dm_Device dm_check_cuda(lua_State *L, int i) {
  dm_Device d = {DM_CUDA, 0};
  if (lua_isinteger(L, i)) d.index = (uint8_t)lua_tointeger(L, i);
  else if (!lua_isnoneornil(L, i)) d = dm_check_device(L, i);
  if (d.type != DM_CUDA) dm_raise_text(L, "wanted a CUDA device, given \"cpu\"");
  if (dm_device_check(d) != DM_OK) dm_raise(L);
  return d;
}

/* cuda_info(device) -> {name, total_memory, free_memory, major, minor,
   multi_processor_count} */
static int cuda_info(lua_State *L) {
  dm_enter(L);
  dm_DeviceInfo info;
  const dm_Device d = dm_check_cuda(L, 1);
  DM_CHECK(L, dm_device_ops(d)->info(d, &info));
  lua_createtable(L, 0, 6);
  lua_pushstring(L, info.name);
  lua_setfield(L, -2, "name");
  const struct {
    const char *name;
    int64_t v;
  } numbers[] = {{"total_memory", info.total_bytes},
                 {"free_memory", info.free_bytes},
                 {"major", info.major},
                 {"minor", info.minor},
                 {"multi_processor_count", info.processors}};
  for (int i = 0; i < DM_COUNT(numbers); i++) {
    lua_pushinteger(L, numbers[i].v);
    lua_setfield(L, -2, numbers[i].name);
  }
  return 1;
}

/* cuda_count_of(what, device) -> how often the emulation has done that; nil on a real device
   and for an unknown word. */
static int cuda_count_of(lua_State *L) {
  dm_enter(L);
  const char *what = luaL_checkstring(L, 1);
  const dm_DeviceOps *ops = dm_device_ops(dm_check_cuda(L, 2));
  const int64_t n = ops->count_of ? ops->count_of(what) : -1;
  if (n >= 0) lua_pushinteger(L, n);
  else lua_pushnil(L);
  return 1;
}

/* Sets key = text in the table on top, unless the text is empty. */
static void set_text(lua_State *L, const char *key, const char *text) {
  if (!*text) return;
  lua_pushstring(L, text);
  lua_setfield(L, -2, key);
}

/* cuda_plans(device) -> {library = {asked, memory, disk, refused, prefetched, state, reason,
   refusal}}: how often a kernel plan was asked for, found in memory, found on disk, refused,
   and asked for by another thread; what became of the library, and why. */
static int cuda_plans(lua_State *L) {
  static const char *const names[] = {"asked", "memory", "disk", "refused", "prefetched"};
  static const char *const states[] = {[DM_PLAN_UNTRIED] = "untried",
                                       [DM_PLAN_OPEN] = "open",
                                       [DM_PLAN_OFF] = "off",
                                       [DM_PLAN_MISSING] = "missing"};
  dm_enter(L);
  dm_PlanCounts counts[DM_MAX_PLAN_LIBRARY];
  const dm_DeviceOps *ops = dm_device_ops(dm_check_cuda(L, 1));
  const int n = ops->plans ? ops->plans(counts) : 0;
  lua_createtable(L, 0, n);
  for (int i = 0; i < n; i++) {
    lua_createtable(L, 0, DM_N_PLAN + 3);
    for (int k = 0; k < DM_N_PLAN; k++) {
      lua_pushinteger(L, counts[i].n[k]);
      lua_setfield(L, -2, names[k]);
    }
    set_text(L, "state", states[counts[i].state]);
    set_text(L, "reason", counts[i].reason);
    set_text(L, "refusal", counts[i].refusal);
    lua_setfield(L, -2, counts[i].name);
  }
  return 1;
}

/* cuda_switch(name[, on]) -> whether it is on; name: "matmul", "conv" (may round float32 to
   TF32) or "benchmark" (plans are chosen by their time). */
static int cuda_switch(lua_State *L) {
  static const char *const names[] = {"matmul", "conv", "benchmark", NULL};
  dm_ThreadState *t = dm_enter(L)->current;
  bool *const switches[] = {&t->tf32_matmul, &t->tf32_conv, &t->benchmark};
  bool *const it = switches[luaL_checkoption(L, 1, NULL, names)];
  if (!lua_isnoneornil(L, 2)) *it = lua_toboolean(L, 2);
  lua_pushboolean(L, *it);
  return 1;
}

/* cuda_work_of(i, device) -> the name of the i-th kernel that was queued on the emulation, a
   hash of its arguments, and the bytes that it has read and written; nil where that is not
   known. */
static int cuda_work_of(lua_State *L) {
  dm_enter(L);
  int64_t seen[3] = {0};
  const lua_Integer i = luaL_checkinteger(L, 1);
  const dm_DeviceOps *ops = dm_device_ops(dm_check_cuda(L, 2));
  lua_pushstring(L, ops->work_of ? ops->work_of(i, seen) : NULL);
  for (int k = 0; k < 3; k++) lua_pushinteger(L, seen[k]);
  return 4;
}

/* ---- streams ---- */

/* The stream at i; raises on other values. */
static Stream *check_stream(lua_State *L, int i) { return luaL_checkudata(L, i, stream_name); }
/* The stream functions of an opened device. */
static const dm_StreamOps *ops_of(dm_Device d) { return dm_device_ops(d)->streams; }

/* Pushes the device's default stream, for the caller to change. */
static Stream *push_stream(lua_State *L, dm_Device d) {
  Stream *s = lua_newuserdatauv(L, sizeof *s, 0);
  *s = (Stream){.s = {.device = d}};
  luaL_setmetatable(L, stream_name);
  return s;
}

/* cuda_stream(device) -> a new stream, freed when it is collected. */
static int stream_new(lua_State *L) {
  dm_enter(L);
  const dm_Device d = dm_check_cuda(L, 1);
  Stream *s = push_stream(L, d);
  DM_CHECK(L, ops_of(d)->stream_new(d, &s->s.handle));
  s->own = true;
  return 1;
}
/* cuda_default_stream(device) -> the stream that work uses outside a stream scope. */
static int stream_default(lua_State *L) {
  dm_enter(L);
  push_stream(L, dm_check_cuda(L, 1));
  return 1;
}
/* cuda_current_stream(device) -> another value for the stream in force; it does not own
   it. */
static int stream_current(lua_State *L) {
  const State *S = dm_enter(L);
  const dm_Device d = dm_check_cuda(L, 1);
  Stream *s = push_stream(L, d);
  if (dm_device_eq(S->current->stream.device, d)) s->s = S->current->stream;
  s->s.device = d;
  return 1;
}
/* cuda_in_stream(stream) -> a scope; cuda_in_stream(stream, fn, ...) -> fn's results. */
static int in_stream(lua_State *L) { return dm_stream_scope(L, check_stream(L, 1)->s); }

/* __gc: frees a stream that was made here. */
static int stream_gc(lua_State *L) {
  Stream *s = check_stream(L, 1);
  if (s->own) ops_of(s->s.device)->stream_free(s->s.device, s->s.handle);
  s->own = false;
  s->s.handle = NULL;
  return 0;
}
/* s:synchronize(): waits until the stream has done all its work. */
static int stream_synchronize(lua_State *L) {
  dm_enter(L);
  const Stream *s = check_stream(L, 1);
  DM_CHECK(L, ops_of(s->s.device)->stream_synchronize(s->s.device, s->s.handle));
  return 0;
}
/* s:query() -> whether the stream has done all its work. */
static int stream_query(lua_State *L) {
  dm_enter(L);
  const Stream *s = check_stream(L, 1);
  lua_pushboolean(L, ops_of(s->s.device)->stream_idle(s->s.device, s->s.handle));
  return 1;
}
/* s:record_event(e) -> e; s:wait_event(e); s:wait_stream(other): later work of s waits for
   the work that other has now. As in PyTorch; a stream and an event of two devices cannot be
   recorded together. */
static Event *check_event(lua_State *L, int i) {
  Event *e = luaL_checkudata(L, i, event_name);
  luaL_argcheck(L, e->handle, i, "the event was freed");
  return e;
}
static int stream_record_event(lua_State *L) {
  dm_enter(L);
  const Stream *s = check_stream(L, 1);
  const Event *e = check_event(L, 2);
  if (!dm_device_eq(s->s.device, e->device))
    return dm_raise_text(L, "record_event: a stream and an event of two devices");
  DM_CHECK(L, ops_of(e->device)->event_record(e->device, e->handle, s->s.handle));
  lua_settop(L, 2);
  return 1;
}
/* s:wait_event(e): later work of s waits for e, which may be of another device. */
static int stream_wait_event(lua_State *L) {
  dm_enter(L);
  const Stream *s = check_stream(L, 1);
  const Event *e = check_event(L, 2);
  DM_CHECK(L, ops_of(s->s.device)->stream_wait(s->s.device, s->s.handle, e->handle));
  return 0;
}
/* The event that `other` records and s waits for may be freed at once: the wait is queued. */
static int stream_wait_stream(lua_State *L) {
  dm_enter(L);
  const Stream *s = check_stream(L, 1), *other = check_stream(L, 2);
  const dm_StreamOps *ops = ops_of(other->s.device);
  void *event;
  DM_CHECK(L, ops->event_new(other->s.device, false, &event));
  dm_status st = ops->event_record(other->s.device, event, other->s.handle);
  if (st == DM_OK) st = ops->stream_wait(s->s.device, s->s.handle, event);
  ops->event_free(other->s.device, event);
  DM_CHECK(L, st);
  return 0;
}
/* tostring(s) -> "Stream(cuda:0)", with ", default" for a device's default stream. */
static int stream_tostring(lua_State *L) {
  char name[16];
  const Stream *s = check_stream(L, 1);
  lua_pushfstring(L, "Stream(%s%s)", dm_device_name(s->s.device, name),
                  s->s.handle ? "" : ", default");
  return 1;
}
/* s == other: whether both name one stream of one device. */
static int stream_eq(lua_State *L) {
  const Stream *a = check_stream(L, 1), *b = check_stream(L, 2);
  lua_pushboolean(L, dm_device_eq(a->s.device, b->s.device) && a->s.handle == b->s.handle);
  return 1;
}

/* ---- events ---- */

/* cuda_event(device, timing) -> an event, which can measure time if timing is true. */
static int event_new(lua_State *L) {
  dm_enter(L);
  const dm_Device d = dm_check_cuda(L, 1);
  Event *e = lua_newuserdatauv(L, sizeof *e, 0);
  *e = (Event){.device = d};
  luaL_setmetatable(L, event_name);
  DM_CHECK(L, ops_of(d)->event_new(d, lua_toboolean(L, 2), &e->handle));
  return 1;
}
/* __gc: frees the event. */
static int event_gc(lua_State *L) {
  Event *e = luaL_checkudata(L, 1, event_name);
  if (e->handle) ops_of(e->device)->event_free(e->device, e->handle);
  e->handle = NULL;
  return 0;
}
/* The stream at i, or the current one of the event's device. */
static dm_Stream stream_for(lua_State *L, const State *S, int i, dm_Device d) {
  dm_Stream s = {d, NULL};
  if (!lua_isnoneornil(L, i)) s = check_stream(L, i)->s;
  else if (dm_device_eq(S->current->stream.device, d)) s = S->current->stream;
  if (!dm_device_eq(s.device, d)) dm_raise_text(L, "a stream and an event of two devices");
  return s;
}
/* event:record(stream) -> event, which marks the end of the work the stream has now. */
static int event_record(lua_State *L) {
  const State *S = dm_enter(L);
  const Event *e = check_event(L, 1);
  const dm_Stream s = stream_for(L, S, 2, e->device);
  DM_CHECK(L, ops_of(e->device)->event_record(e->device, e->handle, s.handle));
  lua_settop(L, 1);
  return 1;
}
/* event:wait(stream): later work of the stream waits for the event. */
static int event_wait(lua_State *L) {
  const State *S = dm_enter(L);
  const Event *e = check_event(L, 1);
  dm_Stream s = {e->device, NULL};
  if (!lua_isnoneornil(L, 2)) s = check_stream(L, 2)->s;
  else s = stream_for(L, S, 2, e->device);
  DM_CHECK(L, ops_of(s.device)->stream_wait(s.device, s.handle, e->handle));
  return 0;
}
/* event:synchronize() waits for the event; event:query() -> whether it has happened. */
static int event_synchronize(lua_State *L) {
  dm_enter(L);
  const Event *e = check_event(L, 1);
  DM_CHECK(L, ops_of(e->device)->event_synchronize(e->device, e->handle));
  return 0;
}
static int event_query(lua_State *L) {
  dm_enter(L);
  const Event *e = check_event(L, 1);
  lua_pushboolean(L, ops_of(e->device)->event_done(e->device, e->handle));
  return 1;
}
/* from:elapsed_time(to) -> milliseconds between two events that are timed and done. Raises
   where the device cannot tell. */
static int event_elapsed(lua_State *L) {
  dm_enter(L);
  double ms;
  const Event *from = check_event(L, 1), *to = check_event(L, 2);
  DM_CHECK(L, ops_of(from->device)->event_elapsed(from->handle, to->handle, &ms));
  lua_pushnumber(L, ms);
  return 1;
}

/* ---- pinned memory ---- */

/* Frees pinned memory through the first device's functions; its address also marks a storage
   as pinned. */
static void release_pinned(void *p) {
  const dm_Device first = {DM_CUDA, 0};
  ops_of(first)->pinned_free(p);
}

/* The tensor owns the memory and frees it by release_pinned. One without elements gets a
   byte. */
dm_status dm_pinned_new(dm_Device dev, dm_DType dtype, int ndim, const int64_t *shape,
                        dm_Tensor **out) {
  void *p;
  int64_t n = dm_dtype_size(dtype);
  for (int d = 0; d < ndim; d++) n *= shape[d];
  DM_TRY(ops_of(dev)->pinned_alloc(dev, n ? n : 1, &p));
  const dm_status st = dm_tensor_wrap(p, dtype, ndim, shape, release_pinned, p, out);
  if (st != DM_OK) release_pinned(p);
  return st;
}

/* x:pin_memory(device) -> a contiguous copy in page-locked memory, which the device can copy
   without the CPU. Raises unless x is on the CPU. */
static int pin_memory(lua_State *L) {
  State *S = dm_enter(L);
  const dm_Device d = dm_check_cuda(L, 2);
  Handle *dense = dm_push_own(L, S);
  dm_push_tensor(L, S, NULL); /* the handle first, and a look at memory */
  Handle *handle = dm_handle(L, -1);
  dm_Tensor *t = dm_check_tensor(L, 1);
  if (t->device.type != DM_CPU)
    return dm_raise_text(L, "pin_memory: wanted a tensor on the CPU");
  DM_CHECK_HELD(L, S, 1, &t, dm_dense_of(t, &dense->t));
  t = dense->t;
  DM_CHECK_TWICE(L, S, dm_pinned_new(d, (dm_DType)t->dtype, t->ndim, t->shape, &handle->t));
  if (t->numel > 0)
    memcpy(dm_tensor_data(handle->t), dm_tensor_data(t), (size_t)dm_tensor_bytes(t));
  dm_handle_release(dense);
  return 1;
}

/* x:is_pinned() -> whether dm_pinned_new allocated x's storage. */
static int is_pinned(lua_State *L) {
  dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  lua_pushboolean(L, t->storage->release == release_pinned);
  return 1;
}

/* x:record_stream(s): after x is freed its memory is not used again before s has done the
   work it has then. Raises when x is on another device. */
static int record_stream(lua_State *L) {
  dm_enter(L);
  const dm_Tensor *t = dm_check_tensor(L, 1);
  const dm_Stream s = check_stream(L, 2)->s;
  if (!dm_device_eq(t->device, s.device))
    return dm_raise_text(L, "record_stream: the tensor lies on another device");
  if (t->storage->data)
    DM_CHECK(L, ops_of(s.device)->record_use(s.device, t->storage->data, s.handle));
  return 0;
}

/* __eq is needed because cuda_current_stream makes a new userdata for the same stream. */
void dm_register_cuda(lua_State *L, State *S) {
  static const luaL_Reg stream[] = {{"synchronize", stream_synchronize},
                                    {"query", stream_query},
                                    {"record_event", stream_record_event},
                                    {"wait_event", stream_wait_event},
                                    {"wait_stream", stream_wait_stream},
                                    {"__gc", stream_gc},
                                    {"__tostring", stream_tostring},
                                    {"__eq", stream_eq},
                                    {NULL, NULL}};
  static const luaL_Reg event[] = {{"record", event_record},
                                   {"wait", event_wait},
                                   {"synchronize", event_synchronize},
                                   {"query", event_query},
                                   {"elapsed_time", event_elapsed},
                                   {"__gc", event_gc},
                                   {NULL, NULL}};
  dm_register_class(L, stream_name, stream, S);
  dm_register_class(L, event_name, event, S);
}

const luaL_Reg dm_cuda_methods[] = {{"pin_memory", pin_memory},
                                    {"is_pinned", is_pinned},
                                    {"record_stream", record_stream},
                                    {NULL, NULL}};
const luaL_Reg dm_cuda_functions[] = {{"cuda_count", cuda_count},
                                      {"cuda_info", cuda_info},
                                      {"cuda_count_of", cuda_count_of},
                                      {"cuda_plans", cuda_plans},
                                      {"cuda_switch", cuda_switch},
                                      {"cuda_work_of", cuda_work_of},
                                      {"cuda_stream", stream_new},
                                      {"cuda_default_stream", stream_default},
                                      {"cuda_current_stream", stream_current},
                                      {"cuda_in_stream", in_stream},
                                      {"cuda_event", event_new},
                                      {NULL, NULL}};
