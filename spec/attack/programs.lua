-- Writes random hostile programs: programs.text(seed, index) is a list of statements, each a line
-- of Lua that spec/attack/values.lua gives its names. The same numbers give the same program.
local dm = require "demilune"
local values = require "spec.attack.values"

local programs = {}

local random = math.random
local function one_of(list) return list[random(#list)] end
local function chance(n) return random(n) == 1 end

local function keys_of(t)
  local list = {}
  for name in pairs(t) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- ---- values, as text ----

local DTYPES = {"float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8",
  "uint8", "bool"}
local SHAPES = {"{}", "{1}", "{3}", "{0}", "{2, 3}", "{3, 3}", "{0, 3}", "{2, 0}", "{1, 1}",
  "{2, 3, 4}", "{2, 1, 3}", "{1, 2, 4, 4}", "{2, 2, 3, 3}", "{1, 2, 2, 3, 3}", "{4, 3}", "{5, 5}"}
-- Shapes without elements and with sizes of which products and sums pass 64 bits. pdist takes the
-- last for 126 pairs.
local VAST = {"{1 << 33, 0}", "{0, 1 << 32}", "{(1 << 32) + 1, 0}", "{0, 1 << 57}", "{1 << 58, 0}",
  "{0, 1, (1 << 20) + 4095, (1 << 20) + 4095}", "{0, 2, 1 << 28, 1 << 28}", "{0, 1 << 57, 1}",
  "{0, 1 << 19, 1 << 19, 1 << 19}", "{0, 1, 1 << 19, 1 << 19, 1 << 19}", "{1 << 31, 0, 1 << 26}",
  "{163132188516780909, 0}"}
local NUMBERS = {"0", "1", "2", "3", "-1", "-2", "5", "0.5", "-1.5", "0/0", "1/0", "-1/0", "1e300",
  "1 << 31", "(1 << 31) - 1", "-(1 << 31)", "1 << 62", "math.maxinteger", "math.mininteger", "2.0",
  "1e18", "1 << 40", "65536"}
local STRINGS = {'""', '"float32"', '"int64"', '"bool"', '"cpu"', '"cuda"', '"mean"', '"sum"',
  '"none"', '"same"', '"a\\0b"', '("x"):rep(1 << 16)', '"%s%n%d"', '"..."', '"newaxis"',
  '"ij,jk->ik"', '"\\xff\\xfe"', '"reflect"', '"file"', '"floor"', '"1"', '"weight"', '"data"'}
local NAMES = {"dim", "keepdim", "dtype", "device", "requires_grad", "reduction", "weight", "out",
  "input", "other", "size", "n", "shape", "grad", "data", "lr", "p", "fn", "gradient",
  "retain_graph", "create_graph"}
local FN, M, NEW, KINDS = keys_of(values.FN), keys_of(values.M), keys_of(values.NEW),
  keys_of(values.KINDS)
local n_values = 4

local function variable() return ("v[%d]"):format(random(n_values)) end

local function new_tensor()
  local dtype = chance(3) and one_of(DTYPES) or one_of{"float32", "float32", "float64", "int64"}
  if chance(16) then return ('T("%s", %s, "plain")'):format(dtype, one_of(VAST)) end
  local kind = chance(2) and "leaf" or one_of(KINDS)
  return ('T("%s", %s, "%s")'):format(dtype, one_of(SHAPES), kind)
end

local function tensor() return chance(2) and variable() or new_tensor() end

local value

local function list_of(draw)
  local parts = {}
  for i = 1, random(0, 4) do parts[i] = draw() end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function named(names)
  local parts = {}
  for i = 1, random(1, 2) do parts[i] = ("['%s'] = %s"):format(one_of(names), value()) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

local function small() return tostring(random(-1, 4)) end
local function number() return one_of(NUMBERS) end

local depth = 0
local DRAWS = {tensor, tensor, tensor, variable, variable, small, small, small, number, number,
  function() return one_of(STRINGS) end,
  function() return one_of{"true", "false", "nil"} end,
  function() return "FN." .. one_of(FN) end,
  function() return "M." .. one_of(M) .. "()" end,
  function() return "NEW." .. one_of(NEW) .. "()" end,
  function() return list_of(value) end,
  function() return list_of(tensor) end,
  function() return list_of(small) end,
  function() return list_of(number) end,
  function() return named(NAMES) end,
  function() return "coroutine.create(FN." .. one_of(FN) .. ")" end}
function value()
  if depth > 2 then return DRAWS[random(12)]() end
  depth = depth + 1
  local text = one_of(DRAWS)()
  depth = depth - 1
  return text
end

local function values_up_to(n)
  local parts = {}
  for i = 1, random(0, n) do parts[i] = value() end
  return table.concat(parts, ", ")
end

-- ---- the library's names ----

local OPS, METHODS, PATHS = {}, {}, {}
for _, row in ipairs(dm.ops()) do
  if not row.hidden then OPS[#OPS + 1] = row end
end
for name in pairs(dm.methods) do
  if name:match "^[%a_][%w_]*$" and name ~= "repeat" then METHODS[#METHODS + 1] = name end
end
table.sort(METHODS)

local MODULES = {"nn", "nn.init", "nn.utils", "nn.utils.rnn", "nn.utils.prune", "optim",
  "nn.utils.parametrize", "nn.utils.parametrizations", "optim.lr_scheduler", "optim.swa_utils",
  "amp", "autograd", "data", "transforms", "transforms.functional", "metrics", "text", "profiler",
  "linalg", "fft", "special", "signal", "distributions", "func", "vision", "nn.functional", "cuda",
  "datasets"}
local function add_paths(prefix, module)
  for name in pairs(module) do
    local plain = type(name) == "string" and name:match "^[%a][%w_]*$" and name ~= "repeat"
    local v = plain and module[name]
    local meta = type(v) == "table" and getmetatable(v)
    if plain and (type(v) == "function" or type(meta) == "table" and meta.__call) then
      PATHS[#PATHS + 1] = prefix .. "." .. name
    end
  end
end
add_paths("dm", dm)
for _, name in ipairs{"Trainer", "save", "load", "meshgrid", "logspace", "tril_indices", "vmap",
  "make_grid", "save_image", "decode_image", "set_printoptions", "memory_summary"} do
  PATHS[#PATHS + 1] = "dm." .. name
end
for _, path in ipairs(MODULES) do
  local module = dm
  for part in path:gmatch "[%w_]+" do module = module[part] end
  add_paths("dm." .. path, module)
end
for _, name in ipairs{"amp.custom_fwd", "amp.report", "amp.initialize", "amp.scale_loss",
  "data.TokenFile", "data.read_csv", "optim.LBFGS", "optim.Muon", "transforms.RandAugment",
  "transforms.MixUp", "text.Windows"} do
  PATHS[#PATHS + 1] = "dm." .. name
end
table.sort(PATHS)

-- ---- statements ----

-- A value of the kind that an option wants; once in a while any.
local function for_attr(attr)
  if chance(5) then return value() end
  local kind = attr.kind:gsub("%?", "")
  if kind == "bool" then return one_of{"true", "false"} end
  if kind == "dtype" then return '"' .. one_of(DTYPES) .. '"' end
  if kind == "device" then return '"cpu"' end
  if kind == "str" then return one_of(STRINGS) end
  if kind == "number" or kind == "int" or kind == "dim" or kind == "pos" then
    return chance(4) and number() or small()
  end
  if kind == "enum" then
    local choices = {}
    for word in attr.choices:gmatch "[^|]+" do choices[#choices + 1] = ('"%s"'):format(word) end
    return one_of(choices)
  end
  return list_of(chance(4) and number or small)
end

-- The arguments of an op, nearly right.
local function arguments_of(row)
  local parts, named_parts = {}, {}
  if row.tensors[1] and row.tensors[1]:find("...", 1, true) then
    parts[1] = list_of(tensor)
  else
    for i = 1, #row.tensors do parts[i] = chance(8) and value() or tensor() end
  end
  for _, attr in ipairs(row.attrs) do
    if attr.required and chance(2) then
      parts[#parts + 1] = for_attr(attr)
    elseif attr.required or chance(3) then
      named_parts[#named_parts + 1] = ("['%s'] = %s"):format(attr.name, for_attr(attr))
    end
  end
  if #named_parts > 0 then parts[#parts + 1] = "{" .. table.concat(named_parts, ", ") .. "}" end
  return table.concat(parts, ", ")
end

local function index_key()
  return one_of{small, number, tensor, function() return list_of(value) end,
    function() return list_of(small) end, function() return '{"...", ' .. tensor() .. "}" end,
    function() return "{{}, " .. value() .. "}" end, value}()
end

local function op_call()
  local row = one_of(OPS)
  local name = row.name
  if row.only_inplace or row.inplace and chance(3) then name = row.name .. "_" end
  return ("%s = dm['%s'](%s)"):format(variable(), name, arguments_of(row))
end

local BINARY = {"+", "-", "*", "/", "//", "%", "^", "..", "==", "<", "<=", "&", "~"}

local simple
local STATEMENTS = {
  op_call, op_call, op_call, op_call,
  function() return ("%s = %s(%s)"):format(variable(), one_of(PATHS), values_up_to(4)) end,
  function() return ("%s = %s(%s)"):format(variable(), one_of(PATHS), values_up_to(4)) end,
  function()
    return ("%s = %s:%s(%s)"):format(variable(), variable(), one_of(METHODS), values_up_to(3))
  end,
  function()
    local x = tensor()
    return ("%s = dm.methods.%s(%s)"):format(variable(), one_of(METHODS),
      table.concat({x, value(), chance(2) and value() or nil}, ", "))
  end,
  function() return ("%s = O(%s, %d, %s)"):format(variable(), value(), random(999), value()) end,
  function() return ("%s = O(%s, %d)"):format(variable(), variable(), random(999)) end,
  function() return ("%s = O(NEW.%s(), %d, %s, %s)"):format(variable(), one_of(NEW), random(999),
    value(), value()) end,
  function() return ("%s = %s %s %s"):format(variable(), value(), one_of(BINARY), variable()) end,
  function() return ("%s = %s[%s]"):format(variable(), variable(), index_key()) end,
  function() return ("%s[%s] = %s"):format(variable(), index_key(), value()) end,
  function()
    return ("%s.%s = %s"):format(variable(), one_of{"data", "data", "grad", "requires_grad",
      "weight", "shape", "training"}, value())
  end,
  function() return ("%s:backward(%s)"):format(variable(), chance(2) and value() or "") end,
  function() return ("%s:sum():backward()"):format(variable()) end,
  function() return ("%s:sum():backward{retain_graph = true, create_graph = true}")
    :format(variable()) end,
  function() return ("%s = dm.autograd.grad(%s, %s, %s)"):format(variable(), value(), value(),
    value()) end,
  function() return ("%s:register_hook(FN.%s)"):format(variable(), one_of(FN)) end,
  function() return ("%s = NEW.%s()"):format(variable(), one_of(NEW)) end,
  function() return ("%s = %s(%s)"):format(variable(), variable(), values_up_to(2)) end,
  function() return ("%s:%s(%s)"):format(variable(), one_of{"step", "close", "iter",
    "load_state_dict", "state_dict", "parameters", "to", "train", "scale", "update", "free", "len",
    "zero_grad", "unscale_", "apply", "get", "children", "register_forward_hook", "keep"},
    values_up_to(2)) end,
  function() return ("tostring(%s)"):format(value()) end,
  function() return ("local n = 0 for _, x in %s(%s) do %s = x; n = n + 1 "
    .. "if n > 9 then break end end"):format(one_of{"pairs", "ipairs"}, value(), variable()) end,
  function() return ("local x <close> = %s; %s"):format(value(), simple()) end,
  function() return ("%s = dm.tensor(%s, %s)"):format(variable(), value(), value()) end,
  function()
    return ("%s = dm.autograd.Function{name = %s, forward = function(ctx, ...) %s; "
      .. "ctx:save_for_backward(...) return FN.%s(...) end, backward = function(ctx, ...) %s; "
      .. "return FN.%s(ctx:saved_tensors()) end}(%s, %s)"):format(variable(), one_of(STRINGS),
      simple(), one_of(FN), simple(), one_of(FN), tensor(), value())
  end,
  function() return ("%s = dm.nn.utils.checkpoint(FN.%s, %s)"):format(variable(), one_of(FN),
    value()) end,
  function() return ("dm.%s(FN.%s, %s)"):format(one_of{"no_grad", "scope", "inference_mode",
    "enable_grad"}, one_of(FN), value()) end,
  function() return ("%s = dm.func.%s(FN.%s)(%s)"):format(variable(), one_of{"grad", "vmap",
    "jacrev", "jacfwd", "hessian", "grad_and_value"}, one_of(FN), value()) end,
  function() return ("A(%d, function() %s end); %s"):format(random(0, 900), simple(), simple()) end,
  function() return ("A(%d, FN.%s); %s"):format(random(0, 900), one_of{"free", "exchange", "change",
    "close"}, simple()) end,
  function() return ("dm.save('file', %s); %s = dm.load('file')"):format(value(), variable()) end,
  function() return ("%s = dm.json_decode(dm.json_encode(%s))"):format(variable(), value()) end,
  function() return ("dm.amp.autocast({dtype = 'bfloat16'}, function() %s; %s end)")
    :format(simple(), simple()) end,
  function() return "collectgarbage()" end,
  function() return ("pcall(next(getmetatable(%s)), %s)"):format(value(), value()) end,
  function() return ("%s.data = T(%q, %s, 'plain')"):format(variable(), one_of(DTYPES),
    one_of(SHAPES)) end,
  function()
    local x = variable()
    return ("%s = dm.%s(%s, %s)"):format(x, one_of(OPS).name, x, x)
  end,
  function()
    return ("%s:%s():%s_(%s)"):format(variable(), one_of{"t", "detach", "unsqueeze", "view_as",
      "flatten", "squeeze"}, one_of{"mul", "copy", "fill", "add", "exp", "zero", "sigmoid"},
      value())
  end,
}

local nested = 0
-- A statement for the inside of another one.
function simple()
  if nested > 1 then return op_call() end
  nested = nested + 1
  local text = one_of(STATEMENTS)()
  nested = nested - 1
  return text:find "^local" and "do " .. text .. " end" or text
end

--- The statements of a program.
function programs.text(seed, index)
  math.randomseed(seed, index)
  local list = {}
  for i = 1, n_values do
    list[i] = ("S(function() v[%d] = %s end)"):format(i, i < 3 and new_tensor() or value())
  end
  for _ = 1, random(2, 9) do
    list[#list + 1] = ("%s(function() %s end)"):format(chance(8) and "C" or "S",
      one_of(STATEMENTS)())
  end
  return list
end

return programs
