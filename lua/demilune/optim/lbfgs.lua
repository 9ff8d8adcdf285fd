-- LBFGS: quasi-Newton steps from the last differences of gradients (J. Nocedal 1980),
-- all parameters as one vector; the line search meets the strong Wolfe conditions
-- (J. Nocedal, S. Wright, Numerical Optimization, 2006, chapter 3). Its rules for when
-- to stop are PyTorch's. For full batches: each evaluation must be of the same function.
--
--   optimizer:step(function()
--     optimizer:zero_grad()
--     local loss = criterion(model(x), y)
--     loss:backward()
--     return loss
--   end)

local core = require "demilune.core"
local caller = require "demilune.caller"
local Optimizer = require "demilune.optim.optimizer"

local LBFGS = Optimizer.extend("LBFGS", [[lr: number = 1, max_iter: integer = 20,
  max_eval?: integer, tolerance_grad: number = 1e-7, tolerance_change: number = 1e-9,
  history_size: integer = 100, line_search_fn?: 'strong_wolfe', *,
  maximize: boolean = false]])

function LBFGS.check(o)
  for _, key in ipairs{"lr", "max_iter", "tolerance_grad", "tolerance_change"} do
    Optimizer.check_range("LBFGS", o, key)
  end
end

function LBFGS:add_param_group(group)
  if #self.param_groups == 1 then
    caller.raise("LBFGS: wanted one group of parameters: all of them are one vector")
  end
  Optimizer.add_param_group(self, group)
end

-- ---- the parameters as one vector ----

local function largest(v) return v:abs():max():item() end

local function flat_gradient(params)
  local parts = {}
  for i, p in ipairs(params) do
    parts[i] = p.grad and p.grad:reshape(-1) or core.zeros_like(p.data):reshape(-1)
  end
  return core.cat(parts)
end

-- params += t d
local function move(params, t, d)
  local from = 1
  for _, p in ipairs(params) do
    p:add_(d:narrow(1, from, p:numel()):reshape(p.shape), {alpha = t})
    from = from + p:numel()
  end
end

-- {f = loss, g = gradient} where the parameters are, both negated where `maximize` is set.
local function evaluate(params, closure, maximize)
  local _ <close> = core.scope()
  local f
  do
    local _ <close> = core.enable_grad()
    f = closure():item()
  end
  local g = flat_gradient(params)
  if maximize then f, g = -f, -g end
  return {f = f, g = core.keep(g)}
end

-- ---- the line search ----

-- The minimum within low .. high of the cubic through two points and their slopes.
local function cubic_minimum(p, q, low, high)
  if p.t > q.t then p, q = q, p end
  low, high = low or p.t, high or q.t
  local d = p.slope + q.slope - 3 * (p.f - q.f) / (p.t - q.t)
  local square = d * d - p.slope * q.slope
  if square < 0 or square ~= square then return (low + high) / 2 end
  local root = math.sqrt(square)
  local t = q.t - (q.t - p.t) * ((q.slope + root - d) / (q.slope - p.slope + 2 * root))
  return math.min(math.max(t, low), high)
end

-- The conditions' constants, and the least bracket that is searched, whatever tolerance_change is.
local FALL, CURVE, LEAST = 1e-4, 0.9, 1e-9

-- From `start` (t = 0) with first step t: a point that meets the conditions, or the best
-- one seen after `most` further evaluations, and how many there were. at(t) evaluates.
local function strong_wolfe(at, t, start, most)
  local function is_low(p) return p.f <= start.f + FALL * p.t * start.slope end
  local function is_flat(p) return math.abs(p.slope) <= -CURVE * start.slope end

  local before, p, n = start, at(t), 0
  local low, high -- the ends of the bracket, the lower one first
  while n < most do
    if not is_low(p) or n > 1 and p.f >= before.f or not is_flat(p) and p.slope >= 0 then
      low, high = before, p
      break
    end
    if is_flat(p) then return p, n + 1 end
    local next_t = cubic_minimum(before, p, p.t + 0.01 * (p.t - before.t), 10 * p.t)
    before, p, n = p, at(next_t), n + 1
  end
  if not low then low, high = start, p end
  if high.f < low.f then low, high = high, low end

  local was_near_an_end = false
  while n < most and math.abs(high.t - low.t) * start.reach >= LEAST do
    local first, last = math.min(low.t, high.t), math.max(low.t, high.t)
    local next_t, margin = cubic_minimum(low, high), 0.1 * (last - first)
    local is_near_an_end = math.min(last - next_t, next_t - first) < margin
    if is_near_an_end and (was_near_an_end or next_t >= last or next_t <= first) then
      next_t = last - next_t < next_t - first and last - margin or first + margin
      is_near_an_end = false
    end
    was_near_an_end = is_near_an_end
    p, n = at(next_t), n + 1
    if not is_low(p) or p.f >= low.f then
      high = p
      if high.f < low.f then low, high = high, low end
    else
      if is_flat(p) then return p, n + 1 end
      if p.slope * (high.t - low.t) >= 0 then high = low end
      low = p
    end
  end
  return low, n + 1
end

-- ---- a step ----

