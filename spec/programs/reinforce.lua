-- REINFORCE on cart-pole: log-probabilities of the actions taken, weighted by discounted returns.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local Categorical = dm.distributions.Categorical
local CartPole = dofile "spec/programs/cartpole.lua"

local Policy = nn.Module:extend "Policy"
function Policy:init()
  self.affine1 = nn.Linear(4, 32)
  self.affine2 = nn.Linear(32, 2)
  self.saved_log_probs, self.rewards = {}, {}
end
function Policy:forward(x)
  x = F.relu(self.affine1(x))
  return F.softmax(self.affine2(x), {dim = 2})
end

local function select_action(run, policy, state)
  local _ <close> = run.autocast()
  state = dm.tensor(state):float():unsqueeze(1)
  local probs = policy(state)
  local m = Categorical(probs)
  local action = m:sample()
  table.insert(policy.saved_log_probs, m:log_prob(action))
  return action:item()
end

local function finish_episode(run, policy, optimizer)
  local R, returns, policy_loss = 0, {}, {}
  for i = #policy.rewards, 1, -1 do
    R = policy.rewards[i] + 0.99 * R
    table.insert(returns, 1, R)
  end
  returns = dm.tensor(returns)
  returns = (returns - returns:mean()) / (returns:std() + 1e-6)
  for i, log_prob in ipairs(policy.saved_log_probs) do
    table.insert(policy_loss, -log_prob * returns[i])
  end
  optimizer:zero_grad()
  local loss = dm.cat(policy_loss):sum()
  run.scaler:scale(loss):backward()
  run.scaler:step(optimizer)
  run.scaler:update()
  policy.saved_log_probs, policy.rewards = {}, {}
end

return function(run)
  local env = CartPole.new(3)
  local policy = Policy():to(run.device)
  local optimizer = optim.Adam(policy:parameters(), {lr = 1e-2})
  local lengths = {}
  for episode = 1, 30 do
    local state = env:reset()
    for _ = 1, 60 do
      local action = select_action(run, policy, state)
      local reward, fell
      state, reward, fell = env:step(action)
      table.insert(policy.rewards, reward)
      if fell then break end
    end
    lengths[episode] = #policy.rewards
    finish_episode(run, policy, optimizer)
  end
  local function mean(a, b) return dm.tensor(lengths)[{{a, b}}]:float():mean():item() end
  return {1 / mean(1, 6), 1 / mean(25, 30)} -- the pole stands longer
end
