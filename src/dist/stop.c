#include "dist/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

static const int signals[] = {SIGTERM, SIGUSR1};
enum { N_SIGNAL = sizeof signals / sizeof *signals };

static atomic_int n_listening, asked, killed;
static atomic_bool exchanged, agreed;
static atomic_int catcher; /* the process that catches, and none that it forks */
/* Of the script's thread. */
static int n_catching;
static bool caught[N_SIGNAL];

void dm_stop_die(int signal) {
  struct sigaction a = {.sa_handler = SIG_DFL};
  sigemptyset(&a.sa_mask);
  sigaction(signal, &a, NULL);
  kill(getpid(), signal);
}

static void note(int signal) {
  if (getpid() != atomic_load(&catcher)) dm_stop_die(signal);
  else atomic_store(atomic_load(&n_listening) > 0 ? &asked : &killed, signal);
}

void dm_stop_catch(bool on) {
  if (on ? n_catching++ > 0 : --n_catching > 0) return;
  atomic_store(&catcher, (int)getpid());
  for (int i = 0; i < N_SIGNAL; i++) {
    struct sigaction now;
    if (on) {
      caught[i] = sigaction(signals[i], NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
                  now.sa_handler == SIG_DFL;
    }
    if (!caught[i]) continue;
    struct sigaction a = {.sa_handler = on ? note : SIG_DFL, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(signals[i], &a, NULL);
  }
}

void dm_stop_listen(bool on) {
  if (!on && atomic_load(&n_listening) <= 0) return;
  if (on) {
    dm_stop_catch(true);
    atomic_fetch_add(&n_listening, 1);
  } else {
    atomic_fetch_sub(&n_listening, 1);
    dm_stop_catch(false);
  }
}

int dm_stop_asked(void) { return atomic_load(&asked); }
int dm_stop_killed(void) { return atomic_load(&killed); }

const char *dm_stop_name(int signal) { return signal == SIGTERM ? "SIGTERM" : "SIGUSR1"; }

void dm_stop_exchanged(bool some_asked) {
  atomic_store(&exchanged, true);
  if (some_asked) atomic_store(&agreed, true);
}

bool dm_stop_is_exchanged(void) { return atomic_load(&exchanged); }
bool dm_stop_agreed(void) { return atomic_load(&agreed); }
