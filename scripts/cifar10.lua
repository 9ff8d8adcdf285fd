-- Trains a ResNet-18, or a vision transformer (scripts/vit.lua), on CIFAR-10, plain
-- (float32) or in mixed precision. `scripts/run scripts/cifar10.lua --help` lists the options.
--
-- Four recipes. "printed" is the script that tutorials print: the network as for
-- large pictures (a 7x7 convolution of stride 2, then a max pool), no augmentation,
-- one learning rate. "usual" is what published accuracies near 95 % come from:
-- a 3x3 convolution first, random crops and mirror images, a cosine schedule. "strong" adds
-- RandAugment and erased boxes, for longer runs. "vit" is "usual" with a small transformer
-- of patches of 4x4 and AdamW. --mixup and --cutmix go with any of them.

local dm = require "demilune"
local argparse = require "argparse"
local nn, optim, amp, data, transforms = dm.nn, dm.optim, dm.amp, dm.data, dm.transforms

local RECIPES = {
  printed = {epochs = 50, weight_decay = 1e-4, mean = {0.5, 0.5, 0.5}, std = {0.5, 0.5, 0.5}},
  usual = {epochs = 100, weight_decay = 5e-4, mean = {0.4914, 0.4822, 0.4465},
    std = {0.2470, 0.2435, 0.2616}, small_stem = true, augment = true, schedule = true},
}
RECIPES.strong = {epochs = 200, strong = true}
for key, value in pairs(RECIPES.usual) do
  if RECIPES.strong[key] == nil then RECIPES.strong[key] = value end
end
RECIPES.vit = {epochs = 100, weight_decay = 5e-2, mean = RECIPES.usual.mean,
  std = RECIPES.usual.std, augment = true, schedule = true, lr = 1e-3}

local parser = argparse("cifar10.lua", "Train a ResNet-18 or a vision transformer on CIFAR-10.")
parser:option("--dtype", "what matrix products and convolutions compute in")
  :choices{"float32", "bfloat16", "float16"}:default "float16"
parser:option("--recipe", "how the network begins, what is done to pictures, and the schedule")
  :choices{"printed", "usual", "strong", "vit"}:default "printed"
local function number(name, convert, default, about)
  parser:option("--" .. name, about):convert(convert):default(default)
end
number("epochs", math.tointeger, nil, "passes over the pictures; 50 printed, 200 strong, else 100")
number("batch", math.tointeger, "128", "pictures in a step")
number("lr", tonumber, nil, "learning rate, or the first one of the schedule; 0.1, vit 0.001")
number("layers", math.tointeger, "6", "blocks of a vit")
number("width", math.tointeger, "192", "numbers that a patch is made of in a vit, 64 a head")
number("seed", math.tointeger, "1", "of the weights and of the order of the data")
number("workers", math.tointeger, "4", "threads that prepare batches")
number("mixup", tonumber, nil, "blend pictures and labels by shares of Beta(this, this)")
number("cutmix", tonumber, nil, "paste boxes of the next picture, of shares of Beta(this, this)")
number("batches", math.tointeger, "5", "so many of the five training files are read")
number("limit", math.tointeger, nil, "so many pictures of training and test, for a try")
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--data", "folder with the files of CIFAR-10's binary version"):default(nil)
parser:option("--save", "where the checkpoint goes"):default "cifar10.safetensors"
parser:option("--resume", "go on from this checkpoint"):argname "FILE"
local args = parser:parse()

local recipe = RECIPES[args.recipe]
local epochs = args.epochs or recipe.epochs
local half = args.dtype ~= "float32"
dm.manual_seed(args.seed)

local function stop(problem)
  io.stderr:write(problem, "\n")
  os.exit(1, true)
end

-- ---- pictures ----

local function transform(augment)
  local steps = {transforms.ToTensor(), transforms.Normalize(recipe.mean, recipe.std)}
  if augment then
    table.insert(steps, 1, transforms.RandomCrop(32, {padding = 4}))
    table.insert(steps, 2, transforms.RandomHorizontalFlip())
  end
  if augment and recipe.strong then
    table.insert(steps, 3, transforms.RandAugment())
    table.insert(steps, transforms.RandomErasing{p = 0.25})
  end
  return transforms.Compose(steps)
end

local function dataset(train, augment)
  local set, problem = dm.datasets.CIFAR10(args.data,
    {train = train, batches = args.batches, transform = transform(augment)})
  if set and args.limit and args.limit < #set then
    set = data.Subset(set, dm.arange(1, args.limit))
  end
  return set, problem
end

