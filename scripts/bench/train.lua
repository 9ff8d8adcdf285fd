-- Training on the CPU against PyTorch's best: time, memory, whether the losses agree, and
-- how near each case comes to the limits of the machine.
--   scripts/run scripts/bench/train.lua [--quick] [--case NAME] [--threads 2]
--       [--dtypes float32,bfloat16,float16] [--modes default,max-autotune] [--limit 120]
--       [--rounds 7] [--block 2] [--steps 50] [--budget 20] [--tiny] [--more]
-- --quick: some of the cases in float32 and bfloat16, over an hour. --case: those whose
-- name holds NAME. --modes: of torch.compile, or "none". --limit: seconds that PyTorch may
-- take to compile and warm up with one setting. --rounds of blocks of --block seconds
-- each, a quarter of that for a single op, and no more of them than PyTorch does in --budget
-- seconds. Losses of --steps steps are compared, or of as many as we do in --budget
-- seconds. --tiny: small sizes, eager code and one allocator, to see that it runs.
-- --more: the networks of models.lua instead, a dozen small ones of other kinds.
--
-- Both sides start from the same weights and the same batch, which ours saves to a file.
-- PyTorch gets what its users have. For each dtype tune.lua looks for its fastest settings
-- of eager and compiled code, memory formats, 1 to N threads and allocators. The four
-- fastest are timed in blocks, and ours is compared with the best. Optimizers are fused.
-- PyTorch's threads wait as they do by default; while one side runs, the processes of the
-- other are stopped. Compiling and autotuning end before the clock starts, and each
-- setting runs 20 steps or two seconds first. Where one step takes PyTorch longer than
-- --budget, that step is its figure. A setting that fails, or takes longer than --limit,
-- is listed below the tables.
-- "Losses differ" compares ours in each dtype with PyTorch's eager float32.
-- Set TORCHINDUCTOR_CACHE_DIR to keep compiled code from run to run.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local tune = require "tune"
local options = lib.options {
  quick = false, case = "", threads = tonumber(lib.output "nproc") or 1, rounds = 7, block = 2,
  steps = 50, budget = 20, limit = 120, tiny = false, more = false, dtypes = "", modes = "",
}
if options.quick then options.rounds, options.block, options.budget = 3, 0.3, 5 end
if options.tiny then options.rounds, options.block, options.budget = 2, 0.005, 10 end

--- The words of a list with commas, or these where it is empty.
local function words(list, default)
  local found = {}
  for word in (list ~= "" and list or default):gmatch "[^,]+" do
    if word ~= "none" then found[#found + 1] = word end
  end
  return found
end
local DTYPES = words(options.dtypes, options.quick and "float32,bfloat16"
  or "float32,bfloat16,float16")
local MODES = words(options.modes, options.tiny and "none" or "default,max-autotune")

local ALLOCATORS = options.tiny and { lib.ALLOCATORS[1] } or lib.ALLOCATORS

-- How much faster than PyTorch a training should be; a case may have a goal of its own.
local GOALS = { float32 = 1.5, bfloat16 = 1.3 }

-- Kind and sizes.
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
  { "cnn", 128, quick = true, tiny = { 8 } },
  { "lstm", 2, 256, 32, 64, quick = true, tiny = { 2, 8, 2, 5 } },
  { "gpt", 6, 384, 6, 256, 8, quick = true, tiny = { 2, 16, 2, 8, 2 } },
  { "sine", 128, 256, quick = true, tiny = { 16, 8 } },
  { "sine", 256, 256 },
  { "sine", 512, 256 },
  { "resnet18", 32, "torchvision", quick = true, tiny = { 8, "torchvision", 32 } },
  { "resnet18", 128, "torchvision" },
  { "resnet18", 32, "cifar", quick = true, goal = 1.2, tiny = { 8, "cifar", 16 } },
  { "resnet18", 128, "cifar", goal = 1.2 },
}
local MORE = {} -- of models.lua, of so many samples
for name, samples in ("mobilenet 32, convnext 16, unet 4, vit 16, mixer 16, groupnorm 16, "
  .. "autoencoder 16, superresolution 8, volumes 4, wavenet 8, gru 32, transformer 16, "
  .. "recommender 1024"):gmatch "(%a+) (%d+)" do
  MORE[#MORE + 1] = { name, math.tointeger(samples), quick = true, tiny = { 2 } }
end

--- The cases that the options ask for.
local function chosen(cases)
  local list = {}
  for _, case in ipairs(cases) do
    if options.tiny and case.tiny then
      case = { case[1], goal = case.goal, table.unpack(case.tiny) }
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
  if os.execute(compile) then Probe.worker = lib.worker("probe", program) end
  Probe.program = program
end

--- GFLOP/s of multiply-adds at this moment, the better of two measurements, as the first
--- follows the other processes' stop; nil without a probe. Waits up to PATIENCE seconds while
--- another program has a part of the machine: less than 90 % of the best says so.
local PATIENCE = 10
local function canary()
  if not Probe.worker then return nil end
  local from, speed = os.time(), nil
  repeat
    if speed then os.execute "sleep 0.5" end
    speed = 0
    for _ = 1, 2 do
      speed = math.max(speed, assert(Probe.worker:ask("fma", options.threads)).gflops)
    end
    Probe.best = math.max(Probe.best, speed)
  until speed >= 0.9 * Probe.best or os.time() - from >= PATIENCE
  return speed
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
  local worker = lib.worker("demilune", ("env DEMILUNE_NUM_THREADS=%d lua5.4 %s")
    :format(options.threads, lib.quote(lib.here .. "/train_ours.lua")))
  local answer, why = worker:ask("begin", dtype, table.unpack(case))
  if answer then
    case.trains, case.dims = answer.trains == 1, answer.dims
    return worker
  end
  worker:close()
  error(("demilune: %s %s: %s"):format(case.name, dtype, why), 0)
end

--- As many losses of PyTorch's as ours, of eager float32 in the contiguous format (its
--- convolutions in channels_last sum with larger errors), and what the search finds in
--- this dtype. Each is nil where it fails; why.
local function scout(case, dtype, path, mine)
  local worker <close>, version = tune.torch(ALLOCATORS[1])
  if not worker then return nil, nil, version end
  lib.peer_version = version
  local losses, why
  if mine then
    assert(worker:ask("begin", path, "float32", options.threads, "contiguous_format", "eager",
      table.unpack(case)))
    losses, why = worker:ask("losses", mine.n)
    if not losses then return nil, nil, why end
  end
  local found
  found, why = tune.search(worker, case, dtype, path, { threads = options.threads,
    allocators = ALLOCATORS, modes = MODES, block = math.min(0.3, options.block),
    limit = options.limit, settle = canary })
  return found, losses, why
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

