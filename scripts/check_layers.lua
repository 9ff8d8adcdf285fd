-- Reads the #include lines of src/ and fails on an arrow that points up.
-- Run from the repository root; ends with `N passed, N failed` (files).

-- Folder -> layer. A file may include its own layer and those below.
local LAYER = {
  base = 0,
  core = 1, cpu = 1,
  engine = 2,
  op = 3, data = 3,
  bind = 4,
}
-- Files of src/ itself. demilune.h is the engine's face: it stands on nothing
-- but base, and any layer may include it. ops.def holds names for the engine.
local FACE, ROWS = "demilune.h", "ops.def"

local function folder_of(path) return path:match "^([^/]+)/" end

local function lines_of(command)
  local pipe <close> = assert(io.popen(command))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  return lines
end

local files, exists = lines_of "cd src && find . -type f -name '*.*' | cut -c3- | sort", {}
for _, path in ipairs(files) do exists[path] = true end

-- The fault of `#include "header"` in the file, or nil.
local function fault(path, header)
  if not exists[header] then return "is not in src/ (paths start there)" end
  if header == FACE then return nil end
  local folder, target = folder_of(path), folder_of(header)
  local from = folder and LAYER[folder] or path == FACE and 0 or LAYER.engine
  local to = header == ROWS and LAYER.engine or LAYER[target]
  if not to then return "is in no known folder" end
  if to > from then return ("points up, from layer %d to %d"):format(from, to) end
end

local passed, failed = 0, 0
for _, path in ipairs(files) do
  local folder, bad, n = folder_of(path), 0, 0
  local function complain(text, ...)
    io.write(("src/%s:%d: "):format(path, n), text:format(...), "\n")
    bad = bad + 1
  end
  if folder and not LAYER[folder] then complain("%s/ is a folder without a layer", folder) end
  for line in io.lines("src/" .. path) do
    n = n + 1
    local header = line:match '^%s*#%s*include%s*"([^"]+)"'
    local text = header and fault(path, header)
    if text then complain("%s %s", header, text) end
    local lua_header = line:match "^%s*#%s*include%s*[<\"](l[ua][^>\"]*%.h)"
    if folder ~= "bind" and (lua_header == "lua.h" or lua_header == "lauxlib.h") then
      complain("%s belongs to src/bind", lua_header)
    end
  end
  if bad == 0 then passed = passed + 1 else failed = failed + 1 end
end

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0)
