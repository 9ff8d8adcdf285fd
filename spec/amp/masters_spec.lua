-- 16-bit parameters train by float32 masters in the optimizer, or by stochastic rounding.
local dm = require "demilune"
local amp, nn, optim = dm.amp, dm.nn, dm.optim

local METHODS = {
  {"SGD", {lr = 0.1}},
  {"SGD", {lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01}},
  {"Adam", {lr = 0.01, weight_decay = 0.01}},
  {"Adam", {lr = 0.01, amsgrad = true}},
  {"AdamW", {lr = 0.01}},
}

local function with(opts, more)
  local all = {}
  for k, v in pairs(opts) do all[k] = v end
  for k, v in pairs(more) do all[k] = v end
  return all
end

-- n gradients of that dtype, some small.
local function gradients(n, dtype, ...)
  local list = {}
  for i = 1, n do list[i] = (dm.randn(...) * 10.0 ^ -(i % 4)):to(dtype) end
  return list
end

local function parameter(value, dtype)
  return value:to(dtype):clone():requires_grad_()
end

describe("master weights", function()
  for _, dtype in ipairs{"bfloat16", "float16"} do
    for _, method in ipairs(METHODS) do
      local class, opts = table.unpack(method)
      it(("%s of %s trains as float32 does, to the bit"):format(class, dtype), function()
        dm.manual_seed(5)
        local start = dm.randn(7, 90):to(dtype)
        local p, q = parameter(start, dtype), parameter(start, "float32")
        local a = optim[class]({p}, with(opts, {master_weights = true}))
        local b = optim[class]({q}, opts)
        for _, g in ipairs(gradients(6, dtype, 7, 90)) do
          p.grad, q.grad = g, g:float()
          a:step()
          b:step()
          assert.is_true(dm.equal(a.state[p].master, q:detach()))
          assert.is_true(dm.equal(p:detach(), q:detach():to(dtype)))
          for name, buffer in pairs(a.state[p]) do
            assert.equal("float32", buffer.dtype, name)
            if name ~= "master" then
              assert.is_true(dm.equal(buffer, b.state[q][name]), name)
            end
          end
        end
        assert.equal(dtype, p.dtype)
      end)
    end
  end

  it("keep updates that 16 bits would lose", function()
    local p, q = parameter(dm.ones(4), "bfloat16"), parameter(dm.ones(4), "bfloat16")
    local a = optim.SGD({p}, {lr = 1e-3, master_weights = true})
    local b = optim.SGD({q}, {lr = 1e-3})
    for _ = 1, 100 do
      p.grad, q.grad = dm.ones(4, {dtype = "bfloat16"}), dm.ones(4, {dtype = "bfloat16"})
      a:step()
      b:step()
    end
    assert.is_true(math.abs(p[1]:item() - 0.9) < 2^-9)
    assert.equal(1, q[1]:item())
  end)

  it("without them a step computes in float32 and rounds once, moments too", function()
    dm.manual_seed(2)
    for _, dtype in ipairs{"bfloat16", "float16"} do
      local start, g = dm.randn(50):to(dtype), dm.randn(50):to(dtype)
      local p = parameter(start, dtype)
      local opt = optim.SGD({p}, {lr = 0.3, momentum = 0.9})
      p.grad = g
      opt:step()
      assert.is_true(dm.equal(p:detach(), (start:float() - g:float() * 0.3):to(dtype)))
      assert.equal(dtype, opt.state[p].momentum_buffer.dtype)
    end
  end)

  it("leave float32 and float64 parameters alone", function()
    local p, q = parameter(dm.ones(3), "float32"), parameter(dm.ones(3), "float64")
    local opt = optim.Adam({p, q}, {master_weights = true})
    p.grad, q.grad = dm.ones(3), dm.ones(3, {dtype = "float64"})
    opt:step()
    assert.is_nil(opt.state[p].master)
    assert.is_nil(opt.state[q].master)
    assert.equal("float64", opt.state[q].exp_avg.dtype)
  end)

  it("are saved, and training goes on from them as if it had not stopped", function()
    for _, method in ipairs(METHODS) do
      dm.manual_seed(9)
      local class, opts = method[1], with(method[2], {master_weights = true})
      local start = dm.randn(40):bfloat16()
      local p, q = parameter(start, "bfloat16"), parameter(start, "bfloat16")
      local a, b = optim[class]({p}, opts), optim[class]({q}, opts)
      local list = gradients(6, "bfloat16", 40)
      for i = 1, 3 do
        p.grad = list[i]
        a:step()
      end
      q.data:copy_(p.data)
      b:load_state_dict(a:state_dict())
      assert.equal("float32", b.state[q].master.dtype)
      for i = 4, 6 do
        p.grad, q.grad = list[i], list[i]
        a:step()
        b:step()
      end
      assert.is_true(dm.equal(a.state[p].master, b.state[q].master))
      assert.is_true(dm.equal(p:detach(), q:detach()))
    end
  end)

  it("follow a parameter that somebody else has changed, element by element", function()
    local p = parameter(dm.ones(600), "bfloat16")
    local opt = optim.SGD({p}, {lr = 1e-3, master_weights = true})
    local function step()
      p.grad = dm.ones(600, {dtype = "bfloat16"})
      opt:step()
    end
    step()
    p.data[550] = 8
    step()
    local master = opt.state[p].master
    assert.equal(dm.tensor(8.0):sub(1e-3):item(), master[550]:item())
    assert.equal(dm.tensor(1.0):sub(1e-3):sub(1e-3):item(), master[1]:item())
    assert.equal(8, p[550]:item())
  end)

  it("a parameter that is not dense", function()
    local p = dm.zeros(2, 3, {dtype = "float16"}):t():detach():requires_grad_()
    local opt = optim.SGD({p}, {lr = 1, master_weights = true})
    for _ = 1, 2 do
      p.grad = dm.tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}}, {dtype = "float16"})
      opt:step()
    end
    assert.same({{-2, -4}, {-6, -8}, {-10, -12}}, p:totable())
    assert.same({{-2, -4}, {-6, -8}, {-10, -12}}, opt.state[p].master:totable())
  end)

  it("are given gradients that a GradScaler divides in float32", function()
    local p = parameter(dm.ones(3), "float16")
    local opt = optim.SGD({p}, {lr = 1000, master_weights = true})
    local scaler = amp.GradScaler()
    scaler:scale((p:float() * 1e-9):sum()):backward()
    assert.equal("float16", p.grad.dtype)
    scaler:unscale_(opt)
    assert.is_true(math.abs(p.grad[1]:item() / 1e-9 - 1) < 1e-3) -- 0 in float16
    scaler:step(opt)
    assert.is_true(opt.state[p].master[1]:item() < 1)
  end)

  it("a skipped step changes neither", function()
    local p = parameter(dm.ones(3), "float16")
    local opt = optim.Adam({p}, {master_weights = true})
    local scaler = amp.GradScaler{init_scale = 8}
    for _, factor in ipairs{1, math.huge} do
      opt:zero_grad()
      scaler:scale((p:float() * factor):sum()):backward()
      scaler:step(opt)
      scaler:update()
    end
    assert.equal(1, opt.state[p].step:item())
    assert.is_true(dm.equal(p:detach(), opt.state[p].master:half()))
    assert.is_true(opt.state[p].master[1]:item() > 0.998)
  end)

  it("may be switched on later; momentum goes on", function()
    local p, q = parameter(dm.ones(3), "float16"), parameter(dm.ones(3), "float32")
    local a, b = optim.SGD({p}, {lr = 0.5, momentum = 0.5}), optim.SGD({q}, {lr = 0.5,
      momentum = 0.5})
    for i = 1, 3 do
      p.grad, q.grad = dm.ones(3, {dtype = "float16"}), dm.ones(3)
      a:step()
      b:step()
      a.param_groups[1].master_weights = i >= 1
    end
    assert.same(q:totable(), a.state[p].master:totable())
  end)

  it("a model in 16 bits learns like one in float32", function()
    local function loss_after(dtype, opts)
      dm.manual_seed(4)
      local x = dm.randn(64, 5)
      local y = dm.tanh(x:matmul(dm.randn(5, 2)))
      local model = nn.Sequential{nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2)}:to(dtype)
      local opt, loss = optim.Adam(model:parameters(), with({lr = 2e-3}, opts)), nil
      for _ = 1, 150 do
        opt:zero_grad()
        loss = nn.functional.mse_loss(model(x:to(dtype)):float(), y)
        loss:backward()
        opt:step()
      end
      return loss:item()
    end
    local full = loss_after("float32", {})
    assert.is_true(full < 0.1)
    assert.is_true(math.abs(loss_after("bfloat16", {master_weights = true}) - full) < 0.15 * full)
    assert.is_true(math.abs(loss_after("bfloat16", {stochastic_rounding = true}) - full)
      < 0.5 * full)
  end)

  it("refuse what makes no sense", function()
    local p = parameter(dm.ones(3), "float16")
    for _, class in ipairs{"SGD", "Adam", "AdamW"} do
      assert.refuses("wanted one of them", function()
        optim[class]({p}, {master_weights = true, stochastic_rounding = true})
      end)
    end
    local opt = optim.SGD({p}, {master_weights = true})
    opt.state[p] = {master = dm.ones(3, {dtype = "float64"})}
    p.grad = dm.ones(3, {dtype = "float16"})
    assert.refuses("its master float64; wanted 16 bits and float32", function() opt:step() end)
    assert.same({1, 1, 1}, p:totable())
  end)
