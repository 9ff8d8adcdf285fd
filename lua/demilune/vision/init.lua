-- demilune.vision: boxes, regions of interest and layers of models of images (torchvision.ops),
-- loaded when one of them is first named. Boxes are rows of four numbers: where nothing else is
-- said "xyxy", x1 and y1 of the upper left corner, x2 and y2 of the lower right one. These are
-- coordinates, which begin at 0; positions of boxes and of images in a batch count from 1.

local late = require "demilune.late"

local FILES = {
  boxes = {"box_area", "box_convert", "box_iou", "clip_boxes_to_image", "complete_box_iou",
    "distance_box_iou", "generalized_box_iou", "remove_small_boxes"},
  nms = {"batched_nms", "nms"},
  losses = {"complete_box_iou_loss", "distance_box_iou_loss", "generalized_box_iou_loss",
    "sigmoid_focal_loss"},
  roi = {"RoIAlign", "roi_align"},
  layers = {"Conv2dNormActivation", "LayerNorm2d", "MLP", "Permute", "SqueezeExcitation",
    "StochasticDepth", "stochastic_depth"},
}

local file_of = {}
for file, names in pairs(FILES) do
  for _, name in ipairs(names) do file_of[name] = "demilune.vision." .. file end
end

return late.extend({}, file_of)
