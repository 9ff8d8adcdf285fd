-- Functions of one and two operands, elementwise.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

local where, isnan = core.where, core.isnan

local function as_float(x) return x:is_floating_point() and x or x:to(core.get_default_dtype()) end

-- ---- of one ----

op.positive("x", "x itself", function(x)
  if x.dtype == "bool" then caller.raise("positive: x is bool, wanted numbers") end
  return x
end)
op.isposinf("x", "true where x is inf", function(x) return x:eq(math.huge) end)
op.isneginf("x", "true where x is -inf", function(x) return x:eq(-math.huge) end)
-- float64 holds the powers of 2 of every narrower dtype; subnormal float64 numbers are first
-- scaled up, so that 2 to the minus exponent is finite.
op.frexp("x", "m and e of x = m 2^e with |m| in [0.5, 1), e as int32; 0, NaN and infinities are "
  .. "their own m, with e 0", function(x)
  x = as_float(x)
  local wide = x:detach():double()
  local odd = wide:eq(0):logical_or(wide:isfinite():logical_not())
  local small = wide:abs():lt(0x1p-1000)
  local a = where(odd, 1.0, where(small, wide * 0x1p64, wide)):abs()
  local e = a:log2():floor()
  local m = a * core.pow(2.0, -e)
  e = e + m:ge(2):double() - m:lt(1):double() + 1 -- log2 may round across a power of 2
  e = where(odd, 0.0, where(small, e - 64, e))
  local half = (e / 2):trunc()
  local scale = function(k) return core.pow(2.0, -k) end
  local mantissa = (x:double() * scale(half) * scale(e - half)):to(x.dtype)
  return mantissa, e:int()
end)

-- ---- of two ----

op.fmax("x, other", "the larger one; where one is NaN the other", function(x, other)
  return where(isnan(other), x, where(isnan(x), other, core.maximum(x, other)))
end)
op.fmin("x, other", "the smaller one; where one is NaN the other", function(x, other)
  return where(isnan(other), x, where(isnan(x), other, core.minimum(x, other)))
end)
op.clamp_min("x, min#", "x, but nothing below min", function(x, min)
  return core.clamp(x, {min = min})
end, "inplace")
op.clamp_max("x, max#", "x, but nothing above max", function(x, max)
  return core.clamp(x, {max = max})
end, "inplace")
op.floor_divide("x#, other#", "x / other, rounded down", function(x, other)
  return core.div(x, other, {rounding_mode = "floor"})
end, "inplace")
op.rsub("x, other#; alpha = 1", "other - alpha * x", function(x, other, alpha)
  return core.sub(other, x, {alpha = alpha})
end)
op.float_power("x#, exponent#", "x to the exponent, in float64", function(x, exponent)
  local function double(v) return core.is_tensor(v) and v:double() or v + 0.0 end
  return core.pow(double(x), double(exponent))
end, "inplace")
op.ldexp("x, other", "x * 2^other", function(x, other)
  return x * core.pow(2.0, other)
end, "wide inplace")

op.fill("x, value#", "the value in x's shape and dtype", function(x, value)
  return core.masked_fill(x, core.ones_like(x, {dtype = "bool"}), value)
end, "function")

return rows
