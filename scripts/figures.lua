-- Prints figures of the sources for src/README.md: lines, and lines with a comment per line of
-- code, by folder; the widest row of the op table; all lines of the product by kind. Run from the
-- repository root; `figures.lua COMMIT` prints the lines of the product at that commit alone.

local COMMIT = arg[1]
local FOLDERS = {"src/base", "src/core", "src/cpu", "src/engine", "src/op", "src/data", "src/bind",
  "kernels"}

local function lines_of(command)
  local pipe <close> = assert(io.popen(command))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  return lines
end

-- Whether a line of C holds code and whether it holds a comment, and whether it ends inside one.
local function parts(line, inside)
  local code, comment = false, inside
  local at = 1
  while at <= #line do
    if inside then
      local _, last = line:find("*/", at, true)
      if not last then return code, true, true end
      inside, at = false, last + 1
    else
      local first = line:find("/[*/]", at)
      code = code or line:sub(at, (first or 0) - 1):find "%S" ~= nil
      if not first then break end
      comment = true
      if line:sub(first, first + 1) == "//" then break end
      inside, at = true, first + 2
    end
  end
  return code, comment, inside
end

-- The same for Lua, whose sources have no comments of several lines.
local function lua_parts(line, _)
  local first = line:find("%-%-")
  return line:sub(1, (first or 0) - 1):find "%S" ~= nil, first ~= nil, false
end

-- The files of folders with one of these endings, without the emulated device.
local function files_of(folders, endings)
  local list = COMMIT and "git ls-tree -r --name-only " .. COMMIT or "git ls-files"
  return lines_of(("%s -- %s | grep -v ^kernels/emulated/ | grep -E '\\.(%s)$'"):format(list,
    folders, endings))
end

-- The lines with code, those with a comment and all lines of a file.
local function count(path)
  local lines = lines_of(COMMIT and ("git show %s:%s"):format(COMMIT, path) or "cat " .. path)
  local read = path:find "%.lua$" and lua_parts or parts
  local n_code, n_comment, n_blank, inside = 0, 0, 0, false
  for _, line in ipairs(lines) do
    local code, comment
    code, comment, inside = read(line, inside)
    if not line:find "%S" then n_blank = n_blank + 1
    else n_code, n_comment = n_code + (code and 1 or 0), n_comment + (comment and 1 or 0) end
  end
  return n_code, n_comment, n_blank, #lines
end

local function print_folder(folder)
  local files, n_code, n_comment = files_of(folder, "c|h|inc|cu|cuh"), 0, 0
  for _, path in ipairs(files) do
    local code, comment = count(path)
    n_code, n_comment = n_code + code, n_comment + comment
  end
  print(("%-11s %3d files, %5d lines of code, %.2f comment lines a line of code"):format(folder,
    #files, n_code, n_comment / n_code))
end

-- A line with code and a comment counts as code; the rows of the op table are counted apart.
local function print_product()
  local code, blank, rows, all = 0, 0, 0, 0
  for _, path in ipairs(files_of("src kernels lua", "c|h|inc|def|cu|cuh|lua")) do
    local n_code, _, n_blank, n = count(path)
    all = all + n
    if path == "src/ops.def" or path:find "^src/ops/" and not path:find "generate" then
      rows = rows + n
    else
      code, blank = code + n_code, blank + n_blank
    end
  end
  print(("product     %d lines: %d code, %d comment, %d rows of the op table, %d blank"):format(
    all, code, all - code - blank - rows, rows, blank))
end

if not COMMIT then
  for _, folder in ipairs(FOLDERS) do print_folder(folder) end
  local widest = 0
  for _, line in ipairs(lines_of "cat src/ops/*.lua") do widest = math.max(widest, #line) end
  print(("src/ops     widest row: %d characters"):format(widest))
end
print_product()
