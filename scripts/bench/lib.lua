-- The drivers of this folder share workers that answer one line for one line, medians
-- with their spread, and Markdown tables under a heading that names machine, versions,
-- date and command.
--
-- A ratio is worth something only when both sides were measured in turns: the clock of a
-- shared machine drifts by a quarter within minutes. So each side is a process of its own.
-- While one answers, the others are stopped (SIGSTOP) and so take no share of the cores.
-- Each side keeps its own way of waiting inside a step: PyTorch's OpenMP threads spin
-- there by default, which is faster than to sleep, and nothing here tells them to sleep.
local lib = {}

lib.here = arg[0]:match("^(.*)/[^/]*$") or "."
package.path = lib.here .. "/?.lua;" .. package.path

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end
lib.quote = quote

--- The output of a command, without the last line feed; nil when it fails.
function lib.output(command)
  local pipe <close> = assert(io.popen(command .. " 2>/dev/null", "r"))
  local text = pipe:read("a"):gsub("%s+$", "")
  return text ~= "" and text or nil
end

-- ---------------------------------------------------------------------------
-- Workers
-- ---------------------------------------------------------------------------
local Worker = {}
Worker.__index = Worker

local open = {} -- the workers that are not closed

--- Starts a command that reads requests from its standard input (a fifo, as io.popen
--- gives one direction only) and answers on its standard output. The system kills it when
--- the driver ends, as a stopped process does not notice that its input has closed.
function lib.worker(name, command)
  local fifo = os.tmpname()
  os.remove(fifo)
  assert(os.execute("mkfifo -m 600 " .. quote(fifo)))
  local answers = assert(io.popen(("echo $$; exec setpriv --pdeathsig KILL %s <%s")
    :format(command, quote(fifo)), "r"))
  local pid = assert(answers:read "l") -- exec keeps the shell's
  local requests = assert(io.open(fifo, "w"))
  os.remove(fifo)
  requests:setvbuf("line")
  local self = setmetatable({ name = name, pid = pid, requests = requests, answers = answers },
    Worker)
  open[self] = true
  return self
end

