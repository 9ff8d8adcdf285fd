-- Convolution, pooling, padding, folding and resizing modules in one, two and three dims give the
-- results of their ops. The values of the ops are in spec/golden/nd.lua.
local dm = require "demilune"
local nn = dm.nn

local function same(a, b)
  assert.same({table.unpack(a.shape)}, {table.unpack(b.shape)})
  assert.is_true(dm.equal(a, b))
end

describe("convolutions", function()
  it("along one, two and three dims", function()
    for dims, shape in ipairs{{2, 4, 7}, {2, 4, 7, 5}, {2, 4, 5, 6, 4}} do
      local name = ("Conv%dd"):format(dims)
      local m = nn[name](4, 6, 3, {stride = 2, padding = 1, groups = 2})
      local x = dm.randn(shape)
      same(dm[("conv%dd"):format(dims)](x, m.weight, m.bias,
        {stride = 2, padding = 1, groups = 2}), m(x))
      assert.matches(("%s(4 -> 6, %s, stride = 2, padding = 1, groups = 2)"):format(name,
        ("x3"):rep(dims):sub(2)), tostring(m), 1, true)
      assert.equal(dims + 2, m.weight:dim())
    end
  end)

  it("padding 'same' keeps the size, in every mode", function()
    local x = dm.randn(1, 2, 6, 7)
    for _, mode in ipairs{"zeros", "reflect", "replicate", "circular"} do
      local m = nn.Conv2d(2, 3, {2, 3}, {padding = "same", padding_mode = mode})
      local y = m(x)
      assert.same({1, 3, 6, 7}, {table.unpack(y.shape)})
      local padded = dm.pad(x, {1, 1, 0, 1}, {mode = mode == "zeros" and "constant" or mode})
      same(dm.conv2d(padded, m.weight, m.bias), y)
    end
    assert.error_matches(function() nn.Conv2d(2, 3, 3, {padding = "same", stride = 2}) end,
      "wants stride 1")
    assert.error_matches(function() nn.Conv1d(2, 3, 3, {padding_mode = "mirror"}) end, "'reflect'")
    assert.error_matches(function() nn.Conv3d(2, 3, {3, 3}) end, "a table of 2, wanted")
  end)

  it("transposed, back to the size that is asked for", function()
    local m = nn.ConvTranspose2d(4, 2, 3, {stride = 2, padding = 1})
    local x = dm.randn(1, 4, 5, 5)
    assert.same({1, 2, 9, 9}, {table.unpack(m(x).shape)})
    local y = m(x, {10, 9})
    assert.same({1, 2, 10, 9}, {table.unpack(y.shape)})
    same(dm.conv_transpose2d(x, m.weight, m.bias,
      {stride = 2, padding = 1, output_padding = {1, 0}}), y)
    assert.error_matches(function() m(x, {11, 9}) end, "wanted 9 to 10")
    assert.equal(7, nn.ConvTranspose1d(4, 2, 3)(x:select(3, 1)):size(-1))
    assert.matches("ConvTranspose2d(4 -> 2, 3x3, stride = 2, padding = 1)", tostring(m), 1, true)
  end)

  it("fall under autocast's 16-bit list", function()
    local device = require("spec.device").type
    local _ <close> = dm.amp.autocast{device_type = device, dtype = "bfloat16"}
    for _, m in ipairs{nn.Conv1d(2, 2, 3), nn.ConvTranspose1d(2, 2, 3)} do
      assert.equal("bfloat16", m(dm.randn(1, 2, 5)).dtype)
    end
    assert.equal("bfloat16", nn.Conv3d(2, 2, 2)(dm.randn(1, 2, 3, 3, 3)).dtype)
    local half = dm.randn(1, 1, 4, 4):bfloat16()
    local listed = device == "cpu" and "float32" or "bfloat16" -- PyTorch's lists differ there
    assert.equal(listed, nn.ReflectionPad2d(1)(half).dtype)
    assert.equal("bfloat16", nn.ZeroPad2d(1)(half).dtype)
    assert.equal(listed, nn.MaxPool3d(1)(half).dtype)
  end)
end)

