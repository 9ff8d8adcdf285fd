-- amp.report counts ops by dtype and module, casts, saved bytes and statistics of gradients, and
-- suggests the right change.

local dm = require "demilune"
local core = require "demilune.core"
local hooks = core._test
local device = require "spec.device"
local warnings = require "spec.warnings"
local Optimizer = require "demilune.optim.optimizer"
local nn, optim, amp = dm.nn, dm.optim, dm.amp

local function here() return debug.getinfo(2, "l").currentline end

local function network()
  return nn.Sequential{nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)}
end

-- One step of training; opts: dtype (nil: no region), scaler, factor of the loss.
local function train(model, optimizer, opts)
  local x = opts.x or dm.randn(32, 8)
  optimizer:zero_grad()
  local loss
  do
    local _ <close> = amp.autocast{dtype = opts.dtype or "bfloat16", enabled = opts.dtype ~= nil}
    local y = model(x)
    loss = (y * y):mean() * (opts.factor or 1) -- of ops on neither device's list
  end
  if opts.scaler then
    opts.scaler:scale(loss):backward()
    opts.scaler:step(optimizer)
    opts.scaler:update()
  else
    loss:backward()
    optimizer:step()
  end
end

-- A report of n steps of training; opts: train's, model, lr, and amp.report's.
local function report_of(n, opts)
  local model = opts.model or network()
  local optimizer = optim.SGD(model:parameters(), {lr = opts.lr or 1e-3})
  local report <close> = amp.report{scaler = opts.scaler, check = opts.check, grads = opts.grads}
  for _ = 1, n do train(model, optimizer, opts) end
  report:close()
  return report, model, optimizer
end

local function row(report, path, class)
  for _, r in ipairs(report.modules) do
    if r.path == path and (not class or r.class == class) then return r end
  end
end

local Fn = nn.Module:extend "Fn"
function Fn:init(fn) self.fn = fn end
function Fn:forward(x) return self.fn(x) end

before_each(function() dm.manual_seed(1) end)

