-- Random programs on ranks that are threads, and faults of MPI, with an engine of any build folder:
-- under a sanitizer, of which this process has none.
--   lua5.4 spec/mpi/run.lua PROGRAMS STEP [BUILD [WORDS BEFORE THE COMMAND]]
-- PROGRAMS from seed 1 on; each STEP-th call of MPI fails in turn (0: none does).

package.path = "./lua/?.lua;./lua/?/init.lua;./?.lua;" .. package.path
package.cpath = "./build/lua/?.so;" .. package.cpath
local standin = require "spec.mpi.standin"
local walks = require "spec.mpi.walks"

local programs, step, build, before = tonumber(arg[1]), tonumber(arg[2]), arg[3], arg[4]
local folder, remove = standin.prepare(build)
local passed, failed = 0, 0

local function count(n, failures)
  failed = failed + #failures
  passed = passed + n - #failures
  for _, text in ipairs(failures) do print("failed: " .. text) end
end

count(walks.programs(folder, programs, 1, {before = before}))
for i = 0, step > 0 and 3 or -1 do
  count(walks.faults(folder, 1 + i % step, step, {rank = i % 2, mode = i < 2 and "raises"
    or "goes on", keeps = i % 3 == 0 and "keeps" or nil}, {before = before}))
end
remove()
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0)
