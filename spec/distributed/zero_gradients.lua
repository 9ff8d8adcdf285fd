-- The second stage of optim.ZeroRedundancyOptimizer on any number of ranks: the same model is also
-- trained with whole gradients, by DistributedDataParallel and the optimizer itself, and both are
-- compared bit by bit. `mpirun -n 3 lua5.4 spec/distributed/zero_gradients.lua` runs it by itself.

local dm = require "demilune"
local common = require "spec.distributed.zero_common"
local nn, optim, amp, dist = dm.nn, dm.optim, dm.amp, dm.distributed
local DDP = nn.parallel.DistributedDataParallel
local check, same, with, refuses = common.check, common.same, common.with, common.refuses

local rank, n

local CHECKS = {}

-- ---- models whose gradients are given ----

local SHAPES, MATRICES = common.SHAPES, common.MATRICES
local SMALL = {bucket_cap_mb = 0.0001} -- several buckets

-- The loss of gradients {g or false, ...} has these gradients.
local Given = nn.Module:extend "Given"

function Given:init(list)
  self.size = #list
  for i, p in ipairs(list) do self["p" .. i] = nn.Parameter(p:detach():clone()) end
end

function Given:list()
  local list = {}
  for i = 1, self.size do list[i] = self["p" .. i] end
  return list
end

function Given:forward(gradients)
  local total = dm.zeros{}
  for i, p in ipairs(self:list()) do
    if gradients[i] then total = total + (p * gradients[i]):sum():float() end
  end
  return total
end

local function given(shapes, dtype, o)
  local model = Given(common.parameters(shapes, dtype))
  return DDP(model, with({}, o or SMALL)), model:list()
end

-- This rank's gradients of a step: some parameters have none on some ranks, one has none on all.
local function gradients_of(params, step, is_infinite)
  dm.manual_seed(1000 * step + rank)
  local list = {}
  for i, p in ipairs(params) do
    local g = dm.randn(p.shape)
    if is_infinite and i == 2 and rank == n - 1 then g:view(-1)[1] = math.huge end
    local is_unused = (i + step) % 5 == 0 or i > 1 and (i + step + rank) % 4 == 0
    list[i] = not is_unused and g:to(p.dtype)
  end
  return list
end

-- An optimizer with the gradients divided.
local function sharded(class)
  return function(params, o)
    return optim.ZeroRedundancyOptimizer(params, with({optimizer_class = class, stage = 2}, o))
  end
end

-- Raises unless the shares are parts of the whole gradients.
local function compare_gradients(zero, whole, params, at)
  if n == 1 then return end
  local number = {}
  for i, p in ipairs(params) do
    number[p] = i
    check(p.grad == nil, "%s: parameter %d has a gradient", at, i)
  end
  for _, piece in ipairs(zero.pieces) do
    local i, own = number[piece.param], piece.tensor.grad
    local grad = whole[i].grad
    check((grad == nil) == (own == nil), "%s: gradient of %d is %s for %s", at, i, tostring(own),
      tostring(grad))
    if grad then
      same(grad:reshape(-1):narrow(1, piece.from + 1, piece.n), own:reshape(-1),
        ("%s: gradient of %d"):format(at, i))
    end
  end
end

local function compare(class, o, shapes, dtype)
  local name = ("%s %s"):format(class.class, dtype)
  dm.manual_seed(5)
  local a, whole = given(shapes, dtype)
  dm.manual_seed(5)
  local b, params = given(shapes, dtype)
  local plain = class(common.groups_of(whole), with({}, o))
  local zero = sharded(class)(common.groups_of(params), o)
  local function steps(first, last)
    for step = first, last do
      local is_infinite = step % 3 == 2
      local g = gradients_of(whole, step, is_infinite)
      for _, model in ipairs{a, b} do model(g):backward() end
      compare_gradients(zero, whole, params, name)
      for _, optimizer in ipairs{plain, zero} do
        optimizer.param_groups[1].lr = 0.01 * step
        optimizer:step(nil, dm.tensor(is_infinite and rank == n - 1 and 1.0 or 0.0))
        optimizer:zero_grad()
      end
      if is_infinite then break end
      for i, p in ipairs(whole) do same(p, params[i], ("%s, step %d, %d"):format(name, step, i)) end
    end
  end
  steps(1, 1)
  steps(3, 4)
  local saved = common.saved_of(zero)
  if saved then same(plain:state_dict(), saved, name .. ": state") end
  -- the state of one process is one for these ranks
  dm.manual_seed(5)
  b, params = given(shapes, dtype)
  for i, p in ipairs(whole) do params[i]:detach():copy_(p:detach()) end
  zero = sharded(class)(common.groups_of(params), o)
  zero:load_state_dict(plain:state_dict())
  steps(6, 7)
  saved = common.saved_of(zero)
  if saved then same(plain:state_dict(), saved, name .. ": state, later") end
