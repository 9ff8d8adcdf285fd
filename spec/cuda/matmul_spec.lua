-- Device parity: matrix products on CUDA equal float64 products on the CPU within the rounding of
-- their dtype. Dense and transposed operands use cuBLASLt, other strides and integers the project's
-- own kernel.
local dm = require "demilune"
local both = require "spec.cuda.both"
local folder = require "spec.folder"

if both.missing() then return end

local WHOLE = {"uint8", "int8", "int16", "int32", "int64"}
-- the gap after 1.0
local EPS = {float16 = 2^-10, bfloat16 = 2^-7, float32 = 2^-23, float64 = 2^-52}

-- On the CPU, of that dtype; integers are 0 to 4.
local function random(dtype, ...)
  local x = dm.randn({...}, {device = "cpu", dtype = "float64"})
  return (EPS[dtype] and x or (x * 2):round():clamp(0, 4)):to(dtype)
end

-- Functions that copy a matrix, or a batch of them, to the device with other strides.
local LAYOUTS = {
  dense = function(x) return x:cuda() end,
  transposed = function(x) return x:transpose(-2, -1):contiguous():cuda():transpose(-2, -1) end,
  stepped = function(x) return dm.stack({x, x}, {dim = -1}):cuda():select(-1, 1) end,
  rows_apart = function(x)
    return dm.cat({x, x}, {dim = -1}):cuda():narrow(-1, 1, x.shape[x.ndim])
  end,
}

local function wide(x) return EPS[x.dtype] and x:double() or x:long() end

-- Is `got` alpha a b (+ added), summed up in the compute type and rounded once?
local function close(got, a, b, added, alpha, what)
  local k, dtype = a.shape[a.ndim], a.dtype
  local want = wide(a):matmul(wide(b)) * (alpha or 1)
  if added then want = want + wide(added) end
  assert.equal(dtype, got.dtype)
  assert.same(want.shape, got.shape)
  assert.equal("cuda:0", tostring(got.device))
  if want:numel() == 0 then return end
  if not EPS[dtype] then
    return assert.equal(0, (want:to(dtype) - got:cpu()):abs():max():item(), what)
  end
  local size = wide(a):abs():matmul(wide(b):abs()) * math.abs(alpha or 1)
  if added then size = size + wide(added):abs() end
  local gap = size * ((k + 4) * math.min(EPS[dtype], EPS.float32)) + want:abs() * EPS[dtype]
  -- float16's steps below its normal numbers
  local over = (want - got:cpu():double()):abs() - gap - 2^-24 * (dtype == "float16" and 1 or 0)
  assert(over:max():item() <= 0, what)
end

