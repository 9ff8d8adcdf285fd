-- What zero_grad of models and of optimizers does where the gradients are to stay, as zeros: a
-- step then decays such weights and moves them by their momentum; without a gradient it does not.

local core = require "demilune.core"
local options = require "demilune.options"

local zeroing = {}

local bind = options.signature("zero_grad", "set_to_none: boolean = true")

--- Whether these arguments of zero_grad say that the gradients stay.
function zeroing.keeps(...)
  return select("#", ...) > 0 and not bind(...).set_to_none
end

-- Whether several elements share one place in memory.
local function is_expanded(t)
  for d, step in ipairs(t:stride()) do
    if step == 0 and t:size(d) > 1 then return true end
  end
  return false
end

--- Makes the gradient of p zero, if there is one: in its place, but for an expanded one.
function zeroing.zero(p)
  local grad = p.grad
  if not grad then return end
  local _ <close> = core.no_grad()
  if grad.requires_grad then -- it has a graph of its own
    grad = grad:detach()
    p.grad = grad
  end
  if is_expanded(grad) then p.grad = core.zeros_like(grad) else grad:zero_() end
end

return zeroing
