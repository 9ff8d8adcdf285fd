-- Copies of a tensor of which a part is another's, and positions.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

-- A copy of x whose part, a view, is src, for the op of that name.
local function with(name, x, src, part)
  local out = x:clone()
  local there = part(out)
  if there.shape ~= src.shape then
    caller.raise("%s: src has shape %s, wanted %s, that of the part of x", name,
      tostring(src.shape), tostring(there.shape))
  end
  there:copy_(src)
  return out
end

op.select_scatter("x, src; dim, index", "x with src at one position of a dim",
  function(x, src, dim, index)
    return with("select_scatter", x, src, function(out) return out:select(dim, index) end)
  end)
op.slice_scatter("x, src; dim = 1, start = 1, stop = -1, step = 1", "x with src from start to "
  .. "stop, "
  .. "both included, along a dim", function(x, src, dim, start, stop, step)
  return with("slice_scatter", x, src, function(out)
    return out:slice(dim, start, stop, {step = step})
  end)
end)
op.diagonal_scatter("x, src; offset = 0, dim1 = 1, dim2 = 2", "x with src as the diagonal of two "
  .. "dims",
  function(x, src, offset, dim1, dim2)
    return with("diagonal_scatter", x, src, function(out)
      return out:diagonal{offset = offset, dim1 = dim1, dim2 = dim2}
    end)
  end)
op.fill_diagonal("x; fill_value, wrap = false", "writes a number on the diagonal of all dims, "
  .. "which are of one size if there are more than two; wrap: of a matrix with more rows than "
  .. "columns again below, after a row between", function(x, fill_value, wrap)
  local rank, height, width = x:dim(), x.shape[1], x.shape[2]
  if rank < 2 then
    caller.raise("fill_diagonal_: x is %s, wanted 2 dims or more", tostring(x.shape))
  end
  for d = 3, rank do
    if x.shape[d] ~= height or width ~= height then
      caller.raise("fill_diagonal_: x is %s, wanted dims of one size", tostring(x.shape))
    end
  end
  for first = 1, wrap and rank == 2 and height or 1, width + 1 do
    local line = first == 1 and x or x:narrow(1, first, height - first + 1)
    while line:dim() > 1 do line = line:diagonal{dim1 = 1, dim2 = -1} end
    line:fill_(fill_value)
  end
  return x
end, "only_inplace")

op.unravel_index("indices; shape...", "positions in the flattened shape as positions in each "
  .. "dim, a list of tensors", function(indices, shape)
  local n = 1
  for d, size in ipairs(shape) do
    if math.type(size) ~= "integer" or size < 0 then
      caller.raise("unravel_index: size %d of shape is %s, wanted a count", d, tostring(size))
    end
    n = n * size
  end
  if indices:is_floating_point() or indices.dtype == "bool" then
    caller.raise("unravel_index: indices are %s, wanted an integer dtype", indices.dtype)
  end
  if indices.device == "cpu" and indices:numel() > 0 then
    local low, high = core.aminmax(indices)
    if low:item() < -n or high:item() > n or n == 0 or indices:eq(0):any():item() then
      caller.raise("unravel_index: indices are from %d to %d, wanted 1 to %d, or -%d to -1",
        low:item(), high:item(), n, n)
    end
  end
  local at, parts = indices:long(), {}
  at = core.where(at:gt(0), at - 1, at + n)
  for d = #shape, 1, -1 do
    local size = math.max(shape[d], 1) -- 0 where there are no positions at all
    parts[d] = (at:remainder(size) + 1):to(indices.dtype)
    at = at:floor_divide(size)
  end
  return parts
end)

local REDUCTIONS = {prod = true, mean = true, amax = true, amin = true}

