-- nn.utils.parametrize: a parameter or buffer that is computed, at each reading, by modules from
-- what is stored: `original`, or original0, original1 ... The module gets a subclass of its class
-- whose __index computes the names in module.parametrizations, where a ParametrizationList each
-- has the modules (1, 2, ...) and the originals. State dicts have PyTorch's names.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local containers = require "demilune.nn.containers"

local parametrize = {}

local is_tensor = core.is_tensor

-- ---- the list of a tensor's parametrizations ----

local List = containers.ModuleList:extend "ParametrizationList"

local function no_inverse(module)
  caller.raise("parametrization %s has no right_inverse, so its tensor cannot be assigned to",
    module.class)
end

-- The modules' inverses of a tensor, the last module's first: one tensor, or a list.
-- missing(module) is called where a module has none.
local function inverted(list, value, missing)
  local _ <close> = core.no_grad()
  for i = #list, 1, -1 do
    local inverse = list[i].right_inverse
    if inverse then
      local many = table.pack(inverse(list[i], value))
      value = many.n == 1 and many[1] or many
    else
      missing(list[i])
    end
  end
  return value
end

-- Raises unless a tensor is as the one that is parametrized is.
local function check_same(what, name, got, want)
  if not is_tensor(got) then
    caller.raise("%s: %s is a %s, wanted a tensor", what, name, type(got))
  end
  if got.dtype ~= want.dtype or tostring(got.shape) ~= tostring(want.shape) then
    caller.raise("%s: %s is %s %s, wanted %s %s as before; hint: unsafe = true", what, name,
      got.dtype, tostring(got.shape), want.dtype, tostring(want.shape))
  end
end

local function check_one(what, got, want)
  if got.dtype ~= want.dtype or got.device ~= want.device then
    caller.raise("%s: right_inverse gives %s on %s, the original is %s on %s", what, got.dtype,
      got.device, want.dtype, want.device)
  end
end

-- Registers a tensor as what `like` is: a parameter of the same requires_grad, or a buffer.
local function register(module, name, t, like)
  if like.is_parameter then
    module[name] = t.is_parameter and t
      or core.parameter(core.keep(t:detach():clone()), like.requires_grad)
  else
    module:register_buffer(name, rawequal(t, like) and t or core.keep(t:detach():clone()))
  end
end

function List:init(what, parametrization, original, unsafe)
  self[1] = parametrization
  local was = {dtype = original.dtype, shape = original.shape}
  local new = inverted(self, original, function() end)
  self.unsafe, self.is_tensor = unsafe, is_tensor(new)
  if self.is_tensor then
    check_one(what, new, original)
    original.data = core.keep(new:detach())
    register(self, "original", original, original)
  else
    self.ntensors = type(new) == "table" and #new or 0
    for i = 1, self.ntensors do
      if not is_tensor(new[i]) then self.ntensors = 0 break end
      register(self, "original" .. i - 1, new[i], original)
    end
    if self.ntensors == 0 then
      caller.raise("%s: right_inverse gives no tensors, wanted one, or several", what)
    end
  end
  if not unsafe then check_same(what, "the parametrized tensor", self(), was) end
end

local function originals(self)
  if self.is_tensor then return self.original end
  local list = {}
  for i = 1, self.ntensors do list[i] = self["original" .. i - 1] end
  return table.unpack(list)
end

function List:forward()
  local x = self[1](originals(self))
  for i = 2, #self do x = self[i](x) end
  return x
end

