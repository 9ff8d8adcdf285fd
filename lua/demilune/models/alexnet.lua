-- AlexNet in the form of one column, with torchvision's names.
-- A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.

local nn = require "demilune.nn"
local options = require "demilune.options"

--- x (N, 3, H, W), H and W at least 63 -> scores (N, num_classes).
local AlexNet = nn.Module:extend "AlexNet"

local function relu() return nn.ReLU{inplace = true} end

function AlexNet:init(o)
  self.features = nn.Sequential{
    nn.Conv2d(3, 64, 11, {stride = 4, padding = 2}), relu(), nn.MaxPool2d(3, {stride = 2}),
    nn.Conv2d(64, 192, 5, {padding = 2}), relu(), nn.MaxPool2d(3, {stride = 2}),
    nn.Conv2d(192, 384, 3, {padding = 1}), relu(),
    nn.Conv2d(384, 256, 3, {padding = 1}), relu(),
    nn.Conv2d(256, 256, 3, {padding = 1}), relu(), nn.MaxPool2d(3, {stride = 2}),
  }
  self.avgpool = nn.AdaptiveAvgPool2d(6)
  self.classifier = nn.Sequential{
    nn.Dropout(o.dropout), nn.Linear(256 * 6 * 6, 4096), relu(),
    nn.Dropout(o.dropout), nn.Linear(4096, 4096), relu(),
    nn.Linear(4096, o.num_classes),
  }
end

function AlexNet:forward(x)
  return self.classifier(self.avgpool(self.features(x)):flatten(2))
end

--- alexnet{num_classes = 1000, dropout = 0.5} -> a module of images (N,3,H,W) that gives
--- (N, num_classes).
local bind = options.signature("alexnet",
  "*, num_classes: integer = 1000, dropout: number = 0.5")
return {alexnet = function(...) return AlexNet(bind(...)) end}
