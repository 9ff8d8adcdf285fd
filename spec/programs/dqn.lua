-- DQN on cart-pole: a replay memory, epsilon-greedy actions, a target network that follows softly.
local dm = require "demilune"
local nn, F, optim = dm.nn, dm.nn.functional, dm.optim
local CartPole = dofile "spec/programs/cartpole.lua"

local DQN = nn.Module:extend "DQN"
function DQN:init(n_observations, n_actions)
  self.layer1 = nn.Linear(n_observations, 32)
  self.layer2 = nn.Linear(32, 32)
  self.layer3 = nn.Linear(32, n_actions)
end
function DQN:forward(x)
  x = F.relu(self.layer1(x))
  x = F.relu(self.layer2(x))
  return self.layer3(x)
end

return function(run)
  local env = CartPole.new(1)
  local BATCH_SIZE, GAMMA, TAU = 32, 0.9, 0.05
  local policy_net, target_net = DQN(4, 2):to(run.device), DQN(4, 2):to(run.device)
  target_net:load_state_dict(policy_net:state_dict())
  local optimizer = optim.AdamW(policy_net:parameters(), {lr = 5e-3, amsgrad = true})
  local memory, losses = {}, {}

  local function select_action(state, eps)
    if math.random() < eps then return dm.randint(2, {1, 1}) end
    return dm.no_grad(function() return policy_net(state):argmax(2):view(1, 1) end)
  end

  local function optimize_model()
    if #memory < BATCH_SIZE then return end
    local batch = {state = {}, action = {}, reward = {}, next_state = {}, alive = {}}
    for k = 1, BATCH_SIZE do
      for key, value in pairs(memory[math.random(#memory)]) do batch[key][k] = value end
    end
    local non_final_mask = dm.tensor(batch.alive, {dtype = "bool"})
    local state_batch, action_batch = dm.cat(batch.state), dm.cat(batch.action)
    local reward_batch, next_states = dm.cat(batch.reward), dm.cat(batch.next_state)
    losses[#losses + 1] = run.step(optimizer, function()
      local state_action_values = policy_net(state_batch):gather(2, action_batch)
      local next_state_values = dm.zeros(BATCH_SIZE)
      do
        local _ <close> = dm.no_grad()
        local best = target_net(next_states[non_final_mask]):max(2)
        next_state_values[non_final_mask] = best:float()
      end
      local expected = next_state_values * GAMMA + reward_batch
      return nn.SmoothL1Loss()(state_action_values, expected:unsqueeze(2))
    end, {clip_value = 100, model = policy_net})
    local target_state, policy_state = target_net:state_dict(), policy_net:state_dict()
    for key in pairs(policy_state) do
      target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
    end
    target_net:load_state_dict(target_state)
  end

  for episode = 1, 14 do
    local state = dm.tensor(env:reset(), {dtype = "float32"}):unsqueeze(1)
    for _ = 1, 30 do
      local action = select_action(state, 0.9 * 0.7 ^ episode)
      local observation, reward, fell = env:step(action:item())
      local next_state = dm.tensor(observation):unsqueeze(1)
      table.insert(memory, {state = state, action = action, next_state = next_state,
        reward = dm.tensor{reward}, alive = not fell})
      state = next_state
      optimize_model()
      if fell then break end
    end
  end
  local all = dm.tensor(losses)
  return {all[{{1, 10}}]:mean():item(), all[{{-10, -1}}]:mean():item()}
end
