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
dist.init_process_group{timeout = kind == "late" and 3 or 60}
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

-- The others wait for rank 1, and print how it ended, if they learn so in time.
local function wait_for_it()
  local from = os.time()
  local why = fails(dist.all_reduce, dm.ones(2))
  say(why .. (os.difftime(os.time(), from) <= 10 and ", told in time" or ", too late"))
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

function FAULTS.late()
  dist.all_reduce(dm.ones(4))
  if rank == 1 then os.execute "sleep 9" end
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

FAULTS[kind]()