end

function CHECKS.classes_by_element()
  local methods = require "demilune.optim.methods"
  for _, name in ipairs(common.sorted(methods)) do
    compare(methods[name], common.OPTIONS[name] or {}, SHAPES, "float32")
  end
  for _, name in ipairs{"Adam", "SGD"} do
    local o = common.OPTIONS[name]
    compare(methods[name], with({master_weights = true}, o), SHAPES, "bfloat16")
    compare(methods[name], o, SHAPES, "float16")
    compare(methods[name], o, SHAPES, "float64")
  end
end

function CHECKS.classes_by_parameter()
  for _, name in ipairs{"Adafactor", "LAMB", "Muon"} do
    compare(optim[name], {}, MATRICES, "float32")
    compare(optim[name], {master_weights = true}, MATRICES, "bfloat16")
  end
end

-- ---- a training ----

-- Trains with all that a loop has but clipping -> losses, parameters, the scaler's state.
local function train(new_optimizers, dtype, o)
  local model = common.net()
  if o.is_low then model:to(dtype) end
  local ddp = DDP(model, SMALL)
  if o.hook then ddp:register_comm_hook(o.hook) end
  local optimizers = new_optimizers(model, o)
  local scaler = amp.GradScaler{device = "cpu", enabled = dtype == "float16",
    init_scale = 2.0 ^ 10, growth_interval = 3}
  dm.manual_seed(11 + rank)
  local losses = {}
  for step = 1, 12 do
    local x, y = dm.randn(6, 6), dm.randint(3, {6})
    if dtype == "float16" and rank == n - 1 and step == 6 then x[1][1] = math.huge end
    local loss
    do
      local _ <close> = amp.autocast{device_type = "cpu", dtype = dtype ~= "float32" and dtype
        or "bfloat16", enabled = dtype ~= "float32" and not o.is_low}
      loss = nn.functional.cross_entropy(ddp(o.is_low and x:to(dtype) or x):float(), y)
    end
    amp.step{loss = loss, optimizer = optimizers, scaler = scaler, accumulate = 2}
    losses[step] = tostring(loss:item())
  end
  return {losses, model:parameters(), scaler:state_dict()}, scaler, optimizers
end

local function one(new)
  return function(model, o)
    return {new(common.decayed(model), with({lr = 0.01}, o.options or {}))}
  end
end

-- Muon for the matrices, Adam for the others.
local function two(muon, adam)
  return function(model)
    local groups = common.decayed(model)
    return {muon(groups[1].params, {lr = 0.01}), adam(groups[2].params, {lr = 0.01})}
  end
end

local function compare_training(plain, zero, dtype, o)
  local wanted, scaler, alive = train(plain, dtype, o)
  same(wanted, (train(zero, dtype, o)), "training in " .. dtype)
  if dtype ~= "float16" then return end
  local skipped = #alive > 0 and scaler:stats().skipped
  check(skipped >= 1 and skipped < 6, "%d steps were skipped", skipped)
end

function CHECKS.training()
  for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
    compare_training(one(optim.AdamW), one(sharded(optim.AdamW)), dtype, {})
    compare_training(two(optim.Muon, optim.Adam), two(sharded(optim.Muon), sharded(optim.Adam)),
      dtype, {})
  end
  compare_training(one(optim.SGD), one(sharded(optim.SGD)), "float16", {is_low = true,
    options = {master_weights = true, momentum = 0.9}})
  compare_training(one(optim.AdamW), one(sharded(optim.AdamW)), "float32", {hook = "bfloat16"})
end

