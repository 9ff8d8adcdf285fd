-- Mixed precision by levels, as NVIDIA's apex has it: amp.initialize prepares a
-- model and its optimizer once, amp.scale_loss surrounds each backward().
--
--     model, optimizer = amp.initialize(model, optimizer, {opt_level = "O1"})
--     do
--       local scaled_loss <close> = amp.scale_loss(loss, optimizer)
--       scaled_loss:backward()
--     end
--     optimizer:step()

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local convert = require "demilune.amp.convert"
local regions = require "demilune.amp.autocast"
local scaler = require "demilune.amp.scaler"
local Module = require "demilune.nn.module"


-- The properties of each level. cast_model_type: dtype of parameters and inputs, "low" the
-- 16-bit one; patch_functions: forward runs under autocast.
local LEVELS = {
  O0 = {cast_model_type = "float32", patch_functions = false, master_weights = false,
    loss_scale = 1.0},
  O1 = {patch_functions = true, loss_scale = "dynamic"},
  O2 = {cast_model_type = "low", patch_functions = false, keep_batchnorm_fp32 = true,
    master_weights = true, loss_scale = "dynamic"},
  O3 = {cast_model_type = "low", patch_functions = false, keep_batchnorm_fp32 = false,
    master_weights = false, loss_scale = 1.0},
}

local bind = options.signature("amp.initialize", [[models: module|list, optimizers?: optimizer|list,
  *, opt_level: any = 'O1', enabled: boolean = true, dtype: dtype = 'float16',
  num_losses: any = 1, min_loss_scale: any = 0.0, max_loss_scale: any = 2.0 ^ 24,
  cast_model_type?: any, patch_functions?: boolean, keep_batchnorm_fp32?: boolean,
  master_weights?: boolean, loss_scale?: any]])

-- ---- properties ----

local function check_level(o)
  if not LEVELS[o.opt_level] then
    caller.raise("amp.initialize: unknown opt_level '%s', wanted 'O0' (float32), 'O1' " ..
      "(autocast), 'O2' (a 16-bit model with float32 batch norm and master weights) or 'O3' " ..
      "(all 16-bit); the letter O, not zero", tostring(o.opt_level))
  end
  if o.opt_level ~= "O1" then return end
  for _, name in ipairs{"cast_model_type", "keep_batchnorm_fp32", "master_weights"} do
    if o[name] ~= nil then
      caller.raise("amp.initialize: %s has no place in opt_level 'O1': it leaves the model in " ..
        "float32 and casts the inputs of each op, so that the weights are their own masters and " ..
        "batch norm runs on float32 weights; hint: opt_level = 'O2'", name)
    end
  end
end

-- "dynamic", or a number above 0.
local function loss_scale_of(value)
  if value == "dynamic" then return value end
  local number = tonumber(value)
  if number and number > 0 and number < math.huge then return number + 0.0 end
  return caller.raise("amp.initialize: loss_scale is %s, wanted a number above 0, such a " ..
    "number as a string, or \"dynamic\"", tostring(value))
end

-- The level's properties, overridden by what is given.
local function properties_of(o)
  check_level(o)
  if not dtypes.low[o.dtype] then
    caller.raise("amp.initialize: dtype is %s, wanted 'float16' or 'bfloat16'", tostring(o.dtype))
  end
  for name, value in pairs(LEVELS[o.opt_level]) do
    if o[name] == nil then o[name] = value end
  end
  if o.cast_model_type == "low" then o.cast_model_type = o.dtype end
  if o.cast_model_type ~= nil and o.cast_model_type ~= "float32"
    and not dtypes.low[o.cast_model_type] then
    caller.raise("amp.initialize: cast_model_type is %s, wanted 'float32', 'float16' or " ..
      "'bfloat16'", tostring(o.cast_model_type))
  end
  if math.type(o.num_losses) ~= "integer" or o.num_losses < 1 then
    caller.raise("amp.initialize: num_losses is %s, wanted a whole number from 1",
      tostring(o.num_losses))
  end
  local low, high = o.min_loss_scale, o.max_loss_scale
  if type(low) ~= "number" or type(high) ~= "number" or not (0 <= low and low <= high) then
    caller.raise("amp.initialize: min_loss_scale is %s and max_loss_scale %s, wanted numbers " ..
      "from 0, the second not below the first", tostring(low), tostring(high))
  end
  o.loss_scale = loss_scale_of(o.loss_scale)
  return o
