-- A Trainer and metrics on several ranks, for ddp_spec.lua: `mpirun -n 2 lua5.4
-- spec/distributed/trainer.lua FOLDER`.

local core = require "demilune.core"
core._test.without_cuda()
local dm = require "demilune"
local nn, optim, data, dist = dm.nn, dm.optim, dm.data, dm.distributed

dist.init_process_group{timeout = 60}
local rank, n = dist.get_rank(), dist.get_world_size()
local folder = arg[1]

local function same_everywhere(value, what)
  for r, other in ipairs(dist.all_gather_object(value)) do
    assert(other == value, ("%s: %s on rank %d, %s on rank %d"):format(what, tostring(other), r - 1,
      tostring(value), rank))
  end
end

-- ---- metrics: each rank counts a share, and all_reduce gives the whole's value ----

dm.manual_seed(3)
local scores, labels = dm.randn(30, 4), dm.randint(4, {30})
local binary = labels:gt(2):to "int64"
local function of(metric, share)
  for i = 1, 30, 5 do
    local rows = {{i, i + 4}}
    if share(i // 5) then
      if metric.class == "AUROC" then metric:update(scores[{rows[1], 1}], binary[rows])
      elseif metric.class == "Mean" then metric:update(scores[rows], 2)
      else metric:update(scores[rows], labels[rows]) end
    end
  end
  return metric
end
for _, case in ipairs{{"Mean"}, {"Accuracy"}, {"ConfusionMatrix", num_classes = 4}, {"AUROC"},
  {"F1Score", num_classes = 4}, {"Perplexity"}} do
  local name, options = table.remove(case, 1), case
  local whole = of(dm.metrics[name](options), function() return true end):compute()
  for _, share in ipairs{function(k) return k % n == rank end, function() return rank == 0 end} do
    local part = of(dm.metrics[name](options), share)
    local all = part:all_reduce():compute()
    if dm.is_tensor(all) then assert(all:equal(whole), name)
    else assert(math.abs(all - whole) < 1e-12, name) end
  end
end

-- ---- a Trainer ----

local x = dm.randn(48, 6)
local y = x:select(2, 1):gt(0):to "int64" + 1
local set = data.TensorDataset(x, y)
local valid = data.TensorDataset(x[{{1, 21}}], y[{{1, 21}}])
local SAVED = folder .. "/ranks.safetensors"

local function trainer(more)
  dm.manual_seed(7)
  local model = nn.parallel.DistributedDataParallel(nn.Sequential{nn.Linear(6, 8), nn.ReLU(),
    nn.Dropout(0.2), nn.Linear(8, 2)})
  local o = {model = model, loss = nn.CrossEntropyLoss(),
    metrics = {accuracy = dm.metrics.Accuracy()},
    optimizer = optim.AdamW(model:parameters(), {lr = 0.01}), amp = "float16", accumulate = 2}
  for key, value in pairs(more) do o[key] = value end
  return dm.Trainer(o), model
end
local function loader()
  return data.DataLoader(set, {batch_size = 4, sampler = data.DistributedSampler(set, {seed = 2})})
end
local function weights(model) return nn.utils.parameters_to_vector(model:parameters()) end
local whole_valid = data.DataLoader(valid, {batch_size = 4})

local printed = 0
local undisturbed, model = trainer{verbose = true, report = function() printed = printed + 1 end}
local history = undisturbed:fit{train = loader(), valid = whole_valid, epochs = 3}
assert(printed == (rank == 0 and 3 or 0), "who prints")
for _, name in ipairs{"train_loss", "valid_loss", "valid_accuracy"} do
  same_everywhere(history[3][name], name)
end

-- the values are those of one process that sees every sample once
local right, total = 0, 0
model:eval()
dm.no_grad(function()
  for _, a, b in whole_valid:iter() do
    local found
    do
      local _ <close> = dm.amp.autocast{device_type = "cpu", dtype = "float16"}
      found = model(a):argmax(2)
    end
    right, total = right + found:eq(b):sum():item(), total + #a
  end
end)
assert(total == 21 and math.abs(history[3].valid_accuracy - right / total) < 1e-12, "accuracy")
model:train()

-- a checkpoint of the first rank, from which all go on with their own random numbers
trainer{verbose = false, checkpoint = SAVED}:fit{train = loader(), valid = whole_valid, epochs = 2}
dist.barrier()
assert(io.open(SAVED), "no checkpoint"):close()
local resumed, again = trainer{verbose = false, resume = SAVED}
resumed:fit{train = loader(), valid = whole_valid, epochs = 3}
assert(weights(model):equal(weights(again)), "resumed weights")
assert(nn.Sequential{nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)}
  :load_state_dict(assert(dm.load(SAVED)).model), "one process reads it")

-- one that cannot be written is told to all, and one that wants to stop stops all
local ok, why = pcall(resumed.save, resumed, folder .. "/nowhere/file")
assert(not ok and why:find "Trainer: save: ", tostring(why))
local stopped = trainer{verbose = false, callbacks = {on_epoch_end = function()
  return rank ~= 1
end}}
assert(#stopped:fit{train = loader(), epochs = 3} == 1, "all stop")

-- running statistics differ behind a training pass: all ranks evaluate with the first one's, which
-- are those that are saved
dm.manual_seed(8)
local normed = nn.parallel.DistributedDataParallel(
  nn.Sequential{nn.BatchNorm1d(1), nn.Linear(1, 1)})
normed(dm.tensor{{0}, {1 + 9 * rank}}:float()):sum():backward()
local function errors()
  return dm.Trainer{model = normed, optimizer = optim.SGD(normed:parameters(), {lr = 1}),
    loss = nn.functional.mse_loss, device = "cpu"}:evaluate(data.DataLoader(data.TensorDataset(
      dm.linspace(0, 7, 8):reshape(-1, 1), dm.zeros(8, 1)), {batch_size = 2})).loss
end
local valid_loss, of_first = errors(), 0
assert(math.abs(normed.module[1].running_mean:item() - 0.05) < 1e-6, "the first rank's mean")
for i = 0, 6, 2 do
  local v = dm.tensor{{i}, {i + 1}}:float()
  local wanted = dm.no_grad(function() return normed.module:eval()(v) end)
  of_first = of_first + wanted:square():mean() / 4
end
assert(math.abs(valid_loss - of_first:item()) < 1e-5, "evaluated by the first rank's statistics")

print(("rank %d of %d: a Trainer"):format(rank, n))
dist.destroy_process_group()
