-- The order of dims in memory: pointwise ops and their gradients keep that of their operands, as
-- PyTorch's do, and compute the same bits as of contiguous tensors.

local dm = require "demilune"
local nn, optim = dm.nn, dm.optim

local SHAPE = {7, 5, 6, 11}
local ORDERS = {{2, 1, 3, 4}, {4, 3, 2, 1}, {1, 3, 4, 2}, {1, 3, 2, 4}, {2, 3, 4, 1}}

-- t's elements, its dims stored in another order: order[1] is the outermost.
local function stored(t, order)
  local back = {}
  for i, d in ipairs(order) do back[d] = i end
  return t:permute(order):contiguous():permute(back)
end

local function same_bits(want, got, what)
  assert.equal(want.dtype, got.dtype, what)
  assert.same(tostring(want.shape), tostring(got.shape), what)
  if want.dtype:find "float" then
    local nan = want:isnan()
    assert.is_true(nan:eq(got:isnan()):all():item(), what)
    want, got = want:masked_fill(nan, 0), got:masked_fill(nan, 0)
  end
  assert.is_true(want:eq(got):all():item(), what)
end

-- A test of tensors of the CPU; other devices know channels last alone.
local function it_on_cpu(name, test)
  it(name, function()
    local _ <close> = dm.device "cpu"
    test()
  end)
end

local UNARY = {"exp", "neg", "relu", "gelu", "isnan", "sqrt", "round", "sign", "logical_not"}
local BINARY = {"add", "mul", "pow", "maximum", "lt", "logical_and", "hypot"}

