-- scaled_dot_product_attention equals its definition with the matrix of weights in full, on
-- lengths that span several blocks. The modules give PyTorch's values and gradients
-- (spec/golden/transformer.lua).

local dm = require "demilune"
local DEVICE = require("spec.device").type
local case = require "spec.case"
local nn = dm.nn
local sdpa = dm.scaled_dot_product_attention

local function fails(text, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "wanted an error: " .. text)
  assert.matches(text, message, 1, true)
  assert.matches("^spec/attention_spec.lua:%d+: ", message)
end

local function shape(t) return {table.unpack(t.shape)} end

local function distance(a, b)
  assert.same(shape(b), shape(a))
  return (a - b):abs():max():item()
end

local function leaf(...) return dm.randn(...):requires_grad_() end

-- The definition of the op, with the matrix of weights in full.
local function by_definition(q, k, v, o)
  local L, S = q:size(-2), k:size(-2)
  local scores = q:matmul(k:transpose(-1, -2)) * (o.scale or 1 / math.sqrt(q:size(-1)))
  if o.is_causal then
    scores = dm.where(dm.ones(L, S):tril():to "bool", scores, -math.huge)
  elseif o.attn_mask then
    scores = scores + o.attn_mask
  end
  return scores:softmax(-1):matmul(v)
end

local function gradients(fn, inputs, weight)
  local y = fn(table.unpack(inputs))
  return y, dm.autograd.grad((y * weight):sum(), inputs)
end

-- Both ways, on 150 queries and 1300 keys: three blocks of queries.
local function compare(dtype, tolerance, opts)
  local how = {dtype = dtype}
  local q, k, v = leaf(2, 2, 150, 8, how), leaf(2, 2, 1300, 8, how), leaf(2, 2, 1300, 5, how)
  local inputs, weight = {q, k, v}, dm.randn(2, 2, 150, 5, how)
  local got = {gradients(function(a, b, c) return sdpa(a, b, c, opts) end,
    inputs, weight)}
  local want = {gradients(function(a, b, c) return by_definition(a, b, c, opts) end, inputs,
    weight)}
  for i = 1, 4 do assert.is_true(distance(got[i], want[i]) < tolerance) end
end

