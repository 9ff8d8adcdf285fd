-- Reductions and statistics.

local core = require "demilune.core"
local caller = require "demilune.caller"
local op, rows = require("demilune.ops.define").family()

op.aminmax("x; dim?, keepdim = false", "the smallest and the largest, of all or along a dim; "
  .. "equals "
  .. "share the gradient", function(x, dim, keepdim)
  local opts = {dim = dim, keepdim = keepdim}
  return x:amin(opts), x:amax(opts)
end)

local function check_weights(name, w, n, right_dtype)
  if not w then return end
  if w:dim() > 1 or w:numel() ~= n then
    caller.raise("cov: %s have shape %s, wanted {%d}", name, tostring(w.shape), n)
  elseif not right_dtype(w) then
    caller.raise("cov: %s are %s, wanted %s", name, w.dtype,
      name == "fweights" and "integers" or "floats")
  elseif w:lt(0):any():item() then
    caller.raise("cov: %s hold a negative number", name)
  end
end
op.cov("x, fweights?, aweights?; correction = 1", "covariances of the rows of x, its columns being "
  .. "observations; fweights: how often each came; aweights: what each counts",
  function(x, fweights, aweights, correction)
    if x:dim() > 2 then caller.raise("cov: x has shape %s, wanted at most 2 dims", x.shape) end
    x = x:dim() == 2 and x or x:reshape(1, -1)
    if not x:is_floating_point() then x = x:to(core.get_default_dtype()) end
    check_weights("fweights", fweights, x:size(2), function(w) return not w:is_floating_point() end)
    check_weights("aweights", aweights, x:size(2), function(w) return w:is_floating_point() end)
    local w = fweights
    if aweights then w = w and w * aweights or aweights end
    local n = w and w:sum() or core.tensor(x:size(2) + 0.0, {dtype = x.dtype, device = x.device})
    local mean = w and (x * w):sum(2, {keepdim = true}) / n or x:mean(2, {keepdim = true})
    if correction ~= 0 then
      local less = w and aweights and (w * aweights):sum() / n * correction or correction
      n = n - less
    end
    local apart = x - mean
    local product = core.matmul(apart, (w and apart * w or apart).mT)
    local c = product / n:clamp{min = 0}
    return c:size(1) == 1 and c:squeeze() or c
  end)
op.corrcoef("x", "correlations of the rows of x, its columns being observations", function(x)
  local c = core.cov(x)
  if c:dim() == 0 then return c / c end
  local d = c:diagonal():sqrt()
  return (c / d:unsqueeze(2) / d:unsqueeze(1)):clamp{min = -1, max = 1}
end)

-- The derivative along dim d of points at a distance h (a number) or at the positions in the
-- vector h: of second order, at the ends of first or second (edge_order).
local function slope(x, d, h, edge_order)
  local n = x:size(d)
  local function part(t, first, count) return t:narrow(t:dim() == 1 and 1 or d, first, count) end
  local function wide(v) -- a vector along dim d
    local shape = {}
    for k = 1, x:dim() do shape[k] = k == d and -1 or 1 end
    return v:reshape(shape)
  end
  local left, right
  if core.is_tensor(h) then
    local steps = h:diff()
    left, right = wide(steps:narrow(1, 1, n - 2)), wide(steps:narrow(1, 2, n - 2))
  else
    left = core.full({1}, h, {dtype = x:is_floating_point() and x.dtype or nil, device = x.device})
    right = left
  end
  local a, b, c = x:narrow(d, 1, n - 2), x:narrow(d, 2, n - 2), x:narrow(d, 3, n - 2)
  local inner = core.is_tensor(h) and a * (-right / (left * (left + right)))
    + b * ((right - left) / (left * right)) + c * (left / (right * (left + right)))
    or (c - a) / (2 * h)
  local function step(k) return core.is_tensor(h) and h[k + 1] - h[k] or h end
  local function row(k) return part(x, k, 1) end
  local first, last
  if edge_order == 1 then
    first, last = (row(2) - row(1)) / step(1), (row(n) - row(n - 1)) / step(n - 1)
  else
    local s, t = step(1), step(2)
    first = row(1) * (-(2 * s + t) / (s * (s + t))) + row(2) * ((s + t) / (s * t))
      + row(3) * (-s / (t * (s + t)))
    s, t = step(n - 2), step(n - 1)
    last = row(n - 2) * (t / (s * (s + t))) + row(n - 1) * (-(s + t) / (s * t))
      + row(n) * ((2 * t + s) / (t * (s + t)))
  end
  return core.cat({first, inner, last}, d)
