-- Averages of weights: an exponential moving average, and SWA with its own learning rate and
-- batch norm statistics made anew.
local dm = require "demilune"
local nn, F, optim, data = dm.nn, dm.nn.functional, dm.optim, dm.data
local swa_utils = optim.swa_utils

return function(run)
  local images, labels = run.digits(48, 8)
  local set = data.TensorDataset(images, labels)
  local loader = data.DataLoader(set,
    {batch_size = 16, shuffle = true, device = run.device})
  local model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
    nn.Linear(128, 10)):to(run.device)
  local ema_model = swa_utils.AveragedModel(model,
    {multi_avg_fn = swa_utils.get_ema_multi_avg_fn(0.8)})
  local swa_model = swa_utils.AveragedModel(model)
  local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
  local scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, {T_max = 8})
  local swa_start, swa_scheduler = 3, swa_utils.SWALR(optimizer, {swa_lr = 0.05})
  local losses = {}
  for epoch = 1, 6 do
    for _, input, target in loader do
      losses[#losses + 1] = run.step(optimizer, function()
        return F.cross_entropy(model(input), target)
      end)
      ema_model:update_parameters(model)
    end
    if epoch > swa_start then
      swa_model:update_parameters(model)
      swa_scheduler:step()
    else
      scheduler:step()
    end
  end
  swa_utils.update_bn(loader, swa_model)
  swa_utils.update_bn(loader, ema_model)
  for _, averaged in ipairs{swa_model, ema_model} do
    averaged:eval()
    local accuracy = averaged(images):argmax(2):eq(labels):float():mean():item()
    assert(accuracy > 0.8, accuracy)
  end
  assert(swa_model.n_averaged:item() == 3)
  return losses
end
