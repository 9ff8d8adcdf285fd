-- demilune.nn: modules, functions, initial values.

local core = require "demilune.core"
local caller = require "demilune.caller"
local late = require "demilune.late"
local options = require "demilune.options"

local nn = {Module = require "demilune.nn.module"}

-- The layers that nearly every model has are loaded at once.
for _, file in ipairs{"containers", "linear", "activation", "loss"} do
  for name, class in pairs(require("demilune.nn." .. file)) do nn[name] = class end
end

-- The classes of the other files, which come with the first of their names.
local CLASSES = {
  conv = [[AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveMaxPool1d
    AdaptiveMaxPool2d AdaptiveMaxPool3d AvgPool1d AvgPool2d AvgPool3d Conv1d Conv2d Conv3d
    ConvTranspose1d ConvTranspose2d ConvTranspose3d FractionalMaxPool2d FractionalMaxPool3d
    LPPool1d LPPool2d LPPool3d MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d]],
  shape = [[ChannelShuffle CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d
    ConstantPad3d Fold PixelShuffle PixelUnshuffle ReflectionPad1d ReflectionPad2d
    ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d Unflatten Unfold Upsample
    UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d]],
  norm = [[BatchNorm1d BatchNorm2d BatchNorm3d GroupNorm InstanceNorm1d InstanceNorm2d
    InstanceNorm3d LayerNorm LocalResponseNorm RMSNorm]],
  rnn = [[GRU GRUCell LSTM LSTMCell RNN RNNCell]],
  attention = [[MultiheadAttention Transformer TransformerDecoder TransformerDecoderLayer
    TransformerEncoder TransformerEncoderLayer]],
  adaptive = [[AdaptiveLogSoftmaxWithLoss]],
  sync_norm = [[SyncBatchNorm]],
  data_parallel = [[DataParallel]],
  lazy = [[LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d
    LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d
    LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear]],
}
local file_of = {}
for file, names in pairs(CLASSES) do
  for name in names:gmatch "%S+" do file_of[name] = "demilune.nn." .. file end
end
late.extend(nn, file_of, {
  functional = "demilune.nn.functional",
  init = "demilune.nn.init_weights",
  parallel = "demilune.nn.parallel",
  utils = "demilune.nn.utils",
})

local bind_parameter = options.signature("Parameter",
  "data: tensor, requires_grad: boolean = true")

--- Parameter(data, requires_grad): marks the tensor as a parameter and returns it, the same
--- one; of a tensor that is no leaf, one without history that shares its memory.
function nn.Parameter(...)
  local o = bind_parameter(...)
  return core.parameter(o.data, o.requires_grad)
end

local bind_instance = options.signature("nn.isinstance", "value?: any, class: any")

--- isinstance(value, class): whether value is a module of the class or of one that extends it; of
--- any of them, where class is a list.
---@param value any
---@param class table a class, such as nn.Linear, or a list of classes
---@return boolean
function nn.isinstance(...)
  local o = bind_instance(...)
  local value, class = o.value, o.class
  if type(class) == "table" and class.class == nil and #class > 0 then
    for _, one in ipairs(class) do
      if nn.isinstance(value, one) then return true end
    end
    return false
  end
  if type(class) ~= "table" or rawget(class, "class") == nil then
    caller.raise("nn.isinstance: class is a %s, wanted a class such as nn.Linear, or a list of "
      .. "them", type(class))
  end
  local own = nn.Module.is_module(value) and getmetatable(value) or nil
  while own and own ~= class do own = rawget(own, "super") end
  return own ~= nil
end

return nn
