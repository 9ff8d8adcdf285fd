-- Random programs of collectives, messages and trainings, which every rank makes of the same seed.
-- A rank makes the tensors of all ranks, or trains on the whole batch by itself, and so knows what
-- has to come. standin.lua runs it on ranks that are threads.
--
-- The argument: "FIRST LAST SEED", the numbers of the programs.

local dm = require "demilune"
local random = require "spec.mpi.random"
local mix, train = require "spec.mpi.mix", require "spec.mpi.train"
local sharded = require "spec.mpi.sharded"
local dist = dm.distributed

local KINDS = {mix.collectives, mix.collectives, mix.collectives, mix.collectives, train.steps,
  train.steps, train.steps, train.wire, train.join, train.join, sharded.steps, sharded.steps}

local first, last, seed = (...):match "(%d+) (%d+) (%d+)"
dist.init_process_group{timeout = 60}
local world = {rank = dist.get_rank(), n = dist.get_world_size()}
assert(world.rank == standin.rank, "the rank of another thread")
world.groups = mix.groups(world, random(seed))
local kinds = 0
for number = first, last do
  local r = random(seed * 1000003 + number)
  standin.progress(("program %d of seed %d"):format(number, seed))
  r:pick(KINDS)(world, r)
  dm.manual_seed(number)
  collectgarbage()
  kinds = kinds + 1
end
-- By now the ranks know whether they can read one another's memory.
local many = dm.ones(20001)
dist.all_reduce(many)
local before = dist.stats().bytes_direct
dist.all_reduce(many, "max")
assert(many:eq(world.n):all():item())
local direct = dist.stats().bytes_direct
assert((direct > before) == (os.getenv "DEMILUNE_NEAR" ~= "0"), "by another way than it should")
dist.barrier()
local sent = dist.stats().bytes_sent
local _, _, _, counted = standin.counts(world.rank)
assert(sent - direct == counted, ("stats: %d bytes, MPI: %d"):format(sent - direct, counted))
dist.destroy_process_group()
return ("%d programs, %d bytes"):format(kinds, sent)
