-- Calls in shapes and forms that PyTorch takes too: of no dims, of no elements, broadcast, with
-- older names. Each equals its explicit form.
local dm = require "demilune"
local F = dm.nn.functional

local function ids(...) return dm.tensor({...}, {dtype = "int64"}) end

local function same(want, got)
  assert.same(want.shape, got.shape)
  assert.is_true(dm.equal(want, got), ("%s\nwanted %s"):format(got, want))
end

local function near(want, got)
  assert.same(want.shape, got.shape)
  assert.is_true((want - got):abs():amax():item() < 1e-5, ("%s\nwanted %s"):format(got, want))
end

-- The gradients of f(x, ...)'s weighted sum by its arguments, also with create_graph.
local function gradients(f, ...)
  local leaves = {...}
  for _, t in ipairs(leaves) do t.grad = nil end
  local y = f(...)
  y:sum():backward{retain_graph = true}
  local again = table.pack(dm.autograd.grad(y:sum(), leaves, {create_graph = true}))
  for i, t in ipairs(leaves) do same(t.grad, again[i]:detach()) end
  return again
end

describe("a tensor of no dims", function()
  it("is a vector of one element to ops along a dim", function()
    local x, one = dm.tensor(5.0), ids(1)
    same(x, x:index_select(1, one))
    same(x, x:gather(1, dm.tensor(1)))
    same(dm.tensor{5.0}, x:gather(1, one))
    same(dm.tensor(2.0), dm.tensor{1.0, 2.0}:gather(1, dm.tensor(2)))
    same(dm.tensor(7.0), x:index_add(1, one, dm.tensor(2.0)))
    same(dm.tensor(2.0), x:index_copy(1, one, dm.tensor(2.0)))
    same(dm.tensor(2.0), x:index_fill(1, one, 2))
    same(dm.tensor(2.0), x:scatter(1, one, dm.tensor{2.0}))
    same(dm.tensor(7.0), x:scatter_add(1, one, dm.tensor{2.0}))
    local y = x:clone()
    y:index_add_(1, one, dm.tensor(2.0))
    same(dm.tensor(7.0), y)
  end)

  it("has gradients there", function()
    local x = dm.tensor(5.0, {requires_grad = true})
    for _, name in ipairs{"gather", "index_select"} do
      local function first(t) return t[name](t, 1, ids(1)) end
      same(dm.tensor(1.0), gradients(first, x)[1]:detach())
    end
    local source = dm.tensor(3.0, {requires_grad = true})
    for _, index in ipairs{ids(1), dm.tensor(1)} do -- a position that itself may have no dims
      local function put(t, s) return t:index_copy(1, index, s) end
      local g = gradients(put, x, source)
      same(dm.tensor(0.0), g[1]:detach())
      same(dm.tensor(1.0), g[2]:detach())
      same(dm.tensor(0.0), gradients(function(t) return t:index_fill(1, index, 2) end, x)[1])
    end
  end)

  it("has one position", function()
    local x = dm.tensor(5.0)
    assert.refuses("wanted 1 to 1", function() x:index_select(1, ids(2)):totable() end)
    assert.refuses("2 positions given for x of no dims",
      function() x:index_select(1, ids(1, 1)) end)
  end)

  it("is a number where a call wants one", function()
    same(dm.linspace(1, 3, 5), dm.linspace(dm.tensor(1.0), dm.tensor(3), 5))
    local x = dm.randn(4, 5)
    same(x:narrow(2, 2, 3), x:narrow(2, dm.tensor(2), 3))
    local trained = dm.tensor(1.0, {requires_grad = true})
    assert.refuses("start", function() dm.linspace(trained, 2, 3) end)
    assert.refuses("start", function() dm.linspace(dm.tensor{1.0}, 2, 3) end)
    assert.refuses("integer", function() x:narrow(2, dm.tensor(1.5), 3) end)
  end)
end)

