-- Quantisation-aware fine-tuning: weights and activations are rounded to 8 bits on the way
-- forward, and the gradient passes straight through.
local dm = require "demilune"
local nn, F, optim, autograd = dm.nn, dm.nn.functional, dm.optim, dm.autograd

local fake_quantize = autograd.Function{
  name = "FakeQuantize",
  forward = function(ctx, x, scale)
    local q = (x / scale):round()
    ctx:save_for_backward(q:abs():le(127))
    return q:clamp(-127, 127) * scale
  end,
  backward = function(ctx, grad_output)
    local inside = ctx:saved_tensors()
    return grad_output * inside, nil
  end,
}

local QuantLinear = nn.Linear:extend "QuantLinear"
function QuantLinear:forward(x)
  local w_scale = self.weight:detach():abs():max():item() / 127
  local x_scale = x:detach():abs():max():item() / 127
  return F.linear(fake_quantize(x, x_scale), fake_quantize(self.weight, w_scale), self.bias)
end

return function(run)
  local images, labels = run.digits(40, 8)
  local x = images:flatten(2)
  local model = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)):to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 0.02})
  for _ = 1, 4 do run.step(optimizer, function() return F.cross_entropy(model(x), labels) end) end

  local quantised = nn.Sequential(QuantLinear(64, 24), nn.ReLU(), QuantLinear(24, 10))
  quantised:to(run.device)
  quantised:load_state_dict(model:state_dict())
  optimizer = optim.Adam(quantised:parameters(), {lr = 0.01})
  local losses = {}
  for i = 1, 15 do
    losses[i] = run.step(optimizer, function() return F.cross_entropy(quantised(x), labels) end)
  end

  -- the same weights as integers
  local layer = quantised[1]
  local scale = layer.weight:abs():max() / 127
  local q = dm.round(layer.weight.data / scale):clamp(-127, 127):to "int8"
  assert((q:float() * scale - layer.weight):abs():max():item() <= scale:item() * 0.51)
  return losses
end
