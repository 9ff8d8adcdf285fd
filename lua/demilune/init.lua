-- demilune: tensors, gradients and mixed precision.
-- The ops and tensors come from demilune.core (C); the modules in Lua are
-- loaded when they are first used.

local core = require "demilune.core"
core._library(debug.getinfo(1, "S").source:match "^(.*)init%.lua$")

local MODULES = {
  nn = "demilune.nn",
  optim = "demilune.optim",
  amp = "demilune.amp",
  autograd = "demilune.autograd",
  data = "demilune.data",
  datasets = "demilune.datasets",
  transforms = "demilune.transforms",
  models = "demilune.models",
  metrics = "demilune.metrics",
  text = "demilune.text",
  cuda = "demilune.cuda",
  linalg = "demilune.linalg",
  fft = "demilune.fft",
  special = "demilune.special",
  profiler = "demilune.profiler",
}
local FUNCTIONS = {
  progress = {"demilune.progress", "progress"},
  Trainer = {"demilune.trainer", "Trainer"},
  save = {"demilune.io", "save"},
  load = {"demilune.io", "load"},
  meshgrid = {"demilune.grid", "meshgrid"},
  tril_indices = {"demilune.grid", "tril_indices"},
  triu_indices = {"demilune.grid", "triu_indices"},
  logspace = {"demilune.grid", "logspace"},
  make_grid = {"demilune.image", "make_grid"},
  save_image = {"demilune.image", "save_image"},
  read_image = {"demilune.image", "read_image"},
  decode_image = {"demilune.image", "decode_image"},
  help = {"demilune.help", "help"},
  memory_summary = {"demilune.memory", "memory_summary"},
  mem_get_info = {"demilune.memory", "mem_get_info"},
}

local dm = {}
for name, value in pairs(core) do dm[name] = value end
for _, dtype in ipairs{"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16",
  "int8", "uint8", "bool"} do
  dm[dtype] = dtype
end

return setmetatable(dm, {
  __index = function(self, name)
    local value
    if MODULES[name] then
      value = require(MODULES[name])
    elseif FUNCTIONS[name] then
      value = require(FUNCTIONS[name][1])[FUNCTIONS[name][2]]
    end
    if value ~= nil then rawset(self, name, value) end
    return value
  end,
})
