-- Errors and warnings that name the line of whoever called the library.

local caller = {}

local HERE = debug.getinfo(1, "S").source:match "^(.*)caller%.lua$"

-- "file:line: " of the first function on the stack outside the library.
local function position()
  local level = 3
  while true do
    local info = debug.getinfo(level, "Sl")
    if not info then return "" end
    if info.currentline > 0 and info.source:sub(1, #HERE) ~= HERE then
      return ("%s:%d: "):format(info.short_src, info.currentline)
    end
    level = level + 1
  end
end

--- The line of whoever called the library, "file:line"; "" where no Lua called.
---@return string
function caller.where() return (position():gsub(": $", "")) end

--- The name of the function of the library, or of Lua, that the program has called; nil where it
--- has none. To be called by a handler of xpcall.
---@return string?
function caller.called()
  local level, name = 3, nil
  while true do
    local info = debug.getinfo(level, "Sn")
    if not info or info.what ~= "C" and info.source:sub(1, #HERE) ~= HERE then return name end
    name = info.name
    level = level + 1
  end
end

-- Where in a model the error is, "in model.layers[3] Linear(784 -> 256): ", or ""; nn/module.lua
-- puts its own function here. The C code of the module calls it too.
function caller.inside() return "" end

function caller.raise(text, ...)
  error(position() .. caller.inside() .. text:format(...), 0)
end

--- Raises for a method that was called with a dot for a colon: another value, or none, was its
--- self then. word: how an object is called in the message.
function caller.dotted(word, name)
  caller.raise("%s.%s was called with a dot; hint: %s:%s(...)", word, name, word, name)
end

--- Makes the named methods of a class call dotted() for a self that is no object of the class. (A
--- method that each step calls looks for nil itself: this takes longer than zero_grad.)
function caller.with_colon(class, word, names)
  class[class] = true -- an object finds it through its class
  for name in names:gmatch "%S+" do
    local method = class[name]
    class[name] = function(self, ...)
      if type(self) ~= "table" or not self[class] then caller.dotted(word, name) end
      return method(self, ...)
    end
  end
end

-- Writes a warning; a program may put a function of its own here.
function caller.sink(text) io.stderr:write(text, "\n") end

function caller.warn(text, ...)
  caller.sink(position() .. "warning: " .. text:format(...))
end

local warned = {}

-- A warning that is given once for each key (any value but nil).
function caller.warn_once(key, text, ...)
  if warned[key] then return end
  warned[key] = true
  caller.warn(text, ...)
end

-- A warning about a line, "file:line: " (nil: the caller's), given once for it.
function caller.warn_at(where, text)
  text = (where or position()) .. "warning: " .. text
  if warned[text] then return end
  warned[text] = true
  caller.sink(text)
end

return caller
