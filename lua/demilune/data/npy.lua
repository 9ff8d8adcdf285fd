-- NumPy's files: .npy holds one array, .npz several under names, as a zip archive.
--
--   local t = assert(dm.data.read_npy("x.npy"))
--   assert(dm.data.write_npz("batch.npz", {x = x, y = y}))
--
-- Numbers stay as they are: what counts positions from 0 there does so here.

local core = require "demilune.core"
local caller = require "demilune.caller"

local npy = {}

local MAGIC = "\x93NUMPY"
local DTYPES = {f2 = "float16", f4 = "float32", f8 = "float64", b1 = "bool", i1 = "int8",
  i2 = "int16", i4 = "int32", i8 = "int64", u1 = "uint8"}
local KINDS = {}
for kind, dtype in pairs(DTYPES) do
  KINDS[dtype] = (kind:find "1$" and "|" or "<") .. kind
end

-- ---- one array ----

-- {dtype =, shape =, fortran =, at = where the data begins}; or nil and why.
local function read_head(bytes)
  if bytes:sub(1, 6) ~= MAGIC then return nil, "no NumPy array" end
  local major = bytes:byte(7)
  local format, first = major == 1 and "<I2" or "<I4", major == 1 and 11 or 13
  if not major or major > 3 or #bytes < first then return nil, "its head is cut or unknown" end
  local n = format:unpack(bytes, 9)
  local head = bytes:sub(first, first + n - 1)
  if #head < n then return nil, "its head is cut" end
  local order, kind = head:match "'descr':%s*'([<>|=])(%w+)'"
  local fortran = head:match "'fortran_order':%s*(%a+)"
  local sizes = head:match "'shape':%s*%(([%d%s,L]*)%)"
  if not (order and fortran and sizes) then return nil, "its head is not understood: " .. head end
  if order == ">" or not DTYPES[kind] then
    return nil, ("its numbers are '%s%s', which is not read"):format(order, kind)
  end
  local shape, numel, span = {}, 1, 1 -- span: without dims of 0, whose strides count them too
  for size in sizes:gmatch "%d+" do
    size = math.tointeger(tonumber(size))
    if not size or span > (1 << 50) // math.max(size, 1) then
      return nil, "its shape is too large"
    end
    shape[#shape + 1], numel, span = size, numel * size, span * math.max(size, 1)
  end
  if #shape > 8 then return nil, ("its shape has %d dims, 8 can be read"):format(#shape) end
  return {dtype = DTYPES[kind], shape = shape, numel = numel, fortran = fortran == "True",
    at = first + n}
end

-- The array that bytes hold; or nil and why.
local function decode(bytes)
  local head, why = read_head(bytes)
  if not head then return nil, why end
  local _ <close> = core.scope()
  local size = core.empty({1}, {dtype = head.dtype, device = "cpu"}):element_size()
  local have = #bytes - head.at + 1
  if have ~= head.numel * size then
    return nil, ("%d bytes of data, its shape wants %d"):format(have, head.numel * size)
  end
  local t = core._from_bytes(bytes:sub(head.at), head.dtype)
  local n, turned = #head.shape, {}
  for d, v in ipairs(head.shape) do turned[n + 1 - d] = v end
  if not head.fortran or n < 2 then return core.keep(t:reshape(head.shape)) end
  local dims = {}
  for d = 1, n do dims[d] = n + 1 - d end
  return core.keep(t:reshape(turned):permute(dims):contiguous())
end

local function encode(what, t)
  if not core.is_tensor(t) then caller.raise("%s: wanted a tensor, got %s", what, type(t)) end
  local kind = KINDS[t.dtype]
  if not kind then
    caller.raise("%s: NumPy has no %s; hint: t:float()", what, t.dtype)
  end
  local sizes = table.concat(t.shape, ", ")
  local head = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(kind,
    #t.shape == 1 and sizes .. "," or sizes)
  head = head .. (" "):rep(63 - (10 + #head) % 64) .. "\n" -- data begin at a multiple of 64
  return MAGIC .. "\1\0" .. ("<I2"):pack(#head) .. head .. core._to_bytes(t:detach())
end

-- ---- zip archives: PKWARE's application note ----

local LOCAL, CENTRAL, LAST = 0x04034b50, 0x02014b50, 0x06054b50
local STORED, DEFLATED = 0, 8
local MOST = 1032 -- times that deflated bytes may grow

-- name -> {method, crc, packed, size, at}, and the names in order; nil and why.
local function read_directory(bytes)
  local last
  for at = #bytes - 21, math.max(1, #bytes - 21 - 65535), -1 do -- a comment may follow
    if ("<I4"):unpack(bytes, at) == LAST then
      last = at
      break
    end
  end
  if not last then return nil, "no zip archive" end
  local count, _, at = ("<I2I4I4"):unpack(bytes, last + 10)
  if count == 0xffff or at == 0xffffffff then return nil, "a zip archive of the large kind" end
  local entries, names = {}, {}
  at = at + 1
  for _ = 1, count do
    if at + 45 > #bytes or ("<I4"):unpack(bytes, at) ~= CENTRAL then
      return nil, "its directory is broken"
    end
    local flags, method, _, crc, packed, size, n_name, n_extra, n_comment =
      ("<I2I2I4I4I4I4I2I2I2"):unpack(bytes, at + 8)
    local begin = ("<I4"):unpack(bytes, at + 42)
    local name = bytes:sub(at + 46, at + 45 + n_name)
    if flags & 1 ~= 0 then return nil, name .. " is encrypted" end
    names[#names + 1] = name
    entries[name] = {method = method, crc = crc, packed = packed, size = size, at = begin + 1}
    at = at + 46 + n_name + n_extra + n_comment
  end
  return entries, names
end

-- The bytes of an entry; or nil and why.
local function unpacked(bytes, e)
  if e.at + 29 > #bytes or ("<I4"):unpack(bytes, e.at) ~= LOCAL then
    return nil, "it is not there"
  end
  local n_name, n_extra = ("<I2I2"):unpack(bytes, e.at + 26)
  local first = e.at + 30 + n_name + n_extra
  local raw = bytes:sub(first, first + e.packed - 1)
  if #raw < e.packed then return nil, "it is cut" end
  if e.method == DEFLATED and e.size <= MOST * (e.packed + 1) then
    local why
    raw, why = core._inflate(raw, e.size)
    if not raw then return nil, why end
  elseif e.method ~= STORED then
    return nil, ("it is packed in a way that is not read (%d)"):format(e.method)
  end
  if #raw ~= e.size or core._crc32(raw) ~= e.crc then return nil, "its checksum is wrong" end
  return raw
end

-- ---- files ----

local function read_all(path)
  local file <close>, why = io.open(path, "rb")
  if not file then return nil, why end
  local bytes = file:read "a"
  if not bytes then return nil, path .. ": cannot be read" end
  return bytes
end

--- read_npy(path) -> a tensor, or nil and why not.
function npy.read_npy(path)
  local bytes, why = read_all(path)
  if not bytes then return nil, why end
  local t
  t, why = decode(bytes)
  if not t then return nil, ("%s: %s"):format(path, why) end
  return t
end

--- write_npy(path, t) -> true, or nil and why not. bfloat16 raises: NumPy has none.
function npy.write_npy(path, t)
  return core._write_file("write_npy", path, encode("write_npy", t))
end

--- read_npz(path) -> {name = tensor}, or nil and why not.
function npy.read_npz(path)
  local bytes, why = read_all(path)
  if not bytes then return nil, why end
  local entries, names = read_directory(bytes)
  if not entries then return nil, ("%s: %s"):format(path, names) end
  local found = {}
  for _, name in ipairs(names) do
    local raw, t
    raw, why = unpacked(bytes, entries[name])
    if raw then t, why = decode(raw) end
    if not t then return nil, ("%s: %s: %s"):format(path, name, why) end
    found[name:gsub("%.npy$", "")] = t
  end
  return found
end

--- write_npz(path, {name = tensor}) -> true, or nil and why not; not compressed.
function npy.write_npz(path, tensors)
  if type(tensors) ~= "table" then
    caller.raise("write_npz: wanted a table of tensors, got %s", type(tensors))
  end
  local names = {}
  for name in pairs(tensors) do
    if type(name) ~= "string" then
      caller.raise("write_npz: a name is a %s, wanted a string", type(name))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  local parts, directory, at = {}, {}, 0
  for _, name in ipairs(names) do
    local bytes, file = encode("write_npz: " .. name, tensors[name]), name .. ".npy"
    -- version 2.0, no flags, stored, 1980-01-01
    local common = ("<I2I2I2I2I2I4I4I4I2I2"):pack(20, 0, STORED, 0, 33, core._crc32(bytes), #bytes,
      #bytes, #file, 0)
    parts[#parts + 1] = ("<I4"):pack(LOCAL) .. common .. file
    parts[#parts + 1] = bytes
    directory[#directory + 1] = ("<I4I2"):pack(CENTRAL, 20) .. common
      .. ("<I2I2I2I4I4"):pack(0, 0, 0, 0, at) .. file
    at = at + 30 + #file + #bytes
  end
  local list = table.concat(directory)
  if at + #list >= 0xffffffff or #names >= 0xffff then
    caller.raise("write_npz: more than 4 GiB, which the archive cannot hold")
  end
  parts[#parts + 1] = list
  parts[#parts + 1] = ("<I4I2I2I2I2I4I4I2"):pack(LAST, 0, 0, #names, #names, #list, at, 0)
  return core._write_file("write_npz", path, table.concat(parts))
end

return npy
