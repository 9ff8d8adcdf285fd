#!/bin/sh
# no_driver.sh STUB: writes C for a libcuda.so.1 that finds no device, for cudnn_check.c. cuDNN
# loads the kernels that it compiles at run time into the driver, so every function of the
# toolkit's own STUB is there, does nothing and answers success; cuInit and cuDeviceGetCount
# answer CUDA_ERROR_NO_DEVICE (100), so that nobody takes it for a GPU.
set -eu
cat <<'C'
int cuInit(unsigned flags) { (void)flags; return 100; }
int cuDeviceGetCount(int *n) { *n = 0; return 100; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
/* Libraries, modules and functions are handles that nobody looks into. */
#define GIVES(NAME) int NAME(void **out) { *out = (void *)16; return 0; }
GIVES(cuLibraryLoadData) GIVES(cuLibraryGetKernel) GIVES(cuLibraryGetModule)
GIVES(cuKernelGetFunction) GIVES(cuModuleLoadData) GIVES(cuModuleLoadDataEx)
GIVES(cuModuleGetFunction)
/* The most threads of a block (attribute 0) and registers of a thread (4). */
int cuFuncGetAttribute(int *out, int which, void *f) {
  (void)f;
  *out = which == 0 ? 1024 : which == 4 ? 128 : 0;
  return 0;
}
int cuKernelGetAttribute(int *out, int which, void *f, int device) {
  (void)device;
  return cuFuncGetAttribute(out, which, f);
}
C
written='cuInit|cuDriverGetVersion|cuDeviceGetCount|cuLibraryLoadData|cuLibraryGetKernel'
written="$written|cuLibraryGetModule|cuKernelGetFunction|cuModuleLoadData|cuModuleLoadDataEx"
written="$written|cuModuleGetFunction|cuFuncGetAttribute|cuKernelGetAttribute"
nm -D --defined-only "$1" | awk '$2 == "T" { print $3 }' | grep -vxE "$written" |
  sed 's/.*/int &(void) { return 0; }/'
