-- What scripts/soak runs: see there.

local argparse = require "argparse"
local cases = require "spec.soak.cases"

-- A converter of argparse: a whole number from `least` up.
local function count_from(least)
  return function(text)
    local n = math.tointeger(text)
    if n and n >= least then return n end
    return nil, ("'%s' is given, wanted a whole number from %d"):format(text, least)
  end
end

-- Likewise: a number that is not negative.
local function length(text)
  local n = tonumber(text)
  if n and n >= 0 then return n end
  return nil, ("'%s' is given, wanted a number of minutes, such as 5"):format(text)
end

local parser = argparse("scripts/soak", "Disturb random small trainings for some time: each has "
  .. "to end with the bits of the undisturbed one.")
parser:option("--minutes", "how long"):convert(length):default "60"
parser:option("--seed", "the first training's; the next one has the next number")
  :convert(count_from(0)):default "1"
parser:option("--only", "one kind of disturbance, or of test")
  :choices{"memory", "disk", "signals", "interrupts", "affinity", "threads", "kill", "all",
    "loop", "resume"}
parser:option("--cases", "as many disturbed trainings at most"):convert(count_from(1))
parser:option("--steps", "of the loop that has to stay flat"):convert(count_from(1000))
  :default "100000"
parser:option("--every", "kill at every n-th point only"):convert(count_from(1)):default "1"
local args = parser:parse()

local begun, passed, failed = os.time(), 0, 0

local function minutes() return (os.time() - begun) / 60 end

-- Counts a test; of one that failed it prints why, and the command that repeats it.
local function count(problem, what, command)
  if not problem then
    passed = passed + 1
    return
  end
  failed = failed + 1
  print(("failed: %s: %s\nrepeat: scripts/soak %s"):format(what, problem, command))
  io.flush()
end

-- The loop that has to stay flat.
local function loop()
  local text, code = cases.lua("loop", ("%d %s"):format(args.steps, cases.path "process.so"))
  io.write((text:gsub("%d+ passed, %d+ failed\n", "")))
  count(code ~= 0 and "exit status " .. code or nil, "loop", "--only loop --steps " .. args.steps)
end

-- Trainings that are killed everywhere.
local function resume()
  for _, seed in ipairs(cases.RESUMED) do
    local kills = 0
    cases.kill_everywhere(seed, 1, args.every, function(problem, way, n)
      kills = kills + 1
      count(problem, ("resume, seed %d, %s %d"):format(seed, way, n),
        "--only resume --every " .. args.every)
    end)
    print(("resume, seed %d: killed %d times"):format(seed, kills))
  end
end

-- Disturbed trainings, until the time is over.
local function disturb(kinds)
  local seed, counts = args.seed, {}
  while minutes() < args.minutes and seed - args.seed < (args.cases or math.huge) do
    local kind = kinds[(seed - args.seed) % #kinds + 1]
    local ok, problem, name, met = pcall(cases.check, seed, kind)
    count(problem, ("%s, seed %d (%s)"):format(kind, seed, ok and name or "undisturbed"),
      ("--only %s --seed %d --cases 1"):format(kind, seed))
    local sum = counts[kind] or {trainings = 0, met = 0}
    counts[kind] = {trainings = sum.trainings + 1, met = sum.met + (ok and met or 0)}
    seed = seed + 1
  end
  for _, kind in ipairs(kinds) do
    local sum = counts[kind] or {trainings = 0, met = 0}
    print(("%s: %d trainings met %d failures, signals and kills"):format(kind, sum.trainings,
      sum.met))
  end
end

cases.make()
if not args.only or args.only == "loop" then loop() end
if not args.only or args.only == "resume" then resume() end
if not args.only then
  disturb(cases.KINDS)
elseif args.only ~= "loop" and args.only ~= "resume" then
  disturb{args.only}
end
cases.remove()
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0, true)
