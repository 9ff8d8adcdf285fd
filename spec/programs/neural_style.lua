-- Fast neural style: a transformer net is trained by a perceptual loss of VGG features, with
-- reflection padding, instance norm and gram matrices.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local ConvLayer = nn.Module:extend "ConvLayer"
function ConvLayer:init(in_channels, out_channels, kernel_size, stride)
  self.reflection_pad = nn.ReflectionPad2d(kernel_size // 2)
  self.conv2d = nn.Conv2d(in_channels, out_channels, kernel_size, stride)
end
function ConvLayer:forward(x) return self.conv2d(self.reflection_pad(x)) end

local ResidualBlock = nn.Module:extend "ResidualBlock"
function ResidualBlock:init(channels)
  self.conv1 = ConvLayer(channels, channels, 3, 1)
  self.in1 = nn.InstanceNorm2d(channels, {affine = true})
  self.conv2 = ConvLayer(channels, channels, 3, 1)
  self.in2 = nn.InstanceNorm2d(channels, {affine = true})
end
function ResidualBlock:forward(x)
  local out = F.relu(self.in1(self.conv1(x)))
  return self.in2(self.conv2(out)) + x
end

local UpsampleConvLayer = nn.Module:extend "UpsampleConvLayer"
function UpsampleConvLayer:init(in_channels, out_channels, kernel_size, stride, upsample)
  self.upsample = upsample
  self.layer = ConvLayer(in_channels, out_channels, kernel_size, stride)
end
function UpsampleConvLayer:forward(x)
  if self.upsample then
    x = F.interpolate(x, {mode = "nearest", scale_factor = self.upsample})
  end
  return self.layer(x)
end

-- The activations after some of the layers of a small VGG, whose weights are random and stay.
local Features = nn.Module:extend "Features"
function Features:init(layers)
  self.vgg = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU())
  self.layers = layers
  for _, param in ipairs(self:parameters()) do param.requires_grad = false end
end
function Features:forward(x)
  local out = {}
  for i, layer in ipairs(self.vgg) do
    x = layer(x)
    if self.layers[i] then out[#out + 1] = x end
  end
  return out
end

local function gram_matrix(y)
  local b, ch, h, w = table.unpack(y:size())
  local features = y:view(b, ch, w * h)
  return features:bmm(features:transpose(2, 3)) / (ch * h * w)
end

return function(run)
  local content = run.digits(2, 16):expand(-1, 3, -1, -1)
  local style = dm.rand(1, 3, 16, 16)
  local net = nn.Sequential(ConvLayer(3, 8, 3, 2), nn.InstanceNorm2d(8, {affine = true}), nn.ReLU(),
    ResidualBlock(8), UpsampleConvLayer(8, 3, 3, 1, 2)):to(run.device)
  local vgg = Features({[2] = true, [5] = true}):to(run.device)
  local mse_loss = nn.MSELoss()
  local optimizer = optim.Adam(net:parameters(), 0.01)
  local gram_style = {}
  for i, y in ipairs(vgg(style)) do gram_style[i] = gram_matrix(y) end
  local losses = {}
  for step = 1, 8 do
    losses[step] = run.step(optimizer, function()
      local features_y, features_x = vgg(net(content)), vgg(content)
      local content_loss = mse_loss(features_y[2], features_x[2])
      local style_loss = 0.0
      for i, ft_y in ipairs(features_y) do
        local gm_s = gram_style[i]
        style_loss = style_loss + mse_loss(gram_matrix(ft_y), gm_s:expand(2, -1, -1))
      end
      return content_loss + 10 * style_loss
    end)
  end
  return losses
end
