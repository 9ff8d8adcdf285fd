-- optim.ZeroRedundancyOptimizer: each rank keeps the optimizer's state of its share of the
-- parameters and updates those, then all ranks get the new values (torch.distributed.optim's name
-- and arguments).
-- S. Rajbhandari et al. 2020, ZeRO: memory optimizations toward training trillion parameter models:
-- its first two stages.
--
-- In the second stage a rank gets the averages of its pieces' gradients alone (src/dist/bucket.h):
-- the pieces are then cut as the buckets are, and have gradients of their own, from backward() to
-- zero_grad(); no parameter has one.
--
-- `whole` is the optimizer that one process would have. Its groups are the public ones, and its
-- state stays empty, but for what consolidate_state_dict brings. `optim` is of the same class: its
-- parameters are this rank's pieces, its groups have the options of the public ones. With one rank
-- both are the same.

local core = require "demilune.core"
local caller = require "demilune.caller"
local listing = require "demilune.listing"
local options = require "demilune.options"
local averager = require "demilune.distributed.averaged"
local check_alike = require "demilune.distributed.alike"
local collectives = require "demilune.distributed.collectives"
local divided = require "demilune.distributed.divided"
local objects = require "demilune.distributed.objects"
local partition = require "demilune.distributed.partition"
local shard = require "demilune.distributed.shard"
local slices = require "demilune.distributed.slices"
local world = require "demilune.distributed.world"
local zeroing = require "demilune.zeroing"
local Optimizer = require "demilune.optim.optimizer"

local NAME = "ZeroRedundancyOptimizer"

--- An optimizer of the class optimizer_class, whose state is divided among the ranks: each keeps,
--- and steps, its share of the parameters' elements, then all get the new values. The weights have
--- the bits that the optimizer itself would give them, on any number of ranks. Classes that look at
--- whole matrices or norms (Muon, LAMB, Adafactor, and classes of your own) share whole parameters
--- instead. All ranks make it, and step, together; gradients are those of the whole batch on all of
--- them, as DistributedDataParallel leaves them. Further options are those of the class:
--- ZeroRedundancyOptimizer(model:parameters(), {optimizer_class = optim.Adam, lr = 1e-3}).
--- process_group: all ranks by default. stage (1): 2 divides the gradients, too: backward() leaves
--- each rank the averages of its share, and no parameter has a gradient afterwards; the parameters
--- that require one have to be those of a DistributedDataParallel on the same ranks.
--- parameters_as_bucket_view and overlap_with_ddp are PyTorch's choices of an implementation, and
--- change nothing.
local ZeroRedundancyOptimizer = Optimizer.extend("ZeroRedundancyOptimizer",
  [[optimizer_class: optimizer_class, process_group?: group, *, stage: integer = 1,
  parameters_as_bucket_view: boolean = false, overlap_with_ddp: boolean = false]])
ZeroRedundancyOptimizer.takes_found_inf = true

-- ---- construction ----

local OWN = {params = true, optimizer_class = true, process_group = true, stage = true,
  parameters_as_bucket_view = true, overlap_with_ddp = true}

-- Whether v is a class that optim.Optimizer has extended, and no object of one.
local function is_class(v)
  return type(v) == "table" and type(v._check_saved) == "function" and v.param_groups == nil
end

options.kind("optimizer_class", is_class, "a class such as optim.Adam")

-- The arguments of this class by name, and those that are the optimizer's: the named ones that are
-- not of this class.
local function read(...)
  local args, rest = table.pack(...), {}
  local last = args[args.n]
  local is_named = type(last) == "table" and getmetatable(last) == nil and #last == 0
  if is_named and (last.optimizer_class ~= nil or args.n > 1 and is_class(args[2])) then
    local own = {}
    for key, value in pairs(last) do
      if OWN[key] then own[key] = value else rest[key] = value end
    end
    args[args.n] = own
  end
  return ZeroRedundancyOptimizer.bind(table.unpack(args, 1, args.n)), rest
end

