-- Tensors as Lua values: indexing, properties, printing, errors, and memory.

local dm = require "demilune"
local hooks = require("demilune.core")._test
local DEVICE = require("spec.device").type

local x = dm.tensor{{1, 2, 3}, {4, 5, 6}}

describe("indexing", function()
  it("selects, ranges and steps from 1", function()
    assert.same({4, 5, 6}, x[2]:totable())
    assert.same({4, 5, 6}, x[-1]:totable())
    assert.same({2, 5}, x[{{}, 2}]:totable())
    assert.same({{1, 2}, {4, 5}}, x[{{}, {1, 2}}]:totable())
    assert.same({{1, 3}, {4, 6}}, x[{{}, {1, 3, 2}}]:totable())
    assert.equal(6, x[{2, -1}]:item())
  end)

  it("takes masks and positions", function()
    assert.same({4, 5, 6}, x[x:gt(3)]:totable())
    assert.same({{4, 5, 6}, {1, 2, 3}}, x[dm.tensor{2, 1}]:totable())
    assert.same({{1, 2, 3}}, x[dm.tensor{true, false}]:totable())
  end)

  it("assigns", function()
    local y = x:clone()
    y[{{}, 1}] = 0
    y[y:gt(4)] = -1
    y[dm.tensor{1}] = dm.tensor{{7, 7, 7}}
    assert.same({{7, 7, 7}, {0, -1, -1}}, y:totable())
  end)

  it("assigns rows to a mask, broadcast to what it chooses", function()
    local y, mask = dm.zeros(3, 2), dm.tensor{true, false, true}
    local row = dm.tensor({1.0, 2.0}, {requires_grad = true})
    y[mask] = row
    assert.same({{1, 2}, {0, 0}, {1, 2}}, y:totable())
    y:sum():backward()
    assert.same({2, 2}, row.grad:totable())
    y = y:detach()
    y[mask] = dm.tensor{{3.0}, {4.0}}
    assert.same({{3, 3}, {0, 0}, {4, 4}}, y:totable())
    y[y:gt(3)] = dm.tensor{{8.0, 9.0}} -- a leading dim of size 1 does not count
    assert.same({{3, 3}, {0, 0}, {8, 9}}, y:totable())
    y[dm.zeros(3):gt(0)] = dm.tensor{5.0, 5.0}
    assert.same({{3, 3}, {0, 0}, {8, 9}}, y:totable())
    for _, shape in ipairs{{3}, {4}, {3, 2}, {2, 2, 2}} do
      assert.refuses("does not broadcast to {2, 2}", function()
        y[mask] = dm.ones(table.unpack(shape))
      end)
    end
  end)

  it("tries again when memory ran out, as ops do", function()
    local mask, ids = dm.tensor{true, false}, dm.tensor{2, 1}
    local function all(y)
      y[1] = 7
      y[{{}, 2}] = y[{{}, 3}]
      y[ids] = y[dm.tensor{1, 1}]
      y[mask] = y[2]
      local sum = y[1]:sum() + y[mask]:sum() + y[{{}, {1, 2}}]:sum() + y[{2, ids}]:sum()
      for _, row in pairs(y) do sum = sum + row:sum() end
      return (sum + dm.tensor(y):sum() + y.data:sum() + y:detach():sum() + y:split(1)[2]:sum()
        + y:unbind()[1]:sum()):item()
    end
    local want, n = all(x:clone()), 0
    repeat
      n = n + 1
      local y = x:clone()
      hooks.alloc_fail_at(n)
      local ok, sum = pcall(all, y)
      local reached = hooks.alloc_requests() >= n
      hooks.alloc_fail_at(0)
      assert.is_true(ok, sum)
      assert.equal(want, sum)
    until not reached
    assert.is_true(n > 30)
  end)

  it("refuses 0 and what lies past the end", function()
    assert.refuses("count from 1", function() return x[0] end)
    assert.refuses("out of range", function() return x[3] end)
    assert.refuses("out of range", function() return x[{{}, {2, 4}}] end)
    assert.refuses("wanted 1 to 2", function() return x[dm.tensor{3}]:totable() end)
    assert.refuses("indices", function() return x[{1, 1, 1}] end)
  end)
end)

