-- The resources that nvcc gave each kernel of cuda.so: registers, shared memory, stack, spills
-- (of each architecture, from ptxas -v), float64 and tensor cores (from the PTX).
--   cmake --build build --target kernel_report        runs, in the end,
--   lua5.4 scripts/kernel_report.lua [--all] build/kernels/report/*.log
-- NAME.sm_80.log is what ptxas said of NAME.ptx in the same folder. Without a PTX file, as for the
-- logs that the part nvcc of scripts/test keeps beside the objects of a build, nothing is said of
-- float64, tensor cores and threads. Prints the kernels at fault (--all: all), and ends with
-- `N passed, N failed`. At fault is
--   - a kernel of float32 or 16 bits that spills or holds float64. Kernels of double and int64
--     may: their names say so;
--   - a kernel whose stack frame is larger than STACK below allows, which tells why;
--   - a kernel whose largest block has more registers than a multiprocessor: of the threads that
--     __launch_bounds__ tells, else 1024;
--   - a kernel with tensor cores: our own leave them to the libraries.

-- Kernels that compute in double or int64 without saying so in their names: numbers of
-- one thread, draws, elements of a dtype known at run time. (Counting: the constants of a step.)
local WIDE = {}
local SCALARS = "eye randint sums sample_again times sample_once scale total ready product_back "
  .. "norm_two race"
for name in SCALARS:gmatch "%S+" do
  WIDE[name .. "_kernel"] = true
end

-- Stack frames, spills with them: words of a kernel's name, bytes at most, why.
local STACK = {
  {"sin cos trig", 48, "large angles index the digits of 2/pi"},
  {"special", 256, "tables of the series' values of airy_ai, which a position indexes"},
  {"gamma_f64", 240, "tables of nodes and weights, which a loop indexes"},
  {"draw_f64", 40, "normal numbers of float64 turn an angle"},
  {"gemm", 128, "the epilogue indexes the sums; only where cuBLASLt refuses"},
  {"dm_columns", 8, "the slow path of a division of floats is a call"},
  {"masked_take", 8, "the division of an int64 position is a call"},
}
-- Of the rest: what ptxas keeps of double and int64, beside spills.
local WIDE_STACK = 16

local MULTIPROCESSOR = 65536 -- its registers; 32 threads get a multiple of 256

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
      body = bodies[name] or {f64 = 0, tensor = 0, threads = 1024, calls = {}}
      bodies[name] = body
      if entry then kernels[name] = body end
    elseif body then
      local called = line:match "^%s*([%w_$]+)%s*,%s*$" -- a line of its own
      if called then body.calls[called] = true end
      local dims = line:match "^%.maxntid%s+(.*)"
      if dims then
        body.threads = 1
        for n in dims:gmatch "%d+" do body.threads = body.threads * tonumber(n) end
      end
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
    sums[name] = {f64 = 0, tensor = 0, threads = bodies[name].threads}
    add(sums[name], {[name] = true}, {})
  end
  return sums
end

-- name -> {registers, shared, stack, spills} (the last three in bytes) of each kernel
local function read_log(path)
  local kernels, of, entry = {}, nil, nil
  for line in io.lines(path) do
    if line:find "error *:" or line:find "warning *:" then error(path .. ": " .. line, 0) end
    entry = line:match "Compiling entry function '([%w_$]+)'" or entry
    local name = line:match "Function properties for ([%w_$]+)"
    if name then
      of = {registers = 0, shared = 0, stack = 0, spills = 0}
      if name == entry then kernels[name] = of end
    elseif of and line:find "stack frame" then
      local stack, stores, loads = line:match "(%d+) bytes stack frame, (%d+) .-, (%d+)"
      of.stack, of.spills = tonumber(stack), math.max(tonumber(stores) or 0, tonumber(loads) or 0)
    elseif of and line:find "Used %d+ registers" then
      of.registers = tonumber(line:match "Used (%d+)")
      of.shared = tonumber(line:match "(%d+) bytes smem" or 0)
    end
  end
  return kernels
end

local function exists(path)
  local file = io.open(path)
  return file and file:close()
end

-- May it hold float64 and spill? By its name and its template's arguments.
local function is_wide(readable)
  local name, types = readable:match "([%w_]+)(%b<>)%(" -- NAME<types>(parameters)
  name, types = name or readable:match "([%w_]+)%(" or "", types or ""
  return WIDE[name] or (name .. types):find "_f64_" or types:find "double" or types:find "long"
    or types:find "Counting"
end

-- The bytes of stack that a kernel may have.
local function stack_of(readable)
  local most = is_wide(readable) and WIDE_STACK or 0
  for _, row in ipairs(STACK) do
    for word in row[1]:gmatch "%S+" do
      if readable:find("%f[%w]" .. word .. "_") then most = math.max(most, row[2]) end
    end
  end
  return most
end

-- The registers of a block, as they are handed out: to each warp in steps of 256.
local function registers_of(k, threads)
  return (k.registers * 32 + 255) // 256 * 256 * ((threads + 31) // 32)
end

-- What is wrong with a kernel, or nil; whether it would be wrong in float32 (tolerated).
local function fault_of(k, source, readable)
  local spills, f64 = k.spills > 0, source and source.f64 > 0
  local fault = source and source.tensor > 0 and "tensor"
    or k.stack - k.spills > stack_of(readable) and "stack"
    or source and registers_of(k, source.threads) > MULTIPROCESSOR and "registers"
  if fault then return fault end
  if is_wide(readable) then return nil, spills or f64 end
  return spills and k.stack > stack_of(readable) and "spills" or f64 and "float64" or nil
end

local passed, failed, tolerated, archs, rows = 0, 0, 0, {}, {}
for _, log in ipairs(logs) do
  local stem, arch = log:match "(.*)%.(sm_%d+)%.log$"
  local ptx, kernels, names = exists(stem .. ".ptx") and read_ptx(stem .. ".ptx"), read_log(log), {}
  archs[arch] = true
  for name in pairs(ptx or kernels) do names[#names + 1] = name end
  table.sort(names)
  local readable = demangle(names)
  for _, name in ipairs(names) do
    local k, source = kernels[name], ptx and ptx[name]
    local fault, is_tolerated = fault_of(k, source, readable[name])
    if fault then failed = failed + 1 else passed = passed + 1 end
    if is_tolerated and k.spills > 0 then tolerated = tolerated + 1 end
    if show_all or fault or k.spills > 0 then
      local counts = source or {f64 = 0, tensor = 0}
      rows[#rows + 1] = ("%4d %6d %6d %6d %5d %4d  %s %-8s %s %s"):format(k.registers, k.shared,
        k.stack, k.spills, counts.f64, counts.tensor, arch, stem:match "[^/]+$",
        fault and "FAILED: " .. fault or is_tolerated and "wide" or "", readable[name])
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
