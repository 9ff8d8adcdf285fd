-- Prints figures of the sources for src/README.md: lines, and lines with a comment per line of
-- code, by folder; the widest row of the op table. Run from the repository root.

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

-- The files, lines with code and lines with a comment of a folder.
local function count(folder)
  local files = lines_of(("git ls-files -- %s ':!kernels/emulated' | grep -E '%s'"):format(folder,
    "\\.(c|h|inc|cu|cuh)$"))
  local n_code, n_comment = 0, 0
  for _, path in ipairs(files) do
    local inside = false
    for line in io.lines(path) do
      local code, comment
      code, comment, inside = parts(line, inside)
      if line:find "%S" then
        n_code, n_comment = n_code + (code and 1 or 0), n_comment + (comment and 1 or 0)
      end
    end
  end
  return #files, n_code, n_comment
end

for _, folder in ipairs(FOLDERS) do
  local files, code, comment = count(folder)
  print(("%-11s %3d files, %5d lines of code, %.2f comment lines a line of code"):format(folder,
    files, code, comment / code))
end
local widest = 0
for _, line in ipairs(lines_of "cat src/ops/*.lua") do widest = math.max(widest, #line) end
print(("src/ops     widest row: %d characters"):format(widest))
