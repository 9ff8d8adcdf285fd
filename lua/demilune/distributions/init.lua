-- demilune.distributions: probability distributions with the names and the meaning that they have
-- in PyTorch. d:sample{3} draws, d:rsample{3} draws with gradients in the parameters (where
-- d.has_rsample), d:log_prob(x), d:cdf(x), d:icdf(p), d:entropy(), d:expand{2, 3},
-- d:enumerate_support(); fields mean, variance, stddev, mode, support, batch_shape, event_shape.
-- Shapes are sample + batch_shape + event_shape. Arguments are tensors or numbers, which broadcast,
-- by position or by name: Normal(0, 1), Normal{loc = 0, scale = x}. A distribution of choices has
-- positions as its values, which count from 1 (Categorical).
--
--   Normal LogNormal HalfNormal Laplace Cauchy HalfCauchy Gumbel Uniform Exponential Weibull Pareto
--   GeneralizedPareto Kumaraswamy VonMises
--   Gamma InverseGamma Chi2 StudentT FisherSnedecor Beta Dirichlet
--   Bernoulli Binomial NegativeBinomial Geometric Poisson Categorical OneHotCategorical Multinomial
--   ContinuousBernoulli RelaxedBernoulli RelaxedOneHotCategorical OneHotCategoricalStraightThrough
--   MultivariateNormal LowRankMultivariateNormal Independent MixtureSameFamily
--   TransformedDistribution LogisticNormal
--   transforms kl_divergence register_kl constraints is_distribution set_default_validate_args
--
-- Arguments and values are checked unless {validate_args = false} is given.

local distribution = require "demilune.distributions.distribution"

local distributions = {
  constraints = require "demilune.distributions.constraints",
  transforms = require "demilune.distributions.transforms",
  is_distribution = distribution.is_distribution,
  set_default_validate_args = distribution.set_default_validate_args,
}
for _, family in ipairs{"continuous", "gamma", "discrete", "multivariate", "transformed"} do
  for name, class in pairs(require("demilune.distributions." .. family)) do
    if type(class) == "table" then distributions[name] = class end
  end
end
for name, fn in pairs(require "demilune.distributions.kl") do distributions[name] = fn end

return distributions
