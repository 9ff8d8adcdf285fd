-- nn.utils.parametrizations: weights of a length and a direction, of a largest singular value of
-- 1, and orthogonal ones. T. Salimans, D. Kingma 2016; T. Miyato et al. 2018;
-- M. Lezcano-Casado 2019 (the base of `orthogonal`).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local Module = require "demilune.nn.module"
local parametrize = require "demilune.nn.parametrize"
local weight_math = require "demilune.nn.weight_math"

local parametrizations = {}

local unit, as_matrix, lengths = weight_math.unit, weight_math.as_matrix, weight_math.lengths

-- The parameter or buffer of that name, which may be parametrized already.
local function tensor_of(what, module, name)
  local t = module[name]
  if not core.is_tensor(t) then
    caller.raise("%s: %s has no parameter or buffer '%s'", what, module.class, name)
  end
  return t
end

-- ---- weight_norm ----

local WeightNorm = Module:extend "WeightNorm"
function WeightNorm:init(dim) self.dim = dim end
function WeightNorm:forward(g, v) return v * (g / lengths(v, self.dim)) end
function WeightNorm:right_inverse(weight) return lengths(weight, self.dim), weight end

-- Entries of the older weight_norm, weight_g and weight_v, are read as those that there are.
local function rename_older(list, name, state, prefix)
  local g, v = prefix .. name .. "_g", prefix .. name .. "_v"
  if not (getmetatable(list[1]) == WeightNorm and state[g] and state[v]) then return end
  local own = prefix .. "parametrizations." .. name
  state[own .. ".original0"], state[own .. ".original1"] = state[g], state[v]
  state[g], state[v] = nil, nil
end

function parametrize.ParametrizationList:before_load(state, prefix)
  local above, name = prefix:match "^(.-)parametrizations%.([^.]+)%.$"
  if above then rename_older(self, name, state, above) end
end

local bind_weight = options.signature("weight_norm",
  "module: module, name: string = 'weight', dim: integer|'all' = 1")

--- The module's tensor `name` becomes original0, its lengths along `dim` ("all", or
--- PyTorch's -1: one length), times original1 over its own. It comes before other
--- parametrizations of the tensor. Returns the module.
function parametrizations.weight_norm(...)
  local o = bind_weight(...)
  local weight = tensor_of("weight_norm", o.module, o.name)
  if parametrize.is_parametrized(o.module, o.name) then
    caller.raise("weight_norm: '%s' has a parametrization already, and weight_norm, which stores "
      .. "two tensors, must come first; hint: register the other after weight_norm", o.name)
  end
  local dim = weight_math.length_dim(o.dim, weight)
  return parametrize.register_parametrization(o.module, o.name, WeightNorm(dim), {unsafe = true})
end

-- ---- spectral_norm ----

local SpectralNorm = Module:extend "SpectralNorm"

-- Steps of power iteration, in place.
local function iterate(self, matrix, n)
  local _ <close> = core.no_grad()
  for _ = 1, n do
    self._u:copy_(unit(matrix:mv(self._v), self.eps))
    self._v:copy_(unit(matrix:t():mv(self._u), self.eps))
  end
end

function SpectralNorm:init(weight, n_power_iterations, dim, eps)
  self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps
  if weight:dim() == 1 then return end
  local matrix = as_matrix(weight:detach(), dim)
  local how = {dtype = weight.dtype, device = weight.device}
  self:register_buffer("_u", unit(core.randn(matrix:size(1), how), eps))
  self:register_buffer("_v", unit(core.randn(matrix:size(2), how), eps))
  iterate(self, matrix, 15)
end

function SpectralNorm:forward(weight)
  if weight:dim() == 1 then return unit(weight, self.eps) end
  local matrix = as_matrix(weight, self.dim)
  if self.training then iterate(self, matrix:detach(), self.n_power_iterations) end
  -- copies: a later forward moves the buffers, this one's gradient needs them as they are
  return weight / self._u:clone():dot(matrix:mv(self._v:clone()))
end

function SpectralNorm.right_inverse(_, value) return value end

local bind_spectral = options.signature("spectral_norm", [[module: module,
  name: string = 'weight', n_power_iterations: integer = 1, eps: number = 1e-12, dim?: integer]])

--- The module's tensor `name` is divided by its largest singular value, which power iteration
--- finds: 15 steps now, n_power_iterations at each reading in training. dim: the one that counts
--- the outputs (1; 2 of transposed convolutions). Returns the module.
function parametrizations.spectral_norm(...)
  local o = bind_spectral(...)
  if o.n_power_iterations < 1 then
    caller.raise("spectral_norm: n_power_iterations is %d, wanted 1 or more",
      o.n_power_iterations)
  end
  local weight = tensor_of("spectral_norm", o.module, o.name)
  local dim = o.dim or weight:dim() > 1 and weight_math.output_dim(o.module) or 1
  dim = weight_math.check_dim("spectral_norm", dim, weight)
  return parametrize.register_parametrization(o.module, o.name,
    SpectralNorm(weight, o.n_power_iterations, dim, o.eps))
end

-- ---- orthogonal ----

