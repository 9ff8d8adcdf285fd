-- Heat maps and confusion matrices, as SVG and in cells of a terminal. A view of this kind has
-- values = list of rows of numbers, row_labels and column_labels (lists of strings, or nil), map =
-- a name of colours.MAPS, lo and hi = the values at its ends (nil: those that are there), written =
-- list of rows of strings in the cells, or nil, square = whether cells are squares, bar = whether a
-- bar of colours is drawn; title, xlabel, ylabel.

local core = require "demilune.core"
local canvas = require "demilune.plot.canvas"
local colours = require "demilune.plot.colours"
local pixels = require "demilune.plot.pixels"
local scale = require "demilune.plot.scale"
local svg = require "demilune.plot.svg"

local matrix = {}

local View = {}
View.__index = View

local MARGIN, LINE_HEIGHT, TICK_GAP, BAR = 14, 18, 6, 14
local MOST_LABEL = 20    -- characters
local MOST_CELLS = 2500  -- more are one embedded image

-- The lowest and the highest value, and how many are not finite.
local function range_of(values)
  local lo, hi, lost = nil, nil, 0
  for _, row in ipairs(values) do
    for _, v in ipairs(row) do
      if math.abs(v) <= scale.LARGEST then
        lo, hi = not lo and v or math.min(lo, v), not hi and v or math.max(hi, v)
      else
        lost = lost + 1
      end
    end
  end
  return lo or 0, hi or 1, lost
end

--- A view of a matrix.
---@param view table as the head of the file says
---@return table view
function matrix.new(view)
  local lo, hi, lost = range_of(view.values)
  view.lo, view.hi = view.lo or lo, view.hi or hi
  view.n_rows, view.n_columns = #view.values, view.values[1] and #view.values[1] or 0
  view.note = view.n_rows * view.n_columns == 0 and "no values"
    or lost > 0 and ("%d %s not finite"):format(lost, lost == 1 and "value" or "values") or ""
  return setmetatable(view, View)
end

local function share(view, v)
  if v ~= v or math.abs(v) > scale.LARGEST then return 0 / 0 end
  if view.hi <= view.lo then return v > view.hi and 1 or 0 end
  return (v - view.lo) / (view.hi - view.lo)
end

local function colour_of(view, v) return colours.at(view.map, share(view, v)) end

