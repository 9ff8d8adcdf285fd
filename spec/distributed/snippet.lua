-- Mixed precision with DistributedDataParallel as PyTorch's tutorials write it, line by line, for
-- ddp_spec.lua: `mpirun -n 2 lua5.4 spec/distributed/snippet.lua cpu`. All ranks end with the same
-- weights and the same loss scale, though one of them meets an infinity.

local core = require "demilune.core"
if arg[1] == "cpu" then core._test.without_cuda() end
local dm = require "demilune"
local nn, optim, data = dm.nn, dm.optim, dm.data
local dist, autocast, GradScaler = dm.distributed, dm.amp.autocast, dm.amp.GradScaler
local DDP = nn.parallel.DistributedDataParallel
local device_type = arg[1]

dist.init_process_group()
local rank = dist.get_rank()
dm.manual_seed(1)
local x = dm.randn(64, 8)
local set = data.TensorDataset(x, x:select(2, 1):gt(0):to "int64" + 1)
local dataloader = data.DataLoader(set, {batch_size = 8, sampler = data.DistributedSampler(set)})
local net = nn.Sequential{nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)}
local criterion = nn.CrossEntropyLoss()

for _, dtype in ipairs{"bfloat16", "float16"} do
  local model = DDP(net:copy():to(dist.device()))
  local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
  local scaler = GradScaler{device = device_type, init_scale = 1024}
  for i, input, target in dataloader:iter() do
    input, target = input:to(dist.device()), target:to(dist.device())
    optimizer:zero_grad()

    local loss
    do
      local _ <close> = autocast{device_type = device_type, dtype = dtype}
      local output = model(input)
      loss = criterion(output, target)
    end
    if i == 3 and rank == 1 then loss = loss * math.huge end

    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
  end
  local weights = nn.utils.parameters_to_vector(model:parameters())
  assert(weights:isfinite():all():item())
  assert(scaler:get_scale() == 512, "one step was skipped, on all ranks")
  local all = dist.all_gather(weights)
  for r = 2, #all do assert(all[r]:equal(all[1]), "the same weights on all ranks") end
end
print(("rank %d of %d: mixed precision on %s"):format(rank, dist.get_world_size(), dist.device()))
dist.destroy_process_group()
