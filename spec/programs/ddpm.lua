-- DDPM: a network learns the noise that was added to points of an arc at a random time, and
-- then turns noise into points.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local T = 20

local function sinusoidal(t, dim)
  local freqs = dm.exp(-math.log(100) * dm.arange(0, dim / 2 - 1) / (dim / 2))
  local args = t[{{}, dm.newaxis}]:float() * freqs[dm.newaxis]
  return dm.cat({args:cos(), args:sin()}, -1)
end

local Denoiser = nn.Module:extend "Denoiser"
function Denoiser:init(width)
  self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU())
  self.input = nn.Linear(2, width)
  self.body = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))
end
function Denoiser:forward(x, t)
  return self.body(self.input(x) + self.time(sinusoidal(t, 8)))
end

return function(run)
  local betas = dm.linspace(1e-3, 0.3, T)
  local alphas = 1 - betas
  local alphas_cumprod = dm.cumprod(alphas, 1)
  local angle = dm.rand(64) * 6
  local x0 = dm.stack({angle:cos(), angle:sin()}, -1)
  local model = Denoiser(32):to(run.device)
  local optimizer = optim.AdamW(model:parameters(), {lr = 1e-2})
  local ema = optim.swa_utils.AveragedModel(model,
    {multi_avg_fn = optim.swa_utils.get_ema_multi_avg_fn(0.9)})
  local losses = {}
  for i = 1, 60 do
    local t = dm.randint(T, {64})
    local noise = dm.randn_like(x0)
    local a = alphas_cumprod[t]:unsqueeze(2)
    local x_t = a:sqrt() * x0 + (1 - a):sqrt() * noise
    losses[i] = run.step(optimizer, function() return F.mse_loss(model(x_t, t), noise) end)
    ema:update_parameters(model)
  end
  -- the mean of ten losses, for each has noise of its own
  local all = dm.tensor(losses)

  local _ <close> = dm.no_grad()
  local x = dm.randn(64, 2)
  for i = T, 1, -1 do
    local t = dm.full({64}, i, {dtype = "int64"})
    local eps = ema(x, t)
    local coef = betas[i] / dm.sqrt(1 - alphas_cumprod[i])
    x = 1 / dm.sqrt(alphas[i]) * (x - coef * eps)
    if i > 1 then x = x + dm.sqrt(betas[i]) * dm.randn_like(x) end
  end
  local radius = x:norm{dim = 2}:median():item()
  assert(radius > 0.5 and radius < 1.6, radius)
  return {all[{{1, 10}}]:mean():item(), all[{{-10, -1}}]:mean():item()}
end
