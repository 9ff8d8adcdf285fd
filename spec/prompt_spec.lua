-- `lua5.4 -i` prints tensors, modules and errors readably: the spec feeds it line by line.

local function session(lines)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(lines)
  f:close()
  local command = ("LUA_INIT= LUA_PATH='%s' LUA_CPATH='%s' lua5.4 -i <%s 2>&1"):format(
    package.path, package.cpath, path)
  local p = assert(io.popen(command))
  local text = p:read "a"
  p:close()
  os.remove(path)
  return text
end

describe("at the prompt", function()
  local text = session[[
dm = require "demilune"
dm.tensor{{1, 2}, {3, 4.5}}
dm.nn.Sequential{dm.nn.Linear(784, 256), dm.nn.ReLU(), dm.nn.Linear(256, 10)}
dm.amp.GradScaler{device = "cpu"}
dm.optim.SGD({dm.ones(2, {requires_grad = true})}, {lr = 0.1})
dm.no_grad(function() return dm.ones(1):requires_grad_() * 2 end)
dm.ones(2, 3):matmul(dm.ones(2, 2))
dm.help "conv2d"
]]
  local function shows(what) assert.truthy(text:find(what, 1, true), what .. " in:\n" .. text) end

  it("tensors print values, dtype, shape and device", function()
    shows "[float32 tensor {2, 2} cpu]"
    shows "4.5000"
  end)
  it("modules print as their constructor with parameter counts", function()
    shows "Linear(784 -> 256)"
    shows "203,530 parameters"
  end)
  it("scaler and optimizer print in a line", function()
    shows "GradScaler(scale = 65536"
    shows "SGD(lr = 0.1"
  end)
  it("scopes work line by line with a function", function() shows "[float32 tensor {1} cpu]" end)
  it("errors come with the line", function()
    shows "stdin:1: matmul: {2, 3} x {2, 2}: dim 2 of the left is 3, dim 1 of the right is 2"
  end)
  it("help answers from the op table, once", function()
    shows "2-d convolution"
    local _, times = text:gsub("2%-d convolution", "")
    assert.equal(1, times)
  end)
end)
