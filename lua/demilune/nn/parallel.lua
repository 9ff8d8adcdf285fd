-- nn.parallel: models that several processes train together (torch.nn.parallel's names).
--
-- C averages the gradients while the backward pass computes the others (src/dist/bucket.h), whoever
-- calls the module: all hangs on backward(), which returns when the averages are there. Here are
-- the checks, the broadcast of what ranks begin with, and the waiting.
-- S. Li et al. 2020, PyTorch Distributed: experiences on accelerating data parallel training.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local late = require "demilune.late"
local options = require "demilune.options"
local check_alike = require "demilune.distributed.alike"
local owner = require "demilune.distributed.averaged"
local collectives = require "demilune.distributed.collectives"
local divided = require "demilune.distributed.divided"
local objects = require "demilune.distributed.objects"
local passes = require "demilune.distributed.passes"
local shards = require "demilune.distributed.shards"
local slices = require "demilune.distributed.slices"
local start = require "demilune.distributed.start"
local world = require "demilune.distributed.world"
local Module = require "demilune.nn.module"
local arrival = require "demilune.nn.norm".arrival

local NAME = "DistributedDataParallel"
local MIB = 1 << 20
local FIRST_MIB, CPU_MIB, CUDA_MIB = 1, 4, 25 -- that a bucket holds

local parallel = {}

-- ---- the checks ----

-- {{name, description}, ...} of the module's parameters and buffers.
local function described(module)
  local list = {}
  for name, p in module:named_parameters() do
    list[#list + 1] = {"parameter '" .. name .. "'", ("%s %s%s"):format(tostring(p.shape), p.dtype,
      p.requires_grad and "" or ", which requires no gradient")}
  end
  for name, b in module:named_buffers() do
    list[#list + 1] = {"buffer '" .. name .. "'", ("%s %s"):format(tostring(b.shape), b.dtype)}
  end
  return list
end

-- The parameters that are trained, and their names. class: the first word of a message.
local function trained(class, module)
  local list, names = {}, {}
  for name, p in module:named_parameters() do
    if slices.of(p) then
      caller.raise("%s: parameter '%s' is divided among the ranks by fully_shard, which averages "
        .. "its gradient; hint: the model itself will do", class, name)
    end
    if p.requires_grad then list[#list + 1], names[#names + 1] = p, name end
  end
  if #list == 0 then
    caller.raise("%s: no parameter of this %s requires a gradient; hint: the module itself will "
      .. "do", class, module.class)
  end
  local function find_taken()
    for i, p in ipairs(list) do
      if owner[p] then return names[i] end
    end
  end
  if find_taken() then collectgarbage() end -- one that nobody holds any more
  local taken = find_taken()
  if taken then
    caller.raise("%s: parameter '%s' belongs to another %s already", class, taken, NAME)
  end
  return list, names
end

-- ---- after a backward pass ----

-- The buckets from now on hold the parameters in the order in which the gradients of the first
-- rank came.
local function arrange(self)
  local group = self._group
  local order = core.tensor(self._reducer:order(), {dtype = "int64", device = "cpu"})
  self._reducer:arrange(collectives.broadcast(order, group.ranks[1], group):totable())
end

-- Raises, on all ranks, where their parameters are not alike any more.
local function compare(self, n_pass)
  local group, differ = self._group, {}
  local all = collectives.all_gather(core._digests(self._params), group)
  local first = all[1]:totable()
  for i = 2, #all do
    for k, digest in ipairs(all[i]:totable()) do
      if digest ~= first[k] then
        differ[#differ + 1] = ("'%s' on rank %d"):format(self._names[k], group.ranks[i])
        break
      end
    end
  end
  if #differ == 0 then return end
  caller.raise("%s: replicas differ from those of rank %d after %d backward passes: %s; hint: only "
    .. "the optimizer may change parameters, and in the same way on all ranks", NAME,
    group.ranks[1], n_pass, table.concat(differ, ", "))
end

-- Waits for the gradients of the other ranks -> the share of the ranks that had data.
local function finish(self)
  local reducer = self._reducer
  local active = passes.settle(NAME, reducer, self._join and self._join.by_active or false)
  for _, sharer in ipairs(self._sharers) do sharer:take_shares(self, reducer) end
  if #self._sharers > 0 then reducer:taken() end
  local _, n_pass = reducer:counts()
  if n_pass == 1 and not self._shards and #self._sharers == 0 then arrange(self) end
  local is_due = self._every > 0 and n_pass % self._every == 0
  if is_due and not self._join then compare(self, n_pass) end
  return active
end

-- ---- the module ----

--- A module whose copies on all ranks stay the same: backward() averages the gradients over the
--- ranks, each of which computes those of its own part of a batch. The loop around it is that of
--- one process.
---
--- Construction gives the parameters and buffers of the first rank to all. From then on random
--- numbers differ between ranks, as dropout's should. A parameter that a rank has not used counts
--- as zeros there; one that no rank has used keeps no gradient. All ranks call backward() as often
--- as one another, each time through one of the parameters at least, or stand in join().
---
--- Gradients lie in buckets: `p.grad` of a parameter is a view of one. A bucket whose gradients are
--- complete travels while the backward pass goes on. The first pass gives the buckets their order:
--- a `p.grad` that was read before the second pass is not written any more.
local DistributedDataParallel = Module:extend "DistributedDataParallel"
parallel.DistributedDataParallel = DistributedDataParallel

local bind = options.signature(NAME, [[module: module, *, bucket_cap_mb?: number,
  broadcast_buffers: boolean = true, process_group?: group, check_every: integer = 1000,
  shards?: integer]])

local function bytes_of(cap, params)
  if cap and not (cap > 0 and cap < 1e6) then
    caller.raise("%s: bucket_cap_mb is %s, wanted a number above 0", NAME, tostring(cap))
  end
  cap = cap or params[1].device == "cpu" and CPU_MIB or CUDA_MIB
  return math.ceil(math.min(cap, FIRST_MIB) * MIB), math.ceil(cap * MIB)
end

-- The modules that have buffers, and the names of these: {{module, name}, ...}, as when the model
-- was wrapped.
local function buffer_fields(module)
  local list = {}
  for _, part in ipairs(module:modules()) do
    for _, name in ipairs(part._fields) do
      if part._buffers[name] then list[#list + 1] = {part, name} end
    end
  end
  return list
end

-- Lets all ranks compute the same: random numbers are those of the first one.
local function prepare_shards(group)
  if #group.ranks == 1 then return end
  shards.compare_processors(NAME, group)
  core.set_rng_state(objects.broadcast_object(core.get_rng_state(), group.ranks[1], group))
end

--- DistributedDataParallel(module, {bucket_cap_mb =, broadcast_buffers =, process_group =,
--- check_every =, shards =}): all ranks make it together, of modules that are alike.
---@param module table on its device, with its dtype
---@param bucket_cap_mb? number MiB of a bucket; 4 by default on the CPU, 25 on a GPU
---@param broadcast_buffers? boolean each forward in training mode takes the first rank's buffers;
--- true by default
---@param process_group? demilune.Group all ranks by default
---@param check_every? integer backward passes between two comparisons of the parameters of all
--- ranks; 1000 by default, 0 for none
---@param shards? integer parts of the whole batch, for each_shard: a training has the same bits on
--- 1, 2, 4, ... ranks, as long as they divide it; nil by default
---```lua
---dm.distributed.init_process_group()
---local model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
---model(dm.ones(2, 4)):sum():backward()
---model.module.bias.grad:item()                   --> 2.0
---dm.distributed.destroy_process_group()
---```
function DistributedDataParallel:init(...)
  local o = bind(...)
  local class = self.class
  local group = world.group(class, o.process_group)
  local params, names = trained(class, o.module)
  local first, others = bytes_of(o.bucket_cap_mb, params)
  if o.shards then shards.check(NAME, o.shards, #group.ranks) end
  check_alike(NAME, "shards", {{"shards", o.shards and ("%d"):format(o.shards) or "none"}}, group)
  check_alike(class, "modules", described(o.module), group)
  local tensors = o.module:parameters()
  table.move(o.module:buffers(), 1, #o.module:buffers(), #tensors + 1, tensors)
  start.broadcast(tensors, group)
  if o.shards then
    prepare_shards(group)
  else
    start.part_generators(group.index_of[world.rank(class)])
  end
  self.module = o.module
  local private = {_group = group, _params = params, _names = names, _every = o.check_every,
    _broadcasts = o.broadcast_buffers and not o.shards, _syncs = true, _join = false,
    _buffer_fields = buffer_fields(o.module), _shards = o.shards or false, _in_shards = false,
    _sharers = {}, _share = {}, _n_share = 0,
    _reducer = core._reducer_new(group.index, params, first, others, caller.where(), names,
      o.shards)}
  for name, value in pairs(private) do rawset(self, name, value) end
  passes.add(self, self._reducer, finish)
  for i, p in ipairs(params) do
    owner[p], self._share[i] = self, 0
    divided.share(p, nil) -- of one that nobody holds any more
  end
end

-- The buffers as they are now, each once; and whether only batch norms read them, each its own when
-- it is called.
local function buffers_now(fields)
  local list, seen, of_norms = {}, {}, true
  for _, field in ipairs(fields) do
    local part, b = field[1], rawget(field[1], field[2])
    if core.is_tensor(b) and not seen[b] then list[#list + 1], seen[b] = b, true end
    of_norms = of_norms and part.forward == part._awaits_buffers and not part._has_hooks
  end
  return list, of_norms
end

-- The end of a forward whose norms await their buffers: what no norm has received is received now.
local ARRIVED = {__close = function(scope, failure)
  arrival[1] = scope.before
  if failure == nil then scope.receive() else pcall(scope.receive) end
end}

-- The buffers of the first rank come while the layers before the first batch norm compute.
function DistributedDataParallel:forward(...)
  if not (self._broadcasts and self._syncs and self.training and not self._join
    and #self._group.ranks > 1 and core.is_grad_enabled()) then
    return self.module(...)
  end
  local buffers, of_norms = buffers_now(self._buffer_fields)
  local receive = start.send(buffers, self._group)
  if not of_norms then receive() end
  local before = arrival[1]
  local _ <close> = setmetatable({before = before, receive = receive}, ARRIVED)
  arrival[1] = function()
    arrival[1] = nil
    if before then before() end
    receive()
  end
  return self.module(...)
end

-- Gives the buffers of the first rank to all, where forward passes do: those of the model, or of
-- another one, such as an average of it. All ranks call it.
function DistributedDataParallel:_share_buffers(model)
  if not (self._broadcasts and self._syncs) or #self._group.ranks == 1 then return end
  start.broadcast(model:buffers(), self._group)
end

function DistributedDataParallel:copy()
  caller.raise("%s:copy: a copy would average no gradients; hint: ddp.module:copy()", self.class)
end

-- Ends what no_sync has begun.
local SYNC = {__close = function(scope)
  scope.ddp._syncs = scope.before
  scope.ddp._reducer:pause(not scope.before)
end}

-- Raises for what has no meaning with shards.
local function refuse_shards(self, name, hint)
  if not self._shards then return end
  caller.raise("%s: the model has %d shards%s", name, self._shards, hint)
end

local bind_no_sync = options.signature("no_sync", "fn?: function")

--- Within it backward() adds to this rank's gradients and sends nothing; the first backward() after
--- it averages the sums. For steps of several batches; amp.step and the Trainer do it themselves.
--- `local _ <close> = ddp:no_sync()` lasts until the end of the block, `ddp:no_sync(fn)` while fn
--- runs, whose results it returns.
---@param fn? function
function DistributedDataParallel:no_sync(...)
  local fn = bind_no_sync(...).fn
  refuse_shards(self, "no_sync", "; hint: each_shard adds to the gradients that are there")
  local scope = setmetatable({ddp = self, before = self._syncs}, SYNC)
  self._syncs = false
  self._reducer:pause(true)
  if not fn then return scope end
  local _ <close> = scope
  return fn()
end

-- ---- uneven numbers of batches ----

local bind_join = options.signature("join", [[fn?: function, *,
  divide_by_initial_world_size: boolean = true, states: list = {}]])

-- A rank without data reaches no norm, whose statistics the others would wait for.
local function refuse_sync_norms(self)
  for _, part in ipairs(#self._group.ranks > 1 and self.module:modules() or {}) do
    if part.class == "SyncBatchNorm" then
      caller.raise("join: the model has a SyncBatchNorm, whose statistics all ranks make together; "
        .. "hint: as many batches on all ranks, as data.DistributedSampler gives")
    end
  end
end

-- Takes part in the passes of the others until none has data any more, then gives all ranks what
-- the one has that stopped last.
local function leave_join(self, states)
  local _, own = self._reducer:counts()
  local group = self._group
  self:zero_grad()
  repeat
    self._reducer:shadow()
  until finish(self) == 0
  self:zero_grad()
  local last, root = -1, group.ranks[1]
  for i, n_pass in ipairs(objects.all_gather_object(own, group)) do
    if n_pass > last then last, root = n_pass, group.ranks[i] end
  end
  local tensors = self.module:parameters()
  table.move(self.module:buffers(), 1, #self.module:buffers(), #tensors + 1, tensors)
  start.broadcast(tensors, group, root)
  for _, part in ipairs(states) do
    part:load_state_dict(objects.broadcast_object(part:state_dict(), root, group))
  end
end

-- The end of a block that join() has begun: an error ends it without the others.
local JOIN = {__close = function(scope, failure)
  local ddp = scope.ddp
  if failure == nil and #ddp._group.ranks > 1 then leave_join(ddp, scope.states) end
  ddp._join = false
end}

--- For loops that have not the same number of batches on all ranks: a rank whose loop is over takes
--- part in the backward passes of the others, with zeros, until all are over. Then all ranks get
--- the parameters and buffers of the one that had the most batches. Buffers are not broadcast
--- meanwhile. `local _ <close> = ddp:join()` begins it for a block, `ddp:join(fn)` for a function.
---@param fn? function
---@param divide_by_initial_world_size? boolean divides by all ranks (default), not by those that
--- have data left
---@param states? table[] what else the ranks then share: the optimizer, a schedule, a GradScaler
function DistributedDataParallel:join(...)
  local o = bind_join(...)
  refuse_shards(self, "join", ", and all ranks as many batches; hint: data.DataLoader(set, {shards "
    .. "= ...})")
  if self._join then caller.raise("join: is open already") end
  refuse_sync_norms(self)
  if #self._sharers > 0 then
    caller.raise("join: the gradients are shared out by %s, whose steps all ranks make together; "
      .. "hint: as many batches on all ranks, as data.DistributedSampler gives",
      tostring(self._sharers[1].class))
  end
  for i, part in ipairs(o.states) do
    if type(part) ~= "table" or not part.load_state_dict then
      caller.raise("join: element %d of states is a %s, wanted an optimizer or the like", i,
        type(part))
    elseif part.consolidate_state_dict and #self._group.ranks > 1 then
      caller.raise("join: element %d of states is a %s, whose steps all ranks make together; hint: "
        .. "as many batches on all ranks, as data.DistributedSampler gives", i, part.class)
    end
  end
  local scope = setmetatable({ddp = self, states = o.states}, JOIN)
  self._join = {by_active = not o.divide_by_initial_world_size}
  if not o.fn then return scope end
  local _ <close> = scope
  return o.fn()
end

-- ---- gradients that are shared out ----

--- Shares out the averages of some parameters, for an optimizer of ZeRO's second stage, whose
--- take_shares(ddp, reducer) is called after each backward pass that has sent. All ranks call it.
---@param sharer table
---@param owners table<demilune.Tensor, integer|false> each parameter's owner, as an index of the
--- group from 0; false: each rank gets an n-th of the bucket
---@return fun(p: demilune.Tensor): integer, integer, integer, integer span a parameter's number in
--- the reducer, its bucket, the elements before it there and those of a rank's share of the bucket
function DistributedDataParallel:_share_out(sharer, owners)
  local numbers, n = {}, #self._group.ranks
  for i, p in ipairs(self._params) do
    numbers[p] = i - 1
    local index = owners[p]
    -- numbers of their own, so that no bucket of another call is made anew
    if index ~= nil then self._share[i] = self._n_share * (n + 1) + (index or n) + 1 end
  end
  self._n_share = self._n_share + 1
  self._reducer:share(self._share)
  local is_known = false
  for _, other in ipairs(self._sharers) do is_known = is_known or other == sharer end
  if not is_known then table.insert(self._sharers, sharer) end
  return function(p) return numbers[p], self._reducer:span(numbers[p]) end
end

-- ---- dtypes on the wire ----

local bind_hook = options.signature("register_comm_hook", "hook: string")

--- Sets in which dtype gradients travel: "bfloat16" or "float16" halve the bytes of float32. The
--- ranks' gradients are then rounded to it, added in float32, and the mean is rounded once more.
--- "none" is their own dtype. All ranks set the same, between two steps.
---@param hook string
function DistributedDataParallel:register_comm_hook(...)
  local hook = bind_hook(...).hook
  refuse_shards(self, "register_comm_hook", ", whose sums would be rounded on some ranks only")
  if hook ~= "none" and not dtypes.low[hook] then
    caller.raise("register_comm_hook: '%s', wanted 'none' or a float of 16 bits", hook)
  end
  self._reducer:set_wire(hook ~= "none" and hook or nil)
end

-- ---- shards ----

-- The end of an each_shard: after an error all is as it was before, but for what fn has done.
local SHARDS = {__close = function(run, failure)
  local ddp = run.ddp
  ddp._in_shards = false
  ddp._reducer:shards(false)
  if failure == nil then return end
  core.set_rng_state(run.rng)
  for i, b in ipairs(run.buffers) do b:detach():copy_(run.before[i]) end
  for i, p in ipairs(ddp._params) do p.grad = run.grads[i] end
end}

-- Takes the gradients that are there away, and notes what each shard begins with.
local function begin_shards(self)
  local run = setmetatable({ddp = self, rng = core.get_rng_state(), buffers = self.module:buffers(),
    before = {}, grads = {}}, SHARDS)
  for i, b in ipairs(run.buffers) do run.before[i] = b:detach():clone() end
  for i, p in ipairs(self._params) do run.grads[i] = p.grad and p.grad:clone() end
  for _, p in ipairs(self._params) do p.grad = nil end
  self._in_shards = true
  self._reducer:shards(true)
  return run
end

-- Adds the gradients of before to those of this batch.
local function add_grads(self, grads)
  local _ <close> = core.no_grad()
  for i, p in ipairs(self._params) do
    local g = grads[i]
    if g and p.grad then p.grad:detach():add_(g) -- so that the mark of a scaled loss stays
    elseif g then p.grad = g end
  end
end

-- Computes one shard of this rank, counted from 1 -> what fn gives as a tensor, and packed with
-- the buffers.
local function compute_shard(self, run, k, fn, values)
  if k > 1 then
    for i, b in ipairs(run.buffers) do b:detach():copy_(run.before[i]) end
  end
  shards.seed(run.rng, run.first + k - 1)
  local loss = fn(table.unpack(values, 1, values.n))
  self._reducer:end_shard()
  if type(loss) == "number" then loss = core.tensor(loss, {dtype = "float64", device = "cpu"}) end
  loss = core.is_tensor(loss) and loss:detach() or nil
  return loss, shards.packed(loss, run.buffers)
end

local function check_each_shard(self, fn)
  if not self._shards then
    caller.raise("each_shard: the model has no shards; hint: %s(model, {shards = 4})", NAME)
  elseif type(fn) ~= "function" then
    caller.raise("each_shard: fn is a %s, wanted a function; hint: ddp:each_shard(fn, x, y)",
      type(fn))
  elseif self._in_shards then
    caller.raise "each_shard: within another one of the same model"
  end
end

--- Computes a batch in shards, of a model with `shards = V`: calls fn(x, y) for each of this rank's
--- V / n shards with its part of the samples; fn runs the model, and backward() of the loss. Then
--- the gradients are the means over all shards, in the same bits on any number of ranks. A shard
--- has random numbers of its own, and begins with the buffers as they were before the batch; behind
--- it they are the mean over the shards (of integers the first one's). Gradients that are there are
--- added to.
---@param fn fun(...): any its first result, a number or a tensor, may be the loss
---@param ... any this rank's part of the batch (DataLoader{shards = V} gives it): tensors, which
--- are cut along their first dim, tables of them, and other values, which all shards get
---@return demilune.Tensor? loss the mean of what fn has returned for each shard, on all ranks
---```lua
---dm.distributed.init_process_group()
---local model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1), {shards = 2})
---local loss = model:each_shard(function(x)
---  local loss = model(x):square():mean()
---  loss:backward()
---  return loss
---end, dm.ones(8, 4))
---dm.distributed.destroy_process_group()
---```
function DistributedDataParallel:each_shard(fn, ...)
  check_each_shard(self, fn)
  local group = self._group
  local own = self._shards // #group.ranks
  local values, samples = shards.cut(own, ...)
  local run <close> = begin_shards(self)
  run.first = group.index_of[world.rank "each_shard"] * own
  local loss
  local packed = {}
  for k = 1, own do loss, packed[k] = compute_shard(self, run, k, fn, values[k]) end
  finish(self)
  loss = loss and core.empty_like(loss)
  shards.meet(packed, self._shards, samples, group, loss, run.buffers)
  add_grads(self, run.grads)
  shards.go_on(run.rng)
  return loss
end

caller.with_colon(DistributedDataParallel, "ddp", "no_sync join register_comm_hook each_shard")

return late.extend(parallel, {
  ColumnParallelLinear = "demilune.nn.tensor_parallel",
  LocalSGD = "demilune.nn.local_sgd",
  RowParallelLinear = "demilune.nn.tensor_parallel",
  VocabParallelEmbedding = "demilune.nn.tensor_parallel",
  fully_shard = "demilune.nn.fully_shard",
}, {})