-- A Trainer whose checkpoint holds the state of all ranks, and goes on with any stage.
function CHECKS.trainer()
  local path = dist.broadcast_object(os.tmpname(), 0)
  dm.manual_seed(2)
  local x = dm.randn(24, 6)
  local set = dm.data.TensorDataset(x, x:select(2, 1):gt(0):to "int64" + 1)
  local function fit(new, epochs, more)
    local model = DDP(common.net())
    local trainer = dm.Trainer(with({model = model, loss = nn.CrossEntropyLoss(), accumulate = 2,
      optimizer = new(common.decayed(model), {lr = 0.01}), amp = "float16", verbose = false}, more))
    trainer:fit{train = dm.data.DataLoader(set, {batch_size = 4,
      sampler = dm.data.DistributedSampler(set, {seed = 2})}), epochs = epochs}
    return model:parameters()
  end
  local wanted = fit(optim.AdamW, 3, {})
  same(wanted, fit(sharded(optim.AdamW), 3, {}), "Trainer")
  fit(sharded(optim.AdamW), 2, {checkpoint = path})
  same(wanted, fit(sharded(optim.AdamW), 3, {resume = path}), "resumed Trainer")
  same(wanted, fit(optim.AdamW, 3, {resume = path}), "Trainer resumed without shares")
  dist.barrier()
  if rank == 0 then os.remove(path) end
end

-- ---- clipping ----

-- The norm is that of all gradients, up to the rounding of its sum; clipped by the same number, the
-- gradients have the same bits.
function CHECKS.clipping()
  for _, order in ipairs{2.0, "inf", 1.0, 0.0} do
    for _, dtype in ipairs{"float32", "float64", "bfloat16"} do
      dm.manual_seed(5)
      local a, whole = given(SHAPES, dtype)
      dm.manual_seed(5)
      local b, params = given(SHAPES, dtype)
      local zero = sharded(optim.SGD)(params, {lr = 1})
      local g = gradients_of(whole, 1, false)
      for _, model in ipairs{a, b} do model(g):backward() end
      local wanted = nn.utils.clip_grad_norm_(whole, 1e9, {norm_type = order})
      local norm = nn.utils.clip_grad_norm_(params, 0.5, {norm_type = order})
      check(norm.dtype == wanted.dtype, "norm is %s for %s", norm.dtype, wanted.dtype)
      local gap = math.abs(norm:item() / wanted:item() - 1)
      local is_exact = order == "inf" or order == 0.0
      check(gap <= (is_exact and 0 or 2e-6), "norm of order %s: %g apart", tostring(order), gap)
      nn.utils.clip_grads_with_norm_(whole, 0.5, norm)
      compare_gradients(zero, whole, params, "clipped by norm")
      for _, list in ipairs{whole, params} do nn.utils.clip_grad_value_(list, 0.01) end
      compare_gradients(zero, whole, params, "clipped by value")
    end
  end
end

-- amp.step clips after it has unscaled; the norm is the same on all ranks.
function CHECKS.clipping_in_a_step()
  local function norms_of(new)
    local ddp = DDP(common.net(), SMALL)
    local optimizer, scaler = new(ddp:parameters(), {lr = 0.1}), amp.GradScaler{init_scale = 256}
    local norms = {}
    for step = 1, 4 do
      dm.manual_seed(10 * step + rank)
      local _, norm = amp.step{loss = ddp(dm.randn(5, 6)):square():mean(), optimizer = optimizer,
        scaler = scaler, max_norm = 0.1}
      norms[step] = norm:item()
    end
    return norms, ddp:parameters()
  end
  local wanted, whole = norms_of(optim.SGD)
  local norms, params = norms_of(sharded(optim.SGD))
  for i, norm in ipairs(norms) do
    check(math.abs(norm / wanted[i] - 1) < 1e-5, "norm of step %d: %g for %g", i, norm, wanted[i])
  end
  for i, p in ipairs(params) do check(p:allclose(whole[i], {atol = 1e-5}), "parameter %d", i) end
  same(dist.broadcast_object(norms, 0), norms, "norms")
end

-- ---- accumulation ----

