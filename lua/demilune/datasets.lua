-- demilune.datasets: readers of MNIST, Fashion-MNIST, CIFAR and the like (torchvision).
--
-- Images stay uint8 in memory; the loader's threads make them float32,
-- (x / 255 - mean) / std. Labels count from 1. Nothing is downloaded: the files
-- come from a package or a folder.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local data = require "demilune.data.dataset"
local transforms = require "demilune.transforms"

local datasets = {}

-- ---- images with labels ----

local Images = data.Dataset:extend "Images"

local bind_augment = options.signature("augment", "*, padding: integer = 0, flip: number = 0")

-- The transforms that the options normalize and augment ask for.
local function default_transform(images, opts)
  local list = {transforms.ToTensor(),
    transforms.Normalize(table.unpack(opts.normalize or {0, 1}))}
  local augment = bind_augment(opts.augment)
  if augment.flip ~= 0 then
    table.insert(list, 1, transforms.RandomHorizontalFlip(augment.flip))
  end
  if augment.padding ~= 0 then
    table.insert(list, 1, transforms.RandomCrop({table.unpack(images.shape, 3)},
      {padding = augment.padding}))
  end
  return transforms.Compose(list)
end

-- images uint8 (N,C,H,W), labels int64 (N) from 1; transform = what get(i) makes
-- of an image, which the loader's threads do when they can; or normalize = {mean,
-- std} of images in [0, 1], or false, and augment = {padding =, flip =}: the loader
-- moves each image by up to padding and mirrors it with probability flip.
function Images:init(images, labels, opts)
  self.images, self.labels = core.keep(images, labels)
  self.classes = opts.classes
  self.transform = opts.transform or default_transform(images, opts)
  self.declared = transforms.declare(self.transform, table.unpack(images.shape, 2))
end

function Images:len() return #self.labels end

-- The image i, transformed (normalised: float32 (C,H,W)), and its label, int64 ().
function Images:get(i)
  data.check_position(self.class, i, self:len())
  return self.transform(self.images[i]), self.labels[i]
end

Images.native_get = Images.get
function Images:columns()
  if not self.declared then return nil end -- Lua makes the samples
  return {{tensor = self.images, augment = self.declared}, {tensor = self.labels}}
end

-- ---- files ----

local function is_file(path)
  return core._read_file("datasets", path, 0) ~= nil
end

-- The path of the file with one of these names in the first folder that has one.
local function find(folders, ...)
  for _, folder in ipairs(folders) do
    for _, name in ipairs{...} do
      local path = ("%s/%s"):format(folder, name)
      if is_file(path) then return path end
    end
  end
end

local function check_transform(name, opts)
  if opts.transform == nil then return end
  if opts.normalize ~= nil or opts.augment ~= nil then
    caller.raise("%s: transform with %s: the transform says it all", name,
      opts.augment and "augment" or "normalize")
  end
end

local function bound(name, more)
  return (options.signature(name, [[root?: string, train: boolean = true, transform?: function,
    *, normalize?: table|boolean, augment?: table]] .. (more or "")))
end

-- Checks the options and reads the files with kind.read(kind, folders, opts), which
-- gives images uint8 (N,C,H,W) and labels from 0, or nil and a message.
local function read(kind, ...)
  local opts = kind.bind(...)
  local root = opts.root
  check_transform(kind.name, opts)
  local folders = root and {root, ("%s/%s"):format(root, kind.below)} or kind.folders
  local images, labels, classes = kind.read(kind, folders, opts)
  if not images then return nil, ("%s: %s"):format(kind.name, labels) end
  if opts.normalize == nil or opts.normalize == true then opts.normalize = kind.normalize end
  opts.classes = classes or kind.classes
  return kind.class(images, labels:to("int64") + 1, opts)
end

-- ---- MNIST and Fashion-MNIST ----

