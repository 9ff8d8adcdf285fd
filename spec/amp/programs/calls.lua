-- The calls that random programs are made of: those of spec/samples.lua that take floats, in place
-- too, with the float tensors among their arguments left open.
--
-- A call:
--   name        the op's name in the lists of autocast
--   args        the arguments, where {slot = i} stands for the i-th float tensor
--   slots       of each such tensor the literal of spec/case.lua that the sample has
--   fn, text    the function and how it is written; a method's text begins with a colon
--   in_place    it changes a clone of its first tensor, which autocast never converts
--   packs       fn returns one table of tensors
--   takes_dtype it has an option dtype
--   once        its second derivative is not defined
--   random      it draws numbers

local dm = require "demilune"
local case = require "spec.case"
local device = require "spec.device"
local lists = require "spec.amp.lists"
local samples = require "spec.samples"

local calls = {by_name = {}, names = {}}

local TESTING = {grad = true, once = true, random = true, dense = true, plain = true,
  pointwise = true}
-- Results that are memory which nobody wrote, and add_layer_norm, which no list of PyTorch names:
-- its norm has a region's 16 bits.
local LEFT_OUT = {empty_like = true, resize_ = true, resize_as_ = true, ["x:new_empty"] = true,
  add_layer_norm = true}

local TAKES_DTYPE = {}
for name in lists.cuda.fp32_set_opt_dtype:gmatch "%S+" do TAKES_DTYPE[name] = true end

local NO_DOUBLE, OPERANDS = {}, {} -- OPERANDS: of an op by name, the position of each operand
for _, row in ipairs(dm.ops()) do
  NO_DOUBLE[row.name] = row.no_double or nil
  OPERANDS[row.name] = {}
  for i, name in ipairs(row.tensors) do OPERANDS[row.name][name:gsub("?$", "")] = i end
end

-- The keys of a table in a fixed order, so that slots have the same numbers in each process:
-- numbers, operands by position (the engine casts them in this order, too), other names.
local function sorted_keys(t, operands)
  local keys, position = {}, operands or {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then return type(a) == "number" end
    local p, q = position[a] or math.huge, position[b] or math.huge
    if p ~= q then return p < q end
    return a < b
  end)
  return keys
end

