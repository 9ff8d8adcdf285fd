-- Reads src/ and fails on an #include that points up, on a function that a lower layer
-- declares and an upper one defines unless HOOKS names it, and on too many circles of files;
-- and reads src/, kernels/ and lua/ for low floats that are named outside of NAMED.
-- Run from the repository root; ends with `N passed, N failed` (files, hooks, circles, names).

-- Folder -> layer. A file may include its own layer and those below.
local LAYER = {
  base = 0,
  core = 1, cpu = 1,
  engine = 2, ops = 2, -- the rows of the op table
  op = 3, data = 3, dist = 3,
  bind = 4,
}
-- The folders inside a folder; they are of its layer.
local INSIDE = {
  op = "conv index linalg linear loss norm optim pointwise random reduce sequence shape "
    .. "signal sort spatial",
  cpu = "loops",
  dist = "mpi",
}
-- Files of src/ itself, which any layer may include: demilune.h is the public face and includes
-- nothing of the engine, and what src/ops/generate.lua writes into the build folder.
local FACE, GENERATED = "demilune.h", "^[^/]+%.gen%.%l+$"

-- Names that a lower layer calls and an upper one supplies, through the linker or a pointer that it
-- sets: {where it is declared, where it is defined or set}. The functions of the op table's
-- rows are the same on a large scale: engine/op.h declares them all with ops.gen.def, and
-- the files of op/ define them.
local HOOKS = {
  dm_backend_open = {"core/device.h", "engine/backend.c"},
  dm_default_dtype = {"core/tensor.h", "engine/state.c"},
  dm_tensor_drop_history = {"core/tensor.h", "engine/tape.c"},
  dm_optim_register = {"engine/backend.h", "op/optim/optim.c"},
  dm_fresh_copy = {"engine/backend.h", "op/optim/optim.c"},
  dm_scaled_new = {"engine/backend.h", "op/index/index_rows.c"},
}

-- The files whose code names a float of less than 32 bits (DM_F16, "bfloat16"), and why; all
-- others ask base/dtypes.def, or demilune/dtypes.lua, for a property of it.
local NAMED = {
  ["src/demilune.h"] = "the public enum",
  ["src/engine/autocast.c"] = "the default of autocast on each device",
  ["src/cpu/gemm_variant.c"] = "AVX512-BF16 and AMX multiply pairs of one format",
  ["src/cpu/gemm_few.inc"] = "the upper half of a float32 is widened by a shift",
  ["src/cpu/gemm_turned.inc"] = "the same",
  ["src/cpu/loops/sum_rows.inc"] = "the same",
  ["src/cpu/loops/lanes.inc"] = "both are widened in registers, each in its way",
  ["src/op/pointwise/pointwise.c"] = "loops that do this are for one format",
  ["src/cpu/gemm_avx2.c"] = "F16C widens one format while it packs",
  ["lua/demilune/optim/muon.lua"] = "the method is defined in bfloat16",
  ["lua/demilune/amp/initialize.lua"] = "a default, messages",
  ["lua/demilune/amp/autocast.lua"] = "messages",
  ["lua/demilune/trainer.lua"] = "a message",
  ["lua/demilune/amp/report.lua"] = "how gradients would fit into float16: a field of the report",
  ["lua/demilune/amp/page.lua"] = "the same, printed",
  ["lua/demilune/cli/bench.lua"] = "times one of the two",
  ["lua/demilune/cli/new.lua"] = "the text of a config file",
  ["lua/demilune/docs/examples/tools.lua"] = "examples of autocast and of dtypes",
  ["lua/demilune/amp/advice.lua"] = "the same, and what to use instead",
}

-- So many circles of files there may be; see circles(). Lower it when one is opened.
local MOST_CIRCLES = 2

local passed, failed = 0, 0
local function count(good)
  if good then passed = passed + 1 else failed = failed + 1 end
end

local function lines_of(command)
  local pipe <close> = assert(io.popen(command))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  return lines
end

local function read(path)
  local file <close> = assert(io.open("src/" .. path))
  return file:read "a"
end

local function folder_of(path) return path:match "^([^/]+)/" end
local function stem_of(path) return path:match "^(.*)%.[^.]*$" end

