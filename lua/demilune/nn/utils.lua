-- nn.utils: gradient clipping, and parameters as one vector.
-- R. Pascanu et al. 2013.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local utils = {}

local function as_list(parameters)
  return core.is_tensor(parameters) and {parameters} or parameters
end

local NORM = {norm_type = 2.0, error_if_nonfinite = false, foreach = options.NONE}

local function norm_of(name, tensors, opts, of_grads)
  local o = options.read(name, opts, NORM)
  local p = o.norm_type == "inf" and math.huge or o.norm_type
  local norm = core.total_norm(as_list(tensors), p, of_grads)
  if o.error_if_nonfinite then
    local v = norm:item()
    if v ~= v or v == math.huge then
      caller.raise("%s: the norm of order %s is %s, so gradients cannot be clipped; hint: " ..
        "error_if_nonfinite = false goes on regardless", name, tostring(p), tostring(v))
    end
  end
  return norm
end

-- The p-norm of all elements of the tensors.
function utils.get_total_norm(tensors, opts)
  return norm_of("get_total_norm", tensors, opts, false)
end

-- Scales the gradients by min(1, max_norm / (total_norm + 1e-6)).
function utils.clip_grads_with_norm_(parameters, max_norm, total_norm)
  local total = core.is_tensor(total_norm) and total_norm:item() or total_norm
  -- rounded as float32 arithmetic does it
  local coefficient = core.tensor(max_norm / core.tensor(total + 0.0):add(1e-6):item()):item()
  if coefficient > 1 then coefficient = 1.0 end
  core.mul_all_(as_list(parameters), coefficient, true)
end

-- Holds the norm of all gradients together at max_norm or below; returns the
-- norm before (a 0-dim tensor).
function utils.clip_grad_norm_(parameters, max_norm, opts)
  local norm = norm_of("clip_grad_norm_", parameters, opts, true)
  utils.clip_grads_with_norm_(parameters, max_norm, norm)
  return norm
end

-- Holds each element of the gradients in [-clip_value, clip_value].
function utils.clip_grad_value_(parameters, clip_value)
  core.clamp_all_(as_list(parameters), clip_value, true)
end

function utils.parameters_to_vector(parameters)
  local flat = {}
  for i, p in ipairs(parameters) do flat[i] = p:reshape(-1) end
  return core.cat(flat)
end

function utils.vector_to_parameters(vector, parameters)
  local _ <close> = core.no_grad()
  local from = 1
  for _, p in ipairs(parameters) do
    local n = p:numel()
    p.data:copy_(vector:narrow(1, from, n):reshape(table.unpack(p.shape)))
    from = from + n
  end
end

return utils
