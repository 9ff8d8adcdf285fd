-- Trains a small CNN on Fashion-MNIST, in mixed precision on the CPU unless
-- told otherwise. `scripts/run scripts/fashion_mnist.lua --help` lists the options.

local dm = require "demilune"
local argparse = require "argparse"
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data

local parser = argparse("fashion_mnist.lua", "Train a small CNN on Fashion-MNIST.")
parser:option("--dtype", "what matrix products and convolutions compute in")
  :choices{"float32", "bfloat16", "float16"}:default "bfloat16"
local function number(name, convert, default, about)
  parser:option("--" .. name, about):convert(convert):default(default)
end
number("epochs", math.tointeger, "5", "passes over the 60,000 pictures")
number("batch", math.tointeger, "128", "pictures in a step")
number("lr", tonumber, "5e-3", "highest learning rate of the one-cycle schedule")
number("seed", math.tointeger, "1", "of the weights and of the order of the data")
number("workers", math.tointeger, "1", "threads that prepare batches")
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--data", "folder with the four IDX files"):default(nil)
parser:option("--save", "where the checkpoint goes"):default "fashion.safetensors"
parser:option("--resume", "go on from this checkpoint"):argname "FILE"
local args = parser:parse()

local half = args.dtype ~= "float32"
dm.manual_seed(args.seed)

local function dataset(train)
  return assert(dm.datasets.FashionMNIST(args.data, {train = train}))
end
local train = data.DataLoader(dataset(true), {batch_size = args.batch, shuffle = true,
  drop_last = true, num_workers = args.workers, seed = args.seed, device = args.device})
local test = data.DataLoader(dataset(false),
  {batch_size = 1000, num_workers = args.workers, device = args.device})

local model = nn.Sequential{
  nn.Conv2d(1, 16, 3, {padding = 1, bias = false}), nn.BatchNorm2d(16), nn.ReLU(),
  nn.MaxPool2d(2),
  nn.Conv2d(16, 32, 3, {padding = 1, bias = false}), nn.BatchNorm2d(32), nn.ReLU(),
  nn.MaxPool2d(2),
  nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10),
}:to(args.device)
local criterion = nn.CrossEntropyLoss()
local optimizer = optim.AdamW(model:parameters(), {lr = args.lr, weight_decay = 1e-2})
local schedule = optim.lr_scheduler.OneCycleLR(optimizer, args.lr,
  {total_steps = args.epochs * #train})
local scaler = amp.GradScaler{device = args.device, enabled = args.dtype == "float16"}

local region = {
  device_type = args.device, enabled = half, dtype = half and args.dtype or nil,
}
local function forward(x)
  return amp.autocast(region, function() return model(x) end)
end

local function accuracy()
  model:eval()
  local right, total = 0, 0
  dm.no_grad(function()
    for _, x, y in test:iter() do
      local _ <close> = dm.scope()
      right = right + forward(x):argmax(-1):eq(y):sum():item()
      total = total + #y
    end
  end)
  model:train()
  return 100 * right / total
end

local first = 1
local function state(epoch)
  return {
    model = model:state_dict(), optimizer = optimizer:state_dict(),
    schedule = schedule:state_dict(), scaler = scaler:state_dict(),
    loader = train:state_dict(), rng = dm.get_rng_state(), epoch = epoch,
  }
end
if args.resume then
  local saved = assert(dm.load(args.resume))
  model:load_state_dict(saved.model)
  optimizer:load_state_dict(saved.optimizer)
  schedule:load_state_dict(saved.schedule)
  if scaler:is_enabled() then scaler:load_state_dict(saved.scaler) end
  train:load_state_dict(saved.loader)
  dm.set_rng_state(saved.rng)
  first = saved.epoch + 1
  print(("resumed %s after epoch %d"):format(args.resume, saved.epoch))
end

print(model)
print(("seed %d, %s, batch %d, %s, %d threads"):format(args.seed, args.dtype, args.batch,
  args.device, dm.get_num_threads()))

local function epoch(n)
  local sum, count = 0, 0
  for _, x, y in dm.progress(train, {desc = ("epoch %d/%d"):format(n, args.epochs)}) do
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    local loss = criterion(forward(x), y)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    schedule:step()
    local value = loss:item()
    sum, count = sum + value, count + 1
    dm.progress.set{loss = value, samples = #x}
  end
  return sum / count
end

local ok, problem = xpcall(function()
  for n = first, args.epochs do
    dm.reset_peak_memory_stats(args.device)
    local loss = epoch(n)
    print(("epoch %d: train loss %.4f, test accuracy %.2f %%, peak memory %.1f MiB"):format(
      n, loss, accuracy(), dm.max_memory_allocated(args.device) / 2^20))
    assert(dm.save(args.save, state(n)))
    print(("saved %s"):format(args.save))
  end
end, function(e)
  return tostring(e):find "interrupted!" and "interrupted" or debug.traceback(e, 2)
end)
if not ok then
  local stopped = problem == "interrupted" -- Ctrl-C
  io.stderr:write("\n", problem, stopped and "; the last checkpoint is whole\n" or "\n")
  os.exit(stopped and 130 or 1, true)
end
