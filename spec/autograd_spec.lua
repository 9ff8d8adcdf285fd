-- The tape: backward adds gradients to the leaves, refuses what it cannot do, and uses no C
-- stack for long graphs. Gradients themselves are compared in spec/op_spec.lua.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local DEVICE = require("spec.device").type

local function leaf(data) return dm.tensor(data, {requires_grad = true}) end
local function numbers(t) return t:totable() end

describe("backward", function()
  it("adds into the gradients of leaves", function()
    local x = leaf{1.0, 2.0};
    (x * 3):sum():backward();
    (x * x):sum():backward()
    assert.same({5.0, 7.0}, numbers(x.grad))
  end)

  -- PyTorch gives 0.12229360181091000 for 4.5 ^ (-2/3) / 3.
  it("keeps a number's float64 in the gradients of pow and atan2", function()
    local x = dm.tensor({4.5}, {dtype = "float64", requires_grad = true})
    local function grad(y, order)
      if order == 0 then return y:item() end
      return grad(dm.autograd.grad(y:sum(), x, {create_graph = true}), order - 1)
    end
    local function near(wanted, got)
      assert.is_true(math.abs(got / wanted - 1) < 1e-14, ("%.17g, not %.17g"):format(got, wanted))
    end
    for _, p in ipairs{1 / 3, 0.1, 2.7, -0.3} do
      near(p * 4.5 ^ (p - 1), grad(x ^ p, 1))
      near(p * (p - 1) * 4.5 ^ (p - 2), grad(x ^ p, 2))
      near(p / (4.5 ^ 2 + p * p), grad(dm.atan2(x, p), 1))
    end
    (x ^ (1 / 3)):backward()
    near(4.5 ^ (-2 / 3) / 3, x.grad:item())
  end)

  it("gives no gradient to what does not require one", function()
    local x, y = leaf{1.0}, dm.tensor{2.0};
    (x * y):sum():backward()
    assert.is_nil(y.grad)
  end)

  it("gives none to a leaf that was switched off since, and calls no hook with it", function()
    local x, y, n = leaf{2.0}, leaf{3.0}, 0
    local z = dm.tensor({1.0}, {requires_grad = true})
    z:register_post_accumulate_grad_hook(function() n = n + 1 end)
    local sum = (x * y * z):sum()
    x:requires_grad_(false)
    z:requires_grad_(false)
    sum:backward()
    assert.is_nil(x.grad)
    assert.is_nil(z.grad)
    assert.equal(0, n)
    assert.same({2.0}, numbers(y.grad))
  end)

  it("gives gradients to its inputs alone, and calls the hooks of no other leaf", function()
    local a, b, calls = leaf{1.0, 2.0}, leaf{3.0, 4.0}, {}
    for name, x in pairs{a = a, b = b} do
      x:register_hook(function() calls[#calls + 1] = name end)
      x:register_post_accumulate_grad_hook(function() calls[#calls + 1] = name .. "'s grad" end)
    end
    local product = a * b
    local loss = (product * 2):sum()
    loss:backward{inputs = a, retain_graph = true}
    assert.same({6.0, 8.0}, numbers(a.grad))
    assert.is_nil(b.grad)
    loss:backward(dm.tensor(0.5), {inputs = {a, a}, retain_graph = true})
    assert.same({9.0, 12.0}, numbers(a.grad))
    assert.same({"a", "a's grad", "a", "a's grad"}, calls)
    loss:backward{inputs = {product, loss}, retain_graph = true}
    assert.same({2.0, 2.0}, numbers(product.grad))
    assert.equal(1, loss.grad:item())
    loss:backward() -- what is no leaf keeps its gradient from then on
    assert.same({4.0, 4.0}, numbers(product.grad))
    assert.same({15.0, 20.0}, numbers(a.grad))
    assert.same({2.0, 4.0}, numbers(b.grad))
  end)

  it("leaves inputs that the loss was not made of, and the graph that leads to others", function()
    local a, b, other = leaf{1.0}, leaf{2.0}, leaf{3.0}
    local inner = (a * b):exp()
    local loss = inner:sum()
    loss:backward{inputs = {other, inner}}
    assert.is_nil(other.grad)
    inner:backward{inputs = b}
    assert.is_true(math.abs(b.grad:item() - math.exp(2)) < 1e-5)
    assert.is_nil(a.grad)
  end)

  it("scales a loss for inputs as for all leaves", function()
    local a, b = leaf{1.0, 2.0}, leaf{3.0, 4.0}
    local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 8}
    scaler:scale((a * b):sum()):backward{inputs = {b}}
    assert.same({8.0, 16.0}, numbers(b.grad))
    assert.is_nil(a.grad)
  end)

  it("refuses inputs without a gradient, and none", function()
    local a = leaf{1.0}
    local function refused(pattern, inputs)
      assert.refuses(pattern, function() (a * 2):sum():backward{inputs = inputs} end)
    end
    refused("inputs is empty", {})
    refused("input 2 does not require grad", {a, dm.ones(1)})
    refused("input 1 is nil", {nil, a})
    refused("item 2: tensor expected, got string", {a, "a"})
    refused("table of tensors expected, got number", 3)
    assert.is_nil(a.grad)
  end)

  it("goes from several tensors at once, which need a graph once", function()
    local w, v = leaf{2.0, 3.0}, leaf{1.0, 1.0}
    local y = (w * v):exp()
    dm.autograd.backward({y:sum(), y}, {nil, dm.tensor{1.0, 0.0}})
    local e = {math.exp(2), math.exp(3)}
    assert.is_true(w.grad:allclose(dm.tensor{2 * e[1], e[2]}))
    assert.is_true(v.grad:allclose(dm.tensor{4 * e[1], 3 * e[2]}))
    dm.autograd.backward({(w * 2):sum(), v:sum()}, {inputs = v})
    assert.is_true(v.grad:allclose(dm.tensor{4 * e[1] + 1, 3 * e[2] + 1}))
    assert.is_true(w.grad:allclose(dm.tensor{2 * e[1], e[2]}))
    assert.refuses("2 grad_tensors for 1 tensors", function()
      dm.autograd.backward({w:sum()}, {dm.ones{}, dm.ones{}})
    end)
    assert.refuses("tensors is empty", function() dm.autograd.backward{} end)
    assert.refuses("an implied gradient of 1", function() dm.autograd.backward(w * 2) end)
  end)

  it("sums over broadcast dims", function()
    local x = leaf{{1.0}, {2.0}};
    (x * dm.ones(2, 3)):sum():backward()
    assert.same({{3.0}, {3.0}}, numbers(x.grad))
  end)

  it("takes a gradient for a tensor of more elements", function()
    local x = leaf{1.0, 2.0};
    (x * 2):backward{gradient = dm.tensor{10.0, 100.0}}
    assert.same({20.0, 200.0}, numbers(x.grad))
  end)

  it("refuses a tensor of more elements without one", function()
    local x = leaf{1.0, 2.0}
    assert.refuses("implied gradient", function() (x * 2):backward() end)
  end)

  it("refuses to go twice, unless the graph is retained", function()
    local x = leaf{2.0}
    local y = (x * x):sum()
    y:backward{retain_graph = true}
    y:backward()
    assert.same({8.0}, numbers(x.grad))
    assert.refuses("retain_graph", function() y:backward() end)
  end)

  it("goes again through nodes that saved nothing", function()
    local w = leaf{1.0, 2.0}
    local y = w + 1
    y:sum():backward()
    y:sum():backward()
    assert.same({2.0, 2.0}, numbers(w.grad))
    local z = (w * w) + 1 -- the product saved w
    z:sum():backward()
    assert.refuses("mul's saved tensors are gone", function() z:sum():backward() end)
  end)

  it("does not overflow the stack on 100,000 nodes #slow", function()
    local x = leaf{1.0}
    local y = x
    for _ = 1, 100000 do y = y + 1e-5 end
    y:sum():backward()
    assert.same({1.0}, numbers(x.grad))
  end)

  it("reaches a shared node once with the sum", function()
    local x = leaf{3.0}
    local y = x * x;
    (y + y * y):sum():backward() -- 2x + 4x^3
    assert.same({114.0}, numbers(x.grad))
  end)
end)

describe("double backward", function()
  it("differentiates a gradient", function()
    local x = leaf{2.0}
    local g = dm.autograd.grad((x ^ 3):sum(), x, {create_graph = true})
    assert.same({12.0}, numbers(g))
    assert.same({12.0}, numbers((dm.autograd.grad(g:sum(), x))))
  end)

  it("passes through a view of a view", function()
    local x = dm.tensor({{1.0, 2.0}, {3.0, 4.0}}, {dtype = "float64", requires_grad = true})
    assert.is_true(dm.autograd.gradgradcheck(function(t)
      return t[2]:narrow(1, 2, 1):square() * t[1]:narrow(1, 2, 1)
    end, {x}))
  end)

  it("leaves the leaves' gradients alone", function()
    local x = leaf{2.0}
    dm.autograd.grad((x * x):sum(), x)
    assert.is_nil(x.grad)
  end)

  it("names an input that was not used", function()
    local x, z = leaf{1.0}, leaf{1.0}
    assert.refuses("allow_unused", function() dm.autograd.grad((x * 2):sum(), {x, z}) end)
    local gx, gz = dm.autograd.grad((x * 2):sum(), {x, z}, {allow_unused = true})
    assert.same({2.0}, numbers(gx))
    assert.is_nil(gz)
  end)

  it("gives zeros for unused inputs with materialize_grads", function()
    local x = leaf{1.0, 2.0}
    local z = dm.ones(2, 3, {dtype = "float64", requires_grad = true})
    local all = {materialize_grads = true}
    local gx, gz = dm.autograd.grad((x * 2):sum(), {x, z}, all)
    assert.same({2.0, 2.0}, numbers(gx))
    assert.is_true(gz:equal(dm.zeros(2, 3, {dtype = "float64"})))
    assert.is_false(gz.requires_grad)
    local both = table.pack(dm.autograd.grad((x * 2):sum(), {x, z},
      {materialize_grads = true, allow_unused = true, create_graph = true}))
    assert.is_true(both[2].requires_grad)
    assert.refuses("leave allow_unused out", function()
      dm.autograd.grad(x:sum(), {x, z}, {materialize_grads = true, allow_unused = false})
    end)
  end)

  it("leaves the graph behind an inner tensor for a later pass", function()
    local x = leaf{2.0, 3.0}
    local h = x:square()
    local g = dm.autograd.grad((h * 5):sum(), h)
    h:backward(g)
    assert.same({20.0, 30.0}, numbers(x.grad))
    assert.refuses("backward has already been through", function() h:backward(g) end)
  end)

  it("stops at an inner tensor", function()
    local x = leaf{2.0}
    local h = x * 3
    local g = dm.autograd.grad((h * h):sum(), h)
    assert.same({12.0}, numbers(g))
  end)
end)

describe("in-place changes", function()
  it("are refused on a leaf that requires grad", function()
    local x = leaf{1.0}
    assert.refuses("leaf", function() x:add_(1) end)
    assert.same({1.0}, numbers(x))
  end)

  it("of a saved tensor are found, and the op is named", function()
    local x = leaf{2.0}
    local h = x * 1
    local y = h:square()
    h:add_(1)
    assert.refuses("square", function() y:sum():backward() end)
  end)

  it("with an alias of the changed tensor as the factor are found", function()
    local x = leaf{2.0}
    local h = x * 3
    h:mul_(h:detach())
    assert.refuses("changed in place", function() h:sum():backward() end)
  end)

  it("join the graph", function()
    local x = leaf{2.0}
    local h = x * 3
    h:mul_(h:detach():clone())
    h:sum():backward()
    assert.same({18.0}, numbers(x.grad))
  end)

  it("through a view reach the base", function()
    local x = leaf{1.0, 2.0, 3.0}
    local h = x * 2
    h[2]:mul_(10)
    h:sum():backward()
    assert.same({2.0, 20.0, 2.0}, numbers(x.grad))
  end)

  it("may change what no gradient reads", function()
    local x, other = leaf{1.0, 3.0}, leaf{5.0, 2.0}
    local power = x ^ 3 -- with a number for the exponent the result is not saved
    power:mul_(2)
    local h, mean = x * 1, other * 1
    local between, top = h:lerp(mean, 0.25), h:max(1)
    h:zero_()
    mean:zero_()
    top:mul_(2);
    (power:sum() + between:sum() + top):backward()
    assert.same({6 + 0.75, 54 + 0.75 + 2}, numbers(x.grad))
    assert.same({0.25, 0.25}, numbers(other.grad))
    local y = leaf{1.0, 2.0} * 1
    local z = leaf{3.0, 4.0}
    local new = y:lerp_(z, 0.5)
    assert.same({0.5, 0.5}, dm.autograd.grad(new:sum(), z):totable())
  end)
  it("give a history to views made before, of what had none", function()
    local x = dm.tensor{1.0, 2.0, 3.0}:requires_grad_()
    local y = dm.zeros(6):view(2, 3) -- a view of what view() was given
    y[1] = x * 2
    assert.is_true(y.requires_grad and not y.is_leaf)
    assert.same({2, 2, 2}, dm.autograd.grad(y:sum(), x):totable())
    local base = dm.zeros(6)
    local rows, columns = base:view(2, 3), base:view(3, 2)
    assert.is_true(columns.is_leaf)
    rows[2]:copy_(x:square())
    for _, t in ipairs{base, rows, columns, columns:exp(), columns:select(1, 3)} do
      assert.is_true(t.requires_grad)
    end
    local g = dm.autograd.grad(columns:select(2, 2):sum(), x)
    assert.same({2, 0, 6}, g:totable()) -- elements 4 and 6 of the base
    assert.is_nil(dm.zeros(4):view(2, 2).grad_fn)
    dm.no_grad(function() assert.is_false((columns * 1).requires_grad) end)
  end)
  it("through the base reach a view made before", function()
    local x = leaf{1.0, 2.0}
    local h = x * 2
    local v = h[1]
    h:mul_(5)
    v:backward()
    assert.same({10.0, 0.0}, numbers(x.grad))
  end)

  it("by assignment cut the old value's gradient", function()
    local x, w = leaf{1.0, 2.0}, leaf(7.0)
    local h = x * 2
    h[1] = w
    h:sum():backward()
    assert.same({0.0, 2.0}, numbers(x.grad))
    assert.equal(1.0, w.grad:item())
  end)
end)

describe("a history", function()
  it("holds no cycle, whatever is changed in place", function()
    local function work()
      local x = leaf{{1.0, 2.0}, {3.0, 4.0}}
      local h = x * 2
      h:copy_(h:square())
      h[1]:mul_(h[2]:clone())
      local k = x * 3
      k:mul_(k:t())
      -- what square saved was overwritten: refused, and nothing is left behind
      assert.refuses("square", function() h:sum():backward() end)
    end
    work()
    collectgarbage()
    local before = dm.memory_allocated(DEVICE)
    for _ = 1, 10 do work() end
    collectgarbage()
    assert.equal(before, dm.memory_allocated(DEVICE))
  end)

  it("of what its own history saved are collected", function()
    local function work()
      local x, w = dm.ones(3), leaf{1.0, 2.0, 3.0}
      x:copy_(x * w)
      local y = dm.ones(3)
      y:addcmul_(y, w)
    end
    work()
    collectgarbage()
    local before = dm.memory_allocated(DEVICE)
    for _ = 1, 10 do work() end
    collectgarbage()
    assert.equal(before, dm.memory_allocated(DEVICE))
  end)
end)

describe("a gradient assigned by hand", function()
  local function live()
    collectgarbage()
    collectgarbage()
    return hooks.alloc_live()
  end

  it("is a value: its history does not hold the tensor", function()
    local function once()
      local p, q = leaf{1.0, 2.0}, leaf{3.0, 4.0}
      p.grad = p * 2
      assert.same({2.0, 4.0}, numbers(p.grad))
      assert.is_false(p.grad.requires_grad)
      p.grad, q.grad = q, p
    end
    once()
    local before = live()
    for _ = 1, 5 do once() end
    assert.equal(before, live())
  end)

  it("shares its elements with what was assigned", function()
    local p, g = leaf{1.0}, dm.tensor{5.0}
    p.grad = g
    g:add_(1)
    assert.same({6.0}, numbers(p.grad))
  end)

  it("keeps the mark of a loss scale", function()
    local p = leaf{3.0}
    dm.amp.GradScaler{init_scale = 8}:scale(p:square():sum()):backward{create_graph = true}
    p.grad = p.grad
    assert.is_false(p.grad.requires_grad)
    assert.is_true(dm.amp_any_scaled{p})
    p.grad = p.grad * 2
    assert.is_false(dm.amp_any_scaled{p})
  end)

  it("of create_graph has a history, and is let go of by nil", function()
    local function once()
      local p = leaf{3.0}
      p:square():backward{create_graph = true}
      assert.is_true(p.grad.requires_grad)
      p.grad = nil
    end
    once()
    local before = live()
    for _ = 1, 5 do once() end
    assert.equal(before, live())
  end)
end)

describe("modes", function()
  it("set_grad_enabled switches until it is called again", function()
    local x = leaf{1.0}
    dm.set_grad_enabled(false)
    local off = x * 2
    dm.set_grad_enabled(true)
    assert.is_false(off.requires_grad)
    assert.is_true((x * 2).requires_grad)
  end)

  it("detach_ cuts a tensor off from its history", function()
    local x = leaf{3.0}
    local y = x * 2
    assert.is_true(rawequal(y, y:detach_()))
    assert.is_false(y.requires_grad)
    assert.is_true(y.is_leaf)
    assert.refuses("neither requires grad", function() y:sum():backward() end)
    assert.is_nil(x.grad)
  end)

  it("no_grad records nothing and is left on an error", function()
    local x = leaf{1.0}
    assert.is_false(dm.no_grad(function() return (x * 2).requires_grad end))
    pcall(dm.no_grad, function() error "out" end)
    assert.is_true((x * 2).requires_grad)
  end)

  it("enable_grad records inside no_grad", function()
    local x = leaf{1.0}
    local _ <close> = dm.no_grad()
    assert.is_true(dm.enable_grad(function() return (x * 2).requires_grad end))
  end)

  it("inference tensors cannot be changed outside", function()
    local x = dm.inference_mode(function() return dm.ones(2) * 2 end)
    assert.refuses("inference", function() x:add_(1) end)
  end)

  it("inference_mode(false) leaves the mode; other values than functions are refused", function()
    local x = leaf{1.0}
    local function twice() return x * 2 end
    assert.is_true(dm.inference_mode(false, twice).requires_grad)
    assert.is_false(dm.inference_mode(true, twice).requires_grad)
    dm.inference_mode(function()
      local _ <close> = dm.inference_mode(false)
      assert.is_false(dm.is_inference_mode_enabled())
      assert.is_true(twice().requires_grad)
    end)
    assert.refuses("no_grad: boolean given, wanted a function or nothing",
      function() dm.no_grad(false) end)
    assert.refuses("inference_mode: number given", function() dm.inference_mode(1) end)
  end)

  it("belong to a coroutine", function()
    local x = leaf{1.0}
    local co = coroutine.wrap(function()
      local _ <close> = dm.no_grad()
      coroutine.yield((x * 2).requires_grad)
    end)
    assert.is_false(co())
    assert.is_true((x * 2).requires_grad)
  end)
end)

describe("hooks", function()
  it("see and may replace a gradient", function()
    local x = leaf{1.0}
    local h = x * 2
    local seen
    h:register_hook(function(g) seen = g:item(); return g * 10 end)
    h:sum():backward()
    assert.equal(1.0, seen)
    assert.same({20.0}, numbers(x.grad))
  end)

  it("can be taken off", function()
    local x = leaf{1.0}
    local handle = x:register_hook(function(g) return g * 0 end)
    handle:remove();
    (x * 2):sum():backward()
    assert.same({2.0}, numbers(x.grad))
  end)

  it("are taken off the value that they were added to, also after a change in place", function()
    local x, n = leaf{1.0, 2.0}, 0
    local function count() n = n + 1 end
    local y, z = x * 2, x * 3
    local of_y, of_z = y:register_hook(count), z:register_hook(count)
    y:mul_(3)
    z[1]:mul_(3)
    of_y:remove()
    of_z:remove()
    of_z:remove();
    (y + z):sum():backward()
    assert.equal(0, n)
    assert.same({15.0, 9.0}, numbers(x.grad))
  end)

  it("raise through backward", function()
    local x = leaf{1.0}
    x:register_hook(function() error "from the hook" end)
    assert.refuses("from the hook", function() (x * 2):sum():backward() end)
  end)

  -- the values are PyTorch's
  it("calls a hook with the leaf after its gradient was added, once a pass", function()
    local w, log = dm.tensor({1.0, 2.0}, {requires_grad = true}), {}
    local handle = w:register_post_accumulate_grad_hook(function(p)
      assert.equal(w, p)
      assert.is_false(dm.is_grad_enabled())
      log[#log + 1] = p.grad:totable()
      return "what it returns is dropped"
    end)
    ;(w * w + 3 * w):sum():backward()
    w:sum():backward()
    assert.same({{5, 7}, {6, 8}}, log)
    assert.same({6, 8}, w.grad:totable())
    dm.autograd.grad((w * w):sum(), {w})
    assert.equal(2, #log)
    handle:remove()
    handle:remove()
    w:sum():backward()
    assert.equal(2, #log)
    w:register_post_accumulate_grad_hook(function() error "from the hook" end)
    assert.error_matches(function() w:sum():backward() end, "from the hook")
  end)

  -- the values are PyTorch's
  it("steps an optimizer and drops the gradient within the pass", function()
    local how = {dtype = "float64"}
    local first = dm.tensor({{1.0, 2}, {3, 4}}, how):requires_grad_()
    local last = dm.tensor({{0.5, -1}}, how):requires_grad_()
    for _, p in ipairs{first, last} do
      local optimizer = dm.optim.SGD({p}, {lr = 0.1, momentum = 0.9})
      p:register_post_accumulate_grad_hook(function()
        optimizer:step()
        optimizer:zero_grad()
      end)
      p:register_hook(function(g) return g * 2 end)
    end
    local x, F = dm.tensor({{1, -2}, {0.5, 3}}, how), dm.nn.functional
    for _ = 1, 2 do
      local h = F.linear(F.linear(x, first):tanh(), first):tanh()
      F.linear(h, last):sum():backward()
      assert.is_nil(first.grad or last.grad)
    end
    local want = {{0.9999865631446904, 2.000085886981207}, {2.9999989020747484, 4.000002037220168}}
    assert.is_true(first:allclose(dm.tensor(want, how), {rtol = 1e-13, atol = 0}))
    want = {{0.49997054018638487, -1.0000000297436287}}
    assert.is_true(last:allclose(dm.tensor(want, how), {rtol = 1e-13, atol = 0}))
  end)

  it("refuses hooks after accumulation where nothing is accumulated", function()
    local here = "autograd_spec.lua:%d+: register_post_accumulate_grad_hook: "
    local w = dm.ones(2, {requires_grad = true})
    assert.refuses(here .. "the tensor is the result of an op, and only leaves", function()
      (w * 2):register_post_accumulate_grad_hook(print)
    end)
    assert.refuses(here .. "the tensor does not require grad", function()
      dm.ones(2):register_post_accumulate_grad_hook(print)
    end)
  end)

  -- Values of PyTorch 2.15.
  it("of a leaf see the sum of its gradients, once", function()
    for _, how in ipairs{"backward", "grad"} do
      local w, calls = leaf{1.0, 2.0}, 0
      w:register_hook(function(g) calls = calls + 1; return g:clamp(-6, 6) end)
      local loss = (w * 2):sum() + (w * 3):sum() + w:square():sum()
      local g = how == "grad" and dm.autograd.grad(loss, w)
      if how == "backward" then loss:backward() end
      assert.same({6.0, 6.0}, numbers(g or w.grad))
      assert.equal(1, calls)
    end
  end)

  it("retain_grad keeps the gradient of an inner tensor", function()
    local x = leaf{1.0}
    local h = (x * 2):retain_grad();
    (h * h):sum():backward()
    assert.same({4.0}, numbers(h.grad))
  end)

  it("retain_grad keeps a copy, which no other gradient shares", function()
    local x = leaf{1.0, 2.0}
    local h = (x * 2):retain_grad()
    local y, seed = (h + 1):retain_grad(), dm.tensor{5.0, 6.0}
    y:backward(seed)
    h.grad:zero_()
    assert.same({5.0, 6.0}, numbers(y.grad))
    y.grad:zero_()
    assert.same({5.0, 6.0}, numbers(seed))
    assert.same({10.0, 12.0}, numbers(x.grad))
    local z = (x * 3):retain_grad()
    z:sum():backward()
    assert.is_true(z.grad:is_contiguous())
    assert.same({2.0, 2.0}, numbers(z.grad:add_(1)))
  end)

  it("retain_grad keeps that of the value after changes in place", function()
    local factor = dm.tensor{1.0, 10.0, 100.0}
    for _, case in ipairs{
      {function(y) y:mul_(3) end, {6.0, 60.0, 600.0}},
      {function(y) y[1]:mul_(3) end, {6.0, 20.0, 200.0}},
      {function(y) y[1] = 5.0 end, {0.0, 20.0, 200.0}},
    } do
      local x = leaf{1.0, 2.0, 3.0}
      local y = (x * 2):retain_grad()
      case[1](y);
      (y * factor):sum():backward()
      assert.same(numbers(factor), numbers(y.grad))
      assert.same(case[2], numbers(x.grad))
    end
    local x = leaf{1.0, 2.0, 3.0}
    local y = x * 2
    local v = y[1]:retain_grad()
    y:mul_(3) -- v's history is made anew
    local loss = (y * factor):sum() + v
    v = nil -- luacheck: ignore
    collectgarbage()
    loss:backward() -- writes no gradient into what is gone
    assert.same({12.0, 60.0, 600.0}, numbers(x.grad))
  end)
end)

-- Of y = f(x) with a seed v: gx is linear in v, and so the gradient of (gx * c):sum() in v is f's
-- own slope in the direction of c. That one is linear in c, and its gradient there is gx again.
describe("the gradient of a gradient in its seed, of", function()
  local function double(...) return dm.randn({...}, {dtype = "float64", requires_grad = true}) end
  local function grad(y, x, seed)
    return dm.autograd.grad({y}, {x}, {grad_outputs = seed and {seed}, create_graph = true})
  end
  local function is_close(a, b)
    assert.is_true((a - b):abs():max():item() < 1e-12)
  end
  local rows = dm.tensor({1, 3, 1}, {dtype = "int64"})
  local function add_rows(x) return dm.zeros_like(x):index_add(1, rows, x, {alpha = 2}) end

  for _, case in ipairs{
    {"embedding", {4, 2}, function(w) return dm.nn.functional.embedding(rows, w) end},
    {"embedding with a padding", {4, 2}, function(w)
      return dm.nn.functional.embedding(rows, w, {padding_idx = 3})
    end, true},
    {"nll_loss", {3, 4}, function(x)
      return dm.nn.functional.nll_loss(x, rows, {reduction = "none"})
    end},
    {"cumsum", {3, 4}, function(x) return x:cumsum(2) end},
    {"index_add", {3, 2}, add_rows},
    {"adaptive_avg_pool2d", {1, 2, 5, 4}, function(x)
      return dm.nn.functional.adaptive_avg_pool2d(x, {2, 3})
    end},
    {"max_pool2d", {1, 2, 4, 4}, function(x) return dm.nn.functional.max_pool2d(x, 2) end, true},
  } do
    local name, shape, f, is_other = table.unpack(case, 1, 4)
    it(name .. " is its slope", function()
      local x, c = double(table.unpack(shape)), double(table.unpack(shape))
      local y = f(x)
      local v, d = double(table.unpack(y.shape)), double(table.unpack(y.shape))
      local gx = grad(y, x, v)
      local slope = grad((gx * c):sum(), v)
      is_close((slope * v):sum(), (gx * c):sum())
      if not is_other then is_close(slope, f(c)) end
      is_close(grad((slope * d):sum(), c), grad(f(x), x, d))
    end)
  end
end)

-- The gradients of disjoint regions of one tensor wait for one another (src/engine/regions.h). Each
-- case gives a scalar of y = 2 x, whose gradient with create_graph comes without that.
describe("gradients of regions", function()
  local function twice(shape, f, ...)
    dm.manual_seed(3)
    local x = dm.randn(shape, {dtype = "float64"})
    local a, b = x:clone():requires_grad_(), x:clone():requires_grad_()
    f(a * 2, ...):backward()
    local want = dm.autograd.grad(f(b * 2, ...), {b}, {create_graph = true})
    assert.is_true((a.grad - want):abs():max():item() < 1e-12)
    return a.grad
  end

  for _, case in ipairs{
    {"all of a dim", {4, 3, 5}, function(y)
      return (y:select(2, 1) * y:select(2, 3):cos() + y:select(2, 2)):sum()
    end},
    {"some of a dim, the others of which get 0", {4, 3, 5}, function(y)
      return (y:select(2, 1) * y:select(-2, -1):cos()):sum()
    end},
    {"chunks", {4, 7}, function(y)
      local p, q, r = table.unpack(y:split({2, 4, 1}, 2))
      return p:sin():sum() + q:cos():sum() * r:sum()
    end},
    {"ranges that overlap", {4, 6}, function(y)
      return y:narrow(1, 1, 3):sin():sum() + y:narrow(1, 2, 3):cos():sum()
    end},
    {"one range twice", {6}, function(y)
      return y:narrow(1, 2, 3):sin():sum() + y:narrow(1, 2, 3):cos():sum()
    end},
    {"ranges, before other uses", {4, 6}, function(y)
      return y:square():sum() + y:narrow(1, 1, 2):sin():sum() + y:narrow(1, 3, 2):cos():sum()
    end},
    {"ranges, between other uses", {4, 6}, function(y)
      local a = y:narrow(1, 1, 2):sin():sum()
      local b = y:square():sum()
      return a + b + y:narrow(1, 3, 2):cos():sum()
    end},
    {"rows and columns", {4, 6}, function(y)
      return y:narrow(1, 1, 2):sin():sum() + y:select(1, 3):cos():sum()
        + y:select(2, 3):cos():sum()
    end},
    {"many rows, in any order", {90, 3}, function(y)
      local sum = 0
      for i, row in ipairs(y:unbind(1)) do sum = sum + (row * i):sin():sum() end
      for i = 90, 1, -7 do sum = sum + y[i]:sin():sum() end
      return sum
    end},
    {"nothing", {4, 6}, function(y) return y:narrow(1, 2, 0):sum() + y:narrow(1, 3, 2):sum() end},
    {"regions of regions", {4, 6, 2}, function(y)
      local a, b = table.unpack(y:chunk(2, 2))
      return (a[1] * a[2]:cos()):sum() + b:select(3, 1):sin():sum()
    end},
  } do
    it("of " .. case[1], function() twice(case[2], case[3]) end)
  end

  it("keep the last bits, as one copy", function()
    local x = dm.randn(3, 4):requires_grad_()
    local y, g = x * 1, dm.randn(3, 4);
    (y[2] * g[2] + y[1] * g[1] + y[3] * g[3]):sum():backward()
    assert.is_true(x.grad:equal(g))
  end)

  it("are seen whole by hooks and retain_grad, and by autograd.grad", function()
    local x = dm.randn(3, 4):requires_grad_()
    local y = x * 2
    local seen
    y:retain_grad()
    y:register_hook(function(g) seen = g:clone() end)
    local loss = (y[1] * y[3]):sum()
    assert.is_true(dm.autograd.grad(loss, {y}, {retain_graph = true}):equal(
      dm.stack{y[3]:detach(), dm.zeros(4), y[1]:detach()}))
    loss:backward{retain_graph = true}
    assert.is_true(seen:equal(y.grad))
    loss:backward()
    assert.is_true((y.grad - 2 * seen):abs():max():item() == 0)
  end)

  it("are dropped with a pass that fails, and come again in the next one", function()
    local x = dm.randn(3, 4):requires_grad_()
    local y = x * 2
    local fails = true
    local one = y[1] * 1
    one:register_hook(function() if fails then error "on purpose" end end)
    local loss = one:sum() + (y[2] * 3):sum()
    assert.is_false(pcall(loss.backward, loss, {retain_graph = true}))
    fails, x.grad = false, nil
    loss:backward()
    assert.is_true(x.grad:equal(dm.tensor{{2.0, 2, 2, 2}, {6, 6, 6, 6}, {0, 0, 0, 0}}))
  end)

  it("of a pass within another one stay apart", function()
    local x = dm.randn(3, 4):requires_grad_()
    local y = x * 2
    local inner = y[3]:sum()
    local one = y[1] * 1
    one:register_hook(function() inner:backward{retain_graph = true} end);
    (one:sum() + (y[2] * 3):sum()):backward()
    assert.is_true(x.grad:equal(dm.tensor{{2.0, 2, 2, 2}, {6, 6, 6, 6}, {2, 2, 2, 2}}))
  end)
end)
