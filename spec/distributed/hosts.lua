-- Several hosts on this machine, for hosts_spec.lua and scripts/bench/hosts.lua: each is a network
-- namespace with an Ethernet card and a UTS name, and each process tree that enters it gets a
-- /dev/shm of its own. A bridge in one namespace more is their switch. Addresses and names are
-- known inside alone, and nothing of the machine's own network changes. A shell that waits for the
-- end of this process removes everything, also where this process is killed.

local hosts = {}

local NETWORK = "10.83.0." -- /24, in the namespaces alone

-- Whether a command succeeds.
local function works(command)
  return os.execute(("{ %s; } >/dev/null 2>&1"):format(command)) == true
end

local function own_pid()
  local file <close> = assert(io.open "/proc/self/stat")
  return file:read "n"
end

-- Makes a namespace with a card, a bridge and a shaped link, and removes it.
local PROBE = [[(name=dmprobe%d
  trap 'ip netns del $name' EXIT
  ip netns add $name && ip -n $name link add sw type bridge &&
    ip -n $name link add eth0 type veth peer name p0 && ip -n $name link set eth0 up &&
    tc -n $name qdisc add dev eth0 root tbf rate 200mbit burst 32kb latency 50ms &&
    ip netns exec $name unshare --uts --mount sh -c 'mount -t tmpfs none /dev/shm')]]

-- Why no hosts can be made here; nil: they can.
local function why_no_hosts()
  for _, name in ipairs{"ip", "tc", "unshare"} do
    if not works("command -v " .. name) then return name .. " is not installed" end
  end
  if not works "test $(id -u) = 0" then return "network namespaces want root" end
  if not works(PROBE:format(own_pid())) then return "this kernel makes no network namespaces" end
end

hosts.missing = why_no_hosts()

-- enter HOST WORDS...: runs the words, as a shell reads them, on a host, as ssh does: with none of
-- the variables of the caller. Open MPI's mpirun starts its daemons by it.
local ENTER = [[#!/bin/sh
host=$1
shift
exec env -i PATH="$PATH" HOME=/root ip netns exec "$host" unshare --uts --mount sh -c '
  hostname "$0"
  mount -t tmpfs none /dev/shm
  mount --bind %s/hosts /etc/hosts
  eval "$1"' "$host" "$*"
]]

-- Ends the processes of the namespaces, and removes them; $hosts names them, $folder has files.
local REMOVE = [[
  for host in $hosts; do
    ip netns pids "$host" | xargs -r kill -9
  done
  for host in $hosts; do ip netns del "$host"; done
  for host in $hosts; do rm -rf "/tmp/ompi.$host.0"; done
  rm -rf "$folder"]]

-- Waits until f() is true -> whether it is, within so many seconds.
function hosts.comes(f, seconds)
  local from = os.time()
  while not f() do
    if os.difftime(os.time(), from) > seconds then return false end
    os.execute "sleep 0.2"
  end
  return true
end

local Network = {}
Network.__index = Network

local count = 0

-- Runs a command of the machine, which has to succeed.
local function must(command, ...)
  command = command:format(...)
  assert(os.execute(command), command)
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

-- Starts the shell that removes all when it is told so, or when its input ends.
local function guard(names, folder)
  local shell = "trap '' INT TERM HUP; exec 2>/dev/null >&2; read -r _; hosts='%s' folder='%s'\n%s"
  return assert(io.popen(shell:format(table.concat(names, " "), folder, REMOVE), "w"))
end

-- Makes n hosts with a switch between them; rate: of each card in tc's words, such as "200mbit", or
-- nil. Cards send packets of at most 1,500 bytes, as wires have them, and not the larger ones that
-- a kernel hands over. :remove() when they are no longer used.
function hosts.make(n, rate)
  count = count + 1
  local prefix = ("dm%d-%d"):format(own_pid(), count)
  local self = setmetatable({n = n, switch = prefix .. "-switch", names = {}}, Network)
  self.folder = os.tmpname()
  os.remove(self.folder)
  must("mkdir -m 700 %s", self.folder)
  local all, known = {self.switch}, {"127.0.0.1 localhost"}
  for i = 1, n do
    self.names[i] = ("%s-%d"):format(prefix, i)
    all[i + 1], known[i + 1] = self.names[i], ("%s%d %s"):format(NETWORK, i, self.names[i])
  end
  self.guard = guard(all, self.folder)
  write(self.folder .. "/hosts", table.concat(known, "\n") .. "\n")
  write(self.folder .. "/enter", ENTER:format(self.folder))
  must("chmod +x %s/enter", self.folder)
  local words = "ip netns add S && ip -n S link add sw type bridge && ip -n S link set sw up"
  must((words:gsub("S", self.switch)))
  for i = 1, n do self:plug(i, rate) end
  return self
end

-- Makes host i, and links it with the switch.
function Network:plug(i, rate)
  local host = self.names[i]
  must("ip netns add %s && ip -n %s link set lo up", host, host)
  must("ip -n %s link add eth0 type veth peer name p%d netns %s", host, i, self.switch)
  must("ip -n %s addr add %s%d/24 dev eth0", host, NETWORK, i)
  must("ip -n %s link set eth0 gso_max_segs 1 up", host)
  must("ip -n %s link set p%d gso_max_segs 1 up", self.switch, i)
  self:mend(i)
  if not rate then return end
  must("tc -n %s qdisc add dev eth0 root tbf rate %s burst 32kb latency 50ms", host, rate)
end

-- Lets the switch forward nothing to host i and from it any more; the cards notice nothing, as
-- where a cable further away is cut.
function Network:cut(i) must("ip -n %s link set p%d nomaster", self.switch, i) end
function Network:mend(i) must("ip -n %s link set p%d master sw", self.switch, i) end

-- The command that runs a shell's words on host i.
function Network:on(i, words)
  return ("%s/enter %s '%s'"):format(self.folder, self.names[i], words:gsub("'", "'\\''"))
end

-- The variables by which mpirun reaches the hosts, and runs as root.
function Network:variables()
  return ("OMPI_MCA_plm_rsh_agent=%s/enter OMPI_ALLOW_RUN_AS_ROOT=1 "
    .. "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"):format(self.folder)
end

-- "a:2,b:2", as mpirun's --host wants it, for `each` ranks on each host.
function Network:list(each)
  local words = {}
  for i, name in ipairs(self.names) do words[i] = ("%s:%d"):format(name, each) end
  return table.concat(words, ",")
end

-- The numbers of the processes of host i that run a program of that name (any, where it is nil) and
-- have not ended.
function Network:processes(i, name)
  local list = {}
  local pipe <close> = assert(io.popen("ip netns pids " .. self.names[i]))
  for pid in pipe:lines() do
    local file <close> = io.open(("/proc/%s/stat"):format(pid))
    local text = file and file:read "a" or ""
    local command, state = text:match "%((.*)%) (%a)"
    if state and state ~= "Z" and (not name or command == name) then list[#list + 1] = pid end
  end
  return list
end

-- Starts a command in the background; what it writes goes to a file. (A program that os.execute
-- starts would keep the guard's input open.)
function Network.start(_, command, path)
  io.popen(("(%s) >%s 2>&1 </dev/null &"):format(command, path)):close()
end

-- Sends a signal to the processes of a name on all hosts.
function Network:signal(signal, name)
  for i = 1, self.n do
    for _, pid in ipairs(self:processes(i, name)) do must("kill -%s %s", signal, pid) end
  end
end

-- Ends what runs there, and removes all of it; once.
function Network:remove()
  if not self.guard then return end
  self.guard:write "\n"
  self.guard:close()
  self.guard = nil
end

return hosts
