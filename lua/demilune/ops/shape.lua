-- Shapes, views and their copies.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

op.expand_as("x, other", "x repeated to other's shape, without a copy", function(x, other)
  return x:expand(other.shape)
end, "method")
op.view_as("x, other", "x in other's shape, without a copy", function(x, other)
  return x:view(other.shape)
end, "method")
op.reshape_as("x, other", "x in other's shape, a view where that can be", function(x, other)
  return x:reshape(other.shape)
end, "method")
op.adjoint("x", "x with its last two dims swapped; there are no complex numbers", function(x)
  return x.mH
end)
op.broadcast_to("x; size...", "dims of size 1 repeated to a size, without a copy",
  function(x, size) return x:expand(size) end)

-- The shape to which all broadcast.
local function broadcast(name, shapes)
  local out, rank = {}, 0
  for _, shape in ipairs(shapes) do rank = math.max(rank, #shape) end
  for d = 1, rank do
    out[d] = 1
    for _, shape in ipairs(shapes) do
      local n = shape[#shape - rank + d] or 1
      if n ~= 1 and out[d] ~= 1 and n ~= out[d] then
        caller.raise("%s: sizes %d and %d of dim %d do not broadcast", name, out[d], n, d)
      end
      if n ~= 1 then out[d] = n end
    end
  end
  return out
end
op.broadcast_shapes("; shapes*", "the shape to which shapes, lists of sizes or numbers, broadcast",
  function(shapes)
    for i, shape in ipairs(shapes) do shapes[i] = type(shape) == "number" and {shape} or shape end
    return core.tensor(0):expand(broadcast("broadcast_shapes", shapes)).shape
  end)
op.broadcast_tensors("tensors...", "a list of the tensors, each repeated to the shape of all",
  function(tensors)
    local shapes, out = {}, {}
    for i, x in ipairs(tensors) do shapes[i] = x.shape end
    local shape = broadcast("broadcast_tensors", shapes)
    for i, x in ipairs(tensors) do out[i] = x:expand(shape) end
    return out
  end)

-- fn of one tensor, or of each of a list, which gives a list.
local function each(name, doc, fn)
  op[name]("tensors...", doc, function(tensors)
    if tensors.apart and #tensors == 1 then return fn(tensors[1]) end
    local out = {}
    for i, x in ipairs(tensors) do out[i] = fn(x) end
    return out
  end)
end
each("atleast_1d", "0-dim tensors as vectors; of several a list", function(x)
  return x:dim() > 0 and x or x:reshape(1)
end)
each("atleast_2d", "tensors of fewer dims as matrices of one row; of several a list", function(x)
  return x:dim() > 1 and x or x:reshape(1, x:numel())
end)
each("atleast_3d", "tensors of fewer dims with dims of size 1: vectors (1,n,1), matrices (m,n,1); "
  .. "of several a list", function(x)
  if x:dim() > 2 then return x end
  return x:dim() == 2 and x:unsqueeze(3) or x:reshape(1, x:numel(), 1)
end)

-- The dim from 1 on. Raises for one that a tensor of that many dims does not have.
local function dim_of(name, dim, rank)
  local d = dim < 0 and dim + rank + 1 or dim
  if d < 1 or d > math.max(rank, 1) then
    caller.raise("%s: dim %d is out of range: x has %d dims", name, dim, rank)
  end
  return d
end

op.unfold("x; dimension, size, step", "windows of size elements along a dim, step apart, in a last "
  .. "dim; a view", function(x, dimension, size, step)
  local shape = {table.unpack(x.shape)}
  local d = dim_of("unfold", dimension, #shape)
  local n = shape[d] or 1
  if size > n or size < 0 or step < 1 then
    caller.raise("unfold: size %d and step %d for %d elements, wanted a size of at most these and "
      .. "a step of at least 1", size, step, n)
  end
  local function windows(t)
    local stride = {table.unpack(t:stride())}
    stride[#shape + 1] = stride[d] or 1
    if #shape > 0 then stride[d] = stride[d] * step end
    local of = {table.unpack(shape)}
    if #shape > 0 then of[d] = (n - size) // step + 1 end
    of[#shape + 1] = size
    return t:as_strided(of, stride)
  end
  local ok, view = pcall(windows, x)
  return ok and view or windows(x:contiguous()) -- a leaf with gaps has no gradient as it is
end, "method")

op.split_with_sizes("x; split_sizes, dim = 1", "a list of views, as many elements of dim each as "
  .. "the "
  .. "sizes say", function(x, split_sizes, dim) return core.split(x, split_sizes, dim) end)
op.cartesian_prod("tensors...", "all combinations of the vectors' elements, a row each",
  function(tensors)
    if #tensors == 1 then return tensors[1] end
    local grids = {require("demilune.grid").meshgrid(tensors)}
    for i, grid in ipairs(grids) do grids[i] = grid:reshape(-1) end
    return core.stack(grids, -1)
  end)
op.combinations("x; r = 2, with_replacement = false", "all choices of r elements of a vector, in "
  .. "their order, a row each", function(x, r, with_replacement)
  local n, rows_of = x:numel(), {}
  if x:dim() ~= 1 then
    caller.raise("combinations: x has shape %s, wanted one dim", tostring(x.shape))
  end
  if r == 0 then return core.empty(0, {dtype = x.dtype, device = x.device}) end
  -- there are `many` over r rows, as many as `many` over `many - r`
  local many = with_replacement and n + r - 1 or n
  local numbers = 1.0 * r
  for k = 1, math.min(r, many - r) do
    numbers = numbers * ((many - k + 1) / k)
    if numbers > 2^31 then break end
  end
  if r <= many and numbers > 2^31 then
    caller.raise("combinations: r = %d of %d elements are more than 2^31 numbers", r, n)
  end
  local row = {}
  local function extend(first, k)
    if k > r then
      rows_of[#rows_of + 1] = {table.unpack(row)}
      return
    end
    for i = first, with_replacement and n or n - r + k do
      row[k] = i
      extend(with_replacement and i or i + 1, k + 1)
    end
  end
  extend(1, 1)
  if #rows_of == 0 then return x:narrow(1, 1, 0):reshape(0, r) end
  return x[core.tensor(rows_of, {device = x.device})]
end)

-- x shows a size of its storage, which grows where it is too small.
local function resize(x, size)
  local n = 1
  for _, s in ipairs(size) do n = n * s end
  local flat = x:contiguous():reshape(-1).data
  if n > flat:numel() then flat = core.cat{flat, flat:new_empty(n - flat:numel())} end
  x.data = flat:narrow(1, 1, n):reshape(size):clone()
  return x
end
op.resize("x; size...", "x takes another size, keeping its first elements; further ones are unset",
  resize, "only_inplace")
op.resize_as("x, other", "x takes other's size, keeping its first elements", function(x, other)
  return resize(x, other.shape)
end, "only_inplace")

return rows
