-- The forward-forward algorithm: each layer learns by itself to have large activations for images
-- with their right label written in, and small ones for wrong labels.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local function overlay_y_on_x(x, y)
  local x_ = x:clone()
  x_[{{}, {1, 10}}] = 0
  x_[{dm.arange(x:size(1)), y}] = 3
  return x_
end

local Layer = nn.Linear:extend "Layer"
function Layer:init(in_features, out_features)
  nn.Linear.init(self, in_features, out_features)
  self.relu = nn.ReLU()
  self.threshold = 0.5
  self.opt = optim.Adam(self:parameters(), {lr = 0.03})
end
function Layer:forward(x)
  local x_direction = x / (x:norm(2, 2, true) + 1e-4)
  return self.relu(dm.mm(x_direction, self.weight:t()) + self.bias:unsqueeze(1))
end
function Layer:train_step(run, x_pos, x_neg)
  local loss = run.step(self.opt, function()
    local g_pos = self:forward(x_pos):pow(2):mean(2)
    local g_neg = self:forward(x_neg):pow(2):mean(2)
    return dm.log(1 + dm.exp(dm.cat{-g_pos + self.threshold, g_neg - self.threshold})):mean()
  end)
  local _ <close> = dm.no_grad()
  return self:forward(x_pos):detach(), self:forward(x_neg):detach(), loss
end

local function predict(net, x)
  local goodness_per_label = {}
  for label = 1, 10 do
    local h, goodness = overlay_y_on_x(x, label), 0
    for _, layer in ipairs(net) do
      h = layer(h)
      goodness = goodness + h:pow(2):mean(2)
    end
    table.insert(goodness_per_label, goodness:unsqueeze(2))
  end
  return dm.cat(goodness_per_label, 2):argmax(2)
end

return function(run)
  local images, y = run.digits(40, 8)
  local x = images:flatten(2)
  x = dm.cat({dm.zeros(40, 10), x}, 2)
  local x_pos = overlay_y_on_x(x, y)
  local x_neg = overlay_y_on_x(x, (y + dm.randint(9, {40}) - 1) % 10 + 1)
  local net = nn.ModuleList{Layer(74, 32), Layer(32, 32)}
  local losses = {}
  for i = 1, 100 do
    local h_pos, h_neg, loss = x_pos, x_neg, nil
    for _, layer in ipairs(net) do h_pos, h_neg, loss = layer:train_step(run, h_pos, h_neg) end
    losses[i] = loss
  end
  local accuracy = dm.no_grad(function() return predict(net, x):eq(y):float():mean():item() end)
  assert(accuracy > 0.3, accuracy)
  return losses
end
