-- demilune.optim: optimizers and schedules. The element-wise optimizers are there at once, the
-- others when they are asked for.

local late = require "demilune.late"

local optim = {
  Optimizer = require "demilune.optim.optimizer",
  lr_scheduler = require "demilune.optim.lr_scheduler",
}
for name, class in pairs(require "demilune.optim.methods") do optim[name] = class end

return late.extend(optim, {
  Adafactor = "demilune.optim.composed",
  LAMB = "demilune.optim.composed",
}, {
  LBFGS = "demilune.optim.lbfgs",
  Muon = "demilune.optim.muon",
  ZeroRedundancyOptimizer = "demilune.optim.zero",
  swa_utils = "demilune.optim.swa_utils",
})
