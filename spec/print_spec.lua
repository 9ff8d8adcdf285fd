-- dm.set_printoptions: digits, edges, lines and exponents of tensors that are printed.

local dm = require "demilune"

-- The lines of a printed tensor without the last one, which has dtype and shape.
local function lines(t)
  local list = {}
  for line in tostring(t):gmatch "([^\n]*)\n" do list[#list + 1] = line end
  return list
end

describe("set_printoptions", function()
  after_each(function() dm.set_printoptions{profile = "default"} end)

  it("sets the digits", function()
    local x = dm.tensor{1 / 3, 2000.125}
    assert.same({"  0.3333  2000.1"}, lines(x))
    dm.set_printoptions{precision = 2}
    assert.same({"     0.33  2000.12"}, lines(x))
    dm.set_printoptions(6)
    assert.same({"     0.333333  2000.125000"}, lines(x))
    assert.equal("0.500000", tostring(dm.tensor(0.5)):match "^%S+")
    assert.same({"  1.  2."}, lines(dm.tensor{1.0, 2.0}))
    dm.set_printoptions{precision = 1000}
    assert.matches("^0%.50000000000000000000", tostring(dm.tensor(0.5)))
  end)

  it("sets where a tensor is cut, and what is left", function()
    assert.equal(19, select(2, lines(dm.arange(1, 40))[1]:gsub("%S+", ""))) -- 18 and dots fit
    local x = dm.arange(1, 12)
    dm.set_printoptions{threshold = 12}
    assert.same({"   1   2   3   4   5   6   7   8   9  10  11  12"}, lines(x))
    dm.set_printoptions{threshold = 0, edgeitems = 1}
    assert.same({"   1  ...  12"}, lines(x))
    assert.same({"   1  ...   4", "  ...", "   9  ...  12"}, lines(x:reshape(3, 4)))
    dm.set_printoptions{edgeitems = 0}
    assert.same({"  ..."}, lines(x))
    dm.set_printoptions{threshold = math.huge}
    assert.equal(20, #lines(dm.zeros(20, 15)))
    assert.equal(15, select(2, lines(dm.zeros(20, 15))[20]:gsub("%S+", "")))
  end)

  it("sets the length of lines", function()
    dm.set_printoptions{linewidth = 12, threshold = 100}
    assert.same({"   1   2   3", "   4   5  60", "   1"}, lines(dm.tensor({1, 2, 3, 4, 5, 60, 1},
      {dtype = "int64"})))
    dm.set_printoptions{linewidth = 1}
    assert.same({"  1", "  2"}, lines(dm.tensor({1, 2}, {dtype = "int64"})))
  end)

  it("fits rows into a line of the terminal, of 20 characters at least", function()
    if os.execute "command -v script >/dev/null" ~= true then
      return pending "`script`, of Debian's bsdutils, is not there"
    end
    local code = "local dm = require 'demilune' print(dm.ones(3, 50)) print(dm.arange(1, 10))"
    for _, columns in ipairs{5, 20, 41, 200} do
      local inner = ("stty cols %d; LUA_INIT= LUA_PATH='%s' LUA_CPATH='%s' lua5.4 -e \"%s\"")
        :format(columns, package.path, package.cpath, code)
      local pipe = io.popen(("script -qec %q /dev/null </dev/null"):format(inner))
      local longest, count = 0, 0
      for line in pipe:lines() do
        line = line:gsub("\r", "")
        if not line:find "tensor" then
          longest, count = math.max(longest, #line), count + 1
        end
      end
      pipe:close()
      assert.is_true(longest <= math.max(columns, 20), columns .. ": " .. longest)
      assert.is_true(longest > math.max(columns, 20) - 5)
      assert.is_true(count >= 4)
    end
  end)

  it("sets exponents, of numbers of any size", function()
    local x = dm.tensor({1.0, 1e-7, 1e300}, {dtype = "float64"})
    dm.set_printoptions{sci_mode = true, precision = 2}
    assert.same({"  1.00e+00  1.00e-07  1.00e+300"}, {(lines(x)[1]:gsub(" +", "  "))})
    dm.set_printoptions{sci_mode = false, linewidth = 2000}
    local text = lines(x)[1]
    assert.matches("^ +1%.00 +0%.00  10000+", text)
    assert.equal(3 * (2 + 301 + 3), #text)
    dm.set_printoptions{}
    assert.matches("1%.00e%-07", lines(x)[1])
  end)

  it("takes profiles, and keeps what was set", function()
    local x = dm.arange(1, 2000):reshape(40, 50) / 7
    local before = tostring(x)
    dm.set_printoptions{profile = "short"}
    assert.equal(5, #lines(x))
    assert.matches("^ +0%.14 +0%.29 +%.%.%. +7%.00 +7%.14$", lines(x)[1])
    dm.set_printoptions{precision = 1}
    assert.matches("^ +0%.1 +0%.3 +%.%.%. +7%.0 +7%.1$", lines(x)[1])
    dm.set_printoptions{profile = "full", linewidth = 10000}
    assert.equal(40, #lines(x))
    dm.set_printoptions{profile = "default"}
    assert.equal(before, tostring(x))
  end)

  it("refuses what it cannot be", function()
    assert.refuses("precision is %-1", function() dm.set_printoptions{precision = -1} end)
    assert.refuses("profile is 'long', wanted 'default'", function()
      dm.set_printoptions{profile = "long"}
    end)
    assert.refuses("did you mean 'edgeitems'", function() dm.set_printoptions{edgeitem = 1} end)
  end)
end)

describe("what a prompt shows", function()
  local nn, optim = dm.nn, dm.optim

  it("writes neighbours that are alike once", function()
    local Block = nn.Module:extend "Block"
    function Block:init(n) self.linear = nn.Linear(n, n) end
    local model = nn.Sequential{Block(2), Block(2), Block(2), Block(3), nn.ReLU(), nn.ReLU()}
    assert.equal([[
Sequential {
  [1] to [3]: 3 x Block {
    linear Linear(2 -> 2)   6
  }                         6
  [4] Block {
    linear Linear(3 -> 3)  12
  }                        12
  [5] ReLU
  [6] ReLU
}                          30 parameters, 120 B float32]], tostring(model))
  end)

  it("writes classes with their arguments, and modules as their names", function()
    assert.equal("class Linear(in_features, out_features, bias = true, device?, dtype?, *, "
      .. "activation = 'none')",
      tostring(nn.Linear))
    assert.matches("^class Adam%(params, .*lr = 0.001", tostring(optim.Adam))
    assert.equal("class Foo", tostring(nn.Module:extend "Foo"))
    assert.matches("^{\n.* Adam .* LBFGS .*}$", tostring(optim))
    assert.matches("^{%d+ names; hint: dm%.help%(%)}$", tostring(dm))
    for line in tostring(nn):gmatch "[^\n]+" do assert.is_true(#line < 80, line) end
  end)

  it("writes metrics, trainers and limits of dtypes in a line or a few", function()
    assert.equal("Accuracy(no samples yet)", tostring(dm.metrics.Accuracy()))
    local model = nn.Linear(2, 1)
    local trainer = dm.Trainer{model = model, loss = nn.MSELoss(),
      optimizer = optim.SGD(model:parameters(), {lr = 0.1})}
    assert.equal("Trainer(model = Linear, loss = MSELoss, optimizer = SGD, float32 on "
      .. model.weight.device .. ", 0 epochs done)", tostring(trainer))
    assert.matches("eps = 1%.19209", tostring(dm.finfo "float32"))
    assert.matches("max = 127", tostring(dm.iinfo "int8"))
  end)
end)
