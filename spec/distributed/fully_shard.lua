-- nn.parallel.fully_shard on any number of ranks: the same model is also trained whole, by
-- DistributedDataParallel, and both are compared bit by bit. `mpirun -n 3 lua5.4
-- spec/distributed/fully_shard.lua` runs it by itself.

local dm = require "demilune"
local common = require "spec.distributed.zero_common"
local nn, optim, amp, dist = dm.nn, dm.optim, dm.amp, dm.distributed
local DDP, fully_shard = nn.parallel.DistributedDataParallel, nn.parallel.fully_shard
local check, same, refuses = common.check, common.same, common.refuses

local rank, n

local CHECKS = {}

-- ---- models ----

-- A GPT-2 with tied weights: its blocks, then the rest.
local function gpt(dropout)
  dm.manual_seed(3)
  return dm.models.gpt2{n_layer = 2, n_head = 2, n_embd = 24, block_size = 12, vocab_size = 37,
    dropout = dropout or 0}
end

local function divided(model)
  for _, block in ipairs(model.transformer and model.transformer.h or model) do
    if #block:parameters() > 0 then fully_shard(block) end
  end
  return fully_shard(model)
end

local function whole_of(model)
  return model.class == "DistributedDataParallel" and model.module or model
end

local function tokens() return dm.randint(1, 37, {3, 12}) end

local function loss_of(model, ids)
  return nn.functional.cross_entropy(model(ids):flatten(1, 2), ids:flatten())
end

-- Trains whole copies and divided ones by the same steps, and compares all that they have then.
-- step(model, optimizer, i); o.net makes the model, o.class the optimizer of o.options.
local function compare(name, step, o)
  local found, losses = {}, {}
  for k, wrap in ipairs{DDP, divided} do
    local model = (o.net or gpt)(o.dropout)
    if o.prepare then o.prepare(model) end
    dm.manual_seed(11)
    model = wrap(model)
    local optimizer = (o.class or optim.AdamW)(model:parameters(), o.options or {lr = 0.01})
    dm.manual_seed(100 + rank)
    losses[k] = {}
    for i = 1, o.steps or 2 do losses[k][i] = step(model, optimizer, i) end
    found[k] = {model = whole_of(model):state_dict(), optimizer = optimizer:state_dict()}
  end
  same(losses[1], losses[2], name .. ": losses")
  same(found[1], found[2], name)
end

local function ordinary(model, optimizer)
  local loss = loss_of(model, tokens())
  loss:backward()
  optimizer:step()
  optimizer:zero_grad()
  return loss:item()
end

-- ---- bits ----

function CHECKS.bits_of_a_gpt() compare("gpt", ordinary, {steps = 3}) end

function CHECKS.bits_with_dropout() compare("dropout", ordinary, {dropout = 0.2}) end

function CHECKS.bits_of_other_optimizers()
  for _, name in ipairs{"SGD", "Adam", "Lion"} do
    local options = {lr = 0.01}
    for key, value in pairs(common.OPTIONS[name] or {}) do options[key] = value end
    compare(name, ordinary, {class = optim[name], options = options, steps = 2})
  end
end

function CHECKS.bits_of_bfloat16()
  compare("bfloat16", ordinary, {prepare = function(model) model:to "bfloat16" end,
    options = {lr = 0.01, master_weights = true}})
end

-- Three passes a step, of which the last one sends; and three that all send.
function CHECKS.accumulation()
  compare("no_sync", function(model, optimizer)
    model:no_sync(function()
      for _ = 1, 2 do loss_of(model, tokens()):backward() end
    end)
    return ordinary(model, optimizer)
  end, {})
end

function CHECKS.autocast_and_scaler()
  local scalers = {}
  compare("float16", function(model, optimizer, i)
    local scaler = scalers[optimizer] or amp.GradScaler{device = "cpu", init_scale = 1024,
      growth_interval = 2}
    scalers[optimizer] = scaler
    local loss
    do
      local _ <close> = amp.autocast{device_type = "cpu", dtype = "float16"}
      loss = loss_of(model, tokens())
    end
    if i == 2 and rank == n - 1 then loss = loss * math.huge end
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
    optimizer:zero_grad()
    return scaler:get_scale()
  end, {steps = 4})
end

