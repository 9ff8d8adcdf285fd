-- Random programs under autocast beside casts by hand (spec/amp/programs), many of them:
--   lua5.4 scripts/fuzz_autocast.lua --programs 100000
--   lua5.4 scripts/fuzz_autocast.lua --programs 20000 --device cuda
-- Prints a program that differs as the smallest Lua that does. Run from the repository root; ends
-- with `N passed, N failed` (programs).

local parser = require "argparse"("fuzz_autocast", "random programs beside casts by hand")
parser:option("--programs", "how many"):convert(tonumber):default(10000)
parser:option("--seed", "of the first program"):convert(tonumber):default(1)
parser:option("--device", "cuda is the emulated device, where there is no GPU")
  :choices{"cpu", "cuda"}:default("cpu")
parser:option("--build", "the build folder; build, or build/emulated for cuda")
parser:option("--most", "differing programs that are printed"):convert(tonumber):default(5)
local args = parser:parse()

local build = args.build or os.getenv "DEMILUNE_BUILD"
  or (args.device == "cuda" and "build/emulated" or "build")
package.path = "./?.lua;./?/init.lua;./lua/?.lua;./lua/?/init.lua;" .. package.path
package.cpath = "./" .. build .. "/lua/?.so;" .. package.cpath

local dm = require "demilune"
if args.device == "cpu" then require("demilune.core")._test.without_cuda() end
local _ <close> = dm.device(args.device)
require("demilune.caller").sink = function() end -- warnings of ops

local calls = require "spec.amp.programs.calls"
local programs = require "spec.amp.programs"

local failed, unsaid, good, bad = 0, 0, {}, {}
local function seen(name, ok)
  local count = ok and good or bad
  count[name] = (count[name] or 0) + 1
end

local function sum(count)
  local n = 0
  for _, k in pairs(count) do n = n + k end
  return n
end

local function check(seed)
  local program = programs.new(seed)
  local text, is_unsaid = programs.difference(program, nil, seen)
  if is_unsaid then
    unsaid = unsaid + 1
    print(("program %d: the lists do not say what a call does"):format(seed))
  end
  if not text then return end
  failed = failed + 1
  print(failed <= args.most and programs.report(program, text)
    or ("program %d: %s"):format(seed, text))
end

local began, processor = os.time(), os.clock()
for i = 1, args.programs do
  check(args.seed + i - 1)
  if i % 1000 == 0 then
    print(("%d programs, %d differ, %.0f s of the processor"):format(i, failed,
      os.clock() - processor))
    io.stdout:flush()
  end
end
processor = os.clock() - processor

local never = {}
for _, name in ipairs(calls.names) do
  if not good[name] then never[#never + 1] = name end
end
print(("%d calls, %d more raised in both runs; %d of %d ops, not: %s"):format(sum(good), sum(bad),
  #calls.names - #never, #calls.names, table.concat(never, " ")))
print(("%.0f s, of the processor %.0f s: %.0f programs a second of it"):format(
  os.difftime(os.time(), began), processor, args.programs / processor))
print(("%d passed, %d failed"):format(args.programs - failed - unsaid, failed + unsaid))
os.exit(failed + unsaid == 0, true)
