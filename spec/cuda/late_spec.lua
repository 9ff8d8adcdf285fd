-- The emulated device where work runs late (DEMILUNE_EMULATED_LATE): what a program forgets to wait
-- for, it does not find there. Each program runs in a process of its own.

local dm = require "demilune"
local both = require "spec.cuda.both"
local folder = require "spec.folder"

if both.missing() then return end
if not dm.cuda.get_device_name():find "^Emulated" then return end

-- The output of a program, where work runs at the last moment (or at once: late is "0").
local function run(program, late)
  local script = folder.write("late.lua", "local dm = require 'demilune'\n" .. program)
  return (folder.run(("DEMILUNE_EMULATED_LATE=%s LUA_PATH='%s' LUA_CPATH='%s' lua5.4 %s"):format(
    late or "1", package.path, package.cpath, script)))
end

describe("work that runs late", function()
  setup(folder.make)
  teardown(folder.remove)

  local function other_stream(wait)
    return ([[
      local s, y = dm.cuda.Stream(), nil
      local x = dm.ones(1000, {device = "cuda"}) * 3
      %s
      dm.cuda.stream(s, function() y = x + 1 end)
      s:synchronize()
      print(y[1]:item(), s:query())]]):format(wait)
  end

  it("shows a stream that does not wait for another", function()
    assert.matches("^4%.0\ttrue", run(other_stream "", "0"))
    assert.matches("^%-?nan\ttrue", run(other_stream ""))
    assert.matches("^4%.0\ttrue", run(other_stream "s:wait_stream(dm.cuda.current_stream())"))
  end)

  local function reused(record)
    return ([[
      local s, y = dm.cuda.Stream(), nil
      local x = dm.ones(1000, {device = "cuda"})
      dm.cuda.synchronize()
      dm.cuda.stream(s, function() y = x + 1 end)
      %s
      x = nil
      collectgarbage()
      local z = dm.full({1000}, 7.0, {device = "cuda"})
      print(z[1]:item())
      s:synchronize()
      print(y[1]:item())]]):format(record)
  end

  it("shows memory that is reused while another stream reads it", function()
    assert.matches("^7%.0\n2%.0", run(reused "", "0"))
    assert.matches("^7%.0\n8%.0", run(reused ""))
    assert.matches("^7%.0\n2%.0", run(reused "x:record_stream(s)"))
  end)

  local function pinned(wait)
    return ([[
      local p = dm.ones(1000, {device = "cpu"}):pin_memory()
      local y = p:to("cuda", {non_blocking = true})
      %s
      p:fill_(5)
      print(y[1000]:item())]]):format(wait)
  end

  it("shows a host that changes pinned memory before it is read", function()
    assert.matches("^1%.0", run(pinned "", "0"))
    assert.matches("the host changed the pinned memory at", run(pinned ""))
    assert.matches("^1%.0", run(pinned "dm.cuda.synchronize()"))
  end)

  it("copies between devices behind what the target's stream has still to do", function()
    if dm.cuda.device_count() < 2 then return end
    assert.matches("^1%.0", run [[
      local from = dm.ones(4, {device = "cuda:1"})
      local to = dm.full({4}, 3.0, {device = "cuda:0"})
      to:copy_(from)
      dm.cuda.synchronize "cuda:1"
      print(to[1]:item())]])
  end)

  it("keeps the counts of two scalers apart, of which one has the other's memory", function()
    local text = run [[
      local _ <close> = dm.device "cuda"
      local function updates(n, gradient, patience)
        local p = dm.nn.Parameter(dm.ones(3))
        local scaler = dm.amp.GradScaler{init_scale = 1, patience = patience}
        local optimizer = dm.optim.SGD({p}, {lr = 0.1})
        for _ = 1, n do
          scaler:scale(p:sum()):backward()
          p.grad = dm.full({3}, gradient)
          scaler:step(optimizer)
          scaler:update()
        end
      end
      updates(9, math.huge, 1000)
      collectgarbage()
      updates(9, 1.0, 3)
      print "no warning"]]
    assert.equal("no warning\n", text)
  end)

  it("does not change what waits for itself", function()
    local program = [[
      dm.manual_seed(3)
      local _ <close> = dm.device "cuda"
      local net = dm.nn.Sequential(dm.nn.Linear(8, 16), dm.nn.ReLU(), dm.nn.Dropout(0.3),
        dm.nn.Linear(16, 3))
      local opt = dm.optim.AdamW(net:parameters(), {lr = 0.01})
      local scaler = dm.amp.GradScaler()
      local losses = {}
      for i = 1, 12 do
        local x, target = dm.randn(20, 8), dm.randint(1, 3, {20})
        local loss
        do
          local _ <close> = dm.amp.autocast "cuda"
          loss = dm.nn.functional.cross_entropy(net(x), target)
        end
        opt:zero_grad()
        scaler:scale(loss):backward()
        scaler:step(opt)
        scaler:update()
        losses[i] = loss
      end
      for i, loss in ipairs(losses) do losses[i] = ("%a"):format(loss:item()) end
      print(table.concat(losses, " "))]]
    local want = run(program, "0")
    assert.matches("^0x%x", want)
    for seed = 1, 8 do assert.equal(want, run(program, tostring(seed))) end
  end)
end)
