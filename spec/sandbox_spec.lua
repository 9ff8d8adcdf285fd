-- The environment for untrusted scripts of .github/SECURITY.md: its code is taken from the page.

local core = require "demilune.core"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end
local page = read ".github/SECURITY.md"
local recipe = assert(page:match "```lua\n(.-)```", "the page has no code")

-- Runs the code of the page on a script, in a process that may have 64 files open; `before` goes
-- ahead of the code. -> what it printed.
local function run(script, before, after)
  local program, path = os.tmpname(), os.tmpname()
  local file = assert(io.open(program, "w"))
  file:write(("package.path, package.cpath = %q, %q\n"):format(package.path, package.cpath),
    before or "", recipe, after or "")
  file:close()
  file = assert(io.open(path, "w"))
  file:write(script)
  file:close()
  local pipe = assert(io.popen(("ulimit -n 64; lua5.4 %s %s 2>&1"):format(program, path)))
  local text = pipe:read "a"
  pipe:close()
  os.remove(program)
  os.remove(path)
  return text
end

-- From here on the process can open nothing: it holds as many files as it may.
local NO_MORE_FILES = [[
local from, held = loadfile, {}
function loadfile(...)
  local script, why = from(...)
  repeat held[#held + 1] = io.open "/dev/null" until not io.open "/dev/null"
  return script, why
end
]]

local STEP = [[
local nn, optim, amp = dm.nn, dm.optim, dm.amp
dm.manual_seed(1)
local Net = nn.Module:extend "Net"
function Net:init()
  self.layers = nn.Sequential{nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.1), nn.Linear(36, 3)}
end
function Net:forward(x) return self.layers(x) end
local model, criterion = Net(), nn.CrossEntropyLoss()
local optimizer = optim.AdamW(model:parameters(), {lr = 0.02})
local scaler = amp.GradScaler{device = "cpu"}
local x, y = dm.randn(12, 1, 8, 8), dm.randint(3, {12})
local first, last
for _ = 1, 20 do
  optimizer:zero_grad()
  local loss
  do
    local _ <close> = amp.autocast{device_type = "cpu", dtype = "float16"}
    loss = criterion(model(x), y)
  end
  scaler:scale(loss):backward()
  scaler:unscale_(optimizer)
  nn.utils.clip_grad_norm_(model:parameters(), 1)
  scaler:step(optimizer)
  scaler:update()
  last = loss:item()
  first = first or last
end
assert(last < 0.7 * first, ("%g after %g"):format(last, first))
print "trained"
]]

