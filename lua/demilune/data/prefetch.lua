-- Batches in pinned memory, and batches on a device, one of them prefetched.

local core = require "demilune.core"

local prefetch = {}

-- A value with f applied to its tensors, those in plain tables too.
local function each_tensor(value, f)
  if core.is_tensor(value) then return f(value) end
  if type(value) ~= "table" or getmetatable(value) then return value end
  local out = {}
  for key, v in pairs(value) do out[key] = each_tensor(v, f) end
  return out
end

-- The values of a batch, those on the CPU pinned for the device.
function prefetch.pinned(device, ...)
  local function pin(t)
    return (t.is_cuda or t:is_pinned()) and t or t:pin_memory(device)
  end
  local batch = table.pack(...)
  for k = 1, batch.n do batch[k] = each_tensor(batch[k], pin) end
  return table.unpack(batch, 1, batch.n)
end

-- Gives what `batches` gives, on the device. The next batch is copied by a stream of
-- its own while the caller works on the one in hand. Nobody waits for the device: the
-- caller's stream waits for the copy; a batch's memory, once freed, waits for the
-- caller's stream (record_stream), and a pinned block for the copy.
local Prefetcher = {}
Prefetcher.__index = Prefetcher

-- owned: the pinned tensors that `batches` gives are nobody else's.
function prefetch.new(batches, device, stream, owned)
  return setmetatable({batches = batches, device = device, stream = stream, owned = owned,
    at = 0}, Prefetcher)
end

-- Starts the copy of the next batch, waiting for it to be read for ms milliseconds at
-- most; nil and false as `batches` says them.
function Prefetcher:fetch(ms)
  local batch = table.pack(self.batches:next(ms))
  if not batch[1] then return batch[1] end
  local function move(t)
    if t.device == self.device then return t end
    local there = core.keep(t:to(self.device, {non_blocking = true}))
    if self.owned then t:free() end
    return there
  end
  local _ <close> = core.cuda_in_stream(self.stream)
  for k = 1, batch.n do batch[k] = each_tensor(batch[k], move) end
  return batch
end

-- The same, but what goes wrong with a batch is told when that one is asked for. `at`: how
-- many are passed with it.
function Prefetcher:look_ahead(ms)
  local ok, batch = pcall(self.fetch, self, ms)
  if not ok then batch = {failure = batch} end
  if batch then batch.at = self.batches:passed() end
  return batch
end

function Prefetcher:next()
  local batch = self.coming or self:look_ahead()
  self.coming = nil
  if not batch then return batch end
  self.at = batch.at
  if batch.failure then error(batch.failure, 0) end
  local stream = core.cuda_current_stream(self.device)
  stream:wait_stream(self.stream)
  for k = 1, batch.n do
    each_tensor(batch[k], function(t) t:record_stream(stream) end)
  end
  self.coming = self:look_ahead(0)
  return table.unpack(batch, 1, batch.n)
end

function Prefetcher:passed() return self.at end

function Prefetcher:stop()
  self.batches:stop()
  self.coming = nil
end

return prefetch
