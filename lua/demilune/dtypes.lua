-- The element types, as src/base/dtypes.def has them. Code that treats float16 or bfloat16 in a
-- way of their own asks a property here, so that another such type needs no change.

local core = require "demilune.core"

---@class demilune.dtypes.Row
---@field name string "float16"
---@field kind "bool"|"int"|"float"
---@field size integer bytes of an element
---@field method string|nil of tensors, that casts to the type: "half"
---@field npy string|nil the type's code in NumPy's files: "f2"
---@field low boolean|nil a float of less than 32 bits
---@field brief string|nil of floats: the name in tables, "fp16"
---@field eps number|nil of floats: the gap after 1
---@field tiny number|nil of floats: the smallest normal number
---@field max number|nil of floats: the largest finite number
---@field narrow boolean|nil of floats: it does not reach as far as float32, so that gradients
---  want a scale

---@class demilune.dtypes
---@field rows demilune.dtypes.Row[] all types
---@field floats demilune.dtypes.Row[] those of kind "float"
---@field of table<string, demilune.dtypes.Row> by name
---@field low table<string, demilune.dtypes.Row> the low floats by name
local dtypes = {rows = core._dtypes(), floats = {}, of = {}, low = {}}

for _, row in ipairs(dtypes.rows) do
  dtypes.of[row.name] = row
  if row.kind == "float" then dtypes.floats[#dtypes.floats + 1] = row end
  if row.low then dtypes.low[row.name] = row end
end
for _, row in ipairs(dtypes.floats) do row.narrow = row.tiny > dtypes.of.float32.tiny end

return dtypes
