-- The trailing table of named options: defaults, and no unknown names.

local caller = require "demilune.caller"

local options = {}

-- The default of an option that has none.
options.NONE = setmetatable({}, {__name = "none"})

-- Edits (Levenshtein) that turn a into b.
local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      local swap = a:byte(i) == b:byte(j) and 0 or 1
      row[j] = math.min(above + 1, row[j - 1] + 1, diagonal + swap)
      diagonal = above
    end
  end
  return row[#b]
end

-- The name in the set that is nearest to word, or nil when none is near.
function options.nearest(word, names)
  local best, best_distance
  for name in pairs(names) do
    local d = distance(word, name)
    if not best or d < best_distance or d == best_distance and name < best then
      best, best_distance = name, d
    end
  end
  if best and best_distance <= math.max(2, #word // 2) then return best end
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
