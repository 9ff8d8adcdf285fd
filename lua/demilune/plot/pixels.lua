-- Images as uint8 (H, W, 3): from tensors of the caller, reduced to a size, and as bytes of PNG,
-- of base64 and of the protocols by which terminals show images.

local core = require "demilune.core"
local caller = require "demilune.caller"

local pixels = {}

-- ---- tensors ----

local function with_channels(what, x)
  if x:dim() == 2 then x = x:unsqueeze(1) end
  local channels = x:size(1)
  if channels == 1 then x = x:expand({3, x:size(2), x:size(3)}) end
  if channels ~= 1 and channels ~= 3 then
    local last = x:size(3)
    caller.raise("%s: an image has shape %s, wanted {H, W}, {1, H, W} or {3, H, W}%s", what,
      x.shape, (last == 1 or last == 3) and "; hint: x:permute(3, 1, 2)" or "")
  end
  return x
end

--- A copy of an image (H,W) or (C,H,W) as uint8 (H, W, 3) on the CPU, which outlives the scope it
--- is made in. Floats count from 0 (black) to 1, uint8 from 0 to 255, bool is black and white; 1
--- channel is gray, 3 are red, green and blue.
---@param what string the function, for messages
---@param x userdata
function pixels.of(what, x)
  if not core.is_tensor(x) then
    caller.raise("%s: wanted an image as a tensor {C, H, W}, got a %s", what, type(x))
  end
  if x:dim() < 2 or x:dim() > 3 or x:numel() == 0 then
    caller.raise("%s: an image has shape %s, wanted {H, W} or {C, H, W}, none of them 0", what,
      x.shape)
  end
  local dtype = x.dtype
  if not (x:is_floating_point() or dtype == "uint8" or dtype == "bool") then
    caller.raise("%s: an image is %s, wanted a float dtype (0 to 1) or uint8 (0 to 255)", what,
      dtype)
  end
  x = with_channels(what, x:detach():to "cpu")
  if dtype ~= "uint8" then
    x = (x:float():nan_to_num(0, 1, 0) * 255 + 0.5):clamp{min = 0, max = 255}:to "uint8"
  end
  return core.keep(x:permute(2, 3, 1):contiguous():clone())
end

--- The image in another size: means of areas where it shrinks, nearest pixels where it grows.
---@param x userdata uint8 (H, W, 3)
function pixels.resized(x, height, width)
  if x:size(1) == height and x:size(2) == width then return x end
  local shrinks = x:size(1) >= height and x:size(2) >= width
  local planes = x:permute(3, 1, 2):unsqueeze(1):float()
  planes = core.interpolate(planes, {size = {height, width},
    mode = shrinks and "area" or "nearest"})
  return (planes[1] + 0.5):to("uint8"):permute(2, 3, 1):contiguous()
end

--- The largest height and width that fit into others at the image's own proportions.
---@return number height
---@return number width
function pixels.fitted(x, height, width)
  local h, w = x:size(1), x:size(2)
  local factor = math.min(height / h, width / w)
  return h * factor, w * factor
end