describe("amp.report", function()
  describe("is a scope that", function()
    it("records until it is closed, and stays readable", function()
      local report
      do
        local r <close> = amp.report()
        report = r
        local _ = dm.ones(2) + dm.ones(2)
      end
      local _ = dm.ones(2) + dm.ones(2)
      assert.same({float32 = 1}, report.total.forward)
    end)

    it("takes a function, and returns what that returns", function()
      local seen, a, b
      a, b = amp.report(function(report)
        seen = report
        local _ = dm.ones(2) + 1
        return 1, 2
      end)
      assert.same({1, 2}, {a, b})
      assert.same({float32 = 1}, seen.total.forward)
      assert.equal(7, amp.report({check = false}, function() return 7 end))
    end)

    it("wraps a function, and records each of its calls", function()
      local report = amp.report()
      local f = report:wrap(function(n)
        return n == 0 and dm.ones(2) + 1 or nil
      end)
      local _ = dm.ones(2) + 1
      f(0)
      f(0)
      assert.same({float32 = 2}, report.total.forward)
      assert.refuses("wanted a function", function() report:wrap(3) end)
    end)

    it("leaves nothing behind an error", function()
      local step, report = Optimizer.step, nil
      local model = nn.Sequential{Fn(function() error "out" end)}
      assert.refuses("out", function()
        local r <close> = amp.report()
        report = r
        model(dm.ones(2))
      end)
      assert.equal(step, Optimizer.step)
      assert.equal(0, core._module_number())
      local _ = dm.ones(2) + 1
      assert.same({}, report.total.forward)
      report = amp.report()
      pcall(model, dm.ones(2))
      local _ = dm.ones(2) + 1
      report:close()
      assert.same({float32 = 1}, row(report, "(no module)").forward)
    end)

    it("stops when it is forgotten and collected, with a warning", function()
      local step = Optimizer.step
      amp.report()
      amp.report()
      assert.not_equal(step, Optimizer.step)
      assert.equal(2, #warnings(function()
        collectgarbage()
        collectgarbage()
      end))
      assert.equal(step, Optimizer.step)
      local _ = dm.ones(2) + 1
    end)

    it("may be open twice, closed in any order", function()
      local a = amp.report()
      local _ = dm.ones(2) + 1
      local b = amp.report()
      local _ = dm.ones(2) + 1
      a:close()
      local _ = dm.ones(2) + 1
      b:close()
      assert.same({float32 = 2}, a.total.forward)
      assert.same({float32 = 2}, b.total.forward)
    end)

    it("refuses unknown options and strange grads", function()
      assert.refuses("did you mean 'grads'", function() amp.report{grad = 1} end)
      assert.refuses("grads is 1, wanted a module", function() amp.report{grads = 1} end)
      assert.refuses("element 2 is a string", function()
        amp.report{grads = {dm.ones(1), "x"}}
      end)
    end)
  end)

  describe("names modules", function()
    it("by path and class, the loss and the rest apart", function()
      local model, criterion = network(), nn.CrossEntropyLoss()
      local report <close> = amp.report()
      criterion(model(dm.randn(4, 8)), dm.tensor{1, 2, 3, 4})
      local _ = dm.ones(1) + 1
      report:close()
      local names = {}
      for i, r in ipairs(report.modules) do names[i] = r.path .. "|" .. r.class end
      assert.equal("(no module)|", names[1])
      assert.matches("^model%d*%[1%]|Linear$", names[2])
      assert.matches("^model%d*%[2%]|ReLU$", names[3])
      assert.matches("^model%d*%[3%]|Linear$", names[4])
      assert.equal("|CrossEntropyLoss", names[5])
    end)

    it("of a nested one, and gives backward's ops to the module of forward", function()
      local model = nn.Sequential{nn.Sequential{Fn(function(x) return (x * 2):exp() end)}}
      local x = dm.ones(3, {requires_grad = true})
      local report <close> = amp.report()
      model(x):sum():backward()
      report:close()
      local r = report.modules[#report.modules]
      for _, m in ipairs(report.modules) do
        if m.class == "Fn" then r = m end
      end
      assert.matches("^model%d*%[1%]%[1%]$", r.path)
      assert.same({float32 = 2}, r.forward)
      assert.same({float32 = 2}, r.backward)
    end)

    it("per coroutine", function()
      local report <close> = amp.report()
      local inner = Fn(function(x)
        coroutine.yield()
        return x + 1
      end)
      local co = coroutine.wrap(function() inner(dm.ones(2)) end)
      co()
      local _ = dm.ones(2) * 3
      co()
      report:close()
      assert.same({float32 = 1}, row(report, "", "Fn").forward)
      assert.same({float32 = 1}, row(report, "(no module)").forward)
    end)
  end)

  describe("counts", function()
    it("ops by the dtype they ran in, casts and what is kept", function()
      local report = report_of(2, {dtype = "bfloat16"})
      local first = report.modules[2]
      assert.equal("Linear", first.class)
      assert.equal(2, report.steps)
      assert.same({bfloat16 = 2}, first.forward)
      -- x {32, 8} becomes 16 bit in each of two steps; weight {16, 8} and bias {16} in
      -- the first, after which the optimizer keeps their copies
      assert.equal(2, first.casts.weights)
      assert.equal(2 * (16 * 8 + 16), first.casts.weight_bytes)
      assert.equal(2, first.casts.inputs)
      assert.equal(2 * 2 * 32 * 8, first.casts.input_bytes)
      assert.equal(2 * 2 * 32 * 8, first.kept.bfloat16)
      assert.equal(first.kept.bfloat16, first.saved)
      assert.equal(2 * 2 * 32 * 16, first.outputs.bfloat16)
      -- the output of the ReLU serves it and the next layer, and counts once
      assert.equal("ReLU", report.modules[3].class)
      assert.equal(2 * 2 * 32 * 16, report.modules[3].kept.bfloat16)
      assert.is_nil(report.modules[4].kept.bfloat16)
      assert.equal(4, report.casts.weights)
      assert.equal(8, report.casts.backward) -- the weights' gradients to float32
    end)

    it("casts of one weight: shared in a region, not when it is frozen", function()
      local function weights(w, fn)
        local report <close> = amp.report()
        fn(function() return dm.ones(2, 2):mm(w) end)
        return report.casts.weights
      end
      local function twice(use)
        amp.autocast({dtype = "bfloat16"}, function() return use(), use() end)
      end
      local w, frozen = dm.parameter(dm.ones(2, 2)), dm.parameter(dm.ones(2, 2))
      frozen.requires_grad = false
      assert.equal(1, weights(w, twice))
      assert.equal(2, weights(frozen, twice))
      assert.equal(2, weights(w, function(use)
        for _ = 1, 2 do amp.autocast({dtype = "bfloat16"}, use) end
      end))
    end)

    it("linear and ReLU keep 16 bits only", function()
      local model = nn.Sequential{nn.Linear(8, 4), nn.ReLU()}
      local kept = report_of(1, {dtype = "bfloat16", model = model}).total.kept
      assert.equal(2 * (32 * 8 + 32 * 4), kept.bfloat16)
      assert.is_nil(kept.float32)
    end)

    -- PyTorch's saved_tensors_hooks on the same network, without weights and
    -- their casts, each storage once
    it("what PyTorch keeps of the Fashion-MNIST network", function()
      local model = nn.Sequential{
        nn.Conv2d(1, 16, 3, {padding = 1, bias = false}), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 14 * 14, 64), nn.ReLU()}
      local report = report_of(1, {dtype = "bfloat16", model = model, x = dm.randn(2, 1, 28, 28)})
      local image = 2 * 28 * 28
      assert.equal(2 * (image + 16 * image * 2 + 4 * image + 2 * 64),
        report.total.kept.bfloat16)
    end)

    it("nothing saved without a region, float32 kept instead", function()
      local report = report_of(1, {})
      assert.equal(0, report.casts.weights)
      assert.equal(0, report.total.saved)
      assert.equal(4 * 32 * 8, report.modules[2].kept.float32)
    end)

    it("activation dtypes and bytes by module", function()
      local report = report_of(1, {dtype = "float16"})
      local list = report:dtypes()
      assert.equal("float16", list[2].dtype)
      assert.equal("Linear", list[2].class)
      assert.equal(2 * 32 * 16, list[2].bytes)
    end)

    it("ops that ran in float32 inside the region, and why", function()
      local why = {}
      local report <close> = amp.report()
      amp.autocast({dtype = "bfloat16"}, function()
        local x = dm.randn(4, 4)
        local _ = x:relu()
        local y = x:mm(x)
        local _, _ = y + x, y:relu()
        local _ = dm.nn.functional.mse_loss(y, x)
        local _ = dm.cat{y, x}
      end)
      local _ = dm.ones(2):relu()
      report:close()
      for _, op in ipairs(report.float32_ops) do why[op.op] = op.reason end
      assert.same({relu = "unlisted: its inputs are float32",
        add = "unlisted: one of its inputs is float32", mse_loss = "fp32 by policy",
        cat = device.type == "cpu" and "promote: its inputs are float32"
          or "unlisted: one of its inputs is float32"}, why)
    end)

    it("memory by dtype", function()
      local _, model, optimizer = report_of(1, {})
      model:register_buffer("count", dm.zeros(3, {dtype = "int64"}))
      model[3]:half()
      local m = amp.memory(model, optimizer)
      assert.equal(4 * (8 * 16 + 16), m.float32.parameters)
      assert.equal(2 * (16 * 4 + 4), m.float16.parameters)
      assert.equal(m.float32.parameters, m.float32.gradients)
      assert.equal(24, m.int64.buffers)
      assert.equal(m.float32.total + m.float16.total + m.int64.total, m.total.total)
      assert.matches("float16 +136 B", tostring(m))
      assert.refuses("wanted a module", function() amp.memory(3) end)
    end)
  end)

  describe("looks at gradients", function()
    local function statistics(list, dtype, factor, scale)
      local sums = {}
      core._float_stats(dm.tensor(list, {dtype = dtype}), sums, factor, scale)
      return sums
    end

    it("as the cast to float16 does", function()
      local list = {0.0, -0.0, 2.0^-25, 2.0^-25 * 1.001, 2.0^-14, 2.0^-14 * 0.99, 1.5, -65519.0,
        65520.0, 1e9, 1 / 0, 0 / 0, -2.0^-30}
      local c = statistics(list, "float64")
      assert.same({13, 2, 1, 1, 1e9}, {c.n, c.zero, c.inf, c.nan, c.largest})
      local lost, small, over = 0, 0, 0
      for _, v in ipairs(list) do
        local h = dm.tensor(v, {dtype = "float64"}):to("float16"):item()
        if v ~= 0 and v == v and math.abs(v) < math.huge then
          lost = lost + (h == 0 and 1 or 0)
          small = small + (h ~= 0 and math.abs(h) < 2.0^-14 and 1 or 0)
          over = over + (math.abs(h) == math.huge and 1 or 0)
        end
      end
      assert.same({underflow = lost, subnormal = small, overflow = over}, c.float16)
      assert.equal(1, c.exponents[-30])
      assert.equal(2, c.exponents[-25])
      assert.equal(1, c.exponents[0])
      assert.is_nil(c.scaled)
    end)

    it("of every float dtype and any strides", function()
      for _, dtype in ipairs{"float16", "bfloat16", "float32", "float64"} do
        local x = dm.tensor({{1, 2, 3}, {4, 5, 1 / 0}}, {dtype = dtype})
        local c = {}
        core._float_stats(x:t()[{{1, 2}, 1}], c) -- 1, 2
        core._float_stats(x[{1}]:expand(2, 3), c)
        assert.same({n = 8, largest = 3.0}, {n = c.n, largest = c.largest})
        assert.same({[0] = 3, [1] = 5}, c.exponents)
      end
    end)

    it("times a factor, and with a scale", function()
      local c = statistics({2.0^-20, 2.0^-10}, "float32", 2.0^-10, 2.0^10)
      assert.equal(1, c.float16.underflow)
      assert.equal(0, c.scaled.underflow)
      assert.equal(1, c.scaled.subnormal)
      assert.equal(1, c.exponents[-30])
    end)

    it("when an optimizer steps, with the names of the parameters", function()
      local report, model = report_of(3, {dtype = "bfloat16"})
      local g = report.gradients
      assert.equal(3, g.steps)
      assert.equal(4, #g.parameters)
      assert.matches("^model%d*%[1%]%.weight$", g.parameters[1].name)
      assert.matches("^model%d*%[3%]%.bias$", g.parameters[4].name)
      assert.equal(3 * 8 * 16, g.parameters[1].n)
      assert.equal(3 * (8 * 16 + 16 + 16 * 4 + 4), g.total.n)
      assert.is_true(model[1].weight.grad ~= nil)
      assert.is_true(g.best_scale * g.total.largest < 65504)
    end)

    it("unscaled, and judges the scaler's scale", function()
      local scaler = amp.GradScaler{init_scale = 256}
      local report = report_of(2, {dtype = "float16", scaler = scaler})
      local g = report.gradients
      assert.equal(256, g.scale)
      assert.is_true(g.total.largest < 2)
      assert.is_true(g.total.scaled.subnormal < g.total.float16.subnormal)
    end)

    it("of chosen parameters only, or of none", function()
      local model = network()
      local function gradients(grads)
        return report_of(1, {model = model, grads = grads}).gradients
      end
      assert.equal(1, #gradients{model[1].weight}.parameters)
      assert.equal(2, #gradients(model[3]).parameters)
      assert.is_nil(gradients(false))
      assert.equal(1, #gradients(optim.SGD({model[1].bias}, {lr = 1})).parameters)
    end)

    it("by hand: report:look(params, scaler)", function()
      local p, scaler = dm.ones(2, {requires_grad = true}), amp.GradScaler{init_scale = 8}
      local report = amp.report()
      scaler:scale(p:sum()):backward()
      report:look({p}, scaler):close()
      assert.equal(1, report.gradients.total.largest)
      assert.equal(8, report.gradients.scale)
      assert.refuses("wanted an array", function() report:look(3) end)
    end)

    it("inside a closure's step, after the closure", function()
      local p = dm.ones(2, {requires_grad = true})
      local optimizer = optim.SGD({p}, {lr = 1})
      local report <close> = amp.report()
      optimizer:step(function()
        local loss = (p * 4):sum()
        loss:backward()
        return loss
      end)
      assert.equal(4, report.gradients.total.largest)
    end)
  end)

  describe("finds the first inf or NaN", function()
    local function first(fn, opts)
      local report <close> = amp.report(opts)
      fn()
      report:close()
      return report.first_nonfinite, report
    end

    it("with op, module, line, step and inputs", function()
      local line
      local model = nn.Sequential{Fn(function(x)
        line = here() + 1
        return x:exp()
      end)}
      local f = first(function()
        local _ = model(dm.full(2, 5.0))
        model(dm.full({2, 3}, 20.0, {dtype = "float16"}))
      end)
      assert.equal("exp", f.op)
      assert.equal("exp", f.within)
      assert.equal("forward", f.phase)
      assert.equal("inf", f.value)
      assert.matches('op = "exp"', tostring(f), 1, true) -- it prints its content
      assert.equal("float16", f.dtype)
      assert.equal("{2, 3}", f.shape)
      assert.equal(1, f.step)
      assert.equal(20, f.largest)
      assert.same({true}, f.inputs_finite)
      assert.equal("Fn", f.class)
      assert.matches("report_spec.lua:" .. line .. "$", f.where)
    end)

    it("in backward, with the module of the forward", function()
      local model = nn.Sequential{Fn(function(x) return x:sqrt() end)}
      local x = dm.tensor({4.0}, {requires_grad = true})
      local zero = dm.tensor({0.0}, {requires_grad = true})
      local f = first(function()
        model(x):sum():backward()
        model(zero):sum():backward()
      end)
      assert.equal("backward", f.phase)
      assert.equal("sqrt", f.within)
      assert.equal("Fn", f.class)
      assert.equal(2, f.step)
    end)

    it("in autocast's own casts", function()
      local f = first(function()
        amp.autocast({dtype = "float16"}, function() dm.full({2, 2}, 1e6):mm(dm.ones(2, 2)) end)
      end)
      assert.is_true(f.autocast)
      assert.equal(1e6, f.largest)
    end)

    it("in place, and in a custom function's gradient", function()
      local f = first(function() dm.full(2, 1e30):mul_(1e30) end)
      assert.equal("mul", f.op)
      local Cut = dm.autograd.Function{name = "Cut", forward = function(_, x) return x * 1 end,
        backward = function(_, g) return g / 0 end}
      f = first(function() Cut(dm.ones(2, {requires_grad = true})):sum():backward() end)
      assert.equal("Cut", f.within)
      assert.equal("div", f.op)
      assert.equal("backward", f.phase)
    end)

    it("but not an inf that was put there, such as a mask's", function()
      local _, report = first(function()
        local mask = dm.tensor{{false, true}, {false, false}}
        local scores = dm.ones(2, 2):masked_fill(mask, -1 / 0)
        scores:softmax(-1):sum()
        local _ = dm.full(2, 1 / 0) + 1
      end)
      assert.is_nil(report.first_nonfinite)
    end)

    it("and not at all with check = false", function()
      assert.is_nil(first(function() dm.ones(2):mul(0):log() end, {check = false}))
    end)

    it("in any float dtype and any strides", function()
      for _, dtype in ipairs{"float16", "bfloat16", "float32", "float64"} do
        local x = dm.ones(3, 5, {dtype = dtype})
        local f = first(function()
          local _ = x * 2
          x:t()[{4}]:mul_(1 / 0)
        end)
        assert.is_nil(f) -- the inf was the script's own number
        f = first(function() x:t():mul_(0) end)
        assert.equal("NaN", f.value)
      end
    end)
  end)

  describe("suggests", function()
    it("to run something", function()
      local report = amp.report()
      report:close()
      assert.matches("^nothing ran", report.suggestion)
    end)

    it("to look at the data, when NaN came with it", function()
      local x = dm.randn(32, 8)
      x[{1, 1}] = 0 / 0
      local report = report_of(1, {dtype = "bfloat16", x = x})
      assert.matches("look at the data", report.suggestion)
    end)

    it("policy = {op = \"fp32\"} for an op that overflows in float16", function()
      local model = nn.Sequential{nn.Linear(8, 4), Fn(function(x)
        local h = x * 0 + 300
        return h * h
      end)}
      local report = report_of(1, {dtype = "float16", model = model})
      assert.matches('overflow comes from mul in model%d*%[2%] Fn: .*policy = {mul = "fp32"}',
        report.suggestion)
    end)

    it("bfloat16, when the inputs do not fit float16", function()
      local report = report_of(1, {dtype = "float16", x = dm.full({32, 8}, 1e6)})
      assert.matches("do not fit float16", report.suggestion)
    end)

    it("other cures for a NaN in float32", function()
      local report <close> = amp.report()
      dm.zeros(2):log()
      assert.matches("log gave inf in float32.*learning rate", report.suggestion)
    end)

    it("a lower scale, when many steps are skipped", function()
      local scaler = amp.GradScaler{init_scale = 2.0^60}
      local report = report_of(8, {dtype = "float16", scaler = scaler})
      assert.matches("^8 of 8 steps were skipped", report.suggestion)
    end)

    it("nothing about a scaler that is finding its scale", function()
      local scaler = amp.GradScaler{init_scale = 2.0^24}
      local model = nn.Sequential{nn.Linear(8, 4)}
      local report = report_of(30, {dtype = "float16", scaler = scaler, model = model,
        x = dm.randn(128, 8) * 10})
      local g = report.gradients
      assert.is_true(g.skipped > 0 and g.skipped_late == 0)
      assert.equal(("nothing to change if the %d steps of 30 that were skipped came first"):format(
        g.skipped), report.suggestion)
      report = report_of(2, {dtype = "float16", scaler = amp.GradScaler{init_scale = 2.0^60}})
      assert.matches("^2 of 2 steps were skipped: a scaler begins so", report.suggestion)
    end)

    it("to guard an op whose slope has no bound, when its steps are skipped", function()
      local model = nn.Sequential{nn.Linear(8, 4), Fn(function(x) return (x * 0):sqrt() end),
        nn.Linear(4, 2)}
      local report = report_of(3, {dtype = "float16", scaler = amp.GradScaler{init_scale = 64},
        model = model})
      assert.matches("^3 of 3 steps were skipped: the slope of sqrt in model%d*%[2%] Fn is not "
        .. "finite at 0; guard its input$", report.suggestion)
      assert.is_nil(tostring(report):find("fits", 1, true)) -- no scale does
    end)

    it("to guard an op whose gradient is not finite", function()
      local p = dm.zeros(1, {requires_grad = true})
      local report <close> = amp.report()
      p:sqrt():sum():backward()
      assert.matches("the gradient of sqrt gave inf in float32", report.suggestion)
    end)

    it("no scaler for bfloat16", function()
      local report = report_of(2, {dtype = "bfloat16", scaler = amp.GradScaler{}})
      assert.matches("^bfloat16 needs no scaler", report.suggestion)
    end)

    it("a scaler for float16 when gradients underflow", function()
      local report = report_of(2, {dtype = "float16", factor = 1e-5})
      assert.matches("^%d+ %% of gradients lie below 2%^%-14.*amp.GradScaler", report.suggestion)
      report = report_of(2, {dtype = "float16", factor = 1e-12})
      assert.matches("^every gradient underflows.*amp.GradScaler", report.suggestion)
    end)

    it("autocast, where there is none", function()
      assert.matches("^no inf and no NaN; nothing ran under autocast", report_of(1, {}).suggestion)
      assert.matches("^nothing ran under autocast", report_of(1, {check = false}).suggestion)
    end)

    it("float32, where casts cost more than they save", function()
      local model = nn.Sequential{nn.Linear(8, 512), nn.Linear(512, 512)}
      local report = report_of(1, {dtype = "bfloat16", model = model, x = dm.randn(1, 8)})
      assert.matches("^casts write %S+ %a+ a step and save", report.suggestion)
    end)

    it("a cast, where a float32 input keeps what follows in float32", function()
      local model = nn.Sequential{Fn(function(x) return (x * 2):relu() end), nn.Linear(8, 4)}
      local report = report_of(1, {dtype = "bfloat16", model = model, x = dm.randn(4096, 8)})
      assert.matches("works in float32 %(unlisted", report.suggestion)
    end)

    it("nothing, when all is well", function()
      local scaler = amp.GradScaler{init_scale = 128}
      local report = report_of(3, {dtype = "float16", scaler = scaler, x = dm.randn(512, 8)})
      assert.equal("nothing to change", report.suggestion)
    end)
  end)

  it("loses nothing but tallies when memory ends", function()
    local function live()
      collectgarbage()
      collectgarbage()
      return hooks.alloc_live()
    end
    local model, x = network(), dm.randn(4, 8)
    local function once(n)
      hooks.alloc_fail_at(n)
      local ok, report = pcall(amp.report)
      if ok then pcall(function() model(x):sum():backward() end) end
      hooks.alloc_fail_at(0)
      if ok then report:close() end
      for _, p in ipairs(model:parameters()) do p.grad = nil end
      return ok and report.total.forward.float32
    end
    once(0)
    local before = live()
    for n = 1, 40 do once(n) end
    assert.equal(before, live())
    assert.is_false(once(1))
    assert.equal(0, core._module_number())
    assert.equal(4, once(0)) -- two linear, relu, sum
  end)

  it("prints at most 100 columns", function()
    local scaler = amp.GradScaler{init_scale = 2.0^40}
    local model = nn.Sequential{}
    model.a_long_name_of_a_module = nn.Sequential{network(), network()}
    function model:forward(x) return self.a_long_name_of_a_module[1](x) end
    local report = report_of(6, {dtype = "float16", scaler = scaler, model = model})
    local text = tostring(report)
    for line in text:gmatch "[^\n]+" do assert.is_true(#line <= 100, line) end
    for _, part in ipairs{"6 steps, autocast float16", "kept for bwd", "exact zeros",
      "steps skipped: 6 of 6", "first inf in backward: step 1", "suggestion: "} do
      assert.is_truthy(text:find(part, 1, true), part .. " in\n" .. text)
    end
    assert.matches("suggestion: nothing ran", tostring(amp.report(function(r) return r end)))
  end)
end)
