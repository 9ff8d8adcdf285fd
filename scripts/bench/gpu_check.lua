-- The parts of scripts/gpu_check that run once there is a build: steps of the models, specs,
-- PyTorch's steps, sanitizer, benchmarks, each within its share of the time. Needs Lua only: what
-- it says of a machine must come out when demilune does not even load. Every result is printed,
-- and the two files are written anew, as soon as it is there.
local lib = dofile((arg[0]:match("^(.*)/[^/]*$") or ".") .. "/lib.lua")
local json = require "json"

local o = {} -- the options: words "name=value"
for _, word in ipairs(arg) do
  local name, value = word:match "^(.-)=(.*)$"
  o[name] = tonumber(value) or value
end
local emulated = o.emulated == 1
local quote = lib.quote
local scratch = "build/gpu_check"
os.execute("mkdir -p " .. scratch)

-- ---- time ----

local function left() return o.limit - (os.time() - o.started) end

-- A part gets `share` of what is left, and leaves some seconds to write.
local function seconds_for(share) return math.max(1, math.floor((left() - 5) * share)) end

-- ---- the results and their two files ----

local function about()
  local smi = lib.output("nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,"
    .. "clocks.mem --format=csv,noheader,nounits")
  local name, driver, memory, sm, mem
  if not emulated and smi then
    name, driver, memory, sm, mem = smi:match "^(.-), (.-), (.-), (.-), ([^\n]*)"
  end
  local torch = lib.output(quote(os.getenv "PYTHON" or "python3")
    .. " -c 'import torch; print(torch.__version__, torch.backends.cudnn.version())'")
  return {
    date = os.date "!%Y-%m-%d %H:%M UTC",
    gpu = name or (emulated and "emulated" or "none that nvidia-smi knows"), driver = driver,
    memory_mib = tonumber(memory), clocks_mhz = sm and {sm, mem},
    nvcc = lib.output("{ nvcc --version || /usr/local/cuda/bin/nvcc --version; } 2>/dev/null | "
      .. "sed -n 's/.*release \\([0-9.]*\\).*/\\1/p'"),
    torch = torch and torch:match "^%S+", cudnn = torch and torch:match "%S+$",
    demilune = lib.output "git describe --always --dirty" or lib.output "cat build/gpu_kit/commit",
    system = lib.output "uname -sr", cores = tonumber(lib.output "nproc"),
    command = o.command,
  }
end

local found = {about = about(), parts = {}, rows = {}, tables = {}}
local stem = ("%s/%s-%s"):format(o.out, os.date "!%Y-%m-%d", (found.about.gpu:gsub("%W+", "-")))

local function write(name, text)
  local file <close> = assert(io.open(name, "w"))
  file:write(text)
end

