-- Non-maximum suppression: of boxes that overlap the best one stays.
--
-- Boxes are taken by falling score; each that is still there removes those behind it that overlap
-- it too much. Overlaps are computed for ROWS boxes at a time, so that memory grows with N and not
-- with its square, and only for boxes that are still there; the decisions fall on the host.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local boxes = require "demilune.vision.boxes"

local nms = {}

local ROWS = 256

-- groups: nil, or (N): boxes of different groups do not remove each other.
local function suppress(what, x, scores, groups, threshold)
  boxes.check(what, x)
  local n = x:size(1)
  local function is_row(t) return t:dim() == 1 and #t == n end
  if x:dim() ~= 2 or not is_row(scores) or groups and not is_row(groups) then
    caller.raise("%s: boxes are %s, scores %s%s; wanted {N, 4} and {N}", what,
      tostring(x.shape), tostring(scores.shape),
      groups and (", idxs %s"):format(tostring(groups.shape)) or "")
  end
  local _ <close> = core.no_grad()
  local order = scores:argsort{descending = true, stable = true}
  x = x:index_select(1, order)
  groups = groups and groups:index_select(1, order)
  local gone = core.zeros(n, {dtype = "bool", device = "cpu"})
  local kept = {}
  for first = 1, n, ROWS do
    local last = math.min(first + ROWS - 1, n)
    local rows = gone:narrow(1, first, last - first + 1):logical_not():nonzero():select(2, 1)
      + (first - 1)
    local at = rows:to(x.device)
    local over = boxes.box_iou(x:index_select(1, at), x):to("float64"):gt(threshold)
    if groups then
      over = over:logical_and(groups:index_select(1, at):unsqueeze(2):eq(groups))
    end
    over = over:to "cpu"
    for i, row in ipairs(rows:totable()) do
      if not gone[row]:item() then
        kept[#kept + 1] = row
        gone:logical_or_(over[i])
      end
    end
  end
  return order:index_select(1, core.tensor(kept, {dtype = "int64", device = order.device}))
end

--- The boxes that stay when each removes those of a lower score with which its intersection over
--- union is above iou_threshold.
---@param boxes Tensor (N, 4)
---@param scores Tensor (N)
---@param iou_threshold number
---@return Tensor # int64 (K): positions from 1, by falling score
local bind_nms = options.signature("nms",
  "boxes: tensor, scores: tensor, iou_threshold: number")
function nms.nms(...)
  local o = bind_nms(...)
  return suppress("nms", o.boxes, o.scores, nil, o.iou_threshold)
end

--- The same within each group: boxes of different groups do not remove each other.
---@param boxes Tensor (N, 4)
---@param scores Tensor (N)
---@param idxs Tensor (N): the group of each box
---@param iou_threshold number
---@return Tensor # int64 (K): positions from 1, by falling score
local bind_batched = options.signature("batched_nms",
  "boxes: tensor, scores: tensor, idxs: tensor, iou_threshold: number")
function nms.batched_nms(...)
  local o = bind_batched(...)
  return suppress("batched_nms", o.boxes, o.scores, o.idxs, o.iou_threshold)
end

return nms