--- The image with no more pixels than height x width shows.
function pixels.limited(x, height, width)
  local h, w = pixels.fitted(x, height, width)
  if h >= x:size(1) then return x end
  return pixels.resized(x, math.max(h // 1 | 0, 1), math.max(w // 1 | 0, 1))
end

--- The image with about as many pixels as height x width shows: reduced, or its pixels repeated so
--- that no program that draws it smooths their edges away.
function pixels.exact(x, height, width)
  local factor = pixels.fitted(x, height, width) // x:size(1) | 0
  if factor < 2 then return pixels.limited(x, height, width) end
  return pixels.resized(x, x:size(1) * factor, x:size(2) * factor)
end

-- ---- bytes ----

--- The bytes of a PNG file; or nil and a message when no temporary file can be written, or the
--- library was built without libpng.
---@param x userdata uint8 (H, W, 3)
---@return string|nil
---@return string|nil message
function pixels.png(x)
  local named, path = pcall(os.tmpname)
  if not named then return nil, path end
  local bytes
  local written, why = core.png_write(path, x)
  if written then bytes, why = core._read_file("plot", path) end
  os.remove(path)
  return bytes, why
end

local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local PAIRS = {} -- 12 bits -> two digits
for i = 0, 4095 do
  local high, low = i >> 6, i & 63
  PAIRS[i] = DIGITS:sub(high + 1, high + 1) .. DIGITS:sub(low + 1, low + 1)
end

--- Base64 (RFC 4648).
---@param bytes string
---@return string
function pixels.base64(bytes)
  local parts = {}
  for i = 1, #bytes - 2, 3 do
    local a, b, c = bytes:byte(i, i + 2)
    local bits = a << 16 | b << 8 | c
    parts[#parts + 1] = PAIRS[bits >> 12] .. PAIRS[bits & 4095]
  end
  local rest = #bytes % 3
  if rest > 0 then
    local a, b = bytes:byte(-rest, -1)
    local bits = a << 16 | (b or 0) << 8
    local four = PAIRS[bits >> 12] .. PAIRS[bits & 4095]
    parts[#parts + 1] = four:sub(1, rest + 1) .. ("="):rep(3 - rest)
  end
  return table.concat(parts)
end

--- The image as the URI of a PNG file; or nil and a message.
function pixels.uri(x)
  local bytes, why = pixels.png(x)
  if not bytes then return nil, why end
  return "data:image/png;base64," .. pixels.base64(bytes)
end

-- ---- terminals that show images ----

local PROTOCOLS = {}

-- Kitty's protocol: PNG in base64, in pieces of 4,096 bytes at most.
function PROTOCOLS.kitty(x)
  local bytes, why = pixels.png(x)
  if not bytes then return nil, why end
  local text, parts = pixels.base64(bytes), {}
  for i = 1, #text, 4096 do
    local more = i + 4096 <= #text and 1 or 0
    local head = i == 1 and "a=T,f=100," or ""
    parts[#parts + 1] = ("\27_G%sm=%d;%s\27\\"):format(head, more, text:sub(i, i + 4095))
  end
  return table.concat(parts)
end

-- iTerm2's protocol, which WezTerm knows too.
function PROTOCOLS.iterm(x)
  local bytes, why = pixels.png(x)
  if not bytes then return nil, why end
  return ("\27]1337;File=inline=1;size=%d:%s\7"):format(#bytes, pixels.base64(bytes))
end

-- Repeats as "!12?", where that is shorter.
local function packed(line)
  local parts, n = {}, 0
  for i = 1, #line do
    n = n + 1
    if line[i] ~= line[i + 1] then
      parts[#parts + 1] = n > 3 and ("!%d%s"):format(n, line[i]) or line[i]:rep(n)
      n = 0
    end
  end
  return table.concat(parts)
end

-- The lines of one band of six rows: for each colour in it, a character a column whose bits are the
-- rows with that colour.
local function sixel_band(rows, first, width)
  local lines, order = {}, {}
  for r = 0, 5 do
    local row = rows[first + r]
    for c = 1, row and width or 0 do
      local colour = row[c]
      if not lines[colour] then
        lines[colour] = {}
        order[#order + 1] = colour
      end
      lines[colour][c] = (lines[colour][c] or 0) | 1 << r
    end
  end
  local parts = {}
  for i, colour in ipairs(order) do
    local line = {}
    for c = 1, width do line[c] = string.char(63 + (lines[colour][c] or 0)) end
    parts[i] = ("#%d%s"):format(colour, packed(line))
  end
  return table.concat(parts, "$")
end

-- Sixel (DEC STD 070) with a cube of 6 x 6 x 6 colours, whose levels are in percent.
function PROTOCOLS.sixel(x)
  local levels = (x:float() * (5 / 255) + 0.5):to("uint8"):float()
  local cube = core.tensor{36.0, 6.0, 1.0}
  local rows = (levels * cube):sum(3):to("int64"):totable()
  local parts = {"\27Pq"}
  for i = 0, 215 do
    parts[#parts + 1] = ("#%d;2;%d;%d;%d"):format(i, i // 36 * 20, i // 6 % 6 * 20, i % 6 * 20)
  end
  for first = 1, #rows, 6 do
    parts[#parts + 1] = sixel_band(rows, first, x:size(2)) .. "-"
  end
  parts[#parts + 1] = "\27\\"
  return table.concat(parts)
end

--- The bytes that make a terminal show the image; or nil and a message.
---@param x userdata uint8 (H, W, 3)
---@param protocol "kitty"|"iterm"|"sixel"
function pixels.sequence(x, protocol) return PROTOCOLS[protocol](x) end

-- ---- cells of a terminal ----

local RAMP = {ascii = " .:-=+*#%@", blocks = {" ", "░", "▒", "▓", "█"}}

--- A character whose density is a share, 0 to 1.
---@param light number
---@param utf boolean
---@return string
function pixels.shade(light, utf)
  if utf then return RAMP.blocks[math.min(light * 5 // 1 | 0, 4) + 1] end
  local at = math.min(light * 10 // 1 | 0, 9) + 1
  return RAMP.ascii:sub(at, at)
end

--- Writes an image to cells of a canvas: two pixels in a cell where there are colours and UTF-8,
--- otherwise characters of growing density.
---@param x userdata uint8 (H, W, 3)
---@param onto table a canvas
---@param row integer the first cell's
---@param column integer
---@param rows integer
---@param columns integer
---@param term table {utf8 =, colours =}
function pixels.put(x, onto, row, column, rows, columns, term)
  local halves = term.utf8 and term.colours > 0
  local values = pixels.resized(x, halves and 2 * rows or rows, columns):totable()
  local function colour(p) return p[1] << 16 | p[2] << 8 | p[3] end
  for r = 0, rows - 1 do
    for c = 1, columns do
      if halves then
        onto:put(row + r, column + c - 1, "▀", colour(values[2 * r + 1][c]),
          colour(values[2 * r + 2][c]))
      elseif term.colours > 0 then
        onto:put(row + r, column + c - 1, " ", nil, colour(values[r + 1][c]))
      else
        local p = values[r + 1][c]
        local light = (0.2126 * p[1] + 0.7152 * p[2] + 0.0722 * p[3]) / 255
        onto:put(row + r, column + c - 1, pixels.shade(light, term.utf8))
      end
    end
  end
end

return pixels
