-- demilune.models: ready architectures, one file a family, loaded when one of its
-- models is first named. Modules and parameters have the names of torchvision's and
-- Hugging Face's models, so that weights travel both ways. Each model takes one option more
-- than its family says:
--
--   weights: the path of a file that dm.load reads, such as "resnet18-f37072fd.pth" or the
--     folder of a model of Hugging Face, or what dm.load gave. The model has these weights
--     then; a name that is missing or not the model's raises, and all of them are listed.

local caller = require "demilune.caller"
local late = require "demilune.late"
local files = require "demilune.io"
local made = require "demilune.models.made"

local FAMILIES = {
  resnet18 = "resnet", resnet34 = "resnet", resnet50 = "resnet", resnet101 = "resnet",
  resnet152 = "resnet", resnext50_32x4d = "resnet", resnext101_32x8d = "resnet",
  resnext101_64x4d = "resnet", wide_resnet50_2 = "resnet", wide_resnet101_2 = "resnet",
  alexnet = "alexnet",
  convnext_tiny = "convnext", convnext_small = "convnext", convnext_base = "convnext",
  convnext_large = "convnext",
  densenet121 = "densenet", densenet161 = "densenet", densenet169 = "densenet",
  densenet201 = "densenet",
  efficientnet_b0 = "efficientnet", efficientnet_b1 = "efficientnet",
  efficientnet_b2 = "efficientnet", efficientnet_b3 = "efficientnet",
  efficientnet_b4 = "efficientnet",
  lenet = "lenet",
  mobilenet_v2 = "mobilenet",
  swin_t = "swin", swin_s = "swin", swin_b = "swin",
  unet = "unet",
  vgg11 = "vgg", vgg13 = "vgg", vgg16 = "vgg", vgg19 = "vgg",
  vgg11_bn = "vgg", vgg13_bn = "vgg", vgg16_bn = "vgg", vgg19_bn = "vgg",
  vit_s_16 = "vit", vit_b_16 = "vit",
  gpt2 = "gpt",
  bert = "bert",
  lstm_lm = "lstm",
}

-- Notes how a model was made, for dm.save_pretrained.
local function noted(model, name, opts)
  made[model] = {model = name, options = next(opts or {}) and opts or nil}
  return model
end

-- The same function, which takes the option weights too.
local function with_weights(name, build)
  return function(opts)
    if type(opts) ~= "table" or opts.weights == nil then
      return noted(build(opts), name, opts)
    end
    local own, weights = {}, opts.weights
    for key, value in pairs(opts) do own[key] = value end
    own.weights = nil
    if type(weights) == "string" then
      local state, why = files.load(weights)
      if type(state) ~= "table" then
        caller.raise("%s: weights: %s", name, why or weights .. " holds no state_dict")
      end
      weights = state
    end
    local model = build(own)
    model:load_state_dict(weights)
    return noted(model, name, own)
  end
end

local function load(name)
  return with_weights(name, late.require("demilune.models." .. FAMILIES[name])[name])
end

local loaders = {}
for name in pairs(FAMILIES) do loaders[name] = load end

return late.extend({}, loaders)
