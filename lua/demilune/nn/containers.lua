-- Modules made of modules: Sequential, ModuleList, ModuleDict, Identity; and of
-- parameters: ParameterList, ParameterDict.

local core = require "demilune.core"
local caller = require "demilune.caller"
local Module = require "demilune.nn.module"

local containers = {}

local function check(self, i, module)
  if not Module.is_module(module) then
    caller.raise("%s: element %s is a %s, wanted a module", self.class, tostring(i), type(module))
  end
  return module
end

-- Takes modules as arguments, or one table of them.
local function fill(self, ...)
  local first = ...
  local list = type(first) == "table" and not Module.is_module(first) and first or {...}
  for i, module in ipairs(list) do self[i] = check(self, i, module) end
end

local function append(self, module)
  self[#self + 1] = check(self, #self + 1, module)
  return self
end

--- y = f_n(... f_1(x)). In files the first is 0, in Lua 1.
local Sequential = Module:extend "Sequential"
Sequential.init = fill
Sequential.append = append

-- Whether a module and the ReLU after it are computed as one op: see nn/module.lua.
local function is_fusible(module, after)
  local can = module.can_fuse_relu
  return can and after.forward == after.relu_forward and not after._has_hooks and can(module)
end

-- Frees the handle of a tensor between two modules that hold no activations, which is then
-- Sequential's alone (the graph holds the values that the backward pass needs).
local free, rawequal = core.methods.free, rawequal

function Sequential:forward(x, ...)
  local input, private, extra = x, false, ...
  local i, n = 1, #self
  while i <= n do
    local module, after = self[i], i < n and self[i + 1]
    local y
    if i == 1 and extra ~= nil then
      y = module(x, ...)
    elseif after and is_fusible(module, after) then
      y = module(x, "relu")
      i = i + 1
    else
      y = module(x)
    end
    local held = module._has_hooks or not module.holds_no_activations
    if private and not held and not rawequal(y, x) and not rawequal(x, input) then free(x) end
    private, x, i = not held, y, i + 1
  end
  return x
end

--- A list of modules; the owner calls them.
local ModuleList = Module:extend "ModuleList"
ModuleList.init = fill
ModuleList.append = append
function ModuleList.forward()
  caller.raise("ModuleList has no forward; call its elements")
end

--- Modules by name, in the order of the names.
local ModuleDict = Module:extend "ModuleDict"
function ModuleDict:init(modules)
  local names = {}
  for name in pairs(modules or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do self[name] = check(self, name, modules[name]) end
end
function ModuleDict.forward()
  caller.raise("ModuleDict has no forward; call its elements")
end

--- y = x: a layer that may stand for one that is left out.
local Identity = Module:extend "Identity"
Identity.holds_no_activations = true
function Identity.forward(_, x) return x end

-- ---- parameters ----

-- Tensors become parameters, as in PyTorch.
local function as_parameter(self, key, t)
  if not core.is_tensor(t) then
    caller.raise("%s: element %s is a %s, wanted a tensor", self.class, tostring(key), type(t))
  end
  return t.is_parameter and t or core.parameter(t)
end

--- ParameterList{p, ...}: in files the first is 0, in Lua 1.
local ParameterList = Module:extend "ParameterList"
function ParameterList:init(list)
  for i, t in ipairs(list or {}) do self[i] = as_parameter(self, i, t) end
end
--- Adds a tensor as a parameter at the end. Returns the list.
function ParameterList:append(t)
  self[#self + 1] = as_parameter(self, #self + 1, t)
  return self
end
function ParameterList:extra_repr() return tostring(#self) end

--- ParameterDict{name = p, ...}, in the order of the names.
local ParameterDict = Module:extend "ParameterDict"
function ParameterDict:init(parameters)
  local names = {}
  for name in pairs(parameters or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do self[name] = as_parameter(self, name, parameters[name]) end
end
for _, class in ipairs{ParameterList, ParameterDict} do
  function class.forward(self)
    caller.raise("%s has no forward; its owner reads its elements", self.class)
  end
end

containers.ParameterList, containers.ParameterDict = ParameterList, ParameterDict
containers.Sequential, containers.ModuleList = Sequential, ModuleList
containers.ModuleDict, containers.Identity = ModuleDict, Identity
return containers
