-- The names of all optimizers that a GradScaler takes, in order: all but LBFGS, which wants a
-- closure.
local names = {"Muon"}
for _, file in ipairs{"methods", "composed"} do
  for name, class in pairs(require("demilune.optim." .. file)) do
    if type(class) == "table" then names[#names + 1] = name end
  end
end
table.sort(names)
return names
