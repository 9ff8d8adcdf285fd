-- Device parity: reductions, scans and softmax on CUDA equal the CPU's at sizes that reach every
-- branch of the kernels, and two runs give equal bits.
local dm = require "demilune"
local both = require "spec.cuda.both"

if both.missing() then return end

local HALF = {"float16", "bfloat16"}
local FLOATS = {"float32", "float64", table.unpack(HALF)}
local WHOLE = {"bool", "uint8", "int8", "int16", "int32", "int64"}
local SIZES = {1, 31, 32, 33, 1000, 5000, 70000}
-- float32 sums are trees of float32; on the CPU they end in float64
local GAP = {float64 = 1e-12, float32 = 1e-4, float16 = 2^-10, bfloat16 = 2^-7}

local function random(dtype, ...)
  local x = dm.randn({...}, {device = "cpu"})
  if GAP[dtype] then return x:to(dtype) end
  return x:mul_(3):to(dtype)
end

-- Numbers equal, or both NaN.
local function equals(a, b) return a:eq(b):logical_or(a:isnan():logical_and(b:isnan())) end

-- Every element within gap (1 + |want|); NaN and infinities where they are wanted.
local function close(want, got, gap, what)
  assert.equal("cuda:0", tostring(got.device))
  assert.equal(want.dtype, got.dtype, what)
  assert.same(want.shape, got.shape, what)
  local w, g = want:to "float64", got:to("cpu"):to "float64"
  local off = w:sub(g):abs():div(w:abs():add(1))
  if not equals(w, g):logical_or(off:le(gap)):all():item() then
    error(("%s: off by %g, wanted %g at most"):format(what, off:max():item(), gap), 0)
  end
end

