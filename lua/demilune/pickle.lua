-- Python's pickle as data. A pickle is a program for a machine with a stack, whose opcodes also
-- name functions of Python's modules and call them. This machine builds None, booleans,
-- numbers, text, bytes, tuples, lists and dicts; what a name stands for, its user says, and
-- any other name ends the reading. Nothing of a file is ever run.
-- The opcodes are those of protocols 2 to 5: Lib/pickletools.py of CPython describes them.

local pickle = {}

local MOST_BYTES = 100000000 -- of a pickle, without the tensors, which lie beside it
local MOST_VALUES = 1 << 22  -- on the stack at a time; and so many tables
local MAX_DEPTH = 32         -- tables in tables, as dm.save has it

local NONE = {} -- None, until it is put into a table

--- Ends the reading with a message, which pickle.protect returns.
function pickle.refuse(text, ...) error({message = text:format(...)}, 0) end
local refuse = pickle.refuse

--- protect(fn, ...) -> what fn gives; or nil and why the file was refused.
function pickle.protect(fn, ...)
  local results = table.pack(pcall(fn, ...))
  if results[1] then return table.unpack(results, 2, results.n) end
  local fault = results[2]
  if type(fault) == "table" and fault.message then return nil, fault.message end
  error(fault, 0) -- the end of memory
end

-- ---- the machine ----

-- bytes, at, last: what is read, from where, to where
-- stack, n: the values; floor: how many of them lie below the last mark; floors: the same of
-- the marks below it
-- memo: values by number; n_memo: how many MEMOIZE put there
-- kinds: table -> "list", "tuple" or "dict"; sizes: table -> length of a list or tuple;
-- holed: table -> whether it holds None
local Machine = {}
Machine.__index = Machine

-- The position of the next n bytes.
local function take(m, n)
  local at = m.at
  if n < 0 or n > m.last - at + 1 then refuse "it is cut short" end
  m.at = at + n
  return at
end

local function number(m, format)
  return (format:unpack(m.bytes, take(m, format:packsize())))
end

-- n bytes, or as many as the number of this format says.
local function text(m, n)
  if type(n) == "string" then n = number(m, n) end
  local at = take(m, n)
  return m.bytes:sub(at, at + n - 1)
end

--- The table that a name stands for or that persistent gave; {} for values of the file, whose
--- fields could say anything.
function Machine:named(v) return type(v) == "table" and not self.kinds[v] and v or {} end

local function line(m)
  local stop = m.bytes:find("\n", m.at, true)
  local s = text(m, (stop or m.last + 1) - m.at)
  take(m, 1)
  return s
end

local function push(m, v)
  m.n = m.n + 1
  if m.n > MOST_VALUES then refuse("its stack holds more than %d values", MOST_VALUES) end
  m.stack[m.n] = v
end

local function top(m)
  if m.n <= m.floor then refuse "it takes more from its stack than there is" end
  return m.stack[m.n]
end

local function pop(m)
  local v = top(m)
  m.stack[m.n], m.n = nil, m.n - 1
  return v
end

local function kind_of(m, v) return type(v) == "table" and m.kinds[v] or nil end

local function new(m, kind)
  m.n_tables = m.n_tables + 1
  if m.n_tables > MOST_VALUES then refuse("it holds more than %d tables", MOST_VALUES) end
  local t = {}
  m.kinds[t], m.sizes[t] = kind, 0
  return t
end

local function append(m, list, v)
  m.sizes[list] = m.sizes[list] + 1
  if v == NONE then m.holed[list] = true else list[m.sizes[list]] = v end
end

local function set(m, dict, key, v)
  if type(key) == "table" or type(key) == "userdata" or key ~= key then
    refuse("a key of a dict is %s", kind_of(m, key) and "a " .. m.kinds[key]
      or key == NONE and "None" or key ~= key and "NaN" or "no plain value")
  end
  if v == NONE then v = nil end
  dict[key] = v
end