function CHECKS.accumulation()
  dm.manual_seed(5)
  local a, whole = given(SHAPES, "float32")
  dm.manual_seed(5)
  local b, params = given(SHAPES, "float32")
  local zero = sharded(optim.SGD)(params, {lr = 1})
  local function pass(model, step) model(gradients_of(whole, step, false)):backward() end
  for _, model in ipairs{a, b} do
    model:no_sync(function()
      pass(model, 1)
      pass(model, 2)
    end)
    pass(model, 3)
  end
  compare_gradients(zero, whole, params, "no_sync")
  -- a further pass adds its average, rounded once more
  local before = {}
  for i, piece in ipairs(zero.pieces) do
    before[i] = piece.tensor.grad and piece.tensor.grad:clone() or 0
  end
  for _, p in ipairs(whole) do p.grad = nil end
  for _, model in ipairs{a, b} do pass(model, 4) end
  for i, piece in ipairs(n > 1 and zero.pieces or {}) do
    for k, p in ipairs(params) do
      if p == piece.param and whole[k].grad then
        same(before[i] + whole[k].grad:reshape(-1):narrow(1, piece.from + 1, piece.n)
          :reshape(piece.tensor.shape), piece.tensor.grad, "a further pass")
      end
    end
  end
  -- what drops the parameters' gradients drops the shares
  for _, owner in ipairs{b, b.module, zero} do
    owner:zero_grad()
    check(not zero:has_gradients(), "a share of nothing")
    for _, piece in ipairs(zero.pieces) do check(piece.tensor.grad == nil, "a share") end
    for _, p in ipairs(whole) do p.grad = nil end
    for _, model in ipairs{a, b} do pass(model, 5) end
    compare_gradients(zero, whole, params, "after zero_grad")
  end
  -- set_to_none = false leaves zeros: an optimizer with a momentum moves such parameters
  for step, owner in ipairs{b, zero} do
    owner:zero_grad{set_to_none = false}
    a:zero_grad{set_to_none = false}
    compare_gradients(zero, whole, params, "zeros")
    check(n == 1 or zero:has_gradients(), "zeros are gradients")
    for _, model in ipairs{a, b} do pass(model, step) end
    compare_gradients(zero, whole, params, "after zeros")
  end
end

-- A rank whose share is empty steps with the others, and skips with them.
function CHECKS.fewer_elements_than_ranks()
  for _, value in ipairs{1.0, math.huge} do
    local ddp, params = given({{1}}, "float32")
    params[1]:detach():zero_()
    local zero = sharded(optim.SGD)(params, {lr = 1})
    local scaler = amp.GradScaler{init_scale = 4}
    for _ = 1, 2 do
      amp.step{loss = ddp{dm.full({1}, value)}, optimizer = zero, scaler = scaler}
    end
    check(params[1]:item() == (value == 1 and -2 or 0), "parameter is %g", params[1]:item())
    check(scaler:get_scale() == (value == 1 and 4 or 1), "scale is %g", scaler:get_scale())
    refuses("no parameter of this optimizer has a gradient", function() scaler:step(zero) end)
  end
end

-- ---- bytes ----

local function wide() return nn.Sequential{nn.Linear(150, 301), nn.Tanh(), nn.Linear(301, 77)} end

-- 1 / n of gradients and state and 1 %, counted in elements and by the allocator.
function CHECKS.bytes_of_memory()
  local module = wide()
  local whole = 4 * nn.utils.parameters_to_vector(module:parameters()):numel()
  local model = DDP(module, {bucket_cap_mb = 0.05})
  local zero = sharded(optim.Adam)(model:parameters(), {})
  local function pass()
    model(dm.ones(2, 150)):sum():backward()
    collectgarbage()
  end
  pass()
  zero:step()
  zero:zero_grad()
  collectgarbage()
  local before = dm.memory_allocated()
  pass()
  local grown, own = dm.memory_allocated() - before, 0
  for _, piece in ipairs(zero.pieces) do own = own + 4 * piece.tensor.grad:numel() end
  local limit = whole * (1 / n + 0.01)
  check(n == 1 or own <= limit, "%d bytes of gradients, of %d", own, whole)
  check(grown <= limit, "%d bytes of memory more, for %d of gradients", grown, whole)
  local state = common.state_bytes(zero)
  check(state <= 2 * limit, "%d bytes of state, of %d", state, 2 * whole)
