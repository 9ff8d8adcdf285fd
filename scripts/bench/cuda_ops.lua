-- Ops that are bound by memory, compared with a copy on the same device, and what a call of
-- a small op costs the host.
--   scripts/run scripts/bench/cuda_ops.lua [--device cuda] [--rounds 7] [--tiny]
local cuda = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/cuda_lib.lua")
local lib, options = cuda.lib, cuda.options{goal = 0.8}
local ours, peer = cuda.sides(options)
cuda.heading("Ops bound by memory", options)

local ROWS, COLUMNS = 1 << 15, 1 << 12 -- 256 MiB of float16: beyond every cache
if options.tiny then ROWS, COLUMNS = 8, 64 end

local OPS = {"copy", "add", "gelu", "sum", "softmax", "softmax_backward", "layer_norm",
  "layer_norm_backward", "cross_entropy", "cross_entropy_backward"}

local report = cuda.report{"op", "dtype", "ms", "PyTorch ms", "faster", "GB/s", "of a copy",
  "goal"}

-- Bytes that must move over the time; a copy of the same dtype is the ceiling.
local function measure(name, dtype, ceiling)
  local case = {dtype, "op", name, ROWS, COLUMNS}
  local begun, why = cuda.begin(ours, peer, case)
  if not begun then return report.fail(case, why) end
  local a, b = cuda.times(ours, peer, options, "time", options.block)
  if not a then return report.fail(case, b) end
  local rate = begun.bytes / lib.median(a)
  local part = rate / (ceiling or rate)
  local mine, other, faster = cuda.cells(a, b, 1e3)
  report.row{name, dtype, mine, other, faster, ("%.0f"):format(rate / 1e9),
    ("%.2f"):format(part),
    ceiling and cuda.goal(options, ("%g"):format(options.goal), part, options.goal, true) or ""}
  cuda.record({bench = "memory", op = name, dtype = dtype, bytes_per_second = rate,
    of_copy = part}, a, b)
  return rate
end

for _, dtype in ipairs{"float16", "float32"} do
  local ceiling
  for _, name in ipairs(OPS) do
    local rate = measure(name, dtype, ceiling)
    if name == "copy" then ceiling = rate end
  end
end
local good = report.done()

print "## Host cost of an eager op\n"
local CALLS = options.tiny and 20 or 500 -- fewer than a device's queue holds
report = cuda.report{"us", "demilune", "PyTorch", "cheaper", "goal"}
for _, name in ipairs{"add", "add_", "add_recorded", "relu", "linear"} do
  local case = {"float32", "host", name}
  local begun, why = cuda.begin(ours, peer, case)
  local a, b
  if begun then a, b = cuda.times(ours, peer, options, "host", CALLS) end
  if a then
    local mine, other, cheaper = cuda.cells(a, b, 1e6)
    report.row{name, mine, other, cheaper, cuda.goal(options, "3", lib.median(a), 3e-6)}
    cuda.record({bench = "host", op = name}, a, b)
  else
    report.fail(case, why or b)
  end
end
good = report.done() and good
ours:close()
peer:close()
os.exit(good)
