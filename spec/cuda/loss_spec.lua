-- Device parity: losses with labels on cuda give the CPU's values and gradients, and a bad label
-- raises at the next synchronization.
local dm = require "demilune"
local both = require "spec.cuda.both"

local TOLERANCE = {float16 = 4e-3, bfloat16 = 3e-2, float32 = 1e-5, float64 = 1e-12}

if both.missing() then return end

local function numel(size)
  local n = 1
  for _, s in ipairs(size) do n = n * s end
  return n
end
local function here(t) return t:to(dm.zeros(1).device):detach() end
-- Logits in waves; the same elements on every device.
local function logits(dtype, size)
  local t = dm.arange(numel(size), {dtype = "float64", device = "cpu"})
  return here((((t * 0.7):sin() + (t * 0.013):cos()) * 4):to(dtype):reshape(table.unpack(size)))
end
local function labels(size, classes)
  local t = dm.arange(numel(size), {dtype = "int64", device = "cpu"})
  return here(((t * 7) % classes + 1):reshape(table.unpack(size)))
end
local function targets_of(size)
  local of = {size[1]}
  for d = 3, #size do of[d - 1] = size[d] end
  return labels(of, size[2])
end
local function weights(dtype, classes) return logits(dtype, {classes}):abs():detach() + 0.5 end

-- The loss and x's gradient, of a row's loss each or of all.
local function both_ways(f, x)
  x:requires_grad_()
  local loss = f(x)
  if loss:dim() == 0 then loss:backward() else
    loss:backward(logits(loss.dtype, loss.shape))
  end
  return {loss:detach(), x.grad}
end

-- op's loss and gradient for x of that size, in every reduction.
local function compare(what, dtype, size, op, how, y)
  for _, reduction in ipairs{"none", "mean", "sum"} do
    for part = 1, 2 do
      both.near(("%s, %s, %s, part %d"):format(what, dtype, reduction, part), function()
        local options = {reduction = reduction}
        for k, v in pairs(how or {}) do options[k] = v end
        local weight = options.weight and weights(options.weight, size[2])
        options.weight = nil
        return both_ways(function(x)
          return dm[op](x, y and here(y) or targets_of(size), weight, options)
        end, logits(dtype, size))[part]
      end, TOLERANCE[dtype] * (reduction == "sum" and 4 or 1))
    end
  end
end

local sizes = {{5, 3}, {4, 10}, {9, 64}, {2, 4100}, {2, 5120}, {3, 4, 6}, {2, 5, 3, 7}}