end

-- ---- models ----

local prepared = setmetatable({}, {__mode = "k"}) -- models that have been here

local function check_model(model)
  if not Module.is_module(model) then
    caller.raise("amp.initialize: got a %s, wanted a module or an array of modules", type(model))
  end
  if prepared[model] then
    caller.raise("amp.initialize: the model was initialized already")
  end
  for name, p in model:named_parameters() do
    if p.dtype ~= "float32" then
      caller.raise("amp.initialize: parameter %s is %s, wanted a model in float32; the level " ..
        "says what becomes of it", name, p.dtype)
    end
  end
end

local function is_batch_norm(module)
  local class = getmetatable(module)
  while class do
    if class.class:find "^BatchNorm" then return true end
    class = rawget(class, "super")
  end
  return false
end

local function convert_model(model, dtype, keep_batchnorm)
  local kept = {}
  for _, module in model:named_modules() do
    if keep_batchnorm and is_batch_norm(module) then
      for _, t in module:named_parameters() do kept[t] = t.data end
      for _, t in module:named_buffers() do kept[t] = t.data end
    end
  end
  model:to(dtype)
  for t, data in pairs(kept) do t.data = data end
end

-- The instance gets a forward of its own: inputs in the model's dtype, or a region
-- around it; outputs in float32.
local function patch_forward(model, o)
  local forward = model.forward
  local function inner(self, ...)
    if not o.patch_functions then return forward(self, ...) end
    local _, p = self:named_parameters()()
    local _ <close> = regions.autocast{dtype = o.dtype,
      device_type = p and regions.device_type_of(p.device) or "cpu"}
    return forward(self, ...)
  end
  rawset(model, "forward", function(self, ...)
    local args = table.pack(...)
    if o.cast_model_type then
      for i = 1, args.n do args[i] = convert(args[i], o.cast_model_type) end
    end
    local out = table.pack(inner(self, table.unpack(args, 1, args.n)))
    for i = 1, out.n do out[i] = convert(out[i], "float32") end
    return table.unpack(out, 1, out.n)
  end)
end

-- ---- optimizers ----

-- The record of an optimizer: plan (the properties and a scaler for each loss), open (scopes
-- of scale_loss), found_inf (of the scopes since the last step; nil: none).
local records = setmetatable({}, {__mode = "k"})

local function check_optimizer(optimizer, o)
  if type(optimizer) ~= "table" or not (optimizer.param_groups and optimizer.update) then
    caller.raise("amp.initialize: got a %s, wanted an optimizer of dm.optim or an array of them",
      type(optimizer))
  end
  if records[optimizer] then
    caller.raise("amp.initialize: the optimizer was initialized already")
  end
  if o.master_weights and optimizer.defaults.master_weights == nil then
    caller.raise("amp.initialize: %s keeps no master weights; hint: master_weights = false",
      optimizer.class)
  end
end

-- v as a found_inf on the device of the optimizer's parameters.
local function flag_of(optimizer, v)
  return core.tensor(v, {device = optimizer.param_groups[1].params[1].device})
end

-- step() skips where a scope found inf or NaN: on the device if the optimizer
-- takes found_inf, else here. While a scope ends, the scaler's call of step() only
-- tells what was found; record.ending holds it.
local function patch_step(optimizer, record)
  local step = optimizer.step
  rawset(optimizer, "step", function(self, closure, found_inf)
    if record.ending then
      record.ending = found_inf or flag_of(optimizer, 0.0)
      return
    end
    if record.open > 0 then
      caller.raise("%s:step: amp.scale_loss is still open, so the gradients are scaled; hint: " ..
        "do local scaled_loss <close> = amp.scale_loss(loss, optimizer) ... end", self.class)
    elseif closure ~= nil then
      caller.raise("%s:step: a closure is not supported after amp.initialize", self.class)
    end
    local found = record.found_inf
    record.found_inf = nil
    if found and not self.takes_found_inf then
      if found:item() ~= 0 then return end
      found = nil
    end
    return step(self, nil, found_inf or found)
  end)
