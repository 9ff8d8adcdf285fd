-- demilune.nn: modules, functions, initial values.

local core = require "demilune.core"
local options = require "demilune.options"

local nn = {
  Module = require "demilune.nn.module",
  functional = require "demilune.nn.functional",
  init = require "demilune.nn.init_weights",
  utils = require "demilune.nn.utils",
}

for _, file in ipairs{"containers", "linear", "conv", "shape", "norm", "activation", "loss", "rnn",
  "attention", "adaptive"} do
  for name, class in pairs(require("demilune.nn." .. file)) do nn[name] = class end
end

--- Marks t as a parameter and returns it, the same tensor; opts.requires_grad: true.
function nn.Parameter(t, opts)
  local o = options.read("Parameter", opts, {requires_grad = true})
  return core.parameter(t, o.requires_grad)
end

return nn
