-- This project's side of train.lua and of the drivers for a GPU: one request a line, one
-- answer a line; the other side is train_peer.py.
--   lua5.4 train_ours.lua [DEVICE]
local dm = require "demilune"
local nn, amp, F = dm.nn, dm.amp, dm.nn.functional
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local device = arg[1] or "cpu"
local _ <close> = dm.device(device)

-- ---------------------------------------------------------------------------
-- One op on much data: how often it must read or write it all
-- ---------------------------------------------------------------------------
local begin, ops = {}, {}

function ops.copy(x) return 2, function() return x:clone() end end
function ops.add(x)
  local y = dm.randn_like(x)
  return 3, function() return x + y end
end
function ops.exp(x) return 2, function() return x:exp() end end
function ops.gelu(x) return 2, function() return F.gelu(x) end end
function ops.silu(x) return 2, function() return F.silu(x) end end
function ops.sum(x) return 1, function() return x:sum() end end
function ops.sum_rows(x) return 1, function() return x:sum(2) end end
function ops.sum_columns(x) return 1, function() return x:sum(1) end end
function ops.amax_rows(x) return 1, function() return x:amax(2) end end
function ops.amax_columns(x) return 1, function() return x:amax(1) end end
function ops.var_rows(x) return 1, function() return x:var(2) end end
function ops.logsumexp(x) return 1, function() return x:logsumexp(2) end end
function ops.log_softmax(x) return 2, function() return F.log_softmax(x, -1) end end
function ops.dropout(x) return 2, function() return F.dropout(x, { p = 0.1 }) end end
function ops.batch_norm(x)
  local norm = nn.BatchNorm1d(x.shape[2]):to(x.dtype)
  return 2, function() return norm(x) end
end
function ops.softmax(x) return 2, function() return F.softmax(x, -1) end end
function ops.layer_norm(x)
  local norm = nn.LayerNorm(x.shape[2]):to(x.dtype)
  return 2, function() return norm(x) end
end
function ops.cross_entropy(x)
  local y = dm.randint(x.shape[2], { x.shape[1] })
  return 1, function() return F.cross_entropy(x, y) end
end

--- Forward, and backward from a gradient as large as the output.
local function both_ways(units, f, x)
  x:requires_grad_()
  local g = dm.no_grad(function() return dm.randn_like(f(x)) end)
  return units, function()
    f(x):backward(g)
    x.grad = nil
  end
end
function ops.gelu_backward(x) return both_ways(5, F.gelu, x) end
function ops.softmax_backward(x)
  return both_ways(5, function(v) return F.softmax(v, -1) end, x)
end
function ops.log_softmax_backward(x)
  return both_ways(5, function(v) return F.log_softmax(v, -1) end, x)
end
function ops.batch_norm_backward(x)
  return both_ways(5, nn.BatchNorm1d(x.shape[2]):to(x.dtype), x)
end
function ops.layer_norm_backward(x)
  return both_ways(5, nn.LayerNorm(x.shape[2]):to(x.dtype), x)
end
function ops.cross_entropy_backward(x)
  local y = dm.randint(x.shape[2], { x.shape[1] })
  return both_ways(3, function(v) return F.cross_entropy(v, y) end, x)
end

function begin.op(dtype, name, rows, columns)
  local x = dm.randn(rows, columns):to(dtype)
  local units, f = ops[name](x)
  return { step = f, bytes = units * x:numel() * x:element_size() }
end

function begin.mm(dtype, m, n, k)
  local a, b = dm.randn(m, k):to(dtype), dm.randn(k, n):to(dtype)
  return { step = function() return dm.mm(a, b) end, flops = 2 * m * n * k }
end

