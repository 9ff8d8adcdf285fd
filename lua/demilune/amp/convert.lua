-- Tensors within values, as another dtype.

local core = require "demilune.core"
local packed = require "demilune.nn.packed"

-- Converts floating tensors to dtype, except float64, also those in packed sequences and in
-- plain tables, whose keys are converted too; everything else stays. fits(t): only the
-- tensors for which it is true.
local function convert(value, dtype, fits)
  if core.is_tensor(value) then
    if not value:is_floating_point() or value.dtype == "float64" or fits and not fits(value) then
      return value
    end
    return value:to(dtype)
  end
  if packed.is_packed(value) then
    return value:with_data(convert(value.data, dtype, fits))
  end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local out = {}
  for key, item in pairs(value) do out[convert(key, dtype, fits)] = convert(item, dtype, fits) end
  return out
end

return convert
