-- nn.Module: the base class of layers and models. A field that holds a parameter, a module
-- or a table of modules belongs to the module; fields are read anew for each question, in
-- the order of their first assignment. (Lua 5.4 carries out `self.a, self.b = x, y` from
-- right to left: b comes first then.)
--
-- Modules may make these promises, by which nn.Sequential saves memory and time. A class
-- that makes none of them is right, only slower; a promise is inherited by a subclass, which
-- sets it to false where its own forward breaks it.
--
-- * class.holds_no_activations = true: after forward neither the module nor anybody it called
--   holds its inputs or its outputs. Sequential frees the handle of a tensor between two such
--   modules at once, instead of leaving it to the garbage collector (what the backward pass
--   needs is held by the graph). A module that keeps a tensor and promises this all the same
--   keeps a freed handle, and an error tells so when it is used.
-- * class.relu_forward, of nn.ReLU alone: its own forward. A module whose forward is another
--   function (a subclass, a function of the user) is not known to be a ReLU.
-- * module:can_fuse_relu(), of nn.Linear: whether relu(module(x)) may be computed as
--   module(x, "relu"), one op. Sequential asks where a ReLU follows that has no hooks.
--
-- The base class keeps one mark by itself: _has_hooks, true while a module has forward hooks.
-- Module:is_observed() adds those that see every module, such as the profiler. Sequential
-- neither fuses nor frees what a hook might see.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local Module = {}
Module.__index = Module
Module.class = "Module"

local is_tensor = core.is_tensor
local classes = setmetatable({[Module] = true}, {__mode = "k"})

-- ---- classes and instances ----

local function construct(class, ...)
  local self = setmetatable({_fields = {}, _buffers = {}, _has_hooks = false, training = true},
    class)
  self:init(...)
  return self
end

--- A new class that inherits from this one: `local Block = nn.Module:extend "Block"`.
---@param name string as it is printed and named in errors
function Module:extend(name)
  local class = {}
  for key, value in pairs(self) do
    if type(key) == "string" and key:sub(1, 2) == "__" then class[key] = value end
  end
  class.__index = class
  class.class = name or "Module"
  class.super = self
  classes[class] = true
  return setmetatable(class, {__index = self, __call = construct})
end

--- Makes the parameters and the modules below; a class has its own, with the arguments of
--- the constructor.
function Module.init() end

--- The module's computation: inputs -> outputs. A class has its own; module(...) calls it.
function Module:forward()
  caller.raise("%s has no forward", self.class)
end

local function is_module(v)
  return type(v) == "table" and classes[getmetatable(v)] == true
end
Module.is_module = is_module

