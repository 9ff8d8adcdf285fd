-- Matrix products on CUDA against float64 on the CPU. Dense and transposed operands
-- go to cuBLASLt, stepped ones and integers to our own kernel.
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

-- Ways for a matrix, or a batch of them, to lie on the device.
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
        for name_a, lay_a in pairs(LAYOUTS) do
          for name_b, lay_b in pairs(LAYOUTS) do
            local what = ("%dx%dx%d %s %s"):format(s[1], s[2], s[3], name_a, name_b)
            close(lay_a(a):matmul(lay_b(b)), a, b, nil, 1, what)
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

  both.it_counts("leaves an activation that it refuses to kernels of our own", function()
    local n = both.counts("DEMILUNE_EMULATED_CUBLASLT_REFUSES=epilogue", ACTIVATED)
    assert(n.cublasLtMatmul > 0)
    n = both.counts("DEMILUNE_CUBLASLT=0", ACTIVATED)
    assert.equal(0, n.cublasLtMatmul)
    assert(n.gemm_kernel > 0)
  end)
end)
