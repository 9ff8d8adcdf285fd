-- Seconds and peak memory of a piece of work, and how two of them compare.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local Measure = {__name = "demilune.Measure"}
Measure.__index = Measure

local bind = options.signature("measure", "*, device?: device")

local function begin(device)
  collectgarbage()
  collectgarbage() -- what the first one's finalizers let go of
  core.empty_cache(device)
  core.synchronize()
  core.reset_peak_memory_stats(device)
  return setmetatable({device = device, start_bytes = core.memory_allocated(device),
    began = core.now()}, Measure)
end

-- Ends it, once. The clock stops after the devices have done all they were given.
function Measure:stop()
  if not self.began then return self end
  core.synchronize()
  self.seconds = core.now() - self.began
  self.peak_bytes = core.max_memory_allocated(self.device)
  self.began = nil
  return self
end
function Measure:__close() self:stop() end

function Measure:__tostring()
  if self.began then return "a measurement under way" end
  return ("%.4f s, peak %.4g MiB"):format(self.seconds, self.peak_bytes / 2^20)
end

-- Compares this measurement with an earlier one; gives a table that prints as a line:
-- time_saved and memory_saved in percent, speed_up as a factor.
function Measure:compared_to(before)
  if getmetatable(before) ~= Measure or before.began or self.began then
    caller.raise("compared_to: wanted two measurements that have ended")
  end
  return setmetatable({
    time_saved = (1 - self.seconds / before.seconds) * 100,
    speed_up = before.seconds / self.seconds,
    memory_saved = (1 - self.peak_bytes / before.peak_bytes) * 100,
  }, {__tostring = function(c)
    return ("%.2f%% less time (%.3f times as fast), %.2f%% less memory")
      :format(c.time_saved, c.speed_up, c.memory_saved)
  end})
end

local function run(device, fn, ...)
  if fn == nil then return begin(device) end
  local m = begin(device)
  local results = table.pack(fn(...))
  m:stop()
  for i = 1, results.n do m[i] = results[i] end
  m.n = results.n
  return m
end

-- measure(fn, ...) runs fn(...) from a clean start (garbage collected, cache
-- given back, peak reset) and returns {seconds =, peak_bytes =, start_bytes =,
-- device =, what fn returned at 1 to n}. Without fn: a scope that measures until it
-- is closed or stop() is called. peak_bytes is all that the device held at the
-- highest moment, start_bytes what it held before. measure({device = "cuda:1"},
-- fn, ...) names the device, else it is the one where tensors are made that name
-- none. Errors of fn pass; raises on an unknown device.
local function measure(first, ...)
  local meta = getmetatable(first)
  if type(first) ~= "table" or meta and meta.__call then
    return run(core.get_default_device(), first, ...)
  end
  return run(bind(first).device or core.get_default_device(), ...)
end

return measure
