-- Completion at the prompt: the names that fit what stands left of the cursor. Nothing is called:
-- a name is looked up, one part after the other, in tables and in the modules of this library,
-- which load as they are named.

local core = require "demilune.core"
local late = require "demilune.late"
local options = require "demilune.options"

local complete = {}

local KEYWORDS = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or repeat
  return then true until while]]):gmatch "%S+" do
  KEYWORDS[word] = true
end

local PROPERTIES = {}
for name in ([[shape dtype device is_cuda grad requires_grad is_leaf is_parameter ndim T mT H mH
  data grad_fn]]):gmatch "%S+" do
  PROPERTIES[name] = true
end

-- Adds the names that a value with this metatable has through its classes, from the nearest up.
local function add_classes(set, meta)
  for _ = 1, 20 do
    if type(meta) ~= "table" then return end
    local index = rawget(meta, "__index")
    local class = type(index) == "table" and index or meta
    for name in next, class do set[name] = true end
    meta = rawget(class, "super") or class == index and debug.getmetatable(class) or nil
  end
end

--- The names that may stand behind a value's dot, as a set; behind a colon without a tensor's
--- properties.
---@param value any
---@param colon boolean
---@return table<string, boolean>
function complete.members(value, colon)
  local set = {}
  if core.is_tensor(value) then
    for name in pairs(core.methods) do set[name] = true end
    if not colon then
      for name in pairs(PROPERTIES) do set[name] = true end
    end
    return set
  end
  if type(value) == "string" then return late.names(string) end
  if type(value) == "table" then
    for name in pairs(late.names(value)) do set[name] = true end
    for _, part in ipairs{"_parameters", "_buffers", "_modules"} do
      for name in next, rawget(value, part) or {} do set[name] = true end
    end
  end
  local meta = debug.getmetatable(value)
  if type(value) == "table" or type(value) == "userdata" then add_classes(set, meta) end
  return set
end

-- value[name] where reading it runs no code of a script: nil for other metamethods than those of
-- this library's tables and of plain classes.
local function read(value, name)
  if type(value) == "string" then return string[name] end
  if core.is_tensor(value) then
    if core.methods[name] then return core.methods[name] end
    if not PROPERTIES[name] then return nil end
    local fine, property = pcall(function() return value[name] end)
    return fine and property or nil
  end
  if type(value) ~= "table" and type(value) ~= "userdata" then return nil end
  if type(value) == "table" and rawget(value, name) ~= nil then return rawget(value, name) end
  if not complete.members(value, false)[name] then return nil end
  local fine, found = pcall(function() return value[name] end)
  return fine and found or nil
end

--- The value of "a.b.c", "x:sum" or "layers[2].weight", from the globals and the session's locals;
--- nil where a part is missing.
---@param path string
---@param locals table {[name] = value}
---@return any
function complete.evaluate(path, locals)
  local value, first = nil, true
  for part, digits in path:gmatch "([%a_][%w_]*)%[?(%d*)%]?" do
    if first then
      value, first = locals[part], false
      if value == nil then value = read(_G, part) end
    else
      value = read(value, part)
    end
    if digits ~= "" and type(value) == "table" then
      value = rawget(value, math.tointeger(digits))
    end
    if value == nil then return nil end
  end
  return value
end

--- The path of the call whose arguments, or their table of options, are open at the end of the
--- text: "nn.Conv2d" of "x = nn.Conv2d(3, 8, 3, {str"; nil where none is.
---@param text string
---@return string?
function complete.open_call(text)
  local depth = 0
  for at = #text, 1, -1 do
    local c = text:sub(at, at)
    if c == "}" or c == ")" then
      depth = depth + 1
    elseif c == "(" or c == "{" then
      if depth == 0 and (c == "(" or text:find("^[%w_]%s*{", at - 1)) then
        return text:sub(1, at - 1):match "([%a_][%w_.:%[%]]*)%s*$"
      end
      depth = math.max(0, depth - 1)
    end
  end
end

-- The option names of what a path names: an op's, a class's, a function's.
local function option_names(path, locals)
  local value = complete.evaluate(path, locals) -- loads the file, and with it the signature
  local name = path:match "([%w_]+)$"
  local set = {}
  local class = type(value) == "table" and rawget(value, "class") or name
  for _, p in ipairs(options.parameters(class) or options.parameters(path) or {}) do
    set[p.name] = true
  end
  if next(set) then return set end
  local fine, row = pcall(core._op_row, (name:gsub("_$", "")))
  for _, attr in ipairs(fine and row and row.attrs or {}) do set[attr.name] = true end
  return set
end

local function is_callable(value)
  local meta = debug.getmetatable(value)
  return type(value) == "function" or type(meta) == "table" and rawget(meta, "__call") ~= nil
end

-- The names of a set that begin with prefix and that code can write, in order.
local function sorted(set, prefix, ending)
  local list = {}
  for name in pairs(set) do
    local fits = type(name) == "string" and name:sub(1, #prefix) == prefix
      and name:find "^[%a_][%w_]*$" and (name:sub(1, 1) ~= "_" or prefix:sub(1, 1) == "_")
    if fits then list[#list + 1] = name .. (ending or "") end
  end
  table.sort(list)
  return list
end

--- The candidates for the word at the end of a text, in order: names of fields and methods behind a
--- dot or colon, names of options within the braces of a call, else globals, locals and keywords.
--- Also the word itself, which they begin with.
---@param text string the line up to the cursor
---@param locals? table the session's locals {[name] = value}
---@return string[] candidates
---@return string word
function complete.candidates(text, locals)
  locals = locals or {}
  local path, sign, word = text:match "([%a_][%w_.:%[%]]*)([.:])([%w_]*)$"
  if path then
    local value = complete.evaluate(path, locals)
    if value == nil then return {}, word end
    local set = complete.members(value, sign == ":")
    for name in pairs(sign == ":" and not core.is_tensor(value) and set or {}) do
      if type(name) == "string" and name:sub(1, #word) == word then
        set[name] = is_callable(read(value, name)) or nil
      end
    end
    return sorted(set, word), word
  end
  word = text:match "[%a_][%w_]*$" or ""
  if text:find("[^.][.:]%s*" .. word .. "$") then return {}, word end -- of a call's result
  if text:find("[{,]%s*" .. word .. "$") then
    local call = text:find "{[^}]*$" and complete.open_call(text)
    local names = call and sorted(option_names(call, locals), word, " = ") or {}
    if #names > 0 then return names, word end
  end
  if word == "" then return {}, word end
  local set = {}
  for _, part in ipairs{KEYWORDS, locals, late.names(_G)} do
    for name in next, part do set[name] = true end
  end
  return sorted(set, word), word
end

return complete
