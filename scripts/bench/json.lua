-- Plain data as JSON, on one line: strings, numbers, booleans, arrays and tables
-- with names. For drivers, which must write their results without demilune.
local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local encode

local function quoted(s)
  return '"' .. s:gsub('[%c"\\]', function(c)
    return ESCAPES[c] or ("\\u%04x"):format(c:byte())
  end) .. '"'
end

local function fields(t)
  local names, words = {}, {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do words[i] = quoted(name) .. ": " .. encode(t[name]) end
  return "{" .. table.concat(words, ", ") .. "}"
end

--- A table with a first item, or with nothing, is an array. What JSON has no
--- number for is null.
function encode(v)
  if type(v) == "string" then return quoted(v) end
  if type(v) == "number" then
    if v ~= v or v == math.huge or v == -math.huge then return "null" end
    return math.type(v) == "integer" and ("%d"):format(v) or ("%.9g"):format(v)
  end
  if type(v) ~= "table" then return tostring(v) end
  if v[1] == nil and next(v) ~= nil then return fields(v) end
  local words = {}
  for i, item in ipairs(v) do words[i] = encode(item) end
  return "[" .. table.concat(words, ", ") .. "]"
end

return encode
