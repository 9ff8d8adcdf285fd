-- dm.Trainer: the training loop, for those who want it done. Made of public calls only;
-- a loop of one's own is never far. A batch is x, y, and one more at most.
--
--   local trainer = dm.Trainer{model = model, loss = nn.CrossEntropyLoss(),
--     optimizer = optim.AdamW(model:parameters()), metrics = {accuracy = dm.metrics.Accuracy()}}
--   local history = trainer:fit{train = loader, valid = test, epochs = 3}
--   print(history[3].valid_accuracy)

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local amp = require "demilune.amp"
local metrics = require "demilune.metrics"
local files = require "demilune.io"
local progress = require "demilune.progress"
local Module = require "demilune.nn.module"

local Trainer = {}
Trainer.__index = Trainer
Trainer.class = "Trainer"

local NEW = {
  model = options.NONE,      -- a module
  loss = options.NONE,       -- loss(model(x), y) -> a tensor of one element
  forward = options.NONE,    -- instead: forward(model, x, ...) of a batch -> loss, scores
  optimizer = options.NONE,
  schedule = options.NONE, schedule_every = "step", -- or "epoch"
  device = options.NONE,     -- where batches go: the model's, unless said
  amp = options.NONE,        -- "float16" (with a GradScaler), "bfloat16"
  clip = options.NONE,       -- the norm of the gradients is held there
  accumulate = 1,            -- batches to a step
  metrics = {},              -- {name = metric}: metric:update(scores, y)
  callbacks = {},            -- {on_epoch_end = function(trainer, values) end, ...}
  checkpoint = options.NONE, -- a file: everything, after each epoch
  best = options.NONE,       -- a file: the same, when `monitor` gets better
  monitor = options.NONE,    -- "valid_loss", or "train_loss" without `valid`
  mode = "min",              -- or "max": what is better
  patience = options.NONE,   -- epochs without better before it stops
  resume = options.NONE,     -- a checkpoint to go on from
  verbose = true,            -- a bar, and a line an epoch
}

local EVENTS = {on_fit_begin = true, on_epoch_begin = true, on_step = true, on_epoch_end = true,
  on_fit_end = true}

local function check(o)
  if not Module.is_module(o.model) then
    caller.raise("Trainer: model is a %s, wanted a module", type(o.model))
  end
  if (o.loss == nil) == (o.forward == nil) then
    caller.raise("Trainer: wanted loss(scores, y), or forward(model, x, ...) that gives the loss")
  end
  if type(o.optimizer) ~= "table" or not o.optimizer.param_groups then
    caller.raise("Trainer: optimizer is a %s, wanted an optimizer", type(o.optimizer))
  end
  if o.amp ~= nil and o.amp ~= "float16" and o.amp ~= "bfloat16" then
    caller.raise("Trainer: amp is %s, wanted 'float16', 'bfloat16' or nothing", tostring(o.amp))
  end
  if o.schedule_every ~= "step" and o.schedule_every ~= "epoch" then
    caller.raise("Trainer: schedule_every is '%s', wanted 'step' or 'epoch'",
      tostring(o.schedule_every))
  end
  if o.mode ~= "min" and o.mode ~= "max" then
    caller.raise("Trainer: mode is '%s', wanted 'min' or 'max'", tostring(o.mode))
  end
  if math.type(o.accumulate) ~= "integer" or o.accumulate < 1 then
    caller.raise("Trainer: accumulate is %s, wanted a whole number from 1", tostring(o.accumulate))
  end
  for event in pairs(o.callbacks) do
    if not EVENTS[event] then
      local near = options.nearest(tostring(event), EVENTS)
      caller.raise("Trainer: no event '%s'%s", tostring(event),
        near and ("; did you mean '%s'?"):format(near) or "")
    end
  end
end

local function new(_, opts)
  local o = options.read("Trainer", opts, NEW)
  check(o)
  local self = setmetatable(o, Trainer)
  local first = self.model:parameters()[1]
  self.device = self.device or first and first.device or "cpu"
  self.kind = self.device:match "^%a+"
  self.scaler = amp.GradScaler{device = self.kind, enabled = self.amp == "float16"}
  self.epoch, self.steps, self.history, self.stalled = 0, 0, {}, 0
  if self.resume then self:load(self.resume) end
  return self
end

-- Calls the event's function, if there is one: -> what it returns.
local function tell(self, event, ...)
  local fn = self.callbacks[event]
  if fn then return fn(self, ...) end
end

-- ---- one batch ----

local function moved(device, first, ...)
  if first == nil then return end
  return core.is_tensor(first) and first:to{device = device, non_blocking = true} or first,
    moved(device, ...)
end

-- The loss of a batch, and the scores for the metrics.
local function losses_of(self, x, y, ...)
  local _ <close> = amp.autocast{device_type = self.kind, enabled = self.amp ~= nil,
    dtype = self.amp}
  if self.forward then return self.forward(self.model, x, y, ...) end
  local scores = self.model(x)
  return self.loss(scores, y), scores
end

-- An epoch's values: its losses, and the metrics where there are scores.
local function gather(self)
  local values = {loss = metrics.Mean()}
  for name, metric in pairs(self.metrics) do values[name] = metric:reset() end
  return values
end

local function add(values, y, loss, scores)
  for name, metric in pairs(values) do
    if name == "loss" then
      metric:update(loss:detach())
    elseif scores then
      metric:update(scores:detach(), y)
    end
  end
end

local function read(values, prefix, out)
  for name, metric in pairs(values) do out[prefix .. name] = metric:compute() end
  return out
end

-- ---- an epoch ----

