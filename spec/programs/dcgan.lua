-- DCGAN: a generator of transposed convolutions against a discriminator, two Adams, one scaler.
local dm = require "demilune"
local nn, optim = dm.nn, dm.optim
local nz, ngf, ndf, nc = 8, 8, 8, 1

local function weights_init(m)
  if m.class:find "Conv" then
    nn.init.normal_(m.weight, 0.0, 0.02)
  elseif m.class:find "BatchNorm" then
    nn.init.normal_(m.weight, 1.0, 0.02)
    nn.init.zeros_(m.bias)
  end
end

return function(run)
  local netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, {bias = false}), nn.BatchNorm2d(ngf * 2),
    nn.ReLU(true),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, {bias = false}), nn.BatchNorm2d(ngf), nn.ReLU(true),
    nn.ConvTranspose2d(ngf, nc, 4, 2, 1, {bias = false}), nn.Tanh()):to(run.device)
  local netD = nn.Sequential(
    nn.Conv2d(nc, ndf, 4, 2, 1, {bias = false}), nn.LeakyReLU(0.2, {inplace = true}),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1, {bias = false}), nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2, {inplace = true}),
    nn.Conv2d(ndf * 2, 1, 4, 1, 0, {bias = false}), nn.Flatten(1)):to(run.device)
  netG:apply(weights_init)
  netD:apply(weights_init)
  local criterion = nn.BCEWithLogitsLoss()
  local optimizerD = optim.Adam(netD:parameters(), {lr = 0.002, betas = {0.5, 0.999}})
  local optimizerG = optim.Adam(netG:parameters(), {lr = 0.002, betas = {0.5, 0.999}})
  local fixed_noise = dm.randn(4, nz, 1, 1)
  local real = run.digits(16, 16) * 2 - 1
  -- the distance of the invented images' mean from the real ones'
  local function distance()
    return (dm.no_grad(function() return netG(fixed_noise) end):mean() - real:mean()):abs():item()
  end
  local before = distance()
  for _ = 1, 20 do
    -- D: maximise log(D(x)) + log(1 - D(G(z)))
    netD:zero_grad()
    local noise = dm.randn(16, nz, 1, 1)
    local is_real, is_fake = dm.full({16}, 1.0), dm.full({16}, 0.0)
    local errD_real, errD_fake, fake
    do
      local _ <close> = run.autocast()
      errD_real = criterion(netD(real), is_real)
      fake = netG(noise)
      errD_fake = criterion(netD(fake:detach()), is_fake)
    end
    run.scaler:scale(errD_real):backward()
    run.scaler:scale(errD_fake):backward()
    run.scaler:step(optimizerD)
    -- G: maximise log(D(G(z)))
    netG:zero_grad()
    local errG
    do
      local _ <close> = run.autocast()
      errG = criterion(netD(fake), is_real)
    end
    run.scaler:scale(errG):backward()
    run.scaler:step(optimizerG)
    run.scaler:update()
  end
  local images = dm.no_grad(function() return netG(fixed_noise) end)
  assert(images:abs():max():item() <= 1 and images:std():item() > 0)
  return {before, distance()}
end
