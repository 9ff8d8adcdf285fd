-- Order statistics, counts and rearrangements: error messages. Values are in
-- spec/golden/order.lua.

local dm = require "demilune"

local NAN = 0 / 0

local function refuses(words, op, ...)
  local ok, message = pcall(dm[op], ...)
  assert.is_false(ok, op .. " took what it cannot take")
  assert.matches(words, message, 1, true)
end

describe("ops that choose elements", function()
  it("say what is wrong", function()
    refuses("nothing to choose from", "median", dm.zeros(0))
    refuses("nothing to choose from", "mode", dm.zeros(2, 0))
    refuses("k is 4, wanted 1 to 3, the size of dim 1", "kthvalue", dm.zeros(3), 4)
    refuses("k is 0", "kthvalue", dm.zeros(3), 0)
    refuses("side is left", "searchsorted", dm.zeros(3), 1, {right = true, side = "left"})
    refuses("{3, 3}", "searchsorted", dm.zeros(2, 3), dm.zeros(3, 3))
    refuses("dim 1 do not fit", "take_along_dim", dm.zeros(2, 3),
      dm.ones(3, 1, {dtype = "int64"}), 2)
    refuses("as many dims", "take_along_dim", dm.zeros(2, 3), dm.ones(3, {dtype = "int64"}), 2)
    refuses("1 elements for the 2", "masked_scatter", dm.zeros(3),
      dm.tensor{true, true, false}, dm.zeros(1))
    refuses("wanted bool", "masked_scatter", dm.zeros(3), dm.zeros(3), dm.zeros(3))
  end)

  it("leave x as it was when masked_scatter_ has too few elements", function()
    local x = dm.zeros(3)
    assert.is_false(pcall(x.masked_scatter_, x, dm.tensor{true, true, false}, dm.ones(1)))
    assert.same({0, 0, 0}, x:totable())
    assert.is_false(pcall(x.masked_scatter_, x, dm.tensor{{true}, {true}}, dm.ones(6)))
    assert.same({0, 0, 0}, x:totable())
  end)
end)

describe("sorts of int64", function()
  it("give one order, of numbers that lie near each other and far apart", function()
    dm.manual_seed(7)
    local _ <close> = dm.device "cpu"
    for _, from in ipairs{-9, -2 ^ 31 | 0, -2 ^ 31 - 1 | 0, -2 ^ 40 | 0, math.mininteger} do
      for _, n in ipairs{1, 2, 40, 64, 65, 700} do
        local x = dm.randint(from, -(from + 1), {3, n})
        x[{1, 1}], x[{2, n}] = from, -(from + 1)
        for _, descending in ipairs{true, false} do
          local values, at = x:sort{dim = -1, descending = descending, stable = true}
          assert.is_true(dm.equal(values, x:gather(-1, at)))
          for i = 1, 3 do
            local want = x[i]:totable()
            table.sort(want, function(a, b)
              if descending then return a > b end
              return a < b
            end)
            assert.same(want, values[i]:totable())
          end
        end
      end
    end
  end)
end)

