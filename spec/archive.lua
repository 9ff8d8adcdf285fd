-- Zip archives and pickles as strings, sound or hostile, for the specs of what reads them.

local core = require "demilune.core"
local archive = {}

local pack = string.pack

-- entries: {{name, bytes, more}, ...}. more changes what is written: method, flags, size, packed,
-- crc, at (where the directory says that it is), extra; head = {...} in the entry's head alone.
-- after: the comment at the end.
function archive.zip(entries, after)
  local body, directory, at = {}, {}, 0
  for i, e in ipairs(entries) do
    local name, bytes, more = e[1], e[2], e[3] or {}
    local function common(own)
      local function of(key, value) return own[key] or more[key] or value end
      local extra = of("extra", "")
      return pack("<I2I2I2I2I2I4I4I4I2I2", 20, of("flags", 0), of("method", 0), 0, 33,
        of("crc", core._crc32(bytes)), of("packed", #bytes), of("size", #bytes), #of("name", name),
        #extra), of("name", name) .. extra
    end
    local head, tail = common(more.head or {})
    body[i] = pack("<I4", 0x04034b50) .. head .. tail .. bytes
    head, tail = common {}
    directory[i] = pack("<I4I2", 0x02014b50, 20) .. head
      .. pack("<I2I2I2I4I4", 0, 0, 0, 0, more.at or at) .. tail
    at = at + #body[i]
  end
  local list = table.concat(directory)
  return table.concat(body) .. list .. pack("<I4I2I2I2I2I4I4I2", 0x06054b50, 0, 0, #entries,
    #entries, #list, at, #(after or "")) .. (after or "")
end

-- ---- pickles ----

function archive.text(s) return "X" .. pack("<I4", #s) .. s end
function archive.name(module, name) return ("c%s\n%s\n"):format(module, name) end
function archive.int(n) return "\x8a\8" .. pack("<i8", n) end

function archive.tuple(items) return "(" .. table.concat(items) .. "t" end
local function integers(list)
  local items = {}
  for i, n in ipairs(list) do items[i] = archive.int(n) end
  return archive.tuple(items)
end

-- A storage: o.kind ("FloatStorage"), o.key ("0"), o.n.
function archive.storage(o)
  return archive.tuple{archive.text "storage", archive.name("torch", o.kind or "FloatStorage"),
    archive.text(o.key or "0"), archive.text "cpu", archive.int(o.n)} .. "Q"
end

-- A tensor of o.size and o.stride from element o.offset (0) of that storage.
function archive.tensor(o)
  return archive.name("torch._utils", "_rebuild_tensor_v2") .. archive.tuple{archive.storage(o),
    archive.int(o.offset or 0), integers(o.size), integers(o.stride), "\x89",
    archive.name("collections", "OrderedDict") .. ")R"} .. "R"
end

-- torch.save's archive of an object's opcodes, with storages {key = bytes}.
function archive.torch(opcodes, storages)
  local entries = {{"archive/data.pkl", "\x80\2" .. opcodes .. "."}, {"archive/version", "3\n"}}
  for key, bytes in pairs(storages or {}) do
    entries[#entries + 1] = {"archive/data/" .. key, bytes}
  end
  return archive.zip(entries)
end

return archive
