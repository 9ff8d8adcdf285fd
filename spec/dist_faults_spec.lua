-- Ranks that fail: what the others say, and when. By mpirun, where it is installed. The seconds are
-- bounds for a machine that does other things too.

local launch = require "spec.distributed.launch"
local run, ranks, count, told = launch.run, launch.ranks, launch.count, launch.told

local with_mpirun = launch.tests(it, pending, "#slow")

-- The seconds that the ranks' lines tell; the slowest.
local function slowest(text)
  local most = 0
  for seconds in text:gmatch "told after ([%d.]+) s" do most = math.max(most, tonumber(seconds)) end
  return most
end

local FILE = "spec/distributed/faults.lua"
local LINE = "%(spec/distributed/faults.lua:%d+%)"

describe("a rank that fails", function()
  with_mpirun("and leaves early is named within a second", function()
    local text = ranks(3, "faults", "leave")
    local words = "all_reduce: rank 1 has left after 2 collectives, told after "
    assert.equal(2, told(text, words), text)
    assert.is_true(slowest(text) < 5, text)
  end)

  with_mpirun("by a Lua error is named within a second, and by its own words", function()
    local text, code = run(launch.command(3, "scripts/demilune " .. FILE .. " error"))
    assert.is_true(code ~= 0)
    assert.equal(1, count(text, "demilune: rank 1: spec/distributed/faults.lua:%d+: a fault of its "
      .. "own"), text)
    assert.equal(2, told(text, "all_reduce: rank 1 has left after 2 collectives: its script ended, "
      .. "or raised an error, without destroy_process_group, told after "), text)
    assert.equal(1, told(text, "demilune: the script of rank 1 has ended, or raised an error, "
      .. "without destroy_process_group, and rank 0 waited for it in all_reduce (sum) {2} float32 ("
      .. FILE), text)
    assert.is_true(slowest(text) < 5, text)
  end)

  with_mpirun("is killed, and the others say where they were, and end within 3 s", function()
    local text, code, seconds = ranks(3, "faults", "kill")
    assert.is_true(code ~= 0)
    assert.matches("exited on signal 9", text)
    assert.matches("demilune: rank [02] is ended by SIGTERM: it waits in barrier " .. LINE
      .. ", since %d s; rank 1 does not answer", text)
    assert.is_true(seconds < 15, text)
  end)

  with_mpirun("is killed amid a backward pass that shares out gradients, and is named", function()
    local text, code, seconds = ranks(3, "faults", "kill_in_backward")
    assert.is_true(code ~= 0)
    assert.matches("exited on signal 9", text)
    -- a rank that reads its memory meanwhile notices before the launcher ends them all
    if not text:find(": rank 1 is gone: its process has ended", 1, true) then
      assert.matches("demilune: rank [02] is ended by SIGTERM: it waits in "
        .. "DistributedDataParallel bucket %d of %d", text)
      assert.matches("pass 3, .- " .. LINE .. ", since %d s; rank 1 does not answer", text)
    end
    assert.is_true(seconds < 15, text)
  end)

  with_mpirun("ends without a word as the others do, and none waits", function()
    local text, code = ranks(2, "faults", "end")
    assert.equal(0, code, text)
    assert.equal(2, told(text, "ends"), text)
    assert.equal(0, told(text, "demilune"), text)
  end)

  with_mpirun("never comes: the others say so", function()
    local text, _, seconds = ranks(2, "faults", "absent")
    assert.equal(1, told(text, "init_process_group: not all ranks have called it within 1 s"), text)
    assert.is_true(seconds < 30, text)
  end)
end)

