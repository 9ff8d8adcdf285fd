-- Distributions of counts and choices. They are given probs or logits; the other one is computed.
-- A Categorical's values are positions, which count from 1; all other values are numbers.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local constraints = require "demilune.distributions.constraints"
local distribution = require "demilune.distributions.distribution"
local transforms = require "demilune.distributions.transforms"

local class, join = distribution.class, distribution.join

local discrete = {}

local function always(value) return function() return value end end

local function one_of(self)
  local probs, logits = rawget(self, "probs"), rawget(self, "logits")
  if (probs == nil) == (logits == nil) then
    caller.raise("%s: %s of probs and logits given, wanted one of them", self.class.name,
      probs and "both" or "none")
  end
end

-- Away from 0 and 1, so that logarithms are finite.
local function inside(probs)
  local e = dtypes.of[probs.dtype].eps
  return probs:clamp(e, 1 - e)
end

local BINARY = {probs = constraints.unit_interval, logits = constraints.real}
local function binary_probs(self) return self.logits:sigmoid() end
local function binary_logits(self)
  local p = inside(self.probs)
  return p:log() - (-p):log1p()
end
local function cross_entropy(logits, target)
  return core.binary_cross_entropy_with_logits(logits, target, {reduction = "none"})
end

local function binary_log_prob(self, value)
  local logits = self.logits
  local shape = distribution.broadcast(logits.shape, value.shape)
  return -cross_entropy(logits:expand(shape), value:expand(shape))
end

-- 0, 1, ..., n in the dtype and on the device of p.
local function counts(n, p)
  return core.arange(0, n, {dtype = p.dtype, device = p.device})
end

--- Bernoulli(probs, {logits, validate_args}): 1 with probability probs, else 0.
---@param probs? any
---@param logits? any log(probs / (1 - probs))
discrete.Bernoulli = class{
  name = "Bernoulli", arguments = "probs?, logits?", parameters = BINARY,
  init = one_of,
  draw = function(self, shape) return self.probs:expand(shape):bernoulli() end,
  log_prob = binary_log_prob,
  entropy = function(self) return cross_entropy(self.logits, self.probs) end,
  values = function(self) return counts(1, distribution.like(self)) end,
  properties = {
    support = always(constraints.boolean), probs = binary_probs, logits = binary_logits,
    mean = function(self) return self.probs end,
    mode = function(self)
      local p = self.probs
      return core.where(p:eq(0.5), 0 / 0, p:ge(0.5):to(p.dtype))
    end,
    variance = function(self) return self.probs * (1 - self.probs) end,
  },
}

--- Geometric(probs, {logits, validate_args}): failures before the first success.
---@param probs? any more than 0
---@param logits? any
discrete.Geometric = class{
  name = "Geometric", arguments = "probs?, logits?", parameters = BINARY,
  init = function(self)
    one_of(self)
    local probs = self._validate and rawget(self, "probs")
    if probs then distribution.check("Geometric", "probs", probs, constraints.positive) end
  end,
  draw = function(self, shape)
    return ((-distribution.uniform(self, shape)):log1p() / (-self.probs):log1p()):floor()
  end,
  log_prob = function(self, value)
    -- where probs is 1 and there is no failure: 0 times the logarithm of 0, and its slope
    local probs = self.probs
    local none = value:eq(0):logical_and(probs:eq(1))
    return value:special_xlog1py(-core.where(none, 0, probs)) + probs:log()
  end,
  entropy = function(self) return cross_entropy(self.logits, self.probs) / self.probs end,
  properties = {
    support = always(constraints.nonnegative_integer), probs = binary_probs,
    logits = binary_logits,
    mean = function(self) return self.probs:reciprocal() - 1 end,
    mode = function(self) return core.zeros_like(self.probs) end,
    variance = function(self) return (self.probs:reciprocal() - 1) / self.probs end,
  },
}

-- log n! - log k! - log (n - k)! + k logits - n log(1 + e^logits)
local function binomial_log_prob(n, logits, value)
  local per_trial = logits:clamp{min = 0} + (-logits:abs()):exp():log1p()
  return value * logits - n * per_trial + (n + 1):lgamma() - (value + 1):lgamma()
    - (n - value + 1):lgamma()
end

-- Trials of which numbers are drawn one by one.
local FEW = 32