op.index_reduce("x, index, source; dim, reduce, include_self = true", "x with the slices of source "
  .. "reduced into positions along dim by reduce (prod, mean, amax, amin), what was there among "
  .. "them "
  .. "or, without include_self, forgotten", function(x, index, source, dim, reduce, include_self)
  if index:dim() > 1 then
    caller.raise("index_reduce: an index of shape %s given, wanted one dim",
      tostring(index.shape))
  end
  if not REDUCTIONS[reduce] then
    caller.raise("index_reduce: reduce: '%s' is none of prod, mean, amax, amin", tostring(reduce))
  end
  local wanted, shape, fits = {}, {}, source:dim() == x:dim()
  local d = dim < 0 and dim + math.max(x:dim(), 1) + 1 or dim
  if d < 1 or d > math.max(x:dim(), 1) then
    caller.raise("index_reduce: dim %s is out of range for shape %s (dims count from 1)", dim,
      tostring(x.shape))
  end
  for k, size in ipairs(x.shape) do
    wanted[k] = k == d and index:numel() or size
    shape[k] = k == d and -1 or 1
    fits = fits and source:size(k) == wanted[k]
  end
  if not fits then
    caller.raise("index_reduce: a source of shape %s given, wanted {%s}", tostring(source.shape),
      table.concat(wanted, ", "))
  end
  local at = index:reshape(shape):expand(source.shape)
  return core.scatter_reduce(x, dim, at, source, reduce, {include_self = include_self})
end, "inplace")
op.put("x, index, source; accumulate = false", "x with the elements of source at positions of the "
  .. "flat x, or added to what is there", function(x, index, source, accumulate)
  local flat, at = x:reshape(-1), index:reshape(-1)
  return core.index_put(flat, {at}, source:reshape(-1), accumulate):reshape(x.shape)
end, "inplace")
op.nonzero_static("x; size, fill_value = -1", "the first size rows of nonzero, filled up with "
  .. "rows of "
  .. "the value", function(x, size, fill_value)
  local found = core.nonzero(x)
  local n = math.min(#found, size)
  local rest = core.full({size - n, x:dim()}, fill_value, {dtype = "int64", device = x.device})
  return core.cat{found:narrow(1, 1, n), rest}
end)
op.msort("x", "x in order along its first dim", function(x) return (core.sort(x, {dim = 1})) end)

-- ---- histograms ----

-- The edges of n equal bins from lo to hi; of values' own range where these are nil.
local function edges_of(values, n, lo, hi)
  if not lo then
    if values:numel() == 0 then lo, hi = 0.0, 1.0
    else lo, hi = values:min():item(), values:max():item() end
  end
  if lo == hi then lo, hi = lo - 0.5, hi + 0.5 end
  return core.linspace(lo, hi, n + 1, {dtype = values.dtype, device = values.device})
end

-- Which bin, from 1, each of a vector's values lies in: the last holds its end; 0: none.
local function bin_of(values, edges)
  local last = #edges - 1
  local at = core.bucketize(values, edges, {right = true}) - 1
  at = core.where(values:eq(edges[-1]), last, at)
  return core.where(at:gt(last), 0, at)
end

-- Counts (or sums of weights) of bins numbered from 1 to n, of x's dtype; 0 counts nowhere.
local function counts_of(at, n, weight, x)
  local w = weight and weight:reshape(-1) or core.ones(#at, {dtype = x.dtype, device = x.device})
  return x:new_zeros(n + 1):index_add(1, at + 1, w):narrow(1, 2, n)
end

local HISTOGRAM = "how many elements (or what sum of weights) lie in each bin, and the bins' "
  .. "edges; "
  .. "bins: a number of equally wide ones in range (x's own where none is given), or the edges; "
  .. "density: by the sum and the bins' sizes"

op.histogram("x; bins, range?, weight?, density = false", HISTOGRAM,
  function(x, bins, range, weight, density)
    local flat = x:detach():reshape(-1)
    if not core.is_tensor(bins) and bins < 1 then
      caller.raise("histogram: %s bins, wanted 1 or more", tostring(bins))
    end
    local edges = core.is_tensor(bins) and bins
      or edges_of(flat, bins, table.unpack(range or {}))
    local counts = counts_of(bin_of(flat, edges), #edges - 1, weight, flat)
    if density then counts = counts / counts:sum() / edges:diff() end
    return counts, edges
  end)
op.histogramdd("x; bins, range?, weight?, density = false", HISTOGRAM .. "; of points, the rows "
  .. "of x, "
  .. "in as many dims as these are long: bins has a number, or edges, for each, and the edges are "
  .. "a "
  .. "list", function(x, bins, range, weight, density)
  local points = x:detach():reshape(-1, x:size(-1))
  local edges, shape, at, outside = {}, {}, nil, nil
  for d = 1, points:size(2) do
    local column, of = points:select(2, d):contiguous(), type(bins) == "table" and bins[d] or bins
    edges[d] = core.is_tensor(of) and of
      or edges_of(column, of, table.unpack(range or {}, 2 * d - 1, 2 * d))
    shape[d] = #edges[d] - 1
    local bin = bin_of(column, edges[d])
    outside = outside and outside:logical_or(bin:eq(0)) or bin:eq(0)
    at = at and at * shape[d] + bin - 1 or bin - 1
  end
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  local counts = counts_of(core.where(outside, 0, at + 1), n, weight, points):reshape(shape)
  if density then
    counts = counts / counts:sum()
    for d, edge in ipairs(edges) do
      local wide = {}
      for k = 1, #shape do wide[k] = k == d and -1 or 1 end
      counts = counts / edge:diff():reshape(wide)
    end
  end
  return counts, edges
end)

return rows
