-- Shared by the examples of this folder: the options --device, --dtype and
-- --seed, and a small problem that any of them learns within a second on a CPU:
-- to tell four clouds of points in 20 dims apart. Data stay float32.

local dm = require "demilune"
local argparse = require "argparse"
local nn, data = dm.nn, dm.data

local task = {features = 20, classes = 4}

-- The options, of which `add(parser)` may define more; seeds the generators.
-- args.amp: whether dtype is a 16-bit one. `dtype` is the default.
function task.options(about, dtype, add)
  local parser = argparse(arg[0]:match "[^/]*$", about)
  parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
  parser:option("--dtype", "of autocast; float32 switches it off")
    :choices{"float32", "bfloat16", "float16"}:default(dtype)
  parser:option("--seed", "of the weights"):convert(math.tointeger):default "1"
  if add then add(parser) end
  local args = parser:parse()
  args.amp = args.dtype ~= "float32"
  dm.manual_seed(args.seed)
  return args
end

-- The points, 512 of them, in batches; labels count from 1.
function task.loader(batch_size)
  local rng = dm.get_rng_state()
  dm.manual_seed(0)
  local labels = dm.randint(task.classes, {512})
  local centers = dm.randn(task.classes, task.features)
  local points = centers:index_select(1, labels) + 0.8 * dm.randn(512, task.features)
  dm.set_rng_state(rng)
  return data.DataLoader(data.TensorDataset(points, labels),
    {batch_size = batch_size or 64, shuffle = true, seed = 0})
end

function task.model(device)
  return nn.Sequential{
    nn.Linear(task.features, 64), nn.ReLU(), nn.Linear(64, task.classes),
  }:to(device)
end

return task
