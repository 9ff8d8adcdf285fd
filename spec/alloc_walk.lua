-- Refuses memory at every request of each scenario: first request 1, then request 2, and so on
-- until the scenario passes without a refusal. Each walk runs twice: only that request fails, or
-- that one and all after it. A refused run must raise a Lua error that names memory, or give the
-- right result because the engine collected garbage and tried again. It must leak nothing, and the
-- next run must succeed. scripts/test --parts=sanitizers runs this file under AddressSanitizer,
-- a process per processor: with the argument 1/2 it walks the first of two shares of the scenarios,
-- with a scenario's name that one.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local case = require "spec.case"
local samples = require "spec.samples"
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data

local FILE = os.tmpname()
local scenarios = {}

-- setup() is not refused anything; run(what setup gave) is, and returns a value
-- that is the same in every run.
local function scenario(name, setup, run)
  scenarios[#scenarios + 1] = {name = name, setup = setup, run = run}
end

local function nothing() end
local function leaf(...) return dm.randn({...}, {requires_grad = true}) end

-- ---- tensors ----

scenario("creation", nothing, function()
  local all = {
    dm.tensor{{1, 2}, {3, 4}}, dm.tensor({true, false}, {dtype = "bool"}),
    dm.zeros(3, {dtype = "float16"}), dm.ones(2, 2, {requires_grad = true}), dm.full({2}, 7),
    dm.arange(5), dm.linspace(0, 1, 4), dm.eye(3), dm.rand(4), dm.randn(4),
    dm.randint(8, {4}), dm.randperm(6), dm.tensor(dm.ones(2)),
  }
  local text = {}
  for i, t in ipairs(all) do text[i] = tostring(t) end
  return table.concat(text, "\n")
end)

scenario("reading and assigning through an index", function()
  return {dm.randn(4, 5), dm.tensor{2, 4}, dm.tensor{true, false, true, true}}
end, function(given)
  local x, ids, mask = table.unpack(given)
  local w = x:clone():requires_grad_()
  local sum = (w[1]:sum() + w[{{}, 2}]:sum() + w[{{1, 3, 2}, -1}]:sum() + w[ids]:sum()
    + w[mask]:sum() + w[{{}, ids}]:sum() + w[w:gt(0)]:sum() + w[{ids, ids}]:sum()
    + w[{mask, dm.newaxis, -1}]:sum() + w[{{}, ids, dm.newaxis}]:sum())
  sum:backward()
  local y = w * 2
  y[1] = 3
  y[{{}, 2}] = x[{{}, 1}]
  y[ids] = 0.5
  y[{ids, "...", ids}] = x[{{1, 2}, 1}]
  y[{{}, ids}] = 2
  y[mask] = x[mask]
  y[y:gt(1)] = -1
  y:sum():backward()
  return w.grad:sum():item()
end)

scenario("views changed in place", function() return leaf(3, 4) end, function(x)
  local y = x * 2
  local row, column = y[2], y:transpose(1, 2)[1]
  row:mul_(3)
  column:add_(1)
  y:add_(row:sum())
  y:sigmoid_():sum():backward()
  return x.grad:sum():item()
end)

scenario("pieces, iteration and scopes", function() return dm.randn(6, 2) end, function(x)
  return dm.scope(function()
    local sum = dm.cat(x:split(4)):sum() + dm.stack(x:unbind()):sum() + x:chunk(3)[1]:sum()
    for _, row in pairs(x) do sum = sum + row:sum() end
    return sum
  end):item()
end)

-- ---- every op, with its gradient ----

local NOT_ARGUMENTS = {"grad", "once", "random", "dense", "pointwise"}
local function sample_arguments(call)
  local args = case.decode(dm, call, {grad = call.grad ~= false})
  for _, name in ipairs(NOT_ARGUMENTS) do args[name] = nil end
  return args
end

for _, row in ipairs(dm.ops()) do
  local call = not row.hidden and not row.only_inplace and (samples[row.name] or {})[1]
  if call then
    scenario(row.name, function() return sample_arguments(call) end, function(args)
      local text = {}
      for i, y in ipairs(case.call(dm, row.name, args)) do
        if y.requires_grad then y:backward{gradient = dm.ones_like(y), retain_graph = true} end
        text[i] = row.name:find "^empty" and y.dtype or tostring(y)
      end
      return table.concat(text, "\n")
    end)
  end
end

scenario("cat and einsum of many", function()
  local parts = {}
  for i = 1, 20 do parts[i] = leaf(2, 2) end
  return parts
end, function(parts)
  local y = dm.cat(parts, 1):sum() + dm.einsum("ij,jk,kl->il", parts[1], parts[2], parts[3]):sum()
  y:backward()
  return parts[1].grad:sum():item()
end)

scenario("a depthwise convolution", function()
  return {leaf(2, 3, 6, 6), leaf(3, 1, 3, 3)}
end, function(given)
  dm.conv2d(given[1], given[2], {padding = 1, groups = 3}):square():sum():backward()
  return (given[1].grad:sum() + given[2].grad:sum()):item()
end)

scenario("attention with a mask, groups of heads and dropout", function()
  return {leaf(2, 4, 3, 2), leaf(2, 2, 5, 2), leaf(2, 2, 5, 2), leaf(3, 5)}
end, function(given)
  local q, k, v, mask = table.unpack(given)
  local opts = {enable_gqa = true, dropout_p = 0.25, attn_mask = mask:detach()}
  local loss = dm.scaled_dot_product_attention(q, k, v, opts):sum()
  opts.attn_mask = mask
  loss = loss + dm.scaled_dot_product_attention(q, k, v, opts):sum()
  loss:backward()
  return (q.grad:sum() + k.grad:sum() + v.grad:sum() + mask.grad:sum()):item()
end)

-- ---- gradients ----

scenario("backward with inputs", function() return leaf(4) end, function(x)
  local y = x * 2
  x.grad = nil
  y:exp():sum():backward{inputs = {x, y}, retain_graph = true}
  dm.autograd.backward({y:sum(), y}, {nil, dm.ones(4)}, {inputs = x})
  return tostring(x.grad) .. tostring(y.grad)
end)
scenario("a view of a dtype", function() return dm.randn(2, 4) end, function(x)
  return x:view("int64"):sum():item() + x:t():view("int32"):sum():item()
end)
scenario("autograd.grad with create_graph", function()
  return {leaf(3, 3), leaf(3, 3)}
end, function(given)
  local x, w = table.unpack(given)
  local gx, gw = dm.autograd.grad(x:matmul(w):tanh():square():sum(), {x, w}, {create_graph = true});
  (gx:square():sum() + (gw * gx):sum()):backward()
  return (x.grad:sum() + w.grad:sum()):item()
end)

local Cube = dm.autograd.Function{
  name = "Cube",
  forward = function(ctx, x)
    ctx:save_for_backward(x)
    return x * x * x
  end,
  backward = function(ctx, gy) return gy * ctx:saved_tensors():square() * 3 end,
}
scenario("a function of one's own", function() return leaf(4) end, function(x)
  Cube(x):sum():backward()
  return x.grad:sum():item()
end)

scenario("hooks", function() return leaf(4) end, function(x)
  local h = (x * 2):retain_grad()
  local off = h:register_hook(function(g) return g * 3 end)
  x:register_hook(function(g) return g + 1 end)
  off:remove()
  h:register_hook(function(g) return g * 5 end)
  x:register_post_accumulate_grad_hook(function(t) t.grad:mul_(2) end)
  h:square():sum():backward()
  return (x.grad:sum() + h.grad:sum()):item()
end)

-- ---- training ----

local function net()
  return nn.Sequential{
    nn.Conv2d(1, 2, 3, {padding = 1, bias = false}), nn.BatchNorm2d(2), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4), nn.Dropout(0.5),
    nn.Linear(4, 3),
  }
