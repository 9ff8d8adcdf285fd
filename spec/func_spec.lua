-- dm.func: values of torch.func (spec/golden/functions), derivatives known in closed form, nesting,
-- modules, and error messages.

local dm = require "demilune"
local case = require "spec.case"
local load_family = require("spec.golden").load
local func, nn, F = dm.func, dm.nn, dm.nn.functional

local f64 = {dtype = "float64"}
local function t(list) return dm.tensor(list, f64) end

local function close(want, got, tolerance)
  assert.same({table.unpack(want.shape)}, {table.unpack(got.shape)})
  local off = want:numel() > 0 and (want - got):abs():max():item() or 0
  assert.is_true(off <= (tolerance or 1e-12), off)
end

-- ---- PyTorch's values; scripts/golden/functions.py has the same functions ----

local FUNCTIONS = {
  scalar = function(x, y) return x:sin():matmul(y):pow(3):sum() end,
  vector = function(x, y) return x:exp():matmul(y):tanh() end,
  matrix = function(x, y) return x:unsqueeze(2) * y * x:sum() end,
}

describe("func has PyTorch's values:", function()
  for _, c in ipairs(load_family("functions").cases) do
    it(c.f, function()
      local f, out = FUNCTIONS[c.f], c.out
      local x, y, vx, vy = case.build(dm, c.x), case.build(dm, c.y), case.build(dm, c.vx),
        case.build(dm, c.vy)
      local function same(name, got)
        local want = out[name]
        assert.same(want.s, {table.unpack(got.shape)}, name)
        assert.is_false(got.requires_grad, name)
        local scale = {m = 4, n = 64}
        for i, v in ipairs(case.values(got)) do
          local tolerance = case.tolerance("sum", "float64", want.d[i], scale)
          assert.is_true(math.abs(v - want.d[i]) <= tolerance,
            ("%s: element %d is %.17g, wanted %.17g"):format(name, i, v, want.d[i]))
        end
      end
      if c.f == "scalar" then
        local grads = func.grad(f, {1, 2})(x, y)
        same("grad_x", grads[1])
        same("grad_y", grads[2])
        local second, value = func.grad_and_value(f, {argnums = 2})(x, y)
        same("grad_y", second)
        same("value", value)
      end
      for _, name in ipairs{"jacrev", "jacfwd"} do
        local jacobians = func[name](f, {1, -1})(x, y)
        same("jac_x", jacobians[1])
        same("jac_y", jacobians[2])
        same("jac_y", func[name](f, 2)(x, y))
      end
      same("hessian_xx", func.hessian(f)(x, y))
      same("hessian_xy", func.hessian(f, {1, 2})(x, y)[1][2])
      same("hessian_xx", func.jacfwd(func.jacrev(f))(x, y))
      same("third", func.jacrev(func.jacrev(func.jacrev(f)))(x, y))
      local value, pull = func.vjp(f, x, y)
      same("value", value)
      for _ = 1, 2 do -- as often as one likes
        local gx, gy = pull(case.build(dm, c.cotangent))
        same("vjp_x", gx)
        same("vjp_y", gy)
      end
      local pushed
      value, pushed = func.jvp(f, {x, y}, {vx, vy})
      same("value", value)
      same("jvp", pushed)
      local xs, ys = dm.stack({x, vx}, 2), dm.stack({y, vy}, 1)
      same("vmap", func.vmap(f, {2, 1}, -1)(xs, ys))
      same("vmap_shared", dm.vmap(f, {in_dims = {2, false}})(xs, y))
      same("vmap_grad", func.vmap(func.jacrev(f), {2, 1})(xs, ys))
    end)
  end
end)

-- ---- gradients ----

