-- A tensor of which each rank of a group holds a part: consecutive elements of its flat form.

local core = require "demilune.core"
local collectives = require "demilune.distributed.collectives"
local world = require "demilune.distributed.world"

--- A tensor whose elements are on several ranks.
---@class demilune.distributed.Shard
---@field shape integer[]
---@field dtype string
---@field owners table[] {{index = of the rank in the group, from = elements before, n =}, ...} in
--- the order of the elements
---@field own? demilune.Tensor this rank's part
---@field group demilune.distributed.Group
local Shard = {class = "Shard"}
Shard.__index = Shard

function Shard:__tostring()
  return ("Shard({%s}, %s, of %d ranks)"):format(table.concat(self.shape, ", "), self.dtype,
    #self.owners)
end

--- Brings the parts together on the rank `to`. All ranks of the group call it.
---@param to integer a rank of the world
---@return demilune.Tensor? whole on the CPU; nil on the others
function Shard:collect(to)
  local me, whole = world.rank "collect", nil
  if me == to then whole = core.empty(self.shape, {dtype = self.dtype, device = "cpu"}) end
  for _, owner in ipairs(self.owners) do
    local from = self.group.ranks[owner.index + 1]
    local part = whole and whole:reshape(-1):narrow(1, owner.from + 1, owner.n)
    if from == me then
      local own = self.own:detach():reshape(-1)
      if part then part:copy_(own) elseif owner.n > 0 then collectives.send(own, to, self.group) end
    elseif part and owner.n > 0 then
      collectives.recv(part, from, self.group)
    end
  end
  return whole
end

return {
  --- A shard with these fields.
  new = function(fields) return setmetatable(fields, Shard) end,
  is = function(v) return getmetatable(v) == Shard end,
}
