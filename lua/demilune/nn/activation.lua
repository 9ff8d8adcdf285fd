-- Activations: modules over one op each.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local functional = require "demilune.nn.functional"
local Module = require "demilune.nn.module"

local layers = {}

-- A module that calls core[op](x, opts) and has its options; `first` names an option that may be
-- given as the first argument, as in LeakyReLU(0.2).
local function activation(name, op, first)
  local defaults = options.of_op(op)
  local Class = Module:extend(name)
  Class.holds_no_activations = true
  function Class:init(value, opts)
    if type(value) == "table" then value, opts = nil, value end
    self.opts = options.read(name, opts, defaults())
    if value ~= nil and first then self.opts[first] = value end
    self.shown = options.shown(opts or (value ~= nil and {[first] = value} or {}))
  end
  function Class:forward(x) return core[op](x, self.opts) end
  function Class:extra_repr() return self.shown end
  layers[name] = Class
end

-- The same without options.
local function plain(name, op)
  local Class = Module:extend(name)
  Class.holds_no_activations = true
  function Class.init(_, opts) options.read(name, opts, {}) end
  function Class.forward(_, x) return core[op](x) end
  layers[name] = Class
end

for name, op in pairs{ReLU = "relu", ReLU6 = "relu6", SiLU = "silu", Tanh = "tanh",
  Sigmoid = "sigmoid", Mish = "mish", Hardswish = "hardswish", Hardsigmoid = "hardsigmoid",
  LogSigmoid = "logsigmoid", SELU = "selu", Softsign = "softsign", Tanhshrink = "tanhshrink"} do
  plain(name, op)
end
layers.ReLU.relu_forward = layers.ReLU.forward -- see nn/module.lua
activation("LeakyReLU", "leaky_relu", "negative_slope")
activation("ELU", "elu", "alpha")
activation("CELU", "celu", "alpha")
activation("GELU", "gelu")
activation("Softplus", "softplus", "beta")
activation("Hardtanh", "hardtanh")
activation("Softshrink", "softshrink", "lambd")
activation("Hardshrink", "hardshrink", "lambd")

--- x above the threshold, else the value.
local Threshold = Module:extend "Threshold"
Threshold.holds_no_activations = true
function Threshold:init(threshold, value)
  if type(threshold) ~= "number" or type(value) ~= "number" then
    caller.raise("Threshold: wanted two numbers, the threshold and the value below it")
  end
  self.threshold, self.value = threshold, value
end
function Threshold:forward(x) return core.threshold(x, self.threshold, self.value) end
function Threshold:extra_repr()
  return ("threshold = %s, value = %s"):format(self.threshold, self.value)
end
layers.Threshold = Threshold

--- x above 0, weight * x below: one weight, or num_parameters of them, one for each
--- channel (dim 2). opts: init = 0.25, dtype, device.
local PReLU = Module:extend "PReLU"
PReLU.holds_no_activations = true
function PReLU:init(num_parameters, opts)
  if type(num_parameters) == "table" then num_parameters, opts = nil, num_parameters end
  local o = options.read("PReLU", opts,
    {num_parameters = 1, init = 0.25, dtype = "float32", device = options.NONE})
  self.num_parameters = num_parameters or o.num_parameters
  self.weight = core.parameter(core.full({self.num_parameters}, o.init,
    {dtype = o.dtype, device = o.device}))
end
function PReLU:forward(x) return core.prelu(x, self.weight) end
function PReLU:extra_repr() return ("num_parameters = %d"):format(self.num_parameters) end
layers.PReLU = PReLU

local function along_dim(name, op)
  local Class = Module:extend(name)
  Class.holds_no_activations = true
  function Class:init(dim) self.dim = type(dim) == "table" and dim.dim or dim or -1 end
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
function RReLU:init(opts)
  local o = options.read("RReLU", opts, {lower = 1 / 8, upper = 1 / 3})
  self.lower, self.upper = o.lower, o.upper
end
function RReLU:forward(x)
  return functional.rrelu(x, {lower = self.lower, upper = self.upper, training = self.training})
end
function RReLU:extra_repr() return ("lower = %g, upper = %g"):format(self.lower, self.upper) end
layers.RReLU = RReLU

return layers
