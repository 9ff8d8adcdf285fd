-- Trainings by DistributedDataParallel beside those of one process on the whole batch: parameters
-- that are tied, unused, or used on some ranks only; passes that send nothing; uneven numbers of
-- batches; 16 bits on the wire.

local dm = require "demilune"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed
local DDP = nn.parallel.DistributedDataParallel

local train = {}

local LIMITS = {float64 = 1e-12, float32 = 1e-5}

-- Layers of one width, of which some share their weight, and a head; a factor of float32.
local Net = nn.Module:extend "Net"
function Net:init(plan)
  for i, layer in ipairs(plan.layers) do
    self["layer" .. i] = nn.Linear(plan.width, plan.width, {bias = layer.bias})
    if layer.tied then self["layer" .. i].weight = self["layer" .. layer.tied].weight end
  end
  self.head = nn.Linear(plan.width, 1)
  if plan.norm then self.norm = nn.BatchNorm1d(plan.width) end
  self:to(plan.dtype)
  self.factor = nn.Parameter(dm.tensor(1.25)) -- float32 in every model
end
-- uses: [layer] of this pass.
function Net:forward(x, uses)
  if self.norm then x = self.norm(x) end
  for i, is_used in ipairs(uses) do
    if is_used then x = self["layer" .. i](x):tanh() end
  end
  if uses.factor then x = x * self.factor:to(x.dtype) end
  return self.head(x)
end

local function plan_of(r, dtype)
  local plan = {width = r:int(2, 9), layers = {}, dtype = dtype, seed = r:int(1, 1 << 20),
    norm = r:chance(0.2), cap = 2.0 ^ -r:int(7, 14)}
  for i = 1, r:int(1, 6) do
    plan.layers[i] = {bias = r:chance(0.7), tied = i > 1 and r:chance(0.3) and r:int(1, i - 1)}
  end
  return plan
end

local function make(plan)
  dm.manual_seed(plan.seed)
  return Net(plan)
end

-- The group of a program; the ranks outside draw the same numbers.
local function group_of(world, r)
  return r:chance(0.6) and world.groups[1] or r:pick(world.groups)
end

-- The layers that a pass of a rank uses, and its batch.
local function pass_of(r, plan)
  local uses = {factor = r:chance(0.5)}
  for i = 1, #plan.layers do uses[i] = r:chance(0.6) end
  return {uses = uses, rows = r:int(2, 5), shift = r:int(0, 999)}
end

local function loss_of(model, plan, pass)
  local x = ((dm.arange(pass.rows * plan.width):double() + pass.shift) * 0.37):sin()
  return model(x:reshape(pass.rows, plan.width):to(plan.dtype), pass.uses):square():sum()
end

local function near(got, wanted, what)
  local gap = wanted:numel() == 0 and 0
    or ((got - wanted):abs():max() / wanted:abs():max():clamp{min = 1}):item()
  if gap <= LIMITS[wanted.dtype] then return end -- not so for NaN
  error(("%s: %g apart"):format(what, gap), 2)
end

local function compare(model, alone, step, what)
  local list = alone:parameters()
  for i, p in ipairs(model:parameters()) do
    local words = ("%s %d in step %d"):format(what, i, step)
    if what == "parameter" then
      near(p:detach(), list[i]:detach(), words)
    else
      assert((p.grad == nil) == (list[i].grad == nil), words .. ": is there, or is not")
      if p.grad then near(p.grad, list[i].grad, words) end
    end
  end
end

-- Raises unless the parameters have the same bits on all ranks.
local function compare_ranks(model, g)
  for i, p in ipairs(model:parameters()) do
    for _, other in ipairs(dist.all_gather(p:detach(), g.group)) do
      assert(p:detach():equal(other), ("parameter %d differs between ranks"):format(i))
    end
  end
end

