/* Plans of cuDNN that threads of our own make while the script goes on. Some take half a second
   to compile, and who has seen a forward pass knows which graphs its gradients will ask for.

   A thread makes the plan and writes it to disk (plan_files.h); the call that needs it waits
   for the thread if need be, and reads the file, by a handle of its own. So a plan never
   changes threads, and where no files are kept nothing is prefetched. Which plan a call gets
   does not depend on who made it, or when. */
#ifndef DM_KERNELS_DNN_PREFETCH_H
#define DM_KERNELS_DNN_PREFETCH_H

#include "kernels/dnn.h"

/* Makes and keeps the plan; returns whether the library was asked for it (dnn.c). */
typedef bool dm_DnnMakeFn(const dm_DnnKey *key, dm_DnnBuildFn *build);

/* Both are called under dnn.c's lock, one at a time. */

/* Lets a thread make the plan, unless that is done or under way, or many wait already. */
void dm_prefetch_add(const dm_DnnKey *key, dm_DnnBuildFn *build, dm_DnnMakeFn *make);
/* Waits while a thread makes the plan; a plan that no thread has begun is left to the caller.
   Returns whether a thread asked the library for it. */
bool dm_prefetch_wait(const dm_DnnKey *key);

#endif