-- The matrix as an image, uint8 (rows, columns, 3), in the colours of a map.
local function image_of(view, map)
  local flat = {}
  for _, row in ipairs(view.values) do
    for _, v in ipairs(row) do
      local s = share(view, v)
      flat[#flat + 1] = s ~= s and 257 or 1 + (math.min(math.max(s, 0), 1) * 255 + 0.5) // 1 | 0
    end
  end
  local index = core.tensor(flat, {dtype = "int64"})
  return colours.table_of(map):index_select(1, index):reshape(view.n_rows, view.n_columns, 3)
end

-- ---- SVG ----

local function widest(labels)
  local width = 0
  for _, text in ipairs(labels) do
    width = math.max(width, svg.width(svg.cut(text, MOST_LABEL)))
  end
  return width
end

-- Labels of rows or columns: those given, or some positions.
local function labels_of(given, n)
  if given then return given end
  local labels = {}
  for i = 1, n do labels[i] = tostring(i) end
  return labels
end

local function layout(view, width, height)
  local l = {rows = labels_of(view.row_labels, view.n_rows),
    columns = labels_of(view.column_labels, view.n_columns), top = MARGIN}
  if view.title then l.top = l.top + 22 end
  l.left = MARGIN + (view.ylabel and LINE_HEIGHT or 0) + widest(l.rows) + TICK_GAP
  local bar_labels = math.max(svg.width(scale.number(view.lo)), svg.width(scale.number(view.hi)))
  l.right = view.bar and MARGIN + BAR + 12 + bar_labels or MARGIN
  local w = math.max((width - l.left - l.right) / math.max(view.n_columns, 1), 0.01)
  l.slanted = widest(l.columns) + 6 > w and view.column_labels ~= nil
  l.below = l.slanted and widest(l.columns) * 0.65 + LINE_HEIGHT or LINE_HEIGHT
  local below = l.below + (view.xlabel and LINE_HEIGHT or 0)
    + (view.note ~= "" and LINE_HEIGHT or 0)
  local h = math.max((height - l.top - below - MARGIN + 4) / math.max(view.n_rows, 1), 0.01)
  if view.square then w, h = math.min(w, h), math.min(w, h) end
  l.w, l.h = w, h
  l.width, l.height = w * view.n_columns, h * view.n_rows
  local space = width - l.left - l.right - l.width
  if view.square then l.left = l.left + math.max(space, 0) / 2 end
  return l
end

-- Whether row or column i of n has its label, where a label takes the space of `space` cells. Of
-- given labels some are left out then; without them, multiples of a round number are written.
local function is_labelled(given, i, n, space)
  local every = math.max(math.ceil(space), 1)
  if given or every == 1 then return (i - 1) % every == 0 end
  local m, k = scale.step(n, math.max(n // every, 1), true)
  return i % (m * 10 ^ k) == 0
end

local function svg_labels(view, out, l)
  for i, text in ipairs(l.rows) do
    if is_labelled(view.row_labels, i, #l.rows, 15 / l.h) then
      out:text(-TICK_GAP, (i - 0.5) * l.h + 4, svg.cut(text, MOST_LABEL), {["text-anchor"] = "end"})
    end
  end
  local needed = l.slanted and 15 or widest(l.columns) + 8
  for i, text in ipairs(l.columns) do
    if is_labelled(view.column_labels, i, #l.columns, needed / l.w) then
      local x, y = (i - 0.5) * l.w, l.height + svg.FONT + TICK_GAP - 2
      out:text(x, y, svg.cut(text, MOST_LABEL), {["text-anchor"] = l.slanted and "end" or "middle",
        transform = l.slanted and ("rotate(-40 %s %s)"):format(svg.px(x), svg.px(y)) or nil})
    end
  end
  if view.xlabel then
    out:text(l.width / 2, l.height + l.below + LINE_HEIGHT, view.xlabel,
      {["text-anchor"] = "middle"})
  end
  if view.ylabel then
    local x = -widest(l.rows) - TICK_GAP - 8
    out:text(x, l.height / 2, view.ylabel, {["text-anchor"] = "middle",
      transform = ("rotate(-90 %s %s)"):format(svg.px(x), svg.px(l.height / 2))})
  end
end

-- Whether the texts of the cells fit into them.
local function fits(view, l)
  local width = 0
  for _, row in ipairs(view.written or {}) do
    for _, text in ipairs(row) do width = math.max(width, svg.width(text, 11)) end
  end
  return view.written ~= nil and width + 2 <= l.w and l.h >= 13
end

local function svg_cells(view, out, l)
  local written = fits(view, l)
  for i, row in ipairs(view.values) do
    for j, v in ipairs(row) do
      local colour = colour_of(view, v)
      local x, y = (j - 1) * l.w, (i - 1) * l.h
      out:rect(x, y, l.w, l.h, {fill = colours.hex(colour), ["shape-rendering"] = "crispEdges"})
      if written then
        out:text(x + l.w / 2, y + l.h / 2 + 4, view.written[i][j], {class = "small",
          ["text-anchor"] = "middle", style = "fill:" .. colours.hex(colours.ink_on(colour))})
      end
    end
  end
end

-- Pixels of an embedded image for n cells along a length: two to a pixel of the drawing at most,
-- and whole ones for each cell where there are more.
local function drawn_size(n, length)
  local most = math.max(2 * length // 1 | 0, 1)
  return n > most and most or n * math.max(most // n, 1)
end

local function svg_image(view, out, l)
  local x = image_of(view, view.map)
  local uri, why = pixels.uri(pixels.resized(x, drawn_size(x:size(1), l.height),
    drawn_size(x:size(2), l.width)))
  if not uri then return nil, why end
  out:element("image", {x = 0, y = 0, width = l.width, height = l.height, href = uri,
    preserveAspectRatio = "none"})
  return true
end

-- The bar of colours, in 32 steps, with the values at its ends.
local function svg_bar(view, out, l)
  local x, n = l.width + MARGIN, 32
  local h = l.height / n
  for i = 1, n do
    out:rect(x, l.height - i * h, BAR, i > 1 and h + 0.5 or h, {["shape-rendering"] = "crispEdges",
      fill = colours.hex(colours.at(view.map, (i - 0.5) / n))})
  end
  out:text(x + BAR + TICK_GAP, svg.FONT - 2, scale.number(view.hi))
  out:text(x + BAR + TICK_GAP, l.height, scale.number(view.lo))
end

--- Draws the view into width x height pixels: -> true; or nil and a message when a large matrix
--- cannot be encoded as an image.
function View:svg(out, width, height)
  local l = layout(self, width, height)
  if self.title then
    out:text(width / 2, MARGIN + 12, svg.cut(self.title, math.floor(width / 8)),
      {class = "title", ["text-anchor"] = "middle"})
  end
  out:group(l.left, l.top)
  local n = self.n_rows * self.n_columns
  if n > MOST_CELLS then
    local drawn, why = svg_image(self, out, l)
    if not drawn then return nil, why end
  elseif n > 0 then
    svg_cells(self, out, l)
  end
  if n > 0 then
    svg_labels(self, out, l)
    if self.bar then svg_bar(self, out, l) end
  end
  if self.note ~= "" then
    out:text(0, l.height + l.below + (self.xlabel and 2 or 1) * LINE_HEIGHT, self.note,
      {class = "note"})
  end
  out:close()
  return true
end

-- ---- a terminal ----

-- How many columns a cell has in a terminal, and whether its text is written.
local function cell_columns(view, columns)
  local longest = 0
  for _, row in ipairs(view.written or {}) do
    for _, text in ipairs(row) do longest = math.max(longest, svg.length(text)) end
  end
  if view.written and (longest + 1) * view.n_columns <= columns then return longest + 1, true end
  return 2 * view.n_columns <= columns and 2 or 1, false
end

-- The text of a cell: as it is written, or without colours a density; nan is "?".
local function cell_text(view, i, j, width, written, term)
  local text = written and view.written[i][j] or ""
  if written or term.colours > 0 then return (" "):rep(width - svg.length(text)) .. text end
  local s = share(view, view.values[i][j])
  return (s ~= s and "?" or pixels.shade(math.min(math.max(s, 0), 1), term.utf8)):rep(width)
end

local function put_cells(view, onto, top, left, width, written, term)
  for i, row in ipairs(view.values) do
    for j, v in ipairs(row) do
      local colour, at = colour_of(view, v), left + (j - 1) * width
      local text = cell_text(view, i, j, width, written, term)
      if term.colours > 0 then
        onto:put(top + i - 1, at, text, colours.ink_on(colour), colour)
      else
        onto:put(top + i - 1, at, text)
      end
    end
  end
end

-- Column labels, as many as fit, cut to their cells where all are to be seen.
local function put_columns(onto, row, left, width, labels)
  local free = left
  for j, text in ipairs(labels) do
    text = svg.cut(text, math.max(width - 1, 1))
    local at = left + j * width - svg.length(text)
    if at >= free then
      onto:put(row, at, text)
      free = at + svg.length(text) + 1
    end
  end
end

--- The view in cells of a terminal: texts in cells where they fit, otherwise an image.
---@return table canvas
function View:canvas(term)
  local labels, label_columns = labels_of(self.row_labels, self.n_rows), 0
  for _, text in ipairs(labels) do label_columns = math.max(label_columns, svg.length(text)) end
  label_columns = math.min(label_columns, term.columns // 3)
  local left = label_columns + 2
  local width, written = cell_columns(self, term.columns - left + 1)
  local as_image = not written and (width * self.n_columns > term.columns - left + 1
    or self.n_rows > 2 * term.rows)
  local rows = as_image and math.min(self.n_rows, math.max(term.rows - 4, 4)) or self.n_rows
  local title = self.title and 1 or 0
  local onto = canvas.new(term.columns, title + rows + 3)
  if self.title then onto:centre(1, 1, term.columns, self.title) end
  if self.n_rows * self.n_columns > 0 then
    if as_image then
      local across = math.max(math.min(term.columns - left + 1, 2 * self.n_columns), 1)
      local map = term.colours > 0 and self.map or "gray"
      pixels.put(image_of(self, map), onto, title + 1, left, rows, across, term)
    else
      put_cells(self, onto, title + 1, left, width, written, term)
      for i, text in ipairs(labels) do
        text = svg.cut(text, label_columns)
        onto:put(title + i, label_columns - svg.length(text) + 1, text)
      end
      put_columns(onto, title + rows + 1, left, width,
        labels_of(self.column_labels, self.n_columns))
    end
  end
  local words = {}
  if self.ylabel then words[#words + 1] = "rows: " .. self.ylabel end
  if self.xlabel then words[#words + 1] = "columns: " .. self.xlabel end
  if self.bar then
    words[#words + 1] = ("%s to %s"):format(scale.number(self.lo), scale.number(self.hi))
  end
  onto:put(onto.rows - 1, 1, svg.cut(table.concat(words, "; "), term.columns))
  onto:put(onto.rows, 1, self.note)
  return onto
end

return matrix
