-- demilune.optim: optimizers and schedules.

local optim = {
  Optimizer = require "demilune.optim.optimizer",
  lr_scheduler = require "demilune.optim.lr_scheduler",
}
for name, class in pairs(require "demilune.optim.methods") do optim[name] = class end

return optim
