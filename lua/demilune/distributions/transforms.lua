-- distributions.transforms: changes of variables with known volumes, with PyTorch's names, for
-- TransformedDistribution. t(x) -> y, t.inv(y) -> x, t:log_abs_det_jacobian(x, y); t.domain and
-- t.codomain are constraints, whose event_dim counts the dims that make one value, t.sign is 1
-- where y grows with x, -1 where it falls, and t.bijective tells whether t.inv undoes t.
-- t:forward_shape(shape) and t:inverse_shape(shape) are shapes of y and x. Transforms of the same
-- kind and numbers are equal (==).
--
-- {cache_size = 1} keeps the last x and y, so that t.inv(y) is that x itself: inverses that
-- rounding spoils, such as that of tanh at 1, are exact for the last number drawn.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local constraints = require "demilune.distributions.constraints"
local distribution = require "demilune.distributions.distribution"

local broadcast, join, part = distribution.broadcast, distribution.join, distribution.part
local shown, sum_last = distribution.shown, distribution.sum_last

local transforms = {}

-- ---- the base of all transforms ----

-- Fields that are computed when they are read, unless the kind has its own, and functions.
local PROPERTIES, METHODS = {}, {}

local function is_transform(v)
  local kind = type(v) == "table" and getmetatable(v)
  return type(kind) == "table" and rawget(kind, "methods") == METHODS
end
options.kind("transform", is_transform, "a transform", true)
options.kind("transforms", function(v)
  if type(v) ~= "table" or #v == 0 and next(v) ~= nil then return false end
  for _, t in ipairs(v) do
    if not is_transform(t) then return false end
  end
  return true
end, "a list of transforms")

--- Whether v is a transform.
---@param v any
function transforms.is_transform(v) return is_transform(v) end

local function look_up(self, key)
  local kind = getmetatable(self)
  local property = kind.fields[key]
  if property == nil then property = PROPERTIES[key] end
  if type(property) == "function" then property = property(self) end
  if property == nil then property = METHODS[key] end
  if property ~= nil then return property end
  local near = options.nearest(tostring(key), METHODS)
  caller.raise("%s has no '%s'%s", kind.name, tostring(key),
    near and near ~= key and ("; did you mean '%s'?"):format(near) or "")
end

-- y of x ("call"), or x of y ("inverse"): the last one again, where it is kept.
local OTHER = {call = "inverse", inverse = "call"}
local function mapped(self, value, which)
  local kind, last = getmetatable(self), rawget(self, "last")
  if not core.is_tensor(value) then
    caller.raise("%s: the value is a %s, wanted a tensor", kind.name, type(value))
  end
  if last and rawequal(last[which], value) then return last[OTHER[which]] end
  local result = kind[which](self, value)
  if self.cache_size == 1 then self.last = {[which] = value, [OTHER[which]] = result} end
  return result
end
local function apply(self, x) return mapped(self, x, "call") end

local function same(v, w)
  if core.is_tensor(v) and core.is_tensor(w) then return core.equal(v, w) end
  if type(v) ~= "table" or type(w) ~= "table" or is_transform(v) then return v == w end
  local equal = #v == #w
  for i = 1, equal and #v or 0 do equal = equal and same(v[i], w[i]) end
  return equal
end

-- Whether two have the same kind and arguments.
local function equal(a, b)
  local kind = getmetatable(a)
  if kind ~= getmetatable(b) then return false end
  for _, name in ipairs(kind.arguments) do
    if not same(rawget(a, name), rawget(b, name)) then return false end
  end
  return true
end