describe("the order of dims in memory", function()
  for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
    it_on_cpu("is kept by pointwise ops, with the bits of contiguous tensors: " .. dtype, function()
      dm.manual_seed(3)
      for _, order in ipairs(ORDERS) do
        local plain, other = dm.randn(SHAPE):to(dtype), dm.randn(SHAPE):to(dtype)
        local x, y = stored(plain, order), stored(other, order)
        local function check(name, want, got)
          same_bits(want, got, name)
          assert.same(x:stride(), got:stride(), name)
          assert.is_true(want:is_contiguous())
        end
        for _, name in ipairs(UNARY) do check(name, plain[name](plain), x[name](x)) end
        for _, name in ipairs(BINARY) do
          check(name, plain[name](plain, other), x[name](x, y))
          if name ~= "hypot" then
            check(name .. " of a number", plain[name](plain, 2), x[name](x, 2))
          end
          check(name .. " of a row", plain[name](plain, other[{1, 1, 1}]),
            x[name](x, other[{1, 1, 1}]))
        end
        check("where", dm.where(plain:gt(0), plain, other), dm.where(x:gt(0), x, y))
        check("clamp", plain:clamp{min = -1, max = 0.5}, x:clamp{min = -1, max = 0.5})
        check("lerp", plain:lerp(other, 0.3), x:lerp(y, 0.3))
        check("addcmul", plain:addcmul(other, other), x:addcmul(y, y))
        check("to", plain:to "float16", x:to "float16")
        check("masked_fill", plain:masked_fill(plain:gt(0), 3), x:masked_fill(x:gt(0), 3))
        check("zeros_like", dm.zeros_like(plain), dm.zeros_like(x))
        check("full_like", dm.full_like(plain, 2), dm.full_like(x, 2))
        check("composed", nn.functional.mish(plain):mul(2):sub(other),
          nn.functional.mish(x):mul(2):sub(y))
        local gen = dm.Generator and dm.Generator()
        if gen then gen:manual_seed(5) end
        local a = dm.randn_like(plain, {generator = gen})
        if gen then gen:manual_seed(5) end
        check("randn_like", a, dm.randn_like(x, {generator = gen}))
      end
    end)
  end

  it_on_cpu("is that of contiguous tensors where operands differ, or have gaps", function()
    local a = dm.randn(4, 6)
    for _, y in ipairs{a:t() + dm.randn(6, 4), dm.randn(6, 4) * a:t(), a:slice(2, 1, -1, 2):exp(),
      a:expand(3, 4, 6) + 1, a:t():expand(3, 6, 4):neg()} do
      assert.is_true(y:is_contiguous())
    end
    assert.is_true((dm.zeros(1, 3):t() + 1):is_contiguous())
    assert.same({1, 6}, (a:t() + 1):stride())
    assert.same({1, 6}, (dm.ones(1):expand(6, 4) + a:t()):stride())
  end)

  it_on_cpu("stays when other tensors are copied into it", function()
    for _, dtype in ipairs{"bool", "bfloat16", "float32", "int64"} do
      for _, order in ipairs(ORDERS) do
        local plain = dm.randint(-1, 1, SHAPE):to(dtype)
        for _, other in ipairs(ORDERS) do
          local to = stored(dm.zeros(SHAPE, {dtype = dtype}), order)
          local strides = to:stride()
          same_bits(plain, to:copy_(stored(plain, other)))
          assert.same(strides, to:stride())
        end
        local row = plain:narrow(3, 2, 1)
        same_bits(row:expand(SHAPE):contiguous(),
          stored(dm.zeros(SHAPE, {dtype = dtype}), order):copy_(row))
      end
    end
  end)

  it_on_cpu("stays when the result is written into the operand", function()
    local plain = dm.randn(33, 70)
    local base = plain:t():contiguous()
    local x = base:t()
    x:mul_(2):add_(plain):relu_()
    same_bits(plain:mul(2):add(plain):relu(), x)
    same_bits(x:t(), base)
    assert.same({1, 33}, x:stride())
  end)

  it_on_cpu("is the leaf's in its gradient, which has the bits of a contiguous one", function()
    for _, order in ipairs(ORDERS) do
      local plain = dm.randn(SHAPE):requires_grad_()
      local x = stored(plain:detach(), order):requires_grad_()
      local function loss(t) return (t:tanh() * t + t:exp()):mul(0.5):sum() end
      for _ = 1, 2 do -- the second one is added to the first
        loss(plain):backward()
        loss(x):backward()
      end
      same_bits(plain.grad, x.grad)
      assert.same(x:stride(), x.grad:stride())
      local first = dm.autograd.grad(loss(x), {x}, {create_graph = true})[1]
      local want = dm.autograd.grad(loss(plain), {plain}, {create_graph = true})[1]
      same_bits(dm.autograd.grad(want:sum(), {plain})[1], dm.autograd.grad(first:sum(), {x})[1])
    end
  end)

  it_on_cpu("does not change what optimizers compute", function()
    for _, name in ipairs{"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam"} do
      local plain = dm.randn(12, 9):requires_grad_()
      local x = plain:detach():t():contiguous():t():requires_grad_()
      local scaled = {}
      for i, p in ipairs{plain, x} do
        local o = optim[name]({p}, {lr = 0.05, weight_decay = 0.01})
        local scaler = dm.amp.GradScaler{device = "cpu", init_scale = 8}
        for _ = 1, 4 do
          o:zero_grad()
          scaler:scale((p * p):exp():sum()):backward()
          scaler:unscale_(o)
          nn.utils.clip_grad_norm_({p}, 5)
          scaler:step(o)
          scaler:update()
        end
        scaled[i] = p:detach()
      end
      same_bits(scaled[1], scaled[2], name)
    end
  end)

  it_on_cpu("is kept by copies and flips, and where an operand was expanded", function()
    local plain = dm.randn(SHAPE)
    local row = dm.randn(SHAPE[4]):expand(SHAPE)
    for _, order in ipairs(ORDERS) do
      local x = stored(plain, order)
      for name, pair in pairs{
        clone = {plain:clone(), x:clone()}, flip = {plain:flip{2, -1}, x:flip{2, -1}},
        ["add of a row"] = {plain + row, x + row},
        ["where of a row"] = {dm.where(plain:gt(0), row, 0), dm.where(x:gt(0), row, 0)},
      } do
        same_bits(pair[1], pair[2], name)
        assert.same(x:stride(), pair[2]:stride(), name)
      end
      assert.is_true(x:contiguous():is_contiguous() and x:clone():contiguous():is_contiguous())
      same_bits(plain:reshape(-1), x:clone():reshape(-1), "reshape")
    end
    assert.is_true(plain:narrow(2, 1, 3):clone():is_contiguous()) -- there are gaps
    assert.is_true(row:clone():is_contiguous())
  end)

  -- Views of a result, of all kinds but expand, in which an element would be written twice.
  local VIEWS = {
    function(y) return y:select(1, 2) end,
    function(y) return y:narrow(2, 2, 3) end,
    function(y) return y[{{1, -1}, {}, {}, {2, -1, 3}}] end,
    function(y) return y:diagonal(0, 2, 3) end,
    function(y) return y:transpose(1, 4):select(2, 3) end,
    function(y) return y:permute(3, 1, 4, 2):narrow(1, 2, 2):unsqueeze(2) end,
  }
  it("is no matter to gradients where views are changed in place", function()
    local plain = dm.randn(SHAPE)
    local by, factor = dm.randn(SHAPE), dm.randn(SHAPE)
    for _, order in ipairs(ORDERS) do
      for i, view in ipairs(VIEWS) do
        local grads = {}
        for k, t in ipairs{plain, stored(plain, order)} do
          t = t:clone():requires_grad_()
          local new = view(factor):clone():requires_grad_()
          local y = t * by
          local before, v = y:select(4, 1), view(y)
          v:mul_(new)
          local loss = (y * factor):sum() + (v:square() * view(by)):sum() + before:exp():sum()
          grads[k] = {dm.autograd.grad(loss, {t, new})}
        end
        for g = 1, 2 do
          assert.is_true(grads[1][g]:allclose(grads[2][g], {rtol = 1e-5, atol = 1e-5}),
            ("view %d, order %s, gradient %d"):format(i, table.concat(order, " "), g))
        end
      end
    end
  end)

  -- A step of a program over a list of tensors, a function of the list whose choices are made now:
  -- a view, which later steps may change in place, or an op along a dim.
  local function random_view()
    local kind, a, b = math.random(7), math.random(1 << 20), math.random(1 << 20)
    return function(t)
      local n = #t.shape
      if n == 0 then return t end
      local d, other = a % n + 1, b % n + 1
      if kind == 1 then return t:select(d, b % t.shape[d] + 1) end
      if kind == 2 then return t:narrow(d, b % t.shape[d] + 1, t.shape[d] - b % t.shape[d]) end
      if kind == 3 then return t:transpose(d, other) end
      if kind == 4 then return t:unsqueeze(b % (n + 1) + 1) end
      if kind == 5 and d ~= other then return t:diagonal(0, d, other) end
      local key = {}
      for i = 1, n do key[i] = i == d and {1, -1, b % 2 + 1} or {} end
      return kind == 6 and t[key] or t:squeeze()
    end
  end
  local ALONG = {"cumsum", "softmax", "sum", "logsumexp", "flip"}
  local function random_step()
    local kind, which, a, b = math.random(8), math.random(99), math.random(99), math.random(99)
    local views = {random_view(), random_view()}
    return function(list, numbers)
      local t = list[which % #list + 1]
      local v = views[2](views[1](t))
      local fit = numbers:narrow(1, a % 50 + 1, v:numel()):reshape(v.shape)
      if kind <= 2 and not t.is_leaf then
        v:mul_(0.5 + b / 99)
      elseif kind == 3 and not t.is_leaf then
        v:copy_(fit * list[2]:mean())
      elseif kind == 4 and #t.shape > 0 then
        local name, d = ALONG[b % #ALONG + 1], a % #t.shape + 1
        v = t[name](t, name == "flip" and {d} or d)
      elseif kind == 5 then
        v = t:clone()
      elseif kind == 6 then
        v = t:tanh()
      end
      list[#list + 1] = v
    end
  end
  -- The loss and gradient of a program that begins with x; nil where one of its steps is refused.
  local function outcome(x, steps, numbers)
    local list, loss = {x, x * 1.5}, 0
    local done = pcall(function()
      for _, step in ipairs(steps) do step(list, numbers) end
      for i, t in ipairs(list) do
        local by = numbers:narrow(1, i, t:numel()):reshape(t.shape)
        loss = loss + (t:tanh() * by):sum()
      end
    end)
    local passed, g = pcall(dm.autograd.grad, loss, x)
    return done and passed and loss:item() or nil, g
  end
  it("is no matter to random programs that change views in place", function()
    local whole = 0
    for seed = 1, 150 do
      math.randomseed(seed)
      dm.manual_seed(seed)
      local shape, order, steps = {}, {}, {}
      for d = 1, math.random(2, 4) do
        shape[d] = math.random(4)
        table.insert(order, math.random(d), d)
      end
      for i = 1, math.random(4, 9) do steps[i] = random_step() end
      local x, numbers = dm.randn(shape):to "float64", dm.randn(1500):to "float64"
      local want, g = outcome(x:clone():requires_grad_(), steps, numbers)
      local got, h = outcome(stored(x, order):requires_grad_(), steps, numbers)
      assert.equal(want == nil, got == nil, "program " .. seed)
      if want then
        whole = whole + 1
        assert.is_true(math.abs(want - got) < 1e-9 * (1 + math.abs(want)), "loss " .. seed)
        assert.is_true(g:allclose(h, {rtol = 1e-8, atol = 1e-9}), "gradient " .. seed)
      end
    end
    assert.is_true(whole > 75)
  end)

  it("is no matter to the gradient of as_strided", function()
    local x = dm.randn(3, 4):requires_grad_()
    local c = dm.randn(12)
    local flat = dm.autograd.grad((x:t():as_strided({12}, {1}) * c):sum(), x)
    assert.is_true(flat:equal(c:view(3, 4)))
    local row = dm.autograd.grad((x[2]:as_strided({2}, {2}) * c:narrow(1, 1, 2)):sum(), x)
    assert.is_true(row[{2, {1, 3, 2}}]:equal(c:narrow(1, 1, 2)))
    assert.equal(2, row:count_nonzero():item())
    local all = dm.autograd.grad((x[2]:as_strided({12}, {1}, {storage_offset = 0}) * c):sum(), x)
    assert.is_true(all:equal(c:view(3, 4))) -- of the base, as in PyTorch
    local part = dm.autograd.grad(x:narrow(2, 2, 2):unfold(1, 2, 1):sum(), x)
    assert.same({{0, 1, 1, 0}, {0, 2, 2, 0}, {0, 1, 1, 0}}, part:totable())
    local leaf = dm.randn(3, 4):narrow(2, 1, 2):requires_grad_()
    assert.error_matches(function() leaf:as_strided({2}, {1}) end,
      "as_strided: x of shape {3, 2} has gaps between its elements")
    local y = x * 1
    y:unfold(1, 3, 1):clamp_(-0.125, 0.125) -- a view, which is changed in place
    assert.is_true(y:abs():max():item() <= 0.125)
  end)

  it_on_cpu("is no matter to what reads the result", function()
    local plain = dm.randn(8, 12)
    local x = plain:t():contiguous():t()
    local w = dm.randn(12, 5)
    local function all(t)
      t = t:exp()
      return {t:softmax(-1), t:sum(1), t:cumsum(2), t:matmul(w), t:sort(-1), t:reshape(-1),
        t:flatten(), dm.cat({t, t}, 1), t:argmax(-1)}
    end
    local want, got = all(plain), all(x)
    for i = 1, #want do
      if dm.is_tensor(want[i]) and want[i].dtype == "float32" then
        assert.is_true(want[i]:allclose(got[i]))
      end
    end
    assert.has_error(function() x:exp():view(-1) end)
  end)
end)
