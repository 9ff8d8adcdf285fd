-- demilune dashboard DIR: the page of the runs in a folder, those that still run among them.

local options = require "demilune.options"

local dashboard = {}

local OPTIONS = {["--port"] = "port", ["--host"] = "host"}

local function fail(text, ...)
  io.stderr:write("demilune dashboard: ", text:format(...), "\n")
  return 1
end

-- {dir =, port =, host =} of the arguments; nil and a message.
local function read(args)
  local o, i = {host = "127.0.0.1", port = 0}, 1
  while args[i] do
    local word = args[i]
    local name, value = word:match "^(%-%-%l+)=(.*)$"
    name = name or word
    if OPTIONS[name] then
      if not value then i, value = i + 1, args[i + 1] end
      if not value then return nil, name .. " wants a value" end
      o[OPTIONS[name]] = value
    elseif word:find "^%-" or o.dir then
      local near = options.nearest(word, OPTIONS)
      return nil, ("unknown '%s'%s"):format(word, near and ("; did you mean '%s'?"):format(near)
        or "; it takes one folder, --port N and --host H")
    else
      o.dir = word
    end
    i = i + 1
  end
  o.dir, o.port = o.dir or "runs", math.tointeger(tonumber(o.port))
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
