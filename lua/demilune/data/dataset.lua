-- Data sets.
--
-- A data set answers two questions: `len()`, and `get(i)` for the sample i of
-- 1..len, as one value or more. A set of tensors also answers a third, to the
-- loader: which arrays its samples are rows of. C threads then cut batches out
-- of these; samples that Lua code makes are collated in Lua.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local dataset = {}

-- ---- classes of what has samples ----

local function construct(class, ...)
  local self = setmetatable({}, class)
  self:init(...)
  return self
end

-- A new class: `local Squares = data.Dataset:extend "Squares"`, then its init,
-- get and len.
local function extend(base, name)
  local class = {}
  for key, value in pairs(base) do
    if key:sub(1, 2) == "__" then class[key] = value end
  end
  class.__index = class
  class.class = name or base.class
  class.super = base
  return setmetatable(class, {__index = base, __call = construct})
end

-- A first class, with len() to come: Dataset, Sampler.
function dataset.class(name)
  local class = {class = name, extend = extend, init = function() end}
  class.__index = class
  function class:__len() return self:len() end
  function class:__tostring() return ("%s(%d samples)"):format(self.class, self:len()) end
  return class
end

local Dataset = dataset.class "Dataset"
dataset.Dataset = Dataset
function Dataset:get()
  caller.raise("%s has no get(i); hint: function %s:get(i)", self.class, self.class)
end
function Dataset:len()
  caller.raise("%s has no len(); hint: function %s:len()", self.class, self.class)
end

local function next_sample(set, i)
  if i < set:len() then return i + 1, set:get(i + 1) end
end

-- for i, x, y in pairs(set) do
function Dataset:__pairs() return next_sample, self, 0 end

-- The samples in a data set; a plain table with get and len is one as well.
function dataset.count(what, set)
  if type(set) ~= "table" or not (set.get and set.len) then
    caller.raise("%s: wanted a data set (a table with get(i) and len()), got %s", what,
      core.is_tensor(set) and "a tensor; hint: data.TensorDataset(x)" or type(set))
  end
  return dataset.check_length(what, set:len())
end

function dataset.check_length(what, n)
  if math.type(n) ~= "integer" or n < 0 then
    caller.raise("%s: the data set's len() is %s, wanted a count", what, tostring(n))
  end
  return n
end

-- Whether this is a set that is run through: it has iter() and no get(i).
function dataset.is_stream(set)
  return type(set) == "table" and set.iter ~= nil and set.get == nil
end

-- How many samples a stream gives, or nil where it does not know.
function dataset.stream_length(set)
  local n = set.len and set:len()
  return n and dataset.check_length(set.class or "a stream", n) or nil
end

function dataset.check_position(what, i, n)
  if math.type(i) ~= "integer" or i < 1 or i > n then
    caller.raise("%s: sample %s, there are %d (they count from 1)", what, tostring(i), n)
  end
end

-- Positions of 1..n, a list or a tensor, as an int64 tensor of one dim.
function dataset.positions(what, list, n)
  if not core.is_tensor(list) then
    if type(list) ~= "table" then
      caller.raise("%s: wanted a list or tensor of positions, got %s", what, type(list))
    end
    for _, i in ipairs(list) do dataset.check_position(what, i, n) end
    if #list == 0 then return core.zeros(0, {dtype = "int64", device = "cpu"}) end
    return core.tensor(list, {dtype = "int64", device = "cpu"})
  end
  if list.dtype ~= "int64" or list:dim() ~= 1 then
    caller.raise("%s: positions are %s %s, wanted int64 of one dim", what, list.dtype,
      tostring(list.shape))
  end
  if #list > 0 then
    dataset.check_position(what, list:amin():item(), n)
    dataset.check_position(what, list:amax():item(), n)
  end
  return list
end

