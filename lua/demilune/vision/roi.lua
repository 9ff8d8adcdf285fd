-- RoIAlign: regions of a map of features at one size. K. He et al., "Mask R-CNN", 2017.
--
-- Each bin of a region is the mean of samples on a grid, read between pixels. Grid and weights are
-- products of a row's and a column's, so that a region is Wy x Wx^T, with Wy (height of the
-- output, H) and Wx (width, W): two products for the regions of an image, and their gradients.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local nn = require "demilune.nn"
local options = require "demilune.options"
local amp = require "demilune.amp"

local roi = {}

-- Rows of weights (K, bins, size) of the pixels 0 to size - 1 along one axis, for regions from
-- `start` to `stop`, both (K). samples: how many a bin has; from 0 down: one for each pixel of the
-- bin, rounded up.
local function weights(start, stop, bins, size, samples, aligned)
  local how = {dtype = start.dtype, device = start.device}
  local length = stop - start
  if not aligned then length = length:clamp{min = 1} end
  local step = length / bins
  local count = samples > 0 and core.full_like(step, samples) or step:ceil()
  local most = samples > 0 and samples or #count > 0 and math.floor(count:amax():item()) or 0
  if most < 1 then return core.zeros({#start, bins, size}, how) end
  local function column(t) return t:reshape(-1, 1, 1) end
  local grid = core.arange(0, most - 1, how)
  local at = column(start) + core.arange(0, bins - 1, how):unsqueeze(2) * column(step)
    + (grid + 0.5) * column(step / count:clamp{min = 1})
  local seen = core.logical_and(at:ge(-1), at:le(size)):logical_and(grid:lt(column(count)))
  -- Between pixels linear; outside what the border has.
  local pixel = core.arange(0, size - 1, how)
  local part = (1 - (at:clamp{min = 0, max = size - 1}:unsqueeze(-1) - pixel):abs()):clamp{min = 0}
  return (part * seen:unsqueeze(-1):to(part.dtype)):sum(3) / column(count:clamp{min = 1})
end

-- The boxes (L, 4) of each image, and their positions in `x` (nil: in order).
local function by_image(x, n)
  local function check(t, columns)
    if not core.is_tensor(t) or t:dim() ~= 2 or t:size(2) ~= columns then
      caller.raise("roi_align: boxes are %s, wanted a tensor {K, 5} of the image, from 1, and the "
        .. "box, or a list of a tensor {L, 4} for each image",
        core.is_tensor(t) and tostring(t.shape) or type(t))
    end
  end
  if type(x) == "table" then
    if #x ~= n then
      caller.raise("roi_align: boxes of %d images, the input has %d", #x, n)
    end
    for _, t in ipairs(x) do check(t, 4) end
    return x
  end
  check(x, 5)
  local images, lists, positions = x:select(2, 1):to "cpu", {}, {}
  for i, image in ipairs(images:totable()) do
    if not (image >= 1 and image <= n and image % 1 == 0) then
      caller.raise("roi_align: row %d of boxes names image %s, the input has %d; they count from 1",
        i, tostring(image), n)
    end
  end
  for image = 1, n do
    positions[image] = images:eq(image):nonzero():select(2, 1):to(x.device)
    lists[image] = x:narrow(2, 2, 4):index_select(1, positions[image])
  end
  return lists, core.cat(positions, 1)
end

-- The regions of one map x (C, H, W): (L, C, height, width).
local function regions(x, boxes, height, width, o)
  local rows, columns
  do
    local _ <close> = core.no_grad()
    boxes = boxes:to{dtype = x.dtype, device = x.device} * o.spatial_scale
      - (o.aligned and 0.5 or 0)
    local x1, y1, x2, y2 = table.unpack(boxes:unbind(-1))
    rows = weights(y1, y2, height, x:size(2), o.sampling_ratio, o.aligned)
    columns = weights(x1, x2, width, x:size(3), o.sampling_ratio, o.aligned)
  end
  local n, channels = #boxes, x:size(1)
  local y = rows:reshape(-1, x:size(2)):matmul(x:transpose(1, 2):reshape(x:size(2), -1))
  y = y:reshape(n, height * channels, x:size(3)):matmul(columns:transpose(2, 3))
  return y:reshape(n, height, channels, width):transpose(2, 3)
end

--- Regions of a map of features, each of the same size. The boxes have no gradient.
---@param input Tensor (N, C, H, W), floating point; 16 bits are computed in float32
---@param boxes Tensor|Tensor[] (K, 5): the image, from 1, then x1, y1, x2, y2; or a list of N
---  tensors (L, 4), one for each image
---@param output_size integer|integer[] a number, or {height, width}
---@param opts? table spatial_scale (1): what the coordinates are multiplied by; sampling_ratio
---  (-1): samples of a bin along each axis, or as many as the bin has pixels; aligned (false):
---  whether the middles of pixels lie at 0.5
---@return Tensor # (K, C, height, width)
local bind_align = options.signature("roi_align", [[input: tensor, boxes: tensor|list,
  output_size: size, spatial_scale: number = 1.0, sampling_ratio: integer = -1,
  aligned: boolean = false]])
function roi.roi_align(...)
  local o = bind_align(...)
  local input, height, width = o.input, o.output_size, o.output_size
  if input:dim() ~= 4 or not input:is_floating_point() then
    caller.raise("roi_align: input is %s %s, wanted floats {N, C, H, W}", input.dtype,
      tostring(input.shape))
  end
  if type(height) == "table" then height, width = table.unpack(height) end
  local lists, positions = by_image(o.boxes, #input)
  local _ <close> = amp.autocast{device_type = input.device:match "^%l+", enabled = false}
  local x = dtypes.low[input.dtype] and input:to "float32" or input
  local found = {core.zeros({0, input:size(2), height, width}, {dtype = x.dtype,
    device = x.device})} -- of a batch of no images
  for i, list in ipairs(lists) do found[i + 1] = regions(x[i], list, height, width, o) end
  local y = core.cat(found, 1)
  if positions then y = y:index_select(1, positions:argsort()) end
  return y:to(input.dtype)
end

--- roi_align as a module, called with the input and the boxes.
local RoIAlign = nn.Module:extend "RoIAlign"

---@param output_size integer|integer[]
---@param spatial_scale number
---@param sampling_ratio integer
---@param opts? table aligned (false)
local bind_layer = options.signature("RoIAlign", [[output_size: size, spatial_scale: number,
  sampling_ratio: integer, aligned: boolean = false]])
function RoIAlign:init(...) self._opts = bind_layer(...) end

function RoIAlign:forward(input, boxes)
  return roi.roi_align(input, boxes, self._opts)
end

function RoIAlign:extra_repr() return options.shown(self._opts) end

roi.RoIAlign = RoIAlign
return roi
