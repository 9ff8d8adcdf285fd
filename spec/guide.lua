-- Runs a page of lua/demilune/guides and compares what its blocks print with what it says.
-- A page's blocks by the first words behind their fences:
--
--   lua              a part of the page's program: all parts are one chunk, so that a block sees
--                    the locals of those before it. `--> text` is what a line prints
--   lua error        the same, and it raises; a text block with the message follows
--   lua file=NAME    a file that other blocks require or start
--   c file=NAME      a program in C, which is compiled; a console block starts it
--   text             what the block before it prints, or the message that it raises
--   console          `$ command` lines, each with its output below it; run after the program
--   sh               commands that are not run: they install, or need the network or a GPU
--
-- In expected text `...` stands for anything, a last line `...` for the lines that are left, and a
-- number for those that agree with it within one unit of its last digit; a number without a
-- fraction is exact. Runs of blanks are one blank.

local guide = {}

local MARK = "\1" -- before each line that tells the number of a block

-- ---- reading ----

--- The blocks of a page.
---@param text string Markdown
---@return table[] blocks {kind =, is_error =, file =, line = of the fence, lines = {...}}
function guide.blocks(text)
  local blocks, open, at = {}, nil, 0
  for line in (text .. "\n"):gmatch "(.-)\n" do
    at = at + 1
    local info = line:match "^```(.*)$"
    if open and info == "" then
      open = nil
    elseif info then
      open = {kind = info:match "^%a*", is_error = info:find " error" ~= nil,
        file = info:match "file=(%S+)", line = at, lines = {}}
      blocks[#blocks + 1] = open
    elseif open then
      open.lines[#open.lines + 1] = line
    end
  end
  return blocks
end

-- The text that a block should print: its comments, and the block of text behind it.
local function expected(blocks, i)
  local want = {}
  for _, line in ipairs(blocks[i].lines) do want[#want + 1] = line:match "%-%->%s?(.*)$" end
  local next_one = blocks[i + 1]
  if next_one and next_one.kind == "text" then
    table.move(next_one.lines, 1, #next_one.lines, #want + 1, want)
  end
  return want
end

-- ---- comparing ----

local NUMBER = "%-?%d+%.?%d*e?[-+]?%d*"

local function squeezed(line)
  return (line:gsub("[ \t]+", " "):gsub("^ ", ""):gsub(" $", ""))
end

-- The largest distance from a number that is written so.
local function tolerance(word)
  local digits = word:match "%.(%d+)"
  if not digits then return 0 end
  return 1.001 * 10.0 ^ (tonumber(word:match "e(.*)$" or 0) - #digits)
end

local function agrees(want, got)
  local a, b = tonumber(want), tonumber(got)
  if not a or not b then return want == got end
  return math.abs(a - b) <= tolerance(want)
end

-- A pattern for the text between two numbers.
local function literal(text)
  return (text:gsub("%p", "%%%0"):gsub("%%%.%%%.%%%.", ".-"))
end

--- Whether a printed line is as the page says.
---@param want string
---@param got string
function guide.same_line(want, got)
  want = squeezed(want)
  local pattern, numbers, from = {"^"}, {}, 1
  for at, word, after in want:gmatch("()(" .. NUMBER .. ")()") do
    pattern[#pattern + 1] = literal(want:sub(from, at - 1)) .. "(" .. NUMBER .. ")"
    numbers[#numbers + 1], from = word, after
  end
  pattern[#pattern + 1] = literal(want:sub(from)) .. "$"
  local found = {squeezed(got):match(table.concat(pattern))}
  if #found == 0 then return false end
  for i, word in ipairs(numbers) do
    if not agrees(word, found[i]) then return false end
  end
  return true
end

-- Nothing, or what is wrong with the lines that a block printed.
local function difference(want, got)
  for i = 1, math.max(#want, #got) do
    if want[i] == "..." and i == #want then return nil end
    if not want[i] or not got[i] or not guide.same_line(want[i], got[i]) then
      return ("line %d of the output:\n  wanted %s\n  got    %s"):format(i,
        want[i] or "nothing", got[i] or "nothing")
    end
  end
end

-- ---- running ----

-- The program of all parts, line by line at their positions in the page.
local function program(blocks)
  local lines, last = {}, 0
  local function put(at, text)
    for i = last + 1, at - 1 do lines[i] = "" end
    lines[at], last = text, at
  end
  for i, block in ipairs(blocks) do
    if block.kind == "lua" and not block.file then
      put(block.line, block.is_error and ("GUIDE.raises(%d, function()"):format(i)
        or ("GUIDE.begins(%d)"):format(i))
      for k, line in ipairs(block.lines) do put(block.line + k, line) end
      put(block.line + #block.lines + 1, block.is_error and "end)" or "")
    end
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Starts the program: prints the number of a block before its output, and the messages of those
-- that raise.
local STARTER = [[
io.stdout:setvbuf "full"
local GUIDE = {}
function GUIDE.begins(i) print("\1" .. i) end
function GUIDE.raises(i, fn)
  GUIDE.begins(i)
  local good, message = pcall(fn)
  print(good and "no error" or message)
end
_ENV.GUIDE = GUIDE
assert(loadfile "script.lua")()
]]

-- The text with lines of the program counted in their blocks, as in files of their own.
local function counted(text, blocks)
  return (text:gsub("script%.lua:(%d+)", function(line)
    local first = 0
    for _, block in ipairs(blocks) do
      if block.line < tonumber(line) then first = block.line end
    end
    return "script.lua:" .. line - first
  end))
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

local function lines_of(text)
  local lines = {}
  for line in text:gmatch "([^\n]*)\n?" do lines[#lines + 1] = line end
  while lines[#lines] == "" do lines[#lines] = nil end
  return lines
end

-- The output of each block of the program, by the block's number; or nil and its error.
local function run_program(folder, blocks)
  write(folder.path "script.lua", program(blocks))
  write(folder.path "starter.lua", STARTER)
  local text, code = folder.run(guide.shell(folder, "lua5.4 starter.lua 2>stderr.txt"))
  local outputs = {}
  for i, part in text:gmatch(MARK .. "(%d+)\n([^" .. MARK .. "]*)") do
    outputs[tonumber(i)] = lines_of(counted(part, blocks))
  end
  if code ~= 0 then return nil, folder.read "stderr.txt" .. text end
  return outputs
end

--- A command in the folder, with the module on Lua's paths and without a GPU.
---@param folder table spec.folder
---@param command string
function guide.shell(folder, command)
  local pipe <close> = assert(io.popen "pwd")
  local root = pipe:read "l"
  local build = os.getenv "DEMILUNE_BUILD" or "build"
  return ("cd '%s' && export DEMILUNE_CUDA=0 LUA_PATH='%s/lua/?.lua;%s/lua/?/init.lua;./?.lua;;' "
    .. "LUA_CPATH='%s/%s/lua/?.so;;' && { %s\n}"):format(folder.path(), root, root, root, build,
    command)
end

-- The commands of a console block, each with the lines below it.
local function commands_of(block)
  local list = {}
  for _, line in ipairs(block.lines) do
    local command = line:match "^%$ (.*)$"
    if command then
      list[#list + 1] = {command = command, want = {}}
    else
      table.insert(list[#list].want, line)
    end
  end
  return list
end

local function check_console(folder, page, block, problems)
  for _, one in ipairs(commands_of(block)) do
    local text = folder.run(guide.shell(folder, one.command))
    -- shells differ in what they say of a program that is killed
    text = text:gsub("[^\n]*Killed[^\n]*", "Killed")
    local why = difference(one.want, lines_of(text))
    if why then
      problems[#problems + 1] = ("%s:%d: $ %s: %s\n%s"):format(page, block.line, one.command, why,
        text)
    end
  end
end

--- Runs a page in a folder.
---@param folder table spec.folder, which holds the files that the page wants
---@param page string its name, for messages
---@param text string
---@return string[] problems none where the page is right
function guide.check(folder, page, text)
  local blocks, problems = guide.blocks(text), {}
  for _, block in ipairs(blocks) do
    if block.file then write(folder.path(block.file), table.concat(block.lines, "\n") .. "\n") end
  end
  local outputs, why = run_program(folder, blocks)
  if not outputs then return {page .. ": " .. why} end
  for i, block in ipairs(blocks) do
    if block.kind == "lua" and not block.file then
      why = difference(expected(blocks, i), outputs[i])
      if why then problems[#problems + 1] = ("%s:%d: %s"):format(page, block.line, why) end
    elseif block.kind == "console" then
      check_console(folder, page, block, problems)
    end
  end
  return problems
end

return guide
