-- Ranks that do not do the same, for distributed_spec.lua: `mpirun -n 3 lua5.4
-- spec/distributed/faults.lua KIND`. What a call raises is printed as one line.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local dist = dm.distributed

local kind = arg[1]
if kind == "absent" then
  if os.getenv "OMPI_COMM_WORLD_RANK" == "1" then os.execute "sleep 3" os.exit(1) end
  io.write(select(2, pcall(dist.init_process_group, {timeout = 1})), "\n")
  os.exit(2, true)
end
local TIMEOUTS = {late = 2, alone = 2, stopped = 3} -- seconds
dist.init_process_group{timeout = TIMEOUTS[kind] or 60, warn_after = 1}
local rank = dist.get_rank()

local function say(text) io.stdout:write(text, "\n") end

-- Calls f and prints its error.
local function fails(f, ...)
  local ok, why = pcall(f, ...)
  assert(not ok, "no error")
  return why
end

local FAULTS = {}

function FAULTS.mismatch()
  local x = dm.full({10 + rank}, 3.0)
  say(fails(dist.all_reduce, x))
  assert(x:eq(3):all():item(), "was written")
  say(fails(function()
    if rank == 0 then dist.barrier() else dist.broadcast(dm.ones(3), 2) end
  end))
  say(fails(dist.new_group, {rank}))
  local group = dist.new_group{0, 1}
  if rank == 0 then
    dist.send(dm.ones(3), 1)
    dist.send(dm.full({2}, 5), 1)
  elseif rank == 1 then
    say(fails(dist.recv, dm.zeros(2), 0))
    assert(dist.recv(dm.zeros(2, {dtype = "int64"}), 0)[1]:item() == 5)
  end
  if rank < 2 then dist.barrier(group) end
  if dist.all_reduce(dm.ones(1)):item() == 3 then say "goes on" end
  dist.destroy_process_group()
  say(fails(dist.init_process_group))
end

-- The others wait for rank 1, and print how it ended, and after how many seconds they learned so.
local function wait_for_it()
  local from = dm.now()
  local why = fails(dist.all_reduce, dm.ones(2))
  say(("%s, told after %.1f s"):format(why, dm.now() - from))
  assert(fails(dist.barrier):find "rank 1 has left")
end

function FAULTS.leave()
  dist.barrier()
  dist.all_reduce(dm.ones(4))
  if rank == 1 then dist.destroy_process_group() else wait_for_it() end
end

function FAULTS.error()
  dist.barrier()
  dist.all_reduce(dm.ones(4))
  if rank == 1 then error "a fault of its own" end
  wait_for_it()
end

FAULTS["end"] = function()
  dist.all_reduce(dm.ones(4))
  if rank == 1 then os.execute "sleep 1" end
  say "ends"
end

-- Rank 1 sleeps, in a backward pass of which the others wait for the buckets.
function FAULTS.late()
  local model = dm.nn.Sequential{dm.nn.Linear(4, 3), dm.nn.Linear(3, 1)}
  local ddp = dm.nn.parallel.DistributedDataParallel(model)
  for pass = 1, 3 do
    if rank == 1 and pass == 3 then os.execute "sleep 20" end
    ddp(dm.ones(2, 4)):sum():backward()
  end
end

local function own_pid()
  local file <close> = assert(io.open "/proc/self/stat")
  return file:read "n"
end

-- mpirun is stopped, and rank 1 computes for ever: after some seconds the shell tells in which
-- state the ranks are, and lets mpirun go on.
function FAULTS.alone()
  local pids = dist.all_gather_object(own_pid())
  local parent = io.popen "echo $PPID":read "n" -- the shell's: this process
  assert(parent == pids[rank + 1])
  if rank == 0 then
    local file <close> = assert(io.open "/proc/self/stat")
    local mpirun = file:read "a":match "%) %a (%d+)"
    os.execute(("kill -STOP %s; (sleep 8; cat /proc/%d/stat /proc/%d/stat /proc/%d/stat | "
      .. "cut -c-40 >%s; kill -CONT %s) >/dev/null 2>&1 &"):format(mpirun, pids[1], pids[2],
      pids[3], arg[2], mpirun))
  end
  dist.barrier()
  if rank == 1 then
    local x = dm.randn(100, 100)
    while true do x = (x:mm(x)):tanh() end
  elseif rank == 2 then -- catches the error, and waits for ever
    fails(dist.barrier)
    os.execute "sleep 30"
  end
  dist.barrier()
end

function FAULTS.stopped()
  dist.all_reduce(dm.ones(4))
  if rank == 1 then os.execute "kill -STOP $PPID" end
  dist.barrier()
end

function FAULTS.interrupt()
  if rank == 0 then
    local from = os.time()
    os.execute "(sleep 1; kill -INT $PPID) &"
    local why = fails(dist.barrier)
    say(why:match "interrupted!" .. (os.difftime(os.time(), from) < 10 and ", at once" or ", late"))
  else
    os.execute "sleep 20"
  end
  os.exit(1, false) -- nothing waits for the other one
end

function FAULTS.kill()
  dist.all_reduce(dm.ones(4))
  if rank == 1 then os.execute "kill -9 $PPID" end
  dist.barrier()
end

-- Rank 1 is killed in the middle of a backward pass that shares out its gradients: by a hook of the
-- first layer's output, when the buckets of the last layers are under way.
function FAULTS.kill_in_backward()
  local nn = dm.nn
  local model = nn.Sequential()
  for i = 1, 6 do model[i] = nn.Linear(64, 64) end
  local ddp = nn.parallel.DistributedDataParallel(model, {bucket_cap_mb = 0.01})
  local optimizer = dm.optim.ZeroRedundancyOptimizer(ddp:parameters(),
    {optimizer_class = dm.optim.Adam, stage = 2})
  for pass = 1, 3 do
    local x = model[1](dm.ones(2, 64))
    x:register_hook(function()
      if rank == 1 and pass == 3 then os.execute "kill -9 $PPID" end
    end)
    for i = 2, 6 do x = model[i](x) end
    x:sum():backward()
    optimizer:step()
    optimizer:zero_grad()
  end
end

-- Rank 1 is asked to stop, and all ranks know at the same step.
function FAULTS.signal()
  for step = 1, 100 do
    if dist.should_stop() then
      say(("rank %d stops before step %d"):format(rank, step))
      break
    end
    if step == 7 and rank == 1 then os.execute "kill -TERM $PPID" end
  end
  dist.destroy_process_group()
end

-- SIGTERM where no script listens: rank 0 is ended while it waits.
function FAULTS.term()
  dist.all_reduce(dm.ones(4))
  if rank == 0 then
    os.execute "(sleep 1; kill -TERM $PPID) >/dev/null 2>&1 &"
  else
    os.execute "sleep 20"
  end
  dist.barrier()
end

FAULTS[kind]()
