-- Files of torch.save: a pickle in which tensors stand as windows on storages, and the bytes of
-- the storages beside it. Since PyTorch 1.6 both are entries of a zip archive, before it one
-- followed the other. The functions that rebuild tensors are the only ones a file may name, and
-- they are these here (torch/_utils.py and torch/serialization.py of PyTorch name them).

local core = require "demilune.core"
local dtypes = require "demilune.dtypes"
local pickle = require "demilune.pickle"

local torch_file = {}

local refuse = pickle.refuse

local MAGIC = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

--- The position behind the first pickle of a file from before 1.6, a number of 10 bytes; nil
--- where the bytes begin otherwise. Since protocol 4 a frame is around it.
function torch_file.after_magic(bytes)
  local at = bytes:match "^\x80[\2\3]()" or bytes:match "^\x80[\4\5]\x95\13\0\0\0\0\0\0\0()"
  return at and bytes:sub(at, at + #MAGIC - 1) == MAGIC and at + #MAGIC or nil
end

-- ---- names ----

local names = {}

-- A storage has C's name of the type, as the method that casts to it mostly does.
local C_NAMES = {uint8 = "byte", int8 = "char", int16 = "short"}
for _, row in ipairs(dtypes.rows) do
  local word = C_NAMES[row.name] or row.method
  if word then
    local name = ("torch.%sStorage"):format(word:gsub("^%l", string.upper):gsub("^Bf", "BF"))
    names[name] = {name = name, dtype = row.name}
  end
  names["torch." .. row.name] = row.name -- in a dict it comes as our name of it
end
-- What PyTorch has beside these can be named, and is refused as a dtype.
local OTHERS = "ComplexFloatStorage ComplexDoubleStorage QInt8Storage QUInt8Storage QInt32Storage "
  .. "uint16 uint32 uint64 complex32 complex64 complex128 float8_e4m3fn float8_e5m2 "
  .. "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
for name in OTHERS:gmatch "%S+" do names["torch." .. name] = {name = "torch." .. name} end
-- The storage of a tensor whose dtype comes later: one of the others.
local UNTYPED = {name = "torch.UntypedStorage"}
names["torch.storage.UntypedStorage"] = UNTYPED

local function whole(n) return math.type(n) == "integer" and n >= 0 end

-- The window on a storage that a tensor is: all in elements, from 0. No product below can grow
-- beyond an integer, whatever the numbers are.
local function window(m, storage, offset, size, stride)
  local t = m:named(storage).tensor
  if not t then refuse "a tensor has no storage" end
  local sizes = table.pack(m:items(size, "the shape of a tensor", 0, core._MAX_DIM))
  local steps = table.pack(m:items(stride, "the strides of a tensor", sizes.n, sizes.n))
  local have = t:size(1)
  if not whole(offset) then refuse("a tensor begins at element %s", tostring(offset)) end
  local last, span, is_empty = offset, 1, false -- last: the last element that is reached
  for d = 1, sizes.n do
    local n, step = sizes[d], steps[d]
    if not whole(n) or not whole(step) then
      refuse("dim %d of a tensor has size %s and stride %s", d - 1, tostring(n), tostring(step))
    end
    if span > (1 << 50) // math.max(n, 1) then refuse "the shape of a tensor is too large" end
    span, is_empty = span * math.max(n, 1), is_empty or n == 0
    if step > 0 and n > 1 then last = last + ((n - 1) > have // step and have or (n - 1) * step) end
  end
  -- where an empty one begins says nothing: a view may begin behind a storage without elements
  if is_empty then return core.empty(sizes, {dtype = t.dtype, device = t.device}) end
  if offset > have then
    refuse("a tensor begins at element %d of a storage of %d", offset, have)
  elseif last >= have then
    refuse("a tensor reaches beyond its storage of %d elements", have)
  end
  return t:as_strided(sizes, steps, {storage_offset = offset})
end

local function call(name, least, most, fn)
  names[name] = {name = name, call = function(m, args)
    return fn(m, m:items(args, "the arguments of " .. name, least, most))
  end}
end

-- A view with negated or conjugated numbers says so in its last argument.
call("torch._utils._rebuild_tensor_v2", 6, 7, function(m, storage, offset, size, stride, _, _, more)
  if more and (type(more) ~= "table" or next(more)) then
    refuse "a tensor is a negated or conjugated view"
  end
  return window(m, storage, offset, size, stride)
end)
call("torch._utils._rebuild_tensor", 4, 4, window)
call("torch._utils._rebuild_tensor_v3", 7, 8, function(m, _, _, _, _, _, _, dtype)
  refuse("a tensor is of %s, a dtype that is not read", m:named(dtype).name or tostring(dtype))
end)
for name, most in pairs{_rebuild_parameter = 3, _rebuild_parameter_with_state = 4} do
  call("torch._utils." .. name, 3, most, function(_, t)
    if not core.is_tensor(t) then refuse "a parameter is no tensor" end
    return t
  end)
end
call("torch.Size", 1, 1, function(m, size)
  m:items(size, "a torch.Size", 0, core._MAX_DIM)
  return size
end)
call("torch.device", 1, 2, function(_, kind, index)
  if type(kind) ~= "string" then refuse "a device has no name" end
  return kind .. (index and ":" .. tostring(index) or "")
end)
call("collections.OrderedDict", 0, 0, function(m) return m:dict() end)
-- the milestones of a MultiStepLR: how often each comes
call("collections.Counter", 0, 1, function(m, counts)
  if counts ~= nil and m.kinds[counts] ~= "dict" then refuse "a Counter is made of no dict" end
  return counts or m:dict()
end)
-- bytes, as protocol 2 has them: text whose characters are below 256
call("_codecs.encode", 2, 2, function(_, text, coding)
  if type(text) ~= "string" or coding ~= "latin1" then
    refuse("text is coded as %s", tostring(coding))
  end
  if not utf8.len(text) or text:find "[\xc4-\xff]" then
    refuse "bytes hold a character above 255"
  end
  return (text:gsub("[\xc2\xc3].", function(c) return string.char(utf8.codepoint(c)) end))
end)

-- bytes as protocol 2 has those without any, and a bytearray, of nothing or of bytes
for name, most in pairs{["__builtin__.bytes"] = 0, ["__builtin__.bytearray"] = 1,
  ["builtins.bytearray"] = 1} do
  call(name, 0, most, function(_, text)
    if type(text or "") ~= "string" then refuse("%s is not made of bytes", name) end
    return text or ""
  end)
end

-- The key, dtype and number of elements of a storage that a pickle names.
local function storage_of(m, id)
  local word, kind, key, _, n, view = m:items(id, "the name of a storage", 5, 6)
  kind = m:named(kind)
  if word ~= "storage" or type(key) ~= "string" or not whole(n) then
    refuse "the name of a storage is not understood"
  end
  if view then refuse "a storage is a part of another; hint: save it by PyTorch 1.6 or later" end
  if not kind.dtype and kind ~= UNTYPED then
    refuse("a tensor has a %s, a dtype that is not read", kind.name or "storage without a type")
  end
  return key, kind.dtype, n
end

-- The machine's persistent: each storage is made once, by make(key, dtype, n) -> tensor (n).
local function reader(make)
  local known = {}
  return function(m, id)
    local key, dtype, n = storage_of(m, id)
    if not dtype then return UNTYPED end
    local storage = known[key]
    if not storage then
      storage = {name = "a storage", tensor = make(key, dtype, n)}
      known[key] = storage
    end
    if storage.tensor.dtype ~= dtype or storage.tensor:size(1) ~= n then
      refuse("storage %q is named in two ways", key)
    end
    return storage
  end
end

-- nil would say that the file cannot be read.
local function some(object)
  if object == nil then refuse "it holds None" end
  return object
end

-- ---- archives ----

--- The number of the entry of a zip archive that holds torch.save's pickle, or nil.
function torch_file.find(entries)
  for i, name in ipairs(entries) do
    if name:find "^[^/]+/data%.pkl$" then return i end
  end
end

local function good(v, why) return v or refuse("%s", why) end

--- read_zip(archive, names of its entries, device) -> the object; or nil and why not.
function torch_file.read_zip(zip, entries, device)
  return pickle.protect(function()
    local main = torch_file.find(entries)
    local folder, at = entries[main]:match "^(.*)data%.pkl$", {}
    for i, name in ipairs(entries) do at[name] = i end
    local order = at[folder .. "byteorder"]
    if order and good(zip:read(order)) ~= "little" then
      refuse "its bytes are in the order of another machine"
    end
    if at[folder .. "constants.pkl"] then
      refuse "it is a program of TorchScript; hint: torch.save(model.state_dict(), path)"
    end
    return some((pickle.load(good(zip:read(main)), 1, {names = names,
      persistent = reader(function(key, dtype, n)
        local i = at[folder .. "data/" .. key]
        if not i then refuse("storage %q is not there", key) end
        if zip:size(i) ~= n * dtypes.of[dtype].size then
          refuse("storage %q has %d bytes, wanted %d of %s", key, zip:size(i), n, dtype)
        end
        return good(zip:tensor(i, dtype)):to(device)
      end)})))
  end)
end

-- ---- files from before archives ----

-- Puts the bytes of the storages into their tensors: a list of keys, then for each the number
-- of elements and these.
local function fill(bytes, at, made)
  local keys
  keys, at = pickle.load(bytes, at, {names = {}})
  for _, key in ipairs(type(keys) == "table" and keys or {}) do
    local _ <close> = core.scope() -- lets go of a copy before the next one
    local t = made[key]
    if not t then refuse "a storage is of no tensor" end
    local n, size = t:size(1), dtypes.of[t.dtype].size
    if #bytes - at + 1 < 8 + n * size then refuse "it is cut short" end
    if ("<i8"):unpack(bytes, at) ~= n then refuse("storage %q has another size", key) end
    t:copy_(core._from_bytes(bytes, t.dtype, at + 8, n))
    at, made[key] = at + 8 + n * size, nil
  end
  if next(made) then refuse("storage %q is not there", (next(made))) end
  if at <= #bytes then refuse "something follows the last storage" end
end

--- read_old(the file's bytes, device) -> the object; or nil and why not.
function torch_file.read_old(bytes, device)
  return pickle.protect(function()
    local left, made = #bytes, {}
    local _, at = pickle.load(bytes, torch_file.after_magic(bytes), {names = {}}) -- the protocol
    local machine, object
    machine, at = pickle.load(bytes, at, {names = {}})
    if type(machine) ~= "table" or machine.little_endian ~= true then
      refuse "its bytes are in the order of another machine"
    end
    object, at = pickle.load(bytes, at, {names = names,
      persistent = reader(function(key, dtype, n)
        local size = dtypes.of[dtype].size
        if n > left // size then refuse("storage %q is larger than the file", key) end
        left = left - n * size
        made[key] = core.empty({n}, {dtype = dtype, device = device})
        return made[key]
      end)})
    fill(bytes, at, made)
    return some(object)
  end)
end

return torch_file
