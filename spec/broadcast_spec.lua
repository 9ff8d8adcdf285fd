-- Gradients of operands that were broadcast, which the CPU sums as it computes their elements:
-- each op, dtype and layout against float64.
local dm = require "demilune"

local OPS = {
  mul = function(x, v) return x * v end,
  div = function(x, v) return x / v end,
  ["div, of a broadcast dividend"] = function(x, v) return v / x end,
  lerp = function(x, v) return dm.lerp(x, v, 0.3) end,
  ["lerp, of a broadcast start"] = function(x, v) return dm.lerp(v, x, 0.3) end,
  ["lerp, of a broadcast weight"] = function(x, v) return dm.lerp(x, x * 0.5, v) end,
  addcmul = function(x, v) return dm.addcmul(x, v, x, {value = 0.5}) end,
  addcdiv = function(x, v) return dm.addcdiv(x, x, v, {value = 0.5}) end,
  ["addcdiv, of a broadcast dividend"] = function(x, v) return dm.addcdiv(x, v, x) end,
  atan2 = function(x, v) return dm.atan2(x, v) end,
  hypot = function(x, v) return dm.hypot(x, v) end,
  fmod = function(x, v) return dm.fmod(x, v) end,
  xlogy = function(x, v) return dm.xlogy(x, v) end,
  logaddexp = function(x, v) return dm.logaddexp(v, x) end,
}

-- Shapes of x and of an operand that is broadcast to it: rows, columns, one number, inner and
-- outer dims; on the CPU also more columns than a block has, and more rows than a chunk.
local SHAPES = {
  {{37, 70}, {70}}, {{37, 70}, {1, 70}}, {{37, 70}, {37, 1}}, {{37, 70}, {}}, {{37, 70}, {1}},
  {{1, 70}, {70}}, {{5, 6, 7}, {6, 1}}, {{5, 6, 7}, {5, 1, 7}}, {{5, 6, 7}, {1, 6, 1}},
  {{0, 3}, {3}}, {{1, 3}, {2, 1}}, {{5, 1}, {}}, {{5, 1}, {1}}, {{1, 5}, {1}},
  {{3, 4200}, {4200}}, {{4200, 3}, {3}}, {{3, 4200}, {3, 1}}, {{5000, 64}, {64}},
}
local ON_A_GPU = 14 -- the first so many

local LAST_BIT = {float32 = 2 ^ -23, bfloat16 = 2 ^ -8, float16 = 2 ^ -11}

-- Between 1 and 2, so that no formula has a pole, and quotients are not at a step.
local function between(shape, dtype)
  return (dm.rand(shape, {dtype = "float64"}) + 1.05):to(dtype)
end

local LAYOUTS = {
  contiguous = function(t) return t end,
  transposed = function(t)
    return t:dim() < 2 and t or t:transpose(1, -1):contiguous():transpose(1, -1)
  end,
}

-- The gradients in x and v for gy.
local function gradients(f, x, v, gy)
  x, v = x:detach():requires_grad_(), v:detach():requires_grad_()
  local y = f(x, v)
  y:backward(gy and gy:to(y.dtype) or dm.ones(y.shape, {dtype = y.dtype}))
  return {x.grad, v.grad}
end

describe("gradients of broadcast operands", function()
  for title, f in pairs(OPS) do
    for dtype, last_bit in pairs(LAST_BIT) do
      it(("of %s, %s"):format(title, dtype), function()
        local on_cpu = dm.zeros(1).device == "cpu"
        for _, shapes in ipairs(on_cpu and SHAPES or table.move(SHAPES, 1, ON_A_GPU, 1, {})) do
          for layout, laid in pairs(LAYOUTS) do
            local x, v = laid(between(shapes[1], dtype)), between(shapes[2], dtype)
            local gy = laid((dm.rand(f(x, v).shape, {dtype = "float64"}) - 0.5):to(dtype))
            for _, by in ipairs{gy, false} do
              local got = gradients(f, x, v, by)
              local want = gradients(f, x:double(), v:double(), by)
              for i, leaf in ipairs{x, v} do
                assert.same(leaf.shape, got[i].shape)
                assert.equal(dtype, got[i].dtype)
                if leaf:numel() > 0 and got[i]:numel() > 0 then
                  local n = math.max(1, f(x, v):numel() / leaf:numel()) -- terms, each of about 1
                  local off = (got[i]:double() - want[i]):abs():max():item()
                  local size = math.max(1, want[i]:abs():max():item())
                  local allowed = 4 * last_bit * size + 16 * 2 ^ -23 * n
                  assert.is_true(off <= allowed, ("%s, %d of shapes %s and %s: off by %g of %g")
                    :format(layout, i, table.concat(shapes[1], "x"), table.concat(shapes[2], "x"),
                      off, allowed))
                end
              end
            end
          end
        end
      end)
    end
  end

  it("of a column times a row are a matrix times a vector", function()
    local a, b = dm.randn(5, 1):requires_grad_(), dm.randn(7):requires_grad_()
    local gy = dm.randn(5, 7)
    local y = a * b
    local ga, gb = dm.autograd.grad(y, {a, b}, {grad_outputs = gy, retain_graph = true})
    local few = {atol = 1e-5} -- of terms that may cancel
    assert.is_true(dm.allclose(ga, gy:mv(b:detach()):unsqueeze(2), few))
    assert.is_true(dm.allclose(gb, gy:t():mv(a:detach():squeeze(2)), few))
    local ga2, gb2 = dm.autograd.grad(y, {a, b}, {grad_outputs = gy, create_graph = true})
    assert.is_true(dm.allclose(ga, ga2, few) and dm.allclose(gb, gb2, few))
  end)

  it("of mixed dtypes are those of the wider one", function()
    local x, v = dm.rand(30, 40):requires_grad_(), (dm.rand(40) + 1):half():requires_grad_()
    for _, f in pairs{OPS.mul, OPS.div} do
      x.grad, v.grad = nil, nil
      f(x, v):sum():backward()
      local want = gradients(f, x:double(), v:double())
      assert.equal("float16", v.grad.dtype)
      assert.is_true(dm.allclose(v.grad:double(), want[2], {rtol = 2 ^ -10}))
      assert.is_true(dm.allclose(x.grad:double(), want[1], {rtol = 1e-6}))
    end
  end)
end)
