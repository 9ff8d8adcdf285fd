-- Samplers: the order in which samples are drawn. One has a length and iter().

local core = require "demilune.core"

local sampler = {}

local function class(name, make_order)
  local Sampler = {class = name}
  Sampler.__index = Sampler
  Sampler.__len = function(self) return self.n end
  function Sampler:iter()
    local order, i = make_order(self), 0
    return function()
      i = i + 1
      return order[i]
    end
  end
  sampler[name] = function(source, n)
    return setmetatable({source = source, n = n or #source}, Sampler)
  end
end

class("SequentialSampler", function(self)
  local order = {}
  for i = 1, self.n do order[i] = i end
  return order
end)

class("RandomSampler", function(self) return core.randperm(self.n):totable() end)

-- source: an array of sample numbers.
class("SubsetRandomSampler", function(self)
  local order = core.randperm(self.n):totable()
  for i, k in ipairs(order) do order[i] = self.source[k] end
  return order
end)

-- source: an array of weights; n draws with replacement.
class("WeightedRandomSampler", function(self)
  local sums, total = {}, 0
  for i, w in ipairs(self.source) do
    total = total + w
    sums[i] = total
  end
  local draws = (core.rand(self.n, {dtype = "float64"}) * total):totable()
  for k, v in ipairs(draws) do
    local low, high = 1, #sums
    while low < high do
      local middle = (low + high) // 2
      if sums[middle] > v then high = middle else low = middle + 1 end
    end
    draws[k] = low
  end
  return draws
end)

return sampler
