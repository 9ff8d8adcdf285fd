-- nn.parallel.LocalSGD on any number of ranks, against a loop in one process that keeps the models
-- of all ranks. `mpirun -n 3 lua5.4 spec/distributed/local_sgd.lua` runs it by itself.

local core = require "demilune.core"
local dm = require "demilune"
local nn, optim, amp, data, dist = dm.nn, dm.optim, dm.amp, dm.data, dm.distributed
local LocalSGD, DDP = nn.parallel.LocalSGD, nn.parallel.DistributedDataParallel
local mse = nn.functional.mse_loss

local rank, n
local checks = 0

local function check(ok, what, ...)
  checks = checks + 1
  if not ok then error(("rank %d of %d: "):format(rank, n) .. what:format(...), 2) end
end

local function near(a, b, tolerance, what)
  local distance = (a:detach() - b:detach()):abs():amax():item()
  check(distance <= tolerance, "%s: %g apart", what, distance)
end

local function fails(text, f, ...)
  local ok, why = pcall(f, ...)
  check(not ok and tostring(why):find(text, 1, true), "%s, wanted %s", tostring(why), text)
end

-- Whether all ranks have the same bits.
local function is_common(tensors)
  local all = dist.all_gather(core._digests(tensors))
  for i = 2, n do
    if not all[i]:equal(all[1]) then return false end
  end
  return true
end

local function mlp(dtype)
  dm.manual_seed(3)
  return nn.Sequential{nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)}:to(dtype or "float64")
end

-- What rank `of` learns from at a step.
local function batch(step, of, dtype)
  local x = (dm.arange(20, {dtype = "float64"}) * (step + 0.7 * of + 1)):sin():reshape(4, 5)
  return x:to(dtype or "float64"), x:sum(2, {keepdim = true}):cos():to(dtype or "float64")
end

local function sgd(model)
  return optim.SGD(model:parameters(), {lr = 0.2, momentum = 0.5})
end

local function outer_sgd(model)
  return optim.SGD(model:parameters(), {lr = 0.7, momentum = 0.9, nesterov = true})
end

-- One step of a rank's model.
local function step_of(model, optimizer, step, of, dtype)
  local x, y = batch(step, of, dtype)
  optimizer:zero_grad()
  mse(model(x), y):backward()
  optimizer:step()
end

-- ---- the loop that keeps n models ----

-- o: {every =, warmup =, outer = whether there is one, steps =, now_at = a step or nil} -> the n
-- models, written from the papers' text.
local function simulated(o)
  local models, optimizers, theta, speed = {}, {}, {}, {}
  for of = 1, n do
    models[of] = mlp()
    optimizers[of] = sgd(models[of])
  end
  local function note()
    for k, p in ipairs(models[1]:parameters()) do theta[k] = p:detach():clone() end
  end
  local function mean(k)
    local sum = models[1]:parameters()[k]:detach():clone()
    for of = 2, n do sum = sum + models[of]:parameters()[k]:detach() end
    return sum / n
  end
  local function meet()
    for k = 1, #theta do
      local value = mean(k)
      if o.outer then
        local g = theta[k] - value
        speed[k] = speed[k] and speed[k] * 0.9 + g or g:clone()
        value = theta[k] - 0.7 * (g + 0.9 * speed[k])
      end
      for of = 1, n do models[of]:parameters()[k].data:copy_(value) end
    end
    note()
  end
  note()
  local since = 0
  for step = 1, o.steps do
    for of = 1, n do
      local x, y = batch(step, of - 1)
      optimizers[of]:zero_grad()
      mse(models[of](x), y):backward()
    end
    if step <= o.warmup then
      for k = 1, #theta do
        local sum = models[1]:parameters()[k].grad:clone()
        for of = 2, n do sum = sum + models[of]:parameters()[k].grad end
        for of = 1, n do models[of]:parameters()[k].grad = sum / n end
      end
    end
    for of = 1, n do optimizers[of]:step() end
    if step <= o.warmup then note() else since = since + 1 end
    if since == o.every or since > 0 and step == o.now_at then
      meet()
      since = 0
    end
  end
  return models