describe("a tensor", function()
  it("takes another's dtype by type_as, and is itself when it has it", function()
    local h = dm.ones(2, {dtype = "float16"})
    assert.equal("float16", dm.ones(3):type_as(h).dtype)
    assert.is_true(rawequal(h, h:type_as(h)))
  end)

  it("takes its dtype by position, as zeros does, and no second value", function()
    assert.equal("float16", dm.tensor({1, 2}, "float16").dtype)
    local w = dm.tensor({1, 2}, "float64", {requires_grad = true})
    assert.equal("float64", w.dtype)
    assert.is_true(w.requires_grad)
    assert.equal("int64", dm.tensor({1, 2}, nil, nil).dtype)
    local hint = " is one too many; hint: dm.tensor{1, 2, 3}"
    assert.refuses("tensor_spec.lua:%d+: tensor: argument 2" .. hint,
      function() dm.tensor(1, 2, 3) end)
    assert.refuses("tensor: argument 3" .. hint, function() dm.tensor({1}, "int32", 2) end)
    assert.refuses("tensor: argument 3" .. hint, function() dm.tensor({1}, {}, {}) end)
    assert.refuses("'float61'", function() dm.tensor({1}, "float61") end)
  end)

  it("knows its shape, dtype and size", function()
    assert.equal("{2, 3}", tostring(x.shape))
    assert.equal("int64", x.dtype)
    assert.equal(dm.get_default_device(), x.device)
    assert.equal(2, #x)
    assert.equal(3, x:size(-1))
    assert.equal(6, x:numel())
    assert.same({6, 2, 8, 48}, {x:nelement(), x:ndimension(), x.itemsize, x.nbytes})
    assert.same({0, 3}, {x:storage_offset(), x:select(1, 2):storage_offset()})
    assert.same({true, false}, {x:is_signed(), x:to("uint8"):is_signed()})
  end)

  it("shifts integers by Lua's operators, a number on either side", function()
    local whole = dm.tensor{1, 5, -9}
    assert.same({4, 20, -36}, (whole << 2):totable())
    assert.same({0, 2, -5}, (whole >> 1):totable())
    assert.same({2, 4, 8}, (1 << dm.tensor{1, 2, 3}):totable())
  end)

  it("gives NaN to Lua without a sign, which would print as -nan", function()
    for _, nan in ipairs{0 / 0, -(0 / 0)} do
      local v = dm.tensor({nan}, "float64")
      assert.equal("nan nan", ("%s %s"):format(v:item(), v:totable()[1]))
    end
  end)

  it("prints values, dtype, shape and device", function()
    local kind = ("[int64 tensor {2, 3} %s]"):format(x.device)
    assert.truthy(tostring(x):find(kind, 1, true))
    local odd = tostring(dm.tensor{0 / 0, 1 / 0, 1.5})
    assert.truthy(odd:find("1 nan, 1 inf", 1, true))
    assert.is_true(#tostring(dm.zeros(1000, 1000)) < 2000)
  end)

  it("of random integers has both ends, from 1 when low is not given", function()
    local function draw(...)
      dm.manual_seed(5)
      return dm.randint(...)
    end
    local want = draw(1, 7, {60})
    assert.is_true(want:amin():item() == 1 and want:amax():item() == 7)
    assert.same(want:totable(), draw(7, {60}):totable())
    assert.same(want:totable(), draw(7, {size = {60}}):totable())
    assert.same(want:totable(), draw{high = 7, size = {60}}:totable())
    assert.same(want:totable(), draw(1, {high = 7, size = {60}}):totable())
    assert.equal("int8", draw(7, {60}, {dtype = "int8"}).dtype)
    assert.refuses("low 1 and high 0", function() dm.randint(0, {2}) end)
    assert.refuses("'size' is missing", function() dm.randint(5) end)
  end)

  it("joins text with ..", function()
    assert.truthy(("x " .. dm.tensor(2.5)):find "2.5")
  end)

  it("is equal to itself by any handle", function()
    local w = dm.ones(1, {requires_grad = true})
    w:sum():backward()
    assert.is_true(w.grad == w.grad)
    assert.is_false(dm.ones(1) == dm.ones(1))
  end)

  it("iterates over rows", function()
    local sum = 0
    for i, row in pairs(x) do sum = sum + i * row:sum():item() end
    assert.equal(36, sum)
  end)
end)

describe("a wrong call", function()
  local function message(f, ...)
    local ok, text = pcall(f, ...)
    assert.is_false(ok)
    return text
  end

  it("names the caller's line", function()
    local text = message(function() return dm.ones(2, 3) + dm.ones(4) end)
    assert.truthy(text:find "tensor_spec.lua:%d+: add: shapes {2, 3} and {4}")
  end)

  it("offers the nearest option", function()
    local function offers(name, f) assert.refuses("did you mean '" .. name .. "'", f) end
    offers("keepdim", function() x:sum{keepdm = true} end)
    offers("float32", function() dm.ones(2, {dtype = "flot32"}) end)
    offers("shape", function() return x.shpe end)
    offers("dtype", function() dm.tensor({1}, {dtyp = "int8"}) end)
  end)

  it("says what it got and what it wanted", function()
    assert.refuses("dim 3 is out of range", function() x:transpose(1, 3) end)
    assert.refuses("count from 1", function() x:sum(0) end)
    assert.refuses("does not fit", function() x:view(4, 2) end)
    assert.refuses("dim 2 of the left is 3", function() x:float():matmul(dm.ones(2, 2)) end)
    assert.refuses("a row has 1", function() dm.tensor{{1, 2}, {3}} end)
    assert.refuses("unknown device", function() dm.ones(2):to "mars" end)
    assert.refuses("one element", function() x:item() end)
    assert.refuses("negative size", function() dm.zeros(-1) end)
    assert.refuses("more elements", function() dm.zeros(1 << 40, 1 << 40) end)
  end)

  it("on a label out of range gives its value and position", function()
    local function of(labels)
      return message(function() dm.cross_entropy(dm.zeros(2, 3), dm.tensor(labels)):item() end)
    end
    local text = of{1, 4}
    assert.truthy(text:find "label 4 at position 2")
    text = of{0, 1}
    assert.truthy(text:find "label 0 at position 1")
  end)

  it("on a freed tensor says so", function()
    local t = dm.ones(2)
    t:free()
    assert.truthy(message(function() return t + 1 end):find "freed")
    assert.equal("[freed tensor]", tostring(t))
  end)

  it("leaves its operands as they were", function()
    local a = dm.ones(2)
    pcall(function() a:add_(dm.ones(3)) end)
    pcall(function() a:copy_(dm.ones(3)) end)
    assert.same({1.0, 1.0}, a:totable())
  end)
end)

describe("memory", function()
  it("counts as PyTorch counts", function()
    collectgarbage()
    local before = dm.memory_stats(DEVICE)
    local t <close> = dm.empty(1000, {dtype = "uint8"})
    local after = dm.memory_stats(DEVICE)
    assert.equal(1024, after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"])
    assert.equal(1000, after["requested_bytes.all.current"] - before["requested_bytes.all.current"])
    assert.is_true(t ~= nil)
  end)

  it("resets the peak to what is in use", function()
    local t = dm.empty(1 << 20)
    t:free()
    assert.is_true(dm.max_memory_allocated(DEVICE) >= dm.memory_allocated(DEVICE) + (4 << 20))
    dm.reset_peak_memory_stats(DEVICE)
    assert.equal(dm.memory_allocated(DEVICE), dm.max_memory_allocated(DEVICE))
  end)

  it("is freed at the end of a scope, but for what is kept or returned", function()
    local inner, kept
    local out = dm.scope(function()
      inner = dm.ones(4)
      kept = dm.keep(dm.ones(4))
      return inner + 1
    end)
    assert.same({2.0, 2.0, 2.0, 2.0}, out:totable())
    assert.same({1.0, 1.0, 1.0, 1.0}, kept:totable())
    assert.refuses("scope", function() return inner + 1 end)
  end)

  it("of gradients survives the scope", function()
    local w = dm.ones(2, {requires_grad = true})
    do
      local _ <close> = dm.scope();
      (w * 2):sum():backward()
    end
    assert.same({2.0, 2.0}, w.grad:totable())
  end)

  it("that cannot be had is an error, and the program goes on", function()
    assert.refuses("out of memory", function() return dm.empty(1 << 42) end)
    assert.equal(2.0, (dm.ones(1) + 1):item())
  end)

  -- In a process of its own: how far garbage may grow follows from what lived before.
  it("stays flat without scopes, because garbage is collected #slow", function()
    local program = [[
      local dm = require "demilune"
      local _ <close> = dm.device(DEVICE)
      for _ = 1, 200 do
        local a = dm.empty(1 << 22) -- 16 MiB each, 3.2 GiB in all
        a:zero_()
      end
      print(dm.max_memory_allocated(DEVICE))]]
    local command = ("LUA_PATH='%s' LUA_CPATH='%s' lua5.4 -e '%s'"):format(package.path,
      package.cpath, (program:gsub("DEVICE", '"' .. DEVICE .. '"')))
    local pipe <close> = assert(io.popen(command))
    local peak = assert(math.tointeger(pipe:read "n"))
    assert.is_true(peak >= 16 << 20 and peak < 100 << 20, peak)
  end)
end)

describe("random numbers", function()
  it("come from a generator of one's own where one is named", function()
    local g = dm.Generator():manual_seed(7)
    dm.manual_seed(7)
    local all = {dm.rand(3), dm.randn(2, 2), dm.randint(5, {4}), dm.randperm(6),
      dm.zeros(3):uniform_(), dm.zeros(3):normal_(), dm.full(4, 0.5):bernoulli()}
    local state = dm.get_rng_state()
    local own = {dm.rand(3, {generator = g}), dm.randn(2, 2, {generator = g}),
      dm.randint(5, {4}, {generator = g}), dm.randperm(6, {generator = g}),
      dm.zeros(3):uniform_{generator = g}, dm.zeros(3):normal_{generator = g},
      dm.full(4, 0.5):bernoulli{generator = g}}
    for i, drawn in ipairs(all) do assert.same(drawn:totable(), own[i]:totable()) end
    assert.same(state, dm.get_rng_state()) -- untouched
    assert.same(state, g:get_state())
    assert.equal(7, g:initial_seed())
    local again = dm.rand(3, {generator = g})
    assert.same(again:totable(), dm.rand(3, {generator = g:set_state(state)}):totable())
    assert.matches("^Generator%(seed = 7, offset = %d+%)$", tostring(g))
    assert.refuses("dm.Generator%(%) expected, got number", function()
      dm.rand(3, {generator = 7})
    end)
    assert.refuses("did you mean 'generator'", function() dm.rand(3, {genrator = g}) end)
    assert.refuses("unknown option 'generator'", function() dm.ones(3, {generator = g}) end)
  end)

  it("follow the seed", function()
    dm.manual_seed(7)
    local a, b = dm.rand(5), dm.randn(5)
    dm.manual_seed(7)
    assert.is_true(a:equal(dm.rand(5)) and b:equal(dm.randn(5)))
  end)

  it("do not depend on the number of threads", function()
    local n = dm.get_num_threads()
    local draws = {}
    for i, threads in ipairs{1, 3} do
      dm.set_num_threads(threads)
      dm.manual_seed(1)
      draws[i] = dm.randn(200000)
    end
    dm.set_num_threads(n)
    assert.is_true(draws[1]:equal(draws[2]))
  end)
end)

describe("a list of many tensors", function()
  it("is joined, whatever its length", function()
    for _, n in ipairs{1, 16, 17, 100} do
      local parts = {}
      for i = 1, n do parts[i] = dm.full({1}, i) end
      assert.equal(n * (n + 1) // 2, dm.cat(parts, 1):sum():item())
    end
  end)
end)
