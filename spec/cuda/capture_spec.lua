-- A training step could be captured as a CUDA graph: from its second run on it allocates nothing
-- outside of the caching allocator, does not synchronize, stays on one stream, and repeats the same
-- launches with the same arguments. Values that change are in device memory.
local dm = require "demilune"
local both = require "spec.cuda.both"
local amp, nn, optim = dm.amp, dm.nn, dm.optim

local function it_counts(name, f)
  both.it_counts(name, function() both.on("cuda", f) end)
end

-- Attention of each row to the rows before it, some weights dropped.
local function attention()
  local model = nn.Sequential{nn.Linear(6, 8), nn.Linear(8, 5)}
  function model:forward(x)
    local h = self[1](x)
    h = dm.scaled_dot_product_attention(h, h, h, {is_causal = true, dropout_p = 0.25})
    return self[2](h:mean(2))
  end
  return model
end

-- A step of training on one batch that stays where it is. What it makes is freed at its
-- end, and no finalizer runs within it: so each step finds the same blocks in use.
local function training(opts)
  dm.manual_seed(5)
  local model = opts.attention and attention() or nn.Sequential{
    nn.Conv2d(2, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(),
    nn.Dropout(0.25), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)}
  local optimizer = optim[opts.class or "Adam"](model:parameters(), {lr = 0.01,
    stochastic_rounding = opts.stochastic_rounding})
  if opts.dtype then model:to(opts.dtype) end
  local scaler = amp.GradScaler{init_scale = 64, growth_interval = 3}
  local x = opts.attention and dm.randn(4, 9, 6) or dm.randn(4, 2, 6, 6)
  local y = dm.randint(5, {4})
  local function step()
    local _ <close> = dm.scope()
    optimizer:zero_grad()
    local loss = amp.autocast({dtype = "float16"}, function()
      return nn.functional.cross_entropy(model(x), y)
    end)
    scaler:scale(loss):backward()
    scaler:unscale_(optimizer)
    nn.utils.clip_grad_norm_(model:parameters(), 1)
    scaler:step(optimizer)
    scaler:update()
  end
  local function alone()
    collectgarbage()
    collectgarbage "stop"
    local ok, err = pcall(step)
    collectgarbage "restart"
    assert(ok, err)
  end
  return alone, {model = model, optimizer = optimizer, scaler = scaler, x = x}
end