-- Puts the n values on top of the stack into t.
local function fill(m, t, n)
  local first = m.n - n + 1
  if first <= m.floor then refuse "it takes more from its stack than there is" end
  if m.kinds[t] == "dict" then
    if n % 2 ~= 0 then refuse "a key of a dict has no value" end
    for i = first, m.n, 2 do set(m, t, m.stack[i], m.stack[i + 1]) end
  else
    for i = first, m.n do append(m, t, m.stack[i]) end
  end
  for i = m.n, first, -1 do m.stack[i] = nil end
  m.n = first - 1
  return t
end

-- How many values lie above the last mark, which is taken off.
local function unmark(m)
  local floor = table.remove(m.floors)
  if not floor then refuse "a mark is missing" end
  local n = m.n - m.floor
  m.floor = floor
  return n
end

-- Puts the n topmost values into the table below them, which stays.
local function extend(m, n, kind)
  local t = m.stack[m.n - n]
  if m.n - n <= m.floor or kind_of(m, t) ~= kind then refuse("it fills what is no %s", kind) end
  fill(m, t, n)
end

local function remember(m, i) m.memo[i] = top(m) end

local function recall(m, i)
  local v = m.memo[i]
  if v == nil then refuse("it recalls value %d, which it did not store", i) end
  push(m, v)
end

-- A name as text that can be shown.
local function shown(name) return (name:sub(1, 80):gsub("[^%w_.]", "?")) end

-- Pushes what the name stands for.
local function resolve(m, module, name)
  if type(module) ~= "string" or type(name) ~= "string" then refuse "a name is no text" end
  local full = module .. "." .. name
  local v = m.names[full]
  if v == nil then
    refuse("it would call %s; hint: only tensors, dicts, lists, numbers and text are read, such as "
      .. "torch.save(model.state_dict(), path) writes", shown(full))
  end
  push(m, v)
end

