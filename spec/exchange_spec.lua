-- x.data = y between forward and backward: for every row of dm.ops() and each of its tensors, a
-- backward pass raises an error that names the exchange, or its gradients are those of the data
-- that the forward pass read. Nothing reads beyond the end of a tensor (scripts/test runs this
-- under AddressSanitizer, too).

local dm = require "demilune"
local case = require "spec.case"
local samples = require "spec.samples"
local device = require("spec.device").type

local REFUSALS = {"were exchanged afterwards", "backward before x%.data = y"}

local function is_refusal(text)
  for _, pattern in ipairs(REFUSALS) do
    if text:match(pattern) then return true end
  end
  return false
end

-- Other data for a tensor x: what is exchanged in a test is named by the key.
local OTHER = {
  ["the same shape"] = function(x) return dm.zeros_like(x) end,
  ["longer"] = function(x)
    local shape = {table.unpack(x.shape)}
    for d = 1, #shape do shape[d] = shape[d] + 3 end
    if #shape == 0 then shape = {7} end
    return dm.zeros(shape, {dtype = x.dtype})
  end,
  ["empty"] = function(x)
    local shape = {table.unpack(x.shape)}
    shape[math.max(#shape, 1)] = 0
    return dm.zeros(shape, {dtype = x.dtype})
  end,
  ["without dims"] = function(x) return dm.zeros({}, {dtype = x.dtype}) end,
  ["another dtype"] = function(x)
    return dm.zeros(x.shape, {dtype = x.requires_grad and "float16" or "uint8"})
  end,
  ["other strides"] = function(x)
    local wide = {table.unpack(x.shape)}
    wide[#wide + 1] = 2
    return dm.zeros(wide, {dtype = x.dtype}):select(-1, 1)
  end,
}

-- The arguments of a call without the fields that say how to test it, and its tensors in a fixed
-- order: as they stand in the call.
local function decode(call)
  local made, tensors = {}, {}
  local function build(v)
    if type(v) ~= "table" then return v end
    if case.is_literal(v) then
      made[v] = case.build(dm, v, {grad = true})
      tensors[#tensors + 1] = made[v]
      return made[v]
    end
    local out, keys = {}, {}
    for key in pairs(v) do keys[#keys + 1] = key end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    for _, key in ipairs(keys) do out[key] = build(v[key]) end
    return out
  end
  local args = build(call)
  for _, name in ipairs{"grad", "once", "random", "dense", "pointwise", "plain"} do
    args[name] = nil
  end
  return args, tensors
end

-- The sum of all outputs that have a history, or nil.
local function total_of(name, args)
  local total
  for _, y in ipairs(case.call(dm, name, args)) do
    if type(y) == "userdata" and y.requires_grad then
      local part = (y * y):sum()
      total = total and total + part or part
    end
  end
  return total
end

local function gradients(tensors)
  local out = {}
  for i, x in ipairs(tensors) do out[i] = x.grad and case.values(x.grad) or false end
  return out
end

-- Each exchange of one call; returns how many backward passes were refused.
local function exchange_all(name, call)
  dm.manual_seed(1)
  local args, tensors = decode(call)
  local total, refused = total_of(name, args), 0
  if not total then return 0 end
  total:backward()
  local want = gradients(tensors)
  for i = 1, #tensors do
    for what, other in pairs(OTHER) do
      dm.manual_seed(1)
      local again, operands = decode(call)
      local sum = total_of(name, again)
      operands[i].data = other(operands[i])
      local ok, text = pcall(sum.backward, sum)
      if ok then
        assert.same(want, gradients(operands), name .. ": tensor " .. i .. ", " .. what)
      else
        refused = refused + 1
        assert.is_true(is_refusal(text), name .. ": tensor " .. i .. ", " .. what .. ": " .. text)
      end
    end
  end
  return refused
end

describe("data exchanged between forward and backward", function()
  local names = {}
  for name in pairs(samples) do
    if name ~= "cast" then names[#names + 1] = name end -- x:to() records it
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local is_function = type(rawget(dm, name) or dm.nn.functional[name]) == "function"
    local is_method = not is_function and not name:match "_$" and dm.methods[name]
    it("of " .. name .. " are noticed, or play no part", function()
      exchange_all(is_method and "x:" .. name or name, samples[name][1])
    end)
  end

  it("are refused where a gradient reads them", function()
    assert.is_true(exchange_all("linear", samples.linear[1]) > 0)
    assert.is_true(exchange_all("exp", samples.exp[1]) > 0)
  end)

  it("names the op, the tensor and the script's line", function()
    local x = dm.ones({2, 3}, {requires_grad = true})
    local w = dm.ones({4, 3}, {requires_grad = true})
    local y = dm.nn.functional.linear(x, w):sum()
    x.data = dm.ones({5})
    local ok, text = pcall(function() y:backward() end)
    assert.is_false(ok)
    assert.matches("exchange_spec%.lua:%d+: .*the data of input 1 %(x%) of linear", text)
    assert.matches("exchanged afterwards for a float32 tensor of shape {5}", text)
  end)

  it("leave those in use that no gradient is of", function()
    local x, w = dm.full({3}, 2.0), dm.ones({3}, {requires_grad = true})
    local y = (x * w):sum()
    x.data = dm.ones({5})
    y:backward()
    assert.same({2, 2, 2}, w.grad:totable())
  end)

  it("are noticed in a tensor that a function saved itself", function()
    local Twice = dm.autograd.Function{
      name = "Twice",
      forward = function(ctx, x, k)
        ctx:save_for_backward(x, k)
        return x * k
      end,
      backward = function(ctx, gy)
        local _, k = ctx:saved_tensors()
        return gy * k
      end,
    }
    local x, k = dm.ones({2}, {requires_grad = true}), dm.ones({2}, {requires_grad = true})
    local y = Twice(x, k):sum()
    k.data = dm.ones({3})
    assert.error_matches(function() y:backward() end, "input 2 of Twice.*exchanged")
  end)

  it("are noticed by a checkpoint", function()
    local w = dm.ones({3}, {requires_grad = true})
    local y = dm.nn.utils.checkpoint(function(x) return (x * w):exp() end,
      dm.ones({3}, {requires_grad = true})):sum()
    w.data = dm.ones({3})
    assert.error_matches(function() y:backward() end, "exchanged")
  end)
end)

describe("x.data = y", function()
  it("leaves a tensor as it was for a call that reads it while a finalizer runs", function()
    for name, read in pairs{totable = function(x) return x:totable() end, print = tostring} do
      local x = dm.ones(20000, 3)
      local wanted, reads, ran, during = read(x), false, false, false
      collectgarbage("incremental", 108, 1000) -- a cycle begins after 8 % more memory
      collectgarbage()
      setmetatable({}, {__gc = function()
        ran, during = true, reads
        x.data = dm.zeros(1)
      end})
      local found
      for _ = 1, 100 do -- of which one ends a cycle, however much memory there is
        reads = true
        found = read(x)
        reads = false
        if ran then break end
      end
      collectgarbage("incremental", 200, 100)
      collectgarbage()
      assert.is_true(during or name == "print") -- which may allocate too little
      assert.same(wanted, found, name)
    end
  end)

  it("leaves views with the old data, and they are views no longer", function()
    local x = dm.zeros({4})
    local v = x:narrow(1, 1, 2)
    x.data = dm.zeros({1})
    v:add_(dm.ones({2}, {requires_grad = true}))
    assert.is_false(x.requires_grad)
    assert.same({1, 1}, v:totable())
    v:sum():backward()
  end)

  it("is noticed by autocast's cache of casts", function()
    local w = dm.ones({2, 2}, {requires_grad = true})
    local x = dm.ones({1, 2})
    local before, after
    dm.amp.autocast({device_type = device, dtype = "bfloat16"}, function()
      before = dm.nn.functional.linear(x, w):totable()
      w.data = dm.full({2, 2}, 3.0)
      after = dm.nn.functional.linear(x, w):totable()
    end)
    assert.same({{2, 2}}, before)
    assert.same({{6, 6}}, after)
  end)

  it("wants floats where a gradient is required", function()
    local x = dm.ones({2}, {requires_grad = true})
    assert.error_matches(function() x.data = dm.ones({2}, {dtype = "int64"}) end, "float data")
  end)

  it("keeps a gradient of the old shape from being added to", function()
    local x = dm.ones({3}, {requires_grad = true})
    x:sum():backward()
    x.data = dm.ones({1})
    assert.error_matches(function() x:sum():backward() end, "x%.grad has shape {3}.*shape {1}")
    x.grad = nil
    x:sum():backward()
    assert.same({1}, x.grad:totable())
  end)

  it("of another shape is refused by the optimizers' state", function()
    local n = 0
    for name, class in pairs(dm.optim) do
      local p = dm.nn.Parameter(dm.ones({2, 3}))
      local made, optimizer = pcall(class, {p}, {lr = 0.1, momentum = name == "SGD" and 0.9 or nil})
      if made and name ~= "LBFGS" and type(optimizer) == "table" and optimizer.zero_grad then
        n = n + 1
        p.grad = dm.ones({2, 3})
        optimizer:step()
        p.data = dm.ones({4, 5})
        assert.error_matches(function() optimizer:step() end, "shape {4, 5}")
        p.grad = dm.ones({4, 5})
        assert.error_matches(function() optimizer:step() end, "shape {4, 5}.*a buffer {%d, %d}")
      end
    end
    assert.is_true(n >= 12, n .. " optimizers")
  end)

  it("takes a tensor's own data, and its views", function()
    local x = dm.ones({2, 3}, {requires_grad = true})
    x.data = x
    x.data = x.data:t()
    collectgarbage()
    assert.same({3, 2}, {table.unpack(x.shape)})
    x:sum():backward()
    assert.same({3, 2}, {table.unpack(x.grad.shape)})
  end)
end)

describe("a hook", function()
  it("that returns a gradient of another shape is refused", function()
    local x = dm.ones({3}, {requires_grad = true})
    x:register_hook(function() return dm.ones({5}) end)
    assert.error_matches(function() (x * 2):sum():backward() end, "shape")
    local y = dm.ones({3}, {requires_grad = true}):exp()
    y:register_hook(function() return dm.ones({5}) end)
    assert.error_matches(function() y:sum():backward() end, "shape")
  end)
end)