describe("pools", function()
  it("along one, two and three dims", function()
    for dims, shape in ipairs{{2, 3, 8}, {2, 3, 8, 6}, {2, 3, 4, 6, 4}} do
      local x = dm.randn(shape)
      for _, kind in ipairs{"Max", "Avg"} do
        local op = dm[("%s_pool%dd"):format(kind:lower(), dims)]
        same(op(x, 2, {stride = 1}), nn[("%sPool%dd"):format(kind, dims)](2, {stride = 1})(x))
      end
      local size = {}
      for d = 1, dims do size[d] = d + 1 end
      local y = nn[("AdaptiveAvgPool%dd"):format(dims)](size)(x)
      assert.same(size, {table.unpack(y.shape, 3)})
      if dims < 3 then
        local z, at = nn[("AdaptiveMaxPool%dd"):format(dims)](size, {return_indices = true})(x)
        same(x:flatten(3):gather(-1, at:flatten(3)), z:flatten(3))
      end
    end
  end)
end)

it("pools name what does not fit by the op that was called", function()
  assert.error_matches(function() dm.max_pool3d(dm.ones(1, 1, 2, 4, 4), 3) end,
    "max_pool3d: a window that spans 3 does not fit into depth 2")
  assert.error_matches(function() dm.avg_pool1d(dm.ones(1, 1, 2), 3) end, "avg_pool1d: .* length 2")
end)

describe("layers that move numbers", function()
  local x = dm.arange(1, 16, 1, {dtype = "float32"}):reshape(1, 1, 4, 4)

  it("borders", function()
    same(dm.pad(x, {1, 1, 1, 1}), nn.ZeroPad2d(1)(x))
    same(dm.pad(x, {1, 0, 2, 0}, {value = 3}), nn.ConstantPad2d({1, 0, 2, 0}, 3)(x))
    same(dm.pad(x, {1, 2, 0, 1}, {mode = "reflect"}), nn.ReflectionPad2d{1, 2, 0, 1}(x))
    same(dm.pad(x, {2, 2}, {mode = "replicate"}), nn.ReplicationPad1d(2)(x))
    same(dm.pad(x, {4, 0, 0, 0}, {mode = "circular"}), nn.CircularPad2d{4, 0, 0, 0}(x))
    assert.equal("ConstantPad1d({1, 1}, value = 2)", tostring(nn.ConstantPad1d(1, 2)))
    assert.error_matches(function() nn.ZeroPad2d{1, 2} end, "a table of 4")
    assert.error_matches(function() nn.ReflectionPad2d(4)(x) end, "which the mode cannot fill")
    assert.error_matches(function() dm.pad(x, {1}) end, "wanted two a dim")
    assert.error_matches(function() dm.pad(x, {-3, -2}) end, "leave nothing")
  end)

  it("columns, and back: each position as often as windows hold it", function()
    local columns = nn.Unfold(3, {padding = 1})(x)
    assert.same({1, 9, 16}, {table.unpack(columns.shape)})
    local counts = nn.Fold({4, 4}, 3, {padding = 1})(nn.Unfold(3, {padding = 1})(dm.ones_like(x)))
    same(x * counts, nn.Fold({4, 4}, 3, {padding = 1})(columns))
    assert.error_matches(function() dm.fold(columns, {5, 4}, 3) end, "wanted {n, channels")
  end)

  it("other sizes", function()
    same(x:repeat_interleave(2, 3):repeat_interleave(2, 4), nn.Upsample{scale_factor = 2}(x))
    local y = nn.Upsample{size = {7, 7}, mode = "bilinear", align_corners = true}(x)
    same(x, y:slice(3, 1, 7, 2):slice(4, 1, 7, 2))
    assert.error_matches(function() nn.Upsample{} end, "one of them")
    assert.error_matches(function() dm.interpolate(x, {size = 3, mode = "linear"}) end, "wants 1")
    assert.error_matches(function() dm.interpolate(x, {size = 3, align_corners = true}) end,
      "no corners")
  end)

  it("channels as positions", function()
    local z = dm.randn(2, 8, 3, 5)
    same(z, nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(z)))
    assert.error_matches(function() nn.PixelShuffle(3)(z) end, "must divide the channels")
  end)
end)
