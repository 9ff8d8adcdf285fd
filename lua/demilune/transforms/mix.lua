-- MixUp and CutMix: transforms of whole batches, images and labels.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local step = require "demilune.transforms.step"
local ops = require "demilune.transforms.ops"

local mix = {}

-- A number of Gamma(shape, 1): G. Marsaglia, W. Tsang, "A simple method for generating
-- gamma variables", 2000; below 1 through Gamma(shape + 1). As a logarithm, which a small
-- shape does not round to 0.
local function draw_log_gamma(shape)
  if shape < 1 then
    return draw_log_gamma(shape + 1) + math.log(1 - step.uniform(0, 1)) / shape
  end
  local d = shape - 1 / 3
  local c = 1 / math.sqrt(9 * d)
  while true do
    local x = core.randn(1, {dtype = "float64", device = "cpu"}):item()
    local v = (1 + c * x) ^ 3
    if v > 0 and math.log(1 - step.uniform(0, 1)) < 0.5 * x * x + d * (1 - v + math.log(v)) then
      return math.log(d * v)
    end
  end
end

-- A number of Beta(alpha, alpha).
local function draw_beta(alpha)
  local a, b = draw_log_gamma(alpha), draw_log_gamma(alpha)
  return 1 / (1 + math.exp(b - a))
end

local function one_hot(self, y)
  if y:dim() == 2 then
    if self.num_classes and y:size(-1) ~= self.num_classes then
      caller.raise("%s: labels are %s, num_classes %d", self.class, tostring(y.shape),
        self.num_classes)
    end
    return y:is_floating_point() and y or y:to "float32"
  elseif not self.num_classes then
    caller.raise("%s: labels count classes; hint: num_classes = n", self.class)
  end
  for _, label in ipairs(#y > 0 and {y:amin():item(), y:amax():item()} or {}) do
    if label < 1 or label > self.num_classes then
      caller.raise("%s: a label of %s, num_classes is %d; they count from 1", self.class,
        tostring(label), self.num_classes)
    end
  end
  local classes = core.arange(1, self.num_classes, {dtype = y.dtype, device = y.device})
  return y:unsqueeze(2):eq(classes):to "float32"
end

-- part * x + (1 - part) * the x one sample further on.
local function blend(x, part) return x * part + x:roll(1, 1) * (1 - part) end

local function class(name)
  local c = {class = name}
  c.__index = c
  function c:__call(x, y)
    local good = core.is_tensor(x) and core.is_tensor(y) and x:dim() == 4
    if not good or y:dim() < 1 or y:dim() > 2 or #x ~= #y or y.dtype == "bool" then
      caller.raise("%s: wanted a batch {N, C, H, W} and labels {N} or {N, classes}, got %s and %s",
        name, core.is_tensor(x) and tostring(x.shape) or type(x),
        core.is_tensor(y) and tostring(y.shape) or type(y))
    elseif not x:is_floating_point() then
      caller.raise("%s: images are %s, wanted a float dtype; hint: ToTensor before it", name,
        x.dtype)
    end
    local labels = one_hot(self, y)
    local mixed, part = self:apply(x)
    return mixed, blend(labels, part)
  end
  function c:__tostring()
    return ("%s(alpha = %g, num_classes = %s)"):format(name, self.alpha,
      tostring(self.num_classes))
  end
  local bind = options.signature(name, "*, alpha: number = 1, num_classes?: integer")
  return c, function(...)
    local opts = bind(...)
    if not (opts.alpha > 0 and opts.alpha < math.huge) then
      caller.raise("%s: alpha is %s, wanted a number above 0", name, tostring(opts.alpha))
    elseif opts.num_classes ~= nil and not step.is_count(opts.num_classes, 1) then
      caller.raise("%s: num_classes is %s, wanted a count", name, tostring(opts.num_classes))
    end
    return setmetatable(opts, c)
  end
end

local MixUp, CutMix

-- MixUp{num_classes =, alpha = 1}: mix(x, y) -> images and labels, each blended with its
-- neighbour's by a share drawn from Beta(alpha, alpha): H. Zhang et al., 2018. x float
-- {N, C, H, W}; y counts classes from 1, {N}, or gives their shares, {N, num_classes}; what
-- comes back are shares.
MixUp, mix.MixUp = class "MixUp"
function MixUp:apply(x)
  local part = draw_beta(self.alpha)
  return blend(x, part), part
end

-- CutMix{num_classes =, alpha = 1}: likewise, but a box of the neighbour's pixels is pasted
-- in, and labels are blended by its area: S. Yun et al., 2019.
CutMix, mix.CutMix = class "CutMix"
function CutMix:apply(x)
  local height, width = x:size(-2), x:size(-1)
  local half = 0.5 * math.sqrt(1 - draw_beta(self.alpha))
  local function span(n)
    local middle = core.randint(0, n - 1, {1}, {device = "cpu"}):item()
    local reach = math.floor(half * n)
    return math.max(middle - reach, 0), math.min(middle + reach, n)
  end
  local left, right = span(width)
  local top, bottom = span(height)
  local area = (right - left) * (bottom - top)
  local out = x:clone()
  if area > 0 then
    local function box(t) return ops.crop(t, top + 1, left + 1, bottom - top, right - left) end
    box(out):copy_(box(x:roll(1, 1)))
  end
  return out, 1 - area / (height * width)
end

return mix