-- A whole number in two's complement.
local function long(m, n)
  local s = text(m, n)
  if #s == 0 then return 0 end
  if #s > 8 then refuse("an integer of %d bytes; 8 is what Lua's have", #s) end
  return (("<i" .. #s):unpack(s))
end

-- ---- opcodes ----

local OPS = {}
local function op(codes, fn)
  for code in codes:gmatch "." do OPS[code] = fn end
end
local function value_op(code, fn)
  OPS[code] = function(m) push(m, fn(m)) end
end

op("\x80", function(m)
  local version = number(m, "B")
  if version > 5 then refuse("it has protocol %d, 2 to 5 are read", version) end
end)
op("\x95", function(m) take(m, 8) end) -- a frame: how many bytes belong together
value_op("N", function() return NONE end)
value_op("\x88", function() return true end)
value_op("\x89", function() return false end)
for code, format in pairs{J = "<i4", K = "B", M = "<I2", G = ">d"} do
  value_op(code, function(m) return number(m, format) end)
end
for code, format in pairs{["\x8a"] = "B", ["\x8b"] = "<i4"} do
  value_op(code, function(m) return long(m, number(m, format)) end)
end
-- text, bytes, and Python 2's strings
for code, format in pairs{X = "<I4", ["\x8c"] = "B", ["\x8d"] = "<i8", B = "<I4", C = "B",
  ["\x8e"] = "<i8", ["\x96"] = "<i8", T = "<i4", U = "B"} do
  value_op(code, function(m) return text(m, format) end)
end

value_op("]", function(m) return new(m, "list") end)
value_op("}", function(m) return new(m, "dict") end)
value_op(")", function(m) return new(m, "tuple") end)
for code, n in pairs{["\x85"] = 1, ["\x86"] = 2, ["\x87"] = 3} do
  value_op(code, function(m) return fill(m, new(m, "tuple"), n) end)
end
for code, kind in pairs{t = "tuple", l = "list", d = "dict"} do
  value_op(code, function(m) return fill(m, new(m, kind), unmark(m)) end)
end
op("a", function(m) extend(m, 1, "list") end)
op("e", function(m) extend(m, unmark(m), "list") end)
op("s", function(m) extend(m, 2, "dict") end)
op("u", function(m) extend(m, unmark(m), "dict") end)

op("(", function(m)
  table.insert(m.floors, m.floor)
  m.floor = m.n
end)
op("0", pop)
op("1", function(m)
  for _ = 1, unmark(m) do pop(m) end
end)
op("2", function(m) push(m, top(m)) end)
for code, format in pairs{q = "B", r = "<I4"} do
  op(code, function(m) remember(m, number(m, format)) end)
end
for code, format in pairs{h = "B", j = "<I4"} do
  op(code, function(m) recall(m, number(m, format)) end)
end
op("\x94", function(m)
  remember(m, m.n_memo)
  m.n_memo = m.n_memo + 1
end)

op("c", function(m)
  local module = line(m)
  resolve(m, module, line(m))
end)
op("\x93", function(m)
  local name = pop(m)
  resolve(m, pop(m), name)
end)
op("i", function(m)
  local module = line(m)
  resolve(m, module, line(m))
  refuse "it would make an instance of a class"
end)
op("R", function(m)
  local args, fn = pop(m), pop(m)
  fn = m:named(fn)
  if kind_of(m, args) ~= "tuple" or not fn.call then
    refuse "it would call what is no function"
  end
  push(m, fn.call(m, args))
end)
op("b", function(m) -- the attributes of an OrderedDict are PyTorch's notes on versions
  pop(m)
  if kind_of(m, top(m)) ~= "dict" then refuse "it would set the attributes of an object" end
end)
op("Q", function(m)
  local id = pop(m)
  if kind_of(m, id) ~= "tuple" or not m.persistent then refuse "it names a storage wrongly" end
  push(m, m.persistent(m, id))
end)
op("\x81\x92o", function() refuse "it would make an instance of a class" end)
op("\x82\x83\x84", function() refuse "it would call what a number stands for" end)
op("\x8f\x90\x91", function() refuse "it holds a set; hint: store a list" end)

-- ---- the result ----

-- Checks v and all below, each table once, and returns how deep tables lie in it. A list that
-- holds None gets its length as n, as table.pack gives it.
local function settle(m, v, heights, depth)
  if type(v) ~= "table" then return 0 end
  if not m.kinds[v] then refuse("%s stands where a value belongs", v.name or "a storage") end
  if heights[v] == "open" then refuse "a table holds itself" end
  if not heights[v] then
    if depth > MAX_DEPTH then refuse("tables lie deeper than %d", MAX_DEPTH) end
    heights[v] = "open"
    local height = 0
    for _, item in next, v do height = math.max(height, settle(m, item, heights, depth + 1)) end
    heights[v] = height + 1
    if m.holed[v] then v.n = m.sizes[v] end
  end
  if heights[v] > MAX_DEPTH then refuse("tables lie deeper than %d", MAX_DEPTH) end
  return heights[v]
end

--- Reads one pickle.
---@param bytes string that holds it
---@param at integer where it begins
---@param user {names: table, persistent: function?} what its names stand for: a plain value,
--- or {name =, call = function(machine, args)} of a function; and, where a pickle may name
--- what stands outside of it, persistent(machine, tuple) -> that
---@return any value nil for None
---@return integer next the position after it
function pickle.load(bytes, at, user)
  local m = setmetatable({bytes = bytes, at = at, last = math.min(#bytes, at + MOST_BYTES - 1),
    stack = {}, n = 0, floor = 0, floors = {}, memo = {}, n_memo = 0, kinds = {}, sizes = {},
    holed = {}, n_tables = 0, names = user.names, persistent = user.persistent}, Machine)
  while true do
    local code = text(m, 1)
    if code == "." then break end
    local run = OPS[code]
    if not run then refuse("opcode 0x%02x, which is not read", code:byte()) end
    run(m)
  end
  local v = pop(m)
  if v == NONE then v = nil end
  settle(m, v, {}, 1)
  return v, m.at
end

--- A new dict, for functions of names.
function Machine:dict() return new(self, "dict") end

--- The items of the list or tuple t, of which there must be least to most; None is nil. `what`
--- names t in the message.
function Machine:items(t, what, least, most)
  local kind, n = kind_of(self, t), self.sizes[t]
  if kind ~= "tuple" and kind ~= "list" or n < least or n > most then
    refuse("%s is not what it must be", what)
  end
  return table.unpack(t, 1, n)
end

return pickle
