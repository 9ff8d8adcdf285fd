-- Tables that load their values when they are read (lua/demilune/late.lua).
local dm = require "demilune"
local late = require "demilune.late"

local function names_of(t)
  local set = {}
  for name in pairs(t) do set[name] = true end
  return set
end

-- The public names of the files of a folder, where each file returns a table of them.
local function in_files(folder, files, hidden)
  local set = {}
  for _, file in ipairs(files) do
    for name in pairs(require("demilune." .. folder .. "." .. file)) do
      if not (hidden or {})[name] then set[name] = true end
    end
  end
  return set
end

-- Runs a program in a process of its own; what it printed.
local function ran(program)
  local script = os.tmpname()
  local file <close> = assert(io.open(script, "w"))
  assert(file:write(program))
  file:close()
  local out <close> = assert(io.popen(("LUA_PATH=%q LUA_CPATH=%q lua5.4 %s 2>&1")
    :format(package.path, package.cpath, script)))
  local text = out:read "a"
  os.remove(script)
  return text
end

describe("names that are loaded late", function()
  it("are all given by pairs, and each has a value", function()
    for _, part in ipairs{"nn", "optim", "data", "amp", "models", "vision", "linalg", "fft",
      "special"} do
      local count = 0
      for name in pairs(late.names(dm[part])) do
        count = count + 1
        assert.is_not_nil(dm[part][name], part .. "." .. name)
      end
      assert.is_true(count > 3, part)
      assert.same(late.names(dm[part]), names_of(dm[part]))
    end
    assert.is_function(names_of(dm) and dm.linalg.inv)
    assert.is_true(names_of(dm).Trainer and names_of(dm).conv2d and names_of(dm).nn)
    assert.is_true(names_of(dm.nn.functional).relu)
    assert.is_true(names_of(dm.optim).LBFGS and names_of(dm.optim).swa_utils)
  end)

  it("list all that their files hold", function()
    local nn = names_of(dm.nn)
    for name in pairs(in_files("nn", {"conv", "shape", "norm", "rnn", "attention", "adaptive",
      "lazy", "containers", "linear", "activation", "loss"})) do
      assert.is_true(nn[name], "nn." .. name)
    end
    local utils = names_of(dm.nn.utils)
    for name in pairs(in_files("nn", {"checkpoint", "weights"})) do
      assert.is_true(utils[name], "nn.utils." .. name)
    end
    local vision = names_of(dm.vision)
    for name in pairs(in_files("vision", {"nms", "losses", "roi", "layers"})) do
      assert.is_true(vision[name], "vision." .. name)
    end
    local optim = names_of(dm.optim)
    for name in pairs(in_files("optim", {"methods", "composed"}, {class = true})) do
      assert.is_true(optim[name], "optim." .. name)
    end
  end)

  it("cost a program nothing that does not use them", function()
    local text = ran [[
      local dm = require "demilune"
      local nn = dm.nn
      local model = nn.Sequential{nn.Linear(2, 3), nn.Dropout(0.1), nn.ReLU()}
      local optimizer = dm.optim.Adam(model:parameters())
      for name in pairs(package.loaded) do
        if name:find "^demilune%.ops" or name:find "^demilune%.nn%.lazy" then print(name) end
      end
      print "ran"
    ]]
    assert.equal("ran\n", text)
  end)

  it("are of one copy, also where package.loaded was emptied before they are read", function()
    local text = ran [[
      local dm = require "demilune"
      local model = dm.nn.Sequential{dm.nn.Linear(4, 4)}
      for name in pairs(package.loaded) do
        if name:find "^demilune" then package.loaded[name] = nil end
      end
      assert(#dm.nn.Sequential{model, dm.nn.BatchNorm1d(4)}:parameters() == 4)
      assert(dm.models.lenet():parameters()[1].requires_grad)
      assert(dm.optim.LBFGS(model:parameters()) and dm.nn.utils.parametrize)
      assert(package.loaded["demilune.nn.module"] == nil)
      print "one"
    ]]
    assert.equal("one\n", text)
  end)
end)
