-- Ops that read or write at positions given by tensors (grids, indices, splits, bags): modules
-- and error messages. Values are in spec/golden/positions.lua.
local dm = require "demilune"
local nn, F = dm.nn, dm.nn.functional

local function ids(...) return dm.tensor({...}, {dtype = "int64"}) end
local function rows(t) return t:totable() end

describe("a grid", function()
  it("of the identity gives the image back", function()
    for _, shape in ipairs{{2, 3, 4, 5}, {1, 2, 3, 4, 2}} do
      local n, dims = shape[1], #shape - 2
      local theta = dm.eye(dims, dims + 1):expand(n, dims, dims + 1)
      local x = dm.randn(shape)
      for _, align in ipairs{true, false} do
        local grid = F.affine_grid(theta, shape, {align_corners = align})
        local y = F.grid_sample(x, grid, {align_corners = align, padding_mode = "border"})
        assert.is_true(y:is_contiguous())
        assert.is_true((y - x):abs():amax():item() < 1e-5)
      end
    end
  end)

  -- Samples of planes, and of volumes of one plane, which are composed of gathered rows.
  it("reads planes as it reads volumes, with all gradients", function()
    local x, grid = dm.randn(2, 11, 5, 7), dm.rand(2, 13, 17, 2) * 3 - 1.5
    grid[{1, 1, 1, 1}], grid[{1, 1, 2, 2}], grid[{2, 3, 1, 1}] = 0 / 0, math.huge, -1e30
    local seed = dm.randn(2, 11, 13, 17)
    local function results(shape, z, how, create_graph)
      local a = x:reshape(shape):requires_grad_()
      local g = (z and dm.cat({grid, dm.zeros(2, 13, 17, 1)}, -1):unsqueeze(2) or grid:clone())
        :requires_grad_()
      local y = F.grid_sample(a, g, how)
      local da, dg = dm.autograd.grad({y}, {a, g},
        {grad_outputs = {seed:reshape(y:size())}, create_graph = create_graph})
      local finite = dg:isfinite()
      return y:detach():reshape(seed:size()), da:detach():reshape(x:size()),
        finite:where(dg:detach(), dm.zeros(1)):narrow(-1, 1, 2):reshape(grid:size())
    end
    for _, padding in ipairs{"zeros", "border", "reflection"} do
      for _, align in ipairs{true, false} do
        local how = {padding_mode = padding, align_corners = align}
        local y, da, dg = results({2, 11, 5, 7}, false, how)
        local want, want_da, want_dg = results({2, 11, 1, 5, 7}, true, how)
        assert.is_true(y:equal(want))
        assert.is_true(da:allclose(want_da, 1e-4, 1e-5))
        assert.is_true(dg:allclose(want_dg, 1e-4, 1e-4))
        local _, graph_da, graph_dg = results({2, 11, 5, 7}, false, how, true)
        assert.is_true(da:allclose(graph_da, 1e-4, 1e-5))
        assert.is_true(dg:allclose(graph_dg, 1e-4, 1e-4))
      end
    end
  end)

  it("keeps a region's coordinates in float32", function()
    local grid = dm.amp.autocast({device_type = "cpu", dtype = "bfloat16"}, function()
      return F.affine_grid(dm.eye(2, 3):unsqueeze(1), {1, 1, 3, 300})
    end)
    assert.equal("float32", grid.dtype)
    assert.is_true(math.abs(grid[{1, 1, 1, 1}]:item() + 299 / 300) < 1e-6)
  end)

  it("says what it wants", function()
    local x = dm.zeros(1, 2, 3, 3)
    local function refused(message, ...)
      local args = table.pack(...)
      assert.error_matches(function() F.grid_sample(table.unpack(args)) end, message, 1, true)
    end
    refused("wanted 1 of 2 dims with 2 numbers", x, dm.zeros(1, 2, 2, 3))
    refused("wanted (N,C,H,W)", x[1], dm.zeros(1, 2, 2, 2))
    refused("is none of", x, dm.zeros(1, 2, 2, 2), {padding_mode = "edge"})
    assert.error_matches(function() F.affine_grid(dm.zeros(1, 2, 2), {1, 1, 2, 2}) end,
      "wanted {1, 2, 3}", 1, true)
  end)
end)

