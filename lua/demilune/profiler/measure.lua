-- Seconds and peak memory of a piece of work, and how two of them compare.

local core = require "demilune.core"
local caller = require "demilune.caller"

local Measure = {__name = "demilune.Measure"}
Measure.__index = Measure

local function begin()
  collectgarbage()
  collectgarbage() -- what the first one's finalizers let go of
  core.empty_cache()
  core.synchronize()
  core.reset_peak_memory_stats()
  return setmetatable({start_bytes = core.memory_allocated(), began = core.now()}, Measure)
end

-- Ends it, once. The clock stops after the device has done all it was given.
function Measure:stop()
  if not self.began then return self end
  core.synchronize()
  self.seconds = core.now() - self.began
  self.peak_bytes = core.max_memory_allocated()
  self.began = nil
  return self
end
function Measure:__close() self:stop() end

function Measure:__tostring()
  if self.began then return "a measurement under way" end
  return ("%.4f s, peak %.4g MiB"):format(self.seconds, self.peak_bytes / 2^20)
end

-- How this one compares with an earlier one, as a table that prints as a line:
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

-- measure(fn, ...) runs fn(...) from a clean start (garbage collected, cache
-- given back, peak reset) and returns {seconds =, peak_bytes =, start_bytes =,
-- what fn returned at 1 to n}. Without fn: a scope that measures until it is
-- closed or stop() is called. peak_bytes is all that was allocated at the
-- highest moment, start_bytes what was allocated before. Errors of fn pass.
local function measure(fn, ...)
  if fn == nil then return begin() end
  local m = begin()
  local results = table.pack(fn(...))
  m:stop()
  for i = 1, results.n do m[i] = results[i] end
  m.n = results.n
  return m
end

return measure