end

-- Bytes that a step sends: a scattered sum and a gathered parameter, each (n - 1) / n of the model;
-- the first stage sends a whole sum, which is twice that, and the gathered parameters.
function CHECKS.bytes_of_messages()
  local function sent(stage, class)
    local model = DDP(wide(), {bucket_cap_mb = 0.05})
    local zero = optim.ZeroRedundancyOptimizer(model:parameters(), {optimizer_class = class,
      stage = stage, lr = 0.01})
    local before
    for _ = 1, 3 do -- the buckets may be made anew after the first one
      before = dist.stats().bytes_sent
      model(dm.ones(2, 150)):sum():backward()
      zero:step()
      zero:zero_grad()
    end
    return dist.stats().bytes_sent - before, model
  end
  local first, model = sent(1, optim.Adam)
  local whole = 4 * nn.utils.parameters_to_vector(model:parameters()):numel()
  local second = sent(2, optim.Adam)
  check(second <= first, "%d bytes for %d", second, first)
  check(second <= 2 * whole * (n - 1) / n * 1.01 + 1000, "%d bytes of %d", second, whole)
  check(sent(2, optim.LAMB) <= sent(1, optim.LAMB), "whole parameters send more")
end

-- ---- the rest ----

-- What n ranks have saved, fewer load with the other stage, and the other way round.
function CHECKS.other_numbers_of_ranks()
  local path = dist.broadcast_object(os.tmpname(), 0)
  local function made(new, group)
    local model = common.net()
    return DDP(model, {bucket_cap_mb = 0.0001, process_group = group}),
      new(model:parameters(), {lr = 0.1, process_group = group})
  end
  local function step(model, optimizer, seed)
    dm.manual_seed(seed) -- all ranks have the same batch: the mean is what one rank has
    model(dm.randn(4, 6)):square():mean():backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  local a, zero = made(sharded(optim.Adam))
  step(a, zero, 1)
  assert(dist.save(path, {model = a, optimizer = zero}))
  step(a, zero, 2)
  local alone = common.net()
  local plain = optim.Adam(alone:parameters(), {lr = 0.1})
  local saved = assert(dm.load(path))
  alone:load_state_dict(saved.model)
  plain:load_state_dict(saved.optimizer)
  step(alone, plain, 2)
  for i, p in ipairs(alone:parameters()) do
    check(p:allclose(a:parameters()[i], {rtol = 1e-4, atol = 1e-6}), "one rank, parameter %d", i)
  end
  local b, again = made(sharded(optim.Adam))
  assert(dist.load(path, {model = b, optimizer = again}))
  step(b, again, 2)
  same(a:parameters(), b:parameters(), "loaded")
  dist.barrier()
  if rank == 0 then os.remove(path) end
end

-- Frozen parameters, a group that is added, and data that are exchanged.
function CHECKS.groups_and_data()
  local function run(new)
    dm.manual_seed(5)
    local model, list = given({{5}, {9}, {4, 3}}, "float32")
    local frozen = dm.ones(6)
    local optimizer = new({list[1], frozen}, {lr = 0.5, momentum = 0.5})
    local function step(number)
      model(gradients_of(list, number, false)):backward()
      optimizer:step()
      optimizer:zero_grad()
      model:zero_grad()
    end
    step(1)
    optimizer:add_param_group{params = {list[2], list[3]}, lr = 2}
    step(2)
    list[2].data = list[2].data:clone() -- other memory, before the pass and behind it
    step(3)
    model(gradients_of(list, 6, false)):backward()
    list[3].data = list[3].data:clone()
    optimizer:step()
    list[4] = frozen
    return list, optimizer
  end
  local whole, params, zero = run(optim.SGD), run(sharded(optim.SGD))
  same(whole, params, "groups")
  check(n == 1 or tostring(zero):find("1 / " .. n .. " of the state and of the gradients", 1, true),
    "its text is %s", tostring(zero))
end