-- The work that f() queues: an array of {name, arguments}. What was asked for before has arrived,
-- as the scaler asks anew after each answer.
local function work_of(f)
  dm.cuda.synchronize()
  local first = dm.cuda._count "work" + 1
  f()
  local list = {}
  for i = first, dm.cuda._count "work" do list[#list + 1] = {dm.cuda._work(i)} end
  return list
end

-- The first difference of two lists of work in words, or nil.
local function difference(a, b)
  for i = 1, math.max(#a, #b) do
    local one, other = a[i] or {"nothing"}, b[i] or {"nothing"}
    if one[1] ~= other[1] then return ("%d: %s, then %s"):format(i, one[1], other[1]) end
    if one[2] ~= other[2] then return ("%d: %s has other arguments"):format(i, one[1]) end
  end
end

-- How often each name is among the work.
local function names(list)
  local set = {}
  for _, piece in ipairs(list) do set[piece[1]] = (set[piece[1]] or 0) + 1 end
  return set
end

-- The work of a step, once the first ones have made what stays.
local function settled(step)
  for _ = 1, 3 do step() end
  return work_of(step)
end

local WORDS = {"malloc", "free", "host_malloc", "host_free", "sync", "switch"}

describe("a training step that could be captured", function()
  it_counts("takes no memory but the allocator's, waits for nothing, keeps to a stream", function()
    local step = training{}
    for _ = 1, 4 do step() end
    local before = {}
    for _, word in ipairs(WORDS) do before[word] = dm.cuda._count(word) end
    for _ = 1, 6 do step() end
    for _, word in ipairs(WORDS) do
      assert.equal(before[word], dm.cuda._count(word), word)
    end
  end)

  for _, case in ipairs{{"Adam", {}}, {"SGD", {class = "SGD"}},
    {"attention's dropout", {attention = true}},
    {"stochastic rounding", {dtype = "bfloat16", stochastic_rounding = true}}} do
    it_counts("gives each launch what it gave it the step before: " .. case[1], function()
      local step = training(case[2])
      local first = settled(step)
      for _ = 1, 5 do assert.is_nil(difference(first, work_of(step))) end
      assert.is_truthy(names(first).advance_kernel) -- dropout drew
      assert.is_truthy(#first > 20)
    end)
  end

  it_counts("reads a new learning rate from the device, by one copy more", function()
    local step, t = training{class = "SGD"}
    local schedule = optim.lr_scheduler.StepLR(t.optimizer, 1, {gamma = 0.5})
    local usual = names(settled(step))
    usual.cudaMemcpyAsync = (usual.cudaMemcpyAsync or 0) + 1
    for _ = 1, 3 do
      schedule:step()
      local weight = t.model[6].weight:detach():cpu() -- the device's memory stays as it is
      assert.same(usual, names(work_of(step)))
      -- SGD: the weight moves by the learning rate times its gradient
      local moved = (weight - t.model[6].weight:detach():cpu()):abs():sum():item()
      local wanted = t.model[6].weight.grad:cpu():abs():sum():item()
        * t.optimizer.param_groups[1].lr
      assert.is_true(math.abs(moved - wanted) < 1e-3 * wanted)
    end
  end)

  it_counts("counts steps, moves the scale and draws anew, with the same arguments", function()
    local step, t = training{}
    for _ = 1, 6 do step() end
    local state = t.optimizer.state[t.model[6].weight]
    local drop, seen = nn.Dropout(0.5), {}
    local ones = dm.ones(1000)
    drop(ones)
    for i = 1, 3 do
      local count, scale = state.step:item(), t.scaler:get_scale()
      step()
      assert.equal(count + 1, state.step:item())
      -- it grows by 2 in every third update
      assert.equal((6 + i) % 3 == 0 and 2 * scale or scale, t.scaler:get_scale())
      local mask = both.bits(drop(ones))
      assert.is_nil(seen[mask])
      seen[mask] = true
    end
  end)

  it_counts("skips a step where it overflows, by the same launches, and notes which", function()
    local step, t = training{}
    local first = settled(step)
    t.x:fill_(math.huge)
    for _ = 1, 2 do assert.is_nil(difference(first, work_of(step))) end
    local stats = t.scaler:stats()
    assert.equal(2, stats.skipped)
    assert.same({5, 6}, {stats.last_skip.first_step, stats.last_skip.step})
  end)
end)

describe("a generator on cuda", function()
  -- Asserts that f draws the same bits on both devices and leaves the same generator state.
  local function agree(what, f)
    local function run()
      local t = f()
      return t, dm.get_rng_state()
    end
    local want, state = both.on("cpu", run)
    local got, other = both.on("cuda", run)
    assert.equal(both.bits(want), both.bits(got), what)
    assert.same(state, other, what)
  end

  local function it_agrees(name, f)
    it(name, function()
      if both.missing() then return pending "no CUDA device" end
      agree(name, f)
    end)
  end

  it_agrees("follows seeds and states", function()
    dm.manual_seed(3)
    local a = dm.rand(5)
    local state = dm.get_rng_state()
    local b = dm.rand(9)
    dm.set_rng_state(state)
    local c = dm.rand(9)
    dm.manual_seed(4)
    return dm.cat{a, b, c, dm.rand(3)}
  end)

  it_agrees("follows draws of the CPU in between", function()
    dm.manual_seed(3)
    local a = dm.rand(5)
    dm.rand(7, {device = "cpu"})
    return dm.cat{a, dm.rand(6), dm.randperm(5):to(a.dtype), dm.rand(6)}
  end)

  it_agrees("is one of several, each with its own numbers", function()
    local g, h = dm.Generator():manual_seed(1), dm.Generator():manual_seed(2)
    local list = {}
    for i = 1, 6 do list[i] = dm.rand(5, {generator = i % 2 == 0 and g or h}) end
    return dm.cat(list)
  end)

  it_agrees("draws the same mask again in a checkpoint", function()
    dm.manual_seed(3)
    local x = dm.ones(64, {requires_grad = true})
    local function fn(t) return nn.functional.dropout(t * 2, {p = 0.5}) * t end
    local y = nn.utils.checkpoint(fn, x)
    y:sum():backward()
    return dm.cat{y:detach(), x.grad, dm.rand(4)}
  end)

  -- With equal scores and rows of the identity as values, y and v's gradient show which
  -- weights are dropped.
  local function dropped(call, opts)
    dm.manual_seed(3)
    local q, v = dm.zeros(2, 7, 4), dm.eye(7):expand(2, 7, 7):clone():requires_grad_()
    local function fn(t) return dm.scaled_dot_product_attention(q, q, t, {dropout_p = 0.4}) end
    local y = call(fn, v)
    local g = dm.autograd.grad((y * dm.eye(7)):sum(), v, opts)
    g = dm.is_tensor(g) and g or g[1]
    local shown = dm.stack{y:ne(0), g:transpose(2, 3):ne(0)}
    assert.is_true(dm.equal(shown[1], shown[2]))
    return dm.cat{shown:flatten():to(y.dtype), dm.rand(4)}
  end

  it_agrees("drops weights of attention, alike in its gradient", function()
    local function plainly(fn, v) return fn(v) end
    local shown = dropped(plainly)
    assert.is_true(dm.equal(shown, dropped(plainly, {create_graph = true})))
    return shown
  end)

  it_agrees("drops the same weights again in a checkpoint", function()
    return dropped(nn.utils.checkpoint)
  end)

  it_agrees("serves gradients of gradients", function()
    dm.manual_seed(3)
    local x = dm.ones(64, {requires_grad = true})
    local y = nn.functional.dropout(x * x * x, {p = 0.5})
    local g = dm.autograd.grad(y:sum(), x, {create_graph = true})
    g = dm.is_tensor(g) and g or g[1]
    g:sum():backward()
    return dm.cat{y:detach(), g:detach(), x.grad}
  end)

  it_counts("is sent once to a stream, and not again while only it draws", function()
    dm.manual_seed(9)
    dm.rand(8)
    local before = dm.cuda._count "copy"
    for _ = 1, 5 do dm.rand(8) end
    assert.equal(before, dm.cuda._count "copy")
    dm.manual_seed(9)
    dm.rand(8)
    assert.equal(before + 1, dm.cuda._count "copy")
  end)
end)