end

local CHECKS = {}

function CHECKS.a_plain_loop_with_n_models()
  for _, o in ipairs{{every = 1, warmup = 0}, {every = 3, warmup = 0}, {every = 2, warmup = 3},
    {every = 4, warmup = 1, now_at = 3}} do
    for _, outer in ipairs{false, true} do
      o.outer, o.steps = outer, 7
      local wanted = simulated(o)[rank + 1]
      local model = mlp()
      local optimizer = sgd(model)
      local shared = LocalSGD(model, {every = o.every, warmup = o.warmup,
        outer = outer and outer_sgd(model) or nil})
      for step = 1, o.steps do
        step_of(shared, optimizer, step, rank)
        local told = shared:average_parameters()
        if step == o.now_at then told = shared:average_parameters{now = true} end
        if told then check(is_common(model:parameters()), "step %d is said to be common", step) end
        check(told or n == 1 or not is_common(model:parameters()), "step %d is common", step)
      end
      for k, p in ipairs(model:parameters()) do
        near(p, wanted:parameters()[k], 1e-12, ("every %d: parameter %d"):format(o.every, k))
      end
    end
  end
end

-- Bytes that 12 steps send.
local function bytes_of(make)
  local model = nn.Sequential{nn.Linear(60, 80), nn.Linear(80, 40)}
  local shared = make(model)
  local optimizer = sgd(model)
  local before = dist.stats().bytes_sent
  for step = 1, 12 do
    optimizer:zero_grad()
    shared(dm.ones(2, 60) * (step + rank)):square():mean():backward()
    optimizer:step()
    if shared.average_parameters then shared:average_parameters() end
  end
  return dist.stats().bytes_sent - before
end

function CHECKS.bytes()
  local function about(bytes, wanted, what)
    check(math.abs(bytes - wanted) <= 0.02 * wanted, "%s: %d bytes, wanted %d", what, bytes, wanted)
  end
  local of_ddp = bytes_of(function(model) return DDP(model, {check_every = 0}) end)
  local function of_local(o)
    return bytes_of(function(model)
      if o.outer then o.outer = outer_sgd(model) end
      return LocalSGD(model, o)
    end)
  end
  local every_4 = of_local{every = 4}
  about(every_4, of_ddp / 4, "every 4")
  about(of_local{every = 6, outer = true}, of_ddp / 6, "every 6, outer")
  about(of_local{every = 4, wire = "bfloat16"}, every_4 / 2, "bfloat16")
  about(of_local{every = 4, wire = "float16", outer = true}, every_4 / 2, "float16, outer")
  about(of_local{every = 4, warmup = 12}, of_ddp, "all of it warm-up")
  about(of_local{every = 4, warmup = 12, wire = "bfloat16"}, of_ddp / 2, "warm-up in bfloat16")
end

function CHECKS.sixteen_bits_on_the_wire()
  for _, outer in ipairs{false, true} do
    local models = {}
    for i, wire in ipairs{"none", "bfloat16", "float16"} do
      local model = mlp "float32"
      models[i] = model
      local optimizer = optim.SGD(model:parameters(), {lr = 0.02})
      local shared = LocalSGD(model, {every = 3, wire = wire ~= "none" and wire or nil,
        outer = outer and outer_sgd(model) or nil})
      for step = 1, 6 do
        step_of(shared, optimizer, step, rank, "float32")
        shared:average_parameters()
      end
      check(is_common(model:parameters()), "%s: other bits", wire)
      for k, p in ipairs(model:parameters()) do -- of ways of up to 0.2
        near(p, models[1]:parameters()[k], 2e-3, wire)
      end
    end
  end
end