describe("scaled_dot_product_attention", function()
  it("is its definition over several blocks", function()
    dm.manual_seed(1)
    for dtype, tolerance in pairs{float32 = 2e-5, float64 = 1e-12} do
      compare(dtype, tolerance, {})
      compare(dtype, tolerance, {is_causal = true})
      compare(dtype, tolerance, {attn_mask = dm.randn(150, 1300, {dtype = dtype}), scale = 0.2})
    end
  end)

  it("holds no matrix of weights, on either way", function()
    local L = 2048
    local q, k, v = leaf(1, 1, L, 4), leaf(1, 1, L, 4), leaf(1, 1, L, 4)
    collectgarbage()
    local before = dm.memory_allocated(DEVICE)
    dm.reset_peak_memory_stats(DEVICE)
    sdpa(q, k, v, {is_causal = true}):sum():backward()
    -- the weights would take 16 MiB; 4 L floats each: y, three gradients, copies
    assert.is_true(dm.max_memory_allocated(DEVICE) - before < 8 * 4 * 4 * L)
  end)

  it("keeps no result of its own for the gradient on the CPU", function()
    if DEVICE ~= "cpu" then return pending "the kernels there read it" end
    local q = leaf(1, 1, 4096, 16)
    local y = sdpa(q, q, q, {is_causal = true})
    local loss, before = y:sum(), dm.memory_allocated()
    y:free()
    assert.equal(4096 * 16 * 4, before - dm.memory_allocated())
    loss:backward()
    assert.is_true(q.grad:isfinite():all():item())
  end)

  it("gives the same bits with any number of threads", function()
    local q, k, v = dm.randn(2, 3, 200, 16), dm.randn(2, 3, 200, 16), dm.randn(2, 3, 200, 16)
    local threads, results = dm.get_num_threads(), {}
    for i, n in ipairs{1, 3} do
      dm.set_num_threads(n)
      local a, b, c = q:clone():requires_grad_(), k:clone():requires_grad_(), v
      local y = sdpa(a, b, c, {is_causal = true})
      y:square():sum():backward()
      results[i] = {y, a.grad, b.grad}
    end
    dm.set_num_threads(threads)
    for i = 1, 3 do assert.equal(0, distance(results[1][i], results[2][i])) end
  end)

  -- Heads of 12: cuDNN, which rounds the weights of the keys as well, takes multiples of 8.
  it("rounds once in 16 bits", function()
    for dtype, gap in pairs{bfloat16 = 0x1p-8, float16 = 0x1p-11} do
      local q, k, v = dm.randn(2, 70, 12), dm.randn(2, 90, 12), dm.rand(2, 90, 12)
      q, k, v = q:to(dtype), k:to(dtype), v:to(dtype)
      local y = sdpa(q, k, v)
      assert.equal(dtype, y.dtype)
      local wide = sdpa(q:float(), k:float(), v:float())
      assert.is_true((y:float() - wide):abs():le(wide * gap):all():item())
    end
  end)

  it("gives 0 where no key is seen, and NaN where a number is lost", function()
    local q, k, v = leaf(2, 4), leaf(3, 4), leaf(3, 4)
    local mask = dm.tensor{{true, false, true}, {false, false, false}}
    for _, m in ipairs{mask, dm.where(mask, 0.0, -math.huge)} do
      local y = sdpa(q, k, v, {attn_mask = m})
      assert.same({0, 0, 0, 0}, y[2]:totable())
      q.grad = nil
      y:sum():backward()
      assert.same({0, 0, 0, 0}, q.grad[2]:totable())
      assert.is_true(q.grad:isfinite():all():item())
    end
    local lost = q:detach():clone()
    lost[{2, 1}] = 0 / 0
    assert.is_true(sdpa(lost, k, v, {attn_mask = dm.where(mask, 0.0, -math.huge)})[2]:isnan()
      :all():item())
  end)

  it("drops weights and scales the others, by the generator", function()
    local S, p = 100, 0.25
    local q, k = dm.zeros(4, S, 8), dm.randn(4, S, 8)
    local function run()
      dm.manual_seed(5)
      return sdpa(q, k, dm.eye(S):expand(4, S, S), {dropout_p = p})
    end
    local y = run()
    local kept = y:gt(0):float():mean():item()
    assert.is_true(math.abs(kept - (1 - p)) < 5 * math.sqrt(p * (1 - p) / y:numel()))
    assert.is_true(math.abs(y:max():item() - 1 / S / (1 - p)) < 1e-7)
    assert.equal(0, distance(y, run()))
    assert.not_equal(0, distance(y, sdpa(q, k, dm.eye(S):expand(4, S, S), {dropout_p = p})))
  end)

  it("has the gradient of what it dropped, as its composition has", function()
    local q, k, v = leaf(2, 140, 8), leaf(2, 33, 8), leaf(2, 33, 8)
    local grads = {}
    for i, create_graph in ipairs{false, true} do
      dm.manual_seed(6)
      local loss = sdpa(q, k, v, {dropout_p = 0.3, is_causal = true}):square():sum()
      grads[i] = {dm.autograd.grad(loss, {q, k, v}, {create_graph = create_graph})}
    end
    for i = 1, 3 do assert.is_true(distance(grads[1][i], grads[2][i]) < 1e-4) end
  end)

  it("refuses what does not fit, and says what would", function()
    local q, k = dm.zeros(2, 4, 3, 8), dm.zeros(2, 2, 5, 8)
    fails("query is float32 and key is bfloat16: wanted one dtype", sdpa, q, k:bfloat16(), k)
    fails("query is int64, wanted a float dtype", sdpa, q:long(), k, k)
    fails("query {8}, key {8}, value {8}: wanted {..., L, E}", sdpa, dm.zeros(8), dm.zeros(8),
      dm.zeros(8))
    fails("value {2, 2, 4, 8}: wanted {..., L, E}", sdpa, q, k, dm.zeros(2, 2, 4, 8))
    fails("dim 2 does not broadcast; hint: enable_gqa", sdpa, q, k, k)
    fails("dim 2 does not broadcast, nor are", sdpa, dm.zeros(2, 3, 3, 8), k, k,
      {enable_gqa = true})
    fails("enable_gqa wants 3 to 15 dims", sdpa, dm.zeros(3, 8), dm.zeros(3, 8), dm.zeros(3, 8),
      {enable_gqa = true})
    k = q
    fails("attn_mask is int64, wanted bool", sdpa, q, k, k, {attn_mask = dm.zeros(3, 3):long()})
    fails("attn_mask and is_causal given", sdpa, q, k, k,
      {attn_mask = dm.zeros(3, 3), is_causal = true})
    fails("dropout_p = 1.5 given, wanted 0 to 1", sdpa, q, k, k, {dropout_p = 1.5})
    fails("{3, 4}", sdpa, q, k, k, {attn_mask = dm.zeros(3, 4)})
  end)
end)

-- ---- modules ----

