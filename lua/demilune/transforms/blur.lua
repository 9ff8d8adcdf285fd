-- Gaussian blur by a convolution of tensors: of bytes in float32, rounded, as torchvision's.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local step = require "demilune.transforms.step"

local blur = {}

-- width, height of the kernel, each odd.
local function kernel_size_of(what, size)
  local width, height = size, size
  if type(size) == "table" then width, height = size[1], size[2] or size[1] end
  for _, n in ipairs{width or 0, height or 0} do
    if not step.is_count(n, 1) or n % 2 == 0 then
      caller.raise("%s: kernel_size is %s, wanted an odd number, or {width, height}", what,
        type(size) == "table" and "{" .. step.words(size) .. "}" or tostring(size))
    end
  end
  return width, height
end

-- exp(-(i / sigma)^2 / 2) around the middle of n, to a sum of 1: (n).
local function weights(n, sigma, how)
  local half = (n - 1) * 0.5
  local bell = ((core.linspace(-half, half, n, how) / sigma) ^ 2 * -0.5):exp()
  return bell / bell:sum()
end

-- x (..., C, H, W), blurred along both axes; the border is mirrored.
local function blurred(x, width, height, sigma_x, sigma_y)
  local floats = x:is_floating_point() and x or x:to "float32"
  local how = {dtype = floats.dtype, device = x.device}
  local channels = x:size(-3)
  local kernel = weights(height, sigma_y, how):unsqueeze(2) * weights(width, sigma_x, how)
  local y = floats:reshape(-1, channels, x:size(-2), x:size(-1))
  y = core.pad(y, {width // 2, width // 2, height // 2, height // 2}, {mode = "reflect"})
  y = core.conv2d(y, kernel:expand{channels, 1, height, width}, {groups = channels})
  y = y:reshape(x.shape)
  return x:is_floating_point() and y or y:round():to(x.dtype)
end

-- The deviations along x and y.
local function sigmas(what, sigma)
  local list = type(sigma) == "number" and {sigma, sigma} or sigma
  local good = type(list) == "table" and #list == 2
  for _, v in ipairs(good and list or {}) do good = good and type(v) == "number" and v > 0 end
  if not good then caller.raise("%s: sigma wants a number above 0, or two", what) end
  return list[1], list[2]
end

--- An image blurred by a Gaussian.
---@param img Tensor (..., C, H, W), any dtype; integers are rounded
---@param kernel_size integer|integer[] odd, or {width, height}
---@param sigma? number|number[] in pixels, or {x, y}; 0.15 kernel_size + 0.35 without
local bind_blur = options.signature("gaussian_blur",
  "img: tensor, kernel_size: number|numbers, sigma?: number|numbers")
function blur.gaussian_blur(...)
  local o = bind_blur(...)
  local x, sigma = o.img, o.sigma
  local width, height = kernel_size_of("gaussian_blur", o.kernel_size)
  if sigma == nil then sigma = {0.15 * width + 0.35, 0.15 * height + 0.35} end
  return blurred(x, width, height, sigmas("gaussian_blur", sigma))
end

local GaussianBlur = step.class "GaussianBlur"
function GaussianBlur:apply(x)
  local sigma = step.uniform(self.sigma[1], self.sigma[2])
  return blurred(x, self.width, self.height, sigma, sigma)
end
function GaussianBlur:describe()
  return ("{%d, %d}, sigma = {%s}"):format(self.width, self.height, step.words(self.sigma))
end

--- An image blurred by a Gaussian of a random width.
---@param kernel_size integer|integer[] odd, or {width, height}
---@param sigma? number|number[] {0.1, 2}: the deviation in pixels, a number or {low, high}
local bind_layer = options.signature("GaussianBlur",
  "kernel_size: number|numbers, sigma: number|numbers = {0.1, 2.0}")
function blur.GaussianBlur(...)
  local o = bind_layer(...)
  local low, high = sigmas("GaussianBlur", o.sigma)
  local width, height = kernel_size_of("GaussianBlur", o.kernel_size)
  return setmetatable({width = width, height = height,
    sigma = step.range("GaussianBlur", "sigma", {low, high}, 0, math.huge)}, GaussianBlur)
end

return blur
