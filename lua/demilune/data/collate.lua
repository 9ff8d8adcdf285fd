-- Batches of samples that Lua code makes: a set's get(i), or what the iterator of a
-- stream gives, collated.

local core = require "demilune.core"
local caller = require "demilune.caller"
local prefetch = require "demilune.data.prefetch"

local collate = {}

-- ---- collating ----

local collate_values

-- Raises where a list has another length than the first: values beyond that would be lost.
local function check_length(what, n, first)
  if n ~= first then
    caller.raise("DataLoader: %s %d values in one sample and %d in another; hint: give a "
      .. "collate_fn", what, first, n)
  end
end

local function collate_fields(tables, field)
  local out = {}
  for _, t in ipairs(tables) do
    check_length(("field %s has"):format(field), #t, #tables[1])
  end
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
  if kind == "table" then return collate_fields(values, field) end
  if kind == "string" then return values end
  caller.raise("DataLoader: field %s of a sample is a %s; hint: give a collate_fn", field, kind)
end

-- default_collate{{x, y}, {x, y}, ...} -> all x, all y: tensors are stacked, numbers and booleans
-- become a tensor as dm.tensor makes one (floats of the default dtype, where PyTorch's batches have
-- float64), tables are collated field by field, strings stay a list.
function collate.default_collate(samples)
  local width, columns = samples[1].n or #samples[1], {}
  for _, sample in ipairs(samples) do check_length("there are", sample.n or #sample, width) end
  for k = 1, width do
    local column = {}
    for i, sample in ipairs(samples) do column[i] = sample[k] end
    columns[k] = collate_values(column, #samples, tostring(k))
  end
  return table.unpack(columns, 1, width)
end

-- ---- one sample ----

local function passed(ok, ...)
  if not ok then error((...), 0) end
  return ...
end

-- f(...), which makes sample i. What goes wrong there is told with that number and the
-- stack of what made it; an error that is no text passes as it is.
local function sample(i, f, ...)
  return passed(xpcall(f, function(why)
    if type(why) ~= "string" then return why end
    local stack = debug.traceback("", 2):gsub("\n[^\n]*in function 'xpcall'.*", "")
    return ("DataLoader: sample %d: %s%s"):format(i, why, stack)
  end, ...))
end

-- Where samples come from is two functions: take() makes the next one, nil at the end;
-- pass(n) goes past so many.

-- Samples of a set at the positions of a list. draws: nil, or a seed from which, and from the
-- position, follows what a sample draws, whatever batch it is in.
local function of_positions(set, list, draws)
  local at = 0
  local function packed(i, ...)
    if (...) == nil then caller.raise("DataLoader: get(%d) gave nil", i) end
    return table.pack(...)
  end
  return function()
    at = at + 1
    local i = list[at]
    if draws and i then core.manual_seed(draws * 6364136223846793005 ~ i) end
    return i and packed(i, sample(i, set.get, set, i))
  end, function(n) at = at + n end
end

-- Samples of a stream in an epoch, and what is to be closed after them.
local function of_stream(set, epoch)
  local f, state, control, closing = set:iter(epoch)
  local at = 0
  local function packed(first, ...)
    control = first
    return first ~= nil and table.pack(first, ...) or nil
  end
  local function take()
    at = at + 1
    return packed(sample(at, f, state, control))
  end
  local function pass(n) -- one that fails is one, too
    for _ = 1, n do
      local ok, one = pcall(take)
      if ok and not one then break end
    end
  end
  return take, pass, closing
end

-- ---- batches ----

-- f(...) with the generator of dm.manual_seed at a state that follows from the epoch's seed and
-- the batch alone, so that what samples draw does not depend on the number of workers. The
-- program's own draws go on as if there were none in between.
local function with_draws_of(draws, batch, f, ...)
  local before = core.get_rng_state()
  core.manual_seed(draws * 6364136223846793005 + batch)
  local function restored(...)
    core.set_rng_state(before)
    return passed(...)
  end
  return restored(pcall(f, ...))
end

-- Does in Lua what the C engine does: next() gives a batch, nil at the end. What goes wrong
-- with a sample costs its batch: the next one begins where it would have.
local Batches = {}
Batches.__index = Batches

-- A batch of nothing would end the loop, or look like one that is not ready.
local function check_batch(first, ...)
  if not first then caller.raise("DataLoader: collate_fn gave %s", tostring(first)) end
  return first, ...
end

local function next_batch(self)
  self.pass(self.owed)
  local size = self.sizes and (self.sizes[self.done] or 0) or self.batch_size
  local samples = {}
  self.owed = size
  while #samples < size do
    self.owed = self.owed - 1
    local one = self.take()
    if not one then break end
    samples[#samples + 1] = one
  end
  if #samples < size then self:stop() end -- what has ended is not asked again
  if #samples == 0 or self.drop_last and #samples < size then return nil end
  if self.pin then return prefetch.pinned(self.pin, check_batch(self.collate(samples))) end
  return check_batch(self.collate(samples))
end

function Batches:next()
  if not self.take then return nil end
  self.done = self.done + 1
  return with_draws_of(self.draws, self.first + self.done, next_batch, self)
end

function Batches:stop()
  local _ <close> = self.closing
  self.take, self.closing = nil, nil
end

-- How many batches were given, or could not be made.
function Batches:passed() return self.done end

-- o: batch_size or sizes, a list; drop_last, collate, pin; draws, the seed of what samples draw
-- in this epoch; by_sample, whether it follows from their positions rather than from the batch;
-- first, how many batches of the epoch are behind. owed: how many samples of the batch that was
-- begun were not asked for.
local function new(o, take, pass, closing)
  return setmetatable({take = take, pass = pass, closing = closing, done = 0, owed = 0,
    batch_size = o.batch_size, sizes = o.sizes, drop_last = o.drop_last,
    collate = o.collate or collate.default_collate, pin = o.pin, draws = o.draws,
    first = o.first}, Batches)
end

-- Batches of a set's samples at these positions, a list.
function collate.of_positions(set, list, o)
  if o.drop_last then
    list = table.move(list, 1, #list - #list % o.batch_size, 1, {}) -- nor are they made
  end
  return new(o, of_positions(set, list, o.by_sample and o.draws))
end

-- Batches of a stream, without its first `skip` samples.
function collate.of_stream(set, epoch, skip, o)
  return with_draws_of(o.draws, 0, function()
    local batches = new(o, of_stream(set, epoch))
    batches.pass(skip)
    return batches
  end)
end

return collate
