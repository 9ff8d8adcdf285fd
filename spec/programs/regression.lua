-- Regression: a linear layer finds the coefficients of a polynomial of degree 4.
local dm = require "demilune"
local nn, F = dm.nn, dm.nn.functional
local POLY_DEGREE = 4

local function make_features(x)
  x = x:unsqueeze(2)
  local powers = {}
  for i = 1, POLY_DEGREE do powers[i] = x ^ i end
  return dm.cat(powers, 2)
end

local function poly_desc(W, b)
  local result = "y = "
  for i, w in ipairs(W) do result = result .. ("%+.2f x^%d "):format(w, i) end
  return result .. ("%+.2f"):format(b[1])
end

return function(run)
  local W_target, b_target = dm.randn(POLY_DEGREE, 1) * 2, dm.randn(1)
  local function f(x) return x:mm(W_target) + b_target:item() end
  local function get_batch(batch_size)
    local x = make_features(dm.randn(batch_size):clamp(-1, 1))
    return x, f(x)
  end
  local fc = nn.Linear(W_target:size(1), 1):to(run.device)
  local losses = {}
  for batch_idx = 1, 40 do
    local batch_x, batch_y = get_batch(32)
    fc:zero_grad()
    local loss
    do
      local _ <close> = run.autocast()
      loss = F.smooth_l1_loss(fc(batch_x), batch_y)
    end
    loss:backward()
    for _, param in ipairs(fc:parameters()) do
      param.data:add_(-0.3 * param.grad)
    end
    losses[batch_idx] = loss:item()
  end
  assert(poly_desc(fc.weight:view(-1):tolist(), fc.bias:tolist()):find "y = ")
  return losses
end
