-- The GradScaler behaves as PyTorch's does. Two things have no test here because one machine
-- lacks them: gradients on two devices, and sparse gradients.
local dm = require "demilune"
local amp, nn, optim = dm.amp, dm.nn, dm.optim
local core = require "demilune.core"
local warnings = require "spec.warnings"
local both = require "spec.cuda.both"
local golden = require("spec.golden").load "scaler"

local INF, NAN = math.huge, 0 / 0
local LOW = {"float16", "bfloat16"}
local FLOATS = {"float16", "bfloat16", "float32", "float64"}

local function leaf(v, dtype) return dm.full(1, v, {requires_grad = true, dtype = dtype}) end

-- A scaler with its scale made, one parameter of value 1, and SGD over it.
local function fresh(opts, dtype)
  local p = leaf(1.0, dtype)
  local s = amp.GradScaler(opts)
  s:scale(dm.tensor(1.0))
  return s, p, optim.SGD({p}, {lr = 1})
end

-- One iteration with that gradient.
local function iterate(s, p, opt, g)
  p.grad = dm.tensor({g}, {dtype = p.dtype})
  s:step(opt)
  s:update()
end

local function tracker(s) return s:state_dict()._growth_tracker end

-- An optimizer of somebody else's, that knows nothing of found_inf.
local function foreign(params)
  return {param_groups = {{params = params}}, calls = 0, step = function(self, ...)
    self.calls, self.given = self.calls + 1, table.pack(...)
    return 7, "done"
  end}
end

-- How often the host waited for its device, where the emulation counts that.
local function waits() return dm.cuda.is_available() and dm.cuda._count "sync" or 0 end

-- Tensors read by the host while fn() runs; also how often it waited.
local function host_reads(fn)
  local _, methods = debug.getupvalue(debug.getmetatable(dm.ones(1)).__index, 3)
  local reads, kept = 0, {}
  for _, name in ipairs{"item", "totable", "tolist", "equal", "allclose"} do
    local method = methods[name]
    kept[name] = method
    if method then
      methods[name] = function(...)
        reads = reads + 1
        return method(...)
      end
    end
  end
  local before = waits()
  local ok, text = pcall(fn)
  local waited = waits() - before
  for name, method in pairs(kept) do methods[name] = method end
  assert(ok, text)
  return reads, waited
end

-- A matrix as a parameter, an optimizer of it, and a scaler.
local function trainee(class, opts)
  local p = dm.linspace(-1, 1, 12):reshape(3, 4):to(opts.master_weights and "float16" or "float32")
  p:requires_grad_()
  local s = amp.GradScaler{init_scale = 8}
  s:scale(dm.tensor(1.0))
  return {p = p, s = s, opt = optim[class]({p}, opts)}
end

-- Every bit of a trainee's parameter and of its state, by name.
local function bits_of(t)
  local all = {parameter = both.bits(t.p:detach())}
  for name, value in pairs(t.opt.state[t.p] or {}) do all[name] = both.bits(value) end
  return all
end

describe("GradScaler settings", function()
  it("defaults", function()
    local s = amp.GradScaler()
    assert.equal(65536, s:get_scale())
    assert.equal(2, s:get_growth_factor())
    assert.equal(0.5, s:get_backoff_factor())
    assert.equal(2000, s:get_growth_interval())
    assert.is_true(s:is_enabled())
  end)

  it("E1 and E2, but not of a scaler that is off", function()
    for _, name in ipairs{"growth_factor", "backoff_factor"} do
      assert.refuses(name .. " is 1.0, wanted", function() amp.GradScaler{[name] = 1.0} end)
    end
    assert.equal(1, amp.GradScaler{growth_factor = 1, enabled = false}:get_growth_factor())
    assert.equal(1, amp.GradScaler{backoff_factor = 1, enabled = false}:get_backoff_factor())
  end)

  it("every setting is looked at, and setters leave what they refuse", function()
    for name, bad in pairs{init_scale = {0, -1, INF, NAN, "x"}, growth_factor = {0.5, NAN, INF},
      backoff_factor = {0, -0.5, 2, NAN}, growth_interval = {1.5, -1, "many"},
      min_scale = {-1, NAN}, max_scale = {0, NAN}, patience = {-1, 0.5}} do
      for _, v in ipairs(bad) do
        assert.refuses(name .. " is", function() amp.GradScaler{[name] = v} end)
      end
    end
    assert.refuses("max_scale is 2", function() amp.GradScaler{max_scale = 2, min_scale = 4} end)
    assert.refuses("did you mean 'init_scale'", function() amp.GradScaler{initscale = 4} end)
    local s = amp.GradScaler()
    assert.refuses("set_growth_factor: growth_factor is 1,", function() s:set_growth_factor(1) end)
    assert.refuses("set_backoff_factor", function() s:set_backoff_factor(1) end)
    assert.refuses("set_growth_interval", function() s:set_growth_interval(0.5) end)
    assert.equal(2, s:get_growth_factor())
    assert.equal(0.5, s:get_backoff_factor())
    assert.equal(2000, s:get_growth_interval())
  end)

  it("before the first scale() there are no tensors", function()
    local before = dm.memory_allocated()
    local s = amp.GradScaler{init_scale = 3}
    assert.equal(3, s:get_scale())
    assert.equal(0, tracker(s))
    assert.equal(before, dm.memory_allocated())
  end)

  it("the next update uses what was set", function()
    local s, p, opt = fresh{init_scale = 8}
    s:set_growth_factor(4)
    s:set_growth_interval(1)
    iterate(s, p, opt, 1)
    assert.equal(32, s:get_scale())
    s:set_backoff_factor(0.25)
    iterate(s, p, opt, INF)
    assert.equal(8, s:get_scale())
  end)
end)

