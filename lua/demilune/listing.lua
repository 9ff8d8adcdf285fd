-- Small helpers of texts: keys in order, large numbers with commas.

local listing = {}

--- The keys of a table that are strings, sorted.
---@param t table
---@return string[]
function listing.names(t)
  local names = {}
  for key in pairs(t) do
    if type(key) == "string" then names[#names + 1] = key end
  end
  table.sort(names)
  return names
end

--- The keys of a table, of any type, in the order of their texts.
---@param t table
---@return any[]
function listing.keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

--- A whole number as "1,234,567".
---@param n integer
---@return string
function listing.with_commas(n)
  return (tostring(n):reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", ""))
end

return listing
