-- kl_divergence: a table of pairs of classes. Formulas are integrals of p (log p - log q); a class
-- made of another one, such as Chi2, has that one's row too.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local continuous = require "demilune.distributions.continuous"
local gamma = require "demilune.distributions.gamma"
local discrete = require "demilune.distributions.discrete"
local multivariate = require "demilune.distributions.multivariate"
local distribution = require "demilune.distributions.distribution"

local ROWS = {} -- class of p -> class of q -> function(p, q)

local kl = {}

--- Sets the divergence of two classes, function(p, q) -> a tensor of batch_shape.
---@param type_p table class of p
---@param type_q table class of q
---@param fn function
function kl.register_kl(type_p, type_q, fn)
  for _, class in ipairs{type_p or false, type_q or false} do
    if not distribution.is_class(class) then
      caller.raise("register_kl: got a %s, wanted two classes of distributions, and a function",
        type(class))
    end
  end
  ROWS[type_p] = ROWS[type_p] or {}
  ROWS[type_p][type_q] = fn
end
local register = kl.register_kl

local bind_divergence = options.signature("kl_divergence", "p: distribution, q: distribution")

--- The Kullback-Leibler divergence of p from q in nats, of batch_shape.
---@param p table distribution
---@param q table distribution
function kl.kl_divergence(...)
  local o = bind_divergence(...)
  local p, q = o.p, o.q
  local of_p = p.class
  while of_p do
    local of_q = q.class
    while of_q do
      local fn = ROWS[of_p] and ROWS[of_p][of_q]
      if fn then return fn(p, q) end
      of_q = of_q.super
    end
    of_p = of_p.super
  end
  caller.raise("kl_divergence: none is known from %s to %s; hint: the mean of " ..
    "p:log_prob(x) - q:log_prob(x) over samples x of p, or register_kl", p.class.name,
    q.class.name)
end

-- ---- pairs of one class ----

local function normal(p, q)
  local ratio = (p.scale / q.scale):square()
  return 0.5 * (ratio + ((p.loc - q.loc) / q.scale):square() - 1 - ratio:log())
end
register(continuous.Normal, continuous.Normal, normal)
register(continuous.LogNormal, continuous.LogNormal, normal)

register(continuous.HalfNormal, continuous.HalfNormal, function(p, q)
  local ratio = (p.scale / q.scale):square()
  return 0.5 * (ratio - 1 - ratio:log())
end)

register(continuous.Laplace, continuous.Laplace, function(p, q)
  local ratio, away = p.scale / q.scale, (p.loc - q.loc):abs()
  return -ratio:log() + away / q.scale + ratio * (-away / p.scale):exp() - 1
end)

register(continuous.Cauchy, continuous.Cauchy, function(p, q)
  return ((p.scale + q.scale):square() + (p.loc - q.loc):square()):log()
    - (4 * p.scale * q.scale):log()
end)

register(continuous.Uniform, continuous.Uniform, function(p, q)
  local outside = q.low:gt(p.low):logical_or(q.high:lt(p.high))
  return core.where(outside, math.huge, ((q.high - q.low) / (p.high - p.low)):log())
end)

register(continuous.Exponential, continuous.Exponential, function(p, q)
  local ratio = q.rate / p.rate
  return ratio - 1 - ratio:log()
end)

local function gammas(p, q)
  local a, b = p.concentration, q.concentration
  return b * (p.rate / q.rate):log() + b:lgamma() - a:lgamma() + (a - b) * a:digamma()
    + (q.rate - p.rate) * (a / p.rate)
end
register(gamma.Gamma, gamma.Gamma, gammas)

local function dirichlet(p, q)
  local total = p:sum(-1)
  return total:lgamma() - q:sum(-1):lgamma() - (p:lgamma() - q:lgamma()):sum(-1)
    + ((p - q) * (p:digamma() - total:digamma():unsqueeze(-1))):sum(-1)
end
register(gamma.Dirichlet, gamma.Dirichlet, function(p, q)
  return dirichlet(p.concentration, q.concentration)
end)
register(gamma.Beta, gamma.Beta, function(p, q)
  local function pair(d) return core.stack({d.concentration1, d.concentration0}, -1) end
  return dirichlet(pair(p), pair(q))
end)

