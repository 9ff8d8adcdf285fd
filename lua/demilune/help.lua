-- dm.help: what a name, a class, an object or a subject means.

local core = require "demilune.core"
local docs = require "demilune.docs"
local options = require "demilune.options"

local help = {}

local FOUND, WIDTH = 10, 96 -- lines of a search; characters of a line

-- A signature in lines of up to WIDTH characters, parted at commas.
local function wrapped(signature)
  local lines, line = {}, ""
  for part in (signature .. ", "):gmatch "(.-, )" do
    if #line + #part > WIDTH and line ~= "" then
      lines[#lines + 1], line = line:gsub(" $", ""), "      "
    end
    line = line .. part
  end
  lines[#lines + 1] = line:gsub(", $", "")
  return table.concat(lines, "\n")
end

--- The text of an entry of demilune.docs.
---@param entry table
---@return string
function help.written(entry)
  local lines = {entry.signature and wrapped(entry.signature)}
  local margin = entry.signature and "  " or ""
  for _, line in ipairs(entry.text) do
    lines[#lines + 1] = line == "" and "" or margin .. line
  end
  if entry.example then
    lines[#lines + 1] = margin .. "example:"
    for _, line in ipairs(entry.example) do lines[#lines + 1] = margin .. "  " .. line end
  end
  return table.concat(lines, "\n")
end

local START = [[
dm.help "conv2d"          an op; also "linalg.inv", "x:sum"
dm.help "nn.LSTM"         a class or a function; "LSTM" will do
dm.help(model)            the class of an object
dm.help "nn"              a module: nn optim amp data models transforms metrics ...
dm.help "learning rate"   a search
dm.help "guide indexing"  a guide: first-script indexing modules data mixed-precision gpu memory
                          saving trainer dashboard distributed nan speed notebooks embedding
                          from-torch7]]

-- A tensor: its methods, by their first letters.
local function of_tensor()
  local names = {}
  for name in pairs(core.methods) do
    if not name:find "_$" and name:sub(1, 1) ~= "_" then names[#names + 1] = name end
  end
  table.sort(names)
  local lines, line = {"a tensor; methods (op_ in place):"}, " "
  for _, name in ipairs(names) do
    if #line + #name > 76 then
      lines[#lines + 1], line = line, " "
    end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

-- The lines that a search finds; nil where it finds none.
local function searched(words)
  local lines = {}
  for i, found in ipairs(docs.search(words, FOUND)) do
    lines[i] = ("  %-28s %s"):format(found[1], found[2]):sub(1, 100)
  end
  return #lines > 0 and words .. ":\n" .. table.concat(lines, "\n") or nil
end

local function nothing(name)
  local set = {}
  for _, one in ipairs(docs.names()) do
    set[one], set[one:match "[^.]*$"] = true, true
  end
  local near = options.nearest(name, set)
  return ("nothing is called '%s'%s"):format(name,
    near and ("; did you mean '%s'?"):format(near) or "; dm.help() tells how to ask")
end

--- Prints what a name means: an op ("conv2d"), a class or function ("nn.LSTM"), a module ("nn"),
--- a guide ("indexing"); what an object is (dm.help(model)); what has to do with some words
--- ("learning rate"); without an argument, how to ask.
---@param what? any
function help.help(what)
  local text
  if what == nil then
    text = START
  elseif core.is_tensor(what) then
    text = of_tensor()
  elseif type(what) ~= "string" then
    local entry = docs.of(what)
    text = entry and help.written(entry) or "no words for a " .. type(what)
  else
    local entry = docs.find(what)
    text = entry and help.written(entry) or searched(what) or nothing(what)
  end
  print(text)
end

return help
