-- A sample of scripts/attack with fixed seeds: random hostile programs, and data exchanged behind
-- the tape. `scripts/attack --programs 200000` is the long run.
local build = os.getenv "DEMILUNE_BUILD" or "build"
local repeats = require("spec.device").type ~= "cpu" or os.getenv "DEMILUNE_GC" == "generational"

local function output_of(kind, n)
  local pipe = assert(io.popen(("lua5.4 scripts/attack --kind %s --programs %d --seed 20261125 "
    .. "--build %s 2>&1"):format(kind, n, build)))
  local text = pipe:read "a"
  return text, pipe:close()
end

-- The programs run in processes of their own, on the CPU and with a collector of their own.
local function attack(kind, n)
  if repeats then return pending "runs on the CPU, once" end
  assert.matches(("\n%d passed, 0 failed\n$"):format(n), (output_of(kind, n)))
end

describe("random programs", function()
  it("that are hostile end no process", function() attack("programs", 1500) end)
  it("that crash are told, without what the crash can do without", function()
    local text, fine = output_of("crash", 5)
    assert.is_nil(fine)
    assert.matches("== crash: --kind crash --seed 20261125 --first 3 --programs 1\n", text, 1, true)
    assert.matches("\nS%(function%(%) CRASH%(%) end%)\n5 programs of kind crash, .*: 1 crashes",
      text)
    assert.matches("\n4 passed, 1 failed\n$", text)
  end)
  it("that exchange data behind the tape end no process", function() attack("exchanges", 1000) end)
end)
