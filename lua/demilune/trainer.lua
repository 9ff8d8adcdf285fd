-- dm.Trainer: the training loop, with mixed precision, metrics and checkpoints (as PyTorch
-- Lightning's Trainer). It makes public calls only, so that a loop of one's own can replace
-- it at any time. A batch is x, y, and one more at most.
--
--   local trainer = dm.Trainer{model = model, loss = nn.CrossEntropyLoss(),
--     optimizer = optim.AdamW(model:parameters()), metrics = {accuracy = dm.metrics.Accuracy()}}
--   local history = trainer:fit{train = loader, valid = test, epochs = 3}
--   print(history[3].valid_accuracy)
--
-- On several ranks (demilune.distributed) all of them make the same calls. The values of an epoch
-- are those of all ranks together; the first rank alone prints. Within a process group SIGTERM and
-- SIGUSR1, which clusters send before a job's time is over, make a Trainer with a checkpoint save
-- it after the step that runs, and end fit; `stopped` is true then.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local amp = require "demilune.amp"
local amp_step = require "demilune.amp.step"
local cuda = require "demilune.cuda"
local metrics = require "demilune.metrics"
local dist = require "demilune.distributed"
local checkpoint = require "demilune.distributed.checkpoint"
local slices = require "demilune.distributed.slices"
local stop = require "demilune.distributed.stop"
local files = require "demilune.io"
local progress = require "demilune.progress"
require "demilune.nn.module" -- a kind of argument
require "demilune.optim.optimizer" -- another

local Trainer = {}
Trainer.__index = Trainer
Trainer.class = "Trainer"

-- model            a module
-- loss             loss(model(x), y) -> a tensor of one element
-- forward          instead: forward(model, x, ...) of a batch -> loss, scores
-- device           that batches are moved to; by default the model's
-- amp              "float16" (with a GradScaler), "bfloat16"; "float32": no autocast
-- clip             the largest norm that gradients keep (clip_grad_norm_)
-- accumulate       batches to a step
-- shards           parts of the whole batch of all ranks, as of DistributedDataParallel, in which
--                  the model is wrapped: the files and values have the same bits on any number of
--                  ranks. The training loader has shards, too; the validation loader has none
-- capture          whether a step on a GPU is captured and launched as one graph (dm.cuda.graph):
--                  forward or loss then may not read tensors, and a batch of another shape
--                  captures anew
-- schedule         a scheduler; its step comes behind a step of the optimizer that was done, or
--                  behind an epoch that had one: what the scaler skipped does not count.
--                  ReduceLROnPlateau steps behind an epoch, by `monitor` (or by the loss, where
--                  `mode` is "max" and its own is "min")
-- batch_transform  (x, y) -> x, y of training batches, such as MixUp; the metrics get the y
--                  from before
-- ema              an AveragedModel of the model: updated after each step, and evaluated
--                  instead of it
-- metrics          {name = metric}: metric:update(scores, y)
-- callbacks        {on_epoch_end = function(trainer, values) end, ...}: see EVENTS
-- checkpoint       a file that gets the whole state after each epoch
-- best             a file that gets it when `monitor` improves
-- monitor          "valid_loss", or "train_loss" without `valid`
-- mode             whether a smaller or a larger value is better
-- patience         epochs without improvement before it stops
-- resume           a checkpoint to go on from; "auto" or true: `checkpoint`, where that file is
--                  there already, so that one script serves the first and later starts
-- verbose          a bar, and a line an epoch
-- report           (trainer, values) -> that line; by default all values
-- writer           a SummaryWriter or dashboard that gets loss, rate, speed and the epochs' values
-- log_every        steps between two readings of the loss for it, each of which waits
local bind = options.signature("Trainer", [[*, model: module, loss?: function,
  forward?: function, optimizer: optimizer, schedule?: table,
  schedule_every: 'step'|'epoch' = 'step', device?: device,
  amp?: string, clip?: number, accumulate: integer = 1, capture: boolean = false,
  batch_transform?: function, ema?: module, metrics: table = {}, callbacks: table = {},
  checkpoint?: string, best?: string, monitor?: string, mode: 'min'|'max' = 'min',
  patience?: integer, resume?: string|boolean, verbose: boolean = true, report?: function,
  writer?: table, log_every: integer = 10, shards?: integer]])

-- The callbacks, in the order of their calls; each gets the trainer first.
local EVENTS = {
  on_load_checkpoint = true, -- (state), before it is loaded
  on_fit_begin = true,
  on_epoch_begin = true,     -- (epoch), the model in training mode
  on_step = true,            -- (steps, loss)
  on_train_epoch_end = true, -- (values), before validation; what it adds is kept
  on_save_checkpoint = true, -- (state), before it is saved; what it adds is saved
  on_epoch_end = true,       -- (values); false stops the training
  on_fit_end = true,
}

local function check(o)
  if (o.loss == nil) == (o.forward == nil) then
    caller.raise("Trainer: wanted loss(scores, y), or forward(model, x, ...) that gives the loss")
  end
  if o.ema ~= nil and not o.ema.update_parameters then
    caller.raise("Trainer: ema is a %s, wanted an AveragedModel", o.ema.class)
  end
  if o.amp ~= nil and o.amp ~= "float32" and not dtypes.low[o.amp] then
    caller.raise("Trainer: amp is '%s', wanted 'float32', 'float16', 'bfloat16' or nothing", o.amp)
  end
  if o.accumulate < 1 then
    caller.raise("Trainer: accumulate is %d, wanted a whole number from 1", o.accumulate)
  end
  if o.log_every < 1 then
    caller.raise("Trainer: log_every is %d, wanted a whole number from 1", o.log_every)
  end
  if (o.resume == true or o.resume == "auto") and not o.checkpoint then
    caller.raise("Trainer: resume = %s goes on from `checkpoint`, which is missing",
      o.resume == true and "true" or "'auto'")
  end
  if o.writer and not o.writer.add_scalar then
    caller.raise("Trainer: writer is a table, wanted a dm.SummaryWriter or a dm.dashboard")
  end
  for event in pairs(o.callbacks) do
    if not EVENTS[event] then
      local near = options.nearest(tostring(event), EVENTS)
      caller.raise("Trainer: no event '%s'%s", tostring(event),
        near and ("; did you mean '%s'?"):format(near) or "")
    end
  end
end

-- The number of ranks that train, and whether this one is the first.
local function n_ranks() return dist.is_initialized() and dist.get_world_size() or 1 end
local function is_first() return n_ranks() == 1 or dist.get_rank() == 0 end

-- The file that the training goes on from, or nil; the first rank looks whether it is there.
local function resumed_path(self)
  if self.resume ~= true and self.resume ~= "auto" then return self.resume or nil end
  local file = io.open(self.checkpoint)
  if file then file:close() end
  local is_there = file ~= nil
  if n_ranks() > 1 then is_there = dist.broadcast_object(is_there, 0) end
  return is_there and self.checkpoint or nil
end

-- The model itself, whose state has the names that one process gives it.
local function bare(model)
  return model.class == "DistributedDataParallel" and model.module or model
end

-- Whether the model is one that the ranks train together.
local function is_joint(model)
  return bare(model) ~= model or model.class == "LocalSGD" or slices.is_divided(model)
end

-- Tells a LocalSGD of a step, or of an epoch's end: -> whether all ranks have the same parameters.
local function average(model, is_end)
  return model.class ~= "LocalSGD" or model:average_parameters{now = is_end}
end

-- Makes the model one of so many shards; or takes their number from one that has them.
local function prepare_shards(self)
  local model = self.model
  local is_parallel = bare(model) ~= model
  if self.shards and is_parallel and model._shards ~= self.shards then
    caller.raise("Trainer: shards is %d, and the DistributedDataParallel has %s", self.shards,
      model._shards or "none")
  elseif self.shards and not is_parallel then
    local parallel = require "demilune.nn.parallel"
    self.model = parallel.DistributedDataParallel(model, {shards = self.shards})
  end
  self.shards = self.shards or is_parallel and model._shards or nil
end

local function check_capture(self)
  if not self.capture then return end
  if self.kind ~= "cuda" then
    caller.raise("Trainer: capture wants a model on a GPU, this one is on %s", self.device)
  elseif self.accumulate > 1 then
    caller.raise("Trainer: capture wants a step for each batch, accumulate is %d",
      self.accumulate)
  elseif n_ranks() > 1 then
    caller.raise("Trainer: capture wants one rank, there are %d", n_ranks())
  elseif self.shards then
    caller.raise("Trainer: capture wants a step in one piece, shards is %d", self.shards)
  end
end

local function is_plateau(schedule) return schedule and schedule.num_bad_epochs ~= nil end
local function mode_of(plateau) return plateau.settings and plateau.settings.mode end

-- A schedule that takes the value of an epoch steps behind an epoch.
local function check_plateau(self)
  if not is_plateau(self.schedule) then return end
  if mode_of(self.schedule) == "max" and self.mode == "min" then
    caller.raise("Trainer: the schedule's mode is 'max', and the trainer's 'min'; hint: monitor = "
      .. "'valid_accuracy', mode = 'max'")
  end
  self.schedule_every = "epoch"
end

local function new(_, ...)
  local o = bind(...)
  check(o)
  local self = setmetatable(o, Trainer)
  prepare_shards(self)
  self.verbose = self.verbose and is_first()
  local first = self.model:parameters()[1]
  self.device = self.device or first and first.device or "cpu"
  self.kind = self.device:match "^%a+"
  check_capture(self)
  check_plateau(self)
  local narrow = dtypes.of[self.amp or "float32"].narrow
  self.scaler = amp.GradScaler{device = self.kind, enabled = narrow}
  self.autocast = {device_type = self.kind, enabled = false}
  if self.amp and self.amp ~= "float32" then
    self.autocast.enabled, self.autocast.dtype = true, self.amp
  end
  self.epoch, self.steps, self.history, self.stalled = 0, 0, {}, 0
  if self.writer and is_first() then
    self.log = require "demilune.tensorboard.training".new(self.writer, self.log_every)
  end
  local path = resumed_path(self)
  if path then self:load(path) end
  return self
end

function Trainer:__tostring()
  return ("Trainer(model = %s, loss = %s, optimizer = %s, %s on %s, %d epochs done)"):format(
    self.model.class, type(self.loss) == "table" and self.loss.class or "a function",
    self.optimizer.class, self.autocast.dtype or "float32", self.device, self.epoch)
end

-- Calls the callback of an event, if there is one: -> what it returns.
local function call_back(self, event, ...)
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
local function losses_of(self, model, x, y, ...)
  local _ <close> = amp.autocast(self.autocast)
  if self.forward then return self.forward(model, x, y, ...) end
  local scores = model(x)
  return self.loss(scores, y), scores
end

-- Empty metrics of an epoch: {loss = Mean, and those of the user}.
local function start_metrics(self)
  local values = {loss = metrics.Mean()}
  for name, metric in pairs(self.metrics) do values[name] = metric:reset() end
  return values
end

-- The number of samples in a batch, by which its loss counts in that of the epoch.
local function n_samples(x, y)
  for _, part in ipairs{x, y} do
    if core.is_tensor(part) and part:dim() > 0 then return #part end
  end
  return 1
end

-- n: the samples that the loss is of; loss: nil where it comes by itself.
local function update_metrics(values, y, loss, scores, n)
  for name, metric in pairs(values) do
    if name == "loss" then
      if loss then metric:update(loss:detach(), n) end
    elseif scores then
      metric:update(scores:detach(), y)
    end
  end
end

-- The ranks compute them in one order, that of the names. The loss of shards is that of all
-- ranks already.
local function compute_metrics(self, values, prefix, out)
  local names = {}
  for name in pairs(values) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local metric = values[name]
    local is_whole = self.shards and name == "loss"
    if n_ranks() > 1 and metric.all_reduce and not is_whole then metric = metric:all_reduce() end
    out[prefix .. name] = metric:compute()
  end
  return out
end

-- ---- an epoch ----

-- The number of batches in the step that batch i of so many belongs to: the last step of an epoch
-- may have fewer than `accumulate`.
local function group_size(self, i, total)
  local rest = total and total % self.accumulate or 0
  return rest > 0 and i > total - rest and rest or self.accumulate
end

-- Whether the optimizer's last step was done: a scaler skips some, and tells by waiting.
local function is_done(self)
  return not self.scaler:is_enabled() or self.scaler:stepped(self.optimizer)
end

-- How many steps the epoch that runs has had, and how many of them the scaler skipped.
local function steps_of_epoch(self)
  local skipped = self.scaler:is_enabled() and self.scaler:stats().skipped or 0
  local began = self.began
  return self.steps - began.steps, skipped - began.skipped
end

-- Notes where the epoch's counts of steps begin: before those of the part that another process did.
local function begin_steps(self)
  local before = self.before or {steps = 0, skipped = 0}
  self.before, self.began = nil, {steps = 0, skipped = 0}
  local steps, skipped = steps_of_epoch(self)
  self.began = {steps = steps - before.steps, skipped = skipped - before.skipped}
end

-- Whether the job is to end before it is done: a cluster has asked one of the ranks to, and the
-- last step has told it to all of them.
local function is_stopped(self)
  return self.listens and self.is_common and stop.is_asked "fit"
end

-- Saves amid an epoch, on all ranks at the same step, and says so.
local function save_stopped(self)
  self.stopped = true
  self:save(self.checkpoint)
  if not is_first() then return end
  caller.sink(("Trainer: was asked to end: saved %s after %d steps"):format(self.checkpoint,
    self.steps))
end

-- The batch that the model sees.
local function transformed(self, x, y)
  if self.batch_transform then return self.batch_transform(x, y) end
  return x, y
end

-- Forward, backward and a step, of a batch in a group of so many: -> loss, scores, whether it
-- stepped.
local function take_step(self, group, x, y, ...)
  local loss, scores = losses_of(self, self.model, x, y, ...)
  local stepped = amp.step{loss = loss, optimizer = self.optimizer, scaler = self.scaler,
    max_norm = self.clip, accumulate = group}
  return loss, scores, stepped
end

-- The same by a graph, whose next launch writes its results again.
local function launch_step(self, group, ...)
  self.graph = self.graph or cuda.graph(function(...) return take_step(self, group, ...) end,
    {device = self.device})
  local loss, scores, stepped = self.graph(...)
  return loss:clone(), core.is_tensor(scores) and scores:clone() or scores, stepped
end

-- Computes a batch and steps, at the last one of a group -> whether it stepped, and the loss.
local function step_batch(self, values, group, x, y, ...)
  local labels = y
  x, y = transformed(self, x, y)
  local loss, scores, stepped = (self.capture and launch_step or take_step)(self, group, x, y, ...)
  update_metrics(values, labels, loss, scores, n_samples(x, y))
  return stepped, loss
end

-- The same in shards.
local function step_shards(self, values, group, ...)
  local n = n_samples(...) * n_ranks()
  local loss = self.model:each_shard(function(x, y, ...)
    local _ <close> = core.scope()
    local labels = y
    x, y = transformed(self, x, y)
    local loss, scores = losses_of(self, self.model, x, y, ...)
    if not core.is_tensor(loss) then
      caller.raise("Trainer: the loss is a %s, wanted a tensor", type(loss))
    end
    self.scaler:scale(loss / group):backward()
    update_metrics(values, labels, nil, scores)
    return core.keep(loss:detach())
  end, ...)
  values.loss:update(loss, n)
  self.passes = self.passes + 1
  if self.passes < group then return false, loss end
  self.passes = 0
  amp_step.finish{optimizers = {self.optimizer}, max_norm = self.clip,
    scaler = self.scaler:is_enabled() and self.scaler or nil}
  return true, loss
end

-- Where a DataLoader stands, to which an error behind this step returns; others are asked when the
-- state is saved.
local function position_of(loader)
  return loader.class == "DataLoader" and loader:state_dict() or nil
end

-- What comes behind a step, after which the loader stands at that position.
local function count_step(self, loss, position)
  self.steps, self.position = self.steps + 1, position
  self.is_common = average(self.model, false)
  if self.ema then self.ema:update_parameters(self.model) end
  if self.log then self.log:step(self, loss) end
  if self.schedule and self.schedule_every == "step" and is_done(self) then
    self.schedule:step()
  end
  call_back(self, "on_step", self.steps, loss)
end

-- -> whether a step was done.
local function train_batch(self, values, group, x, y, ...)
  local _ <close> = core.scope()
  local run = self.shards and step_shards or step_batch
  local stepped, loss = run(self, values, group, x, y, ...)
  if self.log then self.log:batch(#x) end
  local position = position_of(self.train_loader)
  self.pending = not stepped and {loss = core.keep(loss:detach()), position = position} or nil
  if stepped then count_step(self, loss, position) end
  return stepped
end

-- Steps with the gradients of a last group of n batches that was to have more: their number was
-- not known. Several ranks, which average gradients in a group's last pass, leave them to the next
-- epoch.
local function step_rest(self, n)
  local pending = self.pending
  if not pending or n_ranks() > 1 then return end
  for _, group in ipairs(self.optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      if p.grad then p.grad:mul_(self.accumulate / n) end
    end
  end
  amp_step.forget(self.optimizer)
  amp_step.finish{optimizers = {self.optimizer}, max_norm = self.clip,
    scaler = self.scaler:is_enabled() and self.scaler or nil}
  self.pending = nil
  count_step(self, pending.loss, pending.position)
end

-- -> the values, and how many batches there were: none where only the epoch's end was left.
local function train_epoch(self, loader, epochs)
  local values, total, n = start_metrics(self), loader.len and loader:len() or nil, 0
  if self.log then self.log:begin() end
  begin_steps(self)
  self.position, self.is_amid, self.passes = position_of(loader), true, 0
  self.pending = nil
  local first, waiting = nil, 0
  local batches = self.verbose and progress or function(over) return over:iter() end
  for i, x, y, z in batches(loader, {desc = ("epoch %d/%d"):format(self.epoch, epochs)}) do
    first = first or i
    local group = group_size(self, i - first + 1, total and total - first + 1)
    local stepped = train_batch(self, values, group, moved(self.device, x, y, z))
    n, waiting = n + 1, stepped and 0 or waiting + 1
    if self.verbose then
      progress.set{samples = #x, loss = i % 10 == 1 and values.loss:compute() or nil}
    end
    if stepped and is_stopped(self) then
      save_stopped(self)
      break
    end
  end
  step_rest(self, waiting)
  self.is_amid = false
  return compute_metrics(self, values, "train_", {}), n
end

-- Whether this rank evaluates batch i. Of a loader whose sampler has given each rank its share it
-- takes all batches; those of another one go round.
local function is_mine(loader, i)
  local sampler = loader.sampler
  if n_ranks() == 1 or sampler and sampler.class == "DistributedSampler" then return true end
  return (i - 1) % n_ranks() == dist.get_rank()
end

-- Counts the losses of all ranks' batches in the order of the batches, whoever has computed them:
-- {[i] = {loss, samples}} of this rank.
local function count_in_order(values, losses)
  local n, order, all = n_ranks(), {}, {}
  for _, of_batch in pairs(losses) do of_batch[1] = of_batch[1]:item() end
  for rank, part in ipairs(n > 1 and dist.all_gather_object(losses) or {losses}) do
    for i, of_batch in pairs(part) do
      local key = i * n + rank
      order[#order + 1], all[key] = key, of_batch
    end
  end
  table.sort(order)
  for _, key in ipairs(order) do values.loss:update(table.unpack(all[key])) end
end

--- The loss and the metrics over the batches of a loader, in eval mode and without gradients;
--- of `ema`, where there is one. A batch's loss counts as often as it has samples. The mode of each
--- module is as before afterwards. Several ranks share the batches of an ordinary loader, so that
--- each sample counts once; a model by DistributedDataParallel has the first rank's buffers there,
--- as its training passes do.
---@param loader table a DataLoader
---@param prefix? string put in front of each name, such as "valid_"
---@return table values {loss =, and each metric}
function Trainer:evaluate(loader, prefix)
  local model, values, training = self.ema or self.model, start_metrics(self), {}
  local losses = {}
  if n_ranks() > 1 and self.model._share_buffers then self.model:_share_buffers(model) end
  for _, module in model:named_modules() do training[module] = module.training end
  model:eval()
  core.no_grad(function()
    for i, x, y, z in loader:iter() do
      if is_mine(loader, i) then
        local _ <close> = core.scope()
        x, y, z = moved(self.device, x, y, z)
        local loss, scores = losses_of(self, model, x, y, z)
        local n = n_samples(x, y)
        if self.shards then loss, losses[i] = nil, {core.keep(loss:detach()), n} end
        update_metrics(values, y, loss, scores, n)
      end
    end
  end)
  if self.shards then count_in_order(values, losses) end
  for module, mode in pairs(training) do module.training = mode end
  return compute_metrics(self, values, prefix or "", {})
end

-- ---- state ----

local PARTS = {"model", "optimizer", "schedule", "scaler", "ema"}

-- A part of the trainer that has a state, or nil; a disabled scaler has none.
local function part_of(self, name)
  if name == "scaler" and not self.scaler:is_enabled() then return nil end
  return name == "model" and bare(self.model) or self[name]
end

-- The states of the ranks' generators, in their order; of shards the one of all.
local function generators(self)
  local own = core.get_rng_state()
  return n_ranks() > 1 and not self.shards and dist.all_gather_object(own) or {own}
end

-- Goes on with this rank's numbers; with those of the first rank where there were not so many.
local function set_generator(self, states)
  local is_own = n_ranks() > 1 and not self.shards
  core.set_rng_state(states[is_own and dist.get_rank() + 1 or 1] or states[1])
end

-- Writes the state, each rank a part of it; all ranks raise where that fails.
local function write(path, state)
  local save = n_ranks() > 1 and dist.save or files.save
  local fine, why = save(path, state)
  if not fine then caller.raise("Trainer: save: %s", why) end
end

-- Reads it; an optimizer in shares reads its own only.
local function read(self, path)
  if n_ranks() == 1 then return files.load(path) end
  return checkpoint.read(path, {optimizer = self.optimizer})
end

-- How many samples of the whole stand behind a batch of this rank's loader; nil: that is not known.
local function samples_a_batch(loader)
  if not loader.batch_size or loader.batch_sampler then return nil end
  local sampler = loader.sampler
  local is_shared = sampler and sampler.class == "DistributedSampler"
  return loader.batch_size * (is_shared and sampler.num_replicas or 1)
end

-- The loader's state, with its position in samples of the whole, which any number of ranks and any
-- size of batches has.
local function loader_state(self)
  local loader = self.train_loader
  if not (loader and loader.state_dict) then return nil end
  local state, each = self.is_amid and self.position or loader:state_dict(), samples_a_batch(loader)
  state.samples = each and state.position * each
  return state
end

-- Lets the loader go on there: with the batch that holds the first sample that is left.
local function set_loader(loader, state)
  local each = samples_a_batch(loader)
  if state.samples and each then
    state = {seed = state.seed, epoch = state.epoch, position = state.samples // each}
  end
  loader:load_state_dict(state)
end

-- The counts of the epoch that runs, for the one that does the rest of it.
local function steps_before(self)
  if not self.is_amid then return nil end
  local steps, skipped = steps_of_epoch(self)
  return {steps = steps, skipped = skipped}
end

-- Goes back behind the last step of an epoch that an error has ended.
local function recover(self)
  if not self.is_amid then return end
  self.loader_state, self.before = self.position and loader_state(self), steps_before(self)
  self.epoch, self.is_amid = self.epoch - 1, false
end

--- Writes the whole state to one file (dm.save): model, optimizer, schedule, scaler, loader,
--- random numbers and history. Saved amid an epoch (in on_step, or after an error), the epoch is
--- not done: fit goes on with the batches behind the last step, of which its values then tell. Of
--- several ranks each writes a part, and any number of ranks goes on from it. Raises where the file
--- cannot be written, on all ranks.
---@param path string
---@return boolean true
function Trainer:save(path)
  local done = self.is_amid and self.epoch - 1 or self.epoch
  local state = {epoch = done, steps = self.steps, history = self.history,
    best_value = self.best_value, stalled = self.stalled, rng = generators(self)}
  state.before = steps_before(self)
  for _, name in ipairs(PARTS) do
    local part = part_of(self, name)
    state[name] = part and (part.sharded_state_dict or part.state_dict)(part)
  end
  state.loader = loader_state(self)
  call_back(self, "on_save_checkpoint", state)
  write(path, state)
  return true
end

--- Loads a file that save wrote; fit then does the epochs that are left.
---@param path string
function Trainer:load(path)
  local state, why = read(self, path)
  if not state then caller.raise("%s", why) end
  call_back(self, "on_load_checkpoint", state)
  for _, name in ipairs(PARTS) do
    local part = part_of(self, name)
    if part and state[name] then part:load_state_dict(state[name]) end
  end
  self.epoch, self.steps, self.history = state.epoch, state.steps, state.history
  self.best_value, self.stalled = state.best_value, state.stalled
  self.loader_state, self.before, self.is_amid = state.loader, state.before, false
  set_generator(self, state.rng.seed and {state.rng} or state.rng)
end

-- ---- the loop ----

-- The name of the value by which epochs are compared.
local function monitored(self, values)
  return self.monitor or values.valid_loss and "valid_loss" or "train_loss"
end

-- That value.
local function compared(self, values)
  local name = monitored(self, values)
  return values[name] or caller.raise("Trainer: monitor is '%s', which no epoch has", name)
end

-- The schedule's step behind an epoch; ReduceLROnPlateau takes the value by which epochs are
-- compared, or the loss, where it waits for a smaller value and the trainer for a larger one.
local function step_by_epoch(self, values)
  local schedule = self.schedule
  if not is_plateau(schedule) then return schedule:step() end
  schedule:step(mode_of(schedule) == self.mode and compared(self, values)
    or values.valid_loss or values.train_loss)
end

-- Compares the epoch with the best one, which is saved: -> whether to go on.
local function check_improvement(self, values)
  local value, best = compared(self, values), self.best_value
  local better = value == value and (not best
    or self.mode == "min" and value < best or self.mode == "max" and value > best)
  self.stalled = better and 0 or self.stalled + 1
  if better then
    self.best_value = value
    if self.best then self:save(self.best) end
  end
  return not self.patience or self.stalled < self.patience
end

-- Says once that an epoch came to nothing: that its loss is NaN, or that no step of it was done.
local function warn_of_nothing(self, values, steps, skipped)
  local is_nan = values.train_loss ~= values.train_loss
  local none_done = steps > 0 and skipped == steps
  if self.has_warned or not (is_nan or none_done) or not is_first() then return end
  self.has_warned = true
  local counts = ("%d of %d steps were skipped"):format(skipped, steps)
  local what = not is_nan and counts
    or "the loss is nan" .. (skipped > 0 and ", and " .. counts or "")
  caller.warn("Trainer: epoch %d: %s; hint: dm.amp.report() names the op, and "
    .. "dm.help \"guide nan\" the causes", self.epoch, what)
end

-- Says that no epoch was the best one, whose values were all NaN; `best` is not there then.
local function warn_of_no_best(self)
  if not self.best or self.best_value or not is_first() then return end
  caller.warn("Trainer: best = '%s' was not written: %s was nan in each epoch", self.best,
    monitored(self, self.history[self.epoch]))
end

-- The line of an epoch.
local function show(self, values)
  if self.report then return print(self.report(self, values)) end
  local names, words = {}, {}
  for name in pairs(values) do
    if type(values[name]) == "number" and name ~= "epoch" then names[#names + 1] = name end
  end
  table.sort(names)
  for i, name in ipairs(names) do
    local v = values[name]
    words[i] = name .. " " .. (v ~= v and "nan" or ("%.4g"):format(v)) -- C writes some as -nan
  end
  print(("epoch %d: %s"):format(self.epoch, table.concat(words, ", ")))
end

-- Whether all ranks want to go on.
local function all_agree(goes_on)
  if n_ranks() == 1 then return goes_on end
  for _, of_rank in ipairs(dist.all_gather_object(goes_on)) do
    if not of_rank then return false end
  end
  return true
end

local function one_epoch(self, o)
  self.epoch = self.epoch + 1
  self.model:train()
  call_back(self, "on_epoch_begin", self.epoch)
  local values, n_batches = train_epoch(self, o.train, o.epochs)
  if self.stopped then
    self.epoch = self.epoch - 1
    return false
  end
  average(self.model, true)
  local steps, skipped = steps_of_epoch(self)
  if n_batches > 0 then warn_of_nothing(self, values, steps, skipped) end
  values.epoch, values.lr = self.epoch, self.optimizer.param_groups[1].lr
  call_back(self, "on_train_epoch_end", values)
  if o.valid then
    for name, value in pairs(self:evaluate(o.valid, "valid_")) do values[name] = value end
  end
  self.history[self.epoch] = values
  if self.log then self.log:epoch(self.steps, values) end
  if self.schedule and self.schedule_every == "epoch" and steps > skipped then
    step_by_epoch(self, values)
  end
  if self.verbose then show(self, values) end
  local goes_on = check_improvement(self, values)
  if self.checkpoint then self:save(self.checkpoint) end
  goes_on = call_back(self, "on_epoch_end", values) ~= false and goes_on
  return all_agree(goes_on)
end

local function check_loader(name, loader)
  if loader.iter then return end
  caller.raise("Trainer:fit: %s is a %s, wanted a DataLoader; hint: "
    .. "data.DataLoader(set, {batch_size = 64})", name, loader.class or "table")
end

-- Raises before the first epoch where its values will have no such name; a callback may add others.
local function check_monitor(self, has_valid)
  local name = self.monitor
  if not name or name == "lr" or self.callbacks.on_train_epoch_end then return end
  local names = {}
  for metric in pairs(start_metrics(self)) do
    names["train_" .. metric] = true
    if has_valid then names["valid_" .. metric] = true end
  end
  if names[name] then return end
  local near = options.nearest(name, names)
  caller.raise("Trainer: monitor is '%s', which no epoch has%s", name,
    near and ("; did you mean '%s'?"):format(near) or "")
end

-- Raises where a loader deals out other shards than the model has.
local function check_shards(self, o)
  local train, valid = o.train, o.valid
  if self.shards and train.shards ~= self.shards and not train.batch_sampler then
    caller.raise("Trainer:fit: shards is %d, and train has %s; hint: data.DataLoader(set, "
      .. "{batch_size = 64, shards = %d})", self.shards, train.shards or "none", self.shards)
  elseif train.shards and not self.shards then
    caller.raise("Trainer:fit: train has shards = %d, and the trainer none; hint: "
      .. "dm.Trainer{shards = %d}", train.shards, train.shards)
  elseif valid and valid.shards then
    caller.raise("Trainer:fit: valid has shards = %d, wanted a loader without: the ranks share its "
      .. "batches", valid.shards)
  end
end

-- Says what several ranks would do that nobody means.
local function warn_of_ranks(self, loader)
  if n_ranks() == 1 or not is_first() or self.shards then return end
  if not is_joint(self.model) then
    caller.warn("Trainer: %d ranks train a model each; hint: nn.parallel.DistributedDataParallel",
      n_ranks())
  elseif not loader.sampler and not loader.batch_sampler then
    caller.warn("Trainer: all %d ranks train on the same samples; hint: DataLoader(set, {sampler "
      .. "= data.DistributedSampler(set)})", n_ranks())
  end
end

local bind_fit = options.signature("Trainer:fit",
  "*, train: table, valid?: table, epochs: integer = 1")

--- Trains up to epoch `epochs`, counted from the first; a resumed training does those that
--- are left. After an error amid an epoch the next call goes on behind the last step.
---@overload fun(self, opts: {train: table, valid: table?, epochs: integer?}): table
---@return table history of each epoch {epoch =, lr =, train_loss =, valid_loss =, each metric}
function Trainer:fit(...)
  local o = bind_fit(...)
  check_loader("train", o.train)
  if o.valid then check_loader("valid", o.valid) end
  check_monitor(self, o.valid ~= nil)
  check_shards(self, o)
  warn_of_ranks(self, o.train)
  recover(self)
  self.train_loader = o.train
  if self.loader_state and o.train.load_state_dict then
    set_loader(o.train, self.loader_state)
    self.loader_state = nil
  end
  -- ranks that train a model each do not make the same steps
  self.listens = self.checkpoint and dist.is_initialized()
    and (n_ranks() == 1 or is_joint(self.model))
  local _ <close> = self.listens and stop.listen() or nil
  self.stopped = false
  call_back(self, "on_fit_begin")
  self.optimizer:zero_grad()
  amp_step.forget(self.optimizer)
  local from = self.epoch
  while self.epoch < o.epochs and one_epoch(self, o) do end
  if self.epoch > from then warn_of_no_best(self) end
  call_back(self, "on_fit_end")
  return self.history
end

return {Trainer = setmetatable(Trainer, {__call = new})}
