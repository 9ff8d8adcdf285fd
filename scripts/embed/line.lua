-- Fits y = 2 x1 - 3 x2 + 0.5 by gradient descent; returns weight and bias.
local dm = require "demilune"
dm.manual_seed(1)
local x = dm.randn(256, 2)
local y = x:matmul(dm.tensor{{2.0}, {-3.0}}) + 0.5
local model = dm.nn.Linear(2, 1)
local optimizer = dm.optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
local criterion = dm.nn.MSELoss()
for _ = 1, 200 do
  optimizer:zero_grad()
  criterion(model(x), y):backward()
  optimizer:step()
end
return model.weight, model.bias
