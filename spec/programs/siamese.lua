-- A siamese network: one ResNet-like trunk looks at two images; a head tells whether they are of
-- one class.
local dm = require "demilune"
local nn, optim, data = dm.nn, dm.optim, dm.data

local SiameseNetwork = nn.Module:extend "SiameseNetwork"
function SiameseNetwork:init()
  self.trunk = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(),
    nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
  self.fc = nn.Sequential(nn.Linear(8 * 4 * 2, 32), nn.ReLU(true), nn.Linear(32, 1))
  self.sigmoid = nn.Sigmoid()
  self.trunk:apply(self.init_weights)
end
function SiameseNetwork.init_weights(m)
  if nn.isinstance(m, nn.Conv2d) then
    nn.init.xavier_uniform_(m.weight)
    m.bias.data:fill_(0.01)
  end
end
function SiameseNetwork:forward_once(x)
  local output = self.trunk(x)
  return output:view(output:size()[1], -1)
end
function SiameseNetwork:forward(input1, input2)
  local output1, output2 = self:forward_once(input1), self:forward_once(input2)
  return self.fc(dm.cat({output1, output2}, 2))
end

-- Pairs of images: every other one of the same class.
local Matcher = data.Dataset:extend "Matcher"
function Matcher:init(images, labels) self.images, self.labels = images, labels end
function Matcher.len() return 40 end
function Matcher:get(i)
  local first = (i - 1) % #self.images + 1
  local want = i % 2 == 1
  local second = first
  repeat second = second % #self.images + 1
  until (self.labels[second]:item() == self.labels[first]:item()) == want
  return self.images[first], self.images[second], want and 1.0 or 0.0
end

return function(run)
  local images, labels = run.digits(20, 8)
  local loader = data.DataLoader(Matcher(images, labels),
    {batch_size = 20, shuffle = true, device = run.device})
  local model = SiameseNetwork():to(run.device)
  local criterion = nn.BCEWithLogitsLoss()
  local optimizer = optim.Adadelta(model:parameters(), {lr = 1.0})
  local losses = {}
  for _ = 1, 20 do
    for _, image_1, image_2, target in loader do
      losses[#losses + 1] = run.step(optimizer, function()
        return criterion(model(image_1, image_2):squeeze(), target)
      end)
    end
  end
  return losses
end
