-- The gamma distribution and those made of it. Gradients of draws are those of the number at a
-- fixed value of the cumulative distribution (op standard_gamma; implicit reparameterization:
-- Figurnov, Mohamed, Mnih 2018). A beta or Dirichlet draw is gamma draws over their sum, and has
-- the gradient of that: its mean is that of PyTorch's gradients, its numbers are others.

local core = require "demilune.core"
local dtypes = require "demilune.dtypes"
local constraints = require "demilune.distributions.constraints"
local distribution = require "demilune.distributions.distribution"

local class = distribution.class

local gamma = {}

local function tiny(dtype) return dtypes.of[dtype].tiny end

local function always(value) return function() return value end end

-- Gamma draws above 0: small shapes give numbers that no float holds.
local function draw_gamma(concentration, shape)
  return concentration:expand(shape):standard_gamma():clamp{min = tiny(concentration.dtype)}
end

--- Gamma(concentration, rate, {validate_args}): shape, and how fast the density falls.
---@param concentration any more than 0
---@param rate any more than 0
gamma.Gamma = class{
  name = "Gamma", arguments = "concentration, rate",
  parameters = {concentration = constraints.positive, rate = constraints.positive},
  rsample = function(self, shape)
    return (draw_gamma(self.concentration, shape) / self.rate)
      :clamp{min = tiny(self.rate.dtype)}
  end,
  log_prob = function(self, value)
    local a, rate = self.concentration, self.rate
    return a:xlogy(rate) + (a - 1):xlogy(value) - rate * value - a:lgamma()
  end,
  cdf = function(self, value) return self.concentration:igamma(self.rate * value) end,
  entropy = function(self)
    local a = self.concentration
    return a - self.rate:log() + a:lgamma() + (1 - a) * a:digamma()
  end,
  properties = {
    support = always(constraints.nonnegative),
    mean = function(self) return self.concentration / self.rate end,
    mode = function(self) return ((self.concentration - 1) / self.rate):clamp{min = 0} end,
    variance = function(self) return self.concentration / self.rate:square() end,
  },
}

--- Chi2(df, {validate_args}): sums of df squares of normal numbers; Gamma(df / 2, 1 / 2).
---@param df any degrees of freedom, more than 0
gamma.Chi2 = class{
  name = "Chi2", arguments = "df", parameters = {df = constraints.positive},
  super = gamma.Gamma,
  properties = {
    concentration = function(self) return self.df / 2 end,
    rate = function(self) return core.full_like(self.df, 0.5) end,
  },
}

--- InverseGamma(concentration, rate, {validate_args}): reciprocals of Gamma's numbers.
---@param concentration any more than 0
---@param rate any more than 0
gamma.InverseGamma = class{
  name = "InverseGamma", arguments = "concentration, rate",
  parameters = {concentration = constraints.positive, rate = constraints.positive},
  rsample = function(self, shape) return self.rate / draw_gamma(self.concentration, shape) end,
  log_prob = function(self, value)
    local a, rate = self.concentration, self.rate
    return a:xlogy(rate) - (a + 1) * value:log() - rate / value - a:lgamma()
  end,
  cdf = function(self, value) return self.concentration:igammac(self.rate / value) end,
  entropy = function(self)
    local a = self.concentration
    return a + self.rate:log() + a:lgamma() - (1 + a) * a:digamma()
  end,
  properties = {
    support = always(constraints.positive),
    mean = function(self)
      local a = self.concentration
      return core.where(a:gt(1), self.rate / (a - 1), math.huge)
    end,
    mode = function(self) return self.rate / (self.concentration + 1) end,
    variance = function(self)
      local a = self.concentration
      return core.where(a:gt(2), self.rate:square() / ((a - 1):square() * (a - 2)), math.huge)
    end,
  },
}

--- StudentT(df, loc = 0, scale = 1, {validate_args}).
---@param df any degrees of freedom, more than 0
---@param loc? any
---@param scale? any
gamma.StudentT = class{
  name = "StudentT", arguments = "df, loc = 0, scale = 1",
  parameters = {df = constraints.positive, loc = constraints.real, scale = constraints.positive},
  rsample = function(self, shape)
    local chi2 = 2 * draw_gamma(self.df / 2, shape)
    return self.loc + self.scale * distribution.normal(self, shape) * (self.df / chi2):sqrt()
  end,
  log_prob = function(self, value)
    local df, y = self.df, (value - self.loc) / self.scale
    return ((df + 1) / 2):lgamma() - (df / 2):lgamma() - 0.5 * df:log() - self.scale:log()
      - 0.5 * math.log(math.pi) - 0.5 * (df + 1) * (y:square() / df):log1p()
  end,
  entropy = function(self)
    local df = self.df
    local log_beta = (df / 2):lgamma() + 0.5 * math.log(math.pi) - ((df + 1) / 2):lgamma()
    return self.scale:log() + (df + 1) / 2 * (((df + 1) / 2):digamma() - (df / 2):digamma())
      + 0.5 * df:log() + log_beta
  end,
  properties = {
    support = always(constraints.real),
    mean = function(self) return core.where(self.df:gt(1), self.loc, 0 / 0) end,
    mode = function(self) return self.loc end,
    variance = function(self)
      local df = self.df
      local finite = self.scale:square() * df / (df - 2)
      return core.where(df:gt(2), finite, core.where(df:gt(1), core.full_like(df, math.huge),
        0 / 0))
    end,
  },
}

