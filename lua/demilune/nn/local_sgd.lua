-- nn.parallel.LocalSGD: ranks that train by themselves, and average their parameters every so many
-- steps.
-- T. Lin et al. 2018, Don't use large mini-batches, use local SGD: gradients are averaged first.
-- A. Douillard et al. 2023, DiLoCo: an outer optimizer takes the way of all ranks for a gradient.
--
-- It is a DistributedDataParallel whose reducer pauses from the end of the warm-up on.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local shown = require "demilune.shown"
local check_alike = require "demilune.distributed.alike"
local collectives = require "demilune.distributed.collectives"
local stop = require "demilune.distributed.stop"
local parallel = require "demilune.nn.parallel"

local NAME = "LocalSGD"
local CHUNK = 1 << 22 -- elements that travel together

local DDP = parallel.DistributedDataParallel

--- A module that each rank trains by itself for `every` steps, after which the parameters of all
--- ranks are averaged: for networks too slow for DistributedDataParallel, which sends as much at
--- each step. The loop around it is that of one process, with model:average_parameters() behind
--- each step of the optimizer.
---
--- Construction gives the parameters and buffers of the first rank to all, and lets random numbers
--- differ between ranks. In the first `warmup` steps backward() averages the gradients, as
--- DistributedDataParallel's does, and no_sync and register_comm_hook act; behind them they change
--- nothing. The optimizer's state, its schedule and a GradScaler stay those of each rank.
---
--- With `outer`, an optimizer of the module's parameters, the last common parameters minus the mean
--- of the ranks' is a gradient, with which it makes a step from the common ones (DiLoCo).
local LocalSGD = DDP:extend(NAME)

local bind = options.signature(NAME, [[module: module, *, every: integer, warmup: integer = 0,
  outer?: optimizer, wire?: string, process_group?: group]])

-- ---- construction ----

local function check_options(o)
  if o.every < 1 then
    caller.raise("%s: every is %d, wanted steps from 1 up", NAME, o.every)
  elseif o.warmup < 0 then
    caller.raise("%s: warmup is %d, wanted steps from 0 up", NAME, o.warmup)
  elseif o.wire and not dtypes.low[o.wire] then
    caller.raise("%s: wire is '%s', wanted a float of 16 bits", NAME, o.wire)
  end
  for name, p in o.module:named_parameters() do
    if p.requires_grad and dtypes.low[p.dtype] then
      caller.raise("%s: parameter '%s' is %s, to which means would be rounded; hint: parameters "
        .. "of float32, and amp.autocast", NAME, name, p.dtype)
    end
  end
end

-- Raises unless the outer optimizer has the parameters that are trained, and no others.
local function check_outer(outer, module)
  if outer.consolidate_state_dict then
    caller.raise("%s: outer is a %s, wanted an optimizer that each rank has whole", NAME,
      outer.class)
  end
  local has, n = {}, 0
  for _, group in ipairs(outer.param_groups) do
    for _, p in ipairs(group.params) do
      has[p], n = true, n + 1
    end
  end
  local hint = "; hint: outer = optim.SGD(module:parameters(), {lr = 0.7, momentum = 0.9, "
    .. "nesterov = true})"
  for name, p in module:named_parameters() do
    if p.requires_grad and not has[p] then
      caller.raise("%s: outer does not have parameter '%s'%s", NAME, name, hint)
    end
    if has[p] then n = n - 1 end
  end
  if n > 0 then
    caller.raise("%s: outer has %d parameters that the module has not%s", NAME, n, hint)
  end
end

-- Whether each rank trains by itself now: gradients are not averaged then.
local function is_local(self) return self._step >= self._warmup end

-- Lets backward() average from now on, or not, as the number of steps says.
local function set_phase(self)
  self._syncs = not is_local(self)
  self._reducer:pause(is_local(self))
end

-- Notes the parameters that all ranks have, where they are needed later.
local function note_common(self)
  if not self._keeps then return end
  local _ <close> = core.no_grad()
  for i, p in ipairs(self._params) do
    if self._common[i] then
      self._common[i]:copy_(p:detach())
    else
      self._common[i] = core.keep(p:detach():clone())
    end
  end
end

