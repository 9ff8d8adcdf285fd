-- Lazy modules: each becomes the plain layer at its first call or when a state_dict is loaded,
-- with the bits that layer would have; before that they say what to do.

local dm = require "demilune"
local nn = dm.nn

-- {lazy class, its arguments, plain class, its arguments, shape of an input}
local CASES = {
  {"LazyLinear", {4}, "Linear", {3, 4}, {2, 3}},
  {"LazyLinear", {4, false}, "Linear", {3, 4, false}, {2, 5, 3}},
  {"LazyConv1d", {4, 2, {groups = 2}}, "Conv1d", {6, 4, 2, {groups = 2}}, {2, 6, 5}},
  {"LazyConv2d", {4, 2, {padding = "same", padding_mode = "circular"}}, "Conv2d",
    {3, 4, 2, {padding = "same", padding_mode = "circular"}}, {3, 5, 4}},
  {"LazyConv3d", {2, {1, 2, 2}, 2}, "Conv3d", {3, 2, {1, 2, 2}, 2}, {1, 3, 2, 4, 4}},
  {"LazyConvTranspose1d", {4, 2, {groups = 2}}, "ConvTranspose1d", {6, 4, 2, {groups = 2}},
    {2, 6, 5}},
  {"LazyConvTranspose2d", {4, 2, {bias = false}}, "ConvTranspose2d", {3, 4, 2, {bias = false}},
    {2, 3, 3, 3}},
  {"LazyConvTranspose3d", {2, 2}, "ConvTranspose3d", {3, 2, 2}, {1, 3, 2, 2, 2}},
  {"LazyBatchNorm1d", {}, "BatchNorm1d", {3}, {4, 3}},
  {"LazyBatchNorm2d", {1e-3, 0.5}, "BatchNorm2d", {3, 1e-3, 0.5}, {4, 3, 2, 2}},
  {"LazyBatchNorm3d", {{affine = false}}, "BatchNorm3d", {3, {affine = false}}, {4, 3, 2, 2, 2}},
  {"LazyInstanceNorm1d", {}, "InstanceNorm1d",
    {3, {affine = true, track_running_stats = true}}, {3, 6}},
  {"LazyInstanceNorm2d", {}, "InstanceNorm2d",
    {3, {affine = true, track_running_stats = true}}, {2, 3, 4, 4}},
  {"LazyInstanceNorm3d", {{affine = false}}, "InstanceNorm3d", {3, {track_running_stats = true}},
    {2, 3, 2, 2, 2}},
}

