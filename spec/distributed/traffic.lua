-- What a training sends, for hosts_spec.lua: `mpirun -n 2 lua5.4 spec/distributed/traffic.lua`, a
-- rank on each host. Each rank prints, for each way, the bytes that it sent a step in 2 (n - 1) / n
-- of the model's bytes: those that demilune counts, and those that left the host's Ethernet card.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed

local CARD = "/sys/class/net/eth0/statistics/tx_bytes"
local STEPS = 5

dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()

local function card_bytes()
  local file <close> = assert(io.open(CARD))
  return file:read "n"
end

-- A model of 3 MiB.
local function new_model()
  dm.manual_seed(1)
  return nn.Sequential{nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
    nn.Linear(512, 512)}
end

local WAYS = {}
function WAYS.ddp(ddp) return optim.Adam(ddp:parameters(), {lr = 1e-3}) end
function WAYS.bfloat16(ddp)
  ddp:register_comm_hook "bfloat16"
  return WAYS.ddp(ddp)
end
function WAYS.zero1(ddp)
  return optim.ZeroRedundancyOptimizer(ddp:parameters(), {optimizer_class = optim.Adam, lr = 1e-3})
end
function WAYS.zero2(ddp)
  return optim.ZeroRedundancyOptimizer(ddp:parameters(), {optimizer_class = optim.Adam, lr = 1e-3,
    stage = 2})
end

local function measure(way)
  local ddp = nn.parallel.DistributedDataParallel(new_model())
  local optimizer = WAYS[way](ddp)
  local x = dm.ones(4, 512):mul(rank + 1)
  local function step()
    optimizer:zero_grad()
    ddp(x):square():mean():backward()
    optimizer:step()
  end
  step() -- the buckets may be made anew behind the first one
  step()
  dist.barrier()
  local counted, sent = dist.stats().bytes_sent, card_bytes()
  for _ = 1, STEPS do step() end
  counted = dist.stats().bytes_sent - counted
  dist.barrier() -- what the other ranks want has left
  sent = card_bytes() - sent
  local bytes = 0
  for _, p in ipairs(ddp:parameters()) do bytes = bytes + p:numel() * p:element_size() end
  local unit = STEPS * 2 * (n - 1) / n * bytes
  io.write(("%s: rank %d counted %.4f, card %.4f\n"):format(way, rank, counted / unit, sent / unit))
end

for _, way in ipairs{"ddp", "bfloat16", "zero1", "zero2"} do measure(way) end
dist.destroy_process_group()
