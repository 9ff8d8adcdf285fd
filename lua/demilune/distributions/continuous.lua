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
    local u = uniform(self, shape)
    local eps = dtypes.of[u.dtype].eps
    u = u * (2 - eps) - (1 - eps) -- above -1, and below 1
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

-- ---- HalfCauchy, Gumbel ----

--- HalfCauchy(scale, {validate_args}): absolute values of Cauchy numbers of median 0.
---@param scale any
continuous.HalfCauchy = define(SCALE, {
  name = "HalfCauchy",
  rsample = function(self, shape)
    return (self.scale * (math.pi * (uniform(self, shape) - 0.5)):tan()):abs()
  end,
  log_prob = function(self, value)
    local log_prob = math.log(2 / math.pi) - self.scale:log()
      - (value / self.scale):square():log1p()
    return core.where(value:ge(0), log_prob, -math.huge)
  end,
  cdf = function(self, value) return (value / self.scale):atan() * (2 / math.pi) end,
  icdf = function(self, value) return (math.pi / 2 * value):tan() * self.scale end,
  entropy = function(self) return math.log(2 * math.pi) + self.scale:log() end,
  properties = {
    support = always(constraints.nonnegative),
    mode = function(self) return core.zeros_like(self.scale) end,
    mean = function(self) return core.full_like(self.scale, math.huge) end,
    variance = function(self) return core.full_like(self.scale, math.huge) end,
  },
})

local EULER = 0.57721566490153286061 -- the mean of a standard Gumbel number

--- Gumbel(loc, scale, {validate_args}): largest of many numbers; loc is the most likely one.
---@param loc any
---@param scale any
continuous.Gumbel = define(LOC_SCALE, {
  name = "Gumbel",
  rsample = function(self, shape)
    local u = uniform(self, shape)
    u = u:clamp{min = dtypes.of[u.dtype].tiny}
    return self.loc - self.scale * (-u:log()):log()
  end,
  log_prob = function(self, value)
    local y = (self.loc - value) / self.scale
    return y - y:exp() - self.scale:log()
  end,
  cdf = function(self, value) return (-((self.loc - value) / self.scale):exp()):exp() end,
  icdf = function(self, value) return self.loc - self.scale * (-value:log()):log() end,
  entropy = function(self) return self.scale:log() + (1 + EULER) end,
  properties = {
    support = always(constraints.real), mode = field "loc",
    mean = function(self) return self.loc + self.scale * EULER end,
    stddev = function(self) return self.scale * (math.pi / math.sqrt(6)) end,
    variance = function(self) return self.scale:square() * (math.pi ^ 2 / 6) end,
  },
})

-- ---- Uniform, Exponential, and powers of the latter's ----

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

-- Numbers of rate 1.
local function exponential(self, shape) return -(-uniform(self, shape)):log1p() end

--- Weibull(scale, concentration, {validate_args}): times to failure; with a concentration below 1
--- failures become rarer, above 1 more frequent.
---@param scale any
---@param concentration any
continuous.Weibull = class{
  name = "Weibull", arguments = "scale, concentration",
  parameters = {scale = constraints.positive, concentration = constraints.positive},
  rsample = function(self, shape)
    local x = self.scale * exponential(self, shape) ^ self.concentration:reciprocal()
    return x:clamp{min = dtypes.of[self.scale.dtype].tiny}
  end,
  log_prob = function(self, value)
    local k, log = self.concentration, value:log() - self.scale:log()
    return k:log() - self.scale:log() + (k - 1) * log - (k * log):exp()
  end,
  cdf = function(self, value) return -(-(value / self.scale) ^ self.concentration):expm1() end,
  icdf = function(self, value)
    return self.scale * (-(-value):log1p()) ^ self.concentration:reciprocal()
  end,
  entropy = function(self)
    local k = self.concentration
    return EULER * (1 - k:reciprocal()) + (self.scale / k):log() + 1
  end,
  properties = {
    support = always(constraints.positive),
    mean = function(self)
      return self.scale * (1 + self.concentration:reciprocal()):lgamma():exp()
    end,
    mode = function(self)
      local k = self.concentration
      return self.scale * (1 - k:reciprocal()):clamp{min = 0} ^ k:reciprocal()
    end,
    variance = function(self)
      local one = self.concentration:reciprocal()
      return self.scale:square() * ((1 + 2 * one):lgamma():exp() - (2 * (1 + one):lgamma()):exp())
    end,
  },
}

