-- Modules made of modules: Sequential, ModuleList, ModuleDict, Identity; and of
-- parameters: ParameterList, ParameterDict.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local containers = {}

-- The named members of a module, in the order of the first assignments.
local function by_name(self)
  local i, fields = 0, self._fields
  return function()
    local name, value
    repeat
      i = i + 1
      name = fields[i]
      value = name ~= nil and rawget(self, name)
    until name == nil or Module.is_module(value) or core.is_tensor(value)
    return name, value
  end
end

-- pairs and # of a container by name; those by position have Lua's #.
local function named(class)
  class.__pairs = by_name
  function class:__len()
    local n = 0
    for _ in by_name(self) do n = n + 1 end
    return n
  end
end

local function check(self, i, module)
  if not Module.is_module(module) then
    caller.raise("%s: element %s is a %s, wanted a module", self.class, tostring(i), type(module))
  end
  return module
end

local bind_fill = options.signature("modules", "modules?: list")

-- Takes modules as arguments, or one table of them.
local function fill(self, ...)
  local first = ...
  local list = type(first) == "table" and not Module.is_module(first)
    and (bind_fill(...).modules or {}) or {...}
  for i, module in ipairs(list) do self[i] = check(self, i, module) end
end

local function append(self, module)
  self[#self + 1] = check(self, #self + 1, module)
  return self
end

-- list:extend{module, ...} adds them at the end and returns the list; of a class it is Module's,
-- which makes another class.
local function extend(self, more)
  if rawget(self, "_fields") == nil then return Module.extend(self, more) end
  if type(more) ~= "table" or Module.is_module(more) and #more == 0 then
    caller.raise("%s:extend: wanted a list", self.class)
  end
  for _, element in ipairs(more) do self:append(element) end
  return self
end

--- y = f_n(... f_1(x)). In files the first is 0, in Lua 1. Sequential{{"conv", f_1}, ...} gives
--- names, and so does an assignment: sequential.conv = f. Those with names come after the
--- others, in the order of their first assignment.
local Sequential = Module:extend "Sequential"
Sequential._has_names = false -- of one that has some, a field of its own
Sequential.append, Sequential.extend = append, extend

function Sequential:init(...)
  local list = ...
  local pair = type(list) == "table" and not Module.is_module(list) and list[1]
  if type(pair) ~= "table" or Module.is_module(pair) then return fill(self, ...) end
  for i, entry in ipairs(list) do
    if type(entry) ~= "table" or type(entry[1]) ~= "string" then
      caller.raise("%s: element %d: wanted {name, module}, as the first is", self.class, i)
    end
    self[entry[1]] = check(self, entry[1], entry[2])
  end
end

-- A name of named_children ("0", "1" ...) stands for the index: list["0"] = m is list[1] = m.
local function set_child(self, name, value)
  if math.type(name) and name < 1 then
    caller.raise("%s: position %s, wanted 1 or more; hint: list[#list] is the last one", self.class,
      name)
  end
  local i = type(name) == "string" and name:find "^%d+$" and math.tointeger(name)
  if i and rawget(self, i + 1) ~= nil then
    rawset(self, i + 1, value)
  else
    Module.__newindex(self, name, value)
  end
end

function Sequential:__newindex(name, value)
  set_child(self, name, value)
  if type(name) == "string" and rawget(self, name) and Module.is_module(value) then
    rawset(self, "_has_names", true)
  end
end

-- All in order, where some have names.
local function in_order(self)
  local list = table.move(self, 1, #self, 1, {})
  for _, name in ipairs(self._fields) do
    local module = type(name) == "string" and rawget(self, name)
    if Module.is_module(module) then list[#list + 1] = module end
  end
  return list
end

-- Frees the handle of a tensor between two modules that hold no activations, which is then
-- Sequential's alone (the graph holds the values that the backward pass needs).
local free, rawequal = core.methods.free, rawequal

function Sequential:forward(x, ...)
  local input, private, extra = x, false, ...
  local list = self._has_names and in_order(self) or self
  local i, n = 1, #list
  while i <= n do
    local module, after = list[i], i < n and list[i + 1]
    local can_fuse = after and module.can_fuse_relu
    local y
    if i == 1 and extra ~= nil then
      y = module(x, ...)
    elseif can_fuse and after.forward == after.relu_forward and not after._has_hooks
      and can_fuse(module) then
      y = module(x, "relu") -- both as one op: see nn/module.lua
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
ModuleList.__newindex = set_child
ModuleList.append, ModuleList.extend = append, extend
function ModuleList.forward()
  caller.raise("ModuleList has no forward; call its elements")
end

--- Modules by name, in the order of the names.
local ModuleDict = Module:extend "ModuleDict"
local bind_modules = options.signature("ModuleDict", "modules?: table")
function ModuleDict:init(...)
  local modules, names = bind_modules(...).modules or {}, {}
  for name in pairs(modules) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do self[name] = check(self, name, modules[name]) end
end
named(ModuleDict)
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
local bind_list = options.signature("ParameterList", "values?: list")
function ParameterList:init(...)
  for i, t in ipairs(bind_list(...).values or {}) do self[i] = as_parameter(self, i, t) end
end
--- Adds a tensor as a parameter at the end. Returns the list.
function ParameterList:append(t)
  self[#self + 1] = as_parameter(self, #self + 1, t)
  return self
end
ParameterList.extend = extend
function ParameterList:extra_repr() return tostring(#self) end

--- ParameterDict{name = p, ...}, in the order of the names.
local ParameterDict = Module:extend "ParameterDict"
local bind_parameters = options.signature("ParameterDict", "parameters?: table")
function ParameterDict:init(...)
  local parameters, names = bind_parameters(...).parameters or {}, {}
  for name in pairs(parameters) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do self[name] = as_parameter(self, name, parameters[name]) end
end
for _, class in ipairs{ParameterList, ParameterDict} do
  function class:__newindex(name, value)
    if core.is_tensor(value) and not self._buffers[name] then
      value = as_parameter(self, name, value)
    end
    set_child(self, name, value)
  end
  function class.forward(self)
    caller.raise("%s has no forward; its owner reads its elements", self.class)
  end
end

named(ParameterDict)
for _, class in ipairs{Sequential, ModuleList, ParameterList} do class.__pairs = ipairs end

containers.ParameterList, containers.ParameterDict = ParameterList, ParameterDict
containers.Sequential, containers.ModuleList = Sequential, ModuleList
containers.ModuleDict, containers.Identity = ModuleDict, Identity
return containers