-- A pass that fails, on all ranks, for data of another size: the next one is as if it had not been.
function CHECKS.after_a_failure()
  local sizes = {{5}, {9}, {4, 3}}
  dm.manual_seed(5)
  local a, whole = given(sizes, "float32")
  dm.manual_seed(5)
  local b, params = given(sizes, "float32")
  local zero = sharded(optim.SGD)(params, {lr = 1})
  local data = params[1].data
  params[1].data = dm.ones(6)
  if n > 1 then
    refuses("parameter 'p1' were exchanged for {6} float32, which do not fit", function()
      b{dm.ones(6), dm.ones(9), dm.ones(4, 3)}:backward()
    end)
  end
  params[1].data = data
  b:zero_grad()
  local g = gradients_of(whole, 6, false)
  for _, model in ipairs{a, b} do model(g):backward() end
  compare_gradients(zero, whole, params, "after a failure")
end

function CHECKS.refusals()
  local new, name = sharded(optim.SGD), "ZeroRedundancyOptimizer: "
  for _, text in ipairs{"zero_gradients.lua:", name .. "stage is 3, wanted 1 (the"} do
    refuses(text, function()
      optim.ZeroRedundancyOptimizer({dm.zeros(2)}, {optimizer_class = optim.SGD, stage = 3})
    end)
  end
  refuses(name .. "stage 2, and parameter 2 of group 1 belongs to no DistributedDataParallel, "
    .. "which would average its gradient; hint: model = nn.parallel.", function()
    new({dm.zeros(2), dm.zeros(3, {requires_grad = true})}, {})
  end)
  local ddp, params = given({{3}, {4}}, "float32")
  local zero = new({params[1]}, {lr = 1})
  refuses("add_param_group: stage 2, and parameter 1 of group 2 belongs to no", function()
    zero:add_param_group{params = {dm.zeros(3, {requires_grad = true})}}
  end)
  check(#zero.param_groups == 1, "a group that was refused")
  if n & (n - 1) == 0 then
    local shards = DDP(nn.Linear(2, 1), {shards = n})
    refuses(("is of a model with %d shards, whose gradients stay whole"):format(n), function()
      new(shards:parameters(), {})
    end)
  end
  if n == 1 then return end
  refuses("belongs to another optimizer of stage 2 already", function()
    new(params, {})
  end)
  refuses("join: the gradients are shared out by ZeroRedundancyOptimizer", function()
    ddp:join()
  end)
  local others = {}
  for i = 1, n - 1 do others[i] = i end
  local fewer = dist.new_group(others)
  if fewer.is_member then
    refuses(name .. "stage 2, and parameter 1 of group 1 is averaged over the ranks {0, ",
      function() new({params[2]}, {process_group = fewer}) end)
  else
    refuses("rank 0 is no member of this group", function()
      new({params[2]}, {process_group = fewer})
    end)
  end
  local before = params[1]:detach():clone()
  ddp:no_sync(function() ddp{dm.ones(3), dm.ones(4)}:backward() end)
  refuses("step: a gradient of shape {3} was not averaged over the ranks, so that none has its "
    .. "share; hint: the last backward() before a step stands outside of no_sync", function()
    zero:step()
  end)
  same(before, params[1]:detach(), "a step that was refused")
  local bent = DDP(nn.Linear(2, 3))
  bent.module.weight.data = dm.zeros(2, 3):t()
  refuses("parameter 2 of the group is not contiguous", function()
    new({bent.module.bias, bent.module.weight}, {})
  end)
  bent(dm.ones(1, 2)):sum():backward()
  check(bent.module.bias.grad ~= nil, "a DistributedDataParallel that was refused shares out")
end

-- Behind destroy_process_group.
local function after_the_end(ddp, zero)
  local before = ddp.module.weight:detach():clone()
  refuses("step: there is no process group any more", function() zero:step() end)
  refuses("the process group has ended", function() ddp(dm.ones(1, 4)):sum():backward() end)
  same(before, ddp.module.weight:detach(), "after the end")
end

local function run_checks()
  rank, n = dist.get_rank(), dist.get_world_size()
  return common.run(CHECKS)
end

if ... == "spec.distributed.zero_gradients" then return run_checks end
common.main(run_checks, function()
  local ddp = DDP(nn.Linear(4, 5))
  local zero = sharded(optim.SGD)(ddp:parameters(), {lr = 1})
  ddp(dm.ones(1, 4)):sum():backward()
  return function() after_the_end(ddp, zero) end
end)
