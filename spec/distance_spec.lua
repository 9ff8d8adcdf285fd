-- The distances of all pairs of rows: cdist by differences, and pdist; of rows side by side, and
-- their cosines. Golden files define them; this file tests where a kernel may go wrong: pairs in
-- blocks, ranges of float32, ties, NaN, rows that lie otherwise.
local dm = require "demilune"
local F = dm.nn.functional

local DIRECT = "donot_use_mm_for_euclid_dist"
local POWERS = {0, 0.5, 1, 1.5, 2, 3, math.huge}

local function cdist(a, b, p) return dm.cdist(a, b, {p = p, compute_mode = DIRECT}) end

local function same(want, got, what)
  assert.same(want.shape, got.shape)
  assert.is_true(dm.equal(want, got), ("%s\n%s\nwanted %s"):format(what, got, want))
end

-- Equal to the relative error; NaN to NaN.
local function near(want, got, error, what)
  local off = (want - got):abs() / want:abs():clamp(1e-30)
  off = dm.where(want:isnan():logical_and(got:isnan()):logical_or(want:eq(got)), 0, off)
  assert.is_true(off:numel() == 0 or off:amax():item() <= error,
    ("p = %s: %s\nwanted %s"):format(what, got, want))
end

-- The definition, in float64.
local function defined(a, b, p)
  local d = (a:double():unsqueeze(-2) - b:double():unsqueeze(-3)):abs()
  if p == 0 then return d:ne(0):double():sum(-1) end
  if p == math.huge then return d:amax(-1) end
  return d:pow(p):sum(-1):pow(1 / p)
end

describe("distances", function()
  before_each(function() dm.manual_seed(1) end)

  it("are those of the definition, for rows and features of any number", function()
    for _, shape in ipairs{{1, 1, 1}, {3, 40, 5}, {40, 3, 33}, {67, 21, 16}, {2, 3, 1100},
      {70, 5, 1030}} do
      local p, r, m = table.unpack(shape)
      local a, b = dm.randn(2, p, m), dm.randn(r, m)
      for _, power in ipairs(POWERS) do
        near(defined(a, b, power), cdist(a, b, power):double(), 2e-6, power)
        near(defined(a, b, power), cdist(a:double(), b:double(), power), 1e-12, power)
      end
    end
    for _, n in ipairs{0, 1, 2, 5, 33, 70} do
      local x = dm.randn(n, 7)
      local upper = dm.triu_indices(n, n, 1)
      for _, power in ipairs(POWERS) do
        local all = cdist(x, x, power)
        same(all[{upper[1], upper[2]}], dm.pdist(x, power), n)
      end
    end
  end)

  it("of a pair have the bits that they have alone, and so have gradients", function()
    local a, b = dm.randn(2, 37, 45), dm.randn(2, 19, 45)
    local gy = dm.randn(2, 37, 19)
    for _, p in ipairs(POWERS) do
      local x, z = a:clone():requires_grad_(), b:clone():requires_grad_()
      local y = cdist(x, z, p)
      y:backward(gy)
      for _, i in ipairs{1, 6, 37} do
        local row = a[2]:narrow(1, i, 1):clone():requires_grad_()
        local one = cdist(row, b[2], p)
        same(y[2]:narrow(1, i, 1), one, p)
        one:backward(gy[2]:narrow(1, i, 1))
        same(x.grad[2]:narrow(1, i, 1), row.grad, p)
      end
      same(y:transpose(-1, -2), cdist(b, a, p), p)
    end
  end)

  it("have gradients of a float64's, also where rows are many and long", function()
    for _, shape in ipairs{{5, 3, 2}, {35, 70, 3}, {9, 40, 50}} do
      local p, r, m = table.unpack(shape)
      local a, b, gy = dm.randn(p, m), dm.randn(r, m), dm.randn(p, r)
      for _, power in ipairs{0.5, 1, 1.5, 2, 3, math.huge} do
        local function gradients(dtype)
          local function leaf(t) return t:to(dtype):clone():requires_grad_() end
          local x, z, u = leaf(a), leaf(b), leaf(a)
          cdist(x, z, power):backward(gy:to(dtype))
          dm.pdist(u, power):sum():backward()
          return {x.grad, z.grad, u.grad}
        end
        local want, got = gradients "float64", gradients "float32"
        for k, w in ipairs(want) do
          local top = w:abs():amax():item()
          local off = (w - got[k]):abs():amax():item()
          assert.is_true(off <= 3e-6 * math.max(1, top),
            ("p = %s: %g of %g"):format(power, off, top))
        end
        -- the composition under create_graph
        local x, z = a:double():requires_grad_(), b:double():requires_grad_()
        local gx, gz = dm.autograd.grad((cdist(x, z, power) * gy):sum(), {x, z},
          {create_graph = true})
        assert.is_true((gx - want[1]):abs():amax():item() < 1e-9, power)
        assert.is_true((gz - want[2]):abs():amax():item() < 1e-9, power)
        local u = a:double():requires_grad_()
        local gu = dm.autograd.grad(dm.pdist(u, power):sum(), u, {create_graph = true})
        assert.is_true((gu - want[3]):abs():amax():item() < 1e-9, power)
      end
    end
  end)

  it("give each of several largest differences the whole gradient", function()
    local x = dm.tensor({{1.0, 3.0, 0.0}, {1.0, 1.0, 2.0}}):requires_grad_()
    dm.pdist(x, math.huge):backward(dm.ones(1))
    same(dm.tensor{{0.0, 1.0, -1.0}, {0.0, -1.0, 1.0}}, x.grad)
    local a, b = x:detach()[1]:unsqueeze(1):requires_grad_(), x:detach()[2]:unsqueeze(1)
    cdist(a, b, math.huge):backward(dm.full({1, 1}, 2))
    same(dm.tensor{{0.0, 2.0, -2.0}}, a.grad)
  end)

  it("have finite results where powers leave float32's range", function()
    for _, size in ipairs{1e-30, 1e25, 3e37} do
      local x = dm.tensor{{size, 0, 0}, {0, 2 * size, 0}, {size, 0, 0}}
      for _, p in ipairs{0.5, 1.5, 2, 3} do
        local leaf = x:clone():requires_grad_()
        local y = dm.pdist(leaf, p)
        near(defined(x, x, p)[1]:narrow(1, 2, 2), y:narrow(1, 1, 2):double(), 1e-5, p)
        y:sum():backward()
        assert.is_true(leaf.grad:isfinite():all():item(), p)
        local wide = x:double():requires_grad_()
        dm.pdist(wide, p):sum():backward()
        near(wide.grad, leaf.grad:double(), 1e-4, p)
      end
    end
  end)

  it("keep NaN", function()
    local nan = 0 / 0
    for _, p in ipairs(POWERS) do
      local x = dm.tensor{{nan, 0.0}, {1.0, 2.0}}:requires_grad_()
      local y = dm.pdist(x, p)
      assert.is_true(y:isnan():all():item(), p)
      y:sum():backward()
      assert.equal(p ~= 0, x.grad:narrow(2, 1, 1):isnan():all():item(), p)
    end
  end)

  it("of rows without features are 0", function()
    for _, p in ipairs(POWERS) do
      same(dm.zeros(2, 3), cdist(dm.zeros(2, 0), dm.zeros(3, 0), p))
      same(dm.zeros(3), dm.pdist(dm.zeros(3, 0), p))
    end
  end)
end)

