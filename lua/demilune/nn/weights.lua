-- Weights made anew before each forward: weight_norm, from a length and a direction;
-- spectral_norm, divided by the largest singular value. T. Salimans, D. Kingma 2016;
-- T. Miyato et al. 2018.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"
local weight_math = require "demilune.nn.weight_math"

local weights = {}
local check_dim, lengths = weight_math.check_dim, weight_math.lengths
local length_dim = weight_math.length_dim
local unit, as_matrix = weight_math.unit, weight_math.as_matrix

local made_by = setmetatable({}, {__mode = "k"}) -- [hook] = {function's name, field}

-- The parameter, which leaves the module; what is made of it takes its field, unregistered.
local function take(what, module, name)
  local p = Module.is_module(module) and rawget(module, name)
  if not (core.is_tensor(p) and p.is_parameter) then
    caller.raise("%s: wanted a module with a parameter '%s'", what, tostring(name))
  end
  module:_drop_field(name)
  return p
end

-- make(module) gives the weight; a copy of the module runs the same hook.
local function install(what, module, name, make)
  local function hook(m) rawset(m, name, make(m)) end
  made_by[hook] = {what, name}
  module:register_forward_pre_hook(hook)
  hook(module)
  return module
end

-- The weight as it is becomes the parameter again, the fields with these endings go.
local function remove(what, module, name, endings)
  for _, hook in ipairs(rawget(module, "_pre_hooks") or {}) do
    local made = made_by[hook]
    if made and made[1] == what and made[2] == name then
      local training = module.training
      module.training = false
      local ok, err = pcall(hook, module)
      module.training = training
      if not ok then error(err, 0) end
      module:_drop_pre_hook(hook)
      local weight = core.keep(module[name]:detach():clone())
      rawset(module, name, nil)
      for _, ending in ipairs(endings) do
        module:_drop_field(name .. ending)
      end
      module[name] = core.parameter(weight)
      return module
    end
  end
  caller.raise("remove_%s: the module has no %s of '%s'", what, what, tostring(name))
end

-- ---- weight_norm ----

--- The module's parameter `name` becomes name_g, its lengths along `dim`, times name_v over
--- its own. opts: name ("weight"), dim (1; "all", or PyTorch's -1: one length). Returns the module.
local bind_weight = options.signature("weight_norm",
  "module: module, name: string = 'weight', dim: integer|'all' = 1")

function weights.weight_norm(...)
  local o = bind_weight(...)
  local module = o.module
  local p = rawget(module, o.name)
  local dim = core.is_tensor(p) and length_dim(o.dim, p)
  p = take("weight_norm", module, o.name)
  local g, v = o.name .. "_g", o.name .. "_v"
  module[g] = core.parameter(core.keep(lengths(p.data, dim):clone()), p.requires_grad)
  module[v] = core.parameter(core.keep(p.data:clone()), p.requires_grad)
  return install("weight_norm", module, o.name, function(m)
    return m[v] * (m[g] / lengths(m[v], dim))
  end)
end

local bind_off_weight = options.signature("remove_weight_norm",
  "module: module, name: string = 'weight'")

--- Takes weight_norm of the parameter `name` ("weight") back. Returns the module.
function weights.remove_weight_norm(...)
  local o = bind_off_weight(...)
  return remove("weight_norm", o.module, o.name, {"_g", "_v"})
end

-- ---- spectral_norm ----

-- One step more towards the largest singular value's vectors, in place.
local function iterate(matrix, u, v, eps)
  local _ <close> = core.no_grad()
  v:copy_(unit(matrix:t():mv(u), eps))
  u:copy_(unit(matrix:mv(v), eps))
end

--- The module's parameter `name` becomes name_orig over its largest singular value, which
--- power iteration finds, n_power_iterations a forward in training; its vectors are the
--- buffers name_u and name_v. opts: name ("weight"), n_power_iterations (1), eps (1e-12),
--- dim (1; 2 of transposed convolutions). Returns the module.
local bind_spectral = options.signature("spectral_norm", [[module: module,
  name: string = 'weight', n_power_iterations: integer = 1, eps: number = 1e-12, dim?: integer]])

function weights.spectral_norm(...)
  local o = bind_spectral(...)
  local module = o.module
  if o.n_power_iterations < 1 then
    caller.raise("spectral_norm: n_power_iterations is %s, wanted 1 or more",
      tostring(o.n_power_iterations))
  end
  local given = rawget(module, o.name)
  local dim = o.dim or weight_math.output_dim(module)
  if core.is_tensor(given) then dim = check_dim("spectral_norm", dim, given) end
  local p = take("spectral_norm", module, o.name)
  local orig, uname, vname = o.name .. "_orig", o.name .. "_u", o.name .. "_v"
  local matrix = as_matrix(p.data, dim)
  local how = {dtype = p.dtype, device = p.device}
  module[orig] = p
  module:register_buffer(uname, unit(core.randn(matrix:size(1), how), o.eps))
  module:register_buffer(vname, unit(core.randn(matrix:size(2), how), o.eps))
  return install("spectral_norm", module, o.name, function(m)
    local w, u, v = m[orig], m[uname], m[vname]
    if m.training then
      for _ = 1, o.n_power_iterations do iterate(as_matrix(w.data, dim), u, v, o.eps) end
    end
    -- copies: a later forward moves the buffers, this one's gradient needs them as they are
    return w / u:clone():dot(as_matrix(w, dim):mv(v:clone()))
  end)
end

local bind_off_spectral = options.signature("remove_spectral_norm",
  "module: module, name: string = 'weight'")

--- Takes spectral_norm of the parameter `name` ("weight") back. Returns the module.
function weights.remove_spectral_norm(...)
  local o = bind_off_spectral(...)
  return remove("spectral_norm", o.module, o.name, {"_orig", "_u", "_v"})
end

return weights
