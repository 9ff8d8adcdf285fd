-- Trainings in shards, on any number of ranks: prints digests of all that they give, which have to
-- be the same for each number. Results are compared with those of the whole batch as well.
-- `mpirun -n 2 lua5.4 spec/distributed/shards.lua 8 [FOLDER]`: shards, where a Trainer saves.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local nn, optim, data, amp, dist = dm.nn, dm.optim, dm.data, dm.amp, dm.distributed
local DDP = nn.parallel.DistributedDataParallel
local mse = nn.functional.mse_loss

dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()
local V, folder = math.tointeger(tonumber(arg[1])), arg[2]

local function say(...)
  if rank == 0 then print(...) end
end

local function digest(tensors) return table.concat(core._digests(tensors):totable(), " ") end

-- This rank's part of a batch.
local function mine(x)
  local size = x:size(1) // n
  return x:narrow(1, rank * size + 1, size)
end

-- Parameters and buffers of a model, and the generator's state.
local function show_state(what, model)
  local all = model:parameters()
  table.move(model:buffers(), 1, #model:buffers(), #all + 1, all)
  local rng = dm.get_rng_state()
  say(what, digest(all), rng.seed, rng.offset)
end

-- ---- the gradient is that of the whole batch ----

local function check_gradient()
  local function make()
    dm.manual_seed(3)
    return nn.Sequential{nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)}:double()
  end
  local alone, model = make(), DDP(make(), {shards = V, bucket_cap_mb = 0.0001})
  local x = dm.randn(4 * V, 8):double()
  local y = x:sum(2, {keepdim = true}):cos()
  for pass = 1, 2 do -- the second adds to the gradients of the first
    local wanted = mse(alone(x * pass), y)
    wanted:backward()
    local loss = model:each_shard(function(a, b)
      local part = mse(model(a), b)
      part:backward()
      return part
    end, mine(x * pass), mine(y))
    assert((loss - wanted):abs():item() < 1e-12 and not loss.requires_grad, "the loss")
    for i, p in ipairs(model:parameters()) do
      local g = alone:parameters()[i].grad
      assert((p.grad - g):abs():max():item() <= 1e-12, "the gradient")
    end
  end
end

-- ---- trainings ----

local function images()
  return nn.Sequential{nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
    nn.Flatten(), nn.Linear(4 * 36, 10)}, function() return dm.randn(4 * V, 1, 8, 8) end
end

local function tokens()
  local Text = nn.Module:extend "Text"
  function Text:init()
    self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 10)
    self.block = nn.TransformerEncoderLayer(16, 2, {dim_feedforward = 32, dropout = 0.2,
      batch_first = true})
  end
  function Text:forward(x)
    return self.head(nn.utils.checkpoint(self.block, self.embed(x)):mean(2))
  end
  return Text(), function() return dm.randint(20, {2 * V, 6}) end
end

-- Parameters of several dtypes; some shards leave some out, and nobody uses the last one.
local function kinds()
  local Kinds = nn.Module:extend "Kinds"
  function Kinds:init()
    self.wide = nn.Parameter(dm.randn(5):double())
    self.narrow = nn.Parameter(dm.randn(8, 4):bfloat16())
    self.tied, self.never = nn.Linear(8, 8), nn.Linear(8, 8)
    self.head = nn.Linear(8, 10)
  end
  function Kinds:forward(x)
    local h = self.tied(x):tanh()
    if x[{1, 1}]:item() > 0 then h = self.tied(h) + self.wide:sum():float() end
    local low = (x:bfloat16():matmul(self.narrow):float()):sum(2, {keepdim = true})
    return self.head(h * low)
  end
  return Kinds(), function() return dm.randn(2 * V, 8) end
end

