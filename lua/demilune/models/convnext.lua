-- ConvNeXt with torchvision's names.
-- Z. Liu, H. Mao, C.-Y. Wu, C. Feichtenhofer, T. Darrell, S. Xie, "A ConvNet for the 2020s",
-- 2022.

local core = require "demilune.core"
local nn = require "demilune.nn"
local options = require "demilune.options"
local layers = require "demilune.vision.layers"

local convnext = {}

local function norm(channels) return layers.LayerNorm2d(channels, {eps = 1e-6}) end

--- A 7x7 filter of each channel, then a widening by 4 and back; x (N, dim, H, W) -> the same
--- shape.
local CNBlock = nn.Module:extend "CNBlock"

function CNBlock:init(dim, layer_scale, drop)
  self.block = nn.Sequential{
    nn.Conv2d(dim, dim, 7, {padding = 3, groups = dim}),
    layers.Permute{1, 3, 4, 2},
    nn.LayerNorm(dim, {eps = 1e-6}),
    nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim),
    layers.Permute{1, 4, 2, 3},
  }
  self.layer_scale = nn.Parameter(core.full({dim, 1, 1}, layer_scale))
  self.stochastic_depth = layers.StochasticDepth(drop)
end

function CNBlock:forward(x)
  return self.stochastic_depth(self.layer_scale * self.block(x)) + x
end

--- x (N, 3, H, W) -> scores (N, num_classes).
local ConvNeXt = nn.Module:extend "ConvNeXt"

local function start(module)
  if module.class == "Conv2d" or module.class == "Linear" then
    nn.init.trunc_normal_(module.weight, 0, 0.02)
    nn.init.zeros_(module.bias)
  end
end

-- how: width of the first stage, then how many blocks each has. Later blocks are left out more
-- often: in proportion to those before them.
function ConvNeXt:init(how, o)
  local width, total, before = how.width, -1, 0
  for _, n in ipairs(how) do total = total + n end
  self.features = nn.Sequential{layers.Conv2dNormActivation(3, width, {kernel_size = 4,
    stride = 4, padding = 0, norm_layer = norm, activation_layer = false, bias = true})}
  for i, n in ipairs(how) do
    if i > 1 then
      self.features:append(nn.Sequential{norm(width), nn.Conv2d(width, 2 * width, 2,
        {stride = 2})})
      width = 2 * width
    end
    local stage = nn.Sequential{}
    for _ = 1, n do
      stage:append(CNBlock(width, o.layer_scale, o.stochastic_depth_prob * before / total))
      before = before + 1
    end
    self.features:append(stage)
  end
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.classifier = nn.Sequential{norm(width), nn.Flatten(), nn.Linear(width, o.num_classes)}
  self:apply(start)
end

function ConvNeXt:forward(x) return self.classifier(self.avgpool(self.features(x))) end

-- convnext_tiny{num_classes = 1000, stochastic_depth_prob =, layer_scale = 1e-6} -> a module of
-- images (N,3,H,W) that gives (N, num_classes); so small, base and large.
-- stochastic_depth_prob: how often the last block is left out; layer_scale: what the outputs of
-- blocks are first multiplied by.
for name, how in pairs{
  convnext_tiny = {width = 96, drop = 0.1, 3, 3, 9, 3},
  convnext_small = {width = 96, drop = 0.4, 3, 3, 27, 3},
  convnext_base = {width = 128, drop = 0.5, 3, 3, 27, 3},
  convnext_large = {width = 192, drop = 0.5, 3, 3, 27, 3},
} do
  local bind = options.signature(name, ([[*, num_classes: integer = 1000,
    stochastic_depth_prob: number = %g, layer_scale: number = 1e-6]]):format(how.drop))
  convnext[name] = function(...) return ConvNeXt(how, bind(...)) end
end

return convnext
