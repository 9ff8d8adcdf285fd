-- Trains a ResNet-18, or a vision transformer (scripts/vit.lua), on CIFAR-10, plain
-- (float32) or in mixed precision. `scripts/run scripts/cifar10.lua --help` lists the options;
-- `scripts/run -n 2 scripts/cifar10.lua` trains it in two processes.
--
-- Four recipes. "printed" is the script that tutorials print: the network as for
-- large images (a 7x7 convolution of stride 2, then a max pool), no augmentation,
-- one learning rate. "usual" is what published accuracies near 95 % come from:
-- a 3x3 convolution first, random crops and mirror images, a cosine schedule. "strong" adds
-- RandAugment and erased boxes, for longer runs. "vit" is "usual" with a small transformer
-- of patches of 4x4 and AdamW. --mixup and --cutmix go with any of them.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local nn, optim, data, transforms = dm.nn, dm.optim, dm.data, dm.transforms
local stop = command_line.stop

---@type table<string, table>
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

local parser, number = command_line.parser("cifar10.lua",
  "Train a ResNet-18 or a vision transformer on CIFAR-10.")
command_line.precision(parser, "float16")
parser:option("--recipe", "how the network begins, what is done to images, and the schedule")
  :choices{"printed", "usual", "strong", "vit"}:default "printed"
number("epochs", math.tointeger, nil, "passes over the images; 50 printed, 200 strong, else 100")
number("batch", math.tointeger, "128", "images in a step, of all processes")
number("lr", tonumber, nil, "learning rate, or the first one of the schedule; 0.1, vit 0.001")
number("layers", math.tointeger, "6", "blocks of a vit")
number("width", math.tointeger, "192", "numbers that a patch is made of in a vit, 64 a head")
number("seed", math.tointeger, "1", "of the weights and of the order of the data")
number("workers", math.tointeger, "4", "threads that prepare batches")
number("mixup", tonumber, nil, "blend images and labels by shares of Beta(this, this)")
number("cutmix", tonumber, nil, "paste boxes of the next image, of shares of Beta(this, this)")
number("batches", math.tointeger, "5", "so many of the five training files are read")
number("limit", math.tointeger, nil, "so many images of training and test, for a try")
parser:option("--data", "folder with the files of CIFAR-10's binary version"):default(nil)
parser:option("--save", "where the checkpoint goes"):default "cifar10.safetensors"
parser:option("--resume", "go on from this checkpoint"):argname "FILE"
local args = command_line.parse(parser)
local n_rank = command_line.ranks(args)

local recipe = RECIPES[args.recipe]
local epochs = args.epochs or recipe.epochs

-- ---- images ----

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

local images, missing = dataset(true, recipe.augment)
if not images then stop(missing) end
local share = n_rank > 1 and data.DistributedSampler(images, {seed = args.seed}) or nil
local train = data.DataLoader(images, {batch_size = args.batch // n_rank, shuffle = not share,
  sampler = share, num_workers = args.workers, seed = args.seed, device = args.device})

-- MixUp, CutMix, or one of the two drawn at random for each batch.
local mixers = {}
if args.mixup then mixers[1] = transforms.MixUp{alpha = args.mixup, num_classes = 10} end
if args.cutmix then
  mixers[#mixers + 1] = transforms.CutMix{alpha = args.cutmix, num_classes = 10}
end
local function mixed(x, y)
  return mixers[#mixers == 1 and 1 or dm.randint(2, {1}, {device = "cpu"}):item()](x, y)
end

-- A trial with some of the training files may lack the test file: the accuracy is then
-- measured on the training images.
local measured, held_out, without = "test", dataset(false)
if not held_out then
  if args.batches == 5 then stop(without) end
  command_line.say(without)
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

local trained = n_rank > 1 and nn.parallel.DistributedDataParallel(model) or model

local function check_recipe(_, saved)
  if saved.recipe ~= args.recipe then
    stop(("%s is of the recipe '%s'; hint: --recipe %s"):format(args.resume, saved.recipe,
      saved.recipe))
  end
end

local trainer = dm.Trainer{
  model = trained, loss = nn.CrossEntropyLoss(), optimizer = optimizer,
  schedule = recipe.schedule and optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs) or nil,
  schedule_every = "epoch",
  batch_transform = #mixers > 0 and mixed or nil,
  device = args.device, amp = args.dtype, metrics = {accuracy = dm.metrics.Accuracy()},
  checkpoint = args.save,
  callbacks = {
    on_load_checkpoint = check_recipe,
    on_save_checkpoint = function(_, state) state.recipe = args.recipe end,
    on_epoch_begin = function() dm.reset_peak_memory_stats(args.device) end,
    on_train_epoch_end = function(_, values)
      values.peak = dm.max_memory_allocated(args.device) / 2^20
    end,
    on_epoch_end = function() command_line.say("saved " .. args.save) end,
  },
  report = function(_, values)
    return ("Epoch %d: loss = %.4f, %s accuracy %.2f %%, peak memory %.1f MiB"):format(
      values.epoch, values.train_loss, measured, 100 * values.valid_accuracy, values.peak)
  end,
}
command_line.resume(trainer, args.resume)

local kind = args.recipe == "vit" and "ViT" or "ResNet-18"
local stem = args.recipe == "vit" and ("%d blocks of %d"):format(args.layers, args.width)
  or recipe.small_stem and "3x3 stem" or "7x7 stem and max pool"
command_line.say(("%s, recipe '%s': %s, %s, %s"):format(kind, args.recipe, stem,
  recipe.augment and "crops and mirror images" .. (recipe.strong and ", RandAugment" or "")
    or "no augmentation",
  recipe.schedule and "cosine schedule" or "one learning rate"))
command_line.say(("%d images, seed %d, %s, batch %d, %s, %d threads%s"):format(#images, args.seed,
  args.dtype, args.batch, args.device, dm.get_num_threads(), command_line.of_ranks(n_rank)))

command_line.run(function() trainer:fit{train = train, valid = test, epochs = epochs} end)
dm.distributed.destroy_process_group()