-- Some steps of one or two batches each; in float16 the scale is too large at first, and the
-- fifth batch has an infinity in one shard.
local function train(what, make, make_optimizer, dtype)
  dm.manual_seed(5)
  local module, draw = make()
  local model = DDP(module, {shards = V, bucket_cap_mb = 0.001, check_every = 3})
  local optimizer = make_optimizer(model:parameters())
  local scaler = amp.GradScaler{device = "cpu", init_scale = 2 ^ 18, enabled = dtype == "float16"}
  local autocast = {device_type = "cpu", enabled = dtype ~= "float32",
    dtype = dtype ~= "float32" and dtype or nil}
  local losses = {}
  for step = 1, 5 do
    for _ = 1, step % 2 + 1 do
      local x = draw()
      local y = dm.randint(10, {#x})
      local bad = step == 5 and dtype == "float16" and x:is_floating_point()
      if bad then x[#x // 2 + 1]:fill_(1 / 0) end
      losses[#losses + 1] = model:each_shard(function(a, b)
        local loss = amp.autocast(autocast, function()
          return nn.functional.cross_entropy(model(a), b)
        end)
        scaler:scale(loss):backward()
        return loss
      end, mine(x), mine(y))
    end
    scaler:unscale_(optimizer)
    losses[#losses + 1] = nn.utils.clip_grad_norm_(model:parameters(), 0.5)
    scaler:step(optimizer)
    scaler:update()
    optimizer:zero_grad()
  end
  what = ("%s %s"):format(what, dtype)
  say(what, digest(losses), scaler:is_enabled() and scaler:stats().skipped or "")
  show_state(what, module)
  if module.never then assert(module.never.weight.grad == nil, "nobody has used it") end
end

-- ---- a Trainer and its file ----

local function check_trainer(dtype, accumulate)
  dm.manual_seed(7)
  local x = dm.randn(102, 6)
  local y = x:select(2, 1):gt(0):to "int64" + 1
  local set = data.TensorDataset(x, y)
  local model = nn.Sequential{nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 2)}
  local optimizer = optim.AdamW(model:parameters(), {lr = 0.01})
  local path = ("%s/%s-%d.safetensors"):format(folder, dtype, accumulate)
  local trainer = dm.Trainer{model = model, shards = V, loss = nn.CrossEntropyLoss(),
    optimizer = optimizer, amp = dtype, accumulate = accumulate, clip = 0.5, checkpoint = path,
    metrics = {accuracy = dm.metrics.Accuracy()}, verbose = false,
    ema = optim.swa_utils.AveragedModel(model, {decay = 0.9}),
    batch_transform = function(a, b) return a + dm.randn(#a, 6) * 0.1, b end,
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.01, {total_steps = 20})}
  assert(trainer.shards == V and trainer.model.class == "DistributedDataParallel")
  local values = trainer:fit{train = data.DataLoader(set, {batch_size = 2 * V, shuffle = true,
    shards = V}), valid = data.DataLoader(set, {batch_size = 7}), epochs = 2}[2]
  say(dtype, accumulate, ("%.17g %.17g %.17g"):format(values.train_loss, values.valid_loss,
    values.train_accuracy))
  show_state(dtype, model)
end

check_gradient()
local function adam(params) return optim.AdamW(params, {lr = 0.01}) end
local function sgd(params) return optim.SGD(params, {lr = 0.1, momentum = 0.9}) end
for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
  train("images", images, adam, dtype)
  train("tokens", tokens, sgd, dtype)
end
train("kinds", kinds, sgd, "float32")
if folder then
  for _, dtype in ipairs{"float32", "bfloat16", "float16"} do check_trainer(dtype, 1) end
  check_trainer("float16", 3)
end

-- ---- a loader ----

local Drawn = data.Dataset:extend "Drawn"
function Drawn.init() end
function Drawn.len() return 45 end
function Drawn.get(_, i) return dm.tensor(i), dm.rand(2) end
for _, set in ipairs{data.TensorDataset(dm.arange(45), dm.arange(45)), Drawn()} do
  for _, o in ipairs{{shuffle = true}, {drop_last = true},
    {num_workers = 2, sampler = data.RandomSampler(set, {seed = 3})}} do
    o.batch_size, o.shards = 2 * V, V
    local loader = data.DataLoader(set, o)
    loader:load_state_dict{seed = 5, epoch = 2, position = 1}
    for _ = 1, 2 do
      for i, x, y in loader:iter() do
        local all = dist.all_gather_object{x = x, y = y}
        local xs, ys = {}, {}
        for r, part in ipairs(all) do xs[r], ys[r] = part.x, part.y end
        say(i, #loader, table.concat(dm.cat(xs):reshape(-1):totable(), " "), digest{dm.cat(ys)})
      end
    end
  end
end
dist.destroy_process_group()
