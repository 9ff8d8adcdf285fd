-- CRC-32C (Castagnoli's polynomial 0x1EDC6F41, reflected; RFC 3720, section 12.1), by which
-- event files protect their records. A register is a CRC before its last inversion.
--
-- The register is linear: that of a text is the register of the text with some bytes set to 0,
-- xor that of these bytes alone, begun at 0. So a record of which only a few bytes vary needs
-- no look at the others; see event_file.lua.

local unpack, byte = string.unpack, string.byte

local crc32c = {}

local REFLECTED = 0x82F63B78
local ALL = 0xFFFFFFFF

-- T[k][b]: the register, begun at 0, of the byte b and k bytes of 0 behind it.
local T = {}
for k = 0, 7 do
  T[k] = {}
  for b = 0, 255 do
    local c = b
    if k == 0 then
      for _ = 1, 8 do c = c & 1 == 1 and c >> 1 ~ REFLECTED or c >> 1 end
    else
      c = T[k - 1][b]
      c = c >> 8 ~ T[0][c & 255]
    end
    T[k][b] = c
  end
end
crc32c.tables = T

--- The register after the bytes of s, eight at a time.
---@param register integer 0xFFFFFFFF at the beginning of a text
---@param s string
---@return integer register
function crc32c.update(register, s)
  local T0, T1, T2, T3, T4, T5, T6, T7 = T[0], T[1], T[2], T[3], T[4], T[5], T[6], T[7]
  local n = #s
  local whole = n - n % 8
  for i = 1, whole, 8 do
    local w = unpack("<i8", s, i) ~ register
    register = T7[w & 255] ~ T6[w >> 8 & 255] ~ T5[w >> 16 & 255] ~ T4[w >> 24 & 255]
      ~ T3[w >> 32 & 255] ~ T2[w >> 40 & 255] ~ T1[w >> 48 & 255] ~ T0[w >> 56]
  end
  for i = whole + 1, n do register = register >> 8 ~ T0[(register ~ byte(s, i)) & 255] end
  return register
end

--- The CRC-32C of a string.
---@param s string
---@return integer crc
function crc32c.of(s) return crc32c.update(ALL, s) ~ ALL end

--- A CRC as records hold it: rotated and shifted, so that the CRC of a text that holds CRCs
--- is no constant (TensorFlow's format of records).
---@param crc integer
---@return integer masked
function crc32c.masked(crc) return ((crc >> 15 | crc << 17 & ALL) + 0xA282EAD8) & ALL end

local passes = {} -- n -> the tables of pass(n)

--- Tables that pass a register over n bytes of 0: it becomes t[1][r & 255] ~ t[2][r >> 8 & 255]
--- ~ t[3][r >> 16 & 255] ~ t[4][r >> 24].
---@param n integer
---@return table<integer, table<integer, integer>> t
function crc32c.pass(n)
  if passes[n] then return passes[n] end
  local zeros, t = ("\0"):rep(n), {}
  for k = 1, 4 do
    local row = {[0] = 0}
    for bit = 0, 7 do
      local half = 1 << bit
      local one = crc32c.update(half << 8 * (k - 1), zeros)
      for b = 0, half - 1 do row[half + b] = row[b] ~ one end
    end
    t[k] = row
  end
  passes[n] = t
  return t
end

return crc32c
