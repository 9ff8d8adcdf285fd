-- dm.meshgrid: coordinates of every point of a grid.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local grid = {}

local INDEXING = {ij = true, xy = true}

-- meshgrid(a, b, ..., {indexing = "ij"}) -> as many views, each in the shape
-- {#a, #b, ...}: tensor k repeated along all dims but dim k. indexing = "xy"
-- exchanges the first two dims: a runs along columns. A list of tensors will do.
function grid.meshgrid(...)
  local axes, opts = {...}, nil
  if type(axes[#axes]) == "table" and #axes > 1 then opts = table.remove(axes) end
  if type(axes[1]) == "table" then axes = {table.unpack(axes[1])} end
  local o = options.read("meshgrid", opts, {indexing = "ij"})
  if not INDEXING[o.indexing] then
    caller.raise("meshgrid: indexing is '%s', wanted \"ij\" or \"xy\"", tostring(o.indexing))
  end
  if #axes == 0 then caller.raise("meshgrid: no tensors given, wanted at least one") end
  local shape = {}
  for k, axis in ipairs(axes) do
    if not core.is_tensor(axis) or axis:dim() > 1 then
      caller.raise("meshgrid: argument %d is %s, wanted a tensor of one dim", k,
        core.is_tensor(axis) and ("of shape %s"):format(axis.shape) or "a " .. type(axis))
    end
    shape[k] = axis:numel()
  end
  local swap = o.indexing == "xy" and #axes > 1
  for k, axis in ipairs(axes) do
    local own = {}
    for d = 1, #axes do own[d] = d == k and -1 or 1 end
    local full = axis:reshape(own):expand(shape)
    axes[k] = swap and full:transpose(1, 2) or full
  end
  return table.unpack(axes)
end

return grid
