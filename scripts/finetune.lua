-- Trains a ResNet that has learned other images on new ones: the weights come from a
-- file with torchvision's names, such as its own resnet18-f37072fd.pth, or a safetensors file;
-- the last layer is new, the others keep their weights, or learn ten times as slowly.
-- `scripts/run scripts/finetune.lua --help` lists the options.
--
--   scripts/run scripts/finetune.lua --weights resnet18-f37072fd.pth --data my_images --side 224
--   scripts/run scripts/finetune.lua --weights resnet50.safetensors --model resnet50 \
--     --set fashion_mnist --unfreeze layer4 --side 96
--
-- The images are a folder with a folder of JPEG or PNG files for each class; or it has `train`
-- and `val` (or `test`), each of that kind. Without the latter a fifth of the images is put
-- aside for the accuracy.

package.path = (arg[0]:match "^(.*)/" or ".") .. "/lib/?.lua;" .. package.path
local dm = require "demilune"
local command_line = require "command_line"
local image_folders = require "image_folders"
local nn, optim, data, transforms = dm.nn, dm.optim, dm.data, dm.transforms

local parser, number = command_line.parser("finetune.lua",
  "Train a ResNet with learned weights on new images.")
parser:option("--weights", "a .pth or safetensors file of torchvision's names")
  :count(1):argname "FILE"
parser:option("--model", "whose weights these are")
  :choices{"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}:default "resnet18"
parser:option("--data", "the folder with the images: with a folder of them for each class, or "
  .. "with train and val of that kind; or with the files of --set"):argname "DIR"
parser:option("--set", "what they are: one's own, or a known set")
  :choices{"folder", "cifar10", "fashion_mnist"}:default "folder"
parser:option("--unfreeze", "what learns beside the last layer")
  :choices{"none", "layer4", "all"}:default "none"
command_line.precision(parser, "bfloat16")
number("epochs", math.tointeger, "3", "passes over the images")
number("batch", math.tointeger, "64", "images in a step")
number("lr", tonumber, "1e-3", "of the last layer; a tenth of it for what else learns")
number("side", math.tointeger, "64", "to which images are brought: the weights know larger ones")
number("limit", math.tointeger, nil, "so many images of training and test, for a try")
number("workers", math.tointeger, "1", "threads that prepare batches")
number("seed", math.tointeger, "1", "of the last layer, of what is put aside and of the order")
parser:option("--save", "where the weights go, with torchvision's names")
  :default "finetuned.safetensors"
local args = command_line.parse(parser)

local function stop(problem) command_line.stop("finetune.lua: " .. problem) end

-- ---- images: as ImageNet's were to those who made the weights ----

local MEAN, STD = {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}
local function known_set(make, mean, std)
  ---@return any
  local function part(train)
    local set, problem = make(args.data, {train = train, transform = transforms.Compose{
      transforms.ToTensor(), transforms.Normalize(mean, std)}})
    return set or stop(problem)
  end
  local train = part(true)
  return train.classes, train, part(false)
end

local to_floats = transforms.Compose{transforms.ToTensor(), transforms.Normalize(MEAN, STD)}
local augmented = transforms.Compose{transforms.RandomResizedCrop(args.side, {scale = {0.35, 1}}),
  transforms.RandomHorizontalFlip(), to_floats}
local plain = transforms.Compose{transforms.Resize(args.side * 8 // 7),
  transforms.CenterCrop(args.side), to_floats}

local function own_set()
  if not args.data then stop "--data DIR is wanted; --help tells more" end
  local classes, train, test = image_folders.split(args.data,
    {train = augmented, test = plain, seed = args.seed})
  return classes or stop(train), train, test
end

local SETS = { -- each gives the classes, a set to train on and one to test on
  folder = own_set,
  cifar10 = function() return known_set(dm.datasets.CIFAR10, MEAN, STD) end,
  fashion_mnist = function() return known_set(dm.datasets.FashionMNIST, 0.449, 0.226) end, -- gray
}

local function loader(set, shuffle)
  return data.DataLoader(image_folders.limited(set, args.limit, args.seed),
    {batch_size = args.batch, shuffle = shuffle, seed = args.seed, num_workers = args.workers,
      device = args.device})
end
local classes, train_set, test_set = SETS[args.set]()
local train, test = loader(train_set, true), loader(test_set, false)

-- A batch in colour, its sides `side` long.
local function prepared(x)
  if x.shape[2] == 1 then x = x:expand(-1, 3, -1, -1) end
  if x.shape[3] == args.side then return x end
  return dm.interpolate(x, {size = {args.side, args.side}, mode = "bilinear"})
end

-- ---- the network: known weights, a new end ----

local weights, problem = dm.load(args.weights)
if not weights then stop(problem) end
local old_end = weights["fc.weight"]
local model = dm.models[args.model]{num_classes = dm.is_tensor(old_end) and #old_end or nil}
local ok, why = pcall(model.load_state_dict, model, weights)
if not ok then
  stop(("%s does not fit %s: %s"):format(args.weights, args.model, why:gsub("^%S+:%d+: ", "")))
end
model:requires_grad_(false)
model.fc = nn.Linear(model.fc.in_features, #classes)
local learning = ({layer4 = model.layer4, all = model})[args.unfreeze]
if learning then learning:requires_grad_(true) end
model:to(args.device)

-- Two groups: the new end, and what else learns.
local groups, rest = {{params = model.fc:parameters()}}, {}
for name, p in model:named_parameters() do
  if p.requires_grad and not name:find "^fc%." then rest[#rest + 1] = p end
end
if #rest > 0 then groups[2] = {params = rest, lr = args.lr / 10} end
local optimizer = optim.AdamW(groups, {lr = args.lr, weight_decay = 1e-2})
local schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, math.max(1, args.epochs * #train))
local criterion = nn.CrossEntropyLoss()

local trainer = dm.Trainer{
  model = model, optimizer = optimizer, schedule = schedule,
  device = args.device, amp = args.dtype, metrics = {accuracy = dm.metrics.Accuracy()},
  forward = function(net, x, y)
    local scores = net(prepared(x))
    return criterion(scores, y), scores
  end,
  callbacks = {
    -- Batch norms whose weights are frozen keep their running statistics, too.
    on_epoch_begin = function()
      model:eval()
      if learning then learning:train() end
      model.fc:train()
    end,
  },
  report = function(_, values)
    return ("epoch %d: train loss %.4f, test accuracy %.2f %%"):format(values.epoch,
      values.train_loss, 100 * values.valid_accuracy)
  end,
}

local function count(list)
  local n = 0
  for _, p in ipairs(list) do n = n + p:numel() end
  return n
end
print(("%s from %s: %d numbers learn, %d more slowly, %d stay"):format(args.model, args.weights,
  count(groups[1].params), count(rest),
  count(model:parameters()) - count(groups[1].params) - count(rest)))
print(("%d images of %d kinds, %s, batch %d, %s"):format(train.n_samples, #classes, args.dtype,
  args.batch, args.device))
trainer:fit{train = train, valid = test, epochs = args.epochs}
assert(dm.save(args.save, model:state_dict()))
print("saved " .. args.save)
