-- What autocast does to a call, stated by itself: PyTorch's lists, the options of a region, and
-- when a weight's cast is shared. Nothing here asks the engine which dtype or policy is in force.
--
-- A state is {enabled, dtype, cache, words, region, shared}: words are the policies by op, region
-- says that a region is open, and shared holds the weights' casts of the outermost one.

local device = require "spec.device"
local lists = require "spec.amp.lists"

local rules = {}

-- Ops of which the lists leave the calls inside alone, too.
local WHOLE = {addmv = true, addr = true}
-- Ops that end like a call of another op, which they do not make.
local ENDS = {linalg_pinv = "matmul"}
-- Ops without a page of their own by what PyTorch calls them; it lists index_put for CUDA.
local KNOWN_AS = {clamp_tensor = "clamp", linear_vector = "linear",
  cross_entropy_soft = "cross_entropy", norm_by_name = "norm", index_put_many = "index_put",
  reflection_pad = "reflection_pad1d", replication_pad = "replication_pad1d"}
-- Ops that no region can name by themselves: the op whose policy in the region is theirs.
local LIKE = {svd = "linalg_svd", triangular_solve = "linalg_solve"}
local LONG = {lower_precision = "lower_precision_fp", float32 = "fp32"}
local CAST = {float32 = true, float16 = true, bfloat16 = true}

-- The policies by device type and op, from lists like those of spec/amp/lists.lua.
function rules.tables(from)
  local tables = {}
  for kind, words in pairs(from or lists) do
    tables[kind] = {}
    for word, names in pairs(words) do
      for name in names:gmatch "%S+" do tables[kind][name] = word end
    end
  end
  tables.cuda.index_put = "promote"
  return tables
end

function rules.start(tables)
  return {enabled = false, dtype = device.low, cache = true, words = tables[device.type],
    tables = tables}
end

-- The state inside a region of these options. One of the other device type only says whether
-- weights' casts are shared.
function rules.entered(now, options)
  local inside = {}
  for key, value in pairs(now) do inside[key] = value end
  inside.region, inside.shared = true, now.shared or {}
  if options.cache_enabled ~= nil then inside.cache = options.cache_enabled end
  if (options.device_type or device.type) ~= device.type then return inside end
  inside.enabled = options.enabled ~= false
  inside.dtype = options.dtype or now.dtype
  if options.rules then inside.words = now.tables[options.rules] end
  if options.policy then
    inside.words = setmetatable({}, {__index = inside.words})
    for name, word in pairs(options.policy) do inside.words[name] = LONG[word] or word end
  end
  return inside
end

-- The state with autocast off.
function rules.off(now)
  local inside = {}
  for key, value in pairs(now) do inside[key] = value end
  inside.enabled = false
  return inside
end

-- The state that code begins with which starts in `now` and has no region of its own: a coroutine.
function rules.apart(now)
  local inside = {}
  for key, value in pairs(now) do inside[key] = value end
  inside.region, inside.shared = nil, nil
  return inside
end

-- The state that a function's backward has: that of its forward, with shared casts of its own.
function rules.resumed(now)
  local inside = rules.apart(now)
  inside.region, inside.shared = true, {}
  return inside
end

-- The policy of a call, "unlisted" included.
function rules.word(now, call)
  if not now.enabled or call.in_place then return "unlisted" end
  local word = now.words[LIKE[call.name] or call.name] or "unlisted"
  if call.number_first and word == "unlisted" then return now.words.reciprocal or "unlisted" end
  return word
end

-- Whether the lists say what becomes of the call. They do not where an op that they leave alone
-- is made of others that they list.
function rules.say(now, call, inner)
  if not now.enabled or rules.word(now, call) ~= "unlisted" or WHOLE[call.name] then return true end
  if (now.words[ENDS[call.name]] or "unlisted") ~= "unlisted" then return false end
  for name in pairs(inner(call)) do
    local other = name:gsub("_$", "")
    other = KNOWN_AS[other] or other
    if other ~= call.name:gsub("_$", "") and (now.words[other] or "unlisted") ~= "unlisted" then
      return false
    end
  end
  return true
end

-- The dtype that the operands of a call are cast to, or nil.
function rules.target(now, word, operands)
  if word == "lower_precision_fp" then return now.dtype end
  if word == "fp32" then return "float32" end
  if word ~= "promote" then return nil end
  local seen
  for _, v in ipairs(operands) do
    if CAST[v.dtype] then
      if seen and seen ~= v.dtype then return "float32" end
      seen = v.dtype
    end
  end
end

-- The option dtype that a call gets, or nil.
function rules.option(word, operands)
  local first = operands[1].dtype
  return word == "fp32_set_opt_dtype" and CAST[first] and first ~= "float32" and "float32" or nil
end

-- Whether the engine reads the 16 bits of the operands of a call to be computed in float32,
-- without a cast: the bits are those of a cast.
function rules.reads_low(word, call, inner)
  return word == "fp32" and call.name == "cross_entropy" and not inner(call).cross_entropy_soft
end

function rules.casts(v, to) return CAST[v.dtype] and v.dtype ~= to end

-- Whether later calls of the region use this cast as well: casts of weights to 16 bits.
function rules.shares(now, v, to)
  return now.cache and now.region and to ~= "float32" and v.dtype == "float32" and v.requires_grad
    and v.is_leaf
end

return rules