end

local function prepare_optimizer(optimizer, plan)
  if plan.master_weights then
    optimizer.defaults.master_weights = true
    for _, group in ipairs(optimizer.param_groups) do group.master_weights = true end
  end
  records[optimizer] = {plan = plan, open = 0}
  patch_step(optimizer, records[optimizer])
end

local function new_scalers(o)
  local list = {}
  for i = 1, o.num_losses do
    local dynamic = o.loss_scale == "dynamic"
    list[i] = scaler.GradScaler{enabled = o.loss_scale ~= 1, min_scale = o.min_loss_scale,
      max_scale = o.max_loss_scale, init_scale = not dynamic and o.loss_scale
        or math.max(o.min_loss_scale, math.min(o.max_loss_scale, 2.0 ^ 16))}
  end
  return list
end

-- ---- initialize ----

-- One value or an array of values, as an array; a module or an optimizer is one.
local function array_of(value)
  local plain = type(value) == "table" and getmetatable(value) == nil
  return plain and value or {value}
end

-- Prepares models (one or an array) and optimizers (one or an array) for training
-- at a level, in place, and returns both. Once, before the first step.
-- opts: opt_level ("O1"), enabled (true), dtype ("float16"), num_losses (1), and of
-- the level's properties what shall be otherwise: cast_model_type, patch_functions,
-- keep_batchnorm_fp32, master_weights, loss_scale ("dynamic" or a number; 1 does
-- not scale), with min_loss_scale (none) and max_loss_scale (2^24).
--   O0  float32
--   O1  forward under autocast, dynamic loss scale
--   O2  parameters and inputs in 16 bits, batch norm in float32, float32 masters
--       in the optimizer, dynamic loss scale
--   O3  all in 16 bits
-- Raises where an option has no meaning, a model is not float32, or one of them
-- was initialized before; then nothing is changed.
local function initialize(...)
  local o = properties_of(bind(...))
  local models, optimizers = o.models, o.optimizers
  o.models, o.optimizers = nil, nil
  for _, model in ipairs(array_of(models)) do check_model(model) end
  for _, optimizer in ipairs(array_of(optimizers)) do check_optimizer(optimizer, o) end
  o.scalers = o.enabled and new_scalers(o) or {}
  for _, model in ipairs(o.enabled and array_of(models) or {}) do
    prepared[model] = true
    if o.cast_model_type then convert_model(model, o.cast_model_type, o.keep_batchnorm_fp32) end
    patch_forward(model, o)
  end
  for _, optimizer in ipairs(array_of(optimizers)) do
    if o.enabled then
      prepare_optimizer(optimizer, o)
    else
      records[optimizer] = {plan = o, open = 0}
    end
  end
  return models, optimizers
end

-- ---- scale_loss ----

local Scope = {__name = "demilune.scaled_loss"}
Scope.__index = Scope

-- Calls fn(parameter) for all parameters of the scope's optimizers.
local function each_parameter(scope, fn)
  for _, optimizer in ipairs(scope.optimizers) do
    for _, group in ipairs(optimizer.param_groups) do
      for _, p in ipairs(group.params) do fn(p) end
    end
  end
end

-- Gradients from before the scope are not scaled by it: they wait outside.
local function put_aside(scope)
  each_parameter(scope, function(p) scope.before[p], p.grad = p.grad, nil end)
end

local function put_back(scope, failed)
  local _ <close> = core.no_grad()
  each_parameter(scope, function(p)
    local before = scope.before[p]
    if failed or not p.grad then
      p.grad = before
    elseif before then
      p.grad = p.grad + before
    end
  end)
end

local function has_gradient(optimizer)
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      if p.grad then return true end
    end
  end
  return false
end

-- Unscales and adds to record.found_inf. A scaler that decides on the host does
-- not call step() at all where it found something.
local function check_gradients(scope, optimizer)
  local record = records[optimizer]
  record.ending = true
  local ok, message = pcall(scope.scaler.step, scope.scaler, optimizer)
  local found = record.ending
  record.ending = nil
  if not ok then error(message, 0) end
  if found == true then found = flag_of(optimizer, 1.0) end
  record.found_inf = core.keep(record.found_inf and record.found_inf + found or found:clone())
