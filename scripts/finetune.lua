-- Trains a ResNet that has learned other pictures on new ones: the weights come from a
-- safetensors file with torchvision's names, such as Python's safetensors.torch.save_file(
-- model.state_dict(), "resnet18.safetensors") writes; the last layer is new, the others keep
-- their weights, or learn ten times as slowly. `scripts/run scripts/finetune.lua --help`
-- lists the options.
--
--   scripts/run scripts/finetune.lua --weights resnet18.safetensors --data my_pictures --side 224
--   scripts/run scripts/finetune.lua --weights resnet50.safetensors --model resnet50 \
--     --set fashion_mnist --unfreeze layer4 --side 96
--
-- The pictures are a folder with a folder of JPEG or PNG files for each class; or it has `train`
-- and `val` (or `test`), each of that kind. Without the latter a fifth of the pictures is put
-- aside for the accuracy.

local dm = require "demilune"
local argparse = require "argparse"
local nn, optim, amp, data, transforms = dm.nn, dm.optim, dm.amp, dm.data, dm.transforms

local parser = argparse("finetune.lua", "Train a ResNet with learned weights on new pictures.")
parser:option("--weights", "a safetensors file with torchvision's names"):count(1):argname "FILE"
parser:option("--model", "whose weights these are")
  :choices{"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}:default "resnet18"
parser:option("--data", "the folder with the pictures: with a folder of them for each class, or "
  .. "with train and val of that kind; or with the files of --set"):argname "DIR"
parser:option("--set", "what they are: one's own, or a known set")
  :choices{"folder", "cifar10", "fashion_mnist"}:default "folder"
parser:option("--unfreeze", "what learns beside the last layer")
  :choices{"none", "layer4", "all"}:default "none"
parser:option("--dtype", "what matrix products and convolutions compute in")
  :choices{"float32", "bfloat16", "float16"}:default "bfloat16"
local function number(name, convert, default, about)
  parser:option("--" .. name, about):convert(convert):default(default)
end
number("epochs", math.tointeger, "3", "passes over the pictures")
number("batch", math.tointeger, "64", "pictures in a step")
number("lr", tonumber, "1e-3", "of the last layer; a tenth of it for what else learns")
number("side", math.tointeger, "64", "to which pictures are brought: the weights know larger ones")
number("limit", math.tointeger, nil, "so many pictures of training and test, for a try")
number("workers", math.tointeger, "1", "threads that prepare batches")
number("seed", math.tointeger, "1", "of the last layer, of what is put aside and of the order")
parser:option("--device", "cpu or cuda"):default(dm.cuda.is_available() and "cuda" or "cpu")
parser:option("--save", "where the weights go, with torchvision's names")
  :default "finetuned.safetensors"
local args = parser:parse()
dm.manual_seed(args.seed)

local function stop(problem)
  io.stderr:write("finetune.lua: ", problem, "\n")
  os.exit(1, true)
end

-- ---- pictures: as ImageNet's were to those who made the weights ----

local MEAN, STD = {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}
local function known_set(make, mean, std)
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

local function own_set(root)
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

local SETS = { -- each gives the classes, a set to train on and one to test on
  folder = function()
    return own_set(args.data or stop "--data DIR is wanted; --help tells more")
  end,
  cifar10 = function() return known_set(dm.datasets.CIFAR10, MEAN, STD) end,
  fashion_mnist = function() return known_set(dm.datasets.FashionMNIST, 0.449, 0.226) end, -- gray
}

local function limited(set)
  if not args.limit or args.limit >= #set then return set end
  return (data.random_split(set, {args.limit, #set - args.limit}, {seed = args.seed}))
end

local function loader(set, shuffle)
  return data.DataLoader(limited(set), {batch_size = args.batch, shuffle = shuffle,
    seed = args.seed, num_workers = args.workers, device = args.device})
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
local scaler = amp.GradScaler{device = args.device, enabled = args.dtype == "float16"}
local criterion = nn.CrossEntropyLoss()

local half = args.dtype ~= "float32"
local region = {device_type = args.device, enabled = half, dtype = half and args.dtype or nil}
local function forward(x)
  return amp.autocast(region, function() return model(prepared(x)) end)
end

-- What keeps its weights keeps its statistics, too.
local function training()
  model:eval()
  if learning then learning:train() end
  model.fc:train()
end

-- ---- the loop ----

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
  return 100 * right / total
end

local function epoch(n)
  local sum = 0
  training()
  for _, x, y in dm.progress(train, {desc = ("epoch %d/%d"):format(n, args.epochs)}) do
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    local loss = criterion(forward(x), y)
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    schedule:step()
    local value = loss:item()
    sum = sum + value
    dm.progress.set{loss = value, samples = #x}
  end
  return sum / #train
end

local function count(list)
  local n = 0
  for _, p in ipairs(list) do n = n + p:numel() end
  return n
end
print(("%s from %s: %d numbers learn, %d more slowly, %d stay"):format(args.model, args.weights,
  count(groups[1].params), count(rest),
  count(model:parameters()) - count(groups[1].params) - count(rest)))
print(("%d pictures of %d kinds, %s, batch %d, %s"):format(train.n_samples, #classes, args.dtype,
  args.batch, args.device))
for n = 1, args.epochs do
  print(("epoch %d: train loss %.4f, test accuracy %.2f %%"):format(n, epoch(n), accuracy()))
end
assert(dm.save(args.save, model:state_dict()))
print("saved " .. args.save)
