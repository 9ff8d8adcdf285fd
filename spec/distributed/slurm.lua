-- A Slurm of two nodes, for slurm_spec.lua: munged, slurmctld and slurmd, with a configuration and
-- a key of their own, on the hosts that distributed/hosts.lua makes of this machine. The first one
-- is the controller too. They end with the hosts; the machine's own Slurm, if there is one, is
-- another.

local hosts = require "spec.distributed.hosts"
local launch = require "spec.distributed.launch"

local slurm = {}

local function is_there(name) return (os.execute("command -v " .. name .. " >/dev/null 2>&1")) end

-- Why there is none here; nil: there can be one.
local function why_no_slurm()
  for _, name in ipairs{"munged", "slurmctld", "slurmd", "srun", "sbatch"} do
    if not is_there(name) then return name .. " is not installed" end
  end
  local plugins = launch.run "srun --mpi=list"
  return hosts.missing or (not plugins:find "pmix" and not plugins:find "fatal"
    and "Slurm has no plugin for PMIx") or nil
end

slurm.missing = why_no_slurm()

-- $F is the folder, $H the controller, $N the nodes.
local CONF = [[
ClusterName=demilune
SlurmctldHost=$H
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$F/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=60
StateSaveLocation=$F/state
SlurmdSpoolDir=$F/spool.%n
TmpFS=$F/tmp.%n
SlurmctldPidFile=$F/slurmctld.pid
SlurmdPidFile=$F/slurmd.%n.pid
SlurmctldLogFile=$F/slurmctld.log
SlurmdLogFile=$F/slurmd.%n.log
NodeName=$N CPUs=2 State=UNKNOWN
PartitionName=all Nodes=$N Default=YES MaxTime=INFINITE State=UP
]]

-- slurmd looks for control groups, which it then does not use: the hosts have none.
local CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"

local MUNGED = "munged --foreground --force --key-file=$F/munge.key --socket=$F/munge.socket "
  .. "--pid-file=$F/munge.pid --seed-file=$F/munge.seed --log-file=$F/munged.log"

local Cluster = {}
Cluster.__index = Cluster

-- The last lines of the files of Slurm, for the message of a failure.
function Cluster:logs()
  return (launch.run(("tail -n 15 %s/*.log"):format(self.net.folder)))
end

-- The command that runs the words of a shell on the first node, in the folder of the checkout.
local function command(self, words)
  return self.net:on(1, ("cd %s; export SLURM_CONF=%s/slurm.conf %s; %s"):format(self.folder,
    self.net.folder, launch.paths(), words))
end

-- Runs the words of a shell on the first node -> what they wrote, the exit status.
function Cluster:run(words)
  local text, code = launch.run(command(self, words))
  return text, code
end

-- Starts the same in the background; what it writes goes to a file.
function Cluster:start(words, path) self.net:start(command(self, words), path) end

function Cluster:remove() self.net:remove() end


-- Writes the configuration and the key, and makes the folders.
local function configure(net)
  local folder = net.folder
  local values = {F = folder, H = net.names[1], N = table.concat(net.names, ",")}
  for name, text in pairs{["slurm.conf"] = CONF, ["cgroup.conf"] = CGROUP_CONF} do
    local file <close> = assert(io.open(folder .. "/" .. name, "w"))
    file:write((text:gsub("%$(%u)", values)))
  end
  local own = {}
  for i, name in ipairs(net.names) do own[i] = ("tmp.%s spool.%s"):format(name, name) end
  -- munged wants a folder that all may pass, and a key of its own
  local shell = "chmod 711 $F && for d in state %s; do mkdir $F/$d; done && umask 077 && "
    .. "head -c 1024 /dev/urandom >$F/munge.key"
  assert(os.execute((shell:format(table.concat(own, " ")):gsub("%$F", folder))))
end

-- Starts the daemons.
local function start(net)
  local folder = net.folder
  net:start(net:on(1, (MUNGED:gsub("%$F", folder))), folder .. "/munged.out.log")
  hosts.comes(function() return launch.run("ls " .. folder):find "munge%.socket" end, 30)
  net:start(net:on(1, ("slurmctld -D -f %s/slurm.conf"):format(folder)), folder .. "/ctld.out.log")
  for i, name in ipairs(net.names) do
    net:start(net:on(i, ("slurmd -D -N %s -f %s/slurm.conf"):format(name, folder)),
      ("%s/slurmd%d.out.log"):format(folder, i))
  end
end

-- Makes one, and waits until its nodes are idle. :remove() when it is no longer used.
function slurm.make()
  local net = hosts.make(2)
  local self = setmetatable({net = net, folder = launch.run "pwd":gsub("\n", "")}, Cluster)
  configure(net)
  start(net)
  local ready = hosts.comes(function()
    return launch.count(self:run "sinfo -h -N -o %t", "idle") == 2
  end, 60)
  if ready then return self end
  local why = self:logs()
  net:remove()
  error("Slurm does not start: " .. why)
end

return slurm