-- Checks the options seed and generator; dataset.draw_seed takes what they say.
function dataset.check_seed(what, opts)
  local seed, generator = opts.seed, opts.generator
  if seed ~= nil and generator ~= nil then
    caller.raise("%s: seed and generator: one of them decides the order", what)
  elseif seed ~= nil and math.type(seed) ~= "integer" then
    caller.raise("%s: seed is %s, wanted an integer", what, tostring(seed))
  elseif generator ~= nil and (type(generator) ~= "userdata"
    or getmetatable(generator) ~= "demilune.Generator") then
    caller.raise("%s: generator is a %s, wanted dm.Generator()", what, type(generator))
  end
end

-- The seed; or one that is drawn from the generator, which moves on; or that of
-- dm.manual_seed.
function dataset.draw_seed(opts)
  if not opts.generator then return opts.seed or core.initial_seed() end
  return core.randint(0, (1 << 62) - 1, {1}, {generator = opts.generator, dtype = "int64"}):item()
end

-- For the loader: a list of columns {tensor =, augment = what transforms.declare gives, or
-- nil}, {images = files, augment =} or windows of tokens, and the rows of them that are
-- samples (nil: all). Nothing when the samples are made by Lua code, as when a class
-- derived from a native one has its own get.
function dataset.source(set)
  if set.native_get and set.get == set.native_get then return set:columns() end
end

-- ---- TensorDataset ----

local TensorDataset = Dataset:extend "TensorDataset"
dataset.TensorDataset = TensorDataset

