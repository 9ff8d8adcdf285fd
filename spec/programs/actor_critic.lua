-- Actor-critic on cart-pole: one network gives the policy and the value of a state.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local Categorical = dm.distributions.Categorical
local CartPole = dofile "spec/programs/cartpole.lua"

local Policy = nn.Module:extend "Policy"
function Policy:init()
  self.affine1 = nn.Linear(4, 32)
  self.action_head = nn.Linear(32, 2)
  self.value_head = nn.Linear(32, 1)
end
function Policy:forward(x)
  x = F.relu(self.affine1(x))
  return F.softmax(self.action_head(x), {dim = -1}), self.value_head(x)
end

return function(run)
  local env = CartPole.new(5)
  local model = Policy():to(run.device)
  local optimizer = optim.Adam(model:parameters(), {lr = 2e-2})
  local losses = {}
  for episode = 1, 20 do
    local state, saved_actions, rewards = env:reset(), {}, {}
    for _ = 1, 40 do
      local _ <close> = run.autocast()
      local probs, state_value = model(dm.tensor(state))
      local m = Categorical{probs = probs}
      local action = m:sample()
      table.insert(saved_actions, {log_prob = m:log_prob(action), value = state_value})
      local reward, fell
      state, reward, fell = env:step(action:item())
      table.insert(rewards, reward)
      if fell then break end
    end

    local R, returns = 0, {}
    for i = #rewards, 1, -1 do
      R = rewards[i] + 0.95 * R
      returns[i] = R / 20
    end
    local policy_losses, value_losses = {}, {}
    for i, saved in ipairs(saved_actions) do
      local advantage = returns[i] - saved.value:item()
      policy_losses[i] = -saved.log_prob * advantage
      value_losses[i] = F.smooth_l1_loss(saved.value, dm.tensor{returns[i]})
    end
    optimizer:zero_grad()
    local value_loss = dm.stack(value_losses):mean()
    local loss = dm.stack(policy_losses):mean() + value_loss
    run.scaler:scale(loss):backward()
    run.scaler:step(optimizer)
    run.scaler:update()
    losses[episode] = value_loss:item()
  end
  local all = dm.tensor(losses)
  return {all[{{1, 5}}]:mean():item(), all[{{-5, -1}}]:mean():item()}
end