-- First assignment of a field; later ones are plain.
function Module:__newindex(name, value)
  rawset(self, name, value)
  local fields = self._fields
  for _, known in ipairs(fields) do
    if known == name then return end
  end
  fields[#fields + 1] = name
end

--- Adds a buffer: a tensor that is saved and moved with the module, but not trained.
--- opts.persistent = false leaves it out of the state_dict.
function Module:register_buffer(name, tensor, opts)
  self._buffers[name] = opts and opts.persistent == false and "passing" or "saved"
  self[name] = tensor
end

--- The same as self[name] = parameter.
function Module:register_parameter(name, parameter) self[name] = parameter end

-- ---- the modules and tensors below ----

-- Whether a plain table holds modules (or such tables).
local function holds_modules(t, depth)
  if type(t) ~= "table" or getmetatable(t) ~= nil or depth > 4 then return false end
  local _, first = next(t)
  return is_module(first) or holds_modules(first, depth + 1)
end

-- Keys of a table: 1, 2, ... first, then the strings in order.
local function keys_of(t)
  local keys, names = {}, {}
  for i = 1, #t do keys[i] = i end
  for key in pairs(t) do
    if type(key) == "string" then names[#names + 1] = key end
  end
  table.sort(names)
  return table.move(names, 1, #names, #keys + 1, keys)
end

-- Calls fn(path, module) for the modules directly below; a path is a list of keys.
local function each_child(self, fn)
  local function visit(path, value, depth)
    if is_module(value) then return fn(path, value) end
    if not holds_modules(value, depth) then return end
    for _, key in ipairs(keys_of(value)) do
      local longer = table.move(path, 1, #path, 1, {})
      longer[#longer + 1] = key
      visit(longer, value[key], depth + 1)
    end
  end
  for i, child in ipairs(self) do visit({i}, child, 1) end
  for _, name in ipairs(self._fields) do
    if type(name) == "string" then visit({name}, rawget(self, name), 1) end
  end
end

-- The path as in a state_dict: numbers from 0, as PyTorch's.
local function file_name(path)
  local words = {}
  for i, key in ipairs(path) do words[i] = math.type(key) and tostring(key - 1) or key end
  return table.concat(words, ".")
end

-- The path as Lua writes it: .layers[3]
local function lua_name(path)
  local words = {}
  for i, key in ipairs(path) do
    words[i] = math.type(key) and ("[%d]"):format(key) or "." .. key
  end
  return table.concat(words)
end

local function join(prefix, name) return prefix == "" and name or prefix .. "." .. name end

-- Calls fn(name, module) for this module and all below, each once.
local function each_module(self, fn, prefix, seen)
  if seen[self] then return end
  seen[self] = true
  fn(prefix, self)
  each_child(self, function(path, child)
    each_module(child, fn, join(prefix, file_name(path)), seen)
  end)
end

-- Calls fn(name, tensor, owner, field) for the tensors that `wanted` picks.
local function each_tensor(self, wanted, fn)
  local seen = {}
  each_module(self, function(prefix, module)
    for _, field in ipairs(module._fields) do
      local value = rawget(module, field)
      if is_tensor(value) and not seen[value] and wanted(module, field, value) then
        seen[value] = true
        fn(join(prefix, file_name{field}), value, module, field)
      end
    end
  end, "", {})
end

local function is_parameter(_, _, value) return value.is_parameter end
local function is_buffer(module, field) return module._buffers[field] ~= nil end
local function is_saved(module, field, value)
  return value.is_parameter or module._buffers[field] == "saved"
end

-- name, value pairs as an iterator.
local function iterator(walk)
  local names, values, i = {}, {}, 0
  walk(function(name, value)
    names[#names + 1], values[#values + 1] = name, value
  end)
  return function()
    i = i + 1
    return names[i], values[i]
  end
end

--- Iterates over name, parameter of this module and those below, each once:
--- `for name, p in model:named_parameters() do`.
function Module:named_parameters()
  return iterator(function(fn) each_tensor(self, is_parameter, fn) end)
end

--- Iterates over name, buffer of this module and those below, each once.
function Module:named_buffers()
  return iterator(function(fn) each_tensor(self, is_buffer, fn) end)
end

--- Iterates over name, module: this one, with the name "", and those below, each once.
function Module:named_modules()
  return iterator(function(fn) each_module(self, fn, "", {}) end)
end

--- Iterates over name, module of those directly below.
function Module:named_children()
  return iterator(function(fn)
    each_child(self, function(path, child) fn(file_name(path), child) end)
  end)
end

local function values_of(named)
  return function(self)
    local list = {}
    for _, value in self[named](self) do list[#list + 1] = value end
    return list
  end
end
-- The same as lists, without names.
Module.parameters = values_of "named_parameters"
Module.buffers = values_of "named_buffers"
Module.modules = values_of "named_modules"
Module.children = values_of "named_children"

--- Calls fn(module) for all modules below, then for this one. Returns the module.
function Module:apply(fn)
  each_child(self, function(_, child) child:apply(fn) end)
  fn(self)
  return self
end

-- ---- modes, dtype, device ----

--- Sets training mode (or eval mode, with false) in this module and those below, for dropout
--- and batch norms. Returns the module.
---@param mode? boolean true
function Module:train(mode)
  if mode == nil then mode = true end
  for _, module in self:named_modules() do module.training = mode end
  return self
end

--- The same as train(false).
function Module:eval() return self:train(false) end

--- Sets requires_grad of all parameters: false freezes them. Returns the module.
---@param on? boolean true
function Module:requires_grad_(on)
  if on == nil then on = true end
  for _, p in self:named_parameters() do p.requires_grad = on end
  return self
end

--- Drops the gradients of all parameters.
function Module:zero_grad()
  for _, p in self:named_parameters() do p.grad = nil end
end

local TO = {dtype = options.NONE, device = options.NONE, non_blocking = false}

--- Converts floating-point parameters and buffers to a dtype, and moves all of them to a
--- device, with their gradients. They stay the same tensors, so that an optimizer keeps them;
--- an optimizer's own buffers are not moved, so move the module first. Arguments are those of
--- tensor:to. Returns the module.
function Module:to(...)
  local dtype, device, non_blocking
  for _, arg in ipairs{...} do
    if type(arg) == "table" then
      local o = options.read("to", arg, TO)
      dtype, device, non_blocking = o.dtype or dtype, o.device or device, o.non_blocking
    elseif core.is_tensor(arg) then
      dtype, device = arg.dtype, arg.device
    elseif type(arg) == "string" and (arg:match "^%l+:%d+$" or arg == "cpu" or arg == "cuda") then
      device = arg
    else
      dtype = arg
    end
  end
  if dtype and not (type(dtype) == "string" and dtype:find "float") then
    caller.raise("%s:to: dtype is %s, wanted a float dtype", self.class, tostring(dtype))
  end
  local function convert(t)
    return t:to{dtype = t:is_floating_point() and dtype or nil, device = device,
      non_blocking = non_blocking}
  end
  local _ <close> = core.no_grad()
  each_tensor(self, function(module, field, value)
    return is_parameter(module, field, value) or is_buffer(module, field)
  end, function(_, t)
    local grad = t.grad
    t.grad = nil
    t.data = convert(t.data)
    if grad then t.grad = convert(grad) end
  end)
  return self
end

for method, dtype in pairs{float = "float32", half = "float16", bfloat16 = "bfloat16",
  double = "float64"} do
  Module[method] = function(self) return self:to{dtype = dtype} end
end
--- The same as to{device = "cpu"}, to{device = device or "cuda"}.
function Module:cpu() return self:to{device = "cpu"} end
function Module:cuda(device) return self:to{device = device or "cuda"} end

--- A deep copy: parameters, buffers and modules below are copied, each once, so that tied
--- parameters stay tied; functions are shared.
function Module:copy()
  local done = {}
  local function copy(v)
    if done[v] then return done[v] end
    if is_tensor(v) then
      local t = core.keep(v.data:clone())
      done[v] = v.is_parameter and core.parameter(t, v.requires_grad) or t
      return done[v]
    end
    if type(v) ~= "table" or getmetatable(v) and not is_module(v) then return v end
    local new = setmetatable({}, getmetatable(v))
    done[v] = new
    for key, value in next, v do rawset(new, key, copy(value)) end
    return new
  end
  return copy(self)
end

-- ---- state ----

local function saved_tensors(self)
  local found = {}
  each_module(self, function(prefix, module)
    for _, field in ipairs(module._fields) do
      local value = rawget(module, field)
      if is_tensor(value) and is_saved(module, field, value) then
        found[join(prefix, file_name{field})] = value
      end
    end
  end, "", {})
  return found
end

--- {name = tensor} of the parameters and persistent buffers, with PyTorch's names; the
--- tensors share storage with the module's.
function Module:state_dict()
  local state = {}
  for name, t in pairs(saved_tensors(self)) do state[name] = t:detach() end
  return state
end

local function list(title, words)
  table.sort(words)
  return #words > 0 and {("%s: %s"):format(title, table.concat(words, ", "))} or {}
end

--- Copies the tensors of a state_dict into the module's. A missing or unexpected name is an
--- error unless opts.strict = false; a shape that differs always is. Nothing is copied after
--- an error.
---@param state table {name = tensor}
---@param opts? {strict: boolean} strict = true
---@return table keys {missing_keys =, unexpected_keys =}
function Module:load_state_dict(state, opts)
  local strict = not (opts and opts.strict == false)
  local missing, unexpected, shapes = {}, {}, {}
  if type(state) ~= "table" then
    caller.raise("load_state_dict: wanted a table of tensors, got %s", type(state))
  end
  local own = saved_tensors(self)
  for name, t in pairs(own) do
    local given = state[name]
    if given == nil then
      missing[#missing + 1] = name
    elseif not is_tensor(given) or tostring(given.shape) ~= tostring(t.shape) then
      shapes[#shapes + 1] = ("%s is %s, wanted %s"):format(name,
        is_tensor(given) and tostring(given.shape) or type(given), tostring(t.shape))
    end
  end
  for name in pairs(state) do
    if own[name] == nil then unexpected[#unexpected + 1] = tostring(name) end
  end
  local faults = list("shapes differ", shapes)
  if strict then
    table.move(list("missing", missing), 1, 1, #faults + 1, faults)
    table.move(list("unexpected", unexpected), 1, 1, #faults + 1, faults)
  end
  if #faults > 0 then
    caller.raise("load_state_dict of %s: %s", self.class, table.concat(faults, "; "))
  end
  local _ <close> = core.no_grad()
  for name, t in pairs(own) do
    if state[name] ~= nil then t.data:copy_(state[name]) end
  end
  return {missing_keys = missing, unexpected_keys = unexpected}
end

-- ---- calls ----

-- Errors inside forward get the path of the module in front. They pass through
-- each enclosing call, which puts its own step in front of the path. The last
-- fault is remembered, but keeps no module alive.
local WEAK = {__mode = "v"}
local fault = {}

-- The path from this module to one below, as Lua writes it: ".layers[3]"; nil when it is
-- not below.
local function path_to(self, child)
  local found = child == self and "" or nil
  local function search(module, prefix, depth)
    each_child(module, function(path, below)
      if found then return end
      local name = prefix .. lua_name(path)
      if rawequal(below, child) then
        found = name
      elseif depth < 8 then
        search(below, name, depth + 1)
      end
    end)
  end
  if not found then search(self, "", 1) end
  return found
end

Module.path_to = path_to

local function annotate(self, message)
  if type(message) ~= "string" then return message end
  if message == fault.message then
    local step = path_to(self, fault.top)
    if not step then return message end
    fault.path = step .. fault.path
    fault.top = self
  else
    local where, text = message:match "^(.-:%d+: )(.*)$"
    fault = setmetatable({where = where or "", text = text or message, path = "", top = self,
      name = self:describe()}, WEAK)
  end
  local path = fault.path == "" and "" or "model" .. fault.path .. " "
  fault.message = ("%sin %s%s: %s"):format(fault.where, path, fault.name, fault.text)
  return fault.message
end

-- [1]: the function that is told which module runs, or nil: see Module.observe.
local observer = {}

--- Whether a hook of this module, or an observer of all modules, sees its calls.
function Module:is_observed() return self._has_hooks or observer[1] ~= nil end

--- fn(module) is called before each forward and returns the id of the module path
--- (core._module_number) that is set again after it, also after an error. nil ends this.
function Module.observe(fn) observer[1] = fn end

local function finish(self, ok, ...)
  if ok then return ... end
  return error(annotate(self, ...), 0)
end

-- A hook may replace the (first) output by what it returns.
local function run_hooks(self, inputs, output, ...)
  for _, hook in ipairs(rawget(self, "_hooks") or {}) do
    local changed = hook(self, inputs, output)
    if changed ~= nil then output = changed end
  end
  return output, ...
end

-- outer: the id of the module path to set again, or nil; inputs: for the hooks, or nil.
local function finish_observed(self, outer, inputs, ...)
  if outer then core._module_number(outer) end
  if inputs then return run_hooks(self, inputs, finish(self, ...)) end
  return finish(self, ...)
end

-- The inputs as hooks leave them: one may replace them all by what it returns, an
-- array of them or one alone.
local function changed_inputs(self, hooks, ...)
  local inputs = table.pack(...)
  for _, hook in ipairs(hooks) do
    local changed = hook(self, {table.unpack(inputs, 1, inputs.n)})
    if type(changed) == "table" and getmetatable(changed) == nil then
      inputs = table.pack(table.unpack(changed, 1, changed.n))
    elseif changed ~= nil then
      inputs = {changed, n = 1}
    end
  end
  return inputs
end

-- True in a module that has hooks (the C call of modules reads this name).
Module._has_hooks = false

local function call_observed(self, ...)
  local before = rawget(self, "_pre_hooks")
  local inputs = before and changed_inputs(self, before, ...)
  local after = rawget(self, "_hooks")
  if after and not inputs then inputs = table.pack(...) end
  local outer = observer[1] and observer[1](self)
  if inputs then
    return finish_observed(self, outer, after and inputs,
      pcall(self.forward, self, table.unpack(inputs, 1, inputs.n)))
  end
  return finish_observed(self, outer, nil, pcall(self.forward, self, ...))
end

Module.__call = core._module_caller(observer, call_observed, annotate)

local function drop_hook(self, list_name, fn)
  local hooks = rawget(self, list_name) or {}
  for i, hook in ipairs(hooks) do
    if hook == fn then table.remove(hooks, i) break end
  end
  if #hooks == 0 then rawset(self, list_name, nil) end
  rawset(self, "_has_hooks", rawget(self, "_hooks") ~= nil or rawget(self, "_pre_hooks") ~= nil)
end

local function add_hook(self, list_name, fn)
  local hooks = rawget(self, list_name) or {}
  rawset(self, list_name, hooks)
  rawset(self, "_has_hooks", true)
  hooks[#hooks + 1] = fn
  local handle = {}
  function handle.remove()
    if rawget(self, list_name) == hooks then drop_hook(self, list_name, fn) end
  end
  return handle
end

--- Calls fn(module, inputs, output) after each forward; what it returns, unless nil, replaces
--- the first output. The handle has :remove().
function Module:register_forward_hook(fn) return add_hook(self, "_hooks", fn) end
--- Calls fn(module, inputs) before each forward. What it returns, unless nil, replaces the
--- inputs: a plain table is an array of them (with n where some are nil).
function Module:register_forward_pre_hook(fn) return add_hook(self, "_pre_hooks", fn) end

-- For nn.utils, whose hooks a copy of the module has too.
function Module:_drop_pre_hook(fn) drop_hook(self, "_pre_hooks", fn) end

-- ---- printing ----

--- The text between the parentheses when the module is printed, such as "3 -> 16".
function Module.extra_repr() return "" end

--- The class and extra_repr, as "Linear(3 -> 16)".
function Module:describe()
  local extra = self:extra_repr()
  return extra == "" and self.class or ("%s(%s)"):format(self.class, extra)
end

local function with_commas(n)
  local s = tostring(n)
  while true do
    local longer, k = s:gsub("^(%d+)(%d%d%d)", "%1,%2")
    if k == 0 then return s end
    s = longer
  end
end

local function count_of(module)
  local n, bytes, dtype = 0, 0, nil
  for _, p in module:named_parameters() do
    n = n + p:numel()
    bytes = bytes + p:numel() * p:element_size()
    if dtype and dtype ~= p.dtype then dtype = "mixed" else dtype = p.dtype end
  end
  return n, bytes, dtype
end

local function bytes_text(n)
  if n < 1000 then return n .. " B" end
  if n < 1e6 then return ("%.0f kB"):format(n / 1e3) end
  return ("%.1f MB"):format(n / 1e6)
end

local function lines_of(module, indent, name, out)
  local children = {}
  each_child(module, function(path, child)
    children[#children + 1] = {lua_name(path):gsub("^%.", ""), child}
  end)
  local n = count_of(module)
  if #children == 0 then
    out[#out + 1] = {indent .. name .. module:describe(), n > 0 and with_commas(n) or ""}
    return
  end
  out[#out + 1] = {indent .. name .. module:describe() .. " {", ""}
  for _, pair in ipairs(children) do lines_of(pair[2], indent .. "  ", pair[1] .. " ", out) end
  out[#out + 1] = {indent .. "}", with_commas(n)}
end

--- A table of the layers with their output shapes, parameters and costs: see summary.lua.
function Module:summary(given, opts)
  return require "demilune.nn.summary"(self, given, opts)
end

function Module:__tostring()
  local rows, width, column = {}, 0, 0
  lines_of(self, "", "", rows)
  for _, row in ipairs(rows) do
    width, column = math.max(width, #row[1]), math.max(column, #row[2])
  end
  local n, bytes, dtype = count_of(self)
  local text = {}
  for i, row in ipairs(rows) do
    text[i] = row[2] == "" and row[1]
      or ("%-" .. width .. "s  %" .. column .. "s"):format(row[1], row[2])
  end
  if n > 0 then
    text[#text] = ("%s parameters, %s %s"):format(text[#text], bytes_text(bytes), dtype)
  end
  return table.concat(text, "\n")
end

return setmetatable(Module, {__call = construct})
