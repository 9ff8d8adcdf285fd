-- Collectives and DistributedDataParallel on CUDA by NCCL, for nccl_spec.lua: arg[1] says what.
-- `mpirun -n 2 lua5.4 spec/distributed/nccl.lua collectives` runs a part by itself.

local core = require "demilune.core"
local dm = require "demilune"
local PLAIN = require "spec.distributed.operators"
local dist, nn, optim, amp = dm.distributed, dm.nn, dm.optim, dm.amp
local DDP = nn.parallel.DistributedDataParallel

local parts = {}
local n, rank, device
local checks = 0

-- Raises unless `got` is on the GPU and has the values of `wanted`: to so many bits where NCCL adds
-- in another order.
local function same(got, wanted, what, tolerance)
  checks = checks + 1
  assert(got.device == device, what .. ": not on its GPU")
  got, wanted = got:cpu(), wanted:cpu()
  assert(got.dtype == wanted.dtype and tostring(got.shape) == tostring(wanted.shape), what)
  if got:equal(wanted) then return end
  local is_near = tolerance and dm.allclose(got:double(), wanted:double(), {rtol = tolerance,
    atol = tolerance, equal_nan = true})
  if not is_near then
    error(("%s: got %s, wanted %s"):format(what, tostring(got), tostring(wanted)), 2)
  end
end

-- Of sums of a few numbers below 8: half a step of the dtype for each.
local TOLERANCE = {float16 = 2e-2, bfloat16 = 2e-1, float32 = 1e-5, float64 = 1e-12}

-- The tensor of a rank, on the CPU: small numbers, whose products stay small too.
local function made(of, dtype, shape)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local x = (dm.arange(count):to "float64" * (of + 1.37) * 3.1):sin() * 2
  if dtype == "bool" then x = x:gt(0) elseif dtype == "uint8" then x = x:abs() end
  return x:reshape(shape):to(dtype)
end

local OPS = {"sum", "avg", "min", "max", "product", "band", "bor"}

local function combined(op, list)
  local dtype = list[1].dtype
  local is_float = TOLERANCE[dtype] ~= nil
  local wide = is_float and "float64" or dtype == "bool" and "int64" or dtype
  local acc = list[1]:to(wide)
  for r = 2, n do acc = PLAIN[op](acc, list[r]:to(wide)) end
  if op == "avg" then acc = acc / n end
  return acc:to(dtype)
end

-- The same on the GPU as a view whose elements lie apart.
local function strided(x) return dm.stack({x, x}, -1):to(device):select(-1, 1) end

local function check_reductions(dtype, shape, list)
  local tolerance = TOLERANCE[dtype]
  for _, op in ipairs(OPS) do
    local is_bits = op == "band" or op == "bor"
    if (op ~= "avg" or tolerance) and not (is_bits and tolerance) then
      local what, wanted = ("%s of %s"):format(op, dtype), combined(op, list)
      local mine = list[rank + 1]
      local x = mine:to(device)
      assert(dist.all_reduce(x, op) == x)
      same(x, wanted, "all_reduce " .. what, tolerance)
      same(dist.all_reduce(strided(mine), op), wanted, "strided all_reduce " .. what, tolerance)
      local y = dist.reduce(mine:to(device), n - 1, op)
      same(y, rank == n - 1 and wanted or mine, "reduce " .. what, tolerance)
      local part = dm.zeros(shape, {dtype = dtype, device = device})
      local turned, sent = {}, {}
      for r = 0, n - 1 do
        turned[r + 1], sent[r + 1] = list[(rank + r) % n + 1], list[(r + rank) % n + 1]
      end
      dist.reduce_scatter_tensor(part, dm.stack(turned):to(device), op)
      same(part, combined(op, sent), "reduce_scatter " .. what, tolerance)
    end
  end
end

local function check_moves(dtype, list)
  local mine, all = list[rank + 1], dm.stack(list)
  local zeros = dm.zeros_like(all):to(device)
  for src = 0, n - 1 do
    local x = strided(mine)
    same(dist.broadcast(x, src), list[src + 1], "broadcast of " .. dtype)
    local gathered = dist.gather(strided(mine), src)
    assert((gathered ~= nil) == (rank == src))
    for r, y in ipairs(gathered or {}) do same(y, list[r], "gather of " .. dtype) end
    local part, sent = strided(dm.zeros_like(mine)), {}
    for r = 1, n do sent[r] = list[r]:to(device) end
    same(dist.scatter(part, rank == src and sent or nil, src), mine, "scatter of " .. dtype)
  end
  for r, y in ipairs(dist.all_gather(strided(mine))) do same(y, list[r], "all_gather " .. dtype) end
  same(dist.all_gather_into_tensor(zeros:clone(), mine:to(device)), all, "all_gather_into_tensor")
  local sent, wanted = {}, {}
  for i = 0, n - 1 do
    sent[i + 1], wanted[i + 1] = list[(rank + i) % n + 1], list[(i + rank) % n + 1]
  end
  same(dist.all_to_all_single(zeros:clone(), dm.stack(sent):to(device)), dm.stack(wanted),
    "all_to_all_single of " .. dtype)
  local goes, comes, rows, wants = {}, {}, {}, {} -- rank r gives (r + i) % 3 rows to rank i
  for i = 0, n - 1 do
    goes[i + 1], comes[i + 1] = (rank + i) % 3, (rank + i) % 3
    rows[i + 1] = made(rank, dtype, {goes[i + 1], 700})
    wants[i + 1] = made(i, dtype, {comes[i + 1], 700})
  end
  local from_all = dm.cat(wants)
  local out = from_all:zeros_like():to(device)
  same(dist.all_to_all_single(out, dm.cat(rows):to(device), comes, goes), from_all,
    "uneven all_to_all_single of " .. dtype)
  local y = dm.zeros_like(mine):to(device)
  local h = dist.irecv(y, (rank - 1) % n)
  dist.send(mine:to(device), (rank + 1) % n)
  same(h:wait(), list[(rank - 1) % n + 1], "send and recv of " .. dtype)
