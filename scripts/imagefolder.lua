-- Trains a classifier on one's own pictures: a folder with a folder of JPEG or PNG files for
-- each class. `scripts/run scripts/imagefolder.lua --help` lists the options.
--
-- Where DIR has a folder `train`, that is trained on, and `val` or `test`, if there is one,
-- is for the accuracy; otherwise a fifth of the pictures is put aside for it. Threads read,
-- decode, resize, crop and mirror the pictures while the model works.

local dm = require "demilune"
local argparse = require "argparse"
local nn, optim, amp, data, transforms = dm.nn, dm.optim, dm.amp, dm.data, dm.transforms

local parser = argparse("imagefolder.lua", "Train a classifier on folders of pictures.")
parser:option("--data", "a folder with a folder of pictures for each class, or with train and "
  .. "val of that kind"):args(1)
parser:option("--model", "the network"):choices{"cnn", "resnet18"}:default "cnn"
parser:option("--dtype", "what matrix products and convolutions compute in")
  :choices{"float32", "bfloat16", "float16"}:default "float32"
local function number(name, convert, default, about)
  parser:option("--" .. name, about):convert(convert):default(default)
end
number("size", math.tointeger, "64", "side of the square that the network sees")
number("epochs", math.tointeger, "10", "passes over the pictures")
number("batch", math.tointeger, "64", "pictures in a step")
number("lr", tonumber, "0.001", "the first learning rate of a cosine schedule, for AdamW")
number("seed", math.tointeger, "1", "of the weights, the split and the order of the data")
number("workers", math.tointeger, "2", "threads that prepare batches")
number("limit", math.tointeger, nil, "so many pictures of training and of test, for a try")
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--save", "where the weights go, as safetensors"):default(nil)
local args = parser:parse()
dm.manual_seed(args.seed)

local function stop(problem)
  io.stderr:write(problem, "\n")
  os.exit(1, true)
end
if not args.data then stop "--data DIR is wanted; --help tells more" end

-- ---- pictures ----

local to_floats = transforms.Compose{transforms.ToTensor(), transforms.Normalize(0.5, 0.25)}
local augmented = transforms.Compose{transforms.Resize(args.size),
  transforms.RandomCrop(args.size, {padding = args.size // 8}),
  transforms.RandomHorizontalFlip(), to_floats}
local plain = transforms.Compose{transforms.Resize(args.size), transforms.CenterCrop(args.size),
  to_floats}

local function folder(path, transform)
  local set, problem = dm.datasets.ImageFolder(path, {transform = transform})
  return set or stop(problem)
end

local function exists(path)
  local f = io.open(path)
  return f and f:close()
end

-- A part of the pictures of a folder, and the rest without chance.
local function split_folder(path)
  local all, shares = folder(path, augmented), {0.8, 0.2}
  local train = data.random_split(all, shares, {seed = args.seed})
  local _, test = data.random_split(folder(path, plain), shares, {seed = args.seed})
  return all.classes, train, test
end

-- The classes, a set to train on and one to test on.
local function sets(root)
  local train_path = root .. "/train"
  if not exists(train_path) then return split_folder(root) end
  for _, name in ipairs{"val", "test"} do
    local path = ("%s/%s"):format(root, name)
    if exists(path) then
      local train, test = folder(train_path, augmented), folder(path, plain)
      if table.concat(train.classes, "/") ~= table.concat(test.classes, "/") then
        stop(("'%s' and '%s' have folders of other names"):format(train_path, path))
      end
      return train.classes, train, test
    end
  end
  return split_folder(train_path)
end

local function limited(set)
  if not args.limit or args.limit >= #set then return set end
  return (data.random_split(set, {args.limit, #set - args.limit}, {seed = args.seed}))
end

local function loader(set, shuffle)
  return data.DataLoader(limited(set), {batch_size = args.batch, shuffle = shuffle,
    num_workers = args.workers, seed = args.seed, device = args.device})
end

local classes, train_set, test_set = sets(args.data)
local train, test = loader(train_set, true), loader(test_set, false)

-- ---- the network and what trains it ----

local function cnn(n_classes)
  local function block(inputs, outputs)
    return nn.Sequential{nn.Conv2d(inputs, outputs, 3, {padding = 1, bias = false}),
      nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)}
  end
  return nn.Sequential{block(3, 32), block(32, 64), block(64, 128), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, n_classes)}
end

local model = (args.model == "cnn" and cnn(#classes) or dm.models.resnet18{
  num_classes = #classes, small_stem = args.size <= 64}):to(args.device)
local optimizer = optim.AdamW(model:parameters(), {lr = args.lr, weight_decay = 0.05})
local schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
local scaler = amp.GradScaler{device = args.device, enabled = args.dtype == "float16"}
local half = args.dtype ~= "float32"
local region = {device_type = args.device, enabled = half, dtype = half and args.dtype or nil}
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

local function epoch(n)
  local running_loss = 0.0
  for _, x, y in dm.progress(train, {desc = ("epoch %d/%d"):format(n, args.epochs)}) do
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    local loss = nn.functional.cross_entropy(forward(x), y)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    running_loss = running_loss + loss:item()
    dm.progress.set{loss = loss:item(), samples = #x}
  end
  schedule:step()
  return running_loss / #train
end

print(("%s: %d classes, %d pictures to train on and %d to test on"):format(args.data, #classes,
  train.n_samples, test.n_samples))
print(("%s, %d x %d, seed %d, %s, batch %d, %s, %d workers"):format(args.model, args.size,
  args.size, args.seed, args.dtype, args.batch, args.device, args.workers))
for n = 1, args.epochs do
  local start = dm.now()
  local loss = epoch(n)
  local rate = train.n_samples / (dm.now() - start)
  print(("Epoch %d: loss = %.4f, test accuracy %.2f %%, %.0f pictures/s"):format(n, loss,
    accuracy(), rate))
end
if args.save then
  local ok, problem = dm.save(args.save, model:state_dict())
  if not ok then stop(problem) end
  print(("saved %s"):format(args.save))
end
