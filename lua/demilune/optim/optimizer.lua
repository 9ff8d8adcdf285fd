-- The base of optimizers: parameter groups, state, saving.
-- state[p] holds p's buffers by name, absent until p's first step. A class gives
-- update(self, group, found_inf), and says takes_found_inf = true if that changes
-- nothing where found_inf (nil, or a tensor) is not 0; a GradScaler then need not
-- read it. class.counters names the state that is one number a parameter, and its dtype:
-- tensors on the parameter's device, as the host does not know which steps were skipped.
-- class.reduced names the buffers that do not have their parameter's shape. class.by_element = true
-- says that a step takes each element by itself, so that ranks may share a parameter.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local listing = require "demilune.listing"
local options = require "demilune.options"
local replay = require "demilune.replay"
local shown = require "demilune.shown"
local slices = require "demilune.distributed.slices"
local zeroing = require "demilune.zeroing"

local drop_grads, on_one_device, warn_autocast =
  core.drop_grads, core.on_one_device, core.warn_autocast

local Optimizer = {class = "Optimizer", counters = {}, reduced = {}}
Optimizer.__index = Optimizer

-- {name = default} as options.signature reads them, by name only.
local function text_of(defaults)
  local parts = {}
  for key, value in pairs(defaults) do
    parts[#parts + 1] = ("%s: any = %s"):format(key, options.written(value))
  end
  table.sort(parts)
  return "*, " .. table.concat(parts, ", ")
end

-- A class of optimizers. text: its options, as options.signature reads them, or a table
-- {name = default}.
function Optimizer.extend(name, text)
  if type(text) == "table" then text = text_of(text) end
  local bind, defaults = options.signature(name, "params: parameters, " .. text)
  local class = {__name = name, class = name, __tostring = Optimizer.__tostring,
    bind = bind, class_defaults = defaults,
    bind_group = options.call_signature(name,
      "params: parameters, *, param_names?: list, " .. text)}
  class.__index = class
  return setmetatable(class, {__index = Optimizer, __tostring = options.class_text,
    __call = function(_, ...) return Optimizer.new(class, ...) end})
end

-- An array of parameters, and their names where the iterator
-- model:named_parameters() gave them.
local function listed(params)
  if core.is_tensor(params) then return {params} end
  if type(params) ~= "function" then return params end
  local list, names = {}, {}
  for name, p in params do list[#list + 1], names[#names + 1] = p, name end
  return list, names
end

-- Raises where a module stands for its parameters.
local function refuse_module(class, given)
  if type(given) == "table" and type(given.parameters) == "function" then
    caller.raise("%s: wanted parameters, got a %s; hint: module:parameters()", class.class,
      given.class)
  end
end

-- params: an array of parameters or of groups, or model:named_parameters().
function Optimizer.new(class, ...)
  local self = setmetatable({state = {}, param_groups = {}}, class)
  local o = class.bind(...)
  local params, names = o.params, nil
  self.defaults, o.params = o, nil
  if type(params) == "function" then params, names = listed(params) end
  if core.is_tensor(params) then
    caller.raise("%s: wanted an array of parameters or groups, got one tensor", class.class)
  end
  refuse_module(class, params)
  if #params == 0 then caller.raise("%s: the array of parameters is empty", class.class) end
  if type(params[1]) ~= "table" then params = {{params = params, param_names = names}} end
  for _, group in ipairs(params) do self:add_param_group(group) end
  return self
end

-- Adds a group of parameters: {params = {...}, lr = , ...}; an option that it does not name has
-- its default. params may be module:named_parameters(); the names go into param_names.
function Optimizer:add_param_group(group)
  refuse_module(self, group)
  if type(group) ~= "table" or group.params == nil then
    caller.raise("%s: a group without params", self.class)
  end
  local given = {}
  for key, value in pairs(self.defaults) do given[key] = value end
  for key, value in pairs(group) do given[key] = value end
  local new = self.bind_group(given)
  if self.check then self.check(new) end
  for key, value in pairs(new) do
    if type(value) == "table" then new[key] = {table.unpack(value)} end
  end
  local params, names = listed(group.params)
  local taken = {}
  for _, other in ipairs(self.param_groups) do
    for _, p in ipairs(other.params) do taken[p] = true end
  end
  new.params = {}
  for i, p in ipairs(params) do
    if not core.is_tensor(p) then
      caller.raise("%s: parameter %d is a %s, wanted a tensor", self.class, i, type(p))
    end
    if not p.is_leaf then
      caller.raise("%s: parameter %d is the result of an op, wanted a leaf", self.class, i)
    end
    if slices.of(p) and not self.by_element then
      caller.raise("%s: parameter %d is a slice of '%s', of which a step of this class needs all "
        .. "(fully_shard divides it among the ranks); hint: an element-wise optimizer, such as "
        .. "optim.AdamW", self.class, i, slices.of(p).name)
    end
    if taken[p] then
      caller.raise("%s: parameter %d of the group is in a group already", self.class, i)
    end
    taken[p] = true
    new.params[i] = core.keep(p)
  end
  new.param_names = names or group.param_names
  local first = self.param_groups[1]
  if first and (first.param_names == nil) ~= (new.param_names == nil) then
    caller.raise("%s: a group %s names of its parameters, and the first one has %s; hint: "
      .. "param_names, or model:named_parameters(), for all groups or for none", self.class,
      new.param_names and "with" or "without", first.param_names and "some" or "none")
  end
  self.param_groups[#self.param_groups + 1] = new
end

--- Drops the parameters' gradients: .grad is nil afterwards. set_to_none = false makes them
--- zeros instead.
---@param set_to_none? boolean true
function Optimizer:zero_grad(set_to_none)
  if self == nil then caller.dotted("optimizer", "zero_grad") end
  local groups = self.param_groups
  if set_to_none == nil or not zeroing.keeps(set_to_none) then
    for i = 1, #groups do drop_grads(groups[i].params) end
    return
  end
  for i = 1, #groups do
    for _, p in ipairs(groups[i].params) do zeroing.zero(p) end
  end
end

-- For a group whose parameters are on several devices: a group for each device, with all its
-- other fields.
local function parts_of(group)
  local parts, on = {}, {}
  for _, p in ipairs(group.params) do
    local part = on[p.device]
    if not part then
      part = setmetatable({params = {}}, {__index = group, __newindex = group})
      on[p.device], parts[#parts + 1] = part, part
    end
    part.params[#part.params + 1] = p
  end
  return parts
end

-- How many parameters each group has, as a string.
local function sizes_of(groups)
  local sizes = {}
  for i, group in ipairs(groups) do sizes[i] = #group.params end
  return table.concat(sizes, " ")
end

local function update(self, group, found_inf)
  self:update(group, found_inf and group.params[1] and found_inf:to(group.params[1].device))
end

-- One update. closure, if given, computes the loss (with gradients), which is
-- returned. found_inf: a float32 scalar; not 0: nothing is changed. Parameters may be
-- on different devices, within a group too.
function Optimizer:step(closure, found_inf)
  if self == nil then caller.dotted("optimizer", "step") end
  warn_autocast "step"
  if replay.optimizers then
    replay.optimizers[self] = true
    if replay.graph and not self.is_capturable then
      replay.refuse("%s: a step whose learning rate is the host's", self.class)
    end
  end
  local loss
  if closure then
    local _ <close> = core.enable_grad()
    loss = closure()
  end
  local groups = self.param_groups
  slices.check_current("step", groups)
  for i = 1, #groups do
    local group = groups[i]
    if on_one_device(group.params) then
      update(self, group, found_inf)
    else
      for _, part in ipairs(parts_of(group)) do update(self, part, found_inf) end
    end
  end
  self.steps = (self.steps or 0) + 1
  if replay.graph then
    replay.note{
      before = function() self.steps = self.steps + 1 end,
      stamp = function() return sizes_of(self.param_groups) end,
      undo = function() self.steps = self.steps - 1 end,
    }
  end
  return loss
end

-- ---- hooks ----

-- Calls the hooks of one kind; one of them may remove itself.
local function call_hooks(self, kind, ...)
  local list = self[kind]
  for _, hook in ipairs(list and {table.unpack(list)} or {}) do
    local result = hook.fn(self, ...)
    if result ~= nil and kind == "_pre_hooks" then
      caller.raise("step: a hook before it returned a %s, wanted nothing", type(result))
    end
  end
end

-- A class's step with the hooks around it.
function Optimizer.with_hooks(step)
  local function finish(self, given, ...)
    call_hooks(self, "_post_hooks", table.unpack(given, 1, given.n))
    return ...
  end
  return function(self, ...)
    if self == nil or not (self._pre_hooks or self._post_hooks) then return step(self, ...) end
    call_hooks(self, "_pre_hooks", ...)
    return finish(self, table.pack(...), step(self, ...))
  end
end

Optimizer.step = Optimizer.with_hooks(Optimizer.step)

local function add_hook(self, kind, fn)
  local list, hook = self[kind] or {}, {fn = fn}
  self[kind] = list
  list[#list + 1] = hook
  local handle = {}
  function handle.remove()
    for i, other in ipairs(list) do
      if other == hook then table.remove(list, i) end
    end
    if #list == 0 and self[kind] == list then self[kind] = nil end
  end
  return handle
end

local bind_pre_hook = options.signature("register_step_pre_hook", "fn: function")

--- Calls fn(optimizer, ...) before each step, with what the step is given: a closure, or nil and
--- found_inf by a GradScaler, which has unscaled the gradients by then. The handle has :remove().
---@param fn function returns nothing
---@return table handle
function Optimizer:register_step_pre_hook(...)
  return add_hook(self, "_pre_hooks", bind_pre_hook(...).fn)
end

local bind_post_hook = options.signature("register_step_post_hook", "fn: function")

--- Calls fn(optimizer, ...) after each step, with what the step was given. With a GradScaler it is
--- called after a step that changes nothing as well, which only the device may know yet:
--- scaler:skipped(optimizer) tells. The handle has :remove().
---@param fn function what it returns is dropped
---@return table handle
function Optimizer:register_step_post_hook(...)
  return add_hook(self, "_post_hooks", bind_post_hook(...).fn)
end

-- Gradients of parameters with masters become float32: what divides or clips
-- them afterwards loses nothing to 16 bits.
function Optimizer:widen_gradients()
  for _, group in ipairs(self.param_groups) do
    for _, p in ipairs(group.master_weights and group.params or {}) do
      local grad = p.grad
      if grad and dtypes.low[grad.dtype] then
        p.grad = grad:float()
      end
    end
  end
end

-- An option that is a number from 0, below top if that is given.
function Optimizer.check_range(class, o, name, top)
  local v = o[name]
  if type(v) ~= "number" or v ~= v or v < 0 or top and v >= top then
    caller.raise("%s: %s is %s, wanted a number from 0%s", class, name, tostring(v),
      top and " to below " .. top or " up")
  end
end

-- A buffer like p, of zeros.
function Optimizer.zeros_like(p)
  return core.keep(core.zeros_like(p.data))
end

-- A number of a parameter's state.
function Optimizer.counter(value, dtype, device)
  return core.keep(core.tensor(value + 0.0, {dtype = dtype, device = device}))
end

-- How counters are saved: as numbers, which waits for the device, or as their tensors if
-- class.saves_tensors.
local function saved_value(self, name, value)
  if self.saves_tensors or not self.counters[name] then return value end
  local number = value:item()
  return name == "step" and math.tointeger(number) or number
end

-- Whether a buffer of p is a slice, as p is.
local function is_slice(self, p, name, value)
  return slices.of(p) ~= nil and core.is_tensor(value) and not self.counters[name]
    and value:dim() == 1 and value:numel() == p:numel()
end

-- The buffers of p as they are saved: of slices what is whole, which all ranks gather in one order.
local function saved_buffers(self, p)
  local buffers = {}
  for _, name in ipairs(listing.keys(self.state[p])) do
    local value = saved_value(self, name, self.state[p][name])
    buffers[name] = is_slice(self, p, name, value) and slices.of(p).gather(value) or value
  end
  return buffers
end

-- {state = {[i] = buffers}, param_groups = {{params = {i, ...}, lr = , ...}}}:
-- parameters are numbered from 1, in the order of the groups. Where they are slices of
-- nn.parallel.fully_shard, all ranks call it, and the state is that of one process.
function Optimizer:state_dict()
  local saved, n = {state = {}, param_groups = {}}, 0
  for g, group in ipairs(self.param_groups) do
    local copy = {params = {}}
    for key, value in pairs(group) do
      if key ~= "params" then
        copy[key] = type(value) == "table" and {table.unpack(value)} or value
      end
    end
    for i, p in ipairs(group.params) do
      n = n + 1
      copy.params[i] = n
      if self.state[p] then saved.state[n] = saved_buffers(self, p) end
    end
    saved.param_groups[g] = copy
  end
  return shown(saved)
end

-- The state with shares in place of what is divided among ranks, for distributed.save.
function Optimizer:sharded_state_dict()
  return slices.keep_shares(function() return self:state_dict() end)
end

local function same_shape(t, shape)
  return table.concat(t.shape, ",") == table.concat(shape, ",")
end

-- Raises where a saved state is not one of these groups of parameters.
function Optimizer:_check_saved(saved)
  local name = self.class
  if type(saved) ~= "table" or type(saved.param_groups) ~= "table"
    or type(saved.state) ~= "table" then
    caller.raise("%s:load_state_dict: wanted {state = , param_groups = }", name)
  end
  if #saved.param_groups ~= #self.param_groups then
    caller.raise("%s:load_state_dict: %d groups, wanted %d", name, #saved.param_groups,
      #self.param_groups)
  end
  for g, group in ipairs(self.param_groups) do
    local n = #(saved.param_groups[g].params or {})
    if n ~= #group.params then
      caller.raise("%s:load_state_dict: group %d has %d parameters, wanted %d", name, g, n,
        #group.params)
    end
    for i, p in ipairs(group.params) do
      for key, value in pairs(saved.state[saved.param_groups[g].params[i]] or {}) do
        if core.is_tensor(value) and value:dim() > 0 and not self.reduced[key]
          and not same_shape(value, (slices.of(p) or p).shape) then
          caller.raise("%s:load_state_dict: %s of parameter %d is %s, wanted {%s}", name, key, i,
            tostring(value.shape), table.concat((slices.of(p) or p).shape, ", "))
        end
      end
    end
  end
end

-- One entry of a parameter's state, on its device.
local function loaded_value(self, p, name, value, dtype)
  local slice, device = slices.of(p), p.device
  if slice and core.is_tensor(value) and same_shape(value, slice.shape)
    and not self.counters[name] then value = slice.cut(value) end
  local counter = self.counters[name]
  if counter and type(value) == "number" then
    return Optimizer.counter(value, counter, device)
  elseif not core.is_tensor(value) then
    return value
  end
  counter = counter or name == "step" and "float32"
  return core.keep(value:to{dtype = counter or dtype, device = device, copy = true})
end

-- Whether an option that may be nil was so in the saved group: it is then not in the table.
local function is_unset(option, from)
  return not option.required and option.default == nil and from[option.name] == nil
end

-- An option's copy. A list that PyTorch saved may have None in it, which false stands for.
local function loaded_option(value)
  if type(value) ~= "table" then return value end
  local list = {}
  for i = 1, value.n or #value do list[i] = value[i] ~= nil and value[i] end
  return list
end

-- Copies the state to the parameters' devices; buffers take their parameter's dtype,
-- or float32 where it has a master; counters keep theirs, and may be numbers.
function Optimizer:load_state_dict(saved)
  self:_check_saved(saved)
  local _ <close> = core.no_grad()
  local state = {}
  for g, group in ipairs(self.param_groups) do
    local from = saved.param_groups[g]
    for key, value in pairs(from) do
      if key ~= "params" then group[key] = loaded_option(value) end
    end
    for _, option in ipairs(options.parameters(self.class) or {}) do
      if is_unset(option, from) then group[option.name] = nil end
    end
    for i, p in ipairs(group.params) do
      local buffers = saved.state[from.params[i]]
      if buffers then
        local dtype = buffers.master and "float32" or p.dtype
        state[p] = {}
        for key, value in pairs(buffers) do
          state[p][key] = loaded_value(self, p, key, value, dtype)
        end
      end
    end
  end
  self.state = state
end

-- "Adam(lr = 0.001, betas = {0.9, 0.999}, ..., 6 parameters)"
function Optimizer:__tostring()
  local groups, defaults = {}, self.class_defaults()
  for g, group in ipairs(self.param_groups) do
    local parts = {}
    for key, value in pairs(group) do
      if key ~= "params" and key ~= "lr" and key ~= "param_names" then
        local text = type(value) == "table" and "{" .. table.concat(value, ", ") .. "}"
          or tostring(value)
        if value ~= defaults[key] then
          parts[#parts + 1] = key .. " = " .. text
        end
      end
    end
    table.sort(parts)
    table.insert(parts, 1, ("lr = %g"):format(group.lr))
    parts[#parts + 1] = ("%d tensors"):format(#group.params)
    groups[g] = table.concat(parts, ", ")
  end
  return ("%s(%s)"):format(self.class, table.concat(groups, "; "))
end

caller.with_colon(Optimizer, "optimizer", "state_dict load_state_dict add_param_group "
  .. "register_step_pre_hook register_step_post_hook")

return Optimizer