local function same_state(want, got)
  local keys = {}
  for name, t in pairs(want:state_dict()) do
    keys[#keys + 1] = name
    assert.is_true(dm.equal(t, got:state_dict()[name]), name)
  end
  for name in pairs(got:state_dict()) do assert.is_not_nil(want:state_dict()[name]) end
  return keys
end

describe("a lazy module", function()
  for i, c in ipairs(CASES) do
    local lazy_name, lazy_args, name, args, shape = table.unpack(c)
    it(("%d %s becomes %s"):format(i, lazy_name, name), function()
      local lazy, x = nn[lazy_name](table.unpack(lazy_args)), dm.randn(shape)
      assert.equal(lazy_name, lazy.class)
      assert.matches("^" .. lazy_name .. "%(%?", tostring(lazy))
      local copy = lazy:copy()
      dm.manual_seed(5)
      local y = lazy(x)
      dm.manual_seed(5)
      local plain = nn[name](table.unpack(args))
      assert.equal(nn[name], getmetatable(lazy))
      assert.is_true(dm.equal(plain(x), y))
      same_state(plain, lazy)
      assert.equal(tostring(plain), tostring(lazy))
      copy:load_state_dict(plain:state_dict())
      assert.equal(nn[name], getmetatable(copy))
      same_state(plain, copy)
      assert.is_true(dm.equal(plain:eval()(x), copy:eval()(x)))
    end)
  end

  it("trains once it has been called", function()
    local model = nn.Sequential{nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2)}
    model:zero_grad()
    dm.scope(function() model(dm.randn(3, 5)) end)
    local sgd = dm.optim.SGD(model:parameters(), 0.1)
    local before = model[1].weight:detach():clone()
    model(dm.randn(3, 5)):pow(2):sum():backward()
    sgd:step()
    assert.is_false(dm.equal(before, model[1].weight))
    assert.is_true(model[1].weight.requires_grad)
  end)

  it("makes its tensors of a dtype, also after to", function()
    assert.equal("float64", nn.LazyLinear(2, {dtype = "float64"})
      (dm.ones(1, 3, {dtype = "float64"})).dtype)
    local model = nn.Sequential{nn.LazyConv1d(2, 1)}:double()
    model(dm.ones(1, 3, 4, {dtype = "float64"}))
    assert.equal("float64", model[1].weight.dtype)
  end)

  it("becomes plain in no_grad and keeps its mode", function()
    local lazy = nn.LazyBatchNorm1d():eval()
    dm.no_grad(function() lazy(dm.ones(2, 3)) end)
    assert.is_true(lazy.weight.requires_grad)
    assert.is_false(lazy.training)
    assert.equal(0, lazy.num_batches_tracked:item())
  end)

  it("says what to do before", function()
    local model = nn.Sequential{nn.ReLU(), nn.LazyLinear(2)}
    local hint = "LazyLinear %(1%) has no parameters before its first call; hint: call the model"
    assert.refuses(hint, function() dm.optim.SGD(model:parameters(), 0.1) end)
    assert.refuses(hint, function() dm.optim.SGD(model:named_parameters(), 0.1) end)
    assert.refuses(hint, function() model:state_dict() end)
    assert.refuses("missing: 1.weight", function() model:load_state_dict{} end)
    assert.same({"1.weight"}, {table.unpack(model:load_state_dict({}, false).missing_keys)})
    assert.refuses("LazyConv2d: x is {2, 3}, wanted 3 or 4 dims", function()
      nn.LazyConv2d(2, 1)(dm.ones(2, 3))
    end)
    assert.refuses("LazyBatchNorm2d: x is {2, 3}, wanted 4 dims", function()
      nn.LazyBatchNorm2d()(dm.ones(2, 3))
    end)
    assert.refuses("groups = 2 does not divide", function()
      nn.LazyConv1d(2, 1, {groups = 2})(dm.ones(1, 3, 4))
    end)
  end)
end)

describe("layers", function()
  it("have the default dtype", function()
    dm.set_default_dtype "float64"
    local ok, text = pcall(function()
      for _, layer in ipairs{nn.Linear(2, 2), nn.Bilinear(2, 2, 2), nn.Embedding(2, 2),
        nn.EmbeddingBag(2, 2), nn.Conv2d(2, 2, 1), nn.ConvTranspose1d(2, 2, 1), nn.BatchNorm1d(2),
        nn.InstanceNorm1d(2, {affine = true}), nn.LayerNorm(2), nn.RMSNorm(2),
        nn.GroupNorm(1, 2), nn.PReLU(), nn.LSTM(2, 2), nn.GRUCell(2, 2),
        nn.MultiheadAttention(2, 1), nn.TransformerEncoderLayer(2, 1)} do
        for name, p in layer:named_parameters() do
          assert.equal("float64", p.dtype, layer.class .. "." .. name)
        end
      end
      assert.equal("float32", nn.Linear(2, 2, {dtype = "float32"}).weight.dtype)
      local lazy = nn.LazyLinear(2)
      dm.set_default_dtype "float32"
      lazy(dm.ones(1, 2, {dtype = "float64"}))
      assert.equal("float64", lazy.weight.dtype)
    end)
    dm.set_default_dtype "float32"
    assert.is_true(ok, text)
  end)
end)
