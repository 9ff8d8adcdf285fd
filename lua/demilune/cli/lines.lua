-- Lines for the prompt: edited, with history and completion, where the input is a terminal and
-- readline is there (src/bind/line.c); else as they come.

local core = require "demilune.core"
local folders = require "demilune.folders"

local lines = {}

local KEPT = 10000 -- lines of history

--- The file of the history: demilune/history in the user's state folder, $XDG_STATE_HOME or
--- ~/.local/state, which is made where it lacks; nil where there is none to write to.
---@return string?
function lines.history_file()
  local home = os.getenv "HOME"
  local state = os.getenv "XDG_STATE_HOME"
  if not state or state == "" then
    if not home or home == "" then return nil end
    state = home .. "/.local/state"
  end
  local folder = state .. "/demilune"
  local path = folder .. "/history"
  local file = io.open(path, "a")
  if not file then
    folders.make(folder)
    file = io.open(path, "a")
  end
  if not file then return nil end
  file:close()
  return path
end

-- read(prompt) -> a line without its end; nil at the end of the input; false after Ctrl-C, and
-- whether something was typed.
local Plain = {}
Plain.__index = Plain

function Plain.read(_, prompt)
  io.write(prompt)
  io.flush()
  return io.read "l"
end
function Plain.remember() end
function Plain.close() end

local Edited = {}
Edited.__index = Edited

function Edited:read(prompt)
  io.flush()
  local line, typed = core._line_read(prompt, self.complete)
  if line == false then io.write "\n" end
  return line, typed
end

-- Adds an input to the history; its lines become one, as they are recalled.
function Edited:remember(text)
  text = text:gsub("%s*\n%s*", " ")
  if text == "" or text == self.last then return end
  core._line_remember(text)
  self.last = text
end

function Edited:close()
  if self.history then core._line_history(self.history, KEPT) end
end

--- A reader of lines. complete(text) gives the candidates for the word at the end of a text.
---@param complete fun(text: string): string[]
---@return table reader with read(prompt), remember(text) and close()
function lines.open(complete)
  if not core._line_open() then return setmetatable({}, Plain) end
  local history = lines.history_file()
  if history then core._line_history(history) end
  return setmetatable({history = history, complete = function(cursor)
    return (complete(core._line_buffer(cursor)))
  end}, Edited)
end

return lines
