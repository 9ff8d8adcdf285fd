-- Pictures (..., C, H, W) of any dtype and device cut, bordered, resized and coloured by
-- ops: what transforms do where C does not.

local core = require "demilune.core"
local caller = require "demilune.caller"
local step = require "demilune.transforms.step"

local ops = {}

function ops.window(x, top, left, height, width)
  return x:narrow(-2, top, height):narrow(-1, left, width)
end

-- Positions 1..n of a side, with `before` and `after` more around them, as the mode says.
local function lines(n, before, after, mode)
  local list = {}
  for i = -before, n + after - 1 do
    local at
    if mode == "edge" or n == 1 then
      at = math.max(0, math.min(i, n - 1))
    else
      local once = mode == "reflect" and 1 or 0 -- the edge is not shown twice
      at = i % (2 * (n - once))
      if at >= n then at = 2 * n - 1 - once - at end
    end
    list[#list + 1] = at + 1
  end
  return list
end

-- pad = {left, top, right, bottom}; fill a list of one number, or one a channel.
function ops.pad(what, x, pad, mode, fill)
  local left, top, right, bottom = table.unpack(pad)
  if left + top + right + bottom == 0 then return x end
  local height, width = x:size(-2), x:size(-1)
  if mode ~= "constant" then
    local function positions(...)
      return core.tensor(lines(...), {dtype = "int64", device = x.device})
    end
    return x:index_select(-2, positions(height, top, bottom, mode))
      :index_select(-1, positions(width, left, right, mode))
  end
  local shape = {table.unpack(x.shape)}
  shape[#shape - 1], shape[#shape] = height + top + bottom, width + left + right
  local out = step.planes(what, "fill", fill, x):expand(shape):clone()
  ops.window(out, top + 1, left + 1, height, width):copy_(x)
  return out
end

-- A position of a window of `size` in `room`, drawn.
function ops.place(room, size)
  return core.randint(1, room - size + 2, {1}, {device = "cpu"}):item()
end

-- ---- another size ----

local SHAPES = {
  bilinear = {reach = 1, weigh = function(d) return math.max(0, 1 - d) end},
  bicubic = {reach = 2, weigh = function(d) -- R. Keys, 1981, with a = -1/2
    if d < 1 then return (1.5 * d - 2.5) * d * d + 1 end
    return d < 2 and (((d - 5) * d + 8) * d - 4) * -0.5 or 0
  end},
}

-- The (n_out, n_in) matrix that resizes a side; filters are as wide as a pixel of the
-- smaller picture (antialias).
local function weights(n_out, n_in, interpolation, x)
  local rows, shape, scale = {}, SHAPES[interpolation], n_in / n_out
  local stretch = math.max(scale, 1)
  for i = 1, n_out do
    local row, sum, middle = {}, 0, (i - 0.5) * scale
    for k = 1, n_in do
      row[k] = shape.weigh(math.abs(k - 0.5 - middle) / stretch)
      sum = sum + row[k]
    end
    for k = 1, n_in do row[k] = row[k] / sum end
    rows[i] = row
  end
  return core.tensor(rows, {dtype = x.dtype, device = x.device})
end

-- Places add up, as in C: a tie falls to the same side.
local function nearest(n_out, n_in, x)
  local list, at, scale = {}, n_in / n_out * 0.5, n_in / n_out
  for i = 1, n_out do
    list[i] = math.min(math.floor(at), n_in - 1) + 1
    at = at + scale
  end
  return core.tensor(list, {dtype = "int64", device = x.device})
end

function ops.resize(what, x, height, width, interpolation)
  local h, w = x:size(-2), x:size(-1)
  if h == height and w == width then return x end
  if interpolation == "nearest" then
    return x:index_select(-2, nearest(height, h, x)):index_select(-1, nearest(width, w, x))
  elseif not x:is_floating_point() then
    caller.raise("%s: the picture is %s on %s, wanted uint8 on the CPU, or floats", what,
      x.dtype, x.device)
  end
  if w ~= width then x = x:matmul(weights(width, w, interpolation, x):t()) end
  if h ~= height then x = weights(height, h, interpolation, x):matmul(x) end
  return x
end

-- ---- colours of floats, 0 to 1 ----

function ops.grey(what, x)
  local channels = x:size(-3)
  if channels == 1 then return x end
  if channels ~= 3 then
    caller.raise("%s: pictures of %d channels, wanted 1 (grey) or 3 (red, green, blue)", what,
      channels)
  end
  local part = core.tensor({0.2989, 0.587, 0.114}, {dtype = x.dtype, device = x.device})
  return (x * part:reshape(-1, 1, 1)):sum(-3, {keepdim = true})
end

local function away(from, x, factor) return (from * (1 - factor) + x * factor):clamp(0, 1) end

-- Hue, turned: channels fall and rise in turn along the wheel. f(n) = v - v s max(0,
-- min(k, 4 - k, 1)) with k = (n + 6 h) mod 6: A. R. Smith's hexcone, 1978, in closed form.
local function turn_hue(x, part)
  if x:size(-3) == 1 then return x end
  local r, g, b = x:narrow(-3, 1, 1), x:narrow(-3, 2, 1), x:narrow(-3, 3, 1)
  local value = x:amax(-3, {keepdim = true})
  local range = value - x:amin(-3, {keepdim = true})
  local safe = core.where(range:eq(0), core.ones_like(range), range)
  local sixth = core.where(value:eq(r), (g - b) / safe,
    core.where(value:eq(g), (b - r) / safe + 2, (r - g) / safe + 4))
  local planes = {}
  for i, n in ipairs{5, 3, 1} do
    local k = (sixth + (n + 6 * part)):remainder(6)
    planes[i] = value - range * core.minimum(k, 4 - k):clamp(0, 1)
  end
  return core.cat(planes, -3)
end

-- What one of the four adjustments makes of x.
function ops.adjust(what, x, kind, factor)
  if not x:is_floating_point() then
    caller.raise("%s: the picture is %s on %s, wanted uint8 on the CPU, or floats 0 to 1", what,
      x.dtype, x.device)
  end
  if kind == "brightness" then return (x * factor):clamp(0, 1) end
  local grey = ops.grey(what, x)
  if kind == "contrast" then return away(grey:mean({-3, -2, -1}, {keepdim = true}), x, factor) end
  if kind == "saturation" then return away(grey, x, factor) end
  return turn_hue(x, factor)
end

return ops