local Orthogonal = Module:extend "Orthogonal"

function Orthogonal:init(weight, map, use_trivialization)
  self.shape, self.orthogonal_map = weight.shape, map
  self.use_trivialization = use_trivialization
  -- exp and the Cayley map have no inverse here
  if not use_trivialization and map ~= "householder" then self.right_inverse = false end
end

-- Orthogonal matrices (..., N, N) of the skew-symmetric ones that a lower triangle gives.
local function of_triangle(x, map)
  local n, k = x:size(-2), x:size(-1)
  x = x:tril()
  if n ~= k then
    local shape = {table.unpack(x.shape)}
    shape[#shape] = n - k
    x = core.cat({x, x:new_zeros(shape)}, -1)
  end
  local a = x - x:transpose(-2, -1)
  if map == "matrix_exp" then return core.matrix_exp(a) end
  local one = core.eye(n, {dtype = a.dtype, device = a.device})
  return core.linalg_solve(one - a * 0.5, one + a * 0.5)
end

-- Factors of the columns, (..., 1, K): the signs of the diagonal. `whole`: the stored numbers
-- without their fractions, as PyTorch has it; they get no gradient, and so stay 1 or -1.
local function column_signs(x, whole)
  local d = x:diagonal(0, -2, -1)
  return (whole and d:detach():trunc() or d:sign()):unsqueeze(-2)
end

-- Q of A = Q R where R's diagonal is positive.
local function orthogonalized(a)
  local x, tau = core.geqrf(a)
  return core.linalg_householder_product(x, tau) * column_signs(x)
end

function Orthogonal:forward(x)
  local transposed = x:size(-2) < x:size(-1)
  if transposed then x = x:transpose(-2, -1) end
  local k = x:size(-1)
  local q
  if self.orthogonal_map == "householder" then
    local a = x:tril(-1)
    local tau = 2 / (1 + (a * a):sum(-2))
    q = core.linalg_householder_product(a, tau) * column_signs(x, true)
  else
    q = of_triangle(x, self.orthogonal_map):narrow(-1, 1, k)
  end
  if self.base then q = self.base:matmul(q) end
  return transposed and q:transpose(-2, -1) or q
end

-- Whether the columns are orthonormal, within rounding.
local function is_orthogonal(q)
  local k = q:size(-1)
  local one = core.eye(k, {dtype = q.dtype, device = q.device})
  local eps = 10 * k * core.finfo(q.dtype).eps
  return core.allclose(q:transpose(-2, -1):matmul(q), one:expand_as(q:narrow(-2, 1, k)),
    {atol = eps})
end

-- The reflectors whose product the matrix is, with the signs on the diagonal.
local function reflectors(q, transposed)
  local a, tau = core.geqrf(q)
  local d = a:diagonal(0, -2, -1)
  d:copy_(d:sign() * core.where(tau:eq(0), -1.0, 1.0))
  return transposed and a:transpose(-2, -1) or a
end

-- The tensor stored for a value: minus the identity, of which the maps make their fixed point, and
-- the value (a base of the whole space, where it is none) in `base`.
function Orthogonal:right_inverse(value)
  if tostring(value.shape) ~= tostring(self.shape) then
    caller.raise("orthogonal: a value is %s, wanted %s", tostring(value.shape),
      tostring(self.shape))
  end
  local transposed = value:size(-2) < value:size(-1)
  local q = transposed and value:transpose(-2, -1) or value
  if not self.use_trivialization then return reflectors(q, transposed) end
  local n, k = q:size(-2), q:size(-1)
  if n ~= k then
    local shape = {table.unpack(q.shape)}
    shape[#shape] = n - k
    local more = core.randn(shape, {dtype = q.dtype, device = q.device})
    q = orthogonalized(core.cat({q, more}, -1))
  else
    q = is_orthogonal(q) and q:clone() or orthogonalized(q)
  end
  self:register_buffer("base", core.keep(q:detach():clone()))
  local stored = core.zeros_like(value)
  stored:diagonal(0, -2, -1):fill_(-1)
  return stored
end

local bind_orthogonal = options.signature("orthogonal", [[module: module,
  name: string = 'weight', orthogonal_map?: 'matrix_exp'|'cayley'|'householder', *,
  use_trivialization: boolean = true]])

--- The module's tensor `name` (..., M, N) becomes one with orthonormal columns, or rows where
--- M < N. orthogonal_map: "matrix_exp" (of square ones by default), "cayley" or "householder".
--- use_trivialization: the map starts at the buffer `base`, the tensor as it is, made orthogonal.
--- Returns the module.
function parametrizations.orthogonal(...)
  local o = bind_orthogonal(...)
  local weight = tensor_of("orthogonal", o.module, o.name)
  if weight:dim() < 2 then
    caller.raise("orthogonal: '%s' is %s, wanted 2 or more dims", o.name, tostring(weight.shape))
  end
  local map = o.orthogonal_map or weight:size(-1) == weight:size(-2) and "matrix_exp"
    or "householder"
  return parametrize.register_parametrization(o.module, o.name,
    Orthogonal(weight, map, o.use_trivialization), {unsafe = true})
end

return parametrizations