describe("func.grad", function()
  local function cube(x) return x:pow(3):sum() end

  it("nests to any order", function()
    local x = t(2)
    local f = function(v) return v:pow(5) end
    for _, want in ipairs{80, 160, 240, 240, 120, 0} do
      f = func.grad(f)
      assert.equal(want, f(x):item())
    end
    close(t(0), func.grad(func.grad(function(v) return 3 * v end))(x))
  end)

  it("leaves its arguments and .grad alone, also those with a graph", function()
    local x = t{1, 2}
    local g = func.grad(cube)(x)
    assert.same({3, 12}, g:totable())
    assert.is_false(g.requires_grad)
    assert.is_false(x.requires_grad)
    local w = t{1, 2}:requires_grad_()
    g = func.grad(cube)(w * 2)
    assert.is_nil(w.grad)
    g:sum():backward() -- 12 w^2 has the derivative 24 w
    assert.same({24, 48}, w.grad:totable())
  end)

  it("is plain where levels inside made the only leaves", function()
    local x, y = t{1, 2}, t{3, 4}
    local function slope(a, b) return func.grad(function(v) return (v * v * b):sum() end)(a) end
    local function pushed(a, b)
      local _, tangent = func.jvp(function(v) return v * v * b end, {a}, {t{1, 1}})
      return tangent
    end
    for _, f in ipairs{slope, pushed} do
      local jacobian = func.jacrev(f, 2)(x, y) -- 2 a on the diagonal
      assert.same({{2, 0}, {0, 4}}, jacobian:totable())
      assert.is_false(jacobian.requires_grad)
      local w = t{1, 2}:requires_grad_()
      func.jacrev(f, 2)(w, y):sum():backward()
      assert.same({2, 2}, w.grad:totable())
    end
  end)

  it("has a graph to what f captures: a loss of a network's derivative trains it", function()
    local net = nn.Linear(1, 1, {bias = false}):double()
    local u = function(x) return (net(x) ^ 2):sum() end
    local x = t{{1}, {3}}
    local slope = func.grad(u)(x) -- 2 w^2 x
    assert.is_true(slope.requires_grad)
    slope:sum():backward()
    close(net.weight.data * 16, net.weight.grad)
    assert.is_false(dm.no_grad(function() return func.grad(u)(x) end).requires_grad)
  end)

  it("takes tables, more results with has_aux, and what is unused gets zeros", function()
    local function f(p, k) return (p.a * p.list[1] * k):sum(), p.a * 2, "done" end
    local p = {a = t{1, 2}, list = {t{3, 4}}, n = 7}
    local g, double, done = func.grad(f, {has_aux = true})(p, 5)
    assert.same({15, 20}, g.a:totable())
    assert.same({5, 10}, g.list[1]:totable())
    assert.equal(7, g.n)
    assert.same({2, 4}, double:totable())
    assert.is_false(double.requires_grad)
    assert.equal("done", done)
    local grads, value, again = func.grad_and_value(f, 1, true)(p, 5)
    assert.same({15, 20}, grads.a:totable())
    assert.equal(55, value:item())
    assert.same({2, 4}, again:totable())
    assert.same({0, 0}, func.grad(function(a, b) return (a + 0 * b:detach()):sum() end, 2)(
      t{1, 2}, t{3, 4}):totable())
    assert.same({0, 0}, func.grad(function() return t(3) end)(t{1, 2}):totable())
  end)

  it("an argument that f captures too counts as the argument only", function()
    local w = t{2, 3}:requires_grad_()
    assert.same({2, 3}, func.grad(function(x) return (x * w):sum() end)(w):totable())
  end)

  it("works under no_grad, and under no_grad in f", function()
    local x = t{1, 2}
    local _ <close> = dm.no_grad()
    assert.same({3, 12}, func.grad(cube)(x):totable())
    assert.same({1, 1}, func.grad(function(v)
      return v:sum() + dm.no_grad(function() return cube(v) end)
    end)(x):totable())
  end)

  it("of float32 and 16 bits, and under autocast, has the argument's dtype", function()
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      assert.equal(dtype, func.grad(cube)(dm.ones(3, {dtype = dtype})).dtype)
    end
    local w = dm.eye(3)
    local _ <close> = dm.amp.autocast{device_type = dm.ones(1).device:match "^%a+",
      dtype = "bfloat16"}
    local g = func.grad(function(x) return x:matmul(w):float():sum() end)(dm.ones(2, 3))
    assert.equal("float32", g.dtype)
    assert.same({{1, 1, 1}, {1, 1, 1}}, g:totable())
  end)

  it("takes strided arguments, with a graph too", function()
    local x = t{{1, 2, 3}, {4, 5, 6}}
    assert.same({{3, 48}, {12, 75}, {27, 108}}, func.grad(cube)(x:t()):totable())
    assert.same({{3, 48}, {12, 75}, {27, 108}}, func.grad(cube)(x:requires_grad_():t()):totable())
  end)
end)

