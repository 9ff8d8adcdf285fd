-- Time sequence prediction: LSTM cells learn sines with LBFGS, then predict on their own.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local Sequence = nn.Module:extend "Sequence"
function Sequence:init()
  self.lstm1 = nn.LSTMCell(1, 12)
  self.lstm2 = nn.LSTMCell(12, 12)
  self.linear = nn.Linear(12, 1)
end
function Sequence:forward(input, future)
  local outputs, n = {}, input:size(1)
  local h1, c1 = dm.zeros(n, 12), dm.zeros(n, 12)
  local h2, c2 = dm.zeros(n, 12), dm.zeros(n, 12)
  local function next_value(x)
    h1, c1 = self.lstm1(x, {h1, c1})
    h2, c2 = self.lstm2(h1, {h2, c2})
    local output = self.linear(h2)
    outputs[#outputs + 1] = output
    return output
  end
  local output
  for _, input_t in ipairs(input:split(1, 2)) do output = next_value(input_t) end
  for _ = 1, future or 0 do output = next_value(output) end
  return dm.cat(outputs, 2)
end

return function(run)
  local t = dm.arange(20):unsqueeze(1) + dm.tensor{{0}, {3}, {7}, {11}}
  local waves = dm.sin(t:float() / 3)
  local input, target = waves[{{}, {1, -2}}], waves[{{}, {2, -1}}]
  local model = Sequence():to(run.device)
  local criterion = nn.MSELoss()
  -- LBFGS calls the loss several times a step, so that the GradScaler has no place here.
  local optimizer = optim.LBFGS(model:parameters(), {lr = 0.8})
  local losses = {}
  for i = 1, 2 do
    local loss = optimizer:step(function()
      optimizer:zero_grad()
      local loss
      do
        local _ <close> = run.autocast()
        loss = criterion(model(input), target)
      end
      loss:backward()
      return loss
    end)
    losses[i] = loss:item()
  end
  do
    local _ <close> = dm.no_grad()
    local pred = model(input, 5)
    assert(pred:size(2) == 19 + 5)
    losses[3] = criterion(pred[{{}, {1, -6}}], target):item()
  end
  return losses
end
