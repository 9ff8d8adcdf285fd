-- The page "From PyTorch" (lua/demilune/README.md) and the list of what differs on purpose
-- (scripts/opinfo/differences.txt) say the same, about ops and classes that there are.

local dm = require "demilune"

local function text_of(path)
  local file = assert(io.open(path))
  local text = file:read "a"
  file:close()
  return text
end

-- The list's lines: {names, phase, failure, reason}.
local function differences()
  local list = {}
  for line in text_of "scripts/opinfo/differences.txt":gmatch "[^\n]+" do
    if line:sub(1, 1) ~= "#" then
      local parts = {}
      for part in (line .. " | "):gmatch "(.-) | " do parts[#parts + 1] = part end
      assert.equal(4, #parts, line)
      list[#list + 1] = parts
    end
  end
  return list
end

-- The reasons in the page's table of one column.
local function reasons()
  local list = {}
  local part = text_of "lua/demilune/README.md":match "## What differs on purpose\n(.-)\n## "
  for reason in part:gmatch "\n| ([^\n]-) |%f[\n]" do
    if reason ~= "here" then list[#list + 1] = reason end
  end
  return list
end

-- What a name of PyTorch's is here: an op of the table, a function, a method, a class, an
-- optimizer.
local function find(name)
  local at = dm
  for key in name:gmatch "[^.]+" do
    local ok, value = pcall(function() return at[key] end)
    at = ok and value or nil
    if at == nil then break end
  end
  if at ~= nil then return at end
  if dm.optim[name] then return dm.optim[name] end
  local ok, method = pcall(function() return dm.zeros(1)[name] end)
  return ok and method or nil
end

describe("the page From PyTorch", function()
  it("gives the reason of every difference, and no other", function()
    local want = {}
    for i, parts in ipairs(differences()) do want[i] = parts[4] end
    assert.is_true(#want > 5)
    assert.same(want, reasons())
  end)

  it("is about what there is", function()
    local ops = {}
    for _, row in ipairs(dm.ops()) do ops[row.name] = true end
    for _, parts in ipairs(differences()) do
      for name in parts[1]:gmatch "%S+" do
        local there = name == "*" or ops[(name:gsub("%.", "_"))] or find(name) ~= nil
        assert.is_true(there, name .. " is not there, but differs on purpose")
      end
    end
    assert.is_nil(find "nn.functional.no_such_op")
  end)

  it("has differences that are still so", function()
    assert.is_true(dm.equal(dm.tensor{true, false}, dm.eq(2, dm.tensor{2, 3})))
    assert.equal(3, #dm.linspace(1, 3, 3.0))
    assert.is_true(dm.equal(dm.ones(1), dm.cat{dm.ones(1), nil}))
    for _, name in ipairs{"squeeze_", "unsqueeze_", "transpose_", "t_"} do
      assert.is_nil(find(name), name)
    end
    local index, source = dm.tensor({1}, {dtype = "int64"}), dm.ones(1, {dtype = "float64"})
    assert.equal("float32", dm.zeros(2):scatter(1, index, source).dtype)
    assert.refuses("no second derivative", function()
      local x = dm.randn(5, 1, 3):log_softmax(3):detach():requires_grad_()
      local loss = dm.nn.functional.ctc_loss(x, dm.tensor({{2}}, {dtype = "int64"}), {5}, {1})
      dm.autograd.grad(loss, x, {create_graph = true})
    end)
  end)

  it("tells the most dims", function()
    local most = tonumber(text_of "lua/demilune/README.md":match "at most (%d+) dims")
    local shape = {}
    for i = 1, most do shape[i] = 1 end
    assert.equal(most, dm.zeros(shape):dim())
    shape[most + 1] = 1
    assert.refuses("at most " .. most, function() dm.zeros(shape) end)
  end)

  it("prints what its table of rules prints", function()
    local x = dm.arange(1, 6):reshape(2, 3)
    assert.same({2, 5}, x[{{}, 2}]:totable())
    assert.same({5, 7, 9}, x:sum(1):totable())
  end)
end)
