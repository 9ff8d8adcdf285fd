-- This project's side of the benchmarks on a GPU; see cuda_peer.py, its twin.
--   lua5.4 cuda_ours.lua DEVICE
local dm = require "demilune"
local nn, optim, amp, F = dm.nn, dm.optim, dm.amp, dm.nn.functional
local device = arg[1]
local on = { device = device }

-- ---------------------------------------------------------------------------
-- Numbers that both sides make alike
-- ---------------------------------------------------------------------------
--- n numbers in -1 .. 1 that look random, from a seed; float64 on the CPU.
local function noise(n, seed)
  local _ <close> = dm.device "cpu"
  local v = dm.arange(1, n, 1, { dtype = "float64" }) * 12.9898 + seed * 78.233
  v = v:sin() * 43758.5453
  return (v - v:floor()) * 2 - 1
end

--- Weights uniform by their inputs, biases 0; norms stay as they are.
local function start(model)
  dm.no_grad(function()
    for i, p in ipairs(model:parameters()) do
      if p.ndim > 1 then
        local fan_in = p:numel() // p.shape[1]
        p:copy_(noise(p:numel(), i):reshape(p.shape) / fan_in ^ 0.5)
      end
    end
    for name, p in model:named_parameters() do
      if name:find "bias$" then p:zero_() end
    end
  end)
  return model:to(device)
end

--- A batch: numbers of variance 1, and labels 1 to `classes` in turns.
local function batch(shape, classes)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  local x = (noise(n, 1000) * 3 ^ 0.5):float():reshape(shape):to(device)
  local labels = {}
  for i = 1, shape[1] do labels[i] = (i - 1) % classes + 1 end
  return x, dm.tensor(labels, on)
end

-- ---------------------------------------------------------------------------
-- One op on much data: `bytes` that it must read and write
-- ---------------------------------------------------------------------------
local SIZE = { float16 = 2, bfloat16 = 2, float32 = 4 }

local ops = {}
function ops.copy(x) return 2, function() return x:clone() end end
function ops.add(x)
  local y = dm.randn_like(x)
  return 3, function() return x + y end
end
function ops.gelu(x) return 2, function() return F.gelu(x) end end
function ops.sum(x) return 1, function() return x:sum() end end
function ops.softmax(x) return 2, function() return F.softmax(x, -1) end end
function ops.layer_norm(x)
  local norm = nn.LayerNorm(x.shape[2]):to(device):to(x.dtype)
  return 2, function() return norm(x) end
end
function ops.cross_entropy(x)
  local y = dm.randint(1, x.shape[2] + 1, { x.shape[1] }, on)
  return 1, function() return F.cross_entropy(x, y) end
end
--- Forward, and backward from a gradient as large as the output.
local function both_ways(units, f, x)
  x:requires_grad_()
  local g
  return units, function()
    local y = f(x)
    if not g then g = dm.keep(dm.randn_like(y)) end
    y:backward(g)
    x.grad = nil
  end
end
function ops.softmax_backward(x)
  return both_ways(5, function(v) return F.softmax(v, -1) end, x)
end
function ops.layer_norm_backward(x)
  return both_ways(5, nn.LayerNorm(x.shape[2]):to(device):to(x.dtype), x)
end
function ops.cross_entropy_backward(x)
  local y = dm.randint(1, x.shape[2] + 1, { x.shape[1] }, on)
  return both_ways(3, function(v) return F.cross_entropy(v, y) end, x)
end

local begin = {}
function begin.op(name, dtype, rows, columns)
  local x = dm.randn({ rows, columns }, on):to(dtype)
  local units, f = ops[name](x)
  return { step = f, bytes = units * rows * columns * SIZE[dtype] }
end

function begin.mm(dtype, m, n, k)
  local a, b = dm.randn({ m, k }, on):to(dtype), dm.randn({ k, n }, on):to(dtype)
  return { step = function() return dm.mm(a, b) end, flops = 2 * m * n * k }
end

