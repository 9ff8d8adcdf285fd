-- The cost of a call: microseconds through Lua, and the same through Python.
--   scripts/run scripts/bench/overhead.lua [--rounds 15]
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local options = lib.options { rounds = 15 }

local cases = { -- name, what it is, the most it should take in microseconds
  { "empty", "a call of an empty function" },
  { "add", "a + b, 1 element each", 0.5 },
  { "add_recorded", "a + b, recorded for backward", 1.0 },
  { "relu", "relu, 1 element" },
  { "mm", "mm, 4x4" },
  { "linear", "Linear(4, 4) on 4 rows, recorded" },
  { "mlp_step", "Adam step of a 16-32-4 MLP, batch 8", 40 },
}

local ours, peer = lib.sides()
lib.heading "Cost of a call"
local rows = {}
for _, case in ipairs(cases) do
  local name, what, goal = table.unpack(case)
  local a, b, why = lib.in_turns(ours, peer, options.rounds, "seconds", "small", name)
  rows[#rows + 1] = {
    what, lib.spread(a, 1e6), b and lib.spread(b, 1e6) or why,
    b and ("%.3f"):format(lib.ratio(a, b)) or "-",
    goal and ("%g: %s"):format(goal, lib.verdict(lib.median(a) * 1e6, goal)) or "",
  }
end
lib.table({ "us", "demilune", "PyTorch, eager", "ratio", "goal" }, rows)
print("Median [middle half] of " .. options.rounds .. " rounds in turns. PyTorch: eager, the")
print("better of one and two threads, glibc's allocator told to keep freed memory, and for")
print("the step the best of its plain, foreach and fused Adam.\n")
ours:close()
peer:close()
