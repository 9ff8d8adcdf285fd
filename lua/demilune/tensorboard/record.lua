-- Records of event files (TFRecord): the length in 8 bytes and its CRC, the data and its CRC. A
-- reader stops in front of a record that is not whole.

local crc32c = require "demilune.tensorboard.crc32c"

local pack = string.pack

local record = {}

local heads = {}
record.heads = heads -- length -> head, of short records that were written

--- The 12 bytes in front of n bytes of data.
---@param n integer
---@return string
function record.head(n)
  local head = heads[n]
  if head then return head end
  local length = pack("<I8", n)
  head = length .. pack("<I4", crc32c.masked(crc32c.of(length)))
  if n < 1024 then heads[n] = head end
  return head
end

--- The data as a record.
---@param data string
---@return string
function record.of(data)
  return record.head(#data) .. data .. pack("<I4", crc32c.masked(crc32c.of(data)))
end

return record
