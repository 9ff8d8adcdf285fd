/* The profiler's recorder and the program's own ranges as Lua values; lua/demilune/profiler
   puts together what they record. The recorder observes the ops (engine/observe.h) while it
   is started; nothing of it runs in Lua during a call, except that `where` reads the Lua
   stack. */
#include <stdio.h>
#include <string.h>

#include "bind/bind.h"
#include "engine/profile.h"

enum { MAX_FRAMES = 8 };

/* The recorder of a profile. `where` is the buffer of the stack's text, which dm_profile
   copies when the callback returns. */
typedef struct Recorder {
  dm_Profile *p;
  const State *S;
  char where[1024];
} Recorder;

/* The recorder at 1; raises on other values. */
static Recorder *check_recorder(lua_State *L) {
  dm_enter(L);
  Recorder *r = luaL_checkudata(L, 1, "demilune.Recorder");
  luaL_argcheck(L, r->p != NULL, 1, "the recorder was freed");
  return r;
}

/* The innermost lines of the program outside the library, one to a line of text. */
static const char *where(void *ctx) {
  Recorder *r = ctx;
  lua_State *L = r->S->current_thread;
  const size_t n_library = strlen(r->S->library);
  size_t at = 0;
  int frames = 0;
  lua_Debug ar;
  r->where[0] = '\0';
  for (int level = 0; frames < MAX_FRAMES && lua_getstack(L, level, &ar); level++) {
    lua_getinfo(L, "Sl", &ar);
    if (ar.currentline <= 0) continue;
    if (n_library && strncmp(ar.source, r->S->library, n_library) == 0) continue;
    const int n = snprintf(r->where + at, sizeof r->where - at, "%s%s:%d", frames ? "\n" : "",
                           ar.short_src, ar.currentline);
    if (n < 0 || (size_t)n >= sizeof r->where - at) {
      r->where[at] = '\0'; /* no half lines */
      break;
    }
    at += (size_t)n;
    frames++;
  }
  return r->where;
}

/* profile_new(memory, shapes, flops, stack, devices' times) -> a recorder, not yet recording.
   Each argument is a flag for what it records. */
static int profile_new(lua_State *L) {
  const State *S = dm_enter(L);
  const int flags = (lua_toboolean(L, 1) ? DM_PROFILE_MEMORY : 0) |
                    (lua_toboolean(L, 2) ? DM_PROFILE_SHAPES : 0) |
                    (lua_toboolean(L, 3) ? DM_PROFILE_FLOPS : 0) |
                    (lua_toboolean(L, 5) ? DM_PROFILE_DEVICE : 0);
  Recorder *r = lua_newuserdatauv(L, sizeof *r, 0);
  r->p = NULL;
  r->S = S;
  luaL_setmetatable(L, "demilune.Recorder");
  DM_CHECK(L, dm_profile_new(flags, lua_toboolean(L, 4) ? where : NULL, r, &r->p));
  return 1;
}

/* profile_start(recorder), profile_stop(recorder); profile_count(recorder) -> number of
   events. */
static int profile_start(lua_State *L) {
  dm_profile_start(check_recorder(L)->p);
  return 0;
}
static int profile_stop(lua_State *L) {
  DM_CHECK(L, dm_profile_stop(check_recorder(L)->p));
  return 0;
}
/* __gc: ends the recording and frees its events. */
static int profile_gc(lua_State *L) {
  dm_enter(L);
  Recorder *r = luaL_checkudata(L, 1, "demilune.Recorder");
  dm_profile_free(r->p);
  r->p = NULL;
  return 0;
}
static int profile_count(lua_State *L) {
  lua_pushinteger(L, dm_profile_count(check_recorder(L)->p));
  return 1;
}

/* "{{2, 3}, {3, 4}}" */
static void push_shapes(lua_State *L, const int64_t *at) {
  luaL_Buffer b;
  char text[32];
  luaL_buffinit(L, &b);
  luaL_addchar(&b, '{');
  for (int64_t i = 0, n = *at++; i < n; i++) {
    luaL_addstring(&b, i ? ", {" : "{");
    for (int64_t d = 0, ndim = *at++; d < ndim; d++) {
      snprintf(text, sizeof text, "%s%lld", d ? ", " : "", (long long)*at++);
      luaL_addstring(&b, text);
    }
    luaL_addchar(&b, '}');
  }
  luaL_addchar(&b, '}');
  luaL_pushresult(&b);
}

