-- dm.cuda.graph: a training step that is captured does what the eager one does, to the last bit.
local dm = require "demilune"
local both = require "spec.cuda.both"
local warnings = require "spec.warnings"
local hooks = require("demilune.core")._test
local amp, nn, optim = dm.amp, dm.nn, dm.optim

local STEPS, WARMUP = 50, 3

local function on_cuda(f) return both.on("cuda", f) end

local function it_captures(name, f)
  it(name, function()
    if both.missing() then return pending "no CUDA device" end
    on_cuda(f)
  end)
end

local function it_counts(name, f)
  both.it_counts(name, function() on_cuda(f) end)
end

-- ---- models, and a batch of each ----

local MODELS = {}

function MODELS.mlp()
  return nn.Sequential{nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, 5)},
    function(n) return dm.randn(n, 6) end
end

function MODELS.cnn()
  return nn.Sequential{nn.Conv2d(2, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(),
    nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), nn.Linear(4 * 3 * 3, 5)},
    function(n) return dm.randn(n, 2, 6, 6) end
end

function MODELS.transformer()
  local model = nn.Sequential{nn.Embedding(11, 8), nn.TransformerEncoderLayer(8, 2,
    {dim_feedforward = 16, dropout = 0.1, batch_first = true}), nn.Linear(8, 5)}
  function model:forward(x) return self[3](self[2](self[1](x)):mean(2)) end
  return model, function(n) return dm.randint(11, {n, 6}) end
end

-- ---- a training ----

local OPTIMIZERS = {
  SGD = function(p) return optim.SGD(p, {lr = 0.05, momentum = 0.9}) end,
  Adam = function(p) return optim.Adam(p, {lr = 0.01}) end,
  AdamW = function(p) return optim.AdamW(p, {lr = 0.01, amsgrad = true}) end,
}

-- opts: model, optimizer, dtype (of autocast; nil: none), batch, schedule (of the rate),
-- clip. -> the step (x, y) -> loss, and its parts.
local function training(opts)
  dm.manual_seed(5)
  local model, draw = MODELS[opts.model or "mlp"]()
  local t = {model = model, draw = draw}
  t.optimizer = OPTIMIZERS[opts.optimizer or "SGD"](model:parameters())
  t.scaler = amp.GradScaler{device = "cuda", enabled = opts.dtype == "float16", init_scale = 64,
    growth_interval = 3}
  t.schedule = opts.schedule and opts.schedule(t.optimizer)
  function t.step(x, y)
    t.optimizer:zero_grad()
    local loss = amp.autocast({dtype = opts.dtype or "float16", enabled = opts.dtype ~= nil},
      function() return nn.functional.cross_entropy(model(x), y) end)
    t.scaler:scale(loss):backward()
    if opts.clip then
      t.scaler:unscale_(t.optimizer)
      nn.utils.clip_grad_norm_(model:parameters(), opts.clip)
    end
    t.scaler:step(t.optimizer)
    t.scaler:update()
    if t.schedule then t.schedule:step() end
    return loss
  end
  return t
end

