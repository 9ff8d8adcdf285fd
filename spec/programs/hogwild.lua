-- Hogwild: several workers train one shared model, each with an optimizer and data of its own.
-- They are coroutines here, which take turns, where PyTorch's example starts processes.
local dm = require "demilune"
local nn, F, optim, data = dm.nn, dm.nn.functional, dm.optim, dm.data

return function(run)
  local images, labels = run.digits(64, 8)
  local model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
  model:to(run.device)
  local losses = {}

  local function worker(rank)
    local mine = dm.arange(rank, 64, 2)
    local loader = data.DataLoader(data.TensorDataset(images[mine], labels[mine]),
      {batch_size = 8, shuffle = true, device = run.device})
    local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.5})
    for _ = 1, 6 do
      for _, x, y in loader do
        losses[#losses + 1] = run.step(optimizer, function()
          return F.cross_entropy(model(x), y)
        end)
        coroutine.yield()
      end
    end
  end

  local workers = {coroutine.wrap(worker), coroutine.wrap(worker)}
  for _ = 1, 6 * 4 do
    for rank, turn in ipairs(workers) do turn(rank) end
  end
  return losses
end