-- {{name, description}, ...} of the parameters of all groups.
local function described(groups)
  local list = {}
  for g, group in ipairs(groups) do
    for i, p in ipairs(group.params) do
      list[#list + 1] = {("parameter %d of group %d"):format(i, g), ("%s %s%s%s"):format(
        tostring(p.shape), p.dtype, p.requires_grad and "" or ", which requires no gradient",
        p:is_contiguous() and "" or ", which is not contiguous")}
    end
  end
  return list
end

-- Raises where the gradients of a group cannot be shared out. name: the first word of the message.
local function check_shareable(self, name, group, number)
  for i, p in ipairs(group.params) do
    local ddp = averager[p]
    local function refuse(text, ...)
      caller.raise("%s: stage 2, and parameter %d of group %d " .. text, name, i, number, ...)
    end
    if not ddp and p.requires_grad then
      refuse("belongs to no DistributedDataParallel, which would average its gradient; hint: "
        .. "model = nn.parallel.DistributedDataParallel(model) comes before the optimizer")
    elseif ddp and table.concat(ddp._group.ranks, ",") ~= table.concat(self.group.ranks, ",") then
      refuse("is averaged over the ranks {%s}, wanted {%s}; hint: the process_group of the "
        .. "DistributedDataParallel", table.concat(ddp._group.ranks, ", "),
        table.concat(self.group.ranks, ", "))
    elseif ddp and ddp._shards then
      refuse("is of a model with %d shards, whose gradients stay whole; hint: stage = 1",
        ddp._shards)
    elseif divided.share_of(p) then
      refuse("belongs to another optimizer of stage 2 already; hint: one optimizer for each "
        .. "parameter, or a new DistributedDataParallel")
    end
  end
end

