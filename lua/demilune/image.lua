-- dm.read_image, dm.decode_image, dm.save_image and dm.make_grid (torchvision.io and
-- .utils): images as tensors (C,H,W), and many of them in one PNG file.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local image = {}

local GRID = [[nrow: integer = 8, padding: integer = 2, normalize: boolean = false,
  value_range?: numbers, scale_each: boolean = false, pad_value: number = 0]]
local bind_grid = options.signature("make_grid", "tensor: tensor|list, " .. GRID)
local bind_save = options.signature("save_image",
  "tensor: tensor|list, path: string, *, " .. GRID)

-- (H,W), (C,H,W), (N,C,H,W) or a list of images as one (N,C,H,W).
local function batch_of(what, images)
  if type(images) == "table" then
    if #images == 0 then caller.raise("%s: the list holds no image", what) end
    local each = {}
    for i, one in ipairs(images) do
      local batch = batch_of(what, one)
      if batch:size(1) ~= 1 then
        caller.raise("%s: image %d has shape %s, wanted {C, H, W}", what, i, one.shape)
      end
      each[i] = batch
    end
    return core.cat(each)
  end
  if not core.is_tensor(images) then
    caller.raise("%s: wanted a tensor or a list of them, got %s", what, type(images))
  end
  local x, dims = images:detach(), images:dim()
  if dims < 2 or dims > 4 or x:numel() == 0 then
    caller.raise("%s: got shape %s, wanted {C, H, W} or {N, C, H, W}, none of them 0", what,
      x.shape)
  end
  while x:dim() < 3 do x = x:unsqueeze(1) end
  return dims == 4 and x or x:unsqueeze(1)
end

-- x with low at 0 and high at 1.
local function stretch(x, range)
  local low = range and range[1] or x:amin():item()
  local high = range and range[2] or x:amax():item()
  return (x:clamp{min = low, max = high} - low) / math.max(high - low, 1e-5)
end

local function normalized(what, x, o)
  if not o.normalize then return x end
  if o.value_range and #o.value_range ~= 2 then
    caller.raise("%s: value_range is a table {lowest, highest}", what)
  end
  x = x:float()
  if not o.scale_each then return stretch(x, o.value_range) end
  local each = {}
  for i = 1, #x do each[i] = stretch(x[i], o.value_range) end
  return core.stack(each)
end

local function grid_of(what, o)
  if o.nrow < 1 or o.padding < 0 then
    caller.raise("%s: nrow is %s and padding %s, wanted 1 and 0 at least", what, o.nrow, o.padding)
  end
  local x = normalized(what, batch_of(what, o.tensor), o)
  local n, channels, height, width = table.unpack(x.shape)
  if n == 1 then return x[1] end
  local columns, pad = math.min(o.nrow, n), o.padding
  local rows = (n + columns - 1) // columns
  local grid = core.full({channels, rows * (height + pad) + pad, columns * (width + pad) + pad},
    o.pad_value, {dtype = x.dtype, device = x.device})
  for i = 1, n do
    local top = (i - 1) // columns * (height + pad) + pad
    local left = (i - 1) % columns * (width + pad) + pad
    grid[{{}, {top + 1, top + height}, {left + 1, left + width}}] = x[i]
  end
  return grid
end

-- make_grid(tensor (N,C,H,W) or a list of (C,H,W), {nrow = 8, padding = 2,
-- normalize = false, value_range = {low, high}, scale_each = false, pad_value = 0})
-- -> (C,H,W): nrow images in a row. normalize brings the range (the lowest and
-- the highest value, unless given) to 0..1. One image alone gets no padding.
function image.make_grid(...)
  local _ <close> = core.no_grad()
  return grid_of("make_grid", bind_grid(...))
end

-- save_image(tensor or list, path, opts) -> true; or nil and a message when the
-- disk or the path is at fault. Floats count from 0 (black) to 1, uint8 from 0
-- to 255; 1 channel is gray, 3 are red, green, blue. opts as for make_grid.
function image.save_image(...)
  local _ <close> = core.no_grad()
  local o = bind_save(...)
  local x = grid_of("save_image", o):to "cpu"
  if x:size(1) ~= 1 and x:size(1) ~= 3 then
    caller.raise("save_image: images of %d channels, wanted 1 or 3", x:size(1))
  end
  if x:is_floating_point() then
    x = (x:float() * 255 + 0.5):clamp{min = 0, max = 255}:to "uint8"
  elseif x.dtype ~= "uint8" then
    caller.raise("save_image: images are %s, wanted a float dtype or uint8", x.dtype)
  end
  return core.png_write(o.path, x:permute(2, 3, 1))
end

local HOW = ": string, mode: 'unchanged'|'gray'|'rgb' = 'unchanged', *, exif: boolean = true"
local bind_read = options.signature("read_image", "path" .. HOW)
local bind_decode = options.signature("decode_image", "input" .. HOW)

local function read(from, o, core_read)
  local x, problem = core_read(from, o.mode, o.exif)
  if not x then return nil, problem end
  return x:permute(3, 1, 2):contiguous()
end

-- read_image(path, {mode = "unchanged", exif = true}) -> uint8 (C,H,W) of a PNG or JPEG
-- file, C being 1 (gray), 2 (gray, alpha), 3 or 4 (red, green, blue, alpha); or nil and a
-- message when the file is at fault: nothing that is cut short or damaged is given.
-- mode: "rgb", 3 channels of any file (CMYK too, which always becomes them); "gray", one;
-- alpha is dropped. exif: an image is turned and mirrored as its Exif orientation says.
function image.read_image(...)
  local o = bind_read(...)
  return read(o.path, o, core._read_image)
end

-- decode_image(bytes, {mode = "unchanged", exif = true}): the same of a file's contents.
function image.decode_image(...)
  local o = bind_decode(...)
  return read(o.input, o, core._decode_image)
end

return image
