-- demilune.plot: figures for people who train, in the terminal and as SVG and PNG files.
--
--   local fig = dm.plot.lines({train = losses, valid = others}, {xlabel = "epoch", logy = true})
--   print(fig)                    -- in the terminal: braille, or ASCII where there is no UTF-8
--   assert(fig:save "loss.svg")   -- or "loss.png", which takes the program rsvg-convert
--
--   lines scatter bars hist image images heatmap confusion grid lr_finder show
--
-- Numbers come as tensors (on any device, with or without gradients) or as lists. Values that an
-- axis cannot show (nan, infinities, beyond 1e300, not above 0 on a logarithmic axis) leave gaps
-- and are counted in a note. Every figure takes title, width and height (pixels).

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local late = require "demilune.late"
local axes = require "demilune.plot.axes"
local figure = require "demilune.plot.figure"
local images = require "demilune.plot.images"
local input = require "demilune.plot.input"
local matrix = require "demilune.plot.matrix"
local pixels = require "demilune.plot.pixels"
local scale = require "demilune.plot.scale"
local series = require "demilune.plot.series"

local plot = {}

local SIZE = "*, title?: string, width: number = 640, height: number = 400"
local LABELS = ", xlabel?: string, ylabel?: string"
local LOGS = ", logx: boolean = false, logy: boolean = false"

-- The figure of a view of series, with the options that all of these have.
local function axes_figure(what, o, view, described)
  view.title, view.xlabel, view.ylabel = o.title, o.xlabel, o.ylabel
  view.logx, view.logy = o.logx, o.logy
  return figure.new(what, axes.new(view), o.width, o.height, described)
end

local function counted(n, word)
  return ("%d %s%s"):format(n, word, n == 1 and "" or "s")
end

-- ---- lines ----

local bind_lines = options.signature("lines",
  "x: any, y?: tensor|list, " .. SIZE .. LABELS .. LOGS .. ", names?: list")

