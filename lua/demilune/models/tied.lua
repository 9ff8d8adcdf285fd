-- A linear layer whose weight is the same tensor as another module's: both stay one through
-- training, :to() and files.

local core = require "demilune.core"
local Module = require("demilune.nn").Module

--- x (..., I) -> (..., O) = x W^T + b.
local TiedLinear = Module:extend "TiedLinear"
TiedLinear.holds_no_activations = true

-- weight (O, I), bias (O) or nil
function TiedLinear:init(weight, bias)
  self.weight = weight
  self.bias = bias
end

-- x (..., I) -> (..., O)
function TiedLinear:forward(x) return core.linear(x, self.weight, self.bias) end

function TiedLinear:extra_repr()
  return ("%d -> %d, tied"):format(self.weight:size(2), self.weight:size(1))
end

return TiedLinear