describe("distances of vectors", function()
  it("have a gradient of 0 where the vectors are the same", function()
    for _, dtype in ipairs{"float32", "bfloat16"} do
      local x = dm.randn(3, 40):to(dtype):requires_grad_()
      local y = x:detach():clone():requires_grad_()
      local d = F.pairwise_distance(x, y, {eps = 0}):sum() + dm.dist(x, y)
      assert.equal(0, d:item())
      d:backward()
      for _, t in ipairs{x, y} do assert.equal(0, t.grad:abs():max():item()) end
    end
  end)

  it("are those of the norm of the difference", function()
    for dtype, off in pairs{float32 = 1e-6, float64 = 1e-14} do
      local function close(a, b) assert.near(0, (a / b - 1):abs():max():item(), off) end
      local x, y = dm.randn(5, 1030):to(dtype), dm.randn(5, 1030):to(dtype)
      local apart = x - y + 1e-6
      close(F.pairwise_distance(x, y), apart:norm{dim = 2})
      close(F.pairwise_distance(x, y, {keepdim = true}), apart:norm{dim = 2, keepdim = true})
      close(dm.dist(x, y), (x - y):norm())
      close(F.pairwise_distance(x:t(), y:t()), apart:t():norm{dim = 2})
      close(F.pairwise_distance(x, y[1]), (x - y[1] + 1e-6):norm{dim = 2})
      assert.is_true(F.pairwise_distance(x, y)[3]:equal(F.pairwise_distance(x[3], y[3])))
    end
  end)
end)

describe("cosines of rows", function()
  it("are those of turned operands, and of each row alone", function()
    for _, dtype in ipairs{"float64", "float32", "bfloat16", "float16"} do
      local x, y = dm.randn(5, 1030):to(dtype), dm.randn(5, 1030):to(dtype)
      local signs = dm.tensor({1, -1, 1, 1, -1}, {dtype = dtype})
      local close = dtype == "float64" and 1e-14 or dtype == "float32" and 1e-6 or 4e-3
      local function turned(v) return v:t():contiguous():t() end
      local function of(f, ...)
        local a, b = x:detach():clone():requires_grad_(), y:detach():clone():requires_grad_()
        local value = f(a, b, ...)
        value:sum():backward()
        local other = f(turned(x):requires_grad_(), turned(y):requires_grad_(), ...)
        assert.near(0, (value - other):abs():max():item(), close)
        local c, d = turned(x):requires_grad_(), turned(y):requires_grad_()
        f(c, d, ...):sum():backward()
        assert.near(0, (a.grad - c.grad):abs():max():item(), close)
        assert.near(0, (b.grad - d.grad):abs():max():item(), close)
        return value
      end
      local cosines = of(F.cosine_similarity, {dim = 2})
      of(F.cosine_embedding_loss, signs, {margin = 0.01})
      for i = 1, 5 do
        assert.is_true(cosines[i]:equal(F.cosine_similarity(x[i], y[i], {dim = 1})))
      end
    end
  end)

  it("have finite gradients where a row is 0", function()
    for _, dtype in ipairs{"float32", "bfloat16"} do
      local x = dm.zeros({2, 8}, {dtype = dtype, requires_grad = true})
      local y = dm.ones({2, 8}, {dtype = dtype, requires_grad = true})
      F.cosine_similarity(x, y, {dim = 2}):sum():backward()
      F.cosine_embedding_loss(x, y, dm.ones(2):to(dtype)):backward()
      assert.is_true(x.grad:isfinite():all():item() and y.grad:isfinite():all():item())
    end
  end)

  it("have second derivatives", function()
    local x, y = dm.randn(3, 4):double(), dm.randn(3, 4):double()
    for _, v in ipairs{x, y} do v:requires_grad_() end
    assert.is_true(dm.autograd.gradgradcheck(function(a, b)
      return F.cosine_embedding_loss(a, b, dm.tensor{1.0, -1.0, 1.0}:double())
    end, {x, y}))
  end)
end)
