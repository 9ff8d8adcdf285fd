-- Operands that lie across the runs of a pointwise op, as transposed matrices do, are read in
-- tiles, and short runs in blocks: results are those of contiguous copies, bit for bit.
local dm = require "demilune"

local DTYPES = {"bool", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
  "float64"}

local function numbers(dtype, ...)
  local t = dm.randn(...) * 50
  return dtype == "bool" and t:gt(0) or dtype == "uint8" and t:abs():to(dtype) or t:to(dtype)
end

local function same(f, ...)
  local dense = {}
  for i, t in ipairs{...} do dense[i] = t:contiguous() end
  assert.is_true(dm.equal(f(table.unpack(dense)), f(...)))
end
local function add(x, y) return x + y end

describe("operands that lie across", function()
  it("of each dtype, in sizes round tiles", function()
    for _, dtype in ipairs(DTYPES) do
      for _, size in ipairs{{64, 64}, {17, 257}, {33, 512}, {1030, 4}, {4, 1030}, {70, 300}} do
        local rows, columns = table.unpack(size)
        local x, y = numbers(dtype, columns, rows):t(), numbers(dtype, columns, rows):t()
        local z = numbers(dtype, rows, columns)
        same(add, x, y)
        same(add, x, z)
        same(add, z, y)
        same(add, x, y:narrow(1, 2, 1))
        same(add, x, y:narrow(2, 2, 1))
        same(add, x:flip(1), y:flip(2))
      end
    end
  end)

  it("of two dtypes, of one operand, of three, in more dims", function()
    for _, dtype in ipairs(DTYPES) do
      local x = numbers(dtype, 75, 66):t()
      same(add, x, numbers("float32", 75, 66):t())
      same(add, x, numbers("float32", 66, 75))
      same(function(a) return a:float():neg() end, x)
      same(function(a, b, c) return dm.where(a, b, c) end, numbers("bool", 75, 66):t(), x,
        numbers(dtype, 66, 75))
    end
    local a, b = dm.randn(5, 40, 7, 9), dm.randn(9, 7, 40, 5)
    for _, order in ipairs{{4, 3, 2, 1}, {4, 2, 3, 1}} do
      local c = dm.randn(table.unpack(order[2] == 3 and {5, 40, 7, 9} or {5, 7, 40, 9}))
      same(add, c, b:permute(table.unpack(order)))
    end
    same(add, a, b:permute(4, 3, 2, 1))
    same(add, a:permute(2, 3, 4, 1), b:permute(3, 2, 1, 4))
  end)

  it("in place, with a gradient, and on any number of threads", function()
    local x, y = dm.randn(130, 70), dm.randn(70, 130)
    assert.is_true(dm.equal(x + y:t(), x:clone():add_(y:t())))
    assert.is_true(dm.equal(x:t() + y, x:clone():t():add_(y)))
    local square = dm.randn(80, 80)
    assert.is_true(dm.equal(square + square:t(), square:clone():add_(square:t())))
    local p = dm.parameter(x:clone())
    p:t():mul(y):sum():backward()
    assert.is_true(dm.allclose(y:t():contiguous(), p.grad))
    local a, b = dm.randn(700, 300), dm.randn(300, 700)
    local before = dm.get_num_threads()
    dm.set_num_threads(1)
    local one = a + b:t()
    dm.set_num_threads(2)
    local two = a + b:t()
    dm.set_num_threads(before)
    assert.is_true(dm.equal(one, two))
  end)
end)

-- Runs of few elements are computed several at once, those of 33 and more one by one; blocks have
-- 512 elements.
describe("short runs", function()
  local function broadcast(f, ...)
    local dense, shape = {}, f(...).shape
    for i, t in ipairs{...} do dense[i] = t:expand(shape):contiguous() end
    assert.is_true(dm.equal(f(table.unpack(dense)), f(...)))
  end

  it("of each dtype, in sizes round blocks", function()
    for _, dtype in ipairs(DTYPES) do
      for _, size in ipairs{{2, 2}, {3, 1, 2}, {257, 2}, {171, 3}, {65, 8}, {17, 31}, {16, 32},
        {33, 32}, {20, 33}, {3, 2, 2, 1, 2}, {40, 3, 5, 7}, {1100, 1, 2}, {2, 513, 2}} do
        local x = numbers(dtype, size)
        local n = #size
        local wider = {table.unpack(size)}
        wider[n] = wider[n] + 1
        broadcast(add, x, numbers(dtype, size[n]))
        broadcast(add, numbers(dtype, size[n]), x)
        broadcast(add, x, numbers(dtype, wider):narrow(n, 2, size[n]))
        broadcast(add, x, numbers(dtype, wider):narrow(n, 1, size[n]):flip(n))
        for d = 1, n do
          local one, other = {table.unpack(size)}, {table.unpack(size)}
          one[d], other[d % n + 1] = 1, 1
          broadcast(add, x, numbers(dtype, one))
          broadcast(add, numbers(dtype, one), numbers(dtype, other))
          broadcast(add, numbers("float32", one), numbers(dtype, other))
          broadcast(dm.where, numbers("bool", one), x, numbers(dtype, other))
          broadcast(function(a) return a * 3 end, numbers(dtype, wider):narrow(n, 1, size[n]))
        end
      end
    end
  end)

  it("in place, and on any number of threads", function()
    local x, row, column = dm.randn(9000, 5), dm.randn(5), dm.randn(9000, 1)
    local before = dm.get_num_threads()
    dm.set_num_threads(1)
    local one = x * row + column
    dm.set_num_threads(2)
    assert.is_true(dm.equal(one, x * row + column))
    assert.is_true(dm.equal(one, x:clone():mul_(row):add_(column)))
    dm.set_num_threads(before)
    local wide = dm.randn(90, 7)
    local want = wide:clone()
    want:narrow(2, 3, 4):copy_(want:narrow(2, 3, 4) * 2)
    wide:narrow(2, 3, 4):mul_(2)
    assert.is_true(dm.equal(want, wide))
    assert.equal(0, (dm.zeros(0, 3) + row:narrow(1, 1, 3)):numel())
  end)
end)
