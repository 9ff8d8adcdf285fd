-- Convolutions whose groups have one input channel each: they equal the convolutions of the
-- channels one by one, which other algorithms compute, with their gradients.
local dm = require "demilune"
local _ <close> = dm.device "cpu" -- the algorithm is the CPU's

-- y and the gradients of x, w and bias, in float64. by_channel: a convolution for each channel.
local function results(x, w, bias, options, gy, by_channel)
  for _, t in ipairs{x, w, bias} do t.grad = nil end
  local y
  if by_channel then
    local each, parts = w:size(1) // x:size(2), {}
    for c = 1, x:size(2) do
      local first = (c - 1) * each + 1
      parts[c] = dm.conv2d(x:narrow(2, c, 1), w:narrow(1, first, each), bias:narrow(1, first, each),
        options)
    end
    y = dm.cat(parts, 2)
  else
    y = dm.conv2d(x, w, bias, options)
  end
  y:backward(gy or dm.ones_like(y))
  return {y:detach():double(), x.grad:double(), w.grad:double(), bias.grad:double()}
end

describe("depthwise convolution", function()
  local CASES = {
    {"3 x 3", {2, 3, 9, 11}, {3, 1, 3, 3}, {padding = 1}},
    {"stride 2", {2, 3, 9, 12}, {3, 1, 3, 3}, {padding = 1, stride = 2}},
    {"two outputs a channel, 5 x 3", {2, 3, 8, 7}, {6, 1, 5, 3}, {padding = {2, 1}}},
    {"dilation, stride 2, 3", {1, 2, 17, 20}, {2, 1, 3, 2}, {dilation = {2, 3}, stride = {2, 3}}},
    {"a stride beyond the kernel", {1, 2, 9, 9}, {2, 1, 2, 2}, {stride = 3, padding = 1}},
    {"more padding than kernel", {1, 2, 4, 5}, {2, 1, 2, 2}, {padding = 3}},
    {"small planes", {3, 4, 2, 1}, {4, 1, 1, 1}, {}},
  }
  local EPS = {float32 = 1e-5, bfloat16 = 2 ^ -7, float16 = 2 ^ -10}
  for _, case in ipairs(CASES) do
    for dtype, eps in pairs(EPS) do
      it(("equals that of each channel: %s, %s"):format(case[1], dtype), function()
        dm.manual_seed(1)
        local x = dm.randn(case[2]):to(dtype):requires_grad_()
        local w = dm.randn(case[3]):to(dtype):requires_grad_()
        local bias = dm.randn(case[3][1]):to(dtype):requires_grad_()
        local options = {groups = case[2][2]}
        for k, v in pairs(case[4]) do options[k] = v end
        local gy = dm.randn_like(dm.conv2d(x, w, bias, options):detach())
        local got = results(x, w, bias, options, gy)
        options.groups = nil
        local wanted = results(x, w, bias, options, gy, true)
        for i, name in ipairs{"y", "x's gradient", "w's gradient", "the bias's"} do
          -- a rounded result of up to 15 products, and sums of up to 200 products
          local scale = wanted[i]:abs():max():item() + 1
          assert.is_true(dm.allclose(wanted[i], got[i], {rtol = eps, atol = eps * scale}), name)
        end
      end)
    end
  end

  it("keeps an infinity from the taps that do not read it", function()
    local x = dm.randn(1, 2, 4, 5)
    x:narrow(4, 5, 1):fill_(math.huge) -- the last column, which only the second tap reads
    local w = dm.randn(2, 1, 1, 2, {requires_grad = true})
    dm.conv2d(x, w, {groups = 2}):sum():backward()
    assert.is_true(w.grad:narrow(4, 1, 1):isfinite():all():item())
    assert.is_true(w.grad:narrow(4, 2, 1):isinf():all():item())
  end)

  it("gives each image its own bits", function()
    local x, w = dm.randn(5, 6, 13, 13), dm.randn(6, 1, 3, 3)
    local y = dm.conv2d(x, w, {padding = 1, groups = 6})
    for n = 1, 5 do
      assert.is_true(dm.equal(y:narrow(1, n, 1),
        dm.conv2d(x:narrow(1, n, 1), w, {padding = 1, groups = 6})))
    end
  end)
end)
