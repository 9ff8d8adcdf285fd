-- Images as PNG files in memory, for summaries.

local core = require "demilune.core"
local caller = require "demilune.caller"
local image = require "demilune.image"

local images = {}

-- Turns x into the order of dims `wanted`, of which `given` names each of x.
local function permuted(what, x, given, wanted)
  given = given:upper()
  local order, seen = {}, {}
  for i = 1, #wanted do
    local at = given:find(wanted:sub(i, i), 1, true)
    order[i], seen[at or 0] = at, true
  end
  if #given ~= #wanted or #order < #wanted or seen[0] then
    caller.raise("%s: dataformats is '%s', wanted the letters of %s in any order", what, given,
      wanted)
  end
  return x:permute(table.unpack(order))
end

-- (H,W,C) of 1, 3 or 4 channels -> uint8 (H,W,C) of 3 or 4. A float counts from 0 to 1 and is
-- cut, not rounded, as NumPy's astype does.
local function bytes_of(x)
  if x.dtype ~= "uint8" then
    x = (x:to "float32":nan_to_num(0) * 255):clamp{min = 0, max = 255}:to "uint8"
  end
  if x:size(3) == 1 then x = x:expand(x:size(1), x:size(2), 3) end
  return x:contiguous()
end

-- {N,3,H,W} in rows of eight, without space between them.
local function grid_of(x)
  local n, c, h, w = table.unpack(x.shape)
  if c == 1 then x = x:expand(n, 3, h, w) end
  local columns = math.min(n, 8)
  local rows = (n + columns - 1) // columns
  local missing = rows * columns - n
  if missing > 0 then
    x = core.cat{x, core.zeros(missing, x:size(2), h, w, {dtype = x.dtype, device = x.device})}
  end
  return x:reshape(rows, columns, x:size(2), h, w):permute(1, 4, 2, 5, 3)
    :reshape(rows * h, columns * w, x:size(2))
end

-- The letters of a tensor of so many dims, and what turns it, in this order, into (H,W,C).
local LAYOUTS = {
  [2] = {"HW", function(x) return x:unsqueeze(3) end},
  [3] = {"HWC", function(x) return x end},
  [4] = {"NCHW", grid_of},
}

--- uint8 (H,W,C) of an image or of many.
---@param what string the function that was called, for messages
---@param x table a tensor of two, three or four dims
---@param format string the names of its dims, such as "CHW" or "NHWC"
---@return table pixels
function images.pixels(what, x, format)
  local layout = LAYOUTS[x:dim()]
  if not layout or #format ~= x:dim() or x:numel() == 0 then
    caller.raise("%s: got shape %s, wanted %s, none of them 0", what, x.shape, format)
  end
  local _ <close> = core.no_grad()
  local pixels = layout[2](permuted(what, x:detach():to "cpu", format, layout[1]))
  local channels = pixels:size(3)
  if channels ~= 1 and channels ~= 3 and channels ~= 4 then
    caller.raise("%s: images of %d channels, wanted 1, 3 or 4", what, channels)
  end
  return bytes_of(pixels)
end

--- An image for summary.image; nil and a message where the disk or the build is at fault.
---@param pixels table uint8 (H,W,C)
---@return table? image
---@return string? why
function images.of(pixels)
  local path = os.tmpname() -- the encoder writes files only
  local ok, why = core.png_write(path, pixels)
  local bytes
  if ok then bytes, why = core._read_file("add_image", path) end
  os.remove(path)
  if not bytes then return nil, why end
  return {height = pixels:size(1), width = pixels:size(2), channels = pixels:size(3),
    bytes = bytes}
end

-- The PNG bytes of a figure: of its method png(); nil and why not.
local function png_of(figure)
  local kind = type(figure)
  local method = (kind == "table" or kind == "userdata") and figure.png
  if not method then
    caller.raise("add_figure: figure is a %s, wanted one that has png(), such as dm.plot's", kind)
  end
  local bytes, why = method(figure)
  if type(bytes) ~= "string" then return nil, why or "png() gave no bytes" end
  if bytes:sub(1, 8) ~= "\x89PNG\r\n\x1a\n" or #bytes < 26 then
    return nil, "png() gave no PNG file"
  end
  return bytes
end

--- An image for summary.image of a figure, or of a list of figures of one size.
---@param figure table it has a method png() that gives bytes, or nil and a message
---@return table? image
---@return string? why
function images.of_figure(figure)
  if type(figure) ~= "table" or figure.png or #figure == 0 then
    local bytes, why = png_of(figure)
    if not bytes then return nil, why end
    local width, height, _, colour = (">I4I4BB"):unpack(bytes, 17)
    return {height = height, width = width, channels = ({[0] = 1, [4] = 2, [6] = 4})[colour] or 3,
      bytes = bytes}
  end
  local list = {}
  for i, one in ipairs(figure) do
    local bytes, why = png_of(one)
    local x
    if bytes then x, why = image.decode_image(bytes, {mode = "rgb"}) end
    if not x then return nil, why end
    if i > 1 and not core.equal(core.tensor(x.shape), core.tensor(list[1].shape)) then
      caller.raise("add_figure: figure %d has shape %s, the first %s", i, x.shape, list[1].shape)
    end
    list[i] = x
  end
  return images.of(images.pixels("add_figure", core.stack(list), "NCHW"))
end

return images
