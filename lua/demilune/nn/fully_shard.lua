-- nn.parallel.fully_shard: each rank keeps a slice of the parameters, of their gradients and of the
-- optimizer's state (torch.distributed.fsdp's name and manner: FSDP2).
-- S. Rajbhandari et al. 2020, ZeRO: memory optimizations toward training trillion parameter models:
-- its third stage. Y. Zhao et al. 2023, PyTorch FSDP: experiences on scaling fully sharded data
-- parallel.
--
-- A unit is a module that was wrapped, with the parameters below it that no unit within it has.
-- They lie one after the other in flat buffers, one of each dtype and device; each rank has an
-- equal slice of each buffer. The script and the optimizer see parameters {n}, views of that slice.
-- A forward gathers the buffers, and puts parameters of the full shape, which are others, in the
-- module's fields; behind it their bytes go again (dm_Lent in core/tensor.h). A backward pass asks
-- for those that it needs (core._lender). Their gradients are a reducer's (src/dist/bucket.h),
-- which gives this rank its part of the averages.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local averager = require "demilune.distributed.averaged"
local check_alike = require "demilune.distributed.alike"
local passes = require "demilune.distributed.passes"
local slices = require "demilune.distributed.slices"
local start = require "demilune.distributed.start"
local world = require "demilune.distributed.world"

local NAME = "fully_shard"
local NO_VERSION = 0xFFFFFFFF -- of what stands for bytes that are away
local ALONE = {}              -- stands for the unit in a world of one rank

-- ---- gathering ----

local unit_at = setmetatable({}, {__mode = "v"}) -- address of what stands for the bytes -> its unit

local function nothing() end

-- Starts to gather the unit's buffers.
local function post(unit)
  local _ <close> = core.no_grad()
  for _, segment in ipairs(unit.segments) do
    local like = {dtype = segment.dtype, device = segment.device}
    local on_host = segment.device == "cpu"
    segment.flat = core.keep(core.empty(segment.slice * unit.n_rank, like))
    like.device = "cpu"
    segment.version = segment.own:_version()
    segment.host = not on_host and core.keep(core.empty(segment.slice * unit.n_rank, like)) or nil
    segment.handle = world.run({kind = "all_gather", name = NAME, group = unit.group,
      input = on_host and segment.own or segment.own:cpu(), output = segment.host or segment.flat,
      key = ("%s, %d %s of %d ranks"):format(unit.name, segment.slice, segment.dtype,
        unit.n_rank)}, true, nothing)
  end
  unit.is_posted = true
end

-- Makes what stands for bytes of that dtype that are away.
local function new_nothing(unit, dtype, device)
  local one = core.keep(core.full({1}, 0 / 0, {dtype = dtype, device = device}))
  unit_at[one:data_ptr()] = unit
  return one
end

-- ---- autocast's casts ----

-- Notes the casts of the full parameters that autocast has made for a forward. What the forward has
-- saved of them goes with the parameters, and is made again with them.
local function note_casts(unit)
  for _, segment in ipairs(unit.segments) do
    for _, one in ipairs(segment) do
      for _, cast in ipairs{core._casts_of(one.full)} do
        local is_known = false
        for _, other in ipairs(unit.casts) do is_known = is_known or other.tensor == cast end
        if not is_known then
          table.insert(unit.casts, {tensor = core.keep(cast), of = one.full,
            version = cast:_version()})
        end
      end
    end
  end
end

