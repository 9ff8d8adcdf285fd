-- Colours as integers 0xRRGGBB: of series, and of values from 0 to 1.

local core = require "demilune.core"

local colours = {}

-- Okabe and Ito, "Color Universal Design" (2008), without its black and its yellow, which are lost
-- on dark and on light pages: told apart with each of the common kinds of colour blindness.
colours.SERIES = {0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7, 0xE69F00, 0x56B4E9}
-- Cells and pixels without a value.
colours.NONE = 0x999999

--- The colour of the i-th series, and which round through the palette it is of (0 for the first).
---@param i integer
---@return integer colour
---@return integer round
function colours.of_series(i)
  local n = #colours.SERIES
  return colours.SERIES[(i - 1) % n + 1], (i - 1) // n
end

-- Maps by their colours at equal distances; lightness is monotonic in each. viridis: Smith and
-- van der Walt (2015), at ninths of the way; blues: white to a dark blue.
local MAPS = {
  viridis = {0x440154, 0x472D7B, 0x3B528B, 0x2C728E, 0x21918C, 0x28AE80, 0x5EC962, 0xADDC30,
    0xFDE725},
  blues = {0xF7FBFF, 0xC6DBEF, 0x6BAED6, 0x2171B5, 0x08306B},
  gray = {0x000000, 0xFFFFFF},
}
colours.MAPS = MAPS

--- Red, green and blue, 0 to 255.
---@param colour integer
function colours.parts(colour) return colour >> 16 & 255, colour >> 8 & 255, colour & 255 end

--- The colour from red, green and blue.
function colours.of_parts(r, g, b) return r << 16 | g << 8 | b end

local function mixed(a, b, share)
  local r, g, b1 = colours.parts(a)
  local r2, g2, b2 = colours.parts(b)
  local function mix(x, y) return math.floor(x + (y - x) * share + 0.5) end
  return colours.of_parts(mix(r, r2), mix(g, g2), mix(b1, b2))
end

--- The colour of a share, 0 to 1, in a map; NONE for nan.
---@param map string
---@param share number
---@return integer
function colours.at(map, share)
  if share ~= share then return colours.NONE end
  local list = MAPS[map]
  local at = math.min(math.max(share, 0), 1) * (#list - 1)
  local i = math.min(math.floor(at), #list - 2)
  return mixed(list[i + 1], list[i + 2], at - i)
end

--- uint8 (257, 3): the colours of 256 shares of a map, and NONE in the last row.
---@param map string
function colours.table_of(map)
  local rows = {}
  for i = 0, 255 do rows[i + 1] = {colours.parts(colours.at(map, i / 255))} end
  rows[257] = {colours.parts(colours.NONE)}
  return core.tensor(rows, {dtype = "uint8"})
end

--- Black or white, whichever is read on a colour (relative luminance of WCAG 2.1).
---@param colour integer
---@return integer
function colours.ink_on(colour)
  local r, g, b = colours.parts(colour)
  local function linear(c) return (c / 255) ^ 2.2 end
  local light = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
  return light > 0.18 and 0x000000 or 0xFFFFFF
end

--- "#rrggbb"
---@param colour integer
---@return string
function colours.hex(colour) return ("#%06x"):format(colour) end

return colours
