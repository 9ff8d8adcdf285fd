-- Parameters of which each rank of a group holds a part (nn/tensor_parallel.lua), or a part of the
-- gradient (optim/zero.lua): those who look at all gradients together, to clip them or to skip a
-- step, ask here whom else to ask.

local zeroing = require "demilune.zeroing"

local divided = {}

-- Parameter -> the group among whose ranks it is divided.
local group_of = setmetatable({}, {__mode = "k"})

--- Notes that the ranks of the group hold a part of a parameter each. nil for the parameter does
--- nothing.
function divided.note(p, group)
  if p and group_of[p] ~= group then group_of[p] = group end
end

-- Parameter -> the share of its gradient.
local shares = setmetatable({}, {__mode = "k"})

--- What a rank has of a gradient.
---@class demilune.distributed.GradientShare
---@field group demilune.distributed.Group
---@field piece? demilune.distributed.Piece its tensor's gradient is this rank's part; nil: it has
--- none of it
---@field is_there boolean whether there is a gradient, on whichever rank

--- Notes that the gradient of a parameter is shared out; nil: that it is not any more.
---@param p demilune.Tensor
---@param share? demilune.distributed.GradientShare
function divided.share(p, share) shares[p] = share end

--- The share of a parameter's gradient; nil where the gradient is its own.
---@return demilune.distributed.GradientShare?
function divided.share_of(p) return shares[p] end

--- Drops the share of a parameter's gradient, as zero_grad does. keeps: one that is there becomes
--- zeros instead.
function divided.drop(p, keeps)
  local share = shares[p]
  if not share then return end
  if keeps then
    if share.piece then zeroing.zero(share.piece.tensor) end
    return
  end
  share.is_there = false
  if share.piece then share.piece.tensor.grad = nil end
end

--- The tensors that hold the gradients of these parameters on this rank.
---@param params demilune.Tensor[]
---@return demilune.Tensor[] holders the list itself where no gradient is shared out
function divided.holders(params)
  if next(shares) == nil then return params end
  local list = {}
  for _, p in ipairs(params) do
    local share = shares[p]
    if not share then
      list[#list + 1] = p
    elseif share.piece then
      list[#list + 1] = share.piece.tensor
    end
  end
  return list
end

--- Whether any parameter is divided, or a gradient is shared out.
---@return boolean
function divided.any() return next(group_of) ~= nil or next(shares) ~= nil end

-- What stands for a parameter on this rank, and its group where others have parts of it. The first
-- is nil where this rank has none.
local function holder(p)
  local share = shares[p]
  if not share then return p, group_of[p] end
  return share.piece and share.piece.tensor, share.group
end

--- The parameters that are whole on this rank, and those that are divided, by their groups.
---@param params demilune.Tensor[]
---@return demilune.Tensor[] whole the list itself where none is divided
---@return table[] parts {{group =, params = what this rank has of them, all = on all ranks equally
--- many: the same, or false where this rank has nothing, is_double = whether one is float64}, ...}
--- in the order of the parameters
function divided.split(params)
  local parts = {}
  if not divided.any() then return params, parts end
  local whole, by_group = {}, {}
  for _, p in ipairs(params) do
    local held, group = holder(p)
    local part = group and (by_group[group] or {group = group, params = {}, all = {}})
    if part and not by_group[group] then
      by_group[group], parts[#parts + 1] = part, part
    end
    if part then
      table.insert(part.all, held or false)
      part.is_double = part.is_double or p.dtype == "float64"
    end
    if held then table.insert(part and part.params or whole, held) end
  end
  return #parts > 0 and whole or params, parts
end

return divided
