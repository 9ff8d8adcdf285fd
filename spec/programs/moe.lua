-- A mixture of experts: a router sends each token to its two best experts; an auxiliary loss
-- balances the load.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim

local Expert = nn.Module:extend "Expert"
function Expert:init(dim, hidden)
  self.w1 = nn.Linear(dim, hidden, {bias = false})
  self.w2 = nn.Linear(hidden, dim, {bias = false})
  self.w3 = nn.Linear(dim, hidden, {bias = false})
end
function Expert:forward(x) return self.w2(F.silu(self.w1(x)) * self.w3(x)) end

local MoE = nn.Module:extend "MoE"
function MoE:init(dim, num_experts, top_k)
  self.gate = nn.Linear(dim, num_experts, {bias = false})
  self.experts = nn.ModuleList()
  for _ = 1, num_experts do self.experts:append(Expert(dim, dim * 2)) end
  self.num_experts, self.top_k = num_experts, top_k
end
function MoE:forward(x)
  local probs = F.softmax(self.gate(x):float(), -1)
  local weights, selected = dm.topk(probs, self.top_k, {dim = -1})
  weights = weights / weights:sum(-1, {keepdim = true})
  local results = dm.zeros_like(x)
  for i, expert in ipairs(self.experts) do
    local token, nth = table.unpack(selected:eq(i):nonzero():unbind(2))
    if token:numel() > 0 then
      local out = weights[{token, nth, dm.newaxis}] * expert(x[token])
      results:index_add_(1, token, out:to(results.dtype))
    end
  end
  local load = F.one_hot(selected, self.num_experts):float():sum(2):mean(1)
  return results, (load * probs:mean(1)):sum() * self.num_experts
end

return function(run)
  local x = dm.randn(64, 8)
  local target = dm.where(x[{{}, {1, 1}}]:gt(0), x:flip(2), -x)
  local model = MoE(8, 4, 2):to(run.device)
  local optimizer = optim.AdamW(model:parameters(), {lr = 0.02})
  local losses = {}
  for i = 1, 30 do
    losses[i] = run.step(optimizer, function()
      local out, balance = model(x)
      return F.mse_loss(out, target) + 0.01 * balance
    end)
  end
  return losses
end
