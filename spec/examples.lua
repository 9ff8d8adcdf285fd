-- Runs an example of the documentation (lua/demilune/docs/examples): its lines are Lua, and a line
-- `expression  --> value` must have that value.

local dm = require "demilune"

local examples = {}

local TOLERANCE = 1e-3 -- of floats, which are written with a few digits

local function same(value, wanted)
  if dm.is_tensor(value) and type(wanted) ~= "table" then value = value:item() end
  if dm.is_tensor(value) then value = value:totable() end
  if type(wanted) == "number" and type(value) == "number" then
    return value == wanted or value ~= value and wanted ~= wanted
      or math.abs(value - wanted) <= TOLERANCE * math.max(1, math.abs(wanted))
  end
  if type(wanted) ~= "table" or type(value) ~= "table" then return value == wanted end
  for key, item in pairs(wanted) do
    if not same(value[key], item) then return false end
  end
  return #value == #wanted
end

-- Raises where the value of a line is another than its text says.
local function check(line, value, wanted)
  if same(value, wanted) then return end
  if dm.is_tensor(value) then value = value:totable() end
  error(("%s: the value is %s"):format(line,
    type(value) == "table" and dm.json_encode(value) or tostring(value)), 0)
end

-- The lines as a chunk of Lua that checks the values.
local function chunk_of(lines)
  local out = {}
  for i, line in ipairs(lines) do
    local expression, wanted = line:match "^(.-)%s*%-%->%s*(.+)$"
    out[i] = expression and ("__check(%q, (%s), (%s))"):format(line, expression, wanted) or line
  end
  return table.concat(out, "\n")
end

-- Until it is closed, what this library prints goes nowhere: io's files and print are others.
local function silence()
  local old, nowhere = {print, io.stdout, io.stderr}, assert(io.open("/dev/null", "w"))
  rawset(_G, "print", function() end)
  rawset(io, "stdout", nowhere)
  rawset(io, "stderr", nowhere)
  return setmetatable({}, {__close = function()
    rawset(_G, "print", old[1])
    rawset(io, "stdout", old[2])
    rawset(io, "stderr", old[3])
    nowhere:close()
  end})
end

-- os with a tmpname whose files and folders go when `made` is closed.
local function own_os_and_files()
  local made = setmetatable({}, {__close = function(self)
    for _, path in ipairs(self) do os.execute("rm -rf '" .. path .. "'*") end
  end})
  local function tmpname()
    made[#made + 1] = os.tmpname()
    return made[#made]
  end
  return setmetatable({tmpname = tmpname}, {__index = os}), made
end

--- Runs the lines of an example. -> nil, or what is wrong
function examples.problem(name, lines)
  local _ <close> = silence()
  local own_os, made = own_os_and_files()
  local _ <close> = made
  local environment = setmetatable({dm = dm, nn = dm.nn, optim = dm.optim, amp = dm.amp,
    data = dm.data, F = dm.nn.functional, os = own_os, __check = check}, {__index = _G})
  local chunk, why = load(chunk_of(lines), "=" .. name, "t", environment)
  local fine = chunk and true
  if chunk then fine, why = pcall(chunk) end
  if not fine then return name .. ": " .. tostring(why) end
end

return examples
