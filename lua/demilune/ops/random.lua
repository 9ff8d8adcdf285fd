-- Random numbers of further distributions, made of uniform and normal ones.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local op, rows = require("demilune.ops.define").family()

local function wanted(name, good, text, ...)
  if not good then caller.raise("%s: " .. text, name, ...) end
end

-- Uniform numbers of x's shape and device, in float32 or wider: in [0, 1), or in (0, 1).
local function uniform(x, generator)
  local dtype = x.dtype == "float64" and "float64" or "float32"
  return core.rand_like(x.data, {dtype = dtype, generator = generator})
end
local function open_uniform(x, generator)
  local least = x.dtype == "float64" and 0x1p-54 or 0x1p-25 -- half of the distance of two numbers
  return uniform(x, generator) + least
end

-- op_ that fills x by a function of uniform numbers, which must not see x's history.
local function fill(name, options, doc, check, draw)
  op[name]("x; " .. options .. ", generator?", "fills x with " .. doc, function(x, a, b, c)
    check(a, b)
    return x:copy_(draw(x, a, b, c))
  end, "only_inplace")
end

fill("exponential", "lambd = 1", "numbers of the exponential distribution of rate lambd, "
  .. "1 / lambd on average", function(lambd)
  wanted("exponential_", lambd > 0, "lambd is %g, wanted above 0", lambd)
end, function(x, lambd, generator)
  return core.log1p(-uniform(x, generator)) * (-1 / lambd)
end)
fill("cauchy", "median = 0, sigma = 1", "numbers of the Cauchy distribution: half of "
  .. "them lie within sigma of the median", function(_, sigma)
  wanted("cauchy_", sigma > 0, "sigma is %g, wanted above 0", sigma)
end, function(x, median, sigma, generator)
  return core.tan((open_uniform(x, generator) - 0.5) * math.pi) * sigma + median
end)
fill("log_normal", "mean = 1, std = 2", "exponentials of normal numbers of that mean and "
  .. "standard deviation", function(_, std)
  wanted("log_normal_", std > 0, "std is %g, wanted above 0", std)
end, function(x, mean, std, generator)
  local dtype = x.dtype == "float64" and "float64" or "float32"
  local normal = core.randn_like(x.data, {dtype = dtype, generator = generator})
  return core.exp(normal * std + mean)
end)
op.geometric("x; p, generator?", "fills x with numbers of trials up to the first success, each of "
  .. "probability p", function(x, p, generator)
  wanted("geometric_", p > 0 and p < 1, "p is %g, wanted between 0 and 1", p)
  return x:copy_((open_uniform(x, generator):log() / math.log(1 - p)):ceil():clamp{min = 1})
end, "only_inplace")

-- The largest whole number up to which a dtype has all.
local function largest(dtype)
  local row = dtypes.of[dtype]
  if row.kind == "float" then return math.tointeger(2 / row.eps) end
  return row.kind == "bool" and 1 or math.min(core.iinfo(dtype).max, math.maxinteger - 1)
end

-- Whole numbers from low to high, both included.
local function whole(x, low, high, generator)
  return core.randint(low, high, x.shape, {device = x.device, dtype = "int64",
    generator = generator})
end
op.random("x; from?, to?, generator?", "fills x with whole numbers from from to to, both included, "
  .. "as math.random: random_(n) from 1 to n, random_() from 0 to the dtype's largest whole number",
  function(x, from, to, generator)
    if not from then from, to = 0, largest(x.dtype) end
    if not to then from, to = 1, from end
    wanted("random_", from <= to, "from is %d, to is %d, wanted from <= to", from, to)
    return x:copy_(whole(x, from, to, generator))
  end, "only_inplace")
op.randint_like("x; low, high?, dtype?, device?, requires_grad = false, generator?", "whole "
  .. "numbers in "
  .. "x's shape from low to high, both included; from 1 to low where there is no high",
  function(x, low, high, dtype, device, requires_grad, generator)
    if not high then low, high = 1, low end
    return core.randint(low, high, x.shape, {dtype = dtype or x.dtype, device = device or x.device,
      requires_grad = requires_grad, generator = generator})
  end)

op.normal("mean#, std#?; size...?, dtype?, device?, requires_grad = false, generator?", "normal "
  .. "numbers "
  .. "of the means and standard deviations (1) given, of which one at least is a tensor; of two "
  .. "numbers "
  .. "in a size", function(mean, std, size, dtype, device, requires_grad, generator)
  std = std or 1.0
  wanted("normal", core.is_tensor(std) or std >= 0, "std is %s, wanted 0 or more", std)
  local like = core.is_tensor(mean) and mean or core.is_tensor(std) and std
  if not like then
    wanted("normal", size, "two numbers are given, wanted a size too: normal(0, 1, {2, 3})")
    local n = core.randn(size, {dtype = dtype, device = device, generator = generator}) * std + mean
    return requires_grad and n:requires_grad_() or n
  end
  local shape = (core.is_tensor(mean) and core.is_tensor(std))
    and core.broadcast_shapes(mean.shape, std.shape) or like.shape
  local noise = core.randn(shape, {dtype = like.dtype, device = like.device, generator = generator})
  return noise * std + mean
end)

-- Knuth 1969: as many uniform numbers as have a product above exp(-rate). For rates below 10.
local function few(rate, generator)
  local left, product = core.exp(-rate), core.ones_like(rate)
  local n = core.zeros_like(rate)
  repeat
    product = product * uniform(rate, generator)
    local on = product:gt(left)
    n = n + on:to(n.dtype)
  until not on:any():item()
  return n
end

-- Hoermann 1993, PTRS: a transformed uniform number, taken or refused by the density. For rates
-- from 10 on, others give anything. In float64: the density is the difference of numbers as large
-- as the rate, and float32's roundings of these would decide from rates of 1e5 on.
local function many(rate, generator)
  local b = rate:sqrt() * 2.53 + 0.931
  local a = b * 0.02483 - 0.059
  local log_rate, limit = rate:log(), -3.6224 / (b - 2) + 0.9277
  local shape = core.log(1.1239 + 1.1328 / (b - 3.4))
  local n, done = core.zeros_like(rate), core.zeros_like(rate, {dtype = "bool"})
  repeat
    local u, v = uniform(rate, generator) - 0.5, open_uniform(rate, generator)
    local us = 0.5 - u:abs()
    local k = ((a * 2 / us + b) * u + rate + 0.43):floor()
    local sure = us:ge(0.07):logical_and(v:le(limit))
    local likely = k:ge(0):logical_and((us:ge(0.013)):logical_or(v:le(us)))
    local density = v:log() + shape - core.log(a / (us * us) + b)
    local taken = density:le(k * log_rate - rate - core.lgamma(k + 1))
    taken = sure:logical_or(likely:logical_and(taken)):logical_and(done:logical_not())
    n = core.where(taken, k, n)
    done = done:logical_or(taken)
  until done:all():item()
  return n
end
op.poisson("x; generator?", "numbers of the Poisson distribution, each of its own "
  .. "rate", function(x, g)
  wanted("poisson", x:is_floating_point(), "x is %s, wanted a float", x.dtype)
  local rate = x.data:to(x.dtype == "float64" and "float64" or "float32")
  wanted("poisson", rate:numel() == 0 or rate:ge(0):all():item(), "a rate is not 0 or above")
  local high = rate:ge(10)
  local n = few(core.where(high, 0.0, rate), g)
  if rate:numel() > 0 and high:any():item() then
    n = core.where(high, many(core.where(high, rate, 10.0):double(), g), n)
  end
  return n:to(x.dtype)
end)

return rows