-- TensorDataset(x, y, ...): sample i is x[i], y[i], ...
function TensorDataset:init(...)
  self.tensors = {...}
  if #self.tensors == 0 then caller.raise("TensorDataset: wanted tensors, got none") end
  local n
  for k, t in ipairs(self.tensors) do
    if not core.is_tensor(t) then
      caller.raise("TensorDataset: argument %d: tensor expected, got %s", k, type(t))
    elseif t:dim() == 0 then
      caller.raise("TensorDataset: tensor %d has no dim to count samples in", k)
    end
    n = n or #t
    if #t ~= n then
      caller.raise("TensorDataset: tensor %d has %d rows, tensor 1 has %d", k, #t, n)
    end
    core.keep(t)
  end
end

function TensorDataset:len() return #self.tensors[1] end

function TensorDataset:get(i)
  dataset.check_position(self.class, i, self:len())
  local sample = {}
  for k, t in ipairs(self.tensors) do sample[k] = t[i] end
  return table.unpack(sample)
end

TensorDataset.native_get = TensorDataset.get
function TensorDataset:columns()
  local columns = {}
  for k, t in ipairs(self.tensors) do columns[k] = {tensor = t} end
  return columns
end

-- ---- Subset ----

local Subset = Dataset:extend "Subset"
dataset.Subset = Subset

-- Subset(set, indices): the samples at these positions, in this order.
local bind_subset = options.signature("Subset", "dataset: dataset, indices: tensor|list")
function Subset:init(...)
  local o = bind_subset(...)
  self.dataset = o.dataset
  self.indices = core.keep(dataset.positions("Subset", o.indices,
    dataset.count("Subset", o.dataset)))
end

function Subset:len() return #self.indices end

function Subset:get(i)
  dataset.check_position(self.class, i, self:len())
  return self.dataset:get(self.indices[i]:item())
end

Subset.native_get = Subset.get
function Subset:columns()
  local columns, rows = dataset.source(self.dataset)
  if columns then return columns, rows and rows[self.indices] or self.indices end
end

-- ---- sets of sets ----

local ConcatDataset = Dataset:extend "ConcatDataset"
dataset.ConcatDataset = ConcatDataset

-- ConcatDataset{a, b, ...}: the samples of a, then those of b, ...
local bind_concat = options.signature("ConcatDataset", "datasets: list")
function ConcatDataset:init(...)
  local sets = bind_concat(...).datasets
  if #sets == 0 then caller.raise("ConcatDataset: wanted a list of data sets, got none") end
  self.datasets, self.ends = sets, {}
  local n = 0
  for k, set in ipairs(sets) do
    n = n + dataset.count(("ConcatDataset: %d"):format(k), set)
    self.ends[k] = n
  end
end

function ConcatDataset:len() return self.ends[#self.ends] end

function ConcatDataset:get(i)
  dataset.check_position(self.class, i, self:len())
  local low, high = 1, #self.ends -- the first set that ends at i or later
  while low < high do
    local middle = (low + high) // 2
    if self.ends[middle] < i then low = middle + 1 else high = middle end
  end
  return self.datasets[low]:get(i - (self.ends[low - 1] or 0))
end

local StackDataset = Dataset:extend "StackDataset"
dataset.StackDataset = StackDataset

-- StackDataset(a, b, ...): sample i is that of a, then that of b, ...
-- StackDataset{image = a, text = b}: a table of the first value of each.
function StackDataset:init(...)
  local sets = {...}
  if #sets == 1 and type(sets[1]) == "table" and not sets[1].get then
    sets, self.is_named = sets[1], true
  end
  if next(sets) == nil then caller.raise("StackDataset: wanted data sets, got none") end
  for key, set in pairs(sets) do
    local n = dataset.count(("StackDataset: %s"):format(key), set)
    self.n = self.n or n
    if n ~= self.n then
      caller.raise("StackDataset: %s has %d samples, another %d", key, n, self.n)
    end
  end
  self.datasets = sets
end

function StackDataset:len() return self.n end

function StackDataset:get(i)
  dataset.check_position(self.class, i, self.n)
  local sample, n = {}, 0
  if self.is_named then
    for name, set in pairs(self.datasets) do sample[name] = set:get(i) end
    return sample
  end
  for _, set in ipairs(self.datasets) do
    local more = table.pack(set:get(i))
    table.move(more, 1, more.n, n + 1, sample)
    n = n + more.n
  end
  return table.unpack(sample, 1, n)
end

StackDataset.native_get = StackDataset.get
function StackDataset:columns()
  local all = {}
  for _, set in ipairs(self.is_named and {} or self.datasets) do
    local columns, rows = dataset.source(set)
    if not columns or rows then return nil end
    table.move(columns, 1, #columns, #all + 1, all)
  end
  return #all > 0 and all or nil
end

-- ---- random_split ----

-- Shares of n that sum to 1, as counts: rounded down, the rest dealt out one by
-- one from the first on.
local function counts_of(shares, n)
  local counts, left = {}, n
  for k, share in ipairs(shares) do
    counts[k] = math.floor(n * share)
    left = left - counts[k]
  end
  for k = 1, left do
    local at = (k - 1) % #counts + 1
    counts[at] = counts[at] + 1
  end
  return counts
end

-- random_split(set, lengths, {seed = n}), or {generator = g} -> as many Subsets, which
-- share nothing.
-- lengths: counts that sum to #set, or shares that sum to 1.
-- local train, valid = data.random_split(set, {0.9, 0.1})
local bind_split = options.signature("random_split",
  "dataset: dataset, lengths: list, generator?: generator, *, seed?: integer")
function dataset.random_split(...)
  local opts = bind_split(...)
  local set, lengths = opts.dataset, opts.lengths
  dataset.check_seed("random_split", opts)
  local n = dataset.count("random_split", set)
  local sum, are_counts = 0, true
  for _, v in ipairs(lengths) do
    if type(v) ~= "number" or v < 0 then
      caller.raise("random_split: a length of %s", tostring(v))
    end
    sum, are_counts = sum + v, are_counts and math.type(v) == "integer"
  end
  if not are_counts and math.abs(sum - 1) < 1e-9 then
    lengths = counts_of(lengths, n)
  elseif not are_counts or sum ~= n then
    caller.raise("random_split: lengths sum to %s, wanted %d (counts) or 1.0 (shares)",
      tostring(sum), n)
  end
  local order = core.permutation(n, dataset.draw_seed(opts), 0)
  local parts, at = {}, 1
  for k, length in ipairs(lengths) do
    parts[k] = Subset(set, order:narrow(1, at, length):clone())
    at = at + length
  end
  return table.unpack(parts)
end

return dataset
