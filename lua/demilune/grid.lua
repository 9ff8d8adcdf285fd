-- Coordinates: of every point of a grid, of the elements of a triangle; and points evenly
-- spaced on a logarithmic scale.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local grid = {}

local INDEXING = {ij = true, xy = true}

--- meshgrid(a, b, ..., {indexing = "ij"}) -> as many views, each in the shape
--- {#a, #b, ...}: tensor k repeated along all dims but dim k. indexing = "xy"
--- exchanges the first two dims: a runs along columns. A list of tensors will do.
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

-- The positions {2, n}, rows and then columns, of what tril or triu keeps of a matrix.
local function triangle(name, kept)
  grid[name] = function(rows, columns, opts)
    local o = options.read(name, opts, {offset = 0, device = options.NONE})
    local matrix = core.ones(rows, columns, {dtype = "uint8", device = o.device})
    return core.nonzero(kept(matrix, o.offset)):t():contiguous()
  end
end
-- tril_indices(rows, columns, {offset = 0, device =}); triu_indices alike.
triangle("tril_indices", core.tril)
triangle("triu_indices", core.triu)

--- logspace(start, stop, steps, {base = 10, dtype =, device =}): base to the powers from
--- start to stop.
function grid.logspace(start, stop, steps, opts)
  local o = options.read("logspace", opts, {base = 10.0, dtype = options.NONE,
    device = options.NONE})
  local powers = core.linspace(start, stop, steps, {dtype = "float64", device = o.device})
  return core.pow(o.base, powers):to(o.dtype or "float32")
end

return grid
