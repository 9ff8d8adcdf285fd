-- A small random training, all of which follows from a seed: what learns, from which data, by
-- which optimizer, in which dtype, and in which kind of loop.

local dm = require "demilune"
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data

local training = {}
local Training = {}
Training.__index = Training

-- ---- models ----

local LastOfLSTM = nn.Module:extend "LastOfLSTM"
function LastOfLSTM:init(width)
  self.lstm = nn.LSTM(6, width, {batch_first = true})
  self.head = nn.Linear(width, 4)
end
function LastOfLSTM:forward(x) return self.head((self.lstm(x)):select(2, -1)) end

-- Each gives a module, and the shape of a sample.
local MODELS = {
  mlp = function(width)
    return nn.Sequential{nn.Linear(10, width), nn.ReLU(), nn.Dropout(0.1),
      nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4)}, {10}
  end,
  cnn = function(width)
    return nn.Sequential{nn.Conv2d(2, width, 3, {padding = 1}), nn.BatchNorm2d(width), nn.ReLU(),
      nn.MaxPool2d(2), nn.Conv2d(width, 8, 3), nn.ReLU(), nn.Flatten(),
      nn.Linear(32, 4)}, {2, 8, 8}
  end,
  lstm = function(width) return LastOfLSTM(width), {9, 6} end,
  gpt = function(width)
    return dm.models.gpt2{n_layer = 2, n_head = 2, n_embd = width, block_size = 10,
      vocab_size = 24}, {10}
  end,
}

local OPTIMIZERS = {
  SGD = {lr = 0.05, momentum = 0.9}, Adam = {lr = 0.01}, AdamW = {lr = 0.01}, RMSprop = {lr = 0.01},
  Adagrad = {lr = 0.05}, NAdam = {lr = 0.01}, RAdam = {lr = 0.01}, Adadelta = {}, Adamax = {},
  LAMB = {lr = 0.01},
}

-- The key of a table that a random number chooses.
local function choose(list)
  local keys = {}
  for key in pairs(list) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys[math.random(#keys)]
end

-- ---- data ----

-- A data set written in Lua, which adds noise of its own: workers run it in Lua states.
local Noisy = data.Dataset:extend "Noisy"
function Noisy:init(x, y) self.x, self.y = x, y end
function Noisy:len() return #self.x end
function Noisy:get(i)
  local x = self.x[i]
  if x.dtype == "float32" then x = x + dm.rand(x.shape) * 0.1 end
  return x, self.y[i]
end

local function data_set(kind, shape, n, in_lua)
  local x, y
  if kind == "gpt" then
    local ids = dm.randint(24, {n, shape[1] + 1})
    x, y = ids:narrow(2, 1, shape[1]), ids:narrow(2, 2, shape[1])
  else
    x, y = dm.randn(n, table.unpack(shape)), dm.randint(4, {n})
  end
  return in_lua and Noisy(x, y) or data.TensorDataset(x, y)
end

-- ---- the training ----

local function forward(model, x, y)
  local scores = model(x)
  return nn.functional.cross_entropy(scores:flatten(1, -2), y:flatten()), scores
end

-- The training of a seed, with so many samples. Its loop is "own" or "trainer".
function training.new(seed, samples)
  math.randomseed(seed)
  dm.manual_seed(seed)
  local kind, optimizer = choose(MODELS), choose(OPTIMIZERS)
  local model, shape = MODELS[kind](math.random(2, 5) * 8)
  local in_lua, workers = math.random() < 0.4, math.random(0, 2)
  local self = setmetatable({seed = seed, model = model, epochs = math.random(2, 4),
    dtype = ({"float32", "bfloat16", "float16"})[math.random(3)],
    loop = math.random() < 0.4 and "trainer" or "own", every = math.random(2, 7),
    accumulate = math.random(2), clip = math.random() < 0.5 and 1.0 or nil}, Training)
  self.loader = data.DataLoader(data_set(kind, shape, samples, in_lua),
    {batch_size = math.random(5, 9), shuffle = true, num_workers = workers, seed = seed})
  self.optimizer = optim[optimizer](model:parameters(), OPTIMIZERS[optimizer])
  self.schedule = optim.lr_scheduler.StepLR(self.optimizer, {step_size = 5, gamma = 0.9})
  self.init_scale = 2.0 ^ math.random(8, 20)
  self:new_scaler()
  self.losses = {}
  self.name = ("%s, %s, %s, %s loop, %d %s"):format(kind, optimizer, self.dtype, self.loop, workers,
    in_lua and "workers of Lua samples" or "workers of tensors")
  return self
end

function Training:new_scaler()
  self.scaler = amp.GradScaler{device = "cpu", enabled = self.dtype == "float16",
    init_scale = self.init_scale, growth_interval = 5}
end

-- A step of one's own loop: -> the loss, a number.
function Training:step(x, y)
  local _ <close> = dm.scope()
  local region = {device_type = "cpu", enabled = self.dtype ~= "float32",
    dtype = self.dtype ~= "float32" and self.dtype or nil}
  local loss = amp.autocast(region, function() return (forward(self.model, x, y)) end)
  self.scaler:scale(loss):backward()
  self.scaler:unscale_(self.optimizer)
  if self.clip then nn.utils.clip_grad_norm_(self.model:parameters(), self.clip) end
  self.scaler:step(self.optimizer)
  self.scaler:update()
  self.schedule:step()
  self.optimizer:zero_grad()
  return loss:item()
end

-- All of its state between two steps, as tables for dm.save.
function Training:state()
  return {model = self.model:state_dict(), optimizer = self.optimizer:state_dict(),
    schedule = self.schedule:state_dict(), loader = self.loader:state_dict(),
    scaler = self.scaler:is_enabled() and self.scaler:state_dict() or nil,
    rng = dm.get_rng_state(), losses = {table.unpack(self.losses)}}
end

-- The scaler is a new one: as PyTorch's, it would remember that a step which failed had unscaled.
function Training:load(state)
  self:new_scaler()
  for _, part in ipairs{"model", "optimizer", "schedule", "loader", "scaler"} do
    if state[part] then self[part]:load_state_dict(state[part]) end
  end
  self.optimizer:zero_grad()
  self.losses = {table.unpack(state.losses)}
  dm.set_rng_state(state.rng)
end

-- The same as a dm.Trainer, which writes checkpoints to `path` and goes on from the one there.
function Training:trainer(path, resume, callbacks)
  return dm.Trainer{model = self.model, forward = forward, optimizer = self.optimizer,
    schedule = self.schedule, amp = self.dtype, clip = self.clip, accumulate = self.accumulate,
    checkpoint = path, resume = resume, callbacks = callbacks, verbose = false}
end

return training
