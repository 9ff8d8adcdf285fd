-- Ranks as threads of one process, on the stand-in for MPI of mpi.c: builds it, and runs worlds.

local launch = require "spec.distributed.launch"

local standin = {}

local SPEC = "spec/mpi/"
local STATIC_TLS = 1 << 16 -- bytes for the variables of threads of all copies of the engine
local MOST = 4             -- ranks of a world

local function sh(command)
  local text, code = launch.run(command)
  if code ~= 0 then error(("%s: %s"):format(command, text)) end
  return text
end

-- Makes a folder with the stand-in, mpi.so on it, and a copy of the engine for each rank: a library
-- is loaded once for each file, and holds one world. build: the build folder; that of this process
-- by default. The function it returns removes the folder.
function standin.prepare(build)
  local folder = os.tmpname()
  os.remove(folder)
  local core = build and build .. "/lua/demilune/core.so"
    or assert(package.searchpath("demilune.core", package.cpath))
  local compile = "cc -std=gnu11 -O1 -g -shared -fPIC -Ispec/mpi -Isrc "
    .. "$(pkg-config --cflags lua5.4)"
  sh("mkdir -p " .. folder)
  -- ThreadSanitizer takes a variable of threads that is found by __tls_get_addr, and lies 16 bytes
  -- into a page, for the C library's own, and reads a header in front of it: this one has a fixed
  -- position.
  sh(("%s -ftls-model=initial-exec -o %s/host.so %smpi.c %shost.c -lpthread"):format(compile,
    folder, SPEC, SPEC))
  sh(("%s -o %s/mpi.so src/dist/mpi/mpi.c"):format(compile, folder))
  for rank = 0, MOST - 1 do
    sh(("mkdir -p %s/%d/demilune && cp %s %s/mpi.so %s/%d/demilune/"):format(folder, rank, core,
      folder, folder, rank))
  end
  return folder, function() os.execute("rm -r " .. folder) end
end

-- Runs a script of spec/mpi on ranks of a process -> what it wrote, its exit code. deadline: in
-- seconds; argument: what the script gets; by_messages: ranks do not read one another's memory;
-- fault: {rank =, at =, keeps =} or nil; before: words before the command, such as those that
-- preload a sanitizer.
function standin.run(folder, o)
  local fault = o.fault and ("%d %d %s"):format(o.fault.rank, o.fault.at, o.fault.keeps or "") or ""
  local variables = ("GLIBC_TUNABLES=glibc.rtld.optional_static_tls=%d DEMILUNE_CUDA=0 "
    .. "DEMILUNE_MPI= OMPI_COMM_WORLD_SIZE=%d OMP_NUM_THREADS=1 DEMILUNE_NEAR=%d"):format(
    STATIC_TLS, o.ranks, o.by_messages and 0 or 1)
  return launch.run(("%s %s timeout -s KILL %d %s lua5.4 %shost.lua %s %d %d %s '%s' %d %s")
    :format(launch.paths(), variables, o.deadline + 10, o.before or "", SPEC, folder, o.ranks,
      o.seed, o.script, o.argument or "", o.deadline, fault))
end

return standin
