-- Programs on several ranks, for specs: by mpirun, where it is installed.

local dist = require("demilune").distributed

local launch = {}

local SECONDS = 60 -- that a program may take

-- Open MPI refuses root, and more ranks than cores, unless it is told otherwise.
local MPIRUN = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
  .. "OMPI_MCA_rmaps_base_oversubscribe=1 timeout -k 1 %d mpirun -n %d "

-- Why no ranks can be started here; nil: they can.
local function why_no_ranks()
  if not os.execute "command -v mpirun >/dev/null 2>&1" then return "mpirun is not installed" end
  local is_available, why = dist.is_available()
  if not is_available then return why end
  if not os.execute(MPIRUN:format(SECONDS, 2) .. "true >/dev/null 2>&1") then
    return "mpirun starts no processes here"
  end
end

-- The reason why no program can run on several ranks; or nil.
launch.missing = why_no_ranks()

-- A function that defines a test which starts ranks: pending, with the reason, where none can be.
-- it, pending: busted's. tags: further ones than `#ranks`, by which scripts/test leaves tests out.
function launch.tests(it, pending, tags)
  tags = " #ranks" .. (tags and " " .. tags or "")
  return function(title, f)
    if launch.missing then
      pending(title .. tags .. ": " .. launch.missing)
    else
      it(title .. tags, f)
    end
  end
end

-- Lua's paths for a program in another process.
function launch.paths()
  return ("LUA_PATH='./?.lua;%s' LUA_CPATH='%s'"):format(package.path, package.cpath)
end

-- Runs a command -> what it wrote, its exit code, seconds.
function launch.run(command)
  local from = os.time()
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read "a"
  local _, _, code = pipe:close()
  return text, code, os.difftime(os.time(), from)
end

-- The command that runs a script with its arguments on n ranks. variables: of the environment, or
-- nil.
function launch.command(n, script, variables)
  return ("%s %s %s lua5.4 %s"):format(launch.paths(), variables or "", MPIRUN:format(SECONDS, n),
    script)
end

-- Runs a program of spec/distributed on n ranks.
function launch.ranks(n, program, more, variables)
  return launch.run(launch.command(n, ("spec/distributed/%s.lua %s"):format(program, more or ""),
    variables))
end

function launch.count(text, pattern)
  local _, n = text:gsub(pattern, "")
  return n
end

-- How many ranks wrote that text, which is no pattern.
function launch.told(text, plain) return launch.count(text, (plain:gsub("%p", "%%%0"))) end

return launch
