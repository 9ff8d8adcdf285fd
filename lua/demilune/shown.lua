-- Tables that functions return as results: they print their content, and pairs walks them in one
-- order.

local core = require "demilune.core"

local MAX_DEPTH = 6

local Shown = {}
local orders = setmetatable({}, {__mode = "k"}) -- table -> its keys in the order of pairs

local RANK = {number = 1, string = 2}

local function before(a, b)
  if type(a) == type(b) and RANK[type(a)] then return a < b end
  local x, y = RANK[type(a)] or 3, RANK[type(b)] or 3
  if x ~= y then return x < y end
  return tostring(a) < tostring(b)
end

-- The keys that are there: those whose order is known, then the rest, sorted.
local function keys_of(t)
  local keys, seen, rest = {}, {}, {}
  for _, key in ipairs(orders[t] or {}) do
    if rawget(t, key) ~= nil then keys[#keys + 1], seen[key] = key, true end
  end
  for key in next, t do
    if not seen[key] then rest[#rest + 1] = key end
  end
  table.sort(rest, before)
  return table.move(rest, 1, #rest, #keys + 1, keys)
end

function Shown.__pairs(t)
  local keys, i = keys_of(t), 0
  return function()
    local value
    repeat
      i = i + 1
      value = rawget(t, keys[i])
    until value ~= nil or i >= #keys
    return value ~= nil and keys[i] or nil, value
  end
end

local text_of

-- The tables that are being printed: one that holds itself is printed once.
local open = setmetatable({}, {__mode = "k"})

-- One line where that is short and holds no tables, else a line for each key.
local function table_text(t, indent, depth)
  local words, long = {}, false
  for i, key in ipairs(keys_of(t)) do
    local value = rawget(t, key)
    local name = key == i and "" or tostring(key) .. " = "
    long = long or core.is_tensor(value) or type(value) == "table" and next(value) ~= nil
    words[i] = name .. text_of(value, indent .. "  ", depth + 1)
  end
  local text = "{" .. table.concat(words, ", ") .. "}"
  if #indent + #text < 80 and not long then return text end
  local gap = "\n" .. indent .. "  "
  return "{" .. gap .. table.concat(words, gap) .. "\n" .. indent .. "}"
end

function text_of(value, indent, depth)
  if core.is_tensor(value) then return ("%s %s"):format(value.dtype, tostring(value.shape)) end
  if type(value) == "string" then return ("%q"):format(value) end
  local meta = getmetatable(value)
  if type(value) == "table" and open[value] then return "(the table around it)" end
  if type(value) ~= "table" or meta and meta ~= Shown and meta.__tostring or depth > MAX_DEPTH then
    return tostring(value)
  end
  return table_text(value, indent, depth)
end

-- The text of a table, also where the content raises; it is open for that long.
local function finished(t, ok, text)
  open[t] = nil
  if not ok then error(text, 0) end
  return text
end

function Shown.__tostring(t)
  if open[t] then return "(the table around it)" end
  open[t] = true
  return finished(t, pcall(table_text, t, "", 1))
end

--- Returns t, which prints its content from now on. keys: a list, the order in which pairs walks
--- it; other keys follow, numbers before strings.
return function(t, keys)
  orders[t] = keys
  return setmetatable(t, Shown)
end