--- Pareto(scale, alpha, {validate_args}): numbers of scale or more, whose share above x falls as
--- x ^ -alpha.
---@param scale any
---@param alpha any
continuous.Pareto = class{
  name = "Pareto", arguments = "scale, alpha",
  parameters = {scale = constraints.positive, alpha = constraints.positive},
  rsample = function(self, shape)
    return self.scale * (exponential(self, shape) / self.alpha):exp()
  end,
  log_prob = function(self, value)
    local a = self.alpha
    return a:log() + a * self.scale:log() - (a + 1) * value:log()
  end,
  cdf = function(self, value) return 1 - (self.scale / value) ^ self.alpha end,
  icdf = function(self, value) return self.scale * (1 - value) ^ -self.alpha:reciprocal() end,
  entropy = function(self)
    return (self.scale / self.alpha):log() + 1 + self.alpha:reciprocal()
  end,
  properties = {
    support = function(self) return constraints.interval(self.scale, math.huge) end,
    mode = field "scale",
    mean = function(self)
      local a = self.alpha:clamp{min = 1}
      return a * self.scale / (a - 1)
    end,
    variance = function(self)
      local a = self.alpha:clamp{min = 2}
      return self.scale:square() * a / ((a - 1):square() * (a - 2))
    end,
  },
}

-- Mean of the n-th power of Kumaraswamy's numbers.
local function kumaraswamy_moment(self, n)
  local a, b = 1 + n / self.concentration1, self.concentration0
  return b * (a:lgamma() + b:lgamma() - (a + b):lgamma()):exp()
end

--- Kumaraswamy(concentration1, concentration0, {validate_args}): numbers from 0 to 1, much as
--- Beta's, with a cdf that is a formula.
---@param concentration1 any
---@param concentration0 any
continuous.Kumaraswamy = class{
  name = "Kumaraswamy", arguments = "concentration1, concentration0",
  parameters = {concentration1 = constraints.positive, concentration0 = constraints.positive},
  rsample = function(self, shape) return self.class.parts.icdf(self, uniform(self, shape)) end,
  log_prob = function(self, value)
    local a, b = self.concentration1, self.concentration0
    return a:log() + b:log() + (a - 1):xlogy(value) + (b - 1):special_xlog1py(-value ^ a)
  end,
  cdf = function(self, value)
    return -(self.concentration0 * (-value ^ self.concentration1):log1p()):expm1()
  end,
  icdf = function(self, value)
    return (-((-value):log1p() / self.concentration0):expm1()) ^ self.concentration1:reciprocal()
  end,
  entropy = function(self)
    local a, b = self.concentration1, self.concentration0
    return 1 - b:reciprocal() + (1 - a:reciprocal()) * ((b + 1):digamma() + EULER) - a:log()
      - b:log()
  end,
  properties = {
    support = always(constraints.unit_interval),
    mean = function(self) return kumaraswamy_moment(self, 1) end,
    mode = function(self)
      local a, b = self.concentration1, self.concentration0
      local inner = a:ge(1):logical_and(b:ge(1))
      return core.where(inner, ((a - 1) / (a * b - 1)) ^ a:reciprocal(), 0 / 0)
    end,
    variance = function(self)
      return kumaraswamy_moment(self, 2) - kumaraswamy_moment(self, 1):square()
    end,
  },
}

-- Where the concentration is 0, the formula with the limit that is exponential; a concentration
-- that can be divided by.
local function flat(self)
  local k = self.concentration
  local is_flat = k:abs():le(1e-8)
  return is_flat, core.where(is_flat, 1, k)