describe("a rank that does not come", function()
  local BUCKET = "DistributedDataParallel bucket 1 of 1: 1%.bias %.%. 0%.weight, 80 float32, "
    .. "pass %d, 4 parameters, layout %x+ " .. LINE

  with_mpirun("is reported once, with parameters and lines; all end after the timeout", function()
    local text, code, seconds = ranks(3, "faults", "late")
    assert.is_true(code ~= 0)
    assert.equal(1, count(text, "demilune: rank %d has waited for [%d.]+ s in " .. BUCKET), text)
    assert.equal(1, count(text, "\ndemilune:   rank 1 is not there: its last was " .. BUCKET
      .. ", which ended %d+ s ago; its script waits for something else"), text)
    assert.equal(1, count(text, "\ndemilune:   rank %d waits there too, since %d+ s"), text)
    assert.equal(1, told(text, "\ndemilune:   after 2 s all ranks end"), text)
    assert.is_true(count(text, "DistributedDataParallel: rank [02] has waited for [%d.]+ s in "
      .. BUCKET .. "; rank 1 is not there: its last was ") >= 2, text)
    assert.is_true(seconds < 30, text)
  end)

  with_mpirun("since it is stopped does not answer", function()
    local text, code, seconds = ranks(3, "faults", "stopped")
    assert.is_true(code ~= 0)
    assert.equal(1, told(text, "\ndemilune:   rank 1 does not answer"), text)
    assert.is_true(count(text, "barrier: rank [02] has waited for [%d.]+ s in barrier " .. LINE
      .. "; rank 1 does not answer") >= 2, text) -- mpirun lets rank 1 go on, which says it too
    assert.is_true(seconds < 30, text)
  end)

  with_mpirun("ends itself as the others do, while mpirun is stopped", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local text, code = ranks(3, "faults", "alone " .. path)
    assert.is_true(code ~= 0)
    local file <close> = assert(io.open(path))
    local states = file:read "a"
    assert.equal(3, count(states, "%(lua5%.4%) Z"), states .. text)
    assert.equal(2, count(text, "demilune: rank [12] ends itself with status 75, since its script "
      .. "has not: rank [02] has waited for [%d.]+ s in barrier " .. LINE), text)
    assert.matches("rank 1 is not there: its last was [^;]*; its script computes", text)
  end)

  it("while the library hangs: the script's thread ends the process", function()
    local library = os.tmpname()
    finally(function() os.remove(library) end)
    assert(os.execute("cc -std=gnu11 -Wall -Wextra -Werror -shared -fPIC -Isrc -o " .. library
      .. " spec/fake_mpi.c"))
    local command = "%s DEMILUNE_MPI=%s OMPI_COMM_WORLD_SIZE=2 lua5.4 -e '%s'"
    local text, code, seconds = run(command:format(launch.paths(), library, [[
        local dist = require("demilune").distributed
        dist.init_process_group{timeout = 0.2}
        dist.barrier()]]))
    assert.equal(75, code, text)
    assert.matches("demilune: rank 0 ends itself with status 75, for MPI hangs: waited for [%d.]+ "
      .. "s in barrier %(%(command line%):3%)", text)
    assert.is_true(seconds < 20)
  end)
end)

describe("a signal to one rank", function()
  with_mpirun("stops all at the same step, where they ask", function()
    local text, code = ranks(3, "faults", "signal")
    assert.equal(0, code, text)
    for rank = 0, 2 do
      assert.equal(1, told(text, ("rank %d stops before step 8"):format(rank)), text)
    end
  end)

  with_mpirun("ends it where it does not ask, and it says where it was", function()
    local text, code = ranks(2, "faults", "term")
    assert.is_true(code ~= 0)
    assert.matches("demilune: rank 0 is ended by SIGTERM: it waits in barrier " .. LINE
      .. ", since %d s; rank 1 is not there: its last was all_reduce %(sum%) {4} float32", text)
  end)

  with_mpirun("makes a Trainer save on all ranks at the same step, and go on from there", function()
    local path = os.tmpname()
    os.remove(path)
    finally(function() os.remove(path) end)
    local text, code = ranks(2, "stop", path .. " USR1")
    assert.equal(0, code, text)
    local steps = tonumber(text:match "Trainer: was asked to end: saved %S+ after (%d+) steps")
    assert.is_true(steps == 17 or steps == 18, text) -- the mail may come just before backward
    for rank = 0, 1 do
      assert.equal(1, told(text, ("rank %d: stopped true, %d steps, 0 epochs"):format(rank, steps)))
    end
    text, code = ranks(2, "stop", path)
    assert.equal(0, code, text)
    assert.equal(2, told(text, "stopped false, 90 steps, 3 epochs, "), text)
    local sum = text:match "epochs, (%S+)"
    text = ranks(2, "stop", path .. "x")
    finally(function()
      os.remove(path)
      os.remove(path .. "x")
    end)
    assert.equal(2, told(text, "stopped false, 90 steps, 3 epochs, " .. sum), text)
  end)

  it("makes a Trainer of one process save too", function()
    local path = os.tmpname()
    os.remove(path)
    finally(function() os.remove(path) end)
    local text, code = run(("%s lua5.4 spec/distributed/stop.lua %s TERM"):format(launch.paths(),
      path))
    assert.equal(0, code, text)
    assert.equal(1, told(text, "rank 0: stopped true, 17 steps, 0 epochs"), text)
  end)
end)