-- Successes in n trials of probability p, float64 tensors of one shape. Ahrens & Dieter 1974: the
-- a-th smallest of n uniform numbers is a beta draw, which halves the trials that are left.
local function draw_binomial(n, p)
  local sum = core.zeros_like(n)
  while n:numel() > 0 and n:max():item() > FEW do
    local many, a = n:gt(FEW), (n / 2):floor() + 1
    local above = (n + 1 - a):clamp{min = 1}:standard_gamma()
    local least = a:standard_gamma()
    local at = least / (least + above)
    local below = at:le(p)
    sum = sum + core.where(many:logical_and(below), a, 0)
    p = core.where(many, core.where(below, (p - at) / (1 - at), p / at), p)
    n = core.where(many, core.where(below, n - a, a - 1), n)
  end
  local most = n:numel() > 0 and math.tointeger(n:max():item()) or 0
  local trials = core.rand(join(n.shape, {most}), {dtype = "float64", device = n.device})
  local taken = counts(most, n):narrow(1, 1, most):lt(n:unsqueeze(-1))
  return sum + trials:lt(p:unsqueeze(-1)):logical_and(taken):sum(-1)
end

--- Binomial(total_count = 1, probs, {logits, validate_args}): successes in total_count trials.
---@param total_count? any
---@param probs? any
---@param logits? any
discrete.Binomial = class{
  name = "Binomial", arguments = "total_count = 1, probs?, logits?",
  parameters = {total_count = constraints.nonnegative_integer, probs = BINARY.probs,
    logits = BINARY.logits},
  init = one_of,
  draw = function(self, shape)
    local n, p = self.total_count:expand(shape), self.probs:expand(shape)
    return draw_binomial(n:double(), p:double()):to(n.dtype)
  end,
  log_prob = function(self, value)
    return binomial_log_prob(self.total_count, self.logits, value)
  end,
  entropy = function(self)
    local log_prob = self:log_prob(self:enumerate_support())
    return -(log_prob:exp() * log_prob):sum(1)
  end,
  values = function(self)
    local n = self.total_count
    if n:numel() == 0 or n:min():item() ~= n:max():item() then
      caller.raise("Binomial: its values can be listed where all of total_count is one number")
    end
    return counts(n:max():item(), n)
  end,
  properties = {
    support = function(self) return constraints.integer_interval(0, self.total_count) end,
    probs = binary_probs, logits = binary_logits,
    mean = function(self) return self.total_count * self.probs end,
    mode = function(self)
      return core.minimum(((self.total_count + 1) * self.probs):floor(), self.total_count)
    end,
    variance = function(self) return self.total_count * self.probs * (1 - self.probs) end,
  },
}

--- Poisson(rate, {validate_args}): events in a unit of time.
---@param rate any 0 or more
discrete.Poisson = class{
  name = "Poisson", arguments = "rate",
  parameters = {rate = constraints.nonnegative},
  draw = function(self, shape) return self.rate:expand(shape):poisson() end,
  log_prob = function(self, value)
    return value:xlogy(self.rate) - self.rate - (value + 1):lgamma()
  end,
  properties = {
    support = always(constraints.nonnegative_integer),
    mean = function(self) return self.rate end, variance = function(self) return self.rate end,
    mode = function(self) return self.rate:floor() end,
  },
}

--- NegativeBinomial(total_count, probs, {logits, validate_args}): successes, each of probability
--- probs, before total_count failures, which need not be a whole number.
---@param total_count any 0 or more
---@param probs? any below 1
---@param logits? any
discrete.NegativeBinomial = class{
  name = "NegativeBinomial", arguments = "total_count, probs?, logits?",
  parameters = {total_count = constraints.nonnegative, probs = BINARY.probs,
    logits = BINARY.logits},
  init = function(self)
    one_of(self)
    local probs = self._validate and rawget(self, "probs")
    if probs then
      distribution.check("NegativeBinomial", "1 - probs", 1 - probs, constraints.positive)
    end
  end,
  draw = function(self, shape)
    local n = self.total_count:expand(shape)
    local rate = core.where(n:eq(0), 1, n):standard_gamma() * self.logits:exp()
    return core.where(n:eq(0), 0, rate):poisson()
  end,
  log_prob = function(self, value)
    local n = self.total_count
    local ways = (n + value):lgamma() - (1 + value):lgamma() - n:lgamma()
    return n * (-self.logits):logsigmoid() + value * self.logits:logsigmoid()
      + core.where((n + value):eq(0), 0, ways)
  end,
  properties = {
    support = always(constraints.nonnegative_integer), probs = binary_probs,
    logits = binary_logits,
    mean = function(self) return self.total_count * self.logits:exp() end,
    mode = function(self)
      return ((self.total_count - 1) * self.logits:exp()):floor():clamp{min = 0}
    end,
    variance = function(self)
      return self.total_count * self.logits:exp() / (-self.logits):sigmoid()
    end,
  },
}

