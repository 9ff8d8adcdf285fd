-- Trainings with nn.parallel.fully_shard beside those with DistributedDataParallel, bit by bit:
-- blocks that are wrapped or not, one within another, used several times, rarely or never; tied and
-- frozen parameters; passes that send nothing; checkpoints.

local dm = require "demilune"
local nn, optim, dist = dm.nn, dm.optim, dm.distributed

local sharded = {}

-- Layers, each with a block around it, and a head of the first layer's weight where that is tied.
local Net = nn.Module:extend "Net"
function Net:init(plan)
  self.first = nn.Linear(plan.width, plan.width)
  self.blocks = nn.ModuleList()
  for i, block in ipairs(plan.blocks) do
    self.blocks:append(nn.Sequential{nn.Linear(plan.width, plan.width, {bias = block.bias}),
      nn.Tanh(), nn.LayerNorm(plan.width)})
    if block.frozen then self.blocks[i][1].weight.requires_grad = false end
  end
  self.head = nn.Linear(plan.width, plan.width)
  if plan.tied then self.head.weight = self.first.weight end
end

-- uses: the blocks of this pass, in their order; checkpointed: whether their results are kept.
function Net:forward(x, uses, checkpointed)
  x = self.first(x)
  for _, i in ipairs(uses) do
    local block = self.blocks[i]
    x = x + (checkpointed and nn.utils.checkpoint(block, x) or block(x))
  end
  return self.head(x)
end

local function plan_of(r)
  local plan = {width = r:int(1, 9), blocks = {}, seed = r:int(1, 1 << 20), tied = r:chance(0.4),
    optimizer = r:pick{"SGD", "Adam"}, dtype = r:pick{"float32", "float64"}, steps = {}}
  for i = 1, r:int(1, 4) do
    plan.blocks[i] = {bias = r:chance(0.7), frozen = r:chance(0.2), is_wrapped = r:chance(0.7),
      is_inner_wrapped = r:chance(0.2)}
  end
  for step = 1, r:int(1, 4) do
    local passes = {}
    for k = 1, r:int(1, 3) do
      local pass = {sends = false, checkpointed = r:chance(0.3), uses = {},
        seed = r:int(1, 1 << 20)}
      for j = 1, r:int(0, 5) do pass.uses[j] = r:int(1, #plan.blocks) end
      passes[k] = pass
    end
    passes[#passes].sends = true -- one of a step: sums of averages are rounded otherwise
    plan.steps[step] = passes
  end
  return plan
end

local function wrap(model, plan, group)
  local o = {process_group = group}
  for i, block in ipairs(plan.blocks) do
    if block.is_inner_wrapped then nn.parallel.fully_shard(model.blocks[i][1], o) end
    if block.is_wrapped then nn.parallel.fully_shard(model.blocks[i], o) end
  end
  return nn.parallel.fully_shard(model, o)
end

-- The state_dict after the training.
local function trained(plan, model, wrapped, rank)
  local optimizer = optim[plan.optimizer](wrapped:parameters(), {lr = 0.01})
  for _, passes in ipairs(plan.steps) do
    for _, pass in ipairs(passes) do
      dm.manual_seed(pass.seed + rank)
      local x = dm.randn(3, plan.width):to(plan.dtype)
      local function run() wrapped(x, pass.uses, pass.checkpointed):square():sum():backward() end
      if pass.sends then run() else wrapped:no_sync(run) end
    end
    optimizer:step()
    optimizer:zero_grad()
  end
  return model:state_dict()
end

--- One program, on the ranks of a group.
function sharded.steps(world, r)
  local g = r:chance(0.6) and world.groups[1] or r:pick(world.groups)
  local plan = plan_of(r)
  if not g.me then return end
  local function made()
    dm.manual_seed(plan.seed)
    return Net(plan):to(plan.dtype)
  end
  local a, b = made(), made()
  local whole = trained(plan, a, nn.parallel.DistributedDataParallel(a, {process_group = g.group}),
    g.me)
  local slices = trained(plan, b, wrap(b, plan, g.group), g.me)
  for name, t in pairs(whole) do
    assert(t:equal(slices[name]), ("'%s' has other bits"):format(name))
  end
  dist.barrier(g.group)
end

return sharded
