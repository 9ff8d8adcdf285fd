-- dm.save and dm.load: nested tables of tensors and plain values as one
-- safetensors file. Tensors lie under their dotted path; the tables, with a
-- reference for each tensor, stand as JSON in the metadata, key "demilune":
--   true "text" 12           as they are (text that is no UTF-8: {"b": hex})
--   {"f": "0.5"} {"i": "9007199254740993"}   floats, and integers past 2^53
--   [a, b]                   a table 1..n
--   {"m": {name: value}}     a table with text keys
--   {"k": [key, value, ...]} any other table
--   {"t": "model.0.weight"}  a tensor
-- Loading runs no code.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"

local io_room = {}

local KEY, VERSION = "demilune", 1
local EXACT = 2 ^ 53

-- ---- writing ----

local function number_out(v)
  if math.type(v) == "integer" then
    if v > -EXACT and v < EXACT then return v end
    return {i = ("%d"):format(v)}
  end
  return {f = v ~= v and "nan" or ("%.17g"):format(v)}
end

local function text_out(v)
  if utf8.len(v) and not v:find "\0" then return v end
  return {b = (v:gsub(".", function(c) return ("%02x"):format(c:byte()) end))}
end

local function count(t)
  local n = 0
  for _ in pairs(t) do n = n + 1 end
  return n
end

local encode

local function table_out(out, v, path, open)
  if open[v] then caller.raise("save: %s holds itself", path) end
  open[v] = true
  local n, all_text = count(v), true
  for key in pairs(v) do
    all_text = all_text and type(key) == "string" and utf8.len(key) and not key:find "\0"
  end
  local function below(key)
    return path == "" and tostring(key) or path .. "." .. tostring(key)
  end
  local made = {}
  if n > 0 and n == #v then
    for i, item in ipairs(v) do made[i] = encode(out, item, below(i), open) end
  elseif all_text then
    local inner = {}
    for key, item in pairs(v) do inner[key] = encode(out, item, below(key), open) end
    made.m = n > 0 and inner or nil
    made.e = n == 0 or nil
  else
    local list = {}
    for key, item in pairs(v) do
      list[#list + 1] = encode(out, key, below "key", open)
      list[#list + 1] = encode(out, item, below(key), open)
    end
    made.k = list
  end
  open[v] = nil
  return made
end

function encode(out, v, path, open)
  local kind = type(v)
  if core.is_tensor(v) then
    local name = path
    while out[name] do name = name .. "_" end
    out[name] = v:detach()
    return {t = name}
  elseif kind == "boolean" then return v
  elseif kind == "number" then return number_out(v)
  elseif kind == "string" then return text_out(v)
  elseif kind == "table" then return table_out(out, v, path, open)
  end
  return caller.raise("save: %s is a %s, wanted tensors, numbers, strings, booleans and tables",
    path, kind)
end

-- Writes a table, all or nothing; true, or nil and a message.
function io_room.save(path, value)
  if type(path) ~= "string" or type(value) ~= "table" then
    caller.raise("save: wanted a path and a table, got %s and %s", type(path), type(value))
  end
  local tensors = {}
  local tree = encode(tensors, value, "", {})
  return core.safetensors_write(path, tensors,
    {[KEY] = core.json_encode{version = VERSION, tree = tree}})
end

-- ---- reading ----

local decode

local function tagged(node, tensors)
  if node.t then
    return tensors[node.t] or error("tensor " .. tostring(node.t) .. " is missing", 0)
  elseif node.f then
    local special = {nan = 0 / 0, ["-nan"] = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}
    return special[node.f] or tonumber(node.f) + 0.0
  elseif node.i then
    return math.tointeger(tonumber(node.i)) or error("bad integer", 0)
  elseif node.b then
    return (node.b:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end))
  elseif node.e then
    return {}
  elseif node.m then
    local out = {}
    for key, item in pairs(node.m) do out[key] = decode(item, tensors) end
    return out
  elseif node.k then
    local out = {}
    for i = 1, #node.k, 2 do out[decode(node.k[i], tensors)] = decode(node.k[i + 1], tensors) end
    return out
  end
  error("unknown mark", 0)
end

function decode(node, tensors)
  if type(node) == "number" then return math.tointeger(node) or node end
  if type(node) ~= "table" then return node end
  if #node == 0 then return tagged(node, tensors) end
  local out = {}
  for i, item in ipairs(node) do out[i] = decode(item, tensors) end
  return out
end

-- What dm.save wrote; nil and a message when the file is missing or damaged. A
-- safetensors file of another program gives {name = tensor}.
function io_room.load(path, opts)
  local o = options.read("load", opts, {device = "cpu"})
  if type(path) ~= "string" then caller.raise("load: wanted a path, got %s", type(path)) end
  local file, fault = core.safetensors_read(path)
  if not file then return nil, fault end
  for name, t in pairs(file.tensors) do file.tensors[name] = t:to(o.device) end
  local text = file.metadata[KEY]
  if not text then return file.tensors end
  local ok, value = pcall(function()
    local whole = core.json_decode(text)
    if type(whole) ~= "table" or whole.version ~= VERSION then error("unknown version", 0) end
    return decode(whole.tree, file.tensors)
  end)
  if not ok then return nil, ("%s: damaged metadata: %s"):format(path, value) end
  return value
end

return io_room
