-- linear with an activation gives the values and gradients of the product followed by the
-- activation op, within the rounding that the fused op saves.
local dm = require "demilune"
local DEVICE = require("spec.device").type
local both = require "spec.cuda.both"
local nn = dm.nn

local APART = {
  relu = dm.relu,
  gelu = dm.gelu,
  gelu_tanh = function(y) return dm.gelu(y, {approximate = "tanh"}) end,
}

local function leaves(dtype)
  local function leaf(...) return dm.randn({...}):to(dtype):detach():requires_grad_() end
  return leaf(3, 2, 4), leaf(8, 4), leaf(8)
end

local function near(a, b, gap)
  assert.same(a.shape, b.shape)
  local over = (a:double() - b:double()):abs() - b:double():abs() * gap - gap
  assert(over:max():item() <= 0)
end

describe("linear's activation", function()
  for name, apart in pairs(APART) do
    it(name .. " sees the result before it is rounded", function()
      for dtype, gap in pairs{float64 = 1e-12, float32 = 1e-5, float16 = 2^-9, bfloat16 = 2^-6} do
        local x, w, b = leaves(dtype)
        local wide = dtype == "float64" and dtype or "float32"
        dm.no_grad(function()
          local y = nn.functional.linear(x, w, b, {activation = name})
          assert.equal(dtype, y.dtype)
          near(y, apart(dm.linear(x:to(wide), w:to(wide), b:to(wide))), gap)
          assert(y:equal(dm.linear(x, w, b, name)))
        end)
      end
    end)

    it(name .. " has the gradients, and their gradients, of both apart", function()
      local x, w, b = leaves "float64"
      local function second(y)
        local first = {dm.autograd.grad(y:square():sum(), {x, w, b}, {create_graph = true})}
        local all = first[1]:square():sum() + first[2]:square():sum() + first[3]:square():sum()
        local next = {dm.autograd.grad(all, {x, w, b})}
        return {first[1], first[2], first[3], next[1], next[2], next[3]}
      end
      local got, want = second(dm.linear(x, w, b, name)), second(apart(dm.linear(x, w, b)))
      for i, t in ipairs(want) do near(got[i]:detach(), t:detach(), 1e-10) end
    end)

    it(name .. " gives one result, recorded or not", function()
      local x, w, b = leaves "float32"
      assert.equal(1, select("#", dm.linear(x, w, b, name)))
      assert.equal(1, select("#", dm.no_grad(dm.linear, x, w, b, name)))
      assert.equal("bfloat16", dm.amp.autocast({dtype = "bfloat16"}, function()
        return dm.linear(x, w, b, name)
      end).dtype)
    end)
  end

  it("keeps its result for relu's gradient alone", function()
    local x, w, b = leaves "float32"
    local y = dm.linear(x, w, b)
    y:mul_(2)
    assert.has_no.errors(function() y:sum():backward() end)
    y = dm.linear(x, w, b, "relu")
    y:mul_(2)
    assert.error_matches(function() y:sum():backward() end, "changed in place")
  end)

  it("wants a float, and one of its words", function()
    local x, w = dm.ones({2, 3}, {dtype = "int64"}), dm.ones({4, 3}, {dtype = "int64"})
    assert.error_matches(function() dm.linear(x, w, {activation = "relu"}) end, "float")
    assert.error_matches(function() dm.linear(x:float(), w:float(), {activation = "tanh"}) end,
      "'tanh' is none of none|relu|gelu|gelu_tanh", 1, true)
  end)
end)

