-- A program for ranks of which one has a call of MPI that fails; standin.lua runs it. The argument:
-- "raises": an error ends the script; "goes on": each call's error is noted, and the next call
-- made; "memory N": as "raises", and rank 1's N-th request for memory after init_process_group
-- fails. It returns the errors, or "well" and rank 1's requests for memory.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local nn, dist = dm.nn, dm.distributed
local DDP = nn.parallel.DistributedDataParallel

local goes_on = ... == "goes on"
local refused = tonumber((...):match "memory (%d+)")
local errors = {}

local function try(f, ...)
  if not goes_on then return f(...) end
  local ok, value = pcall(f, ...)
  if ok then return value end
  errors[#errors + 1] = tostring(value)
end

try(dist.init_process_group, {timeout = 3})
local rank = standin.rank
if rank == 1 then hooks.alloc_fail_at(refused or 0) end

local CALLS = {
  function() dist.new_group{0} end,
  function() assert(dist.all_reduce(dm.ones(3))[1]:item() == dist.get_world_size()) end,
  function()
    local x = dm.full({20000}, 1.0)
    local h = dist.all_reduce(x, {async_op = true})
    dist.broadcast(dm.full({3000}, rank), 1)
    h:wait()
    assert(x:eq(dist.get_world_size()):all():item())
  end,
  function() dist.reduce(dm.ones(9000), 1) end,
  function() assert(dist.all_gather(dm.full({2}, rank))[2]:eq(1):all():item()) end,
  function() dist.scatter(dm.ones(2), rank == 0 and {dm.ones(2), dm.ones(2)} or nil) end,
  function() dist.all_to_all_single(dm.ones(2, 3), dm.ones(2, 3)) end,
  function()
    local x, wants = dm.full({4, 2000}, rank + 0.5), {1 + 2 * rank, 1 + 2 * rank}
    local y = dist.all_to_all_single(dm.zeros(2 + 4 * rank, 2000), x, wants, {1, 3})
    assert(y[1]:eq(0.5):all():item() and y[-1]:eq(1.5):all():item())
  end,
  function()
    local h = dist.isend(dm.full({2000}, rank + 0.5), 1 - rank)
    assert(dist.recv(dm.zeros(2000), rank == 0 and 1 or nil)[1]:item() == 1.5 - rank)
    h:wait()
  end,
  function()
    local ok, why = pcall(dist.all_reduce, dm.ones(2 + rank))
    assert(not ok)
    if not why:find "ranks do not agree" then error(why, 0) end
  end,
  function()
    local ddp = DDP(nn.Sequential{nn.Linear(8, 9), nn.Linear(9, 1)}, {bucket_cap_mb = 0.0001})
    for _ = 1, 2 do ddp(dm.ones(2, 8)):sum():backward() end
  end,
  dist.barrier,
}
for i, call in ipairs(CALLS) do
  standin.progress("call " .. i)
  try(call)
end
standin.progress "end"
try(dist.destroy_process_group)
local well = ("well, %d requests for memory"):format(hooks.alloc_requests())
return #errors == 0 and well or table.concat(errors, "; ")
