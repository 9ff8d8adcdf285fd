-- Streams: data sets that are run through and not asked for a sample.
--
--   local Lines = data.IterableDataset:extend "Lines"
--   function Lines:init(path) self.path = path end
--   function Lines:iter() return io.lines(self.path) end
--
-- `iter(epoch)` gives what a generic for takes: a function whose every call makes a
-- sample, one value or more, the first of them nil at the end; and, if wanted, its state,
-- its first control value and a value to close. A stream may have a `len()`.

local caller = require "demilune.caller"
local options = require "demilune.options"
local dataset = require "demilune.data.dataset"

local iterable = {}

local IterableDataset = dataset.class "IterableDataset"
iterable.IterableDataset = IterableDataset
function IterableDataset:iter() caller.raise("%s has no iter()", self.class) end

function IterableDataset:__len()
  local n = dataset.stream_length(self)
  if not n then
    caller.raise("%s: how many samples it gives is not known; hint: give it a len()", self.class)
  end
  return n
end

function IterableDataset:__tostring()
  local n = dataset.stream_length(self)
  return n and ("%s(%d samples)"):format(self.class, n) or ("%s(a stream)"):format(self.class)
end

-- ChainDataset{a, b, ...}: one stream after the other.
local ChainDataset = IterableDataset:extend "ChainDataset"
iterable.ChainDataset = ChainDataset
local bind_chain = options.signature("ChainDataset", "datasets: list")
function ChainDataset:init(...)
  local sets = bind_chain(...).datasets
  if #sets == 0 then caller.raise("ChainDataset: wanted a list of streams, got none") end
  for k, set in ipairs(sets) do
    if not dataset.is_stream(set) then
      caller.raise("ChainDataset: %d: wanted a stream, with iter(); hint: ConcatDataset joins "
        .. "sets that have get(i)", k)
    end
  end
  self.datasets = sets
end

function ChainDataset:len()
  local n = 0
  for _, set in ipairs(self.datasets) do
    local more = dataset.stream_length(set)
    if not more then return nil end
    n = n + more
  end
  return n
end

function ChainDataset:iter(epoch)
  local k, f, state, control = 0, nil, nil, nil
  local open = setmetatable({}, {__close = function(holder)
    local _ <close> = holder.value
    holder.value = nil
  end})
  local function pass(first, ...)
    control = first
    return first, ...
  end
  local step
  local function settle(first, ...)
    if first ~= nil then return first, ... end
    f = nil
    getmetatable(open).__close(open)
    return step()
  end
  function step()
    if not f then
      if k == #self.datasets then return nil end
      k = k + 1
      f, state, control, open.value = self.datasets[k]:iter(epoch)
    end
    return settle(pass(f(state, control)))
  end
  return step, nil, nil, open
end

return iterable
