-- dm.metrics: what a model is judged by, gathered over batches (torchmetrics' names).
--
--   local accuracy = dm.metrics.Accuracy()
--   for _, x, y in test:iter() do accuracy:update(model(x), y) end
--   print(accuracy:compute())
--
-- update(...) takes a batch, compute() gives the value so far, reset() begins anew.
-- Counts stay on the batches' device: only compute() waits for it. Classes count from 1.
-- all_reduce() gives a metric of what all ranks have counted (demilune.distributed).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local metrics = {}

-- A value as it travels between ranks: tensors on the CPU.
local function travels(value)
  if core.is_tensor(value) then return value:detach():cpu() end
  if type(value) ~= "table" then return value end
  local list = {}
  for i, item in ipairs(value) do list[i] = travels(item) end
  return list
end

-- What two ranks have counted, as one: sums, or lists one after the other. nil: nothing so far.
local function joined(a, b)
  if a == nil or b == nil then return a == nil and b or a end
  if type(a) == "table" then return table.move(b, 1, #b, #a + 1, a) end
  return a + b
end

-- A class of metrics. text: its options; init(self, o): from these; start(self): empties it.
-- counted: the names of what update() adds to.
local function class(name, text, counted, init)
  local bind = options.signature(name, text)
  local c = {class = name}
  c.__index = c
  local bind_all_reduce = options.signature("all_reduce", "group?: group")

  --- A metric of what all ranks have counted, whose compute() gives what one process would that
  --- had seen all their batches. All ranks call it together; in one process it is the metric
  --- itself.
  ---@param group? demilune.distributed.Group all ranks by default
  ---@return table metric
  function c:all_reduce(...)
    local dist = require "demilune.distributed"
    local group = bind_all_reduce(...).group
    if not dist.is_initialized() or dist.get_world_size(group) == 1 then return self end
    local own = {}
    for _, key in ipairs(counted) do own[key] = travels(self[key]) end
    local all = setmetatable({}, c)
    for key, value in pairs(self) do all[key] = value end
    for _, key in ipairs(counted) do all[key] = nil end
    for _, part in ipairs(dist.all_gather_object(own, group)) do
      for _, key in ipairs(counted) do all[key] = joined(all[key], part[key]) end
    end
    return all
  end

  function c:__tostring()
    local value = self:compute()
    return ("%s(%s)"):format(name, value ~= value and "no samples yet" or tostring(value))
  end
  function c:reset()
    self:start()
    return self
  end
  metrics[name] = function(...)
    local self = setmetatable({}, c)
    init(self, bind(...))
    return self:reset()
  end
  return c
end

-- self[key], zeros of that shape on x's device, made when the first batch comes.
local function counts(self, key, x, shape)
  self[key] = self[key] or core.keep(core.zeros(shape, {dtype = "int64", device = x.device}))
  return self[key]
end

local function check_tensor(name, what, x)
  if not core.is_tensor(x) then
    caller.raise("%s: %s: a tensor expected, got %s", name, what, type(x))
  end
end

local function refuse_shapes(name, scores, y, hint)
  caller.raise("%s: %s for labels %s, wanted scores (N, C) or classes (N) for labels (N)%s", name,
    tostring(scores.shape), tostring(y.shape), hint or "")
end

-- Raises unless scores have the labels' shape but for the classes' dim.
local function check_scores(name, scores, y, dim)
  local shape = table.move(scores.shape, 1, scores:dim(), 1, {})
  table.remove(shape, dim < 0 and #shape + 1 + dim or dim)
  for i, n in ipairs(shape) do
    if y:size(i) ~= n then
      refuse_shapes(name, scores, y, #shape > 1
        and ("; hint: dim = 2 for scores (N, C, ...), here it is %d"):format(dim))
    end
  end
end

-- The classes (N) that are meant: of scores the best along dim, of anything else itself.
local function decided(name, scores, y, dim)
  check_tensor(name, "the first argument", scores)
  check_tensor(name, "the labels", y)
  if scores:dim() == y:dim() + 1 then
    check_scores(name, scores, y, dim)
    scores = scores:argmax(dim)
  end
  if scores:numel() ~= y:numel() then refuse_shapes(name, scores, y) end
  return scores:reshape(-1), y:reshape(-1)
end

-- Runs update without recording it; temporaries go at its end.
local function silently(fn)
  return function(self, ...)
    local _ <close> = core.no_grad()
    local _ <close> = core.scope()
    fn(self, ...)
    return self
  end
end

-- ---- Mean ----

local Mean = class("Mean", "", {"sum", "weight"}, function() end)
function Mean:start() self.sum, self.weight = 0, 0 end

-- a + b, which outlives the caller's scope.
local function added(a, b)
  local all = a + b
  return core.is_tensor(all) and core.keep(all) or all
end

local function in_double(x) return core.is_tensor(x) and x:detach():double() or x end

--- value: a number, or a tensor, whose elements count each; weight: of each, 1, or a tensor that
--- broadcasts with the value.
function Mean:update(value, weight)
  local _ <close> = core.no_grad()
  value, weight = in_double(value), in_double(weight or 1)
  local sum = value * weight
  if core.is_tensor(sum) then
    local n = sum:numel()
    weight = core.is_tensor(weight) and weight:expand(sum.shape):sum() or n * weight
    sum = sum:sum()
  end
  self.sum, self.weight = added(self.sum, sum), added(self.weight, weight)
  return self
end

local function as_number(x) return core.is_tensor(x) and x:item() or x end

--- nan before the first value.
function Mean:compute()
  local sum, weight = as_number(self.sum), as_number(self.weight)
  return weight == 0 and 0 / 0 or sum / weight
end

-- ---- Accuracy ----

-- {top_k = 1}: the share of labels among the k best scores; dim: where the classes are;
-- ignore_index: a label that does not count, such as cross_entropy's.
local Accuracy = class("Accuracy",
  "top_k: integer = 1, *, dim: integer = -1, ignore_index?: integer", {"right", "total"},
  function(self, o)
    if o.top_k < 1 then
      caller.raise("Accuracy: top_k is %s, wanted a whole number from 1 up", tostring(o.top_k))
    end
    self.top_k, self.dim, self.ignore_index = o.top_k, o.dim, o.ignore_index
  end)
function Accuracy:start() self.right, self.total = nil, nil end

--- scores (..., C), or with top_k = 1 also classes (...); y (...). With dim = 2 scores are
--- (N, C, ...), as cross_entropy takes them.
Accuracy.update = silently(function(self, scores, y)
  local hits
  if self.top_k == 1 then
    scores, y = decided("Accuracy", scores, y, self.dim)
    hits = scores:eq(y)
  else
    check_tensor("Accuracy", "the scores", scores)
    check_tensor("Accuracy", "the labels", y)
    if scores:dim() ~= y:dim() + 1 then
      caller.raise("Accuracy: scores %s for labels %s, wanted (N, C) for (N)",
        tostring(scores.shape), tostring(y.shape))
    end
    check_scores("Accuracy", scores, y, self.dim)
    local _, best = scores:topk(math.min(self.top_k, scores:size(self.dim)), self.dim)
    hits = best:eq(y:unsqueeze(self.dim))
  end
  local right = counts(self, "right", y, {})
  if self.ignore_index then
    local counted = y:ne(self.ignore_index)
    right:add_(hits:logical_and(self.top_k == 1 and counted or counted:unsqueeze(self.dim)):sum())
    counts(self, "total", y, {}):add_(counted:sum())
  else
    right:add_(hits:sum())
    self.total = (self.total or 0) + y:numel()
  end
end)

--- The share of labels that were hit, 0 to 1; nan before the first batch.
function Accuracy:compute()
  local total = as_number(self.total) or 0
  return total == 0 and 0 / 0 or self.right:item() / total
end

-- ---- the confusion matrix, and what follows from it ----

local function confusion_init(name)
  return function(self, o)
    if o.num_classes < 1 then
      caller.raise("%s: num_classes is %s, wanted a whole number from 1 up", name,
        tostring(o.num_classes))
    end
    for key, value in pairs(o) do self[key] = value end
  end
end

local function confusion_start(self) self.matrix = nil end

local function confusion_update(name)
  return silently(function(self, scores, y)
    local n = self.num_classes
    scores, y = decided(name, scores, y, self.dim)
    -- each looked up, so that one out of range is refused with its value and position
    local on = {dtype = "int64", device = y.device}
    local row = core.arange(0, n * (n - 1), n, on):index_select(1, y:long())
    local cells = core.arange(1, n, 1, on):index_select(1, scores:long()) + row
    counts(self, "matrix", y, {n * n}):index_add_(1, cells, core.ones_like(cells))
  end)
end

-- (truth, decision) as a Lua table of rows.
local function rows_of(self)
  local n, rows = self.num_classes, {}
  local flat = self.matrix and self.matrix:totable() or {}
  for i = 1, n do
    rows[i] = {}
    for j = 1, n do rows[i][j] = flat[(i - 1) * n + j] or 0 end
  end
  return rows
end

-- {num_classes =, names = {"cat", ...}}; dim: where the classes are.
local Confusion = class("ConfusionMatrix",
  "num_classes: integer, *, names?: list, dim: integer = -1", {"matrix"},
  confusion_init "ConfusionMatrix")
Confusion.start = confusion_start
--- scores (..., C) or classes (...); labels y (...). With dim = 2 scores are (N, C, ...).
Confusion.update = confusion_update "ConfusionMatrix"

--- int64 (truth, decision).
function Confusion:compute()
  local n = self.num_classes
  return self.matrix and self.matrix:reshape(n, n) or core.zeros({n, n}, {dtype = "int64"})
end

--- A table: a row a class, with its recall.
function Confusion:__tostring()
  local rows, names, width = rows_of(self), {}, 4
  for i = 1, self.num_classes do
    names[i] = tostring(self.names and self.names[i] or i)
    width = math.max(width, #names[i])
    for _, v in ipairs(rows[i]) do width = math.max(width, #tostring(v)) end
  end
  local function line(first, cells, last)
    local words = {("%" .. width .. "s"):format(first)}
    for i, cell in ipairs(cells) do words[i + 1] = ("%" .. width .. "s"):format(cell) end
    words[#words + 1] = last
    return table.concat(words, "  ")
  end
  local lines = {line("", names, "recall")}
  for i, row in ipairs(rows) do
    local all = 0
    for _, v in ipairs(row) do all = all + v end
    lines[i + 1] = line(names[i], row, all > 0 and ("%.3f"):format(row[i] / all) or "-")
  end
  return table.concat(lines, "\n")
end

-- For each class: decided and true, decided, true.
local function tallies(self)
  local hits, decided_, true_ = {}, {}, {}
  for i = 1, self.num_classes do hits[i], decided_[i], true_[i] = 0, 0, 0 end
  for i, row in ipairs(rows_of(self)) do
    for j, v in ipairs(row) do
      if i == j then hits[i] = v end
      decided_[j], true_[i] = decided_[j] + v, true_[i] + v
    end
  end
  return hits, decided_, true_
end

local function sum(list)
  local total = 0
  for _, v in ipairs(list) do total = total + v end
  return total
end

-- share(hits, decided, true): of one class, or of all together; 0 where it is 0 / 0, as
-- scikit-learn has it.
local function of_classes(name, share)
  local init = confusion_init(name)
  local c = class(name, [[num_classes: integer,
    average: 'macro'|'micro'|'weighted'|'none' = 'macro', *, dim: integer = -1]], {"matrix"}, init)
  c.start, c.update = confusion_start, confusion_update(name)

  local function safe(...)
    local v = share(...)
    return v == v and v or 0.0
  end

  --- A number; with average = 'none' a list, one a class. 'macro': the mean over the
  --- classes that occur.
  function c:compute()
    local hits, decided_, true_ = tallies(self)
    if self.average == "micro" then return safe(sum(hits), sum(decided_), sum(true_)) end
    local each, total, weights = {}, 0, 0
    for i = 1, self.num_classes do
      each[i] = safe(hits[i], decided_[i], true_[i])
      local weight = self.average == "weighted" and true_[i]
        or (decided_[i] + true_[i] > 0 and 1 or 0)
      total, weights = total + each[i] * weight, weights + weight
    end
    if self.average == "none" then return each end
    return weights > 0 and total / weights or 0.0
  end
end
of_classes("Precision", function(hits, decided_) return hits / decided_ end)
of_classes("Recall", function(hits, _, true_) return hits / true_ end)
of_classes("F1Score", function(hits, decided_, true_) return 2 * hits / (decided_ + true_) end)

-- ---- AUROC ----

-- The area under the receiver's curve: how often a positive scores above a negative,
-- ties counting half.
local Auroc = class("AUROC", "", {"scores", "labels"}, function() end)
function Auroc:start() self.scores, self.labels = {}, {} end

--- scores (N), larger for the positive class; y (N): 1 or true for it, else 0 or false.
Auroc.update = silently(function(self, scores, y)
  check_tensor("AUROC", "the scores", scores)
  check_tensor("AUROC", "the labels", y)
  if scores:numel() ~= y:numel() then
    caller.raise("AUROC: %d scores for %d labels", scores:numel(), y:numel())
  end
  table.insert(self.scores, core.keep(scores:detach():double():reshape(-1)))
  table.insert(self.labels, core.keep(y:double():reshape(-1)))
end)

--- nan without examples of both kinds, or where a score is nan.
function Auroc:compute()
  if #self.scores == 0 then return 0 / 0 end
  local _ <close> = core.scope()
  local sorted, order = core.cat(self.scores):sort()
  local labels = core.cat(self.labels):index_select(1, order):totable()
  local scores = sorted:totable()
  if scores[#scores] ~= scores[#scores] then return 0 / 0 end -- nan is sorted behind all others
  local positives, negatives, ranks, i = 0, 0, 0, 1
  while i <= #scores do -- ties share the mean of their ranks
    local j = i
    while j < #scores and scores[j + 1] == scores[i] do j = j + 1 end
    for k = i, j do
      if labels[k] ~= 0 and labels[k] ~= 1 then
        caller.raise("AUROC: a label is %g, wanted 1 for the positive class, else 0", labels[k])
      elseif labels[k] == 1 then
        positives, ranks = positives + 1, ranks + (i + j) / 2
      else
        negatives = negatives + 1
      end
    end
    i = j + 1
  end
  if positives == 0 or negatives == 0 then return 0 / 0 end
  return (ranks - positives * (positives + 1) / 2) / (positives * negatives)
end

-- ---- Perplexity ----

-- exp of the mean cross entropy of the next token; {ignore_index =}: labels left out.
local Perplexity = class("Perplexity", "ignore_index: integer = -100", {"total", "seen"},
  function(self, o) self.ignore_index = o.ignore_index end)
function Perplexity:start() self.total, self.seen = nil, nil end

--- scores (..., C), labels y (...).
Perplexity.update = silently(function(self, scores, y)
  check_tensor("Perplexity", "the scores", scores)
  check_tensor("Perplexity", "the labels", y)
  if scores:dim() ~= y:dim() + 1 then
    caller.raise("Perplexity: scores %s for labels %s, wanted (..., C) for (...)",
      tostring(scores.shape), tostring(y.shape))
  end
  if scores.dtype ~= "float64" then scores = scores:float() end
  local loss = core.cross_entropy(scores:reshape(-1, scores:size(-1)), y:reshape(-1),
    {reduction = "sum", ignore_index = self.ignore_index})
  local n = y:ne(self.ignore_index):sum()
  self.total = self.total or core.keep(core.zeros({}, {dtype = "float64", device = y.device}))
  self.total:add_(loss:double())
  counts(self, "seen", y, {}):add_(n)
end)

--- exp of the mean cross entropy so far; nan before the first batch.
function Perplexity:compute()
  if not self.total then return 0 / 0 end
  return math.exp(self.total:item() / self.seen:item())
end

return metrics