-- Why these are not images and labels that belong together, or nil.
local function fault_of(images, labels, n_classes)
  if images.dtype ~= "uint8" or images:dim() ~= 3 then
    return ("images are %s %s, wanted uint8 {N, H, W}"):format(images.dtype,
      tostring(images.shape))
  elseif labels.dtype ~= "uint8" or labels:dim() ~= 1 then
    return ("labels are %s %s, wanted uint8 {N}"):format(labels.dtype, tostring(labels.shape))
  elseif #images ~= #labels then
    return ("%d images and %d labels"):format(#images, #labels)
  elseif #labels > 0 and labels:amax():item() >= n_classes then
    return ("a label of %d in the file, there are 0 to %d"):format(labels:amax():item(),
      n_classes - 1)
  end
end

-- The tensor in one of the folders' files; or nil and a message.
local function read_part(kind, folders, name)
  local dotted = name:gsub("-idx", ".idx")
  local path = find(folders, name, name .. ".gz", dotted, dotted .. ".gz")
  if not path then
    return nil, ("no %s or %s.gz in %s; hint: %s"):format(name, name,
      table.concat(folders, ", "), kind.hint)
  end
  return core.read_idx(path)
end

local function read_pair(kind, folders, opts)
  local part = opts.train and "train" or "t10k"
  local images, labels, problem
  images, problem = read_part(kind, folders, part .. "-images-idx3-ubyte")
  if not images then return nil, problem end
  labels, problem = read_part(kind, folders, part .. "-labels-idx1-ubyte")
  if not labels then return nil, problem end
  local fault = fault_of(images, labels, #kind.classes)
  if fault then return nil, fault end
  return images:unsqueeze(2), labels
end

local GIVE_FOLDER = "give the folder with the four IDX files (train-images-idx3-ubyte, "
  .. "train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; plain or .gz)"

local fashion_mnist = {
  name = "FashionMNIST", bind = bound "FashionMNIST",
  class = Images:extend "FashionMNIST",
  read = read_pair,
  below = "FashionMNIST/raw",
  folders = {"/usr/share/datasets/fashion-mnist", "./data/FashionMNIST/raw",
    "./data/fashion-mnist", "./data"},
  hint = "apt-get install dataset-fashion-mnist, or " .. GIVE_FOLDER,
  normalize = {0.2860, 0.3530}, -- of the 60,000 training images
  classes = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
    "Bag", "Ankle boot"},
}

local mnist = {
  name = "MNIST", bind = bound "MNIST",
  class = Images:extend "MNIST",
  read = read_pair,
  below = "MNIST/raw",
  folders = {"./data/MNIST/raw", "./data/mnist", "./data"},
  hint = GIVE_FOLDER,
  normalize = {0.1307, 0.3081}, -- of the 60,000 training images
  classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
}

-- FashionMNIST(root or nil, {train = true, transform = one of dm.transforms, or
-- normalize = {mean, std} or false ({0.286, 0.353} by default, which gives pixels from -0.81 to
-- 2.02), augment = {padding =, flip =}}) -> a data set of images float32 (1,28,28) and labels
-- from 1; or nil and a message. No root: Debian's package, then ./data.
function datasets.FashionMNIST(...) return read(fashion_mnist, ...) end

-- MNIST(root or nil, opts), likewise; no root: ./data.
function datasets.MNIST(...) return read(mnist, ...) end

-- ---- CIFAR: A. Krizhevsky, "Learning multiple layers of features", 2009 ----

local SIDE = 32
local PIXELS = 3 * SIDE * SIDE -- the red, green and blue planes, behind one label or two

-- A file's images uint8 (n, PIXELS) and the labels `column` of n_columns of n_classes; or
-- nil and a message.
local function read_records(path, column, n_columns, n_classes)
  local text, problem = core._read_file("datasets", path)
  if not text then return nil, problem end
  local size = n_columns + PIXELS
  if #text == 0 or #text % size ~= 0 then
    return nil, ("'%s' is cut short: %d bytes, wanted records of %d"):format(path, #text, size)
  end
  local records = core._from_bytes(text):reshape(-1, size)
  local labels = records:select(2, column)
  local worst = labels:amax():item()
  if worst >= n_classes then
    return nil, ("'%s': a label of %d in record %d, there are 0 to %d"):format(path, worst,
      labels:argmax():item(), n_classes - 1)
  end
  return records:narrow(2, n_columns + 1, PIXELS), labels
end

-- Images and labels of all the files; or nil and a message.
local function read_files(kind, folders, names, column, n_columns, n_classes)
  local paths, missing = {}, {}
  for i, name in ipairs(names) do
    paths[i] = find(folders, name)
    if not paths[i] then missing[#missing + 1] = name end
  end
  if #missing > 0 then
    return nil, ("no %s in %s; hint: %s"):format(table.concat(missing, ", "),
      table.concat(folders, ", "), kind.hint)
  end
  local images, labels = {}, {}
  for i, path in ipairs(paths) do
    images[i], labels[i] = read_records(path, column, n_columns, n_classes)
    if not images[i] then return nil, labels[i] end
  end
  return core.cat(images):reshape(-1, 3, SIDE, SIDE), core.cat(labels)
end

local function read_cifar10(kind, folders, opts)
  local n = opts.batches
  if n < 1 or n > 5 then
    caller.raise("%s: batches is %s, wanted 1 to 5", kind.name, tostring(n))
  end
  local names = {"test_batch.bin"}
  for i = 1, opts.train and n or 0 do names[i] = ("data_batch_%d.bin"):format(i) end
  return read_files(kind, folders, names, 1, 1, #kind.classes)
end

local cifar10 = {
  name = "CIFAR10", bind = bound("CIFAR10", ", batches: integer = 5"),
  class = Images:extend "CIFAR10",
  read = read_cifar10,
  below = "cifar-10-batches-bin",
  folders = {"./data/cifar-10-batches-bin", "./data"},
  hint = "get CIFAR-10's binary version (cifar-10-binary.tar.gz, from "
    .. "https://www.cs.toronto.edu/~kriz/cifar.html), unpack it, and give the folder with "
    .. "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
  normalize = {{0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}}, -- of the training images
  classes = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
    "truck"},
}

-- CIFAR10(root or nil, {train = true, batches = 5, and as FashionMNIST}) -> a data set
-- of images float32 (3,32,32) and labels from 1; or nil and a message. root: the
-- folder with the files of the binary version, or the one above; nil: ./data.
-- batches: so many of the five training files are read.
function datasets.CIFAR10(...) return read(cifar10, ...) end

local function words(text)
  local list = {}
  for word in text:gmatch "%S+" do list[#list + 1] = word end
  return list
end

local COARSE = words [[aquatic_mammals fish flowers food_containers fruit_and_vegetables
  household_electrical_devices household_furniture insects large_carnivores
  large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
  medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1
  vehicles_2]]

local FINE = words [[apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy
  bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud
  cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster
  house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
  mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
  plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew
  skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
  telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf
  woman worm]]

local function read_cifar100(kind, folders, opts)
  local coarse = opts.labels == "coarse"
  local classes = coarse and COARSE or FINE
  local images, labels = read_files(kind, folders,
    {opts.train and "train.bin" or "test.bin"}, coarse and 1 or 2, 2, #classes)
  return images, labels, classes
end

local cifar100 = {
  name = "CIFAR100", bind = bound("CIFAR100", ", labels: 'fine'|'coarse' = 'fine'"),
  class = Images:extend "CIFAR100",
  read = read_cifar100,
  below = "cifar-100-binary",
  folders = {"./data/cifar-100-binary", "./data"},
  hint = "get CIFAR-100's binary version (cifar-100-binary.tar.gz, from "
    .. "https://www.cs.toronto.edu/~kriz/cifar.html), unpack it, and give the folder with "
    .. "train.bin and test.bin",
  normalize = {{0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}}, -- of the training images
}

-- CIFAR100(root or nil, {train = true, labels = "fine", and as FashionMNIST}), likewise of
-- 100 classes; labels = "coarse": of the 20 that these fall into.
function datasets.CIFAR100(...) return read(cifar100, ...) end

-- ImageFolder(root, {transform = one of dm.transforms, mode = "rgb" or "gray", exif = true,
-- allow_empty = false, is_valid_file = function(path) -> boolean}) -> a data set of images, float32
-- (3,H,W) from 0 to 1 without a transform, and labels from 1; or nil and a message. Each folder in
-- root is a class, in the order of names, with its .jpg, .jpeg and .png files at any depth. The set
-- has classes, class_to_idx and samples = {{path, class}, ...}.
function datasets.ImageFolder(...) return require "demilune.image_folder"(...) end

return datasets
