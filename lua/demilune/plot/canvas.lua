-- Cells of a terminal, and dots in them: braille has 2 x 4 in a cell, ASCII one.

local colours = require "demilune.plot.colours"
local svg = require "demilune.plot.svg"

local canvas = {}

-- ---- cells ----

local Canvas = {}
Canvas.__index = Canvas

--- Blank cells.
---@param columns integer
---@param rows integer
function canvas.new(columns, rows)
  local self = setmetatable({columns = columns, rows = rows}, Canvas)
  for r = 1, rows do self[r] = {fg = {}, bg = {}} end
  return self
end

local function characters(text)
  if utf8.len(text) then return text:gmatch(utf8.charpattern) end
  return text:gmatch "."
end

--- Writes a text from a cell on; what lies outside is left out, and control characters are "?".
---@param row integer
---@param column integer
---@param text string
---@param fg? integer a colour
---@param bg? integer
function Canvas:put(row, column, text, fg, bg)
  local line = self[row]
  if not line then return end
  for c in characters(text) do
    if column >= 1 and column <= self.columns then
      line[column] = c:find "^%c" and "?" or c
      line.fg[column], line.bg[column] = fg, bg
    end
    column = column + 1
  end
end

--- Writes a text in the middle of the columns from `from` to `to`.
function Canvas:centre(row, from, to, text, fg, bg)
  local width = to - from + 1
  text = svg.cut(text, width)
  self:put(row, from + (width - svg.length(text)) // 2, text, fg, bg)
end

--- Copies another canvas, its first cell to a cell of this one.
function Canvas:paste(row, column, other)
  for r = 1, other.rows do
    local from = other[r]
    for c = 1, other.columns do
      if from[c] then self:put(row + r - 1, column + c - 1, from[c], from.fg[c], from.bg[c]) end
    end
  end
end

-- ---- colours of terminals ----

-- The usual colours of the 16 codes (xterm's).
local SIXTEEN = {0x000000, 0xCD0000, 0x00CD00, 0xCDCD00, 0x0000EE, 0xCD00CD, 0x00CDCD, 0xE5E5E5,
  0x7F7F7F, 0xFF0000, 0x00FF00, 0xFFFF00, 0x5C5CFF, 0xFF00FF, 0x00FFFF, 0xFFFFFF}

local function distance(a, b)
  local r, g, bl = colours.parts(a)
  local r2, g2, bl2 = colours.parts(b)
  return (r - r2) ^ 2 + (g - g2) ^ 2 + (bl - bl2) ^ 2
end

local function nearest_of_sixteen(colour)
  local best = 1
  for i = 2, 16 do
    if distance(colour, SIXTEEN[i]) < distance(colour, SIXTEEN[best]) then best = i end
  end
  return best - 1
end

-- The level 0 to 5 of xterm's cube of 216 colours, whose values are 0, 95, 135, ..., 255.
local function level(v) return v < 48 and 0 or v < 115 and 1 or (v - 35) // 40 end

local function code(colour, background, n)
  local r, g, b = colours.parts(colour)
  if n > 256 then return ("%d;2;%d;%d;%d"):format(background and 48 or 38, r, g, b) end
  if n == 256 then
    return ("%d;5;%d"):format(background and 48 or 38, 16 + 36 * level(r) + 6 * level(g) + level(b))
  end
  local i = nearest_of_sixteen(colour)
  return tostring((i < 8 and 30 + i or 82 + i) + (background and 10 or 0))
end

-- Sequences that were made: they repeat in every cell.
local function coder(n)
  local known = {}
  return function(fg, bg)
    local key = (fg or -1) << 32 | (bg or -1) & 0xffffffff
    if not known[key] then
      known[key] = "\27[0" .. (fg and ";" .. code(fg, false, n) or "")
        .. (bg and ";" .. code(bg, true, n) or "") .. "m"
    end
    return known[key]
  end
end

local function line_text(line, columns, sequence)
  local last = 0
  for c = 1, columns do
    if line[c] and line[c] ~= " " or sequence and line.bg[c] then last = c end
  end
  local parts, fg, bg = {}, nil, nil
  for c = 1, last do
    if sequence and (line.fg[c] ~= fg or line.bg[c] ~= bg) then
      fg, bg = line.fg[c], line.bg[c]
      parts[#parts + 1] = sequence(fg, bg)
    end
    parts[#parts + 1] = line[c] or " "
  end
  if fg or bg then parts[#parts + 1] = "\27[0m" end
  return table.concat(parts)
end

-- Characters outside of ASCII as ".", which stands for the rest of a text, or "?".
local function ascii(text)
  return (text:gsub("…", "."):gsub("[\xc2-\xfd][\x80-\xbf]*", "?"):gsub("[\x80-\xff]", "?"))
end

--- The lines as text, without blanks at their ends.
---@param n integer colours of the terminal: 0, 16, 256 or 2^24
---@param utf boolean whether it may hold more than ASCII
---@return string
function Canvas:text(n, utf)
  local lines, sequence = {}, n > 0 and coder(n) or nil
  for r = 1, self.rows do lines[r] = line_text(self[r], self.columns, sequence) end
  local text = table.concat(lines, "\n")
  return utf and text or ascii(text)
end

-- ---- dots ----

local Dots = {}
Dots.__index = Dots

-- Bits of braille: [column][row], from the top left (Unicode 15, block 2800).
local BITS = {[0] = {[0] = 1, 2, 4, 64}, {[0] = 8, 16, 32, 128}}

--- Dots over some cells: braille where marks is false, else a character in each cell.
---@param columns integer
---@param rows integer
---@param marks boolean
function canvas.dots(columns, rows, marks)
  local across, down = marks and 1 or 2, marks and 1 or 4
  return setmetatable({marks = marks, across = across, down = down, columns = columns,
    rows = rows, width = columns * across, height = rows * down, cells = {}, colour = {}}, Dots)
end

--- Sets the dot at (x, y), which count from 0; `mark` is the character where cells have one.
function Dots:set(x, y, colour, mark)
  if x < 0 or y < 0 or x >= self.width or y >= self.height then return end
  local cell = y // self.down * self.columns + x // self.across
  self.colour[cell] = colour
  if self.marks then
    self.cells[cell] = mark
  else
    self.cells[cell] = (self.cells[cell] or 0) | BITS[x % 2][y % 4]
  end
end

--- Sets the dots of a line between two of them.
function Dots:line(x, y, x2, y2, colour, mark)
  local n = math.max(math.abs(x2 - x), math.abs(y2 - y), 1)
  for i = 0, n do
    self:set((x + (x2 - x) * i / n + 0.5) // 1 | 0, (y + (y2 - y) * i / n + 0.5) // 1 | 0, colour,
      mark)
  end
end

--- Writes the cells that have dots to a canvas, the first one to a cell of it.
function Dots:flush(onto, row, column)
  for cell, value in pairs(self.cells) do
    local r, c = cell // self.columns, cell % self.columns
    local text = self.marks and value or utf8.char(0x2800 + value)
    onto:put(row + r, column + c, text, self.colour[cell])
  end
end

return canvas
