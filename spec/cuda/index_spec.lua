-- Device parity, bit for bit: indexing, masks and sorting on CUDA give the CPU's results.
local dm = require "demilune"
local both = require "spec.cuda.both"

if both.missing() then return end

-- A linear congruential generator, so that every run has the same numbers.
local state = 1
local function whole(n)
  state = (state * 6364136223846793005 + 1442695040888963407) & 0x7fffffffffffffff
  return (state >> 20) % n
end

-- A CPU tensor of that shape; make(i) gives its elements, whole(200) - 100 or so.
local function filled(shape, dtype, make)
  local n, d = 1, {}
  for _, size in ipairs(shape) do n = n * size end
  for i = 1, n do d[i] = make and make(i) or whole(1600) / 8 - 100 end
  local kind = make and "int64" or "float64"
  return dm.tensor(d, {dtype = kind, device = "cpu"}):reshape(shape):to(dtype)
end
local function positions(n, most, dtype)
  return filled({n}, dtype or "int64", function() return whole(most) + 1 end)
end

local function same(want, got, what)
  assert.equal("cuda:0", tostring(got.device))
  got = got:to "cpu"
  assert.equal(want.dtype, got.dtype, what)
  assert.same({want:size()}, {got:size()}, what)
  if want.dtype:find "float" then -- NaN at the same positions
    local a, b = want:isnan(), got:isnan()
    assert.is_true(dm.equal(a, b), what)
    want, got = want:masked_fill(a, 0), got:masked_fill(b, 0)
  end
  assert.is_true(dm.equal(want, got), what)
end

-- f on CPU tensors and on their copies; equal results.
local function agree(what, f, ...)
  local far = {}
  for i, t in ipairs {...} do far[i] = dm.is_tensor(t) and t:to "cuda" or t end
  local want, got = {f(...)}, {f(table.unpack(far))}
  for i = 1, #want do same(want[i], got[i], what) end
end