-- p log(p / q) by element, where `terms` has it for numbers above 0.
local function guarded(p, q, terms)
  return core.where(p:eq(0), 0, core.where(q:eq(0), math.huge, terms))
end

-- log(1 - probs) is -softplus(logits), without the rounding of 1 - probs.
local function bernoulli(p, q)
  local x, y = p.logits, q.logits
  return guarded(p.probs, q.probs, p.probs * ((-y):softplus() - (-x):softplus()))
    + guarded(1 - p.probs, 1 - q.probs, (1 - p.probs) * (y:softplus() - x:softplus()))
end
register(discrete.Bernoulli, discrete.Bernoulli, bernoulli)

register(discrete.Binomial, discrete.Binomial, function(p, q)
  if not core.equal(p.total_count, q.total_count) then
    caller.raise("kl_divergence: the Binomials' total_counts differ, wanted equal ones")
  end
  return p.total_count * bernoulli(p, q)
end)

register(discrete.Geometric, discrete.Geometric, function(p, q)
  return bernoulli(p, q) / p.probs
end)

register(discrete.Poisson, discrete.Poisson, function(p, q)
  return p.rate:xlogy(p.rate) - p.rate:xlogy(q.rate) - (p.rate - q.rate)
end)

local function categorical(p, q)
  return guarded(p.probs, q.probs, p.probs * (p.logits - q.logits)):sum(-1)
end
register(discrete.Categorical, discrete.Categorical, categorical)
register(discrete.OneHotCategorical, discrete.OneHotCategorical, categorical)

-- Of normal distributions of vectors, by their scale_tril.
local function normals(p, q)
  local n = p.event_shape[1]
  if n ~= q.event_shape[1] then
    caller.raise("kl_divergence: MultivariateNormals of %d and %d numbers", n, q.event_shape[1])
  end
  local shape = distribution.broadcast(p.batch_shape, q.batch_shape)
  if not shape then
    caller.raise("kl_divergence: batch_shapes %s and %s do not broadcast",
      distribution.shown(p.batch_shape), distribution.shown(q.batch_shape))
  end
  local square = distribution.join(shape, {n, n})
  local factor = q.scale_tril:expand(square)
  local spread = core.linalg_solve_triangular(factor, p.scale_tril:expand(square),
    {upper = false}):square():sum({-2, -1})
  local away = multivariate.distance(q.scale_tril,
    (q.loc - p.loc):expand(distribution.join(shape, {n})))
  return multivariate.half_log_det(q.scale_tril) - multivariate.half_log_det(p.scale_tril)
    + 0.5 * (spread + away - n)
end
local OF_VECTORS = {multivariate.MultivariateNormal, multivariate.LowRankMultivariateNormal}
for _, p in ipairs(OF_VECTORS) do
  for _, q in ipairs(OF_VECTORS) do register(p, q, normals) end
end

register(multivariate.Independent, multivariate.Independent, function(p, q)
  local n = p.reinterpreted_batch_ndims
  if n ~= q.reinterpreted_batch_ndims then
    caller.raise("kl_divergence: Independents of %d and %d dims", n, q.reinterpreted_batch_ndims)
  end
  return distribution.sum_last(kl.kl_divergence(p.base_dist, q.base_dist), n)
end)

-- ---- pairs of two classes ----

-- An exponential is a gamma of concentration 1.
local function as_gamma(d)
  return {concentration = core.ones_like(d.rate), rate = d.rate}
end
register(continuous.Exponential, gamma.Gamma, function(p, q) return gammas(as_gamma(p), q) end)
register(gamma.Gamma, continuous.Exponential, function(p, q) return gammas(p, as_gamma(q)) end)

-- The second moment about q's mean under p gives the cross entropy with a normal q.
local function to_normal(p, q)
  local moment = p.variance + (p.mean - q.loc):square()
  return -p:entropy() + 0.5 * math.log(2 * math.pi) + q.scale:log()
    + moment / (2 * q.scale:square())
