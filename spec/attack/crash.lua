-- Programs of which the third ends its own process, for the spec of scripts/attack.
local values = require "spec.attack.values"

function values.CRASH() os.execute "kill -SEGV $PPID; sleep 1" end

return {text = function(_, index)
  local list = {"S(function() v[1] = 1 end)", "S(function() v[2] = 2 end)"}
  if index == 3 then table.insert(list, 2, "S(function() CRASH() end)") end
  return list
end}
