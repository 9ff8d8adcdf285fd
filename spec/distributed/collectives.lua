-- Every collective of demilune.distributed beside a plain loop over the ranks, on any number of
-- ranks. Each rank makes the tensors of all, and so knows the results.
-- `mpirun -n 3 lua5.4 spec/distributed/collectives.lua` runs it by itself.

local dm = require "demilune"
local PLAIN = require "spec.distributed.operators"
local dist = dm.distributed

local SHAPES = {{}, {0}, {3, 0}, {7}, {2, 3, 4}, {41, 1003}} -- the last one goes by slices
local OPS = {"sum", "avg", "min", "max", "product", "band", "bor"}

local n, rank
local checks = 0

local function equal(got, wanted, what)
  checks = checks + 1
  if got.dtype == wanted.dtype and got:equal(wanted) then return end
  error(("%s: got %s, wanted %s"):format(what, tostring(got), tostring(wanted)), 2)
end

local FILE = "spec/distributed/collectives.lua"

local function fails(words, f, ...)
  checks = checks + 1
  local ok, why = pcall(f, ...)
  assert(not ok and why:find(words, 1, true), why)
end

-- The tensor of a rank. Its sums have to be rounded in 16 bits, and to wrap in 8.
local function made(of, dtype, shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local x = (dm.arange(count):to "float64" * (of + 1.37) * 3.1):sin() * 90
  if dtype == "bool" then x = x:gt(20 * of) elseif dtype == "uint8" then x = x:abs() end
  return x:reshape(shape):to(dtype)
end

-- The same as a view whose elements lie apart, where it has some.
local function strided(x)
  local wide = dm.stack({x, x}, -1)
  return wide:select(-1, 1)
end

-- The tensors of all ranks.
local function of_all(dtype, shape)
  local list = {}
  for r = 0, n - 1 do list[r + 1] = made(r, dtype, shape) end
  return list
end

-- One after the other, in the order of the ranks; 16 bits in float32, rounded once.
local function combined(op, list)
  local dtype = list[1].dtype
  local wide = (dtype == "float16" or dtype == "bfloat16") and "float32" or dtype
  if dtype == "bool" then wide = "int64" end
  local acc = list[1]:to(wide)
  for r = 2, #list do acc = PLAIN[op](acc, list[r]:to(wide)) end
  if op == "avg" then acc = acc / #list end
  return acc:to(dtype)
end

local function allows(op, dtype)
  local is_float = dtype:find "float" ~= nil
  if op == "avg" then return is_float end
  if op == "band" or op == "bor" then return not is_float end
  return true
end

local function check_reductions(dtype, shape)
  local list = of_all(dtype, shape)
  for _, op in ipairs(OPS) do
    if allows(op, dtype) then
      local what = ("%s of %s %s"):format(op, dtype, tostring(list[1].shape))
      local wanted = combined(op, list)
      local x = list[rank + 1]:clone()
      assert(dist.all_reduce(x, op) == x)
      equal(x, wanted, "all_reduce " .. what)
      local y = strided(list[rank + 1])
      dist.all_reduce(y, {op = op})
      equal(y, wanted, "strided all_reduce " .. what)
      local dst = n - 1
      local z = dist.reduce(list[rank + 1]:clone(), dst, op)
      equal(z, rank == dst and wanted or list[rank + 1], "reduce " .. what)
      local all, part = dm.stack(list), dm.empty(list[1].shape, {dtype = dtype})
      -- each rank gives the parts in its own order, so that part i combines list[(i + r) % n + 1]
      local turned, sent = {}, {}
      for r = 0, n - 1 do
        turned[r + 1] = list[(rank + r) % n + 1]
        sent[r + 1] = list[(r + rank) % n + 1]
      end
      dist.reduce_scatter_tensor(part, dm.stack(turned), op)
      equal(part, combined(op, sent), "reduce_scatter " .. what)
      equal(all, dm.stack(list), "the input of " .. what)
    end
  end
end

local function check_moves(dtype, shape)
  local list = of_all(dtype, shape)
  local mine, what = list[rank + 1], ("of %s %s"):format(dtype, tostring(list[1].shape))
  for src = 0, n - 1 do
    local x = strided(mine)
    dist.broadcast(x, src)
    equal(x, list[src + 1], "broadcast " .. what)
    local gathered = dist.gather(strided(mine), src)
    assert((gathered ~= nil) == (rank == src))
    for r, y in ipairs(gathered or {}) do equal(y, list[r], "gather " .. what) end
    local part = strided(dm.zeros_like(mine))
    dist.scatter(part, rank == src and list or nil, src)
    equal(part, mine, "scatter " .. what)
  end
  for r, y in ipairs(dist.all_gather(strided(mine))) do equal(y, list[r], "all_gather " .. what) end
  local into = dist.all_gather_into_tensor(dm.stack(list):zeros_like(), mine)
  equal(into, dm.stack(list), "all_gather_into_tensor " .. what)
  local out = dm.zeros_like(into)
  -- rank r sends list[r + i] to rank i, which gets them back to front
  local sent, wanted = {}, {}
  for i = 0, n - 1 do
    sent[i + 1] = list[(rank + i) % n + 1]
    wanted[i + 1] = list[(i + rank) % n + 1]
  end
  dist.all_to_all_single(out, dm.stack(sent))
  equal(out, dm.stack(wanted), "all_to_all_single " .. what)
end

-- Rank r gives (r + i) % 3 + 1 rows to rank i, and none where that is 3.
local function rows_of(r, i) return ((r + i) % 3 + 1) % 3 end

-- Lists of tensors in place of one.
local function check_lists(dtype, shape)
  local list = of_all(dtype, shape)
  local mine, what, into = list[rank + 1], ("of %s %s"):format(dtype, tostring(list[1].shape)), {}
  for r = 1, n do into[r] = strided(dm.zeros_like(mine)) end
  assert(dist.all_gather(into, mine) == into)
  for r, y in ipairs(into) do equal(y, list[r], "all_gather into a list " .. what) end
  local again = dist.all_gather{tensor_list = list, tensor = strided(mine), async_op = true}:wait()
  for r, y in ipairs(again) do equal(y, into[r], "all_gather into a list " .. what) end
  local filled = {}
  for r = 1, n do filled[r] = strided(dm.zeros_like(mine)) end
  local got_list = dist.gather(mine, rank == n - 1 and filled or nil, n - 1)
  assert(got_list == (rank == n - 1 and filled or nil))
  for r, y in ipairs(got_list or {}) do equal(y, list[r], "gather into a list " .. what) end
  local turned, sent, out = {}, {}, strided(dm.zeros_like(mine))
  for r = 0, n - 1 do
    turned[r + 1] = strided(list[(rank + r) % n + 1])
    sent[r + 1] = list[(r + rank) % n + 1]
  end
  assert(dist.reduce_scatter(out, turned, "max") == out)
  equal(out, combined("max", sent), "reduce_scatter of a list " .. what)
  local given, got, wanted = {}, {}, {} -- of different sizes: rank r gives i and r some copies
  for r = 0, n - 1 do
    given[r + 1] = strided(dm.stack(sent):narrow(1, 1, 1):expand(rows_of(rank, r),
      table.unpack(shape)):contiguous())
    wanted[r + 1] = dm.stack({list[r + 1]}):expand(rows_of(r, rank), table.unpack(shape))
    got[r + 1] = strided(wanted[r + 1]:zeros_like())
  end
  assert(dist.all_to_all(got, given) == got)
  for r, y in ipairs(got) do equal(y, wanted[r]:contiguous(), "all_to_all " .. what) end
end

-- Messages that are matched by tags, whatever their order; of any rank; in a batch.
local function check_tags()
  if n == 1 then return end
  local after, before = (rank + 1) % n, (rank - 1) % n
  local most, sent = 16383, {}
  for i, tag in ipairs{7, 0, most, 7} do
    sent[i] = dist.isend(dm.tensor{rank, i}, after, {tag = tag})
  end
  for _, case in ipairs{{most, 3}, {7, 1}, {0, 2}, {7, 4}} do
    local y, from = dist.recv(dm.zeros(2):to "int64", {src = before, tag = case[1]})
    equal(y, dm.tensor{before, case[2]}, "recv by a tag")
    assert(from == before)
  end
  for _, h in ipairs(sent) do h:wait() end
  -- rank 0 receives three messages of each rank: the first of rank 1 is asked for by name
  if rank == 0 then
    local handles, seen = {dist.irecv(dm.zeros(2):to "int64", 1, {tag = 3})}, {}
    for i = 2, 3 * (n - 1) do
      handles[i] = dist.irecv(dm.zeros(2):to "int64", {tag = 3})
    end
    for i, h in ipairs(handles) do
      local y, from = h:wait()
      seen[from] = (seen[from] or 0) + 1
      equal(y, dm.tensor{from, seen[from]}, "irecv of any rank")
      assert(i > 1 or from == 1)
      local again, source = h:wait()
      assert(again == y and source == from)
    end
    for r = 1, n - 1 do assert(seen[r] == 3) end
  else
    for i = 1, 3 do dist.send(dm.tensor{rank, i}, 0, {tag = 3}) end
  end
  -- one of any rank comes before one that is sent when that has come
  if rank == 0 then
    local first = dist.irecv(dm.zeros(1), 1)
    local y, from = dist.recv(dm.zeros(1))
    assert(from == n - 1 and (n == 2 or y:item() == n - 1))
    if n > 2 then dist.send(y, 1) end
    assert(first:wait():item() == 1)
  elseif rank == 1 then
    if n > 2 then dist.recv(dm.zeros(1), 0) end
    dist.send(dm.ones(1), 0)
  end
  if rank == n - 1 then dist.send(dm.full({1}, rank + 0.0), 0) end
  local x, y = dm.full({3}, rank), dm.zeros(3):to "int64"
  local handles = dist.batch_isend_irecv{dist.P2POp(dist.isend, x, after, {tag = 2}),
    dist.P2POp(dist.irecv, y, before, {tag = 2})}
  assert(#handles == 2)
  for _, h in ipairs(handles) do h:wait() end
  equal(y, dm.full({3}, before), "batch_isend_irecv")
  fails("recv: tag is -1, wanted 0 to ", dist.recv, y, 0, {tag = -1})
end

local function check_uneven(dtype, width)
  local gives, wants, parts, wanted, total = {}, {}, {}, {}, 0
  for r = 0, n - 1 do
    gives[r + 1], wants[r + 1] = rows_of(rank, r), rows_of(r, rank)
    parts[r + 1] = made(rank * n + r, dtype, {gives[r + 1], width})
    wanted[r + 1] = made(r * n + rank, dtype, {wants[r + 1], width})
    total = total + wants[r + 1]
  end
  local x, y = strided(dm.cat(parts)), strided(dm.zeros({total, width}, {dtype = dtype}))
  assert(dist.all_to_all_single(y, x, wants, gives) == y)
  equal(y, dm.cat(wanted), "uneven all_to_all_single")
  local z = dm.zeros_like(y)
  local h = dist.all_to_all_single(z, x, wants, gives, {async_op = true})
  assert(h:wait() == z)
  equal(z, dm.cat(wanted), "uneven all_to_all_single")
  local even, other = {}, {}
  for r = 0, n - 1 do even[r + 1], other[r + 1] = 2, r == 0 and 3 or 2 end
  local own, before = made(rank, dtype, {2 * n, width}), made(9, dtype, {2 * n + 1, width})
  equal(dist.all_to_all_single(own:zeros_like(), own, {input_split_sizes = even}),
    dist.all_to_all_single(own:zeros_like(), own), "all_to_all_single by a list of equal sizes")
  -- the last rank wants a row more of rank 0
  local is_last = rank == n - 1
  local out = is_last and before:clone() or own:clone()
  local ok, why = pcall(dist.all_to_all_single, out, own, is_last and other or even, even)
  assert(not ok and why:find(("all_to_all_single: rank 0 gives rank %d %d elements, which wants %d")
    :format(n - 1, 2 * width, 3 * width), 1, true), why)
  equal(out, is_last and before or own, "an output that does not fit")
end

-- Around the ring, blocking one way and not the other.
local function check_messages(dtype, shape)
  if n == 1 then return end
  local list = of_all(dtype, shape)
  local after, before = (rank + 1) % n, (rank - 1) % n
  local x, y = strided(dm.zeros_like(list[1])), dm.zeros_like(list[1])
  local h = dist.irecv(x, before)
  local sent = {dist.isend(strided(list[rank + 1]), after), dist.isend(list[after + 1], after)}
  assert(h:wait() == x and h:wait() == x and h:is_completed())
  equal(x, list[before + 1], "irecv of " .. dtype)
  equal(dist.recv(y, before), list[rank + 1], "recv of " .. dtype)
  for _, one in ipairs(sent) do one:wait() end
end

local function check_async()
  local handles, tensors = {}, {}
  for k = 1, 20 do
    tensors[k] = dm.full({k * 500}, rank + k + 0.0)
    handles[k] = dist.all_reduce(tensors[k], {async_op = true})
  end
  for k = 20, 1, -1 do
    assert(handles[k]:wait{timeout = 50} == tensors[k])
    equal(tensors[k], dm.full({k * 500}, n * k + n * (n - 1) / 2.0), "async all_reduce")
  end
  local x = dm.ones(3)
  do local _ <close> = dist.all_reduce(x, {async_op = true}) end
  equal(x, dm.full({3}, n * 1.0), "the handle's end")
  local list = dist.all_gather(dm.tensor{rank}, {async_op = true}):wait()
  assert(#list == n and list[n]:item() == n - 1)
end

local function check_groups()
  local even, all = {}, {}
  for r = n - 1, 0, -1 do
    all[#all + 1] = r
    if r % 2 == 0 then even[#even + 1] = r end
  end
  local group, world = dist.new_group(even), dist.new_group(all)
  assert(dist.get_world_size(world) == n and dist.get_rank(world) == rank)
  if rank % 2 == 0 then
    local x = dist.all_reduce(dm.tensor{rank}, "sum", group)
    local last = even[1]
    equal(x, dm.tensor{last * (last + 2) // 4}, "all_reduce of a group")
    equal(dist.broadcast(dm.tensor{rank}, last, group), dm.tensor{last}, "broadcast of a group")
    assert(dist.get_rank(group) == rank // 2 and dist.get_world_size(group) == #even)
  else
    local ok, why = pcall(dist.barrier, group)
    local words = "rank %d is no member of this group; hint: its ranks are {0"
    assert(not ok and why:find(words:format(rank)))
  end
  dist.barrier()
end

local function check_objects()
  local _ <close> = dm.device "cpu" -- where tensors that travel in objects have to be
  local sent = {name = "x", 1.5, {true, "\0"}, t = dm.arange(3):to "bfloat16", e = dm.zeros(0, 2)}
  local got = dist.broadcast_object(rank == 0 and sent or nil)
  assert(got.name == "x" and got[1] == 1.5 and got[2][1] == true and got[2][2] == "\0")
  equal(got.t, sent.t, "broadcast_object")
  equal(got.e, sent.e, "broadcast_object")
  local list = dist.all_gather_object(("r"):rep(rank * 1000))
  for r = 0, n - 1 do assert(list[r + 1] == ("r"):rep(r * 1000)) end
  assert(dist.broadcast_object(nil, n - 1) == nil)
  local both = dist.broadcast_object_list(rank == n - 1 and {sent, "two"} or {3, 4, 5}, n - 1)
  assert(both[1].name == "x" and both[2] == "two" and both[3] == nil)
  for dst = 0, n - 1 do
    local values = dist.gather_object({rank, t = dm.full({rank, 2}, rank)}, dst)
    assert((values ~= nil) == (rank == dst))
    for r, value in ipairs(values or {}) do
      assert(value[1] == r - 1)
      equal(value.t, dm.full({r - 1, 2}, r - 1), "gather_object")
    end
    local given, out = {}, {}
    for r = 1, n do given[r] = {("v"):rep(r * 100), r % 2 == 0} end
    local value = dist.scatter_object_list(out, rank == dst and given or nil, dst)
    assert(value == out[1] and #value[1] == rank * 100 + 100 and value[2] == (rank % 2 == 1))
  end
  local nothing = dist.gather_object(nil, 0)
  assert((nothing ~= nil) == (rank == 0) and (not nothing or next(nothing) == nil))
  fails(("broadcast_object_list: on rank %d the object.2 is a function"):format(n - 1),
    dist.broadcast_object_list, {1, print}, n - 1)
  fails(("gather_object: on rank %d the object is a function, wanted"):format(n - 1),
    dist.gather_object, rank == n - 1 and print or 3)
  fails(("scatter_object_list: rank 0 gives a list of %d values, wanted"):format(n + 1),
    dist.scatter_object_list, {}, dm.arange(n + 1):totable())
  fails("scatter_object_list: rank 0 gives no list, wanted", dist.scatter_object_list, {})
  local broken = {}
  for r = 1, n do broken[r] = r == n and io.stdout or 1 end
  fails(("scatter_object_list: rank 0 the object is a FILE* in element %d"):format(n),
    dist.scatter_object_list, {}, broken)
  if n > 1 then
    fails(("ranks do not agree: rank 0 gives gather_object to rank 0 (%s"):format(FILE),
      dist.gather_object, 1, math.min(rank, 1))
  end
  local ok, why = pcall(dist.broadcast_object, {f = print}, 0)
  assert(not ok and why:find("on rank 0 the object.f is a function, wanted numbers", 1, true), why)
  ok, why = pcall(dist.all_gather_object, rank == n - 1 and io.stdout or 3)
  assert(not ok and why:find(("on rank %d the object is a FILE*"):format(n - 1), 1, true), why)
end

-- NaN stays; gradients neither disturb nor are disturbed; a written tensor is noticed.
local function check_rest()
  local x = dm.tensor{0 / 0, 1, rank}
  if rank > 0 then x[1] = 1 end
  local low = dist.all_reduce(x:clone(), "min")
  assert(low[1]:item() ~= low[1]:item() and low[2]:item() == 1 and low[3]:item() == 0)
  assert(dist.all_reduce(x:clone(), "max")[3]:item() == n - 1)
  local w = dm.ones(2, {requires_grad = true})
  assert(dist.all_reduce(w) == w and w.requires_grad and w[1]:item() == n)
  local square = dm.ones(2, {requires_grad = true})
  local s = square * 1
  local loss = (s * s):sum()
  dist.all_reduce(s)
  assert(not pcall(loss.backward, loss), "a saved tensor was written")
  local both = dm.zeros(n)
  both[rank + 1] = rank + 1
  dist.all_gather_into_tensor(both, both[{{rank + 1, rank + 1}}])
  equal(both, dm.arange(1, n):to "float32", "an input inside the output")
  local sampler = dm.data.DistributedSampler(dm.data.TensorDataset(dm.zeros(12)))
  assert(sampler.num_replicas == n and sampler.rank == rank)
  local stats = dist.stats()
  assert(stats.calls > 100 and (stats.bytes_sent > 0) == (n > 1) and stats.seconds_waited >= 0)
end

-- Bytes that f sends from memory to memory, and all that it sends.
local function bytes_of(f)
  local before = dist.stats()
  f()
  local after = dist.stats()
  return after.bytes_direct - before.bytes_direct, after.bytes_sent - before.bytes_sent
end

-- Ranks of one machine combine large tensors where they lie, from the second one on, and from then
-- on read copies of small ones.
local function check_ways(n_host)
  local x, size = dm.ones(30011), 4 * ((30011 + n - 1) // n)
  dist.all_reduce(x)
  local direct, sent = bytes_of(function() dist.all_reduce(x) end)
  equal(x, dm.full({30011}, n * n + 0.0), "all_reduce")
  local is_near = os.getenv "DEMILUNE_NEAR" ~= "0" and (n_host == 1 or direct > 0)
  assert(direct == (is_near and 2 * (n - 1) * size or 0), ("%d bytes direct"):format(direct))
  assert(sent >= 2 * (n - 1) * size and sent <= 2 * (n - 1) * size + 64 * n, "bytes sent")
  local few = bytes_of(function()
    equal(dist.broadcast(dm.full({7}, rank + 1.0), 0), dm.ones(7), "broadcast")
    for _ = 1, 5 do
      equal(dist.all_reduce(dm.full({5}, rank + 1.0)), dm.full({5}, n * (n + 1) / 2), "all_reduce")
    end
  end)
  assert(few == (is_near and (n - 1) * (100 + (rank == 0 and 28 or 0)) or 0),
    ("%d bytes direct of small ones"):format(few))
end

-- Runs the checks in a world that is open, of so many hosts (one); returns how many there were.
local function run(n_host)
  n, rank = dist.get_world_size(), dist.get_rank()
  local local_rank = rank % (n // (n_host or 1))
  local n_gpu = dm.cuda.is_available() and dm.cuda.device_count() or 0
  assert(dist.is_initialized() and dist.get_node_local_rank() == local_rank)
  assert(dist.device() == (n_gpu > 0 and ("cuda:%d"):format(local_rank % n_gpu) or "cpu"))
  for _, dtype in ipairs{"bool", "uint8", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64"} do
    for _, shape in ipairs(SHAPES) do
      check_reductions(dtype, shape)
      check_moves(dtype, shape)
      check_messages(dtype, shape)
      check_lists(dtype, shape)
    end
  end
  for _, dtype in ipairs{"bool", "int8", "bfloat16", "float64"} do
    for _, width in ipairs{1, 3, 700} do check_uneven(dtype, width) end
  end
  check_tags()
  check_async()
  check_groups()
  check_objects()
  check_rest()
  check_ways(n_host or 1)
  return checks
end

if ... == "spec.distributed.collectives" then return run end
require("demilune.core")._test.without_cuda()
dist.init_process_group{timeout = 60}
run(tonumber(arg[1]))
print(("rank %d of %d: %d checks"):format(rank, n, checks))
dist.destroy_process_group()
