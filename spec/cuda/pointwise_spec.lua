-- Device parity: pointwise ops on cuda give the CPU's results for each layout, broadcast and
-- dtype of the operands.
local dm = require "demilune"
local both = require "spec.cuda.both"

if both.missing() then return end

-- n numbers that every dtype holds, some of them equal, none 0.
local function ramp(dtype, n, step)
  return ((dm.arange(n, {dtype = "int64"}) * step) % 7 + 1):to(dtype)
end

-- Layouts of 12 x 40 elements, and shapes that broadcast to it.
local function wide(t)
  local m = t:reshape(12, 40)
  return dm.cat({m, m}, {dim = 2})
end
local layouts = {
  dense = function(t) return t:reshape(12, 40) end,
  transposed = function(t) return t:reshape(40, 12):t() end,
  offset = function(t) return dm.cat{t:narrow(1, 1, 1), t}:narrow(1, 2, 480):reshape(12, 40) end,
  columns = function(t) return wide(t):narrow(2, 9, 40) end,
  odd_columns = function(t) return wide(t):narrow(2, 2, 40) end,
  row = function(t) return t:narrow(1, 1, 40) end,
  offset_row = function(t) return t:narrow(1, 2, 40) end,
  column = function(t) return t:narrow(1, 1, 12):unsqueeze(2) end,
  one = function(t) return t:narrow(1, 1, 1) end,
  scalar = function(t) return t:select(1, 3) end,
  number = function() return 3 end,
}

describe("pointwise on cuda", function()
  it("gives the CPU's values however operands lie", function()
    local ops = {float16 = "sub", float32 = "lt", float64 = "mul", int32 = "add"}
    for dtype, op in pairs(ops) do
      for left, a in pairs(layouts) do
        for right, b in pairs(layouts) do
          if left ~= "number" then
            both.agree(("%s %s, %s, %s"):format(op, dtype, left, right), function()
              local x = a(ramp(dtype, 480, 3))
              return x[op](x, b(ramp(dtype, 480, 5)))
            end)
          end
        end
      end
    end
  end)

  it("gives them for every pair of dtypes", function()
    local ops = {"add", "mul", "div", "remainder", "maximum", "eq", "gt", "logical_and"}
    for _, s in ipairs(both.dtypes) do
      for _, t in ipairs(both.dtypes) do
        for _, op in ipairs(ops) do
          both.agree(("%s %s %s"):format(s, op, t), function()
            local x = ramp(s, 37, 3)
            return x[op](x, ramp(t, 37, 5))
          end)
        end
      end
    end
  end)

  it("gives them for the second forms", function()
    for _, dtype in ipairs(both.dtypes) do
      if dtype ~= "bool" then
        local function pair(f)
          both.agree(dtype, function() return f(ramp(dtype, 300, 3), ramp(dtype, 300, 5)) end)
        end
        pair(function(x, y) return x:add(y, {alpha = 3}) end)
        pair(function(x, y) return x:sub(y, {alpha = 2}) end)
        pair(function(x, y) return x:div(y, {rounding_mode = "trunc"}) end)
        pair(function(x, y) return x:neg():div(y, {rounding_mode = "floor"}) end)
        pair(function(x, y) return x:fmod(y) end)
        pair(function(x, y) return x:pow(y) end)
      end
    end
  end)

  it("gives them with masks, and of three operands", function()
    for _, dtype in ipairs{"bfloat16", "float32", "uint8"} do
      for left, a in pairs(layouts) do
        for right, b in pairs(layouts) do
          if left ~= "number" and right ~= "number" then
            both.agree(("where %s, %s, %s"):format(dtype, left, right), function()
              local x, y = a(ramp(dtype, 480, 3)), b(ramp(dtype, 480, 5))
              return dm.where(b(ramp("int64", 480, 5)):gt(3), x, y)
            end)
          end
        end
      end
    end
    for _, dtype in ipairs(both.dtypes) do
      both.agree("masked_fill", function()
        local x = ramp(dtype, 1031, 3)
        return x:masked_fill(ramp("int64", 1031, 2):gt(3), 1)
      end)
      both.agree("clamp", function() return ramp(dtype, 1031, 3):clamp(2, 5) end)
    end
    for _, dtype in ipairs(both.floats) do
      both.agree("three", function()
        local x, y, z = ramp(dtype, 1031, 3), ramp(dtype, 1031, 4), ramp(dtype, 1031, 5)
        local blend = x:lerp(y, z * 0.125)
        return blend:addcmul(x, y, {value = 0.5}):addcdiv(y, z, {value = -2})
      end)
    end
  end)

  it("writes in place, through views", function()
    for _, dtype in ipairs(both.floats) do
      for _, view in ipairs{"dense", "transposed", "offset", "columns"} do
        both.agree(view, function()
          local x = layouts[view](ramp(dtype, 480, 3))
          x:mul_(0.5):add_(layouts.row(ramp(dtype, 480, 5)))
          return x:clamp_{max = 4}
        end)
      end
    end
  end)

  it("takes empty and 0-dim tensors", function()
    for _, shape in ipairs{{}, {0}, {3, 0}, {1, 1}} do
      both.agree("shape", function() return dm.ones(shape) + dm.ones(shape) end)
      both.agree("shape", function() return dm.ones(shape):lt(2) end)
      both.agree("shape", function() return dm.where(dm.ones(shape):gt(0), dm.zeros(shape), 2) end)
    end
  end)

  it("meets NaN and infinity as the CPU does", function()
    local odd = {0 / 0, 1 / 0, -1 / 0, 0.0, -0.0, 1.5, -2.5}
    local rounding = {float16 = 2^-10, bfloat16 = 2^-7, float32 = 2^-22, float64 = 2^-51}
    for _, dtype in ipairs(both.floats) do
      local function pairs_of(op)
        local x = dm.tensor(odd):to(dtype)
        return x:unsqueeze(2)[op](x:unsqueeze(2), x)
      end
      for _, op in ipairs{"maximum", "minimum", "fmod", "remainder", "pow", "le", "div"} do
        both.agree(op .. dtype, function() return pairs_of(op) end)
      end
      both.near("atan2" .. dtype, function() return pairs_of "atan2" end, rounding[dtype])
      both.agree(dtype, function() return dm.tensor(odd):to(dtype):clamp(-1, 1) end)
    end
  end)

  it("raises an integer division by zero at the next synchronization", function()
    both.on("cuda", function()
      local x = dm.tensor{1, 2, 3}
      for _, f in ipairs{
        function() return x % dm.tensor{1, 0, 2} end,
        function() return x:fmod(dm.tensor{1, 0, 2}) end,
        function() return x:div(dm.tensor{1, 0, 2}, {rounding_mode = "floor"}) end,
      } do
        assert.refuses("integer division by zero", function()
          f()
          dm.cuda.synchronize()
        end)
      end
      assert.refuses("integer division by zero", function() return x % 0 end)
      assert.same({1, 0, 1}, (x % 2):totable())
    end)
  end)
end)
