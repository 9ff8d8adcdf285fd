-- A variational recurrent network: at each step a latent variable with a learnt prior.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local VRNN = nn.Module:extend "VRNN"
function VRNN:init(x_dim, h_dim, z_dim, n_layers)
  self.h_dim, self.n_layers = h_dim, n_layers
  self.phi_x = nn.Sequential(nn.Linear(x_dim, h_dim), nn.ReLU())
  self.phi_z = nn.Sequential(nn.Linear(z_dim, h_dim), nn.ReLU())
  self.enc = nn.Sequential(nn.Linear(h_dim + h_dim, h_dim), nn.ReLU())
  self.enc_mean = nn.Linear(h_dim, z_dim)
  self.enc_std = nn.Sequential(nn.Linear(h_dim, z_dim), nn.Softplus())
  self.prior = nn.Sequential(nn.Linear(h_dim, h_dim), nn.ReLU())
  self.prior_mean = nn.Linear(h_dim, z_dim)
  self.prior_std = nn.Sequential(nn.Linear(h_dim, z_dim), nn.Softplus())
  self.dec = nn.Sequential(nn.Linear(h_dim + h_dim, h_dim), nn.ReLU())
  self.dec_mean = nn.Sequential(nn.Linear(h_dim, x_dim), nn.Sigmoid())
  self.rnn = nn.GRU(h_dim + h_dim, h_dim, n_layers, {bias = false})
end
function VRNN:forward(x)
  local kld_loss, nll_loss = 0, 0
  local h = dm.zeros(self.n_layers, x:size(2), self.h_dim, {device = x.device})
  for t = 1, x:size(1) do
    local phi_x_t = self.phi_x(x[t])
    local enc_t = self.enc(dm.cat({phi_x_t, h[-1]}, 2))
    local enc_mean_t, enc_std_t = self.enc_mean(enc_t), self.enc_std(enc_t)
    local prior_t = self.prior(h[-1])
    local prior_mean_t, prior_std_t = self.prior_mean(prior_t), self.prior_std(prior_t)
    local z_t = dm.randn_like(enc_std_t):mul(enc_std_t):add_(enc_mean_t)
    local phi_z_t = self.phi_z(z_t)
    local dec_mean_t = self.dec_mean(self.dec(dm.cat({phi_z_t, h[-1]}, 2)))
    h = select(2, self.rnn(dm.cat({phi_x_t, phi_z_t}, 2):unsqueeze(1), h))
    kld_loss = kld_loss + self._kld_gauss(enc_mean_t, enc_std_t, prior_mean_t, prior_std_t)
    nll_loss = nll_loss + self._nll_bernoulli(dec_mean_t, x[t])
  end
  return kld_loss, nll_loss
end
function VRNN._kld_gauss(mean_1, std_1, mean_2, std_2)
  local eps = 1e-3
  local kld_element = 2 * dm.log(std_2 + eps) - 2 * dm.log(std_1 + eps)
    + (std_1:pow(2) + (mean_1 - mean_2):pow(2)) / (std_2 + eps):pow(2) - 1
  return 0.5 * dm.sum(kld_element)
end
function VRNN._nll_bernoulli(theta, x)
  local eps = 1e-3
  return -dm.sum(x * dm.log(theta + eps) + (1 - x) * dm.log(1 - theta + eps))
end

return function(run)
  local data = run.digits(16, 8):squeeze():transpose(1, 2) -- {rows, images, columns}
  data = (data - data:min()) / (data:max() - data:min())
  local model = VRNN(8, 16, 4, 1):to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 1e-2})
  local losses = {}
  for i = 1, 12 do
    losses[i] = run.step(optimizer, function()
      local kld_loss, nll_loss = model(data)
      return (kld_loss + nll_loss) / data:size(2)
    end, {clip = 10, model = model})
  end
  return losses
end
