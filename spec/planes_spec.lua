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

describe("maxima of windows side by side", function()
  -- Windows of 1 or 2 rows and columns, and adaptive ones of one size, are those of slices.
  local x = dm.randn(2, 3, 6, 9, 8)
  x[1][1][1][2][3], x[2][3][6][9][8], x[1][2][3][1][1] = 0 / 0, 0 / 0, -math.huge
  local function largest(t, dim, n, size)
    local parts = {}
    for i = 1, n do
      parts[i] = t:narrow(dim, (i - 1) * size + 1, size):amax(dim, {keepdim = true})
    end
    return dm.cat(parts, dim)
  end
  local function alike(a, b)
    assert.same({table.unpack(a.shape)}, {table.unpack(b.shape)})
    assert.is_true(dm.allclose(a, b, {rtol = 0, atol = 0, equal_nan = true}))
  end

  for _, dtype in ipairs{"float32", "bfloat16", "float64"} do
    local t = x:to(dtype)

    it("of a fixed size, " .. dtype, function()
      for rows = 1, 2 do
        for columns = 1, 2 do
          local want = largest(largest(t, 4, 9 // rows, rows), 5, 8 // columns, columns)
          local planes = t:reshape(6, 6, 9, 8)
          local y, at = dm.max_pool2d(planes, {rows, columns}, {return_indices = true})
          alike(want:reshape(y.shape), y)
          alike(planes:flatten(3):gather(-1, at:flatten(3)), y:flatten(3))
        end
      end
      alike(largest(t, 5, 4, 2):reshape(-1, 9, 4), dm.max_pool1d(t:reshape(-1, 9, 8), 2))
    end)

    it("adaptive, " .. dtype, function()
      local want = largest(largest(largest(t, 3, 2, 3), 4, 3, 3), 5, 4, 2)
      local y, at = dm.adaptive_max_pool3d(t, {2, 3, 4}, {return_indices = true})
      alike(want, y)
      alike(t:flatten(3):gather(-1, at:flatten(3)), y:flatten(3))
      alike(want, dm.adaptive_max_pool3d(t, {2, 3, 4}))
      local leaf = t:nan_to_num():detach():requires_grad_()
      dm.adaptive_max_pool3d(leaf, {2, 3, 4}):sum():backward()
      assert.equal(2 * 3 * 24, leaf.grad:float():sum():item())
    end)
  end

  it("averages of single elements are new tensors", function()
    local t = dm.randn(1, 2, 3, 4, 5)
    local y = dm.avg_pool3d(t, 1)
    same(t, y)
    y:zero_()
    assert(t:abs():amax():item() > 0)
    local deep = dm.avg_pool3d(t, {3, 1, 1})
    assert.is_true(dm.allclose(t:mean(3, {keepdim = true}), deep))
    local flat = dm.avg_pool3d(t, {1, 2, 2}, {stride = {1, 2, 1}})
    assert.is_true(dm.allclose(dm.avg_pool2d(t[1], 2, {stride = {2, 1}}), flat[1]))
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

  -- What the mode's positions along each dim select, which is what other devices compute.
  local MODES = {
    reflect = function(i, n) return i < 1 and 2 - i or i > n and 2 * n - i or i end,
    replicate = function(i, n) return math.max(1, math.min(i, n)) end,
    circular = function(i, n) return (i - 1) % n + 1 end,
  }
  local function selected(t, pad, mode)
    for k = 1, #pad // 2 do
      local d, before, behind, at = t:dim() - k + 1, pad[2 * k - 1], pad[2 * k], {}
      if mode == "circular" then -- what a negative side cuts off does not come round again
        local from, to = math.min(before, 0), math.min(behind, 0)
        t = t:narrow(d, 1 - from, t.shape[d] + from + to)
        before, behind = before - from, behind - to
      end
      local n = t.shape[d]
      for i = 1 - before, n + behind do at[#at + 1] = MODES[mode](i, n) end
      t = t:index_select(d, dm.tensor(at, {dtype = "int64"}))
    end
    return t
  end

  it("borders hold what their positions select, of any dtype and order of dims", function()
    local _ <close> = dm.device "cpu"
    for mode in pairs(MODES) do
      for _, dtype in ipairs{"float64", "float32", "bfloat16", "int64", "int32", "uint8", "bool"} do
        local t = (dm.randn(3, 4, 5, 6) * 9):to(dtype)
        for _, pad in ipairs{{2, 3}, {0, 0, 3, 1}, {1, 2, 2, 0, 1, 3}, {-2, 1, 1, -1},
          {2, 2, 0, 0, 1, 1, 2, 2}, {4, 0, 0, 0, 0, 3}} do
          same(selected(t, pad, mode), dm.pad(t, pad, {mode = mode}))
          local turned = t:permute{4, 2, 1, 3}
          if pad[8] == nil then same(selected(turned:contiguous(), {1, 1}, mode),
            dm.pad(turned, {1, 1}, {mode = mode})) end
        end
      end
    end
  end)

  it("borders' gradients have one order of sums, whatever the batch and the threads", function()
    local _ <close> = dm.device "cpu"
    local before = dm.get_num_threads()
    for mode in pairs(MODES) do
      for _, dtype in ipairs{"float32", "bfloat16"} do
        local t, pad = dm.randn(6, 5, 70, 61):to(dtype), {9, 7, 3, 8}
        local gy = dm.randn(dm.pad(t, pad, {mode = mode}).shape):to(dtype)
        local function gradient(i)
          local leaf = (i and t[i] or t):clone():requires_grad_()
          dm.pad(leaf, pad, {mode = mode}):backward(i and gy[i] or gy)
          return leaf.grad
        end
        dm.set_num_threads(1)
        local whole = gradient()
        for i = 1, 6 do same(whole[i], gradient(i)) end
        dm.set_num_threads(2)
        same(whole, gradient())
        dm.set_num_threads(before)
      end
    end
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
    -- as PyTorch does: a dim whose size stays is copied, whatever the factor says
    local row = dm.tensor{{{{1, 5, 2.0}}}}
    for _, mode in ipairs{"bilinear", "bicubic"} do
      same(row, dm.interpolate(row, {scale_factor = {1, 1.3}, mode = mode, antialias = true}))
    end
    for dims, mode in ipairs{"linear", "bilinear", "trilinear"} do
      local line = row:reshape(dims == 1 and {1, 1, 3} or dims == 2 and {1, 1, 1, 3}
        or {1, 1, 1, 1, 3}):requires_grad_()
      local z = dm.interpolate(line, {scale_factor = 1.3, mode = mode})
      same(line, z)
      z:backward(dm.ones_like(z))
      same(dm.ones_like(line), line.grad)
    end
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
