-- nn.functional: every op, and what is several ops.

local core = require "demilune.core"

local functional = setmetatable({}, {__index = core})

-- A number, or a table of them, as int64 beside x; a tensor as it is.
local function lengths(v, x)
  if type(v) ~= "table" and type(v) ~= "number" then return v end
  return core.tensor(v, {dtype = "int64", device = x.device})
end

-- dm.ctc_loss, which takes tensors; here the two lengths may be tables of numbers, and
-- of a sequence without a batch numbers. opts: blank = 1, reduction = "mean",
-- zero_infinity = false.
function functional.ctc_loss(log_probs, targets, input_lengths, target_lengths, opts)
  return core.ctc_loss(log_probs, targets, lengths(input_lengths, log_probs),
    lengths(target_lengths, log_probs), opts)
end

return functional
