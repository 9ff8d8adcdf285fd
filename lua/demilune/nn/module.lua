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
-- * class.relu_forward and class.relu_name, of nn.ReLU and nn.ReLU6 alone: their own forward, and
--   its op. A module whose forward is another function (a subclass, a function of the user) is not
--   known to be a ReLU.
-- * module:can_fuse_relu(name), of nn.Linear and the batch norms: whether relu(module(x)), or relu6
--   of it, may be computed as module(x, name), one op. Sequential asks where such a module follows
--   that has no hooks, and so does Module.then_relu.
--
-- A forward that calls modules of such classes may free the tensors that it made for them,
-- where Module.hold_nothing(module, ...) says so.
--
-- The base class keeps one mark by itself: _has_hooks, true while a module has forward hooks.
-- Module:is_observed() adds those that see every module, such as the profiler. Sequential
-- neither fuses nor frees what a hook might see.

local core = require "demilune.core"
local caller = require "demilune.caller"
local divided = require "demilune.distributed.divided"
local dtypes = require "demilune.dtypes"
local listing = require "demilune.listing"
local options = require "demilune.options"
local absent = require "demilune.absent"
local shown = require "demilune.shown"
local zeroing = require "demilune.zeroing"

local Module = {}
Module.__index = Module
Module.class = "Module"

local DEVICE_HINT = "; hint: a device is a string, \"cuda\"; dm.device opens a scope"
local is_tensor = core.is_tensor
local classes = setmetatable({[Module] = true}, {__mode = "k"})
local field_names = {}

-- ---- classes and instances ----

local function construct(class, ...)
  local self = setmetatable({_fields = {}, _buffers = {}, _has_hooks = false, training = true},
    class)
  if rawget(class, "__init") and not rawget(class, "init") then
    caller.raise("%s has __init, which nothing calls; hint: function %s:init(...)", class.class,
      class.class)
  end
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
  return setmetatable(class, {__index = self, __call = construct,
    __tostring = options.class_text})
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
options.kind("module", is_module, "a module")

-- Raises where a field that held a parameter holds a tensor that is none.
local function check_parameter(self, name, value)
  if self._fields[tostring(name)] and is_tensor(value) and not value.is_parameter then
    caller.raise("%s: %s was a parameter and is given a plain tensor, which is neither trained "
      .. "nor saved; hint: nn.Parameter(tensor), or module:register_buffer('%s', tensor)",
      self.class, name, name)
  end
end

