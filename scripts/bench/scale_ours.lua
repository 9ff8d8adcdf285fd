-- This project's side of scale.lua: one measurement, whose numbers rank 0 prints.
--   mpirun -n 2 lua5.4 scale_ours.lua train SECONDS PLAIN|DDP cnn 128
--   mpirun -n 2 lua5.4 scale_ours.lua reduce SECONDS ELEMENTS
-- A batch is the whole of all ranks. DEMILUNE_NUM_THREADS says how many threads a rank has.
local dm = require "demilune"
local dist, nn = dm.distributed, dm.nn
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

local values = {}
for i = 2, #arg do values[i - 1] = tonumber(arg[i]) or arg[i] end
local answer = jobs[arg[1]](table.unpack(values))
if rank == 0 then
  print(("seconds=%.9f init=%.6f sent=%.6f"):format(answer.seconds, init, answer.sent or 0))
end
dist.destroy_process_group()
