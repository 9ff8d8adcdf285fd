-- One event file: a queue of events, and the file that their records go to.
--
-- A failure of the disk never raises. Records that could not be written are kept, up to
-- MOST_KEPT bytes, and tried again.

local core = require "demilune.core"
local folders = require "demilune.folders"
local caller = require "demilune.caller"
local proto = require "demilune.tensorboard.proto"
local record = require "demilune.tensorboard.record"
local scalars = require "demilune.tensorboard.scalars"

local now = core.now

local EventFile = {}
EventFile.__index = EventFile

local TICKS = 1024           -- a second; wall times are whole ticks
local MOST_KEPT = 16 << 20   -- bytes that wait for a disk that is full
local PAUSE = TICKS // 4     -- ticks between two writes that max_queue asks for
local RETRY = TICKS          -- the same after one that failed

-- ---- time ----

-- core.now() is exact and has no date, os.time() has the date in seconds. Their difference is
-- taken once, so that wall times lie as far apart as the events; and again where the clock was
-- set or the machine slept.
local offset = os.time() - now()

local function check_clock()
  local at = os.time() - now()
  if math.abs(at - offset) > 2 then offset = at end
end

local function wall_time() return (now() + offset) * TICKS // 1 / TICKS end

-- ---- names ----

local function first_line(path, pattern)
  local file <close> = io.open(path)
  return file and (file:read "l" or ""):match(pattern)
end

--- The name of this machine.
---@return string
function EventFile.host()
  return first_line("/proc/sys/kernel/hostname", "^[%w._-]+") or os.getenv "HOSTNAME"
    or "localhost"
end

local opened = 0 -- event files of this Lua state

-- A path that no file has: time, machine, process and a number, as TensorFlow names them.
local function new_path(folder, suffix)
  local process = first_line("/proc/self/stat", "^%d+") or ("%p"):format({}):gsub("%W", "")
  while true do
    local path = ("%s/events.out.tfevents.%010d.%s.%s.%d%s"):format(folder, os.time(),
      EventFile.host(), process, opened, suffix)
    opened = opened + 1
    local taken <close> = io.open(path)
    if not taken then return path end
  end
end

-- A new file in a folder, which is made where it is missing.
local function create(path, folder)
  local file = io.open(path, "wb")
  if file then return file end
  folders.make(folder)
  return io.open(path, "wb")
end

-- ---- opening ----

local HEAD = proto.text(3, "brain.Event:2")
  .. proto.message(10, proto.text(1, "demilune.tensorboard"))

--- Opens a file of a new name in the folder.
---@param folder string made where it is missing
---@param o {max_queue: integer, flush_secs: number, filename_suffix: string}
---@return table? file nil where it cannot be made
---@return string? why
function EventFile.open(folder, o)
  check_clock()
  local path = new_path(folder, o.filename_suffix)
  local file, why = create(path, folder)
  if not file then return nil, why end
  file:setvbuf "no" -- so that a write that fails leaves nothing behind in a buffer
  local self = setmetatable({file = file, path = path, most = math.max(o.max_queue, 1),
    period = o.flush_secs * TICKS, parts = {}, n = 0, events = 0, due = math.huge, next = 0,
    queue = {tags = {}, values = {}, steps = {}, walls = {}}, n_scalars = 0,
    kept = "", size = 0, warned = true}, EventFile) -- the first failure is returned
  self:add(HEAD)
  local ok
  ok, why = self:write()
  if not ok then
    self:close()
    return nil, why
  end
  self.warned = false
  return self
end

-- ---- adding ----

-- Counts an event at that time in ticks, and writes what waits when it is time: when the first
-- one has waited for flush_secs, or max_queue of them wait and the last write is PAUSE ago.
local function queued(self, tick)
  local events = self.events + 1
  self.events = events
  if events == 1 then self.due = tick + self.period end
  if events == self.most then self.due = math.min(self.due, self.next) end
  if tick >= self.due then self:write() end
end

--- Adds a scalar; its record is made when it is written.
---@param tag string UTF-8
---@param value number
---@param step integer
function EventFile:add_scalar(tag, value, step)
  local tick = (now() + offset) * TICKS // 1
  local queue, n = self.queue, self.n_scalars + 1
  self.n_scalars = n
  queue.tags[n], queue.values[n], queue.steps[n], queue.walls[n] = tag, value, step, tick / TICKS
  queued(self, tick)
end

local function encode_scalars(self)
  scalars.encode(self.queue, self.n_scalars, self.parts, self.n)
  self.n, self.n_scalars = self.n + self.n_scalars, 0
end

--- Adds an event: the bytes of its fields but for wall time and step.
---@param fields string
---@param step? integer 0 by default
---@param wall? number seconds since 1970; now by default
function EventFile:add(fields, step, wall)
  encode_scalars(self)
  self.n = self.n + 1
  self.parts[self.n] = record.of(proto.double(1, wall or wall_time()) .. proto.int(2, step or 0)
    .. fields)
  queued(self, (now() + offset) * TICKS)
end

-- ---- writing ----

local function fail(self, why)
  if not self.warned then
    self.warned = true
    caller.warn("SummaryWriter: %s; the program goes on without these events", why)
  end
  return nil, why
end

-- Hands all records to the system.
function EventFile:write()
  encode_scalars(self)
  local data = self.kept .. table.concat(self.parts, "", 1, self.n)
  self.n, self.events, self.due = 0, 0, math.huge
  self.next = (now() + offset) * TICKS + PAUSE
  local ok, why = self.file:write(data)
  if ok then
    self.kept, self.size = "", self.size + #data
    return true
  end
  -- The next attempt begins with the same bytes, in the same place.
  self.file:seek("set", self.size)
  self.next = self.next + RETRY
  if #data <= MOST_KEPT then self.kept = data end
  return fail(self, why)
end

--- Writes what waits. Nothing is synchronized with the disk itself.
---@return boolean? true; nil where the disk is full or the file is gone
---@return string? why
function EventFile:flush()
  check_clock()
  local ok, why = self:write()
  if not ok then return nil, why end
  local there <close> = io.open(self.path)
  if there then return true end
  return fail(self, self.path .. ": the file was removed")
end

--- Writes what waits, and closes the file.
---@return boolean? true; nil where something could not be written
---@return string? why
function EventFile:close()
  if not self.file then return true end
  local ok, why = self:flush()
  self.file:close()
  self.file = nil
  return ok, why
end
EventFile.__gc = EventFile.close -- a program that ends without close() loses nothing

return EventFile
