-- The code in the Lua state of a loader's worker: it receives the data set, then makes one
-- batch for each request, see workers.lua.

local collate = require "demilune.data.collate"
local travel = require "demilune.data.travel"

-- The work that makes the batch with these positions; of a stream, the next one.
local function maker(job)
  local o = job.options
  if not job.is_stream then
    return function(first, positions)
      o.batch_size, o.first = #positions, first
      return collate.of_positions(job.dataset, positions, o):next()
    end
  end
  local batches = collate.of_stream(job.dataset, job.epoch, job.skip, o)
  return function() return batches:next() end
end

-- The answer: true and the batch, or false and why there is none.
local function answer(channel, ok, ...)
  local bytes, tensors
  if ok then
    bytes, tensors = travel.pack_plain("a batch", true, ...)
    if not bytes then
      ok, tensors = false, ("DataLoader: %s, which cannot come from a worker"):format(tensors)
    end
  else
    tensors = type(...) == "string" and ... or tostring((...))
  end
  if not ok then bytes, tensors = travel.pack_plain("an error", false, tensors) end
  channel:send(bytes, tensors)
end

return function(channel)
  local make = maker(travel.unpack(channel:receive()))
  while true do
    local bytes, tensors = channel:receive()
    if not bytes then return end
    answer(channel, pcall(make, travel.unpack_plain(bytes, tensors)))
  end
end
