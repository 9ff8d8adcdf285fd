-- The server of the page: HTTP/1.1 by lua-socket (Debian: lua-socket; Lua has no sockets of its
-- own). It reads the files of the runs and nothing else, in a process of its own, so that neither
-- a slow nor a hostile client reaches a training. Each request wants the token:
--
--   GET /?token=T                        the page
--   GET /runs?token=T                    {"dir": DIR, "runs": [...]} (runs.list)
--   GET /run?name=N&from=B&token=T       bytes of the run's file from byte B on, at most CHUNK
--
-- One loop serves all connections. A connection has its answer within SECONDS or is closed; the
-- oldest one is closed where MOST are open.

local core = require "demilune.core"
local runs = require "demilune.dashboard.runs"

local now = core.now

local Server = {}
Server.__index = Server

local MOST_HEAD = 8192     -- bytes of a request's lines
local CHUNK = 1 << 20      -- bytes of a file in one answer
local MOST = 64            -- open connections
local SECONDS = 15         -- for a request and its answer
local LINGER = 1           -- seconds in which the rest of a refused request is read and dropped
local TICK = 1             -- seconds between two looks at the clock
local PORTS = 20           -- ports that are tried for a hint

-- ---- opening ----

--- The library lua-socket; nil and the package that brings it.
---@return table? socket
---@return string? why
function Server.sockets()
  local fine, socket = pcall(require, "socket")
  if fine and type(socket) == "table" then return socket end
  return nil, "the page wants lua-socket; hint: apt-get install lua-socket"
end

--- A token that nobody can guess: 32 hexadecimal digits.
---@return string? token
---@return string? why
function Server.token()
  local file <close> = io.open("/dev/urandom", "rb")
  local bytes = file and file:read(16)
  if not bytes then return nil, "/dev/urandom cannot be read" end
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function listening(socket, host, port)
  local listener, why = socket.tcp4()
  if not listener then return nil, why end
  listener:setoption("reuseaddr", true) -- a port whose last connections are still fading away
  local fine
  fine, why = listener:bind(host, port)
  if fine then fine, why = listener:listen(MOST) end
  if fine then return listener end
  listener:close()
  return nil, why
end

-- The first free port behind one, as a hint.
local function free_port(socket, host, port)
  for next_port = port + 1, math.min(port + PORTS, 65535) do
    local listener = listening(socket, host, next_port)
    if listener then
      listener:close()
      return ("; hint: port = %d is free"):format(next_port)
    end
  end
  return "; hint: port = 0 takes a free one"
end

local function page()
  local folder = debug.getinfo(1, "S").source:match "^@(.*)server%.lua$"
  local file <close> = assert(io.open(folder .. "page.html", "rb"))
  return file:read "a"
end

--- The address of a page, under which this machine is known to others or to itself.
---@param host string
---@param port integer
---@param token string
---@return string
function Server.address(host, port, token)
  if host == "0.0.0.0" then host = require "demilune.tensorboard.event_file".host() end
  return ("http://%s:%d/?token=%s"):format(host, port, token)
end

--- Opens a server.
---@param o {dir: string, host: string, port: integer, token: string} port 0: a free one
---@return table? server with the field `port`; nil where the port cannot be had
---@return string? why
function Server.open(o)
  local socket, why = Server.sockets()
  if not socket then return nil, why end
  local listener
  listener, why = listening(socket, o.host, o.port)
  if not listener then
    local hint = o.port > 0 and why == "address already in use"
      and free_port(socket, o.host, o.port) or ""
    return nil, ("port %d of %s: %s%s"):format(o.port, o.host, why, hint)
  end
  listener:settimeout(0)
  local _, port = listener:getsockname()
  return setmetatable({socket = socket, listener = listener, dir = o.dir, token = o.token,
    host = o.host, port = math.tointeger(tonumber(port)), page = page(), open = {}}, Server)
end

--- The address of its page.
---@return string
function Server:url() return Server.address(self.host, self.port, self.token) end

-- ---- answers ----

local REASONS = {[200] = "OK", [400] = "Bad Request", [403] = "Forbidden", [404] = "Not Found",
  [405] = "Method Not Allowed", [431] = "Request Header Fields Too Large"}

-- Nothing is kept, sent to others, framed or loaded from elsewhere.
local HEAD = table.concat({"HTTP/1.1 %d %s", "Content-Type: %s", "Content-Length: %d",
  "Connection: close", "Cache-Control: no-store", "Referrer-Policy: no-referrer",
  "X-Content-Type-Options: nosniff", "X-Frame-Options: DENY",
  "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
    .. "'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'",
  "", ""}, "\r\n")