-- The norm is that of the whole gradients, but for the order of its sum.
function CHECKS.clipping()
  local norms = {}
  for k, wrap in ipairs{DDP, divided} do
    local model = wrap(gpt())
    dm.manual_seed(rank)
    loss_of(model, tokens()):backward()
    norms[k] = {}
    for i, p in ipairs{2, math.huge, 1} do
      norms[k][i] = nn.utils.clip_grad_norm_(model:parameters(), 0.5, p):item()
    end
  end
  for i, norm in ipairs(norms[1]) do
    check(math.abs(norm - norms[2][i]) < 1e-5 * norm, "norm %d is %g, wanted %g", i, norms[2][i],
      norm)
  end
end

function CHECKS.checkpoints()
  compare("checkpoint", ordinary, {dropout = 0.1, prepare = function(model)
    for _, block in ipairs(model.transformer.h) do
      local inner = block.attn
      local forward = inner.forward
      rawset(inner, "forward", function(self, x)
        return nn.utils.checkpoint(forward, self, x)
      end)
    end
  end})
  compare("checkpoint of units", function(model, optimizer)
    local body = whole_of(model).transformer
    local ids = tokens()
    rawset(body, "forward", function(self, given)
      local x = self.wte(given) + self.wpe(dm.arange(given:size(2)))
      for _, block in ipairs(self.h) do x = nn.utils.checkpoint(block, x) end
      return self.ln_f(x)
    end)
    local loss = loss_of(model, ids)
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss:item()
  end, {})
end

-- Buffers, frozen parameters, some that no rank uses, and some that one rank uses alone.
local Odd = nn.Module:extend "Odd"
function Odd:init()
  self.first, self.norm = nn.Linear(5, 7), nn.BatchNorm1d(7)
  self.frozen, self.unused, self.rare = nn.Linear(7, 7), nn.Linear(7, 3), nn.Linear(7, 7)
  self.last = nn.Linear(7, 2)
  self.frozen:requires_grad_(false)
end
function Odd:forward(x, is_rare)
  x = self.frozen(self.norm(self.first(x)):tanh())
  return self.last(is_rare and self.rare(x) or x)
end

function CHECKS.odd_parameters()
  local function net()
    dm.manual_seed(4)
    return Odd()
  end
  compare("odd", function(model, optimizer, i)
    local loss = model(dm.randn(4, 5), i == 2 and rank == 0):square():mean()
    loss:backward()
    local unused = whole_of(model).unused.weight
    check(unused.grad == nil, "an unused parameter has a gradient")
    check((whole_of(model).rare.weight.grad ~= nil) == (i == 2), "step %d: a rare gradient", i)
    optimizer:step()
    optimizer:zero_grad()
    model:eval()
    local _ <close> = dm.no_grad()
    local value = model(dm.ones(2, 5)):sum():item()
    model:train()
    return value
  end, {net = net, steps = 3})
end

-- ---- memory and messages ----

local function bytes_of(list)
  local bytes = 0
  for _, p in ipairs(list) do bytes = bytes + p:numel() * p:element_size() end
  return bytes
end

-- Layers whose sizes any of these numbers of ranks divides.
local function layers(count, width)
  dm.manual_seed(5)
  local model = nn.Sequential()
  for i = 1, count do model[i] = nn.Linear(width, width) end
  return model
end

-- A forward has the parameters of two blocks: its own, and those that are gathered meanwhile. A
-- backward pass has the gradients of some more: those that are computed, and those on their way.
function CHECKS.memory()
  if n == 1 then return end
  local COUNT, WIDTH = 24, 240
  collectgarbage()
  local before = dm.memory_allocated()
  local model = divided(layers(COUNT, WIDTH))
  collectgarbage()
  local block = 4 * (WIDTH * WIDTH + WIDTH)
  local share, slack = COUNT * block / n, 2 ^ 16
  local own = bytes_of(model:parameters())
  check(math.abs(own - share) <= 8 * COUNT, "%d bytes of slices, wanted %d", own, share)
  local function limited(bytes, limit, what)
    check(bytes <= limit + slack, "%s: %d bytes, wanted %d at most", what, bytes, limit)
  end
  limited(dm.memory_allocated() - before, share, "slices")
  local optimizer = optim.Adam(model:parameters(), {lr = 1e-3})
  local x = dm.ones(2, WIDTH)
  for _ = 1, 3 do
    collectgarbage()
    dm.reset_peak_memory_stats()
    local base = dm.memory_allocated()
    local loss = model(x):square():mean()
    limited(dm.max_memory_allocated() - base, 2.2 * block, "a forward")
    dm.reset_peak_memory_stats()
    loss:backward()
    limited(dm.max_memory_allocated() - base, share + 8 * block, "a backward pass")
    collectgarbage()
    limited(dm.memory_allocated() - base, share, "gradients")
    optimizer:step()
    optimizer:zero_grad()
  end
  collectgarbage()
  check(math.abs(common.state_bytes(optimizer) - 2 * own) < 1024, "%d bytes of state for %d",
    common.state_bytes(optimizer), own)
  limited(dm.memory_allocated() - before, 3 * share + slack, "at rest")
