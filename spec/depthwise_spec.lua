-- Convolutions whose groups have one input channel each: they equal the convolutions of the
-- channels one by one, which other algorithms compute, with their gradients.
local dm = require "demilune"
local assert_near = require "spec.convolutions"
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
    -- channels that fill three quarters of blocks of 16
    {"16 channels", {2, 16, 9, 11}, {16, 1, 3, 3}, {padding = 1}},
    {"28 channels, stride 2", {2, 28, 9, 12}, {28, 1, 3, 3}, {padding = 1, stride = 2}},
    {"13 channels, two outputs each, 5 x 3", {2, 13, 8, 7}, {26, 1, 5, 3}, {padding = {2, 1}}},
    {"37 channels, dilation, stride 2, 3", {1, 37, 17, 20}, {37, 1, 3, 2},
      {dilation = {2, 3}, stride = {2, 3}}},
    {"12 channels, a stride beyond the kernel", {1, 12, 9, 9}, {12, 1, 2, 2},
      {stride = 3, padding = 1}},
    {"12 channels, taps of one phase alone", {1, 12, 11, 9}, {12, 1, 2, 3},
      {stride = 2, dilation = 2, padding = {1, 2}}},
    {"12 channels, more padding than kernel", {1, 12, 4, 5}, {12, 1, 2, 2}, {padding = 3}},
    {"16 small planes", {3, 16, 2, 1}, {16, 1, 1, 1}, {}},
    {"tiles of rows", {2, 12, 71, 40}, {12, 1, 3, 3}, {padding = 1}},
    {"tiles of rows and columns, stride 2", {1, 12, 99, 131}, {24, 1, 3, 3},
      {padding = 1, stride = 2}},
    {"tiles of one long row", {2, 12, 1, 4500}, {12, 1, 1, 5}, {padding = {0, 2}}},
  }
  -- a rounded result of up to 15 products, and sums of up to 9000, in float32 for 64 positions
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
        assert_near(wanted, got, eps)
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
    for _, c in ipairs{6, 28} do
      local x, w = dm.randn(5, c, 13, 13), dm.randn(c, 1, 3, 3)
      local options = {padding = 1, groups = c}
      local y = dm.conv2d(x, w, options)
      for n = 1, 5 do
        assert.is_true(dm.equal(y:narrow(1, n, 1), dm.conv2d(x:narrow(1, n, 1), w, options)))
      end
    end
  end)

  it("gives the same bits for any number of threads", function()
    local threads <const> = dm.get_num_threads()
    local back <close> = setmetatable({}, {__close = function() dm.set_num_threads(threads) end})
    local x, w = dm.randn(7, 40, 19, 21), dm.randn(40, 1, 3, 3):requires_grad_()
    local gradients = {}
    for n = 1, 3 do
      dm.set_num_threads(n)
      local xn = x:clone():requires_grad_()
      w.grad = nil
      local y = dm.conv2d(xn, w, {padding = 1, groups = 40, stride = 2})
      y:backward(dm.ones_like(y))
      gradients[n] = {y:detach(), xn.grad, w.grad}
    end
    for i = 1, 3 do
      assert.is_true(dm.equal(gradients[1][i], gradients[2][i]))
      assert.is_true(dm.equal(gradients[1][i], gradients[3][i]))
    end
    assert.is_not_nil(back)
  end)
end)