-- ---- a choice of n ----

local CHOICE = {probs = constraints.nonnegative_vector, logits = constraints.real_vector}

-- Normalizes: probs sum to 1, exp(logits) too.
local function normalize(self)
  one_of(self)
  local probs, logits = rawget(self, "probs"), rawget(self, "logits")
  if probs then
    self.probs = probs / probs:sum(-1, {keepdim = true})
  else
    self.logits = logits - logits:logsumexp(-1, {keepdim = true})
  end
end
local function choice_probs(self) return self.logits:softmax(-1) end
local function choice_logits(self) return inside(self.probs):log() end
local function choices(self)
  local p = distribution.like(self)
  return p.shape[#p.shape]
end

-- Positions drawn, of a shape that ends with the batch_shape.
local function draw_positions(self, shape)
  local batch, n, samples = self.batch_shape, choices(self), 1
  for i = 1, #shape - #batch do samples = samples * shape[i] end
  local rows = self.probs:reshape(-1, n)
  if samples * rows.shape[1] == 0 then
    return core.zeros(shape, {dtype = "int64", device = rows.device})
  end
  return rows:multinomial(samples, {replacement = true}):t():reshape(shape)
end

local function choice_entropy(self)
  local logits = self.logits:clamp{min = -3e38}
  return -(logits * self.probs):sum(-1)
end

local function filled(value)
  return function(self)
    local p = distribution.like(self)
    return core.full(self.batch_shape, value, {dtype = p.dtype, device = p.device})
  end
end

--- Categorical(probs, {logits, validate_args}): positions, from 1 to n; probs need not sum to 1.
---@param probs? table tensor batch_shape + {n}, of 0 or more
---@param logits? table tensor batch_shape + {n}, logarithms of weights
discrete.Categorical = class{
  name = "Categorical", arguments = "probs?, logits?", parameters = CHOICE,
  init = normalize,
  draw = draw_positions,
  log_prob = function(self, value)
    local shape = distribution.broadcast(self.batch_shape, value.shape)
    local logits = self.logits:expand(join(shape, {choices(self)}))
    return logits:gather(value:long():expand(shape):unsqueeze(-1), -1):squeeze(-1)
  end,
  entropy = choice_entropy,
  values = function(self)
    return core.arange(1, choices(self), {device = distribution.like(self).device})
  end,
  properties = {
    support = function(self) return constraints.integer_interval(1, choices(self)) end,
    probs = choice_probs, logits = choice_logits, mean = filled(0 / 0), variance = filled(0 / 0),
    mode = function(self) return self.probs:argmax(-1) end,
  },
}

-- Of vectors of n numbers.
local function of_vectors(self)
  normalize(self)
  self.event_shape = {choices(self)}
end

local function one_hot(self, positions)
  return core.one_hot(positions, {num_classes = choices(self)}):to(distribution.like(self).dtype)
end

--- OneHotCategorical(probs, {logits, validate_args}): vectors of one 1, where Categorical has its
--- position, and zeros.
---@param probs? table tensor batch_shape + {n}
---@param logits? table tensor batch_shape + {n}
discrete.OneHotCategorical = class{
  name = "OneHotCategorical", arguments = "probs?, logits?", parameters = CHOICE,
  init = of_vectors,
  draw = function(self, shape)
    return one_hot(self, draw_positions(self, distribution.part(shape, 1, #shape - 1)))
  end,
  log_prob = function(self, value) return (self.logits * value):sum(-1) end,
  entropy = choice_entropy,
  values = function(self)
    local p = distribution.like(self)
    return core.eye(choices(self), {dtype = p.dtype, device = p.device})
  end,
  properties = {
    support = always(constraints.one_hot), probs = choice_probs, logits = choice_logits,
    mean = function(self) return self.probs end,
    mode = function(self) return one_hot(self, self.probs:argmax(-1)) end,
    variance = function(self) return self.probs * (1 - self.probs) end,
  },
}

--- Multinomial(total_count = 1, probs, {logits, validate_args}): how often each of n is chosen in
--- total_count choices.
---@param total_count? integer
---@param probs? table tensor batch_shape + {n}
---@param logits? table tensor batch_shape + {n}
discrete.Multinomial = class{
  name = "Multinomial", arguments = "total_count: integer = 1, probs?, logits?",
  parameters = CHOICE,
  init = function(self, o)
    if o.total_count < 0 then
      caller.raise("Multinomial: total_count is %d, wanted 0 or more", o.total_count)
    end
    self.total_count = o.total_count
    of_vectors(self)
  end,
  draw = function(self, shape)
    local chosen = draw_positions(self, join({self.total_count},
      distribution.part(shape, 1, #shape - 1)))
    return one_hot(self, chosen):sum(1)
  end,
  log_prob = function(self, value)
    return (value:sum(-1) + 1):lgamma() - (value + 1):lgamma():sum(-1)
      + core.where(value:eq(0), 0, self.logits * value):sum(-1)
  end,
  entropy = function(self)
    local n, p = self.total_count, self.probs
    local k = counts(n, p):reshape(join({n + 1}, distribution.ones(#self.batch_shape + 1)))
    local each = binomial_log_prob(core.full_like(k, n), binary_logits{probs = p}, k):exp()
    return n * choice_entropy(self) - core.full({}, n + 1.0, {dtype = p.dtype,
      device = p.device}):lgamma() + (each * (k + 1):lgamma()):sum({1, -1})
  end,
  properties = {
    support = function(self) return constraints.counts(self.total_count) end,
    probs = choice_probs, logits = choice_logits,
    mean = function(self) return self.total_count * self.probs end,
    variance = function(self) return self.total_count * self.probs * (1 - self.probs) end,
  },
}

-- ---- numbers between choices ----

--- RelaxedBernoulli(temperature, probs, {logits, validate_args}): numbers from 0 to 1 that are near
--- 0 or 1 at a low temperature, with gradients in probs (Maddison et al. 2017).
---@param temperature any more than 0
---@param probs? any
---@param logits? any
discrete.RelaxedBernoulli = class{
  name = "RelaxedBernoulli", arguments = "temperature, probs?, logits?",
  parameters = {temperature = constraints.positive, probs = BINARY.probs,
    logits = BINARY.logits},
  init = one_of,
  rsample = function(self, shape)
    local noise = binary_logits{probs = distribution.uniform(self, shape)}
    return inside(((self.logits + noise) / self.temperature):sigmoid())
  end,
  log_prob = function(self, value)
    local t = self.temperature
    value = transforms.SigmoidTransform().inv(value)
    local off = self.logits - value * t
    return t:log() + off - 2 * off:softplus() + value:softplus() + (-value):softplus()
  end,
  properties = {support = always(constraints.unit_interval), probs = binary_probs,
    logits = binary_logits},
}

--- RelaxedOneHotCategorical(temperature, probs, {logits, validate_args}): vectors of shares that
--- sum to 1, of which one is near 1 at a low temperature, with gradients in probs.
---@param temperature any more than 0; a tensor ends with a dim of 1, as probs with one of n
---@param probs? table tensor batch_shape + {n}
---@param logits? table tensor batch_shape + {n}
discrete.RelaxedOneHotCategorical = class{
  name = "RelaxedOneHotCategorical",
  arguments = "temperature: tensor|number, probs?, logits?", parameters = CHOICE,
  init = function(self, o)
    of_vectors(self)
    local p, t = distribution.like(self), o.temperature
    if not core.is_tensor(t) then
      t = core.tensor(t + 0.0, {dtype = p.dtype, device = p.device})
    end
    if #t.shape == 0 then t = t:reshape(1) end
    local wide = distribution.broadcast(p.shape, t.shape)
    if t.shape[#t.shape] ~= 1 or not wide or #wide > #p.shape or t:numel() > p:numel() then
      caller.raise("RelaxedOneHotCategorical: temperature has shape %s, wanted a number or %s",
        distribution.shown(t.shape), distribution.shown(join(self.batch_shape, {1})))
    end
    if self._validate then
      distribution.check("RelaxedOneHotCategorical", "temperature", t, constraints.positive)
    end
    self.temperature = t
  end,
  rsample = function(self, shape)
    local noise = -(-inside(distribution.uniform(self, shape)):log()):log()
    return ((self.logits + noise) / self.temperature):softmax(-1)
  end,
  log_prob = function(self, value)
    local n, t = choices(self), self.temperature
    local log = value:log()
    local score = self.logits - log * t
    score = score - score:logsumexp(-1, {keepdim = true})
    return (score - log):sum(-1) + (n - 1) * t:squeeze(-1):log()
      + core.tensor(n + 0.0, {dtype = "float64"}):lgamma():item()
  end,
  properties = {support = always(constraints.simplex), probs = choice_probs,
    logits = choice_logits},
}

--- OneHotCategoricalStraightThrough(probs, {logits, validate_args}): OneHotCategorical whose
--- rsample has the gradient of probs (Bengio et al. 2013).
---@param probs? table tensor batch_shape + {n}
---@param logits? table tensor batch_shape + {n}
discrete.OneHotCategoricalStraightThrough = class{
  name = "OneHotCategoricalStraightThrough", arguments = "probs?, logits?", parameters = CHOICE,
  super = discrete.OneHotCategorical,
  rsample = function(self, shape)
    local probs = self.probs
    return self.class.parts.draw(self, shape) + (probs - probs:detach())
  end,
}

-- log(probs / (1 - probs)) and probs, near 0.5 those of a number further off, for formulas that
-- divide 0 by 0 there; and where they are probs' own.
local function off_half(self)
  local p, low, high = self.probs, self.lims[1], self.lims[2]
  local fits = p:le(low):logical_or(p:gt(high))
  local away = core.where(fits, p, low)
  return away, away:log() - (-away):log1p(), fits
end

-- Log of the factor by which the density of Bernoulli's formula is scaled to sum to 1.
local function continuous_norm(self)
  local p, logit, fits = off_half(self)
  local x = (self.probs - 0.5):square()
  return core.where(fits, (logit / (2 * p - 1)):log(),
    math.log(2) + (4 / 3 + 104 / 45 * x) * x)
end

--- ContinuousBernoulli(probs, {logits, lims, validate_args}): numbers from 0 to 1 with a density
--- that grows as probs ^ x (1 - probs) ^ (1 - x) (Loaiza-Ganem & Cunningham 2019).
---@param probs? any
---@param logits? any log(probs / (1 - probs))
---@param lims? number[] from where to where probs counts as near 0.5, as {0.499, 0.501}
discrete.ContinuousBernoulli = class{
  name = "ContinuousBernoulli", arguments = "probs?, logits?, lims?: numbers", parameters = BINARY,
  init = function(self, o)
    one_of(self)
    self.lims = o.lims or {0.499, 0.501}
    local probs = rawget(self, "probs")
    if probs then self.probs = inside(probs) end
  end,
  rsample = function(self, shape)
    return self.class.parts.icdf(self, distribution.uniform(self, shape))
  end,
  log_prob = function(self, value)
    return binary_log_prob(self, value) + continuous_norm(self)
  end,
  cdf = function(self, value)
    local p, logit, fits = off_half(self)
    local share = (1 - p) * (value * logit):expm1() / (2 * p - 1)
    return core.where(fits, share, value):clamp(0, 1)
  end,
  icdf = function(self, value)
    local p, logit, fits = off_half(self)
    return core.where(fits, (value * (2 * p - 1) / (1 - p)):log1p() / logit, value)
  end,
  entropy = function(self)
    local p = self.probs
    return self.mean * ((-p):log1p() - p:log()) - continuous_norm(self) - (-p):log1p()
  end,
  properties = {
    support = always(constraints.unit_interval), logits = binary_logits,
    probs = function(self) return inside(binary_probs(self)) end,
    mean = function(self)
      local p, logit, fits = off_half(self)
      local x = self.probs - 0.5
      return core.where(fits, p / (2 * p - 1) - logit:reciprocal(),
        0.5 + (1 / 3 + 16 / 45 * x:square()) * x)
    end,
    variance = function(self)
      local p, logit, fits = off_half(self)
      local x = (self.probs - 0.5):square()
      return core.where(fits, p * (p - 1) / (1 - 2 * p):square() + logit:square():reciprocal(),
        1 / 12 - (1 / 15 - 128 / 945 * x) * x)
    end,
  },
}

return discrete
