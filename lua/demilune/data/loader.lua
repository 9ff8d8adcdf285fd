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
local workers = require "demilune.data.workers"
local closing = require "demilune.closing"
local shown = require "demilune.shown"

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

-- DataLoader(set, {batch_size =, shuffle =, num_workers =, ...}). The seed is by default the one
-- of dm.manual_seed; with generator = dm.Generator() it is drawn from that, once: every epoch
-- follows from it and from its number. A new loader begins with the first epoch's order again,
-- so make one before the loop over epochs. The set may be a stream (data.IterableDataset), which
-- comes in its own order. num_workers = n: so many threads make batches, prefetch_factor of them
-- each, while the program works on the one in hand. Of tensors, images and tokens they are C
-- threads; a data set written in Lua runs in Lua states of their own, each with a copy of the
-- set as it is when the epoch begins (open files and coroutines cannot be copied: open them in
-- get); a stream takes one. What samples draw by dm.rand and its like follows from the seed, the
-- epoch and the batch, so that batches are the same bits for every number of workers; what they
-- draw by math.random is not. shards = V: batch_size samples are the whole batch of all ranks
-- (dm.distributed), in V parts, and this process gets those of its V / n of them, for
-- DistributedDataParallel{shards = V}: shard v has the same samples, and what these draw, on any
-- number of ranks. A last batch that does not divide takes as many of the first samples again as
-- make its shards equally long; the seed is 0 by default. batch_sampler in place of batch_size,
-- shuffle, sampler and drop_last: batches(epoch), a list of lists of positions, and len().
-- pin_memory = true: batches lie in memory that x:to("cuda", {non_blocking = true})
-- copies from without waiting. device = "cuda": they lie on that device, and the next
-- one is copied there while the program works on the one in hand.
local bind, defaults = options.signature("DataLoader", [[dataset: dataset, batch_size: integer = 1,
  shuffle: boolean = false, sampler?: sampler, batch_sampler?: sampler, num_workers: integer = 0,
  collate_fn?: function, pin_memory: boolean = false, drop_last: boolean = false, *,
  generator?: generator, prefetch_factor: integer = 2, seed?: integer, device?: device,
  shards?: integer]])

local function check_count(opts, name, least, most)
  local v = opts[name]
  if v < least or v > most then
    caller.raise("DataLoader: %s is %s, wanted %s", name, tostring(v),
      most == math.maxinteger and ("a count of at least %d"):format(least)
      or ("%d to %d"):format(least, most))
  end
end

-- One option decides the order, and one cuts it into batches.
local function check_order(opts, is_stream)
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
    if batches and opts[name] ~= defaults()[name] then
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

-- Raises unless the batch can be dealt out to the shards, and these to the ranks.
local function check_shards(opts, is_stream)
  local n_shard, n = opts.shards, math.max(core._dist_size(), 1)
  if is_stream then
    caller.raise("DataLoader: shards with a stream, wanted a data set whose samples have positions")
  elseif opts.batch_sampler or opts.sampler and opts.sampler.class == "DistributedSampler" then
    caller.raise("DataLoader: shards and a %s: one of them deals the samples out",
      opts.batch_sampler and "batch_sampler" or "DistributedSampler")
  elseif n_shard < 1 or opts.batch_size % n_shard ~= 0 then
    caller.raise("DataLoader: batch_size is %d, the whole batch, wanted a multiple of shards = %d",
      opts.batch_size, n_shard)
  elseif n_shard % n ~= 0 then
    caller.raise("DataLoader: shards = %d do not divide into %d ranks", n_shard, n)
  end
end

local function check(opts, is_stream)
  check_count(opts, "batch_size", 1, math.maxinteger)
  check_count(opts, "num_workers", 0, 256)
  check_count(opts, "prefetch_factor", 1, 64)
  dataset.check_seed("DataLoader", opts)
  check_order(opts, is_stream)
  if opts.shards then check_shards(opts, is_stream) end
end

-- For which CUDA device batches are pinned, and to which they go: nil for none.
local function devices(opts)
  local device = opts.device and core.empty(0, {device = opts.device}).device
  if device and device ~= "cpu" then return device, device end
  if not opts.pin_memory then return nil end
  if core.cuda_count() > 0 then return "cuda:0" end
  caller.warn_once("pin_memory", "DataLoader: pin_memory without a CUDA device has no effect")
end

local function construct(class, ...)
  local self = bind(...)
  local set = self.dataset
  local is_stream = dataset.is_stream(set)
  local n = not is_stream and dataset.count("DataLoader", set) or nil
  check(setmetatable(self, class), is_stream)
  self.n_samples = n
  self.is_stream = is_stream
  self.native = not self.collate_fn and dataset.source(set) ~= nil
  self.pin, self.device = devices(self)
  self.stream = self.device and core.cuda_stream(self.device)
  self.n_rank, self.rank = 1, 0
  if self.shards then
    self.n_rank, self.rank = math.max(core._dist_size(), 1), core._dist_rank() or 0
    self.seed = self.seed or not self.generator and 0 or nil
  end
  self.part = self.batch_size // self.n_rank -- samples that this process gets of a batch
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

