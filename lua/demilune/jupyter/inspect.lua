-- The text of Shift-Tab in a notebook for the name at the cursor: its value, and its help.

local core = require "demilune.core"
local complete = require "demilune.cli.complete"
local docs = require "demilune.docs"
local help = require "demilune.help"
local repl = require "demilune.cli.repl"

local inspect = {}

-- The name at a position, "nn.Linear" or "x:sum"; else that of the call whose arguments are open
-- there; nil where there is neither.
local function name_at(code, cursor)
  local left = code:sub(1, cursor)
  local name = (left:match "[%w_.:]*$" .. code:sub(cursor + 1):match "^[%w_]*"):match "%f[%a_].*$"
  name = name and name:gsub("[.:]+$", "")
  if name and name ~= "" then return name end
  return complete.open_call(left)
end

-- The entry of a method by the object that has it.
local function entry_of_method(name, locals)
  local path, method = name:match "^(.*)[.:]([%w_]+)$"
  local object = path and complete.evaluate(path, locals)
  if core.is_tensor(object) then return docs.find("x:" .. method) end
  local class = object ~= nil and type(object) ~= "string" and docs.of(object)
  return class and class.kind == "class" and docs.find(class.name .. ":" .. method)
end

-- The lines of a function that a cell has made.
local function source_of(fn, cells)
  local info = debug.getinfo(fn, "S")
  local code = cells[tonumber(info.short_src:match "^In%[(%d+)%]$")]
  if not code then return nil end
  local lines, at = {}, 0
  for line in (code .. "\n"):gmatch "(.-)\n" do
    at = at + 1
    if at >= info.linedefined and at <= info.lastlinedefined then lines[#lines + 1] = line end
  end
  return ("function of %s:%d\n\n%s"):format(info.short_src, info.linedefined,
    table.concat(lines, "\n"))
end

-- A value as text, where that says more than its kind.
local function value_text(value, cells)
  if type(value) == "function" then return source_of(value, cells) end
  if type(value) == "table" and rawget(value, "class") then return nil end -- a class
  local made = docs.of(value)
  if made and made.kind == "module" then return nil end
  return repl.shown(value)
end

--- The text about the name at a position of a cell; nil where it is not known.
---@param code string
---@param cursor integer bytes in front of the cursor
---@param locals table the session's locals {[name] = value}
---@param cells table the code of the cells by their numbers
---@return string?
function inspect.text(code, cursor, locals, cells)
  local name = name_at(code, cursor)
  if not name then return nil end
  local value = complete.evaluate(name, locals)
  local entry = value ~= nil and docs.of(value) or entry_of_method(name, locals) or docs.find(name)
  local parts = {}
  if value ~= nil then parts[1] = value_text(value, cells) end
  if entry then parts[#parts + 1] = help.written(entry) end
  return #parts > 0 and table.concat(parts, "\n\n") or nil
end

return inspect
