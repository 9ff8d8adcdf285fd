-- What outlives its owner: names of custom functions after backward, forgotten scopes, loaders in
-- the child of a fork.

local dm = require "demilune"
local folder = require "spec.folder"
local path, write, run = folder.path, folder.write, folder.run
setup(folder.make)
teardown(folder.remove)

describe("A custom function's name", function()
  local Double = dm.autograd.Function{name = "DoubleOfManyLettersThatFillTheMemory",
    forward = function(_, x) return x * 2 end, backward = function(_, g) return g * 2 end}

  it("stays readable after backward has let the function go", function()
    local x = dm.ones(3, {requires_grad = true})
    local y = Double(x)
    y:sum():backward()
    local held = {}
    for i = 1, 200 do held[i] = ("x"):rep(40 + i) end -- whoever takes the freed block
    for _ = 1, 50 do Double(x):sum():backward() end
    collectgarbage()
    assert.equal(200, #held)
    assert.equal("DoubleOfManyLettersThatFillTheMemory", y.grad_fn)
    assert.matches("DoubleOfManyLettersThatFillTheMemory", tostring(y))
    assert.refuses("DoubleOfManyLettersThatFillTheMemory", function() y:sum():backward() end)
  end)

  it("is whole in the error of a backward that ran itself a second time", function()
    local y
    local Inner = dm.autograd.Function{name = "Inner", forward = function(_, x) return x * 1 end,
      backward = function()
        pcall(function() y:sum():backward() end)
        collectgarbage()
        error "on purpose"
      end}
    y = Inner(dm.ones(2, {requires_grad = true}))
    assert.refuses("on purpose", function() y:sum():backward() end)
    assert.equal("Inner", y.grad_fn)
  end)
end)

describe("A forgotten dm.scope()", function()
  it("warns when it is collected, and releases nothing", function()
    local script = write("forgotten.lua", ([[
      package.path, package.cpath = %q, %q
      local dm = require "demilune"
      warn "@on"
      local function forget() dm.scope() end
      forget()
      local kept = {}
      for i = 1, 20 do kept[i] = dm.full({3}, i) end
      collectgarbage() collectgarbage()
      local sum = 0
      for i = 1, 20 do sum = sum + kept[i]:sum():item() end
      print("sum", sum)
      do local _ <close> = dm.scope(); kept[1] = dm.ones(1) end
      print("closed", tostring(kept[1]))]]):format(package.path, package.cpath))
    local text, code = run("lua5.4 " .. script)
    assert.equal(0, code, text)
    assert.matches("forgotten.lua:4: warning: scope: this scope was never closed", text)
    assert.matches("sum\t630", text)
    assert.matches("closed\t%[tensor released by its scope%]", text)
  end)
end)

describe("A fork", function()
  it("leaves the loader's workers behind: the child is told, and ends", function()
    local library = path "process.so"
    assert(os.execute(("cc -shared -fPIC $(pkg-config --cflags lua5.4) -o %s spec/process.c")
      :format(library)))
    local script = write("forked.lua", ([[
      package.path, package.cpath = %q, %q
      local process = package.loadlib(%q, "luaopen_process")()
      local dm = require "demilune"
      local Numbers = dm.data.Dataset:extend "Numbers" -- read by Lua states
      function Numbers:len() return 64 end
      function Numbers:get(i) return i end
      local child
      -- an epoch's sum; a fork in its third batch
      local function epoch(loader, forks)
        local sum, n = 0, 0
        for _, x in loader do
          sum, n = sum + x:sum():item(), n + 1
          if forks and n == 3 then child = process.fork() end
        end
        return sum
      end
      for _, kind in ipairs{"columns", "states"} do
        local set = kind == "columns" and dm.data.TensorDataset(dm.arange(64)) or Numbers()
        local loader = dm.data.DataLoader(set, {batch_size = 4, num_workers = 2})
        local ok, result = pcall(epoch, loader, true)
        if child == 0 then
          print("child", kind, ok, result, epoch(loader))
          os.exit(0, true)
        end
        print("parent", kind, result, process.wait(child))
      end]]):format(package.path, package.cpath, library))
    local text, code = run("timeout 20 lua5.4 " .. script)
    assert.equal(0, code, text)
    for _, kind in ipairs{"columns", "states"} do
      assert.matches("parent\t" .. kind .. "\t2080\t0", text)
      assert.matches("child\t" .. kind .. "\tfalse\t[^\n]*workers stayed behind when this process "
        .. "was forked[^\n]*\t2080", text)
    end
  end)
end)
