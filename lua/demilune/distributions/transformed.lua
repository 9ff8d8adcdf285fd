-- Distributions of numbers that are transformed: TransformedDistribution, LogisticNormal.

local caller = require "demilune.caller"
local constraints = require "demilune.distributions.constraints"
local continuous = require "demilune.distributions.continuous"
local distribution = require "demilune.distributions.distribution"
local multivariate = require "demilune.distributions.multivariate"
local transforms = require "demilune.distributions.transforms"

local class, join, part = distribution.class, distribution.join, distribution.part
local shown, sum_last = distribution.shown, distribution.sum_last

local transformed = {}

-- Shares at the other end where the transforms fall.
local function monotone(self, share)
  local sign = transforms.ComposeTransform(self.transforms).sign
  if sign == 1 then return share end
  return sign * (share - 0.5) + 0.5
end

--- TransformedDistribution(base_distribution, transforms, {validate_args}): numbers of the base
--- that go through a transform, or through each of a list; log_prob undoes them, and counts how
--- they spread the numbers.
---@param base_distribution table
---@param transforms table a transform of distributions.transforms, or a list of them
transformed.TransformedDistribution = class{
  name = "TransformedDistribution",
  arguments = "base_distribution: distribution, transforms: transform|transforms",
  parameters = {},
  init = function(self, o)
    local base, list = o.base_distribution, o.transforms
    if transforms.is_transform(list) then list = {list} end
    local whole, event = transforms.ComposeTransform(list), #base.event_shape
    local domain, codomain = whole.domain.event_dim, whole.codomain.event_dim
    local shape = join(base.batch_shape, base.event_shape)
    if #shape < domain then
      caller.raise("TransformedDistribution: base_distribution has batch_shape and event_shape " ..
        "of %d dims together, wanted the %d or more of a value of the transforms", #shape, domain)
    end
    -- the base as wide as the transforms' parameters, with their values as its events
    local out = whole:forward_shape(shape)
    local wider = whole:inverse_shape(out)
    if shown(wider) ~= shown(shape) then base = base:expand(part(wider, 1, #wider - event)) end
    if domain > event then base = multivariate.Independent(base, domain - event) end
    self.base_dist, self.transforms = base, list
    local cut = #out - math.max(codomain, event + codomain - domain)
    self.batch_shape, self.event_shape = part(out, 1, cut), part(out, cut + 1, #out)
  end,
  expand = function(self, shape)
    local copy, base = distribution.copy(self), self.base_dist
    local wider = transforms.ComposeTransform(self.transforms):inverse_shape(
      join(shape, self.event_shape))
    copy.base_dist = base:expand(part(wider, 1, #wider - #base.event_shape))
    copy.batch_shape = shape
    return copy
  end,
  rsample = function(self, shape)
    local samples = part(shape, 1, #shape - #self.batch_shape - #self.event_shape)
    local base = self.base_dist
    local x = base.has_rsample and base:rsample(samples) or base:sample(samples)
    for _, t in ipairs(self.transforms) do x = t(x) end
    return x
  end,
  log_prob = function(self, y)
    local dim, spread = #self.event_shape, 0
    for i = #self.transforms, 1, -1 do
      local t = self.transforms[i]
      local x = t.inv(y)
      dim = dim + t.domain.event_dim - t.codomain.event_dim
      spread = spread + sum_last(t:log_abs_det_jacobian(x, y), dim - t.domain.event_dim)
      y = x
    end
    local base = self.base_dist
    return sum_last(base:log_prob(y), dim - #base.event_shape) - spread
  end,
  cdf = function(self, y)
    for i = #self.transforms, 1, -1 do y = self.transforms[i].inv(y) end
    return monotone(self, self.base_dist:cdf(y))
  end,
  icdf = function(self, share)
    local x = self.base_dist:icdf(monotone(self, share))
    for _, t in ipairs(self.transforms) do x = t(x) end
    return x
  end,
  properties = {
    has_rsample = function(self) return self.base_dist.has_rsample end,
    support = function(self)
      local last = self.transforms[#self.transforms]
      if not last then return self.base_dist.support end
      local support = last.codomain
      return constraints.independent(support, #self.event_shape - support.event_dim)
    end,
  },
}

--- LogisticNormal(loc, scale, {validate_args}): vectors of n + 1 shares that sum to 1, of n normal
--- numbers by StickBreakingTransform.
---@param loc table tensor batch_shape + {n}
---@param scale any
transformed.LogisticNormal = class{
  name = "LogisticNormal", arguments = "loc, scale", super = transformed.TransformedDistribution,
  parameters = continuous.Normal.parameters,
  init = function(self)
    local normal = continuous.Normal(self.loc, self.scale, {validate_args = false})
    if #normal.batch_shape == 0 then normal = normal:expand(1) end
    self.loc, self.scale = nil, nil -- they are the base's
    transformed.TransformedDistribution.parts.init(self, {base_distribution = normal,
      transforms = transforms.StickBreakingTransform()})
  end,
  properties = {
    loc = function(self) return self.base_dist.base_dist.loc end,
    scale = function(self) return self.base_dist.base_dist.scale end,
  },
}

return transformed
