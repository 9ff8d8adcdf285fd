-- dm.Trainer does what the loop written out does: it trains, evaluates, stops early, and resumes
-- from a checkpoint as if it had not stopped.
local dm = require "demilune"
local device = require("spec.device").type
local events = require "spec.events"
local folder = require "spec.folder"
local warnings = require "spec.warnings"
local nn, optim, data = dm.nn, dm.optim, dm.data
setup(folder.make)
teardown(folder.remove)

-- n points of two classes that the first feature separates.
local function points(n, seed)
  dm.manual_seed(seed)
  local y = dm.randint(2, {n})
  local x = dm.randn(n, 4)
  x:select(2, 1):add_((y * 4 - 6):float())
  return data.TensorDataset(x, y)
end

local function begun(opts)
  local train = data.DataLoader(points(64, 7), {batch_size = 16, shuffle = true, seed = 3})
  local valid = data.DataLoader(points(32, 8), {batch_size = 32})
  dm.manual_seed(1)
  local model = nn.Sequential{nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)}:to(device)
  local o = {model = model, loss = nn.CrossEntropyLoss(), verbose = false,
    optimizer = optim.AdamW(model:parameters(), {lr = 0.02}),
    metrics = {accuracy = dm.metrics.Accuracy()}}
  for key, value in pairs(opts or {}) do o[key] = value end
  o.loss = not o.forward and o.loss or nil
  if o.schedule then o.schedule = o.schedule(o.optimizer) end
  if o.ema then o.ema = o.ema(model) end
  return dm.Trainer(o), {train = train, valid = valid, epochs = 3}, model
end

-- The scalars of the event file of a folder, {[tag] = {[step] = value}}.
local function scalars_in(name)
  local file = folder.run("ls " .. folder.path(name)):match "[^\n]+"
  local out = {}
  for _, s in ipairs(events.scalars(events.records(folder.read(name .. "/" .. file)))) do
    out[s.tag] = out[s.tag] or {}
    out[s.tag][s.step] = s.value
  end
  return out
end

