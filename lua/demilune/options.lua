-- The trailing table of named options: defaults, and no unknown names.

local core = require "demilune.core"
local caller = require "demilune.caller"

local options = {}

-- The default of an option that has none.
options.NONE = setmetatable({}, {__name = "none"})

-- nearest(word, set) -> the name in the set {[name] = anything} that is nearest to word, or nil
-- when none is near.
options.nearest = core._nearest

-- The defaults of an op's options, as a function that reads the op's row when first called.
-- more: defaults of other options, options.NONE for those of the row that have none.
function options.of_op(op, more)
  local defaults
  return function()
    if not defaults then
      defaults = core._op_defaults(op)
      for key, value in pairs(more or {}) do defaults[key] = value end
    end
    return defaults
  end
end

-- A new table: what is given, completed by the defaults. `what` names the
-- function in messages.
function options.read(what, given, defaults)
  local out = {}
  if given ~= nil and type(given) ~= "table" then
    caller.raise("%s: options are a table, got %s", what, type(given))
  end
  for key, value in pairs(given or out) do
    if defaults[key] == nil then
      local near = options.nearest(tostring(key), defaults)
      caller.raise("%s: unknown option '%s'%s", what, tostring(key),
        near and ("; did you mean '%s'?"):format(near) or "")
    end
    out[key] = value
  end
  for key, default in pairs(defaults) do
    if out[key] == nil and default ~= options.NONE then out[key] = default end
  end
  return out
end

-- What was given, for extra_repr: "key = value" by name, tensors aside.
function options.shown(given)
  local parts = {}
  for key, value in pairs(given) do
    if type(value) ~= "userdata" then
      parts[#parts + 1] = ("%s = %s"):format(key, tostring(value))
    end
  end
  table.sort(parts)
  return table.concat(parts, ", ")
end

return options
