-- Protocol Buffers' wire format, as far as event files need it: functions that give the bytes
-- of one field. As in proto3, a number that is 0 and an empty text are left out, and fields
-- are to be written in the order of their numbers.

local char, pack = string.char, string.pack

local proto = {}

local VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5 -- wire types

--- The bytes of an integer, seven bits a byte; ten bytes of a negative one.
---@param n integer
---@return string
function proto.varint(n)
  if n >= 0 and n < 1 << 21 then
    if n < 1 << 7 then return char(n) end
    if n < 1 << 14 then return char(n & 127 | 128, n >> 7) end
    return char(n & 127 | 128, n >> 7 & 127 | 128, n >> 14)
  end
  local bytes = {}
  repeat
    bytes[#bytes + 1] = n & 127 | 128
    n = n >> 7
  until n == 0
  bytes[#bytes] = bytes[#bytes] & 127
  return char(table.unpack(bytes))
end
local varint = proto.varint

local function key(field, wire) return varint(field << 3 | wire) end

local function is_zero(v) return v == 0 and 1 / v > 0 end -- -0.0 is written

--- An integer or a boolean (int32, int64, uint32, bool, enum).
function proto.int(field, v)
  v = v == true and 1 or v or 0
  return v == 0 and "" or key(field, VARINT) .. varint(v)
end

--- A number of 64 bits.
function proto.double(field, v)
  return is_zero(v) and "" or key(field, FIXED64) .. pack("<d", v)
end

--- A number of 32 bits of a oneof, which is written where it is 0 too.
function proto.one_float(field, v) return key(field, FIXED32) .. pack("<f", v) end

--- The same of a number of 64 bits and of a boolean.
function proto.one_double(field, v) return key(field, FIXED64) .. pack("<d", v) end
function proto.one_bool(field, v) return key(field, VARINT) .. (v and "\1" or "\0") end

--- A message, which is written where it is empty too; so is a text of a oneof or of a list.
function proto.message(field, bytes) return key(field, BYTES) .. varint(#bytes) .. bytes end

--- A string or bytes.
function proto.text(field, s) return s == "" and "" or proto.message(field, s) end

-- A packed list of numbers, each in the format of string.pack.
local function packed(field, list, format)
  if #list == 0 then return "" end
  local parts = {}
  for i, v in ipairs(list) do parts[i] = pack(format, v) end
  return proto.message(field, table.concat(parts))
end

--- A list of numbers of 64 or of 32 bits.
function proto.doubles(field, list) return packed(field, list, "<d") end
function proto.floats(field, list) return packed(field, list, "<f") end

return proto