end

local function settle(scope)
  for _, optimizer in ipairs(scope.optimizers) do
    -- a loss need not reach each of several optimizers
    if #scope.optimizers == 1 or has_gradient(optimizer) then check_gradients(scope, optimizer) end
  end
  local scale = scope.plan.loss_scale
  scope.scaler:update(scale ~= "dynamic" and scale or nil)
end

local function leave(scope, failed)
  if scope.left then return end
  scope.left = true
  for _, optimizer in ipairs(scope.optimizers) do
    records[optimizer].open = records[optimizer].open - 1
  end
  if not scope.scaler then return end
  local ok, message = not failed, nil
  if ok then ok, message = pcall(settle, scope) end
  put_back(scope, not ok)
  if message then error(message, 0) end
end

--- scaled_loss:backward(options): of the scaled loss, which is scaled_loss.loss.
function Scope:backward(...) return self.loss:backward(...) end
function Scope:__close(err) leave(self, err ~= nil) end
function Scope:__tostring() return ("scaled_loss(%s)"):format(tostring(self.loss)) end

local bind_scale_loss = options.signature("amp.scale_loss",
  "loss: tensor, optimizers: optimizer|list, loss_id: integer = 1, *, fn?: function")

local function check_scale_loss(list, o)
  local plan
  for _, optimizer in ipairs(list) do
    if not records[optimizer] then
      caller.raise("amp.scale_loss: the optimizer is not known here; hint: model, optimizer = " ..
        "amp.initialize(model, optimizer) comes first")
    end
    plan = records[optimizer].plan
    if records[optimizer].open > 0 then
      caller.raise("amp.scale_loss: a scope of this optimizer is still open")
    end
  end
  if not plan then caller.raise("amp.scale_loss: wanted an optimizer, or an array of them") end
  if plan.enabled and not plan.scalers[o.loss_id] then
    caller.raise("amp.scale_loss: loss_id is %s, wanted 1 to num_losses = %d", tostring(o.loss_id),
      plan.num_losses)
  end
  return plan
end

-- A scope in which the scaled loss goes backward. When it ends, the gradients of
-- the optimizer (or the array of them) are divided by the scale and added to what
-- they were before; if one was inf or NaN the next optimizer:step() is skipped and
-- a dynamic scale falls.
--   local scaled_loss <close> = amp.scale_loss(loss, optimizer[, opts])
--     scaled_loss:backward(); scaled_loss.loss is the tensor
--   amp.scale_loss(loss, optimizer[, opts], fn): what fn(the scaled tensor) returns
-- opts: loss_id (1), of initialize's num_losses. Raises where nothing was
-- initialized, or, at its end, where no parameter got a gradient.
local function scale_loss(...)
  local o = bind_scale_loss(...)
  local loss, fn, list = o.loss, o.fn, array_of(o.optimizers)
  local plan = check_scale_loss(list, o)
  local s = plan.scalers[o.loss_id]
  local scope = setmetatable({plan = plan, optimizers = list, before = {}, loss = loss,
    scaler = s and s:is_enabled() and s or nil}, Scope)
  if scope.scaler then
    scope.loss = s:scale(loss:float())
    put_aside(scope)
  end
  for _, optimizer in ipairs(list) do records[optimizer].open = records[optimizer].open + 1 end
  if not fn then return scope end
  local _ <close> = scope
  return fn(scope.loss)
end

-- The GradScalers of an initialized optimizer's losses, to be looked at and saved.
local bind_scalers = options.signature("amp.loss_scalers", "optimizer: optimizer")
local function loss_scalers(...)
  local optimizer = bind_scalers(...).optimizer
  if not records[optimizer] then
    caller.raise("amp.loss_scalers: the optimizer is not known here; hint: amp.initialize")
  end
  return {table.unpack(records[optimizer].plan.scalers)}
end

return {initialize = initialize, scale_loss = scale_loss, loss_scalers = loss_scalers}
