-- Calls every C function of the library that a script can reach with values of every kind, first
-- and behind a handle. Nothing it does may end the process. spec/hostile_spec.lua
-- runs it: the file that its first argument names holds the function under way.
local dm = require "demilune"
warn "@off"

local progress = assert(io.open(arg[1], "w"))
local function say(name)
  progress:seek("set", 0)
  progress:write(name, (" "):rep(80), "\n")
  progress:flush()
end

-- ---- functions: of the module's tree, the registry and all metatables ----

local standard = {}
for _, lib in ipairs{_G, string, table, io, os, debug, coroutine, math, utf8, package} do
  standard[lib] = true
  for _, f in pairs(lib) do standard[f] = true end
end
for _, meta in ipairs{debug.getmetatable "", debug.getmetatable(io.stdout)} do
  standard[meta] = true
  for _, f in pairs(meta) do standard[f] = true end
end
for _, f in pairs(debug.getmetatable(io.stdout).__index) do standard[f] = true end
standard[debug.getregistry()._CLIBS] = true -- its __gc, which is Lua's own, trusts its caller
for _, f in ipairs(package.searchers) do standard[f] = true end

-- These refuse memory on purpose and change what the calls after them mean.
local LEFT_OUT = {alloc_fail_at = true, without_cuda = true, interrupt = true,
  _library = true}

local handles = {}
local function handle(name, value) handles[#handles + 1] = {name = name, value = value} end
local core = require "demilune.core"
local function freed(x)
  x:free()
  return x
end
local scope = dm.no_grad()
scope:close()
local region = dm.amp.autocast{device_type = "cpu"}
region:close()
handle("a tensor", dm.ones(2, 2))
handle("an integer tensor", dm.tensor{1, 2})
handle("a freed tensor", freed(dm.ones(2)))
handle("a closed scope", scope)
handle("a closed region", region)
handle("a generator", dm.Generator())
handle("a hook", dm.ones(1, {requires_grad = true}):register_hook(print))
handle("a trace", core._amp_trace(false))
handle("a recorder", core.profile_new())
handle("a state of autocast", core.autocast_state())
handle("transforms", core.augment{})
core._dist_open(false, 10, 10)
handle("a collective", core._dist_post("barrier", 0, 0, nil, nil, nil, "barrier", "", ""))
local weights = {dm.ones(2, {requires_grad = true}), dm.ones(3, 2, {requires_grad = true})}
local reducer = core._reducer_new(0, weights, 1, 1, "", {"a", "b"})
handle("a reducer of one rank", reducer)
handle("a reducer that sends", core._reducer_new(0, {dm.ones(2, {requires_grad = true})}, 1, 1, "",
  {"a"}))
handles[#handles].value:set_wire "bfloat16"
local shard = core._reducer_new(0, {dm.ones(2, {requires_grad = true})}, 1, 1, "", {"a"}, 2)
handle("a reducer of shards", shard)
local entries = {{name = "x", dtype = "float32", shape = {2, 2}}}
handle("a file in parts", core._parts_open("parts", nil, entries, {}))
assert(dm.save("stored", {dm.ones(2, 2)}))
handle("a stored file", core._stored_open "stored")
handle("a range", core.range_begin "range")
handle("a loader", core.loader_new{columns = {dm.ones(2)}, transforms = {false}})
if dm.cuda.is_available() then handle("a graph", core.graph()) end

local seen, functions = {}, {}
local function walk(value, name, depth)
  if type(value) == "function" and not standard[value] and not seen[value] then
    seen[value] = true
    if debug.getinfo(value, "S").what == "C" and not LEFT_OUT[name:match "[%w_]+$"] then
      functions[#functions + 1] = {name = name, f = value}
    end
    for i = 1, math.huge do
      local up, inner = debug.getupvalue(value, i)
      if not up then break end
      walk(inner, name .. "^" .. i, depth + 1)
    end
  elseif (type(value) == "table" or type(value) == "userdata") and not standard[value]
    and not seen[value] and depth < 12 then
    seen[value] = true
    walk(debug.getmetatable(value), name .. "<metatable>", depth + 1)
    if type(value) ~= "table" then return end
    for k, v in next, value do
      walk(k, name .. "[key]", depth + 1)
      walk(v, name .. "." .. tostring(k), depth + 1)
    end
  end
end
walk(dm, "dm", 0)
for name, module in pairs(package.loaded) do walk(module, name, 0) end
walk(debug.getregistry(), "registry", 0)
for _, h in ipairs(handles) do walk(h.value, h.name, 0) end
table.sort(functions, function(a, b) return a.name < b.name end)

-- ---- values ----

local VALUES = {false, 0, 3, -1, 0.5, math.huge, 0 / 0, math.maxinteger, math.mininteger, "",
  "float32", "/nowhere/file", {}, {1, 2}, {x = 1}, {dm.ones(2)}, function() end,
  coroutine.create(function() end), io.stdout}
for _, h in ipairs(handles) do VALUES[#VALUES + 1] = h.value end

local function call(f, ...)
  pcall(f, ...)
  -- what a call has left behind, of which the next one shall know nothing
  dm.set_grad_enabled(true)
end

local calls = 0
for _, entry in ipairs(functions) do
  say(entry.name)
  local f = entry.f
  call(f)
  call(f, nil, nil, nil)
  for _, v in ipairs(VALUES) do
    call(f, v)
    call(f, v, v)
    call(f, v, v, v)
    call(f, VALUES[14], v)
    call(f, handles[1].value, v)
    calls = calls + 5
  end
  if entry.name:find "__gc" then
    for _, h in ipairs(handles) do call(f, h.value); call(f, h.value) end
  end
end

-- ---- handles after their own __gc ----

for _, h in ipairs(handles) do
  local meta = debug.getmetatable(h.value)
  local methods = type(meta.__index) == "table" and meta.__index or core.methods
  say(h.name .. " after its __gc")
  for _ = 1, 2 do pcall(meta.__gc or print) end
  if meta.__gc then pcall(meta.__gc, h.value); pcall(meta.__gc, h.value) end
  -- Every method runs before and after every other one, so that a fault of one order is found
  -- in each run: the order of pairs is another in each process.
  local names, by_name = {}, {}
  for _, group in ipairs{meta, methods} do
    for name, f in pairs(group) do
      if type(f) == "function" and not by_name[name] then
        by_name[name], names[#names + 1] = f, name
      end
    end
  end
  table.sort(names)
  for turn = 1, 2 do
    for i = 1, #names do
      local name = names[turn == 1 and i or #names + 1 - i]
      say(h.name .. "." .. name .. " after its __gc")
      for _, v in ipairs(VALUES) do call(by_name[name], h.value, v, v) end
    end
  end
end
collectgarbage()
say "the end"
print(("%d functions, %d calls"):format(#functions, calls))
