-- Device parity: pooling on cuda gives the CPU's elements, position codes and gradients.
local dm = require "demilune"
local both = require "spec.cuda.both"

if both.missing() then return end

-- Small whole numbers with many ties: exact in every dtype.
local function plane(dtype, ...)
  local size = {...}
  local n = 1
  for _, s in ipairs(size) do n = n * s end
  return ((dm.arange(n, {dtype = "int64"}) * 37) % 11 - 5):to(dtype):reshape(table.unpack(size))
end

local windows = {
  {kernel_size = 2},
  {kernel_size = 3, stride = 2, padding = 1},
  {kernel_size = {2, 3}, stride = {1, 2}, padding = {1, 0}, ceil_mode = true},
  {kernel_size = 3, stride = 1, padding = 1, dilation = 2},
  {kernel_size = {1, 4}, stride = 3, dilation = {1, 2}, ceil_mode = true},
}

-- The pooled plane, its positions and its gradient, end to end.
local function maxima(x, how)
  x:requires_grad_()
  local y, at = x:max_pool2d({
    kernel_size = how.kernel_size, stride = how.stride, padding = how.padding,
    dilation = how.dilation, ceil_mode = how.ceil_mode, return_indices = true,
  })
  local seed = ((dm.arange(y:numel(), {dtype = "int64"}) % 5) + 1):to(y.dtype)
  y:backward(seed:reshape(table.unpack(y.shape)))
  return {y:detach(), at, x.grad}
end

describe("pooling on cuda", function()
  it("gives the CPU's maxima, positions and gradients", function()
    for k, how in ipairs(windows) do
      for _, dtype in ipairs(both.floats) do
        for part = 1, 3 do
          both.agree(("windows %d, %s, part %d"):format(k, dtype, part), function()
            return maxima(plane(dtype, 2, 3, 13, 11), how)[part]
          end)
        end
      end
    end
  end)

  it("pools integers and transposed planes", function()
    for _, how in ipairs(windows) do
      both.agree("int32", function()
        return plane("int32", 3, 9, 12):max_pool2d(how.kernel_size, {padding = how.padding})
      end)
      both.agree("transposed", function()
        return maxima(plane("float32", 2, 11, 13):transpose(2, 3):detach(), how)[3]
      end)
    end
  end)

  it("keeps the last NaN, and -inf's first position", function()
    both.agree("NaN", function()
      local x = dm.tensor{{{1, 0 / 0, 3, -math.huge}, {0 / 0, 5, -math.huge, -math.huge}}}
      return maxima(x, {kernel_size = 2})[2]
    end)
    both.agree("-inf", function()
      return maxima(dm.full({1, 5, 5}, -math.huge), {kernel_size = 3, padding = 1})[2]
    end)
  end)

  it("has codes of four bytes for large windows", function()
    for part = 1, 3 do
      both.agree("part " .. part, function()
        return maxima(plane("float32", 2, 40, 37), {kernel_size = 17, stride = 5})[part]
      end)
    end
  end)

  -- The gradient of the gradient takes the maxima's positions from the codes.
  it("has second derivatives of maxima", function()
    for k, how in ipairs(windows) do
      for _, dtype in ipairs(both.floats) do
        both.agree(("windows %d, %s"):format(k, dtype), function()
          local x = plane(dtype, 2, 3, 13, 11):requires_grad_()
          local y = x:max_pool2d(how.kernel_size, {
            stride = how.stride, padding = how.padding, dilation = how.dilation,
            ceil_mode = how.ceil_mode,
          })
          local v = dm.ones_like(y):requires_grad_()
          local gx = dm.autograd.grad(y, x, {grad_outputs = v, create_graph = true})
          return dm.autograd.grad(gx, v, {grad_outputs = plane(dtype, 2, 3, 13, 11)})
        end)
      end
    end
  end)

  -- Sums of small whole numbers are exact in any order; one division follows.
  local function means(x, f)
    x:requires_grad_()
    local y = f(x)
    y:sum():backward()
    return {y:detach(), x.grad}
  end

  it("gives the CPU's means and their gradients", function()
    local ways = {
      function(x) return x:avg_pool2d(2) end,
      function(x) return x:avg_pool2d(3, {stride = 2, padding = 1, ceil_mode = true}) end,
      function(x) return x:avg_pool2d(3, {padding = 1, count_include_pad = false}) end,
      function(x) return x:avg_pool2d({5, 4}, {stride = 3, divisor_override = 7}) end,
      function(x) return x:avg_pool2d({13, 11}) end,
      function(x) return x:adaptive_avg_pool2d(1) end,
      function(x) return x:adaptive_avg_pool2d{5, 4} end,
      function(x) return x:adaptive_avg_pool2d{17, 30} end,
    }
    for k, f in ipairs(ways) do
      for _, dtype in ipairs(both.floats) do
        for part = 1, 2 do
          both.agree(("way %d, %s, part %d"):format(k, dtype, part), function()
            return means(plane(dtype, 2, 3, 13, 11), f)[part]
          end)
        end
      end
    end
  end)

  it("averages large planes by whole warps", function()
    for _, dtype in ipairs(both.floats) do
      both.near(dtype, function()
        return (plane(dtype, 3, 90, 70) / 3):adaptive_avg_pool2d{1, 2}
      end, ({float16 = 1e-3, bfloat16 = 8e-3})[dtype] or 1e-6)
    end
  end)

  it("gives empty planes and outputs their shapes", function()
    both.agree("no images", function() return dm.zeros(0, 3, 8, 8):max_pool2d(2) end)
    both.agree("nothing out", function()
      local x = dm.ones(2, 4, 4):requires_grad_()
      x:adaptive_avg_pool2d{0, 2}:sum():backward()
      return x.grad
    end)
  end)
end)
