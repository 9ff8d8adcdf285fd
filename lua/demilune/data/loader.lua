-- DataLoader: batches of a data set, in a seeded order.
--
-- An epoch's order follows from (seed, epoch) alone, so that it is the same for
-- every number of workers, and a saved position can be taken up again.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local dataset = require "demilune.data.dataset"
local ahead = require "demilune.data.ahead"
local closing = require "demilune.closing"

local loader = {}

-- ---- collating what Lua code made ----

local collate_values

local function collate_fields(tables)
  local out = {}
  for key in pairs(tables[1]) do
    local column = {}
    for i, t in ipairs(tables) do column[i] = t[key] end
    out[key] = collate_values(column, #tables, tostring(key))
  end
  return out
end

local function kind_of(v) return core.is_tensor(v) and "tensor" or type(v) end

-- n values of one field, as one: tensors stacked, numbers and booleans as a
-- tensor, tables field by field, strings as a list.
function collate_values(values, n, field)
  local kind = kind_of(values[1])
  for i = 2, n do
    if kind_of(values[i]) ~= kind then
      caller.raise("DataLoader: field %s is a %s in one sample and a %s in another", field, kind,
        kind_of(values[i]))
    end
  end
  if kind == "tensor" then return core.stack(values) end
  if kind == "number" or kind == "boolean" then
    return core.tensor(values, {device = "cpu"})
  end
  if kind == "table" then return collate_fields(values) end
  if kind == "string" then return values end
  caller.raise("DataLoader: field %s of a sample is a %s; hint: give a collate_fn", field, kind)
end

-- default_collate{{x, y}, {x, y}, ...} -> all x, all y
function loader.default_collate(samples)
  local width, columns = samples[1].n or #samples[1], {}
  for k = 1, width do
    local column = {}
    for i, sample in ipairs(samples) do column[i] = sample[k] end
    columns[k] = collate_values(column, #samples, tostring(k))
  end
  return table.unpack(columns, 1, width)
end

-- Does in Lua what the C engine does: next() gives a batch, nil at the end.
local LuaBatches = {}
LuaBatches.__index = LuaBatches

-- A batch of nothing would end the loop, or look like one that is not ready.
local function check_batch(first, ...)
  if not first then caller.raise("DataLoader: collate_fn gave %s", tostring(first)) end
  return first, ...
end

function LuaBatches:next()
  local first = self.done + 1
  local last = math.min(self.done + self.batch_size, #self.order)
  if first > last or self.drop_last and last - first + 1 < self.batch_size then return nil end
  local samples = {}
  for i = first, last do
    samples[#samples + 1] = table.pack(self.dataset:get(self.order[i]))
  end
  self.done = last
  if self.pin then return ahead.pinned(self.pin, check_batch(self.collate(samples))) end
  return check_batch(self.collate(samples))
end

function LuaBatches:stop() self.order = {} end

-- ---- one run through an epoch ----

local Run = {}
Run.__index = Run

-- Ends it, at any moment, more than once if need be.
function Run:finish()
  self.batches:stop()
  if self.loader.run == self then self.loader.run = nil end
end
Run.__close = Run.finish
Run.__gc = Run.finish

local step

-- The engine answers false when no batch became ready within some 50 ms: being
-- back in Lua then lets Ctrl-C through.
local function deliver(run, first, ...)
  if first == false then return step(run) end
  if first == nil then
    run:finish()
    return nil
  end
  run.position = run.position + 1
  return run.position, first, ...
end

function step(run) return deliver(run, run.batches:next()) end

-- ---- DataLoader ----

local DataLoader = {class = "DataLoader"}
DataLoader.__index = DataLoader
DataLoader.__len = function(self) return self:len() end

local DEFAULTS = {
  batch_size = 1, shuffle = false, drop_last = false, num_workers = 0, prefetch_factor = 2,
  sampler = options.NONE, collate_fn = options.NONE, seed = options.NONE,
  generator = options.NONE, pin_memory = false, device = options.NONE,
}

local function check_count(opts, name, least, most)
  local v = opts[name]
  if math.type(v) ~= "integer" or v < least or v > most then
    caller.raise("DataLoader: %s is %s, wanted %s", name, tostring(v),
      most == math.maxinteger and ("a count of at least %d"):format(least)
      or ("%d to %d"):format(least, most))
  end
end

local function check(opts)
  check_count(opts, "batch_size", 1, math.maxinteger)
  check_count(opts, "num_workers", 0, 256)
  check_count(opts, "prefetch_factor", 1, 64)
  local sampler = opts.sampler
  dataset.check_seed("DataLoader", opts)
  if sampler and opts.shuffle then
    caller.raise("DataLoader: shuffle = true and a sampler: one of them decides the order")
  elseif sampler and not (type(sampler) == "table" and sampler.order and sampler.len) then
    caller.raise("DataLoader: sampler: wanted order(epoch) and len(), got %s", type(sampler))
  elseif opts.collate_fn and type(opts.collate_fn) ~= "function" then
    caller.raise("DataLoader: collate_fn: function expected, got %s", type(opts.collate_fn))
  end
end

-- For which CUDA device batches are pinned, and to which they go: nil for none.
local function places(opts)
  local device = opts.device and core.empty(0, {device = opts.device}).device
  if device and device ~= "cpu" then return device, device end
  if not opts.pin_memory then return nil end
  if core.cuda_count() > 0 then return "cuda:0" end
  caller.warn_once("pin_memory", "DataLoader: pin_memory without a CUDA device has no effect")
end

-- DataLoader(set, {batch_size =, shuffle =, num_workers =, ...}). The seed is by
-- default the one of dm.manual_seed; with generator = dm.Generator() it is drawn from
-- that, once: every epoch follows from it.
-- pin_memory = true: batches lie in memory that x:to("cuda", {non_blocking = true})
-- copies from without waiting. device = "cuda": they lie on that device, and the next
-- one is copied there while the program works on the one in hand.
local function construct(class, set, given)
  local n = dataset.count("DataLoader", set)
  local self = setmetatable(options.read("DataLoader", given, DEFAULTS), class)
  check(self)
  self.dataset, self.n_samples = set, n
  self.native = not self.collate_fn and dataset.source(set) ~= nil
  if not self.native and self.num_workers > 0 then
    caller.raise("DataLoader: num_workers = %d: workers are C threads that cut batches out of "
      .. "tensors, and the samples of this data set are made by Lua code; hint: num_workers = 0, "
      .. "or a TensorDataset without collate_fn", self.num_workers)
  end
  self.pin, self.device = places(self)
  self.stream = self.device and core.cuda_stream(self.device)
  self.seed, self.generator = dataset.draw_seed(self), nil
  self.next_run = {epoch = 1, position = 0}
  return self
end

-- The number of batches in an epoch.
function DataLoader:len()
  local n = self.sampler and self.sampler:len() or self.n_samples
  return self.drop_last and n // self.batch_size or -(-n // self.batch_size)
end

local function order_of(self, epoch)
  if self.sampler then
    return dataset.positions("DataLoader: sampler", self.sampler:order(epoch), self.n_samples)
  elseif self.shuffle then
    return core.permutation(self.n_samples, self.seed, epoch)
  end
  return core.arange(1, self.n_samples, {dtype = "int64", device = "cpu"})
end

-- What is left of an order after so many samples.
local function rest_of(order, skip)
  skip = math.min(skip, #order)
  return skip == 0 and order or order:narrow(1, skip + 1, #order - skip)
end

local function native_batches(self, epoch, order)
  local columns, rows = dataset.source(self.dataset)
  local tensors, transforms = {}, {}
  for k, column in ipairs(columns) do
    tensors[k], transforms[k] = column.tensor, column.image or false
  end
  local engine = core.loader_new{
    tensors = tensors, transforms = transforms, batch_size = self.batch_size,
    drop_last = self.drop_last, num_workers = self.num_workers,
    prefetch = self.prefetch_factor, seed = self.seed, pin = self.pin,
  }
  engine:epoch(epoch, rows and rows[order] or order)
  return engine
end

local function lua_batches(self, order)
  return setmetatable({
    dataset = self.dataset, order = #order > 0 and order:totable() or {}, done = 0,
    batch_size = self.batch_size, drop_last = self.drop_last,
    collate = self.collate_fn or loader.default_collate, pin = self.pin,
  }, LuaBatches)
end

local function batches_of(self, epoch, order)
  local batches = self.native and native_batches(self, epoch, order) or lua_batches(self, order)
  return self.device and ahead.new(batches, self.device, self.stream, self.native) or batches
end

-- Ends the loop that runs, if any, and its workers. A loop does so by itself when it is
-- left; but for Lua before 5.4.5 and some loops with a `break` (see closing.lua), whose
-- workers wait for this, or for the garbage collector once the next loop runs.
function DataLoader:finish()
  if self.run then self.run:finish() end
end

-- for i, x, y in loader:iter() do: i counts the batches of the epoch from 1.
function DataLoader:iter()
  local epoch, position = self.next_run.epoch, self.next_run.position
  local order = rest_of(order_of(self, epoch), position * self.batch_size)
  local run = setmetatable({
    loader = self, epoch = epoch, position = position,
    batches = batches_of(self, epoch, order),
  }, Run)
  self.next_run = {epoch = epoch + 1, position = 0}
  self.run = run
  return function() return step(run) end, nil, nil, closing(run, 1)
end

-- Where the loader stands: inside a loop, after the batch in hand; outside, at
-- the start of the next epoch. A loader with this state goes on with the same
-- batches, provided data set and options are the same.
function DataLoader:state_dict()
  local at = self.run or self.next_run
  return {seed = self.seed, epoch = at.epoch, position = at.position}
end

function DataLoader:load_state_dict(state)
  for key, least in pairs{seed = math.mininteger, epoch = 1, position = 0} do
    local v = type(state) == "table" and state[key]
    if math.type(v) ~= "integer" or v < least then
      caller.raise("DataLoader: load_state_dict: %s is %s", key, tostring(v))
    end
  end
  self:finish()
  self.seed = state.seed
  self.next_run = {epoch = state.epoch, position = state.position}
end

function DataLoader:__tostring()
  local set = getmetatable(self.dataset) and tostring(self.dataset)
    or ("%d samples"):format(self.n_samples)
  return ("DataLoader(%s, %d batches of %d%s%s, %d workers%s)"):format(set, self:len(),
    self.batch_size, self.shuffle and ", shuffled" or "",
    self.drop_last and ", a short last one dropped" or "", self.num_workers,
    self.device and ", on " .. self.device or self.pin and ", pinned" or "")
end

loader.DataLoader = setmetatable(DataLoader, {__call = construct})

return loader