local function answer(status, body, kind)
  body = body or REASONS[status] .. "\n"
  return HEAD:format(status, REASONS[status], kind or "text/plain; charset=utf-8", #body), body
end

local function unescaped(text)
  return (text:gsub("+", " "):gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

-- "a=1&b=2" as a table.
local function query_of(text)
  local query = {}
  for name, value in text:gmatch "([^&=]+)=([^&]*)" do query[name] = unescaped(value) end
  return query
end

local ROUTES = {
  ["/"] = function(self) return answer(200, self.page, "text/html; charset=utf-8") end,
  ["/runs"] = function(self)
    local text = core.json_encode{dir = utf8.len(self.dir) and self.dir or "",
      runs = runs.list(self.dir) or {}}
    return answer(200, text, "application/json")
  end,
  ["/run"] = function(self, query)
    local name, from = query.name or "", (query.from or "0"):match "^%d+$"
    from = math.tointeger(tonumber(from))
    if not from or not runs.is_name(name) then return answer(400) end
    local bytes = runs.read(self.dir, name, from, CHUNK)
    if not bytes then return answer(404) end
    return answer(200, bytes, "application/x-ndjson")
  end,
}

-- The answer to the lines of a request: head and body.
local function reply(self, lines)
  local method, target = lines:match "^(%u+) (/%S*) HTTP/1%.[01]\r?\n"
  if not method then return answer(400) end
  if method ~= "GET" and method ~= "HEAD" then return answer(405) end
  local path, text = target:match "^([^?#]*)%??([^#]*)"
  local query = query_of(text)
  if query.token ~= self.token then return answer(403) end
  local route = ROUTES[path]
  if not route then return answer(404) end
  local head, body = route(self, query)
  return head, method == "GET" and body or ""
end

-- ---- connections ----

local function drop(self, i)
  self.open[i].client:close()
  table.remove(self.open, i)
end

local function accept(self)
  local client, why = self.listener:accept()
  local full = #self.open >= MOST or not client and why ~= "timeout" -- or out of descriptors
  if full and #self.open > 0 then drop(self, 1) end
  if not client then return end
  client:settimeout(0)
  table.insert(self.open, {client = client, got = "", due = now() + SECONDS})
end

-- Reads what a client sent; false where the connection is over.
local function read(self, c)
  local data, why, part = c.client:receive(4096)
  data = data or part or ""
  if c.answered then return why ~= "closed" end
  c.got = c.got .. data
  local lines = c.got:match "^.-\n\r?\n"
  local fine, head, body = true, nil, nil
  if lines and #lines <= MOST_HEAD then
    fine, head, body = pcall(reply, self, lines)
  elseif #c.got > MOST_HEAD then
    head, body = answer(431)
  end
  if not fine or why == "closed" and not head then return false end
  if head then c.out, c.sent, c.got, c.answered = head .. body, 0, "", true end
  return true
end

-- Sends what the client takes; false where the connection is over. It lingers for a while, since
-- to close it before all is read would take the answer back.
local function write(_, c)
  local last, why, part = c.client:send(c.out, c.sent + 1)
  c.sent = last or part or c.sent
  if why == "closed" then return false end
  if c.sent == #c.out then
    c.out, c.due = nil, now() + LINGER
    c.client:shutdown "send"
  end
  return true
end

-- Lets `act` handle those of the connections that are ready.
local function each(self, ready, act)
  for i = #self.open, 1, -1 do
    local c = self.open[i]
    if ready[c.client] and not act(self, c) then drop(self, i) end
  end
end

local function drop_late(self)
  local time = now()
  for i = #self.open, 1, -1 do
    if time > self.open[i].due then drop(self, i) end
  end
end

--- Serves until `input`, an object with a method getfd(), can be read, or ends.
---@param input? table
---@param goes_on? fun(): boolean asked each second or more often
function Server:run(input, goes_on)
  while not goes_on or goes_on() do
    local readers, writers = {self.listener, input}, {}
    for _, c in ipairs(self.open) do
      table.insert(c.out and writers or readers, c.client)
    end
    local can_read, can_write = self.socket.select(readers, writers, TICK)
    if input and can_read[input] then break end
    each(self, can_read, read)
    each(self, can_write, write)
    if can_read[self.listener] then accept(self) end
    drop_late(self)
  end
end

--- Closes all connections.
function Server:close()
  for i = #self.open, 1, -1 do drop(self, i) end
  self.listener:close()
end

return Server
