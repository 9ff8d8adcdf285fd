-- Random programs under random nested regions give the dtypes and bits of explicit casts, forward
-- and backward, with the same number of casts. The model in this file knows the op tables
-- (autocast_spec.lua compares them with PyTorch), the options of a region, and that the outermost
-- region casts a weight once.

local dm = require "demilune"
local device = require "spec.device"
local amp = dm.amp

-- The sanitizers make a run ten times slower.
local PROGRAMS = (os.getenv "DEMILUNE_BUILD" or ""):find "asan" and 1000 or 10000
local SEED = 20261121
local random = math.random

-- ---- the ops ----
-- takes: shapes of the operands, m a matrix {2, 2}, v a vector {2}; gives: of the
-- result. text: the call, where %1 are the operands and %o the option dtype (", "
-- in front). The words of `fixed` ops are the table's: they are made of other ops.

local function op(name, takes, gives, text, more)
  local self = {name = name, takes = takes, gives = gives, text = text}
  for key, value in pairs(more or {}) do self[key] = value end
  return self
end

local WITH_DTYPE, FIXED = {dtype = true}, {fixed = true}
local OPS = {
  op("mm", "mm", "m", "dm.mm(%1, %2)"),
  op("matmul", "mm", "m", "dm.matmul(%1, %2)"),
  op("linear", "mm", "m", "dm.linear(%1, %2)"),
  op("linear", "mmv", "m", "dm.linear(%1, %2, %3)"),
  op("addmm", "mmm", "m", "dm.addmm(%1, %2, %3)"),
  op("mv", "mv", "v", "dm.mv(%1, %2)"),
  op("dot", "vv", "s", "dm.dot(%1, %2)"),
  op("add", "mm", "m", "%1 + %2"),
  op("sub", "mv", "m", "%1 - %2"),
  op("mul", "mm", "m", "%1 * %2"),
  op("div", "mm", "m", "%1 / %2"),
  op("div", "m", "m", "%1 / 2"),
  op("div", "m", "m", "1 / %1", {number_first = true}),
  op("pow", "m", "m", "%1 ^ 2"),
  op("pow", "mm", "m", "dm.pow(%1, %2)"),
  op("atan2", "mm", "m", "dm.atan2(%1, %2)"),
  op("maximum", "mm", "m", "dm.maximum(%1, %2)"),
  op("addcmul", "mmm", "m", "dm.addcmul(%1, %2, %3)"),
  op("addcdiv", "mmm", "m", "dm.addcdiv(%1, %2, %3)"),
  op("cat", "vv", "w", "dm.cat{%1, %2}"),
  op("stack", "vv", "m", "dm.stack{%1, %2}"),
  op("exp", "m", "m", "dm.exp(%1)"),
  op("tanh", "m", "m", "%1:tanh()"),
  op("sigmoid", "m", "m", "dm.sigmoid(%1)"),
  op("relu", "m", "m", "%1:relu()"),
  op("gelu", "m", "m", "dm.gelu(%1)"),
  op("softplus", "m", "m", "dm.softplus(%1)"),
  op("square", "m", "m", "dm.square(%1)"),
  op("rsqrt", "m", "m", "dm.rsqrt(%1)"),
  op("log1p", "v", "v", "dm.log1p(%1)"),
  op("softmax", "m", "m", "dm.softmax(%1, 1%o)", WITH_DTYPE),
  op("log_softmax", "m", "m", "dm.log_softmax(%1, 2%o)", WITH_DTYPE),
  op("cumsum", "m", "m", "dm.cumsum(%1, 1%o)", WITH_DTYPE),
  op("sum", "m", "v", "dm.sum(%1, 1%o)", WITH_DTYPE),
  op("prod", "m", "v", "dm.prod(%1, 2%o)", WITH_DTYPE),
  op("norm", "m", "v", "dm.norm(%1, 2, 1%o)", WITH_DTYPE),
  op("mean", "m", "s", "dm.mean(%1)"),
  op("logsumexp", "m", "v", "dm.logsumexp(%1, 1)"),
  op("layer_norm", "m", "m", "dm.layer_norm(%1, {2})"),
  op("layer_norm", "mvv", "m", "dm.layer_norm(%1, {2}, %2, %3)"),
  op("mse_loss", "mm", "m", "dm.mse_loss(%1, %2, {reduction = 'none'})", FIXED),
  op("huber_loss", "mm", "s", "dm.huber_loss(%1, %2)", FIXED),
  op("l1_loss", "mm", "s", "dm.l1_loss(%1, %2)", FIXED),
  op("select", "m", "v", "%1[2]", FIXED),
  op("view", "w", "m", "%1:view(2, 2)", FIXED),
  op("expand", "s", "m", "%1:expand(2, 2)", FIXED),
  op("t", "m", "m", "%1:t()", FIXED),
  op("mul_", "mm", "m", "%1:clone():mul_(%2)", FIXED), -- in place: never converted
  op("exp_", "m", "m", "%1:clone():exp_()", FIXED),
}
for _, o in ipairs(OPS) do
  local code = o.text:gsub("%%o", o.dtype and " __o" or ""):gsub("%%(%d)", "a%1")
  code = code:gsub(" __o", ", o")
  code = "local dm = ...; return function(o, a1, a2, a3) return " .. code .. " end"
  o.call = assert(load(code))(dm)
