-- The work of a GradScaler: it repairs underflow, backs off from a scale that
-- overflows, skipping the step, and grows again when all goes well.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local dm = require "demilune"
local task = require "task"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local args = task.options("What a GradScaler does.", "float16", function(parser)
  parser:option("--init_scale", "first scale factor"):convert(tonumber):default "1048576"
  parser:option("--growth_interval", "good steps before it grows"):convert(math.tointeger)
    :default "4"
end)

-- A gradient of 1e-8 is nothing in float16; times the scale it is there.
local tiny = dm.tensor(1e-8)
print(("1e-8 in float16: %g; scaled by 1024 and back: %g; by 65536: %g"):format(tiny:half():item(),
  ((tiny * 1024):half():float() / 1024):item(), ((tiny * 65536):half():float() / 65536):item()))

local model, loader = task.model(args.device), task.loader()
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
local scaler = amp.GradScaler{
  device = args.device,
  init_scale = args.init_scale,           -- 2^16 unless given; too high a one corrects itself
  growth_factor = 2.0,                    -- times this when no gradient was inf or NaN ...
  backoff_factor = 0.5,                   -- and times this when one was
  growth_interval = args.growth_interval, -- ... for so many steps in a row (2000)
  enabled = args.amp,
}
local region = {device_type = args.device, dtype = args.dtype, enabled = args.amp}

local step = 0
for _ = 1, 2 do
  for _, inputs, labels in loader:iter() do
    local _ <close> = dm.scope()
    local scale, before = scaler:get_scale(), model[1].weight:clone()
    optimizer:zero_grad()
    local loss = amp.autocast(region, function()
      return criterion(model(inputs:to(args.device)), labels:to(args.device))
    end)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    step = step + 1
    print(("step %2d: scale %7.0f, %s, %s weights, loss %.4f"):format(step, scale,
      scaler:skipped(optimizer) and "skipped" or "stepped",
      model[1].weight:equal(before) and "same" or "new", loss:item()))
  end
end
local stats = scaler:stats()
print(("%d steps, %d skipped, scale %.0f"):format(stats.steps, stats.skipped, stats.scale))
