-- The dtypes of what ops give under autocast, of float32 and 16-bit inputs, are PyTorch's
-- (scripts/golden/autocast.py): those of its lists, and those of functions that call listed ops.
local dm = require "demilune"
local device = require "spec.device"
local op_calls = dofile "scripts/bench/op_calls.lua"
local golden = dofile "spec/golden/autocast.lua"

local OTHER = {float16 = "bfloat16", bfloat16 = "float16"}

-- Stays in float32: PyTorch's comes from a product in 16 bits, whose positions are off by a pixel
-- in images of some hundred.
local OURS = {affine_grid = true}

-- Of the floats among results: indices beside them may be asked for in other ways.
local function dtypes(...)
  local list = {}
  for _, y in ipairs{...} do
    local text = dm.is_tensor(y) and y.dtype or dtypes(table.unpack(y))
    if text:find "float" then list[#list + 1] = text end
  end
  return table.concat(list, ",")
end

local function result(name, form, request, dtype, low)
  local _, words, options = request:match "^(%d+)~(.-)~(.*)$"
  local items, named = op_calls.inputs(words, dtype, "contiguous")
  local f = op_calls.call(name, form, items, named, options, dtype, function(item)
    return item.x:to(device.type)
  end)
  return dm.amp.autocast({device_type = device.type, dtype = low}, function()
    return dtypes(f())
  end)
end

describe("dtypes under autocast, of PyTorch " .. golden.torch, function()
  for _, kind in ipairs{"float32", "low", "other"} do
    for low, other in pairs(OTHER) do
      it(("of %s inputs in a region of %s"):format(kind, low), function()
        local n = 0
        for _, case in ipairs(golden.cases) do
          local name, form, request, cuda, cpu = table.unpack(case)
          local words = {}
          for word in (device.type == "cuda" and cuda or cpu):gmatch "%S+" do
            words[#words + 1] = word
          end
          local want = ({float32 = words[1], low = words[2], other = words[3]})[kind]
          if want ~= "-" and not OURS[name] then
            local dtype = ({float32 = "float32", low = low, other = other})[kind]
            want = want:gsub("%f[%w]low%f[%W]", low):gsub("%f[%w]other%f[%W]", other)
            assert.equal(want, result(name, form, request, dtype, low), name .. " " .. request)
            n = n + 1
          end
        end
        assert.is_true(n > 200)
      end)
    end
  end
end)
