-- A neural ODE: RK4 integrates a network, which learns a spiral.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local function rk4(f, y, t0, t1, steps)
  local h, t = (t1 - t0) / steps, t0
  for _ = 1, steps do
    local k1 = f(t, y)
    local k2 = f(t + h / 2, y + h / 2 * k1)
    local k3 = f(t + h / 2, y + h / 2 * k2)
    local k4 = f(t + h, y + h * k3)
    y, t = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), t + h
  end
  return y
end

local function odeint(f, y0, times)
  local ys = {y0}
  for i = 2, #times do ys[i] = rk4(f, ys[i - 1], times[i - 1]:item(), times[i]:item(), 1) end
  return dm.stack(ys)
end

local ODEFunc = nn.Module:extend "ODEFunc"
function ODEFunc:init()
  self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 2))
  for _, m in ipairs(self.net:modules()) do
    if nn.isinstance(m, nn.Linear) then
      nn.init.normal_(m.weight, {mean = 0, std = 0.1})
      nn.init.constant_(m.bias, {val = 0})
    end
  end
end
function ODEFunc:forward(_, y) return self.net(y ^ 3) end

return function(run)
  local true_A = dm.tensor{{-0.1, 2.0}, {-2.0, -0.1}}
  local t = dm.linspace(0, 1.5, 8)
  local true_y0 = dm.tensor{{2.0, 0.0}, {1.0, 1.0}, {0.0, -1.5}}
  local true_y = dm.no_grad(function()
    return odeint(function(_, y) return dm.mm(y ^ 3, true_A) end, true_y0, t)
  end)
  local func = ODEFunc():to(run.device)
  local optimizer = optim.RMSprop(func:parameters(), {lr = 1e-2})
  local losses = {}
  for itr = 1, 30 do
    losses[itr] = run.step(optimizer, function()
      return dm.mean(dm.abs(odeint(func, true_y0, t) - true_y))
    end)
  end
  return losses
end