end

local function training(make_optimizer)
  return function()
    local model = net()
    return {model = model, optimizer = make_optimizer(model:parameters()),
      x = dm.randn(2, 1, 4, 4), y = dm.tensor{1, 3}, scaler = amp.GradScaler{init_scale = 8}}
  end
end

local function step(t)
  t.optimizer:zero_grad()
  local loss = amp.autocast({dtype = "bfloat16"}, function()
    return nn.functional.cross_entropy(t.model(t.x), t.y)
  end)
  t.scaler:scale(loss):backward()
  t.scaler:unscale_(t.optimizer)
  nn.utils.clip_grad_norm_(t.model:parameters(), 1)
  t.scaler:step(t.optimizer)
  t.scaler:update()
  return loss:item()
end

scenario("two steps of Adam, mixed precision", training(function(params)
  return optim.Adam(params, {lr = 1e-2})
end), function(t) return step(t) + step(t) end)

scenario("a step of SGD with momentum", training(function(params)
  return optim.SGD(params, {lr = 1e-2, momentum = 0.9, nesterov = true})
end), step)

scenario("a step that amp.report records", training(function(params)
  return optim.SGD(params, {lr = 1e-2})
end), function(t)
  return amp.report(function(report)
    local loss = step(t)
    assert(#tostring(report) > 0)
    return loss
  end)
end)

for name, opts in pairs{["master weights"] = {master_weights = true},
  ["stochastic rounding"] = {stochastic_rounding = true}} do
  scenario("two steps of a 16-bit model, " .. name, function()
    local t = training(function(params) return optim.SGD(params, opts) end)()
    t.model:to "bfloat16"
    return t
  end, function(t) return step(t) + step(t) end)
end

scenario("two steps at a level", nothing, function()
  local model = net()
  local optimizer = optim.AdamW(model:parameters())
  amp.initialize(model, optimizer, {opt_level = "O2", dtype = "bfloat16"})
  local x, y, sum = dm.randn(2, 1, 4, 4), dm.tensor{1, 3}, 0
  for _ = 1, 2 do
    local loss = nn.functional.cross_entropy(model(x), y)
    amp.scale_loss(loss, optimizer, function(scaled) scaled:backward() end)
    optimizer:step()
    sum = sum + loss:item()
  end
  return sum
end)

scenario("regions with policies", function() return leaf(4, 4) end, function(x)
  local _ <close> = amp.autocast{rules = "cuda", policy = {exp = "lower_precision"}}
  local inner = amp.autocast{policy = {log = "promote"}}:wrap(function()
    return dm.mm(x, x):exp()
  end)
  return coroutine.wrap(inner)():sum():item() + inner():sum():item()
end)

scenario("a model built, its state taken and put back", nothing, function()
  local model, other = net(), net()
  other:load_state_dict(model:state_dict())
  return tostring(other:parameters()[1])
end)

scenario("a checkpointed step, one within another", training(function(params)
  return optim.SGD(params, {lr = 1e-2})
end), function(t)
  t.optimizer:zero_grad()
  local checkpoint, model = nn.utils.checkpoint, t.model
  local loss = amp.autocast({dtype = "bfloat16"}, function()
    local h = checkpoint(function(x)
      for i = 1, 4 do x = model[i](x) end
      return checkpoint(function(v) return Cube(model[6](model[5](v))) end, x)
    end, t.x)
    return nn.functional.cross_entropy(model[9](model[8](model[7](h))), t.y)
  end)
  loss:backward()
  local sum = loss:item()
  for _, p in ipairs(model:parameters()) do sum = sum + p.grad:abs():sum():item() end
  return sum
end)

scenario("a step under anomaly detection", training(function(params)
  return optim.SGD(params, {lr = 1e-2})
end), function(t)
  return dm.autograd.detect_anomaly(function() return step(t) end)
end)

scenario("a function with a policy", function() return leaf(4) end, function(x)
  local Twice = dm.autograd.Function{
    forward = amp.custom_fwd(function(_, v) return v * 2 end, {cast_inputs = "float16"}),
    backward = amp.custom_bwd(function(_, gy) return gy * 2 end),
  }
  local function once()
    amp.autocast({dtype = "bfloat16"}, function() return Twice(x):sum() end):backward()
  end
  once()
  amp.register{op = Twice, policy = "lower_precision"}
  once()
  return x.grad:sum():item()
end)

-- ---- files and loaders ----

scenario("save and load", function()
  local t = training(function(params) return optim.AdamW(params) end)()
  step(t)
  return t
end, function(t)
  local state = {model = t.model:state_dict(), optimizer = t.optimizer:state_dict(), epoch = 1}
  assert(dm.save(FILE, state))
  local back = assert(dm.load(FILE))
  t.model:load_state_dict(back.model)
  t.optimizer:load_state_dict(back.optimizer)
  return back.epoch
end)

scenario("files of other programs", nothing, function()
  local golden = "spec/golden/files/"
  local tree, old = assert(dm.load(golden .. "tree.pt")), assert(dm.load(golden .. "old.pt"))
  local gpt, arrays = assert(dm.load(golden .. "gpt2")), assert(dm.load(golden .. "packed.npz"))
  assert(data.write_npz(FILE, arrays))
  return tostring(tree.turned) .. tostring(old.steps) .. tostring(gpt["transformer.wpe.weight"])
    .. tostring(assert(dm.load(FILE)).x)
end)

if dm.save_image(dm.ones(3, 2, 2), FILE) then -- not in a build without libpng
  scenario("images in files", function() return dm.rand(3, 3, 5, 4) end, function(x)
    assert(dm.save_image(x, FILE, {normalize = true}))
    return tostring(assert(dm.read_image(FILE)))
  end)
end

local function epoch_of(workers)
  return function(set)
    local loader = data.DataLoader(set,
      {batch_size = 3, shuffle = true, seed = 1, num_workers = workers})
    local sum = 0
    for _, x, y in loader:iter() do sum = sum + (x:sum() + y:sum()):item() end
    return sum
  end
end
local function ten()
  return data.TensorDataset(dm.arange(20):reshape(10, 2):float(), dm.arange(10))
end
scenario("an epoch of a loader", ten, epoch_of(0))
scenario("an epoch of a loader with workers", ten, epoch_of(2))

local function levels() return dm.full({2, 3, 9, 9}, 100, {dtype = "uint8", device = "cpu"}) end
scenario("transforms of an image", levels, function(x)
  local t = dm.transforms
  local all = t.Compose{t.RandomResizedCrop(6), t.RandAugment{num_ops = 3}, t.ToTensor(),
    t.Normalize(0.5, 0.5), t.RandomErasing{p = 1}}
  local mixed, labels = t.CutMix{num_classes = 2}(all(x), dm.tensor{1, 2})
  return tostring(mixed.shape) .. tostring(labels.shape)
end)

local Squares = data.Dataset:extend "Squares"
function Squares:len() return 5 end -- luacheck: ignore 212
function Squares:get(i) return dm.full({2}, i), i * i end -- luacheck: ignore 212
scenario("an epoch of samples made in Lua", function() return Squares() end, epoch_of(0))
scenario("an epoch of them by a worker", function() return Squares() end, epoch_of(1))

scenario("an epoch of windows of a file", function()
  assert(dm.text.write_tokens(FILE, dm.arange(40, {device = "cpu"})))
  return {len = function() return 4 end, batches = function() return {{1, 2}, {8}, {3}, {4}} end}
end, function(sampler)
  local set = dm.text.Windows(assert(data.TokenFile(FILE)), {length = 8, step = 4})
  local sum = 0
  for _, x in data.DataLoader(set, {batch_sampler = sampler, num_workers = 1}):iter() do
    sum = sum + x:sum():item()
  end
  return sum
end)

local ROOT = FILE .. "-images" -- spec/golden/images as the one class of a folder
if dm.read_image "spec/golden/images/gray.jpg" then -- not in a build without libjpeg
  assert(os.execute(("mkdir %s && ln -s $PWD/spec/golden/images %s/one"):format(ROOT, ROOT)))
  local T = dm.transforms
  local function crops() return T.Compose{T.RandomCrop(8, {padding = 2}), T.ToTensor()} end
  for _, workers in ipairs{0, 2} do
    scenario("an epoch of images in a folder, workers: " .. workers, crops, function(transform)
      local set = assert(dm.datasets.ImageFolder(ROOT, {transform = transform}))
      return epoch_of(workers)(data.Subset(set, {1, 5, 7}))
    end)
  end
end

scenario("a world of one rank", leaf, function(w)
  local dist = dm.distributed
  dist.init_process_group()
  local _ <close> = setmetatable({}, {__close = function() dist.destroy_process_group() end})
  local group = dist.new_group{0}
  local x = dist.all_reduce(dm.ones(3, {dtype = "float16"}), "avg", {group = group})
  local list = dist.all_gather(w:detach())
  local y = dist.all_to_all_single(dm.zeros(4), dm.full({8}, 2.0)[{{1, -1, 2}}])
  y = dist.all_to_all_single(dm.zeros(4), y:to("float64"):to "float32", {4}, {4})
  local handle = dist.broadcast(y, 0, {async_op = true})
  local told = dist.all_gather_object{2, {"three"}, x}[1]
  local sum = handle:wait():sum() + list[1] * 0 + told[3]:sum()
  return sum:item() + told[1]
end)

scenario("a checkpoint of ranks", function()
  local w = leaf(3, 2)
  w.grad = dm.ones(3, 2)
  return w
end, function(w)
  local dist = dm.distributed
  dist.init_process_group()
  local _ <close> = setmetatable({}, {__close = function() dist.destroy_process_group() end})
  local zero = optim.ZeroRedundancyOptimizer({w}, {optimizer_class = optim.SGD, lr = 0.0})
  zero:step()
  assert(dist.save(FILE, {zero = zero, x = dm.ones(7), n = 2}))
  local found = assert(dist.load(FILE, {zero = zero}))
  return found.x:sum():item() + found.n
end)

scenario("gradients in buckets that are sent", function()
  dm.distributed.init_process_group()
  return leaf(3, 2)
end, function(x)
  local _ <close> = setmetatable({}, {__close = function()
    dm.distributed.destroy_process_group()
  end})
  local model = nn.Sequential{nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)}
  local ddp = nn.parallel.DistributedDataParallel(model, {bucket_cap_mb = 1e-5})
  ddp:register_comm_hook "bfloat16"
  local sum = 0
  for _ = 1, 2 do
    ddp(x):sum():backward()
    ddp:no_sync(function() ddp(x):sum():backward() end)
    for _, p in ipairs(model:parameters()) do sum = sum + p.grad:sum():item() end
    ddp:zero_grad()
  end
  return sum
end)

