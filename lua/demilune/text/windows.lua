-- Windows of tokens for language models, and files of tokens.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local data = require "demilune.data.dataset"
local tokens = require "demilune.data.tokens"

local windows = {}

local Windows = data.Dataset:extend "Windows"
windows.Windows = Windows

-- Windows(ids, {length = 256, step = 1}): sample i is x = ids[a .. a + length - 1], a =
-- 1 + (i - 1) step, and y, the same one further. ids: a tensor, of which these are views on
-- the CPU, or a data.TokenFile: nothing is copied.
local bind = options.signature("Windows",
  "ids: tensor|tokens, length: integer = 256, step: integer = 1")
function Windows:init(...)
  local o = bind(...)
  local ids = o.ids
  local is_file = tokens.is_file(ids)
  if not is_file and not (core.is_tensor(ids) and ids:dim() == 1) then
    caller.raise("Windows: wanted ids, a tensor of one dim or a TokenFile, got %s",
      core.is_tensor(ids) and tostring(ids.shape) or type(ids))
  end
  for _, key in ipairs{"length", "step"} do
    if o[key] < 1 then
      caller.raise("Windows: %s is %s, wanted a whole number from 1", key, tostring(o[key]))
    end
  end
  local n = #ids - 1 - o.length
  if n < 0 then
    caller.raise("Windows: %d ids are too few for one window of %d and the next id", #ids, o.length)
  end
  self.n, self.length, self.step = n // o.step + 1, o.length, o.step
  if is_file then
    self.file = ids
  else
    local flat, shape = ids:cpu():contiguous(), {self.n, o.length}
    self.x = core.keep(flat:as_strided(shape, {o.step, 1}))
    self.y = core.keep(flat:narrow(1, 2, #flat - 1):as_strided(shape, {o.step, 1}))
  end
end

function Windows:len() return self.n end

function Windows:get(i)
  data.check_position(self.class, i, self.n)
  if not self.file then return self.x[i], self.y[i] end
  local both, why = self.file:read((i - 1) * self.step + 1, self.length + 1)
  if not both then caller.raise("%s", why) end
  return both:narrow(1, 1, self.length), both:narrow(1, 2, self.length)
end

Windows.native_get = Windows.get
function Windows:columns()
  if not self.file then return {{tensor = self.x}, {tensor = self.y}} end
  local columns = {}
  for k = 1, 2 do columns[k] = self.file:windows(k, self.length, self.step, self.n) end
  return columns
end

-- ---- files of tokens: numbers from 0, least significant byte first ----

-- llm.c's files begin with a head of 256 int32: such a number, a version, the count.
local HEAD = 1024
local KINDS = {uint16 = {magic = 20240520, version = 1, most = 1 << 16, format = "<I2"},
  int32 = {magic = 20240801, version = 7, most = 1 << 31, format = "<I4"}}

--- read_tokens(path, {first = 1, count = all, dtype = as TokenFile}) -> int64 (count), or
--- nil and why not: the ids of a file of tokens, plain or with llm.c's head.
local bind_read = options.signature("read_tokens",
  "path: string, first: integer = 1, count?: integer, dtype?: 'uint16'|'int32'")
function windows.read_tokens(...)
  local o = bind_read(...)
  local file, why = tokens.TokenFile(o.path, {dtype = o.dtype})
  if not file then return nil, why end
  local count = o.count or #file - o.first + 1
  return file:read(o.first, count)
end

--- write_tokens(path, ids, {dtype = "uint16" or "int32"}): llm.c's head and the ids; true,
--- or nil and why not.
local bind_write = options.signature("write_tokens",
  "path: string, ids: any, dtype: 'uint16'|'int32' = 'uint16'")
function windows.write_tokens(...)
  local o = bind_write(...)
  local kind = KINDS[o.dtype]
  local list = require "demilune.text.simple".ids_of("write_tokens", o.ids)
  for i, id in ipairs(list) do
    if math.type(id) ~= "integer" or id < 1 or id > kind.most then
      caller.raise("write_tokens: id %s at %d, wanted 1 to %d", tostring(id), i, kind.most)
    end
  end
  local parts = {("<i4i4i4"):pack(kind.magic, kind.version, #list) .. ("\0"):rep(HEAD - 12)}
  for i, id in ipairs(list) do parts[i + 1] = kind.format:pack(id - 1) end
  return core._write_file("write_tokens", o.path, table.concat(parts))
end

return windows