local function page()
  local a = found.about
  local lines = {
    "# " .. a.gpu, "",
    ("- %s, driver %s, nvcc %s, PyTorch %s (cuDNN %s)"):format(a.date, a.driver or "-",
      a.nvcc or "-", a.torch or "absent", a.cudnn or "-"),
    ("- demilune %s, %s, %s, %s cores"):format(a.demilune or "(no version)", _VERSION, a.system,
      a.cores),
    ("- `%s`"):format(a.command), "",
    "| part | result | seconds |", "| --- | --- | --- |",
  }
  for _, p in ipairs(found.parts) do
    lines[#lines + 1] = ("| %s | %s | %d |"):format(p.name, p.result, p.seconds)
  end
  for _, p in ipairs(found.parts) do
    if p.problems[1] then
      lines[#lines + 1] = ("\n## What failed: %s\n"):format(p.name)
      for _, text in ipairs(p.problems) do lines[#lines + 1] = "- " .. text end
    end
  end
  for _, text in ipairs(found.tables) do lines[#lines + 1] = "\n" .. text end
  return table.concat(lines, "\n") .. "\n"
end

local function save()
  write(stem .. ".md", page())
  write(stem .. ".json", ('{"about": %s,\n"parts": %s,\n"rows": [\n%s\n]}\n'):format(
    json(found.about), json(found.parts), table.concat(found.rows, ",\n")))
end

local failed = false
local function part(name, started, good, result, problems)
  if not good then failed = true end
  found.parts[#found.parts + 1] = {
    name = name, ok = good, result = result, seconds = os.time() - started,
    problems = problems or {},
  }
  print(("-- %s: %s, %d s"):format(name, result, os.time() - started))
  save()
end

-- ---- many commands at once ----

-- Runs {name =, command =}s, so many at a time and each for `seconds` at most; calls
-- done(job, exit status, what it printed) as they end.
local function at_once(jobs, most, seconds, done)
  local by_name, list = {}, os.tmpname()
  local lines = {}
  for _, job in ipairs(jobs) do
    by_name[job.name] = job
    local log = ("%s/%s.log"):format(scratch, (job.name:gsub("%W+", "-")))
    job.log = log
    lines[#lines + 1] = ("timeout -k 5 %d sh -c %s >%s 2>&1 </dev/null; echo \"$? %s\""):format(
      seconds, quote(job.command), log, job.name)
  end
  write(list, table.concat(lines, "\0") .. "\0")
  local pipe <close> = assert(io.popen(("xargs -0 -P %d -I CMD sh -c CMD <%s"):format(most, list)))
  for line in pipe:lines() do
    local status, name = line:match "^(%d+) (.*)$"
    if by_name[name] then
      local file <close> = assert(io.open(by_name[name].log))
      done(by_name[name], tonumber(status), file:read "a")
    end
  end
  os.remove(list)
end

local function ending(status, seconds)
  if status == 124 or status == 137 then return ("not done within %d s"):format(seconds) end
  return status > 128 and ("ended by signal %d"):format(status - 128)
    or ("exit status %d"):format(status)
end

-- A spec on the device; `under` goes before Lua.
local function busted(name, under)
  return ("DEMILUNE_DEVICE=cuda exec %s lua5.4 %s %s"):format(under or "", quote(o.busted), name)
end

-- ---- the parts ----

-- Specs that compile against Lua's headers.
local COMPILE = {}
for _, name in ipairs{"bad_input", "device", "lifetimes"} do
  COMPILE["spec/" .. name .. "_spec.lua"] = true
end

local function specs()
  local files = {} -- the largest first, for they last longest
  for name in lib.output "ls -S spec/*_spec.lua spec/cuda/*_spec.lua":gmatch "%S+" do
    if not COMPILE[name] or lib.output "pkg-config --exists lua5.4 && echo yes" then
      files[#files + 1] = {name = name, command = busted(name)}
    end
  end
  if emulated then -- scripts/test runs them all
    files = {}
    for _, name in ipairs{"spec/cuda/loader_spec.lua", "spec/cuda/index_spec.lua"} do
      files[#files + 1] = {name = name, command = busted(name)}
    end
  end
  local seconds, started = seconds_for(0.5), os.time()
  local passed, bad, skipped, problems, again = 0, 0, 0, {}, {}
  local function count(last, job, status, text)
    local p, f, s = text:match "(%d+) passed, (%d+) failed, (%d+) skipped\n$"
    if not last and f ~= "0" and status ~= 124 then -- another may have had all the memory
      again[#again + 1] = job
      return
    end
    passed, skipped = passed + (p or 0), skipped + (s or 0)
    print(("%s: %s"):format(job.name, p and ("%d passed, %d failed, %d skipped"):format(p, f, s)
      or ending(status, seconds)))
    if not p then
      problems[#problems + 1] = ("%s: %s"):format(job.name, ending(status, seconds))
    end
    for kind, test in text:gmatch "\n(%u%l+) %-> ([^\n]*\n[^\n]*)" do
      if kind ~= "Pending" then problems[#problems + 1] = test:gsub("\n", ": ") end
    end
    bad = bad + (f or 1)
  end
  at_once(files, emulated and 2 or math.min(14, found.about.cores), seconds,
    function(...) count(false, ...) end)
  if again[1] then at_once(again, 1, seconds_for(0.3), function(...) count(true, ...) end) end
  part("specs", started, bad == 0 and passed > 0,
    ("%d passed, %d failed, %d skipped"):format(passed, bad, skipped), problems)
end

-- memcheck for every file of the device first, then races in shared memory.
local TOOLS = {"memcheck", "racecheck"}

local function sanitizer()
  local program = lib.output "command -v compute-sanitizer"
    or lib.output "ls /usr/local/cuda/bin/compute-sanitizer"
  local started = os.time()
  if emulated or not program then
    return part("sanitizer", started, emulated,
      emulated and "not for the emulation: it checks by itself" or "no compute-sanitizer here")
  end
  local jobs, seconds = {}, seconds_for(0.5)
  for _, tool in ipairs(TOOLS) do
    for name in lib.output "ls -S spec/cuda/*_spec.lua":gmatch "%S+" do
      jobs[#jobs + 1] = {
        name = tool .. " " .. name,
        command = ("timeout $((%d - $(date +%%s))) sh -c %s"):format(started + seconds,
          quote(busted(name, ("%s --tool %s --error-exitcode 99"):format(program, tool)))),
      }
    end
  end
  local clean, late, problems = 0, 0, {}
  at_once(jobs, math.min(14, found.about.cores), seconds, function(job, status, text)
    local summary = text:match "=+ (%u+ SUMMARY: [^\n]*)"
    print(("%s: %s"):format(job.name, summary or ending(status, seconds)))
    if not summary then late = late + 1
    elseif status ~= 99 and summary:find "SUMMARY: 0 " then clean = clean + 1
    else problems[#problems + 1] = ("%s: %s"):format(job.name, summary) end
  end)
  part("sanitizer", started, #problems == 0 and clean > 0,
    ("%d of %d runs clean, %d with errors, %d not done"):format(clean, #jobs, #problems, late),
    problems)
end

-- PyTorch compiles for minutes: it does so, for its cache, while the specs run.
local PEER = ("exec %s %s/steps_peer.py"):format(quote(os.getenv "PYTHON" or "python3"), lib.here)
local COMPILED = "reduce-overhead"
local function compile_early()
  for i, names in ipairs{"gpt2", "resnet18 quantised", "vit_s_16", "bert lstm mlp"} do
    os.execute(("{ %s %s %s; } >%s/compile-%d.log 2>&1 &"):format(PEER, COMPILED, names, scratch,
      i))
  end
end

-- The steps of cuda_steps.lua by PyTorch, eager and compiled, beside ours.
local function peers()
  local started, rows, count = os.time(), {}, 0
  for _, mode in ipairs{"eager", COMPILED} do
    local pipe <close> = assert(io.popen(("timeout -k 5 %d sh -c %s 2>/dev/null"):format(
      seconds_for(0.5), quote(PEER .. " " .. mode))))
    for line in pipe:lines() do
      local name, ms = line:match '"name": "([%w_]+)"', tonumber(line:match '"ms": ([%d.]+)')
      found.rows[#found.rows + 1] = line
      if ms then
        rows[name] = rows[name] or {}
        rows[name][mode] = {ms = ms, mib = tonumber(line:match '"peak": (%d+)') / 2 ^ 20}
        count = count + 1
      end
    end
  end
  local lines = {"## Training steps beside PyTorch's\n",
    "| model | ms | in a graph | PyTorch eager ms | compiled, in graphs | MiB | eager | compiled |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |"}
  local function cell(row, key)
    return row and ((key == "ms" and "%.3f" or "%.0f"):format(row[key])) or "-"
  end
  for _, ours in ipairs(found.steps or {}) do
    local peer = rows[ours.name:match "^[%w_]+"] or {}
    local eager, compiled = peer.eager, peer[COMPILED]
    lines[#lines + 1] = ("| %s | %.3f | %s | %s | %s | %.0f | %s | %s |"):format(ours.name,
      ours.ms, ours.graph and ("%.3f"):format(ours.graph) or "-", cell(eager, "ms"),
      cell(compiled, "ms"), ours.mib, cell(eager, "mib"), cell(compiled, "mib"))
  end
  found.tables[#found.tables + 1] = table.concat(lines, "\n")
  print(found.tables[#found.tables])
  part("peers", started, count > 0, ("%d of PyTorch's steps"):format(count))
end

local function benchmark(name)
  local rows, started = scratch .. "/rows", os.time()
  os.remove(rows)
  local seconds = seconds_for(name == "steps" and 0.3 or name == "train" and 0.95 or 0.4)
  local command = ("GPU_CHECK_ROWS=%s timeout -k 5 %d lua5.4 scripts/bench/cuda_%s.lua%s"):format(
    rows, seconds, name, emulated and (name == "steps" and " --tiny --only mlp" or " --tiny") or "")
  local pipe = assert(io.popen(command))
  local said = {}
  for line in pipe:lines() do
    print(line)
    said[#said + 1] = line
  end
  local _, _, status = pipe:close()
  local count, file = 0, io.open(rows)
  for line in file and file:lines() or function() end do
    found.rows[#found.rows + 1] = line
    count = count + 1
    if name == "steps" and line:find '"ours_seconds"' then
      local function number(key) return tonumber(line:match('"' .. key .. '": ?([%d.e+-]+)')) end
      local graph = number "graph_seconds"
      found.steps = found.steps or {}
      found.steps[#found.steps + 1] = {name = line:match '"case": ?"([^"]*)"',
        ms = 1e3 * number "ours_seconds", graph = graph and 1e3 * graph,
        mib = number "peak_bytes" / 2 ^ 20}
    end
  end
  if file then file:close() end
  found.tables[#found.tables + 1] = table.concat(said, "\n")
  part("bench " .. name, started, status == 0 and count > 0,
    ("%d rows%s"):format(count, status == 0 and "" or ", " .. ending(status, seconds)))
end

local function chosen(name) return ("," .. o.parts .. ","):find("," .. name .. ",", 1, true) end

os.execute "nvidia-smi 2>/dev/null | head -n 15"
if chosen "build" then
  part("build", os.time() - o.build_seconds, o.build_status == 0,
    o.build_status == 0 and "built" or "failed")
end
-- What matters most comes first: whether the models train at all, and how fast; whether every op
-- gives the right numbers; only then details.
os.setlocale "C"
if chosen "steps" then benchmark "steps" end
local beside = chosen "peers" and found.about.torch and not emulated
if beside then compile_early() end
if chosen "specs" then specs() end
if beside then peers() end
if chosen "sanitizer" then sanitizer() end
if chosen "bench" then
  for _, name in ipairs{"ops", "gemm", "train"} do benchmark(name) end
end
save()
print(("\n%s.md and .json; %d of %d s"):format(stem, os.time() - o.started, o.limit))
os.exit(not failed)
