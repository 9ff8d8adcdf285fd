-- demilune.datasets: readers of MNIST and its kin (torchvision.datasets).
--
-- Pictures stay uint8 in memory; the loader's threads make them float32,
-- (x / 255 - mean) / std. Labels count from 1. Nothing is downloaded: the files
-- come from a package or a folder.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local data = require "demilune.data.dataset"

local datasets = {}

-- ---- pictures with labels ----

local Images = data.Dataset:extend "Images"

-- A number, or one per channel, as a list per channel.
local function per_channel(what, v, channels)
  if type(v) == "number" then
    local list = {}
    for c = 1, channels do list[c] = v end
    return list
  elseif type(v) ~= "table" or #v ~= channels then
    caller.raise("normalize: %s: wanted a number, or %d of them", what, channels)
  end
  return v
end

-- images uint8 (N,C,H,W), labels int64 (N) from 1; normalize = {mean, std} of
-- pictures in [0, 1], or false; augment = {padding =, flip =}: the loader moves
-- each picture by up to padding and mirrors it with probability flip.
function Images:init(images, labels, opts)
  local channels = images:size(2)
  self.images, self.labels = core.keep(images, labels)
  self.classes = opts.classes
  local mean, std = table.unpack(opts.normalize or {0, 1})
  local augment = options.read("augment", opts.augment, {padding = 0, flip = 0})
  self.transform = {
    mean = per_channel("mean", mean, channels), std = per_channel("std", std, channels),
    crop_height = images:size(3), crop_width = images:size(4),
    padding = augment.padding, flip = augment.flip,
  }
end

function Images:len() return #self.labels end

-- The picture i, normalised, float32 (C,H,W), and its label, int64 ().
function Images:get(i)
  data.check_position(self.class, i, self:len())
  local mean = core.tensor(self.transform.mean, {dtype = "float32"}):reshape(-1, 1, 1)
  local std = core.tensor(self.transform.std, {dtype = "float32"}):reshape(-1, 1, 1)
  return (self.images[i]:to("float32") / 255 - mean) / std, self.labels[i]
end

Images.native_get = Images.get
function Images:columns()
  return {{tensor = self.images, image = self.transform}, {tensor = self.labels}}
end

-- ---- MNIST and Fashion-MNIST ----

local function is_file(path)
  local f = io.open(path, "rb")
  return f and f:close() or false
end

-- The path of this file, plain or gzip, in the first folder that has it.
local function find(folders, name)
  for _, folder in ipairs(folders) do
    for _, variant in ipairs{name, (name:gsub("-idx", ".idx"))} do
      for _, ending in ipairs{"", ".gz"} do
        local path = ("%s/%s%s"):format(folder, variant, ending)
        if is_file(path) then return path end
      end
    end
  end
end

-- Why these are not pictures and labels that belong together, or nil.
local function fault_of(images, labels, n_classes)
  if images.dtype ~= "uint8" or images:dim() ~= 3 then
    return ("pictures are %s %s, wanted uint8 {N, H, W}"):format(images.dtype,
      tostring(images.shape))
  elseif labels.dtype ~= "uint8" or labels:dim() ~= 1 then
    return ("labels are %s %s, wanted uint8 {N}"):format(labels.dtype, tostring(labels.shape))
  elseif #images ~= #labels then
    return ("%d pictures and %d labels"):format(#images, #labels)
  elseif #labels > 0 and labels:amax():item() >= n_classes then
    return ("a label of %d in the file, there are 0 to %d"):format(labels:amax():item(),
      n_classes - 1)
  end
end

-- The tensor in one of the folders' files; or nil and a message.
local function read_part(kind, folders, name)
  local path = find(folders, name)
  if not path then
    return nil, ("%s: no %s or %s.gz in %s; hint: %s"):format(kind.name, name, name,
      table.concat(folders, ", "), kind.hint)
  end
  local tensor, problem = core.read_idx(path)
  return tensor, problem and ("%s: %s"):format(kind.name, problem)
end

local DEFAULTS = {train = true, normalize = options.NONE, augment = options.NONE}

local function read(kind, root, given)
  if type(root) == "table" and given == nil then root, given = nil, root end
  if root ~= nil and type(root) ~= "string" then
    caller.raise("%s: root: a folder's name or nil expected, got %s", kind.name, type(root))
  end
  local opts = options.read(kind.name, given, DEFAULTS)
  local folders = root and {root, ("%s/%s/raw"):format(root, kind.name)} or kind.folders
  local part = opts.train and "train" or "t10k"
  local images, labels, problem
  images, problem = read_part(kind, folders, part .. "-images-idx3-ubyte")
  if not images then return nil, problem end
  labels, problem = read_part(kind, folders, part .. "-labels-idx1-ubyte")
  if not labels then return nil, problem end
  local fault = fault_of(images, labels, #kind.classes)
  if fault then return nil, ("%s: %s"):format(kind.name, fault) end
  if opts.normalize == nil then opts.normalize = kind.normalize end
  opts.classes = kind.classes
  return kind.class(images:unsqueeze(2), labels:to("int64") + 1, opts)
end

local GIVE_FOLDER = "give the folder with the four IDX files (train-images-idx3-ubyte, "
  .. "train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte; plain or .gz)"

local fashion_mnist = {
  name = "FashionMNIST",
  class = Images:extend "FashionMNIST",
  folders = {"/usr/share/datasets/fashion-mnist", "./data/FashionMNIST/raw",
    "./data/fashion-mnist", "./data"},
  hint = "apt-get install dataset-fashion-mnist, or " .. GIVE_FOLDER,
  normalize = {0.2860, 0.3530}, -- of the 60,000 training pictures
  classes = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
    "Bag", "Ankle boot"},
}

local mnist = {
  name = "MNIST",
  class = Images:extend "MNIST",
  folders = {"./data/MNIST/raw", "./data/mnist", "./data"},
  hint = GIVE_FOLDER,
  normalize = {0.1307, 0.3081}, -- of the 60,000 training pictures
  classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
}

-- FashionMNIST(root or nil, {train = true, normalize = {mean, std} or false,
-- augment = {padding =, flip =}}) -> a data set of pictures float32 (1,28,28) and
-- labels from 1; or nil and a message. No root: Debian's package, then ./data.
function datasets.FashionMNIST(root, opts) return read(fashion_mnist, root, opts) end

-- MNIST(root or nil, opts), likewise; no root: ./data.
function datasets.MNIST(root, opts) return read(mnist, root, opts) end

return datasets
