-- batch_norm of runs of every length, so that vectors are full, partly filled and missing, against
-- its formula in float64: y = (x - mean) / sqrt(var + eps) * w + b of each channel, relu of it, and
-- all gradients.
local dm = require "demilune"
local F = dm.nn.functional

local EPS = 1e-5
-- Of the dtype's rounding, beside the largest value; sums of float32 are of up to 210 terms.
local NEAR = {float64 = 1e-13, float32 = 4e-6, float16 = 2e-3, bfloat16 = 1.2e-2}

local function by_formula(x, w, b, mean, var, relu)
  local function each(t) return t:reshape(1, -1, 1) end
  local y = (x - each(mean)) / (each(var) + EPS):sqrt() * each(w) + each(b)
  return relu and y:relu() or y
end

local function near(what, want, got, tolerance)
  local scale = math.max(1, want:abs():max():item())
  local off = (want - got:double()):abs():max():item()
  assert(off <= tolerance * scale, ("%s: off by %g of %g"):format(what, off, scale))
end

local function check(dtype, images, inner, relu, training)
  local what = ("%s, %d x 3 x %d, relu %s, training %s")
    :format(dtype, images, inner, relu, training)
  local x = dm.randn(images, 3, inner):mul(2):add(1):to(dtype)
  local own = dtype == "float64" and dtype or "float32" -- of the parameters
  local w, b = (dm.rand(3) + 0.5):to(own), dm.randn(3):to(own)
  local mean, var = dm.randn(3):to(own), (dm.rand(3) + 0.5):to(own)
  local gy = dm.randn(images, 3, inner):to(dtype)
  local wide = {}
  for i, t in ipairs{x, w, b} do wide[i] = t:double():requires_grad_() end
  local m, v = mean:double(), var:double()
  if training then
    m = wide[1]:mean({1, 3})
    v = (wide[1] - m:reshape(1, -1, 1)):square():mean({1, 3})
  end
  local want = by_formula(wide[1], wide[2], wide[3], m, v, relu)
  -- Where relu's argument is about to change its sign the dtype decides.
  local keep = relu and (by_formula(wide[1], wide[2], wide[3], m, v):abs():gt(0.05)):detach()
  if keep then gy = gy * keep:to(dtype) end
  want:backward(gy:double())
  for _, t in ipairs{x, w, b} do t:requires_grad_() end
  local y = F.batch_norm(x, mean, var, {weight = w, bias = b, training = training, eps = EPS,
                                        activation = relu and "relu" or nil})
  y:backward(gy)
  local tolerance = NEAR[dtype]
  near(what, want:detach(), y:detach(), tolerance)
  for i, t in ipairs{x, w, b} do
    near(what .. ", gradient " .. i, wide[i].grad, t.grad, i == 1 and tolerance or 2 * tolerance)
  end
end

describe("batch_norm of runs of every length", function()
  for _, dtype in ipairs{"float64", "float32", "float16", "bfloat16"} do
    for _, relu in ipairs{false, true} do
      it(("%s%s"):format(dtype, relu and " with relu" or ""), function()
        dm.manual_seed(11)
        for inner = 2, 70 do
          check(dtype, 3, inner, relu, true)
          check(dtype, 3, inner, relu, false)
        end
        for _, inner in ipairs{96, 100, 129, 2048, 4100} do check(dtype, 2, inner, relu, true) end
      end)
    end
  end

  it("where elements do not begin at a vector", function()
    local _ <close> = dm.device "cpu"
    for _, dtype in ipairs{"float32", "float16", "bfloat16"} do
      local all = dm.randn(1, 5, 37):to(dtype)
      local x = all:narrow(2, 2, 3)
      local y = F.batch_norm(x, nil, nil, {training = true})
      local own = F.batch_norm(x:clone(), nil, nil, {training = true})
      assert.is_true(dm.equal(y, own))
    end
  end)

  it("of vectors of every length", function()
    dm.manual_seed(12)
    for _, dtype in ipairs{"float64", "float32", "float16", "bfloat16"} do
      for channels = 1, 70 do
        local own = dtype == "float64" and dtype or "float32"
        local x = dm.randn(9, channels):to(dtype)
        local w, b = dm.rand(channels):to(own), dm.randn(channels):to(own)
        local mean, var = dm.randn(channels):to(own), (dm.rand(channels) + 0.5):to(own)
        local y = F.batch_norm(x, mean, var, {weight = w, bias = b, eps = EPS})
        local want = (x:double() - mean) / (var:double() + EPS):sqrt() * w + b
        near(("%s, 9 x %d"):format(dtype, channels), want, y, NEAR[dtype])
        local cut = F.batch_norm(x, mean, var,
          {weight = w, bias = b, eps = EPS, activation = "relu"})
        assert.is_true(dm.equal(y:relu(), cut))
      end
    end
  end)
end)
