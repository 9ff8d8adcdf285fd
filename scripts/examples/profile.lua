-- The profiler's table: the time of each op, casts included.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, amp = dm.nn, dm.amp

local args = task.options("Where the time goes.", "bfloat16", function(parser)
  parser:option("--sort_by", "column that the table falls by"):default "cpu_time_total"
end)
local model = task.model(args.device)
local criterion = nn.CrossEntropyLoss()
local inputs = dm.randn(256, task.features, {device = args.device})
local labels = dm.randint(task.classes, {256}, {device = args.device})

local prof
do
  local recording <close> = dm.profiler.profile{record_shapes = true}
  local loss = amp.autocast({device_type = args.device, dtype = args.dtype, enabled = args.amp},
    function() return criterion(model(inputs), labels) end)
  loss:backward()
  prof = recording
end

print(prof:key_averages():table{sort_by = args.sort_by, row_limit = 12})
