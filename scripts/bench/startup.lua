-- The cost of having the module: start-up, resident memory, size on disk, build time.
--   scripts/run scripts/bench/startup.lua [--rounds 30] [--peer_rounds 5]
-- Builds and installs the rock into a temporary tree and measures that one.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local now = require("demilune").now
local options = lib.options { rounds = 30, peer_rounds = 5 }
local root = lib.output("cd " .. lib.quote(lib.here .. "/../..") .. " && pwd")
local python = lib.quote(os.getenv("PYTHON") or "python3")
local scratch = assert(lib.output "mktemp -d")
local quiet = " >" .. lib.quote(scratch .. "/log") .. " 2>&1 </dev/null"

local function timed(command)
  local start = now()
  local ok = os.execute("exec " .. command .. quiet)
  return now() - start, ok
end

--- Seconds of two commands in turns, the first of each discarded as cold.
local function pair(rounds, a, b)
  local first, second = {}, {}
  for round = 0, rounds do
    local ta, ok_a = timed(a)
    local tb, ok_b = timed(b)
    if not (ok_a and ok_b) then return nil end
    if round > 0 then
      first[round], second[round] = ta, tb
    end
  end
  local added = {}
  for i = 1, rounds do added[i] = second[i] - first[i] end
  return added, second
end

local function megabytes(path) -- on disk as files count, without blocks
  local bytes = lib.output("du -sb " .. lib.quote(path) .. " | cut -f1")
  return bytes and tonumber(bytes) / 1e6
end

local rows = {}
local function row(what, value, peer, goal, measured)
  local verdict = measured and lib.verdict(measured, goal) or "not measured"
  rows[#rows + 1] = { what, value, peer or "-", goal and ("%g: %s"):format(goal, verdict) or "" }
end

-- Build from clean with two jobs and no compiler cache.
local build = scratch .. "/build"
local seconds, built = timed(("sh -c %s"):format(lib.quote(
  ("CCACHE_DISABLE=1 cmake -S %s -B %s -G Ninja && CCACHE_DISABLE=1 ninja -C %s -j2")
  :format(lib.quote(root), build, build))))
assert(built, "the build failed, see " .. scratch .. "/log")
row("clean build, 2 jobs, s", ("%.1f"):format(seconds), nil, 180, seconds)

-- The rock, as a user gets it.
local tree = scratch .. "/tree"
local _, installed = timed(("sh -c %s"):format(lib.quote(
  ("cd %s && luarocks --lua-version=5.4 --tree=%s make rockspec/demilune-scm-1.rockspec")
  :format(lib.quote(root), tree))))
local lua = "lua5.4"
if installed then
  lua = ("env LUA_PATH_5_4='%s/share/lua/5.4/?.lua;%s/share/lua/5.4/?/init.lua;;' "
    .. "LUA_CPATH_5_4='%s/lib/lua/5.4/?.so;;' lua5.4"):format(tree, tree, tree)
end
local torch = lib.output(python .. " -c 'import torch, os; print(os.path.dirname(torch.__file__))'")
lib.peer_version = torch and lib.output(python .. " -c 'import torch; print(torch.__version__)'")
local rock, torch_size = installed and megabytes(tree), torch and megabytes(torch)
row("installed rock, MB", rock and ("%.2f"):format(rock) or "luarocks failed",
  torch_size and ("%.0f"):format(torch_size), 5, rock)

-- Start-up, less the empty interpreter of the same language.
local added, total = pair(options.rounds, lua .. " -e ''", lua .. [[ -e 'require "demilune"']])
local theirs = torch
  and pair(options.peer_rounds, python .. " -c ''", python .. " -c 'import torch'")
row("require adds, ms", lib.spread(added, 1e3), theirs and lib.spread(theirs, 1e3, "%.0f"), 10,
  lib.median(added) * 1e3)
row("process in all, ms", lib.spread(total, 1e3))

-- Resident memory at its highest, read by the process itself.
local hwm = tonumber(lib.output(lua .. [[ -e 'require "demilune"
  print(io.open("/proc/self/status"):read("a"):match("VmHWM:%s*(%d+)"))']]))
local peer_hwm = torch and tonumber(lib.output(python .. [[ -c 'import torch, resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)']]))
row("resident memory, MB", ("%.1f"):format(hwm * 1024 / 1e6),
  peer_hwm and ("%.0f"):format(peer_hwm * 1024 / 1e6), 12, hwm * 1024 / 1e6)

os.execute("rm -rf " .. lib.quote(scratch))
lib.heading "Start-up and size"
lib.table({ "", "demilune", "PyTorch", "goal" }, rows)
print(("Median [middle half] of %d rounds in turns (PyTorch: %d).\n"):format(options.rounds,
  options.peer_rounds))
