-- Muon (K. Jordan et al. 2024): the momentum of a matrix, made nearly orthogonal by five
-- steps of a Newton-Schulz iteration in bfloat16. For the matrices of hidden layers;
-- embeddings, heads, norms and biases want AdamW.

local core = require "demilune.core"
local caller = require "demilune.caller"
local composed = require "demilune.optim.composed"
local Optimizer = require "demilune.optim.optimizer"

-- The nearest half-orthogonal matrix to g, roughly: singular values near 1. The quintic
-- a x + b x^3 + c x^5 is applied to them at each step.
local function orthogonal(g, o)
  local a, b, c = table.unpack(o.ns_coefficients)
  local is_tall = g.shape[1] > g.shape[2]
  local x = g:to "bfloat16"
  if is_tall then x = x:t() end
  x = x / x:norm():clamp{min = o.eps}
  for _ = 1, o.ns_steps do
    local gram = x:mm(x:t())
    local poly = core.addmm(gram, gram, gram, {beta = b, alpha = c})
    x = core.addmm(x, poly, x, {beta = a})
  end
  return is_tall and x:t() or x
end

-- Rates as if for AdamW, or as the authors': by the sides of the matrix, with or without a
-- lower bound of 1.
local ADJUST = {
  original = function(lr, rows, columns) return lr * math.sqrt(math.max(1, rows / columns)) end,
  match_rms_adamw = function(lr, rows, columns)
    return lr * 0.2 * math.sqrt(math.max(rows, columns))
  end,
  spectral_unclamped = function(lr, rows, columns) return lr * math.sqrt(rows / columns) end,
}

local function check(o)
  for _, key in ipairs{"lr", "momentum", "weight_decay"} do
    Optimizer.check_range("Muon", o, key)
  end
  if #o.ns_coefficients ~= 3 then
    caller.raise("Muon: ns_coefficients are three numbers {a, b, c}")
  end
end

local Muon = composed.class("Muon", [[lr: number = 1e-3, weight_decay: number = 0.1,
  momentum: number = 0.95, nesterov: boolean = true,
  ns_coefficients: numbers = {3.4445, -4.7750, 2.0315}, eps: number = 1e-7,
  ns_steps: integer = 5, adjust_lr_fn?: 'original'|'match_rms_adamw'|'spectral_unclamped']], check,
  function(w, grad, state, o)
    state.momentum_buffer = state.momentum_buffer or Optimizer.zeros_like(w)
    local buffer = state.momentum_buffer
    buffer:lerp_(grad, 1 - o.momentum)
    local g = o.nesterov and grad:lerp(buffer, o.momentum) or buffer
    local rate = ADJUST[o.adjust_lr_fn or "original"](o.lr, w.shape[1], w.shape[2])
    w:mul_(1 - o.lr * o.weight_decay)
    w:add_(orthogonal(g, o):to(w.dtype), {alpha = -rate})
  end)

function Muon:add_param_group(group)
  Optimizer.add_param_group(self, group)
  local added = self.param_groups[#self.param_groups]
  for i, p in ipairs(added.params) do
    if p:dim() ~= 2 then
      self.param_groups[#self.param_groups] = nil
      caller.raise("Muon: parameter %d of the group is %s, wanted a matrix; hint: give the "
        .. "others to AdamW", i, tostring(p.shape))
    end
  end
end

return Muon
