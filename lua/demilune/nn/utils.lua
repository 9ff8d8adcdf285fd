-- nn.utils: gradient clipping, parameters as one vector, weights made anew before each
-- forward (weights.lua), batch norms merged into layers (fusion.lua); nn.utils.rnn: packing;
-- parametrize, parametrizations: weights that are computed; prune: masks.
-- R. Pascanu et al. 2013.

local core = require "demilune.core"
local caller = require "demilune.caller"
local late = require "demilune.late"
local options = require "demilune.options"
local divided = require "demilune.distributed.divided"

local utils = {}

-- An array of what is one tensor, an array, or an iterator such as
-- model:named_parameters().
local function as_list(name, parameters)
  if core.is_tensor(parameters) then return {parameters} end
  if type(parameters) == "table" then return parameters end
  if type(parameters) ~= "function" then
    caller.raise("%s: got a %s, wanted a tensor, an array of tensors, or an iterator over them",
      name, type(parameters))
  end
  local list = {}
  for a, b in parameters do list[#list + 1] = b or a end
  if #list == 0 then
    caller.warn("%s: the iterator gives no parameter; nothing is clipped", name)
  end
  return list
end

local function check_limit(name, what, v)
  if type(v) ~= "number" or v ~= v or v < 0 then
    caller.raise("%s: %s is %s, wanted a number from 0", name, what, tostring(v))
  end
end

-- A limit is meant for gradients, not for these times a GradScaler's scale.
local function warn_scaled(name, parameters)
  if not core.amp_any_scaled(parameters) then return end
  caller.warn_once("clipping of scaled gradients", "%s: these gradients are still multiplied by " ..
    "the loss scale, so the limit cuts nearly all of them away; hint: " ..
    "scaler:unscale_(optimizer) comes before clipping (or the limit is times " ..
    "scaler:get_scale()). Said once", name)
end

-- ---- clipping ----

-- The tensors, or those that have a gradient, in a list for each device.
local function by_device(tensors, of_grads)
  if core.on_one_device(tensors, of_grads) then return {tensors} end
  local lists, on = {}, {}
  for _, t in ipairs(tensors) do
    local device = of_grads and t.grad and t.grad.device or not of_grads and t.device
    if device then
      local list = on[device]
      if not list then
        list = {}
        on[device], lists[#lists + 1] = list, list
      end
      list[#list + 1] = t
    end
  end
  return lists
end

-- The p-norm of all of them, on the first one's device.
local function joint_norm(tensors, p, of_grads)
  local lists = by_device(tensors, of_grads)
  if #lists == 1 then return (core.total_norm(lists[1], p, of_grads)) end
  local norms = {}
  for i, list in ipairs(lists) do
    local norm = core.total_norm(list, p, of_grads)
    norms[i] = i == 1 and norm or norm:to(norms[1].device)
  end
  return (core.total_norm(norms, p == 0 and 1 or p)) -- of order 0 they are counts
end

-- What the ranks of a group have of the norm's p-th power, or for "inf" of the norm, of gradients
-- that are divided among them. Of order 0, which counts tensors, each counts once.
local function power_of_ranks(part, p, norm)
  local collectives = late.require "demilune.distributed.collectives"
  if p == 0 then
    local counts = {}
    for i, held in ipairs(part.all) do
      counts[i] = joint_norm({held or nil}, 0, true):to{dtype = "float64", device = norm.device}
    end
    return collectives.all_reduce(core.stack(counts), "max", part.group):sum()
  end
  local is_largest = p == math.huge
  return collectives.all_reduce(is_largest and norm or norm ^ p, is_largest and "max" or "sum",
    part.group)
end

-- The p-norm of the gradients where ranks of a group hold parts of some parameters: it is that of
-- the whole ones. The ranks of these groups call it together.
local function norm_over_ranks(params, p)
  local whole, parts = divided.split(params)
  local joint = joint_norm(whole, p, true)
  if #parts == 0 then return joint end
  local is_power, total = p > 0 and p < math.huge, joint:to "float64"
  local dtype, device = joint.dtype, params[1].device
  if is_power then total = total ^ p end
  for _, part in ipairs(parts) do
    local norm = joint_norm(part.params, p, true)
    if part.is_double then dtype = "float64" end
    local power = power_of_ranks(part, p, norm:to "float64"):to(total.device)
    total = p == math.huge and core.maximum(total, power) or total + power
  end
  return (is_power and total ^ (1 / p) or total):to{dtype = dtype, device = device}
end

-- total_norm: a tensor on any device.
local function clip(tensors, max_norm, total_norm)
  for _, list in ipairs(by_device(tensors, true)) do
    local g = core.is_tensor(total_norm) and list[1] and list[1].grad
    core.clip_norm_(list, max_norm, g and total_norm:to(g.device) or total_norm, true)
  end
end

local NORM = [[norm_type: number|'inf' = 2.0, error_if_nonfinite: boolean = false,
  foreach?: boolean]]

local function norm_of(name, tensors, o, of_grads)
  local p = o.norm_type == "inf" and math.huge or o.norm_type
  if type(p) ~= "number" or p ~= p or p < 0 then
    caller.raise("%s: norm_type is %s, wanted a number from 0, or \"inf\"", name,
      tostring(o.norm_type))
  end
  local norm = of_grads and norm_over_ranks(tensors, p) or joint_norm(tensors, p)
  if o.error_if_nonfinite then
    local v = norm:item()
    if v ~= v or v == math.huge then
      caller.raise("%s: the norm of order %s is %s, so gradients cannot be clipped; hint: " ..
        "error_if_nonfinite = false goes on regardless", name, tostring(p), tostring(v))
    end
  end
  return norm
end

local bind_total = options.signature("get_total_norm", "tensors: parameters, " .. NORM)

--- The p-norm of all elements of the tensors (a tensor, an array, an iterator), as
--- a 0-dim tensor. Options: norm_type (2; a number from 0, or "inf"),
--- error_if_nonfinite (false): raise when the norm is inf or NaN. 16-bit tensors:
--- float32.
function utils.get_total_norm(...)
  local o = bind_total(...)
  return norm_of("get_total_norm", as_list("get_total_norm", o.tensors), o, false)
end

local bind_clip_with = options.signature("clip_grads_with_norm_", [[parameters: parameters,
  max_norm: number, total_norm: tensor|number, foreach?: boolean]])

--- Multiplies the gradients by min(1, max_norm / (total_norm + 1e-6)), without
--- waiting for the device. total_norm: from get_total_norm, or a number.
function utils.clip_grads_with_norm_(...)
  local o = bind_clip_with(...)
  local max_norm, total_norm = o.max_norm, o.total_norm
  check_limit("clip_grads_with_norm_", "max_norm", max_norm)
  local list = as_list("clip_grads_with_norm_", o.parameters)
  if type(total_norm) == "number" then
    local device = list[1] and list[1].device
    total_norm = core.tensor(total_norm + 0.0, {dtype = "float32", device = device})
  end
  clip(divided.holders(list), max_norm, total_norm)
end

local bind_clip = options.signature("clip_grad_norm_",
  "parameters: parameters, max_norm: number, " .. NORM)

--- Scales all gradients so that their common norm is at most max_norm; returns the
--- norm before (a 0-dim tensor, on the device of the first gradient; 0 where there
--- is no gradient). Options as get_total_norm's; foreach is
--- accepted and means nothing here: lists are always worked on in one call. With a
--- GradScaler: after unscale_(). Does not wait for the device, unless
--- error_if_nonfinite; that leaves the gradients as they were. Parameters that are divided
--- among ranks (nn.parallel.ColumnParallelLinear), and gradients that are (the second stage of
--- ZeroRedundancyOptimizer), count with the parts of all of them; all ranks call it then.
function utils.clip_grad_norm_(...)
  local o = bind_clip(...)
  check_limit("clip_grad_norm_", "max_norm", o.max_norm)
  local list = as_list("clip_grad_norm_", o.parameters)
  local held = divided.holders(list)
  warn_scaled("clip_grad_norm_", held)
  local norm = norm_of("clip_grad_norm_", list, o, true)
  clip(held, o.max_norm, norm)
  return norm
end

local bind_clip_value = options.signature("clip_grad_value_",
  "parameters: parameters, clip_value: number, foreach?: boolean")

--- Holds each element of the gradients in [-clip_value, clip_value]; NaN stays.
function utils.clip_grad_value_(...)
  local o = bind_clip_value(...)
  local clip_value = o.clip_value
  check_limit("clip_grad_value_", "clip_value", clip_value)
  local list = divided.holders(as_list("clip_grad_value_", o.parameters))
  warn_scaled("clip_grad_value_", list)
  for _, part in ipairs(by_device(list, true)) do core.clamp_all_(part, clip_value, true) end
end

-- ---- parameters as one vector ----

local bind_to_vector = options.signature("parameters_to_vector", "parameters: parameters")

--- The elements of all parameters in one tensor (total); gradients flow through.
function utils.parameters_to_vector(...)
  local flat = {}
  for i, p in ipairs(as_list("parameters_to_vector", bind_to_vector(...).parameters)) do
    flat[i] = p:reshape(-1)
  end
  return core.cat(flat)
end

local bind_from_vector = options.signature("vector_to_parameters",
  "vec: tensor, parameters: parameters")

--- Copies the elements of a vector (total) into the parameters, in order.
function utils.vector_to_parameters(...)
  local o = bind_from_vector(...)
  local _ <close> = core.no_grad()
  local from = 1
  for _, p in ipairs(as_list("vector_to_parameters", o.parameters)) do
    local n = p:numel()
    p.data:copy_(o.vec:narrow(1, from, n):reshape(table.unpack(p.shape)))
    from = from + n
  end
end

return late.extend(utils, {
  checkpoint = "demilune.nn.checkpoint",
  checkpoint_sequential = "demilune.nn.checkpoint",
  fuse_conv_bn_eval = "demilune.nn.fusion",
  fuse_conv_bn_weights = "demilune.nn.fusion",
  fuse_linear_bn_eval = "demilune.nn.fusion",
  fuse_linear_bn_weights = "demilune.nn.fusion",
  weight_norm = "demilune.nn.weights",
  remove_weight_norm = "demilune.nn.weights",
  spectral_norm = "demilune.nn.weights",
  remove_spectral_norm = "demilune.nn.weights",
}, {
  rnn = "demilune.nn.packed",
  parametrize = "demilune.nn.parametrize",
  parametrizations = "demilune.nn.parametrizations",
  prune = "demilune.nn.prune",
})
