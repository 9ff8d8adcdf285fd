-- The abilities of this process's terminal: its width, UTF-8, colours, images. Everything
-- follows from the environment, but for the width, which the terminal tells where COLUMNS is not
-- set.

local core = require "demilune.core"

local terminal = {}

local DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24

local function variable(name)
  local value = os.getenv(name)
  return value ~= "" and value or nil
end

--- Whether text is written as UTF-8, by the locale of the environment.
---@return boolean
function terminal.is_utf8()
  local locale = variable "LC_ALL" or variable "LC_CTYPE" or variable "LANG" or ""
  return locale:upper():find "UTF%-?8" ~= nil
end

--- Whether an open file is a terminal.
---@param file any an open file (anything else is none)
---@return boolean
function terminal.is_terminal(file)
  return io.type(file) == "file" and core.isatty(file)
end

--- The file of a progress bar that names none, and whether a line can be drawn anew in it. A front
--- end, such as the Jupyter kernel, puts a function of its own here.
---@return any file an object with write and flush
---@return boolean
function terminal.of_bars() return io.stderr, terminal.is_terminal(io.stderr) end

local function whole(text)
  local n = math.tointeger(tonumber(text))
  return n and n > 0 and n or nil
end

--- Columns and rows: COLUMNS and LINES, else the size of the terminal that the file is, else 80 and
--- 24.
---@param file? file*
---@return integer columns
---@return integer rows
function terminal.size(file)
  local columns, rows = whole(variable "COLUMNS"), whole(variable "LINES")
  if not columns and file and io.type(file) == "file" then
    local asked_rows, asked_columns = core.terminal_size(file)
    columns, rows = whole(asked_columns), rows or whole(asked_rows)
  end
  return columns or DEFAULT_COLUMNS, rows or DEFAULT_ROWS
end

-- The number of colours by TERM and COLORTERM; 0 where NO_COLOR is set (no-color.org).
local function colours()
  local term, kind = variable "TERM" or "dumb", variable "COLORTERM" or ""
  if variable "NO_COLOR" or term == "dumb" then return 0 end
  if kind == "truecolor" or kind == "24bit" or term:find "direct" or term:find "kitty" then
    return 1 << 24
  end
  return term:find "256" and 256 or 16
end

local GRAPHICS = {
  {"kitty", function(term, program)
    return term:find "kitty" or term:find "ghostty" or variable "KITTY_WINDOW_ID"
      or program == "ghostty"
  end},
  {"iterm", function(_, program) return program == "iTerm.app" or program == "WezTerm" end},
  {"sixel", function(term)
    return term:find "sixel" or term:find "^foot" or term:find "^mlterm" or term:find "^yaft"
  end},
}

-- The protocol by which the terminal shows images, or nil; screen and tmux pass none of them on.
local function graphics()
  local term, program = variable "TERM" or "", variable "TERM_PROGRAM" or ""
  if variable "TMUX" or term:find "^screen" or term:find "^tmux" then return nil end
  for _, entry in ipairs(GRAPHICS) do
    if entry[2](term, program) then return entry[1] end
  end
  return nil
end

--- The abilities of the terminal behind a file, standard output by default.
---@param file? file*
---@return table {terminal: boolean, columns: integer, rows: integer, utf8: boolean,
---  colours: integer (0, 16, 256 or 2^24), graphics: "kitty"|"iterm"|"sixel"|nil}
function terminal.of(file)
  file = file or io.stdout
  local is_terminal = terminal.is_terminal(file)
  local columns, rows = terminal.size(is_terminal and file or nil)
  return {terminal = is_terminal, columns = columns, rows = rows, utf8 = terminal.is_utf8(),
    colours = is_terminal and colours() or 0, graphics = is_terminal and graphics() or nil}
end

return terminal
