-- Coordinates: of every point of a grid, of the elements of a triangle; and points evenly
-- spaced on a logarithmic scale.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local grid = {}

local bind_indexing = options.signature("meshgrid", "*, indexing: 'ij'|'xy' = 'ij'")

--- meshgrid(a, b, ..., {indexing = "ij"}) -> as many views, each in the shape
--- {#a, #b, ...}: tensor k repeated along all dims but dim k. indexing = "xy"
--- exchanges the first two dims: a runs along columns. A list of tensors will do.
function grid.meshgrid(...)
  local axes, opts = {...}, nil
  if type(axes[#axes]) == "table" and #axes > 1 then opts = table.remove(axes) end
  if type(axes[1]) == "table" then axes = {table.unpack(axes[1])} end
  local o = bind_indexing(opts)
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

-- The positions {2, n}, rows and then columns, of what tril or triu keeps of a matrix.
local function triangle(name, kept)
  local bind = options.signature(name,
    "row: integer, col: integer, offset: integer = 0, *, device?: device, dtype: dtype = 'int64'")
  grid[name] = function(...)
    local o = bind(...)
    local matrix = core.ones(o.row, o.col, {dtype = "uint8", device = o.device})
    return core.nonzero(kept(matrix, o.offset)):t():contiguous():to(o.dtype)
  end
end
-- tril_indices(rows, columns, {offset = 0, device =, dtype = "int64"}); triu_indices alike.
triangle("tril_indices", core.tril)
triangle("triu_indices", core.triu)

--- logspace(start, stop, steps, base, {dtype =, device =}): base to the powers from start to
--- stop. dtype is "float32" where none is given.
---@param start number|Tensor a tensor of no dims counts as its number
---@param stop number|Tensor
---@param steps integer
---@param base number|nil
local bind_logspace = options.signature("logspace", [[start: number|tensor, stop: number|tensor,
  steps: integer, base: number = 10.0, *, dtype?: dtype, device?: device]])

function grid.logspace(...)
  local o = bind_logspace(...)
  local powers = core.linspace(o.start, o.stop, o.steps, {dtype = "float64", device = o.device})
  return core.pow(o.base, powers):to(o.dtype or "float32")
end

return grid
