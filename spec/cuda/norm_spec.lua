-- Device parity: normalization on cuda gives the CPU's values and gradients, at sizes that reach
-- every branch of the kernels: rows for a warp, for a block, and longer; loads of one element and
-- of many; channels in one block and in several.
local dm = require "demilune"
local nn = require "demilune.nn"
local both = require "spec.cuda.both"
local folder = require "spec.folder"

local TOLERANCE = {float16 = 4e-3, bfloat16 = 3e-2, float32 = 2e-5, float64 = 1e-12}

if both.missing() then return end

-- Waves around `about`: the same elements on every device.
local function wave(dtype, about, ...)
  local size, n = {...}, 1
  for _, s in ipairs(size) do n = n * s end
  local t = dm.arange(n, {dtype = "float64", device = "cpu"})
  local device = dm.zeros(1).device
  return ((t * 0.7):sin() + (t * 0.013):cos() + about):to(dtype):reshape(table.unpack(size))
    :to(device):detach()
end

-- The result and the gradients of f(x, weight, bias), weighted so that no two are alike.
local function all_of(f, x, w, b)
  for _, t in ipairs{x, w, b} do t:requires_grad_() end
  local y = f(x, w, b)
  y:backward(wave(y.dtype, 0.3, table.unpack(y.shape)))
  return {y:detach(), x.grad, w.grad, b.grad}
end

-- make() gives x, weight, bias. Weights' gradients are sums of `terms` products.
-- most: 1 / sqrt(eps) for rows of one element, by which the gradient's rounding grows.
local function compare(what, dtype, terms, f, make, most)
  for part, name in ipairs{"y", "gx", "gw", "gb"} do
    local tolerance = TOLERANCE[dtype] * (part > 2 and math.max(1, terms ^ 0.5) or most or 1)
    both.near(("%s, %s, %s"):format(what, dtype, name), function()
      return all_of(f, make())[part]
    end, tolerance)
  end
end

local function layer(len)
  return function(x, w, b) return x:layer_norm({len}, w, b) end
end

describe("layer_norm and group_norm on cuda", function()
  it("norm rows of any length", function()
    for _, len in ipairs{1, 5, 64, 500, 1000, 4096, 9000, 9001} do
      local rows = len < 1000 and 7 or 2
      compare("rows of " .. len, "float32", rows, layer(len), function()
        return wave("float32", 3, rows, len), wave("float32", 1, len), wave("float32", 0, len)
      end, len == 1 and not both.exact() and 317 or nil)
    end
  end)

  it("norm every float dtype, long and short", function()
    for _, dtype in ipairs(both.floats) do
      for _, len in ipairs{24, 48 * 50, 8448, 21} do
        compare("rows of " .. len, dtype, 3, layer(len), function()
          return wave(dtype, 0, 3, len), wave(dtype, 1, len), wave(dtype, 0, len)
        end)
      end
    end
  end)

  it("take weights of another dtype, and x at strides", function()
    local mixes = {{"bfloat16", "float32"}, {"float16", "bfloat16"}, {"float32", "float64"}}
    for _, pair in ipairs(mixes) do
      compare(table.concat(pair, " x "), pair[1], 6, layer(32), function()
        return wave(pair[1], 0, 32, 6):t():detach(), wave(pair[2], 1, 32), wave(pair[2], 0, 32)
      end)
    end
  end)

  it("sum many rows in chunks", function()
    compare("columns", "float32", 3000, layer(12), function()
      return wave("float32", 1, 3000, 12), wave("float32", 1, 12), wave("float32", 0, 12)
    end)
  end)

  it("norm groups of channels", function()
    for _, dtype in ipairs(both.floats) do
      for _, size in ipairs{{2, 6, 4, 4}, {3, 6, 5, 5}, {2, 6}, {2, 6, 40, 40}} do
        local terms = size[1] * (size[3] or 1) * (size[4] or 1)
        compare(table.concat(size, "x"), dtype, terms, function(x, w, b)
          return x:group_norm(3, w, b)
        end, function()
          return wave(dtype, 0, table.unpack(size)), wave(dtype, 1, 6), wave(dtype, 0, 6)
        end)
      end
    end
  end)

  it("keep what is small beside a large mean", function()
    both.near("offset", function()
      return (wave("float32", 0, 2, 9001) + 1000):layer_norm{9001}
    end, 2e-3)
  end)

  it("give every run the same bits", function()
    both.on("cuda", function()
      local bits
      for _ = 1, 3 do
        local parts = all_of(layer(40), wave("float32", 1, 700, 40), wave("float32", 1, 40),
          wave("float32", 0, 40))
        local now = {}
        for k, t in ipairs(parts) do now[k] = both.bits(t) end
        now = table.concat(now, "|")
        assert.equal(bits or now, now)
        bits = now
      end
    end)
  end)
end)

