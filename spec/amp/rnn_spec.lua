-- Recurrent networks under autocast give the results and gradients of the same network with
-- 16-bit weights and inputs, within rounding.

local dm = require "demilune"
local case = require "spec.case"
local device = require "spec.device"
local amp, nn = dm.amp, dm.nn
local packing = nn.utils.rnn

local T, B, F, H = 3, 4, 5, 6
local LENGTHS = {3, 2, 1, 3} -- of packed sequences
local CLASSES = {"RNN", "GRU", "LSTM"}

local function each_choice(fn) -- layers, bias, batch first, directions
  for layers = 1, 2 do
    for choice = 0, 7 do
      fn{num_layers = layers, bias = choice & 1 == 0, batch_first = choice & 2 == 0,
        bidirectional = choice & 4 == 0}
    end
  end
end

local function leaf(t, dtype) return t:to(dtype):detach():requires_grad_() end

-- y, h, and of an LSTM c.
local function flat(y, hidden)
  if type(hidden) == "table" then return {y, hidden[1], hidden[2], n = 3} end
  return {y, hidden, n = 2}
end

-- The results for x as it is, or packed: then the first is its data.
local function call(net, x, hx, packed, batch_first)
  if not packed then return flat(net(x, {hx = hx})) end
  local out = flat(net(packing.pack_padded_sequence(x, LENGTHS,
    {batch_first = batch_first, enforce_sorted = false}), {hx = hx}))
  out[1] = out[1].data
  return out
end

-- The network of a class with weights of a dtype that hold values of `lp`, its input
-- and state likewise, and what it gives: results, then gradients.
local function run(class, opts, lp, dtypes, region, packed)
  dm.manual_seed(5)
  local net = nn[class](F, H, opts)
  net:to(lp):to(dtypes.weight)
  local x = opts.batch_first and dm.randn(B, T, F) or dm.randn(T, B, F)
  local n = opts.num_layers * (opts.bidirectional and 2 or 1)
  local leaves = {leaf(x:to(lp), dtypes.input)}
  for i = 1, class == "LSTM" and 2 or 1 do
    leaves[i + 1] = leaf(dm.randn(n, B, H):to(lp), dtypes.hidden)
  end
  local hx = leaves[3] and {leaves[2], leaves[3]} or leaves[2]
  local out
  do
    local _ <close> = amp.autocast(region)
    out = call(net, leaves[1], hx, packed, opts.batch_first)
  end
  local total = 0
  for i = 1, out.n do total = total + (out[i]:float() * dm.randn(out[i].shape)):sum() end
  total:backward()
  for _, p in net:named_parameters() do leaves[#leaves + 1] = p end
  return out, leaves
end

local function dtype_mixes(lp, fn)
  for mix = 0, 7 do
    local function of(bit) return mix & bit == 0 and lp or "float32" end
    fn{input = of(1), hidden = of(2), weight = of(4)}
  end
end

-- A control's weight is a 16-bit leaf: the gradients of its T uses are rounded in
-- between, which those of a cast are not. Each of the T - 1 sums and the last rounding
-- may be off by half a gap, of the largest partial sum at most.
local function near(got, want, lp, what)
  local eps = case.EPS[lp]
  local a, b = case.values(got:to(lp)), case.values(want)
  local tolerance = T * eps * case.magnitude(b)
  for i = 1, #b do
    local close = math.abs(a[i] - b[i]) <= tolerance -- false for NaN
    if not close then
      error(("%s: element %d is %.9g, wanted %.9g"):format(what, i, a[i], b[i]), 0)
    end
  end
end

-- Runs every mix in the region against the control of 16 bits alone.
local function matches_control(class, opts, lp, region, packed)
  local same = {input = lp, hidden = lp, weight = lp}
  local off = {enabled = false}
  local want, want_leaves = run(class, opts, lp, same, off, packed)
  dtype_mixes(lp, function(dtypes)
    local what = ("%s in %s, input %s, hidden %s, weight %s"):format(class, lp, dtypes.input,
      dtypes.hidden, dtypes.weight)
    local out, leaves = run(class, opts, lp, dtypes, region, packed)
    assert.equal(want.n, out.n)
    for i = 1, out.n do
      assert.equal(lp, out[i].dtype, what)
      assert.same(case.values(want[i]), case.values(out[i]), what)
    end
    for i, l in ipairs(leaves) do near(l.grad, want_leaves[i].grad, lp, what .. ": gradient") end
  end)
end

describe("recurrent networks under autocast", function()
  for _, class in ipairs(CLASSES) do
    it("" .. class .. " under CUDA's rules equals the float16 control", function()
      each_choice(function(opts)
        matches_control(class, opts, "float16", device.region("cuda", "float16"))
      end)
    end)

    it("" .. class .. " over packed sequences equals the float16 control", function()
      each_choice(function(opts)
        matches_control(class, opts, "float16", device.region("cuda", "float16"), true)
      end)
    end)

    it("" .. class .. " in either dtype, by either device's rules", function()
      local opts = {num_layers = 2, bidirectional = true}
      for _, lp in ipairs{"bfloat16", "float16"} do
        for _, rules in ipairs{"cpu", "cuda"} do
          matches_control(class, opts, lp, device.region(rules, lp))
          matches_control(class, opts, lp, device.region(rules, lp), true)
        end
      end
    end)
  end

  it("an LSTM with 16-bit weights needs a region for a float32 input", function()
    local lp = device.low
    local net, x = nn.LSTM(F, H):to(lp), dm.randn(T, B, F)
    local ok, message = pcall(function() return net(x) end)
    assert.is_false(ok)
    assert.matches("^spec/amp/rnn_spec.lua:%d+: in LSTM", message)
    assert.matches(("x is float32, w_ih %s: all must have one dtype"):format(lp), message, 1, true)
    local y, hidden = amp.autocast({}, function() return net(x) end)
    for _, t in ipairs{y, table.unpack(hidden)} do
      assert.equal(lp, t.dtype)
      assert.is_true(t:isfinite():all():item())
    end
    y:float():sum():backward()
    assert.equal(lp, net.weight_ih_l0.grad.dtype)
  end)

  it("casts each weight once in a region, and trains float32 weights", function()
    local net, x = nn.LSTM(F, H), dm.randn(T, B, F)
    local before = amp.cast_count()
    local y = amp.autocast({}, function()
      net(x)
      return (net(x))
    end)
    assert.equal(4 + 2, amp.cast_count() - before) -- the weights, and x twice
    y:float():sum():backward()
    for _, p in ipairs(net:parameters()) do assert.equal("float32", p.grad.dtype) end
  end)

  it("cells are not on the CPU's list: their products alone are in 16 bits", function()
    local cell, x = nn.GRUCell(F, H), dm.randn(B, F)
    local h = dm.zeros(B, H)
    for _, lp in ipairs{"float16", "bfloat16"} do
      local function dtype(rules)
        return amp.autocast(device.region(rules, lp), function() return cell(x, h) end).dtype
      end
      assert.equal("float32", dtype "cpu")
      assert.equal(lp, dtype "cuda")
    end
  end)

  it("float64 networks are left alone", function()
    local net = nn.GRU(F, H, {dtype = "float64"})
    local y = amp.autocast({}, function() return (net(dm.randn(T, B, F):double())) end)
    assert.equal("float64", y.dtype)
  end)
end)
