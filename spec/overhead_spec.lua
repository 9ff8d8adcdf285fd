-- Bounds the CPU instructions of a call. Instructions are counted, not time: they do not depend
-- on other load. Lua's collector is stopped, because its pace varies. The bounds leave a sixth for
-- another compiler, C library or Lua.

local script = os.tmpname()

local PROGRAM = [=[
package.path, package.cpath = %q, %q
local dm = require "demilune"
dm.set_num_threads(1)
local nn, x, p = dm.nn, dm.randn(1), dm.nn.Parameter(dm.randn(1))
local model = nn.Sequential{nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)}
local optimizer, criterion = dm.optim.Adam(model:parameters()), nn.CrossEntropyLoss()
local images, labels = dm.randn(8, 16), dm.randint(4, {8})
local calls = {plain = function() return x + x end, recorded = function() return p + x end}
function calls.step() -- one whole step of Adam
  optimizer:zero_grad()
  criterion(model(images), labels):backward()
  optimizer:step()
end
local f = calls[arg[1]]
collectgarbage()
collectgarbage "stop"
for _ = 1, tonumber(arg[2]) do f() end
os.exit(true, false)
]=]

-- Instructions of a program that makes n such calls.
local function instructions(call, n)
  local pipe = assert(io.popen(("valgrind --tool=callgrind --callgrind-out-file=/dev/null "
    .. "lua5.4 %s %s %d 2>&1"):format(script, call, n)))
  local text = pipe:read "a"
  pipe:close()
  return assert(tonumber(text:match "Collected : (%d+)"), text)
end

local function per_call(call)
  return (instructions(call, 3000) - instructions(call, 1000)) / 2000
end

describe("a call through Lua", function()
  setup(function()
    local file = assert(io.open(script, "w"))
    file:write(PROGRAM:format(package.path, package.cpath))
    file:close()
  end)
  teardown(function() os.remove(script) end)

  for call, most in pairs{plain = 3100, recorded = 3750, step = 83000} do
    it(("takes at most %d instructions, %s #slow"):format(most, call), function()
      if not os.execute "valgrind --version >/dev/null 2>&1" then return pending "no valgrind" end
      local n = per_call(call)
      assert.is_true(n < most, ("%.0f instructions"):format(n))
    end)
  end
end)
