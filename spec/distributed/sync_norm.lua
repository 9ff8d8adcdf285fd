-- SyncBatchNorm on several ranks, for sync_norm_spec.lua: `mpirun -n 2 lua5.4
-- spec/distributed/sync_norm.lua cpu`. What one process makes of the whole batch is the measure.

local core = require "demilune.core"
if arg[1] == "cpu" then core._test.without_cuda() end
local dm = require "demilune"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local _ <close> = dm.device(arg[1])

dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()

local function near(a, b, tolerance, what)
  if a:numel() == 0 then return end
  local distance = (a:detach() - b:detach()):abs():amax():item()
  assert(distance <= tolerance, ("%s: %g apart on rank %d"):format(what, distance, rank))
end

-- ---- a norm by itself: ranks with batches of different sizes, the third of three empty ----

-- This rank's rows of a batch: rank 1 has few, the last one of three has none.
local function rows(total)
  local first = total - 3
  if rank == 0 then return 1, first end
  return first + 1, rank == 1 and total or first
end
local function part(x)
  local from, to = rows(x:size(1))
  return x:narrow(1, from, to - from + 1)
end

for _, case in ipairs{{8, 5}, {8, 5, 7}, {8, 4, 3, 3}, {8, 2, 2, 3, 2}} do
  for _, options in ipairs{{}, {affine = false}, {momentum = "cumulative"},
    {track_running_stats = false}, {bias = false}} do
    dm.manual_seed(4)
    local x, g = dm.randn(case, {dtype = "float64"}) * 3 + 5, dm.randn(case, {dtype = "float64"})
    local given = {dtype = "float64"}
    for key, value in pairs(options) do given[key] = value end
    local class = ({nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d})[#case - 1]
    local whole, sync = class(case[2], given), nn.SyncBatchNorm(case[2], given)
    for _ = 1, 2 do
      x = x * 1.5 - 1
      local x_whole, x_part = x:clone():requires_grad_(), part(x):clone():requires_grad_()
      local y, y_part = whole(x_whole), sync(x_part)
      y:backward(g)
      y_part:backward(part(g))
      near(part(y), y_part, 1e-12, "y")
      near(part(x_whole.grad), x_part.grad, 1e-12, "the gradient of x")
    end
    for name, p in sync:named_parameters() do
      local sum = dist.all_reduce(p.grad:clone())
      near(sum, whole:get_parameter(name).grad, 1e-12, "the gradient of " .. name)
    end
    for name, b in sync:named_buffers() do near(b, whole:get_buffer(name), 1e-12, name) end
    whole:eval()
    sync:eval()
    local calls = dist.stats().calls
    local y = sync(part(x))
    if options.track_running_stats ~= false then near(part(whole(x)), y, 1e-12, "eval") end
    assert(dist.stats().calls == calls, "eval asks nobody")
  end
end

-- ---- one message each way ----

local norm = nn.SyncBatchNorm(3)
local x = dm.randn(4, 3, 2, 2, {requires_grad = true})
local before = dist.stats().calls
local y = norm(x)
assert(dist.stats().calls == before + 1, "forward")
y:sum():backward()
assert(dist.stats().calls == before + 2, "backward")

-- ---- 16 bits, and autocast ----

for _, dtype in ipairs{"float16", "bfloat16"} do
  local low = x:detach():to(dtype)
  assert(norm(low).dtype == dtype)
  local _ <close> = dm.amp.autocast{device_type = arg[1], dtype = dtype}
  assert(norm(x).dtype == "float32" and norm(low).dtype == dtype)
  near(norm(x), norm(low):to "float32", 0.05, dtype)
end

-- ---- errors ----

local function fails(text, f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok and why:find(text, 1, true), tostring(why))
end
fails("SyncBatchNorm: x is {4, 2}, wanted 3 channels", norm, dm.ones(4, 2))
fails("SyncBatchNorm: 1 values per channel on all ranks, wanted more to train on", norm,
  dm.ones(rank == 0 and 1 or 0, 3))
fails("SyncBatchNorm: has no second derivative", function()
  norm(x):square():sum():backward{create_graph = true}
end)
if n == 3 then
  local group = dist.new_group{0, 2}
  local of_group = nn.SyncBatchNorm(3, {process_group = group})
  if rank == 1 then
    fails("SyncBatchNorm: rank 1 is no member of this group", of_group, dm.ones(4, 3))
  else
    local z = of_group(dm.full({2, 3}, rank + 0.0))
    near(z, dm.full({2, 3}, rank - 1.0), 1e-4, "a group")
  end
end

-- ---- a model by DistributedDataParallel: the steps of one process with the whole batch ----

local function net()
  dm.manual_seed(2)
  return nn.Sequential{nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
    nn.Linear(4 * 16, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)}:to "float64"
end
local whole = net()
local synced = nn.SyncBatchNorm.convert_sync_batchnorm(net())
local ddp = nn.parallel.DistributedDataParallel(synced)
fails("join: the model has a SyncBatchNorm, whose statistics all ranks make", ddp.join, ddp)
local of_whole = optim.SGD(whole:parameters(), {lr = 0.1, momentum = 0.9})
local of_ddp = optim.SGD(ddp:parameters(), {lr = 0.1, momentum = 0.9})
for step = 1, 5 do
  dm.manual_seed(step)
  local images = dm.randn(6 * n, 1, 6, 6, {dtype = "float64"})
  local labels = dm.randint(2, {6 * n})
  local mine = {{rank * 6 + 1, rank * 6 + 6}}
  of_whole:zero_grad()
  nn.functional.cross_entropy(whole(images), labels):backward()
  of_whole:step()
  of_ddp:zero_grad()
  nn.functional.cross_entropy(ddp(images[mine]), labels[mine]):backward()
  of_ddp:step()
end
local a, b = whole:state_dict(), ddp.module:state_dict()
for name, value in pairs(a) do near(value, b[name], 1e-12, name) end

-- ---- a head that one rank alone uses: its bucket goes before the norm's sums there, behind them
-- on the others ----

local Heads = nn.Module:extend "Heads"
function Heads:init()
  self.norm, self.first = nn.SyncBatchNorm(2), nn.Linear(2, 1, {bias = false})
  self.second = nn.Parameter(dm.ones(2))
end
function Heads:forward(v)
  v = self.norm(v)
  return rank == 0 and self.first(v) + v * self.second or self.first(v)
end
local heads = nn.parallel.DistributedDataParallel(Heads(), {bucket_cap_mb = 1e-6})
local rows_of_rank = dm.tensor{{0.5, 1 + rank}, {2, 3 + rank}}:requires_grad_()
for _ = 1, 3 do
  heads:zero_grad()
  heads(rows_of_rank):sum():backward()
  local v = heads.module.norm(rows_of_rank):detach()
  near(heads.module.second.grad, dist.broadcast(v:sum(1), 0) / n, 1e-6, "a head's gradient")
end

print(("rank %d of %d: SyncBatchNorm"):format(rank, n))
dist.destroy_process_group()
