-- The network of scripts/quantised_sine.lua: how well it learns on a CPU-sized
-- grid (hidden 64, 128x128 points, 512 steps), and the peak memory at full size
-- (hidden 256, 512x512 points). Goals: below 0.010 after 512 steps, mixed
-- precision within 15 % of float32; the peaks of AMD's article, 2061 and 1035 MB.
--   scripts/run scripts/bench/quantised_sine.lua [--seeds 3] [--steps 512] [--full 3]
-- --seeds 0 leaves the training out, --full 0 the full size; --dtype float16
-- trains with a GradScaler.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local options = lib.options { seeds = 3, steps = 512, full = 3, dtype = "bfloat16" }
local sine = assert(loadfile(lib.here .. "/../quantised_sine.lua"))("workload")

lib.heading "Quantised sine wave"

local SHOWN = { 1, 64, 128, 256, 512 }

-- The losses after the steps SHOWN, and the seconds of the training.
local function losses(seed, dtype, input, target)
  local at = {}
  local measure = sine.train({
    seed = seed, hidden = 64, device = "cpu", steps = options.steps,
    each = function(step, loss)
      for i, shown in ipairs(SHOWN) do
        if step == shown then at[i] = loss:item() end
      end
    end,
  }, dtype, input, target)
  return at, measure
end

local function row(seed, dtype, at, measure, goal)
  local cells = { seed, dtype }
  for i = 1, #SHOWN do cells[#cells + 1] = at[i] and ("%.5f"):format(at[i]) or "-" end
  cells[#cells + 1] = ("%.1f"):format(measure.seconds)
  cells[#cells + 1] = goal
  return cells
end

if options.seeds > 0 then
  local input, target = sine.problem(128, "cpu")
  local rows = {}
  for seed = 0, options.seeds - 1 do
    local full, full_measure = losses(seed, "float32", input, target)
    local half, half_measure = losses(seed, options.dtype, input, target)
    local last, last_half = full_measure.loss, half_measure.loss
    rows[#rows + 1] = row(seed, "float32", full, full_measure,
      "0.010: " .. lib.verdict(last, 0.010))
    rows[#rows + 1] = row(seed, options.dtype, half, half_measure,
      ("0.010: %s; %.3f of float32, 1.15: %s"):format(lib.verdict(last_half, 0.010),
        last_half / last, lib.verdict(last_half / last, 1.15)))
  end
  lib.table({ "seed", "loss after step", 1, 64, 128, 256, 512, "seconds", "goal" }, rows)
end

if options.full > 0 then
  local input, target = sine.problem(512, "cpu")
  local o = { seed = 0, hidden = 256, device = "cpu", steps = options.full, forwards = 2 }
  local function bytes(dtype, what, ...) return sine[what](o, dtype, input, ...).bytes / 2 ^ 20 end
  local rows = {}
  for _, work in ipairs {
    { "training", { 2061, 1035 }, "train", target },
    { "inference", { 532, 266 }, "infer" }, -- two activations, and small change
    { "inference, recording", { 3338, 1676 }, "infer", true },
  } do
    local name, goal = work[1], work[2]
    local full = bytes("float32", work[3], work[4])
    local half = bytes(options.dtype, work[3], work[4])
    rows[#rows + 1] = {
      name, ("%.1f"):format(full), ("%.1f"):format(half), ("%.3f"):format(half / full),
      ("%d, %d: %s, %s; 0.51: %s"):format(goal[1], goal[2], lib.verdict(full, goal[1]),
        lib.verdict(half, goal[2]), lib.verdict(half / full, 0.51)),
    }
  end
  lib.table({ "peak MiB", "float32", options.dtype, "ratio", "goal" }, rows)
end