-- Makes a kind of transforms; def has
--
--   1, 2            name, and its arguments as options.signature has them, which become fields
--   call, inverse   function(self, x) -> y, function(self, y) -> x
--   log_det         function(self, x, y), where it is bijective
--   init            optional, function(self): checks the arguments
--   shape           optional, function(self, shape, which): that of y (which is "call"), or of x
--   fields          domain, codomain, sign: values, or functions of self that compute them
local function define(def)
  local name, arguments = def[1], def[2]
  def.name, def.methods, def.arguments = name, METHODS, {}
  def.__name, def.__index, def.__call, def.__eq = "demilune." .. name, look_up, apply, equal
  def.__tostring = function() return name .. "()" end
  for argument in arguments:gmatch "([%w_]+):" do def.arguments[#def.arguments + 1] = argument end
  local bind = options.signature(name,
    (arguments == "" and "" or arguments .. ", ") .. "cache_size: integer = 0")
  return function(...)
    local self = setmetatable(bind(...), def)
    if self.cache_size ~= 0 and self.cache_size ~= 1 then
      caller.raise("%s: cache_size is %d, wanted 0 or 1", name, self.cache_size)
    end
    if def.init then def.init(self) end
    return self
  end
end

function PROPERTIES:bijective() return getmetatable(self).log_det ~= nil end
function PROPERTIES:event_dim()
  local dim = self.domain.event_dim
  if dim == self.codomain.event_dim then return dim end
  caller.raise("%s: event_dim is that of domain (%d) or of codomain (%d)", getmetatable(self).name,
    dim, self.codomain.event_dim)
end

--- Log of the size of dy/dx, or of its determinant where a value has dims.
---@param x table tensor
---@param y table t(x)
---@return table tensor of x's shape without the dims of a value
function METHODS:log_abs_det_jacobian(x, y)
  local kind = getmetatable(self)
  if not kind.log_det then
    caller.raise("%s:log_abs_det_jacobian: it is not bijective", kind.name)
  end
  return kind.log_det(self, x, y)
end

-- Arguments that are tensors broadcast with the value.
local function shape_of(self, shape, which)
  local kind = getmetatable(self)
  if kind.shape then return kind.shape(self, shape, which) end
  for _, name in ipairs(kind.arguments) do
    local p = rawget(self, name)
    if core.is_tensor(p) then
      local wider = broadcast(shape, p.shape)
      if not wider then
        caller.raise("%s: %s has shape %s, which does not broadcast with %s", kind.name, name,
          shown(p.shape), shown(shape))
      end
      shape = wider
    end
  end
  return shape
end

--- The shape of t(x).
---@param shape integer[] that of x
function METHODS:forward_shape(shape) return shape_of(self, shape, "call") end

--- The shape of t.inv(y).
---@param shape integer[] that of y
function METHODS:inverse_shape(shape) return shape_of(self, shape, "inverse") end

local inverse = define{"Inverse", "of: transform",
  call = function(self, y) return mapped(self.of, y, "inverse") end,
  inverse = function(self, x) return self.of(x) end,
  log_det = function(self, y, x) return -self.of:log_abs_det_jacobian(x, y) end,
  shape = function(self, shape, which) return shape_of(self.of, shape, OTHER[which]) end,
  fields = {
    domain = function(self) return self.of.codomain end,
    codomain = function(self) return self.of.domain end,
    bijective = function(self) return self.of.bijective end,
    sign = function(self) return self.of.sign end, inv = function(self) return self.of end,
  },
}
function PROPERTIES:inv()
  self.inv = inverse(self)
  return self.inv
end

-- ---- numbers, one by one ----

local function sign_of(v)
  if core.is_tensor(v) then return v:sign() end
  return v > 0 and 1 or v < 0 and -1 or 0
end

--- ExpTransform({cache_size}): y = e^x.
transforms.ExpTransform = define{"ExpTransform", "",
  call = function(_, x) return x:exp() end,
  inverse = function(_, y) return y:log() end,
  log_det = function(_, x) return x end,
  fields = {domain = constraints.real, codomain = constraints.positive, sign = 1},
}

--- AffineTransform(loc, scale, event_dim = 0, {cache_size}): y = loc + scale x; the last event_dim
--- dims make one value.
---@param loc any tensor or number
---@param scale any tensor or number, not 0
---@param event_dim? integer
transforms.AffineTransform = define{"AffineTransform",
  "loc: tensor|number, scale: tensor|number, event_dim: integer = 0",
  call = function(self, x) return self.loc + self.scale * x end,
  inverse = function(self, y) return (y - self.loc) / self.scale end,
  log_det = function(self, x)
    local scale = self.scale
    if not core.is_tensor(scale) then scale = core.full_like(x, scale) end
    return sum_last(scale:abs():log():expand(broadcast(x.shape, scale.shape)), self.event_dim)
  end,
  fields = {
    domain = function(self) return constraints.independent(constraints.real, self.event_dim) end,
    codomain = function(self) return self.domain end,
    sign = function(self) return sign_of(self.scale) end,
  },
}

-- Below 1 and above 0, which have no logarithm or logit.
local function inside(y)
  local dtype = dtypes.of[y.dtype]
  return y:clamp(dtype.tiny, 1 - dtype.eps)
end

--- SigmoidTransform({cache_size}): y = 1 / (1 + e^-x).
transforms.SigmoidTransform = define{"SigmoidTransform", "",
  call = function(_, x) return inside(x:sigmoid()) end,
  inverse = function(_, y)
    y = inside(y)
    return y:log() - (-y):log1p()
  end,
  log_det = function(_, x) return -(-x):softplus() - x:softplus() end,
  fields = {domain = constraints.real, codomain = constraints.unit_interval, sign = 1},
}

--- TanhTransform({cache_size}): y = tanh(x); with cache_size = 1 a number drawn that rounds to 1
--- has a log_prob.
transforms.TanhTransform = define{"TanhTransform", "",
  call = function(_, x) return x:tanh() end,
  inverse = function(_, y) return y:atanh() end,
  -- log(1 - tanh(x)^2), without the rounding of tanh near 1
  log_det = function(_, x) return 2 * (math.log(2) - x - (-2 * x):softplus()) end,
  fields = {domain = constraints.real, codomain = constraints.interval(-1, 1), sign = 1},
}

--- PowerTransform(exponent, {cache_size}): y = x ^ exponent, of numbers above 0.
---@param exponent any tensor or number, not 0
transforms.PowerTransform = define{"PowerTransform", "exponent: tensor|number",
  call = function(self, x) return x ^ self.exponent end,
  inverse = function(self, y) return y ^ (1 / self.exponent) end,
  log_det = function(self, x, y) return (self.exponent * y / x):abs():log() end,
  fields = {domain = constraints.positive, codomain = constraints.positive,
    sign = function(self) return sign_of(self.exponent) end},
}

--- AbsTransform({cache_size}): y = |x|, whose inverse gives y.
transforms.AbsTransform = define{"AbsTransform", "",
  call = function(_, x) return x:abs() end,
  inverse = function(_, y) return y end,
  fields = {domain = constraints.real, codomain = constraints.positive},
}

--- SoftplusTransform({cache_size}): y = log(1 + e^x).
transforms.SoftplusTransform = define{"SoftplusTransform", "",
  call = function(_, x) return x:softplus() end,
  inverse = function(_, y) return (-(-y):expm1()):log() + y end,
  log_det = function(_, x) return -(-x):softplus() end,
  fields = {domain = constraints.real, codomain = constraints.positive, sign = 1},
}

-- ---- transforms of transforms ----

-- The constraint of the first part on this side, with the dims that any of the parts needs.
local function side(parts, first, last, this, other)
  if #parts == 0 then return constraints.real end
  local dim = parts[last][other].event_dim
  for i = last, first, first < last and -1 or 1 do
    local here = parts[i][this].event_dim
    dim = math.max(dim + here - parts[i][other].event_dim, here)
  end
  local constraint = parts[first][this]
  return constraints.independent(constraint, dim - constraint.event_dim)
end

--- ComposeTransform(parts, {cache_size}): the first of them, then the second, and so on.
---@param parts table[] transforms; none change nothing
transforms.ComposeTransform = define{"ComposeTransform", "parts: transforms",
  call = function(self, x)
    for _, t in ipairs(self.parts) do x = t(x) end
    return x
  end,
  inverse = function(self, y)
    for i = #self.parts, 1, -1 do y = self.parts[i].inv(y) end
    return y
  end,
  log_det = function(self, x, y)
    local dim, sum = self.domain.event_dim, nil
    for i, t in ipairs(self.parts) do
      local to = i < #self.parts and t(x) or y
      local term = sum_last(t:log_abs_det_jacobian(x, to), dim - t.domain.event_dim)
      sum, x, dim = sum and sum + term or term, to, dim + t.codomain.event_dim - t.domain.event_dim
    end
    return sum or core.zeros_like(x)
  end,
  shape = function(self, shape, which)
    local n = #self.parts
    for i = 1, n do
      shape = shape_of(self.parts[which == "call" and i or n + 1 - i], shape, which)
    end
    return shape
  end,
  fields = {
    domain = function(self) return side(self.parts, 1, #self.parts, "domain", "codomain") end,
    codomain = function(self) return side(self.parts, #self.parts, 1, "codomain", "domain") end,
    inv = function(self)
      if self.cache_size == 1 then return PROPERTIES.inv(self) end
      local parts, n = {}, #self.parts
      for i, t in ipairs(self.parts) do parts[n + 1 - i] = t.inv end
      self.inv = transforms.ComposeTransform(parts)
      self.inv.inv = self
      return self.inv
    end,
    bijective = function(self)
      for _, t in ipairs(self.parts) do
        if not t.bijective then return false end
      end
      return true
    end,
    sign = function(self)
      local sign = 1
      for _, t in ipairs(self.parts) do sign = sign * t.sign end
      return sign
    end,
  },
}

--- IndependentTransform(base_transform, reinterpreted_batch_ndims, {cache_size}): the same, where
--- that many further dims make one value.
---@param base_transform table
---@param reinterpreted_batch_ndims integer
transforms.IndependentTransform = define{"IndependentTransform",
  "base_transform: transform, reinterpreted_batch_ndims: integer",
  call = function(self, x) return self.base_transform(x) end,
  inverse = function(self, y) return self.base_transform.inv(y) end,
  log_det = function(self, x, y)
    return sum_last(self.base_transform:log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)
  end,
  shape = function(self, shape, which) return shape_of(self.base_transform, shape, which) end,
  fields = {
    domain = function(self)
      return constraints.independent(self.base_transform.domain, self.reinterpreted_batch_ndims)
    end,
    codomain = function(self)
      return constraints.independent(self.base_transform.codomain, self.reinterpreted_batch_ndims)
    end,
    bijective = function(self) return self.base_transform.bijective end,
    sign = function(self) return self.base_transform.sign end,
  },
}

-- ---- vectors and matrices ----

-- The shape of y or x, whose last dims are `from`'s, with those of `to`.
local function reshaped(shape, from, to)
  local n = #shape - #from
  if n < 0 or shown(part(shape, n + 1, #shape)) ~= shown(from) then
    caller.raise("ReshapeTransform: the value has shape %s, wanted one that ends with %s",
      shown(shape), shown(from))
  end
  return join(part(shape, 1, n), to)
end
local function real_of(name)
  return function(self) return constraints.independent(constraints.real, #self[name]) end
end

--- ReshapeTransform(in_shape, out_shape, {cache_size}): another shape of a value's dims.
---@param in_shape integer[]
---@param out_shape integer[] of as many elements
transforms.ReshapeTransform = define{"ReshapeTransform", "in_shape: size, out_shape: size",
  init = function(self)
    local count = {}
    for _, name in ipairs{"in_shape", "out_shape"} do
      if type(self[name]) == "number" then self[name] = {self[name]} end
      count[name] = 1
      for _, n in ipairs(self[name]) do count[name] = count[name] * n end
    end
    if count.in_shape ~= count.out_shape then
      caller.raise("ReshapeTransform: in_shape %s has %d elements, out_shape %s has %d",
        shown(self.in_shape), count.in_shape, shown(self.out_shape), count.out_shape)
    end
  end,
  call = function(self, x) return x:reshape(reshaped(x.shape, self.in_shape, self.out_shape)) end,
  inverse = function(self, y)
    return y:reshape(reshaped(y.shape, self.out_shape, self.in_shape))
  end,
  log_det = function(self, x)
    return x:new_zeros(reshaped(x.shape, self.in_shape, {}))
  end,
  shape = function(self, shape, which)
    if which == "call" then return reshaped(shape, self.in_shape, self.out_shape) end
    return reshaped(shape, self.out_shape, self.in_shape)
  end,
  fields = {domain = real_of "in_shape", codomain = real_of "out_shape"},
}

--- SoftmaxTransform({cache_size}): vectors to shares that sum to 1; its inverse, the logarithm,
--- gives one of the vectors of these shares.
transforms.SoftmaxTransform = define{"SoftmaxTransform", "",
  call = function(_, x) return x:softmax(-1) end,
  inverse = function(_, y) return y:log() end,
  fields = {domain = constraints.real_vector, codomain = constraints.simplex},
}

-- log n, ..., log 2, log 1: with these offsets a vector of zeros has equal shares.
local function offsets(n, like)
  return (n + 1 - core.arange(1, n, {dtype = like.dtype, device = like.device})):log()
end
local function size_of(x) return x.shape[#x.shape] end

--- StickBreakingTransform({cache_size}): vectors of n numbers to n + 1 shares that sum to 1; each
--- number says which share of what is left is taken.
transforms.StickBreakingTransform = define{"StickBreakingTransform", "",
  call = function(_, x)
    local z = inside((x - offsets(size_of(x), x)):sigmoid())
    return core.pad(z, {0, 1}, {value = 1}) * core.pad((1 - z):cumprod(-1), {1, 0}, {value = 1})
  end,
  inverse = function(_, y)
    local n = size_of(y) - 1
    local taken = y:narrow(-1, 1, n)
    local left = (1 - taken:cumsum(-1)):clamp{min = dtypes.of[y.dtype].tiny}
    return taken:log() - left:log() + offsets(n, y)
  end,
  log_det = function(_, x, y)
    local n = size_of(x)
    x = x - offsets(n, x)
    return (-x + x:logsigmoid() + y:narrow(-1, 1, n):log()):sum(-1)
  end,
  shape = function(_, shape, which)
    if #shape < 1 then
      caller.raise("StickBreakingTransform: the value has shape {}, wanted a vector")
    end
    return join(part(shape, 1, #shape - 1), {shape[#shape] + (which == "call" and 1 or -1)})
  end,
  fields = {domain = constraints.real_vector, codomain = constraints.simplex},
}

-- A lower triangular matrix whose diagonal is fn's of x's.
local function with_diagonal(x, fn)
  local diagonal = x:diagonal(0, -2, -1)
  return x:tril(-1) + diagonal[fn](diagonal):diag_embed()
end

--- LowerCholeskyTransform({cache_size}): the lower triangle of a matrix, with e^ of its diagonal.
transforms.LowerCholeskyTransform = define{"LowerCholeskyTransform", "",
  call = function(_, x) return with_diagonal(x, "exp") end,
  inverse = function(_, y) return with_diagonal(y, "log") end,
  fields = {domain = constraints.independent(constraints.real, 2),
    codomain = constraints.lower_cholesky},
}

return transforms
