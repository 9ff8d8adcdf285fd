-- Pointwise ops of 16-bit floats, which short formulas compute without float32 in memory: their
-- results are those of float32, rounded once, for any length and with numbers as operands.

local dm = require "demilune"
local F = dm.nn.functional

local NAN, INF = 0 / 0, math.huge
local LENGTHS = {1, 5, 31, 32, 33, 64, 95, 513, 1100}

-- The ops of tensors x, y and z, of one dtype, and of numbers.
local OPS = {
  square = function(x) return x:square() end,
  round = function(x) return x:round() end,
  ["round to tenths"] = function(x) return x:round(1) end,
  sqrt = function(x) return x:sqrt() end,
  relu6 = function(x) return F.relu6(x) end,
  hardswish = function(x) return F.hardswish(x) end,
  softshrink = function(x) return F.softshrink(x, 0.25) end,
  clamp = function(x) return x:clamp{min = -0.5, max = 0.75} end,
  add = function(x, y) return x + y end,
  ["add a number"] = function(x) return x + 0.1 end,
  ["subtract from a number"] = function(x) return 0.1 - x end,
  ["a number of a tensor"] = function(x, y) return x * y:narrow(1, 1, 1) end,
  ["times -0"] = function(x) return x * -0.0 end,
  ["times NaN"] = function(x) return x * NAN end,
  ["divide a number"] = function(x) return dm.full_like(x:narrow(1, 1, 1), 3) / x end,
  maximum = function(x, y) return dm.maximum(x, y) end,
  nan_to_num = function(x) return x:nan_to_num(7, 1000, -1000) end,
  lerp = function(x, y, z) return dm.lerp(x, y, z) end,
  ["lerp by a number"] = function(x, y) return dm.lerp(x, y, 0.3) end,
  addcmul = function(x, y, z) return dm.addcmul(x, y, z, {value = 0.3}) end,
}

local function same(want, got, what)
  assert.equal(want.dtype, got.dtype, what)
  local nan = want:isnan()
  assert.is_true(dm.equal(nan, got:isnan()), what)
  want, got = want:masked_fill(nan, 0), got:masked_fill(nan, 0)
  assert.is_true(dm.equal(want, got), what)
  assert.is_true(dm.equal(want:signbit(), got:signbit()), what)
end

-- Numbers of a dtype, among them NaN, infinities, both zeros and a subnormal one.
local function numbers(n, dtype)
  local x = dm.randn(n):mul(3)
  for i, v in ipairs{NAN, INF, -INF, -0.0, 0, 6e-8} do
    if n > 6 * i then x[6 * i] = v end
  end
  return x:to(dtype)
end

describe("short formulas of 16-bit floats", function()
  for name, op in pairs(OPS) do
    it("round once: " .. name, function()
      local _ <close> = dm.device "cpu"
      dm.manual_seed(11)
      for _, dtype in ipairs{"float16", "bfloat16"} do
        for _, n in ipairs(LENGTHS) do
          local x, y, z = numbers(n, dtype), numbers(n, dtype), numbers(n, dtype)
          local want = op(x:float(), y:float(), z:float()):to(dtype)
          same(want, op(x, y, z), ("%s %d"):format(dtype, n))
          if n == 1100 then -- rows that lie apart, and columns
            local function apart(t) return t:reshape(10, 110):t():slice(2, 1, -1, 3) end
            same(apart(want), apart(op(x, y, z)), dtype)
          end
        end
      end
    end)
  end

  it("write into their operands", function()
    local _ <close> = dm.device "cpu"
    for _, dtype in ipairs{"float16", "bfloat16"} do
      for _, n in ipairs(LENGTHS) do
        local x, y = numbers(n, dtype), numbers(n, dtype)
        local want = x:float():mul(y:float()):to(dtype):float():add(0.1):to(dtype)
        same(want, x:mul_(y):add_(0.1), dtype)
      end
    end
  end)

  it("have gradients that are rounded once", function()
    local _ <close> = dm.device "cpu"
    local ACTIVATIONS = {
      relu = F.relu, hardtanh = F.hardtanh, hardswish = F.hardswish, sqrt = dm.sqrt,
      reciprocal = dm.reciprocal, leaky_relu = F.leaky_relu,
    }
    for name, f in pairs(ACTIVATIONS) do
      for _, dtype in ipairs{"float16", "bfloat16"} do
        local x = dm.rand(700):add(0.5):to(dtype):requires_grad_()
        local g = dm.randn(700):to(dtype)
        local wide = x:detach():float():requires_grad_()
        local y, wide_y = f(x), f(wide)
        y:backward{gradient = g}
        wide_y:backward{gradient = g:float()}
        -- a gradient of y reads y, which is rounded
        local exact = name ~= "sqrt" and name ~= "reciprocal"
        local apart = (x.grad:float() - wide.grad:to(dtype):float()):abs()
        local most = exact and 0 or (dtype == "float16" and 2 ^ -8 or 2 ^ -5)
        assert.is_true((apart / wide.grad:abs():clamp{min = 1e-6}):amax():item() <= most, name)
      end
    end
  end)
end)
