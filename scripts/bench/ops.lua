-- Every op of the table that PyTorch has, too, on the CPU, beside PyTorch eager: sizes, dtypes,
-- layouts, the call alone and with its gradients.
--   PYTHON=python3 scripts/run scripts/bench/ops.lua [--quick] [--case TEXT] [--threads 2]
--       [--dtypes float32,bfloat16] [--sizes 1,1k,1M,16M] [--rounds 3] [--again 4]
--       [--block 0.005] [--all] [--log FILE] [--tiny]
-- --case: the ops whose name, or "family:" and name, holds TEXT. --quick: float32 and bfloat16, 1k
-- and 1M elements, contiguous; about ten minutes on two cores, the whole about an hour. --tiny: few
-- elements and short blocks, to see that it runs. --log: a line with every figure, as it comes,
-- with tabs between op, inputs, dtype, layout, elements, direction, and the seconds of both sides.
-- op_cases.lua has the rows.
--
-- A figure is the least time of a call, over blocks of --block seconds in each of --rounds rounds,
-- in which the sides take turns; a case within a tenth of a loser after them goes on for --again
-- rounds, both sides. Transposed are all matrices; broadcast is the second operand (a
-- row), or an only one (a row, expanded). Losers take more than 1 / 0.95 of PyTorch's time.
-- PyTorch's threads wait as they do by default, and its allocator keeps memory.
local lib = dofile((arg[0]:match "^(.*)/[^/]*$" or ".") .. "/lib.lua")
local cases = require "op_cases"
local dm = require "demilune"
local options = lib.options{quick = false, case = "", dtypes = "", sizes = "", rounds = 3,
  again = 4, block = 0.005, threads = tonumber(lib.output "nproc") or 1, all = false, tiny = false,
  log = ""}
if options.tiny then options.rounds, options.again, options.block = 1, 0, 1e-5 end

local log = options.log ~= "" and assert(io.open(options.log, "w"))
if log then log:setvbuf "line" end

local SIZES = {["1"] = 1, ["1k"] = 1 << 10, ["1M"] = 1 << 20, ["16M"] = 1 << 24, ["64"] = 64}
local LEAST, WORST = 0.95, 100

