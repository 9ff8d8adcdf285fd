-- DistributedDataParallel on any number of ranks. Each rank also trains the same model on the whole
-- batch by itself, so that it knows what has to come.
-- `mpirun -n 3 lua5.4 spec/distributed/parallel.lua` runs it by itself.

local dm = require "demilune"
local golden = require "spec.golden"
local nn, optim, amp, dist = dm.nn, dm.optim, dm.amp, dm.distributed
local DDP = nn.parallel.DistributedDataParallel
local mse = nn.functional.mse_loss

local SAMPLES = 12 -- of the whole batch; 1, 2, 3 and 4 ranks divide it
local SMALL = {bucket_cap_mb = 0.001} -- several buckets

local rank, n
local checks = 0

local function check(ok, what, ...)
  checks = checks + 1
  if not ok then error(("rank %d of %d: "):format(rank, n) .. what:format(...), 2) end
end

local function near(a, b, limit, what)
  check(a.dtype == b.dtype and tostring(a.shape) == tostring(b.shape), "%s: other tensors", what)
  local gap = a:numel() == 0 and 0
    or ((a - b):abs():max() / b:abs():max():clamp{min = 1e-300}):item()
  check(gap <= limit, "%s: %g apart, at most %g may be", what, gap, limit)
end

local function same(a, b, what)
  check(a:equal(b), "%s: %s for %s", what, tostring(a), tostring(b))
end

-- Raises unless x is the same on all ranks, bit by bit.
local function agreed(x, what)
  for i, other in ipairs(dist.all_gather(x:detach())) do
    check(x:equal(other), "%s: rank %d has another one", what, i - 1)
  end
end

local function agree_all(model, what)
  for name, p in model:named_parameters() do agreed(p, what .. " " .. name) end
end

-- Numbers that are the same on all ranks.
local function wave(...)
  local count = 1
  for _, size in ipairs{...} do count = count * size end
  return ((dm.arange(count):double() * 0.37):sin() * 0.7):reshape(...)
end

local function batch()
  local x = wave(SAMPLES, 8)
  return x, x:sum(2, {keepdim = true}):cos()
end

-- The samples of a rank.
local function part(x, of) return x[dm.arange(SAMPLES):remainder(n):eq(of or rank)] end

local function mlp()
  dm.manual_seed(3)
  return nn.Sequential{nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(),
    nn.Linear(16, 1)}:double()
end

-- Compares gradients with those of the same parameters of another model; nil with nil.
local function compare_grads(model, wanted, what)
  local list = wanted:parameters()
  for i, p in ipairs(model:parameters()) do
    check((p.grad == nil) == (list[i].grad == nil), "%s: parameter %d has %s gradient", what, i,
      p.grad and "a" or "no")
    if p.grad then near(p.grad, list[i].grad, 1e-12, ("%s: gradient %d"):format(what, i)) end
  end
end

