-- demilune: tensors, gradients and mixed precision.
-- The ops and tensors come from demilune.core (C); the modules in Lua are
-- loaded when they are first used.

if _VERSION < "Lua 5.4" then
  local jit = rawget(_G, "jit")
  error("demilune needs Lua 5.4, and this is " .. (jit and jit.version or _VERSION) .. "; hint: "
    .. "lua5.4 script.lua", 0)
end
local core = require "demilune.core"
local dtypes = require "demilune.dtypes"
local late = require "demilune.late"
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
  signal = "demilune.signal",
  distributions = "demilune.distributions",
  distributed = "demilune.distributed",
  func = "demilune.func",
  profiler = "demilune.profiler",
  vision = "demilune.vision",
  plot = "demilune.plot",
  jupyter = "demilune.jupyter",
}
local FUNCTIONS = {
  progress = {"demilune.progress", "progress"},
  show = {"demilune.plot.show", "show"},
  Trainer = {"demilune.trainer", "Trainer"},
  save_pretrained = {"demilune.models.pretrained", "save_pretrained"},
  from_pretrained = {"demilune.models.pretrained", "from_pretrained"},
  SummaryWriter = {"demilune.tensorboard", "SummaryWriter"},
  dashboard = {"demilune.dashboard", "dashboard"},
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
  vmap = {"demilune.func", "vmap"},
  help = {"demilune.help", "help"},
  set_printoptions = {"demilune.print_options", "set_printoptions"},
  memory_summary = {"demilune.memory", "memory_summary"},
  mem_get_info = {"demilune.memory", "mem_get_info"},
}

-- Names of the core with an underscore are for this library's own files and the tests.
local function is_public(name) return type(name) == "string" and name:sub(1, 1) ~= "_" end

local dm = {_VERSION = core._VERSION, __version__ = core._VERSION, version = core._VERSION}
for name, value in pairs(core) do
  if is_public(name) then dm[name] = value end
end
for _, row in ipairs(dtypes.rows) do dm[row.name] = row.name end
dm.newaxis = "newaxis"

-- Results that print their content.
local shown = require "demilune.shown"
local OP = {__tostring = function(row) return ("%s  %s"):format(row.name, row.doc) end}
--- The table of ops: a list of rows {name =, doc =, signature =, tensors =, attrs =, ...}.
function dm.ops()
  local rows = core.ops()
  for _, row in ipairs(rows) do setmetatable(row, OP) end
  return shown(rows)
end
for _, name in ipairs{"cpu_info", "memory_stats"} do
  local of = core[name]
  dm[name] = function(...) return shown(of(...)) end
end

-- Names that PyTorch's users ask for, and the names of the same things here.
local KNOWN = {F = "nn.functional", functional = "nn.functional", seed = "manual_seed",
  autocast = "amp.autocast", GradScaler = "amp.GradScaler", Tensor = "tensor",
  Module = "nn.Module", DataLoader = "data.DataLoader", as_tensor = "tensor"}

local absent = require "demilune.absent"
local absent_here = absent("demilune", function() return late.names(dm) end, KNOWN)

-- A module of this library, which has hints for names that it lacks.
local function with_hints(name, module)
  local meta = getmetatable(module) or {}
  local find, hint = meta.__index, absent(name, function() return late.names(module) end)
  function meta.__index(self, key)
    local value = find and find(self, key)
    if value == nil then return hint(self, key) end
    return value
  end
  return setmetatable(module, meta)
end

-- The ops that are written in Lua come with the first name that none in C has.
local function load_ops(self, name)
  setmetatable(core, nil)
  setmetatable(core.methods, nil)
  late.require "demilune.ops"
  return self[name]
end
setmetatable(core, {__index = load_ops})
setmetatable(core.methods, {__index = load_ops})

local function load(self, name)
  local value
  if MODULES[name] then
    value = with_hints(name, late.require(MODULES[name]))
  elseif FUNCTIONS[name] then
    value = late.require(FUNCTIONS[name][1])[FUNCTIONS[name][2]]
  elseif is_public(name) then
    value = core[name]
  end
  if value == nil then return absent_here(self, name) end
  rawset(self, name, value)
  return value
end

-- Every name, the ops that are written in Lua among them.
local function names()
  late.require "demilune.ops"
  local set = {}
  for _, part in ipairs{core, MODULES, FUNCTIONS} do
    for name in next, part do
      if is_public(name) then set[name] = true end
    end
  end
  return set
end

late.remember()
return late.computed(dm, load, names)
