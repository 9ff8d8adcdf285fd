-- Batches that Lua code makes, by workers: threads with Lua states of their own.
--
-- Each worker has a copy of the data set as it was when the epoch began; its tensors are shared.
-- Batch k is the request of worker k mod n, which answers in order, so that batches come out in
-- order without a look at who is done first. A stream comes from one worker.

local core = require "demilune.core"
local caller = require "demilune.caller"
local prefetch = require "demilune.data.prefetch"
local travel = require "demilune.data.travel"

local workers = {}

local WAIT_MS = 50 -- then Lua runs for a moment, which lets Ctrl-C through

-- Does what collate.lua's Batches do: next() gives a batch, nil at the end; false when none
-- became ready in time.
local Batches = {}
Batches.__index = Batches

-- Asks for batches until each worker has `prefetch` to make.
function Batches:ask()
  local wanted = self.taken + #self.workers * self.prefetch
  if self.lists then wanted = math.min(wanted, #self.lists) end
  while self.asked < wanted do
    self.asked = self.asked + 1
    local positions = self.lists and self.lists[self.asked]
    local worker = self.workers[(self.asked - 1) % #self.workers + 1]
    worker:send(travel.pack_plain("a request", self.first + self.asked - 1, positions))
  end
end

function Batches:deliver(ok, first, ...)
  if not ok then error(first, 0) end
  if first == nil then
    self:stop()
    return nil
  end
  if self.pin then return prefetch.pinned(self.pin, first, ...) end
  return first, ...
end

function Batches:next(ms)
  if self.lists and self.taken == #self.lists then self:stop() end
  if not self.workers then return nil end
  local worker = self.workers[self.taken % #self.workers + 1]
  local bytes, tensors = worker:receive(ms or WAIT_MS)
  if bytes == false then return false end
  if bytes == nil or bytes:sub(1, 1) == "!" then
    self:stop()
    caller.raise("DataLoader: a worker failed: %s", bytes and bytes:sub(2) or "out of memory")
  end
  self.taken = self.taken + 1
  self:ask()
  return self:deliver(travel.unpack_plain(bytes, tensors))
end

function Batches:passed() return self.taken end

-- Waits for the batches at hand. More than once if need be.
function Batches:stop()
  local all = self.workers
  self.workers = nil
  for _, worker in ipairs(all or {}) do worker:stop() end
end

-- job: {dataset =, options = those of collate.lua}, for a stream also is_stream, epoch, skip.
-- o: num_workers, prefetch, pin; first, how many batches of the epoch are behind; lists, the
-- positions of each batch (nil: a stream).
function workers.new(job, o)
  local bytes, tensors = travel.pack(job)
  local self = setmetatable({workers = {}, asked = 0, taken = 0, prefetch = o.prefetch,
    pin = o.pin, first = o.first, lists = o.lists}, Batches)
  local n = o.lists and math.min(o.num_workers, #o.lists) or 1
  for k = 1, n do
    self.workers[k] = core.worker_new("demilune.data.worker", package.path, package.cpath)
    self.workers[k]:send(bytes, tensors)
  end
  self:ask()
  return self
end

return workers
