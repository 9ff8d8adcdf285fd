-- The resources that nvcc gave each kernel of cuda.so: registers, shared memory, stack, spills
-- (of each architecture, from ptxas -v), float64 and tensor cores (from the PTX).
--   cmake --build build --target kernel_report        runs, in the end,
--   lua5.4 scripts/kernel_report.lua [--all] build/kernels/report/*.log
-- NAME.sm_80.log is what ptxas said of NAME.ptx in the same folder. Prints the kernels at
-- fault (--all: all), and ends with `N passed, N failed`. At fault is a kernel of
-- float32 or 16 bits that spills or holds float64. Kernels of double and int64 may:
-- their names say so. Our own kernels leave tensor cores to the libraries.

-- Kernels that compute in double or int64 without saying so in their names: numbers of
-- one thread, draws, elements of a dtype known at run time.
local WIDE = {}
local SCALARS = "eye randint sums sample_again times sample_once scale total adam_time"
for name in SCALARS:gmatch "%S+" do
  WIDE[name .. "_kernel"] = true
end

local show_all = arg[1] == "--all"
local logs = table.move(arg, show_all and 2 or 1, #arg, 1, {})

-- Mangled names to readable ones, all by one c++filt.
local function demangle(names)
  local path = os.tmpname()
  local file <close> = assert(io.open(path, "w"))
  for _, name in ipairs(names) do file:write(name, "\n") end
  file:close()
  local readable, i = {}, 0
  local pipe <close> = assert(io.popen("c++filt <" .. path))
  for line in pipe:lines() do
    i = i + 1
    readable[names[i]] = line
  end
  os.remove(path)
  return readable
end

-- name of a kernel -> {f64 = lines, tensor = lines}, those of the functions it calls
-- counted in
local function read_ptx(path)
  local bodies, kernels, body = {}, {}, nil
  for line in io.lines(path) do
    local entry = line:match "%.entry%s+([%w_$]+)"
    local name = entry or line:match "^%.?[%l%s.]*func.*[%s)]([%w_$]+)%s*%($"
    if name then
      body = bodies[name] or {f64 = 0, tensor = 0, calls = {}}
      bodies[name] = body
      if entry then kernels[name] = body end
    elseif body then
      local called = line:match "^%s*([%w_$]+)%s*,%s*$" -- a line of its own
      if called then body.calls[called] = true end
      if line:find "%.f64" and not line:find "%.reg" then body.f64 = body.f64 + 1 end
      if line:find "^%s*w?g?mma" then body.tensor = body.tensor + 1 end
    end
  end
  local function add(sum, calls, seen)
    for name in pairs(calls) do
      local of = not seen[name] and bodies[name]
      seen[name] = true
      if of then
        sum.f64, sum.tensor = sum.f64 + of.f64, sum.tensor + of.tensor
        add(sum, of.calls, seen)
      end
    end
  end
  local sums = {}
  for name in pairs(kernels) do
    sums[name] = {f64 = 0, tensor = 0}
    add(sums[name], {[name] = true}, {})
  end
  return sums
end

-- name -> {registers, shared, stack, spills} (the last three in bytes)
local function read_log(path)
  local kernels, of = {}, nil
  for line in io.lines(path) do
    if line:find "error" or line:find "warning" then error(path .. ": " .. line, 0) end
    local name = line:match "Function properties for ([%w_$]+)"
    if name then
      of = {registers = 0, shared = 0, stack = 0, spills = 0}
      kernels[name] = of
    elseif of and line:find "stack frame" then
      local stack, stores, loads = line:match "(%d+) bytes stack frame, (%d+) .-, (%d+)"
      of.stack, of.spills = tonumber(stack), math.max(tonumber(stores), tonumber(loads))
    elseif of and line:find "Used %d+ registers" then
      of.registers = tonumber(line:match "Used (%d+)")
      of.shared = tonumber(line:match "(%d+) bytes smem" or 0)
    end
  end
  return kernels
end

-- May it hold float64 and spill? By its name and its template's arguments.
local function wide(readable)
  local name, types = readable:match "([%w_]+)(%b<>)%(" -- NAME<types>(parameters)
  name, types = name or readable:match "([%w_]+)%(" or "", types or ""
  return WIDE[name] or (name .. types):find "_f64_" or types:find "double" or types:find "long"
end

local passed, failed, tolerated, archs, rows = 0, 0, 0, {}, {}
for _, log in ipairs(logs) do
  local stem, arch = log:match "(.*)%.(sm_%d+)%.log$"
  local ptx, kernels, names = read_ptx(stem .. ".ptx"), read_log(log), {}
  archs[arch] = true
  for name in pairs(ptx) do names[#names + 1] = name end
  table.sort(names)
  local readable = demangle(names)
  for _, name in ipairs(names) do
    local k, source = kernels[name], ptx[name]
    local bad = k.spills > 0 or source.f64 > 0 or source.tensor > 0
    local fails = bad and (source.tensor > 0 or not wide(readable[name]))
    if fails then failed = failed + 1 else passed = passed + 1 end
    if bad and not fails and k.spills > 0 then tolerated = tolerated + 1 end
    if show_all or fails or k.spills > 0 then
      rows[#rows + 1] = ("%4d %6d %6d %6d %5d %4d  %s %-8s %s %s"):format(k.registers, k.shared,
        k.stack, k.spills, source.f64, source.tensor, arch, stem:match "[^/]+$",
        fails and "FAILED" or bad and "wide" or "", readable[name])
    end
  end
end
if #rows > 0 then
  print "regs shared  stack spills  .f64  mma  (bytes; lines of PTX)"
  print(table.concat(rows, "\n"))
end
local list = {}
for arch in pairs(archs) do list[#list + 1] = arch end
table.sort(list)
print(("%s: %d kernels of double or int64 spill"):format(table.concat(list, ", "), tolerated))
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and passed > 0, true)
