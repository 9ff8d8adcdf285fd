-- Activations: modules over one op each.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local follow = require "demilune.nn.follow"
local functional = require "demilune.nn.functional"
local in_place = require "demilune.nn.in_place"
local Module = require "demilune.nn.module"

local layers = {}

-- A module that calls core[op](x, opts) and has its options: `text` names them.
local function activation(name, op, text)
  local bind, defaults = options.signature(name, text, op)
  local hold, current = follow(text)
  local apply, apply_ = core[op], in_place(op)
  local Class = Module:extend(name)
  Class.holds_no_activations = true
  function Class:init(...)
    local o = bind(...)
    self.inplace, o.inplace = o.inplace, nil
    hold(self, o)
  end
  function Class:forward(x)
    if self.inplace then return apply_(x, current(self)) end
    return apply(x, current(self))
  end
  function Class:extra_repr() return options.shown(current(self), defaults()) end
  layers[name] = Class
end

-- The same of an op without options.
local function plain(name, op, text)
  local bind, apply, apply_ = options.signature(name, text), core[op], in_place(op)
  local Class = Module:extend(name)
  Class.holds_no_activations = true
  function Class:init(...) self.inplace = bind(...).inplace end
  function Class:forward(x)
    if self.inplace then return apply_(x) end
    return apply(x)
  end
  layers[name] = Class
end

for name, op in pairs{Tanh = "tanh", Sigmoid = "sigmoid", LogSigmoid = "logsigmoid",
  Softsign = "softsign", Tanhshrink = "tanhshrink"} do
  plain(name, op, "")
end
for name, op in pairs{ReLU = "relu", ReLU6 = "relu6", SiLU = "silu", Mish = "mish",
  Hardswish = "hardswish", Hardsigmoid = "hardsigmoid", SELU = "selu"} do
  plain(name, op, "inplace: boolean = false")
end
for name, op in pairs{ReLU = "relu", ReLU6 = "relu6"} do -- see nn/module.lua
  local class = layers[name]
  class.relu_forward, class.relu_name = class.forward, op
end
activation("LeakyReLU", "leaky_relu", "negative_slope, inplace: boolean = false")
activation("ELU", "elu", "alpha, inplace: boolean = false")
activation("CELU", "celu", "alpha, inplace: boolean = false")
activation("GELU", "gelu", "approximate")
activation("Softplus", "softplus", "beta, threshold")
activation("Hardtanh", "hardtanh", "min_val, max_val, inplace: boolean = false")
activation("Softshrink", "softshrink", "lambd")
activation("Hardshrink", "hardshrink", "lambd")
activation("Threshold", "threshold", "threshold, value, inplace: boolean = false")

--- x above 0, weight * x below: one weight, or num_parameters of them, one for each
--- channel (dim 2). opts: init = 0.25, dtype, device.
local PReLU = Module:extend "PReLU"
PReLU.holds_no_activations = true
local bind_prelu = options.signature("PReLU", [[num_parameters: integer = 1,
  init: number = 0.25, device?: device, dtype?: dtype]])

function PReLU:init(...)
  local o = bind_prelu(...)
  self.num_parameters = o.num_parameters
  self.weight = core.parameter(core.full({self.num_parameters}, o.init,
    {dtype = o.dtype, device = o.device}))
end
function PReLU:forward(x) return core.prelu(x, self.weight) end
function PReLU:extra_repr() return ("num_parameters = %d"):format(self.num_parameters) end
layers.PReLU = PReLU

local function along_dim(name, op)
  local bind = options.signature(name, "dim: integer = -1")
  local Class = Module:extend(name)
  Class.holds_no_activations = true
  function Class:init(...) self.dim = bind(...).dim end
  function Class:forward(x) return core[op](x, self.dim) end
  function Class:extra_repr() return tostring(self.dim) end
  layers[name] = Class
end
along_dim("Softmax", "softmax")
along_dim("LogSoftmax", "log_softmax")
along_dim("Softmin", "softmin")
along_dim("GLU", "glu")

--- Softmax2d(): over the channels of (N,C,H,W) or (C,H,W).
local Softmax2d = Module:extend "Softmax2d"
Softmax2d.holds_no_activations = true
local bind_softmax2d = options.signature("Softmax2d", "")
function Softmax2d.init(_, ...) bind_softmax2d(...) end
function Softmax2d.forward(_, x)
  if not core.is_tensor(x) or x:dim() ~= 3 and x:dim() ~= 4 then
    caller.raise("Softmax2d: wanted (N,C,H,W) or (C,H,W), got %s",
      core.is_tensor(x) and tostring(x.shape) or type(x))
  end
  return core.softmax(x, -3)
end
layers.Softmax2d = Softmax2d

--- RReLU{lower = 1/8, upper = 1/3}: nn.functional.rrelu.
local RReLU = Module:extend "RReLU"
local bind_rrelu = options.signature("RReLU",
  "lower: number = 1 / 8, upper: number = 1 / 3, inplace: boolean = false")
function RReLU:init(...)
  local o = bind_rrelu(...)
  self.lower, self.upper, self.inplace = o.lower, o.upper, o.inplace
end
function RReLU:forward(x)
  local y = functional.rrelu(x, self.lower, self.upper, self.training)
  return self.inplace and x:copy_(y) or y
end
function RReLU:extra_repr() return ("lower = %g, upper = %g"):format(self.lower, self.upper) end
layers.RReLU = RReLU

return layers