describe("Trainer", function()
  it("learns, and reports each epoch", function()
    for _, dtype in ipairs{false, "bfloat16", "float16"} do
      local trainer, run = begun{amp = dtype or nil, clip = 1.0}
      local history = trainer:fit(run)
      assert.equal(3, #history)
      assert.is_true(history[3].train_loss < history[1].train_loss)
      assert.is_true(history[3].valid_accuracy > 0.9)
      assert.equal(0.02, history[3].lr)
      assert.equal(12, trainer.steps)
      assert.same({accuracy = history[3].valid_accuracy, loss = history[3].valid_loss},
        trainer:evaluate(run.valid))
    end
  end)

  it("does what the loop written out does", function()
    local trainer, run, model = begun{accumulate = 3}
    trainer:fit(run)
    local _, other, copy = begun()
    local optimizer, criterion = optim.AdamW(copy:parameters(), {lr = 0.02}), nn.CrossEntropyLoss()
    for _ = 1, 3 do
      for i, x, y in other.train:iter() do -- four batches: a step of three, a step of one
        x, y = x:to(device), y:to(device)
        local loss = criterion(copy(x), y) / (i == 4 and 1 or 3)
        loss:backward()
        if i >= 3 then
          optimizer:step()
          optimizer:zero_grad()
        end
      end
    end
    assert.equal(6, trainer.steps)
    for i, p in ipairs(model:parameters()) do
      assert.is_true(dm.equal(p.data, copy:parameters()[i].data))
    end
  end)

  it("weighs the loss of a batch by its samples: a short last one counts for less", function()
    -- squares 1, 1, 1 and 16: their mean is 19 / 4, that of the two batches 17 / 2
    local x, y = dm.zeros(4, 1), dm.tensor{{1.0}, {1.0}, {1.0}, {4.0}}
    local model = nn.Linear(1, 1, {bias = false}):to(device)
    local function loader(size)
      return data.DataLoader(data.TensorDataset(x, y), {batch_size = size})
    end
    local trainer = dm.Trainer{model = model, loss = nn.MSELoss(), verbose = false,
      optimizer = optim.SGD(model:parameters(), {lr = 0.1})}
    for size = 1, 4 do assert.near(19 / 4, trainer:evaluate(loader(size)).loss, 1e-12) end
    local history = trainer:fit{train = loader(3), valid = loader(3), epochs = 1}
    assert.near(19 / 4, history[1].train_loss, 1e-12)
    assert.near(19 / 4, history[1].valid_loss, 1e-12)
  end)

  it("goes on from a checkpoint as if it had not stopped", function()
    local path = folder.path "trainer.safetensors"
    local function schedule(optimizer)
      return optim.lr_scheduler.OneCycleLR(optimizer, 0.02, {total_steps = 16})
    end
    local whole, run, model = begun{amp = "float16", schedule = schedule}
    run.epochs = 4
    local history = whole:fit(run)
    local first, again = begun{amp = "float16", schedule = schedule, checkpoint = path}
    again.epochs = 2
    first:fit(again)
    local rest, last, resumed = begun{amp = "float16", schedule = schedule, resume = path}
    last.epochs = 4
    assert.same(history, rest:fit(last))
    for i, p in ipairs(model:parameters()) do
      assert.is_true(dm.equal(p.data, resumed:parameters()[i].data))
    end
  end)

  it("goes on by resume = true where there is a checkpoint, and begins where there is none",
    function()
      for _, word in ipairs{true, "auto"} do
        local path = folder.path(("start_%s.safetensors"):format(word))
        local first, run = begun{checkpoint = path, resume = word}
        assert.equal(0, first.epoch)
        run.epochs = 2
        first:fit(run)
        assert.equal(2, begun{checkpoint = path, resume = word}.epoch)
        assert.equal(0, begun{checkpoint = path, resume = false}.epoch)
        assert.is_true(first:save(path))
        assert.error_matches(function() begun{resume = word} end,
          "Trainer: resume = '?%w+'? goes on from `checkpoint`, which is missing")
      end
      assert.refuses("trainer_spec.lua:%d+: Trainer: save: ", function() begun():save "/no/x" end)
    end)

  it("stops when it gets no better, and keeps the best", function()
    local path = folder.path "best.safetensors"
    local trainer, run = begun{monitor = "valid_accuracy", mode = "max", patience = 2, best = path}
    run.epochs = 50
    local history = trainer:fit(run)
    assert.is_true(#history < 50)
    local best = 0
    for _, values in ipairs(history) do best = math.max(best, values.valid_accuracy) end
    local saved = assert(dm.load(path))
    assert.equal(#history - 2, saved.epoch)
    assert.equal(best, saved.best_value)
  end)

  it("calls back, and stops when told to", function()
    local seen = {}
    local function note(event)
      return function(_, n) seen[#seen + 1] = event .. (type(n) == "number" and n or "") end
    end
    local trainer, run = begun{callbacks = {on_fit_begin = note "fit", on_step = note "s",
      on_epoch_begin = note "e", on_fit_end = note "end",
      on_epoch_end = function(_, values) return values.epoch < 2 end}}
    assert.equal(2, #trainer:fit(run))
    assert.equal("fit e1 s1 s2 s3 s4 e2 s5 s6 s7 s8 end", table.concat(seen, " "))
  end)

  it("takes a forward of one's own, and a schedule by epochs", function()
    local trainer, run = begun{forward = function(model, x, y)
      local scores = model(x)
      return nn.functional.cross_entropy(scores, y, {label_smoothing = 0.1}), scores
    end, schedule_every = "epoch", schedule = function(optimizer)
      return optim.lr_scheduler.ReduceLROnPlateau(optimizer, {patience = 0, threshold = 10,
        threshold_mode = "abs"})
    end}
    local history = trainer:fit(run)
    assert.equal(0.02, history[1].lr)
    assert.near(0.002, history[3].lr, 1e-12)
  end)

  it("steps a ReduceLROnPlateau by the value that it monitors, behind an epoch", function()
    -- the loss grows from 1 on, the score grows in three epochs and then stays
    local function rates(opts, mode)
      local optimizer
      opts.schedule = function(o)
        optimizer = o
        return optim.lr_scheduler.ReduceLROnPlateau(o, {mode = mode, patience = 0, factor = 0.5})
      end
      opts.callbacks = {on_train_epoch_end = function(_, values)
        values.score = math.min(values.epoch, 3)
        values.train_loss = values.epoch
      end, on_epoch_end = function(_, values) values.rate = optimizer.param_groups[1].lr end}
      local trainer, run = begun(opts)
      run.valid, run.epochs = nil, 4
      local out = {}
      for i, values in ipairs(trainer:fit(run)) do out[i] = values.rate end
      return out
    end
    local all = 0.02
    assert.same({all, all, all, all / 2}, rates({monitor = "score", mode = "max"}, "max"))
    -- one for smaller values goes by the loss
    assert.same({all, all / 2, all / 4, all / 8}, rates({monitor = "score", mode = "max"}, "min"))
    assert.same({all, all / 2, all / 4, all / 8}, rates({monitor = "score"}, "min"))
    assert.same({all, all / 2, all / 4, all / 8}, rates({}, "min"))
    assert.error_matches(function() rates({}, "max") end, "hint: monitor = 'valid_accuracy'")
  end)

  it("steps a schedule behind a step that was done, and behind an epoch that had one", function()
    local path = folder.path "skipped.safetensors"
    local function schedule(optimizer)
      return optim.lr_scheduler.StepLR(optimizer, {step_size = 1, gamma = 0.5})
    end
    -- The losses of `odd` are inf, so that the scaler skips their steps; the lr of each step.
    local function rates(every, odd, resume, stop)
      local seen, forwards = {}, 0
      local trainer, run = begun{amp = "float16", schedule = schedule, schedule_every = every,
        resume = resume, forward = function(model, x, y)
          local loss = nn.functional.cross_entropy(model(x), y)
          forwards = forwards + 1
          return odd[forwards] and loss * math.huge or loss
        end, callbacks = {on_step = function(self, step)
          seen[#seen + 1] = self.optimizer.param_groups[1].lr
          if step == stop then self:save(path) end
        end}}
      trainer.scaler = dm.amp.GradScaler{device = trainer.kind, init_scale = 16.0}
      run.valid, run.epochs = nil, stop and 1 or 2
      if resume then trainer:load(resume) end
      warnings(function() trainer:fit(run) end)
      return seen, trainer.optimizer.param_groups[1].lr
    end
    local seen = rates("step", {[1] = true, [3] = true})
    assert.same({0.02, 0.01, 0.01, 0.005}, table.move(seen, 1, 4, 1, {}))
    local _, last = rates("epoch", {true, true, true, true})
    assert.equal(0.01, last) -- the second epoch's
    _, last = rates("epoch", {true, true, true})
    assert.equal(0.005, last)
    -- one step was done before the file was written, none after
    rates("epoch", {[2] = true}, nil, 2)
    _, last = rates("epoch", {true, true}, path)
    assert.equal(0.005, last)
  end)

  it("warns once of a loss that is NaN, and of an epoch without a step; prints no -nan", function()
    local function warned(opts, nan)
      local trainer, run, model = begun(opts)
      if nan then model[1].weight.data:fill_(0 / 0) end
      return warnings(function() trainer:fit(run) end), trainer
    end
    local texts = warned({amp = "float16"}, true)
    assert.equal(1, #texts)
    assert.matches("^spec/trainer_spec.lua:%d+: warning: Trainer: epoch 1: the loss is nan, and "
      .. "4 of 4 steps were skipped; hint: dm.amp.report", texts[1])
    local print_, printed = print, {}
    _G.print = function(text) printed[#printed + 1] = text end
    local ok, problem = pcall(function() texts = warned({verbose = true}, true) end)
    _G.print = print_
    assert.is_true(ok, problem)
    assert.equal(1, #texts)
    assert.matches("epoch 1: the loss is nan; hint", texts[1])
    assert.matches("^epoch 1: .*train_loss nan, .*valid_loss nan$", printed[1])
    assert.same({}, warned{amp = "float16"})
    texts = warned{amp = "float16", forward = function(model, x, y)
      local scores = model(x)
      local loss = nn.functional.cross_entropy(scores, y)
      return model.training and loss * 1e38 or loss, scores
    end}
    assert.equal(1, #texts)
    assert.matches("epoch 1: 4 of 4 steps were skipped; hint", texts[1])
  end)

  it("says that no epoch was the best, and writes none of them", function()
    local best = os.tmpname()
    os.remove(best)
    finally(function() os.remove(best) end)
    local trainer, run, model = begun{best = best, amp = "float16"}
    model[1].weight.data:fill_(0 / 0)
    local texts = warnings(function() trainer:fit(run) end)
    assert.equal(2, #texts)
    assert.matches("^spec/trainer_spec.lua:%d+: warning: Trainer: best = '.*' was not written: "
      .. "valid_loss was nan in each epoch$", texts[2])
    assert.is_nil(io.open(best))
    trainer, run = begun{best = best}
    assert.same({}, warnings(function() trainer:fit(run) end))
    assert.is_truthy(dm.load(best))
  end)

  it("transforms training batches, not those it evaluates; metrics get the loader's labels",
    function()
      local calls = 0
      local trainer, run = begun{batch_transform = function(x, y)
        calls = calls + 1
        return x, dm.one_hot(y, 2):float()
      end}
      local history = trainer:fit(run)
      assert.equal(12, calls)
      assert.is_true(history[3].train_accuracy > 0.9 and history[3].valid_accuracy > 0.9)
    end)

  it("evaluates and saves the moving average of the model", function()
    local path = folder.path "ema.safetensors"
    local function average(decay)
      return function(model) return optim.swa_utils.AveragedModel(model, {decay = decay}) end
    end
    -- with decay 1 the average is the first step's model: far from what the model becomes
    local trainer, run, model = begun{ema = average(1), checkpoint = path}
    local history = trainer:fit(run)
    assert.is_true(history[3].valid_loss > history[3].train_loss + 0.05)
    assert.is_false(dm.equal(model[1].weight.data, trainer.ema.module[1].weight.data))
    local again = begun{ema = average(0.5), resume = path}
    assert.is_true(dm.equal(trainer.ema.module[1].weight.data, again.ema.module[1].weight.data))
  end)

  it("evaluates in eval mode, and leaves each module in its own", function()
    local seen
    local trainer, run, model = begun{forward = function(net, x, y)
      if not net.training then seen = net[2].training end
      local scores = net(x)
      return nn.functional.cross_entropy(scores, y), scores
    end}
    model[2]:eval()
    trainer:evaluate(run.valid)
    assert.is_false(seen)
    assert.same({true, false, true}, {model[1].training, model[2].training, model[3].training})
    trainer:fit(run)
    assert.is_true(model[2].training)
  end)

  it("calls back around an epoch's training and a checkpoint; reports in the words given",
    function()
      local path, lines = folder.path "hooks.safetensors", {}
      local trainer, run = begun{checkpoint = path, verbose = true, amp = "float32", callbacks = {
        on_train_epoch_end = function(_, values) values.extra = 7 * values.epoch end,
        on_save_checkpoint = function(_, state) state.recipe = "small" end,
      }, report = function(self, values)
        lines[#lines + 1] = ("%d %d %d"):format(self.epoch, values.extra, #values)
        return "a line"
      end}
      run.epochs = 2
      local print_, printed = print, {}
      _G.print = function(...) printed[#printed + 1] = table.concat({...}, " ") end
      local ok, problem = pcall(trainer.fit, trainer, run)
      _G.print = print_
      assert.is_true(ok, problem)
      assert.same({"a line", "a line"}, printed)
      assert.same({"1 7 0", "2 14 0"}, lines)
      local recipe
      begun{resume = path, callbacks = {on_load_checkpoint = function(self, state)
        recipe = state.recipe .. self.epoch
      end}}
      assert.equal("small0", recipe)
    end)

  it("writes for TensorBoard what it did, by step", function()
    for _, dtype in ipairs{"float32", "float16"} do
      local writer <close> = assert(dm.SummaryWriter(folder.path("runs_" .. dtype)))
      local losses = {}
      local trainer, run = begun{amp = dtype, writer = writer, log_every = 2, callbacks = {
        on_step = function(_, step, loss) losses[step] = loss:item() end}}
      local history = trainer:fit(run)
      assert.is_true(writer:close())
      local got = scalars_in("runs_" .. dtype)
      local want = {}
      for step = 2, 12, 2 do want[step] = losses[step] end
      assert.same(want, got["loss/step"])
      for step, rate in pairs(got.samples_per_second) do
        assert.is_true(rate > 0 and step % 2 == 0)
      end
      assert.near(0.02, got.lr[12], 1e-8)
      for epoch, step in ipairs{4, 8, 12} do
        for tag, name in pairs{["loss/train"] = "train_loss", ["loss/valid"] = "valid_loss",
          ["accuracy/train"] = "train_accuracy", ["accuracy/valid"] = "valid_accuracy"} do
          assert.near(history[epoch][name], got[tag][step], 1e-6)
        end
      end
      if dtype == "float16" then
        assert.equal(trainer.scaler:get_scale(), got["amp/scale"][12])
        assert.equal(trainer.scaler:stats().skipped, got["amp/skipped_steps"][12])
      else
        assert.is_nil(got["amp/scale"])
      end
    end
  end)

  it("goes on amid an epoch, from whichever step it was saved at", function()
    local path = os.tmpname()
    local function run(resume, callbacks)
      dm.manual_seed(1)
      local set = data.TensorDataset(dm.randn(22, 4), dm.randint(1, 3, {22}))
      local model = nn.Sequential{nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)}
      local optimizer = optim.Adam(model:parameters(), {lr = 0.01})
      local trainer = dm.Trainer{model = model, loss = nn.CrossEntropyLoss(), verbose = false,
        optimizer = optimizer, schedule = optim.lr_scheduler.StepLR(optimizer, 3),
        resume = resume, callbacks = callbacks or {}}
      pcall(trainer.fit, trainer,
        {train = data.DataLoader(set, {batch_size = 5, shuffle = true}), epochs = 2})
      return trainer
    end
    local whole = run()
    assert.equal(10, whole.steps)
    for k = 1, 10 do
      run(nil, {on_step = function(self, steps)
        if steps == k then
          self:save(path)
          error "killed"
        end
      end})
      local rest
      assert.same({}, warnings(function() rest = run(path) end)) -- nor of no batches left
      assert.equal(10, rest.steps)
      assert.equal(2, #rest.history)
      assert.is_true(dm.equal(whole.model[1].weight.data, rest.model[1].weight.data), k)
    end
    os.remove(path)
  end)

  it("steps with a short last group of a stream, whose length nobody knows", function()
    dm.manual_seed(1)
    local x, y = dm.randn(10, 4):double(), dm.randint(1, 3, {10})
    local set = data.TensorDataset(x, y)
    local stream = {iter = function()
      local i = 0
      return function()
        i = i + 1
        if i <= 10 then return x[i], y[i] end
      end
    end}
    local function trained(source, clip)
      dm.manual_seed(2)
      local model = nn.Linear(4, 3):double()
      local trainer = dm.Trainer{model = model, loss = nn.CrossEntropyLoss(), verbose = false,
        accumulate = 4, clip = clip, optimizer = optim.SGD(model:parameters(), {lr = 0.1})}
      trainer:fit{train = data.DataLoader(source, {batch_size = 2}), epochs = 3}
      return model, trainer
    end
    for _, clip in ipairs{1e9, 0.1} do
      local known = trained(set, clip)
      local unknown, trainer = trained(stream, clip)
      assert.equal(6, trainer.steps) -- four batches and one, in each epoch
      assert.is_true(dm.allclose(known.weight, unknown.weight, {rtol = 1e-12}))
    end
  end)

  it("goes on behind the last step after an error, by fit and from a file saved then", function()
    local path = os.tmpname()
    -- 7 batches: steps of 3, 3 and 1; fails at forward pass number `at`
    local function begin(at, resume)
      dm.manual_seed(1)
      local set = data.TensorDataset(dm.randn(14, 4), dm.randint(1, 3, {14}))
      local model, passes = nn.Linear(4, 3), 0
      return dm.Trainer{model = model, verbose = false, accumulate = 3, resume = resume,
        optimizer = optim.Adam(model:parameters(), {lr = 0.1}),
        forward = function(net, x, y)
          passes = passes + 1
          if passes == at then error "lost" end
          return nn.functional.cross_entropy(net(x), y)
        end}, {train = data.DataLoader(set, {batch_size = 2, shuffle = true}), epochs = 2}
    end
    local whole, run = begin()
    whole:fit(run)
    local function check(trainer, what)
      assert.equal(6, trainer.steps, what)
      assert.equal(2, #trainer.history, what)
      assert.is_true(dm.equal(whole.model.weight.data, trainer.model.weight.data), what)
    end
    for at = 1, 14 do
      local trainer, again = begin(at)
      assert.error_matches(function() trainer:fit(again) end, "lost")
      trainer:save(path)
      local resumed, rest = begin(nil, path)
      resumed:fit(rest)
      check(resumed, "from a file, " .. at)
      trainer:fit(again)
      check(trainer, "by fit, " .. at)
    end
    os.remove(path)
  end)

  it("launches captured steps on a GPU, to the same bits", function()
    if device ~= "cuda" then return pending "wants a CUDA device" end
    for _, dtype in ipairs{"float32", "float16"} do
      local function run(capture)
        local trainer, opts = begun{amp = dtype, clip = 1.0, capture = capture,
          ema = function(model) return optim.swa_utils.AveragedModel(model) end,
          schedule = function(o) return optim.lr_scheduler.StepLR(o, 3, {gamma = 0.8}) end}
        opts.train = data.DataLoader(points(72, 7), {batch_size = 16, shuffle = true, seed = 3})
        opts.epochs = 5 -- the last batch of each has 8 points
        return trainer:fit(opts), trainer
      end
      local want = run(false)
      local got, trainer = run(true)
      assert.same(want, got)
      assert.equal(2, (trainer.graph:count()))
      assert.equal(25, trainer.steps)
    end
  end)

  it("refuses what it cannot use", function()
    local model = nn.Linear(2, 2)
    local optimizer = optim.SGD(model:parameters())
    local function fails(pattern, o)
      assert.error_matches(function() dm.Trainer(o) end, pattern)
    end
    fails("model is missing", {})
    fails("wanted loss", {model = model, optimizer = optimizer})
    fails("wanted an optimizer", {model = model, loss = print, optimizer = 3})
    fails("amp is 'fp16'", {model = model, loss = print, optimizer = optimizer, amp = "fp16"})
    fails("batch_transform is 'mixup', wanted a function", {model = model, loss = print,
      optimizer = optimizer, batch_transform = "mixup"})
    fails("ema is a Linear, wanted an AveragedModel", {model = model, loss = print,
      optimizer = optimizer, ema = model})
    fails("log_every is 0, wanted a whole number from 1", {model = model, loss = print,
      optimizer = optimizer, log_every = 0})
    fails("writer is a table, wanted a dm.SummaryWriter", {model = model, loss = print,
      optimizer = optimizer, writer = {}})
    if device == "cpu" then
      fails("capture wants a model on a GPU, this one is on cpu", {model = model, loss = print,
        optimizer = optimizer, capture = true})
    else
      fails("capture wants a step for each batch, accumulate is 2", {model = model:to(device),
        loss = print, optimizer = optimizer, capture = true, accumulate = 2})
    end
    fails("did you mean 'on_step'", {model = model, loss = print, optimizer = optimizer,
      callbacks = {onstep = print}})
    fails("did you mean 'patience'", {model = model, patiense = 3})
    local trainer, run = begun{monitor = "valid_acuracy"}
    assert.error_matches(function() trainer:fit{} end, "train is missing")
    assert.error_matches(function() trainer:fit{train = points(4, 1)} end,
      "train is a TensorDataset, wanted a DataLoader; hint")
    assert.error_matches(function() trainer:fit{train = run.train, valid = points(4, 1)} end,
      "valid is a TensorDataset, wanted a DataLoader")
    assert.equal(0, trainer.epoch)
    assert.error_matches(function() trainer:fit(run) end, "'valid_acuracy', which no epoch has")
    assert.equal(0, trainer.epoch) -- said before the first
    local ok, why = pcall(function()
      trainer = dm.Trainer{model = model, loss = print, optimizer = optimizer, resume = "/no/x"}
    end)
    assert.is_false(ok)
    assert.matches("trainer_spec.lua:%d+: load: cannot open '/no/x'", why)
  end)
end)
