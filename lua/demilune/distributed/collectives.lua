-- The collectives and messages of demilune.distributed.

local core = require "demilune.core"
local caller = require "demilune.caller"
local dtypes = require "demilune.dtypes"
local options = require "demilune.options"
local dense = require "demilune.distributed.dense"
local exchange = require "demilune.distributed.exchange"
local world = require "demilune.distributed.world"

local collectives = {}

local text_of, to_read, to_write = dense.text_of, dense.to_read, dense.to_write
local stay, new_parts = dense.stay, dense.new_parts

local OPS = "op: 'sum'|'avg'|'min'|'max'|'product'|'band'|'bor' = 'sum'"
local GROUP, ASYNC = "group?: group", "async_op: boolean = false"

local function signature(name, ...)
  return options.signature(name, table.concat({...}, ", "))
end

-- ---- checks ----

local function check_op(name, x, op)
  local is_float = dtypes.of[x.dtype].kind == "float"
  if op == "avg" and not is_float then
    caller.raise("%s: avg of %s, wanted floats; hint: sum, then // by the number of ranks", name,
      x.dtype)
  elseif (op == "band" or op == "bor") and is_float then
    caller.raise("%s: %s of %s, wanted integers or bool", name, op, x.dtype)
  end
end

-- Raises unless the tensors have one dtype, and `large` is n times as large as `small`.
local function check_sizes(name, n, large, small, what)
  if large.dtype ~= small.dtype then
    caller.raise("%s: dtypes %s and %s, wanted the same", name, large.dtype, small.dtype)
  elseif large:numel() ~= n * small:numel() then
    caller.raise("%s: %s for %s; wanted %s of %d times %d elements", name, text_of(large),
      text_of(small), what, n, small:numel())
  end
end

local function nothing() end

