-- dm.distributions: PyTorch's values (spec/golden/distributions), moments of draws, gradients of
-- draws, shapes and error messages.

local dm = require "demilune"
local case = require "spec.case"
local here = require "spec.device"
local load_family = require("spec.golden").load
local D = dm.distributions

-- ---- PyTorch's values ----

-- The arguments of a case, tensors in a dtype.
local function decode(args, dtype)
  if args.base then
    local base = D[args.base](decode(args.opts, dtype))
    return {base_distribution = base, reinterpreted_batch_ndims = args.n}
  end
  local out = {}
  for name, v in pairs(args) do
    out[name] = case.is_literal(v) and case.build(dm, v):to(dtype) or v
  end
  return out
end

-- Each formula is a sum of a few terms, none above M.
local function check(got, want, dtype, what)
  assert.same(want.s, {table.unpack(got.shape)}, what)
  local scale = {m = math.sqrt(case.magnitude(want.d, 4)), n = 16}
  for i, v in ipairs(case.values(got)) do
    local w = want.d[i]
    local near = v == w or v ~= v and w ~= w
      or math.abs(v - w) <= case.tolerance("sum", dtype, w, scale)
    assert.is_true(near, ("%s in %s: element %d is %.17g, wanted %.17g"):format(what, dtype, i, v,
      w))
  end
end

local PROPERTIES = {"mean", "variance", "stddev", "mode", "probs", "logits", "covariance_matrix",
  "precision_matrix", "scale_tril"}

local function check_case(c, dtype)
  local d = D[c.class](decode(c.args, dtype))
  assert.same(c.batch_shape, d.batch_shape)
  assert.same(c.event_shape, d.event_shape)
  for _, name in ipairs(PROPERTIES) do
    if c.out[name] then check(d[name], c.out[name], dtype, c.name .. "." .. name) end
  end
  if c.out.entropy then check(d:entropy(), c.out.entropy, dtype, c.name .. ":entropy") end
  local value = c.value and case.build(dm, c.value)
  if value and value:is_floating_point() then value = value:to(dtype) end
  for _, name in ipairs{"log_prob", "cdf"} do
    if c.out[name] then check(d[name](d, value), c.out[name], dtype, c.name .. ":" .. name) end
  end
  if c.out.icdf then
    check(d:icdf(case.build(dm, c.probabilities):to(dtype)), c.out.icdf, dtype, c.name .. ":icdf")
  end
  if c.other then
    local q = D[c.q](decode(c.other, dtype))
    check(D.kl_divergence(d, q), c.out.kl, dtype, c.name .. " kl_divergence")
  end
end

describe("distributions have PyTorch's values:", function()
  for _, c in ipairs(load_family("distributions").cases) do
    it(c.name, function()
      for _, dtype in ipairs{"float64", "float32"} do check_case(c, dtype) end
    end)
  end
end)

-- ---- draws ----

local f64 = {dtype = "float64"}
local function t(list) return dm.tensor(list, f64) end

-- Distributions by the name of their class.
local function examples()
  local matrix = t{{2, 0.5}, {0.5, 1}}
  return {
    Normal = D.Normal(t{0.5, -1}, 2), LogNormal = D.LogNormal(t{0.5, -1}, 0.4),
    HalfNormal = D.HalfNormal(t{0.5, 2}), Laplace = D.Laplace(t{0.5, -1}, 0.7),
    Uniform = D.Uniform(t{-1, 0}, 2), Exponential = D.Exponential(t{0.5, 2}),
    Gamma = D.Gamma(t{0.3, 3}, 2), Chi2 = D.Chi2(t{0.6, 5}), StudentT = D.StudentT(t{9, 30}, 1),
    Beta = D.Beta(t{0.4, 3}, 2), Dirichlet = D.Dirichlet(t{{0.5, 3, 2}, {1, 2, 3}}),
    Bernoulli = D.Bernoulli(t{0.2, 0.7}), Geometric = D.Geometric{logits = t{-1, 1}},
    Binomial = D.Binomial(5, t{0.3, 0.8}), Poisson = D.Poisson(t{0.2, 7}),
    OneHotCategorical = D.OneHotCategorical(t{{0.2, 0.7, 0.1}, {1, 2, 3}}),
    Multinomial = D.Multinomial(4, t{{0.2, 0.7, 0.1}, {1, 2, 3}}),
    MultivariateNormal = D.MultivariateNormal(t{{1, 2}, {3, 4}}, matrix),
    Independent = D.Independent(D.Normal(t{{0, 1}, {2, 3}}, 0.5), 1),
    Gumbel = D.Gumbel(t{0.5, -1}, 2), Weibull = D.Weibull(2, t{0.8, 3}),
    Pareto = D.Pareto(t{0.5, 2}, t{9, 12}), InverseGamma = D.InverseGamma(t{9, 12}, 2),
    NegativeBinomial = D.NegativeBinomial(t{0.5, 6}, 0.4),
    Kumaraswamy = D.Kumaraswamy(t{0.5, 3}, 2), FisherSnedecor = D.FisherSnedecor(3, t{18, 30}),
    GeneralizedPareto = D.GeneralizedPareto(1, 2, t{-0.5, 0, 0.1}),
    ContinuousBernoulli = D.ContinuousBernoulli(t{0.02, 0.5, 0.9}),
    OneHotCategoricalStraightThrough = D.OneHotCategoricalStraightThrough(t{{1, 2, 3}, {1, 2, 1}}),
    LowRankMultivariateNormal = D.LowRankMultivariateNormal(t{{1, 2}, {3, 4}}, t{{1}, {-2}},
      t{0.5, 1}),
    MixtureSameFamily = D.MixtureSameFamily(D.Categorical(t{{1, 3}, {2, 1}}),
      D.Independent(D.Normal(t{{-1, 2}, {0, 1}}:unsqueeze(-1):expand{2, 2, 3}, 0.5), 1)),
  }