describe("Jacobians", function()
  it("of tables by tables", function()
    local function f(p) return {double = 2 * p.x, square = p.x * p.x} end
    for _, name in ipairs{"jacrev", "jacfwd"} do
      local j = func[name](f)({x = t{1, 3}})
      assert.same({{2, 0}, {0, 2}}, j.double.x:totable())
      assert.same({{2, 0}, {0, 6}}, j.square.x:totable())
    end
  end)

  it("of empty and of single numbers", function()
    local function f(x) return x * 2 end
    for _, name in ipairs{"jacrev", "jacfwd"} do
      assert.same({0, 0}, {table.unpack(func[name](f)(dm.zeros(0)).shape)})
      assert.equal(2, func[name](f)(t(3)):item())
      local j, aux = func[name](function(x) return x:sum(), x end, {has_aux = true})(t{1, 2})
      assert.same({1, 1}, j:totable())
      assert.same({1, 2}, aux:totable())
      close(dm.zeros(2, 2, f64), func[name](function(x) return x:detach() end)(t{1, 2}))
    end
  end)

  it("the hessian of a quadratic form is A + A^T; gradients go through a step of MAML", function()
    local a = dm.randn(4, 4, f64)
    local function form(x) return x:dot(a:matmul(x)) end
    close(a + a:t(), func.hessian(form)(dm.randn(4, f64)))
    -- d loss(x - lr grad(x)) / dx = (I - lr H) grad(x - lr grad(x))
    local x, h = dm.randn(4, f64), a + a:t()
    local function after(v) return form(v - 0.1 * func.grad(form)(v)) end
    local moved = x - 0.1 * h:matmul(x)
    close((dm.eye(4, f64) - 0.1 * h):matmul(h:matmul(moved)), func.grad(after)(x), 1e-11)
  end)

  it("vjp and jvp agree, with tables and further results", function()
    local function f(x) return {x:sin(), x:sum()}, x end
    local x, v = t{0.3, 0.7}, t{2, -1}
    local value, pull, aux = func.vjp(f, x, {has_aux = true})
    assert.same({0.3, 0.7}, aux:totable())
    close(x:sin(), value[1])
    close(x:cos() * 3 + 5, pull{t{3, 3}, t(5)})
    local again, pushed = func.jvp(f, {x}, {v}, {has_aux = true})
    close(x:sum(), again[2])
    close(x:cos() * v, pushed[1])
    close(t(1), pushed[2])
    -- the graph of a tangent
    local w = t{2, -1}:requires_grad_()
    local _, of_w = func.jvp(function(z) return z * z end, {x}, {w})
    of_w:sum():backward()
    close(2 * x, w.grad)
  end)
end)

-- ---- vmap ----

describe("vmap", function()
  it("takes dims from 1 and from the end, shares false, and nests", function()
    local x, w = dm.randn(2, 5, 3, f64), dm.randn(3, f64)
    local dot = function(a, b) return a:dot(b) end
    local batched = func.vmap(func.vmap(dot, {1, false}), {1, false})
    close(x:matmul(w), batched(x, w))
    close(x:matmul(w):t(), func.vmap(func.vmap(dot, {1, false}), {2, false})(x, w))
    close(x:sum(2), func.vmap(func.vmap(function(a) return a:sum() end), -1, 2)(x))
    close(x + 1, func.vmap(function(a) return a + 1 end, {in_dims = -2, out_dims = -2})(x))
    local sums, twice = func.vmap(function(a) return a:sum(), {twice = 2 * a} end, 2, {1, 3})(x)
    close(x:sum({1, 3}), sums)
    close(2 * x:transpose(2, 3), twice.twice)
  end)

  it("tables take one dim, or one for each key", function()
    local p = {w = dm.ones(4, 2), b = dm.arange(1, 4):float()}
    local f = function(q, x) return (q.w * x):sum() + q.b end
    assert.same({5, 6, 7, 8}, func.vmap(f, {1, false})(p, 2):totable())
    assert.same({5, 5, 5}, func.vmap(f, {{w = false, b = 1}, 1})(
      {w = dm.ones(2), b = dm.tensor{1, 1, 1}}, dm.ones(3) * 2):totable())
  end)

  it("draws differently in each slice, or the same", function()
    local f = function(x) return x + dm.rand(3) end
    dm.manual_seed(1)
    local y = func.vmap(f)(dm.zeros(2, 3))
    assert.is_false(dm.equal(y[1], y[2]))
    y = func.vmap(f, {randomness = "same"})(dm.zeros(2, 3))
    assert.is_true(dm.equal(y[1], y[2]))
  end)

  it("functional_call knows a shared parameter by each of its names", function() -- as PyTorch
    local shared = nn.Linear(2, 2, {bias = false})
    local m = nn.Sequential{shared, nn.Tanh(), shared}
    local x, w = dm.ones(1, 2), dm.zeros(2, 2)
    for _, name in ipairs{"0.weight", "2.weight"} do
      assert.same({{0, 0}}, func.functional_call(m, {[name] = w}, x):totable())
    end
    assert.same({{0, 0}},
      func.functional_call(m, {["0.weight"] = w, ["2.weight"] = w}, x):totable())
    assert.error_matches(function()
      func.functional_call(m, {["0.weight"] = w, ["2.weight"] = dm.ones(2, 2)}, x)
    end, "gets two values")
  end)

  it("gradients flow through it", function()
    local x = t{{1, 2}, {3, 4}}:requires_grad_()
    func.vmap(function(a) return a:pow(2):sum() end)(x):sum():backward()
    assert.same({{2, 4}, {6, 8}}, x.grad:totable())
    assert.same({2, 4}, func.grad(function(v)
      return func.vmap(function(a) return a * a end)(v):sum()
    end)(t{1, 2}):totable())
  end)
end)

