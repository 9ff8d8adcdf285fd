-- How a training would scale to many GPUs, by a model on paper: nothing here is measured unless
-- --measure is given.
--   scripts/run scripts/bench/scale_model.lua [--model gpt2] [--step 29.8] [--wire float32]
--       [--gpus 8,64,256,1024] [--node 8] [--inside 3,400] [--outside 10,45] [--bucket 25]
--       [--hides 0.9] [--jitter 0.01] [--sizes BYTES,BYTES,...] [--measure]
-- --model: one of dm.models, whose parameters' gradients travel; --sizes in its stead, in the order
-- in which they are complete. --step: milliseconds of a step on one GPU, a third of them forward
-- and two thirds backward. --inside, --outside: microseconds of a message's latency and GB/s of
-- each GPU, within a node of --node GPUs and between nodes. --hides: the share of the backward pass
-- in which messages travel at full speed. --jitter: how much longer the slowest of 1,024 computes,
-- in proportion to the logarithm of their number. --measure: latency and bandwidth of both are what
-- all_reduce takes here, in two processes of this machine.
--
-- The model. A gradient of S bytes is summed in three parts: reduce-scatter within the node, an
-- all-reduce of each GPU's share between the nodes along a tree, all-gather within the node. With g
-- GPUs a node, m nodes, latencies a and bandwidths b:
--   (g - 1) (a1 + S / g / b1)  twice, and  2 ceil(log2 m) a2 + 2 (m - 1) / m (S / g) / b2
-- (R. Rabenseifner 2004, Optimization of collective reduction operations). Gradients are complete
-- in the reverse order of the parameters; one takes the share of the backward pass that its size is
-- of all. A matrix that is both embedding and head is complete last, and costs nothing there.
-- Buckets travel one after the other, none before it is complete.
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local lib = require "lib"
local o = lib.options { model = "gpt2", step = 29.8, wire = "float32", gpus = "8,64,256,1024",
  node = 8, inside = "3,400", outside = "10,45", bucket = 25, hides = 0.9, jitter = 0.01,
  sizes = "", measure = false }

local WIRE = { float32 = 4, bfloat16 = 2, float16 = 2 } -- bytes of a number
local MUST = 0.9 -- of a perfect scaling

local function fail(...)
  io.stderr:write("scale_model: ", string.format(...), "\n")
  os.exit(2)
end

--- The numbers of a list with commas.
local function numbers(name, list, count)
  local found = {}
  for word in list:gmatch "[^,]+" do
    found[#found + 1] = math.tointeger(word) or tonumber(word)
      or fail("--%s is %s, wanted numbers with commas", name, list)
  end
  if count and #found ~= count then fail("--%s is %s, wanted %d numbers", name, list, count) end
  return found
end

--- Latency in seconds and bytes a second of a link.
local function link(name)
  local pair = numbers(name, o[name], 2)
  return { latency = pair[1] * 1e-6, bandwidth = pair[2] * 1e9 }
end

--- The link that two measured sums between two processes give: two messages each, whose bytes all
--- go both ways.
local function measured()
  local seconds = {}
  for i, elements in ipairs { 16, 1 << 20 } do
    local text = lib.output(("env DEMILUNE_NUM_THREADS=1 mpirun --allow-run-as-root --oversubscribe"
      .. " --bind-to none -n 2 lua5.4 %s/scale_ours.lua reduce 1 %d"):format(lib.quote(lib.here),
      elements))
    seconds[i] = tonumber((text or ""):match "seconds=(%S+)") or fail("mpirun gave no time")
  end
  local latency = seconds[1] / 2
  return { latency = latency, bandwidth = (1 << 22) / math.max(1e-9, seconds[2] - seconds[1]) }
end

--- Bytes of gradients in the order in which they are complete; which take part of the backward
--- pass: all but the last where it is the embedding that is the head, too.
local function gradients()
  local each = WIRE[o.wire] or fail("--wire is %s, wanted float32, bfloat16 or float16", o.wire)
  local sizes, tied = {}, false
  if o.sizes ~= "" then return numbers("sizes", o.sizes), tied end
  local dm = require "demilune"
  local build = dm.models[o.model] or fail("--model is %s, wanted one of dm.models", o.model)
  local params = build():parameters()
  for i = #params, 1, -1 do sizes[#sizes + 1] = params[i]:numel() * each end
  tied = o.model == "gpt2"
  return sizes, tied
end

--- Buckets as { bytes, ready = share of the backward pass before it is complete }.
local function buckets(sizes, tied)
  local all, done = 0, 0
  for i, size in ipairs(sizes) do all = all + (tied and i == #sizes and 0 or size) end
  local list, open = {}, 0
  for i, size in ipairs(sizes) do
    done = done + (tied and i == #sizes and 0 or size)
    open = open + size
    if open >= o.bucket * 2 ^ 20 or i == #sizes then
      list[#list + 1] = { bytes = open, ready = done / all }
      open = 0
    end
  end
  return list
end

--- Seconds in which n GPUs sum so many bytes.
local function all_reduce(bytes, n, inside, outside)
  local g = math.min(n, o.node)
  local m = n // g
  local within = (g - 1) * (inside.latency + bytes / g / inside.bandwidth)
  local between = m > 1 and 2 * math.ceil(math.log(m, 2)) * outside.latency
    + 2 * (m - 1) / m * bytes / g / outside.bandwidth or 0
  return 2 * within + between
end

--- Seconds of a step of n GPUs. Messages are slower in proportion to what the pass leaves them.
local function step_of(n, list, inside, outside)
  local step = o.step / 1e3
  local forward, backward = step / 3, step * 2 / 3
  local free = 0 -- when the link is free, from the beginning of the backward pass
  for _, bucket in ipairs(list) do
    local from = math.max(free, bucket.ready * backward)
    local takes = all_reduce(bucket.bytes, n, inside, outside)
    local hidden = math.max(0, backward - from) * o.hides -- what can travel in it
    free = takes <= hidden and from + takes / o.hides
      or math.max(from, backward) + takes - hidden
  end
  local slowest = 1 + o.jitter * math.log(math.max(1, n), 2) / 10
  return forward * slowest + math.max(backward * slowest, free)
end

local inside, outside = link "inside", link "outside"
if o.measure then
  inside = measured()
  outside = inside
end
local sizes, tied = gradients()
local list, total = buckets(sizes, tied), 0
for _, size in ipairs(sizes) do total = total + size end
lib.heading "Weak scaling by a model"
print(("%s: %.1f MB of gradients (%s) in %d buckets, %g ms a step on one; latency and bandwidth "
  .. "within a node %.3g us, %.3g GB/s, between nodes %.3g us, %.3g GB/s%s.\n"):format(
  o.sizes == "" and o.model or "--sizes", total / 1e6, o.wire, #list, o.step, inside.latency * 1e6,
  inside.bandwidth / 1e9, outside.latency * 1e6, outside.bandwidth / 1e9,
  o.measure and ", both measured by all_reduce between two processes here" or ""))
local rows = {}
for _, n in ipairs(numbers("gpus", o.gpus)) do
  local step = step_of(n, list, inside, outside)
  local share = o.step / 1e3 / step
  rows[#rows + 1] = { n, ("%.2f"):format(step * 1e3), ("%.1f %%"):format(100 * share),
    ("%g %%: %s"):format(100 * MUST, lib.verdict(share, MUST, true)) }
end
lib.table({ "GPUs", "ms a step", "of a perfect scaling", "goal" }, rows)
