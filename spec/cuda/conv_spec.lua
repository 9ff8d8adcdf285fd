-- Device parity: convolutions on CUDA, by cuDNN and by the project's own kernels, equal float64
-- convolutions on the CPU within the rounding of their dtype.
local dm = require "demilune"
local both = require "spec.cuda.both"
local folder = require "spec.folder"

if both.missing() then return end

local EPS = {float16 = 2^-10, bfloat16 = 2^-7, float32 = 2^-23, float64 = 2^-52}

-- n c h w, o r s, options
local CASES = {
  ["1x1"] = {{2, 8, 5, 7}, {70, 1, 1}, {}},
  ["3x3"] = {{2, 5, 9, 11}, {6, 3, 3}, {padding = 1}},
  ["one pixel"] = {{3, 4, 3, 3}, {5, 3, 3}, {}},
  ["strided"] = {{2, 6, 11, 8}, {9, 3, 2}, {stride = {2, 3}, padding = {1, 0}}},
  ["dilated"] = {{1, 6, 12, 9}, {7, 3, 3}, {dilation = {2, 3}, padding = 2}},
  ["same"] = {{2, 5, 6, 7}, {6, 4, 2}, {padding = "same", dilation = {1, 2}}},
  ["grouped"] = {{2, 12, 7, 6}, {66, 3, 3}, {groups = 2, stride = 2, padding = 1}},
  ["narrow groups"] = {{2, 12, 7, 6}, {8, 3, 3}, {groups = 4, stride = 2, padding = 1}},
  ["depthwise"] = {{2, 9, 8, 8}, {9, 5, 3}, {groups = 9, padding = {2, 1}, stride = {1, 2}}},
  ["depthwise, twice as many"] = {{2, 5, 6, 6}, {10, 3, 3}, {groups = 5}},
  ["long sums"] = {{4, 16, 20, 20}, {8, 3, 3}, {padding = 1}},
}

local function randn(dtype, ...)
  return dm.randn({...}, {device = "cpu", dtype = "float64"}):to(dtype)
end

-- A new leaf on the device; layout(x) gives it other strides.
local function leaf(x, device, dtype, layout)
  local y = x:detach():to(dtype):to(device)
  y = layout and layout(y):detach() or y:clone()
  y.requires_grad = true
  return y
end

-- y and the gradients of x, w and bias, for the gradient gy of y.
local function results(device, dtype, x, w, bias, gy, options, layout)
  x, w = leaf(x, device, dtype, layout), leaf(w, device, dtype, layout)
  bias = bias and leaf(bias, device, dtype)
  local y = dm.conv2d(x, w, bias, options)
  gy = gy or dm.randn(y.shape, {device = "cpu", dtype = "float64"}):to(x.dtype)
  local given = gy:to(dtype):to(device)
  y:backward(layout and layout(given) or given)
  return {y = y:detach(), x = x.grad, w = w.grad, bias = bias and bias.grad}, gy
end

-- Rounded from a sum in float32 of `terms` products; size: the sum of their magnitudes.
local function close(dtype, got, want, size, terms, what)
  assert.equal(dtype, got.dtype, what)
  assert.equal("cuda:0", tostring(got.device))
  assert.same(want.shape, got.shape, what)
  local over = (got:cpu():double() - want):abs() - want:abs() * EPS[dtype]
    - size * ((terms + 4) * math.min(EPS[dtype], EPS.float32) + EPS[dtype] / 2)
  if dtype == "float16" then over = over - 2^-24 end
  assert(over:max():item() <= 0, what)
end