--- LocalSGD(module, {every =, warmup =, outer =, wire =, process_group =}): all ranks make it
--- together, of modules that are alike, whose trained parameters have 32 bits or more.
---@param module table on its device, with its dtype
---@param every integer steps from one averaging to the next
---@param warmup? integer steps before, in which gradients are averaged; 0 by default
---@param outer? table an optimizer of the module's parameters; DiLoCo's is
--- optim.SGD(module:parameters(), {lr = 0.7, momentum = 0.9, nesterov = true})
---@param wire? string "bfloat16" or "float16": the differences to the last common parameters are
--- sent in 16 bits, and the gradients of the warm-up; by default all travels in its own dtype
---@param process_group? demilune.Group all ranks by default
---```lua
---dm.distributed.init_process_group()
---local model = nn.parallel.LocalSGD(nn.Linear(4, 1), {every = 2})
---local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
---for step = 1, 4 do
---  optimizer:zero_grad()
---  model(dm.ones(2, 4)):sum():backward()
---  optimizer:step()
---  model:average_parameters() -- true after steps 2 and 4
---end
---dm.distributed.destroy_process_group()
---```
function LocalSGD:init(...)
  local o = bind(...)
  check_options(o)
  if o.outer then check_outer(o.outer, o.module) end
  DDP.init(self, o.module, {process_group = o.process_group})
  local group = self._group
  check_alike(NAME, "options", {{"every", ("%d"):format(o.every)},
    {"warmup", ("%d"):format(o.warmup)}, {"outer", o.outer and tostring(o.outer) or "none"},
    {"wire", o.wire or "none"}}, group)
  local private = {_warmup = o.warmup, _interval = o.every, _outer = o.outer or false,
    _wire = o.wire or false, _keeps = o.outer ~= nil or o.wire ~= nil and #group.ranks > 1,
    _step = 0, _since = 0, _common = {}}
  for name, value in pairs(private) do rawset(self, name, value) end
  if group.index == 0 then stop.ask_directly() end
  if o.wire and #group.ranks > 1 then self._reducer:set_wire(o.wire) end
  set_phase(self)
  if is_local(self) then note_common(self) end
end

-- ---- averaging ----

