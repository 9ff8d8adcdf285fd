-- Functions of two bools give what Lua's words give of their elements, whatever the size and the
-- strides: they are computed as bytes.
local dm = require "demilune"

local function number(v) return v and 1 or 0 end
local PAIRS = {
  logical_and = function(a, b) return a and b end,
  logical_or = function(a, b) return a or b end,
  logical_xor = function(a, b) return a ~= b end,
  bitwise_and = function(a, b) return a and b end,
  bitwise_or = function(a, b) return a or b end,
  bitwise_xor = function(a, b) return a ~= b end,
  eq = function(a, b) return a == b end,
  ne = function(a, b) return a ~= b end,
  lt = function(a, b) return number(a) < number(b) end,
  le = function(a, b) return number(a) <= number(b) end,
  gt = function(a, b) return number(a) > number(b) end,
  ge = function(a, b) return number(a) >= number(b) end,
  add = function(a, b) return a or b end,
  mul = function(a, b) return a and b end,
  maximum = function(a, b) return a or b end,
  minimum = function(a, b) return a and b end,
}

-- Bools of a shape, and the same values with other strides.
local function bools(rows, columns) return dm.rand(rows, columns):gt(0.5) end
local function turned(t) return t:t():contiguous():t() end
local function flat(t) return t:reshape(-1):tolist() end

local function agrees(name, x, y, to)
  local got = dm[name](x, y)
  assert.equal("bool", got.dtype)
  local a, b, wanted = flat(x:expand(to.shape)), flat(y:expand(to.shape)), {}
  for i = 1, #a do wanted[i] = PAIRS[name](a[i], b[i]) end
  assert.same(wanted, flat(got), name)
end

describe("bools", function()
  it("by pairs: sizes round vectors and blocks, strides, rows, columns, numbers", function()
    for name in pairs(PAIRS) do
      for _, size in ipairs{1, 3, 16, 63, 64, 65, 513, 1100} do
        agrees(name, bools(1, size), bools(1, size), dm.zeros(1, size))
      end
      local x, y = bools(37, 70), bools(37, 70)
      agrees(name, x, turned(y), x)
      agrees(name, turned(x), turned(y), x)
      agrees(name, x:flip(2):narrow(2, 3, 60), y:narrow(2, 9, 60), dm.zeros(37, 60))
      agrees(name, x, y:narrow(1, 5, 1), x)
      agrees(name, x:narrow(2, 5, 1), y, x)
      agrees(name, x, dm.tensor(true), x)
      assert.equal(0, dm[name](bools(0, 3), bools(0, 3)):numel())
    end
  end)

  it("in place, and one alone", function()
    local x, y = bools(9, 70), bools(9, 70)
    local both = x:logical_and(y)
    local z = turned(x)
    assert.is_true(dm.equal(both, x:clone():logical_and_(y)))
    assert.is_true(dm.equal(both, z:logical_and_(y)))
    assert.is_true(dm.equal(both, z))
    assert.is_true(dm.equal(x:eq(y), x:logical_xor(y):logical_not()))
    assert.is_true(dm.equal(x:logical_not(), turned(x):logical_not()))
    for _, dtype in ipairs{"bool", "uint8", "int64", "float16", "float64"} do
      for _, t in ipairs{x:to(dtype), turned(x:to(dtype))} do
        local not_t = t:logical_not()
        assert.is_true(rawequal(t, t:logical_not_()))
        assert.equal(dtype, t.dtype)
        assert.is_true(t:ne(0):equal(not_t))
      end
    end
    assert.is_true(x:isfinite():all():item())
    assert.is_false(x:isnan():any():item())
  end)
end)