-- Trains make() on the ranks' parts and alone on the whole batch, for a few steps each.
local function train_both(what, make, opts, run)
  run = run or function(model, x) return model(x) end
  local alone, model = make(), make()
  local ddp = DDP(model, opts)
  local x, y = batch()
  local one, other = optim.SGD(alone:parameters(), {lr = 0.1, momentum = 0.9}),
    optim.SGD(ddp:parameters(), {lr = 0.1, momentum = 0.9})
  for step = 1, 4 do
    one:zero_grad()
    other:zero_grad()
    mse(run(alone, x), y):backward()
    mse(run(ddp, part(x)), part(y)):backward()
    compare_grads(model, alone, what)
    agreed(ddp:parameters()[#ddp:parameters()].grad, what .. " gradient in step " .. step)
    one:step()
    other:step()
  end
  agree_all(model, what)
  return ddp
end

local CHECKS = {}

function CHECKS.a_plain_loop()
  local ddp = train_both("plain", mlp, SMALL)
  local buckets, passes, early = ddp._reducer:counts()
  check(n > 1 and buckets > 2 and buckets < 6 or n == 1 and buckets == 0, "%d buckets", buckets)
  check(passes == (n > 1 and 4 or 0), "%d passes sent", passes)
  check(n == 1 or early == buckets - 1, "%d of %d buckets went before the end", early, buckets)
  train_both("one bucket", mlp)
end

function CHECKS.tied_weights_and_loops()
  local Tied = nn.Module:extend "Tied"
  function Tied:init()
    self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
    self.cell, self.head = nn.RNNCell(8, 8), nn.Linear(8, 1)
    self.last.weight = self.first.weight
  end
  function Tied:forward(x)
    local h = dm.zeros(#x, 8, {dtype = x.dtype})
    for _ = 1, 3 do h = self.cell(self.last(self.first(x):tanh()), h) end
    return self.head(h)
  end
  train_both("tied", function()
    dm.manual_seed(4)
    return Tied():double()
  end, SMALL)
end

function CHECKS.checkpoints()
  train_both("checkpoint", mlp, SMALL, function(model, x)
    return nn.utils.checkpoint(model, x:detach():requires_grad_(true))
  end)
  train_both("checkpoints inside", mlp, SMALL, function(model, x)
    local layers = model.module or model
    local h = nn.utils.checkpoint(function(v) return layers[2](layers[1](v)) end,
      x:detach():requires_grad_(true))
    return layers[5](layers[4](layers[3](h)))
  end)
end

function CHECKS.a_forward_without_the_wrapper()
  train_both("without", mlp, SMALL, function(model, x) return (model.module or model)(x) end)
end

function CHECKS.frozen_parameters()
  local ddp = train_both("frozen", function()
    local model = mlp()
    model[1]:requires_grad_(false)
    return model
  end, SMALL)
  check(ddp.module[1].weight.grad == nil, "a frozen parameter has a gradient")
end

-- Three branches, of which each rank uses one, or all or none.
local Branches = nn.Module:extend "Branches"
function Branches:init()
  for _, name in ipairs{"a", "b", "never"} do self[name] = nn.Linear(8, 4) end
  self.head = nn.Linear(4, 1)
end
function Branches:forward(x, branch) return self.head(self[branch](x)) end

function CHECKS.unused_parameters()
  local function make()
    dm.manual_seed(5)
    return Branches():double()
  end
  local alone, model = make(), make()
  local ddp, x, y = DDP(model, SMALL), batch()
  for step = 1, 3 do
    local function branch(of) return (of + step) % 3 == 0 and "a" or "b" end
    alone:zero_grad()
    ddp:zero_grad()
    for of = 0, n - 1 do
      (mse(alone(part(x, of), branch(of)), part(y, of)) / n):backward()
    end
    mse(ddp(part(x), branch(rank)), part(y)):backward()
    compare_grads(model, alone, "unused")
    check(model.never.weight.grad == nil, "what no rank has used has a gradient")
    if n > 1 and step == 1 then agreed(model.b.weight.grad, "unused") end
  end
end

-- scripts/golden/ddp.py is the same program for PyTorch, on two processes.
function CHECKS.as_pytorch_does()
  if n ~= 2 then return end
  local Twice = Branches:extend "Twice"
  function Twice:forward(x, branch)
    local layer = self[branch]
    return self.head(layer(x):tanh() + layer(x * 0.3))
  end
  local model = Twice():double()
  for i, p in ipairs(model:parameters()) do
    p.data = wave(table.unpack(p.shape)) * (1 + 0.1 * (i - 1))
  end
  local ddp = DDP(model, SMALL)
  local optimizer = optim.SGD(ddp:parameters(), {lr = 0.1, momentum = 0.9})
  local x, own = wave(6, 8) * (1 + rank), rank == 0 and "a" or "b"
  for step, wanted in ipairs(golden.load("ddp").steps) do
    optimizer:zero_grad()
    ddp:no_sync(function() ddp(x * 0.5, own):sin():mean():backward() end)
    ddp(x, step == 2 and "b" or own):cos():mean():backward()
    local function compare(got, list, what)
      check((got == nil) == (list == false), "%s is %s", what, tostring(got))
      if got then near(got:reshape(-1), dm.tensor(list, {dtype = "float64"}), 1e-12, what) end
    end
    for i, p in ipairs(model:parameters()) do
      compare(p.grad, wanted.grads[i], ("PyTorch's gradient %d in step %d"):format(i, step))
    end
    optimizer:step()
    for i, p in ipairs(model:parameters()) do
      compare(p:detach(), wanted.params[i], ("PyTorch's parameter %d, step %d"):format(i, step))
    end
  end
end

function CHECKS.two_passes_before_a_step()
  local alone, model = mlp(), mlp()
  local ddp, x, y = DDP(model, SMALL), batch()
  for _ = 1, 2 do
    mse(alone(x), y):backward()
    mse(ddp(part(x)), part(y)):backward()
    alone(x):sin():mean():backward()
    ddp(part(x)):sin():mean():backward()
  end
  compare_grads(model, alone, "two passes")
  -- one graph twice, and one that is older than another that was walked before it
  alone:zero_grad()
  ddp:zero_grad()
  local function run(m, u, v)
    local old, new = mse(m(u), v), m(u):cos():mean()
    new:backward{retain_graph = true}
    local both = new * 2 + m(u):sin():mean()
    both:backward()
    old:backward()
  end
  run(alone, x, y)
  run(ddp, part(x), part(y))
  compare_grads(model, alone, "graphs walked again")
  alone:zero_grad()
  ddp:zero_grad()
  mse(alone(x), y):backward()
  mse(ddp(part(x)), part(y)):backward()
  compare_grads(model, alone, "after that")
end

function CHECKS.gradients_of_the_script()
  local alone, model = mlp(), mlp()
  local ddp, x, y = DDP(model, SMALL), batch()
  for i, p in ipairs(model:parameters()) do
    if i ~= 2 then p.grad = dm.full(p.shape, i, {dtype = p.dtype}) end
    if i ~= 2 then alone:parameters()[i].grad = p.grad:clone() end
  end
  mse(alone(x), y):backward()
  mse(ddp(part(x)), part(y)):backward()
  compare_grads(model, alone, "set before")
  for _, m in ipairs{alone, model} do
    for _, p in ipairs(m:parameters()) do p.grad:mul_(0.5) end
  end
  mse(alone(x), y):backward()
  mse(ddp(part(x)), part(y)):backward()
  compare_grads(model, alone, "changed between")
  local held = model[1].weight.grad
  ddp:zero_grad()
  check(model[1].weight.grad == nil and held:numel() == 128, "zero_grad")
  -- hooks of a parameter see this rank's gradient
  local seen
  local hook = model[5].bias:register_hook(function(g) seen = g:clone() return g * 2 end)
  alone:zero_grad()
  mse(alone(x), y):backward()
  mse(ddp(part(x)), part(y)):backward()
  hook:remove()
  near(model[5].bias.grad, alone[5].bias.grad * 2, 1e-12, "a hook")
  near(dist.all_reduce(seen, "avg"), alone[5].bias.grad, 1e-12, "the hook's gradient")
end

function CHECKS.no_sync()
  local alone, model = mlp(), mlp()
  local ddp, x, y = DDP(model, SMALL), batch()
  local function passes() return select(2, ddp._reducer:counts()) end
  local function both(from)
    mse(alone(x * from), y):backward()
    mse(ddp(part(x) * from), part(y)):backward()
  end
  local before = dist.stats().calls
  do
    local _ <close> = ddp:no_sync()
    both(1)
    local _ <close> = ddp:no_sync()
    both(2)
  end
  check(ddp:no_sync(function() both(3) return 7 end) == 7, "no_sync returns what the function does")
  check(dist.stats().calls == before and passes() == 0, "no_sync has sent something")
  check(not pcall(ddp.no_sync, ddp, function() error "mine" end), "an error is swallowed")
  both(4)
  check(passes() == (n > 1 and 1 or 0), "%d passes sent", passes())
  compare_grads(model, alone, "no_sync")
  -- what only a pass without sending has used
  local made = Branches():double()
  local used = DDP(made)
  used:no_sync(function() used(part(x), rank == 0 and "a" or "b"):sum():backward() end)
  used(part(x), "never"):sum():backward()
  for _, name in ipairs{"b", "never", "head"} do
    if n > 1 or name ~= "b" then agreed(made[name].weight.grad, "no_sync " .. name) end
  end
  check(made.a.weight.grad ~= nil, "no gradient of a pass that sent nothing")
end

function CHECKS.accumulation_in_amp_step()
  local alone, model = mlp(), mlp()
  local ddp, x, y = DDP(model, SMALL), batch()
  local one, other = optim.AdamW(alone:parameters(), {lr = 0.02}),
    optim.AdamW(ddp:parameters(), {lr = 0.02})
  for i = 1, 6 do
    local scale = 1 + i / 7
    local stepped, norm = amp.step{loss = mse(alone(x * scale), y), optimizer = one,
      accumulate = 3, max_norm = 0.3}
    local mine, own_norm = amp.step{loss = mse(ddp(part(x) * scale), part(y)), optimizer = other,
      accumulate = 3, max_norm = 0.3}
    check(stepped == mine and stepped == (i % 3 == 0), "stepped")
    if stepped then near(own_norm, norm, 1e-12, "the norm") end
  end
  check(select(2, ddp._reducer:counts()) == (n > 1 and 2 or 0), "it sent in other passes")
  for i, p in ipairs(model:parameters()) do
    near(p, alone:parameters()[i], 1e-9, "after amp.step, parameter " .. i)
  end
end

function CHECKS.what_ranks_begin_with()
  dm.manual_seed(100 + rank)
  local model = nn.Sequential{nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)}
  model[2].running_mean:add_(rank)
  local ddp = DDP(model)
  agree_all(model, "broadcast")
  for name, b in model:named_buffers() do agreed(b, "broadcast " .. name) end
  if n > 1 then
    local masks = dist.all_gather(nn.functional.dropout(dm.ones(64), 0.5, true))
    check(not masks[1]:equal(masks[2]), "dropout is the same on two ranks")
  end
  local x = wave(SAMPLES, 8):float()
  ddp(part(x))
  local own = model[2].running_mean:clone()
  if n > 1 then
    check(not own:equal(dist.broadcast(own:clone(), 1)) or rank == 1, "own statistics")
  end
  ddp(part(x))
  ddp:eval()
  ddp(part(x))
  ddp:train()
  dm.no_grad(function() ddp(part(x)) end)
  -- the first rank's count went to all; then one forward that broadcast, and one without gradients
  check(model[2].num_batches_tracked:item() == 3, "%d batches", model[2].num_batches_tracked:item())
  local kept = DDP(nn.BatchNorm1d(8), {broadcast_buffers = false})
  kept(part(x))
  kept(part(x) + rank)
  if rank == 1 then
    near(kept.module.running_mean, part(x):mean(1) * 0.19 + 0.1, 1e-5,
      "a buffer of its own")
  end
end

-- Who reads a buffer in a forward sees that of the first rank, whenever it reads it.
function CHECKS.buffers_of_the_first_rank()
  local x = wave(SAMPLES, 8):float()
  local first = dm.full({8}, 5.0)
  local function update(y) return first * 0.9 + y:mean(1) * 0.1 end
  -- ddp of a model whose buffer is another one on each rank
  local function wrap(model, b)
    local ddp = DDP(model)
    b:copy_(first + rank)
    return ddp
  end

  local norm = nn.BatchNorm1d(8)
  wrap(norm, norm.running_mean)(part(x))
  near(norm.running_mean, update(part(x)), 1e-6, "a norm alone")

  local linear
  linear, norm = nn.Linear(8, 8), nn.BatchNorm1d(8, {momentum = "cumulative"})
  local ddp = wrap(nn.Sequential{linear, norm, nn.ReLU()}, norm.running_mean)
  norm.num_batches_tracked:fill_(9 + rank)
  ddp(part(x)):sum():backward()
  near(norm.running_mean, update(linear(part(x)):detach()), 1e-6, "a norm behind a layer")
  check(norm.num_batches_tracked:item() == 10, "a count of another rank")

  -- a module's own buffer, and one that no contiguous memory has
  local Own = nn.Module:extend "Own"
  function Own:init()
    self.weight, self.norm = nn.Parameter(dm.ones(8)), nn.BatchNorm1d(8)
    self:register_buffer("own", dm.zeros(8))
    self:register_buffer("turned", dm.zeros(8, 8):t())
  end
  function Own:forward(v) return self.norm(v * self.weight + self.own + self.turned[3]) end
  local own = Own()
  ddp = wrap(own, own.own)
  own.turned:copy_(dm.arange(64):reshape(8, 8) + 100 * rank)
  ddp(part(x))
  near(own.own, first, 0, "a buffer of its own")
  near(own.turned, dm.arange(64):reshape(8, 8):float(), 0, "a buffer that is turned")
  near(own.norm.running_mean, (part(x):mean(1) + first + dm.arange(8) + 16) * 0.1, 1e-5,
    "a norm behind a buffer")

  -- a hook reads it before the norm
  norm = nn.BatchNorm1d(8)
  ddp = wrap(nn.Sequential{nn.Linear(8, 8), norm}, norm.running_mean)
  local seen
  norm:register_forward_pre_hook(function(m) seen = m.running_mean:clone() end)
  ddp(part(x))
  near(seen, first, 0, "what a hook sees")

  -- no norm is called; or the layer before it fails
  local Picky = nn.Module:extend "Picky"
  function Picky:init() self.weight, self.norm = nn.Parameter(dm.ones(8)), nn.BatchNorm1d(8) end
  function Picky:forward(v, what)
    if what == "fail" then error "on purpose" end
    return v * self.weight
  end
  for _, what in ipairs{"pass", "fail"} do
    local picky = Picky()
    ddp = wrap(picky, picky.norm.running_mean)
    check(pcall(ddp, part(x), what) == (what == "pass"), what)
    near(picky.norm.running_mean, first, 0, "a norm that is not called: " .. what)
  end
  norm = nn.BatchNorm1d(8)
  norm(part(x)) -- waits for nobody
end

function CHECKS.kinds_of_parameters()
  local Kinds = nn.Module:extend "Kinds"
  function Kinds:init()
    self.wide = nn.Parameter(dm.full({5}, 2.0, {dtype = "float64"}))
    self.narrow = nn.Parameter(dm.full({3, 4}, 2.0, {dtype = "bfloat16"}))
    self.single = nn.Parameter(dm.tensor(2.0))
    self.empty = nn.Parameter(dm.empty(0, 3))
    self.strided = nn.Parameter(wave(4, 6):float():t())
  end
  function Kinds:forward(by)
    return (self.wide:sum() + self.narrow:sum():double() + self.single:double()
      + self.empty:sum():double() + (self.strided * wave(6, 4):float()):sum():double()) * by
  end
  for _, wire in ipairs{"none", "bfloat16"} do
    local ddp = DDP(Kinds(), SMALL)
    ddp:register_comm_hook(wire)
    for _ = 1, 3 do
      ddp:zero_grad()
      ddp(rank + 1):backward()
      local mean = (n + 1) / 2
      for name, p in ddp.module:named_parameters() do
        local wanted = name == "strided" and wave(6, 4):float() * mean
          or dm.full(p.shape, mean, {dtype = p.dtype})
        near(p.grad, wanted, wire == "none" and 1e-6 or 1e-2, wire .. " " .. name)
        agreed(p.grad, name)
      end
    end
  end
end

function CHECKS.wires_of_16_bits()
  local x, y = batch()
  for _, wire in ipairs{"bfloat16", "float16"} do
    local model = mlp():float()
    local ddp, local_model = DDP(model, SMALL), model:copy()
    ddp:register_comm_hook(wire)
    for _ = 1, 2 do
      for _, m in ipairs{ddp, local_model} do
        m:zero_grad()
        mse(m(part(x):float()), part(y):float()):backward()
      end
      for i, p in ipairs(model:parameters()) do
        local sum
        for _, g in ipairs(dist.all_gather(local_model:parameters()[i].grad:to(wire))) do
          sum = sum and sum + g:float() or g:float()
        end
        local mean = (sum / n):to(wire):float()
        same(p.grad, mean, wire .. ": summed in float32, rounded once")
      end
    end
    ddp:register_comm_hook "none"
    ddp:zero_grad()
    mse(ddp(part(x):float()), part(y):float()):backward()
    local mean = dist.all_reduce(local_model[1].weight.grad:clone(), "avg")
    near(model[1].weight.grad, mean, 1e-6, "none again")
  end
end

function CHECKS.uneven_numbers_of_batches()
  local x, y = batch()
  for _, by_all in ipairs{true, false} do
    local model, alone = mlp(), mlp()
    local ddp = DDP(model, SMALL)
    local optimizer = optim.AdamW(ddp:parameters(), {lr = 0.05})
    local one = optim.AdamW(alone:parameters(), {lr = 0.05})
    -- rank r has 2 + 2 r batches; the last step is that of the last rank alone
    for step = 1, 2 * n do
      one:zero_grad()
      local active = 0
      for of = 0, n - 1 do active = active + (step <= 2 + 2 * of and 1 or 0) end
      for of = 0, n - 1 do
        if step <= 2 + 2 * of then
          (mse(alone(part(x, of) * step), part(y, of)) / (by_all and n or active)):backward()
        end
      end
      one:step()
    end
    local function loop()
      for step = 1, 2 + 2 * rank do
        optimizer:zero_grad()
        mse(ddp(part(x) * step), part(y)):backward()
        optimizer:step()
      end
    end
    if by_all then
      local _ <close> = ddp:join{states = {optimizer}}
      loop()
    else
      ddp:join(loop, {divide_by_initial_world_size = false, states = {optimizer}})
    end
    agree_all(model, "join")
    check(model[1].weight.grad == nil or rank == n - 1, "a gradient of the others is left")
    for i, p in ipairs(model:parameters()) do
      near(p, alone:parameters()[i], 1e-9, "join, parameter " .. i)
    end
    local momentum = optimizer.state[model[1].weight].exp_avg
    agreed(momentum, "the optimizer's state")
    -- and the loop of the next epoch is an ordinary one
    optimizer:zero_grad()
    mse(ddp(part(x)), part(y)):backward()
    optimizer:step()
    agree_all(model, "after join")
  end
end

-- Mixed precision: float16 regions, a GradScaler, clipping and accumulation; in some steps the loss
-- of one rank overflows.
function CHECKS.overflow_on_one_rank()
  local model = mlp():float()
  local ddp, x, y = DDP(model, SMALL), batch()
  x, y = part(x):float(), part(y):float()
  local optimizer = optim.AdamW(ddp:parameters(), {lr = 0.02})
  local scaler = amp.GradScaler{device = "cpu", init_scale = 1024, growth_interval = 3}
  local skipped, scales = {}, {}
  for step = 1, 12 do
    optimizer:zero_grad()
    for i = 1, 2 do
      local function pass()
        local loss = amp.autocast({device_type = "cpu", dtype = "float16"}, function()
          return mse(ddp(x):float(), y)
        end) / 2
        if step % 4 == 0 and i == step // 4 % 2 + 1 and rank == (step // 4) % n then
          loss = loss * 1e38 * 10
        end
        scaler:scale(loss):backward()
      end
      if i == 1 then ddp:no_sync(pass) else pass() end
    end
    if step % 3 > 0 then
      scaler:unscale_(optimizer)
      nn.utils.clip_grad_norm_(ddp:parameters(), 0.5)
    end
    scaler:step(optimizer)
    skipped[step] = scaler:skipped(optimizer) and 1 or 0
    scaler:update()
    scales[step] = scaler:get_scale()
    agree_all(model, "amp")
  end
  agreed(dm.tensor(scales), "scales")
  agreed(dm.tensor(skipped), "skips")
  same(dm.tensor(skipped), dm.tensor{0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1}, "skipped steps")
  check(scaler:stats().skipped == 3, "%d skips", scaler:stats().skipped)
  check(model[1].weight:isfinite():all():item(), "parameters are not finite")
  -- a gradient that only another rank has still carries the scale
  local branches = Branches()
  local split = DDP(branches)
  local sgd = optim.SGD(split:parameters(), {lr = 1})
  local before = branches.a.bias:clone()
  scaler:scale(split(x, rank == 0 and "a" or "b"):sum()):backward()
  scaler:unscale_(sgd)
  scaler:step(sgd)
  scaler:update()
  local whole = dist.broadcast(branches.head.weight:detach() * #x / n, 0)
  check((branches.a.bias - before):abs():max():item() > 0, "no step")
  check(whole:isfinite():all():item(), "not finite")
  agree_all(branches, "amp, branches")
end

function CHECKS.the_trainer()
  local x, y = batch()
  local model = mlp()
  local ddp = DDP(model, SMALL)
  local set = dm.data.TensorDataset(part(x), part(y))
  local trainer = dm.Trainer{model = ddp, loss = mse, accumulate = 2, verbose = false,
    optimizer = optim.SGD(ddp:parameters(), {lr = 0.1})}
  trainer:fit{train = dm.data.DataLoader(set, {batch_size = 1}), epochs = 2}
  agree_all(model, "Trainer")
  local steps = 2 * ((SAMPLES // n + 1) // 2)
  check(trainer.steps == steps, "%d steps", trainer.steps)
  check(n == 1 or select(2, ddp._reducer:counts()) == steps, "%d passes sent",
    select(2, ddp._reducer:counts()))
end

function CHECKS.a_group_of_some_ranks()
  if n < 3 then return end
  local group = dist.new_group{1, 2}
  if rank == 1 or rank == 2 then
    local model = mlp()
    local ddp = DDP(model, {process_group = group})
    local bias = model[5].bias
    for _ = 1, 2 do
      ddp:zero_grad()
      local loss = ddp(dm.ones(1, 8, {dtype = "float64"})):sum() * rank
      loss:backward()
      near(bias.grad, dm.tensor({1.5}, {dtype = "float64"}), 1e-12, "a group")
    end
  end
  dist.barrier()
end

function CHECKS.errors_and_after()
  local model = mlp()
  local ddp, x, y = DDP(model, SMALL), batch()
  local hook = model[1].weight:register_hook(function() error "a fault of the hook" end)
  local ok, why = pcall(function() mse(ddp(part(x)), part(y)):backward() end)
  check(not ok and tostring(why):find "a fault of the hook", "%s", why)
  hook:remove()
  ddp:zero_grad()
  local alone = mlp()
  mse(alone(x), y):backward()
  mse(ddp(part(x)), part(y)):backward()
  compare_grads(model, alone, "after an error")
  -- the sum of all ranks is not there yet when it is called; one rank has it
  hook = model[1].weight:register_post_accumulate_grad_hook(function() end)
  ok, why = pcall(function() mse(ddp(part(x)), part(y)):backward() end)
  check(n == 1 and ok or not ok and why:find "has not got the sum of theirs yet", "%s", why)
  hook:remove()
  ddp:zero_grad()
  mse(ddp(part(x)), part(y)):backward()
  compare_grads(model, alone, "after a hook that is refused")
  local made
  ok, why = pcall(function() ddp(part(x)):sum():backward{create_graph = true} end)
  check(n == 1 and ok or not ok and why:find "create_graph for a parameter whose gradient is",
    "%s", why)
  made = dm.autograd.grad(ddp(part(x)):sum(), model[1].weight, {create_graph = true})
  check(made.requires_grad, "autograd.grad has a history")
  ok, why = pcall(DDP, model)
  check(not ok and why:find "parameter '0.weight' belongs to another Distributed", "%s", why)
  ok, why = pcall(ddp.copy, ddp)
  check(not ok and why:find "hint: ddp.module:copy", "%s", why)
  ddp:float()
  ddp:zero_grad()
  ok, why = pcall(function() ddp(part(x):float()):sum():backward() end)
  check(n == 1 and ok or why:find "parameter is {1, 16} float32 on cpu, and was {1, 16} float64 on",
    "%s", why)
end

-- ---- random programs ----

-- A loss of some of the parameters, each as often as it comes; by the numbers of `random`.
local function random_loss(random, params, x)
  local h = x
  for _ = 1, random(1, 5) do
    local p, kind = params[random(1, #params)], random(1, 4)
    if kind == 1 then h = h:matmul(p):tanh()
    elseif kind == 2 then h = h + p[1]
    elseif kind == 3 then h = h * p:sin():mean() + h
    else
      h = nn.utils.checkpoint(function(v) return (v:matmul(p) + p[2]):tanh() end, h)
    end
  end
  return (h * h):mean()
end

-- What one rank does in a step, by numbers that depend on the program, the step and the rank alone:
-- a backward pass through a new graph, and perhaps through one of an earlier step.
local function random_step(program, step, of, params, kept)
  local state = program * 7919 + step * 104729 + of * 1299709
  local function random(low, high)
    state = (state * 6364136223846793005 + 1442695040888963407)
    return low + ((state >> 33) % (high - low + 1))
  end
  random(1, 2)
  local loss = random_loss(random, params, wave(3, 4) * (1 + of + 0.1 * step))
  local total = loss
  if kept[1] and random(1, 2) == 1 then total = total + kept[1] end
  local retain = random(1, 3) == 1
  if random(1, 4) == 1 then -- one that is walked later, or never
    kept[1] = random_loss(random, params, wave(3, 4) * 0.3)
  else
    kept[1] = retain and loss or nil
  end
  total:backward{retain_graph = retain}
end

-- The same for the copies of all ranks, and what the averages have to be.
local function simulated(copies, sends)
  if not sends then return end
  for k = 1, #copies[0] do
    local sum
    for of = 0, n - 1 do
      local g = copies[of][k].grad
      if g then sum = sum and sum + g or g:clone() end
    end
    for of = 0, n - 1 do copies[of][k].grad = sum and sum / n or nil end
  end
end

local function new_parameters(count)
  local list = {}
  for k = 1, count do list[k] = nn.Parameter(wave(4, 4) * (0.5 + 0.1 * k)) end
  return list
end

local function run_program(program)
  local count = program % 6 + 2
  local Holder = nn.Module:extend "Holder"
  local holder = Holder()
  local own = new_parameters(count)
  for k, p in ipairs(own) do holder["p" .. k] = p end
  local ddp = DDP(holder, {bucket_cap_mb = 0.0001 * (program % 4 + 1)})
  local copies, kept, own_kept = {}, {}, {}
  for of = 0, n - 1 do copies[of], kept[of] = new_parameters(count), {} end
  for step = 1, 5 do
    local sends = (program + step) % 3 > 0
    for of = 0, n - 1 do random_step(program, step, of, copies[of], kept[of]) end
    simulated(copies, sends)
    local function pass() random_step(program, step, rank, own, own_kept) end
    if sends then pass() else ddp:no_sync(pass) end
    for k, p in ipairs(own) do
      local g, wanted = p.grad, copies[rank][k].grad
      check((g == nil) == (wanted == nil), "program %d, step %d, parameter %d", program, step, k)
      if g then near(g, wanted, 1e-11, ("program %d, step %d: %d"):format(program, step, k)) end
    end
    if sends and (program + step) % 2 == 0 then
      ddp:zero_grad()
      for of = 0, n - 1 do
        for _, p in ipairs(copies[of]) do p.grad = nil end
      end
    end
  end
end

function CHECKS.random_programs()
  for program = 1, tonumber(os.getenv "DEMILUNE_PROGRAMS") or 40 do run_program(program) end
end

function CHECKS.models_that_differ()
  if n == 1 then return end
  local function fails(text, make)
    local ok, why = pcall(DDP, make())
    check(not ok and why:find(text, 1, true), "%s, wanted %s", why, text)
    check(why:find "^spec/distributed/parallel.lua:%d+: Distributed", "another line: %s", why)
  end
  fails("the ranks' modules differ: parameter '1.weight' is {4, 3} float32 on rank 0, {5, 3} "
    .. "float32 on rank 1", function()
    return nn.Sequential{nn.Linear(2, 3), nn.Linear(3, rank == 1 and 5 or 4)}
  end)
  fails("parameter 'weight' is {3, 2} float32 on rank 0, {3, 2} float64 on rank 1", function()
    return rank == 1 and nn.Linear(2, 3):double() or nn.Linear(2, 3)
  end)
  fails("parameter '1.bias' is on rank 0 only", function()
    return nn.Sequential{nn.Linear(2, 3), nn.Linear(3, 3, {bias = rank ~= 1})}
  end)
  fails("number 1 is parameter 'weight' on rank 0, parameter '0.weight' on rank 1", function()
    return rank == 1 and nn.Sequential{nn.Linear(2, 3)} or nn.Linear(2, 3)
  end)
  local shards = rank == 1 and n == 2 and 2 or nil
  local ok, why = pcall(DDP, nn.Linear(2, 3), {shards = shards})
  check(n ~= 2 or not ok and why:find("shards is none on rank 0, 2 on rank 1", 1, true), "%s", why)
  fails("float32 on rank 0, {3, 2} float32, which requires no gradient on rank 1", function()
    local model = nn.Linear(2, 3)
    model.weight.requires_grad = rank ~= 1
    return model
  end)
end

function CHECKS.replicas_that_part()
  if n == 1 then return end
  local model = mlp()
  local ddp = DDP(model, {check_every = 2})
  local x, y = batch()
  local function pass() mse(ddp(part(x)), part(y)):backward() end
  pass()
  pass()
  if rank == 1 then model[3].bias.data:add_(1e-9) end
  pass()
  local ok, why = pcall(pass)
  check(not ok and why:find("replicas differ from those of rank 0 after 4 backward passes: "
    .. "'2.bias' on rank 1; hint", 1, true), "%s", why)
end

-- A rank that has fewer batches than the others, and no join(), calls something else.
local function too_few_batches()
  rank, n = dist.get_rank(), dist.get_world_size()
  local ddp = DDP(mlp())
  local x, y = batch()
  local function pass() mse(ddp(part(x)), part(y)):backward() end
  pass()
  local ok, why
  if rank == 1 then ok, why = pcall(dist.barrier) else ok, why = pcall(pass) end
  check(not ok and why:find("ranks do not agree: rank 0 gives DistributedDataParallel bucket 1 "
    .. "of 2: 4.bias .. 0.weight, 440 float64, pass 2, 6 parameters, layout ", 1, true)
    and why:find("rank 1 gives barrier (spec/distributed/parallel.lua:", 1, true), "%s", why)
end

local function run_checks()
  rank, n = dist.get_rank(), dist.get_world_size()
  local names = {}
  for name in pairs(CHECKS) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    CHECKS[name]()
    if n > 1 then dist.barrier() end
  end
  return checks
end

if ... == "spec.distributed.parallel" then return run_checks end

dist.init_process_group{timeout = 30}
if arg[1] == "too few batches" then
  too_few_batches()
  print "told"
  io.stdout:flush()
  os.execute "sleep 1" -- mpirun ends the others with the first one that has not ended MPI
  os.exit(0, true)     -- a second bucket waits for good
end
io.write(("rank %d of %d: %d checks\n"):format(dist.get_rank(), dist.get_world_size(),
  run_checks()))
dist.destroy_process_group()
