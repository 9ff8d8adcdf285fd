-- demilune kernel: the Lua side of the Jupyter kernel, whose Python side is kernel.py.
--
-- Requests come as lines of JSON from a file or pipe of their own. What a cell writes goes to
-- standard output and standard error as it is; messages stand between it in standard output, each
-- a line of JSON behind a mark that no other program knows, so that order is kept, and programs
-- that a cell starts are heard too.
--
--   requests {id =, type = "execute", code =, count =, silent =}     count numbers the cell
--            {id =, type = "complete", text =}                       up to the cursor
--            {id =, type = "inspect", code =, cursor =}              cursor in bytes
--            {id =, type = "is_complete", code =}
--   messages {type = "running", id =}         from here on SIGINT interrupts the cell
--            {type = "display", data =, metadata =, id =, update =}
--            {type = "clear", wait =}
--            {type = "reply", id =, status = "ok"|"error", ...}      ends each request

local core = require "demilune.core"
local bundle = require "demilune.jupyter.bundle"
local caller = require "demilune.caller"
local complete = require "demilune.cli.complete"
local inspect = require "demilune.jupyter.inspect"
local jupyter = require "demilune.jupyter"
local repl = require "demilune.cli.repl"
local Session = require "demilune.cli.session"
local show = require "demilune.plot.show"
local terminal = require "demilune.terminal"

local kernel = {}

-- The folder of this library, as a pattern.
local LIBRARY = debug.getinfo(1, "S").source:match "^@(.*)jupyter/kernel%.lua$":gsub("%p", "%%%0")

local RED, PLAIN = "\27[31m", "\27[0m"
local INTERRUPTED_CALL = 4 -- errno EINTR: a signal came while a request was awaited

local Kernel = {}
Kernel.__index = Kernel

-- Writes a message behind what the cell has written.
function Kernel:send(message)
  io.stdout:write(self.mark, core.json_encode(message), "\n")
  io.stdout:flush()
end

-- ---- errors ----

