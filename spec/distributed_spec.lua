-- demilune.distributed: a world of one rank in this process, and several ranks by mpirun, where it
-- is installed.

local dm = require "demilune"
local dist = dm.distributed
local launch = require "spec.distributed.launch"
local run_checks = require "spec.distributed.collectives"
local paths, run, ranks, count, told = launch.paths, launch.run, launch.ranks, launch.count,
  launch.told

local with_mpirun = launch.tests(it, pending)

describe("a world of one rank", function()
  after_each(function()
    if dist.is_initialized() then dist.destroy_process_group() end
  end)

  it("does what every collective says, without MPI", function()
    dist.init_process_group()
    assert.equal(1, dist.get_world_size())
    assert.is_true(run_checks() > 1000)
    dist.destroy_process_group()
    assert.is_false(dist.is_initialized())
  end)

  it("has collectives with gradients, which refuse what does not fit", function()
    local nn = dist.nn
    assert.refuses("distributed_spec.lua:%d+: all_reduce: there is no process group", function()
      nn.all_reduce(dm.ones(2))
    end)
    dist.init_process_group()
    local x = dm.tensor({1.0, 2}, {requires_grad = true})
    nn.all_reduce(x, "avg"):mul(nn.all_gather(x)[1]):sum():backward()
    assert.same({2, 4}, x.grad:totable())
    for text, call in pairs{
      ["op is 'max', wanted 'sum' or 'avg'"] = function() nn.all_reduce(x, "max") end,
      ["input_list has 2 elements, wanted 1, a tensor for each rank"] = function()
        nn.reduce_scatter(x, {x, x})
      end,
      ["all_to_all: an output {2} float64 for {2} float32"] = function()
        nn.all_to_all({dm.zeros(2):double()}, {x})
      end,
      ["element 1 of tensors is a number, wanted a tensor"] = function() nn.scatter{1} end,
      ["all_to_all: rank 0 gives rank 0 2 elements, which wants 3"] = function()
        nn.all_to_all({dm.zeros(3)}, {x})
      end,
      ["input_split_sizes has 1 elements with the sum 1, wanted 1 and 2"] = function()
        nn.all_to_all_single(dm.zeros(2), x, {input_split_sizes = {1}})
      end,
    } do assert.refuses("distributed_spec.lua:%d+: .*" .. text, call) end
    dist.destroy_process_group()
  end)

  it("can begin again", function()
    for _ = 1, 3 do
      dist.init_process_group{timeout = 5}
      assert.equal(0, dist.stats().calls)
      dist.barrier()
      assert.equal(1, dist.stats().calls)
      dist.destroy_process_group()
    end
  end)

  it("is not there before and after", function()
    local hint = "spec/distributed_spec.lua:%d+: [%w_]+: there is no process group"
    assert.refuses(hint, function() dist.barrier() end)
    assert.refuses(hint, function() dist.all_reduce(dm.ones(2)) end)
    for _, name in ipairs{"get_rank", "get_world_size", "get_node_local_rank", "stats",
      "new_group", "destroy_process_group", "device"} do
      assert.refuses("there is no process group", dist[name])
    end
    dist.init_process_group()
    assert.refuses("init_process_group: was called before; hint: dist.destroy_process_group",
      function() dist.init_process_group() end)
    dist.destroy_process_group()
    assert.refuses("any more: destroy_process_group has ended it", function() dist.barrier() end)
  end)

  it("refuses what it cannot do, and leaves the tensor alone", function()
    local function refuses(text, name, ...)
      local args = table.pack(...)
      assert.refuses("distributed_spec.lua:%d+: " .. name .. ": " .. text, function()
        dist[name](table.unpack(args, 1, args.n))
      end)
    end
    refuses("timeout is 0, wanted seconds above 0", "init_process_group", {timeout = 0})
    refuses("timeout is %-?nan, wanted seconds", "init_process_group", {timeout = 0 / 0})
    refuses("unknown option 'timeuot'; did you mean 'timeout'", "init_process_group",
      {timeuot = 1})
    dist.init_process_group()
    local x = dm.ones(3)
    refuses("op is 'mean', wanted 'sum'", "all_reduce", x, "mean")
    refuses("avg of int64, wanted floats; hint: sum", "all_reduce", dm.arange(3), "avg")
    refuses("bor of float32, wanted integers or bool", "all_reduce", x, "bor")
    refuses("elements of the tensor share memory; hint: x:contiguous", "all_reduce", x:expand(2, 3))
    refuses("group is 3, wanted a group; hint", "barrier", 3)
    refuses("src is 1, wanted a rank of the group, one of {0}; hint: ranks count from 0",
      "broadcast", x, 1)
    refuses("dst is %-1, wanted a rank", "reduce", x, -1)
    refuses("dst is 0, this rank itself; hint: y:copy_", "send", x, 0)
    refuses("src is 0, this rank itself", "irecv", x, 0)
    refuses("this rank is the only one of the group, wanted one that sends", "recv", x)
    refuses("tag is %-1, wanted 0 to %d+", "send", x, 0, {tag = -1})
    refuses("op is another function, wanted dist.isend or dist.irecv", "P2POp", print, x, 0)
    refuses("element 2 is a number, wanted dist.P2POp%(%)", "batch_isend_irecv",
      {dist.P2POp(dist.isend, x, 0), 3})
    refuses("{2} float32 for {3} float32; wanted an output of 1 times 3 elements",
      "all_gather_into_tensor", dm.zeros(2), x)
    refuses("dtypes int64 and float32, wanted the same", "reduce_scatter_tensor", x, dm.arange(3))
    refuses("{} float32 does not divide into 1 parts", "all_to_all_single", dm.tensor(1.5),
      dm.tensor(2.5))
    for text, splits in pairs{
      ["output_split_sizes has 1 elements with the sum 2, wanted 1 and 3"] = {{2}, {3}},
      ["input_split_sizes has 2 elements with the sum 3, wanted 1 and 3"] = {{3}, {1, 2}},
      ["input_split_sizes%[1%] is %-3, wanted a number of rows"] = {nil, {-3}},
    } do refuses(text, "all_to_all_single", dm.zeros(3), x, splits[1], splits[2]) end
    refuses("rank 0 has 3000000000 rows to exchange, of at most 2147483647", "all_to_all_single",
      dm.zeros(3000000000, 0), dm.zeros(3000000000, 0), {3000000000}, {3000000000})
    refuses("an output {3, 1} float32 for {3} float32, wanted the same dims behind the first",
      "all_to_all_single", dm.zeros(3, 1), x, {3}, {3})
    refuses("no list, wanted scatter_list of 1 on the rank src", "scatter", x)
    refuses("scatter_list has 2 elements, wanted 1", "scatter", x, {x, x})
    refuses("element 1 of scatter_list is {2} float32, wanted {3} float32", "scatter", x,
      {dm.ones(2)})
    refuses("element 1 of scatter_list is a number, wanted a tensor", "scatter", x, {5})
    refuses("element 1 of tensor_list is {2} float32, wanted {3} float32 as the tensor",
      "all_gather", {dm.ones(2)}, x)
    refuses("tensor_list has 2 elements, wanted 1, a tensor for each rank", "all_gather", {x, x}, x)
    refuses("elements of element 1 of tensor_list share memory", "all_gather",
      {dm.ones(1):expand(3)}, x)
    refuses("element 1 of gather_list is {2} float32, wanted {3} float32", "gather", x,
      {dm.ones(2)})
    refuses("input_list has 2 elements, wanted 1", "reduce_scatter", x, {x, x})
    refuses("avg of int64, wanted floats", "reduce_scatter", dm.arange(3), {dm.arange(3)}, "avg")
    refuses("dtypes float32 and int64, wanted the same", "all_to_all", {dm.arange(3)}, {x})
    refuses("rank 0 gives rank 0 3 elements, which wants 2", "all_to_all", {dm.ones(2)}, {x})
    refuses("rank 1, wanted integers from 0 to 0", "new_group", {1})
    refuses("rank 0 is given twice", "new_group", {0, 0})
    refuses("no ranks, wanted one at least", "new_group", {ranks = {}})
    assert.same({1, 1, 1}, x:totable())
    local handle = dist.barrier{async_op = true}
    assert.refuses("handle.wait was called with a dot", function() handle.wait() end)
    assert.refuses("wait: timeout is %-1, wanted seconds", function() handle:wait(-1) end)
    handle:wait()
  end)

  it("ends in a process that is forked, and goes on in the other", function()
    local library = os.tmpname()
    assert(os.execute(("cc -shared -fPIC $(pkg-config --cflags lua5.4) -o %s spec/process.c")
      :format(library)))
    finally(function() os.remove(library) end)
    local process = assert(package.loadlib(library, "luaopen_process"))()
    dist.init_process_group()
    local child = process.fork()
    if child == 0 then
      local ok, why = pcall(dist.barrier)
      local is_told = not ok and why:find "forked after init_process_group"
      os.exit(is_told and not dist.is_initialized() and 7 or 1, false)
    end
    assert.equal(7, process.wait(child))
    assert.equal(2, dist.all_reduce(dm.full({}, 2)):item())
  end)

  it("says why MPI cannot be had, where a launcher started several ranks", function()
    local text = run(("%s DEMILUNE_MPI=0 OMPI_COMM_WORLD_SIZE=2 lua5.4 -e '%s'"):format(paths(), [[
      local dist = require("demilune").distributed
      print(dist.is_available())
      print(pcall(dist.init_process_group))
      print(pcall(dist.barrier))]]))
    assert.matches("^false\tDEMILUNE_MPI=0 switches it off\nfalse\t.*init_process_group: "
      .. "DEMILUNE_MPI=0 switches it off; hint: MPI is an option of the build, WITH_MPI=1", text)
    assert.matches("barrier: there is no process group; hint", text)
  end)

  it("makes 63 groups more, and says when there are too many", function()
    dist.init_process_group()
    for _ = 1, 63 do dist.new_group{0} end
    assert.refuses("new_group: more than 63 groups", function() dist.new_group{0} end)
  end)
end)

