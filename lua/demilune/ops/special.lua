-- Special functions of two operands: orthogonal polynomials and zeta.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

local where, isnan = core.where, core.isnan

local function as_tensor(v, like)
  if core.is_tensor(v) then return v end
  return core.tensor(v, {dtype = like.dtype, device = like.device})
end

-- The promoted float operands, one of which may be a number.
local function operands(x, n)
  local like = core.is_tensor(x) and x or n
  x, n = as_tensor(x, like), as_tensor(n, like)
  local both = x * core.zeros_like(n) + n * core.zeros_like(x)
  local dtype = both:is_floating_point() and both.dtype or core.get_default_dtype()
  return x:to(dtype), n:to(dtype)
end

-- name = {the first polynomial, of degree 1, and what follows p of degree k from p and the one
-- before (q)}. The polynomial of degree 0 is 1; negative degrees give 0.
local function chebyshev(first) return {first, function(_, x, p, q) return 2 * x * p - q end} end
local CHEBYSHEV = {
  t = chebyshev(function(x) return x end),
  u = chebyshev(function(x) return 2 * x end),
  v = chebyshev(function(x) return 2 * x - 1 end),
  w = chebyshev(function(x) return 2 * x + 1 end),
}
local POLYNOMIALS = {
  hermite_polynomial_h = {function(x) return 2 * x end,
    function(k, x, p, q) return 2 * (x * p - k * q) end},
  hermite_polynomial_he = {function(x) return x end, function(k, x, p, q) return x * p - k * q end},
  laguerre_polynomial_l = {function(x) return 1 - x end,
    function(k, x, p, q) return ((2 * k + 1 - x) * p - k * q) / (k + 1) end},
  legendre_polynomial_p = {function(x) return x end,
    function(k, x, p, q) return ((2 * k + 1) * x * p - k * q) / (k + 1) end},
}
for kind, of in pairs(CHEBYSHEV) do
  POLYNOMIALS["chebyshev_polynomial_" .. kind] = of
  POLYNOMIALS["shifted_chebyshev_polynomial_" .. kind] = {of[1], of[2],
    function(x) return 2 * x - 1 end}
end

-- The families by their first polynomials, for the documentation.
local TITLES = {
  chebyshev_polynomial_t = "Chebyshev's, of the first kind: 1, x, 2 x^2 - 1, ...",
  chebyshev_polynomial_u = "Chebyshev's, of the second kind: 1, 2 x, 4 x^2 - 1, ...",
  chebyshev_polynomial_v = "Chebyshev's, of the third kind: 1, 2 x - 1, ...",
  chebyshev_polynomial_w = "Chebyshev's, of the fourth kind: 1, 2 x + 1, ...",
  hermite_polynomial_h = "Hermite's, as in physics: 1, 2 x, 4 x^2 - 2, ...",
  hermite_polynomial_he = "Hermite's, as in probability: 1, x, x^2 - 1, ...",
  laguerre_polynomial_l = "Laguerre's: 1, 1 - x, ...",
  legendre_polynomial_p = "Legendre's: 1, x, (3 x^2 - 1) / 2, ...",
}

local HIGHEST = 100000 -- a degree takes a step of the recurrence

-- How far the recurrence has to go for degrees n and arguments x.
local function last_degree(name, x, n)
  if n:numel() == 0 or x:numel() == 0 then return 0 end
  local highest = where(isnan(n), 0.0, n):max():item()
  if highest > HIGHEST then
    caller.raise("%s: the degree is %.0f, wanted at most %d", name, highest, HIGHEST)
  end
  return math.floor(math.max(highest, 0))
end

for name, of in pairs(POLYNOMIALS) do
  local doc = ("the polynomial of degree n, %s%s by its recurrence, A&S 22.7"):format(
    TITLES[(name:gsub("^shifted_", ""))], of[3] and ", taken at 2 x - 1;" or ";")
  op["special_" .. name]("x#, n#", doc, function(x, n)
    x, n = operands(x, n)
    n = n:trunc()
    local t = of[3] and of[3](x) or x
    local q, p = core.ones_like(t), of[1](t)
    local y = where(n:eq(0), 1.0, where(n:eq(1), p, 0.0))
    for k = 1, last_degree("special_" .. name, x, n) - 1 do
      q, p = p, of[2](k, t, p, q)
      y = where(n:eq(k + 1), p, y)
    end
    return where(isnan(n), n, y)
  end, "wide")
end

-- B(2k) / (2k)! for k = 1, 2, ...
local BERNOULLI = {1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160,
  -691 / 1307674368000, 1 / 74724249600, -3617 / 10670622842880000}