local files, texts = lines_of "cd src && find . -type f -name '*.*' | cut -c3- | sort", {}
for _, path in ipairs(files) do texts[path] = read(path) end

-- ---- arrows ----

-- The fault of `#include "header"` in the file, or nil.
local function fault(path, header)
  if header == FACE or header:find(GENERATED) then return nil end
  if not texts[header] then return "is not in src/ (paths start there)" end
  local folder, target = folder_of(path), folder_of(header)
  local from = folder and LAYER[folder] or path == FACE and 0 or LAYER.engine
  local to = LAYER[target]
  if not to then return "is in no known folder" end
  if to > from then return ("points up, from layer %d to %d"):format(from, to) end
end

-- The fault of the folder that the file is in, or nil.
local function stray(path)
  local folder, inside = folder_of(path), path:match "^[^/]+/(.+)/[^/]+$"
  if folder and not LAYER[folder] then return folder .. "/ has no layer" end
  if inside and not (" " .. (INSIDE[folder] or "") .. " "):find(" " .. inside .. " ", 1, true) then
    return ("%s/%s/ is not in INSIDE"):format(folder, inside)
  end
end

for _, path in ipairs(files) do
  local folder, good, n = folder_of(path), true, 0
  local function complain(text, ...)
    io.write(("src/%s:%d: "):format(path, n), text:format(...), "\n")
    good = false
  end
  local where = stray(path)
  if where then complain("%s", where) end
  for line in texts[path]:gmatch "[^\n]*" do
    n = n + 1
    local header = line:match '^%s*#%s*include%s*"([^"]+)"'
    local text = header and fault(path, header)
    if text then complain("%s %s", header, text) end
    local lua_header = line:match "^%s*#%s*include%s*[<\"](l[ua][^>\"]*%.h)"
    if folder ~= "bind" and (lua_header == "lua.h" or lua_header == "lauxlib.h") then
      complain("%s belongs to src/bind", lua_header)
    end
  end
  count(good)
end

-- ---- who declares a function and who defines it ----

-- C without comments, literals, directives and the insides of braces: what stands at file level.
local function file_level(text)
  text = text:gsub("/%*.-%*/", " "):gsub("//[^\n]*", ""):gsub("\\\n", " ")
  text = text:gsub("\n%s*#[^\n]*", "\n"):gsub("^#[^\n]*", "")
  text = text:gsub("'\\?.'", "0"):gsub('"[^"\n]*"', '""'):gsub('extern%s+""%s*{', "")
  return (text:gsub("%b{}", "{}"))
end

-- {name = true}: functions of external linkage, with a body or without.
local function functions(text, with_body)
  local found = {}
  for head, stop in file_level(text):gmatch "([^;{}]*)([;{])" do
    local name = head:match "([%w_]+)%s*%b()%s*$" or head:match "([%w_]+)%s*%b()%s*__attribute"
    local plain = not head:find "%f[%w]static%f[%W]" and not head:find "%f[%w]typedef%f[%W]"
    if name and plain and not head:find "=" and (stop == "{") == with_body then
      found[name] = true
    end
  end
  return found
end

local declared, defined = {}, {} -- name -> path
for _, path in ipairs(files) do
  if path:match "%.h$" and path ~= FACE then
    for name in pairs(functions(texts[path], false)) do
      -- declared twice (a hook): the lower header is the one that others call it by
      local old = declared[name]
      if not old or LAYER[folder_of(path)] < LAYER[folder_of(old)] then declared[name] = path end
    end
  elseif path:match "%.c$" then
    for name in pairs(functions(texts[path], true)) do defined[name] = path end
  end
end

for name, header in pairs(declared) do
  local source = defined[name]
  if source and LAYER[folder_of(source)] > LAYER[folder_of(header)] and not HOOKS[name] then
    print(("src/%s: %s is defined above, in src/%s, and is not in HOOKS"):format(header, name,
      source))
    count(false)
  end