-- ---- modules ----

describe("functional_call", function()
  local Net = nn.Module:extend "Net"
  function Net:init()
    self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
    self.second.weight = self.first.weight -- shared
    self.norm = nn.BatchNorm1d(3)
  end
  function Net:forward(x) return self.norm(self.second(self.first(x))) end

  it("uses the given tensors, shared ones everywhere, and puts the own back", function()
    local net, other, x = Net():eval(), Net():eval(), dm.randn(4, 3)
    local given, own = {}, {}
    for name, p in other:named_parameters() do given[name] = p.data end
    for name, b in other:named_buffers() do given[name] = b end
    for name, p in net:named_parameters() do own[name] = p end
    close(other(x), func.functional_call(net, given, x), 0)
    for name, p in net:named_parameters() do assert.is_true(rawequal(own[name], p), name) end
    -- a part of them, in two tables
    local bias = {["first.bias"] = dm.ones(3)}
    local some = func.functional_call(net, {bias, {["norm.bias"] = dm.zeros(3)}}, x)
    assert.is_false(dm.allclose(some, net(x)))
    close(net(x), func.functional_call(net, {}, x), 0)
  end)

  it("takes one list of arguments, as PyTorch takes a tuple", function()
    local net, a, b = nn.Bilinear(2, 3, 1), dm.randn(4, 2), dm.randn(4, 3)
    close(net(a, b), func.functional_call(net, {}, {a, b}), 0)
    close(net(a, b), func.functional_call(net, {}, a, b), 0)
  end)

  it("puts the own back after an error", function()
    local net = nn.Linear(3, 2)
    local weight = net.weight
    assert.refuses("last dim is 3, wanted 5", function()
      func.functional_call(net, {weight = dm.ones(2, 5)}, dm.ones(1, 3))
    end)
    assert.is_true(rawequal(weight, net.weight))
  end)

  it("a batch norm's buffers that are given change, not the module's", function()
    local net = nn.BatchNorm1d(2)
    local buffers = {running_mean = dm.zeros(2), running_var = dm.ones(2),
      num_batches_tracked = dm.tensor(0)}
    func.functional_call(net, buffers, dm.tensor{{1.0, 2}, {3, 4}})
    close(dm.tensor{0.2, 0.3}, buffers.running_mean, 1e-6)
    assert.same({0, 0}, net.running_mean:totable())
  end)

  -- The example of per-sample gradients: one call gives the gradient of each sample's loss.
  it("with grad and vmap gives the gradient of each sample", function()
    local net = nn.Sequential{nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)}
    local x, y = dm.randn(6, 4), dm.tensor{1, 2, 3, 1, 2, 3}
    local parameters = {}
    for name, p in net:named_parameters() do parameters[name] = p.data end
    local function loss(params, sample, target)
      local logits = func.functional_call(net, params, sample:unsqueeze(1))
      return F.cross_entropy(logits, target:unsqueeze(1))
    end
    local per_sample = func.vmap(func.grad(loss), {false, 1, 1})(parameters, x, y)
    for i = 1, 6 do
      net:zero_grad()
      F.cross_entropy(net(x[{{i, i}}]), y[{{i, i}}]):backward()
      for name, p in net:named_parameters() do
        assert.same({6, table.unpack(p.shape)}, {table.unpack(per_sample[name].shape)})
        close(p.grad, per_sample[name][i], 1e-6)
      end
    end
  end)

  it("with stack_module_state runs an ensemble", function()
    local models = {nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)}
    local parameters, buffers = func.stack_module_state(models)
    assert.same({}, buffers)
    assert.same({3, 2, 3}, {table.unpack(parameters.weight.shape)})
    local x = dm.randn(5, 3)
    local y = func.vmap(function(p) return func.functional_call(models[1], p, x) end)(parameters)
    for i, model in ipairs(models) do close(model(x), y[i], 1e-6) end
    y:sum():backward()
    assert.same({3, 2, 3}, {table.unpack(parameters.weight.grad.shape)})
    assert.is_nil(models[1].weight.grad)
  end)
