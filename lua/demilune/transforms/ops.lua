-- Transforms of tensors (..., C, H, W) of any dtype and device, by ops, which have gradients.
--
-- The engine decides: where a crop lies, how wide a border is, which factors are drawn, with
-- which weights an axis is resized (core.augment's plans). Only the pixels of what is no uint8
-- image on the CPU are moved here. Colours of floats have formulas of their own, as torchvision's
-- have: those of the engine are Pillow's, and round to 8 bits.

local core = require "demilune.core"
local caller = require "demilune.caller"
local step = require "demilune.transforms.step"

local ops = {}

-- Rows top .. top + height - 1 and columns left .. left + width - 1 of x, a view.
function ops.crop(x, top, left, height, width)
  return x:narrow(-2, top, height):narrow(-1, left, width)
end

-- The plan of one transform, given as core.augment takes it, for an image of the size of x.
local function plan_of(declared, x)
  return step.compiled{declared}:plan(x:size(-2), x:size(-1), step.draw())
end

-- ---- positions ----

-- pad = {left, top, right, bottom}; fill a list of one number, or one a channel.
local function pad_by(what, x, pad, mode, fill)
  local left, top, right, bottom = table.unpack(pad)
  if left + top + right + bottom == 0 then return x end
  local height, width = x:size(-2), x:size(-1)
  if mode ~= "constant" then
    return x:index_select(-2, core._pad_positions(height, top, bottom, mode):to(x.device))
      :index_select(-1, core._pad_positions(width, left, right, mode):to(x.device))
  end
  local shape = {table.unpack(x.shape)}
  shape[#shape - 1], shape[#shape] = height + top + bottom, width + left + right
  local out = step.planes(what, "fill", fill, x):expand(shape):clone()
  ops.crop(out, top + 1, left + 1, height, width):copy_(x)
  return out
end

local function resize(what, x, size, interpolation)
  local height, width, h, w = size[1], size[2], x:size(-2), x:size(-1)
  if h == height and w == width then return x end
  if interpolation == "nearest" then
    return x:index_select(-2, core._resize_nearest(height, h):to(x.device))
      :index_select(-1, core._resize_nearest(width, w):to(x.device))
  elseif not x:is_floating_point() then
    caller.raise("%s: the image is %s on %s, wanted uint8 on the CPU, or floats", what,
      x.dtype, x.device)
  end
  local function weights(n_out, n_in)
    return core._resize_weights(n_out, n_in, interpolation):to(x.dtype):to(x.device)
  end
  if w ~= width then x = x:matmul(weights(width, w):t()) end
  if h ~= height then x = weights(height, h):matmul(x) end
  return x
end

-- A border, a crop, another size, a mirror image.
function ops.move(what, x, declared)
  local plan = plan_of(declared, x)
  x = pad_by(what, x, plan.pad, declared.padding_mode or "constant", declared.values or {0})
  local top, left, height, width = table.unpack(plan.box)
  if height ~= x:size(-2) or width ~= x:size(-1) then x = ops.crop(x, top, left, height, width) end
  x = resize(what, x, plan.size, declared.interpolation)
  if plan.mirror then x = x:flip{-1} end
  return plan.reverse and x:flip{-2} or x
end

-- Boxes of x become numbers, one a channel, or noise; x itself stays as it is.
function ops.erase(what, x, declared)
  local list = step.compiled{{kind = "ToTensor"}, declared}
  local boxes = list:boxes(x:size(-2), x:size(-1), step.draw())
  if #boxes == 0 then return x end
  x = x:clone()
  for _, box in ipairs(boxes) do
    local to = ops.crop(x, table.unpack(box))
    if declared.noise then to:copy_(core.randn(to.shape, {device = x.device}))
    else to:copy_(step.planes(what, "value", declared.values or {0}, x):expand(to.shape)) end
  end
  return x
end

-- ---- colours of floats, 0 to 1 ----

local function grey_of(what, x)
  local channels = x:size(-3)
  if channels == 1 then return x end
  if channels ~= 3 then
    caller.raise("%s: images of %d channels, wanted 1 (grey) or 3 (red, green, blue)", what,
      channels)
  end
  local part = core.tensor({0.2989, 0.587, 0.114}, {dtype = x.dtype, device = x.device})
  return (x * part:reshape(-1, 1, 1)):sum(-3, {keepdim = true})
end

local function away(from, x, factor) return (from * (1 - factor) + x * factor):clamp(0, 1) end

-- Turns the hue: channels fall and rise in turn along the wheel. f(n) = v - v s max(0,
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

-- One of ColorJitter's four adjustments of x.
local function adjust(what, x, kind, factor)
  if not x:is_floating_point() then
    caller.raise("%s: the image is %s on %s, wanted uint8 on the CPU, or floats 0 to 1", what,
      x.dtype, x.device)
  end
  if kind == "brightness" then return (x * factor):clamp(0, 1) end
  local grey = grey_of(what, x)
  if kind == "contrast" then return away(grey:mean({-3, -2, -1}, {keepdim = true}), x, factor) end
  if kind == "saturation" then return away(grey, x, factor) end
  return turn_hue(x, factor)
end

-- Without colour, or adjusted.
function ops.colour(what, x, declared)
  local plan = plan_of(declared, x)
  if plan.grey then
    local shape = {table.unpack(x.shape)}
    shape[#shape - 2] = declared.channels or shape[#shape - 2]
    x = grey_of(what, x):expand(shape)
  end
  for _, change in ipairs(plan) do x = adjust(what, x, change[1], change[2]) end
  return x
end

return ops
