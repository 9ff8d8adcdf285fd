-- Distributions of real numbers that have their numbers from uniform or normal ones by a formula.

local core = require "demilune.core"
local dtypes = require "demilune.dtypes"
local constraints = require "demilune.distributions.constraints"
local distribution = require "demilune.distributions.distribution"

local class, uniform, normal = distribution.class, distribution.uniform, distribution.normal
local HALF_LOG_2PI, LOG_2 = 0.5 * math.log(2 * math.pi), math.log(2)

local continuous = {}

local function field(name) return function(self) return self[name] end end
local function always(value) return function() return value end end

local LOC_SCALE = {arguments = "loc, scale",
  parameters = {loc = constraints.real, scale = constraints.positive}}
local SCALE = {arguments = "scale", parameters = {scale = constraints.positive}}

-- A class of these parameters.
local function define(parameters, def)
  def.arguments, def.parameters = parameters.arguments, parameters.parameters
  return class(def)
end

-- ---- Normal and distributions made of it ----

local function normal_log_prob(loc, scale, value)
  return -((value - loc):square() / (2 * scale:square())) - scale:log() - HALF_LOG_2PI
end
local function normal_cdf(loc, scale, value)
  return 0.5 * (1 + ((value - loc) / (scale * math.sqrt(2))):erf())
end
local function normal_icdf(loc, scale, value)
  return loc + scale * (2 * value - 1):erfinv() * math.sqrt(2)
end
local function normal_entropy(scale) return scale:log() + (0.5 + HALF_LOG_2PI) end

--- Normal(loc, scale, {validate_args}): mean and standard deviation.
---@param loc any tensor or number
---@param scale any tensor or number, more than 0
continuous.Normal = define(LOC_SCALE, {
  name = "Normal",
  rsample = function(self, shape) return self.loc + self.scale * normal(self, shape) end,
  log_prob = function(self, value) return normal_log_prob(self.loc, self.scale, value) end,
  cdf = function(self, value) return normal_cdf(self.loc, self.scale, value) end,
  icdf = function(self, value) return normal_icdf(self.loc, self.scale, value) end,
  entropy = function(self) return normal_entropy(self.scale) end,
  properties = {
    support = always(constraints.real), mean = field "loc", mode = field "loc",
    stddev = field "scale", variance = function(self) return self.scale:square() end,
  },
})

--- LogNormal(loc, scale, {validate_args}): numbers whose logarithm is normal.
---@param loc any mean of the logarithm
---@param scale any standard deviation of the logarithm
continuous.LogNormal = define(LOC_SCALE, {
  name = "LogNormal",
  rsample = function(self, shape) return (self.loc + self.scale * normal(self, shape)):exp() end,
  log_prob = function(self, value)
    local log = value:log()
    return normal_log_prob(self.loc, self.scale, log) - log
  end,
  cdf = function(self, value) return normal_cdf(self.loc, self.scale, value:log()) end,
  icdf = function(self, value) return normal_icdf(self.loc, self.scale, value):exp() end,
  entropy = function(self) return normal_entropy(self.scale) + self.loc end,
  properties = {
    support = always(constraints.positive),
    mean = function(self) return (self.loc + self.scale:square() / 2):exp() end,
    mode = function(self) return (self.loc - self.scale:square()):exp() end,
    variance = function(self)
      local square = self.scale:square()
      return square:expm1() * (2 * self.loc + square):exp()
    end,
  },
})

--- HalfNormal(scale, {validate_args}): absolute values of normal numbers of mean 0.
---@param scale any standard deviation of those
continuous.HalfNormal = define(SCALE, {
  name = "HalfNormal",
  rsample = function(self, shape) return (self.scale * normal(self, shape)):abs() end,
  log_prob = function(self, value)
    local log_prob = normal_log_prob(0, self.scale, value) + LOG_2
    return core.where(value:ge(0), log_prob, -math.huge)
  end,
  cdf = function(self, value) return 2 * normal_cdf(0, self.scale, value) - 1 end,
  icdf = function(self, value) return normal_icdf(0, self.scale, (value + 1) / 2) end,
  entropy = function(self) return normal_entropy(self.scale) - LOG_2 end,
  properties = {
    support = always(constraints.nonnegative),
    mean = function(self) return self.scale * math.sqrt(2 / math.pi) end,
    mode = function(self) return core.zeros_like(self.scale) end,
    variance = function(self) return self.scale:square() * (1 - 2 / math.pi) end,
  },
})

-- ---- Laplace, Cauchy ----

