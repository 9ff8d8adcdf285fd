-- demilune.profiler: where the time and the memory go.

local profiler = {}

profiler.measure = require "demilune.profiler.measure"

return profiler
