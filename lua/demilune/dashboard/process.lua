-- Processes of this machine, known by number and start time, since the system gives the number of
-- one that ended to another. Linux tells both in /proc; elsewhere nothing is known.

local process = {}

-- The fields of /proc/PID/stat behind the program's name, which may hold anything.
local function fields_of(path)
  local file <close> = io.open(path)
  local text = file and file:read "a"
  if not text then return nil end
  local fields = {}
  for word in text:match "^.*%)(.*)$":gmatch "%S+" do fields[#fields + 1] = word end
  return fields, text:match "^%d+"
end

local STATE, BORN = 1, 20 -- their positions, and the unit of BORN is a clock tick since boot

--- This process as a text, "1234.567890": its number and its start time; nil where that is unknown.
---@return string?
function process.id()
  local fields, number = fields_of "/proc/self/stat"
  return fields and number .. "." .. fields[BORN]
end

--- Whether the process of an id still runs; nil where nothing is known.
---@param id string? of process.id()
---@return boolean?
function process.runs(id)
  local number, born = (id or ""):match "^(%d+)%.(%d+)$"
  if not number or not process.id() then return nil end
  local fields = fields_of("/proc/" .. number .. "/stat")
  return fields ~= nil and fields[BORN] == born and fields[STATE] ~= "Z"
end

return process
