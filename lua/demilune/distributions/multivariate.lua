-- Distributions of vectors: MultivariateNormal, and Independent, which counts dims of a batch as
-- one event.

local core = require "demilune.core"
local caller = require "demilune.caller"
local constraints = require "demilune.distributions.constraints"
local discrete = require "demilune.distributions.discrete"
local distribution = require "demilune.distributions.distribution"

local class, join, part = distribution.class, distribution.join, distribution.part
local sum_last = distribution.sum_last
local LOG_2PI = math.log(2 * math.pi)

local multivariate = {}

-- The lower L with L L^T = P^-1: reversing rows and columns turns P's factor into an upper one.
local function inverse_factor(precision)
  local reversed = core.linalg_cholesky(precision:flip{-2, -1})
  local upper = reversed:flip{-2, -1}:transpose(-2, -1)
  local n = precision.shape[#precision.shape]
  local eye = core.eye(n, {dtype = precision.dtype, device = precision.device})
  return core.linalg_solve_triangular(upper, eye:expand(precision.shape), {upper = false})
end

-- |L^-1 d|^2 of vectors d (..., n); one L for all is a solve of one matrix.
local function distance(factor, d)
  local n = d.shape[#d.shape]
  if #factor.shape == 2 then
    local solved = core.linalg_solve_triangular(factor, d:reshape(-1, n):t(), {upper = false})
    return solved:square():sum(1):reshape(part(d.shape, 1, #d.shape - 1))
  end
  local all = factor:expand(join(d.shape, {n}))
  return core.linalg_solve_triangular(all, d:unsqueeze(-1), {upper = false}):square():sum({-2, -1})
end

local function half_log_det(factor) return factor:diagonal(0, -2, -1):log():sum(-1) end

local KINDS = {"covariance_matrix", "precision_matrix", "scale_tril"}

--- MultivariateNormal(loc, covariance_matrix, {precision_matrix, scale_tril, validate_args}): one
--- of the three is given; scale_tril, the lower Cholesky factor of the covariance, is fastest.
---@param loc table tensor batch_shape + {n}
---@param covariance_matrix? table tensor batch_shape + {n, n}
---@param precision_matrix? table its inverse
---@param scale_tril? table lower triangular, with a diagonal above 0
multivariate.MultivariateNormal = class{
  name = "MultivariateNormal",
  arguments = "loc, covariance_matrix?, precision_matrix?, scale_tril?",
  parameters = {loc = constraints.real_vector, covariance_matrix = constraints.positive_definite,
    precision_matrix = constraints.positive_definite, scale_tril = constraints.lower_cholesky},
  init = function(self)
    local given, n = {}, self.loc.shape[#self.loc.shape]
    for _, kind in ipairs(KINDS) do
      if rawget(self, kind) then given[#given + 1] = kind end
    end
    if #given ~= 1 then
      caller.raise("MultivariateNormal: %d of %s given, wanted one", #given,
        table.concat(KINDS, ", "))
    end
    local matrix = self[given[1]]
    local rows, columns = matrix.shape[#matrix.shape - 1], matrix.shape[#matrix.shape]
    if rows ~= n or columns ~= n then
      caller.raise("MultivariateNormal: %s has shape %s, wanted {..., %d, %d} for a loc of %s",
        given[1], distribution.shown(matrix.shape), n, n, distribution.shown(self.loc.shape))
    end
    self.event_shape = {n}
    self._factor = given[1] == "scale_tril" and matrix
      or given[1] == "precision_matrix" and inverse_factor(matrix)
      or core.linalg_cholesky(matrix)
  end,
  expand = function(self, shape)
    local n = self.event_shape[1]
    return self.class(self.loc:expand(join(shape, {n})),
      {scale_tril = self._factor:expand(join(shape, {n, n})), validate_args = false})
  end,
  rsample = function(self, shape)
    local z = distribution.normal(self, shape):unsqueeze(-1)
    return self.loc + self._factor:matmul(z):squeeze(-1)
  end,
  log_prob = function(self, value)
    local n = self.event_shape[1]
    return -0.5 * (n * LOG_2PI + distance(self._factor, value - self.loc))
      - half_log_det(self._factor)
  end,
  entropy = function(self)
    return half_log_det(self._factor) + 0.5 * self.event_shape[1] * (1 + LOG_2PI)
  end,
  properties = {
    support = function() return constraints.real_vector end,
    scale_tril = function(self) return self._factor end,
    covariance_matrix = function(self)
      return self._factor:matmul(self._factor:transpose(-2, -1))
    end,
    precision_matrix = function(self) return self._factor:cholesky_inverse() end,
    mean = function(self) return self.loc end, mode = function(self) return self.loc end,
    variance = function(self) return self._factor:square():sum(-1) end,
  },
}

-- A matrix plus 1 on its diagonal, its Cholesky factor.
local function one_more(matrix)
  local n = matrix.shape[#matrix.shape]
  return core.linalg_cholesky(matrix + core.eye(n, {dtype = matrix.dtype, device = matrix.device}))
end

--- LowRankMultivariateNormal(loc, cov_factor, cov_diag, {validate_args}): a normal distribution of
--- covariance cov_factor cov_factor^T + diag(cov_diag), of which log_prob makes no n x n matrix.
---@param loc table tensor batch_shape + {n}
---@param cov_factor table tensor batch_shape + {n, m}
---@param cov_diag table tensor batch_shape + {n}, more than 0
multivariate.LowRankMultivariateNormal = class{
  name = "LowRankMultivariateNormal", arguments = "loc, cov_factor, cov_diag",
  parameters = {loc = constraints.real_vector, cov_diag = constraints.positive_vector,
    cov_factor = constraints.independent(constraints.real, 2)},
  init = function(self)
    local n, factor = self.loc.shape[#self.loc.shape], self.cov_factor
    if factor.shape[#factor.shape - 1] ~= n or self.cov_diag.shape[#self.cov_diag.shape] ~= n then
      caller.raise("LowRankMultivariateNormal: cov_factor has shape %s and cov_diag %s, wanted " ..
        "{..., %d, m} and {..., %d} for a loc of %s", distribution.shown(factor.shape),
        distribution.shown(self.cov_diag.shape), n, n, distribution.shown(self.loc.shape))
    end
    self.event_shape = {n}
    -- the determinant and the inverse are those of 1 + W^T D^-1 W, an m x m matrix
    self._scaled = factor / self.cov_diag:unsqueeze(-1)
    self._inner = one_more(self._scaled:transpose(-2, -1):matmul(factor))
  end,
  rsample = function(self, shape)
    local factor, samples = self.cov_factor, part(shape, 1, #shape - 1)
    local z = distribution.normal(self, join(samples, {factor.shape[#factor.shape], 1}))
    return self.loc + factor:matmul(z):squeeze(-1)
      + self.cov_diag:sqrt() * distribution.normal(self, shape)
  end,
  log_prob = function(self, value)
    local away = value - self.loc
    local along = away:unsqueeze(-2):matmul(self._scaled):squeeze(-2)
    local square = (away:square() / self.cov_diag):sum(-1) - distance(self._inner, along)
    return -0.5 * (self.event_shape[1] * LOG_2PI + self.cov_diag:log():sum(-1) + square)
      - half_log_det(self._inner)
  end,
  entropy = function(self)
    return half_log_det(self._inner) + 0.5 * self.cov_diag:log():sum(-1)
      + 0.5 * self.event_shape[1] * (1 + LOG_2PI)
  end,
  properties = {
    support = function() return constraints.real_vector end,
    mean = function(self) return self.loc end, mode = function(self) return self.loc end,
    variance = function(self) return self.cov_factor:square():sum(-1) + self.cov_diag end,
    covariance_matrix = function(self)
      return self.cov_factor:matmul(self.cov_factor:transpose(-2, -1))
        + self.cov_diag:diag_embed()
    end,
    precision_matrix = function(self)
      local solved = core.linalg_solve_triangular(self._inner, self._scaled:transpose(-2, -1),
        {upper = false})
      return self.cov_diag:reciprocal():diag_embed() - solved:transpose(-2, -1):matmul(solved)
    end,
    scale_tril = function(self) -- sqrt(D) times the factor of a matrix with no small eigenvalue
      local root = self.cov_diag:sqrt():unsqueeze(-1)
      local scaled = self.cov_factor / root
      return root * one_more(scaled:matmul(scaled:transpose(-2, -1)))
    end,
  },
}

-- A property of the base distribution.
local function of_base(name) return function(self) return self.base_dist[name] end end

--- Independent(base_distribution, reinterpreted_batch_ndims, {validate_args}): the last dims of
--- the base's batch_shape belong to the event, so that log_prob sums over them. Without
--- validate_args values are checked where the base checks them.
---@param base_distribution table
---@param reinterpreted_batch_ndims integer
multivariate.Independent = class{
  name = "Independent",
  arguments = "base_distribution: distribution, reinterpreted_batch_ndims: integer",
  parameters = {},
  init = function(self, o)
    local base, n = o.base_distribution, o.reinterpreted_batch_ndims
    local batch = base.batch_shape
    if n < 0 or n > #batch then
      caller.raise("Independent: reinterpreted_batch_ndims is %d, wanted 0 to %d, the dims of " ..
        "the base's batch_shape", n, #batch)
    end
    self.base_dist, self.reinterpreted_batch_ndims = base, n
    if o.validate_args == nil then self._validate = base._validate end
    self.batch_shape = part(batch, 1, #batch - n)
    self.event_shape = join(part(batch, #batch - n + 1, #batch), base.event_shape)
  end,
  expand = function(self, shape)
    local base, n = self.base_dist, self.reinterpreted_batch_ndims
    local kept = part(base.batch_shape, #base.batch_shape - n + 1, #base.batch_shape)
    return self.class(base:expand(join(shape, kept)), n, {validate_args = self._validate})
  end,
  rsample = function(self, shape)
    local base = self.base_dist
    return (base.class.parts.rsample or base.class.parts.draw)(base, shape)
  end,
  log_prob = function(self, value)
    return sum_last(self.base_dist:log_prob(value), self.reinterpreted_batch_ndims)
  end,
  entropy = function(self)
    return sum_last(self.base_dist:entropy(), self.reinterpreted_batch_ndims)
  end,
  properties = {
    has_rsample = of_base "has_rsample", mean = of_base "mean", mode = of_base "mode",
    variance = of_base "variance", stddev = of_base "stddev",
    support = function(self)
      return constraints.independent(self.base_dist.support, self.reinterpreted_batch_ndims)
    end,
  },
}

-- The mean over the components of what each has, by how often it is chosen.
local function mixed(self, each)
  local probs = self.mixture_distribution.probs
  local dims = #self.event_shape
  return (each * probs:reshape(join(probs.shape, distribution.ones(dims)))):sum(-1 - dims)
end

--- MixtureSameFamily(mixture_distribution, component_distribution, {validate_args}): numbers of one
--- of several components, which are the last dim of their batch_shape; a Categorical says how often
--- each is chosen.
---@param mixture_distribution table a Categorical
---@param component_distribution table
multivariate.MixtureSameFamily = class{
  name = "MixtureSameFamily",
  arguments = "mixture_distribution: distribution, component_distribution: distribution",
  parameters = {},
  init = function(self, o)
    local mixture, base = o.mixture_distribution, o.component_distribution
    local batch = base.batch_shape
    if mixture.class ~= discrete.Categorical then
      caller.raise("MixtureSameFamily: mixture_distribution is a %s, wanted a Categorical",
        mixture.class.name)
    end
    local n = mixture.probs.shape[#mixture.probs.shape]
    local given = join(mixture.batch_shape, {n})
    if batch[#batch] ~= n or not distribution.broadcast(given, batch) then
      caller.raise("MixtureSameFamily: the mixture is of batch_shape and choices %s, which does " ..
        "not broadcast to the components' batch_shape %s", distribution.shown(given),
        distribution.shown(batch))
    end
    self.mixture_distribution, self.base_dist = mixture, base
    self.batch_shape, self.event_shape = part(batch, 1, #batch - 1), base.event_shape
    if o.validate_args == nil then self._validate = base._validate end
  end,
  expand = function(self, shape)
    local base = self.base_dist
    return self.class(self.mixture_distribution:expand(shape),
      base:expand(join(shape, {base.batch_shape[#base.batch_shape]})),
      {validate_args = self._validate})
  end,
  draw = function(self, shape)
    local dim = -1 - #self.event_shape
    local samples = part(shape, 1, #shape - #self.batch_shape - #self.event_shape)
    local chosen = self.mixture_distribution:expand(self.batch_shape):sample(samples)
    local x = self.base_dist:sample(samples)
    local one = {table.unpack(x.shape)}
    one[#one + 1 + dim] = 1
    return x:gather(chosen:reshape(join(chosen.shape, distribution.ones(-dim))):expand(one), dim)
      :squeeze(dim)
  end,
  log_prob = function(self, value)
    local each = self.base_dist:log_prob(value:unsqueeze(-1 - #self.event_shape))
    return (each + self.mixture_distribution.logits):logsumexp(-1)
  end,
  cdf = function(self, value)
    return (self.base_dist:cdf(value:unsqueeze(-1)) * self.mixture_distribution.probs):sum(-1)
  end,
  properties = {
    component_distribution = function(self) return self.base_dist end,
    support = function(self) return self.base_dist.support end,
    mean = function(self) return mixed(self, self.base_dist.mean) end,
    variance = function(self)
      local mean = self.base_dist.mean
      local off = mean - mixed(self, mean):unsqueeze(-1 - #self.event_shape)
      return mixed(self, self.base_dist.variance + off:square())
    end,
  },
}

multivariate.distance, multivariate.half_log_det = distance, half_log_det

return multivariate
