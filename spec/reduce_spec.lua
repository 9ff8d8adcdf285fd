-- Reductions and ops built on them equal plain sums in Lua, along rows and columns of many
-- lengths (block edges, tails).
local dm = require "demilune"

local INF, NAN = math.huge, 0 / 0

local plain = {}
function plain.sum(v)
  local s = 0
  for i = 1, #v do s = s + v[i] end
  return s
end
function plain.mean(v) return plain.sum(v) / #v end
function plain.var(v)
  local mean, s = plain.mean(v), 0
  for i = 1, #v do s = s + (v[i] - mean) ^ 2 end
  return s / (#v - 1)
end
function plain.amax(v)
  local top = v[1]
  for i = 1, #v do if v[i] > top or v[i] ~= v[i] then top = v[i] end end
  return top
end
function plain.amin(v)
  local top = v[1]
  for i = 1, #v do if v[i] < top or v[i] ~= v[i] then top = v[i] end end
  return top
end
function plain.logsumexp(v)
  local top, s = plain.amax(v), 0
  if top - top ~= 0 then return top end
  for i = 1, #v do s = s + math.exp(v[i] - top) end
  return top + math.log(s)
end

local function near(want, got, size, what)
  if want ~= want then
    assert(got ~= got, ("%s: %s, wanted NaN"):format(what, got))
  elseif want - want ~= 0 then
    assert.equal(want, got, what)
  else
    assert(math.abs(want - got) <= 1e-6 * size, ("%s: %s, wanted %s"):format(what, got, want))
  end
end

--- Each reduction of the rows of a table of tables, along dim 2, and of its columns.
local function check(rows, dtype)
  local x = dm.tensor(rows, {dtype = dtype})
  local seen = x:double():totable()
  for name, f in pairs(plain) do
    if name ~= "var" or #rows[1] > 1 then
      local along = x[name](x, 2):double():totable()
      local across = x:t():contiguous()
      across = across[name](across, 1):double():totable()
      local all = dtype == "float64" and 1 or dtype == "float32" and 4 or 5e3
      for i, row in ipairs(seen) do
        local what = ("%s of %d %s"):format(name, #row, dtype)
        local want = f(row)
        -- rounding errors add up like a random walk
        local size = all * math.max(1, want - want == 0 and math.abs(want) or 1, (#row) ^ 0.5 / 4)
        near(want, along[i], size, what)
        near(want, across[i], size, what .. " in a column")
      end
    end
  end
end

describe("reductions", function()
  for _, n in ipairs{1, 2, 7, 31, 32, 33, 63, 77, 500, 1023, 1025, 2500} do
    it(("of %d numbers"):format(n), function()
      for _, dtype in ipairs{"float64", "float32", "bfloat16"} do
        check(dm.randn(5, n):totable(), dtype)
      end
    end)
  end

  it("of many columns, in chunks", function()
    local x = dm.randn(1500, 130)
    for _, name in ipairs{"sum", "mean", "amax", "amin"} do
      local got, want = x[name](x, 1):totable(), x:t():contiguous():double()
      want = want[name](want, 2):totable()
      for i = 1, 130 do near(want[i], got[i], 40, name) end
    end
    for _, dtype in ipairs{"float32", "bfloat16"} do
      local y = (x / 50 + 1):to(dtype)
      local got, want = y:prod(1):double():totable(), y:t():contiguous():double():prod(2):totable()
      -- the CPU multiplies in float64, a GPU in float32
      local float = tostring(y.device):find "^cpu" and 0.1 or 4
      local size = dtype == "float32" and float or 1e4
      for i = 1, 130 do near(want[i], got[i], size * want[i], "prod") end
    end
  end)

  it("meet infinities and NaN wherever they stand", function()
    for _, n in ipairs{3, 40, 1100} do
      for _, at in ipairs{1, 2, n - 1, n} do
        local rows = {}
        for i, odd in ipairs{INF, -INF, NAN} do
          rows[i] = {}
          for k = 1, n do rows[i][k] = k == at and odd or k % 5 - 2 end
        end
        local x = dm.tensor(rows)
        local columns = x:t():contiguous()
        for _, name in ipairs{"amax", "amin", "logsumexp"} do
          local along, across = x[name](x, 2):totable(), columns[name](columns, 1):totable()
          for i = 1, 3 do
            local want = plain[name](rows[i])
            near(want, along[i], 10, name)
            near(want, across[i], 10, name .. " in a column")
          end
        end
        assert.equal(at, x:argmax(2):totable()[3])
        assert.equal(at, x:argmin(2):totable()[2])
      end
    end
    local none = dm.full({2, 50}, -INF)
    assert.same({-INF, -INF}, none:logsumexp(2):totable())
    assert.same({-INF, -INF}, none:amax(2):totable())
    local wide = dm.zeros(300, 600) -- strips of columns, and the rest
    for i, odd in ipairs{INF, -INF, NAN} do
      for _, column in ipairs{i, 100 + i, 590 + i} do wide[150 + i][column] = odd end
    end
    local wanted = {amax = {INF, 0, NAN}, amin = {0, -INF, NAN}, prod = {NAN, NAN, NAN}}
    for _, dtype in ipairs{"float32", "bfloat16"} do
      local t = wide:to(dtype)
      for name, want in pairs(wanted) do
        local got = t[name](t, 1):float():totable()
        for i = 1, 3 do
          for _, column in ipairs{i, 100 + i, 590 + i} do near(want[i], got[column], 1, name) end
        end
        assert.equal(0, got[50])
      end
    end
  end)

  it("of rows of bfloat16 are those of floats", function()
    for _, n in ipairs{1, 2, 31, 32, 33, 1023, 1024, 1025, 2100} do
      local x = dm.randn(3, n):to "bfloat16"
      x[2][n] = NAN
      local wide = x:double()
      local row = x[1]:clone()
      for _, name in ipairs{"sum", "nansum", "norm"} do
        local function reduce(t, dim)
          if name == "norm" then return t:norm(2, {dim = dim}) end
          return t[name](t, dim, {dtype = t.dtype == "bfloat16" and "float32" or nil})
        end
        local got, want = reduce(x, 2):double():totable(), reduce(wide, 2):totable()
        local size = (name == "norm" and 1e4 or 5) * math.max(1, n ^ 0.5)
        for i = 1, 3 do near(want[i], got[i], size, name .. " of " .. n) end
        assert.equal(got[1], reduce(row:reshape(1, n), 2):item())
      end
      for _, factor in ipairs{1e30, 1e-30, 0} do -- whose squares are no floats
        local y = (dm.randn(2, n) * factor):to "bfloat16"
        local got, want = y:norm(2, {dim = 2}):double(), y:double():norm(2, {dim = 2})
        assert((got - want):abs():amax():item() <= 0.005 * want:amax():item())
      end
    end
    local x = dm.ones(70):to "bfloat16"
    x[70] = INF
    assert.equal(INF, x:norm():item())
    assert.equal(INF, x:sum():item())
    x[1] = -INF
    assert.is_true(x:sum():isnan():item())
  end)

  it("of numbers far from zero keep their differences", function()
    local x = dm.randn(20, 770, {dtype = "float64"}):float():double() * 0.25 + 1000
    local f = x:float()
    x = f:double()
    local apart = (f:var(2):double() / x:var(2) - 1):abs():amax():item()
    assert(apart < 1e-4, apart) -- the mean of 1000 is rounded
    apart = (dm.layer_norm(f, {770}):double() - dm.layer_norm(x, {770})):abs():amax():item()
    assert(apart < 1e-3, apart)
  end)

  it("of one row in several parts: products, and largest and smallest magnitudes", function()
    local x = dm.ones(300001, {dtype = "float64"})
    x[7], x[150000], x[300001] = -4, 0.5, 3
    local norm = dm.linalg.vector_norm
    assert.equal(-6.0, x:prod():item())
    assert.equal(4.0, norm(x, math.huge):item())
    assert.equal(0.5, norm(x, -math.huge):item())
    local whole = dm.ones(300001, {dtype = "int64"})
    whole[7], whole[300001] = -4, 3
    assert.equal(-12, whole:prod():item())
    x[290000] = 0 / 0
    for _, p in ipairs{math.huge, -math.huge} do
      local y = norm(x, p):item()
      assert.is_true(y ~= y)
    end
  end)

  it("of rows and columns, of any number of lanes: products, and norms", function()
    local norm = dm.linalg.vector_norm
    for _, n in ipairs{1, 7, 31, 32, 33, 63, 64, 65, 255, 1024, 1030} do
      local list, product, sum, squares = {}, 1, 0, 0
      for i = 1, n do
        list[i] = (i % 3 == 0 and 2 or i % 3 == 1 and -1 or 0.5) * (i % 7 == 0 and -1 or 1)
        product, sum, squares = product * list[i], sum + math.abs(list[i]), squares + list[i] ^ 2
      end
      for _, dtype in ipairs{"float32", "float64", "bfloat16"} do
        local rows = dm.tensor(list, {dtype = dtype}):expand(5, n)
        for title, x in pairs{rows = rows:clone(), strided = rows:t():clone():t()} do
          local what = ("%d %s, %s"):format(n, dtype, title)
          assert.same({product, product, product, product, product}, x:prod(2):totable(), what)
          if dtype ~= "bfloat16" then
            assert.equal(sum, norm(x, 1, 2)[5]:item(), what)
            near(squares ^ 0.5, norm(x, 2, 2)[5]:item(), squares ^ 0.5, what)
          end
        end
      end
    end
    for _, at in ipairs{1, 32, 33, 65, 70} do
      local x = dm.ones(70)
      x[at] = NAN
      assert.is_true(x:prod():item() ~= x:prod():item())
      assert.is_true(norm(x):item() ~= norm(x):item())
      x[at] = -INF
      assert.equal(-INF, x:prod():item())
      assert.equal(INF, norm(x, 1):item())
    end
  end)

  it("do not depend on the number of threads", function()
    local x, before = dm.randn(1000, 300), dm.get_num_threads()
    local seen = {}
    for _, n in ipairs{1, 2, 3} do
      dm.set_num_threads(n)
      for _, name in ipairs{"sum", "var", "amax", "logsumexp"} do
        for dim = 1, 2 do
          local key = name .. dim
          local got = x[name](x, dim)
          seen[key] = seen[key] or got
          assert.is_true(dm.equal(seen[key], got), key)
        end
      end
    end
    dm.set_num_threads(before)
  end)
end)

describe("running products", function()
  -- Rows of 1, of a few and of many elements, next to each other and apart.
  for _, shape in ipairs{{70, 3}, {3, 70}, {2, 33, 40}, {1, 500}} do
    for dim = 1, #shape do
      local title = ("{%s} along dim %d"):format(table.concat(shape, ", "), dim)

      it("of integers wrap modulo 2^64, " .. title, function()
        local x = dm.randint(-9, 9, shape):bitwise_or(1):to "int64"
        local n = shape[dim]
        local y, product = x:cumprod(dim), nil
        for i = 1, n do
          local column = x:select(dim, i)
          product = product and product * column or column
          assert.is_true(dm.equal(product, y:select(dim, i)))
        end
      end)

      it("have the gradient sum over k >= i of gy_k y_k / x_i, " .. title, function()
        local x = (dm.rand(shape, {dtype = "float64"}) * 0.2 + 0.9):requires_grad_()
        local gy = dm.randn(shape, {dtype = "float64"})
        local y = x:cumprod(dim)
        y:backward{gradient = gy}
        local behind = (gy * y:detach()):flip(dim):cumsum(dim):flip(dim) / x:detach()
        local apart = (x.grad - behind):abs():amax():item()
        assert(apart <= 1e-11 * behind:abs():amax():item(), apart)
      end)
    end
  end

  it("sum_to_size counts bool and adds integers in int64, as sum does", function()
    for _, dtype in ipairs{"bool", "uint8", "int32", "int64"} do
      local x = dm.ones(2, 3):to(dtype)
      for want, size in pairs{["2,2,2"] = {1, 3}, ["3,3"] = {2, 1}, ["6"] = {}} do
        local y = x:sum_to_size(size)
        assert.equal("int64", y.dtype)
        assert.equal(want, table.concat(y:reshape(-1):totable(), ","))
      end
      assert.equal(dtype, x:sum_to_size(2, 3).dtype)
    end
  end)
end)

describe("sums to many outputs", function()
  it("are those of plain Lua where each has few elements, and NaN stays in extremes", function()
    for columns = 1, 9 do
      for _, rows in ipairs{63, 64, 1025, 3000} do
        for _, dtype in ipairs{"float32", "bfloat16", "float64", "int32"} do
          local list, want = {}, {sum = {}, amax = {}, amin = {}}
          for i = 1, rows do
            list[i] = {}
            for j = 1, columns do list[i][j] = (i * 7 + j * j * 5) % 23 - 11 end
            if i % 50 == 3 and dtype ~= "int32" then list[i][i % columns + 1] = NAN end
            for name, of in pairs(want) do of[i] = plain[name](list[i]) end
          end
          local x = dm.tensor(list, {dtype = dtype})
          for _, t in ipairs{x, x:t():contiguous():t(), x:flip(1, 2):flip(1, 2)} do
            for name, of in pairs(want) do
              local got = t[name](t, 2):double():totable()
              for i = 1, rows do
                near(of[i], got[i], 0, ("%s of %d by %d %s"):format(name, rows, columns, dtype))
              end
            end
          end
        end
      end
    end
  end)

  -- Whole numbers, whose sums are exact, so that every way to add them gives the same.
  it("are exact for whole numbers, of few rows and of many", function()
    dm.manual_seed(3)
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "int32"} do
      for _, rows in ipairs{1, 2, 63, 64, 65, 130} do
        for _, columns in ipairs{5, 1024, 2100} do
          local x = dm.randint(-1, 1, {rows, columns})
          local want = x:to("float64"):t():contiguous():sum(2)
          local got = x:to(dtype):sum(1)
          local what = ("%s, %d rows, %d columns"):format(dtype, rows, columns)
          assert.is_true(dm.equal(want, got:to("float64")), what)
          assert.is_true(dm.equal(want, x:to(dtype):t():sum(2):to("float64")), what)
          local top = x:to(dtype):amax(1):to("float64")
          assert.is_true(dm.equal(x:to("float64"):t():contiguous():amax(2), top), what)
        end
      end
    end
  end)
end)

describe("numbers for NaN", function()
  it("have no gradient, and in nansum infinities have one", function()
    local x = dm.tensor({1, NAN, INF, -INF, 2}, {requires_grad = true})
    assert.equal(INF, dm.nansum(x:slice(1, 1, 3)):item())
    dm.nansum(x):backward()
    assert.same({1, 0, 1, 1, 1}, x.grad:totable())
    x.grad = nil
    local y = dm.nan_to_num(x, 7, 8, -9)
    assert.same({1, 7, 8, -9, 2}, y:totable())
    y:backward{gradient = dm.tensor{1, 2, 3, 4, 5}}
    assert.same({1, 0, 0, 0, 5}, x.grad:totable())
  end)

  it("are zeros to nansum, in all its loops", function()
    local _ <close> = dm.device "cpu" -- another device replaces them first
    local x = dm.randn(3, 130, 1100)
    x:masked_fill_(dm.rand(3, 130, 1100):lt(0.2), NAN)
    for _, dtype in ipairs{"float32", "float64", "bfloat16"} do
      local t = x:to(dtype)
      local zeros = t:isnan():where(dm.zeros(1, {dtype = dtype}), t)
      for _, dims in ipairs{{-1}, {-2}, {1}, {1, 3}, {}} do
        local how = {dim = #dims > 0 and dims or nil}
        assert.is_true(dm.equal(zeros:sum(how), t:nansum(how)))
        assert.is_true(dm.equal(zeros:transpose(2, 3):sum(how), t:transpose(2, 3):nansum(how)))
        how.dtype = "float64"
        assert.is_true(dm.equal(zeros:sum(how), t:nansum(how)))
      end
    end
    assert.equal(3, dm.tensor{1, NAN, 2}:nansum{dtype = "int64"}:item())
    assert.equal(0, dm.zeros(0):nansum():item())
  end)
end)

describe("any and all of floats", function()
  -- By rows and by columns; few outputs, which are cut into chunks, and many.
  for _, shape in ipairs{{1, 1}, {3, 7}, {70, 130}, {2, 3000}, {3000, 2}, {200, 1100},
    {9000, 40}} do
    it(("of %d x %d"):format(table.unpack(shape)), function()
      for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
        local zeros, ones = dm.zeros(shape):to(dtype), dm.ones(shape):to(dtype)
        local row, column = shape[1], shape[2]
        zeros[{1, 1}], ones[{1, 1}] = -0.0, -0.0
        zeros[{row, column}], ones[{row, column}] = 0 / 0, 1e-39
        zeros[{row // 2 + 1, column // 2 + 1}] = -1
        for _, x in ipairs{zeros, ones, zeros:t(), ones:t(), dm.zeros(shape):to(dtype)} do
          assert.are.equal(x:ne(0):sum():item() > 0, x:any():item())
          assert.are.equal(x:eq(0):sum():item() == 0, x:all():item())
          for dim = 1, 2 do
            assert.are.same(x:ne(0):sum(dim):gt(0):tolist(), x:any(dim):tolist())
            assert.are.same(x:eq(0):sum(dim):eq(0):tolist(), x:all(dim):tolist())
          end
        end
      end
    end)
  end

  it("of none", function()
    local x = dm.zeros(0, 3)
    assert.is_false(x:any():item())
    assert.is_true(x:all():item())
    assert.are.same({false, false, false}, x:any(1):tolist())
    assert.are.same({true, true, true}, x:all(1):tolist())
  end)
end)

describe("reductions of integers and bools", function()
  -- By rows and by columns, in chunks, and of elements that are repeated.
  local SHAPES = {{1, 1}, {3, 7}, {9, 1100}, {70, 130}, {2, 3000}, {1500, 2}, {1100, 32}}
  local WAYS = {
    sum = function(a, b) return a + b end,
    prod = function(a, b) return a * b end,
    amax = math.max, amin = math.min,
    any = function(a, b) return (a ~= 0 or b ~= 0) and 1 or 0 end,
    all = function(a, b) return a ~= 0 and b ~= 0 and 1 or 0 end,
    count_nonzero = function(a, b) return a + (b ~= 0 and 1 or 0) end,
  }
  local STARTS = {sum = 0, prod = 1, amax = math.mininteger, amin = math.maxinteger, any = 0,
    all = 1, count_nonzero = 0}

  local function list(t) return t:to "int64":contiguous():view(-1):totable() end

  -- Of each row, of each column and of all.
  local function defined(rows, name)
    local join, start = WAYS[name], STARTS[name]
    local by_row, by_column, all = {}, {}, start
    for j = 1, #rows[1] do by_column[j] = start end
    for i, row in ipairs(rows) do
      local r = start
      for j, v in ipairs(row) do
        r = join(r, v)
        by_column[j] = join(by_column[j], v)
        all = join(all, v)
      end
      by_row[i] = r
    end
    return by_row, by_column, all
  end

  for _, dtype in ipairs{"int64", "int32", "uint8", "bool"} do
    it("of " .. dtype, function()
      local _ <close> = dm.device "cpu"
      dm.manual_seed(4)
      for _, shape in ipairs(SHAPES) do
        local n, m = shape[1], shape[2]
        local x = dm.randint(dtype == "uint8" and 0 or -3, 5, {n, m}):to(dtype)
        local wide = dm.randint(1, 2, {1, m}):to(dtype):expand(n, m)
        if dtype == "int64" then x[{n, m}], x[{1, 1}] = math.maxinteger, math.mininteger end
        for what, t in pairs{plain = x, turned = x:t(), repeated = wide, both = wide:t()} do
          local rows = {}
          for i = 1, t:size(1) do rows[i] = list(t[i]) end
          for name in pairs(WAYS) do
            if dtype ~= "bool" or not name:find "^am" then
              local by_row, by_column, all = defined(rows, name)
              local where = ("%s of %d x %d %s"):format(name, n, m, what)
              assert.same(by_row, list(t[name](t, 2)), where)
              assert.same(by_column, list(t[name](t, 1)), where)
              assert.same({all}, list(t[name](t)), where)
            end
          end
          if dtype ~= "bool" then
            local _, at = t:max(2)
            assert.is_true(dm.equal(t:gather(2, at:unsqueeze(2)):squeeze(2), t:amax(2)))
            assert.same(list(t:argmin(2)), list(t:to "float64":argmin(2)))
          end
        end
      end
    end)
  end

  it("take logsumexp of columns as of rows, with infinities and NaN", function()
    local tolerances = {float64 = 1e-12, float32 = 1e-6, float16 = 2e-3, bfloat16 = 1e-2}
    for dtype, tolerance in pairs(tolerances) do
      local x = dm.randn(40, 37):to(dtype)
      x[{1, 1}], x[{2, 2}], x[{3, 3}] = math.huge, -math.huge, 0/0
      x[{6, 5}], x[{7, 5}], x[{5, 1}], x[{{}, 4}] = math.huge, 0/0, -math.huge, -math.huge
      local rows = x:t():contiguous():logsumexp(2):double()
      for what, columns in pairs{columns = x:logsumexp(1), turned = x:t():logsumexp(2),
                                 kept = x:logsumexp(1, {keepdim = true}):reshape(37)} do
        assert(dm.allclose(rows, columns:double(), {rtol = tolerance, equal_nan = true}),
          ("%s of %s"):format(what, dtype))
      end
      assert.same({math.huge, -math.huge}, {rows[1]:item(), rows[4]:item()})
      local y = dm.randn(3, 50, 20):to(dtype)
      assert(dm.allclose(y:transpose(2, 3):contiguous():logsumexp(3), y:logsumexp(2),
        {rtol = tolerance}), dtype)
    end
  end)
end)

describe("reductions of repeated elements", function()
  -- The functions that give values alone, or values with their positions.
  local function values(x, name, ...)
    local y = x[name](x, ...)
    return dm.is_tensor(y) and y or y.values
  end

  it("are those of copies, where repeats change nothing", function()
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "int64", "bool"} do
      for _, shape in ipairs{{1, 37}, {7, 1}, {1, 1, 5}, {1}} do
        local size = {}
        for i, n in ipairs(shape) do size[i] = n == 1 and 9 or n end
        local x = (dm.randn(shape) * 3):to(dtype):expand(size)
        local copy = x:contiguous()
        for name in ("amax amin any all max min"):gmatch "%S+" do
          assert.is_true(values(x, name):equal(values(copy, name)), name)
          for d = 1, #shape do
            assert.is_true(values(x, name, d):equal(values(copy, name, d)), name)
          end
        end
        for _, p in ipairs{INF, -INF} do
          if dm.is_floating_point(x) then
            assert.is_true(x:norm{p = p}:equal(copy:norm{p = p}))
          end
        end
      end
    end
  end)

  it("keep a NaN", function()
    local x = dm.tensor{1.0, NAN}:expand(70, 2)
    assert.is_true(x:amax(1)[2]:isnan():item() and x:amin():isnan():item())
  end)
end)
