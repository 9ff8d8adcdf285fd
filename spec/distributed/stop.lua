-- A Trainer whose last rank is sent a signal behind step 17, for dist_faults_spec.lua: `mpirun -n 2
-- lua5.4 spec/distributed/stop.lua CHECKPOINT [SIGNAL]`. For slurm_spec.lua SIGNAL is WAIT: then
-- CHECKPOINT.waits appears behind that step, and the later ones take half a second.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local nn, optim, data, dist = dm.nn, dm.optim, dm.data, dm.distributed

local path, signal = arg[1], arg[2]
dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()

dm.manual_seed(1)
local x = dm.randn(240, 6)
local set = data.TensorDataset(x, x:select(2, 1):gt(0):to "int64" + 1)
local model = nn.Sequential{nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)}
local trained = n > 1 and nn.parallel.DistributedDataParallel(model) or model
local trainer = dm.Trainer{model = trained, loss = nn.CrossEntropyLoss(), verbose = false,
  optimizer = optim.AdamW(model:parameters(), {lr = 0.01}), checkpoint = path, resume = "auto",
  callbacks = {on_step = function(_, steps)
    if signal == "WAIT" then
      if steps == 17 and rank == 0 then assert(io.open(path .. ".waits", "w")):close() end
      if steps >= 17 then os.execute "sleep 0.5" end
    elseif signal and steps == 17 and rank == n - 1 then
      os.execute(("kill -%s $PPID"):format(signal))
    end
  end}}
trainer:fit{epochs = 3, train = data.DataLoader(set, {batch_size = 4,
  sampler = data.DistributedSampler(set, {seed = 5})})}
print(("rank %d: stopped %s, %d steps, %d epochs, %.9g"):format(rank, trainer.stopped,
  trainer.steps, trainer.epoch, nn.utils.parameters_to_vector(model:parameters()):norm():item()))
dist.destroy_process_group()
