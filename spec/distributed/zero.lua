-- optim.ZeroRedundancyOptimizer on any number of ranks, against the optimizer that one process has,
-- bit by bit. `mpirun -n 3 lua5.4 spec/distributed/zero.lua` runs it by itself.

local dm = require "demilune"
local common = require "spec.distributed.zero_common"
local nn, optim, amp, dist = dm.nn, dm.optim, dm.amp, dm.distributed
local Zero = optim.ZeroRedundancyOptimizer
local check, same, sorted, with = common.check, common.same, common.sorted, common.with
local parameters, copies, groups_of, saved_of = common.parameters, common.copies, common.groups_of,
  common.saved_of
local net, decayed, state_bytes, refuses = common.net, common.decayed, common.state_bytes,
  common.refuses
local OPTIONS, SHAPES, MATRICES = common.OPTIONS, common.SHAPES, common.MATRICES

local rank, n

-- ---- every class, on gradients that are given ----


-- The same gradients for both lists, for all parameters but some that change from step to step.
local function give_gradients(a, b, step, is_infinite, is_wide)
  for i, p in ipairs(a) do
    local g = dm.randn(p.shape)
    if is_infinite and i == 2 then g:view(-1)[1] = math.huge end
    if not is_wide then g = g:to(p.dtype) end
    local is_given = (i + step) % 5 ~= 0
    p.grad, b[i].grad = is_given and g or nil, is_given and g:clone() or nil
  end
end

local function compare(class, o, shapes, dtype)
  local name = ("%s %s"):format(class.class, dtype)
  dm.manual_seed(5)
  local a = parameters(shapes, dtype)
  local b = copies(a)
  local plain = class(groups_of(a), with({}, o))
  local function new_zero() return Zero(groups_of(b), with({optimizer_class = class}, o)) end
  local zero = new_zero()
  local function steps(first, last)
    for step = first, last do
      local is_infinite = step % 3 == 2
      give_gradients(a, b, step, is_infinite, o.master_weights and step % 2 == 0)
      for _, optimizer in ipairs{plain, zero} do
        optimizer.param_groups[1].lr = 0.01 * step
        optimizer:step(nil, dm.tensor(is_infinite and 1.0 or 0.0))
      end
      for i, p in ipairs(a) do same(p, b[i], ("%s, step %d, %d"):format(name, step, i)) end
    end
  end
  steps(1, 4)
  local saved = saved_of(zero)
  if saved then same(plain:state_dict(), saved, name .. ": state") end
  -- the state of one process is one for these ranks
  zero = new_zero()
  zero:load_state_dict(plain:state_dict())
  steps(5, 7)
  saved = saved_of(zero)
  if saved then same(plain:state_dict(), saved, name .. ": state, later") end
end

local CHECKS = {}

function CHECKS.classes_by_element()
  local methods = require "demilune.optim.methods"
  for _, name in ipairs(sorted(methods)) do
    compare(methods[name], OPTIONS[name] or {}, SHAPES, "float32")
    compare(methods[name], with({master_weights = true}, OPTIONS[name] or {}), SHAPES, "bfloat16")
    compare(methods[name], OPTIONS[name] or {}, SHAPES, "float16")
  end
  compare(methods.Adam, {}, SHAPES, "float64")
  compare(methods.SGD, {maximize = true}, SHAPES, "float32")
end

function CHECKS.classes_by_parameter()
  for _, name in ipairs{"Adafactor", "LAMB", "Muon"} do
    compare(optim[name], {}, MATRICES, "float32")
    compare(optim[name], {master_weights = true}, MATRICES, "bfloat16")
  end
end

-- More elements than one message carries, of two dtypes.
function CHECKS.several_messages()
  dm.manual_seed(6)
  local function two(list)
    return {dm.zeros(2 ^ 22 + 5):copy_(list[1]), dm.zeros(9, {dtype = "bfloat16"}):copy_(list[2])}
  end
  local first = {dm.randn(2 ^ 22 + 5), dm.randn(9)}
  local a, b = two(first), two(first)
  local plain, zero = optim.SGD(a, {lr = 0.1}), Zero(b, {optimizer_class = optim.SGD, lr = 0.1})
  for i, p in ipairs(a) do
    p.grad = dm.randn(p.shape):to(p.dtype)
    b[i].grad = p.grad:clone()
  end
  plain:step()
  zero:step()
  for i, p in ipairs(a) do check(p:equal(b[i]), "parameter %d", i) end
