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

function caller.raise(text, ...)
  error(position() .. text:format(...), 0)
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