-- Elements of at most 32 bits are sorted as words, the others as pairs, and a few by counting.
describe("sorts of elements of each size", function()
  it("give one order, equal ones as they came, NaN the largest", function()
    dm.manual_seed(2)
    local options = {device = "cpu"}
    for _, dtype in ipairs{"bool", "uint8", "int8", "int16", "int32", "float16", "bfloat16",
      "float32"} do
      for _, n in ipairs{1, 2, 7, 16, 31, 33, 63, 64, 65, 130, 511, 700} do
        local x = (dm.randn(3, n, options) * 40):round()
        if dtype == "bool" or dtype == "uint8" then x = x:abs() end
        if dtype == "float32" then x:narrow(2, 1, 1):mul_(1e-42) end -- subnormal
        x = x:to(dtype)
        if x.dtype:find "float" then
          x[{2, n}], x[{2, (n + 1) // 2}], x[{3, 1}] = NAN, NAN, -math.huge
          x[{1, n}], x[{1, (n + 1) // 2}] = -0.0, 0
        elseif dtype == "int32" then
          x[{1, 1}], x[{2, n}], x[{3, n}] = -2 ^ 31 | 0, 2 ^ 31 - 1 | 0, 2 ^ 31 - 1 | 0
        end
        local wide = x:to(x.dtype:find "float" and "float64" or "int64")
        for _, descending in ipairs{true, false} do
          local by = {dim = -1, descending = descending, stable = true}
          local values, at = x:sort(by)
          local want, order = wide:sort(by)
          assert.is_true(dm.equal(order, at), ("%s, %d"):format(dtype, n))
          assert.is_true(dm.allclose(want, values:to(want.dtype), {equal_nan = true, rtol = 0,
            atol = 0}))
          local across, at_across = x:t():contiguous():sort{dim = 1, descending = descending,
            stable = true}
          assert.is_true(dm.equal(at, at_across:t()))
          assert.is_true(dm.allclose(values, across:t(), {equal_nan = true}))
          local k = (n + 1) // 2
          local _, first = x:topk(k, {largest = descending})
          assert.is_true(dm.equal(order:narrow(2, 1, k), first))
        end
        local k = (n + 2) // 3
        local middle = dm.kthvalue(x:float(), k)
        assert.is_true(dm.allclose(wide:sort(2):select(2, k):float(), middle, {equal_nan = true}))
      end
    end
  end)
end)

describe("the first of many", function()
  it("are those of a whole sort, equal ones in their order, NaN the largest", function()
    dm.manual_seed(1)
    for _, dtype in ipairs{"float32", "bfloat16", "int64"} do
      local x = (dm.randn(3, 700, {device = "cpu"}) * 40):round() -- many are equal
      if dtype ~= "int64" then x[{2, 11}], x[{2, 600}], x[{3, 5}] = NAN, NAN, -math.huge end
      x = x:to(dtype)
      for _, largest in ipairs{true, false} do
        local sorted, at = x:sort{dim = -1, descending = largest, stable = true}
        for _, k in ipairs{1, 2, 5, 16, 17, 21, 22, 100, 341, 342, 700} do
          local values, i = x:topk(k, {largest = largest})
          assert.is_true(dm.equal(at:narrow(2, 1, k), i), ("%s, k = %d"):format(dtype, k))
          assert.is_true(dm.allclose(sorted:narrow(2, 1, k), values, {equal_nan = true}))
        end
      end
    end
  end)

  it("are drawn alike, whether few or many are asked for", function()
    local w = dm.rand(300, {device = "cpu"})
    local function drawn(k)
      dm.manual_seed(7)
      return w:multinomial(k)
    end
    local many = drawn(65) -- by a sort
    for _, k in ipairs{1, 2, 64} do assert.is_true(dm.equal(many:narrow(1, 1, k), drawn(k))) end
  end)
end)

describe("dm.bucketize", function()
  it("counts the boundaries below, of one number or of blocks of them", function()
    local big = math.maxinteger
    for _, dtype in ipairs{"int64", "float32"} do
      for _, n in ipairs{0, 1, 2, 3, 5, 8, 31, 64, 65} do
        local edges, x = {}, {}
        for i = 1, n do edges[i] = i // 2 * 3 end -- pairs of equal ones
        for i = 1, 1030 do x[i] = i * 7 % 109 - 3 end
        if dtype == "int64" then
          x[5], x[6] = big, math.mininteger
          if n > 8 then edges[n - 1], edges[n] = big, big end
        end
        local b = dm.tensor(edges, {dtype = "int64", device = "cpu"}):to(dtype)
        local t = dm.tensor(x, {dtype = "int64", device = "cpu"}):to(dtype)
        for _, right in ipairs{false, true} do
          local got = t:bucketize(b, {right = right}):totable()
          for i, v in ipairs(x) do
            local count = 0
            for _, edge in ipairs(edges) do
              if edge < v or right and edge == v then count = count + 1 end
            end
            assert.equal(count + 1, got[i], ("%s, %d edges, x = %d"):format(dtype, n, v))
          end
          assert.equal(got[3], t[3]:bucketize(b, {right = right}):item())
        end
      end
    end
    local edges = dm.tensor({-math.huge, 0, math.huge, NAN}, {device = "cpu"})
    local x = dm.tensor({NAN, -0.0, math.huge}, {device = "cpu"})
    assert.same({4, 2, 3}, x:bucketize(edges):totable())
    assert.same({5, 3, 4}, x:bucketize(edges, {right = true}):totable())
    assert.same({true, true, true}, dm.isin(x, edges):totable())
  end)
end)

describe("ops that count", function()
  it("count positions from 1", function()
    assert.same({1, 0, 2}, dm.bincount(dm.tensor{1, 3, 3}):totable())
    refuses("x holds 0, wanted positions, which count from 1", "bincount", dm.tensor{0, 1})
  end)

  it("say what is wrong", function()
    refuses("wanted positions as int64", "bincount", dm.tensor{0.5})
    refuses("weights have shape {2}", "bincount", dm.tensor{1, 2, 3}, {weights = dm.ones(2)})
    refuses("more elements than memory", "bincount", dm.tensor{math.maxinteger})
    refuses("0 bins", "histc", dm.zeros(3), {bins = 0})
    refuses("from 2 to 1", "histc", dm.zeros(3), {min = 2, max = 1})
    refuses("wanted a range of numbers", "histc", dm.tensor{1, 0 / 0})
    refuses("nanmean: x is int64", "nanmean", dm.tensor{1, 2})
    refuses("logcumsumexp: x is int64", "logcumsumexp", dm.tensor{1, 2}, 1)
    refuses("dim 3 is out of range", "cumprod", dm.zeros(2), 3)
  end)
end)

describe("other arrangements", function()
  it("say what is wrong", function()
    refuses("wanted a vector or a matrix", "diag", dm.zeros(2, 2, 2))
    refuses("wanted two of the result's 2", "diag_embed", dm.zeros(2), {dim1 = 1, dim2 = 5})
    refuses("wanted 1 to 15 dims", "diag_embed", dm.tensor(1.0))
    refuses("wanted at most 2^30", "diagflat", dm.zeros(2), math.mininteger)
    refuses("wanted two of two or more", "rot90", dm.zeros(2))
    refuses("dim 1 is given twice", "rot90", dm.zeros(2, 2), 1, {dims = {1, 1}})
    refuses("wanted 2 dims or more", "fliplr", dm.zeros(2))
    local x = dm.zeros(2, 3)
    refuses("sums over 3 dims", "tensordot", x, x, {dims = 3})
    refuses("dim 2 of shape {2, 3} and dim 1", "tensordot", x, x, {dims = 1})
    refuses("dims_self names 1 dims", "tensordot", x, x, {dims_self = {1}})
    refuses("given twice", "tensordot", x, x, {dims_self = {1, 1}, dims_other = {1, 2}})
  end)
end)

describe("running extremes", function()
  -- The definition: NaN counts as best, and of equals the last is taken.
  local function defined(v, better)
    local values, at = {}, {}
    for i = 1, #v do
      local best = values[i - 1]
      local stays = i > 1 and v[i] == v[i] and (best ~= best or better(best, v[i]))
      values[i], at[i] = stays and best or v[i], stays and at[i - 1] or i
    end
    return values, at
  end

  local WAYS = {cummax = function(a, b) return a > b end, cummin = function(a, b) return a < b end}
  local function shown(v)
    local words = {}
    for i = 1, #v do words[i] = v[i] ~= v[i] and "nan" or ("%g"):format(v[i]) end
    return table.concat(words, " ")
  end

  it("are those of the definition, along rows and columns", function()
    dm.manual_seed(8)
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "int64", "uint8"} do
      for _, shape in ipairs{{2, 300}, {300, 2}, {40, 19}, {2, 1031}, {1, 1}} do
        local x = dm.randint(1, 60, shape):to(dtype)
        if dtype == "float32" and x:numel() > 1 then x[1][2] = NAN end
        for op, better in pairs(WAYS) do
          for dim = 1, 2 do
            local values, at = dm[op](x, dim)
            for i = 1, shape[3 - dim] do
              local want, where = defined(x:select(3 - dim, i):totable(), better)
              local what = ("%s %s of %d x %d, dim %d"):format(op, dtype, shape[1], shape[2], dim)
              assert.equal(shown(want), shown(values:select(3 - dim, i):totable()), what)
              assert.same(where, at:select(3 - dim, i):totable(), what)
            end
          end
        end
      end
    end
  end)

  it("send the gradient to the elements that were taken", function()
    local x = dm.tensor({{1.0, 3, 3, 2}, {4, 0, 5, 5}}, {requires_grad = true})
    local y = dm.cummax(x, 2)
    y:backward{gradient = dm.tensor{{1, 10, 100, 1000}, {1, 10, 100, 1000}}}
    assert.same({{1, 10, 1100, 0}, {11, 0, 100, 1000}}, x.grad:totable())
  end)

  it("share the gradient of all elements' median among equals, as PyTorch 2.15 does", function()
    for _, name in ipairs{"median", "nanmedian"} do
      local x = dm.tensor{1, 2, 2, 0, 0, -1, 2, -1, 3, 3, 0, 1}:float():requires_grad_()
      x[name](x):backward()
      assert.same({.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, .5}, x.grad:totable())
    end
    local y = dm.tensor({0 / 0, 1, 0 / 0}):requires_grad_():median():item()
    assert.is_true(y ~= y)
  end)
end)