describe("GradScaler:scale", function()
  it("multiplies, on the tensor's device", function()
    local x = dm.tensor(4.0)
    local y = amp.GradScaler{init_scale = 2}:scale(x)
    assert.equal(8, y:item())
    assert.equal(x.device, y.device)
  end)

  it("a table of losses gives a table of scaled losses", function()
    local s = amp.GradScaler{init_scale = 2}
    local out = s:scale{dm.tensor(1.0), {a = dm.tensor(3.0)}}
    assert.equal(2, out[1]:item())
    assert.equal(6, out[2].a:item())
    s = amp.GradScaler()
    assert.refuses("scale: got a number, wanted a tensor", function() s:scale(4.0) end)
    assert.refuses("got a string", function() s:scale{dm.tensor(1.0), "x"} end)
    assert.refuses("no scale yet", function() s:update() end)
  end)

  it("an overflow of a float16 loss is the first gradient's", function()
    for scale, want in pairs{[65536] = INF, [32768] = 8192} do
      local x = dm.zeros(4, {dtype = "float16", requires_grad = true})
      local loss = x:mean()
      assert.equal("float16", loss.dtype)
      amp.GradScaler{init_scale = scale}:scale(loss):backward()
      assert.same({want, want, want, want}, x.grad:totable())
    end
  end)

  -- What sees a gradient in the backward pass of a scaled loss; each returns what it saw.
  local function seen_by_a_hook(scale, x)
    local seen
    local loss = x * 1
    loss:register_hook(function(g) seen = g end)
    scale(loss):backward()
    return seen
  end
  local function seen_by_a_leaf_hook(scale, x)
    local seen
    x:register_hook(function(g) seen = g end)
    scale(x):backward()
    return seen
  end
  local function retained(scale, x)
    local loss = x * 1
    loss:retain_grad()
    scale(loss):backward()
    return loss.grad
  end
  local function retained_behind(scale, x)
    local part = x * 1
    part:retain_grad()
    scale(part + x):backward() -- the sum's gradient is that of its terms
    return part.grad
  end
  local function of_a_leaf(scale, x)
    scale(x):backward()
    return x.grad
  end
  local function of_a_custom_function(scale, x)
    local seen
    local Same = dm.autograd.Function{
      forward = function(_, v) return v * 1 end,
      backward = function(_, g)
        seen = g
        return g
      end,
    }
    scale(Same(x)):backward()
    return seen
  end
  local function wanted(scale, x)
    local loss = x * 1
    return (dm.autograd.grad(scale(loss), loss))
  end
  local function of_a_graph(scale, x)
    local loss = x * x
    loss:retain_grad()
    scale(loss):backward{create_graph = true}
    return loss.grad
  end

  it("a gradient is a number of its own, not the scaler's scale", function()
    for _, look in ipairs{seen_by_a_hook, seen_by_a_leaf_hook, retained, retained_behind,
      of_a_leaf, of_a_custom_function, wanted, of_a_graph} do
      local s = amp.GradScaler{init_scale = 8}
      local x = dm.tensor(3.0, {requires_grad = true})
      local seen = look(function(loss) return s:scale(loss) end, x)
      assert.equal(8, seen:item())
      s:update(2.0) -- the scale changes in place
      assert.equal(8, seen:item())
      seen:fill_(5)
      assert.equal(2, s:get_scale())
    end
  end)

  it("a hook that changes the scale leaves the gradients that wait", function()
    local s = amp.GradScaler{init_scale = 8}
    local x, y = dm.tensor(3.0, {requires_grad = true}), dm.tensor(4.0, {requires_grad = true})
    local first, last = x * 1, y * 1
    last:register_hook(function() s:update(2.0) end)
    s:scale(first + last):backward()
    assert.same({8, 8}, {x.grad:item(), y.grad:item()})
  end)

  it("a second pass adds the scale of that time, and a stale scale is refused", function()
    local s = amp.GradScaler{init_scale = 8}
    local x = dm.tensor(3.0, {requires_grad = true})
    local loss = s:scale(x * 2)
    loss:backward{retain_graph = true}
    loss:backward{retain_graph = true}
    assert.equal(32, x.grad:item())
    s:update(2.0)
    assert.refuses("changed in place", function() loss:backward() end)
    s:scale(x * 2):backward()
    assert.equal(36, x.grad:item())
    local gone = s:scale(x * 2)
    gone:backward()
    assert.refuses("saved tensors are gone", function() gone:backward() end)
  end)

  it("underflow is repaired", function()
    local function gradient(scale)
      local x = dm.zeros(1, {dtype = "float16", requires_grad = true})
      local s = amp.GradScaler{init_scale = scale}
      s:scale((x:float() * 1e-8):sum()):backward()
      return x.grad:item()
    end
    assert.equal(0, gradient(1))
    assert.equal(1.0251998901367188e-05, gradient(1024))
    assert.equal(0.0006551742553710938, gradient(65536))
  end)
end)

