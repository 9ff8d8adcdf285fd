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

-- The position that i means; -1 is the last of `most`.
local function position(self, name, i, most)
  local at = math.type(i) and math.tointeger(i)
  if at and at < 0 then at = at + #self + 1 end
  if not at or at < 1 or at > most then
    caller.raise("%s:%s: position %s, wanted 1 to %d", self.class, name, tostring(i), most)
  end
  return at
end

local function insert(self, i, module)
  table.insert(self, position(self, "insert", i, #self + 1), check(self, i, module))
  return self
end

local function pop(self, i)
  if #self == 0 then caller.raise("%s:pop: it is empty", self.class) end
  return table.remove(self, position(self, "pop", i == nil and -1 or i, #self))
end

--- y = f_n(... f_1(x)). In files the first is 0, in Lua 1. Sequential{{"conv", f_1}, ...} gives
--- names, and so does an assignment: sequential.conv = f. Those with names come after the
--- others, in the order of their first assignment.
local Sequential = Module:extend "Sequential"
Sequential._has_names = false -- of one that has some, a field of its own
Sequential.append, Sequential.extend = append, extend

--- Puts a module before the one at position i (#self + 1: at the end; -1 is the last one). Returns
--- the Sequential. Those with names stay behind all others.
---@param i integer
---@param module table
function Sequential:insert(i, module) return insert(self, i, module) end

--- Takes the module at position i (-1, the last one) out, and returns it.
---@param i? integer
---@return table module
function Sequential:pop(i) return pop(self, i) end

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
      and can_fuse(module, after.relu_name) then
      y = module(x, after.relu_name) -- both as one op: see nn/module.lua
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

--- Puts a module before the one at position i (#self + 1: at the end; -1 is the last one). Returns
--- the list.
---@param i integer
---@param module table
function ModuleList:insert(i, module) return insert(self, i, module) end

--- Takes the module at position i (-1, the last one) out, and returns it.
---@param i? integer
---@return table module
function ModuleList:pop(i) return pop(self, i) end

for _, class in ipairs{Sequential, ModuleList} do
  caller.with_colon(class, class == Sequential and "sequential" or "list", "insert pop")
end

function ModuleList.forward()
  caller.raise("ModuleList has no forward; call its elements")
end

-- ---- by name ----

-- Assigns all of a table {name = value}, in the order of its names, of a container by name, or of a
-- list {{name, value}, ...}, in theirs. checked(self, name, value) gives what is assigned.
local function take_all(self, more, checked)
  local names, values = {}, {}
  local function take(name, value)
    if type(name) ~= "string" then
      caller.raise("%s: a name is a %s, wanted a string", self.class, type(name))
    end
    names[#names + 1], values[name] = name, checked(self, name, value)
  end
  if Module.is_module(more) then
    for name, value in pairs(more) do take(name, value) end
  elseif #more > 0 then
    for i, pair in ipairs(more) do
      if type(pair) ~= "table" or Module.is_module(pair) or #pair ~= 2 then
        caller.raise("%s: element %d: wanted {name, value}", self.class, i)
      end
      take(pair[1], pair[2])
    end
  else
    for name, value in pairs(more) do take(name, value) end
    table.sort(names)
  end
  for _, name in ipairs(names) do self[name] = values[name] end
  return self
end

local function names_of(self)
  local list = {}
  for name in by_name(self) do list[#list + 1] = name end
  return list
end

local function values_of(self)
  local list = {}
  for _, value in by_name(self) do list[#list + 1] = value end
  return list
end

local function take_out(self, name)
  local value = type(name) == "string" and rawget(self, name)
  if not (Module.is_module(value) or core.is_tensor(value)) then
    caller.raise("%s:pop: there is no '%s'", self.class, tostring(name))
  end
  self:_drop_field(name)
  return value
end

local function empty(self)
  for _, name in ipairs(names_of(self)) do self:_drop_field(name) end
end

local DICT = "update keys values items pop clear"

--- Modules by name, in the order of the names.
local ModuleDict = Module:extend "ModuleDict"
local bind_modules = options.signature("ModuleDict", "modules?: table")
function ModuleDict:init(...)
  take_all(self, bind_modules(...).modules or {}, check)
end
named(ModuleDict)

local bind_update = options.signature("update", "modules: table")

--- Assigns modules: of a table {name = module} in the order of the names, of a list
--- {{name, module}, ...} or a ModuleDict in its own. A name that is there keeps its position.
--- Returns the dict.
---@param modules table
function ModuleDict:update(...) return take_all(self, bind_update(...).modules, check) end
--- A list of the names.
---@return string[]
function ModuleDict:keys() return names_of(self) end
--- A list of the modules, in the order of keys().
---@return table[]
function ModuleDict:values() return values_of(self) end
--- for name, module in dict:items() do ... end; pairs(dict) gives the same.
function ModuleDict:items() return by_name(self) end
--- Takes the module of that name out, and returns it.
---@param name string
---@return table module
function ModuleDict:pop(name) return take_out(self, name) end
--- Takes all modules out.
function ModuleDict:clear() empty(self) end
caller.with_colon(ModuleDict, "dict", DICT)

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
  take_all(self, bind_parameters(...).parameters or {}, as_parameter)
end

local bind_more = options.signature("update", "parameters: table")

--- Assigns parameters, as ModuleDict:update modules. Returns the dict.
---@param parameters table
function ParameterDict:update(...)
  return take_all(self, bind_more(...).parameters, as_parameter)
end
--- A list of the names.
---@return string[]
function ParameterDict:keys() return names_of(self) end
--- A list of the parameters, in the order of keys().
---@return demilune.Tensor[]
function ParameterDict:values() return values_of(self) end
--- for name, parameter in dict:items() do ... end; pairs(dict) gives the same.
function ParameterDict:items() return by_name(self) end
--- Takes the parameter of that name out, and returns it.
---@param name string
---@return demilune.Tensor parameter
function ParameterDict:pop(name) return take_out(self, name) end
--- Takes all parameters out.
function ParameterDict:clear() empty(self) end
caller.with_colon(ParameterDict, "dict", DICT)

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
