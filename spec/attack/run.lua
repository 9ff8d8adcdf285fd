-- Runs programs of spec/attack in this process:
--   lua5.4 run.lua KIND SEED FIRST LAST PROGRESS
--   lua5.4 run.lua KIND FILE    a program's text
-- The file PROGRESS holds the number of the program under way, and "the end" at last.
-- scripts/attack starts it in an empty folder and with a time limit.
local MEMORY = 3 << 30 -- bytes that the process may take more than at the start

require "demilune.core"._test.without_cuda()
local values = require "spec.attack.values"
warn "@off"
require "demilune.caller".sink = function() end

local function limit_memory()
  local file <close> = assert(io.open "/proc/self/status")
  local kib = tonumber(file:read("a"):match "VmSize:%s*(%d+)")
  assert(os.execute(("prlimit --pid $PPID --as=%d"):format(kib * 1024 + MEMORY)))
end

-- Runs a program's text in a coroutine, which goes on a hundred times where it yields.
local function run(text, index)
  math.randomseed(index)
  values.dm.manual_seed(index)
  local program = load(text, "=program", "t", values)
  if not program then return end
  local thread = values.limit(coroutine.create(program))
  for _ = 1, 100 do
    if not coroutine.resume(thread, 1) or coroutine.status(thread) == "dead" then break end
  end
  coroutine.close(thread)
  values.reset()
  if index % 20 == 0 then collectgarbage() end
end

local source = require("spec.attack." .. arg[1]) -- it gives its programs words, too
collectgarbage("incremental", 1000, 1000, 63)
limit_memory()
if #arg == 2 then
  local file <close> = assert(io.open(arg[2]))
  run(file:read "a", 1)
  os.exit(true, true)
end

local seed, first, last = math.tointeger(arg[2]), math.tointeger(arg[3]), math.tointeger(arg[4])
local progress = assert(io.open(arg[5], "w"))
for index = first, last do
  progress:seek "set"
  progress:write(("%-20d\n"):format(index))
  progress:flush()
  run(table.concat(source.text(seed, index), "\n"), index)
end
progress:seek "set"
progress:write(("%-20s\n"):format "the end")
progress:close()
os.exit(true, true)
