-- Arguments of functions and classes, by position or by name, bound by their signatures.
--
-- A signature is a text in PyTorch's names and order, next to what it describes:
--
--   local bind = options.signature("Linear", [[in_features: integer, out_features: integer,
--     bias: boolean = true, device?: device, dtype: dtype = 'float32']])
--   function Linear:init(...)
--     local o = bind(...)       -- o.in_features, o.bias, ...
--
-- A parameter is `name: kinds` (required), `name?: kinds` (nil where it is not given) or
-- `name: kinds = default`. Kinds are words of KINDS and quoted words that a string may be,
-- with | between them. A parameter that is a name alone (or `name?`) has kind and default of
-- the op's option of that name. Behind * parameters go by name only.
--
-- A call gives values by position, and the rest by name in a last table that has names and no
-- elements; such a table alone gives all by name. A last {} is an empty table of names,
-- unless a table is what is missing there. A function may follow the table where the
-- signature ends with `fn?: function`. What is missing, unknown, given twice or of
-- another kind raises at the caller's line, with the signature.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"

local options = {}

-- nearest(word, set) -> the name in the set {[name] = anything} that is nearest to word, or nil
-- when none is near.
options.nearest = core._nearest

-- ---- kinds ----

local is_tensor, integer = core.is_tensor, math.tointeger

local function all_are(list, what)
  for _, v in ipairs(list) do
    if type(v) ~= "number" or what == "integer" and not integer(v) then return false end
  end
  return next(list) == nil or #list > 0
end

local function of_type(name) return function(v) return type(v) == name end end

local function is_function(v)
  if type(v) == "function" then return true end
  local meta = getmetatable(v)
  return type(meta) == "table" and meta.__call ~= nil
end

