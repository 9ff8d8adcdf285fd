-- Elements of SVG as text. Colours of text, axes and background are classes, which follow the
-- reader's colour scheme; a background is always drawn, so that a page of any colour will do.

local colours = require "demilune.plot.colours"

local svg = {}

svg.FONT = 12 -- pixels
local SMALL_FONT = 11

local STYLE = table.concat{
  ".dm-plot text{font-family:Helvetica,Arial,sans-serif;font-size:", svg.FONT, "px;fill:#333}",
  ".dm-plot .title{font-size:15px;font-weight:bold}",
  ".dm-plot .small{font-size:", SMALL_FONT, "px}",
  ".dm-plot .note{font-size:", SMALL_FONT, "px;fill:#666}",
  ".dm-plot .page{fill:#fff}.dm-plot .grid{stroke:#e3e3e3}.dm-plot .axis{stroke:#888}",
  "@media (prefers-color-scheme:dark){.dm-plot text{fill:#ddd}.dm-plot .note{fill:#aaa}",
  ".dm-plot .page{fill:#16181d}.dm-plot .grid{stroke:#33363d}.dm-plot .axis{stroke:#888}}",
}

-- ---- text ----

local ENTITIES = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;"}

-- Valid UTF-8 without what XML forbids: bytes that are none become "?".
local function clean(s)
  if not utf8.len(s) then s = s:gsub("[\x80-\xff]", "?") end
  return (s:gsub("[%z\1-\8\11\12\14-\31\127]", "?"):gsub("\xef\xbf[\xbe\xbf]", "?"))
end

--- Text as it stands in an element or an attribute.
---@param s any
---@return string
function svg.escape(s)
  return (clean(tostring(s)):gsub('[&<>"]', ENTITIES))
end

--- The number of characters of a text.
---@param s string
---@return integer
function svg.length(s) return utf8.len(s) or #s end

--- Roughly the width of a text in pixels: SVG has no metrics of fonts.
---@param s string
---@param size? number of the font
function svg.width(s, size) return svg.length(s) * (size or svg.FONT) * 0.57 end

--- The text, cut to n characters.
---@param s string
---@param n integer
function svg.cut(s, n)
  if svg.length(s) <= n then return s end
  if not utf8.len(s) then return s:sub(1, math.max(n - 1, 0)) end
  return s:sub(1, utf8.offset(s, math.max(n, 1)) - 1) .. "…"
end

-- ---- elements ----

--- A length in pixels, to a tenth: "12.5", "3".
---@param v number
---@return string
function svg.px(v)
  local text = ("%.1f"):format(v):gsub("%.0$", "")
  return text == "-0" and "0" or text
end
local px = svg.px

local function attributes(o)
  local keys, parts = {}, {}
  for key in pairs(o) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do
    local v = o[key]
    parts[i] = (' %s="%s"'):format(key, type(v) == "number" and px(v) or svg.escape(v))
  end
  return table.concat(parts)
end

local Writer = {}
Writer.__index = Writer

--- A list of elements.
function svg.writer() return setmetatable({}, Writer) end

--- Adds an element without content.
---@param name string
---@param o table attributes; numbers are lengths
function Writer:element(name, o)
  self[#self + 1] = ("<%s%s/>"):format(name, attributes(o))
end

--- Adds a text. o: attributes, such as class, ["text-anchor"] = "middle", transform.
function Writer:text(x, y, text, o)
  o = o or {}
  o.x, o.y = x, y
  self[#self + 1] = ("<text%s>%s</text>"):format(attributes(o), svg.escape(text))
end

--- Adds a rectangle.
function Writer:rect(x, y, width, height, o)
  o.x, o.y, o.width, o.height = x, y, width, height
  self:element("rect", o)
end

--- Adds a line from (x, y) by (dx, dy).
function Writer:line(x, y, dx, dy, class)
  self:element("path", {class = class, fill = "none",
    d = ("M%s %sl%s %s"):format(px(x), px(y), px(dx), px(dy))})
end

--- Opens a group that is moved by (x, y); close() ends it.
function Writer:group(x, y, o)
  o = o or {}
  o.transform = ("translate(%s %s)"):format(px(x), px(y))
  self[#self + 1] = ("<g%s>"):format(attributes(o))
end

function Writer:close() self[#self + 1] = "</g>" end

--- The document around a writer's elements.
---@param writer table
---@param width number pixels
---@param height number
---@param title string what a screen reader says
---@return string
function svg.document(writer, width, height, title)
  local w, h, name = px(width), px(height), svg.escape(title)
  return table.concat{
    ('<svg xmlns="http://www.w3.org/2000/svg" class="dm-plot" role="img" aria-label="%s" '):format(
      name),
    ('width="%s" height="%s" viewBox="0 0 %s %s">\n'):format(w, h, w, h),
    "<title>", name, "</title>\n<style>", STYLE, "</style>\n",
    ('<rect class="page" width="%s" height="%s"/>\n'):format(w, h),
    table.concat(writer, "\n"), "\n</svg>\n",
  }
end

--- "#rrggbb" of a colour, and a pattern of dashes for the rounds through the palette after the
--- first.
---@param i integer the number of the series
function svg.series_colour(i)
  local colour, round = colours.of_series(i)
  return colours.hex(colour), round > 0 and ("%d %d"):format(6 // round + 1, 3) or nil
end

return svg
