-- Shards of a whole batch: parts whose number does not depend on the number of ranks, so that a
-- training has the same bits on any number of them (DistributedDataParallel{shards =}).
--
-- A shard is computed by itself: its samples, random numbers that follow from its number, and
-- buffers as they were before the batch. What the shards give meets in one tree, the one of
-- src/dist/bucket.h: shards are halved until a half has an odd number, which is added in a row.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local shown = require "demilune.shown"
local collectives = require "demilune.distributed.collectives"
local objects = require "demilune.distributed.objects"

local shards = {}

-- ---- how many ----

-- Whether so many ranks can share the shards: each has as many, and the tree's halves are theirs.
local function fits(n_shard, n) return n_shard % n == 0 and n & (n - 1) == 0 end

--- Raises unless n ranks can share the shards.
function shards.check(name, n_shard, n)
  if n_shard < 1 or n_shard > 1 << 20 then
    caller.raise("%s: shards is %d, wanted a whole number from 1", name, n_shard)
  elseif not fits(n_shard, n) then
    local list = {}
    for k = 1, n_shard do
      if fits(n_shard, k) then list[#list + 1] = k end
    end
    caller.raise("%s: shards = %d on %d ranks, wanted a number of ranks that divides it and is a "
      .. "power of two; hint: %d shards go on %s ranks", name, n_shard, n, n_shard,
      table.concat(list, ", "))
  end
end

-- A hash of what a few functions give, some of whose kernels differ between processors.
local function digest()
  local _ <close> = core.no_grad()
  local x = ((core.arange(2304, {device = "cpu"}) * 0.37):sin() * 0.7):reshape(48, 48)
  local results = {x:matmul(x), x:exp(), x:softmax(2), x:sum(1), x:std(2), x:tanh(),
    x:reshape(1, 4, 24, 24):conv2d(x:reshape(-1)[{{1, 288}}]:reshape(8, 4, 3, 3))}
  for _, row in ipairs(dtypes.rows) do
    if row.low then results[#results + 1] = x:to(row.name):matmul(x:to(row.name)) end
  end
  return core._digests(results):totable()
end

--- Raises, on all ranks, where some of them compute other bits than the first one.
function shards.compare_processors(name, group)
  local own = {variant = core.cpu_info().variant, digest = digest()}
  local all, others = objects.all_gather_object(own, group), {}
  for i = 2, #all do
    local same = table.concat(all[i].digest, " ") == table.concat(all[1].digest, " ")
    if not same then
      others[#others + 1] = ("rank %d (%s)"):format(group.ranks[i], all[i].variant)
    end
  end
  if #others == 0 then return end
  caller.raise("%s: shards are to give the same bits everywhere, and the processor of %s computes "
    .. "others than that of rank %d (%s); hint: DEMILUNE_CPU=avx2, or another set of instructions "
    .. "that all of them have, for all ranks", name, table.concat(others, ", "), group.ranks[1],
    all[1].variant)
end

-- ---- a batch ----

-- Part k of n of a value: of a tensor its samples, of a plain table the parts of what is in it,
-- and anything else itself. seen.samples: how many samples there are.
local function part_of(value, k, n, seen)
  if core.is_tensor(value) then
    local size = value:dim() > 0 and value:size(1) or 0
    if size == 0 or size % n ~= 0 or seen.samples and size ~= seen.samples then
      caller.raise("each_shard: a tensor %s for this rank's %d shards, wanted samples as its first "
        .. "dim, %s; hint: data.DataLoader(set, {batch_size =, shards =})", tostring(value.shape),
        n, seen.samples and ("%d as the others"):format(seen.samples) or "as many for each")
    end
    seen.samples = size
    return value:narrow(1, (k - 1) * (size // n) + 1, size // n)
  elseif type(value) == "table" and
    (getmetatable(value) == nil or getmetatable(value) == getmetatable(shown{})) then
    local part = {}
    for key, item in next, value do part[key] = part_of(item, k, n, seen) end
    return part
  end
  return value
end

--- The values of n shards, {{n =, ...}, ...}, and how many samples the batch has; raises where it
--- has no tensor, or they do not divide.
function shards.cut(n, ...)
  local list, seen = {}, {}
  for k = 1, n do
    local values = table.pack(...)
    for i = 1, values.n do values[i] = part_of(values[i], k, n, seen) end
    list[k] = values
  end
  if not seen.samples then
    caller.raise "each_shard: no tensor of the batch; hint: ddp:each_shard(fn, x, y)"
  end
  return list, seen.samples
end

-- ---- random numbers ----

--- Lets the random numbers from here on be those of a shard, counted from 0, of a batch that
--- begins at that state of the generator.
function shards.seed(state, shard)
  local seed = state.seed
  for _, x in ipairs{state.offset, shard} do
    seed = (seed ~ x) * 0x2545F4914F6CDD1D
    seed = seed ~ (seed >> 29)
  end
  core.manual_seed(seed)
end

--- Sets the generator behind such a batch.
function shards.go_on(state)
  core.set_rng_state{seed = state.seed, offset = state.offset + 1}
end

-- ---- sums over shards ----

-- The sum of `count` tensors from number `first` on, in a tree; `run` of them in a row.
local function tree(list, first, count, run)
  if count > run then
    local half = count // 2
    return tree(list, first, half, run) + tree(list, first + half, count - half, run)
  end
  local sum = list[first]
  for i = first + 1, first + count - 1 do sum = sum + list[i] end
  return sum
end

local function odd_part(n)
  while n % 2 == 0 do n = n // 2 end
  return n
end

local function flat(tensors)
  local list = {}
  for i, t in ipairs(tensors) do list[i] = t:detach():reshape(-1):double():cpu() end
  return core.cat(list)
end

--- Writes the elements of a flat tensor into tensors, each of its dtype.
function shards.write(from, tensors)
  local at = 1
  for _, t in ipairs(tensors) do
    local n = t:numel()
    t:detach():copy_(from:narrow(1, at, n):reshape(t.shape))
    at = at + n
  end
end

--- What a shard gives beside its gradients, as one tensor for shards.meet: a loss (or nil) and
--- the module's buffers.
function shards.packed(loss, buffers)
  return flat{loss or core.zeros(0, {device = "cpu"}), table.unpack(buffers)}
end

local function is_float(t) return dtypes.of[t.dtype].kind == "float" end

--- Gives a loss and the buffers what all shards gave: the means of floats, and of others the
--- first shard's. list: packed, of each shard of this rank; samples: of this rank's batch, which
--- have to agree.
function shards.meet(list, n_shard, samples, group, loss, buffers)
  local n = #group.ranks
  local own = tree(list, 1, #list, odd_part(n_shard))
  local sums, firsts = own, list[1]
  if n > 1 then
    local mine = core.cat{core.tensor({samples}, {dtype = "float64", device = "cpu"}), own, list[1]}
    local all, parts = collectives.all_gather(mine, group), {}
    for i, other in ipairs(all) do
      if other[1]:item() ~= samples then
        caller.raise("each_shard: a batch of %d samples on rank %d, %d on rank %d", samples,
          group.ranks[group.index_of[core._dist_rank()] + 1], other[1]:item() // 1 | 0,
          group.ranks[i])
      end
      parts[i] = other:narrow(1, 2, #own)
    end
    sums, firsts = tree(parts, 1, n, 1), all[1]:narrow(1, 2 + #own, #own)
  end
  local tensors, at = {loss or core.zeros(0, {device = "cpu"}), table.unpack(buffers)}, 1
  local means = sums / n_shard
  for _, t in ipairs(tensors) do
    local from = is_float(t) and means or firsts
    shards.write(from:narrow(1, at, t:numel()), {t})
    at = at + t:numel()
  end
end

return shards
