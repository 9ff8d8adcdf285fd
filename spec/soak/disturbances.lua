-- Disturbances of a training: "memory" (requests for memory are refused), "disk" (a checkpoint does
-- not fit), "signals" (caught ones, and stops), "affinity" (other processors), "threads" (other
-- numbers of them), "kill" (SIGKILL at a random moment), "interrupts" (Ctrl-C raises an error in
-- the middle of a step, which is caught). Signals and affinity come from a second process, so that
-- they meet the training anywhere. None of them may change a bit of its end.

local disturbances = {}
local Disturbances = {}
Disturbances.__index = Disturbances

local INT, KILL, USR1, USR2, CHLD, CONT, STOP = 2, 9, 10, 12, 17, 18, 19
local CAUGHT = {INT, USR1, CHLD}
local FAILURES = 6 -- injected into a training: it has to end some time

-- ---- the second process ----

local function stop_for_a_moment(process, target)
  process.kill(target, STOP)
  process.sleep(math.random() * 0.004)
  process.kill(target, CONT)
end

local ACTS = {
  signals = function(process, target)
    if math.random() < 0.2 then return stop_for_a_moment(process, target) end
    process.kill(target, CAUGHT[math.random(#CAUGHT)])
  end,
  interrupts = function(process, target)
    if math.random() < 0.2 then process.kill(target, USR2) end
  end,
  affinity = function(process, target, processors)
    local n = math.random(processors)
    process.pin(target, math.random(0, processors - n), n)
  end,
}

local function processors_of()
  local pipe <close> = assert(io.popen "nproc --all")
  return pipe:read "n"
end

-- Disturbs the process `target` until it has ended, or sends USR1: a second process that was killed
-- instead could leave its target stopped.
local function disturb(process, acts, chance, target)
  process.catch(USR1)
  math.randomseed(chance)
  local processors = processors_of()
  while process.parent() == target and process.caught() == 0 do
    process.sleep(math.random() * 0.003)
    acts[math.random(#acts)](process, target, processors)
  end
end

-- Kills it at a random moment of the seconds that the undisturbed training took, or not at all.
local function kill_later(process, chance, seconds, target)
  math.randomseed(chance)
  process.sleep(math.random() * 1.5 * seconds)
  if process.parent() == target then process.kill(target, KILL) end
end

-- Starts f(process, ..., this process's number) in a process of its own: -> that one's number.
local function begin(process, f, ...)
  local target, arguments = process.pid(), table.pack(...)
  arguments[arguments.n + 1] = target
  local child = process.fork()
  if child > 0 then return child end
  f(process, table.unpack(arguments, 1, arguments.n + 1))
  os.exit(0)
end

-- kinds: "none", or names with commas between them. chance: the seed of the moments. seconds: what
-- the undisturbed training took.
function disturbances.new(process, kinds, chance, seconds)
  local self = setmetatable({process = process, failures = FAILURES, chance = chance, met = 0,
    interruptions = FAILURES}, Disturbances)
  for kind in kinds:gmatch "%a+" do self[kind] = true end
  local acts = {}
  if self.signals then
    for _, signal in ipairs(CAUGHT) do process.catch(signal) end
    acts[#acts + 1] = ACTS.signals
  end
  if self.interrupts then
    process.interrupt(USR2) -- INT's own handler only counts
    acts[#acts + 1] = ACTS.interrupts
  end
  if self.affinity then acts[#acts + 1] = ACTS.affinity end
  if #acts > 0 then self.second = begin(process, disturb, acts, chance) end
  if self.kill then begin(process, kill_later, chance, seconds) end
  return self
end

-- ---- in the training itself ----

local core -- demilune.core, which is loaded after the fork

-- A random number that does not take from the training's.
function Disturbances:random(n)
  self.chance = (self.chance * 6364136223846793005 + 1442695040888963407) & math.maxinteger
  return (self.chance >> 20) % n + 1
end

-- Whether to let something fail now, about once in n times.
function Disturbances:fails(n)
  if self.failures == 0 or self:random(n) > 1 then return false end
  self.failures = self.failures - 1
  return true
end

function Disturbances:before_step()
  core = core or require "demilune.core"
  if self.threads then core.set_num_threads(self:random(4)) end
  if self.memory and self:fails(4) then
    core._test.alloc_fail_at(self:random(300), self:random(2) == 1)
  end
  if self.interrupts and self.interruptions > 0 then self.process.allow(true) end
end

function Disturbances:after_step()
  self.process.allow(false)
  if self.memory then core._test.alloc_fail_at(0, false) end
end

-- Limits the length of files, for a moment.
function Disturbances:fill_disk()
  if not (self.disk and self:fails(3)) then return false end
  return self.process.limit_files(self:random(2500))
end

-- dm.save, which has to work or, on a full disk, to leave the file as it was.
function Disturbances:save(path, state)
  local dm = require "demilune"
  local full = self:fill_disk()
  local saved, problem = dm.save(path, state)
  if full then self.process.limit_files() end
  if not full then
    assert(saved, problem)
    return
  end
  assert(not saved, "a full disk took a whole checkpoint")
  assert(problem:find "File too large", problem)
  self.met = self.met + 1
  local file <close> = io.open(path)
  if file then assert(dm.load(path)) end
end

-- The callbacks of a Trainer.
function Disturbances:callbacks()
  local function before() self:before_step() end
  local function after() self:after_step() end
  return {
    on_epoch_begin = before,
    on_step = function() after() before() end,
    on_train_epoch_end = after,
    on_save_checkpoint = function() self.full = self:fill_disk() end,
    on_epoch_end = function() assert(not self.full, "a full disk took a whole checkpoint") end,
  }
end

-- pcall(f, ...), after whose errors no more interrupt is raised: it would miss the pcall.
function Disturbances:protected(f, ...)
  return xpcall(f, function(problem)
    self.process.allow(false)
    return problem
  end, ...)
end

-- After an error: it has to be one that was injected.
function Disturbances:expect(problem)
  self:after_step()
  if self.disk then self.process.limit_files() end
  self.full = nil
  local wanted = self.memory and tostring(problem):find "memory"
    or self.disk and tostring(problem):find "File too large"
  if self.interrupts and tostring(problem):find "interrupted!" then
    self.interruptions, wanted = self.interruptions - 1, true
  end
  if not wanted then error(problem, 0) end
  self.met = self.met + 1
end

-- At the end: the second process ends before Lua unloads the signals' handler. -> how many
-- failures and signals the training met
function Disturbances:finish()
  if self.second then
    self.process.kill(self.second, USR1)
    self.process.wait(self.second)
  end
  return self.met + self.process.caught()
end

return disturbances
