-- Norms, dropout, embeddings, containers and parametrizations as modules equal the ops that
-- define them. The values of the ops are in spec/golden/layers.lua.
local dm = require "demilune"
local nn, F = dm.nn, dm.nn.functional

local function same(a, b)
  assert.same({table.unpack(a.shape)}, {table.unpack(b.shape)})
  assert.is_true(dm.equal(a, b))
end

local function near(a, b, most)
  assert.same({table.unpack(a.shape)}, {table.unpack(b.shape)})
  assert.is_true((a - b):abs():amax():item() < (most or 1e-5))
end

describe("norms", function()
  it("of a sample are batch norms of it alone, with a batch or without", function()
    for dims, shape in ipairs{{2, 3, 5}, {2, 3, 4, 2}, {2, 3, 2, 2, 3}} do
      local m = nn[("InstanceNorm%dd"):format(dims)](3, {affine = true})
      local x = dm.randn(shape)
      m.weight.data:copy_(dm.rand(3))
      local y = m(x)
      for n = 1, 2 do
        near(dm.batch_norm(x:narrow(1, n, 1), {weight = m.weight, bias = m.bias, training = true}),
          y:narrow(1, n, 1))
      end
      near(y[2], m(x[2]))
      assert.error_matches(function() m(dm.randn(3)) end, "N or not")
    end
    assert.equal(0, #nn.InstanceNorm2d(3):parameters())
    assert.error_matches(function() nn.InstanceNorm1d(3)(dm.randn(2, 3, 1)) end,
      "one value per channel")
  end)

  it("of a sample keep running statistics and use them when not training", function()
    local m = nn.InstanceNorm1d(2, {track_running_stats = true, momentum = 0.5})
    local x = dm.tensor{{{0.0, 2.0}, {1.0, 1.0}}, {{4.0, 6.0}, {3.0, 3.0}}}
    m(x)
    assert.same({1.5, 1.0}, m.running_mean:totable()) -- half of the means 1, 5 and 1, 3
    assert.same({1.5, 0.5}, m.running_var:totable())  -- half of 1 and of 2, 0
    m:eval()
    near(dm.batch_norm(x, m.running_mean, m.running_var), m(x))
    assert.same({1.5, 1.0}, m.running_mean:totable())
    assert.is_not_nil(m:state_dict().running_var)
  end)

  it("of channels side by side are those of planes, one channel or many", function()
    for _, shape in ipairs{{37, 21}, {5, 3}, {40, 32}, {2, 16}, {17, 1}} do
      for _, dtype in ipairs{"float32", "float64", "bfloat16"} do
        local n, c = table.unpack(shape)
        local x, g = dm.randn(shape, {dtype = dtype}), dm.randn(shape, {dtype = dtype})
        local w, b = dm.rand(c) + 0.5, dm.randn(c)
        local mean, var = dm.randn(c), dm.rand(c) + 0.5
        -- the same numbers, so that a channel's lie side by side
        local function plane(t) return t:t():contiguous():reshape{1, c, n} end
        local function back(t) return t:reshape{c, n}:t() end
        for _, training in ipairs{true, false} do
          local a, p = x:clone():requires_grad_(), plane(x):requires_grad_()
          local named = {weight = w, bias = b, training = training}
          local stats = training and {} or {mean, var}
          local y = a:batch_norm(stats[1], stats[2], named)
          local z = p:batch_norm(stats[1], stats[2], named)
          local most = dtype == "bfloat16" and 0.04 or 1e-5
          near(y, back(z), most)
          y:backward(g)
          z:backward(plane(g))
          near(a.grad, back(p.grad), most)
        end
      end
    end
  end)

  it("of spaces, roots and neighbours", function()
    local x = dm.randn(2, 4, 3, 2, 2)
    near(dm.batch_norm(x, {training = true}), nn.BatchNorm3d(4)(x))
    assert.error_matches(function() nn.BatchNorm3d(4)(x[1]) end, "{N, C, D, H, W}")
    local m = nn.RMSNorm(6, {eps = 1e-3})
    local v = dm.randn(3, 6)
    near(v / (v * v):mean(-1, {keepdim = true}):add(1e-3):sqrt(), m(v))
    assert.equal("RMSNorm(6)", m:describe())
    assert.equal(0, #nn.RMSNorm({2, 3}, {elementwise_affine = false}):parameters())
    same(dm.local_response_norm(x, 3, {alpha = 0.5}), nn.LocalResponseNorm(3, {alpha = 0.5})(x))
    assert.error_matches(function() dm.rms_norm(v, {5}) end, "rms_norm: x is {3, 6}")
  end)

  it("of roots take 16-bit numbers through float32", function()
    local x = dm.full({1, 8}, 300.0, {dtype = "float16"}) -- its square is no float16
    near(dm.ones(1, 8), dm.rms_norm(x, {8}):float(), 1e-3)
  end)
end)

describe("dropout", function()
  -- Each channel is all zeros or all 2.
  local function whole_channels(name, shape, lead)
    local m = nn[name](0.5)
    local y = m(dm.ones(shape)):reshape(lead, -1)
    same(y:amax(2), y:amin(2))
    local kept = y:amax(2):sum():item() / 2
    assert.is_true(kept > 0.3 * lead and kept < 0.7 * lead, name)
    for _, v in ipairs(y:amax(2):totable()) do assert.is_true(v == 0 or v == 2) end
    same(dm.ones(shape), m:eval()(dm.ones(shape)))
  end

  it("takes whole channels", function()
    dm.manual_seed(3)
    whole_channels("Dropout1d", {8, 32, 5}, 256)
    whole_channels("Dropout1d", {256, 5}, 256)
    whole_channels("Dropout2d", {8, 32, 3, 2}, 256)
    whole_channels("Dropout2d", {8, 32, 3}, 256)
    whole_channels("Dropout3d", {8, 32, 2, 2, 2}, 256)
    whole_channels("Dropout3d", {256, 2, 2, 2}, 256)
    assert.error_matches(function() dm.dropout1d(dm.ones(2)) end, "wanted 2 or 3 dims")
    assert.error_matches(function() dm.dropout2d(dm.ones(1, 2, 2, 2), {p = 1.5}) end, "0 to 1")
  end)

  it("passes its mask on to the gradient", function()
    local x = dm.ones(4, 8, 3):requires_grad_()
    local y = dm.dropout1d(x)
    y:sum():backward()
    same(y.data, x.grad)
  end)

  it("to selu's limit keeps mean and variance", function()
    dm.manual_seed(5)
    local x = dm.randn(200, 200)
    local m = nn.AlphaDropout(0.3)
    local y = m(x)
    assert.is_true(math.abs(y:mean():item()) < 0.03)
    assert.is_true(math.abs(y:var():item() - 1) < 0.05)
    same(x, m:eval()(x))
    local z = nn.FeatureAlphaDropout(0.5)(dm.ones(8, 16, 4))
    same(z:amax(3), z:amin(3))
    same(x, dm.alpha_dropout(x)) -- not in training unless asked for, as in PyTorch
  end)
end)

describe("bilinear, shuffled and unflattened", function()
  it("are one op each", function()
    local m = nn.Bilinear(3, 4, 5)
    local u, v = dm.randn(2, 3), dm.randn(2, 4)
    near(dm.einsum("bi,oij,bj->bo", u, m.weight, v) + m.bias, m(u, v))
    assert.is_true(m.weight:abs():amax():item() <= 1 / math.sqrt(3))
    assert.equal("Bilinear(3, 4 -> 5)", m:describe())
    assert.error_matches(function() m(u, u) end, "bilinear: x1 has shape {2, 3}, x2 {2, 3}")
    assert.error_matches(function() m(u:half(), v) end, "one dtype")
    local y = dm.amp.autocast({device_type = "cpu", dtype = "bfloat16"}, function()
      return m(u, v)
    end)
    assert.equal("float32", y.dtype)
  end)

  it("move numbers only", function()
    local x = dm.arange(6):float():reshape(1, 6, 1)
    assert.same({1, 4, 2, 5, 3, 6}, nn.ChannelShuffle(2)(x):reshape(-1):totable())
    assert.error_matches(function() dm.channel_shuffle(x, 4) end, "divide dim 2")
    local y = nn.Unflatten(2, {2, -1})(x)
    assert.same({1, 2, 3, 1}, {table.unpack(y.shape)})
    assert.same({1, 6, 1, 1}, {table.unpack(nn.Unflatten(-1, {1, 1})(x).shape)})
    assert.error_matches(function() nn.Unflatten(4, {1, 1})(x) end, "dim 4 is out of range")
  end)
end)

describe("tables of vectors", function()
  it("Embedding may divide gradients by how often a row is looked up", function()
    local m = nn.Embedding(4, 3, {padding_idx = 4, scale_grad_by_freq = true})
    local y = m(dm.tensor({{1, 3}, {3, 2}, {3, 4}}, {dtype = "int64"}))
    y:retain_grad()
    local gy = dm.arange(1, 18):float():reshape(3, 2, 3)
    y:backward(gy)
    -- PyTorch's
    assert.same({{1, 2, 3}, {10, 11, 12}, {8, 9, 10}, {0, 0, 0}}, m.weight.grad:totable())
    assert.same(gy:totable(), y.grad:totable())
  end)

  it("norms do without a bias", function()
    for _, m in ipairs{nn.BatchNorm1d(4, {bias = false}), nn.LayerNorm(4, {bias = false}),
      nn.GroupNorm(2, 4, {bias = false}),
      nn.InstanceNorm1d(4, {affine = true, bias = false})} do
      local x = dm.randn(2, 4, 4)
      local names = {}
      for name in m:named_parameters() do names[#names + 1] = name end
      assert.same({"weight"}, names)
      local y = m(x)
      m.weight.data:mul_(2)
      assert.is_true(dm.allclose(m(x), y * 2))
    end
  end)

  it("shorten the rows that are looked up, in place", function()
    local m = nn.Embedding(4, 3, {max_norm = 1})
    m.weight.data:fill_(2)
    local y = m(dm.tensor({2, 4, 2}, {dtype = "int64"}))
    near(dm.full({3, 3}, 1 / math.sqrt(3)), y)
    same(dm.full({3}, 2.0), m.weight.data[1])
    near(dm.ones(2), m.weight.data:index_select(1, dm.tensor({2, 4}, {dtype = "int64"}))
      :norm{dim = 2})
    y:sum():backward()
    assert.same({0, 2, 0, 1}, m.weight.grad:select(2, 1):totable())
  end)

  it("sum, average and compare bags of rows", function()
    local w = dm.tensor{{1.0, -1.0}, {2.0, 5.0}, {4.0, 0.0}}:requires_grad_()
    local ids = dm.tensor({1, 2, 3, 3}, {dtype = "int64"})
    local offsets = dm.tensor({1, 3, 3}, {dtype = "int64"}) -- the second bag is empty
    local function bag(mode) return F.embedding_bag(ids, w, offsets, {mode = mode}) end
    assert.same({{3, 4}, {0, 0}, {8, 0}}, bag "sum":totable())
    assert.same({{1.5, 2}, {0, 0}, {4, 0}}, bag "mean":totable())
    assert.same({{2, 5}, {0, 0}, {4, 0}}, bag "max":totable())
    bag "mean":sum():backward()
    assert.same({{0.5, 0.5}, {0.5, 0.5}, {1, 1}}, w.grad:totable())
    local rows = ids:reshape(2, 2)
    assert.same({{3, 4}, {8, 0}}, F.embedding_bag(rows, w, {mode = "sum"}):totable())
    assert.same({{2, 5}, {4, 0}}, F.embedding_bag(rows, w, {mode = "max"}):totable())
    local shares = dm.tensor{{1.0, 0.5}, {0.0, 1.0}}
    assert.same({{2, 1.5}, {4, 0}}, F.embedding_bag(rows, w, {mode = "sum",
      per_sample_weights = shares}):totable())
    local ends = dm.tensor({1, 3, 5}, {dtype = "int64"})
    assert.same({{3, 4}, {8, 0}}, F.embedding_bag(ids, w, ends, {mode = "sum",
      include_last_offset = true}):totable())
    assert.error_matches(function() F.embedding_bag(ids, w) end, "wanted {T} with offsets")
    assert.error_matches(function() bag "median" end, "'median'")
    local m = nn.EmbeddingBag(5, 2)
    same(m.weight:index_select(1, ids):mean(1), m(ids:reshape(1, 4))[1])
  end)
end)

describe("an adaptive softmax", function()
  -- every weight sin(1 + k), sin(2 + k), ... for parameter k; numbers by PyTorch 2.15
  local function made()
    local m, k = nn.AdaptiveLogSoftmaxWithLoss(4, 7, {2, 4},
      {div_value = 2, head_bias = true, dtype = "float64"}), 0
    for _, p in m:named_parameters() do
      local at = dm.arange(1, p:numel(), {dtype = "float64"}) + k
      p.data:copy_(dm.sin(at):reshape(p.shape))
      k = k + 1
    end
    return m, dm.cos(dm.arange(1, 16, {dtype = "float64"})):reshape(4, 4)
  end
  local labels = dm.tensor({1, 4, 7, 5}, {dtype = "int64"})

  it("is PyTorch's", function()
    local m, x = made()
    local logs, loss = m(x, labels)
    near(dm.tensor({-0.6115117114663684, -4.505856987231076, -5.058093687666076,
      -3.453872120513243}, {dtype = "float64"}), logs, 1e-12)
    loss:backward()
    near(dm.tensor({0.16477947754876407, 0.24955770848685127, 0.10489373313646544,
      -0.13620905671735212}, {dtype = "float64"}), m.head.weight.grad[1], 1e-12)
    near(dm.tensor({0.10708854018069296, 0.1024944511440545, -0.20958299132474745},
      {dtype = "float64"}), m.tail[2][2].weight.grad:sum(2), 1e-12)
    assert.same({1, 1, 2, 1}, m:predict(x):totable())
  end)

  it("agrees with the probabilities of all classes", function()
    local m, x = made()
    local all = m:log_prob(x)
    near(dm.ones_like(labels):to("float64"), all:exp():sum(2), 1e-12)
    near(all:gather(2, labels:unsqueeze(2)):squeeze(2), (m(x, labels)), 1e-12)
    near(all[{2, 4}], (m(x[2], labels[2])), 1e-12)
  end)

  it("says what it wants", function()
    local m, x = made()
    assert.error_matches(function() m(x, labels + 1) end, "wanted 1 to 7")
    assert.error_matches(function() m(x, labels:narrow(1, 1, 3)) end, "wanted {N, features}")
    assert.error_matches(function() nn.AdaptiveLogSoftmaxWithLoss(4, 7, {4, 2}) end,
      "rising whole numbers from 1 to 6")
  end)
end)

describe("lists of parameters", function()
  it("are registered under PyTorch's names", function()
    local m = nn.ParameterList{dm.ones(2), dm.zeros(3)}:append(dm.ones(1))
    local names = {}
    for name in m:named_parameters() do names[#names + 1] = name end
    assert.same({"0", "1", "2"}, names)
    assert.equal(3, #m)
    local owner = nn.Module()
    owner.p = m
    owner.d = nn.ParameterDict{b = dm.ones(1), a = dm.zeros(1)}
    local state = owner:state_dict()
    assert.is_not_nil(state["p.0"])
    assert.is_not_nil(state["d.b"])
    state["p.1"] = dm.full({3}, 7.0)
    owner:load_state_dict(state)
    assert.same({7, 7, 7}, owner.p[2]:totable())
    assert.error_matches(function() nn.ParameterList{1} end, "wanted a tensor")
    assert.error_matches(function() m() end, "no forward")
  end)
end)

describe("weights made anew", function()
  local function keys(m)
    local names = {}
    for name in pairs(m:state_dict()) do names[#names + 1] = name end
    table.sort(names)
    return names
  end

  it("from a length and a direction", function()
    local plain = nn.Linear(3, 4)
    local m = nn.utils.weight_norm(plain:copy())
    local x = dm.randn(2, 3)
    near(plain(x), m(x))
    assert.same({"bias", "weight_g", "weight_v"}, keys(m))
    assert.same({4, 1}, {table.unpack(m.weight_g.shape)})
    m.weight_g.data:mul_(2)
    local y = m(x)
    near((plain(x) - plain.bias) * 2 + plain.bias, y)
    y:sum():backward()
    -- the gradient has no part along v
    near(dm.zeros(4), (m.weight_v.grad * m.weight_v):sum(2))
    assert.is_nil(m.weight.is_parameter or nil)
    local copy = m:copy()
    copy.weight_g.data:zero_()
    near(plain.bias.data:expand(2, 4), copy(x))
    near(y, m(x))
    nn.utils.remove_weight_norm(copy)
    assert.same({"bias", "weight"}, keys(copy))
    near(plain.bias.data:expand(2, 4), copy(x))
    assert.error_matches(function() nn.utils.remove_weight_norm(plain) end, "no weight_norm")
    assert.error_matches(function() nn.utils.weight_norm(plain, {name = "wait"}) end, "'wait'")
    assert.error_matches(function() nn.utils.weight_norm(plain, {dim = 3}) end, "dim is 3")
    assert.same({"bias", "weight"}, keys(plain))
  end)

  it("of one length, and along another dim", function()
    local conv = nn.ConvTranspose1d(2, 3, 4)
    local x = dm.randn(1, 2, 5)
    local y = conv(x)
    nn.utils.weight_norm(conv, {dim = 2})
    assert.same({1, 3, 1}, {table.unpack(conv.weight_g.shape)})
    near(y, conv(x))
    nn.utils.remove_weight_norm(conv)
    nn.utils.weight_norm(conv, {dim = "all"})
    assert.equal(0, conv.weight_g:dim())
    near(y, conv(x))
  end)

  it("divided by the largest singular value", function()
    dm.manual_seed(2)
    local m = nn.Linear(3, 3, {bias = false})
    m.weight.data:copy_(dm.tensor{{3.0, 0.0, 0.0}, {0.0, -5.0, 0.0}, {0.0, 0.0, 1.0}})
    local weight = m.weight.data:clone()
    nn.utils.spectral_norm(m, {n_power_iterations = 30})
    assert.same({"weight_orig", "weight_u", "weight_v"}, keys(m))
    local x = dm.randn(2, 3)
    near(x:matmul(weight:t()) / 5, m(x))
    assert.equal(1, #m:parameters())
    m(x):sum():backward()
    assert.is_not_nil(m.weight_orig.grad)
    m:eval()
    local u = m.weight_u:clone()
    m(x)
    same(u, m.weight_u)
    nn.utils.remove_spectral_norm(m)
    assert.same({"weight"}, keys(m))
    near(weight / 5, m.weight)
  end)
end)

describe("initial values", function()
  it("stand at right angles", function()
    for _, shape in ipairs{{3, 5}, {5, 3}, {4, 2, 2}} do
      local t = nn.init.orthogonal_(dm.empty(shape), {gain = 2}):reshape(shape[1], -1)
      local q = t:size(1) <= t:size(2) and t or t:t()
      near(dm.eye(q:size(1)) * 4, q:matmul(q:t()))
    end
    assert.error_matches(function() nn.init.orthogonal_(dm.empty(3)) end, "2 or more dims")
  end)

  it("hand on, or are few", function()
    local w = nn.init.dirac_(dm.empty(4, 2, 3, 3), 2)
    local x = dm.randn(1, 4, 5, 5)
    near(x, dm.conv2d(x, w, {padding = 1, groups = 2}))
    same(dm.eye(2, 3), nn.init.eye_(dm.empty(2, 3)))
    local t = nn.init.sparse_(dm.empty(10, 4), 0.25)
    assert.same({3, 3, 3, 3}, t:eq(0):sum(1):totable())
    assert.error_matches(function() nn.init.sparse_(t, 2) end, "0 to 1")
    assert.error_matches(function() nn.init.eye_(dm.empty(3)) end, "wanted 2 dims")
  end)
end)

describe("summary", function()
  local function model()
    return nn.Sequential{nn.Conv2d(1, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(),
      nn.Flatten(), nn.Linear(4 * 8 * 8, 10)}
  end

  it("tells what each layer gives and costs", function()
    local m = model()
    m[2].training = false
    local rows = m:summary({2, 1, 8, 8}, {print = false})
    assert.equal(5, #rows)
    assert.same({2, 4, 8, 8}, rows[1].shape)
    assert.equal("[1]", rows[1].name)
    assert.equal(4 * 9 + 4, rows[1].parameters)
    assert.equal(2 * 36 * 2 * 64, rows[1].flops)
    assert.equal(2 * 4 * 64 * 4, rows[3].bytes)
    assert.equal(2 * 2560 * 2, rows[5].flops)
    assert.equal(40 + 8 + 2570, rows.total.parameters)
    assert.equal(4 * 2618, rows.total.parameter_bytes)
    local text = tostring(rows)
    assert.matches("{2, 10}       float32        2570    80 B  10.2 k\n", text, 1, true)
    assert.matches("2618 parameters (2618 trained), 10.5 kB; outputs 8.3 kB; 19.5 kFLOPs forward",
      text, 1, true)
    assert.is_true(m.training and not m[2].training)
    assert.same({0, 0, 0, 0}, m[2].running_mean:totable())
    assert.is_false(m[1]._has_hooks)
  end)

  it("tells the dtypes inside a region, and counts shared parameters once", function()
    local layer = nn.Linear(4, 4)
    local m = nn.Sequential{layer, layer}
    layer.bias.requires_grad = false
    local region = {device_type = require("spec.device").type, dtype = "bfloat16"}
    local rows = dm.amp.autocast(region, function()
      return m:summary({{3, 4}}, {print = false})
    end)
    assert.equal("bfloat16", rows[2].dtype)
    assert.equal(3 * 4 * 2, rows[2].bytes)
    assert.equal(20, rows.total.parameters)
    assert.equal(16, rows.total.trainable)
    local lstm = nn.LSTM(3, 5, {bidirectional = true})
    assert.equal(2 * lstm:summary({7, 2, 3}, {print = false}).total.flops,
      lstm:summary({7, 4, 3}, {print = false}).total.flops)
    assert.equal(2 * 14 * 2 * (20 * 3 + 20 * 5),
      lstm:summary(dm.ones(7, 2, 3), {print = false}).total.flops)
    assert.error_matches(function() m:summary() end, "input is missing")
    assert.error_matches(function() m:summary{2, 3} end, "Linear")
    assert.is_false(layer._has_hooks)
  end)
end)

describe("EmbeddingBag", function()
  it("takes offsets and weights by name", function()
    local bag, ids = nn.EmbeddingBag(5, 3, {mode = "sum"}), dm.tensor{1, 2, 5}
    local offsets, weights = dm.tensor{1, 3}, dm.tensor{1, 2, 3.0}
    local want = bag(ids, offsets, weights)
    assert.is_true(want:equal(bag(ids, {offsets = offsets, per_sample_weights = weights})))
    assert.is_true(want:equal(bag(ids, offsets, {per_sample_weights = weights})))
    assert.error_matches(function() bag(ids, {offset = offsets}) end, "offsets")
  end)

  it("divides gradients by how often an id comes", function()
    local ids = dm.tensor({2, 3, 2, 5, 2}, {dtype = "int64"})
    local offsets = dm.tensor({1, 4}, {dtype = "int64"})
    -- PyTorch's: row 2 comes twice in a bag of three ids and once in one of two
    local sum, mean = {0.0, 1, 1, 0, 1}, {0.0, (2 / 3 + 1 / 2) / 3, 1 / 3, 0, 1 / 2}
    for mode, want in pairs{sum = sum, mean = mean} do
      local bag = nn.EmbeddingBag(5, 3, {mode = mode, scale_grad_by_freq = true})
      bag(ids, offsets):sum():backward()
      near(dm.tensor(want):unsqueeze(2):expand(5, 3), bag.weight.grad)
    end
    assert.error_matches(function()
      nn.EmbeddingBag(5, 3, {mode = "max", scale_grad_by_freq = true})(ids, offsets)
    end, "scale_grad_by_freq goes with")
  end)
end)

describe("fusion", function()
  local W = {dtype = "float64"}
  local function filled(layer)
    layer.weight.data:copy_(dm.tensor({{1.0, 2}, {3, 4}}, W):view(layer.weight.shape))
    layer.bias.data:copy_(dm.tensor{0.125, -1})
    return layer:eval()
  end
  local function norm_of(n, mean, var, weight, bias)
    local bn = nn.BatchNorm1d(n, W)
    bn.running_mean:copy_(dm.tensor(mean))
    bn.running_var:copy_(dm.tensor(var))
    bn.weight.data:copy_(dm.tensor(weight))
    bn.bias.data:copy_(dm.tensor(bias))
    return bn:eval()
  end
  local bn = norm_of(2, {1, -2}, {4, 0.25}, {3, -1}, {0.5, 0.25})
  local BIAS = {-0.8124983593780761, -1.7499600011999599}
  local BIAS_ALONE = {-0.9999981250035157, -3.7499200023999197}
  local function close(want, got) near(dm.tensor(want, W), got:flatten(), 1e-14) end

  -- all values are PyTorch's
  it("merges a norm into convolutions and linear layers", function()
    local by_row = {1.4999981250035157, 2.9999962500070314, -5.99988000359988, -7.9998400047998395}
    local by_column = {1.4999981250035157, -3.9999200023999197, 4.499994375010547,
      -7.9998400047998395}
    for class, want in pairs{Conv1d = by_row, ConvTranspose1d = by_column, Linear = by_row} do
      local layer = class == "Linear" and nn.Linear(2, 2, W) or nn[class](2, 2, 1, W)
      local fuse = nn.utils[class == "Linear" and "fuse_linear_bn_eval" or "fuse_conv_bn_eval"]
      local fused = fuse(filled(layer), bn)
      close(want, fused.weight)
      close(BIAS, fused.bias)
      assert.is_true(fused.bias.requires_grad)
      assert.equal(class, fused.class)
      assert.same({1, 2, 3, 4}, layer.weight:flatten():totable())
      layer.bias = nil
      layer.weight:requires_grad_(false)
      fused = fuse(layer, bn)
      close(BIAS_ALONE, fused.bias)
      assert.is_false(fused.bias.requires_grad or fused.weight.requires_grad)
    end
    local one = norm_of(1, {2}, {4}, {1}, {0})
    local layer = filled(nn.Linear(2, 2, W))
    local fused = nn.utils.fuse_linear_bn_eval(layer, one)
    close({0.49999937500117186, 0.9999987500023437, 1.4999981250035157, 1.9999975000046875},
      fused.weight)
    close({-0.9374988281271972, -1.4999981250035157}, fused.bias)
    layer.bias = nil
    close({-0.9999987500023437, -0.9999987500023437},
      nn.utils.fuse_linear_bn_eval(layer, one).bias)
  end)

  it("computes what both did, in groups and without weights of the norm", function()
    for _, affine in ipairs{true, false} do
      for _, layer in ipairs{nn.Conv2d(4, 6, 3, {groups = 2, dtype = "float64"}),
        nn.ConvTranspose2d(4, 6, 3, {groups = 2, stride = 2, dtype = "float64"}),
        nn.ConvTranspose2d(4, 6, 3, {bias = false, dtype = "float64"})} do
        local norm = nn.BatchNorm2d(6, {affine = affine, dtype = "float64"})
        norm(dm.randn(4, 6, 3, 3, W) * 3 + 1)
        layer, norm = layer:eval(), norm:eval()
        local x = dm.randn(2, 4, 5, 5, W)
        near(norm(layer(x)), nn.utils.fuse_conv_bn_eval(layer, norm)(x))
      end
    end
    local half = nn.utils.fuse_conv_bn_eval(nn.Conv1d(2, 2, 1):to "bfloat16":eval(),
      nn.BatchNorm1d(2):eval())
    assert.equal("bfloat16", half.weight.dtype)
    assert.equal("bfloat16", half.bias.dtype)
  end)

  it("refuses what cannot be merged, at the caller's line", function()
    local function refuses(text, name, ...)
      local given = table.pack(...)
      assert.refuses("layers_spec.lua:%d+: " .. name .. ": " .. text, function()
        nn.utils[name](table.unpack(given, 1, given.n))
      end)
    end
    local conv, linear = nn.Conv1d(2, 2, 1):eval(), nn.Linear(2, 2):eval()
    refuses("conv is in training mode; hint", "fuse_conv_bn_eval", nn.Conv1d(2, 2, 1), bn)
    refuses("bn is in training mode; hint", "fuse_conv_bn_eval", conv, nn.BatchNorm1d(2))
    refuses("bn is 3, wanted a module", "fuse_linear_bn_eval", linear, 3)
    refuses("conv has 2 channels out, bn 3", "fuse_conv_bn_eval", conv, nn.BatchNorm1d(3):eval())
    refuses("linear has 2 features out, bn 3", "fuse_linear_bn_eval", linear,
      nn.BatchNorm1d(3):eval())
    refuses("bn is a BatchNorm1d without running statistics", "fuse_conv_bn_eval", conv,
      nn.BatchNorm1d(2, {track_running_stats = false}):eval())
    refuses("linear computes relu", "fuse_linear_bn_eval",
      nn.Linear(2, 2, {activation = "relu"}):eval(), bn)
    refuses("the weight of Conv1d is no parameter; hint", "fuse_conv_bn_eval",
      nn.utils.weight_norm(nn.Conv1d(2, 2, 1)):eval(), bn)
    refuses("the weight {2, 2, 1} has 2 channels in dim 1, bn_rm 3", "fuse_conv_bn_weights",
      conv.weight, nil, dm.ones(3), dm.ones(3), 1e-5)
    refuses("the weight {2, 2} has 2 features, bn_rm 3", "fuse_linear_bn_weights",
      linear.weight, nil, dm.ones(3), dm.ones(3), 1e-5)
  end)
end)
