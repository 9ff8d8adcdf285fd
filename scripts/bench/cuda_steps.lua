-- Training steps of the models with a size that fills a GPU, by demilune alone: which of their
-- calls a library refuses, how long the first step takes (plans are made, or read from disk), the
-- time of a step as Lua runs it and as one launch of a graph (dm.cuda.graph), the host's share,
-- whether both give the same losses to the bit, and the peak of memory.
--   scripts/run scripts/bench/cuda_steps.lua [--only gpt2] [--seconds 0.5] [--tiny]
--     [--profile]  also what each op of a step takes on the device
local cuda = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/cuda_lib.lua")
local options = cuda.options{only = "", seconds = 0.5, profile = false}
local dm = require "demilune"
local steps = require "steps"
local _ <close> = dm.device "cuda" -- all tensors of this file
dm.cuda.benchmark(true) -- as PyTorch's side has it

cuda.heading("Training steps by model", options)
local report = cuda.report{"model", "autocast", "first step s", "step ms", "host ms",
  "graph ms", "MiB", "refused", "same losses"}

local SAME = options.tiny and 2 or 10 -- losses that are compared

-- The calls so far that a library has refused, and the words of the last refusal.
local function refusals()
  local n, why = 0, nil
  for _, plan in pairs(dm.cuda.plans()) do
    n, why = n + (plan.refused or 0), plan.refusal or why
  end
  return n, why
end

local function seconds(f, n)
  dm.cuda.synchronize()
  local from = dm.now()
  for _ = 1, n do f() end
  local host = dm.now() - from
  dm.cuda.synchronize()
  return (dm.now() - from) / n, host / n
end

-- The median of blocks that together take about the seconds asked for, and the host's share of
-- the quickest one: its queue is not full then.
local function times(f)
  local pace = seconds(f, options.tiny and 1 or 3)
  local n = math.max(1, math.min(200, math.floor(options.seconds / 5 / pace)))
  local all, host = {}, math.huge
  for i = 1, 5 do
    local h
    all[i], h = seconds(f, n)
    host = math.min(host, h)
  end
  return cuda.lib.median(all), host
end

-- The losses of a function's first calls, from the same weights.
local function losses(model, make)
  dm.manual_seed(1)
  local c = model[options.tiny and "small" or "full"]()
  local step = make(steps.of(model, c))
  local list, from = {}, dm.now()
  local first
  for i = 1, SAME do
    local _ <close> = dm.scope()
    list[i] = step(c.x, c.y):item()
    first = first or dm.now() - from
  end
  return list, first, function()
    local _ <close> = dm.scope()
    step(c.x, c.y)
  end
end

local function measure(model)
  collectgarbage()
  dm.empty_cache "cuda"
  local before = refusals()
  dm.reset_peak_memory_stats "cuda"
  local eager, first, step = losses(model, function(f) return f end)
  local peak = dm.max_memory_allocated "cuda"
  local ms, host = times(step)
  local refused, why = refusals()
  if options.profile then
    local prof = dm.profiler.profile()
    for _ = 1, 3 do step() end
    prof:stop()
    print(model.name .. ", three steps\n\n"
      .. prof:key_averages():table{sort_by = "self_cuda_time_total", row_limit = 30})
  end
  step = nil -- luacheck: ignore (and with it the model)
  collectgarbage()
  local row = {model.name, model.dtype, ("%.2f"):format(first), ("%.3f"):format(ms * 1e3),
    ("%.3f"):format(host * 1e3), "-", ("%.0f"):format(peak / 2 ^ 20),
    math.tointeger(refused - before) or 0, "-"}
  local record = {bench = "steps", case = model.name, first_seconds = first, ours_seconds = ms,
    host_seconds = host, peak_bytes = peak, refused = refused - before, loss = eager[#eager]}
  local good, text = pcall(function()
    local captured, _, launch = losses(model, dm.cuda.graph)
    local same = 0
    local gap = 0
    for i, loss in ipairs(captured) do
      same = same + (loss == eager[i] and 1 or 0)
      gap = math.max(gap, math.abs(loss - eager[i]) / math.abs(eager[1]))
    end
    local graph = times(launch)
    row[6], row[9] = ("%.3f"):format(graph * 1e3), ("%d of %d"):format(same, #captured)
    record.graph_seconds, record.same = graph, same
    -- attention's gradients are added up in any order
    if gap ~= gap or gap >= 1e-3 then
      report.fail({model.name}, ("losses of the graph differ: %s, eager %s"):format(
        table.concat(captured, " "), table.concat(eager, " ")))
    end
  end)
  report.row(row)
  cuda.record(record)
  if not good then report.fail({model.name, "graph"}, text) end
  if refused > before then
    report.fail({model.name}, ("refused %d times: %s"):format(refused - before, why or "-"))
  end
end

for _, model in ipairs(steps.models) do
  if model.name:find(options.only, 1, true) then
    local good, why = xpcall(measure, debug.traceback, model)
    if not good then report.fail({model.name}, why) end
  end
end
os.exit(report.done())