describe("on CUDA", function()
  local scope
  before_each(function() scope = dm.device "cpu" end)
  after_each(function() scope:close() end)

  it("elements of every dtype are moved", function()
    local rows, columns = positions(40, 7), positions(40, 5):reshape {8, 5}
    for _, dtype in ipairs(both.dtypes) do
      local x = filled({7, 5}, dtype)
      agree("index_select " .. dtype, function(a, i) return a:index_select(1, i) end, x, rows)
      agree("columns " .. dtype, function(a, i) return a:t():index_select(2, i) end, x, rows)
      agree("gather " .. dtype, function(a, i) return a:gather(1, i) end, x,
        filled({30, 5}, "int32", function() return whole(7) + 1 end))
      agree("index_get " .. dtype, function(a, i) return a[i] end, x, columns:clamp(1, 7))
      agree("cat " .. dtype, function(a) return dm.cat({a, a:t():contiguous():t()}, 2) end, x)
      agree("stack " .. dtype, function(a) return dm.stack({a, a}, 3) end, x:t())
      agree("flip " .. dtype, function(a) return a:flip {1, 2} end, x:t())
      agree("tril " .. dtype, function(a) return a:tril(-1), a:triu(1) end, x:t())
      agree("embedding " .. dtype, function(a, i) return dm.nn.functional.embedding(i, a) end,
        x, columns)
    end
  end)

  it("the last of several writers wins", function()
    for _, dtype in ipairs(both.dtypes) do
      local x, i = filled({6, 9}, dtype), positions(500, 6)
      local rows = filled({500, 9}, dtype)
      agree("index_copy", function(a, p, s) return a:index_copy(1, p, s) end, x, i, rows)
      agree("index_copy, dim 2", function(a, p, s) return a:index_copy(2, p, s) end,
        x:t(), i, rows:t())
      agree("scatter", function(a, p, s) return a:scatter(1, p, s) end, x,
        filled({500, 9}, "int64", function() return whole(6) + 1 end), rows)
      agree("put", function(a, p, s)
        a = a:clone()
        a[p] = s
        return a
      end, x, i - 7 * (i % 2), rows) -- half of them count from the end
    end
  end)

  it("sums are taken in the order of their terms, few and many", function()
    for _, dtype in ipairs {"int8", "int64", table.unpack(both.floats)} do
      for _, m in ipairs {1, 32, 33, 2048, 2049, 5000} do
        local what = dtype .. " " .. m
        local x, i = filled({9}, dtype), positions(m, 9)
        local s = filled({m}, "float64", nil):mul(1 / 3):to(dtype)
        agree(what, function(a, p, v) return a:index_add(1, p, v) end, x, i, s)
        agree(what, function(a, p, v) return a:scatter_add(1, p, v) end, x, i, s)
      end
      local x, s = filled({4, 6}, dtype), filled({70, 6}, dtype)
      local i = filled({70, 6}, "int16", function() return whole(4) + 1 end)
      agree(dtype, function(a, p, v) return a:scatter_add(1, p, v) end, x, i, s)
      agree(dtype, function(a, p, v) return a:t():scatter_add(2, p:t(), v:t()) end, x, i, s)
      agree(dtype, function(a, p, v) return a:t():index_add(2, p, v:t(), {alpha = 3}) end, x,
        positions(70, 4), s)
    end
  end)

  it("many short lines are added up, and long ones", function()
    for _, dtype in ipairs {"float16", "float32"} do
      local x, s = filled({3, 4200}, dtype), filled({40, 4200}, dtype)
      local i = filled({40, 4200}, "int64", function() return whole(3) + 1 end)
      agree(dtype, function(a, p, v) return a:scatter_add(1, p, v) end, x, i, s)
    end
  end)

  it("an embedding's gradient: repeated words, none for the padding", function()
    for _, m in ipairs {20, 3000} do
      local words, w = positions(m, 11), filled({11, 5}, "float32")
      local gy = filled({m, 5}, "float32"):div(3)
      agree("gradient", function(i, weight, g)
        weight = weight:detach():requires_grad_()
        dm.nn.functional.embedding(i, weight, {padding_idx = 4}):backward(g)
        return weight.grad
      end, words, w, gy)
    end
  end)

  it("masks choose in order, over many tiles", function()
    for _, n in ipairs {1, 2047, 2049, 9000} do
      local x = filled({n, 2}, "float32")
      local m = filled({n, 1}, "int64", function() return whole(3) end):eq(0)
      agree("select", function(a, k) return a:masked_select(k) end, x, m)
      agree("nonzero", function(k) return k:nonzero() end, m)
      agree("nonzero", function(a) return a:int():nonzero() end, x:t())
      agree("put", function(a, k)
        a = a:clone()
        a[k:expand(n, 2)] = a:masked_select(k):flip {1}
        return a
      end, x, m)
    end
    agree("strided", function(a, k) return a:t():masked_select(k:t()) end,
      filled({50, 90}, "int16"), filled({50, 90}, "bool", function() return whole(2) end))
  end)

  it("lines of every length are sorted, stably", function()
    for _, n in ipairs {1, 2, 3, 31, 513, 1000, 2048, 2049, 10000} do
      local x = filled({2, n}, "float32", function() return whole(n) - n // 2 end)
      if n > 30 then x[{1, 7}], x[{2, 20}], x[{1, 9}] = 0 / 0, -0.0, 1 / 0 end
      for _, down in ipairs {false, true} do
        local what = ("%d %s"):format(n, down)
        agree(what, function(a) return a:sort(-1, down) end, x)
        agree(what, function(a) return a:topk(math.min(n, 5), -1, down) end, x)
      end
      agree("rows", function(a) return a:sort(1) end, x:t():contiguous())
      agree("strided", function(a) return a:t():sort(1, true) end, x)
    end
    local x = filled({3, 5000}, "int32", function() return whole(40) end)
    agree("most of a line", function(a) return a:topk(4000) end, x)
  end)

  it("few of very many are found", function() -- the blocks' counts are summed in blocks
    local x = dm.zeros((1 << 22) + 5000, {dtype = "uint8"})
    for _, at in ipairs{1, 70000, 1 << 22, #x} do x[at] = at % 7 + 1 end
    agree("nonzero", function(a) return a:nonzero() end, x)
    agree("masked_select", function(a) return a:masked_select(a:gt(0)) end, x)
  end)

  it("every dtype has its order", function()
    for _, dtype in ipairs(both.dtypes) do
      local x = filled({40, 9}, dtype)
      agree("sort " .. dtype, function(a) return a:sort(1) end, x)
      agree("topk " .. dtype, function(a) return a:topk(3, 2) end, x)
      if dtype ~= "bool" then
        local edges = dm.tensor({-50, -12.5, 0, 7, 7, 60}, {dtype = "float64"})
        for _, of in ipairs {dtype, "float32", "float64", "int64"} do
          for _, right in ipairs {false, true} do
            local options = {right = right, out_int32 = right}
            agree("bucketize " .. dtype, function(a, e) return dm.bucketize(a, e, options) end,
              x:t(), (edges:to(of):sort()))
          end
        end
      end
    end
  end)

  it("a position out of range raises at the next synchronization; work goes on", function()
    local x = filled({3, 4}, "float32"):to "cuda"
    local function refused(pattern, f)
      assert.refuses(pattern, function()
        local y = f()
        dm.cuda.synchronize()
        return y
      end)
      same(x:to "cpu":mul(2), x * 2)
    end
    local function at(...) return dm.tensor({...}, {dtype = "int64"}):to "cuda" end
    refused("index_select: index 4 %(element 2%) is out of range, wanted 1 to 3",
      function() return x:index_select(1, at(1, 4)) end)
    refused("gather: index 0 %(element 3%)",
      function() return x:gather(2, at(1, 4, 0):reshape {1, 3}) end)
    refused("scatter_add: index 9 %(element 1%)",
      function() return x:scatter_add(1, at(9):reshape {1, 1}, x) end)
    refused("embedding: index %-1 %(element 2%)",
      function() return dm.nn.functional.embedding(at(2, -1), x) end)
    -- x[key] by its name, not by those of its steps
    refused("^[^ ]+ index: index 4 %(element 1%) is out of range, wanted 1 to 3",
      function() return x[at(4, 1)] end)
    refused("^[^ ]+ index: index 5 %(element 1%) is out of range, wanted 1 to 4",
      function() return x[{at(1), at(5)}] end)
    refused("one_hot: index 6 %(element 1%) is out of range, wanted 1 to 5",
      function() return dm.nn.functional.one_hot(at(6), 5) end)
    assert.refuses("index 5", function() return tostring(x:index_select(1, at(5))) end)
    assert.refuses("index 5", function() return x:index_select(1, at(5)):sum():item() end)
    -- an invalid position writes nothing
    local y = x:index_copy(1, at(7), x:narrow(1, 1, 1))
    assert.refuses("index 7", function() dm.cuda.synchronize() end)
    same(x:to "cpu", y)
  end)
end)