describe("a tensor of no elements", function()
  it("has gradients of its shape", function()
    local function leaf(...) return dm.zeros(..., {requires_grad = true}) end
    local function check(shape, f)
      local x = leaf(shape)
      assert.same(shape, {table.unpack(gradients(f, x)[1].shape)})
    end
    check({0, 4}, function(x) return F.layer_norm(x, {4}) end)
    check({0, 4, 2}, function(x) return F.group_norm(x, 2) end)
    check({0, 2, 4, 4}, function(x) return F.unfold(x, 2) end)
    check({2, 0}, function(x) return F.pad(x, {1, 1}) end)
    check({2, 3}, function(x) return F.pad(x, {-1, -2}) end)
    check({0}, function(x) return x:diagflat() end)
    check({0, 4}, function(x) return F.glu(x, 2) end)
    check({0, 3}, function(x) return (dm.linalg.qr(x)) end)
    check({1, 5}, function(x) return x:trace() end)
    check({0, 5}, function(x) return x:unbind(2)[1] end)
  end)

  it("gives weights of norms gradients of zero", function()
    local w, b = dm.ones(4, {requires_grad = true}), dm.ones(4, {requires_grad = true})
    for _, f in ipairs{
      function(x) return F.layer_norm(x, {4}, w, b) end,
      function(x) return F.group_norm(x, 2, {weight = w, bias = b}) end,
      function(x) return F.group_norm(x, 2, {bias = b}) + w:sum() * 0 end,
    } do
      local g = gradients(function(_, _, x) return f(x) end, w, b,
        dm.zeros(0, 4, {requires_grad = true}))
      same(dm.zeros(4), g[1]:detach())
      same(dm.zeros(4), g[2]:detach())
    end
  end)

  it("is an index that reduces nothing", function()
    local x, none = dm.tensor{1.0, 2.0}, dm.zeros(0, {dtype = "int64"})
    for _, reduce in ipairs{"sum", "mean", "prod", "amax", "amin"} do
      same(x, x:scatter_reduce(1, none, dm.tensor(5.0), reduce))
    end
  end)

  it("is a window of any strides", function()
    assert.same({0, 3}, {table.unpack(dm.zeros(0):as_strided({0, 3}, {9, 9}).shape)})
    assert.same({1}, {table.unpack(dm.ones(1):as_strided({1}, {9}).shape)})
    assert.refuses("leaves the storage", function() dm.ones(1):as_strided({2}, {9}) end)
    assert.refuses("leaves the storage", function() dm.zeros(0):as_strided({1}, {1}) end)
  end)

  it("may be an index of any shape", function()
    local x = dm.ones(5, {requires_grad = true})
    local none = dm.zeros(2, 0, {dtype = "int64"})
    assert.same({2, 0}, {table.unpack(x:gather(1, none).shape)})
    same(dm.zeros(5), gradients(function(t) return t:gather(1, none) end, x)[1]:detach())
  end)
end)

describe("positions", function()
  it("of take count from the end where they are negative", function()
    local x = dm.arange(1.0, 9.0):reshape(3, 3)
    same(dm.tensor{9.0, 1.0, 3.0}, x:take(ids(-1, -9, 3)))
    same(dm.tensor{{3.0}, {6.0}, {7.0}},
      x:take_along_dim(dm.tensor({{-1}, {3}, {-3}}, {dtype = "int64"}), 2))
    same(dm.tensor{9.0, 2.0}, x:take_along_dim(ids(-1, 2)))
    assert.refuses("%-10", function() x:take(ids(-10)):totable() end)
    assert.refuses("take_along_dim", function() x:take_along_dim(ids(1), 2) end)
  end)
end)

