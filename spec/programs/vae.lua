-- A variational autoencoder: reparametrisation, binary cross-entropy and the KL divergence.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local VAE = nn.Module:extend "VAE"
function VAE:init()
  self.fc1 = nn.Linear(64, 40)
  self.fc21 = nn.Linear(40, 4)
  self.fc22 = nn.Linear(40, 4)
  self.fc3 = nn.Linear(4, 40)
  self.fc4 = nn.Linear(40, 64)
end
function VAE:encode(x)
  local h1 = F.relu(self.fc1(x))
  return self.fc21(h1), self.fc22(h1)
end
function VAE.reparameterize(mu, logvar)
  local std = dm.exp(0.5 * logvar)
  local eps = dm.randn_like(std)
  return mu + eps * std
end
function VAE:decode(z)
  local h3 = F.relu(self.fc3(z))
  return dm.sigmoid(self.fc4(h3))
end
function VAE:forward(x)
  local mu, logvar = self:encode(x:view(-1, 64))
  local z = self.reparameterize(mu, logvar)
  return self:decode(z), mu, logvar
end

local function loss_function(recon_x, x, mu, logvar)
  local _ <close> = dm.amp.autocast{enabled = false} -- F.binary_cross_entropy is unsafe in 16 bits
  local BCE = F.binary_cross_entropy(recon_x:float(), x:view(-1, 64), {reduction = "sum"})
  local KLD = -0.5 * dm.sum(1 + logvar - mu:pow(2) - logvar:exp())
  return (BCE + KLD) / #x
end

return function(run)
  local images = run.digits(32, 8)
  local model = VAE():to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 0.01})
  local losses = {}
  for i = 1, 25 do
    losses[i] = run.step(optimizer, function()
      local recon, mu, logvar = model(images)
      return loss_function(recon, images, mu, logvar)
    end)
  end
  model:eval()
  local sample = dm.no_grad(function() return model:decode(dm.randn(6, 4)):view(6, 1, 8, 8) end)
  assert(sample:min():item() >= 0 and sample:max():item() <= 1)
  return losses
end
