/* The one exported symbol of cuda.so. The engine opens the library when a CUDA device is first
   asked for, and calls dm_backend with a table of its functions. It checks that both sides
   were built from the same structs, then registers the device, the kernels of the op table and
   the optimizers' functions. It returns NULL, or why CUDA cannot be used. */
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
