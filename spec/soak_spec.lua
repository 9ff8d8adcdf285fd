-- The short form of scripts/soak: trainings that are disturbed or killed end with the bits of the
-- undisturbed one, and a long loop of careless steps stays flat. DEMILUNE_KILL_EVERY=1 kills at
-- every point, some 1,200 times.

local cases = require "spec.soak.cases"

local EVERY = tonumber(os.getenv "DEMILUNE_KILL_EVERY") or 31

setup(cases.make)
teardown(cases.remove)

describe("A small training #slow", function()
  for i, kind in ipairs(cases.KINDS) do
    it("ends with the same bits when disturbed: " .. kind, function()
      local met, seed, runs = 0, i + 2, 0
      repeat -- a moment of a disturbance may lie behind the end of a training
        local problem, name, n = cases.check(seed, kind)
        assert.is_nil(problem, ("seed %d, %s: %s"):format(seed, name, problem))
        met, seed, runs = met + n, seed + 6, runs + 1
      until runs >= 2 and (met > 0 or runs == 8 or kind == "affinity" or kind == "threads")
      -- other processors and numbers of threads raise and interrupt nothing that could be counted
      assert.is_true(met > 0 or kind == "affinity" or kind == "threads")
    end)
  end

  it("goes on from its checkpoint with the same bits, wherever it is killed", function()
    local few = EVERY > 1 and {cases.RESUMED[1], cases.RESUMED[3]} or cases.RESUMED
    for _, seed in ipairs(few) do
      local kills = 0
      cases.kill_everywhere(seed, math.min(5, EVERY), EVERY, function(problem, way, n)
        kills = kills + 1
        assert.is_nil(problem, ("seed %d, %s %d: %s"):format(seed, way, n, problem))
      end)
      assert.is_true(kills >= 5, "few kills: " .. kills)
    end
  end)
end)

describe("A loop of careless steps #slow", function()
  it("stays flat: memory, handles, threads and open files", function()
    local text, code = cases.lua("loop", "20000 " .. cases.path "process.so")
    assert.equal(0, code, text)
    assert.matches("step 20000: .*1 passed, 0 failed", text)
  end)
end)