local function open_slots(v, slots, operands, is_top)
  if type(v) ~= "table" then return v end
  if case.is_literal(v) then
    if v.t ~= "float64" then return v end
    slots[#slots + 1] = v
    return {slot = #slots}
  end
  local out = {}
  for _, key in ipairs(sorted_keys(v, operands)) do
    if not (is_top and TESTING[key]) then out[key] = open_slots(v[key], slots, operands) end
  end
  return out
end

-- The function of a name of samples.lua, and how it is written.
local function function_of(key)
  local method = key:match "^x:(.+)$" or key:match "_$" and key
  if method then return dm.methods[method], ":" .. method end
  if key == "repeat" then return dm[key], 'dm["repeat"]' end -- a word of Lua
  if dm[key] then return dm[key], "dm." .. key end
  if dm.nn.functional[key] then return dm.nn.functional[key], "dm.nn.functional." .. key end
  return dm.methods[key], ":" .. key
end

local function add(call)
  local list = calls.by_name[call.name]
  if not list then
    list = {}
    calls.by_name[call.name] = list
    calls.names[#calls.names + 1] = call.name
  end
  list[#list + 1] = call
end

local function add_sample(key, sample)
  local slots = {}
  local args = open_slots(sample, slots, OPERANDS[key], true)
  if #slots == 0 then return end
  local name = key == "x:unfold" and key or key:match "^x:(.+)$" or key -- unfold is another op
  local fn, text = function_of(key)
  if fn == nil then return end
  add{name = name, args = args, slots = slots, fn = fn, text = text,
    in_place = key:match "_$" ~= nil, takes_dtype = TAKES_DTYPE[name],
    once = sample.once or NO_DOUBLE[name], random = sample.random}
  local in_place = sample.pointwise and dm.methods[name .. "_"]
  if in_place and type(args[1]) == "table" and args[1].slot then
    add{name = name .. "_", args = args, slots = slots, fn = in_place, text = ":" .. name .. "_",
      in_place = true, once = sample.once}
  end
end

for _, key in ipairs(sorted_keys(samples)) do
  if not LEFT_OUT[key] then
    for _, sample in ipairs(samples[key]) do
      if not sample.plain then add_sample(key, sample) end
    end
  end
end

-- A call of one op on tensors of these shapes, that no sample is: `args` as above.
function calls.of(name, args, ...)
  local slots = {}
  for i, shape in ipairs{...} do
    local d = {}
    for k = 1, case.numel(shape) do d[k] = 0.25 + 0.125 * (k % 8) end
    slots[i] = {t = "float64", s = shape, d = d, g = true}
  end
  local fn, text = function_of(name)
  return {name = name, args = args, slots = slots, fn = fn, text = text}
end

-- A number divided by a tensor is a reciprocal for PyTorch's lists.
add{name = "div", args = {{slot = 1}}, slots = {samples.reciprocal[1][1]}, number_first = true,
  fn = function(x) return 1 / x end, text = "1 /"}

-- ---- running a call ----

local constants = setmetatable({}, {__mode = "k"}) -- the tensors of literals that are no floats

local function filled(v, tensors)
  if type(v) ~= "table" then return v end
  if v.slot then return tensors[v.slot] end
  if case.is_literal(v) then
    constants[v] = constants[v] or case.build(dm, v)
    return constants[v]
  end
  local out = {}
  for key, item in pairs(v) do out[key] = filled(item, tensors) end
  return out
end

local function is_options(v)
  return type(v) == "table" and not v.slot and v[1] == nil and not case.is_literal(v)
    and next(v) ~= nil
end

-- The arguments with an option dtype; without one when dtype is nil.
function calls.with_dtype(args, dtype)
  if not dtype then return args end
  local out = {table.unpack(args)}
  local options = {dtype = dtype}
  if is_options(out[#out]) then
    for key, value in pairs(out[#out]) do options[key] = value end
    options.dtype = dtype
    out[#out] = nil
  end
  out[#out + 1] = options
  return out
end

-- Arguments 2 and 3 of these are statistics that change with each call: they get clones, for a
-- checkpoint calls twice.
local KEEPS_STATISTICS = {batch_norm = true, instance_norm = true}

-- The results of a call on tensors, as a list. dtype: its option dtype, or nil.
function calls.run(call, tensors, dtype)
  local args = filled(calls.with_dtype(call.args, dtype), tensors)
  if call.in_place then args[1] = args[1]:clone() end
  if KEEPS_STATISTICS[call.name] then args[2], args[3] = args[2]:clone(), args[3]:clone() end
  local outs = table.pack(call.fn(table.unpack(args)))
  if device.type == "cuda" then dm.cuda.synchronize() end -- a kernel's fault is raised here
  call.packs = outs.n == 1 and type(outs[1]) == "table"
  return call.packs and outs[1] or outs
end

-- ---- results, and calls inside ----

-- The call on its sample, whatever region is open.
local function try(call, dtype)
  local _ <close> = dm.amp.autocast{device_type = device.type, enabled = false}
  local tensors = {}
  for i, literal in ipairs(call.slots) do
    tensors[i] = case.build(dm, literal):to(dtype):requires_grad_(literal.g)
  end
  return pcall(calls.run, call, tensors)
end

-- The shape of each result that is a float tensor, false for the others. {}: the call fails.
function calls.shapes(call)
  if call.shapes then return call.shapes end
  call.shapes = {}
  local ok, outs = try(call, "float32")
  for i, y in ipairs(ok and outs or {}) do
    local float = dm.is_tensor(y) and y:is_floating_point()
    call.shapes[i] = float and {table.unpack(y.shape)}
  end
  return call.shapes
end

-- The names of the ops that the call makes, itself among them.
function calls.inner(call)
  if call.inner then return call.inner end
  call.inner = {}
  for _, dtype in ipairs{"float32", "bfloat16", "float16"} do
    local profile = dm.profiler.profile()
    profile:start()
    try(call, dtype)
    profile:stop()
    for _, event in ipairs(profile:events()) do call.inner[event.name] = true end
  end
  return call.inner
end

-- ---- calls as text ----

local function written(v, names)
  if type(v) == "string" then return ("%q"):format(v) end
  if type(v) ~= "table" then
    return v == math.huge and "math.huge" or v == -math.huge and "-math.huge" or tostring(v)
  end
  if v.slot then return names[v.slot] end
  if case.is_literal(v) then return calls.tensor_text(v, v.t) end
  local words = {}
  for i, item in ipairs(v) do words[i] = written(item, names) end
  for _, key in ipairs(sorted_keys(v)) do
    if type(key) == "string" then words[#words + 1] = key .. " = " .. written(v[key], names) end
  end
  return "{" .. table.concat(words, ", ") .. "}"
end
calls.written = written

-- A literal as Lua.
function calls.tensor_text(literal, dtype)
  local options = ("{dtype = %q}"):format(dtype)
  if case.numel(literal.s) == 0 then
    return ("dm.zeros({%s}, %s)"):format(table.concat(literal.s, ", "), options)
  end
  local at = 0
  local function level(dim)
    if dim > #literal.s then
      at = at + 1
      local v = literal.d[at]
      return literal.t == "bool" and tostring(v ~= 0) or ("%.9g"):format(v)
    end
    local items = {}
    for i = 1, literal.s[dim] do items[i] = level(dim + 1) end
    return "{" .. table.concat(items, ", ") .. "}"
  end
  return ("dm.tensor(%s, %s)"):format(level(1), options)
end

-- The call as Lua, a list of its results; names: of its tensors.
function calls.text(call, names, dtype)
  local words = {}
  for i, v in ipairs(calls.with_dtype(call.args, dtype)) do words[i] = written(v, names) end
  if KEEPS_STATISTICS[call.name] then
    for i = 2, 3 do words[i] = words[i] .. ":clone()" end
  end
  local text
  if call.number_first then
    text = "1 / " .. words[1]
  elseif call.text:sub(1, 1) == ":" then
    local first = table.remove(words, 1)
    text = first .. (call.in_place and ":clone()" or "") .. call.text
      .. "(" .. table.concat(words, ", ") .. ")"
  else
    text = call.text .. "(" .. table.concat(words, ", ") .. ")"
  end
  return call.packs and text or "{" .. text .. "}"
end

return calls
