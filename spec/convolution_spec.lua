-- Convolutions as products of gathered positions: tiles of images, of rows, and of parts of long
-- rows, with strides and dilation, equal the product with the unfolded input in float64.
local dm = require "demilune"
local assert_near = require "spec.convolutions"
local F = dm.nn.functional

-- y and the gradients of x, w and bias, in float64.
local function results(x, w, bias, gy, convolve)
  x, w = x:detach():requires_grad_(), w:detach():requires_grad_()
  bias = bias:detach():requires_grad_()
  local y = convolve(x, w, bias)
  y:backward(gy:to(y.dtype))
  return {y:detach():double(), x.grad:double(), w.grad:double(), bias.grad:double()}
end

-- w times the columns of x.
local function by_columns(options, p, q)
  return function(x, w, bias)
    local columns = F.unfold(x, {w:size(3), w:size(4)}, options) -- (N, C R S, P Q)
    local y = w:reshape(w:size(1), -1):matmul(columns) + bias:reshape(-1, 1)
    return y:reshape(x:size(1), w:size(1), p, q)
  end
end

describe("convolution of gathered positions", function()
  local CASES = {
    {"stride 2", {3, 5, 12, 14}, {7, 5, 4, 4}, {stride = 2, padding = 1}},
    {"stride 2 of one channel", {3, 1, 9, 12}, {1, 1, 3, 3}, {stride = 2, padding = 1}},
    {"stride 2 of an odd width", {2, 5, 11, 13}, {7, 5, 3, 3}, {stride = 2, padding = 1}},
    {"stride 3, 2, dilation 2, 3", {2, 3, 17, 20}, {4, 3, 3, 2},
      {stride = {3, 2}, dilation = {2, 3}, padding = {2, 1}}},
    {"stride 6, kernel 7", {2, 3, 20, 23}, {4, 3, 7, 7}, {stride = {5, 6}, padding = 2}},
    {"taps of the second phase alone", {2, 3, 9, 5}, {4, 3, 1, 1}, {stride = 2, padding = 1}},
    {"taps of the third phase alone", {2, 3, 9, 8}, {4, 3, 1, 1}, {stride = 3, padding = 1}},
    {"a stride beyond the kernel", {2, 3, 16, 15}, {4, 3, 1, 1}, {stride = 3}},
    {"many channels, stride 2", {2, 130, 9, 9}, {70, 130, 4, 4}, {stride = 2, padding = 1}},
    {"1 x 1", {3, 20, 30, 31}, {9, 20, 1, 1}, {}},
    {"1 x 1 of one image", {1, 20, 30, 31}, {9, 20, 1, 1}, {}},
    {"small planes, stride 2", {9, 6, 5, 4}, {5, 6, 3, 3}, {stride = 2, padding = 2}},
    {"images that do not fill the last tile", {13, 4, 14, 14}, {6, 4, 5, 5}, {padding = 2}},
    {"one output channel", {2, 4, 30, 40}, {1, 4, 3, 3}, {padding = 1}},
    {"one output channel of long rows", {1, 2, 3, 1700}, {1, 2, 3, 5}, {padding = {1, 2}}},
    {"bands of rows", {2, 4, 61, 40}, {5, 4, 5, 5}, {padding = 2}},
    {"parts of one long row", {2, 6, 1, 2500}, {5, 6, 1, 3}, {padding = {0, 1}}},
    {"parts of long rows", {2, 3, 5, 1003}, {4, 3, 3, 7}, {padding = {1, 3}}},
    {"parts of long rows, stride 5", {1, 3, 1, 9001}, {4, 3, 1, 10},
      {stride = {1, 5}, padding = {0, 4}}},
    {"parts of long rows, dilation 64", {1, 3, 1, 1900}, {4, 3, 1, 3},
      {dilation = {1, 64}, padding = {0, 64}}},
  }
  -- of sums of up to 1e4 products
  local EPS = {float32 = 2e-6, bfloat16 = 2 ^ -7, float16 = 2 ^ -10}
  for _, case in ipairs(CASES) do
    for dtype, eps in pairs(EPS) do
      it(("equals the product: %s, %s"):format(case[1], dtype), function()
        local _ <close> = dm.device "cpu"
        dm.manual_seed(1)
        local x, w = dm.randn(case[2]):to(dtype), dm.randn(case[3]):to(dtype)
        local bias = dm.randn(case[3][1]):to(dtype)
        local function convolve(a, b, c) return dm.conv2d(a, b, c, case[4]) end
        local y = convolve(x, w, bias)
        local gy = dm.randn_like(y)
        local got = results(x, w, bias, gy, convolve)
        local wanted = results(x:double(), w:double(), bias:double(), gy,
          by_columns(case[4], y:size(3), y:size(4)))
        assert_near(wanted, got, eps)
      end)
    end
  end
end)