-- Prints what the environment leads to and should not.
local WALK = [[
local forbidden = {[load] = "load", [dofile] = "dofile", [require] = "require",
  [getmetatable] = "getmetatable", [_G] = "_G", [package.loaded] = "package.loaded"}
for name, module in pairs{io = io, os = os, debug = debug, package = package} do
  for key, value in pairs(module) do
    if type(value) == "function" then forbidden[value] = name .. "." .. key end
  end
end
for _, name in ipairs{"core", "io", "image", "image_folder", "data", "datasets", "text", "models",
  "trainer", "profiler", "memory", "progress", "torch_file", "data.travel", "data.workers",
  "tensorboard", "tensorboard.event_file", "dashboard", "dashboard.launch", "dashboard.process",
  "dashboard.run_file", "dashboard.runs", "dashboard.server"} do
  local module = require("demilune." .. name)
  forbidden[module] = name
  if name ~= "core" and type(module) == "table" then
    for key, value in pairs(module) do forbidden[value] = name .. "." .. tostring(key) end
  end
end
local core = require "demilune.core"
for name, value in pairs(core) do
  local found = name:find "^_" or name:find "read" and name ~= "get_num_threads" and
    name ~= "set_num_threads" or name:find "write" or name:find "open" or name:find "_new$"
  if found and type(value) == "function" then forbidden[value] = "core." .. name end
end
for name, value in pairs(core._test) do forbidden[value] = "core._test." .. name end
forbidden[true], forbidden[false] = nil, nil
local names = {} -- asked for where a function, and no table, answers
for _, module in ipairs{core, require "demilune", _G} do
  for name in pairs(module) do names[name] = true end
end

local seen, functions = {}, 0
local function walk(value, path)
  local kind = type(value)
  if forbidden[value] then print("FOUND", path, forbidden[value]) end
  if seen[value] or kind ~= "table" and kind ~= "function" and kind ~= "userdata" then return end
  seen[value] = true
  if core.is_tensor(value) then -- one tells of all: x.data is another at each reading
    if seen.tensor then return end
    seen.tensor = true
  end
  if kind == "function" then functions = functions + 1 end
  if kind == "table" then
    for k, v in next, value do
      walk(k, path .. "[key]")
      walk(v, path .. "." .. tostring(k))
    end
  end
  if kind ~= "function" then
    local meta = debug.getmetatable(value)
    local index = meta and meta.__index
    if type(index) == "table" then walk(index, path .. "<index>") end
    if type(index) == "function" then
      for name in pairs(names) do
        local found, v = pcall(index, value, name)
        if found then walk(v, path .. "<index>." .. tostring(name)) end
      end
    end
  end
end
walk(environment, "_ENV")
walk(environment.dm.ones(1), "tensor")
walk(environment.dm.nn.Linear(2, 2), "module")
walk(environment.dm.optim.Adam({environment.dm.ones(1)}), "optimizer")
print((functions > 500 and "walked" or "too few functions: ") .. functions)
]]

describe("the environment of the page on security", function()
  it("trains a model, where no file can be opened any more", function()
    assert.equal("trained\n", run(STEP, NO_MORE_FILES))
  end)

  it("leads to no function that opens anything", function()
    local text = run("", "function loadfile(_, mode, env)\n  assert(mode == 't')\n"
      .. "  environment = env\n  return print\nend\n", WALK)
    assert.matches("walked%d+\n$", text)
    assert.is_nil(text:find "FOUND", text)
  end)

  it("lacks every name that the page lists", function()
    local names, count = page:match "## Untrusted scripts(.-)```lua", 0
    local script = {"local absent = {}\n"}
    for name in names:gmatch "`([%w_.]+)`" do
      local parent = name:match "^(.*)%.[%w_]+$"
      if not name:find "^num_workers$" and not name:find "^weights$" and name ~= "dm"
        and name ~= "dm.linalg" then
        count = count + 1
        script[#script + 1] = parent
          and ("assert(not %s or not %s, '%s')\n"):format(parent, name, name)
          or ("assert(not %s, '%s')\n"):format(name, name)
      end
    end
    for name in ("io os debug package load loadfile dofile require coroutine collectgarbage "
      .. "getmetatable rawset"):gmatch "%w+" do
      script[#script + 1] = ("assert(%s == nil, '%s')\n"):format(name, name)
    end
    assert.is_true(count >= 20, "names on the page: " .. count)
    assert.equal("none\n", run(table.concat(script) .. "print 'none'"))
  end)

  it("runs no bytecode", function()
    local text = run(string.dump(load "print 'ran'"))
    assert.matches("attempt to load a binary chunk", text)
  end)

  it("copies Lua's libraries and the modules, which a script may write to", function()
    local text = run("string.format, dm.nn.Linear, dm.tensor = nil, nil, nil",
      nil, "\nassert(string.format and dm.nn.Linear and dm.tensor)\nprint 'whole'")
    assert.equal("whole\n", text)
  end)
end)

describe("the page's list of names that reach files", function()
  it("has each function of the core that opens one", function()
    for name, value in pairs(core) do
      if type(value) == "function" and not name:find "^_" and (name:find "^read_"
        or name:find "_read$" or name:find "_write$" or name == "worker_new"
        or name == "tokens_open") then
        assert.is_truthy(page:find("`dm." .. name .. "`", 1, true), name)
      end
    end
  end)
end)