-- How many batches make the step that batch i is part of: an epoch's last ones may be
-- fewer than `accumulate`.
local function group_size(self, i, total)
  local rest = total and total % self.accumulate or 0
  return rest > 0 and i > total - rest and rest or self.accumulate
end

local function train_batch(self, values, group, x, y, ...)
  local _ <close> = core.scope()
  local loss, scores = losses_of(self, x, y, ...)
  local stepped = amp.step{loss = loss, optimizer = self.optimizer, scaler = self.scaler,
    max_norm = self.clip, accumulate = group}
  add(values, y, loss, scores)
  if stepped then
    self.steps = self.steps + 1
    if self.schedule and self.schedule_every == "step" then self.schedule:step() end
    tell(self, "on_step", self.steps, loss)
  end
end

local function train_epoch(self, loader)
  self.model:train()
  local values, total = gather(self), loader.len and loader:len() or nil
  local batches = self.verbose and progress or function(over) return over:iter() end
  for i, x, y, z in batches(loader, {desc = ("epoch %d"):format(self.epoch)}) do
    train_batch(self, values, group_size(self, i, total), moved(self.device, x, y, z))
    if self.verbose then
      progress.set{samples = #x, loss = i % 10 == 1 and values.loss:compute() or nil}
    end
  end
  return read(values, "train_", {})
end

--- {loss =, and the metrics}, over the batches of a loader, without gradients.
function Trainer:evaluate(loader, prefix)
  local values, was_training = gather(self), self.model.training
  self.model:eval()
  core.no_grad(function()
    for _, x, y, z in loader:iter() do
      local _ <close> = core.scope()
      x, y, z = moved(self.device, x, y, z)
      add(values, y, losses_of(self, x, y, z))
    end
  end)
  self.model:train(was_training)
  return read(values, prefix or "", {})
end

-- ---- state ----

local PARTS = {"model", "optimizer", "schedule", "scaler"}

--- Everything that goes on from here, as one file (dm.save).
function Trainer:save(path)
  local state = {epoch = self.epoch, steps = self.steps, history = self.history,
    best_value = self.best_value, stalled = self.stalled, rng = core.get_rng_state()}
  for _, part in ipairs(PARTS) do
    if self[part] and (part ~= "scaler" or self.scaler:is_enabled()) then
      state[part] = self[part]:state_dict()
    end
  end
  state.loader = self.train_loader and self.train_loader.state_dict
    and self.train_loader:state_dict() or nil
  assert(files.save(path, state))
end

--- Goes on from a file that save wrote.
function Trainer:load(path)
  local state = assert(files.load(path))
  for _, part in ipairs(PARTS) do
    if self[part] and state[part] then self[part]:load_state_dict(state[part]) end
  end
  self.epoch, self.steps, self.history = state.epoch, state.steps, state.history
  self.best_value, self.stalled = state.best_value, state.stalled
  self.loader_state = state.loader
  core.set_rng_state(state.rng)
end

-- ---- the loop ----

-- Notes whether the epoch was the best: -> whether to go on.
local function judge(self, values)
  local name = self.monitor or values.valid_loss and "valid_loss" or "train_loss"
  local value, best = values[name], self.best_value
  if value == nil then
    caller.raise("Trainer: monitor is '%s', which no epoch has", name)
  end
  local better = value == value and (not best
    or self.mode == "min" and value < best or self.mode == "max" and value > best)
  self.stalled = better and 0 or self.stalled + 1
  if better then
    self.best_value = value
    if self.best then self:save(self.best) end
  end
  return not self.patience or self.stalled < self.patience
end

local function show(self, values)
  local names, words = {}, {}
  for name in pairs(values) do
    if type(values[name]) == "number" and name ~= "epoch" then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do words[i] = ("%s %.4g"):format(name, values[name]) end
  print(("epoch %d: %s"):format(self.epoch, table.concat(words, ", ")))
end

local function one_epoch(self, o)
  self.epoch = self.epoch + 1
  tell(self, "on_epoch_begin", self.epoch)
  local values = train_epoch(self, o.train)
  if o.valid then
    for name, value in pairs(self:evaluate(o.valid, "valid_")) do values[name] = value end
  end
  values.epoch, values.lr = self.epoch, self.optimizer.param_groups[1].lr
  self.history[self.epoch] = values
  if self.schedule and self.schedule_every == "epoch" then
    -- ReduceLROnPlateau wants what it watches
    self.schedule:step(self.schedule.num_bad_epochs and (values.valid_loss or values.train_loss)
      or nil)
  end
  if self.verbose then show(self, values) end
  local goes_on = judge(self, values)
  if self.checkpoint then self:save(self.checkpoint) end
  return tell(self, "on_epoch_end", values) ~= false and goes_on
end

--- fit{train = loader, valid = loader, epochs = n}: up to epoch n, counted from the first
--- (a resumed training does what is left). -> history: a table an epoch, {epoch =, lr =,
--- train_loss =, valid_loss =, ... each metric}. on_epoch_end may return false to stop.
function Trainer:fit(opts)
  local o = options.read("Trainer:fit", opts, {train = options.NONE, valid = options.NONE,
    epochs = 1})
  if type(o.train) ~= "table" or not o.train.iter then
    caller.raise("Trainer:fit: train is a %s, wanted a DataLoader", type(o.train))
  end
  self.train_loader = o.train
  if self.loader_state and o.train.load_state_dict then
    o.train:load_state_dict(self.loader_state)
    self.loader_state = nil
  end
  tell(self, "on_fit_begin")
  self.optimizer:zero_grad()
  while self.epoch < o.epochs and one_epoch(self, o) do end
  tell(self, "on_fit_end")
  return self.history
end

return {Trainer = setmetatable(Trainer, {__call = new})}
