-- A training whose hosts lose each other, for hosts_spec.lua: `lua5.4 spec/distributed/cut.lua
-- FILE TIMEOUT` on each rank. FILE.RANK appears when the rank has made three steps.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local nn, dist = dm.nn, dm.distributed

dist.init_process_group{timeout = tonumber(arg[2]), warn_after = 1}
local rank = dist.get_rank()
local model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
local optimizer = dm.optim.SGD(model:parameters(), {lr = 0.01})
for step = 1, math.maxinteger do
  optimizer:zero_grad()
  model(dm.ones(2, 64)):sum():backward()
  optimizer:step()
  if step == 3 then assert(io.open(("%s.%d"):format(arg[1], rank), "w")):close() end
end
