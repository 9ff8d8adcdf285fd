-- Scripts that pass wrong values to metamethods, or let a finalizer change what a call reads. Each
-- runs in a process of its own, so that a crash is a failed test.

local script = os.tmpname()

-- Whether the program ends by itself, and what it printed.
local function run(program)
  local file = assert(io.open(script, "w"))
  file:write(("package.path, package.cpath = %q, %q\n"):format(package.path, package.cpath),
    'local dm = require "demilune"\n', program, '\nprint "done"\n')
  file:close()
  local pipe = assert(io.popen("lua5.4 " .. script .. " 2>&1"))
  local text = pipe:read "a"
  pipe:close()
  return text:match "done\n$" ~= nil, text
end

-- A finalizer that runs act() at the next allocation of Lua.
local ARMED = [[
local function armed(act)
  collectgarbage "incremental"
  collectgarbage("incremental", 1, 1000, 60)
  setmetatable({}, {__gc = act})
end
]]

-- The search path with full names, for a process in another folder.
local function absolute(path)
  return (path:gsub("[^;]+", function(part)
    return part:sub(1, 1) == "/" and part or os.getenv "PWD" .. "/" .. part
  end))
end

describe("a hostile script", function()
  it("calls each C function with each kind of value, and the process goes on", function()
    local folder, progress = script .. "-folder", script .. "-progress"
    local pipe = assert(io.popen(("mkdir %s && cd %s && LUA_PATH='%s' LUA_CPATH='%s' "
      .. "DEMILUNE_MPI=0 lua5.4 %s/spec/hostile_arguments.lua %s 2>&1; cd / && rm -r %s"):format(
      folder, folder, absolute(package.path), absolute(package.cpath), os.getenv "PWD", progress,
      folder)))
    local text = pipe:read "a"
    pipe:close()
    local file = assert(io.open(progress))
    local reached = file:read "l"
    file:close()
    os.remove(progress)
    assert.is_truthy(text:find "%d+ functions, %d+ calls\n$", reached .. "\n" .. text)
  end)

  teardown(function() os.remove(script) end)

  for name, program in pairs{
    ["a method with a dot"] = "local s <close> = dm.no_grad(); pcall(s.close)",
    ["a metamethod with another library's userdata"] = [[
      for _, v in ipairs{dm.ones(2), dm.no_grad(function() return dm.Generator() end)} do
        local gc = debug.getmetatable(v).__gc
        if gc then pcall(gc, io.stdout); pcall(gc, 1); pcall(gc); pcall(gc, {}) end
      end
      for name, meta in pairs(debug.getregistry()) do
        if type(meta) == "table" and tostring(name):find "^demilune" then
          for _, event in ipairs{"__gc", "__close", "__tostring", "__eq"} do
            local f = rawget(meta, event)
            if f then pcall(f, io.stdout, 1); pcall(f, 1, 1); pcall(f); pcall(f, "text", "text") end
          end
        end
      end]],
    ["a trace after its finalizer"] = [[
      local trace = require("demilune.core")._amp_trace(false)
      trace:open()
      local x = dm.ones(2) + 1
      assert(#trace:tallies() > 0)
      debug.getmetatable(trace).__gc(trace)
      assert(#trace:tallies() == 0)
      local ok, message = pcall(trace.open, trace)
      assert(not ok and message:find "finalized", message)
      x:add(1)]],
    ["metatables that are closed"] = [[
      for _, v in ipairs{dm.ones(2), dm.Generator(), dm.ones(2).shape} do
        assert(type(getmetatable(v)) == "string")
        assert(not pcall(setmetatable, {}, getmetatable(v)))
      end]],
    ["calls that lack what they take"] = [[
      local ok, why = pcall(dm.ones(1).cuda)
      assert(not ok and why:find("tensor expected, got no value", 1, true), why)
      for _, arguments in ipairs{{print}, {print, {}}} do
        ok, why = pcall(dm.checkpoint_run, table.unpack(arguments))
        assert(not ok and why:find("bad argument #3", 1, true), why)
      end]],
    ["data that grow while they are read"] = ARMED .. [[
      for _ = 1, 50 do
        local t = {1, 2, 3}
        armed(function() for i = 1, 1000 do t[#t + 1] = i end end)
        local ok, x = pcall(dm.tensor, t)
        assert(not ok or x:numel() == 3 or x:numel() == 1003)
      end]],
    ["an operand that is freed while it is split"] = ARMED .. [[
      for _, f in ipairs{"unbind", "detach", "totable", "stride", "exp"} do
        for _ = 1, 50 do
          local x = dm.ones(40, 2)
          armed(function() x:free(); dm.zeros(40, 2) end)
          pcall(x[f], x)
          collectgarbage()
        end
      end]],
  } do
    it("does not end the process: " .. name, function()
      local ok, text = run(program)
      assert.is_true(ok, text)
    end)
  end
end)

describe("a string that holds NUL", function()
  local dm = require "demilune"
  local x = dm.ones(1, 1, 3)

  -- C would read the part before it, which names something else.
  for what, f in pairs{
    dtype = function() return dm.zeros(2, {dtype = "float64\0x"}) end,
    ["the default dtype"] = function() return dm.set_default_dtype "float64\0x" end,
    device = function() return dm.zeros(2, {device = "cpu\0x"}) end,
    to = function() return x:to "float64\0x" end,
    equation = function() return dm.einsum("abc->a\0x", x) end,
    choice = function() return x:pad({1, 1}, {mode = "reflect\0x"}) end,
    option = function() return x:sum{["dim\0x"] = 1} end,
    property = function() return x["shape\0x"] end,
    field = function() x["data\0x"] = dm.ones(2) end,
    index = function() return x[{"newaxis\0x", 1}] end,
    autocast = function() return (dm.amp.autocast{dtype = "bfloat16\0x"}) end,
    ["device type"] = function() return dm.amp.is_autocast_enabled "cpu\0x" end,
    json = function() return dm.json_encode "a\0b" end,
    key = function() return dm.json_encode{["a\0b"] = 1} end,
  } do
    it("is no name of anything: " .. what, function()
      assert.refuses("^%S*hostile_spec.lua:%d+: ", f)
      assert.refuses(what == "autocast" and "bfloat16%z" or "NUL", f)
    end)
  end
end)

describe("what holds itself", function()
  local dm = require "demilune"

  it("is printed once: a module", function()
    local m = dm.nn.Sequential(dm.nn.ReLU())
    m.itself = m
    m.list = dm.nn.ModuleList(m)
    assert.equal([[Sequential {
  [1] ReLU
  itself Sequential (the one around it)
  list ModuleList {
    [1] Sequential (the one around it)
  }
}]], (tostring(m):gsub(" +0?%f[\n\0]", "")))
  end)

  it("is printed once: a state", function()
    local state = dm.nn.Linear(2, 2):state_dict()
    state.itself = {state}
    for _ = 1, 2 do assert.matches("itself = {%s*%(the table around it%)", tostring(state)) end
  end)

  it("is refused by apply", function()
    local m = dm.nn.Sequential(dm.nn.ReLU())
    m.itself = m
    assert.refuses("hostile_spec.lua:%d+: apply: a Sequential holds itself", function()
      m:apply(function() end)
    end)
  end)

  it("is printed again after content that raises", function()
    local state = dm.nn.Linear(2, 2):state_dict()
    state.x = setmetatable({}, {__tostring = function() error "on purpose" end})
    for _ = 1, 2 do assert.refuses("on purpose$", function() return tostring(state) end) end
    state.x = 1
    assert.matches("x = 1", tostring(state), 1, true)
  end)
end)
