-- Samplers: in which order an epoch goes through the samples.
--
-- A sampler answers `order(epoch)`: positions, as an int64 tensor or a list; and
-- `len()`, how many these are. A batch sampler answers `batches(epoch)`: a list of
-- such positions for each batch; and `len()`, how many batches. The same seed and
-- epoch give the same order, so that a loader can go on where it was.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local dataset = require "demilune.data.dataset"

local sampler = {}

local Sampler = dataset.class "Sampler"
function Sampler:len() return self.n end
function Sampler:order() caller.raise("%s has no order(epoch)", self.class) end
sampler.Sampler = Sampler

-- The seed that the options say.
local function seed_of(what, o)
  dataset.check_seed(what, o)
  return dataset.draw_seed(o)
end

-- A seed for the k-th epoch, or round, of another one; that one itself for 0.
local function seed_for(seed, k) return seed ~ k * 0x9e3779b97f4a7c15 end

local function generator_for(seed, epoch)
  return core.Generator():manual_seed(seed_for(seed, epoch))
end

local function check_count(what, name, v, least)
  if v < least then
    caller.raise("%s: %s is %s, wanted a count of at least %d", what, name, tostring(v), least)
  end
end

-- ---- orders ----

-- SequentialSampler(set): 1, 2, ...
local SequentialSampler = Sampler:extend "SequentialSampler"
local bind_sequential = options.signature("SequentialSampler", "data_source: dataset")
function SequentialSampler:init(...)
  self.n = dataset.count(self.class, bind_sequential(...).data_source)
end
function SequentialSampler:order()
  return core.arange(1, self.n, {dtype = "int64", device = "cpu"})
end
sampler.SequentialSampler = SequentialSampler

-- RandomSampler(set, {seed = n or generator = g, replacement = false, num_samples = all}):
-- a new permutation each epoch, and as many more as num_samples takes; or, with
-- replacement, num_samples independent draws.
local RandomSampler = Sampler:extend "RandomSampler"
local bind_random = options.signature("RandomSampler", [[data_source: dataset,
  replacement: boolean = false, num_samples?: integer, generator?: generator, *, seed?: integer]])
function RandomSampler:init(...)
  local o = bind_random(...)
  local n = dataset.count(self.class, o.data_source)
  self.n, self.n_samples, self.replacement = o.num_samples or n, n, o.replacement
  check_count(self.class, "num_samples", self.n, o.num_samples and 1 or 0)
  if n == 0 and self.n > 0 then
    caller.raise("%s: %d samples of a data set without any", self.class, self.n)
  end
  self.seed = seed_of(self.class, o)
