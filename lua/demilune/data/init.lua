-- demilune.data: data sets, samplers and the loader (torch.utils.data).

local late = require "demilune.late"
local dataset = require "demilune.data.dataset"
local sampler = require "demilune.data.sampler"
local loader = require "demilune.data.loader"

return late.extend({
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
}, {
  read_csv = "demilune.data.csv",
  TokenFile = "demilune.data.tokens",
  IterableDataset = "demilune.data.iterable",
  ChainDataset = "demilune.data.iterable",
  default_collate = "demilune.data.collate",
  read_npy = "demilune.data.npy",
  write_npy = "demilune.data.npy",
  read_npz = "demilune.data.npy",
  write_npz = "demilune.data.npy",
})
