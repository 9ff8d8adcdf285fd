-- Random programs. A program is {seed, leaves, block, backward}: leaves are {name, literal, dtype,
-- grad}; it is differentiated `backward` times, 0 to 2. A block is a list of nodes:
--   {call, refs, result, seed}        refs: a leaf's name, or {result, i}, its i-th tensor
--   {custom, how, refs, result}       a function of one's own (functions.lua)
--   {region = options, form, body}    a region: form is "close", "call" or "wrap"
--   {scope, body}                     "no_grad", "checkpoint" or "coroutine"
--   {update = leaf}, {clear = true}   a weight changes in place; the shared casts are dropped

local amp = require("demilune").amp
local device = require "spec.device"
local calls = require "spec.amp.programs.calls"
local case = require "spec.case"
local functions = require "spec.amp.programs.functions"
local lists = require "spec.amp.lists"
local rules = require "spec.amp.programs.rules"

local random = math.random
local function chance(p) return random() < p end
local function pick(list) return list[random(#list)] end

local WORDS = {"lower_precision", "lower_precision_fp", "fp32", "float32", "promote", "unlisted",
  "banned"}
-- Ops that a list names are drawn as often as all others together.
local LISTED, ROWS, LISTED_ROWS = {}, {}, {}
do
  local seen = {}
  for _, words in pairs(lists) do
    for _, names in pairs(words) do
      for name in names:gmatch "%S+" do seen[name] = true end
    end
  end
  for _, name in ipairs(calls.names) do
    if seen[name] then LISTED[#LISTED + 1] = name end
  end
  local is_row = amp.op_table "cpu"
  for _, name in ipairs(calls.names) do
    local function region() amp.autocast({policy = {[name] = "fp32"}}, function() end) end
    -- a call in place changes a clone, which is to be the tensor itself
    if is_row[name] and name ~= "clone" and pcall(region) then
      ROWS[#ROWS + 1] = name
      if seen[name] then LISTED_ROWS[#LISTED_ROWS + 1] = name end
    end
  end
end
local TABLES = rules.tables()
local CUSTOM = {"layers", "product", "squares"}

-- ---- regions ----

local function policies()
  local out = {}
  for _ = 1, random(3) do
    local name = pick(chance(0.5) and LISTED_ROWS or ROWS)
    local takes_dtype = calls.by_name[name][1].takes_dtype
    out[name] = takes_dtype and chance(0.3) and "fp32_set_opt_dtype" or pick(WORDS)
  end
  return out
end

local function new_region()
  local o = {}
  if chance(0.5) then o.dtype = pick{"bfloat16", "float16"} end
  if chance(0.2) then o.enabled = chance(0.3) end
  if chance(0.2) then o.cache_enabled = chance(0.5) end
  if chance(0.3) then o.rules = pick{"cuda", "cuda", "cpu"} end
  if chance(0.25) then o.policy = policies() end
  if device.type == "cuda" and chance(0.1) then o.device_type = "cpu" end
  return o
end

-- ---- operands ----

-- m, the maker: {program, tensors = {ref, shape}..., n = count of names}
local function new_leaf(m, literal)
  local r, dtype = random(), "float32"
  if r < 0.1 then dtype = "bfloat16" elseif r < 0.2 then dtype = "float16"
  elseif r < 0.22 then dtype = "float64" end
  local leaves = m.program.leaves
  local name = "x" .. #leaves + 1
  leaves[#leaves + 1] = {name = name, literal = literal, dtype = dtype,
    grad = literal.g == true and chance(0.9) or nil}
  return name
end

local function same_shape(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function emit(m, call, refs)
  m.n = m.n + 1
  local node = {call = call, refs = refs, result = "y" .. m.n, seed = m.n}
  m.block[#m.block + 1] = node
  for i, shape in ipairs(calls.shapes(call)) do
    if shape then m.tensors[#m.tensors + 1] = {ref = {node.result, i}, shape = shape} end
  end
  return {node.result, 1}
end

local function may(m, call) return rules.say(m.now, call, calls.inner) end

-- Calls that join the result of one op to the next, each made once by its shapes.
local joints = {}
local function joint(name, args, key, ...)
  key = name .. key
  joints[key] = joints[key] or calls.of(name, args, ...)
  return joints[key]
end
local function key_of(shape) return "{" .. table.concat(shape, ",") .. "}" end

-- The elements of a tensor in another shape with at most as many, or nil.
local function reshaped(m, from, shape)
  if same_shape(from.shape, shape) then return from.ref end
  local have, want = case.numel(from.shape), case.numel(shape)
  if have < want or want == 0 then return nil end
  local line = joint("reshape", {{slot = 1}, {-1}}, key_of(from.shape), from.shape)
  local part = joint("narrow", {{slot = 1}, 1, 1, want}, have .. ":" .. want, {have})
  local whole = joint("reshape", {{slot = 1}, shape}, want .. key_of(shape), {want})
  if not (may(m, line) and may(m, part) and may(m, whole)) then return nil end
  local ref = emit(m, line, {from.ref})
  if want < have then ref = emit(m, part, {ref}) end
  return emit(m, whole, {ref})
end

-- The sample's values, moved a little by those of ref: they stay where the op is defined.
local function near(m, ref, literal)
  local bend = joint("tanh", {{slot = 1}}, key_of(literal.s), literal.s)
  local add = joint("add", {{slot = 1}, {slot = 2}, {alpha = 0.03125}}, key_of(literal.s),
    literal.s, literal.s)
  if not (may(m, bend) and may(m, add)) then return nil end
  return emit(m, add, {new_leaf(m, literal), emit(m, bend, {ref})})
end

local function from_result(m, literal)
  local from = m.tensors[random(math.max(1, #m.tensors - 8), #m.tensors)]
  local ref = reshaped(m, from, literal.s)
  if ref and chance(0.6) then ref = near(m, ref, literal) end
  return ref
end

local function from_leaf(m, shape)
  local fits = {}
  for _, leaf in ipairs(m.program.leaves) do
    if same_shape(leaf.literal.s, shape) then fits[#fits + 1] = leaf.name end
  end
  return #fits > 0 and pick(fits)
end

local function operand(m, literal)
  local r = random()
  return r < 0.4 and #m.tensors > 0 and from_result(m, literal)
    or r < 0.75 and from_leaf(m, literal.s) or new_leaf(m, literal)
end

-- ---- nodes ----

local function new_call(m)
  local call
  repeat
    call = pick(calls.by_name[pick(chance(0.5) and LISTED or calls.names)])
  until may(m, call) and #calls.shapes(call) > 0 and (m.program.backward < 2 or not call.once)
  local refs = {}
  for i, literal in ipairs(call.slots) do refs[i] = operand(m, literal) end
  emit(m, call, refs)
end

local HOWS = {
  function() return {} end,
  function() return {custom = true} end,
  function() return {cast_inputs = pick{"float32", "float16", "bfloat16"}} end,
  function() return {policy = pick{"lower_precision", "fp32", "promote"}} end,
}

local function new_custom(m)
  local name = pick(CUSTOM)
  local f, refs = functions[name], {}
  for i, shape in ipairs(f.takes) do
    refs[i] = operand(m, calls.of("neg", {{slot = 1}}, shape).slots[1])
  end
  m.n = m.n + 1
  local node = {custom = name, how = pick(HOWS)(), refs = refs, result = "y" .. m.n}
  m.block[#m.block + 1] = node
  m.tensors[#m.tensors + 1] = {ref = {node.result, 1}, shape = f.gives}
end

local fill_block

local function new_region_node(m, depth)
  local node = {region = new_region(), form = pick{"close", "call", "wrap"}}
  node.body = fill_block(m, rules.entered(m.now, node.region), depth + 1, random(4))
  m.block[#m.block + 1] = node
end

local function new_scope(m, depth)
  local node = {scope = pick{"no_grad", "checkpoint", "coroutine"}}
  if node.scope == "checkpoint" and m.updates then node.scope = "no_grad" end
  local now = node.scope == "coroutine" and rules.apart(m.now) or m.now
  node.body = fill_block(m, now, depth + 1, random(3))
  m.block[#m.block + 1] = node
end

local function new_change(m)
  if not m.updates or #m.program.leaves == 0 then
    m.block[#m.block + 1] = {clear = true}
  else
    m.block[#m.block + 1] = {update = pick(m.program.leaves).name}
  end
end

local function new_node(m, depth)
  local r = random()
  if depth < 4 and r < (depth == 0 and 0.6 or 0.2) then return new_region_node(m, depth) end
  r = random()
  if depth > 0 and depth < 4 and r < 0.08 then return new_scope(m, depth) end
  if r < 0.11 then return new_change(m) end
  if r < 0.16 then return new_custom(m) end
  return new_call(m)
end

function fill_block(m, now, depth, size)
  local block, outer, outer_now = {}, m.block, m.now
  m.block, m.now = block, now
  for _ = 1, size do new_node(m, depth) end
  m.block, m.now = outer, outer_now
  return block
end

-- The program of a seed. A weight changes in place only where nothing is run a second time.
return function(seed)
  math.randomseed(seed)
  local r = random()
  local program = {seed = seed, leaves = {}, backward = r < 0.35 and 0 or r < 0.75 and 1 or 2}
  local m = {program = program, tensors = {}, n = 0, updates = chance(0.5)}
  program.block = fill_block(m, rules.start(TABLES), 0, random(3))
  return program
end
