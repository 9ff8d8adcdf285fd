-- This project's side of the benchmarks: one request a line, one answer a line.
-- `small add` -> `seconds=3.1e-07 threads=1`. Every case matches the one
-- of the same name in peer.py.
local dm = require "demilune"
local nn, optim, amp, data, F = dm.nn, dm.optim, dm.amp, dm.data, dm.nn.functional
local now = dm.now

-- ---------------------------------------------------------------------------
-- One op, one small step
-- ---------------------------------------------------------------------------
--- Median over samples of at least `least` seconds each, warmed up.
local function seconds_per_call(f, least, samples)
  local n, t = 1, 0
  while t < least do
    n = n * 2
    local start = now()
    for _ = 1, n do f() end
    t = now() - start
  end
  local times = {}
  for i = 1, samples do
    local start = now()
    for _ = 1, n do f() end
    times[i] = (now() - start) / n
  end
  table.sort(times)
  return times[samples // 2 + 1]
end

local function mlp_step()
  local model = nn.Sequential { nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4) }
  local optimizer = optim.Adam(model:parameters(), { lr = 1e-3 })
  local x, y = dm.randn(8, 16), dm.randint(4, { 8 })
  return function()
    optimizer:zero_grad()
    local loss = F.cross_entropy(model(x), y)
    loss:backward()
    optimizer:step()
  end
end

local function small_cases()
  local one, other = dm.randn(1), dm.randn(1)
  local w, v = nn.Parameter(dm.randn(1)), nn.Parameter(dm.randn(1))
  local a, b = dm.randn(4, 4), dm.randn(4, 4)
  local linear, x = nn.Linear(4, 4), dm.randn(4, 4)
  return {
    empty = function() end,
    add = function() return one + other end,
    add_recorded = function() return w + v end,
    relu = function() return dm.relu(one) end,
    mm = function() return dm.mm(a, b) end,
    linear = function() return linear(x) end,
    mlp_step = mlp_step(),
  }
end

local cases
local function small(name)
  cases = cases or small_cases()
  return { seconds = seconds_per_call(cases[name], 0.02, 7), threads = dm.get_num_threads() }
end

-- ---------------------------------------------------------------------------
-- Regions, and ops in them that need no cast
-- ---------------------------------------------------------------------------
local function op_cases()
  local one, other = dm.randn(1), dm.randn(1)
  local low, bias = dm.randn(1, 1):to "bfloat16", dm.randn(1):to "bfloat16"
  return {
    add = function() return one + other end,
    mul = function() return one * other end,
    relu = function() return dm.relu(one) end,
    softmax = function() return dm.softmax(one, 1) end,
    cat = function() return dm.cat { one, other } end,
    mse_loss = function() return F.mse_loss(one, other) end,
    mm = function() return dm.mm(low, low) end,
    linear = function() return F.linear(low, low, bias) end,
  }
end

--- Seconds of a call outside and inside a region, and of the difference: the
--- median over neighbours of half a millisecond. Garbage is collected between
--- them, for the work of a collector that runs amid them has a rhythm of its own.
local function in_region(name)
  local f = op_cases()[name]
  local n = math.ceil(5e-4 / seconds_per_call(f, 0.01, 3))
  local function slice()
    collectgarbage()
    collectgarbage "stop"
    local start = now()
    for _ = 1, n do f() end
    local seconds = (now() - start) / n
    collectgarbage "restart"
    return seconds
  end
  local off, on, extra = {}, {}, {}
  for i = 1, 200 do
    local before = slice()
    do
      local _ <close> = amp.autocast { device_type = "cpu", dtype = "bfloat16" }
      on[i] = slice()
    end
    off[i] = (before + slice()) / 2
    extra[i] = on[i] - off[i]
  end
  for _, list in ipairs { off, on, extra } do table.sort(list) end
  return { off = off[100], on = on[100], extra = extra[100] }
end

--- Entering and leaving a region in each of its forms.
local function region(form)
  local function nothing() end
  local wrapped = amp.autocast { device_type = "cpu", dtype = "bfloat16" }:wrap(nothing)
  local forms = {
    block = function()
      local _ <close> = amp.autocast { device_type = "cpu", dtype = "bfloat16" }
    end,
    call = function() amp.autocast({ device_type = "cpu", dtype = "bfloat16" }, nothing) end,
    wrapped = wrapped,
  }
  return { seconds = seconds_per_call(forms[form], 0.02, 7) }
end

-- ---------------------------------------------------------------------------
-- The network of scripts/fashion_mnist.lua
-- ---------------------------------------------------------------------------
local function fashion_net(c1, c2, hidden, dropout)
  return nn.Sequential {
    nn.Conv2d(1, c1, 3, { padding = 1, bias = false }), nn.BatchNorm2d(c1),
    nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(c1, c2, 3, { padding = 1, bias = false }), nn.BatchNorm2d(c2),
    nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(c2 * 7 * 7, hidden), nn.ReLU(),
    nn.Dropout(dropout), nn.Linear(hidden, 10),
  }
