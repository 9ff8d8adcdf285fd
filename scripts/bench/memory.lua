-- Peak tensor memory of one training step of the Fashion-MNIST network.
--   scripts/run scripts/bench/memory.lua
-- Both sides count every live tensor byte: weights, gradients, moments, batch,
-- activations and temporaries (how: `memory` in ours.lua and in peer.py). PyTorch runs
-- eager code, in the memory format that takes less; train.lua measures compiled code too.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local net = require "net"
lib.options {}

local ours, peer = lib.sides()
lib.heading "Peak tensor memory of a training step"
local rows, full = {}, nil
for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
  local a = assert(ours:ask("memory", dtype, net.words())).bytes
  local b, why = peer:ask("memory", dtype, net.words())
  full = full or a
  local goals = {
    float32 = b and { a / b.bytes, 1.05, "of PyTorch" },
    bfloat16 = { a / full, 0.62, "of float32" },
  }
  local g = goals[dtype]
  rows[#rows + 1] = {
    dtype, ("%.2f"):format(a / 2 ^ 20), b and ("%.2f"):format(b.bytes / 2 ^ 20) or why,
    b and ("%.3f"):format(a / b.bytes) or "-", ("%.3f"):format(a / full),
    g and ("%g %s: %s"):format(g[2], g[3], lib.verdict(g[1], g[2])) or "",
  }
end
lib.table({ "MiB", "demilune", "PyTorch, eager", "ratio", "of float32", "goal" }, rows)
ours:close()
peer:close()