-- The least or largest elements of the tensors of all ranks, into x: NCCL's own drop NaN. Only
-- where x's device can gather.
local function gathered_extreme(x, group, o)
  local own, parts = to_write("all_reduce", x, true), new_parts(#group.ranks, x, true)
  local function bring()
    x:detach():copy_(o.op == "min" and parts:amin(1) or parts:amax(1))
    return x
  end
  return world.run({kind = "all_gather", name = "all_reduce", group = group, stays = true,
    input = own, output = parts, key = ("(%s) %s"):format(o.op, text_of(x))}, o.async_op, bring)
end

-- A function that writes the parts into the tensors of the list, where one is given; else it gives
-- them as a list of tensors on x's device.
local function as_list(parts, n, x, into)
  if into then
    return function()
      local list = parts:unbind(1)
      for i, t in ipairs(into) do t:detach():copy_(list[i]) end
      return into
    end
  end
  local device = x.device
  return function()
    local list = parts:to(device):unbind(1)
    for i = 1, n do list[i] = list[i]:clone() end
    return list
  end
end

-- ---- one tensor ----

local bind_barrier = signature("barrier", GROUP, ASYNC)

--- Waits until all ranks of the group have called it.
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.distributed.Handle? handle
function collectives.barrier(...)
  local o = bind_barrier(...)
  return world.run({kind = "barrier", name = "barrier", group = world.group("barrier", o.group)},
    o.async_op, nothing)
end

local bind_all_reduce = signature("all_reduce", "tensor: tensor", OPS, GROUP, ASYNC)

--- Combines the tensors of all ranks, element by element, and gives the result to all, in place.
--- The ranks' elements are combined in the order of the ranks, those of 16 bits in float32 and
--- rounded once, so that the bits depend on nothing else. Integers wrap; of bool a sum is "any".
--- Tensors on GPUs are combined by NCCL, in its order, unless
--- init_process_group{reduction = "ordered"} was called.
---@param tensor demilune.Tensor any dtype and strides, of one shape on all ranks; written
---@param op? string "sum" (default), "avg", "min", "max", "product", "band", "bor"
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle tensor
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local loss = dist.all_reduce(dm.tensor{0.5}, "avg")
---dist.destroy_process_group()
---```
function collectives.all_reduce(...)
  local o = bind_all_reduce(...)
  local x, group = o.tensor, world.group("all_reduce", o.group)
  check_op("all_reduce", x, o.op)
  local stays = world.stays("all_reduce", group, "all_reduce", o.op, x)
  if not stays and (o.op == "min" or o.op == "max") and dtypes.of[x.dtype].kind == "float"
    and world.stays("all_reduce", group, "all_gather", nil, x) then
    return gathered_extreme(x, group, o)
  end
  local flat, bring = to_write("all_reduce", x, stays)
  return world.run({kind = "all_reduce", name = "all_reduce", group = group, op = o.op,
    stays = stays, input = flat, key = ("(%s) %s"):format(o.op, text_of(x))}, o.async_op, bring)
end

local bind_broadcast = signature("broadcast", "tensor: tensor", "src: integer", GROUP, ASYNC)

--- Gives the tensor of rank src to all ranks, in place.
---@param tensor demilune.Tensor of one shape and dtype on all ranks; written on all but src
---@param src integer a rank of the world, from 0
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle tensor
function collectives.broadcast(...)
  local o = bind_broadcast(...)
  local x, group = o.tensor, world.group("broadcast", o.group)
  local peer = world.index("broadcast", "src", group, o.src)
  local stays = world.stays("broadcast", group, "broadcast", nil, x)
  local flat, bring = to_write("broadcast", x, stays)
  return world.run({kind = "broadcast", name = "broadcast", group = group, peer = peer,
    stays = stays, input = flat, key = ("from rank %d, %s"):format(o.src, text_of(x))},
    o.async_op, bring)
end

local bind_reduce = signature("reduce", "tensor: tensor", "dst: integer", OPS, GROUP, ASYNC)

--- Combines the tensors of all ranks as all_reduce does, for rank dst alone; the others keep
--- theirs.
---@param tensor demilune.Tensor of one shape and dtype on all ranks; written on dst
---@param dst integer a rank of the world, from 0
---@param op? string as of all_reduce
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle tensor
function collectives.reduce(...)
  local o = bind_reduce(...)
  local x, group = o.tensor, world.group("reduce", o.group)
  local peer = world.index("reduce", "dst", group, o.dst)
  check_op("reduce", x, o.op)
  local stays = world.stays("reduce", group, "reduce", o.op, x)
  local flat, bring = to_write("reduce", x, stays)
  return world.run({kind = "reduce", name = "reduce", group = group, peer = peer, op = o.op,
    stays = stays,
    input = flat, key = ("(%s) to rank %d, %s"):format(o.op, o.dst, text_of(x))}, o.async_op,
    bring)
end

-- ---- parts of all ranks ----

local bind_all_gather = signature("all_gather", "tensor: tensor", GROUP, ASYNC)
local bind_all_gather_list = signature("all_gather", "tensor_list: list", "tensor: tensor", GROUP,
  ASYNC)

-- Whether the arguments of all_gather begin with a list.
local function has_tensor_list(first, second)
  return type(first) == "table" and (first.tensor_list ~= nil or core.is_tensor(second))
end

--- The tensors of all ranks, on all ranks: `all_gather(tensor)` returns a new list, and
--- `all_gather(tensor_list, tensor)` writes into the tensors of the one that is given.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor[]|demilune.distributed.Handle list in the order of the ranks
function collectives.all_gather(...)
  local o = has_tensor_list(...) and bind_all_gather_list(...) or bind_all_gather(...)
  local x, group, into = o.tensor, world.group("all_gather", o.group), o.tensor_list
  local n = #group.ranks
  if into then dense.check_list("all_gather", "tensor_list", into, n, x, true) end
  local stays = world.stays("all_gather", group, "all_gather", nil, x)
  local parts = new_parts(n, x, stays)
  return world.run({kind = "all_gather", name = "all_gather", group = group, stays = stays,
    input = to_read(x, stays), output = parts, key = text_of(x)}, o.async_op,
    as_list(parts, n, x, into))
end

local bind_into = signature("all_gather_into_tensor", "output_tensor: tensor",
  "input_tensor: tensor", GROUP, ASYNC)

--- The tensors of all ranks one after the other in one tensor, on all ranks.
---@param output_tensor demilune.Tensor (n * d1, d2, ...) or (n, d1, d2, ...); written
---@param input_tensor demilune.Tensor (d1, d2, ...), of the same dtype
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle output_tensor
function collectives.all_gather_into_tensor(...)
  local o = bind_into(...)
  local name = "all_gather_into_tensor"
  local group = world.group(name, o.group)
  check_sizes(name, #group.ranks, o.output_tensor, o.input_tensor, "an output")
  local stays = stay(name, group, "all_gather", nil, o.input_tensor, o.output_tensor)
  local flat, bring = to_write(name, o.output_tensor, stays)
  return world.run({kind = "all_gather", name = name, group = group, stays = stays,
    input = to_read(o.input_tensor, stays), output = flat, key = text_of(o.input_tensor)},
    o.async_op, bring)
end

local bind_reduce_scatter = signature("reduce_scatter_tensor", "output: tensor", "input: tensor",
  OPS, GROUP, ASYNC)

--- Combines the tensors of all ranks as all_reduce does, and gives each rank its part.
---@param output demilune.Tensor (d1, d2, ...): part i, counted from 0, on the i-th rank; written
---@param input demilune.Tensor (n * d1, d2, ...) or (n, d1, d2, ...), of the same dtype
---@param op? string as of all_reduce
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle output
function collectives.reduce_scatter_tensor(...)
  local o = bind_reduce_scatter(...)
  local name = "reduce_scatter_tensor"
  local group = world.group(name, o.group)
  check_op(name, o.input, o.op)
  check_sizes(name, #group.ranks, o.input, o.output, "an input")
  local stays = stay(name, group, "reduce_scatter", o.op, o.input, o.output)
  local flat, bring = to_write(name, o.output, stays)
  return world.run({kind = "reduce_scatter", name = name, group = group, op = o.op, stays = stays,
    input = to_read(o.input, stays), output = flat,
    key = ("(%s) %s"):format(o.op, text_of(o.input))}, o.async_op, bring)
end

local bind_scatter_list = signature("reduce_scatter", "output: tensor", "input_list: list", OPS,
  GROUP, ASYNC)

--- Combines the lists of all ranks, element by element, as all_reduce does, and gives each rank
--- its element.
---@param output demilune.Tensor element i, counted from 0, on the i-th rank; written
---@param input_list demilune.Tensor[] for each rank one, of the output's shape and dtype
---@param op? string as of all_reduce
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle output
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local list = {}
---for i = 1, dist.get_world_size() do list[i] = dm.full({3}, i) end
---local sum = dist.reduce_scatter(dm.zeros(3):to "int64", list)
---dist.destroy_process_group()
---```
function collectives.reduce_scatter(...)
  local o, name = bind_scatter_list(...), "reduce_scatter"
  local group = world.group(name, o.group)
  check_op(name, o.output, o.op)
  dense.check_list(name, "input_list", o.input_list, #group.ranks, o.output)
  local stays = stay(name, group, name, o.op, o.input_list[1], o.output)
  local flat, bring = to_write(name, o.output, stays)
  return world.run({kind = name, name = name, group = group, op = o.op, stays = stays,
    input = dense.joined(o.input_list, stays), output = flat,
    key = ("(%s) a list of %s"):format(o.op, text_of(o.output))}, o.async_op, bring)
end

local bind_gather = signature("gather", "tensor: tensor", "dst: integer = 0", GROUP, ASYNC)
local bind_gather_list = signature("gather", "tensor: tensor", "gather_list?: list",
  "dst: integer = 0", GROUP, ASYNC)

-- Whether the arguments of gather have a list, or nil in its place.
local function has_gather_list(first, second, third)
  if second == nil then
    return math.type(third) == "integer" or type(first) == "table" and first.gather_list ~= nil
  end
  return type(second) == "table" and (second.gather_list ~= nil or core.is_tensor(second[1]))
end

--- The tensors of all ranks, on rank dst: `gather(tensor, dst)` returns a new list there, and
--- `gather(tensor, gather_list, dst)` writes into the tensors of the one that is given there.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param dst? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor[]|demilune.distributed.Handle|nil list in the order of the ranks; nil on
--- the others
function collectives.gather(...)
  local o = has_gather_list(...) and bind_gather_list(...) or bind_gather(...)
  local x, group, into = o.tensor, world.group("gather", o.group), o.gather_list
  local peer, n = world.index("gather", "dst", group, o.dst), #group.ranks
  local is_there = world.rank "gather" == o.dst
  if into and is_there then
    dense.check_list("gather", "gather_list", into, n, x, true)
  elseif into and #into > 0 then
    caller.raise("gather: gather_list is for rank %d, which is dst", o.dst)
  end
  local stays = world.stays("gather", group, "gather", nil, x)
  local parts = is_there and new_parts(n, x, stays) or nil
  return world.run({kind = "gather", name = "gather", group = group, peer = peer, stays = stays,
    input = to_read(x, stays), output = parts, key = ("to rank %d, %s"):format(o.dst, text_of(x))},
    o.async_op, is_there and as_list(parts, n, x, into) or nothing)
end

-- The tensors of scatter's list, each like x, as one.
local function checked_list(list, n, x, stays)
  if not list then
    caller.raise("scatter: no list, wanted scatter_list of %d on the rank src", n)
  end
  dense.check_list("scatter", "scatter_list", list, n, x)
  return dense.joined(list, stays)
end

local bind_scatter = signature("scatter", "tensor: tensor", "scatter_list?: list",
  "src: integer = 0", GROUP, ASYNC)

--- Gives each rank its tensor of the list on rank src.
---@param tensor demilune.Tensor of one shape and dtype on all ranks; written
---@param scatter_list? demilune.Tensor[] on src: one like the tensor for each rank, in their order
---@param src? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle tensor
function collectives.scatter(...)
  local o = bind_scatter(...)
  local x, group = o.tensor, world.group("scatter", o.group)
  local peer = world.index("scatter", "src", group, o.src)
  local stays, parts = world.stays("scatter", group, "scatter", nil, x), nil
  if world.rank "scatter" == o.src then
    parts = checked_list(o.scatter_list, #group.ranks, x, stays)
  elseif o.scatter_list and #o.scatter_list > 0 then
    caller.raise("scatter: scatter_list is for rank %d, which is src", o.src)
  end
  local flat, bring = to_write("scatter", x, stays)
  return world.run({kind = "scatter", name = "scatter", group = group, peer = peer, input = parts,
    stays = stays,
    output = flat, key = ("from rank %d, %s"):format(o.src, text_of(x))}, o.async_op, bring)
end

local bind_all_to_all = signature("all_to_all_single", "output: tensor", "input: tensor",
  "output_split_sizes?: list", "input_split_sizes?: list", GROUP, ASYNC)

--- Cuts the input's first dim into a part for each rank, and puts the parts that come from the
--- ranks one after the other. The parts are equal unless sizes are given, on all ranks; the ranks
--- compare them, and all of them raise where the sizes of two do not match.
---@param output demilune.Tensor like the input; with sizes, (rows that come, ...); written
---@param input demilune.Tensor (d1, ...), d1 a multiple of the number of ranks; with sizes, (rows
--- that go, ...)
---@param output_split_sizes? integer[] rows from each rank; where the other list alone is given, as
--- many from each
---@param input_split_sizes? integer[] rows to each rank; where the other list alone is given, as
--- many to each
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor|demilune.distributed.Handle output
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local n = dist.get_world_size()
---local sizes = {}
---for i = 1, n do sizes[i] = 2 end
---local x = dm.ones(2 * n, 3)
---local y = dist.all_to_all_single(dm.empty_like(x), x, sizes, sizes)
---dist.destroy_process_group()
---```
function collectives.all_to_all_single(...)
  local o = bind_all_to_all(...)
  local name = "all_to_all_single"
  local group = world.group(name, o.group)
  local n = #group.ranks
  if o.output_split_sizes or o.input_split_sizes then
    local goes, comes, job = exchange.rows(name, "", o.output, o.input, o.output_split_sizes,
      o.input_split_sizes, n)
    return exchange.run(group, o.output, o.input, goes, comes, job, o.async_op)
  end
  check_sizes(name, 1, o.output, o.input, "an output")
  if o.input:dim() == 0 or o.input.shape[1] % n ~= 0 then
    caller.raise("%s: %s does not divide into %d parts; hint: the first dim has to", name,
      text_of(o.input), n)
  end
  local stays = stay(name, group, "all_to_all", nil, o.input, o.output)
  local flat, bring = to_write(name, o.output, stays)
  return world.run({kind = "all_to_all", name = name, group = group, stays = stays,
    input = to_read(o.input, stays),
    output = flat, key = text_of(o.input)}, o.async_op, bring)
end

local bind_lists = signature("all_to_all", "output_tensor_list: list", "input_tensor_list: list",
  GROUP, ASYNC)

-- Raises unless all tensors of the lists have one dtype.
local function check_dtypes(name, ...)
  local first = (...)[1].dtype
  for _, list in ipairs{...} do
    for _, t in ipairs(list) do
      if t.dtype ~= first then
        caller.raise("%s: dtypes %s and %s, wanted the same", name, first, t.dtype)
      end
    end
  end
end

local function counts_of(list)
  local counts = {}
  for i, t in ipairs(list) do counts[i] = t:numel() end
  return counts
end

--- Gives element i of the list to the i-th rank, and writes what the ranks give this one. The
--- tensors may be of different sizes, which the ranks compare: all of them raise where those
--- of two do not match.
---@param output_tensor_list demilune.Tensor[] of the sizes that each rank gives; written
---@param input_tensor_list demilune.Tensor[] for each rank one, of one dtype
---@param group? demilune.distributed.Group all ranks by default
---@param async_op? boolean return a handle at once
---@return demilune.Tensor[]|demilune.distributed.Handle output_tensor_list
---```lua
---local dist = dm.distributed
---dist.init_process_group()
---local mine, theirs = {}, {}
---for i = 1, dist.get_world_size() do mine[i], theirs[i] = dm.ones(2), dm.empty(2) end
---dist.all_to_all(theirs, mine)
---dist.destroy_process_group()
---```
function collectives.all_to_all(...)
  local o, name = bind_lists(...), "all_to_all"
  local group, outputs, inputs = world.group(name, o.group), o.output_tensor_list,
    o.input_tensor_list
  dense.check_list(name, "output_tensor_list", outputs, #group.ranks, nil, true)
  dense.check_list(name, "input_tensor_list", inputs, #group.ranks)
  check_dtypes(name, inputs, outputs)
  local flat, comes, total = {}, counts_of(outputs), 0
  for i, x in ipairs(inputs) do flat[i] = x:detach():reshape(-1) end
  for _, count in ipairs(comes) do total = total + count end
  local x = core.cat(flat)
  local y = core.empty({total}, {dtype = x.dtype, device = x.device})
  return exchange.run(group, y, x, counts_of(inputs), comes,
    {name = name, row = 1, key = "lists of " .. x.dtype}, o.async_op, function()
      for i, part in ipairs(y:split(comes)) do
        outputs[i]:detach():copy_(part:reshape(outputs[i].shape))
      end
      return outputs
    end)
end

-- ---- messages ----

local TAG = "tag: integer = 0"

-- The group, the index of the other rank, which is not this one, and what both ranks compare. The
-- rank may be nil, for any: -1.
local function partner(name, what, o)
  local group, rank, most = world.group(name, o.group), o[what], core._dist_most_tag()
  if o.tag < 0 or o.tag > most then
    caller.raise("%s: tag is %d, wanted 0 to %d", name, o.tag, most)
  end
  local key = text_of(o.tensor) .. (o.tag > 0 and (", tag %d"):format(o.tag) or "")
  if not rank then
    if #group.ranks > 1 then return group, -1, key end
    caller.raise("%s: this rank is the only one of the group, wanted one that sends", name)
  end
  local index = world.index(name, what, group, rank)
  if rank == world.rank(name) then
    caller.raise("%s: %s is %d, this rank itself; hint: y:copy_(x) needs no message", name, what,
      rank)
  end
  return group, index, key
end

local function sender(name, is_async)
  local bind = signature(name, "tensor: tensor", "dst: integer", GROUP, TAG)
  return function(...)
    local o = bind(...)
    local group, index, key = partner(name, "dst", o)
    return world.run({kind = "send", name = name, group = group, peer = index, tag = o.tag,
      input = to_read(o.tensor), key = key}, is_async, nothing)
  end
end

local function receiver(name, is_async)
  local bind = signature(name, "tensor: tensor", "src?: integer", GROUP, TAG)
  return function(...)
    local o = bind(...)
    local group, index, key = partner(name, "src", o)
    local flat, bring = to_write(name, o.tensor)
    return world.run({kind = "recv", name = name, group = group, peer = index, input = flat,
      tag = o.tag, key = key}, is_async, function(work)
        return bring(), group.ranks[work:peer() + 1]
      end)
  end
end

--- Sends a tensor to rank dst, which calls recv or irecv; returns when the tensor may change.
--- Tensors between two ranks with one tag arrive in the order in which they were sent.
---@param tensor demilune.Tensor
---@param dst integer a rank of the world, from 0
---@param group? demilune.distributed.Group all ranks by default
---@param tag? integer from 0: it meets a recv of that tag; 0 by default
collectives.send = sender("send", false)

--- Receives a tensor that rank src sends, of the same shape and dtype.
---@param tensor demilune.Tensor written
---@param src? integer a rank of the world, from 0; any of the group by default
---@param group? demilune.distributed.Group all ranks by default
---@param tag? integer from 0, that of send; 0 by default
---@return demilune.Tensor tensor
---@return integer rank that has sent it
---```lua
---local tensor, rank = dist.recv(dm.empty(3))   -- of whichever rank sends first
---```
collectives.recv = receiver("recv", false)

--- Starts to send a tensor to rank dst. The tensor may not change before wait() has returned.
---@param tensor demilune.Tensor
---@param dst integer a rank of the world, from 0
---@param group? demilune.distributed.Group all ranks by default
---@param tag? integer from 0: it meets a recv of that tag; 0 by default
---@return demilune.distributed.Handle handle
collectives.isend = sender("isend", true)

--- Starts to receive a tensor that rank src sends; it is there when wait() has returned, which
--- gives the tensor and the rank that has sent it.
---@param tensor demilune.Tensor written
---@param src? integer a rank of the world, from 0; any of the group by default
---@param group? demilune.distributed.Group all ranks by default
---@param tag? integer from 0, that of send; 0 by default
---@return demilune.distributed.Handle handle
collectives.irecv = receiver("irecv", true)

local P2POp = {class = "P2POp"}

local bind_p2p = signature("P2POp", "op: function", "tensor: tensor", "peer: integer", GROUP, TAG)

--- A message that batch_isend_irecv starts.
---@param op function dist.isend or dist.irecv
---@param tensor demilune.Tensor sent, or written
---@param peer integer the other rank of the world, from 0
---@param group? demilune.distributed.Group all ranks by default
---@param tag? integer from 0; 0 by default
---@return table message
function collectives.P2POp(...)
  local o = bind_p2p(...)
  if o.op ~= collectives.isend and o.op ~= collectives.irecv then
    caller.raise "P2POp: op is another function, wanted dist.isend or dist.irecv"
  end
  return setmetatable({op = o.op, tensor = o.tensor, peer = o.peer, group = o.group, tag = o.tag},
    P2POp)
end

local bind_batch = signature("batch_isend_irecv", "p2p_op_list: list")

--- Starts messages together; those of a rank may be in any order.
---@param p2p_op_list table[] of dist.P2POp
---@return demilune.distributed.Handle[] handles one for each
---```lua
---local after, before = (rank + 1) % n, (rank - 1) % n
---local handles = dist.batch_isend_irecv{dist.P2POp(dist.isend, x, after),
---  dist.P2POp(dist.irecv, y, before)}
---for _, handle in ipairs(handles) do handle:wait() end
---```
function collectives.batch_isend_irecv(...)
  local list, handles = bind_batch(...).p2p_op_list, {}
  for i, message in ipairs(list) do
    if getmetatable(message) ~= P2POp then
      caller.raise("batch_isend_irecv: element %d is a %s, wanted dist.P2POp()", i, type(message))
    end
  end
  for i, message in ipairs(list) do
    handles[i] = message.op(message.tensor, message.peer, message.group, message.tag)
  end
  return handles
end

return collectives
