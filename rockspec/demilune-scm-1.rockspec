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
    insists on it, CUDA_ARCH="80;90" says for which GPUs.]],
  license = "MIT",
  labels = { "machine-learning", "tensor", "autograd", "neural-network" },
}
dependencies = { "lua >= 5.4" }
build = {
  type = "cmake",
  variables = {
    CMAKE_C_FLAGS = "$(CFLAGS)",
    CMAKE_BUILD_TYPE = "Release",
    CMAKE_INSTALL_PREFIX = "$(PREFIX)",
    WITH_CUDA = "$(WITH_CUDA)", -- empty: auto
    CUDA_ARCH = "$(CUDA_ARCH)",
    LUA = "$(LUA)", -- writes the op table
    LUA_INCDIR = "$(LUA_INCDIR)",
    LUADIR = "$(LUADIR)",
    LIBDIR = "$(LIBDIR)",
    DM_SHARED = "OFF",
    DM_INSTALL_C = "OFF",
  },
  install = { bin = { demilune = "scripts/demilune" } },
}
