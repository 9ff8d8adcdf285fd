-- Runs before the specs, by four variables of the environment:
-- DEMILUNE_BUILD   the build folder to test ("build" by default)
-- DEMILUNE_GC      Lua's collector, "incremental" or "generational"
-- DEMILUNE_DEVICE  the default device of new tensors ("cpu" by default)
-- DEMILUNE_SEED    the seed of random tensors and of math.random (1 by default, so that two runs
--                  on one machine are the same)
local build = os.getenv "DEMILUNE_BUILD" or "build"

package.path = "./lua/?.lua;./lua/?/init.lua;" .. package.path
package.cpath = "./" .. build .. "/lua/?.so;" .. package.cpath

collectgarbage(os.getenv "DEMILUNE_GC" or "incremental")

-- Folders that already have a pending test (spec/cuda/both.lua). busted drops a file's globals.
rawset(_G, "DEMILUNE_TOLD", {})

-- Open until the process ends: every spec runs on that device.
local device = os.getenv "DEMILUNE_DEVICE" or "cpu"
if device == "cpu" then -- also for programs that specs start, on machines with GPUs
  require("demilune.core")._test.without_cuda()
else
  rawset(_G, "DEMILUNE_DEVICE_SCOPE", require("demilune").device(device))
end

local seed = math.tointeger(os.getenv "DEMILUNE_SEED" or 1)
require("demilune.core").manual_seed(seed)
math.randomseed(seed)

-- assert.refuses(pattern, f): f raises an error whose text has pattern.
local assert, say = require "luassert", require "say"
say:set("assertion.refuses", "Expected an error with '%s', got: %s")
assert:register("assertion", "refuses", function(_, args)
  local raised, text = pcall(args[2])
  args[2] = raised and "no error" or tostring(text)
  return not raised and tostring(text):find(args[1]) ~= nil
end, "assertion.refuses", "assertion.refuses")