-- Forgets those that nobody else has any more.
local function drop_casts(unit)
  local kept = {}
  for _, cast in ipairs(unit.casts) do
    if core._is_alone(cast.tensor) then cast.tensor:free() else kept[#kept + 1] = cast end
  end
  unit.casts = kept
end

local function lend_casts(unit)
  drop_casts(unit)
  for _, cast in ipairs(unit.casts) do
    local bytes = cast.of:detach():to(cast.tensor.dtype)
    core._lend(cast.tensor, bytes, 0, cast.version)
    bytes:free()
  end
end

local function take_casts(unit)
  drop_casts(unit)
  for _, cast in ipairs(unit.casts) do
    local key = cast.tensor.dtype .. cast.tensor.device
    unit.nothing[key] = unit.nothing[key]
      or new_nothing(unit, cast.tensor.dtype, cast.tensor.device)
    core._lend(cast.tensor, unit.nothing[key], -1, NO_VERSION)
  end
end

-- ---- the parameters of a unit ----

-- Forgets the buffers; those of a gradient that is being computed stay for it.
local function drop(unit)
  for _, segment in ipairs(unit.segments) do
    if segment.flat then segment.flat:free() end
    if segment.host then segment.host:free() end
    segment.flat, segment.host, segment.handle = nil, nil, nil
  end
  unit.is_posted, unit.is_there = false, false
end

-- Takes the bytes of the full parameters away.
local function take_away(unit)
  if unit.is_there then
    take_casts(unit)
    for _, segment in ipairs(unit.segments) do
      for _, one in ipairs(segment) do core._lend(one.full, segment.nothing, -1, NO_VERSION) end
    end
  end
  drop(unit)
end

-- Waits for the buffers, and lends their bytes to the full parameters.
local function receive(unit)
  local _ <close> = core.no_grad()
  for _, segment in ipairs(unit.segments) do
    segment.handle:wait()
    segment.handle.work:release() -- else the collector would
    if segment.host then
      segment.flat:copy_(segment.host)
      segment.host:free()
    end
    segment.handle, segment.host = nil, nil
  end
  for _, segment in ipairs(unit.segments) do
    for _, one in ipairs(segment) do
      core._lend(one.full, segment.flat, one.at, segment.version)
    end
  end
  unit.is_there = true
  lend_casts(unit)
end

-- Whether the buffers hold what the ranks' slices are now.
local function is_fresh(unit)
  for _, segment in ipairs(unit.segments) do
    if segment.own:_version() ~= segment.version then return false end
  end
  return true
end

-- Raises where a slice is no longer a part of what is sent.
local function check_slices(unit)
  for _, segment in ipairs(unit.segments) do
    for _, one in ipairs(segment) do
      if one.n > 0 and one.slice:data_ptr() ~= one.address then
        caller.raise("%s: the data of '%s' were exchanged; hint: p:copy_(new), or model:to(...) "
          .. "before fully_shard", NAME, one.name)
      end
    end
  end
end

-- Makes the full parameters of the unit those of the slices, and starts to gather those of the unit
-- that came next in the pass before.
local function gather(unit)
  if (unit.is_there or unit.is_posted) and not is_fresh(unit) then take_away(unit) end
  if unit.is_there then return end
  check_slices(unit)
  local root = unit.root
  local order, before = root.order, root.order_before
  order[#order + 1] = unit
  if not unit.is_posted then post(unit) end
  local following = before[#order] == unit and before[#order + 1]
  if following and not (following.is_posted or following.is_there) then post(following) end
  local _ <close> = setmetatable({}, {__close = function(_, failure)
    if failure ~= nil then drop(unit) end
  end})
  receive(unit)
end

-- Makes the full parameters of the unit there for a backward pass; those of the unit that it needed
-- before go.
local function bring(unit)
  world.group("backward", unit.group)
  local root = unit.root
  if root.brought and root.brought ~= unit and root.brought.n_open == 0 then
    take_away(root.brought)
  end
  root.brought = unit
  gather(unit)
end

core._lender(function(p) bring(unit_at[p:data_ptr()]) end)

-- ---- a forward ----

-- Puts the full parameters in the fields of the modules.
local function show_full(unit)
  for _, segment in ipairs(unit.segments) do
    for _, one in ipairs(segment) do
      if one.slice.requires_grad and not one.is_trained then
        caller.raise("%s: '%s' required no gradient when the module was divided, and does now; "
          .. "hint: requires_grad before fully_shard", NAME, one.name)
      end
      one.full.requires_grad = one.slice.requires_grad
      one.shown = core.keep(core._handle(one.full))
      for _, at in ipairs(one.fields) do rawset(at.module, at.field, one.shown) end
    end
  end
end

-- Puts the slices there again.
local function show_slices(unit)
  for _, segment in ipairs(unit.segments) do
    for _, one in ipairs(segment) do
      for _, at in ipairs(one.fields) do rawset(at.module, at.field, one.slice) end
      if one.shown then one.shown:free() end
      one.shown = nil
    end
  end
end

-- Raises where a forward has changed a full parameter, which is lost.
local function check_unchanged(unit)
  for _, segment in ipairs(unit.segments) do
    if segment.flat and segment.flat:_version() ~= segment.version then
      caller.raise("%s: a parameter of %s was changed in place during its forward, where it is a "
        .. "copy that is dropped; hint: change it between two steps, when it is a slice", NAME,
        unit.name)
    end
  end
end

-- The begin of a forward of the outermost module.
local function begin(module, root)
  if root.brought then take_away(root.brought) end
  root.brought, root.order_before, root.order = nil, root.order, {}
  if root.broadcasts and root.syncs and module.training and core.is_grad_enabled() then
    start.broadcast(module:buffers(), root.group)
  end
end

local function enter(module, unit)
  local root = unit.root
  world.group(NAME, unit.group)
  local in_backward = core._in_backward() -- a checkpoint runs it again
  if root.depth == 0 and not in_backward then begin(module, root) end
  if in_backward then bring(unit) else gather(unit) end
  if unit.n_open == 0 then show_full(unit) end
  unit.n_open, root.depth = unit.n_open + 1, root.depth + 1
  slices.open(unit.scope)
end

local LEAVE = {__close = function(scope, failure)
  local unit = scope.unit
  slices.close(unit.scope)
  unit.n_open, unit.root.depth = unit.n_open - 1, unit.root.depth - 1
  if unit.n_open > 0 then return end
  show_slices(unit)
  note_casts(unit)
  local fine, why = true, nil
  if failure == nil then fine, why = pcall(check_unchanged, unit) end
  if unit.root.brought ~= unit then take_away(unit) end
  if not fine then error(why, 0) end
end}

-- ---- after a backward pass ----

-- Gives the slices their parts of the averages.
local function finish(root)
  local reducer = root.reducer
  if root.brought then take_away(root.brought) end
  root.brought = nil
  passes.settle(NAME, reducer, false)
  for _, one in ipairs(root.trained) do
    if reducer:used(one.number) then reducer:take(one.number, one.taken_at, one.slice) end
  end
  reducer:taken()
end

-- ---- the layout ----

-- The parameters of a module that no unit within it has: {{name =, p =, fields = {{module =, field
-- =}, ...}}, ...}.
local function own_parameters(module)
  local list, of_p = {}, {}
  local function visit(prefix, part)
    for _, field in ipairs(part._fields) do
      local p = rawget(part, field)
      if core.is_tensor(p) and p.is_parameter then
        local one = of_p[p]
        if not one then
          one = {name = prefix .. tostring(field), p = p, fields = {}}
          of_p[p], list[#list + 1] = one, one
        end
        table.insert(one.fields, {module = part, field = field})
      end
    end
  end
  local within = {}
  for _, part in module:named_modules() do
    if part ~= module and rawget(part, "_unit") then
      for _, below in part:named_modules() do within[below] = true end
    end
  end
  for prefix, part in module:named_modules() do
    if not within[part] then visit(prefix == "" and "" or prefix .. ".", part) end
  end
  return list
end

-- Which elements each rank has of those in [at, at + numel) of a buffer, of which it has `slice`
-- elements in all.
local function owners_of(at, numel, slice, n_rank)
  local owners = {}
  for k = 0, n_rank - 1 do
    local first = math.min(math.max(at, k * slice), at + numel)
    local last = math.max(math.min(at + numel, (k + 1) * slice), first)
    owners[k + 1] = {index = k, from = first - at, n = last - first}
  end
  return owners
end

-- Puts the parameters of a unit into segments: the last one first, as a reducer does.
local function segments_of(list, n_rank)
  local segments, of_key = {}, {}
  for i = #list, 1, -1 do
    local one = list[i]
    local p = one.p
    local key = ("%s %s %s"):format(p.dtype, p.device, p.requires_grad)
    local segment = of_key[key]
    if not segment then
      segment = {n = 0, dtype = p.dtype, device = p.device}
      of_key[key], segments[#segments + 1] = segment, segment
    end
    one.at, one.numel, one.is_trained = segment.n, p:numel(), p.requires_grad
    one.shape = p.shape
    segment[#segment + 1], segment.n = one, segment.n + p:numel()
  end
  for _, segment in ipairs(segments) do
    segment.slice = math.max((segment.n + n_rank - 1) // n_rank, 1)
  end
  return segments
end

-- Makes the slices of a segment, and the full parameters, whose bytes are away.
local function divide(unit, segment)
  local flat = core.zeros(segment.slice * unit.n_rank, {dtype = segment.dtype,
    device = segment.device})
  for _, one in ipairs(segment) do
    flat:narrow(1, one.at + 1, one.numel):copy_(one.p:detach():reshape(-1))
  end
  local first = unit.me * segment.slice
  segment.own = core.keep(flat:narrow(1, first + 1, segment.slice):clone())
  segment.nothing = new_nothing(unit, segment.dtype, segment.device)
  for _, one in ipairs(segment) do
    local owners = owners_of(one.at, one.numel, segment.slice, unit.n_rank)
    local own = owners[unit.me + 1]
    local at = own.n > 0 and one.at + own.from - first or 0
    one.n, one.taken_at = own.n, at
    local view = segment.own:narrow(1, at + 1, own.n):detach()
    one.slice = core.keep(core.parameter(view, one.is_trained))
    one.address = one.slice:data_ptr()
    one.full = core.keep(core.parameter(core.empty(one.shape, {dtype = segment.dtype,
      device = segment.device}), one.is_trained))
    core._lend(one.full, segment.nothing, -1, NO_VERSION)
    slices.note(one.slice, {name = one.name, shape = one.shape, owners = owners, from = own.from,
      n = own.n, group = unit.group})
  end
end

-- Lets a module of the unit tell what its parameters are parts of.
local function division(module, field)
  return slices.of(rawget(module, field)) or getmetatable(module).division(module, field)
end

-- Puts the slices in the positions of the parameters, which give their memory back.
local function replace(unit)
  for _, segment in ipairs(unit.segments) do
    for _, one in ipairs(segment) do
      for _, at in ipairs(one.fields) do rawset(at.module, "division", division) end
      slices.replace(one.p, one.name)
      one.p.grad = nil
      one.p.data = core.empty({0}, {dtype = segment.dtype, device = segment.device})
      one.p = nil
    end
  end
  show_slices(unit)
end

-- ---- the units of a root ----

-- The units below a module, itself first.
local function units_below(module)
  local list = {}
  for _, part in module:named_modules() do
    local unit = rawget(part, "_unit")
    if unit and unit ~= ALONE then list[#list + 1] = unit end
  end
  return list
end

-- Makes the module's unit the root of all below: they have one reducer, and one order.
local function take_root(unit, units)
  local root = {group = unit.group, broadcasts = unit.broadcasts, syncs = true, depth = 0,
    order = {}, order_before = {}, trained = {}}
  local params, names, shares = {}, {}, {}
  for _, below in ipairs(units) do
    if below.root then passes.close(below.root) end
    below.root = root
  end
  for u, below in ipairs(units) do
    for _, one in ipairs(below.list) do
      if one.is_trained then
        one.number = #params
        params[#params + 1], names[#names + 1] = one.full, one.name
        shares[#shares + 1] = u * (unit.n_rank + 1)
        root.trained[#root.trained + 1] = one
      end
    end
  end
  if #params == 0 then return end
  root.reducer = core._reducer_new(unit.group.index, params, 1 << 50, 1 << 50, caller.where(),
    names)
  root.reducer:share(shares)
  passes.add(root, root.reducer, finish)
end

-- ---- checks ----

local function described(list, module)
  local out = {}
  for _, one in ipairs(list) do
    out[#out + 1] = {"parameter '" .. one.name .. "'", ("%s %s%s"):format(tostring(one.p.shape),
      one.p.dtype, one.p.requires_grad and "" or ", which requires no gradient")}
  end
  for name, b in module:named_buffers() do
    out[#out + 1] = {"buffer '" .. name .. "'", ("%s %s"):format(tostring(b.shape), b.dtype)}
  end
  return out
end

local function check(module, list)
  if rawget(module, "_unit") then
    caller.raise("%s: this %s is divided already", NAME, module.class)
  elseif module.class == "DistributedDataParallel" then
    caller.raise("%s: the module is a %s, which keeps parameters whole; hint: fully_shard(model) "
      .. "in its stead", NAME, module.class)
  end
  for _, one in ipairs(list) do
    if slices.of(one.p) or slices.is_replaced(one.p) then
      caller.raise("%s: parameter '%s' belongs to another unit already; hint: parameters that are "
        .. "tied belong to one unit, that of a module which holds them all", NAME, one.name)
    elseif averager[one.p] then
      caller.raise("%s: parameter '%s' belongs to a DistributedDataParallel; hint: fully_shard("
        .. "model) in its stead", NAME, one.name)
    end
  end
end

-- ---- the module ----

local function set_syncs(root, on)
  root.syncs = on
  if root.reducer then root.reducer:pause(not on) end
end

-- Ends what no_sync has begun.
local SYNC = {__close = function(scope) set_syncs(scope.root, scope.before) end}

local bind_no_sync = options.signature("no_sync", "fn?: function")

-- The class of a wrapped module, which inherits from its own. unit: nil in a world of one rank.
local function unit_class(module, unit)
  local class = getmetatable(module)
  local new, forward = class:extend(class.class), rawget(module, "forward") or class.forward

  function new.no_sync(_, ...)
    local fn = bind_no_sync(...).fn
    local root = unit and unit.root or {syncs = true}
    local scope = setmetatable({root = root, before = root.syncs}, SYNC)
    set_syncs(root, false)
    if not fn then return scope end
    local _ <close> = scope
    return fn()
  end
  caller.with_colon(new, "module", "no_sync")
  if not unit then return new end

  rawset(module, "forward", nil)
  function new:forward(...)
    local _ <close> = unit.scope()
    return forward(self, ...)
  end

  function new:copy()
    caller.raise("%s:copy: a copy of slices would average no gradients; hint: copy the model "
      .. "before fully_shard, or load its state_dict into another one", self.class)
  end

  function new:sharded_state_dict()
    return slices.keep_shares(function() return self:state_dict() end)
  end
  return new
end

-- The unit of a module, whose parameters are divided.
local function new_unit(module, list, group, broadcasts)
  local _ <close> = core.no_grad()
  local unit = {group = group, n_rank = #group.ranks, me = group.index_of[world.rank(NAME)],
    list = list, casts = {}, nothing = {}, n_open = 0, name = module.class,
    broadcasts = broadcasts, is_there = false, is_posted = false}
  unit.segments = segments_of(list, unit.n_rank)
  for _, segment in ipairs(unit.segments) do divide(unit, segment) end
  function unit.scope()
    enter(module, unit)
    return setmetatable({unit = unit}, LEAVE)
  end
  return unit
end

local fully_shard = {}

local bind = options.signature(NAME,
  "module: module, *, broadcast_buffers: boolean = true, process_group?: group")

--- fully_shard(module): divides the parameters of a module among the ranks, in place (the third
--- stage of ZeRO; PyTorch's FSDP2). Call it for the blocks of a model, then for the model itself,
--- on all ranks, and make the optimizer behind it. The weights then have the bits that
--- DistributedDataParallel and the same optimizer give them.
---
--- Between two uses a rank has slices only: `model:parameters()` are tensors {n} of consecutive
--- elements, their gradients and the optimizer's state the same. A forward of a wrapped module
--- gathers its parameters, and drops them behind it; a backward pass gathers them once more, and
--- leaves each rank the averages of its slice. What comes next is gathered meanwhile, in the order
--- of the pass before. state_dict gathers whole tensors, so that all ranks call it, and takes those
--- of any number of ranks; distributed.save and the Trainer write one process's file.
---
--- The module gets the method no_sync(fn), as of DistributedDataParallel: within it gradients are
--- whole, on all ranks, until the first backward pass behind it; zero_grad does not drop them.
---
--- Optimizers have to be element-wise: LBFGS, LAMB, Muon and Adafactor are refused. Hooks of
--- parameters see no gradient. In a world of one rank the module stays as it is.
---@param module table on its device, with its dtype; its class is then one that inherits from its
--- own
---@param broadcast_buffers? boolean each forward of the outermost module in training mode takes the
--- first rank's buffers; true by default
---@param process_group? demilune.distributed.Group all ranks by default
---@return table module the same
---```lua
---dm.distributed.init_process_group()
---local model = nn.Sequential{nn.Linear(4, 8), nn.Linear(8, 1)}
---for _, block in ipairs(model) do nn.parallel.fully_shard(block) end
---nn.parallel.fully_shard(model)
---local optimizer = optim.AdamW(model:parameters())
---model(dm.ones(2, 4)):sum():backward()
---optimizer:step()
---dm.distributed.destroy_process_group()
---```
function fully_shard.fully_shard(...)
  local o = bind(...)
  local module, group = o.module, world.group(NAME, o.process_group)
  local list = own_parameters(module)
  check(module, list)
  check_alike(NAME, "modules", described(list, module), group)
  if #group.ranks == 1 then
    setmetatable(module, unit_class(module))
    rawset(module, "_unit", ALONE)
    return module
  end
  local tensors = module:buffers()
  for _, one in ipairs(list) do tensors[#tensors + 1] = one.p end
  start.broadcast(tensors, group)
  start.part_generators_once(group.index_of[world.rank(NAME)])
  local unit = new_unit(module, list, group, o.broadcast_buffers)
  rawset(module, "_unit", unit)
  setmetatable(module, unit_class(module, unit))
  replace(unit)
  take_root(unit, units_below(module))
  return module
end

return fully_shard
