-- Rounding: a result of 16 bits is the float64 result of the same inputs, rounded once: sums and
-- the steps of a definition run in float32. Every row of dm.ops() is held to it, forward and
-- backward, on the inputs of spec/samples.lua rounded to float16 and to bfloat16.
--
-- Allowed are half a gap of the 16-bit dtype at the result, and what float32's own arithmetic makes
-- of the same inputs. A gradient that reads the op's output reads a rounded one, as PyTorch's
-- does: it may be off by two gaps of the largest gradient, or by half a gap of the largest weight,
-- where the derivative is small beside its own slope (of a sigmoid y near 1 it is y - y^2).

local dm = require "demilune"
local case = require "spec.case"
local samples = require "spec.samples"
local ON_DEVICE = require("spec.device").type ~= "cpu"

local LEAST = {float16 = 2^-24, bfloat16 = 2^-133} -- the gap at 0

local READS_OUTPUT = {}
for name in ([[exp expm1 exp2 sqrt rsqrt reciprocal tan tanh sigmoid erfinv special_ndtri pow std
  norm logsumexp softmax softmin log_softmax]]):gmatch "%S+" do READS_OUTPUT[name] = true end

-- Ops that round more than once, as in PyTorch.
local GATES = "the products of input and state are rounded before they are added, and so are the "
  .. "states between the steps"
