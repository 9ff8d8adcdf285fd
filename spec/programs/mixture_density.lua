-- A mixture density network: for each x a mixture of Gaussians of y, where a curve has several y
-- for one x.
local dm = require "demilune"
local nn, optim, D = dm.nn, dm.optim, dm.distributions

local MDN = nn.Module:extend "MDN"
function MDN:init(n_hidden, n_gaussians)
  self.z_h = nn.Sequential(nn.Linear(1, n_hidden), nn.Tanh())
  self.z_pi = nn.Linear(n_hidden, n_gaussians)
  self.z_mu = nn.Linear(n_hidden, n_gaussians)
  self.z_sigma = nn.Linear(n_hidden, n_gaussians)
end
function MDN:forward(x)
  local z_h = self.z_h(x)
  local pi = nn.functional.log_softmax(self.z_pi(z_h), -1)
  return pi, self.z_mu(z_h), dm.exp(self.z_sigma(z_h))
end

local function mdn_loss(pi, mu, sigma, y)
  local m = D.Normal{loc = mu, scale = sigma}
  return -dm.logsumexp(m:log_prob(y) + pi, 2):mean()
end

return function(run)
  local y = dm.linspace(-1, 1, 64):unsqueeze(2)
  local x = 0.7 * dm.sin(5 * y) + 0.5 * y + dm.randn_like(y) * 0.05
  local model = MDN(20, 4):to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 0.02})
  local losses = {}
  for i = 1, 30 do
    losses[i] = run.step(optimizer, function()
      local pi, mu, sigma = model(x)
      return mdn_loss(pi, mu, sigma, y) + 3 -- densities above 1 make the loss negative
    end)
  end
  local _ <close> = dm.no_grad()
  local pi, mu, sigma = model(x)
  local k = dm.multinomial(pi:exp(), 1)
  local sample = dm.normal(mu, sigma):gather(2, k)
  assert(sample:size(1) == 64 and sample:isfinite():all():item())
  return losses
end