end

local function dataset(train) return assert(dm.datasets.FashionMNIST(nil, { train = train })) end

--- Model, optimizer, schedule and scaler, as the script has them.
local function training(dtype, seed, o)
  dm.manual_seed(seed)
  local self = {}
  self.loader = data.DataLoader(dataset(true),
    { batch_size = o.batch, shuffle = true, drop_last = true, num_workers = 1, seed = seed })
  self.model = fashion_net(o.c1, o.c2, o.hidden, o.dropout)
  self.optimizer = optim.AdamW(self.model:parameters(),
    { lr = o.lr, weight_decay = o.weight_decay })
  local schedule = optim.lr_scheduler.OneCycleLR(self.optimizer, o.lr,
    { total_steps = #self.loader * o.epochs })
  local scaler = amp.GradScaler { device = "cpu", enabled = dtype == "float16" }
  local criterion = nn.CrossEntropyLoss()

  function self.forward(x)
    if dtype == "float32" then return self.model(x) end
    return amp.autocast({ device_type = "cpu", dtype = dtype }, function() return self.model(x) end)
  end
  function self.step(x, y)
    local _ <close> = dm.scope()
    self.optimizer:zero_grad()
    local loss = criterion(self.forward(x), y)
    scaler:scale(loss):backward()
    scaler:step(self.optimizer)
    scaler:update()
    schedule:step()
    return loss:item()
  end
  return self
end

local run
local function begin(dtype, seed, o)
  run = training(dtype, seed, o)
  return { threads = dm.get_num_threads() }
end

local function epoch()
  local start, total, count = now(), 0, 0
  for _, x, y in run.loader:iter() do
    local _ <close> = dm.scope()
    total, count = total + run.step(x, y), count + 1
  end
  return { seconds = now() - start, loss = total / count }
end

local function accuracy()
  local test = data.DataLoader(dataset(false), { batch_size = 1000 })
  local right, total = 0, 0
  run.model:eval()
  dm.no_grad(function()
    for _, x, y in test:iter() do
      local _ <close> = dm.scope()
      right, total = right + run.forward(x):argmax(-1):eq(y):sum():item(), total + #y
    end
  end)
  run.model:train()
  return { accuracy = right / total }
end

-- ---------------------------------------------------------------------------
-- Peak memory of a step
-- ---------------------------------------------------------------------------
--- Peak of the allocator's live bytes over a training step: weights, moments,
--- batch, buffers, and what the step adds. Nothing else is alive: the loader is
--- not used, and what earlier steps left is collected before.
local function memory(dtype, o)
  run = nil
  local t = training(dtype, 1, o)
  t.loader = nil
  local x, y = dm.randn(o.batch, 1, 28, 28), dm.randint(10, { o.batch })
  for _ = 1, 3 do t.step(x, y) end
  t.optimizer:zero_grad()
  collectgarbage()
  collectgarbage()
  dm.reset_peak_memory_stats()
  t.step(x, y)
  return { bytes = dm.max_memory_allocated() }
end

-- ---------------------------------------------------------------------------
-- Memory of a loop that leaves everything to the collector
-- ---------------------------------------------------------------------------
--- A step as a beginner writes it: no scope, nothing freed by hand.
local function careless_step(t, x, y)
  t.optimizer:zero_grad()
  local loss = F.cross_entropy(t.model(x), y)
  loss:backward()
  t.optimizer:step()
end

--- `steps` of them next to a heap of small tables, which makes Lua's own collector
--- slow to come round: peak of the first 20, peak of all, and what
--- collections forced by the budget of live bytes took.
local function flat(mode, tables, steps, o)
  local t = training("float32", 1, o)
  local heap = {}
  for i = 1, tables do heap[i] = { i } end
  collectgarbage(mode)
  dm.reset_peak_memory_stats()
  local before, start = dm.memory_stats(), now()
  local done, early = 0, nil
  while done < steps do
    for _, x, y in t.loader:iter() do
      careless_step(t, x, y)
      done = done + 1
      if done == 20 then early = dm.max_memory_allocated() end
      if done == steps then break end
    end
  end
  local seconds, after = now() - start, dm.memory_stats()
  assert(#heap == tables)
  return {
    early = early, peak = dm.max_memory_allocated(), seconds = seconds,
    forced = after.forced_collections - before.forced_collections,
    forced_seconds = after.forced_collection_seconds - before.forced_collection_seconds,
  }
end

-- ---------------------------------------------------------------------------
-- The loop
-- ---------------------------------------------------------------------------
local requests = {
  small = small, begin = begin, epoch = epoch, accuracy = accuracy, memory = memory, flat = flat,
  in_region = in_region, region = region,
}

dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/answers.lua")(requests)
