-- demilune.optim: optimizers and schedules. SGD, Adam and AdamW are there at once, the
-- others when they are asked for.

local optim = {
  Optimizer = require "demilune.optim.optimizer",
  lr_scheduler = require "demilune.optim.lr_scheduler",
}
for name, class in pairs(require "demilune.optim.methods") do optim[name] = class end

local ROOMS = {LBFGS = "lbfgs", Muon = "muon", swa_utils = "swa_utils"}
for name in ("RMSprop Adagrad Adadelta Adamax NAdam RAdam ASGD Rprop Adafactor Lion LAMB")
  :gmatch "%a+" do
  ROOMS[name] = "composed"
end

return setmetatable(optim, {__index = function(self, name)
  local room = ROOMS[name]
  if not room then return nil end
  local found = require("demilune.optim." .. room)
  if room == "composed" then found = found[name] end
  rawset(self, name, found)
  return found
end})
