-- The pole on a cart, by Euler's method: reset() and step(action) as in Gymnasium.
local CartPole = {}
CartPole.__index = CartPole

function CartPole.new(seed)
  math.randomseed(seed)
  return setmetatable({}, CartPole)
end

function CartPole:reset()
  self.state = {}
  for i = 1, 4 do self.state[i] = math.random() * 0.1 - 0.05 end
  return {table.unpack(self.state)}
end

-- Pushes to the left (1) or to the right (2). Gives the state, the reward, and whether it fell.
function CartPole:step(action)
  local x, x_dot, theta, theta_dot = table.unpack(self.state)
  local force = action == 2 and 10 or -10
  local temp = (force + 0.05 * theta_dot ^ 2 * math.sin(theta)) / 1.1
  local thetaacc = (9.8 * math.sin(theta) - math.cos(theta) * temp)
    / (0.5 * (4 / 3 - 0.1 * math.cos(theta) ^ 2 / 1.1))
  local xacc = temp - 0.05 * thetaacc * math.cos(theta) / 1.1
  self.state = {x + 0.02 * x_dot, x_dot + 0.02 * xacc, theta + 0.02 * theta_dot,
    theta_dot + 0.02 * thetaacc}
  local fell = math.abs(self.state[1]) > 2.4 or math.abs(self.state[3]) > 12 * math.pi / 180
  return {table.unpack(self.state)}, 1.0, fell
end

return CartPole
