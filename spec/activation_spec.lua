-- Activation modules give the bits of their functions (plumbing), and pointwise functions
-- refuse bad arguments. gumbel_softmax draws by its probabilities. PyTorch's values of the ops
-- are in spec/golden/activation.lua.

local dm = require "demilune"
require "spec.helper"
local nn, F = dm.nn, dm.nn.functional

local function refuses(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches("^spec/activation_spec", message)
  assert.matches(pattern, message)
end

local function int(v) return dm.tensor(v, {dtype = "int64"}) end

describe("activations as modules", function()
  local x = dm.linspace(-4, 4, 12):view(2, 6)

  for name, op in pairs{Mish = "mish", Hardswish = "hardswish", Hardsigmoid = "hardsigmoid",
    LogSigmoid = "logsigmoid", SELU = "selu", CELU = "celu", Softsign = "softsign",
    Tanhshrink = "tanhshrink", Softshrink = "softshrink", Hardshrink = "hardshrink",
    ReLU6 = "relu6", GLU = "glu"} do
    it(name, function()
      assert.is_true(nn[name]()(x):equal(F[op](x)))
      assert.matches("^" .. name, tostring(nn[name]()))
    end)
  end

  it("take their options", function()
    assert.is_true(nn.CELU(2.0)(x):equal(F.celu(x, {alpha = 2.0})))
    assert.is_true(nn.Softshrink(1.5)(x):equal(F.softshrink(x, {lambd = 1.5})))
    assert.is_true(nn.Threshold(0.5, 7)(x):equal(F.threshold(x, 0.5, 7)))
    assert.is_true(nn.GLU(1)(x):equal(F.glu(x, {dim = 1})))
    assert.is_true(nn.Softmin(1)(x):equal(F.softmax(-x, 1)))
    assert.matches("alpha = 2.0", tostring(nn.CELU(2.0)))
    assert.matches("threshold = 0.5, value = 7", tostring(nn.Threshold(0.5, 7)))
    refuses("Threshold: value is missing, wanted a number", nn.Threshold, 1)
  end)

  it("write over x where asked to", function()
    local y = dm.tensor{-1.0, 2.0}
    assert.is_true(rawequal(y, nn.ReLU{inplace = true}(y)))
    assert.same({0.0, 2.0}, y:totable())
  end)

  it("PReLU learns its slopes", function()
    local one, many = nn.PReLU(), nn.PReLU(3, {init = 0.5})
    assert.same({0.25}, one.weight:totable())
    assert.same({3}, {table.unpack(many.weight.shape)})
    assert.is_true(many(dm.full({2, 3}, -2.0)):equal(dm.full({2, 3}, -1.0)))
    assert.equal(1, #many:parameters())
    many(dm.full({2, 3}, -2.0)):sum():backward()
    assert.same({-4, -4, -4}, many.weight.grad:totable())
    refuses("prelu: x has shape {2, 3}, weight {2}", F.prelu, dm.ones(2, 3), dm.ones(2))
  end)

  it("refuse what has no meaning", function()
    refuses("glu: x has shape {2, 3}, wanted dim 2 to have two halves", F.glu, dm.ones(2, 3))
    assert.same({9, 9, 3}, F.threshold(dm.tensor({-2, 1, 3}, {dtype = "int64"}), 1, 9):totable())
    refuses("celu: alpha is 0", F.celu, x, {alpha = 0})
    refuses("softshrink: lambd is %-1", F.softshrink, x, {lambd = -1})
    refuses("bitwise_and: the operands are float32, wanted integers", dm.bitwise_and, x, x)
    refuses("bitwise_left_shift: the operands are float32, wanted integers;",
      dm.bitwise_left_shift, x, 1)
    refuses("gcd: the operands are bool, wanted integers;", dm.gcd, x:gt(0), x:gt(0))
    refuses("trace: x has shape {3}, wanted a matrix", dm.trace, dm.ones(3))
    refuses("cdist: x1 has shape {2, 3}, x2 {2, 4}", dm.cdist, dm.ones(2, 3), dm.ones(2, 4))
    refuses("isclose: x is float32, other int64", dm.isclose, dm.ones(2), int{1, 1})
  end)
end)

describe("gumbel_softmax", function()
  it("draws by the probabilities, from the generator it is given", function()
    local p = dm.tensor{0.7, 0.2, 0.1}
    local logits = p:log():expand(4000, 3)
    local draws = F.gumbel_softmax(logits, {hard = true, generator = dm.Generator()})
    for k, v in ipairs(draws:mean(1):totable()) do
      assert.is_true(math.abs(v - p[k]:item()) < 0.04)
    end
    local function once() return F.gumbel_softmax(logits, {generator = dm.Generator()}) end
    assert.is_true(once():equal(once()))
  end)

  it("hard: ones and zeros with the gradient of the soft ones", function()
    local x = dm.randn({4, 3}, {requires_grad = true})
    local y = F.gumbel_softmax(x, {hard = true, tau = 0.5})
    assert.is_true(y:sum(-1):allclose(dm.ones(4)))
    assert.is_true(y:amax(-1):allclose(dm.ones(4)))
    y:mul(dm.randn(4, 3)):sum():backward()
    assert.is_true(x.grad:abs():sum():item() > 0)
    refuses("gumbel_softmax: tau is 0", F.gumbel_softmax, x, {tau = 0})
  end)
end)

describe("allclose", function()
  it("is one boolean", function()
    local x = dm.tensor{1.0, 2.0, 0 / 0}
    assert.is_false(x:allclose(x))
    assert.is_true(x:allclose(x, {equal_nan = true}))
    assert.is_true(dm.allclose(dm.ones(3), dm.tensor(1.000001)))
    assert.is_false(dm.allclose(dm.ones(3), dm.ones(3) * 1.1))
    assert.is_true(dm.allclose(dm.ones(3), dm.ones(3) * 1.1, {rtol = 0.2}))
    refuses("unknown option 'rtoll'; did you mean 'rtol'", dm.allclose, x, x, {rtoll = 1})
  end)
end)

describe("rrelu_", function()
  it("is rrelu in place, with its gradient", function()
    for _, training in ipairs{false, true} do
      local x = dm.tensor{-2.0, -1.0, 0.0, 3.0}:requires_grad_()
      dm.manual_seed(4)
      local want = F.rrelu(x, 0.1, 0.5, training)
      local weights = dm.tensor{1.0, 2.0, 3.0, 4.0}
      local grad = dm.autograd.grad((want * weights):sum(), x)
      local y = x * 1
      dm.manual_seed(4)
      assert.is_true(rawequal(y, F.rrelu_(y, {lower = 0.1, upper = 0.5, training = training})))
      assert.is_true(dm.equal(want, y))
      assert.is_true(dm.equal(grad, dm.autograd.grad((y * weights):sum(), x)))
      assert.is_true(dm.all(y:le(x * 0.1 + x:clamp{min = 0}):logical_or(x:ge(0))):item())
    end
    refuses("rrelu: lower is 1, upper 0", F.rrelu_, dm.ones(1), 1, 0)
  end)
end)