describe("batch_norm on cuda", function()
  local function train(x, w, b) return x:batch_norm(nil, nil, w, b, {training = true}) end

  it("norms images and rows, in one block and in many", function()
    local sizes = {{4, 3, 5, 5}, {4, 3, 8, 8}, {6, 7}, {900, 5}, {3, 70}, {5, 2, 4}, {2, 2, 96, 96}}
    for _, size in ipairs(sizes) do
      local terms = size[1] * (size[3] or 1) * (size[4] or 1)
      for _, dtype in ipairs(terms < 2000 and both.floats or {"float16", "float32"}) do
        compare(table.concat(size, "x"), dtype, terms, train, function()
          local c = size[2]
          return wave(dtype, 2, table.unpack(size)), wave(dtype, 1, c), wave(dtype, 0, c)
        end)
      end
    end
  end)

  it("moves running statistics of any float dtype and step, one of them alone too", function()
    for _, dtype in ipairs(both.floats) do
      for _, running in ipairs(both.floats) do
        for which = 1, 3 do
          both.near(("%s, %s, %d"):format(dtype, running, which), function()
            local mean, var = wave(running, 0, 6), wave(running, 3, 6)
            local every = {mean:view(3, 2):select(2, 1), var:view(3, 2):select(2, 1)}
            wave(dtype, 2, 4, 3, 5, 5):batch_norm(which ~= 2 and every[1] or nil,
              which ~= 3 and every[2] or nil, {training = true, momentum = 0.3})
            return dm.cat{mean, var}
          end, TOLERANCE[running == "float64" and dtype ~= "float64" and "float32" or running])
        end
      end
    end
  end)

  both.it_counts("takes two launches forward, with the running statistics, and one backward",
    function()
      both.on("cuda", function()
        local norm, x = nn.BatchNorm2d(8), dm.randn(4, 8, 6, 6)
        local function count(f)
          local from = dm.cuda._count "work"
          local y = f()
          return dm.cuda._count "work" - from, y
        end
        norm(x)
        local n, y = count(function()
          return x:batch_norm(norm.running_mean, norm.running_var, norm.weight, norm.bias,
            {training = true})
        end)
        assert.equal(2, n)
        local g = dm.ones(y.shape)
        assert.equal(1, (count(function() return dm.autograd.grad(y, norm.weight, {g}) end)))
      end)
    end)

  it("norms by given statistics", function()
    for _, dtype in ipairs(both.floats) do
      local wide = dtype == "float64" and "float64" or "float32"
      compare("eval", dtype, 32, function(x, w, b)
        return x:batch_norm(wave(wide, 0, 3), wave(wide, 2, 3), w, b)
      end, function()
        return wave(dtype, 2, 2, 3, 4, 4), wave(wide, 1, 3), wave(wide, 0, 3)
      end)
    end
  end)

  it("moves the running statistics on the device", function()
    for _, name in ipairs{"running_mean", "running_var"} do
      both.near(name, function()
        local norm = nn.BatchNorm2d(3)
        norm:train()
        for k = 1, 3 do norm(wave("float32", k, 4, 3, 6, 6)) end
        return norm[name]
      end, 1e-5)
    end
  end)

  it("has zeros for gradients of no elements", function()
    both.agree("empty", function()
      local x, w = dm.zeros(0, 3, 4, 4), dm.ones(3):requires_grad_()
      train(x, w, dm.zeros(3)):sum():backward()
      return w.grad
    end)
  end)

  it("gives every run the same bits", function()
    both.on("cuda", function()
      local bits
      for _ = 1, 3 do
        local parts = all_of(train, wave("float32", 1, 2, 2, 96, 96), wave("float32", 1, 2),
          wave("float32", 0, 2))
        local now = {}
        for k, t in ipairs(parts) do now[k] = both.bits(t) end
        now = table.concat(now, "|")
        assert.equal(bits or now, now)
        bits = now
      end
    end)
  end)
end)