end
function RandomSampler:order(epoch)
  if self.replacement and self.n > 0 then
    return core.randint(self.n_samples, {self.n},
      {generator = generator_for(self.seed, epoch), dtype = "int64", device = "cpu"})
  elseif self.n == self.n_samples then
    return core.permutation(self.n, self.seed, epoch)
  end
  local rounds, left = {}, self.n
  while left > 0 do
    local round = core.permutation(self.n_samples, seed_for(self.seed, #rounds), epoch)
    rounds[#rounds + 1] = left < #round and round:narrow(1, 1, left) or round
    left = left - #round
  end
  return core.cat(rounds)
end
sampler.RandomSampler = RandomSampler

-- SubsetRandomSampler(indices, {seed = n}), or {generator = g}: these positions, shuffled.
local SubsetRandomSampler = Sampler:extend "SubsetRandomSampler"
local bind_subset = options.signature("SubsetRandomSampler",
  "indices: tensor|list, generator?: generator, *, seed?: integer")
function SubsetRandomSampler:init(...)
  local o = bind_subset(...)
  self.indices = core.keep(dataset.positions(self.class, o.indices, math.maxinteger))
  self.n, self.seed = #self.indices, seed_of(self.class, o)
end
function SubsetRandomSampler:order(epoch)
  return self.indices[core.permutation(self.n, self.seed, epoch)]
end
sampler.SubsetRandomSampler = SubsetRandomSampler

-- WeightedRandomSampler(weights, num_samples, {replacement = true, seed = n or generator =
-- g}): num_samples draws of the positions 1..#weights, each as likely as its weight is
-- large; without replacement a position comes once.
local WeightedRandomSampler = Sampler:extend "WeightedRandomSampler"
local bind_weighted = options.signature("WeightedRandomSampler", [[weights: tensor|list,
  num_samples: integer, replacement: boolean = true, generator?: generator, *, seed?: integer]])
function WeightedRandomSampler:init(...)
  local what, o = self.class, bind_weighted(...)
  local num_samples = o.num_samples
  local w = core.tensor(o.weights, {dtype = "float64", device = "cpu"})
  if w:dim() ~= 1 then
    caller.raise("%s: weights of shape %s, wanted one dim", what, tostring(w.shape))
  end
  check_count(what, "num_samples", num_samples, 1)
  local seed = seed_of(what, o)
  if not (w:ge(0):all():item() and w:isfinite():all():item() and w:sum():item() > 0) then
    caller.raise("%s: wanted finite weights of 0 or more, one of them above 0", what)
  end
  local positive = w:gt(0):sum():item()
  if not o.replacement and num_samples > positive then
    caller.raise("%s: %d samples without replacement, %d weights are above 0", what, num_samples,
      positive)
  end
  self.weights, self.n, self.seed = core.keep(w), num_samples, seed
  self.replacement = o.replacement
end
function WeightedRandomSampler:order(epoch)
  return core.multinomial(self.weights, self.n, {replacement = self.replacement,
    generator = generator_for(self.seed, epoch)})
end
sampler.WeightedRandomSampler = WeightedRandomSampler

-- ---- shares of several processes ----

-- DistributedSampler(set, {num_replicas =, rank =, shuffle = true, seed = 0, drop_last =
-- false}): the samples of one process among num_replicas that train together. All of them
-- draw the same order, and each takes every num_replicas-th position. rank is the number
-- that launchers give, from 0; both are by default those of the process group
-- (dist.init_process_group), else what the environment's WORLD_SIZE and RANK say, or 1 and 0.
-- Where the samples do not divide, the first ones come twice, or with drop_last the last ones
-- not at all.
local DistributedSampler = Sampler:extend "DistributedSampler"
local bind_distributed = options.signature("DistributedSampler", [[dataset: dataset,
  num_replicas?: integer, rank?: integer, shuffle: boolean = true, seed: integer = 0,
  drop_last: boolean = false]])
function DistributedSampler:init(...)
  local what, o = self.class, bind_distributed(...)
  local total = dataset.count(what, o.dataset)
  local function from_environment(name) return math.tointeger(tonumber(os.getenv(name))) end
  local rank_here = core._dist_rank() -- nil where there is no process group
  local n = o.num_replicas or rank_here and core._dist_size() or from_environment "WORLD_SIZE" or 1
  local rank = o.rank or rank_here or from_environment "RANK" or 0
  check_count(what, "num_replicas", n, 1)
  if rank < 0 or rank >= n then
    caller.raise("%s: rank is %s, wanted 0 to %d", what, tostring(rank), n - 1)
  end
  self.num_replicas, self.rank, self.total = n, rank, total
  self.n = o.drop_last and total // n or (total + n - 1) // n
  self.shuffle, self.seed = o.shuffle, o.seed
end

--- The order is that of epoch e from here on, whichever the loader is in.
function DistributedSampler:set_epoch(e)
  if math.type(e) ~= "integer" then
    caller.raise("set_epoch: epoch is %s, wanted an integer", tostring(e))
  end
  self.epoch = e
end

function DistributedSampler:order(epoch)
  if self.n == 0 then return core.zeros(0, {dtype = "int64", device = "cpu"}) end
  local order = self.shuffle and core.permutation(self.total, self.seed, self.epoch or epoch)
    or core.arange(1, self.total, {dtype = "int64", device = "cpu"})
  -- the positions 1 + rank, 1 + rank + num_replicas, ... of the order; past its end from its start
  local positions = core.arange(self.n, {dtype = "int64", device = "cpu"}) - 1
  return order[(positions * self.num_replicas + self.rank):remainder(self.total) + 1]
end
sampler.DistributedSampler = DistributedSampler

-- ---- batches ----

-- BatchSampler(sampler, batch_size, drop_last): what the sampler gives, in lists of
-- batch_size. A class of one's own has batches(epoch) and len() of its own.
local BatchSampler = Sampler:extend "BatchSampler"
local bind_batches = options.signature("BatchSampler",
  "sampler: sampler, batch_size: integer, drop_last: boolean = false")
function BatchSampler:init(...)
  local o = bind_batches(...)
  local from = o.sampler
  if type(from) ~= "table" or not (from.order and from.len) then
    caller.raise("%s: wanted a sampler, with order(epoch) and len(), got %s", self.class,
      type(from))
  end
  check_count(self.class, "batch_size", o.batch_size, 1)
  self.sampler, self.batch_size, self.drop_last = from, o.batch_size, o.drop_last
end
function BatchSampler:len()
  local n = self.sampler:len()
  return self.drop_last and n // self.batch_size or -(-n // self.batch_size)
end
function BatchSampler:batches(epoch)
  local order, list = dataset.positions(self.class, self.sampler:order(epoch), math.maxinteger), {}
  local last = self.drop_last and #order - #order % self.batch_size or #order
  for first = 1, last, self.batch_size do
    list[#list + 1] = order:narrow(1, first, math.min(self.batch_size, last - first + 1))
  end
  return list
end
sampler.BatchSampler = BatchSampler

return sampler
