-- Ops that move elements equal their definition in Lua, element by element: sizes around the
-- blocks and the vectors of their loops, every size of element, strides of either sign and 0.
local dm = require "demilune"

local DTYPES = {"bool", "int8", "bfloat16", "int32", "float32", "int64", "float64"}

--- A tensor of this shape whose elements, in row-major order, are those of the list that
--- comes with it: whole numbers that bfloat16 holds, or 0 and 1.
local function numbered(shape, dtype)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  local list = {}
  for i = 1, n do list[i] = dtype == "bool" and i * i % 3 % 2 or i * 7 % 101 end
  return dm.tensor(list, {dtype = "int64"}):to(dtype):reshape(shape), list
end

local function same(want, y, what)
  local got = y:to "float64":flatten():totable()
  assert.equal(#want, #got, what)
  for i = 1, #want do
    if want[i] ~= got[i] then
      error(("%s: element %d is %s, wanted %s"):format(what, i, got[i], want[i]))
    end
  end
end

--- The list of rows by columns elements that pick(row, column) names.
local function listed(rows, columns, pick)
  local list = {}
  for i = 1, rows do
    for j = 1, columns do list[#list + 1] = pick(i, j) end
  end
  return list
end

describe("copies", function()
  -- Runs of a few elements are copied by columns of 256 rows, longer ones as they are.
  for _, size in ipairs{{3, 8}, {9, 8}, {300, 2}, {257, 7}, {300, 8}, {300, 9}, {20, 33}} do
    local rows, columns = size[1], size[2]
    it(("of %d by %d elements, in each direction"):format(rows, columns), function()
      for _, dtype in ipairs(DTYPES) do
        local x, list = numbered(size, dtype)
        local function at(i, j) return list[(i - 1) * columns + j] end
        same(listed(columns, rows, function(i, j) return at(j, i) end), x:t():clone(), dtype)
        same(listed(rows, columns, function(i, j) return at(rows + 1 - i, j) end), x:flip(1), dtype)
        same(listed(rows, columns, function(i, j) return at(i, columns + 1 - j) end), x:flip(2),
          dtype)
        same(listed(rows, columns, function(i, j) return at(rows + 1 - i, columns + 1 - j) end),
          x:flip(1, 2), dtype)
        same(listed(rows, 2 * columns, function(i, j) return at(i, (j + 1) // 2) end),
          x:repeat_interleave(2, 2), dtype)
        same(listed(rows, columns - 1, function(i, j) return at(i, j + 1) end),
          x:narrow(2, 2, columns - 1):clone(), dtype)
        local y = dm.zeros(rows, 2 * columns, {dtype = dtype})
        y:as_strided({rows, columns}, {2 * columns, 2}):copy_(x)
        same(listed(rows, 2 * columns, function(i, j) return j % 2 == 1 and at(i, (j + 1) // 2) or 0
        end), y, dtype)
        y:as_strided({rows, columns}, {2 * columns, 2}):copy_(x:select(2, 1):unsqueeze(2))
        same(listed(rows, 2 * columns, function(i, j) return j % 2 == 1 and at(i, 1) or 0 end), y,
          dtype)
      end
    end)
  end

  it("of three dims, of which the last are short", function()
    local x, list = numbered({5, 300, 3}, "float32")
    local want = {}
    for i = 1, 5 do
      for k = 3, 1, -1 do
        for j = 1, 300 do want[#want + 1] = list[((i - 1) * 300 + j - 1) * 3 + k] end
      end
    end
    same(want, x:flip(3):transpose(2, 3):clone(), "transposed")
    want = {}
    for j = 1, 300 do
      for k = 3, 1, -1 do
        for i = 1, 5 do want[#want + 1] = list[((i - 1) * 300 + j - 1) * 3 + k] end
      end
    end
    same(want, x:flip(3):permute(2, 3, 1):clone(), "permuted")
  end)

  it("of rows of 2 KiB and more, from and to any address", function()
    for _, columns in ipairs{2047, 2048, 2049, 2111, 2112, 2113, 4211} do
      for _, dtype in ipairs{"uint8", "bfloat16", "float32"} do
        local x, list = numbered({3, columns}, dtype)
        local rolled = listed(3, columns, function(i, j)
          return list[(i - 1) * columns + (j - 6) % columns + 1]
        end)
        local what = ("%d of %s"):format(columns, dtype)
        same(rolled, x:roll(5, 2), what)
        same(rolled, dm.cat({x, x:roll(5, 2)}, 2):narrow(2, columns + 1, columns), what)
        same(list, dm.cat({x:narrow(2, 1, 3), x:narrow(2, 4, columns - 3)}, 2), what)
        same(list, x:index_select(1, dm.tensor({1, 2, 3})), what)
      end
    end
  end)

  it("of rolled dims, short and long, dense and not", function()
    -- One dim after another, each by a join of its two parts.
    local function joined(x, shifts, dims)
      for i, d in ipairs(dims) do
        local n = x.shape[d]
        local k = n > 0 and shifts[i] % n or 0
        if k > 0 then x = dm.cat({x:narrow(d, n - k + 1, k), x:narrow(d, 1, n - k)}, d) end
      end
      return x
    end
    for _, shape in ipairs{{5, 300, 3}, {7, 9, 11}, {2, 40, 33, 8}, {1, 1}, {70000}, {0, 3}} do
      for _, dtype in ipairs(DTYPES) do
        local n, last = 1, #shape
        for _, size in ipairs(shape) do n = n * size end
        local x = (dm.arange(n):view(shape) % 100):to(dtype)
        for _, t in ipairs{x, x:transpose(1, last)} do
          for _, c in ipairs{{{1}, {1}}, {{-2}, {last}}, {{3, 4}, {1, last}}, {{0}, {last}},
            {{math.mininteger, 5}, {last, last}}, {{1, -1}, {math.max(1, last - 1), last}}} do
            local what = ("%s of %s by %s along %s"):format(dtype, table.concat(t.shape, "x"),
              table.concat(c[1], ","), table.concat(c[2], ","))
            assert.is_true(t:roll(c[1], c[2]):equal(joined(t, c[1], c[2])), what)
          end
          assert.is_true(t:roll(-7):equal(joined(t:reshape(-1), {-7}, {1}):view(t.shape)), dtype)
        end
      end
    end
    local x, gy = dm.randn(6, 50):requires_grad_(), dm.randn(6, 50)
    x:roll({2, math.mininteger}, {1, 2}):backward(gy)
    assert.is_true(x.grad:equal(joined(gy, {-2, -(math.mininteger % 50)}, {1, 2})))
    x.grad = nil
    x:t():roll(7):backward(gy:t())
    assert.is_true(x.grad:equal(gy:t():reshape(-1):roll(-7):view(50, 6):t()))
  end)

  it("into rows of a join", function()
    for _, rows in ipairs{1, 8, 9, 300} do
      for _, columns in ipairs{1, 3, 8, 9} do
        for _, dtype in ipairs(DTYPES) do
          local x, a = numbered({rows, columns}, dtype)
          local y, b = numbered({rows, 2}, dtype)
          same(listed(rows, columns + 2, function(i, j)
            if j <= columns then return a[(i - 1) * columns + j] end
            return b[(i - 1) * 2 + j - columns]
          end), dm.cat({x, y}, 2), dtype)
          local z, c = numbered({rows * columns + 1}, dtype)
          z, c = z[{{2, -1}}], {table.unpack(c, 2)}
          for _, pair in ipairs{{x, z:view(rows, columns)}, {x, z:clone():view(rows, columns)}} do
            same(listed(rows * columns, 2, function(i, j) return j == 1 and a[i] or c[i] end),
              dm.stack(pair, 3), dtype)
          end
          local firsts, others = x:narrow(2, 1, 1), x:view(-1):narrow(1, 1, rows):view(rows, 1)
          same(listed(rows, 2, function(i, j) return a[j == 1 and (i - 1) * columns + 1 or i] end),
            dm.cat({firsts, others}, 2), dtype)
        end
      end
    end
  end)
end)

describe("repeats", function()
  it("of some dims, of more than a view has, of none", function()
    for _, dtype in ipairs(DTYPES) do
      local x, list = numbered({3, 2, 5}, dtype)
      for _, times in ipairs{{2, 1, 1}, {1, 3, 1}, {1, 1, 2}, {2, 3, 2}, {4, 1, 3}, {1, 1, 1}} do
        local a, b, c = table.unpack(times)
        local want = {}
        for i = 0, 3 * a - 1 do
          for j = 0, 2 * b - 1 do
            for k = 0, 5 * c - 1 do
              want[#want + 1] = list[(i % 3 * 2 + j % 2) * 5 + k % 5 + 1]
            end
          end
        end
        same(want, x:tile(a, b, c), dtype)
      end
    end
    local shape, times, many = {}, {}, 1
    for d = 1, 16 do shape[d], times[d] = d % 5 == 1 and 2 or 1, d % 2 == 0 and 2 or 1 end
    times[11] = 3
    for d = 1, 16 do many = many * times[d] end
    local x = dm.arange(1, 16):reshape(shape)
    local y = x:tile(times)
    assert.equal(16 * many, y:numel())
    for d = 1, 16 do
      y = y:narrow(d, (times[d] - 1) * shape[d] + 1, shape[d])
    end
    assert.is_true(dm.equal(x, y))
  end)

  it("share no memory with what is repeated", function()
    local x = dm.tensor{1}
    x:tile(3):add_(1)
    x:tile(1):add_(1)
    assert.same({1}, x:totable())
    assert.same({0, 2}, {x:tile(0):numel(), x:tile(0, 2).shape[2]})
  end)
end)

describe("conversions", function()
  -- Dense elements go by one loop or through blocks of 512, others by the pointwise ops' blocks.
  it("of dense elements are those of strided ones", function()
    local specials = {0, -0.0, 1, -1, 0.5, -0.75, 1.5, 2.5, 127, 128, 255, 256, -128, -129, 65504,
      1e5, 2 ^ 24 + 1, 2 ^ 31, 2 ^ 40 + 2 ^ 16, 1e-40, -3e38, 1 / 0, -1 / 0, 0 / 0}
    for _, n in ipairs{1, 7, 512, 513, 1030} do
      local list = {}
      for i = 1, n do list[i] = specials[(i - 1) % #specials + 1] end
      local all = dm.tensor(list, {dtype = "float64"})
      for _, from in ipairs(DTYPES) do
        local x = all:to(from)
        local strided = dm.stack({x, x}, 2):select(2, 1)
        for _, to in ipairs(DTYPES) do
          local what = ("%d from %s to %s"):format(n, from, to)
          local dense, apart = x:to(to):double(), strided:to(to):double()
          assert.is_true(dm.equal(dense:nan_to_num(7), apart:nan_to_num(7)), what)
          assert.is_true(dm.equal(dense:isnan(), apart:isnan()), what)
          assert.is_true(dm.equal(dense:signbit(), apart:signbit()), what)
        end
      end
    end
  end)
end)

describe("elements at positions", function()
  it("of rows of one element and of several", function()
    for _, dtype in ipairs(DTYPES) do
      for _, inner in ipairs{1, 2, 3} do
        local x, list = numbered({5, 7, inner}, dtype)
        local at = {7, 1, 1, 4, 2, 7, 7, 3, 5}
        local want = {}
        for i = 1, 5 do
          for _, row in ipairs(at) do
            for k = 1, inner do want[#want + 1] = list[((i - 1) * 7 + row - 1) * inner + k] end
          end
        end
        same(want, x:index_select(2, dm.tensor(at, {dtype = "int64"})), dtype)
      end
    end
  end)

  it("of several blocks, where a thread's part ends within one", function()
    local x, back = dm.arange(1, 60000):reshape(3, 20000), dm.arange(20000, 1, -1)
    assert.is_true(dm.equal(x:flip(2), x:index_select(2, back:long())))
    assert.is_true(dm.equal(x:flip(2), x:gather(2, back:long():expand(3, 20000))))
  end)

  it("of runs of neighbours", function()
    for _, dtype in ipairs(DTYPES) do
      for _, inner in ipairs{1, 3} do
        local x, list = numbered({4, 20, inner}, dtype)
        local at = {3, 2}
        for i = 1, 20 do at[#at + 1] = i end
        for i = 5, 12 do at[#at + 1] = i end
        local want, sums = {}, {}
        for i = 1, 4 do
          for _, row in ipairs(at) do
            for k = 1, inner do
              local cell = ((i - 1) * 20 + row - 1) * inner + k
              want[#want + 1] = list[cell]
              sums[cell] = (sums[cell] or 0) + 1
            end
          end
        end
        local index = dm.tensor(at)
        local y = x:index_select(2, index)
        same(want, y, dtype)
        same(list, dm.zeros_like(x):index_copy(2, index, y), dtype)
        if dtype ~= "bool" then
          same(sums, dm.zeros_like(x):index_add(2, index, dm.ones_like(y)), dtype)
        end
      end
    end
  end)

  -- Rows of 16 elements and more are sorted by the position that they go to.
  it("are summed in the order of the index, and rounded once", function()
    for _, dtype in ipairs{"int8", "bfloat16", "float32", "int64", "float64"} do
      for _, inner in ipairs{15, 16, 255, 256, 257, 600} do
        local at = dm.tensor{4, 1, 4, 4, 6, 1, 4}
        local rows = dm.randn(7, inner):mul(50):to(dtype)
        local start = dm.randn(6, inner):mul(50):to(dtype)
        local wide = dtype == "bfloat16" and "float32" or dtype
        local want = start:to(wide):clone()
        for i = 1, 7 do want[at[i]:item()]:add_(rows[i]:to(wide)) end
        local what = dtype .. inner
        assert.is_true(dm.equal(want:to(dtype), start:index_add(1, at, rows)), what)
        assert.is_true(dm.equal(want:to(dtype), start:t():index_add(2, at, rows:t()):t()), what)
        assert.is_true(dm.equal(want:to(dtype), start:clone():index_add_(1, at, rows)), what)
        assert.is_true(dm.equal(want:to(dtype), start:t():contiguous():t():index_add(1, at, rows)),
          what)
        if dtype ~= "int8" and dtype ~= "int64" then
          local w = start:clone():requires_grad_()
          dm.nn.functional.embedding(at, w, {padding_idx = 6}):backward(rows)
          local sums = dm.zeros(6, inner, {dtype = wide})
          for i = 1, 7 do
            if at[i]:item() ~= 6 then sums[at[i]:item()]:add_(rows[i]:to(wide)) end
          end
          assert.is_true(dm.equal(sums:to(dtype), w.grad), what)
          assert.is_false(w.grad:signbit():logical_and(w.grad:eq(0)):any():item(), what)
        end
      end
    end
  end)

  it("are added to, rows of one element too", function()
    for _, dtype in ipairs{"int8", "bfloat16", "int32", "float32", "int64", "float64"} do
      for _, inner in ipairs{1, 2} do
        local at, want = {}, {}
        for i = 1, 700 do at[i] = i * i % 10 + 1 end
        for i = 1, 3 * 10 * inner do want[i] = 1 end
        for i = 1, 3 do
          for _, row in ipairs(at) do
            for k = 1, inner do
              local cell = ((i - 1) * 10 + row - 1) * inner + k
              want[cell] = want[cell] + (row == 1 and 0 or 1)
            end
          end
        end
        local index = dm.tensor(at, {dtype = "int32"})
        local rows = index:ne(1):to(dtype):reshape(1, 700, 1):expand(3, 700, inner)
        local x = dm.ones(3, 10, inner, {dtype = dtype}):index_add(2, index, rows)
        for i = 1, #want do want[i] = dtype == "int8" and (want[i] + 128) % 256 - 128 or want[i] end
        same(want, x, dtype)
      end
    end
    assert.same({2, 1, 0, 0, 1}, dm.bincount(dm.tensor{1, 5, 1, 2}):totable())
  end)

  it("are checked, whatever their dtype and strides and wherever they stand", function()
    local _ <close> = dm.device "cpu" -- a GPU tells later, without the position
    local x = dm.arange(1, 10)
    local function more(method) if method:find "reduce" then return "amax" end end
    for _, dtype in ipairs{"int8", "int32", "int64"} do
      for _, bad in ipairs{0, 11, -1, -100} do
        for _, row in ipairs{1, 512, 513, 700} do
          local index = dm.ones(700, 2, {dtype = dtype})
          index[{row, 1}] = bad
          local words = ("holds %d at {%d}, wanted 1 to 10"):format(bad, row)
          assert.error_matches(function() x:index_select(1, index:select(2, 1):clone()) end, words,
            1, true)
          assert.error_matches(function() x:gather(1, index:select(2, 1)) end, words, 1, true)
          local row_of = index:t():contiguous()[1]
          assert.error_matches(function() x:gather(1, row_of) end, words, 1, true)
          local y, ones = dm.zeros(10), dm.ones(700)
          for _, method in ipairs{"scatter_", "scatter_add_", "scatter", "scatter_add",
            "scatter_reduce", "scatter_reduce_"} do
            for _, z in ipairs{y, method:find "_$" and y or y:bfloat16()} do
              assert.error_matches(function()
                z[method](z, 1, index:select(2, 1), ones:to(z.dtype), more(method))
              end, words, 1, true)
              assert.error_matches(function()
                z[method](z, 1, row_of, ones:to(z.dtype), more(method))
              end, words, 1, true)
            end
          end
          assert.equal(0, y:sum():item())
          assert.equal(700, x:index_select(1, index:select(2, 2)):numel())
        end
      end
    end
    assert.same({10, 1, 1, 10}, x[dm.tensor{-1, -10, 1, 10}]:totable())
    for _, bad in ipairs{0, -11, math.mininteger, math.maxinteger} do
      assert.error_matches(function() return x[dm.tensor({1, bad}, {dtype = "int64"})] end,
        "wanted 1 to 10", 1, true)
    end
  end)
end)

describe("elements along a dim", function()
  -- Dense rows have a loop of their own; int64 positions are read where they are.
  it("of rows, of columns, by positions of any dtype and stride", function()
    for _, columns in ipairs{1, 7, 64, 513} do
      for _, dtype in ipairs{"bool", "bfloat16", "float32", "int64"} do
        local x, list = numbered({3, 11}, dtype)
        local at, want, put = {}, {}, {}
        for i = 1, 3 * 11 do put[i] = 0 end
        for i = 1, 3 do
          for j = 1, columns do
            local k = (i * 5 + j * j) % 11 + 1
            at[#at + 1] = k
            want[#want + 1] = list[(i - 1) * 11 + k]
            put[(i - 1) * 11 + k] = dtype == "bool" and j % 2 or j % 100
          end
        end
        local index = dm.tensor(at, {dtype = "int64"}):reshape(3, columns)
        local source = (dm.arange(1, columns) % (dtype == "bool" and 2 or 100)):to(dtype)
          :expand(3, columns)
        for _, p in ipairs{index, index:int(), index:t():contiguous():t()} do
          same(want, x:gather(2, p), dtype)
          same(want, x:t():gather(1, p:t()):t(), dtype)
          same(want, x:t():contiguous():gather(1, p:t():contiguous()):t(), dtype)
          for _, s in ipairs{source, source:contiguous(), source:t():contiguous():t()} do
            local zeros = dm.zeros(3, 11, {dtype = dtype})
            same(put, zeros:scatter(2, p, s), dtype)
            same(put, zeros:t():scatter(1, p:t(), s:t()):t(), dtype)
          end
        end
      end
    end
  end)

  it("of an index that is written to", function()
    local x = dm.tensor{3, 1, 2, 4}
    x:scatter_(1, x, dm.tensor{9, 8, 7, 6})
    assert.same({8, 7, 9, 6}, x:totable())
    x = dm.tensor{3, 1, 3, 4}
    x:scatter_add_(1, x, dm.tensor{9, 8, 7, 6})
    assert.same({11, 1, 19, 10}, x:totable())
  end)

  it("are products of a column and a row, plus what is there", function()
    for _, dtype in ipairs{"bfloat16", "float32", "float64"} do
      for _, size in ipairs{{1, 1}, {3, 7}, {20, 513}} do
        local x = dm.randn(size[1], size[2]):to(dtype)
        local u, v = dm.randn(size[1]):to(dtype), dm.randn(size[2]):to(dtype)
        local want = x:double() + 0.5 * u:double():unsqueeze(2) * v:double()
        for _, start in ipairs{x, x:t():contiguous():t()} do
          local y = start:addr(u, v, {alpha = 0.5})
          assert.equal(dtype, y.dtype)
          local close = {rtol = dtype == "bfloat16" and 2 ^ -8 or 1e-6, atol = 1e-6}
          assert.is_true(dm.allclose(want, y:double(), close))
          assert.is_true(dm.equal(y:narrow(1, size[1], 1),
            start:narrow(1, size[1], 1):addr(u:narrow(1, size[1], 1), v, {alpha = 0.5})))
        end
      end
    end
  end)
end)

describe("running sums and products", function()
  -- Neighbouring slices are summed row by row where there are 8 or more of them.
  for _, shape in ipairs{{1, 9}, {5, 7}, {5, 8}, {3, 40}, {700, 9}, {30, 1200}} do
    it(("down %d rows of %d are those of each column"):format(shape[1], shape[2]), function()
      for _, dtype in ipairs{"int8", "bfloat16", "int64", "float32", "float64"} do
        local x = (dm.randn(shape) * 3):to(dtype)
        local batch = dm.stack({x, x:flip(1)}, 1)
        local turned = batch:transpose(2, 3):contiguous()
        for _, op in ipairs{"cumsum", "cumprod"} do
          local apart = turned[op](turned, 3)
          local got = batch[op](batch, 2)
          assert.equal(apart.dtype, got.dtype)
          assert.is_true(dm.equal(apart:transpose(2, 3), got), op .. " " .. dtype)
          local row = turned[2][1]
          assert.is_true(dm.equal(apart[2][1], row[op](row, 1)), op .. " " .. dtype)
        end
      end
      local leaf = dm.randn(shape):requires_grad_()
      local weight = dm.randn(shape)
      leaf:cumsum(1):backward(weight)
      assert.is_true(dm.equal(weight:flip(1):t():contiguous():cumsum(2):t():flip(1), leaf.grad))
      local function slope(x, dim, gy) -- of running products
        x = x:detach():requires_grad_()
        x:cumprod(dim):backward(gy)
        return x.grad
      end
      local x, turned = leaf:detach(), leaf:detach():t():contiguous()
      local rows = slope(turned, 2, weight:t():contiguous())
      assert.is_true(dm.equal(slope(x, 1, weight), rows:t()))
      assert.is_true(dm.equal(slope(turned[1], 1, weight:select(2, 1)), rows[1]))
    end)
  end
end)

describe("elements that a mask chooses", function()
  -- 32768 elements and more are cut into parts, each of which knows where its own begin.
  for _, case in ipairs{{7, 5, "dense"}, {131, 257, "dense"}, {257, 300, "transposed"},
    {40, 2500, "a mask of one row"}, {300, 500, "none"}, {300, 500, "all"}} do
    local rows, columns, kind = table.unpack(case)
    local mask_rows = kind == "a mask of one row" and 1 or rows
    local function chosen(i, j)
      if kind == "none" or kind == "all" then return kind == "all" end
      return ((mask_rows == 1 and 0 or i * 31) + j * j) % 7 < 3
    end
    it(("of %d by %d, %s"):format(rows, columns, kind), function()
      local truth = dm.tensor(listed(mask_rows, columns, function(i, j)
        return chosen(i, j) and 1 or 0
      end), {dtype = "uint8"}):reshape{mask_rows, columns}
      for n, dtype in ipairs(DTYPES) do
        local mask = n % 2 == 0 and truth * 3 or truth:to "bool"
        local x, list = numbered({rows, columns}, dtype)
        if kind == "transposed" then
          x = x:t():contiguous():t()
          mask = mask:t():contiguous():t()
        end
        local want, put, one, source = {}, {}, {}, {}
        local first = list[2]
        for i = 1, rows do
          for j = 1, columns do
            local at = (i - 1) * columns + j
            if chosen(i, j) then
              want[#want + 1] = list[at]
              source[#want] = dtype == "bool" and #want % 3 % 2 or #want % 97
            end
            put[at] = chosen(i, j) and source[#want] or list[at]
            one[at] = chosen(i, j) and first or list[at]
          end
        end
        same(want, x:masked_select(mask), dtype)
        local function with(value)
          local y = x:clone()
          y[mask:to "bool":expand{rows, columns}] = value
          return y
        end
        if #source > 0 then
          same(put, with(dm.tensor(source, {dtype = "int64"}):to(dtype)), dtype .. ", put")
        end
        same(one, with(dm.tensor({first}, {dtype = "int64"}):to(dtype)), dtype .. ", one put")
      end
    end)
  end
end)

describe("positions of nonzero elements", function()
  local shapes = {{1}, {511}, {1030}, {7, 1}, {1, 600}, {30, 20}, {3, 1, 5, 40}, {2, 0, 3},
    {3, 11, 1000}} -- the last one is more than one stretch
  for _, shape in ipairs(shapes) do
    it(("of shape {%s}"):format(table.concat(shape, ", ")), function()
      for name, element in pairs{some = function(i) return i * i % 7 % 3 end,
                                 few = function(i) return i % 97 // 96 end,
                                 none = function() return 0 end, all = function() return 1 end} do
        for _, dtype in ipairs(DTYPES) do
          local n = 1
          for _, size in ipairs(shape) do n = n * size end
          local list, want = {}, {}
          for i = 1, n do list[i] = element(i) end
          for i = 1, n do
            if list[i] ~= 0 then
              local at, rest = {}, i - 1
              for d = #shape, 1, -1 do at[d], rest = rest % shape[d] + 1, rest // shape[d] end
              for d = 1, #shape do want[#want + 1] = at[d] end
            end
          end
          local got = dm.tensor(list, {dtype = "int64"}):to(dtype):reshape(shape):nonzero()
          assert.equal(#shape, got:size(2))
          same(want, got, name .. " " .. dtype)
        end
      end
    end)
  end

  it("count NaN, and both zeros not", function()
    assert.same({{2}, {3}}, dm.tensor{0, 0 / 0, 1e-30, -0.0}:nonzero():totable())
    assert.same({1, 0}, {table.unpack(dm.tensor(3):nonzero().shape)})
    assert.same({0, 0}, {table.unpack(dm.tensor(0):nonzero().shape)})
  end)
end)

-- Values and positions of a list in the order of a stable sort, NaN behind all numbers.
local function sorted(list, descending)
  local at = {}
  for i = 1, #list do at[i] = i end
  table.sort(at, function(i, j)
    local a, b = list[i], list[j]
    local a_nan, b_nan = a ~= a, b ~= b
    if a_nan ~= b_nan then return a_nan == (descending or false) end
    if a ~= b and not a_nan then
      if descending then return a > b end
      return a < b
    end
    return i < j
  end)
  return at
end

-- Lists whose order is found in other ways: few values, NaN and both zeros, rising, falling, rising
-- and falling, all equal, and integers that differ in every byte.
local ORDERS = {
  equals = function(i) return i * i % 7 end,
  holes = function(i) return i % 5 == 0 and 0 / 0 or i % 3 == 0 and -0.0 or i * 31 % 17 - 8 end,
  rising = function(i) return i end,
  falling = function(i) return -i end,
  peak = function(i, n) return math.min(i, n - i) end,
  constant = function() return 3 end,
  wide = function(i) return (i * 0x9E3779B97F4A7C15) >> 11 end,
}

describe("orders", function()
  -- Slices of 16 items are sorted by insertion, up to 511 by merging, longer ones by bytes.
  for _, n in ipairs{1, 2, 15, 16, 17, 33, 100, 511, 512, 700} do
    it(("of %d elements"):format(n), function()
      for name, element in pairs(ORDERS) do
        local list = {}
        for i = 1, n do list[i] = element(i, n) end
        local without = name == "holes" and "int64" or name == "wide" and "float32"
        for _, dtype in ipairs{"float64", "int64", "float32"} do
          if dtype ~= without then
            local what = ("%s, %s"):format(name, dtype)
            local x = dm.tensor(list, {dtype = dtype})
            local pair = dm.stack({x, x:flip(1)}, 2)
            for _, descending in ipairs{false, true} do
              local want = sorted(list, descending)
              local _, at = pair:sort(1, {descending = descending})
              same(want, at:select(2, 1), what)
              for _, k in ipairs{1, n // 3 + 1, (n + 1) // 2, n} do
                local _, first = pair:topk(k, 1, {largest = descending})
                same({table.unpack(want, 1, k)}, first:select(2, 1), what)
                _, first = pair:topk(k, 1, {largest = descending, sorted = false})
                assert.equal(want[k], first:select(2, 1):select(1, k):item(), what)
                local got, cut = first:select(2, 1):totable(), {table.unpack(want, 1, k)}
                table.sort(got)
                table.sort(cut)
                assert.same(cut, got, what)
              end
            end
            local want = sorted(list)
            for _, k in ipairs{1, n // 3 + 1, n} do
              local _, at = x:kthvalue(k, 1)
              assert.equal(want[k], at:item(), what)
            end
            local _, at = x:median(1)
            if name ~= "holes" or n < 5 then assert.equal(want[(n + 1) // 2], at:item(), what)
            else assert.equal(5, at:item(), what) end
          end
        end
      end
    end)
  end
end)

describe("ranges", function()
  local cpu = {device = "cpu"}
  it("have the elements that a formula of float64 gives, rounded once", function()
    for _, n in ipairs{1, 2, 3, 255, 256, 257, 511, 513, 1030} do
      local list, mirrored = {}, {}
      for i = 0, n - 1 do
        list[i + 1] = 0.3 + i * 0.1
        mirrored[i + 1] = i < math.max(1, n // 2) and -1.1 + i * (1.8 / (n - 1))
          or 0.7 - (n - 1 - i) * (1.8 / (n - 1))
      end
      if n == 1 then mirrored = {-1.1} end
      for _, dtype in ipairs{"float64", "float32", "bfloat16"} do
        local want = dm.tensor(list, {dtype = "float64", device = "cpu"}):to(dtype)
        local got = dm.arange(0.3, 0.3 + (n - 0.5) * 0.1, 0.1, {dtype = dtype, device = "cpu"})
        assert.is_true(dm.equal(want, got), ("arange of %d, %s"):format(n, dtype))
        want = dm.tensor(mirrored, {dtype = "float64", device = "cpu"}):to(dtype)
        got = dm.linspace(-1.1, 0.7, n, {dtype = dtype, device = "cpu"})
        assert.is_true(dm.equal(want, got), ("linspace of %d, %s"):format(n, dtype))
      end
    end
    assert.equal(0, dm.arange(5, 4, cpu):numel())
    assert.equal(-math.huge, 1 / dm.linspace(-1, -0.0, 3, cpu)[3]:item())
  end)
end)

describe("a column times a row", function()
  it("has the products, also in rows of several blocks", function()
    for _, dtype in ipairs{"float32", "float64", "int64", "bfloat16"} do
      local a = dm.arange(1, 40, {device = "cpu"}):to(dtype)
      local b = (dm.arange(1, 1100, {device = "cpu"}) % 7):to(dtype)
      local want = a:reshape(40, 1):expand(40, 1100):contiguous() *
        b:expand(40, 1100):contiguous()
      assert.is_true(dm.equal(want, dm.outer(a, b)), dtype)
      assert.is_true(dm.equal(want:t():contiguous(), dm.outer(b, a)), dtype)
    end
  end)
end)

describe("dm.block_diag", function()
  it("has the same blocks with a gradient and without one", function()
    local blocks = {dm.randn(2, 3), dm.randn(4), dm.tensor(5.0), dm.zeros(0, 2), dm.randn(3, 2):t()}
    local plain = dm.block_diag(blocks)
    assert.same({6, 13}, plain.shape)
    assert.equal(6 + 4 + 1 + 6, plain:ne(0):sum():item())
    assert.is_true(dm.equal(blocks[1], plain:narrow(1, 1, 2):narrow(2, 1, 3)))
    assert.is_true(dm.equal(blocks[5], plain:narrow(1, 5, 2):narrow(2, 11, 3)))
    blocks[1] = dm.parameter(blocks[1])
    local recorded = dm.block_diag(blocks)
    assert.is_true(dm.equal(plain, recorded:detach()))
    recorded:backward(plain)
    assert.is_true(dm.equal(blocks[1]:detach(), blocks[1].grad))
    assert.equal("float64", dm.block_diag{dm.ones(1):int(), dm.ones(2):double()}.dtype)
  end)
end)