local pictures, missing = dataset(true, recipe.augment)
if not pictures then stop(missing) end
local train = data.DataLoader(pictures, {batch_size = args.batch, shuffle = true,
  num_workers = args.workers, seed = args.seed, device = args.device})

-- What mixes a batch on its way to the network: one of those asked for, drawn each time.
local mixers = {}
if args.mixup then mixers[1] = transforms.MixUp{alpha = args.mixup, num_classes = 10} end
if args.cutmix then
  mixers[#mixers + 1] = transforms.CutMix{alpha = args.cutmix, num_classes = 10}
end
local function mixed(x, y)
  if #mixers == 0 then return x, y end
  return mixers[#mixers == 1 and 1 or dm.randint(1, 3, {1}, {device = "cpu"}):item()](x, y)
end

-- A try with a part of the training files may do without the test's: accuracy is
-- then measured on the training pictures.
local measured, held_out, without = "test", dataset(false)
if not held_out then
  if args.batches == 5 then stop(without) end
  print(without)
  measured, held_out = "training", assert(dataset(true))
end
local test = data.DataLoader(held_out,
  {batch_size = 500, num_workers = args.workers, device = args.device})

-- ---- the network and what trains it ----

local model, optimizer
if args.recipe == "vit" then
  model = dm.models.vit_s_16{image_size = 32, patch_size = 4, num_classes = 10, dropout = 0.1,
    num_layers = args.layers, hidden_dim = args.width, num_heads = math.max(1, args.width // 64),
    mlp_dim = 4 * args.width}:to(args.device)
  optimizer = optim.AdamW(model:parameters(),
    {lr = args.lr or recipe.lr, weight_decay = recipe.weight_decay})
else
  model = dm.models.resnet18{num_classes = 10, small_stem = recipe.small_stem}:to(args.device)
  optimizer = optim.SGD(model:parameters(),
    {lr = args.lr or 0.1, momentum = 0.9, weight_decay = recipe.weight_decay})
end
local criterion = nn.CrossEntropyLoss()
local schedule = recipe.schedule and optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
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

-- ---- checkpoints ----

local first = 1
local function state(epoch)
  return {
    recipe = args.recipe, model = model:state_dict(), optimizer = optimizer:state_dict(),
    schedule = schedule and schedule:state_dict(), scaler = scaler:state_dict(),
    loader = train:state_dict(), rng = dm.get_rng_state(), epoch = epoch,
  }
end
if args.resume then
  local saved, problem = dm.load(args.resume)
  if not saved then stop(problem) end
  if saved.recipe ~= args.recipe then
    stop(("%s is of the recipe '%s'; hint: --recipe %s"):format(args.resume, saved.recipe,
      saved.recipe))
  end
  model:load_state_dict(saved.model)
  optimizer:load_state_dict(saved.optimizer)
  if schedule then schedule:load_state_dict(saved.schedule) end
  if scaler:is_enabled() then scaler:load_state_dict(saved.scaler) end
  train:load_state_dict(saved.loader)
  dm.set_rng_state(saved.rng)
  first = saved.epoch + 1
  print(("resumed %s after epoch %d"):format(args.resume, saved.epoch))
end

-- ---- the loop ----

print(("%s, recipe '%s': %s, %s, %s"):format(args.recipe == "vit" and "ViT" or "ResNet-18",
  args.recipe, args.recipe == "vit" and ("%d blocks of %d"):format(args.layers, args.width)
    or recipe.small_stem and "3x3 stem" or "7x7 stem and max pool",
  recipe.augment and "crops and mirror images" .. (recipe.strong and ", RandAugment" or "")
    or "no augmentation",
  recipe.schedule and "cosine schedule" or "one learning rate"))
print(("%d pictures, seed %d, %s, batch %d, %s, %d threads"):format(#pictures, args.seed,
  args.dtype, args.batch, args.device, dm.get_num_threads()))

local function epoch(n)
  local running_loss = 0.0
  for _, x, y in dm.progress(train, {desc = ("epoch %d/%d"):format(n, epochs)}) do
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    local pictures_in, labels = mixed(x, y)
    local loss = criterion(forward(pictures_in), labels)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    local value = loss:item()
    running_loss = running_loss + value
    dm.progress.set{loss = value, samples = #x}
  end
  if schedule then schedule:step() end
  return running_loss / #train
end

local ok, problem = xpcall(function()
  for n = first, epochs do
    dm.reset_peak_memory_stats(args.device)
    local loss = epoch(n)
    local peak = dm.max_memory_allocated(args.device) / 2^20
    print(("Epoch %d: loss = %.4f, %s accuracy %.2f %%, peak memory %.1f MiB"):format(n, loss,
      measured, accuracy(), peak))
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
