-- Areas, formats and overlaps of boxes.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"

local boxes = {}

-- ---- arguments ----

-- A tensor of boxes, (..., 4); raises for others.
local function check(what, x)
  if not core.is_tensor(x) or x:dim() < 1 or x:size(-1) ~= 4 then
    caller.raise("%s: boxes are %s, wanted a tensor (..., 4)", what,
      core.is_tensor(x) and tostring(x.shape) or type(x))
  end
  return x
end
boxes.check = check

-- x where products do not overflow: 16-bit floats as float32, narrow integers as int32.
local function widen(x)
  if dtypes.low[x.dtype] then return x:to "float32" end
  local narrow = x.dtype == "uint8" or x.dtype == "int8" or x.dtype == "int16"
  return narrow and x:to "int32" or x
end
boxes.widen = widen

-- ---- formats ----

-- The columns of boxes as x1, y1, x2, y2.
local function corners(x, format)
  local a, b, c, d = table.unpack(x:unbind(-1))
  if format == "xywh" then return a, b, a + c, b + d end
  if format == "cxcywh" then return a - c * 0.5, b - d * 0.5, a + c * 0.5, b + d * 0.5 end
  return a, b, c, d
end

--- Boxes in another format: "xyxy" (two corners), "xywh" (the upper left corner, width and height)
--- or "cxcywh" (the middle, width and height). Returns a new tensor.
---@param boxes Tensor (..., 4)
---@param in_fmt string
---@param out_fmt string
local bind_convert = options.signature("box_convert", [[boxes: tensor,
  in_fmt: 'xyxy'|'xywh'|'cxcywh', out_fmt: 'xyxy'|'xywh'|'cxcywh']])
function boxes.box_convert(...)
  local o = bind_convert(...)
  local x, in_fmt, out_fmt = check("box_convert", o.boxes), o.in_fmt, o.out_fmt
  if in_fmt == out_fmt then return x:clone() end
  local x1, y1, x2, y2 = corners(x, in_fmt)
  if out_fmt == "xywh" then x2, y2 = x2 - x1, y2 - y1 end
  if out_fmt == "cxcywh" then x1, y1, x2, y2 = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1 end
  return core.stack({x1, y1, x2, y2}, -1)
end

--- Boxes cut off at the sides of an image.
---@param boxes Tensor (..., 4)
---@param size integer[] {height, width}
---@return Tensor # the same shape
local bind_clip = options.signature("clip_boxes_to_image", "boxes: tensor, size: numbers")
function boxes.clip_boxes_to_image(...)
  local o = bind_clip(...)
  local x, size = check("clip_boxes_to_image", o.boxes), o.size
  if #size ~= 2 then
    caller.raise("clip_boxes_to_image: wanted the size {height, width}")
  end
  local x1, y1, x2, y2 = corners(x)
  local height, width = {min = 0, max = size[1]}, {min = 0, max = size[2]}
  return core.stack({x1:clamp(width), y1:clamp(height), x2:clamp(width), y2:clamp(height)}, -1)
end

--- The positions of the boxes whose width and height are at least min_size.
---@param boxes Tensor (N, 4)
---@param min_size number
---@return Tensor # int64 (K), from 1, in order
local bind_small = options.signature("remove_small_boxes", "boxes: tensor, min_size: number")
function boxes.remove_small_boxes(...)
  local o = bind_small(...)
  local x1, y1, x2, y2 = corners(check("remove_small_boxes", o.boxes))
  local wide = core.logical_and((x2 - x1):ge(o.min_size), (y2 - y1):ge(o.min_size))
  return wide:nonzero():select(2, 1)
end

-- ---- areas and overlaps ----

local function area(x, format)
  local a, b, c, d = table.unpack(x:unbind(-1))
  if format == "xyxy" then return (c - a) * (d - b) end
  return c * d
end

--- The areas of boxes.
---@param boxes Tensor (..., 4)
---@param fmt? string "xyxy" (the default), "xywh" or "cxcywh"
---@return Tensor # (...), 16-bit floats as float32
local bind_area = options.signature("box_area",
  "boxes: tensor, fmt: 'xyxy'|'xywh'|'cxcywh' = 'xyxy'")
function boxes.box_area(...)
  local o = bind_area(...)
  return area(widen(check("box_area", o.boxes)), o.fmt)
end

