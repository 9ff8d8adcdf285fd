-- Does memory stay flat when a training loop frees nothing by hand?
--   scripts/run scripts/bench/flat.lua [--steps 1000] [--tables 200000]
-- Peak of all steps against the peak of the first 20, in both modes of the
-- collector, next to a heap of many small tables; each in a fresh process.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local net = require "net"
local options = lib.options { steps = 1000, tables = 200000 }

local rows = {}
for _, mode in ipairs { "incremental", "generational" } do
  local ours <close> = lib.ours()
  local r = assert(ours:ask("flat", mode, options.tables, options.steps, net.words()))
  local growth, share = r.peak / r.early, r.forced_seconds / r.seconds
  rows[#rows + 1] = {
    mode, ("%.1f"):format(r.early / 2 ^ 20), ("%.1f"):format(r.peak / 2 ^ 20),
    ("%.3f (1.5: %s)"):format(growth, lib.verdict(growth, 1.5)), r.forced,
    ("%.1f %% (20 %%: %s)"):format(100 * share, lib.verdict(share, 0.2)),
    ("%.1f"):format(r.seconds),
  }
end
lib.heading(("Memory of %d steps without a scope"):format(options.steps))
lib.table({
  "collector", "peak of 20 steps, MiB", "of all", "ratio (goal)", "forced collections",
  "their share of time (goal)", "seconds",
}, rows)