end

-- Behind a forward, and still within autocast's region, only slices and activations are there.
function CHECKS.memory_behind_a_forward()
  if n == 1 then return end
  local COUNT, WIDTH = 6, 240
  local model = divided(layers(COUNT, WIDTH))
  for _, is_low in ipairs{false, true} do
    for step = 1, 2 do
      collectgarbage()
      local base = dm.memory_allocated()
      local function forward()
        local loss = model(dm.ones(2, WIDTH)):square():mean()
        collectgarbage()
        return loss, dm.memory_allocated() - base
      end
      local cast = amp.autocast{device_type = "cpu", dtype = "bfloat16", enabled = is_low}
      local loss, grown = forward()
      cast:close()
      check(grown < 2 ^ 17, "%s, step %d: %d bytes behind a forward, a block has %d", is_low, step,
        grown, 4 * WIDTH * WIDTH)
      loss:backward()
      model:zero_grad()
    end
  end
end

-- Two gathers and a reduction, each of (n - 1) / n of the parameters' bytes.
function CHECKS.messages()
  if n == 1 then return end
  local COUNT, WIDTH = 6, 24
  local model = divided(layers(COUNT, WIDTH))
  local whole = bytes_of(layers(COUNT, WIDTH):parameters())
  local sent
  for _ = 1, 4 do
    local before = dist.stats().bytes_sent
    model(dm.ones(2, WIDTH)):square():mean():backward()
    sent = dist.stats().bytes_sent - before
  end
  local more = sent - 3 * (n - 1) / n * whole
  check(more >= 0 and more <= 2048 * n, "%d bytes sent for %d, %d too many", sent, whole, more)
end

-- ---- states ----

function CHECKS.states()
  local model = divided(gpt())
  local optimizer = optim.Adam(model:parameters(), {lr = 0.01})
  dm.manual_seed(rank)
  ordinary(model, optimizer)
  local path = ("/tmp/demilune_fully_shard_%d"):format(n)
  assert(dist.save(path .. "a", {model = model, optimizer = optimizer}))
  local state = {model = model:state_dict(), optimizer = optimizer:state_dict()}
  if rank == 0 then assert(dm.save(path .. "b", state)) end
  dist.barrier()
  local function text(name)
    local file <close> = assert(io.open(name, "rb"))
    return file:read "a"
  end
  check(text(path .. "a") == text(path .. "b"), "other bytes than one process's")
  local again = divided(gpt())
  for _, p in ipairs(again:parameters()) do p:detach():zero_() end
  local other = optim.Adam(again:parameters(), {lr = 1})
  assert(dist.load(path .. "a", {model = again, optimizer = other}))
  same(state, {model = again:state_dict(), optimizer = other:state_dict()}, "loaded")
  for _, pair in ipairs{{model, optimizer}, {again, other}} do
    dm.manual_seed(rank)
    ordinary(table.unpack(pair))
  end
  same(model:state_dict(), again:state_dict(), "goes on")
  local fewer = {}
  for i = 1, n - 1 do fewer[i] = i - 1 end
  local group = n > 2 and dist.new_group(fewer)
  if group and group.is_member then -- n - 1 ranks go on with what n have saved
    local part = fully_shard(gpt(), {process_group = group})
    part:load_state_dict(state.model)
    local third = optim.Adam(part:parameters())
    third:load_state_dict(state.optimizer)
    same(state, {model = part:state_dict(), optimizer = third:state_dict()}, "on fewer ranks")
  end
  local alone = gpt()
  alone:load_state_dict(state.model)
  optim.Adam(alone:parameters()):load_state_dict(state.optimizer)
  dist.barrier()
  if rank == 0 then
    os.remove(path .. "a")
    os.remove(path .. "b")
  end