function CHECKS.buffers()
  local model = nn.Sequential{nn.Linear(5, 4), nn.BatchNorm1d(4)}:double()
  model:register_buffer("fixed", dm.tensor{0.1, 0.7})
  model:register_buffer("count", dm.tensor{rank + 1})
  local shared = LocalSGD(model, {every = 2})
  check(model.count:item() == 1, "construction gives the first rank's")
  model.count:fill_(rank + 5)
  local fixed = model.fixed:clone()
  for step = 1, 2 do
    shared((batch(step, rank)))
    local own = model[2].running_mean:clone()
    local mean = dist.all_reduce(own:clone(), "avg")
    shared:average_parameters()
    near(model[2].running_mean, step == 2 and mean or own, 1e-14, "running_mean")
  end
  check(model[2].num_batches_tracked:item() == 2, "num_batches_tracked")
  check(model.fixed:equal(fixed), "one that is the same on all ranks stays")
  check(model.count:item() == 5, "an integer is the first rank's")
  check(is_common(model:buffers()), "other bits")
end

-- A float16 training with an overflow on one rank: the ranks' scales part, the steps do not.
function CHECKS.a_scaler_and_accumulation()
  local model = mlp "float32"
  local shared = LocalSGD(model, {every = 2, warmup = 2})
  local optimizer = optim.SGD(model:parameters(), {lr = 0.05})
  local kind = model[1].weight.device:match "^%a+"
  local scaler = amp.GradScaler{device = kind, init_scale = 64}
  for step = 1, 6 do
    for part = 1, 2 do
      local x, y = batch(2 * step + part, rank, "float32")
      if step == 4 and rank == 0 then y = y * (1 / 0) end
      local before = dist.stats().calls
      local loss = amp.autocast({device_type = kind, dtype = "float16"}, function()
        return mse(shared(x), y)
      end)
      amp.step{loss = loss, optimizer = optimizer, scaler = scaler, accumulate = 2}
      local sends = n > 1 and step <= 2 and part == 2
      check((dist.stats().calls > before) == sends, "step %d, part %d sends", step, part)
    end
    local told = shared:average_parameters()
    check(told == (step <= 2 or step % 2 == 0), "step %d", step)
    if told then check(is_common(model:parameters()), "step %d: other bits", step) end
  end
  check(scaler:stats().skipped == (rank == 0 and 1 or 0), "the one rank skips alone")
end

function CHECKS.no_sync_and_gradients_that_are_there()
  local model = mlp()
  local shared = LocalSGD(model, {every = 1, warmup = 1, outer = outer_sgd(model)})
  local x, y = batch(1, rank)
  local before = dist.stats().calls
  shared:no_sync(function()
    mse(shared(x), y):backward()
    fails("average_parameters: within no_sync", shared.average_parameters, shared)
  end)
  check(dist.stats().calls == before, "no_sync sends")
  shared:average_parameters() -- the warm-up is over
  shared:no_sync(function() mse(shared(x), y):backward() end)
  before = dist.stats().calls
  mse(shared(x), y):backward()
  check(dist.stats().calls == before, "backward sends behind the warm-up")
  local grad = model[1].weight.grad:clone()
  shared:average_parameters()
  check(model[1].weight.grad:equal(grad), "the gradient")
  check(is_common(model:parameters()), "other bits")
end

