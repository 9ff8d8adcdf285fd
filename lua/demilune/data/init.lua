-- demilune.data: data sets, samplers and the loader.

local data = {DataLoader = require "demilune.data.loader"}

for _, room in ipairs{"dataset", "sampler"} do
  for name, value in pairs(require("demilune.data." .. room)) do data[name] = value end
end

return data
