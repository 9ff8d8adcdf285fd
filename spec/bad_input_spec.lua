-- Calls every op, method and operator with random arguments, some nearly right and some absurd.
-- Each call works or raises a string. None ends the process, changes its operands or leaks. A
-- further test refuses Lua's own memory in a process of its own.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local DEVICE = require("spec.device").type

local SEED = 20260101
local HUGE = 1 << 45 -- elements no machine has: refused without a try

local function one_of(list) return list[math.random(#list)] end

-- ---- arguments ----

local DTYPES = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
  "uint8", "bool"}
local SHAPES = {{}, {1}, {3}, {0}, {2, 3}, {3, 2}, {3, 3}, {0, 3}, {2, 0}, {1, 1}, {2, 1, 3},
  {2, 3, 4}, {1, 2, 4, 4}, {2, 2, 3, 3}, {2, 0, 3, 3}, {1, 2, 1, 2, 1, 2, 1, 2}}
local INTEGERS = {0, 1, 2, 3, 4, 5, -1, -2, -3, -9, HUGE, -HUGE, math.maxinteger,
  math.mininteger}
local FLOATS = {0.0, 0.5, -1.5, 3.0, 1e300, -1e-300, 2^62, math.huge, -math.huge, 0 / 0}
local STRINGS = {"", "float32", "int64", "bool", "float31", "cpu", "cuda", "mars", "mean", "sum",
  "none", "tanh", "floor", "same", "dim", "3", "\0", "%s%n", ("x"):rep(300), "ij,jk->ik", "i->",
  "...", "ii->i", ",", "->", "\xff"}

-- Tensors made for the call that is being drawn.
local made

local function a_tensor()
  local dtype = one_of(math.random(3) == 1 and DTYPES or {"float32", "float64", "int64", "bool"})
  local x = dm.randn(one_of(SHAPES), {dtype = "float32"}):mul(2):to(dtype)
  local turn = math.random(10)
  if turn == 1 and x:dim() > 1 then
    x = x:transpose(1, 2)
  elseif turn == 2 and x:dim() < 8 then
    x = x:unsqueeze(1):expand(3, table.unpack(x.shape))
  elseif turn == 3 and x:is_floating_point() then
    x = x:detach():requires_grad_()
  elseif turn == 4 and x:is_floating_point() then
    x = x:detach():requires_grad_() * 1
  elseif turn == 5 and math.random(3) == 1 then
    x:free()
    return x
  end
  made[#made + 1] = x
  return x
end

local a_value

local function a_list()
  local list, n = {}, math.random(0, 4)
  local draw = one_of{a_tensor, a_value, function() return one_of(INTEGERS) end,
    function() return math.random(-1, 4) end}
  for i = 1, n do list[i] = draw() end
  return list
end

local NAMES = {"dim", "keepdim", "dtype", "device", "requires_grad", "reduction", "weight", "x",
  "other", "min", "gradient", "retain_graph", "", "n"}
local function some_options()
  local opts = {}
  for _ = 1, math.random(0, 2) do opts[one_of(NAMES)] = a_value() end
  return opts
end

local depth = 0
function a_value()
  depth = depth + 1
  local turn = depth > 3 and math.random(6) or math.random(14)
  local v
  if turn <= 2 then v = math.random(-1, 4)
  elseif turn == 3 then v = one_of(INTEGERS)
  elseif turn == 4 then v = one_of(FLOATS)
  elseif turn == 5 then v = one_of(STRINGS)
  elseif turn == 6 then v = one_of{true, false, nil}
  elseif turn <= 10 then v = a_tensor()
  elseif turn == 11 then v = a_list()
  elseif turn == 12 then v = some_options()
  elseif turn == 13 then
    v = one_of{print, io.stdout, coroutine.create(print), setmetatable({}, {__index = dm})}
  else v = nil
  end
  depth = depth - 1
  return v
end

-- A value of the kind that the row's signature asks for; once in a while not.
local function for_attr(attr)
  if math.random(6) == 1 then return a_value() end
  local kind = attr.kind:gsub("%?", "")
  if kind == "int" or kind == "dim" or kind == "pos" then
    return math.random(4) == 1 and one_of(INTEGERS) or math.random(-2, 4)
  elseif kind == "number" then return math.random(3) == 1 and one_of(FLOATS) or math.random()
  elseif kind == "bool" then return math.random(2) == 1
  elseif kind == "dtype" then return one_of(DTYPES)
  elseif kind == "device" then return one_of{"cpu", DEVICE}
  elseif kind == "str" then return one_of(STRINGS)
  elseif kind == "enum" then
    local choices = {}
    for word in attr.choices:gmatch "[^|]+" do choices[#choices + 1] = word end
    return one_of(choices)
  end
  local list = {}
  local exact = ({one = 1, pair = 2, triple = 3})[kind]
  for i = 1, exact or math.random(0, 4) do
    list[i] = math.random(8) == 1 and one_of(INTEGERS) or math.random(-1, 4)
  end
  return list
end

local function anything()
  local args = {n = math.random(0, 5)}
  for i = 1, args.n do args[i] = a_value() end
  return args
end

local function nearly_right(row)
  local args = {n = 0}
  local function add(v)
    args.n = args.n + 1
    args[args.n] = v
  end
  if row.tensors[1] and row.tensors[1]:find("...", 1, true) then
    local list = {}
    for i = 1, math.random(0, 4) do list[i] = a_tensor() end
    add(list)
  else
    for _ = 1, #row.tensors do add(math.random(8) == 1 and a_value() or a_tensor()) end
  end
  local opts
  for _, attr in ipairs(row.attrs) do
    if attr.required and math.random(2) == 1 then
      add(for_attr(attr))
    elseif attr.required or math.random(3) == 1 then
      opts = opts or {}
      opts[attr.name] = for_attr(attr)
    end
  end
  if opts then add(opts) end
  return args
end

local function method_call()
  local args = anything()
  if math.random(8) > 1 then
    args.n = math.max(args.n, 1)
    args[1] = a_tensor()
  end
  return args
end

-- ---- calls ----

-- name, function, how its arguments are drawn, whether it may change an operand
local function targets()
  local out = {}
  local function add(name, fn, draw, changes)
    out[#out + 1] = {name = name, fn = fn, draw = draw, changes = changes}
  end
  for _, row in ipairs(dm.ops()) do
    if not row.hidden then
      local function draw() return math.random(3) == 1 and anything() or nearly_right(row) end
      -- running statistics are operands that batch_norm changes
      if not row.only_inplace then add(row.name, dm[row.name], draw, row.name == "batch_norm") end
      if row.inplace then add(row.name .. "_", dm[row.name .. "_"], draw, true) end
    end
  end
  for name, fn in pairs(dm.methods) do
    add("x:" .. name, fn, method_call,
      name:sub(-1) == "_" or name == "free" or name == "batch_norm")
  end
  local function syntax(name, fn, changes) add(name, fn, method_call, changes) end
  syntax("x[k]", function(x, k) return x[k] end)
  syntax("x[k] = v", function(x, k, v) x[k] = v end, true)
  syntax("x + y", function(x, y) return x + y end)
  syntax("x // y", function(x, y) return x // y end)
  syntax("x % y", function(x, y) return x % y end)
  syntax("x ^ y", function(x, y) return x ^ y end)
  syntax("x .. y", function(x, y) return x .. y end)
  syntax("-x", function(x) return -x end)
  syntax("#x", function(x) return #x end)
  syntax("tostring", tostring)
  syntax("pairs", function(x) for _, row in pairs(x) do made[#made + 1] = row end end)
  add("tensor", dm.tensor, anything)
  add("autograd.grad", dm.autograd.grad, anything)
  add("autograd.backward", dm.autograd.backward, anything)
  add("keep", dm.keep, anything)
  add("json_encode", dm.json_encode, anything)
  add("json_decode", dm.json_decode, anything)
  table.sort(out, function(a, b) return a.name < b.name end) -- pairs() knows no seed
  return out
end

-- ---- the property ----

local function write(v, parts)
  if type(v) == "table" then
    for _, item in ipairs(v) do write(item, parts) end
  else
    parts[#parts + 1] = tostring(v)
  end
end

-- An operand's dtype, shape, flags, version and elements as text.
local function text_of(x)
  local parts = {x.dtype, tostring(x.shape), tostring(x.requires_grad), tostring(x:_version())}
  write(x:totable(), parts)
  return table.concat(parts, " ")
end

local function wording(target, args)
  local words = {}
  for i = 1, args.n do
    local v = args[i]
    words[i] = dm.is_tensor(v) and tostring(v):gsub("\n", " ") or tostring(v)
  end
  return ("%s(%s)"):format(target.name, table.concat(words, ", "))
end

-- CUDA reports bad data (a label that is no class) once, at the next synchronization. This takes
-- the report, so that it does not fail the next call.
local function swallow_faults()
  if DEVICE ~= "cpu" then pcall(dm.synchronize) end
end

local function check_call(target)
  made = {}
  local args, before = target.draw(), {}
  if not target.changes then
    for i, x in ipairs(made) do before[i] = text_of(x) end
  end
  local ok, text = pcall(target.fn, table.unpack(args, 1, args.n))
  swallow_faults()
  if not ok and type(text) ~= "string" then
    error(("%s raised a %s"):format(wording(target, args), type(text)), 0)
  end
  for i, x in ipairs(made) do
    if before[i] and text_of(x) ~= before[i] then
      error(("%s changed an operand:\n%s\n%s"):format(wording(target, args), before[i],
        text_of(x)), 0)
    end
  end
  return ok
end

local function in_use()
  made = nil
  dm.is_grad_enabled() -- the engine holds on to the coroutine that called it last
  collectgarbage()
  collectgarbage()
  return hooks.alloc_live(), dm.memory_allocated() + dm.memory_allocated(DEVICE)
end

-- Runs in a coroutine, whose stack becomes garbage with it.
local function storm(n)
  local list, worked = targets(), 0
  local square = dm.ones(64, 64, {dtype = "float64"}):t()
  square:matmul(square) -- makes the buffers that products keep for packing
  dm.ones(100, 2):sum(2) -- and the one that reductions keep for many results
  math.randomseed(SEED)
  dm.manual_seed(SEED)
  for i = 1, n do
    if check_call(list[(i - 1) % #list + 1]) then worked = worked + 1 end
  end
  return worked
end

describe("arguments drawn at random", function()
  local sink, noise = require "demilune.caller", nil
  before_each(function()
    noise, sink.sink = sink.sink, function() end
  end)
  after_each(function() sink.sink = noise end)

  it("work or raise a text, and leave nothing behind", function()
    local calls, first = 30000, 2000 -- first: threads, caches
    if DEVICE ~= "cpu" then -- whose allocator keeps its records: the same calls again and again
      calls, first = 8000, 8000
      for _ = 1, 2 do coroutine.wrap(storm)(first) end
    end
    coroutine.wrap(storm)(first)
    local live, bytes = in_use()
    local share = coroutine.wrap(storm)(calls) / calls
    assert.is_true(share > 0.1 and share < 0.9, "a test of one kind of call only: " .. share)
    local live_after, bytes_after = in_use()
    assert.equal(live, live_after)
    assert.equal(bytes, bytes_after)
    assert.is_true(dm.is_grad_enabled())
    assert.same({{3.0, 3.0}}, dm.ones(1, 2):matmul(dm.ones(2, 2)):add(1):totable())
  end)
end)

describe("sizes that are 0", function()
  it("a kernel without taps is refused, a batch without images is not", function()
    local x, w = dm.ones(1, 2, 4, 4), dm.ones(3, 2, 3, 3)
    for _, shape in ipairs{{2, 2, 0, 0}, {2, 2, 3, 0}, {0, 2, 3, 3}} do
      for _, opts in ipairs{{}, {padding = "same"}} do
        assert.error_matches(function() x:conv2d(dm.ones(table.unpack(shape)), opts) end,
          "at least 1")
      end
    end
    assert.error_matches(function() dm.ones(1, 0, 4, 4):conv2d(dm.ones(2, 0, 3, 3)) end,
      "at least 1")
    assert.same({0, 3, 2, 2}, dm.ones(0, 2, 4, 4):conv2d(w, {}).shape)
    assert.error_matches(function() dm.ones(1, 2, 0, 4):conv2d(w) end, "does not fit")
  end)
end)

describe("sizes beyond all memory", function()
  it("are refused with a text", function()
    local x = dm.ones(2, 2)
    for _, f in ipairs{
      function() return dm.zeros(HUGE) end, function() return dm.empty(1 << 31, 1 << 31) end,
      function() return dm.arange(1e300) end, function() return dm.arange(HUGE) end,
      function() return dm.linspace(0, 1, HUGE) end, function() return dm.eye(HUGE) end,
      function() return dm.randperm(HUGE) end, function() return x:tile(HUGE, HUGE) end,
      function() return x["repeat"](x, HUGE, 1) end,
      function() return x:repeat_interleave(HUGE) end,
      function() return dm.ones(2):long():one_hot(HUGE) end,
      function() return x:expand(HUGE, 2, 2):clone() end,
      function() return dm.full({HUGE}, 1) end,
      -- counts that pass 64 bits, and come out small: 126 pairs, 5 repeats, 0 positions
      function() return dm.pdist(dm.zeros(163132188516780909, 0)) end,
      function()
        local times = dm.tensor({1 << 62, 1 << 62, 1 << 62, 1 << 62, 5}, {dtype = "int64"})
        return dm.zeros(5):repeat_interleave(times)
      end,
      function()
        local side = (1 << 20) + (1 << 12) - 1
        return dm.nn.functional.unfold(dm.zeros(0, 1, side, side), {1 << 20, 1 << 20})
      end,
      function() return dm.zeros(0, 1, 1 << 19, 1 << 19, 1 << 19):diag_embed() end,
      function() return dm.zeros(1, 1 << 58, 0):totable() end,
      function() return dm.arange(200):combinations(100) end,
      function() return dm.ones(1):combinations(1 << 62, {with_replacement = true}) end,
    } do
      local ok, text = pcall(f)
      assert.is_false(ok)
      assert.equal("string", type(text))
    end
  end)

  it("loops over nothing end", function()
    local none = dm.zeros(1 << 58, 0, 0)
    for _, name in ipairs{"pinv", "inv", "cholesky", "eigvalsh", "lu_factor", "svdvals"} do
      local ok, y = pcall(dm.linalg[name], none) -- some want a number for each matrix
      assert.is_true(ok and y:numel() == 0 or not ok and y:find "out of memory" ~= nil, name)
    end
    assert.equal(1, #dm.arange(30):combinations(30))
    assert.equal(0, #dm.arange(3):combinations(5))
  end)

  it("numbers at the ends of int64 do not overflow", function()
    local x, most = dm.ones(1, 2, 4, 4), math.maxinteger
    assert.refuses("wants 2 in each of " .. most .. " groups", function()
      return x:conv2d(dm.ones(2, 2, 3, 3), {groups = most})
    end)
    assert.refuses("0 channels do not part", function()
      return dm.ones(2, 0, 3):group_norm(1 << 62)
    end)
    assert.refuses("label %-9223372036854775808 at position 1 is out of range", function()
      return dm.zeros(1, 3):nll_loss(dm.tensor{math.mininteger}):item()
    end)
    local labels = dm.tensor{1, 2}
    for _, none in ipairs{1e300, -1e300, 1 / 0, 0 / 0, 1.5} do -- numbers that no label is
      assert.same({1, 1}, dm.full({2, 3}, -1.0):nll_loss(labels,
        {ignore_index = none, reduction = "none"}):totable())
    end
  end)

  it("a size that is no number is refused", function()
    for _, size in ipairs{0 / 0, 1 / 0, 2.5, "3", true} do
      assert.refuses("zeros", function() return dm.zeros(size) end)
    end
  end)
end)

-- ---- memory that ends ----

-- The output of a Lua program; `before` are the shell's words before lua5.4.
local function output_of(program, before)
  local script = os.tmpname()
  local file <close> = assert(io.open(script, "w"))
  local paths = "package.path, package.cpath = %q, %q\n"
  file:write(paths:format(package.path, package.cpath), program)
  file:flush()
  local pipe = io.popen(("%s lua5.4 %s 2>&1"):format(before, script))
  local said = pipe:read "a"
  local fine = pipe:close()
  os.remove(script)
  return said, fine
end

-- Every call with Lua's first request for memory refused, then its second, ...
local REFUSED = [[
local dm = require "demilune"
local hooks = require("demilune.core")._test
local fail_at = assert(package.loadlib(LIBRARY, "luaopen_lua_alloc"))()
local x, mask, ids = dm.randn(3, 4), dm.tensor{true, false, true}, dm.tensor{2, 1}
local unpack, list = table.unpack, {dm.ones(2), dm.ones(3)}
local calls = {
  function() return x + 1 end, function() return x:max(1) end,
  function() return x:clamp(-1, 1) end, function() return dm.cat(list) end,
  function() return dm.rand(3, {requires_grad = true}) end,
  function() return x[1], x[ids], x[mask], x[{{}, 2}], x[{{1, 2}, ids}] end,
  function() x[1] = 2 x[mask] = 3 x[{{}, 1}] = x[{{}, 2}] end,
  function() return unpack(x:split(2)) end, function() return x:unbind(), x:equal(x) end,
  function() return x:to "float64", x:detach(), x.data, dm.tensor(x), dm.tensor{1, 2} end,
  function() for _, row in pairs(x) do row:add_(1) end end,
}
local function in_use()
  collectgarbage()
  collectgarbage()
  return hooks.alloc_live()
end
for k, call in ipairs(calls) do
  call()
  local live, n, ok, text = in_use(), 0, nil, nil
  repeat
    n = n + 1
    fail_at(n)
    ok, text = pcall(call)
    fail_at(0)
    if not ok and text ~= "not enough memory" then print(k, n, text) end
    text = nil
    if in_use() ~= live then print(k, n, in_use() - live .. " left behind") end
  until ok
  if n == 1 then print(k, "asked for nothing") end
end
print "ok"
]]

describe("Lua's own memory that ends", function()
  it("leaves nothing behind, wherever it ends", function()
    local library = os.tmpname()
    local command = "cc -shared -fPIC $(pkg-config --cflags lua5.4) spec/lua_alloc.c -o %s"
    assert(os.execute(command:format(library)))
    local said = output_of(("local LIBRARY = %q\n"):format(library) .. REFUSED, "")
    os.remove(library)
    assert.equal("ok\n", said)
  end)
end)

local CHILD = [[
local dm = require "demilune"
local function exhaust(make)
  local kept, ok, text = {}, nil, nil
  ok, text = pcall(function()
    for i = 1, math.huge do kept[i] = make() end
  end)
  kept = nil
  collectgarbage()
  assert(not ok and type(text) == "string" and text:find "memory", text)
  local sum = dm.ones(1000, 1000):matmul(dm.ones(1000, 10)):sum():item()
  assert(sum == 1e7, sum)
end
exhaust(function() return dm.ones(1 << 20) end)
exhaust(function() return dm.ones(50000) end)
exhaust(function() return dm.ones(8) end)
exhaust(function() return ("x"):rep(1 << 20) .. math.random() end)
local w = dm.ones(1 << 18, {requires_grad = true})
local y = w
exhaust(function() y = y * 2; return y end)
y = nil
print "ok"
]]

describe("a process that may have 400 MB", function()
  it("gets an error when they are used up, and goes on #slow", function()
    local said, fine = output_of(CHILD, "ulimit -v 400000 &&")
    assert.equal("ok\n", said)
    assert.is_true(fine)
  end)
end)
