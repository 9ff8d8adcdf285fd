-- dm.save and dm.load: a tree of tensors and plain values as one safetensors
-- file. Tensors are named by their dotted path, so that other programs find them;
-- the shape of the tree and its plain values are JSON in the metadata. Loading
-- builds data and never runs code. dm.load also reads what other programs save: it looks at
-- the first bytes of a file, not at its name.
--
-- JSON of a value:
--   true, "text", 3, 0.5            itself
--   [ ... ], { ... }                a list 1..n, a table with only string keys
--   {"$float": "0x1p+0"}            a float that JSON would not keep: whole, inf, nan
--   {"$int": "9007199254740993"}    an integer that a double does not hold
--   {"$bytes": "ff00"}              a string that is not UTF-8, or holds NUL
--   {"$map": [[key, value], ...]}   any other table
--   {"$tensor": "model.0.weight"}   the tensor of that name

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local npy = require "demilune.data.npy"
local torch_file = require "demilune.torch_file"

local files = {}

local KEY = "demilune" -- of the tree in the metadata
local MAX_DEPTH = 32   -- tables in tables; "$map" takes three of JSON's 100 levels
local EXACT = 2 ^ 53   -- below it every integer is a double

-- ---- writing ----

local function is_text(s) return utf8.len(s) ~= nil and not s:find("\0", 1, true) end

local function hex(s)
  return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function encode_number(v)
  if math.type(v) == "integer" then
    if v > -EXACT and v < EXACT then return v end
    return {["$int"] = ("%d"):format(v)}
  elseif v ~= v then
    return {["$float"] = "nan"}
  elseif v == math.huge or v == -math.huge then
    return {["$float"] = v > 0 and "inf" or "-inf"}
  elseif v == math.floor(v) then -- JSON's 1.0 would come back as 1, and -0.0 as 0
    return {["$float"] = ("%a"):format(v)}
  end
  return v
end

local function encode_scalar(v)
  if type(v) == "string" then return is_text(v) and v or {["$bytes"] = hex(v)} end
  if type(v) == "number" then return encode_number(v) end
  return v -- a boolean
end

local RANK = {number = 1, string = 2, boolean = 3}

-- The keys in one order, so that equal trees make equal files.
local function sorted_keys(t, path)
  local keys = {}
  for key in next, t do
    if not RANK[type(key)] then
      caller.raise("save: %s has a key that is a %s; keys are numbers, strings and booleans", path,
        core.is_tensor(key) and "tensor" or type(key))
    end
    keys[#keys + 1] = key
  end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return RANK[type(a)] < RANK[type(b)] end
    if type(a) == "boolean" then return not a and b end
    return a < b
  end)
  return keys
end

-- "list": keys 1..n; "record": string keys that need no mark; "map": the rest.
-- The empty table is a record.
local function kind_of(keys)
  local is_list, is_record = #keys > 0, true
  for i, key in ipairs(keys) do
    is_list = is_list and math.type(key) == "integer" and key == i
    is_record = is_record and type(key) == "string" and key:sub(1, 1) ~= "$" and is_text(key)
  end
  return is_list and "list" or is_record and "record" or "map"
end

local Writer = {}
Writer.__index = Writer

-- A name for the tensor at this path: text, and of no other tensor.
function Writer:add_tensor(t, path)
  local base = path == "" and "tensor" or is_text(path) and path or hex(path)
  local name, n = base, 1
  while self.tensors[name] or name == "__metadata__" do
    n = n + 1
    name = ("%s#%d"):format(base, n)
  end
  self.tensors[name] = core.is_tensor(t) and t:detach():to "cpu" or t
  return {["$tensor"] = name}
end

function Writer:add_table(t, path, depth)
  local at = path == "" and "the tree" or path
  if self.open[t] then caller.raise("save: %s holds itself", at) end
  if depth > MAX_DEPTH then caller.raise("save: %s lies deeper than %d tables", at, MAX_DEPTH) end
  local meta = getmetatable(t)
  if type(meta) == "table" and type(t.state_dict) == "function" then
    caller.raise("save: %s is a %s, whose fields are not what a file is for; hint: its "
      .. ":state_dict()", at, t.class or meta.__name or "thing with a state")
  end
  self.open[t] = true
  local keys = sorted_keys(t, at)
  local kind, out = kind_of(keys), {}
  for i, key in ipairs(keys) do
    local below = path == "" and tostring(key) or path .. "." .. tostring(key)
    local value = self:add(rawget(t, key), below, depth + 1)
    if kind == "map" then out[i] = {encode_scalar(key), value} else out[key] = value end
  end
  self.open[t] = nil
  return kind == "map" and {["$map"] = out} or out
end

