-- A softmax over many classes, the frequent ones near and the rare ones in clusters behind
-- a small layer each; E. Grave et al. 2016.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local containers = require "demilune.nn.containers"
local linear = require "demilune.nn.linear"
local Module = require "demilune.nn.module"

--- x (N, in_features), target (N), classes from 1 by falling frequency -> log-probabilities of the
--- targets (N), and the loss (). cutoffs {10, 100} of 1000 classes make a head of 10 and clusters
--- of 90 and 900; div_value: how many times narrower each cluster's layer is than the last one's.
local AdaptiveLogSoftmaxWithLoss = Module:extend "AdaptiveLogSoftmaxWithLoss"

local function check(n_classes, cutoffs, div_value)
  local before, rising = 0, #cutoffs > 0
  for _, cut in ipairs(cutoffs) do
    rising = rising and math.type(cut) == "integer" and cut > before and cut < n_classes
    before = cut
  end
  if not rising then
    caller.raise("AdaptiveLogSoftmaxWithLoss: cutoffs are {%s}, wanted rising whole numbers "
      .. "from 1 to %d", table.concat(cutoffs, ", "), n_classes - 1)
  end
  if div_value <= 0 then
    caller.raise("AdaptiveLogSoftmaxWithLoss: div_value is %g, wanted more than 0", div_value)
  end
end

local bind = options.signature("AdaptiveLogSoftmaxWithLoss", [[in_features: integer,
  n_classes: integer, cutoffs: list, div_value: number = 4.0, head_bias: boolean = false,
  device?: device, dtype?: dtype]])

function AdaptiveLogSoftmaxWithLoss:init(...)
  local o = bind(...)
  local in_features, n_classes, cutoffs = o.in_features, o.n_classes, o.cutoffs
  check(n_classes, cutoffs, o.div_value)
  self.in_features, self.n_classes = in_features, n_classes
  self._ends = {table.unpack(cutoffs)}
  self._ends[#self._ends + 1] = n_classes
  local clusters = #cutoffs
  local function layer(from, to, bias)
    return linear.Linear(from, to, {bias = bias, dtype = o.dtype, device = o.device})
  end
  self.head = layer(in_features, cutoffs[1] + clusters, o.head_bias)
  local tail = {}
  for i = 1, clusters do
    local hidden = math.floor(in_features // o.div_value ^ i)
    tail[i] = containers.Sequential{layer(in_features, hidden, false),
      layer(hidden, self._ends[i + 1] - self._ends[i], false)}
  end
  self.tail = containers.ModuleList(tail)
end

-- x (N, features) or (features), target (N) or () -> each sample's logarithm of its
-- class's probability, and the loss, -(their mean).
function AdaptiveLogSoftmaxWithLoss:forward(x, target)
  if x:dim() == 1 then
    local out, loss = self:forward(x:unsqueeze(1), target:reshape(1))
    return out:squeeze(1), loss
  end
  if x:dim() ~= 2 or target:dim() ~= 1 or x:size(1) ~= target:size(1) then
    caller.raise("AdaptiveLogSoftmaxWithLoss: input %s and target %s, wanted {N, features} and "
      .. "{N}", tostring(x.shape), tostring(target.shape))
  end
  if target:numel() > 0 and (target:amin():item() < 1 or target:amax():item() > self.n_classes) then
    caller.raise("AdaptiveLogSoftmaxWithLoss: targets from %d to %d, wanted 1 to %d",
      target:amin():item(), target:amax():item(), self.n_classes)
  end
  local near, first = self.head(x):log_softmax(-1), self._ends[1]
  local column, out = target, nil
  for i, cluster in ipairs(self.tail) do
    local low, high = self._ends[i], self._ends[i + 1]
    local rows = target:gt(low):logical_and(target:le(high)):nonzero():squeeze(2)
    if #rows > 0 then
      local far = cluster(x:index_select(1, rows)):log_softmax(-1)
      local at = target:index_select(1, rows) - low
      out = out or core.zeros(x:size(1), {dtype = far.dtype, device = far.device})
      out = out:index_copy(1, rows, far:gather(2, at:unsqueeze(2)):squeeze(2))
      column = column:index_fill(1, rows, first + i)
    end
  end
  local logs = near:gather(2, column:unsqueeze(2)):squeeze(2)
  if out then logs = logs + out end
  return logs, -logs:mean()
end

--- The logarithms of all classes' probabilities: (N, n_classes).
function AdaptiveLogSoftmaxWithLoss:log_prob(x)
  local near, first = self.head(x):log_softmax(-1), self._ends[1]
  local parts = {near:narrow(2, 1, first)}
  for i, cluster in ipairs(self.tail) do
    parts[i + 1] = cluster(x):log_softmax(-1) + near:narrow(2, first + i, 1)
  end
  return core.cat(parts, {dim = 2})
end

--- The most probable class of each sample: (N).
function AdaptiveLogSoftmaxWithLoss:predict(x) return self:log_prob(x):argmax(-1) end

return {AdaptiveLogSoftmaxWithLoss = AdaptiveLogSoftmaxWithLoss}