describe("several ranks", function()
  with_mpirun("do what every collective says", function()
    for n = 2, 3 do
      local text, code = ranks(n, "collectives")
      assert.equal(n, count(text, "rank %d of " .. n .. ": %d%d%d%d checks"), text)
      assert.equal(0, code)
    end
  end)

  with_mpirun("do in random programs what a plain loop does", function()
    for seed = 1, 2 do
      local text, code = ranks(3, "mix", "100 " .. seed)
      assert.equal(3, count(text, "rank %d: 100 programs"), text)
      assert.equal(0, code)
    end
  end)

  with_mpirun("have gradients of collectives: those of the sum of their losses", function()
    for n = 2, 3 do
      local text, code = ranks(n, "gradients")
      assert.equal(n, count(text, "rank %d of " .. n .. ": %d%d checks of gradients"), text)
      assert.equal(0, code)
    end
  end)

  with_mpirun("do it by messages alone, where they may not read one another's memory", function()
    local text, code = ranks(2, "collectives", nil, "DEMILUNE_NEAR=0")
    assert.equal(2, count(text, "rank %d of 2: %d%d%d%d checks"), text)
    assert.equal(0, code)
  end)

  with_mpirun("say who calls something else, all of them, and go on", function()
    local text, code = ranks(3, "faults", "mismatch")
    assert.equal(0, code, text)
    assert.equal(3, told(text, "all_reduce: ranks do not agree: rank 0 gives all_reduce "
      .. "(sum) {10} float32 (spec/distributed/faults.lua:"), text)
    assert.equal(3, told(text, "rank 1 gives all_reduce (sum) {11} float32 ("), text)
    assert.equal(3, told(text, ": ranks do not agree: rank 0 gives barrier ("), text)
    assert.equal(3, told(text, ", rank 1 gives broadcast from rank 2, {3} float32 ("), text)
    assert.equal(3, told(text, "rank 0 gives new_group {0} ("), text)
    assert.equal(1, told(text, "recv: rank 0 sends {3} float32 (spec/distributed/faults.lua:"))
    assert.equal(1, told(text, "), wanted {2} float32"), text)
    assert.equal(3, told(text, "goes on"), text)
    assert.equal(3, told(text, "the process group has ended, and MPI cannot begin again"), text)
  end)

  with_mpirun("can be interrupted while they wait", function()
    local text = ranks(2, "faults", "interrupt")
    assert.equal(1, told(text, "interrupted!, at once"), text)
  end)

  with_mpirun("are warned of one processor of several, and of little shared memory", function()
    if run "nproc" == "1\n" then return pending "one processor alone" end
    local script = os.tmpname()
    finally(function() os.remove(script) end)
    local file = assert(io.open(script, "w"))
    file:write [[
      local core = require "demilune.core"
      local machine = core._dist_machine
      core._dist_machine = function()
        local own, all, shared = machine()
        assert(shared > 0)
        return own, all, 6 << 20
      end
      local dist = require("demilune").distributed
      dist.init_process_group()
      dist.destroy_process_group()]]
    file:close()
    local command = launch.command(2, script):gsub("lua5.4 /",
      "env OMPI_COMM_WORLD_LOCAL_SIZE=1 taskset -c 0 %0")
    local text, code = run("unset DEMILUNE_NUM_THREADS; " .. command)
    assert.equal(0, code, text)
    assert.equal(1, count(text, "warning: init_process_group: a rank is bound to one of %d+ "
      .. "processors, and %d+ of them stay idle; hint: mpirun %-%-bind%-to none"), text)
    assert.equal(0, told(text, "/dev/shm"), text)
    text, code = run(launch.command(2, script))
    assert.equal(0, code, text)
    assert.equal(1, told(text, "warning: init_process_group: /dev/shm has 6.0 MiB left, wanted 8 "
      .. "for 2 ranks of this machine, which else may end by SIGBUS; hint: docker run "
      .. "--shm-size=1g"), text)
    assert.equal(0, told(text, "is bound"), text)
  end)

  with_mpirun("are started by scripts/run", function()
    local program = os.tmpname()
    local file = assert(io.open(program, "w"))
    file:write [[
      local dm = require "demilune"
      dm.distributed.init_process_group()
      local x = dm.distributed.all_reduce(dm.tensor{dm.distributed.get_rank() + 1, #arg})
      io.write(("%s %s of %s"):format(x[1]:item(), x[2]:item(), arg[1]), "\n")
      dm.distributed.destroy_process_group()]]
    file:close()
    finally(function() os.remove(program) end)
    local text, code = run("env -u LUA_PATH -u LUA_CPATH scripts/run -n 2 " .. program .. " a b")
    assert.equal(0, code, text)
    assert.equal(2, told(text, "3 4 of a"), text)
    for arguments, words in pairs{["-n 0 x.lua"] = "-n 0, wanted a number of processes",
      ["-n"] = "-n wants a value", ["-n 2"] = "-n 2 wants a script",
      ["--hosts a x.lua"] = "--hosts goes with -n",
      ["--restarts 2 x.lua"] = "--restarts goes with -n",
      ["-n 2 --restarts x y.lua"] = "--restarts x, wanted a number",
      ["-n 2 --at-least 1 x.lua"] = "--at-least goes with --restarts",
      ["-n 2 --restarts 1 --at-least 3 x.lua"] = "--at-least 3, wanted a number of processes, at "
        .. "most 2"} do
      text, code = run("scripts/run " .. arguments)
      assert.equal(2, code)
      assert.matches(words, text, 1, true)
    end
  end)

  with_mpirun("are started again after one is killed, and end in the same bits", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir " .. folder))
    finally(function() os.execute("rm -r " .. folder) end)
    local function train(options, file, killed)
      local command = "env -u LUA_PATH -u LUA_CPATH scripts/run %s spec/distributed/restarts.lua "
        .. "%s/%s %s"
      return run(command:format(options, folder, file, killed or ""))
    end
    assert.equal(0, select(2, train("-n 1", "undisturbed")))
    for file, case in pairs{fewer = {"--at-least 2", 2}, all = {"", 4}} do
      local text, code = train("-n 4 --restarts 3 " .. case[1], file, 1)
      assert.equal(0, code, text)
      assert.matches("the job has ended with 137; restart 1 of 3, on " .. case[2], text)
      local from = text:match "killed: (%S+)"
      local on, to = text:match "start 1 on (%d) ranks at step 9: (%S+)"
      assert.equal(case[2], tonumber(on), text)
      assert.is_true(to - from < 30, text) -- some 0.7 s where nothing else runs
      assert.is_true((os.execute(("cmp %s/undisturbed %s/%s"):format(folder, folder, file))))
    end
  end)

  with_mpirun("are started as often as scripts/run says, and never after a signal", function()
    local program = os.tmpname()
    finally(function() os.remove(program) end)
    local file <close> = assert(io.open(program, "w"))
    file:write [[
      print("begin " .. os.getenv "DEMILUNE_RESTART")
      io.stdout:flush()
      local from = os.time()
      while arg[1] == "wait" and os.time() - from < 60 do end
      os.exit(3)]]
    file:close()
    local text, code = run("env -u LUA_PATH -u LUA_CPATH scripts/run -n 1 --restarts 2 " .. program)
    assert.equal(3, code, text)
    assert.equal(3, count(text, "begin %d"), text)
    local seconds
    text, code, seconds = run("timeout -s TERM 6 env -u LUA_PATH -u LUA_CPATH scripts/run -n 1 "
      .. "--restarts 2 " .. program .. " wait")
    assert.is_true(code ~= 0 and seconds < 30, text)
    assert.is_true(count(text, "begin %d") <= 1, text) -- 0 where 6 s are too few to begin
  end)

  with_mpirun("may end well when scripts/run is asked to end them", function()
    local program = os.tmpname()
    finally(function() os.remove(program) end)
    local file <close> = assert(io.open(program, "w"))
    file:write [[
      local dist = require("demilune").distributed
      dist.init_process_group{timeout = 60}
      dist.should_stop()
      if dist.get_rank() == 0 then os.execute "kill -TERM $RUN" end
      local from = os.time()
      while not dist.should_stop() and os.time() - from < 30 do end
      print(("rank %d ends at start %s"):format(dist.get_rank(), os.getenv "DEMILUNE_RESTART"))
      io.stdout:flush()
      dist.destroy_process_group()]]
    file:close()
    local text = run("env -u LUA_PATH -u LUA_CPATH sh -c 'export RUN=$$; exec scripts/run -n 2 "
      .. "--restarts 2 " .. program .. "'")
    assert.equal(2, count(text, "rank %d ends at start 0"), text)
    assert.equal(2, count(text, "rank %d ends"), text)
  end)
end)
