-- Parameters of which each rank of a group holds a part (nn/tensor_parallel.lua): those who look at
-- all gradients together, to clip them or to skip a step, ask here whom else to ask.

local divided = {}

-- Parameter -> the group among whose ranks it is divided.
local group_of = setmetatable({}, {__mode = "k"})

--- Notes that the ranks of the group hold a part of a parameter each. nil for the parameter does
--- nothing.
function divided.note(p, group)
  if p and group_of[p] ~= group then group_of[p] = group end
end

--- Whether any parameter is divided.
---@return boolean
function divided.any() return next(group_of) ~= nil end

--- The parameters that are whole on this rank, and those that are divided, by their groups.
---@param params demilune.Tensor[]
---@return demilune.Tensor[] whole the list itself where none is divided
---@return table[] parts {{group =, params =}, ...} in the order of the parameters
function divided.split(params)
  local parts = {}
  if not divided.any() then return params, parts end
  local whole, by_group = {}, {}
  for _, p in ipairs(params) do
    local group = group_of[p]
    local list = group and (by_group[group] or {group = group, params = {}})
    if list and not by_group[group] then
      by_group[group], parts[#parts + 1] = list, list
    end
    table.insert(list and list.params or whole, p)
  end
  return #parts > 0 and whole or params, parts
end

return divided
