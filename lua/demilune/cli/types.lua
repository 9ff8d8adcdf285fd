-- demilune types DIR: definition files for editors; docs/types.lua writes them.

local command = require "demilune.cli.command"
local types = require "demilune.docs.types"

local tool = {}

local function fail(...) return command.fail("types", ...) end

--- The tool; gives the exit status. Files of the same names are written over.
---@param args string[] one folder
---@return integer status
function tool.main(args)
  if not args[1] or args[2] then return fail "wants one folder: demilune types DIR" end
  local count, why = types.write(args[1])
  if not count then return fail("%s", why) end
  print(([[%s: %d files. lua-language-server reads them where a project's .luarc.json says
  {"workspace.library": ["%s"]} ]]):format(args[1], count, args[1]))
  return 0
end

return tool
