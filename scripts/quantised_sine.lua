-- A convolutional network that learns a quantised sine wave, in float32 and in
-- mixed precision: time, loss and memory of both, and an image of what they
-- learned. `scripts/run scripts/quantised_sine.lua --help` lists the options.
--
-- The workload is that of AMD's article "Automatic mixed precision in PyTorch
-- using AMD GPUs": 1x1 convolutions on a grid of coordinates, hidden 256, on
-- 512x512 points, 512 steps of Adam. loadfile(path)("workload") gives its parts.

local dm = require "demilune"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local sine = {}

-- The input (1,2,size,size), the column and the row of each point as 0..1, and
-- the target (1,1,size,size): cos(2 pi 4 x) + cos(2 pi 2 y) in four levels
-- 0, 1/3, 2/3, 1. In float64 until the end, so that the levels are exact.
function sine.problem(size, device)
  local axis = dm.linspace(0, 1, size, {dtype = "float64"})
  local x, y = dm.meshgrid(axis, axis, {indexing = "xy"})
  local wave = (8 * math.pi * x):cos() + (4 * math.pi * y):cos()
  local low, high = wave:min():item(), wave:max():item()
  local edges = low + (high - low) / 4 * dm.arange(0, 3, 1, {dtype = "float64"})
  local level = dm.bucketize(wave, edges, {right = true}) - 2
  return dm.stack{x, y}:unsqueeze(1):to{dtype = "float32", device = device},
    (level / 3):reshape(1, 1, size, size):to{dtype = "float32", device = device}
end