end

-- ---- a training ----

-- Trains a while with all that a loop has; -> losses, parameters, the optimizer, the scaler.
local function train(new_optimizer, dtype, o)
  local model = net()
  if o.is_low then model:to(dtype) end
  model = nn.parallel.DistributedDataParallel(model)
  local optimizer = new_optimizer(decayed(model), with({lr = 0.01}, o.options))
  local schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
  local scaler = amp.GradScaler{device = "cpu", enabled = dtype == "float16",
    init_scale = 2.0 ^ 10, growth_interval = 3}
  dm.manual_seed(11)
  local losses, norms = {}, {}
  for step = 1, 16 do
    local x, y = dm.randn(6, 6), dm.randint(3, {6})
    local is_infinite = dtype == "float16" and rank == n - 1 and step == 8 -- on one rank
    if is_infinite then x[1][1] = math.huge end
    local loss
    do
      local _ <close> = amp.autocast{device_type = "cpu", dtype = dtype ~= "float32" and dtype
        or "bfloat16", enabled = dtype ~= "float32" and not o.is_low}
      loss = nn.functional.cross_entropy(model(o.is_low and x:to(dtype) or x):float(), y)
    end
    local stepped, norm = amp.step{loss = loss, optimizer = optimizer, scaler = scaler,
      max_norm = 0.5, accumulate = 2}
    if stepped then schedule:step() end
    losses[step], norms[step] = tostring(loss:item()), tostring(norm and norm:item())
  end
  return {losses, norms, model:parameters(), scaler:state_dict()}, optimizer, scaler
end

local function compare_training(class, dtype, o)
  local name = ("%s, %s%s"):format(class.class, dtype, o.is_low and " parameters" or "")
  local plain, own = train(class, dtype, o)
  local sharded, zero, scaler = train(function(groups, given)
    return Zero(groups, with({optimizer_class = class}, given))
  end, dtype, o)
  same(plain, sharded, name)
  local saved = saved_of(zero)
  if saved then same(own:state_dict(), saved, name .. ": state") end
  if dtype == "float16" then
    check(scaler:stats().skipped >= 1, "%s: no step was skipped", name)
    check(scaler:stats().skipped < 8, "%s: all steps were skipped", name)
    check(plain[1][16] ~= "nan" and plain[1][16] ~= "-nan", "%s: the loss is nan", name)
  end
end

function CHECKS.training()
  for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
    compare_training(optim.AdamW, dtype, {options = {}})
  end
  compare_training(optim.AdamW, "bfloat16", {is_low = true, options = {master_weights = true}})
  compare_training(optim.SGD, "float16", {is_low = true,
    options = {master_weights = true, momentum = 0.9}})
  compare_training(optim.LAMB, "float32", {options = {}})
end

-- A Trainer whose checkpoint holds the state of all ranks.
function CHECKS.trainer()
  local path = dist.broadcast_object(os.tmpname(), 0)
  local x = dm.randn(24, 6)
  local set = dm.data.TensorDataset(x, x:select(2, 1):gt(0):to "int64" + 1)
  local function fit(new_optimizer, epochs, more)
    local model = nn.parallel.DistributedDataParallel(net())
    local trainer = dm.Trainer(with({model = model, loss = nn.CrossEntropyLoss(), accumulate = 2,
      optimizer = new_optimizer(decayed(model), {lr = 0.01}), amp = "float16", clip = 1,
      verbose = false}, more))
    trainer:fit{train = dm.data.DataLoader(set, {batch_size = 4,
      sampler = dm.data.DistributedSampler(set, {seed = 2})}), epochs = epochs}
    return model:parameters()
  end
  local function sharded(groups, o)
    return Zero(groups, with({optimizer_class = optim.AdamW}, o))
  end
  local wanted = fit(optim.AdamW, 3, {})
  same(wanted, fit(sharded, 3, {}), "Trainer")
  fit(sharded, 2, {checkpoint = path})
  same(wanted, fit(sharded, 3, {resume = path}), "resumed Trainer")
  same(wanted, fit(optim.AdamW, 3, {resume = path}), "Trainer resumed without shares")
  dist.barrier()
  if rank == 0 then os.remove(path) end
