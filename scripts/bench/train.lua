-- Training on the CPU beside eager PyTorch: time, memory, whether the losses agree, and
-- how near each case comes to what the machine can do.
--   scripts/run scripts/bench/train.lua [--quick] [--case NAME] [--threads 2]
--       [--rounds 7] [--block 2] [--steps 50] [--budget 20] [--tuned] [--tiny]
-- --quick: some of the cases, in a few minutes. --case: those whose name holds NAME.
-- --rounds of blocks of --block seconds each, a quarter of that for a single op. Losses
-- of --steps steps are compared, or of as many as we do in --budget seconds. --tuned: an
-- allocator for PyTorch that keeps what is freed, which its users do not have. --tiny:
-- sizes to see that it runs.
--
-- Both sides start from the same weights and the same batch, which ours saves to a file.
-- PyTorch does its best: of 1 to N threads and of both layouts the fastest, with fused
-- optimizers. In 16 bits we stand against our own float32; PyTorch takes two steps only,
-- or one where that takes longer than --budget, as it is very slow where the processor
-- lacks the instructions (not with --quick).
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local options = lib.options {
  quick = false, case = "", threads = tonumber(lib.output "nproc") or 1, rounds = 7, block = 2,
  steps = 50, budget = 20, tuned = false, tiny = false,
}
if options.quick then options.rounds, options.block, options.budget = 3, 0.3, 5 end
if options.tiny then options.rounds, options.block, options.budget = 2, 0.005, 10 end

-- Kind and sizes; `goal`: how much faster than PyTorch.
local PRODUCTS = { -- m, n, k
  { "mm", 256, 256, 256, tiny = { 32, 32, 32 } },
  { "mm", 512, 512, 512 },
  { "mm", 1024, 1024, 1024, quick = true },
  { "mm", 2048, 2048, 2048 },
  { "mm", 256, 65536, 256 },
  { "mm", 256, 256, 65536, quick = true }, -- the gradient of a weight
  { "mm", 768, 1024, 3072 },
}
local OPS = {}
for _, name in ipairs {
  "copy", "add", "exp", "gelu", "silu", "sum", "sum_rows", "sum_columns", "amax_rows",
  "amax_columns", "var_rows", "logsumexp", "softmax", "log_softmax", "layer_norm",
  "batch_norm", "dropout", "cross_entropy",
  "gelu_backward", "softmax_backward", "log_softmax_backward", "layer_norm_backward",
  "batch_norm_backward", "cross_entropy_backward",
} do
  OPS[#OPS + 1] = { "op", name, 4096, 768, goal = 2, tiny = { name, 64, 48 },
    quick = name == "add" or name == "gelu" or name == "amax_columns"
      or name:find "^softmax" ~= nil or name:find "^layer_norm" ~= nil }
end
local TRAININGS = {
  { "mlp", 16, 32, 4, 8, quick = true, goal = 30, tiny = { 16, 32, 4, 8 } },
  { "cnn", 128, quick = true, goal = 1.3, tiny = { 8 } },
  { "lstm", 2, 256, 32, 64, quick = true, goal = 1.3, tiny = { 2, 8, 2, 5 } },
  { "gpt", 6, 384, 6, 256, 8, quick = true, goal = 1.3, tiny = { 2, 16, 2, 8, 2 } },
  { "sine", 128, 256, quick = true, goal = 1.5, tiny = { 16, 8 } },
  { "sine", 256, 256, goal = 1.5 },
  { "sine", 512, 256, goal = 1.5 },
  { "resnet18", 32, "torchvision", quick = true, goal = 1.3, tiny = { 8, "torchvision", 32 } },
  { "resnet18", 128, "torchvision", goal = 1.3 },
  { "resnet18", 32, "cifar", quick = true, goal = 1.3, tiny = { 8, "cifar", 16 } },
  { "resnet18", 128, "cifar", goal = 1.3 },
}

