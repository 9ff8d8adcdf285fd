-- A YOLO-like head: a grid of cells predicts boxes, objectness and classes; the boxes pass a
-- non-maximum suppression.
local dm = require "demilune"
local nn, F, optim, vision = dm.nn, dm.nn.functional, dm.optim, dm.vision
local S, CLASSES = 4, 2

local function conv_block(c1, c2, stride)
  return nn.Sequential{
    nn.Conv2d(c1, c2, 3, stride, 1, {bias = false}),
    nn.BatchNorm2d(c2),
    nn.SiLU(),
  }
end

local Yolo = nn.Module:extend "Yolo"
function Yolo:init()
  self.backbone = nn.Sequential{conv_block(1, 8, 2), conv_block(8, 16, 2)}
  self.head = nn.Conv2d(16, 5 + CLASSES, 1)
end
-- Gives boxes as centre and size in cells {B, S, S, 4}, objectness {B, S, S}, classes {B, S, S, C}.
function Yolo:forward(x)
  local out = self.head(self.backbone(x)):permute(1, 3, 4, 2)
  local xy, wh, obj, cls = table.unpack(out:split({2, 2, 1, CLASSES}, -1))
  local steps = dm.arange(0, S - 1)
  local gy, gx = dm.meshgrid({steps, steps}, {indexing = "ij"})
  local grid = dm.stack({gx, gy}, -1):float()
  return dm.cat({xy:sigmoid() + grid, wh:exp()}, -1), obj:squeeze(-1), cls
end

-- Images of 16 x 16 with a filled or an empty square; targets {box, class} of each.
local function scenes(n)
  local images, boxes, classes = dm.rand(n, 1, 16, 16) * 0.1, {}, {}
  for i = 1, n do
    local class = i % 2 + 1
    local x, y = i * 5 % 11 + 1, i * 3 % 11 + 1
    images[{i, 1, {y, y + 4}, {x, x + 4}}] = 1
    if class == 2 then images[{i, 1, {y + 1, y + 3}, {x + 1, x + 3}}] = 0 end
    boxes[i] = {(x + 1.5) / 4, (y + 1.5) / 4, 5 / 4, 5 / 4}
    classes[i] = class
  end
  return images, dm.tensor(boxes), dm.tensor(classes)
end

return function(run)
  local images, boxes, classes = scenes(16)
  local cell = (boxes[{{}, {1, 2}}]:floor():long() + 1)
  local at = {dm.arange(16), cell[{{}, 2}], cell[{{}, 1}]}
  local target_obj = dm.zeros(16, S, S)
  target_obj[at] = 1
  local model = Yolo():to(run.device)
  local optimizer = optim.SGD(model:parameters(), {lr = 0.05, momentum = 0.9, nesterov = true})
  local losses = {}
  for i = 1, 25 do
    losses[i] = run.step(optimizer, function()
      local box, obj, cls = model(images)
      local pred = vision.box_convert(box[at]:float(), "cxcywh", "xyxy")
      local want = vision.box_convert(boxes, "cxcywh", "xyxy")
      local box_loss = vision.complete_box_iou_loss(pred, want, {reduction = "mean"})
      local obj_loss = F.binary_cross_entropy_with_logits(obj, target_obj,
        {pos_weight = dm.tensor{4.0}})
      return box_loss + obj_loss + F.cross_entropy(cls[at], classes)
    end)
  end
  model:eval()
  local _ <close> = dm.no_grad()
  local box, obj = model(images[{{1, 1}}])
  local flat = vision.box_convert(box:view(-1, 4), "cxcywh", "xyxy")
  local scores = obj:view(-1):sigmoid()
  local keep = vision.nms(flat, scores, 0.3)
  local iou = vision.box_iou(flat[keep[{{1, 1}}]],
    vision.box_convert(boxes[{{1, 1}}], "cxcywh", "xyxy"))
  assert(iou:item() > 0.3, iou:item())
  return losses
end