local function whole_order_of(self, epoch)
  if self.sampler then
    return dataset.positions("DataLoader: sampler", self.sampler:order(epoch), self.n_samples)
  elseif self.shuffle then
    return core.permutation(self.n_samples, self.seed, epoch)
  end
  return core.arange(1, self.n_samples, {dtype = "int64", device = "cpu"})
end

-- The positions of this rank's part of each batch, one behind the other.
local function order_of(self, epoch)
  local order = whole_order_of(self, epoch)
  if not self.shards then return order end
  local size, part, n = self.batch_size, self.part, #order
  local full = n - n % size
  local mine = order:narrow(1, 1, full):reshape(full // size, self.n_rank, part)
    :select(2, self.rank + 1):reshape(-1)
  if full == n or self.drop_last then return mine end
  -- of a last batch each shard has as many, and what is missing are the first samples again
  local rest = -((full - n) // self.shards) * (self.shards // self.n_rank)
  local positions = core.arange(0, rest - 1, {dtype = "int64", device = "cpu"}) + self.rank * rest
  return core.cat{mine, order[(positions + full):remainder(n) + 1]}
end

-- The rest of an order after so many samples.
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
    columns = sources, transforms = transforms, batch_size = self.part,
    drop_last = self.drop_last, num_workers = self.num_workers,
    prefetch = self.prefetch_factor, seed = self.seed, pin = self.pin,
  }
  engine:epoch(epoch, rows and rows[order] or order,
    sizes and core.tensor(sizes, {dtype = "int64", device = "cpu"}))
  return engine
end

-- The positions of each batch, as lists of numbers.
local function lists_of(self, order, sizes)
  local lists, at = {}, 0
  while at < #order do
    local size = math.min(sizes and sizes[#lists + 1] or self.part, #order - at)
    if self.drop_last and size < self.part then break end
    lists[#lists + 1] = order:narrow(1, at + 1, size):totable()
    at = at + size
  end
  return lists
end

-- Batches of samples that Lua code makes: here, or in workers with Lua states of their own.
local function lua_batches(self, epoch, position, order, sizes)
  local o = {
    batch_size = self.part, sizes = sizes, drop_last = self.drop_last,
    collate = self.collate_fn, first = position, by_sample = self.shards ~= nil,
    draws = self.seed * 6364136223846793005 + epoch, -- any mixture that tells epochs apart
  }
  if self.num_workers > 0 then
    local job = {dataset = self.dataset, options = o, is_stream = self.is_stream, epoch = epoch,
      skip = position * self.part}
    return workers.new(job, {num_workers = self.num_workers, prefetch = self.prefetch_factor,
      pin = self.pin, first = position, lists = order and lists_of(self, order, sizes)})
  end
  o.pin = self.pin
  if self.is_stream then
    return collate.of_stream(self.dataset, epoch, position * self.part, o)
  end
  return collate.of_positions(self.dataset, #order > 0 and order:totable() or {}, o)
end

-- The batches of an epoch after so many of them.
local function source_of(self, epoch, position)
  if self.is_stream then return lua_batches(self, epoch, position) end
  local order, sizes
  if self.batch_sampler then
    order, sizes = cut_order(self, epoch, position)
  else
    order = rest_of(order_of(self, epoch), position * self.part)
  end
  if self.native then return native_batches(self, epoch, order, sizes) end
  return lua_batches(self, epoch, position, order, sizes)
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

-- for i, x, y in loader:iter() do ... end; i counts the epoch's batches from 1.
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

-- for i, x, y in loader do: the same. A loop that is left early leaves its workers to the next
-- loop over the loader, or to finish().
function DataLoader:__call(_, i)
  local run = self.run
  if i == nil then
    self:finish()
    self:iter()
    run = self.run
  elseif not run or run:position() ~= i then
    caller.raise("DataLoader: another loop over the loader, or finish(), has ended this one; hint: "
      .. "for i, x in loader:iter() do, where loops lie in each other")
  end
  return step(run)
end

function DataLoader:__pairs() return self end

-- Where the loader stands: inside a loop, after the batch in hand; outside, at
-- the start of the next epoch. A loader with this state goes on with the same
-- batches, provided data set and options are the same.
function DataLoader:state_dict()
  local run, after = self.run, self.next_run
  return shown{seed = self.seed, epoch = (run or after).epoch,
    position = run and run:position() or after.position}
end

-- Takes up a state: the next loop goes on after the batch at which it was taken.
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

caller.with_colon(DataLoader, "loader", "len iter finish state_dict load_state_dict")

function DataLoader:__tostring()
  local n = self:len()
  local shards = self.shards and (" in %d shards"):format(self.shards) or ""
  local set = getmetatable(self.dataset) and tostring(self.dataset)
    or n and ("%d samples"):format(self.n_samples or dataset.stream_length(self.dataset))
    or "a stream"
  return ("DataLoader(%s, %sbatches%s%s%s%s, %d workers%s)"):format(set, n and n .. " " or "",
    self.batch_sampler and "" or " of " .. self.batch_size, shards,
    self.shuffle and ", shuffled" or "",
    self.drop_last and ", a short last one dropped" or "", self.num_workers,
    self.device and ", on " .. self.device or self.pin and ", pinned" or "")
end

loader.DataLoader = setmetatable(DataLoader, {__call = construct})

return loader
