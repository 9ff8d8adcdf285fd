-- U-Net: the class of each pixel. Going down sizes halve, going up features of the same size
-- from the way down are joined.
-- O. Ronneberger, P. Fischer, T. Brox, "U-Net", 2015; here with batch norms, zero
-- padding so that sizes stay, and nearest-neighbour upsampling.

local core = require "demilune.core"
local caller = require "demilune.caller"
local nn = require "demilune.nn"
local options = require "demilune.options"
local blocks = require "demilune.models.blocks"
local layers = require "demilune.vision.layers"

--- x (N, C, H, W) -> scores (N, num_classes, H, W).
local UNet = nn.Module:extend "UNet"

local function double(inputs, outputs)
  return nn.Sequential{layers.Conv2dNormActivation(inputs, outputs),
    layers.Conv2dNormActivation(outputs, outputs)}
end

-- (N, C, H, W) -> (N, C, 2 H, 2 W), each pixel as four.
local function twice(x)
  local n, c, h, w = table.unpack(x.shape)
  return x:reshape(n, c, h, 1, w, 1):expand(n, c, h, 2, w, 2):reshape(n, c, 2 * h, 2 * w)
end

function UNet:init(o)
  self.down = nn.ModuleList{}
  self.up = nn.ModuleList{}
  self.pool = nn.MaxPool2d(2)
  local inputs, width = o.in_channels, o.width
  for _ = 1, o.depth do
    self.down:append(double(inputs, width))
    self.up:append(double(3 * width, width)) -- features of this size, and twice as many from below
    inputs, width = width, 2 * width
  end
  self.bottom = double(inputs, width)
  self.head = nn.Conv2d(o.width, o.num_classes, 1)
  self:apply(blocks.start_conv)
end

function UNet:forward(x)
  local side = 1 << #self.down
  if x:dim() ~= 4 or x:size(3) % side ~= 0 or x:size(4) % side ~= 0 then
    caller.raise("UNet: the input has shape {%s}, wanted {N, C, H, W} with H and W that %d divides",
      table.concat(x.shape, ", "), side)
  end
  local kept = {}
  for i, layer in ipairs(self.down) do
    kept[i] = layer(x)
    x = self.pool(kept[i])
  end
  x = self.bottom(x)
  for i = #self.up, 1, -1 do x = self.up[i](core.cat({kept[i], twice(x)}, {dim = 2})) end
  return self.head(x)
end

-- unet{num_classes = 2, in_channels = 3, width = 64, depth = 4} -> a module of images
-- (N, in_channels, H, W) that gives (N, num_classes, H, W). width: channels at full
-- size; depth: how often sizes are halved and channels doubled.
local bind = options.signature("unet", [[*, num_classes: integer = 2, in_channels: integer = 3,
  width: integer = 64, depth: integer = 4]])
return {unet = function(...) return UNet(bind(...)) end}
