-- Names that a table does not have. Reading one gives nil, for programs ask so whether something
-- is there (`if self.bias then`). Where the line that reads it goes on to call or to index the
-- nil, as in `model:paramters()` and `nn.Liner(3, 4)`, Lua's error is certain; then one is raised
-- that names the nearest name there is.

local caller = require "demilune.caller"
local options = require "demilune.options"

-- The text of the line that a debug.getinfo tells; nil where the source is not at hand.
local function line_of(info)
  local path = info.source:match "^@(.*)$"
  local file = path and io.open(path)
  if path and not file then return nil end
  local text, line = file and file:read "a" or info.source, info.currentline
  if file then file:close() end
  for row in (text .. "\n"):gmatch "(.-)\n" do
    line = line - 1
    if line == 0 then return row end
  end
end

-- Whether the line has the name, and calls or indexes it wherever it stands.
local function must_fail(line, name)
  local found = false
  for after in line:gmatch("[.:]%s*" .. name .. "%f[^%w_]%s*(.?)") do
    if not after:find "[.:%[({\"']" then return false end
    found = true
  end
  return found
end

local verdicts = {} -- by source, line and name: must_fail, since a loop reads a line many times

-- Whether the line that runs at that level of its caller must fail for want of the name.
local function fails_at(level, name)
  local info = debug.getinfo(level + 1, "Sl")
  if not info or info.currentline < 1 then return false end
  local key = ("%s:%d:%s"):format(info.source, info.currentline, name)
  if verdicts[key] == nil then
    local line = line_of(info)
    verdicts[key] = line ~= nil and must_fail(line, name)
  end
  return verdicts[key]
end

--- An __index for a table that is called `what` in messages; names() gives the set of names,
--- {[name] = anything}. It must be called by the code that reads, or by a tail call.
--- known: {[name of PyTorch's] = its name here}, of those that spelling does not find.
return function(what, names, known)
  local nearest = {} -- a name that was asked for -> the nearest one, or false
  return function(_, name)
    local near = nearest[name]
    if near == false then return nil end -- most readings: it is a question
    if near == nil then
      if type(name) ~= "string" then return nil end
      local set = name:find "^%a[%w_]*$" and names() or {}
      near = known and known[name]
        or rawget(set, name) == nil and options.nearest(name, set) or false
      nearest[name] = near
    end
    if not near then return nil end
    if fails_at(2, name) then
      caller.raise("%s has no '%s'; did you mean '%s'?", what, name, near)
    end
    return nil
  end
end
