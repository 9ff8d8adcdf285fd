-- Linear algebra: gradients of ops that read one triangle of a symmetric matrix, by finite
-- differences; error messages; builds without LAPACK. Values are in spec/golden/linalg.lua; the
-- other gradients are checked in spec/op_spec.lua.

local dm = require "demilune"
local linalg = dm.linalg

local DOUBLE = {dtype = "float64"}

local function refuses(words, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok, "took what it cannot take")
  assert.matches(words, message, 1, true)
end

-- First and second derivatives of fn of a symmetric matrix.
local function check_symmetric(fn, shape)
  dm.manual_seed(3)
  local x = dm.randn(shape, DOUBLE) * 0.3 + dm.diag(dm.arange(1, shape[#shape]):double() * 2)
  local function of_symmetric(a) return fn((a + a:transpose(-2, -1)) / 2) end
  local leaf = x:contiguous():detach():requires_grad_()
  assert.is_true(dm.autograd.gradcheck(of_symmetric, {leaf}))
  assert.is_true(dm.autograd.gradgradcheck(of_symmetric, {leaf}))
end

describe("cross", function()
  it("of rows is that along any dim, with its gradients", function()
    for _, dtype in ipairs{"float32", "float64", "bfloat16", "float16"} do
      for _, shape in ipairs{{3}, {5, 3}, {2, 0, 3}, {4, 7, 3}, {3, 3}} do
        local a, b = dm.randn(shape):to(dtype), dm.randn(shape):to(dtype)
        local gy = dm.randn(shape):to(dtype)
        local got, want = {}, {}
        for side, turned in pairs{[got] = false, [want] = true} do
          local u, v = a:clone():requires_grad_(), b:clone():requires_grad_()
          local y
          if turned then -- along the first dim, by rolls
            y = linalg.cross(u:movedim(-1, 1), v:movedim(-1, 1), {dim = 1}):movedim(1, -1)
          else
            y = linalg.cross(u, v)
          end
          y:backward(gy)
          side[1], side[2], side[3] = y:detach(), u.grad, v.grad
        end
        for i = 1, 3 do assert.is_true(dm.equal(got[i], want[i]), dtype .. i) end
      end
    end
  end)

  it("of expanded, transposed and broadcast rows", function()
    local a, b = dm.randn(3, 6):t(), dm.randn(3)
    local plain = linalg.cross(a:contiguous(), b:expand(6, 3):contiguous())
    assert.is_true(dm.equal(plain, linalg.cross(a, b:expand(6, 3))))
    assert.is_true(dm.equal(plain, linalg.cross(a, b:unsqueeze(1))))
  end)
end)

describe("dm.linalg", function()
  it("has gradients of ops that read one triangle", function()
    for _, shape in ipairs{{3, 3}, {2, 2, 2}} do
      check_symmetric(linalg.cholesky, shape)
      check_symmetric(function(a) return linalg.cholesky(a, {upper = true}) end, shape)
      check_symmetric(linalg.eigh, shape)
      check_symmetric(function(a) return linalg.eigh(a, "U") end, shape)
      check_symmetric(linalg.eigvalsh, shape)
    end
  end)

  it("differentiates determinants of singular matrices twice", function()
    local x = dm.tensor({{1, 2, 0}, {2, 4, 0}, {0, 0, 3}}, DOUBLE):requires_grad_()
    local g = dm.autograd.grad(linalg.det(x), {x}, {create_graph = true})
    assert.is_true((g - dm.tensor({{12, -6, 0}, {-6, 3, 0}, {0, 0, 0}}, DOUBLE)):abs():max():item()
      < 1e-12)
    -- d(det)/dx11 is x22 x33 - x23 x32
    g[1][1]:backward()
    local want = dm.zeros(3, 3, DOUBLE)
    want[2][2], want[3][3] = 3, 4
    assert.is_true((x.grad - want):abs():max():item() < 1e-12)
  end)

  it("solves triangles of a few blocks, for few columns and for many", function()
    for _, n in ipairs{1, 31, 32, 33, 70} do
      for _, columns in ipairs{1, 7, 8, 9, 40} do
        for i, dtype in ipairs{"float64", "float32"} do
          local a = (dm.randn(2, n, n, DOUBLE) * 0.1 + dm.eye(n, DOUBLE) * 2):to(dtype)
          local b = dm.randn(2, n, columns, {dtype = dtype})
          for k = 0, 7 do
            local upper, left, unit = k % 2 == 1, k & 2 == 2, k & 4 == 4
            local options = {upper = upper, left = left, unitriangular = unit}
            local t = upper and a:triu() or a:tril()
            if unit then
              t = t - dm.diag_embed(t:diagonal(0, -2, -1)) + dm.eye(n, {dtype = dtype})
            end
            local right = left and b or b:transpose(-2, -1)
            local x = linalg.solve_triangular(a, right, options)
            local back = left and t:matmul(x) or x:matmul(t)
            local apart = (back - right):abs():amax():item()
            assert(apart < (i == 1 and 1e-12 or 1e-4), apart)
            assert.is_true(dm.equal(x[2], linalg.solve_triangular(a[2], right[2], options)))
          end
        end
      end
    end
    local wide = dm.eye(40)
    wide[35][35] = 0
    refuses("the matrix is singular: diagonal element 35 is 0", linalg.solve_triangular, wide,
      dm.ones(40, 20), {upper = true})
  end)

  it("names the matrix and the pivot", function()
    local two = dm.stack{dm.eye(3), dm.diag(dm.tensor{1.0, 2.0, 0.0})}
    refuses("linalg.inv: matrix 2 is singular: pivot 3 is 0", linalg.inv, two)
    refuses("linalg.inv: the matrix is singular: pivot 3 is 0", linalg.inv, two[2])
    refuses("linalg.solve: matrix 2 is singular: pivot 3 is 0", linalg.solve, two, dm.ones(3))
    refuses("linalg.inv: matrix 2", dm.inverse, two)
    refuses("matrix 2 is singular: diagonal element 3 is 0", linalg.solve_triangular, two,
      dm.ones(3, 1), {upper = false})
    refuses("linalg.cholesky: matrix 2 is not positive definite: pivot 3 is not above 0",
      linalg.cholesky, two)
    local nan = dm.stack{dm.eye(2), dm.full({2, 2}, 0 / 0)}
    for _, op in ipairs{"svd", "svdvals", "eigh", "eigvalsh"} do
      refuses("linalg." .. op .. ": matrix 2 holds NaN or an infinity", linalg[op], nan)
    end
    refuses("linalg.pinv: matrix 2 holds NaN or an infinity", linalg.pinv, nan)
  end)

  it("has norms of matrices without elements: 0, as PyTorch 2.15", function()
    for _, shape in ipairs{{0, 1}, {1, 0}, {2, 0, 3}, {2, 3, 0}} do
      local x = dm.zeros(shape, {requires_grad = true})
      for _, ord in ipairs{"fro", "nuc", 1, 2, math.huge} do
        local y = linalg.matrix_norm(x, {ord = ord})
        assert.same(#shape == 3 and {0, 0} or 0, y:totable())
      end
      for _, ord in ipairs{1, 2, -2, math.huge} do
        assert.same(#shape == 3 and {0, 0} or 0, linalg.cond(x, ord):totable())
      end
      assert.equal("{2, 1, 1}", tostring(linalg.matrix_norm(dm.zeros(2, 0, 3),
        {ord = 2, keepdim = true}).shape))
      assert.error_matches(function() linalg.matrix_norm(x, {ord = -2}) end, "no elements")
    end
  end)

  it("says what is wrong", function()
    refuses("linalg.inv: A is float16, wanted float32 or float64; hint: x:to(\"float32\")",
      linalg.inv, dm.ones(2, 2, {dtype = "float16"}))
    refuses("A is int64", linalg.svd, dm.eye(2, {dtype = "int64"}))
    refuses("A has shape {2, 3}, wanted square matrices", linalg.det, dm.ones(2, 3))
    refuses("A has shape {3}, wanted matrices", linalg.qr, dm.ones(3))
    refuses("A has shape {2, 2} and B {3, 1}", linalg.solve, dm.eye(2), dm.ones(3, 1))
    refuses("wanted as many columns", linalg.solve_triangular, dm.eye(2), dm.ones(2, 3),
      {upper = true, left = false})
    refuses("A is float32 and B is float64", linalg.solve, dm.eye(2), dm.ones(2, 1, DOUBLE))
    refuses("they do not fit", linalg.lu_solve, dm.eye(2), dm.ones(3, {dtype = "int32"}):t(),
      dm.ones(3, 1))
    refuses("a pivot is 7, wanted 1 to 2", linalg.lu_solve, dm.eye(2),
      dm.tensor({7, 2}, {dtype = "int32"}), dm.ones(2, 1))
    refuses("pivots are int64", linalg.lu_solve, dm.eye(2), dm.tensor{1, 2}, dm.ones(2, 1))
    refuses("wanted as many rows", linalg.lstsq, dm.ones(3, 2), dm.ones(2, 2))
    refuses("'3' is none of", linalg.cond, dm.eye(2), 3)
    refuses("dim 1 is given twice", linalg.matrix_norm, dm.eye(2), {dim = {1, 1}})
    refuses("tensors 1 and 2 have shapes {2, 2} and {3, 2}", linalg.multi_dot,
      {dm.ones(2, 2), dm.ones(3, 2)})
    refuses("1 tensors", linalg.multi_dot, {dm.ones(2, 2)})
    refuses("3 elements in dim 1", linalg.cross, dm.ones(2), dm.ones(2))
    refuses("A has shape {2, 3}", linalg.matrix_power, dm.ones(2, 3), 2)
    refuses("x has 3 dims, wanted one or two", linalg.norm, dm.ones(1, 1, 1), 2)
    local tall = dm.ones(3, 2, {requires_grad = true})
    refuses("mode \"complete\" has no gradient", function()
      linalg.qr(tall, "complete"):sum():backward()
    end)
    refuses("mode \"r\" has no gradient", function()
      select(2, linalg.qr(tall, "r")):sum():backward()
    end)
  end)

  it("solves least squares by each driver", function() -- ranks and values as in PyTorch 2.15
    local deficient = dm.tensor({{1, 2}, {2, 4}, {3, 6}}, DOUBLE)
    local b = dm.tensor({{1}, {0}, {1}}, DOUBLE)
    local shortest = deficient:pinverse():mm(b)
    for _, driver in ipairs{"gelsy", "gelsd", "gelss"} do
      local x, left, rank, values = linalg.lstsq(deficient, b, {driver = driver})
      assert.is_true((x - shortest):abs():amax():item() < 1e-14)
      assert.equal(0, left:numel())
      assert.equal(1, rank:item())
      assert.equal(driver == "gelsy" and 0 or 2, values:numel())
    end
    refuses("linalg.lstsq: the matrix has not full rank; hint: driver = \"gelsd\"", linalg.lstsq,
      deficient * dm.tensor({1, 0}, DOUBLE), b, {driver = "gels"})
    local wide = dm.tensor({{3, 0, 0}, {0, 1e-3, 0}}, DOUBLE)
    local x, _, rank = linalg.lstsq(wide, dm.ones(2, 1, DOUBLE), {rcond = 1e-2})
    assert.equal(1, rank:item())
    assert.is_true((x - dm.tensor({{1 / 3}, {0}, {0}}, DOUBLE)):abs():amax():item() < 1e-15)
  end)

  it("gives A's ranks and values where a batch is broadcast, none with gradients", function()
    local a, b = dm.randn(2, 1, 3, 2):requires_grad_(), dm.randn(1, 4, 3, 1)
    local x, left, rank, values = linalg.lstsq(a, b, {driver = "gelsd"})
    assert.same({2, 4, 2, 1}, x.shape)
    assert.same({2, 4, 1}, left.shape)
    assert.same({2, 1}, rank.shape)
    assert.same({2, 1, 2}, values.shape)
    assert.is_true(x.requires_grad and left.requires_grad)
    assert.is_false(values.requires_grad)
    assert.is_true((linalg.svdvals(a:detach()) - values):abs():amax():item() < 1e-5)
  end)

  it("solves least squares without rows, columns or right sides", function()
    for _, driver in ipairs{"gels", "gelsy", "gelsd"} do
      local function shapes(a, b) return linalg.lstsq(a, b, {driver = driver}).shape end
      assert.same({2, 3}, shapes(dm.ones(0, 2), dm.ones(0, 3)))
      assert.same({0, 2}, shapes(dm.ones(3, 0), dm.ones(3, 2)))
      assert.same({2, 0}, shapes(dm.randn(3, 2), dm.ones(3, 0)))
      assert.same({0, 2, 1}, shapes(dm.ones(0, 3, 2), dm.ones(0, 3, 1)))
      for i = 1, 2 do
        local pair = {dm.randn(2, 3, 2), dm.randn(2, 3, 2)}
        pair[i]:select(1, 2):fill_(i == 1 and 0 / 0 or math.huge)
        refuses("linalg.lstsq: matrix 2 holds NaN or an infinity", linalg.lstsq, pair[1], pair[2],
          {driver = driver})
      end
    end
    assert.same({0, 0}, linalg.lstsq(dm.ones(0, 2), dm.ones(0, 3)):sum(2):totable())
  end)

  it("chooses the norm by ord, dim and shape", function()
    local x = dm.tensor({{3, 0}, {0, -4}}, DOUBLE)
    assert.equal(5, linalg.norm(x):item())
    assert.equal(4, linalg.norm(x, 2):item())
    assert.equal(3, linalg.norm(x, -2):item())
    assert.equal(7, linalg.norm(x, "nuc"):item())
    assert.equal(4, linalg.norm(x, math.huge):item())
    assert.equal(5, linalg.norm(x, "fro"):item())
    assert.same({3, 4}, linalg.norm(x, 1, 2):totable())
    assert.same({{3}, {4}}, linalg.norm(x, {dim = 2, keepdim = true}):totable())
    assert.same({{7}}, linalg.norm(x, {ord = "nuc", dim = {1, 2}, keepdim = true}):totable())
    assert.equal("float64", linalg.norm(dm.ones(3), nil, nil, DOUBLE).dtype)
    assert.equal(5, linalg.norm(dm.tensor{3.0, 4.0}, 2):item())
  end)

  it("raises e to matrices whose sizes differ widely", function()
    local angle = 100.5 -- a rotation, far and near
    local a = dm.tensor({{{0, -angle}, {angle, 0}}, {{0, -1e-9}, {1e-9, 0}}}, DOUBLE)
    local y = linalg.matrix_exp(a)
    assert.is_true(math.abs(y[{1, 2, 1}]:item() - math.sin(angle)) < 1e-12)
    assert.is_true(math.abs(y[{2, 2, 1}]:item() - 1e-9) < 1e-24)
    local none = linalg.matrix_exp(dm.tensor({{1 / 0, 0}, {0, 0}}, DOUBLE))
    assert.is_true(none:isnan():all():item())
    local wide = dm.tensor{{0.3, -1.2}, {2.1, 0.7}}
    for _, dtype in ipairs{"float16", "bfloat16"} do
      local low = wide:to(dtype)
      assert.is_true(dm.equal(linalg.matrix_exp(low:float()):to(dtype), linalg.matrix_exp(low)))
    end
  end)

  it("tells which matrices have no inverse or factor, and does not raise", function()
    local a = dm.tensor({{{2, 0}, {0, 4}}, {{1, 2}, {2, 4}}, {{1, 0}, {0, -1}}}, DOUBLE)
    local inverse, info = linalg.inv_ex(a)
    assert.same({0, 2, 0}, info:totable())
    assert.equal("int32", info.dtype)
    assert.same({{0.5, 0}, {0, 0.25}}, inverse[1]:totable())
    assert.is_true(inverse[2]:isnan():all():item())
    local factor, other = linalg.cholesky_ex(a)
    assert.same({0, 2, 2}, other:totable())
    assert.equal(2, factor[{1, 2, 2}]:item())
    assert.is_true(factor[3]:isnan():all():item())
    for _, name in ipairs{"inv_ex", "cholesky_ex"} do -- DM_NOISE shows it for sure
      local _, none = linalg[name](dm.zeros(5, 0, 0))
      assert.same({0, 0, 0, 0, 0}, none:totable(), name)
    end
  end)

  it("says what shapes it wanted", function()
    refuses("as many elements in its first 2 dims as in the others", linalg.tensorinv,
      dm.ones(2, 3))
    refuses("A has shape {2, 3} and B {2}", linalg.tensorsolve, dm.ones(2, 3), dm.ones(2))
    refuses("tau {3}, wanted", linalg.householder_product, dm.ones(3, 2), dm.ones(3))
    refuses("dim 1 is given twice", dm.diagonal, dm.ones(2, 2), {dim1 = 1, dim2 = 1})
    refuses("diagonal: x has shape {2}", dm.diagonal, dm.ones(2))
  end)

  it("multiplies a chain in the order that takes least", function()
    local y
    local prof = dm.profiler.profile{record_shapes = true}
    do
      local _ <close> = prof
      y = linalg.multi_dot{dm.ones(20, 1), dm.ones(1, 20), dm.ones(20, 1)}
    end
    assert.equal(20, y[{1, 1}]:item())
    local products = {}
    for _, e in ipairs(prof:events()) do
      if e.name == "matmul" then products[#products + 1] = e.input_shapes end
    end
    assert.same({"{{1, 20}, {20, 1}}", "{{20, 1}, {1, 1}}"}, products)
  end)

  it("answers on any number of threads alike", function()
    local x = dm.randn(40, 40)
    local before = dm.get_num_threads()
    dm.set_num_threads(1)
    local one = linalg.inv(x):totable()
    dm.set_num_threads(4)
    local four = linalg.inv(x):totable()
    dm.set_num_threads(before)
    assert.same(one, four)
  end)

  it("says which package is missing", function()
    local script = [[
      local ok, message = pcall(require("demilune").linalg.inv, require("demilune").eye(2))
      print(ok, message)]]
    local pipe <close> = assert(io.popen(("DEMILUNE_LAPACK=/nowhere LUA_PATH='%s' LUA_CPATH='%s' "
      .. "lua5.4 -e '%s' 2>&1"):format(package.path, package.cpath, script)))
    assert.matches("linalg.inv: LAPACK %(liblapack.so.3%) was not found; "
      .. "hint: apt install libopenblas0%-serial", pipe:read "a")
  end)
end)