end
for _, class in ipairs{continuous.Uniform, continuous.Laplace, continuous.Exponential, gamma.Gamma,
  gamma.Beta, continuous.HalfNormal, continuous.LogNormal} do
  register(class, continuous.Normal, to_normal)
end

-- ---- further pairs of two classes ----

local function infinite(p, q)
  local shape = distribution.broadcast(p.batch_shape, q.batch_shape)
  if not shape then
    caller.raise("kl_divergence: batch_shapes %s and %s do not broadcast",
      distribution.shown(p.batch_shape), distribution.shown(q.batch_shape))
  end
  local of = distribution.like(p)
  return core.full(shape, math.huge, {dtype = of.dtype, device = of.device})
end

-- p has numbers that q never has.
for _, row in ipairs{
  {continuous.Exponential, continuous.Uniform, gamma.Beta},
  {gamma.Gamma, continuous.Uniform, gamma.Beta},
  {continuous.Laplace, continuous.Uniform, gamma.Gamma, continuous.Exponential, gamma.Beta},
  {continuous.Normal, continuous.Uniform, gamma.Gamma, continuous.Exponential, gamma.Beta},
  {discrete.Poisson, discrete.Bernoulli, discrete.Binomial},
} do
  for i = 2, #row do register(row[1], row[i], infinite) end
end

register(discrete.Bernoulli, discrete.Poisson, function(p, q)
  return q.rate - p:entropy() - p.probs:xlogy(q.rate)
end)

register(continuous.Normal, continuous.Laplace, function(p, q)
  local away = p.loc - q.loc
  local relative = away / p.scale
  local distance = p.scale * math.sqrt(2 / math.pi) * (-relative:square() / 2):exp()
    + away * (relative * math.sqrt(0.5)):erf()
  return (2 * q.scale):log() - p:entropy() + distance / q.scale
end)

-- Minus the mean log of a gamma density, of the means of x and log x.
local function gamma_cross(q, mean, mean_log)
  return q.concentration:lgamma() - q.concentration * q.rate:log()
    - (q.concentration - 1) * mean_log + q.rate * mean
end
local function beta_mean_log(p)
  return p.concentration1:digamma() - (p.concentration1 + p.concentration0):digamma()
end
-- The mean log x of a uniform x, or that of 1 - x of its other ends; some finite number where x is
-- below 0.
local function uniform_mean_log(low, high)
  local width = high - low
  low, high = low:clamp{min = 0}, high:clamp{min = 0}
  return (high:xlogy(high) - low:xlogy(low)) / width - 1
end

register(gamma.Beta, gamma.Gamma, function(p, q)
  return gamma_cross(q, p.mean, beta_mean_log(p)) - p:entropy()
end)
register(gamma.Beta, continuous.Exponential, function(p, q)
  return q.rate * p.mean - q.rate:log() - p:entropy()
end)
register(gamma.Beta, continuous.Uniform, function(p, q)
  local outside = q.low:gt(0):logical_or(q.high:lt(1))
  return core.where(outside, math.huge, (q.high - q.low):log() - p:entropy())
end)
register(continuous.Uniform, gamma.Gamma, function(p, q)
  local cross = gamma_cross(q, p.mean, uniform_mean_log(p.low, p.high))
  return core.where(p.low:lt(0), math.huge, cross - p:entropy())
end)
register(continuous.Uniform, continuous.Exponential, function(p, q)
  return core.where(p.low:lt(0), math.huge, q.rate * p.mean - q.rate:log() - p:entropy())
end)
register(continuous.Uniform, gamma.Beta, function(p, q)
  local a, b = q.concentration1, q.concentration0
  local cross = a:lgamma() + b:lgamma() - (a + b):lgamma()
    - (a - 1) * uniform_mean_log(p.low, p.high) - (b - 1) * uniform_mean_log(1 - p.high, 1 - p.low)
  local outside = p.low:lt(0):logical_or(p.high:gt(1))
  return core.where(outside, math.huge, cross - p:entropy())
end)

return kl
