-- Activations and losses: modules over one op each.

local core = require "demilune.core"
local options = require "demilune.options"
local Module = require "demilune.nn.module"

local layers = {}

local function shown(opts)
  local parts = {}
  for key, value in pairs(opts) do
    if not core.is_tensor(value) then
      parts[#parts + 1] = ("%s = %s"):format(key, tostring(value))
    end
  end
  table.sort(parts)
  return table.concat(parts, ", ")
end

-- A module that calls core[op](x, opts); `first` names an option that may be
-- given as the first argument, as in LeakyReLU(0.2).
local function activation(name, op, defaults, first)
  local Class = Module:extend(name)
  Class.keeps_nothing = true
  function Class:init(value, opts)
    if type(value) == "table" then value, opts = nil, value end
    self.opts = options.read(name, opts, defaults)
    if value ~= nil and first then self.opts[first] = value end
    self.shown = shown(opts or (value ~= nil and {[first] = value} or {}))
  end
  function Class:forward(x) return core[op](x, self.opts) end
  function Class:extra_repr() return self.shown end
  layers[name] = Class
end

-- The same without options.
local function plain(name, op)
  local Class = Module:extend(name)
  Class.keeps_nothing = true
  function Class.init(_, opts) options.read(name, opts, {}) end
  function Class.forward(_, x) return core[op](x) end
  layers[name] = Class
end

plain("ReLU", "relu")
plain("SiLU", "silu")
plain("Tanh", "tanh")
plain("Sigmoid", "sigmoid")
activation("LeakyReLU", "leaky_relu", {negative_slope = 0.01}, "negative_slope")
activation("ELU", "elu", {alpha = 1.0}, "alpha")
activation("GELU", "gelu", {approximate = "none"})
activation("Softplus", "softplus", {beta = 1.0, threshold = 20.0}, "beta")
activation("Hardtanh", "hardtanh", {min_val = -1.0, max_val = 1.0})

-- min(max(x, 0), 6)
local ReLU6 = Module:extend "ReLU6"
ReLU6.keeps_nothing = true
function ReLU6.init(_, opts) options.read("ReLU6", opts, {}) end
function ReLU6.forward(_, x) return core.hardtanh(x, {min_val = 0.0, max_val = 6.0}) end
layers.ReLU6 = ReLU6

local function along_dim(name, op)
  local Class = Module:extend(name)
  Class.keeps_nothing = true
  function Class:init(dim) self.dim = type(dim) == "table" and dim.dim or dim or -1 end
  function Class:forward(x) return core[op](x, self.dim) end
  function Class:extra_repr() return tostring(self.dim) end
  layers[name] = Class
end
along_dim("Softmax", "softmax")
along_dim("LogSoftmax", "log_softmax")

-- Tensor options (weights of classes) are buffers, as PyTorch's.
local function loss(name, op, defaults)
  local Class = Module:extend(name)
  function Class:init(opts)
    self.opts = options.read(name, opts, defaults)
    self.shown = shown(opts or {})
    for key, value in pairs(self.opts) do
      if core.is_tensor(value) then self:register_buffer(key, value) end
    end
  end
  function Class:forward(x, target) return core[op](x, target, self.opts) end
  function Class:extra_repr() return self.shown end
  layers[name] = Class
end

local NONE = options.NONE
loss("CrossEntropyLoss", "cross_entropy",
  {weight = NONE, ignore_index = NONE, reduction = "mean", label_smoothing = 0.0})
loss("NLLLoss", "nll_loss", {weight = NONE, ignore_index = NONE, reduction = "mean"})
loss("MSELoss", "mse_loss", {reduction = "mean"})
loss("L1Loss", "l1_loss", {reduction = "mean"})
loss("SmoothL1Loss", "smooth_l1_loss", {reduction = "mean", beta = 1.0})
loss("HuberLoss", "huber_loss", {reduction = "mean", delta = 1.0})
loss("BCELoss", "binary_cross_entropy", {weight = NONE, reduction = "mean"})
loss("BCEWithLogitsLoss", "binary_cross_entropy_with_logits",
  {weight = NONE, reduction = "mean", pos_weight = NONE})

return layers
