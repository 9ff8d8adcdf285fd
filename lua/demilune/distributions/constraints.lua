-- distributions.constraints: which values a parameter may have and which numbers a distribution
-- gives. A constraint has check(x) -> a bool tensor, one element a value (a vector is one value
-- where event_dim is 1, a matrix where it is 2), and prints as what it demands.

local core = require "demilune.core"
local dtypes = require "demilune.dtypes"

local Constraint = {__name = "demilune.Constraint"}
Constraint.__index = Constraint
function Constraint:__tostring() return self.text end

local function constraint(text, event_dim, holds)
  local self = setmetatable({text = text, event_dim = event_dim}, Constraint)
  --- Whether each value of a tensor is as demanded: bool, of its shape without event dims.
  ---@param x table tensor
  function self.check(_, x) return holds(x) end
  return self
end

local function whole(x) return x:eq(x:floor()) end

-- A limit as messages show it: a number, or the range of a tensor's elements.
local function limit(v)
  if not core.is_tensor(v) then return ("%g"):format(v) end
  if v:numel() == 0 then return "none" end
  local low, high = v:min():item(), v:max():item()
  return low == high and ("%g"):format(low) or ("%g..%g"):format(low, high)
end

-- Sums of probabilities may be off by the roundings of a few of them.
local function sums_to_1(x)
  return (x:sum(-1) - 1):abs():lt(math.max(1e-6, 8 * dtypes.of[x.dtype].eps))
end

local function positive_definite(x)
  local _, info = core.linalg_cholesky_ex(x:detach())
  local far = (x - x:transpose(-2, -1)):abs():gt(x:abs():amax({-2, -1}, {keepdim = true}) * 1e-5)
  return far:any(-1):any(-1):logical_not():logical_and(info:eq(0))
end

local constraints = {
  real = constraint("a real number", 0, function(x) return x:eq(x) end),
  real_vector = constraint("a vector of real numbers", 1, function(x) return x:eq(x):all(-1) end),
  positive = constraint("more than 0", 0, function(x) return x:gt(0) end),
  nonnegative = constraint("0 or more", 0, function(x) return x:ge(0) end),
  unit_interval = constraint("a number from 0 to 1", 0, function(x)
    return x:ge(0):logical_and(x:le(1))
  end),
  boolean = constraint("0 or 1", 0, function(x) return x:eq(0):logical_or(x:eq(1)) end),
  nonnegative_integer = constraint("a whole number of 0 or more", 0, function(x)
    return whole(x):logical_and(x:ge(0))
  end),
  positive_vector = constraint("a vector of numbers above 0", 1, function(x)
    return x:gt(0):all(-1)
  end),
  simplex = constraint("a vector of numbers of 0 or more that sum to 1", 1, function(x)
    return x:ge(0):all(-1):logical_and(sums_to_1(x))
  end),
  nonnegative_vector = constraint("a vector of numbers of 0 or more, not all 0", 1, function(x)
    return x:ge(0):all(-1):logical_and(x:sum(-1):gt(0))
  end),
  one_hot = constraint("a vector of one 1 and zeros", 1, function(x)
    return x:eq(0):logical_or(x:eq(1)):all(-1):logical_and(x:sum(-1):eq(1))
  end),
  lower_cholesky = constraint("a lower triangular matrix with a diagonal above 0", 2, function(x)
    return x:tril():eq(x):all(-1):all(-1):logical_and(x:diagonal(0, -2, -1):gt(0):all(-1))
  end),
  positive_definite = constraint("a symmetric positive definite matrix", 2, positive_definite),
}

--- Whole numbers from low to high, both included; either may be a tensor that broadcasts.
---@param low any
---@param high any
function constraints.integer_interval(low, high)
  return constraint(("a whole number from %s to %s"):format(limit(low), limit(high)), 0,
    function(x) return whole(x):logical_and(x:ge(low)):logical_and(x:le(high)) end)
end

--- Numbers from low to high, both included.
---@param low any
---@param high any
function constraints.interval(low, high)
  return constraint(("a number from %s to %s"):format(limit(low), limit(high)), 0,
    function(x) return x:ge(low):logical_and(x:le(high)) end)
end

--- Vectors of n counts that sum to total.
---@param total integer
function constraints.counts(total)
  return constraint(("a vector of counts that sum to %d"):format(total), 1, function(x)
    return whole(x):logical_and(x:ge(0)):all(-1):logical_and(x:sum(-1):eq(total))
  end)
end

--- The same of `ndims` dims more: all of the values there must be as demanded.
---@param base table constraint
---@param ndims integer
function constraints.independent(base, ndims)
  if ndims == 0 then return base end
  return constraint(base.text, base.event_dim + ndims, function(x)
    local ok = base:check(x)
    for _ = 1, ndims do ok = ok:all(-1) end
    return ok
  end)
end

return constraints
