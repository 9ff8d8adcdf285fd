-- Launches of a training step, counted on the emulated device: forward, backward, GradScaler
-- (float16) and optimizer, of models with all their layers and small widths, on which launches do
-- not depend.
--   cmake -S . -B build/emu -G Ninja -DWITH_CUDA=emulated && ninja -C build/emu
--   lua5.4 scripts/bench/launches.lua [--names] [--only resnet18]    (with build/emu's module)
-- --names lists the kernels and library functions of each step, the most frequent first.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local dm = require "demilune"
local steps = require "steps"

local options = lib.options{names = false, only = "", warm = 2}

if not dm.cuda.is_available() or not dm.cuda._count "launch" then
  print "launches: only the emulated device counts them (-DWITH_CUDA=emulated)"
  os.exit(true)
end
local _ <close> = dm.device "cuda" -- all tensors of this file

local WORDS = {"work", "launch", "copy", "sync"}

local function counts()
  local n = {}
  for _, word in ipairs(WORDS) do n[word] = dm.cuda._count(word) or 0 end
  return n
end

-- What one step counts, after the warm ones, and its work by name. The step after a collection has
-- its gradients elsewhere than those before it, whose garbage was there still, and sends tables of
-- them; the next one shows what a step repeats.
local function measure(step)
  for _ = 1, options.warm do step() end
  collectgarbage()
  collectgarbage "stop"
  step()
  dm.cuda.synchronize()
  local before = counts()
  step()
  collectgarbage "restart"
  local after, names = counts(), {}
  for i = before.work + 1, after.work do
    local name = dm.cuda._work(i):match "^%(?([%w_]+)"
    names[name] = (names[name] or 0) + 1
  end
  for _, word in ipairs(WORDS) do after[word] = after[word] - before[word] end
  return after, names
end

-- {word = n} as "n word", the largest first.
local function listing(names)
  local list = {}
  for name, n in pairs(names) do list[#list + 1] = {name, n} end
  table.sort(list, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    return a[1] < b[1]
  end)
  for i, pair in ipairs(list) do list[i] = ("%d %s"):format(pair[2], pair[1]) end
  return table.concat(list, ", ")
end

lib.heading "Launches of a training step"
local rows, lists = {}, {}
for _, model in ipairs(steps.models) do
  local name = model.name
  if name:find(options.only, 1, true) then
    dm.manual_seed(1)
    local n, names = measure(steps.eager(model, model.small()))
    rows[#rows + 1] = {name, model.dtype, n.work, n.copy, n.sync}
    lists[#lists + 1] = ("%s: %s"):format(name, listing(names))
    collectgarbage()
  end
end
lib.table({"model", "autocast", "launches", "of them copies, fills", "host waits"}, rows)
if options.names then print(table.concat(lists, "\n")) end
