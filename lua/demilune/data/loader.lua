-- DataLoader: batches of a data set, in a seeded order.
--
-- An epoch's order follows from (seed, epoch) alone, so that it is the same for
-- every number of workers, and a saved position can be taken up again.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local dataset = require "demilune.data.dataset"
local prefetch = require "demilune.data.prefetch"
local collate = require "demilune.data.collate"
local closing = require "demilune.closing"

local loader = {}

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

-- Batches of the epoch that are behind it. One that cannot be made counts: the next call
-- gives the one after it. (Where the engine runs out of memory, it makes that one again.)
function Run:position() return self.first + self.batches:passed() end

local step

-- The engine answers false when no batch became ready within some 50 ms: being
-- back in Lua then lets Ctrl-C through.
local function deliver(run, first, ...)
  if first then return run:position(), first, ... end
  if first == false then return step(run) end
  run:finish()
  return nil
end

function step(run) return deliver(run, run.batches:next()) end

-- ---- DataLoader ----

local DataLoader = {class = "DataLoader"}
DataLoader.__index = DataLoader
DataLoader.__len = function(self)
  return self:len() or caller.raise("DataLoader: how many batches a %s gives is not known; hint: "
    .. "give it a len(), or count them in a loop", self.dataset.class or "stream")
end

local DEFAULTS = {
  batch_size = 1, shuffle = false, drop_last = false, num_workers = 0, prefetch_factor = 2,
  sampler = options.NONE, batch_sampler = options.NONE, collate_fn = options.NONE,
  seed = options.NONE,
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

-- What decides the order, and what cuts it, is one thing of these.
local function check_order(opts, given, is_stream)
  local sampler, batches = opts.sampler, opts.batch_sampler
  if sampler and opts.shuffle then
    caller.raise("DataLoader: shuffle = true and a sampler: one of them decides the order")
  elseif sampler and not (type(sampler) == "table" and sampler.order and sampler.len) then
    caller.raise("DataLoader: sampler: wanted order(epoch) and len(), got %s", type(sampler))
  elseif batches and not (type(batches) == "table" and batches.batches and batches.len) then
    caller.raise("DataLoader: batch_sampler: wanted batches(epoch) and len(), got %s",
      type(batches))
  end
  for _, name in ipairs{"batch_size", "shuffle", "sampler", "drop_last"} do
    if batches and given[name] then
      caller.raise("DataLoader: batch_sampler and %s: the batches decide it", name)
    end
  end
  for _, name in ipairs{"shuffle", "sampler", "batch_sampler"} do
    if is_stream and opts[name] then
      caller.raise("DataLoader: %s with a stream: it comes in its own order; hint: shuffle in "
        .. "its iter(epoch)", name)
    end
  end
end

local function check(opts, given, is_stream)
  check_count(opts, "batch_size", 1, math.maxinteger)
  check_count(opts, "num_workers", 0, 256)
  check_count(opts, "prefetch_factor", 1, 64)
  dataset.check_seed("DataLoader", opts)
  check_order(opts, given or {}, is_stream)
  if opts.collate_fn and type(opts.collate_fn) ~= "function" then
    caller.raise("DataLoader: collate_fn: function expected, got %s", type(opts.collate_fn))
  end
end

-- For which CUDA device batches are pinned, and to which they go: nil for none.
local function devices(opts)
  local device = opts.device and core.empty(0, {device = opts.device}).device
  if device and device ~= "cpu" then return device, device end
  if not opts.pin_memory then return nil end
  if core.cuda_count() > 0 then return "cuda:0" end
  caller.warn_once("pin_memory", "DataLoader: pin_memory without a CUDA device has no effect")
end

-- DataLoader(set, {batch_size =, shuffle =, num_workers =, ...}). The seed is by
-- default the one of dm.manual_seed; with generator = dm.Generator() it is drawn from
-- that, once: every epoch follows from it. The set may be a stream (data.IterableDataset),
-- which comes in its own order. batch_sampler in place of batch_size, shuffle, sampler and
-- drop_last: batches(epoch), a list of lists of positions, and len().
-- pin_memory = true: batches lie in memory that x:to("cuda", {non_blocking = true})
-- copies from without waiting. device = "cuda": they lie on that device, and the next
-- one is copied there while the program works on the one in hand.
local function construct(class, set, given)
  local is_stream = dataset.is_stream(set)
  local n = not is_stream and dataset.count("DataLoader", set) or nil
  local self = setmetatable(options.read("DataLoader", given, DEFAULTS), class)
  check(self, given, is_stream)
  self.dataset, self.n_samples = set, n
  self.is_stream = is_stream
  self.native = not self.collate_fn and dataset.source(set) ~= nil
  if not self.native and self.num_workers > 0 then
    caller.raise("DataLoader: num_workers = %d: workers are C threads that cut batches out of "
      .. "tensors, and the samples of this data set are made by Lua code; hint: num_workers = 0, "
      .. "or a TensorDataset without collate_fn", self.num_workers)
  end
  self.pin, self.device = devices(self)
  self.stream = self.device and core.cuda_stream(self.device)
  self.seed, self.generator = dataset.draw_seed(self), nil
  self.next_run = {epoch = 1, position = 0}
  return self
end

-- The number of batches in an epoch; nil where a stream does not know it.
function DataLoader:len()
  if self.batch_sampler then return self.batch_sampler:len() end
  local n = self.sampler and self.sampler:len() or self.n_samples
    or dataset.stream_length(self.dataset)
  if not n then return nil end
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

-- The positions of a batch sampler's batches, but for the first `skip` of them, and a list
-- of how many each has.
local function cut_order(self, epoch, skip)
  local parts, sizes = {core.zeros(0, {dtype = "int64", device = "cpu"})}, {}
  for k, batch in ipairs(self.batch_sampler:batches(epoch)) do
    local part = dataset.positions(("DataLoader: batch %d"):format(k), batch, self.n_samples)
    if #part == 0 then caller.raise("DataLoader: batch %d of the batch_sampler is empty", k) end
    if k > skip then parts[#parts + 1], sizes[#sizes + 1] = part, #part end
  end
  return core.cat(parts), sizes
end

local function native_batches(self, epoch, order, sizes)
  local columns, rows = dataset.source(self.dataset)
  local sources, transforms = {}, {}
  for k, column in ipairs(columns) do
    sources[k], transforms[k] = column.tensor or column, column.augment or false
  end
  local engine = core.loader_new{
    columns = sources, transforms = transforms, batch_size = self.batch_size,
    drop_last = self.drop_last, num_workers = self.num_workers,
    prefetch = self.prefetch_factor, seed = self.seed, pin = self.pin,
  }
  engine:epoch(epoch, rows and rows[order] or order,
    sizes and core.tensor(sizes, {dtype = "int64", device = "cpu"}))
  return engine
end

local function lua_batches(self, order, sizes)
  return collate.of_positions(self.dataset, #order > 0 and order:totable() or {}, {
    batch_size = self.batch_size, sizes = sizes, drop_last = self.drop_last,
    collate = self.collate_fn, pin = self.pin})
end

-- The batches of an epoch after so many of them.
local function source_of(self, epoch, position)
  if self.is_stream then
    return collate.of_stream(self.dataset, epoch, position * self.batch_size, {
      batch_size = self.batch_size, drop_last = self.drop_last, collate = self.collate_fn,
      pin = self.pin})
  end
  local order, sizes
  if self.batch_sampler then
    order, sizes = cut_order(self, epoch, position)
  else
    order = rest_of(order_of(self, epoch), position * self.batch_size)
  end
  if self.native then return native_batches(self, epoch, order, sizes) end
  return lua_batches(self, order, sizes)
end

local function batches_of(self, epoch, position)
  local batches = source_of(self, epoch, position)
  return self.device and prefetch.new(batches, self.device, self.stream, self.native) or batches
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
  local run = setmetatable({
    loader = self, epoch = epoch, first = position,
    batches = batches_of(self, epoch, position),
  }, Run)
  self.next_run = {epoch = epoch + 1, position = 0}
  self.run = run
  return function() return step(run) end, nil, nil, closing(run, 1)
end

-- Where the loader stands: inside a loop, after the batch in hand; outside, at
-- the start of the next epoch. A loader with this state goes on with the same
-- batches, provided data set and options are the same.
function DataLoader:state_dict()
  local run, after = self.run, self.next_run
  return {seed = self.seed, epoch = (run or after).epoch,
    position = run and run:position() or after.position}
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
  local n = self:len()
  local set = getmetatable(self.dataset) and tostring(self.dataset)
    or n and ("%d samples"):format(self.n_samples or dataset.stream_length(self.dataset))
    or "a stream"
  return ("DataLoader(%s, %sbatches%s%s%s, %d workers%s)"):format(set, n and n .. " " or "",
    self.batch_sampler and "" or " of " .. self.batch_size, self.shuffle and ", shuffled" or "",
    self.drop_last and ", a short last one dropped" or "", self.num_workers,
    self.device and ", on " .. self.device or self.pin and ", pinned" or "")
end

loader.DataLoader = setmetatable(DataLoader, {__call = construct})

return loader