local function check(name, case, dtype, layout)
  local s, f, o = table.unpack(case)
  local groups = o.groups or 1
  local x = randn(dtype, table.unpack(s))
  local w = randn(dtype, f[1], s[2] // groups, f[2], f[3])
  local bias = randn(dtype, f[1])
  local got, gy = results("cuda", dtype, x, w, bias, nil, o, layout)
  gy = gy:to(dtype)
  local want = results("cpu", "float64", x, w, bias, gy, o)
  -- the sums of the terms' magnitudes
  local size = results("cpu", "float64", x:abs(), w:abs(), bias:abs(), gy:abs(), o)
  local n_y = s[2] // groups * f[2] * f[3] + 1
  local terms = {y = n_y, x = f[1] // groups * f[2] * f[3],
    w = gy:numel() // f[1], bias = gy:numel() // f[1]}
  for key, value in pairs(want) do
    close(dtype, got[key], value, size[key], terms[key], ("%s %s of %s"):format(name, key, dtype))
  end
end

-- Functions that give a device tensor other strides.
local LAYOUTS = {
  channels_last = function(x) return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) end,
  turned = function(x) return x:transpose(3, 4):contiguous():transpose(3, 4) end,
  sliced = function(x) return dm.cat({x, x}, {dim = 4}):narrow(4, 2, x.shape[4]):copy_(x) end,
}

describe("CUDA's convolutions", function()
  for name, case in pairs(CASES) do
    it("with their gradients: " .. name, function()
      for dtype in pairs(EPS) do check(name, case, dtype) end
    end)
  end

  for name, layout in pairs(LAYOUTS) do
    it("of what lies otherwise: " .. name, function()
      for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
        for _, case in ipairs{"3x3", "strided", "depthwise"} do
          check(name .. " " .. case, CASES[case], dtype, layout)
        end
      end
    end)
  end

  it("take gradients that are one number, broadcast", function()
    local x, w = randn("float32", 2, 3, 5, 5), randn("float32", 4, 3, 3, 3)
    local function run(device)
      local a, b = leaf(x, device, "float32"), leaf(w, device, "float32")
      dm.conv2d(a, b):sum():backward()
      return a.grad:cpu(), b.grad:cpu()
    end
    local dx, dw = run "cpu"
    local gx, gw = run "cuda"
    assert((dx - gx):abs():max():item() < 1e-5 and (dw - gw):abs():max():item() < 1e-4)
  end)

  it("take an image without a batch, and no image at all", function()
    local x, w = randn("float32", 3, 6, 5):cuda(), randn("float32", 4, 3, 3, 3):cuda()
    local one = dm.conv2d(x, w)
    assert.same({4, 4, 3}, one.shape)
    assert(one:equal(dm.conv2d(x:unsqueeze(1), w)[1]))
    local none = dm.zeros({0, 3, 6, 5}, {device = "cuda"})
    w.requires_grad = true
    local y = dm.conv2d(none, w)
    assert.same({0, 4, 4, 3}, y.shape)
    y:sum():backward()
    assert.equal(0, w.grad:abs():max():item())
  end)

  it("give equal bits twice", function()
    for _, name in ipairs{"long sums", "grouped", "depthwise"} do
      local s, f, o = table.unpack(CASES[name])
      local x = randn("float32", table.unpack(s))
      local w = randn("float32", f[1], s[2] // (o.groups or 1), f[2], f[3])
      local a, gy = results("cuda", "float32", x, w, nil, nil, o)
      local b = results("cuda", "float32", x, w, nil, gy, o)
      for key in pairs(a) do assert(a[key]:equal(b[key]), name .. " " .. key) end
    end
  end)

  it("in a block of a residual network", function()
    local nn = require "demilune.nn"
    local function run(device)
      local _ <close> = dm.device(device)
      dm.manual_seed(3)
      local net = nn.Sequential(nn.Conv2d(4, 8, 3, {stride = 2, padding = 1, bias = false}),
        nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, {padding = 1, bias = false}),
        nn.BatchNorm2d(8))
      local short = nn.Conv2d(4, 8, 1, {stride = 2, bias = false})
      local x = dm.linspace(-1, 1, 2 * 4 * 9 * 9):sin():view(2, 4, 9, 9)
      local weights = {}
      for _, m in ipairs{net, short} do
        for _, p in ipairs(m:parameters()) do weights[#weights + 1] = p end
      end
      dm.no_grad(function()
        for i, p in ipairs(weights) do
          p:copy_((dm.linspace(0, 9, p:numel()) + i):cos():view(p.shape))
        end
      end)
      local y = dm.relu(net(x) + short(x))
      y:square():mean():backward()
      local out = {y:detach():cpu()}
      for _, p in ipairs(weights) do out[#out + 1] = p.grad:cpu() end
      return out
    end
    local want, got = run "cpu", run "cuda"
    assert.equal(#want, #got)
    for i, t in ipairs(want) do
      local over = (t - got[i]):abs() - t:abs() * 1e-3 - 1e-4
      assert(over:max():item() <= 0, "tensor " .. i)
    end
  end)
end)

describe("cuDNN", function()
  setup(folder.make)
  teardown(folder.remove)

  local MAKE = [[
    local function convolve(n, dtype)
      local o = {device = "cuda", dtype = dtype}
      local x, w, bias = dm.ones({n, 8, 6, 6}, o), dm.ones({8, 8, 3, 3}, o), dm.ones({8}, o)
      x.requires_grad, w.requires_grad = true, true
      local y = dm.conv2d(x, w, bias)
      assert(y:equal(dm.full_like(y, 73)))
      y:sum():backward()
      assert(w.grad:equal(dm.full_like(w.grad, n * 16)))
      assert(x.grad:sum():item() == n * 16 * 9 * 64)
    end
  ]]
  local function counts(environment, program)
    return both.counts(environment, MAKE .. program)
  end
  local it_counts = both.it_counts
  before_each(function() os.execute("rm -rf " .. folder.path "cache") end)
  local TWICE = 'convolve(2, "float32") convolve(2, "float32") convolve(3, "bfloat16")'
  -- A convolution of 16 bits with its bias is a graph of two operations.
  local function executed(n) return n.cudnnBackendExecute + n.cudnnBackendExecuteGraph end
  local function own(n) return n.conv_tiles_kernel + n.conv_each_kernel + n.conv_whole_kernel end

  it_counts("is asked once for each kind of convolution", function()
    local n = counts("", TWICE)
    assert.equal(6, n.cudnnHeuristic)
    assert.equal(9, executed(n))
    assert.equal(0, own(n))
  end)

  it_counts("is not asked by the next process, which reads what it chose", function()
    assert.equal(6, counts("", TWICE).cudnnHeuristic)
    local n = counts("", TWICE)
    assert.equal(0, n.cudnnHeuristic)
    assert.equal(6, n.cudnnPlanFromJson)
    assert.equal(9, executed(n))
    n = counts("DEMILUNE_PLAN_CACHE=0", TWICE)
    assert.equal(6, n.cudnnHeuristic)
    assert.equal(0, n.cudnnPlanFromJson)
  end)

  it_counts("is asked again where the file of choices says nothing of use", function()
    local alone = "DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnPlanToJson" -- no other files
    counts(alone, TWICE)
    assert.equal(6, counts(alone, TWICE).cudnnEngineByNumber)
    local file = io.popen("ls " .. folder.path "cache/demilune"):read "l"
    local name = "cache/demilune/" .. file
    local text = folder.read(name)
    for what, broken in pairs{
        nothing = "", noise = "\0\255x\n9 9\n", torn = text:gsub(" %.\n", "\n"),
        unknown = text:gsub("(%x+) 1 ", "%1 77 "), inexact = text:gsub("(%x+) 1 ", "%1 0 "),
        too_many = text:gsub("(%x+) 1 1", "%1 1 999"), long = ("1 "):rep(5000)} do
      folder.write(name, broken)
      local n = counts(alone, TWICE)
      assert.equal(6, n.cudnnHeuristic, what)
      assert.equal(9, executed(n), what)
      -- and later calls use the choice
      if what ~= "long" then assert.equal(0, counts(alone, TWICE).cudnnHeuristic, what) end
    end
  end)

  it_counts("goes on where nothing can be kept", function()
    for _, environment in ipairs{"XDG_CACHE_HOME=/proc/none", "XDG_CACHE_HOME= HOME="} do
      assert.equal(9, executed(counts(environment, TWICE)))
    end
  end)

  it_counts("serves each stream, and leaves float64 alone", function()
    local n = counts("", [[
      convolve(2, "float32")
      do local _ <close> = dm.cuda.stream(dm.cuda.Stream()); convolve(2, "float32") end
      convolve(2, "float64")
    ]])
    assert.equal(3, n.cudnnHeuristic)
    assert.equal(6, executed(n))
    assert.equal(3, own(n))
  end)

  it_counts("leaves what it refuses to our own kernels, and is not asked again", function()
    -- In bfloat16 it is asked with the bias, and without.
    for name, asked in pairs{cudnnCreate = 0, cudnnHeuristic = 21, cudnnPlan = 21,
        cudnnBackendExecute = 7} do
      os.execute("rm -rf " .. folder.path "cache")
      local n = counts("DEMILUNE_EMULATED_CUDNN_REFUSES=" .. name, TWICE)
      assert.equal(asked, n.cudnnHeuristic, name)
      assert.equal(0, executed(n), name)
      assert.equal(9, own(n), name)
    end
  end)

  it_counts("adds a bias of 16 bits before it rounds, or leaves it to our kernel", function()
    -- 257 + 0.75 rounds to 258; 257 alone to 256, and 256.75 too.
    local ONCE = [[
      local o = {device = "cuda", dtype = "bfloat16"}
      local x, w = dm.ones({4, 8, 1, 1}, o), dm.full({8, 8, 1, 1}, 32, o)
      w:select(2, 1):fill_(33)
      local bias = dm.full({8}, 0.75, o)
      dm.conv2d(x, w, bias)
      dm.cuda.synchronize()
      local before = dm.cuda._count "work"
      local y = dm.conv2d(x, w, bias)
      local launches = dm.cuda._count "work" - before
      assert(launches == %d and y:eq(%d):all():item(), y:max():item() .. " " .. launches)
      assert(dm.cuda.plans().cudnn.refused == 0)
    ]]
    counts("DEMILUNE_NO_FALLBACK=1", ONCE:format(1, 258))
    os.execute("rm -rf " .. folder.path "cache")
    counts("DEMILUNE_NO_FALLBACK=1 DEMILUNE_EMULATED_CUDNN_REFUSES=cudnnGraph",
      ONCE:format(2, 256))
  end)

  it_counts("is switched off by DEMILUNE_CUDNN=0", function()
    local n = counts("DEMILUNE_CUDNN=0", TWICE)
    assert.equal(0, n.cudnnHeuristic)
    assert.equal(9, own(n))
  end)
end)