end

describe("MixtureSameFamily", function()
  local choice = D.Categorical(t{0.2, 0.3, 0.5})
  it("has PyTorch's values", function()
    local d = D.MixtureSameFamily(choice, D.Normal(t{{-1, 0, 4}, {1, 2, 3}}, t{1, 2, 0.5}))
    local function near(want, got)
      assert.same({2}, got.shape)
      for i, v in ipairs(want) do assert.near(v, got[i]:item(), 1e-12) end
    end
    near({1.8, 2.3}, d.mean)
    near({6.485, 2.135}, d.variance)
    near({-2.4780851294001227, -2.0194225784699564}, d:log_prob(t{0.5, 1}))
    near({0.36625045745174545, 0.19257709723871264}, d:cdf(t{0.5, 1}))
    assert.same({4, 3, 2}, d:expand{3, 2}:sample(4).shape)

    local vectors = D.MixtureSameFamily(D.Categorical(t{0.25, 0.75}),
      D.Independent(D.Normal(t{{-1, 0}, {4, 1}}, 1), 1))
    assert.same({}, vectors.batch_shape)
    assert.same({2}, vectors.event_shape)
    near({2.75, 0.75}, vectors.mean)
    near({5.6875, 1.1875}, vectors.variance)
    near({-5.383418473616104, -2.625557090792439}, vectors:log_prob(t{{1, 1}, {4, 0}}))
  end)

  it("has gradients of log_prob in the choice and the components", function()
    local logits = t{0.1, -0.4, 0.9}:requires_grad_()
    local loc = t{-1, 0, 4}:requires_grad_()
    dm.autograd.gradcheck(function(l, m)
      return D.MixtureSameFamily(D.Categorical{logits = l}, D.Normal(m, 1)):log_prob(t{0.3, 2})
    end, {logits, loc})
  end)

  it("says what is wrong", function()
    assert.refuses("mixture_distribution is a Normal, wanted a Categorical", function()
      D.MixtureSameFamily(D.Normal(0, 1), D.Normal(dm.zeros(3), 1))
    end)
    assert.refuses("choices {3}, which does not broadcast to the components' batch_shape {2}",
      function() D.MixtureSameFamily(choice, D.Normal(dm.zeros(2), 1)) end)
    local d = D.MixtureSameFamily(choice, D.Normal(dm.zeros(3), 1))
    assert.refuses("MixtureSameFamily:rsample: its numbers have no gradient", function()
      d:rsample()
    end)
    assert.refuses("1 %- probs has 0, wanted more than 0", function() D.NegativeBinomial(1, 1) end)
  end)
end)

local T = D.transforms

