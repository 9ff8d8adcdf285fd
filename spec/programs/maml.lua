-- MAML: weights from which one gradient step learns a new sine; the step is differentiated too.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local functional_call = dm.func.functional_call

local function task()
  local amplitude, phase = dm.rand(1):item() * 4 + 1, dm.rand(1):item() * math.pi
  return function()
    local x = dm.rand(10, 1) * 10 - 5
    return x, amplitude * dm.sin(x + phase)
  end
end

return function(run)
  local model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(),
    nn.Linear(24, 1))
  model:to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 5e-3})

  -- The weights after one step on a task.
  local function adapt(x, y)
    local params = {}
    for name, p in model:named_parameters() do params[name] = p end
    local loss = F.mse_loss(functional_call(model, params, x), y)
    local names, list = {}, {}
    for name, p in pairs(params) do
      table.insert(names, name)
      table.insert(list, p)
    end
    local grads = {dm.autograd.grad(loss, list, {create_graph = true})}
    for i, name in ipairs(names) do params[name] = params[name] - 0.02 * grads[i] end
    return params
  end

  local losses = {}
  for step = 1, 30 do
    losses[step] = run.step(optimizer, function()
      local meta_loss ---@type demilune.Tensor|number
      meta_loss = 0
      for _ = 1, 4 do
        local sample = task()
        local params = adapt(sample())
        local x, y = sample()
        meta_loss = meta_loss + F.mse_loss(functional_call(model, params, {x}), y)
      end
      return meta_loss / 4
    end)
  end
  local all = dm.tensor(losses)
  return {all[{{1, 8}}]:mean():item(), all[{{-8, -1}}]:mean():item()}
end
