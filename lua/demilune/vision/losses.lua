-- Losses of boxes and of their classes.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local boxes = require "demilune.vision.boxes"

local losses = {}

local REDUCTION = "reduction: 'none'|'mean'|'sum' = 'none'"

-- The mean of nothing is 0, as torchvision has it.
local function reduced(loss, reduction)
  if reduction == "none" then return loss end
  return reduction == "mean" and loss:numel() > 0 and loss:mean() or loss:sum()
end

-- ---- boxes ----

-- A loss of boxes1 and boxes2, both (N, 4) or (4), pair by pair. measure(iou, w, h, around, union,
-- left, right, eps) is what the loss is 1 less than; w and h are those of the box around both.
local function box_loss(name, measure)
  local bind = options.signature(name, "boxes1: tensor, boxes2: tensor, " .. REDUCTION
    .. ", eps: number = 1e-7")
  losses[name] = function(...)
    local o = bind(...)
    local boxes1, boxes2 = boxes.check(name, o.boxes1), boxes.check(name, o.boxes2)
    if tostring(boxes1.shape) ~= tostring(boxes2.shape) then
      caller.raise("%s: boxes are %s and %s, wanted the same shape", name,
        tostring(boxes1.shape), tostring(boxes2.shape))
    end
    local function floats(x)
      return x.dtype == "float64" and x or x:to "float32"
    end
    local left, right = floats(boxes1):unbind(-1), floats(boxes2):unbind(-1)
    local function area(b) return (b[3] - b[1]) * (b[4] - b[2]) end
    local w = core.minimum(left[3], right[3]) - core.maximum(left[1], right[1])
    local h = core.minimum(left[4], right[4]) - core.maximum(left[2], right[2])
    -- Boxes that touch have no gradient of their intersection.
    local meet = core.logical_and(w:gt(0), h:gt(0))
    local inter = core.where(meet, w * h, core.zeros_like(w))
    local union = area(left) + area(right) - inter
    w = core.maximum(left[3], right[3]) - core.minimum(left[1], right[1])
    h = core.maximum(left[4], right[4]) - core.minimum(left[2], right[2])
    local loss = 1 - measure(inter / (union + o.eps), w, h, union, left, right, o.eps)
    return reduced(loss, o.reduction)
  end
end

-- generalized_box_iou_loss(boxes1, boxes2, {reduction = "none", eps = 1e-7}): 1 less the
-- generalized intersection over union of each pair; boxes (N, 4) or (4) -> (N) or a number.
-- distance_box_iou_loss and complete_box_iou_loss likewise: see their measures.
box_loss("generalized_box_iou_loss", function(iou, w, h, union, _, _, eps)
  local around = w * h
  return iou - (around - union) / (around + eps)
end)
box_loss("distance_box_iou_loss", function(iou, w, h, _, left, right, eps)
  return boxes.of_distance(iou, w, h, left, right, eps)
end)
box_loss("complete_box_iou_loss", function(iou, w, h, _, left, right, eps)
  return boxes.of_distance(iou, w, h, left, right, eps)
    - boxes.of_aspect(iou, left, right, eps)
end)

-- ---- classes ----

--- Cross entropy of yes and no in which examples that are already right count less:
--- T.-Y. Lin et al. 2017.
---@param inputs Tensor scores, any shape, before sigmoid
---@param targets Tensor the same shape, 0 or 1
---@param opts? table alpha (0.25): the weight of 1 against 0, 0 to 1, or -1 for none; gamma (2):
---  how much less; reduction ("none"), "mean" or "sum"
local bind_focal = options.signature("sigmoid_focal_loss",
  "inputs: tensor, targets: tensor, alpha: number = 0.25, gamma: number = 2.0, " .. REDUCTION)
function losses.sigmoid_focal_loss(...)
  local o = bind_focal(...)
  local inputs, targets = o.inputs, o.targets
  if o.alpha ~= -1 and not (o.alpha >= 0 and o.alpha <= 1) then
    caller.raise("sigmoid_focal_loss: alpha is %s, wanted 0 to 1, or -1 for none",
      tostring(o.alpha))
  end
  local p = inputs:sigmoid()
  local entropy = core.binary_cross_entropy_with_logits(inputs, targets, {reduction = "none"})
  local right = p * targets + (1 - p) * (1 - targets)
  local loss = entropy * (1 - right) ^ o.gamma
  if o.alpha >= 0 then loss = (targets * o.alpha + (1 - targets) * (1 - o.alpha)) * loss end
  return reduced(loss, o.reduction)
end

return losses
