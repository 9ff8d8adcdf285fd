/* The one symbol of the library: opens the CUDA back end. */
#include "kernels/host.h"
#include "kernels/module.h"

dm_BackendOpenFn dm_backend;

__attribute__((visibility("default"))) const char *dm_backend(const dm_Engine *engine) {
  if (strcmp(engine->version, DM_VERSION) != 0 || engine->layout != DM_LAYOUT)
    return "cuda.so was built for another version of demilune";
  dm_host_open(engine);
  const char *why = dm_cuda_device_open();
  if (why) return why;
  dm_cuda_table_open();
  dm_cuda_optim_open();
  return NULL;
}
