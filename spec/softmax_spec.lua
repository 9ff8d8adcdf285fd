-- softmax and log_softmax on the CPU. Rows, whose vectors end early, are held against float64.
-- Along a dim that is not the last, slices side by side are worked on together: values and
-- gradients have the bits that the same slices have along the last dim.
local dm = require "demilune"

--- Equal bits, or NaN in both.
local function same(want, got, what)
  local a, b = want:double(), got:double()
  local differ = a:ne(b):logical_and(a:isnan():logical_and(b:isnan()):logical_not())
  assert.equal(0, differ:sum():item(), what)
end

--- Both functions of x along dim, and their gradients, against those of x with dim moved last.
local function check(x, dim, what)
  for _, name in ipairs{"softmax", "log_softmax"} do
    local a = x:detach():requires_grad_()
    local b = x:transpose(dim, -1):contiguous():detach():requires_grad_()
    local upstream = dm.randn(a.shape, {dtype = "float64"}):to(x.dtype)
    local y, z = a[name](a, dim), b[name](b, -1)
    same(z, y:transpose(dim, -1), what .. " " .. name)
    y:backward(upstream)
    z:backward(upstream:transpose(dim, -1):contiguous())
    same(b.grad, a.grad:transpose(dim, -1), what .. " gradient of " .. name)
  end
end

describe("softmax of rows", function()
  local LENGTHS = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 47, 48, 63, 64, 65, 100,
    127, 129, 1000, 4097}

  -- What rounds once: a result, and a gradient of several terms.
  local ROUNDING = {float32 = 2 ^ -22, bfloat16 = 2 ^ -8, float16 = 2 ^ -11}

  local function near(want, got, allowed, what)
    local scale = math.max(1, want:abs():max():item())
    local off = (want - got:double()):abs():max():item() / scale
    assert.is_true(off <= allowed, ("%s: off by %g"):format(what, off))
  end

  for dtype, rounding in pairs(ROUNDING) do
    it("is near float64's for every length of a row in " .. dtype, function()
      local _ <close> = dm.device "cpu"
      for _, n in ipairs(LENGTHS) do
        for _, name in ipairs{"softmax", "log_softmax"} do
          local x = dm.randn({3, n}, {dtype = "float64"}):mul(4):to(dtype)
          local upstream = dm.randn({3, n}, {dtype = "float64"}):to(dtype)
          local a, b = x:detach():requires_grad_(), x:double():requires_grad_()
          local y, z = a[name](a, -1), b[name](b, -1)
          y:backward(upstream)
          z:backward(upstream:double())
          local what = ("%s of %d"):format(name, n)
          near(z:detach(), y:detach(), 2 * rounding + 2 ^ -24 * math.sqrt(n), what)
          -- the gradient reads the rounded y, in sums of n terms
          near(b.grad, a.grad, rounding * (8 + math.sqrt(n)), "gradient of " .. what)
        end
      end
    end)

    it("passes NaN and infinities on in " .. dtype, function()
      local _ <close> = dm.device "cpu"
      for _, n in ipairs(LENGTHS) do
        for _, value in ipairs{0 / 0, math.huge, -math.huge} do
          local x = dm.randn({3, n}, {dtype = "float64"}):to(dtype)
          x:select(1, 1):select(1, n):fill_(value)
          x:select(1, 2):select(1, 1):fill_(value)
          x:select(1, 3):fill_(value)
          for _, name in ipairs{"softmax", "log_softmax"} do
            local y, want = x[name](x, -1):double(), x:double()[name](x:double(), -1)
            assert.is_true(dm.allclose(y, want, {rtol = 4 * rounding, atol = 8 * rounding,
              equal_nan = true}), ("%s of %d numbers with %g"):format(name, n, value))
          end
        end
      end
    end)
  end
end)

describe("softmax of columns", function()
  -- {shape, dim}: few and many rows, blocks that end early or reach into several outer
  -- indices, slices too few for a block, and slices too long to be kept
  local cases = {
    {{1, 40}, 1}, {{7, 16}, 1}, {{33, 15}, 1}, {{33, 17}, 1}, {{65, 131}, 1}, {{1000, 70}, 1},
    {{3, 5, 64}, 2}, {{3, 31, 33}, 2}, {{50, 10, 2}, 2}, {{9, 40, 7, 3}, 2}, {{4, 6, 5, 7}, 1},
    {{5000, 3}, 1}, {{5001, 19}, 1}, {{2, 4500, 37}, 2}, {{1500, 2, 45}, 1},
  }
  for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16"} do
    it("has the bits of rows in " .. dtype, function()
      local _ <close> = dm.device "cpu" -- another device works otherwise
      for _, case in ipairs(cases) do
        local _ <close> = dm.scope()
        local x = dm.randn(case[1], {dtype = "float64"}):mul(3):to(dtype)
        check(x, case[2], dtype .. " " .. table.concat(case[1], "x"))
      end
    end)

    it("treats infinities and NaN like rows in " .. dtype, function()
      local _ <close> = dm.device "cpu" -- another device works otherwise
      for _, rows in ipairs{5, 45, 4500} do
        local _ <close> = dm.scope()
        local x = dm.randn({rows, 67}, {dtype = "float64"})
        local function put(row, column, value) x:select(1, row):select(1, column):fill_(value) end
        for i, value in ipairs{0 / 0, math.huge, -math.huge} do
          put(1, i, value)
          put(rows, 20 + i, value)
          put(3, 60 + i, value)
          x:select(2, 40 + i):fill_(value) -- all of a column
          put(2, 30 + i, value)
          put(4, 30 + i, -math.huge)
        end
        x:select(2, 50):fill_(-math.huge)
        put(2, 50, 1)
        check(x:to(dtype), 1, ("%s, %d rows"):format(dtype, rows))
        local y = x:to(dtype):softmax(1):double()
        assert.equal(1, y:select(1, 2):select(1, 50):item())
        assert.equal(0, y:select(1, 1):select(1, 50):item())
        assert.is_true(y:select(2, 43):isnan():all():item() and y:select(2, 1):isnan():all():item())
      end
    end)
  end

  it("converts its argument", function()
    local _ <close> = dm.device "cpu" -- another device works otherwise
    local x = dm.randn({45, 67}):to("bfloat16")
    same(x:t():contiguous():softmax(-1, {dtype = "float32"}), x:softmax(1, {dtype = "float32"}):t())
    same(x:t():contiguous():softmax(-1, {dtype = "float64"}), x:softmax(1, {dtype = "float64"}):t())
  end)

  it("gives the same bits for each number of threads", function()
    local _ <close> = dm.device "cpu" -- another device works otherwise
    local x, known = dm.randn({37, 1000}), dm.get_num_threads()
    local want = x:softmax(1)
    for _, n in ipairs{1, 2, 3} do
      dm.set_num_threads(n)
      same(want, x:softmax(1), n .. " threads")
    end
    dm.set_num_threads(known)
  end)
end)
