-- demilune.datasets: readers of well-known data sets. Images stay uint8 in
-- memory; the loader makes them float32, (x / 255 - mean) / std, as it batches.
-- Labels count from 1.

local core = require "demilune.core"
local options = require "demilune.options"
local TensorDataset = require("demilune.data.dataset").TensorDataset

local datasets = {}

local Images = TensorDataset:extend "Images"

function Images:get(i)
  local x = self.tensors[1][i]:to("float32") / 255
  local how = self.transforms[1]
  local function plane(values)
    return core.tensor(values):reshape(-1, 1, 1)
  end
  if how.mean then x = x - plane(how.mean) end
  if how.std then x = x / plane(how.std) end
  return x, self.tensors[2][i]
end

local function open_first(roots, file)
  local tried = {}
  for _, root in ipairs(roots) do
    for _, path in ipairs{root .. "/" .. file, root .. "/" .. file .. ".gz"} do
      local handle = io.open(path, "rb")
      if handle then
        handle:close()
        return path
      end
    end
    tried[#tried + 1] = root
  end
  return nil, table.concat(tried, ", ")
end

local function read(roots, file, hint)
  local path, tried = open_first(roots, file)
  if not path then
    return nil, ("%s is not in %s; hint: %s"):format(file, tried, hint)
  end
  return core.read_idx(path)
end

local OPTIONS = {train = true, transform = options.NONE}

local function reader(name, folders, hint, mean, std)
  -- opts.train: the training part (true) or the test part. opts.transform:
  -- {mean = {m}, std = {s}, padding = , flip = , ...}. root: a folder; by
  -- default where Debian keeps it.
  return function(root, opts)
    if type(root) == "table" then root, opts = nil, root end
    local o = options.read(name, opts, OPTIONS)
    local roots = root and {root} or folders
    local part = o.train and "train" or "t10k"
    local images, fault = read(roots, part .. "-images-idx3-ubyte", hint)
    if not images then return nil, ("%s: %s"):format(name, fault) end
    local labels
    labels, fault = read(roots, part .. "-labels-idx1-ubyte", hint)
    if not labels then return nil, ("%s: %s"):format(name, fault) end
    if images:dim() ~= 3 or labels:dim() ~= 1 or #images ~= #labels or images.dtype ~= "uint8" then
      return nil, ("%s: images %s and labels %s do not belong together"):format(name,
        tostring(images.shape), tostring(labels.shape))
    end
    local set = Images(images:unsqueeze(2), labels:to("int64") + 1)
    set.class = name
    set.transforms = {o.transform or {mean = {mean}, std = {std}}}
    return set
  end
end

local SHARE = "/usr/share/datasets/"

-- Mean and deviation of the training part.
datasets.FashionMNIST = reader("FashionMNIST", {SHARE .. "fashion-mnist", "data/FashionMNIST/raw"},
  "Debian has it: apt-get install dataset-fashion-mnist", 0.2860, 0.3530)
datasets.MNIST = reader("MNIST", {SHARE .. "mnist", "data/MNIST/raw"},
  "put the four IDX files of MNIST (gz or plain) into a folder and name it", 0.1307, 0.3081)

return datasets
