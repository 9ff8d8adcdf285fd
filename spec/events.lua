-- A reader of event files by definition: TFRecord's framing with a CRC bit by bit, and Protocol
-- Buffers' wire format without any schema.

local events = {}

--- CRC-32C as RFC 3720 defines it, a bit at a time.
function events.crc32c(s)
  local c = 0xFFFFFFFF
  for i = 1, #s do
    c = c ~ s:byte(i)
    for _ = 1, 8 do c = c & 1 == 1 and c >> 1 ~ 0x82F63B78 or c >> 1 end
  end
  return c ~ 0xFFFFFFFF
end

local function masked(crc) return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF end

-- A varint at a position, and the position behind it.
local function varint(s, at)
  local v, shift = 0, 0
  while true do
    local b = s:byte(at)
    v, at, shift = v | (b & 127) << shift, at + 1, shift + 7
    if b < 128 then return v, at end
  end
end

--- The fields of a message, {[number] = {values in their order}}: integers, strings, and fixed
--- numbers as strings of 4 or 8 bytes.
function events.fields(s)
  local out, at = {}, 1
  while at <= #s do
    local key, size, v
    key, at = varint(s, at)
    if key & 7 == 0 then
      v, at = varint(s, at)
    else
      size = ({[1] = 8, [5] = 4})[key & 7]
      if key & 7 == 2 then size, at = varint(s, at) end
      v, at = s:sub(at, at + size - 1), at + size
      assert(#v == size, "a field is cut short")
    end
    out[key >> 3] = out[key >> 3] or {}
    table.insert(out[key >> 3], v)
  end
  return out
end

--- The whole records of a file's bytes, and how many bytes they are; raises where a CRC is wrong.
function events.records(s)
  local list, at = {}, 1
  while #s - at + 1 >= 16 do
    local length, crc = ("<I8I4"):unpack(s, at)
    assert(crc == masked(events.crc32c(s:sub(at, at + 7))), "the CRC of a length is wrong")
    if at + 12 + length + 3 > #s then break end
    local data = s:sub(at + 12, at + 11 + length)
    assert(("<I4"):unpack(s, at + 12 + length) == masked(events.crc32c(data)), "a CRC is wrong")
    list[#list + 1], at = data, at + 16 + length
  end
  return list, at - 1
end

--- The scalars of records: a list of {tag =, value =, step =, wall =}.
function events.scalars(records)
  local list = {}
  for _, data in ipairs(records) do
    local e = events.fields(data)
    for _, summary in ipairs(e[5] or {}) do
      for _, value in ipairs(events.fields(summary)[1]) do
        local v = events.fields(value)
        if v[2] then
          list[#list + 1] = {tag = v[1][1], value = ("<f"):unpack(v[2][1]),
            step = e[2] and e[2][1] or 0, wall = ("<d"):unpack(e[1][1])}
        end
      end
    end
  end
  return list
end

return events