describe("cross_entropy on cuda", function()
  it("gives the CPU's losses and gradients at every size", function()
    for _, size in ipairs(sizes) do
      compare(table.concat(size, "x"), "float32", size, "cross_entropy")
    end
  end)

  it("in every float dtype, weighted and smoothed", function()
    for _, dtype in ipairs(both.floats) do
      compare("plain", dtype, {6, 16}, "cross_entropy")
      compare("weighted", dtype, {6, 16}, "cross_entropy", {weight = dtype})
      compare("smoothed", dtype, {6, 16}, "cross_entropy", {label_smoothing = 0.1})
      compare("both", dtype, {2, 5, 9}, "cross_entropy",
        {weight = "float64", label_smoothing = 0.3})
    end
  end)

  it("leaves out the ignored", function()
    compare("ignored", "float32", {14, 5}, "cross_entropy", {ignore_index = 3})
    compare("ignored below 0", "float32", {3, 5}, "cross_entropy", {ignore_index = -100},
      dm.tensor({-100, 2, -100}, {dtype = "int64", device = "cpu"}))
    both.near("all", function()
      return dm.cross_entropy(logits("float32", {2, 3}), here(dm.tensor({2, 2},
        {dtype = "int64", device = "cpu"})), {ignore_index = 2})
    end, 0)
  end)

  it("bears infinities and large logits", function()
    local rows = {{-math.huge, 2, 1}, {1e30, 1, 2}, {-1e30, -1e30, -1e30}, {5, 0 / 0, 1}}
    both.near("extremes", function()
      return dm.cross_entropy(dm.tensor(rows), labels({4}, 3), {reduction = "none"})
    end, 1e-6)
    both.near("all -inf", function()
      return dm.cross_entropy(dm.full({2, 40}, -math.huge), labels({2}, 3), {reduction = "none"})
    end, 0)
  end)

  it("reduces many rows in chunks, always to the same bits", function()
    local bits
    both.near("9000 rows", function()
      return dm.cross_entropy(logits("float32", {9000, 4}), labels({9000}, 4))
    end, 1e-5)
    both.on("cuda", function()
      for _ = 1, 3 do
        local parts = both_ways(function(x) return x:cross_entropy(labels({9000}, 4)) end,
          logits("float32", {9000, 4}))
        local now = both.bits(parts[1]) .. both.bits(parts[2])
        assert.equal(bits or now, now)
        bits = now
      end
    end)
  end)

  -- The ends of what a launch sums by itself: forward 4096 rows, backward 1024.
  for n, launches in pairs{[1] = {1, 1}, [8] = {1, 1}, [9] = {1, 1}, [1024] = {1, 1},
    [1025] = {1, 2}, [4096] = {1, 2}, [4097] = {3, 3}} do
    both.it_counts(("sums %d rows in as few launches as that takes"):format(n), function()
      both.on("cuda", function()
        local x, y = logits("float32", {n, 3}):requires_grad_(), labels({n}, 3)
        local function work_of(f)
          local before = dm.cuda._count "work"
          f()
          return dm.cuda._count "work" - before
        end
        dm.cross_entropy(x, y):backward() -- sends what stays
        x.grad = nil
        local loss, seed = nil, dm.tensor(1.0)
        assert.equal(launches[1], work_of(function() loss = dm.cross_entropy(x, y) end))
        assert.equal(launches[2], work_of(function() loss:backward(seed) end))
      end)
    end)
    it(("gives the CPU's mean of %d rows, of which it leaves out some"):format(n), function()
      for part = 1, 2 do
        for _, op in ipairs{"cross_entropy", "nll_loss"} do
          both.near(("%s, %d rows, part %d"):format(op, n, part), function()
            return both_ways(function(x)
              return dm[op](x, labels({n}, 3), weights("float32", 3), {ignore_index = 2})
            end, logits("float32", {n, 3}))[part]
          end, 1e-5)
        end
      end
    end)
  end

  it("gives the CPU's mean and sum of no rows", function()
    for _, reduction in ipairs{"mean", "sum"} do
      both.near(reduction, function()
        return dm.cross_entropy(dm.zeros(0, 3), dm.zeros(0, {dtype = "int64"}),
          {reduction = reduction})
      end, 0)
    end
  end)

  it("reads logits, labels and weights at strides", function()
    for part = 1, 2 do
      both.near("strided, part " .. part, function()
        local y = dm.stack({labels({6}, 5), labels({6}, 5)}, {dim = 2}):select(2, 1)
        return both_ways(function(x) return dm.cross_entropy(x, y) end,
          logits("float32", {5, 6}):t():detach())[part]
      end, 1e-5)
    end
  end)
end)

describe("nll_loss on cuda", function()
  it("gives the CPU's losses and gradients", function()
    for _, size in ipairs(sizes) do
      compare(table.concat(size, "x"), "float32", size, "nll_loss")
    end
    for _, dtype in ipairs(both.floats) do
      compare("weighted", dtype, {14, 5}, "nll_loss", {weight = dtype, ignore_index = 2})
    end
  end)
end)

describe("a label that is no class", function()
  for _, op in ipairs{"cross_entropy", "nll_loss"} do
    it("raises at the next synchronization, and counts as nothing: " .. op, function()
      both.on("cuda", function()
        for _, bad in ipairs{0, 4, -7, math.mininteger} do
          local x = logits("float32", {4, 3})
          local loss = dm[op](x, dm.tensor({1, 3, bad, 2}, {dtype = "int64"}))
          local ok, message = pcall(function() return loss:item() end)
          assert.is_false(ok)
          message = tostring(message)
          assert(message:find(op, 1, true), message)
          assert(message:find("position 3", 1, true), message)
          assert(message:find(tostring(bad), 1, true), message)
          assert(message:find("out of range 1 to 3", 1, true), message)
          local good = dm.tensor({1, 3, 2}, {dtype = "int64"})
          local rest = dm.cat{x:narrow(1, 1, 2), x:narrow(1, 4, 1)}
          assert.near(dm[op](rest, good):item(), loss:item(), 1e-6)
        end
      end)
    end)
  end

  it("raises in a gradient too", function()
    both.on("cuda", function()
      local x = logits("float32", {2, 3}):requires_grad_()
      local loss = dm.cross_entropy(x, dm.tensor({9, 1}, {dtype = "int64"}))
      loss:backward()
      assert.refuses("label 9 at position 1", function() return x.grad:cpu() end)
      assert.equal(0, x.grad:select(1, 1):abs():sum():item())
    end)
  end)
end)