-- The batches, which are the same whatever is done with them; one has a number that overflows.
local function batches(t, n, opts)
  local list, generator = {}, dm.Generator():manual_seed(7)
  local state = dm.get_rng_state()
  dm.manual_seed(11)
  for i = 1, n do
    local size = opts.sizes and opts.sizes[i % #opts.sizes + 1] or 4
    local x = t.draw(size)
    if i == opts.overflow then x[1] = math.huge end
    list[i] = {x, dm.randint(5, {size}, {generator = generator})}
  end
  dm.set_rng_state(state)
  return list
end

-- What the training of n steps leaves: the bits of each loss, of parameters and buffers.
local function trace(opts, wrap)
  local t = training(opts)
  local step, bits = wrap(t.step), {}
  for i, batch in ipairs(batches(t, opts.steps or STEPS, opts)) do
    bits[i] = both.bits(step(batch[1], batch[2]):detach())
  end
  for name, v in pairs(t.model:state_dict()) do bits[name] = both.bits(v) end
  bits.rng, bits.lr = dm.get_rng_state(), t.optimizer.param_groups[1].lr
  bits.scale, bits.steps = t.scaler:get_scale(), t.optimizer.steps
  bits.stats = opts.dtype == "float16" and t.scaler:stats().skipped or nil
  return bits, t, step
end

local function plain(f) return f end
local function graphed(f) return dm.cuda.graph(f, {warmup = WARMUP}) end

local function assert_same(opts)
  local want = trace(opts, plain)
  local got, t, step = trace(opts, graphed)
  assert.same(want, got)
  return want, t, step
end

local function halving(optimizer) return optim.lr_scheduler.StepLR(optimizer, 7) end
local function cosine(optimizer)
  return optim.lr_scheduler.OneCycleLR(optimizer, {max_lr = 0.05, total_steps = 60})
end
local function chain(optimizer)
  local l = optim.lr_scheduler
  return l.SequentialLR(optimizer, {l.LinearLR(optimizer), l.ExponentialLR(optimizer, 0.9)},
    {milestones = {20}})
end

describe("dm.cuda.graph", function()
  for _, case in ipairs{
    {"an MLP in float32 with SGD", {}},
    {"an MLP in float32 with Adam, clipped, on a schedule",
      {optimizer = "Adam", clip = 0.5, schedule = halving}},
    {"an MLP in bfloat16 with AdamW, momenta moving too",
      {optimizer = "AdamW", dtype = "bfloat16", schedule = cosine}},
    {"an MLP in float16 with an overflow on the way",
      {dtype = "float16", overflow = 17, clip = 1, schedule = chain}},
    {"batch norm and convolutions in float32", {model = "cnn", schedule = halving}},
    {"batch norm and convolutions in float16 with Adam and an overflow",
      {model = "cnn", dtype = "float16", optimizer = "Adam", overflow = 30}},
    {"a transformer in float32 with AdamW, clipped",
      {model = "transformer", optimizer = "AdamW", clip = 1}},
    {"a transformer in bfloat16 with SGD on a schedule",
      {model = "transformer", dtype = "bfloat16", schedule = halving}},
    {"a transformer in float16 with Adam",
      {model = "transformer", dtype = "float16", optimizer = "Adam", clip = 1}},
  } do
    it_captures("gives the eager step's bits over 50 steps: " .. case[1], function()
      local _, t, step = assert_same(case[2])
      assert.equal(1, (step:count()))
      if case[2].overflow then assert.is_true(t.scaler:stats().skipped > 0) end
    end)
  end

  it_captures("captures each shape", function()
    local _, _, step = assert_same{sizes = {4, 3, 4, 4}, optimizer = "Adam", schedule = cosine}
    assert.equal(2, (step:count()))
    assert.truthy(tostring(step):find "^cuda.graph%(2 captured, %d+ pieces of work%)$")
    step:reset()
    assert.equal(0, (step:count()))
  end)

  it_captures("keeps so many graphs, and those that were used last", function()
    local step = dm.cuda.graph(function(x) return x * 2 end, {warmup = 1, max_graphs = 2})
    local function make(n)
      for _ = 1, 2 do assert.equal(2.0 * n, step(dm.ones(n)):sum():item()) end
    end
    make(1) make(2) make(3)
    assert.equal(2, (step:count()))
    local runs = 0
    step.fn = function(x) runs = runs + 1 return x * 2 end
    step(dm.ones(2)) step(dm.ones(3))
    assert.equal(0, runs)
    step(dm.ones(1))
    assert.equal(1, runs)
  end)

  it_counts("is one launch, whatever it holds, and waits for nothing", function()
    local t = training{model = "cnn", dtype = "float16", clip = 1, optimizer = "Adam"}
    local step = graphed(t.step)
    local x, y = t.draw(4), dm.randint(5, {4})
    for _ = 1, WARMUP + 2 do step(x, y) end
    local before = {}
    local words = {"launch", "sync", "malloc", "free", "host_malloc", "host_free", "switch", "node"}
    for _, word in ipairs(words) do before[word] = dm.cuda._count(word) end
    for _ = 1, 5 do step(x, y) end
    local _, nodes = step:count()
    before.launch, before.node = before.launch + 5, before.node + 5 * nodes
    assert.is_true(nodes > 10)
    for _, word in ipairs(words) do assert.equal(before[word], dm.cuda._count(word), word) end
  end)

  it_captures("follows a rate that something outside of it sets", function()
    local function run(wrap)
      local t = training{}
      local step, bits = wrap(t.step), {}
      for i, batch in ipairs(batches(t, 12, {})) do
        bits[i] = both.bits(step(batch[1], batch[2]):detach())
        t.optimizer.param_groups[1].lr = 0.1 / i
      end
      return bits
    end
    assert.same(run(plain), run(graphed))
  end)

  it_captures("draws as if it had run, with draws, seeds and evaluation in between", function()
    local function run(wrap)
      local t = training{dtype = "bfloat16"}
      local step, bits = wrap(t.step), {}
      for i, batch in ipairs(batches(t, 12, {})) do
        bits[i] = both.bits(step(batch[1], batch[2]):detach())
        if i % 3 == 0 then bits[-i] = both.bits(dm.rand(5)) end
        if i == 7 then dm.manual_seed(3) end
        if i % 4 == 0 then
          t.model:eval()
          dm.no_grad(function() bits[100 + i] = both.bits(amp.autocast({dtype = "bfloat16"},
            function() return t.model(batch[1]) end)) end)
          t.model:train()
        end
      end
      bits.rng = dm.get_rng_state()
      return bits
    end
    assert.same(run(plain), run(graphed))
  end)

  it_captures("notices modules that go to eval() or train() between the calls", function()
    local function run(wrap)
      local t = training{model = "cnn"}
      local step, bits = wrap(t.step), {}
      for i, batch in ipairs(batches(t, 24, {})) do
        if i == 8 then t.model[2]:eval() -- the batch norm alone
        elseif i == 13 then t.model:train()
        elseif i == 18 then t.model:eval() end
        bits[i] = both.bits(step(batch[1], batch[2]):detach())
      end
      for name, v in pairs(t.model:state_dict()) do bits[name] = both.bits(v) end
      return bits, step
    end
    local bits, step = run(graphed)
    assert.same(run(plain), bits)
    assert.equal(1, step:count())
  end)

  it_captures("notices parameters and state that something else writes", function()
    local function run(wrap)
      local t = training{dtype = "float16", optimizer = "Adam"}
      local step, bits = wrap(t.step), {}
      local saved, state
      for i, batch in ipairs(batches(t, 24, {})) do
        bits[i] = both.bits(step(batch[1], batch[2]):detach())
        if i == 6 then
          saved, state = {}, t.optimizer:state_dict()
          for name, v in pairs(t.model:state_dict()) do saved[name] = v:clone() end
        elseif i == 12 then
          t.model:load_state_dict(saved)
          t.optimizer:load_state_dict(state)
        elseif i == 17 then
          t.step(batch[1], batch[2]) -- a step that is not of the graph
        elseif i == 20 then
          t.scaler:set_growth_factor(4.0)
        end
      end
      bits.scale = t.scaler:get_scale()
      return bits
    end
    assert.same(run(plain), run(graphed))
  end)

  -- Asserts that n calls of the function, and what happens around them, leave the same bits:
  -- program(wrap, note) calls note(tensor, or nil) with what is compared.
  local function assert_alike(program)
    local function run(wrap)
      local bits = {}
      dm.manual_seed(3)
      program(wrap, function(t)
        bits[#bits + 1] = t and both.bits(t:detach()) or "none"
      end)
      return bits
    end
    assert.same(run(plain), run(graphed))
  end

  -- A model of that class, its optimizer, and a function of its losses that leaves gradients.
  local function passes(dtype)
    local model = nn.Linear(3, 2)
    return model, optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9}), function(x)
      local y = amp.autocast({dtype = dtype or "float16", enabled = dtype ~= nil}, function()
        return model(x)
      end)
      local loss = y:float():square():sum()
      loss:backward()
      return loss
    end
  end

  for _, case in ipairs{{"dropped", 1}, {"made zero", 1, false},
    {"dropped, after two calls", 2}, {"made zero, after two calls", 2, false}} do
    for _, dtype in ipairs{"float32", "bfloat16"} do
      local name = "adds to gradients that are stepped by outside and %s, %s"
      it_captures(name:format(case[1], dtype), function()
        assert_alike(function(wrap, note)
          local model, optimizer, pass = passes(dtype ~= "float32" and dtype or nil)
          local step = wrap(pass)
          for i = 1, 14 do
            note(step(dm.randn(4, 3)))
            note(model.weight.grad)
            if i % case[2] == 0 then
              optimizer:step()
              optimizer:zero_grad{set_to_none = case[3] == nil}
            end
            note(model.weight)
          end
        end)
      end)
    end
  end

  it_captures("leaves the gradients of the call, whichever kind it is of", function()
    assert_alike(function(wrap, note)
      local model, optimizer, pass = passes()
      local step = wrap(function(x)
        optimizer:zero_grad()
        pass(x)
        optimizer:step()
      end)
      for i = 1, 12 do
        step(dm.randn(3 + i % 2, 3))
        note(model.weight.grad)
      end
    end)
  end)

  it_captures("reads gradients that are not those of its capture", function()
    assert_alike(function(wrap, note)
      local model, optimizer, pass = passes()
      local step = wrap(function()
        nn.utils.clip_grad_norm_(model:parameters(), 0.5)
        optimizer:step()
      end)
      for _ = 1, 10 do
        optimizer:zero_grad()
        pass(dm.randn(4, 3))
        step()
        note(model.weight)
      end
    end)
  end)

  for _, dtype in ipairs{"float16", "bfloat16"} do
    it_captures("reads weights that are trained outside, in " .. dtype, function()
      assert_alike(function(wrap, note)
        local model, optimizer, pass = passes(dtype)
        local predict = wrap(function(x)
          return amp.autocast({dtype = dtype}, function() return model(x) end)
        end)
        for i = 1, 12 do
          note(predict(dm.randn(4, 3)))
          optimizer:zero_grad()
          pass(dm.randn(4, 3))
          optimizer:step()
          if i % 5 == 0 then model:load_state_dict{weight = dm.randn(2, 3), bias = dm.randn(2)} end
          note(predict(dm.randn(4, 3)))
        end
      end)
    end)
  end

  it_captures("leaves the weights of convolutions to eager calls in between", function()
    assert_alike(function(wrap, note)
      local model = nn.Conv2d(2, 3, 3)
      local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
      local step = wrap(function(x)
        optimizer:zero_grad()
        model(x):square():mean():backward()
        optimizer:step()
      end)
      local predict = wrap(function(x) return dm.no_grad(function() return model(x) end) end)
      for i = 1, 10 do
        local x = dm.randn(2, 2, 5, 5)
        step(x)
        dm.no_grad(function() note(model(x)) end)
        note(predict(x))
        if i % 4 == 0 then
          model:load_state_dict{weight = dm.randn(3, 2, 3, 3), bias = dm.ones(3)}
        end
        note(predict(x))
      end
    end)
  end)

  it_captures("notices data, groups and frozen weights that are new", function()
    assert_alike(function(wrap, note)
      local model = nn.Linear(3, 2)
      local optimizer = optim.SGD({model.weight}, {lr = 0.1})
      local step = wrap(function(x)
        optimizer:zero_grad()
        model(x):square():sum():backward()
        optimizer:step()
      end)
      local predict = wrap(function(x) return dm.no_grad(function() return model(x) end) end)
      for i = 1, 24 do
        step(dm.randn(4, 3))
        note(predict(dm.randn(4, 3)))
        note(model.weight.grad)
        if i == 6 then model.weight.data = dm.randn(2, 3) end
        if i == 10 then optimizer:add_param_group{params = {model.bias}, lr = 0.5} end
        if i == 15 then model.weight:requires_grad_(false) end
        if i == 20 then model.weight:requires_grad_(true) end
      end
    end)
  end)

  it_captures("captures a step that makes the first 16-bit copy of one weight", function()
    assert_alike(function(wrap, note)
      local model, optimizer, pass = passes()
      local step = wrap(function(x)
        optimizer:zero_grad()
        pass(x)
        optimizer:step()
      end)
      for i = 1, 8 do
        local x = dm.randn(4, 3)
        dm.no_grad(function()
          note(amp.autocast({dtype = "bfloat16"}, function() return model(x) end))
        end)
        step(x)
        note(model.weight)
        if i == WARMUP then model.weight.data = model.weight.data:clone() end
      end
    end)
  end)

  it_captures("is of another kind under autocast, without gradients, by another dtype", function()
    assert_alike(function(wrap, note)
      local model = nn.Linear(3, 2)
      local step = wrap(function(x)
        local y = model(x)
        return y + dm.ones(2), y.requires_grad and y:sum() or nil
      end)
      for _ = 1, 6 do
        local x = dm.randn(4, 3)
        local function both_of() for _, t in ipairs{step(x)} do note(t) end end
        both_of()
        dm.no_grad(both_of)
        amp.autocast({dtype = "bfloat16"}, both_of)
        amp.autocast({dtype = "float16"}, both_of)
        dm.set_default_dtype "float64"
        local ok, why = pcall(both_of)
        dm.set_default_dtype "float32"
        assert(ok, why)
      end
    end)
  end)

  it_captures("moves an exponential mean of weights, and counts its updates", function()
    assert_alike(function(wrap, note)
      local model, optimizer, pass = passes()
      local mean
      dm.device("cpu", function()
        mean = optim.swa_utils.AveragedModel(model, {decay = 0.9})
      end)
      local step = wrap(function(x)
        optimizer:zero_grad()
        pass(x)
        optimizer:step()
        mean:update_parameters(model)
      end)
      for _ = 1, 8 do
        step(dm.randn(4, 3))
        note(mean.module.weight)
        note(mean.n_averaged)
      end
    end)
  end)

  it_captures("warns of a scale that its floor holds, as the eager step does", function()
    local function run(wrap)
      local t = training{dtype = "float16"}
      t.scaler = amp.GradScaler{device = "cuda", init_scale = 2, patience = 5}
      local step, x, y = wrap(t.step), dm.full({4, 6}, math.huge), dm.randint(5, {4})
      local said = warnings(function()
        for _ = 1, 12 do
          step(x, y)
          dm.cuda.synchronize() -- nothing else waits for what the warning needs to know
        end
      end)
      return #said, t.scaler:stats().skipped, t.scaler:get_scale()
    end
    assert.same({1, 12, 1.0}, {run(plain)})
    assert.same({1, 12, 1.0}, {run(graphed)})
  end)

  it_captures("serves the device that it is given", function()
    if dm.cuda.device_count() < 2 then return pending "one CUDA device" end
    local step = dm.cuda.graph(function(x) return x * 3 end, {device = "cuda:1", warmup = 1})
    for i = 1, 3 do
      local y = step(dm.full({2}, i, {device = "cuda:1", dtype = "float32"}))
      assert.equal("cuda:1", y.device)
      assert.same({3.0 * i, 3.0 * i}, y:totable())
    end
  end)

  it_captures("belongs to the stream that was current when it was made", function()
    local step = dm.cuda.graph(function(x) return x * 3 end, {warmup = 1})
    for _ = 1, 2 do step(dm.ones(2)) end
    local side = dm.cuda.Stream()
    side:wait_stream(dm.cuda.current_stream())
    dm.cuda.stream(side, function()
      assert.error_matches(function() step(dm.ones(2)) end, "the graph belongs to another stream")
    end)
    assert.same({3.0, 3.0}, step(dm.ones(2)):totable())
  end)

  it_captures("keeps its memory from others while it lives", function()
    local function run(wrap)
      local t = training{optimizer = "Adam"}
      local step, bits = wrap(t.step), {}
      local kept = {}
      for i, batch in ipairs(batches(t, 16, {})) do
        bits[i] = both.bits(step(batch[1], batch[2]):detach())
        for k = 1, 40 do kept[k] = dm.full({k * 3}, 1e9) end
        t.optimizer:zero_grad()
        collectgarbage()
        if i % 5 == 0 then dm.cuda.empty_cache() end
        assert.equal(3e9, kept[1]:sum():item())
      end
      return bits
    end
    assert.same(run(plain), run(graphed))
  end)

  it_captures("gives tensors that the next launch writes, in tables too", function()
    local step = dm.cuda.graph(function(x, factor)
      return {double = x * factor, name = "f"}, x:sum(), 7
    end, {warmup = 1})
    step(dm.ones(3), 2)
    local first, sum, number = step(dm.ones(3), 2)
    local copy = first.double:clone()
    local second = step(dm.full({3}, 5.0), 2)
    assert.equal(second.double, first.double)
    assert.same({10.0, 10.0, 10.0}, first.double:totable())
    assert.same({2.0, 2.0, 2.0}, copy:totable())
    assert.equal(15.0, sum:item())
    assert.same({7, "f"}, {number, first.name})
    assert.same({9.0}, (step(dm.ones(1), 9)).double:totable()) -- another number, another kind
    assert.is_nil(second.double.grad_fn)
  end)

  it_captures("gives its pool back, whatever tables of launches were first kept in it", function()
    local function round()
      local _, optimizer, pass = passes "bfloat16"
      local step = dm.cuda.graph(pass, {warmup = 1})
      for i = 1, 6 do
        step(dm.randn(4 + i % 2, 3))
        optimizer:step()
        optimizer:zero_grad()
      end
    end
    local function settle() for _ = 1, 3 do collectgarbage() end end
    for _ = 1, 3 do round() end
    settle()
    local reserved = dm.cuda.memory_reserved()
    for _ = 1, 6 do round() settle() end
    assert.equal(reserved, dm.cuda.memory_reserved())
  end)

  it_captures("gives its memory back", function()
    local function round()
      local step = dm.cuda.graph(function(x) return (x * 2):sum() end, {warmup = 1})
      for _ = 1, 3 do step(dm.ones(1000)) end
    end
    round()
    collectgarbage() collectgarbage()
    local before, reserved = dm.cuda.memory_allocated(), dm.cuda.memory_reserved()
    for _ = 1, 5 do round() collectgarbage() collectgarbage() end
    assert.equal(before, dm.cuda.memory_allocated())
    assert.equal(reserved, dm.cuda.memory_reserved())
  end)
end)