local EXCEPT = {
  nextafter = "the neighbour in 16 bits is no rounded neighbour of float64",
  linalg_multi_dot = "a chain of products, each of which is rounded",
  rnn_tanh_cell = GATES, rnn_relu_cell = GATES, lstm_cell = GATES, gru_cell = GATES,
  rnn_layer = GATES,
  add_layer_norm = "the norm is that of the sum, which is rounded",
}
-- On a CUDA device, by its libraries and as PyTorch there.
local BIAS = "the library's result is rounded before the bias is added"
local EXCEPT_DEVICE = {
  conv_transpose1d = BIAS, conv_transpose2d = BIAS,
  linear = "the product is rounded before the activation",
}
local EXCEPT_GRADIENT = {
  conv3d = "the gradients of the taps along the depth are rounded before they are added",
  linear = "the activation's gradient is rounded before its products",
  scaled_dot_product_attention = "gradients of shared heads are rounded before they are added",
}
-- Of those, the samples that are held to the rule all the same.
local function has_rule(name, call)
  if name == "conv3d" or ON_DEVICE then return false end
  if name == "linear" then return type(call[#call]) ~= "table" or not call[#call].activation end
  local shape = call[1].s
  for i = 2, 3 do -- attention: query, key and value with the same batch dims
    for d = 1, #shape - 2 do
      if call[i].s[d] ~= shape[d] then return false end
    end
  end
  return true
end

-- Half the gap between neighbours of the dtype at v.
local function half_gap(v, dtype)
  if v == 0 then return LEAST[dtype] / 2 end
  local exponent = math.floor(math.log(math.abs(v), 2))
  return math.max(2.0^exponent * case.EPS[dtype], LEAST[dtype]) / 2
end

-- The call with its float64 literals in dtype, of values that the 16-bit dtype has.
local function in_dtype(v, dtype, half)
  if type(v) ~= "table" then return v == "float64" and dtype or v end
  if case.is_literal(v) then
    if v.t ~= "float64" then return v end
    return {t = dtype, s = v.s, g = v.g, d = case.values(dm.tensor(v.d, {dtype = half}))}
  end
  local out = {}
  for key, item in pairs(v) do out[key] = in_dtype(item, dtype, half) end
  return out
end

-- Weights of output k, whole multiples of 1/32: 16 bits hold them.
local LARGEST_WEIGHT = 1.3
local function weights(y, k)
  local w = {}
  for i = 1, y:numel() do w[i] = math.floor(32 * (math.sin(1.7 * i + k) + 0.3)) / 32 end
  return case.build(dm, {t = "float64", s = {table.unpack(y.shape)}, d = w})
end

-- The values of a call's outputs, and the gradients of their weighted sum by literal.
local function results(name, call)
  local made, outs, total = {}, {}, nil
  local args = case.decode(dm, call, {grad = true}, made)
  for _, field in ipairs{"grad", "once", "random", "dense", "pointwise"} do args[field] = nil end
  for k, y in ipairs(case.call(dm, name, args)) do
    if y.dtype:find "float" then outs[k] = case.values(y:detach()) end
    if y.requires_grad then
      local part = (y:double() * weights(y, k)):sum()
      total = total and total + part or part
    end
  end
  if total then total:backward() end
  local grads = {}
  for _, pair in ipairs(made) do
    if pair.tensor.grad then grads[pair.literal] = case.values(pair.tensor.grad) end
  end
  return outs, grads
end

-- got: of 16 bits, single: float32, want: float64; extra: what a rounded output may add.
local function check(what, got, single, want, half, extra)
  local top, off = case.magnitude(want), 0
  for i, v in ipairs(want) do
    local d = math.abs(single[i] - v)
    if d > off then off = d end
  end
  for i, v in ipairs(want) do
    local tol = half_gap(v, half) + 2 * off + 2^-22 * top + extra
    local close = math.abs(got[i] - v) <= tol -- false for NaN
    if not close and math.abs(v) < 6e4 then -- below float16's largest
      error(("%s element %d is %.9g, wanted %.9g: off by %.2f half gaps"):format(what, i, got[i], v,
        math.abs(got[i] - v) / half_gap(v, half)), 0)
    end
  end
end

local function run(name, call, half)
  local calls = {}
  for _, t in ipairs{half, "float32", "float64"} do calls[t] = in_dtype(call, t, half) end
  local ok, outs, grads = pcall(results, name, calls[half])
  if not ok and tostring(outs):find "wanted float32 or float64" then return end -- as PyTorch
  assert(ok, outs)
  local outs32, grads32 = results(name, calls.float32)
  local outs64, grads64 = results(name, calls.float64)
  for k, want in pairs(outs64) do
    check("result " .. k, outs[k], outs32[k], want, half, 0)
  end
  if EXCEPT_GRADIENT[name] and not has_rule(name, call) then return end
  -- the same literal in three dtypes
  local function each(a, b, c)
    if case.is_literal(a) then
      local want = grads64[c]
      if want then
        local extra = READS_OUTPUT[name]
          and case.EPS[half] * math.max(2 * case.magnitude(want), LARGEST_WEIGHT / 2) or 0
        check("gradient", grads[a], grads32[b], want, half, extra)
      end
    elseif type(a) == "table" then
      for key in pairs(a) do each(a[key], b[key], c[key]) end
    end
  end
  each(calls[half], calls.float32, calls.float64)
end

-- What is no row: bags of rows, weighted.
local function real(shape, d) return {t = "float64", s = shape, d = d, g = true} end
local bags = {
  {t = "int64", s = {2, 3}, d = {4, 1, 5, 2, 6, 3}},
  real({6, 2}, {0.31, -1.7, 2.21, 0.83, -0.47, 1.13, 1.9, -0.7, 0.57, -2.3, -1.19, 0.91}),
  {mode = "sum", per_sample_weights = real({2, 3}, {0.3, -1.3, 0.7, 1.7, 0.9, -0.6})},
}

describe("16 bits are rounded once by", function()
  for _, half in ipairs{"float16", "bfloat16"} do
    it("embedding_bag, " .. half, function() run("embedding_bag", bags, half) end)
  end
  for _, row in ipairs(dm.ops()) do
    local name = row.name
    if not samples[name] and samples[name .. "_"] then name = name .. "_" end
    local excepted = EXCEPT[name] or ON_DEVICE and EXCEPT_DEVICE[name]
    for i, call in ipairs(not row.hidden and not excepted and samples[name] or {}) do
      for _, half in ipairs(call.random and {} or {"float16", "bfloat16"}) do
        it(("%s, sample %d, %s"):format(name, i, half), function() run(name, call, half) end)
      end
    end
  end
end)

describe("the signs of 16-bit floats", function()
  for _, dtype in ipairs{"float16", "bfloat16"} do
    it("change without their other bits: " .. dtype, function()
      local function same(a, b, what)
        assert.equal(dtype, a.dtype)
        assert.is_true(a:float():nan_to_num{nan = 7}:equal(b:nan_to_num{nan = 7}), what)
        assert.is_true(a:signbit():equal(b:signbit()), what)
      end
      for _, n in ipairs{0, 1, 7, 511, 512, 513, 40000} do
        local x, y = dm.randn(n):to(dtype), dm.randn(n):to(dtype)
        if n >= 7 then
          for i, v in ipairs{0, -0.0, 1 / 0, -1 / 0, 0 / 0, -(0 / 0), 2 ^ -24} do x[i] = v end
        end
        local X, Y = x:float(), y:float()
        same(-x, -X, "neg of " .. n)
        same(x:abs(), X:abs(), "abs of " .. n)
        same(dm.copysign(x, y), dm.copysign(X, Y), "copysign of " .. n)
      end
      local m, r = dm.randn(33, 70):to(dtype), dm.randn(70):to(dtype)
      same(-m:t(), -m:float():t(), "neg across")
      same(dm.copysign(m, r), dm.copysign(m:float(), r:float()), "copysign of a row")
      same(dm.copysign(m[{{}, {1, 68, 3}}], m[{{}, {2, 69, 3}}]),
        dm.copysign(m:float()[{{}, {1, 68, 3}}], m:float()[{{}, {2, 69, 3}}]), "copysign, strided")
      same(-m[1][1], -m:float()[1][1], "neg of one number")
      local other = dtype == "float16" and "bfloat16" or "float16"
      assert.equal("float32", dm.copysign(m, r:to(other)).dtype)
    end)
  end
end)

-- Gradients of several steps are formulas of base/triple.inc, in one pass, which must have the bits
-- of the steps that create_graph records. CUDA's compiler fuses products and sums.
describe("a gradient in one pass is that of its steps:", function()
  local SIZES = {{}, {0}, {511}, {512}, {513}, {3, 700}}
  local HARD = dm.tensor({0, -0.0, 1, -1, 2, 0.5, 1e30, -1e30, 1e-30, 1 / 0, -1 / 0, 0 / 0},
    {dtype = "float64"})

  local function same(want, got)
    if ON_DEVICE then
      local near = {rtol = 1e-2, atol = 1e-2, equal_nan = true}
      assert.is_true(want:float():allclose(got:float(), near))
      return
    end
    assert.are.equal(want.dtype, got.dtype)
    want, got = want:double():flatten(), got:double():flatten()
    local equal = want:eq(got):logical_and(want:signbit():eq(got:signbit()))
    assert.is_true(equal:logical_or(want:isnan():logical_and(got:isnan())):all():item())
  end

  local function compare(f, leaves)
    for _, t in ipairs(leaves) do t:requires_grad_() end
    local y = f(table.unpack(leaves))
    local seed = dm.randn(y.shape):to(y.dtype)
    local function gradients(create_graph)
      return table.pack(dm.autograd.grad({f(table.unpack(leaves))}, leaves,
        {grad_outputs = {seed}, create_graph = create_graph}))
    end
    local want, got = gradients(true), gradients(false)
    for i, t in ipairs(leaves) do
      assert.are.equal(t.dtype, got[i].dtype)
      same(want[i]:detach(), got[i])
    end
  end

  -- The operands of each function, n of them, with a dtype for each.
  local function check_all(n, f, dtypes)
    local function some(size, k) return dm.randn(size):to(dtypes[k]) end
    for _, size in ipairs(SIZES) do
      local leaves = {}
      for k = 1, n do leaves[k] = some(size, k) end
      compare(f, leaves)
    end
    local turned, row, hard = {}, {}, {}
    for k = 1, n do
      turned[k] = k == 2 and some({30, 70}, k):t() or some({70, 30}, k)
      row[k] = k == 2 and some({1, 30}, k) or some({70, 30}, k)
      local shape = {1, 1, 1}
      shape[k] = 12
      hard[k] = HARD:to(dtypes[k]):reshape(shape):expand{12, n > 1 and 12 or 1, n > 2 and 12 or 1}
        :contiguous()
    end
    compare(f, turned)
    compare(f, row)
    if not ON_DEVICE then compare(f, hard) end -- where neighbours of infinities differ by a bit
  end

  for _, case_of in ipairs{
    {"div", 2, function(a, b) return a / b end},
    {"square", 1, function(a) return a ^ 2 end},
    {"cube", 1, function(a) return a ^ 3 end},
    {"another power", 1, function(a) return a ^ 2.5 end},
    {"pow", 2, function(a, b) return a:pow(b) end},
    {"atan2", 2, dm.atan2},
    {"hypot", 2, dm.hypot},
    {"xlogy", 2, dm.xlogy},
    {"xlog1py", 2, dm.special.xlog1py},
    {"logaddexp", 2, dm.logaddexp},
    {"logaddexp2", 2, dm.logaddexp2},
    {"lerp by a number", 2, function(a, b) return a:lerp(b, 0.3) end},
    {"lerp", 3, dm.lerp},
    {"addcmul", 3, function(a, b, c) return dm.addcmul(a, b, c, {value = 0.3}) end},
    {"addcdiv", 3, function(a, b, c) return dm.addcdiv(a, b, c, {value = 0.3}) end},
  } do
    local name, n, f = table.unpack(case_of)
    it(name, function()
      for _, dtype in ipairs{"float64", "float32", "bfloat16", "float16"} do
        check_all(n, f, {dtype, dtype, dtype})
      end
      check_all(n, f, {"bfloat16", "float32", "bfloat16"})
    end)
  end
end)

describe("blocks of bfloat16", function()
  -- More than a block of elements with NaN, infinities, zeros of both signs and subnormals.
  local function numbers(k)
    local x = dm.randn(3, 700) * 3
    x:narrow(2, 7 * k, 5):copy_(dm.tensor{0 / 0, 1 / 0, -1 / 0, -0.0, 1e-39})
    return x:to "bfloat16"
  end

  for _, case_of in ipairs{
    {"square", 1}, {"floor", 1}, {"ceil", 1}, {"trunc", 1}, {"frac", 1}, {"round", 1}, {"sign", 1},
    {"sqrt", 1}, {"rsqrt", 1}, {"reciprocal", 1}, {"relu", 1}, {"leaky_relu", 1}, {"hardtanh", 1},
    {"hardsigmoid", 1}, {"hardswish", 1}, {"hardshrink", 1}, {"softshrink", 1}, {"softsign", 1},
    {"clamp", 1, {min = -0.5, max = 1}}, {"add", 2}, {"sub", 2}, {"mul", 2}, {"div", 2},
    {"maximum", 2}, {"minimum", 2}, {"add", 2, {alpha = 0.3}}, {"lerp", 3}, {"addcmul", 3},
    {"addcdiv", 3}, {"round", 1, {decimals = 2}},
  } do
    local name, n, options = table.unpack(case_of)
    it(name .. " rounds the result of float32 once", function()
      local f = dm[name] or dm.nn.functional[name]
      local x = {numbers(1), numbers(2), numbers(3)}
      local function both(part)
        local got, want = {}, {}
        for i = 1, n do
          got[i] = part(x[i], i)
          want[i] = got[i]:to "float32"
        end
        got[n + 1], want[n + 1] = options, options
        got, want = f(table.unpack(got)):to "bfloat16", f(table.unpack(want)):to "bfloat16"
        local same = got:eq(want):logical_or(got:isnan():logical_and(want:isnan()))
        assert.is_true(same:all():item())
      end
      both(function(t) return t end)
      both(function(t) return t:narrow(2, 2, 650) end)
      both(function(t) return t:t() end)
      both(function(t, i) return i == 1 and t or t:narrow(1, 1, 1) end)
      for _, number in ipairs{0.5, 0.3, -0.0} do -- of which bfloat16 has two
        both(function(t, i) return i == n and n > 1 and dm.tensor{number}:reshape(1, 1) or t end)
        both(function(t, i)
          return i == 1 and t or t:narrow(1, 1, 1):narrow(2, 50, 1):mul(0):add(number)
        end)
      end
    end)
  end
end)

describe("a number and floats", function()
  for _, name in ipairs{"add", "sub", "mul", "div", "maximum", "minimum"} do
    it(name .. " gives the same bits as with the number repeated", function()
      local f, x, v = dm[name], dm.randn(3, 700), dm.tensor{0.3}:reshape(1, 1)
      local whole = v:expand{3, 700}:contiguous()
      local column = dm.randn(3, 1)
      local columns = column:expand{3, 700}:contiguous()
      assert.are.same(f(x, whole):tolist(), f(x, v):tolist())
      assert.are.same(f(whole, x):tolist(), f(v, x):tolist())
      assert.are.same(f(x, columns):tolist(), f(x, column):tolist())
      assert.are.same(f(columns, x):tolist(), f(column, x):tolist())
      local part, parts = x:narrow(2, 3, 600), columns:narrow(2, 1, 600)
      assert.are.same(f(part, parts):tolist(), f(part, column):tolist())
      assert.are.same(f(x:t(), whole:t()):tolist(), f(x:t(), v):tolist())
    end)
  end

  it("takes an element of the tensor that it changes", function()
    local x = dm.randn(2000)
    local want = x + x[1]:item()
    x:add_(x[1])
    assert.is_true(x:eq(want):all():item())
  end)
end)