--- Laplace(loc, scale, {validate_args}): the density falls as e^-(|x - loc| / scale).
---@param loc any
---@param scale any
continuous.Laplace = define(LOC_SCALE, {
  name = "Laplace",
  rsample = function(self, shape)
    local eps = dtypes.of[self.loc.dtype].eps
    local u = uniform(self, shape) * (2 - eps) - (1 - eps) -- above -1, and below 1
    return self.loc - self.scale * u:sign() * (-u:abs()):log1p()
  end,
  log_prob = function(self, value)
    return -(2 * self.scale):log() - (value - self.loc):abs() / self.scale
  end,
  cdf = function(self, value)
    local away = value - self.loc
    return 0.5 - 0.5 * away:sign() * (-away:abs() / self.scale):expm1()
  end,
  icdf = function(self, value)
    local away = value - 0.5
    return self.loc - self.scale * away:sign() * (-2 * away:abs()):log1p()
  end,
  entropy = function(self) return 1 + (2 * self.scale):log() end,
  properties = {
    support = always(constraints.real), mean = field "loc", mode = field "loc",
    variance = function(self) return 2 * self.scale:square() end,
    stddev = function(self) return math.sqrt(2) * self.scale end,
  },
})

local function filled(value)
  return function(self) return core.full_like(self.loc, value) end
end

--- Cauchy(loc, scale, {validate_args}): median and half width at half height; there is no mean.
---@param loc any
---@param scale any
continuous.Cauchy = define(LOC_SCALE, {
  name = "Cauchy",
  rsample = function(self, shape)
    return self.loc + self.scale * (math.pi * (uniform(self, shape) - 0.5)):tan()
  end,
  log_prob = function(self, value)
    return -math.log(math.pi) - self.scale:log()
      - ((value - self.loc) / self.scale):square():log1p()
  end,
  cdf = function(self, value)
    return ((value - self.loc) / self.scale):atan() / math.pi + 0.5
  end,
  icdf = function(self, value) return (math.pi * (value - 0.5)):tan() * self.scale + self.loc end,
  entropy = function(self) return math.log(4 * math.pi) + self.scale:log() end,
  properties = {
    support = always(constraints.real), mode = field "loc", mean = filled(0 / 0),
    variance = filled(math.huge),
  },
})

-- ---- Uniform, Exponential ----

--- Uniform(low, high, {validate_args}): numbers of low or more, below high.
---@param low any
---@param high any
continuous.Uniform = class{
  name = "Uniform", arguments = "low, high",
  parameters = {low = constraints.real, high = constraints.real},
  init = function(self)
    if self._validate then
      distribution.check("Uniform", "high - low", self.high - self.low, constraints.positive)
    end
  end,
  rsample = function(self, shape)
    return self.low + uniform(self, shape) * (self.high - self.low)
  end,
  log_prob = function(self, value)
    local inside = self.low:le(value):logical_and(self.high:gt(value))
    return inside:to(value.dtype):log() - (self.high - self.low):log()
  end,
  cdf = function(self, value)
    return ((value - self.low) / (self.high - self.low)):clamp(0, 1)
  end,
  icdf = function(self, value) return value * (self.high - self.low) + self.low end,
  entropy = function(self) return (self.high - self.low):log() end,
  properties = {
    support = function(self) return constraints.interval(self.low, self.high) end,
    mean = function(self) return (self.high + self.low) / 2 end,
    mode = function(self) return self.high * (0 / 0) end,
    stddev = function(self) return (self.high - self.low) / math.sqrt(12) end,
    variance = function(self) return (self.high - self.low):square() / 12 end,
  },
}

--- Exponential(rate, {validate_args}): waiting times of events that come `rate` times a unit.
---@param rate any
continuous.Exponential = class{
  name = "Exponential", arguments = "rate",
  parameters = {rate = constraints.positive},
  rsample = function(self, shape) return -(-uniform(self, shape)):log1p() / self.rate end,
  log_prob = function(self, value) return self.rate:log() - self.rate * value end,
  cdf = function(self, value) return -(-self.rate * value):expm1() end,
  icdf = function(self, value) return -(-value):log1p() / self.rate end,
  entropy = function(self) return 1 - self.rate:log() end,
  properties = {
    support = always(constraints.nonnegative),
    mean = function(self) return self.rate:reciprocal() end,
    mode = function(self) return core.zeros_like(self.rate) end,
    stddev = function(self) return self.rate:reciprocal() end,
    variance = function(self) return self.rate:pow(-2) end,
  },
}

return continuous