end

-- None at all and no dims; more than the emulation's ranks exchange at a time.
local SHAPES = {float32 = {{2, 3, 4}, {}, {3, 0}, {41, 1003}}}

-- Every collective with every dtype, beside a plain loop over the ranks.
function parts.collectives()
  for _, dtype in ipairs{"bool", "uint8", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64"} do
    for _, shape in ipairs(SHAPES[dtype] or {{2, 3, 4}}) do
      local list = {}
      for r = 0, n - 1 do list[r + 1] = made(r, dtype, shape) end
      check_reductions(dtype, shape, list)
      check_moves(dtype, list)
    end
  end
  local nan = dm.tensor{rank == 0 and 0 / 0 or 1.0, rank}:to(device)
  local low, high = dist.all_reduce(nan:clone(), "min"):cpu(), dist.all_reduce(nan, "max"):cpu()
  assert(low[1]:item() ~= low[1]:item() and high[1]:item() ~= high[1]:item(), "NaN stays")
  assert(low[2]:item() == 0 and high[2]:item() == n - 1)
  local handles, tensors = {}, {}
  for k = 1, 20 do
    tensors[k] = dm.full({k * 50}, rank + k + 0.0, {device = device})
    handles[k] = dist.all_reduce(tensors[k] * 1, {async_op = true})
  end
  for k = 20, 1, -1 do
    same(handles[k]:wait(), dm.full({k * 50}, n * k + n * (n - 1) / 2.0), "async all_reduce")
  end
  same(dist.all_gather_into_tensor(dm.zeros(n, {device = device}), dm.ones(1, {device = device})),
    dm.ones(n), "into")
  local both = dm.zeros(n, {device = device})
  both[rank + 1] = rank + 1
  dist.all_gather_into_tensor(both, both[{{rank + 1, rank + 1}}])
  same(both, dm.arange(1, n):to "float32", "an input inside the output")
  local even = {}
  for r = 0, n - 1, 2 do even[#even + 1] = r end
  local group = dist.new_group(even)
  if rank % 2 == 0 then
    same(dist.all_reduce(dm.tensor({rank}, {device = device}), "sum", group),
      dm.tensor{even[#even] * (even[#even] + 2) // 4}, "all_reduce of a group")
  end
end

-- Tells whether a sum and the gradients of a linear layer have the bits of the order of the ranks,
-- which the emulated NCCL adds in reverse.
function parts.order()
  local list = {}
  for r = 0, n - 1 do list[r + 1] = (dm.arange(1000):to "float32" * (r + 1.37)):sin() / 3 end
  local wanted = list[1]
  for r = 2, n do wanted = wanted + list[r] end
  local got = dist.all_reduce(list[rank + 1]:to(device)):cpu()
  local model = DDP(nn.Linear(1000, 1, {bias = false}):to(device))
  model(list[rank + 1]:to(device)):backward()
  local mean = (wanted / n):reshape{1, 1000}
  print(("sum %s, mean %s"):format(got:equal(wanted), model.module.weight.grad:cpu():equal(mean)))
end

local function net(dtype)
  dm.manual_seed(3)
  local model = nn.Sequential{nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(),
    nn.Linear(16, 2)}
  return model:to(dtype):to(device)
end

-- Trains on this rank's part of each batch, or on all of it.
local function train(model, dtype, own)
  local optimizer = optim.SGD(model:parameters(), {lr = 0.1, momentum = 0.9})
  local size = own and 12 // n or 12
  for step = 1, 8 do
    local x = ((dm.arange(72):to "float64" + step * 7) * 0.37):sin():reshape(12, 6):to(dtype)
    local first = own and rank * size or 0
    x = x[{{first + 1, first + size}}]:to(device)
    optimizer:zero_grad()
    model(x):pow(2):mean():backward()
    optimizer:step()
  end
  return nn.utils.parameters_to_vector(model:parameters()):detach()
end

-- A training by DistributedDataParallel is that of one process with the whole batches.
function parts.ddp()
  for _, dtype in ipairs{"float64", "float32"} do
    local tolerance = TOLERANCE[dtype]
    local wanted = train(net(dtype), dtype, false)
    local model = DDP(net(dtype), {bucket_cap_mb = 0.001})
    local got = train(model, dtype, true)
    same(got, wanted, "weights in " .. dtype, tolerance)
    local all = dist.all_gather(got)
    for r = 2, n do assert(all[r]:equal(all[1]), "the same bits on all ranks") end
  end
  local wire = DDP(net "float32")
  wire:register_comm_hook "bfloat16"
  local got = train(wire, "float32", true)
  same(got, train(net "float32", "float32", false), "weights by a wire of 16 bits", 3e-2)
  local zero = DDP(net "float64")
  local optimizer = optim.ZeroRedundancyOptimizer(zero:parameters(), {
    optimizer_class = optim.AdamW, lr = 0.01, stage = 2})
  for _ = 1, 3 do
    optimizer:zero_grad()
    zero(dm.ones({4, 6}, {dtype = "float64", device = device}) * (rank + 1)):sum():backward()
    optimizer:step()
  end
  local all = dist.all_gather(nn.utils.parameters_to_vector(zero:parameters()):detach())
  for r = 2, n do assert(all[r]:equal(all[1]), "the same bits with shared gradients") end
end

-- An overflow on one rank is a skipped step on all of them.
function parts.amp()
  local model = DDP(net "float32")
  local optimizer = optim.SGD(model:parameters(), {lr = 0.1})
  local scaler = amp.GradScaler{device = "cuda", init_scale = 1024}
  for step = 1, 6 do
    optimizer:zero_grad()
    local loss
    do
      local _ <close> = amp.autocast{device_type = "cuda", dtype = "float16"}
      loss = model(dm.ones({4, 6}, {device = device}) * (rank + 1)):float():pow(2):mean()
    end
    if step == 3 and rank == n - 1 then loss = loss * math.huge end
    scaler:scale(loss):backward()
    scaler:step(optimizer)
    scaler:update()
  end
  assert(scaler:get_scale() == 512, "one step was skipped")
  local weights = nn.utils.parameters_to_vector(model:parameters()):detach()
  assert(weights:isfinite():all():item())
  local all = dist.all_gather(weights)
  for r = 2, n do assert(all[r]:equal(all[1]), "the same weights on all ranks") end
end

-- One rank is killed amid the training; the others say so and end.
function parts.dies()
  local x = dm.ones(1000, {device = device})
  dist.all_reduce(x)
  if rank == 1 then os.execute "kill -9 $PPID" end
  print(pcall(function()
    for _ = 1, 100 do dist.all_reduce(x, "avg") end
    return x:sum():item()
  end))
end

-- One rank leaves without a word.
function parts.leaves()
  local x = dm.ones(1000, {device = device})
  dist.all_reduce(x)
  if rank == 1 then os.exit(0, true) end
  local ok, why = pcall(function() for _ = 1, 3 do dist.all_reduce(x) end end)
  assert(not ok)
  print(why)
  os.exit(0, true)
end

-- What is queued never ends: the next call tells of it, or the end.
function parts.hangs()
  local handle = dist.all_reduce(dm.ones(3, {device = device}), {async_op = true})
  while not handle:is_completed() do end
  if arg[5] ~= "ends" then
    local ok, why
    repeat ok, why = pcall(dist.barrier) until not ok
    print(why)
  end
  print(pcall(dist.destroy_process_group))
  os.exit(0, true)
end

-- The ranks do not agree; all of them say so, and go on.
function parts.disagrees()
  local function failure(...)
    local ok, why = pcall(...)
    assert(not ok)
    return why
  end
  local x = dm.ones(rank == 0 and 10 or 12, {device = device})
  print(failure(dist.all_reduce, x))
  print(failure(dist.all_reduce, rank == 0 and dm.ones(3) or dm.ones(3, {device = device})))
  same(dist.all_reduce(dm.ones(2, {device = device})), dm.full({2}, n + 0.0), "afterwards")
  local y = dm.ones(3, {device = device})
  local step = dm.cuda.graph(function() return dist.all_reduce(y) end)
  print(failure(function() for _ = 1, 20 do step() end end))
end

-- What becomes of calls where NCCL does not serve.
function parts.host()
  same(dist.all_reduce(dm.full({5}, rank + 1.0, {device = device})),
    dm.full({5}, n * (n + 1) / 2.0), "all_reduce through the host")
  local got = train(DDP(net "float64"), "float64", true)
  same(got, train(net "float64", "float64", false), "weights", 1e-12)
end

dist.init_process_group{timeout = tonumber(arg[2] or 40), reduction = arg[3]}
n, rank = dist.get_world_size(), dist.get_rank()
device = arg[4] ~= "own" and arg[4] or dist.device()
parts[arg[1]]()
local way, why = core._dist_way(0)
print(("rank %d of %d: %s on %s by %s %s, nccl is %s"):format(rank, n, arg[1], device, way, why,
  dm.cuda.plans().nccl.state))
dist.destroy_process_group()