describe("nn.Linear's activation", function()
  it("is an option, shown where there is one", function()
    local layer = nn.Linear(4, 8, {activation = "gelu_tanh"})
    local x = dm.randn(3, 4)
    near(layer(x):detach(), APART.gelu_tanh(dm.linear(x, layer.weight, layer.bias)):detach(),
      both.exact() and 1e-6 or 1e-5)
    assert.equal("4 -> 8, activation = gelu_tanh", layer:extra_repr())
    assert.equal("4 -> 8", nn.Linear(4, 8, {activation = "none"}):extra_repr())
    local names = {}
    for name in pairs(layer:state_dict()) do names[#names + 1] = name end
    table.sort(names)
    assert.same({"bias", "weight"}, names)
    assert.error_matches(function() nn.Linear(4, 8, {activation = "tanh"}) end,
      "Linear: activation is 'tanh'", 1, true)
  end)

  it("is in a Sequential the ReLU that follows, where nobody can tell", function()
    local Shifted = nn.ReLU:extend "Shifted"
    function Shifted.forward(_, x) return dm.relu(x) + 1 end
    dm.manual_seed(5) -- with which each layer has something below 0
    local x = dm.randn(3, 4)
    local m = nn.Sequential{nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.ReLU()}
    local joined, seen = m(x), {}
    local function outputs()
      local _ <close> = dm.no_grad()
      local function made()
        return dm.memory_stats(DEVICE)["allocation.all.allocated"]
      end
      local before = made()
      m(x)
      return made() - before
    end
    local made = outputs()
    for i = 1, 4 do
      m[i]:register_forward_hook(function(_, _, y) seen[i] = y end)
    end
    assert.is_true(dm.equal(joined, m(x)))
    assert.equal(made + 2, outputs())
    assert(seen[1]:min():item() < 0 and seen[3]:min():item() < 0)
    assert.is_true(dm.equal(seen[2], dm.relu(seen[1])))
    assert.is_true(dm.equal(seen[4], dm.relu(seen[3])))
    local shifted = nn.Sequential{m[1], Shifted()}
    assert.is_true(dm.equal(seen[2] + 1, shifted(x)))
  end)

  it("leaves hooks of a transformer's layer what they had", function()
    local layer = nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 16, dropout = 0})
    local x = dm.randn(3, 2, 8)
    local plain, seen = layer(x), nil
    local handle = layer.linear1:register_forward_hook(function(_, _, y) seen = y end)
    near(layer(x):detach(), plain:detach(), 1e-6)
    assert(seen:min():item() < 0)
    handle:remove()
    local linear1 = layer.linear1
    layer.linear1 = nn.Sequential{linear1}
    near(layer(x):detach(), plain:detach(), 1e-6)
  end)
end)

-- From this depth on contiguous rows of at most 32 bits times a column are added in lanes.
local INNER_PRODUCT = 512

describe("a matrix whose columns are contiguous", function()
  it("times a column is the product of its copy", function()
    local function same(f, a, ...)
      local want, got = f(a:contiguous(), ...), f(a, ...)
      local in_lanes = a.dtype ~= "float64" and a:size(2) >= INNER_PRODUCT
      if both.exact() and not in_lanes then return assert.is_true(dm.equal(want, got)) end
      near(got, want, ({float16 = 2^-8, bfloat16 = 2^-5})[a.dtype] or 1e-4)
    end
    for _, dtype in ipairs{"float32", "float64", "float16", "bfloat16", "int32"} do
      for _, size in ipairs{{1, 300}, {300, 1}, {7, 300}, {300, 257}, {64, 4100}, {40, 0}} do
        local m, k = table.unpack(size)
        local a, v = dm.randn(k, m):mul(4):to(dtype):t(), dm.randn(k):mul(4):to(dtype)
        same(dm.matmul, a, v)
        same(dm.matmul, a, v:unsqueeze(-1))
        same(function(x) return dm.addmv(dm.ones(m):to(dtype), x, v, {alpha = 2, beta = 3}) end, a)
        same(function(x) return dm.addmm(dm.ones(1):to(dtype), x, v:unsqueeze(2)) end, a)
      end
      local a, b = dm.randn(3, 70, 50):to(dtype):transpose(2, 3), dm.randn(3, 70, 1):to(dtype)
      same(dm.bmm, a, b)
      same(dm.bmm, a, b:expand(3, 70, 1))
    end
  end)
end)