local function near(want, got, tolerance)
  local list = got:reshape(-1):totable()
  assert.equal(#want, #list)
  for i, v in ipairs(want) do assert.near(v, list[i], tolerance or 1e-12) end
end

describe("TransformedDistribution", function()
  it("of compositions is the distribution of that name, gradients too", function()
    local a, b = t{0.3, -1}:requires_grad_(), t{0.5, 2}:requires_grad_()
    local value, share = t{{0.2, 3}, {1, 0.7}}, t{{0.2}, {0.9}}
    for _, pair in ipairs{
      {D.TransformedDistribution(D.Normal(a, b), T.ExpTransform()), D.LogNormal(a, b)},
      {D.TransformedDistribution(D.Normal(0, t{1, 1}), {T.AffineTransform(a, b),
        T.ExpTransform()}), D.LogNormal(a, b)},
      {D.TransformedDistribution(D.Exponential(t{1, 1}), {T.PowerTransform(1 / b),
        T.AffineTransform(0, 2)}), D.Weibull(2, b)},
      {D.TransformedDistribution(D.Exponential(t{1, 1}), {T.ExpTransform().inv,
        T.AffineTransform(a, -b)}), D.Gumbel(a, b)}, -- falls, so that cdf turns
    } do
      local function results(d) return {d:log_prob(value), d:cdf(value), d:icdf(share)} end
      local got, want = results(pair[1]), results(pair[2])
      for i = 1, 3 do
        near(want[i]:reshape(-1):totable(), got[i])
        local function slope(x) return dm.autograd.grad(x:sum(), b, {retain_graph = true}) end
        near(slope(want[i]):totable(), slope(got[i]))
      end
    end
  end)

  it("squashes a Gaussian, with PyTorch's log_prob and gradients", function()
    local loc, scale = t{0.5, -1}:requires_grad_(), t{0.7, 1.2}:requires_grad_()
    local d = D.Independent(D.TransformedDistribution(D.Normal(loc, scale), T.TanhTransform()), 1)
    local p = d:log_prob(t{0.3, -0.9})
    near({-0.022932555167769}, p)
    p:backward()
    near({-0.388735501626303, -0.327930201099459}, loc.grad)
    near({-1.32279072541417, -0.704287473181576}, scale.grad)
    dm.manual_seed(1)
    assert.is_true(d:rsample{3}.requires_grad)
    -- tanh(60) is 1: the number drawn is kept, and is finite
    local far = D.TransformedDistribution(D.Normal(t{60}, 1), T.TanhTransform{cache_size = 1})
    local x = far:sample()
    assert.equal(1, x:item())
    assert.is_true(far:log_prob(x):isfinite():all():item())
  end)

  it("widens its base, and counts dims of events", function()
    local d = D.TransformedDistribution(D.Normal(0, 1), T.AffineTransform(t{{1}, {2}}, t{1, 2, 3}))
    assert.same({2, 3}, d.batch_shape)
    assert.same({4, 2, 3}, d:sample(4).shape)
    d = D.TransformedDistribution(D.Normal(dm.zeros(2, 3, f64), 1), T.StickBreakingTransform())
    assert.same({2}, d.batch_shape)
    assert.same({4}, d.event_shape)
    near({2.47403105914956, 2.47403105914956}, d:log_prob(t{0.1, 0.2, 0.3, 0.4}))
    assert.same({5, 2}, d:log_prob(d:expand{5, 2}:sample()).shape)
    d = D.TransformedDistribution(D.Normal(dm.zeros(6), 1), {T.ReshapeTransform({6}, {2, 3})})
    assert.same({2, 3}, d.event_shape)
    assert.same({}, d:log_prob(dm.zeros(2, 3)).shape)
    assert.is_false(D.TransformedDistribution(D.Poisson(1), {}).has_rsample)
    assert.equal("bfloat16", D.TransformedDistribution(D.Exponential(dm.ones(1):bfloat16()),
      T.ExpTransform()):sample().dtype)
    assert.equal("float64", D.TransformedDistribution(D.Normal(0, 1), T.AffineTransform(t{1}, 1))
      :sample().dtype)
  end)

  it("says what is wrong", function()
    local squashed = D.TransformedDistribution(D.Normal(0, 1), T.TanhTransform())
    assert.refuses("log_prob: the value has 2, wanted a number from %-1 to 1", function()
      squashed:log_prob(2)
    end)
    assert.refuses("transforms is .*, wanted a transform or a list of transforms", function()
      D.TransformedDistribution(D.Normal(0, 1), {1})
    end)
    assert.refuses("of 0 dims together, wanted the 1 or more", function()
      D.TransformedDistribution(D.Normal(0, 1), T.StickBreakingTransform())
    end)
    assert.refuses("AbsTransform:log_abs_det_jacobian: it is not bijective", function()
      D.TransformedDistribution(D.Normal(0, 1), T.AbsTransform()):log_prob(1)
    end)
    assert.refuses("TransformedDistribution has no 'mean'", function() return squashed.mean end)
    assert.refuses("ReshapeTransform: in_shape {6} has 6 elements, out_shape {4} has 4", function()
      T.ReshapeTransform(6, 4)
    end)
    assert.refuses("ExpTransform has no 'invers'", function() return T.ExpTransform().invers end)
    assert.refuses("cache_size is 2, wanted 0 or 1", function()
      T.ExpTransform{cache_size = 2}
    end)
  end)
end)

describe("transforms", function()
  local function all()
    return {T.ExpTransform(), T.AffineTransform(0.5, -2), T.SigmoidTransform(), T.TanhTransform(),
      T.SoftplusTransform(), T.PowerTransform(-1.5), T.StickBreakingTransform(),
      T.IndependentTransform(T.ExpTransform(), 1), T.ReshapeTransform({3}, {1, 3}),
      T.ComposeTransform{T.ExpTransform(), T.StickBreakingTransform()},
      T.ComposeTransform{}}
  end

  it("have an inverse, the log of their slope, and PyTorch's shapes", function()
    local x = t{{0.3, 1.4, 0.7}, {2, 0.1, 1}}
    for _, f in ipairs(all()) do
      local y = f(x)
      near(x:reshape(-1):totable(), f.inv(y), 1e-9)
      assert.is_true(f.inv.inv == f)
      assert.same(y.shape, f:forward_shape(x.shape))
      assert.same(x.shape, f:inverse_shape(y.shape))
      assert.is_true(f.domain:check(x):all():item() and f.codomain:check(y):all():item())
      local slope = f:log_abs_det_jacobian(x, y)
      near((-slope):reshape(-1):totable(), f.inv:log_abs_det_jacobian(y, x), 1e-9)
      -- the jacobian of one row of three, without the share that the others leave
      local jacobian = dm.func.jacrev(function(v)
        local out = f(v)
        return out:reshape(-1):narrow(1, 1, 3)
      end)(x[1])
      assert.near(jacobian:det():abs():log():item(), slope[1]:sum():item(), 1e-9, tostring(f))
    end
  end)

  it("keep the last number with {cache_size = 1}, and know their likes", function()
    local f, x = T.TanhTransform{cache_size = 1}, t{30}
    assert.is_true(rawequal(x, f.inv(f(x))))
    assert.equal(math.huge, T.TanhTransform().inv(T.TanhTransform()(x)):item())
    assert.is_true(T.ComposeTransform{T.AffineTransform(1, t{2}), T.ExpTransform().inv}
      == T.ComposeTransform{T.AffineTransform(1, t{2}), T.ExpTransform().inv})
    assert.is_false(T.PowerTransform(2) == T.PowerTransform(3))
    assert.is_true(T.ComposeTransform{T.AffineTransform(0, -1), T.TanhTransform()}.sign == -1)
  end)

  it("that lose something have an inverse that gives one of the numbers", function()
    local x = t{{0.5, -2}, {1, 3}}
    near({0.5, 2, 1, 3}, T.AbsTransform()(x))
    local lower = T.LowerCholeskyTransform()
    near({0.5, 0, 1, 3}, lower.inv(lower(x)))
    local shares = T.SoftmaxTransform()(x)
    near(shares:reshape(-1):totable(), T.SoftmaxTransform()(T.SoftmaxTransform().inv(shares)))
    assert.is_false(T.AbsTransform().bijective)
  end)
end)

describe("draws of", function()
  local n = 20000
  for name in pairs(examples()) do
    it(name .. " have mean and variance, and an entropy of -log_prob's mean", function()
      local d = examples()[name]
      dm.manual_seed(7)
      local x = d:sample(n)
      -- 5 standard errors of the mean; the variance's own is measured
      local off = ((x:mean(1) - d.mean):abs() / (d.variance / n):sqrt()):max():item()
      assert.is_true(off < 5, off)
      local square = (x - d.mean):square()
      off = (square:mean(1) - d.variance):abs() / (square:std(1) / math.sqrt(n) + 1e-12)
      assert.is_true(off:max():item() < 5, tostring(off))
      if name == "Poisson" or name == "NegativeBinomial" or name == "MixtureSameFamily"
        or name == "FisherSnedecor" then
        return -- which have none in PyTorch either
      end
      local log_prob = -d:log_prob(x)
      assert.is_true((log_prob:mean(1) - d:entropy()):abs():le(
        5 * log_prob:std(1) / math.sqrt(n) + 1e-12):all():item())
    end)
  end

  it("Categorical have the frequencies of probs, at positions from 1", function()
    local d = D.Categorical(t{{0.2, 0.7, 0.1}, {3, 0, 1}})
    dm.manual_seed(7)
    local x = d:sample(n)
    assert.equal("int64", x.dtype)
    for row, probs in ipairs{{0.2, 0.7, 0.1}, {0.75, 0, 0.25}} do
      for k, p in ipairs(probs) do
        local share = x:select(2, row):eq(k):double():mean():item()
        assert.is_true(math.abs(share - p) <= 5 * math.sqrt(p * (1 - p) / n))
      end
    end
  end)

  it("VonMises have the directions' mean and variance; log_prob is the density", function()
    dm.manual_seed(7)
    local d = D.VonMises(t{1, -3, 0.5}, t{0.3, 4, 1e4})
    local x = d:sample(n)
    assert.is_true(x:abs():le(math.pi + 1e-9):all():item())
    local near_to = (x - d.loc):cos()
    local off = ((near_to:mean(1) - (1 - d.variance)):abs() / (near_to:std(1) / math.sqrt(n)))
    assert.is_true(off:max():item() < 5, tostring(off))
    off = ((x - d.loc):sin():mean(1):abs() / ((x - d.loc):sin():std(1) / math.sqrt(n)))
    assert.is_true(off:max():item() < 5, tostring(off))
    -- by the function i0e; PyTorch's have an error of 1e-7
    near({-1.596976986464275, -8.00867661108799, 3.686219152158354}, d:log_prob(t{0.5}))
  end)

  it("RelaxedBernoulli, RelaxedOneHotCategorical and LogisticNormal have log_prob's density",
    function()
      -- the mean of p(x) / q(x) over draws x of q is 1
      dm.manual_seed(7)
      local logits = t{{0.5, -1, 0.2}}
      for _, pair in ipairs{
        {D.RelaxedBernoulli(2, {logits = logits[1]}), D.Beta(t{1, 1, 1}, 1)},
        {D.RelaxedOneHotCategorical(1.5, {logits = logits}), D.Dirichlet(t{{1, 1, 1}})},
        {D.LogisticNormal(logits:narrow(-1, 1, 2), 1), D.Dirichlet(t{{1, 1, 1}})},
      } do
        local p, q = pair[1], pair[2]
        local x, y = p:sample(n), q:sample(n)
        local w = (p:log_prob(y) - q:log_prob(y)):exp()
        local off = (w:mean(1) - 1):abs() / (w:std(1) / math.sqrt(n))
        assert.is_true(off:max():item() < 5, tostring(off))
        -- and that of x^2 p(x) / q(x) is the mean of x^2 over draws of p
        if #p.event_shape > 0 then w = w:unsqueeze(-1) end
        local drawn, weighed = x:square(), y:square() * w
        off = (drawn:mean(1) - weighed:mean(1)):abs()
          / ((drawn:var(1) + weighed:var(1)) / n):sqrt()
        assert.is_true(off:max():item() < 5, tostring(off))
      end
      assert.same({5, 4}, D.LogisticNormal(t{1, 2, 3}, 1):sample(5).shape)
      local d = D.RelaxedOneHotCategorical(t{0.5}, t{0.2, 0.8})
      assert.same({}, d.batch_shape)
      assert.refuses("temperature has shape {2}, wanted a number or {1}", function()
        D.RelaxedOneHotCategorical(t{0.5, 1}, t{0.2, 0.8})
      end)
    end)

  it("GeneralizedPareto and OneHotCategoricalStraightThrough have PyTorch's values", function()
    local d = D.GeneralizedPareto(1, t{0.5, 2, 3}, t{-0.5, 0, 0.75})
    near({0, -0.9431471805599453, -1.373439371866338}, d:log_prob(t{1.5}))
    near({0.75, 0.2211992169285951, 0.1453335879659803}, d:cdf(t{1.5}))
    near({1.683772233983162, 5.605170185988092, 19.49365300761397}, d:icdf(t{0.9}))
    assert.refuses("the value has 2.5, wanted a number from 1 to 2..inf", function()
      d:log_prob(2.5)
    end)
    local logits = t{0, 1, 2}:requires_grad_()
    local x = D.OneHotCategoricalStraightThrough{logits = logits}:rsample()
    assert.near(1, x:sum():item(), 1e-12)
    x[1]:backward()
    local p = logits:detach():softmax(-1)
    near((p[1] * (t{1, 0, 0} - p)):totable(), logits.grad)
  end)

  it("Cauchy and StudentT have the cdf's quantiles", function()
    dm.manual_seed(7)
    local cauchy = D.Cauchy(t{1}, 2)
    for _, p in ipairs{0.1, 0.5, 0.8} do
      local below = cauchy:sample(n):le(cauchy:icdf(p)):double():mean():item()
      assert.is_true(math.abs(below - p) < 5 * math.sqrt(p * (1 - p) / n))
    end
  end)

  it("Binomial and Poisson take no memory or time that grows with their numbers", function()
    dm.manual_seed(7)
    for _, d in ipairs{D.Binomial(1e9, t{0.3}), D.Poisson(t{1e9}), D.Binomial(t{40}, 0.37),
      D.Binomial(t{1e6}, 1e-6)} do
      local x = d:sample(n):double()
      local mean, variance = d.mean:item(), d.variance:item()
      assert.is_true(math.abs(x:mean():item() - mean) < 5 * math.sqrt(variance / n))
      local kurtosis = 3 + 1 / math.min(variance, mean)
      assert.is_true(math.abs(x:var():item() / variance - 1) < 5 * math.sqrt(kurtosis / n))
    end
    assert.same({0, 40, 0}, D.Binomial(t{40, 40, 0}, t{0, 1, 0.5}):sample():totable())
  end)

  it("NegativeBinomial of 0 failures, and HalfCauchy, are as defined", function()
    dm.manual_seed(7)
    assert.same({0, 0, 0}, D.NegativeBinomial(0, t{0.1, 0.5, 0.9}):sample():totable())
    local x = D.HalfCauchy(t{2}):sample(n)
    assert.is_true(x:ge(0):all():item())
    assert.near(0.5, x:lt(2):double():mean():item(), 5 * 0.5 / math.sqrt(n))
  end)

  it("16-bit parameters are finite and in the support", function()
    dm.manual_seed(7)
    for _, dtype in ipairs{"float16", "bfloat16"} do
      local function p(v) return dm.tensor(v, {dtype = dtype}) end
      for _, d in ipairs{D.Exponential(p{2}), D.Laplace(p{0}, 1), D.Gumbel(p{0}, 1),
        D.Weibull(p{1}, 0.5), D.Pareto(p{1}, 4), D.Geometric(p{0.5})} do
        local x = d:sample(100000)
        assert.equal(dtype, x.dtype)
        assert.is_true(x:isfinite():all():item(), tostring(d))
        assert.is_true(d.support:check(x):all():item(), tostring(d))
      end
    end
  end)

  it("16-bit and float32 parameters have these dtypes", function()
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      local p = dm.tensor({0.5, 3}, {dtype = dtype})
      for _, d in ipairs{D.Normal(p, 1), D.Gamma(p, p), D.Beta(p, p), D.Dirichlet(p),
        D.StudentT(p), D.Bernoulli{logits = p}, D.Poisson(p), D.Laplace(p, p)} do
        assert.equal(dtype, d:sample(3).dtype)
        assert.equal(dtype, d:log_prob(d:sample(3)).dtype)
      end
    end
  end)

  it("a seed are the same again; sample leaves no graph, rsample does", function()
    for name, d in pairs(examples()) do
      dm.manual_seed(5)
      local x = d:sample{3, 2}
      dm.manual_seed(5)
      assert.is_true(dm.equal(x, d:sample{3, 2}), name)
    end
    local loc = t{1, 2}:requires_grad_()
    assert.is_false(D.Normal(loc, 1):sample().requires_grad)
    assert.is_true(D.Normal(loc, 1):rsample().requires_grad)
  end)
end)

-- ---- gradients ----

-- The regularized lower incomplete gamma function by its series (A&S 6.5.29).
local function gamma_cdf(a, x)
  local term, sum = 1 / a, 1 / a
  for k = 1, 2000 do
    term = term * x / (a + k)
    sum = sum + term
  end
  return sum * math.exp(a * math.log(x) - x - t{a}:lgamma():item())
end

describe("gradients of draws:", function()
  it("the gamma distribution's is -(dP/da) / p at the draw", function()
    dm.manual_seed(3)
    for _, a in ipairs{0.02, 0.3, 0.9, 1.5, 8, 60, 500} do
      local shape = dm.full({40}, a, f64):requires_grad_()
      local x = D.Gamma(shape, 1):rsample()
      local slope = dm.autograd.grad(x:sum(), shape):totable()
      for i, v in ipairs(x:totable()) do
        if v > 1e-200 then
          local h, density = 1e-4 * a, math.exp((a - 1) * math.log(v) - v - t{a}:lgamma():item())
          local function P(s) return gamma_cdf(a + s * h, v) end
          local want = -(8 * (P(1) - P(-1)) - (P(2) - P(-2))) / (12 * h) / density
          assert.is_true(math.abs(slope[i] - want) <= 1e-6 * want + 3e-12 / (h * density),
            ("a %g, x %g: %.12g, wanted %.12g"):format(a, v, slope[i], want))
        end
      end
    end
  end)

  it("cdf of a gamma distribution is given where its shape wants a gradient, which has none",
    function()
      local a = t{2}:requires_grad_()
      local p = D.Gamma(a, 1):cdf(t{1.5})
      assert.near(0.4421745996289254, p:item(), 1e-12) -- PyTorch's; its backward raises, too
      assert.refuses("igamma: there is no gradient for its first operand; hint: a:detach%(%)",
        function() p:sum():backward() end)
      local rate = t{1}:requires_grad_()
      D.Gamma(a:detach(), rate):cdf(t{1.5}):sum():backward()
      assert.near(0.5020428603339671, rate.grad:item(), 1e-12) -- 1.5 p(1.5)
    end)

  it("standard_gamma of 16 bits and float32 has float64's, rounded once", function()
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      local a = dm.tensor({0.5, 2, 30}, {dtype = dtype}):requires_grad_()
      local wide = a:detach():double():requires_grad_()
      dm.manual_seed(2)
      local x = a:standard_gamma()
      dm.manual_seed(2)
      assert.is_true(dm.equal(x, wide:standard_gamma():to(dtype)))
      x:sum():backward()
      assert.is_true((a.grad:double() - 1):abs():lt(1):all():item())
    end
    assert.same({0, math.huge}, t{0, math.huge}:standard_gamma():totable())
    assert.is_true(t{-1, 0 / 0}:standard_gamma():isnan():all():item())
    assert.refuses("the shapes, .*int64", function() dm.tensor{1, 2}:standard_gamma() end)
  end)

  -- d E[f] / d parameter from draws: the mean of f' dx / d parameter, to 5 standard errors.
  local function expects(parameter, distribution, f, want)
    parameter:requires_grad_()
    dm.manual_seed(11)
    local n = 20000
    local wide = parameter:expand{n, #parameter}:detach():requires_grad_()
    local x = distribution(wide):rsample()
    local each = dm.autograd.grad(f(x):sum(), wide)
    local off = (each:mean(1) - t(want)):abs() / (each:std(1) / math.sqrt(n))
    assert.is_true(off:max():item() < 5, tostring(off))
  end

  it("means of draws have the gradients of the moments", function()
    local function first(x) return x end
    local function square(x) return x * x end
    expects(t{0.3, 4}, function(a) return D.Gamma(a, 2) end, first, {0.5, 0.5})
    expects(t{0.3, 4}, function(a) return D.Gamma(a, 1) end, square, {1.6, 9})
    expects(t{0.5, 3}, function(a) return D.Beta(a, 2) end, first, {2 / 2.5 ^ 2, 2 / 25})
    expects(t{0.5, 3, 2}, function(a) return D.Dirichlet(a) end,
      function(x) return x:select(-1, 1) end,
      {5 / 5.5 ^ 2, -0.5 / 5.5 ^ 2, -0.5 / 5.5 ^ 2})
    expects(t{0.5, 2}, function(a) return D.Exponential(a) end, first, {-4, -0.25})
    expects(t{0.5, 2}, function(a) return D.Laplace(1, a) end, square, {2, 8})
    expects(t{0.5, 2}, function(a) return D.LogNormal(0, a) end, first,
      {0.5 * math.exp(0.125), 2 * math.exp(2)})
    expects(t{6, 8}, function(a) return D.StudentT(a) end, square, {-2 / 16, -2 / 36})
  end)

  it("of a Geometric's log_prob are finite where there is no failure, probs 1 included", function()
    local p = t{1, 1, 0.5, 0.25}:requires_grad_()
    D.Geometric(p):log_prob(t{0, 2, 0, 3}):sum():backward()
    assert.same({1, -math.huge, 2, 0}, p.grad:totable()) -- PyTorch's
  end)

  it("of log_prob, entropy and kl_divergence in the parameters are those of differences", function()
    local gradcheck = dm.autograd.gradcheck
    local function leaf(list) return t(list):requires_grad_() end
    local a, b = leaf{0.7, 2.5}, leaf{1.5, 0.6}
    local value = t{0.3, 0.6}
    for _, class in ipairs{D.Normal, D.Laplace, D.Cauchy, D.LogNormal, D.Gamma, D.Beta} do
      gradcheck(function(p, q)
        local d = class(p, q)
        return d:log_prob(value), d:entropy(), D.kl_divergence(d, class(q, p))
      end, {a, b})
    end
    gradcheck(function(logits)
      local d = D.Categorical{logits = logits}
      return d:log_prob(dm.tensor{2, 3}), d:entropy(), D.kl_divergence(d, D.Categorical(t{1, 2, 1}))
    end, {leaf{0.1, -0.4, 0.9}})
    gradcheck(function(loc, factor)
      local d = D.MultivariateNormal(loc, {scale_tril = factor:tril(), validate_args = false})
      return d:log_prob(value), d:entropy()
    end, {a, leaf{{1.5, 0}, {0.3, 0.8}}})
  end)
end)

-- ---- shapes ----

describe("shapes:", function()
  it("sample + batch + event, of expanded distributions too", function()
    for name, d in pairs(examples()) do
      local event, wider = d.event_shape, {4, table.unpack(d.batch_shape)}
      local wide = d:expand(wider)
      assert.same(wider, wide.batch_shape, name)
      assert.same(event, wide.event_shape, name)
      local shape = {3, table.unpack(wider)}
      local x = wide:sample{3}
      assert.same(shape, {table.unpack(wide:log_prob(x).shape)}, name)
      assert.same(#shape + #event, x:dim(), name)
      assert.is_true(dm.allclose(wide:log_prob(x), d:log_prob(x)), name)
      assert.same({0, table.unpack(wider)}, {table.unpack(wide:log_prob(wide:sample(0)).shape)},
        name)
      assert.is_true(D.is_distribution(wide))
    end
    assert.is_false(D.is_distribution{})
  end)

  it("arguments go by position, by name, as numbers and as integers", function()
    for _, d in ipairs{D.Normal(1, 2), D.Normal{loc = 1, scale = 2}, D.Normal(1, {scale = 2}),
      D.Normal(dm.tensor(1), 2.0), D.Normal(1, 2, {validate_args = false})} do
      assert.same({}, d.batch_shape)
      assert.equal("float32", d.loc.dtype)
      assert.near(-math.log(2 * math.sqrt(2 * math.pi)), d:log_prob(1):item(), 1e-6)
    end
    assert.equal("float64", D.Normal(0, t{1, 2}).loc.dtype)
    assert.equal("Normal(loc: 1, scale: 2)", tostring(D.Normal(1, 2)))
    assert.equal("Independent(Normal(loc: {2}, scale: {2}))",
      tostring(D.Independent(D.Normal(dm.zeros(2), 1), 1)))
  end)

  it("enumerate_support lists the values", function()
    local d = D.Categorical(dm.ones(2, 3))
    assert.same({{1, 1}, {2, 2}, {3, 3}}, d:enumerate_support():totable())
    assert.same({{1}, {2}, {3}}, d:enumerate_support{expand = false}:totable())
    assert.same({{0, 0}, {1, 1}}, D.Bernoulli(dm.tensor{0.5, 0.1}):enumerate_support():totable())
    assert.same({3, 2, 3}, {table.unpack(
      D.OneHotCategorical(dm.ones(2, 3)):enumerate_support().shape)})
    assert.same({0, 1, 2}, D.Binomial(2, 0.5):enumerate_support():totable())
    assert.near(1, D.Binomial(9, 0.3):log_prob(D.Binomial(9, 0.3):enumerate_support()):exp()
      :sum():item(), 1e-6)
  end)

  it("a classifier's policy has PyTorch's gradient by log_prob", function()
    local logits = dm.zeros(4, {requires_grad = true})
    local policy = D.Categorical{logits = logits}
    policy:log_prob(dm.tensor(3)):backward()
    assert.same({-0.25, -0.25, 0.75, -0.25}, logits.grad:totable())
  end)

  it("run under autocast, in the dtypes of their ops", function()
    local x = dm.randn(4, 3)
    local w = dm.eye(3)
    local _ <close> = dm.amp.autocast{device_type = here.type, dtype = "bfloat16"}
    local low = x:matmul(w)
    assert.equal("bfloat16", low.dtype)
    local d = D.Categorical{logits = low}
    assert.same({4}, {table.unpack(d:log_prob(d:sample()).shape)})
    assert.equal("float32", D.Bernoulli{logits = low}:log_prob(dm.ones(3)).dtype)
    assert.equal("float32", D.Normal(low, dm.ones(3)):log_prob(x).dtype)
    local normal = D.MultivariateNormal(x, {covariance_matrix = w})
    assert.equal("float32", normal:log_prob(x).dtype)
  end)
end)

-- ---- mistakes ----

describe("mistakes name distribution, argument, what was given and wanted:", function()
  local function wrong(pattern, f, ...)
    local args = table.pack(...)
    assert.refuses("distributions_spec.lua:%d+: " .. pattern,
      function() f(table.unpack(args, 1, args.n)) end)
  end

  it("parameters", function()
    wrong("Normal: scale has %-1, wanted more than 0", D.Normal, 0, t{1, -1})
    wrong("Normal: loc has NaN, wanted a real number", D.Normal, 0 / 0, 1)
    wrong("Normal: scale is missing, wanted a tensor or a number\n  Normal%(loc", D.Normal, 0)
    wrong("Normal: unknown option 'scal'; did you mean 'scale'%?", D.Normal, {loc = 0, scal = 1})
    wrong("Normal: loc is given twice", D.Normal, 0, {loc = 1, scale = 1})
    wrong("Normal: argument 4, 4, is one too many\n  Normal%(", D.Normal, 0, 1, true, 4)
    wrong("Normal: loc is '0', wanted a tensor or a number", D.Normal, "0", 1)
    wrong("Normal: scale has shape {2}, which does not broadcast with {3}", D.Normal, dm.zeros(3),
      dm.ones(2))
    wrong("Uniform: high %- low has %-1, wanted more than 0", D.Uniform, 2, 1)
    wrong("Bernoulli: none of probs and logits given, wanted one", D.Bernoulli)
    wrong("Bernoulli: both of probs and logits given, wanted one", D.Bernoulli, 0.5, 0)
    wrong("Bernoulli: probs has 1.5, wanted a number from 0 to 1", D.Bernoulli, 1.5)
    wrong("Categorical: probs has shape {}, wanted a vector", D.Categorical, 0.5)
    wrong("Categorical: probs has {0.5, %-1}, wanted a vector", D.Categorical, t{0.5, -1})
    wrong("Geometric: probs has 0, wanted more than 0", D.Geometric, 0)
    wrong("Multinomial: total_count is %-1, wanted 0", D.Multinomial, -1, dm.ones(2))
    wrong("MultivariateNormal: 0 of covariance_matrix, .* wanted one", D.MultivariateNormal,
      dm.zeros(2))
    wrong("MultivariateNormal: covariance_matrix has .*, wanted a symmetric positive definite",
      D.MultivariateNormal, dm.zeros(2), t{{1, 2}, {2, 1}})
    wrong("MultivariateNormal: scale_tril has .*, wanted a lower triangular matrix",
      D.MultivariateNormal, dm.zeros(2), {scale_tril = t{{1, 2}, {2, 1}}})
    wrong("MultivariateNormal: scale_tril has shape {2, 2}, wanted {..., 3, 3}",
      D.MultivariateNormal, dm.zeros(3), {scale_tril = dm.eye(2)})
    wrong("Independent: reinterpreted_batch_ndims is 2, wanted 0 to 1", D.Independent,
      D.Normal(dm.zeros(3), 1), 2)
    wrong("Independent: base_distribution is 1, wanted a distribution", D.Independent, 1, 1)
  end)

  it("values", function()
    local d = D.Normal(dm.zeros(3), 1)
    wrong("Normal:log_prob: the value has shape {2}, wanted one that broadcasts to batch_shape {3}",
      d.log_prob, d, dm.zeros(2))
    wrong("Normal:log_prob: the value is a nil, wanted a tensor", d.log_prob, d)
    wrong("Normal:log_prob: the value has NaN, .*hint: validate_args", d.log_prob, d, 0 / 0)
    local c = D.Categorical(dm.ones(3))
    wrong("Categorical:log_prob: the value has 0, wanted a whole number from 1 to 3", c.log_prob, c,
      dm.tensor{1, 0})
    wrong("Categorical:log_prob: .* 1.5", c.log_prob, c, 1.5)
    local u = D.Uniform(t{0, 1}, 2)
    wrong("Uniform:log_prob: the value has 3, wanted a number from 0..1 to 2", u.log_prob, u, 3)
    wrong("Dirichlet:log_prob: the value has {0.5, 0.6}, wanted a vector", D.Dirichlet(
      dm.ones(2)).log_prob, D.Dirichlet(dm.ones(2)), dm.tensor{0.5, 0.6})
    local one = D.Independent(D.Exponential(dm.ones(2, 1)), 1) -- an event of one number
    wrong("Independent:log_prob: the value has {%-1}, wanted 0 or more", one.log_prob, one,
      dm.tensor{{2}, {-1}})
    local couple = D.Independent(D.Uniform(t{{0, 0}, {2, 2}}, 4), 1)
    wrong("Independent:log_prob: the value has {1, 3}, wanted", couple.log_prob, couple, t{1, 3})
    assert.equal(-math.huge, D.Uniform(0, 1, {validate_args = false}):log_prob(3):item())
    -- PyTorch's Independent leaves checks to its base, too
    local base = D.Uniform(dm.zeros(2), 1, {validate_args = false})
    assert.equal(-math.huge, D.Independent(base, 1):log_prob(t{0.5, 3}):item())
  end)

  it("what a distribution does not have", function()
    local d, p = D.Normal(0, 1), D.Poisson(1)
    wrong("Bernoulli:rsample: its numbers have no gradient.*hint: sample",
      D.Bernoulli(0.5).rsample, D.Bernoulli(0.5))
    local independent = D.Independent(D.Bernoulli(dm.ones(2) / 2), 1)
    wrong("Independent:rsample: its numbers have no gradient", independent.rsample, independent)
    wrong("Poisson has no entropy", p.entropy, p)
    local mixed = D.Binomial(t{5, 2}, 0.5)
    wrong("Binomial: its values can be listed where all", mixed.entropy, mixed)
    wrong("Normal has no values", d.enumerate_support, d)
    wrong("Normal has no 'logprob'; did you mean 'log_prob'%?", function() return d:logprob(1) end)
    wrong("Normal has no 'probs'", function() return d.probs end)
    wrong("kl_divergence: none is known from Normal to Poisson; hint", D.kl_divergence, d, p)
    wrong("kl_divergence: q is 1, wanted a distribution", D.kl_divergence, d, 1)
    wrong("Normal:sample: the shape has %-1", d.sample, d, -1)
    wrong("Normal:expand: batch_shape {3} does not broadcast to {2}", d.expand,
      D.Normal(dm.zeros(3), 1), 2)
  end)

  it("are not looked for where validation is off", function()
    D.set_default_validate_args(false)
    local ok, d = pcall(D.Normal, 0, -1)
    D.set_default_validate_args(true)
    assert.is_true(ok)
    assert.equal(-1, d.scale:item())
    assert.refuses("set_default_validate_args: value is 1, wanted true or false", function()
      D.set_default_validate_args(1)
    end)
  end)
end)

describe("register_kl", function()
  it("adds a pair", function()
    local p, q = D.StudentT(3), D.StudentT(5)
    assert.refuses("none is known", function() D.kl_divergence(p, q) end)
    D.register_kl(D.StudentT, D.StudentT, function(a, b) return a.df - b.df end)
    assert.equal(-2, D.kl_divergence(p, q):item())
    assert.refuses("register_kl: got a number, wanted two classes", function()
      D.register_kl(D.StudentT, 1)
    end)
  end)

  it("has PyTorch's pairs of two classes", function()
    local d = {Bernoulli = D.Bernoulli(t{0.3}), Beta = D.Beta(t{2}, 3), Uniform = D.Uniform(t{0.2},
      0.7), Normal = D.Normal(t{0.5}, 2), Laplace = D.Laplace(t{-1}, 0.5), Gamma = D.Gamma(t{2.5},
      1.5), Exponential = D.Exponential(t{0.8}), Poisson = D.Poisson(t{1.5}),
      Wide = D.Uniform(t{-1}, 2), Binomial = D.Binomial(t{3}, 0.5)}
    local function divergence(p, q) return D.kl_divergence(d[p], d[q]):item() end
    for pair, want in pairs{
      ["Bernoulli Poisson"] = 0.767496165512657, ["Beta Exponential"] = 0.77805020110221,
      ["Beta Gamma"] = 1.73092674999051, ["Beta Wide"] = 1.33351893845611,
      ["Normal Laplace"] = 1.93724962921261, ["Uniform Beta"] = 0.333102286326878,
      ["Uniform Gamma"] = 1.92252191557333, ["Uniform Exponential"] = 1.27629073187415,
    } do
      assert.near(want, divergence(pair:match "(%a+) (%a+)"), 1e-12)
    end
    for pair in ("Beta>Uniform Wide>Exponential Wide>Gamma Wide>Beta Exponential>Uniform "
      .. "Exponential>Beta Gamma>Uniform Gamma>Beta Laplace>Uniform Laplace>Gamma "
      .. "Laplace>Exponential Laplace>Beta Normal>Uniform Normal>Gamma Normal>Exponential "
      .. "Normal>Beta Poisson>Bernoulli Poisson>Binomial"):gmatch "%S+" do
      assert.equal(math.huge, divergence(pair:match "(%a+)>(%a+)"), pair)
    end
    -- outside of q's numbers the other elements' gradients stay numbers; PyTorch's are NaN
    local a = t{2}:requires_grad_()
    D.kl_divergence(D.Uniform(t{0.2, -0.9}, t{0.7, -0.6}), D.Beta(a, 3)):sum():backward()
    local alone = t{2}:requires_grad_()
    D.kl_divergence(D.Uniform(t{0.2}, t{0.7}), D.Beta(alone, 3)):sum():backward()
    assert.same(alone.grad:totable(), a.grad:totable())
    local rate = t{{1}, {2}}
    assert.same({2, 3}, D.kl_divergence(D.Poisson(rate), D.Bernoulli(t{0, 1, 0})).shape)
  end)

  it("infinities and zeros are as the definition has them", function()
    assert.equal(math.huge, D.kl_divergence(D.Bernoulli(0.5), D.Bernoulli(1.0)):item())
    assert.equal(0, D.kl_divergence(D.Bernoulli(1.0), D.Bernoulli(1.0)):item())
    assert.equal(math.huge,
      D.kl_divergence(D.Categorical(t{1, 1}), D.Categorical(t{1, 0})):item())
    assert.near(math.log(2), D.kl_divergence(D.Categorical(t{1, 0}), D.Categorical(t{1, 1})):item(),
      1e-12)
    assert.equal(math.huge, D.kl_divergence(D.Uniform(0, 2), D.Uniform(0, 1)):item())
  end)
end)
