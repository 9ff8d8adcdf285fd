-- The server as a second process, which ends with the first one.
--
-- It gets its orders as lines of its standard input, so that no list of processes shows the token;
-- the end of that pipe is the end of the server. Its answer comes over a connection to a port
-- that the first process opens for it, and counts where it begins with the token.

local folders = require "demilune.folders"
local process = require "demilune.dashboard.process"
local Server = require "demilune.dashboard.server"

local launch = {}

local SECONDS = 10 -- until the server has answered

-- The interpreter is the one that runs here, unless that is a program of another name; setsid
-- keeps Ctrl-C of the terminal from the server, nice keeps it behind the training.
local COMMAND = [[exe=$(readlink "/proc/$PPID/exe" 2>/dev/null)
case $exe in */lua*) ;; *) exe=lua5.4 ;; esac
for tool in nice setsid; do
  command -v $tool >/dev/null 2>&1 && set -- $tool "$@"
done
unset LUA_INIT LUA_INIT_5_4 LUA_PATH_5_4 LUA_CPATH_5_4
export LUA_PATH=%s LUA_CPATH=%s
exec "$@" "$exe" -e 'require("demilune.dashboard.launch").serve()' >/dev/null 2>&1]]

-- ---- in the first process ----

-- Whether the line is fit to be one order.
local function is_line(text) return not text:find "[\n\r%z]" end

-- Waits for the answer of the server: its port, or nil and why not.
local function answer_of(meeting, token, clock)
  local due = clock() + SECONDS
  while clock() < due do
    meeting:settimeout(math.max(due - clock(), 0))
    local client = meeting:accept()
    if client then
      client:settimeout(1)
      local word = client:receive()
      local text = word == token and client:receive()
      client:close()
      if text then
        local port = math.tointeger(tonumber(text))
        return port, not port and text or nil
      end
    end
  end
  return nil, "the server did not start; hint: is lua5.4 on the PATH?"
end

--- Starts a server of the runs in a folder.
---@param o {dir: string, host: string, port: integer}
---@return table? server {port =, token =, pipe =}: closing the pipe ends it
---@return string? why
function launch.start(o)
  local socket, token, why
  socket, why = Server.sockets() -- makes SIGPIPE an error, so that a server that died kills nobody
  if not socket then return nil, why end
  token, why = Server.token()
  if not token then return nil, why end
  if not (is_line(o.dir) and is_line(o.host)) then
    return nil, "names of folders and hosts hold no end of a line"
  end
  local meeting = socket.bind("127.0.0.1", 0)
  if not meeting then return nil, "no connection of this machine with itself" end
  local _, port = meeting:getsockname()
  local pipe = io.popen(COMMAND:format(folders.quoted(package.path),
    folders.quoted(package.cpath)), "w")
  pipe:setvbuf "full"
  pipe:write(table.concat({token, o.dir, o.host, o.port, port, process.id() or ""}, "\n"), "\n")
  pipe:flush()
  port, why = answer_of(meeting, token, socket.gettime)
  meeting:close()
  if port then return {port = port, token = token, pipe = pipe} end
  pipe:close()
  return nil, why
end

-- ---- in the second process ----

local INPUT = {getfd = function() return 0 end}

--- Reads the orders, answers, and serves while the first process lives.
function launch.serve()
  local token, dir, host, port, meeting, parent = io.read("l", "l", "l", "l", "l", "l")
  local server, why = Server.open{dir = dir, host = host, port = math.tointeger(tonumber(port)),
    token = token}
  local client = assert(require("socket").connect("127.0.0.1", meeting))
  client:send(("%s\n%s\n"):format(token, server and server.port or why))
  client:close()
  if not server then return end
  server:run(INPUT, function() return parent == "" or process.runs(parent) ~= false end)
  server:close()
end

return launch