end

-- The leaves, which require a gradient, and other inputs.
local LEAVES = {"w1", "w2", "b1"}
local INPUTS = {
  w1 = {"m", "float32"}, w2 = {"m", "float32"}, b1 = {"v", "float32"},
  x1 = {"m", "float32"}, h1 = {"m", "bfloat16"}, h2 = {"m", "float16"}, h3 = {"v", "float16"},
  d1 = {"m", "float64"},
}
local INPUT_NAMES = {"w1", "w1", "w2", "b1", "b1", "x1", "h1", "h2", "h3", "d1"}

-- ---- making programs ----
-- A program is a block: a list of {op, result, operands...}, {update = leaf} and
-- {region = options, form = , body = block}.

local WORDS = {"lower_precision", "lower_precision_fp", "fp32", "float32", "promote", "unlisted",
  "banned"}
local LONG = {lower_precision = "lower_precision_fp", float32 = "fp32"}

local function chance(p) return random() < p end
local function pick(list) return list[random(#list)] end

local function new_region()
  local o = {}
  if chance(0.5) then o.dtype = pick{"bfloat16", "float16"} end
  if chance(0.25) then o.enabled = chance(0.3) end
  if chance(0.2) then o.cache_enabled = chance(0.5) end
  if chance(0.3) then o.rules = pick{"cuda", "cuda", "cpu"} end
  if chance(0.3) then
    o.policy = {}
    for _ = 1, random(3) do
      local target = pick(OPS)
      if not target.fixed then
        o.policy[target.name] = target.dtype and chance(0.3) and "fp32_set_opt_dtype"
          or pick(WORDS)
      end
    end
  end
  return o
end

local function operand(names, shape)
  local fits = {}
  for _, name in ipairs(names) do
    if names[name] == shape then fits[#fits + 1] = name end
  end
  return #fits > 0 and pick(fits)
end

local function new_op(names)
  while true do
    local o = pick(OPS)
    local node = {op = o}
    for i = 1, #o.takes do node[i] = operand(names, o.takes:sub(i, i)) end
    if #node == #o.takes then
      names.n = names.n + 1
      node.result = "y" .. names.n
      names[#names + 1], names[node.result] = node.result, o.gives
      return node
    end
  end
end

local function new_block(names, depth, size)
  local block = {}
  for i = 1, size do
    if depth < 3 and chance(depth == 0 and 0.6 or 0.25) then
      block[i] = {region = new_region(), form = pick{"close", "call", "wrap"},
        body = new_block(names, depth + 1, random(4))}
    elseif chance(0.03) then
      block[i] = {update = pick(LEAVES)}
    else
      block[i] = new_op(names)
    end
  end
  return block
end

local function new_program(seed)
  math.randomseed(seed)
  local names = {n = 0}
  for i, name in ipairs(INPUT_NAMES) do names[i], names[name] = name, INPUTS[name][1] end
  return {seed = seed, block = new_block(names, 0, random(3)), backward = chance(0.4)}
end

-- ---- programs as text ----

local function literal(v)
  if type(v) ~= "table" then return type(v) == "string" and ("%q"):format(v) or tostring(v) end
  local words = {}
  for key, item in pairs(v) do words[#words + 1] = key .. " = " .. literal(item) end
  table.sort(words)
  return "{" .. table.concat(words, ", ") .. "}"
end

local function write_block(block, indent, lines)
  local function put(text, ...) lines[#lines + 1] = indent .. text:format(...) end
  for _, node in ipairs(block) do
    if node.update then
      put("dm.no_grad(function() %s:mul_(0.5) end)", node.update)
    elseif node.region then
      put(({close = "do local _ <close> = amp.autocast%s", call = "amp.autocast(%s, function()",
        wrap = "amp.autocast(%s):wrap(function()"})[node.form], literal(node.region))
      write_block(node.body, indent .. "  ", lines)
      put(({close = "end", call = "end)", wrap = "end)()"})[node.form])
    else
      local text = node.op.text:gsub("%%o", ""):gsub("%%(%d)", function(i)
        return node[tonumber(i)]
      end)
      put("%s = %s", node.result, (text:gsub("%%", "%%%%")))
    end
  end
end

local function text_of(program)
  local lines = {"-- program " .. program.seed .. (program.backward and ", with backward" or "")}
  for _, name in ipairs{"w1", "w2", "b1", "x1", "h1", "h2", "h3", "d1"} do
    lines[#lines + 1] = ("%s = dm.rand(%s, {dtype = %q})%s"):format(name,
      INPUTS[name][1] == "m" and "2, 2" or "2", INPUTS[name][2],
      name:match "^[wb]" and ":requires_grad_()" or "")
  end
  write_block(program.block, "", lines)
  return table.concat(lines, "\n")
end

-- ---- running them: with regions ----

local function with_regions(program, vars, record)
  local run
  local function block_of(block)
    for _, node in ipairs(block) do run(node) end
  end
  function run(node)
    if node.update then
      local _ <close> = dm.no_grad()
      vars[node.update]:mul_(0.5)
    elseif node.region then
      local function body() return block_of(node.body) end
      if node.form == "close" then
        local _ <close> = amp.autocast(node.region)
        body()
      elseif node.form == "call" then
        amp.autocast(node.region, body)
      else
        amp.autocast(node.region):wrap(body)()
      end
    else
      local ok, y = pcall(node.op.call, nil, vars[node[1]], vars[node[2]], vars[node[3]])
      record(node, ok, y)
    end
  end
  block_of(program.block)
end

-- ---- running them: with casts by hand ----

local FLOAT = {float32 = true, float16 = true, bfloat16 = true}
local TABLES = {cpu = amp.op_table "cpu", cuda = amp.op_table "cuda"}

local function entered(now, options)
  local next_ = {enabled = options.enabled ~= false, dtype = options.dtype or now.dtype,
    cache = now.cache, words = now.words, shared = now.shared or {}}
  if options.cache_enabled ~= nil then next_.cache = options.cache_enabled end
  if options.rules then next_.words = TABLES[options.rules] end
  if options.policy then
    local words = {}
    for name, word in pairs(next_.words) do words[name] = word end
    for name, word in pairs(options.policy) do words[name] = LONG[word] or word end
    next_.words = words
  end
  return next_
end

local function word_of(now, o)
  if not now.enabled then return "unlisted" end
  local word = now.words[o.name] or "unlisted"
  if o.number_first and word == "unlisted" then return now.words.reciprocal end
  return word
end

-- The dtype that the operands are cast to, or nil.
local function target_of(now, word, operands)
  if word == "lower_precision_fp" then return now.dtype end
  if word == "fp32" then return "float32" end
  if word ~= "promote" then return nil end
  local seen
  for _, v in ipairs(operands) do
    if FLOAT[v.dtype] then
      if seen and seen ~= v.dtype then return "float32" end
      seen = v.dtype
    end
  end
end

local function by_hand(program, vars, record)
  local casts, is_leaf = 0, {}
  for _, name in ipairs(LEAVES) do is_leaf[vars[name]] = true end
  local function cast(now, v, to)
    if not FLOAT[v.dtype] or v.dtype == to then return v end
    local share = is_leaf[v] and now.cache and to ~= "float32" and now.shared
    local had = share and share[v] and share[v][to]
    if had then return had end
    casts = casts + 1
    local y = v:to(to)
    if share then
      share[v] = share[v] or {}
      share[v][to] = y
    end
    return y
  end
  local function block_of(block, now)
    for _, node in ipairs(block) do
      if node.update then
        local leaf = vars[node.update]
        dm.no_grad(function() leaf:mul_(0.5) end)
        if now.shared then now.shared[leaf] = nil end
      elseif node.region then
        block_of(node.body, entered(now, node.region))
      else
        local operands = {}
        for i = 1, #node do operands[i] = vars[node[i]] end
        local word, options = word_of(now, node.op), nil
        local ok, y = false, nil
        if word ~= "banned" then
          if word == "fp32_set_opt_dtype" and FLOAT[operands[1].dtype] then
            options = {dtype = "float32"}
          end
          local to = target_of(now, word, operands)
          for i, v in ipairs(operands) do operands[i] = to and cast(now, v, to) or v end
          ok, y = pcall(node.op.call, options, table.unpack(operands))
        end
        record(node, ok, y)
      end
    end
  end
  block_of(program.block, {enabled = false, dtype = device.low, cache = true,
    words = TABLES[device.type]})
  return casts
end

-- ---- the comparison ----

local CONSTANTS = {}
for name, kind in pairs(INPUTS) do
  dm.manual_seed(#name + name:byte(1) + name:byte(2))
  CONSTANTS[name] = (kind[1] == "m" and dm.rand(2, 2) or dm.rand(2)):to(kind[2])
end

local function new_vars()
  local vars = {}
  for name, t in pairs(CONSTANTS) do vars[name] = t end
  for _, name in ipairs(LEAVES) do vars[name] = CONSTANTS[name]:clone():requires_grad_() end
  return vars
end

local function flat(t)
  return t:dim() == 0 and {t:item()} or t:reshape(-1):totable()
end

local function differ(a, b)
  if a.dtype ~= b.dtype then return a.dtype .. ", by hand " .. b.dtype end
  local x, y = flat(a.data), flat(b.data)
  for i = 1, #y do
    local same = x[i] == y[i] and (x[i] ~= 0 or 1 / x[i] == 1 / y[i])
      or x[i] ~= x[i] and y[i] ~= y[i]
    if not same then return ("element %d: %.17g, by hand %.17g"):format(i, x[i], y[i]) end
  end
end

local function run(interpreter, program)
  local vars, order = new_vars(), {}
  local casts = interpreter(program, vars, function(node, ok, y)
    -- what failed stands for an input of its shape, so that the rest still runs
    vars[node.result] = ok and y or CONSTANTS[node.op.gives == "m" and "x1" or "b1"]
    if not ok and node.op.gives == "s" then vars[node.result] = CONSTANTS.b1[1] end
    if not ok and node.op.gives == "w" then vars[node.result] = dm.ones(4) end
    order[#order + 1] = {name = node.result, ok = ok, y = ok and y}
  end)
  local back
  if program.backward then
    local loss
    for _, item in ipairs(order) do
      if item.ok and item.y.requires_grad then
        local part = item.y:to("float32"):sum()
        loss = loss and loss + part or part
      end
    end
    if loss then back = pcall(loss.backward, loss) end
  end
  return vars, order, casts, back
end

-- The first difference, or nil.
local function difference(program)
  local before = amp.cast_count()
  local vars, order, _, back = run(with_regions, program)
  local casts = amp.cast_count() - before
  if amp.is_autocast_enabled(device.type) then return "autocast is on afterwards" end
  local hand_vars, hand_order, hand_casts, hand_back = run(by_hand, program)
  for i, item in ipairs(order) do
    local other = hand_order[i]
    if item.ok ~= other.ok then
      return ("%s: %s, by hand %s"):format(item.name, tostring(item.ok), tostring(other.ok))
    end
    local text = item.ok and differ(item.y, other.y)
    if text then return item.name .. ": " .. text end
  end
  if casts ~= hand_casts then return ("%d casts, by hand %d"):format(casts, hand_casts) end
  if back ~= hand_back then
    return ("backward: %s, by hand %s"):format(tostring(back), tostring(hand_back))
  end
  for _, name in ipairs(LEAVES) do
    local a, b = vars[name].grad, hand_vars[name].grad
    if (a == nil) ~= (b == nil) then return name .. ": only one has a gradient" end
    local text = a and differ(a, b)
    if text then return ("gradient of %s: %s"):format(name, text) end
  end
end

describe("random programs under autocast", function()
  it("equal casts by hand: " .. PROGRAMS .. " of them", function()
    for i = 1, PROGRAMS do
      local program = new_program(SEED + i)
      local text = difference(program)
      if text then error(text .. "\n" .. text_of(program), 0) end
    end
  end)

  it("can tell a difference, and are printed as Lua", function()
    local program = new_program(SEED + 1)
    program.block = {{region = {}, form = "close", body = {
      {op = OPS[1], result = "y1", "w1", "x1"}}}}
    assert.is_nil(difference(program))
    local words = TABLES[device.type]
    local low = words.mm
    words.mm = "unlisted"
    local text = difference(program)
    words.mm = low
    assert.equal(("y1: %s, by hand float32"):format(device.low), text)
    local lines = text_of(program)
    assert.matches("do local _ <close> = amp.autocast{}\n  y1 = dm.mm%(w1, x1%)\nend$", lines)
    local chunk = "local dm, amp = ...\nlocal w1, w2, b1, x1, h1, h2, h3, d1, y1\n" .. lines
      .. "\nreturn y1.dtype"
    assert.equal(device.low, assert(load(chunk))(dm, amp))
  end)
end)
