-- A linear layer whose weight is another module's: the same tensor, so that both stay
-- one through training, :to() and files.

local core = require "demilune.core"
local Module = require("demilune.nn").Module

local TiedLinear = Module:extend "TiedLinear"
TiedLinear.keeps_nothing = true

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