--- Sets the originals so that the parametrized tensor is the value, by the modules' inverses.
function List:right_inverse(value)
  local what, new = "assignment of a parametrized tensor", inverted(self, value, no_inverse)
  if is_tensor(new) then new = {new} end
  local old = {originals(self)}
  if type(new) ~= "table" or #new ~= #old then
    caller.raise("%s: right_inverse gives %s tensors, wanted %d", what,
      type(new) == "table" and #new or "no", #old)
  end
  for i, t in ipairs(new) do
    check_one(what, t, old[i])
    old[i].data = core.keep(t:detach())
  end
end

-- ---- caching ----

local depth = 0 -- of scopes of cached() that are open
local cache = setmetatable({}, {__mode = "k"}) -- module -> {name = tensor}

local Scope = {}
function Scope:__close()
  if self.open then
    self.open, depth = false, depth - 1
    if depth == 0 then cache = setmetatable({}, {__mode = "k"}) end
  end
end
Scope.__gc = Scope.__close

local bind_cached = options.signature("cached", "fn?: function")

--- Within the scope a parametrized tensor is computed at its first reading alone:
--- `local _ <close> = parametrize.cached()`, or cached(fn), which returns what fn returns.
function parametrize.cached(...)
  local fn = bind_cached(...).fn
  depth = depth + 1
  local scope = setmetatable({open = true}, Scope)
  if not fn then return scope end
  local _ <close> = scope
  return fn()
end

-- ---- the module's class ----

-- The list of a name, or nil.
local function list_of(module, name)
  local lists = rawget(module, "parametrizations")
  local list = lists and type(name) == "string" and rawget(lists, name)
  return list and getmetatable(list) == List and list or nil
end

local function value_of(module, name, list)
  if depth == 0 then return list() end
  local values = cache[module] or {}
  cache[module] = values
  values[name] = values[name] or list()
  return values[name]
end

local parametrized = setmetatable({}, {__mode = "k"}) -- class -> the one with parametrizations

local function class_for(base)
  local class = parametrized[base]
  if class then return class end
  class = base:extend("Parametrized" .. base.class)
  function class.__index(self, name)
    local list = list_of(self, name)
    if list then return value_of(self, name, list) end
    return class[name]
  end
  function class.__newindex(self, name, value)
    local list = list_of(self, name)
    if not list then return base.__newindex(self, name, value) end
    if not is_tensor(value) then
      caller.raise("%s: %s is parametrized and is given a %s, wanted a tensor", class.class, name,
        type(value))
    end
    list:right_inverse(value)
  end
  parametrized[base] = class
  return class
end

-- ---- public functions ----

local bind_is = options.signature("is_parametrized", "module: module, tensor_name?: string")

--- Whether the module has a parametrization, or one of that tensor.
function parametrize.is_parametrized(...)
  local o = bind_is(...)
  if o.tensor_name then return list_of(o.module, o.tensor_name) ~= nil end
  local lists = rawget(o.module, "parametrizations")
  for name in pairs(lists and lists._fields and lists or {}) do
    if list_of(o.module, name) then return true end
  end
  return false
end
local is_parametrized = parametrize.is_parametrized

local bind_type = options.signature("type_before_parametrizations", "module: module")

--- The module's class without parametrizations.
function parametrize.type_before_parametrizations(...)
  local module = bind_type(...).module
  local class = getmetatable(module)
  return is_parametrized(module) and class.super or class
end

-- Puts one more behind those of a tensor.
local function chain(module, name, parametrization, unsafe)
  local what, list = "register_parametrization", list_of(module, name)
  if not unsafe then
    local y = module[name]
    local x = parametrization(y)
    check_same(what, "the parametrized tensor", x, y)
    local inverse = parametrization.right_inverse
    if inverse then
      local _ <close> = core.no_grad()
      check_same(what, "right_inverse's result", inverse(parametrization, x), y)
    end
  end
  list:append(parametrization)
  list.unsafe = list.unsafe or unsafe
end

local bind_register = options.signature("register_parametrization", [[module: module,
  tensor_name: string, parametrization: module, *, unsafe: boolean = false]])

--- Makes a parameter or buffer of a module what `parametrization` (a module) computes of the
--- stored tensor; a second one computes of the first's result. Its method right_inverse, where
--- there is one, tells what to store for a value: one tensor, or several. A parameter that is
--- stored as one tensor stays the same one, so that an optimizer keeps it. unsafe = true lets
--- shape and dtype change. Returns the module.
function parametrize.register_parametrization(...)
  local o = bind_register(...)
  local module, name = o.module, o.tensor_name
  o.parametrization:train(module.training)
  if list_of(module, name) then
    chain(module, name, o.parametrization, o.unsafe)
    return module
  end
  local original = rawget(module, name)
  if not is_tensor(original) or not (original.is_parameter or module._buffers[name]) then
    caller.raise("register_parametrization: %s has no parameter or buffer '%s'", module.class,
      name)
  end
  local list = List("register_parametrization", o.parametrization, original, o.unsafe)
  module:_drop_field(name)
  if not is_parametrized(module) then
    module.parametrizations = containers.ModuleDict()
    setmetatable(module, class_for(getmetatable(module)))
  end
  module.parametrizations[name] = list
  return module
end

local bind_remove = options.signature("remove_parametrizations", [[module: module,
  tensor_name: string, leave_parametrized: boolean = true]])

--- Makes the tensor a plain parameter or buffer again: of the parametrized value, or
--- (leave_parametrized = false) of what was stored, where that is one tensor. Returns the module.
function parametrize.remove_parametrizations(...)
  local o = bind_remove(...)
  local module, name = o.module, o.tensor_name
  local list = list_of(module, name)
  if not list then
    caller.raise("remove_parametrizations: %s has no parametrization of '%s'", module.class, name)
  end
  if not (list.is_tensor or o.leave_parametrized) then
    caller.raise("remove_parametrizations: '%s' is stored as %d tensors, which none of them can "
      .. "stand for; hint: leave_parametrized = true", name, list.ntensors)
  end
  local t, like = list.original, list.original
  if o.leave_parametrized then
    local value = list()
    if list.is_tensor then
      t.data = core.keep(value:detach():clone())
    else
      t, like = value, {is_parameter = value.requires_grad, requires_grad = true}
    end
  end
  module.parametrizations:_drop_field(name)
  cache[module] = nil
  if not is_parametrized(module) then
    module:_drop_field("parametrizations")
    setmetatable(module, getmetatable(module).super)
  end
  register(module, name, t, like)
  return module
end

parametrize.ParametrizationList = List
return parametrize