describe("index_put", function()
  it("changes its operand where it ends in _, and keeps what it refuses", function()
    local x = dm.zeros(2, 3)
    local y = x:index_put({ids(1, 2), ids(3, -3)}, dm.tensor{5, 7.0})
    assert.same({{0, 0, 5}, {7, 0, 0}}, rows(y))
    assert.same({{0, 0, 0}, {0, 0, 0}}, rows(x))
    assert.is_true(rawequal(x, x:index_put_({ids(1, 1), ids(2, 2)}, 1, {accumulate = true})))
    assert.same({{0, 2, 0}, {0, 0, 0}}, rows(x))
    local function refused(message, ...)
      local args = table.pack(...)
      assert.error_matches(function() x:index_put_(table.unpack(args)) end, message, 1, true)
      assert.same({{0, 2, 0}, {0, 0, 0}}, rows(x))
    end
    refused("no index given", {{}}, 1)
    refused("too many indices", {ids(1), ids(1), ids(1)}, 1)
    refused("do not broadcast", {ids(1, 2)}, dm.zeros(2))
    refused("did you mean 'accumulate'", {ids(1)}, 1, {acumulate = true})
    refused("table of indices expected", ids(1), 1)
    refused("tensor or {} expected", {1}, 1)
    refused("a mask of shape", {dm.tensor{true, false, true}}, 1)
    if x.device == "cpu" then refused("wanted 1 to 3", {ids(1), ids(4)}, 1) end
  end)

  it("hands gradients to what was written and what stayed", function()
    local x, v = dm.ones(3):requires_grad_(), dm.ones(2):requires_grad_()
    dm.index_put(x, {ids(1, 3)}, v):mul(dm.tensor{2, 3, 5.0}):sum():backward()
    assert.same({0, 3, 0}, rows(x.grad))
    assert.same({2, 5}, rows(v.grad))
  end)
end)

