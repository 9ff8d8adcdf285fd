-- LoRA: the weights of a trained network stay; low-rank factors beside them learn a new task.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local LoRALinear = nn.Module:extend "LoRALinear"
function LoRALinear:init(base, r, alpha)
  self.base = base
  self.base:requires_grad_(false)
  self.lora_A = nn.Parameter(dm.empty(r, base.in_features))
  self.lora_B = nn.Parameter(dm.zeros(base.out_features, r))
  nn.init.kaiming_uniform_(self.lora_A, {a = math.sqrt(5)})
  self.scaling = alpha / r
end
function LoRALinear:forward(x)
  return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling
end
function LoRALinear:merge()
  dm.no_grad(function()
    self.base.weight:add_(self.lora_B:matmul(self.lora_A) * self.scaling)
  end)
  return self.base
end

-- Replaces each linear layer of the model by one with factors.
local function inject(module, r, alpha)
  for name, child in module:named_children() do
    if nn.isinstance(child, nn.Linear) then
      module[name] = LoRALinear(child, r, alpha)
    else
      inject(child, r, alpha)
    end
  end
end

return function(run)
  local model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)):to(run.device)
  local x = dm.randn(64, 8)
  local y = x[{{}, {1, 4}}]:argmax(2)
  inject(model, 4, 8)
  local trainable, before = {}, {}
  for name, p in model:named_parameters() do
    if p.requires_grad then table.insert(trainable, p) else before[name] = p:clone() end
  end
  local optimizer = optim.AdamW(trainable, {lr = 0.03, weight_decay = 0})
  local losses = {}
  for i = 1, 30 do
    losses[i] = run.step(optimizer, function() return F.cross_entropy(model(x), y) end)
  end
  for name, p in model:named_parameters() do
    assert(not before[name] or dm.equal(p, before[name]), name .. " stays")
  end
  local tuned = model(x)
  model[1], model[3] = model[1]:merge(), model[3]:merge()
  assert(dm.allclose(model(x), tuned, {rtol = 1e-3, atol = 1e-4}))
  return losses
end
