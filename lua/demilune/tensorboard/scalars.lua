-- Records of scalars, the fast way: many at once, a microsecond each. A record is
--
--   head | 09 wall time (8) 10 step | 2a n 0a n 0a n tag 15 | value (4) | CRC (4)
--
-- All scalars of a step and a wall time share the second part and the register of the CRC behind
-- it; all of a tag share the third one. Then the CRC is the shared register passed over the rest
-- as if that were 0, xor the registers, begun at 0, of the third part and of the value.

local crc32c = require "demilune.tensorboard.crc32c"
local proto = require "demilune.tensorboard.proto"
local record = require "demilune.tensorboard.record"

local pack, unpack, byte = string.pack, string.unpack, string.byte
local unpack_table, heads = table.unpack, record.heads
local T0, T1, T2, T3, T4, T5, T6, T7 = unpack_table(crc32c.tables, 0, 7)
local ALL = 0xFFFFFFFF

local scalars = {}

local MOST_TAGS = 4096 -- kept in `tags`
local CHUNK = 16       -- scalars whose values are packed at once

local FLOATS = {} -- n -> the format of n values
for n = 1, CHUNK do FLOATS[n] = "<" .. ("f"):rep(n) end

-- Tags: {third part, its length and 4, its register, four tables, formats =}.
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

-- The second part of a record, and the register behind it.
local function begin_of(wall, step)
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
  for i = 10, #begin do c = c >> 8 ~ T0[(c ~ byte(begin, i)) & 255] end
  return begin, c
end

-- The format of a record of a tag with so many bytes in the second part.
local function format_of(row, size)
  local format = ("<c12c%dc%dfI4"):format(size, #row[1])
  row.formats[size] = format
  return format
end

--- Makes records of the first n scalars, and puts them into `parts` behind the element `from`.
---@param queue table lists {tags =, values =, steps =, walls =}
---@param n integer
---@param parts string[]
---@param from integer
function scalars.encode(queue, n, parts, from)
  local names, values, steps, walls = queue.tags, queue.values, queue.steps, queue.walls
  local wall, step, begin, register, bits, at
  for i = 1, n do
    if i % CHUNK == 1 then
      local last = n - i + 1 < CHUNK and n or i + CHUNK - 1
      bits, at = pack(FLOATS[last - i + 1], unpack_table(values, i, last)), 1
    end
    if walls[i] ~= wall or steps[i] ~= step then
      wall, step = walls[i], steps[i]
      begin, register = begin_of(wall, step)
    end
    local b1, b2, b3, b4 = byte(bits, at, at + 3)
    at = at + 4
    local row, c = tags[names[i]] or row_of(names[i]), register
    c = ~(row[4][c & 255] ~ row[5][c >> 8 & 255] ~ row[6][c >> 16 & 255] ~ row[7][c >> 24]
      ~ row[3] ~ T3[b1] ~ T2[b2] ~ T1[b3] ~ T0[b4]) & ALL
    local size = #begin
    local length = size + row[2]
    parts[from + i] = pack(row.formats[size] or format_of(row, size),
      heads[length] or record.head(length), begin, row[1], values[i],
      ((c >> 15 | c << 17 & ALL) + 0xA282EAD8) & ALL) -- crc32c.masked
  end
end

return scalars