end
-- Minus the log of the share above a value, z of scale 1.
local function log_above(self, z)
  local is_flat, k = flat(self)
  return core.where(is_flat, z, (k * z):log1p() / k)
end

--- GeneralizedPareto(loc, scale, concentration, {validate_args}): numbers beyond a threshold loc;
--- the tail is Exponential's at concentration 0, Pareto's above, and ends below.
---@param loc any
---@param scale any
---@param concentration any
continuous.GeneralizedPareto = class{
  name = "GeneralizedPareto", arguments = "loc, scale, concentration",
  parameters = {loc = constraints.real, scale = constraints.positive,
    concentration = constraints.real},
  rsample = function(self, shape) return self.class.parts.icdf(self, uniform(self, shape)) end,
  log_prob = function(self, value)
    local z = (value - self.loc) / self.scale
    return -self.scale:log() - core.where(flat(self), z, log_above(self, z)
      * (1 + self.concentration))
  end,
  cdf = function(self, value)
    return -(-log_above(self, (value - self.loc) / self.scale)):expm1()
  end,
  icdf = function(self, value)
    local is_flat, k = flat(self)
    local z = -(-value):log1p()
    return self.loc + self.scale * core.where(is_flat, z, (k * z):expm1() / k)
  end,
  entropy = function(self) return self.scale:log() + self.concentration + 1 end,
  properties = {
    support = function(self)
      local k = self.concentration
      local last = self.loc - self.scale / core.where(k:lt(0), k, 1)
      return constraints.interval(self.loc, core.where(k:lt(0), last, math.huge))
    end,
    mode = field "loc",
    mean = function(self)
      local k = self.concentration
      return core.where(k:lt(1), self.loc + self.scale / (1 - k), 0 / 0)
    end,
    variance = function(self)
      local k = self.concentration
      return core.where(k:lt(0.5), self.scale:square() / ((1 - k):square() * (1 - 2 * k)), 0 / 0)
    end,
  },
}

-- ---- angles ----

--- VonMises(loc, concentration, {validate_args}): angles from -pi to pi about loc; with a large
--- concentration almost Normal(loc, concentration ^ -0.5).
---@param loc any
---@param concentration any
continuous.VonMises = class{
  name = "VonMises", arguments = "loc, concentration",
  parameters = {loc = constraints.real, concentration = constraints.positive},
  -- Best & Fisher 1979: a wrapped Cauchy angle, until it is one below the density
  draw = function(self, shape)
    local k = self.concentration:double():expand(shape)
    local tau = 1 + (1 + 4 * k:square()):sqrt()
    local rho = (tau - (2 * tau):sqrt()) / (2 * k)
    local r = core.where(k:lt(1e-5), k:reciprocal() + k, (1 + rho:square()) / (2 * rho))
    local x, done = core.zeros_like(k), core.zeros_like(k, {dtype = "bool"})
    repeat
      local u = core.rand(distribution.join({3}, shape), {dtype = "float64", device = k.device})
      local z = (math.pi * u[1]):cos()
      local f = ((1 + r * z) / (r + z)):clamp(-1, 1)
      local c = k * (r - f)
      local accepted = (c * (2 - c)):gt(u[2]):logical_or(((c / u[2]):log() + 1 - c):ge(0))
      x = core.where(accepted, (u[3] - 0.5):sign() * f:acos(), x)
      done = done:logical_or(accepted)
    until done:all():item()
    return (x + math.pi + self.loc):remainder(2 * math.pi) - math.pi
  end,
  log_prob = function(self, value)
    local k = self.concentration
    return k * ((value - self.loc):cos() - 1) - math.log(2 * math.pi) - k:special_i0e():log()
  end,
  properties = {
    support = always(constraints.real), mean = field "loc", mode = field "loc",
    variance = function(self) -- of directions: 1 minus the length of their mean
      return 1 - self.concentration:special_i1e() / self.concentration:special_i0e()
    end,
  },
}

return continuous
