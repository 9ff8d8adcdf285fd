-- Arguments of dm.plot's functions as series {x = list, y = list, name =} and as rows of numbers.

local core = require "demilune.core"
local caller = require "demilune.caller"
local listing = require "demilune.listing"
local series = require "demilune.plot.series"

local input = {}

--- A list of strings from a list of anything.
---@param list table
---@return string[]
function input.strings(list)
  local texts = {}
  for i, v in ipairs(list) do texts[i] = tostring(v) end
  return texts
end

-- Whether a value holds numbers: a tensor, or a list that does not hold lists or such tensors.
local function is_sequence(v)
  if core.is_tensor(v) then return true end
  if type(v) ~= "table" then return false end
  local first = v[1]
  if first == nil then return next(v) == nil end
  return type(first) ~= "table" and not (core.is_tensor(first) and first:numel() ~= 1)
end

-- One series; x is nil for 1, 2, ...
local function one(what, name, x, y)
  local ys = series.numbers(what, name or "y", y)
  local xs = x and series.numbers(what, "x", x) or series.positions(#ys)
  if #xs ~= #ys then
    caller.raise("%s: %s has %d elements, and x %d", what, name or "y", #ys, #xs)
  end
  return {x = xs, y = ys, name = name}
end

local function check_names(what, names, n)
  if names and #names ~= n then
    caller.raise("%s: names has %d elements, wanted %d", what, #names, n)
  end
end

-- {name = values}, or {name = {x, values}}.
local function named(what, t, names)
  local list = {}
  for i, name in ipairs(names or listing.names(t)) do
    local v = t[name]
    if v == nil then
      caller.raise("%s: there is no '%s'; there are %s", what, tostring(name),
        table.concat(listing.names(t), ", "))
    end
    local paired = type(v) == "table" and #v == 2 and not is_sequence(v)
    list[i] = one(what, name, paired and v[1] or nil, paired and v[2] or v)
  end
  return list
end

-- A list of rows {epoch =, train_loss =, ...} as series by name; lr only where names ask for it.
local function of_history(what, rows, names)
  local columns, xs, epochs = {}, {}, true
  for i, row in ipairs(rows) do
    for key, v in pairs(row) do
      if type(v) == "number" and (names or key ~= "lr") and key ~= "epoch" then
        columns[key] = columns[key] or {}
        columns[key][i] = v
      end
    end
    xs[i] = row.epoch
    epochs = epochs and type(row.epoch) == "number"
  end
  for _, values in pairs(columns) do
    for i = 1, #rows do values[i] = values[i] or 0 / 0 end
  end
  local list = named(what, columns, names)
  for _, s in ipairs(list) do
    if epochs then s.x = series.numbers(what, "epoch", xs) end
  end
  return list, epochs and "epoch" or nil
end

local function several(what, x, ys, names)
  local list = {}
  check_names(what, names, #ys)
  for i, y in ipairs(ys) do
    list[i] = one(what, names and tostring(names[i]) or nil, x, y)
    list[i].name = list[i].name or #ys > 1 and tostring(i) or nil
  end
  return list
end

--- The series of a call of lines, and a label of x that follows from them.
---@return table list
---@return string|nil xlabel
function input.lines(what, x, y, names)
  if y ~= nil then
    if is_sequence(y) then return several(what, x, {y}, names) end
    return several(what, x, y, names)
  end
  if is_sequence(x) then
    return several(what, nil, {x}, names)
  end
  if type(x) ~= "table" then
    caller.raise("%s: x is a %s, wanted a tensor or a table", what, type(x))
  end
  if #x == 0 then return named(what, x, names) end
  if type(x[1]) == "table" and #x[1] == 0 and next(x[1]) ~= nil then
    return of_history(what, x, names)
  end
  return several(what, nil, x, names)
end

-- The group of each point, as a list of numbers or strings.
local function groups_of(what, c, n)
  if core.is_tensor(c) then c = series.numbers(what, "c", c) end
  if type(c) ~= "table" or #c ~= n then
    caller.raise("%s: c is %s, wanted the group of each of %d points", what,
      type(c) == "table" and ("a list of %d"):format(#c) or "a " .. type(c), n)
  end
  return c
end

local function before(a, b)
  if type(a) == type(b) then return a < b end
  return type(a) == "number"
end

local function group_name(key, names)
  local i = math.tointeger(key)
  return tostring(i and names and names[i] or i or key)
end

--- The series of a call of scatter: one, or one for each group of o.c, in their order.
---@param o table {x =, y =, c =, names =}
---@return table list
function input.groups(what, o)
  local all = one(what, nil, o.x, o.y)
  if o.c == nil then return {all} end
  local by_key, keys = {}, {}
  for i, key in ipairs(groups_of(what, o.c, #all.y)) do
    if type(key) ~= "number" and type(key) ~= "string" or key ~= key then
      caller.raise("%s: c: element %d is %s, wanted a number or a string", what, i, tostring(key))
    end
    local s = by_key[key]
    if not s then
      s = {x = {}, y = {}, name = group_name(key, o.names)}
      by_key[key], keys[#keys + 1] = s, key
    end
    s.x[#s.x + 1], s.y[#s.y + 1] = all.x[i], all.y[i]
  end
  table.sort(keys, before)
  local list = {}
  for i, key in ipairs(keys) do list[i] = by_key[key] end
  return list
end

-- {label = number} as two lists.
local function of_labels(what, t)
  local labels, values = listing.names(t), {}
  for i, label in ipairs(labels) do values[i] = t[label] end
  if type(t) ~= "table" or #labels == 0 and next(t) ~= nil then
    caller.raise("%s: values are missing, wanted bars(labels, values) or bars{label = number}",
      what)
  end
  return labels, values
end

--- Labels as strings, and the series of a call of bars.
---@return string[] labels
---@return table list
function input.bars(what, labels, values, names)
  if type(labels) ~= "table" and not core.is_tensor(labels) then
    caller.raise("%s: labels is a %s, wanted a list", what, type(labels))
  end
  if values == nil then
    if core.is_tensor(labels) then
      caller.raise("%s: values are missing, wanted bars(labels, values)", what)
    end
    labels, values = of_labels(what, labels)
  end
  if core.is_tensor(labels) then labels = labels:totable() end
  local list = several(what, nil, is_sequence(values) and {values} or values, names)
  for _, s in ipairs(list) do
    if #s.y ~= #labels then
      caller.raise("%s: %d labels for %d values", what, #labels, #s.y)
    end
  end
  return input.strings(labels), list
end

--- The rows of a matrix as lists of numbers, and how many columns it has.
---@return table rows
---@return integer columns
function input.rows(what, m)
  if core.is_tensor(m) then
    if m:dim() ~= 2 then caller.raise("%s: got shape %s, wanted {rows, columns}", what, m.shape) end
    return m:detach():to("cpu"):double():totable(), m:size(2)
  end
  if type(m) ~= "table" then
    caller.raise("%s: matrix is a %s, wanted a tensor {rows, columns} or a list of lists", what,
      type(m))
  end
  local rows = {}
  for i, row in ipairs(m) do
    rows[i] = series.numbers(what, ("row %d"):format(i), row)
    if #rows[i] ~= #rows[1] then
      caller.raise("%s: row %d has %d elements, the first %d", what, i, #rows[i], #rows[1])
    end
  end
  return rows, rows[1] and #rows[1] or 0
end

return input