--- Continues this worker, and stops all others.
function Worker:resume()
  local stop = {}
  for other in pairs(open) do
    if other ~= self and not other.stopped then
      stop[#stop + 1] = other.pid
      other.stopped = true
    end
  end
  local commands = {}
  if #stop > 0 then commands[1] = "kill -STOP " .. table.concat(stop, " ") end
  if self.stopped then commands[#commands + 1] = "kill -CONT " .. self.pid end
  self.stopped = nil
  if #commands > 0 then os.execute(("{ %s; } 2>/dev/null"):format(table.concat(commands, "; "))) end
end

--- ask("mm", 4) -> {seconds = 1e-6, ...}, or nil and why not. Only this worker runs then.
function Worker:ask(...)
  if self.gone then return nil, self.gone end
  self:resume()
  self.requests:write(table.concat({ ... }, " "), "\n")
  local line = self.answers:read("l")
  if not line then
    self.gone = self.name .. " ended early"
    return nil, self.gone
  end
  if line:sub(1, 6) == "error " then return nil, line:sub(7) end
  local answer = {}
  for key, value in line:gmatch("(%S+)=(%S+)") do answer[key] = tonumber(value) or value end
  return answer
end

--- Asks for the end: closing alone does not tell it, as workers that started
--- later have inherited the writing end.
function Worker:close()
  if not open[self] then return end
  self:resume()
  open[self] = nil
  if not self.gone then self.requests:write "quit\n" end
  self.requests:close()
  self.answers:close()
end
Worker.__close = Worker.close

function lib.ours()
  return lib.worker("demilune", "lua5.4 " .. quote(lib.here .. "/ours.lua"))
end

--- The allocators that PyTorch's users choose from, by name: what comes before the command.
lib.ALLOCATORS = {
  { name = "stock", command = "" },
  { name = "caching", command = "env MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 " },
}
local tcmalloc = lib.output "ldconfig -p | sed -n 's/.*libtcmalloc_minimal.so.* => //p' | head -n 1"
if tcmalloc then
  table.insert(lib.ALLOCATORS,
    { name = "tcmalloc", command = "env LD_PRELOAD=" .. quote(tcmalloc) .. " " })
end

--- Both sides. PyTorch is eager here and has glibc's allocator told to keep freed memory.
function lib.sides()
  local ours = lib.ours()
  local python = os.getenv("PYTHON") or "python3"
  local peer = lib.worker("PyTorch", lib.ALLOCATORS[2].command .. quote(python) .. " "
    .. quote(lib.here .. "/peer.py"))
  local about = peer:ask("about")
  lib.peer_version = about and about.version
  if not about then peer.gone = "no torch in " .. python end
  return ours, peer
end

--- Asks both sides the same in turns, the first one changing each round (ABBA),
--- and returns the values of `key` on each side: two arrays, of equal length
--- when both answer, the second nil with a reason when the peer does not.
function lib.in_turns(ours, peer, rounds, key, ...)
  local a, b, why = {}, {}, nil
  for round = 1, rounds do
    for turn = 1, 2 do
      local first = (round + turn) % 2 == 0
      local answer, message = (first and ours or peer):ask(...)
      if answer then
        table.insert(first and a or b, answer[key])
      elseif first then
        error(("demilune: %s: %s"):format(table.concat({ ... }, " "), message), 0)
      else
        why = message
      end
    end
  end
  if why then return a, nil, why end
  return a, b
end

-- ---------------------------------------------------------------------------
-- Statistics
-- ---------------------------------------------------------------------------
--- The q-quantile, linear between neighbours.
function lib.quantile(values, q)
  local v = table.move(values, 1, #values, 1, {})
  table.sort(v)
  local at = 1 + q * (#v - 1)
  local low = math.floor(at)
  return v[low] + (at - low) * ((v[low + 1] or v[low]) - v[low])
end

function lib.median(values) return lib.quantile(values, 0.5) end

function lib.mean(values)
  local sum = 0
  for _, v in ipairs(values) do sum = sum + v end
  return sum / #values
end

--- The median over rounds of a[i] / b[i]: neighbours in time, so drift cancels.
function lib.ratio(a, b)
  local ratios = {}
  for i = 1, math.min(#a, #b) do ratios[i] = a[i] / b[i] end
  return lib.median(ratios)
end

--- "0.31 [0.30, 0.35]": the median and the middle half, in units of 1 / scale.
function lib.spread(values, scale, format)
  local words = {}
  for i, q in ipairs { 0.5, 0.25, 0.75 } do
    words[i] = (format or "%.2f"):format(lib.quantile(values, q) * scale)
  end
  return ("%s [%s, %s]"):format(table.unpack(words))
end

-- ---------------------------------------------------------------------------
-- Reports
-- ---------------------------------------------------------------------------
local function cpu_model()
  for line in io.lines("/proc/cpuinfo") do
    local model = line:match("^model name%s*:%s*(.+)")
    if model then return model end
  end
  return lib.output("uname -m") or "unknown"
end

--- The heading of a report: what, when, where, with what.
function lib.heading(title)
  local words = { arg[0]:match("[^/]*$") }
  for i = 1, #arg do words[#words + 1] = arg[i] end
  local tree = lib.output("git -C " .. quote(lib.here) .. " describe --always --dirty")
  print("## " .. title .. "\n")
  print(("- %s, %s, %s cores, load %s"):format(os.date("!%Y-%m-%d %H:%M UTC"), cpu_model(),
    lib.output("nproc"), lib.output("cut -d' ' -f1 /proc/loadavg")))
  print(("- demilune %s, %s, PyTorch %s"):format(tree or "(no version)", _VERSION,
    lib.peer_version or "absent"))
  print(("- `scripts/bench/%s`\n"):format(table.concat(words, " ")))
end

--- Prints rows (arrays of cells) under a header, as a Markdown table.
function lib.table(header, rows)
  local width = {}
  for _, row in ipairs { header, table.unpack(rows) } do
    for i = 1, #header do
      row[i] = tostring(row[i] == nil and "" or row[i])
      width[i] = math.max(width[i] or 3, utf8.len(row[i]) or #row[i])
    end
  end
  local function line(row)
    local cells = {}
    for i, cell in ipairs(row) do
      cells[i] = cell .. (" "):rep(width[i] - (utf8.len(cell) or #cell))
    end
    print("| " .. table.concat(cells, " | ") .. " |")
  end
  line(header)
  local rule = {}
  for i = 1, #header do rule[i] = ("-"):rep(width[i]) end
  line(rule)
  for _, row in ipairs(rows) do line(row) end
  print()
  io.stdout:flush()
end

--- "goal 0.5: met", or "missed".
function lib.verdict(value, goal, at_least)
  local met = at_least and value >= goal or not at_least and value <= goal
  return met and "met" or "missed"
end

--- `--rounds 20 --quick` as a table; the defaults say which there are.
function lib.options(defaults)
  local options = {}
  for name, value in pairs(defaults) do options[name] = value end
  local i = 1
  while arg[i] do
    local name = arg[i]:match("^%-%-(.+)$")
    local default = name and defaults[name]
    if default == nil then
      local names = {}
      for k, v in pairs(defaults) do names[#names + 1] = ("--%s (%s)"):format(k, v) end
      table.sort(names)
      io.stderr:write("options: ", table.concat(names, ", "), "\n")
      os.exit(2)
    end
    if type(default) == "boolean" then
      options[name] = true
    else
      i = i + 1
      options[name] = type(default) == "number" and assert(tonumber(arg[i])) or assert(arg[i])
    end
    i = i + 1
  end
  return options
end

return lib
