-- SyncBatchNorm and DistributedDataParallel in sub-groups, for sync_norm_spec.lua: `mpirun -n 4
-- lua5.4 spec/distributed/sync_groups.lua cpu`. Ranks 0 and 2 train one model, 1 and 3 another one;
-- what one process makes of a group's whole batch is the measure.

local core = require "demilune.core"
if arg[1] == "cpu" then core._test.without_cuda() end
local dm = require "demilune"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local _ <close> = dm.device(arg[1])

dist.init_process_group{timeout = 60}
local rank = dist.get_rank()
local groups = {dist.new_group{0, 2}, dist.new_group{1, 3}}
local own = rank % 2
local group, index = groups[own + 1], rank // 2

local function near(a, b, tolerance, what)
  local distance = (a:detach() - b:detach()):abs():amax():item()
  assert(distance <= tolerance, ("%s: %g apart on rank %d"):format(what, distance, rank))
end

local function net()
  dm.manual_seed(2 + own)
  return nn.Sequential{nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
    nn.Linear(4 * 16, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)}:to "float64"
end
local whole = net()
local synced = nn.SyncBatchNorm.convert_sync_batchnorm(net(), group)
assert(synced[2].process_group == group and synced[6].process_group == group)
local ddp = nn.parallel.DistributedDataParallel(synced, {process_group = group})
local of_whole = optim.SGD(whole:parameters(), {lr = 0.1, momentum = 0.9})
local of_ddp = optim.SGD(ddp:parameters(), {lr = 0.1, momentum = 0.9})
for step = 1, 4 + 3 * own do -- the groups do not wait for one another
  dm.manual_seed(10 * step + own)
  local images = dm.randn(12, 1, 6, 6, {dtype = "float64"}) * (1 + own) + own
  local labels = dm.randint(2, {12})
  local mine = {{index * 6 + 1, index * 6 + 6}}
  of_whole:zero_grad()
  nn.functional.cross_entropy(whole(images), labels):backward()
  of_whole:step()
  of_ddp:zero_grad()
  nn.functional.cross_entropy(ddp(images[mine]), labels[mine]):backward()
  of_ddp:step()
end
local a, b = whole:state_dict(), ddp.module:state_dict()
for name, value in pairs(a) do near(value, b[name], 1e-12, name) end

-- ---- a head that one rank of a group alone uses: its bucket goes before the norm's sums there,
-- behind them on the other ----

local Heads = nn.Module:extend "Heads"
function Heads:init()
  self.norm = nn.SyncBatchNorm(2, {process_group = group})
  self.first = nn.Linear(2, 1, {bias = false})
  self.second = nn.Parameter(dm.ones(2))
end
function Heads:forward(v)
  v = self.norm(v)
  return index == 0 and self.first(v) + v * self.second or self.first(v)
end
local heads = nn.parallel.DistributedDataParallel(Heads(), {bucket_cap_mb = 1e-6,
  process_group = group})
local rows = dm.tensor{{0.5, 1 + rank}, {2, 3 + rank}}:requires_grad_()
for _ = 1, 3 do
  heads:zero_grad()
  heads(rows):sum():backward()
  local v = heads.module.norm(rows):detach()
  near(heads.module.second.grad, dist.broadcast(v:sum(1), own, group) / 2, 1e-6,
    "a head's gradient")
end

print(("rank %d: groups"):format(rank))
dist.destroy_process_group()