function Writer:add(v, path, depth)
  if core.is_tensor(v) or self.is_leaf and self.is_leaf(v) then return self:add_tensor(v, path) end
  if type(v) == "table" then return self:add_table(v, path, depth) end
  if RANK[type(v)] then return encode_scalar(v) end
  caller.raise("save: %s is a %s; a file holds tensors, numbers, strings, booleans and tables",
    path == "" and "the tree" or path, type(v))
end

-- The tensors of a tree by their names in a file, and the metadata of the file. is_leaf(v), if
-- given, tells what else stands for a tensor.
function files._encode(tree, is_leaf)
  local writer = setmetatable({tensors = {}, open = {}, is_leaf = is_leaf}, Writer)
  local text = core.json_encode{writer:add(tree, "", 0)}
  return writer.tensors, {format = "pt", [KEY] = text}
end

local bind_save = options.signature("save", "path: string, tree: any")

--- save(path, tree) -> true; or nil and a message when the disk or the path is at
--- fault: the file that was there is then as it was. A name that ends in .npy or .npz gives
--- NumPy's file of a tensor, of a table {name = tensor}.
function files.save(...)
  local o = bind_save(...)
  local path, tree = o.path, o.tree
  local write = npy["write_" .. (path:lower():match "%.(np[yz])$" or "")]
  if write then return write(path, tree) end
  local tensors, metadata = files._encode(tree)
  return core.safetensors_write(path, tensors, metadata, true)
end

-- ---- reading ----

local FLOATS = {inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0}

-- Any oddity is the file's fault: thrown as a table, caught in load.
local function broken(text, ...) error({message = text:format(...)}, 0) end

local decode

local MARKS = {
  ["$float"] = function(s)
    local v = FLOATS[s] or tonumber(s)
    return math.type(v) == "float" and v or broken("'%s' is no float", tostring(s))
  end,
  ["$int"] = function(s) return assert(math.tointeger(tonumber(s))) end,
  ["$bytes"] = function(s)
    return (s:gsub("..", function(h) return string.char(tonumber(h, 16)) end))
  end,
  ["$tensor"] = function(name, tensors)
    return tensors[name] or broken("it names a tensor '%s' that is not there", tostring(name))
  end,
  ["$map"] = function(list, tensors)
    local out = {}
    for _, pair in ipairs(list) do out[decode(pair[1], tensors)] = decode(pair[2], tensors) end
    return out
  end,
}

function decode(v, tensors)
  if type(v) ~= "table" then return v end
  local mark, value = next(v)
  if MARKS[mark] then
    local ok, result = pcall(MARKS[mark], value, tensors)
    if ok then return result end
    broken("%s", type(result) == "table" and result.message or "a value is no " .. mark)
  end
  local out = {}
  for key, item in next, v do out[key] = decode(item, tensors) end
  return out
end

-- ---- formats ----

-- Each reader: path, device -> the tree, and its metadata if it has any; or nil and why not.
local readers = {}

-- A function that gives what `read` does, its tensors moved to the device.
local function moved(read)
  return function(path, device)
    local found, why = read(path)
    if not found then return nil, why end
    if core.is_tensor(found) then return found:to(device) end
    for name, t in next, found do found[name] = t:to(device) end
    return found
  end
end
readers.npy, readers.npz = moved(npy.read_npy), moved(npy.read_npz)

-- The tree of a safetensors file from its metadata and {name = tensor}.
function files._decode(path, metadata, tensors)
  local text = metadata[KEY]
  if not text then return tensors, metadata end
  local ok, tree = pcall(decode, core.json_decode(text), tensors)
  if ok and type(tree) == "table" and tree[1] ~= nil then return tree[1] end
  return nil, ("load: '%s': the tree in its metadata is damaged: %s"):format(path,
    not ok and type(tree) == "table" and tree.message or "it is no tree")
end

function readers.safetensors(path, device)
  local file, problem = core.safetensors_read(path)
  if not file then return nil, problem end
  local tensors = file.tensors
  for name, t in next, tensors do tensors[name] = t:to(device) end
  return files._decode(path, file.metadata, tensors)
end

-- What torch_file gives, with the path in front of a message.
local function torch_result(path, object, why)
  if object == nil then return nil, ("load: '%s': %s"):format(path, why) end
  return object
end

function readers.zip(path, device)
  local opened, why = core._zip_open(path)
  if not opened then return nil, why end
  local zip <close>, names = opened, opened:names()
  if torch_file.find(names) then
    return torch_result(path, torch_file.read_zip(zip, names, device))
  end
  for _, name in ipairs(names) do
    if not name:find "%.npy$" then
      return nil, ("load: '%s' is a zip archive of neither torch.save nor NumPy: it holds %s")
        :format(path, name)
    end
  end
  return readers.npz(path, device)
end

function readers.torch(path, device)
  local bytes, why = core._read_file("load", path)
  if not bytes then return nil, why end
  return torch_result(path, torch_file.read_old(bytes, device))
end

