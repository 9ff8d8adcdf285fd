-- LeNet-5, with ReLU and max pooling as it is used today.
-- Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning", 1998.

local nn = require "demilune.nn"
local options = require "demilune.options"

--- x (N, C, 28, 28) -> scores (N, num_classes).
local LeNet = nn.Module:extend "LeNet"

function LeNet:init(o)
  self.conv1 = nn.Conv2d(o.in_channels, 6, 5, {padding = o.padding})
  self.conv2 = nn.Conv2d(6, 16, 5)
  self.pool = nn.MaxPool2d(2)
  self.fc1 = nn.Linear(400, 120)
  self.fc2 = nn.Linear(120, 84)
  self.fc3 = nn.Linear(84, o.num_classes)
end

function LeNet:forward(x)
  x = self.pool(self.conv1(x):relu())
  x = self.pool(self.conv2(x):relu()):flatten(2)
  return self.fc3(self.fc2(self.fc1(x):relu()):relu())
end

--- lenet{num_classes = 10, in_channels = 1, padding = 2} -> a module of images
--- (N, in_channels, 28, 28), with padding = 0 of 32x32, that gives (N, num_classes).
local bind = options.signature("lenet",
  "*, num_classes: integer = 10, in_channels: integer = 1, padding: integer = 2")
return {lenet = function(...) return LeNet(bind(...)) end}
