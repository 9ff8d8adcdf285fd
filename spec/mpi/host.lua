-- Runs a world of ranks as threads; standin.lua starts it. It prints a line for each rank: whether
-- it has ended well, what its script has returned or raised; for one that hangs, where it was. The
-- exit code is 0 where all have ended.
-- host.lua FOLDER RANKS SEED SCRIPT ARGUMENT DEADLINE [RANK AT [keeps]]

local folder, n, seed, script, argument, deadline, faulty, at, keeps = table.unpack(arg)
assert(package.loadlib(folder .. "/host.so", "*")) -- whose functions mpi.so finds
local host = assert(package.loadlib(folder .. "/host.so", "luaopen_host"))()

if faulty then host.fail(tonumber(faulty), tonumber(at), keeps == "keeps") end
host.begin(folder, tonumber(n), tonumber(seed), "spec/mpi/" .. script .. ".lua", argument)
local all_end = host.wait(tonumber(deadline))
for rank = 0, n - 1 do
  local text, is_well, progress = host.result(rank)
  local calls, requests, types, _, failed = host.counts(rank)
  print(("rank %d %s: %s [%s; calls %d, requests %d, types %d, failed %s]"):format(rank,
    is_well and "ends" or "fails", text, progress, calls, requests, types, failed))
end
local breaches = host.breaches()
if breaches ~= "" then print("breach: " .. breaches) end
io.stdout:flush()
os.exit(all_end and breaches == "" and 0 or 1, false)
