-- Runs the training of a seed (training.lua), disturbs it, and saves its end:
--
--   lua5.4 spec/soak/program.lua SEED SAMPLES RESULT CHECKPOINT PROCESS KINDS CHANCE SECONDS
--
-- It goes on from CHECKPOINT where there is one. KINDS is a list of disturbances with commas
-- between them or "none", CHANCE the seed of their moments, SECONDS what the training takes
-- (see disturbances.lua). PROCESS is the library made of spec/process.c. RESULT gets parameters,
-- states and losses: the same bytes, whatever disturbed the training.

local seed, samples, result, checkpoint, library, kinds, chance, seconds = table.unpack(arg)
local process = assert(package.loadlib(library, "luaopen_process"))()
local disturbances = require "spec.soak.disturbances"
-- This forks, before threads begin.
local disturbed = disturbances.new(process, kinds, tonumber(chance), tonumber(seconds))
local dm = require "demilune"
local core = require "demilune.core"
local training = require "spec.soak.training"

local function exists(path)
  local file <close> = io.open(path)
  return file ~= nil
end

-- A copy of a tree of tables that shares no tensor with it.
local function copied(tree)
  if type(tree) ~= "table" then return dm.is_tensor(tree) and tree:clone() or tree end
  local copy = {}
  for key, value in pairs(tree) do copy[key] = copied(value) end
  return copy
end

-- ---- a loop of one's own ----

-- Goes on from where the loader stands to the end of its epoch. `kept` holds the state after the
-- last whole step.
local function one_epoch(t, kept)
  for i, x, y in t.loader:iter() do
    disturbed:before_step()
    t.losses[#t.losses + 1] = t:step(x, y)
    disturbed:after_step()
    kept.state = copied(t:state())
    if i % t.every == 0 then disturbed:save(checkpoint, kept.state) end
  end
end

local function own_loop(t)
  if exists(checkpoint) then t:load(assert(dm.load(checkpoint))) end
  local kept = {state = copied(t:state())}
  while t.loader:state_dict().epoch <= t.epochs do
    local whole, problem = disturbed:protected(one_epoch, t, kept)
    if not whole then
      disturbed:expect(problem)
      t:load(kept.state)
    end
  end
  return t:state()
end

-- ---- dm.Trainer ----

-- A failure ends fit; a new Trainer, in a new training of the same seed, goes on from the
-- checkpoint.
local function trainer_loop(t)
  while true do
    local trainer = t:trainer(checkpoint, exists(checkpoint) and checkpoint or nil,
      disturbed:callbacks())
    local whole, problem = disturbed:protected(trainer.fit, trainer,
      {train = t.loader, epochs = t.epochs})
    if whole then
      local state = t:state()
      state.losses, state.scaler, state.steps = trainer.history, nil, trainer.steps
      state.trainer_scaler = trainer.scaler:is_enabled() and trainer.scaler:state_dict() or nil
      return state
    end
    disturbed:expect(problem)
    t = training.new(tonumber(seed), tonumber(samples))
  end
end

-- For tests that kill everywhere: at the n-th instruction of Lua from here.
local instructions = tonumber(os.getenv "SOAK_INSTRUCTIONS")
if instructions then
  debug.sethook(function() process.kill(process.pid(), 9) end, "", instructions)
end

local begun = core.now()
local t = training.new(tonumber(seed), tonumber(samples))
local state = (t.loop == "own" and own_loop or trainer_loop)(t)
local met = disturbed:finish()
assert(dm.save(result, state))
print(("%s\nmet %d failures and signals in %.3f seconds"):format(t.name, met, core.now() - begun))