-- ---------------------------------------------------------------------------
-- Training
-- ---------------------------------------------------------------------------
-- Multiplications and additions of the products and convolutions of a step: each
-- weight meets each position of its output once forward, and twice backward, but for the
-- first layer, whose input needs no gradient.
local function count_flops(model, x)
  local total, scale, hooks = 0, 2, {}
  local function count(weights, y)
    total = total + 2 * weights * y * scale
    scale = 3
  end
  for _, m in model:named_modules() do
    if m.class == "LSTM" then
      hooks[#hooks + 1] = m:register_forward_hook(function(_, _, y)
        local weights = 0
        for _, p in ipairs(m:parameters()) do
          if p.ndim == 2 then weights = weights + p:numel() end
        end
        count(weights, y:numel() // m.hidden_size)
      end)
    elseif m.weight and m.weight.ndim > 1 and m.class ~= "Embedding" then
      hooks[#hooks + 1] = m:register_forward_hook(function(_, inputs, y)
        local shape = m.weight.shape
        local positions = m.class == "Conv2d" and y:numel() // shape[1]
          or inputs[1]:numel() // inputs[1]:size(-1)
        count(m.weight:numel(), positions)
      end)
    end
  end
  dm.no_grad(function() model(x) end)
  for _, hook in ipairs(hooks) do hook:remove() end
  return total
end

local function training(dtype, case)
  local half = dtype ~= "float32"
  -- at the usual 2^16 the first steps of some nets are skipped, and losses are compared by step
  local scaler = amp.GradScaler {
    device = device, enabled = dtype == "float16", init_scale = 2^10,
  }
  local region = { device_type = device, enabled = half, dtype = half and dtype or nil }
  local model, optimizer = case.model, case.optimizer
  local self = { case = case }
  function self.step()
    optimizer:zero_grad()
    local loss
    do
      local _ <close> = amp.autocast(region)
      loss = case.criterion(model(case.x), case.y)
    end
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    self.loss = loss
  end
  return self
end

for kind, case in pairs(require "cases") do
  begin[kind] = function(dtype, ...) return training(dtype, case(...)) end
end

-- ---------------------------------------------------------------------------
-- The host's time for a call: nothing waits for the device in the timed part
-- ---------------------------------------------------------------------------
function begin.host(_, name)
  local a, b, w = dm.randn(1), dm.randn(1), nn.Parameter(dm.randn(1))
  local linear, x = nn.Linear(16, 16), dm.randn(8, 16)
  local calls = {
    add = function() return a + b end,
    add_ = function() return a:add_(b) end,
    add_recorded = function() return w + b end,
    relu = function() return dm.relu(a) end,
    linear = function() return linear(x) end,
  }
  return { step = calls[name] }
end

-- ---------------------------------------------------------------------------
-- Requests
-- ---------------------------------------------------------------------------
local current, calls -- what was begun, and how many of its steps make a block

--- Of n steps; the device's work counts if `waits`.
local function seconds(n, waits)
  dm.synchronize(device)
  local step, from = current.step, dm.now()
  for _ = 1, n do
    local _ <close> = dm.scope()
    step()
  end
  if waits then dm.synchronize(device) end
  return dm.now() - from
end

local requests = {}

--- Begins a case; a training starts from a seed, so that it is the same in any dtype.
function requests.begin(dtype, kind, ...)
  current, calls = nil, nil
  collectgarbage()
  dm.empty_cache(device)
  dm.manual_seed(1)
  current = begin[kind](dtype, ...)
  local case = current.case
  return { trains = case and 1 or 0, dims = case and case.x.ndim or 0, bytes = current.bytes or 0,
    flops = current.flops or 0 }
end

--- Writes weights and batch for the other side.
function requests.save(path)
  local case, weights = current.case, {}
  for name, p in case.model:named_parameters() do weights[name] = p end
  dm.save(path, { weights = weights, x = case.x, y = case.y })
  return {}
end

--- From here on every step takes the next of a file's batches, x and y (batches, ...).
function requests.feed(path)
  local batches, i, case, step = assert(dm.load(path)), 0, current.case, current.step
  function current.step()
    i = i + 1
    case.x, case.y = batches.x[i], batches.y[i]
    step()
  end
  return { batches = #batches.x }
end

--- The losses of the next n steps, or of as many as fit so many seconds.
function requests.losses(n, least)
  local losses, from = {}, dm.now()
  for i = 1, n do
    local _ <close> = dm.scope()
    current.step()
    losses["l" .. i] = ("%.9g"):format(current.loss:item())
    losses.n = i
    if dm.now() - from > least then break end
  end
  return losses
end

--- Seconds of a step, over a block of about so many seconds. Where it is many steps, a
--- tenth of them come first and are not timed: the other side had the caches.
function requests.time(least)
  if not calls then
    seconds(1, true)
    calls = 1
    local t = seconds(1, true)
    while t < least do
      calls = math.ceil(calls * math.min(2 * least / t, 16))
      t = seconds(calls, true)
    end
    calls = math.max(1, math.ceil(calls * least / t))
  end
  if calls > 1 then seconds(calls // 10 + 1, true) end
  return { seconds = seconds(calls, true) / calls, steps = calls }
end

--- Seconds until the host is back, of n calls that fit into the device's queue.
function requests.host(n)
  seconds(n)
  return { seconds = seconds(n) / n }
end

--- The most bytes that tensors held at once in a step (what lives from before counts,
--- such as weights and moments; gradients do not), the most that the process ever held,
--- and what a step must do: operations, and bytes that pass through memory.
function requests.work()
  local status <close> = assert(io.open "/proc/self/status")
  local resident = status:read("a"):match "VmHWM:%s*(%d+)" * 1024
  local case = current.case
  seconds(1)
  if case then case.optimizer:zero_grad() end
  collectgarbage()
  dm.reset_peak_memory_stats(device)
  seconds(1)
  local peak = dm.max_memory_allocated(device)
  return {
    peak = peak, resident = resident,
    flops = case and count_flops(case.model, case.x) + (case.more_flops or 0)
      or current.flops or 0,
    bytes = current.bytes or 2 * peak, -- all of a training is written, and read again
  }
end

dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/answers.lua")(requests)