describe("broadcasting", function()
  it("of trapezoid's points", function()
    local y, x = dm.randn(2, 3, 4), dm.randn(3, 4)
    near(dm.trapezoid(y, x:expand(2, 3, 4)), dm.trapezoid(y, x))
    near(dm.trapezoid(y, x[1]:expand(2, 3, 4)), dm.trapezoid(y, x[1]:reshape(1, 4)))
    near(dm.trapezoid(y[1]:expand(2, 3, 4), x:expand(2, 3, 4)),
      dm.trapezoid(y[1], x:expand(2, 3, 4)))
    same(dm.zeros(2), dm.trapezoid(dm.zeros(2, 0)))
    for dim = 1, 3 do -- a constant step, and the same one as points
      local points = dm.arange(1, y:size(dim)) * 0.3
      near(dm.trapezoid(y, points, {dim = dim}), dm.trapezoid(y, {dx = 0.3, dim = dim}))
    end
    same(dm.tensor(0), dm.trapezoid(dm.ones(1)))
    same(dm.tensor(4), dm.trapezoid(dm.tensor{1, 2, 3}))
    assert.refuses("wanted 4 points", function() dm.trapezoid(y, x:narrow(2, 1, 3)) end)
  end)

  it("of gaussian_nll_loss's variance along one dim", function()
    local x, t, v = dm.randn(2, 3, 4), dm.randn(2, 3, 4), dm.rand(2, 3, 4) + 0.5
    for _, d in ipairs{1, 2, 3} do
      local one = v:narrow(d, 1, 1)
      near(F.gaussian_nll_loss(x, t, one:expand(2, 3, 4):contiguous()),
        F.gaussian_nll_loss(x, t, one))
    end
    assert.refuses("one dim of size 1", function()
      F.gaussian_nll_loss(x, t, v:narrow(1, 1, 1):narrow(2, 1, 1))
    end)
  end)

  it("of attention's leading dims", function()
    local q, k, v = dm.randn(4, 3, 8), dm.randn(2, 4, 6, 8), dm.randn(6, 5)
    local wide = F.scaled_dot_product_attention(q:expand(2, 4, 3, 8), k, v:expand(2, 4, 6, 5))
    near(wide, F.scaled_dot_product_attention(q, k, v))
    assert.refuses("does not broadcast", function()
      F.scaled_dot_product_attention(dm.randn(3, 3, 8), k, k)
    end)
  end)
end)

describe("conv_transpose", function()
  -- <conv_transpose(x), y> = <x, conv(y)>: one is the other's adjoint.
  local function check(transpose, conv, shape, kernel, opts)
    local x, w = dm.randn(shape, {dtype = "float64"}), dm.randn(kernel, {dtype = "float64"})
    local y = transpose(x, w, opts)
    local g = dm.randn(y.shape, {dtype = "float64"})
    local back = conv(g, w, {stride = opts.stride, padding = opts.padding,
      dilation = opts.dilation})
    for d = 3, x:dim() do back = back:narrow(d, 1, x:size(d)) end
    assert.is_true(math.abs((y * g):sum():item() - (x * back):sum():item()) < 1e-9)
    return y.shape
  end

  it("takes output_padding of a stride and more, below the dilation", function()
    assert.same({1, 3, 23, 18}, {table.unpack(check(F.conv_transpose2d, F.conv2d, {1, 2, 4, 4},
      {2, 3, 4, 4}, {stride = {3, 2}, padding = {1, 2}, output_padding = {3, 3},
      dilation = {4, 4}}))})
    check(F.conv_transpose1d, F.conv1d, {1, 2, 5}, {2, 2, 3},
      {stride = 2, padding = 1, output_padding = 4, dilation = 5})
    check(F.conv_transpose3d, F.conv3d, {1, 2, 3, 3, 3}, {2, 2, 2, 2, 2},
      {stride = {1, 2, 1}, padding = {0, 1, 1}, output_padding = {2, 2, 2},
      dilation = {3, 3, 3}})
    assert.refuses("output_padding is 5", function()
      F.conv_transpose1d(dm.ones(1, 1, 5), dm.ones(1, 1, 3), {stride = 2, dilation = 5,
        output_padding = 5})
    end)
  end)
end)

describe("dropout2d", function()
  it("drops elements of a matrix", function()
    dm.manual_seed(1)
    local y = F.dropout2d(dm.ones(40, 50))
    local kept = y:ne(0):sum():item()
    assert.is_true(kept > 800 and kept < 1200)
    same(y:ne(0):float() * 2, y)
    assert.refuses("wanted", function() F.dropout2d(dm.ones(4)) end)
  end)
end)

