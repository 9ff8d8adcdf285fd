-- Images on cuda stay channels last between convolutions: no kernel permutes them, forward or
-- backward, and the results are the CPU's.
local dm = require "demilune"
local both = require "spec.cuda.both"
local amp, nn, F = dm.amp, dm.nn, dm.nn.functional

if both.missing() then return end

-- x (N,C,H,W), its channels last.
local function last(x) return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) end

local function lies_last(x)
  local _, c, h, w = table.unpack(x.shape)
  local s = x:stride()
  return s[2] == 1 and s[4] == c and s[3] == w * c and s[1] == h * w * c
end

-- The number of launches while f runs, by kernel.
local function work_of(f)
  local first, n = dm.cuda._count "work" + 1, setmetatable({}, {__index = function() return 0 end})
  f()
  for i = first, dm.cuda._count "work" do
    local name = dm.cuda._work(i):match "^%(?([%w_]+)"
    n[name] = n[name] + 1
  end
  return n
end

-- Whole numbers, so that sums are exact in float32.
local function numbers(dtype, ...)
  local size, n = {...}, 1
  for _, s in ipairs(size) do n = n * s end
  return ((dm.arange(n, {dtype = "int64"}) * 37) % 11 - 5):to(dtype):reshape(size)
end

-- A net from images to classes; `body` makes 16 channels of 8.
local function net(body)
  return nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(),
    nn.MaxPool2d(2), nn.Sequential(body), nn.BatchNorm2d(16), nn.GELU(), nn.AvgPool2d(2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
end

-- The work of a step on a batch in rows, after one that makes what stays.
local function step_work(model, dtype)
  local x, y = dm.randn(4, 3, 16, 16), dm.randint(5, {4})
  local function step()
    local _ <close> = dm.scope()
    model:zero_grad()
    local function loss() return F.cross_entropy(model(x), y) end
    local l = dtype and amp.autocast({dtype = dtype}, loss) or loss()
    l:backward()
  end
  step()
  return work_of(step)
end

describe("channels last on cuda", function()
  it("is what convolutions give, and what lies between them keeps", function()
    both.on("cuda", function()
      local conv, norm = nn.Conv2d(3, 8, 3, {padding = 1}), nn.BatchNorm2d(8)
      local x = dm.randn(2, 3, 6, 6, {requires_grad = true})
      local y = conv(x)
      assert.same({2, 8, 6, 6}, y.shape)
      for name, f in pairs{
        conv = function() return y end,
        norm = function() return norm(y) end,
        norm_eval = function() return norm:eval()(y) end,
        relu = dm.relu, gelu = dm.gelu,
        residual = function() return y + y:contiguous() end,
        bias = function() return y * dm.randn(8, 1, 1) end,
        dropout = function() return F.dropout(y, {p = 0.5}) end,
        max_pool = function() return F.max_pool2d(y, 2) end,
        avg_pool = function() return F.avg_pool2d(y, 3) end,
        adaptive = function() return F.adaptive_avg_pool2d(y, 2) end,
        larger = function() return F.interpolate(y, {scale_factor = 2}) end,
        smooth = function() return F.interpolate(y, {size = 9, mode = "bilinear"}) end,
        joined = function() return dm.cat({y, y}, {dim = 2}) end,
        half = function() return y:to "float16" end,
      } do
        local z = f(y)
        assert(lies_last(z), name)
        assert(not z:is_contiguous(), name)
        if name ~= "half" then -- and the gradient goes back through it
          local g = dm.autograd.grad(z:sum(), y, {retain_graph = true})
          assert.same(y.shape, (dm.is_tensor(g) and g or g[1]).shape, name)
        end
      end
    end)
  end)

  it("is seen by no one who looks at bytes", function()
    local x = last(numbers("float32", 2, 8, 4, 6):to "cuda")
    for _, dtype in ipairs{"int32", "int16", "float64", "uint8"} do
      local got = x:view(dtype)
      assert.is_true(got:cpu():equal(x:cpu():contiguous():view(dtype)), dtype)
    end
    x:view("int32"):zero_()
    assert.is_false(x:any():item())
  end)

  it("is seen by no one who looks at shapes", function()
    both.on("cuda", function()
      local y = dm.conv2d(numbers("float32", 2, 3, 5, 4), numbers("float32", 6, 3, 2, 2))
      local want = y:contiguous():view(2, -1)
      assert(dm.equal(want, y:view(2, -1)))
      assert(dm.equal(want, y:reshape(2, -1)))
      assert(dm.equal(want, y:flatten(2)))
      assert.same(y:contiguous():totable(), y:totable())
      assert(dm.equal(y:cpu(), y:contiguous():cpu()))
      y.requires_grad = true
      local w = numbers("float32", 2, 72)
      ;(y:view(2, -1) * w):sum():backward()
      assert(dm.equal(w:view(2, 6, 4, 3), y.grad))
    end)
  end)

  local PLAIN = function() return {nn.Conv2d(8, 16, 3, {padding = 1})} end
  local SEPARABLE = function()
    return {nn.Conv2d(8, 8, 3, {padding = 1, groups = 8}), nn.BatchNorm2d(8), nn.ReLU(),
      nn.Conv2d(8, 16, 1)}
  end

  for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
    both.it_counts("turns over the images at the entrance, and weights: " .. dtype, function()
      both.on("cuda", function()
        local amp_dtype = dtype ~= "float32" and dtype or nil
        local n = step_work(net(SEPARABLE()), amp_dtype)
        assert.equal(1, n.transpose_kernel)
        assert.equal(0, n.move_kernel)
        assert.equal(0, n.strided_kernel) -- the norms' counters move with their statistics
        n = step_work(net(PLAIN()), amp_dtype)
        -- the weight of 3 x 3, and its gradient, which a cast from 16 bits turns over by the way
        assert.equal(amp_dtype and 2 or 3, n.transpose_kernel)
        assert.equal(0, n.move_kernel)
        assert.equal(0, n.strided_kernel)
      end)
    end)
  end

  both.it_counts("reads the copies of weights that a step has left, as they lie", function()
    both.on("cuda", function()
      for _, dtype in ipairs{"float16", "bfloat16"} do
        local model = net(PLAIN())
        local opt = dm.optim.SGD(model:parameters(), {lr = 0.1})
        step_work(model, dtype)
        opt:step()
        local n = step_work(model, dtype)
        assert.equal(1, n.transpose_kernel) -- the images
        assert.equal(0, n.move_kernel)
      end
    end)
  end)

  both.it_counts("leaves lines in rows", function()
    both.on("cuda", function()
      local x, w = dm.randn(2, 3, 9, {requires_grad = true}), dm.randn(4, 3, 3)
      w.requires_grad = true
      local n = work_of(function()
        local y = dm.conv1d(x, w)
        assert(y:is_contiguous())
        y:backward(dm.ones(y.shape))
      end)
      assert.equal(0, n.transpose_kernel + n.move_kernel)
    end)
  end)

  both.it_counts("turns nothing over where images come channels last", function()
    both.on("cuda", function()
      local conv, x = nn.Conv2d(3, 8, 1), last(dm.randn(2, 3, 6, 6))
      local n = work_of(function() conv(x) end)
      assert.equal(0, n.transpose_kernel + n.move_kernel)
    end)
  end)

  -- f of x in rows on the CPU, and channels last on cuda; with the gradient for x.
  local function agree(what, dtype, size, tolerance, f)
    local function run(device)
      local x = numbers(dtype, table.unpack(size)) / 4
      if device == "cuda" then x = last(x) end
      x = x:detach():requires_grad_()
      local list = {f(x)}
      local y = list[1]
      local g = numbers(dtype, y:numel()):reshape(y.shape)
      y:backward(device == "cuda" and y.shape[3] and last(g) or g)
      list[1] = y:detach()
      list[#list + 1] = x.grad
      return list
    end
    local want = both.on("cpu", function() return run "cpu" end)
    local got = both.on("cuda", function() return run "cuda" end)
    assert.equal(#want, #got)
    for i, t in ipairs(want) do
      both.near(("%s of %s, result %d"):format(what, dtype, i), function(device)
        return device == "cpu" and t or got[i]
      end, tolerance)
    end
  end

  local TOLERANCE = {float16 = 2^-9, bfloat16 = 2^-6, float32 = 2^-20, float64 = 2^-45}
  -- channels: whole words of each dtype, and not
  local SIZES = {{2, 16, 6, 5}, {3, 5, 7, 6}, {1, 24, 1, 9}, {2, 600, 3, 2}}

  for _, dtype in ipairs(both.floats) do
    it("gives the CPU's pools: " .. dtype, function()
      for _, size in ipairs(SIZES) do
        local wide = math.min(2, size[3])
        agree("maxima", dtype, size, 0, function(x)
          local y, at = F.max_pool2d(x, {wide, 3}, {stride = 2, padding = {0, 1},
            return_indices = true})
          return y, at
        end)
        agree("means", dtype, size, TOLERANCE[dtype], function(x)
          return F.avg_pool2d(x, {wide, 3}, {stride = {1, 2}, padding = {0, 1}})
        end)
        agree("means of a few", dtype, size, TOLERANCE[dtype], function(x)
          return F.adaptive_avg_pool2d(x, {1, 2})
        end)
        agree("means of all", dtype, size, TOLERANCE[dtype], function(x)
          return F.adaptive_avg_pool2d(x, 1)
        end)
      end
    end)

    it("gives the CPU's batch norms: " .. dtype, function()
      for _, size in ipairs(SIZES) do
        local n = size[2]
        local statistics = dtype == "float64" and "float64" or "float32"
        for _, training in ipairs{true, false} do
          agree("training " .. tostring(training), dtype, size, 8 * TOLERANCE[dtype],
            function(x)
              local function vector(at) return numbers(statistics, n) / 8 + at end
              local mean, var = vector(0), vector(2)
              local y = F.batch_norm(x, mean, var, {weight = vector(1), bias = vector(0),
                training = training})
              return y, mean, var
            end)
        end
      end
    end)

    it("gives the CPU's pointwise results: " .. dtype, function()
      for _, size in ipairs(SIZES) do
        agree("formulas", dtype, size, 4 * TOLERANCE[dtype], function(x)
          local w = numbers(dtype, size[2], 1, 1)
          return dm.relu(x * w) + dm.where(x:gt(0), x, w) - x:contiguous():clamp(-1, 1)
        end)
        agree("a larger image", dtype, size, 4 * TOLERANCE[dtype], function(x)
          return F.interpolate(dm.cat({x, x * 2}, {dim = 2}), {scale_factor = 2})
        end)
      end
    end)
  end

  it("keeps draws: a mask is the CPU's", function()
    both.agree("dropout", function(device)
      dm.manual_seed(4)
      local x = dm.ones(2, 8, 3, 5)
      return F.dropout(device == "cuda" and last(x) or x, {p = 0.4})
    end)
  end)

  it("adds up gradients of several uses where they lie", function()
    agree("three uses", "float32", {2, 8, 4, 4}, 2^-14, function(x)
      local y = dm.conv2d(x, numbers("float32", 8, 8, 3, 3) / 32, nil, {padding = 1})
      return dm.relu(y) + y:sigmoid() + y * 3
    end)
  end)
end)