describe("CUDA's matrix products", function()
  for _, dtype in ipairs(both.floats) do
    it("of " .. dtype .. " at odd sizes, however the operands lie", function()
      for _, s in ipairs{{1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 65, 2}, {63, 64, 65},
          {130, 67, 31}, {2, 3, 129}} do
        local a, b = random(dtype, s[1], s[3]), random(dtype, s[3], s[2])
        for name_a, layout_a in pairs(LAYOUTS) do
          for name_b, layout_b in pairs(LAYOUTS) do
            local what = ("%dx%dx%d %s %s"):format(s[1], s[2], s[3], name_a, name_b)
            close(layout_a(a):matmul(layout_b(b)), a, b, nil, 1, what)
          end
        end
      end
    end)
  end

  for _, dtype in ipairs(WHOLE) do
    it("of " .. dtype .. " are exact", function()
      local a, b, c = random(dtype, 9, 4), random(dtype, 4, 70), random(dtype, 9, 1)
      close(LAYOUTS.transposed(a):matmul(b:cuda()), a, b)
      local y = dm.addmm(c:cuda(), a:cuda(), b:cuda(), {beta = 2, alpha = 1})
      close(y, a, b, c * 2)
    end)
  end

  it("broadcast their batches, and take vectors", function()
    for _, dtype in ipairs{"float32", "bfloat16", "int32"} do
      for _, s in ipairs{{{2, 3, 5, 7}, {3, 7, 4}}, {{2, 1, 5, 7}, {1, 3, 7, 4}},
          {{2, 1, 3, 1, 5, 7}, {4, 1, 2, 7, 3}}, {{5, 7}, {3, 7, 4}}, {{3, 5, 7}, {7}},
          {{7}, {3, 7, 4}}, {{7}, {7}}, {{0, 5, 7}, {7, 4}}, {{3, 5, 7}, {7, 4}}} do
        local a, b = random(dtype, table.unpack(s[1])), random(dtype, table.unpack(s[2]))
        close(a:cuda():matmul(b:cuda()), a, b, nil, 1, dtype)
      end
    end
  end)

  it("of heads that lie between the steps of a sequence", function()
    local q, k = random("float16", 3, 9, 2, 8), random("float16", 3, 9, 2, 8)
    local function heads(x) return x:transpose(2, 3) end
    close(heads(q:cuda()):matmul(heads(k:cuda()):transpose(-2, -1)), heads(q),
      heads(k):transpose(-2, -1))
  end)

  it("without a row, a column or a term", function()
    for _, s in ipairs{{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {1, 1, 0}} do
      local a, b = random("float32", s[1], s[3]), random("float32", s[3], s[2])
      close(a:cuda():matmul(b:cuda()), a, b)
      local c = random("float32", s[2])
      close(dm.addmm(c:cuda(), a:cuda(), b:cuda()), a, b, c)
    end
  end)

  it("scale both sides, and beta 0 reads no NaN", function()
    for _, dtype in ipairs(both.floats) do
      local a, b = random(dtype, 2, 33, 40), random(dtype, 2, 40, 18)
      local c, nan = random(dtype, 33, 1), dm.full({18}, 0 / 0, {dtype = dtype})
      local o = {beta = 2, alpha = -0.5}
      close(dm.baddbmm(c:cuda(), a:cuda(), b:cuda(), o), a, b, c * 2, -0.5)
      close(dm.baddbmm(nan:cuda(), a:cuda(), b:cuda(), {beta = 0}), a, b)
    end
  end)

  it("linear adds a bias, wherever it lies", function()
    for _, dtype in ipairs(both.floats) do
      local x, w, bias = random(dtype, 4, 3, 37), random(dtype, 21, 37), random(dtype, 21)
      local off = dm.cat{bias:narrow(1, 1, 1), bias}:cuda():narrow(1, 2, 21)
      local stepped = dm.stack({bias, bias}, {dim = 2}):cuda():select(2, 1)
      for _, b in ipairs{bias:cuda(), off, stepped} do
        close(dm.linear(x:cuda(), w:cuda(), b), x, w:t(), bias)
      end
      close(dm.linear(x:cuda(), w:cuda()), x, w:t())
      local between = x:transpose(1, 2)
      close(dm.linear(x:cuda():transpose(1, 2), w:cuda(), bias:cuda()), between, w:t(), bias)
    end
  end)

  it("give equal bits twice", function()
    local a, b = random("float32", 65, 300):cuda(), random("float32", 300, 70):cuda()
    assert(a:matmul(b):equal(a:matmul(b)))
  end)
end)

-- The gradients of x, w and b (nil: none) where gy flows into linear's result; composed:
-- by single ops, as for second gradients.
local function gradients(x, w, b, gy, activation, composed)
  local leaves = {}
  for _, t in ipairs{x, w, b} do leaves[#leaves + 1] = t:detach():requires_grad_() end
  local y = dm.linear(leaves[1], leaves[2], leaves[3], activation)
  return {dm.autograd.grad(y, leaves, {grad_outputs = gy, create_graph = composed})}
end

-- The number of launches and library calls while f runs, by the name of the kernel (without type
-- parameters) or of the library's function.
local function work_of(f)
  local from, n = dm.cuda._count "work", setmetatable({}, {__index = function() return 0 end})
  f()
  for i = from + 1, dm.cuda._count "work" do
    local name = dm.cuda._work(i):match "[%w_]+"
    n[name] = n[name] + 1
  end
  return n
end

describe("linear's gradients", function()
  local ACTIVATIONS = {"none", "relu", "gelu", "gelu_tanh"}
  -- rows, out, in
  local SIZES = {{6, 8, 5}, {1, 8, 5}, {33, 1, 4}, {70, 3, 9}, {300, 40, 2}, {0, 8, 4}, {5, 8, 0}}

  local function check(dtype, size, layout_gy, layout_x, what)
    local r, o, k = table.unpack(size)
    local x, w, b = random(dtype, r, k), random(dtype, o, k), random(dtype, o)
    local gy = random(dtype, r, o)
    for _, name in ipairs(ACTIVATIONS) do
      local want = gradients(wide(x), wide(w), wide(b), wide(gy), name)
      for _, composed in ipairs{false, true} do
        local got = gradients(layout_x(x), w:cuda(), b:cuda(), layout_gy(gy), name, composed)
        for i, g in ipairs(want) do
          local t = got[i]:detach():cpu()
          assert.equal(dtype, t.dtype)
          assert.same(g.shape, t.shape)
          if g:numel() > 0 then
            -- what the activation got is rounded once more, and so are its gradients
            local over = (t:double() - g):abs():max():item()
            local gap = EPS[dtype] * 4 * (r + o) ^ 0.5 * (1 + g:abs():max():item())
            assert(over <= gap, ("%s %s %s %s: %g > %g"):format(what, dtype, name,
              composed and "composed" or "fused", over, gap))
          end
        end
      end
    end
  end

  for _, dtype in ipairs(both.floats) do
    it("of " .. dtype .. " are those of float64 on the CPU", function()
      for _, size in ipairs(SIZES) do
        check(dtype, size, LAYOUTS.dense, LAYOUTS.dense, table.concat(size, "x"))
      end
    end)
  end

  it("take operands however they lie", function()
    for name, layout in pairs(LAYOUTS) do
      check("float32", {9, 8, 6}, layout, LAYOUTS.dense, "gy " .. name)
      check("float16", {9, 8, 6}, LAYOUTS.dense, layout, "x " .. name)
    end
    -- a gradient that is one number, spread over the result
    local x, w, b = random("float32", 6, 5), random("float32", 8, 5), random("float32", 8)
    for _, name in ipairs(ACTIVATIONS) do
      local one = dm.ones({1, 1}, {device = "cpu"})
      local got = gradients(x:cuda(), w:cuda(), b:cuda(), one:cuda():expand(6, 8), name)
      local want = gradients(x, w, b, one:expand(6, 8), name)
      for i, g in ipairs(want) do assert((got[i]:cpu() - g):abs():max():item() < 1e-5) end
    end
  end)

  it("keep the shapes of a batch, and of a vector", function()
    for _, shape in ipairs{{3, 2, 5}, {5}} do
      local out = {table.unpack(shape)}
      out[#out] = 8
      local x, w, b = random("float32", table.unpack(shape)), random("float32", 8, 5),
        random("float32", 8)
      local gy = random("float32", table.unpack(out))
      for _, name in ipairs(ACTIVATIONS) do
        local want = gradients(x, w, b, gy, name)
        for i, t in ipairs(gradients(x:cuda(), w:cuda(), b:cuda(), gy:cuda(), name)) do
          assert.same(want[i].shape, t.shape)
          assert((t:cpu() - want[i]):abs():max():item() < 1e-5)
        end
      end
    end
  end)

  it("agree with finite differences", function()
    local o = {dtype = "float64", device = "cuda", requires_grad = true}
    local x, w, b = dm.randn({4, 3}, o), dm.randn({8, 3}, o), dm.randn({8}, o)
    for _, name in ipairs{"none", "gelu", "gelu_tanh"} do
      local function f(...)
        local t = {...}
        return dm.linear(t[1], t[2], t[3], name)
      end
      assert.is_true(dm.autograd.gradcheck(f, {x, w, b}))
    end
  end)

  it("are wanted of some operands only", function()
    local x, w, b = random("float32", 6, 5), random("float32", 8, 5), random("float32", 8)
    local gy = random("float32", 6, 8)
    for _, name in ipairs(ACTIVATIONS) do
      local want = gradients(x, w, b, gy, name)
      for only = 1, 7 do
        local t = {x:cuda(), w:cuda(), b:cuda()}
        for i = 1, 3 do t[i].requires_grad = only >> (i - 1) & 1 == 1 end
        dm.linear(t[1], t[2], t[3], name):backward{gradient = gy:cuda()}
        for i = 1, 3 do
          assert.equal(t[i].requires_grad, t[i].grad ~= nil)
          if t[i].grad then assert((t[i].grad:cpu() - want[i]):abs():max():item() < 1e-5) end
        end
      end
    end
  end)

  it("give equal bits twice", function()
    local x, w, b = random("float16", 300, 9), random("float16", 40, 9), random("float16", 40)
    local gy = random("float16", 300, 40):cuda()
    for _, name in ipairs(ACTIVATIONS) do
      local one = gradients(x:cuda(), w:cuda(), b:cuda(), gy, name)
      local other = gradients(x:cuda(), w:cuda(), b:cuda(), gy, name)
      for i, t in ipairs(one) do assert(t:equal(other[i])) end
    end
  end)

  -- The work that the gradients of w and b queue.
  local function work(rows, dtype, activation, layout)
    local x, w, b = random(dtype, rows, 4):cuda(), random(dtype, 8, 4):cuda(),
      random(dtype, 8):cuda()
    local gy = (layout or LAYOUTS.dense)(random(dtype, rows, 8))
    w.requires_grad, b.requires_grad = true, true
    local y = dm.linear(x, w, b, activation)
    return work_of(function() dm.autograd.grad(y, {w, b}, {grad_outputs = gy}) end)
  end
  local function total(n)
    local sum = 0
    for _, count in pairs(n) do sum = sum + count end
    return sum
  end

  both.it_counts("of weight and bias are one call of cuBLASLt", function()
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      local n = work(32, dtype, "none")
      assert.equal(1, n.cublasLtMatmul)
      assert.equal(1, total(n))
    end
  end)

  both.it_counts("of the bias are added up apart where cuBLASLt does not", function()
    -- float64, one row, rows that lie apart, and a gy that outgrows the cache (of 1 MiB)
    for what, n in pairs{float64 = work(32, "float64", "none"), one = work(1, "float32", "none"),
        layout = work(32, "float32", "none", LAYOUTS.transposed),
        large = work((1 << 15) + 1, "float32", "none")} do
      assert.equal(1, n.cublasLtMatmul, what)
      assert.equal(1, n.dm_columns_kernel + n.dm_rows_kernel, what)
    end
  end)

  both.it_counts("of an activation and the bias are one read of gy", function()
    for _, name in ipairs{"relu", "gelu", "gelu_tanh"} do
      for _, dtype in ipairs(both.floats) do
        local n = work(32, dtype, name)
        assert.equal(1, n.cublasLtMatmul)
        assert.equal(1, n.dm_columns_kernel)
        assert.equal(2, total(n))
      end
    end
  end)
end)

describe("cuBLASLt", function()
  setup(folder.make)
  teardown(folder.remove)

  local MAKE = [[
    local function product(m, n, k)
      local y = dm.ones({m, k}, {device = "cuda"}):matmul(dm.ones({k, n}, {device = "cuda"}))
      assert(y:cpu():equal(dm.full({m, n}, k)))
    end
  ]]
  local function counts(environment, program)
    return both.counts(environment, MAKE .. program)
  end
  local TWICE = "product(5, 6, 40) product(5, 6, 40) product(5, 6, 41)"

  both.it_counts("is asked once for each kind of product", function()
    local n = counts("", TWICE)
    assert.equal(2, n.cublasLtMatmulAlgoGetHeuristic)
    assert.equal(3, n.cublasLtMatmul)
    assert.equal(0, n.gemm_kernel)
  end)

  both.it_counts("is asked again for what it forgot", function()
    local n = counts("", "for _ = 1, 2 do for k = 1, 1500 do product(1, 1, k) end end")
    assert.equal(3000, n.cublasLtMatmul)
    assert(n.cublasLtMatmulAlgoGetHeuristic > 1500)
  end)

  both.it_counts("serves each device and stream", function()
    local n = counts("", TWICE .. [[
      do
        local _ <close> = dm.device "cuda:1"
        local x = dm.ones(3, 3)
        assert(x:matmul(x):cpu():sum():item() == 27)
      end
      do
        local _ <close> = dm.cuda.stream(dm.cuda.Stream())
        product(5, 6, 40)
      end
    ]])
    assert.equal(3, n.cublasLtMatmulAlgoGetHeuristic)
    assert.equal(5, n.cublasLtMatmul)
  end)

  both.it_counts("leaves what it refuses to our own kernel, and is not asked again", function()
    for name, asked in pairs{cublasLtCreate = 0, cublasLtMatmulAlgoGetHeuristic = 2,
        cublasLtMatmul = 2} do
      local n = counts("DEMILUNE_EMULATED_CUBLASLT_REFUSES=" .. name, TWICE)
      assert.equal(asked, n.cublasLtMatmulAlgoGetHeuristic, name)
      assert.equal(0, n.cublasLtMatmul, name)
      assert.equal(3, n.gemm_kernel, name)
    end
  end)

  both.it_counts("is switched off by DEMILUNE_CUBLASLT=0", function()
    local n = counts("DEMILUNE_CUBLASLT=0", TWICE)
    assert.equal(0, n.cublasLtMatmulAlgoGetHeuristic)
    assert.equal(3, n.gemm_kernel)
  end)

  local ACTIVATED = [[
    for _, name in ipairs{"relu", "gelu_tanh", "gelu"} do
      for _, o in ipairs{8, 9} do
        local x, w, b = dm.randn(6, 5), dm.randn(o, 5), dm.randn(o)
        local function run(device, dtype, grad)
          local t = {}
          for i, v in ipairs{x, w, b} do
            t[i] = v:to(dtype):to(device):detach()
            t[i].requires_grad = grad
          end
          local y = dm.linear(t[1], t[2], t[3], name)
          if grad then y:sum():backward() end
          local gx = grad and t[1].grad:cpu() or dm.zeros(1)
          return y:detach():cpu():double(), gx:double()
        end
        for dtype, gap in pairs{float32 = 1e-5, bfloat16 = 4e-2, float64 = 1e-10} do
          for _, grad in ipairs{false, true} do
            local y, gx = run("cuda", dtype, grad)
            local want, gwant = run("cpu", dtype, grad)
            assert((y - want):abs():max():item() < gap, name .. dtype)
            assert((gx - gwant):abs():max():item() < gap * 8, name .. dtype)
          end
        end
      end
    end
  ]]

  both.it_counts("works out an activation with the product", function()
    local n = both.counts("", [[
      local o = {device = "cuda"}
      local x, w, b = dm.randn({6, 5}, o), dm.randn({8, 5}, o), dm.randn({8}, o)
      dm.linear(x, w, b, "relu") dm.linear(x, w, b, "gelu_tanh") dm.linear(x, w, "relu")
      w.requires_grad = true
      dm.linear(x, w, b, "gelu_tanh")
    ]])
    assert.equal(4, n.cublasLtMatmul)
    for name in pairs(n) do assert(not name:find "elu", name) end
    n = both.counts("", ACTIVATED)
    assert(n.cublasLtMatmul > 0)
    assert.equal(0, n.gemm_kernel)
  end)

  both.it_counts("leaves sums that it refuses to a kernel of our own", function()
    local LINEAR = [[
      local x, w, b = dm.randn(6, 5), dm.randn(8, 5), dm.randn(8)
      local function run(device)
        local t = {}
        for i, v in ipairs{x, w, b} do t[i] = v:to(device):detach():requires_grad_() end
        dm.linear(t[1], t[2], t[3]):square():sum():backward()
        return t
      end
      for _ = 1, 2 do
        local want, got = run "cpu", run "cuda"
        for i = 1, 3 do assert((got[i].grad:cpu() - want[i].grad):abs():max():item() < 1e-4) end
      end
      print(dm.cuda.plans().cublaslt.refused)
    ]]
    for environment, products in pairs{[""] = 6, ["DEMILUNE_CUBLASLT=0"] = 0,
        ["DEMILUNE_EMULATED_CUBLASLT_REFUSES=epilogue"] = 6,
        ["DEMILUNE_EMULATED_CUBLASLT_REFUSES=cublasLtMatmul"] = 0} do
      local n = both.counts(environment, LINEAR)
      assert.equal(products, n.cublasLtMatmul, environment)
      assert.equal(6 - products, n.gemm_kernel, environment)
    end
  end)

  both.it_counts("sums the gradient of addmm's bias with the product", function()
    local ADDMM = [[
      local x, w, b = dm.randn(6, 8), dm.randn(8, 16), dm.randn(16)
      local function run(device)
        local t = {}
        for i, v in ipairs{x, w, b} do t[i] = v:to(device):detach():requires_grad_() end
        dm.addmm(t[3], t[1], t[2]):square():sum():backward()
        return t
      end
      for _ = 1, 2 do
        local want, got = run "cpu", run "cuda"
        for i = 1, 3 do assert((got[i].grad:cpu() - want[i].grad):abs():max():item() < 1e-4) end
      end
    ]]
    for environment, sums in pairs{[""] = 0, ["DEMILUNE_CUBLASLT=0"] = 2,
        ["DEMILUNE_EMULATED_CUBLASLT_REFUSES=epilogue"] = 2} do
      local n = both.counts(environment, ADDMM)
      assert.equal(sums, n.dm_columns_kernel, environment)
    end
  end)

  both.it_counts("leaves an activation that it refuses to kernels of our own", function()
    local n = both.counts("DEMILUNE_EMULATED_CUBLASLT_REFUSES=epilogue", ACTIVATED)
    assert(n.cublasLtMatmul > 0)
    n = both.counts("DEMILUNE_CUBLASLT=0", ACTIVATED)
    assert.equal(0, n.cublasLtMatmul)
    assert(n.gemm_kernel > 0)
  end)
end)