describe("splits", function()
  it("are views", function()
    local x = dm.zeros(5)
    local parts = x:tensor_split(2)
    parts[1]:fill_(1)
    assert.same({1, 1, 1, 0, 0}, rows(x))
    assert.equal(2, #parts)
    assert.equal(3, #dm.tensor_split(x, {2, 4}))
  end)

  it("say what they want", function()
    local x = dm.zeros(4, 3)
    assert.error_matches(function() x:tensor_split(0) end, "0 chunks")
    assert.error_matches(function() x:tensor_split(1 << 40) end, "1099511627776 chunks of dim 1")
    assert.error_matches(function() x:tensor_split{0} end, "a cut at 0")
    assert.error_matches(function() x:hsplit(2) end, "in 2 equal chunks")
    assert.error_matches(function() x:dsplit(1) end, "wanted 3 dims")
    assert.error_matches(function() dm.zeros(3):vsplit(1) end, "wanted 2 dims")
  end)
end)

describe("slices", function()
  it("are compared where there are some", function()
    assert.error_matches(function() dm.zeros(2, 0):unique{dim = 1} end, "no slices")
    local x = dm.tensor({{2, 1}, {1, 9}, {2, 1}}, {dtype = "int64"})
    local values, inverse, counts = x:unique{dim = 1, return_inverse = true, return_counts = true}
    assert.same({{1, 9}, {2, 1}}, rows(values))
    assert.same({2, 1, 2}, rows(inverse))
    assert.same({1, 2}, rows(counts))
  end)
end)

describe("fractional windows", function()
  it("are drawn by the generator, as many as a size or a ratio says", function()
    local x = dm.randn(2, 3, 9, 8)
    local pool = nn.FractionalMaxPool2d(2, {output_ratio = {0.5, 0.75}, return_indices = true})
    dm.manual_seed(3)
    local y, at = pool(x)
    assert.same({2, 3, 4, 6}, {table.unpack(y.shape)})
    local named = x:reshape(2, 3, -1):gather(3, at:reshape(2, 3, -1))
    assert.is_true(dm.equal(y, named:reshape(y.shape)))
    dm.manual_seed(3)
    assert.is_true(dm.equal(y, (F.fractional_max_pool2d(x, 2, {output_size = {4, 6}}))))
    assert.equal(1, select("#", nn.FractionalMaxPool2d(3, {output_size = 2})(x[1])))
    local widened = nn.ConvTranspose2d(2, 3, 3, {stride = 2, padding = 1})
    assert.same({1, 3, 16, 16}, widened(dm.rand(1, 2, 8, 8), {output_size = {16, 16}}).shape)
    local pooled, from = F.max_pool2d(dm.rand(1, 1, 5, 5), 2, {return_indices = true})
    assert.same({1, 1, 5, 5}, nn.MaxUnpool2d(2)(pooled, from, {output_size = {5, 5}}).shape)
    local volume = dm.randn(2, 3, 9, 8, 7)
    dm.manual_seed(3)
    y, at = nn.FractionalMaxPool3d(2, {output_size = {4, 6, 3}, return_indices = true})(volume)
    assert.same({2, 3, 4, 6, 3}, {table.unpack(y.shape)})
    assert.is_true(dm.equal(y, volume:flatten(3):gather(3, at:flatten(3)):reshape(y.shape)))
    dm.manual_seed(3)
    assert.is_true(dm.equal(y, (F.fractional_max_pool3d(volume, 2, {output_size = {4, 6, 3}}))))
  end)

  it("of three dims read the samples as PyTorch: D, H, W", function()
    local x = dm.arange(0, 511, {dtype = "float64"}):reshape(1, 1, 8, 8, 8)
    local y = F.fractional_max_pool3d(x, {3, 2, 1}, {output_ratio = 0.5,
      _random_samples = dm.tensor{{{0.805, 0.882, 0.9595}}}})
    local function axis(d, step) -- where the windows end, from 0
      local at = y[1][1]
      for other = 3, 1, -1 do if other ~= d then at = at:select(other, 1) end end
      return (at:long():floor_divide(step) % 8):totable()
    end
    assert.same({2, 4, 5, 7}, axis(1, 64))
    assert.same({1, 3, 5, 7}, axis(2, 8))
    assert.same({0, 2, 4, 7}, axis(3, 1))
  end)

  it("say what they want", function()
    local x = dm.zeros(1, 1, 4, 4)
    assert.error_matches(function() nn.FractionalMaxPool2d(2) end, "one of them")
    assert.error_matches(function() nn.FractionalMaxPool3d(2) end, "3d: wanted .* one of them")
    assert.error_matches(function() F.fractional_max_pool2d(x, 2, {output_ratio = 2}) end,
      "between 0 and 1")
    assert.error_matches(function() F.fractional_max_pool2d(x, 2, {output_size = 4}) end,
      "from 4 to 4 by windows of 2")
    assert.error_matches(function()
      F.fractional_max_pool2d(x, 2, {output_size = 2, _random_samples = dm.zeros(1, 2)})
    end, "wanted {1, 1, 2}", 1, true)
  end)
end)

describe("bags", function()
  it("leave out the row that fills them up", function()
    local m = nn.EmbeddingBag(4, 2, {mode = "mean", padding_idx = -1})
    assert.same({0, 0}, rows(m.weight[4]))
    m.weight.data:copy_(dm.tensor{{2, 4}, {6, 8}, {1, 1}, {50, 50.0}})
    local y = m(dm.tensor({{1, 2, 4}, {4, 4, 4}}, {dtype = "int64"}))
    assert.same({{4, 6}, {0, 0}}, rows(y))
    y:sum():backward()
    assert.same({0, 0}, rows(m.weight.grad[4]))
    assert.same({0.5, 0.5}, rows(m.weight.grad[1]))
    assert.matches("padding_idx = %-1", tostring(m))
    assert.error_matches(function()
      F.embedding_bag(ids(1):unsqueeze(1), m.weight, {padding_idx = 5})
    end, "the weight has 4 rows")
  end)
end)

describe("second names", function()
  it("are the same functions", function()
    for first, second in pairs{clamp = "clip", cat = "concat", mul = "multiply", gt = "greater",
      vstack = "row_stack", acos = "arccos", movedim = "moveaxis"} do
      assert.equal(dm[first], dm[second])
    end
    assert.same({0, 1}, rows(dm.tensor{-3, 3.0}:clip{min = 0, max = 1}))
    assert.same({1, 1, 2, 2, 2}, {table.unpack(nn.LPPool3d(2, 2)(dm.ones(1, 1, 4, 4, 4)).shape)})
  end)
end)