-- ---------------------------------------------------------------------------
-- Training
-- ---------------------------------------------------------------------------
local function training(dtype, model, optimizer, criterion, x, y)
  local half = dtype ~= "float32"
  local scaler = amp.GradScaler { device = device, enabled = dtype == "float16" }
  local region = { device_type = device, enabled = half, dtype = half and dtype or nil }
  local self = {}
  function self.step()
    optimizer:zero_grad()
    local loss = amp.autocast(region, function() return criterion(model(x), y) end)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    self.loss = loss
  end
  return self
end

function begin.sine(dtype, size, hidden)
  local layers = {}
  for _, inputs in ipairs { 2, hidden, hidden } do
    layers[#layers + 1] = nn.Conv2d(inputs, hidden, 1)
    layers[#layers + 1] = nn.BatchNorm2d(hidden)
    layers[#layers + 1] = nn.ReLU()
  end
  layers[#layers + 1] = nn.Conv2d(hidden, 1, 1)
  local model = start(nn.Sequential(layers))
  local x = noise(2 * size * size, 1000):float():reshape(1, 2, size, size):to(device)
  local y = (x:narrow(2, 1, 1) * 3):round() / 3
  return training(dtype, model, optim.Adam(model:parameters(), { lr = 1e-3 }), nn.MSELoss(), x, y)
end

function begin.resnet18(dtype, images)
  local model = start(dm.models.resnet18 { num_classes = 10, small_stem = true })
  local x, y = batch({ images, 3, 32, 32 }, 10)
  local optimizer = optim.SGD(model:parameters(),
    { lr = 0.01, momentum = 0.9, weight_decay = 1e-4 })
  return training(dtype, model, optimizer, nn.CrossEntropyLoss(), x, y)
end

function begin.mlp(dtype, rows)
  local model = start(nn.Sequential {
    nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10),
  })
  local x, y = batch({ rows, 784 }, 10)
  return training(dtype, model, optim.Adam(model:parameters(), { lr = 1e-3 }),
    nn.CrossEntropyLoss(), x, y)
end

-- ---------------------------------------------------------------------------
-- What a call costs the host: nothing waits for the device in the timed part
-- ---------------------------------------------------------------------------
function begin.host(name)
  local a, b = dm.randn({ 1 }, on), dm.randn({ 1 }, on)
  local w = nn.Parameter(dm.randn({ 1 }, on))
  local linear, x = nn.Linear(16, 16):to(device), dm.randn({ 8, 16 }, on)
  local cases = {
    add = function() return a + b end,
    add_ = function() return a:add_(b) end,
    add_recorded = function() return w + b end,
    relu = function() return dm.relu(a) end,
    linear = function() return linear(x) end,
  }
  return { step = cases[name] }
end

-- ---------------------------------------------------------------------------
-- Requests
-- ---------------------------------------------------------------------------
local current

local function run(n)
  local step = current.step
  for _ = 1, n do
    local _ <close> = dm.scope()
    step()
  end
end

local function seconds(n, waits)
  dm.synchronize(device)
  local from = dm.now()
  run(n)
  if waits then dm.synchronize(device) end
  return dm.now() - from
end

local requests = {}

function requests.about()
  return { version = dm.version or "?", threads = dm.get_num_threads() }
end

function requests.begin(kind, ...)
  current = nil
  collectgarbage()
  dm.empty_cache(device)
  dm.manual_seed(1)
  current = begin[kind](...)
  return { bytes = current.bytes or 0, flops = current.flops or 0 }
end

--- Seconds of a step, over a block of about so many seconds.
function requests.time(least)
  if not current.n then
    seconds(2, true)
    current.n = 1
    while seconds(current.n, true) < least and current.n < 1 << 20 do current.n = current.n * 2 end
  end
  return { seconds = seconds(current.n, true) / current.n, steps = current.n }
end

--- Seconds until the host is back, of n calls that the device's queue has room for.
function requests.host(n)
  seconds(n)
  return { seconds = seconds(n) / n }
end

--- The losses of the next n steps.
function requests.losses(n)
  local losses = {}
  for i = 1, n do
    local _ <close> = dm.scope()
    current.step()
    losses["l" .. i] = ("%.9g"):format(current.loss:item())
  end
  return losses
end

function requests.peak()
  collectgarbage()
  run(1)
  dm.reset_peak_memory_stats(device)
  run(1)
  return { bytes = dm.max_memory_allocated(device) }
end

dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/answers.lua")(requests)
