-- The random programs of spec/mpi/mix.lua on MPI itself, for distributed_spec.lua: `mpirun -n 3
-- lua5.4 spec/distributed/mix.lua PROGRAMS SEED`.

require("demilune.core")._test.without_cuda()
local dist = require("demilune").distributed
local mix = require "spec.mpi.mix"
local random = require "spec.mpi.random"

local count, seed = tonumber(arg[1]), tonumber(arg[2])
dist.init_process_group{timeout = 60}
local world = {rank = dist.get_rank(), n = dist.get_world_size()}
world.groups = mix.groups(world, random(seed))
for number = 1, count do
  local ok, why = pcall(mix.collectives, world, random(seed * 1000003 + number))
  if not ok then error(("program %d of seed %d: %s"):format(number, seed, why), 0) end
end
dist.destroy_process_group()
print(("rank %d: %d programs"):format(world.rank, count))
