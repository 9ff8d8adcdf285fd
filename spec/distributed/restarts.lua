-- A training that is killed and goes on, for distributed_spec.lua: `scripts/run -n 4 --restarts 3
-- spec/distributed/restarts.lua FILE [RANK]`. FILE gets the checkpoint; in the first start RANK
-- kills itself amid the third epoch. Says when and on how many ranks it trains. For hosts_spec.lua
-- RANK is "lost": then FILE.waits appears there, and the training goes on when it is gone.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local nn, optim, data, dist = dm.nn, dm.optim, dm.data, dm.distributed

dist.init_process_group{timeout = 60}
local rank, path, killed = dist.get_rank(), arg[1], tonumber(arg[2])
local restart = math.tointeger(tonumber(os.getenv "DEMILUNE_RESTART") or 0)

local function say(what)
  io.write(("%s %.3f\n"):format(what, core.now()))
  io.stdout:flush()
end

dm.manual_seed(1)
local x = dm.randn(64, 6)
local set = data.TensorDataset(x, x:select(2, 1):gt(0):to "int64" + 1)
local model = nn.Sequential{nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2)}
local optimizer = optim.AdamW(model:parameters(), {lr = 0.01})

local has_begun = false
local function on_step(_, steps)
  if rank == 0 and not has_begun then
    say(("start %d on %d ranks at step %d:"):format(restart, dist.get_world_size(), steps))
    has_begun = true
  end
  if restart == 0 and arg[2] == "lost" and steps == 10 and rank == 0 then
    assert(io.open(path .. ".waits", "w")):close()
    os.execute(("while test -e %s.waits; do sleep 0.1; done"):format(path))
  end
  if restart == 0 and rank == killed and steps == 10 then
    say "killed:"
    os.execute "kill -9 $PPID" -- the shell's parent is this process
  end
end

dm.Trainer{model = model, shards = 4, loss = nn.CrossEntropyLoss(), optimizer = optimizer,
  amp = "bfloat16", checkpoint = path, resume = "auto", verbose = false,
  callbacks = {on_step = on_step}}:fit{
  train = data.DataLoader(set, {batch_size = 16, shuffle = true, shards = 4}), epochs = 5}
dist.destroy_process_group()
