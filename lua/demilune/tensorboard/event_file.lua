-- One event file: a queue of records, and the file that they go to.
--
-- A scalar costs a microsecond. Its record is
--
--   head | 09 wall time (8) 10 step | 2a n 0a n 0a n tag 15 | value (4) | CRC (4)
--
-- All scalars of a step and a millisecond share the second part and the register of the CRC
-- behind it; all of a tag share the third one. Then the CRC is the shared register passed over
-- the rest as if that were 0, xor the registers, begun at 0, of the third part and of the value.
--
-- A failure of the disk never raises. Records that could not be written are kept, up to
-- MOST_KEPT bytes, and tried again.

local core = require "demilune.core"
local caller = require "demilune.caller"
local crc32c = require "demilune.tensorboard.crc32c"
local proto = require "demilune.tensorboard.proto"
local record = require "demilune.tensorboard.record"

local pack, unpack, byte, now = string.pack, string.unpack, string.byte, core.now
local unpack_table, heads = table.unpack, record.heads
local T0, T1, T2, T3, T4, T5, T6, T7 = unpack_table(crc32c.tables, 0, 7)
local ALL = 0xFFFFFFFF

local EventFile = {}
EventFile.__index = EventFile

local TICKS = 1024           -- a second; wall times are whole ticks
local MOST_KEPT = 16 << 20   -- bytes that wait for a disk that is full
local PAUSE = TICKS // 20     -- ticks between two writes: a call of the system takes 5 us
local RETRY = TICKS          -- the same after one that failed
local MOST_TAGS = 4096       -- kept in `tags`
local CHUNK = 16             -- scalars whose values are packed at once

local FLOATS = {} -- n -> the format of n values
for n = 1, CHUNK do FLOATS[n] = "<" .. ("f"):rep(n) end

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

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

-- A new file in a folder, which is made where it is missing.
local function create(path, folder)
  local file = io.open(path, "wb")
  if file then return file end
  os.execute("mkdir -p -- " .. quoted(folder) .. " 2>/dev/null")
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
    rows = {}, values = {}, begins = {}, registers = {}, n_scalars = 0,
    kept = "", size = 0}, EventFile)
  self:add(HEAD)
  local ok
  ok, why = self:write()
  if ok then return self end
  self:close()
  return nil, why
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

-- Tags of scalars: {third part, its length and 4, its register, four tables, formats =}.
local tags, n_tags = {}, 0

local function row_of(tag)
  local value = proto.text(1, tag) .. "\x15" -- simple_value follows
  local summary = "\x0a" .. proto.varint(#value + 4) .. value
  local bytes = "\x2a" .. proto.varint(#summary + 4) .. summary
  if n_tags == MOST_TAGS then tags, n_tags = {}, 0 end
  n_tags = n_tags + 1
  local row = {bytes, #bytes + 4, crc32c.update(0, bytes .. "\0\0\0\0"), formats = {}}
  table.move(crc32c.pass(#bytes + 4), 1, 4, 4, row)
  tags[tag] = row
  return row
end

local AFTER_KEY = crc32c.update(ALL, "\x09")

-- The second part of a record and its register.
local function begin_step(self, tick, step)
  self.tick, self.step = tick, step
  local wall = tick / TICKS
  local begin
  if step >= 1 << 14 and step < 1 << 21 then
    begin = pack("<BdBBBB", 9, wall, 16, step & 127 | 128, step >> 7 & 127 | 128, step >> 14)
  elseif step >= 1 << 7 and step < 1 << 14 then
    begin = pack("<BdBBB", 9, wall, 16, step & 127 | 128, step >> 7)
  else
    begin = pack("<Bd", 9, wall) .. proto.int(2, step)
  end
  local w = unpack("<i8", begin, 2) ~ AFTER_KEY
  local c = T7[w & 255] ~ T6[w >> 8 & 255] ~ T5[w >> 16 & 255] ~ T4[w >> 24 & 255]
    ~ T3[w >> 32 & 255] ~ T2[w >> 40 & 255] ~ T1[w >> 48 & 255] ~ T0[w >> 56]
  if #begin > 9 then
    local b1, b2, b3, b4 = byte(begin, 10, 13)
    c = c >> 8 ~ T0[(c ~ b1) & 255]
    c = c >> 8 ~ T0[(c ~ b2) & 255]
    if b3 then c = c >> 8 ~ T0[(c ~ b3) & 255] end
    if b4 then c = c >> 8 ~ T0[(c ~ b4) & 255] end
    if #begin > 13 then c = crc32c.update(c, begin:sub(14)) end
  end
  self.begin, self.register = begin, c
end

--- Adds a scalar, the fast way.
---@param tag string
---@param value number
---@param step integer
function EventFile:add_scalar(tag, value, step)
  local tick = (now() + offset) * TICKS // 1
  if tick ~= self.tick or step ~= self.step then begin_step(self, tick, step) end
  local n = self.n_scalars + 1
  self.n_scalars = n
  self.rows[n], self.values[n] = tags[tag] or row_of(tag), value
  self.begins[n], self.registers[n] = self.begin, self.register
  queued(self, tick)
end

-- The format of a record of that many bytes in the second and the third part.
local function format_of(row, begin)
  local format = ("<c12c%dc%dfI4"):format(begin, #row[1])
  row.formats[begin] = format
  return format
end

-- Makes records of the scalars that wait.
local function encode_scalars(self)
  local n, parts, from = self.n_scalars, self.parts, self.n
  local rows, begins, registers, values = self.rows, self.begins, self.registers, self.values
  local bits, at
  for i = 1, n do
    if i % CHUNK == 1 then
      local last = n - i + 1 < CHUNK and n or i + CHUNK - 1
      bits, at = pack(FLOATS[last - i + 1], unpack_table(values, i, last)), 1
    end
    local b1, b2, b3, b4 = byte(bits, at, at + 3)
    at = at + 4
    local row, begin, c = rows[i], begins[i], registers[i]
    c = ~(row[4][c & 255] ~ row[5][c >> 8 & 255] ~ row[6][c >> 16 & 255] ~ row[7][c >> 24]
      ~ row[3] ~ T3[b1] ~ T2[b2] ~ T1[b3] ~ T0[b4]) & ALL
    local size = #begin
    local length = size + row[2]
    parts[from + i] = pack(row.formats[size] or format_of(row, size),
      heads[length] or record.head(length), begin, row[1], values[i],
      ((c >> 15 | c << 17 & ALL) + 0xA282EAD8) & ALL) -- crc32c.masked
  end
  self.n, self.n_scalars = from + n, 0
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
