-- A physics-informed network: u'' + u = 0 with u(0) = 0 and u'(0) = 1, by gradients of gradients.
local dm = require "demilune"
local nn, optim, autograd = dm.nn, dm.optim, dm.autograd

return function(run)
  local u = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(),
    nn.Linear(24, 1))
  u:to(run.device)
  local t = dm.linspace(0, 2, 24):view(-1, 1):requires_grad_(true)
  local t0 = dm.zeros(1, 1, {requires_grad = true})
  local optimizer = optim.Adam(u:parameters(), {lr = 1e-2})

  local function derivative(y, x)
    return (autograd.grad(y, x, {grad_outputs = dm.ones_like(y), create_graph = true}))
  end

  local losses = {}
  for i = 1, 100 do
    losses[i] = run.step(optimizer, function()
      local y = u(t)
      local dy = derivative(y, t)
      local d2y = derivative(dy, t)
      local start = u(t0)
      local residual = dm.mean((d2y + y) ^ 2)
      return residual + 10 * (start ^ 2 + (derivative(start, t0) - 1) ^ 2):mean()
    end)
  end
  local off = dm.no_grad(function() return (u(t) - dm.sin(t)):abs():max():item() end)
  assert(off < 0.5, off)
  return losses
end
