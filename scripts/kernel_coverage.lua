-- Which kernels of kernels/*.cu the specs have run, from the file that the emulated
-- device writes (lines "name count"): a kernel that none has run is a failure, and so
-- are two structs of one name in two files, and a launch of more threads than the kernel's
-- __launch_bounds__ allow, which only a GPU refuses.
--   lua5.4 scripts/kernel_coverage.lua build/emulated/coverage
-- Run from the repository root; ends with `N passed, N failed` (kernels).

-- A launch's name is the text that names the kernel, "(row_kernel<C, T>)"; all
-- kernels are called *_kernel, and no two alike.
local launched, threads = {}, {}
for line in io.lines(arg[1]) do
  local text, count = line:match "^(.*) (%d+)$"
  local name, n = text:match "[%w_]+_kernel", math.tointeger(count)
  if name and text:find "^threads " then threads[name] = math.max(threads[name] or 0, n)
  elseif name then launched[name] = (launched[name] or 0) + n end
end

-- The threads that a kernel's bounds allow, 1024 without any; nil for an expression of a template.
-- text: the source, whose enums name the numbers.
local function bound_of(head, text)
  local bounds = head:match "__launch_bounds__(%b())"
  if not bounds then return 1024 end
  local expression = bounds:sub(2, -2):gsub("[%a_][%w_]*", function(word)
    return word == "DM_THREADS" and "256" or text:match("[%s{]" .. word .. "%s*=%s*(%d+)%s*[,}]")
  end)
  local f = load("return (" .. expression:gsub(",.*", "") .. ")")
  local ok, value = pcall(f or error)
  return ok and math.type(value) == "integer" and value or nil
end

local passed, failed, home = 0, 0, {}
local structs = {} -- two of one name, each with functions of its own, would be mixed up
local pipe <close> = assert(io.popen "ls kernels/*.cu kernels/*.cuh")
for path in pipe:lines() do
  local file <close> = assert(io.open(path))
  local list, text = {}, file:read "a"
  for line in text:gsub("alignas%b() ", ""):gmatch "[^\n]+" do
    local name = line:match "^struct%s+([%w_]+).*{"
      or line:match "^template.->%s+struct%s+([%w_]+).*{"
    if structs[name] and structs[name] ~= path then
      print(("%s: struct %s has a namesake in %s"):format(path, name, structs[name]))
      failed = failed + 1
    end
    structs[name or ""] = path
  end
  for head in text:gmatch "__global__%s+(.-){" do
    local name = head:match "([%w_]+_kernel)%("
    local n = launched[name] or 0
    if not name then
      print(("%s: a kernel's name does not end in _kernel: %s"):format(path, head))
    elseif home[name] then
      print(("%s: %s has a namesake in %s"):format(path, name, home[name]))
    elseif n == 0 then
      print(("%s: no spec runs %s"):format(path, name))
    end
    local most = bound_of(head, text)
    local fits = not most or (threads[name] or 0) <= most
    if not fits then
      print(("%s: %s runs with %d threads, its bounds allow %d"):format(path, name, threads[name],
        most))
    end
    if name and not home[name] and n > 0 and fits then passed = passed + 1
    else failed = failed + 1 end
    home[name or ""] = path
    list[#list + 1] = ("%s %d"):format(name, n)
  end
  if #list > 0 then print(("%s: %s"):format(path, table.concat(list, ", "))) end
end
print(("%d passed, %d failed"):format(passed, failed))