describe("what dm.cuda.graph cannot capture", function()
  -- Calls step until it raises: -> the message without its position, and the position's line.
  local function failure(step, ...)
    for _ = 1, WARMUP do step(...) end
    local ok, why = pcall(step, ...)
    assert.is_false(ok)
    local line, text = why:match "graph_spec%.lua:(%d+): (.*)$"
    assert.is_truthy(line, why)
    return text, tonumber(line)
  end

  local function here() return debug.getinfo(2, "l").currentline end

  for _, case in ipairs{
    {"item", function(x) return x:sum():item() end, "reading a tensor on the host"},
    {"totable", function(x) return x:totable() end, "reading a tensor on the host"},
    {"printing", function(x) return tostring(x) end, "reading a tensor on the host"},
    {"a copy to the CPU", function(x) return x:cpu() end, "reading a tensor on the host"},
    {"a mask", function(x) return x[x:gt(0)] end, "reading a tensor on the host"},
    {"nonzero", function(x) return x:nonzero() end, "reading a tensor on the host"},
    {"a number of the host", function(x) return x + dm.tensor{1, 2, 3} end,
      "a copy from the host"},
    {"a shuffle", function() return dm.randperm(5) end,
      "the order of a shuffle, which the host makes,"},
    {"a seed", function() dm.manual_seed(3) return dm.rand(3) end,
      "a seed, a generator's state or a draw on the CPU"},
    {"a generator of one's own", function()
      return dm.rand(3, {generator = dm.Generator():manual_seed(1)})
    end, "a draw from a generator of its own"},
    {"waiting", function() dm.cuda.synchronize() end, "waiting for the device"},
    {"another stream", function(x)
      return dm.cuda.stream(dm.cuda.Stream(), function() return x * 2 end)
    end, "work on another stream"},
    {"an event", function() dm.cuda.Event():record() end, "an event"},
  } do
    it_captures(case[1], function()
      local line
      local step = graphed(function(x)
        return case[2](x)
      end)
      local first, last = debug.getinfo(case[2], "S").linedefined,
        debug.getinfo(case[2], "S").lastlinedefined
      local text, at = failure(step, dm.ones(3))
      line = at
      assert.truthy(text:find(case[3] .. " cannot be captured", 1, true), text)
      assert.is_true(line >= first and line <= last, line)
      assert.same({2.0, 2.0}, (dm.ones(2) * 2):totable()) -- the device goes on
      assert.is_false((pcall(step, dm.ones(3)))) -- and the function still cannot be
      local other = dm.cuda.graph(function(x) return x + 1 end, {warmup = 1})
      for _ = 1, 3 do assert.same({2.0}, other(dm.ones(1)):totable()) end
    end)
  end

  it_captures("does not do the step that failed", function()
    local t = training{}
    local reads = false
    local step = graphed(function(x, y)
      local loss = t.step(x, y)
      if reads then print(loss:item()) end
      return loss
    end)
    local x, y = t.draw(4), dm.randint(5, {4})
    for _ = 1, WARMUP do step(x, y) end
    local before, state = both.bits(t.model[1].weight), dm.get_rng_state()
    reads = true
    assert.is_false((pcall(step, x, y)))
    assert.equal(before, both.bits(t.model[1].weight))
    assert.same(state, dm.get_rng_state())
    reads = false
    step(x, y)
    assert.equal(1, (step:count()))
    assert.not_equal(before, both.bits(t.model[1].weight))
  end)

  it_captures("memory without end", function()
    local is_endless = false
    local step = graphed(function(x)
      local list = {}
      if is_endless then
        while true do list[#list + 1] = x:expand(1 << 20, 64):clone() end
      end
      return x * 2
    end)
    for _ = 1, WARMUP do step(dm.ones(64)) end
    is_endless = true
    local ok, why = pcall(step, dm.ones(64))
    is_endless = false
    assert.is_false(ok)
    assert.truthy(why:find "out of memory", why)
    collectgarbage()
    assert.same({2.0, 2.0}, (dm.ones(2) * 2):totable())
    for _ = 1, 2 do assert.equal(128.0, step(dm.ones(64)):sum():item()) end
  end)

  it_captures("a step for which no memory is left at any request, and then one for which it is",
  function()
    local t = training{dtype = "float16", clip = 1, optimizer = "Adam"}
    local step = graphed(t.step)
    local x, y = t.draw(4), dm.randint(5, {4})
    for _ = 1, WARMUP do step(x, y) end
    local before, state, n = both.bits(t.model[1].weight), dm.get_rng_state(), 0
    local ok, why
    repeat
      n = n + 1
      hooks.alloc_fail_at(n, true)
      ok, why = pcall(step, x, y)
      hooks.alloc_fail_at(0, false)
      if not ok then
        assert.truthy(why:find "memory", why)
        assert.equal(before, both.bits(t.model[1].weight))
        assert.same(state, dm.get_rng_state())
        assert.equal(3.0, (dm.ones(1) * 3):item())
      end
    until ok
    assert.is_true(n > 20)
    assert.not_equal(before, both.bits(t.model[1].weight))
    assert.equal(1, (step:count()))
  end)

  it_captures("a step that not every call takes, and one whose rate is the host's", function()
    local model = nn.Linear(2, 1)
    local lamb = optim.LAMB(model:parameters())
    local step = graphed(function(x)
      lamb:zero_grad()
      model(x):sum():backward()
      lamb:step()
    end)
    local line = here() - 2
    local text, at = failure(step, dm.ones(1, 2))
    assert.equal("cuda.graph: LAMB: a step whose learning rate is the host's cannot be captured",
      text)
    assert.equal(line, at)
    local sgd = optim.SGD(model:parameters())
    step = graphed(function(x)
      return amp.step{loss = model(x):sum(), optimizer = sgd, accumulate = 2}
    end)
    assert.equal("cuda.graph: amp.step: a step that not every call takes (accumulate) cannot be "
      .. "captured", (failure(step, dm.ones(1, 2))))
  end)

  it_captures("a mean of weights whose share changes", function()
    local model = nn.Linear(2, 1)
    local mean
    dm.device("cpu", function() mean = optim.swa_utils.AveragedModel(model) end)
    local step = graphed(function() mean:update_parameters(model) end)
    assert.equal("cuda.graph: AveragedModel: an update whose share is the host's (use decay) "
      .. "cannot be captured", (failure(step)))
    assert.equal(WARMUP, mean.n_averaged:item())
  end)

  it_captures("wrong arguments", function()
    local function raises(words, ...)
      local ok, why = pcall(...)
      assert.is_false(ok)
      assert.truthy(why:find(words, 1, true), why)
    end
    local step = dm.cuda.graph(function(x) return x end)
    raises("argument 1 is on cpu, wanted cuda:0; hint: x:to \"cuda:0\"", step,
      dm.ones(1, {device = "cpu"}))
    raises("argument 2 is a table, wanted a tensor, number, string or boolean", step, dm.ones(1),
      {})
    raises("argument 1 requires a gradient", step, dm.ones(1, {requires_grad = true}))
    raises("warmup is 0, wanted a whole number from 1", dm.cuda.graph, print, {warmup = 0})
    raises("max_graphs is 0", dm.cuda.graph, print, {max_graphs = 0})
    raises("device is \"cpu\"", dm.cuda.graph, print, {device = "cpu"})
    raises("did you mean", dm.cuda.graph, print, {warm_up = 2})
    local nested = dm.cuda.graph(function(x) return step(x) end, {warmup = 1})
    nested(dm.ones(1))
    raises("a graph within a graph cannot be captured", nested, dm.ones(1))
    assert.equal(1.0, step(dm.ones(1)):item())
  end)
end)