end
for name, hook in pairs(HOOKS) do
  local good = true
  for _, path in ipairs(hook) do
    if not (texts[path] or ""):find("%f[%w_]" .. name .. "%f[^%w_]") then
      print(("src/%s: the hook %s is not here"):format(path, name))
      good = false
    end
  end
  count(good)
end

-- ---- circles ----

-- A unit is a header and its source. A source without a header of its own belongs to the
-- header that declares most of its functions. An .inc is text of the units that include it.
local unit_of = {}
for _, path in ipairs(files) do
  if path:match "%.[ch]$" then unit_of[path] = stem_of(path) end
end
local function adopt(path)
  local votes, best = {}, nil
  for name in pairs(functions(texts[path], true)) do
    local header = declared[name]
    if header and not HOOKS[name] then votes[header] = (votes[header] or 0) + 1 end
  end
  for header, n in pairs(votes) do
    if not best or n > votes[best] or n == votes[best] and header < best then best = header end
  end
  if best then unit_of[path] = stem_of(best) end
end
for _, path in ipairs(files) do
  if path:match "%.c$" and not texts[stem_of(path) .. ".h"] then adopt(path) end
end

-- unit -> {unit = true}: it includes one, or declares a function that the other defines.
local needs = {}
local function need(from, to)
  needs[from] = needs[from] or {}
  if from ~= to then needs[from][to] = true end
end
local function need_includes(unit, path, seen)
  if seen[path] then return end
  seen[path] = true
  for header in texts[path]:gmatch '#%s*include%s*"([^"]+)"' do
    if unit_of[header] and header ~= FACE then need(unit, unit_of[header])
    elseif texts[header] then need_includes(unit, header, seen) end
  end
end
for path, unit in pairs(unit_of) do need_includes(unit, path, {}) end
for name, header in pairs(declared) do
  if defined[name] and not HOOKS[name] then need(unit_of[header], unit_of[defined[name]]) end
end

-- The strongly connected components of more than one unit (R. Tarjan 1972), as sorted text.
local function circles()
  local index, low, on_stack, stack, next_index, found = {}, {}, {}, {}, 1, {}
  local function pop_circle(root)
    local members = {}
    local unit
    repeat
      unit = table.remove(stack)
      on_stack[unit] = nil
      members[#members + 1] = unit
    until unit == root
    table.sort(members)
    if #members > 1 then found[#found + 1] = table.concat(members, ", ") end
  end
  local function visit(unit)
    index[unit], low[unit], next_index = next_index, next_index, next_index + 1
    stack[#stack + 1], on_stack[unit] = unit, true
    for other in pairs(needs[unit] or {}) do
      if not index[other] then
        visit(other)
        low[unit] = math.min(low[unit], low[other])
      elseif on_stack[other] then
        low[unit] = math.min(low[unit], index[other])
      end
    end
    if low[unit] == index[unit] then pop_circle(unit) end
  end
  for _, unit in pairs(unit_of) do
    if not index[unit] then visit(unit) end
  end
  table.sort(found)
  return found
end

local found = circles()
for _, circle in ipairs(found) do print("circle: " .. circle) end
if #found > MOST_CIRCLES then
  print(("%d circles of files, at most %d may be"):format(#found, MOST_CIRCLES))
end
count(#found <= MOST_CIRCLES)

-- ---- low floats by name ----

-- Code without comments: of Lua those of a line, of C all.
local function code_of(path, text)
  if path:find "%.lua$" then return (text:gsub("%-%-[^\n]*", "")) end
  return (text:gsub("/%*.-%*/", " "))
end

local function names_low_float(path, text)
  local word = path:find "%.lua$" and "b?float16" or "DM_B?F16"
  return code_of(path, text):find("%f[%w_]" .. word .. "%f[^%w_]") ~= nil
end

for _, path in ipairs(lines_of "find src kernels lua -type f -not -name '*.md'") do
  local file <close> = assert(io.open(path))
  local names = names_low_float(path, file:read "a")
  if names and not NAMED[path] then
    print(path .. ": names a low float; ask dtypes.def for a property, or add it to NAMED")
  elseif NAMED[path] and not names then
    print(path .. ": names no low float, and is in NAMED")
  end
  count(names == (NAMED[path] ~= nil))
end

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