--- FisherSnedecor(df1, df2, {validate_args}): the quotient of two means of squares of df1 and of
--- df2 normal numbers.
---@param df1 any degrees of freedom, more than 0
---@param df2 any
gamma.FisherSnedecor = class{
  name = "FisherSnedecor", arguments = "df1, df2",
  parameters = {df1 = constraints.positive, df2 = constraints.positive},
  rsample = function(self, shape)
    local a, b = self.df1, self.df2
    return (draw_gamma(a / 2, shape) / a / (draw_gamma(b / 2, shape) / b))
      :clamp{min = tiny(a.dtype)}
  end,
  log_prob = function(self, value)
    local a, b, ratio = self.df1 / 2, self.df2 / 2, self.df1 / self.df2
    return (a + b):lgamma() - a:lgamma() - b:lgamma() + a * ratio:log() + (a - 1):xlogy(value)
      - (a + b) * (ratio * value):log1p()
  end,
  properties = {
    support = always(constraints.positive),
    mean = function(self)
      return core.where(self.df2:gt(2), self.df2 / (self.df2 - 2), 0 / 0)
    end,
    mode = function(self)
      local mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
      return core.where(self.df1:gt(2), mode, 0 / 0)
    end,
    variance = function(self)
      local a, b = self.df1, self.df2
      local variance = 2 * b:square() * (a + b - 2) / (a * (b - 2):square() * (b - 4))
      return core.where(b:gt(4), variance, 0 / 0)
    end,
  },
}

-- ---- Dirichlet and Beta ----

-- Gamma draws of float64 for the sum, which small shapes make a quotient of tiny numbers.
local function shares(concentration, shape)
  local draws = draw_gamma(concentration:double(), shape)
  return draws / draws:sum(-1, {keepdim = true})
end

local function dirichlet_entropy(c)
  local k, total = c.shape[#c.shape], c:sum(-1)
  return c:lgamma():sum(-1) - total:lgamma() - (k - total) * total:digamma()
    - ((c - 1) * c:digamma()):sum(-1)
end

-- Where all concentrations are below 1 the density is infinite in every corner; the first one is
-- given, as in PyTorch.
local function dirichlet_mode(c)
  local above, corner = (c - 1):clamp{min = 0}, core.zeros_like(c)
  corner:select(-1, 1):fill_(1)
  local inside = above / above:sum(-1, {keepdim = true})
  return core.where(c:lt(1):all(-1, {keepdim = true}), corner, inside)
end

--- Dirichlet(concentration, {validate_args}): vectors of numbers of 0 or more that sum to 1.
---@param concentration table tensor batch_shape + {k}, more than 0
gamma.Dirichlet = class{
  name = "Dirichlet", arguments = "concentration",
  parameters = {concentration = constraints.positive_vector},
  init = function(self)
    local shape = self.concentration.shape
    self.event_shape = {shape[#shape]}
  end,
  rsample = function(self, shape)
    return shares(self.concentration, shape):to(self.concentration.dtype)
  end,
  log_prob = function(self, value)
    local c = self.concentration
    return (c - 1):xlogy(value):sum(-1) + c:sum(-1):lgamma() - c:lgamma():sum(-1)
  end,
  entropy = function(self) return dirichlet_entropy(self.concentration) end,
  properties = {
    support = always(constraints.simplex),
    mean = function(self)
      return self.concentration / self.concentration:sum(-1, {keepdim = true})
    end,
    mode = function(self) return dirichlet_mode(self.concentration) end,
    variance = function(self)
      local c = self.concentration
      local total = c:sum(-1, {keepdim = true})
      return c * (total - c) / (total:square() * (total + 1))
    end,
  },
}

-- Both concentrations in a last dim.
local function pair(self) return core.stack({self.concentration1, self.concentration0}, -1) end

--- Beta(concentration1, concentration0, {validate_args}): numbers from 0 to 1; the first
--- concentration pulls to 1.
---@param concentration1 any more than 0
---@param concentration0 any more than 0
gamma.Beta = class{
  name = "Beta", arguments = "concentration1, concentration0",
  parameters = {concentration1 = constraints.positive, concentration0 = constraints.positive},
  rsample = function(self, shape)
    local both = distribution.join(shape, {2})
    return shares(pair(self), both):select(-1, 1):to(self.concentration1.dtype)
  end,
  log_prob = function(self, value)
    local a, b = self.concentration1, self.concentration0
    return (a - 1):xlogy(value) + (b - 1):special_xlog1py(-value) + (a + b):lgamma()
      - a:lgamma() - b:lgamma()
  end,
  entropy = function(self) return dirichlet_entropy(pair(self)) end,
  properties = {
    support = always(constraints.unit_interval),
    mean = function(self)
      return self.concentration1 / (self.concentration1 + self.concentration0)
    end,
    mode = function(self) return dirichlet_mode(pair(self)):select(-1, 1) end,
    variance = function(self)
      local a, b = self.concentration1, self.concentration0
      local total = a + b
      return a * b / (total:square() * (total + 1))
    end,
  },
}

return gamma
