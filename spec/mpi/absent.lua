-- A program for ranks of which one does not do what the others do, and never will: all raise, and
-- end; standin.lua runs it. The argument: the seed.

local dm = require "demilune"
local random = require "spec.mpi.random"
local dist = dm.distributed

local r = random(...)
dist.init_process_group{timeout = 1.5}
local n, rank = dist.get_world_size(), standin.rank
local others = {}
for i = 1, n - 1 do others[i] = i end
local group = dist.new_group(others)
local odd, x = r:int(0, n - 1), dm.ones(r:pick{3, 20000})

-- What the others do, and what the odd rank does instead.
local function await_all() dist.all_reduce(x) end
local INSTEAD = {
  function() if rank > 0 then dist.barrier(group) else dist.recv(x, 1) end end,
  function() dist.recv(x, (rank + 1) % n) end,
  function() dist.send(x:clone(), (rank + 1) % n) dist.recv(x, (rank + 1) % n) end,
  dist.destroy_process_group,
  function() error("a fault of its own", 0) end,
}
for _ = 1, r:int(0, 3) do await_all() end
local pending = r:chance(0.5) and dist.all_reduce(dm.ones(5), {async_op = true})
local f = rank == odd and r:pick(INSTEAD) or await_all
local ok, why = pcall(f)
if ok and f == dist.destroy_process_group then return "has left" end
assert(not ok, "no error")
if pending then pcall(pending.wait, pending) end
assert(not pcall(dist.barrier), "the world works again")
return why
