-- Tables in text: RFC 4180's comma-separated values, as the world writes them.
--
--   local t = assert(dm.data.read_csv("housing.csv"))
--   t.names                 -- {"longitude", ...}; #t rows
--   t.longitude             -- float64 (rows), nan where the field is blank
--   t.ocean_proximity       -- a list of strings, where one field is no number
--   t:tensor{"longitude", "latitude"}   -- float32 (rows, 2)

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local csv = {}

local Table = {}

local function columns_of(self) return rawget(self, "_columns") end
function Table:__index(name)
  local column = columns_of(self)[name]
  if column ~= nil then return column end
  return Table[name]
end
function Table:__len() return rawget(self, "n") end

--- float32 (rows, columns) of the named columns, all of them without names. A column of
--- strings raises.
function Table:tensor(names)
  local list = {}
  for i, name in ipairs(names or self.names) do
    local column = columns_of(self)[name]
    if column == nil then
      caller.raise("tensor: there is no column '%s'; there are %s", tostring(name),
        table.concat(self.names, ", "))
    elseif not core.is_tensor(column) then
      caller.raise("tensor: column '%s' holds text, such as '%s'; hint: :codes('%s')", name,
        tostring(column[1]), name)
    end
    list[i] = column
  end
  return core.stack(list, 2):float()
end

