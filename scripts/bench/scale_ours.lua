-- This project's side of scale.lua: one measurement, whose numbers rank 0 prints.
--   mpirun -n 2 lua5.4 scale_ours.lua train SECONDS PLAIN|DDP cnn 128
--   mpirun -n 2 lua5.4 scale_ours.lua reduce SECONDS ELEMENTS
--   mpirun -n 2 lua5.4 scale_ours.lua overlap ROUNDS cnn 128 (or clocked LAYERS MIB MS)
-- A batch is the whole of all ranks. DEMILUNE_NUM_THREADS says how many threads a rank has.
local dm = require "demilune"
local dist, nn, optim = dm.distributed, dm.nn, dm.optim
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local cases = require "cases"

local WARM = 1 -- seconds, and at least three calls

local from = dm.now()
dist.init_process_group()
local init = dm.now() - from
local rank, n = dist.get_rank(), dist.get_world_size()

-- The seconds of a call: all ranks make as many, of which rank 0 says how many fit.
local function timed(f, seconds)
  local begin, calls = dm.now(), 0
  while calls < 3 or rank == 0 and dm.now() - begin < WARM and n == 1 do
    f()
    calls = calls + 1
  end
  local each = (dm.now() - begin) / calls
  local count = dist.broadcast_object(math.max(3, math.ceil(seconds / each)), 0)
  for _ = 1, math.max(1, count // 4) do f() end
  dist.barrier()
  begin = dm.now()
  for _ = 1, count do f() end
  return (dm.now() - begin) / count
end

local jobs = {}

-- The argument of a case that says how many samples the batch has.
local ROWS = { cnn = 1, resnet18 = 1, gpt = 5 }

function jobs.train(seconds, wrapped, kind, ...)
  local args = { ... }
  args[ROWS[kind]] = args[ROWS[kind]] // n
  dm.manual_seed(1)
  local case = cases[kind](table.unpack(args))
  local model = wrapped == "DDP" and nn.parallel.DistributedDataParallel(case.model) or case.model
  local function step()
    local _ <close> = dm.scope()
    case.optimizer:zero_grad()
    case.criterion(model(case.x), case.y):backward()
    case.optimizer:step()
  end
  local answer = { seconds = timed(step, seconds) }
  local before = dist.stats()
  step()
  local after, bytes = dist.stats(), 0
  for _, p in ipairs(case.model:parameters()) do bytes = bytes + p:numel() * p:element_size() end
  answer.sent = (after.bytes_sent - before.bytes_sent) / math.max(1, 2 * (n - 1) / n * bytes)
  return answer
end

function jobs.reduce(seconds, elements)
  local x = dm.ones(elements)
  return { seconds = timed(function() dist.all_reduce(x, "avg") end, seconds) }
end

-- A model of layers that each have a weight of so many MiB, and whose backward pass takes so many
-- milliseconds by the clock on a thread that computes all the time, whatever else the machine does.
local function clocked(layers, mib, ms)
  local layer = dm.autograd.Function {
    forward = function(_, x, _) return x * 1 end,
    backward = function(_, gy)
      local begin = dm.now()
      while dm.now() - begin < ms / 1e3 do end
      return gy, dm.ones(mib << 18)
    end,
  }
  local Model = nn.Module:extend "Clocked"
  function Model:init()
    for i = 1, layers do self["weight" .. i] = nn.Parameter(dm.zeros(mib << 18)) end
  end
  function Model:forward(x)
    for i = 1, layers do x = layer(x, self["weight" .. i]) end
    return x
  end
  local model = Model()
  return { model = model, optimizer = optim.SGD(model:parameters(), { lr = 1e-3 }),
    criterion = nn.MSELoss(), x = dm.ones(8):requires_grad_(true), y = dm.zeros(8) }
end

local BUCKET = 4 << 20 -- bytes, DistributedDataParallel's on the CPU

-- Seconds of f().
local function seconds_of(f, ...)
  local begin = dm.now()
  f(...)
  return dm.now() - begin
end

-- In turns a step that sends nothing, the messages of a step alone, and a step with them: the
-- seconds of each round, of the rank that took longest.
function jobs.overlap(rounds, kind, ...)
  local args = { ... }
  if ROWS[kind] then args[ROWS[kind]] = args[ROWS[kind]] // n end
  dm.manual_seed(1)
  local case = kind == "clocked" and clocked(...) or cases[kind](table.unpack(args))
  local model = nn.parallel.DistributedDataParallel(case.model)
  local bytes, parts = 0, {}
  for _, p in ipairs(case.model:parameters()) do bytes = bytes + p:numel() * p:element_size() end
  for at = 0, bytes - 1, BUCKET do
    parts[#parts + 1] = dm.ones(math.min(BUCKET, bytes - at) // 4)
  end
  local function send()
    local handles = {}
    for i, part in ipairs(parts) do
      handles[i] = dist.all_reduce(part, "avg", { async_op = true })
    end
    for _, handle in ipairs(handles) do handle:wait() end
  end
  local backward = 0
  local function step()
    local _ <close> = dm.scope()
    case.optimizer:zero_grad()
    local loss = case.criterion(model(case.x), case.y)
    backward = seconds_of(loss.backward, loss)
    case.optimizer:step()
  end
  local answer = { compute = {}, backward = {}, send = {}, together = {} }
  -- Notes the seconds of the slowest rank.
  local function note(name, seconds)
    local all = dist.all_reduce(dm.full({}, seconds, { dtype = "float64" }), "max")
    table.insert(answer[name], all:item())
  end
  for round = 0, rounds do -- the first one is not counted
    for _, name in ipairs { "compute", "send", "together" } do
      dist.barrier()
      local seconds
      if name == "compute" then
        seconds = seconds_of(model.no_sync, model, step)
        if round > 0 then note("backward", backward) end
      else
        seconds = seconds_of(name == "send" and send or step)
      end
      if round > 0 then note(name, seconds) end
    end
  end
  if rank == 0 then
    for i = 1, rounds do
      print(("compute=%.6f backward=%.6f send=%.6f together=%.6f"):format(answer.compute[i],
        answer.backward[i], answer.send[i], answer.together[i]))
    end
  end
  return { seconds = bytes }
end

local values = {}
for i = 2, #arg do values[i - 1] = tonumber(arg[i]) or arg[i] end
local answer = jobs[arg[1]](table.unpack(values))
if rank == 0 then
  print(("seconds=%.9f init=%.6f sent=%.6f"):format(answer.seconds, init, answer.sent or 0))
end
dist.destroy_process_group()
