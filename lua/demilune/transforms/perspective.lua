-- Images seen from another point: by grid_sample of tensors, of bytes in float32, rounded, as
-- torchvision's are of tensors.

local core = require "demilune.core"
local caller = require "demilune.caller"
local linalg = require "demilune.linalg"
local options = require "demilune.options"
local step = require "demilune.transforms.step"

local perspective = {}

-- The eight numbers of the map that brings the pixel (x, y) of the result to
-- ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1)) of the image.
local function coefficients(from, to)
  local rows, right = {}, {}
  for i = 1, 4 do
    local x, y, u, v = to[i][1], to[i][2], from[i][1], from[i][2]
    rows[2 * i - 1] = {x, y, 1, 0, 0, 0, -u * x, -u * y}
    rows[2 * i] = {0, 0, 0, x, y, 1, -v * x, -v * y}
    right[2 * i - 1], right[2 * i] = u, v
  end
  local double = {dtype = "float64", device = "cpu"}
  return linalg.solve(core.tensor(rows, double), core.tensor(right, double)):to "float32"
end

-- Where each pixel of the result lies in the image, (H, W, 2), from -1 to 1.
local function grid_of(map, height, width, how)
  map = map:to(how.dtype):to(how.device)
  local x = core.linspace(0.5, width - 0.5, width, how)
  local y = core.linspace(0.5, height - 0.5, height, how):unsqueeze(2)
  local below = x * map[7] + y * map[8] + 1
  local function along(k, side)
    local scale = 0.5 * side
    return (x * (map[k] / scale) + y * (map[k + 1] / scale) + map[k + 2] / scale) / below - 1
  end
  return core.stack({along(1, width), along(4, height)}, -1)
end

-- fill: nil (black, which a border blends into), or a list of one number, or one a channel.
local function seen(what, x, from, to, interpolation, fill)
  local floats = x:is_floating_point() and x or x:to "float32"
  local height, width, channels = x:size(-2), x:size(-1), x:size(-3)
  local y = floats:reshape(-1, channels, height, width)
  local how = {dtype = y.dtype, device = y.device}
  local grid = grid_of(coefficients(from, to), height, width, how)
  grid = grid:unsqueeze(1):expand{#y, height, width, 2}
  local sampled = {mode = interpolation, padding_mode = "zeros", align_corners = false}
  local inside = fill and core.grid_sample(core.ones({#y, 1, height, width}, how), grid, sampled)
  y = core.grid_sample(y, grid, sampled)
  if fill then
    if interpolation == "nearest" then inside = inside:ge(0.5):to(y.dtype) end
    y = y * inside + (1 - inside) * step.planes(what, "fill", fill, y)
  end
  y = y:reshape(x.shape)
  return x:is_floating_point() and y or y:round():to(x.dtype)
end

local function check_corners(name, list)
  local good = #list == 4
  for _, corner in ipairs(good and list or {}) do
    good = good and type(corner) == "table" and type(corner[1]) == "number"
      and type(corner[2]) == "number"
  end
  if not good then
    caller.raise("perspective: %s: wanted four corners {x, y}, from the upper left one clockwise",
      name)
  end
end

--- The image with four of its points moved.
---@param img Tensor (..., C, H, W), any dtype; integers are rounded
---@param startpoints number[][] four corners {x, y} of the image, in pixels from 0, clockwise from
---  the upper left one
---@param endpoints number[][] where they lie in the result
---@param opts? table interpolation ("bilinear") or "nearest"; fill: a number, or one a channel
local bind_perspective = options.signature("perspective", [[img: tensor, startpoints: list,
  endpoints: list, interpolation: 'nearest'|'bilinear' = 'bilinear', fill?: number|numbers]])
function perspective.perspective(...)
  local o = bind_perspective(...)
  check_corners("startpoints", o.startpoints)
  check_corners("endpoints", o.endpoints)
  return seen("perspective", o.img, o.startpoints, o.endpoints, o.interpolation,
    o.fill and step.numbers("perspective", "fill", o.fill, -math.huge, math.huge))
end

local RandomPerspective = step.class "RandomPerspective"

-- Each corner moves inwards by at most distortion_scale of half a side, in whole pixels.
function RandomPerspective:apply(x)
  if step.uniform(0, 1) >= self.p then return x end
  local right, bottom = x:size(-1) - 1, x:size(-2) - 1
  local function inwards(side)
    return math.floor(step.uniform(0, self.distortion_scale * (side // 2) // 1 + 1))
  end
  local width, height = right + 1, bottom + 1
  local from = {{0, 0}, {right, 0}, {right, bottom}, {0, bottom}}
  local to = {{inwards(width), inwards(height)}, {right - inwards(width), inwards(height)},
    {right - inwards(width), bottom - inwards(height)}, {inwards(width), bottom - inwards(height)}}
  return seen("RandomPerspective", x, from, to, self.interpolation, self.fill)
end

function RandomPerspective:describe()
  return ("distortion_scale = %g, p = %g"):format(self.distortion_scale, self.p)
end

--- With probability p the image with its corners moved inwards.
---@param opts? table distortion_scale (0.5): at most so much of half a side; p (0.5);
---  interpolation ("bilinear") or "nearest"; fill (0): a number, or one a channel
local bind_random = options.signature("RandomPerspective", [[distortion_scale: number = 0.5,
  p: number = 0.5, interpolation: 'nearest'|'bilinear' = 'bilinear', fill: number|numbers = 0]])
function perspective.RandomPerspective(...)
  local o = bind_random(...)
  o.p = step.probability("RandomPerspective", o.p)
  step.range("RandomPerspective", "distortion_scale", {o.distortion_scale, o.distortion_scale},
    0, 1)
  o.fill = step.numbers("RandomPerspective", "fill", o.fill, -math.huge, math.huge)
  return setmetatable(o, RandomPerspective)
end

return perspective