describe("var and std", function()
  it("take unbiased, by name or before the dims' options", function()
    local x = dm.randn(4, 5, {requires_grad = true})
    for _, name in ipairs{"var", "std"} do
      local op = dm[name]
      near(op(x, {correction = 0}), op(x, {unbiased = false}))
      near(op(x, 2, {correction = 0, keepdim = true}), op(x, {dim = 2, unbiased = false,
        keepdim = true}))
      near(op(x), op(x, {unbiased = true}))
      near(op(x, {correction = 0}), op(x, false))
      near(op(x), op(x, true))
      near(op(x, 2, {correction = 0, keepdim = true}), op(x, 2, false, true))
      local plain, by_name = dm[name .. "_mean"](x, {correction = 0})
      same(plain, (dm[name .. "_mean"](x, false)))
      assert.is_truthy(by_name)
    end
    near(gradients(function(t) return t:var{correction = 0} end, x)[1],
      gradients(function(t) return t:var{unbiased = false} end, x)[1])
    assert.refuses("dim", function() x:sum(true) end)
  end)
end)

describe("lu", function()
  it("has pivots, and says so where none are asked for", function()
    local x = dm.randn(3, 4)
    same(dm.linalg.lu_factor(x), (dm.linalg.lu_factor(x, {pivot = true})))
    assert.refuses("without pivots", function() dm.linalg.lu(x, {pivot = false}) end)
  end)
end)

describe("a norm of 0", function()
  it("has a second gradient of 0", function()
    for _, p in ipairs{2, 3} do
      for _, shape in ipairs{{3}, {0}} do
        local x = dm.zeros(shape, {requires_grad = true})
        local gy = dm.tensor(1.0, {requires_grad = true})
        local g = dm.autograd.grad(x:norm{p = p}, x, {grad_outputs = gy, create_graph = true})
        same(dm.zeros(shape), g:detach())
        local second, back = dm.autograd.grad(g:sum(), {x, gy}, {allow_unused = true})
        if second then same(dm.zeros(shape), second) end
        same(dm.tensor(0.0), back)
      end
    end
  end)
end)

describe("unique", function()
  it("of no slices is none", function()
    local x = dm.zeros(5, 0, 3)
    for _, name in ipairs{"unique", "unique_consecutive"} do
      local y, inverse, counts = x[name](x, {dim = 2, return_inverse = true,
        return_counts = true})
      same(x, y)
      assert.same({0}, {table.unpack(inverse.shape)})
      assert.same({0}, {table.unpack(counts.shape)})
      assert.refuses("no slices", function() x[name](x, {dim = 1}) end)
    end
  end)
end)

describe("cumsum_ and cumprod_", function()
  it("write into their operand", function()
    for _, name in ipairs{"cumsum", "cumprod"} do
      local x = dm.randn(3, 4, {requires_grad = true})
      local y = x:clone()
      assert.is_true(rawequal(y, y[name .. "_"](y, 2)))
      same(x[name](x, 2), y)
      local g = dm.autograd.grad(y:sum(), x)
      near(dm.autograd.grad(x[name](x, 2):sum(), x), g)
    end
  end)
end)

describe("cdist", function()
  it("computes by products or differences, as compute_mode says", function()
    local a, b = dm.randn(30, 4), dm.randn(3, 4)
    local by_product = dm.cdist(a, b, 2, "use_mm_for_euclid_dist")
    same(by_product, dm.cdist(a, b))
    local direct = dm.cdist(a, b, {compute_mode = "donot_use_mm_for_euclid_dist"})
    near(by_product, direct)
    same(direct, dm.cdist(a, b, {compute_mode = "donot_use_mm_for_euclid_dist", p = 2}))
    same(dm.zeros(30), dm.cdist(a, a, {compute_mode = "donot_use_mm_for_euclid_dist"}):diagonal())
    assert.refuses("compute_mode", function() dm.cdist(a, b, 2, "mm") end)
  end)
end)

