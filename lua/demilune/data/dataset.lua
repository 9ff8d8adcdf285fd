-- Data sets. One has a length (#) and get(i), the sample's fields, i from 1. One
-- that also has columns() (dense tensors, rows being samples, and how images
-- among them are transformed) is read by the engine's own threads.

local core = require "demilune.core"
local caller = require "demilune.caller"

local dataset = {}

local Dataset = {}
Dataset.__index = Dataset
Dataset.class = "Dataset"

-- A class: `local Squares = data.Dataset:extend "Squares"`, with init(...),
-- __len and get(i).
function Dataset:extend(name)
  local class = {class = name or "Dataset", super = self, __tostring = self.__tostring}
  class.__index = class
  class.__len = function(set) return set:len() end
  return setmetatable(class, {__index = self, __call = function(_, ...)
    local set = setmetatable({}, class)
    set:init(...)
    return set
  end})
end

function Dataset:init() end -- luacheck: ignore self
function Dataset:len() caller.raise("%s has no len", self.class) end
function Dataset:get() caller.raise("%s has no get", self.class) end
function Dataset:__tostring() return ("%s of %d samples"):format(self.class, #self) end

-- Rows of tensors: sample i is row i of each.
local TensorDataset = Dataset:extend "TensorDataset"

function TensorDataset:init(...)
  self.tensors = {...}
  for k, t in ipairs(self.tensors) do
    if not core.is_tensor(t) or t:dim() == 0 then
      caller.raise("TensorDataset: argument %d is no tensor with rows", k)
    end
    if #t ~= #self.tensors[1] then
      caller.raise("TensorDataset: tensor %d has %d rows, tensor 1 has %d", k, #t,
        #self.tensors[1])
    end
    core.keep(t)
  end
  if #self.tensors == 0 then caller.raise("TensorDataset: wanted a tensor or more") end
end

function TensorDataset:len() return #self.tensors[1] end

function TensorDataset:get(i)
  local fields = {}
  for k, t in ipairs(self.tensors) do fields[k] = t[i] end
  return table.unpack(fields)
end

-- Tensors, and {[k] = {mean = {...}, std = {...}}} for those that are images.
function TensorDataset:columns() return self.tensors, self.transforms end

-- The samples whose indices are listed (an array, from 1).
local Subset = Dataset:extend "Subset"

function Subset:init(whole, indices)
  for _, i in ipairs(indices) do
    if math.type(i) ~= "integer" or i < 1 or i > #whole then
      caller.raise("Subset: index %s, wanted 1 to %d", tostring(i), #whole)
    end
  end
  self.dataset, self.indices = whole, indices
end

function Subset:len() return #self.indices end
function Subset:get(i) return self.dataset:get(self.indices[i]) end

-- Subsets of the given lengths (or shares that add up to 1), at random.
function dataset.random_split(whole, lengths)
  local n, sizes, total = #whole, {}, 0
  local sum = 0
  for _, length in ipairs(lengths) do sum = sum + length end
  for i, length in ipairs(lengths) do
    sizes[i] = math.abs(sum - 1) < 1e-9 and n > 1 and math.floor(length * n) or length
    total = total + sizes[i]
  end
  if math.abs(sum - 1) < 1e-9 then
    for i = 1, n - total do sizes[i] = sizes[i] + 1 end
  elseif total ~= n then
    caller.raise("random_split: the lengths add up to %d, the data set has %d samples", total, n)
  end
  local order, from, parts = core.randperm(n):totable(), 1, {}
  for i, size in ipairs(sizes) do
    parts[i] = Subset(whole, table.move(order, from, from + size - 1, 1, {}))
    from = from + size
  end
  return table.unpack(parts)
end

dataset.Dataset, dataset.TensorDataset, dataset.Subset = Dataset, TensorDataset, Subset
return dataset
