-- The file of a run, DIR/NAME.jsonl: a line of JSON for each event, only ever appended to.
--
--   {"run":"NAME","began":1700000000,"process":"1234.5678","formats":[...]}      the first line
--   {"step":3,"time":0.5,"values":{"loss":0.25,"lr":"nan"}}      numbers; time in s since `began`
--   {"chart":"loss","tags":["loss/train","loss/valid"]}          curves that share a plot
--   {"step":3,"time":0.5,"gradients":[{"layer":"1 Linear","zero":0,"inf":0,"nan":0,"low":-9,
--     "counts":[3]}, ...]}       gradients in [2^low, 2^(low + 1)) and so on (without this break)
--   {"settings":{"lr":0.1}}                                      of the run
--   {"ended":12.5}                                               the last line, where it was closed
--
-- A failure of the disk never raises. Lines that could not be written are kept, up to MOST_KEPT
-- bytes, and tried again.

local core = require "demilune.core"
local caller = require "demilune.caller"
local folders = require "demilune.folders"

local now = core.now

local RunFile = {}
RunFile.__index = RunFile

local PAUSE = 0.5            -- seconds between two writes: what a killed process may lose
local MOST_KEPT = 16 << 20   -- bytes that wait for a disk that is full
local MOST_LINES = 10000     -- lines between two writes, so that they take no memory to speak of
local MOST_NAMES = 1000      -- runs of one name

-- ---- opening ----

-- Makes a file that was not there; the shell does it so that two processes cannot both.
local function claim(path)
  return os.execute("set -C; : 2>/dev/null >" .. folders.quoted(path)) == true
end

local function exists(path)
  local file <close> = io.open(path)
  return file ~= nil
end

-- A path of its own for the run, DIR/NAME.jsonl or DIR/NAME-2.jsonl ...; nil and why not.
local function new_path(dir, name)
  for i = 1, MOST_NAMES do
    local own = i == 1 and name or ("%s-%d"):format(name, i)
    local path = ("%s/%s.jsonl"):format(dir, own)
    if claim(path) then return path, own end
    if not exists(path) then
      local _, why = io.open(path, "ab")
      return nil, why or path .. ": cannot be made"
    end
  end
  return nil, ("%s holds %d runs of the name '%s'"):format(dir, MOST_NAMES, name)
end

--- Opens a file of its own for a run; a number is added to a name that is taken.
---@param dir string made where it is missing
---@param name string without "/"
---@return table? file with the fields `path` and `name`; nil where it cannot be made
---@return string? why
function RunFile.open(dir, name)
  folders.make(dir)
  local path, own = new_path(dir, name)
  if not path then return nil, own end
  local file, why = io.open(path, "wb")
  if not file then return nil, why end
  file:setvbuf "no" -- so that a write that fails leaves nothing behind in a buffer
  return setmetatable({file = file, path = path, name = own, lines = {}, n = 0, kept = "",
    size = 0, due = 0, began = now()}, RunFile)
end

-- ---- adding ----

--- Seconds since the run began.
---@return number
function RunFile:time() return now() - self.began end

--- Adds a line, and writes all that wait if the last write was PAUSE ago.
---@param line string JSON
---@param time? number core.now(), where the caller has it
function RunFile:add(line, time)
  local n = self.n + 1
  self.lines[n], self.n = line, n
  if (time or now()) >= self.due or n >= MOST_LINES then self:write() end
end

-- ---- writing ----

-- The disk refused the data: the next attempt begins with the same bytes, in the same place.
local function refused(self, data, why)
  self.file:seek("set", self.size)
  if #data <= MOST_KEPT then self.kept = data end
  if not self.warned then
    self.warned = true
    caller.warn("dashboard: %s: %s; the program goes on, and tries again", self.path, why)
  end
  return nil, why
end

--- Hands all lines to the system.
---@return boolean? true; nil where the disk is full
---@return string? why
function RunFile:write()
  self.due = now() + PAUSE
  if self.n == 0 and self.kept == "" then return true end
  self.lines[self.n + 1] = ""
  local data = self.kept .. table.concat(self.lines, "\n", 1, self.n + 1)
  self.n = 0
  local ok, why = self.file:write(data)
  if not ok then return refused(self, data, why) end
  self.kept, self.size = "", self.size + #data
  return true
end

--- Writes all that waits and closes the file; a second call does nothing.
---@return boolean? true; nil where something could not be written
---@return string? why
function RunFile:close()
  if not self.file then return true end
  local ok, why = self:write()
  self.file:close()
  self.file = nil
  return ok, why
end

return RunFile