scenario("gradients of shards", function()
  dm.distributed.init_process_group()
  return leaf(4, 2)
end, function(x)
  local _ <close> = setmetatable({}, {__close = function()
    dm.distributed.destroy_process_group()
  end})
  local model = nn.Sequential{nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1):bfloat16()}
  local ddp = nn.parallel.DistributedDataParallel(model, {bucket_cap_mb = 1e-5, shards = 2})
  local sum = 0
  for _ = 1, 2 do
    sum = sum + ddp:each_shard(function(part)
      local loss = model[3](model[2](model[1](part)):bfloat16()):float():square():mean()
      loss:backward()
      return loss
    end, x:detach()):item()
  end
  for _, p in ipairs(model:parameters()) do sum = sum + p.grad:float():sum():item() end
  return sum
end)

scenario("a profile", function() return leaf(2, 2) end, function(w)
  local prof <close> = dm.profiler.profile{record_shapes = true, with_stack = true}
  dm.profiler.record_function("step", function() w:mm(w):sum():backward() end)
  prof:stop()
  local seen = {}
  for i, e in ipairs(prof:key_averages()) do seen[i] = e.key end -- a second try counts too
  return table.concat(seen, " ")
end)

-- ---- the walk ----

local function in_use()
  collectgarbage()
  collectgarbage() -- what finalizers let go of
  return hooks.alloc_live(), dm.memory_allocated()