--- Lines through points. x alone: the values, at 1, 2, ...
---   dm.plot.lines(losses)
---   dm.plot.lines(steps, losses, {logy = true})
---   dm.plot.lines({train = a, valid = {steps, b}}, {title = "loss"})   -- b at its own x
---   dm.plot.lines({a, b}, {names = {"one", "other"}})
---   dm.plot.lines(trainer:fit{...})   -- all of a history but lr, by epoch; names picks others
---@param x any a tensor (n) or list of numbers; a table {name = values}; a list of several values;
---  or a history, a list of tables {epoch =, name = number}
---@param y? any values at x: a tensor (n) or list, or a list of several
---@param opts? table {title =, xlabel =, ylabel =, logx = false, logy = false, width = 640,
---  height = 400, names = (labels of a list; of named values those that are drawn, in order)}
---@return table figure
function plot.lines(...)
  local o = bind_lines(...)
  local list, xlabel = input.lines("lines", o.x, o.y, o.names)
  local whole = true
  for _, s in ipairs(list) do
    s.kind = "line"
    whole = whole and series.are_whole(s.x)
  end
  o.xlabel = o.xlabel or xlabel
  return axes_figure("lines", o, {series = list, whole = whole and not o.logx},
    counted(#list, "line"))
end

-- ---- scatter ----

local bind_scatter = options.signature("scatter",
  "x: tensor|list, y: tensor|list, " .. SIZE .. LABELS .. LOGS .. ", c?: tensor|list, names?: list")

--- Points.
---   dm.plot.scatter(embedding:select(2, 1), embedding:select(2, 2), {c = y, names = classes})
---@param x any a tensor (n) or list of numbers
---@param y any as many
---@param opts? table as for lines, and {c = (the group of each point, which has a colour: a tensor
---  (n) of classes from 1, or a list of numbers or strings), names = (of the classes)}
---@return table figure
function plot.scatter(...)
  local o = bind_scatter(...)
  local list = input.groups("scatter", o)
  for _, s in ipairs(list) do s.kind = "points" end
  return axes_figure("scatter", o, {series = list}, "points")
end

-- ---- bars ----

local bind_bars = options.signature("bars",
  "labels: any, values?: tensor|list, " .. SIZE .. LABELS .. ", names?: list")

local SHARE = 0.8 -- of the distance between two categories that their bars take

--- A bar for each label.
---   dm.plot.bars({"cat", "dog"}, {0.9, 0.7}, {ylabel = "recall"})
---   dm.plot.bars({cat = 0.9, dog = 0.7})   -- in alphabetical order
---   dm.plot.bars(classes, {before, after}, {names = {"before", "after"}})
---@param labels any a list of strings or numbers, or a table {label = number} without values
---@param values? any a tensor (n) or list of numbers, or a list of several of these
---@param opts? table as for lines, without logx and logy
---@return table figure
function plot.bars(...)
  local o = bind_bars(...)
  local labels, list = input.bars("bars", o.labels, o.values, o.names)
  local each = SHARE / math.max(#list, 1)
  for k, s in ipairs(list) do
    s.kind, s.x, s.left, s.right = "bars", series.positions(#s.y), {}, {}
    for i = 1, #s.y do
      s.left[i] = i - SHARE / 2 + (k - 1) * each
      s.right[i] = s.left[i] + each
    end
  end
  return axes_figure("bars", o, {series = list, categories = labels}, counted(#labels, "bar"))
end

-- ---- histogram ----

local bind_hist = options.signature("hist", "x: any, " .. SIZE .. LABELS
  .. ", logy: boolean = false, bins: integer = 30, range?: numbers, density: boolean = false")

-- x as float64 (n), its finite elements alone, and how many others there are.
local function finite_of(x)
  if not core.is_tensor(x) then
    x = core.tensor(series.numbers("hist", "x", x), {dtype = "float64"})
  end
  x = x:detach():to("cpu"):double():reshape(-1)
  local kept = x:masked_select(x:abs():le(scale.LARGEST))
  return kept, x:numel() - kept:numel()
end

-- The interval of the bins: the given one, or from the lowest to the highest value.
local function range_of(o, x)
  local lo, hi
  if o.range then
    lo, hi = o.range[1], o.range[2]
    if #o.range ~= 2 or not (lo < hi and hi - lo < math.huge) then
      caller.raise("hist: range is a table {lowest, highest}, the first below the second")
    end
    return lo, hi
  end
  if x:numel() == 0 then return 0.0, 1.0 end
  lo, hi = x:amin():item(), x:amax():item()
  if hi > lo then return lo, hi end
  local more = math.max(math.abs(lo) * 0.05, 0.5)
  return lo - more, hi + more
end

--- How many values lie in each of some intervals of one width; the last one has its upper end.
---   dm.plot.hist(weights, {bins = 50, logy = true})
---@param x any a tensor of any shape, or a list of numbers
---@param opts? table as for lines, without logx and names, and {bins = 30, range = {lowest,
---  highest} (those of x), density = false (true: the bars' area is 1)}
---@return table figure its field counts is int64 (bins), edges is a list of bins + 1 numbers
function plot.hist(...)
  local o = bind_hist(...)
  if o.bins < 1 or o.bins > 100000 then
    caller.raise("hist: bins is %d, wanted 1 to 100000", o.bins)
  end
  local _ <close> = core.no_grad()
  local x, lost = finite_of(o.x)
  local lo, hi = range_of(o, x)
  local counts = core.histc(x, {bins = o.bins, min = lo, max = hi}):round():long()
  local s = {kind = "bars", x = {}, y = {}, left = {}, right = {}}
  local edges, total, width = {lo}, math.max(counts:sum():item(), 1), (hi - lo) / o.bins
  for i, n in ipairs(counts:totable()) do
    edges[i + 1] = i == o.bins and hi or lo + i * width
    s.left[i], s.right[i] = edges[i], edges[i + 1]
    s.x[i] = (edges[i] + edges[i + 1]) / 2
    s.y[i] = o.density and n / (total * width) or n + 0.0
  end
  o.ylabel = o.ylabel or (o.density and "density" or "count")
  local fig = axes_figure("hist", o, {series = {s}, lost = lost,
    outside = x:numel() - counts:sum():item()}, ("histogram of %d values"):format(x:numel()))
  fig.counts, fig.edges = core.keep(counts), edges
  return fig
end

-- ---- images ----

local bind_image = options.signature("image", [[image: tensor, *, title?: string, width?: number,
  height?: number, normalize: boolean = false]])
local bind_images = options.signature("images", [[images: tensor|list, *, title?: string,
  width: number = 640, height?: number, columns: integer = 8, titles?: list,
  normalize: boolean = false]])

-- The image with its lowest value at 0 and its highest at 1.
local function normalized(x)
  x = x:detach():float()
  local lo, hi = x:amin():item(), x:amax():item()
  return (x - lo) / math.max(hi - lo, 1e-12)
end

local function image_of(what, x, o)
  if o.normalize and core.is_tensor(x) and x:numel() > 0 then x = normalized(x) end
  return pixels.of(what, x)
end

local function image_figure(what, o, list, titles, columns, width)
  local view = images.new{images = list, titles = titles, columns = columns, title = o.title}
  local height = o.height or math.min(math.max(view:natural_height(width), 60), 10000)
  return figure.new(what, view, width, height, counted(#list, "image"))
end

--- One image.
---   dm.plot.image(x[1]):save "first.svg"
---@param image userdata (H,W) or (C,H,W), C being 1 or 3: floats from 0 to 1, uint8 or bool
---@param opts? table {title =, width = (the image's own, 256 to 640), height = (in proportion),
---  normalize = false (true: the lowest value is black, the highest white)}
---@return table figure
function plot.image(...)
  local _ <close> = core.no_grad()
  local o = bind_image(...)
  local x = image_of("image", o.image, o)
  return image_figure("image", o, {x}, nil, 1, o.width or math.min(math.max(x:size(2), 256), 640))
end

--- Several images in rows.
---   dm.plot.images(x, {columns = 4, titles = names})
---@param images userdata|table (N,C,H,W) or a list of images
---@param opts? table as for image, and {columns = 8, titles = (a list of texts), width = 640}
---@return table figure
function plot.images(...)
  local _ <close> = core.no_grad()
  local o = bind_images(...)
  if o.columns < 1 then caller.raise("images: columns is %d, wanted 1 at least", o.columns) end
  local list = {}
  if core.is_tensor(o.images) and o.images:dim() ~= 4 then
    caller.raise("images: got shape %s, wanted {N, C, H, W}; hint: image() takes one",
      o.images.shape)
  end
  for i = 1, #o.images do list[i] = image_of("images", o.images[i], o) end
  return image_figure("images", o, list, o.titles, o.columns, o.width)
end

-- ---- matrices ----

local bind_heatmap = options.signature("heatmap", "matrix: any, " .. SIZE .. LABELS .. [[,
  labels?: list, row_labels?: list, column_labels?: list, values: boolean = true,
  map: 'viridis'|'blues'|'gray' = 'viridis', vmin?: number, vmax?: number]])
local bind_confusion = options.signature("confusion",
  "matrix: any, *, title?: string, width?: number, height?: number" .. LABELS
  .. ", classes?: list, normalize: boolean = false")

-- Texts of all cells.
local function written(rows, text)
  local list = {}
  for i, row in ipairs(rows) do
    list[i] = {}
    for j, v in ipairs(row) do list[i][j] = text(v) end
  end
  return list
end

local function two_digits(v) return scale.number(v, 2) end

-- Labels as strings, as many as there are rows or columns.
local function checked_labels(what, name, labels, n)
  if not labels then return nil end
  if #labels ~= n then
    caller.raise("%s: %s has %d labels, wanted %d", what, name, #labels, n)
  end
  return input.strings(labels)
end

--- A matrix in colours, with its numbers where there is space for them.
---   dm.plot.heatmap(attention, {labels = tokens})
---@param matrix any a tensor (rows, columns) or a list of lists
---@param opts? table {title =, xlabel =, ylabel =, width = 640, height = 400, labels = (of rows and
---  columns), row_labels =, column_labels =, values = true (numbers in cells), map = "viridis",
---  "blues" or "gray", vmin = and vmax = (the values at the ends of the colours)}
---@return table figure
function plot.heatmap(...)
  local _ <close> = core.no_grad()
  local o = bind_heatmap(...)
  local rows, n = input.rows("heatmap", o.matrix)
  local view = matrix.new{values = rows, lo = o.vmin, hi = o.vmax, map = o.map, bar = true,
    row_labels = checked_labels("heatmap", "row_labels", o.row_labels or o.labels, #rows),
    column_labels = checked_labels("heatmap", "column_labels", o.column_labels or o.labels, n),
    written = o.values and #rows * n <= 2500 and written(rows, two_digits) or nil,
    title = o.title, xlabel = o.xlabel, ylabel = o.ylabel}
  return figure.new("heatmap", view, o.width, o.height, ("matrix of %d x %d"):format(#rows, n))
end

-- Shares of each row's sum, 0 where that is 0.
local function shares_of(rows)
  local list = {}
  for i, row in ipairs(rows) do
    local total = 0
    for _, v in ipairs(row) do total = total + v end
    list[i] = {}
    for j, v in ipairs(row) do list[i][j] = total > 0 and v / total or 0.0 end
  end
  return list
end

-- The matrix and the class names of a metric, or of what was given.
local function confusion_of(o)
  local m = o.matrix
  if type(m) == "table" and m.compute and m.num_classes then
    return m:compute(), o.classes or m.names
  end
  return m, o.classes
end

--- A confusion matrix: how often each class (a row) was taken for each class (a column). Colours
--- are shares of the row, so that rare classes are seen too; cells hold counts.
---   dm.plot.confusion(metric)                      -- dm.metrics.ConfusionMatrix
---   dm.plot.confusion(counts, {classes = {"cat", "dog"}, normalize = true})
---@param matrix any the metric, a tensor (truth, decision) or a list of lists
---@param opts? table {classes = (names; the metric's), normalize = false (true: cells hold shares),
---  title =, xlabel = "predicted", ylabel = "true", width =, height =}
---@return table figure
function plot.confusion(...)
  local _ <close> = core.no_grad()
  local o = bind_confusion(...)
  local given, classes = confusion_of(o)
  local rows, n = input.rows("confusion", given)
  if #rows ~= n then
    caller.raise("confusion: the matrix has %d rows and %d columns, wanted as many of both", #rows,
      n)
  end
  local shares = shares_of(rows)
  local labels = checked_labels("confusion", "classes", classes, n)
  local view = matrix.new{values = shares, lo = 0, hi = 1, map = "blues", square = true,
    row_labels = labels, column_labels = labels,
    written = o.normalize and written(shares, function(v) return ("%.2f"):format(v) end)
      or written(rows, scale.number), title = o.title, xlabel = o.xlabel or "predicted",
    ylabel = o.ylabel or "true"}
  local side = math.min(math.max(180 + 42 * n, 320), 900)
  return figure.new("confusion", view, o.width or side, o.height or side,
    ("confusion matrix of %d classes"):format(n))
end

-- ---- several figures ----

local bind_grid = options.signature("grid",
  "figures: list, *, columns: integer = 2, title?: string")

--- Figures side by side, in rows; a narrow terminal shows fewer in a row.
---   dm.plot.grid({a, b, c, d}, {columns = 2}):save "all.svg"
---   dm.plot.grid{a, b, columns = 2}
---@param figures table a list; it may hold the options too
---@param opts? table {columns = 2, title =}
---@return table figure
function plot.grid(figures, opts)
  if type(figures) == "table" and #figures > 0 and opts == nil then
    local list = table.move(figures, 1, #figures, 1, {})
    opts = {}
    for key, value in pairs(figures) do
      if math.type(key) ~= "integer" then opts[key] = value end
    end
    figures = list
  end
  local o = bind_grid(figures, opts)
  if #o.figures == 0 then caller.raise("grid: there are no figures, wanted one at least") end
  if o.columns < 1 then caller.raise("grid: columns is %d, wanted 1 at least", o.columns) end
  for i, fig in ipairs(o.figures) do
    if not figure.is(fig) then
      caller.raise("grid: element %d is a %s, wanted a figure of dm.plot", i, type(fig))
    end
  end
  return figure.grid(o.figures, o.columns, o.title)
end

return late.extend(plot, {lr_finder = "demilune.plot.lr_finder", show = "demilune.plot.show"})