describe("logspace and lstsq", function()
  it("take base and driver as PyTorch does", function()
    near(dm.tensor{1.0, 2.0, 4.0}, dm.logspace(0, 2, 3, 2))
    near(dm.tensor{1.0, 2.0, 4.0}, dm.logspace(0, dm.tensor(2.0), 3, {base = 2}))
    near(dm.tensor{1.0, 2.0}, dm.logspace(0, 1, 2, 2.0, {dtype = "float32"}))
    local a, b = dm.randn(4, 3), dm.randn(4, 2)
    near((dm.linalg.lstsq(a, b)), (dm.linalg.lstsq(a, b, {driver = "gelsd"})))
    assert.refuses("driver", function() dm.linalg.lstsq(a, b, {driver = "qr"}) end)
  end)
end)

describe("tolerances", function()
  it("may be a number for each matrix", function()
    local A = dm.stack{dm.diag(dm.tensor{4.0, 2.0, 1.0}), dm.diag(dm.tensor{4.0, 2.0, 1.0})}
    local tol = dm.tensor{0.3, 0.6}
    same(ids(2, 1), dm.linalg.matrix_rank(A, {rtol = tol}))
    same(ids(2, 1), dm.linalg.matrix_rank(A, {atol = tol * 4, rtol = 0.0}))
    same(ids(3, 2), dm.linalg.matrix_rank(A, {atol = dm.tensor{0.0, 1.5}}))
    same(ids(3, 2), dm.linalg.matrix_rank(A[1], {atol = dm.tensor{0.5, 1.5}}))
    for _, name in ipairs{"pinv", "pinverse"} do
      local pinv = dm.linalg[name] or dm[name]
      local P = pinv(A, {rtol = tol})
      same(dm.diag(dm.tensor{0.25, 0.5, 0.0}), P[1])
      same(dm.diag(dm.tensor{0.25, 0.0, 0.0}), P[2])
      assert.refuses("linalg.pinv: rtol has shape {3}, A {2, 3, 3}", function()
        pinv(A, {rtol = dm.ones(3)})
      end)
    end
  end)
end)

describe("matrices of no elements", function()
  it("have 0 as info", function()
    for _, name in ipairs{"cholesky_ex", "inv_ex"} do
      for _ = 1, 8 do -- memory that other tensors have left is not 0
        local _ = dm.full({2}, 7, {dtype = "int32"})
        local _, info = dm.linalg[name](dm.zeros(2, 0, 0))
        same(dm.zeros(2, {dtype = "int32"}), info)
      end
    end
  end)
end)

describe("prod", function()
  it("has a second gradient at zeros", function()
    local x = dm.tensor({{2, 0, 3}, {0, 0, 5}}, {dtype = "float64", requires_grad = true})
    local g = dm.autograd.grad(x:prod(2):sum(), {x}, {create_graph = true})
    same(dm.tensor({{0, 6, 0}, {0, 0, 0}}, {dtype = "float64"}), g:detach())
    -- the derivative of the sum of gradients: of each pair the product of the others
    local again = dm.autograd.grad(g:sum(), {x})
    same(dm.tensor({{3, 5, 2}, {5, 5, 0}}, {dtype = "float64"}), again)
    local whole = dm.tensor({{2, 0}, {1, 3}}, {dtype = "float64", requires_grad = true})
    g = dm.autograd.grad(whole:prod(), {whole}, {create_graph = true})
    same(dm.tensor({{0, 6}, {0, 0}}, {dtype = "float64"}), g:detach())
    same(dm.tensor({{3, 11}, {6, 2}}, {dtype = "float64"}), (dm.autograd.grad(g:sum(), {whole})))
  end)
end)

describe("index_fill", function()
  it("counts a position that is named twice once in the value's gradient", function()
    local value = dm.tensor(2.0, {requires_grad = true})
    local x = dm.zeros(3, 3, {requires_grad = true})
    local g, gv = dm.autograd.grad(x:index_fill(2, ids(1, 1, 3), value):sum(), {x, value})
    same(dm.tensor(6.0), gv)
    same(dm.tensor{{0.0, 1.0, 0.0}, {0.0, 1.0, 0.0}, {0.0, 1.0, 0.0}}, g)
  end)
end)

