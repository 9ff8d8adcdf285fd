-- The cost of autocast where there is nothing to cast: regions, and ops in them.
--   scripts/run scripts/bench/autocast.lua [--rounds 5]
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local options = lib.options { rounds = 5 }

local ours, peer = lib.sides()
lib.heading "Cost of autocast"

local forms = {
  { "block", "a block with <close> (PyTorch: with)" },
  { "call", "a function, called in a region" },
  { "wrapped", "a function, wrapped once" },
}
local rows = {}
for _, form in ipairs(forms) do
  local a, b = lib.in_turns(ours, peer, options.rounds, "seconds", "region", form[1])
  rows[#rows + 1] = {
    form[2], lib.spread(a, 1e6), b and lib.spread(b, 1e6) or "-",
    "1: " .. lib.verdict(lib.median(a) * 1e6, 1),
  }
end
lib.table({ "enter and leave, us", "demilune", "PyTorch", "goal" }, rows)

local ops = { -- name, what autocast does to it on the CPU
  { "add", "unlisted" }, { "mul", "unlisted" }, { "relu", "unlisted" }, { "softmax", "unlisted" },
  { "cat", "promote" }, { "mse_loss", "fp32" }, { "mm", "16-bit" }, { "linear", "16-bit" },
}
rows = {}
for _, op in ipairs(ops) do
  local extra, off, peer_extra = {}, {}, {}
  for round = 1, options.rounds do
    local a, b = assert(ours:ask("in_region", op[1])), peer:ask("in_region", op[1])
    off[round], extra[round] = a.off, a.extra
    if b then peer_extra[round] = b.extra end
  end
  rows[#rows + 1] = {
    op[1], op[2], ("%.0f"):format(lib.median(off) * 1e9), lib.spread(extra, 1e9, "%.0f"),
    #peer_extra > 0 and lib.spread(peer_extra, 1e9, "%.0f") or "-",
    "30: " .. lib.verdict(lib.median(extra) * 1e9, 30),
  }
end
lib.table({
  "1-element op", "policy", "outside, ns", "more inside, ns", "PyTorch's more", "goal",
}, rows)
print("Median [middle half] of " .. options.rounds .. " rounds. Inputs have the right dtype")
print("already. PyTorch: eager, one thread for the ops.\n")
ours:close()
peer:close()