--- The cases that the options ask for.
local function chosen(cases)
  local list = {}
  for _, case in ipairs(cases) do
    if options.tiny and case.tiny then
      case = { case[1], table.unpack(case.tiny) }
    elseif options.tiny or options.quick and not case.quick then
      case = nil
    end
    local name = case and table.concat(case, " ")
    if name and name:find(options.case, 1, true) then
      case.name = name
      list[#list + 1] = case
    end
  end
  return list
end

-- ---------------------------------------------------------------------------
-- The machine
-- ---------------------------------------------------------------------------
local Probe = { best = 0 }

--- Compiles probe.c; without a compiler there is no floor and no canary.
local function open_probe()
  local program = os.tmpname()
  local compile = ("%s -O3 -march=native -ffp-contract=fast -pthread %s -o %s 2>/dev/null")
    :format(os.getenv "CC" or "cc", lib.quote(lib.here .. "/probe.c"), program)
  if os.execute(compile) then Probe.worker = lib.worker("probe", "exec " .. program) end
  Probe.program = program
end

--- GFLOP/s of multiply-adds at this moment; nil without a probe.
local function canary()
  local answer = Probe.worker and Probe.worker:ask("fma", options.threads)
  if not answer then return nil end
  Probe.best = math.max(Probe.best, answer.gflops)
  return answer.gflops
end

--- How many of these fell short of the best of the run by more than 5 %.
local function off(canaries)
  local count = 0
  for _, speed in ipairs(canaries) do
    if speed < 0.95 * Probe.best then count = count + 1 end
  end
  return #canaries > 0 and ("%d of %d"):format(count, #canaries) or "-"
end

--- The share of what the machine can do: the least seconds of that work, its products at
--- the peak of the canaries' median or its bytes at the measured bandwidth, by seconds.
local function share(work, canaries, seconds)
  if #canaries == 0 then return "-" end
  local least = math.max(work.flops / (lib.median(canaries) * 1e9),
    work.bytes / (Probe.bandwidth * 1e9))
  return ("%.0f %%"):format(100 * least / seconds)
end

-- ---------------------------------------------------------------------------
-- Both sides
-- ---------------------------------------------------------------------------
local function ours(case, dtype)
  local worker = lib.worker("demilune", ("DEMILUNE_NUM_THREADS=%d exec lua5.4 %s")
    :format(options.threads, lib.quote(lib.here .. "/train_ours.lua")))
  local answer, why = worker:ask("begin", dtype, table.unpack(case))
  if answer then return worker, answer.trains == 1 end
  worker:close()
  error(("demilune: %s %s: %s"):format(case.name, dtype, why), 0)
end

local TUNED = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 "

--- A fresh PyTorch, or nil and why not. Its threads sleep while they wait.
local function torch()
  local python = os.getenv "PYTHON" or "python3"
  local worker = lib.worker("PyTorch", ("OMP_WAIT_POLICY=PASSIVE %sexec %s %s"):format(
    options.tuned and TUNED or "", lib.quote(python), lib.quote(lib.here .. "/train_peer.py")))
  local about = worker:ask "about"
  if about then
    lib.peer_version = about.version
    return worker
  end
  worker:close()
  return nil, "no torch in " .. python
end

local function theirs(case, dtype, path, settings)
  local worker, why = torch()
  if not worker then return nil, why end
  local answer
  answer, why = worker:ask("begin", path, dtype, settings.threads, settings.layout,
    table.unpack(case))
  if answer then return worker end
  worker:close()
  return nil, why
end

--- What is asked of PyTorch in a process of its own, for the memory's sake: its fastest
--- settings, and as many losses as ours, if any. The losses in the plain layout: its
--- convolutions in the other one sum with larger errors.
local function scout(case, path, mine)
  local plain = { threads = options.threads, layout = "contiguous_format" }
  if not mine and options.threads == 1 then return plain end
  local worker, why = theirs(case, "float32", path, plain)
  if not worker then return nil, nil, why end
  local losses, settings
  if mine then losses, why = worker:ask("losses", mine.n) end
  if losses or not mine then
    settings, why = worker:ask("tune", path, "float32", options.threads, table.unpack(case))
  end
  worker:close()
  return settings, losses, why
end

--- The largest difference of two losses of the same step, relative to the first loss:
--- one batch is soon known by heart, and a loss near 0 has no digits in common.
local function disagreement(a, b)
  local most = 0
  for i = 1, a.n do
    local gap = math.abs(a["l" .. i] - b["l" .. i]) / math.abs(b.l1)
    most = gap == gap and math.max(most, gap) or math.huge
  end
  return most
end

--- Seconds of blocks on each side, the first one changing each round, each after a
--- canary: two arrays, and the canaries' speeds.
local function blocks(first, second, least)
  local a, b, canaries = {}, {}, {}
  for round = 1, options.rounds do
    for turn = 1, 2 do
      local is_first = (round + turn) % 2 == 0
      local worker = is_first and first or second
      if worker then
        canaries[#canaries + 1] = canary()
        table.insert(is_first and a or b, assert(worker:ask("time", least)).seconds)
      end
    end
  end
  return a, b, canaries
end

-- ---------------------------------------------------------------------------
-- The tables
-- ---------------------------------------------------------------------------
local report = { speed = {}, memory = {}, half = {}, trouble = {} }
local LIMIT = { float32 = 1e-4, bfloat16 = 2e-2, float16 = 2e-2 } -- of losses' differences

local function trouble(...)
  local line = "- " .. string.format(...)
  table.insert(report.trouble, line)
  io.stderr:write(line, "\n")
end

local function mib(bytes) return bytes and ("%.2f"):format(bytes / 2 ^ 20) or "-" end
local function quotient(a, b) return b and ("%.2f"):format(a / b) or "-" end

--- Milliseconds with as many digits as are seen.
local function ms(seconds)
  if #seconds == 0 then return "-" end
  local median = lib.median(seconds)
  return lib.spread(seconds, 1e3, median < 1e-3 and "%.4f" or median < 0.1 and "%.2f" or "%.0f")
end

--- The spread of how much faster the first was, neighbours in time compared.
local function faster(a, b)
  if #b == 0 then return "-" end
  local ratios = {}
  for i = 1, #a do ratios[i] = b[i] / a[i] end
  return lib.spread(ratios, 1)
end

local function agreement(case, dtype, gap, steps)
  if gap > LIMIT[dtype] then
    trouble("%s %s: losses differ by %.2g within %d steps, at most %g is fine", case.name, dtype,
      gap, steps, LIMIT[dtype])
  end
  return ("%.1e (%d)"):format(gap, steps)
end

--- Float32 on both sides, after the losses. -> what a step of ours does.
local function measure_float32(case, mine, other, settings, agree)
  local trains = agree ~= nil
  local a, b, canaries = blocks(mine, other, trains and options.block or options.block / 4)
  local work, peer = assert(mine:ask "work"), other and assert(other:ask "work")
  local goal = case.goal and other
    and ("%g: %s"):format(case.goal, lib.verdict(lib.ratio(b, a), case.goal, true))
  table.insert(report.speed, {
    case.name, ms(a), ms(b), faster(a, b), goal or "",
    share(work, canaries, lib.median(a)), agree or "-",
    settings and ("%d, %s"):format(settings.threads, settings.layout) or "-", off(canaries),
  })
  if trains then
    table.insert(report.memory, {
      case.name, mib(work.peak), mib(peer and peer.peak), quotient(work.peak, peer and peer.peak),
      mib(work.resident), mib(peer and peer.resident),
    })
  end
  return work
end

--- Seconds of a step of PyTorch in 16 bits, and which it was: the second, or the
--- first where that alone took longer than the budget.
local function few_steps(case, dtype, path, settings)
  local worker <close>, why = theirs(case, dtype, path, settings)
  if not worker then return nil, why end
  local answer, n = worker:ask("steps", 1), 1
  if answer and answer.seconds <= options.budget then answer, n = worker:ask("steps", 1), 2 end
  return answer and answer.seconds, n
end

local function measure_half(case, dtype, full, losses, work, path, settings)
  local half <close> = ours(case, dtype)
  local mine = assert(half:ask("losses", losses.n, 1e9))
  local agree = agreement(case, dtype, disagreement(mine, losses), losses.n)
  local a, b, canaries = blocks(half, full, options.block)
  local peak = assert(half:ask "work").peak
  local peer, steps
  if settings and not options.quick then peer, steps = few_steps(case, dtype, path, settings) end
  local slower = lib.ratio(a, b)
  table.insert(report.half, {
    case.name, dtype, ms(a), ("%.2f (1.02: %s)"):format(slower, lib.verdict(slower, 1.02)),
    mib(peak), ("%.2f (0.55: %s)"):format(peak / work.peak, lib.verdict(peak / work.peak, 0.55)),
    agree, peer and ("%.3g (%d)"):format(peer * 1e3, steps) or "-",
    peer and ("%.1f"):format(peer / lib.median(a)) or "-", off(canaries),
  })
end

--- `path`: a file for what both sides start from.
local function measure(case, path)
  local mine <close>, trains = ours(case, "float32")
  if trains then assert(mine:ask("save", path)) end
  local losses = trains and assert(mine:ask("losses", options.steps, options.budget))
  local settings, peer, why = scout(case, path, losses)
  local agree = trains and "-" or nil
  if peer then agree = agreement(case, "float32", disagreement(losses, peer), losses.n) end
  local other
  if settings then other, why = theirs(case, "float32", path, settings) end
  if not other then trouble("%s: PyTorch: %s", case.name, why) end
  local work = measure_float32(case, mine, other, settings, agree)
  if other then other:close() end
  for _, dtype in ipairs(trains and { "bfloat16", "float16" } or {}) do
    if dtype == "bfloat16" or not options.quick then
      measure_half(case, dtype, mine, losses, work, path, settings)
    end
  end
end

open_probe()
Probe.bandwidth = Probe.worker and Probe.worker:ask("stream", options.threads).gbs
for _ = 1, 20 do canary() end
for _, cases in ipairs { chosen(PRODUCTS), chosen(OPS), chosen(TRAININGS) } do
  for _, case in ipairs(cases) do
    io.stderr:write(case.name, "\n")
    local path = os.tmpname()
    local ok, why = pcall(measure, case, path)
    os.remove(path)
    if not ok then trouble("%s: %s", case.name, why:match "^(.-) / stack traceback" or why) end
  end
end
if Probe.worker then Probe.worker:close() end
os.remove(Probe.program)

lib.heading "Training on the CPU"
print(("%d threads at %s GFLOP/s of multiply-adds and %s GB/s at best. Median [middle half] of\n"
  .. "%d blocks a side in turns. PyTorch has %s allocator, fused optimizers, and the better\n"
  .. "of threads and layouts.\n"):format(options.threads, Probe.best, Probe.bandwidth or "-",
  options.rounds, options.tuned and "a caching" or "its users'"))
lib.table({ "float32", "ms", "PyTorch ms", "faster", "goal", "of the floor",
  "losses differ (steps)", "PyTorch's threads, layout", "canary off" }, report.speed)
print("The floor: products at the peak of multiply-adds, or bytes at the bandwidth, what is\n"
  .. "longer; of a training twice what tensors hold at most. Above 100 %, caches held a part.\n"
  .. "Losses differ by a part of the first. A block whose canary is off, by more than 5 % of\n"
  .. "the best, had not the whole machine.\n")
if #report.memory > 0 then
  lib.table({ "most memory, MiB", "tensors", "PyTorch's", "ratio", "process", "PyTorch's" },
    report.memory)
  lib.table({ "mixed precision", "dtype", "ms", "of float32's", "tensors, MiB", "of float32's",
    "losses differ (steps)", "PyTorch ms (step)", "faster", "canary off" }, report.half)
end
if #report.trouble > 0 then print("Trouble:\n\n" .. table.concat(report.trouble, "\n") .. "\n") end
os.exit(#report.trouble == 0)