describe("quantile", function()
  it("rounds the float64 product of a float32 q, as PyTorch does", function()
    for _, name in ipairs{"quantile", "nanquantile"} do
      local function at(n, q, how)
        local x = dm.arange(n):float()
        return x[name](x, q, {interpolation = how}):item() - 1
      end
      assert.equal(4, at(6, 0.6, "higher"))
      assert.equal(3.5, at(6, 0.6, "midpoint"))
      assert.equal(6, at(11, 0.7, "lower"))
      assert.equal(5, at(16, 0.3, "nearest"))
    end
  end)
end)

describe("index_reduce", function()
  it("keeps for its gradient what it changes in place", function()
    for _, reduce in ipairs{"prod", "amax", "amin"} do
      local source = dm.tensor({3.0, 5.0}, {requires_grad = true})
      local want = dm.tensor{2.0, 4.0}:index_reduce(1, ids(2, 2), source, reduce)
      local got = dm.tensor{2.0, 4.0}
      got:index_reduce_(1, {index = ids(2, 2), source = source, reduce = reduce})
      same(want:detach(), got:detach())
      same((dm.autograd.grad(want:sum(), {source})), (dm.autograd.grad(got:sum(), {source})))
    end
  end)

  it("takes a slice for each position, and no other reduction", function()
    local x = dm.zeros(3, 2)
    local function refuses(text, ...)
      local args = {...}
      assert.refuses(text, function() x:index_reduce(table.unpack(args)) end)
    end
    refuses("a source of shape {1, 1} given, wanted {1, 2}", 1, ids(1), dm.ones(1, 1), "prod")
    refuses("a source of shape {2, 2} given, wanted {1, 2}", 1, ids(1), dm.ones(2, 2), "prod")
    refuses("a source of shape {2} given, wanted {1, 2}", 1, ids(1), dm.ones(2), "prod")
    refuses("dim 3 is out of range for shape {3, 2}", 3, ids(1), dm.ones(1, 2), "prod")
    refuses("an index of shape {1, 1} given", 1, dm.tensor{{1}}, dm.ones(1, 2), "prod")
    refuses("'sum' is none of prod, mean, amax, amin", 1, ids(1), dm.ones(1, 2), "sum")
    same(dm.tensor(6.0), dm.tensor(2.0):index_reduce(-1, ids(1), dm.tensor(3.0), "prod"))
  end)
end)

