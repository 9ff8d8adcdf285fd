-- Ranks on several hosts, which are network namespaces of this machine (distributed/hosts.lua) and
-- want root. The seconds are bounds for a machine that does other things too.

local hosts = require "spec.distributed.hosts"
local launch = require "spec.distributed.launch"
local run, count, told = launch.run, launch.count, launch.told

local SECONDS = 120 -- that a job may take

launch.missing = launch.missing or hosts.missing
local with_hosts = launch.tests(it, pending, "#slow")

-- Makes n hosts, which are removed when the test ends.
local function network(n, rate)
  local net = hosts.make(n, rate)
  finally(function() net:remove() end)
  return net
end

-- The variables that the ranks of other hosts get, in mpirun's words.
local function exported()
  local words = "-x LUA_PATH -x LUA_CPATH"
  return os.getenv "LD_PRELOAD" and words .. " -x LD_PRELOAD" or words
end

-- The folder of the checkout.
local function folder() return (run "pwd":gsub("\n", "")) end

-- The words of a shell that run a command on `each` ranks of all hosts.
local function job(net, each, command)
  return ("cd %s; %s OMP_NUM_THREADS=1 %s timeout -k 1 %d mpirun --bind-to none --oversubscribe "
    .. "-n %d --host %s -x OMP_NUM_THREADS %s %s </dev/null"):format(folder(), launch.paths(),
    net:variables(), SECONDS, each * net.n, net:list(each), exported(), command)
end

-- Runs a program of spec/distributed on `each` ranks of all hosts, from the first one.
local function ranks(net, each, program, more)
  return run(net:on(1, job(net, each, ("lua5.4 spec/distributed/%s.lua %s"):format(program,
    more or ""))))
end

-- The text of a file; or nil.
local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

describe("ranks on several hosts", function()
  with_hosts("do what every collective says", function()
    for _, n in ipairs{2, 4} do
      local net = network(n)
      local text, code = ranks(net, 1, "collectives", n)
      assert.equal(n, count(text, "rank %d of " .. n .. ": %d+ checks"), text)
      assert.equal(0, code, text)
      net:remove()
    end
  end)

  with_hosts("train as one process does, with two ranks on each of two", function()
    local text, code = ranks(network(2), 2, "parallel")
    assert.equal(4, count(text, "rank %d of 4: %d+ checks"), text)
    assert.equal(0, code, text)
  end)

  -- Of 2 (n - 1) / n of the model. The first stage of ZeRO sends a whole sum and the parameters. A
  -- packet of 1,514 bytes has 1,448 of data, which is 1.046.
  local SHARES = {ddp = 1, bfloat16 = 0.5, zero1 = 1.5, zero2 = 1}
  with_hosts("send no more than a ring would, as their cards count it", function()
    for _, n in ipairs{2, 4} do
      local net = network(n, "200mbit")
      local text, code = ranks(net, 1, "traffic")
      assert.equal(0, code, text)
      for way, share in pairs(SHARES) do
        local found = 0
        for counted, card in text:gmatch(way .. ": rank %d counted (%S+), card (%S+)") do
          found = found + 1
          assert.is_true(tonumber(counted) <= 1.02 * share, text)
          assert.is_true(tonumber(card) <= 1.06 * share and tonumber(card) >= share, text)
        end
        assert.equal(n, found, text)
      end
      net:remove()
    end
  end)

  with_hosts("are started by scripts/run --hosts, on each host with its own memory", function()
    local net = network(2)
    local program = net.folder .. "/program.lua"
    local file <close> = assert(io.open(program, "w"))
    file:write [[
      local dist = require("demilune").distributed
      dist.init_process_group()
      local host = io.open("/proc/sys/kernel/hostname"):read "l"
      print(("%s: rank %d of %d, %d here"):format(host, dist.get_rank(), dist.get_world_size(),
        dist.get_node_local_rank()))
      dist.destroy_process_group()]]
    file:close()
    local text, code = run(net:on(1, ("cd %s; %s scripts/run -n 4 --hosts %s %s"):format(folder(),
      net:variables(), table.concat(net.names, ","), program)))
    assert.equal(0, code, text)
    for rank = 0, 3 do
      local words = ("%s: rank %d of 4, %d here"):format(net.names[rank // 2 + 1], rank, rank % 2)
      assert.equal(1, told(text, words), text)
    end
  end)
end)

describe("a host that is lost", function()
  with_hosts("ends no rank by a launcher: each ends itself, and says who is missing", function()
    local net = network(2)
    local log = net.folder .. "/log"
    local command = ("sh -c 'lua5.4 spec/distributed/cut.lua %s 4 2>%s.$OMPI_COMM_WORLD_RANK.err'")
      :format(log, log)
    net:start(net:on(1, job(net, 2, command)), log)
    for rank = 0, 3 do
      assert.is_true(hosts.comes(function() return read(log .. "." .. rank) end, 60), read(log))
    end
    net:signal("STOP", "mpirun")
    net:signal("STOP", "orted")
    net:cut(2)
    assert.is_true(hosts.comes(function()
      return #net:processes(1, "lua5.4") + #net:processes(2, "lua5.4") == 0
    end, 60), "ranks are still there")
    for rank = 0, 3 do
      local text, other = read(("%s.%d.err"):format(log, rank)), rank < 2 and 2 or 0
      assert.matches("rank %d has waited for [%d.]+ s in DistributedDataParallel bucket 1 of 1: "
        .. ("bias %.%. weight, [^;]*; rank N does not answer; rank M does not answer"):gsub("[NM]",
          {N = other, M = other + 1}), text)
    end
  end)

  -- mpirun's end asks every second whether the other one is there, here.
  with_hosts("is left out when scripts/run starts again, which ends in the same bits", function()
    local net = network(2)
    local path, log = net.folder .. "/lost", net.folder .. "/log"
    local command = "cd %s; %s scripts/run %s spec/distributed/restarts.lua %s/%s"
    local text, code = run(net:on(1, command:format(folder(), "", "-n 1", net.folder, "whole")))
    assert.equal(0, code, text)
    net:start(net:on(1, command:format(folder(), net:variables()
      .. " OMPI_MCA_oob_tcp_keepalive_time=2 OMPI_MCA_oob_tcp_keepalive_intvl=1 timeout 150",
      "-n 4 --hosts " .. net:list(2) .. " --restarts 1 --at-least 2", net.folder, "lost lost")
      .. "; echo ended $?"), log)
    assert.is_true(hosts.comes(function() return read(path .. ".waits") end, 60), read(log))
    net:cut(2)
    os.remove(path .. ".waits")
    assert.is_true(hosts.comes(function() return read(log):find "ended %d+\n" end, 150), read(log))
    text = read(log)
    assert.matches("demilune: " .. net.names[2] .. ":2 does not answer, and is left out", text, 1,
      true)
    assert.matches("start 1 on 2 ranks at step 9:", text, 1, true)
    assert.matches("ended 0\n", text)
    assert.is_true((os.execute(("cmp %s %s/whole"):format(path, net.folder))))
  end)
end)
