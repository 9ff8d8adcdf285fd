-- Super resolution: an efficient sub-pixel CNN whose last step is PixelShuffle.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local Net = nn.Module:extend "Net"
function Net:init(upscale_factor)
  self.relu = nn.ReLU()
  self.conv1 = nn.Conv2d(1, 16, {5, 5}, {1, 1}, {2, 2})
  self.conv2 = nn.Conv2d(16, 16, {3, 3}, {1, 1}, {1, 1})
  self.conv3 = nn.Conv2d(16, upscale_factor ^ 2, {3, 3}, {1, 1}, {1, 1})
  self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
  self:_initialize_weights()
end
function Net:forward(x)
  x = self.relu(self.conv1(x))
  x = self.relu(self.conv2(x))
  return self.pixel_shuffle(self.conv3(x))
end
function Net:_initialize_weights()
  nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain "relu")
  nn.init.orthogonal_(self.conv2.weight, nn.init.calculate_gain "relu")
  nn.init.orthogonal_(self.conv3.weight)
end

return function(run)
  local large = run.digits(8, 16)
  local small = nn.functional.interpolate(large,
    {scale_factor = 0.5, mode = "bicubic", antialias = true})
  local model = Net(2):to(run.device)
  local criterion = nn.MSELoss()
  local optimizer = optim.Adam(model:parameters(), {lr = 0.003})
  local losses = {}
  for i = 1, 15 do
    losses[i] = run.step(optimizer, function() return criterion(model(small), large) end)
  end
  local psnr = 10 * math.log(1 / losses[#losses], 10)
  assert(psnr > 9, psnr)
  return losses
end
