-- The prompt of the demilune command.
--
-- An input that is an expression prints its values, of which `_` is the first; locals live on
-- (session.lua); an error prints its message, and `:trace` where it came from. Inputs that begin
-- with ? or : are commands (COMMANDS below); `:help` lists them.

local core = require "demilune.core"
local complete = require "demilune.cli.complete"
local late = require "demilune.late"
local lines = require "demilune.cli.lines"
local options = require "demilune.options"
local Session = require "demilune.cli.session"

local repl = {}

local PROMPT, CONTINUED = "> ", ">> "

-- ---- values ----

-- A value as the prompt shows it; a table of plain values on one line, others by their content.
-- depth: of the tables around it.
local function shown(value, depth)
  if type(value) == "string" then return ("%q"):format(value):gsub("\\\n", "\\n") end
  local meta = debug.getmetatable(value)
  if type(value) ~= "table" or meta and rawget(meta, "__tostring") or depth > 2 then
    return tostring(value)
  end
  local parts, count = {}, 0
  local function put(text)
    count = count + 1
    if count <= 40 then parts[count] = text end
  end
  local last = 0
  for i, item in ipairs(value) do
    put(shown(item, depth + 1))
    last = i
  end
  local keys = {}
  for key in next, value do
    if not (math.type(key) == "integer" and key >= 1 and key <= last) then keys[#keys + 1] = key end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    local name = type(key) == "string" and key:find "^[%a_][%w_]*$" and key
      or "[" .. shown(key, depth + 1) .. "]"
    put(name .. " = " .. shown(value[key], depth + 1))
  end
  if count > 40 then parts[41] = ("... %d more"):format(count - 40) end
  local text = table.concat(parts, ", ")
  if #text <= 76 and not text:find "\n" then return "{" .. text .. "}" end
  local pad = ("  "):rep(depth + 1)
  for i, part in ipairs(parts) do parts[i] = pad .. part:gsub("\n", "\n" .. pad) end
  return "{\n" .. table.concat(parts, ",\n") .. "\n" .. ("  "):rep(depth) .. "}"
end

--- A value as text, as the prompt shows it.
---@param value any
---@return string
function repl.shown(value) return shown(value, 0) end

-- ---- running ----

-- A message without the line of the prompt, or of the command that runs it.
local function plain(text) return (text:gsub("^stdin:1: ", ""):gsub("^%S*demilune:%d+: ", "")) end

-- The message of an error, and its traceback without the frames of the prompt.
local function explained(why)
  local text = type(why) == "string" and plain(why) or shown(why, 0)
  local trace = debug.traceback("", 2):gsub("\n%s*%[C%]: in function 'xpcall'.*$", "")
    :gsub("\n%s*%[C%]: in function 'error'", "")
  return {text = text, trace = (trace:gsub("^\n", ""))}
end

local Repl = {}
Repl.__index = Repl

local function say(text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  io.write(text, "\n")
end

-- Prints an error, which is kept for :trace.
function Repl:complain(failure)
  self.failure = failure
  say("error: " .. failure.text)
end

-- Prints why a source could not be read.
function Repl:misread(why)
  self:complain{text = plain(why), trace = "a syntax error has no trace"}
end

-- Calls f with what follows; its results in a table, or nil where it raised, which is printed.
function Repl:call(f, ...)
  core._interruptible(true)
  local function failed(why)
    core._interruptible(false)
    self.session:rescue()
    return explained(why)
  end
  local results = table.pack(xpcall(f, failed, ...))
  core._interruptible(false)
  if results[1] then return table.pack(table.unpack(results, 2, results.n)) end
  self:complain(results[2])
end

local hinted = false -- said once

-- Whether a value has the shape of an image, (C, H, W) with 1 or 3 channels of 8 x 8 at least.
local function is_image(value)
  if not core.is_tensor(value) or value.ndim ~= 3 then return false end
  local c, h, w = table.unpack(value.shape)
  return (c == 1 or c == 3) and h >= 8 and w >= 8
end

-- Prints results. A semicolon at the end of the input keeps it silent.
local function show(results, silent)
  if results.n == 0 then return end
  rawset(_G, "_", results[1])
  if silent then return end
  local image = is_image(results[1]) and not hinted
  local parts = {}
  for i = 1, results.n do parts[i] = shown(results[i], 0) end
  say(table.concat(parts, "\t"))
  if image then
    hinted = true
    say "hint: dm.show(_) draws it, as an image"
  end
end

-- Runs a piece of Lua; true where it only wants more lines.
function Repl:run(source)
  local fn, why, incomplete = self.session:compile(source, "=stdin")
  if incomplete then return true end
  if not fn then
    self:misread(why)
    return false
  end
  self.inputs[#self.inputs + 1] = source
  local results = self:call(fn)
  if results then show(results, source:find ";%s*$") end
  return false
end

-- ---- commands ----

local function seconds(s)
  for _, unit in ipairs{{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}} do
    if s >= unit[1] then return ("%.4g %s"):format(s / unit[1], unit[2]) end
  end
  return ("%.4g ns"):format(s * 1e9)
end

-- Seconds of each call of f, over enough calls that the clock's grain does not count.
local function timings(f)
  local function block(n)
    local start = core.now()
    for _ = 1, n do f() end
    return (core.now() - start) / n
  end
  local once = block(1)
  local n = math.max(1, math.min(100000, 0.02 // math.max(once, 1e-7)))
  local list = {}
  local rounds = once > 1 and 2 or 9
  for i = 1, rounds do list[i] = block(n) end
  table.sort(list)
  return list, n
end

local COMMANDS = {}

COMMANDS["?"] = {"? NAME", "what a name means: ? conv2d, ? nn.LSTM", function(_, name)
  require("demilune.help").help(name ~= "" and name or nil)
end}

COMMANDS.time = {":time EXPRESSION", "how long it takes: the median and the range of repeats",
  function(self, source)
    local fn, why = self.session:compile(source, "=stdin")
    if not fn then return self:misread(why) end
    local times = self:call(function() return timings(fn) end)
    if not times then return end
    local list, n = times[1], times[2]
    say("%s   [%s, %s] of %d x %d", seconds(list[(#list + 1) // 2]), seconds(list[1]),
      seconds(list[#list]), #list, n)
  end}

COMMANDS.mem = {":mem", "memory of tensors and of Lua", function()
  local dm = require "demilune"
  local mib = 2.0 ^ 20
  collectgarbage()
  say("cpu: %.1f MiB of tensors, %.1f MiB at most; Lua: %.1f MiB",
    dm.memory_allocated() / mib, dm.max_memory_allocated() / mib, collectgarbage "count" / 1024)
end}

COMMANDS.autocast = {":autocast DTYPE|off", "computes in a 16-bit dtype until it is off",
  function(self, word)
    local dtype = word:match "%S*$"
    if self.region then
      self.region:close()
      self.region = nil
    end
    if dtype == "off" or dtype == "" then return say "autocast is off" end
    if dtype == "on" then dtype = nil end
    local made = self:call(function()
      return require("demilune").amp.autocast{device_type = "cpu", dtype = dtype}
    end)
    if not made then return end
    self.region = made[1]
    say("autocast is on for the cpu, with %s, until :autocast off",
      core.get_autocast_dtype "cpu")
  end}

COMMANDS.plot = {":plot EXPRESSION", "draws lines of numbers, {a = a, b = b}, a figure or an image",
  function(self, source)
    local fn, why = self.session:compile(source, "=stdin")
    if not fn then return self:misread(why) end
    local results = self:call(fn)
    local value = results and results[1]
    if value == nil then return end
    self:call(function()
      local dm = require "demilune"
      if core.is_tensor(value) and value.ndim > 1 then return dm.show(value) end
      if require("demilune.plot.figure").is(value) then return print(value) end
      print(dm.plot.lines(value))
    end)
  end}

COMMANDS.trace = {":trace", "where the last error came from", function(self)
  say(self.failure and self.failure.trace or "no error so far")
end}

COMMANDS.save = {":save FILE", "writes the inputs so far as a script", function(self, path)
  if path == "" then return say "error: :save wants a file's name" end
  local file, why = io.open(path, "w")
  if not file then return say("error: " .. why) end
  local parts = {}
  for i, input in ipairs(self.inputs) do
    parts[i] = load(input) and input or "print(" .. input .. ")" -- an expression printed itself
  end
  local text = 'local dm = require "demilune"\nlocal nn, optim, amp, data = dm.nn, dm.optim, '
    .. "dm.amp, dm.data\n\n" .. table.concat(parts, "\n") .. "\n"
  local fine, problem = file:write(text)
  local closed, late_problem = file:close()
  if not fine or not closed then return say("error: %s", problem or late_problem) end
  say("%d inputs are in %s", #self.inputs, path)
end}

COMMANDS.quit = {":quit", "leaves; so does Ctrl-D", function(self) self.done = true end}

COMMANDS.help = {":help", "this list", function()
  for _, name in ipairs{"?", "time", "mem", "autocast", "plot", "trace", "save", "quit", "help"} do
    say("  %-22s %s", COMMANDS[name][1], COMMANDS[name][2])
  end
  say "  _                      the last value;   EXPRESSION;  runs and prints nothing"
end}

-- Runs a command line; false where the input is none.
function Repl:command(input)
  local name, rest = input:match "^%s*(%?)%s*(.-)%s*$"
  if not name then name, rest = input:match "^%s*:(%a+)%s*(.-)%s*$" end
  if not name then return false end
  local command = COMMANDS[name]
  if command then
    self:call(command[3], self, rest)
  else
    local near = options.nearest(name, COMMANDS)
    say("error: no command :%s%s", name, near and "; did you mean :" .. near .. "?"
      or "; :help lists them")
  end
  return true
end

-- ---- the loop ----

-- Reads lines until they are a whole input, and runs it. Sets self.done at the end.
function Repl:turn()
  local source = nil
  while true do
    local line, typed = self.reader:read(source and CONTINUED or PROMPT)
    if line == nil then -- the end of the input
      self.done = true
      if source then self:complain{text = "the input ended in the middle", trace = ""} end
      return
    end
    if line == false then return self:interrupted(typed or source ~= nil) end
    self.warned = false
    if not source and not line:find "%S" then return end
    if not source and self:command(line) then return self.reader:remember(line) end
    source = source and source .. "\n" .. line or line
    if not self:run(source) then return self.reader:remember(source) end
  end
end

-- Ctrl-C at the prompt drops what was typed; at an empty one it asks, and leaves at the second.
function Repl:interrupted(dropped)
  if dropped then return end
  if self.warned then
    self.done = true
  else
    say "Ctrl-C again, or Ctrl-D, leaves"
    self.warned = true
  end
end

--- Sets the globals that a session has without require: they load when they are used.
function repl.preset()
  local dm = require "demilune"
  rawset(_G, "dm", dm)
  if getmetatable(_G) then return end -- the host has its own idea of globals
  local modules = {}
  for _, name in ipairs{"nn", "optim", "amp", "data"} do
    modules[name] = function() return dm[name] end
  end
  late.extend(_G, modules)
end

local function banner()
  return ("demilune %s  %s  cpu: %s x %d     ? NAME for help, :help for commands"):format(
    core._VERSION:match "%S+$", _VERSION, core.cpu_info().variant, core.get_num_threads())
end

--- An object that runs commands and functions for a session: command(line), call(f, ...), and
--- complain({text =, trace =}), which they call for an error, and which a caller may replace by a
--- function of its own.
---@param session table
---@return table
function repl.new(session) return setmetatable({session = session, inputs = {}}, Repl) end

--- Runs the prompt until its input ends.
---@param quiet? boolean without the line about versions
function repl.run(quiet)
  repl.preset()
  local self = repl.new(Session.new())
  self.reader = lines.open(function(text)
    return complete.candidates(text, self.session:values())
  end)
  core._catch_interrupts()
  if not quiet then say(banner()) end
  while not self.done do
    local fine, failure = xpcall(self.turn, explained, self)
    if not fine then self:complain(failure) end
  end
  if self.region then self.region:close() end
  self.reader:close()
  io.write(core.isatty(io.stdin) and "" or "\n")
end

return repl