/* profile_event(recorder, i) -> name, start, stop, total, self (microseconds), bytes, self
   bytes, flops, number of the parent or nil, coroutine, whether it is an op, shapes or nil,
   stack or nil, bytes and self bytes of other devices than the CPU, time and self time there
   (microseconds). Nothing while the event is under way; raises when there is none of that
   number. */
static int profile_event(lua_State *L) {
  const dm_Profile *p = check_recorder(L)->p;
  const lua_Integer i = luaL_checkinteger(L, 2);
  luaL_argcheck(L, i >= 1 && i <= dm_profile_count(p), 2, "no such event");
  const dm_ProfileEvent *e = dm_profile_event(p, i - 1);
  if (e->end < 0) return 0;
  lua_pushfstring(L, "%s%s", e->name, e->suffix);
  lua_pushnumber(L, (double)e->start * 1e-3);
  lua_pushnumber(L, (double)e->end * 1e-3);
  lua_pushnumber(L, (double)(e->end - e->start) * 1e-3);
  lua_pushnumber(L, (double)e->self * 1e-3);
  lua_pushinteger(L, e->bytes.cpu);
  lua_pushinteger(L, e->self_bytes.cpu);
  lua_pushnumber(L, e->flops);
  if (e->parent < 0) lua_pushnil(L);
  else lua_pushinteger(L, e->parent + 1);
  lua_pushinteger(L, (lua_Integer)(intptr_t)e->thread);
  lua_pushboolean(L, e->is_op);
  if (e->shapes) push_shapes(L, e->shapes);
  else lua_pushnil(L);
  lua_pushstring(L, e->stack);
  lua_pushinteger(L, e->bytes.device);
  lua_pushinteger(L, e->self_bytes.device);
  lua_pushnumber(L, (double)e->device * 1e-3);
  lua_pushnumber(L, (double)e->self_device * 1e-3);
  return 17;
}

/* profile_span(recorder, i) -> number of the event, device, start, length (microseconds) of
   the i-th stretch of a device's work; nil after the last */
static int profile_span(lua_State *L) {
  const dm_Profile *p = check_recorder(L)->p;
  const lua_Integer i = luaL_checkinteger(L, 2);
  char name[16];
  if (i < 1 || i > dm_profile_span_count(p)) return 0;
  const dm_ProfileSpan *s = dm_profile_span(p, i - 1);
  lua_pushinteger(L, s->event + 1);
  lua_pushstring(L, dm_device_name(s->device, name));
  lua_pushnumber(L, (double)s->start * 1e-3);
  lua_pushnumber(L, (double)s->length * 1e-3);
  return 4;
}

/* ---- ranges ---- */

/* A named range of the program. The event points to `name`, behind the struct. */
typedef struct Range {
  dm_Event event;
  bool open;
  char name[];
} Range;

/* range_begin(name) -> a to-be-closed value: an event that ends when it is closed. The
   userdata holds a copy of the name, because the event is shown to observers as long as it is
   open. */
static int range_begin(lua_State *L) {
  dm_enter(L);
  size_t n;
  const char *name = luaL_checklstring(L, 1, &n);
  Range *r = lua_newuserdatauv(L, sizeof *r + n + 1, 0);
  memcpy(r->name, name, n + 1);
  r->event = (dm_Event){.name = r->name};
  r->open = false;
  luaL_setmetatable(L, "demilune.Range");
  r->open = true;
  dm_observe_begin(&r->event);
  return 1;
}

/* range_end(range), __close, __gc: ends the event; only the first call counts. */
static int range_end(lua_State *L) {
  dm_enter(L);
  Range *r = luaL_checkudata(L, 1, "demilune.Range");
  if (r->open) dm_observe_end(&r->event);
  r->open = false;
  return 0;
}

void dm_register_profile(lua_State *L, State *S) {
  static const luaL_Reg recorder[] = {{"__gc", profile_gc}, {NULL, NULL}};
  static const luaL_Reg range[] = {{"__gc", range_end}, {"__close", range_end}, {NULL, NULL}};
  dm_register_class(L, "demilune.Recorder", recorder, S);
  dm_register_class(L, "demilune.Range", range, S);
}

const luaL_Reg dm_profile_functions[] = {{"profile_new", profile_new},
                                         {"profile_start", profile_start},
                                         {"profile_stop", profile_stop},
                                         {"profile_count", profile_count},
                                         {"profile_event", profile_event},
                                         {"profile_span", profile_span},
                                         {"range_begin", range_begin},
                                         {"range_end", range_end},
                                         {NULL, NULL}};