end

-- Without DistributedDataParallel: what one rank's gradients have makes all skip.
function CHECKS.skips_together()
  local p = dm.ones(5)
  p.requires_grad = true
  local zero, scaler = Zero({p}, {optimizer_class = optim.SGD, lr = 1}), amp.GradScaler()
  scaler:scale(p:sum()):backward()
  if rank == n - 1 then p.grad[3] = math.huge end
  scaler:step(zero)
  scaler:update()
  check(scaler:skipped(zero) and scaler:get_scale() == 2 ^ 15, "no skip")
  same(dm.ones(5), p:detach(), "the skipped step")
end

-- ---- the state ----

-- 1 / n of the state and 1 %, for parameters of very different sizes, some of them frozen.
function CHECKS.bytes_of_state()
  local shapes, list = {{100, 101}, {3000}, {50, 70}, {17}, {64, 64}}, {}
  local others = {}
  for i, shape in ipairs(shapes) do
    list[i] = dm.zeros(shape)
    others[i] = dm.zeros(shape)
    if i ~= 2 then list[i].grad, others[i].grad = dm.ones(shape), dm.ones(shape) end
    list[i].requires_grad, others[i].requires_grad = i ~= 2, i ~= 2
  end
  local plain, zero = optim.Adam(list), Zero(others, {optimizer_class = optim.Adam})
  plain:step()
  zero:step()
  local all, own = state_bytes(plain), state_bytes(zero)
  check(own <= all * (1 / n + 0.01), "%d bytes of %d", own, all)
  zero = Zero({dm.zeros(30, 30), dm.zeros(20, 20), dm.zeros(9, 9)},
    {optimizer_class = optim.Muon})
  local sizes = dist.all_gather_object(#zero.pieces)
  local total = 0
  for _, size in ipairs(sizes) do total = total + size end
  check(n == 1 or total == 3 and math.max(table.unpack(sizes)) <= (3 + n - 1) // n + 1, "matrices")
end

-- What n ranks have saved, fewer load, and the other way round.
function CHECKS.other_numbers_of_ranks()
  if n == 1 then return end
  local ranks = {}
  for i = 1, n - 1 do ranks[i] = i end
  local fewer = dist.new_group(ranks)
  local function list()
    dm.manual_seed(3)
    return parameters(SHAPES, "float32")
  end
  local function step(optimizer, params)
    dm.manual_seed(4)
    for _, p in ipairs(params) do p.grad = dm.randn(p.shape) end
    optimizer:step()
  end
  local a, b = list(), list()
  local all = Zero(a, {optimizer_class = optim.Adam})
  step(all, a)
  all:consolidate_state_dict(n - 1)
  local saved = dist.broadcast_object(rank == n - 1 and all:state_dict() or nil, n - 1)
  for i, p in ipairs(a) do b[i]:detach():copy_(p:detach()) end
  step(all, a)
  if fewer.is_member then
    local some = Zero(b, {optimizer_class = optim.Adam, process_group = fewer})
    some:load_state_dict(saved)
    step(some, b)
    same(a, b, "after " .. n .. " ranks")
    some:consolidate_state_dict(n - 1)
    saved = rank == n - 1 and some:state_dict() or nil
  end
  saved = dist.broadcast_object(saved, n - 1)
  all:load_state_dict(saved)
  for i, p in ipairs(dist.broadcast_object(b, n - 1)) do
    a[i]:detach():copy_(p:detach())
    b[i]:detach():copy_(p:detach())
  end
  local plain = optim.Adam(b)
  plain:load_state_dict(saved)
  step(all, a)
  step(plain, b)
  same(b, a, "after fewer ranks")
end

-- ---- the rest ----

function CHECKS.further_groups_and_data()
  local a, b = dm.zeros(5), dm.zeros(5)
  local c, d = dm.zeros(7), dm.zeros(7)
  local plain = optim.SGD({a}, {lr = 1, momentum = 0.5})
  local zero = Zero({b}, optim.SGD, {lr = 1, momentum = 0.5})
  local function step()
    for _, p in ipairs{a, b, c, d} do p.grad = dm.arange(#p):float() end
    plain:step()
    zero:step()
    same({a, c}, {b, d}, "groups")
  end
  step()
  plain:add_param_group{params = {c}, lr = 2}
  zero:add_param_group{params = {d}, lr = 2}
  step()
  a.data, b.data = dm.ones(5), dm.ones(5) -- other memory
  step()
  check(zero.param_groups[2].lr == 2 and #zero.param_groups == 2, "groups")
  check(zero:step(function() return 3 end) == 3, "closure")
end

-- A class of one's own, which knows no found_inf.
function CHECKS.own_class()
  local Halving = optim.Optimizer.extend("Halving", {})
  function Halving:update(group)
    for _, p in ipairs(group.params) do
      local state = self.state[p] or {n = 0, total = dm.zeros(p.shape)}
      self.state[p], state.n = state, state.n + 1
      state.total:add_(1)
      p:mul_(0.5)
    end
  end
  local list = {dm.ones(3), dm.ones(4), dm.ones(5)}
  local zero = Zero(list, {optimizer_class = Halving})
  zero:step()
  for i, p in ipairs(list) do check(p[1]:item() == 0.5, "parameter %d", i) end
  local saved = saved_of(zero)
  if saved then
    check(saved.state[3].n == 1 and #saved.state == 3, "state")
    check(saved.state[2].total:sum():item() == 4, "its tensor")
  end
  zero:step(nil, dm.tensor(1.0))
  for _, p in ipairs(list) do check(p[1]:item() == 0.5, "skipped") end
end

function CHECKS.hooks()
  local list, log = {dm.ones(3), dm.ones(4), dm.ones(5)}, {}
  local zero = Zero(list, {optimizer_class = optim.SGD, lr = 0.25})
  local before = zero:register_step_pre_hook(function()
    for _, p in ipairs(list) do p.grad:mul_(2) end
  end)
  zero:register_step_post_hook(function() log[#log + 1] = list[3][1]:item() end)
  for _ = 1, 2 do
    for _, p in ipairs(list) do p.grad = dm.ones(p.shape) end
    zero:step()
    before:remove()
  end
  check(#log == 2 and log[1] == 0.5 and log[2] == 0.25, "hooks see %s", table.concat(log, " "))
end

function CHECKS.refusals()
  if n == 1 then return end
  local here = "zero.lua:"
  refuses("parameters differ: parameter 2 of group 1 is {2} float32 on rank 0, {3} float32 on rank "
    .. "1", function() Zero(parameters({{}, {rank == 0 and 2 or 3}}, "float32"), optim.SGD) end)
  local p = dm.zeros(4)
  p.requires_grad = true
  local zero = Zero({p}, {optimizer_class = optim.Adam})
  p:sum():backward()
  zero:step()
  zero:consolidate_state_dict(1)
  if rank == 1 then zero:state_dict() else refuses("state_dict: the state is on all ranks; hint: "
    .. "all of them call optimizer:consolidate_state_dict(", function() zero:state_dict() end) end
  zero:step()
  refuses("state_dict: the state is on all ranks", function() zero:state_dict() end)
  refuses("group 1 has 2 parameters, wanted 1", function()
    zero:load_state_dict(optim.Adam{dm.zeros(4), dm.zeros(2)}:state_dict())
  end)
  refuses("of parameter 1 is {5}, wanted {4}", function()
    local other = dm.zeros(5)
    other.grad = dm.ones(5)
    local adam = optim.Adam{other}
    adam:step()
    zero:load_state_dict(adam:state_dict())
  end)
  refuses("parameter 1 of the group is not contiguous", function()
    Zero({dm.zeros(3, 2):t()}, {optimizer_class = optim.SGD})
  end)
  refuses("add_param_group: the ranks' parameters differ: parameter 1 of group 1 is {3} float32",
    function() zero:add_param_group{params = parameters({{rank == 0 and 3 or 2}}, "float32")} end)
  check(#zero.param_groups == 1, "a group that was refused")
  refuses("parameter 1 were exchanged for {9}", function()
    p.data = dm.zeros(9)
    zero:step()
  end)
  local ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
  refuses(here, function() ddp:join{states = {Zero(ddp:parameters(), optim.SGD)}} end)
end

local function run_checks()
  rank, n = dist.get_rank(), dist.get_world_size()
  return common.run(CHECKS)
end

if ... == "spec.distributed.zero" then return run_checks end
common.main(run_checks)