-- x:op(opts) on both devices, of the view of x; on CUDA twice.
local function compare(op, x, opts, gap, view)
  view = view or function(t) return t end
  local near, far = view(x), view(x:to "cuda")
  local what = ("%s of %s {%s}"):format(op, x.dtype, table.concat(near.shape, ","))
  local want = {near[op](near, opts)}
  local got, again = {far[op](far, opts)}, {far[op](far, opts)}
  assert.equal(#want, #got, what)
  for i, w in ipairs(want) do
    close(w, got[i], gap or GAP[w.dtype] or 0, what)
    assert.is_true(equals(got[i]:to "cpu", again[i]:to "cpu"):all():item(), what .. ", again")
  end
end

local function transposed(x) return x:transpose(1, -1) end
local function every_other(x) return x:slice(-1, 1, -1, 2) end

-- Along rows, columns and all elements; `with` has the options other than the dim.
local function walks(op, dtype, with)
  local function opts(dim)
    local o = {dim = dim}
    for k, v in pairs(with or {}) do o[k] = v end
    return o
  end
  local list = op ~= "max" and op ~= "min" and op ~= "argmax" and op ~= "argmin"
  for _, n in ipairs(SIZES) do
    compare(op, random(dtype, n), with)
    if n <= 5000 then
      compare(op, random(dtype, 3, n), opts(2)) -- rows
      compare(op, random(dtype, n, 40), opts(1)) -- columns
    end
  end
  local x = random(dtype, 6, 8, 10, 12)
  for dim = 1, 4 do
    compare(op, x, opts(dim))
    compare(op, x, opts(dim), nil, transposed)
    compare(op, x, opts(dim), nil, every_other)
  end
  if list then
    for _, dims in ipairs {{1, 3, 4}, {2, 4}, {1, 2}, {1, 4}} do
      compare(op, x, opts(dims))
      compare(op, x, opts(dims), nil, transposed)
    end
  end
end

describe("CUDA's reductions", function()
  before_each(function() dm.manual_seed(11) end)

  for _, op in ipairs {"sum", "mean", "var", "amax", "max", "argmin"} do
    for _, dtype in ipairs(FLOATS) do
      it(("%s of %s"):format(op, dtype), function() walks(op, dtype) end)
    end
  end
  for _, op in ipairs {"sum", "prod", "any", "all", "amin", "min", "argmax"} do
    for _, dtype in ipairs(WHOLE) do
      it(("%s of %s"):format(op, dtype), function() walks(op, dtype) end)
    end
  end
  for _, p in ipairs {2, 1, 0, 3, -2, math.huge, -math.huge} do
    it(("norm, p = %g"):format(p), function()
      for _, dtype in ipairs {"float32", "float64", "float16"} do walks("norm", dtype, {p = p}) end
    end)
  end
  it("logsumexp, std, any and all of floats", function()
    for _, dtype in ipairs(FLOATS) do
      for _, n in ipairs(SIZES) do
        compare("logsumexp", random(dtype, n), {dim = 1})
        compare("any", random(dtype, n):mul(0))
        compare("all", random(dtype, n))
        if n <= 5000 then
          compare("logsumexp", random(dtype, n, 40), {dim = 1})
          compare("std", random(dtype, 3, n), {dim = 2, correction = 0})
        end
      end
    end
  end)

  it("products do not depend on how they are cut", function()
    local x = dm.full({5000}, 1, {device = "cpu"})
    x[17], x[4000] = -2.5, 3
    for _, dtype in ipairs(FLOATS) do compare("prod", x:to(dtype)) end
  end)

  it("results in another dtype", function()
    for _, from in ipairs {"float16", "bfloat16", "float64", "int32", "bool"} do
      for _, to in ipairs {"float32", "float64", "int64"} do
        local x = random(from, 300, 8)
        compare("sum", x, {dim = 1, dtype = to})
        compare("sum", x, {dim = 2, dtype = to})
        compare("cumsum", x, {dim = 1, dtype = to})
      end
    end
  end)

  it("variance far from zero", function()
    local x = dm.randn({5, 5000}, {device = "cpu"}):add(1e4)
    compare("var", x, {dim = 2}, 1e-4)
    compare("var", x, nil, 1e-4)
  end)

  it("norms whose squares leave float32", function()
    for _, scale in ipairs {1e30, 1e-30, 1e-42} do
      local x = dm.rand({3, 1000}, {device = "cpu"}):add(1):mul(scale)
      local near, far = x:norm{dim = 2}, x:to("cuda"):norm{dim = 2}:to "cpu"
      -- 1e-42 has ten bits
      assert.is_true(far:div(near):sub(1):abs():max():item() < (scale < 1e-38 and 1e-3 or 1e-6))
    end
    local mixed = dm.tensor({1e30, 1, 1e-30}, {device = "cuda"})
    assert.equal(dm.tensor(1e30):item(), mixed:norm():item())
  end)

  local odd = {math.huge, -math.huge, 0 / 0, 1, -1, 0}
  it("NaN and infinities, at every position", function()
    for _, dtype in ipairs(FLOATS) do
      for _, n in ipairs {33, 5000} do
        for k, v in ipairs(odd) do
          local x = random(dtype, 3, n)
          x[1][1], x[2][n], x[3][n // 2] = v, v, v
          x[2][1] = odd[k % #odd + 1]
          for _, op in ipairs {"sum", "var", "norm", "logsumexp", "amax", "amin", "max", "min",
            "argmax", "any", "cumsum", "softmax", "log_softmax"} do
            compare(op, x, {dim = 2})
            compare(op, x, {dim = 1}, nil, transposed)
            if op == "norm" then compare(op, x, {dim = 2, p = math.huge}) end
          end
        end
      end
    end
  end)

  it("of equals the first", function()
    local x = dm.zeros({70000}, {device = "cuda"})
    assert.equal(1, x:argmax():item())
    assert.equal(1, x:argmin():item())
    x[5001], x[60000] = 1, 1
    assert.equal(5001, x:argmax():item())
    x[69999], x[70000] = 0 / 0, 0 / 0 -- of columns 9 and 10
    assert.equal(69999, x:argmin():item())
    local _, at = x:reshape({7000, 10}):max{dim = 1}
    assert.same({501, 1, 1, 1, 1, 1, 1, 1, 7000, 7000}, at:totable())
  end)

  it("nothing to reduce", function()
    for _, shape in ipairs {{0}, {3, 0}, {0, 3}, {0, 0}} do
      local x = dm.zeros(shape, {device = "cpu"})
      for _, op in ipairs {"sum", "mean", "prod", "var", "norm", "any", "all"} do
        compare(op, x)
        compare(op, x, {dim = 1})
      end
    end
    assert.refuses("no elements", function() dm.zeros({3, 0}, {device = "cuda"}):amax() end)
  end)

  it("a scalar", function()
    for _, op in ipairs {"sum", "mean", "amax", "argmax", "any", "norm"} do
      compare(op, dm.tensor(3, {device = "cpu", dtype = "float32"}))
    end
  end)

  it("gradients of what was broadcast", function()
    for dims, shape in pairs {[{1}] = {1, 64}, [{2}] = {300, 1}, [{1, 2}] = {1, 1}} do
      local w = random("float32", table.unpack(shape)):to("cuda"):requires_grad_()
      local x = random("float32", 300, 64)
      w:mul(x:to "cuda"):sum():backward()
      local want = x:sum{dim = dims, keepdim = true}
      close(want, w.grad, 1e-4, "gradient")
    end
  end)
end)

describe("CUDA's running sums", function()
  before_each(function() dm.manual_seed(12) end)
  for _, dtype in ipairs {"float32", "float64", "float16", "bool", "int32", "int64"} do
    it("of " .. dtype, function()
      local gap = dtype == "float32" and 1e-3 or nil -- rounded at every element
      for _, n in ipairs(SIZES) do
        compare("cumsum", random(dtype, n), {dim = 1}, gap)
        if n <= 5000 then
          compare("cumsum", random(dtype, 3, n), {dim = 2}, gap)
          compare("cumsum", random(dtype, n, 3), {dim = 1}, gap)
          compare("cumsum", random(dtype, n, 40), {dim = 1}, gap)
        end
      end
      compare("cumsum", random(dtype, 6, 8, 10), {dim = 2}, gap, transposed)
    end)
  end
  it("their gradients run from the end", function()
    for _, n in ipairs {33, 5000, 70000} do
      local x = dm.zeros({n}, {device = "cuda", requires_grad = true})
      x:cumsum{dim = 1}:sum():backward()
      assert.is_true(dm.equal(x.grad:to "cpu", dm.arange(n, 1, -1, {device = "cpu"}):to "float32"))
    end
  end)
end)

-- Results and gradients of an op of x along dim, on both devices.
local function with_gradient(op, x, opts, view)
  local weight = dm.randn(x.shape, {device = "cpu"})
  compare(op, x, opts, nil, view)
  local grads = {}
  for i, device in ipairs {"cpu", "cuda"} do
    local leaf = x:to(device):detach():requires_grad_()
    local y = view and view(leaf) or leaf
    local w = weight:to(device)
    y[op](y, opts):mul(view and view(w) or w):sum():backward()
    grads[i] = leaf.grad
  end
  close(grads[1], grads[2], GAP[x.dtype], "gradient of " .. op)
end

describe("CUDA's softmax", function()
  before_each(function() dm.manual_seed(13) end)
  for _, dtype in ipairs(FLOATS) do
    for _, op in ipairs {"softmax", "log_softmax"} do
      it(("%s of %s"):format(op, dtype), function()
        for _, n in ipairs {1, 7, 31, 32, 33, 256, 1000, 1024, 1032, 5000, 20000, 70000} do
          with_gradient(op, random(dtype, n), {dim = 1})
          if n <= 5000 then
            with_gradient(op, random(dtype, 5, n), {dim = 2})
            with_gradient(op, random(dtype, n, 3), {dim = 1})
          end
          if n <= 1000 then with_gradient(op, random(dtype, 2, n, 40), {dim = 2}) end
        end
        local x = random(dtype, 6, 8, 10)
        for dim = 1, 3 do with_gradient(op, x, {dim = dim}, transposed) end
        if dtype ~= "float64" then
          compare(op, random(dtype, 5, 64), {dim = 2, dtype = "float32"})
          compare(op, random(dtype, 5, 33), {dim = 2, dtype = "float64"})
        end
      end)
    end
  end
  it("of integers, into floats", function()
    compare("softmax", random("int32", 5, 33), {dim = 2, dtype = "float32"})
    compare("softmax", random("int32", 5, 33), {dim = 1, dtype = "float16"})
  end)
  it("stays finite where exp would not", function()
    for _, n in ipairs {100, 20000} do
      for _, shift in ipairs {1e4, -1e4} do
        compare("softmax", random("float32", 2, n):add(shift), {dim = 2})
      end
    end
  end)
  it("shares of masked rows", function()
    for _, n in ipairs {8, 100, 20000} do
      local x = random("float32", 3, n)
      x[1]:fill_(-math.huge)
      x[2]:narrow(1, 2, n - 1):fill_(-math.huge)
      x[3]:narrow(1, 1, n - 1):fill_(-math.huge)
      for _, op in ipairs {"softmax", "log_softmax", "logsumexp"} do
        compare(op, x, {dim = 2})
        compare(op, x, {dim = 1}, nil, transposed)
      end
    end
  end)
end)
