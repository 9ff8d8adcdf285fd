-- NumPy's files: .npy holds one array, .npz several under names, as a zip archive.
--
--   local t = assert(dm.data.read_npy("x.npy"))
--   assert(dm.data.write_npz("batch.npz", {x = x, y = y}))
--
-- Numbers stay as they are: what counts positions from 0 there does so here.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"

local npy = {}

local MAGIC = "\x93NUMPY"
local DTYPES, KINDS = {}, {} -- f2 -> "float16", float16 -> "<f2"
for _, row in ipairs(dtypes.rows) do
  if row.npy then
    DTYPES[row.npy] = row.name
    KINDS[row.name] = (row.size == 1 and "|" or "<") .. row.npy
  end
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
  if #shape > core._MAX_DIM then
    return nil, ("its shape has %d dims, %d can be read"):format(#shape, core._MAX_DIM)
  end
  return {dtype = DTYPES[kind], shape = shape, numel = numel, fortran = fortran == "True",
    at = first + n}
end

-- The array that bytes hold; or nil and why.
local function decode(bytes)
  local head, why = read_head(bytes)
  if not head then return nil, why end
  local _ <close> = core.scope()
  local size = dtypes.of[head.dtype].size
  local have = #bytes - head.at + 1
  if have ~= head.numel * size then
    return nil, ("%d bytes of data, its shape wants %d"):format(have, head.numel * size)
  end
  local t = core._from_bytes(bytes, head.dtype, head.at)
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

-- ---- files ----

--- read_npy(path) -> a tensor, or nil and why not.
function npy.read_npy(path)
  local bytes, why = core._read_file("read_npy", path)
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
  local opened, why = core._zip_open(path)
  if not opened then return nil, why end
  local zip <close>, found = opened, {}
  for i, name in ipairs(zip:names()) do
    local bytes, t
    bytes, why = zip:read(i)
    if not bytes then return nil, why end
    t, why = decode(bytes)
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
  local LOCAL, CENTRAL, LAST, STORED = 0x04034b50, 0x02014b50, 0x06054b50, 0
  local parts, directory, at = {}, {}, 0
  for _, name in ipairs(names) do
    local bytes, file = encode("write_npz: " .. name, tensors[name]), name .. ".npy"
    -- version 2.0, names in UTF-8, stored, 1980-01-01
    local common = ("<I2I2I2I2I2I4I4I4I2I2"):pack(20, 1 << 11, STORED, 0, 33, core._crc32(bytes),
      #bytes, #bytes, #file, 0)
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