end

-- ---- refusals ----

function CHECKS.refusals()
  if n == 1 then return end
  local function linear() return nn.Linear(4, 3) end
  local model = linear()
  local early = optim.SGD(model:parameters(), {lr = 1})
  fully_shard(model)
  refuses("step: parameter 'weight' was made a slice by fully_shard after the optimizer was made, "
    .. "and is gone; hint: the optimizer comes after fully_shard", function() early:step() end)
  for _, text in ipairs{"fully_shard.lua:", "fully_shard: this Linear is divided already"} do
    refuses(text, function() fully_shard(model) end)
  end
  refuses("DistributedDataParallel: parameter 'weight' is divided among the ranks by fully_shard",
    function() DDP(model) end)
  refuses("the module is a DistributedDataParallel", function() fully_shard(DDP(linear())) end)
  local inner = linear()
  local held = DDP(inner)
  refuses("parameter 'weight' belongs to a DistributedDataParallel", function()
    fully_shard(inner)
  end)
  check(held.module == inner, "held")
  for _, name in ipairs{"LBFGS", "LAMB", "Muon", "Adafactor"} do
    refuses(name .. ": parameter 1 is a slice of 'weight', of which a step of this class needs all",
      function() optim[name](model:parameters()) end)
  end
  refuses("ZeroRedundancyOptimizer: parameter 1 is a slice of 'weight'", function()
    optim.ZeroRedundancyOptimizer(model:parameters(), optim.SGD)
  end)
  refuses(("the ranks' modules differ: parameter 'weight' is {%d, 4} float32 on rank 0"):format(3),
    function() fully_shard(nn.Linear(4, 3 + rank)) end)
  local tied = nn.Sequential{linear(), linear()}
  tied[2].weight = tied[1].weight
  fully_shard(tied[1])
  refuses("parameter '1.weight' belongs to another unit already", function() fully_shard(tied) end)
  refuses("Linear:copy: a copy of slices", function() model:copy() end)
end

function CHECKS.changes()
  if n == 1 then return end
  local model = fully_shard(nn.Linear(4, 3))
  local loss = model(dm.ones(2, 4)):square():sum()
  local two = fully_shard(nn.Sequential{nn.Linear(4, 4), nn.Linear(4, 3)})
  local out = two(dm.ones(2, 4)):square():sum()
  two[2].weight:detach():add_(1)
  refuses("which its gradient needs, was changed in place afterwards", function()
    out:backward()
  end)
  loss:backward()
  local Bad = nn.Module:extend "Bad"
  function Bad:init() self.weight = nn.Parameter(dm.ones(5)) end
  function Bad:forward(x)
    self.weight:detach():mul_(2)
    return x * self.weight
  end
  local bad = fully_shard(Bad())
  refuses("a parameter of Bad was changed in place during its forward", function()
    bad(dm.ones(5))
  end)
  check(tostring(bad.weight.shape) == ("{%d}"):format(bad.weight:numel()), "its field is the slice")
  bad.weight.data = dm.ones(bad.weight:numel())
  if bad.weight:numel() > 0 then
    refuses("fully_shard: the data of 'weight' were exchanged", function() bad(dm.ones(5)) end)
  end
  local frozen = nn.Linear(4, 3)
  frozen.bias.requires_grad = false
  fully_shard(frozen)
  frozen.bias.requires_grad = true
  refuses("'bias' required no gradient when the module was divided, and does now", function()
    frozen(dm.ones(2, 4))
  end)
end

-- Behind destroy_process_group.
local function after_the_end(model)
  refuses("fully_shard: there is no process group any more", function() model(dm.ones(1, 4)) end)
  refuses("fully_shard: there is no process group any more", function()
    fully_shard(nn.Linear(2, 1))
  end)
end

local function run_checks()
  rank, n = dist.get_rank(), dist.get_world_size()
  return common.run(CHECKS)
end

if ... == "spec.distributed.fully_shard" then return run_checks end
if ... then CHECKS = {[...] = CHECKS[...]} end -- one check by its name
common.main(run_checks, function()
  local model = fully_shard(nn.Linear(4, 5))
  return function() after_the_end(model) end
end)
