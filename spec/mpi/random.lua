-- Random numbers that follow from a seed, on all ranks the same; Lua's own may be used by others.

local Random = {}
Random.__index = Random

-- A number of 64 bits (xorshift64*; S. Vigna 2016).
function Random:bits()
  local x = self.state
  x = x ~ (x >> 12)
  x = x ~ (x << 25)
  x = x ~ (x >> 27)
  self.state = x
  return x * 0x2545F4914F6CDD1D
end

-- An integer from a to b.
function Random:int(a, b) return a + (self:bits() >> 33) % (b - a + 1) end

-- True with that probability.
function Random:chance(p) return (self:bits() >> 33) / 2^31 < p end

function Random:pick(list) return list[self:int(1, #list)] end

-- A list in another order.
function Random:shuffle(list)
  for i = #list, 2, -1 do
    local k = self:int(1, i)
    list[i], list[k] = list[k], list[i]
  end
  return list
end

return function(seed)
  local self = setmetatable({state = (math.tointeger(tonumber(seed)) + 1) * 0x9E3779B97F4A7C15},
    Random)
  for _ = 1, 4 do self:bits() end
  return self
end