describe("dot", function()
  -- Whole numbers, whose sums are exact in every order.
  it("is exact for whole numbers, of any length, stride and dtype", function()
    dm.manual_seed(4)
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16", "int32"} do
      for _, n in ipairs{0, 1, 31, 1000, 1025, 33000, 70001} do
        local x, y = dm.randint(-1, 1, {n}), dm.randint(-1, 1, {n})
        local a, b = x:to(dtype), y:to(dtype)
        local want = (x * y):sum():to(dtype):item() -- rounded once
        assert.equal(want, dm.dot(a, b):item(), dtype .. n)
        assert.equal(want, dm.dot(dm.stack({a, a}, 2):select(2, 2), b):item(), dtype .. n)
      end
    end
  end)

  it("answers on any number of threads alike", function()
    local x, y = dm.randn(300001), dm.randn(300001)
    local before = dm.get_num_threads()
    dm.set_num_threads(1)
    local one = dm.dot(x, y):item()
    dm.set_num_threads(4)
    local four = dm.dot(x, y):item()
    dm.set_num_threads(before)
    assert.equal(one, four)
    assert.is_true(math.abs(one - (x:double() * y:double()):sum():item()) < 1e-2)
  end)
end)

local LAST_BIT = {bfloat16 = 2 ^ -8, float16 = 2 ^ -11}

describe("addr", function()
  it("promotes its operands", function()
    local u, v = dm.ones(2):half(), dm.arange(1, 3, {dtype = "float32"})
    local y = dm.addr(dm.zeros(2, 3, {dtype = "int64"}), u, v)
    assert.equal("float32", y.dtype)
    assert.is_true(dm.equal(y, u:float():outer(v)))
    assert.equal("float64", dm.addr(dm.zeros(3), u, v:double()).dtype)
    assert.equal("int64", dm.addr(dm.zeros(2, 3):long(), u:long(), v:int()).dtype)
  end)
end)

