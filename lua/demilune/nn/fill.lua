-- fill(t, method, ...): t:method(...), unrecorded; for initial values.

local core = require "demilune.core"

return function(t, method, ...)
  local _ <close> = core.no_grad()
  t[method](t, ...)
  return t
end