end
op.gradient("x; spacing = 1, dim?, edge_order = 1", "a list of x's numeric derivatives along each "
  .. "dim, "
  .. "or those given; spacing: the points' distance, or a list of distances or of vectors of "
  .. "positions",
  function(x, spacing, dim, edge_order)
    if edge_order ~= 1 and edge_order ~= 2 then
      caller.raise("gradient: edge_order is %s, wanted 1 or 2", tostring(edge_order))
    end
    local dims, out = type(dim) == "table" and dim or {dim}, {}
    if dim == nil then
      for d = 1, x:dim() do dims[d] = d end
    end
    local seen = {}
    for i, d in ipairs(dims) do
      if d < 0 then d = d + x:dim() + 1 end
      if seen[d] then caller.raise("gradient: dim %d is given twice", d) end
      seen[d] = true
      if x:size(d) <= edge_order then
        caller.raise("gradient: dim %d has %d elements, wanted at least %d", d, x:size(d),
          edge_order + 1)
      end
      out[i] = slope(x, d, type(spacing) == "table" and spacing[i] or spacing, edge_order)
    end
    return out
  end)

op.cumulative_trapezoid("y, x?; dx = 1, dim = -1", "running integral along a dim by the "
  .. "trapezoidal "
  .. "rule, of points dx apart or at x", function(y, x, dx, dim)
  local d = dim < 0 and dim + y:dim() + 1 or dim
  local n = y:size(d)
  local pairs_of = y:narrow(d, 1, n - 1) + y:narrow(d, 2, n - 1)
  if x then
    if x:dim() == 1 and y:dim() > 1 then
      local shape = {}
      for k = 1, y:dim() do shape[k] = k == d and -1 or 1 end
      x = x:reshape(shape)
    end
    return (pairs_of * x:diff{dim = d - y:dim() - 1}):cumsum(d) / 2
  end
  return pairs_of:cumsum(d) * (dx / 2)
end)

op.segment_reduce("data, lengths?, offsets?; reduce, axis = 1, unsafe = false, initial?", "sums, "
  .. "means, "
  .. "products, largest or smallest (sum, mean, prod, max, min) of stretches of a dim: lengths "
  .. "says how "
  .. "long each is, offsets between which positions from 0 on they lie; both hold dims up to axis",
  function(data, lengths, offsets, reduce, axis, _, initial)
    if not lengths and not offsets then
      caller.raise("segment_reduce: wanted lengths or offsets, one of them")
    end
    axis = axis < 0 and axis + data:dim() + 1 or axis
    if offsets then lengths = offsets:diff{dim = axis} end
    local n, shape = lengths:size(axis), {table.unpack(data.shape)}
    shape[axis] = n
    local START = {sum = 0, mean = 0, prod = 1, max = -math.huge, min = math.huge}
    local WAY = {sum = "sum", mean = "mean", prod = "prod", max = "amax", min = "amin"}
    if not WAY[reduce] then
      caller.raise("segment_reduce: reduce is '%s', wanted sum, mean, prod, max or min",
        tostring(reduce))
    end
    -- the segment of each element: how many segments have ended before it
    local ends, size = lengths:cumsum(axis), data:size(axis)
    local at = core.arange(1, size, {dtype = "int64", device = data.device})
    local index = at:reshape(-1, 1):gt(ends:unsqueeze(axis)):long():sum(axis + 1) + 1
    while index:dim() < data:dim() do index = index:unsqueeze(-1) end
    index = index:expand(data.shape)
    local start = initial or START[reduce]
    local out = data:new_full(shape, start)
    if reduce == "mean" then
      out = data:new_full(shape, initial or 0):scatter_add(axis, index, data)
      local counts = lengths:to(data.dtype) + (initial and 1 or 0)
      if not initial then counts = core.where(counts:eq(0), 0 / 0, counts) end
      while counts:dim() < data:dim() do counts = counts:unsqueeze(-1) end
      return out / counts
    end
    return out:scatter_reduce(axis, index, data, WAY[reduce])
  end)

return rows
