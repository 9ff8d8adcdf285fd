rockspec_format = "3.0"
package = "demilune"
version = "scm-1"
source = { url = "file://." } -- built in a checkout, by `luarocks make`
description = {
  summary = "Tensors, autograd and automatic mixed precision for Lua 5.4",
  detailed = [[
    A tensor engine in C11 with PyTorch's names and Lua's manners: autograd,
    neural network modules, optimizers, autocast and gradient scaling.
    Building it takes CMake, a C compiler, zlib and cJSON; with libpng it reads
    and writes PNG files, with libjpeg it reads JPEG files, with utf8proc it
    has the tokenizer of GPT-2. Where nvcc is found,
    the CUDA back end is built too: `luarocks make WITH_CUDA=0` leaves it out, WITH_CUDA=1
    insists on it. CUDA_ARCH="80;90" says for which GPUs, else it is those of this
    machine. WITH_MPI=0 and 1 say the same of mpi.so, by which several processes
    train together.]],
  license = "MIT",
  labels = { "machine-learning", "tensor", "autograd", "neural-network" },
}
dependencies = { "lua >= 5.4" }
build = {
  type = "command", -- CMake, on all processors: LuaRocks' own build type takes one
  build_command = 'cmake -S . -B build.luarocks -DCMAKE_BUILD_TYPE=Release '
    .. '-DCMAKE_C_FLAGS="$(CFLAGS)" -DCMAKE_INSTALL_PREFIX="$(PREFIX)" '
    .. '-DWITH_CUDA="$(WITH_CUDA)" -DCUDA_ARCH="$(CUDA_ARCH)" ' -- empty where not given: auto
    .. '-DDM_CUDA_COMPRESS=balance ' -- a rock is built where it runs
    .. '-DWITH_MPI="$(WITH_MPI)" '
    .. '-DLUA="$(LUA)" -DLUA_INCDIR="$(LUA_INCDIR)" -DLUADIR="$(LUADIR)" -DLIBDIR="$(LIBDIR)" '
    .. '-DDM_SHARED=OFF -DDM_INSTALL_C=OFF '
    .. '&& cmake --build build.luarocks -j `getconf _NPROCESSORS_ONLN`',
  install_command = "cmake --install build.luarocks",
  install = { bin = { demilune = "scripts/demilune" } },
}
