-- RealNVP: affine couplings turn two moons into a normal distribution, and back.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local function net(out)
  return nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(), nn.Linear(24, 24), nn.LeakyReLU(),
    nn.Linear(24, 2), out)
end

local RealNVP = nn.Module:extend "RealNVP"
function RealNVP:init(masks, prior)
  self.prior = prior
  self.mask = nn.Parameter(masks, {requires_grad = false})
  self.t, self.s = nn.ModuleList(), nn.ModuleList()
  for i = 1, #masks do
    self.t[i] = net(nn.Identity())
    self.s[i] = net(nn.Tanh())
  end
end
function RealNVP:g(z) -- from the latent space to the data
  local x = z
  for i = 1, #self.t do
    local x_ = x * self.mask[i]
    local s, t = self.s[i](x_) * (1 - self.mask[i]), self.t[i](x_) * (1 - self.mask[i])
    x = x_ + (1 - self.mask[i]) * (x * dm.exp(s) + t)
  end
  return x
end
function RealNVP:f(x)
  local log_det_J, z = x:new_zeros(x.shape[1]), x
  for i = #self.t, 1, -1 do
    local z_ = self.mask[i] * z
    local s, t = self.s[i](z_) * (1 - self.mask[i]), self.t[i](z_) * (1 - self.mask[i])
    z = (1 - self.mask[i]) * (z - t) * dm.exp(-s) + z_
    log_det_J = log_det_J - s:sum{dim = 2}
  end
  return z, log_det_J
end
function RealNVP:log_prob(x)
  local z, logp = self:f(x)
  return self.prior:log_prob(z) + logp
end
function RealNVP:sample(batch_size) return self:g(self.prior:sample{batch_size}) end

return function(run)
  local angle = dm.rand(48) * math.pi
  local upper = dm.stack({angle:cos(), angle:sin()}, 2)
  local lower = dm.stack({1 - angle:cos(), 0.5 - angle:sin()}, 2)
  local x = dm.cat{upper, lower} + dm.randn(96, 2) * 0.05
  local prior = dm.distributions.MultivariateNormal(dm.zeros(2), dm.eye(2))
  local flow = RealNVP(dm.tensor{{0, 1}, {1, 0}, {0, 1}, {1, 0}}:float(), prior):to(run.device)
  local trainable = {}
  for _, p in ipairs(flow:parameters()) do
    if p.requires_grad then trainable[#trainable + 1] = p end
  end
  local optimizer = optim.Adam(trainable, {lr = 5e-3})
  local losses = {}
  for i = 1, 25 do
    losses[i] = run.step(optimizer, function() return -flow:log_prob(x):mean() end)
  end
  local _ <close> = dm.no_grad()
  assert(dm.allclose(flow:g((flow:f(x))), x, {atol = 1e-3}), "f and g are inverse to each other")
  assert(dm.isfinite(flow:sample(10)):all():item())
  return losses
end
