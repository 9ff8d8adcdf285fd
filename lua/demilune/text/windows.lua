-- Windows of tokens for language models, and files of tokens.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local data = require "demilune.data.dataset"

local windows = {}

local Windows = data.TensorDataset:extend "Windows"
windows.Windows = Windows

-- Windows(ids, {length = 256, step = 1}): sample i is x = ids[a .. a + length - 1], a =
-- 1 + (i - 1) step, and y, the same one further. Views of ids on the CPU: nothing is copied.
function Windows:init(ids, opts)
  local o = options.read("Windows", opts, {length = 256, step = 1})
  if not core.is_tensor(ids) or ids:dim() ~= 1 then
    caller.raise("Windows: wanted ids, a tensor of one dim, got %s",
      core.is_tensor(ids) and tostring(ids.shape) or type(ids))
  end
  for _, key in ipairs{"length", "step"} do
    if math.type(o[key]) ~= "integer" or o[key] < 1 then
      caller.raise("Windows: %s is %s, wanted a whole number from 1", key, tostring(o[key]))
    end
  end
  local n = #ids - 1 - o.length
  if n < 0 then
    caller.raise("Windows: %d ids are too few for one window of %d and the next id", #ids, o.length)
  end
  local flat = ids:cpu():contiguous()
  local shape = {n // o.step + 1, o.length}
  Windows.super.init(self, flat:as_strided(shape, {o.step, 1}),
    flat:narrow(1, 2, #flat - 1):as_strided(shape, {o.step, 1}))
end

-- ---- files of tokens: 16-bit numbers from 0, little-endian ----

-- llm.c's files begin with a head of 256 int32: this number, a version, the count.
local MAGIC, HEAD = 20240520, 1024
local MOST = 65536

-- Bytes of uint16 -> int64, from 1.
local function widened(bytes)
  local pairs_ = core._from_bytes(bytes):reshape(-1, 2):long()
  return pairs_:select(2, 1) + pairs_:select(2, 2) * 256 + 1
end

--- read_tokens(path, {first = 1, count = all}) -> int64 (count), or nil and why not: the
--- ids of a file of 16-bit tokens, plain or with llm.c's head.
function windows.read_tokens(path, opts)
  local o = options.read("read_tokens", opts, {first = 1, count = options.NONE})
  local file <close>, why = io.open(path, "rb")
  if not file then return nil, why end
  local head = file:read(12) or ""
  local offset = #head == 12 and ("<i4"):unpack(head) == MAGIC and HEAD or 0
  local size = file:seek "end"
  if (size - offset) % 2 ~= 0 then
    return nil, ("%s: %d bytes of tokens, wanted pairs of bytes"):format(path, size - offset)
  end
  local n = (size - offset) // 2
  if offset > 0 and ("<i4"):unpack(head, 9) ~= n then
    return nil, ("%s: %d tokens, its head says %d"):format(path, n, (("<i4"):unpack(head, 9)))
  end
  local count = o.count or n - o.first + 1
  if o.first < 1 or count < 0 or o.first + count - 1 > n then
    caller.raise("read_tokens: %d tokens from %d on, the file has %d", count, o.first, n)
  end
  file:seek("set", offset + 2 * (o.first - 1))
  local _ <close> = core.scope()
  return core.keep(widened(count > 0 and file:read(2 * count) or ""))
end

--- write_tokens(path, ids): llm.c's head and the ids; true, or nil and why not.
function windows.write_tokens(path, ids)
  local list = require "demilune.text.simple".ids_of("write_tokens", ids)
  for i, id in ipairs(list) do
    if math.type(id) ~= "integer" or id < 1 or id > MOST then
      caller.raise("write_tokens: id %s at %d, wanted 1 to %d", tostring(id), i, MOST)
    end
  end
  local parts = {("<i4i4i4"):pack(MAGIC, 1, #list) .. ("\0"):rep(HEAD - 12)}
  for i, id in ipairs(list) do parts[i + 1] = ("<I2"):pack(id - 1) end
  return core._write_file("write_tokens", path, table.concat(parts))
end

return windows
