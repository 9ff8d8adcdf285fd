-- The calls of op_cases.lua's rows on this project's side: inputs of the kinds that its letters
-- stand for, and a function that calls the op as a program does.
local dm = require "demilune"
local F = dm.nn.functional

local op_calls = {}

-- ---------------------------------------------------------------------------
-- Inputs
-- ---------------------------------------------------------------------------
local function uniform(low, high)
  return function(size, dtype)
    if dtype == "bool" then return dm.rand(size):gt(0.5) end
    if dtype == "int64" then return dm.randint(math.max(1, math.floor(low)), 9, size) end
    return dm.rand(size):mul(high - low):add(low):to(dtype)
  end
end

-- A float32 matrix (or matrices), with this much on its diagonal for each of its rows.
local function with_diagonal(x, dtype)
  return (x + dm.eye(x.shape[#x.shape]) * x.shape[#x.shape]):to(dtype)
end

local makers = {
  p = uniform(0.1, 2), u = uniform(0.05, 0.95), s = uniform(-0.95, 0.95), o = uniform(1.1, 3),
  m = function(size) return dm.rand(size):gt(0.5) end,
  l = function(size, _, below) return dm.randint(1, below, size) end,
  c = function(size) return dm.randint(1, 3, size) end,
  w = function(size) return dm.rand(size) end,
  r = function(size, dtype) return dm.softmax(dm.randn(size), -1):to(dtype) end,
  h = function(size, dtype) return dm.log_softmax(dm.randn(size), -1):to(dtype) end,
  t = function(size, dtype) return (dm.sort(dm.randn(size), -1)):to(dtype) end,
  g = function(size, dtype) return (dm.rand(size):gt(0.5):to "float32" * 2 - 1):to(dtype) end,
  d = function(size, dtype)
    local x = dm.rand(size)
    return with_diagonal((x + x:transpose(-1, -2)) / 2, dtype)
  end,
  e = function(size, dtype) return with_diagonal(dm.rand(size):tril(), dtype) end,
  z = function(size, dtype) return dm.complex(dm.randn(size), dm.randn(size)):to(dtype) end,
}
function makers.n(size, dtype)
  if dtype == "bool" then return makers.m(size) end
  if dtype == "int64" then return dm.randint(-9, 9, size) end
  return dm.randn(size):to(dtype)
end

local function numbers(text)
  local list = {}
  for word in text:gmatch "%d+" do list[#list + 1] = tonumber(word) end
  return list
end

-- A tensor by its word; `broadcast` is "row" where its first dimension is 1, "expanded" where
-- it then has the size of the others again.
local function make(word, dtype, layout, broadcast)
  local kind, below, shape = word:match "^(%l)(%d*)!?:(.*)$"
  local size = numbers(shape)
  local function of(s) return makers[kind](s, dtype, tonumber(below)) end
  if layout == "transposed" and #size == 2 then return of{size[2], size[1]}:t() end
  if not broadcast then return of(size) end
  local rows = size[1]
  size[1] = 1
  local x = of(size)
  if broadcast == "row" then return x end
  size[1] = rows
  return x:expand(size)
end

local kept, kept_elements = {}, 0

-- The tensor of a word, kept from request to request while they are few.
local function input(word, dtype, layout, broadcast)
  local key = table.concat({word, dtype, layout, broadcast or ""}, " ")
  if not kept[key] then
    if kept_elements > 1 << 28 then kept, kept_elements = {}, 0 end
    kept[key] = make(word, dtype, layout, broadcast)
    kept_elements = kept_elements + kept[key]:numel()
  end
  return kept[key]
end

-- Inputs, and by name those that an op takes so: "weight@n:8".
function op_calls.inputs(text, dtype, layout)
  local list, named, words = {}, {}, {}
  for word in text:gmatch "[^;]+" do
    if word ~= "-" then words[#words + 1] = word end
  end
  for i, word in ipairs(words) do
    local name, rest = word:match "^([%w_]+)@(.*)$"
    local broadcast = layout == "broadcast" and (#words == 1 and "expanded" or i == 2 and "row")
    local x = input(rest or word, dtype, layout, broadcast or nil)
    local item = {x = x, fixed = word:find("!", 1, true) or not x.dtype:find "float"}
    list[#list + 1] = item
    if name then named[name] = item end
  end
  return list, named
end

-- ---------------------------------------------------------------------------
-- Calls
-- ---------------------------------------------------------------------------
-- An option as it stands in a program: -1, {2, 3}, true or "mean"; T is the dtype.
local function literal(text, dtype)
  if text == "T" then return ("%q"):format(dtype) end
  if text:find(",", 1, true) then return "{" .. text .. "}" end
  if tonumber(text) or text == "true" or text == "false" then return text end
  return ("%q"):format(text)
end

local function find(name)
  for _, module in ipairs{"special", "linalg", "fft"} do
    local rest = name:match("^" .. module .. "_(.*)$")
    if rest and dm[module][rest] then return dm[module][rest] end
  end
  return dm[name] or F[name] or dm.zeros(1)[name] or error("no such op")
end

-- A function that calls the op as a program does, f(x1, x2, -1, {dim = 1}).
function op_calls.call(name, form, items, named, options, dtype, of)
  local names, values, given, keys = {}, {}, {}, {}
  for i, item in ipairs(items) do
    names[i], values[i] = "x" .. i, of(item)
    local key
    for k, v in pairs(named) do key = v == item and k or key end
    if key then keys[#keys + 1] = key .. " = x" .. i else given[#given + 1] = "x" .. i end
  end
  if form == "list" then given = {"{" .. table.concat(given, ", ") .. "}"} end
  local at = tonumber(form:match "^at(%d)$") or #given
  for option in options:gmatch "[^&]+" do
    local key, text = option:match "^([%w_]*):(.*)$"
    if key == "" then
      at = at + 1
      table.insert(given, at, literal(text, dtype))
    elseif key then
      keys[#keys + 1] = key .. " = " .. literal(text, dtype)
    end
  end
  if #keys > 0 then given[#given + 1] = "{" .. table.concat(keys, ", ") .. "}" end
  local code = ("local f%s = ... return function() return f(%s) end"):format(
    (", "):rep(#names > 0 and 1 or 0) .. table.concat(names, ", "), table.concat(given, ", "))
  return assert(load(code, "=call"))(find(name), table.unpack(values)), values
end

return op_calls
