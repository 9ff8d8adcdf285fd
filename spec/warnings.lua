-- warnings(fn) returns the texts of the warnings that fn() gives. Errors of fn are raised.
local caller = require "demilune.caller"

return function(fn)
  local texts, sink = {}, caller.sink
  caller.sink = function(text) texts[#texts + 1] = text end
  local ok, problem = pcall(fn)
  caller.sink = sink
  if not ok then error(problem, 0) end
  return texts
end