describe("the unscale kernel", function()
  local found, where = dm.tensor(0.0), dm.zeros(2, {dtype = "int64"})

  -- Gradients of that dtype: dense, transposed, and columns of a wider one.
  local function gradients(dtype)
    local dense = dm.full({20, 20}, 4.0, {dtype = dtype})
    return {dense, dense:clone():t(), dm.full({20, 40}, 4.0, {dtype = dtype}):narrow(2, 11, 5)}
  end

  local function owners(grads)
    local params = {}
    for i, g in ipairs(grads) do
      params[i] = dm.zeros(g:size(1), g:size(2), {dtype = g.dtype, requires_grad = true})
      params[i].grad = g
    end
    return {{params = params}}
  end

  local function unscale(grads, scale)
    return core.amp_unscale_(owners(grads), dm.tensor((scale or 4) + 0.0), found, where)
  end

  it("divides, whatever the dtype and the strides", function()
    local all = {}
    for _, dtype in ipairs(FLOATS) do
      local grads = gradients(dtype)
      assert.is_false(grads[3]:is_contiguous())
      assert.equal(3, unscale(grads))
      for _, g in ipairs(grads) do
        assert.is_true(g:eq(1):all():item())
        all[#all + 1] = g
      end
      assert.equal(0, found:item())
    end
    assert.equal(12, unscale(all, 0.25)) -- mixed, in one call
    for _, g in ipairs(all) do assert.is_true(g:eq(4):all():item()) end
    assert.equal(0, found:item())
  end)

  it("what lies between the columns of a slice stays", function()
    local wide = dm.full({3, 6}, 4.0)
    unscale{wide:narrow(2, 3, 2)}
    assert.same({4, 4, 1, 1, 4, 4}, wide[2]:totable())
  end)

  it("found_inf is exactly 1.0, and says which and how many", function()
    for _, dtype in ipairs(FLOATS) do
      for _, bad in ipairs{INF, -INF, NAN} do
        for which = 1, 3 do
          local grads = gradients(dtype)
          grads[which][{2, 2}] = bad
          grads[3][{3, 3}] = bad
          unscale(grads)
          assert.equal(1, found:item())
          assert.same({which, which == 3 and 2 or 1}, where:totable())
          assert.equal(1, grads[1][{5, 5}]:item()) -- all are divided regardless
        end
      end
    end
    unscale(gradients "float32")
    assert.equal(0, found:item())
    assert.same({0, 0}, where:totable())
  end)

  it("counts in every block and thread", function()
    local g = dm.ones(300, 1000)
    g[{{}, 500}] = INF
    unscale{dm.ones(2, 2), g}
    assert.same({2, 300}, where:totable())
  end)

  it("the inverse is rounded once, from float64", function()
    for scale, want in pairs{[65536.0] = 1.52587890625e-05, [3.0] = 0.3333333432674408,
      [98304.0] = 1.0172526344831567e-05} do
      local g = dm.ones(1, 1, {dtype = "float64"})
      unscale({g}, scale)
      assert.equal(want, g:item())
    end
  end)

  it("sees what a tiny scale makes infinite", function()
    for dtype, v in pairs{float16 = 60000, bfloat16 = 3e38, float32 = 3e38} do
      local g = dm.full({1, 1}, v, {dtype = dtype})
      unscale({g}, 0.5)
      assert.equal(1, found:item(), dtype)
      assert.equal(INF, g:item())
    end
  end)

  it("refuses what it cannot use, and changes nothing", function()
    local g = dm.full({2, 2}, 4.0)
    local groups = owners{g}
    local function call(...)
      local args = table.pack(...)
      return function() core.amp_unscale_(groups, table.unpack(args)) end
    end
    local scale = dm.tensor(4.0)
    assert.refuses("scale is float32 {2}", call(dm.ones(2), found, where))
    assert.refuses("scale is float64", call(scale:double(), found, where))
    assert.refuses("found_inf is int64", call(scale, dm.tensor(1), where))
    assert.refuses("where is int64 {3}", call(scale, found, dm.zeros(3, {dtype = "int64"})))
    groups[1].params[2] = dm.zeros(2, 2, {requires_grad = true})
    groups[1].params[2].grad = dm.ones(1, 1):expand(2, 2)
    assert.refuses("expanded gradient of parameter 2", call(scale, found, where))
    assert.is_true(g:eq(4):all():item())
  end)
end)

describe("GradScaler:step and update", function()
  it("a step that is skipped changes no bit of parameters and state", function()
    for _, dtype in ipairs(FLOATS) do
      local s = amp.GradScaler{init_scale = 8}
      local p = leaf(1.1, dtype)
      local opt = optim.AdamW({p}, {lr = 0.5})
      s:scale((p * 2):sum()):backward()
      s:step(opt)
      s:update()
      assert.is_true(s:stepped(opt))
      assert.is_false(s:skipped(opt))
      local value, state = p:item(), opt.state[p]
      local mean, steps = state.exp_avg:item(), state.step:item()
      iterate(s, p, opt, NAN)
      assert.is_true(s:skipped(opt))
      assert.is_false(s:stepped(opt))
      assert.same({value, mean, steps}, {p:item(), state.exp_avg:item(), state.step:item()})
      assert.equal(4, s:get_scale())
    end
  end)

  for _, name in ipairs(require "spec.optimizers") do
    for _, masters in ipairs{false, true} do
      local opts = {master_weights = masters}
      it(("a skipped step of %s%s changes no bit and waits for nothing"):format(name,
        masters and " with masters" or ""), function()
        local t = trainee(name, opts)
        local function step(bad)
          local g = dm.linspace(-3, 5, 12):reshape(3, 4):to(t.p.dtype)
          if bad then g[2][3] = INF end
          t.p.grad = g
          return host_reads(function()
            t.s:step(t.opt)
            t.s:update()
          end)
        end
        local start = t.p:detach():clone()
        step(true)
        assert.is_true(dm.equal(start, t.p:detach()))
        step(false) -- makes the state, if the skipped one has left none
        for _ = 1, 2 do
          assert.same({0, 0}, {step(false)})
          local before, scale = bits_of(t), t.s:get_scale()
          assert.same({0, 0}, {step(true)})
          assert.same(before, bits_of(t))
          assert.equal(scale / 2, t.s:get_scale())
        end
        assert.equal(3, t.s:stats().skipped)
        assert.is_false(dm.equal(start, t.p:detach()))
      end)
    end
  end

  for _, name in ipairs(require "spec.optimizers") do
    it(name .. " goes on after skipped steps as if they had not been asked for", function()
      local t, other = trainee(name, {}), trainee(name, {})
      local found = {good = dm.tensor(0.0), bad = dm.tensor(1.0)}
      for i, word in ipairs{"bad", "good", "bad", "bad", "good", "good"} do
        local g = dm.linspace(-3, 5, 12):reshape(3, 4) * i
        t.p.grad, other.p.grad = g, g:clone()
        t.opt:step(nil, found[word])
        if word == "good" then other.opt:step() end
      end
      assert.same(bits_of(other), bits_of(t))
    end)
  end

  it("skipped() and stepped() answer before update() and before any step", function()
    local s, p, opt = fresh()
    assert.is_false(s:stepped(opt))
    assert.is_false(s:skipped(opt))
    p.grad = dm.tensor{INF}
    s:step(opt)
    assert.is_true(s:skipped(opt))
    s:update()
    s:scale((p * 2):sum()):backward()
    p.grad = dm.tensor{1.0}
    s:unscale_(opt)
    assert.is_true(s:skipped(opt)) -- of the last step(), still
    s:step(opt)
    assert.is_true(s:stepped(opt))
  end)

  it("scale 4, growth 2, backoff 0.25, interval 2", function()
    local s, p, opt = fresh{init_scale = 4, growth_factor = 2, backoff_factor = 0.25,
      growth_interval = 2}
    local want = {{1, 4, 1}, {1, 8, 0}, {INF, 2, 0}}
    for _, w in ipairs(want) do
      iterate(s, p, opt, w[1])
      assert.same({w[2], w[3]}, {s:get_scale(), tracker(s)})
    end
  end)

  it("two overflows, then 2000 clean updates", function()
    local s, p, opt = fresh()
    iterate(s, p, opt, INF)
    iterate(s, p, opt, NAN)
    assert.equal(16384, s:get_scale())
    for _ = 1, 1999 do iterate(s, p, opt, 1) end
    assert.same({16384, 1999}, {s:get_scale(), tracker(s)})
    iterate(s, p, opt, 1)
    assert.same({32768, 0}, {s:get_scale(), tracker(s)})
    iterate(s, p, opt, 1)
    assert.same({32768, 1}, {s:get_scale(), tracker(s)})
  end)

  it("the worked numbers of growth and backoff, to the bit", function()
    local function after(opts, ...)
      local s, p, opt = fresh(opts)
      for _, g in ipairs{...} do iterate(s, p, opt, g) end
      return {s:get_scale(), tracker(s)}
    end
    assert.same({12, 0}, after({init_scale = 3, growth_factor = 4, growth_interval = 2}, 1, 1))
    assert.same({98304, 0}, after({growth_factor = 1.5, growth_interval = 1}, 1))
    assert.same({6553.60009765625, 0}, after({backoff_factor = 0.1}, INF))
    assert.same({3.3999999521443642e38, 0}, after({init_scale = 1.7e38, growth_interval = 1}, 1))
  end)

  it("growth to infinity is refused, the tracker starts again", function()
    local s, p, opt = fresh{init_scale = 2.0 ^ 127, growth_interval = 1}
    iterate(s, p, opt, 1)
    assert.same({2.0 ^ 127, 0}, {s:get_scale(), tracker(s)})
  end)

  it("growth_interval 0: the scale never grows", function()
    local s, p, opt = fresh{init_scale = 4, growth_interval = 0}
    for _ = 1, 5 do iterate(s, p, opt, 1) end
    assert.equal(4, s:get_scale())
    assert.is_nil(s:stats().grows_in)
  end)

  it("E4, E5 and E6, each without a change", function()
    for _, make in ipairs{function(p) return optim.SGD({p}, {lr = 1}) end,
      function(p) return foreign{p} end} do
      local s = amp.GradScaler{init_scale = 4}
      local p = leaf(1.0)
      local opt = make(p)
      s:scale(p:sum()):backward()
      s:unscale_(opt)
      assert.refuses("unscale_: called already for this optimizer", function() s:unscale_(opt) end)
      assert.equal(1, p.grad:item())
      s:step(opt)
      local value = p:item()
      assert.refuses("unscale_: called after step", function() s:unscale_(opt) end)
      assert.refuses("step: called already", function() s:step(opt) end)
      assert.equal(value, p:item())
      s:update()
      assert.equal(1, s:stats().steps)
    end
  end)

  it("E3 before the first scale()", function()
    local p = leaf(1.0)
    local s, opt = amp.GradScaler(), optim.SGD({p})
    p.grad = dm.tensor{1.0}
    for _, method in ipairs{"step", "unscale_", "update"} do
      assert.refuses(method .. ": there is no scale yet", function() s[method](s, opt) end)
    end
    assert.refuses("step: got a nil, wanted an optimizer", function() s:step() end)
    assert.equal(1, p.grad:item())
  end)

  it("E7, a closure in any form; off, it is used", function()
    local s, p, opt = fresh{init_scale = 4}
    local function closure() return 7 end
    p.grad = dm.tensor{4.0}
    assert.refuses("closure is not supported", function() s:step(opt, {closure = closure}) end)
    assert.refuses("closure is not supported", function() s:step(opt, closure) end)
    local object = setmetatable({}, {__call = closure})
    assert.refuses("closure is not supported", function() s:step(foreign{p}, 1, object) end)
    assert.refuses("got a number after the optimizer", function() s:step(opt, 3) end)
    assert.same({4, 1}, {p.grad:item(), p:item()})
    local off = amp.GradScaler{enabled = false}
    assert.equal(7, off:step(opt, closure))
    assert.equal(7, off:step(opt, {closure = closure}))
    assert.is_true(off:stepped(opt))
  end)

  it("E8 names the parameters and says what may be wrong", function()
    local s, p, opt = fresh()
    assert.refuses("no parameter of this optimizer has a gradient.*parameter 1 {1} of group 1.*" ..
      "detached.*zero_grad", function() s:step(opt) end)
    assert.refuses("none of them requires", function()
      s:step(optim.SGD({dm.ones(2), dm.ones(3)}))
    end)
    local model = nn.Sequential{nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)}
    assert.refuses("parameter 2 '0.bias' {2} of group 1.*and 2 more", function()
      s:step(optim.SGD(model:named_parameters()))
    end)
    assert.refuses("no gradients were checked", function() s:update() end)
    p.grad = dm.tensor{1.0} -- and the optimizer is as ready as before
    s:step(opt)
    s:update()
  end)

  it("E9, update() without a check before it", function()
    local s, p, opt = fresh()
    assert.refuses("update: no gradients were checked", function() s:update() end)
    iterate(s, p, opt, 1)
    assert.refuses("update: no gradients were checked", function() s:update() end)
    assert.equal(1, tracker(s))
  end)

  it("a new scale by hand leaves the tracker, and copies a tensor", function()
    local s, p, opt = fresh()
    iterate(s, p, opt, 1)
    p.grad = dm.tensor{1.0}
    s:step(opt)
    s:update(3.5)
    assert.same({3.5, 1}, {s:get_scale(), tracker(s)})
    local v = dm.tensor{5.0}
    s:update{new_scale = v}
    v:fill_(9)
    assert.same({5, 1}, {s:get_scale(), tracker(s)})
    p.grad = dm.tensor{1.0}
    s:step(opt) -- every optimizer is ready again
    s:update(dm.tensor(2.0, {dtype = "float64"}))
    assert.equal(2, s:get_scale())
  end)

  it("a new scale that is not one float without a gradient", function()
    local s = fresh{init_scale = 8}
    for _, bad in ipairs{dm.ones(2), dm.ones(1, {requires_grad = true}), dm.tensor(3)} do
      assert.refuses("update: new_scale is", function() s:update(bad) end)
    end
    for _, bad in ipairs{0, -1, INF, NAN} do
      assert.refuses("update: new_scale is .* wanted a positive", function() s:update(bad) end)
    end
    assert.refuses("new_scale is a string", function() s:update "2" end)
    assert.refuses("unknown option", function() s:update{scale = 2} end)
    assert.equal(8, s:get_scale())
  end)

  for _, dtype in ipairs(LOW) do
    it("" .. dtype .. " parameters are no error here", function()
      for _, make in ipairs{optim.SGD, optim.Adam} do
        local p = leaf(1.0, dtype)
        local s, opt = amp.GradScaler{init_scale = 8}, make({p}, {lr = 0.5})
        s:scale((p * 2):sum()):backward()
        assert.equal(16, p.grad:item())
        s:step(opt)
        s:update()
        assert.equal(2, p.grad:item())
        assert.is_true(p:item() < 1)
      end
    end)
  end

  it("tells of a step before update() and after it, and counts it once", function()
    local p = dm.ones(2, {requires_grad = true})
    local opt, s = optim.SGD({p}, {lr = 0.1}), amp.GradScaler{init_scale = 4}
    s:scale(dm.tensor(1.0))
    for i = 1, 6 do
      local bad = i % 3 == 0
      p.grad = dm.tensor{1.0, bad and math.huge or 1.0}
      s:step(opt)
      if i > 3 then assert.equal(bad, s:skipped(opt)) end
      if i == 6 then assert.same({6, 5}, {s:stats().last_skip.step, s:stats().steps - 1}) end
      if i == 5 then s:update(8.0) else s:update() end
      assert.equal(bad, s:skipped(opt))
      assert.equal(i // 3, s:stats().skipped)
    end
    assert.same({6, 6}, {s:stats().last_skip.step, s:stats().last_skip.first_step})
  end)

  it("notes the steps of several optimizers, of which one only unscales", function()
    local s, opts, params = amp.GradScaler{init_scale = 4}, {}, {}
    s:scale(dm.tensor(1.0))
    for i = 1, 3 do
      params[i] = dm.ones(1, {requires_grad = true})
      opts[i] = optim.SGD({params[i]}, {lr = 0.1})
    end
    for round = 1, 4 do
      for i = 1, 3 do
        params[i].grad = dm.tensor{i == round and math.huge or 1.0}
        if i == 1 then s:unscale_(opts[1]) else s:step(opts[i]) end
      end
      s:update()
      for i = 2, 3 do assert.equal(i == round, s:skipped(opts[i])) end
    end
    assert.equal(2, s:stats().skipped)
    assert.equal(1, s:get_scale()) -- three updates backed off, to the floor
  end)

  it("unscale_() alone counts for update()", function()
    local s, p, opt = fresh{init_scale = 8}
    p.grad = dm.tensor{INF}
    s:unscale_(opt)
    s:update()
    assert.equal(4, s:get_scale())
    assert.same({0, 0}, {s:stats().steps, s:stats().skipped})
  end)

  it("several optimizers: each skips on its own, one backoff for all", function()
    local s, p, opt = fresh{init_scale = 8}
    local q = leaf(1.0)
    local other, third = optim.Adam({q}, {lr = 1}), optim.SGD({leaf(1.0)})
    third.param_groups[1].params[1].grad = dm.tensor{INF}
    p.grad, q.grad = dm.tensor{INF}, dm.tensor{8.0}
    s:unscale_(other)
    for _, o in ipairs{opt, other, third} do s:step(o) end
    s:update()
    assert.same({true, false, true}, {s:skipped(opt), s:skipped(other), s:skipped(third)})
    assert.equal(4, s:get_scale())
    assert.equal(1, p:item())
    assert.is_true(q:item() < 1)
    assert.same({3, 2}, {s:stats().steps, s:stats().skipped})
  end)

  it("an overflow counts though its optimizer is gone", function()
    local s, p, opt = fresh{init_scale = 8}
    do
      local q = leaf(1.0)
      q.grad = dm.tensor{INF}
      s:step(optim.SGD({q}))
    end
    collectgarbage()
    iterate(s, p, opt, 1)
    assert.equal(4, s:get_scale())
  end)

  it("found_inf goes to an optimizer that can use it, and to no other", function()
    local s, p = fresh{init_scale = 8}
    local given
    local able = {param_groups = {{params = {p}}}, takes_found_inf = true,
      step = function(_, closure, found_inf)
        given = {closure = closure, found = found_inf:item()}
        return "able"
      end}
    p.grad = dm.tensor{INF}
    assert.equal("able", s:step(able))
    assert.same({found = 1}, given)
    s:update()
    local other = foreign{p}
    p.grad = dm.tensor{1.0}
    s:step(other, 3)
    assert.same({3, n = 1}, other.given)
    assert.is_nil(other.found_inf)
  end)

  it("a class of optimizers written in Lua is safe without a thought", function()
    local Plain = optim.Optimizer.extend("Plain", {lr = 1})
    function Plain.update(_, group)
      for _, q in ipairs(group.params) do dm.no_grad(function() q:sub_(q.grad * group.lr) end) end
    end
    local s, p = fresh{init_scale = 8}
    local opt = Plain({p}, {lr = 0.5})
    iterate(s, p, opt, INF)
    assert.equal(1, p:item())
    iterate(s, p, opt, 4)
    assert.equal(0.5, p:item())
    assert.is_true(s:stepped(opt))
  end)

  it("step() returns what the optimizer's returns, nothing when skipped", function()
    local s, p = fresh{init_scale = 8}
    local opt = foreign{p}
    p.grad = dm.tensor{1.0}
    assert.same({7, "done"}, {s:step(opt)})
    s:update()
    p.grad = dm.tensor{INF}
    assert.equal(0, select("#", s:step(opt)))
    assert.equal(1, opt.calls)
    assert.is_true(s:skipped(opt))
  end)

  it("a step that raises can be tried again, without unscaling twice", function()
    local s, p = fresh{init_scale = 8}
    local opt, fail = foreign{p}, true
    local step = opt.step
    function opt.step(...)
      if fail then error "not now" end
      return step(...)
    end
    p.grad = dm.tensor{8.0}
    assert.has_error(function() s:step(opt) end)
    assert.equal(0, s:stats().steps)
    fail = false
    s:step(opt)
    assert.equal(1, p.grad:item())
    s:update()
  end)

  it("off, it is plain training", function()
    local p = leaf(1.0)
    local s, opt = amp.GradScaler{enabled = false}, optim.SGD({p}, {lr = 1})
    local loss = (p * 2):sum()
    assert.is_true(rawequal(loss, s:scale(loss)))
    loss:backward()
    s:unscale_(opt)
    assert.equal(2, p.grad:item())
    assert.same({0, 1, {}}, {s:get_growth_interval() - 2000, s:get_scale(), s:state_dict()})
    s:step(opt)
    s:update()
    assert.equal(-1, p:item())
    assert.is_false(s:is_enabled())
    assert.is_true(s:stepped(opt))
    assert.equal("GradScaler(off)", tostring(s))
  end)
end)

describe("GradScaler state", function()
  it("five entries", function()
    local s, p, opt = fresh()
    for _ = 1, 3 do iterate(s, p, opt, 1) end
    assert.same({scale = 65536, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000,
      _growth_tracker = 3}, s:state_dict())
  end)

  it("an empty state; switched off, any state is ignored", function()
    local s = amp.GradScaler()
    assert.refuses("the state is empty", function() s:load_state_dict{} end)
    amp.GradScaler{enabled = false}:load_state_dict{}
  end)

  it("a state that is wrong is refused whole", function()
    local s = fresh{init_scale = 8}
    local good = {scale = 3.0, growth_factor = 3, backoff_factor = 0.25, growth_interval = 7,
      _growth_tracker = 5}
    for key in pairs(good) do
      for _, bad in ipairs{"x", -1} do
        local state = {}
        for k, v in pairs(good) do state[k] = v end
        state[key] = bad
        assert.refuses("load_state_dict: " .. key .. " is", function() s:load_state_dict(state) end)
        state[key] = nil
        assert.refuses(key .. " is nil", function() s:load_state_dict(state) end)
      end
    end
    assert.equal(8, s:get_scale())
    assert.equal(2, s:get_growth_factor())
    s:load_state_dict(good)
    assert.same(good, s:state_dict())
    local other = amp.GradScaler() -- before any scale() too
    other:load_state_dict(good)
    assert.same(good, other:state_dict())
    other:scale(dm.tensor(1.0))
    assert.same(good, other:state_dict())
  end)

  it("no state between step() and update()", function()
    local s, p, opt = fresh()
    p.grad = dm.tensor{1.0}
    s:step(opt)
    assert.refuses("state_dict: called between step", function() s:state_dict() end)
    s:update()
    assert.equal(1, tracker(s))
  end)
end)

describe("the floor, the ceiling and the diagnosis", function()
  it("the scale does not fall below min_scale", function()
    local s, p, opt = fresh{patience = 0}
    for _ = 1, 144 do iterate(s, p, opt, INF) end
    assert.equal(1, s:get_scale())
    iterate(s, p, opt, 1)
    assert.is_true(s:stepped(opt))
  end)

  it("min_scale 0 is PyTorch: it falls for ever, but never steps on NaN", function()
    local s, p, opt = fresh{min_scale = 0}
    for _ = 1, 143 do iterate(s, p, opt, INF) end
    assert.equal(5.877471754111438e-39, s:get_scale())
    iterate(s, p, opt, INF)
    iterate(s, p, opt, 0) -- the inverse is inf, and 0 * inf NaN
    assert.is_true(s:skipped(opt))
    assert.equal(1, p:item())
  end)

  it("a scale that starts below the floor stays where it is", function()
    local s, p, opt = fresh{init_scale = 0.25, growth_interval = 1, patience = 0}
    iterate(s, p, opt, INF)
    assert.equal(0.25, s:get_scale())
    for _ = 1, 3 do iterate(s, p, opt, 1) end
    assert.equal(2, s:get_scale())
  end)

  it("max_scale is a ceiling", function()
    local s, p, opt = fresh{init_scale = 3, max_scale = 10, growth_interval = 1}
    for _, want in ipairs{6, 10, 10} do
      iterate(s, p, opt, 1)
      assert.equal(want, s:get_scale())
    end
    s:update(16)
    iterate(s, p, opt, 1)
    assert.equal(16, s:get_scale())
  end)

  it("after `patience` updates at the floor one warning says where to look", function()
    local model = nn.Sequential{nn.Linear(2, 3), nn.Linear(3, 2)}
    local s, opt = amp.GradScaler{init_scale = 2, patience = 3}, optim.SGD(model:named_parameters())
    local function step(factor)
      opt:zero_grad()
      s:scale(model(dm.ones(1, 2)):sum()):backward()
      local g = model[2].weight.grad
      g[{1, {}}] = g[{1, {}}] * factor
      s:step(opt)
      s:update()
    end
    local texts = warnings(function()
      step(1)
      for _ = 1, 3 do step(INF) end
    end)
    assert.same({}, texts)
    texts = warnings(function() for _ = 1, 9 do step(INF) end end)
    assert.equal(1, #texts)
    for _, part in ipairs{"min_scale = 1", "since step 2",
      "parameter 3 '1.weight' {2, 3} of group 1 had 3 values", "of 6", "detect_anomaly"} do
      assert.is_truthy(texts[1]:find(part, 1, true), part .. " in: " .. texts[1])
    end
    -- a device's count may arrive some updates later
    local count = tonumber(texts[1]:match "(%d+) updates in a row")
    local last = tonumber(texts[1]:match "in step (%d+)")
    assert.is_true(count >= 3 and last >= count + 2, texts[1])
    if dm.get_default_device() == "cpu" then assert.same({3, 5}, {count, last}) end
  end)

  it("stats() tells of steps, growth and the last skip", function()
    local s, p, opt = fresh{init_scale = 8, growth_interval = 10}
    assert.same({steps = 0, skipped = 0, scale = 8, growth_tracker = 0, grows_in = 10}, s:stats())
    for _, g in ipairs{1, INF, NAN, 1, INF, INF, 1} do iterate(s, p, opt, g) end
    local stats = s:stats()
    assert.equal("{1}", tostring(stats.last_skip.shape))
    stats.last_skip.shape = nil
    assert.same({steps = 7, skipped = 4, scale = 1, growth_tracker = 1, grows_in = 9}, {
      steps = stats.steps, skipped = stats.skipped, scale = stats.scale,
      growth_tracker = stats.growth_tracker, grows_in = stats.grows_in})
    assert.is_true(rawequal(opt, stats.last_skip.optimizer))
    stats.last_skip.optimizer = nil
    assert.same({step = 6, first_step = 5, group = 1, parameter = 1, count = 1}, stats.last_skip)
    assert.equal("GradScaler(scale = 1, 4 of 7 steps skipped, grows in 9)", tostring(s))
  end)

  it("the blamed parameter is counted through groups and missing gradients", function()
    local a, b, c = leaf(1.0), leaf(1.0), dm.zeros(2, 2, {requires_grad = true})
    local opt = optim.Adam{{params = {a, b}}, {params = {c}, lr = 0.1}}
    local s = amp.GradScaler()
    s:scale(dm.tensor(1.0))
    a.grad, c.grad = dm.tensor{1.0}, dm.tensor{{1, NAN}, {INF, 1}}
    s:step(opt)
    local skip = s:stats().last_skip
    assert.same({2, 1, 2}, {skip.group, skip.parameter, skip.count})
    assert.is_nil(skip.name)
  end)

  it("named groups keep their names; a saved state has them", function()
    local model = nn.Sequential{nn.Linear(2, 3), nn.Linear(3, 2)}
    local opt = optim.Adam{{params = model[1]:named_parameters()},
      {params = model[2]:named_parameters(), lr = 0.1}}
    assert.same({"weight", "bias"}, opt.param_groups[2].param_names)
    assert.same({"weight", "bias"}, opt:state_dict().param_groups[1].param_names)
    assert.is_nil(tostring(opt):find "names")
    opt:load_state_dict(opt:state_dict())
    assert.same({"weight", "bias"}, opt.param_groups[2].param_names)
  end)
end)

describe("a training loop", function()
  -- The case of the tests' table: two layers of 8, four batches, SGD.
  local function case_of(seed)
    dm.manual_seed(seed)
    local control = nn.Sequential{nn.Linear(8, 8), nn.Linear(8, 8)}
    local model = nn.Sequential{nn.Linear(8, 8), nn.Linear(8, 8)}
    model:load_state_dict(control:state_dict())
    local batches = {}
    for i = 1, 4 do batches[i] = {dm.randn(8, 8), dm.randn(8, 8)} end
    return control, model, batches
  end

  local function near(a, b, tolerance)
    for i, p in ipairs(a:parameters()) do
      local gap = (p.data - b:parameters()[i].data):abs():max():item()
      assert.is_true(gap <= tolerance, ("parameter %d differs by %g"):format(i, gap))
    end
  end

  -- how: dtype (nil: no autocast), scaler options, momentum, after(model, s, opt),
  -- restore (a new scaler from the state after each update). Returns the scale.
  local function train(model, batches, how)
    local opt = optim.SGD(model:parameters(), {lr = 1.0, momentum = how.momentum or 0})
    local s = how.scaler and amp.GradScaler(how.scaler)
    for i, batch in ipairs(batches) do
      opt:zero_grad()
      local loss = amp.autocast({dtype = how.dtype or "float16", enabled = how.dtype ~= nil},
        function() return nn.functional.mse_loss(model(batch[1]), batch[2]) end)
      if not s then
        loss:backward()
        if how.after then how.after(model) end
        if i ~= 3 then opt:step() end -- what the scaler has to skip
      else
        s:scale(loss):backward()
        if i == 3 and s:is_enabled() then model[2].weight.grad:fill_(INF) end
        if how.after then
          s:unscale_(opt)
          how.after(model)
        end
        if i ~= 3 or s:is_enabled() then s:step(opt) end
        s:update()
        if how.restore then
          local state = s:state_dict()
          s = amp.GradScaler(how.scaler)
          s:load_state_dict(state)
        end
      end
    end
    return s and s:get_scale(), opt
  end

  local SCALER = {init_scale = 128, growth_interval = 1}
  local function options_of(on)
    return {init_scale = SCALER.init_scale, growth_interval = 1, enabled = on}
  end

  for _, dtype in ipairs(LOW) do
    for _, on in ipairs{true, false} do
      local word = on and "on" or "off"
      it(("%s autocast, the scaler is %s"):format(dtype, word), function()
        local control, model, batches = case_of(1)
        train(control, batches, {dtype = dtype})
        local scale = train(model, batches, {dtype = dtype, scaler = options_of(on)})
        assert.equal(on and 512 or 1, scale)
        near(model, control, dtype == "float16" and 1e-3 or 1e-2)
      end)
      it(("%s, saved and restored after each update, %s"):format(dtype, word), function()
        local control, model, batches = case_of(2)
        train(control, batches, {dtype = dtype, scaler = options_of(on)})
        local scale = train(model, batches, {dtype = dtype, scaler = options_of(on), restore = on})
        assert.equal(on and 512 or 1, scale)
        near(model, control, 0)
      end)
    end
  end

  it("unscale_, then clipping at 0.2", function()
    for _, momentum in ipairs{0, 0.9} do
      local control, model, batches = case_of(3)
      local function clip(m) nn.utils.clip_grad_norm_(m:parameters(), 0.2) end
      local how = {after = clip, momentum = momentum}
      local _, plain = train(control, batches, how)
      how.scaler = SCALER
      local scale, scaled = train(model, batches, how)
      assert.equal(512, scale)
      near(model, control, 1e-7)
      for i, p in ipairs(momentum > 0 and model:parameters() or {}) do
        local a, b = scaled.state[p], plain.state[control:parameters()[i]]
        assert.is_true((a.momentum_buffer - b.momentum_buffer):abs():max():item() <= 1e-7)
      end
    end
  end)

  for _, dtype in ipairs(LOW) do
    it("gradients of two batches, " .. dtype, function()
      local control, model, batches = case_of(4)
      local function run(m, s)
        local opt = optim.SGD(m:parameters(), {lr = 0.5})
        for i, batch in ipairs(batches) do
          local loss = amp.autocast({dtype = dtype}, function()
            return nn.functional.mse_loss(m(batch[1]), batch[2]) / 2
          end)
          if s then s:scale(loss):backward() else loss:backward() end
          if i % 2 == 0 then
            if s then
              s:step(opt)
              s:update()
            else
              opt:step()
            end
            opt:zero_grad()
          end
        end
      end
      local s = amp.GradScaler(SCALER)
      run(control)
      run(model, s)
      assert.equal(512, s:get_scale())
      near(model, control, dtype == "float16" and 1e-3 or 1e-2)
    end)
  end

  it("two losses of one region that share a weight, one after the other", function()
    local w = dm.randn(4, 3, {requires_grad = true})
    local a, b = dm.randn(2, 4), dm.randn(2, 4)
    local scaler = amp.GradScaler{device = "cpu", init_scale = 8}
    local first, second = amp.autocast({device_type = "cpu", dtype = "bfloat16"}, function()
      return a:matmul(w):sum(), b:matmul(w):sum()
    end)
    scaler:scale(first):backward()
    local one = w.grad:clone()
    scaler:scale(second):backward()
    local again = dm.autograd.grad(amp.autocast({device_type = "cpu", dtype = "bfloat16"},
      function() return b:matmul(w):sum() end), w)
    assert.is_true(dm.equal(w.grad, one + again * 8))
  end)

  it("two losses that share a graph", function()
    local control, model, batches = case_of(5)
    local function losses(m)
      local y, target = m(batches[1][1]), batches[1][2]
      return nn.functional.mse_loss(y, target), y:square():mean()
    end
    local a, b = losses(control);
    (a + b):backward()
    optim.SGD(control:parameters(), {lr = 0.5}):step()
    local s, opt = amp.GradScaler(SCALER), optim.SGD(model:parameters(), {lr = 0.5})
    a, b = losses(model)
    s:scale(a):backward{retain_graph = true}
    s:scale(b):backward()
    s:step(opt)
    s:update()
    near(model, control, 1e-6)
    assert.equal(256, s:get_scale())
  end)

  it("a scaler under bfloat16 changes nothing", function()
    local control, model, batches = case_of(6)
    train(control, {batches[1], batches[2]}, {dtype = "bfloat16"})
    train(model, {batches[1], batches[2]}, {dtype = "bfloat16", scaler = {}})
    near(model, control, 1e-6)
  end)

  it("a gradient penalty, in gradients that no optimizer owns", function()
    local s, p = amp.GradScaler{init_scale = 64}, leaf(3.0)
    local opt = optim.SGD({p}, {lr = 0.25})
    local scaled = dm.autograd.grad(s:scale(p:square():sum()), {p}, {create_graph = true})
    assert.equal(384, scaled:item())
    local penalty = (scaled * (1 / s:get_scale())):square():sum()
    s:scale(penalty):backward()
    s:step(opt)
    assert.equal(24, p.grad:item()) -- d (2p)^2 = 8p
    s:update()
  end)

  it("gradients that keep a graph share no memory, so none is unscaled twice", function()
    local s, a, b = amp.GradScaler{init_scale = 8}, leaf(1.0), leaf(1.0)
    s:scale((a + b):sum()):backward{create_graph = true}
    s:step(optim.SGD({a, b}, {lr = 1}))
    assert.same({1, 1}, {a.grad:item(), b.grad:item()})
    s:update()
  end)

  it("state in a file, then bit-identical to the run without a break", function()
    local path = os.tmpname()
    local whole, model, batches = case_of(7)
    local function parts(m)
      return {model = m, opt = optim.AdamW(m:named_parameters(), {lr = 0.01}),
        s = amp.GradScaler{init_scale = 128, growth_interval = 3}}
    end
    local function run(t, from, to)
      for i = from, to do
        local batch = batches[i % 4 + 1]
        local loss = amp.autocast({dtype = "float16"}, function()
          return nn.functional.mse_loss(t.model(batch[1]), batch[2])
        end)
        t.s:scale(loss):backward()
        if i == 5 then t.model[1].bias.grad:fill_(INF) end
        t.s:step(t.opt)
        t.s:update()
        t.opt:zero_grad()
      end
    end
    local a = parts(whole)
    run(a, 1, 12)
    local b = parts(model)
    run(b, 1, 7)
    assert(dm.save(path, {model = b.model:state_dict(), opt = b.opt:state_dict(),
      scaler = b.s:state_dict()}))
    local saved = assert(dm.load(path))
    os.remove(path)
    local c = parts(nn.Sequential{nn.Linear(8, 8), nn.Linear(8, 8)})
    c.model:load_state_dict(saved.model)
    c.opt:load_state_dict(saved.opt)
    c.s:load_state_dict(saved.scaler)
    run(c, 8, 12)
    near(c.model, whole, 0)
    assert.same(a.s:state_dict(), c.s:state_dict())
  end)

  it("nothing is read by the host, clipping and skips included", function()
    local model = nn.Sequential{nn.Linear(4, 4), nn.Linear(4, 1)}
    local s, opt = amp.GradScaler{init_scale = 1024}, optim.AdamW(model:parameters())
    local function loop(steps)
      for i = 1, steps do
        opt:zero_grad()
        local loss = amp.autocast({dtype = "float16"}, function()
          return model(dm.ones(2, 4)):mean()
        end)
        s:scale(i % 3 == 0 and loss * INF or loss):backward()
        s:unscale_(opt)
        nn.utils.clip_grad_norm_(model:parameters(), 1)
        nn.utils.clip_grad_value_(model:parameters(), 0.5)
        s:step(opt)
        s:update()
      end
    end
    assert.equal(0, host_reads(function() loop(9) end))
    assert.equal(3, s:stats().skipped)
    assert.equal(1, host_reads(function() s:get_scale() end)) -- the count does count
    assert.equal(0, host_reads(function()
      amp.step{loss = model(dm.ones(2, 4)):mean(), scaler = s, optimizer = opt, max_norm = 1}
    end))
  end)

  it("a schedule of learning rates does not warn of a skipped first step", function()
    for _, make in ipairs{function(p) return optim.SGD({p}, {lr = 1}) end,
      function(p)
        local opt = foreign{p}
        opt.param_groups[1].lr = 1
        return opt
      end} do
      local s, p = fresh()
      local opt = make(p)
      local schedule = optim.lr_scheduler.StepLR(opt, 1)
      local texts = warnings(function()
        iterate(s, p, opt, INF)
        schedule:step()
      end)
      assert.same({}, texts)
    end
  end)
end)

describe("amp.step", function()
  local function setup()
    dm.manual_seed(3)
    local model = nn.Linear(4, 2)
    return model, optim.SGD(model:parameters(), {lr = 0.1}), dm.randn(6, 4)
  end
  local function loss_of(model, x) return model(x):square():mean() end

  for _, word in ipairs{"on", "off", "none"} do
    it("does what the calls do, scaler: " .. word, function()
      local a, opt_a, x = setup()
      local b, opt_b = setup()
      local s = word ~= "none" and amp.GradScaler{enabled = word == "on", init_scale = 8} or nil
      for _ = 1, 3 do
        loss_of(a, x):backward()
        local want = nn.utils.clip_grad_norm_(a:parameters(), 0.1)
        opt_a:step()
        opt_a:zero_grad()
        local stepped, norm = amp.step{loss = loss_of(b, x), optimizer = opt_b, scaler = s,
          max_norm = 0.1}
        assert.is_true(stepped)
        assert.is_true(math.abs(norm:item() - want:item()) < 1e-6)
        assert.is_nil(b.weight.grad)
      end
      assert.is_true((a.weight.data - b.weight.data):abs():max():item() < 1e-6)
      if word == "on" then assert.equal(3, tracker(s)) end
    end)
  end

  it("accumulate = n equals one large batch, and steps at each n-th call", function()
    local a, opt_a, x = setup()
    local b, opt_b = setup()
    local s = amp.GradScaler{init_scale = 8}
    loss_of(a, x):backward()
    opt_a:step()
    local stepped = {}
    for i = 1, 3 do
      stepped[i] = amp.step{loss = loss_of(b, x:narrow(1, 2 * i - 1, 2)), optimizer = opt_b,
        scaler = s, accumulate = 3}
    end
    assert.same({false, false, true}, stepped)
    assert.is_true((a.weight.data - b.weight.data):abs():max():item() < 1e-6)
    assert.is_false((amp.step{loss = loss_of(b, x), optimizer = opt_b, accumulate = 3}))
  end)

  it("several optimizers, some of the parameters clipped, a skip", function()
    local p, q = leaf(3.0), leaf(4.0)
    local opts = {optim.SGD({p}, {lr = 1}), optim.SGD({q}, {lr = 1})}
    local s = amp.GradScaler{init_scale = 8}
    local _, norm = amp.step{loss = (p * p + q * q):sum(), optimizer = opts, scaler = s,
      max_norm = 1, parameters = {q}}
    assert.equal(8, norm:item())
    assert.equal(-3, p:item())
    assert.is_true(math.abs(q:item() - 3) < 1e-5)
    amp.step{loss = (p * INF + q):sum(), optimizer = opts, scaler = s}
    assert.same({true, false}, {s:skipped(opts[1]), s:skipped(opts[2])})
    assert.equal(4, s:get_scale())
  end)

  it("says what is wrong with its arguments before it does anything", function()
    local p = leaf(3.0)
    local opt = optim.SGD({p})
    assert.refuses("loss is missing", function() amp.step{optimizer = opt} end)
    assert.refuses("optimizer is missing", function() amp.step{loss = p:sum()} end)
    assert.refuses("optimizer 2 is a number", function()
      amp.step{loss = p:sum(), optimizer = {opt, 3}}
    end)
    assert.refuses("array of optimizers is empty", function()
      amp.step{loss = p:sum(), optimizer = {}}
    end)
    assert.refuses("accumulate is 0", function()
      amp.step{loss = p:sum(), optimizer = opt, accumulate = 0}
    end)
    assert.refuses("did you mean 'max_norm'", function()
      amp.step{loss = p:sum(), optimizer = opt, maxnorm = 1}
    end)
    assert.is_nil(p.grad)
  end)
end)

describe("against PyTorch's own runs", function()
  local function lcg(seed)
    local state = seed
    return function(n)
      state = state * 1103515245 + 12345 & 0x7fffffff
      return (state >> 8) % n
    end
  end

  -- As scripts/golden/scaler.py makes it.
  local function gradient(random, step)
    local wild, mantissa, exponent = random(97), random(1024), random(12)
    if wild == 0 then return INF end
    return (1 + mantissa / 1024) * 2.0 ^ (exponent - 20 + step // 500 % 20)
  end

  for _, run in ipairs(golden.runs) do
    it(("%d steps with real and injected float16 overflows"):format(run.n), function()
      local random = lcg(run.seed)
      run.opts.min_scale = 0
      local s, p, opt = fresh(run.opts)
      local skip_at, skip_left, skipping = 1, run.skips[1], false
      local scale_at, scale_left = 1, run.scales[1][1]
      for step = 0, run.n - 1 do
        p.grad = s:scale(dm.tensor{gradient(random, step)}):half():float()
        s:step(opt)
        s:update()
        while skip_left == 0 do
          skip_at, skipping = skip_at + 1, not skipping
          skip_left = run.skips[skip_at]
        end
        if scale_left == 0 then
          scale_at = scale_at + 1
          scale_left = run.scales[scale_at][1]
        end
        skip_left, scale_left = skip_left - 1, scale_left - 1
        local want = run.scales[scale_at]
        if s:skipped(opt) ~= skipping then error("skipping is another at step " .. step) end
        if s:get_scale() ~= want[2] then error("the scale is another at step " .. step) end
        if scale_left == 0 then assert.equal(want[3], tracker(s), "at step " .. step) end
      end
      assert.same({#run.skips, #run.scales, 0, 0}, {skip_at, scale_at, skip_left, scale_left})
    end)
  end
end)

-- PyTorch 2.15's numbers: the step after the skipped one is the first, which dampening spares.
describe("a first step that is skipped", function()
  it("leaves SGD's momentum to be made by the next one", function()
    local p = dm.ones(2, {requires_grad = true, device = "cpu"})
    local opt = optim.SGD({p}, {lr = 0.1, momentum = 0.9, dampening = 0.5})
    local s = amp.GradScaler{device = "cpu", init_scale = 4}
    local seen = {}
    for i, g in ipairs{INF, 1, 2} do
      s:scale(dm.tensor(0.0, {device = "cpu"}))
      p.grad = dm.full({2}, g * s:get_scale(), {device = "cpu"})
      s:step(opt)
      s:update()
      seen[i] = p[1]:item()
    end
    assert.equal(1, seen[1])
    assert.is_true(math.abs(seen[2] - 0.9) < 1e-6)
    assert.is_true(math.abs(seen[3] - 0.71) < 1e-6)
  end)
end)