describe("few rows of a batch", function()
  -- Each product occurs with both signs, in any order: what is left are roundings, which differ
  -- where sums are added in another order, and show in 16 bits too.
  it("are summed in the order of the batch, on the CPU", function()
    dm.manual_seed(7)
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16"} do
      for _, size in ipairs{{1, 50, 16}, {3, 7, 5}, {8, 16, 8}, {15, 50, 16}, {32, 32, 17},
        {2, 100, 10}, {1, 600, 150}} do
        local m, n, k = table.unpack(size)
        local function random(...) return dm.randn({...}, {device = "cpu"}):to(dtype) end
        local x, w, order = random(100, k), random(n, k), dm.randperm(2 * k, {device = "cpu"})
        x = dm.cat({x, x}, 2):index_select(2, order)
        w = dm.cat({w, -w}, 2):index_select(2, order)
        local what = ("%s %d x %d x %d"):format(dtype, m, n, k)
        assert.is_true(dm.equal(nn.functional.linear(x, w)[{{1, m}}],
          nn.functional.linear(x[{{1, m}}], w)), what)
        local turned = w:t():contiguous()
        assert.is_true(dm.equal(dm.matmul(x, turned)[{{1, m}}],
          dm.matmul(x[{{1, m}}], turned)), what)
      end
    end
  end)

  it("times a column have the bits of all rows, on the CPU", function()
    local _ <close> = dm.device "cpu"
    dm.manual_seed(7)
    for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
      for _, k in ipairs{1, 300, 511, 512, 513, 600, 1024, 5000} do
        local x, v = dm.randn(80, k):to(dtype), dm.randn(k):to(dtype)
        local last_bit = LAST_BIT[dtype] or 2 ^ -23
        local whole = x:mv(v)
        local gap = (whole:double() - x:double():mv(v:double())):abs():max():item()
        assert.is_true(gap < 2 ^ -23 * k + last_bit * 8 * math.sqrt(k), dtype .. k)
        local few = dm.ones(90, 3, 2 * k):to(dtype)[{{}, 2, {1, k}}] -- rows apart, and a column
        few[{{1, 80}}]:copy_(x)
        for _, m in ipairs{1, 2, 3, 8, 33, 80} do
          assert.is_true(dm.equal(whole[{{1, m}}], x[{{1, m}}]:mv(v)), dtype .. k)
          assert.is_true(dm.equal(whole[{{1, m}}], few[{{1, m}}]:mv(v)), dtype .. k)
          local column = dm.stack({v, v}, 2):select(2, 1)
          assert.is_true(dm.equal(whole[{{1, m}}], x[{{1, m}}]:matmul(column)), dtype .. k)
          local sums = dm.addmv(whole[{{1, m}}], x[{{1, m}}], v, {beta = 2, alpha = 3})
          near(sums, 5 * whole[{{1, m}}], 64 * last_bit * math.sqrt(k))
        end
        assert.is_true(dm.equal(dm.bmm(x:view(8, 10, k), v:view(1, k, 1):expand(8, k, 1))
          :view(80), whole), dtype .. k)
      end
    end
  end)

  it("have NaN and infinities where the batch has them, and nowhere else", function()
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16"} do
      for m = 1, 9 do
        local x, w = dm.ones({80, 45}):to(dtype), dm.ones({45, 70}):to(dtype)
        x[{m, 44}], w[{3, 5}], w[{45, 66}], w[{45, 70}] = 2, 0 / 0, math.huge, -math.huge
        for _, matrix in ipairs{w, w:t():contiguous():t()} do
          local few, whole = dm.matmul(x[{{1, m}}], matrix), dm.matmul(x, matrix)[{{1, m}}]
          assert.is_true(dm.equal(few:isnan(), whole:isnan()))
          assert.is_true(dm.equal(few:nan_to_num(), whole:nan_to_num()))
          assert.equal(m, few:isnan():sum():item())
          assert.equal(2 * m, few:isinf():sum():item())
        end
      end
    end
  end)

  -- Weights are read where they lie, not packed; up to 128 rows k is cut alike.
  it("have the bits of the whole batch, on the CPU", function()
    dm.manual_seed(6)
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16"} do
      for _, size in ipairs{{1, 96, 640}, {1, 1, 640}, {5, 1, 1100}, {2, 513, 250}, {3, 100, 37},
        {4, 3, 1000}, {1, 17, 2500}, {5, 1100, 96}, {6, 130, 2100}, {7, 65, 259}, {8, 333, 768},
        {9, 190, 100}, {16, 257, 511},
        {17, 64, 40}, {31, 17, 640}, {32, 100, 333}, {33, 64, 64}} do
        local m, n, k = table.unpack(size)
        local function random(...) return dm.randn({...}, {device = "cpu"}):to(dtype) end
        local x, w, bias = random(80, k), random(n, k), random(n)
        local whole = nn.functional.linear(x, w, bias)
        local few = nn.functional.linear(x[{{1, m}}], w, bias)
        local what = ("%s %d x %d x %d"):format(dtype, m, n, k)
        assert.is_true(dm.equal(whole[{{1, m}}], few), what)
        if k < INNER_PRODUCT or dtype == "float64" then
          assert.is_true(dm.equal(dm.matmul(x, w:t())[1], dm.matmul(w, x[1])), what)
        end
        local columns = w:t():contiguous()
        assert.is_true(dm.equal(whole[{{1, m}}], dm.addmm(bias, x[{{1, m}}], columns)), what)
        local sums = dm.addmm(few, x[{{1, m}}], w:t(), {beta = 1}) -- adds to what the output holds
        assert.is_true(dm.equal(dm.addmm(whole, x, w:t(), {beta = 1})[{{1, m}}], sums), what)
        local gap = (few:double() - nn.functional.linear(x[{{1, m}}]:double(), w:double(),
          bias:double())):abs():max():item()
        local sum, rounding = dtype == "float64" and 2 ^ -52 or 2 ^ -23, LAST_BIT[dtype] or 0
        assert.is_true(gap < sum * 2 * k + rounding * 8 * math.sqrt(k), what)
      end
    end
  end)
end)
