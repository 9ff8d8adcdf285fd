local dm = require "demilune"
local optim = dm.optim

local function trained(opt, p, gradients)
  for _, g in ipairs(gradients) do
    p.grad = dm.tensor{g + 0.0}
    opt:step()
  end
  return p[1]:item()
end

describe("optim", function()
  it("Adam: three steps of the worked example", function()
    local p = dm.ones(1, {requires_grad = true})
    local v = trained(optim.Adam({p}, {lr = 1e-3}), p, {1, -2, 0.5})
    assert.is_true(math.abs(v - 0.9995027780532837) <= 2^-24)
  end)

  it("Adam keeps two moments a parameter, with amsgrad a third", function()
    for amsgrad, wanted in pairs{[false] = {"exp_avg", "exp_avg_sq", "step"},
      [true] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}} do
      local p = dm.ones(1, {requires_grad = true})
      local opt, names = optim.Adam({p}, {amsgrad = amsgrad}), {}
      trained(opt, p, {1})
      for name in pairs(opt.state[p]) do names[#names + 1] = tostring(name) end
      table.sort(names)
      assert.same(wanted, names)
    end
  end)

  it("SGD: three steps of the worked example", function()
    local p = dm.ones(1, {requires_grad = true})
    local opt = optim.SGD({p}, {lr = 0.1, momentum = 0.9, weight_decay = 1e-4})
    assert.is_true(math.abs(trained(opt, p, {1, 1, 1}) - 0.43894872069358826) <= 2^-24)
  end)

  it("saves state by keys of any type", function()
    local p = dm.ones(1, {requires_grad = true})
    local opt = optim.SGD({p}, {lr = 0.1, momentum = 0.9})
    trained(opt, p, {1})
    opt.state[p][1] = dm.ones(2)
    local saved = opt:state_dict().state[1]
    assert.same({1, 1}, saved[1]:totable())
    assert.is_true(dm.is_tensor(saved.momentum_buffer))
  end)

  it("passes over parameters without a gradient, and makes no state for them", function()
    local p, q = dm.ones(1, {requires_grad = true}), dm.ones(1, {requires_grad = true})
    local opt = optim.AdamW({p, q}, {lr = 0.1})
    trained(opt, p, {1})
    assert.equal(1, q:item())
    assert.is_nil(opt.state[q])
    assert.equal(1, opt.state[p].step:item())
  end)

  for _, name in ipairs(require "spec.optimizers") do
    it(name .. " goes on from its state as if it had not stopped", function()
      local opts = name == "SGD" and {lr = 0.1, momentum = 0.9} or {lr = 0.1}
      local p, q = dm.ones(2, 3):requires_grad_(), dm.ones(2, 3):requires_grad_()
      local a, b = optim[name]({p}, opts), optim[name]({q}, opts)
      local function step(opt, w, g)
        w.grad = dm.linspace(g, 1, 6):reshape(2, 3)
        opt:step()
      end
      for _, g in ipairs{1, 2} do step(a, p, g) end
      b:load_state_dict(a:state_dict())
      q.data:copy_(p.data)
      for _, g in ipairs{3, -1} do
        step(a, p, g)
        step(b, q, g)
      end
      assert.is_true(dm.equal(p:detach(), q:detach()))
    end)
  end

  it("saves counters as numbers, Adam's as a tensor, and takes both", function()
    local function stepped(name)
      local p = dm.ones(2, {requires_grad = true})
      local opt = optim[name]({p}, {lr = 0.1})
      for _ = 1, 3 do
        p.grad = dm.ones(2)
        opt:step()
      end
      return opt, p, opt:state_dict()
    end
    local nadam, p, saved = stepped "NAdam"
    assert.equal("integer", math.type(saved.state[1].step))
    assert.equal(3, saved.state[1].step)
    assert.equal("float", math.type(saved.state[1].mu_product))
    saved.state[1].step = dm.tensor(7.0)
    nadam:load_state_dict(saved)
    assert.equal(7, nadam.state[p].step:item())
    assert.equal("float64", nadam.state[p].mu_product.dtype)
    local adam, q, theirs = stepped "Adam"
    assert.equal("float32", theirs.state[1].step.dtype)
    theirs.state[1].step = 9
    adam:load_state_dict(theirs)
    assert.equal(9, adam.state[q].step:item())
  end)

  it("zero_grad keeps gradients as zeros if asked: momentum and decay go on", function()
    for _, given in ipairs{{set_to_none = false}, false} do
      local p = dm.ones(1, {requires_grad = true})
      local opt = optim.SGD({p}, {lr = 0.1, momentum = 0.5})
      trained(opt, p, {1})
      opt:zero_grad(given)
      assert.equal(0, p.grad:item())
      opt:step()
      assert.is_true(math.abs(p:item() - 0.85) < 1e-6)
      opt:zero_grad{set_to_none = true}
      assert.is_nil(p.grad)
      opt:step()
      assert.is_true(math.abs(p:item() - 0.85) < 1e-6)
    end
    local p = dm.ones(2, {requires_grad = true})
    p.grad = dm.ones(1):expand(2)
    optim.SGD{p}:zero_grad(false)
    assert.same({0, 0}, p.grad:totable())
    local layer = dm.nn.Linear(2, 1)
    layer(dm.ones(1, 2)):sum():backward()
    layer:zero_grad{set_to_none = false}
    assert.same({0, 0}, layer.weight.grad[1]:totable())
    assert.error_matches(function() layer:zero_grad{set_to_non = false} end, "set_to_none")
  end)

  it("a saved option that is nil replaces one that is set", function()
    local p = dm.ones(2, 3, {requires_grad = true})
    local saved = optim.Muon{p}:state_dict()
    local opt = optim.Muon({p}, {adjust_lr_fn = "match_rms_adamw"})
    opt:load_state_dict(saved)
    assert.is_nil(opt.param_groups[1].adjust_lr_fn)
    opt = optim.LBFGS({p}, {line_search_fn = "strong_wolfe", max_eval = 3})
    opt:load_state_dict(optim.LBFGS{p}:state_dict())
    assert.is_nil(opt.param_groups[1].line_search_fn)
    assert.is_nil(opt.param_groups[1].max_eval)
  end)

  it("without decay an infinite weight leaves its gradient as it is", function() -- as PyTorch's
    for _, name in ipairs{"SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam",
      "RAdam", "ASGD"} do
      local p = dm.tensor({-math.huge, 1}, {requires_grad = true})
      local opt = optim[name]({p}, {lr = 0.1})
      p.grad = dm.tensor{0.0, 1}
      opt:step()
      assert.equal(-math.huge, p[1]:item(), name)
      for key, value in pairs(opt.state[p] or {}) do
        local wanted = key == "ax" and -math.huge or key == "exp_inf" and 9.99999993922529e-09 or 0
        if value:dim() > 0 then assert.equal(wanted, value[1]:item(), name .. " " .. key) end
      end
    end
  end)

  it("updates a parameter that is not dense", function()
    local p = dm.zeros(2, 3):t():detach():requires_grad_()
    local opt = optim.SGD({p}, {lr = 1})
    p.grad = dm.tensor{{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}}
    opt:step()
    assert.same({{-1, -2}, {-3, -4}, {-5, -6}}, p:totable())
  end)

  it("refuses what it cannot use", function()
    local p = dm.ones(1, {requires_grad = true})
    assert.error_matches(function() optim.SGD({p}, {lrr = 1}) end, "did you mean 'lr'")
    assert.error_matches(function() optim.SGD({}) end, "empty")
    assert.error_matches(function() optim.SGD({p * 2}) end, "wanted a leaf")
    assert.error_matches(function() optim.SGD({p, p}) end, "already")
    assert.error_matches(function() optim.Adam({p}, {betas = {1.5, 0}}) end, "betas")
    local q = dm.ones(1, {requires_grad = true})
    assert.error_matches(function()
      optim.SGD({{params = {p}}, {params = {q}, param_names = {"weight"}}})
    end, "a group with names of its parameters, and the first one has none")
  end)

  it("adjusts Muon's rate by the sides of the matrix", function()
    local function moved(adjust)
      local p = dm.zeros(2, 8, {requires_grad = true})
      p.grad = dm.arange(1, 16):reshape(2, 8):float()
      optim.Muon({p}, {adjust_lr_fn = adjust, weight_decay = 0}):step()
      return p:detach()
    end
    local plain, clamped = moved "spectral_unclamped", moved "original"
    assert.is_true((plain - clamped / 2):abs():amax():item() < 1e-9)
    assert.is_true(plain:abs():amax():item() > 0)
  end)

  it("keeps masters of 16-bit parameters", function()
    for _, name in ipairs{"RMSprop", "NAdam", "Lion", "LAMB"} do
      local p = dm.ones(4, {dtype = "bfloat16"}):requires_grad_()
      local q = dm.ones(4, {requires_grad = true})
      local a = optim[name]({p}, {lr = 1e-4, master_weights = true})
      local b = optim[name]({q}, {lr = 1e-4})
      for _ = 1, 40 do
        p.grad, q.grad = dm.ones(4, {dtype = "bfloat16"}), dm.ones(4)
        a:step()
        b:step()
      end
      assert.is_true(dm.equal(a.state[p].master, q.data))
      assert.is_true(dm.equal(p.data, q.data:to "bfloat16"))
    end
  end)

  it("a skipped step changes nothing", function()
    local p = dm.ones(2, {requires_grad = true})
    local opt = optim.RMSprop({p}, {lr = 0.1})
    local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 8}
    scaler:scale((p * dm.tensor{1.0, 1 / 0}):sum()):backward()
    scaler:step(opt)
    scaler:update()
    assert.same({1, 1}, p:totable())
    assert.equal(0, opt.state[p].step:item())
    assert.equal(4, scaler:get_scale())
  end)

  it("a module does not stand for its parameters", function()
    local layer = dm.nn.Linear(2, 2)
    local opt = optim.SGD(layer:parameters())
    for _, given in ipairs{layer, dm.nn.Sequential{layer}, {layer}} do
      assert.refuses("SGD: wanted parameters, got a %a+; hint: module:parameters%(%)",
        function() return optim.SGD(given, {lr = 0.1}), nil end)
    end
    assert.refuses("got a Linear", function() opt:add_param_group(layer) end)
    assert.equal(1, #opt.param_groups)
  end)

  it("Muon takes matrices only, and leaves the optimizer as it was", function()
    local w, b = dm.ones(2, 2, {requires_grad = true}), dm.ones(2, {requires_grad = true})
    assert.error_matches(function() optim.Muon{w, b} end, "parameter 2 .* wanted a matrix")
    local opt = optim.Muon{w}
    assert.error_matches(function() opt:add_param_group{params = {b}} end, "AdamW")
    assert.equal(1, #opt.param_groups)
    assert.error_matches(function() optim.Muon({w}, {adjust_lr_fn = "none"}) end, "match_rms")
  end)

  describe("LBFGS", function()
    -- Rosenbrock's valley from {-1.2, 1}: what PyTorch 2.15.0 finds and how often it looks.
    local function valley(opts)
      local p = dm.tensor({-1.2, 1}, {dtype = "float64"}):requires_grad_()
      local opt = optim.LBFGS({p}, opts)
      local function closure()
        opt:zero_grad()
        local loss = (1 - p[1]) ^ 2 + 100 * (p[2] - p[1] ^ 2) ^ 2
        loss:backward()
        return loss
      end
      return p, opt, closure
    end
    local function is_near(want, got) assert.near(want, got, 1e-9 * math.abs(want)) end

    it("with fixed steps", function()
      local p, opt, closure = valley{lr = 1e-3}
      for i, want in ipairs{24.199999999999996, 23.3413022020187, 22.632263564268328} do
        is_near(want, opt:step(closure):item())
        assert.equal(20 * i, opt.state[p].memory.func_evals)
      end
    end)

    it("with a line search", function()
      local p, opt, closure = valley{line_search_fn = "strong_wolfe"}
      opt:step(closure)
      is_near(0.38062264334648777, p[1]:item())
      is_near(0.12491013187293636, p[2]:item())
      assert.equal(25, opt.state[p].memory.func_evals)
      is_near(0.4234823024380289, opt:step(closure):item())
      is_near(0.9999814210791366, p[1]:item())
      assert.equal(44, opt.state[p].memory.func_evals)
    end)

    it("searches a line within max_eval, to 1e-9 whatever tolerance_change is", function()
      for _, case in ipairs{ -- options, PyTorch's evaluations and its last weight
        {{max_eval = 1}, 2, 0.3}, {{max_eval = 4}, 5, -0.007721880735263375}, {{}, 26, 6.28203e-11},
        {{max_eval = 8}, 9, -0.0006212069161325357}, {{tolerance_change = 0.1}, 26, 6.28203e-11},
        {{tolerance_change = 0, max_iter = 3, max_eval = 60}, 33, 6.28203e-11}} do
        local options, wanted, last = table.unpack(case)
        options.line_search_fn, options.lr = "strong_wolfe", 5
        local p = dm.tensor({1, -2, 0.3}, {dtype = "float64"}):requires_grad_()
        local opt, slopes, n = optim.LBFGS({p}, options), dm.tensor{1.0, 3, 9}:double(), 0
        opt:step(function()
          n = n + 1
          opt:zero_grad()
          local loss = p:abs():dot(slopes)
          loss:backward()
          return loss
        end)
        assert.equal(wanted, n)
        assert.is_true(math.abs(last - p[3]:item()) < 1e-14)
      end
    end)

    it("maximizes, as it minimizes the negated loss", function()
      for _, search in ipairs{false, "strong_wolfe"} do
        local function opts(maximize)
          return {lr = search and 1 or 1e-3, line_search_fn = search or nil, maximize = maximize}
        end
        local p, a, f = valley(opts(false))
        local q, b, g = valley(opts(true))
        for _ = 1, 2 do
          local loss = a:step(f):item()
          local negated = b:step(function()
            local y = -g()
            q.grad:neg_()
            return y
          end)
          assert.equal(-loss, negated:item())
          assert.same(p:totable(), q:totable())
        end
      end
    end)

    it("goes on from its state, which later steps leave alone", function()
      local p, a, f = valley{lr = 1e-3}
      a:step(f)
      local saved = a:state_dict()
      local q, b, g = valley{lr = 1e-3}
      b:load_state_dict(saved)
      q.data:copy_(p.data)
      a:step(f)
      b:step(g)
      assert.same(p:totable(), q:totable())
      assert.equal(a.state[p].memory.func_evals, b.state[q].memory.func_evals)
    end)

    it("refuses what it cannot use", function()
      local p = dm.ones(1, {requires_grad = true})
      assert.error_matches(function() optim.LBFGS({p}, {line_search_fn = "wolfe"}) end, "strong")
      assert.error_matches(function() optim.LBFGS({p}):step() end, "wanted a function")
      assert.error_matches(function()
        optim.LBFGS{{params = {p}}, {params = {dm.ones(1, {requires_grad = true})}}}
      end, "one group")
    end)
  end)

  describe("means of weights", function()
    local nn, swa = dm.nn, optim.swa_utils

    it("by functions, in PyTorch's names", function()
      local function after(options)
        local model = nn.Linear(1, 1, {bias = false})
        local mean = swa.AveragedModel(model, options)
        for _, v in ipairs{1, 3, 8} do
          model.weight.data:fill_(v)
          mean:update_parameters(model)
        end
        return mean.module.weight:item()
      end
      local ema = after{decay = 0.75}
      assert.near(0.75 * 1.5 + 0.25 * 8, ema, 1e-6)
      assert.near(ema, after{multi_avg_fn = swa.get_ema_multi_avg_fn(0.75)}, 1e-6)
      assert.near(4, after{multi_avg_fn = swa.get_swa_multi_avg_fn()}, 1e-6)
      local function own(mean, value, n) return mean + (value - mean) / (n + 1) ^ 2 end
      assert.near(1.5 + 6.5 / 9, after{avg_fn = own}, 1e-6)
      assert.refuses("one of decay, avg_fn and multi_avg_fn", function()
        after{decay = 0.5, avg_fn = own}
      end)
      assert.refuses("decay is 2, wanted a number from 0 to 1", function()
        swa.get_ema_multi_avg_fn(2)
      end)
    end)

    it("of all steps alike", function()
      local model = nn.Linear(1, 1, {bias = false})
      local mean = swa.AveragedModel(model)
      for _, v in ipairs{1, 3, 8} do
        model.weight.data:fill_(v)
        mean:update_parameters(model)
      end
      assert.near(4, mean.module.weight:item(), 1e-6)
      assert.equal(8, model.weight:item())
      assert.near(4, mean(dm.ones(1, 1)):item(), 1e-6)
      assert.equal(3, mean.n_averaged:item())
    end)

    it("exponential ones, of buffers too if asked", function()
      local model = nn.Sequential{nn.Linear(1, 1), nn.BatchNorm1d(1)}
      local plain = swa.AveragedModel(model, {decay = 0.75})
      local all = swa.AveragedModel(model, {decay = 0.75, use_buffers = true})
      for _, v in ipairs{4, 8} do
        model[1].weight.data:fill_(v)
        model[2].running_mean:fill_(v)
        plain:update_parameters(model)
        all:update_parameters(model)
      end
      assert.equal(5, plain.module[1].weight:item())
      assert.equal(8, plain.module[2].running_mean:item())
      assert.equal(5, all.module[2].running_mean:item())
    end)

    it("update_bn makes running statistics anew", function()
      local model = nn.Sequential{nn.BatchNorm1d(2)}
      model[1].running_mean:fill_(9)
      model:eval()
      local x = dm.randn(12, 2)
      local batches, i = x:split(4), 0
      swa.update_bn(function()
        i = i + 1
        return batches[i]
      end, model)
      local mean = x:mean(1)
      for c = 1, 2 do assert.near(mean[c]:item(), model[1].running_mean[c]:item(), 1e-6) end
      assert.equal(0.1, model[1].momentum)
      assert.is_false(model.training)
    end)

    it("update_bn takes a list of batches", function()
      local a, b = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
      local x, y = dm.randn(4, 2), dm.randn(4, 2)
      swa.update_bn({x, {y, dm.ones(4)}}, a)
      local batches, i = {x, y}, 0
      swa.update_bn(function() i = i + 1 return batches[i] end, b)
      assert.is_true(a.running_mean:equal(b.running_mean))
      assert.near(x:mean{dim = 1}[1]:item() / 2 + y:mean{dim = 1}[1]:item() / 2,
        a.running_mean[1]:item(), 1e-6)
      assert.error_matches(function() swa.update_bn(3, a) end, "loader is 3")
    end)

    it("refuse what they cannot use", function()
      assert.error_matches(function() swa.AveragedModel(3) end, "wanted a module")
      local opt = optim.SGD{dm.ones(1, {requires_grad = true})}
      assert.error_matches(function() swa.SWALR(opt) end, "swa_lr is missing")
      assert.error_matches(function() swa.SWALR(opt, 1, {anneal_strategy = "x"}) end, "'linear'")
    end)
  end)

  it("schedules made of schedules know their parts", function()
    local S = optim.lr_scheduler
    local opt = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1})
    local other = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1})
    local a, b = S.ExponentialLR(opt, 0.5), S.ExponentialLR(other, 0.5)
    assert.error_matches(function() S.SequentialLR(opt, {a, b}, {milestones = {1}}) end,
      "schedule 2 is of another optimizer")
    assert.error_matches(function() S.SequentialLR(opt, {a}, {milestones = {1}}) end, "wanted 0")
    assert.error_matches(function() S.ReduceLROnPlateau(opt, {mode = "best"}) end, "'min' or 'max'")
    assert.error_matches(function() S.ChainedScheduler{S.ReduceLROnPlateau(opt)} end,
      "element 1 is a ReduceLROnPlateau, whose step wants an argument")
    for _, s in ipairs{S.ReduceLROnPlateau(opt), S.ChainedScheduler{a},
      S.SequentialLR(opt, {a})} do
      assert.error_matches(function() s.step() end, "hint: scheduler:step(...)", 1, true)
      assert.matches("last_epoch", tostring(s:state_dict()))
    end
    assert.error_matches(function() S.ReduceLROnPlateau(opt):step() end, "the monitored quantity")
    assert.error_matches(function() S.CosineAnnealingWarmRestarts(opt, 0) end, "from 1 up")
  end)

  it("a CyclicLR behind another schedule leaves that one its rate", function() -- PyTorch 2.15's
    local S = optim.lr_scheduler
    local o = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 0.1, momentum = 0.9})
    local s = S.SequentialLR(o, {S.LinearLR(o, {start_factor = 0.1, total_iters = 7}),
      S.CyclicLR(o, {base_lr = 0.01, max_lr = 0.2, step_size_up = 3})}, {milestones = {5}})
    o:step()
    s:step()
    assert.near(0.02285714285714286, o.param_groups[1].lr, 1e-12)
    local alone = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 0.1, momentum = 0.9})
    S.CyclicLR(alone, {base_lr = 0.01, max_lr = 0.2})
    assert.equal(0.01, alone.param_groups[1].initial_lr)
  end)

  it("a schedule says what does not fit its optimizer's groups", function()
    local S = optim.lr_scheduler
    local function group() return {params = {dm.ones(1, {requires_grad = true})}} end
    local function begun() return optim.SGD({group(), group()}, {lr = 1, momentum = 0.9}) end
    local function one() return 1 end
    local lists = {LambdaLR = {lr_lambda = {one}}, OneCycleLR = {max_lr = {1}, total_steps = 9},
      CyclicLR = {base_lr = {1}, max_lr = 2}}
    for name, o in pairs(lists) do
      assert.error_matches(function() S[name](begun(), o) end,
        "has 1 values, wanted 2, one a group")
    end
    local closed = {LambdaLR = {lr_lambda = one}, CosineAnnealingWarmRestarts = {T_0 = 2},
      OneCycleLR = {max_lr = 1, total_steps = 9}, CyclicLR = {base_lr = 1, max_lr = 2}}
    for name, o in pairs(closed) do
      local opt = begun()
      local s = S[name](opt, o)
      opt:add_param_group(group())
      opt:step()
      assert.error_matches(function() s:step() end, name .. ":step: group 3 was added")
    end
    local opt = begun()
    local s, plateau = S.StepLR(opt, 1), S.ReduceLROnPlateau(opt, {min_lr = {0, 0}, patience = 0})
    opt:add_param_group(group())
    opt:step()
    s:step() -- from the rate before: every group has one
    assert.near(0.1, s:get_last_lr()[3], 1e-15)
    plateau:step(1)
    assert.error_matches(function() plateau:step(2) end, "min_lr has 2 numbers")
  end)

  it("take up what PyTorch 2.15 has saved", function()
    local S = optim.lr_scheduler
    local function begun() return optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1}) end
    local opt = begun()
    local steps = S.MultiStepLR(opt, {milestones = {9}})
    steps:load_state_dict{gamma = 0.5, base_lrs = {1}, last_epoch = 1,
      milestones = {[2] = 1, [4] = 2}} -- a Counter there
    for _, want in ipairs{0.5, 0.5, 0.125} do
      opt:step()
      steps:step()
      assert.equal(want, opt.param_groups[1].lr)
    end
    local parts = {{last_epoch = 2, base_lrs = {1}}, {last_epoch = -1, base_lrs = {1}, gamma = 0.5}}
    opt = begun()
    local sequence = S.SequentialLR(opt, {S.ConstantLR(opt), S.ExponentialLR(opt, 0.1)},
      {milestones = {5}})
    sequence:load_state_dict{last_epoch = 2, _milestones = {3}, _schedulers = parts}
    for _, want in ipairs{1, 0.5} do
      opt:step()
      sequence:step()
      assert.equal(want, opt.param_groups[1].lr)
    end
    local chained = S.ChainedScheduler{S.ConstantLR(opt), S.ExponentialLR(opt, 0.1)}
    chained:load_state_dict{_schedulers = parts}
    assert.matches("step 2", tostring(chained))

    local w = dm.ones(2, 2, {requires_grad = true})
    w.grad = dm.ones(2, 2)
    local muon = optim.Muon({w}, {lr = 0.1})
    local saved = muon:state_dict()
    saved.state[1] = {momentum_buffer = dm.ones(2, 2)} -- no step there
    muon:load_state_dict(saved)
    muon:step()
    local ada = optim.Adafactor({w}, {lr = 0.1})
    saved = ada:state_dict()
    saved.param_groups[1].eps = {n = 2, [2] = 0.25} -- (None, 0.25)
    ada:load_state_dict(saved)
    ada:step()
    assert.same({false, 0.25}, ada.param_groups[1].eps)
  end)

  it("LBFGS goes on from a state as PyTorch saves it", function()
    local function begun(at)
      local x = dm.tensor({at}, {dtype = "float64"}):requires_grad_()
      local opt = optim.LBFGS({x}, {max_iter = 2, lr = 0.5})
      return x, opt, function()
        opt:zero_grad()
        local loss = ((x * dm.tensor{1.0, 3}) ^ 4):sum()
        loss:backward()
        return loss
      end
    end
    local x, opt, closure = begun{1.5, -0.5}
    opt:step(closure)
    local m = opt:state_dict().state[1].memory
    local flat, ro = {}, {} -- by itself, with tensors for numbers
    for key, value in pairs(m) do flat[key] = value end
    for i, r in ipairs(m.ro) do ro[i] = dm.tensor(r, {dtype = "float64"}) end
    flat.ro, flat.H_diag = ro, dm.tensor(m.H_diag, {dtype = "float64"})
    local y, other, again = begun(x[1]:totable())
    other:load_state_dict{param_groups = opt:state_dict().param_groups, state = {flat}}
    for _ = 1, 2 do assert.equal(opt:step(closure):item(), other:step(again):item()) end
    assert.is_true(x:equal(y))
  end)

  it("Adafactor and ASGD refuse what PyTorch's refuse", function()
    local w = dm.ones(2, 2, {requires_grad = true})
    for _, case in ipairs{{"Adafactor", "d", 0.5}, {"Adafactor", "beta2_decay", 0.5},
      {"Adafactor", "eps", {-1, 1e-3}}, {"ASGD", "lambd", -1}, {"ASGD", "alpha", -1}} do
      assert.error_matches(function() optim[case[1]]({w}, {[case[2]] = case[3]}) end, case[2])
    end
    optim.Adafactor({w}, {d = 1, beta2_decay = 0, eps = {false, 0}})
  end)

  it("schedules refuse numbers of which a rate would be NaN or infinite", function()
    local S = optim.lr_scheduler
    local function begun() return optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1}) end
    local cases = {{"LinearLR", "start_factor is 0, wanted a number above 0, up to 1",
        {start_factor = 0}}, {"LinearLR", "end_factor is 1.5", {end_factor = 1.5}},
      {"ConstantLR", "factor is %-1, wanted a number from 0 to 1", {factor = -1}},
      {"StepLR", "step_size is 0, wanted a number from 1 up", {step_size = 0}},
      {"CosineAnnealingLR", "T_max is 0, wanted a number above 0", {T_max = 0}},
      {"CyclicLR", "step_size_up is 0", {base_lr = 0.1, max_lr = 1, step_size_up = 0}},
      {"OneCycleLR", "div_factor is 0", {max_lr = 1, total_steps = 9, div_factor = 0}}}
    for _, case in ipairs(cases) do
      assert.error_matches(function() S[case[1]](begun(), case[3]) end, case[2])
    end
    local opt = begun()
    local s = S.ConstantLR(opt, {factor = 0, total_iters = 2})
    for _, want in ipairs{0, 0, 1} do
      assert.equal(want, opt.param_groups[1].lr)
      opt:step()
      s:step()
    end
  end)

  it("OneCycleLR has lists of momenta, and refuses phases of no steps", function()
    local S = optim.lr_scheduler
    local function group() return {params = {dm.ones(1, {requires_grad = true})}} end
    local function begun() return optim.SGD({group(), group()}, {momentum = 0.5}) end
    local opt = begun()
    S.OneCycleLR(opt, {max_lr = 1, total_steps = 9, max_momentum = {0.9, 0.7}})
    assert.same({0.9, 0.7}, {opt.param_groups[1].momentum, opt.param_groups[2].momentum})
    for _, o in ipairs{{total_steps = 10, pct_start = 0.1}, {total_steps = 5, pct_start = 1}} do
      o.max_lr = 1 -- the rate would be NaN
      assert.error_matches(function() S.OneCycleLR(begun(), o) end, "leaves no step to the")
    end
    assert.error_matches(function()
      S.OneCycleLR(begun(), {max_lr = 1, total_steps = 10, pct_start = 30})
    end, "pct_start is 30, wanted a number from 0 to 1")
    assert.error_matches(function() S.OneCycleLR(begun(), {max_lr = 1, total_steps = 0}) end,
      "total_steps is 0, wanted a number from 1 up")
  end)

  it("schedules go on from their state", function()
    local S = optim.lr_scheduler
    local makers = {
      function(o) return S.SequentialLR(o, {S.LinearLR(o, {total_iters = 3}),
        S.StepLR(o, 2, {gamma = 0.5})}, {milestones = {3}}) end,
      function(o) return S.ChainedScheduler{S.ConstantLR(o, {total_iters = 6}),
        S.SequentialLR(o, {S.LinearLR(o), S.ExponentialLR(o, 0.5)}, {milestones = {5}})} end,
      function(o) return S.ReduceLROnPlateau(o, {patience = 1}) end,
      function(o) return S.CosineAnnealingWarmRestarts(o, 3) end,
    }
    for _, make in ipairs(makers) do
      local function begun()
        local o = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1})
        return o, make(o)
      end
      local function go(o, s, n)
        local rates = {}
        for i = 1, n do
          o:step()
          s:step(s.best and 1 or nil)
          rates[i] = o.param_groups[1].lr
        end
        return rates
      end
      local o, s = begun()
      go(o, s, 4)
      local p, t = begun()
      p:load_state_dict(o:state_dict())
      t:load_state_dict(s:state_dict())
      assert.same(go(o, s, 5), go(p, t, 5))
    end
  end)

  it("warns once when a schedule is stepped first", function()
    local opt = optim.SGD({dm.ones(1, {requires_grad = true})}, {lr = 1})
    local schedule = optim.lr_scheduler.StepLR(opt, 2, {gamma = 0.5})
    assert.equal(1, #require "spec.warnings"(function()
      schedule:step()
      schedule:step()
    end))
    assert.equal(0.5, opt.param_groups[1].lr)
  end)

  -- the values are PyTorch's
  it("calls hooks before and after each step", function()
    local p, log = dm.tensor({1.0, 2.0}, {dtype = "float64", requires_grad = true}), {}
    local opt = optim.SGD({p}, {lr = 0.5})
    local function note(word)
      return function(o, ...)
        assert.equal(opt, o)
        log[#log + 1] = {word, p:totable(), select("#", ...)}
      end
    end
    local doubled = opt:register_step_pre_hook(function() p.grad:mul_(2) end)
    local before = opt:register_step_pre_hook(note "before")
    local after = opt:register_step_post_hook(note "after")
    p.grad = dm.ones(2, {dtype = "float64"})
    assert.equal(7, opt:step(function() return 7 end))
    doubled:remove()
    before.remove()
    opt:step()
    after:remove()
    after:remove() -- once more changes nothing
    opt:step()
    assert.same({{"before", {1, 2}, 1}, {"after", {0, 1}, 1}, {"after", {-1, 0}, 0}}, log)
    assert.same({-2, -1}, p:totable())
  end)

  it("calls hooks of any class, which may remove themselves and no other", function()
    local function calls(opt, step)
      local count, handle = 0, nil
      handle = opt:register_step_post_hook(function() handle:remove() end)
      opt:register_step_post_hook(function() count = count + 1 end)
      step()
      step()
      return count
    end
    local p = dm.ones(2, 2, {requires_grad = true})
    local function closure()
      p.grad = nil
      local loss = p:square():sum()
      loss:backward()
      return loss
    end
    for _, opt in ipairs{optim.LBFGS({p}, {max_iter = 2}), optim.Muon{p}, optim.LAMB{p}} do
      assert.equal(2, calls(opt, function() opt:step(closure) end), opt.class)
    end
    local opt, scaler = optim.Adam{p}, dm.amp.GradScaler{device = "cpu", init_scale = 4.0}
    local seen = {}
    opt:register_step_pre_hook(function() seen[#seen + 1] = p.grad:max():item() end)
    assert.equal(2, calls(opt, function()
      p.grad = nil
      scaler:scale(p:sum()):backward()
      scaler:step(opt)
      scaler:update()
    end))
    assert.same({1, 1}, seen)
    assert.is_nil(opt:state_dict()._pre_hooks)
  end)

  it("refuses hooks that are no functions or return a value", function()
    local opt = optim.SGD({dm.ones(1, {requires_grad = true})})
    assert.refuses("optim_spec.lua:%d+: register_step_pre_hook: .*function", function()
      opt:register_step_pre_hook(3)
    end)
    assert.refuses("optim_spec.lua:%d+: optimizer.register_step_post_hook was called with a dot",
      function() opt.register_step_post_hook(print) end)
    opt:register_step_pre_hook(function() return 1 end)
    assert.refuses("optim_spec.lua:%d+: step: a hook before it returned a number", function()
      opt:step()
    end)
    assert.refuses("optimizer.step was called with a dot", function() opt.step() end)
  end)
end)
