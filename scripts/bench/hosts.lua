-- How much of the messages of a training between two hosts the backward pass hides:
--   scripts/run scripts/bench/hosts.lua --rounds 9 --rate 200mbit [--case all]
-- The hosts are network namespaces of this machine (spec/distributed/hosts.lua), which want root;
-- their cards send at the given rate. In each round both hosts make a step that sends nothing, then
-- its messages alone, then a step with them, all on one thread a host. What is hidden is step +
-- messages - both together; what could be is the shorter one of messages and backward pass.
package.path = (arg[0]:match "^(.*)/" or ".") .. "/?.lua;" .. package.path
local lib = require "lib"
package.path = lib.here .. "/../../?.lua;" .. package.path
local hosts = require "spec.distributed.hosts"

local o = lib.options { rounds = 9, rate = "200mbit", case = "clocked" }
local GOAL = 0.80

-- The first one computes for a fixed time, so that it tells something of the messages also on a
-- machine that does other things; the others want a quiet one.
local CASES = {
  { name = "12 layers of 4 MiB, 200 ms each by the clock", words = "clocked 12 4 200" },
  { name = "ResNet-18, CIFAR stem, 256 images", words = "resnet18 256 cifar" },
  { name = "character GPT, 6 layers of 384, 32 x 256", words = "gpt 6 384 6 256 32" },
}

if hosts.missing then
  print("left out: " .. hosts.missing)
  os.exit(0)
end

-- Runs the job between two hosts -> {{compute =, backward =, send =, together =} a round}.
local function measured(words)
  local net <close> = setmetatable({ of = hosts.make(2, o.rate) },
    { __close = function(self) self.of:remove() end })
  local command = ("%s DEMILUNE_NUM_THREADS=1 LUA_PATH_5_4=%s LUA_CPATH_5_4=%s mpirun -n 2 "
    .. "--host %s --bind-to none --oversubscribe -x LUA_PATH_5_4 -x LUA_CPATH_5_4 "
    .. "-x DEMILUNE_NUM_THREADS lua5.4 %s/scale_ours.lua overlap %d %s"):format(net.of:variables(),
    lib.quote(package.path), lib.quote(package.cpath), net.of:list(1),
    lib.quote(lib.output("readlink -f " .. lib.quote(lib.here))), o.rounds, words)
  local rounds = {}
  for line in (lib.output(net.of:on(1, command)) or ""):gmatch "[^\n]+" do
    local round = {}
    for key, value in line:gmatch "(%w+)=(%S+)" do round[key] = tonumber(value) end
    if round.compute then rounds[#rounds + 1] = round end
  end
  assert(#rounds == o.rounds, "the job failed")
  return rounds
end

lib.heading("Two hosts, " .. o.rate)
local rows = {}
for _, case in ipairs(CASES) do
  if o.case == "all" or case.words:find(o.case, 1, true) then
    local list = { compute = {}, backward = {}, send = {}, together = {} }
    local hidden = {}
    for i, round in ipairs(measured(case.words)) do
      for key, values in pairs(list) do values[i] = round[key] end
      hidden[i] = (round.compute + round.send - round.together)
        / math.min(round.backward, round.send)
    end
    local row = { case.name }
    for _, key in ipairs { "compute", "backward", "send", "together" } do
      row[#row + 1] = lib.spread(list[key], 1e3, "%.0f")
    end
    row[#row + 1] = lib.spread(hidden, 1)
    row[#row + 1] = ("%.2f: %s"):format(GOAL, lib.verdict(lib.median(hidden), GOAL, true))
    rows[#rows + 1] = row
  end
end
lib.table({ "milliseconds", "a step alone", "its backward pass", "its messages alone", "together",
  "hidden", "goal" }, rows)
print("load at the end: " .. (lib.output "cut -d' ' -f1-3 /proc/loadavg" or "unknown"))