-- Results and gradients are sums of a few dozen terms of size 1 at most.
local SCALE = {m = 4, n = 64, grad = true, e = 0}

local function check_module(c)
  local args = {table.unpack(c.args)}
  args[#args + 1] = c.opts
  local net, state = nn[c.class](table.unpack(args)), {}
  for name, literal in pairs(c.state) do state[name] = case.build(dm, literal) end
  net:load_state_dict(state)
  if c.class ~= "MultiheadAttention" then net:eval() end
  local inputs, call = {}, {}
  for key, value in pairs(c.call) do call[key] = value end
  for name, literal in pairs(c.masks) do call[name] = case.build(dm, literal) end
  for i, literal in ipairs(c.inputs) do inputs[i] = case.build(dm, literal):requires_grad_() end
  local given = {table.unpack(inputs)}
  local x = inputs[1]
  if c.class == "MultiheadAttention" and #inputs == 1 then given = {x, x, x} end
  given[#given + 1] = call
  local out = table.pack(net(table.unpack(given)))
  local total = 0
  for i, l in ipairs(c.out) do
    case.check(out[i], l, "sum", SCALE, "result " .. i)
    total = total + (out[i] * case.build(dm, {t = l.t, s = l.s, d = c.gout[i]})):sum()
  end
  assert.is_nil(out[#c.out + 1])
  total:backward()
  for i, l in ipairs(c.inputs) do
    case.check(inputs[i].grad, {t = l.t, s = l.s, d = l.g}, "sum", SCALE, "input gradient " .. i)
  end
  for name, p in net:named_parameters() do
    local l = c.state[name]
    case.check(p.grad, {t = l.t, s = l.s, d = l.g}, "sum", SCALE, name .. "'s gradient")
  end
end

describe("golden transformer", function()
  for _, c in ipairs(require("spec.golden").load "transformer".cases) do
    it(c.name, function() check_module(c) end)
  end
end)

describe("MultiheadAttention", function()
  it("starts as PyTorch's", function()
    dm.manual_seed(2)
    local net = nn.MultiheadAttention(64, 4)
    local bound = math.sqrt(6 / (64 + 3 * 64))
    local w = net.in_proj_weight:abs():max():item()
    assert.is_true(w <= bound and w > 0.99 * bound)
    w = net.out_proj.weight:abs():max():item()
    assert.is_true(w <= 1 / 8 and w > 0.99 / 8)
    assert.equal(0, net.in_proj_bias:abs():max():item() + net.out_proj.bias:abs():max():item())
  end)

  it("is causal without a mask when asked", function()
    local net, x = nn.MultiheadAttention(8, 2), dm.randn(5, 1, 8)
    local mask = nn.Transformer.generate_square_subsequent_mask(5)
    local want, weights = net(x, x, x, {attn_mask = mask})
    for _, opts in ipairs{{is_causal = true}, {is_causal = true, need_weights = false}} do
      local y, w = net(x, x, x, opts)
      assert.is_true(distance(y, want) < 1e-6)
      assert.equal(opts.need_weights ~= false, w ~= nil)
    end
    assert.equal(0, weights:triu(2):select(2, 1):sum():item())
  end)

  it("drops out in training only", function()
    local net, x = nn.MultiheadAttention(8, 2, {dropout = 0.5}), dm.randn(5, 1, 8)
    for _, wanted in ipairs{true, false} do
      local opts = {need_weights = wanted}
      net:train()
      assert.not_same(net(x, x, x, opts):totable(), net(x, x, x, opts):totable())
      net:eval()
      assert.same(net(x, x, x, opts):totable(), net(x, x, x, opts):totable())
    end
  end)

  it("gives 16 bits under autocast, weights by softmax's rule", function()
    local weights_dtype = DEVICE == "cuda" and "float32" -- on CUDA's list of float32 results
    local net, x = nn.MultiheadAttention(8, 2), dm.randn(5, 1, 8)
    local opts = {attn_mask = nn.Transformer.generate_square_subsequent_mask(5)}
    for _, dtype in ipairs{"bfloat16", "float16"} do
      local _ <close> = dm.amp.autocast{device_type = DEVICE, dtype = dtype}
      for _, wanted in ipairs{true, false} do
        opts.need_weights = wanted
        local y, weights = net(x, x, x, opts)
        assert.equal(dtype, y.dtype)
        assert.equal(wanted and (weights_dtype or dtype) or nil, weights and weights.dtype)
      end
    end
  end)

  it("refuses what does not fit, and says what would", function()
    local net, x = nn.MultiheadAttention(8, 2), dm.randn(5, 3, 8)
    fails("MultiheadAttention: 3 heads do not divide embed_dim = 8", nn.MultiheadAttention, 8, 3)
    fails("dropout is 2, wanted a number from 0 to 1", nn.MultiheadAttention, 8, 2, {dropout = 2})
    fails("query is missing, wanted a tensor", net)
    fails("value is {8}, wanted 3 dims", net, x, x, dm.zeros(8))
    fails("attn_mask has shape {4, 5}, wanted {5, 5}", net, x, x, x,
      {attn_mask = dm.zeros(4, 5)})
    fails("key_padding_mask has shape {5, 3}, wanted {3, 5}", net, x, x, x,
      {key_padding_mask = dm.zeros(5, 3)})
    fails("unknown option 'mask'", net, x, x, x, {mask = dm.zeros(5, 5)})
  end)
end)

describe("a stack of layers", function()
  it("has copies of its layer, with equal values and tensors of their own", function()
    local layer = nn.TransformerEncoderLayer(8, 2, {dim_feedforward = 4, activation = "gelu"})
    layer.norm1.bias.requires_grad = false
    local net = nn.TransformerEncoder(layer, 2, {norm = nn.LayerNorm(8)})
    local names = {}
    for name in net:named_parameters() do names[#names + 1] = name end
    assert.equal(2 * 12 + 2, #names)
    assert.equal("layers.0.self_attn.in_proj_weight", names[1])
    local a, b = net.layers[1].linear1.weight, net.layers[2].linear1.weight
    assert.equal(0, distance(a, b))
    assert.is_true(b.is_parameter and b.requires_grad and not rawequal(a, b))
    assert.is_false(net.layers[2].norm1.bias.requires_grad)
    dm.no_grad(function() a:zero_() end)
    assert.not_equal(0, b:abs():max():item())
    assert.not_equal(0, layer.linear1.weight:abs():max():item())
    fails("TransformerEncoder: encoder_layer is 3, wanted a module", nn.TransformerEncoder, 3, 2)
    fails("activation is 'tanh', wanted 'relu', 'gelu' or a function", nn.TransformerEncoderLayer,
      8, 2, {activation = "tanh"})
  end)
end)

-- Results lie in memory as their operands do, so that heads are joined by a view.
describe("heads that a view has split", function()
  local function cases(body)
    for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
      for _, o in ipairs{{3, 2, 5, 7, 8}, {2, 3, 140, 300, 16}, {1, 2, 9, 1, 8}, {2, 4, 1, 6, 8},
        {2, 2, 33, 33, 24, is_causal = true}} do
        body(dtype, o.is_causal, table.unpack(o))
      end
    end
  end

  it("give what contiguous ones give, with the same bits", function()
    cases(function(dtype, is_causal, n, h, l, s, e)
      dm.manual_seed(5)
      -- (N, H, L, E), as (N, L, H, E) in memory or contiguous
      local function split(rows) return dm.randn(n, rows, h, e):to(dtype):transpose(2, 3) end
      local inputs, copies = {split(l), split(s), split(s)}, {}
      for i, x in ipairs(inputs) do
        inputs[i] = x:detach():requires_grad_()
        copies[i] = x:detach():contiguous():requires_grad_()
      end
      local o = {is_causal = is_causal}
      local y = sdpa(inputs[1], inputs[2], inputs[3], o)
      local want = sdpa(copies[1], copies[2], copies[3], o)
      assert.is_true(y:equal(want))
      assert.is_true(y:transpose(2, 3):is_contiguous() and want:is_contiguous())
      local g = dm.randn(n, h, l, e):to(dtype)
      y:backward(g)
      want:backward(g)
      for i = 1, 3 do assert.is_true(inputs[i].grad:equal(copies[i].grad), dtype .. i) end
    end)
  end)

  it("of one tensor, whose gradient is that of its parts", function()
    local x = leaf(2, 6, 3, 2, 8)
    local q, k, v = table.unpack(x:transpose(2, 4):unbind(3))
    local y = sdpa(q, k, v)
    local copy = x:detach():clone():requires_grad_()
    local want = sdpa(copy:select(3, 1):transpose(2, 3):contiguous(),
      copy:select(3, 2):transpose(2, 3):contiguous(),
      copy:select(3, 3):transpose(2, 3):contiguous())
    assert.is_true(y:equal(want))
    local g = dm.randn(2, 2, 6, 8)
    y:backward(g)
    want:backward(g)
    assert.is_true(distance(copy.grad, x.grad) < (DEVICE == "cpu" and 1e-7 or 1e-5))
  end)
end)
