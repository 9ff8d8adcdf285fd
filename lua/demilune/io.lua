-- dm.save and dm.load: a tree of tensors and plain values as one safetensors
-- file. Tensors are named by their dotted path, so that other programs find them;
-- the shape of the tree and its plain values are JSON in the metadata. Loading
-- builds data and never runs code.
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
  self.tensors[name] = t:detach():to "cpu"
  return {["$tensor"] = name}
end

function Writer:add_table(t, path, depth)
  local at = path == "" and "the tree" or path
  if self.open[t] then caller.raise("save: %s holds itself", at) end
  if depth > MAX_DEPTH then caller.raise("save: %s lies deeper than %d tables", at, MAX_DEPTH) end
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
  if core.is_tensor(v) then return self:add_tensor(v, path) end
  if type(v) == "table" then return self:add_table(v, path, depth) end
  if RANK[type(v)] then return encode_scalar(v) end
  caller.raise("save: %s is a %s; a file holds tensors, numbers, strings, booleans and tables",
    path == "" and "the tree" or path, type(v))
end

--- save(path, tree) -> true; or nil and a message when the disk or the path is at
--- fault: the file that was there is then as it was.
function files.save(path, tree)
  if type(path) ~= "string" then
    caller.raise("save: a path expected, got %s; hint: dm.save(path, tree)", type(path))
  end
  local writer = setmetatable({tensors = {}, open = {}}, Writer)
  local text = core.json_encode{writer:add(tree, "", 0)}
  return core.safetensors_write(path, writer.tensors, {format = "pt", [KEY] = text})
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

--- load(path, {device = "cpu"}) -> the tree that was saved, its tensors on that
--- device (map_location: PyTorch's name for it); or nil and a message.
--- A file that another program wrote comes as {name = tensor}, and its metadata
--- as a second result.
function files.load(path, opts)
  if type(path) ~= "string" then caller.raise("load: a path expected, got %s", type(path)) end
  opts = options.read("load", opts, {device = "cpu", map_location = options.NONE})
  local device = opts.map_location or opts.device
  local file, problem = core.safetensors_read(path)
  if not file then return nil, problem end
  local tensors, text = file.tensors, file.metadata[KEY]
  for name, t in next, tensors do tensors[name] = t:to(device) end
  if not text then return tensors, file.metadata end
  local ok, tree = pcall(decode, core.json_decode(text), tensors)
  if ok and type(tree) == "table" and tree[1] ~= nil then return tree[1] end
  return nil, ("load: '%s': the tree in its metadata is damaged: %s"):format(path,
    not ok and type(tree) == "table" and tree.message or "it is no tree")
end

return files
