-- Runs the program of a training (program.lua) undisturbed and disturbed, and compares the ends.
-- Everything lies in one temporary folder: cases.make(), and cases.remove() at the end.

local cases = {}

local KINDS = {"memory", "disk", "signals", "interrupts", "affinity", "threads", "kill"}
cases.KINDS = {table.unpack(KINDS)}
cases.KINDS[#KINDS + 1] = "all"

-- Seeds of the trainings that are killed everywhere: loops of their own in float16 with workers
-- of tensors and with samples made in Lua, and Trainers in float16 with workers of both.
cases.RESUMED = {5, 20, 32, 4}

local SECONDS = 300   -- that a program may take
local MOST_KILLS = 8  -- of a training at random moments: then it may end
local SAMPLES, FEW_SAMPLES = 72, 24 -- of a training; of one that is killed everywhere
local root, environment
local undisturbed = {} -- the last training's, by seed and samples

local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

local function run(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read "a"
  local _, _, code = pipe:close()
  return text, code
end

function cases.path(name) return root .. "/" .. name end
function cases.remove() os.execute("rm -rf " .. root) end

-- Makes the folder, and the libraries of spec/process.c and spec/kill_at.c in it.
function cases.make()
  root = os.tmpname()
  os.remove(root)
  assert(os.execute(("mkdir %s %s/at"):format(root, root)))
  assert(os.execute(("cc -shared -fPIC $(pkg-config --cflags lua5.4) -o %s spec/process.c")
    :format(cases.path "process.so")))
  assert(os.execute(("cc -shared -fPIC -o %s spec/kill_at.c -ldl"):format(cases.path "kill_at.so")))
  environment = ("LUA_PATH_5_4='./?.lua;%s' LUA_CPATH_5_4='%s' DEMILUNE_CUDA=0")
    :format(package.path, package.cpath)
end

-- lua5.4 with this program and these words, in an environment with these variables: -> its
-- output, its exit status.
function cases.lua(program, words, variables)
  return run(("env %s %s timeout -k 5 %d lua5.4 spec/soak/%s.lua %s"):format(environment,
    variables or "", SECONDS, program, words))
end

-- Runs a training {seed =, samples =, seconds =}: kinds and chance as program.lua takes them.
local function train(t, kinds, chance, variables)
  return cases.lua("program", ("%d %d %s %s %s %s %d %f"):format(t.seed, t.samples,
    cases.path "at/end", cases.path "at/checkpoint", cases.path "process.so", kinds, chance,
    t.seconds or 0), variables)
end

-- Whether the exit status is that of SIGKILL, of a shell that waited or of the program itself.
local function is_killed(code) return code == 137 or code == 9 end

local function clean()
  os.execute(("rm -rf %s; mkdir %s"):format(cases.path "at", cases.path "at"))
end

-- The files in the folder that are neither the end nor the checkpoint: nil, or the names.
local function litter()
  local names = run(("ls -A %s | grep -vx -e end -e checkpoint"):format(cases.path "at"))
  return names ~= "" and names:gsub("\n", " ") or nil
end

-- The bytes of the end of the undisturbed training, its name and seconds; raises where it fails.
local function reference(t)
  local key = t.seed .. " " .. t.samples
  if not undisturbed[key] then
    clean()
    local text, code = train(t, "none", 0)
    assert(code == 0, code == 124 and ("took more than %d seconds"):format(SECONDS) or text)
    undisturbed = {[key] = {bytes = assert(read(cases.path "at/end")), name = text:match "[^\n]*",
      seconds = tonumber(text:match "in (%S+) seconds")}}
  end
  return undisturbed[key]
end

-- Where the first difference of two texts is.
local function difference(a, b)
  if not b then return "there is no end" end
  if a == b then return nil end
  local at = 1
  while a:byte(at) == b:byte(at) do at = at + 1 end
  return ("the end differs from byte %d of %d on"):format(at, #a)
end

-- Runs a training to its end: where it is killed, it is started again. -> output, exit status
local function train_to_end(t, kinds, chance, variables)
  for kills = 0, MOST_KILLS - 1 do
    local text, code = train(t, kinds, chance + kills, variables)
    if not is_killed(code) then return text, code, kills end
    variables = nil
  end
  local text, code = train(t, kinds:gsub("kill", "none"), chance)
  return text, code, MOST_KILLS
end

-- Disturbs a training: -> nil or what is wrong; the training in words; how many failures, signals
-- and kills it met.
local function check(t, kinds, chance, variables)
  local wanted = reference(t)
  t.seconds = wanted.seconds
  clean()
  local text, code, kills = train_to_end(t, kinds, chance, variables)
  local met = kills + (tonumber(text:match "met (%d+)") or 0)
  local left = litter()
  local problem = code ~= 0 and ("exit status %d: %s"):format(code, text)
    or left and "left behind: " .. left or difference(wanted.bytes, read(cases.path "at/end"))
  return problem, wanted.name, met
end

-- The same of the training of a seed, which is disturbed in one of cases.KINDS.
function cases.check(seed, kind)
  local kinds = kind == "all" and table.concat(KINDS, ",") or kind
  return check({seed = seed, samples = SAMPLES}, kinds, seed)
end

-- ---- kills at each point ----

-- How a process can be killed: each kind takes a number n, and kills at the n-th of something.
-- "" is with O_TMPFILE, "KILL_NO_TMPFILE=1" a file system without it.
local WAYS = {}
for _, disk in ipairs{"", "KILL_NO_TMPFILE=1 "} do
  for _, when in ipairs{"KILL_AT", "KILL_AFTER"} do
    WAYS[#WAYS + 1] = {name = disk .. when, step = 1, variables = function(n)
      return ("LD_PRELOAD=\"$LD_PRELOAD %s\" KILL_NOW=1 %s%s=%d"):format(cases.path "kill_at.so",
        disk, when, n)
    end}
  end
end
WAYS[#WAYS + 1] = {name = "instructions of Lua", step = 9973, variables = function(n)
  return ("SOAK_INSTRUCTIONS=%d"):format(n)
end}

-- Kills the training of a seed at its `first`-th call of the system by which files are replaced,
-- and at every k-th after it, before and after the call; and at every 9973 k-th instruction
-- of Lua. Each killed training goes on from its checkpoint, and has to end with the bits of the one
-- that was never killed. report(problem or nil, way, n) is called for each kill.
function cases.kill_everywhere(seed, first, k, report)
  for _, way in ipairs(WAYS) do
    local n = first
    repeat
      local problem, _, kills = check({seed = seed, samples = FEW_SAMPLES}, "none", 0,
        way.variables(n * way.step))
      if kills > 0 or problem then report(problem, way.name, n * way.step) end
      n = n + k
    until kills == 0
  end
end

return cases
