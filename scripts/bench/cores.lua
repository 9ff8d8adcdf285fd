-- The part of a training step that several threads can share, counted on one: how long the jobs of
-- the thread pool take, into how many chunks each is cut, and how long the rest takes. From that
-- follows the most that more cores can give: with P of them a job of c chunks takes ceil(c / P) / c
-- of its time. Memory's bandwidth, and the cost of waking threads, are not in it.
--   lua5.4 scripts/bench/cores.lua [--only gpt] [--steps 5]
local lib = dofile((arg[0]:match "^(.*)/" or ".") .. "/lib.lua")
local dm = require "demilune"
local cases = require "cases"
local trace = require "demilune.core"._test.trace_jobs
local amp = dm.amp

local options = lib.options{only = "", steps = 5}
dm.set_num_threads(64) -- ops that look at the number of threads cut jobs for the last column

local CASES = {
  {"CNN 128", function() return cases.cnn(128) end},
  {"char-GPT 6x384, 8 x 256", function() return cases.gpt(6, 384, 6, 256, 8) end},
  {"LSTM 2x256, 32 x 64", function() return cases.lstm(2, 256, 32, 64) end},
  {"sine 128 x 256", function() return cases.sine(128, 256) end},
  {"ResNet-18, torchvision stem, 32", function() return cases.resnet18(32, "torchvision") end},
  {"ResNet-18, CIFAR stem, 32", function() return cases.resnet18(32, "cifar") end},
}

local function step(c, dtype)
  local _ <close> = dm.scope()
  c.optimizer:zero_grad()
  local loss
  do
    local _ <close> = amp.autocast{device_type = "cpu", dtype = dtype, enabled = dtype ~= "float32"}
    loss = c.criterion(c.model(c.x), c.y)
  end
  loss:backward()
  c.optimizer:step()
end

-- Jobs a step, seconds of a step, seconds of its jobs with 1, 2, 4 ... 64 threads: the quickest of
-- some steps.
local function measure(c, dtype)
  for _ = 1, 2 do step(c, dtype) end
  local jobs, all, shared
  for _ = 1, options.steps do
    trace(true)
    local t = dm.now()
    step(c, dtype)
    t = dm.now() - t
    local n, by = trace(false)
    if not all or t < all then jobs, all, shared = n, t, by end
  end
  return jobs, all, shared
end

lib.heading "What threads can share of a training step"
local rows = {}
for _, case in ipairs(CASES) do
  if case[1]:find(options.only, 1, true) then
    for _, dtype in ipairs{"float32", "bfloat16"} do
      dm.manual_seed(1)
      local jobs, all, shared = measure(case[2](), dtype)
      local alone = all - shared[1]
      local row = {case[1], dtype, jobs, ("%.1f"):format(all * 1e3),
        ("%.1f %%"):format(alone / all * 100)}
      for i = 2, #shared do row[#row + 1] = ("%.1f"):format(all / (alone + shared[i])) end
      rows[#rows + 1] = row
      collectgarbage()
    end
  end
end
lib.table({"case", "dtype", "jobs", "ms on one thread", "not shared", "2", "4", "8", "16", "32",
  "64 cores"}, rows)
