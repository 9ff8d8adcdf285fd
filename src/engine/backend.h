/* A back end is a shared library that is opened when a device of its type is first asked for.
   The engine links to no symbol of it. It gets a table of the engine's functions, and
   registers its device and kernels through them. */
#ifndef DM_BACKEND_H
#define DM_BACKEND_H

#include <stdarg.h>

#include "core/copy.h"
#include "core/iter.h"
#include "engine/call.h"

struct dm_OptimOps; /* op/optim/optim.h defines it, an upper layer; the linker finds these */
void dm_optim_register(dm_DeviceType type, const struct dm_OptimOps *ops);
dm_Tensor *dm_fresh_copy(dm_Tensor *p);
/* defined in op/index/index_rows.c */
dm_status dm_scaled_new(dm_Tensor *t, dm_DType dtype, double alpha, dm_Tensor **out);

typedef struct dm_Engine {
  const char *version; /* DM_VERSION */
  int64_t layout;      /* DM_LAYOUT: sizes that both sides must agree on */
  const dm_OpInfo *ops;
#define FN(RESULT, NAME, PARAMETERS, ARGUMENTS) RESULT(*NAME) PARAMETERS;
#include "engine/backend.def"
#undef FN
} dm_Engine;

enum {
  DM_LAYOUT = (int)(sizeof(dm_Tensor) + sizeof(dm_Call) * 2 + sizeof(dm_OpInfo) * 4 +
                    sizeof(dm_DeviceOps) * 8 + sizeof(dm_ThreadState) * 16) +
              DM_N_OP * 65536
};

/* The one symbol of a back end. Returns NULL when it has registered itself, else the reason why
   it cannot serve. */
typedef const char *dm_BackendOpenFn(const dm_Engine *engine);
#define DM_BACKEND_SYMBOL "dm_backend"

/* Opens the library of that file name, which lies beside ours or at the path that the variable
   of the environment gives, and finds its one symbol. It stays open. Returns NULL, or the
   reason why not: `absent` where there is no such file. */
const char *dm_open_library(const char *file, const char *variable, const char *absent,
                            const char *symbol, void **found);

#endif
