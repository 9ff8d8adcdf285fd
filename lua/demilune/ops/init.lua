-- demilune.ops: ops that are written in Lua, made of those of the op table, and other names of
-- both. They are loaded when a name is first asked for that no op in C has, so that they cost a
-- start nothing; from then on they are functions of dm and methods of tensors like the others.

local core = require "demilune.core"

local ops = {rows = {}, aliases = require "demilune.ops.aliases"}

local FAMILIES = {"pointwise", "shape", "create", "index", "random", "reduce", "linalg", "special",
  "signal", "nn"}

for _, family in ipairs(FAMILIES) do
  for _, row in ipairs(require("demilune.ops." .. family)) do
    ops.rows[#ops.rows + 1] = row
    ops.rows[row.name] = row
  end
end

-- Puts fn, where there is one, under a name of dm, of the tensors' methods, or of both.
local function put(name, fn, as_function, as_method)
  if fn == nil then return end
  if as_function then core[name] = fn end
  if as_method then core.methods[name] = fn end
end

for _, row in ipairs(ops.rows) do
  put(row.name, row.fn, row.as_function, row.method)
  put(row.name .. "_", row.in_place, row.as_function, true)
end
for name, op in pairs(ops.aliases) do
  for _, form in ipairs{"", "_"} do
    put(name .. form, rawget(core, op .. form), true, false)
    put(name .. form, rawget(core.methods, op .. form), false, true)
  end
end

return ops
