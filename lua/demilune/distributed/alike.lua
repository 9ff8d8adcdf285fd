-- Comparing what the ranks of a group describe, before they work on it together.

local caller = require "demilune.caller"
local objects = require "demilune.distributed.objects"
local world = require "demilune.distributed.world"

-- Where the lists differ, in words: "parameter 'fc.weight' is {2, 3} float32 on rank 0, {2, 4}
-- float32 on rank 1"; or nil.
local function difference(first, own, first_rank, rank)
  for i = 1, math.max(#first, #own) do
    local a, b = first[i], own[i]
    if not b or not a then
      return ("%s is on rank %d only"):format((a or b)[1], a and first_rank or rank)
    elseif a[1] ~= b[1] then
      return ("number %d is %s on rank %d, %s on rank %d"):format(i, a[1], first_rank, b[1], rank)
    elseif a[2] ~= b[2] then
      return ("%s is %s on rank %d, %s on rank %d"):format(a[1], a[2], first_rank, b[2], rank)
    end
  end
end

--- Raises on all ranks of the group where their lists are not alike.
---@param name string the first word of the message
---@param what string what the lists describe, in the plural
---@param own string[][] {{name, description}, ...}
---@param group demilune.distributed.Group
---@param hint? string the end of the message
return function(name, what, own, group, hint)
  local first_rank = group.ranks[1]
  local first = objects.broadcast_object(own, first_rank, group)
  local why = difference(first, own, first_rank, world.rank(name))
  local all = objects.all_gather_object(why or false, group)
  for i = 1, #group.ranks do
    if all[i] then
      caller.raise("%s: the ranks' %s differ: %s%s", name, what, all[i],
        hint and "; hint: " .. hint or "")
    end
  end
end
