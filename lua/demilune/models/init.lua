-- demilune.models: ready architectures, one file a family, loaded when one of its
-- models is first named. Modules and parameters have the names of torchvision's and
-- Hugging Face's models, so that weights travel both ways in safetensors files.

local FAMILIES = {
  resnet18 = "resnet", resnet34 = "resnet", resnet50 = "resnet", resnet101 = "resnet",
  resnet152 = "resnet",
  efficientnet_b0 = "efficientnet", efficientnet_b1 = "efficientnet",
  efficientnet_b2 = "efficientnet", efficientnet_b3 = "efficientnet",
  efficientnet_b4 = "efficientnet",
  lenet = "lenet",
  mobilenet_v2 = "mobilenet",
  unet = "unet",
  vgg11 = "vgg", vgg13 = "vgg", vgg16 = "vgg", vgg19 = "vgg",
  vgg11_bn = "vgg", vgg13_bn = "vgg", vgg16_bn = "vgg", vgg19_bn = "vgg",
  vit_s_16 = "vit", vit_b_16 = "vit",
  gpt2 = "gpt",
  bert = "bert",
  lstm_lm = "lstm",
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