-- Whether a value is of the kind, and what was wanted in words. `tables`: whether a table may
-- be, and `names` whether one with names may.
local KINDS = {
  any = {function() return true end, "a value", tables = true, names = true},
  value = {function(v) return type(v) ~= "table" end, "a value that is no table"},
  integer = {function(v) return type(v) == "number" and integer(v) ~= nil end, "an integer"},
  number = {of_type "number", "a number"},
  boolean = {of_type "boolean", "true or false"},
  string = {of_type "string", "a string"},
  ["function"] = {is_function, "a function"},
  tensor = {is_tensor, "a tensor"},
  table = {of_type "table", "a table", tables = true, names = true},
  list = {function(v) return type(v) == "table" and (#v > 0 or next(v) == nil) end, "a list",
    tables = true},
  size = {function(v)
    if type(v) == "number" then return integer(v) ~= nil end
    return type(v) == "table" and all_are(v, "integer")
  end, "an integer or a table of them", tables = true},
  numbers = {function(v) return type(v) == "table" and all_are(v) end, "a table of numbers",
    tables = true},
  device = {of_type "string", "a device such as 'cpu'"},
  dtype = {function(v) return dtypes.of[v] ~= nil end, "a dtype such as 'float32'"},
  parameters = {function(v)
    return is_tensor(v) or type(v) == "function" or type(v) == "table"
  end, "a tensor, an array of tensors, or an iterator over them", tables = true},
  generator = {function(v)
    return type(v) == "userdata" and getmetatable(v) == "demilune.Generator"
  end, "dm.Generator()"},
  sampler = {of_type "table", "a sampler", tables = true},
  dataset = {function(v)
    return type(v) == "table" and (v.get ~= nil and v.len ~= nil or v.iter ~= nil)
  end, "a data set (a table with get(i) and len()); hint: data.TensorDataset(x)", tables = true,
    names = true},
  rounds = {function(v)
    if type(v) == "table" then return v.iter ~= nil or #v > 0 or next(v) == nil end
    return type(v) == "function" or math.type(v) == "integer"
  end, "a loader, a list, a count or an iterator", tables = true, names = true},
  optimizer = {function(v) return type(v) == "table" and v.param_groups ~= nil end,
    "an optimizer", tables = true},
}

-- Adds a kind: is(value), and in words what is wanted. names: tables with names are of it.
function options.kind(name, is, wanted, names)
  KINDS[name] = {is, wanted, tables = true, names = names}
end

-- The kind of an op's option, from its kind in the op table.
local OF_OP = {int = "integer", dim = "integer", pos = "integer", number = "number",
  bool = "boolean", str = "string", dtype = "dtype", device = "device", one = "size",
  pair = "size", triple = "size", dims = "size", sizes = "size", nums = "number|numbers"}

-- ---- reading a signature ----

-- The parts of a text between commas that are not within quotes or braces.
local function parts_of(text)
  local parts, depth, from, quoted = {}, 0, 1, false
  for at, c in text:gmatch "()([,{}'])" do
    if c == "'" then quoted = not quoted
    elseif not quoted and c == "{" then depth = depth + 1
    elseif not quoted and c == "}" then depth = depth - 1
    elseif not quoted and depth == 0 then
      parts[#parts + 1], from = text:sub(from, at - 1), at + 1
    end
  end
  parts[#parts + 1] = text:sub(from)
  for i, part in ipairs(parts) do parts[i] = part:match "^%s*(.-)%s*$" end
  if parts[#parts] == "" then parts[#parts] = nil end
  return parts
end

local function join(words)
  local last = table.remove(words)
  return #words > 0 and table.concat(words, ", ") .. " or " .. last or last
end

-- The one function that tells whether a value is of the kinds "a|'b'|c".
local function set_kinds(p, kinds)
  local tests, words, wanted = {}, {}, {}
  for kind in kinds:gmatch "[^|]+" do
    local word = kind:match "^'(.*)'$"
    if word then
      words[word] = true
      wanted[#wanted + 1] = kind
    else
      local known = KINDS[kind] or error(("no kind '%s' of %s"):format(kind, p.name))
      tests[#tests + 1], wanted[#wanted + 1] = known[1], known[2]
      p.tables, p.names = p.tables or known.tables, p.names or known.names
      p.whole = p.whole or kind == "integer"
    end
  end
  p.kinds, p.wanted = kinds, join(wanted)
  local first = tests[1]
  if #tests == 1 and next(words) == nil then
    p.is = first
  else
    function p.is(v)
      if words[v] then return true end
      for _, is in ipairs(tests) do
        if is(v) then return true end
      end
      return false
    end
  end
end

-- Kind and default of what the op's row says of an option or an operand.
local function from_op(p, row)
  for _, attr in ipairs(row.attrs) do
    if attr.name == p.name then
      local kind = OF_OP[attr.kind:gsub("%?$", "")]
      if attr.choices then kind = "'" .. attr.choices:gsub("|", "'|'") .. "'" end
      if attr.kind == "one" or attr.kind == "pair" or attr.kind == "triple" then
        kind = p.name == "padding" and row.name:find "^conv%dd" and "size|'same'|'valid'" or kind
      end
      p.default, p.required = row.defaults[p.name], attr.required
      return set_kinds(p, kind)
    end
  end
  for _, operand in ipairs(row.tensors) do
    if operand:gsub("%p+$", "") == p.name then
      p.required = not operand:find "%?"
      return set_kinds(p, "tensor")
    end
  end
  error(("%s has no '%s'"):format(row.name, p.name))
end

local function read_parameter(text, op)
  local name, optional, rest = text:match "^([%a_][%w_]*)(%??)%s*(.*)$"
  local p = {name = name, required = optional == ""}
  local kinds, default = rest:match "^:%s*([^=]-)%s*=%s*(.+)$"
  kinds = kinds or rest:match "^:%s*(.+)$"
  if kinds then
    set_kinds(p, (kinds:gsub("%s+", "")))
  else
    from_op(p, core._op_row(op))
    if optional ~= "" then p.default, p.required = nil, false end
    default = rest:match "^=%s*(.+)$"
  end
  if default then
    p.required, p.default = false, assert(load("return " .. default, "=" .. text))()
  end
  p.copied = type(p.default) == "table"
  return p
end

-- A default as a signature writes it.
function options.written(v)
  if type(v) == "string" then return "'" .. v .. "'" end
  if v == math.huge then return "math.huge" end
  if type(v) ~= "table" then return tostring(v) end
  local items = {}
  for i, item in ipairs(v) do items[i] = options.written(item) end
  return "{" .. table.concat(items, ", ") .. "}"
end

-- "Linear(in_features, out_features, bias = true, device?, dtype = 'float32')"
local function text_of(list)
  local words = {}
  for i, p in ipairs(list) do
    words[i] = p.name .. (p.default ~= nil and " = " .. options.written(p.default)
      or p.required and "" or "?")
  end
  if list.n < #list then table.insert(words, list.n + 1, "*") end
  return ("%s(%s)"):format(list.name, table.concat(words, ", "))
end

-- ---- binding ----

-- Raises, with what there is.
local function refuse(list, text, ...)
  caller.raise("%s: %s\n  %s", list.name, text:format(...), text_of(list))
end

local function copied(v)
  local copy = {}
  for key, item in pairs(v) do copy[key] = item end
  return copy
end

local function described(v)
  if type(v) == "string" then return "'" .. v .. "'" end
  if type(v) == "number" or type(v) == "boolean" then return tostring(v) end
  return is_tensor(v) and "a tensor" or "a " .. type(v)
end

-- Stores a value that is not nil under its name.
local function put(list, o, p, v)
  if not p.is(v) then refuse(list, "%s is %s, wanted %s", p.name, described(v), p.wanted) end
  if p.whole and type(v) == "number" then v = integer(v) or v end
  o[p.name] = v
end

local function put_named(list, o, given)
  for key, v in next, given do
    local p = list.by_name[key]
    if not p then
      if math.type(key) == "integer" then
        refuse(list, "options are named; this table mixes names and positions")
      end
      local near = options.nearest(tostring(key), list.by_name)
      refuse(list, "unknown option '%s'%s", tostring(key),
        near and ("; did you mean '%s'?"):format(near) or "")
    end
    if o[p.name] ~= nil then refuse(list, "%s is given twice", p.name) end
    put(list, o, p, v)
  end
end

-- Whether the n-th and last value, a table, gives options by name: not where it is one that
-- its own position takes.
local function are_options(list, v, n)
  local p = n <= list.n and list[n] or nil
  if getmetatable(v) ~= nil then return false end
  local key = next(v)
  if key == nil then return not (p and p.tables and p.required) end
  if #v > 0 then
    if not (p and p.tables) then return type(next(v, #v)) == "string" end
    return false
  end
  if not (p and p.names and p.is(v)) then return true end
  for name in next, v do
    if n > 1 or not list.by_name[name] then return false end
  end
  return true
end

-- n: the number of arguments.
local function bind(list, n, ...)
  local args, o = {...}, {}
  while n > 0 and args[n] == nil do n = n - 1 end
  if list.by_name.fn and n > 0 and is_function(args[n]) then
    o.fn, n = args[n], n - 1
    while n > 0 and args[n] == nil do n = n - 1 end
  end
  local given = n > 0 and type(args[n]) == "table" and args[n] or nil
  if given and are_options(list, given, n) then
    n = n - 1
  else
    given = nil
  end
  if n > list.n then
    refuse(list, "argument %d, %s, is one too many", list.n + 1, described(args[list.n + 1]))
  end
  for i = 1, n do
    local v = args[i]
    if v ~= nil then put(list, o, list[i], v) end
  end
  if given then put_named(list, o, given) end
  for i = 1, #list do
    local p = list[i]
    local name = p.name
    if o[name] == nil then
      if p.required then refuse(list, "%s is missing, wanted %s", name, p.wanted) end
      o[name] = p.copied and copied(p.default) or p.default
    end
  end
  return o
end

-- Fills the list. by_name, which tells that it is full, comes last: Ctrl-C may end this anywhere,
-- and the next call does it again.
local function parse(list)
  local by_name, n, by_position = {}, 0, nil
  for _, part in ipairs(parts_of(list.text)) do
    if part == "*" then
      by_position = by_position or n
    else
      local p = read_parameter(part, list.op)
      n = n + 1
      list[n], by_name[p.name] = p, p
    end
  end
  list.n = by_position or n
  list.by_name = by_name
end

local signatures = {} -- name -> a list of those of that name, in the files that are loaded

--- The parameters of a function or class, for completion and help: a list of {name =, kinds =,
--- required =, default =}; nil where no file that is loaded has a signature of that name.
--- Of several files' it is the longest.
---@param name string as messages call it, such as "Linear"
---@return table[]?
function options.parameters(name)
  local longest
  for _, list in ipairs(signatures[name] or {}) do
    if not list.by_name then parse(list) end
    if not longest or #list > #longest then longest = list end
  end
  return longest
end

--- A class as text, with the arguments of its constructor: "class Linear(in_features, ...)".
function options.class_text(class)
  local name = rawget(class, "class")
  local list = options.parameters(name)
  return "class " .. (list and text_of(list) or tostring(name))
end

-- The two functions that options.signature gives.
local function binder(list)
  return function(...)
    if not list.by_name then parse(list) end
    return bind(list, select("#", ...), ...)
  end, function()
    if not list.by_name then parse(list) end
    local defaults = {}
    for _, p in ipairs(list) do defaults[p.name] = p.default end
    return defaults
  end
end

--- A function that binds a call's arguments to names: (...) -> {name = value}, with the
--- defaults. It is read when it is first called.
---@param name string as messages call it
---@param text string the parameters
---@param op? string the op whose row has the options that the text only names
---@return fun(...): table bind
---@return fun(): table defaults {name = default}, of those that have one
function options.signature(name, text, op)
  local list = {name = name, text = text, op = op}
  signatures[name] = signatures[name] or {}
  table.insert(signatures[name], list)
  return binder(list)
end

--- As signature, for the call of an object, or of a part of a class: messages call it by the name
--- of the class, whose own arguments help shows.
---@param name string
---@param text string
---@return fun(...): table bind
---@return fun(): table defaults
function options.call_signature(name, text) return binder{name = name, text = text} end

-- ---- printing ----

-- The options that differ from the defaults, for extra_repr: "key = value" by name, tensors aside.
function options.shown(given, defaults)
  local parts = {}
  for key, value in pairs(given) do
    if type(value) ~= "userdata" and value ~= defaults[key] then
      parts[#parts + 1] = ("%s = %s"):format(key, tostring(value))
    end
  end
  table.sort(parts)
  return table.concat(parts, ", ")
end

return options