op.special_zeta("x#, other#", "the sum of (other + k)^-x over k = 0, 1, ...: Hurwitz's zeta "
  .. "function, Riemann's where other is 1; by Euler's and Maclaurin's formula, "
  .. "A&S 3.6.28", function(s, q)
  s, q = operands(s, q)
  local N = 12 -- terms before the formula takes over
  local sum = core.zeros_like(s * q)
  for k = 0, N - 1 do sum = sum + core.pow(q + k, -s) end
  local a = q + N
  local power = core.pow(a, -s)
  sum = sum + power * (a / (s - 1) + 0.5)
  local rising = s / a
  for k, b in ipairs(BERNOULLI) do
    sum = sum + power * rising * b
    rising = rising * (s + (2 * k - 1)) * (s + 2 * k) / (a * a)
  end
  -- a pole at s = 1 and at whole q <= 0; no value left of 1, nor for a negative base's root
  local pole = s:eq(1):logical_or(q:le(0):logical_and(q:eq(q:floor())))
  local none = s:lt(1):logical_or(q:lt(0):logical_and(s:ne(s:floor())))
  sum = where(s:eq(1), math.huge, where(none, 0 / 0, where(pole, math.huge, sum)))
  return where(isnan(s):logical_or(isnan(q)), s + q, sum)
end, "wide")

-- ---- the incomplete gamma functions ----

-- x^a e^-x / Gamma(a), where x > 0
local function prefactor(a, x) return core.exp(a * x:log() - x - core.lgamma(a)) end

-- Runs step() until it says that nothing changes any more, looking every few steps.
local function converge(step)
  for i = 1, 100000 do
    local moving = step()
    if i % 16 == 0 and not moving():any():item() then return end
  end
end

-- The lower function's share P by its power series (A&S 6.5.29), for x < a + 1.
local function lower_share(a, x)
  local term, sum, k = 1 / a, 1 / a, 0
  converge(function()
    k = k + 1
    term = term * (x / (a + k))
    sum = sum + term
    return function() return term:gt(sum * 1e-17) end
  end)
  return sum * prefactor(a, x)
end

-- The upper function's share Q by its continued fraction (A&S 6.5.31), evaluated by Lentz's method
-- as Thompson & Barnett 1986 have it, for x >= a + 1.
local function upper_share(a, x)
  local b = x + 1 - a
  local c, d = core.full_like(b, 1e300), 1 / b
  local h, k = d, 0
  local last
  converge(function()
    k = k + 1
    local factor = (a - k) * k
    b = b + 2
    d = 1 / (factor * d + b)
    c = b + factor / c
    last = c * d
    h = h * last
    return function() return (last - 1):abs():gt(1e-16) end
  end)
  return h * prefactor(a, x)
end

-- P (upper: Q) of float64 operands.
local function share(a, x, upper)
  local edge = x:le(0):logical_or(a:le(0)):logical_or(x:isfinite():logical_not())
    :logical_or(a:isfinite():logical_not())
  local low = x:lt(a + 1)
  local one = core.ones_like(a * x)
  local small_a, small_x = where(edge, one, a), where(edge, one, x)
  local P = lower_share(where(low, small_a, one), where(low, small_x, one))
  local Q = upper_share(where(low, one, small_a), where(low, one * 3, small_x))
  local y = upper and where(low, 1 - P, Q) or not upper and where(low, P, 1 - Q)
  -- P is 0 at x = 0 and for a = inf, 1 for a = 0 and x = inf; not for negative or two such operands
  local full = upper and 0.0 or 1.0
  local none = a:lt(0):logical_or(x:lt(0)):logical_or(isnan(a)):logical_or(isnan(x))
  none = none:logical_or(a:eq(0):logical_and(x:eq(0)))
  none = none:logical_or(a:eq(math.huge):logical_and(x:eq(math.huge)))
  y = where(x:eq(0):logical_or(a:eq(math.huge)), 1 - full, y)
  y = where(a:eq(0):logical_or(x:eq(math.huge)):logical_and(a:ne(math.huge))
    :logical_and(x:ne(0)), full, y)
  return where(none, 0 / 0, y)
end

-- Of a in [0, inf) only the slope in x is known: x^(a - 1) e^-x / Gamma(a).
local Gamma
local function incomplete(upper)
  return function(a, x)
    Gamma = Gamma or require("demilune.autograd").Function{
      name = "Gamma",
      forward = function(ctx, s, t, q)
        ctx:save_for_backward(s, t)
        ctx.name, ctx.sign = q and "igammac" or "igamma", q and -1 or 1
        return share(s, t, q)
      end,
      backward = function(ctx, gy)
        if ctx.needs_input_grad[1] then
          caller.raise("%s: there is no gradient for its first operand; hint: a:detach()", ctx.name)
        end
        local s, t = ctx:saved_tensors()
        return nil, gy * core.exp((s - 1) * t:log() - t - core.lgamma(s)) * ctx.sign
      end,
    }
    local dtype = (a.dtype == "float64" or x.dtype == "float64") and "float64"
      or a:is_floating_point() and a.dtype or x:is_floating_point() and x.dtype
      or core.get_default_dtype()
    local both = core.broadcast_tensors{a:double(), x:double()}
    return Gamma(both[1], both[2], upper):to(dtype)
  end
end
op.igamma("x, other", "the share of the gamma function's integral of x from 0 to other; computed "
  .. "in float64; "
  .. "the gradient is other's", incomplete(false), "inplace")
op.igammac("x, other", "the share of the gamma function's integral of x from other on; computed "
  .. "in float64; "
  .. "the gradient is other's", incomplete(true), "inplace")

return rows
