-- demilune dashboard DIR: the page of the runs in a folder, those that still run among them.

local command = require "demilune.cli.command"

local dashboard = {}

local function fail(...) return command.fail("dashboard", ...) end

-- {dir =, port =, host =} of the arguments; nil and a message.
local function read(args)
  local o, words = command.read(args, {port = "value", host = "value"})
  if not o then return nil, words end
  if words[2] then return nil, ("unknown '%s'; it takes one folder"):format(words[2]) end
  o.dir, o.host, o.port = words[1] or "runs", o.host or "127.0.0.1", tonumber(o.port or 0)
  o.port = math.tointeger(o.port)
  if not o.port or o.port < 0 or o.port > 65535 then
    return nil, "--port wants a number from 0 (a free one) to 65535"
  end
  return o
end

--- The tool: serves until Ctrl-C; gives the exit status.
---@param args string[]
---@return integer status
function dashboard.main(args)
  local o, why = read(args)
  if not o then return fail("%s", why) end
  local Server = require "demilune.dashboard.server"
  if not require "demilune.dashboard.runs".list(o.dir) then
    return fail("no folder '%s' that can be read", o.dir)
  end
  o.token, why = Server.token()
  if not o.token then return fail("%s", why) end
  local server
  server, why = Server.open(o)
  if not server then return fail("%s", why) end
  print(("dashboard: %s"):format(server:url()))
  io.stdout:flush()
  local _, problem = pcall(server.run, server)
  server:close()
  if not tostring(problem):find "interrupted" then return fail("%s", tostring(problem)) end
  return 0
end

return dashboard
