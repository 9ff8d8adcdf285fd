-- What a transformer keeps of the tokens that it has read, so that the next one costs one row
-- of each product instead of the whole text.

local core = require "demilune.core"
local caller = require "demilune.caller"

--- The keys and values of each block's attention for the tokens so far, in tensors (B, H,
--- capacity, D) that are made with the first tokens, in their dtype and on their device. They
--- keep no gradients. `length` is the number of tokens read, `capacity` that of most.
local Cache = {}
Cache.__index = Cache
Cache.__name = "KeyValueCache"

function Cache.new(n_layer, capacity)
  return setmetatable({n_layer = n_layer, capacity = capacity, length = 0, layers = {}}, Cache)
end

--- Forgets all tokens after the first n, so that others can follow them.
function Cache:crop(n)
  if math.type(n) ~= "integer" or n < 0 or n > self.length then
    caller.raise("crop: got %s, wanted a number of tokens from 0 to %d", tostring(n), self.length)
  end
  self.length = n
end

-- Raises unless `ids` (B, T) can follow what was read.
function Cache:check(ids)
  if core.is_grad_enabled() then
    caller.raise("a cache keeps no gradients; hint: local _ <close> = dm.no_grad()")
  end
  local B, T = ids:size(1), ids:size(2)
  if self.length + T > self.capacity then
    caller.raise("the cache holds %d tokens of at most %d, and %d more do not fit", self.length,
      self.capacity, T)
  end
  local first = self.layers[1]
  if self.length > 0 and first.k:size(1) ~= B then
    caller.raise("the cache is of a batch of %d, got ids %s", first.k:size(1), tostring(ids.shape))
  end
end

-- Appends k and v (B, H, T, D) of block i to the tokens read -> those of all, as views.
function Cache:append(i, k, v)
  local from, T = self.length, k:size(3)
  local layer = self.layers[i]
  if from == 0 then -- a new text may be another batch, of another dtype
    local shape = {k:size(1), k:size(2), self.capacity, k:size(4)}
    local like = {dtype = k.dtype, device = k.device}
    layer = {k = core.keep(core.empty(shape, like)), v = core.keep(core.empty(shape, like))}
    self.layers[i] = layer
  elseif layer.k.dtype ~= k.dtype then
    caller.raise("the cache is of %s, got %s; hint: keep one region of autocast around it",
      layer.k.dtype, k.dtype)
  end
  layer.k:narrow(3, from + 1, T):copy_(k)
  layer.v:narrow(3, from + 1, T):copy_(v)
  return layer.k:narrow(3, 1, from + T), layer.v:narrow(3, 1, from + T)
end

-- The mask (T, length + T) of T new tokens: each sees those before it and itself. nil where
-- it is that of is_causal, or hides nothing.
function Cache:mask(T, device)
  if T == 1 or self.length == 0 then return nil end
  return core.ones({T, self.length + T}, {dtype = "bool", device = device}):tril(self.length)
end

function Cache:__tostring()
  return ("KeyValueCache(%d of %d tokens, %d layers)"):format(self.length, self.capacity,
    self.n_layer)
end

return Cache