--- Seconds of blocks of each worker, in the other order each round, each after a canary:
--- an array of `rounds` for each worker, and the canaries' speeds.
local function blocks(workers, rounds, least)
  local seconds, canaries = {}, {}
  for i = 1, #workers do seconds[i] = {} end
  for round = 1, rounds do
    for turn = 1, #workers do
      local i = round % 2 == 1 and turn or #workers + 1 - turn
      canaries[#canaries + 1] = canary()
      seconds[i][round] = assert(workers[i]:ask("time", least)).seconds
    end
  end
  return seconds, canaries
end

-- ---------------------------------------------------------------------------
-- The tables
-- ---------------------------------------------------------------------------
local report = { speed = {}, memory = {}, settings = {}, trouble = {} }
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

local function goal_of(case, dtype, ratio)
  local goal = case.trains and GOALS[dtype]
  if goal or dtype == "float32" then goal = case.goal or goal end
  return goal and ("%g: %s"):format(goal, lib.verdict(ratio, goal, true)) or ""
end

--- "12.3", or "-" where there is no such setting.
local function best_ms(settings)
  return settings and ("%.4g"):format(settings.seconds * 1e3) or "-"
end

--- A fresh PyTorch for each finalist, warmed up, as { worker, settings }; a list to close.
local function open_peers(case, dtype, path, found)
  local peers = setmetatable({}, { __close = function(list)
    for _, peer in ipairs(list) do peer.worker:close() end
  end })
  if not found or found.fastest.seconds > options.budget then return peers end
  for _, settings in ipairs(found:finalists()) do
    local worker, why = tune.torch(settings.allocator)
    local answer
    if worker then answer, why = tune.begin(worker, case, dtype, path, settings, options.limit) end
    if answer then
      peers[#peers + 1] = { worker = worker, settings = settings }
    else
      trouble("%s %s: PyTorch, %s: %s", case.name, dtype, tune.words(settings), why)
      if worker then worker:close() end
    end
  end
  return peers
end

--- Blocks of ours and of PyTorch's finalists in turns. -> a row of results: ours, theirs
--- (arrays of seconds, of the finalist with the least median), peer (that one), canaries.
local function time_all(mine, peers, found, least)
  local workers, slowest = { mine }, least
  for i, peer in ipairs(peers) do
    workers[i + 1] = peer.worker
    slowest = math.max(slowest, peer.settings.seconds)
  end
  local fit = #peers > 0 and options.budget // slowest or options.rounds
  local seconds, canaries = blocks(workers, math.max(1, math.min(options.rounds, fit)), least)
  local row = { ours = seconds[1], canaries = canaries }
  for i, peer in ipairs(peers) do
    peer.settings.seconds = lib.median(seconds[i + 1])
    if not row.peer or peer.settings.seconds < row.peer.settings.seconds then
      row.peer, row.theirs = peer, seconds[i + 1]
    end
  end
  if found then found:rank() end
  return row
end

--- PyTorch's milliseconds and how much faster ours is: cells, and the ratio. Where a step
--- took longer than the budget, the search's figure stands for each block.
local function against(row, found)
  if not found then return "-", "-", nil end
  local theirs, cell = row.theirs, row.theirs and ms(row.theirs)
  if not theirs then
    theirs = {}
    for i = 1, #row.ours do theirs[i] = found.fastest.seconds end
    cell = ("%s (%d step)"):format(best_ms(found.fastest), found.fastest.steps)
  end
  return cell, faster(row.ours, theirs), lib.ratio(theirs, row.ours)
end

--- Both sides are timed, and the rows of the tables written.
local function compare(case, dtype, mine, peers, found, agree)
  local row = time_all(mine, peers, found, case.trains and options.block or options.block / 4)
  local work, peer = assert(mine:ask "work"), row.peer and assert(row.peer.worker:ask "work")
  local cell, gain, ratio = against(row, found)
  io.stderr:write(("  ours %s ms, PyTorch's best %s ms\n"):format(ms(row.ours), cell))
  table.insert(report.speed, {
    case.name, dtype, ms(row.ours), cell, gain, ratio and goal_of(case, dtype, ratio) or "",
    dtype == "float32" and share(work, row.canaries, lib.median(row.ours)) or "-", agree,
    off(row.canaries),
  })
  if found then
    local best = row.peer and row.peer.settings or found.fastest
    table.insert(report.settings, { case.name, dtype, tune.words(best), best_ms(found.eager),
      best_ms(found.compiled), found.compiled and ("%.0f"):format(found.compiled.first) or "-" })
  end
  if case.trains then
    local least = math.min(found and found.peak or math.huge, peer and peer.peak or math.huge)
    least = least < math.huge and least or nil
    table.insert(report.memory, {
      case.name, dtype, mib(work.peak), mib(least), quotient(work.peak, least),
      mib(work.resident), mib(peer and peer.resident),
    })
  end
end

--- `path`: a file for the weights and the batch that both sides start from.
local function measure(case, dtype, path)
  local mine <close> = ours(case, dtype)
  if case.trains then assert(mine:ask("save", path)) end
  local losses = case.trains and assert(mine:ask("losses", options.steps, options.budget))
  local found, peer, why = scout(case, dtype, path, losses)
  local agree = "-"
  if peer then agree = agreement(case, dtype, disagreement(losses, peer), losses.n) end
  if why then trouble("%s %s: PyTorch: %s", case.name, dtype, why) end
  for _, line in ipairs(found and found.failed or {}) do
    trouble("%s %s: PyTorch, %s", case.name, dtype, line)
  end
  local peers <close> = open_peers(case, dtype, path, found)
  compare(case, dtype, mine, peers, found, agree)
end

open_probe()
Probe.bandwidth = Probe.worker and Probe.worker:ask("stream", options.threads).gbs
for _ = 1, 5 do canary() end
local asked = options.more and { MORE } or { PRODUCTS, OPS, TRAININGS }
for _, all in ipairs(asked) do
  for _, case in ipairs(chosen(all)) do
    for _, dtype in ipairs(DTYPES) do
      io.stderr:write(case.name, " ", dtype, "\n")
      local path = os.tmpname()
      local ok, why = pcall(measure, case, dtype, path)
      os.remove(path)
      if not ok then
        trouble("%s %s: %s", case.name, dtype, why:match "^(.-) / stack traceback" or why)
      end
    end
  end
end
if Probe.worker then Probe.worker:close() end
os.remove(Probe.program)
tune.close()

lib.heading "Training on the CPU"
print(("%d threads at %s GFLOP/s of multiply-adds and %s GB/s at best. Median [middle half] of\n"
  .. "up to %d blocks a side in turns. PyTorch is in the fastest of the settings tried.\n")
  :format(options.threads, Probe.best, Probe.bandwidth or "-", options.rounds))
lib.table({ "", "dtype", "ms", "PyTorch's best, ms", "faster", "goal", "of the floor",
  "losses differ (steps)", "canary off" }, report.speed)
print("The floor is the time of the products at the peak of float32's multiply-adds, or of the\n"
  .. "bytes at the bandwidth, the longer one; a training moves twice the most that its tensors\n"
  .. "hold. Above 100 %, caches held a part. Losses differ by a part of the first. A block\n"
  .. "whose canary is off, by more than 5 % of the best, had not the whole machine.\n")
if #report.settings > 0 then
  lib.table({ "", "dtype", "PyTorch's best settings", "best eager, ms", "best compiled, ms",
    "its first step, s" }, report.settings)
  print("The four fastest settings were timed as the blocks are; figures of others are the best\n"
    .. "of four short blocks.\n")
end
if #report.memory > 0 then
  lib.table({ "most memory, MiB", "dtype", "tensors", "PyTorch's lowest", "ratio", "process",
    "PyTorch's, as timed" }, report.memory)
end
if #report.trouble > 0 then print("Trouble:\n\n" .. table.concat(report.trouble, "\n") .. "\n") end
