-- Values in the formats of a notebook: {[MIME type] = text}, of which it shows the best that it
-- knows. Text is always among them, for terminals and for versions of the notebook as text.

local core = require "demilune.core"
local figure = require "demilune.plot.figure"
local html = require "demilune.jupyter.html"
local pixels = require "demilune.plot.pixels"
local repl = require "demilune.cli.repl"

local bundle = {}

local SMALLEST = 192 -- pixels; smaller images are enlarged by whole factors

--- A text as JSON can hold it: bytes that are no UTF-8 and NUL become U+FFFD.
---@param text string
---@return string
function bundle.clean(text)
  text = text:gsub("\0", "\u{FFFD}")
  local parts, at = {}, 1
  while at <= #text do
    local valid, bad = utf8.len(text, at)
    parts[#parts + 1] = text:sub(at, valid and #text or bad - 1)
    if valid then break end
    parts[#parts + 1] = "\u{FFFD}"
    at = bad + 1
  end
  return table.concat(parts)
end

-- A single image without a title as PNG, its pixels repeated where it is small; nil for other
-- figures, and where no PNG can be written.
local function png_of(fig)
  local list = fig.view.images
  if not list or #list ~= 1 or fig.title then return nil end
  local x = pixels.exact(list[1], math.max(SMALLEST, list[1]:size(1)),
    math.max(SMALLEST, list[1]:size(2)))
  local bytes = pixels.png(x)
  return bytes and pixels.base64(bytes)
end

--- The formats of a figure.
---@param fig table
---@return table data
function bundle.of_figure(fig)
  local _ <close> = core.no_grad()
  local data = {["text/plain"] = bundle.clean(fig:summary())}
  data["image/png"] = png_of(fig)
  if not data["image/png"] then data["image/svg+xml"] = fig:svg() end
  return data
end

-- Whether a table is {[MIME type] = text}.
local function is_bundle(value)
  local key, text = next(value)
  return getmetatable(value) == nil and type(key) == "string" and key:find "^%l+/[%l%d.+-]+$"
    and type(text) == "string"
end

--- Any format of a bundle, for programs that show one: text first.
---@param data table
---@return string
function bundle.any(data)
  local name = next(data)
  return data["text/markdown"] or data["text/html"] or data[name]
end

--- The formats of a value, and what a notebook is told of them.
---@param value any
---@return table data {[MIME type] = text}
---@return table metadata
function bundle.of(value)
  if type(value) == "table" then
    local fig = figure.is(value) and value or figure.is(rawget(value, "figure")) and value.figure
    if fig then return bundle.of_figure(fig), {} end
    if is_bundle(value) then
      local data = {}
      for name, text in pairs(value) do data[name] = bundle.clean(text) end
      return data, {}
    end
  end
  local written = html.of(value)
  return {["text/plain"] = bundle.clean(repl.shown(value)),
    ["text/html"] = written and bundle.clean(written)}, {}
end

return bundle
