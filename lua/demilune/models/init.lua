-- demilune.models: ready architectures, one file a family, loaded when one of its
-- models is first named. Modules and parameters have the names of torchvision's and
-- Hugging Face's models, so that weights travel both ways in safetensors files.

local FAMILIES = {
  resnet18 = "resnet",
}

return setmetatable({}, {
  __index = function(self, name)
    local family = FAMILIES[name]
    if not family then return nil end
    local model = require("demilune.models." .. family)[name]
    rawset(self, name, model)
    return model
  end,
})
