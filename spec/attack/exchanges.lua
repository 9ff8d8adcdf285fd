-- Writes random programs that exchange the data of operands between a forward and a backward pass:
-- a call of spec/samples.lua, `x.data = other` for some of its tensors, then backward.
-- exchanges.text(seed, index) is a list of statements for spec/attack/values.lua.
local dm = require "demilune"
local case = require "spec.case"
local samples = require "spec.samples"
local values = require "spec.attack.values"

local exchanges = {}

local random = math.random
local function one_of(list) return list[random(#list)] end

local FLAGS = {"grad", "once", "random", "dense", "pointwise", "plain"}
local names = {}
for name in pairs(samples) do
  if name ~= "cast" then names[#names + 1] = name end
end
table.sort(names)

-- The tensors in v[2], v[3], ... in a fixed order.
local function collect(v)
  if dm.is_tensor(v) then values.v[#values.v + 1] = v end
  if type(v) ~= "table" then return end
  local keys = {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do collect(v[key]) end
end

-- Calls that sample: v[1] is the sum of its outputs' squares, v[2] and on are its operands. In half
-- of the programs an operand is computed, and in some the call runs under autocast.
function values.X(name, n, is_inner, is_cast)
  local is_function = type(rawget(dm, name) or dm.nn.functional[name]) == "function"
  local method = not is_function and not name:match "_$" and dm.methods[name]
  local args = case.decode(dm, samples[name][n], {grad = true})
  for _, flag in ipairs(FLAGS) do args[flag] = nil end
  values.v[1] = false
  collect(args)
  if is_inner and dm.is_tensor(args[1]) and args[1]:is_floating_point() then
    args[1] = args[1] * 1
    values.v[#values.v + 1] = args[1]
  end
  local function call()
    local total
    for _, y in ipairs(case.call(dm, method and "x:" .. name or name, args)) do
      if dm.is_tensor(y) and y.requires_grad then
        total = total and total + (y * y):sum() or (y * y):sum()
        values.v[#values.v + 1] = y
      end
    end
    values.v[1] = total
  end
  if is_cast then return dm.amp.autocast({dtype = "bfloat16"}, call) end
  call()
end

local DTYPES = {"float64", "float64", "float64", "float32", "float16", "bfloat16", "int64", "int32",
  "uint8", "bool"}
local KINDS = {"plain", "plain", "turned", "wide", "part", "leaf", "inner", "freed", "scoped",
  "nan"}

local function other()
  local sizes = {}
  for i = 1, random(0, 5) do sizes[i] = random(6) == 1 and 0 or random(6) end
  return ('T("%s", {%s}, "%s")'):format(one_of(DTYPES), table.concat(sizes, ", "), one_of(KINDS))
end

local function exchange()
  local x = ("v[%d]"):format(random(2, 7))
  return one_of{
    function() return ("%s.data = %s"):format(x, other()) end,
    function() return ("%s.data = %s"):format(x, other()) end,
    function() return ("%s.data = dm.zeros(%s.shape)"):format(x, x) end,
    function() return ("%s.data = %s.data:flatten()"):format(x, x) end,
    function() return ("%s.data = %s.data:narrow(-1, 1, 1)"):format(x, x) end,
    function() return ("%s.data = v[%d].data"):format(x, random(2, 7)) end,
    function() return ("%s.grad = %s"):format(x, other()) end,
    function() return ("%s:free()"):format(x) end,
    function() return ("%s:register_hook(FN.%s)"):format(x, one_of{"exchange", "free", "other",
      "change", "collect", "backward"}) end,
  }()
end

--- The statements of a program.
function exchanges.text(seed, index)
  math.randomseed(seed, index)
  local name = names[(index - 1) % #names + 1]
  local list = {("S(function() X('%s', %d, %s, %s) end)"):format(name, random(#samples[name]),
    random(2) == 1, random(4) == 1)}
  for _ = 1, random(3) do list[#list + 1] = ("S(function() %s end)"):format(exchange()) end
  list[#list + 1] = ("S(function() v[1]:backward{retain_graph = true, create_graph = %s} end)")
    :format(random(3) == 1)
  list[#list + 1] = ("S(function() %s end)"):format(exchange())
  list[#list + 1] = "S(function() v[1]:backward() end)"
  list[#list + 1] = "S(function() for i = 2, 6 do v[i].grad:sum():backward() end end)"
  return list
end

return exchanges
