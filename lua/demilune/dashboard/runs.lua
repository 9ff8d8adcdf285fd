-- The runs of a folder, as the server tells them to the page.

local core = require "demilune.core"
local folders = require "demilune.folders"
local process = require "demilune.dashboard.process"

local runs = {}

local ENDING = "%.jsonl$"
local MOST_RUNS = 500   -- in one answer, the newest
local HEAD = 4096       -- bytes that hold the first line
local TAIL = 64         -- bytes that hold the line {"ended":T}

--- Whether a text is the name of a run: no path, and no hidden file.
---@param name string
---@return boolean
function runs.is_name(name)
  return #name <= 200 and not name:find "[/%c]" and not name:find "^[.-]" and name ~= ""
    and utf8.len(name) ~= nil
end

local function path_of(dir, name) return ("%s/%s.jsonl"):format(dir, name) end

-- The names of the files of a folder, newest first; nil where it cannot be read.
local function names_in(dir)
  local pipe = io.popen(("ls -t -- %s 2>/dev/null"):format(folders.quoted(dir)))
  if not pipe then return nil end
  local names = {}
  for line in pipe:lines() do
    local name = line:gsub(ENDING, "")
    if line:find(ENDING) and runs.is_name(name) and #names < MOST_RUNS then
      names[#names + 1] = name
    end
  end
  return pipe:close() and names or nil
end

-- The first line of a run's file as a table; nil where it is none of ours.
local function head_of(file)
  local line = (file:read(HEAD) or ""):match "^({[^\n]*})\n"
  local fine, head = pcall(core.json_decode, line or "")
  return fine and type(head) == "table" and head.run and head or nil
end

-- "running", "ended" (closed by its program), or "stopped" (its process is gone); "unknown" where
-- the system does not tell processes.
local function state_of(file, size, head)
  file:seek("set", math.max(size - TAIL, 0))
  if (file:read(TAIL) or ""):find '"ended":[%d.]+}\n$' then return "ended" end
  local alive = process.runs(head.process)
  if alive == nil then return "unknown" end
  return alive and "running" or "stopped"
end

local function described(dir, name)
  local file <close> = io.open(path_of(dir, name), "rb")
  local head = file and head_of(file)
  if not head then return nil end
  local size = file:seek "end"
  return {name = name, size = size, began = tonumber(head.began),
    state = state_of(file, size, head)}
end

--- The runs of a folder, the last written first: {{name =, size = bytes, began = seconds since
--- 1970, state = "running"|"ended"|"stopped"|"unknown"}, ...}.
---@param dir string
---@return table[]? list nil where the folder cannot be read
function runs.list(dir)
  local names = names_in(dir)
  if not names then return nil end
  local list = {}
  for _, name in ipairs(names) do list[#list + 1] = described(dir, name) end
  return list
end

--- Bytes of a run's file.
---@param dir string
---@param name string for which runs.is_name is true
---@param from integer bytes before them, from 0
---@param most integer
---@return string? bytes nil where there is no such run
function runs.read(dir, name, from, most)
  local file <close> = io.open(path_of(dir, name), "rb")
  if not file or not file:seek("set", from) then return nil end
  return file:read(most) or ""
end

return runs