-- By cuDNN, and by our own kernels where it refuses.
describe("batch_norm by cuDNN", function()
  setup(folder.make)
  teardown(folder.remove)

  local function counts(environment, program)
    return both.counts(environment, [[
      dm.manual_seed(12)
      local GAP = {float32 = 1e-5, bfloat16 = 4e-2, float16 = 4e-3, float64 = 1e-12}
      local function norm(dtype, shape, how)
        how = how or {}
        local x, w, b = dm.randn(shape), dm.randn(shape[2]), dm.randn(shape[2])
        local gy = dm.randn(shape)
        local function run(device)
          local t = {x:to(dtype), w:to(how.weight or "float32"), b}
          if dtype == "float64" then t[2], t[3] = w:double(), b:double() end
          for i = 1, 3 do t[i] = t[i]:to(device):detach():requires_grad_() end
          local o = {device = device}
          local mean, var = dm.zeros({shape[2]}, o), dm.ones({shape[2]}, o)
          local seen = how.layout and how.layout(t[1]) or t[1]
          local y = dm.batch_norm(seen, mean, var, t[2], t[3],
            {training = true, activation = how.activation})
          y:backward(gy:to(dtype):to(device))
          return {y:detach(), mean, var, t[1].grad, t[2].grad, t[3].grad}
        end
        local want, got = run "cpu", run "cuda"
        for i, v in ipairs(want) do
          local gap = math.max(GAP[dtype], v.dtype == "float32" and 1e-6 or 0) -- running statistics
          local over = (v:double() - got[i]:cpu():double()):abs() - gap * 8 - v:double():abs() * gap
          assert(over:max():item() <= 0, dtype .. " result " .. i)
        end
      end
    ]] .. program)
  end
  local it_counts = both.it_counts
  before_each(function() os.execute("rm -rf " .. folder.path "cache") end)
  local ALL = [[
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      norm(dtype, {6, 3})
      norm(dtype, {2, 3, 4, 5})
      norm(dtype, {2, 3, 4, 5})
    end
  ]]
  local function own(n) return n.channel_kernel + n.column_kernel end

  it_counts("runs forward and backward, asked once for each kind", function()
    local n = counts("", ALL)
    assert.equal(18, n.cudnnBackendExecuteNorm)
    assert.equal(12, n.cudnnHeuristic)
    assert.equal(0, own(n))
    n = counts("", ALL)
    assert.equal(0, n.cudnnHeuristic)
    assert.equal(12, n.cudnnPlanFromJson)
    assert.equal(18, n.cudnnBackendExecuteNorm)
  end)

  it_counts("takes channels that lie last, and weights of 16 bits", function()
    local n = counts("", [[
      norm("bfloat16", {2, 3, 4, 5}, {weight = "bfloat16", layout = function(x)
        return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3)
      end})
    ]])
    assert.equal(2, n.cudnnBackendExecuteNorm)
  end)

  it_counts("leaves float64, and what it refuses, to our own kernels", function()
    assert.equal(2, own(counts("", [[norm("float64", {6, 3})]])))
    for name in pairs{cudnnHeuristic = 1, cudnnPlan = 1, cudnnBackendExecute = 1} do
      os.execute("rm -rf " .. folder.path "cache")
      local n = counts("DEMILUNE_EMULATED_CUDNN_REFUSES=" .. name, ALL)
      assert.equal(0, n.cudnnBackendExecuteNorm, name)
      assert.equal(18, own(n), name)
    end
    assert.equal(18, own(counts("DEMILUNE_CUDNN=0", ALL)))
  end)

  local RELU = [[
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      norm(dtype, {6, 8}, {activation = "relu"})
      norm(dtype, {2, 8, 4, 5}, {activation = "relu"})
      norm(dtype, {2, 8, 4, 5}, {activation = "relu", layout = function(x)
        return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3)
      end})
    end
  ]]
  it_counts("runs relu with the norm; the gradient passes relu first", function()
    local n = counts("DEMILUNE_NO_FALLBACK=1", RELU)
    assert.equal(9, n.cudnnBackendExecuteGraph)
    assert.equal(9, n.cudnnBackendExecuteNorm)
    assert.equal(0, own(n))
  end)

  it_counts("leaves relu that it refuses to our own kernels", function()
    local n = counts("DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnGraph", RELU)
    assert.equal(0, n.cudnnBackendExecuteGraph)
    assert.equal(9, n.cudnnBackendExecuteNorm) -- the gradients
    assert.equal(9, n.apply_kernel + n.apply_columns_kernel) -- y
    n = counts("DEMILUNE_CUDNN=0", RELU .. [[norm("float64", {2, 3, 4}, {activation = "relu"})]])
    assert.equal(20, n.apply_kernel + n.apply_columns_kernel) -- and the input's gradient
  end)

  it_counts("gives the bits of two ops by our own kernels", function()
    counts("DEMILUNE_CUDNN=0", [[
      local both = require "spec.cuda.both"
      for _, dtype in ipairs{"float32", "float16", "bfloat16", "float64"} do
        for _, shape in ipairs{{2, 8, 4, 4}, {2, 3, 3, 3}, {40, 16}} do
          local x, gy = dm.randn(shape):to(dtype):to "cuda", dm.randn(shape):to(dtype):to "cuda"
          local o = {training = true}
          local function bits(f)
            local t = x:clone():requires_grad_()
            local y = f(t)
            y:backward(gy)
            return both.bits(y:detach()) .. both.bits(t.grad)
          end
          assert(bits(function(t) return dm.batch_norm(t, nil, nil, o):relu() end) ==
            bits(function(t)
              return dm.batch_norm(t, nil, nil, {training = true, activation = "relu"})
            end), dtype)
        end
      end
    ]])
  end)
end)