end

-- Runs s with request n refused; n = 0: none. Gives whether n was reached.
local function attempt(s, n, sticky)
  dm.manual_seed(1)
  local given = s.setup()
  hooks.alloc_fail_at(n, sticky)
  local ok, value = pcall(s.run, given)
  local reached = hooks.alloc_requests() >= n
  hooks.alloc_fail_at(0)
  return reached, ok, value
end

local function check_refusal(s, ok, value)
  if ok then
    if value ~= s.want then return ("gave %s, wanted %s"):format(value, s.want) end
  elseif type(value) ~= "string" or not value:find "out of memory" then
    return "raised: " .. tostring(value)
  end
  if not dm.is_grad_enabled() or amp.is_autocast_enabled "cpu" or dm.is_anomaly_enabled() then
    return "left a mode behind"
  end
  local sum = dm.ones(2, 2):matmul(dm.ones(2, 2)):add(1):sum():item()
  if sum ~= 12 then return ("then 12 was computed as %s"):format(sum) end
end

local function check_rest(s)
  local live, bytes = in_use()
  if live == s.live and bytes == s.bytes then return nil end
  return ("left %d blocks and %d bytes behind"):format(live - s.live, bytes - s.bytes)
end

local function walk(s, sticky)
  for n = 1, math.huge do
    local reached, ok, value = attempt(s, n, sticky)
    local problem = check_refusal(s, ok, value)
    value = nil -- luacheck: ignore 311
    problem = problem or check_rest(s)
    if problem then
      return ("request %d%s refused: %s"):format(n, sticky and " and all after it" or "", problem)
    end
    if not reached then return nil, n - 1 end
  end
end

-- Threads, caches and loaded modules last: they are made before the base is counted.
local function warm_up(s)
  for _ = 1, 2 do
    local _, ok, value = attempt(s, 0)
    if not ok then return tostring(value) end
    s.want = value
  end
  s.live, s.bytes = in_use()
end

local only = arg and arg[1]
local share, shares = (only or ""):match "^(%d+)/(%d+)$"
local function chosen(i)
  if share then return i % tonumber(shares) == tonumber(share) - 1 end
  return not only or scenarios[i].name == only
end

local passed, failed, refused = 0, 0, 0
for i, s in ipairs(scenarios) do
  if chosen(i) then
    local problem = warm_up(s)
    for _, sticky in ipairs{false, true} do
      if problem then break end
      local count
      problem, count = walk(s, sticky)
      refused = refused + (count or 0)
    end
    if problem then
      failed = failed + 1
      print(("failed: %s: %s"):format(s.name, problem))
    else
      passed = passed + 1
    end
  end
end
os.remove(FILE)
os.execute("rm -rf " .. ROOT)
print(("%d requests refused"):format(refused))
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0)
