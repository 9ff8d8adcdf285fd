-- Precision-recall curves as TensorBoard's plugin counts them: predictions are cut to one of so
-- many thresholds between 0 and 1.

local core = require "demilune.core"
local caller = require "demilune.caller"

local pr_curve = {}

local LEAST = 1e-7 -- divides where nothing is counted

-- float64 (N) on the CPU.
local function vector(name, v)
  v = core.is_tensor(v) and v:detach():to "cpu" or core.tensor(v, {device = "cpu"})
  v = v:flatten()
  if v:numel() == 0 then caller.raise("add_pr_curve: %s holds no element", name) end
  return v
end

-- The sums from each threshold on, of weights (N) at the positions `at` (N).
local function sums_from(at, weights, n)
  local sums = core.bincount(at, weights, {minlength = n}):totable()
  for i = n - 1, 1, -1 do sums[i] = sums[i] + sums[i + 1] end
  return sums
end

--- Six lists by threshold: true and false positives, true and false negatives, precision, recall.
---@param labels table (N) 0 or 1, or booleans
---@param predictions table (N) from 0 to 1; others are not counted
---@param n integer thresholds
---@param weights? number|table (N)
---@return number[][] rows
function pr_curve.rows(labels, predictions, n, weights)
  if n < 2 then caller.raise("add_pr_curve: num_thresholds is %d, wanted 2 at least", n) end
  local _ <close> = core.no_grad()
  local y, p = vector("labels", labels):to "float64", vector("predictions", predictions)
  local w = type(weights) == "number" and core.full_like(y, weights)
    or weights and vector("weights", weights):to "float64" or core.ones_like(y)
  for name, other in pairs{predictions = p, weights = w} do
    if other:numel() ~= y:numel() then
      caller.raise("add_pr_curve: %d labels and %d %s, wanted as many", y:numel(), other:numel(),
        name)
    end
  end
  local at = (p * (n - 1)):floor()
  local counted = at:ge(0):logical_and(at:le(n - 1))
  at = at:masked_select(counted):to "int64" + 1
  y, w = y:masked_select(counted), w:masked_select(counted)
  local tp, fp = sums_from(at, y * w, n), sums_from(at, (1 - y) * w, n)
  local tn, fn, precision, recall = {}, {}, {}, {}
  for i = 1, n do
    tn[i], fn[i] = fp[1] - fp[i], tp[1] - tp[i]
    precision[i] = tp[i] / math.max(LEAST, tp[i] + fp[i])
    recall[i] = tp[i] / math.max(LEAST, tp[i] + fn[i])
  end
  return {tp, fp, tn, fn, precision, recall}
end

return pr_curve