-- The first bytes of files, by reader; and files of other programs, which have none.
local FIRST = {["PK\3\4"] = "zip", ["PK\5\6"] = "zip", ["\x93NUMPY"] = "npy"}
local SAVE = "; hint: save it as safetensors there"
local IMAGE = "an image; hint: dm.read_image(path)"
local FOREIGN = {["\x89HDF"] = "an HDF5 file, as Keras writes" .. SAVE,
  GGUF = "a GGUF file, as llama.cpp reads" .. SAVE, ggml = "a GGML file" .. SAVE,
  ["\x80"] = "a Python pickle, but none of torch.save" .. SAVE, PAR1 = "a Parquet file",
  ["\x1f\x8b"] = "a gzip file; hint: gunzip it", ["\x89PNG"] = IMAGE, ["\xff\xd8\xff"] = IMAGE}
-- Those that their names alone tell.
local NAMED = {onnx = "an ONNX model" .. SAVE, tflite = "a TensorFlow Lite model" .. SAVE,
  pb = "a TensorFlow graph" .. SAVE, tar = "a tar archive; hint: unpack it",
  csv = "a table as text; hint: dm.data.read_csv(path)",
  lua = "a Lua program; hint: dofile(path)"}

local function look_up(firsts, head)
  for first, found in next, firsts do
    if head:sub(1, #first) == first then return found end
  end
end

local bind_load = options.signature("load",
  "path: string, map_location?: device, *, device: device = 'cpu'")

-- The reader of a file; nil and why not. A file that is not known is for the reader of
-- safetensors, which says what is wrong.
local function format_of(path)
  local head, why = core._read_file("load", path, 32)
  if not head then return nil, why end
  -- a header of less than 4 GiB, whose length may begin like another format
  local kind = head:find "^....\0\0\0\0{" and "safetensors" or look_up(FIRST, head)
    or torch_file.after_magic(head) and "torch" or head:find '^%s*{%s*["}]' and "index"
  local foreign = not kind
    and (look_up(FOREIGN, head) or NAMED[(path:match "%.(%w+)$" or ""):lower()])
  if foreign then return nil, ("load: '%s' is %s"):format(path, foreign) end
  return kind or "safetensors"
end

-- An index of files: {"weight_map": {name: file}}, the files beside it.
function readers.index(path, device)
  local text, why = core._read_file("load", path)
  if not text then return nil, why end
  local index, found, shards = core.json_decode(text), {}, {}
  local map = type(index) == "table" and index.weight_map
  if type(map) ~= "table" then
    return nil, ("load: '%s' is JSON, but no index of files: it has no weight_map"):format(path)
  end
  for name, file in next, map do
    if type(file) ~= "string" or file:find "[/\\\0]" or file:find "^%.*$" then
      return nil, ("load: '%s': %s lies in %q, which is no file beside it"):format(path, name,
        tostring(file))
    end
    if not shards[file] then
      local shard = (path:match "^.*/" or "") .. file
      local kind
      kind, why = format_of(shard)
      if kind == "index" then why = ("load: '%s' is an index itself"):format(shard) end
      if why then return nil, why end
      shards[file], why = readers[kind](shard, device)
      if type(shards[file]) ~= "table" then return nil, why or shard .. " holds no tensors" end
    end
    found[name] = shards[file][name]
    if not core.is_tensor(found[name]) then
      return nil, ("load: '%s': %s is not in %s"):format(path, name, file)
    end
  end
  return found
end

-- The files in a folder of Hugging Face's, in the order of preference.
local IN_FOLDER = {"model.safetensors.index.json", "model.safetensors",
  "pytorch_model.bin.index.json", "pytorch_model.bin"}

-- The file that a path means: in a folder, the first of those above.
local function file_of(path)
  for _, name in ipairs(IN_FOLDER) do
    local inside = ("%s/%s"):format(path, name)
    if core._read_file("load", inside, 0) then return inside end
  end
  return path
end

--- Reads a file of tensors: of dm.save, the tree that was saved; else by its content
--- * safetensors: {name = tensor}, and its metadata as a second result;
--- * model.safetensors.index.json, or the folder of a model of Hugging Face: {name = tensor} of
---   all files that it names;
--- * torch.save (.pt, .pth, .bin): the object, of tensors, dicts, lists, tuples, numbers and
---   text; tensors that shared a storage share one. Anything else in a file, such as a whole
---   model, is refused by name and never run. None is nil; a list that holds it has its length
---   as n. A torch.dtype comes as its name;
--- * NumPy's .npy: a tensor; .npz: {name = tensor}.
---@overload fun(path: string, map_location?: string): any, any where its tensors go ("cpu")
---@return any tree or nil
---@return any metadata or, after nil, a message
function files.load(...)
  local o = bind_load(...)
  local path = file_of(o.path)
  local kind, why = format_of(path)
  if not kind then return nil, why end
  return readers[kind](path, o.map_location or o.device)
end

return files