-- The parameters of a group that are averaged, by their DistributedDataParallel, in the order of
-- the first ones: {{ddp =, params =}, ...}; and the others.
local function by_averager(group)
  local lists, of_ddp, others = {}, {}, {}
  for _, p in ipairs(group.params) do
    local ddp = averager[p]
    if ddp and not of_ddp[ddp] then
      of_ddp[ddp] = {ddp = ddp, params = {}}
      lists[#lists + 1] = of_ddp[ddp]
    end
    table.insert(ddp and of_ddp[ddp].params or others, p)
  end
  return lists, others
end

-- What the ranks own of a parameter that begins `at` elements behind the begin of its bucket, of
-- which each has `slice` elements: added to lists[k] of the rank of index k.
local function cut(lists, p, at, slice)
  local from, size = 0, p:numel()
  if size == 0 then table.insert(lists[0], {param = p, from = 0, n = 0, at = 0}) end
  while from < size do
    local k = (at + from) // slice
    local n = math.min(size - from, (k + 1) * slice - at - from)
    table.insert(lists[k], {param = p, from = from, n = n, at = at + from - k * slice})
    from = from + n
  end
end

-- Segments that are cut as the buckets are in which the parameters lie.
local function segments_of_buckets(params, span_of, n_rank)
  local of_bucket, segments, spans = {}, {}, {}
  for i, p in ipairs(params) do
    local _, bucket, at, slice = span_of(p)
    spans[i] = {param = p, bucket = bucket, at = at, slice = slice, i = i}
  end
  table.sort(spans, function(a, b)
    if a.bucket ~= b.bucket then return a.bucket < b.bucket end
    return a.at < b.at or a.at == b.at and a.i < b.i -- of no elements, several begin together
  end)
  for _, span in ipairs(spans) do
    local lists = of_bucket[span.bucket]
    if not lists then
      lists = {dtype = span.param.dtype}
      for k = 0, n_rank - 1 do lists[k] = {} end
      of_bucket[span.bucket], segments[#segments + 1] = lists, lists
    end
    cut(lists, span.param, span.at, span.slice)
  end
  return segments
end

-- The segments of parameters of one DistributedDataParallel, whose averages are shared out.
local function shared_segments(self, ddp, params)
  local owners, n = {}, #self.group.ranks
  local segments = not self.whole.by_element and self.partition:plan(params, false)
  for _, p in ipairs(params) do owners[p] = false end
  for _, lists in ipairs(segments or {}) do
    for k = 0, n - 1 do
      for _, item in ipairs(lists[k]) do owners[item.param] = k end
    end
  end
  local span_of = ddp:_share_out(self, owners)
  for _, lists in ipairs(segments or {}) do
    for k = 0, n - 1 do
      for _, item in ipairs(lists[k]) do item.at = select(3, span_of(item.param)) end
    end
  end
  return segments or segments_of_buckets(params, span_of, n), span_of
end

-- Notes whose gradients come from a DistributedDataParallel.
local function note_shares(self, ddp, params, pieces, span_of)
  local of_param = {}
  for _, piece in ipairs(pieces) do of_param[piece.param] = piece end
  for _, p in ipairs(params) do
    local share = {group = self.group, piece = of_param[p], is_there = false}
    divided.share(p, share)
    table.insert(self.shared, {param = p, share = share, ddp = ddp, number = (span_of(p))})
  end
end

-- This rank's pieces of a group, by parameter.
local function pieces_of(self, group)
  local found = {}
  local function add(pieces)
    for _, piece in ipairs(pieces) do found[piece.param] = piece end
  end
  local lists, others = {}, group.params
  if self.shared then lists, others = by_averager(group) end
  for _, list in ipairs(lists) do
    local segments, span_of = shared_segments(self, list.ddp, list.params)
    local pieces = self.partition:add(list.params, segments, true)
    note_shares(self, list.ddp, list.params, pieces, span_of)
    add(pieces)
  end
  add(self.partition:add(others, self.partition:plan(others, self.whole.by_element), false))
  return found
end

-- Divides a group of `whole` among the ranks: the group of this rank's pieces goes to `optim`.
local function divide(self, group)
  local params, found = {}, pieces_of(self, group)
  for _, p in ipairs(group.params) do
    local piece = found[p]
    if piece then self.pieces[#self.pieces + 1], params[#params + 1] = piece, piece.tensor end
  end
  local groups = self.optim.param_groups
  groups[#groups + 1] = setmetatable({params = params}, {__index = group, __newindex = group})
end

-- Raises where fully_shard has divided the parameters already.
local function refuse_slices(groups)
  for _, group in ipairs(groups) do
    for i, p in ipairs(group.params) do
      if slices.of(p) then
        caller.raise("%s: parameter %d is a slice of '%s', divided among the ranks by fully_shard, "
          .. "and so is its state; hint: optimizer_class(model:parameters()) itself", NAME, i,
          slices.of(p).name)
      end
    end
  end
end

local function construct(_, ...)
  local o, rest = read(...)
  local class = o.optimizer_class
  if class.class == "LBFGS" then
    caller.raise("%s: optimizer_class is LBFGS, which takes all parameters as one vector; hint: "
      .. "an optimizer that steps without a closure, such as optim.Adam", NAME)
  end
  if o.stage ~= 1 and o.stage ~= 2 then
    caller.raise("%s: stage is %d, wanted 1 (the state is divided) or 2 (gradients, too)", NAME,
      o.stage)
  end
  local group = world.group(NAME, o.process_group)
  local whole = class(o.params, rest)
  refuse_slices(whole.param_groups)
  local self = setmetatable({whole = whole, optim = whole, group = group, defaults = whole.defaults,
    param_groups = whole.param_groups, state = whole.state, pieces = {}, stage = o.stage,
    shared = o.stage == 2 and {} or nil}, ZeroRedundancyOptimizer)
  for g, part in ipairs(o.stage == 2 and whole.param_groups or {}) do
    check_shareable(self, NAME, part, g)
  end
  check_alike(NAME, "parameters", described(whole.param_groups), group)
  if #group.ranks == 1 then return self end
  self.partition = partition.new(NAME, group)
  self.optim = setmetatable({}, getmetatable(whole))
  for key, value in pairs(whole) do self.optim[key] = value end
  self.optim.state, self.optim.param_groups = {}, {}
  self.state = self.optim.state
  for _, part in ipairs(whole.param_groups) do self.partition:check(part.params) end
  for _, part in ipairs(whole.param_groups) do divide(self, part) end
  return self
end

getmetatable(ZeroRedundancyOptimizer).__call = construct

--- Adds a group of parameters, on all ranks, as optim.Optimizer's add_param_group does.
function ZeroRedundancyOptimizer:add_param_group(group)
  local groups = self.whole.param_groups
  self.whole:add_param_group(group)
  local added = groups[#groups]
  local fine, why = pcall(function()
    if self.shared then check_shareable(self, NAME .. ":add_param_group", added, #groups) end
    check_alike(NAME .. ":add_param_group", "parameters", described{added}, self.group)
    if self.partition then
      self.partition:check(added.params)
      divide(self, added)
    end
  end)
  if fine then return end
  groups[#groups] = nil
  error(why, 0)
end

-- ---- a step ----

-- Puts a tensor in the position of another one, of whose data it is.
local function exchange(optimizer, old, new)
  local state = optimizer.state
  state[new], state[old] = state[old], nil
  new.grad = old.grad
  for _, group in ipairs(optimizer.param_groups) do
    for i, p in ipairs(group.params) do
      if p == old then group.params[i] = new end
    end
  end
end

-- Gives the pieces their parts of the gradients.
local function give_gradients(self)
  self.partition:follow(function(old, new) exchange(self.optim, old, new) end)
  for _, piece in ipairs(self.pieces) do
    local grad = piece.param.grad
    if not (piece.is_whole or piece.is_apart) then
      piece.tensor.grad = grad and grad:reshape(-1):narrow(1, piece.from + 1, piece.n)
    end
  end
end

local function take_gradients(self)
  for _, piece in ipairs(self.pieces) do
    if not (piece.is_whole or piece.is_apart) then piece.tensor.grad = nil end
  end
end

-- Updates this rank's pieces.
local function update_pieces(self, found_inf)
  local _ <close> = setmetatable({}, {__close = function() take_gradients(self) end})
  give_gradients(self)
  self.optim:step(nil, found_inf)
end

-- Raises before anything changes, where the ranks cannot step together: the process group has
-- ended, or a gradient is whole that should have been shared out.
local function check_step(self)
  if self.partition then world.group("step", self.group) end
  for _, one in ipairs(self.partition and self.shared or {}) do
    if one.param.grad then
      caller.raise("step: a gradient of shape %s was not averaged over the ranks, so that none has "
        .. "its share; hint: the last backward() before a step stands outside of no_sync",
        tostring(one.param.shape))
    end
  end
end

--- An update of this rank's share, after which all ranks have the values of all. They call it
--- together. The gradients are those of the whole batch on all ranks, as DistributedDataParallel
--- leaves them; in the second stage those of this rank's share.
---@param closure? function computes the loss and the gradients
---@param found_inf? demilune.Tensor as a GradScaler gives it: the ranks agree on it
---@return demilune.Tensor? loss of the closure
function ZeroRedundancyOptimizer:step(closure, found_inf)
  if self == nil then caller.dotted("optimizer", "step") end
  core.warn_autocast "step"
  local loss
  if closure then
    local _ <close> = core.enable_grad()
    loss = closure()
  end
  check_step(self)
  slices.check_current("step", self.param_groups)
  if found_inf and self.partition then collectives.all_reduce(found_inf, "max", self.group) end
  local is_skipped = found_inf ~= nil and found_inf:item() ~= 0
  if not self.optim.takes_found_inf then found_inf = nil end
  if not is_skipped or found_inf then -- a class that takes it keeps count of what was skipped
    if self.partition then update_pieces(self, found_inf) else self.whole:step(nil, found_inf) end
  end
  if self.partition then
    self.whole.state, self.is_consolidated = {}, false
    if not is_skipped then self.partition:gather() end
  end
  self.steps = (self.steps or 0) + 1
  return loss
end

ZeroRedundancyOptimizer.step = Optimizer.with_hooks(ZeroRedundancyOptimizer.step)

-- ---- gradients that are shared out ----

-- Adds the averages that a backward pass has brought to the gradients of the pieces.
function ZeroRedundancyOptimizer:take_shares(ddp, reducer)
  for _, one in ipairs(self.shared) do
    if one.ddp == ddp and reducer:used(one.number) then
      local share = one.share
      share.is_there = true
      if share.piece then reducer:take(one.number, share.piece.at, share.piece.tensor) end
    end
  end
end

-- Whether any rank has a gradient of its share. A GradScaler asks, where this rank has none.
function ZeroRedundancyOptimizer:has_gradients()
  for _, one in ipairs(self.shared or {}) do
    if one.share.is_there then return true end
  end
  return false
end

-- The public groups with this rank's pieces in place of the parameters whose gradients are shared
-- out; a parameter of which it has none stands there itself, without a gradient.
function ZeroRedundancyOptimizer:graded_groups()
  if not self.shared then return self.param_groups end
  local groups = {}
  for g, group in ipairs(self.param_groups) do
    local params = {}
    for i, p in ipairs(group.params) do
      local share = divided.share_of(p)
      params[i] = share and share.piece and share.piece.tensor or p
    end
    groups[g] = {params = params}
  end
  return groups
end

function ZeroRedundancyOptimizer:widen_gradients()
  Optimizer.widen_gradients(self.shared and self.optim or self)
end

--- Drops the gradients: those of the parameters, and this rank's share. set_to_none = false makes
--- them zeros instead.
---@param set_to_none? boolean true
function ZeroRedundancyOptimizer:zero_grad(set_to_none)
  Optimizer.zero_grad(self, set_to_none)
  local keeps = set_to_none ~= nil and zeroing.keeps(set_to_none)
  for _, one in ipairs(self.shared or {}) do divided.drop(one.param, keeps) end
end

-- ---- the state of all ranks ----

-- The state of one piece, as others need to know it: {values = {name = number or the like},
-- tensors = {name = {shape =, dtype =}}}. Counters are values.
local function describe(self, state)
  local values, tensors = {}, {}
  for name, value in pairs(state) do
    if not core.is_tensor(value) then
      values[name] = value
    elseif self.whole.counters[name] then
      values[name] = value:item()
    else
      tensors[name] = {shape = {table.unpack(value.shape)}, dtype = value.dtype}
    end
  end
  return {values = values, tensors = tensors}
end

-- For each parameter the description by its first owner, or nil.
local function all_described(self)
  local own, found = {}, {}
  for _, piece in ipairs(self.pieces) do
    local state = self.optim.state[piece.tensor]
    own[piece.param] = state and describe(self, state)
  end
  local list, params = {}, self.partition.params
  for i, p in ipairs(params) do list[i] = own[p] or false end
  local all = objects.all_gather_object(list, self.group)
  for i, p in ipairs(params) do
    local first = self.partition.owners[p][1]
    found[p] = all[first.index + 1][i] or nil
  end
  return found
end

-- The state that the whole optimizer has, with shards in place of its tensors.
local function sharded_state(self)
  local own, state = {}, {}
  for _, piece in ipairs(self.pieces) do own[piece.param] = self.optim.state[piece.tensor] end
  for p, described_by in pairs(all_described(self)) do
    local entry = {}
    for name, value in pairs(described_by.values) do
      local dtype = self.whole.counters[name]
      entry[name] = dtype and Optimizer.counter(value, dtype, p.device) or value
    end
    for name, tensor in pairs(described_by.tensors) do
      local owners, shape = self.partition.owners[p], tensor.shape
      if self.whole.by_element then
        shape = {table.unpack(p.shape)}
      else
        local n = 1
        for _, size in ipairs(shape) do n = n * size end
        owners = {{index = owners[1].index, from = 0, n = n}}
      end
      entry[name] = shard.new{shape = shape, dtype = tensor.dtype, owners = owners,
        own = own[p] and own[p][name], group = self.group}
    end
    state[p] = entry
  end
  return state
end

local bind_consolidate = options.signature("consolidate_state_dict", "to: integer = 0")

--- Brings the state of all ranks to the rank `to`, which may then call state_dict(). All ranks call
--- it, after the last step.
---@param to? integer a rank of the world, from 0; 0 by default
function ZeroRedundancyOptimizer:consolidate_state_dict(...)
  local name = "consolidate_state_dict"
  local to = bind_consolidate(...).to
  world.index(name, "to", world.group(name, self.group), to)
  if not self.partition then return end
  local state, is_there = sharded_state(self), world.rank(name) == to
  for _, p in ipairs(self.partition.params) do
    for _, key in ipairs(state[p] and listing.keys(state[p]) or {}) do
      local value = state[p][key]
      if shard.is(value) then
        local tensor = value:collect(to)
        state[p][key] = tensor and core.keep(tensor)
      end
    end
  end
  self.whole.state, self.is_consolidated = is_there and state or {}, is_there
end

--- The state of all ranks, as one process's optimizer gives it, on the rank to which
--- consolidate_state_dict has brought it since the last step; it raises on the others. A world of
--- one rank has it at any time.
---@return table state
function ZeroRedundancyOptimizer:state_dict()
  if self.partition and not self.is_consolidated then
    local rank = world.rank "state_dict"
    caller.raise("state_dict: the state is on all ranks; hint: all of them call "
      .. "optimizer:consolidate_state_dict(%d) after the last step, and rank %d then state_dict()",
      rank, rank)
  end
  return self.whole:state_dict()
end

--- The state of all ranks in shares, for distributed.save. All ranks call it.
---@return table state of state_dict's form, with a share of each tensor
function ZeroRedundancyOptimizer:sharded_state_dict()
  if not self.partition then return self.whole:state_dict() end
  local before = self.whole.state
  self.whole.state = sharded_state(self)
  local state = self.whole:state_dict()
  self.whole.state = before
  return state
end

-- The pieces of this rank by parameter.
local function by_parameter(self)
  local pieces = {}
  for _, piece in ipairs(self.pieces) do pieces[piece.param] = piece end
  return pieces
end

--- Tells a saved state, whose tensors distributed.load has not read yet, which parts of them this
--- rank takes.
---@param saved table
function ZeroRedundancyOptimizer:want_state(saved)
  local pieces = self.partition and by_parameter(self)
  for g, group in ipairs(pieces and saved.param_groups or {}) do
    for i, p in ipairs(self.param_groups[g] and self.param_groups[g].params or {}) do
      local piece = pieces[p]
      for _, value in pairs(saved.state[group.params[i]] or {}) do
        -- one of another shape is read whole, by all ranks, which then say so
        local is_divided = type(value) == "table" and value.want ~= nil
          and table.concat(value.shape, ",") == table.concat(p.shape, ",")
        if is_divided and not piece then
          value:want(0, 0)
        elseif is_divided and not piece.is_whole then
          value:want(piece.from, piece.n)
        end
      end
    end
  end
end

-- A piece's part of a buffer of the whole parameter.
local function part_of(self, piece, name, value)
  if type(value) == "table" and value.want then return value:part(piece.from, piece.n) end
  if piece.is_whole or self.whole.counters[name] or not core.is_tensor(value)
    or value:numel() ~= piece.param:numel() then return value end
  return value:reshape(-1):narrow(1, piece.from + 1, piece.n)
end

--- Takes up the state that one process or any number of ranks have saved: each rank its share. All
--- ranks call it.
---@param saved table from state_dict(), of this class or of the optimizer's own
function ZeroRedundancyOptimizer:load_state_dict(saved)
  if not self.partition then
    self.whole:load_state_dict(saved)
    self.state = self.whole.state
    return
  end
  self.whole:_check_saved(saved)
  local of_piece, own = by_parameter(self), {state = {}, param_groups = {}}
  for g, group in ipairs(saved.param_groups) do
    local copy = {params = {}}
    for key, value in pairs(group) do
      if key ~= "params" then copy[key] = value end
    end
    for i, p in ipairs(self.param_groups[g].params) do
      local piece, number = of_piece[p], group.params[i]
      if piece then
        copy.params[#copy.params + 1] = number
        local state = saved.state[number]
        local part = state and {}
        for name, value in pairs(state or {}) do part[name] = part_of(self, piece, name, value) end
        own.state[number] = part
      end
    end
    own.param_groups[g] = copy
  end
  self.optim:load_state_dict(own)
  self.state, self.whole.state, self.is_consolidated = self.optim.state, {}, false
end

-- "ZeroRedundancyOptimizer(Adam(lr = 0.001, 6 tensors), 1 / 4 of the state)"
function ZeroRedundancyOptimizer:__tostring()
  return ("%s(%s, 1 / %d of the state%s)"):format(NAME, tostring(self.whole), #self.group.ranks,
    self.stage == 2 and " and of the gradients" or "")
end

caller.with_colon(ZeroRedundancyOptimizer, "optimizer",
  "add_param_group consolidate_state_dict state_dict load_state_dict")

return ZeroRedundancyOptimizer
