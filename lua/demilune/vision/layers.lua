-- Layers of models of images, with torchvision.ops' names, arguments and children.

local core = require "demilune.core"
local caller = require "demilune.caller"
local nn = require "demilune.nn"
local options = require "demilune.options"

local layers = {}

-- ---- convolution, norm, activation ----

--- A convolution that keeps the size (but for its stride), its norm and its activation:
--- x (N, in_channels, H, W) -> (N, out_channels, H / stride, W / stride).
local Conv2dNormActivation = nn.Sequential:extend "Conv2dNormActivation"

---@param in_channels integer
---@param out_channels integer
---@param opts? table kernel_size (3), stride (1), padding (what keeps the size), groups (1),
---  dilation (1), norm_layer (nn.BatchNorm2d) and activation_layer (nn.ReLU): each a class, or
---  a function that makes the layer, or false for none; bias (true where there is no norm)
local bind_conv = options.signature("Conv2dNormActivation", [[in_channels: integer,
  out_channels: integer, kernel_size: integer = 3, stride: integer = 1, padding?: integer,
  groups: integer = 1, norm_layer?: function|boolean, activation_layer?: function|boolean,
  dilation: integer = 1, bias?: boolean]])

-- The maker of a layer: `given`, or the class where nothing is given; false makes none.
local function maker(given, class)
  if given == nil then return class end
  return given
end

function Conv2dNormActivation:init(...)
  local o = bind_conv(...)
  local norm, activation = maker(o.norm_layer, nn.BatchNorm2d), maker(o.activation_layer, nn.ReLU)
  local bias = o.bias
  if bias == nil then bias = not norm end
  self:append(nn.Conv2d(o.in_channels, o.out_channels, o.kernel_size, {stride = o.stride,
    padding = o.padding or (o.kernel_size - 1) // 2 * o.dilation, groups = o.groups,
    dilation = o.dilation, bias = bias}))
  if norm then self:append(norm(o.out_channels)) end
  if activation then self:append(activation()) end
end

--- Scales each channel by a number from 0 to 1, computed from the means of all channels:
--- x (N, input_channels, H, W) -> the same shape. J. Hu et al. 2018.
local SqueezeExcitation = nn.Module:extend "SqueezeExcitation"

---@param input_channels integer
---@param squeeze_channels integer
---@param opts? table activation (nn.ReLU), scale_activation (nn.Sigmoid)
local bind_squeeze = options.signature("SqueezeExcitation", [[input_channels: integer,
  squeeze_channels: integer, activation?: function, scale_activation?: function]])
function SqueezeExcitation:init(...)
  local o = bind_squeeze(...)
  self.avgpool = nn.AdaptiveAvgPool2d(1)
  self.fc1 = nn.Conv2d(o.input_channels, o.squeeze_channels, 1)
  self.fc2 = nn.Conv2d(o.squeeze_channels, o.input_channels, 1)
  self.activation = (o.activation or nn.ReLU)()
  self.scale_activation = (o.scale_activation or nn.Sigmoid)()
end

function SqueezeExcitation:forward(x)
  return x * self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))
end

--- Linear layers with activations between them: x (..., in_channels) -> (..., the last of
--- hidden_channels).
local MLP = nn.Sequential:extend "MLP"

---@param in_channels integer
---@param hidden_channels integer[] the width after each linear layer
---@param opts? table norm_layer (false), activation_layer (nn.ReLU), bias (true), dropout (0)
local bind_mlp = options.signature("MLP", [[in_channels: integer, hidden_channels: numbers,
  norm_layer?: function|boolean, activation_layer?: function, bias: boolean = true,
  dropout: number = 0.0]])
function MLP:init(...)
  local o = bind_mlp(...)
  local inputs, n = o.in_channels, #o.hidden_channels
  for i, width in ipairs(o.hidden_channels) do
    self:append(nn.Linear(inputs, width, {bias = o.bias}))
    if i < n then
      if o.norm_layer then self:append(o.norm_layer(width)) end
      self:append((o.activation_layer or nn.ReLU)())
    end
    self:append(nn.Dropout(o.dropout))
    inputs = width
  end
end

-- ---- order of dims, norms of channels ----

--- The dims of x in another order.
local Permute = nn.Module:extend "Permute"
Permute.holds_no_activations = true

---@param dims integer[] each dim once, from 1
local bind_permute = options.signature("Permute", "dims: numbers")
function Permute:init(...) self.dims = {table.unpack(bind_permute(...).dims)} end
function Permute:forward(x) return core.permute(x, table.unpack(self.dims)) end
function Permute:extra_repr() return table.concat(self.dims, ", ") end

--- LayerNorm over the channels of x (N, C, H, W), with the arguments of nn.LayerNorm.
local LayerNorm2d = nn.LayerNorm:extend "LayerNorm2d"
function LayerNorm2d:forward(x)
  return nn.LayerNorm.forward(self, x:permute(1, 3, 4, 2)):permute(1, 4, 2, 3)
end

-- ---- stochastic depth ----

--- Leaves out whole rows of x with probability p, and scales the others so that the mean stays.
--- G. Huang et al. 2016.
---@param input Tensor (N, ...)
---@param p number 0 to 1
---@param mode string "row": each row by itself; "batch": all rows or none
---@param training? boolean true; false gives the input itself
local bind_depth = options.signature("stochastic_depth",
  "input: tensor, p: number, mode: 'row'|'batch', training: boolean = true")
function layers.stochastic_depth(...)
  local o = bind_depth(...)
  local x, p = o.input, o.p
  if not (p >= 0 and p <= 1) then
    caller.raise("stochastic_depth: p is %s, wanted 0 to 1", tostring(p))
  end
  if not o.training or p == 0 then return x end
  local shape = {o.mode == "row" and x:size(1) or 1}
  for d = 2, x:dim() do shape[d] = 1 end
  local ones = core.ones(shape, {dtype = x.dtype, device = x.device})
  return x * core.dropout(ones, {p = p, training = true})
end

--- stochastic_depth in training, x itself in evaluation.
local StochasticDepth = nn.Module:extend "StochasticDepth"

---@param p number 0 to 1
---@param mode? string "row" (the default) or "batch"
local bind_stochastic = options.signature("StochasticDepth",
  "p: number, mode: 'row'|'batch' = 'row'")
function StochasticDepth:init(...)
  local o = bind_stochastic(...)
  self.p, self.mode = o.p, o.mode
end
function StochasticDepth:forward(x)
  return layers.stochastic_depth(x, self.p, self.mode, {training = self.training})
end
function StochasticDepth:extra_repr() return ("p = %g, mode = %s"):format(self.p, self.mode) end

layers.Conv2dNormActivation, layers.SqueezeExcitation = Conv2dNormActivation, SqueezeExcitation
layers.MLP, layers.Permute, layers.LayerNorm2d = MLP, Permute, LayerNorm2d
layers.StochasticDepth = StochasticDepth
return layers