-- 134,145 parameters at hidden 256.
function sine.model(hidden, device)
  local layers = {}
  for _, channels in ipairs{2, hidden, hidden} do
    layers[#layers + 1] = nn.Conv2d(channels, hidden, 1)
    layers[#layers + 1] = nn.BatchNorm2d(hidden)
    layers[#layers + 1] = nn.ReLU()
  end
  layers[#layers + 1] = nn.Conv2d(hidden, 1, 1)
  return nn.Sequential(layers):to(device)
end

-- Calls fn and gives {seconds =, bytes =}, the time it took and the most memory
-- that tensors held at once, and what fn returns.
function sine.measured(device, fn)
  collectgarbage()
  dm.empty_cache(device)
  dm.reset_peak_memory_stats(device)
  dm.synchronize(device)
  local start = dm.now()
  local result = fn()
  dm.synchronize(device)
  return {seconds = dm.now() - start, bytes = dm.max_memory_allocated(device)}, result
end

local function region(o, dtype)
  local half = dtype ~= "float32"
  return {device_type = o.device, enabled = half, dtype = half and dtype or nil}
end

-- Trains a new model for o.steps steps; -> {seconds =, bytes =, loss =}, and the
-- last output as float32. o.each(step, loss), if given, is called after each step.
function sine.train(o, dtype, input, target)
  dm.manual_seed(o.seed)
  local model = sine.model(o.hidden, o.device)
  local criterion = nn.MSELoss()
  local optimizer = optim.Adam(model:parameters(), {lr = 1e-3})
  local scaler = amp.GradScaler{device = o.device, enabled = dtype == "float16"}
  local cast = region(o, dtype)
  local measure, last = sine.measured(o.device, function()
    local last
    for step = 1, o.steps do
      local _ <close> = dm.scope()
      optimizer:zero_grad()
      local output, loss
      do
        local _ <close> = amp.autocast(cast)
        output = model(input)
        loss = criterion(output, target)
      end
      scaler:scale(loss):backward()
      scaler:step(optimizer)
      scaler:update()
      if o.each then o.each(step, loss) end
      if step == o.steps then last = dm.keep{loss = loss:detach(), output = output:detach()} end
    end
    return last
  end)
  measure.loss = last.loss:item()
  return measure, last.output:float()
end

-- o.forwards forward passes of a new model; -> {seconds =, bytes =}. `keep`:
-- as in the article, whose inference records for a backward that never comes,
-- and holds one output, with its graph, until the next is there.
function sine.infer(o, dtype, input, keep)
  dm.manual_seed(o.seed)
  local model = sine.model(o.hidden, o.device)
  local cast = region(o, dtype)
  return (sine.measured(o.device, function()
    local _ <close> = not keep and dm.no_grad() or nil
    local output
    for _ = 1, o.forwards do
      local next_one = dm.scope(function()
        return amp.autocast(cast, function() return model(input) end)
      end)
      if output then output:free() end -- and the graph that it holds
      output = next_one
    end
    if output then output:free() end
  end))
end

if ... == "workload" then return sine end

-- ---- the program ----

local argparse = require "argparse"

local parser = argparse("quantised_sine.lua",
  "Trains a convolutional network on a quantised sine wave, in float32 and in mixed "
  .. "precision, and compares the two. The defaults suit a CPU: about a minute on two cores. "
  .. "The original workload is --size 512 --hidden 256: on two cores some five seconds "
  .. "a step, and 2.1 GB of memory.")
local function number(name, default, about)
  parser:option("--" .. name, about):convert(math.tointeger):default(default)
end
number("size", "128", "points on a side of the grid")
number("hidden", "64", "channels of the hidden layers")
number("steps", "512", "training steps of each model")
number("forwards", "32", "forward passes of the inference test")
number("seed", "0", "of the weights")
parser:option("--dtype", "of mixed precision; float16 on cuda, bfloat16 on the CPU")
  :choices{"bfloat16", "float16"}
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--output", "image of target, float32 and mixed precision, side by side")
  :default "quantised_sine.png"
local args = parser:parse()
args.dtype = args.dtype or args.device == "cpu" and "bfloat16" or "float16"

local function mib(bytes) return ("%.1f MiB"):format(bytes / 2 ^ 20) end

-- A row of the table; the last column says by how much mixed precision is lower.
local function row(name, full, half, format, gain)
  print(("  %-22s %12s %12s   %s"):format(name, format(full), format(half),
    gain and ("%s %.2f %%"):format(gain, (1 - half / full) * 100) or ""))
end

local function compare(title, full, half)
  print(("\n%-24s %12s %12s"):format(title, "float32", args.dtype))
  row("time", full.seconds, half.seconds, function(s) return ("%.2f s"):format(s) end, "speed-up")
  if full.loss then
    row("loss", full.loss, half.loss, function(v) return ("%.4g"):format(v) end)
  end
  row("peak memory", full.bytes, half.bytes, mib, "saving")
end

local input, target = sine.problem(args.size, args.device)
local counts = {}
for level = 0, 3 do counts[level + 1] = (target * 3):round():eq(level):sum():item() end
print(("target: %d x %d points, %s on the four levels, mean %.5f, variance %.5f"):format(args.size,
  args.size, table.concat(counts, " "), target:mean():item(),
  target:var(nil, {correction = 0}):item()))
local parameters = 0
for _, p in ipairs(sine.model(args.hidden):parameters()) do parameters = parameters + p:numel() end
print(("model: %d parameters; %d steps, seed %d, %s"):format(parameters, args.steps, args.seed,
  args.device))

local full, full_output = sine.train(args, "float32", input, target)
local half, half_output = sine.train(args, args.dtype, input, target)
compare("training", full, half)
local images = {target, full_output, half_output}
for i, x in ipairs(images) do images[i] = x[1] end
local saved, problem = dm.save_image(images, args.output, {padding = 4, pad_value = 1})
full_output, half_output = nil, nil -- luacheck: ignore (memory is measured below)

compare(("inference, %d passes"):format(args.forwards), sine.infer(args, "float32", input),
  sine.infer(args, args.dtype, input))
compare("the same, recording", sine.infer(args, "float32", input, true),
  sine.infer(args, args.dtype, input, true))
print(saved and "\nsaved " .. args.output or "\nno image: " .. problem)
