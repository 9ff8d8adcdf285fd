-- Two axes with lines, points and bars between them, as SVG and in cells of a terminal.
--
-- A view of this kind has series = list of {kind = "line"|"points"|"bars", x = list, y = list,
-- name = string|nil, left = list and right = list (the edges of bars)}; title, xlabel, ylabel,
-- logx, logy; whole = whether ticks of x are integers; categories = list of strings, at x = 1, 2,
-- ..., for bars; marks = list of {x, text}, vertical lines; lost and outside, numbers of values
-- that the note counts.

local canvas = require "demilune.plot.canvas"
local colours = require "demilune.plot.colours"
local scale = require "demilune.plot.scale"
local series = require "demilune.plot.series"
local svg = require "demilune.plot.svg"

local axes = {}

local View = {}
View.__index = View

-- ---- scales ----

-- The lists of values that one axis has to show.
local function lists_of(view, key)
  local lists = {}
  for _, s in ipairs(view.series) do
    if s.kind == "bars" and key == "x" then
      lists[#lists + 1], lists[#lists + 2] = s.left, s.right
    else
      lists[#lists + 1] = s[key]
    end
    if s.kind == "bars" and key == "y" and #s.y > 0 then lists[#lists + 1] = {0.0} end
  end
  return lists
end

local function axis_of(view, key, pad)
  local log, whole = view["log" .. key], key == "x" and view.whole
  if key == "x" and view.categories then
    return scale.new(0.5, math.max(#view.categories, 1) + 0.5, {})
  end
  local lo, hi, lost = series.bounds(lists_of(view, key), log)
  view.all_shown = view.all_shown and lost == 0
  if whole and lo and hi - lo < 1 then lo, hi = lo - 0.5, hi + 0.5 end
  return scale.new(lo, hi, {log = log, whole = whole, pad = pad})
end

-- The axis of y without padding below bars, which stand on 0; on a logarithmic axis the lowest one
-- has some height.
local function y_axis_of(view)
  local axis = axis_of(view, "y", view.bars and 0 or 0.05)
  if not view.bars then return axis end
  if view.logy then return scale.new(axis.lo / 2, axis.hi * 1.2, {log = true}) end
  local more = (axis.hi - axis.lo) * 0.05
  return scale.new(axis.lo < 0 and axis.lo - more or axis.lo, axis.hi > 0 and axis.hi + more
    or axis.hi, {})
end

-- How many values the axes cannot show: not finite, or not above 0 on a logarithmic axis. A bar of
-- 0 is none.
local function hidden(view)
  local lost, negative = view.lost or 0, 0
  if view.all_shown then return lost, negative end
  for _, s in ipairs(view.series) do
    for i = 1, #s.y do
      local x, y = s.x[i], s.y[i]
      local shown = view.x_axis:shows(x) and view.y_axis:shows(y)
      if not shown and not (s.kind == "bars" and y == 0) then
        if math.abs(x) <= scale.LARGEST and math.abs(y) <= scale.LARGEST then
          negative = negative + 1
        else
          lost = lost + 1
        end
      end
    end
  end
  return lost, negative
end

local function note_of(view)
  local lost, negative = hidden(view)
  local parts = {}
  local function put(n, text)
    if n == 0 then return end
    parts[#parts + 1] = ("%d %s %s"):format(n, n == 1 and "value" or "values", text)
  end
  put(lost, "not finite")
  put(negative, "not above 0")
  put(view.outside or 0, "outside the range")
  if #parts == 0 and view.empty then parts[1] = "no values" end
  return table.concat(parts, ", ")
end

--- A view of series between two axes.
---@param view table as the head of the file says
---@return table view
function axes.new(view)
  view.empty, view.all_shown = true, true
  for _, s in ipairs(view.series) do
    view.bars = view.bars or s.kind == "bars"
    view.points = view.points or s.kind == "points"
    view.empty = view.empty and #s.y == 0
  end
  view.x_axis = axis_of(view, "x", view.points and 0.04 or 0)
  view.y_axis = y_axis_of(view)
  view.note = note_of(view)
  return setmetatable(view, View)
end

-- The names of the series, or nil where there is nothing to tell apart.
local function legend_of(view)
  local names = {}
  for i, s in ipairs(view.series) do
    if s.name then names[#names + 1] = {s.name, i} end
  end
  return #names > 0 and names or nil
end

-- ---- SVG ----

local MARGIN, TICK_GAP, LINE_HEIGHT = 14, 6, 18
local MOST_LABEL = 24 -- characters of a category's label
local SLANT = 40      -- degrees, of labels that are too wide to stand side by side

local function widest(ticks)
  local width = 0
  for _, tick in ipairs(ticks) do width = math.max(width, svg.width(tick[2])) end
  return width
end

-- The rows of a legend: lists of {name, series, x}, each row no wider than the drawing.
local function legend_rows(names, width)
  local rows, x = {{}}, 0
  for _, entry in ipairs(names) do
    local name = svg.cut(entry[1], math.max(math.floor(width / 7) - 6, 4))
    local step = 24 + svg.width(name) + 14
    if x + step > width + 14 and x > 0 then
      rows[#rows + 1], x = {}, 0
    end
    table.insert(rows[#rows], {name, entry[2], x})
    x = x + step
  end
  return rows
end

-- The labels of categories, and how much space below the axis they take.
local function category_labels(view, width)
  local labels, widest_label = {}, 0
  for i, name in ipairs(view.categories) do
    labels[i] = svg.cut(name, MOST_LABEL)
    widest_label = math.max(widest_label, svg.width(labels[i]))
  end
  local step = width / math.max(#labels, 1)
  if widest_label + 6 <= step then return labels, 1, false, LINE_HEIGHT end
  local every = math.max(math.ceil(14 / step), 1)
  return labels, every, true, widest_label * math.sin(math.rad(SLANT)) + LINE_HEIGHT
end

-- Sizes of all parts: the drawing is at (left, top), width x height.
local function layout(view, width, height)
  local l = {top = MARGIN, legend = {}}
  if view.title then l.top = l.top + 22 end
  l.y_ticks = view.y_axis:ticks(math.max(height // 45, 2))
  l.left = MARGIN + (view.ylabel and LINE_HEIGHT or 0) + widest(l.y_ticks) + TICK_GAP
  l.width = math.max(width - l.left - MARGIN - 8, 10)
  local names = legend_of(view)
  if names then
    l.legend = legend_rows(names, l.width)
    l.legend_top, l.top = l.top, l.top + #l.legend * LINE_HEIGHT + 4
  end
  local below = LINE_HEIGHT
  if view.categories then
    l.labels, l.every, l.slanted, below = category_labels(view, l.width)
  else
    l.x_ticks = view.x_axis:ticks(math.max(l.width // 75, 1))
  end
  l.below = below
  if view.xlabel then below = below + LINE_HEIGHT end
  if view.note ~= "" then below = below + LINE_HEIGHT end
  l.height = math.max(height - l.top - below - MARGIN + 4, 10)
  return l
end

local function svg_category_labels(view, out, l)
  for i, text in ipairs(l.labels) do
    if (i - 1) % l.every == 0 then
      local x = view.x_axis:position(i) * l.width
      local o = {["text-anchor"] = l.slanted and "end" or "middle"}
      local y = l.height + svg.FONT + TICK_GAP - (l.slanted and 4 or 0)
      if l.slanted then
        o.transform = ("rotate(-%d %s %s)"):format(SLANT, svg.px(x), svg.px(y))
      end
      out:text(x, y, text, o)
    end
  end
end

local function svg_axes(view, out, l)
  for _, tick in ipairs(l.y_ticks) do
    local y = (1 - view.y_axis:position(tick[1])) * l.height
    out:line(0, y, l.width, 0, "grid")
    out:text(-TICK_GAP, y + 4, tick[2], {["text-anchor"] = "end"})
  end
  for _, tick in ipairs(l.x_ticks or {}) do
    local x = view.x_axis:position(tick[1]) * l.width
    if not view.bars then out:line(x, 0, 0, l.height, "grid") end
    out:line(x, l.height, 0, 4, "axis")
    out:text(x, l.height + svg.FONT + TICK_GAP, tick[2], {["text-anchor"] = "middle"})
  end
  if l.labels then svg_category_labels(view, out, l) end
end

-- The line on which bars stand, or the lower edge.
local function svg_base(view, out, l)
  local at = view.bars and not view.logy and math.max(view.y_axis:position(0), 0) or 0
  out:line(0, (1 - at) * l.height, l.width, 0, "axis")
end

local function path_of(run)
  local parts = {}
  for i = 1, #run, 2 do
    parts[#parts + 1] = (i == 1 and "M" or "L") .. svg.px(run[i]) .. " " .. svg.px(run[i + 1])
  end
  if #run == 2 then parts[#parts + 1] = "h0" end -- with round caps a point is a dot
  return table.concat(parts)
end

local DRAW = {}

function DRAW.line(view, out, l, s, colour, dashes)
  local parts, n = {}, 0
  for i, run in ipairs(series.runs(s, view.x_axis, view.y_axis, l.width, l.height)) do
    parts[i], n = path_of(run), n + #run
  end
  if #parts == 0 then return end
  local lonely = n == 2 * #parts -- no two neighbours are joined: dots that are seen
  out:element("path", {fill = "none", stroke = colour, ["stroke-width"] = lonely and 5 or 2,
    ["stroke-linejoin"] = "round", ["stroke-linecap"] = "round",
    ["stroke-dasharray"] = not lonely and dashes or nil, d = table.concat(parts)})
end

function DRAW.points(view, out, l, s, colour)
  local list = series.points(s, view.x_axis, view.y_axis, l.width, l.height, 1.5)
  local parts = {}
  for i = 1, #list, 2 do
    parts[#parts + 1] = ("M%s %sh0"):format(svg.px(list[i]), svg.px(list[i + 1]))
  end
  if #parts == 0 then return end
  out:element("path", {stroke = colour, ["stroke-width"] = #parts > 2000 and 2 or 5,
    ["stroke-linecap"] = "round", ["stroke-opacity"] = "0.75", fill = "none",
    d = table.concat(parts)})
end

function DRAW.bars(view, out, l, s, colour)
  local x_axis, y_axis, parts = view.x_axis, view.y_axis, {}
  local base = view.logy and 0 or y_axis:position(0)
  for i = 1, #s.y do
    if y_axis:shows(s.y[i]) then
      local from, to = x_axis:position(s.left[i]) * l.width, x_axis:position(s.right[i]) * l.width
      local gap = to - from > 4 and 0.5 or 0
      local top = y_axis:position(s.y[i])
      parts[#parts + 1] = ("M%s %sV%sH%sV%sz"):format(svg.px(from + gap),
        svg.px((1 - base) * l.height), svg.px((1 - top) * l.height), svg.px(to - gap),
        svg.px((1 - base) * l.height))
    end
  end
  if #parts > 0 then out:element("path", {fill = colour, d = table.concat(parts)}) end
end

local function svg_legend(view, out, l)
  for r, row in ipairs(l.legend) do
    for _, entry in ipairs(row) do
      local x, y = l.left + entry[3], l.legend_top + (r - 1) * LINE_HEIGHT + 6
      local colour, dashes = svg.series_colour(entry[2])
      local line = view.series[entry[2]].kind == "line"
      out:element("path", {stroke = colour, ["stroke-width"] = line and 3 or 10,
        ["stroke-dasharray"] = line and dashes or nil,
        d = ("M%s %sh%d"):format(svg.px(x), svg.px(y), line and 18 or 10)})
      out:text(x + (line and 24 or 16), y + 4, entry[1])
    end
  end
end

--- Draws the view into width x height pixels.
function View:svg(out, width, height)
  local l = layout(self, width, height)
  if self.title then
    out:text(width / 2, MARGIN + 12, svg.cut(self.title, math.floor(width / 8)),
      {class = "title", ["text-anchor"] = "middle"})
  end
  svg_legend(self, out, l)
  out:group(l.left, l.top)
  svg_axes(self, out, l)
  for i, s in ipairs(self.series) do
    local colour, dashes = svg.series_colour(i)
    DRAW[s.kind](self, out, l, s, colour, dashes)
  end
  svg_base(self, out, l)
  for _, mark in ipairs(self.marks or {}) do
    local x = self.x_axis:position(mark[1]) * l.width
    out:element("path", {class = "axis", ["stroke-dasharray"] = "4 3", fill = "none",
      d = ("M%s 0V%s"):format(svg.px(x), svg.px(l.height))})
    out:text(x + 5, 12, mark[2])
  end
  local y = l.height + l.below
  if self.xlabel then
    y = y + LINE_HEIGHT
    out:text(l.width / 2, y, self.xlabel, {["text-anchor"] = "middle"})
  end
  if self.note ~= "" then
    out:text(l.width, y + LINE_HEIGHT, self.note, {class = "note", ["text-anchor"] = "end"})
  end
  if self.ylabel then
    local x, middle = -l.left + MARGIN + 8, l.height / 2
    out:text(x, middle, self.ylabel, {["text-anchor"] = "middle",
      transform = ("rotate(-90 %s %s)"):format(svg.px(x), svg.px(middle))})
  end
  out:close()
end

-- ---- a terminal ----

-- Marks of series where no colour tells them apart.
local MARKS = {"*", "+", "o", "x", "#", "@", "%", "="}
local EIGHTHS = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}

local function mark_of(i) return MARKS[(i - 1) % #MARKS + 1] end

local function rounded(v) return (v + 0.5) // 1 | 0 end

local function dot_line(dots, run, colour, mark)
  for i = 1, #run, 2 do
    local j = i > 1 and i - 2 or i
    dots:line(rounded(run[j]), rounded(run[j + 1]), rounded(run[i]), rounded(run[i + 1]), colour,
      mark)
  end
end

local function draw_dots(view, dots)
  local width, height = dots.width - 1, dots.height - 1
  for i, s in ipairs(view.series) do
    local colour, mark = colours.of_series(i), mark_of(i)
    if s.kind == "line" then
      for _, run in ipairs(series.runs(s, view.x_axis, view.y_axis, width, height)) do
        dot_line(dots, run, colour, mark)
      end
    elseif s.kind == "points" then
      local list = series.points(s, view.x_axis, view.y_axis, width, height, 0.5)
      for k = 1, #list, 2 do dots:set(rounded(list[k]), rounded(list[k + 1]), colour, mark) end
    end
  end
end

-- Columns of bars, each as high as the highest bar that it touches.
local function draw_columns(view, onto, term, row, column, width, height)
  for i, s in ipairs(view.series) do
    local tops = {}
    for k = 1, #s.y do
      local from = rounded(view.x_axis:position(s.left[k]) * width)
      local to = rounded(view.x_axis:position(s.right[k]) * width) - 1
      local top = view.y_axis:shows(s.y[k]) and view.y_axis:position(s.y[k]) or 0
      for c = from, math.max(to, from) do tops[c] = math.max(tops[c] or 0, top) end
    end
    for c, top in pairs(tops) do
      local eighths = math.ceil(top * height * 8 - 1e-9)
      for r = 0, height - 1 do
        local n = math.min(eighths - 8 * r, 8)
        if n > 0 then
          onto:put(row + height - 1 - r, column + c, term.utf8 and EIGHTHS[n] or "#",
            (colours.of_series(i)))
        end
      end
    end
  end
end

local function put_y_axis(view, onto, l)
  for _, tick in ipairs(l.ticks) do
    local r = l.top + rounded((1 - view.y_axis:position(tick[1])) * (l.height - 1))
    onto:put(r, l.left - 1 - svg.length(tick[2]), tick[2])
  end
  for r = 0, l.height - 1 do onto:put(l.top + r, l.left, l.bar) end
end

local function put_x_axis(view, onto, l)
  local row = l.top + l.height
  onto:put(row, l.left, l.corner .. l.dash:rep(l.width))
  local free = 1
  for _, tick in ipairs(view.x_axis:ticks(math.max(l.width // 10, 1))) do
    local at = l.left + 1 + rounded(view.x_axis:position(tick[1]) * (l.width - 1))
    local width = svg.length(tick[2])
    local from = math.max(math.min(at - width // 2, onto.columns - width + 1), 1)
    if from >= free then
      onto:put(row + 1, from, tick[2])
      free = from + width + 1
    end
  end
end

-- The legend as lines of {text, series}, within so many columns.
local function text_legend(view, term, dots)
  local rows, width = {{}}, 0
  for _, entry in ipairs(legend_of(view) or {}) do
    local mark = dots and mark_of(entry[2]) or (term.utf8 and "━" or "-")
    local text = svg.cut(mark .. " " .. entry[1], term.columns)
    local n = svg.length(text) + 2
    if width > 0 and width + n - 2 > term.columns then
      rows[#rows + 1], width = {}, 0
    end
    table.insert(rows[#rows], {text, entry[2], width})
    width = width + n
  end
  return rows[1][1] and rows or {}
end

local function put_legend(onto, row, rows)
  for _, line in ipairs(rows) do
    for _, entry in ipairs(line) do
      onto:put(row, entry[3] + 1, entry[1], (colours.of_series(entry[2])))
    end
    row = row + 1
  end
end

-- Whether series are drawn with a character each: without braille, or without colours for several.
local function has_marks(view, term)
  return not term.utf8 or term.colours == 0 and #view.series > 1
end

local function text_layout(view, term, legend)
  local l = {bar = term.utf8 and "│" or "|", corner = term.utf8 and "└" or "+",
    dash = term.utf8 and "─" or "-"}
  l.above = view.ylabel and 1 or 0
  l.title = view.title and 1 or 0
  l.height = math.max(math.min(term.rows - 8, term.columns // 4), 4)
  l.ticks = view.y_axis:ticks(math.max(l.height // 2, 1))
  local labels = 0
  for _, tick in ipairs(l.ticks) do labels = math.max(labels, svg.length(tick[2])) end
  if labels > term.columns // 2 then l.ticks, labels = {}, 0 end
  l.left = labels + 2
  l.width = math.max(term.columns - l.left, 2)
  l.top = l.title + #legend + l.above + 1
  return l
end

--- The view in cells of a terminal {columns =, rows =, utf8 =, colours =}.
---@return table canvas
function View:canvas(term)
  if self.categories then return self:bar_canvas(term) end
  local marks = has_marks(self, term)
  local legend = text_legend(self, term, marks)
  local l = text_layout(self, term, legend)
  local below = (self.xlabel and 1 or 0) + (self.note ~= "" and 1 or 0)
  local onto = canvas.new(term.columns, l.top + l.height + 1 + below)
  if self.title then onto:centre(1, 1, term.columns, self.title) end
  put_legend(onto, 1 + l.title, legend)
  if self.ylabel then onto:put(l.top - 1, 1, svg.cut(self.ylabel, term.columns)) end
  put_y_axis(self, onto, l)
  put_x_axis(self, onto, l)
  if self.bars then
    draw_columns(self, onto, term, l.top, l.left + 1, l.width, l.height)
  else
    local dots = canvas.dots(l.width, l.height, marks)
    draw_dots(self, dots)
    dots:flush(onto, l.top, l.left + 1)
  end
  local row = l.top + l.height + 2
  if self.xlabel then
    onto:centre(row, l.left, term.columns, self.xlabel)
    row = row + 1
  end
  onto:put(row, 1, svg.cut(self.note, term.columns))
  return onto
end

-- ---- bars of categories in a terminal: a line each ----

local LEFT_PARTS = {"▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"}

-- A bar of a length in columns, in eighths where there is UTF-8.
local function bar_text(length, utf)
  if not utf then return ("#"):rep(rounded(length)) end
  local eighths = rounded(length * 8)
  local text = ("█"):rep(eighths // 8)
  return eighths % 8 > 0 and text .. LEFT_PARTS[eighths % 8] or text
end

local function bar_lines(view)
  local lines = {}
  for i, name in ipairs(view.categories) do
    for k, s in ipairs(view.series) do
      lines[#lines + 1] = {k == 1 and name or "", s.y[i], k}
    end
  end
  return lines
end

-- Columns of labels, of values, and the largest size of a value that is shown.
local function bar_widths(view, lines, columns)
  local labels, values, largest = 0, 0, 0
  for _, line in ipairs(lines) do
    labels = math.max(labels, svg.length(line[1]))
    values = math.max(values, #scale.number(line[2]))
    if view.y_axis:shows(line[2]) then largest = math.max(largest, math.abs(line[2])) end
  end
  return math.min(labels, columns // 3), values, largest
end

--- Categories as lines with their bars and their values; bars of values below 0 begin with "-".
function View:bar_canvas(term)
  local lines = bar_lines(self)
  local labels, values, largest = bar_widths(self, lines, term.columns)
  local width = math.max(term.columns - labels - values - 2, 1)
  local legend = text_legend(self, term, has_marks(self, term))
  local top = (self.title and 1 or 0) + #legend
  local onto = canvas.new(term.columns, top + math.max(#lines, 1) + (self.note ~= "" and 1 or 0))
  if self.title then onto:centre(1, 1, term.columns, self.title) end
  put_legend(onto, 1 + (self.title and 1 or 0), legend)
  for i, line in ipairs(lines) do
    local v = line[2]
    local label, number = svg.cut(line[1], labels), scale.number(v)
    onto:put(top + i, labels - svg.length(label) + 1, label)
    local share = largest > 0 and self.y_axis:shows(v) and math.abs(v) / largest or 0
    local bar = bar_text(share * (v < 0 and width - 1 or width), term.utf8)
    if v < 0 then bar = "-" .. bar end
    if has_marks(self, term) and #self.series > 1 then
      bar = mark_of(line[3]):rep(svg.length(bar))
    end
    onto:put(top + i, labels + 2, bar, (colours.of_series(line[3])))
    onto:put(top + i, labels + 2 + svg.length(bar) + (bar == "" and 0 or 1), number)
  end
  onto:put(onto.rows, 1, self.note)
  return onto
end

return axes