local function words(text)
  local list, set = {}, {}
  for word in text:gmatch "[^,]+" do
    list[#list + 1] = word
    set[word] = true
  end
  return list, set
end

local function default(given, quick, tiny, whole)
  if given ~= "" then return given end
  return options.tiny and tiny or options.quick and quick or whole
end

local DTYPES = words(default(options.dtypes, "float32,bfloat16", "float32",
  "float32,bfloat16,float16,int64,bool"))
local size_names = words(default(options.sizes, "1k,1M", "64", "1,1k,1M,16M"))

local differentiable = {}
for _, op in ipairs(dm.ops()) do differentiable[op.name] = op.differentiable end

-- ---------------------------------------------------------------------------
-- The sides
-- ---------------------------------------------------------------------------
local start = {}

function start.demilune()
  return lib.worker("demilune", ("env DEMILUNE_NUM_THREADS=%d lua5.4 %s")
    :format(options.threads, lib.quote(lib.here .. "/ops_ours.lua")))
end

function start.PyTorch()
  return lib.worker("PyTorch", ("%senv OMP_NUM_THREADS=%d %s %s")
    :format(lib.ALLOCATORS[2].command, options.threads, lib.quote(os.getenv "PYTHON"),
      lib.quote(lib.here .. "/ops_peer.py")))
end

local workers, sides = {demilune = start.demilune()}, {"demilune"}

if os.getenv "PYTHON" then
  workers.PyTorch = start.PyTorch()
  local about = workers.PyTorch:ask "about"
  if about then
    lib.peer_version = about.version
    sides[2] = "PyTorch"
  end
end

-- The answer of a side, or nil and why not; one that has ended is started anew.
local function ask(side, request)
  if workers[side].gone then
    workers[side]:close()
    workers[side] = start[side]()
  end
  return workers[side]:ask(table.unpack(request))
end

-- ---------------------------------------------------------------------------
-- Measurement
-- ---------------------------------------------------------------------------
local results, failures, failed = {}, {}, {}

local function direction(r) return r.backward and "with gradients" or "forward" end

-- Notes why a side did not answer, once for an op and reason.
local function fail(side, row, dtype, layout, why)
  why = why:gsub("\1", " ")
  local key = side .. row.name .. why
  if failed[key] then return end
  failed[key] = true
  failures[#failures + 1] = {side, cases.title(row), dtype, layout, (why:gsub("|", "\\|"))}
end

-- Whether the op and one of its inputs have gradients.
local function has_gradients(row, dtype)
  if row.fixed or not differentiable[row.name] or not dtype:find "float" then return false end
  for word in row.inputs:gmatch "%S+" do
    local kind = word:match "^%l%w*:" or word:match "@(%l%w*:)"
    if kind and not kind:find "^[mlc]" then return true end
  end
  return false
end

-- What each side is asked for a row; nil where no size is left.
local function requests(row, dtype, layout)
  local gradients = has_gradients(row, dtype)
  local mine = {"time", row.name, row.peer or row.name, row.form or "plain", dtype, layout,
    gradients and 1 or 0, options.block}
  local its, before = table.move(mine, 1, #mine, 1, {}), #mine
  for _, name in ipairs(size_names) do
    local n = assert(SIZES[name], "no size " .. name)
    local a, b = cases.request(row, n)
    if a then mine[#mine + 1], its[#its + 1] = a, b end
  end
  if #mine > before then return {demilune = mine, PyTorch = its} end
end

-- Keeps the least of each figure.
local function keep(least, answer)
  for key, value in pairs(answer) do
    if type(value) == "number" then least[key] = math.min(least[key] or math.huge, value) end
  end
end

-- Whether one of the figures is a loser's, or within a tenth of one.
local function close(least)
  for key, seconds in pairs(least.demilune) do
    local peer = least.PyTorch[key]
    if peer and peer / seconds < LEAST * 1.1 then return true end
  end
  return false
end

local function measure(row, dtype, layout)
  local asked = requests(row, dtype, layout)
  if not asked then return end
  local least = {demilune = {}, PyTorch = {}}
  for round = 1, options.rounds + options.again do
    if round > options.rounds and not close(least) then break end
    for turn = 1, #sides do
      local side = sides[round % 2 == 0 and #sides + 1 - turn or turn]
      local answer, why = ask(side, asked[side])
      why = why or answer.why
      if why then fail(side, row, dtype, layout, why) end
      keep(least[side], answer or {})
    end
  end
  for key, seconds in pairs(least.demilune) do
    local r = {number = #results, row = row, dtype = dtype, layout = layout, ours = seconds,
      peer = least.PyTorch[key], size = tonumber(key:sub(2)), backward = key:sub(1, 1) == "b"}
    results[#results + 1] = r
    if log then
      log:write(table.concat({cases.title(row), row.inputs, dtype, layout, r.size,
        direction(r), seconds, r.peer or "-"}, "\t"), "\n")
    end
  end
end

-- ---------------------------------------------------------------------------
-- Tables
-- ---------------------------------------------------------------------------
local function size_name(n)
  for name, value in pairs(SIZES) do
    if value == n then return name end
  end
end

-- The geometric mean of the ratios of a list, how many they are, and how many lose.
local function summary(list)
  local logs, losers = {}, 0
  for _, r in ipairs(list) do
    if r.peer then
      logs[#logs + 1] = math.log(r.peer / r.ours)
      if r.peer / r.ours < LEAST then losers = losers + 1 end
    end
  end
  if #logs == 0 then return "-", #list, "-" end
  return ("%.2f"):format(math.exp(lib.mean(logs))), #logs, losers
end

-- A table of groups in the order that they first come in; `cells(r)` are the first cells of r's.
local function print_groups(header, cells)
  local groups, order = {}, {}
  for _, r in ipairs(results) do
    local first = cells(r)
    local key = table.concat(first, "\0")
    if not groups[key] then
      groups[key] = {}
      order[#order + 1] = first
    end
    table.insert(groups[key], r)
  end
  local rows = {}
  for i, first in ipairs(order) do
    rows[i] = table.move({summary(groups[table.concat(first, "\0")])}, 1, 3, #first + 1, first)
  end
  table.move({"PyTorch / demilune", "cases", ("below %g"):format(LEAST)}, 1, 3, #header + 1, header)
  lib.table(header, rows)
end

local function microseconds(t) return t and ("%.4g"):format(t * 1e6) or "-" end

-- Cases below LEAST, the worst first; without a peer there are none.
local function print_losers()
  local losers, rows = {}, {}
  for _, r in ipairs(results) do
    if r.peer and r.peer / r.ours < LEAST then losers[#losers + 1] = r end
  end
  table.sort(losers, function(a, b) return a.peer / a.ours < b.peer / b.ours end)
  for i, r in ipairs(losers) do
    if i > WORST and not options.all then break end
    rows[i] = {cases.title(r.row), "`" .. r.row.inputs .. "`", r.dtype, size_name(r.size), r.layout,
      direction(r), microseconds(r.ours), microseconds(r.peer), ("%.2f"):format(r.peer / r.ours)}
  end
  print(("### Below %g: %d of %d\n"):format(LEAST, #losers, #results))
  lib.table({"op", "inputs", "dtype", "elements", "layout", "", "demilune, us", "PyTorch, us",
    "ratio"}, rows)
end

-- ---------------------------------------------------------------------------
-- The sweep
-- ---------------------------------------------------------------------------
lib.heading "Ops"
for _, row in ipairs(cases.rows) do
  if (row.family .. ":" .. row.name):find(options.case, 1, true) then
    local _, takes = words(row.dtypes)
    for _, layout in ipairs(words(row.layouts)) do
      for _, dtype in ipairs(DTYPES) do
        if takes[dtype] and (layout == "contiguous" or not options.quick) then
          measure(row, dtype, layout)
        end
      end
    end
  end
end
for _, worker in pairs(workers) do worker:close() end

local order = {}
for i, dtype in ipairs(DTYPES) do order[dtype] = i end
table.sort(results, function(a, b)
  if a.dtype ~= b.dtype then return order[a.dtype] < order[b.dtype] end
  if a.size ~= b.size then return a.size < b.size end
  if a.backward ~= b.backward then return b.backward end
  return a.number < b.number
end)
print "Geometric means of PyTorch's time over ours.\n"
print_groups({"dtype", "elements", "direction"}, function(r)
  return {r.dtype, size_name(r.size), direction(r)}
end)
print_groups({"family"}, function(r) return {r.row.family} end)
print_groups({"layout"}, function(r) return {r.layout} end)
print_losers()
if #failures > 0 then
  print "### Without an answer\n"
  lib.table({"side", "op", "dtype", "layout", "reason"}, failures)
end
