-- demilune.optim: optimizers and schedules. The element-wise optimizers are there at once, the
-- others when they are asked for.

local optim = {
  Optimizer = require "demilune.optim.optimizer",
  lr_scheduler = require "demilune.optim.lr_scheduler",
}
for name, class in pairs(require "demilune.optim.methods") do optim[name] = class end

local MODULES = {LBFGS = "lbfgs", Muon = "muon", Adafactor = "composed", LAMB = "composed",
  swa_utils = "swa_utils"}

return setmetatable(optim, {__index = function(self, name)
  local module = MODULES[name]
  if not module then return nil end
  local found = require("demilune.optim." .. module)
  if module == "composed" then found = found[name] end
  rawset(self, name, found)
  return found
end})
