-- Many worlds of ranks that are threads: random programs, and one in which each call of MPI fails
-- in turn.

local standin = require "spec.mpi.standin"

local walks = {}

local PER_WORLD = 25 -- programs
local HUGE = 1 << 30 -- no call, and no request for memory, has that number
local LAST = 3       -- requests for memory by which a rank leaves

local SUSPECT = {"Sanitizer", "runtime error:"}

local function is_clean(text)
  for _, words in ipairs(SUSPECT) do
    if text:find(words, 1, true) then return false end
  end
  return true
end

local function join(...)
  local o = {}
  for _, t in ipairs{...} do
    for k, v in pairs(t) do o[k] = v end
  end
  return o
end

-- Runs so many random programs from a seed on -> how many ran, and a list of what went wrong: each
-- with the seed that repeats it. more: options of standin.run.
function walks.programs(folder, count, seed, more)
  local failures, done = {}, 0
  while done < count do
    local n = math.min(PER_WORLD, count - done)
    local text, code = standin.run(folder, join({ranks = 2 + seed % 3, seed = seed, deadline = 300,
      script = "programs", argument = ("1 %d %d"):format(n, seed), by_messages = seed % 4 == 0},
      more or {}))
    local _, ends = text:gsub("rank %d ends: " .. n .. " programs", "")
    if code ~= 0 or ends ~= 2 + seed % 3 or not is_clean(text) then
      failures[#failures + 1] = ("seed %d: exit code %d\n%s"):format(seed, code, text)
    end
    done, seed = done + n, seed + 1
  end
  return done, failures
end

-- MPI keeps what it does not free, and nothing else depends on it.
local HARMLESS = {MPI_Type_free = true}

-- Whether the ranks have ended as they should after a call of rank `faulty` failed: it is named in
-- an error there, and nobody hangs. A rank that is in MPI_Comm_split alone, which MPI 3.1 cannot
-- give up, is ended with a word. hangs: the call was MPI_Finalize, which did not come back.
local function is_told(text, code, faulty, hangs)
  if hangs then
    return code == 0 and text:find "destroy_process_group: MPI hangs at its end" ~= nil
  end
  if code == 75 then return text:find "for MPI hangs: waited for [%d.]+ s in new_group" ~= nil end
  local own = text:match("rank " .. faulty .. " %l+s:.-requests [^\n]*") or ""
  local failed = own:match "failed (%S+)%]"
  if code ~= 0 or not failed or not is_clean(text) then return false end
  if HARMLESS[failed] then
    return select(2, text:gsub("rank %d ends: well", "")) == 2
  end
  return own:find(failed .. ": a fault that was asked for", 1, true) ~= nil
end

-- Lets each `step`-th call of one rank of two fail, from number `from` on, and the last one -> how
-- many calls failed, and a list of what went wrong. o: {rank =, mode = "raises" or "goes on",
-- keeps = "keeps" or nil}.
function walks.faults(folder, from, step, o, more)
  local failures, walked = {}, 0
  local function run(at)
    return standin.run(folder, join({ranks = 2, seed = 1, script = "faults", deadline = 60,
      argument = o.mode, fault = {rank = o.rank, at = at, keeps = o.keeps}}, more or {}))
  end
  local text, code = run(HUGE)
  local calls = tonumber(text:match("rank " .. o.rank .. " ends: well.-calls (%d+)"))
  if code ~= 0 or not calls or not is_clean(text) then return 0, {text} end
  local numbers = {calls}
  for at = from, calls - 1, step do numbers[#numbers + 1] = at end
  for _, at in ipairs(numbers) do
    text, code = run(at)
    walked = walked + 1
    if not is_told(text, code, o.rank, at == calls and o.keeps) then
      failures[#failures + 1] = ("call %d of rank %d, %s: exit code %d\n%s"):format(at, o.rank,
        o.mode, code, text)
    end
  end
  return walked, failures
end

-- The ends of what a rank raises that waits for one that never comes.
local ABSENCES = {"has waited for", "has left after", "a fault of its own", "has failed"}

-- Runs so many worlds of three ranks in which one rank does something else than the others -> how
-- many, and a list of what went wrong: each rank has to raise, and to end.
function walks.absences(folder, count, more)
  local failures = {}
  for seed = 1, count do
    local text, code = standin.run(folder, join({ranks = 3, seed = seed, deadline = 60,
      script = "absent", argument = tostring(seed)}, more or {}))
    local told = 0
    for line in text:gmatch "rank %d ends: ([^\n]*)" do
      for _, words in ipairs(ABSENCES) do
        if line:find(words, 1, true) then
          told = told + 1
          break
        end
      end
      if line:find("^has left %[") then told = told + 1 end
    end
    if code ~= 0 or told ~= 3 or not is_clean(text) then
      failures[#failures + 1] = ("seed %d: exit code %d\n%s"):format(seed, code, text)
    end
  end
  return count, failures
end

-- Refuses each `step`-th of rank 1's requests for memory, and the last ones, by which it leaves ->
-- how many, and a list of what went wrong: it has to raise, or to go on without, and nobody hangs.
function walks.memory(folder, from, step, more)
  local failures, walked = {}, 0
  local function run(at)
    local text, code = standin.run(folder, join({ranks = 2, seed = 1, deadline = 60,
      script = "faults", argument = "memory " .. at}, more or {}))
    local own = text:match "rank 1 (%l+s: .-calls)" or ""
    local is_fine = own:find "^ends: well," or own:find "out of memory" or own:find "no memory"
    if code ~= 0 or not is_fine or not is_clean(text) then
      failures[#failures + 1] = ("request %d: exit code %d\n%s"):format(at, code, text)
    end
    walked = walked + 1
    return tonumber(own:match "well, (%d+) requests")
  end
  local requests = run(HUGE)
  for at = from, requests - LAST, step do run(at) end
  for at = math.max(requests - LAST + 1, 1), requests do run(at) end
  return walked, failures
end

return walks
