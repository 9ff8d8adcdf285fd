-- Images in rows, as SVG and in cells of a terminal. A view of this kind has images = list of
-- uint8 (H, W, 3), columns, titles = list of strings, and title.

local canvas = require "demilune.plot.canvas"
local pixels = require "demilune.plot.pixels"
local svg = require "demilune.plot.svg"

local images = {}

local View = {}
View.__index = View

local GAP, TITLE_HEIGHT, LINE_HEIGHT, MARGIN = 8, 24, 16, 8
local SHARPNESS = 2 -- pixels of an embedded image to one of the drawing, for fine screens

--- A view of images.
---@param view table as the head of the file says
---@return table view
function images.new(view)
  local n = #view.images
  view.columns = math.max(math.min(view.columns, n), 1)
  view.rows = (n + view.columns - 1) // view.columns
  view.tallest = 0 -- height by width
  for _, x in ipairs(view.images) do
    view.tallest = math.max(view.tallest, x:size(1) / x:size(2))
  end
  view.note = n == 0 and "no images" or ""
  return setmetatable(view, View)
end

--- The height in pixels at which the images fill a width.
---@param width number
---@return number
function View:natural_height(width)
  local each = (width - 2 * MARGIN - (self.columns - 1) * GAP) / self.columns
  local row = each * self.tallest + (self.titles and LINE_HEIGHT or 0)
  return (self.title and TITLE_HEIGHT or 0) + 2 * MARGIN + self.rows * row
    + math.max(self.rows - 1, 0) * GAP
end

local function svg_image(out, x, left, top, width, height)
  local h, w = pixels.fitted(x, height, width)
  local uri, why = pixels.uri(pixels.exact(x, SHARPNESS * height, SHARPNESS * width))
  if not uri then return nil, why end
  out:element("image", {x = left + (width - w) / 2, y = top + (height - h) / 2, width = w,
    height = h, href = uri, preserveAspectRatio = "none"})
  return true
end

--- Draws the view into width x height pixels: -> true; or nil and a message when an image cannot
--- be encoded.
function View:svg(out, width, height)
  local top = MARGIN
  if self.title then
    out:text(width / 2, MARGIN + 14, self.title, {class = "title", ["text-anchor"] = "middle"})
    top = top + TITLE_HEIGHT
  end
  local below = self.titles and LINE_HEIGHT or 0
  local each = (width - 2 * MARGIN - (self.columns - 1) * GAP) / self.columns
  local row = (height - top - MARGIN - (self.rows - 1) * GAP) / math.max(self.rows, 1)
  each, row = math.max(each, 1), math.max(row, below + 1)
  for i, x in ipairs(self.images) do
    local left = MARGIN + (i - 1) % self.columns * (each + GAP)
    local y = top + (i - 1) // self.columns * (row + GAP)
    local drawn, why = svg_image(out, x, left, y + below, each, row - below)
    if not drawn then return nil, why end
    local title = self.titles and self.titles[i]
    if title then
      out:text(left + each / 2, y + 12, svg.cut(tostring(title), math.max(math.floor(each / 6), 3)),
        {class = "small", ["text-anchor"] = "middle"})
    end
  end
  if self.note ~= "" then out:text(MARGIN, top + LINE_HEIGHT, self.note, {class = "note"}) end
  return true
end

-- Cells of the largest image, one cell being twice as high as wide.
local function cell_size(view, term)
  local columns = math.max((term.columns - view.columns + 1) // view.columns, 1)
  if view.columns > 1 then columns = math.min(columns, 32) end
  local rows = math.max(math.ceil(columns * view.tallest / 2), 1)
  local most = math.max(term.rows - 4, 4)
  if view.rows == 1 and rows > most then
    columns, rows = math.max(columns * most // rows, 1), most
  end
  return columns, rows
end

--- The view in cells of a terminal.
---@return table canvas
function View:canvas(term)
  local columns, rows = cell_size(self, term)
  local above, title = self.titles and 1 or 0, self.title and 1 or 0
  local height = title + self.rows * (rows + above) + (self.note ~= "" and 1 or 0)
  local onto = canvas.new(term.columns, math.max(height, 1))
  if self.title then onto:centre(1, 1, term.columns, self.title) end
  for i, x in ipairs(self.images) do
    local left = 1 + (i - 1) % self.columns * (columns + 1)
    local top = 1 + title + (i - 1) // self.columns * (rows + above)
    local name = self.titles and self.titles[i]
    if name then onto:put(top, left, svg.cut(tostring(name), columns)) end
    local h, w = pixels.fitted(x, 2 * rows, columns)
    pixels.put(x, onto, top + above, left, math.max(math.ceil(h / 2), 1), math.max(w // 1 | 0, 1),
      term)
  end
  onto:put(onto.rows, 1, self.note)
  return onto
end

return images
