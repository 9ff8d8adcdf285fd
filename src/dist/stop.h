/* SIGTERM and SIGUSR1, by which a cluster asks a job to end: Slurm before its time is over,
   mpirun where one of the ranks has died.

   A script that listens (Trainer:fit, should_stop) hears of the signal, saves and ends. Without
   one the signal ends the process as ever; under MPI the communication thread first says where
   the rank was. */
#ifndef DM_STOP_H
#define DM_STOP_H

#include <stdbool.h>

/* From now on the signals are noted, where they have no other handler: counted, true begins and
   false ends it. */
void dm_stop_catch(bool on);
/* Whether a script listens: counted like that, and catches too. */
void dm_stop_listen(bool on);
/* The signal that came while a script listened; 0: none. It stays. */
int dm_stop_asked(void);
/* The signal that came while none did; 0: none. */
int dm_stop_killed(void);
/* Ends the process by that signal. */
void dm_stop_die(int signal);
const char *dm_stop_name(int signal);

/* Whether the ranks tell one another by what they exchange anyway (bucket.h): noted with each
   exchange, asked: some rank was asked to stop. */
void dm_stop_exchanged(bool asked);
/* Whether there was such an exchange yet, and whether all ranks know by one that they are to
   stop. */
bool dm_stop_is_exchanged(void);
bool dm_stop_agreed(void);

#endif