-- Goes on from a file of all ranks, and from one of each rank amid the steps by itself.
function CHECKS.checkpoints()
  local path = ("/tmp/demilune-local-sgd-%s.safetensors"):format(
    dist.broadcast_object(tostring({}):match "0x(%x+)" .. os.time(), 0))
  for _, outer in ipairs{false, true} do
    for _, saved_at in ipairs{1, 4, 5} do -- in the warm-up; behind an averaging; amid the steps
      local is_amid = saved_at == 5
      local own = is_amid and path .. rank or path
      local _ <close> = setmetatable({}, {__close = function()
        dist.barrier()
        os.remove(own)
      end})
      local function make()
        local model = mlp()
        local shared = LocalSGD(model, {every = 2, warmup = 2,
          outer = outer and outer_sgd(model) or nil})
        return shared, sgd(model)
      end
      local function go_on(shared, optimizer, from)
        for step = from, 9 do
          step_of(shared, optimizer, step, rank)
          shared:average_parameters()
        end
      end
      local first, of_first = make()
      for step = 1, saved_at do
        step_of(first, of_first, step, rank)
        first:average_parameters()
      end
      local tree = {model = first, optimizer = of_first}
      if is_amid then
        check(dm.save(own, {model = first:state_dict(), optimizer = of_first:state_dict()}))
      else -- the momentum of the ranks differs, and the first one's is saved
        check(dist.save(own, tree))
        check(dist.load(own, {optimizer = of_first}))
      end
      go_on(first, of_first, saved_at + 1)
      local second, of_second = make()
      if is_amid then
        local state = dm.load(own)
        second:load_state_dict(state.model)
        of_second:load_state_dict(state.optimizer)
      else
        check(dist.load(own, {model = second, optimizer = of_second}))
      end
      go_on(second, of_second, saved_at + 1)
      for k, p in ipairs(second:parameters()) do
        check(p:equal(first:parameters()[k]), "saved at %d: parameter %d", saved_at, k)
      end
    end
  end
end

function CHECKS.a_trainer()
  local x = dm.randn(24, 5)
  local set = data.TensorDataset(x, x:sum(2, {keepdim = true}))
  local model = mlp "float32"
  local shared = LocalSGD(model, {every = 4, warmup = 1})
  local seen = {}
  local trainer = dm.Trainer{model = shared, loss = nn.MSELoss(), optimizer = sgd(model),
    verbose = false, callbacks = {on_step = function(_, steps)
      seen[steps] = shared:state_dict().since
    end, on_train_epoch_end = function()
      check(is_common(model:parameters()), "the end of an epoch: other bits")
    end}}
  trainer:fit{train = data.DataLoader(set, {batch_size = 2,
    sampler = data.DistributedSampler(set, {num_replicas = 2, rank = rank % 2})}), epochs = 2}
  check(table.concat(seen, " ") == "0 1 2 3 0 1 1 2 3 0 1 2", "%s", table.concat(seen, " "))
end

function CHECKS.options_that_differ()
  if n == 1 then return end
  fails("LocalSGD: the ranks' options differ: every is 4 on rank 0, 5 on rank 1", LocalSGD, mlp(),
    {every = rank == 1 and 5 or 4})
  fails("LocalSGD: the ranks' modules differ: parameter '2.weight' is on rank 0 only", LocalSGD,
    rank == 1 and nn.Sequential{nn.Linear(5, 7), nn.Tanh()}:double() or mlp(), {every = 4})
  if n < 3 then return end
  local group = dist.new_group{0, 2}
  if rank == 1 then
    fails("LocalSGD: rank 1 is no member", LocalSGD, mlp(), {every = 1, process_group = group})
    return
  end
  local model = mlp()
  local shared = LocalSGD(model, {every = 1, process_group = group})
  model[1].bias.data:fill_(rank + 0.0)
  step_of(shared, optim.SGD(model:parameters(), {lr = 0}), 1, rank)
  shared:average_parameters()
  near(model[1].bias, dm.ones(7, {dtype = "float64"}), 0, "a group")
end

-- A signal to one rank is told to all, also behind the warm-up, whose passes carried it.
local function check_stop()
  local model = mlp()
  local shared = LocalSGD(model, {every = 3, warmup = 2})
  local optimizer = sgd(model)
  for step = 1, 5 do
    if step == 5 and rank == n - 1 then os.execute "kill -USR1 $PPID" end
    step_of(shared, optimizer, step, rank)
    shared:average_parameters()
    check(dist.should_stop() == (step == 5), "should_stop at step %d", step)
  end
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

if ... == "spec.distributed.local_sgd" then return run_checks end

dist.init_process_group{timeout = 30}
run_checks()
check_stop()
io.write(("rank %d of %d: %d checks\n"):format(rank, n, checks))
dist.destroy_process_group()
