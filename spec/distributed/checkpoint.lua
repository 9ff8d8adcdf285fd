-- dist.save and dist.load on any number of ranks, for dist_save_spec.lua: `mpirun -n 2 lua5.4
-- spec/distributed/checkpoint.lua write FOLDER`, then `-n 3 ... read FOLDER`; `full FOLDER` and
-- `loop FOLDER SECONDS VICTIM` for what goes wrong.

local core = require "demilune.core"
local is_program = ... ~= "spec.distributed.checkpoint"
if is_program then core._test.without_cuda() end
local dm = require "demilune"
local nn, optim, data, dist = dm.nn, dm.optim, dm.data, dm.distributed
local Zero = optim.ZeroRedundancyOptimizer

local rank, n
local checks = 0

local function check(ok, what, ...)
  checks = checks + 1
  if not ok then error(("rank %d of %d: "):format(rank, n) .. what:format(...), 2) end
  return ok
end

local function read_bytes(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

-- Sizes that no number of ranks divides, so that some tensors are on two ranks.
local function net(width)
  dm.manual_seed(1)
  return nn.Sequential{nn.Linear(37, width or 19), nn.BatchNorm1d(width or 19),
    nn.Linear(width or 19, 53)}
end

local CLASSES = {"Adam", "RMSprop", "SGD", "LAMB", "Adafactor"}

local OPTIONS = {SGD = {lr = 0.1, momentum = 0.9}}

local function new(name, is_sharded)
  local model, o = net(), {}
  for key, value in pairs(OPTIONS[name] or {}) do o[key] = value end
  if not is_sharded then return model, optim[name](model:parameters(), o) end
  o.optimizer_class = optim[name]
  return model, Zero(model:parameters(), o)
end

local function step(model, optimizer)
  dm.manual_seed(2)
  for _, p in ipairs(model:parameters()) do p.grad = dm.randn(p.shape) end
  optimizer:step()
end

local function more() -- what else a checkpoint holds
  return {epoch = 3, {1.0, "text", dm.arange(5), dm.tensor{true, false, true}}, empty = dm.zeros(0)}
end

-- A path that this rank alone does not see, unless it is the first.
local function hidden(path) return rank == 0 and path or "/nowhere/" .. path:match "[^/]+$" end

local function write(folder)
  for _, name in ipairs(CLASSES) do
    local model, optimizer = new(name, true)
    step(model, optimizer)
    local alone, its_optimizer = new(name, false)
    step(alone, its_optimizer)
    local path = ("%s/%s"):format(folder, name)
    local one = path .. ".one"
    if rank == 0 then
      assert(dm.save(one, {model = alone:state_dict(), optimizer = its_optimizer:state_dict(),
        more = more()}))
    end
    dist.barrier()
    for _, way in ipairs{"each", "gather", "hidden"} do
      local tree = {model = nn.parallel.DistributedDataParallel(model), optimizer = optimizer,
        more = more()}
      check(dist.save(way == "hidden" and hidden(path) or path, tree, {gather = way == "gather"}))
      check(read_bytes(path) == read_bytes(one), "%s, %s: other bytes", name, way)
      dist.barrier()
    end
  end
end

local function same(a, b, what)
  for i, p in ipairs(a:parameters()) do
    check(p:equal(b:parameters()[i]), "%s: parameter %d", what, i)
  end
end

-- Loads what any number of ranks has written, and goes on as one process does.
local function read(folder)
  for _, name in ipairs(CLASSES) do
    local path = ("%s/%s"):format(folder, name)
    local alone, its_optimizer = new(name, false)
    step(alone, its_optimizer)
    step(alone, its_optimizer)
    for _, way in ipairs{"each", "gather", "hidden"} do
      local model, optimizer = new(name, true)
      for _, p in ipairs(model:parameters()) do p:detach():zero_() end
      local rest = check(dist.load(way == "hidden" and hidden(path) or path,
        {model = model, optimizer = optimizer}, {gather = way == "gather"}))
      check(rest.model == nil and rest.more.epoch == 3
        and rest.more[1][3]:equal(dm.arange(5):to "cpu") and rest.more[1][4].dtype == "bool"
        and rest.more.empty:numel() == 0, "the rest")
      step(model, optimizer)
      same(alone, model, name .. ", " .. way)
    end
    local model, plain = new(name, false)
    check(dist.load(path, {model = model, optimizer = plain}))
    step(model, plain)
    same(alone, model, name .. ", not in shares")
  end
end

-- Bytes that this process has read so far.
local function n_read()
  return tonumber(read_bytes "/proc/self/io":match "rchar: (%d+)")
end

-- A rank reads its share of the state, and little else.
local function read_share(folder)
  local path = folder .. "/share"
  local p = dm.zeros(1000003)
  p.grad = dm.ones(1000003)
  local function new_zero() return Zero({p}, {optimizer_class = optim.Adam}) end
  local optimizer = new_zero()
  optimizer:step()
  check(dist.save(path, {optimizer = optimizer}))
  optimizer = new_zero()
  dist.barrier()
  local before = n_read()
  check(dist.load(path, {optimizer = optimizer}))
  local share = (n_read() - before) / (2 * 4 * 1000003)
  check(share < 1 / n + 0.05, "read %.3f of the file", share)
  local mean = optimizer.state[optimizer.pieces[1].tensor].exp_avg
  check(math.abs(mean[1]:item() - 0.1) < 1e-6 and mean[1]:item() == mean[-1]:item(), "state")
end

-- What differs between ranks is the first one's; what is wrong is told to all.
local function odd(folder)
  local path = folder .. "/odd"
  check(dist.save(path, {mean = dm.full({3}, rank), same = dm.ones(2), only = rank == 0
    and dm.ones(4) or nil, rank = rank}))
  local tree = check(dist.load(path))
  check(tree.mean:sum():item() == 0 and tree.only:sum():item() == 4 and tree.rank == 0, "odd")
  local function refuses(text, f, ...)
    local ok, why = pcall(f, ...)
    check(not ok and why:find(text, 1, true), "wanted '%s', got %s", text, tostring(why))
  end
  refuses(("distributed.save: rank %d: "):format(n - 1), dist.save, path,
    rank == n - 1 and {f = print} or {})
  local model, optimizer = new("Adam", true)
  step(model, optimizer)
  check(dist.save(path, {model = model, optimizer = optimizer}))
  local other = net(20)
  refuses("shapes differ: 0.bias is {19}, wanted {20}", dist.load, path, {model = other})
  refuses("is {19, 37}, wanted {20, 37}", dist.load, path,
    {optimizer = Zero(other:parameters(), optim.Adam)})
  refuses("has no 'schedule'", dist.load, path, {schedule = optimizer})
  refuses("'model' is a string, wanted a module", dist.load, path, {model = "x"})
  local found, why = dist.load(folder .. "/nothing")
  check(found == nil and why:find("rank 0: safetensors: cannot", 1, true), "%s", why)
  found, why = dist.save(folder .. "/no/folder", {})
  check(found == nil and why:find("rank 0: safetensors: cannot write", 1, true), "%s", why)
  dist.barrier()
  if rank == 0 then
    local file <close> = assert(io.open(path, "r+b"))
    file:seek("end", -3)
    file:write "x"
  end
  dist.barrier()
  found, why = dist.load(path)
  check(found == nil and why:find("is damaged", 1, true), "%s", why)
end

-- A Trainer that stops amid an epoch, at the same sample whatever the number of ranks.
local function trainer(folder, is_first)
  local path = folder .. "/trainer"
  dm.manual_seed(4)
  local x = dm.randn(120, 6)
  local set = data.TensorDataset(x, x:select(2, 1):gt(0):to "int64" + 1)
  local model = nn.parallel.DistributedDataParallel(nn.Sequential{nn.Linear(6, 5), nn.Linear(5, 2)})
  local seen = 0
  local it = dm.Trainer{model = model, loss = nn.CrossEntropyLoss(), verbose = false,
    optimizer = Zero(model:parameters(), {optimizer_class = optim.AdamW}),
    resume = not is_first and path or nil,
    callbacks = {on_step = function(self, steps)
      seen = seen + 1
      if is_first and steps == 5 then self:save(path) end
    end}}
  -- 5 steps of 2 ranks and 6 samples: 60 samples; then 60 are left for any number of ranks
  local size = is_first and 6 or 4
  it:fit{train = data.DataLoader(set, {batch_size = size,
    sampler = data.DistributedSampler(set, {seed = 2})})}
  check(seen == (is_first and 10 or 60 // (4 * n)), "%d steps", seen)
  check(it.steps == seen + (is_first and 0 or 5), "%d steps in all", it.steps)
end

-- The disk is full for the last rank.
local function full(folder)
  local path, marker = folder .. "/full", os.getenv "FULL_FILE" .. "." .. n - 1
  local function tree(value)
    local list = {}
    for i = 1, 8 do list[i] = dm.full({2000}, value) end
    return list
  end
  check(dist.save(path, tree(1)))
  local before = read_bytes(path)
  dist.barrier()
  if rank == n - 1 then assert(io.open(marker, "w")):close() end
  dist.barrier()
  local fine, why = dist.save(path, tree(2))
  local told = ("rank %d: safetensors: cannot write '%s': No space left on device"):format(n - 1,
    path)
  check(fine == nil and why == told, "%s", tostring(why))
  check(read_bytes(path) == before, "the old file")
  dist.barrier()
  if rank == n - 1 then os.remove(marker) end
  dist.barrier()
  check(dist.save(path, tree(2)))
  check(dm.load(path)[8]:min():item() == 2, "the new file")
end

-- Saves until one rank is killed, some time after the first save.
local function loop(folder, seconds, victim)
  local path = folder .. "/loop"
  local old = dm.load(path)
  local number = dist.broadcast_object(old and old.number or 0, 0)
  for i = 1, math.huge do
    number = number + 1
    local list = {}
    for k = 1, 4 do list[k] = dm.full({50000}, number) end
    check(dist.save(path, {number = number, x = list}))
    if i == 1 and rank == tonumber(victim) then
      local pid = read_bytes "/proc/self/stat":match "^%d+"
      os.execute(("(sleep %s; kill -9 %s) >/dev/null 2>&1 &"):format(seconds, pid))
    end
  end
end

local function run(what, ...)
  rank, n = dist.get_rank(), dist.get_world_size()
  if what == "write" then
    write(...)
    read_share(...)
    odd(...)
    trainer(..., true)
  elseif what == "read" then
    read(...)
    trainer(...)
  elseif what == "one" then
    write(...)
    read(...)
    odd(...)
  elseif what == "full" then
    full(...)
  else
    loop(...)
  end
  return checks
end

if not is_program then return run end

dist.init_process_group{timeout = 30}
io.write(("rank %d of %d: %d checks\n"):format(dist.get_rank(), dist.get_world_size(),
  run(table.unpack(arg))))
dist.destroy_process_group()