-- -H g, where H is the inverse Hessian as the history has it.
local function direction(m, g)
  local n, share = #m.ro, {}
  local q = -g
  for i = n, 1, -1 do
    share[i] = m.old_stps[i]:dot(q):item() * m.ro[i]
    q:add_(m.old_dirs[i], {alpha = -share[i]})
  end
  q:mul_(m.H_diag)
  for i = 1, n do
    local back = m.old_dirs[i]:dot(q):item() * m.ro[i]
    q:add_(m.old_stps[i], {alpha = share[i] - back})
  end
  return core.keep(q)
end

-- Learns from the last step: y, the gradients' difference, and s, the step.
local function remember(m, g, size)
  local y, s = g - m.prev_flat_grad, m.d * m.t
  local ys = y:dot(s):item()
  if ys <= 1e-10 then return end
  if #m.ro == size then
    for _, list in ipairs{m.old_dirs, m.old_stps, m.ro} do table.remove(list, 1) end
  end
  table.insert(m.old_dirs, core.keep(y))
  table.insert(m.old_stps, core.keep(s))
  table.insert(m.ro, 1 / ys)
  m.H_diag = ys / y:dot(y):item()
end

-- One iteration from `here`; -> the next point and its evaluations, or nil if the
-- direction does not lead down. most: how many evaluations a line search has left. `last`: nothing
-- is evaluated after a step of fixed length.
local function iterate(params, closure, m, o, here, most, last)
  local _ <close> = core.scope()
  m.n_iter = m.n_iter + 1
  local is_first = m.n_iter == 1
  if is_first then
    m.old_dirs, m.old_stps, m.ro, m.H_diag = {}, {}, {}, 1
  else
    remember(m, here.g, o.history_size)
  end
  m.d, m.prev_flat_grad, m.prev_loss = direction(m, here.g), here.g, here.f
  m.t = is_first and math.min(1, 1 / here.g:abs():sum():item()) * o.lr or o.lr
  here.t, here.slope = 0, here.g:dot(m.d):item()
  if here.slope > -o.tolerance_change then return nil end

  if o.line_search_fn then
    here.reach = largest(m.d)
    local start = {}
    for i, p in ipairs(params) do start[i] = p:clone() end
    local function at(t)
      for i, p in ipairs(params) do p:copy_(start[i]) end
      move(params, t, m.d)
      local point = evaluate(params, closure, o.maximize)
      point.t, point.slope = t, point.g:dot(m.d):item()
      return point
    end
    local found, count = strong_wolfe(at, m.t, here, most)
    m.t = found.t
    for i, p in ipairs(params) do p:copy_(start[i]) end
    move(params, m.t, m.d)
    return found, count
  end
  move(params, m.t, m.d)
  if last then return {f = here.f, g = here.g}, 0 end
  return evaluate(params, closure, o.maximize), 1
end

--- closure computes the loss and the gradients, as often as the search asks. Returns the
--- loss before the step.
function LBFGS:step(closure)
  if type(closure) ~= "function" then
    caller.raise("LBFGS:step: wanted a function that computes loss and gradients, got %s",
      type(closure))
  end
  core.warn_autocast "step"
  local _ <close> = core.no_grad()
  local o = self.param_groups[1]
  local params = o.params
  local state = self.state[params[1]] or {memory = {n_iter = 0, func_evals = 0}}
  self.state[params[1]] = state
  local m = state.memory

  local loss
  local here = evaluate(params, function()
    loss = core.keep(closure())
    return loss
  end, o.maximize)
  local evaluations, most = 1, o.max_eval or o.max_iter * 5 // 4
  local done = largest(here.g) <= o.tolerance_grad
  for i = 1, done and 0 or o.max_iter do
    local point, count = iterate(params, closure, m, o, here, most - evaluations, i == o.max_iter)
    if not point then break end
    evaluations = evaluations + count
    local change = math.abs(point.f - here.f)
    here = point
    if evaluations >= most or largest(here.g) <= o.tolerance_grad
      or largest(m.d) * math.abs(m.t) <= o.tolerance_change
      or change < o.tolerance_change then break end
  end
  m.func_evals = m.func_evals + evaluations
  self.steps = (self.steps or 0) + 1
  return loss
end

LBFGS.step = Optimizer.with_hooks(LBFGS.step)

-- Buffers of all parameters in one, as PyTorch saves them.
LBFGS.reduced = {d = true, prev_flat_grad = true}

--- Loads copies: a saved state stays as it is. PyTorch's has by itself what `memory` has here, and
--- tensors for numbers.
function LBFGS:load_state_dict(saved)
  Optimizer.load_state_dict(self, saved)
  local p = self.param_groups[1].params[1]
  local function copy(v)
    if core.is_tensor(v) and v:dim() == 0 then return v:item() end
    if core.is_tensor(v) then return core.keep(v:to{device = p.device, copy = true}) end
    if type(v) ~= "table" then return v end
    local out = {}
    for key, value in pairs(v) do out[key] = copy(value) end
    return out
  end
  for key, state in pairs(self.state) do
    self.state[key] = copy(state.memory and state or {memory = state})
  end
end

return LBFGS
