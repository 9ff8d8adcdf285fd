-- in_evaluation(model, fn): calls fn with the model in evaluation and without recording, and puts
-- every module's mode back, also where fn raises.

local core = require "demilune.core"

return function(model, fn)
  local modes = {}
  for _, module in model:named_modules() do modes[module] = module.training end
  model:eval()
  local ok, err = pcall(core.no_grad, fn)
  for module, mode in pairs(modes) do module.training = mode end
  if not ok then error(err, 0) end
end
