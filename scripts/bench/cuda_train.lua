-- Training steps on a GPU against tuned eager PyTorch: time, peak memory, and whether
-- the losses of the first steps agree (same weights, same batch). float16 trains with
-- a GradScaler.
--   scripts/run scripts/bench/cuda_train.lua [--device cuda] [--rounds 7] [--tiny]
local cuda = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/cuda_lib.lua")
local lib, options = cuda.lib, cuda.options{steps = 20}
local ours, peer = cuda.sides(options)
cuda.heading("Training steps", options)

local CASES = { -- goals: no slower, and the peak's part of PyTorch's
  {"float16", "sine", 512, 256, memory = 0.75},
  {"float32", "sine", 512, 256},
  {"float16", "resnet18", 128, "cifar"},
  {"float32", "resnet18", 128, "cifar"},
  {"float16", "gpt", 6, 384, 6, 256, 32},
  {"float32", "mlp", 784, 128, 10, 32},
  {"float16", "mlp", 784, 128, 10, 32},
}
if options.tiny then
  options.steps = 3
  CASES = {
    {"float16", "sine", 8, 16}, {"float32", "sine", 8, 16},
    {"float16", "gpt", 1, 16, 2, 8, 2},
    {"float32", "mlp", 16, 8, 10, 4}, {"float16", "mlp", 16, 8, 10, 4},
  }
end
local TOLERANCE = {float32 = 1e-3, float16 = 2e-2}

-- The largest difference of two losses of the same step, relative to the first loss;
-- nil when the peer has none.
local function disagreement()
  local a, why = ours:ask("losses", options.steps, 1e9)
  if not a then return nil, why end
  local b = peer:ask("losses", options.steps)
  local most = b and 0.0
  for i = 1, b and options.steps or 0 do
    local gap = math.abs(a["l" .. i] - b["l" .. i]) / math.abs(b.l1)
    most = gap == gap and math.max(most, gap) or math.huge
  end
  return most or false, a["l" .. options.steps]
end

local function mib(bytes)
  return bytes and bytes > 0 and ("%.0f"):format(bytes / 2 ^ 20) or "-"
end

local report = cuda.report{"case", "ms", "PyTorch ms", "faster", "MiB", "PyTorch MiB", "ratio",
  "losses differ by", "goals"}

local function measure(case)
  local begun, why = cuda.begin(ours, peer, case)
  if not begun then return report.fail(case, why) end
  local gap, last = disagreement()
  if gap == nil then return report.fail(case, last) end
  local limit = TOLERANCE[case[1]]
  if gap and gap > limit then
    report.fail(case, ("losses differ by %.2g of the first, at most %g is fine"):format(gap, limit))
  end
  local a, b = cuda.times(ours, peer, options, "time", options.block)
  if not a then return report.fail(case, b) end
  local peak, peer_peak = ours:ask "work", peer:ask "work"
  peak, peer_peak = peak and peak.peak, peer_peak and peer_peak.peak
  local part = peak and peer_peak and peer_peak > 0 and peak / peer_peak or nil
  local mine, other, faster = cuda.cells(a, b, 1e3)
  local goals = {}
  if b then goals[1] = cuda.goal(options, "no slower", lib.ratio(b, a), 1.0, true) end
  if part and case.memory then
    goals[2] = cuda.goal(options, ("memory %g"):format(case.memory), part, case.memory)
  end
  report.row{table.concat(case, " "), mine, other, faster, mib(peak), mib(peer_peak),
    part and ("%.2f"):format(part) or "-", gap and ("%.1e"):format(gap) or "-",
    table.concat(goals, "; ")}
  cuda.record({bench = "training", case = table.concat(case, " "), peak_bytes = peak,
    peer_peak_bytes = peer_peak, loss = last, losses_differ = gap or nil}, a, b)
end

for _, case in ipairs(CASES) do measure(case) end
local good = report.done()
ours:close()
peer:close()
os.exit(good)
