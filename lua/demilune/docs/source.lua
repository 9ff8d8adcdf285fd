-- Comments of this library's own sources, which are installed with it: they are its documentation,
-- read when it is asked for.

local source = {}

local files = {} -- path -> its lines, or false where it cannot be read

-- The lines of a file.
local function lines_of(path)
  if files[path] == nil then
    local file = io.open(path)
    local lines = file and {} or false
    if file then
      for line in file:lines() do lines[#lines + 1] = line end
      file:close()
    end
    files[path] = lines
  end
  return files[path]
end

-- A comment's text without its dashes; nil for other lines.
local function comment(line) return line and line:match "^%s*%-%-%-?@?%s?(.*)$" end

-- The lines of a comment, with LuaLS's tags in words.
local function in_words(raw)
  local tag, rest = raw:match "^%s*%-%-%-@(%a+)%s*(.*)$"
  if not tag then return comment(raw) end
  if tag == "param" then
    local name, kind, text = rest:match "^([%w_?.]+)%s+(%S+)%s*(.*)$"
    return name and ("  %-14s %s  %s"):format(name, kind, text):gsub("%s+$", "") or nil
  end
  if tag == "return" then return "  returns        " .. rest end
  if tag == "overload" then return "  or             " .. rest end
end

-- The comment that ends at line `last`, from its first line on; nil where that is none. raw: with
-- LuaLS's tags and the dashes as they stand.
local function block(lines, last, raw)
  local first = last
  while first >= 1 and comment(lines[first]) and not lines[first]:find "^%s*%-%- %-%-%-%-" do
    first = first - 1
  end
  local text = {}
  for i = first + 1, last do text[#text + 1] = raw and lines[i] or in_words(lines[i]) end
  return #text > 0 and text or nil
end

-- The first line of the piece of code without blank lines that line i is in.
local function start_of(lines, i)
  while i > 1 and lines[i - 1]:find "%S" do i = i - 1 end
  return i
end

--- The comment above a line of a file, as a list of lines. A signature that is bound between the
--- comment and the line belongs to both: `local bind = options.signature(...)`.
---@param path string
---@param line integer
---@param raw? boolean the lines as they stand, with LuaLS's tags
---@return string[]?
function source.above(path, line, raw)
  local lines = lines_of(path)
  if not lines then return nil end
  local found = block(lines, line - 1, raw)
  if found then return found end
  local at = line
  for _ = 1, 3 do
    local first = start_of(lines, at)
    -- a comment at the head of this piece, with the signature between
    local head = first
    while comment(lines[head]) do head = head + 1 end
    if head > first and head < line and (lines[head] or ""):find "^%s*local bind" then
      return block(lines, head - 1, raw)
    end
    if first > 1 and lines[first]:find "^%s*local bind" or at == line and first == line then
      at = first - 1
      while at > 1 and not lines[at]:find "%S" do at = at - 1 end
      if comment(lines[at]) then return block(lines, at, raw) end
      if not start_of(lines, at) then return nil end
      local above = start_of(lines, at)
      if not (lines[above]:find "^%s*local bind" or comment(lines[above])) then return nil end
    else
      return nil
    end
  end
end

--- The comment above the lines without a blank one among which `x.NAME = ` is.
---@param path string
---@param name string
---@return string[]?
function source.assigned(path, name)
  local lines = lines_of(path) or {}
  for i, line in ipairs(lines) do
    if line:find("%." .. name .. " = ") then
      local last = start_of(lines, i)
      while comment(lines[last]) do last = last + 1 end
      return block(lines, last - 1)
    end
  end
end

--- The comment at the head of a file, up to the first other line.
---@param path string
---@return string[]?
function source.head(path)
  local lines = lines_of(path)
  if not lines then return nil end
  local last = 0
  while comment(lines[last + 1]) do last = last + 1 end
  return last > 0 and block(lines, last) or nil
end

--- The first line of a file that has the plain text, and the comment above it.
---@param path string
---@param text string
---@return string[]?
function source.at_text(path, text)
  for i, line in ipairs(lines_of(path) or {}) do
    if line:find(text, 1, true) then return source.above(path, i) end
  end
end

--- The methods of a class that have a comment, in the order of its file: {name =, call =
--- "step(closure)", text = a list of lines} each.
---@param path string
---@param class string the name that the file gives the class
---@return table[]
function source.methods(path, class)
  local found = {}
  for i, line in ipairs(lines_of(path) or {}) do
    local name, rest = line:match("^function " .. class .. ":(%a[%w_]*)(%(.*)$")
    if not name then -- one that makes no use of the object
      name, rest = line:match("^function " .. class .. "%.(%a[%w_]*)%(_, (.*)$")
      rest = rest and "(" .. rest
    end
    local text = name and source.above(path, i)
    if text then
      local call = name .. (rest:match "^%b()" or "(...)")
      found[#found + 1] = {name = name, call = call, text = text}
    end
  end
  return found
end

-- The names of a line ---@name, or nil.
local function names_in(line) return line:match "^%-%-%-@name%s+(.*)$" end

-- A block of comments as an entry: its text, its parameters' names, and its example.
local function entry_of(lines)
  local entry, example = {text = {}, params = {}, lines = lines}, nil
  for _, line in ipairs(lines) do
    local fence = line:match "^%-%-%-```(%a*)"
    if fence then
      example = fence ~= "" and {} or nil
    elseif example then
      example[#example + 1] = comment(line)
      entry.example = example
    else
      entry.params[#entry.params + 1] = line:match "^%-%-%-@param%s+(%S+)"
      entry.text[#entry.text + 1] = in_words(line)
    end
  end
  return entry
end

--- The entries of a file of comments alone, in which each block ends with the names that it tells
--- of: {[name] = {text = a list of lines, params = names, example = a list of lines of Lua,
--- lines = the block as it stands}}.
---@param path string
---@return table
function source.named(path)
  local found, block_lines, names = {}, {}, {}
  local function finish()
    local entry = #names > 0 and entry_of(block_lines)
    for _, name in ipairs(names) do found[name] = entry end
    block_lines, names = {}, {}
  end
  for _, line in ipairs(lines_of(path) or {}) do
    local given = names_in(line)
    for name in (given or ""):gmatch "%S+" do names[#names + 1] = name end
    if line == "" then finish() elseif not given then block_lines[#block_lines + 1] = line end
  end
  finish()
  return found
end

return source
