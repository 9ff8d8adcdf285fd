-- Processes that work together, as threads of one process on a stand-in for MPI (spec/mpi): random
-- programs beside plain loops, and calls of MPI that fail. No MPI has to be installed.
--   DEMILUNE_RANK_PROGRAMS=2000 busted spec/mpi_spec.lua   as many programs, 200 by default
--   DEMILUNE_RANK_FAULTS=1      busted spec/mpi_spec.lua   each call fails, not each 61st
--   DEMILUNE_RANK_ABSENCES=50   busted spec/mpi_spec.lua   as many worlds that lack a rank, not 2

local standin = require "spec.mpi.standin"
local walks = require "spec.mpi.walks"

local PROGRAMS = tonumber(os.getenv "DEMILUNE_RANK_PROGRAMS" or 200)
local STEP = tonumber(os.getenv "DEMILUNE_RANK_FAULTS" or 61)
local ABSENCES = tonumber(os.getenv "DEMILUNE_RANK_ABSENCES" or 2)

describe("ranks on a stand-in for MPI #ranks", function()
  local folder, remove
  setup(function() folder, remove = standin.prepare() end)
  teardown(function() remove() end)

  it("do in random programs what a plain loop does, or one process", function()
    local done, failures = walks.programs(folder, PROGRAMS, 1)
    assert.equal(PROGRAMS, done)
    assert.equal("", table.concat(failures, "\n"))
  end)

  for i, mode in ipairs{"raises", "goes on"} do
    it("name the call that fails, and none waits for ever: the script " .. mode, function()
      for rank = 0, 1 do
        local walked, failures = walks.faults(folder, 12 + rank, STEP, {rank = rank, mode = mode,
          keeps = (rank + i) % 2 == 0 and "keeps" or nil})
        assert.is_true(walked > 1)
        assert.equal("", table.concat(failures, "\n"))
      end
    end)
  end

  it("name memory that is refused, and none waits for ever", function()
    local walked, failures = walks.memory(folder, 1, STEP)
    assert.is_true(walked > 4)
    assert.equal("", table.concat(failures, "\n"))
  end)

  it("raise where one does something else for good, and all end", function()
    local _, failures = walks.absences(folder, ABSENCES)
    assert.equal("", table.concat(failures, "\n"))
  end)
end)
