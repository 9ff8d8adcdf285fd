-- demilune.vision: boxes, regions of interest and layers of models of images (torchvision.ops),
-- loaded when one of them is first named. Boxes are rows of four numbers: where nothing else is
-- said "xyxy", x1 and y1 of the upper left corner, x2 and y2 of the lower right one. These are
-- coordinates, which begin at 0; positions of boxes and of images in a batch count from 1.

return setmetatable({}, {
  __index = function(self, name)
    for _, file in ipairs{"boxes", "nms", "losses", "roi", "layers"} do
      local value = require("demilune.vision." .. file)[name]
      if value ~= nil then
        rawset(self, name, value)
        return value
      end
    end
  end,
})