-- A traceback without the frames of the kernel and of the session.
local function trace_of(failure)
  local lines = {}
  for line in failure.trace:gmatch "[^\n]+" do
    if not line:find "demilune/jupyter/" and not line:find "demilune/cli/" then
      lines[#lines + 1] = line:gsub("in upvalue 'run'$", "in the cell")
        :gsub(LIBRARY, "demilune/")
    end
  end
  while lines[#lines] and lines[#lines]:find "^\t%(%.%.%.tail calls" do lines[#lines] = nil end
  return #lines > 1 and lines or {}
end

-- The line of a cell that a message is about, as "In[3]:2:  x:matmul(y)"; nil where it is none.
function Kernel:line_of(text)
  local count, number = text:match "In%[(%d+)%]:(%d+):"
  local at = 0
  for line in ((self.cells[tonumber(count)] or "") .. "\n"):gmatch "(.-)\n" do
    at = at + 1
    if at == tonumber(number) then
      return ("In[%s]:%d:  %s"):format(count, at, line:match "^%s*(.-)%s*$")
    end
  end
end

-- The reply of a cell that failed: its message first, the line, and the traceback below.
function Kernel:failed(failure)
  local text = bundle.clean(failure.text)
  local lines = {("%serror%s: %s"):format(RED, PLAIN, text)}
  local line = self:line_of(text)
  if line then lines[#lines + 1] = bundle.clean(line) end
  for _, one in ipairs(trace_of(failure)) do lines[#lines + 1] = bundle.clean(one) end
  return {status = "error", ename = "error", evalue = text, traceback = lines}
end

-- ---- requests ----

local REQUESTS = {}

-- Whether a value says nothing: an output that is shown already, and the file that io.write and
-- its like give.
local function is_quiet(value)
  return value == nil or value == io.stdout or value == io.stderr or jupyter.is_output(value)
end

-- The reply of a cell that gave these values: the formats of one, the texts of several.
local function given(results)
  if results.n == 0 then return {status = "ok"} end
  rawset(_G, "_", results[1])
  if results.n == 1 then
    if is_quiet(results[1]) then return {status = "ok"} end
    local data, metadata = bundle.of(results[1])
    return {status = "ok", data = data, metadata = metadata}
  end
  local parts = {}
  for i = 1, results.n do parts[i] = repl.shown(results[i]) end
  return {status = "ok", data = {["text/plain"] = bundle.clean(table.concat(parts, "\t"))}}
end

-- Runs a function of a cell; its results in a table, or nil where it raised.
function Kernel:call(fn, id)
  return self.prompt:call(function()
    self:send{type = "running", id = id}
    return fn()
  end)
end

-- A command of the prompt, such as "? relu", "relu?" and ":time f(x)"; nil where a cell is none.
local function command_of(code)
  local name = code:match "^%s*([%a_][%w_.:]*)%s*%?%s*$"
  if name then return "? " .. name end
  return (code:find "^%s*%?" or code:find "^%s*:%a") and code or nil
end

-- The function that a cell is; nil where it cannot be read, which self.failure tells.
function Kernel:function_of(code, name)
  local command = command_of(code)
  if command then
    return function() self.prompt:command(command) end
  end
  local fn, why = self.session:compile_cell(code, name)
  if not fn then self.failure = {text = why, trace = ""} end
  return fn
end

function REQUESTS:execute(request)
  local code, name = request.code, ("=In[%d]"):format(request.count or 0)
  self.cells[request.count or 0] = code
  local fn = self:function_of(code, name)
  local silent = request.silent or code:find ";%s*$"
  local results = fn and self:call(fn, request.id)
  local replies = results and not self.failure and self.prompt:call(function()
    return silent and {status = "ok"} or given(results)
  end)
  return replies and not self.failure and replies[1] or self:failed(self.failure)
end

function REQUESTS:complete(request)
  local text = command_of(request.text) and request.text:gsub("^%s*[?:]%a*%s*", "")
    or request.text
  local candidates, word = complete.candidates(text, self.session:values())
  return {status = "ok", matches = candidates, word = word}
end

function REQUESTS:inspect(request)
  local text = inspect.text(request.code, request.cursor, self.session:values(), self.cells)
  return {status = "ok", text = text and bundle.clean(text)}
end

function REQUESTS:is_complete(request)
  if command_of(request.code) then return {status = "ok", state = "complete"} end
  local fn, _, incomplete = self.session:compile_cell(request.code, "=cell")
  return {status = "ok", state = fn and "complete" or incomplete and "incomplete" or "invalid"}
end

-- The reply to a request. An error of the kernel itself is a reply too.
function Kernel:answer(request)
  local answer = type(request) == "table" and rawget(REQUESTS, request.type)
  if not answer then return {status = "error", evalue = "no such request", traceback = {}} end
  self.failure = nil
  local fine, reply = xpcall(answer, debug.traceback, self, request)
  if not fine then reply = self:failed{text = tostring(reply), trace = ""} end
  return reply
end

-- ---- the process ----

local NO_INPUT = "a cell has no keyboard to read from; hint: assign the value in a cell, or read "
  .. "a file: io.open(path)"

-- Makes io.read, io.lines and io.stdin say that a notebook has no standard input.
local function refuse_input()
  local read, lines, stdin = io.read, io.lines, io.stdin
  rawset(io, "read", function(...)
    if io.input() == stdin then caller.raise("io.read: %s", NO_INPUT) end
    return read(...)
  end)
  rawset(io, "lines", function(path, ...)
    if path == nil and io.input() == stdin then caller.raise("io.lines: %s", NO_INPUT) end
    return lines(path, ...)
  end)
  rawset(io, "stdin", setmetatable({}, {__index = function()
    caller.raise("io.stdin: %s", NO_INPUT)
  end}))
end

local SIGINT, BY_SIGINT = 2, 130 -- the signal, and the status of a shell whose program it ended

-- Makes os.execute raise where the interrupt of a cell has ended the program: C's system() hides
-- the signal from this process, and a loop of programs would go on.
local function interrupt_programs()
  local execute = os.execute
  rawset(os, "execute", function(command)
    if command == nil then return execute() end
    local fine, kind, code = execute(command)
    if kind == "signal" and code == SIGINT or kind == "exit" and code == BY_SIGINT then
      caller.raise("interrupted")
    end
    return fine, kind, code
  end)
end

-- A file for one progress bar, which is an output that is drawn anew: a notebook that is saved
-- has its last state alone.
local Line = {}
Line.__index = Line

function Line:write(...)
  local text = table.concat{...}:gsub("^\r", ""):gsub("\27%[K\n?$", "")
  local data = {["text/plain"] = text}
  if self.output then self.output:update(data) else self.output = jupyter.display(data) end
  return self
end

function Line.flush() end

-- Lets figures and progress bars of this process go to the notebook.
local function connect(self)
  local function send(message) self:send(message) end
  jupyter._connect(send)
  function show.display(fig)
    send{type = "display", data = bundle.of_figure(fig), metadata = {}}
    return true
  end
  function terminal.of_bars() return setmetatable({}, Line), true end
end

-- The next request as text; nil at the end.
local function next_line(requests)
  while true do
    local line, _, code = requests:read "L"
    if line or code ~= INTERRUPTED_CALL then return line end
  end
end

local function new(mark)
  local session = Session.new()
  local self = setmetatable({mark = mark, session = session, prompt = repl.new(session),
    cells = {}}, Kernel)
  function self.prompt.complain(_, failure) self.failure = failure end
  return self
end

--- The tool: demilune kernel [REQUESTS [MARK]]. Answers the requests of a file, standard input by
--- default, until it ends; gives the exit status.
---@param args string[]
---@return integer status
function kernel.main(args)
  local requests = io.stdin
  if args[1] then
    local file, why = io.open(args[1])
    if not file then
      io.stderr:write("demilune kernel: ", why, "\n")
      return 1
    end
    requests = file
  end
  io.stdout:setvbuf "line"
  local self = new(args[2] or "\30")
  refuse_input()
  interrupt_programs()
  connect(self)
  repl.preset()
  core._catch_interrupts()
  for line in next_line, requests do
    local request = core.json_decode(line)
    local reply = self:answer(request)
    reply.type, reply.id = "reply", type(request) == "table" and request.id or nil
    self:send(reply)
  end
  return 0
end

return kernel
