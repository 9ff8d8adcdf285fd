-- Figures: what the functions of dm.plot return. One has a view, which draws itself into pixels
-- of SVG (view:svg) and into cells of a terminal (view:canvas).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local terminal = require "demilune.terminal"
local canvas = require "demilune.plot.canvas"
local convert = require "demilune.plot.convert"
local svg = require "demilune.plot.svg"

local figure = {}

local Figure = {class = "Figure"}
Figure.__index = Figure

local MOST_PIXELS = 10000 -- of width and of height
local LEAST_PIXELS = 60
local NARROWEST = 8       -- columns of a terminal
local PNG_ZOOM = 2

--- Whether a value is a figure.
function figure.is(v) return getmetatable(v) == Figure end

--- A figure of a view.
---@param what string the function, for messages
---@param view table
---@param width number pixels
---@param height number
---@param described string what it shows, for screen readers and dm.show
function figure.new(what, view, width, height, described)
  for name, v in pairs{width = width, height = height} do
    if not (v >= LEAST_PIXELS and v <= MOST_PIXELS) then
      caller.raise("%s: %s is %s, wanted %d to %d pixels", what, name, tostring(v), LEAST_PIXELS,
        MOST_PIXELS)
    end
  end
  return setmetatable({view = view, width = width, height = height, title = view.title,
    described = described}, Figure)
end

-- The title, or what the figure shows.
local function name_of(self)
  return self.title and ("%s (%s)"):format(self.title, self.described) or self.described
end

--- The figure as an SVG document; or nil and a message when an image in it cannot be encoded.
---@return string|nil
---@return string|nil message
function Figure:svg()
  local _ <close> = core.no_grad()
  local out = svg.writer()
  local drawn, why = self.view:svg(out, self.width, self.height)
  if drawn == nil and why then return nil, why end
  return svg.document(out, self.width, self.height, name_of(self))
end

-- Bytes of the document in the format of a name's ending; nil and a message.
local function bytes_of(self, ending)
  local document, why = self:svg()
  if not document or ending == "svg" then return document, why end
  return convert.png(document, PNG_ZOOM)
end

local bind_save = options.signature("figure:save", "path: string")

--- Writes the figure to a file whose name ends in .svg or .png; a PNG file has two pixels to one
--- of the figure, and takes the program rsvg-convert.
---   assert(fig:save "loss.svg")
---@param path string
---@return boolean|nil true; nil and a message where the disk or a missing program is at fault
---@return string|nil message
function Figure:save(...)
  local path = bind_save(...).path
  local ending = path:lower():match "%.(%w+)$"
  if ending ~= "svg" and ending ~= "png" then
    caller.raise("figure:save: path is '%s', wanted a name that ends in .svg or .png", path)
  end
  local bytes, why = bytes_of(self, ending)
  if not bytes then return nil, ("save: cannot write '%s': %s"):format(path, why) end
  return core._write_file("save", path, bytes)
end

local bind_text = options.signature("figure:text",
  "*, columns?: integer, rows?: integer, utf8?: boolean, colours?: integer")

--- The figure in characters, as print(fig) shows it.
---   io.stderr:write(fig:text{columns = 60, colours = 0}, "\n")
---@param opts? table {columns = and rows = (the terminal's size), utf8 = (the locale's), colours =
---  0, 16, 256 or 1 << 24 (the terminal's; 0 where standard output is none)}
---@return string
function Figure:text(...)
  local o = bind_text(...)
  local term = terminal.of()
  for name, v in pairs(o) do term[name] = v end
  if term.columns < 1 or term.rows < 1 then
    caller.raise("figure:text: columns is %d and rows %d, wanted 1 and more", term.columns,
      term.rows)
  end
  term.columns = math.max(term.columns, NARROWEST)
  local _ <close> = core.no_grad()
  return self.view:canvas(term):text(term.colours, term.utf8)
end

function Figure:__tostring() return self:text() end

--- One line that says what the figure is.
---@return string
function Figure:summary()
  return ("figure: %s, %d x %d pixels; hint: fig:save \"figure.svg\" writes it to a file"):format(
    name_of(self), self.width // 1 | 0, self.height // 1 | 0)
end

caller.with_colon(Figure, "figure", "svg save text summary")

-- ---- several side by side ----

local Grid = {}
Grid.__index = Grid

-- The largest width of each column and height of each row.
local function sizes(view)
  local widths, heights = {}, {}
  for i, fig in ipairs(view.figures) do
    local c, r = (i - 1) % view.columns + 1, (i - 1) // view.columns + 1
    widths[c] = math.max(widths[c] or 0, fig.width)
    heights[r] = math.max(heights[r] or 0, fig.height)
  end
  return widths, heights
end

local function sum(list)
  local total = 0
  for _, v in ipairs(list) do total = total + v end
  return total
end

local TITLE_HEIGHT = 30

function Grid:svg(out, width)
  local widths, heights = sizes(self)
  local y = 0
  if self.title then
    out:text(width / 2, 24, self.title, {class = "title", ["text-anchor"] = "middle"})
    y = TITLE_HEIGHT
  end
  for r, height in ipairs(heights) do
    local x = 0
    for c, across in ipairs(widths) do
      local fig = self.figures[(r - 1) * self.columns + c]
      if fig then
        out:group(x, y)
        local drawn, why = fig.view:svg(out, fig.width, fig.height)
        if drawn == nil and why then return nil, why end
        out:close()
      end
      x = x + across
    end
    y = y + height
  end
  return true
end

local NARROW = 30 -- columns of a terminal, below which fewer figures stand in a row

function Grid:canvas(term)
  local across = math.max(math.min(self.columns, (term.columns + 2) // (NARROW + 2)), 1)
  local each = (term.columns - 2 * (across - 1)) // across
  local own = setmetatable({columns = each}, {__index = term})
  local drawn, tops, rows = {}, {}, self.title and 1 or 0
  for i, fig in ipairs(self.figures) do
    drawn[i] = drawn[i] or fig.view:canvas(own)
    if (i - 1) % across == 0 then
      tops[#tops + 1] = rows + 1
      local height = 0
      for k = i, math.min(i + across - 1, #self.figures) do
        drawn[k] = drawn[k] or self.figures[k].view:canvas(own)
        height = math.max(height, drawn[k].rows)
      end
      rows = rows + height
    end
  end
  local onto = canvas.new(term.columns, rows)
  if self.title then onto:centre(1, 1, term.columns, self.title) end
  for i, one in ipairs(drawn) do
    onto:paste(tops[(i - 1) // across + 1], 1 + (i - 1) % across * (each + 2), one)
  end
  return onto
end

--- A figure of figures, in rows of so many.
---@param figures table
---@param columns integer
---@param title? string
function figure.grid(figures, columns, title)
  local view = setmetatable({figures = figures, columns = math.min(columns, #figures),
    title = title}, Grid)
  local widths, heights = sizes(view)
  local height = sum(heights) + (title and TITLE_HEIGHT or 0)
  return figure.new("grid", view, sum(widths), height, ("%d figures"):format(#figures))
end

return figure