describe("shapes", function()
  it("stay where diff takes no difference", function()
    local x = dm.arange(4.0):reshape(1, 1, 4)
    same(x, x:diff(0, {prepend = x, append = x}))
  end)

  it("wrap around what negative padding leaves", function()
    local x = dm.tensor{{{0.0, 1.0, 2.0, 3.0}}}
    same(dm.tensor{{{1.0, 2.0, 3.0, 1.0}}}, F.pad(x, {-1, 1}, "circular"))
    same(dm.tensor{{{1.0, 2.0, 0.0, 1.0, 2.0}}}, F.pad(x, {2, -1}, "circular"))
    assert.refuses("which the mode cannot fill", function() F.pad(x, {-3, 2}, "circular") end)
  end)

  it("of chunks may be in a tensor", function()
    local x = dm.arange(5.0)
    for i, part in ipairs(x:tensor_split({3, 4})) do same(part, x:tensor_split(ids(3, 4))[i]) end
    same(x:tensor_split({3, 4})[2], x:tensor_split({6 / 2, 4.0})[2])
    assert.equal(3, #x:tensor_split(dm.tensor(3)))
    assert.refuses("integer", function() x:tensor_split(dm.tensor(2.5)) end)
  end)

  it("of chunks of an empty dim are all empty", function()
    for _, part in ipairs{dm.zeros(0, 2):split(0), dm.zeros(2, 0):split(0, 2)} do
      assert.equal(1, #part)
      assert.equal(0, part[1]:numel())
    end
    local x = dm.zeros(2, 0)
    assert.equal(3, #x:chunk(3, 2))
    for _, part in ipairs(x:chunk(3, 2)) do assert.same({2, 0}, part.shape) end
    assert.refuses("chunk: 0 chunks", function() x:chunk(0, 2) end)
    assert.refuses("chunk: %d+ chunks", function() x:chunk(2 ^ 40, 2) end)
  end)

  it("of one class count as a sample", function()
    local one = dm.tensor(2.5)
    same(dm.tensor(0.0), F.multi_margin_loss(one, dm.tensor(1)))
    same(dm.tensor(0.0), F.multilabel_margin_loss(one, dm.tensor(1)))
    local row = dm.tensor{1.0, 2.0, 3.0}
    local whole = F.multi_margin_loss(row:unsqueeze(1), ids(1), {reduction = "none"})
    same(whole, F.multi_margin_loss(row, ids(1), {reduction = "none"}))
    same(whole[1], F.multi_margin_loss(row, dm.tensor(1), {reduction = "none"}))
    same(whole[1], F.multi_margin_loss(row:unsqueeze(1), dm.tensor(1), {reduction = "none"}))
  end)

  it("in a table of one number hold for every dim", function()
    local x = dm.randn(1, 1, 5, 5)
    same(x:avg_pool2d(3, {padding = 1}), x:avg_pool2d({3}, {padding = {1}}))
    assert.refuses("a table of two expected", function() x:avg_pool2d{3, 3, 3} end)
    for _, padding in ipairs{{-1}, -1} do -- "same" is a word
      assert.refuses("0 or more", function() x:conv2d(dm.ones(1, 1, 3, 3), {padding = padding}) end)
    end
  end)
end)

describe("what PyTorch refuses", function()
  it("is refused", function()
    local function refuses(text, f, ...)
      local args = table.pack(...)
      assert.refuses(text, function() f(table.unpack(args, 1, args.n)) end)
    end
    refuses("more than one element in its groups", F.group_norm, dm.ones(1, 2), 2)
    refuses("more than one element in its groups", F.group_norm, dm.ones(1, 0, 2), 1)
    refuses("wanted it not above", F.hardtanh, dm.ones(2), {min_val = 0.5, max_val = -0.5})
    refuses("x has no dims", dm.roll, dm.tensor(1.0), 0, 1)
    local wide = dm.zeros(2, 3)
    refuses("src has shape {}, wanted {3}", dm.select_scatter, wide, dm.tensor(1.0), 1, 1)
    refuses("src has shape {1, 3}, wanted {2, 3}", dm.slice_scatter, wide, dm.ones(1, 3))
    refuses("src has shape {1}, wanted {2}", dm.diagonal_scatter, wide, dm.ones(1))
    refuses("combinations: x has shape {2, 2}, wanted one dim", dm.combinations, dm.ones(2, 2))
    refuses("histogram: 0 bins, wanted 1 or more", dm.histogram, dm.ones(2), 0)
    local x = dm.ones(2, 2)
    for _, name in ipairs{"triplet_margin_loss", "triplet_margin_with_distance_loss"} do
      refuses("wanted above 0", F[name], x, x, x, {margin = -1})
    end
    refuses("only a batch may be empty", F.max_pool1d, dm.ones(0, 10), 1)
    refuses("only a batch may be empty", F.max_pool2d, dm.ones(1, 0, 2, 3), 1)
    refuses("only a batch may be empty", F.max_pool3d, dm.ones(0, 1, 2, 10), 1)
    assert.same({0, 3, 5}, F.max_pool1d(dm.ones(0, 3, 5), 1).shape)
    for _, name in ipairs{"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"} do
      refuses("eps is 0, wanted above 0", dm.nn[name], 3, {eps = 0})
    end
    for _, name in ipairs{"RNN", "LSTM", "GRU"} do
      refuses("input_size is 0, wanted 1 or more", dm.nn[name], 0, 5)
      refuses("hidden_size is 0, wanted 1 or more", dm.nn[name], 10, 0)
      refuses("num_layers is 0, wanted 1 or more", dm.nn[name], 10, 10, 0)
    end
  end)
end)

describe("PyTorch's samples by position", function()
  it("give pools their padding behind the stride", function()
    local x = dm.arange(1, 36):reshape(1, 1, 6, 6):float()
    for name, more in pairs{max_pool2d = {1}, avg_pool2d = {false, true, 2}} do
      same(F[name](x, 3, {stride = 2, padding = 1}), F[name](x, 3, 2, 1))
      assert.same({1, 1, 3, 3}, F[name](x, 3, 2, 1, table.unpack(more)).shape)
    end
    same(F.max_pool1d(x[1], 3, {stride = 2, padding = 1}), F.max_pool1d(x[1], 3, 2, 1))
    same(F.avg_pool3d(x, 3, {stride = 2, padding = 1}), F.avg_pool3d(x, 3, 2, 1))
    same(F.max_pool2d(x, 3, {stride = {2, 1}}), F.max_pool2d(x, 3, {2, 1}))
  end)

  it("give tensordot its dims in one table, and broadcast them", function()
    local a, b = dm.randn(2, 3, 4), dm.randn(4, 2, 5)
    local want = dm.tensordot(a, b, {dims_self = {1, 3}, dims_other = {2, 1}})
    same(want, dm.tensordot(a, b, {{1, 3}, {2, 1}}))
    same(want, dm.tensordot(a, b, {dims = {{1, 3}, {2, 1}}}))
    same(want, dm.tensordot{a = a, b = b, dims = {{1, 3}, {2, 1}}})
    near(dm.tensordot(a:sum(3, {keepdim = true}), dm.ones(1, 3), {{2, 3}, {2, 1}}),
      dm.tensordot(a, dm.ones(1, 3), {{2, 3}, {2, 1}}))
    near((a * a):sum(), dm.tensordot(a, a, 3))
    assert.refuses("dims is a table of 1", function() dm.tensordot(a, b, {dims = {{1, 2}}}) end)
    assert.refuses("differ in size", function() dm.tensordot(a, b, {{1}, {1}}) end)
    local options = {dims = {{1, 3}, {2, 1}}}
    dm.tensordot(a, b, options)
    assert.same({dims = {{1, 3}, {2, 1}}}, options)
  end)

  it("give linear a vector as weight", function()
    local x, w, bias = dm.randn(2, 4, 3), dm.randn(3), dm.tensor(0.5)
    near(dm.matmul(x, w), F.linear(x, w))
    near(dm.matmul(x, w) + 0.5, F.linear(x, w, bias))
    near(dm.matmul(x, w) + 0.5, F.linear(x, w, bias:reshape(1)))
    gradients(function(p, q) return F.linear(p, q) end, x:requires_grad_(), w:requires_grad_())
    assert.refuses("wanted 4", function() F.linear(x:detach(), dm.ones(4)) end)
  end)

  it("give the positions of what is not 0 in a tuple", function()
    local x = dm.tensor{{0, 7}, {8, 9}}
    local rows, columns = table.unpack(dm.nonzero(x, {as_tuple = true}))
    same(ids(1, 2, 2), rows)
    same(ids(2, 1, 2), columns)
    same(dm.tensor{7, 8, 9}, x[x:nonzero(true)])
    same(rows, dm.nonzero{input = x, as_tuple = true}[1])
    same(ids(1), dm.tensor(3):nonzero{as_tuple = true}[1])
    same(dm.nonzero(x), dm.nonzero(x, {as_tuple = false}))
  end)

  it("give rrelu_ a tensor to change, and indices of triangles a dtype", function()
    local x = dm.tensor{-1.0, 2}
    assert.equal(x, F.rrelu_(x, 0.5, 0.5, true))
    same(dm.tensor{-0.5, 2}, x)
    assert.equal("int32", dm.tril_indices(2, 2, {dtype = "int32"}).dtype)
    assert.equal("int64", dm.triu_indices(2, 2).dtype)
  end)

  it("are empty, or integers", function()
    local _, edges = dm.histogram(dm.empty(0), 2)
    same(dm.tensor{0, 0.5, 1}, edges)
    local y, at = F.fractional_max_pool3d(dm.empty(0, 1, 4, 5, 4), 2,
      {output_size = 2, return_indices = true})
    assert.same({0, 1, 2, 2, 2}, y.shape)
    assert.same({0, 1, 2, 2, 2}, at.shape)
    local x = dm.tensor{{1, 2, 4}, {3, 1, 1}}
    same(dm.cov(x:float()), dm.cov(x))
    same(dm.corrcoef(x:float()), dm.corrcoef(x))
  end)
end)
