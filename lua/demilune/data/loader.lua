-- DataLoader: batches of a data set. The order of an epoch depends on the seed
-- and the epoch's number only, so it is the same for any number of workers, and
-- a loader restored from its state goes on where it was.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local DataLoader = {}
DataLoader.__index = DataLoader
DataLoader.__name = "demilune.DataLoader"

local NONE = options.NONE
local DEFAULTS = {batch_size = 1, shuffle = false, sampler = NONE, drop_last = false,
  num_workers = 0, prefetch_factor = 2, collate_fn = NONE, seed = NONE}

local function check_count(name, v, low)
  if math.type(v) ~= "integer" or v < low then
    caller.raise("DataLoader: %s is %s, wanted an integer from %d", name, tostring(v), low)
  end
end

-- Rows of a data set's columns that a Subset picks, or nil.
local function columns_of(set)
  if set.columns then return set:columns() end
  if set.indices and set.dataset and set.dataset.columns then
    local tensors, transforms = set.dataset:columns()
    return tensors, transforms, set.indices
  end
end

-- opts.seed: by default drawn from the default generator, so that
-- dm.manual_seed fixes it.
function DataLoader.new(set, opts)
  local self = setmetatable(options.read("DataLoader", opts, DEFAULTS), DataLoader)
  check_count("batch_size", self.batch_size, 1)
  check_count("num_workers", self.num_workers, 0)
  check_count("prefetch_factor", self.prefetch_factor, 1)
  if set == nil then caller.raise("DataLoader: the data set is nil") end
  if self.sampler and self.shuffle then
    caller.raise("DataLoader: a sampler and shuffle exclude each other")
  end
  self.dataset = set
  self.seed = self.seed or core.randint(0, 2 ^ 31 - 1, {1}):item()
  self.epoch, self.position = 0, 0
  local tensors, transforms, rows = columns_of(set)
  if tensors and not self.collate_fn then
    self._rows = rows and core.tensor(rows, {dtype = "int64"})
    self._engine = core.loader_new{tensors = tensors, transforms = transforms,
      batch_size = self.batch_size, drop_last = self.drop_last,
      num_workers = self.num_workers, prefetch = self.prefetch_factor, seed = self.seed}
  elseif self.num_workers > 0 then
    caller.raise("DataLoader: num_workers is %d, but this data set is read by Lua code, which " ..
      "runs in one thread; hint: num_workers = 0, or a data set with columns()", self.num_workers)
  end
  return self
end

local function count_samples(self)
  return self.sampler and #self.sampler or #self.dataset
end

-- Batches of an epoch.
function DataLoader:__len()
  local n = count_samples(self)
  return self.drop_last and n // self.batch_size or (n + self.batch_size - 1) // self.batch_size
end

-- Sample numbers of this epoch: int64, from 1.
local function order_of(self)
  if self.sampler then
    local order = {}
    for i in self.sampler:iter() do order[#order + 1] = i end
    return core.tensor(order, {dtype = "int64"})
  end
  local n = #self.dataset
  if not self.shuffle then return core.arange(n, {dtype = "int64"}) end
  local state = core.get_rng_state()
  core.manual_seed(self.seed * 1000003 + self.epoch)
  local order = core.randperm(n)
  core.set_rng_state(state)
  return order
end

-- ---- batches made in Lua ----

-- One field of all samples as a tensor: numbers and tensors are stacked.
local function stack(values)
  local first = values[1]
  if core.is_tensor(first) then return core.stack(values) end
  if type(first) == "number" then
    return core.tensor(values, {dtype = math.type(first) == "integer" and "int64" or nil})
  end
  return values
end

function DataLoader.default_collate(samples)
  local fields = {}
  for k = 1, samples[1].n do
    local values = {}
    for i, sample in ipairs(samples) do values[i] = sample[k] end
    fields[k] = stack(values)
  end
  return table.unpack(fields)
end

local function lua_batches(self, order)
  local numbers, at = order:totable(), 0
  return function()
    local n = math.min(self.batch_size, #numbers - at)
    if n <= 0 or self.drop_last and n < self.batch_size then return nil end
    local samples = {}
    for i = 1, n do samples[i] = table.pack(self.dataset:get(numbers[at + i])) end
    at = at + n
    return (self.collate_fn or DataLoader.default_collate)(samples)
  end
end

local function engine_batches(self, order)
  if self._rows then order = core.index_select(self._rows, 1, order) end
  self._engine:epoch(self.epoch, order)
  local engine = self._engine
  local function take(first, ...)
    if first == false then return take(engine:next()) end
    return first, ...
  end
  return function() return take(engine:next()) end
end

-- ---- iterating ----

local function finish(self)
  if self._engine then self._engine:stop() end
  if self._open then
    self._open = false
    self.epoch, self.position = self.epoch + 1, 0
  end
end

-- For `for i, x, y in loader:iter() do`. Leaving the loop in any way ends the
-- epoch and its workers.
function DataLoader:iter()
  finish(self)
  local order = order_of(self)
  local skip = math.min(self.position * self.batch_size, #order)
  if skip > 0 then order = order:narrow(1, skip + 1, #order - skip) end
  local next_batch = (self._engine and engine_batches or lua_batches)(self, order)
  self._open = true
  local function step(_, i)
    local function hand_out(first, ...)
      if first == nil then
        finish(self)
        return nil
      end
      self.position = i + 1
      return i + 1, first, ...
    end
    return hand_out(next_batch())
  end
  return step, self, self.position, setmetatable({}, {__close = function() finish(self) end})
end

-- Where the loader is: saved within an epoch, the next iter() goes on there.
function DataLoader:state_dict()
  return {seed = self.seed, epoch = self.epoch, position = self.position}
end

function DataLoader:load_state_dict(state)
  finish(self)
  self.seed, self.epoch, self.position = state.seed, state.epoch, state.position
end

function DataLoader:__tostring()
  return ("DataLoader(%d samples, batch_size = %d, %d batches%s, %d workers)"):format(
    count_samples(self), self.batch_size, #self, self.shuffle and ", shuffled" or "",
    self.num_workers)
end

return setmetatable(DataLoader, {__call = function(_, ...) return DataLoader.new(...) end})
