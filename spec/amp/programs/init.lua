-- Random programs under autocast, beside casts by hand: fuzz_spec.lua and scripts/fuzz_autocast.lua
-- run them.

local functions = require "spec.amp.programs.functions"
local make = require "spec.amp.programs.make"
local rules = require "spec.amp.programs.rules"
local run = require "spec.amp.programs.run"
local shrink = require "spec.amp.programs.shrink"
local text = require "spec.amp.programs.text"

local programs = {
  new = make,                        -- new(seed) -> a program
  difference = run.difference,       -- difference(program, tables) -> text, or nil
  text = text,                       -- text(program, tables) -> Lua
  tables = rules.tables,             -- tables(lists) -> the policies that casts by hand follow
  checkpoint = run.checkpoint,       -- these four are for the text of a program
  gradients = run.gradients,
  same = run.same,
  custom = functions.custom,
}

-- A smaller program that differs as well, and how it does.
function programs.shrink(program, tables)
  local small = shrink(program, function(other)
    return run.difference(other, tables) ~= nil
  end)
  return small, run.difference(small, tables)
end

-- The message about a program that differs: how, and as the smallest Lua that differs too.
function programs.report(program, difference, tables)
  local small, how = programs.shrink(program, tables)
  return ("program %d: %s\nshrunk: %s\n%s"):format(program.seed, difference, how or "no more",
    text(small, tables))
end

return programs
