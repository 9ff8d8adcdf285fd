-- Whole trainings: the loss falls, any number of threads gives the same bits, and a resumed
-- training continues bit for bit.

local dm = require "demilune"
local DEVICE = require("spec.device").type
local nn, optim, amp, data = dm.nn, dm.optim, dm.amp, dm.data

local function clusters(n)
  local g = dm.get_rng_state()
  dm.manual_seed(99)
  local labels = dm.randint(3, {n})
  local x = dm.randn(n, 1, 8, 8) + labels:float():reshape(n, 1, 1, 1) - 2
  dm.set_rng_state(g)
  return data.TensorDataset(x, labels)
end

-- Everything a training consists of, from a seed.
local function setup(dtype, seed)
  dm.manual_seed(seed)
  local t = {dtype = dtype, losses = {}}
  t.loader = data.DataLoader(clusters(96),
    {batch_size = 16, shuffle = true, num_workers = 1, seed = seed})
  t.model = nn.Sequential{
    nn.Conv2d(1, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 3),
  }
  t.optimizer = optim.AdamW(t.model:parameters(), {lr = 1e-2})
  t.schedule = optim.lr_scheduler.OneCycleLR(t.optimizer, 1e-2, {total_steps = 24})
  t.scaler = amp.GradScaler{device = DEVICE, init_scale = 2.0 ^ 12, enabled = dtype == "float16"}
  return t
end

local function epoch(t)
  for _, x, y in t.loader:iter() do
    x, y = x:to(DEVICE), y:to(DEVICE)
    t.optimizer:zero_grad()
    local half = t.dtype ~= "float32"
    local region = {device_type = DEVICE, dtype = half and t.dtype or nil, enabled = half}
    local loss = amp.autocast(region, function()
      return nn.functional.cross_entropy(t.model(x), y)
    end)
    t.scaler:scale(loss):backward()
    t.scaler:step(t.optimizer)
    t.scaler:update()
    t.schedule:step()
    t.losses[#t.losses + 1] = loss:item()
  end
end

local function same_weights(a, b)
  local other = b:state_dict()
  for name, w in pairs(a:state_dict()) do
    assert.is_true(w:equal(other[name]), name .. " differs")
  end
end

for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
  describe("training in " .. dtype, function()
    it("learns", function()
      local t = setup(dtype, 1)
      for _ = 1, 4 do epoch(t) end
      assert.is_true(t.losses[#t.losses] < 0.5 * t.losses[1])
    end)

    it("goes on bit for bit from a checkpoint", function()
      local path = os.tmpname()
      local whole = setup(dtype, 5)
      epoch(whole)
      assert(dm.save(path, {
        model = whole.model:state_dict(), optimizer = whole.optimizer:state_dict(),
        schedule = whole.schedule:state_dict(), scaler = whole.scaler:state_dict(),
        loader = whole.loader:state_dict(), rng = dm.get_rng_state(),
      }))
      epoch(whole)
      local resumed = setup(dtype, 6)
      local saved = assert(dm.load(path))
      os.remove(path)
      resumed.model:load_state_dict(saved.model)
      resumed.optimizer:load_state_dict(saved.optimizer)
      resumed.schedule:load_state_dict(saved.schedule)
      if resumed.scaler:is_enabled() then resumed.scaler:load_state_dict(saved.scaler) end
      resumed.loader:load_state_dict(saved.loader)
      dm.set_rng_state(saved.rng)
      epoch(resumed)
      same_weights(whole.model, resumed.model)
    end)

    it("does not depend on the number of threads", function()
      local n = dm.get_num_threads()
      local runs = {}
      for i, threads in ipairs{1, 3} do
        dm.set_num_threads(threads)
        runs[i] = setup(dtype, 3)
        epoch(runs[i])
      end
      dm.set_num_threads(n)
      same_weights(runs[1].model, runs[2].model)
    end)
  end)
end

describe("autocast in a step", function()
  it("saves 16-bit activations: less memory than float32", function()
    local function peak(dtype)
      local t = setup(dtype, 1)
      epoch(t)
      collectgarbage()
      dm.reset_peak_memory_stats(DEVICE)
      local start = dm.memory_allocated(DEVICE)
      local x, y = dm.randn(256, 1, 8, 8), dm.ones(256, {dtype = "int64"})
      local loss = amp.autocast({device_type = DEVICE, enabled = dtype ~= "float32"},
        function() return nn.functional.cross_entropy(t.model(x), y) end)
      loss:backward()
      return dm.max_memory_allocated(DEVICE) - start
    end
    assert.is_true(peak "bfloat16" < 0.8 * peak "float32")
  end)

  it("casts each weight once", function()
    local t = setup("bfloat16", 1)
    local x = dm.randn(4, 1, 8, 8)
    local before = dm.autocast_cast_count()
    amp.autocast({device_type = DEVICE}, function() return t.model(x) + t.model(x) end)
    -- 2 weights and 2 biases once; of each forward, x and nothing else
    assert.equal(4 + 2, dm.autocast_cast_count() - before)
  end)
end)
