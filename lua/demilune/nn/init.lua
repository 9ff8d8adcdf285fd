-- demilune.nn: modules, functions, initial values.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local nn = {
  Module = require "demilune.nn.module",
  functional = require "demilune.nn.functional",
  init = require "demilune.nn.init_weights",
  utils = require "demilune.nn.utils",
}

for _, file in ipairs{"containers", "linear", "conv", "shape", "norm", "activation", "loss", "rnn",
  "attention", "adaptive", "lazy"} do
  for name, class in pairs(require("demilune.nn." .. file)) do nn[name] = class end
end

local bind_parameter = options.signature("Parameter",
  "data: tensor, requires_grad: boolean = true")

--- Parameter(data, requires_grad): marks the tensor as a parameter and returns it, the same
--- one.
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