-- Calls fn with lists of tensors of one dtype on one device, which are to travel together.
local function in_chunks(tensors, fn)
  local lists, order = {}, {}
  for _, t in ipairs(tensors) do
    local key = t.dtype .. t.device
    local list = lists[key]
    if not list or list.n >= CHUNK then
      list = {n = 0}
      lists[key], order[#order + 1] = list, list
    end
    if t:numel() > 0 then list[#list + 1], list.n = t, list.n + t:numel() end
  end
  for _, list in ipairs(order) do
    if #list > 0 then fn(list) end
  end
end

-- Puts the means over the ranks into the tensors. wire: the dtype in which they travel, or false.
local function average(tensors, group, wire)
  in_chunks(tensors, function(list)
    local parts = {}
    for i, t in ipairs(list) do parts[i] = t:reshape(-1) end
    local flat = core.cat(parts)
    if wire then flat = flat:to(wire) end
    collectives.all_reduce(flat, "avg", group)
    local at = 1
    for i, t in ipairs(list) do
      t:copy_(flat:narrow(1, at, parts[i]:numel()):reshape(t.shape))
      at = at + parts[i]:numel()
    end
  end)
end

-- Buffers that are not the same on all ranks become so: floats their mean, others the first rank's.
local function average_buffers(self)
  local group, buffers = self._group, self.module:buffers()
  if #buffers == 0 then return end
  local all, floats = collectives.all_gather(core._digests(buffers), group), {}
  for i, digests in ipairs(all) do all[i] = digests:totable() end
  for k, b in ipairs(buffers) do
    local differs = false
    for i = 2, #all do differs = differs or all[i][k] ~= all[1][k] end
    if differs and b:is_floating_point() then
      floats[#floats + 1] = b:detach()
    elseif differs then
      collectives.broadcast(b:detach(), group.ranks[1], group)
    end
  end
  average(floats, group, false)
end

-- The outer optimizer's step from the common parameters; gradients that are there stay.
local function step_outer(self, grads)
  local before = {}
  for i, p in ipairs(self._params) do before[i] = p.grad or false end
  local _ <close> = setmetatable({}, {__close = function()
    for i, p in ipairs(self._params) do p.grad = before[i] or nil end
  end})
  for i, p in ipairs(self._params) do p.grad = grads[i] end
  self._outer:step()
end

local function average_all(self)
  local _ <close> = core.no_grad()
  local group, params, moves = self._group, {}, {}
  for i, p in ipairs(self._params) do params[i] = p:detach() end
  if self._keeps then
    for i, p in ipairs(params) do moves[i] = self._common[i] - p end
    average(moves, group, self._wire)
    for i, p in ipairs(params) do
      p:copy_(self._outer and self._common[i] or self._common[i] - moves[i])
    end
    if self._outer then step_outer(self, moves) end
    note_common(self)
  elseif #group.ranks > 1 then
    average(params, group, false)
  end
  if #group.ranks > 1 then average_buffers(self) end
end

local bind_average = options.signature("average_parameters", "*, now: boolean = false")

--- Stands behind each step of the optimizer, also one that a GradScaler has skipped, on all ranks:
--- counts it and, every so many, averages the parameters, and the buffers that differ (floats; of
--- others all take the first rank's). Then all ranks have the same bits.
---@param now? boolean averages at once what was trained since the last averaging, and counts no
--- step: before saving and validation, and at the end
---@return boolean is_common whether all ranks have the same parameters now
function LocalSGD:average_parameters(...)
  local now = bind_average(...).now
  if not is_local(self) and not self._syncs then
    caller.raise "average_parameters: within no_sync; hint: behind the optimizer's step"
  end
  if not now then
    self._step = self._step + 1
    if self._step <= self._warmup then
      if is_local(self) then
        set_phase(self)
        note_common(self)
      end
      return true
    end
    self._since = self._since + 1
  end
  if self._since >= self._interval or now and self._since > 0 then
    average_all(self)
    self._since = 0
  end
  return self._since == 0
end

--- Is DistributedDataParallel's alone: here all ranks make as many steps.
function LocalSGD.join()
  caller.raise("join: all ranks of a %s make as many steps; hint: data.DistributedSampler gives "
    .. "them as many batches", NAME)
end

-- ---- state ----

--- {module =, step =, since =, common =, outer =}: the module's state, the steps that were counted
--- and those since the last averaging, then the last common parameters, by name, and the outer
--- optimizer's state, where there are any. The parameters are this rank's.
---@return table
function LocalSGD:state_dict()
  local common, names = {}, {}
  for i, t in ipairs(self._common) do
    common[self._names[i]], names[i] = t, self._names[i]
  end
  return shown{module = self.module:state_dict(), step = self._step, since = self._since,
    common = #names > 0 and shown(common, names) or nil,
    outer = self._outer and self._outer:state_dict() or nil}
end

-- Raises where the state is none of this module's.
local function check_saved(self, saved)
  local name = NAME .. ":load_state_dict"
  for _, key in ipairs{"step", "since"} do
    if not math.tointeger(saved[key]) or saved[key] < 0 then
      caller.raise("%s: %s is %s, wanted a number of steps", name, key, tostring(saved[key]))
    end
  end
  for _, key in ipairs{"common", "outer"} do
    if saved[key] ~= nil and type(saved[key]) ~= "table" then
      caller.raise("%s: %s is a %s, wanted a table", name, key, type(saved[key]))
    end
  end
  if saved.outer and not self._outer then
    caller.raise("%s: the state has an outer optimizer, and this %s none; hint: outer =", name,
      NAME)
  end
  if saved.outer then self._outer:_check_saved(saved.outer) end
  for i, p in ipairs(saved.common and self._params or {}) do
    local t = saved.common[self._names[i]]
    if not core.is_tensor(t) or tostring(t.shape) ~= tostring(p.shape) then
      caller.raise("%s: common '%s' is %s, wanted %s", name, self._names[i],
        core.is_tensor(t) and tostring(t.shape) or type(t), tostring(p.shape))
    end
  end
end

--- Takes up what state_dict gave, on all ranks the same: then they go on from there. The state of
--- the module alone, as one process or DistributedDataParallel saves it, begins the ranks' way anew
--- from it. Nothing is changed after an error.
---@param saved table
---@param strict? boolean as nn.Module's
---@return table keys as nn.Module's
function LocalSGD:load_state_dict(saved, strict)
  local is_own = type(saved) == "table" and type(saved.module) == "table"
  if is_own then check_saved(self, saved) end
  local keys = self.module:load_state_dict(is_own and saved.module or saved, strict)
  self._since = is_own and saved.since or 0
  if is_own then self._step = saved.step end
  set_phase(self)
  if not is_local(self) then return keys end
  note_common(self)
  if is_own and saved.common and self._keeps then
    local _ <close> = core.no_grad()
    for i, name in ipairs(self._names) do self._common[i]:copy_(saved.common[name]) end
  end
  if is_own and saved.outer then self._outer:load_state_dict(saved.outer) end
  return keys
end

caller.with_colon(LocalSGD, "model", "average_parameters")

return {LocalSGD = LocalSGD}
