-- dm.show: an image or a figure on the terminal, as an image where the terminal has a protocol for
-- them, else in characters.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local decode = require("demilune.image").decode_image
local terminal = require "demilune.terminal"
local convert = require "demilune.plot.convert"
local figure = require "demilune.plot.figure"
local pixels = require "demilune.plot.pixels"
local plot = require "demilune.plot"

local show = {}

local LARGEST = 1024  -- pixels of a side on a terminal
local SMALLEST = 192  -- smaller images are enlarged by whole factors

local function enlarged(x)
  local factor = SMALLEST // math.max(x:size(1), x:size(2))
  if factor < 2 then return x end
  return pixels.resized(x, x:size(1) * factor, x:size(2) * factor)
end

-- A figure as uint8 (H, W, 3), or nil: one image as it is, anything else by rsvg-convert.
local function pixels_of(fig)
  local list = fig.view.images
  if list and #list == 1 and not fig.title then
    return enlarged(pixels.limited(list[1], LARGEST, LARGEST))
  end
  local document = fig:svg()
  local bytes = document and convert.png(document, 1)
  local x = bytes and decode(bytes, {mode = "rgb"})
  return x and x:permute(2, 3, 1):contiguous()
end

-- The text that shows the figure.
local function drawn(fig, term)
  local x = term.graphics and pixels_of(fig)
  return x and pixels.sequence(x, term.graphics) or fig:text()
end

--- The figure of a value that dm.show takes, and the line that stands for it where there is no
--- terminal. Raises for other values.
---@param v any
---@return table figure
---@return string line
function show.figure_of(v)
  if figure.is(v) then return v, v:summary() end
  if type(v) == "table" and figure.is(rawget(v, "figure")) then
    return v.figure, v.figure:summary()
  end
  if core.is_tensor(v) then
    local fig = v:dim() == 4 and plot.images(v) or plot.image(v)
    return fig, ("%s: %s %s; hint: dm.save_image(x, \"image.png\") writes it to a file"):format(
      fig.described, v.dtype, v.shape)
  end
  if type(v) == "table" and core.is_tensor(v[1]) then
    local fig = plot.images(v)
    return fig, fig:summary()
  end
  caller.raise("show: value is a %s, wanted an image (a tensor), a list of images or a figure",
    type(v))
end

--- Shows a figure on standard output. A front end that shows figures itself, such as the Jupyter
--- kernel, puts a function of its own here.
---@param fig table
---@param line string what stands for it where there is no terminal
---@return any written or nil
---@return string|nil message
function show.display(fig, line)
  local term = terminal.of()
  return io.stdout:write(term.terminal and drawn(fig, term) or line, "\n")
end

local bind = options.signature("show", "value: any")

--- Shows an image, several or a figure on standard output; where that is no terminal, one line says
--- what it is.
---   dm.show(x[1])
---   dm.show(dm.plot.lines(losses))
---@param value any a tensor (H,W), (C,H,W) or (N,C,H,W), a list of images, or a figure
---@return nil
---@return string|nil message where the output cannot be written
function show.show(...)
  local _ <close> = core.no_grad()
  local written, why = show.display(show.figure_of(bind(...).value))
  if not written then return nil, why end
end

return show