end)

-- p becomes v, rounded stochastically: 0 - 1 * -v.
local function rounded(v, dtype, seed)
  dm.manual_seed(seed or 1)
  local p = dm.zeros(v:numel(), {dtype = dtype, requires_grad = true})
  p.grad = v * -1
  optim.SGD({p}, {lr = 1, stochastic_rounding = true}):step()
  return p:detach()
end

local function mean_of(v, dtype, n)
  return rounded(dm.full(n, v), dtype):double():mean():item()
end

describe("stochastic rounding", function()
  it("gives one of the two neighbours, with the mean of the value", function()
    local n = 200000
    local cases = {
      bfloat16 = {{1.001, 2^-7}, {-3.14159, 2^-6}, {1e-20, 2^-74}, {5e30, 2^95}, {3e-39, 2^-133}},
      float16 = {{1.0001, 2^-10}, {-3.14159, 2^-9}, {60001.5, 2^5}, {1e-5, 2^-24},
        {3e-8, 2^-24}, {-4e-6, 2^-24}},
    }
    for dtype, list in pairs(cases) do
      for _, case in ipairs(list) do
        local v, ulp = dm.tensor(case[1]):item(), case[2]
        local out = rounded(dm.full(n, v), dtype):double()
        local low, high = out:min():item(), out:max():item()
        assert.is_true(low < v and v < high and high - low <= ulp, ("%s %g"):format(dtype, v))
        -- the standard deviation of the mean is at most ulp / 2 / sqrt(n)
        assert.is_true(math.abs(out:mean():item() - v) < 4 * ulp / 2 / math.sqrt(n),
          ("%s %g: mean %.9g"):format(dtype, v, out:mean():item()))
      end
    end
  end)

  it("leaves values alone that need no rounding, and what is not finite", function()
    for _, dtype in ipairs{"bfloat16", "float16"} do
      local v = dm.tensor{0.0, 1.0, -2.5, 384.0, 2^-14, -2^-24, 65280.0, math.huge, -math.huge}
      for seed = 1, 20 do assert.same(v:totable(), rounded(v, dtype, seed):totable()) end
      assert.is_true(rounded(dm.tensor{0 / 0}, dtype):isnan()[1]:item())
    end
    -- beyond the largest finite number: infinite only where nearest is
    for seed = 1, 20 do
      assert.same({65504, math.huge, -65504}, rounded(dm.tensor{65519.0, 65520.0, -65510.0},
        "float16", seed):totable())
    end
  end)

  it("a seed gives the same again, on any number of threads", function()
    local v = dm.randn(100001)
    local threads = dm.get_num_threads()
    local first = rounded(v, "bfloat16", 7)
    dm.set_num_threads(1)
    local again = rounded(v, "bfloat16", 7)
    dm.set_num_threads(threads)
    assert.is_true(dm.equal(first, again))
    assert.is_false(dm.equal(first, rounded(v, "bfloat16", 8)))
  end)

  it("each step and each parameter draws its own", function()
    dm.manual_seed(1)
    local p, q = dm.zeros(999, {dtype = "bfloat16", requires_grad = true}),
      dm.zeros(999, {dtype = "bfloat16", requires_grad = true})
    local opt = optim.SGD({p, q}, {lr = 1, stochastic_rounding = true})
    p.grad, q.grad = dm.full(999, 1.001), dm.full(999, 1.001)
    opt:step()
    assert.is_false(dm.equal(p:detach(), q:detach()))
  end)

  it("a skipped step draws as many numbers as another, and changes nothing", function()
    for _, class in ipairs{"SGD", "Adam"} do
      local states = {}
      for i, found in ipairs{0.0, 1.0} do
        dm.manual_seed(1)
        local p = dm.ones(99, {dtype = "bfloat16", requires_grad = true})
        p.grad = dm.full(99, 1.001)
        optim[class]({p}, {lr = 1, stochastic_rounding = true}):step(nil, dm.tensor(found))
        assert.equal(found == 1, dm.equal(p:detach(), dm.ones(99, {dtype = "bfloat16"})))
        states[i] = dm.get_rng_state()
      end
      assert.same(states[1], states[2])
    end
  end)

  it("updates far below half an ulp move the weight by their sum, on average", function()
    for class, lr in pairs{SGD = 1e-5, Adam = 1e-5, AdamW = 1e-5} do
      for _, dtype in ipairs{"bfloat16", "float16"} do
        dm.manual_seed(11)
        local n, steps = 20000, 200
        local p = dm.full(n, 1.5, {dtype = dtype, requires_grad = true})
        local still = dm.full(n, 1.5, {dtype = dtype, requires_grad = true})
        local opts = {lr = lr, weight_decay = 0}
        local a = optim[class]({p}, with(opts, {stochastic_rounding = true}))
        local b = optim[class]({still}, opts)
        for _ = 1, steps do
          p.grad = dm.ones(n, {dtype = dtype})
          still.grad = p.grad
          a:step()
          b:step()
        end
        local moved = 1.5 - p:detach():double():mean():item()
        -- moments of 16 bits are a little off as well
        assert.is_true(math.abs(moved - steps * lr) < 0.1 * steps * lr,
          ("%s %s moved %g"):format(class, dtype, moved))
        assert.equal(1.5, still:detach():double():mean():item())
      end
    end
    assert.is_true(math.abs(mean_of(1 + 2^-20, "bfloat16", 1000000) - (1 + 2^-20)) < 4e-7)
  end)

  it("float32 parameters and copies for autocast are rounded to nearest", function()
    dm.manual_seed(1)
    local w = nn.Parameter(dm.randn(3, 4))
    local v = w:detach():clone():requires_grad_()
    local a, b = optim.SGD({w}, {stochastic_rounding = true}), optim.SGD{v}
    local x = dm.randn(2, 4):bfloat16()
    for _ = 1, 2 do
      amp.autocast({dtype = "bfloat16"}, function() return nn.functional.linear(x, w) end)
      w.grad = dm.ones(3, 4)
      v.grad = w.grad
      a:step()
      b:step()
    end
    assert.is_true(dm.equal(w:detach(), v:detach()))
    assert.is_true(dm.equal(nn.functional.linear(x, w:detach():bfloat16()),
      amp.autocast({dtype = "bfloat16"}, function() return nn.functional.linear(x, w) end)))
  end)
end)
