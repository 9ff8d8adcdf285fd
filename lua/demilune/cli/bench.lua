-- demilune bench: a few times of this machine, to compare it with another or with yesterday. The
-- benchmarks beside PyTorch are in the repository, scripts/bench.

local core = require "demilune.core"

local bench = {}

-- Seconds of a call of f: the median of `rounds` blocks of at least 20 ms.
local function time(f, rounds)
  f() -- the first one allocates
  local start = core.now()
  f()
  local n = math.max(1, math.ceil(0.02 / math.max(core.now() - start, 1e-7)))
  local list = {}
  for i = 1, rounds do
    start = core.now()
    for _ = 1, n do f() end
    list[i] = (core.now() - start) / n
  end
  table.sort(list)
  return list[(rounds + 1) // 2]
end

local function written(s)
  if s < 1e-3 then return ("%.2f us"):format(s * 1e6) end
  return ("%.2f ms"):format(s * 1e3)
end

-- A training step of a model on random images or rows, in float32 or under autocast.
local function step_of(dm, model, x, classes, dtype)
  local y = dm.randint(1, classes, {x:size(1)})
  local optimizer = dm.optim.AdamW(model:parameters(), {lr = 1e-3})
  local criterion = dm.nn.CrossEntropyLoss()
  local function loss_of() return criterion(model(x), y) end
  return function()
    optimizer:zero_grad()
    local region = {device_type = "cpu", dtype = dtype, enabled = dtype ~= nil}
    local loss = dm.amp.autocast(region, loss_of)
    loss:backward()
    optimizer:step()
  end
end

local function cnn(nn)
  return nn.Sequential{
    nn.Conv2d(1, 16, 3, {padding = 1}), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, {padding = 1}), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
  }
end

local function mlp(nn) return nn.Sequential{nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)} end

-- The cases: a title, f(dm) -> the function to time, and the operations of one call, where their
-- rate is told.
local CASES = {
  {"a + b, one element", function(dm)
    local a, b = dm.ones(1), dm.ones(1)
    return function() return a + b end
  end},
  {"product, 512 x 512, float32", function(dm)
    local a, b = dm.randn(512, 512), dm.randn(512, 512)
    return function() return a:matmul(b) end
  end, 2 * 512 ^ 3},
  {"product, 512 x 512, bfloat16", function(dm)
    local a, b = dm.randn(512, 512):bfloat16(), dm.randn(512, 512):bfloat16()
    return function() return a:matmul(b) end
  end, 2 * 512 ^ 3},
  {"Adam step, MLP 16-32-4, 8 rows", function(dm)
    return step_of(dm, mlp(dm.nn), dm.randn(8, 16), 4)
  end},
  {"AdamW step, CNN, 64 images of 28 x 28", function(dm)
    return step_of(dm, cnn(dm.nn), dm.randn(64, 1, 28, 28), 10)
  end},
  {"the same under autocast, bfloat16", function(dm)
    return step_of(dm, cnn(dm.nn), dm.randn(64, 1, 28, 28), 10, "bfloat16")
  end},
}

--- The tool; gives the exit status. --quick takes 5 rounds of each case, else 25.
function bench.main(args)
  local quick = args[1] == "--quick"
  if args[1] and not quick or args[2] then
    io.stderr:write("demilune bench: takes --quick alone\n")
    return 1
  end
  local dm = require "demilune"
  print(("%s  %s x %d"):format(core._VERSION, core.cpu_info().variant, core.get_num_threads()))
  for _, case in ipairs(CASES) do
    dm.manual_seed(1)
    local s = time(case[2](dm), quick and 5 or 25)
    local rate = case[3] and ("%8.1f GFLOP/s"):format(case[3] / s / 1e9) or ""
    print(("%-40s %12s%s"):format(case[1], written(s), rate))
  end
  return 0
end

return bench