--- int64 (rows): the number of each string of a column among its different ones in
--- alphabetical order, from 1; and the list of these. A blank is a string of its own.
function Table:codes(name)
  local column = columns_of(self)[name]
  if column == nil then
    caller.raise("codes: there is no column '%s'; there are %s", tostring(name),
      table.concat(self.names, ", "))
  end
  if core.is_tensor(column) then column = column:totable() end
  local words, code = {}, {}
  for _, word in ipairs(column) do
    if not code[word] then
      code[word] = true
      words[#words + 1] = word
    end
  end
  table.sort(words)
  for i, word in ipairs(words) do code[word] = i end
  local ids = {}
  for i, word in ipairs(column) do ids[i] = code[word] end
  return core.tensor(ids, {dtype = "int64"}), words
end

function Table:__tostring()
  local lines = {("%d rows"):format(#self)}
  for _, name in ipairs(self.names) do
    local column = columns_of(self)[name]
    lines[#lines + 1] = ("  %s: %s"):format(name, core.is_tensor(column) and "numbers" or "text")
  end
  local sign = #self.names == 1 and self.names[1]:match "[;|\t]"
  if sign then
    lines[#lines + 1] = ("one column; hint: read_csv(path, {separator = %q})"):format(sign)
  end
  return table.concat(lines, "\n")
end

-- ---- reading ----

local function trimmed(s) return (s:gsub("^%s+", ""):gsub("%s+$", "")) end

-- The quoted field that begins at i: its text, and where what follows it begins; nil
-- without an end.
local function quoted(text, i)
  local parts, from = {}, i + 1
  while true do
    local at = text:find('"', from, true)
    if not at then return nil end
    parts[#parts + 1] = text:sub(from, at - 1)
    if text:sub(at + 1, at + 1) ~= '"' then return table.concat(parts), at + 1 end
    parts[#parts + 1] = '"'
    from = at + 2
  end
end

-- The fields of the row that begins at i, and where the next one does; nil and why. blanks: a
-- pattern of what may stand around quotes, which the separator may not.
local function read_row(text, i, stop, blanks)
  local fields, n = {}, 0
  while true do
    local field
    local first = text:match(blanks, i)
    if text:sub(first, first) == '"' then
      field, first = quoted(text, first)
      if not field then return nil, "a quoted field has no end" end
      i = text:match(blanks, first)
      if i <= #text and not text:find("^[\r\n]", i) and text:sub(i, i) ~= stop then
        return nil, ("'%s' after a quoted field"):format(text:sub(i, i))
      end
    else
      local at = text:find(stop == "\t" and "[\t\r\n]" or "[" .. stop .. "\r\n]", i) or #text + 1
      field, i = trimmed(text:sub(i, at - 1)), at
    end
    n = n + 1
    fields[n] = field
    local c = text:sub(i, i)
    if c ~= stop then
      return fields, text:match("^\r?\n?()", i), n
    end
    i = i + 1
  end
end

-- Where the next row begins if the one at i has no field or is a comment, else nil.
local function after_nothing(text, i, comment, blanks)
  local first = text:match(blanks, i)
  local stop = text:find("[\r\n]", first) or #text + 1
  if first == stop or comment and text:sub(first, first + #comment - 1) == comment then
    return text:match("^\r?\n?()", stop)
  end
end

local BLANK = {[""] = true, ["?"] = true, NA = true, ["N/A"] = true, nan = true, NaN = true}

local INFINITE = {inf = math.huge, ["+inf"] = math.huge, ["-inf"] = -math.huge}

-- A column as numbers, if all that is not blank is one.
local function numbers(list)
  local values, seen = {}, false
  for i, word in ipairs(list) do
    local v = BLANK[word] and 0 / 0 or INFINITE[word] or not word:find "^0[xX]" and tonumber(word)
    if not v then return nil end
    seen = seen or v == v
    values[i] = v + 0.0
  end
  return seen and core.tensor(values, {dtype = "float64"}) or nil
end

-- The rows as lists, one a column, how many they are, and the first row where it names the
-- columns; nil and why.
local function read_rows(text, o)
  local lists, n, at, row = nil, 0, 1, 0
  local head = nil
  local blanks = ("^[ \t]*()"):gsub(o.separator:find "%s" and o.separator or "\n", "")
  while at <= #text do
    row = row + 1
    local next_at = after_nothing(text, at, o.comment, blanks)
    if not next_at then
      local fields, count
      fields, next_at, count = read_row(text, at, o.separator, blanks)
      if not fields then return nil, ("row %d: %s"):format(row, next_at) end
      if not lists then
        lists = {}
        for i = 1, count do lists[i] = {} end
      elseif count ~= #lists then
        return nil, ("row %d has %d fields, the first %d"):format(row, count, #lists)
      end
      if o.header and not head then
        head = fields
      else
        n = n + 1
        for i = 1, count do lists[i][n] = fields[i] end
      end
    end
    at = next_at
  end
  return lists or {}, n, head
end

--- read_csv(path, {header = true, separator = ",", names = from the first row}) -> a table t, or
--- nil and why not. t.names lists the columns and #t is the number of rows; a column, t.weight, is
--- float64 (rows), with nan where a field is blank, or a list of strings where a field is no
--- number. t:tensor{"weight", "height"} is float32 (rows, 2); t:codes "kind" numbers the strings
--- of a column, int64 (rows), and lists them. An empty file, as one that is written and not yet
--- closed, gives nil. Rows without any field are passed over; so are those that begin with
--- `comment`, if given.
local bind = options.signature("read_csv", [[path: string, *, header: boolean = true,
  separator: string = ',', names?: list, comment?: string]])
function csv.read_csv(...)
  local o = bind(...)
  local path = o.path
  if not o.separator:find "^[^%w\"\r\n%^%]%%-]$" then
    caller.raise("read_csv: separator is '%s', wanted one sign", tostring(o.separator))
  end
  local text, why = core._read_file("read_csv", path)
  if not text then return nil, why end
  local lists, n, head = read_rows((text:gsub("^\xef\xbb\xbf", "")), o)
  if not lists then return nil, path .. ": " .. n end
  if #lists == 0 then return nil, path .. ": is empty" end
  local names = o.names or head or {}
  local t = setmetatable({names = {}, n = n, _columns = {}}, Table)
  for i, list in ipairs(lists) do
    local name = names[i] or "column" .. i
    if t._columns[name] ~= nil then
      return nil, ("%s: two columns are named '%s'"):format(path, name)
    end
    t.names[i] = name
    t._columns[name] = n > 0 and numbers(list) or list
  end
  return t
end

return csv
