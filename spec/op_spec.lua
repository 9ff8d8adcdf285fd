-- Maths: the gradient of every row of dm.ops() equals finite differences in float64, on
-- contiguous and on transposed inputs, and so does the gradient of the gradient. Every op also
-- accepts strided, 0-dim and empty inputs.

local dm = require "demilune"
local case = require "spec.case"
local samples = require "spec.samples"

-- Central differences of a smooth f: the error is h^2 f''' / 6 + eps f / h, least
-- near h = eps^(1/3). 1e-5 h leaves 1e-10 of either, times the size of f.
local STEP = 0x1p-17
local TOLERANCE = 1e-6

-- The tensors of a call that want a gradient, and all of them.
local function decode(call, how)
  local made, leaves = {}, {}
  local args = case.decode(dm, call, how, made)
  for _, name in ipairs{"grad", "once", "random", "dense", "pointwise",
    "plain"} do args[name] = nil end
  for _, pair in ipairs(made) do
    if pair.literal.g then leaves[#leaves + 1] = pair end
  end
  return args, leaves, made
end

-- Literals of a call, in an order of our own, so that data can be varied.
local function differentiable(call, found, seen)
  found, seen = found or {}, seen or {}
  for _, v in pairs(call) do
    if case.is_literal(v) then
      if v.g and not seen[v] then
        seen[v] = true
        found[#found + 1] = v
      end
    elseif type(v) == "table" then
      differentiable(v, found, seen)
    end
  end
  return found
end

-- A fixed weight for element i of output k, so that no two gradients are alike.
local function weights(k, n)
  local w = {}
  for i = 1, n do w[i] = math.sin(1.7 * i + k) + 0.3 end
  return w
end

local function weight_tensor(y, k)
  local shape = {table.unpack(y.shape)}
  return case.build(dm, {t = "float64", s = shape, d = weights(k, y:numel())})
end

-- Sum of the weighted float64 outputs, as a Lua number.
local function objective(name, call)
  local args = decode(call)
  local outs, total = case.call(dm, name, args), 0
  for k, y in ipairs(outs) do
    if y.dtype == "float64" then
      local w = weights(k, y:numel())
      for i, v in ipairs(case.values(y)) do total = total + v * w[i] end
    end
  end
  return total
end

-- The same sum as a tensor with history; nil if no output depends on a leaf.
local function recorded(name, args)
  local total
  for k, y in ipairs(case.call(dm, name, args)) do
    if y.requires_grad then
      local part = (y * weight_tensor(y, k)):sum()
      total = total and total + part or part
    end
  end
  return total
end

local function tensors_of(leaves)
  local xs = {}
  for i, pair in ipairs(leaves) do xs[i] = pair.tensor end
  return xs
end

local function values_or_zeros(g, literal)
  if g then return case.values(g) end
  local zeros = {}
  for i = 1, #literal.d do zeros[i] = 0 end
  return zeros
end

-- Analytic gradients by literal.
local function analytic(name, call, how)
  local args, leaves = decode(call, how)
  local total = recorded(name, args)
  assert(total, "no output requires a gradient")
  total:backward()
  local out = {}
  for _, pair in ipairs(leaves) do
    assert(pair.tensor.grad, "an input got no gradient")
    assert.same(pair.literal.s, {table.unpack(pair.tensor.grad.shape)})
    out[pair.literal] = case.values(pair.tensor.grad)
  end
  return out
end

-- d f / d literal.d[i] by central differences.
local function slope(literal, i, f)
  local at = literal.d[i]
  literal.d[i] = at + STEP
  local up = f()
  literal.d[i] = at - STEP
  local down = f()
  literal.d[i] = at
  return (up - down) / (2 * STEP)
end

local function near(got, want, what)
  local close = math.abs(got - want) <= TOLERANCE * (1 + math.abs(want)) -- false for NaN
  if not close then
    error(("%s: gradient %.12g, finite difference %.12g"):format(what, got, want), 0)
  end
end

local function label(literal, i)
  return ("input {%s}, element %d"):format(table.concat(literal.s, ", "), i)
end

local function gradcheck(name, call, how)
  local grads = analytic(name, call, how)
  for _, literal in ipairs(differentiable(call)) do
    for i = 1, #literal.d do
      local want = slope(literal, i, function() return objective(name, call) end)
      near(grads[literal][i], want, label(literal, i))
    end
  end
end

-- First gradients with their own history, weighted and summed: a number to
-- difference, and a tensor to run backward from.
local function gradient_sum(name, call, create_graph)
  local args, leaves = decode(call, {grad = true})
  local total = recorded(name, args)
  local grads = table.pack(dm.autograd.grad(total, tensors_of(leaves),
    {create_graph = create_graph, allow_unused = true}))
  local order = {}
  for k, literal in ipairs(differentiable(call)) do order[literal] = k end
  local number, tensor = 0, nil
  for j, pair in ipairs(leaves) do
    local k = order[pair.literal] + 10
    local w = weights(k, #pair.literal.d)
    for i, v in ipairs(values_or_zeros(grads[j], pair.literal)) do number = number + v * w[i] end
    if create_graph and grads[j] and grads[j].requires_grad then
      local part = (grads[j] * weight_tensor(grads[j], k)):sum()
      tensor = tensor and tensor + part or part
    end
  end
  return number, tensor, leaves
end

local function second_order(name, call)
  local _, tensor, leaves = gradient_sum(name, call, true)
  if tensor then tensor:backward() end
  for _, pair in ipairs(leaves) do
    local literal = pair.literal
    local got = values_or_zeros(tensor and pair.tensor.grad, literal)
    for i = 1, #literal.d do
      local want = slope(literal, i, function() return (gradient_sum(name, call, false)) end)
      near(got[i], want, "second order, " .. label(literal, i))
    end
  end
end

-- Everything an op returns, as literals.
local function results(name, call, how)
  local args = decode(call, how)
  local out = {}
  for _, y in ipairs(case.call(dm, name, args)) do
    out[#out + 1] = {t = y.dtype, s = {table.unpack(y.shape)}, d = case.values(y)}
  end
  return out
end

-- The call on other shapes: every tensor 0-dim, or of no elements.
local function reshaped(call, shape, n)
  local out = {}
  for key, v in pairs(call) do
    if case.is_literal(v) then
      v = {t = v.t, s = shape, d = {table.unpack(v.d, 1, n)}, g = v.g}
    elseif type(v) == "table" then
      v = reshaped(v, shape, n)
    end
    out[key] = v
  end
  return out
end

local function runs_on(name, call, shape, n)
  local args = decode(reshaped(call, shape, n), {grad = call.grad ~= false})
  for _, y in ipairs(case.call(dm, name, args)) do
    assert.same(shape, {table.unpack(y.shape)})
    if y.requires_grad then y:backward{gradient = dm.ones_like(y)} end
  end
end

-- Sums may run in another order on other strides.
local function assert_same_results(got, want)
  for i, y in ipairs(want) do
    assert.equal(y.t, got[i].t)
    assert.same(y.s, got[i].s)
    for j, v in ipairs(y.d) do
      local close = math.abs(v - got[i].d[j]) <= 1e-13 * (1 + math.abs(v))
      assert.is_true(v == got[i].d[j] or close, "strided result differs")
    end
  end
end

local function check(name, call, row)
  if call.random or call.plain then
    assert(case.call(dm, name, (decode(call)))[1] ~= nil)
    return
  end
  if not call.dense then
    assert_same_results(results(name, call, {strided = true}), results(name, call))
  end
  if call.pointwise then
    runs_on(name, call, {}, 1)
    runs_on(name, call, {0, 3}, 0)
  end
  if call.grad == false then return end
  gradcheck(name, call, {grad = true})
  if not call.dense then gradcheck(name, call, {grad = true, strided = true}) end
  if not call.once and not row.no_double then second_order(name, call) end
end

describe("dm.ops()", function()
  local rows = dm.ops()

  it("is a list of rows with names", function()
    assert.is_true(#rows > 100)
    for _, row in ipairs(rows) do assert.equal("string", type(row.name)) end
  end)

  local x = dm.zeros(1)
  for _, row in ipairs(rows) do
    if not row.hidden then
      -- fill and the like have only the form that changes its operand
      local name = row.name
      if not samples[name] and samples[name .. "_"] then name = name .. "_" end
      it(name .. " has a sample in spec/samples.lua", function() assert.is_table(samples[name]) end)
      it(name .. " is a function or a method", function() assert.is_truthy(dm[name] or x[name]) end)
      for i, call in ipairs(samples[name] or {}) do
        it(("%s, sample %d"):format(name, i), function() check(name, call, row) end)
      end
    end
  end
end)

-- The name by which samples know an op that is written in Lua.
local function key_of(row)
  if not row.as_function then return "x:" .. row.name end
  return row.fn and row.name or row.name .. "_"
end

describe("ops written in Lua", function()
  local ops = require "demilune.ops"

  for _, row in ipairs(ops.rows) do
    local name = key_of(row)
    it(name .. " has a sample in spec/samples.lua", function() assert.is_table(samples[name]) end)
    for i, call in ipairs(samples[name] or {}) do
      it(("%s, sample %d"):format(name, i), function() check(name, call, row) end)
    end
  end

  it("have other names, which are the same function", function()
    for name, op in pairs(ops.aliases) do
      local fn, method = dm[op], dm.methods[op]
      assert.is_true(fn ~= nil or method ~= nil, op)
      assert.equal(fn, dm[name])
      assert.equal(method, dm.methods[name])
    end
    assert.equal(dm.methods.clamp_, dm.methods.clip_)
  end)

  it("refuse what they do not know, at the caller's line", function()
    local x = dm.ones(2, 2)
    assert.refuses("op_spec.lua:%d+: fmax: other: tensor expected, got number",
      function() dm.fmax(x, 1) end)
    assert.refuses("fmax: tensor 'other' is missing", function() dm.fmax(x) end)
    assert.refuses("cov: unknown option 'corection'; did you mean 'correction'",
      function() x:cov{corection = 1} end)
    assert.refuses("msort: argument 2 is one too many", function() x:msort(1) end)
    assert.refuses("select_scatter: 'index' is missing", function() x:select_scatter(x[1], 1) end)
    assert.refuses("a tensor has no 'clamp_mim'; did you mean 'clamp_min'",
      function() return x.clamp_mim end)
  end)
end)
