-- Optimizers, gradient scaling and clipping on cuda: the CPU's results, without
-- waiting, and in how many launches.
local dm = require "demilune"
local both = require "spec.cuda.both"
local amp, nn, optim = dm.amp, dm.nn, dm.optim
local core = require "demilune.core"

local INF, NAN = math.huge, 0 / 0

if both.missing() then return end

-- What only the emulation counts: there the bits are the CPU's, on a GPU all but
-- the last one (pow of Adam's corrections may differ there).
local function it_counts(name, f)
  both.it_counts(name, function() both.on("cuda", f) end)
end

-- How often that is done while f() runs.
local function count(what, f)
  local before = dm.cuda._count(what)
  f()
  return dm.cuda._count(what) - before
end

-- Whether the elements of two tensors, of any strides, are that near.
local function near(want, got, rtol, atol)
  want, got = want:double():cpu():flatten():totable(), got:double():cpu():flatten():totable()
  for i, w in ipairs(want) do
    local g = got[i]
    local alike = w == g or w ~= w and g ~= g or math.abs(w - g) <= atol + rtol * math.abs(w)
    if not alike then return false, ("element %d: %.9g %.9g"):format(i, w, g) end
  end
  return #want == #got
end

local ULP = {float16 = 2^-10, bfloat16 = 2^-7, float32 = 2^-23, float64 = 2^-52}

local function same(what, want, got)
  assert.is_truthy(got.device:find "^cuda", what)
  if dm.cuda._count "launch" then
    assert.equal(both.bits(want), both.bits(got), what)
  else
    -- float64: the functions' last bits, in each of some steps
    local wide = want.dtype == "float64"
    assert.is_true(near(want, got, (wide and 64 or 1) * ULP[want.dtype], wide and 1e-15 or 0), what)
  end
end

-- ---- trajectories ----

-- Parameters of all kinds: sizes that fill no word, more than one chunk, none at
-- all, views that begin off a word, and one that is not dense.
local function parameters(dtype, n)
  local list = {}
  for i, size in ipairs{{1}, {3}, {7, 11}, {1031}, {0}, {16389}} do
    if i <= n then list[i] = dm.randn(size):to(dtype):requires_grad_() end
  end
  list[#list + 1] = dm.randn(38):to(dtype):narrow(1, 2, 37):detach():requires_grad_()
  list[#list + 1] = dm.randn(5, 6):to(dtype):t():detach():requires_grad_()
  return list
end

-- Runs `steps` of an optimizer; gradients of step i are scaled by scale(i).
local function trajectory(class, opts, dtypes, steps, scale)
  dm.manual_seed(12)
  local params = {}
  for i, dtype in ipairs(dtypes) do
    local n = #dtypes == 1 and 6 or i == 1 and 4 or 3
    for _, p in ipairs(parameters(dtype, n)) do params[#params + 1] = p end
  end
  local opt = optim[class](params, opts)
  local found = dm.tensor(0.0)
  for step = 1, steps do
    for i, p in ipairs(params) do
      p.grad = i ~= 2 and (dm.randn(p.shape) * 10.0 ^ -(i % 3)):to(p.dtype) or nil
    end
    local skip = scale and scale(step) ~= 1
    found:fill_(skip and 1 or 0)
    opt:step(nil, found)
  end
  return params, opt
end

local function agree(what, class, opts, dtypes, steps, scale)
  local function run() return trajectory(class, opts, dtypes, steps, scale) end
  local want, cpu = both.on("cpu", run)
  local got, cuda = both.on("cuda", run)
  for i, p in ipairs(want) do
    local name = ("%s, parameter %d, %s"):format(what, i, p.dtype)
    same(name, p:detach(), got[i]:detach())
    for buffer, a in pairs(cpu.state[p] or {}) do
      same(name .. " " .. buffer, a, cuda.state[got[i]][buffer])
    end
  end
end

local METHODS = {
  {"SGD", {lr = 0.1}},
  {"SGD", {lr = 0.1, weight_decay = 0.01, maximize = true}},
  {"SGD", {lr = 0.1, momentum = 0.9, dampening = 0.1, weight_decay = 0.01}},
  {"SGD", {lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01}},
  {"Adam", {lr = 0.01, weight_decay = 0.01}},
  {"Adam", {lr = 0.01, amsgrad = true, betas = {0.8, 0.95}}},
  {"AdamW", {lr = 0.01}},
  {"AdamW", {lr = 0.01, amsgrad = true, maximize = true}},
  {"RMSprop", {lr = 0.01, weight_decay = 0.01}},
  {"RMSprop", {lr = 0.01, centered = true, momentum = 0.9, maximize = true}},
  {"Adagrad", {lr = 0.01, lr_decay = 0.1, initial_accumulator_value = 0.1}},
  {"Adadelta", {lr = 0.5, weight_decay = 0.01}},
  {"Adamax", {lr = 0.01}},
  {"NAdam", {lr = 0.01, weight_decay = 0.01, decoupled_weight_decay = true}},
  {"RAdam", {lr = 0.01, weight_decay = 0.01}},
  {"ASGD", {lr = 0.01, t0 = 3}},
  {"Rprop", {lr = 0.01}},
  {"Lion", {lr = 0.01, weight_decay = 0.01}},
}

describe("optimizers on cuda", function()
  for _, method in ipairs(METHODS) do
    local class, opts = table.unpack(method)
    local words = {}
    for k, v in pairs(opts) do words[#words + 1] = k .. " " .. tostring(v) end
    table.sort(words)
    local name = class .. " " .. table.concat(words, ", ")
    it(name .. ": 20 steps of float32", function()
      agree(name, class, opts, {"float32"}, 20)
    end)
    it(name .. ": dtypes side by side", function()
      agree(name, class, opts, {"bfloat16", "float64", "float32", "float16"}, 20)
    end)
    it(name .. ": masters, and stochastic rounding", function()
      for _, way in ipairs{"master_weights", "stochastic_rounding"} do
        local more = {[way] = true}
        for k, v in pairs(opts) do more[k] = v end
        agree(name .. way, class, more, {"bfloat16", "float16"}, 5)
      end
    end)
    it(name .. ": stochastic rounding goes on alike after steps that are skipped", function()
      local more = {stochastic_rounding = true}
      for k, v in pairs(opts) do more[k] = v end
      -- With dampening the first step counts, and on CUDA the host does not learn that a step was
      -- skipped: the next one damps SGD's first momentum.
      agree(name, class, more, {"bfloat16", "float16"}, 6, function(step)
        return (opts.dampening and step or step + 1) % 3 ~= (opts.dampening and 1 or 0) and INF or 1
      end)
    end)
    it(name .. ": steps that are skipped change nothing", function()
      agree(name, class, opts, {"float16", "float32"}, 7, function(step)
        return step % 3 == 0 and INF or 1
      end)
    end)
  end

  it("take lanes of a wider type than the parameter's", function()
    local function run()
      local p = dm.ones(9, {requires_grad = true})
      local opt = optim.SGD({p}, {lr = 0.5, momentum = 0.5})
      opt.state[p] = {momentum_buffer = dm.ones(9, {dtype = "float64"})}
      p.grad = dm.full(9, 0.1)
      opt:step()
      return dm.stack{p:detach():double(), opt.state[p].momentum_buffer}
    end
    same("float64 momentum", both.on("cpu", run), both.on("cuda", run))
  end)

  it_counts("step in one launch, or two to count steps, whatever the tensors are", function()
    for _, method in ipairs(METHODS) do
      local params = {}
      for i = 1, 40 do
        local dtype = i % 3 == 0 and "bfloat16" or "float32"
        params[i] = dm.zeros(i, {dtype = dtype, requires_grad = true})
        params[i].grad = dm.ones(i, {dtype = dtype})
      end
      local opt = optim[method[1]](params, method[2])
      opt:step()
      local state = opt.state[params[1]]
      local counts_apart = state and state.step and not method[1]:find "^AdamW?$"
      local want = counts_apart and 2 or 1
      assert.equal(want, count("launch", function() opt:step() end), method[1])
    end
  end)

  it_counts("send the table and the numbers only where they are others", function()
    local p, q = dm.ones(3, {requires_grad = true}), dm.ones(4, {requires_grad = true})
    local opt = optim.AdamW({p, q})
    local g = dm.ones(3)
    p.grad, q.grad = g, dm.ones(4)
    local function step() return count("copy", function() opt:step() end) end
    step() -- which makes buffers
    assert.equal(0, step())
    opt.param_groups[1].lr = 0.5
    assert.same({1, 0}, {step(), step()})
    p.grad = dm.ones(3)
    assert.same({1, 0}, {step(), step()})
    p.grad = g
    opt.param_groups[1].weight_decay = 0.5
    assert.same({2, 0}, {step(), step()})
  end)
end)

-- ---- a training step ----

-- One iteration of an AMP loop; `bad` has its gradients overflow.
local function loop()
  dm.manual_seed(3)
  local model = nn.Sequential{nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)}
  local opt = optim.AdamW(model:named_parameters(), {lr = 0.01})
  local s = amp.GradScaler{init_scale = 1024, growth_interval = 4}
  local x, y = dm.randn(8, 6), dm.randn(8, 4)
  return function(bad)
    opt:zero_grad()
    local loss = amp.autocast({dtype = "float16"}, function()
      return nn.functional.mse_loss(model(x), y)
    end)
    s:scale(bad and loss * INF or loss):backward()
    s:unscale_(opt)
    nn.utils.clip_grad_norm_(model:parameters(), 0.5)
    nn.utils.clip_grad_value_(model:parameters(), 0.25)
    s:step(opt)
    s:update()
  end, s, model, opt
end

describe("a training step on cuda", function()
  it_counts("waits for nothing, allocates nothing anew, stays on one stream", function()
    local step, s = loop()
    for i = 1, 4 do step(i == 2) end
    collectgarbage()
    local before = {}
    local words = {"sync", "malloc", "free", "host_malloc", "host_free", "switch"}
    for _, word in ipairs(words) do before[word] = dm.cuda._count(word) end
    for i = 1, 6 do step(i % 3 == 0) end
    for _, word in ipairs(words) do
      assert.equal(before[word], dm.cuda._count(word), word)
    end
    assert.equal(3, s:stats().skipped)
    assert.is_true(dm.cuda._count "sync" > before.sync) -- the count does count
  end)

  it_counts("does so on another stream, too", function()
    local stream = dm.cuda.Stream()
    local step = loop()
    dm.cuda.stream(stream, function()
      for _ = 1, 3 do step() end
      local function two()
        step()
        step(true)
      end
      assert.equal(0, count("switch", two))
      assert.equal(0, count("sync", two))
    end)
    stream:synchronize()
  end)

  it_counts("unscales in one launch, clips in two, notes the step as the scale moves", function()
    local _, s, model, opt = loop()
    local grads = {}
    for i, p in ipairs(model:parameters()) do
      p.grad = dm.ones(p.shape)
      grads[i] = p.grad
    end
    s:scale(dm.tensor(1.0))
    assert.equal(1, count("launch", function() s:unscale_(opt) end))
    assert.equal(2, count("launch", function() -- the norm, the product
      core.clip_norm_(grads, 1, (core.total_norm(grads, 2)))
    end))
    assert.equal(1, count("launch", function() core.clamp_all_(grads, 1) end))
    dm.cuda.synchronize()
    assert.equal(1, count("launch", function() s:step(opt) end)) -- bias corrections, the update
    assert.equal(1, count("launch", function() s:update() end))
    s:step(opt)
    dm.cuda.synchronize()
    assert.equal(1, count("work", function() s:update() end)) -- tells the host of the floor, too
  end)

  it_counts("begins the backward pass of a scaled loss with the scale", function()
    local x = dm.randn(4, {device = "cuda", requires_grad = true})
    local s = amp.GradScaler{init_scale = 8}
    local function launches(make)
      local loss = make()
      dm.cuda.synchronize()
      return count("work", function() loss:backward() end)
    end
    launches(function() return s:scale(x:sum()) end) -- gives x its gradient
    assert.equal(launches(function() return x:sum() end) - 1, -- without the fill of ones
      launches(function() return s:scale(x:sum()) end))
    assert.same({17, 17, 17, 17}, x.grad:totable())
  end)

  it("finds nothing in gradients without elements, whatever came before", function()
    both.on("cuda", function()
      local p = dm.ones(2, {requires_grad = true})
      local opt, s = optim.SGD({p}, {lr = 1}), amp.GradScaler()
      s:scale(dm.tensor(1.0))
      p.grad = dm.tensor{INF, 1}
      s:step(opt)
      assert.is_true(s:skipped(opt))
      s:update()
      local none = dm.zeros(0, {requires_grad = true})
      opt.param_groups[1].params[1] = none
      none.grad = dm.zeros(0)
      s:step(opt)
      assert.is_false(s:skipped(opt))
      s:update()
      assert.equal(1, s:stats().skipped)
    end)
  end)

  it("gives the scaler the CPU's history", function()
    local function run()
      local step, s, model = loop()
      for i = 1, 25 do step(i % 11 < 2) end
      local stats = s:stats()
      return {s:get_scale(), stats.growth_tracker, stats.skipped, stats.last_skip.step,
        stats.last_skip.first_step, stats.last_skip.parameter, stats.last_skip.count},
        model:parameters()[1]:detach():cpu()
    end
    local want, weight = both.on("cpu", run)
    local got, other = both.on("cuda", run)
    assert.same(want, got)
    assert.is_true(near(weight, other, 0, 2e-3))
  end)

  it("tells of a scale that the floor holds, once it knows", function()
    local texts = require "spec.warnings"(function()
      both.on("cuda", function()
        local p = dm.ones(1, {requires_grad = true})
        local s, opt = amp.GradScaler{init_scale = 2, min_scale = 1, patience = 3},
          optim.SGD({p}, {lr = 1})
        s:scale(dm.tensor(1.0))
        for _ = 1, 6 do
          p.grad = dm.tensor{INF}
          s:step(opt)
          s:update()
          dm.cuda.synchronize()
        end
      end)
    end)
    assert.equal(1, #texts)
    assert.is_truthy(texts[1]:find "below min_scale = 1")
  end)
end)

-- ---- lists ----

-- Tensors of those dtypes, on and off words, one longer than a chunk.
local function tensors(dtypes)
  dm.manual_seed(8)
  local list = {}
  for i, dtype in ipairs(dtypes) do
    list[#list + 1] = dm.randn(i == 1 and 40001 or 5):to(dtype)
    list[#list + 1] = dm.randn(34):to(dtype):narrow(1, 2, 33)
    list[#list + 1] = dm.randn(6, 8):to(dtype):t():narrow(1, 3, 4)
    list[#list + 1] = dm.zeros(0, {dtype = dtype})
  end
  return list
end

local LISTS = {{"float32"}, {"float16", "bfloat16"}, {"float64", "float32", "bfloat16"}}

describe("lists on cuda", function()
  it("unscaling finds the first gradient that overflows, and how many do", function()
    for _, dtypes in ipairs(LISTS) do
      for _, position in ipairs{0, 1, 2, 3} do
        local function run()
          local list, params = tensors(dtypes), {}
          for i, g in ipairs(list) do
            params[i] = dm.zeros(g.shape, {dtype = g.dtype, requires_grad = true})
            params[i].grad = g
          end
          if position > 0 then list[position]:select(1, 2):fill_(position == 2 and NAN or INF) end
          if position == 1 then list[1][40000] = -INF end
          if position > 1 then list[#list - 1]:fill_(INF) end
          local found, where = dm.tensor(7.0), dm.zeros(2, {dtype = "int64"})
          core.amp_unscale_({{params = params}}, dm.tensor(3.0), found, where)
          local all = {found:reshape(1):double(), where:double()}
          for _, g in ipairs(list) do all[#all + 1] = g:flatten():double() end
          return dm.cat(all)
        end
        same("unscale " .. dtypes[1] .. position, both.on("cpu", run), both.on("cuda", run))
      end
    end
  end)

  it("norms of any order, NaN and infinity included", function()
    for _, dtypes in ipairs(LISTS) do
      for _, p in ipairs{0, 1, 2, 2.5, INF} do
        for _, bad in ipairs{0, NAN, INF} do
          local function run()
            local list = tensors(dtypes)
            if bad ~= 0 then list[2][7] = bad end
            return (core.total_norm(list, p))
          end
          local want, got = both.on("cpu", run), both.on("cuda", run)
          assert.equal(want.dtype, got.dtype)
          assert.is_true(near(want, got, 1e-6, 0),
            ("%s, p = %g, %g: %.9g %.9g"):format(dtypes[1], p, bad, want:item(), got:item()))
        end
      end
    end
  end)

  it("clipping multiplies and holds as the CPU does", function()
    for _, dtypes in ipairs(LISTS) do
      for _, total in ipairs{"float32", "float64"} do
        local function run()
          local list = tensors(dtypes)
          core.clip_norm_(list, 2.5, dm.tensor(7.25, {dtype = total}))
          core.clamp_all_(list, 0.3)
          for i, t in ipairs(list) do list[i] = t:flatten():double() end
          return dm.cat(list)
        end
        same("clip " .. dtypes[1], both.on("cpu", run), both.on("cuda", run))
      end
    end
  end)
end)