-- The factor stays: its rounding in float32 would reach the gradients of float64.
local function sgd(model)
  local trained = {}
  for _, p in ipairs(model:parameters()) do
    if p.dtype == "float64" then trained[#trained + 1] = p end
  end
  return optim.SGD(trained, {lr = 0.01, momentum = 0.9})
end

-- The passes of a step: [pass][rank of the group].
local function passes_of(r, plan, g)
  local passes = {}
  for k = 1, r:int(1, 3) do
    passes[k] = {sends = r:chance(0.4)}
    for i in ipairs(g.ranks) do passes[k][i] = pass_of(r, plan) end
  end
  passes[#passes].sends = true
  return passes
end

local function run_passes(passes, g, plan, ddp, alone)
  for _, pass in ipairs(passes) do
    for i in ipairs(g.ranks) do (loss_of(alone, plan, pass[i]) / #g.ranks):backward() end
    local function own() loss_of(ddp, plan, pass[g.me]):backward() end
    if pass.sends then own() else ddp:no_sync(own) end
  end
end

-- Steps of several passes, with a collective that is under way all the time.
function train.steps(world, r)
  local g, plan, steps = group_of(world, r), plan_of(r, "float64"), {}
  for step = 1, r:int(1, 4) do steps[step] = passes_of(r, plan, g) end
  if not g.me then return end
  local alone, model = make(plan), make(plan)
  local ddp = DDP(model, {bucket_cap_mb = plan.cap, process_group = g.group, check_every = 2})
  local one, other = sgd(alone), sgd(ddp)
  for step, passes in ipairs(steps) do
    alone:zero_grad()
    model:zero_grad()
    local x = dm.full({300 * step}, g.me, {dtype = "float64"})
    local h = dist.all_reduce(x, {group = g.group, async_op = true})
    run_passes(passes, g, plan, ddp, alone)
    compare(model, alone, step, "gradient")
    one:step()
    other:step()
    h:wait()
    assert(x:eq(#g.ranks * (#g.ranks + 1) / 2):all():item(), "what was under way")
  end
  compare(model, alone, #steps, "parameter")
  compare_ranks(model, g)
end

-- Gradients in 16 bits: those of the ranks rounded, added in float32, the mean rounded once more.
function train.wire(world, r)
  local g, plan, wire = group_of(world, r), plan_of(r, "float32"), r:pick{"bfloat16", "float16"}
  local steps = {}
  for step = 1, r:int(1, 3) do
    steps[step] = {}
    for i in ipairs(g.ranks) do steps[step][i] = pass_of(r, plan) end
  end
  if not g.me then return end
  local model = make(plan)
  local ddp = DDP(model, {bucket_cap_mb = plan.cap, process_group = g.group})
  ddp:register_comm_hook(wire)
  for step, passes in ipairs(steps) do
    local sums = {}
    for i in ipairs(g.ranks) do
      local alone = make(plan)
      loss_of(alone, plan, passes[i]):backward()
      for k, p in ipairs(alone:parameters()) do
        if sums[k] == nil then sums[k] = {} end
        sums[k][i] = p.grad and p.grad:to(wire):float() or p:detach():zeros_like():float()
        sums[k].used = sums[k].used or p.grad ~= nil
      end
    end
    ddp:zero_grad()
    loss_of(ddp, plan, passes[g.me]):backward()
    for k, p in ipairs(model:parameters()) do
      local sum = sums[k][1]
      for i = 2, #g.ranks do sum = sum + sums[k][i] end
      assert((p.grad ~= nil) == sums[k].used, "a gradient is there, or is not")
      local mean = (sum / #g.ranks):to(wire):to(p.dtype)
      assert(not p.grad or p.grad:equal(mean), ("%s: gradient %d in step %d"):format(wire, k, step))
    end
  end
end

-- Loops of uneven lengths.
function train.join(world, r)
  local g, plan, by_all = group_of(world, r), plan_of(r, "float64"), r:chance(0.5)
  plan.norm = false -- its buffers are those of the rank that ends last
  local loops, longest = {}, 0
  for i in ipairs(g.ranks) do
    loops[i] = {}
    for step = 1, r:int(0, 4) do loops[i][step] = pass_of(r, plan) end
    longest = math.max(longest, #loops[i])
  end
  if not g.me then return end
  local alone, model = make(plan), make(plan)
  local ddp = DDP(model, {bucket_cap_mb = plan.cap, process_group = g.group})
  local one, other = sgd(alone), sgd(ddp)
  for step = 1, longest do
    local active = 0
    alone:zero_grad()
    for i in ipairs(g.ranks) do active = active + (loops[i][step] and 1 or 0) end
    for i in ipairs(g.ranks) do
      local pass = loops[i][step]
      if pass then
        (loss_of(alone, plan, pass) / (by_all and #g.ranks or active)):backward()
      end
    end
    one:step()
  end
  ddp:join(function()
    for _, pass in ipairs(loops[g.me]) do
      ddp:zero_grad()
      loss_of(ddp, plan, pass):backward()
      other:step()
    end
  end, {divide_by_initial_world_size = by_all, states = {other}})
  compare(model, alone, longest, "parameter")
  compare_ranks(model, g)
end

return train
