-- Shared by the drivers of the GPU's benchmarks: the two workers, a comparison in
-- turns, and rows that go to a file as they come (GPU_CHECK_ROWS: JSON, one a line).
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local json = require "json"

local cuda = {lib = lib}

-- The options of every driver; `more` are its own. --tiny: each case once, small
-- enough for the emulated device.
function cuda.options(more)
  local defaults = {device = "cuda", rounds = 7, block = 0.1, tiny = false}
  for name, value in pairs(more or {}) do defaults[name] = value end
  local options = lib.options(defaults)
  if options.tiny then options.rounds, options.block = 2, 0.001 end
  return options
end

-- Both workers, on that device. PyTorch has no emulated device: it gets the
-- CPU then, so that its side runs too.
function cuda.sides(options)
  local python = os.getenv "PYTHON" or "python3"
  local ours = lib.worker("demilune",
    ("lua5.4 %s %s"):format(lib.quote(lib.here .. "/train_ours.lua"), options.device))
  local peer = lib.worker("PyTorch", ("%s %s %s"):format(lib.quote(python),
    lib.quote(lib.here .. "/train_peer.py"), options.tiny and "cpu" or options.device))
  local about = peer:ask "about"
  lib.peer_version = about and about.version
  if not about then peer.gone = "no torch" end
  return ours, peer
end

-- Begins a case (dtype, kind, sizes) on both sides, a training from the weights that
-- ours saves; nil and why when ours cannot.
function cuda.begin(ours, peer, case)
  local answer, why = ours:ask("begin", table.unpack(case))
  if not answer then return nil, why end
  local path = os.tmpname()
  if answer.trains == 1 then assert(ours:ask("save", path)) end
  peer:ask("begin", path, case[1], 1, "channels_last", "eager", table.unpack(case, 2))
  os.remove(path)
  return answer
end

-- The answers of `request` on both sides in turns: two arrays of seconds, the second
-- nil when the peer does not answer. Nil and why when ours does not.
function cuda.times(ours, peer, options, ...)
  local request = table.pack(...)
  local ok, a, b = pcall(lib.in_turns, ours, peer, options.rounds, "seconds",
    table.unpack(request, 1, request.n))
  if not ok then return nil, a end
  return a, b
end

-- The heading of a driver's report.
function cuda.heading(title, options)
  lib.heading(title)
  if options.tiny then
    print "- Tiny: to see that it runs. The times mean nothing; PyTorch computes on the CPU.\n"
  end
end

-- "goal 0.8: met"; nothing where sizes are tiny.
function cuda.goal(options, name, value, goal, at_least)
  if options.tiny then return "" end
  return ("%s: %s"):format(name, lib.verdict(value, goal, at_least))
end

-- Cells for a pair of times: ours, the peer's, and how much faster we are.
function cuda.cells(a, b, scale)
  return lib.spread(a, scale), b and lib.spread(b, scale) or "-",
    b and ("%.2f"):format(lib.ratio(b, a)) or "-"
end

-- Writes a row of results, now.
function cuda.record(row, a, b)
  if a then row.ours_seconds = lib.median(a) end
  if b then row.peer_seconds, row.speedup = lib.median(b), lib.ratio(b, a) end
  local name = os.getenv "GPU_CHECK_ROWS"
  if not name then return end
  local file <close> = assert(io.open(name, "a"))
  file:write(json(row), "\n")
end

-- A table whose rows show as they come, with what failed below it.
function cuda.report(header)
  local rows, failures = {}, {}
  return {
    row = function(cells)
      rows[#rows + 1] = cells
      io.stderr:write("   ", table.concat(cells, "  "), "\n")
    end,
    fail = function(case, why)
      why = why:match "^(.-) / stack traceback" or why
      failures[#failures + 1] = ("- %s: %s"):format(table.concat(case, " "), why)
      cuda.record{case = table.concat(case, " "), failed = why}
      io.stderr:write(failures[#failures], "\n")
    end,
    done = function()
      lib.table(header, rows)
      if #failures > 0 then print("Failed:\n" .. table.concat(failures, "\n") .. "\n") end
      return #failures == 0
    end,
  }
end

return cuda
