/* Ctrl-C at the prompt of the demilune command. lua5.4's own handler ends the process at the
   second one, for it is set once a script; this one stays. SIGINT raises "interrupted" in the
   Lua code that runs, by a hook, as the handler of lua.c does: a running op ends first. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>

#include "bind/bind.h"

/* The state that asked; whether a signal came for which no error was raised yet; whether the
   code of an input runs, which an error may end; and how many instructions began since then
   without a call or a return between them. */
static _Atomic(State *) listener;
static volatile sig_atomic_t pending, running, instructions;

/* Takes the hook away and raises, in the coroutine that runs: at the second instruction in a
   row. The first behind a call may be the one that makes its result a to-be-closed variable; an
   error before it would leave, say, a scope of no_grad open. */
static void stop(lua_State *L, lua_Debug *at) {
  State *S = atomic_load(&listener);
  instructions = at->event == LUA_HOOKCOUNT ? instructions + 1 : 0;
  if (pending && running && instructions < 2) return;
  if (S) lua_sethook(S->main, NULL, 0, 0);
  lua_sethook(L, NULL, 0, 0);
  if (!pending || !running)
    return; /* the hook of another coroutine has raised, or all is over */
  pending = 0;
  luaL_error(L, "interrupted");
}

/* lua_sethook may be called in a signal handler, by Lua's manual. A coroutine that has called
   the engine last gets the hook too. */
static void on_signal(int number) {
  DM_UNUSED(number);
  State *S = atomic_load(&listener);
  pending = 1;
  instructions = 0;
  if (!S || !running) return;
  const int mask = LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT;
  lua_sethook(S->main, stop, mask, 1);
  if (S->current_thread && S->current_thread != S->main)
    lua_sethook(S->current_thread, stop, mask, 1);
}

static void handle(void (*f)(int)) {
  struct sigaction a = {.sa_handler = f};
  sigemptyset(&a.sa_mask);
  sigaction(SIGINT, &a, NULL);
}

static int ended(lua_State *L) {
  DM_UNUSED(L);
  if (atomic_exchange(&listener, NULL)) handle(SIG_DFL);
  return 0;
}

/* catch_interrupts(): from now on SIGINT raises in this Lua state, until it ends. One state of
   a process can ask. */
static int catch_interrupts(lua_State *L) {
  State *S = dm_enter(L), *none = NULL;
  if (!S->main) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
    S->main = lua_tothread(L, -1);
  }
  lua_newuserdatauv(L, 1, 0);
  dm_ended_by(L, "demilune.Interrupts", "__gc", ended);
  if (!atomic_compare_exchange_strong(&listener, &none, S))
    return luaL_error(L, "interrupts are caught already");
  lua_rawsetp(L, LUA_REGISTRYINDEX, &listener);
  handle(on_signal);
  return 0;
}

/* interruptible(on): whether SIGINT raises. The prompt's own code runs without, and finds the
   signal when it waits for a key. */
static int interruptible(lua_State *L) {
  pending = 0;
  running = lua_toboolean(L, 1);
  return 0;
}

bool dm_wait_input(void) {
  struct pollfd input = {.fd = 0, .events = POLLIN};
  while (!pending && poll(&input, 1, -1) < 0 && errno == EINTR) continue;
  const bool there = !pending;
  pending = 0;
  return there;
}

const luaL_Reg dm_interrupt_functions[] = {
    {"_catch_interrupts", catch_interrupts}, {"_interruptible", interruptible}, {NULL, NULL}};