end)

-- ---- mistakes ----

describe("mistakes:", function()
  local function wrong(pattern, f, ...)
    local args = table.pack(...)
    assert.refuses("func_spec.lua:%d+: " .. pattern,
      function() f(table.unpack(args, 1, args.n)) end)
  end
  local function id(x) return x end
  local function sum(x) return x:sum() end
  local x = t{1, 2}

  it("of derivatives", function()
    wrong("func.grad: func is 1, wanted a function", func.grad, 1)
    wrong("func.grad: unknown option 'argnum'; did you mean 'argnums'%?", func.grad, id,
      {argnum = 1})
    wrong("func.grad: f gave shape {2}, wanted a tensor of one number.*hint: y:sum", func.grad(id),
      x)
    wrong("func.grad: f gave a nil, wanted a tensor", func.grad(function() end), x)
    wrong("func.grad: argnums has 0, wanted 1 to 1 %(arguments count from 1", func.grad(sum, 0), x)
    wrong("func.grad: argnums has 2, wanted 1 to 1", func.grad(sum, {1, 2}), x)
    wrong("func.grad: argument 1 is int64, wanted floats; hint: x:float", func.grad(sum),
      dm.tensor{1, 2})
    wrong("func.grad: argument 1 has no tensor %(it is a number%)", func.grad(sum), 1)
    wrong("func.grad: f gave 2 results, wanted one; hint: has_aux", func.grad(function(v)
      return v:sum(), v
    end), x)
    wrong("func.grad: argument 4, 2, is one too many\n  func.grad%(func, argnums = 1, has_aux",
      func.grad, sum, 1, true, 2)
    local _, pull = func.vjp(id, x)
    wrong("func.vjp: the cotangent: tensor 1 is float64 of shape {3}, wanted float64 of shape {2}",
      pull, t{1, 2, 3})
    wrong("func.jvp: tangents: 0 tensors given, wanted 1", func.jvp, id, {x}, {})
    wrong("func.jvp: primals is a tensor, wanted a list", func.jvp, id, x, x)
  end)

  it("of vmap", function()
    wrong("func.vmap: in_dims of argument 1 is 3, wanted 1 to 1", func.vmap(id, 3), x)
    wrong("func.vmap: in_dims of argument 1 is 0, wanted 1 to 1", func.vmap(id, 0), x)
    wrong("func.vmap: in_dims of argument 1 is 1, .*no dims; hint: false", func.vmap(id), t(1))
    wrong("func.vmap: in_dims has 2 dims for 1 arguments", func.vmap(id, {1, 1}), x)
    wrong("func.vmap: dim 1 of argument 2 has size 3, wanted 2", func.vmap(id), x, t{1, 2, 3})
    wrong("func.vmap: argument 1 is a number, wanted a tensor.*false", func.vmap(id), 3)
    wrong("func.vmap: there is no slice to run f on: in_dims shares", func.vmap(id, {false}), x)
    wrong("func.vmap: there is no slice to run f on: the dims have size 0", func.vmap(id),
      dm.zeros(0))
    wrong("func.vmap: out_dims of result 1 is 2, wanted 1 to 1", func.vmap(id, 1, 2), x)
    wrong("func.vmap: result 1 of f is a number", func.vmap(function(v) return v:item() end), x)
    wrong("func.vmap: result 1 has another shape in slice 2 than in slice 1", func.vmap(function(v)
      return dm.zeros(v:item() // 1 | 0)
    end), x)
    wrong("func.vmap: randomness is 'error', wanted 'different' or 'same'", func.vmap, id,
      {randomness = "error"})
  end)

  it("of modules", function()
    local net = nn.Linear(3, 2)
    wrong("func.functional_call: Linear.* has no 'weigth'; did you mean 'weight'%?",
      func.functional_call, net, {weigth = x}, x)
    wrong("func.functional_call: weight is a number, wanted a tensor", func.functional_call, net,
      {weight = 1}, x)
    wrong("func.functional_call: module is a table, wanted an nn.Module", func.functional_call, {},
      {}, x)
    wrong("func.functional_call: parameters is a nil", func.functional_call, net)
    wrong("func.stack_module_state: models is empty", func.stack_module_state, {})
    wrong("func.stack_module_state: item 2 is no module of item 1's class", func.stack_module_state,
      {net, nn.ReLU()})
    wrong("func.stack_module_state: item 2 is in another mode", func.stack_module_state,
      {net, nn.Linear(3, 2):eval()})
  end)
end)