-- First assignment of a field; later ones are plain. _fields lists the names, and has
-- [name] = true of those that parameters had.
function Module:__newindex(name, value)
  local fields = self._fields
  check_parameter(self, name, value)
  rawset(self, name, value)
  if is_tensor(value) and value.is_parameter then fields[tostring(name)] = true end
  for _, known in ipairs(fields) do
    if known == name then return end
  end
  fields[#fields + 1] = name
  field_names[name] = true
end

-- Takes a field away, with what is known of it: no parameter and no buffer has its name then.
function Module:_drop_field(name)
  for i, field in ipairs(self._fields) do
    if field == name then table.remove(self._fields, i) break end
  end
  self._fields[name], self._buffers[name] = nil, nil
  rawset(self, name, nil)
end

local bind_buffer = options.signature("register_buffer",
  "name: string, tensor?: tensor, persistent: boolean = true")

--- register_buffer(name, tensor, persistent): adds a buffer, a tensor that is saved and moved
--- with the module, but not trained. persistent = false leaves it out of the state_dict.
function Module:register_buffer(...)
  local o = bind_buffer(...)
  self._buffers[o.name], self._fields[o.name] = o.persistent and "saved" or "passing", nil
  self[o.name] = o.tensor
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

-- Calls fn(name, module) for this module and all below, each by all of its names. `open` has the
-- modules around it.
local function each_path(self, fn, prefix, open)
  if open[self] then return end
  open[self] = true
  fn(prefix, self)
  each_child(self, function(path, child)
    each_path(child, fn, join(prefix, file_name(path)), open)
  end)
  open[self] = nil
end

local ALL = {prefix = "", recurse = true, remove_duplicate = true}

-- Calls fn(name, tensor, owner, field) for the tensors that `wanted` picks; o: options of
-- named_parameters.
local function each_tensor(self, wanted, fn, o)
  o = o or ALL
  local seen = {}
  local function visit(prefix, module)
    for _, field in ipairs(module._fields) do
      local value = rawget(module, field)
      check_parameter(module, field, value)
      if is_tensor(value) and not seen[value] and wanted(module, field, value) then
        seen[value] = o.remove_duplicate
        fn(join(prefix, file_name{field}), value, module, field)
      end
    end
  end
  if not o.recurse then return visit(o.prefix, self) end
  if not o.remove_duplicate then return each_path(self, visit, o.prefix, {}) end
  each_module(self, visit, o.prefix, {})
end

local function is_parameter(_, _, value) return value.is_parameter end
local function is_buffer(module, field) return module._buffers[field] ~= nil end
local function is_saved(module, field, value)
  return value.is_parameter or module._buffers[field] == "saved"
end

-- Raises where this module or one below is lazy (nn/lazy.lua) and has no tensors yet.
local function check_made(self)
  each_module(self, function(name, module)
    if rawget(module, "_later") then
      caller.raise("%s%s has no parameters before its first call; hint: call the model on a batch, "
        .. "or load_state_dict, before its parameters or its state_dict are asked for",
        module.class, name == "" and "" or (" (%s)"):format(name))
    end
  end, "", {})
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

-- The options of a method, bound where there are some.
local function with_options(method, text)
  local bind = options.signature(method, text)
  return function(...) return (...) == nil and select("#", ...) < 2 and ALL or bind(...) end
end

local OF_TENSORS = "prefix: string = '', recurse: boolean = true, remove_duplicate: boolean = true"
local bind_parameters = with_options("named_parameters", OF_TENSORS)
local bind_buffers = with_options("named_buffers", OF_TENSORS)
local bind_modules = with_options("named_modules",
  "*, prefix: string = '', remove_duplicate: boolean = true")

--- Iterates over name, parameter of this module and those below, each once:
--- `for name, p in model:named_parameters() do`. recurse = false leaves out the modules below,
--- remove_duplicate = false gives each by all of its names; prefix and a dot stand before names.
---@param options? {prefix?: string, recurse?: boolean, remove_duplicate?: boolean}
function Module:named_parameters(...)
  local o = bind_parameters(...)
  check_made(self)
  return iterator(function(fn) each_tensor(self, is_parameter, fn, o) end)
end

--- Iterates over name, buffer of this module and those below, each once. Its options are those of
--- named_parameters.
---@param options? {prefix?: string, recurse?: boolean, remove_duplicate?: boolean}
function Module:named_buffers(...)
  local o = bind_buffers(...)
  return iterator(function(fn) each_tensor(self, is_buffer, fn, o) end)
end

--- Iterates over name, module: this one, with the name "", and those below, each once, or with
--- remove_duplicate = false by all of its names. prefix is this module's name.
---@param options? {prefix?: string, remove_duplicate?: boolean}
function Module:named_modules(...)
  local o = bind_modules(...)
  return iterator(function(fn)
    if o.remove_duplicate then return each_module(self, fn, o.prefix, {}) end
    each_path(self, fn, o.prefix, {})
  end)
end

-- Calls fn(path, module) for the modules directly below, each once.
local function each_single_child(self, fn)
  local seen = {}
  each_child(self, function(path, child)
    if not seen[child] then
      seen[child] = true
      fn(path, child)
    end
  end)
end

--- Iterates over name, module of those directly below, each once.
function Module:named_children()
  return iterator(function(fn)
    each_single_child(self, function(path, child) fn(file_name(path), child) end)
  end)
end

local function values_of(named, bind)
  return function(self, ...)
    local list, o = {}, nil
    if bind and select("#", ...) > 0 then o = {recurse = bind(...).recurse} end
    for _, value in self[named](self, o) do list[#list + 1] = value end
    return list
  end
end
-- The same as lists, without names. Those of tensors take recurse = false.
Module.parameters = values_of("named_parameters",
  options.signature("parameters", "recurse: boolean = true"))
Module.buffers = values_of("named_buffers",
  options.signature("buffers", "recurse: boolean = true"))
Module.modules = values_of "named_modules"
Module.children = values_of "named_children"

-- The module of that name below this one, the module that holds it, and the keys from there.
local function find(self, target)
  local found, owner, keys
  each_child(self, function(path, child)
    local name = file_name(path)
    if found then return end
    if target == name then
      found, owner, keys = child, self, path
    elseif target:sub(1, #name + 1) == name .. "." then
      found, owner, keys = find(child, target:sub(#name + 2))
    end
  end)
  return found, owner, keys
end

local bind_target = options.signature("get_submodule", "target: string")

--- The module of a name that named_modules gives, such as "layers.0.conv"; "" is this one.
---@param target string
function Module:get_submodule(...)
  local target = bind_target(...).target
  return target == "" and self or find(self, target)
    or caller.raise("get_submodule: %s has no module '%s'", self.class, target)
end

local bind_set = options.signature("set_submodule", "target: string, module: module")

--- Puts another module where that of a name is, or adds one to the module that the name
--- begins with.
---@param target string
---@param module table
function Module:set_submodule(...)
  local o = bind_set(...)
  local _, owner, keys = find(self, o.target)
  if not owner then
    local above, name = o.target:match "^(.*)%.([^.]+)$"
    self:get_submodule(above or ""):add_module(name or o.target, o.module)
    return
  end
  for i = 1, #keys - 1 do owner = owner[keys[i]] end
  owner[keys[#keys]] = o.module
end

local bind_add = options.signature("add_module", "name: string, module?: module")

--- The same as self[name] = module, for a name that nothing has yet.
---@param name string
---@param module? table
function Module:add_module(...)
  local o = bind_add(...)
  if o.name == "" or o.name:find("%.") then
    caller.raise("add_module: the name is '%s', wanted one without dots", o.name)
  end
  if self[o.name] ~= nil and not is_module(rawget(self, o.name)) then
    caller.raise("add_module: %s has something else by the name '%s'", self.class, o.name)
  end
  self[o.name] = o.module
end
Module.register_module = Module.add_module

-- get_parameter and get_buffer.
local function getter(method, word, wanted)
  local bind = options.signature(method, "target: string")
  Module[method] = function(self, ...)
    local target = bind(...).target
    local above, name = target:match "^(.*)%.([^.]+)$"
    local owner = self:get_submodule(above or "")
    for _, field in ipairs(owner._fields) do
      local value = rawget(owner, field)
      if file_name{field} == (name or target) and is_tensor(value)
        and wanted(owner, field, value) then
        return value
      end
    end
    caller.raise("%s: %s has no %s '%s'", method, self.class, word, target)
  end
end
getter("get_parameter", "parameter", is_parameter)
getter("get_buffer", "buffer", is_buffer)

-- Raises where a module below is one of those around it: `open` has these.
local function refuse_circles(module, open)
  if open[module] then caller.raise("apply: a %s holds itself", module.class) end
  open[module] = true
  each_child(module, function(_, child) refuse_circles(child, open) end)
  open[module] = nil
end

--- Calls fn(module) for all modules below, then for this one. Returns the module.
function Module:apply(fn)
  refuse_circles(self, {})
  each_single_child(self, function(_, child) child:apply(fn) end)
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

--- Drops the gradients of all parameters; set_to_none = false makes them zeros instead.
---@param set_to_none? boolean true
function Module:zero_grad(set_to_none)
  local keeps = set_to_none ~= nil and zeroing.keeps(set_to_none)
  each_tensor(self, is_parameter, function(_, p)
    if keeps then zeroing.zero(p) else p.grad = nil end
    divided.drop(p, keeps)
  end)
end

local bind_to = options.signature("to",
  "*, device?: device, dtype?: dtype, non_blocking: boolean = false")

--- Converts floating-point parameters and buffers to a dtype, and moves all of them to a
--- device, with their gradients. They stay the same tensors, so that an optimizer keeps them;
--- an optimizer's own buffers are not moved, so move the module first. Arguments are those of
--- tensor:to. Returns the module.
function Module:to(...)
  local dtype, device, non_blocking
  for _, arg in ipairs{...} do
    if type(arg) == "table" then
      local o = bind_to(arg)
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
    caller.raise("%s:to: dtype is %s, wanted a float dtype%s", self.class, tostring(dtype),
      type(dtype) == "userdata" and DEVICE_HINT or "")
  end
  for _, module in self:named_modules() do
    local later = rawget(module, "_later")
    if later then later.dtype, later.device = dtype or later.dtype, device or later.device end
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

for _, row in ipairs(dtypes.floats) do
  if row.method then
    Module[row.method] = function(self) return self:to{dtype = row.name} end
    caller.with_colon(Module, "module", row.method)
  end
end
--- The same as to{device = "cpu"}.
function Module:cpu() return self:to{device = "cpu"} end

--- The same as to{device = device or "cuda"}.
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

-- {name = tensor}, the names in PyTorch's order: of each module the parameters, then the buffers,
-- then the modules below; and {name = division} of the tensors that have one. What stands at
-- several positions has the names of all, as in PyTorch.
local function saved_tensors(self)
  local found, names, divisions = {}, {}, {}
  each_path(self, function(prefix, module)
    for _, kind in ipairs{is_parameter, is_saved} do
      for _, field in ipairs(module._fields) do
        local value, name = rawget(module, field), join(prefix, file_name{field})
        check_parameter(module, field, value)
        if is_tensor(value) and not found[name] and kind(module, field, value) then
          found[name], names[#names + 1] = value, name
          divisions[name] = module:division(field)
        end
      end
    end
  end, "", {})
  return found, names, divisions
end

local bind_state = with_options("state_dict", "*, prefix: string = '', keep_vars: boolean = false")

--- {name = tensor} of the parameters and persistent buffers, with PyTorch's names and in its
--- order, which pairs keeps; the tensors share storage with the module's. It prints its content.
--- prefix stands before each name, as it is given; keep_vars = true gives parameters themselves.
---@param options? {prefix?: string, keep_vars?: boolean}
function Module:state_dict(...)
  local o = bind_state(...)
  check_made(self)
  local tensors, names, divisions = saved_tensors(self)
  local state = {}
  for i, name in ipairs(names) do
    local t, division = tensors[name], divisions[name]
    if not o.keep_vars then t = t:detach() end
    names[i] = o.prefix .. name
    state[names[i]] = division and division.gather(t:detach()) or t
  end
  return shown(state, names)
end

local function list(title, words)
  table.sort(words)
  return #words > 0 and {("%s: %s"):format(title, table.concat(words, ", "))} or {}
end

--- For classes whose weights other programs name otherwise: the state_dict to load, with the
--- names of this module.
function Module.known_names(_, state) return state end

--- For classes that hold a part of a tensor: {shape =, gather =, cut =} of the field, the shape of
--- the whole, which a state_dict has, and functions that make the whole of the part and the part of
--- the whole; nil where the field is the whole.
---@param field string
---@return table? division
function Module.division(_, _) end

--- Called for each module before a state_dict is loaded, with the module's own name and a dot
--- before its tensors' (or ""): a class may make its tensors in the shapes of the state, or
--- rename entries of it, a copy.
function Module.before_load() end

-- The hint where every name of a state begins with the word that PyTorch's DataParallel adds.
local function prefix_hint(state)
  for name in pairs(state) do
    if type(name) ~= "string" or name:sub(1, 7) ~= "module." then return "" end
  end
  return "; hint: every name begins with 'module.', which DataParallel adds: "
    .. "for name, t in pairs(state) do own[name:sub(8)] = t end"
end

local bind_load = options.signature("load_state_dict",
  "state_dict: table, strict: boolean = true")

--- Copies the tensors of a state_dict into the module's. A missing or unexpected name is an
--- error unless strict is false; a shape that differs always is. Nothing is copied after
--- an error.
---@overload fun(self, state_dict: table<string, userdata>, strict?: boolean): table
---@return table keys {missing_keys =, unexpected_keys =}, those in the module's order, these sorted
function Module:load_state_dict(...)
  local o = bind_load(...)
  local state, strict = {}, o.strict
  for name, t in pairs(self:known_names(o.state_dict)) do state[name] = t end
  each_path(self, function(prefix, module)
    module:before_load(state, prefix == "" and "" or prefix .. ".")
  end, "", {})
  local missing, unexpected, shapes = {}, {}, {}
  for prefix, module in self:named_modules() do
    if rawget(module, "_later") then missing[#missing + 1] = join(prefix, "weight") end
  end
  local own, names, divisions = saved_tensors(self)
  for _, name in ipairs(names) do
    local shape, given = (divisions[name] or own[name]).shape, state[name]
    if given == nil then
      -- PyTorch counts batches since 0.4.1, and takes older states as they are
      if not name:find "num_batches_tracked$" then missing[#missing + 1] = name end
    elseif not is_tensor(given) or tostring(given.shape) ~= tostring(shape) then
      shapes[#shapes + 1] = ("%s is %s, wanted %s"):format(name,
        is_tensor(given) and tostring(given.shape) or type(given), tostring(shape))
    end
  end
  for name in pairs(state) do
    if own[name] == nil then unexpected[#unexpected + 1] = tostring(name) end
  end
  table.sort(unexpected)
  local faults = list("shapes differ", shapes)
  if strict then
    table.move(list("missing", missing), 1, 1, #faults + 1, faults)
    table.move(list("unexpected", unexpected), 1, 1, #faults + 1, faults)
  end
  if #faults > 0 then
    caller.raise("load_state_dict of %s: %s%s", self.class, table.concat(faults, "; "),
      #unexpected > 0 and prefix_hint(state) or "")
  end
  local _ <close> = core.no_grad()
  for _, name in ipairs(names) do -- of several for one tensor the last counts
    local given, division = state[name], divisions[name]
    if given ~= nil then own[name].data:copy_(division and division.cut(given) or given) end
  end
  return shown{missing_keys = missing, unexpected_keys = unexpected}
end

-- ---- calls ----

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

-- Errors raised by the library name the module whose forward runs, by its path from the
-- outermost one. Calls of modules are found on the stack, where each holds its module as the
-- first value; nothing is caught, so that a traceback shows every frame.
function caller.inside()
  local path, name, top = "", nil, nil
  local level = 2
  local info = debug.getinfo(level, "f")
  while info do
    if info.func == Module.__call then
      local _, module = debug.getlocal(level, 1)
      local step = top == nil and "" or path_to(module, top)
      if not step then break end
      path, name, top = step .. path, name or module:describe(), module
    end
    level = level + 1
    info = debug.getinfo(level, "f")
  end
  if not name then return "" end
  return ("in %s%s: "):format(path == "" and "" or "model" .. path .. " ", name)
end

-- [1]: the function that is told which module runs, or nil: see Module.observe. [2]: a table that
-- gets each module that runs, or nil: see Module.collect.
local observer = {}
Module._observer = observer

--- Whether a hook of this module, or an observer of all modules, sees its calls.
function Module:is_observed() return self._has_hooks or observer[1] ~= nil end

local n_hook = 0 -- hooks of all modules; those that went with their modules count, too

--- Whether a tensor that only these modules have seen, and the function that called them, is that
--- function's alone once they are done: their classes promise it, and no module at all has hooks or
--- is observed.
function Module.hold_nothing(...)
  if n_hook > 0 or observer[1] then return false end
  for i = 1, select("#", ...) do
    if not (select(i, ...)).holds_no_activations then return false end
  end
  return true
end

-- Whether relu is an nn.ReLU or nn.ReLU6 with no hook of its own.
local function is_plain_relu(relu)
  return type(relu) == "table" and relu.relu_forward ~= nil and relu.forward == relu.relu_forward
    and not relu._has_hooks
end

--- relu(module(x)), as one op where the module can (see the head of this file) and relu is an
--- nn.ReLU or nn.ReLU6 that nothing observes.
function Module.then_relu(module, relu, x)
  local can = type(module) == "table" and module.can_fuse_relu
  if can and is_plain_relu(relu) and can(module, relu.relu_name) then
    return module(x, relu.relu_name)
  end
  return relu(module(x))
end

--- relu(y:add_(x)), in one pass where relu is an nn.ReLU that nothing observes.
---@param relu table a module, applied to the sum
---@param y userdata a tensor, which is overwritten
---@param x userdata a tensor that broadcasts to y's shape
---@return userdata the result, of y's shape
function Module.add_then_relu(relu, y, x)
  if is_plain_relu(relu) and relu.relu_name == "relu" and not observer[1] then
    return y:add_relu_(x)
  end
  return relu(y:add_(x))
end

--- fn(module) is called before each forward and returns the id of the module path
--- (core._module_number) that is set again after it, also after an error. nil ends this.
function Module.observe(fn) observer[1] = fn end

--- Each module that is called from now on becomes a key of this table; nil ends this.
function Module.collect(modules) observer[2] = modules end

-- The hooks of a list as it is now: one of them may remove itself.
local function snapshot(hooks) return table.move(hooks, 1, #hooks, 1, {}) end

-- A hook may replace the (first) output by what it returns.
local function run_hooks(self, inputs, output, ...)
  for _, hook in ipairs(snapshot(rawget(self, "_hooks"))) do
    local changed = hook(self, inputs, output)
    if changed ~= nil then output = changed end
  end
  return output, ...
end

-- The inputs as hooks leave them: one may replace them all by what it returns, an
-- array of them or one alone.
local function changed_inputs(self, hooks, ...)
  local inputs = table.pack(...)
  for _, hook in ipairs(snapshot(hooks)) do
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
-- The promises at the head of this file, which a class makes by fields of its own.
Module.can_fuse_relu, Module.holds_no_activations = false, false

-- Sets the module path of the caller again, also after an error.
local RESTORE = {__close = function(outer) core._module_number(outer[1]) end}

local function forward_numbered(self, ...)
  local outer = observer[1] and observer[1](self)
  local _ <close> = outer and setmetatable({outer}, RESTORE) or nil
  return self:forward(...)
end

-- The lists of a module's hooks.
local HOOKS = {"_pre_hooks", "_hooks", "_backward_pre_hooks", "_backward_hooks",
  "_always_hooks"}

-- Calls hooks of always_call after an error; what they raise themselves is dropped.
local AFTER_ERROR = {__close = function(call, err)
  if err == nil then return end
  for _, hook in ipairs(call[3]) do pcall(hook, call[1], call[2], nil) end
end}

local function call_observed(self, ...)
  local before, after = rawget(self, "_pre_hooks"), rawget(self, "_hooks")
  local always = rawget(self, "_always_hooks")
  local backward = rawget(self, "_backward_hooks") or rawget(self, "_backward_pre_hooks")
  if not (before or after or backward) then return forward_numbered(self, ...) end
  local inputs = table.pack(...)
  local _ <close> = always and setmetatable({self, inputs, snapshot(always)}, AFTER_ERROR) or nil
  if before then inputs = changed_inputs(self, before, ...) end
  local function forward(given)
    if not after then return forward_numbered(self, table.unpack(given, 1, given.n)) end
    return run_hooks(self, given, forward_numbered(self, table.unpack(given, 1, given.n)))
  end
  if not (backward and core.is_grad_enabled()) then return forward(inputs) end
  return require "demilune.nn.backward_hooks".around(self, inputs, forward)
end

Module.__call = core._module_caller(observer, call_observed)

local function drop_hook(self, list_name, fn)
  local hooks = rawget(self, list_name) or {}
  for i, hook in ipairs(hooks) do
    if hook == fn then
      table.remove(hooks, i)
      n_hook = n_hook - 1
      break
    end
  end
  if #hooks == 0 then rawset(self, list_name, nil) end
  local any = false
  for _, name in ipairs(HOOKS) do any = any or rawget(self, name) ~= nil end
  rawset(self, "_has_hooks", any)
end

local function add_hook(self, list_name, o)
  local hooks, fn = rawget(self, list_name) or {}, o.hook
  if o.with_kwargs then
    caller.raise("with_kwargs is true, but a module's inputs have no names here: a hook gets all "
      .. "of them in one list")
  end
  rawset(self, list_name, hooks)
  rawset(self, "_has_hooks", true)
  table.insert(hooks, o.prepend and 1 or #hooks + 1, fn)
  n_hook = n_hook + 1
  local always = o.always_call and add_hook(self, "_always_hooks", {hook = fn})
  local handle, is_removed = {}, false
  function handle.remove()
    if is_removed then return end
    is_removed = true
    if always then always.remove() end
    if rawget(self, list_name) == hooks then drop_hook(self, list_name, fn) end
  end
  return handle
end

local bind_hook = options.signature("register_forward_hook",
  "hook: function, *, prepend: boolean = false, with_kwargs?: boolean, always_call?: boolean")
local bind_pre_hook = options.signature("register_forward_pre_hook",
  "hook: function, *, prepend: boolean = false, with_kwargs?: boolean")
local bind_backward_hook = options.signature("register_full_backward_hook",
  "hook: function, prepend: boolean = false")
local bind_backward_pre_hook = options.signature("register_full_backward_pre_hook",
  "hook: function, prepend: boolean = false")

--- Calls fn(module, inputs, output) after each forward; what it returns, unless nil, replaces
--- the first output. prepend = true: before the hooks there are. always_call = true: after an
--- error, too, without an output. The handle has :remove().
---@param hook fun(module: table, inputs: table, output: any): any
---@param options? {prepend?: boolean, always_call?: boolean}
---@return table handle
function Module:register_forward_hook(...)
  return add_hook(self, "_hooks", bind_hook(...))
end

--- Calls fn(module, inputs) before each forward. What it returns, unless nil, replaces the
--- inputs: a plain table is an array of them (with n where some are nil). prepend = true: before
--- the hooks there are.
---@param hook fun(module: table, inputs: table): any
---@param options? {prepend?: boolean}
---@return table handle
function Module:register_forward_pre_hook(...)
  return add_hook(self, "_pre_hooks", bind_pre_hook(...))
end

--- Calls fn(module, grad_input, grad_output) when the gradients of the module's inputs are known:
--- lists, nil at a position that has none (n: the positions). What it returns, unless nil, replaces
--- grad_input. Where no input wants a gradient it is called with an empty grad_input, once
--- those of the outputs are known. prepend = true: before the hooks there are.
---@param hook fun(module: table, grad_input: table, grad_output: table): any
---@param options? {prepend?: boolean}
---@return table handle
function Module:register_full_backward_hook(...)
  return add_hook(self, "_backward_hooks", bind_backward_hook(...))
end

--- Calls fn(module, grad_output) before the module's backward pass. What it returns, unless nil,
--- replaces grad_output. prepend = true: before the hooks there are.
---@param hook fun(module: table, grad_output: table): any
---@param options? {prepend?: boolean}
---@return table handle
function Module:register_full_backward_pre_hook(...)
  return add_hook(self, "_backward_pre_hooks", bind_backward_pre_hook(...))
end

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

local function count_of(module)
  local n, bytes, dtype = 0, 0, nil
  each_tensor(module, is_parameter, function(_, p)
    n = n + p:numel()
    bytes = bytes + p:numel() * p:element_size()
    if dtype and dtype ~= p.dtype then dtype = "mixed" else dtype = p.dtype end
  end)
  return n, bytes, dtype
end

local function bytes_text(n)
  if n < 1000 then return n .. " B" end
  if n < 1e6 then return ("%.0f kB"):format(n / 1e3) end
  return ("%.1f MB"):format(n / 1e6)
end

local lines_of

-- The lines of a child below the indent: rows to print, and the same as one text to compare.
local function block_of(child, indent, open)
  local rows, parts = {}, {}
  lines_of(child, indent, "", rows, open)
  for i, row in ipairs(rows) do parts[i] = row[1] .. "\0" .. row[2] end
  return {rows = rows, text = table.concat(parts, "\n")}
end

-- Appends the lines of the children to out. Neighbours that print alike and have children of their
-- own, as the blocks of a transformer, are written once: "layer1 to layer12: 12 x Block {".
local function add_children(children, indent, out, open)
  local blocks = {}
  for i, pair in ipairs(children) do blocks[i] = block_of(pair[2], indent, open) end
  local i = 1
  while i <= #children do
    local rows, last = blocks[i].rows, i
    while #rows > 1 and last < #blocks and blocks[last + 1].text == blocks[i].text do
      last = last + 1
    end
    local name = children[i][1] .. " "
    if last > i then
      name = ("%s to %s: %d x "):format(children[i][1], children[last][1], last - i + 1)
    end
    rows[1][1] = indent .. name .. rows[1][1]:sub(#indent + 1)
    table.move(rows, 1, #rows, #out + 1, out)
    i = last + 1
  end
end

-- Appends the lines of a module to out. `open` has the modules around it: one that holds itself is
-- named where it comes again, and not entered, so that printing ends.
function lines_of(module, indent, name, out, open)
  if open[module] then
    out[#out + 1] = {indent .. name .. module:describe() .. " (the one around it)", ""}
    return
  end
  local children = {}
  each_child(module, function(path, child)
    children[#children + 1] = {lua_name(path):gsub("^%.", ""), child}
  end)
  local n = count_of(module)
  if #children == 0 then
    out[#out + 1] = {indent .. name .. module:describe(), n > 0 and listing.with_commas(n) or ""}
    return
  end
  out[#out + 1] = {indent .. name .. module:describe() .. " {", ""}
  open[module] = true
  add_children(children, indent .. "  ", out, open)
  open[module] = nil
  out[#out + 1] = {indent .. "}", listing.with_commas(n)}
end

--- A table of the layers with their output shapes, parameters and costs: see summary.lua.
function Module:summary(given, opts)
  return require "demilune.nn.summary"(self, given, opts)
end

function Module:__tostring()
  local rows, width, column = {}, 0, 0
  lines_of(self, "", "", rows, {})
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

caller.with_colon(Module, "module", "extend parameters buffers modules children named_parameters "
  .. "named_buffers named_modules named_children apply train eval requires_grad_ zero_grad to "
  .. "cpu cuda copy state_dict load_state_dict summary "
  .. "register_buffer register_parameter register_forward_hook register_forward_pre_hook "
  .. "get_submodule set_submodule add_module register_module get_parameter get_buffer "
  .. "register_full_backward_hook register_full_backward_pre_hook")

-- The names of methods, and of fields that some module has or had.
local function names()
  local set = {}
  for name in pairs(field_names) do set[name] = type(name) == "string" or nil end
  for class in pairs(classes) do
    for name, value in pairs(class) do
      if type(name) == "string" and type(value) == "function" then set[name] = true end
    end
  end
  return set
end

local absent_here = absent("a module", names)

-- A range of positions is a table, which no module has as a key.
local function missing(self, key)
  if type(key) == "table" then
    caller.raise "a module takes no ranges; hint: nn.Sequential(table.unpack(layers, first, last))"
  end
  return absent_here(self, key)
end

return setmetatable(Module, {__call = construct, __index = missing})
