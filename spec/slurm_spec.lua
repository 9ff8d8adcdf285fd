-- Jobs under a real Slurm of two nodes (distributed/slurm.lua): srun starts the ranks by PMIx, and
-- signals make them save. They want root and Debian's slurmctld, slurmd and munge.

local dm = require "demilune"
local hosts = require "spec.distributed.hosts"
local launch = require "spec.distributed.launch"
local slurm = require "spec.distributed.slurm"
local count, told = launch.count, launch.told

launch.missing = launch.missing or slurm.missing
local with_slurm = launch.tests(it, pending, "#slow")

local SRUN = "srun --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=2 "
local PROGRAM = "lua5.4 spec/distributed/stop.lua "
local FINAL = "stopped false, 90 steps, 3 epochs, "

local cluster

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

-- Compares values of checkpoints, bit by bit.
local function same(a, b)
  if type(a) == "table" then
    for key, value in pairs(a) do same(value, b[key]) end
  elseif type(a) == "userdata" then
    assert.is_true(a:equal(b))
  else
    assert.equal(a, b)
  end
end

-- Compares what a training goes on from: all but its history, where the mean loss of the epoch that
-- was interrupted is that of its rest.
local function same_training(path, other)
  local a, b = assert(dm.load(path)), assert(dm.load(other))
  for _, name in ipairs{"model", "optimizer", "rng", "loader", "steps"} do
    assert.is_truthy(a[name])
    same(a[name], b[name])
  end
end

-- Submits a training that waits for a signal, gives it by scancel's options, and waits for the end
-- -> what it wrote, and the checkpoint.
local function interrupted(name, options)
  local folder = cluster.net.folder
  local path, log = ("%s/%s"):format(folder, name), ("%s/%s.out"):format(folder, name)
  cluster:start(("%s -J %s %s %s WAIT; echo ended $?"):format(SRUN, name, PROGRAM, path), log)
  assert.is_true(hosts.comes(function() return read(path .. ".waits") end, 60),
    tostring(read(log)) .. cluster:logs())
  local text, code = cluster:run(("scancel %s --name=%s"):format(options, name))
  assert.equal(0, code, text)
  assert.is_true(hosts.comes(function() return read(log):find "ended %d+\n" end, 90), read(log))
  return read(log), path
end

describe("a job of Slurm", function()
  lazy_setup(function()
    if not launch.missing then cluster = slurm.make() end
  end)
  lazy_teardown(function()
    if cluster then cluster:remove() end
  end)

  with_slurm("has its ranks on all nodes, who do what every collective says", function()
    local text, code = cluster:run(SRUN .. "lua5.4 spec/distributed/collectives.lua 2")
    assert.equal(0, code, text)
    assert.equal(2, count(text, "rank %d of 2: %d+ checks"), text)
  end)

  -- As before its time is over (--signal=USR1@120), and as it is preempted: SIGTERM, and SIGKILL
  -- after KillWait.
  with_slurm("saves at the same step on all ranks, and ends in the same bits later", function()
    local undisturbed = cluster.net.folder .. "/undisturbed"
    local text, code = cluster:run(SRUN .. PROGRAM .. undisturbed)
    assert.equal(0, code, text)
    assert.equal(2, told(text, FINAL), text)
    for name, options in pairs{warned = "--signal=USR1", preempted = ""} do
      local path
      text, path = interrupted(name, options)
      local steps = tonumber(text:match "Trainer: was asked to end: saved %S+ after (%d+) steps")
      assert.is_true(steps and steps >= 17 and steps < 90, text)
      for rank = 0, 1 do
        assert.equal(1, told(text, ("rank %d: stopped true, %d steps, "):format(rank, steps)), text)
      end
      text, code = cluster:run(SRUN .. PROGRAM .. path)
      assert.equal(0, code, text)
      assert.equal(2, told(text, FINAL), text)
      same_training(undisturbed, path)
    end
  end)

  with_slurm("ends on all nodes where a rank is killed, and each says where it was", function()
    local text, code = cluster:run(SRUN .. "lua5.4 spec/distributed/faults.lua kill")
    assert.is_true(code ~= 0, text)
    assert.matches("demilune: rank 0 is ended by SIGTERM: it waits in barrier", text)
    assert.is_true(hosts.comes(function()
      return #cluster.net:processes(1, "lua5.4") + #cluster.net:processes(2, "lua5.4") == 0
    end, 30))
  end)
end)
