-- demilune.distributed.nn: collectives with gradients (torch.distributed.nn.functional's names). A
-- backward pass sends, too: all ranks of the group call backward, or none does. The gradient of a
-- rank's tensor is that of the sum of all ranks' losses.

local core = require "demilune.core"
local autograd = require "demilune.autograd"
local caller = require "demilune.caller"
local options = require "demilune.options"
local collectives = require "demilune.distributed.collectives"
local dense = require "demilune.distributed.dense"
local exchange = require "demilune.distributed.exchange"
local world = require "demilune.distributed.world"

local nn = {}

local GROUP, OPS = "group?: group", "op: 'sum'|'avg' = 'sum'"

local function signature(name, ...)
  return options.signature("distributed.nn." .. name, table.concat({...}, ", "))
end

-- ---- functions of a dense tensor ----

local add_up, from_one, to_one, gather_all, scatter_sum, trade, gather_one, scatter_one

-- The sum or the mean over the ranks, on all of them.
add_up = autograd.Function{
  name = "distributed.nn.all_reduce",
  forward = function(ctx, x, op, group)
    ctx.op, ctx.group = op, group
    return collectives.all_reduce(x:clone(), op, group)
  end,
  backward = function(ctx, gy) return add_up(gy, ctx.op, ctx.group) end,
}

-- The tensor of rank src, on all.
from_one = autograd.Function{
  name = "distributed.nn.broadcast",
  forward = function(ctx, x, src, group)
    ctx.src, ctx.group = src, group
    return collectives.broadcast(x:clone(), src, group)
  end,
  backward = function(ctx, gy) return to_one(gy, ctx.src, "sum", ctx.group) end,
}

-- The sum or the mean over the ranks on rank dst, zeros on the others.
to_one = autograd.Function{
  name = "distributed.nn.reduce",
  forward = function(ctx, x, dst, op, group)
    ctx.dst, ctx.op, ctx.group = dst, op, group
    local y = collectives.reduce(x:clone(), dst, op, group)
    return world.rank "reduce" == dst and y or y:zero_()
  end,
  backward = function(ctx, gy)
    local gx = from_one(gy, ctx.dst, ctx.group)
    return ctx.op == "avg" and gx / #ctx.group.ranks or gx
  end,
}

-- (d1, ...) of each rank -> (n, d1, ...).
gather_all = autograd.Function{
  name = "distributed.nn.all_gather",
  forward = function(ctx, x, group)
    ctx.group = group
    local y = core.empty({#group.ranks, table.unpack(x.shape)}, {dtype = x.dtype,
      device = x.device})
    return collectives.all_gather_into_tensor(y, x, group)
  end,
  backward = function(ctx, gy) return scatter_sum(gy, "sum", ctx.group) end,
}

-- (n, d1, ...) -> this rank's part (d1, ...) of the sum or the mean over the ranks.
scatter_sum = autograd.Function{
  name = "distributed.nn.reduce_scatter",
  forward = function(ctx, x, op, group)
    ctx.op, ctx.group = op, group
    local y = core.empty({table.unpack(x.shape, 2)}, {dtype = x.dtype, device = x.device})
    return collectives.reduce_scatter_tensor(y, x, op, group)
  end,
  backward = function(ctx, gy)
    local gx = gather_all(gy, ctx.group)
    return ctx.op == "avg" and gx / #ctx.group.ranks or gx
  end,
}

-- Parts of any sizes, goes[i] rows for rank i -> comes[i] rows of each rank, one after the other.
trade = autograd.Function{
  name = "distributed.nn.all_to_all",
  forward = function(ctx, x, goes, comes, job, group)
    ctx.goes, ctx.comes, ctx.job, ctx.group = goes, comes, job, group
    local rows = 0
    for _, size in ipairs(comes) do rows = rows + size end
    local y = core.empty({rows, table.unpack(x.shape, 2)}, {dtype = x.dtype, device = x.device})
    return exchange.run(group, y, x, goes, comes, job)
  end,
  backward = function(ctx, gy) return trade(gy, ctx.comes, ctx.goes, ctx.job, ctx.group) end,
}

-- (d1, ...) of each rank -> (n, d1, ...) on rank dst, zeros on the others.
gather_one = autograd.Function{
  name = "distributed.nn.gather",
  forward = function(ctx, x, dst, group)
    ctx.dst, ctx.group = dst, group
    local list = collectives.gather(x, dst, group)
    if list then return core.stack(list) end
    return core.zeros({#group.ranks, table.unpack(x.shape)}, {dtype = x.dtype, device = x.device})
  end,
  backward = function(ctx, gy) return scatter_one(gy, ctx.dst, ctx.group) end,
}

-- (n, d1, ...), of which that of rank src counts -> this rank's part.
scatter_one = autograd.Function{
  name = "distributed.nn.scatter",
  forward = function(ctx, x, src, group)
    ctx.src, ctx.group = src, group
    local y = core.empty({table.unpack(x.shape, 2)}, {dtype = x.dtype, device = x.device})
    local list = world.rank "scatter" == src and x:unbind(1) or nil
    return collectives.scatter(y, list, src, group)
  end,
  backward = function(ctx, gy) return gather_one(gy, ctx.src, ctx.group) end,
}

-- ---- checks ----

-- Raises unless it is a list of n tensors.
local function check_list(name, ...) dense.check_list("distributed.nn." .. name, ...) end

-- Writes y into the tensor that a caller gave for it, and returns y, which has the history.
local function written(name, output, y)
  if output.dtype ~= y.dtype or tostring(output.shape) ~= tostring(y.shape) then
    caller.raise("distributed.nn.%s: an output %s %s for %s %s", name, tostring(output.shape),
      output.dtype, tostring(y.shape), y.dtype)
  end
  output:detach():copy_(y:detach())
  return y
end

-- ---- the public functions ----

local bind_all_reduce = signature("all_reduce", "tensor: tensor", OPS, GROUP)

--- The sum or the mean of the ranks' tensors, a new tensor on each of them.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param op? string "sum" (default) or "avg", which have gradients
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor sum
function nn.all_reduce(...)
  local o = bind_all_reduce(...)
  return add_up(o.tensor, o.op, world.group("all_reduce", o.group))
end

local bind_broadcast = signature("broadcast", "tensor: tensor", "src: integer", GROUP)

--- The tensor of rank src, a new tensor on each rank. Its gradient is the sum of the ranks'; those
--- of the other ranks' tensors are zeros.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param src integer a rank of the world, from 0
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.broadcast(...)
  local o = bind_broadcast(...)
  return from_one(o.tensor, o.src, world.group("broadcast", o.group))
end

local bind_reduce = signature("reduce", "tensor: tensor", "dst: integer", OPS, GROUP)

--- The sum or the mean of the ranks' tensors on rank dst, and zeros on the others, which call
--- backward through them as well.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param dst integer a rank of the world, from 0
---@param op? string "sum" (default) or "avg"
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.reduce(...)
  local o = bind_reduce(...)
  return to_one(o.tensor, o.dst, o.op, world.group("reduce", o.group))
end

local bind_all_gather = signature("all_gather", "tensor: tensor", GROUP)

--- The tensors of all ranks, on each of them.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor[] list in the order of the ranks
function nn.all_gather(...)
  local o = bind_all_gather(...)
  return gather_all(o.tensor, world.group("all_gather", o.group)):unbind(1)
end

local bind_gather = signature("gather", "tensor: tensor", "dst: integer = 0", GROUP)

--- The tensors of all ranks on rank dst, and as many zeros on the others, which call backward
--- through them as well.
---@param tensor demilune.Tensor of one shape and dtype on all ranks
---@param dst? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor[] list in the order of the ranks
function nn.gather(...)
  local o = bind_gather(...)
  return gather_one(o.tensor, o.dst, world.group("gather", o.group)):unbind(1)
end

local bind_scatter = signature("scatter", "tensors: list", "src: integer = 0", GROUP)

--- This rank's tensor of the list on rank src.
---@param tensors demilune.Tensor[] a tensor for each rank, of one shape and dtype on all ranks;
--- those of src count
---@param src? integer a rank of the world, from 0; 0 by default
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.scatter(...)
  local o = bind_scatter(...)
  local group = world.group("scatter", o.group)
  check_list("scatter", "tensors", o.tensors, #group.ranks)
  return scatter_one(core.stack(o.tensors), o.src, group)
end

local bind_reduce_scatter = signature("reduce_scatter", "output: tensor", "input_list: list", OPS,
  GROUP)

--- Of the sum or the mean of the ranks' lists, this rank's element.
---@param output demilune.Tensor written, too; the result has the history
---@param input_list demilune.Tensor[] one like the output for each rank
---@param op? string "sum" (default) or "avg"
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.reduce_scatter(...)
  local o, name = bind_reduce_scatter(...), "reduce_scatter"
  local group = world.group(name, o.group)
  check_list(name, "input_list", o.input_list, #group.ranks)
  return written(name, o.output, scatter_sum(core.stack(o.input_list), o.op, group))
end

-- Trades flat tensors of any lengths, parts[i] for rank i; sizes[i] elements come from rank i.
local function trade_parts(name, parts, sizes, group)
  local gives = {}
  for i, part in ipairs(parts) do gives[i] = part:numel() end
  local job = {name = name, row = 1, key = parts[1].dtype}
  return trade(core.cat(parts), gives, sizes, job, group):split(sizes)
end

local bind_all_to_all = signature("all_to_all", "output_tensor_list: list",
  "input_tensor_list: list", GROUP)

--- Gives element i of the list to the i-th rank, and returns what the ranks give this one. The
--- tensors may be of different sizes.
---@param output_tensor_list demilune.Tensor[] as large as what comes from each rank; written, too:
--- the results have the history
---@param input_tensor_list demilune.Tensor[] for each rank one, of one dtype
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor[] list in the order of the ranks
function nn.all_to_all(...)
  local o, name = bind_all_to_all(...), "all_to_all"
  local group = world.group(name, o.group)
  check_list(name, "output_tensor_list", o.output_tensor_list, #group.ranks)
  check_list(name, "input_tensor_list", o.input_tensor_list, #group.ranks)
  local parts, sizes = {}, {}
  for i, x in ipairs(o.input_tensor_list) do
    parts[i], sizes[i] = x:reshape(-1), o.output_tensor_list[i]:numel()
  end
  local list = trade_parts(name, parts, sizes, group)
  for i, output in ipairs(o.output_tensor_list) do
    list[i] = written(name, output, list[i]:reshape(output.shape))
  end
  return list
end

local bind_single = signature("all_to_all_single", "output: tensor", "input: tensor",
  "output_split_sizes?: list", "input_split_sizes?: list", GROUP)

--- Cuts the input's first dim into a part for each rank, and puts the parts that come from the
--- ranks one after the other.
---@param output demilune.Tensor (rows that come, ...); written, too: the result has the history
---@param input demilune.Tensor (rows that go, ...)
---@param output_split_sizes? integer[] rows from each rank; as many from each by default
---@param input_split_sizes? integer[] rows to each rank; as many to each by default
---@param group? demilune.distributed.Group all ranks by default
---@return demilune.Tensor
function nn.all_to_all_single(...)
  local o, name = bind_single(...), "all_to_all_single"
  local group, input, output = world.group(name, o.group), o.input, o.output
  local goes, comes, job = exchange.rows(name, "distributed.nn.", output, input,
    o.output_split_sizes, o.input_split_sizes, #group.ranks)
  return written(name, output, trade(input, goes, comes, job, group))
end

return nn
