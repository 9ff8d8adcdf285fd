-- demilune.data: data sets, samplers and the loader (torch.utils.data).

local dataset = require "demilune.data.dataset"
local sampler = require "demilune.data.sampler"
local loader = require "demilune.data.loader"

local MODULES = {read_csv = "demilune.data.csv", TokenFile = "demilune.data.tokens",
  IterableDataset = "demilune.data.iterable", ChainDataset = "demilune.data.iterable",
  default_collate = "demilune.data.collate"}
for name in ("read_npy write_npy read_npz write_npz"):gmatch "%S+" do
  MODULES[name] = "demilune.data.npy"
end

return setmetatable({
  Dataset = dataset.Dataset,
  TensorDataset = dataset.TensorDataset,
  Subset = dataset.Subset,
  ConcatDataset = dataset.ConcatDataset,
  StackDataset = dataset.StackDataset,
  random_split = dataset.random_split,
  Sampler = sampler.Sampler,
  SequentialSampler = sampler.SequentialSampler,
  RandomSampler = sampler.RandomSampler,
  SubsetRandomSampler = sampler.SubsetRandomSampler,
  WeightedRandomSampler = sampler.WeightedRandomSampler,
  DistributedSampler = sampler.DistributedSampler,
  BatchSampler = sampler.BatchSampler,
  DataLoader = loader.DataLoader,
}, {__index = function(self, name)
  if not MODULES[name] then return nil end
  for key, value in pairs(require(MODULES[name])) do rawset(self, key, value) end
  return rawget(self, name)
end})
