-- Samplers: in which order an epoch goes through the samples.
--
-- A sampler answers `order(epoch)`: positions, as an int64 tensor or a list; and
-- `len()`, how many these are. The same seed and epoch give the same order, so
-- that a loader can go on where it was.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local dataset = require "demilune.data.dataset"

local sampler = {}

local Sampler = dataset.class "Sampler"
function Sampler:len() return self.n end
function Sampler:order() caller.raise("%s has no order(epoch)", self.class) end
sampler.Sampler = Sampler

local function seed_of(what, opts)
  local o = options.read(what, opts, {seed = options.NONE, generator = options.NONE})
  dataset.check_seed(what, o)
  return dataset.draw_seed(o)
end

-- SequentialSampler(set): 1, 2, ...
local SequentialSampler = Sampler:extend "SequentialSampler"
function SequentialSampler:init(set) self.n = dataset.count(self.class, set) end
function SequentialSampler:order()
  return core.arange(1, self.n, {dtype = "int64", device = "cpu"})
end
sampler.SequentialSampler = SequentialSampler

-- RandomSampler(set, {seed = n}), or {generator = g}: a new permutation each epoch.
local RandomSampler = Sampler:extend "RandomSampler"
function RandomSampler:init(set, opts)
  self.n, self.seed = dataset.count(self.class, set), seed_of(self.class, opts)
end
function RandomSampler:order(epoch) return core.permutation(self.n, self.seed, epoch) end
sampler.RandomSampler = RandomSampler

-- SubsetRandomSampler(indices, {seed = n}), or {generator = g}: these positions, shuffled.
local SubsetRandomSampler = Sampler:extend "SubsetRandomSampler"
function SubsetRandomSampler:init(indices, opts)
  self.indices = core.keep(dataset.positions(self.class, indices, math.maxinteger))
  self.n, self.seed = #self.indices, seed_of(self.class, opts)
end
function SubsetRandomSampler:order(epoch)
  return self.indices[core.permutation(self.n, self.seed, epoch)]
end
sampler.SubsetRandomSampler = SubsetRandomSampler

return sampler