-- Intersections and the like of all pairs of a (..., N, 4) and b (..., M, 4), each (..., N, M):
-- intersection, union, and width and height of the smallest box around both; and the corners of
-- a (..., N, 1) and b (..., 1, M).
local function pairs_of(what, a, b, format)
  a, b = widen(check(what, a)), widen(check(what, b))
  if a:dim() < 2 or b:dim() < 2 then
    caller.raise("%s: boxes are %s and %s, wanted (..., N, 4) and (..., M, 4)", what,
      tostring(a.shape), tostring(b.shape))
  end
  local left, right = {corners(a, format)}, {corners(b, format)}
  for i = 1, 4 do left[i], right[i] = left[i]:unsqueeze(-1), right[i]:unsqueeze(-2) end
  local function span(from, to) -- widths and heights of the boxes from one corner to the other
    return (to(left[3], right[3]) - from(left[1], right[1])):clamp{min = 0},
      (to(left[4], right[4]) - from(left[2], right[2])):clamp{min = 0}
  end
  local w, h = span(core.maximum, core.minimum)
  local inter = w * h
  local union = area(a, format):unsqueeze(-1) + area(b, format):unsqueeze(-2) - inter
  local around_w, around_h = span(core.minimum, core.maximum)
  return inter, union, around_w, around_h, left, right
end

--- Intersection over union of all pairs of boxes.
---@param boxes1 Tensor (..., N, 4)
---@param boxes2 Tensor (..., M, 4)
---@param fmt? string "xyxy" (the default), "xywh" or "cxcywh"
---@return Tensor # (..., N, M), 0 to 1
local bind_iou = options.signature("box_iou",
  "boxes1: tensor, boxes2: tensor, fmt: 'xyxy'|'xywh'|'cxcywh' = 'xyxy'")
function boxes.box_iou(...)
  local o = bind_iou(...)
  local inter, union = pairs_of("box_iou", o.boxes1, o.boxes2, o.fmt)
  return inter / union
end

--- Generalized intersection over union of all pairs: less the part of the box around both that
--- neither covers. H. Rezatofighi et al. 2019.
---@param boxes1 Tensor (..., N, 4)
---@param boxes2 Tensor (..., M, 4)
---@return Tensor # (..., N, M), -1 to 1
local bind_generalized = options.signature("generalized_box_iou",
  "boxes1: tensor, boxes2: tensor")
function boxes.generalized_box_iou(...)
  local o = bind_generalized(...)
  local inter, union, w, h = pairs_of("generalized_box_iou", o.boxes1, o.boxes2, "xyxy")
  local around = w * h
  return inter / union - (around - union) / around
end

-- boxes.of_distance(iou, w, h, left, right, eps): iou less the squared distance of the middles,
-- as a part of the squared diagonal of the box around both, which is w wide and h high. left and
-- right are lists of corners.
function boxes.of_distance(iou, w, h, left, right, eps)
  local function square(k) -- of the distance along one axis
    return ((left[k] + left[k + 2]) / 2 - (right[k] + right[k + 2]) / 2) ^ 2
  end
  return iou - (square(1) + square(2)) / (w ^ 2 + h ^ 2 + eps)
end

-- boxes.of_aspect(iou, left, right, eps): how far the ratios of width to height differ, weighted
-- by alpha, which has no gradient.
function boxes.of_aspect(iou, left, right, eps)
  local function angle(box) return ((box[3] - box[1]) / (box[4] - box[2])):atan() end
  local v = (angle(left) - angle(right)) ^ 2 * (4 / math.pi ^ 2)
  local alpha = core.no_grad(function() return v / (1 - iou + v + eps) end)
  return alpha * v
end

--- Distance intersection over union of all pairs: less the squared distance of their middles.
--- Z. Zheng et al. 2020.
---@param boxes1 Tensor (..., N, 4)
---@param boxes2 Tensor (..., M, 4)
---@param eps? number 1e-7, added to what divides
---@return Tensor # (..., N, M)
local bind_distance = options.signature("distance_box_iou",
  "boxes1: tensor, boxes2: tensor, eps: number = 1e-7")
function boxes.distance_box_iou(...)
  local o = bind_distance(...)
  local inter, union, w, h, left, right = pairs_of("distance_box_iou", o.boxes1, o.boxes2,
    "xyxy")
  return boxes.of_distance(inter / union, w, h, left, right, o.eps)
end

--- Complete intersection over union of all pairs: less the distance of their middles and the
--- difference of their aspects. Z. Zheng et al. 2020.
---@param boxes1 Tensor (..., N, 4)
---@param boxes2 Tensor (..., M, 4)
---@param eps? number 1e-7, added to what divides
---@return Tensor # (..., N, M)
local bind_complete = options.signature("complete_box_iou",
  "boxes1: tensor, boxes2: tensor, eps: number = 1e-7")
function boxes.complete_box_iou(...)
  local o = bind_complete(...)
  local inter, union, w, h, left, right = pairs_of("complete_box_iou", o.boxes1, o.boxes2,
    "xyxy")
  local iou = inter / union
  return boxes.of_distance(iou, w, h, left, right, o.eps)
    - boxes.of_aspect(iou, left, right, o.eps)
end

return boxes
