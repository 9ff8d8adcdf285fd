-- An op with a faster method for some shapes or numbers gives the result of its general method.

local dm = require "demilune"
require "spec.helper"
local F = dm.nn.functional
local DEVICE = require("spec.device").type

local FLOATS = {"float32", "float64", "float16", "bfloat16"}
local EPS = {float32 = 2^-23, float64 = 2^-52, float16 = 2^-10, bfloat16 = 2^-7}

local function close(a, b, dtype)
  assert.equal(b.dtype, a.dtype)
  assert.is_true(dm.allclose(a:double(), b:double(),
    {rtol = 4 * EPS[dtype], atol = 1e-30, equal_nan = true}))
end

describe("a power that is a number", function()
  it("is that of a tensor of it, with its gradient", function()
    for _, dtype in ipairs(FLOATS) do
      for _, p in ipairs{1, 2, 3, 0.5, -0.5, -1, -2, 2.0, 2.5} do
        local x = dm.cat{dm.rand(70) + 0.1, dm.tensor{0.0, 1.0, 1 / 0, 0 / 0}}:to(dtype)
        if p == math.floor(p) then x = dm.cat{x, -x} end
        local a, b = x:clone():requires_grad_(), x:clone():requires_grad_()
        local ya, yb = a^p, b^dm.full_like(x, p)
        close(ya, yb, dtype)
        ya:sum():backward()
        yb:sum():backward()
        close(a.grad, b.grad, dtype)
      end
    end
  end)

  it("of integers is an integer", function()
    assert.same({4, 9, 25}, (dm.tensor{-2, 3, 5}^2):totable())
    assert.equal("int64", (dm.tensor{-2, 3, 5}^3).dtype)
    assert.same({0.5, 2.0}, (dm.tensor{2, 0.5}^-1):totable())
  end)
end)

-- To the bit on the CPU; the kernels of other devices sum in another order.
local function same(a, b, dtype, n)
  if DEVICE == "cpu" then return assert.is_true(dm.equal(a, b)) end
  local eps = EPS[dtype] + n * EPS.float64 + (dtype == "float64" and 0 or n^0.5 * EPS.float32)
  assert.is_true(dm.allclose(a:double(), b:double(), {rtol = 16 * eps, atol = 16 * eps}))
end

describe("softmax of lines that lie side by side", function()
  for _, shape in ipairs{{3, 37, 41}, {5, 2}, {2, 300, 17}, {70000, 3}} do
    it(("%s"):format(table.concat(shape, " x ")), function()
      for _, dtype in ipairs(FLOATS) do
        for _, op in ipairs{"softmax", "log_softmax"} do
          local dim = #shape - 1
          local a = dm.randn(shape):to(dtype):requires_grad_()
          local b = a:detach():transpose(dim, -1):contiguous():requires_grad_()
          local ya, yb = F[op](a, dim), F[op](b, -1)
          same(ya, yb:transpose(dim, -1), dtype, shape[dim])
          local g = dm.randn(shape):to(dtype)
          ya:backward(g)
          yb:backward(g:transpose(dim, -1):contiguous())
          same(a.grad, b.grad:transpose(dim, -1), dtype, shape[dim])
        end
      end
    end)
  end
end)

it("a norm without weights is one with weights of 1", function()
  for _, dtype in ipairs(FLOATS) do
    local x = dm.randn(5, 12, 7):to(dtype)
    close(F.layer_norm(x, {12, 7}),
      F.layer_norm(x, {12, 7}, dm.ones(12, 7):to(dtype), dm.zeros(12, 7):to(dtype)), dtype)
    close(F.group_norm(x, 4),
      F.group_norm(x, 4, dm.ones(12):to(dtype), dm.zeros(12):to(dtype)), dtype)
  end
end)

describe("a copy in another order", function()
  -- each element of x is its own index, modulo the number of values that the dtype has
  local function check(shape, order, dtype)
    local n, steps = 1, {}
    for d = #shape, 1, -1 do steps[d], n = n, n * shape[d] end
    local most = ({bool = 2, uint8 = 251, bfloat16 = 251})[dtype] or 2039
    local x = (dm.arange(0, n - 1) % most):to(dtype):view(table.unpack(shape))
    local got = x:permute(table.unpack(order)):contiguous():flatten():to "int64":totable()
    local at, index = 0, {}
    local function walk(k, position)
      if k > #order then
        at = at + 1
        if got[at] ~= position % most then
          error(("%s, %s: element %d is %s"):format(dtype, table.concat(index, ","), at, got[at]))
        end
        return
      end
      local d = order[k]
      for i = 0, shape[d] - 1 do
        index[k] = i
        walk(k + 1, position + i * steps[d])
      end
    end
    walk(1, 0)
    assert.equal(n, at)
  end

  it("moves every element", function()
    for _, dtype in ipairs{"float32", "float64", "float16", "bfloat16", "uint8", "bool", "int64"} do
      check({70, 33}, {2, 1}, dtype)
      check({4, 3}, {2, 1}, dtype)
      check({5, 6, 7}, {3, 1, 2}, dtype)
      check({3, 33, 4, 5}, {1, 3, 4, 2}, dtype)
      check({2, 5, 4, 35}, {4, 2, 1, 3}, dtype)
    end
  end)

  it("into a part of a tensor, and nothing else", function()
    local x = dm.arange(0, 40 * 50 - 1):view(40, 50)
    local y = dm.full({52, 44}, -1, {dtype = "int64"})
    y:narrow(1, 2, 50):narrow(2, 3, 40):copy_(x:t())
    assert.is_true(dm.equal(y:narrow(1, 2, 50):narrow(2, 3, 40):t():clone(), x))
    assert.equal(52 * 44 - 2000, y:eq(-1):sum():item())
  end)
end)

it("topk is the beginning of sort, of equal numbers and NaNs too", function()
  for _, n in ipairs{1, 30, 200, 3000} do
    local x = dm.randint(-20, 19, {3, n}):float()
    x:narrow(2, 1, 1):fill_(0 / 0)
    for _, k in ipairs{1, 2, 10, n // 2} do
      for _, largest in ipairs{true, false} do
        if k >= 1 and k <= n then
          local values, at = x:topk(k, {largest = largest})
          local sorted, order = x:sort{dim = -1, descending = largest, stable = true}
          assert.is_true(dm.equal(order:narrow(2, 1, k), at))
          assert.is_true(dm.allclose(sorted:narrow(2, 1, k), values, {equal_nan = true}))
        end
      end
    end
  end
end)
